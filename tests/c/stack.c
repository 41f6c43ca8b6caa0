/* Threads with the smallest stack that a program can give them, and all functions of hugeheap.h and
 * hugeheap_gc.h: stack SECTION. */
#include "interface.h"

#include <hugeheap_gc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* What PTHREAD_STACK_MIN is on x86-64 Linux, as a number: newer C libraries ask the kernel, which adds what
 * the processor's registers need. */
enum { SMALL = 16384 };

/* ---- What is called, each as the first of its process and after others ------------------------------------------------ */

static hh_heap *heap;
static void *block;

static void call_malloc(void) { CHECK((block = hh_malloc(100)) != NULL); }
static void call_free(void) { hh_free(block); }
static void call_calloc(void) { CHECK((block = hh_calloc(10, 70)) != NULL && is_zero(block, 700)); }
static void call_aligned_alloc(void) { CHECK((block = hh_aligned_alloc(65536, 30000)) != NULL); }
static void call_realloc(void) {
    static const size_t steps[] = {1, 600, 9000, 300000, 3000000, 40000000, 200};
    block = NULL;
    for (size_t n = 0; n < sizeof steps / sizeof steps[0]; n++)
        CHECK((block = hh_realloc(block, steps[n])) != NULL);
}
static void call_every_size(void) {
    for (size_t n = 0; n < SIZES; n++) {
        CHECK((block = hh_malloc(sizes[n])) != NULL);
        hh_free_sized(block, sizes[n]);
    }
}
/* Pages are taken and given back, spares among them. */
static void call_many(void) {
    enum { MANY = 100000 };
    static void *blocks[MANY];
    for (int n = 0; n < MANY; n++)
        CHECK((blocks[n] = hh_malloc((size_t)n % 3000)) != NULL);
    for (int n = 0; n < MANY; n += 2)
        hh_free(blocks[n]);
    for (int n = 0; n < MANY; n += 2)
        CHECK((blocks[n] = hh_malloc(50)) != NULL);
    for (int n = 0; n < MANY; n++)
        hh_free(blocks[n]);
}
static void call_heap_new(void) { CHECK((heap = hh_heap_new(NULL)) != NULL); }
static void call_heap_alloc(void) {
    for (size_t n = 0; n < SIZES; n++) {
        CHECK((block = hh_heap_alloc(heap, sizes[n])) != NULL);
        hh_heap_free_sized(heap, block, sizes[n]);
        CHECK((block = hh_heap_zalloc(heap, sizes[n])) != NULL);
        CHECK((block = hh_heap_realloc(heap, block, sizes[n], 2 * sizes[n])) != NULL);
        hh_heap_free(heap, block);
    }
}
static void call_heap_trim(void) { hh_heap_trim(heap); }
static void call_heap_drop(void) { hh_heap_drop(heap); }
static void call_give_back(void) { hh_give_back(); }
static void call_measure(void) { hh_measure(); }
static void call_stats(void) {
    static hh_stats_t stats;
    stats.size = sizeof stats;
    CHECK(hh_stats(&stats) == HH_OK);
}
static void call_stats_json(void) {
    static char text[8192];
    CHECK(hh_stats_json(text, sizeof text) < sizeof text);
}
static void call_configure(void) {
    hh_options options = HH_OPTIONS_INIT;
    options.policy = "thp";
    CHECK(hh_configure(&options) == HH_OK);
}
static void call_limit_address_space(void) { hh_limit_address_space((uint64_t)1 << 36); }

/* ---- The same of a garbage-collected heap ------------------------------------------------------------------------------ */

struct node {
    hh_gc_header header;
    struct node *next, *other;
    size_t number;
};

struct table {
    hh_gc_header header;
    size_t length;
    struct node *items[];
};

static hh_gc *gc;
static hh_gc_type node_type, table_type, weak_type, pair_type, ended_type;
/* Roots that no frame of this program has to hold. */
static struct { struct node *list; struct table *table; struct node *weak; } kept;
static size_t ended;

static void name_kept(void *data, hh_gc_visitor *visitor) { hh_gc_visit_row(visitor, data, HH_GC_WORDS(kept)); }
static void end(hh_gc *of, void *object) { ended += of == gc && object != NULL; }
static void listen(void *data, const hh_gc_event *event) { *(size_t *)data += event->size; }

