/* Wrong uses of blocks. Each must end the process by SIGABRT with one line: mistakes KIND. Prints the address
 * that the line must name. */
#include "check.h"

#include <hugeheap.h>
#ifdef INLINE
#include <hugeheap_inline.h>
#define hh_heap_alloc hh_heap_alloc_inline
#define hh_heap_free_sized hh_heap_free_sized_inline
#endif
#include <pthread.h>
#include <stdint.h>

static hh_heap *heap;

/* The compiler would warn of what is done here on purpose, or leave it out. */
static void *hidden(void *block) {
    void *volatile pointer = block;
    return pointer;
}

static void *named(void *block) {
    printf("%p\n", block);
    fflush(stdout);
    return hidden(block);
}

static void *free_in_thread(void *block) {
    hh_free(block);
    return NULL;
}

static void in_thread(void *(*work)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, argument) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Blocks beside it, so that its window and its page are not the current ones any more. */
static void *old_block(size_t size) {
    void *block = hh_malloc(size);
    for (int n = 0; n < 5000; n++)
        CHECK(hh_malloc(size) != NULL);
    return block;
}

static void twice(void) {
    void *block = hh_malloc(48);
    hh_free(hidden(block));
    hh_free(named(block));
}

static void twice_old(void) {
    void *block = old_block(48);
    hh_free(hidden(block));
    hh_free(named(block));
}

static void twice_medium(void) {
    void *block = hh_malloc(3000);
    hh_free(hidden(block));
    hh_free(named(block));
}

static void twice_sized(void) {
    void *block = hh_malloc(48);
    hh_free_sized(hidden(block), 48);
    hh_free_sized(named(block), 48);
}

static void twice_run(void) {
    void *block = hh_malloc(100000);
    hh_free(hidden(block));
    hh_free(named(block));
}

static void twice_large(void) {
    void *block = hh_malloc(5000000);
    hh_free(hidden(block));
    hh_free(named(block));
}

static void twice_heap(void) {
    void *block = hh_heap_alloc(heap, 48);
    hh_heap_free(heap, hidden(block));
    hh_heap_free(heap, named(block));
}

static void twice_heap_sized(void) {
    void *block = hh_heap_alloc(heap, 48);
    hh_heap_free_sized(heap, hidden(block), 48);
    hh_heap_free_sized(heap, named(block), 48);
}

/* The owner first, another thread then. */
static void owner_then_thread(void) {
    void *block = old_block(48);
    hh_free(hidden(block));
    in_thread(free_in_thread, named(block));
}

/* Another thread first, the owner then. */
static void thread_then_owner(void) {
    void *block = old_block(48);
    in_thread(free_in_thread, block);
    hh_free(named(block));
}

static void two_threads(void) {
    void *block = old_block(48);
    in_thread(free_in_thread, hidden(block));
    in_thread(free_in_thread, named(block));
}

/* The owner's free was in its open window, which other threads see like any other. */
static void owner_then_thread_open(void) {
    void *block = hh_malloc(48);
    hh_free(hidden(block));
    in_thread(free_in_thread, named(block));
    hh_give_back();
}

static void thread_then_owner_heap(void) {
    void *block = hh_heap_alloc(heap, 48);
    in_thread(free_in_thread, hidden(block));
    hh_heap_free(heap, named(block));
}

/* In the open window, and the second block there: what other threads freed is noted in another place for each. */
static void thread_then_owner_heap_sized(size_t size) {
    CHECK(hh_heap_alloc(heap, size) != NULL);
    void *block = hh_heap_alloc(heap, size);
    in_thread(free_in_thread, hidden(block));
    hh_heap_free_sized(heap, named(block), size);
}

static void thread_then_owner_heap_48(void) { thread_then_owner_heap_sized(48); }
static void thread_then_owner_heap_256(void) { thread_then_owner_heap_sized(256); }
static void thread_then_owner_heap_304(void) { thread_then_owner_heap_sized(304); }
static void thread_then_owner_heap_512(void) { thread_then_owner_heap_sized(512); }

