"""A directory that plays a host: the files of /proc and /sys that hugeheap reads with `--root`.

`Host(directory)` is a healthy host with 16 GiB, mode madvise, no pools, one node. A test changes what it is about with `write`.
"""

import resource
import shutil
import signal
from pathlib import Path

THP = "sys/kernel/mm/transparent_hugepage"
POOLS = "sys/kernel/mm/hugepages"
NODE_POOLS = "sys/devices/system/node/node{}/hugepages"
GIB = 1 << 30

COUNTERS = {
    "anon_fault_alloc": 1000,
    "anon_fault_fallback": 10,
    "anon_fault_fallback_charge": 0,
    "split": 5,
    "split_failed": 0,
    "split_deferred": 3,
    "nr_anon": 12,
    "nr_anon_partially_mapped": 2,
}


def no_room_for_more():
    """For `preexec_fn`: knobs can be written, and a file of more than two lines cannot, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (48, 48))


def meminfo(total=16 * GIB, available=12 * GIB, free=10 * GIB, huge=24 << 20):
    values = {
        "MemTotal": total, "MemFree": free, "MemAvailable": available, "AnonPages": 1 << 30, "AnonHugePages": huge,
        "ShmemHugePages": 0, "FileHugePages": 0, "PageTables": 8 << 20, "Hugetlb": 0,
    }  # fmt: skip
    return "".join(f"{name + ':':16}{value >> 10:>8} kB\n" for name, value in values.items()) + "Hugepagesize:       2048 kB\n"


def buddyinfo(*counts, node=0, zone="Normal"):
    """Free blocks of 1, 2, 4 … OS pages."""
    return f"Node {node}, zone {zone:>8} " + " ".join(f"{count:>6}" for count in counts) + "\n"


class Host:
    def __init__(self, root):
        self.root = Path(root)
        self.write(f"{THP}/enabled", "always [madvise] never")
        self.write(f"{THP}/defrag", "always defer defer+madvise [madvise] never")
        self.write(f"{THP}/shmem_enabled", "always within_size advise [never] deny force")
        self.write(f"{THP}/use_zero_page", 1)
        self.write(f"{THP}/hpage_pmd_size", 2 << 20)
        for name, value in {
            "defrag": 1, "pages_to_scan": 4096, "scan_sleep_millisecs": 10000, "alloc_sleep_millisecs": 60000,
            "max_ptes_none": 64, "max_ptes_swap": 64, "max_ptes_shared": 256, "pages_collapsed": 7, "full_scans": 9,
        }.items():  # fmt: skip
            self.write(f"{THP}/khugepaged/{name}", value)
        for size, choice in ((64, "always inherit madvise [never]"), (2048, "always [inherit] madvise never")):
            self.write(f"{THP}/hugepages-{size}kB/enabled", choice)
            for name, value in COUNTERS.items():
                self.write(f"{THP}/hugepages-{size}kB/stats/{name}", value if size == 2048 else 0)
        self.write("proc/meminfo", meminfo())
        self.write("proc/buddyinfo", buddyinfo(100, 100, 100, 50, 50, 20, 20, 10, 10, 1000, 2000))
        self.write("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0")
        self.write("proc/vmstat", "thp_fault_alloc 1000\nthp_fault_fallback 10\nthp_collapse_alloc 7\nthp_split_page 5\ncompact_stall 0\ncompact_fail 0")
        self.write("proc/cpuinfo", "processor : 0\nmodel name : Test CPU\nflags : fpu pdpe1gb")
        self.write("proc/sys/kernel/osrelease", "6.18.0-test")
        self.write("proc/sys/kernel/perf_event_paranoid", 2)
        self.write("proc/sys/vm/compact_memory", 0)
        self.write("proc/sys/vm/nr_hugepages", 0)
        self.write("proc/self/status", "Name:\thugeheap\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nTHP_enabled:\t1")
        self.write("proc/self/cgroup", "0::/")
        self.write("proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n24 1 0:22 / /sys rw - sysfs sysfs rw")
        self.write("sys/fs/cgroup/memory.current", 1 << 30)
        self.write("sys/fs/cgroup/memory.max", "max")
        self.write("sys/fs/cgroup/memory.high", "max")
        self.write("sys/fs/cgroup/memory.stat", f"anon {1 << 29}")
        self.pool("2048kB")
        self.pool("1048576kB")
        self.node(0)
        self.pool("2048kB", node=0)
        self.pool("1048576kB", node=0)
        self.write("usr/bin/systemd-tmpfiles", "")
        self.write("sbin/sysctl", "")

    def path(self, name):
        return self.root / name

    def virtio(self, device="0x0005", features="0110010100"):
        """A network card, and a balloon that reports free pages."""
        for number, values in enumerate((("0x0001", "1111111111"), (device, features))):
            for name, value in zip(("device", "features"), values):
                self.write(f"sys/bus/virtio/devices/virtio{number}/{name}", value)

    def write(self, name, text):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if not str(text).endswith("\n") else text)

    def read(self, name):
        return self.path(name).read_text().strip()

    def remove(self, name):
        path = self.path(name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def pool(self, size, total=0, free=None, reserved=0, surplus=0, overcommit=0, node=None):
        directory = f"{POOLS if node is None else NODE_POOLS.format(node)}/hugepages-{size}"
        numbers = {"nr_hugepages": total, "free_hugepages": total if free is None else free, "surplus_hugepages": surplus}
        if node is None:
            numbers |= {"resv_hugepages": reserved, "nr_overcommit_hugepages": overcommit}
        for name, value in numbers.items():
            self.write(f"{directory}/{name}", value)

    def node(self, number, total=16 * GIB, free=10 * GIB):
        text = f"Node {number} MemTotal: {total >> 10} kB\nNode {number} MemFree: {free >> 10} kB\n"
        self.write(f"sys/devices/system/node/node{number}/meminfo", text)
