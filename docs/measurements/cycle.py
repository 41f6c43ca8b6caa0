"""A program that needs memory in cycles: how long it takes, and what it holds when it idles.

    hugeheap run --decay SECONDS -- python3 cycle.py [OBJECTS [CYCLES [PAUSE_SECONDS]]]
"""

import resource
import sys
import time

from common import charge, rollup

objects = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
cycles = int(sys.argv[2]) if len(sys.argv) > 2 else 10
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.5
times = []
for _ in range(cycles):
    begin = time.perf_counter()
    layers = [bytearray(256) for _ in range(objects)]
    times.append(time.perf_counter() - begin)
    del layers
    time.sleep(pause)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(f"median of {cycles} cycles: {sorted(times)[cycles // 2]:.3f} s; {faults} minor faults; after the last: {rollup('Rss'):.0f} MiB resident")
time.sleep(3)
print(f"3 s later: {rollup('Rss'):.0f} MiB resident, charge {charge() or -1:.0f} MiB")
