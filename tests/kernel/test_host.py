"""What the host does not offer: THP off, hugetlb pools too small, no address space, no threads, nowhere to write.

Guarded for users: the program gives the same output as on stock, hugeheap takes the next best memory, and the reason is counted under the
documented name and no other.
"""

import errno
import functools
import os
import re
import resource
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import pytest
import testbed

INTERPRETERS = testbed.find_interpreters()
PYTHON = INTERPRETERS.get((3, 11)) or next(iter(INTERPRETERS.values()), sys.executable)

# About 60 MiB of small objects and 24 MiB in large blocks; the line is the same on stock.
PROGRAM = """
rows = [(n, str(n), [n]) for n in range(300_000)]
big = [bytearray([n]) * (6 << 20) for n in range(4)]
assert all(one.count(n) == 6 << 20 for n, one in enumerate(big))
print(len(rows), sum(row[0] for row in rows), sum(len(row[1]) for row in rows), all(row[2] == [row[0]] for row in rows))
"""
LARGE_BLOCKS = 4
OUTPUT = "300000 44999850000 1688890 True\n"


@pytest.fixture
def play(tmp_path):
    """Runs a program on hugeheap; returns the completed process. Records are in tmp_path."""

    def play(text, policy="auto", python=PYTHON, **options):
        env = testbed.preloaded(policy, tmp_path, **options.pop("variables", {}))
        return testbed.run([python, "-c", text], env=env, **options)

    return play


def fine(result, output=OUTPUT):
    assert (result.returncode, result.stdout, result.stderr) == (0, output, "")


# --- transparent huge pages ---


@pytest.mark.parametrize("policy", testbed.POLICIES)
@pytest.mark.parametrize("mode", ["never", "madvise", "always"])
def test_thp_modes(play, tmp_path, mode, policy):
    # The host may have a pool, of any size: here it has none.
    with testbed.knob(testbed.THP, mode), testbed.no_pool():
        fine(play(PROGRAM, policy))
    record = testbed.only_record(tmp_path)
    allowed = {
        # `no_huge_page` and the collapse's reasons depend on how full the host is.
        "thp": {"thp_never"} if mode == "never" else set(),
        "auto": set(),
        "dense": set(),
        "hugetlb": {"pool_empty"},
        "base": set(),
    }[policy]
    host = {"no_huge_page", "latency", "collapse_no_page", "collapse_busy"} if policy != "base" else set()
    assert allowed <= set(record["fallbacks"]) <= allowed | host
    if policy == "base":
        assert record["peak_huge"] == 0
    elif policy in ("auto", "thp") and mode != "never" and not record["fallbacks"]:
        assert record["peak_huge"] >= 0.9 * record["peak_resident"] > 50 << 20


@pytest.mark.parametrize("policy", testbed.POLICIES)
def test_thp_switched_off_for_the_process(tmp_path, policy):
    """As a service manager does it: the switch is inherited over exec."""
    launcher = (
        "import ctypes, os, sys; libc = ctypes.CDLL(None); assert libc.prctl(41, 1, 0, 0, 0) == 0; "
        "os.execve(sys.argv[1], sys.argv[1:], eval(os.environ['HIDDEN']))"
    )
    with testbed.no_pool():
        env = testbed.clean(HIDDEN=repr(testbed.preloaded(policy, tmp_path)))
        fine(testbed.run([sys.executable, "-c", launcher, PYTHON, "-c", PROGRAM], env=env))
    record = testbed.only_record(tmp_path)
    expected = {"auto": {"thp_disabled"}, "thp": {"thp_disabled"}, "hugetlb": {"pool_empty"}, "base": set()}
    assert record["peak_huge"] == 0
    if policy == "dense":
        assert set(record["fallbacks"]) <= {"thp_disabled", "collapse_refused"}
    else:
        assert set(record["fallbacks"]) == expected[policy]


# --- the hugetlb pool ---


def test_a_pool_half_as_large_as_needed(play, tmp_path):
    with testbed.pool(64):
        fine(play(PROGRAM, "hugetlb"))
    need = testbed.only_record(tmp_path)
    assert 20 <= need["arenas_peak"] < 64 and set(need["fallbacks"]) == set(), need
    half = need["arenas_peak"] // 2
    for file in tmp_path.iterdir():
        file.unlink()
    with testbed.pool(half):
        fine(play(PROGRAM, "hugetlb"))
        assert testbed.free_pool() == half, "the process ended and pages of the pool are still taken"
    record = testbed.only_record(tmp_path)
    # The end of a large block, less than a huge page, is not taken from the pool.
    assert record["fallbacks"].pop("pool_empty") >= need["arenas_peak"] - LARGE_BLOCKS - half
    assert set(record["fallbacks"]) <= {"no_huge_page", "latency"}