static void interior(void) { hh_free((char *)named((char *)hh_malloc(48) + 16)); }
static void interior_odd(void) { hh_free((char *)named((char *)hh_malloc(48) + 1)); }
static void interior_medium(void) { hh_free((char *)named((char *)hh_malloc(3000) + 128)); }
static void interior_run(void) { hh_free((char *)named((char *)hh_malloc(100000) + 16384)); }
static void interior_large(void) { hh_free((char *)named((char *)hh_malloc(5000000) + 4096)); }
static void interior_heap(void) { hh_heap_free(heap, named((char *)hh_heap_alloc(heap, 100) + 32)); }
static void interior_sized(void) { hh_free_sized(named((char *)hh_malloc(48) + 16), 48); }

static void foreign_stack(void) {
    char bytes[64];
    hh_free(named(bytes));
}

static void foreign_malloc(void) { hh_free(named(malloc(48))); }
static void foreign_low(void) { hh_free(named((void *)(uintptr_t)16)); }
static void foreign_high(void) { hh_free(named((void *)(UINTPTR_MAX - 15))); }
static void foreign_heap(void) { hh_heap_free(heap, named(malloc(48))); }
static void foreign_sized(void) { hh_heap_free_sized(heap, named(malloc(48)), 48); }
static void foreign_realloc(void) { CHECK(hh_realloc(named(malloc(48)), 100) == NULL); }
static void foreign_size(void) { CHECK(hh_usable_size(named(malloc(48))) == 0); }

static void size_small(void) { hh_free_sized(named(hh_malloc(48)), 49); }
static void size_less(void) { hh_free_sized(named(hh_malloc(48)), 32); }
static void size_zero(void) { hh_free_sized(named(hh_malloc(48)), 0); }
static void size_medium(void) { hh_free_sized(named(hh_malloc(3000)), 4000); }
static void size_run(void) { hh_free_sized(named(hh_malloc(100000)), 200000); }
static void size_large(void) { hh_free_sized(named(hh_malloc(5000000)), 5000001); }
static void size_heap(void) { hh_heap_free_sized(heap, named(hh_heap_alloc(heap, 48)), 64); }
static void size_huge(void) { hh_heap_free_sized(heap, named(hh_heap_alloc(heap, 48)), SIZE_MAX); }
static void size_realloc(void) { CHECK(hh_heap_realloc(heap, named(hh_heap_alloc(heap, 48)), 64, 100) == NULL); }
static void size_realloc_huge(void) { CHECK(hh_heap_realloc(heap, named(hh_heap_alloc(heap, 48)), SIZE_MAX, 100) == NULL); }
static void size_realloc_medium(void) { CHECK(hh_heap_realloc(heap, named(hh_heap_alloc(heap, 3000)), 100, 100) == NULL); }
/* Of the same kind, and of another class or number of pages. */
static void size_realloc_class(void) { CHECK(hh_heap_realloc(heap, named(hh_heap_alloc(heap, 3000)), 577, 100) == NULL); }
static void size_realloc_run(void) { CHECK(hh_heap_realloc(heap, named(hh_heap_alloc(heap, 1000000)), 8193, 100) == NULL); }
static void size_realloc_large(void) { CHECK(hh_heap_realloc(heap, named(hh_heap_alloc(heap, 50000000)), 8193, 100) == NULL); }

/* In a thread that has left its heap: in a destructor that is called after hugeheap's own, which is of an
 * earlier key. */
static pthread_key_t late_key;
static void (*late_work)(void);

static void late_destructor(void *again) {
    if (again != &late_key)
        CHECK(pthread_setspecific(late_key, &late_key) == 0);
    else
        late_work();
}

static void *end_late(void *unused) {
    (void)unused;
    CHECK(hh_malloc(48) != NULL);
    CHECK(pthread_setspecific(late_key, &late_work) == 0);
    return NULL;
}

