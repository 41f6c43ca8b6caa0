"""A real Ruby on hugeheap: at which level it is started, whether it runs as on stock, whether it gets huge pages though it takes them from itself."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import testbed

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "ruby_programs.rb"
NAMES = re.findall(r'^  "(\w+)" => ', PROGRAMS.read_text(), re.MULTILINE)
RUBY = shutil.which("ruby")
TIMEOUT = 300
MODE = "/sys/kernel/mm/transparent_hugepage/enabled"

with_ruby = pytest.mark.skipif(RUBY is None, reason="no Ruby here: apt-get install ruby")

# Forks, threads, the collector and the libraries, which is what a setting can change; all programs with the first.
SETTINGS = [
    ("--policy", "thp"),
    ("--policy", "base"),
    ("--policy", "dense"),
    ("--policy", "hugetlb", "-q"),
    ("--hardened",),
    ("--no-thread",),
    ("--no-children",),
    ("--limit", "40M"),
    ("--decay", "0.001"),
]
DEMANDING = ["collections", "fork_server", "threads"]


@pytest.fixture(scope="module")
def stock():
    """What the programs say on stock; each runs once."""
    said = {}

    def answer(name):
        if name not in said:
            result = subprocess.run([RUBY, PROGRAMS, name], capture_output=True, text=True, timeout=TIMEOUT, check=False)
            said[name] = (result.returncode, result.stdout, result.stderr)
        return said[name]

    return answer


def test_the_programs_are_known():
    assert len(NAMES) >= 12 and set(DEMANDING) < set(NAMES)


@with_ruby
@pytest.mark.any_host
@pytest.mark.timeout(2 * TIMEOUT)
@pytest.mark.parametrize("name", NAMES)
def test_programs_say_what_they_say_on_stock(name, hugeheap, stock):
    result = hugeheap("run", "--", RUBY, PROGRAMS, name, timeout=TIMEOUT)
    assert (result.returncode, result.stdout, result.stderr) == stock(name)
    assert stock(name)[0] == 0 and stock(name)[1]


@with_ruby
@pytest.mark.any_host
@pytest.mark.timeout(4 * TIMEOUT)
@pytest.mark.parametrize("options", SETTINGS, ids=" ".join)
def test_programs_do_so_with_each_setting(options, hugeheap, stock):
    for name in DEMANDING:
        result = hugeheap("run", *options, "--", RUBY, PROGRAMS, name, timeout=TIMEOUT)
        assert (result.returncode, result.stdout, result.stderr) == stock(name), name


@with_ruby
@pytest.mark.any_host
@pytest.mark.timeout(4 * TIMEOUT)
def test_programs_do_so_under_a_limit_on_address_space(hugeheap, stock):
    # The threads' and fibers' stacks of the programs need some 100 MB of it themselves.
    for name in ("churn", "libraries", "threads", "fork_server"):
        words = ["sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh", RUBY, PROGRAMS, name]
        result = hugeheap("run", "--level", "malloc", "--", *words, timeout=TIMEOUT)
        assert (result.returncode, result.stdout, result.stderr) == stock(name), name


@with_ruby
@pytest.mark.any_host
def test_a_ruby_with_another_allocator_before_it_says_so(tmp_path, program, environment):
    """As where jemalloc is preloaded: the block that is asked for first is not hugeheap's."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    (tmp_path / "other.c").write_text(
        "#include <stddef.h>\n"
        "void *__libc_malloc(size_t); void *__libc_calloc(size_t, size_t); void *__libc_realloc(void *, size_t); void __libc_free(void *);\n"
        "void *malloc(size_t n) { return __libc_malloc(n); }\n"
        "void *calloc(size_t n, size_t size) { return __libc_calloc(n, size); }\n"
        "void *realloc(void *block, size_t n) { return __libc_realloc(block, n); }\n"
        "void free(void *block) { __libc_free(block); }\n"
    )
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", "-o", other, tmp_path / "other.c"], check=True)
    records = tmp_path / "records"
    records.mkdir()
    # By hand, since `run` puts its library first.
    both = f"{other}:{program.with_name('libhugeheap_malloc.so')}"
    env = {**environment, "LD_PRELOAD": both, "HUGEHEAP_LEVEL": "malloc", "HUGEHEAP_TELEMETRY": str(records)}
    code = "puts File.read('/proc/self/status')[/^THP_enabled:\\s*(\\d)/, 1].inspect"
    result = subprocess.run([RUBY, "-e", code], env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    # What Ruby does to its huge pages is left to it.
    assert (result.returncode, result.stderr) == (0, "") and result.stdout in ('"0"\n', "nil\n")
    (record,) = records.iterdir()
    OWN_MALLOC = 9
    assert int.from_bytes(record.read_bytes()[32:36], "little") == OWN_MALLOC


@with_ruby
@pytest.mark.any_host
def test_an_extension_in_c_mixes_rubys_functions_with_the_c_librarys(hugeheap, tmp_path):
    header = subprocess.run([RUBY, "-rrbconfig", "-e", "print RbConfig::CONFIG['rubyhdrdir']"], capture_output=True, text=True, check=True)
    if shutil.which("cc") is None or shutil.which("make") is None or not Path(header.stdout, "ruby.h").exists():
        pytest.skip("no C compiler, make or ruby.h here: apt-get install gcc make ruby-dev")
    (tmp_path / "blocks.c").write_text((HERE / "ruby_extension.c").read_text())
    (tmp_path / "extconf.rb").write_text('require "mkmf"\ncreate_makefile("blocks")\n')
    for words in ([RUBY, "extconf.rb"], ["make"]):
        built = hugeheap("run", "--level", "malloc", "--", *words, cwd=tmp_path, timeout=TIMEOUT)
        assert built.returncode == 0, built.stdout + built.stderr
    code = "require './blocks'; 100.times { |n| Blocks.make(n * 10).grow; Blocks.buffer(n * 3000) }; p Blocks.aligned; GC.start; GC.compact; puts 'done'"
    result = hugeheap("run", "--", RUBY, "-e", code, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "true\ndone\n", "")


def summary(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stderr.strip().splitlines()[-1])


@with_ruby
@pytest.mark.any_host
def test_a_ruby_is_started_at_the_level_that_has_something_of_it(hugeheap, tmp_path):
    script = tmp_path / "app"
    script.write_text(f"#!{RUBY}\nputs 'x' * 3\n")
    script.chmod(0o755)
    for words in ([RUBY, script], [script], ["env", "A=b", RUBY, script], ["/usr/bin/env", "-u", "A", script]):
        result = hugeheap("run", "--summary", "--json", "--", *words)
        main = summary(result)["main"]
        assert result.stdout == "xxx\n" and len(result.stderr.splitlines()) == 1
        assert (main["state"], main["level"]) == ("hooked", "malloc"), words
    text = hugeheap("run", "--summary", "--", script).stderr
    assert "level      malloc, because it is a Ruby" in text and "level malloc" in hugeheap("run", "-v", "--", script).stderr
    # Without a summary nothing is said.
    result = hugeheap("run", "--", script)
    assert (result.stdout, result.stderr) == ("xxx\n", "")


@with_ruby
@pytest.mark.any_host
def test_a_level_with_nothing_of_a_ruby_is_no_silence(hugeheap):
    for given in (("--level", "arenas"), ("--level", "objects")):
        result = hugeheap("run", *given, "--", RUBY, "-e", "puts 'x'")
        assert result.stdout == "x\n"
        assert re.fullmatch(r"hugeheap: warning: .*ruby is a Ruby, of which nothing comes from hugeheap at level \w+: .*--level malloc\n", result.stderr)
    result = hugeheap("run", "--", RUBY, "-e", "puts 'x'", env={"HUGEHEAP_LEVEL": "arenas"})
    assert "at level arenas" in result.stderr
    # What a shell starts is not known before.
    result = hugeheap("run", "--summary", "--", "sh", "-c", f"{RUBY} -e 'puts 7'; true")
    assert result.stdout == "7\n" and "that of any program, a Ruby's too: --level malloc" in result.stderr


@with_ruby
@pytest.mark.any_host
def test_hardened_heaps_need_no_level_for_a_ruby(hugeheap):
    result = hugeheap("run", "--hardened", "--", RUBY, "-e", "puts 'x' * 3")
    assert (result.returncode, result.stdout, result.stderr) == (0, "xxx\n", "")
    result = hugeheap("run", "--level", "malloc", "--", RUBY, "-e", "puts 'x'", env={"HUGEHEAP_HARDENED": "1"})
    assert (result.returncode, result.stdout, result.stderr) == (0, "x\n", "")


# Texts of 300 to 600 bytes, which are not in Ruby's own pages.
TEXTS = "kept = Array.new(60_000) { |n| 'text' * (75 + n % 75) }; puts kept.size"


@with_ruby
@pytest.mark.parametrize("mode", ["madvise", "always"])
def test_a_ruby_gets_huge_pages_though_it_takes_them_from_itself(mode, hugeheap):
    """Of what it allocates, that is. It was no huge page at all: CRuby calls prctl(PR_SET_THP_DISABLE) before anything else."""
    with testbed.knob(MODE, mode):
        main = summary(hugeheap("run", "--summary", "--json", "--policy", "thp", "--", RUBY, "-e", TEXTS))["main"]
    fallbacks = {fallback["reason"]: fallback["count"] for fallback in main["fallbacks"]}
    assert "thp_disabled" not in fallbacks
    if fallbacks.get("no_huge_page", 0) > 1:
        pytest.skip("the host has no free huge pages")
    assert main["peak_resident"] > 20 << 20 and main["peak_coverage"] > 0.9


@with_ruby
def test_a_ruby_under_policy_base_keeps_its_switch(hugeheap):
    code = TEXTS + "; puts File.read('/proc/self/status')[/^THP_enabled:\\s*(\\d)/, 1].inspect"
    result = hugeheap("run", "--policy", "base", "--", RUBY, "-e", code)
    assert result.stdout in ('60000\n"0"\n', "60000\nnil\n")


@with_ruby
def test_the_object_pages_of_a_running_ruby_can_be_collapsed_under_hugeheap_only(hugeheap, program, environment):
    code = "kept = Array.new(600_000) { |n| [n] }; puts $$; $stdout.flush; sleep"
    for prefix, refused in (([program, "run", "--"], False), ([], True)):
        with subprocess.Popen([*prefix, RUBY, "-e", code], env=environment, stdout=subprocess.PIPE, text=True) as ruby:
            try:
                pid = int(ruby.stdout.readline())
                before = huge_bytes(pid)
                result = hugeheap("collapse", pid)
                if not refused and result.returncode in (3, 4):
                    pytest.skip(result.stderr)
                assert ("PR_SET_THP_DISABLE" in result.stderr) == refused, result.stderr
                if not refused and "no free huge page" not in result.stdout:
                    assert huge_bytes(pid) > before + (8 << 20), result.stdout
            finally:
                ruby.kill()


def huge_bytes(pid):
    return int(re.search(r"AnonHugePages:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[1]) << 10


@pytest.fixture(scope="module")
def switch(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    target = tmp_path_factory.mktemp("switch") / "switch"
    subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", target, HERE / "thp_switch.c"], check=True)
    return target


def said_of(switch, *words, **more):
    result = subprocess.run([switch, *words], capture_output=True, text=True, check=True, **more)
    return result.stdout


@pytest.mark.any_host
@pytest.mark.parametrize("kernel", ["this", "old"])
def test_a_program_that_switches_huge_pages_off_does_so_but_for_hugeheaps(kernel, hugeheap, switch):
    """The answer, the untouched `errno`, the switch: 3 is off but where advised, 0 is on, 1 is off."""
    stock = said_of(switch, kernel)
    first, rest = stock.split("\n", 1)
    assert first == "0 77 1" and rest.startswith("renamed -1 22 ") and rest.endswith("\n0\n")
    narrow = "0 77 0" if kernel == "old" else f"0 77 {narrow_switch()}"
    for options, env, expected in (
        ((), {}, narrow),
        (("--policy", "dense"), {}, narrow),
        (("--no-children", "--no-thread"), {}, narrow),
        (("--policy", "base"), {}, "0 77 1"),
        (("--policy", "base", "--no-children"), {}, "0 77 1"),
        ((), {"HUGEHEAP_DISABLE": "1"}, "0 77 1"),
        (("--level", "arenas"), {}, "0 77 1"),
    ):
        level = () if "--level" in options else ("--level", "malloc")
        result = hugeheap("run", *level, *options, "--", switch, kernel, env=env)
        assert (result.returncode, result.stdout, result.stderr) == (0, f"{expected}\n{rest}", ""), (options, env)


def narrow_switch():
    """3 where the kernel knows of a switch that spares what is advised, else 0."""
    code = "import ctypes; c = ctypes.CDLL(None); c.prctl(41, 1, 2, 0, 0); print(c.prctl(42, 0, 0, 0, 0))"
    return int(subprocess.run([shutil.which("python3") or os.sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
