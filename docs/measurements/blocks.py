"""What blocks of one length take in a C program: for measurements that take many of them from the C library named on the command line, each length in a process of its own. `libc.so.6`: the system's."""

import ctypes
import os
import sys
import time

KIB = 1 << 10


def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / KIB


def taken(count, length, written, wait=0):
    """MiB that so many blocks take of which so many bytes are written, from their beginning, so many seconds later."""
    library = ctypes.CDLL(sys.argv[1])
    malloc = getattr(library, "hh_malloc" if hasattr(library, "hh_malloc") else "malloc")
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    before = resident()
    for _ in range(count):
        ctypes.memset(malloc(length), 1, written)
    time.sleep(wait)
    return resident() - before


def each(lengths, line):
    """Prints the line of each length, in KiB, from a process of its own."""
    for kib in lengths:
        child = os.fork()
        if child == 0:
            print(line(kib), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"the process for {kib} KiB failed")
