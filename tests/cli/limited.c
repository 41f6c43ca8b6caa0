/* What a program has under a limit: the steps are its arguments, and each that asks for memory prints how many
 * MiB there were.
   fN: blocks of N bytes until there are no more; tN: the same with four threads; x: all of them freed; b: the longest block; gN: one block that grows by N KiB at a time;
   vN: a limit of N MiB on address space; k: a child goes on. */
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4 };

/* A block begins with the one before it. */
struct list {
    void *last;
    size_t size, bytes;
};

static void *take_all(void *argument) {
    struct list *list = argument;
    void **block;
    while ((block = malloc(list->size)) != NULL) {
        ((char *)block)[list->size - 1] = 1;
        *block = list->last;
        list->last = block;
        list->bytes += list->size;
    }
    CHECK(errno == ENOMEM);
    return NULL;
}

static void empty(struct list *list) {
    while (list->last) {
        void *next = *(void **)list->last;
        free(list->last);
        list->last = next;
    }
    list->bytes = 0;
}

static void say(size_t bytes) {
    printf("%zu\n", bytes >> 20);
    fflush(stdout);
}

static size_t longest(void) {
    size_t have = 0, not = (size_t)1 << 46;
    while (not - have > 1 << 20) {
        size_t between = have + (not - have) / 2;
        void *block = malloc(between);
        free(block);
        *(block ? &have : &not) = between;
    }
    return have;
}

static size_t grown(size_t step) {
    size_t bytes = 0;
    char *block = NULL, *next;
    while ((next = realloc(block, bytes + step)) != NULL) {
        block = next;
        block[bytes] = (char)(bytes >> 20);
        bytes += step;
    }
    for (size_t at = 0; at < bytes; at += step)
        CHECK(block[at] == (char)(at >> 20));
    free(block);
    return bytes;
}

static void limit(size_t mib) {
    struct rlimit now;
    CHECK(getrlimit(RLIMIT_AS, &now) == 0);
    now.rlim_cur = mib << 20;
    CHECK(setrlimit(RLIMIT_AS, &now) == 0);
}

int main(int count, char **steps) {
    struct list lists[1 + THREADS] = {0};
    for (int step = 1; step < count; step++) {
        size_t number = strtoull(steps[step] + 1, NULL, 10);
        pthread_t threads[THREADS];
        int started = 0, status;
        size_t bytes = 0;
        switch (steps[step][0]) {
        case 'f':
            lists[0].size = number;
            take_all(&lists[0]);
            say(lists[0].bytes);
            break;
        case 't':
            for (int thread = 0; thread < THREADS; thread++) {
                lists[1 + thread].size = number;
                /* Those before it may have left nothing for a stack. */
                if (pthread_create(&threads[thread], NULL, take_all, &lists[1 + thread]) != 0)
                    break;
                started += 1;
            }
            for (int thread = 0; thread < started; thread++) {
                CHECK(pthread_join(threads[thread], NULL) == 0);
                bytes += lists[1 + thread].bytes;
            }
            say(bytes);
            break;
        case 'x':
            for (int list = 0; list < 1 + THREADS; list++)
                empty(&lists[list]);
            break;
        case 'b':
            say(longest());
            break;
        case 'g':
            say(grown(number << 10));
            break;
        case 'v':
            limit(number);
            break;
        case 'k': {
            pid_t pid = fork();
            CHECK(pid >= 0);
            if (pid > 0) {
                CHECK(waitpid(pid, &status, 0) == pid);
                return status != 0;
            }
            break;
        }
        default:
            CHECK(0);
        }
    }
    return 0;
}
