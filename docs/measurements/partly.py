"""What buffers take of which only the first 4 KiB are written, in a C program: 100 MiB of each length, from the C library named, each in a process of its own. `libc.so.6`: the system's."""

import ctypes
import os
import sys

KIB = 1 << 10
ALL = 100 << 20

library = ctypes.CDLL(sys.argv[1])
malloc = getattr(library, "hh_malloc" if hasattr(library, "hh_malloc") else "malloc")
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]


def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / KIB


def take(length):
    before = resident()
    for _ in range(ALL // length):
        ctypes.memset(malloc(length), 1, 4 * KIB)
    return resident() - before


for kib in (16, 64, 256, 1024, 4096):
    child = os.fork()
    if child == 0:
        print(f"{kib:4} KiB each: {take(kib * KIB):3.0f} MiB", flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"the process for {kib} KiB failed")
