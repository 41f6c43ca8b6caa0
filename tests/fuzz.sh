#!/usr/bin/env bash
# Runs each fuzz target for a short fixed time. FUZZ_SECONDS sets it (20), FUZZ_TARGETS which ones (all).
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${FUZZ_SECONDS:-20}
read -ra targets <<<"${FUZZ_TARGETS:-arenas gc_operations object_operations}"

if command -v c++ >/dev/null; then
    # What cargo-fuzz passes to the compiler, without its sanitizer, so that a stable compiler will do.
    host=$(rustc -vV | sed -n 's/^host: //p')
    export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
    RUSTFLAGS=$(echo $RUSTFLAGS) cargo build --release --locked --features libfuzzer --target "$host" \
        "${targets[@]/#/--bin=}"
    for target in "${targets[@]}"; do
        mkdir -p "corpus/$target" artifacts
        "${CARGO_TARGET_DIR:-target}/$host/release/$target" -max_total_time="$seconds" -max_len=1700 -len_control=0 \
            -rss_limit_mb=8192 -artifact_prefix="artifacts/$target-" -print_final_stats=1 "corpus/$target" 2>&1 |
            tail -n 8
    done
else
    echo "fuzz: no C++ compiler for libFuzzer; random operations instead"
    cargo build --release --locked --bin at-random
    for target in "${targets[@]}"; do
        "${CARGO_TARGET_DIR:-target}/release/at-random" "$target" "$seconds" | tail -n 2
    done
fi
