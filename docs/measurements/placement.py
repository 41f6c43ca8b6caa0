"""Whether a program's time depends on where its file lies in memory: byte-identical copies of it, each run several times, by turns.

    python3 placement.py [--copies N] [--runs N] -- PROGRAM ARGUMENT...

The time of a copy is the median of its runs, of the processor time of the process. What differs between copies and not between the runs of one is where the kernel keeps them.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(usage="python3 placement.py [--copies N] [--runs N] -- PROGRAM ARGUMENT...")
parser.add_argument("--copies", type=int, default=8)
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("command", nargs="+")
options = parser.parse_args()
if options.copies < 2 or options.runs < 2:
    parser.error("at least two copies, of two runs each, are needed to compare")
program = shutil.which(options.command[0]) or sys.exit(f"{options.command[0]}: there is no such program")


def seconds(file):
    """Processor time of one run."""
    process = subprocess.Popen([file, *options.command[1:]], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{options.command[0]}: exit status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


# Beside the program: there is room for programs there, and they may be run.
with tempfile.TemporaryDirectory(prefix=".placement-", dir=os.path.dirname(os.path.realpath(program))) as directory:
    files = [os.path.join(directory, str(number)) for number in range(options.copies)]
    for file in files:
        with open(program, "rb") as source, open(file, "wb") as copy:
            copy.write(source.read())
        os.chmod(file, 0o755)
    times = {file: [] for file in files}
    for run in range(options.runs):
        for turn in range(len(files)):
            file = files[(turn + run) % len(files)]
            times[file].append(seconds(file))

medians = sorted(statistics.median(runs) for runs in times.values())
print("seconds of each copy: " + " ".join(f"{median:.3f}" for median in medians))
print(f"slowest copy to fastest: {medians[-1] / medians[0]:.2f}")
spread = statistics.median(max(runs) / min(runs) for runs in times.values())
print(f"slowest run of a copy to its fastest, in the median of copies: {spread:.2f}")
