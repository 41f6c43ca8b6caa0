"""The most memory that a program has which makes tables with objects and drops both, in rounds.

    hugeheap run -- python3 tables.py [ROUNDS]
"""

import resource
import sys

ENTRIES = 1_000_000

for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 6):
    for _ in range(2):
        names = [None] * ENTRIES
        for number in range(ENTRIES // 3):
            names[number] = str(number) * 3
        parts = [None] * ENTRIES
        for number in range(ENTRIES // 3):
            parts[number] = names[number][:9]
        del names
    del parts
print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f} MiB at most")
