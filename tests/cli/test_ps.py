"""`hugeheap ps` on real processes: what each line says, dashes and notes where something cannot be read, its budget."""

import json
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
import testbed
from fakehost import THP, Host
from targets import Target, drop, ended, kernel_thread

TARGETS = Path(__file__).parent
NOBODY = 65534
SYS_ADMIN = 21
MIB = 1 << 20
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

WAIT = "print('ready', flush=True); import sys; sys.stdin.readline(); print('{}')"
# 16 huge pages, if the host has them, in memory that is advised.
HUGE = (
    "import mmap\n"
    "memory = mmap.mmap(-1, 34 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
    "memory.madvise(14)\n"
    "memory[:] = bytes(34 << 20).replace(b'\\0', b'\\1')\n" + WAIT
)
SWITCH_OFF = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n"
    "reader, writer = os.pipe()\n"
    "child = os.fork()\n"
    "if not child: os.close(writer); os.read(reader, 1); os._exit(0)\n"
    "print(child, flush=True); sys.stdin.readline(); print('{}')"
)


def listed(hugeheap, *arguments, **options):
    result = hugeheap("ps", "--json", "--budget", "20", *arguments, **options)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["schema"] == "hugeheap.ps/1"
    return {process["id"]: process for process in report["processes"]}


def smaps(pid):
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    return fields


@root
def test_a_line_says_what_the_kernel_says(hugeheap, python):
    process = Target(python, "-c", HUGE)
    line = listed(hugeheap, process.pid)[process.pid]
    kernel = smaps(process.pid)
    process.end()
    assert line["huge"] == kernel["AnonHugePages"]
    assert abs(line["resident"] - kernel["Rss"]) < 2 * MIB
    assert line["coverage"] == pytest.approx(kernel["AnonHugePages"] / kernel["Rss"], abs=0.05)
    assert line["thp"] == "on" or line["thp"] == "off_on_host"
    assert line["unread"] is None


@root
def test_what_is_stranded_shows_with_its_source(hugeheap, python):
    with testbed.sparse_stays():
        process = Target(python, TARGETS / "stranded_heap.py", 20)
        line = listed(hugeheap, process.pid)[process.pid]
        blind = listed(hugeheap, process.pid, preexec_fn=drop(SYS_ADMIN))[process.pid]
        said = process.end()
    if said["huge_pages"] < 18:
        pytest.skip("the host is short of huge pages")
    assert line["stranded_from"] == "folios"
    assert 35 * MIB < line["stranded"] <= 40 * MIB
    assert blind["stranded"] is None and blind["stranded_from"] is None


def test_who_switched_huge_pages_off_is_said(hugeheap, python):
    process = Target(python, "-c", SWITCH_OFF)
    child = int(process.first)
    lines = listed(hugeheap, process.pid, child)
    text = hugeheap("ps", process.pid, child).stdout
    process.end()
    assert lines[process.pid]["thp"] == "off_by_itself"
    assert (lines[child]["thp"], lines[child]["thp_inherited_from"]) == ("off_inherited", process.pid)
    assert f"off: inherited from {process.pid}" in text


def test_a_name_is_as_the_process_set_it(hugeheap, python):
    """The kernel escapes it, so that a backslash was two, and the name of no process that anybody looked for."""
    name = "a\\b\nc"
    process = Target(python, "-c", f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r})\n" + WAIT)
    line = listed(hugeheap, process.pid)[process.pid]
    text = hugeheap("ps", process.pid).stdout
    metrics = hugeheap("export", "--once", "--process", process.pid).stdout
    process.end()
    assert line["name"] == name
    assert len(text.splitlines()) == 2 and text.splitlines()[1].endswith("a\\b?c")
    assert 'name="a\\\\b\\nc"' in metrics, metrics


def test_the_list_is_sorted_and_cut(hugeheap):
    result = hugeheap("ps", "-n", "3")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["PID", "USER", "RSS", "HUGE", "COVERAGE", "ELIGIBLE", "STRANDED", "THP", "NAME"]
    assert len(lines) == 4
    report = json.loads(hugeheap("ps", "--json", "-n", "5").stdout)
    sizes = [process["resident"] for process in report["processes"]]
    assert sizes == sorted(sizes, reverse=True)
    # Of these three, whatever else there is: the command, this one, and what started it.
    three = [*{1, os.getpid(), os.getppid()}]
    named = json.loads(hugeheap("ps", "--json", "-n", "1", *three).stdout)
    assert (len(named["processes"]), named["processes_in_all"]) == (1, len(three))
    numbers = [process["id"] for process in json.loads(hugeheap("ps", "--json", "--sort", "pid").stdout)["processes"]]
    assert numbers == sorted(numbers)


