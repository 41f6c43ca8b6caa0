"""CPython's own regression tests, on hugeheap as on stock.

Guarded for users: an interpreter started with the preload library behaves as the same interpreter without it, by CPython's own measure.

What runs where, in about five minutes on two processors:

* 3.11 (or, without one, the oldest version found): everything at every policy, `hugetlb` once with a pool of 8 pages (as root) and once
  with none;
* every other installed version from 3.10 on: everything at `auto`;
* level `objects`: everything at `auto` on every version.

Each version is started from an empty virtual environment, because packages installed beside an interpreter may run code at its start
(`.pth` files), and then tests of CPython fail or hang: those of subinterpreters hang when `threading` is imported too early.

Each version runs once without the library first. What fails or hangs there is no fault of the library: it is printed (`-s` or a failure
shows it) and left out of the runs that follow, method by method where a method failed, the whole file where it hung or crashed.

Many of these tests wait for a fixed time, and fail on a machine that is too busy. So what fails with the library is repeated, alone, with
and without it in turn:

    failed once with the library ── crashed, or hugeheap spoke ──────────────────────── a fault
                                 └─ repeated ── with it again, never without ────────── a fault
                                             └─ on both, or on neither ──────────────── excused, and reported as a warning
"""

import concurrent.futures
import os
import re
import tempfile
import warnings
import xml.etree.ElementTree as ElementTree
from typing import NamedTuple

import pytest
import testbed

# Each lasts longer than others, who may want to change a knob, can wait.
pytestmark = pytest.mark.any_host

FILES = """test_gc test_list test_dict test_set test_json test_pickle test_threading test_subprocess test_interpreters
test__xxsubinterpreters test_tracemalloc test_capi""".split()
INTERPRETERS = testbed.find_interpreters()
MAIN = (3, 11) if (3, 11) in INTERPRETERS else min(INTERPRETERS, default=None)
# More than processors: these tests mostly wait. With 4 a run takes 40 s instead of 25 s.
JOBS = 8
# Runs at once: one keeps a processor busy, and two take 35 s together. Beside other tests the second processor is theirs.
RUNS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
# Seconds for a file; the longest takes 26.
FILE_TIMEOUT = 240
# Seconds for all files: three rounds of a file that hangs.
TIMEOUT = 3 * FILE_TIMEOUT
# A test that fails every third time on a busy machine passes as often by chance in 3 of 10 cases.
REPEATS = 3

# The installations of some releases lack test_multiprocessing_fork (3.11.7, 3.12.1), which is hardly more than this. In three files,
# because it takes longest; without the classes WithThreads…, in which nothing forks.
FORK_FILES = {
    "test_fork_processes": 'name.startswith("WithProcesses")',
    "test_fork_manager": 'name.startswith("WithManager")',
    "test_fork_misc": 'not name.startswith("With")',
}
FORK_FILE = """
from test._test_multiprocessing import install_tests_in_module_dict

install_tests_in_module_dict(globals(), "fork")
for name, one in list(globals().items()):
    if isinstance(one, type) and not ({condition}):
        del globals()[name]
"""

LINE = re.compile(r"\[ *\d+/\d+(?:/\d+)?\] (test[\w.]+) (.+)$", re.MULTILINE)
GOOD = re.compile("passed|skipped|run no tests")
# What a busy machine does not do: a process that ends by a signal, a message of hugeheap's.
CRASH = re.compile(
    r"code is -|[Ee]xit code (-|1[23]\d)|Fatal Python error|SIG(SEGV|BUS|ABRT|ILL)|hugeheap:|Error: -(6|7|11) != |!= -(6|7|11)$", re.MULTILINE
)


def name(version):
    return ".".join(map(str, version))


class Outcome:
    """What a run of CPython's tests said: the state of each file, and the methods that failed, with their text."""

    def __init__(self, process, report):
        self.text = process.stdout + process.stderr
        self.files = {file: state.split(" -- running")[0] for file, state in LINE.findall(process.stdout)}
        self.bad_methods, self.ran = {}, 0
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                self.ran += 1
                marks = [mark for mark in case if mark.tag in ("failure", "error")]
                if marks:
                    self.bad_methods[case.get("name")] = "\n".join("".join(mark.itertext()) for mark in marks)
        bad = {file: state for file, state in self.files.items() if not GOOD.match(state)}
        self.bad_files = set(bad)
        # A file without a failed method hung or crashed.
        self.broken = {file: state for file, state in bad.items() if not any(within(one, file) for one in self.bad_methods)}

    def faults(self):
        return {**self.broken, **self.bad_methods}

    def excerpt(self):
        lines = [line for line in self.text.splitlines() if not line.startswith("  File ")]
        return "\n".join(lines[-80:])


