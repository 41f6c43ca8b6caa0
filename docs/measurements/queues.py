"""Buffers that come and go: `bytes` objects of all sizes to 60 kB, in a queue of 8, in one of 300, and in a list that is dropped as a whole."""

import random
import time
from collections import deque

random.seed(7)
SIZES = [random.randrange(60_000) for _ in range(60_000)]


def queue(longest):
    buffers = deque(maxlen=longest)
    for size in SIZES:
        buffers.append(bytes(size))


def lists():
    for _ in range(40):
        buffers = [bytes(size) for size in SIZES[:1500]]
        del buffers


for name, work in (("queue of 8", lambda: queue(8)), ("queue of 300", lambda: queue(300)), ("lists", lists)):
    begin = time.perf_counter()
    work()
    print(f"{name}: {(time.perf_counter() - begin) * 1000:.0f} ms")
