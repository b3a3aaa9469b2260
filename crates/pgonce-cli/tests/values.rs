//! Every value arrives as it was, by copy and by stream, whatever the two servers call its type inside. Faults C1 to
//! C8, and D2.

mod common;
mod pair;

#[path = "values/edges.rs"]
mod edges;
#[path = "values/encodings.rs"]
mod encodings;
#[path = "values/every.rs"]
mod every;
#[path = "values/images.rs"]
mod images;
#[path = "values/keys.rs"]
mod keys;
#[path = "values/money.rs"]
mod money;
#[path = "values/names.rs"]
mod names;
