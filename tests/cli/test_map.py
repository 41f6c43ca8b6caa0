"""`hugeheap map` on real processes: states and reasons that are known beforehand, its picture, its time."""

import json
import os
import subprocess
import time
import xml.etree.ElementTree
from pathlib import Path

import pytest
import testbed
from targets import HEADLESS, Target, drop, ended

TARGETS = Path(__file__).parent
NOBODY = 65534
SYS_ADMIN = 21
UNIT = 2 << 20
MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
madvise = pytest.mark.skipif(not MODE.exists() or "[madvise]" not in MODE.read_text(), reason="the mode is not madvise")

# Eight units each: not advised, advised against, advised and huge, sparse. Between them nothing, so that they
# do not merge.
PARTS = """
import ctypes, mmap, sys
unit = 2 << 20
kept = []
def part(advice, filled):
    memory = mmap.mmap(-1, 9 * unit, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept.append(memory)
    first = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % unit
    if advice:
        memory.madvise(advice)
    for start in range(first, first + 8 * unit, unit):
        memory[start : start + filled] = b"\\1" * filled
    return hex(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + first)
starts = [part(0, unit), part(15, unit), part(14, unit), part(0, 8 * 4096)]
print(" ".join(starts), flush=True)
sys.stdin.readline()
print("{}")
"""


@pytest.fixture
def parts(python):
    process = Target(python, "-c", PARTS)
    yield process
    process.end()


def units(report, start):
    """State and reason of the eight units from an address on."""
    wanted = [int(start, 16) + number * UNIT for number in range(8)]
    every = {int(unit["start"], 16): unit for mapping in report["mappings"] for unit in mapping["units"]}
    return {(every[address]["state"], every[address]["why"]) for address in wanted}


