"""`hugeheap bench gc` end to end: the form of what it prints and writes, not the figures."""

import json

import pytest
from fakehost import Host

# The smallest measurement there is.
SMALL = ["--quick", "--touch", "none", "--runs", "1", "--size", "2M", "--depth", "8"]
WORKLOADS = ["binary-trees", "gcbench", "churn", "lru", "pinned", "wide-arrays", "evacuation"]


@pytest.fixture
def bench(hugeheap):
    def run(*arguments):
        return hugeheap("bench", "gc", *arguments, timeout=300)

    return run


def test_tables_and_report(bench, tmp_path):
    file, tables = tmp_path / "gc.json", tmp_path / "gc.txt"
    result = bench(*SMALL, "--against", "none", "--json", file, "-o", tables)
    assert result.returncode == 0, result.stderr
    assert tables.read_text() == result.stdout
    for words in ("binary-trees, depth 8", "gcbench, depth 6", "churn, 2.0 MiB", "longest", "of live", "idle host: gaps up to", "Goals:"):
        assert words in result.stdout, words
    text, _, _ = result.stdout.partition("\nGoals:")
    assert all(len(line) <= 100 for line in text.splitlines())
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.bench.gc/1"
    assert [workload["name"] for workload in report["workloads"]] == WORKLOADS
    for workload in report["workloads"]:
        program = workload["programs"]["hugeheap"]
        assert program["failure"] is None
        (run,) = program["runs"]
        assert run["seconds"] > 0 and run["objects"] > 0 and run["check"] > 0
        assert run["memory"]["peak_rss"] >= run["memory"]["anonymous"] > 0
        if report["charge_unavailable"] is None:
            assert run["memory"]["charge"][1] > 0
        # Sizes are multiples of 16, with a header of 8; `lru` has two kinds.
        assert program["bytes_per_object"] * run["objects"] == pytest.approx(run["allocated"])
        assert run["allocated"] >= run["objects"] * (workload["least_bytes_per_object"] + 8)
        pauses = run["pauses"]
        assert sum(pauses["histogram"]) == pauses["count"]
        idle = run["host"]["idle"]
        # Before and after it.
        assert idle["total"] >= 0.1 and sum(idle["histogram"]) == idle["count"] > 0
        assert program["host_longest_gap_seconds"] == idle["longest"] > 0
        if workload["name"] == "pinned":
            assert run["waits"] is None
            continue
        assert run["waits"]["on_processor"]["count"] == pauses["count"]
        waits = [wait["seconds"] for wait in run["waits"]["longest"]]
        assert waits == sorted(waits, reverse=True) and len(waits) == min(pauses["count"], 10)
        assert waits == [] or waits[0] == pytest.approx(pauses["longest"])
        assert pauses["longest"] <= pauses["total"] or pauses["count"] == 0
    # Trees of depths 9 and 8, and 256, 64 and 16 of depths 4, 6 and 8.
    trees = report["workloads"][0]["programs"]["hugeheap"]["runs"][0]
    assert trees["check"] == 1023 + 511 + 256 * 31 + 64 * 127 + 16 * 511
    evacuation = report["workloads"][-1]["programs"]["hugeheap"]["runs"][0]
    assert (2 << 20) * 0.08 < evacuation["live"] < (2 << 20) * 0.12
    goals = [goal["goal"] for goal in report["goals"]]
    assert "on huge pages after an evacuation" in goals
    # Without a collection nobody waited.
    churn = report["workloads"][2]["programs"]["hugeheap"]["runs"][0]
    assert ("longest pause of churn, 2.0 MiB" in goals) == (churn["pauses"]["count"] > 0)


