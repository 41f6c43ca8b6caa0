"""Level `objects`: CPython's objects as blocks of hugeheap's object allocator.

What only this level can break: blocks that change owner when it is enabled in a running process, blocks that are freed by another thread or
interpreter than the one that made them, the class borders that a resized block crosses, the checks of every free, and the interpreter's
own allocators on top. Whole programs at this level are in `tests/interpreters`.
"""

import json
import signal

import pytest
import testbed


# The interpreter's allocator functions, and patterns to fill their blocks with.
BLOCKS = """
import ctypes, hugeheap, json
def function(name, answer, *arguments):
    one = getattr(ctypes.pythonapi, name)
    one.restype, one.argtypes = answer, arguments
    return one
def domain(name):
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    return (function(f"Py{name}_Malloc", pointer, size), function(f"Py{name}_Calloc", pointer, size, size),
            function(f"Py{name}_Realloc", pointer, pointer, size), function(f"Py{name}_Free", None, pointer))
def pattern(mark, size):
    return bytes([(mark * 7 + 1) % 256]) * size
def fill(block, mark, size):
    ctypes.memmove(block, pattern(mark, size), size)
def check(block, mark, size):
    assert ctypes.string_at(block, size) == pattern(mark, size), (mark, size)
"""


@pytest.mark.every_version
def test_objects_are_blocks_and_pymalloc_gets_no_arena(ask, objects, tmp_path):
    """Small objects lie side by side, at distances that pymalloc does not have: its blocks share a pool with a header."""
    status, heap_pages, arenas = ask(
        """
        import hugeheap, json
        rows = [(number, str(number) * 5, float(number)) for number in range(100_000, 300_000)]
        # A heap page of 16 KiB begins with a block, of most sizes; a pool of pymalloc's begins with its header.
        at_page = sum(id(part) % 16384 == 0 for row in rows for part in row)
        stats = hugeheap.stats()
        assert all((str(number) * 5, float(number)) == (text, real) for number, text, real in rows)
        print(json.dumps([vars(hugeheap.status()), at_page, stats.arenas]))
        """,
        **objects,
        HUGEHEAP_TELEMETRY=str(tmp_path),
    )
    assert (status["state"], status["level"]) == ("hooked", "objects") and "objects" in status["explanation"]
    # 200 000 strings of 80 bytes, and as many numbers of 32 twice: about 1 700 heap pages.
    assert heap_pages > 1_000
    assert arenas > 0
    record = testbed.only_record(tmp_path)
    assert (record["level"], record["state"]) == ("objects", "hooked")


