/* The workloads of `hugeheap bench gc` on Boehm's collector: boehm WORKLOAD SIZE CHARGE_FILE.
   The same as the workloads on hugeheap, line for line where the languages allow.

   In its normal use: GC_MALLOC, and GC_MALLOC_ATOMIC for what has no references. With TUNED what its documents offer beyond that: small
   objects from lists of its own, many at a time; only the beginning of an object, or an address on the stack, keeps it, so that no byte is
   added to each; and marking by all processors. */
#define GC_THREADS
#include <gc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long number;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static number state = 42;
static number below(number limit) {
    state = (state * 1103515245 + 12345) & 0x7fffffff;
    return (state * limit) >> 31;
}

/* Pauses: from the beginning of a collection to its end. */
static uint64_t began, pauses, total, longest, histogram[36];
static void event(GC_EventType type) {
    if (type == GC_EVENT_START)
        began = now();
    else if (type == GC_EVENT_END) {
        uint64_t length = now() - began;
        int power = 0;
        while (power < 35 && length >> (power + 1))
            power++;
        pauses++, total += length, histogram[power]++;
        if (length > longest)
            longest = length;
    }
}

static number objects, check, live;
static void *there(void *object) {
    if (!object) {
        fprintf(stderr, "no memory for the workload\n");
        exit(1);
    }
    return object;
}

static inline void *made(size_t bytes, int leaf) {
#ifdef TUNED
    /* Not for leaves: nothing would keep what is behind the first of a list. */
    static void *lists[5];
    if (!leaf && bytes <= 64) {
        void **list = &lists[(bytes + 15) / 16], *object = *list;
        if (!object)
            object = there(GC_malloc_many((bytes + 15) / 16 * 16));
        *list = GC_NEXT(object);
        GC_NEXT(object) = NULL;
        return object;
    }
#endif
    return there(leaf ? GC_MALLOC_ATOMIC(bytes) : GC_MALLOC(bytes));
}

typedef struct node {
    struct node *left, *right;
} node;

static node *tree(int depth) {
    node *left = NULL, *right = NULL, *result;
    if (depth > 0)
        left = tree(depth - 1), right = tree(depth - 1);
    result = made(sizeof(node), 0);
    result->left = left, result->right = right;
    return result;
}

static number count(node *tree) { return tree->left ? 1 + count(tree->left) + count(tree->right) : 1; }

static void binary_trees(int depth) {
    check = count(tree(depth + 1));
    node *volatile stays = tree(depth);
    for (int now = 4; now <= depth; now += 2)
        for (number round = 0; round < 1ull << (depth - now + 4); round++)
            check += count(tree(now));
    check += count(stays);
    objects = check;
}

typedef struct wide {
    struct wide *left, *right;
    int i, j;
} wide;

static wide *wide_tree(int depth) {
    wide *left = NULL, *right = NULL, *result;
    if (depth > 0)
        left = wide_tree(depth - 1), right = wide_tree(depth - 1);
    result = made(sizeof(wide), 0);
    result->left = left, result->right = right;
    return result;
}

static void populate(int depth, wide *at) {
    if (depth == 0)
        return;
    at->left = made(sizeof(wide), 0);
    at->right = made(sizeof(wide), 0);
    populate(depth - 1, at->left);
    populate(depth - 1, at->right);
}

static number wide_count(wide *tree) { return tree->left ? 1 + wide_count(tree->left) + wide_count(tree->right) : 1; }
static number nodes(int depth) { return (2ull << depth) - 1; }

static void gcbench(int depth) {
    int stretch = depth + 2;
    check = wide_count(wide_tree(stretch));
    wide *volatile stays = made(sizeof(wide), 0);
    populate(depth, stays);
    double *volatile array = made(500000 * sizeof(double), 1);
    for (int index = 0; index < 250000; index++)
        array[index] = 1.0 / (index + 1);
    objects = check + nodes(depth) + 1;
    for (int now = 4; now <= depth; now += 2) {
        number rounds = 2 * nodes(stretch) / nodes(now);
        for (number round = 0; round < rounds; round++) {
            wide *root = made(sizeof(wide), 0);
            populate(now, root);
            check += root->left != NULL;
        }
        for (number round = 0; round < rounds; round++)
            check += wide_tree(now)->left != NULL;
        objects += 2 * rounds * nodes(now);
    }
    check += (number)(array[999] * 1000.0 + 0.5);
    check += wide_count(stays);
}

static inline number *leaf(size_t bytes, number value) {
    number *object = made(bytes, 1);
    /* All of it, as in OCaml. */
    memset(object, 0, bytes);
    object[0] = value;
    return object;
}

static void churn(number size) {
    number places = size / 72 ? size / 72 : 1;
    number **volatile table = made(places * sizeof(number *), 0);
    for (number place = 0; place < places; place++)
        table[place] = leaf(56, place);
    for (number value = 0; value < 2 * places; value++) {
        number place = below(places);
        table[place] = leaf(56, value);
    }
    for (number place = 0; place < places; place++)
        check += table[place][0];
    objects = 3 * places, live = places * 72;
}

static number **arrays[16];
static void wide_arrays(number size) {
    number places = size / 64 / 16 ? size / 64 / 16 : 1, writes = 16 * places / 2;
    for (int index = 0; index < 16; index++)
        arrays[index] = made(places * sizeof(number *), 0);
    for (number value = 0; value < writes; value++) {
        leaf(24, value);
        number *object = leaf(24, value);
        number **array = arrays[below(16)];
        array[below(places)] = object;
    }
    for (int index = 0; index < 16; index++)
        for (number place = 0; place < places; place++)
            if (arrays[index][place])
                check += arrays[index][place][0];
    objects = 2 * writes;
}

