/* Analysis: a form becomes nodes, in which names are variables and derived forms are gone.
 *
 * Nodes lie in memory of C that is dropped with the form. Nothing here allocates on the heap, so nothing moves:
 * forms and symbols can be held in plain local variables, and symbols compared by address. What nodes refer to
 * is put among the constants, which are roots. */
#include "code.h"

#include <stdlib.h>
#include <string.h>

/* ---- Memory for nodes */

struct chunk { struct chunk *next; size_t used; char bytes[32752]; };
static struct chunk *chunks;

void *allocated(size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    if (chunks == NULL || chunks->used + bytes > sizeof chunks->bytes) {
        struct chunk *chunk = calloc(1, sizeof *chunk + bytes);
        if (chunk == NULL)
            fail("there is no memory to compile");
        chunk->next = chunks;
        chunks = chunk;
    }
    void *memory = chunks->bytes + chunks->used;
    chunks->used += bytes;
    return memory;
}

static struct node *new_node(enum kind kind, size_t count) {
    struct node *node = allocated(sizeof *node + count * sizeof(struct node *));
    node->kind = kind;
    node->count = count;
    return node;
}

static struct node *node_of(enum kind kind, size_t number) {
    struct node *node = new_node(kind, 0);
    node->number = number;
    return node;
}

static struct node *constant_node(value v) { return node_of(NODE_CONSTANT, constant(v)); }

static struct node *operation(enum operation number, struct node *one, struct node *other) {
    struct node *node = new_node(NODE_OPERATION, other == NULL ? 1 : 2);
    node->number = number;
    node->parts[0] = one;
    if (other != NULL)
        node->parts[1] = other;
    return node;
}

static struct node *if_node(struct node *test, struct node *yes, struct node *no) {
    struct node *node = new_node(NODE_IF, 3);
    node->parts[0] = test;
    node->parts[1] = yes;
    node->parts[2] = no;
    return node;
}

/* ---- Forms */

static bool is_named(value v, const char *name) {
    if (!is(v, SYMBOL))
        return false;
    struct string *text = AS(string, AS(symbol, v)->name);
    return text->length == strlen(name) && memcmp(text->bytes, name, text->length) == 0;
}

static _Noreturn void bad(value form, const char *why) { wrong(why, form, NULL); }

static size_t length_of(value list, value form) {
    size_t length = 0;
    for (; is(list, PAIR); list = TAIL(list))
        length++;
    if (list != NIL)
        bad(form, "a list does not end with ()");
    return length;
}

static value part(value form, size_t index) {
    value rest = form;
    for (; index > 0 && is(rest, PAIR); index--)
        rest = TAIL(rest);
    if (!is(rest, PAIR))
        bad(form, "a part of a form is missing");
    return HEAD(rest);
}

/* ---- Scopes */

struct scope { struct lambda *lambda; struct variable *variables; };

static struct variable *bind(struct scope *scope, value name) {
    struct variable *variable = allocated(sizeof *variable);
    *variable = (struct variable){.outer = scope->variables, .owner = scope->lambda, .name = name};
    scope->variables = variable;
    return variable;
}

static struct variable *bind_name(struct scope *scope, value name) {
    if (!is(name, SYMBOL))
        wrong("variable", name, "name");
    return bind(scope, name);
}

size_t place_in(struct lambda *lambda, struct variable *variable) {
    for (size_t place = 0; place < lambda->captured_count; place++)
        if (lambda->captured[place] == variable)
            return place;
    if (lambda->captured_count == lambda->captured_room) {
        size_t room = 2 * lambda->captured_room + 4;
        struct variable **captured = allocated(room * sizeof *captured);
        if (lambda->captured_count > 0)
            memcpy(captured, lambda->captured, lambda->captured_count * sizeof *captured);
        lambda->captured = captured;
        lambda->captured_room = room;
    }
    lambda->captured[lambda->captured_count] = variable;
    return lambda->captured_count++;
}

static struct variable *lookup(struct scope *scope, value name) {
    struct variable *variable = scope->variables;
    while (variable != NULL && variable->name != name)
        variable = variable->outer;
    if (variable != NULL) {
        for (struct lambda *lambda = scope->lambda; lambda != variable->owner; lambda = lambda->outer) {
            variable->captured = true;
            place_in(lambda, variable);
        }
    }
    return variable;
}

