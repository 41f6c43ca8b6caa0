/* What the test programs share: a check that says where it failed, and blocks whose contents are known. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

/* A value that the compiler does not know: sizes that no block can have would be warned about. */
static inline size_t unknown(size_t value) {
    volatile size_t hidden = value;
    return hidden;
}

/* Fills a block so that another block's contents, or other bytes, are noticed. */
static inline void fill(void *block, size_t size, unsigned seed) {
    unsigned char *bytes = block;
    for (size_t index = 0; index < size; index++)
        bytes[index] = (unsigned char)(seed + index * 31);
}

static inline int is_filled(const void *block, size_t size, unsigned seed) {
    const unsigned char *bytes = block;
    for (size_t index = 0; index < size; index++)
        if (bytes[index] != (unsigned char)(seed + index * 31))
            return 0;
    return 1;
}

static inline int is_zero(const void *block, size_t size) {
    const unsigned char *bytes = block;
    for (size_t index = 0; index < size; index++)
        if (bytes[index] != 0)
            return 0;
    return 1;
}

/* In how many heap pages, of 16 KiB, blocks begin. */
static inline intptr_t heap_pages(void *const *blocks, int count) {
    intptr_t pages = 0;
    for (int number = 0; number < count; number++) {
        int is_new = 1;
        for (int before = 0; before < number; before++)
            is_new &= (uintptr_t)blocks[before] >> 14 != (uintptr_t)blocks[number] >> 14;
        pages += is_new;
    }
    return pages;
}

/* The same sequence each time (Knuth's MMIX). */
static inline unsigned long long next_random(unsigned long long *state) {
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return *state >> 33;
}

#endif
