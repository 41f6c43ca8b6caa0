"""`hugeheap status`: of a directory that plays a host, line by line, and of this host, against the kernel's files."""

import json
import re
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


def test_each_number_of_the_json_is_the_kernels_of_that_name(data, lines, host):
    """Neighbours have the same number on a host where little has happened: where one was told as the other, no test failed."""
    sizes = {"PageTables": 7 << 20, "AnonPages": 1 << 30, "AnonHugePages": 24 << 20, "ShmemHugePages": 6 << 20, "FileHugePages": 4 << 20, "Hugetlb": 2 << 20}
    names = "|".join(sizes)
    others = re.sub(rf"^({names}):.*\n", "", meminfo(), flags=re.M)
    host.write("proc/meminfo", others + "".join(f"{name}: {size >> 10} kB\n" for name, size in sizes.items()))
    events = {"thp_fault_alloc": 300, "thp_fault_fallback": 100, "thp_collapse_alloc": 7, "thp_split_page": 5, "compact_stall": 3}
    host.write("proc/vmstat", "".join(f"{name} {count}\n" for name, count in events.items()))
    averages = "{} avg10={} avg60=0.00 avg300=0.00 total=0\n"
    host.write("proc/pressure/memory", averages.format("some", 12.5) + averages.format("full", 2.5))
    host.write("sys/fs/cgroup/memory.max", 3 * GIB)
    host.write("sys/fs/cgroup/memory.high", 2 * GIB)
    told = data()
    assert told["memory"] == {"total": 16 * GIB, "available": 12 * GIB, "page_tables": 7 << 20}
    assert told["pressure"] == {"some_avg10": 12.5, "full_avg10": 2.5}
    assert told["on_huge_pages"] == {
        "anonymous": 24 << 20, "anonymous_of": 1 << 30, "shared": 6 << 20, "files": 4 << 20, "hugetlb": 2 << 20,
    }  # fmt: skip
    assert told["since_boot"] == {name.removeprefix("thp_"): count for name, count in events.items()}
    assert (told["cgroup"]["max"], told["cgroup"]["high"], told["cgroup"]["charge"]) == (3 * GIB, 2 * GIB, GIB)
    said = lines()
    assert "(100 faults found none, 25.0 %), 7 collapsed, 5 split" in said["since boot"]
    assert said["on huge pages"].endswith(", 6.0 MiB shared, 4.0 MiB of files, 2.0 MiB in pools")
    assert said["memory"].endswith("; 12.5 % of the time somebody waits for memory")


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
