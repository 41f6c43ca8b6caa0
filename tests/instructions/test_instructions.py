"""Instruction counts of the paths that a program waits for.

Time on shared machines is noise; the number of instructions of the same binary is not. Each path is run twice under
callgrind with different counts, and the difference is the cost of one pair. The bounds are a tenth above what was
counted when they were set: a change that exceeds one either is a regression or has a reason that belongs in its commit.
"""

import pytest

pytestmark = pytest.mark.any_host

# Instructions per pair of allocate and free, the system's clock included, the loop around it not. The bound of
# `sized`, a hot pair whose size the caller knows, is a promise: 30, checks included.
BOUNDS = {
    "run": 1350, "large": 2290, "owns": 34, "sized": 30, "block": 41, "order": 67, "streams": 65, "gaps": 98,
    "medium": 43, "medium-sized": 33, "others": 121, "left": 296, "grow": 154, "text": 50, "text-large": 55, "pages": 161, "span": 161, "global": 87, "random": 84, "global-random": 113,
}  # fmt: skip

# The same for a program that finds its threads' heaps by the initial-exec model of thread-local storage.
INITIAL_EXEC_BOUNDS = {"global": 81, "global-random": 106}


@pytest.fixture(scope="module")
def pairs(example):
    return example("pairs")


def cost_of_pair(pairs, kind):
    few, many = 1_000, 11_000
    cost = round(pairs.each(kind, few, many) - pairs.each("loop", few, many))
    print(f"{kind}: {cost} instructions per pair")
    return cost


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_pair_costs_no_more_instructions_than_when_it_was_measured(pairs, kind):
    assert 0 < cost_of_pair(pairs, kind) <= BOUNDS[kind]


@pytest.mark.parametrize("kind", INITIAL_EXEC_BOUNDS)
def test_a_program_may_find_its_heaps_for_less(example, pairs, kind):
    cost = cost_of_pair(example("pairs", "initial-exec-tls"), kind)
    assert 0 < cost <= INITIAL_EXEC_BOUNDS[kind]
    assert cost < cost_of_pair(pairs, kind)
