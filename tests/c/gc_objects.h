/* What the programs about hugeheap_gc.h share: a heap with the settings of the environment's CHECKS (verify,
 * barriers, poison; as a number) and STRESS, types, lists whose contents are known, and the choice of a
 * section: PROGRAM SECTION. */
#ifndef GC_OBJECTS_H
#define GC_OBJECTS_H

#include "check.h"

#include <hugeheap_gc.h>

struct node {
    hh_gc_header header;
    struct node *next;
    size_t number;
};

/* Items of two words, the first of which is a slot; behind the length there is one more slot. */
struct table {
    hh_gc_header header;
    size_t length;
    struct node *first;
    struct item {
        struct node *node;
        size_t number;
    } items[];
};

struct text {
    hh_gc_header header;
    size_t length;
    char bytes[];
};

static hh_gc *heap;
static hh_gc_type node_type, table_type, text_type, traced_type;

/* `next` is a slot when `number` is even. */
static inline void trace(void *object, hh_gc_visitor *visitor) {
    struct node *node = object;
    if (node->number % 2 == 0)
        hh_gc_visit(visitor, &node->next);
}

static inline hh_gc_options settings(void) {
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    const char *checks = getenv("CHECKS"), *stress = getenv("STRESS");
    options.checks = checks == NULL ? 0 : (uint32_t)atoi(checks);
    options.stress = stress == NULL ? 0 : (uint32_t)atoi(stress);
    options.nursery = 128 << 10;
    return options;
}

static inline hh_gc_type registered(hh_gc_layout layout) {
    hh_gc_type type;
    layout.size = sizeof layout;
    CHECK(hh_gc_register(heap, &layout, &type) == HH_OK);
    return type;
}

static inline void make(const hh_gc_options *options) {
    static const size_t node_slots[] = {offsetof(struct node, next)}, table_slots[] = {offsetof(struct table, first)};
    static const size_t item_slots[] = {offsetof(struct item, node)};
    CHECK(hh_gc_new(options, &heap) == HH_OK);
    node_type = registered((hh_gc_layout){.bytes = sizeof(struct node), .slots = node_slots, .slot_count = 1});
    table_type = registered((hh_gc_layout){.bytes = sizeof(struct table), .item_bytes = sizeof(struct item), .slots = table_slots,
                                           .slot_count = 1, .item_slots = item_slots, .item_slot_count = 1});
    text_type = registered((hh_gc_layout){.bytes = sizeof(struct text), .item_bytes = 1});
    traced_type = registered((hh_gc_layout){.bytes = sizeof(struct node), .trace = trace});
}

static inline hh_gc_stats_t numbers(void) {
    hh_gc_stats_t stats;
    memset(&stats, 0xFF, sizeof stats);
    stats.size = sizeof stats;
    CHECK(hh_gc_stats(heap, &stats) == HH_OK && stats.size == sizeof stats && stats.schema == 1);
    return stats;
}

static inline void verified(void) {
    char text[200];
    if (hh_gc_verify(heap, text, sizeof text) != HH_OK || hh_gc_verify_barriers(heap, text, sizeof text) != HH_OK) {
        fprintf(stderr, "%s\n", text);
        exit(1);
    }
}

static inline struct node *new_node(size_t number, struct node *next) {
    HH_GC_ROOTS(heap, next);
    struct node *node = hh_gc_alloc(heap, node_type, sizeof *node);
    CHECK(node != NULL && (uintptr_t)node % HH_GC_ALIGN == 0);
    node->number = number;
    node->next = next;
    return node;
}

static inline struct node *list(size_t length) {
    struct node *nodes = NULL;
    for (size_t number = 0; number < length; number++)
        nodes = new_node(number, nodes);
    return nodes;
}

static inline void check_list(const struct node *nodes, size_t length) {
    while (length-- > 0) {
        CHECK(nodes != NULL && nodes->number == length && hh_gc_type_of(nodes) == node_type);
        nodes = nodes->next;
    }
    CHECK(nodes == NULL);
}

static struct node *elsewhere[50];

static inline void name_elsewhere(void *data, hh_gc_visitor *visitor) {
    CHECK(data == (void *)elsewhere);
    hh_gc_visit_row(visitor, elsewhere, 50);
}

/* A section of a program: a test, by its name. */
struct section {
    const char *name;
    void (*run)(void);
};

#define SECTION(name) {#name, test_##name}

/* Runs the section that is named, on a heap of its own: what `main` returns. */
static inline int run_section(const struct section *sections, size_t count, int words, char **word) {
    hh_gc_options options = settings();
    for (size_t n = 0; n < count; n++) {
        if (words == 2 && strcmp(word[1], sections[n].name) == 0) {
            make(&options);
            sections[n].run();
            verified();
            hh_gc_drop(heap);
            return 0;
        }
    }
    return 2;
}

#endif
