#!/bin/sh
# Checks whether this machine can compile Evenkeel; if not, prints one line with what to install. CARGO, RUSTC
# and CC name other programs than cargo, rustc and cc.
set -u
manifest=$(dirname "$0")/../Cargo.toml
needed=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$manifest")

missing() {
    echo "$*" >&2
    exit 1
}

for program in "${CARGO:-cargo}" "${RUSTC:-rustc}"; do
    command -v "$program" >/dev/null 2>&1 ||
        missing "Evenkeel is compiled with Rust $needed or newer, and there is no $program here: install Rust from https://rustup.rs"
done

# "rustc 1.95.0 (59807616e 2026-04-14)", "rustc 1.97.0-nightly (...)"
version=$("${RUSTC:-rustc}" --version 2>/dev/null | sed -n 's/^rustc \([0-9]*\.[0-9]*\).*/\1/p')
[ -n "$version" ] ||
    missing "Evenkeel is compiled with Rust $needed or newer, and ${RUSTC:-rustc} does not say its version here: rustup default stable"
major=${version%%.*} minor=${version#*.}
needed_minor=${needed#*.} needed_minor=${needed_minor%%.*}
if [ "$major" -lt "${needed%%.*}" ] || { [ "$major" -eq "${needed%%.*}" ] && [ "$minor" -lt "$needed_minor" ]; }; then
    missing "Evenkeel is compiled with Rust $needed or newer, here is $version: rustup update stable, or install Rust from https://rustup.rs"
fi

advice="install gcc and the headers of the C library (Debian, Ubuntu: apt install gcc libc6-dev; Fedora: dnf install gcc)"
command -v "${CC:-cc}" >/dev/null 2>&1 ||
    missing "Evenkeel compiles jemalloc, SQLite and Lua, and there is no C compiler '${CC:-cc}' here: $advice"
# A compiler alone is not enough: programs are linked, and headers are read.
made=$(mktemp) || exit 1
trap 'rm -f "$made"' EXIT
printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' |
    "${CC:-cc}" -x c -o "$made" - >/dev/null 2>&1 ||
    missing "Evenkeel compiles jemalloc, SQLite and Lua, and '${CC:-cc}' cannot make a program here: $advice"
