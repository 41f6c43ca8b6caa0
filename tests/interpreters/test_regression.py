"""CPython's own regression tests, on hugeheap as on stock.

Guarded for users: an interpreter started with the preload library behaves as the same interpreter without it, by CPython's own measure.

Everything runs on each installed version from 3.10 on, at both levels, and at each policy, `hugetlb` once with a pool of 8 pages (as root) and
once with none. These take turns: that is six runs where there are up to six versions, about three minutes on two processors. Programs at every two of
these are test_programs.py's; `make test-all` runs everything here at all combinations.

Each version is started from an empty virtual environment, because packages installed beside an interpreter may run code at its start
(`.pth` files), and then tests of CPython fail or hang: those of subinterpreters hang when `threading` is imported too early.

What fails or hangs on stock as well is no fault of the library. So once a run with the library has failed, its version runs without it: what is bad
there is printed (`-s` or a failure shows it) and forgiven, method by method where a method failed, the whole file where it hung or crashed.

Many of these tests wait for a fixed time, and fail on a machine that is too busy. So what fails with the library is repeated, alone, with
and without it in turn:

    bad with the library ── bad in the run on stock as well ──────────────────────────── forgiven, and printed
                         └─ crashed, or hugeheap spoke ───────────────────────────────── a fault
                         └─ repeated ── with it again, never without ─────────────────── a fault
                                     └─ on both, or on neither ───────────────────────── excused, and reported as a warning
"""

import concurrent.futures
import functools
import os
import re
import tempfile
import threading
import warnings
import xml.etree.ElementTree as ElementTree
from typing import NamedTuple

import pytest
import testbed
from covering import covering

# Each lasts longer than others, who may want to change a knob, can wait.
pytestmark = pytest.mark.any_host

FILES = """test_gc test_list test_dict test_set test_json test_pickle test_threading test_subprocess test_interpreters
test__xxsubinterpreters test_tracemalloc test_capi""".split()
INTERPRETERS = testbed.find_interpreters()
MAIN = (3, 11) if (3, 11) in INTERPRETERS else min(INTERPRETERS, default=None)
# More than processors: these tests mostly wait. With 4 a run takes 40 s instead of 25 s.
JOBS = 8
# Runs at once: one keeps a processor busy, and two take 35 s together. Beside other tests the second processor
# is theirs.
RUNS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
# Seconds for a file; the longest takes 26.
FILE_TIMEOUT = 240
# Seconds for all files: three rounds of a file that hangs.
TIMEOUT = 3 * FILE_TIMEOUT
# A test that fails every third time on a busy machine passes as often by chance in 3 of 10 cases.
REPEATS = 3

# The installations of some releases lack test_multiprocessing_fork (3.11.7, 3.12.1), which is hardly more than
# this. In three files, because it takes longest; without the classes WithThreads…, in which nothing forks.
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


def play(python, place, files, env, only=()):
    """Runs files of tests; `place` has what is no part of CPython, and gets a directory for this run."""
    work = tempfile.mkdtemp(dir=place)
    report = testbed.Path(work) / "report.xml"
    chosen = [word for one in only for word in ("-m", one)]
    options = [f"-j{JOBS}", "--timeout", FILE_TIMEOUT, "--junit-xml", report, "--testdir", place]
    # Short, because the tests make sockets in it, whose paths have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="hh", ignore_cleanup_errors=True) as temporary:
        command = [python, "-m", "test", *options, *chosen, *files]
        process = testbed.run(command, env={**env, "TMPDIR": temporary}, timeout=TIMEOUT, cwd=work)
    return Outcome(process, report)


def forgiven(one, stock):
    """Whether a fault, a method or a file, is one of the same run without the library, too."""
    return one in stock.faults() or any(within(one, file) for file in stock.broken)


def differences(python, place, outcome, env, stock=None):
    """What of the faults of a run with the library is the library's; all others become warnings. `stock()` answers the outcome of the same files without it."""
    found = {}
    faults = outcome.faults()
    if faults and stock:
        faults = {one: text for one, text in faults.items() if not forgiven(one, stock())}
    for one, text in sorted(faults.items()):
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


class Version:
    """An installed version in an empty virtual environment: its interpreter and which files it has, and what it says of them without the library."""

    def __init__(self, version, place, venv):
        made = testbed.run([INTERPRETERS[version], "-m", "venv", "--without-pip", venv])
        assert made.returncode == 0, made.stderr
        self.name, self.place, self.python = name(version), place, venv / "bin" / "python"
        code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n)])"
        self.files = testbed.run([self.python, "-c", code, *(f"test.{file}" for file in FILES)]).stdout.split()
        self.files += FORK_FILES

    @functools.cached_property
    def stock(self):
        outcome = play(self.python, self.place, self.files, testbed.clean())
        assert outcome.files, f"CPython's tests did not start on stock {self.name}:\n{outcome.excerpt()}"
        print(f"stock CPython {self.name} fails here: {sorted(outcome.bad_methods)}; hangs: {sorted(outcome.broken)}")
        kept = [file for file in self.files if file not in outcome.broken]
        assert len(kept) >= 12, f"too little runs on stock {self.name}: {kept}\n{outcome.excerpt()}"
        return outcome


