"""The header: strict compilers accept it, alone and in any language it names; it says what the library says."""

import ctypes
import re
import subprocess

import pytest

from .conftest import HERE, ROOT, STRICT, needs

HEADER = ROOT / "include/hugeheap.h"
HEADERS = [HEADER, ROOT / "include/hugeheap_inline.h", ROOT / "include/hugeheap_gc.h"]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.name)
@pytest.mark.parametrize(
    ("compiler", "language", "standard"),
    [
        ("gcc", "c", "c11"),
        ("gcc", "c", "c17"),
        ("g++", "c++", "c++17"),
        ("g++", "c++", "c++20"),
        ("clang", "c", "c11"),
        ("clang++", "c++", "c++17"),
    ],
)
def test_it_is_accepted_alone_without_a_warning(compiler, language, standard, header, tmp_path):
    needs(compiler)
    # All of its macros as well; each struct is filled as its macro says.
    source = tmp_path / "sample"
    source.write_text(
        f"#include <{header.name}>\n#include <{header.name}>\n"
        "hh_options options = HH_OPTIONS_INIT;\nhh_heap_options heap_options = HH_HEAP_OPTIONS_INIT;\n"
        "uint64_t limit = HH_NO_LIMIT;\nsize_t alignment = HH_MAX_ALIGNMENT;\nconst char version[] = HH_VERSION;\n"
    )
    command = [compiler, "-x", language, f"-std={standard}", *STRICT, "-Wconversion", "-Wsign-conversion", "-Wshadow", "-I", HEADER.parent]
    made = subprocess.run([*command, "-fsyntax-only", source], capture_output=True, text=True, check=False)
    assert made.returncode == 0 and made.stderr == "", made.stderr


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_its_functions_are_accepted_by_those_who_forbid_casts_as_in_c(compiler, tmp_path):
    needs(compiler)
    source = tmp_path / "sample.cpp"
    # What a program says itself is warned of as before.
    source.write_text("".join(f"#include <{header.name}>\n" for header in HEADERS) + "int number = int(1.0);\n")
    command = [compiler, "-std=c++17", *STRICT, "-Wold-style-cast", "-I", HEADER.parent, "-fsyntax-only", source]
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0
    source.write_text(source.read_text() + "int another = (int)1.0;\n")
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode != 0


@pytest.mark.parametrize("standard", ["c++11", "c++14", "c++17", "c++20", "c++23"])
def test_it_has_no_cast_to_the_type_that_is_there(standard, tmp_path):
    """clang has no such warning."""
    needs("g++")
    source = tmp_path / "sample.cpp"
    source.write_text("".join(f"#include <{header.name}>\n" for header in HEADERS))
    command = ["g++", f"-std={standard}", *STRICT, "-Wuseless-cast", "-I", HEADER.parent, "-fsyntax-only", source]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0 and made.stderr == "", made.stderr


def test_a_cpp_program_uses_it(tmp_path, flags, clean):
    needs("g++")
    program = tmp_path / "program"
    command = ["g++", "-std=c++17", *STRICT, HERE / "vector.cpp", "-o", program]
    made = subprocess.run([*command, *flags("hugeheap")], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    subprocess.run([program], env=clean, check=True, timeout=60)


def test_it_declares_what_the_library_exports(built):
    declared = set()
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        declared |= set(re.findall(r"^[\w *]*\b(hh_\w+)\([^;{]*\) HH_NOEXCEPT", text, re.M))
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", built / "libhugeheap.so"], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[2].split("@")[0] for line in listed.splitlines()}
    assert declared == exported


def test_it_has_the_version_of_the_library(built):
    named = re.search(r'#define HH_VERSION "(.*)"', HEADER.read_text()).group(1)
    library = ctypes.CDLL(str(built / "libhugeheap.so"))
    library.hh_version.restype = ctypes.c_char_p
    assert library.hh_version().decode() == named


# The widths of the members that are no single number.
WIDTHS = {"u32": "uint32_t", "u64": "uint64_t", "[u8; 32]": "char[32]", "[u64; Fallback::ROOM]": "uint64_t[24]", "[u64; PAUSE_LENGTHS]": "uint64_t[24]"}


def test_its_numbers_are_those_of_the_record():
    source = (ROOT / "crates/hugeheap/src/telemetry/snapshot.rs").read_text()
    body = source[source.index("pub struct Snapshot {") :]
    fields = re.findall(r"pub (\w+): ([^,\n]+),", body[: body.index("\n}\n")])
    header = HEADER.read_text()
    body = header[header.index("typedef struct hh_stats_t {") : header.index("} hh_stats_t;")]
    members = re.findall(r"^    (\w+) (\w+)(\[\d+\])?;", body, re.M)
    assert [(name, kind + width) for kind, name, width in members] == [(name, WIDTHS[kind]) for name, kind in fields]


def test_its_statuses_are_those_of_the_library():
    source = (ROOT / "crates/hugeheap-capi/src/status.rs").read_text()
    library = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): number for name, number in re.findall(r"^    (\w+) = (\d+),", source, re.M)}
    header = {name: number for name, number in re.findall(r"HH_(\w+) = (\d+)", HEADER.read_text())}
    assert header == library and len(header) == 23
