#!/usr/bin/env bash
# The replication tests of Redis 8 and Valkey 9, run against Evenkeel. `bench/peers.sh --suites` fetches them.
#
#     tests/suites/run.sh                          all
#     tests/suites/run.sh valkey                   of one vendor: redis8, valkey
#     tests/suites/run.sh redis8 integration/psync2    one unit; `sentinel` is all tests of Sentinel
#
# Environment: EVENKEEL_BINARY (default: the debug build), EVENKEEL_PEERS (the cache), SUITES_DIR (where it works, default
# target/suites; logs stay there).
#
# left-out.txt names the tests that do not apply, each with its reason. Prints what failed, and a count for each unit. Ends
# with 1 if a test failed. The suites wait for lines that Redis logs at its start: a wrapper prints them.
set -u
cd "$(dirname "$0")/../.." || exit 2
root=$PWD
cache=${EVENKEEL_PEERS:-${HOME:?}/.cache/evenkeel-peers}
binary=$(realpath "${EVENKEEL_BINARY:-${CARGO_TARGET_DIR:-target}/debug/evenkeel}") || exit 2
work=$(realpath -m "${SUITES_DIR:-target/suites}")
command -v tclsh >/dev/null || { echo 'suites: tclsh is missing (apt-get install tcl)' >&2; exit 2; }

units='integration/block-repl integration/failover integration/replication integration/replication-2
    integration/replication-3 integration/replication-4 integration/replication-buffer integration/replication-psync
    integration/psync2 integration/psync2-master-restart integration/psync2-pingoff integration/psync2-reg'
units_of() {
    echo "$units"
    if [ "$1" = valkey ]; then echo integration/replica-redirect integration/replication-aof-sync; fi
    echo sentinel
}

# tool NAME: a program of the suite's own version if it was built, else the machine's.
tool() {
    local at
    for at in "$cache/bin/$1" "/usr/bin/redis-${1#*-}"; do
        if [ -x "$at" ]; then echo "$at" && return; fi
    done
    echo /bin/false
}

# set_up VENDOR: the tree of a suite, with Evenkeel as its server.
set_up() {
    local name=valkey at=$work/$1
    if [ "$1" = redis8 ]; then name=redis; fi
    [ -d "$cache/suites/$1/tests" ] || { echo "suites: $cache/suites/$1 is missing (bench/peers.sh --suites)" >&2; exit 2; }
    rm -rf "$at" && mkdir -p "$work" && cp -r "$cache/suites/$1" "$at" && mkdir -p "$at/src" "$at/tests/tmp" "$at/tests/sentinel/tmp"
    # A directive of builds for tests.
    sed -i '/^enable-debug-assert /d' "$at/tests/assets/"*.conf
    cat >"$at/src/$name-server" <<EOF
#!/bin/sh
echo " PID: \$\$ Server initialized"
echo 'Ready to accept connections'
exec '$binary' "\$@"
EOF
    # The sentinels are the vendor's: what is tested is that they understand this server.
    cat >"$at/src/$name-sentinel" <<EOF
#!/bin/sh
exec '$(tool "$1-server")' "\$@" --sentinel
EOF
    chmod +x "$at/src/"*
    ln -s "$(tool "$1-cli")" "$at/src/$name-cli"
    ln -s "$(tool "$1-benchmark")" "$at/src/$name-benchmark"
}

# left_out VENDOR UNIT: names of tests that do not apply.
left_out() {
    sed -n "s@^\($1\|both\) \+$2 \+\(.*[^ ]\) \+## .*@\2@p" "$root/tests/suites/left-out.txt"
}

count() { grep -ac "$@" || true; }

failed=0
# run VENDOR UNIT
run() {
    local log skip left ok bad base
    log=$work/$1-${2##*/}.log
    skip=$work/$1/left-out
    left_out "$1" "$2" >"$skip"
    left=$(wc -l <"$skip")
    # Both may run at once.
    base=20111
    if [ "$1" = valkey ]; then base=24211; fi
    if grep -qx all "$skip"; then
        printf '%-8s %-36s left out\n' "$1" "$2"
        return
    fi
    if [ "$2" = sentinel ] && [ ! -x "$cache/bin/$1-server" ]; then
        printf '%-8s %-36s left out: its sentinels are missing (make peers)\n' "$1" "$2"
        return
    fi
    if [ "$2" = sentinel ]; then
        run_sentinel "$1" >"$log" 2>&1
    else
        (cd "$work/$1" && timeout "${SUITES_SECONDS:-1200}" ./runtest --baseport "$base" --portcount 4000 --single "$2" --skipfile left-out --clients 1 --durable \
            --tags '-large-memory' --timeout 600) >"$log" 2>&1
    fi
    ok=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | count '^\[ok\]\|: OK$')
    sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -aE '^\[(err|exception|timeout)\]|: FAILED|^\[TIMEOUT\]' | sort -u >"$work/$1/failures"
    bad=$(wc -l <"$work/$1/failures")
    printf '%-8s %-36s %4d passed %4d failed %4d left out\n' "$1" "$2" "$ok" "$bad" "$left"
    sed 's/^/    /' "$work/$1/failures"
    if [ "$bad" -gt 0 ] || [ "$ok" -eq 0 ]; then failed=1; fi
}

run_sentinel() {
    local of skip
    skip=$(left_out "$1" sentinel)
    for of in "$work/$1"/tests/sentinel/tests/[0-9]*.tcl; do
        of=$(basename "$of" .tcl)
        if grep -qx -- "$of" <<<"$skip"; then continue; fi
        (cd "$work/$1" && timeout "${SUITES_SECONDS:-1200}" ./runtest-sentinel --single "$of")
    done
}

vendors='redis8 valkey'
if [ $# -gt 0 ]; then vendors=$1 && shift; fi
for vendor in $vendors; do
    set_up "$vendor"
    for unit in ${*:-$(units_of "$vendor")}; do run "$vendor" "$unit"; done
done
exit $failed
