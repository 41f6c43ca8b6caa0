"""Level `objects`: which sizes come from hugeheap, and what they take."""

import pytest


@pytest.mark.every_version
def test_objects_between_half_a_kilobyte_and_a_hundred(ask, objects):
    """Sizes that pymalloc leaves to malloc are blocks, blocks of spans and page runs here: in random order, each with its own contents."""
    large, live, peak, after = ask(
        """
        import hugeheap, json, random
        random.seed(11)
        # Bytes of the objects themselves: 33 and 57 more with their headers.
        held, floor = {}, hugeheap.stats().live
        for step in range(60_000):
            key = random.randrange(4_000)
            if key in held and random.random() < 0.5:
                size, data = held.pop(key)
                assert len(data) == size and data[0] == data[-1] == data[size // 2] == key % 256, key
            else:
                size = random.randrange(480, 8_200) if random.random() < 0.9 else random.randrange(8_200, 102_400)
                held[key] = size, bytes([key % 256]) * size
        for key, (size, data) in held.items():
            assert data.count(key % 256) == size
        # What is kept for the next ones is no object.
        hugeheap.give_back()
        stats = hugeheap.stats()
        live = sum(size for size, _ in held.values())
        held.clear()
        print(json.dumps([stats.live - floor, live, stats.live_peak, hugeheap.stats().live]))
        """,
        **objects,
    )
    assert live > 4 << 20
    assert large >= live * 0.9, "they did not come from the heap"
    # The small objects of the program are in it as well.
    assert large <= live * 1.2 + (4 << 20), "others came from it, too"
    assert after < peak


BUFFERS = """
import json
def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
taken = []
for length in (4096, 8192, 12288, 16384, 32768, 65536):
    before = resident()
    held = [b"x" * length for _ in range(60_000_000 // length)]
    taken.append(resident() - before)
    # Kept, so that the next ones are not made of their memory.
    globals()[f"held_{length}"] = held
print(json.dumps(taken))
"""


@pytest.mark.every_version
def test_many_buffers_that_would_be_rounded_up_go_on_to_malloc_and_a_few_do_not(ask, objects):
    """While all of them did, a program that made and dropped buffers of all sizes took up to 3.4 times as long as on stock: malloc gave its heap back with each round."""
    few, many, again = ask(
        """
        import hugeheap, json
        floor = hugeheap.stats().live
        def make(megabytes):
            # 2 KiB of 14 are left over.
            return [b"x" * (12 << 10) for _ in range((megabytes << 20) // (12 << 10))]
        counts = []
        held = make(20)
        counts.append(hugeheap.stats().live - floor)
        held += make(100)
        counts.append(hugeheap.stats().live - floor)
        del held
        held = make(20)
        counts.append(hugeheap.stats().live - floor)
        print(json.dumps([count / 2**20 for count in counts]))
        """,
        **objects,
    )
    assert 20 <= few <= 26, "all of them are served here"
    assert 28 <= many <= 38, "what comes above 32 MiB is not rounded"
    assert 20 <= again <= 26, "and what was there before is used again"


@pytest.mark.every_version
def test_buffers_of_powers_of_two_are_no_larger_than_on_stock(ask, objects):
    """Reads return `bytes` of 33 bytes more than they asked for: rounded to heap pages they took up to twice their size."""
    stock, taken = ask(BUFFERS), ask(BUFFERS, **objects)
    assert all(mib < on_stock * 1.05 + 4 for mib, on_stock in zip(taken, stock, strict=True)), (stock, taken)


@pytest.mark.every_version
def test_dictionaries_and_lists_begin_with_a_cache_line(ask, objects):
    """With the header of the collector before it, each fills one: a collection of many took twice as long while header and object were in one line."""
    lists, dictionaries = ask(
        """
        import json
        kinds = [[[number] for number in range(5_000)], [{} for _ in range(5_000)]]
        print(json.dumps([sum(id(each) % 64 == 0 for each in kind) for kind in kinds]))
        """,
        **objects,
    )
    # A few are what was dropped earlier, and kept by the interpreter.
    assert lists > 4_800 and dictionaries > 4_800
