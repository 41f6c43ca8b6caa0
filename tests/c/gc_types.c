/* What objects are: traced types, arrays in parts, weak references, finalizers, layouts that are refused. */
#include "gc_objects.h"

static void test_traced(void) {
    struct node *node = NULL;
    HH_GC_ROOTS(heap, node);
    for (size_t number = 0; number < 2; number++) {
        struct node *next = list(number + 1);
        HH_GC_ROOTS(heap, next);
        node = hh_gc_zalloc(heap, traced_type, sizeof *node);
        CHECK(node != NULL);
        node->number = number;
        /* An odd one has a number there, which nobody follows. */
        node->next = number == 0 ? next : (struct node *)(uintptr_t)4096;
        hh_gc_collect(heap);
        if (number == 0)
            check_list(node->next, 1);
        else
            CHECK((uintptr_t)node->next == 4096);
    }
}

static size_t asked;

/* All items are slots; what the collector asks for is counted. */
static void trace_part(void *object, void *from, void *to, hh_gc_visitor *visitor) {
    asked += (size_t)((char *)to - (char *)from);
    CHECK((char *)object <= (char *)from && from <= to);
    hh_gc_visit_row_in(visitor, (char *)object + HH_GC_VARIABLE_BYTES, hh_gc_length(object), from, to);
}

/* A large array, small ones and an empty one, whose slots a function names part by part. */
static void test_parts(void) {
    enum { MANY = 40000 };
    hh_gc_type type = registered((hh_gc_layout){.bytes = HH_GC_VARIABLE_BYTES, .item_bytes = sizeof(void *), .trace_part = trace_part});
    static const size_t lengths[] = {MANY, 0, 1, 100};
    struct {
        hh_gc_header header;
        size_t length;
        struct node *items[];
    } *arrays[4] = {NULL};
    HH_GC_ROOTS(heap, arrays);
    for (size_t n = 0; n < 4; n++) {
        arrays[n] = hh_gc_zalloc_items(heap, type, HH_GC_VARIABLE_BYTES, sizeof(void *), lengths[n]);
        CHECK(arrays[n] != NULL);
        for (size_t item = 0; item < lengths[n]; item += 999) {
            struct node *next = list(item % 7);
            hh_gc_write(heap, arrays[n], &arrays[n]->items[item], next);
        }
    }
    hh_gc_collect(heap);
    /* One write, one small part; the checks and a major collection look into more. */
    while (hh_gc_collect_minor(heap) != HH_GC_IDLE) {
    }
    struct node *next = list(3);
    hh_gc_write(heap, arrays[0], &arrays[0]->items[MANY - 1], next);
    asked = 0;
    CHECK(hh_gc_collect_minor(heap) == HH_GC_IDLE);
    CHECK(asked >= sizeof(void *) && (asked <= 1024 || settings().checks != 0 || settings().stress != 0));
    hh_gc_collect(heap);
    check_list(arrays[0]->items[MANY - 1], 3);
    for (size_t n = 0; n < 4; n++)
        for (size_t item = 0; item < lengths[n]; item += 999)
            check_list(arrays[n]->items[item], item % 7);
}

struct weak {
    hh_gc_header header;
    struct node *weak;
    struct node *key, *value;
    size_t number;
};

static size_t finalized;

/* They come in the order in which they were made; every tenth is kept. */
static void finalizer(hh_gc *of, void *object) {
    CHECK(of == heap && ((struct weak *)object)->number == finalized++);
    if (finalized % 10 == 1) {
        elsewhere[finalized / 10] = object;
        list(100);
    }
}