@madvise
@root
def test_what_is_known_is_shown(hugeheap, parts):
    report = json.loads(hugeheap("map", parts.pid, "--json").stdout)
    plain, against, advised, sparse = parts.first.split()
    assert report["schema"] == "hugeheap.map/1"
    assert report["unseen"] == 0 and report["advice_known"] and report["broken_known"]
    assert units(report, plain) == {("dense", "not_advised")}
    assert units(report, against) == {("dense", "advised_against")}
    assert units(report, advised) <= {("huge", None), ("dense", "waiting")}
    assert units(report, sparse) == {("sparse", "not_advised")}
    maps = [line.split()[:2] for line in Path(f"/proc/{parts.pid}/maps").read_text().splitlines()]
    writable = {int(range.split("-")[0], 16): "w" in access for range, access in maps}
    told = {int(mapping["start"], 16): mapping["writable"] for mapping in report["mappings"]}
    assert told.items() <= writable.items() and {True, False} <= set(told.values())
    status = Path(f"/proc/{parts.pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024
    assert abs(report["resident"] - resident) < 0.05 * resident


def test_the_time_that_it_took_is_told_in_seconds(hugeheap, parts):
    begin = time.monotonic()
    report = json.loads(hugeheap("map", parts.pid, "--json").stdout)
    assert 0 < report["elapsed_seconds"] < time.monotonic() - begin


@madvise
@root
def test_reasons_and_what_helps_come_first(hugeheap, parts):
    result = hugeheap("map", parts.pid)
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert f"({parts.pid}):" in lines[0] and "in memory" in lines[0]
    helps = next(line for line in lines if "not advised" in line)
    assert helps.endswith(f"→ hugeheap collapse {parts.pid}, where dense")
    assert any(line.strip().startswith("▒▒▒▒▒▒▒▒") for line in lines)
    # A pipe gets no colours, and no line is wider than a terminal.
    assert "\x1b" not in result.stdout
    assert max(len(line) for line in lines if "/" not in line and "because" not in line) <= 132


# A huge page that is mapped by entries of OS pages, since one of them may be read only; and one of which half
# was given up by this process and none by its child.
MAPPED = """
import ctypes, mmap, os, sys
unit, libc, kept = 2 << 20, ctypes.CDLL(None), []
def huge():
    memory = mmap.mmap(-1, 3 * unit, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = -address % unit
    memory.madvise(14)
    memory[first : first + unit] = b"\\1" * unit
    return address + first
whole, half = huge(), huge()
assert libc.mprotect(ctypes.c_void_p(whole), 4096, mmap.PROT_READ) == 0
reader, writer = os.pipe()
child = os.fork()
if not child:
    os.close(writer); os.read(reader, 1); os._exit(0)
libc.madvise(ctypes.c_void_p(half), ctypes.c_size_t(unit // 2), 4)
print(hex(whole), hex(half), flush=True)
sys.stdin.readline()
print("{}")
"""


@root
def test_a_huge_page_of_which_nothing_is_stranded_is_not_called_broken(hugeheap, python):
    """`hugeheap release` would be the remedy, which has nothing to free there."""
    with testbed.sparse_stays():
        process = Target(python, "-c", MAPPED)
        report = json.loads(hugeheap("map", process.pid, "--json").stdout)
        plan = json.loads(hugeheap("release", "--dry-run", "--json", process.pid).stdout)["plan"]
        process.end()
    assert plan["stranded"] == plan["shared_stranded"] == 0, plan
    every = {unit["start"]: unit for mapping in report["mappings"] for unit in mapping["units"]}
    for start in process.first.split():
        assert every[start]["state"] not in ("broken", "huge"), every[start]


@root
def test_memory_of_a_pool_is_called_so_whatever_it_is_mapped_from(hugeheap, python):
    code = (
        "import ctypes, mmap, os, sys\n"
        "file = os.memfd_create('x', os.MFD_HUGETLB); os.ftruncate(file, 2 << 20)\n"
        "memory = mmap.mmap(file, 2 << 20); memory[0] = 1\n"
        "print(hex(ctypes.addressof(ctypes.c_char.from_buffer(memory))), flush=True); sys.stdin.readline(); print('{}')"
    )
    with testbed.pool(2):
        process = Target(python, "-c", code)
        report = json.loads(hugeheap("map", process.pid, "--json").stdout)
        process.end()
    (unit,) = [unit for mapping in report["mappings"] for unit in mapping["units"] if unit["start"] == process.first]
    assert unit["state"] == "hugetlb", unit


@root
def test_a_broken_huge_page_shows_with_the_right_to_see_it(hugeheap, python):
    with testbed.sparse_stays():
        process = Target(python, TARGETS / "stranded_heap.py", 8)
        report = json.loads(hugeheap("map", process.pid, "--json").stdout)
        blind = json.loads(hugeheap("map", process.pid, "--json", preexec_fn=drop(SYS_ADMIN)).stdout)
        said = process.end()
    if said["huge_pages"] < 8:
        pytest.skip("the host is short of huge pages")
    states = [unit["state"] for mapping in report["mappings"] for unit in mapping["units"]]
    assert states.count("broken") == 8
    assert report["why"]["broken"] == 8 * os.sysconf("SC_PAGE_SIZE")
    assert not blind["broken_known"] and "broken" not in blind["why"]


@root
def test_the_picture_is_drawn(hugeheap, parts, tmp_path):
    picture = tmp_path / "map.svg"
    result = hugeheap("map", parts.pid, "--svg", picture)
    assert (result.returncode, result.stdout) == (0, "")
    tree = xml.etree.ElementTree.parse(picture)
    names = [title.text for title in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert len(names) >= 24
    assert any("2.0 MiB" in name and "100 % in memory" in name for name in names)
    width = float(tree.getroot().get("width"))
    for square in tree.iter("{http://www.w3.org/2000/svg}rect"):
        if square.get("x"):
            assert float(square.get("x")) + float(square.get("width")) <= width
    result = hugeheap("map", parts.pid, "--svg", tmp_path / "none" / "map.svg")
    assert result.returncode == 2 and "map.svg" in result.stderr


def test_one_s_own_processes_need_no_privilege(hugeheap, python):
    options = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    process = Target("sh", "-c", "echo ready; read line; echo '{}'", **options)
    result = hugeheap("map", process.pid, "--json", **options)
    process.end()
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["resident"] > 0


@root
def test_another_user_s_process(hugeheap):
    process = Target("sh", "-c", "echo ready; read line; echo '{}'")
    result = hugeheap("map", process.pid, user=NOBODY, group=NOBODY, extra_groups=[])
    process.end()
    assert result.returncode == 4
    assert "CAP_SYS_PTRACE" in result.stderr and "SYS_NICE" not in result.stderr


@root
@pytest.mark.parametrize("command", [["map"], ["collapse"], ["doctor", "--pid"], ["ps"]])
def test_a_process_without_its_main_thread_is_not_said_to_have_ended(hugeheap, compiled, command):
    process = Target(compiled("headless", "-pthread", source=HEADLESS))
    process.behead()
    result = hugeheap(*command, process.pid)
    process.process.communicate("\n", timeout=60)
    assert result.returncode == 3, result.stderr
    assert "its main thread has ended, others run" in result.stderr


@root
@pytest.mark.parametrize("command", ["map", "collapse", "release"])
def test_a_process_of_another_namespace_s_proc_is_not_said_to_have_ended(program, environment, command):
    process = Target("sh", "-c", "echo ready; read line; echo '{}'")
    # With the /proc that was mounted before.
    words = ["unshare", "--pid", "--fork", program, command, str(process.pid)]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    process.end()
    if "unshare" in result.stderr and "hugeheap" not in result.stderr:
        pytest.skip(f"no PID namespace here: {result.stderr.strip()}")
    assert result.returncode == 3, result.stderr
    assert "that of another PID namespace" in result.stderr and "has ended" not in result.stderr


@root
@pytest.mark.parametrize("command", ["map", "collapse", "release"])
def test_nothing_is_said_of_the_process_that_has_the_number_in_another_namespace_s_proc(program, environment, command):
    """Small numbers are kernel threads there: a program in a container was said to be one."""
    if not Path("/proc/2").exists() or Path("/proc/2/cmdline").read_bytes():
        pytest.skip("process 2 is no kernel thread here")
    inner = f"sleep 60 & '{program}' {command} $!; status=$?; kill $!; exit $status"
    words = ["unshare", "--pid", "--fork", "sh", "-c", inner]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    if "unshare" in result.stderr and "hugeheap" not in result.stderr:
        pytest.skip(f"no PID namespace here: {result.stderr.strip()}")
    assert result.returncode == 3, result.stderr
    assert "that of another PID namespace" in result.stderr and "kernel thread" not in result.stderr


@pytest.mark.parametrize("words", [["map"], ["collapse", "--dry-run"], ["release", "--dry-run"]])
def test_a_part_of_another_proc_is_no_place_to_say_that_a_process_has_ended(hugeheap, tmp_path, words):
    result = hugeheap("--root", tmp_path, *words, 7)
    assert (result.returncode, "there is no /proc below" in result.stderr) == (3, True), result.stderr
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/status").write_text("Name:\tapp\nState:\tS (sleeping)\nVmRSS:\t100 kB\n")
    result = hugeheap("--root", tmp_path, *words, 7)
    assert (result.returncode, "app (7): not all of its files" in result.stderr) == (3, True), result.stderr
    result = hugeheap("--root", tmp_path, *words, 8)
    assert (result.returncode, "there is no process 8" in result.stderr) == (5, True), result.stderr


def test_a_process_that_is_gone(hugeheap):
    result = hugeheap("map", ended())
    assert result.returncode == 5
    assert "there is no process" in result.stderr


@root
def test_a_budget_cuts_off_and_says_so(hugeheap, python):
    code = (
        "import mmap, sys\n"
        "regions = [mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000) for _ in range(200)]\n"
        "for region in regions:\n"
        "    for start in range(0, 64 << 30, 1 << 30): region[start] = 1\n"
        "print('ready', flush=True); sys.stdin.readline(); print('{}')"
    )
    process = Target(python, "-c", code)
    result = hugeheap("map", process.pid, "--budget", "0.005")
    process.end()
    assert result.returncode == 0
    assert "not looked at in time; raise --budget" in result.stdout


def test_nonsense_is_refused(hugeheap):
    for arguments in (["0"], ["x"], ["1", "--rows", "0"], ["1", "--budget", "-1"], []):
        assert hugeheap("map", *arguments).returncode == 2, arguments


@root
def test_an_early_closed_pipe_is_no_error(program, environment, parts):
    result = subprocess.run(
        ["sh", "-c", f"'{program}' map {parts.pid} | head -1; echo done"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.stdout.splitlines()[-1] == "done" and result.stderr == ""
