"""`python -m hugeheap`: the program is on hugeheap, and sees what it would see from the interpreter itself."""

import re
import zipfile

import pytest
import testbed

# Everything a program can see of how it was started.
LOOK = """
import pickle, sys, __main__
class Thing: pass
print(__name__, __main__.__dict__ is globals(), {same})
print(sys.argv, sys.path[0], sorted(name for name in globals() if name not in ("__loader__", "__cached__", "__conditional_annotations__")))
print(globals().get("__file__"), getattr(__spec__, "name", None), __package__)
"""
CODE = LOOK.format(same=True)
LOOK = LOOK.format(same="pickle.loads(pickle.dumps(Thing())).__class__ is Thing")


@pytest.fixture
def both(interpreter, variables, tmp_path):
    """Runs the same words with the interpreter alone and through the package; what came of each."""

    def both(*words, options=(), input=None):
        ways = []
        for before in [], ["-m", "hugeheap", "--policy", "thp"]:
            command = [interpreter, *options, *before, *words]
            if input is not None:
                command = ["sh", "-c", 'printf "%s" "$0" | "$@"', input, *command]
            ways.append(testbed.run(command, env=variables(), cwd=tmp_path))
        return ways

    return both


@pytest.fixture
def same(both):
    def same(*words, **more):
        alone, ours = both(*words, **more)
        assert (ours.returncode, ours.stdout, ours.stderr) == (0, alone.stdout, ""), (words, ours.stderr)
        assert (alone.returncode, alone.stderr) == (0, "") and alone.stdout, words

    return same


@pytest.mark.every_version
def test_a_script_a_module_and_code_see_what_they_always_see(same, tmp_path):
    for folder, name, text in [
        ("folder", "program.py", LOOK),
        ("folder", "__main__.py", LOOK + "import beside\n"),
        ("folder", "beside.py", "print('beside')\n"),
        ("package", "__init__.py", ""),
        ("package", "__main__.py", "from . import other\n" + LOOK),
        ("package", "other.py", ""),
    ]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "link.py").symlink_to("folder/program.py")
    with zipfile.ZipFile(tmp_path / "program.pyz", "w") as archive:
        for name in "__main__.py", "beside.py":
            archive.write(tmp_path / "folder" / name, name)
    same("folder/program.py", "one", "--", "--policy", "-c", "-m")
    same("link.py", "x")
    same("folder", "one")
    same("program.pyz", "-c", "two")
    same("-m", "package", "one", "-m", "two")
    same("-c", CODE, "one", "--", "-c")
    same("-c" + CODE.strip())
    same("-", "a", "b", input="import sys; print(sys.argv, __name__, 6 * 7)")


@pytest.mark.every_version
def test_compiled_files_and_programs_that_name_their_encoding_run_as_always(same, interpreter, variables, tmp_path):
    """A `.pyc` was compiled as if it were source, and what came on standard input decoded before its first line was read."""
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nprint('\xe9', __name__, type(__loader__).__name__)\n")
    compile_it = "import py_compile; [py_compile.compile('latin.py', name) for name in ('latin.pyc', 'without_a_name')]"
    assert testbed.run([interpreter, "-c", compile_it], env=variables(), cwd=tmp_path).returncode == 0
    for words in ["latin.py"], ["latin.pyc", "one"], ["without_a_name"]:
        same(*words)
    for options in [], ["-X", "utf8"]:
        ways = []
        for before in [], ["-m", "hugeheap"]:
            command = ["sh", "-c", '"$@" < latin.py', "sh", interpreter, *options, *before, "-"]
            ways.append(testbed.run(command, env=variables(), cwd=tmp_path))
        alone, ours = ways
        assert (ours.returncode, ours.stdout, ours.stderr) == (0, alone.stdout, "") and alone.stdout.startswith("\xe9")


@pytest.mark.every_version
def test_a_compiled_file_that_is_none_is_told_as_always(both, tmp_path):
    (tmp_path / "program.pyc").write_bytes(b"abc" * 20)
    alone, ours = both("program.pyc")
    assert (alone.returncode, ours.returncode) == (1, 1)
    assert ours.stderr.endswith(alone.stderr) and "Bad magic number" in alone.stderr, ours.stderr


ENDS = [
    ("import sys; sys.exit(5)", 5),
    ("import sys; sys.exit('text')", 1),
    ("def work():\n    return 1 / 0\nwork()", 1),
    ("def broken(:", 1),
    ("import os; os._exit(9)", 9),
    ("import os; os.kill(os.getpid(), 15)", -15),
    ("raise KeyboardInterrupt", -2),
]


