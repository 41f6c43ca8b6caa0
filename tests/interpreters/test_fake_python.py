"""The preload library in a process that looks like CPython: other versions, other sizes, and misuse.

Guarded for users: an interpreter is hooked exactly when that is right for its version and options; every size CPython asks for is served
and comes back; memory that was mapped before the hook goes back where it came from; an interpreter (or extension) that frees wrongly is
stopped with one line that names the address and the mistake, instead of corrupting its heap.
"""

import re
import shutil
import signal
import subprocess

import pytest
import testbed

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
typedef struct { void *ctx; void *(*alloc)(void *, size_t); void (*free)(void *, void *, size_t); } Arena;
typedef struct { void *ctx; void *(*malloc)(void *, size_t); void *(*calloc)(void *, size_t, size_t);
                 void *(*realloc)(void *, void *, size_t); void (*free)(void *, void *); } Domain;
static int foreign_frees, foreign_allocs;
static void *stock_alloc(void *c, size_t n) { foreign_allocs++; return malloc(n ? n : 1); }
static void stock_free(void *c, void *p, size_t n) { foreign_frees++; free(p); }
static Arena arena = { NULL, stock_alloc, stock_free };
static void *raw_malloc(void *c, size_t n) { return malloc(n); }
static void *raw_calloc(void *c, size_t n, size_t s) { return calloc(n, s); }
static void *raw_realloc(void *c, void *p, size_t n) { return realloc(p, n); }
static void raw_free(void *c, void *p) { free(p); }
static Domain raw = { NULL, raw_malloc, raw_calloc, raw_realloc, raw_free };
void PyObject_GetArenaAllocator(Arena *a) { *a = arena; }
static void check(int ok, const char *what) { if (!ok) { printf("wrong: %s\n", what); exit(9); } }
/* The struct is copied piece by piece, and other threads look at it meanwhile: those with an interpreter's lock of their own, and all in the raw domain. */
void PyObject_SetArenaAllocator(Arena *a) { check(a->alloc == arena.alloc || a->free == arena.free, "taken before free knows it"); arena = *a; }
void PyMem_GetAllocator(int d, Domain *a) { *a = raw; }
void PyMem_SetAllocator(int d, Domain *a) {
    if (d != 0) return;
    check((a->malloc == raw.malloc && a->calloc == raw.calloc) || (a->free == raw.free && a->realloc == raw.realloc), "taken before free knows it");
    raw = *a;
}
const char *Py_GetVersion(void) { const char *v = getenv("FAKE_VERSION"); return v ? v : "3.13.0 (fake)"; }

