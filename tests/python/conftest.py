"""The installed package, in every CPython it is made for.

The extension is built once for the stable ABI, so the copy in the virtual environment serves all versions: a folder with
nothing but a link to it is each interpreter's PYTHONPATH. `$HUGEHEAP_PACKAGE` names another copy's folder. Nothing of hugeheap runs in the process of pytest; each test
starts interpreters of its own. A behaviour is one story told by one process, because starts are what costs.
"""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest
import testbed

INTERPRETERS = testbed.find_interpreters()


def pytest_configure(config):
    config.addinivalue_line("markers", "every_version: runs in every installed CPython, without it only in one")


def pytest_generate_tests(metafunc):
    if "version" not in metafunc.fixturenames:
        return
    chosen = list(INTERPRETERS)
    if not metafunc.definition.get_closest_marker("every_version"):
        chosen = [(3, 11)] if (3, 11) in INTERPRETERS else chosen[:1]
    metafunc.parametrize("version", chosen, ids=[f"{major}.{minor}" for major, minor in chosen], scope="session")


@pytest.fixture
def interpreter(version):
    """The path of the interpreter under test."""
    return INTERPRETERS[version]


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """A folder with nothing but the package as it was installed."""
    folder = tmp_path_factory.mktemp("package")
    if named := os.environ.get("HUGEHEAP_PACKAGE"):
        (folder / "hugeheap").symlink_to(Path(named).resolve(strict=True))
        return folder
    python = testbed.ROOT / ".venv" / "bin" / "python"
    question = "import importlib.util; print(*importlib.util.find_spec('hugeheap').submodule_search_locations)"
    if not python.exists():
        pytest.fail("the Python package is not installed (make build)")
    answer = subprocess.run(
        [python, "-c", question], capture_output=True, text=True, check=False, cwd="/", env=testbed.clean()
    )
    if answer.returncode != 0:
        pytest.fail(f"the Python package is not installed (make build): {answer.stderr.strip()}")
    (folder / "hugeheap").symlink_to(answer.stdout.strip())
    return folder


@pytest.fixture
def variables(package):
    """The environment of a shell that has the package and nothing set."""

    def variables(**more):
        return testbed.clean(**{"PYTHONPATH": str(package), **more})

    return variables


@pytest.fixture
def start(interpreter, variables):
    """Runs code and returns the completed process, whatever came of it."""

    def start(code, *arguments, options=(), wrapper=(), **more):
        command = [*wrapper, interpreter, *options, "-c", textwrap.dedent(code), *arguments]
        return testbed.run(command, env=variables(**more))

    return start


@pytest.fixture
def ask(start):
    """Runs code that must succeed and say nothing on stderr; its last line of output, as JSON."""

    def ask(code, *arguments, **more):
        result = start(code, *arguments, **more)
        assert (result.returncode, result.stderr) == (0, ""), f"status {result.returncode}:\n{result.stderr[-3000:]}"
        return json.loads(result.stdout.splitlines()[-1])

    return ask


# Fills memory until it is refused, lets go, and fills half of it again.
FILL = """
import hugeheap, json
if {enable}: hugeheap.enable()
def fill(most):
    held = []
    try:
        while len(held) < most:
            held.append({make})
    except MemoryError:
        pass
    return len(held)
first = fill(10**9)
assert first > 20, first
for _ in range(3):
    assert fill(first // 2) == first // 2, "what was freed cannot be used again"
print(json.dumps({{**vars(hugeheap.stats()), "level": hugeheap.status().level}}))
"""


@pytest.fixture
def fill_and_fill_again(ask):
    """Reaches a limit of the shell's, several times; the heap's numbers afterwards, and its level. The heap had most of the memory."""

    def fill_and_fill_again(limit, make, enable=False, **more):
        wrapper = ["bash", "-c", f'{limit}; exec "$@"', "bash"]
        stats = ask(FILL.format(make=make, enable=enable), wrapper=wrapper, **more)
        assert stats["live_peak"] > 100 << 20, f"{make}: most of the memory did not come from the heap"
        assert stats["live"] < stats["live_peak"] / 2, (make, limit)
        return stats

    return fill_and_fill_again


@pytest.fixture
def objects():
    """Variables that preload the library at level `objects`, as `hugeheap run --level objects` sets them."""
    return {"LD_PRELOAD": str(testbed.find_library()), "HUGEHEAP_LEVEL": "objects"}
