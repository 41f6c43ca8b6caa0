"""`hugeheap top` on a terminal, as a user sees it: keys, sizes, signals; and without one."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from targets import HEADLESS, Target, ended
from terminal import PATIENCE, Terminal

UTF8 = {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
ENTER, ESCAPE, END = "\r", "\x1b", "\x1b[F"
WAIT = "print('ready', flush=True); import sys; sys.stdin.readline(); print('{}')"
# Some memory that can be seen in the map.
HEAP = "rows = [[float(n)] for n in range(100_000)]; " + WAIT


@pytest.fixture
def top(program, library, environment):
    """Starts `hugeheap top` on a terminal; closed at the end of the test."""
    started = []

    def start(*arguments, env=(), **size):
        kept = {name: value for name, value in environment.items() if name not in ("NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG")}
        terminal = Terminal(program, "top", *arguments, env={**kept, **UTF8, **dict(env)}, **size)
        started.append(terminal)
        return terminal

    yield start
    for terminal in started:
        terminal.close()


@pytest.fixture
def heap(python):
    process = Target(python, "-c", HEAP)
    yield process
    process.end()


def test_from_the_list_to_a_process_and_back(top, heap):
    view = top()
    view.sees("COVERAGE")
    view.type("/")
    view.sees("name or number:")
    view.type(f"{heap.pid}{ENTER}")
    view.sees(f"only '{heap.pid}'")
    view.until(lambda it: any(re.match(rf"\s*{heap.pid} +\d+ .*python", line) for line in it.screen()), "no line")
    # The number of the user sorts, and the way can be reversed.
    view.type("2")
    view.sees("USER▲")
    view.type("r")
    view.sees("USER▼")
    view.type("u")
    view.until(lambda it: any(re.search(r"\d+ K ", line) for line in it.screen()), "no KiB")
    view.type(ENTER)
    view.sees("in memory,")
    for part in ("RSS ", "coverage ", "stranded ", "charge ", " not huge: ", "2.0 MiB each"):
        view.sees(part)
    view.type(ESCAPE)
    view.sees("Enter details")
    view.type("?")
    view.sees("Keys (any key: back)")
    view.type("x")
    view.misses("Keys (any key")
    view.type("q")
    assert view.ended() == 0
    assert view.is_as_before()


def test_a_process_that_ends_is_said_so(top, python):
    process = Target(python, "-c", WAIT)
    view = top(process.pid)
    view.sees("python")
    view.type(ENTER)
    view.sees("page tables")
    process.end()
    view.sees(f"process {process.pid} has ended (Esc: back to the list)")
    view.type(ESCAPE)
    view.sees("no such process (any more)")
    view.type("\x03")
    assert view.ended() == 0


def test_a_process_whose_main_thread_ends_is_not_said_to_have_ended(top, compiled):
    process = Target(compiled("headless", "-pthread", source=HEADLESS))
    view = top("--interval", "0.2", process.pid)
    view.sees("headless")
    view.type(ENTER)
    view.sees("page tables")
    process.behead()
    view.sees(f"headless ({process.pid}): its main thread has ended, others run")
    view.misses("has ended (Esc")
    process.process.communicate("\n", timeout=60)
    view.sees(f"process {process.pid} has ended (Esc: back to the list)")
    view.type("\x03")
    assert view.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_before(top, number):
    view = top("--interval", "0.2")
    view.sees("COVERAGE")
    os.kill(view.pid, number)
    assert view.ended() == -number
    assert view.is_as_before()


def test_a_connection_that_is_cut_ends_it(program, environment):
    """Without a session's signal: only reading and writing say so."""
    ours, theirs = pty.openpty()
    # Without a size nothing is drawn.
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    with subprocess.Popen(
        [program, "top"], stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, **UTF8}, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            seen = b""
            while b"COVERAGE" not in seen:
                assert select.select([ours], [], [], PATIENCE)[0], f"nothing more after {seen!r}"
                seen += os.read(ours, 1 << 16)
            os.close(ours)
            assert process.wait(PATIENCE) != 0
        finally:
            process.kill()


@pytest.mark.parametrize("by", ["key", "signal"])
def test_the_shell_has_the_terminal_in_between(top, by):
    view = top()
    view.sees("COVERAGE")
    if by == "key":
        view.type("\x1a")
    else:
        os.kill(view.pid, signal.SIGTSTP)
    end = time.monotonic() + PATIENCE
    stopped = 0
    while not stopped:
        assert time.monotonic() < end, "it does not stop"
        view.read()
        found, status = os.waitpid(view.pid, os.WNOHANG | os.WUNTRACED)
        stopped = found and os.WIFSTOPPED(status)
    view.rest()
    assert view.is_as_before()
    os.kill(view.pid, signal.SIGCONT)
    view.sees("COVERAGE")
    view.type("q")
    assert view.ended() == 0
    assert view.is_as_before()