@pytest.mark.parametrize("name, needs", [("hugeheap-tuned", "never"), ("boehm", "libgc-dev"), ("boehm-tuned", "libgc-dev"), ("ocaml", "ocaml")])
def test_other_collectors_do_the_same_work(bench, tmp_path, name, needs):
    file = tmp_path / "gc.json"
    result = bench(*SMALL, "--against", name, "--json", file)
    if result.returncode == 3:
        assert needs in result.stderr, result.stderr
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    report = json.loads(file.read_text())
    for workload in report["workloads"]:
        ours, theirs = workload["programs"]["hugeheap"], workload["programs"][name]
        if (name, workload["name"]) == ("ocaml", "pinned"):
            assert theirs["runs"] == []
            continue
        # Another check would be a failure.
        assert theirs["failure"] is None, workload["name"]
        assert theirs["runs"][0]["check"] == ours["runs"][0]["check"]
        assert theirs["time_of_hugeheap"]["ratio"] > 0
        # A list of objects is counted when it is used up.
        (run,) = theirs["runs"]
        assert run["allocated"] + (64 << 10) >= run["objects"] * workload["least_bytes_per_object"]
    goals = {goal["goal"] for goal in report["goals"]}
    assert (f"throughput of binary-trees against {name}" in goals) == (name in ("boehm", "ocaml"))


def test_goals_speak_of_longer_pauses_too(bench, tmp_path):
    file = tmp_path / "gc.json"
    result = bench(*SMALL, "--workloads", "binary-trees,gcbench", "--against", "boehm,hugeheap-tuned", "--json", file)
    if result.returncode == 3:
        pytest.skip(result.stderr.strip())
    report = json.loads(file.read_text())
    assert [goal["goal"] for goal in report["goals"]] == [
        f"throughput of {name} against boehm{how}" for name in ("binary-trees", "gcbench") for how in ("", ", tuned")
    ]
    assert report["programs"][1]["command"][-2:] == ["--step", "5"]


def test_what_a_host_takes_back_at_once_is_not_touched_beforehand(hugeheap, tmp_path):
    host = Host(tmp_path)
    small = [word for word in SMALL if word not in ("--touch", "none")]

    def touched(*words):
        command = ["--root", host.root, "bench", "gc", *small, "--workloads", "gcbench", "--against", "none", *words, "--json"]
        result = hugeheap(*command, timeout=300)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["memory_touched_before"]

    assert touched() > 0
    host.virtio()
    assert touched() == 0
    assert touched("--touch", "64M") == 64 << 20, "whoever asks for it gets it"


def test_pauses_are_measured_when_the_host_knows_what_was_freed_before(hugeheap, tmp_path):
    host = Host(tmp_path)

    def waited(workload, *words):
        command = ["bench", "gc", "--touch", "none", "--runs", "2", "--size", "2M", "--depth", "8", "--against", "none"]
        result = hugeheap("--root", host.root, *command, "--workloads", workload, *words, "--json", timeout=300)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["waited_for_host_seconds"]

    assert waited("churn") == 0, "nobody takes it"
    host.virtio()
    # Two runs, between which it is told once.
    assert 2.5 <= waited("churn") < 5
    assert waited("gcbench") == 0, "over before it is told"
    assert waited("churn", "--quick") == 0


def test_json_on_standard_output_is_data_only(bench):
    result = bench("--json", "-q", *SMALL, "--workloads", "lru", "--against", "none")
    report = json.loads(result.stdout)
    assert [workload["name"] for workload in report["workloads"]] == ["lru"]
    assert report["goals"] == [] and result.stderr == ""


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--workloads", "nothing"], ["nothing", "binary-trees, gcbench"]),
        (["--against", "zgc"], ["zgc", "hugeheap-tuned, boehm, boehm-tuned, ocaml"]),
        (["--size", "1K"], ["--size", "1.0 MiB"]),
        (["--depth", "50"], ["50"]),
        (["-o", "/no/such/directory/file"], ["/no/such/directory/file"]),
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


def test_the_list_names_them(hugeheap):
    text = hugeheap("bench", "list").stdout
    for word in ("alloc-rate", "gc", "cow", *WORKLOADS):
        assert word in text
