"""`hugeheap run` on real processes: what is hooked, what is said, and that nobody notices otherwise."""

import ctypes
import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

# A program with a heap: about 60 MB of small objects, so that there are arenas to speak of.
HEAP = "objects = [bytearray(48) for _ in range(500_000)]"


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def report(result):
    """The JSON summary at the end of standard error."""
    return json.loads(result.stderr.strip().splitlines()[-1])


# --- the process that is started ---


def test_without_a_summary_the_process_is_replaced(start, python):
    process = start("run", "--", python, "-c", "import os; print(os.getpid())")
    out, _ = process.communicate(timeout=60)
    assert int(out) == process.pid


def test_the_library_is_loaded_and_the_settings_arrive(hugeheap, python, library):
    code = (
        "import os; print(os.environ['LD_PRELOAD']); print(*sorted(name + '=' + value "
        "for name, value in os.environ.items() if name.startswith('HUGEHEAP_')))"
    )
    result = hugeheap(
        "run", "--policy", "thp", "--decay", "0.5", "--limit", "64M", "--", python, "-c", code
    )
    preload, settings = result.stdout.splitlines()
    assert preload == str(library)
    assert settings == "HUGEHEAP_DECAY=0.5 HUGEHEAP_LEVEL=arenas HUGEHEAP_LIMIT=67108864 HUGEHEAP_POLICY=thp"
    assert result.stderr == ""
    result = hugeheap("run", "--level", "objects", "--", python, "-c", code)
    assert "HUGEHEAP_LEVEL=objects" in result.stdout.splitlines()[1].split()
    assert result.stderr == ""


def test_a_level_that_is_none_is_refused_with_the_list(hugeheap, python):
    result = hugeheap("run", "--level", "cells", "--", python, "-c", "pass")
    assert result.returncode == 2
    assert "arenas, objects" in result.stderr


def test_an_existing_preload_is_kept_behind(hugeheap, python, library, compiled):
    other = compiled("other.so", "-shared", "-fPIC", source="int nothing;\n")
    code = "import os; print(os.environ['LD_PRELOAD'])"
    result = hugeheap("run", "--", python, "-c", code, env={"LD_PRELOAD": str(other)})
    assert result.stdout.strip() == f"{library}:{other}"


def test_arguments_standard_streams_and_directory_are_the_commands(hugeheap, tmp_path):
    result = hugeheap("run", "--summary", "-q", "--", "sh", "-c", 'pwd; echo "$0|$1" >&2', "a b", "--policy", cwd=tmp_path)
    assert result.stdout.strip() == str(tmp_path)
    assert result.stderr.splitlines()[0] == "a b|--policy"


