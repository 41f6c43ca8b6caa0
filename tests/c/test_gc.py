"""The garbage-collected heap in C: every function, under every check; mistakes and their lines; instructions per object."""

import json
import re
import signal
import subprocess

import pytest

from .conftest import HERE, ROOT, STRICT, needs, run
from .test_cost import instructions

SOURCES = [HERE / f"gc_{concept}.c" for concept in ("roots", "allocation", "types", "told")]
# Name of the section and its program.
SECTIONS = {name: source for source in SOURCES for name in re.findall(r"^static void test_(\w+)\(", source.read_text(), re.M)}
# Verify, barriers, poison and moving; rotate as well; and a collection every so many allocations.
MODES = {"plain": {}, "checks": {"CHECKS": "15"}, "rotate": {"CHECKS": "31"}, "stress": {"CHECKS": "15", "STRESS": "50"}}


def test_the_sections_are_known():
    listed = [name for source in SOURCES for name in re.findall(r"SECTION\((\w+)\)", source.read_text())]
    assert listed == [*SECTIONS] and len(SECTIONS) == 18


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("section", SECTIONS)
def test_functions(section, mode, compiled, clean):
    if section == "statistics" and mode == "rotate" or mode == "stress" and section in ("statistics", "evacuation"):
        pytest.skip("the section is about when collections happen by themselves")
    run(compiled(SECTIONS[section]), section, clean, **MODES[mode])


@pytest.mark.parametrize("section", SECTIONS)
def test_functions_under_sanitizers_with_the_archive(section, compiled, clean):
    if section == "protection":
        pytest.skip("the sanitizer's own handler comes before the heap's")
    program = compiled(SECTIONS[section], "-fsanitize=address,undefined", "-fno-sanitize-recover=all", static=True)
    run(program, section, clean, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS="halt_on_error=1")


def test_the_numbers_as_json_are_those_of_the_struct(compiled, clean):
    said = json.loads(run(compiled(SECTIONS["statistics"]), "statistics", clean))
    header = (ROOT / "include/hugeheap_gc.h").read_text()
    body = header[header.index("typedef struct hh_gc_stats_t {") : header.index("} hh_gc_stats_t;")]
    members = re.findall(r"^    uint\d+_t (\w+)(?:\[\w+\])?;", body, re.M)
    assert [*said] == [name for name in members if name != "size"]
    assert said["schema"] == "hugeheap.gc-stats/1" and said["phase"] == "idle" and len(said["pause_histogram"]) == 36


def test_the_constants_are_those_of_the_library():
    header = (ROOT / "include/hugeheap_gc.h").read_text()
    library = (ROOT / "crates/hugeheap-capi/src/gc/mod.rs").read_text()
    for name, value in (("VERIFY", 1), ("BARRIERS", 2), ("POISON", 4), ("MOVING", 8), ("ROTATE", 16)):
        assert f"HH_GC_{name} = {value}" in header and f"const {name}: u32 = {value};" in library
    for name, value in (("ALIGN", "((size_t)16)"), ("HEADER_BYTES", "((size_t)8)"), ("LENGTH_OFFSET", "8"), ("MAX_YOUNG", "((size_t)8192)"),
                        ("TYPE_SHIFT", "32"), ("BARRIER_FLAGS", "UINT64_C(6)"), ("CURSOR_OFFSET", "0"), ("LIMIT_OFFSET", "8"), ("FRAMES_OFFSET", "16")):  # fmt: skip
        assert re.search(rf"^#define HH_GC_{name} {re.escape(value)}$", header, re.M), name
    for text in ("OBJECT_ALIGN == 16", "HEADER_BYTES == 8", "LENGTH_OFFSET == 8", "MAX_YOUNG == 8192", "TYPE_SHIFT == 32", "BARRIER == 6",
                 "CURSOR_OFFSET == 0", "LIMIT_OFFSET == 8", "offset_of!(Handle, frames) == 16"):  # fmt: skip
        assert text in library, text


