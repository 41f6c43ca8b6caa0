"""What the tests on interpreters and on the kernel share: builds, interpreters, records, the host's knobs, control groups.

The command is `$HUGEHEAP_BIN` or `target/release/hugeheap`, the preload library `$HUGEHEAP_PRELOAD_LIBRARY` or the one beside the command.
"""

import contextlib
import ctypes
import fcntl
import glob
import os
import re
import select
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POLICIES = ["auto", "thp", "dense", "hugetlb", "base"]
LEVELS = ["arenas", "objects"]
POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
MAX_PTES_NONE = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none"
TIMEOUT = 120

NUMBERS = ["base", "thp", "dense", "hugetlb", "auto"]
STATES = [
    "idle",
    "hooked",
    "not_python",
    "free_threaded",
    "other_allocator",
    "own_huge_pages",
    "disabled",
    "no_memory",
    "bad_setting",
]
REASONS = [
    "thp_never",
    "thp_disabled",
    "thp_unsupported",
    "pool_empty",
    "pool_refused",
    "pool_forks",
    "memory_limit",
    "collapse_no_page",
    "collapse_busy",
    "collapse_refused",
    "address_space",
    "out_of_memory",
    "latency",
    "no_thread",
    "mapping_limit",
    "no_huge_page",
    "no_barrier",
    "offer_refused",
    "no_merging",
]
# What a host that is busy or short of huge pages at the moment makes of any policy that wants them: no test can
# rule it out.
CHANCE = {"no_huge_page", "latency", "collapse_no_page", "collapse_busy"}
COUNTERS = (
    "arenas arenas_peak arenas_full arenas_partial arenas_empty arenas_thp arenas_hugetlb arenas_base arenas_broken "
    "live live_peak retained retention_target metadata large allocations frees foreign_frees given_back "
    "arenas_given_back breaks regretted collapses passes longest_pass forks peak_resident peak_huge resident huge "
    "peak_charge charge"
).split()
# Behind the counts of the reasons.
LATER = (
    "arenas_ahead gc_heaps gc_nursery gc_old gc_held gc_minor gc_major gc_pauses gc_long_pauses gc_pause_total gc_longest_pause"
).split()
# After those the pauses of collectors by length, and then what was given back of heap pages in use.
PAUSE_LENGTHS = 24
LAST = ["vacated", "alike", "merged"]


def find_library():
    named = os.environ.get("HUGEHEAP_PRELOAD_LIBRARY")
    path = Path(named) if named else find_command().parent / "libhugeheap_preload.so"
    if not path.is_file():
        pytest.exit(f"{path} is not built: cargo build --release, or set HUGEHEAP_PRELOAD_LIBRARY", 4)
    return path.resolve()


def find_command():
    named = os.environ.get("HUGEHEAP_BIN")
    path = Path(named) if named else ROOT / "target" / "release" / "hugeheap"
    if not path.is_file():
        pytest.exit(f"{path} is not built: cargo build --release, or set HUGEHEAP_BIN", 4)
    return path.resolve()


def find_interpreters():
    """One interpreter for each installed version from 3.10 on that has CPython's `test` package: {(3, 11): path}."""
    found = {}
    places = ["~/.pyenv/versions/*/bin", "/usr/local/bin", "/usr/bin", str(ROOT / "target" / "interpreters" / "*" / "bin")]
    for place in (os.path.expanduser(f"{place}/python3.[0-9]*") for place in places):
        for path in sorted(glob.glob(place)):
            match = re.fullmatch(r"python3\.(\d+)", os.path.basename(path))
            version = (3, int(match[1])) if match else None
            if version is None or version < (3, 10) or version in found:
                continue
            if subprocess.run([path, "-c", "import test.support"], capture_output=True, env=clean()).returncode == 0:
                found[version] = path
    return dict(sorted(found.items()))


def clean(**more):
    """An environment without the tester's settings."""
    prefixes = ("HUGEHEAP_", "PYTHON", "LD_PRELOAD", "MIMALLOC_", "MALLOC_", "PYTEST_", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **more}


def preloaded(policy="auto", telemetry=None, level="arenas", **more):
    """The same environment with the library."""
    environment = clean(LD_PRELOAD=str(find_library()), HUGEHEAP_POLICY=policy, HUGEHEAP_LEVEL=level, **more)
    return {**environment, "HUGEHEAP_TELEMETRY": str(telemetry)} if telemetry else environment


def run(command, env=None, timeout=TIMEOUT, **options):
    """Runs a command without input and returns the completed process, its output as text."""
    return subprocess.run(
        [str(word) for word in command],
        env=clean() if env is None else env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout,
        **options,
    )


# Seconds to wait for what surely comes: on a busy machine late.
PATIENCE = 60


