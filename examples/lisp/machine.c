/* The machine: runs code.
 *
 * Its stack is one frame of the shadow stack, so whatever lies on it is rooted where it lies: the machine only
 * says how much of the stack is in use before it calls what may collect. The code may move then; where it goes
 * on is kept as a number, and the address made again from the closure, which lies on the stack. Nothing in the
 * loop uses malloc. */
#include "code.h"

#include <stdlib.h>
#include <string.h>

/* Calls that are under way. What they refer to is on the value stack. */
struct call { size_t ip; value *slots; };
static struct call *calls;
#define MOST_CALLS ((size_t)1 << 17)

static inline struct code *code_of(value f) { return AS(code, AS(closure, f)->code); }

static _Noreturn void wrong_count(value f, size_t given) {
    struct code *code = code_of(f);
    char name[60] = "a function";
    if (is(code->name, SYMBOL))
        snprintf(name, sizeof name, "%.*s", (int)AS(string, AS(symbol, code->name)->name)->length, AS(string, AS(symbol, code->name)->name)->bytes);
    fail("%s: %zu arguments, wanted %s%zu", name, given, code->rest ? "at least " : "", code->required);
}

static _Noreturn void unbound(value symbol) {
    struct string *name = AS(string, AS(symbol, symbol)->name);
    fail("%.*s is not defined", (int)name->length, name->bytes);
}

static struct box *box_of(value v) { return AS(box, v); }

/* The rest arguments, from the first, as a list. They are on the stack. */
static value rest_list(const value *arguments, size_t count) {
    value list = NIL;
    while (count-- > 0)
        list = cons(arguments[count], list);
    return list;
}

/* Calls a primitive with arguments that are on the stack. */
static value call_primitive(value f, size_t count, value *arguments) {
    const struct definition *definition = lisp.primitives[AS(primitive, f)->number];
    if (count < (size_t)definition->least || (definition->most >= 0 && count > (size_t)definition->most))
        fail("%s: %zu arguments, wanted %s%d", definition->name, count, definition->most == definition->least ? "" : "at least ", definition->least);
    return definition->run(count, arguments);
}

/* (apply f a … list): the list's elements take its place on the stack. Returns how many arguments there are then. */
static size_t spread(value *base, size_t count) {
    if (count < 2)
        fail("apply: %zu arguments, wanted at least 2", count);
    value list = base[count];
    memmove(base, base + 1, (count - 1) * sizeof *base);
    size_t spread_count = count - 2;
    for (; is(list, PAIR); list = TAIL(list)) {
        if (base + spread_count + 2 >= lisp.stack_end)
            fail("apply: the stack is full");
        base[++spread_count] = HEAD(list);
    }
    return spread_count;
}

/* Work that may collect, with how much of the stack is in use. */
#define COLLECTS(work)                                     \
    do {                                                   \
        size_t at = (size_t)(ip - code->words);            \
        lisp.frame.count = (size_t)(sp - lisp.stack);      \
        work;                                              \
        code = code_of(slots[-1]);                         \
        ip = code->words + at;                             \
    } while (0)

#define BOTH_INTEGERS(a, b) ((a) & (b)&1)

#define ARITHMETIC(builtin, slow)                                                                                   \
    {                                                                                                              \
        int64_t result;                                                                                            \
        if (BOTH_INTEGERS(sp[-2], sp[-1]) && !builtin((int64_t)sp[-2], (int64_t)(sp[-1] - 1), &result))            \
            sp[-2] = (value)result;                                                                                \
        else                                                                                                       \
            COLLECTS(sp[-2] = slow(sp[-2], sp[-1]));                                                               \
        sp--;                                                                                                      \
        break;                                                                                                     \
    }

#define COMPARISON(name, operator)                                                                                  \
    sp[-2] = boolean(BOTH_INTEGERS(sp[-2], sp[-1]) ? (int64_t)sp[-2] operator(int64_t) sp[-1] : compare(name, sp[-2], sp[-1]) operator 0); \
    sp--;                                                                                                          \
    break;

