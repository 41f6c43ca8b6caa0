/* Wrong uses of the garbage-collected heap. Each must end the process by SIGABRT with one line: gc_mistakes KIND. */
#include "check.h"

#include <hugeheap_gc.h>
#include <stdint.h>

struct node {
    hh_gc_header header;
    struct node *next;
    size_t number;
};

static hh_gc *heap;
static hh_gc_type type;

static void make(hh_gc_options options) {
    static const size_t slot = offsetof(struct node, next);
    hh_gc_layout layout = {.size = sizeof layout, .bytes = sizeof(struct node), .slots = &slot, .slot_count = 1};
    CHECK(hh_gc_new(&options, &heap) == HH_OK && hh_gc_register(heap, &layout, &type) == HH_OK);
}

static struct node *new_node(void) {
    struct node *node = hh_gc_zalloc(heap, type, sizeof *node);
    CHECK(node != NULL);
    return node;
}

/* Checks: a reference is written without the barrier. */
static void no_barrier(void) {
    struct node *old = new_node();
    HH_GC_ROOTS(heap, old);
    hh_gc_collect(heap);
    old->next = new_node();
    hh_gc_collect_minor(heap);
}

/* Checks: an object is used after a call that collects, without having been a root. */
static void no_root(void) {
    struct node *kept = NULL;
    HH_GC_ROOTS(heap, kept);
    kept = new_node();
    struct node *forgotten = new_node();
    hh_gc_collect_minor(heap);
    HH_GC_SET(heap, kept, next, forgotten);
    new_node();
}

/* Checks: a slot is not written, of an object where others were before. */
static void never_written(void) {
    for (size_t n = 0; n < 5000; n++)
        new_node();
    hh_gc_collect_minor(heap);
    struct node *node = hh_gc_alloc(heap, type, sizeof *node);
    HH_GC_ROOTS(heap, node);
    hh_gc_collect_minor(heap);
}

/* Checks: a root keeps what it never should have. */
static void wild_root(void) {
    void *root = (void *)(uintptr_t)0x10000;
    HH_GC_ROOTS(heap, root);
    hh_gc_collect_minor(heap);
}

/* Checks: a write beyond the end of an object. */
static void overwritten(void) {
    struct node *one = hh_gc_alloc_old(heap, type, 0);
    HH_GC_ROOTS(heap, one);
    struct node *other = hh_gc_alloc_old(heap, type, 0);
    HH_GC_ROOTS(heap, other);
    struct node *first = one < other ? one : other;
    memset(first, 0x55, 2 * hh_gc_round(sizeof *first));
    hh_gc_collect(heap);
}

static hh_gc_type array_type(void) {
    static const size_t slot = 0;
    hh_gc_layout layout = {.size = sizeof layout, .bytes = HH_GC_VARIABLE_BYTES, .item_bytes = 8, .item_slots = &slot, .item_slot_count = 1};
    CHECK(hh_gc_register(heap, &layout, &type) == HH_OK);
    return type;
}

/* Without checks: the length of an object in the nursery is overwritten. */
static void grown(void) {
    size_t *array = hh_gc_zalloc_items(heap, array_type(), HH_GC_VARIABLE_BYTES, 8, 10);
    HH_GC_ROOTS(heap, array);
    array[1] = 1000000;
    hh_gc_collect_minor(heap);
}

/* The same with one for which the bytes wrap. */
static void grown_beyond(void) {
    size_t *array = hh_gc_zalloc_items(heap, array_type(), HH_GC_VARIABLE_BYTES, 8, 10);
    HH_GC_ROOTS(heap, array);
    array[1] = ((size_t)1 << 61) + 1;
    hh_gc_collect_minor(heap);
}

/* Checks: the same of an old object, before the collection goes along what is no item of it. */
static void grown_old(void) {
    size_t *array = hh_gc_alloc_old(heap, array_type(), 10);
    HH_GC_ROOTS(heap, array);
    array[1] = 1000000;
    hh_gc_collect(heap);
}

/* Without checks, of an old object: marking went along what is no item of it until a fault. */
static void grown_marked(void) {
    size_t *array = hh_gc_alloc_old(heap, array_type(), 10);
    HH_GC_ROOTS(heap, array);
    hh_gc_collect_minor(heap);
    array[1] = 1000000;
    hh_gc_collect(heap);
}

/* A minor collection did, of one that was written. */
static void grown_written(void) {
    size_t *array = hh_gc_alloc_old(heap, array_type(), 10);
    HH_GC_ROOTS(heap, array);
    hh_gc_collect_minor(heap);
    hh_gc_write(heap, array, &array[2], hh_gc_zalloc_items(heap, type, HH_GC_VARIABLE_BYTES, 8, 10));
    array[1] = 1000000;
    hh_gc_collect_minor(heap);
}