def phases(command, names, watch, enough=None, **options):
    """Runs a program that prints a name and waits for a line, for each name; answers what `watch` saw at each, and standard error.

    With `enough(name, seen)` it waits until that holds: what the maintenance does comes in its own time.
    """
    process = subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    seen = {}
    try:
        for name in names:
            ready, _, _ = select.select([process.stdout], [], [], TIMEOUT)
            assert ready and process.stdout.readline() == f"{name}\n", "the program did not reach the phase"
            seen[name] = watch()
            end = time.monotonic() + PATIENCE
            while enough and not enough(name, seen) and time.monotonic() < end:
                time.sleep(0.05)
                seen[name] = watch()
            process.stdin.write("\n")
            process.stdin.flush()
        _, err = process.communicate(timeout=TIMEOUT)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0, err
    return seen, err


class Unfinished(AssertionError):
    """A record that never was consistent."""


def read_record(path):
    """A process's telemetry record as a dict; waits out a writer in the middle of a change."""
    for _ in range(1000):
        data = Path(path).read_bytes()
        magic, sequence = data[:8], int.from_bytes(data[8:16], "little")
        if magic == b"HUGEHEAP" and sequence % 2 == 0:
            break
        time.sleep(0.001)
    else:
        raise Unfinished(f"{path} never was a consistent record: {len(data)} bytes, {data[:16]}")
    schema, size, pid, parent, state, level, policy, effective = struct.unpack_from("<8I", data, 16)
    assert schema == 1, f"schema {schema}: update this reader"
    counters = struct.unpack_from(f"<{len(COUNTERS)}Q", data, 16 + 64)
    counts = struct.unpack_from("<24Q", data, 16 + 64 + 8 * len(COUNTERS))
    later = struct.unpack_from(f"<{len(LATER)}Q", data, 16 + 64 + 8 * len(COUNTERS) + 24 * 8)
    known = 64 + 8 * len(COUNTERS) + 24 * 8 + 8 * len(LATER) + 8 * PAUSE_LENGTHS + 8 * len(LAST)
    last = struct.unpack_from(f"<{len(LAST)}Q", data, 16 + known - 8 * len(LAST))
    assert size == known and not any(counts[len(REASONS) :]), "update this reader"
    return {
        **dict(zip(COUNTERS + LATER, counters + later)),
        **dict(zip(LAST, last)),
        "pid": pid,
        "parent": parent,
        "state": STATES[state],
        "level": LEVELS[level],
        "policy": NUMBERS[policy],
        "effective": NUMBERS[effective],
        "version": data[48:80].split(b"\0")[0].decode(),
        "fallbacks": {name: count for name, count in zip(REASONS, counts) if count},
    }


def records(directory, kills=False):
    """All records of a telemetry directory, by process.

    With `kills`, for programs that kill processes: one that died between making its file and filling it, or in the middle of a change,
    leaves a record that says nothing. Few do: a child is killed right after it was forked once in about a thousand.
    """
    found, unfinished = {}, []
    for path in sorted(Path(directory).glob("*.hugeheap")):
        try:
            record = read_record(path)
        except Unfinished as error:
            if not kills or os.path.exists(f"/proc/{path.stem}"):
                raise
            unfinished.append(error)
        else:
            found[record["pid"]] = record
    assert len(unfinished) <= 1 + len(found) // 50, unfinished
    return found


def reasons(record):
    """Why the heap took other memory than it wanted, without what is the host's at the moment."""
    return set(record["fallbacks"]) - CHANCE


def only_record(directory):
    found = records(directory)
    assert len(found) == 1, f"one process, but records of {sorted(found)}"
    return next(iter(found.values()))


# --- the host's knobs ---


def need_root():
    if os.geteuid() != 0:
        pytest.skip("needs root: it changes settings of the host")


# The lock that this process holds: through a second descriptor it would wait for itself.
_held = None


