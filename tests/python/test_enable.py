"""Enabling hugeheap in a process that is already running, and everything such a process may do afterwards.

Each program builds values from what it keeps and compares them with what they must be: memory that is handed out twice,
moved wrongly or given back while it lives shows as a wrong value, as a crash, or as a line on standard error.
"""

import json

import pytest
import testbed


@pytest.fixture
def library():
    """Variables that preload the library, as `hugeheap run` sets them."""
    return {"LD_PRELOAD": str(testbed.find_library())}


@pytest.mark.every_version
def test_a_running_process_is_enabled_and_enabled_again(ask, tmp_path):
    """Objects from before go back to where they came from; a second call changes settings and hooks nothing twice.

    A second installation would take the first hook for the allocator that was there before, and call itself for ever.
    """
    policies, early, live, stats, pid = ask(
        """
        import json, os, random
        random.seed(7)
        before = [(number, str(number)) for number in range(200_000)]
        early_table = list(range(300_000))
        import hugeheap
        assert hugeheap.stats().live == 0
        policies = [hugeheap.enable(policy="thp").policy]
        early = hugeheap.stats()
        after = [(number, str(number)) for number in range(200_000)]
        late_table = list(range(300_000))
        live = hugeheap.stats().live
        policies.append(hugeheap.enable(policy="base").policy)
        policies.append(hugeheap.enable().policy)
        # A table from before that grows and shrinks moves to us and is not lost on the way.
        early_table.extend(range(300_000))
        assert sum(early_table) == 2 * sum(range(300_000)) and sum(late_table) == sum(range(300_000))
        del early_table[1_000:], late_table
        assert sum(early_table) == sum(range(1_000))
        half = after[100_000:]
        del after[100_000:]
        # Freed in any order, old and new mixed.
        both = [(pair, "b") for pair in before] + [(pair, "a") for pair in after]
        del before, after
        random.shuffle(both)
        while both:
            (number, text), origin = both.pop()
            assert text == str(number), (text, origin)
        del number, text, origin
        stats = hugeheap.stats()
        more = [(number, str(number)) for number in range(100_000)]
        assert all(text == str(number) for number, text in half + more)
        print(json.dumps([policies, vars(early), live, vars(stats), os.getpid()]))
        """,
        HUGEHEAP_TELEMETRY=str(tmp_path),
    )
    assert policies == ["thp", "base", "base"]
    assert early["live"] < 1 << 20, "what is older than the hooks was counted"
    # 200 000 tuples and strings of 110 bytes and more, and the table of 8 bytes each.
    assert live > 20 << 20
    # Of the 22 arenas of 1 MiB from before, most are empty again; each is freed once.
    assert 5 <= stats["foreign_frees"] < 100, "the memory from before was not freed, or more than that"
    assert stats["frees"] > 5, "the first hook became the previous allocator of the second"
    assert stats["arenas_thp"] > 0, "arenas that exist keep their backing"
    record = testbed.only_record(tmp_path)
    assert (record["pid"], record["state"], record["policy"]) == (pid, "hooked", "base")
    assert record["live_peak"] >= live and record["allocations"] >= stats["allocations"]


@pytest.mark.every_version
def test_the_library_and_the_package_share_one_runtime(ask, library, tmp_path):
    """With two, the package would see an empty heap and hook the interpreter a second time."""
    pid, first, again, told, stats = ask(
        """
        import json, os
        rows = [[number] for number in range(300_000)]
        import hugeheap
        first, before = vars(hugeheap.status()), hugeheap.stats()
        again = hugeheap.enable().policy
        hugeheap.configure(policy="base")
        del rows
        given = hugeheap.give_back()
        with open(f"/proc/self/maps") as maps:
            regions = [line for line in maps if "hugeheap" in line and "/" not in line]
        stats = hugeheap.stats()
        told = [before.live, given, hugeheap.status().policy, sorted(os.listdir(os.environ["HUGEHEAP_TELEMETRY"]))]
        print(json.dumps([os.getpid(), first, again, told, vars(stats)]))
        """,
        **library,
        HUGEHEAP_POLICY="dense",
        HUGEHEAP_TELEMETRY=str(tmp_path),
    )
    live, given, policy, files = told
    assert (first["state"], first["policy"], again, policy) == ("hooked", "dense", "dense", "base")
    assert live > 10 << 20 and given > 0
    assert stats["foreign_frees"] == 0, "the interpreter was hooked a second time"
    assert files == [f"{pid}.hugeheap"]
    # The last numbers the package saw and the record, which the library keeps, tell of the same heap.
    record = testbed.only_record(tmp_path)
    assert record["policy"] == "base" and record["live_peak"] == stats["live_peak"]
    assert record["allocations"] - stats["allocations"] < 100 and record["given_back"] >= given
    assert record["arenas_peak"] == stats["arenas_peak"] and record["fallbacks"] == stats["fallbacks"]


