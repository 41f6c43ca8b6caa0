"""A heap of small objects that goes on being used, and tells how long it ever stood still.

    python3 tests/cli/watched_heap.py [MEGABYTES]

Makes so many MB of objects on the interpreter's own allocator, prints `ready`, and then changes objects here and there as fast as it can,
noting the longest time between two changes. A line on standard input ends it: it checks all objects and prints a JSON object
with `stall_ms` (the longest time), `changes`, `intact` and its own `huge_kb` and `anonymous_kb` as the kernel reports them.
Until the line arrives, SIGUSR1 forgets the longest time so far (what came before is not of interest).
"""

import json
import random
import select
import signal
import sys
import time

BATCH = 4096


def kernel_says():
    fields = {}
    with open("/proc/self/smaps_rollup") as rollup:
        for line in rollup:
            name, _, rest = line.partition(":")
            if rest.strip().endswith("kB"):
                fields[name] = int(rest.split()[0])
    return {"huge_kb": fields["AnonHugePages"], "anonymous_kb": fields["Anonymous"]}


def main():
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    # A list with one float is about 120 bytes with its slot. In batches, as records are read: one list of all
    # would move each time it grows, and leave holes between the mappings.
    count = megabytes * 1_000_000 // 120
    batches = [[[float(number)] for number in range(first, first + BATCH)] for first in range(0, count, BATCH)]
    random.seed(7)
    order = [(random.randrange(len(batches)), random.randrange(BATCH)) for _ in range(4096)]
    longest = 0.0

    def forget(*_):
        nonlocal longest
        longest = 0.0

    signal.signal(signal.SIGUSR1, forget)
    print("ready", flush=True)
    changes = 0
    now = time.perf_counter
    last = now()
    ended = False
    while not ended:
        for batch, place in order:
            chosen = batches[batch][(place + changes) % BATCH]
            chosen[0] = chosen[0] + 0.0
            changes += 1
            current = now()
            if current - last > longest:
                longest = current - last
            last = current
        ended = bool(select.select([sys.stdin], [], [], 0)[0])
    every = (value for batch in batches for value in batch)
    intact = all(value[0] == number for number, value in enumerate(every))
    print(json.dumps({"stall_ms": longest * 1000, "changes": changes, "intact": intact, **kernel_says()}))


main()
