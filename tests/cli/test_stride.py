"""`hugeheap bench stride` end to end: the form of what it prints and writes, not the figures."""

import json

import pytest

# The smallest measurement there is.
SMALL = ["--quick", "--touch", "none", "--runs", "1", "--size", "8M", "--passes", "2"]


@pytest.fixture
def bench(hugeheap):
    def run(*arguments):
        return hugeheap("bench", "stride", *arguments, timeout=300)

    return run


def test_tables_and_report(bench, tmp_path):
    file, tables = tmp_path / "stride.json", tmp_path / "stride.txt"
    result = bench(*SMALL, "--json", file, "-o", tables)
    assert result.returncode == 0, result.stderr
    assert tables.read_text() == result.stdout
    for words in (
        "One access per OS page over 8.0 MiB: 2,048 pages, 2 passes in each order",
        "first touch, a write",
        "later passes, in order",
        "later passes, scattered",
        "2011 → 292 −85.5 %",
        "minor faults of the first touch",
        "The trap of the first touch",
    ):
        assert words in result.stdout, words
    assert all(len(line) <= 120 for line in result.stdout.splitlines())
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.bench.stride/1"
    assert (report["size"], report["passes"], report["runs_planned"]) == (8 << 20, 2, 1)
    variants = report["variants"]
    assert list(variants)[:2] == ["OS pages", "THP"]
    assert ("hugetlb" in variants) == (report["hugetlb_unavailable"] is None)
    for name, measured in variants.items():
        (run,) = measured["runs"]
        assert measured["failure"] is None
        assert len(run["in_order"]) == len(run["scattered"]) == 2
        assert run["first_touch"] > 0
        assert run["huge"] <= run["resident"]
        if name == "OS pages":
            assert run["huge"] == 0
            assert run["first_touch_faults"] >= 2048
            assert run["page_tables"] >= 4 * 4096
    assert {goal["goal"] for goal in report["goals"]} >= {"huge pages where they were asked for"}


def test_json_on_standard_output_is_data_only(hugeheap):
    report = json.loads(hugeheap("--json", "-q", "bench", "stride", *SMALL).stdout)
    assert report["interrupted_by_signal"] is None


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--size", "1K"], 2, ["--size", "2.0 MiB"]),
        (["--size", "900T"], 3, ["--size", "available"]),
        (["--passes", "1"], 2, ["1"]),
        (["--json", "/no/such/directory/file"], 2, ["/no/such/directory/file"]),
    ],
)
def test_wrong_input_is_refused_with_what_is_possible(bench, arguments, code, words):
    result = bench(*arguments)
    assert result.returncode == code
    assert all(word in result.stderr for word in words), result.stderr


def test_the_list_names_it_with_its_reference(hugeheap):
    text = hugeheap("bench", "list").stdout
    assert "stride  one access per OS page" in text
    assert text.count("reference: ") == len(json.loads(hugeheap("bench", "list", "--json").stdout)["experiments"])


def test_a_full_disk_loses_no_more_than_the_file(hugeheap, tmp_path):
    small = ["--quick", "--touch", "none", "--runs", "1", "--size", "4M"]
    result = hugeheap("bench", "stride", *small, "-o", "/dev/full", "--json", tmp_path / "stride.json")
    assert result.returncode == 3
    assert "/dev/full could not be written: No space left on device" in result.stderr
    assert "One access per OS page" in result.stdout
    assert json.loads((tmp_path / "stride.json").read_text())["reproduce"].startswith("hugeheap bench stride --quick")
