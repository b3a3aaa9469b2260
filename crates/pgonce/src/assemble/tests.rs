//! The assembler against a plain model of a server.

mod history;
mod spools;
