"""The host and its processes as typed objects; collapse and release of this process and of another."""

import json
import os
import pathlib

import pytest

MIB = 1 << 20
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# In every program: an answer of the package as plain data.
PLAIN = """
import dataclasses, hugeheap, json, os, subprocess, sys
def plain(answer):
    assert dataclasses.is_dataclass(answer) and answer.__dataclass_params__.frozen
    return dataclasses.asdict(answer)
def code(call, *arguments, **named):
    try:
        return repr(call(*arguments, **named))
    except hugeheap.HugeheapError as error:
        assert error.hint and error.hint in str(error)
        return error.code
    except TypeError as error:
        return "TypeError"
"""


@pytest.mark.every_version
def test_what_is_told_of_the_host_and_this_process_is_what_the_kernel_says(ask):
    system, own, kernel, heap, listed = ask(
        PLAIN
        + """
rows = [[number] for number in range(300_000)]
system, own = plain(hugeheap.system()), plain(hugeheap.process())
kernel = {}
for line in open("/proc/self/status"):
    name, _, value = line.partition(":")
    kernel[name] = value.split()
hugeheap.enable(policy="base")
more = [[number] for number in range(300_000)]
heap = plain(hugeheap.process(os.getpid()).heap)
stats = hugeheap.stats(measure=False)
assert abs(heap["stats"]["live"] - stats.live) < 1 << 20, (heap, stats)
listed = [found.pid for found in hugeheap.heaps(budget=30)]
print(json.dumps([system, own, kernel, heap, listed]))
"""
    )
    assert system["os_page"] == os.sysconf("SC_PAGE_SIZE")
    assert system["memory"] == pytest.approx(os.sysconf("SC_PHYS_PAGES") * system["os_page"], rel=0.01)
    assert 0 < system["memory_available"] <= system["memory"]
    assert system["thp_mode"] in ("always", "madvise", "never", None)
    assert isinstance(system["pools"], list)
    assert own["heap"] is None and own["resident"] > 10 * MIB
    assert abs(own["resident"] - int(kernel["VmRSS"][0]) * 1024) < 16 * MIB
    assert (own["pid"], own["name"]) == (int(kernel["Pid"][0]), kernel["Name"][0])
    assert (own["parent"], own["user"]) == (int(kernel["PPid"][0]), os.geteuid())
    assert own["coverage"] is None or 0 <= own["coverage"] <= 1
    assert (heap["state"], heap["policy"], heap["pid"]) == ("hooked", "base", own["pid"])
    assert heap["age"] >= 0 and own["pid"] in listed and listed == sorted(listed)


def test_this_process_is_collapsed_and_released(ask):
    """Its heap is OS pages that are dense, then huge pages of which most is dropped; contents stay."""
    dry, made, freed, told = ask(
        PLAIN
        + """
import mmap
memory = mmap.mmap(-1, 34 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = bytes(range(256)) * (34 << 12)
dry = plain(hugeheap.collapse(dry_run=True))
result = hugeheap.collapse(max_growth=64 << 20)
made = plain(result)
told = [result.coverage_before, result.coverage_after]
import ctypes
libc = ctypes.CDLL(None)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
first = -(-base // (2 << 20)) * (2 << 20)
for unit in range(first, first + (30 << 20), 2 << 20):
    assert libc.madvise(ctypes.c_void_p(unit + 4096), ctypes.c_size_t((2 << 20) - 4096), 4) == 0
freed = plain(hugeheap.release())
for unit in range(first, first + (30 << 20), 2 << 20):
    assert memory[unit - base : unit - base + 256] == bytes((byte + unit - base) % 256 for byte in range(256))
print(json.dumps([dry, made, freed, told]))
"""
    )
    assert dry["collapsed"] == 0 and dry["huge_after"] is None and dry["growth"] <= dry["max_growth"]
    # In mode `always` it is huge already, and a host may be short of huge pages.
    if made["huge_before"] < 20 * MIB and not made["stopped"] and not made["skipped"]["refused"]:
        assert dry["planned"] >= 15 and made["collapsed"] >= 15
        assert made["huge_after"] >= made["huge_before"] + 30 * MIB
        assert told[1] > told[0]
    assert made["longest_call"] <= made["elapsed"]
    assert freed["split"] <= freed["planned"]
    if freed["exact"] and made["huge_after"] >= 30 * MIB:
        assert freed["stranded_before"] > 20 * MIB
        assert freed["stopped"] or freed["stranded_after"] < 4 * MIB


def test_another_process_is_told_and_planned(ask):
    told, plan = ask(
        PLAIN
        + """
child = subprocess.Popen([sys.executable, "-c", "rows = [[n] for n in range(300_000)]; print(1, flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
told, plan = plain(hugeheap.process(child.pid)), plain(hugeheap.collapse(child.pid, dry_run=True))
child.communicate(b"\\n")
assert code(hugeheap.process, child.pid) == "no-such-process"
print(json.dumps([told, plan]))
"""
    )
    assert told["resident"] > 20 * MIB and told["heap"] is None
    assert plan["pid"] == told["pid"] and plan["resident_before"] > 10 * MIB


