/* Instructions of the machine, and the nodes that they are made of.
 *
 * A word of code is an instruction, operation and argument as a small integer, or a constant that belongs to
 * the instruction before it. The machine has a stack: each expression leaves one value there. Of a function's
 * part of it the first values are its arguments, then come the variables of `let`, then what is being computed:
 *
 *   … │ closure │ argument 0 │ argument 1 │ variable │ temporary │
 *               ▲ slots count from here                          ▲ top
 *
 * A variable that is captured by an inner function and assigned as well lives in a box; what is captured only
 * is copied into the closure. */
#ifndef CODE_H
#define CODE_H

#include "lisp.h"

enum operation {
    OP_NONE,
    /* push */
    OP_CONSTANT, OP_LOCAL, OP_LOCAL_BOX, OP_CAPTURED, OP_CAPTURED_BOX, OP_GLOBAL,
    /* pop into */
    OP_SET_LOCAL, OP_SET_LOCAL_BOX, OP_SET_CAPTURED_BOX, OP_SET_GLOBAL, OP_DEFINE, OP_RENEW_BOX,
    /* the top, or a slot, gets a box */
    OP_BOX_TOP, OP_BOX_LOCAL,
    OP_POP,
    OP_SLIDE, /* drops values below the top */
    OP_JUMP, OP_JUMP_FALSE, OP_JUMP_TRUE_KEEP,
    OP_CLOSURE, OP_CALL, OP_TAIL, OP_RETURN, OP_PRIMITIVE,
    /* of one operand */
    OP_CAR, OP_CDR, OP_NOT, OP_IS_PAIR, OP_IS_NULL, OP_FIRST_BINARY,
    /* of two operands */
    OP_CONS = OP_FIRST_BINARY, OP_ADD, OP_SUBTRACT, OP_MULTIPLY, OP_LESS, OP_GREATER, OP_NOT_GREATER, OP_NOT_LESS, OP_SAME_NUMBER, OP_EQ, OP_EQV, OP_VECTOR_REF
};

static inline value instruction(enum operation operation, size_t argument) { return integer((int64_t)((size_t)operation | argument << 8)); }

/* A variable, while its function is compiled. */
struct variable {
    struct variable *outer; /* of the scope */
    struct lambda *owner;
    value name;             /* no collection happens while scopes are looked through */
    bool captured, assigned;
    size_t slot;
};

struct lambda {
    struct lambda *outer;
    size_t name; /* constant */
    size_t required;
    bool rest;
    struct variable **parameters;
    struct node *body;
    struct variable **captured;
    size_t captured_count, captured_room;
};

enum kind {
    NODE_CONSTANT, NODE_VARIABLE, NODE_GLOBAL, NODE_SET, NODE_SET_GLOBAL, NODE_DEFINE, NODE_IF, NODE_OR, NODE_SEQUENCE, NODE_LAMBDA, NODE_CALL,
    NODE_OPERATION, NODE_PRIMITIVE,
    NODE_LET,    /* variables; their values, the body */
    NODE_LETREC, /* the same */
    NODE_DO      /* variables; their values, their next values (NULL: unchanged), test, result, body */
};

struct node {
    enum kind kind;
    size_t number; /* constant, operation or primitive */
    struct variable **variables;
    struct lambda *lambda;
    size_t count; /* parts */
    struct node *parts[];
};

/* analyse.c */
struct lambda *analyse(value form);
size_t place_in(struct lambda *lambda, struct variable *variable); /* of what an inner function captured */
void *allocated(size_t bytes); /* zero; until the next form */

/* emit.c: the code as a constant; collects */
size_t emit_lambda(struct lambda *lambda);

#endif
