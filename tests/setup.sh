#!/usr/bin/env bash
# Set-up for the Makefile: what is missing is installed where that is possible, and named where it is not.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "set-up: $*" >&2
    exit 1
}

as_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# Installs Debian packages as root; else says what to install and goes on. A package has a command of its name,
# or is a library.
packages() {
    local missing=()
    for package in "$@"; do
        command -v "$package" >/dev/null || dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    if as_root; then
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null && return
    fi
    echo "set-up: not installed: ${missing[*]} (tests that need them are skipped; install: apt-get install ${missing[*]})"
}

tools() {
    command -v cargo >/dev/null || fail "no cargo found; install Rust 1.85 or newer (rustup, or apt-get install cargo)"
    for part in fmt clippy; do
        cargo "$part" --version >/dev/null 2>&1 && continue
        command -v rustup >/dev/null && rustup component add "${part/fmt/rustfmt}" && continue
        fail "cargo $part is missing; install it (rustup component add ${part/fmt/rustfmt})"
    done
    command -v cc >/dev/null || packages gcc
    command -v cc >/dev/null || fail "no C compiler for the linker; install one (apt-get install gcc)"
}

# venv DIR PACKAGE…: a virtual environment with the build tools.
venv() {
    local directory=$1
    shift
    tools
    local python=${PYTHON:-python3}
    command -v "$python" >/dev/null || fail "no $python found; install Python 3.10 or newer (apt-get install python3)"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$python is older than 3.10; set PYTHON"
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        as_root || fail "$python cannot make virtual environments; install them (apt-get install python3-venv)"
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
    fi
    rm -rf "$directory"
    "$python" -m venv "$directory"
    "$directory/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# CPythons newer than the host's, from Debian's testing release, for tests alone:
# target/interpreters/VERSION/bin/pythonVERSION. Each has the C library and the others it was built with beside
# it, so nothing of the host is changed or used. About 1 GB.
interpreters() {
    local root=target/interpreters/.root versions=("${@:-3.14 3.15}") version
    as_root || fail "newer interpreters come from Debian's packages: run this as root on a Debian"
    packages mmdebstrap patchelf
    command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing; install it (apt-get install mmdebstrap)"
    rm -rf target/interpreters && mkdir -p target/interpreters
    # shellcheck disable=SC2068
    for version in ${versions[@]}; do
        local place=target/interpreters/$version
        # A mirror may be older than its release file says.
        mmdebstrap --quiet --variant=extract --include="python$version,libpython$version-testsuite" \
            --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' \
            testing "$root" >/dev/null || fail "Debian's testing release has no python$version, or cannot be reached"
        mkdir -p "$place/bin" "$place/lib" "$place/libraries"
        cp "$root/usr/bin/python$version" "$place/bin/"
        cp -r "$root/usr/lib/python$version" "$place/lib/"
        find -L "$root/usr/lib/$(uname -m)-linux-gnu" -maxdepth 1 -name '*.so*' -exec cp -L {} "$place/libraries/" \;
        place=$(realpath "$place")
        patchelf --set-interpreter "$place"/libraries/ld-linux-*.so.* --force-rpath --set-rpath "$place/libraries" "$place/bin/python$version"
        rm -rf "$root"
        "$place/bin/python$version" -c 'import sys; print("set-up:", sys.version.split()[0], sys.executable)'
    done
}

# The library crates promise to build with the compiler named in Cargo.toml.
oldest_compiler() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! cargo "+$version" --version >/dev/null 2>&1; then
        echo "set-up: skipped the check with Rust $version: not installed (rustup toolchain install $version)"
        return
    fi
    CARGO_TARGET_DIR=target/oldest cargo "+$version" check --locked -p hugeheap-os -p hugeheap -p hugeheap-capi -p hugeheap-cpython -p hugeheap-constructor -p hugeheap-preload -p hugeheap-malloc
}

command=$1
shift
"${command//-/_}" "$@"
