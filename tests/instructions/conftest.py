"""Programs run under callgrind: the number of instructions of the same binary is the same every time."""

import fcntl
import functools
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Example:
    """An example program of the library, called with what it is to do and how often."""

    def __init__(self, binary, directory):
        self.binary = binary
        self.directory = directory
        self.counted = {}

    def instructions(self, kind, count):
        """Instructions of the thread that does it. The runtime's own thread looks at the machine once in a while: 50,000 instructions more or less,
        by how long the run takes; where all threads were counted a minor collection cost 884 or 895, beside builds that made runs longer.

        Once for each count: every other cost is one above an empty loop's, or that of a second example.
        """
        if (kind, count) not in self.counted:
            self.counted[kind, count] = self.count(kind, count)
        return self.counted[kind, count]

    def count(self, kind, count):
        output = self.directory / f"{kind}-{count}"
        command = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={output}", str(self.binary), kind, str(count)]
        subprocess.run(command, capture_output=True, text=True, check=True)
        # A file for each thread; the first one's is that of `main`.
        return int(re.search(r"^totals: (\d+)$", output.with_name(f"{output.name}-01").read_text(), re.MULTILINE).group(1))

    def each(self, kind, few, many):
        """Instructions of doing it once, without what comes before and after."""
        return (self.instructions(kind, many) - self.instructions(kind, few)) / (many - few)


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """A built example by its name, with features of the library."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed (apt-get install valgrind)")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target")))

    # Cargo builds what only tests of the library need with every example, and none of it is in one: as little
    # of that as possible.
    unused = [f"--config=profile.release.package.{name}.opt-level=0" for name in ("proptest", "regex-syntax", "rand", "num-traits")]
    build = ["cargo", "build", "--release", "--locked", "-p", "hugeheap", "--target-dir", target, *unused]

    # What an example is built of serves every choice of features, and the last choice's is where cargo leaves
    # the example: so who builds takes a copy before another process builds.
    @functools.cache
    def built(name, features):
        copy = tmp_path_factory.mktemp("built") / name
        target.mkdir(parents=True, exist_ok=True)
        with open(target / ".examples.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run([*build, "--example", name, "--features", features], cwd=ROOT, check=True)
            shutil.copy(target / "release" / "examples" / name, copy)
        return copy

    return lambda name, features="": Example(built(name, features), tmp_path_factory.mktemp(name))