/* With one for which the bytes wrap marking saw too few of its items. */
static void grown_old_beyond(void) {
    size_t *array = hh_gc_alloc_old(heap, array_type(), 10);
    HH_GC_ROOTS(heap, array);
    array[1] = ((size_t)1 << 61) + 1;
    hh_gc_collect(heap);
}

/* One with heap pages of its own, which is marked in parts. */
static void grown_large(void) {
    size_t *array = hh_gc_alloc_old(heap, array_type(), 100000);
    HH_GC_ROOTS(heap, array);
    hh_gc_collect_minor(heap);
    array[1] = 1000000000;
    hh_gc_collect(heap);
}

/* Without checks. */
static void wrong_size(void) {
    for (size_t n = 0; n < 100000; n++)
        CHECK(hh_gc_zalloc(heap, type, 64) != NULL);
}

/* Without checks, and from the window: each object was on top of the one before. */
static void no_size(void) { CHECK(hh_gc_alloc(heap, type, 0) != NULL); }

static void wrapped_size(void) {
    new_node();
    /* Not a constant, of which the compiler warns. */
    volatile size_t bytes = SIZE_MAX;
    hh_gc_window window = hh_gc_open(heap);
    CHECK(hh_gc_alloc_in(heap, &window, type, bytes) != NULL);
    hh_gc_close(heap, window);
}

static void wrong_type(void) { CHECK(hh_gc_alloc_old(heap, type + 1, 0) != NULL); }

static void released(void) {
    hh_gc_global global = hh_gc_keep(heap, new_node());
    hh_gc_release(heap, global);
    CHECK(hh_gc_keep(heap, new_node()) != 0);
    CHECK(hh_gc_get(heap, global) != NULL);
}

static void released_twice(void) {
    hh_gc_global global = hh_gc_pin(heap, new_node());
    hh_gc_release(heap, global);
    hh_gc_release(heap, global);
}

static void of_another_heap(void) {
    hh_gc_global global = hh_gc_keep(heap, new_node());
    make((hh_gc_options)HH_GC_OPTIONS_INIT);
    CHECK(hh_gc_keep(heap, new_node()) != 0);
    CHECK(hh_gc_get(heap, global) != NULL);
}

static void open_collect(void) {
    hh_gc_window window = hh_gc_open(heap);
    hh_gc_collect(heap);
    hh_gc_close(heap, window);
}

static void open_alloc(void) {
    hh_gc_window window = hh_gc_open(heap);
    new_node();
    hh_gc_close(heap, window);
}

/* In what a loop calls, say. */
static void opened_twice(void) {
    hh_gc_window window = hh_gc_open(heap);
    CHECK(hh_gc_alloc_in(heap, &window, type, sizeof(struct node)) != NULL);
    hh_gc_window inner = hh_gc_open(heap);
    hh_gc_close(heap, inner);
    hh_gc_close(heap, window);
}

static void closed_twice(void) {
    hh_gc_window window = hh_gc_open(heap);
    hh_gc_close(heap, window);
    new_node();
    hh_gc_close(heap, window);
}

static void no_finalizer(void) { CHECK(hh_gc_alloc_finalized(heap, type, 0) != NULL); }

static void length_without_items(void) { CHECK(hh_gc_alloc_old(heap, type, 5) != NULL); }

static void collects(void *data, hh_gc_visitor *visitor) {
    CHECK(data == NULL && visitor != NULL);
    hh_gc_collect(heap);
}

/* Into the window, which has room. */
static void allocates(void *data, hh_gc_visitor *visitor) {
    CHECK(data == NULL && visitor != NULL);
    new_node();
}

static void adds(void *object, hh_gc_visitor *visitor) {
    CHECK(object != NULL && visitor != NULL && hh_gc_add_roots(heap, collects, NULL) == HH_OK);
}

static void root_collects(void) {
    CHECK(hh_gc_add_roots(heap, collects, NULL) == HH_OK);
    hh_gc_collect_minor(heap);
}

static void root_allocates(void) {
    CHECK(hh_gc_add_roots(heap, allocates, NULL) == HH_OK);
    new_node();
    hh_gc_collect(heap);
}

static void root_in_verify(void) {
    CHECK(hh_gc_add_roots(heap, allocates, NULL) == HH_OK);
    CHECK(hh_gc_verify(heap, NULL, 0) == HH_OK);
}

static void trace_adds(void) {
    hh_gc_layout layout = {.size = sizeof layout, .bytes = sizeof(struct node), .trace = adds};
    CHECK(hh_gc_register(heap, &layout, &type) == HH_OK);
    struct node *node = new_node();
    HH_GC_ROOTS(heap, node);
    hh_gc_collect(heap);
}

static struct node *known;

/* What changes the heap and is not an allocation. */
static void finalizes(void *data, hh_gc_visitor *visitor) {
    CHECK(data == NULL && visitor != NULL && hh_gc_finalize(heap, known) == HH_OK);
}

static void takes(void *data, hh_gc_visitor *visitor) {
    CHECK(data == NULL && visitor != NULL && hh_gc_next_finalizable(heap) == NULL);
}

