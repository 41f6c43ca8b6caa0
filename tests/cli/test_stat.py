"""`hugeheap stat` end to end: what it prints and writes, and what it does when a command misbehaves; not the figures."""

import json
import os
import signal
import subprocess
import time

import pytest

# Commands are C programs and shells: a comparison of Python programs would take seconds.
SMALL = ["--runs", "2", "--warmup", "0"]


def stat(hugeheap, *arguments, **options):
    return hugeheap("stat", *arguments, **options)


def test_commands_are_compared_with_the_first(hugeheap, tmp_path):
    file = tmp_path / "result.json"
    result = stat(
        hugeheap, *SMALL, "--names", "old,new", "--json", file, "--",
        "sh", "-c", "exit 0", ":::", "sh", "-c", "true; exit 0",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for words in ("old  sh -c 'exit 0'", "wall time", "minor faults", "peak RSS", "2 runs of each", "~ "):
        assert words in result.stdout, words
    # Two runs can tell nothing, and it says so.
    assert "too few" in result.stderr
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.stat/1"
    old, new = report["commands"]
    assert (old["name"], new["name"], len(old["runs"]), len(new["runs"])) == ("old", "new", 2, 2)
    assert old["metrics"]["wall"]["change"] is None and old["metrics"]["wall"]["significant"] is None
    assert new["metrics"]["wall"]["change"]["ratio"] > 0 and new["metrics"]["wall"]["significant"] is False
    assert all(run["peak_rss"] > 0 and run["minor_faults"] > 0 for run in old["runs"])
    assert [figure["kind"] for figure in report["figures"]] == ["bars", "boxes", "boxes"]
    assert report["host"]["kernel"] and report["reproduce"].startswith("hugeheap stat ")


def test_a_large_difference_is_significant_and_fails_the_build(hugeheap, python):
    # 64 MiB more: no noise is that large.
    more = "import sys; x = b'x' * (64 << 20)"
    command = ["--", python, "-S", "-c", "pass", ":::", python, "-S", "-c", more]
    result = stat(hugeheap, "--runs", "7", "--fail-if", "rss > 1.5", "--fail-if", "rss.value < 1M", *command, timeout=300)
    assert result.returncode == 1, result.stderr
    assert "--fail-if 'rss > 1.5' is met by B" in result.stderr
    assert "rss.value" not in result.stderr


def test_what_was_not_measured_cannot_be_judged(hugeheap):
    report = json.loads(stat(hugeheap, *SMALL, "--json", "--", "true", ":::", "true").stdout)
    if report["counters_unavailable"] is None:
        pytest.skip("this machine has hardware counters")
    result = stat(hugeheap, *SMALL, "--fail-if", "dtlb > 1.05", "--", "true", ":::", "true")
    assert result.returncode == 3
    assert "cannot be judged: dtlb_load_misses was not measured: not " in result.stderr


def test_pyperf_files_have_pyperfs_form(hugeheap, tmp_path):
    result = stat(hugeheap, *SMALL, "--pyperf", tmp_path / "out", "--", "true", ":::", "true")
    assert result.returncode == 0, result.stderr
    files = [tmp_path / "out" / name for name in ("A.json", "B.json")]
    for file in files:
        suite = json.loads(file.read_text())
        assert suite["version"] == "1.0"
        names = [benchmark["metadata"]["name"] for benchmark in suite["benchmarks"]]
        assert len(set(names)) == len(names) and {"wall", "peak_rss", "minor_faults"} <= set(names)
        units = {benchmark["metadata"]["name"]: benchmark["metadata"]["unit"] for benchmark in suite["benchmarks"]}
        assert (units["wall"], units["peak_rss"], units["minor_faults"]) == ("second", "byte", "integer")
        for benchmark in suite["benchmarks"]:
            assert all(value > 0 for run in benchmark["runs"] for value in run["values"])
    pyperf = pytest.importorskip("pyperf")
    first, second = (pyperf.BenchmarkSuite.load(str(file)) for file in files)
    assert first.get_benchmark("wall").get_nvalue() == second.get_benchmark("wall").get_nvalue() == 2


def test_what_warms_up_is_not_counted_and_the_programs_time_is_not_the_kernels(hugeheap, python, tmp_path):
    file = tmp_path / "stat.json"
    computes = [python, "-c", "for _ in range(5_000_000): pass"]
    result = stat(hugeheap, "--runs", "2", "--warmup", "1", "--json", file, "--", *computes, ":::", "true")
    assert result.returncode == 0, result.stderr
    commands = json.loads(file.read_text())["commands"]
    assert [len(command["runs"]) for command in commands] == [2, 2]
    assert all(run["user"] > 2 * run["system"] for run in commands[0]["runs"]), commands[0]["runs"]
    assert all(4 << 20 < run["peak_rss"] < 4 << 30 for run in commands[0]["runs"]), "in bytes"


def test_what_is_to_be_prepared_is_run_before_each_run(hugeheap, tmp_path):
    log = tmp_path / "log"
    result = stat(hugeheap, *SMALL, "--prepare", f"echo a >> {log}", "--prepare", f"echo b >> {log}",
                  "--", "true", ":::", "true")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert sorted(log.read_text().split()) == ["a", "a", "b", "b"]


def test_a_command_that_fails_is_left_out_and_the_rest_reported(hugeheap):
    # Megabytes on both streams, with nobody who reads them.
    loud = "yes out | head -c 3000000; yes err | head -c 3000000 >&2; echo the last >&2; exit 3"
    result = stat(hugeheap, *SMALL, "--json", "--", "sh", "-c", loud, ":::", "true")
    assert result.returncode == 1
    assert "A failed: exit status: 3: the last (--ignore-failure" in result.stderr
    loud_one, other = json.loads(result.stdout)["commands"]
    assert (len(loud_one["runs"]), len(other["runs"])) == (0, 2)
    result = stat(hugeheap, *SMALL, "--ignore-failure", "--", "sh", "-c", loud, ":::", "true")
    assert result.returncode == 0 and "2 runs of each" in result.stdout


def test_a_command_that_is_killed_is_told(hugeheap):
    result = stat(hugeheap, *SMALL, "--", "sh", "-c", "kill -KILL $$", ":::", "true")
    assert result.returncode == 1 and "A failed: signal: 9" in result.stderr


def test_a_command_that_leaves_a_daemon_does_not_hang(hugeheap, tmp_path):
    # It holds the pipe of standard error open, for longer than the comparison may take.
    pids = tmp_path / "pids"
    result = stat(hugeheap, *SMALL, "--", "sh", "-c", f"sleep 600 & echo $! >> {pids}", ":::", "true")
    for pid in pids.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    assert result.returncode == 0, result.stderr
    assert "processes that it started still run" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (["--", "true"], "one command alone", 2),
        (["--", "true", ":::"], "a command is missing", 2),
        (["--names", "a", "--", "true", ":::", "true"], "--names has 1 for 2", 2),
        (["--fail-if", "apples > 1", "--", "true", ":::", "true"], "'apples' is no metric", 2),
        (["--fail-if", "rss >", "--", "true", ":::", "true"], "a number is missing", 2),
        (["--json", "/no/such/file", "--", "true", ":::", "true"], "/no/such/file cannot be written", 2),
        (["--", "/no/such/program", ":::", "true"], "/no/such/program could not be started", 127),
    ],
)
def test_mistakes_are_told(hugeheap, arguments, words, status):
    result = stat(hugeheap, *arguments)
    assert result.returncode == status and words in result.stderr, result.stderr


