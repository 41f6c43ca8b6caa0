/* hugeheap: the object heap for dynamic-language runtimes, on huge pages. The C interface.
 *
 *   the thread's heap   hh_malloc, hh_calloc, hh_realloc, hh_free …       as <stdlib.h>; no handle, any thread
 *   heaps of your own   hh_heap_new, hh_heap_alloc, hh_heap_free …        a handle, one thread at a time; the shortest way
 *   collected objects   hh_gc_alloc, hh_gc_write …                        hugeheap_gc.h; they are found dead by themselves
 *   the process         hh_configure, hh_give_back, hh_stats …            what all heaps share: arenas, settings, numbers
 *
 * A heap hands out blocks: addresses aligned to 16 bytes that stay where they are until they are freed. All
 * heaps of a process take their memory from the same arenas of 2 MiB.
 *
 * Rules for all functions:
 *   - No initialisation. The first call that needs memory reads the settings from the environment
 *     (HUGEHEAP_POLICY and so on).
 *   - No memory: NULL, and errno is ENOMEM. The process is never ended for want of memory.
 *   - Every free is checked exactly. A wrong one ends the process by SIGABRT, after one line on standard error
 *     that names the address, the size class and the mistake: not from this heap, inside a block, freed twice,
 *     another size, freed by two threads.
 *   - A block may be freed by any thread: with hh_free, or with the functions of any heap that the thread uses.
 *   - A request of 0 bytes gets a block of its own, like one of 1 byte.
 *   - After fork the child has all blocks and heaps of its parent. A heap that another thread was using at that
 *     moment must not be used.
 *
 * C11 or C++17. Version 0.1: the interface may change with 0.2, and so does the name of the shared library
 * (libhugeheap.so.0.1).
 */
#ifndef HUGEHEAP_H
#define HUGEHEAP_H

#include <stddef.h>
#include <stdint.h>

#define HH_VERSION "0.1.0"

#if defined(__GNUC__) || defined(__clang__)
/* What the compiler may assume: a result that is used, new memory, its alignment, where its size stands. */
#define HH_NEW(...) __attribute__((warn_unused_result, malloc, assume_aligned(16), alloc_size(__VA_ARGS__)))
#define HH_RESIZED(argument) __attribute__((warn_unused_result, alloc_size(argument)))
#define HH_RESULT __attribute__((warn_unused_result))
#else
#define HH_NEW(...)
#define HH_RESIZED(argument)
#define HH_RESULT
#endif

