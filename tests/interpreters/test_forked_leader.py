"""A child that CPython forked from a thread ends with its last thread, as on stock: that thread is its leader, and `exit` is called by none of its own.

The library's maintenance thread was there as long as memory was kept, here for an hour, or an arena was looked at again: tests of CPython 3.12 that fork from a thread hung.
"""

from typing import NamedTuple

import pytest
import testbed
from covering import covering

pytestmark = pytest.mark.any_host

# What the C library has in its buffers is written when it calls `exit` for the last thread.
PROGRAM = """
import ctypes, os, signal, sys, threading, time

def wait_for(what):
    until = time.monotonic() + 60
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True

def in_child():
    rows = [[n] * 20 for n in range(200_000)]
    del rows
    if wait_for(lambda: len(os.listdir("/proc/self/task")) == 2):
        ctypes.CDLL(None).printf(b"the child\\n")

def forks():
    global ended
    child = os.fork()
    if child == 0:
        return in_child()
    ended = wait_for(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
    if not ended:
        os.kill(child, signal.SIGKILL)

thread = threading.Thread(target=forks)
thread.start()
thread.join()
print("ended" if ended else "it hung")
"""


class Case(NamedTuple):
    """What the program runs on."""

    version: tuple
    level: str
    policy: str

    def __str__(self):
        return f"3.{self.version[1]}-{self.level}-{self.policy}"


CASES = {"version": list(testbed.find_interpreters()), "level": testbed.LEVELS, "policy": testbed.POLICIES}


@pytest.mark.parametrize("case", [Case(*row) for row in covering(CASES, [("version", "level"), ("policy",)])], ids=str)
def test_a_child_forked_from_a_thread_ends_with_it(case):
    python = testbed.find_interpreters()[case.version]
    environment = testbed.preloaded(case.policy, level=case.level, HUGEHEAP_DECAY="3600")
    # Some versions warn that a process with threads forks: it has two of its own.
    ran = testbed.run([python, "-W", "ignore", "-c", PROGRAM], env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "the child\nended\n"
