"""``python -m hugeheap script.py``: run a script on hugeheap in this interpreter.

The third way, beside ``hugeheap run`` and ``hugeheap.enable()``: for a program whose start cannot be wrapped and whose
code should not be touched. What the interpreter allocated before stays where it is.
"""

from __future__ import annotations

import argparse
import atexit
import os
import runpy
import sys

import hugeheap


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hugeheap",
        usage="%(prog)s [--policy P] [--decay S] [--limit BYTES] [--summary] (SCRIPT | -m MODULE | -c CODE) [ARG ...]",
        description="Run a Python program with its objects on huge pages.",
        epilog="To start any command on hugeheap, not only Python: hugeheap run -- COMMAND",
    )
    parser.add_argument("--policy", help="auto, thp, dense, hugetlb or base")
    parser.add_argument("--decay", type=float, help="seconds that memory is kept after it was needed")
    parser.add_argument("--limit", type=int, help="bytes above which nothing is kept for reuse")
    parser.add_argument("--summary", action="store_true", help="say at exit, on stderr, what happened")
    parser.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module")
    parser.add_argument("-c", dest="code", metavar="CODE", nargs=argparse.REMAINDER, help="run code")
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _mib(number: int) -> str:
    return f"{number / 2**20:.1f} MiB"


def _summary() -> None:
    stats = hugeheap.stats()
    coverage = "not measured" if stats.coverage is None else f"{stats.coverage:.1%} of {_mib(stats.resident)}"
    lines = [
        str(hugeheap.status()),
        f"  arenas     {stats.arenas_peak} at the peak with {_mib(stats.live_peak)} live, {stats.arenas} now",
        f"  coverage   {coverage} on huge pages now",
        f"  given back {_mib(stats.given_back)}; {_mib(stats.retained)} kept for reuse",
    ]
    lines += [f"  fallback   {count} x {reason}: {stats.hints[reason]}" for reason, count in stats.fallbacks.items()]
    print("\n".join(lines), file=sys.stderr)


def main(arguments: list[str]) -> None:
    """Enable, then become the program."""
    parser = _parser()
    given = parser.parse_args(arguments)
    target = given.module or given.code or given.script
    if not target:
        parser.error("name a script, -m MODULE or -c CODE")
    try:
        status = hugeheap.enable(policy=given.policy, decay=given.decay, limit=given.limit)
    except hugeheap.HugeheapError as error:
        parser.error(str(error))
    if not status.hooked:
        print(status, file=sys.stderr)
    if given.summary:
        # A forked child inherits the handler; only the process that was asked prints.
        asked = os.getpid()
        atexit.register(lambda: _summary() if os.getpid() == asked else None)
    name, rest = target[0], target[1:]
    if given.module:
        sys.argv = [name, *rest]
        sys.path[0] = os.getcwd()
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif given.code:
        sys.argv = ["-c", *rest]
        sys.path[0] = ""
        exec(compile(name, "<string>", "exec"), _fresh_main())
    else:
        sys.argv = [name, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(name))
        if not os.path.exists(name):
            print(f"python -m hugeheap: can't open file {name!r}: no such file", file=sys.stderr)
            sys.exit(2)
        runpy.run_path(name, run_name="__main__")


def _fresh_main() -> dict[str, object]:
    import types

    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return module.__dict__


if __name__ == "__main__":
    main(sys.argv[1:])
