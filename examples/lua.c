/* Lua 5.4 on hugeheap: every block of the interpreter comes from one heap, and is freed with its size.
 *
 *   cc lua.c $(pkg-config --cflags --libs hugeheap lua5.4) -o lua
 *   ./lua [--stats] [--limit BYTES] SCRIPT [ARGUMENT...]
 *
 * --stats prints what the heap did, as JSON on standard error. --limit is a limit for Lua's memory: a script
 * that needs more gets Lua's own error, "not enough memory", which it may catch.
 */
#include <errno.h>
#include <hugeheap.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct memory {
    hh_heap *heap;
    size_t used;
    size_t limit;
};

/* The whole of the connection. Lua says the old size of every block, but for new ones, where it says what will
 * be in it. */
static void *allocate(void *given, void *block, size_t old_size, size_t new_size) {
    struct memory *memory = given;
    if (block == NULL)
        old_size = 0;
    if (new_size > old_size && new_size - old_size > memory->limit - memory->used)
        return NULL;
    void *result = NULL;
    if (new_size == 0)
        hh_heap_free_sized(memory->heap, block, old_size);
    else if (block == NULL)
        result = hh_heap_alloc(memory->heap, new_size);
    else
        result = hh_heap_realloc(memory->heap, block, old_size, new_size);
    if (result != NULL || new_size == 0)
        memory->used += new_size - old_size;
    return result;
}

/* Errors get a traceback, as the stock interpreter gives one. */
static int with_traceback(lua_State *L) {
    const char *message = luaL_tolstring(L, 1, NULL);
    luaL_traceback(L, L, message, 1);
    return 1;
}

/* Runs under lua_pcall, so that a failed allocation is an error here, too. */
static int run(lua_State *L) {
    char **words = lua_touserdata(L, 1);
    luaL_openlibs(L);
    lua_newtable(L);
    for (int index = 0; words[index] != NULL; index++) {
        lua_pushstring(L, words[index]);
        lua_rawseti(L, -2, index);
    }
    lua_setglobal(L, "arg");
    if (luaL_loadfile(L, words[0]) != LUA_OK)
        return lua_error(L);
    int count = 0;
    for (; words[count + 1] != NULL; count++) {
        luaL_checkstack(L, 1, "too many arguments");
        lua_pushstring(L, words[count + 1]);
    }
    lua_call(L, count, 0);
    return 0;
}

static int usage(void) {
    fputs("usage: lua [--stats] [--limit BYTES] SCRIPT [ARGUMENT...]\n", stderr);
    return 2;
}

static void print_statistics(void) {
    hh_measure();
    size_t room = hh_stats_json(NULL, 0) + 64; /* numbers may grow a digit between the two calls */
    char *text = hh_malloc(room);
    if (text != NULL) {
        hh_stats_json(text, room);
        fprintf(stderr, "%s\n", text);
        hh_free(text);
    } else {
        perror("lua");
    }
}

int main(int count, char **words) {
    struct memory memory = {.limit = SIZE_MAX};
    int statistics = 0;
    (void)count;
    for (words++; *words != NULL && strncmp(*words, "--", 2) == 0; words++) {
        if (strcmp(*words, "--stats") == 0) {
            statistics = 1;
        } else if (strcmp(*words, "--limit") == 0 && words[1] != NULL) {
            char *end;
            errno = 0;
            memory.limit = strtoull(*++words, &end, 10);
            if (errno != 0 || *end != '\0' || **words < '0' || **words > '9')
                return usage();
        } else {
            return usage();
        }
    }
    if (*words == NULL)
        return usage();

    memory.heap = hh_heap_new(NULL);
    lua_State *L = memory.heap == NULL ? NULL : lua_newstate(allocate, &memory);
    if (L == NULL) {
        fputs("lua: not enough memory\n", stderr);
        return 1;
    }
    lua_pushcfunction(L, with_traceback);
    lua_pushcfunction(L, run);
    lua_pushlightuserdata(L, words);
    int failed = lua_pcall(L, 1, 0, 1) != LUA_OK;
    if (failed) {
        const char *message = lua_tostring(L, -1);
        fprintf(stderr, "lua: %s\n", message == NULL ? "an error that is no text" : message);
    }
    if (statistics)
        print_statistics();
    lua_close(L);
    if (memory.used != 0) {
        fprintf(stderr, "lua: %zu bytes were not freed\n", memory.used);
        failed = 1;
    }
    hh_heap_drop(memory.heap);
    return failed;
}