static struct node *variable_node(struct variable *variable) {
    struct node *node = new_node(NODE_VARIABLE, 0);
    node->variables = allocated(sizeof *node->variables);
    node->variables[0] = variable;
    return node;
}

static struct node *let_node(enum kind kind, size_t variables, size_t parts) {
    struct node *node = new_node(kind, parts);
    node->number = variables;
    node->variables = allocated((variables + 1) * sizeof *node->variables);
    return node;
}

/* ---- Derived forms */

static struct node *expression(struct scope *scope, value form);
static struct node *body(struct scope scope, value forms);

static struct node *sequence(struct scope *scope, value forms, struct node *empty) {
    size_t length = length_of(forms, forms);
    if (length == 0)
        return empty;
    if (length == 1)
        return expression(scope, HEAD(forms));
    struct node *node = new_node(NODE_SEQUENCE, length);
    for (size_t index = 0; index < length; index++, forms = TAIL(forms))
        node->parts[index] = expression(scope, HEAD(forms));
    return node;
}

static struct node *nothing(void) { return constant_node(NOTHING); }

static struct node *lambda_node(struct scope *outer, value name, value parameters, value forms) {
    struct lambda *lambda = allocated(sizeof *lambda);
    lambda->outer = outer->lambda;
    lambda->name = constant(name);
    struct scope scope = {lambda, outer->variables};
    size_t count = 0;
    for (value rest = parameters; rest != NIL; rest = is(rest, PAIR) ? TAIL(rest) : NIL)
        count++;
    lambda->parameters = allocated((count + 1) * sizeof *lambda->parameters);
    for (size_t index = 0; index < count; index++) {
        lambda->rest = !is(parameters, PAIR);
        lambda->parameters[index] = bind_name(&scope, lambda->rest ? parameters : HEAD(parameters));
        parameters = lambda->rest ? NIL : TAIL(parameters);
    }
    lambda->required = count - lambda->rest;
    lambda->body = body(scope, forms);
    struct node *node = new_node(NODE_LAMBDA, 0);
    node->lambda = lambda;
    return node;
}

/* Internal definitions stand at the beginning of a body and are like letrec*. */
static bool is_definition(struct scope *scope, value form) {
    return is(form, PAIR) && is_named(HEAD(form), "define") && lookup(scope, HEAD(form)) == NULL;
}

static value defined_name(value form) {
    value name = part(form, 1);
    return is(name, PAIR) ? HEAD(name) : name;
}

static struct node *defined_value(struct scope *scope, value form) {
    value name = part(form, 1);
    if (is(name, PAIR))
        return lambda_node(scope, HEAD(name), TAIL(name), TAIL(TAIL(form)));
    value given = part(form, 2);
    if (is(given, PAIR) && is_named(HEAD(given), "lambda") && lookup(scope, HEAD(given)) == NULL)
        return lambda_node(scope, name, part(given, 1), TAIL(TAIL(given)));
    return expression(scope, given);
}

static struct node *body(struct scope scope, value forms) {
    size_t count = 0;
    for (value rest = forms; is(rest, PAIR) && is_definition(&scope, HEAD(rest)); rest = TAIL(rest))
        count++;
    if (count == 0)
        return sequence(&scope, forms, nothing());
    struct node *node = let_node(NODE_LETREC, count, count + 1);
    value rest = forms;
    for (size_t index = 0; index < count; index++, rest = TAIL(rest)) {
        node->variables[index] = bind_name(&scope, defined_name(HEAD(rest)));
        node->variables[index]->assigned = true;
    }
    for (size_t index = 0; index < count; index++, forms = TAIL(forms))
        node->parts[index] = defined_value(&scope, HEAD(forms));
    node->parts[count] = sequence(&scope, forms, nothing());
    return node;
}

static struct node *named_let(struct scope *scope, value form) {
    value name = part(form, 1), bindings = part(form, 2);
    size_t count = length_of(bindings, form);
    struct scope inner = *scope;
    struct node *node = let_node(NODE_LETREC, 1, 2), *call = new_node(NODE_CALL, count + 1);
    struct variable *loop = node->variables[0] = bind_name(&inner, name);
    loop->assigned = true;
    /* The parameters as lambda_node takes them would be a new list: they are bound here. */
    struct lambda *lambda = allocated(sizeof *lambda);
    lambda->outer = scope->lambda;
    lambda->name = constant(name);
    lambda->required = count;
    lambda->parameters = allocated((count + 1) * sizeof *lambda->parameters);
    struct scope within = {lambda, inner.variables};
    value rest = bindings;
    for (size_t index = 0; index < count; index++, rest = TAIL(rest)) {
        lambda->parameters[index] = bind_name(&within, part(HEAD(rest), 0));
        call->parts[index + 1] = expression(scope, part(HEAD(rest), 1));
    }
    lambda->body = body(within, TAIL(TAIL(TAIL(form))));
    node->parts[0] = new_node(NODE_LAMBDA, 0);
    node->parts[0]->lambda = lambda;
    call->parts[0] = variable_node(loop);
    node->parts[1] = call;
    return node;
}

