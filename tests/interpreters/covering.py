"""Which combinations of versions, policies, levels and programs a plain `make test` runs.

Every combination of four things takes most of an hour, and a fault of one of them shows with each value of the others, or with each of one other.
So tests run a covering array: few rows in which every combination that is asked for occurs, by default that of each two values of different
factors. `make test-all` runs the product.

    factor     what is varied, with its values in order
    row        a value of each factor
    group      names of factors, all combinations of whose values have to occur in some row
"""

import collections
import itertools
import os

EVERYTHING = bool(os.environ.get("TEST_ALL"))


def covering(factors, groups=None, everything=EVERYTHING):
    """Rows as tuples, in the order of the factors; the same ones each time. A factor that no group names takes turns with the others."""
    names, product = list(factors), list(itertools.product(*factors.values()))
    if everything:
        return product
    places = [tuple(map(names.index, group)) for group in groups or itertools.combinations(names, min(2, len(names)))]

    def combinations(row):
        return {(group, *(row[place] for place in group)) for group in places}

    missing = set().union(*map(combinations, product))
    rows, used = [], collections.Counter()
    while missing:
        # Of rows that bring as many the one whose values had the fewest turns.
        best = max(product, key=lambda row: (len(combinations(row) & missing), -sum(used[place, row[place]] for place in range(len(names)))))
        missing -= combinations(best)
        used.update(enumerate(best))
        rows.append(best)
    return sorted(rows, key=product.index)
