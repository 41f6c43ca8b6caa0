"""The samples in README.md, docs/ and other documents: finding them, and what surrounds them.

A sample is a fenced block. Its language says what is done with it; see "Samples" in CONTRIBUTING.md. HTML comments
directly above the fence change that:

    <!-- not run: REASON -->      not executed; what can be checked without running it is
    <!-- needs: NAME -->          executed where NAME (hugetlb, huge-pages, mapping-names, other-processes, ruby, php) is there, else checked like the above
    <!-- numbers: vary -->        each number of the expected output stands for any number, each unit for any unit
"""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\s*$")
COMMENT = re.compile(r"^\s*<!--\s*(?P<name>[a-z ]+):\s*(?P<value>.*?)\s*-->\s*$")

# Executed and checked.
EXECUTED = {"console", "python", "rust", "c"}
# Configuration: parsed as far as a parser is at hand, and the hugeheap commands in it checked.
CONFIGURATION = {"ini", "dockerfile", "yaml", "toml", "sh"}
# Diagrams, output, layouts.
PROSE = {"text", "markdown"}


@dataclasses.dataclass(frozen=True)
class Sample:
    """A fenced block of a document."""

    document: pathlib.Path
    line: int
    language: str
    text: str
    notes: tuple[tuple[str, str], ...]

    @property
    def name(self):
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    def note(self, name):
        return dict(self.notes).get(name)


def documents():
    """README.md, the other documents at the top, everything below docs/, and what `bench/` and examples of several files say of themselves."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md", "examples/lisp/README.md")]
    return top + sorted((ROOT / "docs").rglob("*.md"))


def samples_of(document):
    """The fenced blocks of a document, in order."""
    found = []
    lines = document.read_text().splitlines()
    number = 0
    notes = []
    while number < len(lines):
        line = lines[number]
        fence = FENCE.match(line)
        if fence:
            begin = number + 1
            end = begin
            close = fence["indent"] + "```"
            while end < len(lines) and lines[end].rstrip() != close:
                end += 1
            if end == len(lines):
                raise ValueError(f"{document}:{begin}: the fence is not closed")
            indent = len(fence["indent"])
            text = "\n".join(text[indent:] for text in lines[begin:end]) + "\n"
            found.append(Sample(document, begin, fence["language"], text, tuple(notes)))
            notes = []
            number = end + 1
            continue
        comment = COMMENT.match(line)
        if comment:
            notes.append((comment["name"], comment["value"]))
        elif line.strip():
            notes = []
        number += 1
    return found


def all_samples():
    return [sample for document in documents() if document.exists() for sample in samples_of(document)]


@dataclasses.dataclass
class Command:
    """A command of a console block, and what it is said to print."""

    text: str
    expected: list[str]


def commands_of(console):
    """The commands of a console block: `$ ` begins one, `> ` continues it, the rest is output."""
    commands = []
    for line in console.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], []))
        elif line.startswith("> ") and commands and not commands[-1].expected:
            commands[-1].text += "\n" + line[2:]
        elif commands:
            commands[-1].expected.append(line)
        elif line.strip():
            raise ValueError(f"output before the first command: {line!r}")
    return commands


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)*(?: (?:B|KiB|MiB|GiB|µs|ms|s)\b)?")


def pattern_of(line, vary):
    """What a line of expected output stands for."""
    parts = []
    for text in line.rstrip().split("..."):
        if vary:
            pieces = [re.escape(piece) for piece in NUMBER.split(text)]
            parts.append(r"\d[\d,.]*(?: [A-Za-zµ]+)?".join(pieces))
        else:
            parts.append(re.escape(text))
    # Columns of numbers are aligned: their width varies with them.
    return re.sub(r"(?:\\ ){2,}", r"\\s+", ".*".join(parts)) if vary else ".*".join(parts)


def matches(expected, actual, vary=False):
    """Whether lines are as expected: `...` on a line of its own is any number of lines, within a line any text."""
    while expected and not expected[-1].strip():
        expected = expected[:-1]
    while actual and not actual[-1].strip():
        actual = actual[:-1]
    if not expected:
        return not actual
    if expected[0].strip() == "...":
        return any(matches(expected[1:], actual[skip:], vary) for skip in range(len(actual) + 1))
    if not actual:
        return False
    fits = re.fullmatch(pattern_of(expected[0], vary), actual[0].rstrip()) is not None
    return fits and matches(expected[1:], actual[1:], vary)


COMMANDS = ("run", "bench", "stat", "record", "report", "collapse", "release", "map", "ps", "top", "thp", "tlb", "pool", "export", "status", "doctor", "explain", "completions", "man")  # fmt: skip
HUGEHEAP = re.compile(rf"(?:^|[\s;&|=\"'\[,(])(?:[\w./]*/)?hugeheap (?P<rest>(?:-q )?(?:{'|'.join(COMMANDS)})\b.*)$")


def hugeheap_commands(text):
    """The command lines of hugeheap in any text, without what belongs to the command they start."""
    found = []
    joined = re.sub(r"\\\n[>\s]*", " ", text)
    # Lists of words, as Dockerfiles and pod specifications have them.
    joined = re.sub(r"\[([^\]\n]*)\]", lambda m: m[1].replace('",', "").replace('"', ""), joined)
    for line in joined.splitlines():
        match = HUGEHEAP.search(line)
        if match:
            rest = re.split(r"\s--(?:\s|$)", match["rest"])[0]
            # Up to what is the shell's, but for what stands in quotes.
            found.append(re.match(r"""(?:'[^']*'|"[^"]*"|\S|\s(?![#>|;&]))*""", rest)[0].strip())
    return found
