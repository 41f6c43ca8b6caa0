"""Text that grows by 8 characters at a time, to 100 kB, 700 kB and 3 MB: nanoseconds for each piece."""

import time


def grow(bytes):
    text = ""
    for number in range(bytes // 8):
        text += "abcd%4d" % (number & 1023)


for bytes, times in ((100_000, 40), (700_000, 6), (3_000_000, 2)):
    grow(bytes)
    begin = time.perf_counter()
    for _ in range(times):
        grow(bytes)
    print(f"{bytes / 1000:,.0f} kB: {(time.perf_counter() - begin) * 1e9 / times / (bytes // 8):.0f} ns")
