#!/usr/bin/env bash
# Unit tests and a real CPython on arm64, in emulation (qemu-aarch64), on an x86-64 Debian as root. What it
# needs is installed; nothing of the host is changed otherwise.
#
# An emulator orders memory as the host does: it shows that the code for this processor is right step by step,
# not that its threads agree.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
root=target/arm64/root
export CARGO_TARGET_DIR=target/arm64
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc

tests/setup.sh packages qemu-user gcc-aarch64-linux-gnu mmdebstrap
for program in rustup qemu-aarch64 aarch64-linux-gnu-gcc mmdebstrap; do
    command -v "$program" >/dev/null || { echo "arm64: $program is missing; it takes rustup, and Debian's qemu-user, gcc-aarch64-linux-gnu and mmdebstrap" >&2; exit 1; }
done
rustup target add "$target"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/names"

# What the emulator has no memory for: it keeps a record of each OS page of a reservation, and these reserve terabytes.
reserve=(
    arena::resize::tests::lengths_change_as_in_a_plain_list
    arena::tests::cut::arenas_of_a_second_region_of_the_greatest_length_are_forgotten
    arena::tests::failures::every_call_may_fail_for_a_while
    arena::tests::failures::every_call_of_maintenance_may_fail_for_long
    arena::tests::space::records_take_a_small_part_of_a_limit_on_data_however_large_the_host_is
    gc::tests::settings::an_object_of_nearly_all_addresses_is_refused
    large::tests::a_move_that_fails_anywhere_changes_nothing
    large::tests::places::a_block_that_a_limit_on_data_keeps_from_moving_stays_as_it_was
    object::tests::growing::what_has_pages_to_spare_lost_them_when_it_could_not_grow
)
# What starts its own program again, which the host's kernel cannot run.
start=(
    arena::tests::forks::a_child_without_memory_for_a_live_arena_ends_with_a_line_that_says_so
    object::tests::checks::freed_by_another_thread_and_then_by_the_owner_in_its_open_window_by_its_size
    object::tests::checks::freed_by_the_owner_and_by_another_thread_at_the_same_instant
    object::tests::hardened::a_write_behind_a_large_block_faults
    object::tests::hardened::a_write_behind_a_long_run_faults
    object::tests::hardened::a_write_behind_a_short_run_faults
    object::tests::hardened::the_environment_asks_for_hardened_heaps
)
# System calls that the emulator does not have.
call=(
    object::global::tests::a_thread_that_nobody_may_ask_for_is_not_gone
    linux::descriptors::tests::a_separated_thread_reaches_stderr
    linux::process::tests::a_process_without_its_main_thread_is_told_from_one_that_has_ended
    linux::residency::tests::both_ways_agree_on_real_memory
)
skipped=("${reserve[@]}" "${start[@]}" "${call[@]}")
echo "arm64: ${#skipped[@]} tests are skipped, which the emulator cannot run: see $0"
emulated="qemu-aarch64 -L /usr/aarch64-linux-gnu"
cargo test --locked --target "$target" -p hugeheap-os -p hugeheap --lib --features hugeheap/allocator-api2 --no-run \
    --config profile.dev.package.hugeheap.opt-level=1 --config profile.dev.package.hugeheap-os.opt-level=1 --message-format=json-render-diagnostics \
    | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' >"$work/binaries"
while read -r binary; do
    # Some at a time: what the emulator has recorded it keeps, 24 GB for all of them.
    $emulated "$binary" --list 2>/dev/null | sed -n 's/: test$//p' | tee -a "$work/names" | grep -vxF "$(printf '%s\n' "${skipped[@]}")" \
        | xargs --max-args=8 --max-procs=2 $emulated "$binary" --exact --test-threads=1 --quiet >"$work/tests" 2>&1 \
        || { cat "$work/tests"; exit 1; }
    echo "arm64: $(basename "$binary"): $(($(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$work/tests" | paste -sd+))) tests passed"
done <"$work/binaries"
for name in "${skipped[@]}"; do
    grep -qxF "$name" "$work/names" || { echo "arm64: there is no test $name to be skipped" >&2; exit 1; }
done

cargo build --release --locked --target "$target" -p hugeheap-preload -p hugeheap-malloc
if [ ! -d "$root" ]; then
    # What a failed attempt left is no root.
    rm -rf "$root.part"
    mmdebstrap --quiet --variant=extract --architectures=arm64 --include=python3-minimal,libpython3-stdlib \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root.part" >/dev/null
    mv "$root.part" "$root"
fi
cat >"$work/program.py" <<'PROGRAM'
import json, platform, threading
items = [(number, str(number), {"number": number}) for number in range(100_000)]
threads = [threading.Thread(target=lambda: [bytearray(100 * size % 5000) for size in range(20_000)]) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
text = json.dumps(items)
del items
print(platform.machine(), len(text), len(json.loads(text)))
PROGRAM
python() {
    qemu-aarch64 -L "$root" "$@" "$root/usr/bin/python3" "$work/program.py"
}
plain=$(python)
for level in arenas objects malloc; do
    library=preload
    [ $level = malloc ] && library=malloc
    records=$work/$level
    mkdir "$records"
    found=$(python -E LD_PRELOAD="$PWD/$CARGO_TARGET_DIR/$target/release/libhugeheap_$library.so" -E HUGEHEAP_LEVEL=$level -E HUGEHEAP_TELEMETRY="$records")
    # The most arenas there were at once: docs/reference/telemetry-record.md.
    arenas=$(od --address-radix=n --format=u8 --skip-bytes=88 --read-bytes=8 "$records"/*.hugeheap)
    echo "arm64: CPython at level $level: $found; $((arenas)) arenas at the peak"
    [ "$found" = "$plain" ] || { echo "arm64: without hugeheap it printed: $plain" >&2; exit 1; }
    [ "$((arenas))" -ge 10 ] || { echo "arm64: level $level has few arenas" >&2; exit 1; }
done
