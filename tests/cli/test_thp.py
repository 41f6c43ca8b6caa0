"""`hugeheap thp`: the knobs of this host and of a directory that plays one, set together or not at all, and put back."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import testbed
from fakehost import THP, Host, no_room_for_more

FILE = "etc/tmpfiles.d/hugeheap-thp.conf"


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "host")


@pytest.fixture
def thp(hugeheap, host):
    return lambda *arguments, **options: hugeheap("--root", host.root, "thp", *arguments, **options)


def undo(program, result):
    """Runs the undo line that a command printed."""
    line = result.stdout.splitlines()[-1].removeprefix("undo: ")
    assert line != result.stdout.splitlines()[-1], result.stdout
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", line], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- get ---


def test_all_knobs_are_shown_with_their_meaning(thp):
    result = thp("get")
    assert result.returncode == 0 and result.stderr == ""
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "madvise" in lines["mode"] and "MADV_HUGEPAGE" in lines["mode"]
    assert "inherit" in lines["size.2M"] and "as mode: memory that asks" in lines["size.2M"]
    assert lines["khugepaged.max_ptes_none"].split()[1] == "64"
    assert "shrink_underused" not in lines, "this host has no such knob"


def test_named_knobs_are_values_only(thp):
    assert thp("get", "mode", "khugepaged.max-ptes-none").stdout == "madvise\n64\n"


def test_json_has_numbers_and_choices(thp):
    document = json.loads(thp("get", "--json").stdout)
    assert document["schema"] == "hugeheap.thp/1"
    knobs = {knob["name"]: knob for knob in document["knobs"]}
    assert knobs["mode"]["choices"] == ["always", "madvise", "never"]
    assert knobs["khugepaged.max_ptes_none"]["value"] == 64
    assert json.loads(thp("get", "mode", "--json").stdout)["knobs"] == [knobs["mode"]]


def test_a_size_without_a_switch_is_no_knob(thp, host):
    """The smallest sizes are for shared memory only and have no file of this name."""
    host.write(f"{THP}/hugepages-8kB/stats/nr_anon", 0)
    assert "size.8K" not in thp("get").stdout


def test_a_host_without_huge_pages_says_so(thp, host):
    host.remove(THP)
    for arguments in (["get"], ["set", "mode=always"]):
        result = thp(*arguments)
        assert result.returncode == 3
        assert "no transparent huge pages here" in result.stderr


# --- set ---


def test_several_are_set_and_undone(thp, host, program):
    result = thp("set", "mode=always", "defrag=defer+madvise", "khugepaged.defrag=off", "size.64k=inherit")
    assert result.returncode == 0 and result.stderr == ""
    assert "mode               madvise → always" in result.stdout
    assert host.read(f"{THP}/enabled") == "[always] madvise never"
    assert host.read(f"{THP}/khugepaged/defrag") == "0"
    assert host.read(f"{THP}/hugepages-64kB/enabled") == "always [inherit] madvise never"
    undo(program, result)
    assert host.read(f"{THP}/enabled") == "always [madvise] never"
    assert host.read(f"{THP}/defrag").split()[3] == "[madvise]"
    assert host.read(f"{THP}/khugepaged/defrag") == "1"
    assert host.read(f"{THP}/hugepages-64kB/enabled") == "always inherit madvise [never]"


def test_what_is_set_already_needs_no_undo(thp):
    result = thp("set", "mode=madvise")
    assert result.stdout == "mode  madvise already\n"
    assert json.loads(thp("set", "mode=madvise", "--json").stdout)["undo"] == []


def test_a_dry_run_writes_nothing(thp, host):
    result = thp("set", "mode=never", "--dry-run", "--persist")
    assert result.returncode == 0
    assert "madvise → never" in result.stdout and "dry run" in result.stdout
    assert host.read(f"{THP}/enabled") == "always [madvise] never"
    assert not host.path(FILE).exists()
    document = json.loads(thp("set", "mode=never", "--dry-run", "--json").stdout)
    assert document["schema"] == "hugeheap.thp-set/1" and document["dry_run"] is True
    assert document["changes"][0]["after"] == "never"


def test_persisted_settings_are_lines_that_systemd_takes(thp, host, program):
    result = thp("set", "mode=always", "--persist")
    assert result.returncode == 0 and result.stderr == ""
    text = host.read(FILE)
    assert "w /sys/kernel/mm/transparent_hugepage/enabled - - - - always" in text.splitlines()
    systemd = shutil.which("systemd-tmpfiles")
    if systemd:
        host.write(f"{THP}/enabled", "x")
        subprocess.run([systemd, f"--root={host.root}", "--create", host.path(FILE)], check=True)
        assert host.read(f"{THP}/enabled") == "always"
        host.write(f"{THP}/enabled", "[always] madvise never")
    second = thp("set", "defrag=never", "mode=never", "--persist")
    assert len(host.read(FILE).splitlines()) == 3
    undo(program, second)
    assert host.read(FILE) == text
    undo(program, result)
    assert not host.path(FILE).exists()
    assert host.read(f"{THP}/enabled") == "always [madvise] never"


def test_a_host_without_a_reader_of_the_file_is_told(thp, host):
    host.remove("usr/bin/systemd-tmpfiles")
    result = thp("set", "mode=always", "--persist")
    assert result.returncode == 0
    assert "no systemd-tmpfiles found" in result.stderr


def test_when_it_cannot_be_persisted_the_knob_is_put_back(thp, host):
    # A file where a directory is needed.
    host.write("etc/tmpfiles.d", "")
    result = thp("set", "mode=never", "--persist")
    assert result.returncode != 0
    assert "--persist" in result.stderr
    assert host.read(f"{THP}/enabled") == "always [madvise] never"


def test_when_its_file_cannot_be_written_the_knobs_are_put_back(thp, host):
    """What is known before the first knob is set is another case: where nothing was put back after it, no test failed."""
    knobs = [f"{THP}/enabled", f"{THP}/khugepaged/pages_to_scan"]
    before = [host.read(knob) for knob in knobs]
    result = thp("set", "mode=never", "khugepaged.pages_to_scan=8", "--persist", preexec_fn=no_room_for_more)
    assert result.returncode == 3 and "--persist failed: File too large" in result.stderr, result.stderr
    assert result.stderr.endswith("; nothing is changed\n")
    assert [host.read(knob) for knob in knobs] == before
    assert not host.path(FILE).exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["mode"], 2, "write mode=VALUE"),
        (["mode=sometimes"], 2, "mode takes always, madvise, never"),
        (["colour=red"], 2, "no knob is called 'colour'; there are mode, "),
        (["shrink_underused=1"], 3, "this kernel has no knob shrink_underused"),
        (["mode=never", "mode=always"], 2, "set twice"),
        (["khugepaged.pages_to_scan=-1"], 2, "takes a number of OS pages"),
        (["khugepaged.full_scans=1"], 2, "only tells"),
        ([], 2, "NAME=VALUE"),
        (["mode=never", "--for", "on", "--", "true"], 2, "cannot be used with"),
        (["mode=never", "--", "true"], 2, "cannot be used with"),
        (["--", "true"], 2, "--for"),
        (["--for", "on"], 2, "COMMAND"),
    ],
)
def test_what_makes_no_sense_changes_nothing(thp, host, arguments, code, says):
    result = thp("set", "defrag=never", *arguments) if arguments and "--for" not in arguments else thp("set", *arguments)
    assert result.returncode == code
    assert says in result.stderr
    assert host.read(f"{THP}/defrag").split()[3] == "[madvise]"
    assert host.read(f"{THP}/enabled") == "always [madvise] never"


def test_nothing_outside_the_root_is_written(thp, host, tmp_path):
    outside = tmp_path / "outside"
    shutil.move(host.path(THP), outside)
    host.path(THP).symlink_to(outside)
    result = thp("set", "mode=never")
    assert result.returncode == 2
    assert "leads out of --root" in result.stderr
    assert (outside / "enabled").read_text() == "always [madvise] never\n"


def test_without_permission_it_says_what_is_needed(program, host, environment):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    host.root.parents[1].chmod(0o755)
    for parent in [*host.root.parents][:4]:
        parent.chmod(0o755)
    copy = host.root / "hugeheap"
    shutil.copy(program, copy)
    result = subprocess.run(
        [copy, "--root", host.root, "thp", "set", "mode=never"], env=environment, capture_output=True, text=True,
        user=65534, group=65534, check=False,
    )  # fmt: skip
    assert result.returncode == 4
    assert "needs root (sudo)" in result.stderr and "nothing was changed" in result.stderr


def test_a_command_without_for_is_not_dropped_and_its_settings_set(thp, host):
    """The host was changed, the command was not started, and the status was 0."""
    result = thp("set", "mode=never", "--", "touch", host.root / "started")
    assert (result.returncode, result.stdout) == (2, "")
    assert host.read(f"{THP}/enabled") == "always [madvise] never"
    assert not (host.root / "started").exists()


# --- the running kernel ---


@pytest.fixture
def kernel():
    """The host's knobs, ours alone for the test, put back afterwards."""
    testbed.need_root()
    if not os.access(testbed.THP, os.W_OK):
        pytest.skip("the kernel's knobs cannot be written here")
    directory = Path("/") / THP
    with testbed.knob(directory / "khugepaged/max_ptes_swap", 64), testbed.knob(directory / "khugepaged/max_ptes_none", 511):
        yield directory


