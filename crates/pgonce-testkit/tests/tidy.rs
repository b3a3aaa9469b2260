//! The rules of the house that a program can check.
//!
//! - No leftovers (`todo`, `unimplemented`, `dbg`), no printing in libraries, no test that is ignored without a
//!   reason.
//! - No Rust file over 800 lines, no line over 120 columns, no file that no module leads to.
//! - No path of one machine in any file.
//! - Every law in `docs/laws.md` names tests, and every test that a document names exists. A test is named in
//!   backticks, as `path/from/the/root.rs::name_of_the_test`. A law is a heading `## Law 1` (with a title behind it,
//!   if it likes) and what follows it; a fault is a table row of `docs/faults.md` whose first cell is its id (`A1`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 800;
const COLUMNS_MAX: usize = 120;
const LAWS: usize = 7;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file of the project, but not what is built or fetched.
fn files() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            let hidden = name.starts_with('.') && ![".ci", ".cargo", ".config", ".github"].contains(&name.as_str());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !hidden && !["target", "pgonce-data", "node_modules"].contains(&name.as_str()) {
                walk(&entry.path(), found);
            } else if kind.is_file() && !hidden {
                found.push(entry.path());
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found.sort();
    assert!(found.len() > 10, "the project's files were not found");
    found
}

fn rust_files() -> Vec<PathBuf> {
    files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", shown(path)))
}

/// Lines of code with their numbers, without those that are comments.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether `line` calls the macro `name`.
fn calls(line: &str, name: &str) -> bool {
    let call = format!("{name}!");
    line.match_indices(&call).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let behind = line[at + call.len()..].chars().next();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '"') && matches!(behind, Some('(' | '[' | '{'))
    })
}

#[track_caller]
fn assert_none(found: &[String]) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn nothing_unfinished_is_left_in_code() {
    let mut found = Vec::new();
    for path in rust_files() {
        for (number, line) in code_lines(&read(&path)) {
            for name in ["todo", "unimplemented", "dbg"] {
                if calls(line, name) {
                    found.push(format!("{}:{number}: {name}", shown(&path)));
                }
            }
        }
    }
    assert_none(&found);
}

#[test]
fn libraries_do_not_print() {
    let mut found = Vec::new();
    for folder in crates() {
        if folder.join("src/main.rs").exists() || !folder.join("src/lib.rs").exists() {
            continue;
        }
        for path in rust_files().into_iter().filter(|path| path.starts_with(folder.join("src"))) {
            for (number, line) in code_lines(&read(&path)) {
                if ["print", "println", "eprint", "eprintln"].iter().any(|name| calls(line, name)) {
                    found.push(format!("{}:{number}: a library prints", shown(&path)));
                }
            }
        }
    }
    assert_none(&found);
}

