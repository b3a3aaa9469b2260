//! Times as reports print them.

use std::time::SystemTime;

use jiff::Timestamp;

/// A time in UTC, as RFC 3339 writes it, to the millisecond.
pub fn utc(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn times_are_in_utc_to_the_millisecond() {
        assert_eq!(super::utc(UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
        assert_eq!(super::utc(UNIX_EPOCH + Duration::from_millis(1_796_056_496_250)), "2026-11-30T16:34:56.250Z");
    }
}
