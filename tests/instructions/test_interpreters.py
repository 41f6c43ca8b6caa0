"""Instructions of a loop over numbers on level `objects`, beside the same interpreter on its own allocator.

Each step makes two objects and frees them at once: the pair that most programs of CPython consist of. It took 1.26 times as many with 3.12, when each call asked the interpreter
under which lock it ran.
"""

import re
import shutil
import subprocess

import pytest
import testbed

pytestmark = pytest.mark.any_host

INTERPRETERS = testbed.find_interpreters()

LOOP = """
def loop(count):
    for number in range(count):
        number + 1000
loop({})
"""


def instructions(python, count, variables, directory):
    """Those of the interpreter's thread, as in conftest.py, with the same hashes each time."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed (apt-get install valgrind)")
    output = directory / "counts"
    command = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={output}", python, "-S", "-c", LOOP.format(count)]
    subprocess.run(command, capture_output=True, text=True, check=True, env={**variables, "PYTHONHASHSEED": "0"})
    return int(re.search(r"^totals: (\d+)$", output.with_name("counts-01").read_text(), re.MULTILINE).group(1))


@pytest.mark.parametrize("version", INTERPRETERS, ids=lambda version: ".".join(map(str, version)))
def test_an_object_that_is_freed_at_once_costs_no_more_than_on_stock(version, tmp_path):
    python, few, many = INTERPRETERS[version], 5_000, 45_000

    def step(variables):
        return (instructions(python, many, variables, tmp_path) - instructions(python, few, variables, tmp_path)) / (many - few)

    stock, ours = step(testbed.clean()), step(testbed.preloaded(level="objects"))
    print(f"{version}: {ours:.0f} instructions for a step, stock {stock:.0f}")
    assert 50 < ours <= 1.02 * stock, python
