"""Programs that limit their own address space get what they get on stock: threads, imports, mappings, and `MemoryError` at the limit.

What the heap has reserved counted against such a limit: `resource.setrlimit(RLIMIT_AS, …)` left nothing for a thread or an `import`, and did not
limit the objects.
"""

import functools

import pytest
import testbed
from covering import covering

INTERPRETERS = testbed.find_interpreters()
MAIN = (3, 11) if (3, 11) in INTERPRETERS else min(INTERPRETERS, default=None)
MEGABYTES = 400
VERSIONS = {"version": list(INTERPRETERS)}
LEVELS = {"level": testbed.LEVELS}


def label(part):
    return f"3.{part[1]}" if isinstance(part, tuple) else str(part)

LIMITED = """
import os, resource, sys, threading
def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
def set_limit(how, limit):
    if how == "setrlimit":
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    elif how == "prlimit":
        resource.prlimit(os.getpid(), resource.RLIMIT_AS, (limit, limit))
    else:
        raise SystemExit(how)
kept = [(number, str(number)) for number in range(100_000)]
# A block of its own, and small objects where another was.
block = bytearray(b"x") * (40 << 20)
left = bytearray(b"x") * (30 << 20)
del left
more = [str(number) for number in range(200_000)]
limit = int(sys.argv[2]) << 20
set_limit(sys.argv[1], limit)
import decimal, email.message, json, sqlite3, xml.dom.minidom
results = []
threads = [threading.Thread(target=lambda: results.append(json.dumps(kept[:9]))) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(results) == 8
rows = []
try:
    while True:
        rows.append([bytes(400) for _ in range(1000)])
except MemoryError:
    count = len(rows)
    del rows
assert size() <= limit, (size(), limit)
for _ in range(3):
    again = [bytes(100) for _ in range(50_000)]
    large = bytearray(20 << 20)
    del again, large
assert block.count(b"x") == 40 << 20 and kept[-1] == (99_999, "99999") and more[-1] == "199999"
print(count)
"""


def rows(result):
    assert (result.returncode, result.stderr) == (0, "")
    return int(result.stdout)


# Each thread that finds the others at work would take 64 MiB of address space for its malloc.
ONE_MALLOC = {"MALLOC_ARENA_MAX": "1"}


def limited(version, how, env):
    return rows(testbed.run([INTERPRETERS[version], "-c", LIMITED, how, MEGABYTES], env=env))


@functools.cache
def limited_on_stock(version, how):
    return limited(version, how, testbed.clean(**ONE_MALLOC))


CASES = [(version, "setrlimit") for version in INTERPRETERS] + [(MAIN, "prlimit")]


@pytest.mark.parametrize("level", testbed.LEVELS)
@pytest.mark.parametrize(("version", "how"), CASES, ids=label)
def test_a_program_that_limits_itself_has_threads_imports_and_memory_errors(version, level, how, tmp_path):
    stock = limited_on_stock(version, how)
    found = limited(version, how, testbed.preloaded(telemetry=tmp_path, level=level, **ONE_MALLOC))
    # Regions are taken by parts of what is left: the last of it is too little for one. Objects of 3.12 and 3.13
    # fit a tenth more at level `objects`.
    assert found > 0.75 * stock, (stock, found)
    assert testbed.only_record(tmp_path)["state"] == "hooked"


ALL = testbed.ROOT / "docs/measurements/limited.py"

# Part of what stock has. Of what lies below an arena with a live object nothing goes to others, and where that
# is depends on the time: one block or list may have half.
LEAST = {"filled": 0.85, "longest": 0.5, "grown": 0.5}


@functools.cache
def all_on_stock(version):
    return all_of_its_limit(version, testbed.clean())


def all_of_its_limit(version, env):
    # A process of several threads, such as one with the maintenance thread, gets further arenas of the C
    # library when that is refused memory: 64 MiB of address space each.
    env = env | {"MALLOC_ARENA_MAX": "1"}
    result = testbed.run([INTERPRETERS[version], ALL, MEGABYTES], env=env)
    assert (result.returncode, result.stderr) == (0, "")
    return [(line.split()[0], int(line.split()[-1])) for line in result.stdout.splitlines()]


