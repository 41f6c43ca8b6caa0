/* The heap: its types, and how objects are made.
 *
 * What is large begins in the old generation and is zero; there its slots are written with the barrier.
 * `new_vector` shows it. */
#include "lisp.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct lisp lisp;

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(lisp.message, sizeof lisp.message, format, arguments);
    va_end(arguments);
    longjmp(*lisp.handler, 1);
}

/* Values on the machine's stack: 8 MiB. */
#define STACK ((size_t)1 << 20)

static void add_type(hh_gc_type number, hh_gc_layout layout) {
    hh_gc_type type;
    layout.size = sizeof layout;
    int status = hh_gc_register(lisp.heap, &layout, &type);
    if (status != HH_OK || type != number) {
        fprintf(stderr, "lisp: type %u: %s\n", (unsigned)number, hh_strerror(status));
        exit(1);
    }
}

void open_heap(const hh_gc_options *options) {
    static const size_t item[] = {0}, pair[] = {offsetof(struct pair, head), offsetof(struct pair, tail)};
    static const size_t symbol[] = {offsetof(struct symbol, name), offsetof(struct symbol, global)}, box[] = {offsetof(struct box, content)};
    static const size_t code[] = {offsetof(struct code, name)}, closure[] = {offsetof(struct closure, code)}, table[] = {offsetof(struct table, entries)};
    int status = hh_gc_new(options, &lisp.heap);
    if (status != HH_OK) {
        fprintf(stderr, "lisp: %s\n", hh_strerror(status));
        exit(1);
    }
#define SLOTS(offsets) .slots = offsets, .slot_count = sizeof offsets / sizeof offsets[0]
#define ITEMS .item_bytes = sizeof(value), .item_slots = item, .item_slot_count = 1
    add_type(PAIR, (hh_gc_layout){.bytes = sizeof(struct pair), SLOTS(pair)});
    add_type(FLOAT, (hh_gc_layout){.bytes = sizeof(struct flonum)});
    add_type(STRING, (hh_gc_layout){.bytes = sizeof(struct string), .item_bytes = 1});
    add_type(SYMBOL, (hh_gc_layout){.bytes = sizeof(struct symbol), SLOTS(symbol)});
    add_type(VECTOR, (hh_gc_layout){.bytes = sizeof(struct vector), ITEMS});
    add_type(BOX, (hh_gc_layout){.bytes = sizeof(struct box), SLOTS(box)});
    add_type(PRIMITIVE, (hh_gc_layout){.bytes = sizeof(struct primitive)});
    add_type(CODE, (hh_gc_layout){.bytes = sizeof(struct code), SLOTS(code), ITEMS});
    add_type(CLOSURE, (hh_gc_layout){.bytes = sizeof(struct closure), SLOTS(closure), ITEMS});
    add_type(TABLE, (hh_gc_layout){.bytes = sizeof(struct table), SLOTS(table)});
    lisp.stack = malloc(STACK * sizeof(value));
    if (lisp.stack == NULL || hh_gc_add_roots(lisp.heap, visit_tables, NULL) != HH_OK) {
        fputs("lisp: there is no memory for the stack\n", stderr);
        exit(1);
    }
    lisp.stack_end = lisp.stack + STACK;
    lisp.frame = hh_gc_push(lisp.heap, &lisp.frame, lisp.stack, 0);
}

static void *made(void *object) {
    if (__builtin_expect(object == NULL, 0))
        fail("memory is exhausted");
    return object;
}

#define NEW(type, number) made(hh_gc_alloc(lisp.heap, number, sizeof(struct type)))
#define NEW_ITEMS(type, number, item, length) made(hh_gc_alloc_items(lisp.heap, number, sizeof(struct type), item, length))

value cons(value head, value tail) {
    struct { value head, tail; } my = {head, tail};
    HH_GC_ROOTS(lisp.heap, my);
    struct pair *pair = NEW(pair, PAIR);
    pair->head = my.head;
    pair->tail = my.tail;
    return (value)pair;
}

value new_float(double number) {
    struct flonum *made_float = NEW(flonum, FLOAT);
    made_float->number = number;
    return (value)made_float;
}

value new_string(size_t length) { return (value)NEW_ITEMS(string, STRING, 1, length); }

value string_of(const char *text, size_t length) {
    value string = new_string(length);
    memcpy(AS(string, string)->bytes, text, length);
    return string;
}

value new_vector(size_t length, value fill) {
    HH_GC_ROOTS(lisp.heap, fill);
    struct vector *vector = NEW_ITEMS(vector, VECTOR, sizeof(value), length);
    for (size_t index = 0; index < length; index++)
        hh_gc_write(lisp.heap, vector, &vector->items[index], (void *)fill);
    return (value)vector;
}

value new_box(value content) {
    HH_GC_ROOTS(lisp.heap, content);
    struct box *box = NEW(box, BOX);
    box->content = content;
    return (value)box;
}

/* All words are written before the next call that collects, with the barrier: it may be large. */
value new_code(size_t words) {
    struct code *code = NEW_ITEMS(code, CODE, sizeof(value), words);
    code->name = NIL;
    memset(code->words, 0, words * sizeof(value));
    return (value)code;
}

value new_closure(value code, size_t captured) {
    HH_GC_ROOTS(lisp.heap, code);
    struct closure *closure = NEW_ITEMS(closure, CLOSURE, sizeof(value), captured);
    HH_GC_SET(lisp.heap, closure, code, code);
    memset(closure->captured, 0, captured * sizeof(value));
    return (value)closure;
}

value new_table(void) {
    value entries = new_vector(16, UNBOUND);
    HH_GC_ROOTS(lisp.heap, entries);
    struct table *table = NEW(table, TABLE);
    table->live = table->used = 0;
    table->entries = entries;
    return (value)table;
}

value new_symbol(value name) {
    HH_GC_ROOTS(lisp.heap, name);
    struct symbol *symbol = NEW(symbol, SYMBOL);
    symbol->name = name;
    symbol->global = UNBOUND;
    return (value)symbol;
}

value new_primitive(size_t number) {
    struct primitive *primitive = NEW(primitive, PRIMITIVE);
    primitive->number = number;
    return (value)primitive;
}
