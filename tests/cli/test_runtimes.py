"""Processes that contain several runtimes: the preload library's, and that of the C library. Their numbers are told together."""

import json
import sys

import exposition
import pytest
from targets import Target, may_read_others

MIB = 1 << 20
BLOCK = 24 * MIB
# At least what 200 000 lists of one small number take.
OBJECTS = 10 * MIB

# Objects from one runtime, a block from the other; the library's path is the argument.
TWO_HEAPS = f"""
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
library.hh_malloc.restype, library.hh_malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
rows = [[number] for number in range(200_000)]
assert library.hh_malloc({BLOCK})
"""
# The child has as much again in either, and both wait for the end of the input.
FORKS = f"""{TWO_HEAPS}
reader, writer = os.pipe()
child = os.fork()
if not child:
    more = [[number] for number in range(200_000)]
    assert library.hh_malloc({BLOCK})
    print(os.getpid(), flush=True); os.close(writer); os.read(reader, 1); os._exit(0)
sys.stdin.readline(); os.close(writer); os.waitpid(child, 0); print('{{}}')
"""
# Fields of the record, by offset: see docs/reference/telemetry-record.md.
LIVE, LARGE = 152, 192


def number(record, offset):
    return int.from_bytes(record[offset : offset + 8], sys.byteorder)


def summary_of(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stderr.strip().splitlines()[-1])


@pytest.mark.skipif(not may_read_others(), reason="Yama's ptrace_scope keeps processes of one user apart")
def test_both_heaps_of_a_running_process_and_of_its_child_are_seen(
    program, environment, python, hugeheap, c_library, tmp_path
):
    records = tmp_path / "records"
    records.mkdir()
    command = (program, "run", "--level", "objects", "--", python, "-c", FORKS, c_library)
    target = Target(*command, env={**environment, "HUGEHEAP_TELEMETRY": str(records)})
    try:
        result = hugeheap("export", "--once", "--budget", "30")
        assert result.returncode == 0, result.stderr
        metrics = exposition.read(result.stdout)
        assert {path.name for path in records.iterdir()} == {
            f"{pid}{number}.hugeheap" for pid in (target.pid, target.first) for number in ("", "-2")
        }
        for pid, times in ((target.pid, 1), (target.first, 2)):
            objects, block = ((records / f"{pid}{end}.hugeheap").read_bytes() for end in ("", "-2"))
            assert number(block, LARGE) == times * BLOCK
            assert number(objects, LIVE) > times * OBJECTS
            told = metrics.one("hugeheap_heap_allocated_bytes", pid=str(pid))
            # Each page of numbers is within 1 MiB of the truth.
            assert abs(told - number(objects, LIVE) - number(block, LIVE)) < 2 * MIB
            large = metrics.one("hugeheap_heap_large_bytes", pid=str(pid))
            assert large == number(objects, LARGE) + number(block, LARGE)
            assert metrics.one("hugeheap_heap_info", pid=str(pid), state="hooked", level="objects") == 1
        # Both runtimes saw the same fork; the parent's pages are written at some later event.
        assert metrics.one("hugeheap_heap_forks_total", pid=target.first) == 1
        target.end()
    finally:
        target.process.kill()
        target.process.communicate()


def test_the_summary_adds_them_up(hugeheap, python, c_library):
    code = FORKS.replace("os.read(reader, 1); ", "")
    summary = summary_of(
        hugeheap("run", "--level", "objects", "--summary", "--json", "--", python, "-c", code, c_library)
    )
    main, children = summary["main"], summary["children"]
    assert len(summary["processes"]) == 2 and summary["unreadable"] == []
    assert (main["state"], main["level"], main["forks"]) == ("hooked", "objects", 1)
    assert main["large"] >= BLOCK and main["live_peak"] > BLOCK + OBJECTS
    assert (children["processes"], children["hooked"]) == (1, 1)
    assert children["live_peak"] > 2 * (BLOCK + OBJECTS)


def test_the_heaps_of_the_program_before_an_exec_are_forgotten(hugeheap, python, c_library):
    code = f"{TWO_HEAPS}\nos.execv(sys.executable, [sys.executable, '-c', 'pass'])"
    summary = summary_of(
        hugeheap("run", "--level", "objects", "--summary", "--json", "--", python, "-c", code, c_library)
    )
    assert len(summary["processes"]) == 1 and summary["unreadable"] == []
    assert summary["main"]["state"] == "hooked" and summary["main"]["live_peak"] < BLOCK


def test_a_program_that_is_not_python_and_has_its_own_runtime_is_told(hugeheap, compiled, c_library):
    source = f"""
#include <dlfcn.h>
#include <stddef.h>
int main(int count, char **words) {{
    void *library = dlopen(words[count - 1], RTLD_NOW);
    void *(*allocate)(size_t) = library ? (void *(*)(size_t))dlsym(library, "hh_malloc") : NULL;
    return !allocate || !allocate({BLOCK});
}}
"""
    program = compiled("own", "-ldl", source=source)
    summary = summary_of(hugeheap("run", "--summary", "--json", "--", program, c_library))
    assert summary["main"]["state"] == "not_python"
    assert summary["main"]["large"] >= BLOCK
