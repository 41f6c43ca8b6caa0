/* What keeps objects alive: frames, handles, callbacks, words of a stack. */
#include "gc_objects.h"

/* Lists in locals, in arrays and structs of locals, across blocks that are left early. */
static void test_frames(void) {
    struct node *one = NULL;
    HH_GC_ROOTS(heap, one);
    one = list(3000);
    for (size_t round = 0; round < 3; round++) {
        struct {
            struct node *list;
            struct node *many[10];
        } my = {NULL, {NULL}};
        HH_GC_ROOTS(heap, my);
        my.list = list(100 + round);
        for (size_t n = 0; n < 10; n++)
            my.many[n] = list(n);
        hh_gc_collect(heap);
        check_list(my.list, 100 + round);
        for (size_t n = 0; n < 10; n++)
            check_list(my.many[n], n);
        if (round == 1)
            continue;
    }
    check_list(one, 3000);
    CHECK(!hh_gc_is_young(heap, one));
    /* A word that is no reference is left alone. */
    one->next = (struct node *)(uintptr_t)7;
    hh_gc_collect(heap);
    CHECK((uintptr_t)one->next == 7);
    /* Two on one line, as a macro of the program has them. */
    struct node *two = list(2), *three = NULL;
    HH_GC_ROOTS(heap, two); HH_GC_ROOTS(heap, three);
    three = list(3);
    hh_gc_collect(heap);
    check_list(two, 2);
    check_list(three, 3);
    one = two = three = NULL;
    hh_gc_collect(heap);
    CHECK(numbers().old == 0 && numbers().held == 0);
}

static void test_handles(void) {
    hh_gc_global kept[100], pinned[100];
    void *places[100];
    for (size_t n = 0; n < 100; n++) {
        kept[n] = hh_gc_keep(heap, list(n));
        struct node *node = new_node(n, NULL);
        pinned[n] = hh_gc_pin(heap, places[n] = node);
        CHECK(kept[n] != 0 && pinned[n] != 0 && kept[n] != pinned[n]);
    }
    for (size_t round = 0; round < 3; round++) {
        list(5000);
        hh_gc_collect(heap);
        for (size_t n = round; n < 100; n++) {
            check_list(hh_gc_get(heap, kept[n]), n);
            CHECK(hh_gc_get(heap, pinned[n]) == places[n] && ((struct node *)places[n])->number == n);
        }
        hh_gc_release(heap, kept[round]);
        hh_gc_release(heap, pinned[round]);
    }
    hh_gc_global another;
    struct table *table = hh_gc_alloc_pinned(heap, table_type, 10, &another);
    CHECK(table != NULL && table->length == 10);
    list(20000);
    hh_gc_collect(heap);
    CHECK(hh_gc_get(heap, another) == table);
    hh_gc_release(heap, another);
    hh_gc_release(heap, 0);
    hh_gc_global none = hh_gc_keep(heap, NULL);
    CHECK(hh_gc_get(heap, none) == NULL);
}

static void test_callbacks(void) {
    CHECK(hh_gc_add_roots(heap, NULL, NULL) == HH_BAD_ARGUMENT);
    CHECK(hh_gc_add_roots(heap, name_elsewhere, elsewhere) == HH_OK);
    for (size_t n = 0; n < 50; n++)
        elsewhere[n] = list(n);
    hh_gc_collect(heap);
    for (size_t n = 0; n < 50; n++)
        check_list(elsewhere[n], n);
    hh_gc_remove_roots(heap, name_elsewhere, NULL);
    hh_gc_collect(heap);
    CHECK(numbers().old > 0);
    hh_gc_remove_roots(heap, name_elsewhere, elsewhere);
    hh_gc_remove_roots(heap, name_elsewhere, elsewhere);
    hh_gc_collect(heap);
    CHECK(numbers().old == 0);
}

static void words_of(void *data, const void **begin, const void **end) {
    *begin = data;
    *end = (char *)data + 4 * sizeof(void *);
}

/* Words that nobody says to be references keep objects, young and old, where they are. */
static void test_scan(void) {
    void *words[4] = {NULL};
    CHECK(hh_gc_add_scan(heap, NULL, NULL) == HH_BAD_ARGUMENT && hh_gc_add_scan(heap, words_of, words) == HH_OK);
    struct node *old = list(10);
    words[0] = old;
    words[1] = (char *)new_node(77, NULL) + 8;
    words[2] = (void *)(uintptr_t)0x1234567890;
    for (int round = 0; round < 3; round++) {
        list(3000);
        hh_gc_collect(heap);
        CHECK(words[0] == old);
        check_list(old, 10);
        CHECK(((struct node *)(void *)((char *)words[1] - 8))->number == 77);
    }
    /* As often as it was added, and only with the same arguments. */
    CHECK(hh_gc_add_scan(heap, words_of, words) == HH_OK);
    hh_gc_remove_scan(heap, words_of, NULL);
    hh_gc_remove_scan(heap, NULL, words);
    hh_gc_remove_scan(heap, words_of, words);
    hh_gc_collect(heap);
    CHECK(words[0] == old);
    check_list(old, 10);
    hh_gc_remove_scan(heap, words_of, words);
    hh_gc_remove_scan(heap, words_of, words);
    hh_gc_collect(heap);
    hh_gc_collect(heap);
    CHECK(numbers().old == 0);
}

/* What is pushed then is popped after the heap is gone: the address sanitizer sees where. */
static void test_dropped(void) {
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    hh_gc *other = NULL;
    CHECK(hh_gc_new(&options, &other) == HH_OK);
    void *one = NULL, *two = NULL;
    HH_GC_ROOTS(other, one);
    {
        HH_GC_ROOTS(other, two);
        hh_gc_collect(other);
        hh_gc_drop(other);
    }
    CHECK(one == NULL && two == NULL);
    /* Heaps that are there are not touched. */
    test_frames();
}

int main(int count, char **words) {
    static const struct section sections[] = {SECTION(frames), SECTION(handles), SECTION(callbacks), SECTION(scan), SECTION(dropped)};
    return run_section(sections, sizeof sections / sizeof sections[0], count, words);
}
