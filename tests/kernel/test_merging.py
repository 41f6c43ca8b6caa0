"""CPython on a host that merges equal pages (KSM): a program that has dropped nine of ten objects takes less memory while it is idle, and notices nothing.

Guarded for users: the kernel's own account falls, all contents stay as they are, in forked children too, and where the host does not merge that is counted and nothing is done in vain.
"""

import sys

import pytest
import testbed

KSM = "/sys/kernel/mm/ksm"
INTERPRETERS = testbed.find_interpreters()
PYTHON = INTERPRETERS.get((3, 11)) or next(iter(INTERPRETERS.values()), sys.executable)

# Of 64 MiB a tenth stays. Its share of what it has resident counts a merged page once, for all that have it.
PROGRAM = """
import os, random, sys, time
share = lambda: next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")) >> 10
make = lambda number: number.to_bytes(4, "little") * (4 + number % 120)
random.seed(1)
numbers = list(range(256_000))
objects = [make(number) for number in numbers]
stay = sorted(random.sample(numbers, 25_600))
objects = [objects[number] for number in stay]
del numbers
before, end = share(), time.monotonic() + float(sys.argv[1])
# 28 MiB, where it would be 74 without.
while share() > 45 and time.monotonic() < end:
    time.sleep(0.1)
after = share()
check = lambda: all(one == make(number) for one, number in zip(objects, stay))
assert check()
child = os.fork()
if child == 0:
    objects[::2] = [one + b"!" for one in objects[::2]]
    os._exit(not all(one[: len(make(number))] == make(number) for one, number in zip(objects, stay)))
assert os.waitpid(child, 0)[1] == 0, "the child"
# All of it is used again.
more = [bytes(16 + number % 500) for number in range(200_000)]
assert not any(map(any, more)) and check()
print(before, after, os.getpid())
"""


@pytest.fixture
def play(tmp_path):
    """Runs the program, for as long as it takes or so many seconds; returns what it had before and after it was idle, in MiB, and its record."""

    def play(seconds, **variables):
        env = testbed.preloaded("auto", tmp_path, "objects", HUGEHEAP_MERGE="1", HUGEHEAP_DECAY="0.2", **variables)
        result = testbed.run([PYTHON, "-c", PROGRAM, str(seconds)], env=env)
        assert (result.returncode, result.stderr) == (0, ""), result
        before, after, process = map(int, result.stdout.split())
        # The child has one, too.
        return before, after, testbed.records(tmp_path)[process]

    return play


def test_an_idle_program_has_less_and_all_that_it_had(play):
    with testbed.knob(f"{KSM}/pages_to_scan", 20_000), testbed.knob(f"{KSM}/run", 1):
        before, after, record = play(120)
    assert before > 60 and after <= 45, (before, after)
    assert record["alike"] > 16 << 20 and "no_merging" not in record["fallbacks"], record


def test_where_the_host_does_not_merge_that_is_counted_once_and_nothing_is_made_alike(play):
    with testbed.knob(f"{KSM}/run", 0):
        *_, record = play(3)
    assert record["alike"] == 0 and record["fallbacks"]["no_merging"] == 1, record


def test_hardened_heaps_keep_what_is_free_clear(play):
    with testbed.knob(f"{KSM}/pages_to_scan", 20_000), testbed.knob(f"{KSM}/run", 1):
        *_, record = play(3, HUGEHEAP_HARDENED="1")
    assert record["alike"] == 0, record
