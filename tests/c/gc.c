/* The functions of hugeheap_gc.h: gc SECTION, with the settings of the environment's CHECKS (verify, barriers, poison; as a number) and STRESS. */
#include "check.h"

#include <errno.h>
#include <hugeheap_gc.h>
#include <unistd.h>

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
static void trace(void *object, hh_gc_visitor *visitor) {
    struct node *node = object;
    if (node->number % 2 == 0)
        hh_gc_visit(visitor, &node->next);
}

static hh_gc_options settings(void) {
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    const char *checks = getenv("CHECKS"), *stress = getenv("STRESS");
    options.checks = checks == NULL ? 0 : (uint32_t)atoi(checks);
    options.stress = stress == NULL ? 0 : (uint32_t)atoi(stress);
    options.nursery = 128 << 10;
    return options;
}

static hh_gc_type registered(hh_gc_layout layout) {
    hh_gc_type type;
    layout.size = sizeof layout;
    CHECK(hh_gc_register(heap, &layout, &type) == HH_OK);
    return type;
}

static void make(const hh_gc_options *options) {
    static const size_t node_slots[] = {offsetof(struct node, next)}, table_slots[] = {offsetof(struct table, first)};
    static const size_t item_slots[] = {offsetof(struct item, node)};
    CHECK(hh_gc_new(options, &heap) == HH_OK);
    node_type = registered((hh_gc_layout){.bytes = sizeof(struct node), .slots = node_slots, .slot_count = 1});
    table_type = registered((hh_gc_layout){.bytes = sizeof(struct table), .item_bytes = sizeof(struct item), .slots = table_slots,
                                           .slot_count = 1, .item_slots = item_slots, .item_slot_count = 1});
    text_type = registered((hh_gc_layout){.bytes = sizeof(struct text), .item_bytes = 1});
    traced_type = registered((hh_gc_layout){.bytes = sizeof(struct node), .trace = trace});
}

static hh_gc_stats_t numbers(void) {
    hh_gc_stats_t stats;
    memset(&stats, 0xFF, sizeof stats);
    stats.size = sizeof stats;
    CHECK(hh_gc_stats(heap, &stats) == HH_OK && stats.size == sizeof stats && stats.schema == 1);
    return stats;
}

static void verified(void) {
    char text[200];
    if (hh_gc_verify(heap, text, sizeof text) != HH_OK || hh_gc_verify_barriers(heap, text, sizeof text) != HH_OK) {
        fprintf(stderr, "%s\n", text);
        exit(1);
    }
}

static struct node *new_node(size_t number, struct node *next) {
    HH_GC_ROOTS(heap, next);
    struct node *node = hh_gc_alloc(heap, node_type, sizeof *node);
    CHECK(node != NULL && (uintptr_t)node % HH_GC_ALIGN == 0);
    node->number = number;
    node->next = next;
    return node;
}

static struct node *list(size_t length) {
    struct node *nodes = NULL;
    for (size_t number = 0; number < length; number++)
        nodes = new_node(number, nodes);
    return nodes;
}

static void check_list(const struct node *nodes, size_t length) {
    while (length-- > 0) {
        CHECK(nodes != NULL && nodes->number == length && hh_gc_type_of(nodes) == node_type);
        nodes = nodes->next;
    }
    CHECK(nodes == NULL);
}

/* Lists in locals, in arrays and structs of locals, across blocks that are left early. */
static void test_frames(void) {
    struct node *one = NULL;
    HH_GC_ROOTS(heap, one);
    one = list(3000);
    for (size_t round = 0; round < 3; round++) {
        struct {
            struct node *list;
            struct node *many[10];
        } my = {NULL, {NULL}};
        HH_GC_ROOTS(heap, my);
        my.list = list(100 + round);
        for (size_t n = 0; n < 10; n++)
            my.many[n] = list(n);
        hh_gc_collect(heap);
        check_list(my.list, 100 + round);
        for (size_t n = 0; n < 10; n++)
            check_list(my.many[n], n);
        if (round == 1)
            continue;
    }
    check_list(one, 3000);
    CHECK(!hh_gc_is_young(heap, one));
    /* A word that is no reference is left alone. */
    one->next = (struct node *)(uintptr_t)7;
    hh_gc_collect(heap);
    CHECK((uintptr_t)one->next == 7);
    one = NULL;
    hh_gc_collect(heap);
    CHECK(numbers().old == 0 && numbers().held == 0);
}

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

