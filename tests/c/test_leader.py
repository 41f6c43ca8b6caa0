"""A process whose leader ends before its other threads: it ends with the last thread of its own, at once, and what it printed is there.

The library's maintenance thread lived on while memory was kept for reuse, here for an hour. It was the last thread then, and the C library had it write what was in the buffers, with no file open.
"""

import subprocess

import pytest

from .conftest import HERE

# Seconds. The first is longer than anybody waits here.
KEPT, SOON, TIMEOUT = "3600", "0.3", 100

# What each scenario of the program prints, and for how long memory is kept in it. A child that is forked while
# something is in the buffer has it in its own.
SCENARIOS = [
    ("alone", KEPT, ["the leader"]),
    ("alone", SOON, ["the leader"]),
    ("works_on", SOON, ["the leader", "the worker"]),
    ("busy", SOON, ["the leader"]),
    ("forked", KEPT, ["the child"]),
    ("forked", SOON, ["the child"]),
    ("forked_later", KEPT, ["the leader", "the child", "the leader", "the worker"]),
    ("many_keys", KEPT, ["the leader", "the child", "the leader"]),
    ("no_keys", KEPT, ["the leader", "the child", "the leader"]),
    ("silent", KEPT, ["the worker", "the leader"]),
    ("silent_to_the_end", KEPT, ["the leader", "the worker"]),
]

pytestmark = pytest.mark.any_host


@pytest.fixture(params=["malloc", "interface"])
def program(request, compiled, built, clean):
    """The program and its environment, with memory of malloc's and of the C interface's. With that the leader asks for memory only where the scenario says so, and keys may be used up before it does."""
    if request.param == "interface":
        return compiled(HERE / "leader.c", "-DC_INTERFACE"), clean
    library = built / "libhugeheap_malloc.so"
    assert library.is_file(), "cargo build --release -p hugeheap-malloc"
    return compiled(HERE / "leader.c"), {**clean, "LD_PRELOAD": str(library), "HUGEHEAP_LEVEL": "malloc"}


@pytest.mark.parametrize(("scenario", "kept", "printed"), SCENARIOS)
def test_a_process_ends_with_its_own_threads(scenario, kept, printed, program):
    path, environment = program
    env = {**environment, "HUGEHEAP_DECAY": kept}
    ran = subprocess.run([path, scenario], env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == printed
