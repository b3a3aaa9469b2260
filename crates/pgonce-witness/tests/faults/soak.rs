//! What takes long, in parts whose results are kept: `make soak`.

use pgonce_testkit::majors;
use serde_json::json;

use crate::kills::random_kills;
use crate::parts::{parts, reason};
use crate::size::flat;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two hundred kills on each major take half an hour: make soak"]
async fn soak_two_hundred_random_kills_of_a_library_flow_lose_nothing_and_write_nothing_twice() {
    parts("kills-of-a-library-flow", 10, async |part| {
        let mut counts = Vec::new();
        for major in majors().unwrap() {
            let killed = tokio::spawn(random_kills(major, 1_000 * part + u64::from(major), 20)).await;
            let (hits, found) = killed.map_err(|error| format!("PostgreSQL {major}: {}", reason(error)))?;
            counts.push(json!({
                "postgresql": major,
                "process_kills": hits.process,
                "walsender_ends": hits.walsender,
                "source_crashes": hits.source,
                "target_crashes": hits.target,
                "transactions": found.source_transactions,
                "lost": found.lost,
                "duplicated": found.duplicated,
                "mirror_differences": found.mirror_differences,
            }));
        }
        Ok(counts)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "1.8 GB in one transaction, twice on each major: make soak"]
async fn soak_i1_a_transaction_of_1800_mb_goes_through_in_256_mb() {
    let majors = majors().unwrap();
    parts("i1-library", majors.len() as u64, async |part| {
        let major = majors[usize::try_from(part).unwrap() - 1];
        // 200 MB and 1.8 GB.
        let carried = tokio::spawn(flat(major, 20_000, 60_000)).await;
        let results = carried.map_err(|error| format!("PostgreSQL {major}: {}", reason(error)))?;
        Ok(json!({"postgresql": major, "limit_bytes": 256 << 20, "transactions": results}))
    })
    .await;
}
