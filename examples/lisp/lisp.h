/* A small Scheme on the garbage-collected heap: what its files share.
 *
 *   text ─ read.c ─▶ lists ─ analyse.c ─▶ nodes ─ emit.c ─▶ code ─ machine.c ─▶ value ─ print.c ─▶ text
 *
 * A value is one word, and what a slot of the heap may hold:
 *
 *   ……………1   a small integer of 63 bits          ……0010   a constant: (), #t, #f …
 *   ……0110   a character                         ……0000   the address of an object
 *
 * The collector leaves alone what does not end in four zeros, so a slot needs no other tag.
 *
 * Rooting: every function that may collect says so ("collects"). What it is to keep lies on the machine's
 * stack, in an argument of a primitive (these are on that stack), or in a local variable that HH_GC_ROOTS
 * names.
 */
#ifndef LISP_H
#define LISP_H

#include <hugeheap_gc.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef uintptr_t value;

/* ---- Values that are no objects */

#define CONSTANT(number) (((value)(number) << 4) | 2)
enum { NIL = CONSTANT(0), FALSE = CONSTANT(1), TRUE = CONSTANT(2), NOTHING = CONSTANT(3), END = CONSTANT(4), UNBOUND = CONSTANT(5), GONE = CONSTANT(6) };

static inline bool is_integer(value v) { return v & 1; }
static inline int64_t integer_of(value v) { return (int64_t)v >> 1; }
static inline value integer(int64_t number) { return (value)number << 1 | 1; }
static inline bool is_character(value v) { return (v & 15) == 6; }
static inline int character_of(value v) { return (int)(v >> 4); }
static inline value character(int code) { return (value)code << 4 | 6; }
static inline value boolean(bool is) { return is ? TRUE : FALSE; }

/* ---- Objects; numbers of types are those in which memory.c registers them */

enum { PAIR = 1, FLOAT, STRING, SYMBOL, VECTOR, BOX, PRIMITIVE, CODE, CLOSURE, TABLE };

struct pair { hh_gc_header header; value head, tail; };
struct flonum { hh_gc_header header; double number; };
struct string { hh_gc_header header; size_t length; char bytes[]; };
struct symbol { hh_gc_header header; value name, global; };
struct vector { hh_gc_header header; size_t length; value items[]; };
struct box { hh_gc_header header; value content; };
struct primitive { hh_gc_header header; size_t number; };

/* Instructions are integers, so that constants can stand between them and all words are slots. */
struct code { hh_gc_header header; size_t length; value name; size_t required, rest, depth; value words[]; };
struct closure { hh_gc_header header; size_t length; value code; value captured[]; };

/* Keys and values by turns in `entries`, a power of two of pairs. */
struct table { hh_gc_header header; size_t live, used; value entries; };

static inline bool is_object(value v) { return (v & 15) == 0; }
static inline bool is(value v, hh_gc_type type) { return is_object(v) && hh_gc_type_of((void *)v) == type; }

#define AS(type, v) ((struct type *)(v))
#define HEAD(v) (AS(pair, v)->head)
#define TAIL(v) (AS(pair, v)->tail)

/* ---- The interpreter: one to a process */

typedef value (*function)(size_t count, value *arguments);

struct definition {
    const char *name;
    function run;
    int least, most; /* arguments; most < 0: any number */
    int operation;   /* of the machine, when that has one for two arguments or fewer; 0: none */
};

struct lisp {
    hh_gc *heap;
    value *stack, *stack_end; /* the machine's; its frame says how much of it is in use */
    hh_gc_frame frame;
    value *symbols; /* open addressing */
    size_t symbol_count, symbol_room;
    value *constants; /* of the form that is being compiled */
    size_t constant_count, constant_room;
    const struct definition *primitives[200];
    size_t primitive_count;
    jmp_buf *handler;
    char message[400];
};

extern struct lisp lisp;

/* Leaves what is being done: the message is printed by whoever runs forms. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for a value that is none of the kind that is wanted. NULL: `who` says it all. */
_Noreturn void wrong(const char *who, value v, const char *wanted);

/* memory.c: all collect */
void open_heap(const hh_gc_options *options);
value cons(value head, value tail);
value new_float(double number);
value new_string(size_t length); /* bytes undefined */
value string_of(const char *text, size_t length);
value new_vector(size_t length, value fill);
value new_box(value content);
value new_code(size_t words);
value new_closure(value code, size_t captured);
value new_table(void);
value new_symbol(value name);
value new_primitive(size_t number);

/* symbol.c */
value intern(const char *text, size_t length); /* collects */
void visit_tables(void *data, hh_gc_visitor *visitor);
size_t constant(value v); /* place of a constant of the form that is being compiled; does not collect */
void *grown(void *memory, size_t *room, size_t wanted, size_t bytes);

/* read.c: collects */
struct reader { const char *at, *end; size_t line; };
bool read_form(struct reader *reader, value *form); /* false: there is none */

/* print.c */
void print(FILE *to, value v, bool quoted);
int print_number(char text[40], value v);

/* analyse.c and emit.c */
value compile(value form); /* a closure without arguments; collects */

/* machine.c: collects */
value run(value closure);

/* main.c */
void run_text(const char *text, size_t length, bool print_results);

/* Primitives: each file adds its own. */
void add_primitives(const struct definition *definitions, size_t count); /* collects */
void add_lists(void);
void add_numbers(void);
void add_strings(void);
void add_tables(void);
extern const char prelude[];

/* numbers.c; the machine comes here where not both are small integers. All collect. */
value add(value a, value b);
value subtract(value a, value b);
value multiply(value a, value b);
int compare(const char *who, value a, value b);
bool parse_number(const char *text, size_t length, value *number);
/* lists.c */
bool is_equal(value a, value b);
bool is_eqv(value a, value b);

#endif