static struct node *let(struct scope *scope, value form) {
    if (is(part(form, 1), SYMBOL))
        return named_let(scope, form);
    value bindings = part(form, 1);
    size_t count = length_of(bindings, form);
    struct node *node = let_node(NODE_LET, count, count + 1);
    struct scope inner = *scope;
    for (size_t index = 0; index < count; index++, bindings = TAIL(bindings)) {
        node->parts[index] = expression(scope, part(HEAD(bindings), 1));
        node->variables[index] = bind_name(&inner, part(HEAD(bindings), 0));
    }
    node->parts[count] = body(inner, TAIL(TAIL(form)));
    return node;
}

static struct node *let_star_from(struct scope scope, value bindings, value forms) {
    if (bindings == NIL)
        return body(scope, forms);
    struct node *node = let_node(NODE_LET, 1, 2);
    node->parts[0] = expression(&scope, part(part(bindings, 0), 1));
    node->variables[0] = bind_name(&scope, part(HEAD(bindings), 0));
    node->parts[1] = let_star_from(scope, TAIL(bindings), forms);
    return node;
}

static struct node *let_star(struct scope *scope, value form) { return let_star_from(*scope, part(form, 1), TAIL(TAIL(form))); }

static struct node *letrec(struct scope *scope, value form) {
    value bindings = part(form, 1);
    size_t count = length_of(bindings, form);
    struct node *node = let_node(NODE_LETREC, count, count + 1);
    struct scope inner = *scope;
    value rest = bindings;
    for (size_t index = 0; index < count; index++, rest = TAIL(rest)) {
        node->variables[index] = bind_name(&inner, part(HEAD(rest), 0));
        node->variables[index]->assigned = true;
    }
    for (size_t index = 0; index < count; index++, bindings = TAIL(bindings))
        node->parts[index] = expression(&inner, part(HEAD(bindings), 1));
    node->parts[count] = body(inner, TAIL(TAIL(form)));
    return node;
}

static struct node *do_loop(struct scope *scope, value form) {
    value bindings = part(form, 1), end = part(form, 2);
    size_t count = length_of(bindings, form);
    struct node *node = let_node(NODE_DO, count, 2 * count + 3);
    struct scope inner = *scope;
    value rest = bindings;
    for (size_t index = 0; index < count; index++, rest = TAIL(rest)) {
        node->parts[index] = expression(scope, part(HEAD(rest), 1));
        node->variables[index] = bind_name(&inner, part(HEAD(rest), 0));
    }
    for (size_t index = 0; index < count; index++, bindings = TAIL(bindings))
        node->parts[count + index] = TAIL(TAIL(HEAD(bindings))) == NIL ? NULL : expression(&inner, part(HEAD(bindings), 2));
    node->parts[2 * count] = expression(&inner, part(end, 0));
    node->parts[2 * count + 1] = sequence(&inner, TAIL(end), nothing());
    node->parts[2 * count + 2] = sequence(&inner, TAIL(TAIL(TAIL(form))), nothing());
    return node;
}

static struct node *and_from(struct scope *scope, value forms) {
    if (forms == NIL)
        return constant_node(TRUE);
    struct node *first = expression(scope, part(forms, 0));
    return TAIL(forms) == NIL ? first : if_node(first, and_from(scope, TAIL(forms)), constant_node(FALSE));
}

static struct node *and_form(struct scope *scope, value form) { return and_from(scope, TAIL(form)); }

static struct node *or_form(struct scope *scope, value form) {
    size_t count = length_of(TAIL(form), form);
    if (count == 0)
        return constant_node(FALSE);
    struct node *node = new_node(NODE_OR, count);
    value rest = TAIL(form);
    for (size_t index = 0; index < count; index++, rest = TAIL(rest))
        node->parts[index] = expression(scope, HEAD(rest));
    return node;
}

