"""A process whose allocator answers NULL goes on: what needs memory says so, and works when there is some again.

Each section of the program is run once for every request that it makes of malloc and its like (or of the system), with that one or all from it on refused.
"""

import re
import subprocess

import pytest

from .conftest import HERE, TIMEOUT

SOURCE = HERE / "exhausted.c"
SECTIONS = re.findall(r"^static void test_(\w+)\(", SOURCE.read_text(), re.M)
# What a section asks for at least: fewer, and it does not meet what it was written for. Of `blocks` only the C
# library asks, for a thread.
LEAST = {"roots": 100, "scans": 200, "evacuation": 100, "moving": 100, "logs": 20, "blocks": 1}
WRAPPED = ["-DWRAPPED", *(f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "posix_memalign"))]


def requests(program, section, refused, environment):
    """How often the section asked for memory; it was content with each refusal, and said nothing."""
    words = [program, section, refused]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return int(ran.stdout)


def test_the_sections_are_known():
    listed = re.findall(r"SECTION\((\w+)\)", SOURCE.read_text())
    assert sorted(listed) == sorted(SECTIONS) == sorted(LEAST)


@pytest.mark.parametrize("refused", ["all", "one", "pages"])
@pytest.mark.parametrize("section", SECTIONS)
def test_no_refusal_ends_the_process(section, refused, compiled, clean):
    assert requests(compiled(SOURCE), section, refused, clean) >= LEAST[section]


@pytest.mark.parametrize("section", SECTIONS)
def test_no_refusal_ends_the_process_under_sanitizers_with_the_archive(section, compiled, clean):
    program = compiled(SOURCE, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *WRAPPED, static=True)
    # The archive itself asks for nothing in `blocks`. What a child leaves when it ends is no leak.
    environment = {**clean, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    made = requests(program, section, "one", environment)
    assert made == 0 if section == "blocks" else made >= LEAST[section]
