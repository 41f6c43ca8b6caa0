"""A program on a terminal of its own (a pty), and what is on its screen."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

# Generous: the machines that run tests are busy.
PATIENCE = 60
SEQUENCE = re.compile(r"\x1b(?:\[([?0-9;]*)([A-Za-z])|[()][A-Z0-9]|[=>78])")


class Terminal:
    """Runs a program; `screen()` are the lines that a person would see."""

    def __init__(self, *command, env, width=120, height=30):
        self.width, self.height = width, height
        self.ours, self.theirs = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(self.theirs)
        self.written = b""
        self.lines, self.cursor = [], (0, 0)
        self._clear()
        self._left = ""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                fcntl.ioctl(self.theirs, termios.TIOCSCTTY, 0)
                for number in (0, 1, 2):
                    os.dup2(self.theirs, number)
                os.execve(str(command[0]), [str(word) for word in command], env)
            finally:
                os._exit(127)
        self.status = None

    def resize(self, width, height):
        self.width, self.height = width, height
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, text):
        os.write(self.ours, text.encode())

    def read(self):
        """Takes in what was written until now; waits a moment for more."""
        if select.select([self.ours], [], [], 0.05)[0]:
            data = os.read(self.ours, 1 << 16)
            self.written += data
            self._show(data.decode("utf-8", "replace"))

    def until(self, condition, what):
        """Waits until the screen fulfils a condition."""
        end = time.monotonic() + PATIENCE
        while not condition(self):
            assert time.monotonic() < end, f"{what}:\n" + "\n".join(self.screen())
            self.read()

    def sees(self, text):
        self.until(lambda it: any(text in line for line in it.screen()), f"no {text!r}")

    def misses(self, text):
        self.until(lambda it: not any(text in line for line in it.screen()), f"still {text!r}")

    def screen(self):
        return ["".join(line).rstrip() for line in self.lines]

    def ended(self):
        """Waits for the end; the status as `os.waitstatus_to_exitcode` has it."""
        end = time.monotonic() + PATIENCE
        while self.status is None:
            assert time.monotonic() < end, "it does not end"
            self.read()
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.status = status
        self.rest()
        return os.waitstatus_to_exitcode(self.status)

    def rest(self):
        """Takes in all that was written, of a program that has ended or stands still."""
        while select.select([self.ours], [], [], 0)[0]:
            self.read()

    def is_as_before(self):
        """Whether the program gave the terminal back: its modes, the usual screen, a cursor."""
        return (
            termios.tcgetattr(self.theirs) == self.before
            and self.written.rfind(b"\x1b[?1049l") > self.written.rfind(b"\x1b[?1049h")
            and self.written.rfind(b"\x1b[?25h") >= self.written.rfind(b"\x1b[?25l")
        )

    def close(self):
        if self.status is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
            self.status = 9
        os.close(self.ours)
        os.close(self.theirs)

    def _clear(self):
        self.lines = [[" "] * 400 for _ in range(200)]

    def _show(self, text):
        text, self._left = self._left + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = SEQUENCE.match(text, at)
                if not found:
                    # The rest of it is still to come.
                    self._left = text[at:]
                    return
                at = found.end()
                if found[2] == "H":
                    row, _, column = (found[1] or "1;1").partition(";")
                    self.cursor = (int(row or 1) - 1, int(column or 1) - 1)
                elif found[2] == "J" or (found[1] == "?1049" and found[2] in "hl"):
                    self._clear()
                continue
            row, column = self.cursor
            if text[at] == "\r":
                self.cursor = (row, 0)
            elif text[at] == "\n":
                self.cursor = (row + 1, column)
            elif row < len(self.lines) and column < 400:
                self.lines[row][column] = text[at]
                self.cursor = (row, column + 1)
            at += 1