@pytest.mark.parametrize("options", [[], ["--summary"]])
@pytest.mark.parametrize("status", [0, 1, 2, 3, 77, 255])
def test_the_status_passes_through(hugeheap, options, status):
    assert hugeheap("run", *options, "--", "sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("options", [[], ["--summary"]])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1, signal.SIGSEGV])
def test_death_by_a_signal_passes_through(hugeheap, options, number):
    result = hugeheap("run", *options, "--", "sh", "-c", f"ulimit -c 0; kill -{int(number)} $$")
    assert result.returncode == -number


def test_a_closed_pipe_ends_the_command_quietly(hugeheap):
    for options in ([], ["--summary"]):
        result = hugeheap("run", *options, "--", "grep", "SigIgn", "/proc/self/status")
        ignored = int(result.stdout.split()[1], 16)
        assert not ignored & 1 << (signal.SIGPIPE - 1)


# --- signals while a summary is waited for ---

COUNTER = """
import signal, sys, time
counts = {}
def note(number, frame):
    counts[number] = counts.get(number, 0) + 1
numbers = [int(word) for word in sys.argv[1].split(",")]
for number in numbers:
    signal.signal(number, note)
print("ready", flush=True)
end = time.monotonic() + 20
while set(counts) != set(numbers) and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.3)  # A second copy would arrive now.
print(",".join(str(counts.get(number, 0)) for number in numbers), flush=True)
"""

FORWARDED = [
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTERM,
    signal.SIGWINCH,
    signal.SIGCONT,
    signal.SIGRTMIN + 3,
]


def test_signals_to_the_parent_reach_the_command_once(start, python):
    numbers = ",".join(str(int(number)) for number in FORWARDED)
    process = start("run", "--summary", "--", python, "-c", COUNTER, numbers)
    assert process.stdout.readline() == "ready\n"
    for number in FORWARDED:
        process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert out.strip() == ",".join("1" for _ in FORWARDED)
    assert process.returncode == 0


def test_signals_of_the_terminal_arrive_once(program, library, environment, python):
    pid, terminal = pty.fork()
    if pid == 0:
        numbers = f"{int(signal.SIGINT)},{int(signal.SIGQUIT)}"
        os.execve(
            program, [program, "run", "--summary", "--", python, "-c", COUNTER, numbers], environment
        )
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03\x1c")  # Ctrl-C, Ctrl-\
    try:
        while chunk := os.read(terminal, 1000):
            seen += chunk
    except OSError:  # The terminal is closed when the last process has ended.
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"1,1" in seen, seen.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_signal_from_the_command_is_not_sent_back(hugeheap, python):
    code = COUNTER.replace('print("ready", flush=True)', "import os; os.kill(os.getppid(), signal.SIGUSR1); numbers.pop()")
    number = str(int(signal.SIGUSR1))
    result = hugeheap("run", "--summary", "--", python, "-c", code, number)
    assert result.returncode == 0
    assert result.stdout.strip() == ""


def test_a_stopped_command_stops_the_parent_and_both_go_on(start):
    process = start("run", "--summary", "--", "sh", "-c", "kill -STOP $$; exit 7")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=60) == 7


def test_killing_the_parent_kills_the_command(start, python):
    process = start("run", "--summary", "--", python, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    child = int(process.stdout.readline())
    process.kill()
    process.wait(timeout=60)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.02)
    pytest.fail("the command lives on")


# --- the summary ---


def test_the_summary_of_level_objects_says_whose_objects_they_are(hugeheap, python):
    result = hugeheap("run", "--summary", "--level", "objects", "--", python, "-c", HEAP)
    assert "CPython's objects come from hugeheap" in result.stderr


def test_the_summary_tells_what_happened(hugeheap, python):
    result = hugeheap("run", "--summary", "--policy", "thp", "--", python, "-c", HEAP)
    lines = result.stderr.splitlines()
    assert lines[0].startswith(f"hugeheap: {python} -c") and "status 0" in lines[0]
    named = {line[2:13].strip(): line[13:] for line in lines[1:]}
    assert "CPython's arenas come from hugeheap" in named["state"]
    assert named["policy"].startswith("thp")
    assert {"arenas", "coverage", "given back"} <= set(named)
    assert len(lines) <= 12
    assert result.stdout == ""


def test_the_summary_as_json(hugeheap, python, environment):
    result = hugeheap("run", "--summary", "--json", "--policy", "thp", "--", python, "-c", HEAP)
    summary = report(result)
    assert summary["schema"] == "hugeheap.run.summary/1"
    assert summary["exit_status"] == 0 and summary["signal"] is None
    main = summary["main"]
    assert main["state"] == "hooked" and main["policy"] == "thp" and main["level"] == "arenas"
    assert main["pid"] == summary["pid"]
    assert main["arenas_peak"] * (2 << 20) >= main["live_peak"] > 40 << 20
    assert summary["children"]["processes"] == 0
    assert list(Path(environment["TMPDIR"]).iterdir()) == [], "the records are removed"