@root
def test_other_users_processes_have_dashes_and_a_note(hugeheap, python):
    process = Target(python, "-c", WAIT)
    options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    line = listed(hugeheap, process.pid, **options)[process.pid]
    result = hugeheap("ps", process.pid, **options)
    process.end()
    assert line["unread"] == "permission" and line["huge"] is None and line["resident"] > 0
    assert "–" in result.stdout and "CAP_SYS_PTRACE" in result.stderr
    assert hugeheap("ps", "-q", process.pid, **options).returncode == 5


def test_without_time_only_what_is_cheap_is_read(hugeheap, python):
    # An OS page in each of 8,192 page tables: a look at them takes longer than a millisecond anywhere.
    scattered = (
        "import mmap\n"
        "memory = mmap.mmap(-1, 16 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\n"
        "memory.madvise(15)\n"
        "for start in range(0, 16 << 30, 2 << 20): memory[start] = 1\n"
    )
    process = Target(python, "-c", scattered + WAIT)
    result = hugeheap("ps", process.pid, "--budget", "0.001", "--json")
    process.end()
    line = json.loads(result.stdout)["processes"][0]
    assert line["resident"] > 0
    assert line["huge"] is None and line["unread"] == "budget"
    assert "raise --budget" in result.stderr


def test_a_process_of_many_mappings_does_not_hold_up_the_others(hugeheap, python):
    """Its page tables are small, so that it does not show beforehand: it took all of the budget, and the others had dashes."""
    many = (
        "import ctypes, mmap\n"
        "memory = mmap.mmap(-1, 60_000 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "memory.madvise(15)\n"
        "begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
        "for page in range(0, 60_000, 2): ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin + page * 4096), 4096, 0)\n"
        # Larger than the other one, and so its turn comes first.
        "held = bytes(32 << 20).replace(b'\\0', b'\\1')\n"
    )
    crowd, other = Target(python, "-c", many + WAIT), Target(python, "-c", WAIT)
    seen = set()
    # How much a host reads in a time is its own matter: in one of these, not all of the first, and all of the second.
    for budget in [0.02, 0.05, 0.1, 0.2, 0.4] * 4:
        result = hugeheap("ps", crowd.pid, other.pid, "--budget", budget, "--json")
        lines = {line["id"]: line["unread"] for line in json.loads(result.stdout)["processes"]}
        seen.add((lines[crowd.pid], lines[other.pid]))
    crowd.end(), other.end()
    assert ("budget", None) in seen, seen


def test_a_process_that_is_gone(hugeheap):
    result = hugeheap("ps", ended())
    assert result.returncode == 5
    assert "there is no process" in result.stderr


def test_another_root_is_read(hugeheap, tmp_path):
    directory = tmp_path / "proc/77"
    directory.mkdir(parents=True)
    (directory / "status").write_text(
        "Name:\tghost\nState:\tS (sleeping)\nTgid:\t77\nPPid:\t1\nUid:\t5\t5\t5\t5\nVmRSS:\t  2048 kB\nTHP_enabled:\t1\n"
    )
    (directory / "smaps").write_text(
        "10000000-10400000 rw-p 00000000 00:00 0\nRss: 2048 kB\nAnonymous: 2048 kB\nAnonHugePages: 0 kB\nTHPeligible: 1\n"
        "VmFlags: rd wr hg\n"
    )
    result = hugeheap("--root", tmp_path, "ps", "--json")
    assert result.returncode == 0
    (line,) = json.loads(result.stdout)["processes"]
    assert (line["id"], line["name"], line["user"]) == (77, "ghost", 5)
    assert (line["resident"], line["eligible"], line["coverage"]) == (2 * MIB, 2 * MIB, 0.0)
    # A capability was named, which does not help there.
    assert "stranded in a process does not show with --root" in result.stderr and "CAP_" not in result.stderr
    # Garbage is not a number.
    (directory / "smaps").write_text("garbage\n")
    result = hugeheap("--root", tmp_path, "ps", "--json")
    (line,) = json.loads(result.stdout)["processes"]
    assert line["huge"] is None and line["unread"] == "failed"
    assert "could not be read" in result.stderr
    (directory / "smaps").unlink()
    (line,) = json.loads(hugeheap("--root", tmp_path, "ps", "--json").stdout)["processes"]
    assert line["unread"] == "failed"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert hugeheap("--root", empty, "ps").returncode == 3


def test_what_would_take_the_time_of_all_others_is_not_begun(hugeheap, tmp_path):
    """How long smaps takes shows in the size of the page tables; while the kernel writes it nothing can be stopped."""
    for pid, tables in ((77, 400 << 10), (78, 8)):
        directory = tmp_path / f"proc/{pid}"
        directory.mkdir(parents=True)
        (directory / "status").write_text(
            f"Name:\tghost\nState:\tS (sleeping)\nTgid:\t{pid}\nVmRSS:\t  2048 kB\nVmPTE:\t{tables} kB\nHugetlbPages:\t 4096 kB\nTHP_enabled:\t1\n"
        )
        (directory / "smaps").write_text("10000000-10400000 rw-p 00000000 00:00 0\nRss: 2048 kB\nAnonHugePages: 0 kB\nVmFlags: rd wr hg\n")

    def lines(budget):
        result = hugeheap("--root", tmp_path, "ps", "--json", "--budget", budget)
        return {line["id"]: line for line in json.loads(result.stdout)["processes"]}

    # Four seconds, of which half a second and three may be taken.
    assert [lines(budget)[77]["unread"] for budget in (1, 6)] == ["budget"] * 2
    assert lines(1)[78]["unread"] is None and lines(20)[77]["unread"] is None
    assert lines(1)[78]["resident"] == 6 * MIB, "pages of a pool are not in VmRSS"


