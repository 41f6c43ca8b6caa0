"""A process with stranded memory: huge pages of which all but the first OS page was given back.

    python3 tests/cli/stranded_heap.py [HUGE_PAGES]

Writes a number into each, gives the rest of each back, prints `ready`, and goes on reading the numbers. A line on standard
input ends it: it prints a JSON object with `intact` (all numbers still there), `huge_pages` it got at first, and `reads`.
With `fork` as the second argument a child that shares all of it lives as long.
"""

import json
import mmap
import os
import select
import struct
import sys

UNIT = 2 << 20
MADV_HUGEPAGE, MADV_DONTNEED = 14, 4


def huge_bytes():
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("AnonHugePages"))


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    memory = mmap.mmap(-1, (count + 1) * UNIT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    import ctypes

    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = -address % UNIT
    memory.madvise(MADV_HUGEPAGE)
    units = range(first, first + count * UNIT, UNIT)
    for number, unit in enumerate(units):
        # The whole page, so that no part is free because nobody ever wrote to it.
        memory[unit : unit + UNIT] = b"\1" * UNIT
        memory[unit : unit + 8] = struct.pack("q", number)
    got = huge_bytes() // UNIT
    for unit in units:
        memory.madvise(MADV_DONTNEED, unit + mmap.PAGESIZE, UNIT - mmap.PAGESIZE)
    if sys.argv[2:] == ["fork"] and os.fork() == 0:
        sys.stdin.readline()
        os._exit(0)
    print("ready", flush=True)
    reads, intact, ended = 0, True, False
    while not ended:
        for number, unit in enumerate(units):
            intact = intact and memory[unit : unit + 8] == struct.pack("q", number)
            intact = intact and memory[unit + 8 : unit + mmap.PAGESIZE] == b"\1" * (mmap.PAGESIZE - 8)
            reads += 1
        ended = bool(select.select([sys.stdin], [], [], 0.01)[0])
    print(json.dumps({"intact": intact, "huge_pages": got, "reads": reads}))


main()