@pytest.mark.parametrize("level", ["arenas", "objects"])
def test_coverage_is_that_of_the_peak_when_everything_was_freed_before_the_end(hugeheap, python, level):
    # At level objects nothing looked before memory fell: the summary told the coverage of what was left.
    code = "rows = [(n, n + 1) for n in range(500_000)]\ndel rows"
    result = hugeheap("run", "--summary", "--json", "--policy", "thp", "--level", level, "--", python, "-c", code)
    main = report(result)["main"]
    assert main["live_peak"] > 40 << 20
    assert main["peak_resident"] > main["live_peak"] * 0.8


def test_the_summary_in_a_file(hugeheap, python, tmp_path):
    file = tmp_path / "summary.json"
    result = hugeheap("run", "--summary-file", file, "--", python, "-c", "raise SystemExit(4)")
    assert result.returncode == 4
    assert result.stderr == ""
    assert json.loads(file.read_text())["exit_status"] == 4
    result = hugeheap("run", "--summary-file", tmp_path / "no" / "file", "--", "true")
    assert result.returncode == 0
    first, last = result.stderr.splitlines()
    assert "cannot be written" in first and "runs all the same" in first and "could not be written" in last
    assert not (tmp_path / "no").exists()


def test_records_that_cannot_be_kept_are_told_before_the_start(hugeheap, python, tmp_path):
    """The variable was ignored without a word."""
    file, good = tmp_path / "file", tmp_path / "records"
    file.touch()
    good.mkdir()
    for name, why in ((tmp_path / "no", "not found"), (file, "not a directory"), (tmp_path / ("x" * 600), "511 bytes")):
        result = hugeheap("run", "--", python, "-c", "print(1)", env={"HUGEHEAP_TELEMETRY": str(name)})
        assert (result.returncode, result.stdout) == (0, "1\n")
        assert f"no record can be kept in {name}, which HUGEHEAP_TELEMETRY names" in result.stderr and why in result.stderr
        assert len(result.stderr.splitlines()) == 1, "the library told it again"
    for name in (good, ""):
        result = hugeheap("run", "--", python, "-c", "print(1)", env={"HUGEHEAP_TELEMETRY": str(name)})
        assert (result.returncode, result.stderr) == (0, "")
    assert [path.suffix for path in good.iterdir()] == [".hugeheap"]


def test_the_longest_name_that_is_not_told_is_one_that_has_a_record(hugeheap, python, tmp_path):
    longest = tmp_path / ("x" * 200) / ("y" * 200)
    longest /= "z" * (511 - len(str(longest)) - 1)
    for directory, kept in ((longest, 1), (longest.with_name(longest.name + "z"), 0)):
        directory.mkdir(parents=True)
        result = hugeheap("run", "--", python, "-c", "print(1)", env={"HUGEHEAP_TELEMETRY": str(directory)})
        assert (result.returncode, result.stdout) == (0, "1\n")
        assert ("511 bytes" in result.stderr) == (not kept), result.stderr
        assert len(list(directory.iterdir())) == kept


def test_a_killed_process_has_its_summary(hugeheap, python):
    code = HEAP + "\nimport os; os.kill(os.getpid(), 9)"
    result = hugeheap("run", "--summary", "--json", "--", python, "-c", code)
    assert result.returncode == -9
    summary = report(result)
    assert summary["signal"] == 9
    assert summary["main"]["live"] > 40 << 20


def test_children_are_added_up(hugeheap, python):
    code = f"""
import os, subprocess, sys
if os.fork() == 0:
    {HEAP}
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", {HEAP!r}], check=True)
subprocess.run(["true"], check=True)
"""
    summary = report(hugeheap("run", "--summary", "--json", "--", python, "-c", code))
    assert summary["main"]["state"] == "hooked"
    children = summary["children"]
    assert children["processes"] == 3 and children["hooked"] == 2
    assert children["live_peak"] > 80 << 20


def test_a_program_that_is_not_python_is_explained(hugeheap):
    result = hugeheap("run", "--summary", "--", "true")
    assert "not CPython" in result.stderr


