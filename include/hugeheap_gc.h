/* hugeheap: the garbage-collected heap. Objects are found dead by themselves; live ones may move.
 *
 *   hh_gc_alloc ──▶ window {cursor, limit} ──▶ object in the nursery
 *        │               │ no room: the library
 *        │               ▼
 *        │          minor collection: survivors ──▶ old generation
 *        │               ▲ roots: frames of the shadow stack, callbacks, globals
 *        └─ hh_gc_write ─┴─ barrier: which old objects were written
 *
 * An object begins with its header, one word, and is aligned to 16 bytes. An object of variable length has its
 * length in the second word. A slot is a word that may hold a reference: 0, or the address of an object, or a
 * word whose low four bits are not all zero, which the collector leaves alone (a small integer with a tag).
 *
 * Rules for all functions:
 *   - A function that may collect says "collects". After it every address of an object that is not in a root is wrong.
 *   - Before the next call that collects, all slots of new objects are written, with hh_gc_alloc each of them.
 *   - A reference is written into an object with hh_gc_write or HH_GC_SET, but for an object that hh_gc_alloc
 *     answered since the last call that collects and that has at most HH_GC_MAX_YOUNG bytes.
 *   - No memory: NULL and errno is ENOMEM, after everything dead was freed. The heap is as usable as before. An
 *     object above 1 MiB that a control group's limit has no room for is no memory, too; smaller ones know no
 *     limit but `maximum`. Where malloc answers NULL nothing is different: what notes something refuses, and a
 *     collection does without, so that more stays than has to. The checks of hh_gc_options, and hh_gc_verify,
 *     need memory.
 *   - A mistake that is noticed ends the process by SIGABRT, after one line on standard error. Most are noticed
 *     by the checks only: see hh_gc_options.
 *   - A heap belongs to the thread that made it. A process may have several. After fork the child has those of
 *     the forking thread. That another thread uses it is not noticed: nothing is locked, and objects are lost
 *     or lie on top of each other.
 *   - Root callbacks, trace functions, ranges and hooks run inside of collections: whatever would change the
 *     heap there ends the process, but for a write of a reference, which is not noticed.
 *
 * Everything is compiled into the program that is needed to allocate: where the window lies, what a header is.
 * hh_gc_new has the number of that layout in the name of the function it calls: with a library of another
 * layout a program is not linked. Offsets for generated code are constants below.
 *
 * C11 or C++17, with GCC or Clang.
 */
#ifndef HUGEHEAP_GC_H
#define HUGEHEAP_GC_H

#include "hugeheap.h"
#include <stdbool.h>

#if !defined(__GNUC__) && !defined(__clang__)
#error "hugeheap_gc.h needs GCC or Clang"
#endif

/* C and C++ share these functions, and a cast of both is an old one. */
#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

