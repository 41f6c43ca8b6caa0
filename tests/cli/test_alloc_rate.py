"""`hugeheap bench alloc-rate` end to end: the form of what it prints and writes, not the figures."""

import json
import shutil

import pytest

# The smallest measurement there is.
SMALL = ["--quick", "--touch", "none", "--runs", "1", "--volume", "16M"]
FEW = [*SMALL, "--sizes", "16", "--nurseries", "64K"]
# Counting starts every program four times under callgrind: one test does.
UNCOUNTED = "--no-instructions"


@pytest.fixture
def bench(hugeheap):
    def run(*arguments, **options):
        return hugeheap("bench", "alloc-rate", *arguments, timeout=300, **options)

    return run


def jobs(report, part):
    return [job for job in report["jobs"] if job["part"] == part]


def test_tables_and_report(bench, tmp_path):
    file, tables = tmp_path / "rate.json", tmp_path / "rate.txt"
    result = bench(
        *SMALL, UNCOUNTED, "--against", "none", "--sizes", "16,64", "--nurseries", "64K,1M",
        "--json", file, "-o", tables,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert tables.read_text() == result.stdout
    for words in (
        "Objects of 16 bytes, of which the last two are kept",
        "* RPython",
        "34.3",
        "Other sizes, on hugeheap",
        "Sizes of the nursery, on hugeheap",
        "64.0 KiB",
        "a minor collection with one survivor",
    ):
        assert words in result.stdout, words
    tables, _, goals = result.stdout.partition("\nGoals:")
    assert all(len(line) <= 100 for line in tables.splitlines())
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.bench.alloc-rate/1"
    assert report["runs_planned"] == 1 and report["nursery_chosen"] >= 64 << 10
    assert report["reference"]["RPython"]["field_gib_per_second"] == 29.7
    assert [program["name"] for program in report["programs"]] == ["hugeheap"]
    assert [(job["bytes"], job["loop"]) for job in jobs(report, "sizes")] == [
        (16, "plain"), (16, "field"), (64, "plain"), (64, "field"),
    ]  # fmt: skip
    for job in report["jobs"]:
        assert job["failure"] is None
        (run,) = job["runs"]
        assert run["objects"] * run["bytes"] >= 8 << 20
        assert run["seconds"] > 0 and job["nanoseconds"] > 0
        heap = run["heap"]
        assert heap["nursery"] == (job["nursery"] or report["nursery_chosen"])
        # Of a nursery that was filled and emptied again and again, only the last filling was not collected.
        assert heap["minor_collections"] >= run["objects"] * run["bytes"] // heap["nursery"] - 1
    rings = {job["nursery"]: job for job in jobs(report, "nurseries") if job["loop"] == "ring"}
    survivors = {nursery: job["runs"][0]["heap"]["survivors"] for nursery, job in rings.items()}
    # All that is kept survives in a nursery that holds no more than that, and less in a larger one.
    assert survivors[64 << 10] > 4 * survivors[1 << 20] > 0
    assert goals and report["counting"] is None and report["counting_unavailable"] == UNCOUNTED


def test_instructions_are_counted(bench, tmp_path):
    if not shutil.which("valgrind"):
        pytest.skip("no valgrind here")
    file = tmp_path / "rate.json"
    bench(*FEW, "--against", "none", "--json", file)
    report = json.loads(file.read_text())
    counted = {job["loop"]: job["per_object"]["instructions"] for job in jobs(report, "programs")}
    # Three are an addition, a test and a write; the promise is tested where it is made.
    assert 3 <= counted["plain"] < counted["field"] <= 20, counted


def test_the_references_program_is_one_of_them(bench, tmp_path):
    program = tmp_path / "targetallocatealot-c"
    program.write_text(
        "#!/bin/sh\n"
        'test "$2" = 0 || test "$2" = 1 || exit 2\n'
        'echo "<A object at 0x7c71> <A object at 0x7c72>"; echo "1000.0 s"; echo "0.1 GB"; echo "0.1 GB/s"\n'
    )
    program.chmod(0o755)
    file = tmp_path / "rate.json"
    result = bench(*FEW, UNCOUNTED, "--against", "none", "--rpython", program, "--json", file)
    assert "rpython" in result.stdout
    report = json.loads(file.read_text())
    assert all(report["against_reference_program"][loop]["ratio"] > 1.35 for loop in ("plain", "field"))
    goals = {goal["goal"]: goal["met"] for goal in report["goals"]}
    assert goals["allocation rate against the reference's program, plain"]


@pytest.mark.parametrize(
    "name, tool, needs",
    [
        ("boehm", "cc", "libgc-dev"),
        ("ocaml", "ocamlopt", "ocaml"),
        ("java", "javac", "default-jdk-headless"),
        ("pypy", "pypy3", "pypy3"),
        ("cpython", "python3", "python3"),
    ],
)
def test_other_languages(bench, tmp_path, name, tool, needs):
    file = tmp_path / "rate.json"
    result = bench(*FEW, UNCOUNTED, "--against", name, "--json", file)
    if result.returncode == 3:
        # Refused with what to install; whatever is not there is not named without being asked for.
        assert needs in result.stderr, result.stderr
        assert name == "boehm" or not shutil.which(tool), result.stderr
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    found = [job for job in jobs(json.loads(file.read_text()), "programs") if job["program"] == name]
    assert found and all(job["failure"] is None and job["nanoseconds"] > 0 for job in found)


def test_what_is_not_here_is_named_with_what_to_install(bench, tmp_path):
    # A PATH without anything but what a process needs.
    result = bench(*FEW, env={"PATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    for line in ("install a C compiler and libgc-dev", "install ocaml", "install pypy3", "no python3 in PATH"):
        assert line in result.stdout, result.stdout
    assert "instructions are not counted" in result.stdout or "hardware counters" in result.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--against", "perl"], ["perl", "boehm, ocaml"]),
        (["--sizes", "48"], ["48", "16, 32, 64"]),
        (["--volume", "1M"], ["--volume", "16.0 MiB"]),
        (["--nurseries", "1K"], ["--nurseries", "64.0 KiB"]),
        (["--rpython", "/no/such/program"], ["/no/such/program"]),
        (["--json", "/no/such/directory/file"], ["/no/such/directory/file"]),
    ],
)
def test_wrong_input_is_refused_with_what_is_possible(bench, arguments, words):
    result = bench(*arguments)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr
