"""`hugeheap bench heap-pages` end to end: with Ruby where it is installed, and what is left without it."""

import json
import shutil

import pytest

SMALL = ["--quick", "--touch", "none", "--runs", "1", "--objects", "100000"]


def pages_are_right(report):
    pages = [one["runs"][0] for one in report["heap_pages"]]
    assert [run["heap_page"] for run in pages] == [16 << 10, 32 << 10, 64 << 10, 128 << 10]
    assert all(run["intact"] and run["objects"] == 100_000 for run in pages)
    given_back = [run["given_back"] for run in pages]
    assert given_back == sorted(given_back, reverse=True) and given_back[0] > given_back[-1]


@pytest.mark.skipif(shutil.which("ruby") is None, reason="no Ruby here")
def test_ruby_on_every_allocator_that_is_found(hugeheap, tmp_path):
    file = tmp_path / "report.json"
    result = hugeheap("bench", "heap-pages", *SMALL, "--part", "abbrev.rb", "--json", file, timeout=300)
    assert result.returncode == 0, result.stderr
    report = json.loads(file.read_text())
    if report["ruby_unavailable"]:
        pytest.skip(report["ruby_unavailable"])
    for words in ("RDoc over Ruby's own library, abbrev.rb", "Bytes lost per heap page by rounding", "memory over time"):
        assert words in result.stdout, words
    assert report["schema"] == "hugeheap.bench.heap-pages/1"
    assert list(report["allocators"])[0] == "glibc"
    assert len(report["allocators"]) + len(report["allocators_not_found"]) == 4
    for measured in report["allocators"].values():
        assert measured["failure"] is None
        (run,) = measured["runs"]
        assert run["maximum"] >= max(rss for _, rss in run["samples"]) > 1 << 20
        assert [probe["size"] for probe in measured["requests"]] == [16384, 16344]
        assert all(probe["distance"] >= probe["size"] for probe in measured["requests"])
    pages_are_right(report)
    assert {probe["distance"] for probe in report["requests_of_hugeheap"]} == {16384}
    assert [figure["kind"] for figure in report["figures"]][:2] == ["lines", "boxes"]


def test_without_ruby_the_rest_is_measured(hugeheap, tmp_path):
    result = hugeheap("--json", "bench", "heap-pages", *SMALL, env={"PATH": str(tmp_path)}, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "apt install ruby" in result.stderr
    report = json.loads(result.stdout)
    assert report["allocators"] == {} and "apt install ruby" in report["ruby_unavailable"]
    assert [probe["usable"] for probe in report["requests_of_hugeheap"]] == [16384, 16384]
    pages_are_right(report)


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--ruby", "/no/such/ruby"], 2, ["--ruby", "/no/such/ruby", "apt install ruby"]),
        (["--objects", "5"], 2, ["5"]),
        (["--objects", "1000000000"], 3, ["--objects", "available"]),
    ],
)
def test_wrong_input_is_refused_with_what_is_possible(hugeheap, arguments, code, words):
    result = hugeheap("bench", "heap-pages", *arguments)
    assert result.returncode == code
    assert all(word in result.stderr for word in words), result.stderr
