/* Pairs, vectors, and what any value can be asked. */
#include "code.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Lists in lists: `equal?` calls itself for heads. */
#define MOST_DEPTH 10000

bool is_eqv(value a, value b) {
    if (a == b)
        return true;
    return is(a, FLOAT) && is(b, FLOAT) && AS(flonum, a)->number == AS(flonum, b)->number;
}

static bool equal_at(value a, value b, int depth) {
    if (depth > MOST_DEPTH)
        fail("equal?: lists are nested more than %d times", MOST_DEPTH);
    for (; is(a, PAIR) && is(b, PAIR); a = TAIL(a), b = TAIL(b))
        if (!equal_at(HEAD(a), HEAD(b), depth + 1))
            return false;
    if (is(a, STRING) && is(b, STRING)) {
        struct string *one = AS(string, a), *other = AS(string, b);
        return one->length == other->length && memcmp(one->bytes, other->bytes, one->length) == 0;
    }
    if (is(a, VECTOR) && is(b, VECTOR)) {
        struct vector *one = AS(vector, a), *other = AS(vector, b);
        bool same = one->length == other->length;
        for (size_t index = 0; same && index < one->length; index++)
            same = equal_at(one->items[index], other->items[index], depth + 1);
        return same;
    }
    return is_eqv(a, b);
}

bool is_equal(value a, value b) { return equal_at(a, b, 0); }

#define PRIMITIVE(function) static value function(size_t count, value *a)
#define TEST(function, condition) PRIMITIVE(function) { (void)count; return boolean(condition); }

TEST(pair_p, is(a[0], PAIR))
TEST(null_p, a[0] == NIL)
TEST(symbol_p, is(a[0], SYMBOL))
TEST(string_p, is(a[0], STRING))
TEST(vector_p, is(a[0], VECTOR))
TEST(char_p, is_character(a[0]))
TEST(boolean_p, a[0] == TRUE || a[0] == FALSE)
TEST(procedure_p, is(a[0], CLOSURE) || is(a[0], PRIMITIVE))
TEST(not_p, a[0] == FALSE)
TEST(eq_p, a[0] == a[1])
TEST(eqv_p, is_eqv(a[0], a[1]))
TEST(equal_p, is_equal(a[0], a[1]))

static value pair_of(const char *who, value v) {
    if (!is(v, PAIR))
        wrong(who, v, "pair");
    return v;
}

PRIMITIVE(cons_f) { (void)count; return cons(a[0], a[1]); }
PRIMITIVE(car) { (void)count; return HEAD(pair_of("car", a[0])); }
PRIMITIVE(cdr) { (void)count; return TAIL(pair_of("cdr", a[0])); }
PRIMITIVE(cadr) { (void)count; return HEAD(pair_of("cadr", TAIL(pair_of("cadr", a[0])))); }
PRIMITIVE(cddr) { (void)count; return TAIL(pair_of("cddr", TAIL(pair_of("cddr", a[0])))); }
PRIMITIVE(caddr) { (void)count; return HEAD(pair_of("caddr", TAIL(pair_of("caddr", TAIL(pair_of("caddr", a[0])))))); }

PRIMITIVE(set_car) {
    (void)count;
    HH_GC_SET(lisp.heap, AS(pair, pair_of("set-car!", a[0])), head, a[1]);
    return NOTHING;
}

PRIMITIVE(set_cdr) {
    (void)count;
    HH_GC_SET(lisp.heap, AS(pair, pair_of("set-cdr!", a[0])), tail, a[1]);
    return NOTHING;
}

PRIMITIVE(list) {
    value made = NIL;
    while (count-- > 0)
        made = cons(a[count], made);
    return made;
}

PRIMITIVE(length) {
    (void)count;
    int64_t length = 0;
    value rest = a[0];
    for (; is(rest, PAIR); rest = TAIL(rest))
        length++;
    if (rest != NIL)
        wrong("length", a[0], "list");
    return integer(length);
}

/* The lists but the last are copied. */
PRIMITIVE(append) {
    if (count == 0)
        return NIL;
    struct { value first, last, rest, item; } my = {NIL, NIL, NIL, NIL};
    HH_GC_ROOTS(lisp.heap, my);
    for (size_t index = 0; index < count; index++) {
        bool copied = index + 1 < count;
        for (my.rest = a[index]; copied && is(my.rest, PAIR); my.rest = TAIL(my.rest)) {
            my.item = cons(HEAD(my.rest), NIL);
            if (my.last == NIL)
                my.first = my.item;
            else
                HH_GC_SET(lisp.heap, AS(pair, my.last), tail, my.item);
            my.last = my.item;
        }
        if (copied && my.rest != NIL)
            wrong("append", a[index], "list");
        if (!copied && my.last == NIL)
            return my.rest;
        if (!copied)
            HH_GC_SET(lisp.heap, AS(pair, my.last), tail, my.rest);
    }
    return my.first;
}

PRIMITIVE(reverse) {
    (void)count;
    struct { value made, rest; } my = {NIL, a[0]};
    HH_GC_ROOTS(lisp.heap, my);
    for (; is(my.rest, PAIR); my.rest = TAIL(my.rest))
        my.made = cons(HEAD(my.rest), my.made);
    return my.made;
}

