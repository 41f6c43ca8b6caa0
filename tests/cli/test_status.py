"""`hugeheap status`: of a directory that plays a host, line by line, and of this host, against the kernel's files."""

import json
from pathlib import Path

import pytest
from fakehost import GIB, THP, Host, buddyinfo, meminfo


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "host")


@pytest.fixture
def lines(hugeheap, host):
    """The lines of the status by their names."""

    def lines():
        result = hugeheap("--root", host.root, "status")
        assert (result.returncode, result.stderr) == (0, "")
        return {line[:15].strip(): line[15:] for line in result.stdout.splitlines()}

    return lines


@pytest.fixture
def data(hugeheap, host):
    return lambda: json.loads(hugeheap("--root", host.root, "status", "--json").stdout)


def test_a_healthy_host_at_a_glance(lines):
    said = lines()
    assert said["host"] == "Linux 6.18.0-test, Test CPU, huge page 2M"
    assert said["memory"].startswith("16.0 GiB, 12.0 GiB available, 8.0 MiB of page tables; 0.0 %")
    assert said["THP"] == "mode madvise, defrag madvise; khugepaged looks at 1.6 MiB/s and fills up to 64 absent OS pages"
    assert said["on huge pages"] == "24.0 MiB of 1.0 GiB anonymous memory (2 %)"
    assert said["stranded"] == "at most 4.0 MiB, in 2 huge pages mapped only in part"
    assert said["hugetlb pools"] == "none"
    assert said["since boot"] == "1,000 huge pages at a fault (10 faults found none, 1.0 %), 7 collapsed, 5 split"
    assert said["this cgroup"] == "charge 1.0 GiB, no limit (v2)"


def test_free_memory_in_one_piece(lines, data, host):
    host.write("proc/buddyinfo", buddyinfo(256, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2) + buddyinfo(256, node=1))
    assert lines()["free"] == "12.0 MiB, of it 10.0 MiB (83 %) in one piece of a huge page or more"
    assert data()["free"] == {"total": 12 << 20, "in_huge_pages": 10 << 20}


def test_smaller_sizes_and_pools_are_told_when_there_are_some(lines, data, host):
    host.write(f"{THP}/hugepages-64kB/stats/nr_anon", 1234)
    host.pool("2048kB", total=10, free=4)
    host.write("proc/meminfo", meminfo() + "ShmemHugePagesX: 5 kB\nHugetlb: 1 kB\n")
    said = lines()
    assert said["on huge pages"].endswith("; 1,234 pages of 64K")
    assert said["hugetlb pools"] == "10 pages of 2M (20.0 MiB), 4 free"
    assert data()["pools"][0]["total"] == 10


def test_stranded_memory_is_the_most_it_can_be(lines, data, host):
    assert data()["stranded_at_most"] == 2 * (2 << 20)
    host.write(f"{THP}/hugepages-64kB/stats/nr_anon_partially_mapped", 10)
    assert data()["stranded_at_most"] == 2 * (2 << 20) + 10 * (64 << 10)
    for size in (64, 2048):
        host.write(f"{THP}/hugepages-{size}kB/stats/nr_anon_partially_mapped", 0)
    assert lines()["stranded"] == "nothing"
    for size in (64, 2048):
        host.remove(f"{THP}/hugepages-{size}kB/stats")
    assert "stranded" not in lines() and data()["stranded_at_most"] is None, "a kernel that does not count says nothing"


def test_limits_of_the_cgroup(lines, host):
    host.write("sys/fs/cgroup/memory.max", 2 * GIB)
    assert lines()["this cgroup"] == "charge 1.0 GiB, limit 2.0 GiB (v2)"
    host.remove("proc/self/mountinfo")
    assert "not known: " in lines()["this cgroup"]


def test_a_bare_host_has_a_status_too(lines, data, host):
    for name in (THP, "proc/vmstat", "proc/buddyinfo", "proc/pressure", "proc/cpuinfo", "sys/kernel/mm/hugepages"):
        host.remove(name)
    said = lines()
    assert said["host"].endswith("no huge pages")
    assert said["THP"].startswith("not readable: ")
    assert said["since boot"] == "not counted by this kernel"
    assert data()["huge_page"] is None


def test_a_root_without_proc_is_an_error(hugeheap, tmp_path):
    result = hugeheap("--root", tmp_path, "status")
    assert result.returncode == 3
    assert "--root names another directory" in result.stderr


def test_this_host(hugeheap):
    document = json.loads(hugeheap("status", "--json").stdout)
    assert document["schema"] == "hugeheap.status/1"
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert document["memory"]["total"] == total
    assert 0 < document["memory"]["available"] < total
    free = document["free"]
    assert free is None or 0 <= free["in_huge_pages"] <= free["total"] < total
    assert hugeheap("status").returncode == 0
