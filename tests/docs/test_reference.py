"""The reference says what the code says: settings, reasons, states, fields, options, exit codes, functions, links."""

import ast
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse

import pytest
from samples import COMMANDS, ROOT, documents

CRATES = ROOT / "crates"
# The first two have no number of runs of their own.
EXPERIMENTS = ("list", "all", "obmalloc", "give-back", "stride", "stranded", "startup", "cgroup", "alloc-rate", "gc", "cow", "heap-pages")  # fmt: skip


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


def described(path, enum):
    """What the comments of an enum say of its numbers."""
    text = read(path)
    body = text[text.index(f"pub enum {enum} {{") :]
    found = re.findall(r"^((?:    /// .+\n)+)    \w+ = (\d+),", body[: body.index("\n}\n")], re.M)
    return {int(number): " ".join(comment.replace("///", "").split()).rstrip(".") for comment, number in found}


def without_links(text):
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def test_fallbacks_and_what_to_do_are_as_the_code_has_them():
    """The hint of `memory_limit` came to name `HUGEHEAP_LIMIT`, and the reference did not."""
    path = "crates/hugeheap/src/telemetry/fallback.rs"
    source = re.sub(r"\\\n\s*", "", read(path))
    hints = re.findall(r'Self::\w+ => (?:\{\s*)?"([^"]* [^"]*)"', source)
    rows = re.findall(r"^\| (\d+) \| `\w+` \| (.+) \| (.+) \|$", read("docs/reference/telemetry-record.md").partition("\n## Fallbacks\n")[2].partition("\n## ")[0], re.M)
    comments = described(path, "Fallback")
    assert len(hints) == len(comments) == len(rows)
    for (number, what, hint), expected in zip(rows, hints, strict=True):
        assert (without_links(what), hint) == (comments[int(number)], expected)


def test_states_are_as_the_code_has_them():
    rows = re.findall(r"^\| (\d+) \| `\w+` \| (.+) \|$", read("docs/reference/telemetry-record.md").partition("\n## States\n")[2].partition("\n## ")[0], re.M)
    assert {int(number): without_links(meaning) for number, meaning in rows} == described("crates/hugeheap/src/telemetry/snapshot.rs", "HookState")


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
    # It said 816 when two fields had been added, and the mechanism's page 64 words.
    assert f"of which the first {offset} are used" in layout
    assert f"A write copies the snapshot, {offset - 16} bytes." in read("docs/mechanisms/telemetry.md")


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


def test_every_option_of_the_reference_exists(command):
    """The rows of the tables of options, each against all commands: a page may have options of several."""
    helped = ""
    for words in ((), *((name,) for name in COMMANDS), *(("bench", name) for name in EXPERIMENTS), *(("thp", name) for name in ("get", "set")), *(("pool", name) for name in ("list", "set", "ensure", "release"))):
        helped += subprocess.run([command, *words, "--help"], capture_output=True, text=True, check=True).stdout
    for page in (ROOT / "docs/reference").glob("*.md"):
        for row in re.findall(r"^\| (`-.*?) \|", page.read_text(), re.M):
            for option in re.findall(r"`(--[a-z-]+)", row):
                if page.name != "python.md":
                    assert re.search(rf"{option}\b", helped), f"{page.name}: {option}"
                else:
                    assert option in read("python/hugeheap/__main__.py"), option


