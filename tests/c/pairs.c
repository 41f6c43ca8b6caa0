/* Allocates and frees blocks of 48 bytes in a loop, or only allocates them, for counting instructions: pairs
 * KIND COUNT. */
#include <hugeheap_inline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The loop itself, and what keeps the compiler from leaving it out. */
#define LOOP(allocate, release)                      \
    for (long n = 0; n < count; n++) {               \
        void *block = allocate;                      \
        __asm__ volatile("" : "+r"(block)::"memory"); \
        release;                                     \
    }

int main(int words, char **word) {
    hh_heap *heap = hh_heap_new(NULL);
    if (heap == NULL || words != 3)
        return 2;
    const char *kind = word[1];
    long count = atol(word[2]);
    if (strcmp(kind, "loop") == 0)
        LOOP(heap, (void)block)
    else if (strcmp(kind, "heap") == 0)
        LOOP(hh_heap_alloc(heap, 48), hh_heap_free(heap, block))
    else if (strcmp(kind, "heap-sized") == 0)
        LOOP(hh_heap_alloc(heap, 48), hh_heap_free_sized(heap, block, 48))
    else if (strcmp(kind, "inline") == 0)
        LOOP(hh_heap_alloc_inline(heap, 48), hh_heap_free_sized_inline(heap, block, 48))
    else if (strcmp(kind, "inline-variable") == 0) {
        volatile size_t size = 48;
        LOOP(hh_heap_alloc_inline(heap, size), hh_heap_free_sized_inline(heap, block, size))
    } else if (strcmp(kind, "fill") == 0)
        LOOP(hh_heap_alloc(heap, 48), (void)block)
    else if (strcmp(kind, "fill-inline") == 0)
        LOOP(hh_heap_alloc_inline(heap, 48), (void)block)
    else if (strcmp(kind, "thread") == 0)
        LOOP(hh_malloc(48), hh_free(block))
    else if (strcmp(kind, "thread-sized") == 0)
        LOOP(hh_malloc(48), hh_free_sized(block, 48))
    else
        return 2;
    return 0;
}
