/* Printing. Nothing here allocates on the heap. */
#include "lisp.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Lists in lists: the printer calls itself. */
#define MOST_DEPTH 10000

int print_number(char text[40], value v) {
    if (is_integer(v))
        return snprintf(text, 40, "%" PRId64, integer_of(v));
    double number = AS(flonum, v)->number;
    if (isnan(number) || isinf(number))
        return snprintf(text, 40, isnan(number) ? "+nan.0" : number > 0 ? "+inf.0" : "-inf.0");
    /* As few digits as give the number back. */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, 40, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    if (strpbrk(text, ".e") == NULL)
        strcat(text, ".0");
    return (int)strlen(text);
}

static void print_string(FILE *to, const struct string *string, bool quoted) {
    if (!quoted) {
        fwrite(string->bytes, 1, string->length, to);
        return;
    }
    putc('"', to);
    for (size_t index = 0; index < string->length; index++) {
        char c = string->bytes[index];
        if (c == '"' || c == '\\')
            putc('\\', to);
        if (c == '\n')
            fputs("\\n", to);
        else
            putc(c, to);
    }
    putc('"', to);
}

static void print_at(FILE *to, value v, bool quoted, int depth);

static void print_list(FILE *to, value v, bool quoted, int depth) {
    putc('(', to);
    print_at(to, HEAD(v), quoted, depth);
    for (v = TAIL(v); is(v, PAIR); v = TAIL(v)) {
        putc(' ', to);
        print_at(to, HEAD(v), quoted, depth);
    }
    if (v != NIL) {
        fputs(" . ", to);
        print_at(to, v, quoted, depth);
    }
    putc(')', to);
}

static void print_object(FILE *to, value v, bool quoted, int depth) {
    char text[40];
    switch (hh_gc_type_of((void *)v)) {
    case PAIR:
        print_list(to, v, quoted, depth);
        return;
    case FLOAT:
        print_number(text, v);
        fputs(text, to);
        return;
    case STRING:
        print_string(to, AS(string, v), quoted);
        return;
    case SYMBOL:
        print_string(to, AS(string, AS(symbol, v)->name), false);
        return;
    case VECTOR:
        fputs("#(", to);
        for (size_t index = 0; index < AS(vector, v)->length; index++) {
            if (index > 0)
                putc(' ', to);
            print_at(to, AS(vector, v)->items[index], quoted, depth);
        }
        putc(')', to);
        return;
    case PRIMITIVE:
        fprintf(to, "#<primitive %s>", lisp.primitives[AS(primitive, v)->number]->name);
        return;
    case CLOSURE:
        fputs("#<procedure ", to);
        print_at(to, AS(code, AS(closure, v)->code)->name, false, depth);
        putc('>', to);
        return;
    case TABLE:
        fprintf(to, "#<hash table of %zu>", AS(table, v)->live);
        return;
    default:
        fputs("#<object>", to);
    }
}

static void print_at(FILE *to, value v, bool quoted, int depth) {
    if (depth > MOST_DEPTH)
        fputs("...", to);
    else if (is_integer(v))
        fprintf(to, "%" PRId64, integer_of(v));
    else if (is_character(v)) {
        int c = character_of(v);
        if (quoted)
            fputs(c == ' ' ? "#\\space" : c == '\n' ? "#\\newline" : c == '\t' ? "#\\tab" : "#\\", to);
        if (!quoted || (c != ' ' && c != '\n' && c != '\t'))
            putc(c, to);
    } else if (is_object(v))
        print_object(to, v, quoted, depth + 1);
    else
        fputs(v == NIL ? "()" : v == TRUE ? "#t" : v == FALSE ? "#f" : v == END ? "#<end>" : v == UNBOUND ? "#<unbound>" : "#<nothing>", to);
}

void print(FILE *to, value v, bool quoted) { print_at(to, v, quoted, 0); }

void wrong(const char *who, value v, const char *wanted) {
    char text[120] = "";
    FILE *to = fmemopen(text, sizeof text - 4, "w");
    if (to != NULL) {
        print(to, v, true);
        fclose(to);
        text[sizeof text - 5] = 0;
    }
    if (wanted == NULL)
        fail("%s: %s", who, text);
    fail("%s: %s is no %s", who, text, wanted);
}
