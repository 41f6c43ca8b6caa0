"""Instruction counts of the paths that a program waits for.

Time on shared machines is noise; the number of instructions of the same binary is not. Each path is run twice under
callgrind with different counts, and the difference is the cost of one pair. The bounds are a tenth above what was
counted when they were set: a change that exceeds one either is a regression or has a reason that belongs in its commit.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Instructions per pair of allocate and free, the system's clock included, the loop around it not. The bound of `sized`, a hot pair whose
# size the caller knows, is a promise: 30, checks included.
BOUNDS = {
    "run": 1350, "large": 2290, "owns": 43, "sized": 30, "block": 42, "order": 62, "global": 40,
    "random": 120,
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs():
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed (apt-get install valgrind)")
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    command = ["cargo", "build", "--release", "-p", "hugeheap", "--example", "pairs"]
    subprocess.run(command, cwd=ROOT, check=True)
    return pathlib.Path(target) / "release" / "examples" / "pairs"


def instructions(binary, kind, count, tmp_path):
    output = tmp_path / f"{kind}-{count}"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", str(binary), kind, str(count)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(re.search(r"Collected : (\d+)", run.stderr).group(1))


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_pair_costs_no_more_instructions_than_when_it_was_measured(pairs, tmp_path, kind):
    few, many = 1_000, 11_000

    def of(kind):
        return (instructions(pairs, kind, many, tmp_path) - instructions(pairs, kind, few, tmp_path)) / (many - few)

    cost = of(kind) - of("loop")
    print(f"{kind}: {cost:.0f} instructions per pair")
    assert 0 < round(cost) <= BOUNDS[kind]
