"""What calls cost per huge page: first touch, the question whether it found a huge page, collapse, giving back whole.

    python3 calls.py [HUGE_PAGES]
"""

import ctypes
import fcntl
import os
import struct
import sys
import time

from common import HUGE, MADV_HUGEPAGE, OS_PAGE, Region

MADV_DONTNEED, MADV_NOHUGEPAGE, MADV_COLLAPSE = 4, 15, 25

count = int(sys.argv[1]) if len(sys.argv) > 1 else 256


def timed(name, each):
    begin = time.perf_counter()
    for page in range(count):
        each(page * HUGE)
    print(f"{name:<40}{(time.perf_counter() - begin) / count * 1e3:6.3f} ms per huge page")


region = Region(count * HUGE)
region.touch_huge()  # the host's memory, once: see measuring.md
region.advise(MADV_DONTNEED, 0, region.size)


def touch(start):
    region.map[region.skip + start] = 1


timed("first touch, huge", touch)

libc = ctypes.CDLL(None, use_errno=True)
libc.mincore.argtypes = libc.imaxabs.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
base = ctypes.addressof(ctypes.c_char.from_buffer(region.map)) + region.skip
answer = ctypes.create_string_buffer(1)
PAGEMAP_SCAN, PROCMAP_QUERY = 0xC0606610, 0xC0686611


def nothing(start):
    """What of the next two is Python's: the same calls of a function that does nothing, with as many arguments."""
    for _ in range(2):
        libc.imaxabs(base + start + HUGE - OS_PAGE, OS_PAGE, answer)


def is_there(start):
    """Whether the last OS page of the huge page is resident: before the touch, and after it."""
    for _ in range(2):
        if libc.mincore(base + start + HUGE - OS_PAGE, OS_PAGE, answer) != 0:
            raise OSError(ctypes.get_errno(), "mincore")


def read(path, request, query):
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(file, request, query)
    finally:
        os.close(file)


def what_backs_it(start):
    """What the first OS page is mapped by, and what mapping that is."""
    found = ctypes.create_string_buffer(24)
    place = base + start
    scan = struct.pack("12Q", 96, 0, place, place + OS_PAGE, 0, ctypes.addressof(found), 1, 0, 32, 40, 0, 72)
    read("/proc/self/pagemap", PAGEMAP_SCAN, bytearray(scan))
    read("/proc/self/maps", PROCMAP_QUERY, bytearray(struct.pack("13Q", 104, 0, place, *[0] * 10)))


def asked(name, question):
    """The question alone, each time after a touch: caches are as cold as where it is asked."""
    region.advise(MADV_DONTNEED, 0, region.size)
    took = 0
    try:
        for page in range(count):
            touch(page * HUGE)
            begin = time.perf_counter()
            question(page * HUGE)
            took += time.perf_counter() - begin
    except OSError as error:
        return print(f"{name:<40}not supported: {error}")
    print(f"{name:<40}{took / count * 1e3:6.3f} ms per huge page")


asked("nothing, twice", nothing)
asked("is the last OS page there, twice", is_there)
asked("what backs the first OS page", what_backs_it)
timed("giving back whole", lambda start: region.advise(MADV_DONTNEED, start, HUGE))
region.advise(MADV_NOHUGEPAGE, 0, region.size)


def touch_all(start):
    for place in range(region.skip + start, region.skip + start + HUGE, OS_PAGE):
        region.map[place] = 1


timed("first touch, OS pages (with the loop)", touch_all)
region.advise(MADV_HUGEPAGE, 0, region.size)
try:
    timed("collapse", lambda start: region.advise(MADV_COLLAPSE, start, HUGE))
except OSError as error:
    print(f"{'collapse':<40}not supported: {error}")
