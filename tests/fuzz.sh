#!/usr/bin/env bash
# Runs the fuzz targets for a short fixed time, all at once. FUZZ_SECONDS sets it (15), FUZZ_TARGETS which ones
# (all), FUZZ_SEED what libFuzzer draws from (the clock).
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${FUZZ_SECONDS:-15}
read -ra targets <<<"${FUZZ_TARGETS:-arenas gc_operations object_operations}"

if command -v c++ >/dev/null; then
    # What cargo-fuzz passes to the compiler, without its sanitizer, so that a stable compiler will do.
    host=$(rustc -vV | sed -n 's/^host: //p')
    export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
    RUSTFLAGS=$(echo $RUSTFLAGS) cargo build --release --locked --features libfuzzer --target "$host" \
        "${targets[@]/#/--bin=}"
    run() {
        mkdir -p "corpus/$1" artifacts
        "${CARGO_TARGET_DIR:-target}/$host/release/$1" -max_total_time="$seconds" -max_len=1700 -len_control=0 \
            -seed="${FUZZ_SEED:-0}" -rss_limit_mb=8192 -artifact_prefix="artifacts/$1-" -print_final_stats=1 "corpus/$1" 2>&1 |
            tail -n 8
    }
else
    echo "fuzz: no C++ compiler for libFuzzer; random operations instead"
    cargo build --release --locked --bin at-random
    run() {
        "${CARGO_TARGET_DIR:-target}/release/at-random" "$1" "$seconds" | tail -n 2
    }
fi

running=()
for target in "${targets[@]}"; do
    run "$target" &
    running+=($!)
done
status=0
for one in "${running[@]}"; do
    wait "$one" || status=1
done
exit $status
