"""`hugeheap bench stranded` end to end: steps, contents, and the form of what it prints and writes."""

import json

import pytest

SMALL = ["--quick", "--touch", "none", "--runs", "1", "--huge-pages", "16"]
FILLED = 16 * 2 << 20


def test_steps_and_report(hugeheap, tmp_path):
    file = tmp_path / "stranded.json"
    result = hugeheap("bench", "stranded", *SMALL, "--json", file, timeout=300)
    assert result.returncode == 0, result.stderr
    for words in ("One live piece in each of 16 huge pages", "given back (split)", "nothing left", "1.4 GiB"):
        assert words in result.stdout, words
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.bench.stranded/1"
    assert list(report["variants"]) == ["OS pages", "THP", "hugeheap"]
    for name, measured in report["variants"].items():
        (looks,) = measured["runs"]
        assert [look["doing"] for look in looks] == ["before", "filled", "freed", "given_back", "dropped"], name
        assert all(look["intact"] for look in looks), name
        before, filled, freed, given_back, _ = looks
        assert filled["rss"] > before["rss"] + FILLED * 3 // 4
        assert given_back["rss"] < filled["rss"] - FILLED // 2
        if report["charge_unavailable"] is None:
            assert filled["charge"] > before["charge"] + FILLED // 2
            assert given_back["charge"] < filled["charge"] - FILLED // 2
        if name != "hugeheap":
            assert freed["rss"] < filled["rss"] - FILLED // 2
    assert {"goal": "contents intact after each step", "met": True}.items() <= report["goals"][-1].items()
    kinds = [figure["kind"] for figure in report["figures"]]
    assert kinds == ["table", "bars"]


@pytest.mark.parametrize("number, code, words", [("0", 2, ["0"]), ("900000", 3, ["--huge-pages", "available"])])
def test_wrong_input_is_refused_with_what_is_possible(hugeheap, number, code, words):
    result = hugeheap("bench", "stranded", "--huge-pages", number)
    assert result.returncode == code
    assert all(word in result.stderr for word in words), result.stderr
