"""`hugeheap run` on what is no CPython, or none yet: what is hooked and what the loader and runtimes say."""

import subprocess
from pathlib import Path

import pytest

EMBEDDING = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *python = count == 2 ? dlopen(words[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    void (*initialize)(void) = python ? (void (*)(void))dlsym(python, "Py_Initialize") : NULL;
    int (*run)(const char *) = python ? (int (*)(const char *))dlsym(python, "PyRun_SimpleString") : NULL;
    if (!initialize || !run)
        return printf("%s\n", dlerror()), 9;
    initialize();
    return run("print(len([str(n) for n in range(200_000)]), flush=True)");
}
"""


def test_a_program_that_loads_python_later_is_explained_and_hooked_with_its_library_in_front(hugeheap, compiled):
    """A server that opens libpython as a plugin was told that it is not CPython."""
    python = next(iter(sorted(Path("/usr/lib").glob("*/libpython3.*.so.1.0"))), None)
    if python is None:
        pytest.skip("there is no shared libpython below /usr/lib")
    command = ["run", "--summary", "--", compiled("embedding", "-Wl,--no-as-needed", "-ldl", source=EMBEDDING), python]
    result = hugeheap(*command)
    assert (result.returncode, result.stdout) == (0, "200000\n"), result.stderr
    assert "nothing was hooked: the process is not CPython, or Python is loaded later" in result.stderr
    result = hugeheap(*command, env={"LD_PRELOAD": str(python)})
    assert (result.returncode, result.stdout) == (0, "200000\n"), result.stderr
    assert "CPython's arenas come from hugeheap" in result.stderr


SAYS = '#include <stdio.h>\nint main(void) { puts("ran"); return 0; }\n'


def test_a_program_with_the_shared_address_sanitizer_starts_as_the_guide_says(hugeheap, compiled):
    program = compiled("checked", "-fsanitize=address", source=SAYS)
    if subprocess.run([program], capture_output=True, text=True).stdout != "ran\n":
        pytest.skip("the sanitizer does not run here")
    result = hugeheap("run", "--", program)
    assert result.returncode == 1 and "ASan runtime does not come first in initial library list" in result.stderr
    result = hugeheap("run", "--", program, env={"ASAN_OPTIONS": "verify_asan_link_order=0"})
    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr
    result = hugeheap("run", "--no-children", "--", "env", "sh", "-c", program)
    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr
    result = hugeheap("run", "--", compiled("static", "-fsanitize=address", "-static-libasan", source=SAYS))
    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr


def test_a_child_of_32_bits_runs_and_the_loader_says_that_the_library_is_not_for_it(hugeheap, compiled):
    program = compiled("narrow", "-m32", source=SAYS)
    result = hugeheap("run", "--", "sh", "-c", program)
    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr
    assert "wrong ELF class: ELFCLASS64): ignored" in result.stderr
    result = hugeheap("run", "-q", "--no-children", "--", "sh", "-c", program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ran\n", "")
