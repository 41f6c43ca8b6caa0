"""Level `malloc`: the C library's functions from hugeheap, in a program that checks them and in real ones."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import testbed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIMEOUT = 100
SECTIONS = ["sizes", "limited", "many", "first", "few", "little_left", "refusals", "alignments", "foreign", "threads", "endings", "reports"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles a program of this directory."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")

    def compiled(source):
        target = tmp_path_factory.mktemp("malloc") / Path(source).stem
        words = [compiler, "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", ROOT / "tests/c"]
        subprocess.run([*words, HERE / source, "-o", target, "-ldl"], check=True)
        return target

    return compiled


@pytest.fixture(scope="module")
def family(compiled):
    """The program with a section for each part of the family."""
    return compiled("malloc_family.c")


def on_malloc(hugeheap, *command, options=(), **more):
    return hugeheap("run", "--level", "malloc", *options, "--", *command, **more)


def test_the_sections_are_known(family):
    source = (HERE / "malloc_family.c").read_text()
    ends = {"twice", "inside", "wrong_realloc", "owner"}
    assert set(re.findall(r'\{"(\w+)", ', source)) == {*SECTIONS, *ends}


@pytest.mark.any_host
@pytest.mark.parametrize("section", SECTIONS)
def test_the_family_does_what_the_manual_says(section, hugeheap, family):
    result = on_malloc(hugeheap, family, section)
    assert result.returncode == 0, result.stderr
    if section == "reports":
        assert "<malloc version=" in result.stdout
        assert re.search(r"hugeheap: malloc: \d+ bytes in use, \d+ of them in large blocks; \d+ kept", result.stderr)
    else:
        assert result.stderr == ""


@pytest.fixture(scope="module")
def limited(compiled):
    """The program that says how much it has under a limit."""
    return compiled("limited.c")


# With blocks of 1,060,000 bytes it had half of what it has on stock, with those of 5 MB 81 %; and with all
# freed an eighth of the limit for one block.
@pytest.mark.any_host
@pytest.mark.parametrize(
    ("before", "steps"),
    [
        ("ulimit -v 819200", "f100 x b"),
        ("ulimit -v 819200", "f1060000 x b g64"),
        ("ulimit -v 819200", "f100 x f5000000 x f300000 x b"),
        ("ulimit -v 819200", "f5000000 x f100 x f300000"),
        ("ulimit -v 819200", "t300000 x f100"),
        ("ulimit -v 819200", "f100 x k f5000000 x b"),
        ("ulimit -v 819200", "g64 f730000"),
        (":", "v800 f100 x f5000000 x b g64"),
    ],
)
def test_a_program_has_nearly_all_of_its_limit(before, steps, hugeheap, limited):
    # A process of several threads gets further arenas of the C library when that is refused memory: 64 MiB of
    # address space each. It has the maintenance thread.
    command = ["sh", "-c", f"{before}; MALLOC_ARENA_MAX=1 exec {limited} {steps}"]
    stock = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    ours = on_malloc(hugeheap, *command)
    assert (ours.returncode, ours.stderr) == (0, "")
    pairs = list(zip(map(int, ours.stdout.split()), map(int, stock.stdout.split()), strict=True))
    assert all(have >= 0.9 * could for have, could in pairs), pairs


@pytest.mark.any_host
@pytest.mark.parametrize("options", [("--hardened",), ("--no-thread",), ("--policy", "base"), ("--decay", "0.001")])
def test_the_family_does_so_with_each_setting(options, hugeheap, family):
    for section in ("sizes", "alignments", "threads", "endings", "many"):
        result = on_malloc(hugeheap, family, section, options=options)
        assert (result.returncode, result.stderr) == (0, ""), section


@pytest.mark.any_host
@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("twice", "hugeheap: free of 0x[0-9a-f]+: .*freed twice"),
        ("inside", "hugeheap: free of 0x[0-9a-f]+: .*inside a block"),
        ("wrong_realloc", "hugeheap: realloc of 0x[0-9a-f]+: .*inside a block"),
    ],
)
def test_a_wrong_block_ends_the_program_with_a_line(section, line, hugeheap, family):
    result = on_malloc(hugeheap, family, section)
    assert result.returncode == 134 or result.returncode == -6
    assert re.fullmatch(line + ".*\n", result.stderr)


@pytest.mark.any_host
def test_the_functions_are_the_librarys_and_not_those_of_a_program_that_is_switched_off(hugeheap, family):
    for env, ours in [({}, True), ({"HUGEHEAP_DISABLE": "1"}, False)]:
        result = on_malloc(hugeheap, family, "owner", env=env)
        library, address = result.stdout.split()
        assert Path(library).name == "libhugeheap_malloc.so"
        # A class of 112 bytes begins at a multiple of it in a heap page of 16 KiB; the C library's lie 16 bytes
        # behind their headers, low in the heap.
        assert (int(address, 16) % 16384 % 112 == 0) == ours, address


@pytest.mark.any_host
def test_a_program_that_is_switched_off_runs_on_the_c_library(hugeheap, family):
    for env in ({"HUGEHEAP_DISABLE": "1"}, {"HUGEHEAP_POLICY": "quux"}):
        # `run` sets the policy; what the library does with one it does not know is seen without it.
        library = Path(os.environ.get("HUGEHEAP_BIN", ROOT / "target/release/hugeheap")).parent / "libhugeheap_malloc.so"
        for section in ("sizes", "alignments", "threads"):
            result = subprocess.run(
                [family, section],
                env={"LD_PRELOAD": str(library), **env},
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            assert result.returncode == 0, result.stderr
            told = "HUGEHEAP_POLICY must be one of" in result.stderr
            assert told == ("HUGEHEAP_POLICY" in env)


def summary_of(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stderr.strip().splitlines()[-1])


def test_the_summary_of_a_program_that_is_no_python(hugeheap, family):
    summary = summary_of(on_malloc(hugeheap, family, "sizes", options=("--summary", "--json")))
    (process,) = summary["processes"]
    assert (process["state"], process["level"]) == ("hooked", "malloc")
    text = on_malloc(hugeheap, family, "sizes", options=("--summary",)).stderr
    assert "all that the program allocates comes from hugeheap" in text
    assert "CPython" not in text


@pytest.mark.parametrize("malloc", ["", "malloc", "pymalloc", "debug"])
def test_python_has_objects_and_all_else_from_hugeheap(malloc, hugeheap, python):
    program = "import os; rows = [(n, str(n)) for n in range(200_000)]; os.system('true'); print(len(rows))"
    result = on_malloc(
        hugeheap, python, "-c", program, options=("--summary", "--json"), env={"PYTHONMALLOC": malloc} if malloc else {}
    )
    assert result.stdout == "200000\n"
    summary = summary_of(result)
    levels = {process["level"] for process in summary["processes"]}
    assert levels == {"malloc"}
    assert max(process["live_peak"] for process in summary["processes"]) > 25 << 20


@pytest.fixture(scope="module")
def churning(tmp_path_factory):
    """A library with a function that allocates and frees for a while, for threads that do not hold the interpreter's lock."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, library = (tmp_path_factory.mktemp("churning") / name for name in ("churn.c", "churn.so"))
    source.write_text(
        "#include <stdlib.h>\n"
        "void churn(long steps) {\n"
        "    unsigned state = 1;\n"
        "    char *blocks[256] = {0};\n"
        "    while (steps--) {\n"
        "        state = state * 1103515245u + 12345u;\n"
        "        unsigned place = state >> 16 & 255;\n"
        "        if (blocks[place] && blocks[place][0] != (char)place) abort();\n"
        "        free(blocks[place]);\n"
        "        blocks[place] = malloc((state >> 8) % 500 + 1);\n"
        "        blocks[place][0] = (char)place;\n"
        "    }\n"
        "    for (int place = 0; place < 256; place++) free(blocks[place]);\n"
        "}\n"
    )
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.any_host
@pytest.mark.parametrize("version", testbed.find_interpreters(), ids="{0[0]}.{0[1]}".format)
def test_nobody_visits_a_thread_that_allocates_without_the_interpreters_lock(version, hugeheap, churning):
    """What others freed of a thread's objects is collected for it by whoever has the lock, at level `objects`. Here its heap is in use all the same."""
    program = (
        "import ctypes, sys, threading, time\n"
        "churn = ctypes.CDLL(sys.argv[1]).churn\n"
        "rows, ready = [], threading.Event()\n"
        "def work():\n"
        "    rows.extend([(number, str(number)) for number in range(300_000)])\n"
        "    ready.set()\n"
        "    churn(ctypes.c_long(20_000_000))\n"
        "thread = threading.Thread(target=work); thread.start(); ready.wait()\n"
        "while thread.is_alive():\n"
        "    del rows[-2000:]\n"
        "    time.sleep(0.002)\n"
        "print('done')\n"
    )
    result = on_malloc(hugeheap, testbed.find_interpreters()[version], "-c", program, churning)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


