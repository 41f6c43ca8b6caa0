"""Every function, with what it accepts and what it refuses; with the shared library and the archive, under sanitizers."""

import json
import re
import subprocess

import pytest

from .conftest import HERE, ROOT, needs

SOURCE = HERE / "interface.c"
SECTIONS = re.findall(r'\{"(\w+)", test_\w+\}', SOURCE.read_text())
SANITIZERS = {"address": ["-fsanitize=address"], "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=all"]}
TIMEOUT = 300


def run(program, section, clean, **variables):
    ran = subprocess.run(
        [program, section], env={**clean, **variables}, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


def test_the_sections_are_known():
    assert len(SECTIONS) == 11 and len(set(SECTIONS)) == 11


@pytest.mark.parametrize("static", [False, True], ids=["shared", "archive"])
@pytest.mark.parametrize("section", SECTIONS)
def test_functions(section, static, compiled, clean):
    run(compiled(SOURCE, static=static), section, clean)


@pytest.mark.parametrize("section", SECTIONS)
def test_functions_mixed_with_those_that_are_inlined(section, compiled, clean):
    run(compiled(SOURCE, "-DINLINE"), section, clean)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("section", SECTIONS)
def test_functions_under_a_sanitizer(section, sanitizer, compiled, clean):
    if section == "exhausted" and sanitizer == "address":
        pytest.skip("the sanitizer itself needs more address space than the section allows")
    program = compiled(SOURCE, "-DINLINE", *SANITIZERS[sanitizer])
    run(program, section, clean, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS="halt_on_error=1")


@pytest.mark.parametrize("policy", ["auto", "thp", "dense", "hugetlb", "base"])
def test_anything_in_any_order_at_each_policy(policy, compiled, clean):
    run(compiled(SOURCE), "random", clean, HUGEHEAP_POLICY=policy)


def test_the_json_says_what_the_struct_does(compiled, clean):
    said = json.loads(run(compiled(SOURCE), "json", clean, HUGEHEAP_POLICY="thp"))
    assert said["schema"] == "hugeheap.stats/1"
    assert said["policy"] == "thp"
    header = (ROOT / "include/hugeheap.h").read_text()
    body = header[header.index("typedef struct hh_stats_t {") : header.index("} hh_stats_t;")]
    members = re.findall(r"^    uint64_t (\w+);", body, re.M)
    assert [name for name in said if name in members] == members
    reasons = {entry["reason"]: entry for entry in said["fallbacks"]}
    assert reasons["address_space"]["count"] == 1 and reasons["address_space"]["hint"]


def test_no_memory_error_under_valgrind(compiled, clean):
    """What the library does with memory that is not its own: buffers, structs, errno."""
    needs("valgrind")
    for section in ("json", "process"):
        command = ["valgrind", "--quiet", "--error-exitcode=9", compiled(SOURCE), section]
        ran = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert ran.returncode == 0, ran.stderr


def test_the_short_example_is_short_and_right(compiled, clean):
    source = ROOT / "examples/list.c"
    assert len(source.read_text().splitlines()) <= 40
    ran = subprocess.run([compiled(source)], env=clean, capture_output=True, text=True, timeout=60, check=True)
    found = re.fullmatch(r"sum 500000500000; (\d+) arenas at the peak; (\d+) MiB given back\n", ran.stdout)
    assert found, ran.stdout
    # A million nodes of 16 bytes.
    assert 8 <= int(found[1]) <= 12 and int(found[2]) >= 12
