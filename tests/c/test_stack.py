"""Threads with little stack: no function needs more than a thread with the smallest stack has.

Not under sanitizers: what they compile in needs more stack than that.
"""

import re
import signal
import subprocess

import pytest

from .conftest import HERE, ROOT, TIMEOUT, run

SOURCE = HERE / "stack.c"
SETTINGS = {
    "as it is": {},
    "hardened": {"HUGEHEAP_HARDENED": "1"},
    "hugetlb": {"HUGEHEAP_POLICY": "hugetlb"},
    "dense": {"HUGEHEAP_POLICY": "dense"},
    "short decay": {"HUGEHEAP_DECAY": "0.01"},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("section", ["small", "refused"])
def test_a_thread_with_16_kib_of_stack_can_call_everything(section, setting, compiled, clean):
    """A heap was built on the stack and copied from there: the first request of a thread with less than 28 KiB, and `hh_heap_new` and `hh_gc_new` with less than 48, ended with SIGSEGV."""
    run(compiled(SOURCE), section, clean, **SETTINGS[setting])


@pytest.mark.parametrize("options", [["-DINLINE"], ["static"]], ids=["inline", "archive"])
def test_that_holds_for_inlined_functions_and_the_archive(options, compiled, clean):
    static = options == ["static"]
    run(compiled(SOURCE, *([] if static else options), static=static), "small", clean)


def test_a_mistake_is_told_there(compiled, clean):
    command = [compiled(SOURCE), "mistake"]
    ran = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert ran.returncode == -signal.SIGABRT and "freed twice?" in ran.stderr


def test_it_holds_while_the_process_is_watched(compiled, clean, tmp_path):
    run(compiled(SOURCE), "small", clean, HUGEHEAP_TELEMETRY=str(tmp_path))


def test_the_stack_that_functions_need_is_what_the_reference_says(compiled, clean):
    printed = run(compiled(SOURCE), "depth", clean)
    print(printed)
    depths = {name: int(bytes_) for name, bytes_ in re.findall(r"(.+): (\d+)", printed)}
    said = re.search(r"at most (\d+) KiB of stack", (ROOT / "docs/reference/c.md").read_text())
    assert len(depths) > 45 and max(depths.values()) <= int(said[1]) << 10, depths
