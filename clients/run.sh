#!/usr/bin/env bash
# Runs the real client libraries against a server and counts their cases; see README.md.
#   clients/run.sh [client ...]
# Environment: EVENKEEL_HOST, EVENKEEL_PORT (a running server, which is emptied; without EVENKEEL_PORT one is
# started), EVENKEEL_HTTP_PORT (where it serves HTTP), EVENKEEL_TLS_PORT (where it serves TLS) and EVENKEEL_TLS_DIR (with what
# make_certificates makes), EVENKEEL_TEST_SERVER (its binary).
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
cache=$root/.cache/clients
all=(ioredis node-redis redis-py celery bullmq rq go-redis jedis connect-redis rate-limiter-flexible redlock lettuce redis-exporter
    sidekiq schemathesis console cluster-redis-py cluster-ioredis cluster-node-redis cluster-go-redis cluster-lettuce
    cluster-jedis)
mkdir -p "$cache"
export EVENKEEL_HOST=${EVENKEEL_HOST:-127.0.0.1}
server=${EVENKEEL_TEST_SERVER:-${CARGO_TARGET_DIR:-$root/target}/debug/evenkeel}
server_pid=
# Two of these may run at once, each with a server of its own.
server_log=$cache/server-${1:-all}.log
tls_dir=$cache/tls-${1:-all}

stop_server() {
    if [ -n "$server_pid" ]; then
        kill "$server_pid" 2>/dev/null
        wait "$server_pid" 2>/dev/null
        server_pid=
    fi
}
trap stop_server EXIT

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

answers() {
    python3 - "$EVENKEEL_HOST" "$EVENKEEL_PORT" <<'PY' 2>/dev/null
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)
s.sendall(b"PING\r\n")
sys.exit(0 if s.recv(5) == b"+PONG" else 1)
PY
}

# In a new folder: an authority, certificates of the server and of alice, and of a stranger from another authority.
make_certificates() (
    rm -rf "$1" && mkdir -p "$1" && cd "$1" || exit 1
    key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
    for name in ca other; do
        openssl req -x509 "${key[@]}" -days 30 -subj "/CN=authority $name" -addext keyUsage=critical,keyCertSign,cRLSign \
            -keyout $name.key -out $name.crt || exit 1
    done
    for name in server alice stranger; do
        authority=ca
        [ $name = stranger ] && authority=other
        printf '%s\n' subjectAltName=IP:127.0.0.1,DNS:localhost subjectKeyIdentifier=hash authorityKeyIdentifier=keyid >$name.ext
        openssl req "${key[@]}" -subj "/CN=$name" -keyout $name.key -out $name.csr &&
            openssl x509 -req -in $name.csr -CA $authority.crt -CAkey $authority.key -CAcreateserial -days 30 \
                -extfile $name.ext -out $name.crt &&
            openssl pkcs12 -export -inkey $name.key -in $name.crt -passout pass:secret -out $name.p12 || exit 1
    done
)

start_server() {
    EVENKEEL_PORT=$(free_port)
    EVENKEEL_HTTP_PORT=$(free_port)
    EVENKEEL_TLS_PORT=$(free_port)
    EVENKEEL_TLS_DIR=$tls_dir
    export EVENKEEL_PORT EVENKEEL_HTTP_PORT EVENKEEL_TLS_PORT EVENKEEL_TLS_DIR
    make_certificates "$tls_dir" >"$tls_dir.log" 2>&1 </dev/null || {
        echo "clients: openssl made no certificates:"
        tail -n 20 "$tls_dir.log"
        return 1
    }
    "$server" --port "$EVENKEEL_PORT" --http-port "$EVENKEEL_HTTP_PORT" --bind 127.0.0.1 --save "" --appendonly no --dir "$cache" \
        --enable-protected-configs local \
        --tls-port "$EVENKEEL_TLS_PORT" --tls-cert-file "$tls_dir/server.crt" --tls-key-file "$tls_dir/server.key" \
        --tls-ca-cert-file "$tls_dir/ca.crt" --tls-auth-clients yes --tls-auth-clients-user cn \
        --tls-handshake-timeout 600 \
        >"$server_log" 2>&1 </dev/null &
    server_pid=$!
    for _ in $(seq 100); do
        answers && return 0
        kill -0 "$server_pid" 2>/dev/null || break
        sleep 0.1
    done
    echo "clients: $server does not answer on port $EVENKEEL_PORT:"
    tail -n 20 "$server_log"
    return 1
}

# Installs the Debian packages of a program that is missing. Several clients may want that at once.
need() { # program package...
    command -v "$1" >/dev/null && return 0
    [ "$(id -u)" -eq 0 ] || { echo "$1 is missing: apt-get install ${*:2}" && return 1; }
    local apt="apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300"
    { flock "$cache/apt.lock" $apt update && DEBIAN_FRONTEND=noninteractive flock "$cache/apt.lock" $apt \
        install -y --no-install-recommends "${@:2}"; } >"$cache/apt-$1.log" 2>&1 </dev/null ||
        { tail -n 15 "$cache/apt-$1.log" && return 1; }
}

# Tries what needs a package registry again when it fails.
retried() {
    local pause_s
    for pause_s in 2 5 10; do
        "$@" && return 0
        sleep "$pause_s"
    done
    "$@"
}

