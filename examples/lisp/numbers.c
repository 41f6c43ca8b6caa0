/* Numbers: integers of 63 bits, whose overflow is an error, and floats. */
#include "code.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_number(value v) { return is_integer(v) || is(v, FLOAT); }

static double real(const char *who, value v) {
    if (is_integer(v))
        return (double)integer_of(v);
    if (!is(v, FLOAT))
        wrong(who, v, "number");
    return AS(flonum, v)->number;
}

static value checked(const char *who, int64_t number) {
    if (number > INT64_MAX >> 1 || number < INT64_MIN >> 1)
        fail("%s: the result has more than 63 bits", who);
    return integer(number);
}

value add(value a, value b) {
    if (is_integer(a) && is_integer(b))
        return checked("+", integer_of(a) + integer_of(b));
    double sum = real("+", a);
    return new_float(sum + real("+", b));
}

value subtract(value a, value b) {
    if (is_integer(a) && is_integer(b))
        return checked("-", integer_of(a) - integer_of(b));
    double difference = real("-", a);
    return new_float(difference - real("-", b));
}

value multiply(value a, value b) {
    int64_t product;
    if (is_integer(a) && is_integer(b)) {
        if (__builtin_mul_overflow(integer_of(a), integer_of(b), &product))
            fail("*: the result has more than 63 bits");
        return checked("*", product);
    }
    double real_product = real("*", a);
    return new_float(real_product * real("*", b));
}

int compare(const char *who, value a, value b) {
    if (is_integer(a) && is_integer(b))
        return (integer_of(a) > integer_of(b)) - (integer_of(a) < integer_of(b));
    double one = real(who, a), other = real(who, b);
    return (one > other) - (one < other);
}

/* The intermediate results of the four below lie in the first argument's place, which is a root. */
static value sum(size_t count, value *arguments) {
    if (count == 0)
        return integer(0);
    real("+", arguments[0]);
    for (size_t index = 1; index < count; index++)
        arguments[0] = add(arguments[0], arguments[index]);
    return arguments[0];
}

static value difference(size_t count, value *arguments) {
    if (count == 1)
        return subtract(integer(0), arguments[0]);
    for (size_t index = 1; index < count; index++)
        arguments[0] = subtract(arguments[0], arguments[index]);
    return arguments[0];
}

static value product(size_t count, value *arguments) {
    if (count == 0)
        return integer(1);
    real("*", arguments[0]);
    for (size_t index = 1; index < count; index++)
        arguments[0] = multiply(arguments[0], arguments[index]);
    return arguments[0];
}

static value divide(size_t count, value *arguments) {
    if (count == 1) {
        double number = real("/", arguments[0]);
        return new_float(1 / number);
    }
    for (size_t index = 1; index < count; index++) {
        value a = arguments[0], b = arguments[index];
        if (b == integer(0))
            fail("/: division by 0");
        if (is_integer(a) && is_integer(b) && integer_of(a) % integer_of(b) == 0)
            arguments[0] = checked("/", integer_of(a) / integer_of(b));
        else {
            double quotient = real("/", a);
            arguments[0] = new_float(quotient / real("/", b));
        }
    }
    return arguments[0];
}

static void need_integers(const char *who, value *arguments) {
    for (int index = 0; index < 2; index++)
        if (!is_integer(arguments[index]))
            wrong(who, arguments[index], "integer");
    if (arguments[1] == integer(0))
        fail("%s: division by 0", who);
}

static value quotient(size_t count, value *arguments) {
    (void)count;
    need_integers("quotient", arguments);
    return checked("quotient", integer_of(arguments[0]) / integer_of(arguments[1]));
}

static value rest_of_division(size_t count, value *arguments) {
    (void)count;
    need_integers("remainder", arguments);
    return integer(integer_of(arguments[0]) % integer_of(arguments[1]));
}

static value modulo(size_t count, value *arguments) {
    (void)count;
    need_integers("modulo", arguments);
    int64_t divisor = integer_of(arguments[1]), rest = integer_of(arguments[0]) % divisor;
    return integer(rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest);
}