static struct node *cond_from(struct scope scope, value clauses) {
    if (clauses == NIL)
        return nothing();
    value clause = part(clauses, 0), test = part(clause, 0);
    if (is_named(test, "else"))
        return sequence(&scope, TAIL(clause), nothing());
    if (TAIL(clause) == NIL) {
        struct node *node = new_node(NODE_OR, 2);
        node->parts[0] = expression(&scope, test);
        node->parts[1] = cond_from(scope, TAIL(clauses));
        return node;
    }
    if (!is_named(part(clause, 1), "=>"))
        return if_node(expression(&scope, test), sequence(&scope, TAIL(clause), nothing()), cond_from(scope, TAIL(clauses)));
    /* A variable that no name finds. */
    struct node *node = let_node(NODE_LET, 1, 2), *call = new_node(NODE_CALL, 2);
    node->parts[0] = expression(&scope, test);
    struct variable *found = node->variables[0] = bind(&scope, UNBOUND);
    call->parts[0] = expression(&scope, part(clause, 2));
    call->parts[1] = variable_node(found);
    node->parts[1] = if_node(variable_node(found), call, cond_from(scope, TAIL(clauses)));
    return node;
}

static struct node *cond(struct scope *scope, value form) { return cond_from(*scope, TAIL(form)); }

static struct node *case_from(struct scope *scope, struct variable *key, value clauses) {
    if (clauses == NIL)
        return nothing();
    value clause = part(clauses, 0), data = part(clause, 0);
    if (is_named(data, "else"))
        return sequence(scope, TAIL(clause), nothing());
    size_t count = length_of(data, clause);
    struct node *test = new_node(NODE_OR, count + 1);
    for (size_t index = 0; index < count; index++, data = TAIL(data))
        test->parts[index] = operation(OP_EQV, variable_node(key), constant_node(HEAD(data)));
    test->parts[count] = constant_node(FALSE);
    return if_node(test, sequence(scope, TAIL(clause), nothing()), case_from(scope, key, TAIL(clauses)));
}

static struct node *case_form(struct scope *scope, value form) {
    struct node *node = let_node(NODE_LET, 1, 2);
    struct scope inner = *scope;
    node->parts[0] = expression(scope, part(form, 1));
    node->variables[0] = bind(&inner, UNBOUND);
    node->parts[1] = case_from(&inner, node->variables[0], TAIL(TAIL(form)));
    return node;
}

static struct node *if_form(struct scope *scope, value form) {
    struct node *test = expression(scope, part(form, 1)), *yes = expression(scope, part(form, 2));
    return if_node(test, yes, TAIL(TAIL(TAIL(form))) == NIL ? nothing() : expression(scope, part(form, 3)));
}

static struct node *when(struct scope *scope, value form) {
    struct node *test = expression(scope, part(form, 1));
    return if_node(test, sequence(scope, TAIL(TAIL(form)), nothing()), nothing());
}

static struct node *unless(struct scope *scope, value form) {
    struct node *test = expression(scope, part(form, 1));
    return if_node(test, nothing(), sequence(scope, TAIL(TAIL(form)), nothing()));
}

static struct node *quote(struct scope *scope, value form) {
    (void)scope;
    return constant_node(part(form, 1));
}

static struct node *begin(struct scope *scope, value form) { return sequence(scope, TAIL(form), nothing()); }

static struct node *lambda_form(struct scope *scope, value form) { return lambda_node(scope, NIL, part(form, 1), TAIL(TAIL(form))); }

static struct node *set_form(struct scope *scope, value form) {
    value name = part(form, 1);
    if (!is(name, SYMBOL))
        wrong("set!", name, "name");
    struct variable *variable = lookup(scope, name);
    struct node *node = new_node(variable == NULL ? NODE_SET_GLOBAL : NODE_SET, 1);
    if (variable == NULL)
        node->number = constant(name);
    else {
        variable->assigned = true;
        node->variables = allocated(sizeof *node->variables);
        node->variables[0] = variable;
    }
    node->parts[0] = expression(scope, part(form, 2));
    return node;
}

static struct node *define(struct scope *scope, value form) {
    if (scope->lambda->outer != NULL || scope->variables != NULL)
        bad(form, "define belongs at the beginning of a body");
    struct node *node = new_node(NODE_DEFINE, 1);
    node->number = constant(defined_name(form));
    if (!is(lisp.constants[node->number], SYMBOL))
        wrong("define", lisp.constants[node->number], "name");
    node->parts[0] = defined_value(scope, form);
    return node;
}

