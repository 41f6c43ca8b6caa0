/* Blocks that other threads free, and forks: threads SECTION. */
#include "interface.h"

#include <pthread.h>

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

/* ---- A process that has used up all keys of the C library before the first request ---------------------------------- */

static void *allocate_much(void *unused) {
    (void)unused;
    enum { COUNT = 500 };
    void *blocks[COUNT];
    for (unsigned n = 0; n < COUNT; n++)
        CHECK((blocks[n] = hh_malloc(n + 1)) != NULL);
    for (unsigned n = 0; n < COUNT; n++)
        hh_free(blocks[n]);
    return NULL;
}

/* Nobody was told that a thread ended: each kept its heap for good. */
static void test_keys(void) {
    pthread_key_t key;
    while (pthread_key_create(&key, NULL) == 0)
        ;
    uint64_t before = 0;
    for (int n = 0; n < 100; n++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, allocate_much, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        /* A few: the number of one that ended may be free a moment later only. */
        if (n == 9)
            before = statistics().live;
    }
    CHECK(statistics().live < before + (8 << 20));
}

/* ---- Fork --------------------------------------------------------------------------------------------------------- */

static volatile int stop;

/* Nobody forks before the threads are at work. While one starts, a sanitizer allocates for it, and a child
 * forked meanwhile finds the lock of the sanitizer's own allocator taken for good: it hung one time in thirty. */
static pthread_barrier_t at_work;

static void *churn(void *seed) {
    pthread_barrier_wait(&at_work);
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
    CHECK(pthread_barrier_init(&at_work, NULL, 3) == 0);
    pthread_t threads[2];
    for (uintptr_t n = 0; n < 2; n++)
        CHECK(pthread_create(&threads[n], NULL, churn, (void *)(n + 1)) == 0);
    pthread_barrier_wait(&at_work);
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            child_of_fork(heap, blocks, COUNT);
            _exit(0);
        }
        wait_for(child);
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

MAIN({"threads", test_threads}, {"keys", test_keys}, {"fork", test_fork})