def test_a_python_without_pymalloc_is_explained(hugeheap, python):
    result = hugeheap(
        "run", "--summary", "--json", "--", python, "-c", "pass", env={"PYTHONMALLOC": "malloc"}
    )
    assert report(result)["main"]["state"] == "other_allocator"


def test_the_switch_off_is_respected(hugeheap, python):
    result = hugeheap(
        "run", "--summary", "--json", "--", python, "-c", "pass", env={"HUGEHEAP_DISABLE": "1"}
    )
    assert result.returncode == 0
    main = report(result)["main"]
    assert main is None or main["state"] == "disabled"


@pytest.mark.parametrize("name", ["HUGEHEAP_DISABLE", "HUGEHEAP_CHILDREN"])
def test_a_switch_that_is_not_understood_is_no_silent_yes_or_no(hugeheap, python, name):
    """HUGEHEAP_DISABLE=yes switched nothing off, and HUGEHEAP_CHILDREN=no kept no child from it, without a word."""
    words = ("run", "--summary", "--json", "--", python, "-c", "pass")
    for value in ("yes", "no", "2", b"\xff".decode(errors="surrogateescape")):
        result = hugeheap(*words, env={name: value})
        told, summary = result.stderr.splitlines()
        assert told == f"hugeheap: {name} must be 0 or 1; the program runs without hugeheap"
        assert (result.returncode, json.loads(summary)["main"]["state"]) == (0, "bad_setting")
    for value, state in (("", "hooked"), (str(int(name == "HUGEHEAP_CHILDREN")), "hooked")):
        assert report(hugeheap(*words, env={name: value}))["main"]["state"] == state


@pytest.mark.parametrize(
    ("name", "value"),
    [("POLICY", "gigantic"), ("POLICY", ""), ("LEVEL", "9"), ("DECAY", "-1"), ("LIMIT", "10%")],
)
def test_a_setting_that_keeps_the_command_from_starting_is_named_as_it_was_set(hugeheap, name, value):
    """The option of that name was, which nobody had typed."""
    variable = f"HUGEHEAP_{name}"
    result = hugeheap("run", "--", "true", f"--{name.lower()}", "x", env={variable: value})
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert last == f"hugeheap: error: {variable} is set to '{value}' in the environment: correct it, or unset it"
    for typed in ([f"--{name.lower()}", "%"], [f"--{name.lower()}=%"]):
        result = hugeheap("run", *typed, "--", "true", env={variable: value})
        assert result.returncode == 2 and "in the environment" not in result.stderr, "what was typed counts"


def test_a_library_that_is_none_is_told_with_the_variable_that_names_it(hugeheap):
    result = hugeheap("run", "--", "true", env={"HUGEHEAP_PRELOAD_LIBRARY": "/etc/passwd"})
    assert result.returncode == 3
    assert "/etc/passwd is not a shared library; HUGEHEAP_PRELOAD_LIBRARY names it" in result.stderr


def test_a_mistyped_option_is_not_looked_for_in_path(hugeheap):
    """It was, with status 127."""
    result = hugeheap("run", "--polcy", "thp", "--", "true")
    assert result.returncode == 2 and "unexpected argument '--polcy'" in result.stderr, result.stderr
    assert hugeheap("run", "--", "--polcy").returncode == 127, "what is behind -- is a command"


# Two mistakes with the interpreter's allocator that no check of an ordinary heap can see: a block is used after
# it was freed, and freed again after it was handed out in between. Nothing of the interpreter's own has that
# size here.
MISTAKES = """
import ctypes
api = ctypes.pythonapi
api.PyMem_Malloc.restype = ctypes.c_void_p
api.PyMem_Malloc.argtypes = [ctypes.c_size_t]
api.PyMem_Free.argtypes = [ctypes.c_void_p]
blocks = [api.PyMem_Malloc(555) for _ in range(100)]
block = blocks[50]
ctypes.memset(block, 7, 555)
api.PyMem_Free(block)
print("contents", max(ctypes.string_at(block, 555)), flush=True)
# The window at hand comes first: it has at most one more block of this size.
again = [api.PyMem_Malloc(555) for _ in range(2)]
print("handed out again", block in again, flush=True)
api.PyMem_Free(block)
print("survived")
"""


