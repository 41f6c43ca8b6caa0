/* The garbage-collected heap in a control group: gc_limits nursery BYTES | gc_limits objects BYTES. What is
 * refused is NULL or a status, not the end of the process. */
#include "check.h"

#include <errno.h>
#include <hugeheap_gc.h>
#include <stdint.h>
#include <stdlib.h>

static hh_gc *heap;
static hh_gc_type text;

static int make(size_t nursery) {
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    hh_gc_layout layout = {.size = sizeof layout, .bytes = HH_GC_VARIABLE_BYTES, .item_bytes = 1};
    options.nursery = nursery;
    int status = hh_gc_new(&options, &heap);
    CHECK(status != HH_OK || hh_gc_register(heap, &layout, &text) == HH_OK);
    return status;
}

/* All of the nursery is written, three times. */
static void nursery(size_t bytes) {
    int status = make(bytes);
    if (status == HH_OK)
        for (size_t done = 0; done < 3 * bytes; done += 4096)
            CHECK(hh_gc_zalloc_items(heap, text, HH_GC_VARIABLE_BYTES, 1, 4080) != NULL);
    printf("%d\n", status);
    hh_gc_drop(heap);
}

#define MOST 1000

/* Objects are kept and written until there is no room; then again, as often as they were dropped. */
static void objects(size_t bytes) {
    static void *kept[MOST];
    CHECK(make(0) == HH_OK);
    HH_GC_ROOTS(heap, kept);
    for (int round = 0; round < 3; round++) {
        int count = 0;
        for (; count < MOST; count++) {
            errno = 0;
            char *object = hh_gc_alloc_items(heap, text, HH_GC_VARIABLE_BYTES, 1, bytes);
            if (object == NULL)
                break;
            for (size_t at = 0; at < bytes; at += 4096)
                CHECK(object[HH_GC_VARIABLE_BYTES + at] == 0);
            memset(object + HH_GC_VARIABLE_BYTES, 1, bytes);
            kept[count] = object;
        }
        CHECK(count == MOST || errno == ENOMEM);
        printf("%d\n", count);
        memset(kept, 0, sizeof kept);
    }
    hh_gc_drop(heap);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    size_t bytes = strtoull(arguments[2], NULL, 10);
    if (strcmp(arguments[1], "nursery") == 0)
        nursery(bytes);
    else
        objects(bytes);
    return 0;
}
