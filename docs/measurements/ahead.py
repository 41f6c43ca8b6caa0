"""What it brings to touch huge pages from a second thread before the first one needs them.

    python3 ahead.py [HUGE_PAGES]

Needs a C compiler: an interpreter would hold its lock while it writes. The first thread fills huge pages one after the other with objects of
64 bytes, each after some arithmetic; the second keeps so many touched ahead of it. Medians of nine runs in turn.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import HUGE, Region

PROGRAM = r"""
#include <pthread.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HUGE %d
static char *base;
static int pages, ahead;
static _Atomic int taken, made;
static uint64_t value = 1;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *toucher(void *unused) {
    (void)unused;
    for (;;) {
        int at = atomic_load(&taken), next = atomic_load(&made);
        if (next <= at) next = at + 1;
        if (next >= pages) return NULL;
        if (next > at + ahead) {
            syscall(SYS_futex, &taken, FUTEX_WAIT_PRIVATE, at, NULL, NULL, 0);
            continue;
        }
        *(volatile char *)(base + (size_t)next * HUGE) = 1;
        atomic_store(&made, next + 1);
    }
}

int main(int count, char **words) {
    if (count != 4) return 2;
    pages = atoi(words[1]), ahead = atoi(words[2]);
    int rounds = atoi(words[3]);
    char *room = mmap(NULL, (size_t)(pages + 1) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return 1;
    base = (char *)(((uintptr_t)room + HUGE - 1) / HUGE * HUGE);
    if (madvise(base, (size_t)pages * HUGE, MADV_HUGEPAGE)) return 1;
    pthread_t thread;
    double start = now();
    if (ahead && pthread_create(&thread, NULL, toucher, NULL)) return 1;
    for (int page = 0; page < pages; page++) {
        atomic_store(&taken, page);
        if (ahead) syscall(SYS_futex, &taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        for (size_t at = 0; at < HUGE; at += 64) {
            for (int round = 0; round < rounds; round++) value = value * 6364136223846793005u + 1;
            uint64_t *object = (uint64_t *)(base + (size_t)page * HUGE + at);
            object[0] = object[2] = object[4] = value;
        }
    }
    printf("%%f\n", now() - start);
    atomic_store(&taken, pages);
    syscall(SYS_futex, &taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return ahead ? pthread_join(thread, NULL) : 0;
}
"""

pages = int(sys.argv[1]) if len(sys.argv) > 1 else 200
# The host's memory is handed to a virtual machine at the first touch: not what is measured.
Region(pages * HUGE).touch_huge()
with tempfile.TemporaryDirectory() as directory:
    source, program = Path(directory, "ahead.c"), Path(directory, "ahead")
    source.write_text(PROGRAM % HUGE)
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, source], check=True)
    for rounds in (0, 4, 12):
        times = {ahead: [] for ahead in (0, 1, 2, 3)}
        for _ in range(9):
            for ahead, found in times.items():
                run = subprocess.run([program, str(pages), str(ahead), str(rounds)], check=True, capture_output=True, text=True)
                found.append(float(run.stdout) / pages * 1e3)
        medians = ", ".join(f"{ahead} ahead {statistics.median(found):.3f} ms" for ahead, found in times.items())
        print(f"{rounds:>2} rounds per object, time per huge page: {medians}")