def test_hardened_heaps_catch_what_ordinary_ones_cannot(hugeheap, python):
    ordinary = hugeheap("run", "--level", "objects", "--", python, "-c", MISTAKES)
    assert ordinary.stdout.splitlines() == ["contents 7", "handed out again True", "survived"]
    limited = ["bash", "-c", 'ulimit -c 0; exec "$@"', "bash"]
    hardened = hugeheap("run", "--level", "objects", "--hardened", "--", *limited, python, "-c", MISTAKES)
    assert hardened.stdout.splitlines() == ["contents 0", "handed out again False"]
    assert hardened.returncode == -signal.SIGABRT
    assert "size class 560: nothing live begins at the address (freed twice?)" in hardened.stderr


def test_hardened_heaps_need_level_objects(hugeheap, python):
    refused = hugeheap("run", "--hardened", "--", python, "-c", "print(1)")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "add --level objects" in refused.stderr
    taken = hugeheap("run", "--hardened", "--", python, "-c", "print(1)", env={"HUGEHEAP_LEVEL": "objects"})
    assert (taken.returncode, taken.stdout) == (0, "1\n")


def test_hardened_heaps_that_the_environment_asks_for_in_vain_are_told(hugeheap, python):
    """The option is refused without the level, the variable did nothing, without a word."""
    for value, level, told in (("1", "arenas", True), ("0", "arenas", False), ("1", "objects", False)):
        words = ("run", "--level", level, "--", python, "-c", "print(1)")
        result = hugeheap(*words, env={"HUGEHEAP_HARDENED": value})
        assert (result.returncode, result.stdout) == (0, "1\n")
        assert ("HUGEHEAP_HARDENED is set, but at level arenas" in result.stderr) == told, result.stderr
        assert bool(result.stderr) == told


# --- children ---


def test_no_children_hooks_only_the_process_itself(hugeheap, python):
    code = "import subprocess; subprocess.run(['env'])"
    result = hugeheap("run", "--no-children", "--no-thread", "--summary", "--json", "--", python, "-c", code)
    assert "PATH=" in result.stdout
    assert "LD_PRELOAD=" not in result.stdout and "HUGEHEAP_" not in result.stdout
    summary = report(result)
    assert summary["main"]["state"] == "hooked"
    assert summary["children"]["processes"] == 0


def test_no_children_behind_a_wrapper_is_warned_about(hugeheap, python, tmp_path):
    wrapper = script(tmp_path / "shim", f'#!/usr/bin/env bash\nexec "{python}" "$@"\n')
    result = hugeheap("run", "--no-children", "--", wrapper, "-c", "print(1)")
    assert result.stdout == "1\n"
    assert "--no-children hooks only that process" in result.stderr
    assert hugeheap("run", "--", wrapper, "-c", "print(1)").stderr == ""


def test_scripts_are_hooked_through_their_first_line(hugeheap, python, tmp_path):
    program = script(tmp_path / "program", f"#!{python}\n{HEAP}\n")
    summary = report(hugeheap("run", "--summary", "--json", "--", program))
    assert summary["main"]["state"] == "hooked"


# --- what cannot be started ---


def test_a_missing_command_is_127(hugeheap, tmp_path):
    result = hugeheap("run", "--", "no-such-command")
    assert result.returncode == 127
    assert "no-such-command: command not found in PATH" in result.stderr
    assert hugeheap("run", "--", tmp_path / "nothing").returncode == 127


def test_a_file_that_is_no_program_is_126(hugeheap, tmp_path):
    (tmp_path / "data").write_text("data")
    result = hugeheap("run", "--", tmp_path / "data")
    assert result.returncode == 126
    assert "no execute permission" in result.stderr
    assert hugeheap("run", "--", tmp_path).returncode == 126


