#!/bin/sh
# Builds the servers Evenkeel is measured against, Valkey 9 and Redis 8, from the
# source packages of Debian's unstable suite, into a cache outside the tree.
#
#   bench/peers.sh            build what is missing, print what is there
#   bench/peers.sh --force    build again
#   bench/peers.sh --list     print what is there, build nothing
#   bench/peers.sh --suites   fetch their test suites alone, into $EVENKEEL_PEERS/suites
#
# Environment:
#   EVENKEEL_PEERS          the cache (default ~/.cache/evenkeel-peers)
#   EVENKEEL_PEERS_MIRROR   the Debian mirror (default: the one this machine's
#                           own apt sources name for Debian itself)
#   EVENKEEL_PEERS_JOBS     parallel compile jobs (default 2)
#
# Fetching is left to apt-get with a private state directory, so the index is
# checked against its signature and the tarballs against the index, and the
# machine's own package lists stay as they are. Needs no root. What is compiled
# is the upstream tarball as upstream's makefile does it (bundled jemalloc, the
# project's own optimisation flags), without systemd and modules. Valkey has TLS
# where the headers of OpenSSL are found (Debian's libssl-dev); one that was built
# without them is built again. A new binary takes the place of the old one by a
# rename, so that servers which run go on.
#
# Result, in $EVENKEEL_PEERS/bin: valkey-server valkey-cli valkey-benchmark
# redis8-server redis8-cli redis8-benchmark; and $EVENKEEL_PEERS/VERSIONS.
set -eu

cache=${EVENKEEL_PEERS:-${HOME:?}/.cache/evenkeel-peers}
jobs=${EVENKEEL_PEERS_JOBS:-2}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mode=${1:-}

say() { printf 'peers: %s\n' "$*" >&2; }
# What is there already is kept if it cannot be built with TLS.
die() {
    say "$*"
    if [ -z "${kept:-}" ]; then exit 1; fi
    say "$kept-server stays without TLS"
    list
    exit
}

list() {
    for server in valkey-server redis8-server; do
        if [ -x "$cache/bin/$server" ]; then
            printf '%s: %s\n' "$cache/bin/$server" "$("$cache/bin/$server" --version)"
        else
            printf '%s: missing\n' "$cache/bin/$server"
        fi
    done
}

# Prints "URI suite" for each archive the machine's apt sources name, in both of
# apt's formats (one line per source, and the stanzas of *.sources files).
apt_sources() {
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -r "$file" ] || continue
        sed -n 's/#.*//; s/^[[:space:]]*deb\(-src\)\{0,1\}[[:space:]]*\(\[[^]]*\]\)\{0,1\}[[:space:]]*//p' "$file" |
            awk '$1 ~ /^https?:|^mirror/ { print $1, $2 }'
    done
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -r "$file" ] || continue
        awk '
            function flush_stanza(   i, j, nu, ns, u, s) {
                nu = split(uris, u, " "); ns = split(suites, s, " ")
                if (!off) for (i = 1; i <= nu; i++) for (j = 1; j <= ns; j++) print u[i], s[j]
                uris = ""; suites = ""; off = 0; field = ""
            }
            /^#/ { next }
            /^[[:space:]]*$/ { flush_stanza(); next }
            /^[^[:space:]]/ { i = index($0, ":"); field = tolower(substr($0, 1, i - 1)); $0 = substr($0, i + 1) }
            field == "uris" { uris = uris " " $0 }
            field == "suites" { suites = suites " " $0 }
            field == "enabled" && $1 == "no" { off = 1 }
            END { flush_stanza() }
        ' "$file"
    done
}

# The mirrors worth asking for Debian unstable: those that carry this machine's
# own release of Debian, or a suite only Debian has.
mirrors() {
    if [ -n "${EVENKEEL_PEERS_MIRROR:-}" ]; then
        echo "$EVENKEEL_PEERS_MIRROR"
        return
    fi
    codename=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}")
    apt_sources | awk -v own="$codename" '
        ($2 == own || $2 ~ /^(stable|testing|unstable|sid)$/) && !seen[$1]++ { print $1 }'
}

# apt-get with every path it writes to inside $work.
apt() {
    if [ "$(id -u)" = 0 ]; then sandbox=root; else sandbox=_apt; fi
    apt-get -q -o Dir::Etc::sourcelist="$work/peers.sources" -o Dir::Etc::sourceparts=- \
        -o Dir::State="$work/state" -o Dir::Cache="$work/cache" \
        -o APT::Sandbox::User="$sandbox" -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}

