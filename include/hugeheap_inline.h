/* hugeheap: allocating and freeing small blocks without a call.
 *
 * For the two places of a runtime that allocate and free most: little more than half of the instructions of a
 * call where the size is a constant. Everything else is hugeheap.h, and both may be mixed at will.
 *
 *   heap ─▶ bin of the size's class ─▶ a word with a bit per block ─▶ the block
 *             │ no free bit                    │ no bit of a live block
 *             └──────── the library ◀──────────┘
 *
 * A program that includes this header knows how a heap is laid out. The two functions it calls have the number
 * of that layout in their names: with a library of another layout it is not linked, instead of running wrongly.
 * It is compiled again then.
 */
#ifndef HUGEHEAP_INLINE_H
#define HUGEHEAP_INLINE_H

#include "hugeheap.h"

#ifdef __cplusplus
extern "C" {
#endif

/* hh_heap_alloc and hh_heap_free_sized of a library with layout 5. */
void *hh_layout_5_alloc(hh_heap *heap, size_t size) HH_NOEXCEPT HH_NEW(2);
void hh_layout_5_free_sized(hh_heap *heap, void *block, size_t size) HH_NOEXCEPT;

#ifdef __cplusplus
}
#endif

/* Where the blocks of a class come from. */
struct hh_bin_5 {
    uint64_t *word;         /* of the open window, a bit per 16 bytes: no live block begins there */
    uint64_t starts;        /* blocks begin there */
    uintptr_t base;         /* first byte of the window; odd when none is open */
    const uint64_t *remote; /* not 0: another thread freed blocks of the window, or others in its page */
    uint64_t rest[4];
};

/* The largest request that has a bin of this kind, in bytes. */
#define HH_INLINE_MAX ((size_t)512)

#if defined(__GNUC__) || defined(__clang__)

/* C and C++ share these functions, and a cast of both is an old one. */
#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

/* Left to itself the compiler makes functions of them in a file that has several uses: twice the instructions. */
#define HH_INLINE static inline __attribute__((always_inline))

/* Other threads read the words. One load, one store. */
#define HH_LOAD(word) __atomic_load_n(word, __ATOMIC_RELAXED)
#define HH_STORE(word, value) __atomic_store_n(word, value, __ATOMIC_RELAXED)

/* The bins lie at the beginning of a heap, one for each 16 bytes. */
HH_INLINE struct hh_bin_5 *hh_bin_of_5(hh_heap *heap, size_t size) {
    return (struct hh_bin_5 *)(void *)heap + (size + 15) / 16;
}

/* As hh_heap_alloc. */
HH_INLINE HH_RESULT void *hh_heap_alloc_inline(hh_heap *heap, size_t size) {
    if (__builtin_expect(size - 1 < HH_INLINE_MAX, 1)) { /* not for 0 */
        struct hh_bin_5 *bin = hh_bin_of_5(heap, size);
        uint64_t vacant = HH_LOAD(bin->word), free = vacant & bin->starts;
        if (__builtin_expect(free != 0, 1)) {
            unsigned granule = (unsigned)__builtin_ctzll(free);
            HH_STORE(bin->word, vacant ^ (free & (~free + 1))); /* its lowest bit, which is set in both */
            return (void *)(bin->base + (uintptr_t)granule * 16);
        }
    }
    return hh_layout_5_alloc(heap, size);
}

/* As hh_heap_free_sized, with the same checks. */
HH_INLINE void hh_heap_free_sized_inline(hh_heap *heap, void *block, size_t size) {
    if (__builtin_expect(size - 1 < HH_INLINE_MAX, 1)) {
        struct hh_bin_5 *bin = hh_bin_of_5(heap, size);
        uint64_t offset = (uintptr_t)block - bin->base;
        /* Too large for addresses elsewhere and for those that are no multiple of 16, both at once. */
        uint64_t granule = offset >> 4 | offset << 60;
        if (__builtin_expect(granule < 64, 1)) {
            uint64_t vacant = HH_LOAD(bin->word), bit = UINT64_C(1) << granule;
            /* Where others freed something the block may be it. */
            if (__builtin_expect(((vacant & bit) | __atomic_load_n(bin->remote, __ATOMIC_ACQUIRE)) == 0, 1)) {
                HH_STORE(bin->word, vacant | bit);
                return;
            }
        }
    }
    hh_layout_5_free_sized(heap, block, size);
}

#ifdef __cplusplus
#pragma GCC diagnostic pop
#endif

#else
#define hh_heap_alloc_inline hh_layout_5_alloc
#define hh_heap_free_sized_inline hh_layout_5_free_sized
#endif

#endif
