"""What is resident after objects of mixed sizes were dropped at random, and what it costs to walk over the others.

    hugeheap run --level objects -- python3 vacant.py [--mib 256] [--share 0.1] [--least 800] [--most 2000] [--wait 3]
"""

import argparse
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--mib", type=int, default=256, help="how much there is at first")
parser.add_argument("--share", type=float, default=0.1, help="of the objects, how many stay")
parser.add_argument("--least", type=int, default=800, help="bytes of the smallest")
parser.add_argument("--most", type=int, default=2000, help="bytes of the largest")
parser.add_argument("--wait", type=float, default=3.0, help="seconds without work")
options = parser.parse_args()


def resident():
    """MiB of this process, and those of them on huge pages."""
    with open("/proc/self/smaps_rollup") as file:
        fields = dict(line.split(":") for line in file if ":" in line.split()[0])
    return [int(fields[name].split()[0]) // 1024 for name in ("Rss", "AnonHugePages")]


def walk(objects):
    """Nanoseconds per object, the shortest of fifteen times."""
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        sum(map(len, objects))
        times.append(time.perf_counter() - begin)
    return min(times) / max(len(objects), 1) * 1e9


random.seed(1)
count = options.mib * 2**20 * 2 // (options.least + options.most)
objects = [bytes(random.randrange(options.least, options.most)) for _ in range(count)]
full = resident()
random.shuffle(objects)
del objects[int(count * options.share) :]
before = [*resident(), walk(objects)]
time.sleep(options.wait)
after = [*resident(), walk(objects)]
live = sum(map(len, objects)) / 2**20
print(f"{'':27}RSS, MiB   on huge pages   ns to reach an object")
print(f"all objects           {full[0]:13}{full[1]:16}")
print(f"the others dropped    {before[0]:13}{before[1]:16}{before[2]:24.0f}")
print(f"{options.wait:.0f} s later             {after[0]:13}{after[1]:16}{after[2]:24.0f}")
print(f"live: {live:.0f} MiB")