# Each run fills its limit nine times.
@pytest.mark.parametrize(("version", "level"), covering(VERSIONS | LEVELS, [("version",), ("level",)]), ids=label)
def test_a_program_has_most_of_its_limit_whatever_it_fills_it_with(version, level):
    """With buffers of 1,060,000 bytes it had half of what it has on stock, a list that grew ended at a third, and what small objects had left was nobody else's: an eighth of the limit at most."""
    here, stock = all_of_its_limit(version, testbed.preloaded(level=level)), all_on_stock(version)
    assert len(here) == len(stock) == 9
    for (how, has), (_, had) in zip(here, stock):
        assert has >= LEAST[how] * had, (how, here, stock)


GROWING = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]) << 20,) * 2)
def text():
    grown = bytearray()
    try:
        while True:
            grown += b"x" * 1_000_000
    except MemoryError:
        assert grown.count(b"x") == len(grown)
        return len(grown)
def table():
    grown = []
    try:
        while True:
            grown.append(None)
    except MemoryError:
        return 8 * len(grown)
for grow in (text, table):
    print(*(grow() for _ in range(4)))
"""


@pytest.mark.parametrize(("megabytes", "version", "level"), covering({"megabytes": [150, 200, 500]} | VERSIONS | LEVELS), ids=label)
def test_what_grows_to_a_limit_on_data_may_do_so_again(version, level, megabytes):
    """A list that could not be moved any more ended the process, and what had been freed was kept instead of used: the second list had a quarter of the first."""
    result = testbed.run([INTERPRETERS[version], "-c", GROWING, megabytes], env=testbed.preloaded(level=level))
    assert (result.returncode, result.stderr) == (0, "")
    # While a block moves, both places count, so it depends on where it lies when it has to.
    found = [int(word) for word in result.stdout.split()]
    assert len(found) == 8 and min(found) > (megabytes << 20) / 3, result.stdout


CHILD = """
import os, resource
kept = [str(number) for number in range(200_000)]
for _ in range(5):
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
        rows = [str(number) for number in range(100_000)]
        try:
            rows = [bytes(1000) for _ in range(1_000_000)]
        except MemoryError:
            del rows
            os._exit(7)
        os._exit(1)
    more = [str(number) for number in range(50_000)]
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
rows = [bytes(1000) for _ in range(600_000)]
print(len(rows), kept[-1])
"""


@pytest.mark.parametrize("level", testbed.LEVELS)
def test_a_limit_of_a_forked_child_is_the_childs(level):
    result = testbed.run([INTERPRETERS[MAIN], "-c", CHILD], env=testbed.preloaded(level=level))
    assert (result.returncode, result.stdout, result.stderr) == (0, "600000 199999\n", "")


BUSY = """
import resource, threading
stop = threading.Event()
failed = []
def work(number):
    rows = []
    while not stop.is_set():
        rows.append([str((number, n)) for n in range(200)])
        if len(rows) > 500:
            if any(len(row) != 200 for row in rows):
                failed.append(number)
            rows = rows[::7]
        block = bytearray(2 << 20)
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
for thread in threads: thread.start()
for gigabytes in (900, 90, 9, 5, 4, 3, 2, 1, 8, 1):
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, hard))
    rows = [object() for _ in range(200_000)]
stop.set()
for thread in threads: thread.join()
print(failed)
"""


@pytest.mark.parametrize("level", testbed.LEVELS)
@pytest.mark.parametrize("version", INTERPRETERS, ids=lambda version: f"3.{version[1]}")
def test_limits_while_threads_work(version, level):
    result = testbed.run([INTERPRETERS[version], "-c", BUSY], env=testbed.preloaded(level=level))
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")


ERRORS = """
import errno, resource
for wrong in [lambda: resource.setrlimit(99, (1, 1)), lambda: resource.prlimit(0, 99), lambda: resource.setrlimit(resource.RLIMIT_AS, (2, 1))]:
    try:
        wrong()
    except (OSError, ValueError) as error:
        print(type(error).__name__, error)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
