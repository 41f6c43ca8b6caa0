/* Where objects are: sizes, the window, many heaps, what happens when memory ends, objects that move,
 * protected pages. */
#include "gc_objects.h"

#include <errno.h>

static void test_sizes(void) {
    struct {
        struct table *table;
        struct text *text;
    } my = {NULL, NULL};
    HH_GC_ROOTS(heap, my);
    static const size_t lengths[] = {0, 1, 2, 15, 16, 17, 500, 509, 510, 511, 512, 5000, 100000};
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        size_t length = lengths[n];
        my.table = hh_gc_zalloc_items(heap, table_type, sizeof *my.table, sizeof my.table->items[0], length);
        CHECK(my.table != NULL && hh_gc_length(my.table) == length && my.table->first == NULL);
        for (size_t item = 0; item < length; item++)
            CHECK(my.table->items[item].node == NULL && my.table->items[item].number == 0);
        struct node *node = new_node(length, NULL);
        HH_GC_SET(heap, my.table, first, node);
        for (size_t item = 0; item < length; item += 97) {
            node = new_node(item, NULL);
            hh_gc_write(heap, my.table, &my.table->items[item].node, node);
            my.table->items[item].number = 16 * item;
        }
        my.text = hh_gc_alloc_items(heap, text_type, sizeof *my.text, 1, length);
        CHECK(my.text != NULL && my.text->length == length);
        fill(my.text->bytes, length, (unsigned)n);
        hh_gc_collect_minor(heap);
        verified();
        CHECK(my.table->first->number == length && is_filled(my.text->bytes, length, (unsigned)n));
        for (size_t item = 0; item < length; item += 97)
            CHECK(my.table->items[item].node->number == item && my.table->items[item].number == 16 * item);
    }
    my.table = hh_gc_alloc_old(heap, table_type, 3);
    CHECK(my.table != NULL && !hh_gc_is_young(heap, my.table) && my.table->length == 3 && my.table->items[2].node == NULL);
    struct node *node = new_node(5, NULL);
    hh_gc_write(heap, my.table, &my.table->items[2].node, node);
    hh_gc_collect(heap);
    CHECK(my.table->items[2].node->number == 5);
}

static void test_window(void) {
    struct node *nodes = NULL;
    HH_GC_ROOTS(heap, nodes);
    struct text *text = NULL;
    HH_GC_ROOTS(heap, text);
    hh_gc_window window = hh_gc_open(heap);
    for (size_t number = 0; number < 20000; number++) {
        struct node *node = hh_gc_alloc_in(heap, &window, node_type, sizeof *node);
        CHECK(node != NULL);
        node->number = number;
        node->next = nodes;
        nodes = node;
        if (number % 1000 == 0) {
            text = hh_gc_alloc_items_in(heap, &window, text_type, sizeof *text, 1, number);
            CHECK(text != NULL && text->length == number);
            fill(text->bytes, number, 3);
        }
    }
    hh_gc_close(heap, window);
    check_list(nodes, 20000);
    CHECK(is_filled(text->bytes, 19000, 3));
    verified();
}

/* Several heaps beside each other. */
static void test_heaps(void) {
    hh_gc *heaps[3];
    hh_gc *first = heap;
    hh_gc_global kept[3];
    hh_gc_options options = settings();
    for (size_t n = 0; n < 3; n++) {
        make(&options);
        heaps[n] = heap;
        kept[n] = hh_gc_keep(heap, list(10000 * n));
    }
    for (size_t n = 0; n < 3; n++) {
        heap = heaps[n];
        check_list(hh_gc_get(heap, kept[n]), 10000 * n);
        verified();
        hh_gc_drop(heap);
    }
    heap = first;
    check_list(list(100), 100);
}

/* Nodes until there is no memory for another: the first refers to the last. Nobody else refers to them afterwards. */
static void leave_circle(void) {
    struct {
        struct node *first, *last;
    } my = {NULL, NULL};
    HH_GC_ROOTS(heap, my);
    for (;;) {
        struct node *node = hh_gc_alloc(heap, node_type, sizeof *node);
        if (node == NULL)
            return;
        node->number = 0;
        node->next = my.last;
        my.last = node;
        if (my.first == NULL)
            my.first = node;
        hh_gc_write(heap, my.first, &my.first->next, node);
    }
}

