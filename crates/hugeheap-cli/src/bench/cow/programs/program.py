"""The work of `hugeheap bench cow` in Python: SIZE. Builds a heap of about SIZE bytes, forks, and says what each child un-shares.

The cyclic collector writes into the header of every object it looks at, and freeing and looking at an object writes its reference
count: that is what un-shares.
"""

import gc
import json
import os
import sys
import time


def field(name):
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def build(size):
    # About 240 bytes each: a tuple, a list, a text, a number. By turns in two lists.
    lists = [], []
    for number in range(size // 240):
        lists[number % 2].append((number + 1000, [number], str(number)))
    return lists


def child(action, do):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            before = field("Private_Dirty:")
            begin = time.perf_counter()
            do()
            seconds = time.perf_counter() - begin
            told = {"action": action, "unshared": max(0, field("Private_Dirty:") - before), "seconds": seconds}
            os.write(writer, json.dumps(told).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def main():
    gc.disable()
    lists = build(int(sys.argv[1]))
    heap = field("Anonymous:")
    children = [
        child("nothing", lambda: None),
        child("frees", lists[1].clear),
        child("collects", gc.collect),
    ]
    if hasattr(gc, "freeze"):
        gc.collect()
        gc.freeze()
        children.append(child("collects-prepared", gc.collect))
    print(json.dumps({"heap": heap, "children": children}))


main()