static void test_handles(void) {
    hh_gc_global kept[100], pinned[100];
    void *places[100];
    for (size_t n = 0; n < 100; n++) {
        kept[n] = hh_gc_keep(heap, list(n));
        struct node *node = new_node(n, NULL);
        pinned[n] = hh_gc_pin(heap, places[n] = node);
        CHECK(kept[n] != 0 && pinned[n] != 0 && kept[n] != pinned[n]);
    }
    for (size_t round = 0; round < 3; round++) {
        list(5000);
        hh_gc_collect(heap);
        for (size_t n = round; n < 100; n++) {
            check_list(hh_gc_get(heap, kept[n]), n);
            CHECK(hh_gc_get(heap, pinned[n]) == places[n] && ((struct node *)places[n])->number == n);
        }
        hh_gc_release(heap, kept[round]);
        hh_gc_release(heap, pinned[round]);
    }
    hh_gc_global another;
    struct table *table = hh_gc_alloc_pinned(heap, table_type, 10, &another);
    CHECK(table != NULL && table->length == 10);
    list(20000);
    hh_gc_collect(heap);
    CHECK(hh_gc_get(heap, another) == table);
    hh_gc_release(heap, another);
    hh_gc_release(heap, 0);
    hh_gc_global none = hh_gc_keep(heap, NULL);
    CHECK(hh_gc_get(heap, none) == NULL);
}

static struct node *elsewhere[50];

static void name_elsewhere(void *data, hh_gc_visitor *visitor) {
    CHECK(data == (void *)elsewhere);
    hh_gc_visit_row(visitor, elsewhere, 50);
}

static void test_callbacks(void) {
    CHECK(hh_gc_add_roots(heap, NULL, NULL) == HH_BAD_ARGUMENT);
    CHECK(hh_gc_add_roots(heap, name_elsewhere, elsewhere) == HH_OK);
    for (size_t n = 0; n < 50; n++)
        elsewhere[n] = list(n);
    hh_gc_collect(heap);
    for (size_t n = 0; n < 50; n++)
        check_list(elsewhere[n], n);
    hh_gc_remove_roots(heap, name_elsewhere, NULL);
    hh_gc_collect(heap);
    CHECK(numbers().old > 0);
    hh_gc_remove_roots(heap, name_elsewhere, elsewhere);
    hh_gc_remove_roots(heap, name_elsewhere, elsewhere);
    hh_gc_collect(heap);
    CHECK(numbers().old == 0);
}

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

static void words_of(void *data, const void **begin, const void **end) {
    *begin = data;
    *end = (char *)data + 4 * sizeof(void *);
}

/* Words that nobody says to be references keep objects, young and old, where they are. */
static void test_scan(void) {
    void *words[4] = {NULL};
    CHECK(hh_gc_add_scan(heap, NULL, NULL) == HH_BAD_ARGUMENT && hh_gc_add_scan(heap, words_of, words) == HH_OK);
    struct node *old = list(10);
    words[0] = old;
    words[1] = (char *)new_node(77, NULL) + 8;
    words[2] = (void *)(uintptr_t)0x1234567890;
    for (int round = 0; round < 3; round++) {
        list(3000);
        hh_gc_collect(heap);
        CHECK(words[0] == old);
        check_list(old, 10);
        CHECK(((struct node *)(void *)((char *)words[1] - 8))->number == 77);
    }
    memset(words, 0, sizeof words);
    hh_gc_collect(heap);
    hh_gc_collect(heap);
    CHECK(numbers().old == 0);
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
    CHECK(hh_gc_protect(heap, &range, HH_GC_FORBID_WRITE, NULL) == HH_NOT_OURS && hh_gc_protect(heap, made, 2, NULL) == HH_BAD_ARGUMENT);
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
    /* The arena of the pinned one stays as it is. It has few nodes, unless they were moved together before most died: then it is full. */
    const char *checks = getenv("CHECKS");
    size_t stay = checks && strtoul(checks, NULL, 10) & HH_GC_MOVING ? 3 << 20 : 1 << 20;
    CHECK(now.evacuations > 0 && now.moved > 0 && now.freed_pages > 0 && now.held < hh_gc_length(table) * 16 + stay);
    hh_gc_prepare_fork(heap);
    for (size_t n = 0; n < COUNT; n += KEPT)
        CHECK(table->items[n].node->number == n);
    CHECK(table->items[1000].node == stays && hh_gc_get(heap, pinned) == stays);
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
}

