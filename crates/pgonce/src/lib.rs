//! PostgreSQL changes, delivered at least once, applied exactly once in effect, and provably so.
#![warn(missing_docs)]

pub mod connect;
pub mod position;
