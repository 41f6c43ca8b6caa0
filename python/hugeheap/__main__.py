"""``python -m hugeheap script.py``: run a program on hugeheap in this interpreter.

The third way, beside ``hugeheap run`` and ``hugeheap.enable()``: for a program whose start cannot be wrapped and whose
code should not be touched. What the interpreter allocated before stays where it is, and processes that the program
starts anew are not on hugeheap (forked ones are).

The program gets what the interpreter itself would give it: ``sys.argv``, ``sys.path[0]``, a ``__main__`` of its own that
lives until the process ends, and the exit status.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import sys
import types
from dataclasses import dataclass
from typing import NoReturn

import hugeheap

from ._native import native

USAGE = """\
usage: python -m hugeheap [--level L] [--policy P] [--decay S] [--limit BYTES] [--merge] [--summary]
                          (SCRIPT | -m MODULE | -c CODE) [ARG ...]

Run a Python program with its objects on huge pages.

  --level L        arenas or objects
  --policy P       auto, thp, dense, hugetlb or base
  --decay S        seconds that memory is kept after it was needed
  --limit BYTES    above which nothing is kept for reuse; with K, M, G or T, as in 1.5G
  --merge          make OS pages alike of which little is used, for a host that merges equal
                   pages (KSM); needs level objects
  --summary        say at exit, on stderr, what happened

To start any command on hugeheap, not only Python: hugeheap run -- COMMAND
"""


@dataclass
class Given:
    """The command line. What follows the program's name is the program's, whatever it looks like."""

    level: str | None = None
    policy: str | None = None
    decay: float | None = None
    limit: int | None = None
    #: ``None``: as the environment says.
    merge: bool | None = None
    summary: bool = False
    #: ``m``, ``c``, or empty for a script.
    kind: str = ""
    target: str = ""
    arguments: tuple[str, ...] = ()


def _tell(text: str) -> None:
    # Without a standard error `print` would take standard output, which is the program's.
    if sys.stderr is not None:
        print(text, file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    _tell(f"{USAGE.splitlines()[0]} ...\npython -m hugeheap: {message}")
    sys.exit(2)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        _refuse(f"--decay {text}: give seconds, such as 0.5")


def _bytes(text: str) -> int:
    try:
        # The same words as for `hugeheap run` and `HUGEHEAP_LIMIT`.
        return native.bytes_of(text if text.isascii() else "?")
    except ValueError as error:
        _refuse(f"--limit {text}: {error}")


def _parse(words: list[str]) -> Given:
    given = Given()
    rest = list(words)

    def value(option: str, attached: str) -> str:
        if attached:
            return attached
        if not rest:
            _refuse(f"{option} needs a value")
        return rest.pop(0)

    while rest:
        word = rest.pop(0)
        name, _, attached = word.partition("=")
        if word in ("-h", "--help"):
            print(USAGE, end="")
            sys.exit(0)
        elif word == "--summary":
            given.summary = True
        elif word == "--merge":
            given.merge = True
        elif name == "--level":
            given.level = value(name, attached)
        elif name == "--policy":
            given.policy = value(name, attached)
        elif name == "--decay":
            given.decay = _seconds(value(name, attached))
        elif name == "--limit":
            given.limit = _bytes(value(name, attached))
        elif word[:2] in ("-m", "-c"):
            # As the interpreter takes them: the value may be attached.
            given.kind, given.target = word[1], value(word[:2], word[2:])
            break
        elif word == "--":
            given.target = value("--", "")
            break
        elif word.startswith("-") and word != "-":
            _refuse(f"unknown option {word}")
        else:
            given.target = word
            break
    else:
        _refuse("name a script, -m MODULE or -c CODE")
    given.arguments = tuple(rest)
    return given


def _mib(number: int) -> str:
    return f"{number / 2**20:.1f} MiB"


def _summary() -> None:
    status, stats = hugeheap.status(), hugeheap.stats()
    lines = [str(status)]
    if status.hooked:
        share, resident = stats.coverage, _mib(stats.resident)
        coverage = "nothing resident" if share is None else f"{share:.1%} of {resident} on huge pages now"
        lines += [
            f"  arenas     {stats.arenas_peak} at the peak with {_mib(stats.live_peak)} live, {stats.arenas} now",
            f"  coverage   {coverage}",
            f"  given back {_mib(stats.given_back)}; {_mib(stats.retained)} kept for reuse",
        ]
    hints = stats.hints
    lines += [f"  fallback   {count} x {reason}: {hints[reason]}" for reason, count in stats.fallbacks.items()]
    _tell("\n".join(lines))


def _new_main() -> dict[str, object]:
    """A module ``__main__`` that is nobody's but the program's. It stays in ``sys.modules``: threads and exit handlers
    that outlive the program's last line find their globals, and pickle finds their classes."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=sys.modules["builtins"], __loader__=importlib.machinery.BuiltinImporter)
    if sys.version_info < (3, 14):
        # Since then made when it is asked for.
        module.__dict__.update(__annotations__={})
    sys.modules["__main__"] = module
    return module.__dict__