static void test_statistics(void) {
    hh_gc_stats_t before = numbers();
    CHECK(before.nursery == 128 << 10 && before.phase == HH_GC_IDLE && before.minor == 0);
    struct node *kept = list(50000);
    HH_GC_ROOTS(heap, kept);
    int phases[HH_GC_SWEEPING + 1] = {0};
    for (size_t step = 0; phases[HH_GC_SWEEPING] == 0 || numbers().phase != HH_GC_IDLE; step++) {
        check_list(kept, 50000);
        phases[hh_gc_collect_minor(heap)]++;
        if (numbers().phase == HH_GC_IDLE)
            kept = list(50000);
        CHECK(step < 10000);
    }
    hh_gc_stats_t now = numbers();
    CHECK(now.minor > 0 && now.steps > 0 && now.major > 0 && now.survivors >= 50000 && now.survived_bytes >= 32 * now.survivors);
    CHECK(now.old >= 50000 * 32 && now.held >= now.old && now.pauses >= now.minor && now.pause_longest <= now.pause_total);
    uint64_t counted = 0;
    for (size_t bucket = 0; bucket < HH_GC_BUCKETS; bucket++)
        counted += now.pause_histogram[bucket];
    CHECK(counted == now.pauses);
    /* A program that knows fewer members, and sizes that nobody has. */
    hh_gc_stats_t part;
    memset(&part, 0xFF, sizeof part);
    part.size = 16;
    CHECK(hh_gc_stats(heap, &part) == HH_OK && part.size == 16 && part.nursery == UINT64_MAX);
    part.size = 7;
    CHECK(hh_gc_stats(heap, &part) == HH_BAD_SIZE && hh_gc_stats(heap, NULL) == HH_BAD_ARGUMENT);
    char json[2000], little[10];
    size_t length = hh_gc_stats_json(heap, json, sizeof json);
    CHECK(length < sizeof json && strlen(json) == length && hh_gc_stats_json(heap, NULL, 0) == length);
    CHECK(hh_gc_stats_json(heap, little, sizeof little) == length && strlen(little) == 9);
    puts(json);
}

static hh_gc_event told[HH_GC_EVENT_ARENAS + 1];
static uint64_t tellings[HH_GC_EVENT_ARENAS + 1];

static void hook(void *data, const hh_gc_event *event) {
    CHECK(data == told && event->size == sizeof *event && event->kind <= HH_GC_EVENT_ARENAS);
    told[event->kind] = *event;
    tellings[event->kind]++;
}

static size_t lines_of(const char *file) {
    char line[1000];
    size_t lines = 0;
    FILE *log = fopen(file, "r");
    CHECK(log != NULL);
    while (fgets(line, sizeof line, log) != NULL) {
        CHECK(strstr(line, " gc-minor heap=") != NULL && strstr(line, " survivors=") != NULL);
        lines++;
    }
    fclose(log);
    return lines;
}

