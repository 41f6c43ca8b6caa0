"""The rows that stand for a product leave no combination out that was asked for."""

import itertools

import pytest
from covering import covering

FACTORS = {
    "version": [(3, 10), (3, 11), (3, 12), (3, 13)],
    "policy": ["auto", "thp", "dense", "hugetlb", "base"],
    "level": ["arenas", "objects"],
    "program": list("abcdefghi"),
}
pytestmark = pytest.mark.any_host


def rows_of(factors=FACTORS, groups=None):
    rows = covering(factors, groups, everything=False)
    return [dict(zip(factors, row)) for row in rows]


def occurring(rows, group):
    return {tuple(row[name] for name in group) for row in rows}


@pytest.mark.parametrize("group", list(itertools.combinations(FACTORS, 2)), ids="-".join)
def test_each_two_values_meet(group):
    assert occurring(rows_of(), group) == set(itertools.product(*(FACTORS[name] for name in group)))


def test_no_more_rows_than_the_two_largest_factors_ask_for_and_a_few():
    assert 45 <= len(rows_of()) <= 50


def test_groups_say_what_meets_and_the_others_take_turns():
    rows = rows_of(groups=[("version", "level"), ("policy",)])
    assert len(rows) == len(occurring(rows, ("version", "level"))) == 8
    for name, least in ("policy", 1), ("program", 0):
        count = [sum(row[name] == value for row in rows) for value in FACTORS[name]]
        assert least <= min(count) <= max(count) <= 2, (name, count)


@pytest.mark.parametrize("factors", [{"version": [1, 2]}, {"version": [1, 2], "level": [5]}])
def test_few_factors_are_their_product(factors):
    assert covering(factors, everything=False) == list(itertools.product(*factors.values()))


def test_without_a_value_there_is_no_row():
    assert covering({"version": [], "level": [1, 2]}, everything=False) == []


def test_it_is_the_same_each_time_and_a_part_of_the_product():
    rows = covering(FACTORS, everything=False)
    assert rows == covering(FACTORS, everything=False)
    everything = covering(FACTORS, everything=True)
    assert len(everything) == 4 * 5 * 2 * 9 and set(rows) < set(everything)