@pytest.mark.every_version
def test_the_end_is_the_interpreters(both, tmp_path):
    """Exit status, signal, and the traceback from the program's first line on."""
    for number, (code, status) in enumerate(ENDS):
        words = [["-c", code], ["program.py"], ["-m", "program"]][number % 3]
        (tmp_path / "program.py").write_text(code)
        alone, ours = both(*words)
        assert (ours.returncode, ours.stdout) == (alone.returncode, alone.stdout) == (status, ""), (code, ours.stderr)
        # Above the program's lines are ours; below, everything is as it was. Of -c CPython 3.13 keeps the
        # source to show it.
        _, found, expected = alone.stderr.partition("Traceback (most recent call last):\n")
        expected = expected.splitlines(keepends=True)[-1] if found and words[0] == "-c" else expected
        assert ours.stderr.endswith(expected if found else alone.stderr), (code, ours.stderr, alone.stderr)
        assert bool(ours.stderr) == bool(alone.stderr), (code, ours.stderr)
    for words in (["missing.py"], ["-m", "missing"]):
        alone, ours = both(*words)
        assert alone.returncode and (ours.returncode, ours.stderr) == (alone.returncode, alone.stderr)


def test_what_outlives_the_last_line_and_what_is_spawned_finds_its_main(same, tmp_path):
    (tmp_path / "program.py").write_text(
        """
import atexit, multiprocessing, pickle, threading, time
class Thing: pass
def late():
    time.sleep(0.2)
    print("late", type(pickle.loads(pickle.dumps(Thing()))).__name__, flush=True)
def square(number): return number * number
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(square, range(5)), flush=True)
    threading.Thread(target=late).start()
    atexit.register(lambda: print("exit", Thing.__module__))
"""
    )
    same("program.py")
    same("-m", "program")


def test_a_safe_path_stays_safe(same, interpreter, package, tmp_path):
    (tmp_path / "program.py").write_text("import sys; print(sys.path)")
    same("program.py", options=["-P"])
    same("-c", "import sys; print(sys.path)", options=["-P"])
    # Isolated, the package must be found some other way: started from code.
    code = (
        f"import sys, runpy; sys.path.append({str(package)!r}); sys.argv = ['x', 'program.py'];"
        "runpy.run_module('hugeheap', run_name='__main__')"
    )
    result = testbed.run([interpreter, "-I", "-c", code], env=testbed.clean(), cwd=tmp_path)
    assert result.returncode == 0 and repr(str(package)) in result.stdout, result.stderr
    assert repr(str(tmp_path)) not in result.stdout and "''" not in result.stdout


@pytest.mark.every_version
def test_the_program_is_on_hugeheap_and_the_summary_says_so_once(interpreter, variables, tmp_path):
    """By the process that was asked, not by those it forks."""
    code = """if True:
        import os, sys
        rows = [[number] for number in range(300_000)]
        pid = os.fork()
        if pid == 0: sys.exit(0)
        print(os.waitpid(pid, 0)[1], sys.modules["hugeheap"].status().policy)
    """
    options = ["--policy=thp", "--decay", "2", "--limit", "1G", "--summary"]
    result = testbed.run(
        [interpreter, "-m", "hugeheap", *options, "-c", code], env=variables(HUGEHEAP_TELEMETRY=str(tmp_path))
    )
    assert (result.returncode, result.stdout) == (0, "0 thp\n"), result.stderr
    first, arenas, *rest = result.stderr.splitlines()
    assert first == "hugeheap: CPython's arenas come from hugeheap; policy thp, in force: thp"
    assert arenas.startswith("  arenas     ") and int(arenas.split()[1]) > 5
    assert [line[:12].split()[0] for line in rest[:2]] == ["coverage", "given"]
    assert result.stderr.count("hugeheap:") == 1
    parent = next(one for one in testbed.records(tmp_path).values() if one["forks"] == 1)
    assert parent["arenas_peak"] == int(arenas.split()[1])


WRONG = [
    ([], "name a script"),
    (["--policy", "thp"], "name a script"),
    (["--policy"], "--policy needs a value"),
    (["-c"], "-c needs a value"),
    (["--policy", "enormous", "-c", "print(1)"], "choose one of auto, thp"),
    (["--level", "cells", "-c", "print(1)"], "choose one of arenas, objects"),
    (["--decay", "soon", "-c", "print(1)"], "--decay soon"),
    (["--decay=0", "-c", "print(1)"], "between 0.001 and 86400"),
    (["--limit", "2XB", "-c", "print(1)"], "--limit 2XB: unknown suffix; use K, M, G or T"),
    (["--limit", "1.5", "-c", "print(1)"], "--limit 1.5: not a number of bytes, such as 512M"),
    (["--limit", "", "-c", "print(1)"], "--limit"),
    (["--limit", "\xe9", "-c", "print(1)"], "not a number of bytes"),
    (["--limit", "9999999T", "-c", "print(1)"], "0 for no limit"),
    (["--fast", "-c", "print(1)"], "unknown option --fast"),
]


def test_a_wrong_command_line_is_a_usage_error_and_help_names_every_option(interpreter, variables):
    for words, named in WRONG:
        result = testbed.run([interpreter, "-m", "hugeheap", *words], env=variables())
        assert (result.returncode, result.stdout) == (2, ""), words
        assert result.stderr.startswith("usage: python -m hugeheap") and named in result.stderr, (words, result.stderr)
        assert len(result.stderr.splitlines()) == 2, result.stderr
    result = testbed.run([interpreter, "-m", "hugeheap", "--help"], env=variables())
    assert (result.returncode, result.stderr) == (0, "")
    for option in "--level", "--policy", "--decay", "--limit", "--summary", "-m MODULE", "-c CODE":
        assert option in result.stdout


