"""What the calls of maintenance cost per huge page: first touch, collapse, giving back whole.

    python3 calls.py [HUGE_PAGES]
"""

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