#ifdef __cplusplus
#define HH_GC_ASSERT(condition, text) static_assert(condition, text)
extern "C" {
#else
#define HH_GC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

/* ---- Layout: for this header and for generated code ----------------------------------------------------------------- */

/* Alignment of every object, and what sizes are rounded up to; so its least bytes. */
#define HH_GC_ALIGN ((size_t)16)

/* Bytes of the header, and of header and length: where the fields of an object begin. */
#define HH_GC_HEADER_BYTES ((size_t)8)
#define HH_GC_VARIABLE_BYTES ((size_t)16)

/* Offset of the length in an object of variable length. */
#define HH_GC_LENGTH_OFFSET 8

/* Largest object, in bytes, that is allocated in the nursery. A larger one begins in the old generation and is
 * zero; it has heap pages of 16 KiB of its own, so that just above 8 and 16 KiB half of them is lost. */
#define HH_GC_MAX_YOUNG ((size_t)8192)

/* Header of a new object of a type: the upper half is the number of the type. */
#define HH_GC_TYPE_SHIFT 32
#define HH_GC_HEADER(type) ((uint64_t)(type) << HH_GC_TYPE_SHIFT)

/* Flags of a header with which the barrier has something to do: hh_gc_barrier is called. */
#define HH_GC_BARRIER_FLAGS UINT64_C(6)

/* Offsets in what a heap's handle points to: the window's cursor and limit, the first frame of the shadow stack. */
#define HH_GC_CURSOR_OFFSET 0
#define HH_GC_LIMIT_OFFSET 8
#define HH_GC_FRAMES_OFFSET 16

/* A registered type of one heap. */
typedef uint32_t hh_gc_type;

/* The first word of each object; no one's business but the collector's. */
typedef uint64_t hh_gc_header;

/* A piece of the nursery: where the next objects go. */
typedef struct hh_gc_window {
    uintptr_t cursor, limit;
} hh_gc_window;

/* A frame of the shadow stack: slots in a row. */
typedef struct hh_gc_frame {
    struct hh_gc_frame *previous;
    void **slots;
    size_t count;
    struct hh_gc *heap;
} hh_gc_frame;

/* A heap. The members are for the functions below; the rest of it is the library's. */
typedef struct hh_gc {
    hh_gc_window window;
    hh_gc_frame *frames;
    uint64_t open; /* the window is in a local variable */
} hh_gc;

HH_GC_ASSERT(sizeof(void *) == 8 && sizeof(size_t) == 8, "slots have 8 bytes");
HH_GC_ASSERT(offsetof(hh_gc, window) + offsetof(hh_gc_window, cursor) == HH_GC_CURSOR_OFFSET, "for generated code");
HH_GC_ASSERT(offsetof(hh_gc, window) + offsetof(hh_gc_window, limit) == HH_GC_LIMIT_OFFSET, "for generated code");
HH_GC_ASSERT(offsetof(hh_gc, frames) == HH_GC_FRAMES_OFFSET, "for generated code");
HH_GC_ASSERT(HH_GC_VARIABLE_BYTES == HH_GC_LENGTH_OFFSET + 8, "items begin behind the length");

/* ---- Heaps ---------------------------------------------------------------------------------------------------------- */

/* Checks: they cost time and change nothing that a correct program computes. */
enum hh_gc_check {
    HH_GC_VERIFY = 1,   /* verify the whole heap after each collection */
    HH_GC_BARRIERS = 2, /* look for missing barriers before each collection */
    HH_GC_POISON = 4,   /* overwrite what is freed: finds what is read after its end, not what is written; with HH_GC_VERIFY slots never written */
    HH_GC_MOVING = 8,   /* move all old objects that can move in each whole collection */
    HH_GC_ROTATE = 16   /* use another nursery after each collection; an address in the last three is a fault at once */
};

/* What can be set; 0 leaves a setting to the library. */
typedef struct hh_gc_options {
    size_t size;     /* sizeof(hh_gc_options) */
    size_t nursery;  /* bytes, at least 65536; 0: from the caches and the memory limit; then it grows while many objects survive within two steps.
                        Its memory is whole arenas: 2 MiB at least are resident, whatever this says. More than the memory limit or the host has
                        left is HH_NO_MEMORY */
    size_t maximum;  /* bytes that the old generation may have; 0: no limit of its own */
    uint32_t growth; /* percent of what was alive at which the next major collection begins, at least 110; 0: 182 */
    uint32_t checks; /* of enum hh_gc_check */
    uint32_t stress; /* collect every so many allocations; 0: off */
    uint32_t evacuate; /* percent of what lives, above which the memory of the old generation is evacuated after a major collection in steps;
                          0: only whole collections evacuate */
    uint64_t step;   /* nanoseconds that a step of a major collection may take, a pause twice that; longer ones are for throughput; 0: 2 ms */
} hh_gc_options;

#define HH_GC_OPTIONS_INIT { sizeof(hh_gc_options), 0, 0, 0, 0, 0, 0, 0 }

int hh_gc_layout_1_new(const hh_gc_options *options, hh_gc **heap) HH_NOEXCEPT HH_RESULT;

/* Makes a heap. `options`: NULL for the defaults. Returns HH_OK or another hh_status. */
static inline HH_RESULT int hh_gc_new(const hh_gc_options *options, hh_gc **heap) {
    return hh_gc_layout_1_new(options, heap);
}

/* Ends a heap with all its objects. Nothing happens for NULL. Frames of roots may be pushed still, as in the
 * scope of HH_GC_ROOTS: they are popped without effect. The handle is memory of others afterwards: that it is
 * used once more, or dropped, is not noticed. */
void hh_gc_drop(hh_gc *heap) HH_NOEXCEPT;

/* ---- Types ---------------------------------------------------------------------------------------------------------- */

/* Takes slots: in trace functions and root callbacks only. */
typedef struct hh_gc_visitor hh_gc_visitor;

/* Names every slot of an object with hh_gc_visit, the same ones as long as nobody writes to the object. Calls
 * nothing else of the heap. */
typedef void (*hh_gc_trace)(void *object, hh_gc_visitor *visitor);

/* The same for the slots that begin in `from`..`to`, a part of the object; an ephemeron if one of its slots
 * does. Naming others costs time only. */
typedef void (*hh_gc_trace_part)(void *object, void *from, void *to, hh_gc_visitor *visitor);

/* Names a slot, or `count` of them in a row. */
void hh_gc_visit(hh_gc_visitor *visitor, void *slot) HH_NOEXCEPT;
void hh_gc_visit_row(hh_gc_visitor *visitor, void *slots, size_t count) HH_NOEXCEPT;

/* Names those of `count` slots in a row that begin in a part. */
static inline void hh_gc_visit_row_in(hh_gc_visitor *visitor, void *slots, size_t count, void *from, void *to) {
    char *first = (char *)slots, *last = first + count * sizeof(void *);
    if ((char *)from > first)
        first += ((size_t)((char *)from - first) + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
    if ((char *)to < last)
        last = (char *)to;
    if (first < last)
        hh_gc_visit_row(visitor, first, ((size_t)(last - first) + sizeof(void *) - 1) / sizeof(void *));
}

/* The same for weak slots and ephemerons. */
void hh_gc_visit_weak(hh_gc_visitor *visitor, void *slot) HH_NOEXCEPT;
void hh_gc_visit_ephemeron(hh_gc_visitor *visitor, void *key, void *value) HH_NOEXCEPT;

/* Called once for each object of a type that was found unreachable. It may allocate, and may keep the object. */
typedef void (*hh_gc_finalizer)(struct hh_gc *heap, void *object);

/* Offsets of two slots. */
typedef struct hh_gc_pair {
    size_t key, value;
} hh_gc_pair;

/* What a type is like. Offsets are bytes: in the fixed part from the header, in an item from its beginning. */
typedef struct hh_gc_layout {
    size_t size;              /* sizeof(hh_gc_layout) */
    size_t bytes;             /* the fixed part, header included and, where there are items, the length */
    size_t item_bytes;        /* of an item; 0: the type has none and no length */
    const size_t *slots;      /* offsets of slots in the fixed part */
    size_t slot_count;
    const size_t *item_slots; /* offsets of slots in an item */
    size_t item_slot_count;
    hh_gc_trace trace;        /* names further slots; NULL: there are none. A type without any slot is a leaf */
    const size_t *weak_slots; /* of the fixed part: they keep nothing alive, and become 0 when what they refer to is dead */
    size_t weak_slot_count;
    const size_t *weak_item_slots;
    size_t weak_item_slot_count;
    const hh_gc_pair *ephemerons; /* of the fixed part: the key is a weak slot, and what the value refers to lives if the key does */
    size_t ephemeron_count;
    const hh_gc_pair *item_ephemerons;
    size_t item_ephemeron_count;
    hh_gc_finalizer finalizer; /* run by hh_gc_run_finalizers; objects are made by hh_gc_alloc_finalized. NULL: none */
    hh_gc_trace_part trace_part; /* instead of `trace`: a large object is then marked in parts, and after a write looked into around it only */
} hh_gc_layout;

/* Registers a type. Returns HH_OK or another hh_status. */
int hh_gc_register(hh_gc *heap, const hh_gc_layout *layout, hh_gc_type *type) HH_NOEXCEPT HH_RESULT;

/* ---- Roots ---------------------------------------------------------------------------------------------------------- */

/* Left to itself the compiler makes functions of them in a file that has several uses. */
#define HH_GC_INLINE static inline __attribute__((always_inline))

/* Pushes `count` slots that lie in a row. `frame` becomes what is answered, and stays where it is until it is
 * popped. */
HH_GC_INLINE hh_gc_frame hh_gc_push(hh_gc *heap, hh_gc_frame *frame, void *slots, size_t count) {
    hh_gc_frame pushed = {heap->frames, (void **)slots, count, heap};
    /* GCC would warn of the address of a local variable that stays behind: it does not see that it is popped. */
    __asm__("" : "+r"(frame) : : "memory");
    heap->frames = frame;
    return pushed;
}

/* Pops a frame, and those that were pushed after it. */
HH_GC_INLINE void hh_gc_pop(const hh_gc_frame *frame) { frame->heap->frames = frame->previous; }

/* Words of a variable: a pointer, an array of pointers, or a struct of nothing else. */
#define HH_GC_WORDS(variable) (sizeof(variable) / sizeof(char[sizeof(variable) % sizeof(void *) == 0 ? 8 : -1]))

#define HH_GC_JOIN_(one, other) one##other
#define HH_GC_JOIN(one, other) HH_GC_JOIN_(one, other)

/* Not the line: a macro of the program may make two roots, all on one. */
#ifdef __COUNTER__
#define HH_GC_UNIQUE __COUNTER__
#else
#define HH_GC_UNIQUE __LINE__
#endif

/* Makes an initialised local variable a root to the end of its block, however that is left but by longjmp:
 *
 *     struct { struct pair *list, *next; } my = {NULL, NULL};
 *     HH_GC_ROOTS(heap, my);
 *
 * After a longjmp, set heap->frames to what it was when setjmp was called. */
#define HH_GC_ROOTS(heap, variable) HH_GC_ROOTS_(heap, variable, HH_GC_JOIN(hh_gc_frame_, HH_GC_UNIQUE))
#define HH_GC_ROOTS_(heap, variable, frame) \
    hh_gc_frame frame __attribute__((cleanup(hh_gc_pop_frame_))) = hh_gc_push(heap, &frame, &(variable), HH_GC_WORDS(variable))

static inline void hh_gc_pop_frame_(hh_gc_frame *frame) { hh_gc_pop(frame); }

/* Names with hh_gc_visit slots that the program holds elsewhere, in each collection. Calls nothing else of the
 * heap. */
typedef void (*hh_gc_roots)(void *data, hh_gc_visitor *visitor);

/* Adds a callback; returns HH_OK or another hh_status. Removes what was added with the same arguments; nothing
 * happens when there is none. */
int hh_gc_add_roots(hh_gc *heap, hh_gc_roots roots, void *data) HH_NOEXCEPT HH_RESULT;
void hh_gc_remove_roots(hh_gc *heap, hh_gc_roots roots, void *data) HH_NOEXCEPT;

/* Says where words lie that may be addresses of objects, or of places inside them: `begin` and `end`,
 * multiples of 8. What they refer to stays alive and where it is. Calls nothing of the heap. */
typedef void (*hh_gc_range)(void *data, const void **begin, const void **end);

/* Adds words that are looked at in every collection, a stack for instance; the registers are no part of it
 * until setjmp writes them there. A minor collection then costs what was allocated, not what survives. Where
 * there is no memory to note what was found, everything stays, and no major collection goes on. Returns HH_OK
 * or another hh_status. Removes what was added with the same arguments, so that its words keep nothing from the
 * next collection on; nothing happens when there is none. */
int hh_gc_add_scan(hh_gc *heap, hh_gc_range range, void *data) HH_NOEXCEPT HH_RESULT;
void hh_gc_remove_scan(hh_gc *heap, hh_gc_range range, void *data) HH_NOEXCEPT;

/* A handle that keeps an object alive until it is released; never 0. */
typedef uint64_t hh_gc_global;

/* A handle for an object; with hh_gc_pin the object does not move either. 0 with ENOMEM. */
hh_gc_global hh_gc_keep(hh_gc *heap, void *object) HH_NOEXCEPT HH_RESULT;
hh_gc_global hh_gc_pin(hh_gc *heap, void *object) HH_NOEXCEPT HH_RESULT;

/* The object of a handle. A handle that was released, or is of another heap, ends the process with one line,
 * here and below. */
void *hh_gc_get(const hh_gc *heap, hh_gc_global global) HH_NOEXCEPT HH_RESULT;

/* Ends a handle. Nothing happens for 0. */
void hh_gc_release(hh_gc *heap, hh_gc_global global) HH_NOEXCEPT;

/* ---- Allocation ----------------------------------------------------------------------------------------------------- */

/* Where the window has no room. Collects. `window`: the heap's, or the open one. `bytes`: what the caller
 * takes the object to have, compared with what it has; 0: not known. Header and length are written. */
void *hh_gc_refill(hh_gc *heap, hh_gc_window *window, hh_gc_type type, size_t length, size_t bytes) HH_NOEXCEPT HH_RESULT;

/* Bytes, rounded as those of an object are; 0 for the last 15 numbers. */
HH_GC_INLINE size_t hh_gc_round(size_t bytes) { return (bytes + HH_GC_ALIGN - 1) & ~(HH_GC_ALIGN - 1); }

/* Whether a window has room for `bytes` bytes, rounded. Never for 0: objects would lie on top of each other. */
HH_GC_INLINE int hh_gc_has_room(const hh_gc_window *window, size_t bytes) {
    return __builtin_expect(bytes - 1 < HH_GC_MAX_YOUNG && window->cursor + bytes <= window->limit, 1) != 0;
}

/* Rounded bytes as hh_gc_refill compares them: 0, which it takes for "not known", is more than any object has. */
HH_GC_INLINE size_t hh_gc_compared(size_t bytes) { return bytes != 0 ? bytes : SIZE_MAX; }

/* Takes `bytes` bytes, for which there is room, and writes the header. */
HH_GC_INLINE void *hh_gc_take(hh_gc_window *window, hh_gc_type type, size_t bytes) {
    void *object = (void *)window->cursor;
    uint64_t header = HH_GC_HEADER(type);
    window->cursor += bytes;
    __builtin_memcpy(object, &header, sizeof header);
    return object;
}

/* The same for an object of variable length. */
HH_GC_INLINE void *hh_gc_take_items(hh_gc_window *window, hh_gc_type type, size_t bytes, size_t length) {
    void *object = hh_gc_take(window, type, bytes);
    __builtin_memcpy((char *)object + HH_GC_LENGTH_OFFSET, &length, sizeof length);
    return object;
}

/* hh_gc_refill for an open window. It gets a copy: a variable whose address is handed on is kept in memory,
 * before and after as well. */
HH_GC_INLINE void *hh_gc_refill_open(hh_gc *heap, hh_gc_window *window, hh_gc_type type, size_t length, size_t bytes) {
    hh_gc_window copy = *window;
    void *object = hh_gc_refill(heap, &copy, type, length, bytes);
    *window = copy;
    return object;
}

/* Bytes of an object with items; HH_GC_ALIGN more than HH_GC_MAX_YOUNG when it has more than that, whatever
 * the sum is. */
HH_GC_INLINE size_t hh_gc_bytes_with(size_t fixed, size_t item, size_t length) {
    if (__builtin_expect(fixed <= HH_GC_MAX_YOUNG && length <= (HH_GC_MAX_YOUNG - fixed) / item, 1))
        return hh_gc_round(fixed + length * item);
    return HH_GC_MAX_YOUNG + HH_GC_ALIGN;
}

/* An object of a fixed type with `bytes` bytes: what its layout says, best a constant. The rest of it is
 * undefined. Collects. */
HH_GC_INLINE HH_RESULT void *hh_gc_alloc(hh_gc *heap, hh_gc_type type, size_t bytes) {
    bytes = hh_gc_round(bytes);
    if (hh_gc_has_room(&heap->window, bytes))
        return hh_gc_take(&heap->window, type, bytes);
    return hh_gc_refill(heap, &heap->window, type, 0, hh_gc_compared(bytes));
}

/* An object with `length` items. `fixed` and `item`, not 0, are the layout's `bytes` and `item_bytes`, best
 * constants. The length is written; the rest is undefined, and zero above HH_GC_MAX_YOUNG bytes. Collects. */
HH_GC_INLINE HH_RESULT void *hh_gc_alloc_items(hh_gc *heap, hh_gc_type type, size_t fixed, size_t item, size_t length) {
    size_t bytes = hh_gc_bytes_with(fixed, item, length);
    if (hh_gc_has_room(&heap->window, bytes))
        return hh_gc_take_items(&heap->window, type, bytes, length);
    return hh_gc_refill(heap, &heap->window, type, length, bytes <= HH_GC_MAX_YOUNG ? hh_gc_compared(bytes) : 0);
}

/* The same two from the open window: see hh_gc_open. */
HH_GC_INLINE HH_RESULT void *hh_gc_alloc_in(hh_gc *heap, hh_gc_window *window, hh_gc_type type, size_t bytes) {
    bytes = hh_gc_round(bytes);
    if (hh_gc_has_room(window, bytes))
        return hh_gc_take(window, type, bytes);
    return hh_gc_refill_open(heap, window, type, 0, hh_gc_compared(bytes));
}

HH_GC_INLINE HH_RESULT void *hh_gc_alloc_items_in(hh_gc *heap, hh_gc_window *window, hh_gc_type type, size_t fixed, size_t item, size_t length) {
    size_t bytes = hh_gc_bytes_with(fixed, item, length);
    if (hh_gc_has_room(window, bytes))
        return hh_gc_take_items(window, type, bytes, length);
    return hh_gc_refill_open(heap, window, type, length, bytes <= HH_GC_MAX_YOUNG ? hh_gc_compared(bytes) : 0);
}

/* The same two, with all the rest zero. */
HH_GC_INLINE HH_RESULT void *hh_gc_zalloc(hh_gc *heap, hh_gc_type type, size_t bytes) {
    void *object = hh_gc_alloc(heap, type, bytes);
    if (__builtin_expect(object != NULL && bytes <= HH_GC_MAX_YOUNG, 1))
        __builtin_memset((char *)object + HH_GC_HEADER_BYTES, 0, hh_gc_round(bytes) - HH_GC_HEADER_BYTES);
    return object;
}

HH_GC_INLINE HH_RESULT void *hh_gc_zalloc_items(hh_gc *heap, hh_gc_type type, size_t fixed, size_t item, size_t length) {
    void *object = hh_gc_alloc_items(heap, type, fixed, item, length);
    if (__builtin_expect(object != NULL && hh_gc_bytes_with(fixed, item, length) <= HH_GC_MAX_YOUNG, 1))
        __builtin_memset((char *)object + HH_GC_VARIABLE_BYTES, 0, hh_gc_bytes_with(fixed, item, length) - HH_GC_VARIABLE_BYTES);
    return object;
}

/* An object that begins in the old generation, zero, for what is known to live long; `length` is 0 for a fixed
 * type. References are written into it with hh_gc_write. Collects. */
void *hh_gc_alloc_old(hh_gc *heap, hh_gc_type type, size_t length) HH_NOEXCEPT HH_RESULT;

/* The same for an object that does not move and lives until its handle is released. With NULL the handle is 0. */
void *hh_gc_alloc_pinned(hh_gc *heap, hh_gc_type type, size_t length, hh_gc_global *handle) HH_NOEXCEPT HH_RESULT;

/* An object of a type with a finalizer: it never comes from the window, so hh_gc_alloc is a mistake for such a
 * type. `length` is 0 for a fixed type. Collects. */
void *hh_gc_alloc_finalized(hh_gc *heap, hh_gc_type type, size_t length) HH_NOEXCEPT HH_RESULT;

/* Calls the finalizers of the objects that were found unreachable, in the order in which they were made but
 * for those that a later one leads to: of a dead list of objects with finalizers that is one in each whole
 * collection. Returns how many. Collects when a finalizer does. */
size_t hh_gc_run_finalizers(hh_gc *heap) HH_NOEXCEPT;

/* Sees to it that an object of any type is handed out once it is unreachable, by hh_gc_next_finalizable; a
 * type's finalizer needs no such call. Once more for each call, and for an object that was handed out again.
 * Returns HH_OK or HH_NO_MEMORY. Does not collect. */
int hh_gc_finalize(hh_gc *heap, void *object) HH_NOEXCEPT HH_RESULT;

/* Takes one object that was found unreachable, the first in the order of hh_gc_run_finalizers, and calls
 * nothing: for a program that ends things when it has time. It is in no root any more. NULL: there is none.
 * hh_gc_run_finalizers takes them all, and lets those go whose type has no finalizer. Does not collect. */
void *hh_gc_next_finalizable(hh_gc *heap) HH_NOEXCEPT HH_RESULT;

/* How many there are to take. */
size_t hh_gc_finalizable(const hh_gc *heap) HH_NOEXCEPT HH_RESULT;

/* What hh_gc_open does with a window that is open: ends the process with one line. */
void hh_gc_not_closed(const hh_gc *heap) HH_NOEXCEPT;

/* Moves the window into a local variable, for a loop that allocates with hh_gc_alloc_in: cursor and limit stay
 * in registers. Until hh_gc_close the only other functions of this heap that may be called are hh_gc_write and
 * what does not collect. A heap has one open window: what is called in the loop and allocates gets its address,
 * and to open it once more ends the process with one line. */
HH_GC_INLINE HH_RESULT hh_gc_window hh_gc_open(hh_gc *heap) {
    if (__builtin_expect(heap->open != 0, 0))
        hh_gc_not_closed(heap);
    hh_gc_window window = heap->window;
    heap->window.cursor = heap->window.limit = 0;
    heap->open = 1;
    return window;
}

/* What hh_gc_close does with a window that is not open: ends the process with one line. */
void hh_gc_not_open(const hh_gc *heap) HH_NOEXCEPT;

/* Once for each hh_gc_open, with the window that was in use since. */
HH_GC_INLINE void hh_gc_close(hh_gc *heap, hh_gc_window window) {
    if (__builtin_expect(heap->open == 0, 0))
        hh_gc_not_open(heap);
    heap->window = window;
    heap->open = 0;
}

/* ---- Objects -------------------------------------------------------------------------------------------------------- */

HH_GC_INLINE hh_gc_header hh_gc_header_of(const void *object) {
    hh_gc_header header;
    __builtin_memcpy(&header, object, sizeof header);
    return header;
}

/* The type of an object. */
HH_GC_INLINE hh_gc_type hh_gc_type_of(const void *object) { return (hh_gc_type)(hh_gc_header_of(object) >> HH_GC_TYPE_SHIFT); }

/* Items of an object of variable length. */
HH_GC_INLINE size_t hh_gc_length(const void *object) {
    size_t length;
    __builtin_memcpy(&length, (const char *)object + HH_GC_LENGTH_OFFSET, sizeof length);
    return length;
}

/* Reads a weak slot, or one of an ephemeron: NULL when what it refers to was found dead. The slot itself may
 * say so later only. */
void *hh_gc_weak(const hh_gc *heap, const void *slot) HH_NOEXCEPT HH_RESULT;

/* A number that an object keeps as long as it lives, wherever it moves: not 0, below 2^26. Different objects
 * may have the same. */
uint32_t hh_gc_hash(hh_gc *heap, void *object) HH_NOEXCEPT HH_RESULT;

/* Whether an object is in the nursery. */
int hh_gc_is_young(const hh_gc *heap, const void *object) HH_NOEXCEPT HH_RESULT;

/* What hh_gc_barrier does when a flag of the object is set. */
void hh_gc_remember(hh_gc *heap, void *object, void *slot) HH_NOEXCEPT;

/* The barrier alone, before or after a reference is written into a slot of an object, and before the next call
 * that collects. */
HH_GC_INLINE void hh_gc_barrier(hh_gc *heap, void *object, void *slot) {
    if (__builtin_expect((hh_gc_header_of(object) & HH_GC_BARRIER_FLAGS) != 0, 0))
        hh_gc_remember(heap, object, slot);
}

/* Writes a reference, or what else a slot may hold, into a slot of an object. */
HH_GC_INLINE void hh_gc_write(hh_gc *heap, void *object, void *slot, const void *value) {
    hh_gc_barrier(heap, object, slot);
    __builtin_memcpy(slot, &value, sizeof value);
}

/* The same for a member of a struct, with its type checked. No argument may call what collects. */
#define HH_GC_SET(heap, object, member, value) \
    ((void)((object)->member = (value)), hh_gc_barrier(heap, (object), &(object)->member))

/* ---- Collections ---------------------------------------------------------------------------------------------------- */

/* Where the major collection is. */
enum hh_gc_phase { HH_GC_IDLE = 0, HH_GC_MARKING = 1, HH_GC_CLEARING = 2, HH_GC_SWEEPING = 3 };

/* A minor collection, and a step of the major one when that is under way or due: a bounded pause, for when the
 * program waits. Returns the enum hh_gc_phase after it. Collects. */
int hh_gc_collect_minor(hh_gc *heap) HH_NOEXCEPT;

/* A whole collection: afterwards everything dead is free, and heap pages without live objects are the arenas'
 * again. Collects. */
void hh_gc_collect(hh_gc *heap) HH_NOEXCEPT;

/* A whole collection after which the old generation takes no new objects into its pages, so that a child goes
 * on sharing them. Before fork. Collects. */
void hh_gc_prepare_fork(hh_gc *heap) HH_NOEXCEPT;

/* ---- Protection ----------------------------------------------------------------------------------------------------- */

enum hh_gc_forbid { HH_GC_FORBID_WRITE = 0, HH_GC_FORBID_ACCESS = 1 };

/* A range of addresses, a heap page of 16 KiB or a larger OS page; of a fault, what was read or written as well. */
typedef struct hh_gc_fault {
    uintptr_t address, start;
    size_t bytes;
} hh_gc_fault;

/* Protects the heap page of an address in the old generation: the first access that is forbidden is told to
 * the hook. Fills `range` unless that is NULL. Collections lift protections and set them again. Returns HH_OK
 * or another hh_status. */
int hh_gc_protect(hh_gc *heap, const void *address, int forbid, hh_gc_fault *range) HH_NOEXCEPT HH_RESULT;

/* Lifts the protection of the heap page of an address. Returns 0 when it had none. */
int hh_gc_unprotect(hh_gc *heap, const void *address) HH_NOEXCEPT;

/* Is told in the signal handler of the thread that made the access: does only what a handler may. true: the
 * protection is lifted, the thread goes on; false: the process ends with one line, as it does without a hook. */
typedef bool (*hh_gc_fault_hook)(const hh_gc_fault *fault);

/* Sets the hook of all heaps of the process; NULL: none. */
void hh_gc_set_fault_hook(hh_gc_fault_hook hook) HH_NOEXCEPT;

/* ---- Events and the log --------------------------------------------------------------------------------------------- */

enum hh_gc_event_kind {
    HH_GC_EVENT_MINOR = 0,      /* a minor collection */
    HH_GC_EVENT_STEP = 1,       /* a step of a major collection, or all of it */
    HH_GC_EVENT_MAJOR = 2,      /* a major collection ended */
    HH_GC_EVENT_EVACUATION = 3, /* what lives left sparse arenas */
    HH_GC_EVENT_ARENAS = 4      /* the old generation holds at least an arena more or less than when this was told last */
};

/* What happened. Members that are not of its kind are 0. Later versions add members at the end, and kinds. */
typedef struct hh_gc_event {
    uint32_t size;        /* bytes that the library filled */
    uint32_t kind;        /* enum hh_gc_event_kind */
    uint64_t took;        /* nanoseconds; minor, step, evacuation */
    uint64_t held;        /* bytes of heap pages and large blocks of the old generation; all kinds */
    uint64_t old;         /* bytes of objects in it; minor, step */
    uint64_t nursery;     /* minor: bytes that were used of the nursery */
    uint64_t survivors;   /* minor: objects that moved to the old generation */
    uint64_t survived;    /* minor: bytes of their blocks */
    uint64_t staying;     /* minor: objects that stay in the nursery */
    uint64_t not_moved;   /* minor: of these, those for which there was no room */
    uint64_t from, to;    /* step: what was done and what comes next, enum hh_gc_phase */
    uint64_t number;      /* major: how many there were, with this one */
    uint64_t live;        /* major: bytes that live */
    uint64_t finalizable; /* major: objects that can be finalized */
    uint64_t moved;       /* evacuation: objects that moved */
    uint64_t moved_bytes; /* evacuation: bytes of these */
    uint64_t freed_pages; /* evacuation: heap pages that became free */
    uint64_t arenas;      /* arenas: those of the process with memory, whoever uses them */
    uint64_t empty;       /* arenas: of these, arenas without anything live */
    uint64_t given_back;  /* arenas: bytes given back to the system so far */
} hh_gc_event;

/* Is told inside of collections: calls nothing of the heap. */
typedef void (*hh_gc_hook)(void *data, const hh_gc_event *event);

/* Has a function told of what happens in a heap, instead of the one before; NULL: none. Needs no memory. */
void hh_gc_set_hook(hh_gc *heap, hh_gc_hook hook, void *data) HH_NOEXCEPT;

/* Gives a heap a log of its own: `log` is gc-minor,gc-major,arena:FILE as in the variable HUGEHEAP_LOG, with -
 * for standard error; NULL: nothing is logged of this heap. Returns HH_OK, or HH_BAD_LOG or HH_NO_MEMORY and
 * its text in `buffer`, cut to `size` bytes with the NUL; the log is the one before then. */
int hh_gc_set_log(hh_gc *heap, const char *log, char *buffer, size_t size) HH_NOEXCEPT HH_RESULT;

/* ---- Numbers -------------------------------------------------------------------------------------------------------- */

/* Verifies the heap now, but for objects that were allocated since the last collection: after
 * hh_gc_collect_minor it looks at all. Returns HH_OK, or HH_MISTAKE and its text in `buffer`, cut to `size`
 * bytes with the NUL. Does not collect. */
int hh_gc_verify(hh_gc *heap, char *buffer, size_t size) HH_NOEXCEPT HH_RESULT;

/* The same for references into the nursery in objects that no barrier remembered. */
int hh_gc_verify_barriers(const hh_gc *heap, char *buffer, size_t size) HH_NOEXCEPT HH_RESULT;

/* Buckets of the histogram: bucket n counts pauses from 2^n to 2^(n+1) nanoseconds, the last one all longer ones. */
#define HH_GC_BUCKETS 36

/* The numbers of a heap. Bytes are bytes, times are nanoseconds; counts are since the heap was made. Later
 * versions add members at the end. */
typedef struct hh_gc_stats_t {
    uint32_t schema;          /* version of the meaning of the members: 1 */
    uint32_t size;            /* in: sizeof(hh_gc_stats_t); out: bytes that were filled */
    uint64_t phase;           /* enum hh_gc_phase, now */
    uint64_t nursery;         /* bytes of the nursery */
    uint64_t old;             /* bytes of objects in the old generation that are not known to be dead */
    uint64_t held;            /* bytes of heap pages and large blocks that the old generation has */
    uint64_t minor;           /* minor collections */
    uint64_t steps;           /* steps of marking and sweeping */
    uint64_t major;           /* major collections that ended */
    uint64_t survivors;       /* objects that minor collections moved to the old generation */
    uint64_t survived_bytes;  /* bytes of their blocks */
    uint64_t nursery_bytes;   /* bytes that were used of the nursery up to the last collection */
    uint64_t old_bytes;       /* bytes allocated in the old generation at once */
    uint64_t not_moved;       /* objects that had to stay in the nursery because the old generation had no room */
    uint64_t cleared;         /* weak slots that became 0, and ephemerons */
    uint64_t finalized;       /* objects that became ready to be finalized */
    uint64_t evacuations;     /* evacuations of the old generation */
    uint64_t moved;           /* objects that these moved */
    uint64_t moved_bytes;     /* bytes of these */
    uint64_t freed_pages;     /* heap pages that became free thereby */
    uint64_t pauses;          /* times that the program waited for a collection */
    uint64_t pause_total;
    uint64_t pause_longest;
    uint64_t pause_histogram[HH_GC_BUCKETS];
    uint64_t rotated;         /* times that another nursery was used than before, where that is asked for */
} hh_gc_stats_t;

/* Fills the struct, whose `size` is set. Returns HH_OK or another hh_status. */
int hh_gc_stats(const hh_gc *heap, hh_gc_stats_t *stats) HH_NOEXCEPT HH_RESULT;

/* Writes the numbers as JSON (schema hugeheap.gc-stats/1), as hh_stats_json does. */
size_t hh_gc_stats_json(const hh_gc *heap, char *buffer, size_t size) HH_NOEXCEPT;

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