def test_when_the_second_is_refused_the_first_is_put_back(hugeheap, host):
    """What the kernel refuses is refused before; a file that cannot be written shows only then."""
    knob = host.root / THP / "khugepaged/max_ptes_none"
    knob.unlink()
    knob.symlink_to(Path("/") / THP / "khugepaged/max_ptes_none")
    result = hugeheap("--root", host.root, "thp", "set", "khugepaged.max_ptes_swap=63", "khugepaged.max_ptes_none=65")
    assert result.returncode != 0
    assert "khugepaged.max_ptes_none=65 is refused" in result.stderr
    assert "nothing is changed: khugepaged.max_ptes_swap=64 is put back" in result.stderr
    assert (host.root / THP / "khugepaged/max_ptes_swap").read_text().strip() == "64"


@pytest.mark.parametrize("setting", ["max_ptes_none=512", "max_ptes_swap=99999", "max_ptes_shared=512", "pages_to_scan=0"])
def test_a_dry_run_refuses_what_the_kernel_refuses(hugeheap, host, setting):
    result = hugeheap("--root", host.root, "thp", "set", "--dry-run", f"khugepaged.{setting}")
    assert (result.returncode, result.stdout) == (2, "")
    assert "takes" in result.stderr
    assert hugeheap("--root", host.root, "thp", "set", "--dry-run", "khugepaged.max_ptes_none=511").returncode == 0