static void call_gc_new(void) {
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    options.nursery = 128 << 10;
    CHECK(hh_gc_new(&options, &gc) == HH_OK);
}
static hh_gc_type registered(hh_gc_layout layout) {
    hh_gc_type type;
    layout.size = sizeof layout;
    CHECK(hh_gc_register(gc, &layout, &type) == HH_OK);
    return type;
}
static void call_gc_register(void) {
    static const size_t slots[] = {offsetof(struct node, next), offsetof(struct node, other)}, item[] = {0};
    static const hh_gc_pair pairs[] = {{offsetof(struct node, next), offsetof(struct node, other)}};
    hh_gc_layout layout = {.bytes = sizeof(struct node), .slots = slots, .slot_count = 2};
    node_type = registered(layout);
    layout.finalizer = end;
    ended_type = registered(layout);
    weak_type = registered((hh_gc_layout){.bytes = sizeof(struct node), .weak_slots = slots, .weak_slot_count = 2});
    pair_type = registered((hh_gc_layout){.bytes = sizeof(struct node), .ephemerons = pairs, .ephemeron_count = 1});
    table_type = registered((hh_gc_layout){.bytes = HH_GC_VARIABLE_BYTES, .item_bytes = 8, .item_slots = item, .item_slot_count = 1});
    kept.list = kept.weak = NULL;
    kept.table = NULL;
    CHECK(hh_gc_add_roots(gc, name_kept, &kept) == HH_OK);
}
/* Makes a list longer, of which each collection finds most alive. */
static void lengthen(size_t count, hh_gc_type type) {
    for (size_t number = 0; number < count; number++) {
        struct node *node = hh_gc_zalloc(gc, type, sizeof *node);
        CHECK(node != NULL);
        node->next = kept.list;
        node->number = number;
        kept.list = node;
    }
}
static void call_gc_alloc(void) {
    lengthen(100000, node_type);
    static const size_t lengths[] = {0, 1, 100, 1020, 2000, 20000, 300000};
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        kept.table = hh_gc_zalloc_items(gc, table_type, HH_GC_VARIABLE_BYTES, 8, lengths[n]);
        CHECK(kept.table != NULL);
        for (size_t item = 0; item < lengths[n]; item += 100)
            hh_gc_write(gc, kept.table, &kept.table->items[item], kept.list);
    }
    CHECK(hh_gc_alloc_old(gc, table_type, 500) != NULL);
    hh_gc_global handle;
    CHECK(hh_gc_alloc_pinned(gc, node_type, 0, &handle) != NULL);
    hh_gc_release(gc, handle);
}
static void call_gc_weak(void) {
    kept.weak = hh_gc_zalloc(gc, weak_type, sizeof *kept.weak);
    CHECK(kept.weak != NULL);
    hh_gc_write(gc, kept.weak, &kept.weak->next, kept.list);
    hh_gc_write(gc, kept.weak, &kept.weak->other, kept.list->next);
    CHECK(hh_gc_weak(gc, &kept.weak->next) == kept.list);
    lengthen(1000, pair_type);
    for (struct node *node = kept.list; node != NULL && node->next != NULL; node = node->next)
        if (hh_gc_type_of(node) == pair_type)
            hh_gc_write(gc, node, &node->other, node->next);
    CHECK(hh_gc_hash(gc, kept.list) != 0);
}
static void call_gc_finalizers(void) {
    for (int n = 0; n < 100; n++) {
        struct node *node = hh_gc_alloc_finalized(gc, ended_type, 0);
        CHECK(node != NULL);
        node->next = node->other = NULL;
    }
    hh_gc_collect(gc);
    CHECK(hh_gc_run_finalizers(gc) >= 100 && ended >= 100);
}
static void call_gc_handles(void) {
    hh_gc_global handle = hh_gc_keep(gc, kept.list), pin = hh_gc_pin(gc, kept.list->next);
    CHECK(handle != 0 && pin != 0);
    hh_gc_collect_minor(gc);
    CHECK(hh_gc_get(gc, handle) == kept.list);
    hh_gc_release(gc, handle);
    hh_gc_release(gc, pin);
}
static void call_gc_collect_minor(void) {
    lengthen(1000, node_type);
    while (hh_gc_collect_minor(gc) != HH_GC_IDLE)
        lengthen(3000, node_type);
}
static void call_gc_collect(void) {
    /* Every arena becomes sparse, and is evacuated. */
    for (struct node *node = kept.list; node != NULL; node = node->next)
        for (int n = 0; n < 9 && node->next != NULL; n++)
            hh_gc_write(gc, node, &node->next, node->next->next);
    hh_gc_collect(gc);
}
static void call_gc_prepare_fork(void) { hh_gc_prepare_fork(gc); }
static void call_gc_verify(void) {
    static char text[200];
    hh_gc_collect_minor(gc);
    CHECK(hh_gc_verify(gc, text, sizeof text) == HH_OK && hh_gc_verify_barriers(gc, text, sizeof text) == HH_OK);
}
static void call_gc_protect(void) {
    CHECK(hh_gc_protect(gc, kept.table, HH_GC_FORBID_WRITE, NULL) == HH_OK);
    hh_gc_collect_minor(gc);
    CHECK(hh_gc_unprotect(gc, kept.table));
}
static void call_gc_events(void) {
    static size_t told;
    static char text[200];
    hh_gc_set_hook(gc, listen, &told);
    CHECK(hh_gc_set_log(gc, "gc-minor,gc-major,arena:/dev/null", text, sizeof text) == HH_OK);
    hh_gc_collect(gc);
    CHECK(hh_gc_set_log(gc, NULL, text, sizeof text) == HH_OK && told > 0);
    hh_gc_set_hook(gc, NULL, NULL);
}
static void call_gc_stats(void) {
    static hh_gc_stats_t stats;
    stats.size = sizeof stats;
    CHECK(hh_gc_stats(gc, &stats) == HH_OK);
}
static void call_gc_stats_json(void) {
    static char text[8192];
    CHECK(hh_gc_stats_json(gc, text, sizeof text) < sizeof text);
}
static void call_gc_drop(void) { hh_gc_drop(gc); }
/* One of the size that the host's caches and limits call for, which grows. */
static void call_gc_default(void) {
    CHECK(hh_gc_new(NULL, &gc) == HH_OK);
    call_gc_register();
    lengthen(1000000, node_type);
    hh_gc_collect(gc);
    hh_gc_drop(gc);
}

