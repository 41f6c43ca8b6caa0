/* Emission: nodes become code. Functions first become words in memory of C, in which a constant is its place
 * among the constants, an even number; then the code on the heap, which may collect, and is a constant itself
 * for the function around it. */
#include "code.h"

#include <string.h>

struct emitter {
    struct lambda *lambda;
    value *words;
    size_t count, room;
    size_t depth, most; /* values on the stack behind the closure */
};

static size_t word(struct emitter *e, value w) {
    if (e->count == e->room) {
        value *words = allocated((2 * e->room + 16) * sizeof *words);
        if (e->count > 0)
            memcpy(words, e->words, e->count * sizeof *words);
        e->words = words;
        e->room = 2 * e->room + 16;
    }
    e->words[e->count] = w;
    return e->count++;
}

static size_t put(struct emitter *e, enum operation operation, size_t argument, int change) {
    e->depth += (size_t)(ptrdiff_t)change;
    if (e->depth > e->most)
        e->most = e->depth;
    return word(e, instruction(operation, argument));
}

static void put_constant(struct emitter *e, enum operation operation, size_t argument, size_t place, int change) {
    put(e, operation, argument, change);
    word(e, place << 1);
}

/* A jump that goes to what is emitted next. */
static void land(struct emitter *e, size_t jump) {
    enum operation operation = (enum operation)(integer_of(e->words[jump]) & 255);
    e->words[jump] = instruction(operation, e->count);
}

static bool in_box(const struct variable *variable) { return variable->captured && variable->assigned; }

/* Pushes what is in a variable's place: its value, or its box. */
static void push_place(struct emitter *e, struct variable *variable) {
    if (variable->owner == e->lambda)
        put(e, OP_LOCAL, variable->slot, 1);
    else
        put(e, OP_CAPTURED, place_in(e->lambda, variable), 1);
}

static void push_variable(struct emitter *e, struct variable *variable) {
    if (!in_box(variable))
        push_place(e, variable);
    else if (variable->owner == e->lambda)
        put(e, OP_LOCAL_BOX, variable->slot, 1);
    else
        put(e, OP_CAPTURED_BOX, place_in(e->lambda, variable), 1);
}

/* Pops the top into a variable. */
static void pop_into(struct emitter *e, struct variable *variable) {
    if (variable->owner != e->lambda)
        put(e, OP_SET_CAPTURED_BOX, place_in(e->lambda, variable), -1);
    else
        put(e, in_box(variable) ? OP_SET_LOCAL_BOX : OP_SET_LOCAL, variable->slot, -1);
}

/* The top becomes a variable. */
static void bind_top(struct emitter *e, struct variable *variable) {
    variable->slot = e->depth - 1;
    if (in_box(variable))
        put(e, OP_BOX_TOP, 0, 0);
}

static void emit(struct emitter *e, struct node *node, bool tail);

static void emit_do(struct emitter *e, struct node *node, bool tail) {
    size_t count = node->number;
    for (size_t index = 0; index < count; index++) {
        emit(e, node->parts[index], false);
        bind_top(e, node->variables[index]);
    }
    size_t begin = e->count, depth = e->depth;
    emit(e, node->parts[2 * count], false);
    size_t go_on = put(e, OP_JUMP_FALSE, 0, -1), end = 0;
    emit(e, node->parts[2 * count + 1], tail);
    if (!tail) {
        put(e, OP_SLIDE, count, 0);
        end = put(e, OP_JUMP, 0, 0);
    }
    e->depth = depth;
    land(e, go_on);
    emit(e, node->parts[2 * count + 2], false);
    put(e, OP_POP, 0, -1);
    for (size_t index = 0; index < count; index++)
        if (node->parts[count + index] != NULL)
            emit(e, node->parts[count + index], false);
    for (size_t index = count; index-- > 0;)
        if (node->parts[count + index] != NULL)
            put(e, in_box(node->variables[index]) ? OP_RENEW_BOX : OP_SET_LOCAL, node->variables[index]->slot, -1);
    put(e, OP_JUMP, begin, 0);
    e->depth = depth - count + 1;
    if (!tail)
        land(e, end);
}

static void emit_let(struct emitter *e, struct node *node, bool tail) {
    size_t count = node->number;
    const size_t unbound = 0; /* the constant that `analyse` put first */
    for (size_t index = 0; index < count; index++) {
        if (node->kind == NODE_LETREC)
            put_constant(e, OP_CONSTANT, 0, unbound, 1);
        else
            emit(e, node->parts[index], false);
        bind_top(e, node->variables[index]);
    }
    for (size_t index = 0; index < count && node->kind == NODE_LETREC; index++) {
        emit(e, node->parts[index], false);
        pop_into(e, node->variables[index]);
    }
    emit(e, node->parts[count], tail);
    if (!tail && count > 0)
        put(e, OP_SLIDE, count, 0);
    e->depth -= count;
}

