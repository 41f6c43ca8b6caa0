"""What buffers of common sizes take: 200 MB of `bytes` objects as reads of 4 to 64 KiB return them, each in a process of its own, and the memory of that."""

import subprocess
import sys

KIB = 1 << 10


def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // KIB


def measure(length):
    before = resident()
    buffers = [b"x" * length for _ in range(200_000_000 // length)]
    print(f"{length // KIB:2} KiB each: {resident() - before} MiB", flush=True)
    del buffers


if len(sys.argv) > 1:
    measure(int(sys.argv[1]))
else:
    for length in (4 * KIB, 8 * KIB, 12 * KIB, 16 * KIB, 32 * KIB, 64 * KIB):
        subprocess.run([sys.executable, __file__, str(length)], check=True)
