/* The command: files, or lines from a terminal. Flags choose the settings and the checks of the collector. */
#include "lisp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Runs the forms of a text, one after the other. An error leaves by longjmp. */
void run_text(const char *text, size_t length, bool print_results) {
    struct reader reader = {text, text + length, 1};
    struct { value form; } my = {NIL};
    HH_GC_ROOTS(lisp.heap, my);
    while (read_form(&reader, &my.form)) {
        my.form = compile(my.form);
        my.form = run(my.form);
        if (print_results && my.form != NOTHING) {
            print(stdout, my.form, true);
            putchar('\n');
        }
    }
}

static void set_up(void) {
    add_lists();
    add_numbers();
    add_strings();
    add_tables();
    run_text(prelude, strlen(prelude), false);
}

/* Sets up, when there is no text; else the same, with the heap's frames and the stack as they were when an
 * error left. Says whether there was none. */
static bool try_text(const char *text, size_t length, bool print_results) {
    jmp_buf here, *const outer = lisp.handler;
    hh_gc_frame *const frames = lisp.heap->frames;
    const size_t count = lisp.frame.count;
    lisp.handler = &here;
    volatile bool well = false;
    if (setjmp(here) == 0) {
        if (text == NULL)
            set_up();
        else
            run_text(text, length, print_results);
        well = true;
    }
    lisp.handler = outer;
    lisp.heap->frames = frames;
    lisp.frame.count = count;
    return well;
}

static char *whole_file(const char *name, size_t *length) {
    FILE *file = strcmp(name, "-") == 0 ? stdin : fopen(name, "rb");
    char *text = NULL;
    size_t room = 0;
    *length = 0;
    while (file != NULL) {
        text = grown(text, &room, *length + 65536, 1);
        size_t got = fread(text + *length, 1, 65536, file);
        *length += got;
        if (got == 0)
            break;
    }
    if (file == NULL || ferror(file)) {
        fprintf(stderr, "lisp: cannot read ");
        perror(name);
        exit(2);
    }
    if (file != stdin)
        fclose(file);
    return text;
}

/* Whether all parentheses of a text are closed: strings and comments are looked at roughly, the reader does it
 * exactly. */
static bool is_whole(const char *text) {
    int depth = 0;
    bool quoted = false;
    for (; *text != 0; text++) {
        if (quoted && *text == '\\' && text[1] != 0)
            text++;
        else if (*text == '"')
            quoted = !quoted;
        else if (!quoted && *text == ';')
            text += strcspn(text, "\n") - (text[strcspn(text, "\n")] == 0);
        else if (!quoted)
            depth += (*text == '(') - (*text == ')');
    }
    return depth <= 0 && !quoted;
}

static void from_terminal(void) {
    char *line = NULL, *text = NULL;
    size_t line_room = 0, room = 0, length = 0;
    bool terminal = isatty(0);
    for (;;) {
        if (terminal)
            fputs(length == 0 ? "> " : "  ", stdout), fflush(stdout);
        ssize_t got = getline(&line, &line_room, stdin);
        if (got < 0)
            break;
        text = grown(text, &room, length + (size_t)got + 1, 1);
        memcpy(text + length, line, (size_t)got + 1);
        length += (size_t)got;
        if (!is_whole(text))
            continue;
        if (!try_text(text, length, true))
            printf("error: %s\n", lisp.message);
        length = 0;
    }
    free(line);
    free(text);
}

static void usage(void) {
    fputs("usage: lisp [--gc-stats] [--check verify,barriers,poison,moving,rotate] [--stress N] [--nursery BYTES] [--maximum BYTES] [FILE...]\n"
          "  Runs the files, - for the standard input, or without one what is typed.\n",
          stderr);
    exit(2);
}

static size_t number(const char *text) {
    char *end = NULL;
    unsigned long long found = text == NULL || *text == '-' ? 0 : strtoull(text, &end, 10);
    if (end == NULL || end == text || *end != 0)
        usage();
    return (size_t)found;
}

static uint32_t checks(const char *list) {
    static const char *const names[] = {"verify", "barriers", "poison", "moving", "rotate"};
    uint32_t found = 0;
    while (list != NULL && *list != 0) {
        size_t length = strcspn(list, ","), n = 0;
        while (n < 5 && (strlen(names[n]) != length || memcmp(names[n], list, length) != 0))
            n++;
        if (n == 5)
            usage();
        found |= 1U << n;
        list += length + (list[length] == ',');
    }
    if (found == 0)
        usage();
    return found;
}

int main(int count, char **words) {
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    bool statistics = false, well = true;
    int at = 1;
    for (; at < count && strncmp(words[at], "--", 2) == 0; at++) {
        const char *option = words[at], *given = at + 1 < count ? words[at + 1] : NULL;
        if (strcmp(option, "--gc-stats") == 0) {
            statistics = true;
            continue;
        }
        if (strcmp(option, "--check") == 0)
            options.checks = checks(given);
        else if (strcmp(option, "--stress") == 0)
            options.stress = (uint32_t)number(given);
        else if (strcmp(option, "--nursery") == 0)
            options.nursery = number(given);
        else if (strcmp(option, "--maximum") == 0)
            options.maximum = number(given);
        else
            usage();
        at++;
    }
    open_heap(&options);
    if (!try_text(NULL, 0, false)) {
        fprintf(stderr, "lisp: %s\n", lisp.message);
        return 1;
    }
    if (at == count)
        from_terminal();
    for (; at < count && well; at++) {
        size_t length;
        char *text = whole_file(words[at], &length);
        well = try_text(text, length, false);
        if (!well) {
            fflush(stdout);
            fprintf(stderr, "lisp: %s: %s\n", words[at], lisp.message);
        }
        free(text);
    }
    if (statistics) {
        static char text[4000];
        fflush(stdout);
        hh_gc_stats_json(lisp.heap, text, sizeof text);
        fprintf(stderr, "%s\n", text);
    }
    hh_gc_drop(lisp.heap);
    return !well;
}