def test_a_pool_of_zero_is_as_thp(play, tmp_path):
    found = {}
    for policy in ("thp", "hugetlb"):
        with testbed.no_pool():
            fine(play(PROGRAM, policy))
        found[policy] = testbed.only_record(tmp_path)
        for file in tmp_path.iterdir():
            file.unlink()
    thp, hugetlb = found["thp"], found["hugetlb"]
    assert hugetlb["fallbacks"].pop("pool_empty") > 0 and hugetlb["arenas_hugetlb"] == 0
    assert hugetlb["effective"] == "thp"
    assert abs(hugetlb["arenas_peak"] - thp["arenas_peak"]) <= 1
    if not thp["fallbacks"] and not hugetlb["fallbacks"]:
        assert hugetlb["peak_huge"] == pytest.approx(thp["peak_huge"], rel=0.1)


CHILD = """
import os
rows = [[n, n + 1] for n in range(200_000)]
data = bytearray(b"a") * (8 << 20)
pid = os.fork()
if pid == 0:
    for row in rows:
        row[0] += 1; row.append(row[0])
    data[:] = b"b" * len(data)
    fresh = [str(n) for n in range(100_000)]
    assert sum(row[2] for row in rows) == 20000100000 and data.count(b"b") == len(data)
    os._exit(0)
for row in rows:
    row[1] += 1
data[:] = b"c" * len(data)
status = os.waitpid(pid, 0)[1]
print(status, sum(row[0] for row in rows), data.count(b"c"))
"""


def test_a_forked_child_writes_to_everything_with_an_empty_pool(play, tmp_path):
    """Without the guard the kernel kills such a child with SIGBUS."""
    for pages in (6, 16):
        with testbed.pool(pages):
            result = play(CHILD, "hugetlb")
        fine(result, f"0 19999900000 {8 << 20}\n")
        records = testbed.records(tmp_path)
        assert len(records) == 2 and all(record["policy"] == "hugetlb" for record in records.values())
        (parent,) = (record for record in records.values() if record["parent"] not in records)
        assert parent["forks"] == 1 and parent["fallbacks"].get("pool_empty", 0) > 0, "the pool was never empty"
        for file in tmp_path.iterdir():
            file.unlink()


# --- limits of the process ---


GREEDY = """
rows = []
try:
    while True:
        rows.append([bytes(400) for _ in range(1000)])
except MemoryError:
    count = len(rows)
    del rows
    print("MemoryError", count > 10)
again = [bytes(400) for _ in range(50_000)]
print(len(again))
"""


@pytest.mark.parametrize("policy", testbed.POLICIES)
@pytest.mark.parametrize("megabytes", [150, 400])
def test_no_address_space_left_raises_memory_error(play, tmp_path, megabytes, policy):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    fine(play(GREEDY, policy, preexec_fn=limit), "MemoryError True\n50000\n")
    record = testbed.only_record(tmp_path)
    assert record["state"] in ("hooked", "no_memory")
    if record["state"] == "hooked":
        reasons = set(record["fallbacks"]) - {"pool_empty", "no_huge_page", "latency"}
        assert reasons and reasons <= {"address_space", "out_of_memory", "no_thread", "mapping_limit"}


@pytest.mark.parametrize("megabytes", [40, 64, 100])
def test_start_with_little_address_space(megabytes):
    """Where stock starts, hugeheap starts."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [PYTHON, "-S", "-c", "print(sum(range(1000)))"]
    stock = testbed.run(command, preexec_fn=limit)
    if stock.returncode != 0:
        pytest.skip(f"stock does not start with {megabytes} MiB of address space")
    fine(testbed.run(command, env=testbed.preloaded(), preexec_fn=limit), "499500\n")


IDLE = """
import os, time
rows = [str(n) for n in range(400_000)]
del rows
time.sleep(0.5)
more = [str(n) for n in range(400_000)]
del more
print(len(os.listdir("/proc/self/task")))
"""


def test_no_thread_is_possible():
    """`ulimit -u`: the program goes on, and what the thread would have done is done when memory is freed."""
    testbed.need_root()

    def unprivileged():
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        os.setgid(54321)
        os.setuid(54321)

    # The folders of the build and of pytest are closed to another user.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        library = shutil.copy(testbed.find_library(), place)
        env = {**testbed.preloaded("auto", place, HUGEHEAP_DECAY="0.05"), "LD_PRELOAD": library}
        result = testbed.run([testbed.reachable_python(), "-c", IDLE], env=env, preexec_fn=unprivileged, cwd=place)
        fine(result, "1\n")
        record = testbed.only_record(place)
    assert record["fallbacks"].pop("no_thread") >= 1
    assert set(record["fallbacks"]) <= {"no_huge_page", "latency"}


SPARSE = """
import random, time
random.seed(1)
rows = [bytes(random.randrange(800, 2000)) for _ in range(40_000)]
random.shuffle(rows)
del rows[4_000:]
time.sleep(3)
print(len(rows), sum(map(any, rows)))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of membarrier is that of x86-64")
@pytest.mark.parametrize("allowed", [True, False])
def test_a_filter_of_system_calls_refuses_the_barrier(tmp_path, allowed):
    """As containers' profiles of old do: vacant OS pages stay, the reason is counted once, and no huge page is broken for it."""
    env = testbed.preloaded("auto", tmp_path, "objects", HUGEHEAP_DECAY="0.2")
    filtered = {} if allowed else {"preexec_fn": testbed.refuse_call(324, errno.EPERM)}
    fine(testbed.run([PYTHON, "-c", SPARSE], env=env, **filtered), "4000 0\n")
    record = testbed.only_record(tmp_path)
    assert record["fallbacks"].get("no_barrier", 0) == (0 if allowed else 1)
    assert record["vacated"] > 8 << 20 if allowed else record["vacated"] == 0, record


