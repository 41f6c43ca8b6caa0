"""Instructions per object of the garbage-collected heap's fast path, the loop and the collections included.

As in test_instructions.py a loop is run twice under callgrind with different counts. The bounds are promises: 9 without and 11
with a write of the field, where RPython's loop has 11 and 13.
"""

import pytest

pytestmark = pytest.mark.any_host

BOUNDS = {"plain": 9, "field": 11}


@pytest.fixture(scope="module")
def window(example):
    return example("gc_window")


@pytest.mark.parametrize("kind", BOUNDS)
def test_an_object_of_16_bytes_costs_no_more_than_promised(window, kind):
    cost = window.each(kind, 1_000_000, 5_000_000)
    print(f"{kind}: {cost:.2f} instructions per object")
    # Less than a test, an addition and a write cannot be: the loop was not removed. A collection per 262,144
    # objects is 0.003 of it.
    assert 3 <= round(cost, 1) <= BOUNDS[kind]


# Instructions of a minor collection with one survivor, its allocation and two readings of the clock included.
# 814 were counted when the bound was set, 886 with what collections learnt to ask later, 907 since the
# nursery's gaps are handed out as far as its part goes wherever they lie, 870 to 881 since handles of old
# objects are not looked at. That is far below two microseconds.
COLLECTION = 890


# Instructions of an object of two slots that is allocated, survives and refers to another one that does: a
# tenth above 129. A call for each slot, a list of offsets instead of a map, and two bitmaps changed for each
# block made it 290; everything read from memory after each write, 170. With a length before the slots it was
# 255 while only objects of a fixed size had a map, and is 201, ten more than when the others paid with 9 for
# it: 139, 135 since bytes are counted by windows, and 131 since copies wait with their maps.
SURVIVORS = {"survive": 134, "survive-row": 205}


@pytest.mark.parametrize("kind", SURVIVORS)
def test_a_survivor_costs_no_more_than_when_it_was_measured(window, kind):
    cost = window.each(kind, 50_000, 250_000)
    print(f"a survivor, {kind}: {cost:.1f} instructions")
    # To a tenth: between two runs of the same program there are 0.1 of an object, which are the collections'
    # and not its own.
    assert 50 < round(cost, 1) <= SURVIVORS[kind]


# Old objects of two slots, MARKED of the example, each marked and looked into, and their pages swept; what a
# whole collection does besides is four of it. 109 were counted. In a list whose objects have another child
# hardly any are ahead of the one that is looked into: where these were searched for in their ring it was 145.
MARKED = 200_000
MARK = 112


def test_marking_an_object_costs_no_more_than_when_it_was_measured(window):
    cost = window.each("mark", 2, 6) / MARKED
    print(f"an object that is marked: {cost:.1f} instructions")
    assert 40 < cost <= MARK


def test_a_minor_collection_costs_what_survives_and_not_what_the_nursery_is(window):
    small, large = (window.each(kind, 1_000, 11_000) for kind in ("collect", "collect-large"))
    print(f"a minor collection: {small:.0f} instructions, with sixteen times the nursery {large:.0f}")
    assert 100 < small <= COLLECTION
    assert abs(large - small) < 10


def test_handles_cost_a_minor_collection_nothing_once_their_objects_are_old(window):
    # 100,000 that live and as many that were released. It looked at all of them: 4,000,000 instructions.
    none, many = (window.each(kind, 1_000, 11_000) for kind in ("collect", "collect-handles"))
    print(f"a minor collection: {none:.0f} instructions, with 100,000 handles {many:.0f}")
    assert abs(many - none) < 20


# Instructions for each of 1,000 pinned objects of two slots, which are looked into in each minor collection: a
# fiftieth above 357. It was 533 while the next one, and the gap between two, were searched for from the one
# before.
PINNED = 1_000
PIN = 364


def test_a_pinned_object_costs_a_minor_collection_no_more_than_when_it_was_measured(window):
    cost = window.each("collect-pinned", 100, 300) / PINNED
    print(f"a pinned object: {cost:.1f} instructions in a minor collection")
    assert 50 < cost <= PIN


# Instructions of a minor collection whose one survivor has an ephemeron and a weak slot that it clears: a
# fiftieth above 1,845. It was 2,446 while the memory of such notes was taken and given back each time.
WEAK = 1_880


def test_what_a_minor_collection_clears_costs_no_more_than_when_it_was_measured(window):
    cost = window.each("collect-weak", 1_000, 5_000)
    print(f"a minor collection that clears an ephemeron and a weak slot: {cost:.0f} instructions")
    assert COLLECTION < cost <= WEAK