@pytest.mark.every_version
def test_forked_children_have_every_value_and_a_record_of_their_own(start, version, tmp_path):
    """And the interpreter does not warn of a thread that the program did not start: CPython counts them since 3.12."""
    result = start(
        """
        import hugeheap, json, os, traceback
        hugeheap.enable(decay=0.001)
        values = [[number, str(number)] for number in range(100_000)]
        table = bytearray(b"p") * (6 << 20)
        def check(offset):
            assert all(one == [number + offset, str(number)] for number, one in enumerate(values))
            assert table.count(table[:1]) == 6 << 20
        pids, statuses = [], []
        for child in range(3):
            # Memory to give back: the maintenance thread has work when the fork comes.
            burst = [[number] for number in range(60_000)]
            del burst
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    check(0)
                    for one in values: one[0] += 5
                    table[:] = b"c" * len(table)
                    values.extend([number + 5, str(number)] for number in range(100_000, 130_000))
                    check(5)
                    grandchild = os.fork()
                    if grandchild == 0:
                        check(5)
                        os._exit(0)
                    assert os.waitpid(grandchild, 0)[1] == 0
                    del values[::2]
                    assert hugeheap.status().hooked and hugeheap.stats().forks == child + 2
                    hugeheap.configure(decay=3600)
                    burst = [[number] for number in range(300_000)]
                    del burst
                    assert hugeheap.give_back() > 5 << 20
                    status = 0
                except BaseException:
                    traceback.print_exc()
                os._exit(status)
            pids.append(pid)
        table[:] = b"P" * len(table)
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        check(0)
        print(json.dumps([os.getpid(), pids, statuses, hugeheap.stats().forks]))
        """,
        options=["-W", "always::DeprecationWarning"],
        HUGEHEAP_TELEMETRY=str(tmp_path),
    )
    assert (result.returncode, result.stderr) == (0, "")
    pid, children, statuses, forks = json.loads(result.stdout)
    assert statuses == [0, 0, 0] and forks == 3
    records = testbed.records(tmp_path)
    assert records.keys() >= {pid, *children} and len(records) == 7
    assert all(records[child]["parent"] == pid and records[child]["live"] > 10 << 20 for child in children)
    assert all(record["state"] == "hooked" for record in records.values())


@pytest.mark.every_version
def test_subinterpreters_use_the_heap_and_are_refused_the_package(ask, version):
    """Those from before and after enabling, with a lock of their own where there is such a thing (since 3.12).

    3.10 and 3.11 once loaded the extension into any interpreter, where it shares its objects with the main one.
    """
    failed, peak, hooked = ask(
        """
        import json, sys, threading
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        def create(own):
            if sys.version_info >= (3, 13):
                return interpreters.create("isolated" if own else "legacy")
            return interpreters.create(isolated=own) if sys.version_info >= (3, 12) else interpreters.create()
        kinds = [False, True] if sys.version_info >= (3, 12) else [False, False]
        code = '''if True:
            rows = [[number, str(number)] for number in range(60_000)]
            assert sum(one[0] for one in rows) == 59_999 * 60_000 // 2
            table = bytearray(b"q") * (4 << 20)
            del rows[::2]
            assert table.count(b"q") == 4 << 20 and rows[-1] == [59_999, "59999"]
            try:
                import hugeheap
            except ImportError as error:
                assert "interpreter" in str(error), error
            else:
                raise AssertionError("the extension serves the process, only the main interpreter may load it")
        '''
        failed = []
        def work(one, times):
            try:
                for _ in range(times):
                    failure = interpreters.run_string(one, code)
                    assert failure is None, failure
            except BaseException as error:
                failed.append(repr(error))
        early = [create(own) for own in kinds]
        import hugeheap
        for one in early: work(one, 1)
        hugeheap.enable(decay=0.001)
        ones = early + [create(own) for own in kinds]
        threads = [threading.Thread(target=work, args=(one, 3)) for one in ones]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        peak = hugeheap.stats().live_peak
        for one in ones: interpreters.destroy(one)
        rows = [[number] for number in range(100_000)]
        print(json.dumps([failed, peak, hugeheap.status().hooked]))
        """
    )
    assert failed == [] and hooked
    assert peak > 4 << 20, "what the subinterpreters allocated did not come from the heap"


ALLOCATORS = """
import hugeheap, json
state = hugeheap.enable().state
rows = [(number, str(number), [number] * 3) for number in range(100_000)]
table = bytearray(b"y") * (8 << 20)
total = sum(row[2][0] for row in rows) + table.count(b"y")
stats = hugeheap.stats()
del rows, table
print(json.dumps([state, total, stats.live, stats.large]))
"""


@pytest.mark.every_version
def test_every_allocator_of_the_interpreter(ask, library, version):
    """`PYTHONMALLOC=malloc` has no arenas: nothing of size comes to the heap, and the state says so."""
    ways = [("malloc", {}), ("debug", {}), ("malloc_debug", library), ("pymalloc_debug", library)]
    for allocator, preload in ways:
        state, total, live, large = ask(ALLOCATORS, PYTHONMALLOC=allocator, **preload)
        assert total == 99_999 * 100_000 // 2 + (8 << 20), allocator
        if allocator.startswith("malloc"):
            assert state == "other_allocator" and live < 4 << 20, allocator
        else:
            assert state == "hooked" and live - large > 15 << 20, allocator


