"""The main job, with real figures: one real Python program stock and on hugeheap, then a first look at the experiment.

    python examples/demo.py target/release/hugeheap

The program parses, groups and serialises records, the way a service does: dicts, strings, lists, JSON.
"""

import subprocess
import sys
import time

PROGRAM = """
import collections, json, random, time
random.seed(7)
start = time.perf_counter()
text = json.dumps([{"id": i, "name": f"user-{i % 5000}", "tags": [f"t{i % 17}", f"t{i % 23}"],
                    "score": random.random()} for i in range(250_000)])
records = json.loads(text)
groups = collections.defaultdict(list)
for record in records:
    groups[record["name"]].append(record)
best = {name: max(group, key=lambda record: record["score"])["id"] for name, group in groups.items()}
tags = collections.Counter(tag for record in records for tag in record["tags"])
print(f"{len(records)} records, {len(best)} groups, checksum {sum(best.values()) % 99991}, "
      f"in {time.perf_counter() - start:.2f} s")
"""


def say(line: str) -> None:
    print(f"\n== {line}", flush=True)


def python() -> str:
    """A stock interpreter: the one this virtual environment was made from."""
    return getattr(sys, "_base_executable", None) or sys.executable


def main(command: str) -> None:
    program = [python(), "-c", PROGRAM]
    say(f"stock: {python()}")
    subprocess.run(program, check=True)
    subprocess.run(program, check=True)
    say("the same on hugeheap: hugeheap run --summary -- python program.py")
    subprocess.run([command, "run", "--", *program], check=True)
    subprocess.run([command, "run", "--summary", "--", *program], check=True)
    say("side by side: hugeheap bench obmalloc --quick (three of the nine workloads)")
    started = time.monotonic()
    workloads = "list_of_tuples,fragmentation,class_instances"
    bench = [command, "bench", "obmalloc", "--quick", "--runs", "7", "--python", python(), "--workloads", workloads]
    subprocess.run([*bench, "--touch", "2G"], check=True)
    say(f"measured in {time.monotonic() - started:.0f} s; all nine workloads with ten runs each: make bench")


if __name__ == "__main__":
    main(sys.argv[1])
