"""Every function, with what it accepts and what it refuses; with the shared library and the archive, under sanitizers."""

import re
import subprocess

import pytest

from .conftest import HERE, ROOT, run

# Each section with the program that it belongs to.
SOURCES = [HERE / f"{name}.c" for name in ("blocks", "heaps", "threads", "process")]
SECTIONS = {name: source for source in SOURCES for name in re.findall(r'\{"(\w+)", test_\w+\}', source.read_text())}
SANITIZERS = {"address": ["-fsanitize=address"], "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=all"]}


def test_the_sections_are_known():
    functions = [name for source in SOURCES for name in re.findall(r"^static void test_(\w+)\(", source.read_text(), re.M)]
    assert list(SECTIONS) == functions and len(functions) == 15


@pytest.mark.parametrize("static", [False, True], ids=["shared", "archive"])
@pytest.mark.parametrize("section", SECTIONS)
def test_functions(section, static, compiled, clean):
    run(compiled(SECTIONS[section], static=static), section, clean)


@pytest.mark.parametrize("section", SECTIONS)
def test_functions_mixed_with_those_that_are_inlined(section, compiled, clean):
    run(compiled(SECTIONS[section], "-DINLINE"), section, clean)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("section", SECTIONS)
def test_functions_under_a_sanitizer(section, sanitizer, compiled, clean):
    if section in ("exhausted", "limited") and sanitizer == "address":
        pytest.skip("the sanitizer itself needs more address space than the section allows")
    if section == "refused" and sanitizer == "address":
        pytest.skip("the sanitizer itself needs a thread to look for leaks")
    program = compiled(SECTIONS[section], "-DINLINE", *SANITIZERS[sanitizer])
    run(program, section, clean, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS="halt_on_error=1")


@pytest.mark.parametrize("policy", ["auto", "thp", "dense", "hugetlb", "base"])
def test_anything_in_any_order_at_each_policy(policy, compiled, clean):
    run(compiled(SECTIONS["random"]), "random", clean, HUGEHEAP_POLICY=policy)


@pytest.mark.parametrize("level", ["1", "2", "3"])
def test_bytes_beyond_the_size_belong_to_the_block_once_they_are_asked_for(level, compiled, clean, tmp_path):
    """As c.md says. The compiler took them for another's: a program that wrote them ended with "buffer overflow detected"."""
    text = (ROOT / "docs/reference/c.md").read_text()
    sample = re.search(r"```c\n(.*?hh_usable_size.*?)```", text, re.S).group(1)
    source = tmp_path / "sample.c"
    source.write_text(sample)
    program = compiled(source, "-U_FORTIFY_SOURCE", f"-D_FORTIFY_SOURCE={level}")
    subprocess.run([program], env=clean, check=True, timeout=60)


def test_the_short_example_is_short_and_right(compiled, clean):
    source = ROOT / "examples/list.c"
    assert len(source.read_text().splitlines()) <= 40
    ran = subprocess.run([compiled(source)], env=clean, capture_output=True, text=True, timeout=60, check=True)
    found = re.fullmatch(r"sum 500000500000; (\d+) arenas at the peak; (\d+) MiB given back\n", ran.stdout)
    assert found, ran.stdout
    # A million nodes of 16 bytes.
    assert 8 <= int(found[1]) <= 12 and int(found[2]) >= 12
