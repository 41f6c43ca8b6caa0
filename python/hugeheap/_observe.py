"""The host and its processes as typed objects, and changing what backs a process's memory.

For any process, on hugeheap or not; ``None`` stands for this one. Bytes are bytes, times are seconds. What the kernel
does not tell is ``None``, never a guess.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._errors import HugeheapError
from ._heap import Stats
from ._native import native


@dataclass(frozen=True)
class Pool:
    """A hugetlb pool, in pages of ``page_size``."""

    page_size: int
    total: int
    #: Not handed out, reserved ones included.
    free: int
    reserved: int
    surplus: int
    overcommit: int


@dataclass(frozen=True)
class Limits:
    """Limits and charge of a memory cgroup; ``None`` is no limit."""

    max: int | None
    high: int | None
    charge: int
    #: Of the charge, memory without a file.
    anonymous: int | None


@dataclass(frozen=True)
class System:
    """The host, and the memory cgroup of this process."""

    os_page: int
    #: ``None`` where the kernel has no transparent huge pages.
    huge_page: int | None
    memory: int | None
    memory_available: int | None
    #: ``always``, ``madvise`` or ``never``.
    thp_mode: str | None
    thp_defrag: str | None
    #: Huge pages of which only a part is mapped, on the whole host (Linux 6.12).
    partially_mapped: int | None
    #: Share of the last 10 seconds in which some, or all, tasks waited for memory.
    pressure_some: float | None
    pressure_all: float | None
    pools: tuple[Pool, ...]
    limits: Limits | None


@dataclass(frozen=True)
class Heap:
    """What a process on hugeheap shows of its heap."""

    pid: int
    #: ``hooked`` for CPython, ``idle`` for a program in Rust or C that calls hugeheap itself.
    state: str
    level: str
    policy: str
    effective_policy: str
    #: What the interpreter says of its version; empty in other programs.
    python: str
    #: Since the process wrote it. It does that when something changes, so this is also since when nothing did.
    age: float
    #: ``resident``, ``huge`` and ``charge`` are as the process itself measured them last; 0: never.
    stats: Stats


@dataclass(frozen=True)
class Process:
    """A process's memory."""

    pid: int
    name: str
    user: int
    parent: int
    #: With hugetlb pages.
    resident: int
    anonymous: int
    hugetlb: int
    swapped: int
    page_tables: int
    #: Whether it has transparent huge pages switched off (``PR_SET_THP_DISABLE``).
    thp_disabled: bool | None
    #: On huge pages of either kind; ``None``: there was no time to look.
    huge: int | None
    #: What may be on huge pages and is not.
    eligible: int | None
    #: Share of resident memory on huge pages, 0 to 1.
    coverage: float | None
    cgroup: str | None
    limits: Limits | None
    #: ``None`` when it is not on hugeheap, or does not show its numbers.
    heap: Heap | None


@dataclass(frozen=True)
class Collapsed:
    """What came of ``collapse()``. A unit is a range of huge-page size."""

    pid: int
    #: Units to collapse, and huge pages made.
    planned: int
    collapsed: int
    #: Bytes memory grows by at most, and the limit that this stays within.
    growth: int
    max_growth: int
    #: The heap: private writable anonymous memory. After it ``None`` for a dry run.
    resident_before: int
    resident_after: int | None
    huge_before: int
    huge_after: int | None
    charge_before: int | None
    charge_after: int | None
    #: Units left alone, by reason: ``huge``, ``edge``, ``sparse``, ``over_limit``, ``refused``, ``changed``, ``left``.
    skipped: Mapping[str, int]
    #: Whether all of the heap was looked at before the budget ended.
    complete: bool
    #: Why it ended early: ``budget``, ``no_huge_pages``, ``cgroup_full``, ``gone``, ``main_thread_ended``, ``refused``; ``None``: it did not.
    stopped: str | None
    #: The longest that the process may have stood still.
    longest_call: float
    elapsed: float

    @property
    def coverage_before(self) -> float | None:
        """Share of the heap on huge pages before."""
        return self.huge_before / self.resident_before if self.resident_before else None

    @property
    def coverage_after(self) -> float | None:
        """The same after; ``None`` for a dry run."""
        if self.huge_after is None or not self.resident_after:
            return None
        return self.huge_after / self.resident_after


