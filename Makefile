# The commands of a developer. `make demo` and `make test` do all their set-up on a Debian with Rust and Python 3.

SHELL := /bin/bash
.DEFAULT_GOAL := build
PYTHON ?= python3
PREFIX ?= /usr/local
VENV := .venv
RELEASE := target/release
export PATH := $(HOME)/.cargo/bin:$(PATH)

# Versions that the tests were written for; newer ones of the same major number usually work.
BUILD_TOOLS := 'maturin>=1.9,<2' 'pytest>=8,<10' 'pytest-timeout>=2.4,<3' 'pytest-xdist>=3.8,<4'

# Processes that run tests at once, a file at a time: one keeps a processor busy half of the time. Which tests
# bear others beside them is known to tests/conftest.py.
TESTERS := 2

# What is drawn at random is drawn from this: a commit passes or fails whoever runs its tests.
# `make test SEED=$$RANDOM` draws something else.
SEED ?= 1
export PROPTEST_RNG_SEED := $(SEED)
export FUZZ_SEED := $(SEED)

.PHONY: build test test-all demo bench lint docs clean rust-tests model fuzz python-tests regression interpreters arm64 system-packages install peers
.PHONY: compiled-tests programs models

## build: the command at target/release/hugeheap and, with the Python package, at .venv/bin/hugeheap
build: $(VENV)/.tools
	cargo build --release --locked --workspace --exclude hugeheap-python
	mkdir -p target/wheel.data/scripts target/wheel.data/data/lib/hugeheap
	install -m 755 $(RELEASE)/hugeheap target/wheel.data/scripts/hugeheap
	install -m 755 $(RELEASE)/libhugeheap_preload.so $(RELEASE)/libhugeheap_malloc.so target/wheel.data/data/lib/hugeheap/
	rm -rf target/wheels
	$(VENV)/bin/maturin build --quiet --release --locked --interpreter $(VENV)/bin/python --out target/wheels
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps target/wheels/*.whl

$(VENV)/.tools: tests/setup.sh Makefile
	PYTHON=$(PYTHON) tests/setup.sh venv $(VENV) $(BUILD_TOOLS)
	touch $@

## test: everything that guards the project; 22 to 35 minutes on two cores
test: system-packages compiled-tests python-tests

# Nothing is compiled a second time here: what would make that faster is not written.
test test-all: export CARGO_INCREMENTAL := 0

## test-all: the same with every combination of versions, policies, levels and programs, of which `make test` runs a part (tests/interpreters/covering.py),
##   and twice the time for fuzzing: much longer
test-all: export TEST_ALL := 1
test-all: export FUZZ_SECONDS := 30
test-all: test

# Two at once: optimising the command as a whole keeps one processor busy for minutes, and no more than one.
compiled-tests:
	tests/setup.sh tools
	$(MAKE) --jobs=2 --output-sync=recurse programs models

programs:
	$(MAKE) --jobs=1 build
	$(MAKE) --jobs=1 rust-tests

models:
	$(MAKE) --jobs=1 lint
	$(MAKE) --jobs=1 model
	$(MAKE) --jobs=1 fuzz

lint:
	tests/setup.sh tools
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --features hugeheap/allocator-api2 -- -D warnings
	tests/setup.sh oldest-compiler

# The library and the simulated kernel are optimised a little, checks stay: property tests call them millions of
# times, which took longer than that does.
rust-tests:
	cargo test --locked --workspace --exclude hugeheap-python --features hugeheap/allocator-api2 --no-fail-fast \
		--config profile.dev.package.hugeheap.opt-level=1 --config profile.dev.package.hugeheap-os.opt-level=1

# The lock-free parts, all interleavings. Only what walks through them is optimised: the rest takes longer to
# compile than to run.
model:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --locked -p hugeheap --lib --config profile.dev.debug=0 \
		--config profile.dev.package.loom.opt-level=3 --config profile.dev.package.generator.opt-level=3 -- sequence model

fuzz:
	tests/fuzz.sh

# Real interpreters, the real kernel, the commands, the samples of the documents.
python-tests:
	$(VENV)/bin/python -m pytest tests --numprocesses=$(TESTERS) --dist=loadfile --no-loadscope-reorder --durations=15

## regression: of these only CPython's own regression tests, on hugeheap as on stock; about three minutes
regression: build
	$(VENV)/bin/python -m pytest tests/interpreters/test_regression.py -v

## interpreters: CPython 3.14 and 3.15 for the tests, from Debian's testing release; `make test` then takes longer
interpreters:
	tests/setup.sh interpreters

## arm64: the unit tests and a CPython on arm64, in emulation; about ten minutes, as root on a Debian
arm64:
	tests/arm64.sh

# Real programs that tests need: installed as root, named otherwise; tests that miss one skip and say so.
system-packages:
	tests/setup.sh packages gcc g++ valgrind cmake pkg-config lua5.4 liblua5.4-dev ruby ruby-dev

## demo: the main job with real figures, in about two minutes
demo: build
	$(VENV)/bin/python examples/demo.py $(RELEASE)/hugeheap

## bench: the experiment in full; about fifteen minutes on a quiet machine
bench: build
	$(RELEASE)/hugeheap bench obmalloc

## install: the command with its completions and manual pages, and the C library, below PREFIX
# Exported and not written into the command, where the shell would take an `&` or a space for its own.
install: export PREFIX := $(PREFIX)
install: export DESTDIR := $(DESTDIR)
install: build
	crates/hugeheap-cli/install.sh $(RELEASE)
	crates/hugeheap-capi/install.sh $(RELEASE)

## peers: allocators side by side; hours on a quiet machine, after minutes of building them
peers:
	cd bench && cargo build --release --locked && target/release/peers

## docs: the documentation of the library crates, in target/doc
docs:
	cargo doc --locked --no-deps -p hugeheap-os -p hugeheap -p hugeheap-cpython

clean:
	cargo clean
	rm -rf $(VENV)
