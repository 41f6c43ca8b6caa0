"""The built command and the environment that samples run in."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from samples import ROOT


@pytest.fixture(scope="session")
def command():
    """The built `hugeheap`."""
    named = os.environ.get("HUGEHEAP_BIN")
    places = [pathlib.Path(named)] if named else [ROOT / "target/release/hugeheap"]
    for place in places:
        if place.exists():
            return place.absolute()
    pytest.fail(f"hugeheap is not built (make build); looked at {', '.join(map(str, places))}")


@pytest.fixture(scope="session")
def python():
    """An interpreter that can `import hugeheap`."""
    for place in (ROOT / ".venv/bin/python", shutil.which("python3")):
        if place and subprocess.run([place, "-c", "import hugeheap"], capture_output=True, check=False).returncode == 0:
            return pathlib.Path(place)
    pytest.fail("no interpreter with the Python package (make build)")


@pytest.fixture(scope="session")
def environment(command, tmp_path_factory):
    """Variables of a shell that has hugeheap installed and nothing set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HUGEHEAP_", "PYTEST_"))}
    kept.pop("LD_PRELOAD", None)
    # `python3` is an interpreter then and not a wrapper, whose own processes would be in every summary.
    interpreters = [ROOT / ".venv/bin", pathlib.Path(sys.executable).parent]
    path = [str(command.parent), *(str(place) for place in interpreters if place.is_dir())]
    kept["PATH"] = os.pathsep.join([*path, kept["PATH"]])
    kept["TMPDIR"] = str(tmp_path_factory.mktemp("tmp"))
    kept["NO_COLOR"] = "1"
    kept["LC_ALL"] = "C.UTF-8"
    kept["COLUMNS"] = "100"
    return kept
