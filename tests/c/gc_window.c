/* Allocates objects of 16 bytes in a loop, for counting instructions: gc_window KIND COUNT.
   plain: the field stays undefined; field: it is written; handle: the window is where the heap's handle points to. Two objects are kept alive at
   any time, so that the loop cannot be left out. */
#include <hugeheap_gc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct number {
    hh_gc_header header;
    long value;
};


#define LOOP(alloc, write)                               \
    for (; count > 0; count--) {                         \
        struct number *object = alloc;                   \
        if (__builtin_expect(object == NULL, 0))         \
            abort();                                     \
        write;                                           \
        before = last;                                   \
        last = object;                                   \
    }

/* A function of its own, so that its code can be looked at. The objects of the loop die with it: nothing of it
 * is a root. */
__attribute__((noinline)) static void *plain(hh_gc *heap, hh_gc_type type, long count) {
    struct number *last = NULL, *before = NULL;
    hh_gc_window window = hh_gc_open(heap);
    LOOP(hh_gc_alloc_in(heap, &window, type, sizeof *object), (void)0)
    hh_gc_close(heap, window);
    return before;
}

__attribute__((noinline)) static void *field(hh_gc *heap, hh_gc_type type, long count) {
    struct number *last = NULL, *before = NULL;
    hh_gc_window window = hh_gc_open(heap);
    LOOP(hh_gc_alloc_in(heap, &window, type, sizeof *object), object->value = count)
    hh_gc_close(heap, window);
    return before;
}

/* Rooted, as an interpreter does it that takes each object from the handle. */
__attribute__((noinline)) static void *handle(hh_gc *heap, hh_gc_type type, long count) {
    struct number *last = NULL, *before = NULL;
    HH_GC_ROOTS(heap, last);
    LOOP(hh_gc_alloc(heap, type, sizeof *object), object->value = count)
    return before;
}

int main(int words, char **word) {
    /* A nursery that is the same on every host, so that counts are. */
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    options.nursery = 4 << 20;
    hh_gc_layout layout = {.size = sizeof layout, .bytes = sizeof(struct number)};
    hh_gc *heap;
    hh_gc_type type;
    if (words != 3 || hh_gc_new(&options, &heap) != HH_OK || hh_gc_register(heap, &layout, &type) != HH_OK)
        return 2;
    long count = atol(word[2]);
    void *kept;
    if (strcmp(word[1], "plain") == 0)
        kept = plain(heap, type, count);
    else if (strcmp(word[1], "field") == 0)
        kept = field(heap, type, count);
    else if (strcmp(word[1], "handle") == 0)
        kept = handle(heap, type, count);
    else
        return 2;
    printf("%d\n", kept != NULL);
    return 0;
}