print(resource.prlimit(0, resource.RLIMIT_NOFILE, (64, before[1])) == before, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
resource.setrlimit(resource.RLIMIT_NOFILE, (65, before[1]))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_other_limits_and_errors_are_those_of_stock():
    command = [INTERPRETERS[MAIN], "-c", ERRORS]
    stock, found = testbed.run(command), testbed.run(command, env=testbed.preloaded())
    assert (stock.returncode, stock.stdout) == (found.returncode, found.stdout)
    assert found.stdout.endswith("True 64\n65\n")


POINTERS = """
import ctypes, mmap, os, resource, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
function, name, *places = sys.argv[1:]
kind = getattr(resource, name, 99)
limits = resource.getrlimit(kind if kind != 99 else resource.RLIMIT_AS)
wanted = struct.pack("qq", 900 << 30 if name == "RLIMIT_AS" else 64, limits[1])
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
pages = libc.mmap(None, 2 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
libc.mprotect(ctypes.c_void_p(pages + mmap.PAGESIZE), mmap.PAGESIZE, 0)
addresses = {"null": None, "low": 8, "high": 2**64 - 8, "inaccessible": pages + mmap.PAGESIZE, "half": pages + mmap.PAGESIZE - 8,
             "odd": pages + 3, "good": pages}
for place in places:
    where, *others = place.split()
    address = addresses[where]
    if where in ("odd", "good"):
        ctypes.memmove(address, wanted, len(wanted))
    ctypes.set_errno(0)
    if function.startswith("set"):
        answer = libc[function](kind, ctypes.c_void_p(address))
    else:
        pid = {"self": os.getpid(), "zero": 0, "nobody": -1}[others[0]]
        old = {"none": None, "bad": 8, "room": pages + 512}[others[1]]
        answer = libc[function](pid, kind, ctypes.c_void_p(address), ctypes.c_void_p(old))
    # At once: a call that ends the process is the one after the last line.
    print(place, answer, os.strerror(ctypes.get_errno()), *(resource.getrlimit(kind) if kind != 99 else ()), flush=True)
"""
PLACES = ["null", "low", "high", "inaccessible", "half", "odd", "good"]
# By one process each, in this order: what sets a limit comes last.
CALLS = {
    "setrlimit": PLACES,
    "setrlimit64": PLACES,
    "prlimit": [*(f"low {rest}" for rest in ("nobody none", "self bad")), *(f"{place} self none" for place in PLACES), "good nobody none", "good self bad"],
    "prlimit64": [f"{place} zero room" for place in PLACES],
}


@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_NOFILE", "none"])
@pytest.mark.parametrize("function", CALLS)
def test_a_pointer_to_nothing_is_answered_as_on_stock(function, name):
    """`setrlimit(RLIMIT_NOFILE, (void *)8)` ended the process with SIGSEGV where the C library answers EFAULT."""
    command = [INTERPRETERS[MAIN], "-c", POINTERS, function, name, *CALLS[function]]
    stock, found = testbed.run(command), testbed.run(command, env=testbed.preloaded())
    assert (stock.returncode, stock.stderr, stock.stdout.count("\n")) == (0, "", len(CALLS[function])), stock
    assert (found.returncode, found.stdout, found.stderr) == (0, stock.stdout, "")


CAUGHT = """
import ctypes, resource, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
assert libc.setrlimit(resource.RLIMIT_AS, ctypes.c_void_p(8)) == -1 and ctypes.get_errno() == 14
kept = [str(number) for number in range(100_000)]
room = (ctypes.c_char * 64)()
wanted = (ctypes.c_uint64 * 2).from_buffer(room, 8)
wanted[:] = 400 << 20, 400 << 20
assert libc.setrlimit(resource.RLIMIT_AS, ctypes.byref(room, 8)) == 0
thread = threading.Thread(target=sys.stdout.write, args=("a thread, ",))
thread.start()
thread.join()
try:
    rows = [bytes(1000) for _ in range(1_000_000)]
except MemoryError:
    print(kept[-1])
"""


def test_a_limit_that_follows_one_that_could_not_be_read_leaves_room_for_threads():
    result = testbed.run([INTERPRETERS[MAIN], "-c", CAUGHT], env=testbed.preloaded(MALLOC_ARENA_MAX="1"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "a thread, 99999\n", "")


FEW_READS = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
def reads():
    with open("/proc/self/io") as lines:
        return int(lines.read().split("syscr: ")[1].split()[0])
before = reads()
for number in range(10_000):
    bytearray(200_000)
    bytearray(3_000_000)
print(reads() - before)
"""


@pytest.mark.parametrize("level", testbed.LEVELS)
def test_a_wide_limit_is_not_read_with_each_buffer(level):
    """How much of it is taken was read from /proc with each of them."""
    result = testbed.run([INTERPRETERS[MAIN], "-c", FEW_READS], env=testbed.preloaded(level=level))
    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout) < 2_000
