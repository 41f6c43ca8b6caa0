"""What the measurements in this directory share: advised memory, and what the kernel says about it."""

import ctypes
import mmap
import pathlib
import time

HUGE = 2 << 20
OS_PAGE = mmap.PAGESIZE
MADV_HUGEPAGE = 14
MADV_COLD = 20


class Region:
    """Anonymous private memory that begins at a multiple of the huge page."""

    def __init__(self, size, advise=True):
        self.map = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        anchor = ctypes.c_char.from_buffer(self.map)
        self.skip = -ctypes.addressof(anchor) % HUGE
        del anchor
        self.size = size
        if advise:
            self.advise(MADV_HUGEPAGE, 0, size)

    def advise(self, advice, start, length):
        self.map.madvise(advice, self.skip + start, length)

    def touch(self):
        """Writes one byte to each OS page; seconds."""
        begin = time.perf_counter()
        for place in range(self.skip, self.skip + self.size, OS_PAGE):
            self.map[place] = 1
        return time.perf_counter() - begin

    def touch_huge(self):
        """Writes one byte to each huge page; seconds."""
        begin = time.perf_counter()
        for place in range(self.skip, self.skip + self.size, HUGE):
            self.map[place] = 1
        return time.perf_counter() - begin


def rollup(name):
    """A field of this process's smaps_rollup, in MB."""
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def charge():
    """The charge of this process's memory cgroup, in MB; None where it cannot be read."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "memory":
            file = pathlib.Path("/sys/fs/cgroup/memory", group.lstrip("/"), "memory.usage_in_bytes")
        elif controllers == "":
            file = pathlib.Path("/sys/fs/cgroup", group.lstrip("/"), "memory.current")
        else:
            continue
        if file.exists():
            return int(file.read_text()) / 2**20
    return None


def thp_count(name):
    """A counter of the kernel for huge pages of 2 MiB, on the whole host; None on kernels without it."""
    file = pathlib.Path("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats", name)
    return int(file.read_text()) if file.exists() else None
