/* Hash tables, with `equal?` for keys: open addressing, the places of removed keys are GONE until the table grows.
 *
 * Numbers and strings are hashed by what they are. Anything else is hashed by its identity, a number that the
 * collector keeps with an object while it moves: an address would not do. Lists and vectors are hashed by their
 * contents, so that equal ones are found. */
#include "lisp.h"

#include <string.h>

#define PRIMITIVE(function) static value function(size_t count, value *a)

static uint64_t mixed(uint64_t hash) {
    hash *= 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static uint64_t hash_of(value key, int depth) {
    uint64_t hash = 17;
    if (!is_object(key))
        return mixed(key);
    switch (hh_gc_type_of((void *)key)) {
    case FLOAT:
        memcpy(&hash, &AS(flonum, key)->number, sizeof hash);
        return mixed(hash);
    case STRING:
        for (size_t index = 0; index < AS(string, key)->length; index++)
            hash = (hash ^ (unsigned char)AS(string, key)->bytes[index]) * 1099511628211u;
        return mixed(hash);
    case PAIR: /* of a long or deep one only a part */
        for (int items = 0; is(key, PAIR) && items < 8 && depth < 4; key = TAIL(key), items++)
            hash = mixed(hash + hash_of(HEAD(key), depth + 1));
        return hash;
    case VECTOR:
        for (size_t index = 0; index < AS(vector, key)->length && index < 8 && depth < 4; index++)
            hash = mixed(hash + hash_of(AS(vector, key)->items[index], depth + 1));
        return hash;
    default:
        return mixed(hh_gc_hash(lisp.heap, (void *)key));
    }
}

static struct table *table(const char *who, value v) {
    if (!is(v, TABLE))
        wrong(who, v, "hash table");
    return AS(table, v);
}

/* Place of a key among the entries, or of where it belongs. */
static size_t place(struct vector *entries, value key) {
    size_t room = entries->length / 2, vacant = SIZE_MAX;
    for (size_t at = hash_of(key, 0);; at++) {
        size_t here = 2 * (at & (room - 1));
        value found = entries->items[here];
        if (found == GONE && vacant == SIZE_MAX)
            vacant = here;
        else if (found == UNBOUND)
            return vacant == SIZE_MAX ? here : vacant;
        else if (found != GONE && is_equal(found, key))
            return here;
    }
}

static void put(struct vector *entries, size_t here, value key, value v) {
    hh_gc_write(lisp.heap, entries, &entries->items[here], (void *)key);
    hh_gc_write(lisp.heap, entries, &entries->items[here + 1], (void *)v);
}

/* Makes a table's entries three quarters empty. `of`: where the table is rooted. */
static void grow(value *of) {
    size_t live = AS(table, *of)->live, room = 8;
    while (room < 4 * (live + 1))
        room *= 2;
    value made = new_vector(2 * room, UNBOUND);
    struct vector *before = AS(vector, AS(table, *of)->entries), *entries = AS(vector, made);
    for (size_t index = 0; index < before->length; index += 2)
        if (before->items[index] != UNBOUND && before->items[index] != GONE)
            put(entries, place(entries, before->items[index]), before->items[index], before->items[index + 1]);
    struct table *grown_table = AS(table, *of);
    HH_GC_SET(lisp.heap, grown_table, entries, made);
    grown_table->used = live;
}

PRIMITIVE(make) { (void)count; (void)a; return new_table(); }

PRIMITIVE(set) {
    (void)count;
    struct table *to = table("hash-table-set!", a[0]);
    if (2 * (to->used + 1) > AS(vector, to->entries)->length * 3 / 4) {
        grow(&a[0]);
        to = AS(table, a[0]);
    }
    struct vector *entries = AS(vector, to->entries);
    size_t here = place(entries, a[1]);
    value before = entries->items[here];
    to->used += before == UNBOUND;
    to->live += before == UNBOUND || before == GONE;
    put(entries, here, a[1], a[2]);
    return NOTHING;
}

PRIMITIVE(ref) {
    struct vector *entries = AS(vector, table("hash-table-ref", a[0])->entries);
    size_t here = place(entries, a[1]);
    if (entries->items[here] != UNBOUND && entries->items[here] != GONE)
        return entries->items[here + 1];
    return count > 2 ? a[2] : FALSE;
}

PRIMITIVE(delete) {
    (void)count;
    struct table *from = table("hash-table-delete!", a[0]);
    struct vector *entries = AS(vector, from->entries);
    size_t here = place(entries, a[1]);
    if (entries->items[here] != UNBOUND && entries->items[here] != GONE) {
        put(entries, here, GONE, NIL);
        from->live--;
    }
    return NOTHING;
}

PRIMITIVE(size) { (void)count; return integer((int64_t)table("hash-table-count", a[0])->live); }

PRIMITIVE(to_list) {
    (void)count;
    struct { value list, pair; } my = {NIL, NIL};
    HH_GC_ROOTS(lisp.heap, my);
    table("hash-table->alist", a[0]);
    for (size_t index = AS(vector, AS(table, a[0])->entries)->length; index > 0; index -= 2) {
        value *entry = &AS(vector, AS(table, a[0])->entries)->items[index - 2];
        if (entry[0] == UNBOUND || entry[0] == GONE)
            continue;
        my.pair = cons(entry[0], entry[1]);
        my.list = cons(my.pair, my.list);
    }
    return my.list;
}

PRIMITIVE(table_p) { (void)count; return boolean(is(a[0], TABLE)); }

void add_tables(void) {
    static const struct definition definitions[] = {
        {"make-hash-table", make, 0, 0, 0}, {"hash-table-set!", set, 3, 3, 0}, {"hash-table-ref", ref, 2, 3, 0}, {"hash-table?", table_p, 1, 1, 0},
        {"hash-table-delete!", delete, 2, 2, 0}, {"hash-table-count", size, 1, 1, 0}, {"hash-table->alist", to_list, 1, 1, 0},
    };
    add_primitives(definitions, sizeof definitions / sizeof definitions[0]);
}
