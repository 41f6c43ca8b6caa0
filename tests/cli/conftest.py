"""Fixtures of the command line's end-to-end tests: the built program, and programs to run with it.

The program is `$HUGEHEAP_BIN`, or `target/release/hugeheap`; its preload library lies beside it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Generous: the machines that run tests are busy.
TIMEOUT = 180


def find_program():
    named = os.environ.get("HUGEHEAP_BIN")
    program = Path(named) if named else ROOT / "target" / "release" / "hugeheap"
    if not program.is_file():
        pytest.exit(f"{program} is not built: cargo build --release, or set HUGEHEAP_BIN", returncode=4)
    return program.resolve()


@pytest.fixture(scope="session")
def program():
    """The path of the command `hugeheap`."""
    return find_program()


@pytest.fixture(scope="session")
def everybodys(program):
    """The command and its libraries where every user may start it. Below a home folder, as /root, only its owner can."""
    with tempfile.TemporaryDirectory() as place:
        for file in (program, *program.parent.glob("libhugeheap_*.so")):
            shutil.copy(file, place)
        os.chmod(place, 0o755)
        yield Path(place) / program.name


@pytest.fixture(scope="session")
def library(program):
    """The preload library beside it."""
    return beside(program, "libhugeheap_preload.so", "hugeheap-preload")


@pytest.fixture(scope="session")
def c_library(program):
    """The C library beside it."""
    return beside(program, "libhugeheap.so", "hugeheap-capi")


def beside(program, name, package):
    path = program.parent / name
    if not path.is_file():
        pytest.fail(f"{path} is not built: cargo build --release -p {package}")
    return path


@pytest.fixture(scope="session")
def python():
    """A CPython that is a program, not a wrapper."""
    return sys.executable


@pytest.fixture
def environment(tmp_path):
    """An environment without settings of the tester's, and with a temporary directory of the test's own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HUGEHEAP_", "PYTHON", "LD_PRELOAD", "MIMALLOC_", "MALLOC_"))
    }
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return {**kept, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def hugeheap(request, program, library, environment):
    """Runs `hugeheap` with arguments and returns the completed process."""

    def run(*arguments, env=(), **options):
        command = request.getfixturevalue("everybodys") if "user" in options else program
        return subprocess.run(
            [command, *map(str, arguments)],
            env={**environment, **dict(env)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=options.pop("timeout", TIMEOUT),
            **options,
        )

    return run


@pytest.fixture
def start(program, library, environment):
    """Starts `hugeheap` and returns the running process; killed at the end of the test."""
    started = []

    def popen(*arguments, env=(), **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        process = subprocess.Popen(
            [program, *map(str, arguments)], env={**environment, **dict(env)}, **options
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Compiles a small C program with the given options; skips where that is not possible."""
    compiler = shutil.which("cc") or shutil.which("gcc")

    def build(name, *options, source="int main(void) { return 5; }\n"):
        if compiler is None:
            pytest.skip("no C compiler here")
        directory = tmp_path_factory.mktemp("compiled")
        (directory / f"{name}.c").write_text(source)
        target = directory / name
        result = subprocess.run(
            [compiler, *options, "-o", target, directory / f"{name}.c"], capture_output=True, text=True
        )
        if result.returncode:
            pytest.skip(f"cannot compile with {options}: {result.stderr.strip().splitlines()[-1]}")
        return target

    return build
