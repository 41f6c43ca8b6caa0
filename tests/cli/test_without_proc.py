"""A sandbox without /proc: what works there works, and what does not says why."""

import subprocess
import sys

import pytest
import testbed


@pytest.fixture
def without_proc(program, environment):
    testbed.need_root()

    def run(*arguments):
        result = subprocess.run(
            ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh", program, *arguments],
            env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        if "unshare" in result.stderr or "mount:" in result.stderr:
            pytest.skip(f"no mount namespace here: {result.stderr.strip()}")
        return result

    return run


def test_a_program_runs(without_proc):
    """The library lies beside the command, and was looked for nowhere."""
    result = without_proc("run", "--level", "objects", "--", sys.executable, "-c", "print(len([(n,) for n in range(10**5)]))")
    assert (result.returncode, result.stdout) == (0, "100000\n"), result.stderr


def test_that_no_process_can_be_seen_is_not_that_there_is_none(without_proc):
    result = without_proc("map", "1")
    assert result.returncode == 3
    assert "/proc is not mounted" in result.stderr and "no process 1" not in result.stderr


def test_a_command_is_not_said_to_have_ended_too_soon_to_be_recorded(without_proc, tmp_path):
    result = without_proc("record", "-o", tmp_path / "a.tsv", "--", "sleep", "0.3")
    assert result.returncode == 0
    assert "nothing was recorded: /proc is not mounted here" in result.stderr and "before it could" not in result.stderr
