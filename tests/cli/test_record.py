"""`hugeheap record` end to end: commands and running processes, children, ends of every kind, a full disk."""

import json
import os
import signal
import subprocess
import time

import pytest
from targets import HEADLESS, Target

# Memory of a known size, held until the file `go` is there.
HOLD = """
import os, sys, time
held = b'x' * (32 << 20)
open(sys.argv[1], 'w').close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""


@pytest.fixture
def begin(program, environment):
    """Starts a recording and returns its process; what is left of it ends with the test."""
    running = []

    def start(*arguments, **options):
        process = subprocess.Popen(
            [program, "record", *map(str, arguments)], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows(path):
    """The rows of a table, which may be written to at the moment: without what is not yet a whole line."""
    head, *lines = path.read_text().rpartition("\n")[0].split("\n")
    names = head.split("\t")
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]


def test_a_command_is_recorded_and_its_status_passes_through(begin, python, tmp_path):
    table, document, ready, go = (tmp_path / name for name in ("a.tsv", "a.json", "ready", "go"))
    process = begin("-o", table, "-o", document, "--", python, "-c", HOLD + "sys.exit(7)", ready, go)
    until(ready.exists)
    seen = len(rows(table))
    # Rows are there while it runs.
    until(lambda: len(rows(table)) > seen + 1)
    go.touch()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 7, stderr
    assert table.read_text().startswith("time\trss\tkernel\t")
    assert max(int(row["rss"]) for row in rows(table)) > 32 << 20
    report = json.loads(document.read_text())
    assert report["schema"] == "hugeheap.record/1" and report["ended"]["status"] == 7
    samples = report["samples"]
    assert len(set(map(len, samples.values()))) == 1 and samples["seconds"] == sorted(samples["seconds"])
    assert report["maximum"]["rss"] > 32 << 20 and report["ended"]["peak_of_a_process"] > 32 << 20
    if report["charge_unavailable"]:
        assert "no charge is recorded" in stderr
    else:
        assert report["maximum"]["charge"] > 32 << 20


def test_how_a_recording_ended_is_told_with_what_the_command_took(hugeheap, python, tmp_path):
    started, attached = tmp_path / "started.json", tmp_path / "attached.json"
    assert hugeheap("record", "-o", started, "--", python, "-c", "for _ in range(5_000_000): pass").returncode == 0
    ended = json.loads(started.read_text())["ended"]
    assert (ended["by"], ended["status"], ended["signal"]) == ("process", 0, None)
    assert ended["user"] > 2 * ended["system"] and ended["minor_faults"] > 100 > ended["major_faults"], ended
    assert 4 << 20 < ended["peak_of_a_process"] < 4 << 30
    assert hugeheap("record", "-o", attached, "--pid", os.getpid(), "--duration", "0.1").returncode == 0
    assert json.loads(attached.read_text())["ended"] == {"by": "duration"}


def test_looks_that_cost_too_much_are_made_more_rarely(begin, tmp_path):
    table, document = tmp_path / "a.tsv", tmp_path / "a.json"
    with subprocess.Popen(["sleep", "600"]) as watched:
        # Each takes some 20 µs at least; 0.12 % of the time is not enough for a thousand of them.
        process = begin("--rate", 1000, "--cost", 0.3, "--pid", watched.pid, "-o", table, "-o", document)
        until(lambda: table.exists() and len(rows(table)) > 20)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        watched.kill()
    assert process.returncode == 0 and "looks in a second, not 1000" in stderr and "--cost" in stderr, stderr
    report = json.loads(document.read_text())
    assert report["cost_allowed"] == 0.003 and report["looks"] > 20
    assert 0 < report["seconds_spent_looking"]


def test_children_are_added_where_asked(begin, python, tmp_path):
    table, ready, go = (tmp_path / name for name in ("a.tsv", "ready", "go"))
    shell = ["sh", "-c", '"$0" "$@" & wait', python, "-c", HOLD, ready, go]
    process = begin("--children", "-o", table, "--", *shell)
    until(ready.exists)
    until(lambda: any(int(row["processes"]) == 2 and int(row["rss"]) > 32 << 20 for row in rows(table)))
    go.touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_running_process_is_recorded_to_its_end(begin, python, tmp_path):
    table, ready, go = (tmp_path / name for name in ("a.tsv", "ready", "go"))
    with subprocess.Popen([python, "-c", HOLD, ready, go]) as watched:
        until(ready.exists)
        process = begin("--pid", watched.pid, "-o", table)
        until(lambda: table.exists() and len(rows(table)) > 1)
        go.touch()
        watched.wait(timeout=60)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0 and "has ended" in stderr, stderr
    assert all(int(row["rss"]) > 0 for row in rows(table))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_recording_and_keeps_it(begin, tmp_path, number):
    table, document = tmp_path / "a.tsv", tmp_path / "a.json"
    with subprocess.Popen(["sleep", "600"]) as watched:
        process = begin("--pid", watched.pid, "-o", table, "-o", document)
        until(lambda: table.exists() and len(rows(table)) > 1)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
        assert watched.poll() is None, "the process goes on"
        watched.kill()
    assert process.returncode == 0, stderr
    report = json.loads(document.read_text())
    assert report["ended"] == {"by": "request", "signal": number} and len(report["samples"]["rss"]) > 1


def test_a_command_that_is_killed_kills_us_alike(begin, tmp_path):
    process = begin("-o", tmp_path / "a.tsv", "--", "sh", "-c", "kill -KILL $$")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_a_command_that_ends_at_once_is_told(hugeheap, tmp_path):
    result = hugeheap("record", "-o", tmp_path / "a.tsv", "--", "true")
    assert result.returncode == 0
    # How many looks there were is a matter of luck; the file has its head in any case.
    assert (tmp_path / "a.tsv").read_text().startswith("time\trss\t")
    assert "look" in result.stderr


def test_what_a_command_prints_is_its_own(hugeheap, tmp_path):
    result = hugeheap("-q", "record", "-o", tmp_path / "a.tsv", "--", "sh", "-c", "yes | head -c 3000000")
    assert result.returncode == 0 and len(result.stdout) == 3_000_000


def test_a_daemon_is_told_and_not_waited_for(hugeheap, tmp_path):
    # Its own streams: the pipes of this test would be waited for otherwise. It lives longer than the recording
    # may take.
    leave = "sleep 600 > /dev/null 2>&1 & echo $!"
    result = hugeheap("record", "--children", "-o", tmp_path / "a.tsv", "--", "sh", "-c", leave)
    os.kill(int(result.stdout), signal.SIGKILL)
    assert result.returncode == 0 and "still there: 1 process" in result.stderr, result.stderr


def test_a_process_whose_main_thread_ends_is_not_said_to_have_ended(begin, compiled, tmp_path):
    table, target = tmp_path / "a.tsv", Target(compiled("headless", "-pthread", source=HEADLESS))
    process = begin("-o", table, "--pid", target.pid)
    until(lambda: table.exists() and rows(table))
    target.behead()
    _, stderr = process.communicate(timeout=60)
    target.process.communicate("\n", timeout=60)
    assert process.returncode == 0, stderr
    assert "its main thread has ended, others run" in stderr and "has ended\n" not in stderr


def test_a_full_disk_keeps_what_was_recorded(program, environment, tmp_path):
    table, pipe, go = (tmp_path / name for name in ("a.tsv", "pipe", "go"))
    os.mkfifo(pipe)
    # A limit of the shell's in place of a full disk: 4 KiB for a file. The signal is ignored, the error remains.
    limited = "trap '' XFSZ; ulimit -f 4; exec \"$@\""
    command = ["sh", "-c", limited, "sh", program, "record", "--rate", "1000", "-o", table, "-o", pipe, "--"]
    wait = ["sh", "-c", f"until test -e {go}; do sleep 0.1; done"]
    with subprocess.Popen([*command, *wait], env=environment, stderr=subprocess.PIPE, text=True) as process:
        with open(pipe) as unlimited:
            # Each row is written to the table first: one that is in the pipe alone was refused there.
            assert any(number > len(rows(table)) for number, _ in enumerate(unlimited))
            go.touch()
            unlimited.read()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 3, stderr
    assert "could not be written any more" in stderr
    assert table.read_text().endswith("\n") and len(rows(table)) > 10
    assert all(int(row["rss"]) >= 0 for row in rows(table))


def test_without_control_groups_the_rest_is_recorded(hugeheap, tmp_path):
    # As an ordinary user nothing may be made there; as root, groups may be hidden.
    command = ["record", "-o", tmp_path / "a.json", "--", "sleep", "0.2"]
    result = hugeheap(*command)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "a.json").read_text())
    assert ("no charge is recorded" in result.stderr) == (report["charge_unavailable"] is not None)
    assert (report["charge_of"] == "own") == (report["charge_unavailable"] is None)


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (["-o", "a.tsv"], "--pid", 2),
        (["--", "true"], "--output", 2),
        # It was ignored, and the command recorded to its end.
        (["-o", "a.tsv", "--duration", "0.3", "--", "true"], "'--duration <SECONDS>' cannot be used with", 2),
        (["-o", "/dev/full", "--", "true"], "/dev/full cannot be written: No space", 3),
        (["-o", "-", "--", "true"], "standard output is /dev/stdout", 2),
        (["-o", "a.tsv", "--rat", "1", "--", "true"], "'--rat'", 2),
        (["-o", "/no/such/a.tsv", "--", "true"], "/no/such/a.tsv cannot be written", 2),
        (["-o", "a.tsv", "--rate", "0", "--", "true"], "looks per second between", 2),
        (["-o", "a.tsv", "--cost", "0", "--", "true"], "a percentage between", 2),
        (["-o", "a.tsv", "--pid", "4194304"], "4194304", 5),
        (["-o", "a.tsv", "--", "/no/such/program"], "/no/such/program could not be started", 127),
    ],
)
def test_mistakes_are_told(hugeheap, tmp_path, arguments, words, status):
    result = hugeheap("record", *arguments, cwd=tmp_path)
    assert result.returncode == status and words in result.stderr, result.stderr
