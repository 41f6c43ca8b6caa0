"""Instructions that a C program waits for, calls into the shared library included; see tests/instructions."""

import re
import subprocess

import pytest

from .conftest import HERE, needs

# Instructions per pair of allocating and freeing 48 bytes, and per block that is only allocated; a tenth above
# what was counted when they were set.
BOUNDS = {
    "heap": 62, "heap-sized": 57, "inline": 35, "inline-variable": 49, "thread": 77, "thread-sized": 78, "fill": 36, "fill-inline": 23,
}  # fmt: skip


def instructions(program, kind, count, clean, tmp_path):
    output = tmp_path / f"{kind}-{count}"
    command = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={output}", program, kind, str(count)]
    subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    # The first thread's; as in tests/instructions/conftest.py.
    return int(re.search(r"^totals: (\d+)$", output.with_name(f"{output.name}-01").read_text(), re.MULTILINE).group(1))


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_pair_costs_no_more_instructions_than_when_it_was_measured(kind, compiled, clean, tmp_path):
    needs("valgrind")
    program = compiled(HERE / "pairs.c")
    few, many = 1_000, 11_000

    def cost(kind):
        return (instructions(program, kind, many, clean, tmp_path) - instructions(program, kind, few, clean, tmp_path)) / (many - few)

    pair = cost(kind) - cost("loop")
    print(f"{kind}: {pair:.1f} instructions per pair")
    assert 0 < pair <= BOUNDS[kind]