/* What the checks of a heap need comes on top. */
static void call_gc_checked(void) {
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    options.nursery = 128 << 10;
    options.checks = HH_GC_VERIFY | HH_GC_BARRIERS | HH_GC_POISON | HH_GC_MOVING | HH_GC_ROTATE;
    options.stress = 1000;
    CHECK(hh_gc_new(&options, &gc) == HH_OK);
    call_gc_register();
    lengthen(20000, node_type);
    hh_gc_collect(gc);
    hh_gc_drop(gc);
}

/* What some need follows from those before them. */
static const struct call {
    const char *name;
    void (*run)(void);
    int may_be_first;
} calls[] = {
    {"hh_malloc", call_malloc, 1},
    {"hh_free", call_free, 0},
    {"hh_calloc", call_calloc, 1},
    {"hh_realloc", call_realloc, 1},
    {"hh_aligned_alloc", call_aligned_alloc, 1},
    {"every size", call_every_size, 1},
    {"many blocks", call_many, 1},
    {"hh_heap_new", call_heap_new, 1},
    {"hh_heap_alloc", call_heap_alloc, 0},
    {"hh_heap_trim", call_heap_trim, 0},
    {"hh_heap_drop", call_heap_drop, 0},
    {"hh_give_back", call_give_back, 1},
    {"hh_measure", call_measure, 1},
    {"hh_stats", call_stats, 1},
    {"hh_stats_json", call_stats_json, 1},
    {"hh_configure", call_configure, 1},
    {"hh_limit_address_space", call_limit_address_space, 1},
    {"hh_gc_new", call_gc_new, 1},
    {"hh_gc_register", call_gc_register, 0},
    {"hh_gc_alloc", call_gc_alloc, 0},
    {"hh_gc_weak, hh_gc_hash", call_gc_weak, 0},
    {"hh_gc_run_finalizers", call_gc_finalizers, 0},
    {"hh_gc_keep, hh_gc_pin", call_gc_handles, 0},
    {"hh_gc_collect_minor", call_gc_collect_minor, 0},
    {"hh_gc_collect", call_gc_collect, 0},
    {"hh_gc_prepare_fork", call_gc_prepare_fork, 0},
    {"hh_gc_verify", call_gc_verify, 0},
    {"hh_gc_protect", call_gc_protect, 0},
    {"hh_gc_set_hook, hh_gc_set_log", call_gc_events, 0},
    {"hh_gc_stats", call_gc_stats, 0},
    {"hh_gc_stats_json", call_gc_stats_json, 0},
    {"hh_gc_drop", call_gc_drop, 0},
    {"hh_gc_new without options, to hh_gc_drop", call_gc_default, 1},
    {"the same with checks", call_gc_checked, 1},
};
enum { CALLS = sizeof calls / sizeof calls[0] };

/* ---- Threads --------------------------------------------------------------------------------------------------------- */