static size_t primitive_named(const char *name) {
    size_t number = 0;
    while (strcmp(lisp.primitives[number]->name, name) != 0)
        number++;
    return number;
}

static struct node *template(struct scope *scope, value form, int depth) {
    if (is(form, VECTOR))
        fail("quasiquote: vectors are not filled in");
    if (!is(form, PAIR))
        return constant_node(form);
    if (is_named(HEAD(form), "unquote"))
        return depth == 1 ? expression(scope, part(form, 1))
                          : operation(OP_CONS, constant_node(HEAD(form)), template(scope, TAIL(form), depth - 1));
    value first = HEAD(form);
    if (depth == 1 && is(first, PAIR) && is_named(HEAD(first), "unquote-splicing")) {
        struct node *node = new_node(NODE_PRIMITIVE, 2);
        node->number = primitive_named("append");
        node->parts[0] = expression(scope, part(first, 1));
        node->parts[1] = template(scope, TAIL(form), depth);
        return node;
    }
    int inner = depth + is_named(first, "quasiquote");
    return operation(OP_CONS, template(scope, first, depth), template(scope, TAIL(form), inner));
}

static struct node *quasiquote(struct scope *scope, value form) { return template(scope, part(form, 1), 1); }

static const struct { const char *name; struct node *(*analyse)(struct scope *scope, value form); } special[] = {
    {"quote", quote}, {"if", if_form}, {"define", define}, {"set!", set_form}, {"lambda", lambda_form}, {"begin", begin}, {"let", let},
    {"let*", let_star}, {"letrec", letrec}, {"letrec*", letrec}, {"do", do_loop}, {"and", and_form}, {"or", or_form}, {"cond", cond},
    {"case", case_form}, {"when", when}, {"unless", unless}, {"quasiquote", quasiquote},
};

/* A primitive that nobody redefined so far is called without a look at its name; some are instructions. */
static struct node *application(struct scope *scope, value form) {
    size_t count = length_of(TAIL(form), form);
    value name = HEAD(form), called = is(name, SYMBOL) && lookup(scope, name) == NULL ? AS(symbol, name)->global : UNBOUND;
    struct node *node = NULL;
    if (is(called, PRIMITIVE)) {
        size_t number = AS(primitive, called)->number;
        const struct definition *definition = lisp.primitives[number];
        size_t operands = definition->operation >= OP_FIRST_BINARY ? 2 : 1;
        bool fits = count >= (size_t)definition->least && (definition->most < 0 || count <= (size_t)definition->most);
        if (definition->operation != 0 && count == operands) {
            node = new_node(NODE_OPERATION, count);
            node->number = (size_t)definition->operation;
        } else if (definition->run != NULL && fits) {
            node = new_node(NODE_PRIMITIVE, count);
            node->number = number;
        }
    }
    size_t first = node == NULL;
    if (node == NULL) {
        node = new_node(NODE_CALL, count + 1);
        node->parts[0] = expression(scope, name);
    }
    for (value rest = TAIL(form); rest != NIL; rest = TAIL(rest))
        node->parts[first++] = expression(scope, HEAD(rest));
    return node;
}

static struct node *expression(struct scope *scope, value form) {
    if (is(form, SYMBOL)) {
        struct variable *variable = lookup(scope, form);
        return variable == NULL ? node_of(NODE_GLOBAL, constant(form)) : variable_node(variable);
    }
    if (!is(form, PAIR)) {
        if (form == NIL)
            fail("() is no expression; write '()");
        return constant_node(form);
    }
    if (is(HEAD(form), SYMBOL) && lookup(scope, HEAD(form)) == NULL)
        for (size_t n = 0; n < sizeof special / sizeof special[0]; n++)
            if (is_named(HEAD(form), special[n].name))
                return special[n].analyse(scope, form);
    return application(scope, form);
}

struct lambda *analyse(value form) {
    while (chunks != NULL) {
        struct chunk *chunk = chunks;
        chunks = chunk->next;
        free(chunk);
    }
    lisp.constant_count = 0;
    constant(UNBOUND); /* what variables hold that have no value yet */
    struct lambda *lambda = allocated(sizeof *lambda);
    lambda->name = constant(NIL);
    struct scope scope = {lambda, NULL};
    lambda->body = expression(&scope, form);
    return lambda;
}
