"""The loop of `hugeheap bench alloc-rate` in Python: field COUNT. Whole numbers are objects, 16 bytes in PyPy; the field is always written."""

import sys
import time


def run(count):
    begin = time.perf_counter()
    last = before = None
    # From where CPython has no numbers at hand.
    for number in range(1 << 20, (1 << 20) + count):
        before = last
        last = number
    seconds = time.perf_counter() - begin
    return seconds, last, before


count = int(sys.argv[2])
# Compiled, where there is a compiler, before it counts.
run(20000)
seconds, last, before = run(count)
try:
    size = sys.getsizeof(last)
except TypeError:
    # PyPy does not say: a header and a machine word.
    size = 16
print('{"seconds": %.9f, "objects": %d, "bytes": %d}' % (seconds, count, size))