/* A hook is told what the numbers count; a log has a line for each; without them nobody is told. */
static void test_events(void) {
    char file[] = "/tmp/hugeheap-gc-XXXXXX", log[100], text[200];
    int descriptor = mkstemp(file);
    CHECK(descriptor >= 0 && close(descriptor) == 0);
    snprintf(log, sizeof log, "gc-minor:%s", file);
    struct node *kept = NULL;
    HH_GC_ROOTS(heap, kept);
    hh_gc_set_hook(heap, hook, told);
    CHECK(hh_gc_set_log(heap, log, text, sizeof text) == HH_OK && text[0] == 0);
    uint64_t before = numbers().minor;
    CHECK(before == 0);
    kept = list(30000);
    void *large = hh_gc_alloc_items(heap, text_type, sizeof(struct text), 1, 9 << 20);
    CHECK(large != NULL);
    kept = list(30000);
    hh_gc_collect(heap);
    hh_gc_stats_t now = numbers();
    CHECK(tellings[HH_GC_EVENT_MINOR] == now.minor && tellings[HH_GC_EVENT_MAJOR] == now.major && now.major > 0);
    CHECK(tellings[HH_GC_EVENT_STEP] > 0 && tellings[HH_GC_EVENT_ARENAS] > 0 && tellings[HH_GC_EVENT_EVACUATION] == now.evacuations);
    CHECK(told[HH_GC_EVENT_MAJOR].number == now.major && told[HH_GC_EVENT_MAJOR].live >= 30000 * 32);
    CHECK(told[HH_GC_EVENT_STEP].to == HH_GC_IDLE && told[HH_GC_EVENT_MAJOR].held >= told[HH_GC_EVENT_MAJOR].live);
    CHECK(told[HH_GC_EVENT_ARENAS].arenas > 0 && told[HH_GC_EVENT_MINOR].not_moved == 0);
    CHECK(lines_of(file) == now.minor);
    /* What is wrong says so, and changes nothing. */
    CHECK(hh_gc_set_log(heap, "gc-minr:-", text, sizeof text) == HH_BAD_LOG && strstr(text, "\"gc-minr\"") != NULL);
    CHECK(hh_gc_set_log(heap, "gc-minor", NULL, 0) == HH_BAD_LOG);
    CHECK(hh_gc_set_log(heap, "arena:/nowhere/at/all", text, 10) == HH_BAD_LOG && strcmp(text, "/nowhere/") == 0);
    (void)hh_gc_collect_minor(heap);
    now = numbers();
    CHECK(lines_of(file) == now.minor && tellings[HH_GC_EVENT_MINOR] == now.minor);
    hh_gc_set_hook(heap, NULL, NULL);
    CHECK(hh_gc_set_log(heap, NULL, NULL, 0) == HH_OK);
    hh_gc_collect(heap);
    CHECK(lines_of(file) == now.minor && tellings[HH_GC_EVENT_MINOR] == now.minor && numbers().minor > now.minor);
    CHECK(remove(file) == 0);
    check_list(kept, 30000);
    CHECK(numbers().rotated == ((settings().checks & HH_GC_ROTATE) != 0 ? numbers().minor : 0));
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
    REFUSED(HH_BAD_ARGUMENT, .bytes = 24, .slots = NULL, .slot_count = 1);
    hh_gc_layout layout = {.size = 8, .bytes = 16};
    CHECK(hh_gc_register(heap, &layout, &type) == HH_BAD_SIZE && type == 77);
    /* A program that does not know the last member: what lies there is not read. */
    layout = (hh_gc_layout){.size = offsetof(hh_gc_layout, trace_part), .bytes = 16, .trace = trace, .trace_part = trace_part};
    CHECK(hh_gc_register(heap, &layout, &type) == HH_OK && type != 77);
    for (int status = 0; status <= HH_BAD_LOG; status++)
        CHECK(strlen(hh_strerror(status)) > 5 && strcmp(hh_strerror(status), hh_strerror(HH_BAD_LOG + 1)) != 0);
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

/* Objects of any type, taken one by one: the first of a list before the others, each once for each time that it was registered. */
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

int main(int count, char **words) {
#define SECTION(name) {#name, test_##name}
    static const struct {
        const char *name;
        void (*run)(void);
    } sections[] = {
        SECTION(frames), SECTION(sizes), SECTION(window), SECTION(handles), SECTION(callbacks), SECTION(traced), SECTION(exhausted), SECTION(statistics),
        SECTION(refused), SECTION(heaps), SECTION(weak), SECTION(scan),
        SECTION(evacuation), SECTION(protection), SECTION(parts), SECTION(events), SECTION(one_by_one),
    };
    hh_gc_options options = settings();
    for (unsigned n = 0; n < sizeof sections / sizeof sections[0]; n++) {
        if (count == 2 && strcmp(words[1], sections[n].name) == 0) {
            make(&options);
            sections[n].run();
            verified();
            hh_gc_drop(heap);
            return 0;
        }
    }
    return 2;
}
