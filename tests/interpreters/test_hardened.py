"""Hardened heaps of CPython: their promises hold for all blocks of the process."""

import pytest
import testbed

INTERPRETERS = testbed.find_interpreters()
MAIN = (3, 11) if (3, 11) in INTERPRETERS else min(INTERPRETERS, default=None)

# 100 MB of objects of which rounding wastes a quarter: how many are malloc's, which have no heap page of their own.
ROUNDED = """
kept = [bytes(12_288) for _ in range(8_000)]
print(sum(id(each) % 16_384 != 0 for each in kept))
"""

# A buffer longer than a sixteenth of the limit, of a process that has a good part of it: whether it is
# malloc's, which has its own header before it.
LIMITED = """
import ctypes, resource
kept = [str(number) for number in range(1_500_000)]
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, -1))
# What was seen of the wide limit does not count under the narrow one.
bytearray(200_000)
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, -1))
block = bytearray((40 << 20) - 1)
print(int(ctypes.addressof(ctypes.c_char.from_buffer(block)) % 4096 != 0))
"""


@pytest.mark.parametrize("program", [ROUNDED, LIMITED], ids=["rounded", "limited"])
@pytest.mark.skipif(MAIN is None, reason="no CPython with the functions here")
def test_no_block_of_a_hardened_process_is_mallocs(program):
    """What malloc serves has no guard and is not cleared."""
    for hardened in (False, True):
        env = testbed.preloaded(level="objects") | ({"HUGEHEAP_HARDENED": "1"} if hardened else {})
        result = testbed.run([INTERPRETERS[MAIN], "-c", program], env=env)
        assert (result.returncode, result.stderr) == (0, "")
        # Without it some are: the programs are such that it matters.
        assert (int(result.stdout) == 0) == hardened
