"""Whole programs on hugeheap: the same output and status as on stock, at every policy and on every installed version.

Guarded for users: pip, venv, fork-heavy programs, worker pools, subinterpreters, threads, deep recursion, blocks that grow and shrink over
the 1 MiB from which on hugeheap holds them, CPython's debugging modes; and that forking warns of no threads a program did not start.
Each program, or mode, runs at every policy, on every installed version and at both levels, and each two of these meet (`covering.py`). What
makes a virtual environment runs on every version at both levels, and at every policy. `make test-all` runs all combinations.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import testbed
from covering import EVERYTHING, covering

INTERPRETERS = testbed.find_interpreters()


class Case(NamedTuple):
    """What a program runs on."""

    version: tuple
    policy: str
    level: str

    def __str__(self):
        return f"3.{self.version[1]}-{self.policy}-{self.level}"


CASES = {"version": list(INTERPRETERS), "policy": testbed.POLICIES, "level": testbed.LEVELS}
FEW_CASES = [Case(*row) for row in covering(CASES, [("version", "level"), ("policy",)])]
# Those versions that count threads at a fork.
COUNTING = [one for one in INTERPRETERS if one >= (3, 12)]
# Each child writes to a seventh of what it inherits: these are several rounds of that.
CHILDREN = 200 if EVERYTHING else 50

FORKS = """
import os, sys
live = [[n, str(n), {n: bytes(8)}] for n in range(20_000)]
big = bytearray(b"x") * (3 << 20)
def verify(mark):
    for n, (number, text, table) in enumerate(live):
        assert (number, text, len(table[n])) == (n, str(n), mark), n
good = 0
for child in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for n in range(child % 7, len(live), 7):
                live[n][2][n] = bytes(8)
            big[child << 12] = 1
            more = [(n, child) for n in range(3_000)]
            del live[::2]
            assert sum(n for n, _ in more) == 4_498_500 and all(row[2][row[0]] == bytes(8) for row in live)
            assert big.count(1) == 1
            status = 0
        finally:
            os._exit(status)
    good += os.waitpid(pid, 0)[1] == 0
    if child % 20 == 0:
        live.append([len(live), str(len(live)), {len(live): bytes(8)}])
verify(8)
print(good, len(live), big.count(1))
"""

POOL = """
import multiprocessing, sys
def work(n):
    rows = [(n, k, str(k)) for k in range(20_000)]
    return sum(len(text) + k for _, k, text in rows), bytes([n % 256]) * (2 << 20)
if __name__ == "__main__":
    shared = [str(n) for n in range(100_000)]
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        for n, (total, data) in enumerate(pool.imap(work, range(12))):
            assert data.count(n) == len(data)
            print(n, total)
    print(len(shared), shared[-1])
"""

SUBINTERPRETERS = """
import threading
try:
    import _interpreters as interpreters
    run = interpreters.run_string
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
code = '''
rows = [[n, str(n)] for n in range(50_000)]
assert sum(n for n, _ in rows) == 1_249_975_000
del rows[::2]
assert all(str(n) == text for n, text in rows)
'''
def one():
    for _ in range(4):
        interpreter = interpreters.create()
        try:
            failure = run(interpreter, code)
            assert failure is None, failure
        finally:
            interpreters.destroy(interpreter)
    done.append(1)
