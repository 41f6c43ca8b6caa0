"""`hugeheap bench give-back` end to end: the form of what it prints and writes, not the figures."""

import json
import xml.dom.minidom

import pytest

# The smallest measurement there is: it shows that everything works, and nothing about time.
SMALL = [
    "--quick", "--touch", "none", "--runs", "1", "--cycles", "2", "--idle", "0.3",
    "--instances", "100000", "--size", "16M", "--against", "none",
]  # fmt: skip
UTF8 = {"LC_ALL": "C.UTF-8"}


@pytest.fixture
def bench(hugeheap, python):
    def run(*arguments, **options):
        return hugeheap("bench", "give-back", "--python", python, *arguments, timeout=300, **options)

    return run


def test_tables_plots_and_files(bench, tmp_path):
    files = {name: tmp_path / f"memory.{name}" for name in ("json", "svg", "tsv", "txt")}
    result = bench(
        *SMALL, "--policies", "auto,base", "--plot", files["svg"], "--tsv", files["tsv"], "--json", files["json"],
        "-o", files["txt"], env=UTF8,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert files["txt"].read_text() == result.stdout
    for words in (
        "instances: 100,000 instances with one attribute, 2 times",
        "cycle: 16.0 MiB of objects of 16 sizes, 2 times",
        "whole process",
        "first allocation",
        "cycle after the first",
        "+75.1 %",
        "RSS 0.3 s later",
        "memory over time",
        "Goals of hugeheap's policy auto",
    ):
        assert words in result.stdout, words
    assert "\x1b" not in result.stdout
    assert any("\u2801" <= character <= "\u28ff" for character in result.stdout)

    report = json.loads(files["json"].read_text())
    assert report["schema"] == "hugeheap.bench.give-back/1"
    assert (report["cycles"], report["idle_seconds"]) == (2, 0.3)
    samples = 0
    for workload in report["workloads"]:
        assert list(workload["variants"]) == ["stock", "auto", "base"]
        for name, measured in workload["variants"].items():
            assert measured["failure"] is None
            (run,) = measured["runs"]
            assert [phase["phase"] for phase in run["phases"]] == ["allocate", "free"] * 2
            assert 0 < sum(phase["end"] - phase["begin"] for phase in run["phases"]) < run["wall"]
            watched = measured["watched"]
            doing = [phase["phase"] for phase in watched["phases"]]
            assert doing == ["start", *["allocate", "free"] * 2, "idle"]
            seen = watched["samples"]
            samples += len(seen["seconds"])
            # Ten before the first object and thirty while idle, on a machine that is not busy.
            assert len(seen["seconds"]) > 10
            assert seen["seconds"] == sorted(seen["seconds"])
            held = measured["resident"]
            assert held["peak"] >= held["start"] + (8 << 20)
            assert held["peak"] >= max(held["freed"], held["idle"])
            assert (watched["telemetry"] is None) == (name == "stock")
            if report["charge_unavailable"] is None:
                assert measured["charge"]["peak"] > measured["charge"]["start"] > 0
                assert 0 <= measured["charge_held_share"] <= 1
            assert measured["times"]["whole"]["real"]["median_seconds"] == run["wall"]
    assert all({"goal", "met", "detail"} <= set(goal) for goal in report["goals"])
    assert {"total time of instances", "total time of cycle"} <= {goal["goal"] for goal in report["goals"]}

    lines = [line.split("\t") for line in files["tsv"].read_text().splitlines()]
    assert lines[0] == ["workload", "variant", "seconds", "phase", "rss", "hugetlb", "charge"]
    assert len(lines) == 1 + samples
    assert {line[3] for line in lines[1:]} >= {"start", "allocate", "idle"}

    drawing = xml.dom.minidom.parse(str(files["svg"]))
    titles = [title.firstChild.data for title in drawing.getElementsByTagName("title")]
    assert len(titles) == 2 and all("memory over time" in title for title in titles)
    assert len(drawing.getElementsByTagName("polyline")) >= 2 * 3
    assert "a allocates, f frees, i idles" in files["svg"].read_text()
    kinds = [figure["kind"] for figure in report["figures"]]
    assert kinds == ["lines", "lines", "bars", "table", "table", "table", "table"]


@pytest.mark.parametrize("locale", ["C", "de_DE.ISO-8859-1"])
def test_without_utf8_the_plot_is_ascii(bench, locale):
    result = bench(*SMALL, "--workloads", "instances", "--policies", "none", env={"LC_ALL": locale})
    plot = result.stdout[result.stdout.index("memory over time") :]
    assert plot.isascii(), plot
    assert plot.count("*") > 10


def test_json_on_standard_output_is_data_only(bench):
    result = bench("--json", *SMALL, "--workloads", "cycle", "--policies", "none")
    report = json.loads(result.stdout)
    assert [workload["name"] for workload in report["workloads"]] == ["cycle"]
    assert report["goals"] == []
    assert bench("-q", *SMALL, "--workloads", "instances", "--policies", "none").stderr == ""


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--workloads", "nothing"], ["nothing", "instances, cycle"]),
        (["--plot", "memory.png"], ["memory.png", ".svg", "--tsv"]),
        (["--level", "cells"], ["cells", "arenas", "objects"]),
        (["--cycles", "1"], ["1"]),
        (["--size", "1M"], ["--size", "16.0 MiB"]),
        (["--instances", "5"], ["--instances", "100000"]),
        (["--idle", "0"], ["0.1"]),
        (["--tsv", "/no/such/directory/file"], ["/no/such/directory/file"]),
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


def test_the_list_names_it(hugeheap):
    text = hugeheap("bench", "list").stdout
    for word in ("give-back", "instances", "cycle"):
        assert word in text