@pytest.mark.every_version
def test_a_running_process_is_put_on_level_objects(ask, tmp_path):
    """Blocks of pymalloc's go back to it, whether freed or resized; their contents survive the change of owner."""
    status, live, levels, at_page = ask(
        f"""{BLOCKS}
malloc, calloc, realloc, free = domain("Mem")
sizes = [*range(1, 700, 23), 1000, 4000, 9000, 50_000, 300_000, 2 << 20]
early = [(malloc(size), size) for size in sizes]
for mark, (block, size) in enumerate(early): fill(block, mark, size)
old = [[number, str(number)] for number in range(100_000)]
kept = old[::2]
levels = [hugeheap.enable().level]
middle = [[number, str(number)] for number in range(50_000)]
# Large blocks of level `arenas`, which the raw domain's hook handed out.
early += [(malloc(size), size) for size in (1 << 20, 3 << 20, 100, 5_000)]
for mark, (block, size) in enumerate(early): fill(block, mark, size)
tables = [list(range(300_000)) for _ in range(2)]
levels.append(hugeheap.enable(level="objects").level)
levels.append(hugeheap.enable(level="arenas").level)
levels.append(hugeheap.enable(policy="base").level)
new = [[number, str(number)] for number in range(100_000)]
long = [str(number) * 5 for number in range(100_000, 200_000)]
at_page = sum(id(text) % 16384 == 0 for text in long)
# Larger, smaller, larger again: across owners the first bytes stay.
for mark, (block, size) in enumerate(early):
    for wanted in (2 * size, size // 2 + 1, 3 * size, 20 * size, size):
        least = min(size, wanted)
        block = realloc(block, wanted)
        check(block, mark, min(least, size // 2 + 1))
        fill(block, mark, wanted)
    free(block)
tables[0].extend(range(600_000))
del tables[1][1_000:]
assert sum(tables[0]) == sum(range(300_000)) + sum(range(600_000)) and tables[1] == list(range(1_000))
del tables
for row in old: row.extend(range(30))
assert all(row[:2] == [number, str(number)] and sum(row[2:]) == 435 for number, row in enumerate(old))
del old, middle
assert all(row[1] == str(2 * number) for number, row in enumerate(kept))
assert all(row == [number, str(number)] for number, row in enumerate(new))
more = [str(number) * 3 for number in range(100_000)]
del kept, new
again = [str(number) * 3 for number in range(100_000)]
assert more == again
print(json.dumps([vars(hugeheap.status()), hugeheap.stats().live, levels, at_page]))
""",
        HUGEHEAP_TELEMETRY=str(tmp_path),
    )
    assert levels == ["arenas", "objects", "objects", "objects"], "a level is raised, and never lowered"
    assert status["level"] == "objects" and status["policy"] == "base" and live > 5 << 20
    # 100 000 strings of 80 bytes: about 490 heap pages, each of which begins with one. A pool of pymalloc's
    # begins with its header.
    assert at_page > 300, "objects do not come from blocks"
    assert testbed.only_record(tmp_path)["level"] == "objects"


def test_a_level_that_is_none_is_refused_with_the_list(ask):
    found = ask(
        """
        import hugeheap, json
        found = []
        for level in ("cells", "", 1):
            try:
                hugeheap.enable(level=level)
            except (ValueError, TypeError) as error:
                found.append([type(error).__name__, getattr(error, "code", ""), str(error)])
        print(json.dumps([found, hugeheap.status().state]))
        """
    )
    answers, state = found
    assert state == "idle", "refused, and done all the same"
    refusal = "unknown level {!r}; choose one of arenas, objects"
    assert answers == [
        ["HugeheapError", "unknown-level", refusal.format("cells")],
        ["HugeheapError", "unknown-level", refusal.format("")],
        ["TypeError", "", "level must be a name such as 'objects', not int"],
    ]


@pytest.mark.every_version
def test_debug_hooks_keep_their_place_and_the_level_says_so(start, objects):
    """`-X dev` once left the level at `objects`: the interpreter puts its debug hooks in place after the library.

    And a second `enable()` put blocks without guards over the hooks. A write over a block's end is found, as on stock.
    """
    code = f"""{BLOCKS}
malloc, calloc, realloc, free = domain("Object")
rows = [[number, str(number)] for number in range(100_000)]
first = hugeheap.status().level
second = hugeheap.enable(level="objects")
print(json.dumps([first, second.level, second.state]), flush=True)
block = malloc(24)
ctypes.memset(block, 1, 25)
free(block)
"""
    for variables, options in (({"PYTHONMALLOC": "debug"}, []), ({"PYTHONMALLOC": "pymalloc_debug"}, []), ({}, ["-X", "dev"])):
        for preload in (objects, {}):
            result = start(code, options=options, **variables, **preload)
            told = json.loads(result.stdout)
            assert told == ["arenas", "arenas", "hooked"], (variables, options, bool(preload))
            assert result.returncode == -signal.SIGABRT and "bad trailing pad byte" in result.stderr


