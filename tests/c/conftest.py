"""The C interface as a program finds it: installed below a prefix, found by pkg-config."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT = 300
STRICT = ["-g", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]


def needs(*programs):
    """Skips where a program is missing; says which."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def run(program, section, clean, **variables):
    """Runs a section of a program that must be content and say nothing; what it printed."""
    ran = subprocess.run(
        [program, section], env={**clean, **variables}, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


@pytest.fixture(scope="session")
def built():
    """The directory with the built libraries."""
    needs("cargo")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "hugeheap-capi"], cwd=ROOT, check=True)
    return target / "release"


@pytest.fixture(scope="session")
def prefix(built, tmp_path_factory):
    """A prefix below which the interface is installed."""
    directory = tmp_path_factory.mktemp("prefix")
    environment = {**os.environ, "PREFIX": str(directory), "LIBDIR": "lib", "DESTDIR": ""}
    subprocess.run([ROOT / "crates/hugeheap-capi/install.sh", built], env=environment, check=True)
    return directory


@pytest.fixture(scope="session")
def flags(prefix):
    """Asks pkg-config, as a user would; `static` links the archive instead of the shared library."""
    needs("pkg-config")

    def ask(*packages, static=False):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
        command = ["pkg-config", "--cflags", "--libs", *(["--static"] if static else []), *packages]
        words = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
        if static:
            return ["-l:libhugeheap.a" if word == "-lhugeheap" else word for word in words]
        return [*words, f"-Wl,-rpath,{prefix / 'lib'}"]

    return ask


@pytest.fixture(scope="session")
def compiled(flags, tmp_path_factory):
    """Builds a program, once per combination."""
    needs("gcc")
    programs = {}
    directory = tmp_path_factory.mktemp("programs")

    def build(source, *options, packages=("hugeheap",), static=False):
        key = (source, options, packages, static)
        if key not in programs:
            program = directory / f"program{len(programs)}"
            command = ["gcc", "-std=c11", "-D_GNU_SOURCE", *STRICT, *options, source, "-o", program, "-pthread"]
            made = subprocess.run([*command, *flags(*packages, static=static)], capture_output=True, text=True, check=False)
            assert made.returncode == 0, made.stderr
            programs[key] = program
        return programs[key]

    return build


@pytest.fixture(scope="session")
def clean():
    """The environment without settings of hugeheap's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HUGEHEAP_") and name != "LD_PRELOAD"}