# --- telemetry, start ---


@pytest.mark.parametrize("kind", ["missing", "a file", "not writable"])
def test_a_telemetry_directory_that_cannot_be_used(tmp_path, kind):
    """The program runs; no record is better than no program."""
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("mine")
    elif kind == "not writable":
        place = Path("/proc/self")
    result = testbed.run([PYTHON, "-c", PROGRAM], env=testbed.preloaded("auto", place))
    assert (result.returncode, result.stdout) == (0, OUTPUT)
    told = "hugeheap: HUGEHEAP_TELEMETRY must be an existing directory, with a name of at most 511 bytes; no record is kept\n"
    # One that cannot be written is no mistake of the value's.
    assert result.stderr == ("" if kind == "not writable" else told)
    assert kind != "a file" or place.read_text() == "mine"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("gc-minr:-", 'there is no section "gc-minr": there are gc-minor, gc-major and arena'),
        ("yes", "no file is named: write gc-minor,gc-major,arena:FILE, with - for stderr"),
        ("gc-minor:/nowhere/at/all", ""),
        ("", ""),
    ],
)
def test_a_log_that_is_not_understood_is_told_where_there_is_no_heap_to_log(tmp_path, value, told):
    """Only who made a garbage-collected heap looked at it. The program is on hugeheap; shells and their tools say nothing."""
    env = {**testbed.preloaded("auto", tmp_path), "HUGEHEAP_LOG": value}
    told = told and f"hugeheap: HUGEHEAP_LOG: {told}; nothing is logged\n"
    result = testbed.run(["sh", "-c", 'cat /dev/null; exec "$@"', "sh", PYTHON, "-c", PROGRAM], env=env)
    assert (result.returncode, result.stdout, result.stderr) == (0, OUTPUT, told)
    assert "hooked" in [record["state"] for record in testbed.records(tmp_path).values()]


@pytest.mark.parametrize("size", [0, 4095])
def test_no_file_as_large_as_a_record_may_be_made(tmp_path, size):
    """`ulimit -f`: the kernel answers a file that grows beyond it with SIGXFSZ."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    fine(testbed.run([PYTHON, "-c", PROGRAM], env=testbed.preloaded("auto", tmp_path), preexec_fn=limit))
    assert list(tmp_path.iterdir()) == []


def test_a_child_may_make_no_files(play, tmp_path):
    """The limit is set while the program runs: its child makes no record, and lives."""
    code = """
import os, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
child = os.fork()
if child == 0:
    os._exit(len([[n] for n in range(100_000)]) != 100_000)
print(os.waitpid(child, 0)[1])
"""
    # CPython ignores the signal; a program that gave it its default action back dies of it.
    fine(play(f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL){code}"), "0\n")
    assert len(list(tmp_path.iterdir())) == 1


def resident_at_the_end(version, env):
    """Of `python -c pass`, in KiB, median of five."""
    code = "import re; print(re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    results = [testbed.run([INTERPRETERS[version], "-c", code], env=env) for _ in range(5)]
    assert all(result.returncode == 0 for result in results)
    return statistics.median(int(result.stdout) for result in results)


@functools.cache
def resident_on_stock(version):
    return resident_at_the_end(version, testbed.clean())


@pytest.mark.parametrize("version", INTERPRETERS, ids=lambda one: f"{one[0]}.{one[1]}")
@pytest.mark.parametrize("policy", ["auto", "thp", "dense", "base"])
def test_start_up_takes_at_most_3_mib_more(version, policy):
    more = resident_at_the_end(version, testbed.preloaded(policy)) - resident_on_stock(version)
    assert more <= 3 << 10, f"{more} KiB above stock"


def test_the_reasons_are_those_of_the_documents():
    """The names that are counted are the names an operator can look up."""
    text = (testbed.ROOT / "docs" / "reference" / "telemetry-record.md").read_text()
    part = text.split("## Fallbacks", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"^\| *(?:\d+ *\| *)?`(\w+)`", part, re.MULTILINE) == testbed.REASONS