def within(method, file):
    return f".{method}".startswith(f".{file}.")


def play(python, place, files, env, leave_out=(), only=()):
    """Runs files of tests; `place` has what is no part of CPython, and gets a directory for this run."""
    work = tempfile.mkdtemp(dir=place)
    report = testbed.Path(work) / "report.xml"
    chosen = [word for flag, methods in (("-i", leave_out), ("-m", only)) for one in sorted(methods) for word in (flag, one)]
    options = [f"-j{JOBS}", "--timeout", FILE_TIMEOUT, "--junit-xml", report, "--testdir", place]
    # Short, because the tests make sockets in it, whose paths have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="hh", ignore_cleanup_errors=True) as temporary:
        command = [python, "-m", "test", *options, *chosen, *files]
        process = testbed.run(command, env={**env, "TMPDIR": temporary}, timeout=TIMEOUT, cwd=work)
    return Outcome(process, report)


def differences(python, place, outcome, env):
    """What of the faults of a run with the library is the library's; all others become warnings."""
    found = {}
    for one, text in sorted(outcome.faults().items()):
        if CRASH.search(text):
            found[one] = text
            continue
        # A method is asked for by its name, within its file.
        file = next((file for file in outcome.files if within(one, file)), one)
        only = [] if one == file else [one]
        ours = theirs = 0
        for _ in range(REPEATS):
            for with_library in (False, True):
                again = play(python, place, [file], env if with_library else testbed.clean(), only=only)
                crash = [text for text in again.faults().values() if CRASH.search(text)]
                if with_library and crash:
                    found[one] = crash[0]
                ours += with_library and bool(again.bad_files)
                theirs += not with_library and bool(again.bad_files)
        if one not in found and ours and not theirs:
            found[one] = text
        if one not in found:
            warnings.warn(
                f"{one} failed; repeated {REPEATS} times it failed {ours} times on hugeheap, {theirs} times on stock: {text[-500:]}",
                stacklevel=2,
            )
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where `play` finds the tests about fork."""
    place = tmp_path_factory.mktemp("tests")
    for file, condition in FORK_FILES.items():
        (place / f"{file}.py").write_text(FORK_FILE.format(condition=condition))
    return place


def play_stock(version, place, venv):
    """The tests without the library: (interpreter, files to run, methods to leave out)."""
    made = testbed.run([INTERPRETERS[version], "-m", "venv", "--without-pip", venv])
    assert made.returncode == 0, made.stderr
    python = venv / "bin" / "python"
    code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n)])"
    files = testbed.run([python, "-c", code, *(f"test.{file}" for file in FILES)]).stdout.split()
    files += FORK_FILES
    outcome = play(python, place, files, testbed.clean())
    assert outcome.files, f"CPython's tests did not start on stock {name(version)}:\n{outcome.excerpt()}"
    if outcome.faults():
        print(f"stock CPython {name(version)} fails here: {sorted(outcome.bad_methods)}; hangs: {sorted(outcome.broken)}")
    kept = [file for file in files if file not in outcome.broken]
    assert len(kept) >= 12, f"too little runs on stock {name(version)}: {kept}\n{outcome.excerpt()}"
    return python, kept, outcome.bad_methods


class Case(NamedTuple):
    """What the tests run on."""

    version: tuple
    policy: str = "auto"
    level: str = "arenas"

    def __str__(self):
        return f"{name(self.version)}-{self.policy}-{self.level}"


CASES = [
    *(Case(MAIN, policy) for policy in testbed.POLICIES if policy != "hugetlb"),
    *(Case(one) for one in INTERPRETERS if one != MAIN),
    *(Case(one, level="objects") for one in INTERPRETERS),
]


@pytest.fixture(scope="module")
def runs(request, place, tmp_path_factory):
    """The runs of the cases that were asked for, begun with the first and so many at once: `stock(version)` and `ours(case)` wait for them."""
    tests = [item for item in request.session.items if item.module is request.module and hasattr(item, "callspec")]
    asked = [item.callspec.params["case"] for item in tests if "case" in item.callspec.params]
    versions = dict.fromkeys([MAIN, *(case.version for case in asked)])
    with concurrent.futures.ThreadPoolExecutor(RUNS) as pool:
        # Stock first: no run with the library waits for one that has not begun.
        stock = {one: pool.submit(play_stock, one, place, tmp_path_factory.mktemp("venv")) for one in versions}

        def run(case):
            python, files, leave_out = stock[case.version].result()
            records = tmp_path_factory.mktemp("records")
            return play(python, place, files, testbed.preloaded(case.policy, records, case.level), leave_out), records

        ours = {case: pool.submit(run, case) for case in asked}
        yield lambda version: stock[version].result(), lambda case: ours[case].result()
        pool.shutdown(cancel_futures=True)


def judge(stock, place, case, outcome, records):
    python, files, _ = stock(case.version)
    env, level = testbed.preloaded(case.policy, records, case.level), case.level
    hooked = [record for record in testbed.records(records, kills=True).values() if record["state"] == "hooked"]
    assert set(outcome.files) == set(files) and outcome.ran > 2000, outcome.excerpt()
    assert len(hooked) >= len(files), "the library was not in the processes that ran the tests"
    # A few processes are started with debugging modes, in which objects come from the interpreter's allocators.
    assert sum(record["level"] == level for record in hooked) > len(hooked) // 2
    assert any(record["arenas_peak"] > 1 for record in hooked)
    assert sum(record["forks"] for record in hooked) > 50, "multiprocessing did not fork on hugeheap"
    found = differences(python, place, outcome, env)
    assert not found, "\n\n".join(f"{one} fails on hugeheap only:\n{text}" for one, text in found.items())
    return hooked


def test_there_is_an_interpreter():
    assert INTERPRETERS, "no CPython from 3.10 on with its `test` package found"


def hugetlb(stock, place, records):
    """A run of its own: the pool belongs to the host."""
    python, files, leave_out = stock(MAIN)
    case = Case(MAIN, "hugetlb")
    outcome = play(python, place, files, testbed.preloaded(case.policy, records), leave_out)
    return judge(stock, place, case, outcome, records)


# These first: the other runs go on beside them.
def test_hugetlb(runs, place, tmp_path):
    with testbed.pool_for("hugetlb"):
        hooked = hugetlb(runs[0], place, tmp_path)
    assert {record["policy"] for record in hooked} == {"hugetlb"}


def test_hugetlb_without_a_pool(runs, place, tmp_path):
    with testbed.no_pool():
        hooked = hugetlb(runs[0], place, tmp_path)
    assert any("pool_empty" in record["fallbacks"] for record in hooked)
    assert all(record["arenas_hugetlb"] == 0 for record in hooked)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_policy_version_and_level(runs, place, case):
    stock, ours = runs
    hooked = judge(stock, place, case, *ours(case))
    assert {record["policy"] for record in hooked} == {case.policy}


# What a fault looks like, and what does not: `first` is true the first time that its method runs with the library.
FAULTY = """
import os, time, unittest

