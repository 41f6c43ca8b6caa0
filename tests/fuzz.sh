#!/usr/bin/env bash
# Runs the fuzz target for a short fixed time. FUZZ_SECONDS sets it (20).
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${FUZZ_SECONDS:-20}

if command -v c++ >/dev/null; then
    # What cargo-fuzz passes to the compiler, without its sanitizer, so that a stable compiler will do.
    host=$(rustc -vV | sed -n 's/^host: //p')
    export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
    RUSTFLAGS=$(echo $RUSTFLAGS) cargo build --release --locked --features libfuzzer --bin arenas --target "$host"
    mkdir -p corpus/arenas artifacts
    "target/$host/release/arenas" -max_total_time="$seconds" -max_len=1700 -len_control=0 -rss_limit_mb=8192 \
        -artifact_prefix=artifacts/ -print_final_stats=1 corpus/arenas 2>&1 | tail -n 8
else
    echo "fuzz: no C++ compiler for libFuzzer; random operations instead"
    cargo build --release --locked --bin arenas-at-random
    target/release/arenas-at-random "$seconds" | tail -n 2
fi