PROGRAMS = {
    "sh": (["sh", "-c", "for n in 1 2 3; do echo $(ls / | head -n $n | wc -l); done"], "1\n2\n3\n"),
    "bash": (["bash", "-c", "x=; for n in {1..3000}; do x+=$n; done; echo ${#x}"], "10893\n"),
    "perl": (["perl", "-e", "my %h; $h{$_ % 5000} .= 'x' x ($_ % 40) for 1..200000; print scalar(keys %h), chr(10)"], "5000\n"),
    "git": (["git", "--version"], None),
    "lua5.4": (["lua5.4", "-e", "local t = {} for i = 1, 200000 do t[i] = {i} end print(#t)"], "200000\n"),
    "sqlite3": (
        [
            "sqlite3",
            ":memory:",
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000) select count(distinct i % 777) from n;",
        ],
        "777\n",
    ),
    "openssl": (["openssl", "rand", "-hex", "8"], None),
    "node": (["node", "-e", "const a = []; for (let i = 0; i < 300000; i++) a.push({ i }); console.log(a.length)"], "300000\n"),
    "tclsh": (["tclsh"], ""),
}


@pytest.mark.any_host
@pytest.mark.parametrize("name", PROGRAMS)
def test_real_programs_run_as_they_do_without_it(name, hugeheap):
    command, expected = PROGRAMS[name]
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here")
    result = on_malloc(hugeheap, *command)
    assert (result.returncode, result.stderr) == (0, "")
    if expected is not None:
        assert result.stdout == expected


