#!/usr/bin/env bash
# What deny.toml says of the licences, the versions and the sources of the code of others, checked in a second with cargo and Python
# alone. Prints what does not hold; nothing, and 0, if all does. `make deny` runs cargo-deny, which takes minutes to build
# and looks at published advisories, too.
set -u
cd "$(dirname "$0")/.." || exit 2
host=$(rustc -vV | sed -n 's/^host: //p')
# The tree has what is built; the metadata have more, of features that nobody wants.
built=$(cargo tree --workspace --locked --all-features --target "$host" --edges all --prefix none --format '{p}' | sort -u)
cargo metadata --format-version 1 --locked --filter-platform "$host" | built=$built python3 -c '
import collections, json, os, re, sys, tomllib

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"
with open("deny.toml", "rb") as file:
    rules = tomllib.load(file)
free = set(rules["licenses"]["allow"])
skipped = {skip["crate"]: skip["reason"] for skip in rules["bans"]["skip"]}

def is_free(text):
    """AND needs all sides, OR one; a slash is an OR of old."""
    text = text.replace("/", " OR ")
    while (inner := re.search(r"\(([^()]*)\)", text)):
        text = text[:inner.start()] + ("MIT" if is_free(inner[1]) else "none") + text[inner.end():]
    return any(all(part.strip() in free for part in side.split(" AND ")) for side in text.split(" OR "))

assert is_free("(MIT OR GPL-3.0) AND MIT") and not is_free("MIT AND GPL-3.0") and not is_free("SSPL-1.0")
built = {tuple(line.split()[:2]) for line in os.environ["built"].splitlines() if " v" in line}
assert len(built) > 100
versions, bad = collections.defaultdict(set), []
for package in json.load(sys.stdin)["packages"]:
    if package["source"] is None or (package["name"], "v" + package["version"]) not in built:
        continue
    name, source, licence = package["name"], package["source"], package["license"] or "none"
    versions[name].add(package["version"])
    if not source.startswith(CRATES_IO):
        bad.append(f"{name} does not come from crates.io: {source}")
    if not is_free(licence):
        bad.append(f"{name}: the licence does not fit: {licence}")
for name, found in sorted(versions.items()):
    counted = sorted(version for version in found if f"{name}@{version}" not in skipped)
    if len(counted) > 1:
        bad.append(f"{name} is there in the versions {counted}: use one, or skip the others in deny.toml")
    if len(found) == 1 and not counted:
        bad.append(f"{name} is there once only: correct deny.toml")
there = {f"{name}@{version}" for name, found in versions.items() for version in found}
bad += [f"{crate} is not there: correct deny.toml" for crate in skipped if crate not in there]
print("\n".join(bad), end="\n" if bad else "")
sys.exit(bool(bad))
'