@pytest.mark.every_version
def test_tracemalloc_started_on_top_and_stopped(ask, objects):
    """It wraps the allocator it finds when it starts, and puts it back when it stops."""
    for preload in (objects, {}):
        traced, freed, good, levels = ask(
            """
            import hugeheap, json, tracemalloc
            levels = [hugeheap.enable(level="objects").level]
            early = [[number] * 4 for number in range(50_000)]
            tracemalloc.start(3)
            rows = [[number] * 4 for number in range(50_000)]
            texts = [str(number) * 40 for number in range(20_000)]
            traced = tracemalloc.get_traced_memory()[0]
            del texts
            freed = traced - tracemalloc.get_traced_memory()[0]
            for row in early: row.extend(row * 5)
            levels.append(hugeheap.enable(level="objects").level)
            tracemalloc.stop()
            for row in rows: row.extend(row * 5)
            more = [[number] * 24 for number in range(50_000)]
            good = early == rows == more
            del early, rows
            tracemalloc.start()
            again = [[number] * 24 for number in range(50_000)]
            tracemalloc.stop()
            good = good and again == more
            del again
            last = [[number] * 24 for number in range(50_000)]
            texts = [str(number) * 5 for number in range(100_000, 150_000)]
            levels.append(hugeheap.status().level)
            # 80 bytes each, about 240 heap pages; a pool of pymalloc's begins with its header.
            at_page = sum(id(text) % 16384 == 0 for text in texts)
            print(json.dumps([traced, freed, good and last == more and at_page > 50, levels]))
            """,
            **preload,
        )
        assert good and levels == ["objects"] * 3
        # Lists of 4 take 56 + 32 bytes and a header; the texts 160 bytes and more.
        assert traced > 6 << 20 and freed > 2 << 20


@pytest.mark.every_version
def test_the_level_waits_for_the_end_of_tracemalloc(ask):
    """Enabled while tracemalloc traces, its end once took the hook out, and the blocks from hugeheap were freed by malloc."""
    levels, live, good = ask(
        """
        import hugeheap, json, tracemalloc
        tracemalloc.start(3)
        early = [[number] * 4 for number in range(50_000)]
        levels = [hugeheap.enable(level="objects").level]
        rows = [[number] * 4 for number in range(50_000)]
        tracemalloc.stop()
        for row in rows: row.extend(row * 5)
        for row in early: row.extend(row * 5)
        levels.append(hugeheap.enable(level="objects").level)
        more = [[number] * 24 for number in range(50_000)]
        good = early == rows == more
        del early, rows
        print(json.dumps([levels, hugeheap.stats().live, good and [[number] * 24 for number in range(50_000)] == more]))
        """
    )
    assert levels == ["arenas", "objects"] and good
    assert live > 5 << 20


@pytest.mark.every_version
def test_subinterpreters_allocate_in_threads_at_the_same_time(ask, objects, version):
    """Those that share a lock, those with one of their own (since 3.12), and the main interpreter beside them.

    Since 3.12 an interpreter is made by one thread, run by another and ended by a third: its blocks lie in the heaps of all of them.
    """
    for preload in (objects, {}):
        failed, level, done = ask(
            """
            import hugeheap, json, sys, threading
            try:
                import _interpreters as interpreters
            except ImportError:
                import _xxsubinterpreters as interpreters
            own_locks = sys.version_info >= (3, 12)
            def create(own):
                if sys.version_info >= (3, 13):
                    return interpreters.create("isolated" if own else "legacy")
                return interpreters.create(isolated=own) if own_locks else interpreters.create()
            code = '''if True:
                import random, json
                random.seed(5)
                rows = {}
                for step in range(15_000):
                    key = random.randrange(3_000)
                    if key in rows and random.random() < 0.4:
                        number, text, data = rows.pop(key)
                        assert text == str(number) * (number % 60) and data.count(number % 256) == len(data)
                    else:
                        data = bytearray([step % 256]) * random.choice((3, 40, 300, 600, 3_000, 9_000, 40_000))
                        rows[key] = step, str(step) * (step % 60), data
                assert json.loads(json.dumps([key for key in rows])) == list(rows)
            '''
            failed, done = [], []
            def work(one):
                try:
                    for _ in range(2):
                        failure = interpreters.run_string(one, code)
                        if failure is not None:
                            failed.append(str(failure))
                    done.append(1)
                except BaseException as error:
                    failed.append(repr(error))
            kinds = [False, True, True] if own_locks else [False, False]
            early = [create(own) for own in kinds]
            for one in early: work(one)
            level = hugeheap.enable(level="objects").level
            late = [create(own) for own in kinds]
            # Before 3.12 subinterpreters in other threads hang on stock.
            if own_locks:
                threads = [threading.Thread(target=work, args=(one,)) for one in early + late]
                for thread in threads: thread.start()
                rows = [[number, str(number)] for number in range(200_000)]
                for thread in threads: thread.join()
                assert all(row == [number, str(number)] for number, row in enumerate(rows))
            else:
                for one in early + late: work(one)
            def end():
                for one in early + late: interpreters.destroy(one)
            if own_locks:
                thread = threading.Thread(target=end)
                thread.start()
                thread.join()
            else:
                end()
            print(json.dumps([failed, level, len(done) - len(early) - len(early + late)]))
            """,
            **preload,
        )
        assert (failed, level, done) == ([], "objects", 0)


