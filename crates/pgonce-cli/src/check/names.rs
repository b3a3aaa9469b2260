//! How a table of the source is called on the target: the one place that decides it for the checks.

/// Schema and name on the target.
pub fn on_target(schema: &str, name: &str) -> (String, String) {
    (schema.to_owned(), name.to_owned())
}
