"""What a memory cgroup is charged for and nobody maps: `hugeheap ps --cgroups` and `status`, of roots of either version and here."""

import json
import os
import time
from pathlib import Path

import pytest
import testbed
from fakehost import Host
from targets import Target, ended

TARGETS = Path(__file__).parent
MIB = 1 << 20
HEADS = ["PROCESSES", "CHARGE", "LIMIT", "MAPPED", "HUGE", "FILES", "KERNEL", "STRANDED", "CGROUP"]
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def process(host, number, group):
    host.write(
        f"proc/{number}/status",
        f"Name:\tapp\nState:\tS (sleeping)\nTgid:\t{number}\nPPid:\t1\nUid:\t0\t0\t0\t0\nVmRSS:\t 2048 kB\nRssAnon:\t 1024 kB",
    )
    host.write(f"proc/{number}/cgroup", group)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "host")


@pytest.fixture
def groups(hugeheap, host):
    def groups(*arguments):
        result = hugeheap("--root", host.root, "ps", "--cgroups", "--json", *arguments)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout)
        assert report["schema"] == "hugeheap.cgroups/1"
        return report["cgroups"]

    return groups


def test_version_2(hugeheap, host, groups):
    for number, group in ((7, "/web"), (8, "/web"), (9, "/batch")):
        process(host, number, f"0::{group}")
    host.write("sys/fs/cgroup/web/memory.current", 600 * MIB)
    host.write("sys/fs/cgroup/web/memory.max", 1 << 30)
    host.write(
        "sys/fs/cgroup/web/memory.stat",
        f"anon {14 * MIB}\nfile {4 * MIB}\nkernel {2 * MIB}\nsock 0\nanon_thp {6 * MIB}\nfile_thp {2 * MIB}",
    )
    host.write("sys/fs/cgroup/batch/memory.current", 700 * MIB)
    host.write("sys/fs/cgroup/batch/memory.stat", f"anon {700 * MIB}\nfile 0\nkernel 0")
    first, second = groups()
    assert (first["path"], first["stranded"], first["limit"]) == ("/batch", 0, None)
    assert (second["path"], second["processes"], second["limit"]) == ("/web", 2, 1 << 30)
    assert (second["stranded"], second["stranded_from"]) == (580 * MIB, "charge_minus_statistics")
    assert (second["mapped"], second["files"], second["kernel"], second["huge"]) == tuple(
        count * MIB for count in (14, 4, 2, 8)
    )
    assert groups("--sort", "stranded", "-n", "1")[0]["path"] == "/web"
    assert groups("--sort", "huge", "-n", "1")[0]["path"] == "/web"
    assert [group["processes"] for group in groups("8")] == [1]
    result = hugeheap("--root", host.root, "ps", "--cgroups")
    heads, *lines = result.stdout.splitlines()
    assert heads.split() == HEADS
    assert lines[1].split() == "2 600 MiB 1.0 GiB 14.0 MiB 8.0 MiB 4.0 MiB 2.0 MiB 580 MiB /web".split()
    # The lower limit is where the group is slowed down; the one it is ended at is told where both are there.
    host.write("sys/fs/cgroup/web/memory.high", 1 << 29)
    assert groups("7")[0]["limit"] == 1 << 30


def test_version_1(host, groups):
    process(host, 7, "4:cpu,memory:/web\n0::/")
    host.write(
        "proc/self/mountinfo",
        "35 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n24 1 0:22 / /sys rw - sysfs sysfs rw",
    )
    directory = "sys/fs/cgroup/memory/web"
    host.write(f"{directory}/memory.usage_in_bytes", 220 * MIB)
    host.write(f"{directory}/memory.limit_in_bytes", 9223372036854771712)
    host.write(f"{directory}/memory.kmem.usage_in_bytes", 1 * MIB)
    host.write(
        f"{directory}/memory.stat",
        f"rss 5\nhierarchical_memory_limit 9223372036854771712\ntotal_cache {2 * MIB}\ntotal_rss {26 * MIB}\ntotal_rss_huge 0",
    )
    (group,) = groups()
    assert (group["version"], group["charge"], group["limit"]) == ("v1", 220 * MIB, None)
    assert group["stranded"] == 191 * MIB


def test_what_cannot_be_seen_is_said(hugeheap, host):
    process(host, 7, "0::/../elsewhere")
    process(host, 8, "0::/web")
    host.write("sys/fs/cgroup/web/memory.current", 600 * MIB)
    result = hugeheap("--root", host.root, "ps", "--cgroups")
    assert result.returncode == 0
    assert "the memory cgroup of 1 process cannot be seen from here" in result.stderr
    assert "–" in result.stdout, "a group without statistics has no figure for what is stranded"
    result = hugeheap("--root", host.root, "ps", "--cgroups", "--sort", "eligible")
    assert result.returncode == 2 and "rss (their charge), huge or stranded" in result.stderr
    result = hugeheap("ps", "--cgroups", ended())
    assert result.returncode == 5


def test_status_tells_it_of_its_own_group(hugeheap, host):
    host.write("sys/fs/cgroup/memory.current", 600 * MIB)
    host.write("sys/fs/cgroup/memory.stat", f"anon {100 * MIB}\nfile 0\nkernel 0")
    text = hugeheap("--root", host.root, "status").stdout
    assert "charge 600 MiB, 500 MiB of it stranded, no limit (v2)" in text
    assert json.loads(hugeheap("--root", host.root, "status", "--json").stdout)["cgroup"]["stranded"] == 500 * MIB


@pytest.fixture
def here():
    """A memory cgroup of its own for the processes that are started in it."""
    for directory in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = directory / f"hugeheap-test-{os.getpid()}"
        if not (directory / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if any((group / name).exists() for name in ("memory.current", "memory.usage_in_bytes")):
                yield group
                return
        finally:
            end = time.monotonic() + 60
            while group.exists() and time.monotonic() < end:
                try:
                    group.rmdir()
                except OSError:
                    time.sleep(0.05)
    pytest.skip("no memory cgroup can be made here")


@root
def test_a_process_with_stranded_memory(hugeheap, python, here):
    def enter():
        (here / "cgroup.procs").write_text(str(os.getpid()))

    with testbed.sparse_stays():
        process = Target(python, TARGETS / "stranded_heap.py", 50, preexec_fn=enter)
        try:
            report = json.loads(hugeheap("ps", "--cgroups", "--json", process.pid).stdout)
            line = json.loads(hugeheap("ps", "--json", "--budget", "20", process.pid).stdout)["processes"][0]
        finally:
            said = process.end()
    if said["huge_pages"] < 48 or not line["stranded"]:
        pytest.skip("the host is short of huge pages, or what is stranded cannot be seen")
    (group,) = report["cgroups"]
    assert group["processes"] == 1
    # The process's own physical pages say the same.
    assert group["stranded"] == pytest.approx(line["stranded"], abs=20 * MIB)
