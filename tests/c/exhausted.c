/* The process's own allocator refuses: exhausted SECTION all | one | pages. Each section is a scenario. It is
 * run in a child of its own for each n: after n requests every further one is refused (all), or the next one
 * (one), also those of the C library. Nothing may end the process: what fails answers what the header says, and
 * does what it should once there is memory again. Requests are blocks of malloc's; with `pages` also memory of
 * the system, and the next one is refused.
 *
 * With WRAPPED they are only the blocks that the archive asks for (ld --wrap), so that a sanitizer's allocator
 * can be below. Prints how many requests a section made. */
#include "gc_objects.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Requests that are granted before one is refused; below 0: none is. */
static _Atomic long left = -1;
static _Atomic long refused;
static int only_one;

static int refuses(void) {
    if (left < 0)
        return 0;
    if (left > 0) {
        left--;
        return 0;
    }
    if (only_one)
        left = -1;
    refused++;
    errno = ENOMEM;
    return 1;
}

#ifdef WRAPPED
#define BELOW(name) __real_##name
#define OURS(name) __wrap_##name
int BELOW(posix_memalign)(void **block, size_t alignment, size_t size);
#else
#define BELOW(name) __libc_##name
#define OURS(name) name
#endif

void *BELOW(malloc)(size_t size);
void *BELOW(calloc)(size_t count, size_t size);
void *BELOW(realloc)(void *block, size_t size);
void *OURS(malloc)(size_t size);
void *OURS(calloc)(size_t count, size_t size);
void *OURS(realloc)(void *block, size_t size);
int OURS(posix_memalign)(void **block, size_t alignment, size_t size);

void *OURS(malloc)(size_t size) { return refuses() ? NULL : BELOW(malloc)(size); }
void *OURS(calloc)(size_t count, size_t size) { return refuses() ? NULL : BELOW(calloc)(count, size); }
void *OURS(realloc)(void *block, size_t size) { return refuses() ? NULL : BELOW(realloc)(block, size); }

#ifdef WRAPPED
int OURS(posix_memalign)(void **block, size_t alignment, size_t size) { return refuses() ? ENOMEM : BELOW(posix_memalign)(block, alignment, size); }
#else
void *__libc_memalign(size_t alignment, size_t size);
int OURS(posix_memalign)(void **block, size_t alignment, size_t size) { return refuses() || (*block = __libc_memalign(alignment, size)) == NULL ? ENOMEM : 0; }

static int pages_too;

void *mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
    return pages_too && refuses() ? MAP_FAILED : (void *)syscall(SYS_mmap, at, size, access, flags, file, offset);
}
void *mmap64(void *at, size_t size, int access, int flags, int file, off_t offset) { return mmap(at, size, access, flags, file, offset); }
int mprotect(void *at, size_t size, int access) { return pages_too && refuses() ? -1 : (int)syscall(SYS_mprotect, at, size, access); }
#endif

/* There is memory for one call, whatever is refused. */
static long held;
static void allow(void) {
    held = left;
    left = -1;
}
static void forbid(void) { left = held; }

/* Runs a call that answers a status until it is HH_OK: at most once without memory, and only where something
 * was refused. */
#define DONE(call)                                                   \
    do {                                                             \
        long before_ = refused;                                      \
        int status_ = (call);                                        \
        if (status_ != HH_OK) {                                      \
            CHECK(status_ == HH_NO_MEMORY && refused > before_);     \
            allow();                                                 \
            CHECK((call) == HH_OK);                                  \
            forbid();                                                \
        }                                                            \
    } while (0)

/* The same for what answers 0, or NULL, with ENOMEM. */
#define GOT(to, call)                                                \
    do {                                                             \
        long before_ = refused;                                      \
        errno = 0;                                                   \
        (to) = (call);                                               \
        if (!(to)) {                                                 \
            CHECK(errno == ENOMEM && refused > before_);             \
            allow();                                                 \
            CHECK(((to) = (call)));                                  \
            forbid();                                                \
        }                                                            \
    } while (0)

static size_t events;

static void count_event(void *data, const hh_gc_event *event) {
    CHECK(data == (void *)&events && event->size == sizeof *event);
    events++;
}

/* Words that are scanned. */
static void *words[4096];

static void name_words(void *data, const void **begin, const void **end) {
    CHECK(data == (void *)words);
    *begin = words, *end = words + sizeof words / sizeof *words;
}

static size_t finalized;

static void finalize(hh_gc *its, void *object) {
    CHECK(its == heap && object != NULL);
    finalized++;
}

