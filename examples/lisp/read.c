/* Reading: text to lists. What was read lies in rooted local variables, because each cons may collect. */
#include "lisp.h"

#include <ctype.h>
#include <string.h>

/* Lists in lists: the reader calls itself. */
#define MOST_DEPTH 10000

static value read_datum(struct reader *reader, int depth);

static void skip(struct reader *reader) {
    for (; reader->at < reader->end; reader->at++) {
        if (*reader->at == ';')
            while (reader->at < reader->end && *reader->at != '\n')
                reader->at++;
        if (reader->at == reader->end || !isspace((unsigned char)*reader->at))
            return;
        reader->line += *reader->at == '\n';
    }
}

static int next(struct reader *reader) {
    if (reader->at == reader->end)
        fail("line %zu: the text ends inside a form", reader->line);
    return (unsigned char)*reader->at++;
}

static value read_list(struct reader *reader, int depth) {
    struct { value first, last, item; } my = {NIL, NIL, NIL};
    HH_GC_ROOTS(lisp.heap, my);
    for (;;) {
        skip(reader);
        if (reader->at < reader->end && *reader->at == ')') {
            reader->at++;
            return my.first;
        }
        bool dot = reader->end - reader->at > 1 && reader->at[0] == '.' && isspace((unsigned char)reader->at[1]);
        if (dot && my.last != NIL) {
            reader->at++;
            my.item = read_datum(reader, depth);
            HH_GC_SET(lisp.heap, AS(pair, my.last), tail, my.item);
            skip(reader);
            if (next(reader) != ')')
                fail("line %zu: more than one form follows a dot", reader->line);
            return my.first;
        }
        my.item = read_datum(reader, depth);
        my.item = cons(my.item, NIL);
        if (my.last == NIL)
            my.first = my.item;
        else
            HH_GC_SET(lisp.heap, AS(pair, my.last), tail, my.item);
        my.last = my.item;
    }
}

static value read_string(struct reader *reader) {
    const char *begin = reader->at;
    size_t length = 0;
    for (int c; (c = next(reader)) != '"'; length++) {
        reader->line += c == '\n';
        if (c == '\\')
            next(reader);
    }
    value string = new_string(length);
    for (char *to = AS(string, string)->bytes; length > 0; length--, begin++) {
        bool escaped = *begin == '\\';
        begin += escaped;
        *to++ = escaped && *begin == 'n' ? '\n' : escaped && *begin == 't' ? '\t' : *begin;
    }
    return string;
}

static bool is_delimiter(int c) { return isspace(c) || c == '(' || c == ')' || c == '"' || c == ';' || c == '\''; }

static value read_hash(struct reader *reader, int depth) {
    const char *begin = reader->at;
    int c = next(reader);
    if (c == '(') {
        struct { value list, vector; } my = {read_list(reader, depth), NIL};
        HH_GC_ROOTS(lisp.heap, my);
        size_t length = 0;
        for (value rest = my.list; is(rest, PAIR); rest = TAIL(rest))
            length++;
        my.vector = new_vector(length, NIL);
        value rest = my.list;
        for (size_t index = 0; index < length; index++, rest = TAIL(rest))
            hh_gc_write(lisp.heap, (void *)my.vector, &AS(vector, my.vector)->items[index], (void *)HEAD(rest));
        return my.vector;
    }
    if (c == '\\')
        next(reader);
    while (reader->at < reader->end && !is_delimiter((unsigned char)*reader->at))
        reader->at++;
    size_t length = (size_t)(reader->at - begin);
    static const struct { const char *text; value v; } names[] = {
        {"t", TRUE}, {"true", TRUE}, {"f", FALSE}, {"false", FALSE}, {"\\space", (' ' << 4) | 6}, {"\\newline", ('\n' << 4) | 6}, {"\\tab", ('\t' << 4) | 6},
    };
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
        if (strlen(names[n].text) == length && memcmp(names[n].text, begin, length) == 0)
            return names[n].v;
    if (c == '\\' && length == 2)
        return character((unsigned char)begin[1]);
    fail("line %zu: nothing is written #%.*s", reader->line, (int)length, begin);
}

static value quoted(struct reader *reader, const char *name, int depth) {
    struct { value symbol, form; } my = {intern(name, strlen(name)), NIL};
    HH_GC_ROOTS(lisp.heap, my);
    my.form = read_datum(reader, depth);
    my.form = cons(my.form, NIL);
    return cons(my.symbol, my.form);
}

static value read_datum(struct reader *reader, int depth) {
    if (depth > MOST_DEPTH)
        fail("line %zu: forms are nested more than %d times", reader->line, MOST_DEPTH);
    skip(reader);
    const char *begin = reader->at;
    switch (next(reader)) {
    case '(':
        return read_list(reader, depth + 1);
    case ')':
        fail("line %zu: a parenthesis is closed that was not opened", reader->line);
    case '"':
        return read_string(reader);
    case '#':
        return read_hash(reader, depth + 1);
    case '\'':
        return quoted(reader, "quote", depth + 1);
    case '`':
        return quoted(reader, "quasiquote", depth + 1);
    case ',':
        if (reader->at < reader->end && *reader->at == '@') {
            reader->at++;
            return quoted(reader, "unquote-splicing", depth + 1);
        }
        return quoted(reader, "unquote", depth + 1);
    }
    while (reader->at < reader->end && !is_delimiter((unsigned char)*reader->at))
        reader->at++;
    size_t length = (size_t)(reader->at - begin);
    value number;
    return parse_number(begin, length, &number) ? number : intern(begin, length);
}

bool read_form(struct reader *reader, value *form) {
    skip(reader);
    if (reader->at == reader->end)
        return false;
    *form = read_datum(reader, 0);
    return true;
}
