"""The reference says what the code says: settings, reasons, states, fields, options, exit codes, links."""

import pathlib
import re
import shutil
import subprocess
import urllib.parse

import pytest
from samples import ROOT, documents

CRATES = ROOT / "crates"


def read(path):
    return (ROOT / path).read_text()


def test_every_variable_is_documented():
    used = set()
    for source in [*CRATES.rglob("*.rs"), *(ROOT / "python").rglob("*.py")]:
        used |= set(re.findall(r"\bHUGEHEAP_[A-Z_]+[A-Z]\b", source.read_text()))
    documented = set(re.findall(r"HUGEHEAP_[A-Z_]+[A-Z]\b", read("docs/reference/environment.md")))
    used = {name for name in used if not name.startswith("HUGEHEAP_TEST_")}
    assert used <= documented, sorted(used - documented)
    assert documented <= used, sorted(documented - used)


def test_the_longest_name_of_a_directory_for_records_is_documented():
    longest = re.search(r"const DIRECTORY_NAME_MAX: usize = (\d+);", read("crates/hugeheap/src/telemetry/publish.rs")).group(1)
    assert f"name up to {longest} bytes" in read("docs/reference/environment.md")


def names_of(path, enum):
    """The names an enum's `name` function answers."""
    text = read(path)
    body = text[text.index(f"impl {enum} ") :]
    body = body[body.index("fn name(self)") :]
    return re.findall(r'=> "([a-z0-9_]+)"', body[: body.index("\n    }\n")])


@pytest.mark.parametrize(
    ("path", "enum", "count"),
    [
        ("crates/hugeheap/src/telemetry/fallback.rs", "Fallback", 19),
        ("crates/hugeheap/src/telemetry/snapshot.rs", "HookState", 10),
        ("crates/hugeheap/src/arena/policy.rs", "Policy", 5),
    ],
)
def test_every_name_is_documented_in_its_order(path, enum, count):
    names = names_of(path, enum)
    assert len(names) == count
    text = read("docs/reference/telemetry-record.md")
    places = [text.find(f"| `{name}` |") for name in names]
    assert min(places) >= 0, [name for name, place in zip(names, places, strict=True) if place < 0]


# The widths of the fields that are no single u64.
WIDTHS = {"u32": 4, "u64": 8, "[u8; 32]": 32, "[u64; Fallback::ROOM]": 24 * 8, "[u64; PAUSE_LENGTHS]": 24 * 8}


def test_the_layout_of_the_record_is_documented():
    text = read("crates/hugeheap/src/telemetry/snapshot.rs")
    body = text[text.index("pub struct Snapshot {") :]
    fields = re.findall(r"pub (\w+): ([^,\n]+),", body[: body.index("\n}\n")])
    offset = 16
    rows = []
    for name, kind in fields:
        rows.append((str(offset), name))
        offset += WIDTHS[kind]
    layout = read("docs/reference/telemetry-record.md").partition("\n## ")[0]
    documented = re.findall(r"^\| (\d+) \| `(\w+)` \|", layout, re.M)
    assert [row for row in documented if int(row[0]) >= 16] == rows


def test_every_option_is_documented(command):
    commands = [
        (["run"], "run"),
        (["bench", "obmalloc"], "bench"),
        (["bench", "give-back"], "bench"),
        (["bench", "stride"], "bench"),
        (["bench", "stranded"], "bench"),
        (["bench", "startup"], "bench"),
        (["bench", "cgroup"], "bench"),
        (["bench", "alloc-rate"], "bench"),
        (["bench", "gc"], "bench"),
        (["bench", "cow"], "bench"),
        (["bench", "heap-pages"], "bench"),
        (["bench", "list"], "bench"),
        (["bench", "all"], "bench"),
        (["tlb"], "tlb"),
        (["stat"], "stat"),
        (["record"], "record"),
        (["report"], "report"),
        (["collapse"], "collapse"),
        (["release"], "release"),
        (["map"], "map"),
        (["ps"], "ps"),
        (["top"], "top"),
        (["completions"], "completions"),
        (["man"], "completions"),
        (["thp", "get"], "thp"),
        (["thp", "set"], "thp"),
        (["pool", "list"], "pool"),
        (["pool", "set"], "pool"),
        (["pool", "ensure"], "pool"),
        (["pool", "release"], "pool"),
        (["status"], "status"),
        (["export"], "export"),
        (["doctor"], "doctor"),
        (["explain"], "doctor"),
    ]
    # Of every command, and documented once.
    everywhere = ("--help", "--version", "--no-color", "--quiet", "--verbose", "--root")
    for words, page in commands:
        text = subprocess.run([command, *words, "--help"], capture_output=True, text=True, check=True).stdout
        documented = read(f"docs/reference/{page}.md")
        for option in re.findall(r"^\s+(?:-\w, )?(--[a-z-]+)", text, re.M):
            if option not in everywhere:
                assert f"`{option}" in documented, f"{option} of hugeheap {' '.join(words)}"


