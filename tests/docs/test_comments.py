"""Comments of Rust and C are as wide as the code. What is drawn, tables and commands stay whole."""

import re

from samples import ROOT

# They are wrapped at 112 characters; what is between was so before.
WIDTH = 120
MARKS = re.compile(r"\s*(?://[/!]?|/?\*)(?: (.*))?$")


def wide(text):
    """The numbers of lines with comments that are too wide."""
    drawn = False
    for number, line in enumerate(text.splitlines(), start=1):
        comment = MARKS.match(line)
        if comment is None:
            drawn = False
            continue
        said = (comment[1] or "").strip()
        if said.startswith("```"):
            drawn = not drawn
        # Columns are what more than one space is between. A command in backquotes is one word.
        whole = drawn or said.startswith("|") or "----" in said or re.search(r"\S {2,}\S", said) or re.fullmatch(r"\W*`[^`]+`\W*", said)
        if len(line) > WIDTH and not whole:
            yield number


def test_comments_are_as_wide_as_the_code():
    sources = [path for folder in ("crates", "bench", "include", "examples", "fuzz", "tests") for path in (ROOT / folder).rglob("*") if path.suffix in (".rs", ".c", ".h")]
    sources = [path for path in sources if "target" not in path.parts]
    assert len(sources) > 500
    assert not [f"{path.relative_to(ROOT)}:{number}" for path in sources for number in wide(path.read_text())]


def test_a_wide_comment_is_found_and_a_wide_diagram_is_not():
    words = "word " * 30
    assert list(wide(f"/// {words}\nlet x;\n// {words}")) == [1, 3]
    assert not list(wide(f"// (`{words}`).\n//! ```text\n//! {words}\n//! ```\n//! | {words} |\n/* {'-' * 140} */\nlet text = \"{words}\";"))
    # What was drawn ends with its comment.
    assert list(wide(f"/// ```\nlet x;\n/// {words}")) == [3]