@pytest.mark.every_version
def test_objects_are_freed_by_another_thread_than_the_one_that_made_them(ask, objects):
    """Threads that end leave objects behind; what they made goes round and is used up elsewhere."""
    sums, kept, peak, live = ask(
        """
        import gc, hugeheap, json, queue, sys, threading
        sys.setswitchinterval(1e-4)
        boxes, sums = [queue.SimpleQueue() for _ in range(4)], [0] * 4
        def work(mine):
            for step in range(30):
                boxes[(mine + 1) % 4].put([(number, str(number), bytes(number)) for number in range(0, step * 40)])
                sums[mine] += sum(number for number, text, data in boxes[mine].get() if text == str(number) and len(data) == number)
        for _ in range(3):
            threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        held = []
        def leave():
            held.append([[number, str(number), bytes(600 + number % 3_400)] for number in range(40_000)])
        for _ in range(4):
            thread = threading.Thread(target=leave)
            thread.start()
            thread.join()
        peak = hugeheap.stats().live
        kept = sum(row[1] == str(number) for rows in held for number, row in enumerate(rows))
        held.clear()
        gc.collect()
        hugeheap.give_back()
        print(json.dumps([sums, kept, peak, hugeheap.stats().live]))
        """,
        **objects,
    )
    assert sums == [3 * sum(sum(range(step * 40)) for step in range(30))] * 4
    assert kept == 160_000
    assert peak > 300 << 20 and live < peak / 4, "what other threads freed was not available again"


@pytest.mark.every_version
def test_many_threads_free_what_each_other_made_and_hold_little(ask, objects):
    """More threads than have heaps of their own: each builds things of all sizes, frees another one's, and goes on waiting. With a heap for each the hundred held 110 MiB."""
    good, held, live = ask(
        """
        import gc, hugeheap, json, threading, time
        count, good, left = 100, [], [None] * 100
        done, end = threading.Barrier(count + 1), threading.Event()
        def anonymous():
            lines = open("/proc/self/smaps_rollup")
            return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous"))
        def work(mine):
            rows = {}
            for step in range(3):
                rows = {f"key {number}": [number, str(number), bytes([mine]) * (number * 7 % 900)] for number in range(300)}
            left[mine] = rows
            done.wait()
            rows = left[(mine + 1) % count]
            good.append(all(number == int(text) and set(data) <= {(mine + 1) % count} for number, text, data in rows.values()))
            rows = None
            done.wait()
            left[(mine + 1) % count] = None
            done.wait()
            end.wait()
        before = anonymous()
        threads = [threading.Thread(target=work, args=(mine,)) for mine in range(count)]
        for thread in threads: thread.start()
        for _ in range(3): done.wait()
        gc.collect()
        for _ in range(100):
            hugeheap.give_back()
            held = anonymous() - before
            if held < 48 << 20: break
            time.sleep(0.1)
        end.set()
        for thread in threads: thread.join()
        print(json.dumps([sum(good), held, hugeheap.stats().live]))
        """,
        **objects,
    )
    assert good == 100
    # Stacks and the interpreter's own states of 100 threads are 4 MiB of it, and on stock it is 31.
    assert 0 < held < 48 << 20, held
    assert live > 0