def test_every_finding_is_documented_in_its_order():
    codes = re.findall(r'"(HH-[A-Z-]+)" (\w+);', read("crates/hugeheap-cli/src/doctor/codes.rs"))
    rows = re.findall(r"^\| `(HH-[A-Z-]+)` \| (\w+) \|", read("docs/reference/doctor.md"), re.M)
    assert rows == [(code, level.lower()) for code, level in codes] and rows


def test_exit_codes_are_documented():
    codes = re.findall(r"pub const \w+: u8 = (\d+);", read("crates/hugeheap-cli/src/exit.rs"))
    documented = re.findall(r"^\| (\d+) \|", read("docs/reference/exit-status.md"), re.M)
    assert set(codes) <= set(documented)


def anchors(document):
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = document if not path else document.parent / urllib.parse.unquote(path)
        assert file.exists(), f"{target} leads nowhere"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{target}: no such heading"


def test_every_page_can_be_reached():
    index = read("docs/index.md")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "index.md" or f"({name})" in index, f"docs/index.md does not name {name}"


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_one_word_for_one_thing(document):
    """The vocabulary of CONTRIBUTING.md; `code` and tables that quote the kernel are free."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    text = re.sub(r"`[^`]*`", "", text)
    for wrong, right in {
        r"\bhugepages?\b": "huge page",
        r"\bsuperpages?\b": "huge page",
        r"\bbase pages?\b": "OS page",
        r"\bsmall pages?\b": "OS page",
        r"\bchunks? of arena": "page run",
    }.items():
        hits = re.findall(wrong, text, re.I)
        assert not hits, f"{hits[0]!r}: say {right!r}"


def test_scripts_of_the_measurements_run(tmp_path, command):
    """The figures of the mechanisms pages come from these scripts; here they run with little memory."""
    directory = ROOT / "docs/measurements"
    for script, arguments in (
        ("stranded.py", ["8"]),
        ("neighbours.py", ["8"]),
        ("ahead.py", ["4"]),
        ("retouch.py", ["4", "0"]),
        ("calls.py", ["4"]),
        ("cycle.py", ["10000", "2", "0"]),
        ("drop.py", ["1000", "2"]),
        ("metadata.py", ["1000"]),
        ("tables.py", ["1"]),
        ("tails.py", []),
        ("buffers.py", []),
        ("queues.py", []),
        ("rows.py", []),
        ("text.py", []),
        ("rounding.py", ["libc.so.6"]),
        ("cyclic.py", ["1000"]),
        ("vacant.py", ["--mib", "2", "--wait", "0"]),
        ("limited.py", ["60"]),
        ("merged.py", ["--mib", "2", "--until", "0"]),
        ("same.py", [command, "1", "3", "--", "true"]),
        ("placement.py", ["--copies", "2", "--runs", "2", "--", shutil.copy("/bin/true", tmp_path)]),
        ("record.py", [command, "1", "1"]),
    ):
        ran = subprocess.run(
            ["python3", directory / script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        if script == "stranded.py":
            assert "contents intact: True" in ran.stdout
    assert {path.name for path in directory.glob("*.py")} == {
        "ahead.py", "buffers.py", "calls.py", "common.py", "cycle.py", "cyclic.py", "drop.py", "limited.py", "merged.py", "metadata.py", "neighbours.py",
        "placement.py", "queues.py", "record.py", "retouch.py", "rounding.py", "rows.py", "same.py", "startup.py", "stranded.py", "tables.py", "tails.py", "text.py", "vacant.py",
    }  # fmt: skip


def test_documents_speak_of_the_project_alone():
    for document in documents():
        text = document.read_text()
        for word in ("/work/", "/root/", "TODO", "FIXME"):
            assert word not in text, f"{document}: {word}"


def test_directories_of_the_layout_exist():
    """CONTRIBUTING names directories; those it names exist."""
    text = read("CONTRIBUTING.md")
    for path in re.findall(r"`((?:crates|tests|docs|python|fuzz|bench)/[\w./-]*)`", text):
        assert pathlib.Path(ROOT / path).exists(), path
