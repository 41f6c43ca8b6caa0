"""An experiment that is interrupted: what was measured until then is told, and marked."""

import json
import signal

import pytest


@pytest.fixture
def interrupted(start):
    """Starts an experiment, sends it a signal when it has said something, and returns its end."""

    def run(number, said, *arguments):
        process = start("bench", *arguments)
        lines = []
        for line in process.stderr:
            lines.append(line)
            if said in line:
                break
        assert lines and said in lines[-1], lines
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number, err
        assert "interrupted" in err
        return out

    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_complete_rounds_are_kept(interrupted, tmp_path, number):
    file, tables = tmp_path / "stride.json", tmp_path / "stride.txt"
    small = ["--quick", "--touch", "none", "--size", "8M", "--passes", "2"]
    told = interrupted(
        number, "1 of 10000 rounds done", "stride", *small, "--runs", "10000", "--json", file, "-o", tables
    )
    assert told == tables.read_text()
    assert told.startswith(f"INTERRUPTED by signal {int(number)}: ") and "later passes, in order" in told
    report = json.loads(file.read_text())
    assert (report["interrupted_by_signal"], report["runs_planned"]) == (number, 10000)
    runs = {len(variant["runs"]) for variant in report["variants"].values()}
    assert len(runs) == 1 and 0 < runs.pop() < 10000, "all variants have as many runs"
    assert report["figures"] and report["goals"]


def test_complete_workloads_are_kept(interrupted, python, tmp_path):
    file = tmp_path / "obmalloc.json"
    small = ["--python", python, "--policies", "none", "--against", "none", "--quick", "--touch", "none", "--runs", "1"]
    told = interrupted(signal.SIGINT, "1 of 10 workloads", "obmalloc", *small, "--json", file)
    assert told.startswith("INTERRUPTED by signal 2: ")
    report = json.loads(file.read_text())
    assert report["interrupted_by_signal"] == 2
    assert 1 <= len(report["workloads"]) < 10
    for workload in report["workloads"]:
        assert len(workload["variants"]["stock"]["runs"]) == 1, workload["name"]


def test_all_experiments_end_with_the_one_that_is_interrupted(interrupted, tmp_path):
    chosen = ["--only", "stride,stranded", "--touch", "none", "--quick", "--runs", "10000"]
    told = interrupted(signal.SIGINT, "1 of 10000 rounds done", "all", *chosen, "-o", tmp_path)
    assert "stride" in told and "stranded" not in told
    assert json.loads((tmp_path / "stride.json").read_text())["interrupted_by_signal"] == 2
    assert not (tmp_path / "stranded.json").exists()
    assert "interrupted by signal 2" in (tmp_path / "report.html").read_text()


def test_without_a_complete_round_there_is_nothing_to_report(interrupted, tmp_path):
    # The first line is said before anything is measured, and a run of this size takes longer than a signal.
    big = ["--touch", "none", "--size", "512M", "--passes", "1000", "--runs", "1"]
    assert interrupted(signal.SIGTERM, "Linux", "stride", *big) == ""
