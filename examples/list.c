/* A linked list on a heap of its own: cc list.c $(pkg-config --cflags --libs hugeheap) */
#include <hugeheap.h>
#include <inttypes.h>
#include <stdio.h>

struct node {
    struct node *next;
    int value;
};

int main(void) {
    hh_heap *heap = hh_heap_new(NULL);
    if (heap == NULL)
        return perror("list"), 1;
    struct node *list = NULL;
    for (int value = 1; value <= 1000000; value++) {
        struct node *node = hh_heap_alloc(heap, sizeof *node);
        if (node == NULL)
            return perror("list"), 1;
        *node = (struct node){list, value};
        list = node;
    }
    long long sum = 0;
    while (list != NULL) {
        struct node *next = list->next;
        sum += list->value;
        hh_heap_free_sized(heap, list, sizeof *list);
        list = next;
    }
    hh_heap_drop(heap);

    hh_stats_t stats = {.size = sizeof stats};
    uint64_t given = hh_give_back();
    if (hh_stats(&stats) != HH_OK)
        return 1;
    printf("sum %lld; %" PRIu64 " arenas at the peak; %" PRIu64 " MiB given back\n", sum, stats.arenas_peak, given >> 20);
    return 0;
}