static void test_weak(void) {
    static const size_t slot = offsetof(struct weak, weak);
    static const hh_gc_pair pair = {offsetof(struct weak, key), offsetof(struct weak, value)};
    hh_gc_layout layout = {.size = sizeof layout, .bytes = sizeof(struct weak), .weak_slots = &slot, .weak_slot_count = 1, .ephemerons = &pair,
                           .ephemeron_count = 1};
    hh_gc_type weak_type = registered(layout), finalized_type;
    layout.finalizer = finalizer;
    finalized_type = registered(layout);
    struct {
        struct weak *weak;
        struct node *node;
    } my = {NULL, NULL};
    HH_GC_ROOTS(heap, my);
    my.weak = hh_gc_zalloc(heap, weak_type, sizeof *my.weak);
    CHECK(my.weak != NULL);
    my.node = list(10);
    hh_gc_write(heap, my.weak, &my.weak->weak, my.node);
    hh_gc_write(heap, my.weak, &my.weak->key, my.node);
    struct node *value = list(20);
    hh_gc_write(heap, my.weak, &my.weak->value, value);
    uint32_t weak_hash = hh_gc_hash(heap, my.weak), node_hash = hh_gc_hash(heap, my.node);
    CHECK(weak_hash != 0 && node_hash != 0 && weak_hash != node_hash);
    hh_gc_collect(heap);
    CHECK(hh_gc_weak(heap, &my.weak->weak) == my.node && my.weak->key == my.node);
    check_list(my.weak->value, 20);
    CHECK(hh_gc_hash(heap, my.weak) == weak_hash && hh_gc_hash(heap, my.node) == node_hash);
    my.node = NULL;
    hh_gc_collect(heap);
    CHECK(hh_gc_weak(heap, &my.weak->weak) == NULL && my.weak->weak == NULL && my.weak->key == NULL && my.weak->value == NULL);
    CHECK(numbers().cleared >= 2);

    CHECK(hh_gc_run_finalizers(heap) == 0);
    CHECK(hh_gc_add_roots(heap, name_elsewhere, elsewhere) == HH_OK);
    for (size_t n = 0; n < 100; n++) {
        struct weak *object = hh_gc_alloc_finalized(heap, finalized_type, 0);
        CHECK(object != NULL);
        object->number = n;
        object->weak = object->key = object->value = NULL;
    }
    hh_gc_collect(heap);
    CHECK(hh_gc_run_finalizers(heap) == 100 && finalized == 100 && numbers().finalized == 100);
    hh_gc_collect(heap);
    CHECK(hh_gc_run_finalizers(heap) == 0);
    for (size_t n = 0; n < 10; n++)
        CHECK(((struct weak *)(void *)elsewhere[n])->number == 10 * n);
    memset(elsewhere, 0, sizeof elsewhere);
}

/* Objects of any type, taken one by one: the first of a list before the others, each once for each time that
 * it was registered. */
static void test_one_by_one(void) {
    struct node *node = list(3);
    HH_GC_ROOTS(heap, node);
    for (struct node *each = node; each != NULL; each = each->next)
        CHECK(hh_gc_finalize(heap, each) == HH_OK);
    hh_gc_collect(heap);
    CHECK(hh_gc_finalizable(heap) == 0 && hh_gc_next_finalizable(heap) == NULL);
    node = NULL;
    for (size_t number = 3; number-- > 0;) {
        hh_gc_collect(heap);
        CHECK(hh_gc_finalizable(heap) == 1);
        node = hh_gc_next_finalizable(heap);
        CHECK(node != NULL && hh_gc_finalizable(heap) == 0 && hh_gc_next_finalizable(heap) == NULL);
        check_list(node, number + 1);
        /* It is an object like any other while it is in a root. */
        hh_gc_collect(heap);
        check_list(node, number + 1);
        node = NULL;
    }
    hh_gc_collect(heap);
    CHECK(hh_gc_finalizable(heap) == 0 && numbers().old == 0 && numbers().finalized == 3);
    /* Two registrations; its type has no finalizer, so hh_gc_run_finalizers only lets it go. */
    node = list(1);
    CHECK(hh_gc_finalize(heap, node) == HH_OK && hh_gc_finalize(heap, node) == HH_OK);
    node = NULL;
    size_t times = 0;
    for (int round = 0; round < 4; round++) {
        hh_gc_collect(heap);
        times += hh_gc_run_finalizers(heap);
    }
    CHECK(times == 2 && numbers().old == 0);
}