@pytest.mark.every_version
def test_a_child_of_a_process_with_threads_frees_everything_it_inherited(ask, objects, tmp_path):
    """The other threads' heaps have no owner in the child, and the main heap may have been in use by any of them."""
    statuses, count = ask(
        """
        import gc, json, os, threading, traceback, warnings
        warnings.simplefilter("ignore")
        end, held, lock = threading.Event(), {}, threading.Lock()
        def churn(mine):
            step = 0
            while not end.is_set():
                rows = [[number, str(number), bytes(number % 3_000)] for number in range(2_000)]
                held[mine, step % 5] = rows
                step += 1
        threads = [threading.Thread(target=churn, args=(mine,)) for mine in range(4)]
        for thread in threads: thread.start()
        big = [bytes(20_000 + number) for number in range(500)]
        statuses = []
        for _ in range(12):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    for rows in list(held.values()):
                        assert all(row == [number, str(number), bytes(number % 3_000)] for number, row in enumerate(rows))
                    held.clear()
                    del big[:]
                    gc.collect()
                    more = [[number, str(number)] for number in range(50_000)]
                    thread = threading.Thread(target=more.clear)
                    thread.start()
                    thread.join()
                    again = [str(number) for number in range(50_000)]
                    status = 0 if again[-1] == "49999" and not more else 2
                except BaseException:
                    traceback.print_exc()
                os._exit(status)
            statuses.append(os.waitpid(pid, 0)[1])
        end.set()
        for thread in threads: thread.join()
        print(json.dumps([statuses, len(held)]))
        """,
        **objects,
        HUGEHEAP_TELEMETRY=str(tmp_path),
    )
    assert statuses == [0] * 12 and count == 20
    records = testbed.records(tmp_path)
    assert len(records) == 13 and {record["level"] for record in records.values()} == {"objects"}


@pytest.mark.every_version
def test_the_end_of_address_space_is_a_memory_error(fill_and_fill_again, objects):
    """Blocks, blocks of spans, page runs and large blocks alike; it is survived, and what is let go can be used again. Sizes of which little is left over: others go on to malloc."""
    # The last one fills its arenas: what leaves much of them over is the C library's under a limit.
    for make in ("[[number, str(number)] for number in range(5_000)]", "bytes(5_300) + b'x'", "bytearray(65_000)", "bytearray((4 << 20) - 1)"):
        assert fill_and_fill_again("ulimit -v 400000", make, **objects)["level"] == "objects"


def test_a_limit_on_data_counts_what_is_used_and_not_what_could_be(fill_and_fill_again, objects):
    """Metadata for all memory of the host would be more than the limit."""
    make = "[[number, str(number)] for number in range(5_000)]"
    assert fill_and_fill_again("ulimit -d 400000", make, **objects)["level"] == "objects"


@pytest.mark.every_version
def test_a_block_freed_twice_ends_the_process_with_one_line(start, objects):
    """In the domains of objects and of memory, of all kinds of blocks; as is the address inside of a block."""
    cases = [("Object", size, "twice") for size in (40, 700, 30_000)] + [("Mem", 200, "twice"), ("Object", 64, "inside")]
    for name, size, kind in cases:
        # Neighbours stay, so that the page does not go back to the arenas on the way.
        result = start(
            f"""{BLOCKS}
malloc, calloc, realloc, free = domain("{name}")
blocks = [malloc({size}) for _ in range(100)]
block = blocks[50]
print(hex(block), flush=True)
if "{kind}" == "twice":
    free(block)
    free(block)
else:
    free(block + 16)
print("survived")
""",
            wrapper=["bash", "-c", 'ulimit -c 0; exec "$@"', "bash"],
            **objects,
        )
        address = int(result.stdout, 16) + (16 if kind == "inside" else 0)
        assert result.returncode == -signal.SIGABRT, (name, size, kind)
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("hugeheap:")]
        assert result.stderr.splitlines() == [line], result.stderr
        assert line.startswith(f"hugeheap: free of {address:#x}: ")
        assert ("freed twice?" if kind == "twice" else "inside a block") in line