@root
def test_what_is_not_allowed_has_a_code_and_a_hint(ask):
    codes = ask(
        PLAIN
        + """
stranger = os.getppid()
# Capabilities end with the user.
os.setgid(65534); os.setuid(65534)
print(json.dumps([code(hugeheap.process, 1), code(hugeheap.collapse, stranger), code(hugeheap.release, stranger)]))
"""
    )
    assert codes == ["permission"] * 3


def test_mistakes_have_codes(ask):
    codes = ask(
        PLAIN
        + """
import ctypes, threading
def off():
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
    return code(hugeheap.collapse, dry_run=True)
ids, done = [], threading.Event()
thread = threading.Thread(target=lambda: (ids.append(threading.get_native_id()), done.wait()))
thread.start()
while not ids: pass
codes = [code(hugeheap.process, ids[0])]
done.set()
codes += [
    code(hugeheap.process, 0), code(hugeheap.process, -3), code(hugeheap.process, 2**31 - 1), code(hugeheap.process, "1"),
    code(hugeheap.process, True), code(hugeheap.process, budget=0), code(hugeheap.heaps, budget="1"),
    code(hugeheap.collapse, min_density=2), code(hugeheap.collapse, max_growth=-1), code(hugeheap.collapse, max_growth=1.5),
    code(hugeheap.release, budget=1e9), off(),
]
print(json.dumps(codes))
"""
    )
    assert codes == [
        "not-a-process",
        *["bad-pid", "bad-pid", "no-such-process", "TypeError"],
        *["TypeError", "bad-budget", "TypeError"],
        *["bad-density", "bad-growth", "TypeError"],
        *["bad-budget", "thp-disabled"],
    ]


# In every program below: what each function says of a process, by code and in words.
OF_EACH = (
    PLAIN
    + """
def of_each(pid):
    said = []
    for call in (hugeheap.process, lambda pid: hugeheap.collapse(pid, dry_run=True), lambda pid: hugeheap.release(pid, dry_run=True)):
        try:
            said.append([repr(call(pid)), ""])
        except hugeheap.HugeheapError as error:
            said.append([error.code, str(error)])
    return said
"""
)


@root
def test_a_process_that_shows_no_memory_is_not_a_small_one(ask):
    """They were answered with zeros, and with a plan of nothing to do."""
    zombie, headless, kernel = ask(
        OF_EACH
        + """
import time
child = subprocess.Popen(["true"])
code = "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).pthread_exit(None)"
alone = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
for pid in child.pid, alone.pid:
    until = time.monotonic() + 60
    while "State:\\tZ" not in open(f"/proc/{pid}/status").read():
        assert time.monotonic() < until
said = [of_each(child.pid), of_each(alone.pid), of_each(2)]
child.wait()
alone.kill()
alone.wait()
print(json.dumps(said))
"""
    )
    for said, code, words in (
        (zombie, "no-such-process", "has ended and waits for its parent"),
        (headless, "main-thread-ended", "its main thread has ended, others run"),
        (kernel, "no-memory", "is a kernel thread"),
    ):
        if said is kernel and not kernel_threads_are_seen():
            continue
        assert [found for found, _ in said] == [code] * 3, said
        assert all(words in text for _, text in said), said


def kernel_threads_are_seen():
    """Not in a container."""
    comm = pathlib.Path("/proc/2/comm")
    return comm.exists() and comm.read_text() == "kthreadd\n"


@root
@pytest.mark.parametrize(
    ("wrapper", "code"),
    [
        # With the /proc that was mounted before.
        (["unshare", "--pid", "--fork"], "foreign-proc"),
        (["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"], "no-proc"),
    ],
)
def test_where_proc_is_not_that_of_this_namespace_no_process_is_taken_for_another(start, wrapper, code):
    """This process was looked at as whichever had its number there, and without /proc all were said not to exist."""
    result = start(OF_EACH + "print(json.dumps([of_each(None), of_each(os.getppid() or 1), code(hugeheap.heaps)]))", wrapper=wrapper)
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip(f"no such namespace here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    own, other, heaps = json.loads(result.stdout)
    assert [found for found, _ in own + other] == [code] * 6, (own, other)
    assert heaps == code or code == "foreign-proc", heaps


def test_an_interpreter_without_the_extension_says_so(ask):
    codes = ask(
        """
        import json, sys
        real = sys.implementation.name
        sys.implementation.name = "pypy"
        import hugeheap
        sys.implementation.name = real
        codes = []
        for call in hugeheap.system, hugeheap.process, hugeheap.heaps, hugeheap.collapse, hugeheap.release:
            try:
                call()
            except hugeheap.HugeheapError as error:
                codes.append(error.code)
        print(json.dumps(codes))
        """
    )
    assert codes == ["unsupported"] * 5
