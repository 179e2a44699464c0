#!/usr/bin/env bash
# Makes all packages around a binary, twice, and installs and starts each as far as this machine lets it.
#     EVENKEEL_BINARY=target/debug/evenkeel tests/dist.sh       (default: that binary)
# As root the Debian package is installed, upgraded, removed and purged by dpkg in an overlay of this machine's files, so that nothing
# of it remains, and the image's files are served in a chroot. umoci, skopeo, lintian, helm (HELM: its path) and kubernetes-validate
# look at the packages if they are there. What was not tried is said. Prints `dist: N passed, M failed`.
set -u
cd "$(dirname "$0")/.." || exit 2
binary=$(realpath "${EVENKEEL_BINARY:-${CARGO_TARGET_DIR:-target}/debug/evenkeel}") || exit 2
work=$(mktemp -d)
passed=0 failed=0 server=
chmod 755 "$work"
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null
    rm -rf "$work"
}
trap end EXIT

# Runs a command, which has to end well. Its words are shown only if it does not.
holds() { # name command...
    local name=$1
    shift
    if "$@" >"$work/said" 2>&1 </dev/null; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        sed 's/^/    /' "$work/said" | tail -n 20
    fi
}
not_tried() { echo "not tried: $*"; }
has() { command -v "$1" >/dev/null; }
is_root() { [ "$(id -u)" -eq 0 ]; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# A server, as an unprivileged user if this is root: it answers PING, keeps a key over a restart, and ends in order.
serves() { # folder program words...
    local folder=$1 turn
    shift
    mkdir -p "$folder"
    chmod 777 "$folder"
    local as=()
    ! is_root || as=(setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs)
    for turn in 1 2; do
        run_one "$turn" "${as[@]}" "$@" --dir "$folder" || return 1
    done
}
run_one() { # turn command...
    local turn=$1 port said
    shift
    port=$(free_port)
    "$@" --port "$port" --bind 127.0.0.1 >"$work/log" 2>&1 </dev/null &
    server=$!
    answers "$port" || { cat "$work/log"; kill -9 "$server"; server=; return 1; }
    said=$(python3 - "$port" "$turn" <<'END'
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
ask = lambda words: (line.sendall(words + b"\r\n"), line.recv(4096))[1]
if sys.argv[2] == "1":
    assert ask(b"SET kept yes") == b"+OK\r\n" and ask(b"SAVE") == b"+OK\r\n"
print("kept" if ask(b"GET kept") == b"$3\r\nyes\r\n" else "lost")
END
    )
    kill "$server"
    wait "$server" || { echo "it ended with $?"; cat "$work/log"; server=; return 1; }
    server=
    [ "$said" = kept ] || { echo "the key: $said"; return 1; }
}
answers() { # port
    local n
    for n in $(seq 100); do
        [ "$("$binary" ping --port "$1" 2>&1)" != PONG ] || return 0
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# --- all packages, twice: the second time with other settings of the environment ---
export SOURCE_DATE_EPOCH=1700000000 DIST_LEVEL=1
EVENKEEL_BINARY=$binary deploy/dist.sh "$work/a" >"$work/made" 2>&1 </dev/null || { cat "$work/made"; echo "dist: 0 passed, 1 failed"; exit 1; }
(umask 077 && EVENKEEL_BINARY=$binary TZ=Asia/Tokyo LC_ALL=C.UTF-8 TMPDIR=$work deploy/dist.sh "$work/b" >/dev/null 2>&1 </dev/null)
holds "two builds give equal bytes" diff -r "$work/a" "$work/b"
holds "SHA256SUMS names every file, and holds" bash -c 'cd "$1" && sha256sum --strict --quiet -c SHA256SUMS && [ "$(wc -l <SHA256SUMS)" -eq "$(ls | grep -vc SHA256SUMS)" ]' - "$work/a"
rm -rf "$work/b"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
holds "the list of crates has licences" awk -F '\t' 'NF >= 2 { n++; if ($2 == "" || $2 == "None") exit 1 } END { exit n < 100 }' "$work"/a/*-crates.txt

# --- tarball ---
mkdir "$work/tar"
tar -C "$work/tar" -xf "$work"/a/*.tar.xz --no-same-owner
tar=$(echo "$work"/tar/evenkeel-*)
holds "tarball: starts, saves, starts again" serves "$work/data-tar" "$tar/evenkeel" "$tar/evenkeel.conf"
holds "tarball: its configuration is correct" "$tar/evenkeel" --check-config "$tar/evenkeel.conf"
holds "tarball: keeps the table of symbols, and no line tables" bash -c 'readelf -WS "$1" >"$2"; grep -q "\.symtab" "$2" && ! grep -q "\.debug_line" "$2"' - "$tar/evenkeel" "$work/sections"
for file in LICENSE-MIT LICENSE-APACHE THIRD-PARTY.txt README.md evenkeel.service man/evenkeel.1 man/evenkeel-ping.1 man/evenkeel-bench.1 man/evenkeel-top.1 completions/evenkeel.zsh; do
    holds "tarball: has $file" test -s "$tar/$file"
done
for text in "Lua.org, PUC-Rio" "Jason Evans" "Preact"; do
    holds "the licences name $text" grep -q "$text" "$tar/THIRD-PARTY.txt"
done
holds "completions: bash reads them" bash -n "$tar/completions/evenkeel.bash"
has mandoc && holds "man pages: mandoc finds no error" mandoc -T lint -W error "$tar"/man/*

# --- units: how far the walls go (0 to 10, low is good; 20 is 2.0) ---
deb=$(echo "$work"/a/*.deb)
if [ -e "$deb" ]; then
    mkdir "$work/deb"
    dpkg-deb -x "$deb" "$work/deb"
    dpkg-deb -e "$deb" "$work/deb/DEBIAN"
fi
if has systemd-analyze; then
    for unit in "$tar/evenkeel.service" "$work/deb/usr/lib/systemd/system/evenkeel.service"; do
        [ -e "$unit" ] || continue
        mkdir -p "$work/units"
        sed "s|^ExecStart=[^ ]*|ExecStart=$tar/evenkeel|" "$unit" >"$work/units/evenkeel.service"
        holds "unit: systemd finds no fault in ${unit#"$work"/}" bash -c 'said=$(systemd-analyze verify --recursive-errors=no "$1" 2>&1); echo "$said"; ! grep -q evenkeel.service <<<"$said"' - "$work/units/evenkeel.service"
        holds "unit: walls of ${unit#"$work"/}" systemd-analyze security --offline=yes --threshold=20 "$work/units/evenkeel.service"
    done
else
    not_tried "the units, as there is no systemd-analyze"
fi

# --- Debian package ---
if [ -e "$deb" ]; then
    holds "deb: name, version, processor" bash -c '[ "$(dpkg-deb -f "$1" Package Version)" = "$2" ]' - "$deb" "$(printf 'Package: evenkeel\nVersion: %s' "$version")"
    for script in postinst prerm postrm; do holds "deb: $script is sh" sh -n "$work/deb/DEBIAN/$script"; done
    holds "deb: its configuration is correct" "$work/deb/usr/bin/evenkeel" --check-config "$work/deb/etc/evenkeel/evenkeel.conf"
    # The address of the maintainer is a placeholder until a release names one.
    has lintian && holds "deb: lintian finds no error" lintian --fail-on error --suppress-tags root-in-contact,bogus-mail-host,bogus-mail-host-in-debian-changelog "$deb"
    cat >"$work/installed.sh" <<'END'
# In the overlay: $1 the package, $2 a free port.
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg -i "$1"
id evenkeel
[ "$(stat -c '%U %a' /etc/evenkeel/evenkeel.conf)" = "evenkeel 640" ]
[ "$(stat -c '%U %a' /var/lib/evenkeel)" = "evenkeel 750" ]
start() {
    setpriv --reuid evenkeel --regid evenkeel --clear-groups --no-new-privs /usr/bin/evenkeel /etc/evenkeel/evenkeel.conf --port "$1" &
    server=$!
    for n in $(seq 100); do [ "$(evenkeel ping --port "$1" 2>&1)" != PONG ] || return 0; sleep 0.1; done
    return 1
}
start "$2"
# The user may write the configuration.
printf 'CONFIG SET maxmemory 123mb\r\nCONFIG REWRITE\r\nSET kept yes\r\nSAVE\r\nSHUTDOWN\r\n' |
    timeout 20 bash -c 'exec 3<>/dev/tcp/127.0.0.1/'"$2"'; cat >&3; cat <&3'
wait "$server"
grep -qx 'maxmemory 128974848\|maxmemory 123mb' /etc/evenkeel/evenkeel.conf
[ "$(stat -c %U /var/lib/evenkeel/dump.rdb)" = evenkeel ]
# An upgrade keeps what was changed, and who owns it.
dpkg -i --force-confold "$1"
grep -q '^maxmemory 1' /etc/evenkeel/evenkeel.conf
[ "$(stat -c '%U %a' /etc/evenkeel/evenkeel.conf)" = "evenkeel 640" ]
start "$2"
[ "$(timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/'"$2"'; printf "GET kept\r\n" >&3; head -n 2 <&3 | tail -n 1 | tr -d "\r"')" = yes ]
kill "$server"
wait "$server"
# Removal keeps the configuration and the data, a purge the data.
dpkg -r evenkeel
[ ! -e /usr/bin/evenkeel ] && [ -e /etc/evenkeel/evenkeel.conf ] && [ -e /var/lib/evenkeel/dump.rdb ]
dpkg -P evenkeel
[ ! -e /etc/evenkeel ] && [ -e /var/lib/evenkeel/dump.rdb ]
END
    overlaid() { # command...: runs it in an overlay of /, with a mount namespace of its own
        mkdir -p "$work/overlay"
        unshare -m bash -c 'set -e; o=$1; shift; mount -t tmpfs none "$o"; mkdir "$o/u" "$o/w" "$o/r"
            mount -t overlay -o lowerdir=/,upperdir="$o/u",workdir="$o/w" none "$o/r"
            mount -t proc none "$o/r/proc"; mount --bind /dev "$o/r/dev"; mkdir -p "$o/r/in"; cp "$1" "$o/r/in/a.deb"; cp "$2" "$o/r/in/b.sh"
            exec chroot "$o/r" bash /in/b.sh /in/a.deb "$3"' - "$work/overlay" "$@"
    }
    echo true >"$work/true.sh"
    if is_root && dpkg-query -W adduser init-system-helpers >/dev/null 2>&1 && overlaid "$deb" "$work/true.sh" 0 >/dev/null 2>&1; then
        holds "deb: installed, started, upgraded, removed, purged" overlaid "$deb" "$work/installed.sh" "$(free_port)"
    else
        not_tried "dpkg -i, as that takes root, dpkg, adduser, init-system-helpers, and a machine that mounts overlays"
        holds "deb: starts from its unpacked files" serves "$work/data-deb" "$work/deb/usr/bin/evenkeel" "$work/deb/etc/evenkeel/evenkeel.conf"
    fi
else
    not_tried "the Debian package, as there is no dpkg-deb"
fi

# --- container image ---
image=$(echo "$work"/a/*-image.tar)
mkdir "$work/layout" "$work/rootfs"
tar -C "$work/layout" -xf "$image" --no-same-owner
cat >"$work/image.py" <<'END'
# The layout: every descriptor names a blob with its digest and size, and both tables of contents lead to the same blobs.
import gzip, hashlib, json, pathlib, sys
layout, out = pathlib.Path(sys.argv[1]), sys.argv[2]
def read(about):
    data = (layout / "blobs" / about["digest"].replace(":", "/")).read_bytes()
    assert "sha256:" + hashlib.sha256(data).hexdigest() == about["digest"] and len(data) == about["size"], about
    return data
assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
[one] = json.loads((layout / "index.json").read_text())["manifests"]
manifest = json.loads(read(one))
config, [layer] = json.loads(read(manifest["config"])), manifest["layers"]
tar = gzip.decompress(read(layer))
assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(tar).hexdigest()]
[docker] = json.loads((layout / "manifest.json").read_text())
blob = lambda about: "blobs/" + about["digest"].replace(":", "/")
assert docker["Config"] == blob(manifest["config"]) and docker["Layers"] == [blob(layer)]
assert len(list((layout / "blobs/sha256").iterdir())) == 3
run = config["config"]
assert run["User"] == "999:999" and run["Healthcheck"]["Test"][:3] == ["CMD", "/usr/bin/evenkeel", "ping"], run
pathlib.Path(out).write_bytes(tar)
END
holds "image: the layout is whole" python3 "$work/image.py" "$work/layout" "$work/layer.tar"
tar -C "$work/rootfs" -xpf "$work/layer.tar"
holds "image: no file may become another user" bash -c '[ -z "$(find "$1" -perm /6000)" ] && [ -z "$(find "$1" -type f -perm /022)" ]' - "$work/rootfs"
if has umoci && is_root; then
    holds "image: umoci unpacks it" umoci unpack --image "$work/layout:$version" "$work/bundle"
    holds "image: umoci unpacks the same files" diff -r "$work/bundle/rootfs" "$work/rootfs"
else
    not_tried "umoci unpack, as there is no umoci or no root"
fi
if has skopeo; then
    for kind in oci-archive docker-archive; do
        holds "image: skopeo copies it as $kind" skopeo --insecure-policy copy "$kind:$image" "dir:$work/copied-$kind"
    done
else
    not_tried "skopeo"
fi
in_image=(chroot --userspec=999:999 "$work/rootfs")
image_serves() {
    local port
    port=$(free_port)
    "${in_image[@]}" /usr/bin/evenkeel /etc/evenkeel/evenkeel.conf --port "$port" --bind 127.0.0.1 --save 3600 1 >"$work/log" 2>&1 &
    server=$!
    answers "$port" && [ "$("${in_image[@]}" /usr/bin/evenkeel ping --timeout 2 --port "$port")" = PONG ] &&
        "$binary" ping --port "$port" -a wrong 2>&1 | grep -q "without any password configured" || { cat "$work/log"; return 1; }
    kill "$server"
    wait "$server" || return 1
    server=
    # The health check of a server that is not there.
    ! "${in_image[@]}" /usr/bin/evenkeel ping --timeout 2 --port "$port"
}
if is_root; then
    holds "image: its files alone serve, as its user, and its health check knows" image_serves
else
    not_tried "the image's files in a chroot, as that takes root"
fi

# --- Python wheel ---
wheel=$(echo "$work"/a/*.whl)
holds "wheel: python makes an environment" python3 -m venv "$work/venv"
holds "wheel: pip installs it" "$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel"
holds "wheel: the program says its version" bash -c '"$1" --version | grep -qF "v=$2 "' - "$work/venv/bin/evenkeel" "$version"
chmod -R go+rX "$work/venv"
holds "wheel: starts, saves, starts again" serves "$work/data-wheel" "$work/venv/bin/evenkeel"
cat >"$work/record.py" <<'END'
# Every file stands in RECORD, with its digest and size.
import base64, csv, hashlib, io, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    files = {name: wheel.read(name) for name in wheel.namelist()}
[record] = [name for name in files if name.endswith(".dist-info/RECORD")]
rows = {name: rest for name, *rest in csv.reader(io.StringIO(files[record].decode()))}
assert rows.keys() == files.keys() and rows.pop(record) == ["", ""]
for name, row in rows.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
    assert row == ["sha256=" + digest, str(len(files[name]))], name
END
holds "wheel: RECORD holds" python3 "$work/record.py" "$wheel"
holds "wheel: pip removes all of it" bash -c '"$1/bin/pip" uninstall --quiet --yes --disable-pip-version-check evenkeel && [ ! -e "$1/bin/evenkeel" ]' - "$work/venv"
holds "wheel: its tag names the C library that the symbols ask for" bash -c 'need=$(readelf -W -V "$1" | grep -o "GLIBC_[0-9.]*" | cut -d_ -f2 | sort -Vu | tail -n 1); [[ $2 == *manylinux_${need/./_}_* ]]' - "$binary" "$wheel"

# --- Helm chart ---
holds "chart: its version is the program's" grep -qx "version: $version" deploy/helm/evenkeel/Chart.yaml
holds "chart: and so is the version of its image" grep -qx "appVersion: \"$version\"" deploy/helm/evenkeel/Chart.yaml
helm=${HELM:-helm}
if has "$helm"; then
    chart=$(echo "$work"/a/evenkeel-chart-*.tgz)
    holds "chart: helm lint" "$helm" lint --strict "$chart"
    for mode in one replicas sentinel; do
        for more in auth.enabled=true auth.enabled=false,http.enabled=false,persistence.enabled=false auth.existingSecret=mine,maxmemory=1gb,config='timeout 60'; do
            rendered=$work/rendered.yaml
            holds "chart: $mode, $more" bash -c '"$1" template some "$2" --kube-version 1.31.0 --set "mode=$3,$4" >"$5"' - "$helm" "$chart" "$mode" "$more" "$rendered"
            ! has kubernetes-validate || holds "chart: $mode, $more, by the schemas of Kubernetes" kubernetes-validate --strict "$rendered"
            sed -n '/^  evenkeel.conf: |/,/^  [a-z-]/p' "$rendered" | sed -n 's/^    //p' | sed '/^---/,$d' >"$work/chart.conf"
            sed -i "s|^dir .*|dir $work|" "$work/chart.conf"
            holds "chart: $mode, $more: its configuration has lines, and is correct" bash -c 'grep -q "^bind " "$2" && "$1" --check-config "$2"' - "$binary" "$work/chart.conf"
        done
    done
    # Whom a server follows at its start: the primary that the Sentinels name, else the first pod; nobody if that is itself.
    mkdir "$work/role" "$work/role/bin"
    "$helm" template some "$chart" --kube-version 1.31.0 --set mode=sentinel -s templates/config.yaml |
        sed -n '/^  role.sh: |/,/^  [a-z.]*: |/p' | sed -n 's/^    //p' | sed "s|/data/|$work/role/|" >"$work/role.sh"
    printf '#!/bin/sh\n[ -n "$NAMED" ] && printf "%%s\\n6379\\n" "$NAMED"\n' >"$work/role/bin/valkey-cli"
    chmod 755 "$work/role/bin/valkey-cli"
    nodes=some-evenkeel-nodes.default.svc.cluster.local
    follows() { # host, the primary that Sentinels name, the line that is expected
        HOSTNAME=$1 NAMED=$2 PATH=$work/role/bin:$PATH sh "$work/role.sh" && cat "$work/role/evenkeel.conf" &&
            [ "$(cat "$work/role/evenkeel.conf")" = "$(printf 'include /etc/evenkeel/evenkeel.conf\n%s' "$3")" ]
    }
    holds "chart: the first pod leads at first" follows some-evenkeel-0 "" ""
    holds "chart: others follow it" follows some-evenkeel-1 "" "replicaof some-evenkeel-0.$nodes 6379"
    holds "chart: the first pod follows who was promoted" follows some-evenkeel-0 "some-evenkeel-1.$nodes" "replicaof some-evenkeel-1.$nodes 6379"
    holds "chart: who was promoted leads" follows some-evenkeel-1 "some-evenkeel-1.$nodes" ""
    holds "chart: another mode is refused" bash -c '! "$1" template some "$2" --kube-version 1.31.0 --set mode=two' - "$helm" "$chart"
else
    not_tried "rendering the chart, as there is no helm"
fi

echo "dist: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
