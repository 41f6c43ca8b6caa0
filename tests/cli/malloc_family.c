/* The functions of <malloc.h> and <stdlib.h> as a program finds them at level malloc. Each section ends the
 * process with a message when something is not as the C library's manual has it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* The compiler knows these functions, and what it may leave out. */
static void *volatile sink;
static volatile size_t most = SIZE_MAX;

extern void *__libc_malloc(size_t);
extern void *__libc_memalign(size_t, size_t);

static void sizes(void) {
    for (size_t size = 0; size < (8u << 20); size += size / 7 + 1) {
        unsigned char *block = malloc(size);
        CHECK(block && (uintptr_t)block % 16 == 0);
        CHECK(malloc_usable_size(block) >= size);
        memset(block, 0xa5, size);
        block = realloc(block, size * 2 + 1);
        for (size_t at = 0; at < size; at++)
            CHECK(block[at] == 0xa5);
        unsigned char *zeros = calloc(size + 1, 3);
        CHECK(is_zero(zeros, (size + 1) * 3));
        free(block);
        free(zeros);
    }
    void *none = malloc(0), *other = malloc(0);
    CHECK(none && other && none != other);
    free(none);
    free(other);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    CHECK(realloc(malloc(10), 0) == NULL);
    sink = realloc(NULL, 100);
    CHECK(malloc_usable_size(sink) >= 100);
    free(sink);
}

/* With a guard behind each, there were mappings for 33,000 of them, and for nothing else. None is written, so
 * that they need no memory. */
static void many(void) {
    for (int number = 0; number < 40000; number++)
        CHECK(malloc(20000));
    sink = malloc(100 << 20);
    CHECK(sink);
}

static _Atomic int ready;

static void *asks_the_c_library(void *unused) {
    ready++;
    while (ready < 2)
        ;
    void *block = __libc_malloc(100);
    CHECK(block);
    free(block);
    return unused;
}

/* The C library initialised its own malloc in both threads at once, where neither it nor hugeheap had served
 * before: nine of ten children ended. */