static value member_by(const char *who, value *a, bool (*same)(value, value), bool in_pairs) {
    for (value rest = a[1]; is(rest, PAIR); rest = TAIL(rest))
        if (same(a[0], in_pairs ? HEAD(pair_of(who, HEAD(rest))) : HEAD(rest)))
            return in_pairs ? HEAD(rest) : rest;
    return FALSE;
}

PRIMITIVE(memv) { (void)count; return member_by("memv", a, is_eqv, false); }
PRIMITIVE(member) { (void)count; return member_by("member", a, is_equal, false); }
PRIMITIVE(assv) { (void)count; return member_by("assv", a, is_eqv, true); }
PRIMITIVE(assoc) { (void)count; return member_by("assoc", a, is_equal, true); }

/* ---- Vectors */

static size_t index_of(const char *who, value vector, value index) {
    if (!is(vector, VECTOR))
        wrong(who, vector, "vector");
    if (!is_integer(index) || (uint64_t)integer_of(index) >= AS(vector, vector)->length)
        wrong(who, index, "index of the vector");
    return (size_t)integer_of(index);
}

PRIMITIVE(make_vector) {
    if (!is_integer(a[0]) || integer_of(a[0]) < 0)
        wrong("make-vector", a[0], "length");
    return new_vector((size_t)integer_of(a[0]), count > 1 ? a[1] : integer(0));
}

PRIMITIVE(vector) {
    value made = new_vector(count, NIL);
    for (size_t index = 0; index < count; index++)
        hh_gc_write(lisp.heap, (void *)made, &AS(vector, made)->items[index], (void *)a[index]);
    return made;
}

PRIMITIVE(vector_ref) { (void)count; return AS(vector, a[0])->items[index_of("vector-ref", a[0], a[1])]; }

PRIMITIVE(vector_set) {
    (void)count;
    size_t index = index_of("vector-set!", a[0], a[1]);
    hh_gc_write(lisp.heap, (void *)a[0], &AS(vector, a[0])->items[index], (void *)a[2]);
    return NOTHING;
}

PRIMITIVE(vector_length) {
    (void)count;
    if (!is(a[0], VECTOR))
        wrong("vector-length", a[0], "vector");
    return integer((int64_t)AS(vector, a[0])->length);
}

/* ---- The rest */

PRIMITIVE(display) { (void)count; print(stdout, a[0], false); return NOTHING; }
PRIMITIVE(write) { (void)count; print(stdout, a[0], true); return NOTHING; }
PRIMITIVE(newline) { (void)count; (void)a; putchar('\n'); return NOTHING; }

/* (error "text" value …) */
PRIMITIVE(error) {
    char text[300] = "";
    FILE *to = fmemopen(text, sizeof text - 1, "w");
    for (size_t index = 0; to != NULL && index < count; index++) {
        if (index > 0)
            putc(' ', to);
        print(to, a[index], index > 0);
    }
    if (to != NULL)
        fclose(to);
    fail("%s", text);
}

PRIMITIVE(collect) { (void)count; (void)a; hh_gc_collect(lisp.heap); return NOTHING; }
PRIMITIVE(now) { (void)count; (void)a; return integer(clock() / (CLOCKS_PER_SEC / 1000)); }

void add_lists(void) {
    static const struct definition definitions[] = {
        {"cons", cons_f, 2, 2, OP_CONS}, {"car", car, 1, 1, OP_CAR}, {"cdr", cdr, 1, 1, OP_CDR}, {"cadr", cadr, 1, 1, 0}, {"cddr", cddr, 1, 1, 0},
        {"caddr", caddr, 1, 1, 0}, {"set-car!", set_car, 2, 2, 0}, {"set-cdr!", set_cdr, 2, 2, 0}, {"list", list, 0, -1, 0},
        {"length", length, 1, 1, 0}, {"append", append, 0, -1, 0}, {"reverse", reverse, 1, 1, 0}, {"memq", memv, 2, 2, 0}, {"memv", memv, 2, 2, 0},
        {"member", member, 2, 2, 0}, {"assq", assv, 2, 2, 0}, {"assv", assv, 2, 2, 0}, {"assoc", assoc, 2, 2, 0},
        {"pair?", pair_p, 1, 1, OP_IS_PAIR}, {"null?", null_p, 1, 1, OP_IS_NULL}, {"symbol?", symbol_p, 1, 1, 0}, {"string?", string_p, 1, 1, 0},
        {"vector?", vector_p, 1, 1, 0}, {"char?", char_p, 1, 1, 0}, {"boolean?", boolean_p, 1, 1, 0}, {"procedure?", procedure_p, 1, 1, 0},
        {"not", not_p, 1, 1, OP_NOT}, {"eq?", eq_p, 2, 2, OP_EQ}, {"eqv?", eqv_p, 2, 2, OP_EQV}, {"equal?", equal_p, 2, 2, 0},
        {"make-vector", make_vector, 1, 2, 0}, {"vector", vector, 0, -1, 0}, {"vector-ref", vector_ref, 2, 2, OP_VECTOR_REF},
        {"vector-set!", vector_set, 3, 3, 0}, {"vector-length", vector_length, 1, 1, 0}, {"display", display, 1, 1, 0}, {"write", write, 1, 1, 0},
        {"newline", newline, 0, 0, 0}, {"error", error, 1, -1, 0}, {"collect-garbage", collect, 0, 0, 0}, {"runtime", now, 0, 0, 0},
        /* The machine does it. */
        {"apply", NULL, 2, -1, 0},
    };
    add_primitives(definitions, sizeof definitions / sizeof definitions[0]);
}
