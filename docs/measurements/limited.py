"""What a program gets of its limit on address space, in MiB: of blocks of one size until there are no more, freed before the next; of one block; of a list that is appended to."""

import resource
import sys

limit = int(sys.argv[1]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def filled(size):
    blocks = []
    try:
        while True:
            blocks.append(bytearray(size))
    except MemoryError:
        return len(blocks) * size


def longest():
    have, refused = 0, 1 << 40
    while refused - have > 1 << 20:
        between = (have + refused) // 2
        try:
            bytearray(between)
            have = between
        except MemoryError:
            refused = between
    return have


def grown():
    table = []
    try:
        while True:
            table.append(None)
    except MemoryError:
        return 8 * len(table)


def tell(what, size):
    print(f"{what}: {size >> 20}", flush=True)


for size in 100, 1_060_000, 5_000_000, 730_000, 300_000:
    tell(f"filled with blocks of {size} bytes", filled(size))
tell("longest block", longest())
tell("filled with blocks of 400 bytes", filled(400))
tell("grown list", grown())
tell("filled with blocks of 100 bytes", filled(100))
