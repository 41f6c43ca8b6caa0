"""Every wrong use of a block ends the process with one line that names the address, the size class and the mistake."""

import re
import signal
import subprocess

import pytest

from .conftest import HERE

SOURCE = HERE / "mistakes.c"
KINDS = [kind for kind in re.findall(r"KIND\((\w+)\)", SOURCE.read_text()) if kind != "name"]

# What the line must say, by the beginning of the kind's name.
LINES = {
    "twice": "size class \\d+: nothing live begins at the address",
    "twice_run": "no size class: nothing live begins at the address",
    "twice_large": "no size class: nothing live begins at the address",
    "owner": "size class 48: nothing live begins at the address",
    "owner_then_thread_open": "size class 48: nothing live begins at the address",
    "thread": "size class 48: nothing live begins at the address",
    "thread_then_owner_heap_": "size class \\d+: nothing live begins at the address",
    "two_threads": "size class 48: two threads freed the block",
    "interior": "size class \\d+: the address is inside a block",
    "interior_run": "the address is inside a block",
    "interior_large": "the address is inside a block",
    "foreign": "the address is not from this heap",
    "size": "size class \\d+: freed with a size of \\d+ bytes, which another class has",
    "size_realloc": "size class \\d+: resized with an old size of \\d+ bytes, which another class has",
    "size_of_freed": "size class 48: nothing live begins at the address",
    "realloc": "size class \\d+: nothing live begins at the address",
    "realloc_interior": "size class \\d+: the address is inside a block",
}


def test_the_kinds_are_known(compiled):
    listed = subprocess.run([compiled(SOURCE)], capture_output=True, text=True, check=True).stdout.split()
    assert listed == KINDS and len(KINDS) >= 40


@pytest.mark.parametrize("way", ["shared", "archive", "inlined"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_the_process_with_one_line(kind, way, compiled, clean, tmp_path):
    program = compiled(SOURCE, *(["-DINLINE"] if way == "inlined" else []), static=way == "archive")
    # No core file beside the tests.
    ran = subprocess.run(
        [program, kind], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == -signal.SIGABRT, (ran.returncode, ran.stdout, ran.stderr)
    address = ran.stdout.split()
    assert len(address) == 1, "it went on after the mistake"
    wanted = next(LINES[name] for name in sorted(LINES, key=len, reverse=True) if kind.startswith(name))
    line = rf"hugeheap: [a-z ]+ of {address[0]}: (?:[a-z ]+: )?{wanted}[^\n]*\n"
    assert re.fullmatch(line, ran.stderr), ran.stderr