static void first(void) {
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            pthread_t threads[2];
            for (int thread = 0; thread < 2; thread++)
                CHECK(pthread_create(&threads[thread], NULL, asks_the_c_library, NULL) == 0);
            for (int thread = 0; thread < 2; thread++)
                CHECK(pthread_join(threads[thread], NULL) == 0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

static void refusals(void) {
    errno = 0;
    CHECK(malloc(most) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(malloc(most / 2) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(most / 2, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(NULL, most / 2, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(pvalloc(most) == NULL && errno == ENOMEM);
    char *block = malloc(5);
    memcpy(block, "five", 5);
    errno = 0;
    CHECK(realloc(block, most / 2) == NULL && errno == ENOMEM);
    CHECK(strcmp(block, "five") == 0);
    errno = EDOM;
    free(block);
    CHECK(errno == EDOM);
}

static void alignments(void) {
    for (size_t alignment = 1; alignment <= (64u << 20); alignment *= 2) {
        for (size_t size = 1; size < 3000000; size = size * 5 + 3) {
            void *block = NULL;
            if (alignment >= sizeof(void *)) {
                errno = EDOM;
                CHECK(posix_memalign(&block, alignment, size) == 0);
                CHECK(errno == EDOM && (uintptr_t)block % alignment == 0 && malloc_usable_size(block) >= size);
                memset(block, 1, size);
                free(block);
            }
            block = memalign(alignment, size);
            CHECK(block && (uintptr_t)block % alignment == 0);
            /* Whose it is by now is no matter of the caller's. */
            block = realloc(block, size + 100);
            memset(block, 2, size + 100);
            free(block);
            block = aligned_alloc(alignment, size);
            CHECK(block && (uintptr_t)block % alignment == 0);
            free(block);
        }
    }
    void *untouched = &untouched, *block = untouched;
    CHECK(posix_memalign(&block, 24, 8) == EINVAL && posix_memalign(&block, 4, 8) == EINVAL);
    CHECK(posix_memalign(&block, 64, most / 2) == ENOMEM && block == untouched);
    /* What is no power of two is rounded up. */
    block = memalign(48, 100);
    CHECK((uintptr_t)block % 64 == 0);
    free(block);
    block = valloc(10);
    CHECK((uintptr_t)block % 4096 == 0);
    free(block);
    block = pvalloc(4097);
    CHECK((uintptr_t)block % 4096 == 0 && malloc_usable_size(block) >= 8192);
    free(block);
}

/* Blocks of the C library's own: of who asks it by another name. */
static void foreign(void) {
    char *block = __libc_malloc(100);
    CHECK(malloc_usable_size(block) >= 100);
    strcpy(block, "as it was");
    block = realloc(block, 100000);
    CHECK(strcmp(block, "as it was") == 0);
    free(block);
    free(__libc_memalign(4096, 10));
}

/* Under a limit that leaves less than an arena small blocks are had all the same, and large ones grow as far
 * as there is memory. */
static void limited(void) {
    struct rlimit limit;
    char *grown = malloc(1000);
    strcpy(grown, "as it was");
    limit.rlim_cur = limit.rlim_max = 300u << 20;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    void **all = NULL;
    size_t count = 0;
    for (;; count++) {
        void **block = malloc(3000);
        if (block == NULL)
            break;
        memset(block, 1, 3000);
        *block = all;
        all = block;
    }
    CHECK(errno == ENOMEM && count > (200u << 20) / 3000);
    for (size_t freed = 0; freed < count / 2; freed++) {
        void **next = *all;
        free(all);
        all = next;
    }
    size_t size = 1000;
    for (char *more; (more = realloc(grown, size + size / 2)) != NULL; size += size / 2)
        grown = more;
    CHECK(errno == ENOMEM && size > 4u << 20 && strcmp(grown, "as it was") == 0);
    free(grown);
    while (all) {
        void **next = *all;
        free(all);
        all = next;
    }
}

/* Where less than an arena is left to be had, the C library has some of it. Its blocks are as long as was
 * asked for, hugeheap's a twelfth longer. */
static void little_left(void) {
    const size_t size = 3000;
    struct rlimit limit;
    unsigned long kib = 0;
    char line[200];
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        sscanf(line, "VmData: %lu", &kib);
    CHECK(fclose(file) == 0 && kib > 0);
    limit.rlim_cur = limit.rlim_max = (kib << 10) + (3u << 19);
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    void *block;
    size_t ours = 0, others = 0;
    while ((block = malloc(size)) != NULL) {
        memset(block, 1, size);
        *(malloc_usable_size(block) < size + 100 ? &others : &ours) += 1;
    }
    CHECK(errno == ENOMEM && ours > 0 && others > 300);
}

static void *churn(void *argument) {
    unsigned state = (unsigned)(uintptr_t)argument;
    char *blocks[256] = {0};
    for (int step = 0; step < 60000; step++) {
        state = state * 1103515245u + 12345u;
        unsigned place = state >> 16 & 255, size = (state >> 8) % 5000;
        if (blocks[place])
            CHECK(blocks[place][0] == (char)place);
        free(blocks[place]);
        blocks[place] = malloc(size + 1);
        blocks[place][0] = (char)place;
    }
    /* For another thread. */
    char **left = malloc(sizeof blocks);
    memcpy(left, blocks, sizeof blocks);
    return left;
}

static void free_left(char **left) {
    for (int place = 0; place < 256; place++)
        free(left[place]);
    free(left);
}

static void at_fork(void) { free(malloc(3000)); }

static void threads(void) {
    /* Handlers that were registered later run while hugeheap's have not yet, and after they have. */
    CHECK(pthread_atfork(at_fork, at_fork, at_fork) == 0);
    for (int round = 0; round < 6; round++) {
        pthread_t others[6];
        for (int other = 0; other < 6; other++)
            CHECK(pthread_create(&others[other], NULL, churn, (void *)(uintptr_t)(round * 10 + other + 1)) == 0);
        for (int child = 0; child < 3; child++) {
            pid_t pid = fork();
            CHECK(pid >= 0);
            if (pid == 0) {
                free_left(churn((void *)(uintptr_t)7));
                _exit(0);
            }
            int status;
            CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        }
        for (int other = 0; other < 6; other++) {
            void *left;
            CHECK(pthread_join(others[other], &left) == 0);
            free_left(left);
        }
    }
}

static pthread_key_t key;

static void late(void *value) {
    free(value);
    free(malloc(500));
}

static void *with_key(void *unused) {
    (void)unused;
    CHECK(pthread_setspecific(key, malloc(400)) == 0);
    return NULL;
}

/* Destructors that run after the heap of their thread has been left. */
static void endings(void) {
    CHECK(pthread_key_create(&key, late) == 0);
    for (int thread = 0; thread < 2000; thread++) {
        pthread_t other;
        CHECK(pthread_create(&other, NULL, with_key, NULL) == 0 && pthread_join(other, NULL) == 0);
    }
}

static void reports(void) {
    char *block = malloc(40u << 20);
    memset(block, 1, 40u << 20);
    sink = block;
    struct mallinfo2 now = mallinfo2();
    CHECK(now.uordblks >= 40u << 20 && now.hblkhd >= 40u << 20);
    free(block);
    CHECK(mallinfo2().fordblks >= 40u << 20);
    CHECK(malloc_trim(0) == 1 && mallinfo2().fordblks < 8u << 20);
    /* As the C library: programs take 0 for a mistake. */
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1 && mallopt(M_ARENA_MAX, 4) == 1);
    CHECK(malloc_info(1, stdout) == -1);
    CHECK(malloc_info(0, stdout) == 0);
    malloc_stats();
}

static void twice(void) {
    void *block = malloc(100);
    sink = block;
    free(block);
    free(sink);
}

static void inside(void) {
    char *block = malloc(100);
    sink = block + 16;
    free(sink);
}

static void wrong_realloc(void) {
    char *block = malloc(100);
    sink = block + 32;
    sink = realloc(sink, 200);
}

static void owner(void) {
    Dl_info info;
    CHECK(dladdr((void *)(uintptr_t)malloc, &info) != 0);
    puts(info.dli_fname);
    void *block = malloc(100);
    printf("%p\n", block);
    free(block);
}

/* For counting instructions: pairs SIZE COUNT, SIZE 0 for the loop itself. */
static int pairs(size_t size, long count) {
    for (long number = 0; number < count; number++) {
        void *block = size ? malloc(size) : NULL;
        __asm__ volatile("" : "+r"(block)::"memory");
        if (size)
            free(block);
    }
    return 0;
}

/* The same, eight at a time. */
static int stacks(size_t size, long count) {
    for (long number = 0; number < count; number += 8) {
        void *blocks[8];
        for (int each = 0; each < 8; each++) {
            blocks[each] = size ? malloc(size) : NULL;
            __asm__ volatile("" : "+r"(blocks[each])::"memory");
        }
        for (int each = 8; size && each-- > 0;)
            free(blocks[each]);
    }
    return 0;
}

/* Buffers of random sizes, written throughout, the oldest one replaced each time. Prints the bytes of those
 * that live, and what is resident, in KiB. */
static int ring(size_t most, long count) {
    enum { SLOTS = 100 };
    static char *blocks[SLOTS];
    static size_t sizes[SLOTS];
    uint64_t random = 88172645463325252u;
    size_t live = 0;
    for (long number = 0; number < count; number++) {
        int slot = (int)(number % SLOTS);
        free(blocks[slot]);
        live -= sizes[slot];
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        sizes[slot] = most / 8 + random % (most - most / 8);
        blocks[slot] = malloc(sizes[slot]);
        if (!blocks[slot])
            return 1;
        memset(blocks[slot], 1, sizes[slot]);
        live += sizes[slot];
    }
    char line[256];
    long resident = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmRSS: %ld", &resident) == 1)
            break;
    printf("%zu %ld\n", live >> 10, resident);
    return 0;
}

struct taken {
    size_t size;
    long count;
    void **blocks;
    pthread_barrier_t barrier;
};

static void *take(void *given) {
    struct taken *taken = given;
    for (long number = 0; taken->size && number < taken->count; number++)
        taken->blocks[number] = malloc(taken->size);
    pthread_barrier_wait(&taken->barrier);
    /* Lives until all are freed: its heap has no other owner meanwhile. */
    pthread_barrier_wait(&taken->barrier);
    return NULL;
}

/* The same of frees of blocks that another thread took: others SIZE COUNT. */
static int others(size_t size, long count) {
    struct taken taken = {.size = size, .count = count, .blocks = calloc((size_t)count, sizeof(void *))};
    pthread_t thread;
    pthread_barrier_init(&taken.barrier, NULL, 2);
    pthread_create(&thread, NULL, take, &taken);
    pthread_barrier_wait(&taken.barrier);
    for (long number = 0; number < count; number++) {
        void *block = taken.blocks[number];
        __asm__ volatile("" : "+r"(block)::"memory");
        if (size)
            free(block);
    }
    pthread_barrier_wait(&taken.barrier);
    pthread_join(thread, NULL);
    return 0;
}

enum { FEW = 32 };

/* A block of each of the sizes of 65 to 576 bytes in steps of 16, which lie in so many heap pages. */
static void *few_of(void *function) {
    void *blocks[FEW];
    for (long number = 0; number < FEW; number++) {
        size_t size = 65 + 16 * (size_t)number;
        switch ((intptr_t)function) {
        case 0: blocks[number] = malloc(size); break;
        case 1: blocks[number] = calloc(1, size); break;
        default: blocks[number] = realloc(malloc(1), size);
        }
        CHECK(blocks[number] && malloc_usable_size(blocks[number]) >= size);
    }
    void *pages = (void *)heap_pages(blocks, FEW);
    for (long number = 0; number < FEW; number++)
        free(blocks[number]);
    return pages;
}

/* A thread with few blocks has few heap pages, whichever function they come from. */
static void few(void) {
    for (intptr_t function = 0; function < 3; function++) {
        pthread_t thread;
        void *pages;
        CHECK(pthread_create(&thread, NULL, few_of, (void *)function) == 0);
        CHECK(pthread_join(thread, &pages) == 0);
        CHECK((intptr_t)pages > 0 && (intptr_t)pages <= 12);
    }
}

int main(int count, char **words) {
    if (count == 4 && strcmp(words[1], "others") == 0)
        return others(strtoul(words[2], NULL, 10), atol(words[3]));
    if (count == 4 && strcmp(words[1], "pairs") == 0)
        return pairs(strtoul(words[2], NULL, 10), atol(words[3]));
    if (count == 4 && strcmp(words[1], "stacks") == 0)
        return stacks(strtoul(words[2], NULL, 10), atol(words[3]));
    if (count == 4 && strcmp(words[1], "ring") == 0)
        return ring(strtoul(words[2], NULL, 10), atol(words[3]));
    const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"limited", limited}, {"little_left", little_left}, {"many", many}, {"first", first}, {"few", few}, {"sizes", sizes},     {"refusals", refusals}, {"alignments", alignments}, {"foreign", foreign},
               {"threads", threads}, {"endings", endings},   {"reports", reports},       {"twice", twice},
               {"inside", inside},   {"wrong_realloc", wrong_realloc}, {"owner", owner}};
    for (size_t number = 0; count == 2 && number < sizeof all / sizeof *all; number++)
        if (strcmp(all[number].name, words[1]) == 0) {
            all[number].run();
            return 0;
        }
    fprintf(stderr, "no such section\n");
    return 2;
}
