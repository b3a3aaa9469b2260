//! pgonce, the command.
mod config;
fn main() {}
