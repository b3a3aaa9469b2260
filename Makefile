# PGONCE_TEST_PG selects the PostgreSQL majors that tests run on: make test PGONCE_TEST_PG=15
PGONCE_TEST_PG ?= 15,18
RUST_TEST_THREADS ?= 4
# What `make bench` measures: make bench PGONCE_BENCH_PG=15,18 WORKLOAD=w3 RUNS=3
PGONCE_BENCH_PG ?= 15
WORKLOAD ?=
RUNS ?= 5
SCALE_DIV ?= 1
BENCH_FLAGS ?=
export PGONCE_TEST_PG RUST_TEST_THREADS

# What `make test-matrix` runs, and on which majors: make test-matrix TESTS="-p pgonce-cli --test values"
PGONCE_MATRIX_PG ?= 14,15,16,17,18
TESTS ?= --workspace
# FRESH=1 makes `make soak` forget the parts that have passed.
FRESH ?=
# How many parts `make soak` runs of each kind, all of them if empty.
PARTS ?=

.PHONY: bench demo test test-matrix soak lint setup clean

# Two throwaway clusters, a load, kills, and the proof that nothing was lost or applied twice.
demo:
	scripts/setup demo
	cargo build --release -p pgonce-cli
	cargo run --quiet --release -p pgonce-cli --bin pgonce -- demo

# Everything that a change has to pass.
test: setup lint
	cargo test --workspace --no-fail-fast

# Every test on every major, one after the other, and a table of what came of each. Logs: target/test-matrix/.
test-matrix: PGONCE_TEST_PG = $(PGONCE_MATRIX_PG)
test-matrix: setup
	PGONCE_MATRIX_PG=$(PGONCE_MATRIX_PG) scripts/test-matrix $(TESTS)

# What takes hours: 500 round trips, 100 kills of the copy, five thousand tables, thirty minutes of fuzzing, 200
# kills of running flows, 1.8 GB in one transaction. In parts whose results are kept in target/soak/; goes on where it ended.
soak: setup
	scripts/setup soak
	$(if $(FRESH),rm -rf target/soak)
	PGONCE_SOAK_PARTS=$(PARTS) cargo test -p pgonce-cli --no-fail-fast --test roundtrip --test large -- --ignored --nocapture --test-threads=1 soak_
	PGONCE_SOAK_PARTS=$(PARTS) cargo test -p pgonce-cli --test endurance -- --ignored --nocapture --test-threads=1 soak_
	PGONCE_SOAK_PARTS=$(PARTS) cargo test -p pgonce-witness --test faults -- --ignored --nocapture --test-threads=1 soak_
	cargo test -p pgonce-cli --test joins -- --ignored --nocapture --test-threads=1
	PGONCE_SOAK_PARTS=$(PARTS) cargo test -p pgonce --no-fail-fast --test fuzz -- --ignored --nocapture --test-threads=1 soak_

# pgonce beside native replication on the same two clusters; docs/benchmarks.md explains it. Goes on where it ended;
# BENCH_FLAGS=--fresh starts anew.
bench: PGONCE_TEST_PG = $(PGONCE_BENCH_PG)
bench:
	scripts/setup bench
	scripts/fetch-postgres --missing
	cargo build --release -p pgonce-cli -p pgonce-bench
	target/release/pgonce-bench --postgres $(PGONCE_BENCH_PG) --runs $(RUNS) --scale-div $(SCALE_DIV) \
		$(if $(WORKLOAD),--workload $(WORKLOAD)) $(BENCH_FLAGS)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

# Installs what is missing, and fetches the servers that the system does not have.
setup:
	scripts/setup
	scripts/fetch-postgres --missing

clean:
	cargo clean
