"""What is installed is found by pkg-config and CMake, links and runs, wherever it was put."""

import os
import shutil
import subprocess

import pytest

from .conftest import ROOT, needs

INSTALL = ROOT / "crates/hugeheap-capi/install.sh"

PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(sample C)
find_package(hugeheap 0.1 REQUIRED)
add_executable(shared {source})
target_link_libraries(shared hugeheap::hugeheap)
add_executable(archive {source})
target_link_libraries(archive hugeheap::hugeheap_static)
"""


def install(built, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in ("PREFIX", "LIBDIR", "DESTDIR")}
    return subprocess.run([INSTALL, built], env={**environment, **variables}, capture_output=True, text=True, check=False)


def test_everything_is_there(prefix):
    library = prefix / "lib/libhugeheap.so"
    assert library.resolve().name == "libhugeheap.so.0.1.0"
    for path in (
        "include/hugeheap.h",
        "include/hugeheap_inline.h",
        "include/hugeheap_gc.h",
        "lib/libhugeheap.a",
        "lib/libhugeheap.so.0.1",
        "lib/pkgconfig/hugeheap.pc",
        "lib/cmake/hugeheap/hugeheap-config.cmake",
        "lib/cmake/hugeheap/hugeheap-config-version.cmake",
    ):
        assert (prefix / path).is_file(), path
    for template in prefix.rglob("hugeheap*"):
        if template.suffix in (".pc", ".cmake"):
            text = template.read_text()
            assert "@" not in text, template
    said = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "soname: [libhugeheap.so.0.1]" in said and "NODELETE" in said


@pytest.mark.parametrize("libdir", ["lib", "lib/x86_64-linux-gnu"])
def test_cmake_finds_it_wherever_it_was_moved(libdir, built, tmp_path, clean):
    needs("cmake")
    assert install(built, PREFIX=str(tmp_path / "first"), LIBDIR=libdir).returncode == 0
    (tmp_path / "first").rename(tmp_path / "moved")
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(PROJECT.format(source=ROOT / "examples/list.c"))
    for command in (["cmake", "-B", "out", f"-DCMAKE_PREFIX_PATH={tmp_path / 'moved'}"], ["cmake", "--build", "out"]):
        made = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
    for program in ("shared", "archive"):
        ran = subprocess.run([project / "out" / program], env=clean, capture_output=True, text=True, check=True)
        assert ran.stdout.startswith("sum 500000500000;")


def test_cmake_refuses_another_version(built, tmp_path):
    needs("cmake")
    assert install(built, PREFIX=str(tmp_path / "prefix")).returncode == 0
    for wanted in ("0.2", "0.0.9", "1.0"):
        project = tmp_path / f"project{wanted}"
        project.mkdir()
        text = f"cmake_minimum_required(VERSION 3.16)\nproject(sample C)\nfind_package(hugeheap {wanted} REQUIRED)\n"
        (project / "CMakeLists.txt").write_text(text)
        made = subprocess.run(
            ["cmake", "-B", "out", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}"],
            cwd=project, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode != 0 and "version: 0.1.0" in made.stderr, made.stderr


def test_a_packager_installs_below_another_root(built, tmp_path):
    made = install(built, PREFIX="/usr", LIBDIR="lib/x86_64-linux-gnu", DESTDIR=str(tmp_path))
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "usr/lib/x86_64-linux-gnu/pkgconfig/hugeheap.pc").read_text()
    assert "prefix=/usr\n" in text and str(tmp_path) not in text


# What the shell, sed, pkg-config and CMake each give a meaning of its own.
ODD = "it's a, b & c"


def test_a_prefix_with_odd_letters_is_one(built, clean, tmp_path):
    """sed took the `&` for what it had found, and the comma for the end of its command."""
    needs("gcc", "pkg-config")
    prefix = tmp_path / ODD
    made = install(built, PREFIX=str(prefix))
    assert made.returncode == 0, made.stderr
    assert f"prefix={prefix}\n" in (prefix / "lib/pkgconfig/hugeheap.pc").read_text()
    program = tmp_path / "program"
    environment = {**clean, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    words = 'flags=$(pkg-config --cflags --libs hugeheap); eval "gcc \\"\\$1\\" -o \\"\\$2\\" $flags"'
    command = ["bash", "-ec", words, "bash", ROOT / "examples/list.c", program]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    ran = subprocess.run([program], env={**clean, "LD_LIBRARY_PATH": str(prefix / "lib")}, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("sum 500000500000;")


def test_make_installs_below_a_prefix_with_odd_letters(tmp_path):
    """The shell took the `&` for the end of the command, and a space for that of the variable."""
    needs("make")
    built = tmp_path / "built"
    built.mkdir()
    (built / "hugeheap").write_text("#!/bin/sh\n")
    (built / "hugeheap").chmod(0o755)
    for library in ("libhugeheap.so", "libhugeheap.a", "libhugeheap_preload.so", "libhugeheap_malloc.so"):
        (built / library).touch()
    places = {"PREFIX": f"/{ODD}", "DESTDIR": str(tmp_path / "root & more")}
    command = ["make", "--old-file=build", "install", f"RELEASE={built}", *(f"{name}={place}" for name, place in places.items())]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    root = tmp_path / "root & more" / ODD
    assert (root / "bin/hugeheap").is_file() and (root / "include/hugeheap.h").is_file()
    assert f"prefix=/{ODD}\n" in (root / "lib/pkgconfig/hugeheap.pc").read_text()


def test_bad_places_are_told(built, tmp_path):
    for variables, word in (
        ({"PREFIX": "relative"}, "PREFIX must be"),
        *(({"PREFIX": str(tmp_path / f"a{letter}b")}, "must be without") for letter in '"`$#\\\n'),
        ({"PREFIX": str(tmp_path), "LIBDIR": "/lib"}, "LIBDIR must be"),
        ({"PREFIX": str(tmp_path), "LIBDIR": "../lib"}, "LIBDIR must be"),
    ):
        made = install(built, **variables)
        assert made.returncode == 1 and made.stderr.startswith("install.sh: ") and word in made.stderr
    made = install(tmp_path, PREFIX=str(tmp_path))
    assert made.returncode == 1 and "no libhugeheap.so" in made.stderr
    assert not (tmp_path / "include").exists()
    usage = subprocess.run([INSTALL], capture_output=True, text=True, check=False)
    assert usage.returncode == 1 and "usage" in usage.stderr


def test_the_archive_needs_what_the_package_says(compiled, clean):
    """No symbol of the shared library is left in a program that links the archive."""
    needs("ldd")
    program = compiled(ROOT / "examples/list.c", static=True)
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "hugeheap" not in said
    assert shutil.which("nm") is None or "hh_malloc" not in subprocess.run(
        ["nm", "-u", program], capture_output=True, text=True, check=True
    ).stdout
    subprocess.run([program], env=clean, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("way", ["-static", "-static-pie"])
def test_a_program_without_any_shared_library_is_linked_as_the_package_says(way, prefix, clean, tmp_path):
    """It was told to link libgcc_s, of which there is no archive."""
    needs("gcc", "pkg-config", "readelf")
    program = tmp_path / "program"
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    words = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "--static", "hugeheap"], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    # As a user says it: the flags are not changed.
    command = ["gcc", "-O2", way, ROOT / "examples/list.c", "-o", program, *words]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    said = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" not in said
    ran = subprocess.run([program], env=clean, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("sum 500000500000;")