static void start(pthread_t *thread, void *stack, size_t bytes, void *(*body)(void *), void *argument) {
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0);
    if (stack != NULL)
        CHECK(pthread_attr_setstack(&attributes, stack, bytes) == 0);
    else if (pthread_attr_setstacksize(&attributes, bytes) != 0)
        CHECK(pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN)) == 0);
    CHECK(pthread_create(thread, &attributes, body, argument) == 0);
    CHECK(pthread_attr_destroy(&attributes) == 0);
}

static void *call_all(void *first) {
    ((const struct call *)first)->run();
    for (int n = 0; n < CALLS; n++)
        calls[n].run();
    return NULL;
}

static void *call_first(void *first) {
    ((const struct call *)first)->run();
    return NULL;
}

/* A process of its own for each call that may be the first. */
static void each_first(void (*process)(const struct call *)) {
    for (int n = 0; n < CALLS; n++) {
        if (!calls[n].may_be_first)
            continue;
        fflush(stdout);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            process(&calls[n]);
            exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0)
            fprintf(stderr, "%s first: ended with status %d, signal %d\n", calls[n].name, WEXITSTATUS(status), WTERMSIG(status));
        CHECK(status == 0);
    }
}

/* ---- All calls on the smallest stack --------------------------------------------------------------------------------- */

static void small_process(const struct call *first) {
    /* The second finds the heap that the first left, and the third makes one beside it. */
    pthread_t threads[3];
    start(&threads[0], NULL, SMALL, call_all, (void *)(uintptr_t)first);
    CHECK(pthread_join(threads[0], NULL) == 0);
    for (int round = 0; round < 20; round++) {
        start(&threads[1], NULL, SMALL, call_first, (void *)(uintptr_t)&calls[0]);
        start(&threads[2], NULL, SMALL, call_first, (void *)(uintptr_t)&calls[0]);
        CHECK(pthread_join(threads[1], NULL) == 0);
        CHECK(pthread_join(threads[2], NULL) == 0);
    }
}

static void test_small(void) { each_first(small_process); }

/* Maintenance gets no thread, and is done by who frees. */
static void *call_all_refused(void *first) {
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    return call_all(first);
}

static void refused_process(const struct call *first) {
    pthread_t thread;
    if (geteuid() == 0)
        CHECK(setgid(54321) == 0 && setuid(54321) == 0);
    start(&thread, NULL, SMALL, call_all_refused, (void *)(uintptr_t)first);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void test_refused(void) { each_first(refused_process); }

/* What is said of a mistake needs no more either. */
static void *free_twice(void *unused) {
    call_malloc();
    call_free();
    call_free();
    return unused;
}

static void test_mistake(void) {
    pthread_t thread;
    start(&thread, NULL, SMALL, free_twice, NULL);
    pthread_join(thread, NULL);
}

/* ---- How much each needs --------------------------------------------------------------------------------------------- */

enum { DEEP = 256 << 10, PAINT = 0xA5 };
static unsigned char *deep;

/* All below the caller's frame but for what this needs itself. */
__attribute__((noinline)) static void paint(void) {
    volatile unsigned char *end = (unsigned char *)__builtin_frame_address(0) - 64;
    for (volatile unsigned char *at = deep; at < end; at++)
        *at = PAINT;
}

static size_t used_below(const unsigned char *top) {
    const unsigned char *at = deep;
    while (at < top && *at == PAINT)
        at++;
    return (size_t)(top - at);
}

__attribute__((noinline)) static size_t depth_of(const struct call *call) {
    paint();
    call->run();
    return used_below(__builtin_frame_address(0));
}

static void *measure_first(void *call) {
    printf("first: %s: %zu\n", ((const struct call *)call)->name, depth_of(call));
    return NULL;
}

static void *measure_all(void *unused) {
    (void)unused;
    for (int n = 0; n < CALLS; n++)
        printf("%s: %zu\n", calls[n].name, depth_of(&calls[n]));
    /* The thread's end. */
    paint();
    return NULL;
}

static void deep_process(void *(*body)(void *), const struct call *call) {
    pthread_t thread;
    deep = mmap(NULL, DEEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(deep != MAP_FAILED);
    memset(deep, PAINT, DEEP);
    start(&thread, deep, DEEP, body, (void *)(uintptr_t)call);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void deep_first(const struct call *first) { deep_process(measure_first, first); }

static void test_depth(void) {
    each_first(deep_first);
    deep_process(measure_all, NULL);
    printf("thread, with its end: %zu\n", used_below(deep + DEEP));
}

MAIN({"small", test_small}, {"refused", test_refused}, {"mistake", test_mistake}, {"depth", test_depth})
