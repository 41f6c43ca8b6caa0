/* Symbols, and the constants of the form that is being compiled: tables in memory of C, which the collector
 * sees through a root callback.
 *
 * A symbol is found by the hash of its text, which does not change when it moves. */
#include "lisp.h"

#include <stdlib.h>
#include <string.h>

void visit_tables(void *data, hh_gc_visitor *visitor) {
    (void)data;
    hh_gc_visit_row(visitor, lisp.symbols, lisp.symbol_room);
    hh_gc_visit_row(visitor, lisp.constants, lisp.constant_count);
}

void *grown(void *memory, size_t *room, size_t wanted, size_t bytes) {
    if (wanted <= *room)
        return memory;
    size_t more = wanted < 32 ? 32 : 2 * wanted;
    memory = realloc(memory, more * bytes);
    if (memory == NULL) {
        fputs("lisp: there is no memory to compile\n", stderr);
        exit(1);
    }
    *room = more;
    return memory;
}

size_t constant(value v) {
    lisp.constants = grown(lisp.constants, &lisp.constant_room, lisp.constant_count + 1, sizeof(value));
    lisp.constants[lisp.constant_count] = v;
    return lisp.constant_count++;
}

static size_t hash(const char *text, size_t length) {
    size_t hash = 14695981039346656037U; /* FNV-1a */
    for (size_t index = 0; index < length; index++)
        hash = (hash ^ (unsigned char)text[index]) * 1099511628211U;
    return hash;
}

/* Where a symbol is, or where it belongs. */
static value *place(const char *text, size_t length) {
    for (size_t at = hash(text, length);; at++) {
        value *found = &lisp.symbols[at & (lisp.symbol_room - 1)];
        if (*found == 0)
            return found;
        struct string *name = AS(string, AS(symbol, *found)->name);
        if (name->length == length && memcmp(name->bytes, text, length) == 0)
            return found;
    }
}

static void make_room(void) {
    value *before = lisp.symbols;
    size_t room = lisp.symbol_room, more = room == 0 ? 1024 : 2 * room;
    lisp.symbols = calloc(more, sizeof(value));
    if (lisp.symbols == NULL) {
        fputs("lisp: there is no memory for symbols\n", stderr);
        exit(1);
    }
    lisp.symbol_room = more;
    for (size_t index = 0; index < room; index++) {
        if (before[index] != 0) {
            struct string *name = AS(string, AS(symbol, before[index])->name);
            *place(name->bytes, name->length) = before[index];
        }
    }
    free(before);
}

value intern(const char *text, size_t length) {
    if (2 * lisp.symbol_count >= lisp.symbol_room)
        make_room();
    value *found = place(text, length);
    if (*found == 0) {
        *found = new_symbol(string_of(text, length));
        lisp.symbol_count++;
    }
    return *found;
}

void add_primitives(const struct definition *definitions, size_t count) {
    for (size_t index = 0; index < count; index++) {
        value symbol = intern(definitions[index].name, strlen(definitions[index].name));
        HH_GC_ROOTS(lisp.heap, symbol);
        lisp.primitives[lisp.primitive_count] = &definitions[index];
        value primitive = new_primitive(lisp.primitive_count++);
        HH_GC_SET(lisp.heap, AS(symbol, symbol), global, primitive);
    }
}
