"""What buffers with a header take in a C program: 200 MB of blocks a few bytes above 8 to 64 KiB, from the C library named, each length in a process of its own. `libc.so.6`: the system's."""

import ctypes
import os
import sys

KIB = 1 << 10
HEADER = 64

library = ctypes.CDLL(sys.argv[1])
malloc = getattr(library, "hh_malloc" if hasattr(library, "hh_malloc") else "malloc")
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]


def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / KIB


def take(length):
    before = resident()
    for _ in range(200_000_000 // length):
        ctypes.memset(malloc(length), 1, length)
    return resident() - before


for kib in (8, 12, 16, 24, 32, 48, 64):
    child = os.fork()
    if child == 0:
        print(f"{kib:2} KiB and {HEADER} bytes each: {take(kib * KIB + HEADER):.0f} MiB", flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"the process for {kib} KiB failed")
