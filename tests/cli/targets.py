"""Processes for the commands that look at processes: programs that tell what they saw, and starting with less."""

import ctypes
import json
import os
import subprocess
import time
from pathlib import Path


# Ends its main thread at the first line of its input, and itself at the second. With an argument, so many MiB
# of memory that is not huge and may become so.
HEADLESS = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void fill(size_t bytes) {
    void *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    memset(memory, 1, bytes);
    madvise(memory, bytes, MADV_HUGEPAGE);
}
static void *run(void *nothing) { pthread_join(*(pthread_t *)nothing, 0); puts("alone"); fflush(stdout); getchar(); _exit(0); }
int main(int count, char **words) {
    if (count > 1) fill((size_t)atoi(words[1]) << 20);
    static pthread_t self, thread;
    self = pthread_self();
    pthread_create(&thread, 0, run, &self);
    puts("ready"); fflush(stdout);
    getchar();
    pthread_exit(0);
}
"""


class Target:
    """A program that prints a line when it is ready, and tells what it saw when its input ends."""

    def __init__(self, *command, **options):
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        self.first = self.process.stdout.readline().strip()
        self.pid = self.process.pid

    def behead(self):
        """Ends the main thread of a program that does it at a line of its input."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "alone\n"
        # The others are told a moment before the kernel's state says so.
        until = time.monotonic() + 60
        while "State:\tZ" not in Path(f"/proc/{self.pid}/status").read_text():
            assert time.monotonic() < until

    def end(self):
        """What it says about itself."""
        out, _ = self.process.communicate("\n", timeout=60)
        return json.loads(out)


def may_read_others():
    """Whether this user may read the memory of its own processes: Yama forbids that to all but root."""
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    return os.geteuid() == 0 or not yama.exists() or yama.read_text().strip() == "0"


def ended():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def kernel_thread():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == 2:
                    return int(name)
            except OSError:
                continue
    return None


def rss(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def drop(capability):
    """Leaves the program that is started without a capability."""
    drop_from_bounding_set = 24

    def inner():
        if ctypes.CDLL(None, use_errno=True).prctl(drop_from_bounding_set, capability, 0, 0, 0):
            os._exit(99)

    return inner