@pytest.mark.any_host
def test_a_compiler_and_what_it_makes(hugeheap, tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    (tmp_path / "many.cpp").write_text(
        "#include <iostream>\n#include <map>\n#include <memory>\n#include <string>\n#include <thread>\n#include <vector>\n"
        "int main() {\n"
        "    std::vector<std::thread> threads;\n"
        "    for (int t = 0; t < 4; t++) threads.emplace_back([t] {\n"
        "        std::map<int, std::unique_ptr<std::string>> all;\n"
        "        for (unsigned n = 0; n < 50000; n++) all[n * 7919u % 9973u] = std::make_unique<std::string>(n % 90 + t, 'y');\n"
        "        struct alignas(128) Wide { char bytes[200]; };\n"
        "        std::vector<std::unique_ptr<Wide>> wide;\n"
        "        for (int n = 0; n < 1000; n++) wide.push_back(std::make_unique<Wide>());\n"
        "    });\n"
        "    for (auto &thread : threads) thread.join();\n"
        '    std::cout << "done\\n";\n'
        "}\n"
    )
    command = ["g++", "-std=c++17", "-pthread", "-o", tmp_path / "many", tmp_path / "many.cpp"]
    result = on_malloc(hugeheap, *command)
    assert (result.returncode, result.stderr) == (0, "")
    result = on_malloc(hugeheap, tmp_path / "many")
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


@pytest.mark.any_host
def test_a_program_with_a_malloc_of_its_own_says_so(hugeheap, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    (tmp_path / "own.c").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        "static _Alignas(16) char all[1 << 20]; static size_t next;\n"
        "void *malloc(size_t n) { void *block = all + next; next += (n + 15) / 16 * 16; return next < sizeof all ? block : NULL; }\n"
        "void free(void *block) { (void)block; }\n"
        "void *calloc(size_t n, size_t size) { return malloc(n * size); }\n"
        "void *realloc(void *block, size_t n) { char *now = malloc(n), *was = block; for (size_t i = 0; was && i < n; i++) now[i] = was[i]; return now; }\n"
        'int main(void) { puts("own"); return 0; }\n'
    )
    command = [compiler, "-rdynamic", "-fno-builtin", "-o", tmp_path / "own", tmp_path / "own.c"]
    subprocess.run(command, check=True)
    result = on_malloc(hugeheap, tmp_path / "own", options=("--summary", "--json"))
    assert result.stdout == "own\n"
    assert summary_of(result)["main"]["state"] == "own_malloc"


@pytest.mark.any_host
def test_a_program_that_makes_room_for_arenas_only_later_has_no_malloc_of_its_own(hugeheap, compiled):
    """Its first blocks are the C library's: there is no room for an arena below the limit that it starts with, and raises."""
    program = compiled("raised_limit.c")
    states = []
    for limit in (4, 5, 6):
        result = on_malloc(hugeheap, program, str(limit << 20), options=("--summary", "--json"))
        if result.stdout == "served\n":
            states.append(summary_of(result)["main"]["state"])
    # The dynamic linker may not load the libraries under the lowest of them.
    assert states and set(states) == {"hooked"}


@pytest.mark.any_host
def test_children_are_not_on_hugeheap_when_they_should_not_be(hugeheap):
    command = ["sh", "-c", "echo ${LD_PRELOAD-none}; sh -c 'echo ${LD_PRELOAD-none}'"]
    result = on_malloc(hugeheap, *command)
    assert result.stdout.count("libhugeheap_malloc.so") == 2
    result = on_malloc(hugeheap, *command, options=("--no-children",))
    assert result.stdout == "none\nnone\n"


def test_a_running_process_cannot_change_to_it(hugeheap):
    package = pytest.importorskip("hugeheap", reason="the Python package is not installed")
    with pytest.raises(package.HugeheapError, match="cannot begin in a running process") as refused:
        package.enable(level="malloc")
    assert refused.value.code == "level-at-start"
    assert "hugeheap run --level malloc" in refused.value.hint


# Instructions per pair of `malloc` and `free`, and per `free` of a block that another thread took, the calls
# included; a tenth above what was counted.
COSTS = {
    ("pairs", 48): 65, ("pairs", 1000): 82, ("others", 48): 95, ("others", 1000): 109, ("pairs", 600_000): 272, ("stacks", 1 << 20): 272, ("stacks", 3_000_000): 3870,
}  # fmt: skip


@pytest.mark.any_host
@pytest.mark.parametrize(("what", "size"), COSTS)
def test_a_block_costs_no_more_instructions_than_when_it_was_measured(what, size, family, program, tmp_path):
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind here")
    library = program.with_name("libhugeheap_malloc.so")

    def instructions(size, count):
        output = tmp_path / f"{size}-{count}"
        tool = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={output}"]
        command = [*tool, family, what, str(size), str(count)]
        subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(library)}, check=True, capture_output=True)
        return int(re.search(r"^totals: (\d+)$", (tmp_path / f"{output.name}-01").read_text(), re.MULTILINE).group(1))

    def cost(size):
        return (instructions(size, 11_000) - instructions(size, 1_000)) / 10_000

    counted = cost(size) - cost(0)
    print(f"{what} {size}: {counted:.1f} instructions")
    assert 0 < counted <= COSTS[what, size]