/* A program goes on after memory ended. */
static void test_exhausted(void) {
    hh_gc_drop(heap);
    hh_gc_options options = settings();
    options.maximum = 1 << 20;
    make(&options);
    struct {
        struct node *list;
        struct table *table;
    } my = {NULL, NULL};
    HH_GC_ROOTS(heap, my);
    for (int round = 0; round < 3; round++) {
        size_t length = 0;
        for (;; length++) {
            struct node *node = hh_gc_alloc(heap, node_type, sizeof *node);
            if (node == NULL)
                break;
            node->number = length;
            node->next = my.list;
            my.list = node;
        }
        CHECK(errno == ENOMEM && length > 20000);
        verified();
        check_list(my.list, length);
        CHECK(hh_gc_alloc_old(heap, table_type, 1000) == NULL && errno == ENOMEM);
        my.list = NULL;
        errno = 0;
        CHECK(hh_gc_alloc_items(heap, table_type, sizeof *my.table, sizeof my.table->items[0], SIZE_MAX / 8) == NULL && errno == ENOMEM);
        my.table = hh_gc_alloc_items(heap, table_type, sizeof *my.table, sizeof my.table->items[0], 10000);
        CHECK(my.table != NULL);
        my.table = NULL;
    }
    /* What dies is a circle through objects that had no room in the old generation. */
    leave_circle();
    CHECK(hh_gc_alloc_old(heap, table_type, 1000) != NULL);
    leave_circle();
    hh_gc_collect(heap);
    hh_gc_stats_t now = numbers();
    CHECK(now.old == 0 && now.held == 0 && now.not_moved > 0);
}

/* What is sparse is moved together; what is pinned stays. */
static void test_evacuation(void) {
    enum { COUNT = 200000, KEPT = 100 };
    struct table *table = hh_gc_zalloc_items(heap, table_type, sizeof *table, sizeof table->items[0], COUNT);
    HH_GC_ROOTS(heap, table);
    for (size_t n = 0; n < COUNT; n++) {
        struct node *node = hh_gc_alloc_old(heap, node_type, 0);
        CHECK(node != NULL);
        node->number = n;
        hh_gc_write(heap, table, &table->items[n].node, node);
    }
    struct node *stays = table->items[1000].node;
    hh_gc_global pinned = hh_gc_pin(heap, stays);
    for (size_t n = 0; n < COUNT; n++)
        if (n % KEPT != 0)
            hh_gc_write(heap, table, &table->items[n].node, NULL);
    hh_gc_collect(heap);
    hh_gc_stats_t now = numbers();
    /* The arena of the pinned one stays as it is. It has few nodes, unless they were moved together before
     * most died: then it is full. */
    const char *checks = getenv("CHECKS");
    size_t stay = checks && strtoul(checks, NULL, 10) & HH_GC_MOVING ? 3 << 20 : 1 << 20;
    CHECK(now.evacuations > 0 && now.moved > 0 && now.freed_pages > 0 && now.held < hh_gc_length(table) * 16 + stay);
    hh_gc_prepare_fork(heap);
    for (size_t n = 0; n < COUNT; n += KEPT)
        CHECK(table->items[n].node->number == n);
    CHECK(table->items[1000].node == stays && hh_gc_get(heap, pinned) == stays);
}

/* Volatile, as the node below: a fault is no call that the compiler knows of. */
static volatile uintptr_t fault_address, fault_start;
static volatile size_t faults;

static bool count_fault(const hh_gc_fault *fault) {
    fault_address = fault->address;
    fault_start = fault->start;
    faults = faults + 1;
    return true;
}

static void test_protection(void) {
    hh_gc_global handle;
    struct node *made = hh_gc_alloc_pinned(heap, node_type, 0, &handle);
    volatile struct node *node = made;
    hh_gc_fault range;
    CHECK(node != NULL);
    hh_gc_set_fault_hook(count_fault);
    CHECK(hh_gc_protect(heap, &range, HH_GC_FORBID_WRITE, NULL) == HH_NOT_OURS && hh_gc_protect(heap, made, 2, NULL) == HH_BAD_FORBID);
    CHECK(hh_gc_protect(heap, made, HH_GC_FORBID_WRITE, &range) == HH_OK && hh_gc_protect(heap, made, HH_GC_FORBID_WRITE, NULL) == HH_PROTECTED);
    CHECK(range.start <= (uintptr_t)node && range.start + range.bytes > (uintptr_t)node && range.bytes % 16384 == 0);
    CHECK(node->number == 0 && faults == 0);
    node->number = 7;
    CHECK(node->number == 7 && faults == 1 && fault_address == (uintptr_t)&node->number && fault_start == range.start);
    node->number = 8;
    CHECK(faults == 1);
    CHECK(hh_gc_protect(heap, made, HH_GC_FORBID_ACCESS, NULL) == HH_OK);
    CHECK(node->number == 8 && faults == 2);
    CHECK(hh_gc_protect(heap, made, HH_GC_FORBID_ACCESS, NULL) == HH_OK);
    CHECK(hh_gc_unprotect(heap, made) == 1 && hh_gc_unprotect(heap, made) == 0 && node->number == 8 && faults == 2);
    hh_gc_set_fault_hook(NULL);
}

int main(int count, char **words) {
    static const struct section sections[] = {SECTION(sizes), SECTION(window), SECTION(heaps), SECTION(exhausted), SECTION(evacuation), SECTION(protection)};
    return run_section(sections, sizeof sections / sizeof sections[0], count, words);
}
