"""What stays resident when lists were made and dropped, and what it takes to give all back at once and make them again.

    hugeheap run --level objects -- python3 metadata.py [LISTS [TIMES]]

TIMES 0, as it is without: only what stays, five seconds after they were dropped. The second form needs the package `hugeheap`.
"""

import gc
import re
import sys
import time

lists = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
times = int(sys.argv[2]) if len(sys.argv) > 2 else 0


def resident():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024


gc.disable()
if times == 0:
    many = [[number] for number in range(lists)]
    full = resident()
    del many
    time.sleep(5)
    print(f"RSS, MiB: {full:.0f} with all, {resident():.1f} without")
else:
    import hugeheap

    taken = []
    for _ in range(times + 1):
        begin = time.perf_counter()
        many = [[number] for number in range(lists)]
        del many
        hugeheap.give_back()
        taken.append(time.perf_counter() - begin)
    print(f"made, dropped and given back, s: {min(taken[1:]):.3f} at best, {sorted(taken[1:])[times // 2]:.3f} in the median")