@dataclass(frozen=True)
class Released:
    """What came of ``release()``."""

    pid: int
    #: Huge pages to split, split, and not reached.
    planned: int
    split: int
    left: int
    #: Whether what is stranded was found exactly; otherwise it is an upper bound. Exactly needs ``CAP_SYS_ADMIN``.
    exact: bool
    stranded_before: int
    stranded_after: int | None
    #: Huge pages left alone because another process maps a part of them, and what is stranded there.
    shared: int
    shared_stranded: int
    charge_before: int | None
    charge_after: int | None
    resident_before: int | None
    resident_after: int | None
    #: Whether all of the process was looked at before the budget ended.
    complete: bool
    #: Why it ended early, as for ``collapse()``.
    stopped: str | None
    longest_call: float
    elapsed: float


def _process_id(pid: int | None) -> int:
    if pid is None:
        return os.getpid()
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise TypeError(f"pid must be the number of a process, not {type(pid).__name__}")
    if not 0 < pid < 2**31:
        raise HugeheapError(f"there is no process {pid}", "bad-pid", "give its number, or None for this process")
    return pid


def _seconds(budget: float) -> float:
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        raise TypeError(f"budget must be a number of seconds, not {type(budget).__name__}")
    if not 0.001 <= budget <= 86400:
        raise HugeheapError(f"budget of {budget} s", "bad-budget", "give seconds between 0.001 and 86400")
    return float(budget)


def _limits(found: Mapping[str, Any] | None) -> Limits | None:
    return None if found is None else Limits(**found)


def _heap(found: Mapping[str, Any]) -> Heap:
    return Heap(**{**found, "stats": Stats(**found["stats"])})


def system() -> System:
    """Page sizes, memory, modes and pools of this host, and limits of this process's cgroup."""
    found = native.system()
    pools = tuple(Pool(**pool) for pool in found["pools"])
    return System(**{**found, "pools": pools, "limits": _limits(found["limits"])})


def process(pid: int | None = None, *, budget: float = 1.0) -> Process:
    """A process's memory, its cgroup, and its heap. ``budget``: seconds for walking its page tables."""
    found = native.process(_process_id(pid), _seconds(budget))
    heap = None if found["heap"] is None else _heap(found["heap"])
    return Process(**{**found, "limits": _limits(found["limits"]), "heap": heap})


def heaps(*, budget: float = 1.0) -> tuple[Heap, ...]:
    """The heaps of all processes on hugeheap that this one may look at, in the order of their numbers."""
    return tuple(_heap(found) for found in native.heaps(_seconds(budget)))


def collapse(
    pid: int | None = None,
    *,
    min_density: float = 0.9,
    max_growth: int | None = None,
    budget: float = 60.0,
    dry_run: bool = False,
) -> Collapsed:
    """Put the heap of a process on huge pages, where it is dense, while it goes on running.

    ``min_density`` is the least share of a unit that must be resident, ``max_growth`` the bytes memory may grow by
    (``None``: 5 % of what is resident), ``budget`` the seconds for everything. Other threads run meanwhile.
    """
    number, seconds = _process_id(pid), _seconds(budget)
    if isinstance(min_density, bool) or not isinstance(min_density, (int, float)):
        raise TypeError(f"min_density must be a share, not {type(min_density).__name__}")
    if not 0 <= min_density <= 1:
        raise HugeheapError(f"density of {min_density}", "bad-density", "give a share between 0 and 1")
    if max_growth is not None:
        if isinstance(max_growth, bool) or not isinstance(max_growth, int):
            raise TypeError(f"max_growth must be a whole number of bytes, not {type(max_growth).__name__}")
        if not 0 <= max_growth < 2**63:
            raise HugeheapError(f"growth of {max_growth} bytes", "bad-growth", "give bytes, or None for 5 %")
    return Collapsed(**native.collapse(number, float(min_density), max_growth, seconds, bool(dry_run)))


def release(pid: int | None = None, *, budget: float = 60.0, dry_run: bool = False) -> Released:
    """Free what is stranded in a process: make the kernel split huge pages of which only a part is mapped.

    The charge of the cgroup falls; contents stay, and the process goes on running.
    """
    return Released(**native.release(_process_id(pid), _seconds(budget), bool(dry_run)))
