#!/usr/bin/env bash
# Installs the C interface: headers, libraries, pkg-config file, CMake package.
#
#   install.sh BUILT
#
# BUILT is the directory with libhugeheap.so and libhugeheap.a (target/release). From the environment, as usual
# with make install: PREFIX (/usr/local), LIBDIR below it (lib), DESTDIR before all of it (none; for packagers).
set -euo pipefail
crate=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$crate/../.." && pwd)

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

[ $# = 1 ] || fail "usage: install.sh BUILT, the directory with libhugeheap.so (target/release)"
built=$1
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-lib}
for library in libhugeheap.so libhugeheap.a; do
    [ -f "$built/$library" ] || fail "no $library in $built; build it first (cargo build --release -p hugeheap-capi)"
done
case $prefix in /*) ;; *) fail "PREFIX must be an absolute path, not $prefix" ;; esac
# What a pkg-config file gives a meaning of its own cannot be in a path there.
case $prefix$libdir in
    *[\"\`\$\#\\[:cntrl:]]*) fail 'PREFIX and LIBDIR must be without ", `, $, #, \ and control characters: a pkg-config file cannot name them' ;;
esac
case $libdir in /* | *..*) fail "LIBDIR must be a directory below PREFIX, like lib or lib/x86_64-linux-gnu, not $libdir" ;; esac

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
case $version in
    0.*) abi=$(cut -d. -f1-2 <<<"$version") ;;
    *) abi=${version%%.*} ;;
esac
# What the static library needs beside itself, as rustc names it for this target, but for the unwinder: the
# compiler adds the one that fits, libgcc_s or, where all is linked statically, libgcc_eh. Named here as -lgcc_s
# it was not found with -static.
private="-lpthread -lm -ldl -lc"
# From LIBDIR/cmake/hugeheap to PREFIX.
up=$(sed 's,[^/][^/]*,..,g' <<<"$libdir/cmake/hugeheap")

to=${DESTDIR:-}$prefix
install -d "$to/include" "$to/$libdir/pkgconfig" "$to/$libdir/cmake/hugeheap" || fail "cannot write to $to; set PREFIX, or be root"
install -m 644 "$root/include/hugeheap.h" "$root/include/hugeheap_inline.h" "$root/include/hugeheap_gc.h" "$to/include/"
install -m 644 "$built/libhugeheap.a" "$to/$libdir/"
install -m 755 "$built/libhugeheap.so" "$to/$libdir/libhugeheap.so.$version"
ln -sf "libhugeheap.so.$version" "$to/$libdir/libhugeheap.so.$abi"
ln -sf "libhugeheap.so.$abi" "$to/$libdir/libhugeheap.so"

# Not with sed: it took an `&` in a path for what it had found, and a comma for the end of its command.
template() {
    local text name
    text=$(<"$crate/$1.in")
    for name in prefix libdir version abi private up; do
        text=${text//@${name^^}@/"${!name}"}
    done
    printf '%s\n' "$text" >"$2"
    chmod 644 "$2"
}
template hugeheap.pc "$to/$libdir/pkgconfig/hugeheap.pc"
template hugeheap-config.cmake "$to/$libdir/cmake/hugeheap/hugeheap-config.cmake"
template hugeheap-config-version.cmake "$to/$libdir/cmake/hugeheap/hugeheap-config-version.cmake"
echo "installed hugeheap $version in $to"
