"""One workload of `hugeheap bench give-back`, in a process of its own.

    python workloads.py instances|cycle SIZE CYCLES IDLE_SECONDS

Allocates and frees the same objects CYCLES times, then sleeps. Prints as JSON when each phase began and ended (seconds of the
monotonic clock, which whoever watches from outside reads too) and what it cost: real, user and system time, of all threads of
the process. The cyclic collector is off: it would look at a million objects again and again, in every variant alike.
"""

import gc
import resource
import sys
import time


def instances(count):
    # The published worst case: a million instances with one attribute.
    class Obj:
        def __init__(self):
            self.dumb = "hello"

    return lambda: [Obj() for _ in range(count)]


def cycle(size):
    # Objects of 16 sizes up to the largest that counts as small, SIZE bytes in all.
    header = sys.getsizeof(b"")
    totals = [512 - 24 * number for number in range(16)]
    lengths = [total - header for total in totals]
    # And 8 bytes for each place in the list that holds them.
    rounds = max(1, size // (sum(totals) + 8 * len(totals)))
    return lambda: [bytes(length) for _ in range(rounds) for length in lengths]


WORKLOADS = {"instances": instances, "cycle": cycle}
PHASES = []


class Phase:
    """What is done in it is noted with its cost."""

    def __init__(self, kind):
        self.kind = kind

    def __enter__(self):
        self.used = resource.getrusage(resource.RUSAGE_SELF)
        self.begin = time.monotonic()

    def __exit__(self, *error):
        end = time.monotonic()
        used = resource.getrusage(resource.RUSAGE_SELF)
        PHASES.append(
            '{"phase": "%s", "begin": %.9f, "end": %.9f, "user": %.6f, "system": %.6f, "minor_faults": %d}'
            % (
                self.kind,
                self.begin,
                end,
                used.ru_utime - self.used.ru_utime,
                used.ru_stime - self.used.ru_stime,
                used.ru_minflt - self.used.ru_minflt,
            )
        )


def main(workload, size, cycles, idle):
    allocate = WORKLOADS[workload](size)
    if idle:
        # Ten looks from outside, so that the interpreter's own memory is seen.
        with Phase("start"):
            time.sleep(0.1)
    for _ in range(cycles):
        with Phase("allocate"):
            objects = allocate()
        with Phase("free"):
            del objects
    if idle:
        with Phase("idle"):
            time.sleep(idle)
    print("[%s]" % ", ".join(PHASES))


if __name__ == "__main__":
    gc.collect()
    gc.disable()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
