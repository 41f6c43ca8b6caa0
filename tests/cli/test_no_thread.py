"""`hugeheap run --no-thread`: a process that stays one of a single thread, and gives its memory back all the same."""

import json

import pytest

PROGRAM = """
import json, os, time

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS"))

def threads():
    return len(os.listdir("/proc/self/task"))

seen = []
rows = [[number] * 20 for number in range(500_000)]
full = resident()
del rows
# Long enough for a thread to be started, and to give back.
for _ in range(30):
    seen.append(threads())
    time.sleep(0.1)
idle = resident()
for _ in range(60):
    some = [[number] * 9 for number in range(30_000)]
    del some
    seen.append(threads())
    time.sleep(0.05)
print(json.dumps([full, idle, resident(), max(seen)]))
"""


@pytest.mark.parametrize("level", ["arenas", "objects"])
def test_without_a_thread_memory_goes_back_when_the_program_goes_on(hugeheap, python, level, tmp_path):
    summary = tmp_path / "summary.json"
    common = ["run", "--level", level, "--decay", "0.5", "--summary-file", summary]
    full, idle, after, threads = json.loads(hugeheap(*common, "--no-thread", "--", python, "-c", PROGRAM).stdout)
    assert threads == 1
    assert idle > full * 0.8, "who idles has no thread that could give back"
    assert after < full / 3, "it went with the program's next requests"
    process = json.loads(summary.read_text())["main"]
    assert "no_thread" not in json.dumps(process["fallbacks"]), "it was wanted so"
    assert process["passes"] < 300, "each event led to a pass: what only a thread does was due forever"
    full, idle, after, threads = json.loads(hugeheap(*common, "--", python, "-c", PROGRAM).stdout)
    assert threads == 2 and idle < full / 3


def test_a_process_of_one_thread_may_do_what_others_may_not(hugeheap, python):
    """`unshare(CLONE_NEWUSER)` is for processes of one thread."""
    code = """
import ctypes, errno
rows = [[number] * 20 for number in range(300_000)]
del rows
more = [[number] * 20 for number in range(30_000)]
libc = ctypes.CDLL(None, use_errno=True)
done = libc.unshare(0x10000000)
print({0: "done", errno.EINVAL: "many threads"}.get(done and ctypes.get_errno(), "forbidden"))
"""
    # While the thread is there: it is for the decay time.
    with_thread = hugeheap("run", "--decay", "60", "--", python, "-c", code).stdout
    without = hugeheap("run", "--no-thread", "--", python, "-c", code).stdout
    if with_thread == "forbidden\n":
        pytest.skip("unshare is forbidden here, for processes of one thread as well")
    assert with_thread == "many threads\n"
    # Without the right to make one it is another error.
    assert without in ("done\n", "forbidden\n")


def test_a_wrong_word_is_told(hugeheap, python):
    told = hugeheap("run", "--", python, "-c", "print(1)", env={"HUGEHEAP_THREAD": "no"})
    assert told.stdout == "1\n" and "HUGEHEAP_THREAD must be 0 or 1" in told.stderr
