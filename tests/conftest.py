"""What all groups of tests share: modules of helpers, and who may run beside whom.

Several processes of pytest share this host, two of `make test` and whatever else somebody started. A test is one of three kinds:

    marked any_host        reads and changes no knob of the host       beside every other
    without a mark         relies on the knobs as they are             beside all but the next
    takes `testbed.knob`   changes a knob, and puts it back            beside those of any_host only

What a test needs for that is taken here, and by `testbed.knob` itself; a fixture of more than one test takes its own.
"""

import contextlib
import sys
from pathlib import Path

import pytest

# What the folders' tests share can be imported, whatever pytest's import mode.
sys.path[:0] = [str(Path(__file__).resolve().parent / folder) for folder in ("interpreters", "cli", "docs")]

import testbed  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "any_host: reads and changes no knob of the host")


@pytest.fixture(autouse=True)
def knobs_stay(request):
    """As long as a test runs, no other changes a knob of the host, unless it does not mind."""
    with contextlib.nullcontext() if request.node.get_closest_marker("any_host") else testbed.host_lock(shared=True):
        yield