static void test_refused(void) {
    hh_gc *none = heap;
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    CHECK(hh_gc_new(NULL, NULL) == HH_BAD_ARGUMENT);
    options.size--;
    CHECK(hh_gc_new(&options, &none) == HH_BAD_SIZE && none == NULL);
    options.size++;
    options.checks = 1U << 31;
    CHECK(hh_gc_new(&options, &none) == HH_BAD_CHECKS);
    options.checks = 0;
    options.nursery = 65535;
    CHECK(hh_gc_new(&options, &none) == HH_BAD_NURSERY);
    options.nursery = 0;
    options.growth = 109;
    CHECK(hh_gc_new(&options, &none) == HH_BAD_GROWTH);
    options.growth = 0;
    options.nursery = (size_t)1 << 60;
    CHECK(hh_gc_new(&options, &none) == HH_NO_MEMORY && none == NULL);
    /* Rounded up to whole arenas these wrapped: the heap was made, and wrote behind its nursery. */
    for (size_t below = 0; below <= (size_t)2 << 20; below += 65536) {
        options.nursery = SIZE_MAX - below;
        CHECK(hh_gc_new(&options, &none) == HH_NO_MEMORY && none == NULL);
    }
    hh_gc_drop(NULL);

    static const size_t zero = 0, eight = 8, nine = 9, sixteen = 16;
    hh_gc_type type = 77;
#define REFUSED(status, ...)                                         \
    do {                                                             \
        hh_gc_layout layout = {.size = sizeof layout, __VA_ARGS__};  \
        CHECK(hh_gc_register(heap, &layout, &type) == (status));     \
        CHECK(type == 77);                                           \
    } while (0)
    CHECK(hh_gc_register(heap, NULL, &type) == HH_BAD_ARGUMENT);
    REFUSED(HH_LAYOUT_SMALL, .bytes = 7);
    REFUSED(HH_LAYOUT_SMALL, .bytes = 8, .item_bytes = 1);
    REFUSED(HH_LAYOUT_LARGE, .bytes = ((size_t)1 << 30) + 1);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 24, .slots = &zero, .slot_count = 1);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 24, .slots = &nine, .slot_count = 1);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 16, .slots = &sixteen, .slot_count = 1);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 16, .item_bytes = 8, .slots = &eight, .slot_count = 1);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 16, .item_slots = &zero, .item_slot_count = 1);
    REFUSED(HH_LAYOUT_ITEMS, .bytes = 20, .item_bytes = 8, .item_slots = &zero, .item_slot_count = 1);
    REFUSED(HH_LAYOUT_TWICE, .bytes = 24, .slots = &eight, .slot_count = 1, .weak_slots = &eight, .weak_slot_count = 1);
    REFUSED(HH_LAYOUT_TWICE, .bytes = 24, .trace = trace, .trace_part = trace_part);
    /* Counts that are none: nothing is read there. */
    REFUSED(HH_LAYOUT_SLOT, .bytes = 24, .slots = &eight, .slot_count = (size_t)-1);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 24, .weak_slots = &eight, .weak_slot_count = (size_t)1 << 60);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 16, .item_bytes = 8, .item_slots = &zero, .item_slot_count = (size_t)1 << 40);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 16, .item_bytes = 8, .weak_item_slots = &zero, .weak_item_slot_count = 2);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 24, .ephemerons = &(hh_gc_pair){8, 16}, .ephemeron_count = (size_t)1 << 59);
    REFUSED(HH_LAYOUT_SLOT, .bytes = 16, .item_bytes = 16, .item_ephemerons = &(hh_gc_pair){0, 8}, .item_ephemeron_count = 2);
    REFUSED(HH_BAD_ARGUMENT, .bytes = 24, .slots = NULL, .slot_count = 1);
    hh_gc_layout layout = {.size = 8, .bytes = 16};
    CHECK(hh_gc_register(heap, &layout, &type) == HH_BAD_SIZE && type == 77);
    /* A program that does not know the last member: what lies there is not read. */
    layout = (hh_gc_layout){.size = offsetof(hh_gc_layout, trace_part), .bytes = 16, .trace = trace, .trace_part = trace_part};
    CHECK(hh_gc_register(heap, &layout, &type) == HH_OK && type != 77);
    for (int status = 0; status <= HH_BAD_FORBID; status++)
        CHECK(strlen(hh_strerror(status)) > 5 && strcmp(hh_strerror(status), hh_strerror(HH_BAD_FORBID + 1)) != 0);
}

int main(int count, char **words) {
    static const struct section sections[] = {SECTION(traced), SECTION(parts), SECTION(weak), SECTION(one_by_one), SECTION(refused)};
    return run_section(sections, sizeof sections / sizeof sections[0], count, words);
}