library = "libhugeheap" in open("/proc/self/maps").read()


class Tests(unittest.TestCase):
    def setUp(self):
        mark = os.path.join(os.path.dirname(__file__), self._testMethodName)
        self.first = library and not os.path.exists(mark)
        if library:
            open(mark, "w").close()

    def test_{kind}(self):
        {body}
"""


@pytest.mark.parametrize(
    ("kind", "body", "fault"),
    [
        ("always", "self.assertFalse(library)", True),
        ("everywhere", "self.assertTrue(False)", False),
        ("once", "self.assertFalse(self.first)", False),
        ("crash", "self.first and os.abort()", True),
        ("child", "self.assertEqual(-11 if self.first else 0, 0)", True),
    ],
)
def test_a_fault_is_told_from_a_busy_machine(kind, body, fault, tmp_path):
    (tmp_path / f"test_{kind}.py").write_text(FAULTY.format(kind=kind, body=body))
    python, env = INTERPRETERS[MAIN], testbed.preloaded()
    outcome = play(python, tmp_path, [f"test_{kind}"], env)
    assert outcome.bad_files == {f"test_{kind}"}, outcome.excerpt()
    if fault:
        assert differences(python, tmp_path, outcome, env)
    else:
        with pytest.warns(UserWarning, match="repeated"):
            assert not differences(python, tmp_path, outcome, env)
