"""Lua on hugeheap: the same output as the stock interpreter, and its own error when memory is exhausted."""

import json
import resource
import subprocess

import pytest

from .conftest import ROOT, needs

SOURCE = ROOT / "examples/lua.c"
SCRIPTS = sorted((ROOT / "examples/lua").glob("*.lua"))
TIMEOUT = 300

# Takes all there is, three times, by blocks of three kinds; after each it must be as good as new.
GREEDY = """
local kinds = {
  function(n) return { n } end,
  function(n) return ("x"):rep(3000) .. n end,
  function(n) return ("y"):rep(2000000) .. n end,
}
for number, kind in ipairs(kinds) do
  local kept, count = {}, 0
  local ok, message = pcall(function()
    while true do kept[#kept + 1] = kind(count) count = count + 1 end
  end)
  assert(not ok and count > 0)
  kept = nil
  collectgarbage()
  print(number, message)
  assert(#table.concat({ "it", "goes", "on" }, " ") == 10)
end
"""


@pytest.fixture(scope="module")
def lua(compiled):
    """The stock interpreter, and the example."""
    needs("lua5.4", "pkg-config")
    if subprocess.run(["pkg-config", "--exists", "lua5.4"], check=False).returncode != 0:
        pytest.skip("the headers of Lua are not installed (apt-get install liblua5.4-dev)")
    return compiled(SOURCE, packages=("hugeheap", "lua5.4"))


def run(command, clean, limit=None):
    def restrict():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return subprocess.run(
        command, env=clean, capture_output=True, text=True, timeout=TIMEOUT, check=False, preexec_fn=restrict
    )


def test_there_are_programs():
    assert len(SCRIPTS) >= 6


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_programs_print_the_same(script, lua, clean):
    stock = run(["lua5.4", script], clean)
    assert stock.returncode == 0 and stock.stdout and not stock.stderr, stock.stderr
    ours = run([lua, script], clean)
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, stock.stdout, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_programs_under_a_limit_succeed_or_get_luas_error(script, lua, clean):
    """Limits in steps, so that memory ends in many places; a limit that suffices changes nothing."""
    stock = run(["lua5.4", script], clean).stdout
    failures = 0
    for limit in (0, 1000, 10_000, 20_000, 25_000, 30_000, 40_000, 100_000, 1_000_000, 1_000_000_000):
        ours = run([lua, "--limit", str(limit), script], clean)
        if ours.returncode == 0:
            assert ours.stdout == stock and ours.stderr == ""
        else:
            failures += 1
            assert ours.returncode == 1 and ours.stderr.startswith("lua: not enough memory"), ours
            assert stock.startswith(ours.stdout)
    assert 4 <= failures <= 9


def test_memory_exhausted_is_luas_error(lua, clean, tmp_path):
    script = tmp_path / "greedy.lua"
    script.write_text(GREEDY)
    expected = "".join(f"{number}\tnot enough memory\n" for number in (1, 2, 3))
    by_option = run([lua, "--limit", "20000000", script], clean)
    assert (by_option.returncode, by_option.stdout, by_option.stderr) == (0, expected, "")


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_the_systems_memory_exhausted_is_luas_error(kind, lua, clean, tmp_path):
    script = tmp_path / "greedy.lua"
    script.write_text(GREEDY.replace("ipairs(kinds)", f"ipairs({{ kinds[{kind}] }})"))
    by_system = run([lua, script], clean, limit=300 << 20)
    assert (by_system.returncode, by_system.stdout, by_system.stderr) == (0, "1\tnot enough memory\n", "")


def test_it_prints_statistics(lua, clean):
    ran = run([lua, "--stats", ROOT / "examples/lua/binary_trees.lua"], clean)
    assert ran.returncode == 0
    said = json.loads(ran.stderr)
    assert said["schema"] == "hugeheap.stats/1"
    assert said["arenas_peak"] >= 2 and said["live_peak"] >= 2 << 20 and said["resident"] > 0


def test_it_hands_arguments_on_and_tells_errors(lua, clean, tmp_path):
    script = tmp_path / "arguments.lua"
    script.write_text("print(arg[0] ~= nil, arg[1], arg[2], ...)\nerror('wanted')\n")
    ran = run([lua, script, "a", "--stats"], clean)
    assert (ran.returncode, ran.stdout) == (1, "true\ta\t--stats\ta\t--stats\n")
    assert "wanted" in ran.stderr and "stack traceback" in ran.stderr


@pytest.mark.parametrize("words", [[], ["--stats"], ["--limit"], ["--limit", "x", "a.lua"], ["--limit", "-1", "a.lua"], ["--wrong", "a.lua"]])
def test_bad_usage_is_told(words, lua, clean):
    ran = run([lua, *words], clean)
    assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.startswith("usage: ")


def test_under_a_sanitizer(lua, compiled, clean):
    program = compiled(SOURCE, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", packages=("hugeheap", "lua5.4"))
    for script in SCRIPTS:
        ran = run([program, script], clean)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
