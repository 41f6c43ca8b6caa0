"""`hugeheap completions` in real shells, and `hugeheap man` through real formatters."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

TIMEOUT = 60
INSTALL = Path(__file__).resolve().parents[2] / "crates/hugeheap-cli/install.sh"

# What bash does when Tab is pressed: the function of the command, with the words and where the cursor is.
COMPLETE = """
set -u
source /dev/stdin <<'SCRIPT'
{script}
SCRIPT
COMP_WORDS=({words}); COMP_CWORD={last}; COMPREPLY=()
function_of=$(complete -p hugeheap | sed -E 's/.* -F ([^ ]+) .*/\\1/')
"$function_of" hugeheap "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def completed(hugeheap):
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    script = hugeheap("completions", "bash").stdout

    def complete(*words):
        text = COMPLETE.format(script=script, words=" ".join(f"'{word}'" for word in words), last=len(words) - 1)
        ran = subprocess.run(["bash", "--norc"], input=text, capture_output=True, text=True, timeout=TIMEOUT)
        assert ran.returncode == 0 and not ran.stderr, ran.stderr
        return ran.stdout.split()

    return complete


def test_bash_completes_commands_options_and_values(completed):
    assert {"run", "top", "ps", "map", "doctor", "pool", "completions"} <= set(completed("hugeheap", ""))
    assert completed("hugeheap", "colla") == ["collapse"]
    assert {"list", "set", "ensure", "release"} <= set(completed("hugeheap", "pool", ""))
    assert "--interval" in completed("hugeheap", "top", "--int")
    assert {"rss", "stranded", "name"} <= set(completed("hugeheap", "top", "--sort", ""))
    assert completed("hugeheap", "run", "--policy", "huge") == ["hugetlb"]


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_other_shells_can_read_theirs(hugeheap, tmp_path, shell, check):
    file = tmp_path / "script"
    file.write_text(hugeheap("completions", shell).stdout)
    assert "hugeheap" in file.read_text()
    if shutil.which(check[0]) is None:
        pytest.skip(f"no {shell} here")
    assert subprocess.run([*check, file], timeout=TIMEOUT).returncode == 0


def formatted(text):
    """A page as a reader sees it, and what the formatter complains about."""
    if shutil.which("man"):
        command = ["man", "--warnings", "-l", "-"]
    elif shutil.which("groff"):
        command = ["groff", "-man", "-Tascii", "-ww"]
    else:
        pytest.skip("neither man nor groff here")
    environment = {"MANPAGER": "cat", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "GROFF_NO_SGR": "1"}
    ran = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=TIMEOUT)
    if "has been minimized" in ran.stdout:
        pytest.skip("man is a stub here")
    assert ran.returncode == 0, ran.stderr
    # Bold and underlined by overstriking.
    return re.sub(".\b", "", ran.stdout), ran.stderr


def test_every_page_is_written_and_can_be_read(hugeheap, tmp_path):
    result = hugeheap("man", "--out", tmp_path / "man1", "-v")
    assert result.returncode == 0 and "hugeheap.1 written" in result.stderr
    names = {path.name for path in (tmp_path / "man1").iterdir()}
    assert {"hugeheap.1", "hugeheap-run.1", "hugeheap-top.1", "hugeheap-pool-set.1", "hugeheap-bench-obmalloc.1"} <= names
    for name in names:
        text = (tmp_path / "man1" / name).read_text()
        assert text.count(".SH ") >= 4 and ".SH EXAMPLES" in text, name
    shown, complaints = formatted((tmp_path / "man1/hugeheap-pool-set.1").read_text())
    assert complaints == ""
    lines = [line.strip() for line in shown.splitlines()]
    for title in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO"):
        assert title in lines, shown
    assert any(line.startswith("hugeheap pool set 256 ") for line in lines), "examples keep their lines"
    assert "Reserves what is possible" in " ".join(shown.split())


def test_one_page_goes_to_standard_output(hugeheap):
    assert hugeheap("man").stdout.count(".SH EXAMPLES") == 1
    shown, _ = formatted(hugeheap("man", "top").stdout)
    assert "hugeheap-top" in shown and "--interval" in shown


def test_help_is_the_whole_text(hugeheap):
    for words, part in (
        (["run"], "The command replaces hugeheap"),
        (["top"], "? shows the keys"),
        (["doctor"], "Changes nothing"),
        (["pool", "set"], "Reserves what is possible"),
    ):
        text = hugeheap(*words, "--help").stdout
        assert part in " ".join(text.split()) and "Examples:" in text, words


def test_mistakes_are_said(hugeheap, tmp_path):
    result = hugeheap("completions", "tcsh")
    assert result.returncode == 2 and "bash" in result.stderr
    result = hugeheap("man", "pool", "swim")
    assert result.returncode == 2 and "there is no command 'pool swim'" in result.stderr
    (tmp_path / "file").write_text("")
    result = hugeheap("man", "--out", tmp_path / "file")
    assert result.returncode == 2 and "file" in result.stderr
    for words in (["completions", "bash"], ["man"]):
        result = hugeheap("--json", *words)
        assert result.returncode == 2 and "leave --json out" in result.stderr


def install(built, **variables):
    environment = {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run([INSTALL, built], env=environment, capture_output=True, text=True, timeout=TIMEOUT)


def test_everything_is_installed_and_runs_from_there(program, library, python, environment, tmp_path):
    made = install(program.parent, PREFIX="/usr", DESTDIR=str(tmp_path))
    assert made.returncode == 0, made.stderr
    prefix = tmp_path / "usr"
    for name in (
        "share/bash-completion/completions/hugeheap",
        "share/zsh/site-functions/_hugeheap",
        "share/fish/vendor_completions.d/hugeheap.fish",
        "share/man/man1/hugeheap.1",
        "share/man/man1/hugeheap-top.1",
    ):
        assert "hugeheap" in (prefix / name).read_text()
    line = "print(any('libhugeheap_preload' in line for line in open('/proc/self/maps')))"
    command = [prefix / "bin/hugeheap", "run", "--", python, "-c", line]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert ran.stdout == "True\n", ran.stderr
    for built, variables, word in ((tmp_path, {}, "no hugeheap in"), (program.parent, {"PREFIX": "here"}, "absolute")):
        made = install(built, **{"PREFIX": str(tmp_path), **variables})
        assert made.returncode == 1 and word in made.stderr
