"""What is resident behind the ends of large blocks: 60 of them made of what a longer one has left, and the memory of the process at once and after five idle seconds."""

import time

LONG, COUNT, BYTES = 120 << 20, 60, 1_150_000


def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


before = resident()
long = bytearray(LONG)
long[::4096] = b"x" * len(range(0, LONG, 4096))
del long
blocks = [bytearray(b"x") * BYTES for _ in range(COUNT)]
at_once = resident() - before
time.sleep(5)
print(f"{COUNT * BYTES / 2**20:.0f} MiB live; {at_once:.0f} MiB at once, {resident() - before:.0f} MiB after five seconds")
