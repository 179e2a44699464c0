#!/usr/bin/env bash
# Runs the tests for `make test`: everything they need, then all of them, then one line of totals.
#     tests/run.sh [unit] [differential] [linear] [chaos] [dist] [clients]      (default: all six)
# Environment: EVENKEEL_COMMANDS (commands of the differential test), EVENKEEL_SEED, EVENKEEL_LINEAR (seeds of
# the linearizability test, as 1..20, and EVENKEEL_LEADERS of the one over failovers, as 1..3), EVENKEEL_FUZZ_SECONDS, EVENKEEL_SOAK_SECONDS, EVENKEEL_CRASH_ROUNDS and EVENKEEL_POWER_ROUNDS, EVENKEEL_REPLICAS_SECONDS,
# EVENKEEL_MODEL (larger bounds of the models of the cluster mode, for minutes),
# EVENKEEL_PEERS (folder of Redis 8 and Valkey 9 from `make peers`, which then serve as further oracles).
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 2
log=$root/.cache/test
mkdir -p "$log"
target=${CARGO_TARGET_DIR:-$root/target}
passed=0
failed=0
summary=()

say() { printf '\n=== %s\n' "$*"; }

# Adds one part's counts to the totals. A part that failed without naming a failure counts as one.
count() { # name passed failed status note
    local bad=$3
    [ "$4" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
    passed=$((passed + $2))
    failed=$((failed + bad))
    summary+=("$(printf '%-24s %5d passed, %d failed%s' "$1" "$2" "$bad" "${5:+  ($5)}")")
}

# Builds like the tests: with their features of common crates, so that nothing is compiled twice.
everything="--workspace --bins --tests"
# Several tests at once, as many of them wait: for a database to start or a time to pass.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}

sum() { awk '{ n += $1 } END { print n + 0 }'; }

# Installs the packages the tests need. Debian starts a service on installation unless a policy forbids it.
# Ours forbids it during the installation, if there is no policy yet.
install_oracle() {
    command -v redis-server >/dev/null && command -v redis-cli >/dev/null && command -v openssl >/dev/null && command -v strace >/dev/null && command -v promtool >/dev/null && command -v etcd >/dev/null && command -v curl >/dev/null && has_postgresql && return 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "The tests talk to a real Redis, PostgreSQL, Prometheus and etcd: apt-get install redis-server redis-tools postgresql openssl strace prometheus etcd-server curl"
        return 1
    fi
    local policy=/usr/sbin/policy-rc.d ours=
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && ours=1
    fi
    local apt="apt-get -qq -o Acquire::Retries=5"
    { $apt update && DEBIAN_FRONTEND=noninteractive $apt install -y --no-install-recommends \
        redis-server redis-tools postgresql openssl strace prometheus etcd-server curl; } >"$log/apt.log" 2>&1 </dev/null
    local status=$?
    [ -n "$ours" ] && rm -f "$policy"
    [ "$status" -eq 0 ] || tail -n 20 "$log/apt.log"
    return "$status"
}

# The tests of sources start PostgreSQL themselves, from programs outside the path.
has_postgresql() {
    local bin
    for bin in "$(pg_config --bindir 2>/dev/null)" /usr/lib/postgresql/*/bin; do
        [ -x "$bin/initdb" ] && return 0
    done
    return 1
}

unit() {
    say "unit, property and integration tests"
    cargo test --workspace --no-fail-fast 2>&1 </dev/null | tee "$log/unit.log" | grep -v -E '^(running 0 tests|)$'
    local status=${PIPESTATUS[0]}
    local good bad
    good=$(sed -n 's/^test result: .* \([0-9]*\) passed;.*/\1/p' "$log/unit.log" | sum)
    bad=$(sed -n 's/^test result: .* \([0-9]*\) failed;.*/\1/p' "$log/unit.log" | sum)
    # The loops' other back end, for the tests that depend on it.
    local apart="eviction:: sources rows_kept:: loading acts:: migrate snapshot places:: cli:: import_mode:: functions:: roaring::
        serialized:: texts:: script_memory:: compiling:: streams:: acl info:: transactions:: commandlog:: hotkeys:: lscan:: docs::
        renames::"
    # shellcheck disable=SC2086
    EVENKEEL_TEST_IO_BACKEND=epoll cargo test --workspace --test it -- $(printf -- '--skip %s ' $apart) 2>&1 </dev/null | tee "$log/epoll.log" | grep -A 3 -e '[.][.][.] FAILED' -e 'panicked at' -e '^test result'
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    good=$((good + $(sed -n 's/^test result: .* \([0-9]*\) passed;.*/\1/p' "$log/epoll.log" | sum)))
    bad=$((bad + $(sed -n 's/^test result: .* \([0-9]*\) failed;.*/\1/p' "$log/epoll.log" | sum)))
    count "unit and integration" "$good" "$bad" "$status"
}

differential() {
    say "the same commands to Evenkeel and to Redis"
    cargo build --quiet $everything </dev/null
    compare
    local totals good bad
    totals=$(compared)
    good=${totals% *} bad=${totals#* }
    # Two servers do not read the clock at the same instant, so a key may expire between them. Such a
    # difference shows in another stream when the same seed runs again; every other difference shows in the
    # same one.
    if [ -n "$totals" ] && [ "$bad" != 0 ]; then
        echo "differential: once more, to tell a difference from a coincidence of clocks"
        differing >"$log/differing.1"
        compare
        totals=$(compared)
        differing >"$log/differing.2"
        bad=$(comm -12 "$log/differing.1" "$log/differing.2" | wc -l)
        echo "differential: $bad differ in both runs"
    fi
    [ -n "$totals" ] || { good=0 bad=1; }
    local note
    note=$(sed -n 's/^differential: \([0-9]* commands\) in .*; \([0-9]* differences tolerated\) by.*/\1, \2/p' \
        "$log/differential.log" | tail -n 1)
    count "differential" "${good:-0}" "$bad" 0 "$note"
}

compare() {
    EVENKEEL_SHADOW=1 "$target/debug/evenkeel-differential" --server "$target/debug/evenkeel" \
        --commands "${EVENKEEL_COMMANDS:-1000000}" --seed "${EVENKEEL_SEED:-1}" 2>&1 </dev/null |
        tee "$log/differential.log"
}

# Group, oracle and stream of each difference of the last comparison, and each difference of the tables of commands.
differing() {
    grep -a -o -E -e '^DIFFERENT: .*--stream [0-9]+' -e '^ +[0-9]+ x table .*' "$log/differential.log" | sort -u
}

# "passed failed" of the last comparison; nothing if it did not end.
compared() {
    sed -n 's/^differential: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log/differential.log" | tail -n 1
}

linear() {
    say "concurrent clients, and one order that explains what they saw"
    cargo build --quiet $everything </dev/null &&
        "$target/debug/linear" --server "$target/debug/evenkeel" --seeds "${EVENKEEL_LINEAR:-1..20}" 2>&1 </dev/null |
        tee "$log/linear.log"
    local status=${PIPESTATUS[0]}
    local totals note
    totals=$(sed -n 's/^linear: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log/linear.log" | tail -n 1)
    note=$(sed -n 's/^linear: \([0-9]* operations\) ordered, \([0-9]* replies\) .*/\1, \2/p' "$log/linear.log" | tail -n 1)
    [ -n "$totals" ] || status=1
    # shellcheck disable=SC2086
    set -- ${totals:-0 0}
    count "linear" "$1" "$2" "$status" "$note"
    "$target/debug/linear" --leaders --server "$target/debug/evenkeel" --seeds "${EVENKEEL_LEADERS:-1..3}" 2>&1 </dev/null |
        tee "$log/leaders.log"
    status=${PIPESTATUS[0]}
    totals=$(sed -n 's/^linear: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log/leaders.log" | tail -n 1)
    note=$(sed -n 's/^linear: \([0-9]* operations\) ordered, \([0-9]* replies\) .*/\1, \2/p' "$log/leaders.log" | tail -n 1)
    [ -n "$totals" ] || status=1
    # shellcheck disable=SC2086
    set -- ${totals:-0 0}
    count "linear over failovers" "$1" "$2" "$status" "$note"
}

# The chaos tests: one server gets every input that clients can send, on another everything happens at once, a third
# is killed again and again, others start from what a power failure may leave, and some follow each other through all of it.
chaos() {
    say "clients that try to break the server"
    local status=0 totals good=0 bad=0 note program
    cargo build --quiet $everything </dev/null || status=1
    for program in "fuzz --seconds ${EVENKEEL_FUZZ_SECONDS:-8}" "soak --seconds ${EVENKEEL_SOAK_SECONDS:-30}" \
        "crash --rounds ${EVENKEEL_CRASH_ROUNDS:-24} --grace-ms 12000" "power --rounds ${EVENKEEL_POWER_ROUNDS:-3}" \
        "replicas --seconds ${EVENKEEL_REPLICAS_SECONDS:-75}"; do
        # What the fuzzer has a server tell is executed by a shadow, which has to stay equal.
        case $program in fuzz*) export EVENKEEL_SHADOW=1 ;; *) unset EVENKEEL_SHADOW ;; esac
        # shellcheck disable=SC2086
        "$target/debug/chaos" $program --server "$target/debug/evenkeel" --seed "${EVENKEEL_SEED:-1}" 2>&1 </dev/null |
            tee "$log/${program%% *}.log"
        [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
        totals=$(sed -n "s/^${program%% *}: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p" "$log/${program%% *}.log" | tail -n 1)
        [ -n "$totals" ] || status=1
        totals=${totals:-0 0}
        good=$((good + ${totals% *})) bad=$((bad + ${totals#* }))
    done
    # The move of docs/moving.md, and the cluster of `make cluster`.
    rm -rf "$log/nodes"
    for program in "moving-in/moving_in.py" "cluster/cluster.py --once --port 0 --dir $log/nodes"; do
        # shellcheck disable=SC2086
        if timeout 300 python3 examples/${program%% *} "$target/debug/evenkeel" ${program#"${program%% *}"} >"$log/example.log" 2>&1 </dev/null; then
            good=$((good + 1))
        else
            bad=$((bad + 1))
            tail -n 60 "$log/example.log"
        fi
    done
    note=$(sed -n 's/^fuzz: \([0-9]* requests\) in .*/\1/p' "$log/fuzz.log" | tail -n 1)
    note=$note$(sed -n 's/^soak: \([0-9]* replies\) held.*/, \1 held to a sentence/p' "$log/soak.log" | tail -n 1)
    note=$note$(sed -n 's/^crash: \([0-9]* rounds\): .*/, \1 of crashes/p' "$log/crash.log" | tail -n 1)
    note=$note$(sed -n 's/^replicas: \([0-9]* steps\) in .*/, \1 of replicas/p' "$log/replicas.log" | tail -n 1)
    note=$note$(sed -n 's/^power: \([0-9]* images\) of .*/, \1 of outages/p' "$log/power.log" | tail -n 1)
    count "chaos" "$good" "$bad" "$status" "$note"
}

# All packages, around the binary that the tests have built.
dist() {
    say "packages"
    cargo build --quiet $everything </dev/null &&
        EVENKEEL_BINARY="$target/debug/evenkeel" tests/dist.sh 2>&1 </dev/null | tee "$log/dist.log"
    local status=${PIPESTATUS[0]}
    local totals note
    totals=$(sed -n 's/^dist: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log/dist.log" | tail -n 1)
    note=$(grep -c '^not tried: ' "$log/dist.log")
    [ -n "$totals" ] || status=1
    # shellcheck disable=SC2086
    set -- ${totals:-0 0}
    count "packages" "$1" "$2" "$status" "$note not tried"
}

# The client tests wait more than they work, so they run beside the linearizability test, in groups beside each other.
clients_groups=("ioredis node-redis redis-py celery go-redis jedis" schemathesis console
    "cluster-redis-py cluster-ioredis cluster-node-redis cluster-go-redis cluster-jedis cluster-lettuce"
    "bullmq rq connect-redis rate-limiter-flexible redlock lettuce redis-exporter sidekiq")
clients_pids=()
begin_clients() {
    cargo build --quiet $everything </dev/null || return 1
    local some
    for some in "${clients_groups[@]}"; do
        # shellcheck disable=SC2086
        env -u EVENKEEL_PORT EVENKEEL_TEST_SERVER="$target/debug/evenkeel" \
            clients/run.sh $some >"$log/clients-${some%% *}.log" 2>&1 </dev/null &
        clients_pids+=($!)
    done
}

clients() {
    [ ${#clients_pids[@]} -gt 0 ] || begin_clients
    say "real client libraries"
    local status=0 pid first
    for pid in "${clients_pids[@]}"; do
        wait "$pid" || status=1
    done
    [ ${#clients_pids[@]} -gt 0 ] || status=1
    local totals good=0 bad=0
    for first in "${clients_groups[@]%% *}"; do
        cat "$log/clients-$first.log"
        totals=$(sed -n 's/^clients: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log/clients-$first.log" | tail -n 1)
        [ -n "$totals" ] || status=1
        totals=${totals:-0 0}
        good=$((good + ${totals% *})) bad=$((bad + ${totals#* }))
    done
    count "clients" "$good" "$bad" "$status"
}

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(unit differential linear chaos dist clients)
install_oracle || { echo "0 passed, 1 failed"; exit 1; }
for part in "${parts[@]}"; do
    case $part in
    linear)
        case " ${parts[*]} " in *" clients "*) begin_clients ;; esac
        linear
        ;;
    unit | differential | chaos | dist | clients) "$part" ;;
    *) echo "no part $part: unit, differential, linear, chaos, dist, clients" && exit 2 ;;
    esac
done
say "totals"
printf '%s\n' "${summary[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
