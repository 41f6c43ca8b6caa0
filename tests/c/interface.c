/* Every function of hugeheap.h, with what it accepts and what it refuses: interface SECTION. */
#include "check.h"

#include <errno.h>
#include <hugeheap.h>
#ifdef INLINE
#include <hugeheap_inline.h>
#define hh_heap_alloc hh_heap_alloc_inline
#define hh_heap_free_sized hh_heap_free_sized_inline
#endif
#include <inttypes.h>
#include <pthread.h>
#include <stdalign.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Around every border: granules, small blocks, medium blocks, heap pages, page runs, large blocks. */
static const size_t sizes[] = {
    1,    8,    15,   16,    17,    31,    32,    100,    255,     256,     257,     511,     512,     513,     640,           641,
    1000, 2047, 2048, 4095,  4096,  5000,  8191,  8192,   8193,    16384,   16385,   100000,  1048575, 1048576, 1048577,       2097152,
    2097153, 3000000, 9000000,
};
#define SIZES (sizeof sizes / sizeof sizes[0])

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

static hh_stats_t statistics(void) {
    hh_stats_t stats;
    memset(&stats, 0xFF, sizeof stats);
    stats.size = sizeof stats;
    CHECK(hh_stats(&stats) == HH_OK);
    CHECK(stats.size == sizeof stats && stats.schema == 1);
    return stats;
}

static void test_process(void) {
    CHECK(strcmp(hh_version(), HH_VERSION) == 0);

    enum { BYTES = 64 << 20 };
    hh_stats_t before = statistics();
    CHECK(before.pid == (uint32_t)getpid() || before.pid == 0);
    char *block = hh_malloc(BYTES);
    CHECK(block != NULL);
    memset(block, 1, BYTES);
    hh_measure();
    hh_stats_t during = statistics();
    CHECK(during.live >= before.live + BYTES && during.arenas >= 32 && during.large >= BYTES);
    CHECK(during.resident >= BYTES);
    hh_free(block);
    CHECK(statistics().live < during.live);
    hh_give_back();
    /* Some of it maintenance may have given back in the meantime. */
    hh_stats_t after = statistics();
    CHECK(after.given_back >= before.given_back + BYTES && after.retained == 0 && after.live_peak >= during.live);
    CHECK(hh_give_back() == 0);

    /* A program that was built with fewer members, and one that was built with more. */
    struct {
        hh_stats_t known;
        uint64_t later[2];
    } newer;
    memset(&newer, 0xAA, sizeof newer);
    newer.known.size = sizeof newer;
    CHECK(hh_stats(&newer.known) == HH_OK && newer.known.size == sizeof(hh_stats_t));
    CHECK(newer.later[0] == 0xAAAAAAAAAAAAAAAAu);
    hh_stats_t older;
    memset(&older, 0xAA, sizeof older);
    older.size = offsetof(hh_stats_t, arenas_full);
    CHECK(hh_stats(&older) == HH_OK && older.size == offsetof(hh_stats_t, arenas_full));
    CHECK(older.arenas_peak >= 32 && older.arenas_full == 0xAAAAAAAAAAAAAAAAu);
    older.size = 0;
    CHECK(hh_stats(&older) == HH_BAD_SIZE);
    older.size = 13;
    CHECK(hh_stats(&older) == HH_BAD_SIZE);
    CHECK(hh_stats(NULL) == HH_BAD_ARGUMENT);

    hh_options options = HH_OPTIONS_INIT;
    CHECK(hh_configure(&options) == HH_OK);
    CHECK(statistics().policy == 4);
    options.policy = "thp";
    options.decay = 250 * UINT64_C(1000000);
    options.limit = (uint64_t)1 << 40;
    CHECK(hh_configure(&options) == HH_OK);
    CHECK(statistics().policy == 1);
    options.policy = NULL;
    options.limit = HH_NO_LIMIT;
    CHECK(hh_configure(&options) == HH_OK);
    CHECK(statistics().policy == 1);
    /* What is refused changes nothing. */
    options.policy = "dense";
    options.decay = 999999;
    CHECK(hh_configure(&options) == HH_BAD_DECAY);
    options.decay = UINT64_MAX;
    CHECK(hh_configure(&options) == HH_BAD_DECAY);
    const char *const bad[] = {"", "THP", "thp ", "4", "\xff"};
    options.decay = 0;
    for (unsigned n = 0; n < sizeof bad / sizeof bad[0]; n++) {
        options.policy = bad[n];
        CHECK(hh_configure(&options) == HH_BAD_POLICY);
    }
    options.policy = "base";
    options.size = 4;
    CHECK(hh_configure(&options) == HH_BAD_SIZE);
    options.size = sizeof options + 8;
    CHECK(hh_configure(&options) == HH_BAD_SIZE);
    CHECK(hh_configure(NULL) == HH_BAD_ARGUMENT);
    CHECK(statistics().policy == 1);

    for (int status = HH_OK; status <= HH_BAD_ARGUMENT; status++) {
        CHECK(strlen(hh_strerror(status)) > 5);
        for (int other = HH_OK; other < status; other++)
            CHECK(strcmp(hh_strerror(status), hh_strerror(other)) != 0);
    }
    CHECK(strcmp(hh_strerror(99), hh_strerror(-1)) == 0 && strstr(hh_strerror(99), "not a status") != NULL);
}

