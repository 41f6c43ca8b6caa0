/* Heaps of their own, and what they do when memory is exhausted: heaps SECTION. */
#include "interface.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { FEW = 32 };

/* A block of each of the sizes of 65 to 576 bytes in steps of 16 from the thread's heap, which lie in so many
 * heap pages. */
static void *few_of(void *function) {
    void *blocks[FEW];
    for (unsigned n = 0; n < FEW; n++) {
        size_t size = 65 + 16 * n;
        switch ((intptr_t)function) {
        case 0: blocks[n] = hh_malloc(size); break;
        case 1: blocks[n] = hh_calloc(1, size); break;
        default: blocks[n] = hh_realloc(NULL, size);
        }
        CHECK(blocks[n] != NULL && hh_usable_size(blocks[n]) >= size);
    }
    void *pages = (void *)heap_pages(blocks, FEW);
    for (unsigned n = 0; n < FEW; n++)
        hh_free_sized(blocks[n], 65 + 16 * n);
    return pages;
}

/* A thread with few blocks has few heap pages, whichever function they come from. */
static void test_few(void) {
    for (intptr_t function = 0; function < 3; function++) {
        pthread_t thread;
        void *pages;
        CHECK(pthread_create(&thread, NULL, few_of, (void *)function) == 0);
        CHECK(pthread_join(thread, &pages) == 0);
        CHECK((intptr_t)pages > 0 && (intptr_t)pages <= 12);
    }
}

static void test_heaps(void) {
    const hh_heap_options options = HH_HEAP_OPTIONS_INIT;
    hh_heap *heap = hh_heap_new(NULL), *second = hh_heap_new(&options);
    CHECK(heap != NULL && second != NULL && heap != second);
    void *blocks[SIZES];
    for (unsigned n = 0; n < SIZES; n++) {
        blocks[n] = n % 2 == 0 ? hh_heap_alloc(heap, sizes[n]) : hh_heap_zalloc(heap, sizes[n]);
        CHECK(blocks[n] != NULL && (uintptr_t)blocks[n] % 16 == 0);
        CHECK(n % 2 == 0 || is_zero(blocks[n], sizes[n]));
        fill(blocks[n], sizes[n], n);
    }
    for (unsigned n = 0; n < SIZES; n++) {
        CHECK(is_filled(blocks[n], sizes[n], n));
        switch (n % 4) { /* By any heap that the thread uses. */
        case 0: hh_heap_free(heap, blocks[n]); break;
        case 1: hh_heap_free_sized(heap, blocks[n], sizes[n]); break;
        case 2: hh_heap_free_sized(second, blocks[n], sizes[n]); break;
        default: hh_free(blocks[n]);
        }
    }
    hh_heap_free(heap, NULL);
    hh_heap_free_sized(heap, NULL, 3);

    for (unsigned from = 0; from < SIZES; from++) {
        for (unsigned to = 0; to < SIZES; to++) {
            void *block = hh_heap_realloc(heap, NULL, unknown(77), sizes[from]);
            CHECK(block != NULL);
            fill(block, sizes[from], from);
            /* In the second heap as well: the block moves there. */
            block = hh_heap_realloc(to % 3 == 0 ? second : heap, block, sizes[from], sizes[to]);
            CHECK(block != NULL && is_filled(block, sizes[from] < sizes[to] ? sizes[from] : sizes[to], from));
            errno = 0;
            CHECK(hh_heap_realloc(heap, block, sizes[to], unknown(SIZE_MAX - 7)) == NULL && errno == ENOMEM);
            block = hh_heap_realloc(heap, block, sizes[to], 0);
            CHECK(block != NULL);
            hh_heap_free_sized(heap, block, 0);
        }
    }
    errno = 0;
    CHECK(hh_heap_alloc(heap, unknown(SIZE_MAX)) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hh_heap_zalloc(heap, unknown(SIZE_MAX / 2)) == NULL && errno == ENOMEM);
    void *none = hh_heap_alloc(heap, 0), *other = hh_heap_zalloc(heap, 0);
    CHECK(none != NULL && other != NULL && none != other);

    /* Dropped with live blocks: they stay, and are freed by others. */
    void *left = hh_heap_alloc(second, 300);
    CHECK(left != NULL);
    fill(left, 300, 3);
    hh_heap_drop(second);
    CHECK(is_filled(left, 300, 3));
    CHECK(hh_usable_size(left) >= 300);
    hh_free_sized(left, 300);
    hh_heap_free(heap, none);
    hh_heap_free(heap, other);

    /* Heap pages without live blocks are kept, and given up on demand. */
    enum { MANY = 4096 };
    static void *many[MANY];
    for (unsigned n = 0; n < MANY; n++)
        CHECK((many[n] = hh_heap_alloc(heap, 64)) != NULL);
    for (unsigned n = 0; n < MANY; n++)
        hh_heap_free_sized(heap, many[n], 64);
    size_t trimmed = hh_heap_trim(heap);
    CHECK(trimmed > 0 && trimmed % 16384 == 0);
    CHECK(hh_heap_trim(heap) == 0);
    hh_heap_drop(heap);
    hh_heap_drop(NULL);

    hh_heap_options bad = HH_HEAP_OPTIONS_INIT;
    bad.flags = 1;
    errno = 0;
    CHECK(hh_heap_new(&bad) == NULL && errno == EINVAL);
    bad.flags = 0;
    bad.size = 3;
    errno = 0;
    CHECK(hh_heap_new(&bad) == NULL && errno == EINVAL);
}

