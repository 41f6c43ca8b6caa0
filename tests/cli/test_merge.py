"""`hugeheap run --merge`: what is said before the command starts. What becomes of its memory: `tests/kernel/test_merging.py`."""

import json

import pytest

OFF = "this host does not merge equal pages (KSM is off): nothing is made alike"


@pytest.mark.any_host
def test_merging_needs_heaps_of_hugeheap(hugeheap, python):
    refused = hugeheap("run", "--merge", "--", python, "-c", "print(1)")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "add --level objects or --level malloc" in refused.stderr
    told = hugeheap("run", "--", python, "-c", "print(1)", env={"HUGEHEAP_MERGE": "1"})
    assert (told.returncode, told.stdout) == (0, "1\n")
    assert "HUGEHEAP_MERGE is set, but at level arenas" in told.stderr


@pytest.mark.any_host
@pytest.mark.parametrize(
    ("run", "said"),
    [("1\n", None), ("0\n", OFF), (None, "this kernel cannot merge equal pages (CONFIG_KSM)")],
    ids=["on", "off", "missing"],
)
@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_host_that_does_not_merge_is_told_before_the_command_starts(run, said, way, hugeheap, python, tmp_path):
    if run is not None:
        switch = tmp_path / "sys/kernel/mm/ksm/run"
        switch.parent.mkdir(parents=True)
        switch.write_text(run)
    asked = ["--merge"] if way == "option" else []
    environment = {} if asked else {"HUGEHEAP_MERGE": "1"}
    command = ["--root", tmp_path, "run", *asked, "--level", "objects", "--", python, "-c", "print(1)"]
    result = hugeheap(*command, env=environment)
    assert (result.returncode, result.stdout) == (0, "1\n")
    assert (said in result.stderr) if said else ("merge" not in result.stderr)


@pytest.mark.any_host
def test_a_program_is_asked_to_merge_and_says_so_in_its_record(hugeheap, python, tmp_path):
    summary = tmp_path / "summary.json"
    options = ["--merge", "--level", "objects", "--summary-file", summary]
    result = hugeheap("run", *options, "--", python, "-c", "import os; print(os.environ['HUGEHEAP_MERGE'])")
    assert (result.returncode, result.stdout) == (0, "1\n")
    record = json.loads(summary.read_text())["main"]
    assert (record["alike"], record["merged"]) == (0, 0)