static void hashes(void *data, hh_gc_visitor *visitor) { CHECK(data == NULL && visitor != NULL && hh_gc_hash(heap, known) != 0); }

static void protects(void *data, const hh_gc_event *event) {
    CHECK(data == NULL && event != NULL && hh_gc_protect(heap, known, HH_GC_FORBID_WRITE, NULL) == HH_OK);
}

static void unprotects(void *data, const hh_gc_event *event) { CHECK(data == NULL && event != NULL && hh_gc_unprotect(heap, known) == 0); }

static void collect_with(hh_gc_roots roots) {
    known = new_node();
    HH_GC_ROOTS(heap, known);
    hh_gc_collect(heap);
    CHECK(hh_gc_add_roots(heap, roots, NULL) == HH_OK);
    hh_gc_collect(heap);
}

static void collect_told(hh_gc_hook hook) {
    known = new_node();
    HH_GC_ROOTS(heap, known);
    hh_gc_collect(heap);
    hh_gc_set_hook(heap, hook, NULL);
    hh_gc_collect(heap);
}

static void root_finalizes(void) { collect_with(finalizes); }

static void root_takes(void) { collect_with(takes); }

static void root_hashes(void) { collect_with(hashes); }

static void hook_protects(void) { collect_told(protects); }

static void hook_unprotects(void) { collect_told(unprotects); }

/* The other verification calls trace functions as well. */
static void trace_in_barriers(void) {
    hh_gc_layout layout = {.size = sizeof layout, .bytes = sizeof(struct node), .trace = adds};
    CHECK(hh_gc_register(heap, &layout, &type) == HH_OK);
    struct node *node = hh_gc_alloc_old(heap, type, 0);
    HH_GC_ROOTS(heap, node);
    CHECK(hh_gc_verify_barriers(heap, NULL, 0) == HH_OK);
}

static void not_open(void) {
    hh_gc_window window = {0, 0};
    CHECK(hh_gc_alloc_in(heap, &window, type, sizeof(struct node)) != NULL);
}

static void finalizer(hh_gc *of, void *object) { CHECK(of != NULL && object != NULL); }

static void not_finalized(void) {
    hh_gc_layout layout = {.size = sizeof layout, .bytes = sizeof(struct node), .finalizer = finalizer};
    CHECK(hh_gc_register(heap, &layout, &type) == HH_OK);
    new_node();
}

int main(int count, char **words) {
#define KIND(name, checks, stress) {#name, name, checks, stress}
    static const struct {
        const char *name;
        void (*run)(void);
        uint32_t checks, stress;
    } kinds[] = {
        KIND(no_barrier, HH_GC_BARRIERS, 0), KIND(no_root, HH_GC_POISON, 1), KIND(never_written, HH_GC_VERIFY | HH_GC_POISON, 0), KIND(wild_root, HH_GC_VERIFY, 0),
        KIND(overwritten, HH_GC_VERIFY, 0), KIND(grown, 0, 0), KIND(grown_beyond, 0, 0),
        KIND(grown_old, HH_GC_BARRIERS, 0), KIND(grown_marked, 0, 0), KIND(grown_written, 0, 0), KIND(grown_old_beyond, 0, 0), KIND(grown_large, 0, 0),
        KIND(wrong_size, 0, 0), KIND(no_size, 0, 0), KIND(wrapped_size, 0, 0), KIND(wrong_type, 0, 0), KIND(released, 0, 0), KIND(released_twice, 0, 0),
        KIND(of_another_heap, 0, 0), KIND(open_collect, 0, 0), KIND(open_alloc, 0, 0), KIND(not_open, 0, 0), KIND(not_finalized, 0, 0),
        KIND(opened_twice, 0, 0), KIND(closed_twice, 0, 0), KIND(no_finalizer, 0, 0), KIND(length_without_items, 0, 0),
        KIND(root_collects, 0, 0), KIND(root_allocates, 0, 0), KIND(root_in_verify, 0, 0), KIND(trace_adds, 0, 0),
        KIND(root_finalizes, 0, 0), KIND(root_takes, 0, 0), KIND(root_hashes, 0, 0), KIND(hook_protects, 0, 0), KIND(hook_unprotects, 0, 0),
        KIND(trace_in_barriers, 0, 0),
    };
    for (unsigned n = 0; count == 1 && n < sizeof kinds / sizeof kinds[0]; n++)
        puts(kinds[n].name);
    for (unsigned n = 0; count == 2 && n < sizeof kinds / sizeof kinds[0]; n++) {
        if (strcmp(words[1], kinds[n].name) == 0) {
            hh_gc_options options = HH_GC_OPTIONS_INIT;
            options.checks = kinds[n].checks;
            options.stress = kinds[n].stress;
            make(options);
            kinds[n].run();
            puts("survived");
            return 0;
        }
    }
    return count == 1 ? 0 : 2;
}
