"""Instruction counts of the paths that a program waits for.

Time on shared machines is noise; the number of instructions of the same binary is not. Each path is run twice under
callgrind with different counts, and the difference is the cost of one pair. The bounds are a tenth above what was
counted when they were set: a change that exceeds one either is a regression or has a reason that belongs in its commit.
"""

import pytest

pytestmark = pytest.mark.any_host

# Instructions per pair of allocate and free, the system's clock included, the loop around it not. The bound of `sized`, a hot pair whose
# size the caller knows, is a promise: 30, checks included.
BOUNDS = {
    "run": 1350, "large": 2290, "owns": 43, "sized": 30, "block": 42, "order": 73, "streams": 69, "gaps": 100,
    "medium": 43, "medium-sized": 33, "others": 133, "pages": 161, "global": 53, "random": 92,
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(example):
    return example("pairs")


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_pair_costs_no_more_instructions_than_when_it_was_measured(pairs, kind):
    few, many = 1_000, 11_000
    cost = pairs.each(kind, few, many) - pairs.each("loop", few, many)
    print(f"{kind}: {cost:.0f} instructions per pair")
    assert 0 < round(cost) <= BOUNDS[kind]