@pytest.mark.every_version
def test_tracemalloc_on_top_and_below(ask):
    """It wraps the allocators it finds when it starts, and puts those back when it stops."""
    for first, second in ("tracemalloc.start(3)", "hugeheap.enable()"), ("hugeheap.enable()", "tracemalloc.start(3)"):
        traced, total, live, hooked = ask(
            f"""
            import hugeheap, json, tracemalloc
            {first}
            {second}
            rows = [[number] * 4 for number in range(50_000)]
            table = list(range(500_000))
            traced = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            table.extend(range(500_000))
            more = [[number] * 4 for number in range(50_000)]
            bigger = list(range(500_000))
            total = sum(row[3] for row in rows) + sum(row[0] for row in more) + sum(table) + sum(bigger)
            del rows, more, table, bigger
            tracemalloc.start()
            again = [bytearray(3 << 20) for _ in range(4)]
            tracemalloc.stop()
            del again
            kept = [[number] * 4 for number in range(50_000)]
            print(json.dumps([traced, total, hugeheap.stats().live, hugeheap.status().hooked]))
            """
        )
        assert traced > 10 << 20 and hooked
        assert total == 2 * sum(range(50_000)) + 3 * sum(range(500_000))
        assert 2 << 20 < live < 24 << 20, f"{first} before {second}"


@pytest.mark.every_version
def test_threads_exchange_objects_and_recurse(ask):
    """Since 3.11 Python's frames lie in chunks from the arena allocator, per thread, and end in any order."""
    sums, depths, size = ask(
        """
        import hugeheap, json, queue, sys, threading
        sys.setrecursionlimit(20_000)
        threading.stack_size(64 << 20)
        started, box = threading.Event(), queue.SimpleQueue()
        def early():
            started.wait()
            box.put(sum(len(str(number)) for number in [*range(50_000)]))
        waiting = threading.Thread(target=early)
        waiting.start()
        hugeheap.enable(decay=0.001)
        started.set()
        boxes, sums, depths = [queue.SimpleQueue() for _ in range(4)], [0] * 4, []
        def deep(number):
            return number if number == 0 else 1 + deep(number - 1)
        def work(mine):
            for step in range(25):
                boxes[(mine + 1) % 4].put([(number, [number]) for number in range(step * 100)])
                boxes[(mine + 1) % 4].put(bytearray(b"z" * (1 << 20)))
                for value in boxes[mine].get(), boxes[mine].get():
                    if isinstance(value, bytearray):
                        assert value.count(b"z") == 1 << 20
                    else:
                        sums[mine] += sum(pair[1][0] for pair in value)
            depths.append(deep(2_000 + 1_000 * mine))
        threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        waiting.join()
        print(json.dumps([sums, sorted(depths), box.get()]))
        """
    )
    assert sums == [sum(sum(range(step * 100)) for step in range(25))] * 4
    assert depths == [2_000, 3_000, 4_000, 5_000] and size == sum(len(str(number)) for number in range(50_000))


@pytest.mark.every_version
def test_the_end_of_a_process_is_silent(start, tmp_path):
    """Whatever still lives when the interpreter is torn down: modules, cycles, daemon threads, exit handlers."""
    code = """
    import atexit, hugeheap, sys, threading, time
    hugeheap.enable(decay=0.001)
    class Node:
        def __init__(self): self.itself, self.data = self, [str(number) for number in range(200)]
        def __del__(self): self.data.append([0] * 100)
    nodes = [Node() for _ in range(500)]
    sys.kept = [bytearray(2 << 20), list(range(300_000)), {number: [number] for number in range(50_000)}]
    def busy():
        while True:
            rows = [[number] for number in range(10_000)]
    if "daemon" in sys.argv:
        threading.Thread(target=busy, daemon=True).start()
        time.sleep(0.05)
    atexit.register(lambda: print(len([[number] for number in range(50_000)]), hugeheap.stats().live > 1 << 20))
    """
    for words, options in ((["daemon"], []), ([], ["-X", "dev"])):
        result = start(code, *words, options=options)
        assert (result.returncode, result.stdout, result.stderr) == (0, "50000 True\n", ""), (words, options)


def test_a_limit_of_address_space(fill_and_fill_again, library):
    """`MemoryError` comes where memory ends, is survived, and for small objects and tables alike the heap had the most."""
    for make, preload in [("[[number] for number in range(20_000)]", {}), ("bytearray((4 << 20) - 1)", library)]:
        stats = fill_and_fill_again("ulimit -v 300000", make, enable=not preload, **preload)
        if preload:
            assert stats["fallbacks"].get("address_space", 0) > 0, "memory ended, and nothing was said"
