"""What memory a program has that dropped nine of ten small objects at random, while the host merges equal pages.

    hugeheap run --merge --level objects -- python3 merged.py [--mib 256] [--share 0.1] [--least 16] [--most 512] [--until 6]

Checks at the end that all that stayed is as it was, also in a forked child.
"""

import argparse
import hashlib
import os
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--mib", type=int, default=256, help="how much there is at first")
parser.add_argument("--share", type=float, default=0.1, help="of the objects, how many stay")
parser.add_argument("--least", type=int, default=16, help="bytes of the smallest")
parser.add_argument("--most", type=int, default=512, help="bytes of the largest")
parser.add_argument("--until", type=int, default=6, help="seconds without work")
options = parser.parse_args()


def row(text):
    """MiB of this process: resident, and with a page that several mappings have counted once."""
    with open("/proc/self/smaps_rollup") as file:
        fields = dict(line.split(":") for line in file if ":" in line.split()[0])
    resident, shared = (int(fields[name].split()[0]) // 1024 for name in ("Rss", "Pss"))
    print(f"{text:22}{resident:9}{shared:14}", flush=True)


def digest(objects):
    total = hashlib.sha256()
    for one in objects:
        total.update(one)
    return total.digest()


random.seed(1)
objects, size = [], 0
while size < options.mib << 20:
    objects.append(random.randbytes(random.randrange(options.least, options.most)))
    size += len(objects[-1])
print(f"{'':22}{'RSS, MiB':>9}{'its own, MiB':>14}")
row("all objects")
random.shuffle(objects)
del objects[int(len(objects) * options.share) :]
expected = digest(objects)
row("the others dropped")
for second in range(1, options.until + 1):
    time.sleep(1)
    row(f"{second} s later")
child = os.fork()
if child == 0:
    os._exit(digest(objects) != expected)
assert os.waitpid(child, 0)[1] == 0, "a forked child has other contents"
assert not any(any(bytes(options.most)) for _ in range(1000)), "what is zeroed is not zero"
assert digest(objects) == expected, "contents have changed"
print(f"live: {sum(map(len, objects)) / 2**20:.0f} MiB, as it was")
