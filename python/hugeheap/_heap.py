"""The process's heap as typed objects.

Bytes are bytes, arenas are counts. The numbers are those of the telemetry schema, under the same names as in JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from ._errors import HugeheapError
from ._native import native


@dataclass(frozen=True)
class Status:
    """What this process's heap is."""

    #: Name of the state: ``hooked``, ``idle``, or why nothing is hooked.
    state: str
    #: The state in one line.
    explanation: str
    #: How much of the program's memory comes from hugeheap.
    level: str
    #: The policy asked for.
    policy: str
    #: The policy in force: what ``auto`` chose, or what a fallback led to.
    effective_policy: str
    #: What the interpreter says of its version; empty before ``enable()``.
    python: str

    @property
    def hooked(self) -> bool:
        """Whether the interpreter's memory comes from hugeheap."""
        return self.state in ("hooked", "other_allocator")

    def __str__(self) -> str:
        if not self.hooked:
            return f"hugeheap: {self.explanation}"
        return f"hugeheap: {self.explanation}; policy {self.policy}, in force: {self.effective_policy}"


@dataclass(frozen=True)
class Stats:
    """What the heap holds and did. See ``docs/reference/python.md`` for each number."""

    arenas: int
    arenas_peak: int
    arenas_full: int
    arenas_partial: int
    arenas_empty: int
    arenas_thp: int
    arenas_hugetlb: int
    arenas_base: int
    arenas_broken: int
    live: int
    live_peak: int
    retained: int
    retention_target: int
    metadata: int
    large: int
    allocations: int
    frees: int
    foreign_frees: int
    given_back: int
    arenas_given_back: int
    breaks: int
    regretted: int
    collapses: int
    passes: int
    longest_pass: int
    forks: int
    peak_resident: int
    peak_huge: int
    resident: int
    huge: int
    peak_charge: int
    charge: int
    #: Arenas made ahead by the maintenance thread, while the heap grew quickly.
    arenas_ahead: int
    #: Garbage-collected heaps made since the start.
    gc_heaps: int
    #: Bytes of the nurseries of those that live.
    gc_nursery: int
    #: Bytes of objects in their old generations that are not known to be dead.
    gc_old: int
    #: Bytes of heap pages and large blocks that the old generations have.
    gc_held: int
    #: Minor collections of all of them, ended ones too.
    gc_minor: int
    #: Major collections that ended.
    gc_major: int
    #: Times that a program waited for a collection.
    gc_pauses: int
    #: Of these, those of 2²⁰ ns or more, about a millisecond.
    gc_long_pauses: int
    #: Their sum in nanoseconds.
    gc_pause_total: int
    #: The longest in nanoseconds.
    gc_longest_pause: int
    #: Bytes of OS pages without a live block that were given back of heap pages in use, of ``given_back``.
    vacated: int
    #: Bytes of OS pages made equal to others since the start, for the kernel to merge them (``HUGEHEAP_MERGE=1``).
    alike: int
    #: Bytes in OS pages that the kernel had merged, at the last measurement.
    merged: int
    #: How often memory did not get the backing its policy wanted, by reason.
    fallbacks: Mapping[str, int]

    @property
    def coverage(self) -> float | None:
        """Share of the resident heap mapped by huge pages, 0 to 1, as the kernel reported it; ``None``: not measured."""
        return self.huge / self.resident if self.resident else None

    @property
    def hints(self) -> dict[str, str]:
        """What to do about each fallback that happened."""
        return {reason: native.hint(reason) or "" for reason in self.fallbacks}


_Settings = tuple[str | None, float | None, int | None]