# Options of `hugeheap run` that `python -m hugeheap` cannot have, each with the reason. Who adds one to `run`
# adds it there, or here.
ONLY_RUN = {
    "--hardened": "heaps are hardened from their first block on, which the interpreter has taken by then",
    "--no-thread": "as HUGEHEAP_THREAD=0, which is read when the heap begins",
    "--no-children": "a process that the program starts anew is never on hugeheap",
    "--require": "the program runs in this interpreter, whatever it is",
    "--summary-file": "numbers of a running interpreter are hugeheap.stats()",
    "--json": "numbers of a running interpreter are hugeheap.stats()",
    "--root": "of all commands, for hosts that are looked at from elsewhere",
    "--no-color": "of all commands; nothing here has colours",
    "--quiet": "of all commands",
    "--verbose": "of all commands",
}


def test_options_are_those_of_run_and_of_enable(interpreter, variables, ask):
    """`--merge` was an option of `hugeheap run`, and a keyword of `enable`, and not known here."""
    option = re.compile(r"^ +(?:-\w, )?(--[a-z-]+)", re.M)
    run = set(option.findall(testbed.run([testbed.find_command(), "run", "--help"], env=variables()).stdout))
    ours = testbed.run([interpreter, "-m", "hugeheap", "--help"], env=variables()).stdout
    usage, _, listed = ours.partition("\n\n")
    listed = set(option.findall(listed))
    assert listed and listed == set(re.findall(r"--[a-z-]+", usage))
    assert not ONLY_RUN.keys() & listed and listed | ONLY_RUN.keys() == run - {"--help"}
    keywords = ask("import hugeheap, inspect, json; print(json.dumps([*inspect.signature(hugeheap.enable).parameters]))")
    assert {f"--{keyword}" for keyword in keywords} == listed - {"--summary"}


def test_merging_is_asked_for_and_told_where_the_host_does_not(interpreter, variables):
    def run(*words, **settings):
        program = ["-c", "import hugeheap; print(hugeheap.status().level)"]
        return testbed.run([interpreter, "-m", "hugeheap", *words, *program], env=variables(**settings))

    refused = run("--merge")
    assert (refused.returncode, refused.stdout) == (2, "") and "level 'arenas' nothing can be made alike" in refused.stderr
    with testbed.knob("/sys/kernel/mm/ksm/run", 0):
        told = run("--merge", "--level", "objects")
    assert (told.returncode, told.stdout) == (0, "objects\n")
    assert told.stderr.startswith("hugeheap: this host does not merge equal pages") and len(told.stderr.splitlines()) == 1
    with testbed.knob("/sys/kernel/mm/ksm/run", 1):
        merges = run("--merge", HUGEHEAP_LEVEL="objects")
    assert (merges.returncode, merges.stdout, merges.stderr) == (0, "objects\n", "")


def test_sizes_are_written_as_for_run_and_the_environment(ask):
    """`1.5G` and `2GB` were refused here alone: there was a second understanding of sizes."""
    sizes = {"123": 123, "1.5G": 3 << 29, "2GB": 2 << 30, "4KiB": 4096, ".5k": 512, "16b": 16, "512m": 512 << 20}
    found = ask(
        f"""
        import json
        from hugeheap.__main__ import _parse
        print(json.dumps([_parse(["--limit", size, "x"]).limit for size in {list(sizes)!r}]))
        """
    )
    assert found == list(sizes.values())


def test_without_a_standard_error_nothing_is_said_on_standard_output(interpreter, variables):
    """The summary was: `print` takes standard output where the file is None."""
    for words in ["--summary", "-c", "print(1)"], ["--policy", "gigantic", "-c", "print(1)"], ["no/such.py"]:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", interpreter, "-m", "hugeheap", *words]
        result = testbed.run(command, env=variables())
        assert result.stdout == ("1\n" if "--summary" in words else ""), words


def test_a_switch_that_is_not_understood_is_told(interpreter, variables):
    """HUGEHEAP_DISABLE=yes switched nothing off, without a word."""
    result = testbed.run([interpreter, "-m", "hugeheap", "-c", "print(1)"], env=variables(HUGEHEAP_DISABLE="yes"))
    assert result.returncode == 2 and "HUGEHEAP_DISABLE must be 0 or 1" in result.stderr


def test_why_nothing_is_hooked_is_said_and_the_program_runs(interpreter, variables):
    command = [interpreter, "-m", "hugeheap", "-c", "print(1)"]
    result = testbed.run(command, env=variables(HUGEHEAP_DISABLE="1"))
    assert (result.returncode, result.stdout) == (0, "1\n")
    assert result.stderr == "hugeheap: nothing was hooked: HUGEHEAP_DISABLE is set\n"
