"""`hugeheap release` on real processes: the charge falls, contents stay, and what is said about it."""

import json
import os
from pathlib import Path

import pytest
import testbed
from targets import Target, drop

TARGETS = Path(__file__).parent
MIB = 1 << 20
UNIT = 2 * MIB
HUGE_PAGES = 300
SYS_ADMIN = 21

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def group():
    """A control group of the test's own, whose charge is the target's alone."""
    with testbed.memory_group("hugeheap-release") as made:
        yield made


@pytest.fixture
def stranded(python, group):
    """A process with so many stranded huge pages, in the group."""
    started = []

    def start(count=40, *arguments):
        command = [python, TARGETS / "stranded_heap.py", count, *arguments]
        process = Target(*command, preexec_fn=group.enter)
        started.append(process)
        return process

    with testbed.sparse_stays():
        yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def enough(said, count):
    """Whether the host had huge pages enough for the test to say anything."""
    if said["huge_pages"] < 0.9 * count:
        pytest.skip(f"the host gave {said['huge_pages']} huge pages of {count}")


def test_300_stranded_huge_pages_are_freed_while_the_process_runs(hugeheap, stranded, group):
    process = stranded(HUGE_PAGES)
    before = group.charge()
    result = hugeheap("release", process.pid, "--json")
    after = group.charge()
    said = process.end()
    enough(said, HUGE_PAGES)
    assert said["intact"] and said["reads"] > HUGE_PAGES
    assert before > 560 * MIB
    assert after <= 20 * MIB
    report = json.loads(result.stdout)
    assert result.returncode == 0
    assert report["schema"] == "hugeheap.release/1"
    assert report["derivation"] == "folios"
    assert report["taken_apart"] == report["plan"]["huge_pages"] >= 0.9 * HUGE_PAGES
    assert report["after"]["huge_pages"] == 0
    assert abs(report["charge"]["before"] - before) < 8 * MIB
    assert abs(report["charge"]["after"] - after) < 8 * MIB
    # What was stranded never showed in RSS.
    assert report["resident"]["before"] < 40 * MIB


def test_what_is_said_to_a_person(hugeheap, stranded):
    process = stranded()
    result = hugeheap("release", process.pid)
    enough(process.end(), 40)
    lines = result.stdout.splitlines()
    assert "MiB stranded in" in lines[0]
    assert any(line.startswith("  taken apart") for line in lines)
    assert any(line.startswith("  still there  0 B stranded in 0 huge pages") for line in lines)
    assert any(line.startswith("  charge") and "→" in line for line in lines)
    assert result.stderr == ""


def test_a_dry_run_frees_nothing(hugeheap, stranded, group):
    process = stranded()
    before = group.charge()
    report = json.loads(hugeheap("release", process.pid, "--dry-run", "--json").stdout)
    assert report["taken_apart"] == 0 and report["after"] is None
    assert abs(group.charge() - before) < MIB
    done = json.loads(hugeheap("release", process.pid, "--json").stdout)
    enough(process.end(), 40)
    assert done["plan"]["huge_pages"] == report["plan"]["huge_pages"] >= 36
    assert report["plan"]["stranded"] == report["plan"]["huge_pages"] * (UNIT - 4096)


def test_without_the_physical_pages_it_is_an_upper_bound_and_works(hugeheap, stranded, group):
    process = stranded()
    before = group.charge()
    result = hugeheap("release", process.pid, "--json", preexec_fn=drop(SYS_ADMIN))
    after = group.charge()
    said = process.end()
    enough(said, 40)
    report = json.loads(result.stdout)
    assert report["derivation"] == "page_tables"
    # The interpreter's own heap counts as well: nothing tells that it has no huge pages.
    assert report["plan"]["huge_pages"] > 36
    assert before - after > 70 * MIB
    assert said["intact"]


def test_what_a_child_shares_is_left_alone_and_said(hugeheap, stranded, group):
    process = stranded(10, "fork")
    before = group.charge()
    result = hugeheap("release", process.pid)
    assert "another process maps a part of it, too" in result.stdout
    assert abs(group.charge() - before) < 2 * MIB
    enough(process.end(), 10)


def test_a_budget_is_kept(hugeheap, stranded):
    process = stranded(HUGE_PAGES)
    result = hugeheap("release", process.pid, "--budget", "0.001")
    enough(process.end(), HUGE_PAGES)
    assert result.returncode == 1
    assert "ended early" in result.stdout


def test_nothing_stranded_is_said(hugeheap, python):
    process = Target(python, "-c", "import sys; print('ready', flush=True); sys.stdin.readline(); print('{}')")
    result = hugeheap("release", process.pid)
    process.end()
    assert result.returncode == 0
    assert "0 B stranded in 0 huge pages" in result.stdout