static hh_gc_type weak_type, finalized_type;

static void make_heap(size_t maximum, uint32_t checks) {
    static const size_t node_slots[] = {offsetof(struct node, next)}, table_slots[] = {offsetof(struct table, first)};
    static const size_t item_slots[] = {offsetof(struct item, node)};
    static const hh_gc_pair pairs[] = {{8, 16}};
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    options.nursery = 64 << 10;
    options.maximum = maximum;
    options.evacuate = 110;
    options.checks = checks;
    hh_gc_layout node = {.size = sizeof node, .bytes = sizeof(struct node), .slots = node_slots, .slot_count = 1};
    hh_gc_layout table = {.size = sizeof table, .bytes = sizeof(struct table), .item_bytes = sizeof(struct item), .slots = table_slots, .slot_count = 1,
                          .item_slots = item_slots, .item_slot_count = 1};
    hh_gc_layout text = {.size = sizeof text, .bytes = sizeof(struct text), .item_bytes = 1};
    hh_gc_layout weak = {.size = sizeof weak, .bytes = 32, .ephemerons = pairs, .ephemeron_count = 1, .weak_slots = (size_t[]){24}, .weak_slot_count = 1};
    hh_gc_layout end = node;
    end.finalizer = finalize;
    heap = (hh_gc *)&options;
    if (hh_gc_new(&options, &heap) != HH_OK) {
        CHECK(heap == NULL && refused > 0);
        allow();
        CHECK(hh_gc_new(&options, &heap) == HH_OK);
        forbid();
    }
    DONE(hh_gc_register(heap, &node, &node_type));
    DONE(hh_gc_register(heap, &table, &table_type));
    DONE(hh_gc_register(heap, &text, &text_type));
    DONE(hh_gc_register(heap, &weak, &weak_type));
    DONE(hh_gc_register(heap, &end, &finalized_type));
}

static struct node *finalizable(size_t number) {
    struct node *node;
    GOT(node, (struct node *)hh_gc_alloc_finalized(heap, finalized_type, 0));
    node->number = number;
    node->next = NULL;
    return node;
}

/* Handles, pinned ones as well, of young and old objects; callbacks; objects that wait to be finalized. */
static void test_roots(void) {
    enum { MANY = 1200 };
    static hh_gc_global kept[MANY], pinned[MANY];
    make_heap(0, 0);
    for (size_t n = 0; n < MANY; n++) {
        struct node *node = new_node(n, NULL);
        HH_GC_ROOTS(heap, node);
        GOT(kept[n], hh_gc_keep(heap, node));
        GOT(pinned[n], n % 2 ? hh_gc_pin(heap, node) : hh_gc_pin(heap, hh_gc_get(heap, kept[n / 2])));
        if (n % 8 == 0)
            finalizable(n);
        if (n % 50 == 0) {
            DONE(hh_gc_add_roots(heap, name_elsewhere, elsewhere));
            elsewhere[n / 50] = new_node(n, NULL);
            DONE(hh_gc_finalize(heap, elsewhere[n / 50]));
        }
        if (n % 300 == 299)
            hh_gc_collect(heap);
    }
    hh_gc_collect(heap);
    for (size_t n = 0; n < MANY; n++) {
        struct node *pin = hh_gc_get(heap, pinned[n]);
        CHECK(((struct node *)hh_gc_get(heap, kept[n]))->number == n && pin->number == (n % 2 ? n : n / 2));
        hh_gc_release(heap, kept[n]);
        if (n % 60 == 0)
            hh_gc_collect_minor(heap);
        CHECK(hh_gc_get(heap, pinned[n]) == pin);
    }
    size_t handed_out = hh_gc_run_finalizers(heap);
    CHECK(handed_out == finalized && finalized == MANY / 8);
    allow();
    hh_gc_collect(heap);
    verified();
    for (size_t n = 0; n < MANY; n++)
        hh_gc_release(heap, pinned[n]);
    for (size_t n = 0; n < MANY; n += 50) {
        CHECK(elsewhere[n / 50]->number == n);
        hh_gc_remove_roots(heap, name_elsewhere, elsewhere);
    }
    hh_gc_collect(heap);
    CHECK(hh_gc_finalizable(heap) == MANY / 50 && hh_gc_run_finalizers(heap) == MANY / 50);
    hh_gc_collect(heap);
    CHECK(numbers().old == 0);
    verified();
    hh_gc_drop(heap);
}

