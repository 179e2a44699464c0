#!/usr/bin/env bash
# Makes the packages around one binary: tarball, Debian package, container image, Helm chart, Python wheel, a list of the crates with
# their licences, and SHA256SUMS. docs/packages.md says what is in each.
#     deploy/dist.sh [FOLDER]       (default: target/dist)
# Environment: EVENKEEL_BINARY (a binary to pack, instead of a release build), SOURCE_DATE_EPOCH (the time of all files; default:
# the last commit's), DIST_LEVEL (of compression, 1 to 9; default 9), DIST_MAINTAINER (name and address for the Debian package).
# Equal binaries give equal bytes. Needs binutils, python3, tar, xz; dpkg-deb for the Debian package.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
export LC_ALL=C TZ=UTC
target=${CARGO_TARGET_DIR:-target}
out=${1:-$target/dist}
level=${DIST_LEVEL:-9}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
for program in strip readelf python3 tar xz sha256sum; do
    command -v "$program" >/dev/null || { echo "dist: there is no $program here" >&2 && exit 1; }
done
binary=${EVENKEEL_BINARY:-}
if [ -z "$binary" ]; then
    ${CARGO:-cargo} build --release --locked -p evenkeel
    binary=$target/release/evenkeel
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/evenkeel[-_]* "$out/SHA256SUMS"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
machine=$(readelf -h "$binary" | sed -n 's/^ *Machine: *//p')
case $machine in
*X86-64*) machine=x86_64 architecture=amd64 loader=/lib64/ld-linux-x86-64.so.2 ;;
*AArch64*) machine=aarch64 architecture=arm64 loader=/lib/ld-linux-aarch64.so.1 ;;
*) echo "dist: no packages for $machine" >&2 && exit 1 ;;
esac
# The version of the C library that the binary's symbols ask for.
glibc=$(readelf -W -V "$binary" | grep -o 'GLIBC_[0-9][0-9.]*' | cut -d_ -f2 | sort -Vu | tail -n 1)
name=evenkeel-$version-linux-$machine
maintainer=${DIST_MAINTAINER:-The Evenkeel authors <evenkeel@localhost.localdomain>}

same_time() { find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }
packed() { # folder name: a tar of folder/name on standard output
    same_time "$1/$2"
    tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2"
}
# Replaces a line of a unit, which has to be there.
edit() { # file from to
    grep -q "^$2" "$1" || { echo "dist: the unit has no line '$2'" >&2 && exit 1; }
    sed -i "s|^$2.*|$3|" "$1"
}

# What several packages have: line tables go, the table of symbols stays for the stacks of EVENKEEL STALLS.
parts=$work/parts
mkdir -p "$parts/man" "$parts/completions"
strip --strip-debug -o "$parts/evenkeel" "$binary"
chmod 755 "$parts/evenkeel"
"$parts/evenkeel" man >"$parts/man/evenkeel.1"
for command in load copy bench ping doctor; do "$parts/evenkeel" man $command >"$parts/man/evenkeel-$command.1"; done
# Only a binary with the cargo feature `tools` has these.
for command in top stat; do
    if page=$("$parts/evenkeel" man $command 2>/dev/null); then echo "$page" >"$parts/man/evenkeel-$command.1"; fi