value run(value closure) {
    hh_gc *heap = lisp.heap;
    if (calls == NULL && (calls = malloc(MOST_CALLS * sizeof *calls)) == NULL)
        fail("there is no memory for calls");
    struct call *call = calls;
    value *sp = lisp.stack + lisp.frame.count, *slots, *base, *const first = sp;
    struct code *code;
    value *ip, f;
    size_t count = 0;
    *sp++ = closure;
    slots = sp;
enter: /* the closure is slots[-1], `count` arguments follow it up to sp */
    code = code_of(slots[-1]);
    ip = code->words;
    if (__builtin_expect(count != code->required || code->rest, 0)) {
        if (count < code->required || !code->rest)
            wrong_count(slots[-1], count);
        value list;
        COLLECTS(list = rest_list(slots + code->required, count - code->required));
        sp = slots + code->required;
        *sp++ = list;
    }
    if (__builtin_expect(sp + code->depth + 2 > lisp.stack_end, 0))
        fail("the stack is full: recursion is too deep");
    for (;;) {
        size_t word = (size_t)(*ip++ >> 1), argument = word >> 8;
        switch ((enum operation)(word & 255)) {
        case OP_CONSTANT:
            *sp++ = *ip++;
            break;
        case OP_LOCAL:
            *sp++ = slots[argument];
            break;
        case OP_LOCAL_BOX:
            *sp++ = box_of(slots[argument])->content;
            break;
        case OP_CAPTURED:
            *sp++ = AS(closure, slots[-1])->captured[argument];
            break;
        case OP_CAPTURED_BOX:
            *sp++ = box_of(AS(closure, slots[-1])->captured[argument])->content;
            break;
        case OP_GLOBAL:
            *sp = AS(symbol, *ip)->global;
            if (__builtin_expect(*sp == UNBOUND, 0))
                unbound(*ip);
            sp++, ip++;
            break;
        case OP_SET_LOCAL:
            slots[argument] = *--sp;
            break;
        case OP_SET_LOCAL_BOX:
            HH_GC_SET(heap, box_of(slots[argument]), content, *--sp);
            break;
        case OP_SET_CAPTURED_BOX:
            HH_GC_SET(heap, box_of(AS(closure, slots[-1])->captured[argument]), content, *--sp);
            break;
        case OP_SET_GLOBAL:
            if (AS(symbol, *ip)->global == UNBOUND)
                unbound(*ip);
            /* fall through */
        case OP_DEFINE:
            HH_GC_SET(heap, AS(symbol, *ip), global, *--sp);
            ip++;
            break;
        case OP_RENEW_BOX:
            COLLECTS(f = new_box(sp[-1]));
            slots[argument] = f;
            sp--;
            break;
        case OP_BOX_TOP:
            COLLECTS(sp[-1] = new_box(sp[-1]));
            break;
        case OP_BOX_LOCAL:
            COLLECTS(slots[argument] = new_box(slots[argument]));
            break;
        case OP_POP:
            sp--;
            break;
        case OP_SLIDE:
            sp[-1 - (ptrdiff_t)argument] = sp[-1];
            sp -= argument;
            break;
        case OP_JUMP:
            ip = code->words + argument;
            break;
        case OP_JUMP_FALSE:
            if (*--sp == FALSE)
                ip = code->words + argument;
            break;
        case OP_JUMP_TRUE_KEEP:
            if (sp[-1] != FALSE)
                ip = code->words + argument;
            else
                sp--;
            break;
        case OP_CLOSURE: {
            value made;
            COLLECTS(made = new_closure(*ip, argument));
            ip++;
            sp -= argument;
            /* New, and small: written without the barrier. */
            memcpy(AS(closure, made)->captured, sp, argument * sizeof *sp);
            *sp++ = made;
            break;
        }
        case OP_CALL:
            count = argument;
        call_again:
            base = sp - count - 1;
            f = *base;
            if (__builtin_expect(is(f, CLOSURE), 1)) {
                if (__builtin_expect(call == calls + MOST_CALLS, 0))
                    fail("the stack is full: recursion is too deep");
                *call++ = (struct call){(size_t)(ip - code->words), slots};
                slots = base + 1;
                goto enter;
            }
            if (!is(f, PRIMITIVE))
                wrong("call", f, "procedure");
            if (lisp.primitives[AS(primitive, f)->number]->run == NULL) {
                count = spread(base, count);
                sp = base + count + 1;
                goto call_again;
            }
            COLLECTS(f = call_primitive(f, count, base + 1));
            sp = base;
            *sp++ = f;
            break;
        case OP_TAIL:
            count = argument;
        tail_again:
            base = sp - count - 1;
            f = *base;
            if (is(f, CLOSURE)) {
                memmove(slots - 1, base, (count + 1) * sizeof *base);
                sp = slots + count;
                goto enter;
            }
            if (!is(f, PRIMITIVE))
                wrong("call", f, "procedure");
            if (lisp.primitives[AS(primitive, f)->number]->run == NULL) {
                count = spread(base, count);
                sp = base + count + 1;
                goto tail_again;
            }
            COLLECTS(f = call_primitive(f, count, base + 1));
            *sp++ = f;
            /* fall through */
        case OP_RETURN:
            f = sp[-1];
            sp = slots - 1;
            if (call == calls) {
                lisp.frame.count = (size_t)(first - lisp.stack);
                return f;
            }
            call--;
            slots = call->slots;
            code = code_of(slots[-1]);
            ip = code->words + call->ip;
            *sp++ = f;
            break;
        case OP_PRIMITIVE:
            count = argument >> 16;
            COLLECTS(f = lisp.primitives[argument & 0xffff]->run(count, sp - count));
            sp -= count;
            *sp++ = f;
            break;
        case OP_CAR:
            if (__builtin_expect(!is(sp[-1], PAIR), 0))
                wrong("car", sp[-1], "pair");
            sp[-1] = HEAD(sp[-1]);
            break;
        case OP_CDR:
            if (__builtin_expect(!is(sp[-1], PAIR), 0))
                wrong("cdr", sp[-1], "pair");
            sp[-1] = TAIL(sp[-1]);
            break;
        case OP_NOT:
            sp[-1] = boolean(sp[-1] == FALSE);
            break;
        case OP_IS_PAIR:
            sp[-1] = boolean(is(sp[-1], PAIR));
            break;
        case OP_IS_NULL:
            sp[-1] = boolean(sp[-1] == NIL);
            break;
        case OP_CONS: {
            struct pair *pair;
            if (hh_gc_has_room(&heap->window, sizeof *pair))
                pair = hh_gc_take(&heap->window, PAIR, hh_gc_round(sizeof *pair));
            else
                COLLECTS(pair = (struct pair *)cons(sp[-2], sp[-1]));
            pair->head = sp[-2];
            pair->tail = sp[-1];
            sp[-2] = (value)pair;
            sp--;
            break;
        }
        case OP_ADD:
            ARITHMETIC(__builtin_add_overflow, add)
        case OP_SUBTRACT:
            ARITHMETIC(__builtin_sub_overflow, subtract)
        case OP_MULTIPLY:
            COLLECTS(sp[-2] = multiply(sp[-2], sp[-1]));
            sp--;
            break;
        case OP_LESS:
            COMPARISON("<", <)
        case OP_GREATER:
            COMPARISON(">", >)
        case OP_NOT_GREATER:
            COMPARISON("<=", <=)
        case OP_NOT_LESS:
            COMPARISON(">=", >=)
        case OP_SAME_NUMBER:
            COMPARISON("=", ==)
        case OP_EQ:
            sp[-2] = boolean(sp[-2] == sp[-1]);
            sp--;
            break;
        case OP_EQV:
            sp[-2] = boolean(is_eqv(sp[-2], sp[-1]));
            sp--;
            break;
        case OP_VECTOR_REF: {
            value vector = sp[-2], index = sp[-1];
            if (!is(vector, VECTOR))
                wrong("vector-ref", vector, "vector");
            if (!is_integer(index) || (uint64_t)integer_of(index) >= AS(vector, vector)->length)
                wrong("vector-ref", index, "index of the vector");
            sp[-2] = AS(vector, vector)->items[integer_of(index)];
            sp--;
            break;
        }
        case OP_NONE:
            fail("the code has an instruction that is none");
        }
    }
}