# One function a client: makes it ready, then runs its cases.
node_client() {
    need npm nodejs npm || return 1
    cd "$here/$1" || return 1
    [ -e node_modules/.whole ] || { retried npm ci --silent && touch node_modules/.whole; } || return 1
    ${2:-} node "${3:-cases.js}"
}
run_ioredis() { node_client ioredis; }
run_node-redis() { node_client node-redis; }
run_bullmq() { node_client bullmq; }
run_connect-redis() { node_client connect-redis; }
run_rate-limiter-flexible() { node_client rate-limiter-flexible; }
run_redlock() { node_client redlock; }

# The console in a real browser; first, whether its committed files are those that its source gives.
run_console() {
    need chromium chromium && need npm nodejs npm || return 1
    (cd "$here/../console" && { [ -e node_modules/.whole ] || { retried npm ci --silent && touch node_modules/.whole; }; } &&
        node build.js --check) || { echo "not ok files: make console" && return 1; }
    echo "ok files are those of the source"
    node_client console
}

python_client() {
    local venv=$cache/$1-venv
    if ! cmp -s "$here/$1/requirements.txt" "$venv/installed"; then
        python3 -c 'import ensurepip' 2>/dev/null || need ensurepip python3-venv || return 1
        rm -rf "$venv"
        python3 -m venv "$venv" && retried "$venv/bin/pip" install --quiet --requirement "$here/$1/requirements.txt" || return 1
        cp "$here/$1/requirements.txt" "$venv/installed"
    fi
    ${2:-} "$venv/bin/python" "$here/$1/${3:-cases.py}"
}
run_redis-py() { python_client redis-py; }
run_celery() { python_client celery; }
run_rq() { python_client rq; }
run_schemathesis() { python_client schemathesis; }

run_go-redis() { need go golang-go && (cd "$here/go-redis" && retried go build -o "$cache/go-redis" . && "$cache/go-redis"); }

# The same libraries in a cluster of their own: beside_cluster PROGRAM starts one.
beside_cluster() { python3 "$here/cluster/nodes.py" "$server" "$@"; }
run_cluster-redis-py() { python_client redis-py beside_cluster cluster.py; }
run_cluster-ioredis() { node_client ioredis beside_cluster cluster.js; }
run_cluster-node-redis() { node_client node-redis beside_cluster cluster.js; }
run_cluster-go-redis() {
    need go golang-go && (cd "$here/go-redis" && retried go build -o "$cache/go-redis-cluster" ./cluster && beside_cluster "$cache/go-redis-cluster")
}

# The exporter itself is built beside the program that reads its metrics.
run_redis-exporter() {
    need go golang-go && (cd "$here/redis-exporter" && retried go build -o "$cache/exporter/" . github.com/oliver006/redis_exporter &&
        "$cache/exporter/redis-exporter" "$cache/exporter/redis_exporter")
}

maven_client() {
    need mvn maven default-jdk-headless || return 1
    cd "$here/$1" || return 1
    local maven=(mvn --quiet --batch-mode -Dstyle.color=never "-Dcases.target=$cache/$1")
    # Without -U Maven remembers that a download failed.
    "${maven[@]}" compile || retried "${maven[@]}" -U compile || return 1
    ${2:-} "${maven[@]}" "-Dcases.main=${3:-Cases}" exec:java
}
run_jedis() { maven_client jedis; }
run_lettuce() { maven_client lettuce; }
run_cluster-jedis() { maven_client jedis beside_cluster ClusterCases; }
run_cluster-lettuce() { maven_client lettuce beside_cluster ClusterCases; }

# Sidekiq and Ruby are packages of Debian.
run_sidekiq() {
    ruby -e 'require "sidekiq"' 2>/dev/null || need sidekiq ruby-sidekiq || return 1
    ruby "$here/sidekiq/cases.rb"
}

if [ -z "${EVENKEEL_PORT:-}" ]; then
    start_server || { echo "clients: 0 passed, ${#all[@]} failed"; exit 1; }
fi
clients=("$@")
[ ${#clients[@]} -gt 0 ] || clients=("${all[@]}")
passed=0
failed=0
for client in "${clients[@]}"; do
    log=$cache/$client.log
    started=$SECONDS
    export -f "run_$client" need retried node_client python_client maven_client beside_cluster 2>/dev/null || { echo "no client $client"; exit 2; }
    export here cache server
    timeout --kill-after=10 "${EVENKEEL_CLIENT_TIMEOUT:-600}" bash -c "run_$client" >"$log" 2>&1 </dev/null
    status=$?
    sed -i "s/\x1b\[[0-9;]*m//g" "$log"
    good=$(grep -c '^ok ' "$log")
    bad=$(grep -c '^not ok ' "$log")
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
        echo "  $client ended with status $status:"
        tail -n 15 "$log" | sed 's/^/      /'
    fi
    if [ "$bad" -gt 0 ]; then
        sed -n '/^not ok /,/^ok /{/^ok /d;p}' "$log" | head -n 60 | sed 's/^/      /'
    fi
    printf '  %-22s %3d passed, %d failed  (%d s)\n' "$client" "$good" "$bad" "$((SECONDS - started))"
    passed=$((passed + good))
    failed=$((failed + bad))
done
echo "clients: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