def _refuse_kind(name: str, wanted: str, value: object) -> NoReturn:
    raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def _checked(policy: str | None, decay: float | None, limit: int | None, merge: bool | None) -> _Settings:
    # First what is no such thing at all: a comparison of text with a number would answer in the interpreter's words.
    if policy is not None and not isinstance(policy, str):
        _refuse_kind("policy", "a name such as 'thp'", policy)
    if decay is not None and (isinstance(decay, bool) or not hasattr(type(decay), "__float__")):
        _refuse_kind("decay", "a number of seconds", decay)
    if limit is not None and (isinstance(limit, bool) or not hasattr(type(limit), "__index__")):
        _refuse_kind("limit", "a whole number of bytes", limit)
    if merge is not None and not isinstance(merge, bool):
        _refuse_kind("merge", "True or False", merge)
    if policy is not None and policy not in native.POLICIES:
        raise HugeheapError(
            f"unknown policy {policy!r}", "unknown-policy", f"choose one of {', '.join(native.POLICIES)}"
        )
    if decay is not None and not 0.001 <= decay <= 86400:
        raise HugeheapError(f"decay of {decay} s", "bad-decay", "give seconds between 0.001 and 86400")
    if limit is not None and not 0 <= limit < 2**63:
        raise HugeheapError(f"limit of {limit} bytes", "bad-limit", "give bytes, or 0 for no limit")
    return policy, decay, limit


def _checked_level(level: str | None) -> str | None:
    if level is not None and not isinstance(level, str):
        _refuse_kind("level", "a name such as 'objects'", level)
    if level is not None and level not in native.LEVELS:
        # Level malloc is none to choose here.
        known = ", ".join(name for name in native.LEVELS if name != "malloc")
        raise HugeheapError(f"unknown level {level!r}", "unknown-level", f"choose one of {known}")
    if level == "malloc" and status().level != "malloc":
        raise HugeheapError(
            "level 'malloc' cannot begin in a running process", "level-at-start", "start it with hugeheap run --level malloc"
        )
    return level


def _refuse_merging(level: str) -> None:
    if level == "arenas":
        raise HugeheapError(
            "at level 'arenas' nothing can be made alike: pymalloc has the objects", "merge-needs-objects", "give level='objects'"
        )


def enable(
    *,
    policy: str | None = None,
    decay: float | None = None,
    limit: int | None = None,
    level: str | None = None,
    merge: bool | None = None,
) -> Status:
    """Put the interpreter's arenas and large blocks on hugeheap from now on, and at level ``objects`` its objects.

    ``policy`` is ``auto``, ``thp``, ``dense``, ``hugetlb`` or ``base``; ``decay`` the seconds that memory is kept
    after it was needed; ``limit`` the bytes above which nothing is kept, 0 for none; ``level`` is ``arenas`` or
    ``objects`` (``malloc`` only where ``hugeheap run`` started the process at it); ``merge`` whether OS pages of an idle heap that has shrunk are made alike, for a host that merges
    equal ones (KSM), which needs level ``objects`` or ``malloc``. What is ``None`` comes from the environment (``HUGEHEAP_POLICY`` …) or is the default. A second call
    changes the settings, and may raise the level; it cannot lower it. Where nothing can be hooked, the returned status
    says why, and where the level cannot be had, which one is in force; that is no error.
    """
    settings, level = _checked(policy, decay, limit, merge), _checked_level(level)
    now = status()
    if merge:
        _refuse_merging(level or (now.level if now.hooked else os.environ.get("HUGEHEAP_LEVEL") or "arenas"))
    if not now.hooked and now.state != "disabled" and (mistake := native.environment_mistake()):
        raise HugeheapError(mistake, "bad-setting", "correct or unset it")
    native.enable(*settings, level, merge)
    return status()


def configure(
    *, policy: str | None = None, decay: float | None = None, limit: int | None = None, merge: bool | None = None
) -> None:
    """Change the settings of the running heap; what is ``None`` stays. Existing arenas keep their backing."""
    settings = _checked(policy, decay, limit, merge)
    if not (now := status()).hooked:
        raise HugeheapError(f"there is no heap to configure ({now.explanation})", "not-enabled", "call enable() first")
    if merge:
        _refuse_merging(now.level)
    native.configure(*settings, merge)


def give_back() -> int:
    """Give back to the operating system now what would be kept for reuse; the bytes given back."""
    return native.give_back()


def status() -> Status:
    """Whether and how this process runs on hugeheap."""
    return Status(**native.status())


def stats(*, measure: bool = True) -> Stats:
    """The heap's numbers. With ``measure`` the kernel is asked for resident memory, coverage and charge first,
    which takes from microseconds to a few milliseconds for a heap of OS pages."""
    if not isinstance(measure, bool):
        _refuse_kind("measure", "True or False", measure)
    return Stats(**native.stats(measure))
