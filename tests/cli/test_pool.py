"""`hugeheap pool`: the pools of a directory that plays a host, and small ones of the running kernel, put back."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import testbed
from fakehost import GIB, NODE_POOLS, POOLS, Host, meminfo, no_room_for_more

POOL = f"{POOLS}/hugepages-2048kB/nr_hugepages"
LARGE = f"{POOLS}/hugepages-1048576kB/nr_hugepages"
OVERCOMMIT = f"{POOLS}/hugepages-2048kB/nr_overcommit_hugepages"
SYSCTL = "etc/sysctl.d/90-hugeheap-pool.conf"
TMPFILES = "etc/tmpfiles.d/hugeheap-pool.conf"


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "host")


@pytest.fixture
def pool(hugeheap, host):
    return lambda *arguments, **options: hugeheap("--root", host.root, "pool", *arguments, **options)


def undo(program, result):
    """Runs the undo line that a command printed."""
    lines = [line.removeprefix("undo: ") for line in result.stdout.splitlines() if line.startswith("undo: ")]
    assert len(lines) == 1, result.stdout
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", lines[0]], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- list ---


def test_pools_are_listed_by_size_and_node(pool, host):
    host.pool("2048kB", total=100, free=40, reserved=10, surplus=3, overcommit=5)
    host.node(1)
    host.pool("2048kB", total=60, free=40, node=0)
    host.pool("2048kB", total=40, free=0, node=1)
    host.pool("1048576kB", node=1)
    lines = pool("list").stdout.splitlines()
    assert lines[0].split() == ["size", "node", "pages", "memory", "used", "reserved", "free", "surplus", "overcommit"]
    assert lines[1].split() == ["2M", "all", "100", "200", "MiB", "60", "10", "30", "3", "5", "default", "size"]
    assert lines[2].split()[:6] == ["2M", "0", "60", "120", "MiB", "20"]
    assert lines[3].split()[:6] == ["2M", "1", "40", "80.0", "MiB", "40"]
    assert [line.split()[0] for line in lines[4:]] == ["1G", "1G", "1G"]
    document = json.loads(pool("list", "--json").stdout)
    assert document["schema"] == "hugeheap.pools/1"
    small = document["pools"][0]
    assert (small["total"], small["free"], small["default"]) == (100, 30, True)
    assert [node["node"] for node in small["nodes"]] == [0, 1]


def test_a_kernel_without_pools_says_so(pool, host):
    host.remove(POOLS)
    for arguments in (["list"], ["set", "1"]):
        result = pool(*arguments)
        assert result.returncode == 3
        assert "no pools of huge pages" in result.stderr


# --- set ---


def test_a_pool_is_set_and_undone(pool, host, program):
    result = pool("set", "512M", "--overcommit", "7")
    assert result.returncode == 0 and result.stderr == ""
    assert "pages of 2M  0 → 256" in result.stdout and "taken from the host: 512 MiB" in result.stdout
    assert (host.read(POOL), host.read(OVERCOMMIT)) == ("256", "7")
    undo(program, result)
    assert (host.read(POOL), host.read(OVERCOMMIT)) == ("0", "0")


def test_other_sizes_and_single_nodes(pool, host, program):
    result = pool("set", "--size", "1G", "2", "--node", "0")
    assert result.returncode == 0, result.stderr
    assert "pages of 1G on node 0  0 → 2" in result.stdout
    file = f"{NODE_POOLS.format(0)}/hugepages-1048576kB/nr_hugepages"
    assert (host.read(file), host.read(LARGE), host.read(POOL)) == ("2", "0", "0")
    undo(program, result)
    assert host.read(file) == "0"


def test_only_the_overcommit(pool, host):
    host.pool("2048kB", total=5)
    result = pool("set", "--overcommit", "30")
    assert result.returncode == 0
    assert (host.read(POOL), host.read(OVERCOMMIT)) == ("5", "30")
    assert "pages of" not in result.stdout


def test_a_half_met_request_says_what_was_got(pool, host):
    """Here memory is the limit that hugeheap keeps; what the kernel does not find ends in the same way."""
    host.write("proc/meminfo", meminfo(total=16 * GIB, available=1 * GIB))
    result = pool("set", "1000")
    keep = 16 * GIB // 20
    got = (GIB - keep) // (2 << 20)
    assert result.returncode == 1
    assert host.read(POOL) == str(got)
    assert f"got {got} of 1,000 pages of 2M" in result.stderr and "--keep-free" in result.stderr
    assert f"→ {got}" in result.stdout and "undo: " in result.stdout
    document = json.loads(pool("set", "1000", "--json").stdout)
    assert document["schema"] == "hugeheap.pool-set/1"
    assert (document["wanted"], document["met"]) == (1000, False)
    assert document["got"] == int(host.read(POOL))


def test_what_is_kept_free_can_be_chosen(pool, host):
    host.write("proc/meminfo", meminfo(total=16 * GIB, available=1 * GIB))
    assert pool("set", "512", "--keep-free", "0").returncode == 0
    assert host.read(POOL) == "512"


def test_a_dry_run_writes_nothing(pool, host):
    result = pool("set", "16", "--overcommit", "2", "--persist", "--compact", "--dry-run")
    assert result.returncode == 0
    assert "0 → 16" in result.stdout and "dry run" in result.stdout
    assert (host.read(POOL), host.read(OVERCOMMIT), host.read("proc/sys/vm/compact_memory")) == ("0", "0", "0")
    assert not host.path(SYSCTL).exists()


def test_memory_is_compacted_when_asked(pool, host):
    assert pool("set", "16").returncode == 0
    assert host.read("proc/sys/vm/compact_memory") == "0"
    assert pool("set", "17", "--compact").returncode == 0
    assert host.read("proc/sys/vm/compact_memory") == "1"


@pytest.mark.parametrize("command", [["set", "20"], ["ensure", "20"]])
def test_the_default_pool_is_kept_by_a_sysctl(pool, host, program, command):
    result = pool(*command, "--persist")
    assert result.returncode == 0, result.stderr
    assert "vm.nr_hugepages = 20" in host.read(SYSCTL).splitlines()
    checked = subprocess.run(["sysctl", "--dry-run", "-p", host.path(SYSCTL)], capture_output=True, text=True, check=False)
    if checked.returncode == 0:
        assert checked.stdout == "vm.nr_hugepages = 20\n"
    undo(program, result)
    assert not host.path(SYSCTL).exists() and host.read(POOL) == "0"


def test_other_pools_are_kept_by_tmpfiles(pool, host, program):
    first = pool("set", "--size", "1G", "1", "--persist")
    assert first.returncode == 0, first.stderr
    line = "w /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages - - - - {}"
    assert line.format(1) in host.read(TMPFILES).splitlines()
    second = pool("set", "--size", "1G", "3", "--persist")
    assert line.format(3) in host.read(TMPFILES).splitlines()
    undo(program, second)
    assert line.format(1) in host.read(TMPFILES).splitlines()
    undo(program, first)
    assert not host.path(TMPFILES).exists()
    assert pool("set", "--size", "1G", "--overcommit", "4", "--persist").returncode == 0
    assert host.read(TMPFILES).splitlines()[1:] == [line.replace("nr_hugepages", "nr_overcommit_hugepages").format(4)]


def test_what_cannot_be_persisted_is_not_done(pool, host):
    host.write("etc/sysctl.d", "")
    result = pool("set", "20", "--overcommit", "4", "--persist")
    assert result.returncode != 0 and "--persist failed: Not a directory" in result.stderr
    assert (host.read(POOL), host.read(OVERCOMMIT)) == ("0", "0")


def test_when_its_file_cannot_be_written_size_and_overcommit_are_put_back(pool, host):
    """What is known before anything is written is another case: where nothing was put back after it, no test failed."""
    host.pool("2048kB", total=5)
    result = pool("set", "20", "--overcommit", "4", "--persist", preexec_fn=no_room_for_more)
    assert result.returncode == 3 and "--persist failed: File too large" in result.stderr, result.stderr
    assert result.stderr.endswith("; nothing is changed\n")
    assert (host.read(POOL), host.read(OVERCOMMIT)) == ("5", "0")
    assert not host.path(SYSCTL).exists()


# --- ensure and release ---


def test_ensure_adds_only_what_is_missing(pool, host):
    host.pool("2048kB", total=100, free=30, reserved=10)
    result = pool("ensure", "20")
    assert result.returncode == 0 and "100 already" in result.stdout and "undo" not in result.stdout
    assert "100 → 105" in pool("ensure", "25").stdout
    assert host.read(POOL) == "105"


def test_release_keeps_what_is_used_or_reserved(pool, host, program):
    host.pool("2048kB", total=100, free=30, reserved=10)
    result = pool("release")
    assert result.returncode == 0
    assert host.read(POOL) == "80"
    undo(program, result)
    assert host.read(POOL) == "100"


def test_the_guide_shows_the_undo_line_of_a_release(pool, host):
    host.pool("2048kB", total=256, free=256)
    printed = pool("release").stdout
    assert printed.endswith("pool set 256 --keep-free 0\n"), printed
    guide = Path(__file__).parents[2] / "docs/guides/operator.md"
    assert "pages of 2M  256 → 0\nundo: hugeheap pool set 256 --keep-free 0\n" in guide.read_text()


# --- bad input ---


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["set"], 2, "COUNT"),
        (["set", "many"], 2, "not a number of pages"),
        (["set", "--", "-5"], 2, "not a number of pages"),
        (["set", "100000"], 2, "this host has 16.0 GiB; ask for less"),
        (["set", "18446744073709551615"], 2, "ask for less"),
        (["set", "--size", "3M", "1"], 2, "not a page size"),
        (["set", "--size", "16M", "1"], 3, "no pool of 16M pages; it has 2M, 1G"),
        (["set", "--node", "7", "1"], 3, "no NUMA node 7"),
        (["set", "--node", "0", "--overcommit", "1"], 2, "cannot be used with"),
        (["ensure"], 2, "COUNT"),
        (["release", "5"], 2, "unexpected"),
    ],
)
def test_what_makes_no_sense_changes_nothing(pool, host, arguments, code, says):
    result = pool(*arguments)
    assert result.returncode == code
    assert says in result.stderr
    assert host.read(POOL) == "0"


def test_without_permission_it_says_what_is_needed(program, environment):
    testbed.need_root()
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount --bind /sys /sys && mount -o remount,ro,bind /sys && exec \"$@\"", "sh",
         program, "pool", "set", "1", "--overcommit", "1"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip(f"no mount namespace here: {result.stderr.strip()}")
    assert result.returncode == 4
    assert "read-only" in result.stderr and "nothing was changed" in result.stderr


# --- the running kernel ---


@pytest.fixture
def kernel():
    """A pool of our own for the test: none at its beginning, and what was there at its end."""
    with testbed.knob(testbed.POOL, 0):
        yield lambda: int(Path(testbed.POOL).read_text())


def test_the_kernel_gives_pages_and_takes_them_back(hugeheap, kernel, program):
    first = hugeheap("pool", "set", "2")
    if first.returncode == 1:
        pytest.skip(f"memory is fragmented: {first.stderr}")
    assert first.returncode == 0 and kernel() == 2
    assert hugeheap("pool", "ensure", "4").returncode == 0
    assert kernel() == 4
    assert hugeheap("pool", "ensure", "3").stdout == "pages of 2M  4 already\n"
    assert hugeheap("pool", "release").returncode == 0
    assert kernel() == 0
    hugeheap("pool", "set", "2")
    undo(program, first)
    assert kernel() == 0


HOLDER = """
import ctypes, mmap, sys
MAP_HUGETLB = 0x40000
held = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
held[0] = 1  # One page used, one reserved.
print("ready", flush=True)
sys.stdin.read()
"""


def test_pages_in_use_are_kept_by_release_and_told_by_set(hugeheap, kernel, python):
    if hugeheap("pool", "set", "4").returncode:
        pytest.skip("memory is fragmented")
    holder = subprocess.Popen([python, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "ready\n"
        row = json.loads(hugeheap("pool", "list", "--json").stdout)["pools"][0]
        assert (row["total"], row["unused"], row["reserved"], row["free"]) == (4, 3, 1, 2)
        assert hugeheap("pool", "release").returncode == 0
        assert kernel() == 2
        result = hugeheap("pool", "set", "0")
        assert result.returncode == 0
        assert "2 pages in use stay until their programs end" in result.stderr
    finally:
        holder.communicate()
    assert kernel() == 0