static void emit_parts(struct emitter *e, struct node *node) {
    for (size_t index = 0; index < node->count; index++)
        emit(e, node->parts[index], false);
}

/* Leaves one value more on the stack, or in a tail position returns it. */
static void emit(struct emitter *e, struct node *node, bool tail) {
    size_t before = e->depth, jump, end;
    switch (node->kind) {
    case NODE_CONSTANT:
        put_constant(e, OP_CONSTANT, 0, node->number, 1);
        break;
    case NODE_VARIABLE:
        push_variable(e, node->variables[0]);
        break;
    case NODE_GLOBAL:
        put_constant(e, OP_GLOBAL, 0, node->number, 1);
        break;
    case NODE_SET:
        emit(e, node->parts[0], false);
        pop_into(e, node->variables[0]);
        put_constant(e, OP_CONSTANT, 0, constant(NOTHING), 1);
        break;
    case NODE_SET_GLOBAL:
    case NODE_DEFINE:
        emit(e, node->parts[0], false);
        put_constant(e, node->kind == NODE_DEFINE ? OP_DEFINE : OP_SET_GLOBAL, 0, node->number, -1);
        put_constant(e, OP_CONSTANT, 0, constant(NOTHING), 1);
        break;
    case NODE_IF:
        emit(e, node->parts[0], false);
        jump = put(e, OP_JUMP_FALSE, 0, -1);
        emit(e, node->parts[1], tail);
        end = tail ? 0 : put(e, OP_JUMP, 0, 0);
        e->depth = before;
        land(e, jump);
        emit(e, node->parts[2], tail);
        if (!tail)
            land(e, end);
        e->depth = before + 1;
        return;
    case NODE_OR: {
        size_t *jumps = allocated(node->count * sizeof *jumps);
        for (size_t index = 0; index + 1 < node->count; index++) {
            emit(e, node->parts[index], false);
            jumps[index] = put(e, OP_JUMP_TRUE_KEEP, 0, -1);
        }
        emit(e, node->parts[node->count - 1], false);
        for (size_t index = 0; index + 1 < node->count; index++)
            land(e, jumps[index]);
        break;
    }
    case NODE_SEQUENCE:
        for (size_t index = 0; index + 1 < node->count; index++) {
            emit(e, node->parts[index], false);
            put(e, OP_POP, 0, -1);
        }
        emit(e, node->parts[node->count - 1], tail);
        return;
    case NODE_LAMBDA: {
        struct lambda *lambda = node->lambda;
        size_t place = emit_lambda(lambda);
        for (size_t index = 0; index < lambda->captured_count; index++)
            push_place(e, lambda->captured[index]);
        put_constant(e, OP_CLOSURE, lambda->captured_count, place, 1 - (int)lambda->captured_count);
        break;
    }
    case NODE_CALL:
        emit_parts(e, node);
        put(e, tail ? OP_TAIL : OP_CALL, node->count - 1, 1 - (int)node->count);
        if (tail)
            return;
        break;
    case NODE_OPERATION:
        emit_parts(e, node);
        put(e, (enum operation)node->number, 0, 1 - (int)node->count);
        break;
    case NODE_PRIMITIVE:
        emit_parts(e, node);
        put(e, OP_PRIMITIVE, node->number | node->count << 16, 1 - (int)node->count);
        break;
    case NODE_LET:
    case NODE_LETREC:
        emit_let(e, node, tail);
        if (tail)
            return;
        break;
    case NODE_DO:
        emit_do(e, node, tail);
        if (tail)
            return;
        break;
    }
    if (tail)
        put(e, OP_RETURN, 0, 0);
}

size_t emit_lambda(struct lambda *lambda) {
    struct emitter e = {.lambda = lambda};
    size_t parameters = lambda->required + lambda->rest;
    e.depth = e.most = parameters;
    for (size_t index = 0; index < parameters; index++) {
        lambda->parameters[index]->slot = index;
        if (in_box(lambda->parameters[index]))
            put(&e, OP_BOX_LOCAL, index, 0);
    }
    emit(&e, lambda->body, true);
    struct code *code = AS(code, new_code(e.count));
    code->required = lambda->required;
    code->rest = lambda->rest;
    code->depth = e.most;
    HH_GC_SET(lisp.heap, code, name, lisp.constants[lambda->name]);
    for (size_t index = 0; index < e.count; index++) {
        value w = e.words[index];
        hh_gc_write(lisp.heap, code, &code->words[index], (void *)(is_integer(w) ? w : lisp.constants[w >> 1]));
    }
    return constant((value)code);
}

value compile(value form) {
    struct lambda *lambda = analyse(form);
    size_t place = emit_lambda(lambda);
    value closure = new_closure(lisp.constants[place], 0);
    lisp.constant_count = 0;
    return closure;
}