class HostLock:
    """Shared by those that rely on the host's knobs, held alone by who changes one.

    Who waits for it alone would wait for ever while two others share it in turn. So everybody waits behind a gate, in which one may wait at a time:

        gate, alone ── lock, shared or alone ── gate open again ── … ── lock released
    """

    def __init__(self):
        self.gate, self.lock = (self._open(f"hugeheap-host-{name}.lock") for name in ("gate", "knobs"))

    @staticmethod
    def _open(name):
        return os.open(os.path.join(tempfile.gettempdir(), name), os.O_RDONLY | os.O_CREAT, 0o644)

    def take(self, shared):
        # What is held is given up first: two that wait behind the gate for each other would wait for ever.
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        fcntl.flock(self.lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        fcntl.flock(self.gate, fcntl.LOCK_UN)
        self.shared = shared

    def close(self):
        os.close(self.gate)
        os.close(self.lock)


@contextlib.contextmanager
def host_lock(shared=False):
    """Serialises what depends on the host's knobs with all other tests on this host.

    Until it is released nobody else changes a knob. Who has it may take it again. Who shares it may take it alone: a knob may have
    changed when this begins, and after this ends.
    """
    global _held
    if _held and (shared or not _held.shared):
        yield
    elif _held:
        lock = _held
        lock.take(shared=False)
        try:
            yield
        finally:
            lock.take(shared=True)
    else:
        lock = HostLock()
        try:
            lock.take(shared)
            _held = lock
            yield
        finally:
            _held = None
            lock.close()


@contextlib.contextmanager
def knob(path, value):
    """Sets a file of the kernel under the host lock, and puts it back."""
    need_root()
    with host_lock():
        try:
            text = Path(path).read_text()
        except OSError as error:
            pytest.skip(f"no {path}: {error}")
        match = re.search(r"\[(.*?)\]", text)
        before = match[1] if match else text.strip()
        try:
            try:
                Path(path).write_text(str(value))
            except OSError as error:
                pytest.skip(f"cannot write {path}: {error}")
            yield
        finally:
            Path(path).write_text(before)


@contextlib.contextmanager
def pool(pages):
    """A hugetlb pool of exactly this many free pages of 2 MiB."""
    with knob(POOL, pages):
        got = int(Path(POOL).read_text())
        if got != pages:
            pytest.skip(f"the hugetlb pool got {got} pages, not {pages}: memory is fragmented")
        yield


@contextlib.contextmanager
def sparse_stays():
    """khugepaged fills no absent OS pages: it looks around every ten seconds, and would make what a test left sparse whole again.

    Without the right to say so this does nothing.
    """
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0 and os.access(MAX_PTES_NONE, os.W_OK):
            stack.enter_context(knob(MAX_PTES_NONE, 0))
        yield


def pool_size():
    """Pages of 2 MiB in the hugetlb pool now; 0 where the kernel has none."""
    return int(Path(POOL).read_text()) if os.path.exists(POOL) else 0


def free_pool():
    return int((Path(POOL).parent / "free_hugepages").read_text())


def reachable_python():
    """An interpreter that every user can start; homes are often closed."""
    for path in ["/usr/bin/python3", "/usr/local/bin/python3"]:
        if os.path.exists(path):
            return os.path.realpath(path)
    pytest.skip("no interpreter outside of a home directory")


@contextlib.contextmanager
def no_pool():
    """No hugetlb pool, for as long as this lasts. Needs root only where there is one."""
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0 and os.path.exists(POOL):
            stack.enter_context(pool(0))
        else:
            stack.enter_context(host_lock(shared=True))
            if pool_size():
                pytest.skip("there is a hugetlb pool, and changing it needs root")
        yield


@contextlib.contextmanager
def pool_for(policy):
    """A pool of 8 pages for `hugetlb` where this is root; nothing otherwise.

    The lock is held exclusively, because the pool is only large enough for one test.
    """
    if policy != "hugetlb" or os.geteuid() != 0 or not os.path.exists(POOL):
        yield
        return
    with pool(8):
        yield


# --- memory control groups ---


class Group:
    """A memory control group of the test's own, v1 or v2."""

    def __init__(self, path, version):
        self.path, self.version = path, version

    def charge(self):
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        return int((self.path / name).read_text())

    def peak(self):
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int((self.path / name).read_text())
        except OSError:
            pytest.skip("the kernel does not say a control group's peak")

    def limit(self, size):
        (self.path / ("memory.limit_in_bytes" if self.version == 1 else "memory.max")).write_text(str(size))

    def enter(self):
        """For `preexec_fn`."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def memory_group(name):
    """A memory control group under the one this process is in; removed afterwards."""
    need_root()
    one, two = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    if (one / "memory.usage_in_bytes").exists():
        own = next((path for _, names, path in lines if "memory" in names.split(",")), "/")
        group = Group(one / own.lstrip("/") / f"hugeheap-{name}-{os.getpid()}", 1)
    elif "memory" in (two / "cgroup.subtree_control").read_text().split():
        group = Group(two / f"hugeheap-{name}-{os.getpid()}", 2)
    else:
        pytest.skip("no memory controller that a test can use")
    try:
        group.path.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group: {error}")
    try:
        yield group
    finally:
        for _ in range(100):
            try:
                group.path.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def refuse_call(number, error):
    """A filter that answers one system call with an error, as a kernel without it, or a container's profile, does."""

    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]

    load, equal, answer, allow, fail = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
    lines = (Instruction * 4)(
        (load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, fail | error), (answer, 0, 0, allow)
    )
    program = Program(4, lines)

    def inner():
        library = ctypes.CDLL(None, use_errno=True)
        no_new_privileges, seccomp, filter_mode = 38, 22, 2
        if library.prctl(no_new_privileges, 1, 0, 0, 0):
            os._exit(98)
        if library.prctl(seccomp, filter_mode, ctypes.byref(program), 0, 0):
            os._exit(99)

    return inner
