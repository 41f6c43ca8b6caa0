#!/usr/bin/env bash
# Installs the command: program, preload library, completions, manual pages.
#
#   install.sh BUILT
#
# BUILT is the directory with hugeheap, libhugeheap_preload.so and libhugeheap_malloc.so (target/release). From
# the environment: PREFIX (/usr/local), and DESTDIR before it (none; for packagers).
set -euo pipefail

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

[ $# = 1 ] || fail "usage: install.sh BUILT, the directory with hugeheap (target/release)"
built=$1
prefix=${PREFIX:-/usr/local}
for file in hugeheap libhugeheap_preload.so libhugeheap_malloc.so; do
    [ -f "$built/$file" ] || fail "no $file in $built; build it first (cargo build --release)"
done
case $prefix in /*) ;; *) fail "PREFIX must be an absolute path, not $prefix" ;; esac

to=${DESTDIR:-}$prefix
share=$to/share
completions=$share/bash-completion/completions
install -d "$to/bin" "$to/lib/hugeheap" "$completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d" "$share/man/man1" ||
    fail "cannot write to $to; set PREFIX, or be root"
install -m 755 "$built/hugeheap" "$to/bin/hugeheap"
# The program looks for it here, from where it is itself: LIBDIR is for what others link with.
install -m 755 "$built/libhugeheap_preload.so" "$built/libhugeheap_malloc.so" "$to/lib/hugeheap/"
"$to/bin/hugeheap" completions bash >"$completions/hugeheap"
"$to/bin/hugeheap" completions zsh >"$share/zsh/site-functions/_hugeheap"
"$to/bin/hugeheap" completions fish >"$share/fish/vendor_completions.d/hugeheap.fish"
"$to/bin/hugeheap" man --out "$share/man/man1"
echo "installed the command hugeheap in $to"