/* Prints the JSON, for the test to parse; checks every length of buffer. */
static void test_json(void) {
    /* A counted fallback, so that there is a reason to print: arenas that this address space does not hold. */
    CHECK(hh_malloc(unknown((size_t)1 << 46)) == NULL);
    static char whole[8192], part[8192];
    size_t length = hh_stats_json(NULL, 0);
    CHECK(length > 100 && length < sizeof whole);
    CHECK(hh_stats_json(NULL, 100) == length);
    CHECK(hh_stats_json(whole, sizeof whole) == length && strlen(whole) == length);
    for (size_t size = 1; size <= length + 1; size++) {
        memset(part, '?', sizeof part);
        CHECK(hh_stats_json(part, size) == length);
        CHECK(strlen(part) == size - 1 && memcmp(part, whole, size - 1) == 0 && part[size] == '?');
    }
    puts(whole);
}

/* ---- Threads: one allocates, others free -------------------------------------------------------------------------- */

enum { SLOTS = 64, ROUNDS = 200000, CONSUMERS = 3 };

struct message {
    unsigned size, seed;
    unsigned char bytes[];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct message *slots[SLOTS];
    unsigned count;
    int done;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *consume(void *unused) {
    (void)unused;
    for (unsigned long round = 0;; round++) {
        pthread_mutex_lock(&queue.lock);
        while (queue.count == 0 && !queue.done)
            pthread_cond_wait(&queue.changed, &queue.lock);
        struct message *message = queue.count > 0 ? queue.slots[--queue.count] : NULL;
        pthread_cond_broadcast(&queue.changed);
        pthread_mutex_unlock(&queue.lock);
        if (message == NULL)
            return NULL;
        size_t size = sizeof *message + message->size;
        CHECK(is_filled(message->bytes, message->size, message->seed));
        /* Every third comes back larger, in this thread's heap. */
        if (round % 3 == 0) {
            message = hh_realloc(message, size + 600);
            CHECK(message != NULL && is_filled(message->bytes, message->size, message->seed));
            size += 600;
        }
        if (round % 2 == 0)
            hh_free(message);
        else
            hh_free_sized(message, size);
    }
}

static void produce(hh_heap *heap) {
    unsigned long long random = 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned long long number = next_random(&random);
        unsigned bytes = number % 1000 == 0 ? (unsigned)(number / 1000 % 100000) : (unsigned)(number / 1000 % 500);
        size_t size = sizeof(struct message) + bytes;
        struct message *message = round % 2 == 0 ? hh_heap_alloc(heap, size) : hh_malloc(size);
        CHECK(message != NULL);
        message->size = bytes;
        message->seed = round;
        fill(message->bytes, bytes, round);
        pthread_mutex_lock(&queue.lock);
        while (queue.count == SLOTS)
            pthread_cond_wait(&queue.changed, &queue.lock);
        queue.slots[queue.count++] = message;
        pthread_cond_broadcast(&queue.changed);
        pthread_mutex_unlock(&queue.lock);
    }
}

static void *drop_from_thread(void *heap) {
    void *block = hh_heap_alloc(heap, 48);
    CHECK(block != NULL);
    hh_heap_drop(heap);
    return block;
}