/* ---- Memory exhausted --------------------------------------------------------------------------------------------- */

/* All memory that the limit of the address space leaves, in blocks of one size. */
static void exhaust(size_t size) {
    hh_heap *heap = hh_heap_new(NULL);
    CHECK(heap != NULL);
    /* A list, so that the test needs no memory of its own. */
    void **list = NULL, **block;
    unsigned long count = 0;
    errno = 0;
    while ((block = hh_heap_alloc(heap, size)) != NULL) {
        *block = list;
        list = block;
        CHECK(++count < 100000000);
    }
    CHECK(errno == ENOMEM && count > 0);
    errno = 0;
    CHECK(hh_malloc(9000000) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hh_calloc(3, 3000000) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hh_aligned_alloc(4096, 9000000) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hh_realloc(list, 9000000) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hh_heap_realloc(heap, list, size, 9000000) == NULL && errno == ENOMEM);
    unsigned long freed = 0;
    while (list != NULL) {
        block = *list;
        hh_heap_free_sized(heap, list, size);
        list = block;
        freed++;
    }
    CHECK(freed == count);
    hh_heap_trim(heap);
    CHECK(hh_give_back() > 0);
    /* As much as before. */
    for (unsigned long n = 0; n < count / 2; n++) {
        CHECK((block = hh_heap_alloc(heap, size)) != NULL);
        *block = list;
        list = block;
    }
    while (list != NULL) {
        block = *list;
        hh_free(list);
        list = block;
    }
    hh_heap_drop(heap);
}

static const struct rlimit limit = {400 << 20, 400 << 20};

/* For requests of each kind a child, which the limit is for. */
static void in_children(void (*run)(size_t)) {
    const size_t kinds[] = {48, 3000, 100000, 5000000};
    for (unsigned kind = 0; kind < 4; kind++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            run(kinds[kind]);
            _exit(0);
        }
        wait_for(child);
    }
}

static void limit_and_exhaust(size_t size) {
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    exhaust(size);
}

static void test_exhausted(void) {
    in_children(limit_and_exhaust);
}

static void *thread_with_a_block(void *size) {
    void *block = hh_malloc(*(size_t *)size);
    memset(block, 1, *(size_t *)size);
    hh_free(block);
    return size;
}

static void limit_while_blocks_live(size_t size) {
    void *large = hh_malloc(30 << 20), *left = hh_malloc(20 << 20), *blocks[100], *mapping;
    pthread_t thread;
    for (unsigned i = 0; i < 100; i++) CHECK((blocks[i] = hh_malloc(1 + i * 700)) != NULL);
    hh_free(left);
    hh_limit_address_space(limit.rlim_cur);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    CHECK(pthread_create(&thread, NULL, thread_with_a_block, &size) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    mapping = mmap(NULL, 100 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(mapping != MAP_FAILED && munmap(mapping, 100 << 20) == 0);
    exhaust(size);
    for (unsigned i = 0; i < 100; i++) hh_free(blocks[i]);
    hh_free(large);
}

/* What was reserved counted against the limit: there was no thread, no mapping, and no end of blocks. */
static void test_limited(void) {
    in_children(limit_while_blocks_live);
}

MAIN({"few", test_few}, {"heaps", test_heaps}, {"exhausted", test_exhausted}, {"limited", test_limited})
