"""What dropping a part of each huge page gives back, and what splitting the rest does.

    python3 stranded.py [HUGE_PAGES]
"""

import sys
import time

from common import HUGE, MADV_COLD, OS_PAGE, Region, charge, rollup, thp_count

MADV_DONTNEED = 4


def show(when):
    held = charge()
    partly = thp_count("nr_anon_partially_mapped")
    print(f"{when:<34}{rollup('Rss') - base[0]:>10.0f}{(held - base[1]) if held else -1:>14.0f}{partly:>20}")


count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
base = (rollup("Rss"), charge() or 0)
print(f"{'':<34}{'RSS, MiB':>10}{'charge, MiB':>14}{'partially mapped':>20}")
region = Region(count * HUGE)
region.touch_huge()
show(f"{count} huge pages touched")
for page in range(count):
    region.advise(MADV_DONTNEED, page * HUGE + OS_PAGE, HUGE - OS_PAGE)
show("all but one OS page of each dropped")
begin = time.perf_counter()
for page in range(count):
    region.advise(MADV_COLD, page * HUGE, OS_PAGE)
took = time.perf_counter() - begin
show("the OS pages left advised cold")
intact = all(region.map[region.skip + page * HUGE] == 1 for page in range(count))
print(f"splitting took {took / count * 1e3:.2f} ms per huge page; contents intact: {intact}")
