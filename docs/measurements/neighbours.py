"""Huge pages at first touch: 64 neighbouring mappings of 1 MiB, each advised, against one aligned region.

    python3 neighbours.py [MIB]
"""

import ctypes
import sys
import time

from common import HUGE, MADV_HUGEPAGE, OS_PAGE, Region, rollup

MIB = 1 << 20
count = int(sys.argv[1]) if len(sys.argv) > 1 else 64
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22

Region(count * MIB).touch()  # the host's memory, once: see measuring.md

before = rollup("AnonHugePages")
begin = time.perf_counter()
arenas = []
for _ in range(count):
    address = libc.mmap(None, MIB, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    libc.madvise(address, MIB, MADV_HUGEPAGE)
    for place in range(address, address + MIB, OS_PAGE):
        ctypes.memset(place, 1, 1)
    arenas.append(address)
took = time.perf_counter() - begin
print(f"{count} mappings of 1 MiB, each advised: {took * 1e3:6.1f} ms, {rollup('AnonHugePages') - before:4.0f} MiB huge")

before = rollup("AnonHugePages")
begin = time.perf_counter()
region = Region(count * MIB)
start = ctypes.addressof(ctypes.c_char.from_buffer(region.map)) + region.skip
for place in range(start, start + count * MIB, OS_PAGE):
    ctypes.memset(place, 1, 1)
took = time.perf_counter() - begin
print(f"one aligned region of {count} MiB:       {took * 1e3:6.1f} ms, {rollup('AnonHugePages') - before:4.0f} MiB huge")
