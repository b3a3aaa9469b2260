//! A report as a page: one file that needs nothing else, and in which every name is text.

use std::fmt::Write;

use super::finding::Severity;
use super::report::{Facts, Group, Report};
use crate::render::{count, counted};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d2127; --paper: #fff; --faint: #5c6672; --line: #d9dee4; --code: #f3f5f7;
  --problem: #b3261e; --warning: #8a5a00; --unknown: #6b4fa0; --note: #1f5f99; --ok: #2b6e3f }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --paper: #15181c; --faint: #9aa4b0; --line: #343a42;
  --code: #20252b; --problem: #ff8a80; --warning: #f0b95a; --unknown: #c3a6ff; --note: #86bdf0; --ok: #7fcf95 } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p { margin: .4rem 0 } .faint { color: var(--faint) }
article { border-left: 4px solid var(--line); padding: .1rem 0 .1rem 1rem; margin: 1rem 0; break-inside: avoid }
article h3 { font-size: 1rem; margin: 0 } article h3 code { font-weight: 600 }
.problem { border-color: var(--problem) } .warning { border-color: var(--warning) }
.unknown { border-color: var(--unknown) } .note { border-color: var(--note) } .ok { border-color: var(--ok) }
.word { font-weight: 700 } .problem .word { color: var(--problem) } .warning .word { color: var(--warning) }
.unknown .word { color: var(--unknown) } .note .word { color: var(--note) } .ok .word { color: var(--ok) }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
pre { background: var(--code); padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; margin: .3rem 0 }
ul { margin: .3rem 0; padding-left: 1.2rem } li { overflow-wrap: anywhere }
details summary { cursor: pointer }
@media print { body { margin: 0; max-width: none; font-size: 11pt } pre { border: 1px solid var(--line) } }
";

/// Text in which nothing is markup.
fn escaped(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => clean.push_str("&amp;"),
            '<' => clean.push_str("&lt;"),
            '>' => clean.push_str("&gt;"),
            '"' => clean.push_str("&quot;"),
            '\'' => clean.push_str("&#39;"),
            character => clean.push(character),
        }
    }
    clean
}

impl Report {
    /// The page.
    pub fn html(&self) -> String {
        let title = match &self.flow {
            Some(flow) => format!("pgonce check: flow {}", escaped(flow)),
            None => "pgonce check".to_owned(),
        };
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        // Writing to a String cannot fail.
        let _ = self.write_head(&mut page);
        let groups = self.groups();
        for severity in Severity::ALL {
            let of: Vec<&Group<'_>> = groups.iter().filter(|group| group.severity == severity).collect();
            if !of.is_empty() {
                let _ = write_section(&mut page, severity, &of);
            }
        }
        page.push_str("</body>\n</html>\n");
        page
    }

    fn write_head(&self, page: &mut String) -> std::fmt::Result {
        writeln!(page, "<p class=\"faint\">{}, pgonce {}</p>", escaped(&self.at), crate::commands::version::VERSION)?;
        for (side, facts) in [("Source", &self.source), ("Target", &self.target)] {
            if let Some(Facts { version, database, role }) = facts {
                writeln!(
                    page,
                    "<p>{side}: PostgreSQL {}, database {}, as role {}</p>",
                    escaped(version),
                    escaped(database),
                    escaped(role)
                )?;
            }
        }
        let of = |severity: Severity, one: &str, many: &str| counted(self.count(severity) as u64, one, many);
        let verdict = if self.exit_status() == 0 { "Ready" } else { "Not ready" };
        let tables = match self.tables {
            Some(tables) => format!(", {} to carry", counted(tables as u64, "table", "tables")),
            None => String::new(),
        };
        writeln!(
            page,
            "<p><strong>{verdict}</strong>: {}, {}, {} unknown, {}{tables}.</p>",
            of(Severity::Problem, "problem", "problems"),
            of(Severity::Warning, "warning", "warnings"),
            count(self.count(Severity::Unknown) as u64),
            of(Severity::Note, "note", "notes"),
        )
    }
}

fn write_section(page: &mut String, severity: Severity, groups: &[&Group<'_>]) -> std::fmt::Result {
    let heading = match severity {
        Severity::Problem => "Problems: the flow would not start, or would stop",
        Severity::Warning => "Warnings: it would run, and not as one might expect",
        Severity::Unknown => "Unknown: the role may not find out",
        Severity::Note => "Notes",
        Severity::Ok => "In order",
    };
    writeln!(page, "<h2>{heading}</h2>")?;
    for group in groups {
        write_group(page, group)?;
    }
    Ok(())
}

fn write_group(page: &mut String, group: &Group<'_>) -> std::fmt::Result {
    let word = group.severity.word();
    writeln!(
        page,
        "<article class=\"{word}\">\n<h3><span class=\"word\">{word}</span> <code>{}</code></h3>",
        group.id
    )?;
    for (names, text) in group.found() {
        match names.as_slice() {
            [] => writeln!(page, "<p>{}</p>", escaped(text))?,
            [name] => writeln!(page, "<p><code>{}</code>: {}</p>", escaped(name), escaped(text))?,
            names => {
                let many = count(names.len() as u64);
                writeln!(page, "<details open><summary>{many}: {}</summary><ul>", escaped(text))?;
                for name in names {
                    writeln!(page, "<li><code>{}</code></li>", escaped(name))?;
                }
                writeln!(page, "</ul></details>")?;
            }
        }
    }
    if !group.means.is_empty() {
        writeln!(page, "<p>{}</p>", escaped(group.means))?;
    }
    for (who, mends) in group.mends() {
        let restart = if mends.iter().any(|mend| mend.restart) { ", and restart the server" } else { "" };
        let texts: Vec<String> = mends.iter().map(|mend| escaped(&mend.text)).collect();
        writeln!(page, "<p class=\"faint\">{}{restart}:</p>\n<pre>{}</pre>", who.words(), texts.join("\n"))?;
    }
    writeln!(page, "</article>")
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn nothing_in_a_name_is_markup() {
        assert_eq!(escaped("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
    }
}
