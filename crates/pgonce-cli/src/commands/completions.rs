//! `pgonce completions`: the script that makes a shell complete commands, flags and their values.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::config::flags::FormatOption;
use crate::output::Output;

/// Where each shell looks for the script.
const EXAMPLES: &str = "\
Examples:
  bash        pgonce completions bash > ~/.local/share/bash-completion/completions/pgonce
  zsh         pgonce completions zsh > \"${fpath[1]}/_pgonce\"
  fish        pgonce completions fish > ~/.config/fish/completions/pgonce.fish
  powershell  pgonce completions powershell >> $PROFILE
  elvish      pgonce completions elvish >> ~/.config/elvish/rc.elv";

/// Arguments of `pgonce completions`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
    /// How to report failures
    #[command(flatten)]
    pub format: FormatOption,
}

/// Prints the script.
pub fn execute(arguments: &CompletionsArguments, output: Output) {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "pgonce", &mut script);
    output.line(String::from_utf8_lossy(&script).trim_end());
}