def test_nobody_has_anything_stranded_where_the_host_has_nothing(hugeheap, tmp_path):
    """Which every user can see, and costs nothing."""
    host = Host(tmp_path / "host")
    host.write("proc/77/status", "Name:\tghost\nState:\tS (sleeping)\nTgid:\t77\nVmRSS:\t  2048 kB\nTHP_enabled:\t1")
    for count, known in ((2, (None, None)), (0, (0, "host_counter"))):
        host.write(f"{THP}/hugepages-2048kB/stats/nr_anon_partially_mapped", count)
        result = hugeheap("--root", host.root, "ps", "--json")
        (line,) = json.loads(result.stdout)["processes"]
        assert (line["stranded"], line["stranded_from"]) == known
        assert ("stranded in a process does not show" in result.stderr) == (count > 0)


@root
def test_what_is_stranded_in_memory_that_a_child_shares_is_counted(hugeheap, python):
    with testbed.sparse_stays():
        process = Target(python, TARGETS / "stranded_heap.py", 20, "fork")
        line = listed(hugeheap, process.pid)[process.pid]
        plan = json.loads(hugeheap("release", "--dry-run", "--json", process.pid).stdout)["plan"]
        metrics = hugeheap("export", "--once", "--budget", "20", "--process", process.pid).stdout
        said = process.end()
    if said["huge_pages"] < 18:
        pytest.skip("the host is short of huge pages")
    (exported,) = re.findall(r"^hugeheap_process_stranded_bytes\{.*\} (\S+)$", metrics, re.M)
    assert float(exported) == line["stranded"]
    assert plan["shared_stranded"] > 30 * MIB
    assert line["stranded"] == plan["stranded"] + plan["shared_stranded"]


def test_nonsense_is_refused(hugeheap):
    for arguments in (["x"], ["0"], ["--sort", "luck"], ["-n", "many"], ["--budget", "0"]):
        assert hugeheap("ps", *arguments).returncode == 2, arguments


def test_many_processes_are_listed_within_the_budget(hugeheap):
    """All of 300 are there, whatever was read of them; how long it takes is measured by hand (see the reference)."""
    many = [subprocess.Popen(["sleep", "60"]) for _ in range(300)]
    try:
        report = json.loads(hugeheap("ps", "--json").stdout)
    finally:
        for process in many:
            process.kill()
        for process in many:
            process.wait()
    assert {process.pid for process in many} <= {process["id"] for process in report["processes"]}


def test_a_name_does_nothing_to_the_terminal(hugeheap, python):
    named = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\x1b[2J\\x9bx\\x7f', 0, 0, 0);"
    target = Target(python, "-c", named + WAIT)
    try:
        for words in ("ps", "map", "collapse --dry-run", "release --dry-run", "doctor --pid", "top --batch 1"):
            result = hugeheap(*words.split(), target.pid)
            said = result.stdout + result.stderr
            assert "?[2J" in said, (words, said)
            assert not any(ord(character) in (0x1B, 0x7F, 0x9B) for character in said), (words, said)
        assert listed(hugeheap, target.pid)[target.pid]["name"].startswith("\x1b[2J")
    finally:
        target.end()


@root
def test_what_was_named_and_has_no_line_is_told_as_by_map(hugeheap, python):
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        for number, code in ((zombie.pid, 5), (kernel_thread(), 3), (thread.native_id, 2), (ended(), 5)):
            if number is not None:
                said = hugeheap("map", number).stderr
                for words in (["ps"], ["ps", "--cgroups"], ["top", "--batch", "1"]):
                    result = hugeheap(*words, number)
                    assert (result.returncode, result.stderr) == (code, said), (words, number, result.stderr)
    finally:
        stop.set()
        zombie.wait()


@pytest.mark.parametrize("words", ["ps", "ps --cgroups", "top --batch 1", "export --once"])
def test_without_proc_there_is_no_list(hugeheap, tmp_path, words):
    """An empty directory is where /proc would be mounted."""
    for there in (False, True):
        (tmp_path / "bare" / ("proc" if there else "sys")).mkdir(parents=True)
        result = hugeheap("--root", tmp_path / "bare", *words.split())
        assert (result.returncode, result.stdout) == (3, ""), words
        assert "no list of processes" in result.stderr