static void test_threads(void) {
    hh_heap *heap = hh_heap_new(NULL);
    CHECK(heap != NULL);
    pthread_t threads[CONSUMERS];
    for (int n = 0; n < CONSUMERS; n++)
        CHECK(pthread_create(&threads[n], NULL, consume, NULL) == 0);
    produce(heap);
    pthread_mutex_lock(&queue.lock);
    queue.done = 1;
    pthread_cond_broadcast(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
    for (int n = 0; n < CONSUMERS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);

    /* A handle that changes its thread. */
    void *block;
    CHECK(pthread_create(&threads[0], NULL, drop_from_thread, heap) == 0);
    CHECK(pthread_join(threads[0], &block) == 0);
    hh_free_sized(block, 48);
    hh_give_back();
    /* All came back: what is live now are the pages that heaps keep. */
    CHECK(statistics().live < (4 << 20));
}

/* ---- Fork --------------------------------------------------------------------------------------------------------- */

static volatile int stop;

static void *churn(void *seed) {
    unsigned long long random = (unsigned long long)(uintptr_t)seed;
    void *blocks[100] = {NULL};
    while (!stop) {
        unsigned long long number = next_random(&random);
        hh_free(blocks[number % 100]);
        blocks[number % 100] = hh_malloc(number % 2000);
        CHECK(blocks[number % 100] != NULL);
    }
    for (int n = 0; n < 100; n++)
        hh_free(blocks[n]);
    return NULL;
}

static void *allocate_some(void *unused) {
    (void)unused;
    for (int n = 0; n < 1000; n++) {
        void *block = hh_malloc(100);
        CHECK(block != NULL);
        hh_free_sized(block, 100);
    }
    return NULL;
}

static void child_of_fork(hh_heap *heap, void **blocks, unsigned count) {
    /* The heap of the parent, with all that is in it. */
    for (unsigned n = 0; n < count; n++) {
        CHECK(is_filled(blocks[n], n, n));
        hh_heap_free_sized(heap, blocks[n], n);
    }
    for (unsigned n = 0; n < count; n++)
        CHECK((blocks[n] = hh_heap_alloc(heap, n)) != NULL);
    allocate_some(NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate_some, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    /* What a new thread was given did not come from this heap. */
    for (unsigned n = 0; n < count; n++)
        hh_heap_free_sized(heap, blocks[n], n);
    hh_heap_drop(heap);
}

static void test_fork(void) {
    enum { COUNT = 500, CHILDREN = 20 };
    static void *blocks[COUNT];
    hh_heap *heap = hh_heap_new(NULL);
    CHECK(heap != NULL);
    for (unsigned n = 0; n < COUNT; n++) {
        CHECK((blocks[n] = hh_heap_alloc(heap, n)) != NULL);
        fill(blocks[n], n, n);
    }
    pthread_t threads[2];
    for (uintptr_t n = 0; n < 2; n++)
        CHECK(pthread_create(&threads[n], NULL, churn, (void *)(n + 1)) == 0);
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            child_of_fork(heap, blocks, COUNT);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = 1;
    for (int n = 0; n < 2; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    for (unsigned n = 0; n < COUNT; n++) {
        CHECK(is_filled(blocks[n], n, n));
        hh_heap_free_sized(heap, blocks[n], n);
    }
    hh_heap_drop(heap);
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

static void test_exhausted(void) {
    const struct rlimit limit = {400 << 20, 400 << 20};
    const size_t kinds[] = {48, 3000, 100000, 5000000};
    for (unsigned kind = 0; kind < 4; kind++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
            exhaust(kinds[kind]);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
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

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } sections[] = {
        {"malloc", test_malloc},   {"calloc", test_calloc},   {"realloc", test_realloc}, {"aligned", test_aligned},
        {"heaps", test_heaps},     {"process", test_process}, {"json", test_json},       {"threads", test_threads},
        {"fork", test_fork},       {"exhausted", test_exhausted}, {"random", test_random},
    };
    for (unsigned n = 0; n < sizeof sections / sizeof sections[0]; n++)
        if (count == 2 && strcmp(words[1], sections[n].name) == 0)
            return sections[n].run(), 0;
    fputs("usage: interface malloc|calloc|realloc|aligned|heaps|process|json|threads|fork|exhausted|random\n", stderr);
    return 2;
}