def test_a_full_disk_leaves_the_table(hugeheap):
    result = stat(hugeheap, *SMALL, "--json", "/dev/full", "--", "true", ":::", "true")
    assert result.returncode == 3
    assert "/dev/full could not be written" in result.stderr and "wall time" in result.stdout


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["by a terminal", "to it alone"])
def test_an_interrupt_keeps_what_was_measured(program, library, environment, tmp_path, send):
    ready = tmp_path / "ready"
    slow = f"test -e {ready} && exec sleep 600; : > {ready}"
    process = subprocess.Popen(
        [program, "stat", "--warmup", "0", "--json", "--", "sh", "-c", slow, ":::", "true"],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    # The second run of the first command is the one that lasts: until it does, one of the group sleeps nothing.
    deadline = time.monotonic() + 60
    while "sleep" not in names_in_group(process.pid):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    send(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    report = json.loads(stdout)
    assert report["interrupted_by_signal"] == 2
    assert len(report["commands"][0]["runs"]) == 1


def names_in_group(group):
    names = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", errors="replace") as file:
                    name, rest = file.read().split(" (", 1)[1].rsplit(") ", 1)
            except (OSError, IndexError):
                continue
            if rest.split()[2] == str(group):
                names.add(name)
    return names


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_a_command_leaves_behind_takes_nobody_s_charge(hugeheap):
    """The control group in which something still ran was in the way of those of the runs after it, and the charge was missing without a word."""
    leaves = ["sh", "-c", "sleep 30 > /dev/null 2>&1 & true"]
    report = json.loads(stat(hugeheap, "--runs", "3", "--warmup", "0", "--json", "--", *leaves, ":::", "true").stdout)
    if report["charge_unavailable"] is not None:
        pytest.skip("no control group can be made here")
    charges = [run["peak_charge"] for command in report["commands"] for run in command["runs"]]
    assert len(charges) == 6 and all(charges), charges


def test_a_command_ends_with_what_measures_it(start, tmp_path):
    """Killed with SIGKILL it left the command running."""
    ready = tmp_path / "ready"
    process = start("stat", "--", "sh", "-c", f"echo $$ > {ready}; exec sleep 600", ":::", "true")
    until = time.monotonic() + 60
    while not ready.exists() or not ready.read_text():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=60)
    pid = int(ready.read_text())
    while os.path.exists(f"/proc/{pid}") and ") Z" not in open(f"/proc/{pid}/stat").read():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_each_command_has_a_pyperf_file_of_its_own(hugeheap, tmp_path):
    """Of a/b and a_b only the last was there, as a_b."""
    names = "a/b,a_b,a_b_2,a_b/2"
    result = stat(hugeheap, *SMALL, "--names", names, "--pyperf", tmp_path / "files", "--", *":::".join(["true"] * 4).replace(":::", " ::: ").split())
    assert result.returncode == 0, result.stderr
    found = {file.name: json.loads(file.read_text())["metadata"]["description"].split(": ")[1] for file in (tmp_path / "files").iterdir()}
    assert sorted(found.values()) == sorted(names.split(",")), found
    assert found["a_b.json"] == "a_b" and found["a_b_2.json"] == "a_b_2"
