"""What `hugeheap record --rate 20` costs the program that is recorded.

    python3 record.py HUGEHEAP [PAIRS [ROUNDS]] [-- COMMAND...]

HUGEHEAP is the program. Unless a COMMAND is given, CPython makes and drops objects for ROUNDS (40: some five seconds). It runs
alone and recorded, in turn.

The time on the clock is what a user sees, and on a machine that does other things it is too noisy for one percent. The
processor time is not: that of the program, where looks that hold it up would show as faults and locks, and that of the
recorder, which is what it takes from a program that wants every processor.
"""

import json
import os
import random
import statistics
import sys
import tempfile
import time

WORK = """
import sys
for _ in range(int(sys.argv[1])):
    kept = [{"number": number, "text": str(number)} for number in range(200_000)]
    del kept[::2]
"""


def run(command):
    """Seconds on the clock, and of the processor for it and what it waited for."""
    begin = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(child, 0)
    took = time.perf_counter() - begin
    if status:
        sys.exit(f"{' '.join(command)}: failed with status {os.waitstatus_to_exitcode(status)}")
    return took, usage.ru_utime + usage.ru_stime


def interval(alone, recorded, draw):
    """The ratio of the medians, and 95 % of those of samples drawn with repetition."""
    ratios = sorted(
        statistics.median(draw.choices(recorded, k=len(recorded))) / statistics.median(draw.choices(alone, k=len(alone)))
        for _ in range(5000)
    )
    return statistics.median(recorded) / statistics.median(alone), ratios[125], ratios[-126]


def told(name, alone, recorded):
    ratio, low, high = (100 * (value - 1) for value in interval(alone, recorded, random.Random(1)))
    medians = f"{statistics.median(alone):.3f} s alone, {statistics.median(recorded):.3f} s recorded"
    print(f"{name:<42}{ratio:+.2f} % ({low:+.2f} to {high:+.2f}): {medians}")


words, command = sys.argv[1:], []
if "--" in words:
    place = words.index("--")
    words, command = words[:place], words[place + 1 :]
pairs = int(words[1]) if len(words) > 1 else 20
command = command or [os.path.realpath(sys.executable), "-c", WORK, words[2] if len(words) > 2 else "40"]

wall, work = ([], []), ([], [])
share, looks, rate = [], [], []
with tempfile.TemporaryDirectory() as directory:
    file = os.path.join(directory, "record.json")
    record = [words[0], "--quiet", "record", "--rate", "20", "-o", file, "--", *command]
    run(command)  # Files come into the cache, memory from the host.
    for pair in range(pairs):
        for is_recorded in (False, True) if pair % 2 else (True, False):
            took, used = run(record if is_recorded else command)
            if is_recorded:
                with open(file) as text:
                    report = json.load(text)
                own = report["ended"]["user"] + report["ended"]["system"]
                share.append((used - own) / took)
                looks.append(report["seconds_spent_looking"] / took)
                rate.append(report["looks"] / took)
                used = own
            wall[is_recorded].append(took)
            work[is_recorded].append(used)
told("time on the clock", *wall)
told("processor time of the program", *work)
print(f"{'processor time of the recorder':<42}{100 * statistics.median(share):.2f} % of the time", end="")
print(f" ({100 * min(share):.2f} to {100 * max(share):.2f}), for looks {100 * statistics.median(looks):.2f} %")
print(f"{'looks in a second':<42}{statistics.median(rate):.1f}")