#define ORDER(function, name, operator)                                      \
    static value function(size_t count, value *arguments) {                  \
        for (size_t index = 1; index < count; index++)                       \
            if (!(compare(name, arguments[index - 1], arguments[index]) operator 0)) \
                return FALSE;                                                \
        return TRUE;                                                         \
    }
ORDER(less, "<", <)
ORDER(greater, ">", >)
ORDER(not_greater, "<=", <=)
ORDER(not_less, ">=", >=)
ORDER(same, "=", ==)

#define REAL(function, name, expression)                                    \
    static value function(size_t count, value *arguments) {                 \
        (void)count;                                                        \
        double number = real(name, arguments[0]);                           \
        return new_float(expression);                                       \
    }
REAL(square_root, "sqrt", sqrt(number))
REAL(sine, "sin", sin(number))
REAL(cosine, "cos", cos(number))
REAL(exponential, "exp", exp(number))
REAL(logarithm, "log", log(number))
REAL(to_float, "exact->inexact", number)

static value to_integer(size_t count, value *arguments) {
    (void)count;
    double number = floor(real("floor", arguments[0]));
    if (!(number < 4e18 && number > -4e18))
        wrong("floor", arguments[0], "number with an integer");
    return is_integer(arguments[0]) ? arguments[0] : checked("floor", (int64_t)number);
}

#define TEST(function, condition) static value function(size_t count, value *a) { (void)count; return boolean(condition); }
TEST(number_p, is_number(a[0]))
TEST(integer_p, is_integer(a[0]))

static value to_text(size_t count, value *arguments) {
    (void)count;
    char text[40];
    if (!is_number(arguments[0]))
        wrong("number->string", arguments[0], "number");
    int length = print_number(text, arguments[0]);
    return string_of(text, (size_t)length);
}

bool parse_number(const char *text, size_t length, value *number) {
    char copy[64], *end;
    size_t first = length > 1 && (*text == '-' || *text == '+');
    if (length == 0 || length >= sizeof copy || !(isdigit((unsigned char)text[first]) || (text[first] == '.' && length > first + 1 && isdigit((unsigned char)text[first + 1]))))
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    errno = 0;
    long long whole = strtoll(copy, &end, 10);
    if (*end == 0 && errno == 0 && whole <= INT64_MAX >> 1 && whole >= INT64_MIN >> 1)
        return *number = integer(whole), true;
    double real_number = strtod(copy, &end);
    if (*end != 0)
        return false;
    return *number = new_float(real_number), true;
}

static value from_text(size_t count, value *arguments) {
    (void)count;
    if (!is(arguments[0], STRING))
        wrong("string->number", arguments[0], "string");
    value number;
    char text[64];
    size_t length = AS(string, arguments[0])->length;
    if (length >= sizeof text)
        return FALSE;
    memcpy(text, AS(string, arguments[0])->bytes, length);
    return parse_number(text, length, &number) ? number : FALSE;
}

void add_numbers(void) {
    static const struct definition definitions[] = {
        {"+", sum, 0, -1, OP_ADD}, {"-", difference, 1, -1, OP_SUBTRACT}, {"*", product, 0, -1, OP_MULTIPLY}, {"/", divide, 1, -1, 0},
        {"quotient", quotient, 2, 2, 0}, {"remainder", rest_of_division, 2, 2, 0}, {"modulo", modulo, 2, 2, 0},
        {"<", less, 1, -1, OP_LESS}, {">", greater, 1, -1, OP_GREATER}, {"<=", not_greater, 1, -1, OP_NOT_GREATER},
        {">=", not_less, 1, -1, OP_NOT_LESS}, {"=", same, 1, -1, OP_SAME_NUMBER},
        {"sqrt", square_root, 1, 1, 0}, {"sin", sine, 1, 1, 0}, {"cos", cosine, 1, 1, 0}, {"exp", exponential, 1, 1, 0}, {"log", logarithm, 1, 1, 0},
        {"exact->inexact", to_float, 1, 1, 0}, {"floor", to_integer, 1, 1, 0}, {"number?", number_p, 1, 1, 0}, {"integer?", integer_p, 1, 1, 0},
        {"number->string", to_text, 1, 1, 0}, {"string->number", from_text, 1, 1, 0},
    };
    add_primitives(definitions, sizeof definitions / sizeof definitions[0]);
}
