"""One workload of `hugeheap bench obmalloc`, in a process of its own.

    python workloads.py WORKLOAD time
    python workloads.py WORKLOAD memory IDLE_SECONDS [CHARGE_FILE]

`time` prints how long the workload took, with its objects freed, and its page faults. `memory` looks at the process while
all objects of the workload live, after they are freed, and after a pause. Each workload calls `peak` as the last thing
before its objects go: nothing in a timed run. The cyclic collector is off, as in the measurements these are compared with.
"""

import gc
import resource
import sys
import time


def small_object_churn(peak):
    # A queue of objects: one in at the end, one out at the front.
    queue = []
    for _ in range(200_000):
        queue.append(bytearray(64))
    for _ in range(200_000):
        queue.append(bytearray(64))
        queue.pop(0)
    peak()


def bulk_small_alloc(peak):
    # Many objects of one size, then a write to each.
    buffers = [bytearray(48) for _ in range(1_000_000)]
    for buffer in buffers:
        buffer[0] = 1
    peak()


def dict_churn(peak):
    # One small dictionary after the other: the heap does not grow.
    for _ in range(500_000):
        record = {"a": 1, "b": 2, "c": 3, "d": 4}
        del record
    peak()


def mixed_sizes(peak):
    # Twelve size classes in turn.
    lengths = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    buffers = [bytearray(lengths[number % 12]) for number in range(500_000)]
    peak()


def fragmentation(peak):
    # Every other object freed, then its place filled again.
    buffers = [bytearray(128) for _ in range(500_000)]
    for place in range(0, len(buffers), 2):
        buffers[place] = None
    for place in range(0, len(buffers), 2):
        buffers[place] = bytearray(128)
    peak()


def list_of_tuples(peak):
    triples = [(number, number + 1, number + 2) for number in range(1_000_000)]
    peak()


def class_instances(peak):
    class Point:
        __slots__ = ("x", "y", "z")

        def __init__(self, x, y, z):
            self.x = x
            self.y = y
            self.z = z

    points = [Point(number, number + 1, number + 2) for number in range(500_000)]
    peak()


def arena_pressure(peak):
    # Two million objects of more than half a kilobyte with their headers: hundreds of arenas.
    layers = [[bytearray(256) for _ in range(200_000)] for _ in range(10)]
    peak()


def random_walk(peak):
    # Writes in random order: each is likely to miss the TLB.
    import random

    random.seed(42)
    buffers = [bytearray(64) for _ in range(1_000_000)]
    order = list(range(len(buffers)))
    random.shuffle(order)
    for place in order:
        buffers[place][0] = place & 0xFF
    peak()


def startup(peak):
    # The interpreter alone.
    peak()


WORKLOADS = {
    workload.__name__: workload
    for workload in (
        small_object_churn,
        bulk_small_alloc,
        dict_churn,
        mixed_sizes,
        fragmentation,
        list_of_tuples,
        class_instances,
        arena_pressure,
        random_walk,
        startup,
    )
}


def fields(path, names):
    """The named fields of a file of /proc, in bytes."""
    found = dict.fromkeys(names, 0)
    with open(path) as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
    return found


def nothing():
    pass


def timed(workload):
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    workload(nothing)
    seconds = time.perf_counter() - start
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    # VmHWM belongs to this program alone; ru_maxrss remembers what the process was before it became Python.
    status = fields("/proc/self/status", ["VmHWM"])
    print('{"seconds": %.9f, "minor_faults": %d, "peak_rss": %d}' % (seconds, faults, status["VmHWM"]))


def looked_at(charge_file):
    names = ["Rss", "Anonymous", "AnonHugePages", "Private_Hugetlb", "Shared_Hugetlb"]
    memory = fields("/proc/self/smaps_rollup", names)
    memory["VmPTE"] = fields("/proc/self/status", ["VmPTE"])["VmPTE"]
    charge = "null"
    if charge_file:
        with open(charge_file) as file:
            charge = str(int(file.read()))
    return (
        '{"rss": %d, "anonymous": %d, "thp": %d, "hugetlb": %d, "page_tables": %d, "charge": %s}'
        % (
            memory["Rss"],
            memory["Anonymous"],
            memory["AnonHugePages"],
            memory["Private_Hugetlb"] + memory["Shared_Hugetlb"],
            memory["VmPTE"],
            charge,
        )
    )


def memory(workload, idle, charge_file):
    seen = {"start": looked_at(charge_file)}
    workload(lambda: seen.update(peak=looked_at(charge_file)))
    seen["freed"] = looked_at(charge_file)
    if idle:
        time.sleep(idle)
        seen["idle"] = looked_at(charge_file)
    print("{%s}" % ", ".join('"%s": %s' % item for item in seen.items()))


if __name__ == "__main__":
    gc.collect()
    gc.disable()
    chosen = WORKLOADS[sys.argv[1]]
    if sys.argv[2] == "time":
        timed(chosen)
    else:
        memory(chosen, float(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