done
sed -i "s/^\(\.TH [^ ]* 1\) \"\"/\1 $(date -u -d "@$SOURCE_DATE_EPOCH" +%F)/" "$parts"/man/*
for shell in bash zsh fish; do "$parts/evenkeel" completions $shell >"$parts/completions/evenkeel.$shell"; done
deploy/dist/licences.py list "$out/$name-crates.txt"
deploy/dist/licences.py texts "$parts/THIRD-PARTY.txt"
cp LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md evenkeel.conf "$parts/"
cp examples/systemd/evenkeel.service "$parts/"
chmod -R go-w "$parts"

# --- tarball ---
mkdir "$work/$name"
cp -r "$parts"/. "$work/$name/"
packed "$work" "$name" | xz "-$level" -T1 >"$out/$name.tar.xz"

# --- Debian package ---
if command -v dpkg-deb >/dev/null; then
    deb=$work/deb
    doc=$deb/usr/share/doc/evenkeel
    mkdir -p "$deb/DEBIAN" "$deb/usr/bin" "$deb/etc/evenkeel" "$deb/var/lib/evenkeel" "$deb/usr/lib/systemd/system" "$doc" \
        "$deb/usr/share/man/man1" "$deb/usr/share/bash-completion/completions" "$deb/usr/share/zsh/vendor-completions" \
        "$deb/usr/share/fish/vendor_completions.d"
    cp "$parts/evenkeel" "$deb/usr/bin/"
    { printf '# Directives of this package. All others follow with their defaults.\ndir /var/lib/evenkeel\n\n'; cat evenkeel.conf; } \
        >"$deb/etc/evenkeel/evenkeel.conf"
    unit=$deb/usr/lib/systemd/system/evenkeel.service
    cp "$parts/evenkeel.service" "$unit"
    edit "$unit" ExecStart= 'ExecStart=/usr/bin/evenkeel /etc/evenkeel/evenkeel.conf'
    edit "$unit" DynamicUser= 'User=evenkeel\nGroup=evenkeel'
    edit "$unit" ConfigurationDirectory= 'ReadWritePaths=-/etc/evenkeel'
    edit "$unit" 'StateDirectory=' 'StateDirectory=evenkeel\nStateDirectoryMode=0750'
    sed -i '1s/.*/# Users and folders are those of the Debian package; settings of yours: systemctl edit evenkeel./' "$unit"
    for page in "$parts"/man/*; do gzip -9n <"$page" >"$deb/usr/share/man/man1/$(basename "$page").gz"; done
    cp "$parts/completions/evenkeel.bash" "$deb/usr/share/bash-completion/completions/evenkeel"
    cp "$parts/completions/evenkeel.zsh" "$deb/usr/share/zsh/vendor-completions/_evenkeel"
    cp "$parts/completions/evenkeel.fish" "$deb/usr/share/fish/vendor_completions.d/evenkeel.fish"
    cp deploy/debian/copyright README.md "$doc/"
    gzip -9n <"$parts/THIRD-PARTY.txt" >"$doc/THIRD-PARTY.txt.gz"
    gzip -9n <CHANGELOG.md >"$doc/NEWS.gz"
    printf 'evenkeel (%s) unstable; urgency=medium\n\n  * NEWS.gz says what is new.\n\n -- %s  %s\n' "$version" "$maintainer" \
        "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.gz"
    mkdir -p "$deb/usr/share/lintian/overrides"
    printf '# EVENKEEL STALLS names functions by the table of symbols.\nevenkeel: unstripped-binary-or-object [usr/bin/evenkeel]\n' \
        >"$deb/usr/share/lintian/overrides/evenkeel"
    cp deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$deb/DEBIAN/"
    echo /etc/evenkeel/evenkeel.conf >"$deb/DEBIAN/conffiles"
    (cd "$deb" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum) >"$deb/DEBIAN/md5sums"
    sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@GLIBC@/$glibc/" \
        -e "s/@SIZE@/$(find "$deb/usr" "$deb/etc" -type f -printf '%s\n' | awk '{ n += int(($1 + 1023) / 1024) } END { print n }')/" \
        -e "s/@MAINTAINER@/$maintainer/" \
        deploy/debian/control.in >"$deb/DEBIAN/control"
    chmod -R u=rwX,go=rX "$deb"
    chmod 755 "$deb"/DEBIAN/p*
    same_time "$deb"
    dpkg-deb --root-owner-group -Zxz "-z$level" --threads-max=1 --build "$deb" "$out/evenkeel_${version}_$architecture.deb" >/dev/null
else
    echo "dist: no Debian package, as there is no dpkg-deb here" >&2
fi

# --- container image ---
# The binary, the libraries that it names, and nothing else that runs.
root=$work/root
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/etc/evenkeel" "$root/etc/ssl/certs" "$root/usr/share/doc" "$root/data" "$root/tmp" "$root/run"
ln -s usr/lib "$root/lib"
ln -s usr/lib "$root/lib64"
cp "$parts/evenkeel" "$root/usr/bin/"
# The first line is the loader's path, others are `name => path (address)`.
ldd "$parts/evenkeel" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | while read -r library; do
    cp -L "$library" "$root/usr/lib/"
    package=$(dpkg -S "$(realpath "$library")" 2>/dev/null | cut -d: -f1 || true)
    [ -z "$package" ] || { mkdir -p "$root/usr/share/doc/$package" && cp -L "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/"; }
done
cp -L "$loader" "$root/usr/lib/"
mkdir "$root/usr/share/doc/evenkeel"
cp LICENSE-MIT LICENSE-APACHE "$parts/THIRD-PARTY.txt" "$root/usr/share/doc/evenkeel/"
# Certificates for TLS to databases and to other servers.
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
{ printf '# Directives of this image. All others follow with their defaults.\nbind * -::*\ndir /data\n\n'; cat evenkeel.conf; } \
    >"$root/etc/evenkeel/evenkeel.conf"
printf 'root:x:0:0:root:/:/sbin/nologin\nevenkeel:x:999:999:evenkeel:/data:/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nevenkeel:x:999:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
chmod -R u=rwX,go=rX "$root"
chmod 1777 "$root/tmp"
chmod 755 "$root"/usr/bin/* "$root"/usr/lib/ld-linux*
deploy/dist/image.py "$root" "$version" "$architecture" "$level" "$out/$name-image.tar" >/dev/null

# --- Helm chart ---
if [ -d deploy/helm/evenkeel ]; then
    cp -r deploy/helm/evenkeel "$work/evenkeel"
    sed -i "s/^version: .*/version: $version/; s/^appVersion: .*/appVersion: \"$version\"/" "$work/evenkeel/Chart.yaml"
    chmod -R u=rwX,go=rX "$work/evenkeel"
    packed "$work" evenkeel | gzip "-${level}n" >"$out/evenkeel-chart-$version.tgz"
fi

# --- Python wheel ---
deploy/dist/wheel.py "$parts/evenkeel" "$version" "$glibc" "$machine" "$level" "$out" LICENSE-MIT LICENSE-APACHE "$parts/THIRD-PARTY.txt" >/dev/null

(cd "$out" && sha256sum evenkeel[-_]* >SHA256SUMS)
(cd "$out" && ls -l evenkeel[-_]* SHA256SUMS | awk '{ printf "%10d  %s\n", $5, $9 }')
