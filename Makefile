# PGONCE_TEST_PG selects the PostgreSQL majors that tests run on: make test PGONCE_TEST_PG=15
PGONCE_TEST_PG ?= 15,18
RUST_TEST_THREADS ?= 4
export PGONCE_TEST_PG RUST_TEST_THREADS

.PHONY: demo test lint setup clean

# Two throwaway clusters, a load, kills, and the proof that nothing was lost or applied twice.
demo:
	scripts/setup demo
	cargo build --release -p pgonce-cli
	cargo run --quiet --release -p pgonce-cli --bin pgonce -- demo

# Everything that a change has to pass.
test: setup lint
	cargo test --workspace --no-fail-fast

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

# Installs what is missing, and fetches the servers that the system does not have.
setup:
	scripts/setup
	scripts/fetch-postgres --missing

clean:
	cargo clean
