/* What the programs that test the functions of hugeheap.h share: PROGRAM SECTION runs one of its sections.
   With INLINE the functions of hugeheap_inline.h take the place of those they can do the work of. */
#ifndef INTERFACE_H
#define INTERFACE_H

#include "check.h"

#include <hugeheap.h>
#ifdef INLINE
#include <hugeheap_inline.h>
#define hh_heap_alloc hh_heap_alloc_inline
#define hh_heap_free_sized hh_heap_free_sized_inline
#endif
#include <sys/wait.h>
#include <unistd.h>

/* Around every border: granules, small blocks, medium blocks, heap pages, page runs, large blocks. */
static const size_t sizes[] = {
    1,       8,       15,      16,      17,      31,   32,   100,  255,  256,  257,  511,   512,   513,    576,     577,
    640,     641,     1000,    2047,    2048,    4095, 4096, 5000, 8191, 8192, 8193, 16384, 16385, 100000, 1048575, 1048576,
    1048577, 2097152, 2097153, 3000000, 9000000,
};
#define SIZES (sizeof sizes / sizeof sizes[0])

struct section {
    const char *name;
    void (*run)(void);
};

/* Runs the section that is named. */
static inline int run_section(const struct section *sections, size_t length, int count, char **words) {
    for (size_t n = 0; n < length; n++)
        if (count == 2 && strcmp(words[1], sections[n].name) == 0)
            return sections[n].run(), 0;
    fputs("usage: PROGRAM", stderr);
    for (size_t n = 0; n < length; n++)
        fprintf(stderr, "%c%s", n == 0 ? ' ' : '|', sections[n].name);
    fputs("\n", stderr);
    return 2;
}

/* The program's main function; the tests read the names of the sections here. */
#define MAIN(...)                                                                                         \
    int main(int count, char **words) {                                                                   \
        static const struct section sections[] = {__VA_ARGS__};                                           \
        return run_section(sections, sizeof sections / sizeof sections[0], count, words);                 \
    }

static inline hh_stats_t statistics(void) {
    hh_stats_t stats;
    memset(&stats, 0xFF, sizeof stats);
    stats.size = sizeof stats;
    CHECK(hh_stats(&stats) == HH_OK);
    CHECK(stats.size == sizeof stats && stats.schema == 1);
    return stats;
}

/* Waits for a child process that must have ended well. */
static inline void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
