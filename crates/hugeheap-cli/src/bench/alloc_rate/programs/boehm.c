/* The loop of `hugeheap bench alloc-rate` on Boehm's collector: boehm plain|field COUNT BYTES. Without its
 * header an object has its bytes
   less one word; one of 16 bytes has room for a word and the rounding, as everywhere else. */
#include <gc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "version")) {
        unsigned version = GC_get_version();
        printf("%u.%u.%u\n", version >> 16, (version >> 8) & 255, version & 255);
        return 0;
    }
    if (argc < 4) {
        fprintf(stderr, "usage: boehm plain|field COUNT BYTES\n");
        return 2;
    }
    int field = !strcmp(argv[1], "field");
    unsigned long long count = strtoull(argv[2], NULL, 10), number;
    size_t bytes = strtoull(argv[3], NULL, 10);
    unsigned long long *volatile kept[2] = {NULL, NULL};
    unsigned long long *last = NULL, *before = NULL;
    GC_INIT();
    double begin = now();
    for (number = 0; number < count; number++) {
        unsigned long long *object = GC_MALLOC(bytes);
        if (!object) {
            fprintf(stderr, "no memory\n");
            return 1;
        }
        if (field)
            object[1] = number;
        before = last;
        last = object;
    }
    double seconds = now() - begin;
    kept[0] = last, kept[1] = before;
    printf("{\"seconds\": %.9f, \"objects\": %llu, \"bytes\": %zu}\n", seconds, count, bytes);
    return kept[0] == kept[1];
}