done = []
one()
import sys
if sys.version_info >= (3, 12):  # Before, subinterpreters in several threads are not safe on stock.
    threads = [threading.Thread(target=one) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(done) == 4
print("done")
"""

THREADS = """
from concurrent.futures import ThreadPoolExecutor
def work(n):
    keep = []
    for round in range(20):
        keep.append([(n, round, str(k)) for k in range(3_000)])
        if round % 3 == 2:
            del keep[0]
    assert all(row[0] == n for rows in keep for row in rows)
    return n, sum(map(len, keep))
with ThreadPoolExecutor(8) as pool:
    print(list(pool.map(work, range(40))))
"""

RECURSION = """
import sys, threading
sys.setrecursionlimit(1_000_000)
def deep(n, *rest):
    return 0 if n == 0 else 1 + deep(n - 1, n, *rest[:3])
def run():
    for depth in (10, 20_000, 100, 20_000, 40_000):
        print(depth, deep(depth))
threading.stack_size(1 << 29)
threads = [threading.Thread(target=run)]
[(thread.start(), thread.join()) for thread in threads]
"""

LISTS = """
import random
random.seed(1)
lists = [[] for _ in range(6)]
expected = [0] * 6
for step in range(400):
    at = random.randrange(6)
    if random.random() < 0.6:
        more = random.randrange(60_000)
        lists[at].extend(range(expected[at], expected[at] + more))
        expected[at] += more
    else:
        expected[at] = random.randrange(expected[at] + 1)
        del lists[at][expected[at]:]
    one = lists[at]
    assert len(one) == expected[at]
    assert one[:1] in ([], [0]) and all(one[k] == k for k in range(0, len(one), 997))
assert all(one == list(range(len(one))) for one in lists)
table = {n: n * n for n in range(200_000)}
for n in range(0, 200_000, 2):
    del table[n]
table.update((n, -n) for n in range(300_000, 500_000))
print([len(one) for one in lists], len(table), sum(table.values()))
import sys
print(sys.getsizeof(lists[0]) > 0, max(map(len, lists)) * 8 > 2 << 20)
"""

BUFFERS = """
import random
random.seed(2)
for near in (1 << 20, 2 << 20, 512 << 10):
    data = bytearray()
    model = 0
    for size in [near - 60, near - 1, near, near + 1, 3 * near, near // 2, near // 2 - 60, 0] * 3 + [
        random.randrange(3 * near) for _ in range(60)
    ]:
        if size > len(data):
            old = len(data)
            data.extend(bytes([k * 7 % 256 for k in range(old // 4096, size // 4096 + 1)])[:1] * (size - old))
            data[old : old + 1], data[size - 1] = b"a", 122
        else:
            del data[size:]
        assert len(data) == size
        assert size == 0 or data[0] == 97
        model = (model * 31 + sum(data[::4099])) % 1_000_000_007
    print(near, model, len(data))
whole = b""
for k in range(40):
    whole += bytes([k]) * 50_000
assert all(whole[k * 50_000] == k and whole[(k + 1) * 50_000 - 1] == k for k in range(40))
print(len(whole), len(bytes(3 << 20).replace(bytes(1), bytes(2))), bytes(5 << 20).count(0))
"""

# What the debugging modes check: many sizes, resized and freed, also above 1 MiB.
ALLOCATIONS = """
rows = [[n, str(n) * (n % 50), bytearray(n % 2000)] for n in range(20_000)]
for row in rows:
    row[2].extend(bytes(600))
big = [bytearray(1 << 20) + b"x" for _ in range(8)]
for one in big:
    one.extend(bytes(1 << 20)); del one[1000:]
del rows[::3]
print(len(rows), sum(len(row[1]) for row in rows), sum(map(len, big)))
"""

TRACING = """
import tracemalloc
before = [bytes(2 << 20), [0] * 300_000, [str(n) for n in range(30_000)]]
tracemalloc.start(5)
rows = [str(n) for n in range(50_000)]
big = bytearray(4 << 20)
before[1].extend([1] * 300_000)
size, peak = tracemalloc.get_traced_memory()
assert size > (4 << 20) + 50_000 * 50, size
del big, rows
after, _ = tracemalloc.get_traced_memory()
assert after < size - (4 << 20), (size, after)
tracemalloc.stop()
before[1].extend([2] * 600_000)
print([len(one) for one in before], sum(before[1]))
"""

# Forks at once after much was freed: the maintenance thread then has work to do.
FORK_AFTER_BURST = """
import os, time
for round in range(8):
    rows = [(n, str(n)) for n in range(300_000)]
    big = [bytearray(4 << 20) for _ in range(4)]
    del rows, big
    time.sleep(round * 0.05)
    pid = os.fork()
    if pid == 0:
        more = [str(n) for n in range(50_000)]
        os._exit(len(more) != 50_000)
    assert os.waitpid(pid, 0)[1] == 0
print("no warning")
"""

SCRIPTS = {
    "forks": ([str(CHILDREN)], FORKS),
    "pool-fork": (["fork"], POOL),
    "pool-spawn": (["spawn"], POOL),
    "subinterpreters": ([], SUBINTERPRETERS),
    "threads": ([], THREADS),
    "recursion": ([], RECURSION),
    "lists": ([], LISTS),
    "buffers": ([], BUFFERS),
    "tracing": ([], TRACING),
}
MODES = {
    "malloc": ({"PYTHONMALLOC": "malloc"}, []),
    "debug": ({"PYTHONMALLOC": "debug"}, []),
    "pymalloc_debug": ({"PYTHONMALLOC": "pymalloc_debug"}, []),
    "dev": ({}, ["-X", "dev"]),
    "tracemalloc": ({"PYTHONTRACEMALLOC": "3"}, []),
}


@pytest.fixture(scope="module")
def stock():
    """Output of the same command without the library, once per command and version."""
    known = {}

    def stock(version, arguments, variables=()):
        key = (version, tuple(map(str, arguments)), tuple(variables))
        if key not in known:
            known[key] = testbed.run([INTERPRETERS[version], *arguments], env=testbed.clean(**dict(variables)))
        return known[key]

    return stock


def compare(stock, case, arguments, directory, variables=()):
    """Runs on hugeheap; output and status are stock's. Returns the records of all processes."""
    expected = stock(case.version, arguments, variables)
    if expected.returncode != 0:
        pytest.skip(f"fails on stock as well: {expected.stderr.strip()[-300:]}")
    records = directory / "records"
    records.mkdir()
    with testbed.pool_for(case.policy):
        env = testbed.preloaded(case.policy, records, case.level, **dict(variables))
        result = testbed.run([INTERPRETERS[case.version], *arguments], env=env)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == expected.stdout
    assert result.stderr == expected.stderr
    return testbed.records(records).values()


def crossed(name, values, **others):
    """Marks a test with cases and the values of a factor of its own."""
    rows = covering({name: list(values), **(CASES | others)})
    return pytest.mark.parametrize((name, "case"), [(value, Case(*case)) for value, *case in rows], ids=str)


@crossed("script", SCRIPTS)
def test_scripts(stock, case, script, tmp_path):
    words, text = SCRIPTS[script]
    path = tmp_path / "program.py"
    path.write_text(text)
    # The path differs from test to test, and no output contains it.
    records = compare(stock, case, [path, *words], tmp_path)
    assert any(record["state"] == "hooked" and record["arenas_peak"] > 0 for record in records)
    assert all(record["level"] == case.level for record in records)
    if script == "forks":
        assert len(records) == CHILDREN + 1, "every child has a record of its own"


@crossed("mode", MODES)
def test_debugging_modes(stock, case, mode, tmp_path):
    variables, options = MODES[mode]
    records = compare(stock, case, [*options, "-c", ALLOCATIONS], tmp_path, tuple(variables.items()))
    (record,) = records
    assert record["state"] == ("other_allocator" if mode == "malloc" else "hooked")
    # The others put allocators of the interpreter's in place of the level's.
    assert record["level"] == (case.level if mode == "tracemalloc" else "arenas")


@pytest.mark.parametrize("case", FEW_CASES, ids=str)
def test_pip(stock, case, tmp_path):
    compare(stock, case, ["-m", "pip", "--version"], tmp_path)


# Installing pip takes most of the time, and is the same program at each level.
WITH_PIP = covering({"version": list(INTERPRETERS), "level": testbed.LEVELS}, [("version",), ("level",)])


@pytest.mark.parametrize("case", FEW_CASES, ids=str)
def test_a_venv_is_made_and_works(case, tmp_path):
    place = tmp_path / "venv"
    # Debian leaves out the package that brings pip.
    pip = (case.version, case.level) in WITH_PIP and testbed.run([INTERPRETERS[case.version], "-m", "ensurepip", "--version"]).returncode == 0
    without = [] if pip else ["--without-pip"]
    with testbed.pool_for(case.policy):
        env = testbed.preloaded(case.policy, level=case.level)
        made = testbed.run([INTERPRETERS[case.version], "-m", "venv", *without, place], env=env)
        assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
        used = testbed.run([place / "bin" / "python", "-c", "import sys; print(sys.prefix)"], env=env)
    assert (used.returncode, used.stdout, used.stderr) == (0, f"{place}\n", "")
    if pip:
        listed = testbed.run([place / "bin" / "pip", "--version"], env=env)
        assert listed.returncode == 0 and str(place) in listed.stdout


@crossed("decay", ["0.001", "1"], version=COUNTING)
def test_forking_warns_of_no_thread_the_program_did_not_start(stock, case, decay, tmp_path):
    # Not `error`: os.fork drops the exception that the warning then becomes, and nothing is seen.
    arguments = ["-W", "always::DeprecationWarning", "-c", FORK_AFTER_BURST]
    records = compare(stock, case, arguments, tmp_path, [("HUGEHEAP_DECAY", decay)])
    assert len(records) == 9 and all(record["state"] == "hooked" for record in records)
    assert any(record["passes"] > 0 and record["given_back"] > 0 for record in records), "no work for the thread"


@pytest.mark.parametrize("version", COUNTING, ids=lambda one: f"3.{one[1]}")
def test_the_warning_would_be_noticed(stock, version):
    """On stock, with a thread of the program's own: what the test above looks for is there."""
    thread = "import threading; end = threading.Event(); threading.Thread(target=end.wait, daemon=True).start()"
    result = stock(version, ["-W", "always::DeprecationWarning", "-c", f"{thread}{FORK_AFTER_BURST}"])
    assert "multi-threaded" in result.stderr


# Workers build, somebody else drops what they built, and they wait for work that does not come, or have ended.
RESULTS = """
import gc, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
count, ends = int(sys.argv[1]), sys.argv[2] == "ends"
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def build(_):
    barrier.wait()
    return [(number, number + 1) for number in range(1000, 1000 + 2_000_000 // count)]
barrier = threading.Barrier(count)
before = resident()
pool = ThreadPoolExecutor(count)
results = list(pool.map(build, range(count)))
if ends:
    pool.shutdown()
built = resident() - before
del results
gc.collect()
end = time.monotonic() + 60
while resident() - before > built // 4 and time.monotonic() < end:
    time.sleep(0.1)
print(built > 150 << 20, (resident() - before) * 100 // built)
pool.shutdown()
"""


@pytest.mark.any_host
@pytest.mark.parametrize(
    ("version", "count", "end"),
    covering({"version": list(INTERPRETERS), "count": [4, 24], "end": ["waits", "ends"]}),
    ids=lambda one: f"3.{one[1]}" if isinstance(one, tuple) else None,
)
def test_what_a_worker_built_is_given_back_though_it_does_nothing_more(version, count, end, tmp_path):
    """With four workers that wait, all of it stayed with their heaps; with 24 that had ended, what they had built in the heap that many threads share."""
    program = tmp_path / "results.py"
    program.write_text(RESULTS)
    env = testbed.preloaded(level="objects", HUGEHEAP_DECAY="0.2")
    result = testbed.run([INTERPRETERS[version], program, count, end], env=env)
    assert (result.returncode, result.stderr) == (0, "")
    large, percent = result.stdout.split()
    assert large == "True" and int(percent) <= 25, result.stdout


# A thread of a sub-interpreter for which there is no memory for a heap: heaps are made eight at a time, and as
# many as argv says were made before.
WITHOUT_HEAPS = """
import os, sys, threading
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
end, ready, go, done = threading.Event(), threading.Semaphore(0), threading.Event(), threading.Event()
def wait(interpreter=None):
    if interpreter is not None:
        interpreters.run_string(interpreter, "pass")
    kept = [object()]
    ready.release()
    end.wait()
for number in range(16 + int(sys.argv[1])):
    interpreter = (interpreters.create(),) if number >= 16 else ()
    threading.Thread(target=wait, args=interpreter, daemon=True).start()
    ready.acquire()
last = interpreters.create()
def work():
    go.wait()
    try:
        interpreters.run_string(last, "rows = [str(number) for number in range(1000)]; del rows")
    except BaseException as error:
        print(type(error).__name__)
    done.set()
threading.Thread(target=work).start()
# By another process: what is reserved stays so.
size = int(open("/proc/self/statm").read().split()[0]) * 4096
if os.system(f"prlimit --pid {os.getpid()} --as={size + (64 << 10)}:"):
    raise SystemExit("prlimit of util-linux is needed")
go.set()
done.wait()
print("ended", flush=True)
os._exit(0)
"""


@pytest.mark.any_host
@pytest.mark.parametrize("version", COUNTING, ids=lambda one: f"3.{one[1]}")
def test_a_thread_for_which_there_is_no_heap_frees_what_it_got_elsewhere(version, tmp_path):
    """The allocator before had the memory, and freeing it there ended the process as a mistake."""
    program = tmp_path / "heaps.py"
    program.write_text(WITHOUT_HEAPS)
    for count in range(5, 13):
        result = testbed.run([INTERPRETERS[version], program, count], env=testbed.preloaded(level="objects"))
        assert (result.returncode, result.stderr) == (0, ""), count
        assert result.stdout.endswith("ended\n")


EMBEDDING = """
#include <Python.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    PyPreConfig config;
    PyPreConfig_InitPythonConfig(&config);
    config.allocator = argc > 1 ? atoi(argv[1]) : PYMEM_ALLOCATOR_NOT_SET;
    if (PyStatus_Exception(Py_PreInitialize(&config))) return 1;
    Py_Initialize();
    int wrong = PyRun_SimpleString("rows = [(n, str(n)) for n in range(100000)]");
    return Py_FinalizeEx() || wrong;
}
"""

# `PyMemAllocatorName`: not set, default, malloc, pymalloc, pymalloc with debug hooks. The interpreter sets all
# but the first over ours.
ALLOCATORS = {0: "objects", 1: "arenas", 3: "arenas", 5: "arenas", 6: "arenas"}


@pytest.mark.parametrize("version", INTERPRETERS, ids=lambda version: f"3.{version[1]}")
def test_a_program_that_sets_the_allocator_is_told_the_level_in_force(version, tmp_path):
    """`level objects` was told of programs that asked for pymalloc or malloc by `PyPreConfig.allocator`."""
    ask = "import sysconfig as s; print(s.get_path('include'), s.get_config_var('LIBDIR'), s.get_config_var('Py_ENABLE_SHARED'), sep='\\n')"
    include, libraries, shared = testbed.run([INTERPRETERS[version], "-c", ask]).stdout.split("\n")[:3]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler or shared != "1" or not Path(include, "Python.h").exists():
        pytest.skip("no compiler, or no headers and shared library of this version")
    source, program = tmp_path / "embed.c", tmp_path / "embed"
    source.write_text(EMBEDDING)
    link = [f"-I{include}", f"-L{libraries}", f"-lpython3.{version[1]}", f"-Wl,-rpath,{libraries}"]
    built = testbed.run([compiler, source, "-o", program, *link])
    assert built.returncode == 0, built.stderr
    told = {}
    for allocator in ALLOCATORS:
        telemetry = tmp_path / str(allocator)
        telemetry.mkdir()
        environment = testbed.preloaded(telemetry=telemetry, level="objects", PYTHONHOME=str(Path(libraries).parent))
        ran = testbed.run([program, allocator], env=environment)
        assert ran.returncode == 0, ran.stderr
        told[allocator] = testbed.only_record(telemetry)["level"]
    assert told == ALLOCATORS


def test_there_is_an_interpreter():
    assert INTERPRETERS, "no CPython from 3.10 on with its `test` package found"
