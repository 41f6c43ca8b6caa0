"""CPython's own regression tests, on hugeheap as on stock.

Guarded for users: an interpreter started with the preload library behaves as the same interpreter without it, by CPython's own measure.

What runs where, in about 7 minutes on two processors:

* the newest 3.11 (or, without one, the oldest version found): every policy, `hugetlb` once with a pool of 8 pages (as root) and once with
  none; `test_multiprocessing_fork`, the long one, with `auto` and with `hugetlb`, because forks matter most there;
* every other installed version from 3.10 on: `auto`, everything.

Every version runs once without the library first. What fails or hangs there is no fault of the library: it is printed (`-s` or a failure
shows it) and left out of the runs that follow, method by method where a method failed, the whole file where it hung or crashed.
"""

import re
import tempfile
import xml.etree.ElementTree as ElementTree

import pytest
import testbed

FILES = """test_gc test_list test_dict test_set test_json test_pickle test_threading test_subprocess test_interpreters
test__xxsubinterpreters test_tracemalloc test_capi""".split()
LONG = "test_multiprocessing_fork"
INTERPRETERS = testbed.find_interpreters()
MAIN = (3, 11) if (3, 11) in INTERPRETERS else min(INTERPRETERS, default=None)
# More than processors: these tests mostly wait.
JOBS = 4
# Seconds for a file, above anything seen (test_multiprocessing_fork: 50).
FILE_TIMEOUT = 240
# On stock a file that hangs costs this.
STOCK_TIMEOUT = 90

LINE = re.compile(r"\[ *\d+/\d+(?:/\d+)?\] (test[\w.]+) (.+)$", re.MULTILINE)


def name(version):
    return ".".join(map(str, version))


class Outcome:
    """What a run of CPython's tests said: the state of each file, and the methods that failed."""

    def __init__(self, process, report):
        self.text = process.stdout + process.stderr
        self.files = {}
        for file, state in LINE.findall(process.stdout):
            self.files[file] = state.split(" -- running")[0]
        self.bad_files = {file for file, state in self.files.items() if not re.match("passed|skipped|run no tests", state)}
        self.bad_methods, self.ran = set(), 0
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                self.ran += 1
                if case.find("failure") is not None or case.find("error") is not None:
                    self.bad_methods.add(case.get("name"))

    def excerpt(self):
        lines = [line for line in self.text.splitlines() if not line.startswith("  File ")]
        return "\n".join(lines[-80:])


def play(python, files, directory, env, timeout, leave_out=()):
    directory.mkdir(parents=True, exist_ok=True)
    report = directory / "report.xml"
    ignored = [word for method in sorted(leave_out) for word in ("-i", method)]
    command = [python, "-m", "test", f"-j{JOBS}", "--timeout", timeout, "--junit-xml", report, *ignored, *files]
    # Short, because the tests make sockets in it, whose paths have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="hh", ignore_cleanup_errors=True) as temporary:
        process = testbed.run(command, env={**env, "TMPDIR": temporary}, timeout=600, cwd=directory)
    return Outcome(process, report)


def existing(python, files):
    code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec('test.' + n)])"
    return testbed.run([python, "-c", code, *files]).stdout.split()


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """The same tests without the library, once per version: (files to run, methods to leave out, methods that ran)."""
    known = {}

    def stock(version):
        if version not in known:
            python = INTERPRETERS[version]
            files = existing(python, [*FILES, LONG])
            outcome = play(python, files, tmp_path_factory.mktemp("stock"), testbed.clean(), STOCK_TIMEOUT)
            assert outcome.files, f"CPython's tests did not start on stock {name(version)}:\n{outcome.excerpt()}"
            # A file without a failed method hung or crashed.
            broken = {
                file for file in outcome.bad_files if not any(f".{file}." in f".{bad}" for bad in outcome.bad_methods)
            }
            kept = [file for file in files if not any(file == one or one.startswith(f"test.{file}.") for one in broken)]
            if outcome.bad_methods or broken:
                print(f"stock CPython {name(version)} fails here: {sorted(outcome.bad_methods)}; hangs: {sorted(broken)}")
            assert len(kept) >= 9, f"too little runs on stock {name(version)}: {kept}\n{outcome.excerpt()}"
            known[version] = kept, outcome.bad_methods, outcome.ran
        return known[version]

    return stock


def compare(stock, version, policy, tmp_path, long):
    files, leave_out, _ = stock(version)
    files = [file for file in files if long or file != LONG]
    records = tmp_path / "records"
    records.mkdir()
    env = testbed.preloaded(policy, records)
    outcome = play(INTERPRETERS[version], files, tmp_path / "work", env, FILE_TIMEOUT, leave_out)
    assert not outcome.bad_files and not outcome.bad_methods, (
        f"fails on hugeheap only: {sorted(outcome.bad_methods) or sorted(outcome.bad_files)}\n{outcome.excerpt()}"
    )
    assert len(outcome.files) >= len(files) and outcome.ran > 1000, outcome.excerpt()
    hooked = [record for record in testbed.records(records).values() if record["state"] == "hooked"]
    assert len(hooked) >= len(files), "the library was not in the processes that ran the tests"
    assert any(record["arenas_peak"] > 1 for record in hooked)
    if long:
        assert sum(record["forks"] for record in hooked) > 50, "multiprocessing did not fork on hugeheap"
    return hooked


def test_there_is_an_interpreter():
    assert INTERPRETERS, "no CPython from 3.10 on with its `test` package found"


@pytest.mark.parametrize("policy", ["auto", "thp", "dense", "hugetlb", "base"])
def test_every_policy(stock, policy, tmp_path):
    stock(MAIN)
    with testbed.pool_for(policy):
        hooked = compare(stock, MAIN, policy, tmp_path, long=policy in ("auto", "hugetlb"))
    assert {record["policy"] for record in hooked} == {policy}


def test_hugetlb_without_a_pool(stock, tmp_path):
    stock(MAIN)
    with testbed.no_pool():
        hooked = compare(stock, MAIN, "hugetlb", tmp_path, long=False)
    assert any("pool_empty" in record["fallbacks"] for record in hooked)
    assert all(record["arenas_hugetlb"] == 0 for record in hooked)


@pytest.mark.parametrize("version", [one for one in INTERPRETERS if one != MAIN], ids=name)
def test_every_version(stock, version, tmp_path):
    compare(stock, version, "auto", tmp_path, long=True)
