//! `pgonce man`: the manual pages, one for each command, from the same definition as `--help`.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use serde_json::json;

use crate::arguments::Arguments;
use crate::config::flags::FormatOption;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments of `pgonce man`.
#[derive(Args, Debug)]
pub struct ManArguments {
    /// The command whose page is printed, as in `pgonce man run`; without it, the page of pgonce itself
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub command: Vec<String>,
    /// Write all pages into this directory, which is made if need be, instead of printing one
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// How to report
    #[command(flatten)]
    pub format: FormatOption,
}

/// A manual page.
struct Page {
    /// `pgonce-run`.
    name: String,
    /// In roff.
    text: String,
}

/// Prints a page, or writes them all.
///
/// # Errors
///
/// There is no such command, or a file cannot be written.
pub fn execute(arguments: &ManArguments, output: Output) -> Result<(), Failure> {
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    collect(&root, "", &mut pages)?;
    if let Some(directory) = &arguments.dir {
        return write(&pages, directory, output);
    }
    let name = [&["pgonce".to_owned()], arguments.command.as_slice()].concat().join("-");
    let Some(page) = pages.iter().find(|page| page.name == name) else {
        let names: Vec<String> = pages.iter().skip(1).map(|page| page.name.replacen("pgonce-", "", 1)).collect();
        let hint = format!("There are: {}.", names.join(", ").replace("config-", "config "));
        return Err(Failure::usage(format!("there is no command `{}`", arguments.command.join(" ")), hint));
    };
    output.line(page.text.trim_end());
    Ok(())
}

fn write(pages: &[Page], directory: &Path, output: Output) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|e| Failure::file(directory, &e))?;
    let mut paths = Vec::new();
    for page in pages {
        let path = directory.join(format!("{}.1", page.name));
        std::fs::write(&path, &page.text).map_err(|e| Failure::file(&path, &e))?;
        paths.push(path.display().to_string());
    }
    match output.is_json() {
        true => output.object(&json!({"event": "written", "paths": paths})),
        false => paths.iter().for_each(|path| output.line(path)),
    }
    Ok(())
}

/// The page of a command, then those of the commands below it.
fn collect(command: &clap::Command, above: &str, pages: &mut Vec<Page>) -> Result<(), Failure> {
    let name = if above.is_empty() { command.get_name().to_owned() } else { format!("{above}-{}", command.get_name()) };
    let mut text = Vec::new();
    let man = clap_mangen::Man::new(command.clone())
        .title(&name)
        .manual("pgonce manual")
        .source(concat!("pgonce ", env!("CARGO_PKG_VERSION")));
    man.render(&mut text).map_err(|e| Failure::file(Path::new(&name), &e))?;
    pages.push(Page { name: name.clone(), text: String::from_utf8_lossy(&text).into_owned() });
    for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        collect(below, &name, pages)?;
    }
    Ok(())
}
