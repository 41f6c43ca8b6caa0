"""What buffers with a header take in a C program: 200 MB of blocks a few bytes above 8 to 64 KiB, from the C library named, each length in a process of its own. `libc.so.6`: the system's."""

from blocks import KIB, each, taken

ALL = 200_000_000
HEADER = 64


def line(kib):
    length = kib * KIB + HEADER
    return f"{kib:2} KiB and {HEADER} bytes each: {taken(ALL // length, length, length):.0f} MiB"


each((8, 12, 16, 24, 32, 48, 64), line)
