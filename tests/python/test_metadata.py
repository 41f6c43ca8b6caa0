"""Metadata of hugeheap's own blocks in an interpreter: how much there is, and that it goes with what it was for."""

import pytest
import testbed


@pytest.mark.every_version
def test_a_heap_that_has_become_small_keeps_no_metadata(ask):
    """Of what had 64 bytes per heap page for the page and 128 for its blocks, the kernel has the memory again."""
    before, full, after = ask(
        """
        import hugeheap, json, re
        def numbers():
            resident = int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
            stats = hugeheap.stats()
            # Without the arenas: one more or less may have a live object in it.
            return stats.metadata, resident - stats.resident
        numbers()
        before = numbers()
        many = [[number] for number in range(3_000_000)]
        full = numbers()
        del many
        hugeheap.give_back()
        print(json.dumps([before, full, numbers()]))
        """,
        LD_PRELOAD=str(testbed.find_library()),
        HUGEHEAP_LEVEL="objects",
    )
    grown = full[0] - before[0]
    # 88 and 32 bytes for each, and a list of 24 MB beside them.
    assert grown > 3_000_000 * 100 / 16384 * 192, (before, full)
    assert after[0] - before[0] < grown / 10, (before, full, after)
    assert after[1] - before[1] < grown / 2, (before, full, after)
