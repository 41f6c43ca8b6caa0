"""`hugeheap bench cow` end to end: the form of what it prints and writes, and what cannot be otherwise."""

import json

import pytest

# The smallest measurement there is.
SMALL = ["--quick", "--touch", "none", "--runs", "1", "--size", "16M"]


@pytest.fixture
def bench(hugeheap, python):
    def run(*arguments):
        return hugeheap("bench", "cow", "--python", python, *arguments, timeout=300)

    return run


def test_tables_and_report(bench, tmp_path):
    file, tables = tmp_path / "cow.json", tmp_path / "cow.txt"
    # A child that collects moves what is in the nursery: up to 4 MiB are written here and there, so a heap of
    # 16 MiB would have half of itself un-shared when the nursery is full, and a fifth when half of it is in
    # use.
    result = bench(*SMALL[:-1], "64M", "--against", "cpython,cpython-objects", "--json", file, "-o", tables)
    assert result.returncode == 0, result.stderr
    assert tables.read_text() == result.stdout
    for words in ("What a forked child un-shares", "about 64.0 MiB", "collects, prepared", "cpython-objects", "Goals:"):
        assert words in result.stdout, words
    text, _, _ = result.stdout.partition("\nGoals:")
    assert all(len(line) <= 100 for line in text.splitlines())
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.bench.cow/1"
    programs = {program["name"]: program["results"] for program in report["programs"]}
    assert list(programs) == ["hugeheap", "cpython", "cpython-objects"]
    for name, program in programs.items():
        assert program["failure"] is None
        (run,) = program["runs"]
        assert run["heap"] > 64 << 20
        unshared = {child["action"]: child["unshared"] for child in run["children"]}
        assert all(0 <= value < 2 * run["heap"] for value in unshared.values()), unshared
        assert unshared["nothing"] <= unshared["collects"], (name, unshared)
    # CPython's collector writes to the header of every object it looks at, hugeheap's to none of them.
    shares = {name: program["unshared_share"] for name, program in programs.items()}
    assert shares["cpython"]["collects"] > 0.3 > shares["hugeheap"]["collects"], shares
    # A parent that prepared has nothing left in its nursery that a child's collection would move.
    assert shares["hugeheap"]["collects-prepared"] < shares["hugeheap"]["collects"], shares
    assert "compacts" in shares["hugeheap"] and "compacts" not in shares["cpython"]
    assert "frees" in shares["cpython"] and "frees" not in shares["hugeheap"]


def test_ruby(bench, tmp_path):
    file = tmp_path / "cow.json"
    result = bench(*SMALL, "--against", "ruby", "--json", file)
    if result.returncode == 3:
        assert "install ruby" in result.stderr, result.stderr
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    ruby = json.loads(file.read_text())["programs"][1]["results"]
    assert ruby["failure"] is None
    assert {"nothing", "frees", "collects"} <= set(ruby["unshared_share"])


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--against", "perl"], ["perl", "cpython, cpython-objects, ruby"]),
        (["--size", "1M"], ["--size", "4.0 MiB"]),
        (["--json", "/no/such/directory/file"], ["/no/such/directory/file"]),
    ],
)
def test_wrong_input_is_refused_with_what_is_possible(bench, arguments, words):
    result = bench(*arguments)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr


def test_more_than_there_is_is_refused(bench):
    result = bench("--size", "900T")
    assert result.returncode == 3
    assert "--size" in result.stderr and "available" in result.stderr