static void in_late_destructor(void (*work)(void)) {
    late_work = work;
    CHECK(pthread_key_create(&late_key, late_destructor) == 0);
    in_thread(end_late, NULL);
}

static void *late_block;
static void free_late_block_wrongly(void) { hh_free_sized(late_block, 4000); }
static void free_late_pages_wrongly(void) { hh_free_sized(late_block, 200000); }
static void free_late_block_twice(void) {
    hh_free_sized(late_block, 48);
    hh_free_sized(late_block, 48);
}

static void size_late(void) {
    late_block = named(hh_malloc(48));
    in_late_destructor(free_late_block_wrongly);
}

static void size_late_run(void) {
    late_block = named(hh_malloc(100000));
    in_late_destructor(free_late_pages_wrongly);
}

static void two_threads_late(void) {
    late_block = named(old_block(48));
    in_late_destructor(free_late_block_twice);
}

static void realloc_freed(void) {
    void *block = hh_malloc(48);
    hh_free(hidden(block));
    CHECK(hh_realloc(named(block), 100) == NULL);
}

static void realloc_freed_heap(void) {
    void *block = hh_heap_alloc(heap, 48);
    hh_heap_free(heap, hidden(block));
    CHECK(hh_heap_realloc(heap, named(block), 48, 100) == NULL);
}

static void realloc_interior(void) { CHECK(hh_realloc(named((char *)hh_malloc(100) + 16), 100) == NULL); }

static void size_of_freed(void) {
    void *block = hh_malloc(48);
    hh_free(hidden(block));
    CHECK(hh_usable_size(named(block)) == 0);
}

int main(int count, char **words) {
#define KIND(name) {#name, name}
    static const struct {
        const char *name;
        void (*run)(void);
    } kinds[] = {
        KIND(twice), KIND(twice_old), KIND(twice_medium), KIND(twice_sized), KIND(twice_run), KIND(twice_large),
        KIND(twice_heap), KIND(twice_heap_sized), KIND(owner_then_thread), KIND(thread_then_owner), KIND(two_threads),
        KIND(owner_then_thread_open), KIND(thread_then_owner_heap), KIND(thread_then_owner_heap_48),
        KIND(thread_then_owner_heap_256), KIND(thread_then_owner_heap_304), KIND(thread_then_owner_heap_512),
        KIND(interior), KIND(interior_odd), KIND(interior_medium), KIND(interior_run),
        KIND(interior_large), KIND(interior_heap), KIND(interior_sized), KIND(foreign_stack), KIND(foreign_malloc),
        KIND(foreign_low), KIND(foreign_high), KIND(foreign_heap), KIND(foreign_sized), KIND(foreign_realloc),
        KIND(foreign_size), KIND(size_small), KIND(size_less), KIND(size_zero), KIND(size_medium), KIND(size_run),
        KIND(size_large), KIND(size_heap), KIND(size_huge), KIND(size_realloc), KIND(size_realloc_huge),
        KIND(size_realloc_medium), KIND(size_realloc_class), KIND(size_realloc_run), KIND(size_realloc_large),
        KIND(size_late), KIND(size_late_run), KIND(two_threads_late), KIND(realloc_freed),
        KIND(realloc_freed_heap), KIND(realloc_interior), KIND(size_of_freed),
    };
    for (unsigned n = 0; count == 1 && n < sizeof kinds / sizeof kinds[0]; n++)
        puts(kinds[n].name);
    for (unsigned n = 0; count == 2 && n < sizeof kinds / sizeof kinds[0]; n++) {
        if (strcmp(words[1], kinds[n].name) == 0) {
            heap = hh_heap_new(NULL);
            CHECK(heap != NULL);
            kinds[n].run();
            puts("survived");
            return 0;
        }
    }
    return count == 1 ? 0 : 2;
}
