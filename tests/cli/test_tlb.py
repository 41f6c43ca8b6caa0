"""`hugeheap tlb`: computed misses of a small program, and what it answers when it cannot compute."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind here")

# Reads one byte of each of 4,096 OS pages, several times: more than a second level of 2,048 entries holds.
WALK = """
#include <stdlib.h>
int main(int count, char **words) {
    volatile char *memory = malloc(4096L * 4096);
    for (int pass = 0; pass < 10; pass++)
        for (long page = 0; page < 4096; page++) memory[page * 4096] += 1;
    return count > 1 ? atoi(words[1]) : 0;
}
"""


@needs_valgrind
def test_a_walk_misses_on_small_pages_and_not_on_huge_ones(hugeheap, compiled, tmp_path):
    walk = compiled("walk", source=WALK)
    file = tmp_path / "tlb.json"
    result = hugeheap("tlb", "--cpu", "zen4", "--json", file, "--", walk, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "Computed, not counted, for zen4" in result.stdout and "second level" in result.stdout
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.tlb/1"
    small, huge = report["pages"]
    assert (small["page"], huge["page"]) == (4096, 2 << 20)
    assert small["accesses"] == huge["accesses"] > 40_960
    assert small["second_level_misses"] >= 40_960 > 1000 > huge["second_level_misses"]
    result = hugeheap("report", file, "-o", tmp_path / "report.html")
    assert result.returncode == 0 and "misses of the second level" in (tmp_path / "report.html").read_text()
    again = json.loads(hugeheap("--json", "tlb", "--cpu", "zen4", "--", walk, timeout=300).stdout)
    assert again["pages"] == report["pages"]


@needs_valgrind
def test_each_level_has_the_entries_that_were_given(hugeheap, compiled):
    """All that is touched has room in the second level, and in the first next to nothing."""
    walk = compiled("walk", source=WALK)
    report = json.loads(hugeheap("--json", "tlb", "--cpu", "16:16,8192:8", "--", walk, timeout=300).stdout)
    small = report["pages"][0]
    assert small["first_level_misses"] >= 40_960 > 3 * small["second_level_misses"] > 0, small
    assert [level["entries"] for level in small["levels"]] == [16, 8192] and report["children"] is False


@needs_valgrind
def test_the_status_of_a_command_that_fails_passes_through(hugeheap, compiled):
    walk = compiled("walk", source=WALK)
    result = hugeheap("tlb", "--cpu", "64:4,2048:16", "--", walk, "7", timeout=300)
    assert result.returncode == 7
    assert "the command failed" in result.stderr and "misses of the second level" in result.stdout


@needs_valgrind
def test_what_a_command_becomes_is_counted_and_what_it_starts_where_asked(hugeheap, compiled):
    walk = compiled("walk", source=WALK)

    def misses(*arguments):
        result = hugeheap("tlb", "--cpu", "64:4,2048:16", "--json", *arguments, timeout=300)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["pages"][0]["second_level_misses"], result.stderr

    seen, said = misses("--", "sh", "-c", 'exec "$0"', walk)
    assert seen >= 40_960 and "in its place" in said
    starts = ["sh", "-c", '"$0"; true', walk]
    assert misses("--", *starts)[0] < 40_960 <= misses("--children", "--", *starts)[0]


@needs_valgrind
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_valgrind_too_and_leaves_nothing(start, environment, tmp_path, number):
    """It went on alone, and its directory stayed in TMPDIR."""
    ready = tmp_path / "ready"
    process = start("tlb", "--cpu", "zen4", "--", "sh", "-c", f"echo $$ > {ready}; exec sleep 600")
    until = time.monotonic() + 60
    while not ready.exists() or not ready.read_text():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "interrupted" in said, said
    assert not Path(f"/proc/{ready.read_text().strip()}").exists()
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


# Swallows a signal, as valgrind does between two looks, and then executes another program.
SWALLOWS = """#!/bin/sh
trap : INT TERM
echo $$ > "$READY"
while [ ! -e "$GO" ]; do sleep 0.05; done
exec sleep 600
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lost_while_the_command_executes_another_program_comes_again(start, environment, tmp_path, number):
    """One in ten that came at such a moment was lost: `tlb` waited for the command to its end, of which nobody knew."""
    ready, go, programs = (tmp_path / name for name in ("ready", "go", "programs"))
    programs.mkdir()
    (programs / "valgrind").write_text(SWALLOWS)
    (programs / "valgrind").chmod(0o755)
    environment.update(PATH=f"{programs}:{environment['PATH']}", READY=str(ready), GO=str(go))
    process = start("tlb", "--cpu", "zen4", "--", "true")
    until = time.monotonic() + 60
    while not ready.exists() or not ready.read_text():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    time.sleep(0.5)
    assert process.poll() is None
    go.touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "interrupted" in said, said
    assert not running(ready)


