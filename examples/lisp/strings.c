/* Strings, characters and symbols. A string is bytes; a character is one of them. */
#include "lisp.h"

#include <string.h>

#define PRIMITIVE(function) static value function(size_t count, value *a)

static struct string *string(const char *who, value v) {
    if (!is(v, STRING))
        wrong(who, v, "string");
    return AS(string, v);
}

static size_t number(const char *who, value v, size_t most) {
    if (!is_integer(v) || (uint64_t)integer_of(v) > most)
        wrong(who, v, "index of the string");
    return (size_t)integer_of(v);
}

static int char_of(const char *who, value v) {
    if (!is_character(v))
        wrong(who, v, "character");
    return character_of(v);
}

PRIMITIVE(length) { (void)count; return integer((int64_t)string("string-length", a[0])->length); }

PRIMITIVE(ref) {
    (void)count;
    struct string *from = string("string-ref", a[0]);
    size_t index = number("string-ref", a[1], from->length);
    if (index == from->length)
        wrong("string-ref", a[1], "index of the string");
    return character((unsigned char)from->bytes[index]);
}

PRIMITIVE(set) {
    (void)count;
    struct string *to = string("string-set!", a[0]);
    size_t index = number("string-set!", a[1], to->length);
    if (index == to->length)
        wrong("string-set!", a[1], "index of the string");
    to->bytes[index] = (char)char_of("string-set!", a[2]);
    return NOTHING;
}

PRIMITIVE(make) {
    size_t length = number("make-string", a[0], (size_t)1 << 40);
    value made = new_string(length);
    memset(AS(string, made)->bytes, count > 1 ? char_of("make-string", a[1]) : ' ', length);
    return made;
}

PRIMITIVE(append) {
    size_t length = 0;
    for (size_t index = 0; index < count; index++)
        length += string("string-append", a[index])->length;
    value made = new_string(length);
    char *to = AS(string, made)->bytes;
    for (size_t index = 0; index < count; index++) {
        struct string *from = AS(string, a[index]);
        memcpy(to, from->bytes, from->length);
        to += from->length;
    }
    return made;
}

PRIMITIVE(substring) {
    size_t length = string("substring", a[0])->length, begin = number("substring", a[1], length);
    size_t end = count > 2 ? number("substring", a[2], length) : length;
    if (end < begin)
        wrong("substring", a[2], "index behind the first");
    value made = new_string(end - begin);
    memcpy(AS(string, made)->bytes, AS(string, a[0])->bytes + begin, end - begin);
    return made;
}

static int order(const char *who, value *a) {
    struct string *one = string(who, a[0]), *other = string(who, a[1]);
    size_t shorter = one->length < other->length ? one->length : other->length;
    int found = memcmp(one->bytes, other->bytes, shorter);
    return found != 0 ? found : (one->length > other->length) - (one->length < other->length);
}

PRIMITIVE(same) { (void)count; return boolean(order("string=?", a) == 0); }
PRIMITIVE(before) { (void)count; return boolean(order("string<?", a) < 0); }

PRIMITIVE(to_symbol) {
    (void)count;
    struct string *from = string("string->symbol", a[0]);
    char text[256];
    if (from->length > sizeof text)
        fail("string->symbol: a name has at most %zu bytes", sizeof text);
    /* The string may move while the symbol is made. */
    size_t bytes = from->length;
    memcpy(text, from->bytes, bytes);
    return intern(text, bytes);
}

PRIMITIVE(from_symbol) {
    (void)count;
    if (!is(a[0], SYMBOL))
        wrong("symbol->string", a[0], "symbol");
    value made = new_string(AS(string, AS(symbol, a[0])->name)->length);
    memcpy(AS(string, made)->bytes, AS(string, AS(symbol, a[0])->name)->bytes, AS(string, made)->length);
    return made;
}

PRIMITIVE(to_list) {
    (void)count;
    size_t bytes = string("string->list", a[0])->length;
    value list = NIL;
    while (bytes-- > 0)
        list = cons(character((unsigned char)AS(string, a[0])->bytes[bytes]), list);
    return list;
}

PRIMITIVE(from_list) {
    (void)count;
    size_t bytes = 0;
    for (value rest = a[0]; is(rest, PAIR); rest = TAIL(rest), bytes++)
        char_of("list->string", HEAD(rest));
    value made = new_string(bytes), rest = a[0];
    for (size_t index = 0; index < bytes; index++, rest = TAIL(rest))
        AS(string, made)->bytes[index] = (char)character_of(HEAD(rest));
    return made;
}

PRIMITIVE(code) { (void)count; return integer(char_of("char->integer", a[0])); }

PRIMITIVE(from_code) {
    (void)count;
    if (!is_integer(a[0]) || (uint64_t)integer_of(a[0]) > 255)
        wrong("integer->char", a[0], "code of a character");
    return character((int)integer_of(a[0]));
}

void add_strings(void) {
    static const struct definition definitions[] = {
        {"string-length", length, 1, 1, 0}, {"string-ref", ref, 2, 2, 0}, {"string-set!", set, 3, 3, 0}, {"make-string", make, 1, 2, 0},
        {"string-append", append, 0, -1, 0}, {"substring", substring, 2, 3, 0}, {"string=?", same, 2, 2, 0}, {"string<?", before, 2, 2, 0},
        {"string->symbol", to_symbol, 1, 1, 0}, {"symbol->string", from_symbol, 1, 1, 0}, {"string->list", to_list, 1, 1, 0},
        {"list->string", from_list, 1, 1, 0}, {"char->integer", code, 1, 1, 0}, {"integer->char", from_code, 1, 1, 0},
    };
    add_primitives(definitions, sizeof definitions / sizeof definitions[0]);
}
