"""Every command under a low limit on open files (`ulimit -n`): all of what it says with more, or one line that says why not."""

import re
import resource
import signal
import subprocess
import time

import pytest

# Standard input, output and error, and one more.
LEAST = 4
# From here on every command that looks at something does; those that measure need more.
MOST = 11
SHORT = re.compile(
    r"hugeheap: error: nothing was (done|read): this opens \d+ files at a time, and fewer can be opened: "
    r"the limit on open files is (\d+) \(ulimit -n\), and only root may raise it \(prlimit --nofile=\d+ --pid \$\$.*\n"
)
# Of each command, and whether what it says is the same at every look but for its numbers.
COMMANDS = {
    ("map", "PID"): True,
    ("map", "--json", "PID"): True,
    ("collapse", "--dry-run", "PID"): True,
    ("release", "--dry-run", "PID"): True,
    ("ps",): False,
    ("ps", "PID"): True,
    ("top", "--batch", "1"): False,
    ("export", "--once"): False,
    ("status",): False,
    ("doctor",): True,
    ("doctor", "--pid", "PID"): True,
    ("doctor", "--", "python3"): True,
    ("thp", "get"): True,
    ("thp", "set", "--dry-run", "mode=madvise"): True,
    ("pool", "list"): True,
    ("pool", "set", "0", "--dry-run"): True,
    ("explain",): True,
    ("man",): True,
    ("completions", "bash"): True,
    ("run", "--", "echo", "started"): True,
    ("run", "--summary", "--", "echo", "started"): True,
    ("record", "-o", "r.json", "--", "sleep", "0.3"): True,
    ("record", "-o", "r.json", "--pid", "PID", "--duration", "0.2"): True,
    ("report", "base.json", "-o", "r.html"): True,
    ("stat", "--runs", "2", "--", "true", ":::", "true"): False,
    ("tlb", "--cpu", "list"): True,
    ("bench", "list"): False,
}


@pytest.fixture(scope="module")
def target():
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def recording(program, target, tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "base.json"
    subprocess.run([program, "record", "-o", path, "--pid", str(target), "--duration", "0.3"], check=True, timeout=180)
    return path.read_text()


def limited(number, hard=None):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard or number))


def shape(text):
    """What is said, without numbers and what is drawn of them."""
    return [re.sub(r"\d[\d.,]*( ?[KMGTµmn]?i?[Bs]\b)?|[#|. -]+", " ", line) for line in text.splitlines()]


def test_every_command_is_tried(hugeheap):
    listed = re.search(r"Commands:\n(.*?)\n\n", hugeheap("--help").stdout, re.S)[1]
    assert set(re.findall(r"^  (\w+) ", listed, re.M)) - {"help"} == {command[0] for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_with_few_descriptors_a_command_says_all_or_why_it_does_nothing(hugeheap, target, recording, tmp_path, command):
    """`Too many open files` was all, or less was shown and done than with more, and the status was 0."""
    (tmp_path / "base.json").write_text(recording)
    words = [str(target) if word == "PID" else word for word in command]
    refused = 0
    for limit in range(LEAST, MOST + 1):
        ran = hugeheap(*words, preexec_fn=limited(limit), cwd=tmp_path)
        if ran.returncode == 0:
            if COMMANDS[command]:
                assert shape(ran.stdout) == shape(hugeheap(*words, cwd=tmp_path).stdout), limit
            break
        said = SHORT.fullmatch(ran.stderr)
        assert ran.returncode == 3 and said and int(said[2]) == limit, ran
        assert ran.stdout == "" and not list(tmp_path.glob("r.*")), ran
        refused += 1
    assert refused or command[0] in ("explain", "man", "completions"), "four are too few"
    assert refused <= MOST - LEAST or command[0] in ("stat", "tlb", "bench"), ran


def test_a_limit_that_one_may_raise_oneself_is_told_so(hugeheap, target):
    ran = hugeheap("map", target, preexec_fn=limited(4, hard=1024))
    assert ran.returncode == 3 and "only root" not in ran.stderr, ran
    raised = int(re.search(r"raise it \(ulimit -n (\d+);", ran.stderr)[1])
    assert hugeheap("map", target, preexec_fn=limited(raised)).returncode == 0


def test_a_limit_that_is_lowered_while_a_command_runs_is_told(start, target, tmp_path):
    """The result could not be written because of an "uncategorized error"."""
    table, document = tmp_path / "r.tsv", tmp_path / "r.json"
    process = start("record", "-o", table, "-o", document, "--pid", str(target))
    until = time.monotonic() + 60
    while not table.exists() or len(table.read_text().splitlines()) < 3:
        assert time.monotonic() < until
        time.sleep(0.02)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, 3))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert re.search(r"r\.json could not be written: Too many open files \(os error 24\): the limit on open files is 3 \(ulimit -n\)", said), said