def test_defaults_of_options_are_documented(command):
    compared = 0
    for words in (*((name,) for name in COMMANDS if name not in ("bench", "thp", "pool")), *(("bench", name) for name in EXPERIMENTS)):
        page = {"explain": "doctor", "man": "completions"}.get(words[0], words[0])
        rows = [row for row in read(f"docs/reference/{page}.md").splitlines() if row.startswith("|")]
        helped = subprocess.run([command, *words, "--help"], capture_output=True, text=True, check=True).stdout
        for option in re.split(r"\n\s+(?=(?:-\w, )?--[a-z])", helped)[1:]:
            name, default = re.match(r"(?:-\w, )?(--[a-z-]+)", option)[1], re.search(r"\[default: ([^\]]+)\]", option)
            if default:
                said = re.compile(rf"(?<![\w.]){re.escape(default[1])}(?!\w)")
                assert any(said.search(row) for row in rows if f"`{name}" in row), f"{name} of {' '.join(words)}: {default[1]}"
                compared += 1
    assert compared > 15


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_in_the_text_are_understood(document, command):
    """`hugeheap stat A ::: B` stood in README.md, which takes A for an option's value. What is typed in the text is understood, as samples are."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    for code in {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)}:
        if not (line := re.match(r"(?:sudo )?(?:[A-Z_]+=\S+ )*hugeheap (.+)", code)) or re.search(r"[…\[\]{}]|\.\.\.", code):
            continue
        # Not the words of a command that is started, nor what is the shell's.
        words = shlex.split(re.split(r"\s(?:--\s|--$|[&>|])", line[1])[0])
        words = ["1" if word == "PID" else "stride" if words[0] == "bench" and word == "NAME" else word for word in words]
        option = words.pop() if words[-1].startswith("-") else ""
        helped = subprocess.run([command, *words, "--help"], capture_output=True, text=True, check=False)
        assert helped.returncode == 0, f"`{code}`: {helped.stderr}"
        assert option in helped.stdout, f"`{code}`: there is no {option}"


def test_peers_and_its_workloads_are_documented():
    """By its source: the tests never build it."""
    text = read("bench/README.md")
    arguments = read("bench/peers/src/arguments.rs")
    arguments = arguments[arguments.index("pub(crate) struct Arguments {") :]
    found = re.findall(r"#\[arg\(([^\n]*\blong\b[^\n]*)\)\]\n    pub\(crate\) (\w+):", arguments[: arguments.index("\n}\n")])
    options = {(re.search(r'long = "(\w+)"', given) or [None, name.replace("_", "-")])[1] for given, name in found}
    documented = set(re.findall(r"`--([a-z-]+)", "".join(re.findall(r"^\| `-.*?\|", text, re.M))))
    assert len(options) > 15 and options == documented
    assert re.findall(r'^        name: "([a-z-]+)",$', read("bench/workloads/src/catalogue.rs"), re.M) == re.findall(r"^\| `([a-z-]+)` \| (?:any|one)", text, re.M)


def test_the_number_of_runs_is_what_the_code_takes(command):
    """Of `gc`, `cow` and `heap-pages` the help and the reference said 10, and with --quick 3."""
    row = re.search(r"^\| `--runs N` \| timed runs .*$", read("docs/reference/bench.md"), re.M)[0]
    for name in EXPERIMENTS[2:]:
        source = read(f"crates/hugeheap-cli/src/bench/{name.replace('-', '_')}/mod.rs")
        runs, quick = (re.search(rf"const {constant}: u32 = (\d+);", source)[1] for constant in ("RUNS", "QUICK_RUNS"))
        helped = " ".join(subprocess.run([command, "bench", name, "--help"], capture_output=True, text=True, check=True).stdout.split())
        if (runs, quick) == ("10", "3"):
            assert "--runs is" not in helped and f"`{name}`" not in row
        else:
            assert f"--runs is {runs} here unless given, with --quick {quick}" in helped, name
            assert re.search(rf"`{name}`[^;|]* {runs} and {quick}", row), name


# Every key of what is printed stands in one of the pages, but for what is below these: it is told elsewhere, or
# its keys are names that were given.
ELSEWHERE = {"host", "figures", "telemetry", "environment", "against_reference_program"}
# Keys that are names of what was measured or found.
NAMES = {"programs", "reference", "variants", "metrics", "workloads", "results", "unshared_share", "counters", "legend"}
QUICK = ["--quick", "--touch", "none", "--runs", "1", "-q", "--json"]
JSON = [
    (["status", "--json"], ["status", "pool"]),
    (["ps", "--json"], ["ps"]),
    (["ps", "--cgroups", "--json"], ["ps"]),
    (["map", "PID", "--json"], ["map"]),
    (["collapse", "PID", "--dry-run", "--json"], ["collapse"]),
    (["collapse", "PID", "--json"], ["collapse"]),
    (["release", "PID", "--json"], ["release"]),
    (["thp", "get", "--json"], ["thp"]),
    (["thp", "set", "mode=madvise", "--dry-run", "--json"], ["thp"]),
    (["pool", "list", "--json"], ["pool"]),
    (["pool", "set", "1", "--dry-run", "--json"], ["pool", "thp"]),
    (["doctor", "--json"], ["doctor"]),
    (["doctor", "--json", "--pid", "PID"], ["doctor"]),
    (["doctor", "--json", "--", "python3"], ["doctor"]),
    (["explain", "--json"], ["doctor"]),
    (["top", "--json", "--batch", "1"], ["top", "ps", "pool"]),
    (["tlb", "-q", "--json", "--", "true"], ["tlb"]),
    (["stat", "-q", "--json", "--runs", "2", "--", "true", ":::", "true"], ["stat"]),
    (["record", "-q", "-o", "record.json", "--", "sleep", "0.2"], ["record"]),
    (["bench", "list", "--json"], ["bench"]),
    (["bench", "obmalloc", *QUICK, "--workloads", "startup", "--policies", "auto", "--against", "none"], ["bench"]),
    (["bench", "give-back", *QUICK, "--cycles", "2", "--idle", "0.1", "--workloads", "instances", "--instances", "100000", "--policies", "auto", "--against", "none"], ["bench"]),
    (["bench", "stride", *QUICK, "--size", "16M"], ["bench"]),
    (["bench", "stranded", *QUICK, "--huge-pages", "8"], ["bench"]),
    (["bench", "startup", *QUICK, "--size", "16M", "--deadline", "1"], ["bench"]),
    (["bench", "cgroup", *QUICK, "--huge-pages", "8", "--idle", "0.1", "--step", "0.1"], ["bench"]),
    (["bench", "alloc-rate", *QUICK, "--volume", "64M", "--against", "none", "--sizes", "16", "--nurseries", "64K", "--no-instructions"], ["bench"]),
    (["bench", "gc", *QUICK, "--size", "4M", "--depth", "8", "--against", "none"], ["bench"]),
    (["bench", "cow", *QUICK, "--size", "16M", "--against", "cpython"], ["bench"]),
]  # fmt: skip


def keys_of(value, above=""):
    if isinstance(value, dict):
        for key, below in value.items():
            # A table of that name has names as its keys; objects in a list of that name have ours.
            if above not in NAMES:
                yield key
            if key not in ELSEWHERE:
                yield from keys_of(below, key)
    elif isinstance(value, list):
        for below in value:
            yield from keys_of(below)


@pytest.fixture(scope="module")
def busy():
    """The number of a process with a heap."""
    process = subprocess.Popen([sys.executable, "-c", "rows = [[float(n)] for n in range(300_000)]; print(flush=True); import time; time.sleep(600)"], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize(("words", "pages"), [pytest.param(words, pages, id=" ".join(words[:2])) for words, pages in JSON])
def test_every_field_of_the_json_is_documented(words, pages, command, environment, busy, tmp_path):
    words = [str(busy) if word == "PID" else word for word in words]
    ran = subprocess.run([command, *words], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=100, check=False)
    if ran.returncode in (3, 4):
        pytest.skip(ran.stderr.strip())
    text = (tmp_path / "record.json").read_text() if words[0] == "record" else ran.stdout
    # Of several lines each is an object of its own.
    value = json.loads(text.splitlines()[0] if words[0] == "top" else text)
    documented = set()
    for page in pages:
        for code in re.findall(r"`([^`\n]+)`", read(f"docs/reference/{page}.md")):
            documented |= set(re.findall(r"\w+(?:-\w+)*", code))
    keys = set(keys_of(value)) - {"schema"}
    assert len(keys) > 1
    assert keys <= documented, sorted(keys - documented)


def test_every_metric_is_documented_in_its_order(command, environment):
    said = subprocess.run([command, "export", "--once", "-q"], capture_output=True, text=True, env=environment, check=True).stdout
    helped = [(name, text.rstrip(".")) for name, text in re.findall(r"^# HELP (\w+) (.+)$", said, re.M)]
    rows = re.findall(r"^\| `(hugeheap_\w+)` \| (.*?) \| (.+?) \|$", read("docs/reference/export.md"), re.M)
    assert [(name, meaning) for name, _, meaning in rows] == helped
    labels = {name: set(re.findall(r"`(\w+)`", names)) for name, names, _ in rows}
    for name, given in re.findall(r"^(\w+)\{(.*)\} ", said, re.M):
        name = re.sub(r"_(?:bucket|sum|count)$", "", name) if name not in labels else name
        assert set(re.findall(r"(\w+)=\"", given)) <= labels[name], name


# What is for the headers' own use.
INTERNAL = re.compile(r"hh_(?:bin_of_|layout_|gc_layout_)|hh_gc_(?:bytes_with|compared|has_room|header_of|not_closed|not_open|pop_frame_|refill_open|round|take|take_items)$")


def test_every_function_of_the_headers_is_documented():
    for header, page in (("hugeheap.h", "c"), ("hugeheap_inline.h", "c"), ("hugeheap_gc.h", "gc-c")):
        code = re.sub(r"/\*.*?\*/", "", read(f"include/{header}"), flags=re.S)
        functions = {name for name in re.findall(r"\b(hh_\w+)\s*\(", code) if not INTERNAL.match(name)}
        documented = set(re.findall(r"\bhh_\w+", read(f"docs/reference/{page}.md")))
        assert functions and functions <= documented, sorted(functions - documented)


def test_what_documents_name_of_the_headers_is_there():
    there = set(re.findall(r"\b(?:hh|HH)_\w+", "".join(path.read_text() for path in (ROOT / "include").glob("*.h"))))
    for document in documents():
        named = set(re.findall(r"\b(?:hh|HH)_\w+", document.read_text()))
        assert named <= there, (document.name, sorted(named - there))


@pytest.mark.parametrize(("module", "page"), [("arena", "rust"), ("object", "rust"), ("large", "rust"), ("telemetry", "rust"), ("gc", "gc")])
def test_every_public_name_of_the_crate_is_documented(module, page):
    source = read(f"crates/hugeheap/src/{module}/mod.rs")
    names = set(re.findall(r"^pub (?:struct|enum|trait|fn|const|type) (\w+)", source, re.M))
    for several, one in re.findall(r"^pub use [\w:]+::(?:\{([^}]*)\}|(\w+));", source, re.M):
        names |= set(re.findall(r"\w+", several or one))
    documented = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", read(f"docs/reference/{page}.md")))))
    assert names and names <= documented, sorted(names - documented)


def test_the_python_package_is_documented():
    """Functions with their arguments and defaults, the fields of what they answer, codes of errors."""
    page = read("docs/reference/python.md")
    for module in ("_heap", "_observe"):
        for item in ast.parse(read(f"python/hugeheap/{module}.py")).body:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                plain = item.args
                for argument in (*plain.args, *plain.kwonlyargs):
                    argument.annotation = None
                assert f"| `{item.name}({ast.unparse(plain)})` |" in page, item.name
            if isinstance(item, ast.ClassDef):
                fields = [field.target.id for field in item.body if isinstance(field, ast.AnnAssign)]
                fields += [field.name for field in item.body if isinstance(field, ast.FunctionDef) and not field.name.startswith("_")]
                # In its row; of the two that have sections, there or in the record.
                row = re.search(rf"^\| `{item.name}` \|.*|\(each a `{item.name}`: .*", page, re.M)
                text = row[0] if row else page + read("docs/reference/telemetry-record.md")
                assert not (missing := [field for field in fields if f"`{field}`" not in text]), (item.name, missing)
    sources = [*(ROOT / "python/hugeheap").glob("*.py"), *(CRATES / "hugeheap-python/src").rglob("*.rs")]
    codes = set(re.findall(r'"((?:un|bad|not|no|main|foreign|merge|level|thp|permission|busy|failed)[a-z]*(?:-[a-z]+)*)"', "".join(path.read_text() for path in sources)))
    codes = {code for code in codes if "-" in code} | {"permission", "busy", "unsupported", "failed"}
    assert len(codes) > 20 and not (missing := [code for code in codes if f"`{code}`" not in page]), missing


def test_every_finding_is_documented_in_its_order():
    codes = re.findall(r'"(HH-[A-Z-]+)" (\w+);', read("crates/hugeheap-cli/src/doctor/codes.rs"))
    rows = re.findall(r"^\| `(HH-[A-Z-]+)` \| (\w+) \|", read("docs/reference/doctor.md"), re.M)
    assert rows == [(code, level.lower()) for code, level in codes] and rows
    assert f"{len(rows)} findings with stable codes" in read("CHANGELOG.md")


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
        ("partly.py", ["libc.so.6"]),
        ("cyclic.py", ["1000"]),
        ("vacant.py", ["--mib", "2", "--wait", "0"]),
        ("limited.py", ["60"]),
        ("merged.py", ["--mib", "2", "--until", "0"]),
        ("same.py", [command, "1", "3", "--", "true"]),
        ("placement.py", ["--copies", "2", "--runs", "2", "--", shutil.copy("/bin/true", tmp_path)]),
        ("record.py", [command, "1", "1"]),
        ("programs.py", ["--hugeheap", command, "--runs", "1", "--scale", "0.02", "--against", ""]),
    ):
        ran = subprocess.run(
            ["python3", directory / script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        if script == "stranded.py":
            assert "contents intact: True" in ran.stdout
        if script == "programs.py":
            assert "level malloc" in ran.stdout and "\npython " in ran.stdout
    assert {path.name for path in directory.glob("*.py")} == {
        "ahead.py", "blocks.py", "buffers.py", "calls.py", "common.py", "cycle.py", "cyclic.py", "drop.py", "limited.py", "merged.py", "metadata.py", "neighbours.py", "partly.py",
        "placement.py", "programs.py", "queues.py", "record.py", "retouch.py", "rounding.py", "rows.py", "same.py", "startup.py", "stranded.py", "tables.py", "tails.py", "text.py", "vacant.py",
    }  # fmt: skip


def test_documents_speak_of_the_project_alone():
    for document in documents():
        text = document.read_text()
        for word in ("/work/", "/root/", "TODO", "FIXME"):
            assert word not in text, f"{document}: {word}"


def test_files_and_tests_that_documents_name_exist():
    sources = [*CRATES.rglob("*.rs"), *(ROOT / "bench").glob("*/src/*.rs"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "tests").rglob("*.c")]
    known = {word for path in sources for word in re.findall(r"\w+", path.read_text())}
    for document in documents():
        prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
        for path in re.findall(r"`((?:crates|tests|docs|bench|fuzz|examples|include|python)/[\w./{},-]+)`", prose):
            before, _, rest = path.partition("{")
            names, _, after = rest.partition("}")
            for name in names.split(","):
                assert (ROOT / (before + name + after)).exists() or path.startswith("bench/target/"), (document.name, path)
        # Names of four words and more, but those of metrics, are of tests and functions.
        for name in re.findall(r"`([a-z]+(?:_[a-z0-9]+){3,})`", prose):
            assert name in known or name.startswith(("hugeheap_", "node_", "sched_")), (document.name, name)


def test_the_table_of_a_module_has_its_files():
    tables = 0
    for source in [*CRATES.rglob("mod.rs"), *CRATES.rglob("lib.rs")]:
        text = source.read_text()
        if "//! | file | concept |" not in text:
            continue
        files = set(re.findall(r"^(?:pub(?:\([^)]*\))? )?mod (\w+);", text, re.M)) - {"tests"}
        rows = {name for row in re.findall(r"^//! \| (.*?) \|", text, re.M) for name in re.findall(r"`(\w+)`", row)}
        assert files == rows, (source, sorted(files ^ rows))
        tables += 1
    assert tables > 3


def test_directories_of_the_layout_exist():
    """CONTRIBUTING names directories; those it names exist."""
    text = read("CONTRIBUTING.md")
    for path in re.findall(r"`((?:crates|tests|docs|python|fuzz|bench)/[\w./-]*)`", text):
        assert pathlib.Path(ROOT / path).exists(), path
    # Directories with tests or crates, each with a row.
    for path in (*CRATES.iterdir(), *(path.parent for path in (ROOT / "tests").glob("*/test_*.py"))):
        assert f"`{path.relative_to(ROOT)}/`" in text, path
