/* A list on a garbage-collected heap: cc hello-gc.c $(pkg-config --cflags --libs hugeheap) */
#include <hugeheap_gc.h>
#include <inttypes.h>
#include <stdio.h>

struct node {
    hh_gc_header header;
    struct node *next; /* the one slot */
    int64_t value;
};

/* A list of the numbers up to `count`; NULL when memory ends. */
static struct node *list_of(hh_gc *heap, hh_gc_type type, int64_t count) {
    struct node *list = NULL;
    HH_GC_ROOTS(heap, list);
    for (int64_t value = 1; value <= count; value++) {
        struct node *node = hh_gc_alloc(heap, type, sizeof *node);
        if (node == NULL)
            return NULL;
        node->next = list; /* read after the allocation, which may have moved it */
        node->value = value;
        list = node;
    }
    return list;
}

int main(void) {
    static const size_t slots[] = {offsetof(struct node, next)};
    hh_gc_layout layout = {.size = sizeof layout, .bytes = sizeof(struct node), .slots = slots, .slot_count = 1};
    hh_gc *heap;
    hh_gc_type type;
    int status = hh_gc_new(NULL, &heap);
    if (status == HH_OK)
        status = hh_gc_register(heap, &layout, &type);
    if (status != HH_OK)
        return fprintf(stderr, "hello-gc: %s\n", hh_strerror(status)), 1;

    struct node *kept = list_of(heap, type, 1000);
    HH_GC_ROOTS(heap, kept);
    for (int round = 0; round < 1000; round++)
        if (kept == NULL || list_of(heap, type, 1000) == NULL) /* dies at once */
            return perror("hello-gc"), 1;
    hh_gc_collect(heap);

    int64_t sum = 0;
    for (struct node *node = kept; node != NULL; node = node->next)
        sum += node->value;
    hh_gc_stats_t stats = {.size = sizeof stats};
    if (hh_gc_stats(heap, &stats) != HH_OK)
        return 1;
    printf("sum %" PRId64 "; %" PRIu64 " bytes alive; %" PRIu64 " minor collections moved %" PRIu64 " objects, longest pause %" PRIu64 " us\n",
           sum, stats.old, stats.minor, stats.survivors, stats.pause_longest / 1000);
    return 0;
}