/* Words of a range are the only ones that know many objects, young and old, in collections of all kinds. */
static void test_scans(void) {
    enum { ROUNDS = 6, EACH = sizeof words / sizeof *words / ROUNDS };
    make_heap(8 << 20, 0);
    for (int n = 0; n < 5; n++)
        DONE(hh_gc_add_scan(heap, name_words, words));
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t n = 0; n < EACH; n++) {
            struct node *node;
            GOT(node, (struct node *)(n % 8 ? hh_gc_alloc(heap, node_type, sizeof *node) : hh_gc_alloc_old(heap, node_type, 0)));
            node->number = n;
            node->next = NULL;
            words[round * EACH + n] = n % 3 ? (void *)node : (char *)node + 9;
        }
        if (round % 2)
            hh_gc_collect(heap);
        else
            hh_gc_collect_minor(heap);
        for (size_t at = 0; at < (round + 1) * EACH; at++) {
            struct node *node = (struct node *)((uintptr_t)words[at] & ~(uintptr_t)15);
            CHECK(node->number == at % EACH && node->next == NULL && hh_gc_type_of(node) == node_type);
        }
    }
    allow();
    for (int n = 0; n < 3; n++) {
        hh_gc_collect(heap);
        verified();
    }
    CHECK(numbers().old >= ROUNDS * EACH / 2 * sizeof(struct node));
    memset(words, 0, sizeof words);
    hh_gc_collect(heap);
    hh_gc_collect(heap);
    CHECK(numbers().old == 0);
    for (int n = 0; n < 5; n++)
        hh_gc_remove_scan(heap, name_words, words);
    hh_gc_drop(heap);
}

/* A sparse old generation, which is evacuated in steps and at once, with weak slots and ephemerons; told to a
 * hook and a log. */
static void evacuate(uint32_t checks) {
    enum { MANY = 6000 };
    static hh_gc_global pinned[4];
    char text[200];
    make_heap(0, checks);
    hh_gc_set_hook(heap, count_event, &events);
    DONE(hh_gc_set_log(heap, "gc-minor,gc-major,arena:/dev/null", text, sizeof text));
    struct table *table;
    HH_GC_ROOTS(heap, table);
    table = NULL;
    GOT(table, (struct table *)hh_gc_alloc_old(heap, table_type, MANY));
    for (size_t n = 0; n < MANY; n++) {
        struct node *node;
        GOT(node, (struct node *)hh_gc_alloc_old(heap, node_type, 0));
        node->number = n;
        hh_gc_write(heap, table, &table->items[n].node, node);
        table->items[n].number = n;
        if (n % 1500 == 700)
            GOT(pinned[n / 1500], hh_gc_pin(heap, node));
    }
    for (size_t n = 0; n < MANY; n++)
        if (n % 97 != 0)
            hh_gc_write(heap, table, &table->items[n].node, NULL);
    for (int round = 0; round < 5; round++) {
        for (int n = 0; n < 40; n++) {
            void **weak;
            GOT(weak, (void **)hh_gc_zalloc(heap, weak_type, 32));
            HH_GC_ROOTS(heap, weak);
            struct node *key = table->items[97 * n].node;
            struct node *value = new_node((size_t)n, NULL);
            hh_gc_write(heap, weak, &weak[1], table->items[97 * n].node);
            hh_gc_write(heap, weak, &weak[2], value);
            hh_gc_write(heap, weak, &weak[3], value);
            (void)key;
            hh_gc_collect_minor(heap);
            CHECK(((struct node *)weak[2])->number == (size_t)n && hh_gc_weak(heap, &weak[3]) == weak[2]);
        }
        hh_gc_collect(heap);
        for (size_t n = 0; n < MANY; n += 97)
            CHECK(table->items[n].node->number == n);
    }
    CHECK(events > 100);
    hh_gc_set_hook(heap, NULL, NULL);
    size_t before = events;
    hh_gc_collect(heap);
    CHECK(events == before);
    hh_gc_set_hook(heap, count_event, &events);
    hh_gc_prepare_fork(heap);
    CHECK(events > before);
    allow();
    verified();
    for (int n = 0; n < 4; n++)
        hh_gc_release(heap, pinned[n]);
    table = NULL;
    hh_gc_collect(heap);
    hh_gc_collect(heap);
    CHECK(numbers().old == 0);
    hh_gc_drop(heap);
}

static void test_evacuation(void) { evacuate(0); }
static void test_moving(void) { evacuate(HH_GC_MOVING); }

