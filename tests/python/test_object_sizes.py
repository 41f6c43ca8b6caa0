"""Level `objects`: which sizes come from hugeheap, and what they take."""

import pytest


@pytest.mark.every_version
def test_objects_between_half_a_kilobyte_and_a_hundred(ask, objects):
    """Sizes that pymalloc leaves to malloc are blocks and page runs here, but for those of which rounding would waste a tenth: in random order, each with its own contents."""
    large, live, peak, after = ask(
        """
        import hugeheap, json, random
        def is_served(size):
            if size <= 4096:
                return True
            kib = 5440 / 1024, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 56, 64, 72, 80, 96, 112
            return next(gets * 1024 for gets in kib if gets * 1024 >= size) - size <= size // 10
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
        stats = hugeheap.stats()
        live = sum(size for size, _ in held.values() if is_served(size + 33))
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
