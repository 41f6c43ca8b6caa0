"""`hugeheap bench cgroup` end to end, where a cgroup can be made; the answer where none can."""

import json
import os
import subprocess

import pytest


@pytest.fixture(scope="module")
def can_make_groups(program):
    # One huge page too few: refused after the group was tried, before anything is measured.
    tried = subprocess.run([program, "bench", "cgroup", "--huge-pages", "1000000"], capture_output=True, text=True)
    return "--huge-pages" in tried.stderr


def test_the_limit_falls_until_somebody_is_killed(hugeheap, tmp_path, can_make_groups):
    file = tmp_path / "cgroup.json"
    result = hugeheap(
        "bench", "cgroup", "--quick", "--touch", "none", "--huge-pages", "16",
        "--idle", "0.1", "--step", "0.05", "--json", file, timeout=300,
    )  # fmt: skip
    if not can_make_groups:
        assert result.returncode in (3, 4)
        assert "cgroup" in result.stderr and "root" in result.stderr
        return
    assert result.returncode == 0, result.stderr
    assert "freed: 16 huge pages" in result.stdout and "THP always" in result.stdout
    report = json.loads(file.read_text())
    assert report["schema"] == "hugeheap.bench.cgroup/1"
    limits = report["limits"]
    assert limits == sorted(limits, reverse=True) and limits[0] > 16 * 2 << 20
    assert [shape["name"] for shape in report["shapes"]] == ["freed", "sparse"]
    for shape in report["shapes"]:
        assert list(shape["variants"]) == ["OS pages", "THP always", "hugeheap"]
        for measured in shape["variants"].values():
            assert measured["failure"] is None
            (run,) = measured["runs"]
            survived = [step["limit"] for step in run["survived"]]
            assert survived == limits[: len(survived)]
            assert run["killed_at"] in (None, *limits)
            assert all(step["charge"] <= step["limit"] for step in run["survived"])
        small, huge = shape["variants"]["OS pages"], shape["variants"]["THP always"]
        assert small["runs"][0]["built"] < huge["runs"][0]["built"] or huge["runs"][0]["built"] < 8 << 20


def test_too_few_huge_pages_are_refused(hugeheap):
    result = hugeheap("bench", "cgroup", "--huge-pages", "1")
    assert result.returncode == 2 and "8" in result.stderr


@pytest.fixture
def as_nobody(everybodys, environment):
    """Runs `hugeheap` as a user without permissions."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")

    def become():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    def run(*arguments):
        return subprocess.run(
            [everybodys, *map(str, arguments)],
            env={**environment, "TMPDIR": "/tmp"}, cwd="/", preexec_fn=become,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def test_without_permission_it_is_said_and_the_rest_is_measured(as_nobody):
    result = as_nobody("bench", "cgroup", "--quick", "--touch", "none")
    assert result.returncode in (3, 4), result.stderr
    assert "cgroup" in result.stderr and "root" in result.stderr
    result = as_nobody("bench", "stranded", "--quick", "--touch", "none", "--runs", "1", "--huge-pages", "8")
    assert result.returncode == 0, result.stderr
    assert "The charge of a cgroup cannot be read: " in result.stdout and "given back" in result.stdout
    result = as_nobody("stat", "--runs", "2", "--warmup", "0", "--", "true", ":::", "true")
    assert result.returncode == 0, result.stderr
    assert "peak RSS" in result.stdout and "\ncharge: " in result.stdout
    result = as_nobody("record", "-o", "/dev/null", "--", "sleep", "0.1")
    assert result.returncode == 0 and "no charge is recorded: " in result.stderr
