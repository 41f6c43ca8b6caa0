"""How long CPython's cyclic collector takes for dictionaries and lists as `json.loads` makes them.

    [hugeheap run [--level objects] --] python3 cyclic.py [RECORDS]
"""

import gc
import json
import statistics
import sys
import time

RECORDS = int(sys.argv[1]) if len(sys.argv) > 1 else 80_000

gc.disable()
record = '{"id": %d, "name": "name%d", "tags": ["a", "b"], "place": {"x": %d.5, "rows": [1, 2, 3]}}'
text = f"[{', '.join(record % (number, number, number) for number in range(RECORDS))}]"
records = json.loads(text)
times = []
for _ in range(9):
    begin = time.perf_counter()
    gc.collect()
    times.append(time.perf_counter() - begin)
print(f"{statistics.median(times) * 1e3:.1f} ms (least {min(times) * 1e3:.1f}) for {len(gc.get_objects()):,} objects")