@pytest.mark.parametrize("compiler", ["gcc", "clang", "clang-14"])
def test_other_compilers_build_programs_without_a_warning(compiler, flags, clean, tmp_path):
    needs(compiler)
    program = tmp_path / "program"
    for source in SOURCES:
        command = [compiler, "-std=c11", *STRICT, "-Wshadow", source, "-o", program, "-D_GNU_SOURCE"]
        made = subprocess.run([*command, *flags("hugeheap")], capture_output=True, text=True, check=False)
        assert made.returncode == 0 and made.stderr == "", made.stderr
        section = next(name for name, its in SECTIONS.items() if its == source)
        run(program, section, clean)


CPP = """
#include <hugeheap_gc.h>
#include <cstdio>
struct pair { hh_gc_header header; pair *next; std::size_t number; };
int main() {
    hh_gc_options options = HH_GC_OPTIONS_INIT;
    const std::size_t slot = offsetof(pair, next);
    hh_gc_layout layout{};
    layout.size = sizeof layout, layout.bytes = sizeof(pair), layout.slots = &slot, layout.slot_count = 1;
    hh_gc *heap; hh_gc_type type;
    if (hh_gc_new(&options, &heap) != HH_OK || hh_gc_register(heap, &layout, &type) != HH_OK) return 1;
    try {
        pair *list = nullptr;
        HH_GC_ROOTS(heap, list);
        for (std::size_t number = 0; number < 100000; number++) {
            pair *next = static_cast<pair *>(hh_gc_alloc(heap, type, sizeof(pair)));
            if (next == nullptr) return 1;
            next->number = number; next->next = nullptr;
            HH_GC_SET(heap, next, next, list);
            list = next;
        }
        hh_gc_collect(heap);
        if (list->number != 99999) return 1;
        throw 1;
    } catch (int) {
        if (heap->frames != nullptr) return 1;
    }
    hh_gc_drop(heap);
    std::puts("done");
}
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++", "clang++-14"])
def test_a_cpp_program_uses_it_and_an_exception_pops_frames(compiler, flags, clean, tmp_path):
    needs(compiler)
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(CPP)
    command = [compiler, "-std=c++17", *STRICT, "-Wno-invalid-offsetof", source, "-o", program]
    made = subprocess.run([*command, *flags("hugeheap")], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert subprocess.run([program], env=clean, capture_output=True, text=True, timeout=60, check=True).stdout == "done\n"


MISTAKES = HERE / "gc_mistakes.c"
LINES = {
    "no_barrier": r"the slot at offset 8 of the object at 0x\w+ \(type 1\) was written without the barrier",
    "no_root": r"the object at 0x\w+ has the header of no type \(\d+\): it was overwritten, or is none",
    "never_written": r"after a minor collection: the slot at offset 8 of the object at 0x\w+ holds 0xdeadbeefdeadbee2, .*: it was never written, .*",
    "wild_root": r"after a minor collection: a root holds 0x10000, which is no live object",
    "overwritten": r"the object at 0x\w+ .*it was overwritten.*",
    "grown": r"the object at 0x\w+ \(type 2\) has a length of 1000000, .*: it was overwritten, or never written",
    "grown_beyond": r"the object at 0x\w+ \(type 2\) has a length of 2305843009213693953, .*: it was overwritten, or never written",
    "grown_old": r"the object at 0x\w+ \(type 2\) has a length of 1000000, for which its 96 bytes are too few: it was overwritten",
    "grown_marked": r"the object at 0x\w+ \(type 2\) has a length of 1000000, for which its 96 bytes are too few: it was overwritten",
    "grown_written": r"the object at 0x\w+ \(type 2\) has a length of 1000000, for which its 96 bytes are too few: it was overwritten",
    "grown_old_beyond": r"the object at 0x\w+ \(type 2\) has a length of 2305843009213693953, for which its 96 bytes are too few: it was overwritten",
    "grown_large": r"the object at 0x\w+ \(type 2\) has a length of 1000000000, for which its 802816 bytes are too few: it was overwritten",
    "wrong_size": r"an object of type 1 is allocated with 64 bytes, but has 32: the sizes are those of the layout",
    "no_size": r"an object of type 1 is allocated with 0 bytes, .* but has 32: the sizes are those of the layout",
    "wrapped_size": r"an object of type 1 is allocated with 0 bytes, .* but has 32: the sizes are those of the layout",
    "wrong_type": r"type 2 is not registered with this heap",
    "released": r"the handle 0x\w+ is none of this heap: .*",
    "released_twice": r"the handle 0x\w+ is none of this heap: .*",
    "of_another_heap": r"the handle 0x\w+ is none of this heap: .*",
    "open_collect": r"hh_gc_collect while the window is open: hh_gc_close comes first",
    "open_alloc": r"an object is allocated while the window is open: .*",
    "not_open": r"an object is allocated in a window that is not open: .*",
    "not_finalized": r"type 2 has a finalizer: .*",
    "opened_twice": r"hh_gc_open while the window is open: .*",
    "closed_twice": r"hh_gc_close with a window that is not open: .*",
    "no_finalizer": r"hh_gc_alloc_finalized of type 1, which has no finalizer: .*",
    "length_without_items": r"an object of type 1 is allocated with a length of 5, but the type has no items: its length is 0",
    "root_collects": r"hh_gc_collect inside of a collection or a verification: .*",
    "root_allocates": r"an object is allocated inside of a collection or a verification: .*",
    "root_in_verify": r"an object is allocated inside of a collection or a verification: .*",
    "trace_adds": r"hh_gc_add_roots inside of a collection or a verification: .*",
    "root_finalizes": r"hh_gc_finalize inside of a collection or a verification: .*",
    "root_takes": r"hh_gc_next_finalizable inside of a collection or a verification: .*",
    "root_hashes": r"hh_gc_hash inside of a collection or a verification: .*",
    "hook_protects": r"hh_gc_protect inside of a collection or a verification: .*",
    "hook_unprotects": r"hh_gc_unprotect inside of a collection or a verification: .*",
    "trace_in_barriers": r"hh_gc_add_roots inside of a collection or a verification: .*",
}


def test_the_mistakes_are_known(compiled):
    listed = subprocess.run([compiled(MISTAKES)], capture_output=True, text=True, check=True).stdout.split()
    assert listed == list(LINES)


@pytest.mark.parametrize("kind", LINES)
def test_a_mistake_ends_the_process_with_one_line(kind, compiled, clean, tmp_path):
    ran = subprocess.run([compiled(MISTAKES), kind], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (-signal.SIGABRT, ""), ran
    assert re.fullmatch(rf"hugeheap: {LINES[kind]}\n", ran.stderr), ran.stderr


# Instructions per object of 16 bytes, loop and collections included: promises as in tests/instructions/test_gc.py.
BOUNDS = {"plain": 9, "field": 11, "handle": 13}


@pytest.mark.parametrize("kind", BOUNDS)
def test_an_object_costs_no_more_instructions_than_promised(kind, compiled, clean, tmp_path):
    needs("valgrind")
    program = compiled(HERE / "gc_window.c")
    few, many = 500_000, 2_500_000
    cost = (instructions(program, kind, many, clean, tmp_path) - instructions(program, kind, few, clean, tmp_path)) / (many - few)
    print(f"{kind}: {cost:.2f} instructions per object")
    # Less than a test, an addition and a write cannot be. A collection per 262,144 objects is 0.003 of it.
    assert 3 <= round(cost, 1) <= BOUNDS[kind]


def test_the_example_is_short_and_right(compiled, clean):
    source = ROOT / "examples/hello-gc.c"
    assert len(source.read_text().splitlines()) <= 60
    ran = subprocess.run([compiled(source)], env=clean, capture_output=True, text=True, timeout=60, check=True)
    line = r"sum 500500; (\d+) bytes alive; (\d+) minor collections moved (\d+) objects, longest pause \d+ us\n"
    found = re.fullmatch(line, ran.stdout)
    assert found, ran.stdout
    # A thousand nodes of 32 bytes, and what a minor collection kept that died since is gone.
    assert int(found[1]) == 32_000 and int(found[2]) >= 1 and int(found[3]) >= 1000