def test_it_follows_the_size_of_the_terminal(top):
    view = top(width=120, height=30)
    view.sees("ELIGIBLE")
    view.resize(50, 12)
    os.kill(view.pid, signal.SIGWINCH)
    view.misses("ELIGIBLE")
    view.sees("RSS▼")
    view.resize(20, 3)
    os.kill(view.pid, signal.SIGWINCH)
    view.sees("needs 24 × 5")
    view.resize(120, 30)
    os.kill(view.pid, signal.SIGWINCH)
    view.sees("ELIGIBLE")
    view.type("q")
    assert view.ended() == 0


def coloured(view):
    return re.search(rb"\x1b\[[0-9;]*\b(3[0-7]|4[0-7]|38;5;\d+|48;5;\d+)\b[0-9;]*m", view.written)


def test_colours_and_characters_are_those_the_terminal_has(top):
    for arguments, env, has_colours, is_ascii in (
        ([], {}, True, False),
        (["--no-color"], {}, False, False),
        ([], {"NO_COLOR": "1"}, False, False),
        ([], {"LC_ALL": "C"}, True, True),
        (["--ascii"], {}, True, True),
    ):
        view = top(*arguments, env=env)
        view.sees("q quit")
        # The selected line has a colour of its own.
        view.sees(" MiB ")
        view.type("q")
        assert view.ended() == 0
        assert bool(coloured(view)) == has_colours, (arguments, env)
        assert view.written.isascii() == is_ascii, (arguments, env)


def test_without_a_terminal_it_says_what_there_is_instead(hugeheap, top):
    result = hugeheap("top")
    assert result.returncode == 2 and result.stdout == ""
    assert "--batch N prints text, --json data" in result.stderr
    dumb = top(env={"TERM": "dumb"})
    assert dumb.ended() == 3
    assert b"--batch N" in dumb.written


def test_refreshes_as_text(hugeheap, heap):
    result = hugeheap("top", "--batch", "2", "--interval", "0.1", heap.pid, "--units", "k")
    assert result.returncode == 0, result.stderr
    frames = result.stdout.strip().split("\n\n")
    assert len(frames) == 2
    for frame in frames:
        host, heads, line = frame.splitlines()
        assert " UTC, " in host and "stranded" in host
        assert heads.split() == ["PID", "USER", "RSS", "HUGE", "COVERAGE", "ELIGIBLE", "STRANDED", "THP", "NAME"]
        assert line.split()[0] == str(heap.pid) and " K " in line
    everything = hugeheap("top", "--batch", "1", "-n", "3").stdout.splitlines()
    assert len(everything) == 6, everything
    assert hugeheap("top", "--batch", "1", "--ascii").stdout.isascii()


def test_refreshes_as_data(hugeheap, heap):
    result = hugeheap("top", "--json", "--batch", "2", "--interval", "0.1", heap.pid)
    one, two = (json.loads(line) for line in result.stdout.splitlines())
    assert one["schema"] == two["schema"] == "hugeheap.top/1"
    assert two["time"] > one["time"]
    assert one["host"]["memory"]["total"] > 0
    (process,) = two["processes"]
    assert process["id"] == heap.pid and process["resident"] > 0
    assert {"huge", "coverage", "eligible", "stranded", "thp"} <= process.keys()


def test_a_stream_ends_when_nobody_reads_it(start):
    process = start("top", "--json", "--interval", "0.1")
    assert json.loads(process.stdout.readline())["schema"] == "hugeheap.top/1"
    assert json.loads(process.stdout.readline())["processes"]
    process.stdout.close()
    assert process.wait(timeout=PATIENCE) == 0
    process.stdout = open(os.devnull)


def test_another_root_is_watched(hugeheap, tmp_path):
    directory = tmp_path / "proc/77"
    directory.mkdir(parents=True)
    (directory / "status").write_text(
        "Name:\tghost\nState:\tS (sleeping)\nTgid:\t77\nPPid:\t1\nUid:\t5\t5\t5\t5\nVmRSS:\t  2048 kB\nTHP_enabled:\t1\n"
    )
    (directory / "smaps").write_text(
        "10000000-10400000 rw-p 00000000 00:00 0\nRss: 2048 kB\nAnonymous: 2048 kB\nAnonHugePages: 2048 kB\nTHPeligible: 1\n"
    )
    result = hugeheap("--root", tmp_path, "top", "--json", "--batch", "1")
    (process,) = json.loads(result.stdout)["processes"]
    assert (process["name"], process["huge"], process["coverage"]) == ("ghost", 2 << 20, 1.0)
    assert hugeheap("--root", tmp_path / "none", "top", "--batch", "1").returncode in (2, 3)


