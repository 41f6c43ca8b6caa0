"""What buffers take of which only the first 4 KiB are written, in a C program: 100 MiB of each length, from the C library named, each in a process of its own. `libc.so.6`: the system's. A second argument: seconds until it is looked at."""

import sys

from blocks import KIB, each, taken

ALL = 100 << 20
WRITTEN = 4 * KIB
WAIT = float(sys.argv[2]) if len(sys.argv) > 2 else 0


def line(kib):
    return f"{kib:4} KiB each: {taken(ALL // (kib * KIB), kib * KIB, WRITTEN, WAIT):3.0f} MiB"


each((16, 64, 256, 1024, 4096), line)