read_index() {
    command -v apt-get >/dev/null || die "apt-get is missing: peers are built from Debian source packages"
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    for mirror in $(mirrors); do
        {
            printf 'Types: deb-src\nURIs: %s\nSuites: unstable\nComponents: main\n' "$mirror"
            if [ -r "$keyring" ]; then printf 'Signed-By: %s\n' "$keyring"; fi
        } >"$work/peers.sources"
        if apt -o APT::Update::Error-Mode=any update >"$work/update.log" 2>&1; then return; fi
        say "this mirror does not serve Debian unstable (see below), trying the next"
        tail -n 3 "$work/update.log" >&2
    done
    die "no Debian mirror found in the machine's apt sources; name one with EVENKEEL_PEERS_MIRROR"
}

# fetch PACKAGE: downloads the newest source package and unpacks its upstream
# tarball; the source tree's path is left in $tree, the version in $version.
fetch() {
    mkdir -p "$work/$1/src"
    (cd "$work/$1" && apt source --download-only --only-source "$1" >fetch.log 2>&1) ||
        { cat "$work/$1/fetch.log" >&2; die "cannot fetch the source of $1"; }
    dsc=$(ls "$work/$1"/*.dsc)
    version=$(sed -n 's/^Version: //p' "$dsc" | head -n 1)
    tar -xf "$(ls "$work/$1"/*.orig.tar.*[!c])" -C "$work/$1/src" --strip-components=1
    tree=$work/$1/src
}

# Whether programs can be compiled with OpenSSL.
openssl_is_there() {
    printf '#include <openssl/ssl.h>\n' | "${CC:-cc}" -E -x c - >/dev/null 2>&1
}

# has_tls PROGRAM
has_tls() {
    grep -q SSL_CTX_new "$1"
}

# build PACKAGE PREFIX-OF-ITS-BINARIES PREFIX-TO-INSTALL-AS BUILD_TLS
build() {
    if [ "$mode" != --force ] && [ -x "$cache/bin/$3-server" ]; then
        if [ "$4" = no ] || has_tls "$cache/bin/$3-server"; then
            say "$3-server is there"
            return
        fi
        say "$3-server has no TLS and is built again"
        kept=$3
    fi
    [ -f "$work/peers.sources" ] || read_index
    fetch "$1"
    say "building $1 $version (log: $cache/$3.log)"
    nice make -C "$tree/src" -j"$jobs" BUILD_TLS="$4" USE_SYSTEMD=no MALLOC=jemalloc \
        "$2-server" "$2-cli" "$2-benchmark" >"$cache/$3.log" 2>&1 ||
        { tail -n 20 "$cache/$3.log" >&2; die "building $1 failed"; }
    mkdir -p "$cache/bin"
    for tool in cli benchmark server; do
        install -m 755 "$tree/src/$2-$tool" "$cache/bin/$3-$tool.new"
        mv "$cache/bin/$3-$tool.new" "$cache/bin/$3-$tool"
    done
    touch "$cache/VERSIONS"
    grep -v "^$3 " "$cache/VERSIONS" >"$work/versions" || true
    printf '%s %s\n' "$3" "$version" >>"$work/versions"
    mv "$work/versions" "$cache/VERSIONS"
}

if [ "$mode" = --list ]; then
    list
    exit
fi
mkdir -p "$cache"
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
# suite PACKAGE NAME: the tests of a package, with the configuration files that they read.
suite() {
    if [ -d "$cache/suites/$2/tests" ]; then return; fi
    [ -f "$work/peers.sources" ] || read_index
    fetch "$1"
    mkdir -p "$cache/suites"
    mkdir "$work/$2.suite"
    cp -r "$tree/tests" "$tree"/runtest* "$tree"/*.conf "$work/$2.suite/"
    mv "$work/$2.suite" "$cache/suites/$2"
    say "the suite of $1 $version is there"
}
if [ "$mode" = --suites ]; then
    suite redis redis8
    suite valkey valkey
    exit
fi
if openssl_is_there; then
    tls=yes
else
    tls=no
    say "Valkey without TLS: the headers of OpenSSL are missing (apt-get install libssl-dev)"
fi
build redis redis redis8 no
build valkey valkey valkey "$tls"
list
