#!/usr/bin/env python3
"""Lists the crates that are in the binary, with their licences and the texts of these.

    licences.py list FILE      a line for each crate: name, version, licence, where it comes from
    licences.py texts FILE     the same, and each different text of a licence once

What cargo builds for `-p evenkeel` is listed, without what only compiles. Needs cargo, and the sources of the crates, which
cargo fetches.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = re.compile(r"^(licen[cs]es?|copying|copyright|notice|unlicense)([-._].*)?$", re.I)
# C code that crates bring along, below their folder.
BUNDLED = {"tikv-jemalloc-sys": ["jemalloc/COPYING"], "ring": ["third_party/fiat/LICENSE"]}
# Compiled into the binary by a build script.
COMPILED = ["lua-src"]
# What the binary has besides crates.
OTHERS = pathlib.Path(__file__).with_name("others.txt")


def run(*words):
    return subprocess.run([os.environ.get("CARGO") or "cargo", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def crates():
    """The crates of others in the binary, as cargo's metadata describe them."""
    tree = run("tree", "-p", "evenkeel", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}")
    built = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    found = []
    for package in json.loads(run("metadata", "--format-version", "1", "--locked"))["packages"]:
        is_built = (package["name"], "v" + package["version"]) in built or package["name"] in COMPILED
        if package["source"] is not None and is_built:
            found.append(package)
    assert len(found) > 50, "cargo names too few crates"
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def texts_of(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and NAMES.match(path.name)]
    folders = [path for path in sorted(folder.iterdir()) if path.is_dir() and NAMES.match(path.name)]
    files += [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]
    files += [folder / name for name in BUNDLED.get(package["name"], []) if (folder / name).is_file()]
    texts = [path.read_text(errors="replace").strip() for path in files]
    if package["name"] == "lua-src":
        lua = (folder / "lua-5.1.5/lua.h").read_text()
        texts.append("Lua 5.1\n\n" + re.search(r"\* (Copyright \(C\) .*?)\*+/", lua, re.S)[1].replace("\n* ", "\n").replace("\n*", "\n").strip())
    return [text for text in texts if text]


def line(package):
    place = package["repository"] or package["homepage"] or ""
    return f"{package['name']} {package['version']}\t{package['license']}\t{place}".rstrip()


def main(kind, file):
    found = crates()
    out = [
        "The code of others in the binary `evenkeel`. Its own licence is MIT or Apache-2.0.",
        "Crates, as cargo's metadata and their files describe them:",
        "",
        *map(line, found),
        "",
        OTHERS.read_text().strip(),
    ]
    if kind == "texts":
        owners, without = collections.defaultdict(list), []
        for package in found:
            texts = texts_of(package)
            for text in texts:
                owners[text].append(f"{package['name']} {package['version']}")
            if not texts:
                without.append(line(package))
        if without:
            out += ["", "=" * 80, "Crates without a text of their own; their licence is the one named above:", "", *without]
        for text, names in sorted(owners.items(), key=lambda item: item[1]):
            out += ["", "=" * 80, ", ".join(names), "-" * 80, text]
    pathlib.Path(file).write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