def running(path):
    """Whether a process that wrote its number there runs."""
    try:
        state = Path(f"/proc/{path.read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@needs_valgrind
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_the_command_started_ends_with_it(start, tmp_path, number):
    """It went on by itself; and of a command that was killed with SIGKILL valgrind did, too, for as long as it took."""
    command, child, stubborn = (tmp_path / name for name in ("command", "child", "stubborn"))
    ignores = f"trap '' INT TERM; echo $$ > {stubborn}; while :; do sleep 0.1; done"
    script = f"echo $$ > {command}; (sh -c \"$0\") & sh -c 'echo $$ > {child}; exec sleep 600' & wait"
    process = start("tlb", "--cpu", "zen4", "--", "sh", "-c", script, ignores)
    until = time.monotonic() + 60
    while not all(map(running, (command, child, stubborn))):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.wait(timeout=60)
    # Nobody is left to end what is deeper when this process is killed.
    expected = (command,) if number == signal.SIGKILL else (command, child, stubborn)
    while any(map(running, expected)):
        assert time.monotonic() < until, [path.name for path in expected if running(path)]
        time.sleep(0.05)
    for left in (child, stubborn):
        if running(left):
            os.kill(int(left.read_text()), signal.SIGKILL)


def test_without_valgrind_it_says_what_to_install(hugeheap, tmp_path):
    result = hugeheap("tlb", "--cpu", "zen4", "--", "/bin/true", env={"PATH": str(tmp_path)})
    assert result.returncode == 3
    assert "apt install valgrind" in result.stderr


@needs_valgrind
def test_a_missing_temporary_directory_is_not_a_missing_valgrind(hugeheap):
    result = hugeheap("tlb", "--cpu", "zen4", "--", "/bin/true", env={"TMPDIR": "/no/such"})
    assert (result.returncode, "set TMPDIR" in result.stderr, "apt install" in result.stderr) == (3, True, False), result.stderr


def test_a_command_that_cannot_be_started_has_the_status_of_a_shell(hugeheap, tmp_path):
    """It was 3, which means that nothing can be computed here."""
    plain = tmp_path / "plain"
    plain.write_text("text\n")
    for command, status, why in (("/no/such/command", 127, "no such file"), ("nosuch", 127, "not found"), (plain, 126, "executed")):
        result = hugeheap("tlb", "--cpu", "zen4", "--", command)
        assert result.returncode == status and why in result.stderr, result.stderr


def test_the_list_names_its_sources(hugeheap):
    text = hugeheap("tlb", "--cpu", "list").stdout
    assert "zen4" in text and "Intel 64 and IA-32" in text and "Arm Neoverse N1" in text


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--cpu", "pentium", "--", "true"], ["skylake", "64:4"]),
        (["--cpu", "64:5,2048:16", "--", "true"], ["multiple of the ways"]),
        ([], ["a command is needed"]),
    ],
)
def test_wrong_input_is_refused_with_what_is_possible(hugeheap, arguments, words):
    result = hugeheap("tlb", *arguments)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr


@needs_valgrind
def test_what_was_computed_is_told_also_when_its_file_cannot_be_written(hugeheap):
    """Minutes of work were lost to a full disk."""
    result = hugeheap("tlb", "--cpu", "zen4", "--json", "/dev/full", "--", "/bin/true")
    assert result.returncode == 3 and "could not be written" in result.stderr
    assert "misses of the second level" in result.stdout


@needs_valgrind
def test_a_command_line_of_any_bytes_is_computed(program, environment, tmp_path):
    """It was said to execute another program, and nothing was computed: the model's files have the command's words in them."""
    walk = os.fsencode(tmp_path) + b"/w\xffalk"
    os.symlink("/bin/true", walk)
    words = [program, "tlb", "--cpu", "zen4", "--json", "--", walk, b"\xfe"]
    result = subprocess.run(words, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=300)
    assert result.returncode == 0 and b"in its place" not in result.stderr, result.stderr
    assert json.loads(result.stdout)["pages"][0]["accesses"] > 0