#[test]
fn ignored_tests_say_why() {
    let bare = concat!("#[", "ignore]");
    let mut found = Vec::new();
    for path in rust_files() {
        for (number, line) in code_lines(&read(&path)) {
            if line.contains(bare) {
                found.push(format!("{}:{number}: write #[ignore = \"reason\"]", shown(&path)));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn files_and_lines_are_not_too_long() {
    let mut found = Vec::new();
    for path in rust_files() {
        let text = read(&path);
        let lines = text.lines().count();
        if lines > LINES_MAX {
            found.push(format!("{}: {lines} lines; it is two things", shown(&path)));
        }
        for (at, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                found.push(format!("{}:{}: {columns} columns", shown(&path), at + 1));
            }
        }
    }
    assert_none(&found);
}

fn crates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = files()
        .into_iter()
        .filter(|path| path.ends_with("Cargo.toml") && path.parent() != Some(&root()))
        .map(|path| path.parent().unwrap().to_owned())
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

#[test]
fn every_file_is_reached_by_a_module() {
    let mut reached = BTreeSet::new();
    for folder in crates() {
        for name in ["build.rs", "src/lib.rs", "src/main.rs"] {
            reach(&folder.join(name), true, &mut reached);
        }
        for targets in ["src/bin", "tests", "benches", "examples", "fuzz_targets"] {
            let Ok(entries) = fs::read_dir(folder.join(targets)) else { continue };
            for path in entries.flatten().map(|entry| entry.path()) {
                reach(&if path.is_dir() { path.join("main.rs") } else { path }, true, &mut reached);
            }
        }
    }
    let dead: Vec<String> = rust_files()
        .iter()
        .filter(|path| !reached.contains(*path))
        .map(|path| format!("{}: no module leads here", shown(path)))
        .collect();
    assert_none(&dead);
}

/// Adds a file, and those that its `mod` lines lead to.
fn reach(path: &Path, is_root: bool, reached: &mut BTreeSet<PathBuf>) {
    if !path.is_file() || path.extension().is_none_or(|extension| extension != "rs") {
        return;
    }
    if !reached.insert(path.to_owned()) {
        return;
    }
    let folder = path.parent().unwrap();
    let below = if is_root || path.ends_with("mod.rs") { folder.to_owned() } else { path.with_extension("") };
    for (_, line) in code_lines(&read(path)) {
        if let Some(named) = line.trim().strip_prefix("#[path = \"").and_then(|rest| rest.split('"').next()) {
            reach(&folder.join(named), false, reached);
        }
        let Some(module) = module_of(line) else { continue };
        reach(&below.join(format!("{module}.rs")), false, reached);
        reach(&below.join(module).join("mod.rs"), false, reached);
    }
}

/// The name in a line like `pub(crate) mod name;`.
fn module_of(line: &str) -> Option<&str> {
    let line = line.trim();
    let declaration = match line.strip_prefix("pub") {
        Some(rest) => rest.strip_prefix('(').map_or(rest, |rest| rest.split_once(')').map_or(rest, |(_, rest)| rest)),
        None => line,
    };
    let name = declaration.trim_start().strip_prefix("mod ")?.split(';').next()?.trim();
    (line.contains(';') && name.chars().all(|c| c.is_alphanumeric() || c == '_')).then_some(name)
}

#[test]
fn no_file_names_a_place_on_one_machine() {
    let mut places =
        vec![concat!("/", "work/").to_owned(), concat!("/", "root/").to_owned(), root().display().to_string()];
    // A home as an example is fine; this one is not.
    places.extend(std::env::var("HOME").ok().filter(|home| home.len() > 1).map(|home| format!("{home}/")));
    let mut found = Vec::new();
    for path in files() {
        // What is not text has no lines to check.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (at, line) in text.lines().enumerate() {
            for place in places.iter().filter(|place| line.contains(*place)) {
                found.push(format!("{}:{}: {place}", shown(&path), at + 1));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn dependencies_come_from_the_public_registry() {
    let public = "registry+https://github.com/rust-lang/crates.io-index";
    let found: Vec<String> = read(&root().join("Cargo.lock"))
        .lines()
        .filter_map(|line| line.strip_prefix("source = "))
        .filter(|source| source.trim_matches('"') != public)
        .map(str::to_owned)
        .collect();
    assert_none(&found);
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    for folder in crates() {
        let manifest = read(&folder.join("Cargo.toml"));
        assert!(manifest.contains("[lints]\nworkspace = true"), "{}", shown(&folder));
    }
}

/// The tests that a text names: `path.rs::name` in backticks.
fn named_tests(text: &str) -> Vec<(&str, &str)> {
    text.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once(".rs::")).collect()
}

/// Why a named test does not count, if it does not.
fn fault_of(path: &str, name: &str) -> Option<String> {
    let Ok(text) = fs::read_to_string(root().join(format!("{path}.rs"))) else {
        return Some(format!("{path}.rs::{name}: there is no such file"));
    };
    // A test inside a module is named with it: `tests::name`.
    let function = format!("fn {}(", name.rsplit("::").next().unwrap_or(name));
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let Some(at) = lines.iter().position(|line| line.contains(&function)) else {
        return Some(format!("{path}.rs::{name}: there is no such function"));
    };
    let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let is_test = |line: &&str| line.starts_with("#[test]") || line.contains("::test") || line.contains("test(");
    match attributes.into_iter().any(is_test) {
        true => None,
        false => Some(format!("{path}.rs::{name}: is not a test")),
    }
}

#[test]
fn every_test_that_a_document_names_exists() {
    let mut found = Vec::new();
    for path in files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        for (file, name) in named_tests(&read(&path)) {
            found.extend(fault_of(file, name).map(|fault| format!("{}: {fault}", shown(&path))));
        }
    }
    assert_none(&found);
}

#[test]
fn every_law_names_its_tests() {
    let text = read(&root().join("docs/laws.md"));
    assert_none(&faults_of_laws(&text));
}

/// What is wrong with the page of laws. A page that states none yet is not wrong.
fn faults_of_laws(text: &str) -> Vec<String> {
    let sections: Vec<&str> = text.split("\n## Law ").skip(1).collect();
    let mut faults = Vec::new();
    if !sections.is_empty() && sections.len() != LAWS {
        faults.push(format!("docs/laws.md: {} laws instead of {LAWS}", sections.len()));
    }
    for (at, section) in sections.iter().enumerate() {
        let number: String = section.chars().take_while(char::is_ascii_digit).collect();
        if number != (at + 1).to_string() {
            faults.push(format!("docs/laws.md: law {number:?} stands where law {} should", at + 1));
        }
        // What follows the next heading of the same rank is no longer the law.
        let own = section.split("\n## ").next().unwrap_or(section);
        if named_tests(own).is_empty() {
            faults.push(format!("docs/laws.md: law {} names no test", at + 1));
        }
    }
    faults
}

#[test]
fn every_fault_names_its_tests() {
    let Ok(text) = fs::read_to_string(root().join("docs/faults.md")) else { return };
    let without: Vec<String> = text
        .lines()
        .filter_map(|line| Some((line.trim().strip_prefix('|')?.split('|').next()?.trim(), line)))
        .filter(|(id, _)| is_fault_id(id))
        .filter(|(_, line)| named_tests(line).is_empty())
        .map(|(id, _)| format!("docs/faults.md: {id} names no test"))
        .collect();
    assert_none(&without);
}

/// A letter and a number: `A1`, `J14`.
fn is_fault_id(cell: &str) -> bool {
    let digits = cell.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or("");
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

#[test]
fn the_checks_find_what_they_look_for() {
    let unfinished = format!("    let x = {}!();", "todo");
    assert!(calls(&unfinished, "todo") && !calls("let todo = 1;", "todo") && !calls("eprintln!()", "println"));
    assert_eq!(module_of("pub(crate) mod frame;"), Some("frame"));
    assert_eq!(module_of("mod frame;"), Some("frame"));
    assert_eq!(module_of("mod tests {"), None);
    assert_eq!(named_tests("- `a/b.rs::c` and `d`, `e.rs`"), [("a/b", "c")]);
    let own = "crates/pgonce-testkit/tests/tidy";
    assert_eq!(fault_of(own, "the_checks_find_what_they_look_for"), None);
    assert!(fault_of(own, "fault_of").is_some_and(|fault| fault.ends_with("is not a test")));
    assert!(fault_of(own, "nowhere").is_some() && fault_of("nowhere", "x").is_some());
    assert!(faults_of_laws("# The laws\n").is_empty());
    assert_eq!(faults_of_laws("# The laws\n\n## Law 1\n\nNo test.\n").len(), 2);
    assert!(is_fault_id("A1") && is_fault_id("J14") && !is_fault_id("id") && !is_fault_id("A") && !is_fault_id("---"));
}