@pytest.mark.any_host
def test_buffers_that_replace_each_other_leave_little_behind(hugeheap, family):
    """A heap kept 8 MiB of them, nearly all of another length than the next one: of 28 MiB that lived 50 were resident. Whether an arena more is, of 2 MiB, depends on when the maintenance thread gets to run."""
    live, resident = map(int, on_malloc(hugeheap, family, "ring", str(512 << 10), "4000").stdout.split())
    _, few = map(int, on_malloc(hugeheap, family, "ring", str(512 << 10), "1").stdout.split())
    assert live < resident - few <= 1.5 * live


@pytest.mark.any_host
def test_only_the_library_that_is_always_preloaded_needs_a_fixed_place_for_its_thread_local_word(program):
    """A library that is opened later may find none, and is refused. This one reaches its heap with ten instructions less for each pair."""
    if shutil.which("readelf") is None:
        pytest.skip("no readelf here: install binutils")

    def flags(library):
        path = program.with_name(library)
        said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        assert "NODELETE" in said
        return "STATIC_TLS" in said

    libraries = ["libhugeheap_malloc.so", "libhugeheap_preload.so", "libhugeheap.so"]
    assert [flags(library) for library in libraries] == [True, False, False]


@pytest.mark.any_host
def test_a_library_that_is_missing_is_named(hugeheap, tmp_path, library):
    alone = tmp_path / library.name
    shutil.copy(library, alone)
    result = on_malloc(hugeheap, "true", env={"HUGEHEAP_PRELOAD_LIBRARY": str(alone)})
    assert result.returncode == 3
    assert f"{tmp_path / 'libhugeheap_malloc.so'} was not found" in result.stderr


@pytest.mark.any_host
def test_the_other_library_says_that_it_has_no_malloc(library, environment, python):
    result = subprocess.run(
        [python, "-c", "print(1)"],
        env={**environment, "LD_PRELOAD": str(library), "HUGEHEAP_LEVEL": "malloc"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.stdout == "1\n"
    assert "level malloc is that of libhugeheap_malloc.so" in result.stderr