static void *serve(void *seed) {
    static const size_t sizes[] = { 262144, 1 << 20, 2 << 20, 16384, 49152, 3 << 20 };
    unsigned char *held[64]; size_t size[64]; unsigned state = (unsigned)(size_t)seed * 2654435761u + 1;
    memset(held, 0, sizeof held);
    for (int round = 0; round < 4000; round++) {
        state = state * 1103515245u + 12345u;
        int at = (state >> 8) % 64;
        if (held[at]) {
            unsigned char mark = (unsigned char)((size_t)seed * 64 + at);
            check(held[at][0] == mark && held[at][size[at] - 1] == mark && held[at][size[at] / 2] == mark, "content");
            arena.free(arena.ctx, held[at], size[at]); held[at] = NULL;
        } else {
            size[at] = sizes[(state >> 16) % 6];
            held[at] = arena.alloc(arena.ctx, size[at]);
            check(held[at] != NULL, "allocation");
            unsigned char mark = (unsigned char)((size_t)seed * 64 + at);
            held[at][0] = held[at][size[at] / 2] = held[at][size[at] - 1] = mark;
        }
    }
    for (int at = 0; at < 64; at++) if (held[at]) arena.free(arena.ctx, held[at], size[at]);
    return NULL;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "state";
    size_t bytes = argc > 2 ? strtoul(argv[2], NULL, 10) : 1 << 20;
    if (!strcmp(mode, "state")) {
        printf("arena %s raw %s\n", arena.alloc == stock_alloc ? "stock" : "hooked", raw.malloc == raw_malloc ? "stock" : "hooked");
        return 0;
    }
    check(arena.alloc != stock_alloc, "not hooked");
    if (!strcmp(mode, "size")) {
        unsigned char *p[8];
        for (int i = 0; i < 8; i++) {
            p[i] = arena.alloc(arena.ctx, bytes);
            check(p[i] != NULL, "allocation");
            for (size_t k = 0; k < bytes; k += 4096) check(p[i][k] == 0, "not zeroed when new");
            memset(p[i], i + 1, bytes);
        }
        for (int i = 0; i < 8; i++) for (size_t k = 0; k < bytes; k++) check(p[i][k] == i + 1, "overlap");
        for (int i = 0; i < 8; i++) arena.free(arena.ctx, p[i], bytes);
        printf("own %d\n", foreign_allocs);
    } else if (!strcmp(mode, "zero")) {
        void *p = arena.alloc(arena.ctx, 0);
        arena.free(arena.ctx, p, 0);
        printf("ok\n");
    } else if (!strcmp(mode, "null")) {
        arena.free(arena.ctx, NULL, bytes);
        printf("forwarded %d\n", foreign_frees);
    } else if (!strcmp(mode, "foreign")) {
        void *p = malloc(bytes);
        arena.free(arena.ctx, p, bytes);
        printf("forwarded %d\n", foreign_frees);
    } else if (!strcmp(mode, "threads")) {
        pthread_t threads[2];
        for (size_t i = 0; i < 2; i++) pthread_create(&threads[i], NULL, serve, (void *)(i + 1));
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        printf("ok %d\n", foreign_frees);
    } else {
        char *keep = arena.alloc(arena.ctx, bytes), *p = arena.alloc(arena.ctx, bytes);
        keep[0] = p[0] = 1;
        size_t wrong = bytes;
        if (!strcmp(mode, "double")) arena.free(arena.ctx, p, bytes);
        else if (!strcmp(mode, "interior")) p += 16384;
        else if (!strcmp(mode, "wrong")) wrong = bytes / 2;
        printf("%p\n", (void *)p); fflush(stdout);
        arena.free(arena.ctx, p, wrong);
        printf("survived\n");
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    directory = tmp_path_factory.mktemp("fake")
    (directory / "fake.c").write_text(SOURCE)
    command = [compiler, "-O1", "-rdynamic", "-o", directory / "fake", directory / "fake.c", "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return directory / "fake"


@pytest.fixture
def play(fake, tmp_path):
    def play(*arguments, policy="auto", **variables):
        return testbed.run([fake, *arguments], env=testbed.preloaded(policy, tmp_path, **variables))

    return play


@pytest.mark.parametrize(
    ("version", "variables", "state"),
    [
        ("3.8.18 (default)", {}, "hooked"),
        ("3.13.0 (main)", {}, "hooked"),
        ("3.14.2 (main)", {}, "hooked"),
        ("3.14.2 (main)", {"PYTHON_PYMALLOC_HUGEPAGES": "1"}, "hooked"),
        ("3.15.0a3 (main)", {}, "hooked"),
        ("3.15.0a3 (main)", {"PYTHON_PYMALLOC_HUGEPAGES": "0"}, "hooked"),
        ("3.15.0a3 (main)", {"PYTHON_PYMALLOC_HUGEPAGES": "1"}, "own_huge_pages"),
        ("3.13.0 experimental free-threading build (main)", {}, "free_threaded"),
        ("3.14.0 free-threading build (main)", {}, "free_threaded"),
        ("3.13.0 (main)", {"HUGEHEAP_DISABLE": "1"}, "disabled"),
    ],
)
def test_an_interpreter_is_hooked_exactly_when_that_is_right(play, tmp_path, version, variables, state):
    result = play("state", FAKE_VERSION=version, **variables)
    hooked = "hooked" if state == "hooked" else "stock"
    assert (result.stdout, result.stderr) == (f"arena {hooked} raw {hooked}\n", "")
    if state != "disabled":
        record = testbed.only_record(tmp_path)
        assert (record["state"], record["version"]) == (state, version[:31])


@pytest.mark.parametrize("policy", testbed.POLICIES)
@pytest.mark.parametrize("size", [256 << 10, 1 << 20, 2 << 20, 16 << 10, 48 << 10, 3 << 20])
def test_every_size_is_served_and_comes_back(play, tmp_path, policy, size):
    result = play("size", size, policy=policy)
    assert (result.returncode, result.stdout, result.stderr) == (0, "own 0\n", "")
    record = testbed.only_record(tmp_path)
    assert (record["allocations"], record["frees"], record["live"], record["foreign_frees"]) == (8, 8, 0, 0)


def test_a_request_of_nothing_is_harmless(play):
    result = play("zero")
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")


def test_freeing_null_does_nothing(play):
    result = play("null")
    assert (result.returncode, result.stdout, result.stderr) == (0, "forwarded 0\n", "")


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_memory_from_before_the_hook_goes_back_where_it_came_from(play, tmp_path, size):
    result = play("foreign", size)
    assert (result.returncode, result.stdout, result.stderr) == (0, "forwarded 1\n", "")
    assert testbed.only_record(tmp_path)["foreign_frees"] == 1


@pytest.mark.parametrize("policy", testbed.POLICIES)
def test_two_threads_at_once(play, tmp_path, policy):
    result = play("threads", policy=policy)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok 0\n", "")
    record = testbed.only_record(tmp_path)
    assert record["allocations"] == record["frees"] > 2000 and record["live"] == 0


@pytest.mark.parametrize("policy", ["auto", "base"])
@pytest.mark.parametrize("size", [256 << 10, 1 << 20, 3 << 20])
@pytest.mark.parametrize("mistake", ["double", "interior", "wrong"])
def test_a_wrong_free_stops_the_process_with_one_line(play, mistake, size, policy):
    result = play(mistake, size, policy=policy)
    assert result.returncode == -signal.SIGABRT
    address = result.stdout.strip()
    assert result.stdout.count("\n") == 1, "it went on"
    (line,) = result.stderr.splitlines()
    assert re.match(rf"hugeheap: arena freed wrongly: \d+ bytes at {address}: \w+", line), line