def test_a_missing_interpreter_is_named(hugeheap, tmp_path):
    result = hugeheap("run", "--", script(tmp_path / "program", "#!/no/such/interpreter\n"))
    assert result.returncode == 127
    assert "/no/such/interpreter" in result.stderr


def test_an_unknown_policy_is_a_usage_error_with_the_list(hugeheap):
    result = hugeheap("run", "--policy", "gigantic", "--", "true")
    assert result.returncode == 2
    for policy in ("auto", "thp", "dense", "hugetlb", "base"):
        assert policy in result.stderr


def test_no_command_is_a_usage_error(hugeheap):
    assert hugeheap("run").returncode == 2


def test_a_missing_library_is_an_error_with_all_places(program, environment, tmp_path):
    alone = tmp_path / "bin" / "hugeheap"
    alone.parent.mkdir()
    shutil.copy(program, alone)
    result = subprocess.run(
        [alone, "run", "--", "true"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 3
    for place in ("bin", "lib/hugeheap", "lib"):
        assert str(tmp_path / place / "libhugeheap_preload.so") in result.stderr
    wrong = {**environment, "HUGEHEAP_PRELOAD_LIBRARY": "/no/such/library.so"}
    result = subprocess.run(
        [program, "run", "--", "true"], env=wrong, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 3 and "/no/such/library.so" in result.stderr


def test_the_library_is_found_in_an_installation(program, library, environment, python, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib" / "hugeheap").mkdir(parents=True)
    shutil.copy(program, tmp_path / "bin")
    installed = shutil.copy(library, tmp_path / "lib" / "hugeheap")
    code = "import os; print(os.environ['LD_PRELOAD'])"
    result = subprocess.run(
        [tmp_path / "bin" / "hugeheap", "run", "--", python, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.strip() == str(installed)


# --- programs a library cannot be loaded into ---


def test_a_static_program_runs_and_its_children_are_hooked(hugeheap, compiled, python):
    source = """
#include <unistd.h>
int main(int count, char **words) { return count > 1 ? execv(words[1], words + 1) : 5; }
"""
    program = compiled("static", "-static", source=source)
    result = hugeheap("run", "--summary", "--", program)
    assert result.returncode == 5
    assert "statically linked" in result.stderr
    summary = report(hugeheap("run", "--summary", "--json", "--", program, python, "-c", "pass"))
    assert summary["main"]["state"] == "hooked"
    result = hugeheap("run", "--require", "--", program)
    assert result.returncode == 3 and "--require" in result.stderr


def patched(program, target, old, new):
    content = program.read_bytes()
    assert content.count(old) >= 1
    target.write_bytes(content.replace(old, new, 1))
    target.chmod(0o755)
    return target


def test_a_musl_program_runs_unchanged(hugeheap, compiled, tmp_path):
    program = compiled("dynamic")
    # The real loader under musl's name: the program really starts, as it would where musl is installed.
    result = subprocess.run(["readelf", "-p", ".interp", program], capture_output=True, text=True)
    if result.returncode:
        pytest.skip("no readelf here")
    loader = next(word for word in result.stdout.split() if word.startswith("/"))
    # As long as the loader's name, because it takes its place.
    name = "/tmp/ld-musl-".ljust(len(loader), "x")[: len(loader)]
    if "ld-musl" not in name:
        pytest.skip("the loader's name is too short to be replaced")
    patient = patched(program, tmp_path / "musl", loader.encode(), name.encode())
    result = hugeheap("run", "--", patient)
    assert result.returncode == 127
    assert "is not installed" in result.stderr and name in result.stderr
    os.symlink(loader, name)
    try:
        result = hugeheap("run", "--", patient)
        assert result.returncode == 5
        assert "uses musl" in result.stderr and "unchanged" in result.stderr
        assert hugeheap("run", "--require", "--", patient).returncode == 3
        quiet = hugeheap("run", "-q", "--", patient)
        assert quiet.returncode == 5 and quiet.stderr == ""
        summary = report(hugeheap("run", "--summary", "--json", "--", patient))
        assert summary["hindrance"]["name"] == "foreign_libc" and summary["main"] is None
    finally:
        os.unlink(name)


def test_a_program_for_another_machine_is_named(hugeheap, compiled, tmp_path):
    program = compiled("dynamic")
    content = bytearray(program.read_bytes())
    content[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    patient = tmp_path / "riscv"
    patient.write_bytes(content)
    patient.chmod(0o755)
    result = hugeheap("run", "--require", "--", patient)
    assert result.returncode == 3
    assert "riscv64" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program of another user's")
def test_a_setuid_program_runs_unchanged(hugeheap, tmp_path):
    patient = tmp_path / "env"
    shutil.copy(shutil.which("env"), patient)
    if os.statvfs(patient).f_flag & os.ST_NOSUID:
        pytest.skip("the temporary directory is mounted nosuid")
    os.chown(patient, 65534, 65534)
    patient.chmod(0o4755)
    assert patient.stat().st_mode & stat.S_ISUID
    for directory in patient.parents[:3]:
        directory.chmod(directory.stat().st_mode | 0o055)
    result = hugeheap("run", "--", patient)
    assert result.returncode == 0
    assert "set-user-ID" in result.stderr
    assert "LD_PRELOAD" not in result.stdout
    assert hugeheap("run", "--require", "--", patient).returncode == 3


# --- hosts that cannot give huge pages ---


def knobs(root, mode):
    directory = root / "sys/kernel/mm/transparent_hugepage"
    directory.mkdir(parents=True)
    words = " ".join(f"[{word}]" if word == mode else word for word in ("always", "madvise", "never"))
    (directory / "enabled").write_text(words + "\n")
    (directory / "defrag").write_text("always defer defer+madvise [madvise] never\n")
    (directory / "hpage_pmd_size").write_text("2097152\n")


def test_a_host_without_thp_is_warned_about_once(hugeheap, tmp_path):
    knobs(tmp_path, "never")
    result = hugeheap("--root", tmp_path, "run", "--policy", "thp", "--", "true")
    assert result.returncode == 0
    assert result.stderr.count("mode never") == 1 and "echo madvise >" in result.stderr
    assert hugeheap("--root", tmp_path, "run", "--policy", "base", "--", "true").stderr == ""
    assert hugeheap("-q", "--root", tmp_path, "run", "--policy", "thp", "--", "true").stderr == ""


def test_a_host_with_thp_is_not(hugeheap, tmp_path):
    knobs(tmp_path, "madvise")
    assert hugeheap("--root", tmp_path, "run", "--policy", "thp", "--", "true").stderr == ""


def test_a_process_with_thp_switched_off_is_warned_about(hugeheap, python):
    PR_SET_THP_DISABLE = 41
    libc = ctypes.CDLL(None)

    def switch_off():
        libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

    result = hugeheap("run", "--policy", "thp", "--", "true", preexec_fn=switch_off)
    assert result.returncode == 0
    assert "PR_SET_THP_DISABLE" in result.stderr
    code = "objects = [bytearray(48) for _ in range(200_000)]; print(len(objects))"
    result = hugeheap("run", "--policy", "thp", "--", python, "-c", code, preexec_fn=switch_off)
    assert result.stdout == "200000\n"


def test_verbose_says_what_is_set(hugeheap, library, python):
    result = hugeheap("-v", "run", "--", python, "-c", "pass")
    assert f"LD_PRELOAD={library}" in result.stderr
    assert "HUGEHEAP_POLICY=auto" in result.stderr


def test_a_summary_as_json_needs_no_second_option(hugeheap, python):
    """Nothing was printed, as if it had not been asked for."""
    for words in (["run", "--json"], ["--json", "run"]):
        result = hugeheap(*words, "--", python, "-c", "print(7)")
        assert (result.returncode, result.stdout) == (0, "7\n")
        assert report(result)["exit_status"] == 0
