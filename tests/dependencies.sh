#!/usr/bin/env bash
# What the code of others that Evenkeel is built from must be: licensed so that all of it may be given on under MIT or
# Apache-2.0, from crates.io, and in one version, but for the names in tests/dependencies.txt. Prints what is not; nothing,
# and 0, if all is. It looks at no advisories: `cargo audit` does, where it may ask for them.
set -u
cd "$(dirname "$0")/.." || exit 2
host=$(rustc -vV | sed -n 's/^host: //p')
cargo metadata --format-version 1 --locked --filter-platform "$host" | python3 -c '
import collections, json, re, sys

FREE = {
    "MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "ISC", "Zlib",
    "Unicode-3.0", "Unlicense", "CC0-1.0", "CDLA-Permissive-2.0",
}

def is_free(text):
    """AND needs all sides, OR one; a slash is an OR of old."""
    text = text.replace("/", " OR ")
    while (inner := re.search(r"\(([^()]*)\)", text)):
        text = text[:inner.start()] + ("MIT" if is_free(inner[1]) else "none") + text[inner.end():]
    return any(all(part.strip() in FREE for part in side.split(" AND ")) for side in text.split(" OR "))

assert is_free("(MIT OR GPL-3.0) AND ISC") and not is_free("MIT AND GPL-3.0") and not is_free("SSPL-1.0")
with open("tests/dependencies.txt") as file:
    lines = [line.split(None, 2) for line in file if line.strip() and not line.startswith("#")]
twice = {name: int(count) for name, count, _ in lines}
versions, bad = collections.defaultdict(set), []
for package in json.load(sys.stdin)["packages"]:
    if package["source"] is None:
        continue
    name, source, licence = package["name"], package["source"], package["license"] or "none"
    versions[name].add(package["version"])
    if not source.startswith("registry+https://github.com/rust-lang/crates.io-index"):
        bad.append(f"{name} does not come from crates.io: {source}")
    if not is_free(licence):
        bad.append(f"{name}: the licence does not fit: {licence}")
for name, found in sorted(versions.items()):
    if len(found) > twice.get(name, 1):
        bad.append(f"{name} is there {len(found)} times: {sorted(found)}; use one, or name it in tests/dependencies.txt")
bad += [f"{name} is there {len(versions[name])} times only: correct tests/dependencies.txt"
        for name, count in twice.items() if len(versions[name]) < count]
print("\n".join(bad), end="\n" if bad else "")
sys.exit(bool(bad))
'
