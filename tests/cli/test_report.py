"""`hugeheap report` end to end: one page out of measurements of every kind."""

import json
import os
import re
import xml.dom.minidom

import pytest


def recording(name, peak):
    rss = [1 << 20, peak, peak // 2]
    return {"schema": "hugeheap.record/1", "name": name, "samples": {"seconds": [0, 0.5, 1], "rss": rss}}


@pytest.fixture
def files(tmp_path):
    """A file of each kind; results of experiments carry their figures."""
    figure = {"title": "Bars <of> an experiment", "kind": "bars", "unit": "ratio", "reference": 1.0,
              "groups": [{"name": "g", "bars": [{"name": "auto", "value": 0.9, "low": 0.8, "high": 0.95}]}]}  # fmt: skip
    kinds = {
        "glibc_1.json": recording("glibc", 60 << 20),
        "glibc_2.json": recording("glibc", 62 << 20),
        "bench.json": {"schema": "hugeheap.bench.stride/1", "figures": [figure], "host": {"kernel": "6.1"}},
    }
    for name, value in kinds.items():
        (tmp_path / name).write_text(json.dumps(value))
    # As mstat writes them, too.
    (tmp_path / "jemalloc_1.tsv").write_text("time\trss\tkernel\n0\t1048576\t0\n900000000\t50000000\t0\n")
    return [*(tmp_path / name for name in kinds), tmp_path / "jemalloc_1.tsv"]


def test_a_page_has_everything_in_it(hugeheap, files, tmp_path):
    page, plots = tmp_path / "report.html", tmp_path / "plots"
    result = hugeheap("report", *files, "-o", page, "--plots", plots, "--title", "A & B")
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert "<title>A &amp; B</title>" in text and "Bars &lt;of&gt; an experiment" in text
    for words in ("RSS over time", "Maximum of RSS", "glibc (2)", "jemalloc (1)", "prefers-color-scheme: dark", "@media print"):
        assert words in text, words
    # Nothing is fetched: no address but the name of SVG's language.
    assert set(re.findall(r"https?://[^\"' <]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)\b|<script[^>]*src", text)
    names = sorted(path.name for path in plots.iterdir())
    assert names == ["bars-of-an-experiment.svg", "maximum-of-rss.svg", "rss-over-time.svg"]
    for path in plots.iterdir():
        xml.dom.minidom.parse(str(path))
    # Alone a plot needs its note.
    assert "median" in (plots / "rss-over-time.svg").read_text()


def test_measurements_of_this_program_are_understood(hugeheap, tmp_path):
    stat, record = tmp_path / "stat.json", tmp_path / "record.json"
    assert hugeheap("stat", "--runs", "2", "--warmup", "0", "--json", stat, "--", "true", ":::", "true").returncode == 0
    assert hugeheap("record", "-o", record, "--", "sleep", "0.3").returncode == 0
    page = tmp_path / "report.html"
    result = hugeheap("report", stat, record, "-o", page)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert "Commands compared" in text and "Memory over time" in text and "hugeheap stat --runs 2" in text


def test_a_map_is_drawn_in_squares(hugeheap, tmp_path):
    # Of the process of this test, which has a huge page's worth of memory somewhere.
    held = bytearray(b"x" * (8 << 20))
    result = hugeheap("--json", "map", os.getpid())
    assert result.returncode == 0 and held, result.stderr
    value = json.loads(result.stdout)
    squares = value["figures"][0]
    assert squares["kind"] == "squares" and any(row["squares"] for row in squares["rows"])
    value["process"]["name"] = "<b>"
    (tmp_path / "map.json").write_text(json.dumps(value))
    result = hugeheap("report", "map.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "report.html").read_text()
    assert f"Memory of &lt;b&gt; ({value['process']['id']})" in text
    assert text.count("% in memory") >= sum("kind" in square for row in squares["rows"] for square in row["squares"])


def test_what_should_be_known_before_a_measurement_is_believed_is_on_the_page(hugeheap, files, tmp_path):
    value = json.loads(files[2].read_text())
    commands = [{"name": "slow", "failure": "exit status: 3"}, {"name": "quick", "failure": None}]
    remarks = {"quick": True, "interrupted_by_signal": 2, "counters_unavailable": "none here", "commands": commands}
    files[2].write_text(json.dumps({**value, **remarks}))
    going_on = tmp_path / "going-on.json"
    going_on.write_text(json.dumps({**recording("glibc", 1 << 21), "ended": None}))
    page = tmp_path / "report.html"
    assert hugeheap("report", files[2], going_on, "-o", page).returncode == 0
    said = re.findall(r"<li>([^<]*)</li>", page.read_text())
    assert said == [
        "hardware counters: none here",
        "a first look (--quick): too few runs for conclusions",
        "interrupted by signal 2: less than was planned",
        "slow failed: exit status: 3",
        "going-on.json: the recording was not ended; this is what there was until then",
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("{", "is neither JSON"),
        ('{"a": 1}', "JSON of something else"),
        ('{"schema": "hugeheap.ps/1"}', "nothing of schema hugeheap.ps/1 can be drawn"),
        ('{"schema": "hugeheap.bench.x/1", "figures": [{"kind": "pie"}]}', "its figures are not understood"),
        ('{"schema": "hugeheap.bench.obmalloc/1"}', "hugeheap.bench.obmalloc/1 can be drawn: it has no figures"),
        ("time\trss\nsoon\t1\n", "line 2: 'soon' is no whole number"),
        ("time\trss\n", "nothing was recorded"),
    ],
)
def test_files_that_are_none_are_told(hugeheap, tmp_path, content, words):
    file = tmp_path / "file.json"
    file.write_text(content)
    result = hugeheap("report", file, "-o", tmp_path / "report.html")
    assert result.returncode == 2 and words in result.stderr and "file.json" in result.stderr, result.stderr
    assert not (tmp_path / "report.html").exists()


def test_what_cannot_be_written_is_told(hugeheap, files):
    result = hugeheap("report", files[0], "-o", "/dev/full")
    assert result.returncode == 3 and "/dev/full could not be written" in result.stderr
    result = hugeheap("report", "/no/such/file")
    assert result.returncode == 2 and "/no/such/file cannot be read" in result.stderr


def test_a_file_that_may_not_be_read_is_no_mistyped_one(hugeheap, files):
    """It was status 2, as for a name that is not there."""
    files[0].chmod(0)
    nobody = {"user": 65534} if os.geteuid() == 0 else {}
    for folder in files[0].parents:
        if nobody and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o11)
            break
    result = hugeheap("report", files[0], "-o", "/dev/null", **nobody)
    assert result.returncode == 4 and f"{files[0]} cannot be read: Permission denied" in result.stderr, result


def test_a_device_without_an_end_is_told(hugeheap):
    """It was read for ever."""
    result = hugeheap("report", "/dev/zero", "-o", "/dev/null", timeout=60)
    assert result.returncode == 2 and "/dev/zero is no text" in result.stderr


def test_numbers_and_titles_that_no_measurement_has_are_drawn_all_the_same(hugeheap, tmp_path):
    """A value with hundreds of digits left no room for its bars, ends of an axis were no numbers, a title was too long for a file: a panic."""
    bars = {
        "title": "long " * 1000, "note": "", "kind": "bars", "unit": "ratio", "reference": 1.0,
        "groups": [{"name": "g", "bars": [{"name": "a", "value": 0, "low": None, "high": None, "significant": None}]}],
    }  # fmt: skip
    for value in (1e308, -1e308, 5e-324, 1e18):
        bars["groups"][0]["bars"][0]["value"] = value
        source = tmp_path / "a.json"
        source.write_text(json.dumps({"schema": "hugeheap.stat/1", "hugeheap": "0", "figures": [bars, {**bars, "reference": value}]}))
        result = hugeheap("report", source, "-o", tmp_path / "a.html", "--plots", tmp_path / "plots")
        assert result.returncode == 0, (value, result.stderr)
    assert len(list((tmp_path / "plots").iterdir())) == 2