/* Logs that are none, and one whose name is long. */
static void test_logs(void) {
    enum { LONG = 1000 };
    char text[200], name[LONG + 40];
    make_heap(0, 0);
    static const char *const wrong[] = {"gc-minor", "gc-minr:/dev/null", "gc-minor:/nowhere/at/all", "gc-minor:/nowhere/\xFF"};
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        long before = refused;
        memset(text, 'x', sizeof text);
        int status = hh_gc_set_log(heap, wrong[n], text, sizeof text);
        if (status == HH_NO_MEMORY) {
            CHECK(refused > before && strstr(text, "memory") != NULL);
            allow();
            status = hh_gc_set_log(heap, wrong[n], text, sizeof text);
            forbid();
        }
        CHECK(status == HH_BAD_LOG);
        CHECK(strstr(text, n == 0 ? "no file is named" : n == 1 ? "no section \"gc-minr\"" : n == 2 ? "/nowhere/at/all cannot be written: No such file" : "cannot be written") != NULL);
    }
    strcpy(name, "gc-minor:");
    while (strlen(name) < LONG)
        strcat(name, "/../dev/..");
    strcat(name, "/dev/null");
    DONE(hh_gc_set_log(heap, name, text, sizeof text));
    hh_gc_collect(heap);
    DONE(hh_gc_set_log(heap, NULL, text, sizeof text));
    hh_gc_drop(heap);
}

static void *in_thread(void *block) {
    char *mine;
    GOT(mine, (char *)hh_malloc(100));
    fill(mine, 100, 3);
    hh_free(block);
    return mine;
}

/* The object heap needs no block of malloc's: what is refused is the C library's, for a thread. */
static void test_blocks(void) {
    enum { MANY = 3000 };
    static char *blocks[MANY];
    hh_heap *own;
    pthread_t thread;
    void *theirs = NULL;
    GOT(own, hh_heap_new(NULL));
    for (size_t n = 0; n < MANY; n++) {
        size_t size = 1 + n * 37 % 5000;
        if (n % 3 == 0)
            GOT(blocks[n], (char *)hh_malloc(size));
        else if (n % 3 == 1)
            GOT(blocks[n], (char *)hh_heap_alloc(own, size));
        else
            GOT(blocks[n], (char *)hh_aligned_alloc(256, size));
        fill(blocks[n], size, (unsigned)n);
    }
    for (size_t n = 0; n < MANY; n += 2) {
        size_t size = 1 + n * 37 % 5000;
        CHECK(is_filled(blocks[n], size, (unsigned)n));
        char *longer;
        GOT(longer, (char *)hh_realloc(blocks[n], size * 3));
        CHECK(is_filled(longer, size, (unsigned)n));
        blocks[n] = longer;
    }
    hh_options options = HH_OPTIONS_INIT;
    options.decay = 1000000000;
    CHECK(hh_configure(&options) == HH_OK);
    if (pthread_create(&thread, NULL, in_thread, blocks[0]) == 0) {
        CHECK(pthread_join(thread, &theirs) == 0 && is_filled(theirs, 100, 3));
        hh_free(theirs);
    } else {
        hh_free(blocks[0]);
    }
    for (size_t n = 1; n < MANY; n++)
        hh_free(blocks[n]);
    hh_heap_trim(own);
    hh_heap_drop(own);
    hh_give_back();
    hh_measure();
    hh_stats_t stats = {.size = sizeof stats};
    CHECK(hh_stats(&stats) == HH_OK && hh_stats_json(NULL, 0) > 1000);
}

static const struct section sections[] = {SECTION(roots),  SECTION(scans), SECTION(evacuation),
                                          SECTION(moving), SECTION(logs),  SECTION(blocks)};

/* Each section asks for less often. */
#define MOST 20000

int main(int count, char **arguments) {
    CHECK(count == 3);
    only_one = strcmp(arguments[2], "all") != 0;
#ifndef WRAPPED
    pages_too = strcmp(arguments[2], "pages") == 0;
#endif
    const struct section *section = NULL;
    for (size_t n = 0; n < sizeof sections / sizeof *sections; n++)
        if (strcmp(arguments[1], sections[n].name) == 0)
            section = &sections[n];
    CHECK(section != NULL);
    for (long n = 0; n < MOST; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            left = n;
            section->run();
            left = -1;
            _exit(refused > 0 ? 0 : 42);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 42) {
            printf("%ld\n", n);
            return 0;
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "%s, %s refused after %ld requests: status %#x\n", section->name, arguments[2], n, (unsigned)status);
            return 1;
        }
    }
    fprintf(stderr, "%s: refused %d times\n", section->name, MOST);
    return 1;
}
