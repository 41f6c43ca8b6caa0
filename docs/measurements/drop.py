"""A list of tuples that is made and dropped again and again in one process: whether the last time costs what the first does.

    hugeheap run --level objects -- python3 drop.py [TUPLES [TIMES]]
"""

import sys
import time

tuples = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
times = int(sys.argv[2]) if len(sys.argv) > 2 else 8
made, dropped = [], []
for _ in range(times):
    begin = time.perf_counter()
    triples = [(number, number + 1, number + 2) for number in range(tuples)]
    middle = time.perf_counter()
    del triples
    made.append(1000 * (middle - begin))
    dropped.append(1000 * (time.perf_counter() - middle))
for name, each in (("made", made), ("dropped", dropped)):
    print(f"{name}, ms:", " ".join(f"{ms:.0f}" for ms in each))