def test_the_kernel_takes_it_and_the_undo_line_takes_it_back(hugeheap, kernel, program):
    result = hugeheap("thp", "set", "khugepaged.max_ptes_swap=63")
    assert result.returncode == 0
    assert (kernel / "khugepaged/max_ptes_swap").read_text() == "63\n"
    undo(program, result)
    assert (kernel / "khugepaged/max_ptes_swap").read_text() == "64\n"


def test_a_read_only_sysfs_changes_nothing(program, environment, kernel):
    """As in a container."""
    read_only = "mount --bind /sys /sys && mount -o remount,ro,bind /sys && exec \"$@\""
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", read_only, "sh", program, "thp", "set", "khugepaged.max_ptes_swap=63"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip(f"no mount namespace here: {result.stderr.strip()}")
    assert result.returncode == 4
    assert "read-only" in result.stderr and "privileged: true" in result.stderr and "nothing was changed" in result.stderr
    assert (kernel / "khugepaged/max_ptes_swap").read_text() == "64\n"


# --- a command with its own switch ---


def test_a_command_gets_its_own_switch(hugeheap):
    for words, enabled in ((["--for", "off"], "0"), (["--for", "on"], "1"), (["--for"], "1")):
        result = hugeheap("thp", "set", *words, "--", "grep", "THP_enabled", "/proc/self/status")
        assert result.returncode == 0, result.stderr
        assert result.stdout.split()[1] == enabled


def test_the_switch_can_be_taken_back_by_a_child(hugeheap, program):
    inner = [program, "thp", "set", "--for", "on", "--", "grep", "THP_enabled", "/proc/self/status"]
    assert hugeheap("thp", "set", "--for", "off", "--", *inner).stdout.split()[1] == "1"


def test_only_advised_memory(hugeheap, python):
    code = "import ctypes; print(ctypes.CDLL(None).prctl(42, 0, 0, 0, 0))"
    result = hugeheap("thp", "set", "--for", "advised", "--", python, "-c", code)
    if result.returncode == 3:
        assert "Linux 6.18" in result.stderr
    else:
        assert result.stdout == "3\n"


def test_the_command_replaces_hugeheap_and_its_status_passes(start, hugeheap):
    process = start("thp", "set", "--for", "off", "--", "sh", "-c", "echo $$; exit 7")
    out, _ = process.communicate(timeout=60)
    assert int(out) == process.pid and process.returncode == 7
    assert hugeheap("thp", "set", "--for", "off", "--", "no-such-command").returncode == 127


def test_for_can_be_tried(hugeheap):
    result = hugeheap("thp", "set", "--for", "off", "--dry-run", "--", "touch", "a b")
    assert result.returncode == 0
    assert "no transparent huge pages: touch 'a b'" in result.stdout
    assert not Path("a b").exists()
    assert hugeheap("--json", "thp", "set", "--for", "off", "--", "true").returncode == 2