#ifdef __cplusplus
#define HH_NOEXCEPT noexcept
extern "C" {
#else
#define HH_NOEXCEPT
#endif

/* ---- The thread's heap -------------------------------------------------------------------------------------------- */

/* A block of at least `size` bytes, contents undefined. */
void *hh_malloc(size_t size) HH_NOEXCEPT HH_NEW(1);

/* A block for `count` elements of `size` bytes, all zero. NULL with ENOMEM also when the product is no size_t. */
void *hh_calloc(size_t count, size_t size) HH_NOEXCEPT HH_NEW(1, 2);

/* Gives a block another size. Contents stay up to the lesser size; the address may change. NULL with ENOMEM:
 * the block is as it was. hh_realloc(NULL, size) is hh_malloc(size). hh_realloc(block, 0) frees nothing: the
 * block has then 1 byte. An alignment above 16 is not kept. */
void *hh_realloc(void *block, size_t size) HH_NOEXCEPT HH_RESIZED(2);

/* Frees a block. Nothing happens for NULL. errno stays as it was. */
void hh_free(void *block) HH_NOEXCEPT;

/* The same, faster and checked further: `size` is what was asked for (the last size, after hh_realloc). For
 * blocks of hh_malloc, hh_calloc, hh_realloc, hh_heap_alloc …; not for those of hh_aligned_alloc, whose size
 * may have been rounded up. */
void hh_free_sized(void *block, size_t size) HH_NOEXCEPT;

/* The largest alignment: a huge page. */
#define HH_MAX_ALIGNMENT ((size_t)2 << 20)

/* Like hh_malloc, aligned to `alignment`, a power of two up to HH_MAX_ALIGNMENT; others: NULL with EINVAL.
 * `size` need not be a multiple. */
void *hh_aligned_alloc(size_t alignment, size_t size) HH_NOEXCEPT HH_RESIZED(2);

/* Bytes of a live block: at least what was asked for. 0 for NULL. What is beyond that the heap does not use,
 * but the compiler takes the size that was asked for for the block's: with -D_FORTIFY_SOURCE=3 memset over all
 * of it ends the process, and more may be optimised away. block = hh_realloc(block, hh_usable_size(block))
 * makes those bytes part of it, and moves nothing. */
size_t hh_usable_size(const void *block) HH_NOEXCEPT;

/* ---- Heaps of your own -------------------------------------------------------------------------------------------- */

/* Used by one thread at a time; which one may change. No handle may be NULL, but for hh_heap_drop. */
typedef struct hh_heap hh_heap;

typedef struct hh_heap_options {
    size_t size;    /* sizeof(hh_heap_options) */
    uint64_t flags; /* 0: there are none yet */
} hh_heap_options;

#define HH_HEAP_OPTIONS_INIT { sizeof(hh_heap_options), 0 }

/* A new heap, or one that was dropped, with what is live in it. `options`: NULL for the defaults. NULL with
 * ENOMEM, or with EINVAL for options that this version does not know. */
hh_heap *hh_heap_new(const hh_heap_options *options) HH_NOEXCEPT HH_RESULT;

/* Gives up the handle. Live blocks stay live, and are freed with hh_free or through other heaps. */
void hh_heap_drop(hh_heap *heap) HH_NOEXCEPT;

/* As hh_malloc, and with all bytes zero. */
void *hh_heap_alloc(hh_heap *heap, size_t size) HH_NOEXCEPT HH_NEW(2);
void *hh_heap_zalloc(hh_heap *heap, size_t size) HH_NOEXCEPT HH_NEW(2);

/* As hh_realloc. `old_size` is what was asked for last; one that the block cannot have been asked for with is
 * a mistake like a wrong free. Without a meaning for NULL. Not for blocks of hh_aligned_alloc, as
 * hh_free_sized. */
void *hh_heap_realloc(hh_heap *heap, void *block, size_t old_size, size_t new_size) HH_NOEXCEPT HH_RESIZED(4);

/* As hh_free and hh_free_sized: shortest for blocks of this heap, allowed for those of any. */
void hh_heap_free(hh_heap *heap, void *block) HH_NOEXCEPT;
void hh_heap_free_sized(hh_heap *heap, void *block, size_t size) HH_NOEXCEPT;

/* Gives heap pages without live blocks, which the heap keeps at hand, back to the arenas. Returns their bytes. */
size_t hh_heap_trim(hh_heap *heap) HH_NOEXCEPT;

/* ---- The process -------------------------------------------------------------------------------------------------- */

/* What functions answer that neither allocate nor free. */
enum hh_status {
    HH_OK = 0,
    HH_BAD_SIZE = 1,    /* the `size` of a struct is not one that this version knows */
    HH_BAD_POLICY = 2,  /* no policy has that name */
    HH_BAD_DECAY = 3,   /* the decay time is below 1 ms or above a day */
    HH_BAD_ARGUMENT = 4, /* an argument was NULL */
    /* hugeheap_gc.h */
    HH_NO_MEMORY = 5,
    HH_BAD_CHECKS = 6,     /* a check that this version does not know */
    HH_BAD_NURSERY = 7,    /* less than 65536 bytes */
    HH_BAD_GROWTH = 8,     /* less than 110 percent */
    HH_LAYOUT_SMALL = 9,   /* no room for the header, and the length where there is one */
    HH_LAYOUT_LARGE = 10,  /* a part has more than 2^30 bytes */
    HH_LAYOUT_SLOT = 11,   /* a slot is no whole word of its part, or is the header or the length */
    HH_LAYOUT_ITEMS = 12,  /* items with slots do not begin at whole words, or do not consist of them */
    HH_LAYOUT_MANY = 13,   /* a heap has 2^20 types at most */
    HH_LAYOUT_TWICE = 14,  /* a word is named as a slot twice, or there are two trace functions */
    HH_MISTAKE = 15,       /* hh_gc_verify found one */
    HH_NOT_OURS = 16,      /* the address is in no heap page that can be protected */
    HH_PROTECTED = 17,     /* it is protected already */
    HH_TOO_MANY = 18,      /* too many pages are protected */
    HH_REFUSED = 19,       /* by the system */
    HH_BAD_LOG = 20,       /* the text is no log, or its file cannot be written; the buffer says which */
    HH_BAD_FORBID = 21,    /* neither HH_GC_FORBID_WRITE nor HH_GC_FORBID_ACCESS */
    HH_BAD_MERGE = 22      /* neither HH_MERGE nor HH_NO_MERGE */
};

/* One line for a status, for any number. */
const char *hh_strerror(int status) HH_NOEXCEPT;

/* Settings of the arenas; 0 or NULL leaves one as it is. */
typedef struct hh_options {
    size_t size;        /* sizeof(hh_options) */
    const char *policy; /* "auto", "thp", "dense", "hugetlb" or "base" */
    uint64_t decay;     /* nanoseconds that freed memory is kept at least */
    uint64_t limit;     /* bytes above which nothing is kept for reuse or rounded up to huge pages; HH_NO_LIMIT: none */
    uint64_t merge;     /* HH_MERGE: OS pages of idle heaps that have shrunk are made alike, for a host that merges equal ones (KSM); HH_NO_MERGE: not. Older programs end with the limit */
} hh_options;

#define HH_OPTIONS_INIT { sizeof(hh_options), NULL, 0, 0, 0 }
#define HH_NO_LIMIT UINT64_MAX
#define HH_MERGE 1
#define HH_NO_MERGE 2

/* Changes the settings of the process, at any time. Returns HH_OK, or another hh_status and changes nothing. */
int hh_configure(const hh_options *options) HH_NOEXCEPT HH_RESULT;

/* Gives back to the system now what is kept for reuse, on the calling thread: after hh_heap_trim of its own
 * heap, whole arenas and free parts of sparse ones. Waits for what the library's own thread is just giving
 * back. Returns the bytes given back. */
uint64_t hh_give_back(void) HH_NOEXCEPT;

/* For a program that limits its own address space: to be called before setrlimit(RLIMIT_AS) with the limit in
 * bytes. Address space is reserved for four times the memory of the host; what of it no arena of blocks uses
 * goes back to the system, but for a part of the limit to grow into. A limit that is there before the first
 * block needs no call. */
void hh_limit_address_space(uint64_t bytes) HH_NOEXCEPT;

/* The numbers of the process's arenas. Bytes are bytes, arenas are counts, times are nanoseconds. Later
 * versions add members at the end. */
typedef struct hh_stats_t {
    uint32_t schema;           /* version of the meaning of the members: 1 */
    uint32_t size;             /* in: sizeof(hh_stats_t); out: bytes that were filled */
    uint32_t pid;              /* the process */
    uint32_t parent_pid;       /* its parent, when it has a published record */
    uint32_t state;            /* of CPython's hooks; 0 */
    uint32_t level;            /* of CPython's hooks; 0 */
    uint32_t policy;           /* asked for: 0 base, 1 thp, 2 dense, 3 hugetlb, 4 auto */
    uint32_t effective_policy; /* in force: what auto chose, or what an exhausted pool fell back to */
    char version[32];          /* of CPython; empty */

    uint64_t arenas;          /* with memory now */
    uint64_t arenas_peak;     /* the most there were at once */
    uint64_t arenas_full;     /* without room */
    uint64_t arenas_partial;  /* with live heap pages and room */
    uint64_t arenas_empty;    /* without live heap pages, kept for reuse */
    uint64_t arenas_thp;      /* of transparent huge pages */
    uint64_t arenas_hugetlb;  /* from a hugetlb pool */
    uint64_t arenas_base;     /* of OS pages */
    uint64_t arenas_broken;   /* whose huge page was broken to give a part back */

    uint64_t live;             /* bytes of heap pages in use by heaps, page runs and large blocks */
    uint64_t live_peak;        /* the most that were in use at once */
    uint64_t retained;         /* bytes that are mapped but not live: kept for reuse */
    uint64_t retention_target; /* bytes that the retention rule would keep now */
    uint64_t metadata;         /* bytes of the arenas' metadata */
    uint64_t large;            /* bytes of large blocks, of `live` */

    uint64_t allocations;       /* page runs handed out since the start, to heaps and directly */
    uint64_t frees;             /* page runs taken back since the start */
    uint64_t foreign_frees;     /* of CPython's hooks */
    uint64_t given_back;        /* bytes given back to the system since the start */
    uint64_t arenas_given_back; /* whole arenas given back since the start */
    uint64_t breaks;            /* sparse arenas broken since the start */
    uint64_t regretted;         /* bytes needed again soon after they were given back */
    uint64_t collapses;         /* arenas collapsed since the start */
    uint64_t passes;            /* passes of maintenance since the start */
    uint64_t longest_pass;      /* nanoseconds of the longest */
    uint64_t forks;             /* forks seen */

    uint64_t peak_resident; /* as below, when `live` peaked last; 0: not measured */
    uint64_t peak_huge;
    uint64_t resident;      /* resident bytes of all arenas when hh_measure looked last */
    uint64_t huge;          /* of those, mapped by huge pages: huge / resident is the coverage */
    uint64_t peak_charge;
    uint64_t charge;        /* the memory cgroup's charge when hh_measure looked last */

    uint64_t fallbacks[24]; /* how often memory did not get the backing its policy wanted, by reason */

    uint64_t arenas_ahead; /* made by the maintenance thread before they were needed, while the heap grew quickly */

    /* Garbage-collected heaps (hugeheap_gc.h) of the process; the last few collections may be missing. */
    uint64_t gc_heaps;         /* made since the start */
    uint64_t gc_nursery;       /* bytes of the nurseries of those that live */
    uint64_t gc_old;           /* bytes of objects in their old generations that are not known to be dead */
    uint64_t gc_held;          /* bytes of heap pages and large blocks that the old generations have */
    uint64_t gc_minor;         /* minor collections of all of them, ended ones too */
    uint64_t gc_major;         /* major collections that ended */
    uint64_t gc_pauses;        /* times that a program waited for a collection */
    uint64_t gc_long_pauses;   /* of these, those of 2^20 ns or more, about a millisecond */
    uint64_t gc_pause_total;   /* their sum, nanoseconds */
    uint64_t gc_longest_pause; /* nanoseconds */
    uint64_t gc_pause_lengths[24]; /* the first below 2^11 ns, each other from 2^(10+n) to 2^(11+n) ns, the last without an end */

    uint64_t vacated; /* bytes of OS pages without a live block that were given back of heap pages in use, of `given_back` */

    uint64_t alike;  /* bytes of OS pages made equal to others since the start, for the kernel to merge them (HUGEHEAP_MERGE=1) */
    uint64_t merged; /* bytes in OS pages that the kernel had merged when hh_measure looked last; 0: not asked for, not measured, or it does not tell */
} hh_stats_t;

/* Asks the kernel what backs the arenas now, which takes milliseconds; the numbers are in what hh_stats
 * answers next. */
void hh_measure(void) HH_NOEXCEPT;

/* Fills the struct, whose `size` is set. Returns HH_OK or another hh_status. */
int hh_stats(hh_stats_t *stats) HH_NOEXCEPT HH_RESULT;

/* Writes the numbers as JSON (schema hugeheap.stats/1), cut to `size` bytes with the NUL at its end. Returns
 * the length of all of it without the NUL, as snprintf does. `buffer` may be NULL when `size` is 0. */
size_t hh_stats_json(char *buffer, size_t size) HH_NOEXCEPT;

/* The version of the library in use; HH_VERSION is that of this header. */
const char *hh_version(void) HH_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