typedef struct entry {
    struct entry *chain, *older, *newer;
    number *value, key;
} entry;
static entry *oldest, *newest;

static void unlink_entry(entry *at) {
    if (at->older) at->older->newer = at->newer; else oldest = at->newer;
    if (at->newer) at->newer->older = at->older; else newest = at->older;
}

static void link_entry(entry *at) {
    at->older = newest, at->newer = NULL;
    if (newest) newest->newer = at; else oldest = at;
    newest = at;
}

static void lru(number size) {
    number capacity = size / 128 ? size / 128 : 1, buckets = 1, held = 0;
    while (buckets < capacity)
        buckets *= 2;
    entry **volatile table = made(buckets * sizeof(entry *), 0);
#define BUCKET(key) (((key) * 0x9E3779B1ull) & (buckets - 1))
    for (number value = 0; value < 4 * capacity; value++) {
        number key = below(2 * capacity);
        entry *found = table[BUCKET(key)];
        while (found && found->key != key)
            found = found->chain;
        if (found) {
            check++;
            unlink_entry(found);
            link_entry(found);
            continue;
        }
        if (held == capacity) {
            entry *old = oldest, **slot = &table[BUCKET(old->key)];
            unlink_entry(old);
            while (*slot != old)
                slot = &(*slot)->chain;
            *slot = old->chain;
        } else
            held++;
        number *object = leaf(56, value);
        found = made(sizeof(entry), 0);
        found->chain = table[BUCKET(key)], found->value = object, found->key = key;
        table[BUCKET(key)] = found;
        link_entry(found);
        objects += 2;
    }
    live = held * 128;
}

static void pinned(number size) {
    /* Nothing moves: what is kept is pinned. */
    number places = size >> 16 ? size >> 16 : 1;
    number **volatile pins = made(places * sizeof(number *), 0);
    objects = places * 64 * 16;
    for (number value = 0; value < objects; value++) {
        number *object = leaf(24, value);
        if (value % 64 == 0) {
            number **pin = &pins[value / 64 % places];
            if (*pin)
                check += **pin;
            *pin = object;
        }
    }
    live = places * 32;
}

typedef struct item {
    number value;
    struct item *next;
    number rest[5];
} item;
static item *list;

static void evacuation(number size) {
    objects = size / 64 ? size / 64 : 1;
    for (number value = 0; value < objects; value++) {
        item *object = made(sizeof(item), 0);
        object->value = value, object->next = list, list = object;
    }
    GC_gcollect();
    item **last = &list;
    for (item *now = list; now; now = now->next)
        if (below(10) == 0) {
            *last = now, last = &now->next;
            live += 64, check += now->value;
        }
    *last = NULL;
}

static number field(const char *file, const char *name) {
    char line[256];
    number value = 0;
    FILE *stream = fopen(file, "r");
    while (stream && fgets(line, sizeof line, stream))
        if (!strncmp(line, name, strlen(name)))
            value = strtoull(line + strlen(name), NULL, 10) * 1024;
    if (stream)
        fclose(stream);
    return value;
}

static long long charge(const char *file) {
    long long value = -1;
    FILE *stream = fopen(file, "r");
    if (stream) {
        if (fscanf(stream, "%lld", &value) != 1)
            value = -1;
        fclose(stream);
    }
    return value;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "version")) {
        unsigned version = GC_get_version();
        printf("%u.%u.%u\n", version >> 16, (version >> 8) & 255, version & 255);
        return 0;
    }
    if (argc != 4) {
        fprintf(stderr, "usage: boehm WORKLOAD SIZE CHARGE_FILE\n");
        return 2;
    }
    const char *name = argv[1];
    number size = strtoull(argv[2], NULL, 10);
    long long start = charge(argv[3]);
#ifdef TUNED
    GC_set_all_interior_pointers(0);
#endif
    GC_INIT();
#ifdef TUNED
    GC_start_mark_threads();
#endif
    GC_set_on_collection_event(event);
    uint64_t begin = now();
    if (!strcmp(name, "binary-trees")) binary_trees(size);
    else if (!strcmp(name, "gcbench")) gcbench(size);
    else if (!strcmp(name, "churn")) churn(size);
    else if (!strcmp(name, "lru")) lru(size);
    else if (!strcmp(name, "pinned")) pinned(size);
    else if (!strcmp(name, "wide-arrays")) wide_arrays(size);
    else if (!strcmp(name, "evacuation")) evacuation(size);
    else return 2;
    double seconds = (now() - begin) / 1e9;
    number allocated = GC_get_total_bytes();
    printf("{\"seconds\": %.9f, \"objects\": %llu, \"allocated\": %llu, \"check\": %llu, \"live\": %llu, \"pauses\": {\"count\": %llu, \"total\": %.9f, "
           "\"longest\": %.9f, \"histogram\": [",
           seconds, objects, allocated, check, live, (number)pauses, total / 1e9, longest / 1e9);
    for (int power = 0; power < 36; power++)
        printf(power ? ", %llu" : "%llu", (number)histogram[power]);
    if (!strcmp(name, "evacuation"))
        GC_gcollect_and_unmap();
    printf("]}, \"memory\": {\"peak_rss\": %llu, \"anonymous\": %llu, \"huge\": %llu", field("/proc/self/status", "VmHWM:"),
           field("/proc/self/smaps_rollup", "Anonymous:"), field("/proc/self/smaps_rollup", "AnonHugePages:"));
    if (start >= 0)
        printf(", \"charge\": [%lld, %lld]", start, charge(argv[3]));
    printf("}}\n");
    return 0;
}
