"""Standard output that cannot be written is no success, whatever the command; files are whole or not there."""

import os
import subprocess

import pytest

COMMANDS = ["status --json", "ps", "thp get", "pool list", "export --once", "bench list", "man", "completions bash", "--help"]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_full_disk_is_told(program, words):
    with open("/dev/full", "w") as full:
        result = subprocess.run([program, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 3
    assert "standard output could not be written: No space left on device" in result.stderr


def test_output_open_only_for_reading_is_told(program):
    with open("/dev/null") as closed:
        result = subprocess.run([program, "status"], stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, "could not be written" in result.stderr) == (3, True)


def test_a_reader_that_has_enough_is_no_failure(program):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        result = subprocess.run([program, "man"], stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_picture_is_not_cut(program, tmp_path):
    picture = tmp_path / "map.svg"
    picture.write_text("the one of yesterday")
    # Files may have no more than a few bytes: the limit stands for a disk that is full.
    limited = f"ulimit -f 1; trap '' XFSZ; exec '{program}' \"$@\""
    result = subprocess.run(
        ["sh", "-c", limited, "sh", "map", str(os.getpid()), "--all", "--svg", str(picture)], capture_output=True, text=True
    )
    assert result.returncode == 3 and "cannot be written" in result.stderr
    assert picture.read_text() == "the one of yesterday"
    assert os.listdir(tmp_path) == ["map.svg"]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("stat --runs 2 {} -- true ::: true", "--json"),
        ("record {} -- sleep 0.2", "-o"),
        ("map {own} {}", "--svg"),
        ("man {}", "--out"),
    ],
)
def test_a_file_that_cannot_be_written_has_the_code_of_its_reason(program, tmp_path, words, option):
    """A full disk was status 1, which means findings, or 2, that of a mistyped option."""

    def status(place):
        given = words.replace("{own}", str(os.getpid())).replace("{}", f"{option} {place}")
        result = subprocess.run([program, *given.split()], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert str(place) in result.stderr, result.stderr
        return result.returncode

    if option != "--out":
        assert status("/dev/full") == 3
        assert status("/no/such/directory/a.json") == 2
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        assert status(tmp_path / "a.json") == 4
    assert status("/dev/null/a.json") == 2


def test_a_manual_page_that_cannot_be_written_is_told_and_no_success(hugeheap, tmp_path):
    (tmp_path / "hugeheap-map.1").mkdir()
    ran = hugeheap("man", "--out", tmp_path)
    assert ran.returncode == 2 and f"{tmp_path}/hugeheap-map.1: Is a directory" in ran.stderr, ran


@pytest.mark.parametrize("words", ["man --out", "stat --runs 2 --pyperf {} -- true ::: true"])
def test_a_directory_that_cannot_be_made_has_the_code_of_its_reason(program, tmp_path, words):
    """A missing permission was status 2, and a file in its place 3."""
    there = tmp_path / "there"
    there.write_text("a file")
    closed = tmp_path / "closed"
    closed.mkdir()

    def status(place, **options):
        given = words.format(place) if "{}" in words else f"{words} {place}"
        result = subprocess.run([program, *given.split()], capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
        assert str(place) in result.stderr, result.stderr
        return result.returncode

    assert status(there) == 2
    assert status("/dev/null/there") == 2
    if os.geteuid() != 0:
        closed.chmod(0o500)
        assert status(closed / "new") == 4
    else:
        # Where nothing can be made, whoever asks.
        assert status("/sys/kernel/new") == 4


@pytest.mark.parametrize("words", ["run", "doctor"])
def test_an_empty_word_is_named_as_one(program, words):
    result = subprocess.run([program, words, "--", ""], capture_output=True, text=True)
    assert result.returncode == 127 and "the command is an empty word" in result.stderr


@pytest.mark.parametrize("words", COMMANDS)
def test_a_closed_output_is_told(program, words):
    """The standard library opens /dev/null for it, so that all was lost with status 0."""
    result = subprocess.run(["sh", "-c", f"'{program}' {words} >&-"], stderr=subprocess.PIPE, text=True)
    assert (result.returncode, "standard output could not be written" in result.stderr) == (3, True), result.stderr


def test_what_runs_finds_a_closed_output_closed(program, python):
    code = "import os, sys; sys.exit(sys.stdout is not None or os.path.exists('/proc/self/fd/1'))"
    result = subprocess.run(["sh", "-c", f"'{program}' run -- '{python}' -c \"{code}\" >&- 2>/dev/null"])
    assert result.returncode == 0


def test_a_small_stack_is_enough(program):
    """Reading the command line ended it: "has overflowed its stack", status 134."""

    def limited(words, **options):
        return subprocess.Popen(
            ["sh", "-c", f"ulimit -s 64; exec '{program}' {words}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    for words in COMMANDS:
        command = limited(words)
        out, err = command.communicate(timeout=60)
        assert (command.returncode, bool(out)) == (0, True), (words, err)
    # A signal goes to what was started, and its end is passed on.
    command = limited("run -- sh -c 'trap \"exit 7\" TERM; echo ready; while :; do sleep 0.05; done'")
    assert command.stdout.readline() == "ready\n"
    command.terminate()
    command.communicate(timeout=60)
    assert command.returncode == 7


@pytest.mark.parametrize("words", ["record -o {} -- true", "report -o {} {}", "man", "completions bash"])
def test_data_is_refused_where_there_is_none(program, tmp_path, words):
    """Those that write files went on as if it had not been asked for."""
    given = words.replace("{}", str(tmp_path / "a.json")).split()
    result = subprocess.run([program, "--json", *given], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (result.returncode, result.stdout, "leave --json out" in result.stderr) == (2, "", True), result.stderr
    assert os.listdir(tmp_path) == []