def _safe_path() -> bool:
    """With -P or -I the interpreter put nothing of its own in front of the path."""
    return bool(getattr(sys.flags, "safe_path", sys.flags.isolated))


def _set_first_path(path: str) -> None:
    if not _safe_path():
        sys.path[0] = path


def _run_module(name: str) -> None:
    import runpy

    _new_main()
    # What the interpreter itself calls for -m. The public `run_module` would take `__main__` away again at the end.
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_script(path: str) -> None:
    import marshal

    if os.path.isdir(path) or _is_archive(path):
        # As the interpreter does it: the directory or archive is searched for __main__.
        import runpy

        if _safe_path():
            sys.path.insert(0, os.path.abspath(path))
        else:
            sys.path[0] = os.path.abspath(path)

        _new_main()
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    if path == "-":
        _set_first_path("")
        # As bytes: a line of the program may name its encoding.
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True), _new_main())
        return
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        _tell(f"{sys.executable}: can't open file {os.path.abspath(path)!r}: [Errno {error.errno}] {error.strerror}")
        sys.exit(2)
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    names = _new_main()
    names["__file__"] = os.path.abspath(path)
    names["__cached__"] = None
    # As the interpreter does it: by the name, or by what is in the file.
    if path.endswith(".pyc") or source[:2] == importlib.util.MAGIC_NUMBER[:2]:
        if source[:4] != importlib.util.MAGIC_NUMBER:
            raise RuntimeError("Bad magic number in .pyc file")
        names["__loader__"] = importlib.machinery.SourcelessFileLoader("__main__", path)
        code = marshal.loads(source[16:])
    else:
        names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
        code = compile(source, path, "exec", dont_inherit=True)
    exec(code, names)


def _is_archive(path: str) -> bool:
    import zipfile

    return os.path.isfile(path) and zipfile.is_zipfile(path)


def _is_merging() -> bool:
    """Whether the host merges equal pages. What is wrong there, and what to do, ``hugeheap doctor`` tells at length."""
    try:
        with open("/sys/kernel/mm/ksm/run") as file:
            return file.read().strip() == "1"
    except OSError:
        return False


def main(words: list[str]) -> None:
    """Enable, then become the program."""
    given = _parse(words)
    try:
        status = hugeheap.enable(
            policy=given.policy, decay=given.decay, limit=given.limit, level=given.level, merge=given.merge
        )
    except hugeheap.HugeheapError as error:
        _refuse(str(error))
    if given.summary:
        # A forked child inherits the handler; only the process that was asked prints.
        asked = os.getpid()
        atexit.register(lambda: _summary() if os.getpid() == asked else None)
    elif not status.hooked:
        _tell(str(status))
    if given.level == "objects" and status.hooked and status.level != "objects":
        _tell(
            "hugeheap: level arenas is in force: another allocator wraps the interpreter's (PYTHONMALLOC, -X dev, tracemalloc)"
        )
    if given.merge and status.hooked and not _is_merging():
        _tell("hugeheap: this host does not merge equal pages: nothing is made alike until it does (hugeheap doctor says more)")
    if given.kind == "m":
        sys.argv = [given.target, *given.arguments]
        _set_first_path(os.getcwd())
        _run_module(given.target)
    elif given.kind == "c":
        sys.argv = ["-c", *given.arguments]
        _set_first_path("")
        exec(compile(given.target, "<string>", "exec", dont_inherit=True), _new_main())
    else:
        sys.argv = [given.target, *given.arguments]
        _run_script(given.target)


if __name__ == "__main__":
    main(sys.argv[1:])
