"""The garbage-collected heap in a control group with a limit on memory: no room is an answer, and not the end of the process.

Needs root, for a control group of the test's own.
"""

import subprocess
from pathlib import Path

import pytest
import testbed

from .conftest import HERE

MIB = 1 << 20
LIMIT = 192 * MIB
NO_MEMORY = 5


def run(program, group, environment, *arguments):
    """What the program prints, as numbers. It is killed where memory is touched that there is no room for."""
    ran = subprocess.run(
        [program, *map(str, arguments)], env=environment, preexec_fn=group.enter, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    return [int(line) for line in ran.stdout.split()]


@pytest.fixture(params=["own", "parent"])
def group(request):
    """A control group that is limited, itself or by the one above it."""
    with testbed.memory_group("gc") as above:
        above.limit(LIMIT)
        if request.param == "own":
            yield above
            return
        if above.version == 2:
            try:
                (above.path / "cgroup.subtree_control").write_text("+memory")
            except OSError as error:
                pytest.skip(f"a control group below another one is not limited here: {error}")
        below = testbed.Group(above.path / "below", above.version)
        below.path.mkdir()
        yield below
        below.path.rmdir()


def test_a_nursery_that_the_limit_has_no_room_for_is_refused(group, compiled, clean):
    program = compiled(HERE / "gc_limits.c")
    assert run(program, group, clean, "nursery", 4 * LIMIT) == [NO_MEMORY]
    assert run(program, group, clean, "nursery", LIMIT) == [NO_MEMORY]
    assert group.charge() < 16 * MIB, "nothing was touched for it"
    assert run(program, group, clean, "nursery", LIMIT // 2) == [0]


@pytest.mark.parametrize("size", [6 * MIB, 40 * MIB, 2 * LIMIT])
def test_large_objects_are_refused_where_the_limit_has_no_room(size, group, compiled, clean):
    if int(next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("SwapFree:"))):
        pytest.skip("the host has swap: the kernel swaps before it kills, and nothing is refused")
    fit = (LIMIT - 24 * MIB) // size
    counts = run(compiled(HERE / "gc_limits.c"), group, clean, "objects", size)
    # As many as before when they are dead.
    assert len(counts) == 3 and all(fit - 1 <= count <= LIMIT // size for count in counts), counts
