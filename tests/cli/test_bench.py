"""`hugeheap bench` end to end: the report's form and the answers to wrong input, not the figures."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

# The smallest measurement there is: it shows that everything works, and nothing about time.
SMALL = ["--quick", "--touch", "none", "--runs", "2"]


def test_the_list_names_workloads_and_peers(hugeheap):
    text = hugeheap("bench", "list").stdout
    for word in ("obmalloc", "list_of_tuples", "random_walk", "mimalloc", "python"):
        assert word in text
    value = json.loads(hugeheap("bench", "list", "--json").stdout)
    assert value["schema"] == "hugeheap.bench.list/1"
    assert all(0 < one["seconds"]["quick"] < one["seconds"]["full"] for one in value["experiments"])
    needs = {one["name"]: one["needs"] for one in value["experiments"]}
    assert needs["obmalloc"] == "CPython 3.8 or newer" and needs["stride"] is None
    assert len(value["experiments"][0]["workloads"]) == 10
    named = {one["name"] for one in value["experiments"]}
    assert named >= {"obmalloc", "give-back", "stride", "stranded", "heap-pages", "cow", "startup", "cgroup", "alloc-rate", "gc"}
    assert all(one["summary"] and one["reference"] for one in value["experiments"])
    assert json.loads(hugeheap("--json", "bench", "list").stdout) == value


@pytest.fixture
def bench(hugeheap, python):
    def run(*arguments, **options):
        return hugeheap("bench", "obmalloc", "--python", python, *arguments, timeout=300, **options)

    return run


def test_tables_and_report(bench, tmp_path):
    file, tables = tmp_path / "report.json", tmp_path / "tables.txt"
    result = bench(
        *SMALL, "--workloads", "dict_churn,list_of_tuples", "--policies", "thp,base", "--against", "none",
        "--json", file, "-o", tables,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert tables.read_text() == result.stdout
    for title in (
        "Wall time of the workload",
        "Wall time of the whole process",
        "Minor page faults",
        "Peak RSS",
        "Coverage by huge pages",
        "RSS after all objects were freed",
        "Charge",
        "Goals of hugeheap's policy thp",
    ):
        assert title in result.stdout
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.bench.obmalloc/1"
    assert {"kernel", "cpu", "virtualised", "thp", "hugetlb_pools", "os_page"} <= set(report["host"])
    assert report["python"]["version"]
    assert [variant["name"] for variant in report["variants"]] == ["stock", "thp", "base"]
    churn, tuples = report["workloads"]
    assert (churn["name"], tuples["name"]) == ("dict_churn", "list_of_tuples")
    assert tuples["reference"]["time_change"] == -0.295
    for variant in ("stock", "thp", "base"):
        measured = tuples["variants"][variant]
        assert measured["failure"] is None
        assert len(measured["runs"]) == 2
        for run in measured["runs"]:
            assert 0 < run["seconds"] < run["wall"]
            assert run["minor_faults"] >= run["workload_minor_faults"] > 0
            assert run["peak_rss"] > 100 << 20
        memory = measured["memory"]
        assert memory["peak"]["rss"] + memory["peak"]["hugetlb"] > 100 << 20
        assert (memory["telemetry"] is None) == (variant == "stock")
    assert tuples["variants"]["thp"]["memory"]["telemetry"]["state"] == "hooked"
    assert tuples["variants"]["base"]["memory"]["telemetry"]["policy"] == "base"
    ratio = tuples["variants"]["thp"]["time"]
    assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert all({"goal", "met", "detail"} <= set(goal) for goal in report["goals"])


def test_json_on_standard_output_is_data_only(bench):
    result = bench("--json", *SMALL, "--workloads", "startup", "--policies", "auto", "--against", "none")
    report = json.loads(result.stdout)
    assert report["workloads"][0]["name"] == "startup"
    assert report["interrupted_by_signal"] is None
    if report["charge_unavailable"] is None:
        memory = report["workloads"][0]["variants"]["auto"]["memory"]
        assert 0 < memory["freed"]["charge"] < 256 << 20


def test_without_hugeheap_there_are_no_goals(bench):
    result = bench("--json", *SMALL, "--workloads", "startup", "--policies", "none", "--against", "none")
    assert result.returncode == 0
    assert json.loads(result.stdout)["goals"] == []


def test_level_objects_is_measured_beside_arenas(bench):
    result = bench(
        "--json", *SMALL, "--workloads", "dict_churn", "--policies", "auto", "--level", "objects", "--against", "none"
    )  # fmt: skip
    if result.returncode == 3:
        # An interpreter, or a library, that lacks the hooks of the level: that must be told, not measured.
        assert "auto/objects" in result.stderr and "level" in result.stderr, result.stderr
        pytest.skip(result.stderr.splitlines()[-1])
    report = json.loads(result.stdout)
    assert [variant["name"] for variant in report["variants"]] == ["stock", "auto", "auto/objects"]
    assert [variant["level"] for variant in report["variants"]] == [None, "arenas", "objects"]
    measured = report["workloads"][0]["variants"]["auto/objects"]
    assert measured["failure"] is None
    assert measured["memory"]["telemetry"]["level"] == "objects"
    goals = {goal["goal"]: goal["detail"] for goal in report["goals"]}
    assert "no workload slower than at level arenas" in goals
    assert "at most ±0.0 %" in goals["time of dict_churn"]


def test_progress_is_on_standard_error_and_can_be_silenced(bench):
    small = [*SMALL, "--workloads", "startup", "--policies", "none", "--against", "none"]
    assert "1 of 1 workloads" in bench(*small).stderr
    assert bench("-q", *small).stderr == ""


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--workloads", "nothing"], ["nothing", "list_of_tuples"]),
        (["--policies", "gigantic"], ["gigantic", "hugetlb"]),
        (["--against", "nobody"], ["nobody", "mimalloc"]),
        (["--level", "cells"], ["cells", "arenas", "objects"]),
        (["--runs", "0"], ["0"]),
        (["--json", "/no/such/directory/file"], ["/no/such/directory/file"]),
    ],
)
def test_wrong_input_is_refused_with_what_is_possible(bench, arguments, words):
    result = bench(*arguments)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr


def test_what_is_no_python_is_refused(hugeheap):
    result = hugeheap("bench", "obmalloc", "--python", "/bin/true")
    assert result.returncode == 3
    assert "/bin/true" in result.stderr


def test_a_wrapper_is_looked_through(hugeheap, python, tmp_path):
    wrapper = tmp_path / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    wrapper.chmod(0o755)
    value = json.loads(hugeheap("bench", "list", "--json", "--python", wrapper).stdout)
    assert value["experiments"][0]["python"]["path"] == python


@pytest.mark.parametrize("experiment", [["obmalloc", "--workloads", "random_walk"], ["give-back"]], ids=lambda it: it[0])
def test_an_interrupt_leaves_nothing_behind(start, python, environment, experiment):
    process = start("bench", *experiment, "--python", python, *SMALL)
    temporary = Path(environment["TMPDIR"])
    end = time.monotonic() + 30
    while not list(temporary.glob("hugeheap-bench-*")) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert list(temporary.iterdir()) == []
