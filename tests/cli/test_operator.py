"""What an operator meets who is tired: names that write to the terminal, a /proc that hides, numbers that are none, few descriptors."""

import json
import os
import re
import subprocess
import sys

import pytest
import testbed
from terminal import Terminal

# What clears the screen in one way and in the other, ends a line, and is no UTF-8.
EVIL = b"a\x1b[2J\xc2\x9b2J\n\xff"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def evil():
    """A process with a name of its own choice."""
    code = f"import ctypes; ctypes.CDLL(None).prctl(15, {EVIL!r}, 0, 0, 0); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


LOOKS = ["ps {}", "ps", "map {}", "top --batch 1 {}", "top --batch 1", "doctor --pid {}", "collapse --dry-run {}", "release --dry-run {}"]


@pytest.mark.parametrize("words", LOOKS)
@pytest.mark.parametrize("json_too", [False, True])
def test_a_name_writes_nothing_to_a_terminal(hugeheap, evil, words, json_too):
    """JSON escaped the control characters of ASCII only: a terminal knows U+009B for `ESC [`."""
    ran = hugeheap(*words.format(evil).split(), *(["--json"] if json_too else []))
    assert ran.returncode in (0, 1, 3), ran
    assert not CONTROL.search(ran.stdout), CONTROL.findall(ran.stdout)
    assert not CONTROL.search(ran.stderr), CONTROL.findall(ran.stderr)
    assert "a?[2J?2J" in ran.stdout or "a\\u001b[2J\\u009b2J" in ran.stdout, ran.stdout
    if json_too:
        for line in ran.stdout.splitlines() if words.startswith("top") else [ran.stdout]:
            json.loads(line)


def test_metrics_are_as_they_are_for_prometheus_and_harmless_on_a_terminal(program, environment, hugeheap, evil):
    words = ("export", "--once", "--process", str(evil))
    assert 'name="a\x1b[2J\x9b2J\\n' in hugeheap(*words).stdout
    terminal = Terminal(program, *words, env=environment)
    assert terminal.ended() == 0
    terminal.close()
    written = terminal.written.decode("utf-8", "replace")
    assert 'name="a?[2J?2J' in written
    assert not CONTROL.search(written.replace("\r\n", "\n")), CONTROL.findall(written)


@pytest.fixture
def hidden(everybodys, environment):
    """Runs the command as somebody to whom /proc shows nobody else."""
    testbed.need_root()

    def run(*arguments):
        script = 'mount -t proc -o hidepid=2 none /proc && setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; exit $?'
        ran = subprocess.run(
            ["unshare", "-pfm", "sh", "-c", script, "sh", everybodys, *arguments],
            env=environment, capture_output=True, text=True, check=False, timeout=180,
        )  # fmt: skip
        if re.search("unshare:|mount:|setpriv:|sh: ", ran.stderr):
            pytest.skip(f"no namespaces here: {ran.stderr.strip()}")
        return ran

    return run


HIDDEN = "/proc hides other users' processes here (it is mounted with hidepid): sudo shows them"


@pytest.mark.parametrize("words", [["map", "1"], ["ps", "1"], ["collapse", "1"], ["doctor", "--pid", "1"]])
def test_a_hidden_process_is_not_said_to_be_none(hidden, words):
    ran = hidden(*words)
    assert ran.returncode == 5 and f"there is no process 1, or it is another user's: {HIDDEN}" in ran.stderr, ran


@pytest.mark.parametrize("words", [["ps"], ["export", "--once"]])
def test_a_list_says_that_others_are_hidden(hidden, words):
    """It was a list of one process and not a word."""
    ran = hidden(*words)
    assert ran.returncode == 0 and HIDDEN in ran.stderr, ran


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["top", "--interval", "-5"], "not a number of seconds"),
        (["collapse", "1", "--min-density", "-inf"], "not a share between 0 and 1"),
        (["stat", "--runs", "0", "--", "true", ":::", "true"], "not a whole number between 2 and 10000"),
        (["ps", "-5"], "not the number of a process"),
        (["pool", "set", "-5"], "not a number of pages"),
        (["export", "--once", "--budget", "--json"], "not a number of seconds"),
    ],
)
def test_a_number_that_is_none_is_told_what_it_should_be(hugeheap, words, said):
    """There was a tip, `use '-- -5'`, that led nowhere."""
    ran = hugeheap(*words)
    assert ran.returncode == 2 and said in ran.stderr and "tip:" not in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    "words", ["status", "ps", "top --batch 1", "map 1", "doctor", "export --once", "pool list", "pool set 1", "thp get", "thp set mode=never", "run -- true"]
)
def test_a_root_that_is_none_is_not_told_as_a_kernel_without_huge_pages(hugeheap, tmp_path, words):
    """A mistyped --root was: "this kernel has no pools of huge pages", or "there is no list of processes", with status 3."""
    (tmp_path / "file").touch()
    for name, why in (("roto", "No such file or directory"), ("file", "not a directory")):
        ran = hugeheap("--root", tmp_path / name, *words.split())
        assert (ran.returncode, ran.stdout) == (2, ""), ran
        assert f"--root {tmp_path / name}: {why}" in ran.stderr and len(ran.stderr.splitlines()) == 1, ran


def test_a_control_group_whose_name_is_no_text_has_a_charge(hugeheap, tmp_path):
    """`no charge is recorded: stream did not contain valid UTF-8`: of a process in it, and of commands that are started from there."""
    with testbed.memory_group(os.fsdecode(b"\xff[31m")) as group:
        process = subprocess.Popen(["sleep", "600"], preexec_fn=group.enter)
        try:
            attached, started = tmp_path / "attached.json", tmp_path / "started.json"
            ran = [
                hugeheap("record", "-o", attached, "--pid", process.pid, "--duration", "0.2"),
                hugeheap("record", "-o", started, "--", "sleep", "0.2", preexec_fn=group.enter),
            ]
            assert all(one.returncode == 0 and "charge" not in one.stderr for one in ran), ran
            recordings = [json.loads(file.read_text()) for file in (attached, started)]
            assert all(recording["maximum"]["charge"] > 0 for recording in recordings)
            assert "/hugeheap-\ufffd[31m-" in recordings[0]["charge_of"] and recordings[1]["charge_of"] == "own"
            assert "/hugeheap-\ufffd[31m-" in hugeheap("ps", "--cgroups", process.pid).stdout
        finally:
            process.kill()
            process.wait()


def closed(*numbers):
    def close():
        for number in numbers:
            os.close(number)

    return close


@pytest.mark.parametrize("words", ["status", "ps", "doctor", "top --batch 1", "thp get", "pool list", "export --once", "bench list", "map {own}"])
def test_a_program_without_a_terminal_input_or_error_says_the_same(program, environment, words):
    """Whatever cron, a service manager or a shell has closed, and on a terminal of nothing."""
    words = words.format(own=os.getpid()).split()
    poor = {**environment, "TERM": "dumb", "COLUMNS": "20", "LC_ALL": "C", "LANG": "C"}

    def status(env=environment, **options):
        return subprocess.run([program, *words], env=env, stdout=subprocess.PIPE, **options).returncode

    wanted = status(stdin=subprocess.DEVNULL)
    assert wanted in (0, 1)
    assert status(preexec_fn=closed(0)) == status(preexec_fn=closed(2)) == status(preexec_fn=closed(0, 2)) == status(poor) == wanted
    ran = subprocess.run([program, *words], env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=closed(1))
    assert ran.returncode == 3 and "standard output could not be written" in ran.stderr, ran