class Case(NamedTuple):
    """What the tests run on. `pool` says of `hugetlb` whether there is one."""

    version: tuple
    level: str
    policy: str
    pool: bool = True

    def __str__(self):
        return f"{name(self.version)}-{self.policy}-{self.level}"


BACKINGS = [(policy, True) for policy in testbed.POLICIES] + [("hugetlb", False)]
ALL_CASES = [
    Case(version, level, *backing)
    for version, level, backing in covering(
        {"version": list(INTERPRETERS), "level": testbed.LEVELS, "backing": BACKINGS}, [("version",), ("level",), ("backing",)]
    )
]
CASES = [case for case in ALL_CASES if case.policy != "hugetlb"]


@pytest.fixture(scope="module")
def version(place, tmp_path_factory):
    """A version by its number, made once; of those who ask at once the later ones wait for the first."""
    made, lock = {}, threading.Lock()

    def version(number):
        with lock:
            if number not in made:
                made[number] = Version(number, place, tmp_path_factory.mktemp("venv"))
            return made[number]

    return version


@pytest.fixture(scope="module")
def runs(request, version, place, tmp_path_factory):
    """The runs of the cases that were asked for, begun with the first and so many at once: `runs(case)` waits for one."""
    tests = [item for item in request.session.items if item.module is request.module and hasattr(item, "callspec")]
    asked = [item.callspec.params["case"] for item in tests if "case" in item.callspec.params]

    def run(case):
        records = tmp_path_factory.mktemp("records")
        known = version(case.version)
        return play(known.python, place, known.files, testbed.preloaded(case.policy, records, case.level)), records

    with concurrent.futures.ThreadPoolExecutor(RUNS) as pool:
        begun = {case: pool.submit(run, case) for case in asked if case in CASES}
        yield lambda case: begun[case].result()
        pool.shutdown(cancel_futures=True)


def judge(version, case, outcome, records):
    env, level = testbed.preloaded(case.policy, records, case.level), case.level
    hooked = [record for record in testbed.records(records, kills=True).values() if record["state"] == "hooked"]
    assert set(outcome.files) == set(version.files) and outcome.ran > 2000, outcome.excerpt()
    assert len(hooked) >= len(version.files), "the library was not in the processes that ran the tests"
    # A few processes are started with debugging modes, in which objects come from the interpreter's allocators.
    assert sum(record["level"] == level for record in hooked) > len(hooked) // 2
    assert any(record["arenas_peak"] > 1 for record in hooked)
    assert sum(record["forks"] for record in hooked) > 50, "multiprocessing did not fork on hugeheap"
    found = differences(version.python, version.place, outcome, env, lambda: version.stock)
    assert not found, "\n\n".join(f"{one} fails on hugeheap only:\n{text}" for one, text in found.items())
    assert {record["policy"] for record in hooked} == {case.policy}
    return hooked


def test_there_is_an_interpreter():
    assert INTERPRETERS, "no CPython from 3.10 on with its `test` package found"


def hugetlb(version, case, records):
    """A run of its own: the pool belongs to the host."""
    known = version(case.version)
    outcome = play(known.python, known.place, known.files, testbed.preloaded(case.policy, records, case.level))
    return judge(known, case, outcome, records)


# These first: the other runs, which the fixture begins, go on beside them.
@pytest.mark.parametrize("case", [case for case in ALL_CASES if case.policy == "hugetlb" and case.pool], ids=str)
@pytest.mark.usefixtures("runs")
def test_hugetlb(version, case, tmp_path):
    with testbed.pool_for("hugetlb"):
        hugetlb(version, case, tmp_path)


@pytest.mark.parametrize("case", [case for case in ALL_CASES if case.policy == "hugetlb" and not case.pool], ids=str)
@pytest.mark.usefixtures("runs")
def test_hugetlb_without_a_pool(version, case, tmp_path):
    with testbed.no_pool():
        hooked = hugetlb(version, case, tmp_path)
    assert any("pool_empty" in record["fallbacks"] for record in hooked)
    assert all(record["arenas_hugetlb"] == 0 for record in hooked)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_policy_version_and_level(version, runs, case):
    judge(version(case.version), case, *runs(case))


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


@pytest.mark.parametrize(("kind", "body", "fault"), [("everywhere", "self.assertTrue(False)", False), ("crash", "library and os.abort()", True)])
def test_what_is_bad_on_stock_is_forgiven_and_not_repeated(kind, body, fault, tmp_path):
    (tmp_path / f"test_{kind}.py").write_text(FAULTY.format(kind=kind, body=body))
    python, env, files = INTERPRETERS[MAIN], testbed.preloaded(), [f"test_{kind}"]
    stock, outcome = play(python, tmp_path, files, testbed.clean()), play(python, tmp_path, files, env)
    assert outcome.bad_files == set(files), outcome.excerpt()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bool(differences(python, tmp_path, outcome, env, lambda: stock)) == fault
