"""Level `malloc` and libraries that are opened with RTLD_DEEPBIND: they are given the C library's `free`, and the program's blocks."""

import shutil
import subprocess

import pytest

TIMEOUT = 60

# Frees, and gives more, what was allocated elsewhere; already in its constructor, as extensions do.
LIBRARY = """
#include <stdlib.h>
#include <string.h>
const char *name(void) { return "library"; }
const char *name_found(void) { return name(); }
char *made(void) { return strcpy(malloc(50), "made"); }
void gone(char *block) { free(block); }
char *grown(char *block) { return realloc(block, 5000); }
#ifndef QUIET
__attribute__((constructor)) static void begin(void) { free(strdup("a copy that the C library makes")); }
#endif
"""
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
const char *name(void) { return "program"; }
#ifdef OWN
static _Alignas(16) char all[1 << 24]; static size_t next;
void *malloc(size_t n) { void *block = all + next; next += (n + 15) / 16 * 16; return next < sizeof all ? block : NULL; }
void free(void *block) { (void)block; }
void *calloc(size_t n, size_t size) { return malloc(n * size); }
void *realloc(void *block, size_t n) { char *now = malloc(n), *was = block; for (size_t i = 0; was && i < n; i++) now[i] = was[i]; return now; }
#endif
int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND);
    if (!library) { puts(dlerror()); return 1; }
    const char *(*name_found)(void) = (const char *(*)(void))dlsym(library, "name_found");
    puts(name_found());
    if (count > 2) return 0;
    char *(*made)(void) = (char *(*)(void))dlsym(library, "made");
    void (*gone)(char *) = (void (*)(char *))dlsym(library, "gone");
    char *(*grown)(char *) = (char *(*)(char *))dlsym(library, "grown");
    for (int n = 0; n < 1000; n++) {
        gone(strdup("the program's"));
        free(made());
        free(realloc(made(), 300));
        char *block = grown(strdup("the program's"));
        if (strcmp(block, "the program's")) return 2;
        free(block);
        gone(malloc(3 << 20));
    }
    return 0;
}
"""
# Opens by a name alone, which is looked for where this library says.
OPENER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int opened(const char *name) {
    void *plain = dlopen(name, RTLD_NOW), *deep = dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
    if (!plain || !deep) puts(dlerror());
    return plain && plain == deep;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Compiles a source to a program or library; the options come after it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    place = tmp_path_factory.mktemp("deepbind")

    def built(name, source, *options):
        (place / f"{name}.c").write_text(source)
        command = [compiler, "-O1", "-fno-builtin", "-o", place / name, place / f"{name}.c", *options, "-ldl"]
        subprocess.run(command, check=True, timeout=TIMEOUT)
        return place / name

    return built


@pytest.fixture(scope="module")
def library(built):
    return built("library.so", LIBRARY, "-shared", "-fPIC")


def on_malloc(hugeheap, *command, **more):
    return hugeheap("run", "--level", "malloc", "--", *command, **more)


@pytest.mark.any_host
def test_a_library_that_binds_to_the_c_library_first_frees_what_the_program_allocated(hugeheap, built, library):
    program = built("program", PROGRAM, "-rdynamic")
    result = on_malloc(hugeheap, program, library)
    assert (result.returncode, result.stderr) == (0, "")
    # And every other function, too, is found as by a library that is opened without the flag.
    assert result.stdout == "program\n"


@pytest.mark.any_host
def test_php_starts_with_its_extensions(hugeheap):
    if shutil.which("php") is None:
        pytest.skip("no php here")
    result = on_malloc(hugeheap, "php", "-r", "echo strlen(str_repeat('x', 3000000)), ' ', count(get_loaded_extensions()) > 0, chr(10);")
    assert (result.returncode, result.stdout, result.stderr) == (0, "3000000 1\n", "")


@pytest.mark.any_host
def test_the_flag_stays_where_hugeheap_is_switched_off(hugeheap, built, library):
    program = built("switched-off", PROGRAM, "-rdynamic")
    result = on_malloc(hugeheap, program, library, env={"HUGEHEAP_DISABLE": "1"})
    assert (result.returncode, result.stdout, result.stderr) == (0, "library\n", "")


@pytest.mark.any_host
def test_the_flag_stays_in_a_program_with_a_malloc_of_its_own(hugeheap, built):
    # On stock, too, such a program does not bear what the other one does in its constructor.
    library = built("quiet.so", LIBRARY, "-shared", "-fPIC", "-DQUIET")
    program = built("own", PROGRAM, "-rdynamic", "-DOWN")
    result = on_malloc(hugeheap, program, library, "only its name")
    assert (result.returncode, result.stdout) == (0, "library\n")


@pytest.mark.any_host
def test_a_library_opens_others_along_its_own_run_path(hugeheap, built, tmp_path):
    """The dynamic linker takes the run path of whoever its caller is, and must not take hugeheap's library for it."""
    (tmp_path / "aside").mkdir()
    shutil.copy(built("inner.so", LIBRARY, "-shared", "-fPIC"), tmp_path / "aside/libinner_of_hugeheap.so")
    opener = built("opener.so", OPENER, "-shared", "-fPIC", f"-Wl,--enable-new-dtags,-rpath,{tmp_path}/aside")
    calling = "int opened(const char *); int main(void) { return !opened(\"libinner_of_hugeheap.so\"); }"
    program = built("calling", calling, opener)
    result = on_malloc(hugeheap, program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
