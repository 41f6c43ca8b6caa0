/* Blocks as of malloc, with what is accepted and what is refused; anything in any order: blocks SECTION. */
#include "interface.h"

#include <errno.h>
#include <stdalign.h>

static void test_malloc(void) {
    void *blocks[SIZES];
    for (unsigned n = 0; n < SIZES; n++) {
        blocks[n] = hh_malloc(sizes[n]);
        CHECK(blocks[n] != NULL && (uintptr_t)blocks[n] % 16 == 0);
        CHECK(hh_usable_size(blocks[n]) >= sizes[n]);
        fill(blocks[n], sizes[n], n);
    }
    for (unsigned n = 0; n < SIZES; n++)
        CHECK(is_filled(blocks[n], sizes[n], n));
    for (unsigned n = 0; n < SIZES; n++) {
        if (n % 2 == 0)
            hh_free(blocks[n]);
        else
            hh_free_sized(blocks[n], sizes[n]);
    }
    hh_free(NULL);
    hh_free_sized(NULL, 7);

    /* A function that cleans up after an error must be able to report it. */
    enum { MANY = 1000 };
    for (unsigned n = 0; n < SIZES; n++) {
        static void *many[MANY];
        unsigned count = sizes[n] > 100000 ? 20 : MANY;
        for (unsigned m = 0; m < count; m++)
            CHECK((many[m] = hh_malloc(sizes[n])) != NULL);
        errno = EDOM;
        for (unsigned m = 0; m < count; m++)
            hh_free(many[m]);
        CHECK(errno == EDOM);
    }
    hh_give_back();
    CHECK(errno == EDOM);

    CHECK(hh_usable_size(NULL) == 0);

    /* Zero bytes: a block of its own each time. */
    void *none = hh_malloc(0), *other = hh_malloc(0), *third = hh_calloc(0, 8), *fourth = hh_calloc(8, 0);
    CHECK(none != NULL && other != NULL && third != NULL && fourth != NULL);
    CHECK(none != other && none != third && none != fourth && other != third && third != fourth);
    CHECK(hh_usable_size(none) >= 1);
    hh_free(none);
    hh_free_sized(other, 0);
    hh_free_sized(third, 0);
    hh_free(fourth);

    /* What no address space holds. */
    const size_t silly[] = {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)1 << 47};
    for (unsigned n = 0; n < sizeof silly / sizeof silly[0]; n++) {
        errno = 0;
        CHECK(hh_malloc(unknown(silly[n])) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(hh_calloc(unknown(silly[n]), 1) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(hh_aligned_alloc(64, unknown(silly[n])) == NULL && errno == ENOMEM);
    }
}

static void test_calloc(void) {
    for (unsigned n = 0; n < SIZES; n++) {
        /* Twice: the second time it is memory that was used. */
        for (int again = 0; again < 2; again++) {
            unsigned char *block = hh_calloc(sizes[n], 1);
            CHECK(block != NULL && is_zero(block, sizes[n]));
            fill(block, sizes[n], 1);
            hh_free_sized(block, sizes[n]);
        }
    }
    unsigned char *block = hh_calloc(33, 3);
    CHECK(block != NULL && is_zero(block, 99));
    hh_free_sized(block, 99);

    const size_t half = (size_t)1 << 32;
    errno = 0;
    CHECK(hh_calloc(unknown(half), unknown(half)) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hh_calloc(unknown(SIZE_MAX / 2), 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hh_calloc(3, unknown(SIZE_MAX / 2)) == NULL && errno == ENOMEM);
    /* The product is 16 when it is cut to a size_t. */
    errno = 0;
    CHECK(hh_calloc(unknown(SIZE_MAX / 16 + 2), 16) == NULL && errno == ENOMEM);
}

static void test_realloc(void) {
    for (unsigned from = 0; from < SIZES; from++) {
        for (unsigned to = 0; to < SIZES; to++) {
            void *block = hh_realloc(NULL, sizes[from]);
            CHECK(block != NULL);
            fill(block, sizes[from], from);
            block = hh_realloc(block, sizes[to]);
            CHECK(block != NULL && hh_usable_size(block) >= sizes[to]);
            CHECK(is_filled(block, sizes[from] < sizes[to] ? sizes[from] : sizes[to], from));
            fill(block, sizes[to], to);
            hh_free_sized(block, sizes[to]);
        }
    }
    /* To nothing: the block stays one. */
    void *block = hh_realloc(hh_malloc(5000), 0);
    CHECK(block != NULL && hh_usable_size(block) >= 1);
    hh_free(block);
    block = hh_realloc(NULL, 0);
    CHECK(block != NULL);
    hh_free_sized(block, 0);

    /* Refused: the block is as it was. */
    for (unsigned n = 0; n < SIZES; n++) {
        block = hh_malloc(sizes[n]);
        CHECK(block != NULL);
        fill(block, sizes[n], n);
        errno = 0;
        void *refused = hh_realloc(block, unknown(SIZE_MAX - 100));
        CHECK(refused == NULL && errno == ENOMEM);
        refused = hh_realloc(block, unknown((size_t)1 << 47));
        CHECK(refused == NULL);
        CHECK(is_filled(block, sizes[n], n));
        hh_free_sized(block, sizes[n]);
    }
}

static void test_aligned(void) {
    for (size_t alignment = 1; alignment <= HH_MAX_ALIGNMENT; alignment *= 2) {
        for (unsigned n = 0; n < SIZES; n++) {
            void *block = hh_aligned_alloc(alignment, sizes[n]), *other = hh_aligned_alloc(alignment, sizes[n]);
            CHECK(block != NULL && (uintptr_t)block % alignment == 0);
            CHECK(other != NULL && (uintptr_t)other % alignment == 0 && other != block);
            CHECK(hh_usable_size(block) >= sizes[n]);
            fill(block, sizes[n], n);
            fill(other, sizes[n], n + 1);
            CHECK(is_filled(block, sizes[n], n));
            hh_free(block);
            hh_free(other);
        }
        void *none = hh_aligned_alloc(alignment, 0), *other = hh_aligned_alloc(alignment, 0);
        CHECK(none != NULL && other != NULL && none != other);
        hh_free(none);
        hh_free(other);
    }
    const size_t bad[] = {0, 3, 24, 48, 100, HH_MAX_ALIGNMENT * 2, (size_t)1 << 63, SIZE_MAX};
    for (unsigned n = 0; n < sizeof bad / sizeof bad[0]; n++) {
        errno = 0;
        CHECK(hh_aligned_alloc(unknown(bad[n]), 100) == NULL && errno == EINVAL);
    }
    /* The contents stay, the alignment need not. */
    void *block = hh_aligned_alloc(4096, 100);
    CHECK(block != NULL);
    fill(block, 100, 9);
    block = hh_realloc(block, 100000);
    CHECK(block != NULL && is_filled(block, 100, 9));
    hh_free(block);
}

/* ---- Anything in any order, against what must be in the blocks ------------------------------------------------------ */

static void test_random(void) {
    enum { BLOCKS = 2000, STEPS = 400000 };
    static struct {
        void *block;
        size_t size;
        unsigned seed;
    } model[BLOCKS];
    hh_heap *heap = hh_heap_new(NULL);
    CHECK(heap != NULL);
    unsigned long long random = 42;
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned n = (unsigned)(next_random(&random) % BLOCKS);
        unsigned long long number = next_random(&random);
        size_t size = (size_t)(number % (number % 64 == 0 ? 40000 : number % 8 == 0 ? 5000 : 200));
        if (number % 20011 == 0)
            size = (size_t)(number % 3000000);
        CHECK(model[n].block == NULL || is_filled(model[n].block, model[n].size, model[n].seed));
        unsigned action = (unsigned)(next_random(&random) % 4);
        if (model[n].block == NULL) {
            if (action == 0)
                model[n].block = hh_malloc(size);
            else if (action == 1)
                model[n].block = hh_calloc(1, size);
            else
                model[n].block = action == 2 ? hh_heap_alloc(heap, size) : hh_heap_zalloc(heap, size);
            CHECK(model[n].block != NULL && (action % 2 == 0 || is_zero(model[n].block, size)));
        } else if (action == 0) {
            size_t kept = size < model[n].size ? size : model[n].size;
            model[n].block = number % 2 == 0 ? hh_heap_realloc(heap, model[n].block, model[n].size, size)
                                             : hh_realloc(model[n].block, size);
            CHECK(model[n].block != NULL && is_filled(model[n].block, kept, model[n].seed));
        } else {
            if (action == 1)
                hh_free(model[n].block);
            else if (action == 2)
                hh_heap_free(heap, model[n].block);
            else
                hh_heap_free_sized(heap, model[n].block, model[n].size);
            model[n].block = NULL;
            continue;
        }
        CHECK(hh_usable_size(model[n].block) >= size);
        model[n].size = size;
        model[n].seed = step;
        fill(model[n].block, size, step);
    }
    for (unsigned n = 0; n < BLOCKS; n++) {
        CHECK(model[n].block == NULL || is_filled(model[n].block, model[n].size, model[n].seed));
        hh_free(model[n].block);
    }
    hh_heap_drop(heap);
}

MAIN({"malloc", test_malloc}, {"calloc", test_calloc}, {"realloc", test_realloc}, {"aligned", test_aligned}, {"random", test_random})
