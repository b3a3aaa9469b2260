//! The command line: every command with its arguments.

use clap::{Parser, Subcommand};

use crate::commands::check::CheckArguments;
use crate::commands::completions::CompletionsArguments;
use crate::commands::config::{ConfigArguments, ConfigCommand};
use crate::commands::demo::DemoArguments;
use crate::commands::init::InitArguments;
use crate::commands::man::ManArguments;
use crate::commands::reset::ResetArguments;
use crate::commands::run::RunArguments;
use crate::commands::sequences::SequencesArguments;
use crate::commands::status::StatusArguments;
use crate::commands::verify::VerifyArguments;
use crate::commands::version::VersionArguments;
use crate::config::flags::{FlowOptions, Format};

const EXIT_STATUSES: &str = "\
Exit statuses:
   0  done
   1  drift, and nothing else
   2  wrong usage, or not comparable
   3  a connection cannot be made
   4  changes are gone, a new snapshot is needed
   5  another source or timeline, or stored state that cannot be trusted
   6  the source is not set up for the flow, or what it publishes has changed
   7  a transaction cannot be applied
   8  the target is not set up for the flow
   9  another process has taken the flow over
  10  the local disk
  70  a defect of pgonce
 130  interrupted a second time

PGONCE_LOG sets how much is logged to standard error: error, warn (the default), info, debug.";

/// PostgreSQL changes, delivered at least once, applied exactly once in effect, and provably so.
#[derive(Parser, Debug)]
#[command(name = "pgonce", version = crate::commands::version::VERSION, after_help = EXIT_STATUSES)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Write a commented configuration file; change nothing in a database
    Init(InitArguments),
    /// Say what stands in the way of a flow, and the SQL that mends it; change nothing
    Check(CheckArguments),
    /// Copy the source's tables to the target, then keep them in step
    Run(RunArguments),
    /// Say how a flow stands, and why it stopped
    Status(StatusArguments),
    /// Compare source and target of a flow that has drained
    Verify(VerifyArguments),
    /// Show how the target's sequences stand to the source's, or set them
    Sequences(SequencesArguments),
    /// Show what a flow has left behind, and with --yes remove it
    Reset(ResetArguments),
    /// Kill a flow again and again on two throwaway clusters, and show that nothing is lost or applied twice
    Demo(DemoArguments),
    /// Show the configuration that holds, its keys, or the schema of its file
    Config(ConfigArguments),
    /// Print the script by which a shell completes commands, flags and values
    Completions(CompletionsArguments),
    /// Print a manual page, or write them all
    Man(ManArguments),
    /// Say which pgonce this is
    Version(VersionArguments),
}

impl Command {
    /// How the command is to report.
    pub fn format(&self) -> Format {
        match self {
            Command::Init(arguments) => arguments.options.format.format,
            Command::Check(arguments) => arguments.options.format.format,
            Command::Run(arguments) => arguments.options.format.format,
            Command::Status(arguments) => arguments.options.format.format,
            Command::Verify(arguments) => arguments.options.format.format,
            Command::Sequences(arguments) => arguments.options().format.format,
            Command::Reset(arguments) => arguments.options.format.format,
            Command::Demo(arguments) => arguments.format.format,
            Command::Config(arguments) => arguments.what.format(),
            Command::Completions(arguments) => arguments.format.format,
            Command::Man(arguments) => arguments.format.format,
            Command::Version(arguments) => arguments.format.format,
        }
    }

    /// The options of a command that opens a flow, or shows how it would be opened.
    pub fn flow_options(&self) -> Option<&FlowOptions> {
        match self {
            Command::Init(arguments) => Some(&arguments.options),
            Command::Check(arguments) => Some(&arguments.options),
            Command::Run(arguments) => Some(&arguments.options),
            Command::Status(arguments) => Some(&arguments.options),
            Command::Verify(arguments) => Some(&arguments.options),
            Command::Reset(arguments) => Some(&arguments.options),
            Command::Sequences(arguments) => Some(arguments.options()),
            Command::Config(ConfigArguments { what: ConfigCommand::Show(options) }) => Some(options),
            Command::Config(_) | Command::Demo(_) | Command::Completions(_) => None,
            Command::Man(_) | Command::Version(_) => None,
        }
    }
}
