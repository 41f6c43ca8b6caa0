"""`hugeheap bench startup` end to end: the form of what it prints and writes, not the figures."""

import json

import pytest

SMALL = ["--quick", "--touch", "none", "--size", "16M", "--deadline", "0.5"]


def test_table_plot_and_report(hugeheap, tmp_path):
    file = tmp_path / "startup.json"
    result = hugeheap("bench", "startup", *SMALL, "--json", file, timeout=300)
    assert result.returncode == 0, result.stderr
    for words in ("A heap of 16.0 MiB made huge", "longest stall of the program", "over time since the heap was filled"):
        assert words in result.stdout, words
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.bench.startup/1"
    assert (report["size"], report["deadline_seconds"], report["runs_planned"]) == (16 << 20, 0.5, 1)
    assert list(report["variants"]) == ["khugepaged", "collapse", "huge from the start"]
    for name, measured in report["variants"].items():
        (run,) = measured["runs"]
        assert run["intact"] and run["fill"] > 0, name
        times = [at for at, _ in run["samples"]]
        assert times == sorted(times) and len(times) >= 2
        assert all(0 <= huge <= run["size"] for _, huge in run["samples"])
        assert (run["collapse"] is not None or run["refusal"] is not None) == (name == "collapse")
        reached = measured["reached_seconds"]
        # The last look is a little after the deadline.
        assert reached is None or reached > 0.5 or measured["coverage_at_deadline"] >= 0.99
    assert [figure["kind"] for figure in report["figures"]] == ["table", "lines"]


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--size", "1K"], 2, ["--size", "2.0 MiB"]),
        (["--size", "900T"], 3, ["--size", "available"]),
        (["--deadline", "0"], 2, ["0.001"]),
    ],
)
def test_wrong_input_is_refused_with_what_is_possible(hugeheap, arguments, code, words):
    result = hugeheap("bench", "startup", *arguments)
    assert result.returncode == code
    assert all(word in result.stderr for word in words), result.stderr
