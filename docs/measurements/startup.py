"""What `python -c pass` costs on stock and on each policy.

    python3 startup.py LIBRARY [RUNS]

LIBRARY is the path of libhugeheap_preload.so.
"""

import os
import statistics
import subprocess
import sys
import time

library = sys.argv[1]
runs = int(sys.argv[2]) if len(sys.argv) > 2 else 20
python = os.path.realpath(sys.executable)
# The peak is read by the process itself: ru_maxrss remembers what it was before it became Python.
peak = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"


def once(policy):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HUGEHEAP_")}
    if policy != "stock":
        environment |= {"LD_PRELOAD": library, "HUGEHEAP_POLICY": policy}
    begin = time.perf_counter()
    child = os.posix_spawn(python, [python, "-c", "pass"], environment)
    _, _, usage = os.wait4(child, 0)
    took = time.perf_counter() - begin
    told = subprocess.run([python, "-c", peak], env=environment, capture_output=True, text=True, check=True)
    return took, usage.ru_minflt, int(told.stdout) / 1024


seen = {policy: [] for policy in ("stock", "auto", "thp", "base", "dense")}
for _ in range(runs):
    for policy, measured in seen.items():
        measured.append(once(policy))
for policy, measured in seen.items():
    milliseconds, faults, rss = (statistics.median(column) for column in zip(*measured))
    print(f"{policy:<6} {milliseconds * 1e3:6.1f} ms {faults:6.0f} faults {rss:6.1f} MiB at most")