def test_nonsense_is_refused(hugeheap):
    for arguments in (
        ["x"], ["--interval", "0"], ["--interval", "nan"], ["--batch", "0"], ["--sort", "luck"], ["--units", "furlongs"],
        ["--budget", "0"],
    ):  # fmt: skip
        assert hugeheap("top", *arguments).returncode == 2, arguments
    result = hugeheap("top", ended(), "--batch", "1")
    assert result.returncode == 5 and "there is no process" in result.stderr


def test_in_tmux(program, environment, tmp_path):
    """A terminal that others wrote shows the same."""
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("no tmux here (apt-get install tmux)")
    server = [tmux, "-S", str(tmp_path / "socket"), "-f", "/dev/null"]
    environment = {**environment, **UTF8}

    def run(*words):
        return subprocess.run([*server, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE)

    def sees(text):
        end = time.monotonic() + PATIENCE
        while text not in (shown := run("capture-pane", "-p").stdout):
            assert time.monotonic() < end, shown
            time.sleep(0.05)

    command = f"{program} top --interval 0.2; echo status $? $(stty -a | grep -c -w -- '-echo'); exec cat"
    made = run("new-session", "-d", "-x", "100", "-y", "20", command)
    if made.returncode:
        pytest.skip(f"tmux does not start here: {made.stderr.strip()}")
    try:
        sees("COVERAGE")
        sees("q quit")
        run("send-keys", "q")
        sees("status 0 0")
    finally:
        run("kill-server")


def test_in_the_background_it_says_so_and_ends(program, environment):
    """It was stopped when it took the terminal, after its handlers were installed: SIGTERM did not end it."""
    ours, theirs = os.openpty()
    code = (
        "import fcntl, os, subprocess, sys, termios\n"
        "os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "group = lambda: os.setpgid(0, 0)\n"
        "top = subprocess.Popen([sys.argv[1], 'top'], preexec_fn=group, stderr=subprocess.PIPE, text=True)\n"
        "said = top.communicate(timeout=60)[1]\n"
        "os.write(int(sys.argv[2]), f'{top.returncode} {said}'.encode())\n"
    )
    reader, writer = os.pipe()
    environment = {**environment, "TERM": "xterm"}
    command = [sys.executable, "-c", code, program, str(writer)]
    subprocess.run(command, stdin=theirs, stdout=theirs, pass_fds=[writer], env=environment, timeout=120, check=True)
    said = os.read(reader, 4096).decode()
    for descriptor in (ours, theirs, reader, writer):
        os.close(descriptor)
    assert said.startswith("3 hugeheap: error: top runs in the background"), said


def stand_still(terminal):
    """Until nothing is drawn any more but what is asked for: the list stands still, and what was being read has been drawn."""
    terminal.sees("COVERAGE")
    terminal.type(" ")
    terminal.sees("stands still")
    drawn, since = len(terminal.written), time.monotonic()
    while time.monotonic() < since + 2:
        terminal.read()
        if len(terminal.written) != drawn:
            drawn, since = len(terminal.written), time.monotonic()


def test_a_terminal_that_says_it_has_changed_is_drawn_on_anew_though_its_size_is_the_same(top):
    """Only what differed from the picture before was: what the terminal had lost meanwhile stayed lost."""
    terminal = top(width=80, height=24)
    stand_still(terminal)
    seen = len(terminal.written)
    os.kill(terminal.pid, signal.SIGWINCH)
    terminal.until(lambda it: b"COVERAGE" in it.written[seen:], "not drawn")
    terminal.type("q")
    assert terminal.ended() == 0


@pytest.mark.parametrize("size", [(0, 0), (65_535, 65_535)])
def test_a_terminal_that_tells_no_size_or_an_absurd_one_is_drawn_on(top, size):
    """On one nothing was drawn; of the other all cells were asked for, which ended it."""
    terminal = top(width=80, height=24)
    stand_still(terminal)
    fcntl.ioctl(terminal.ours, termios.TIOCSWINSZ, struct.pack("HHHH", *size[::-1], 0, 0))
    seen = len(terminal.written)
    os.kill(terminal.pid, signal.SIGWINCH)
    terminal.until(lambda it: b"COVERAGE" in it.written[seen:], "not drawn")
    terminal.type("q")
    assert terminal.ended() == 0
