//! pgonce-target