@pytest.mark.every_version
def test_resized_blocks_keep_their_contents_over_all_class_borders(ask, objects):
    """Up and down over each border by one byte, from each to each kind, in both domains; zeroed blocks are zeroed when used again."""
    level, count = ask(
        f"""{BLOCKS}
import random
random.seed(3)
borders = [*range(16, 592, 16), *range(640, 1217, 64), 1344, 1472, 1600, 1792, 2048, 2304, 2688, 3264, 4096, 5440,
           8192, 16 << 10, 32 << 10, 100_000, 512 << 10, 1 << 20, 2 << 20]
small = [size for size in borders if size <= 100_000]
count = 0
for name in ("Mem", "Object"):
    malloc, calloc, realloc, free = domain(name)
    # Each border, a byte below, on and above it, up and down again.
    steps = [border + more for border in borders for more in (-1, 0, 1)]
    block, size = malloc(1), 1
    fill(block, 0, 1)
    for mark, wanted in enumerate([*steps, *reversed(steps), *random.sample(steps, len(steps))], 1):
        block = realloc(block, wanted)
        assert block % 16 == 0
        check(block, mark - 1, min(size, wanted))
        size = wanted
        fill(block, mark, size)
        count += 1
    free(block)
    # Many at once, so that they have neighbours to spoil.
    sizes = [random.choice(small) + random.choice((-1, 0, 1)) for _ in range(600)]
    blocks = [malloc(size) for size in sizes]
    for mark, (block, size) in enumerate(zip(blocks, sizes)): fill(block, mark, size)
    for _ in range(4_000):
        mark = random.randrange(600)
        wanted = random.choice(small) + random.choice((-1, 0, 1))
        if random.random() < 0.2:
            check(blocks[mark], mark, sizes[mark])
            free(blocks[mark])
            blocks[mark] = calloc(wanted, 1)
            assert not any(ctypes.string_at(blocks[mark], wanted)), wanted
        else:
            blocks[mark] = realloc(blocks[mark], wanted)
            check(blocks[mark], mark, min(sizes[mark], wanted))
        sizes[mark] = wanted
        fill(blocks[mark], mark, wanted)
        count += 1
    for mark, (block, size) in enumerate(zip(blocks, sizes)):
        check(block, mark, size)
        free(block)
    # The odd requests: nothing, null, and more than there can be.
    nothing = malloc(0)
    assert nothing and realloc(nothing, 100)
    free(None)
    assert realloc(None, 0) and malloc(2**62) is None and calloc(2**40, 2**40) is None
    kept = malloc(50)
    fill(kept, 9, 50)
    assert realloc(kept, 2**62) is None
    check(kept, 9, 50)
print(json.dumps([hugeheap.status().level, count]))
""",
        **objects,
    )
    assert level == "objects" and count > 8_000


@pytest.mark.every_version
def test_the_level_is_an_option_of_dash_m(interpreter, variables):
    """Where it cannot be had, that is said on standard error."""
    code = "import hugeheap; rows = [str(n) for n in range(100_000)]; print(hugeheap.status().level, len(set(rows)))"
    command = ["-m", "hugeheap", "--level", "objects", "-c", code]
    result = testbed.run([interpreter, *command], env=variables())
    assert (result.returncode, result.stdout, result.stderr) == (0, "objects 100000\n", "")
    for options, more in (["-X", "dev"], {}), ([], {"PYTHONTRACEMALLOC": "1"}), ([], {"PYTHONMALLOC": "debug"}):
        result = testbed.run([interpreter, *options, *command], env=variables(**more))
        assert (result.returncode, result.stdout) == (0, "arenas 100000\n")
        (line,) = result.stderr.splitlines()
        assert line.startswith("hugeheap: level arenas is in force")
