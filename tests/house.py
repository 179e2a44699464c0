#!/usr/bin/env python3
"""Figures about the code that may fall and never rise, and names in documents that must exist.

    tests/house.py            prints what does not hold; nothing, and 0, if all does
    tests/house.py --show     prints the figures
    tests/house.py --circle exec    prints the files of the largest circle of a crate

A circle: files of one crate that import each other, directly or by way of others. Tests are left out everywhere.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The largest circle of files in each crate; crates that are not named: CIRCLE.
CIRCLES = {"command": 77, "keyspace": 33, "rdb": 18, "script": 15, "scripts": 13, "source": 14, "value": 13, "work": 13}
CIRCLE = 12
LONG_FUNCTIONS = 8
WIDE_COMMENTS = 118
COLUMNS = 112
LINES_OF_FUNCTION = 60
# Places that are named where too many are found.
SHOWN = 5


def sources(crate):
    """Files of a crate, without those of tests."""
    for path in sorted((crate / "src").rglob("*.rs")):
        if path.name != "tests.rs" and "tests" not in path.relative_to(crate / "src").parts:
            yield path


def code(path):
    """The text of a file up to its tests."""
    text = path.read_text()
    at = re.search(r"^#\[cfg\((all\()?test\b.*\]\s*\n(#\[.*\]\s*\n)*(pub(\(.*\))? )?mod \w+ \{", text, re.M)
    return text[: at.start()] if at else text


def module(crate, path):
    """The path of the module that a file is, as a tuple of names."""
    parts = list(path.relative_to(crate / "src").with_suffix("").parts)
    if parts[-1] in ("mod", "lib", "main"):
        parts.pop()
    return tuple(parts)


def trees(text):
    """The paths of a `use`, with braces opened: `a::{b, c::d}` gives a::b and a::c::d."""
    for match in re.finditer(r"\buse\s+((?:crate|super|self)::[^;]+);", text):
        yield from opened("", re.sub(r"\s+as\s+\w+", "", match.group(1)))
    for match in re.finditer(r"\b(?:crate|super)(?:::\w+)+", re.sub(r"\buse\s[^;]+;", "", text)):
        yield match.group(0)


def opened(prefix, tree):
    depth, start, parts = 0, 0, []
    for at, byte in enumerate(tree + ","):
        depth += (byte == "{") - (byte == "}")
        if byte == "," and depth == 0:
            parts.append(tree[start:at].strip())
            start = at + 1
    for part in filter(None, parts):
        if "{" in part:
            head, inner = part.split("{", 1)
            yield from opened(prefix + head.strip(), inner.rsplit("}", 1)[0])
        else:
            yield prefix + part


def absolute(name, tree):
    """A path from the root of the crate, for a path in the file of a module."""
    words, base = tree.split("::"), list(name)
    if words[0] == "crate":
        base = []
    while words and words[0] in ("crate", "super", "self"):
        if words.pop(0) == "super" and base:
            base.pop()
    return tuple(base + words)


def reexports(name, text, files):
    """What a module names again for others: name -> path. Glob re-exports stand under None."""
    found = {None: []}
    for match in re.finditer(r"\bpub(?:\([^)]*\))? use ([^;]+);", text):
        for path in opened("", match.group(1)):
            path, _, other = path.partition(" as ")
            words = path.split("::")
            if words[0] not in ("crate", "super", "self") and name + (words[0],) not in files:
                continue
            full = absolute(name, path) if words[0] in ("crate", "super", "self") else name + tuple(words)
            if words[-1] == "*":
                found[None].append(full[:-1])
            else:
                found[other.strip() or words[-1]] = full
    return found


def resolve(target, files, again, depth=0):
    """The file that defines a path, beyond names that are only given again."""
    rest = ()
    while target not in files and target:
        rest, target = (target[-1],) + rest, target[:-1]
    if not rest or depth > 6:
        return target
    other = again[target].get(rest[0])
    if other and other != target + rest:
        return resolve(other + rest[1:], files, again, depth + 1)
    for path in again[target][None]:
        found = resolve(path, files, again, depth + 1)
        if re.search(rf"\b(?:fn|struct|enum|trait|type|const|static|mod|union) {rest[0]}\b", files[found]):
            return found
    return target


def arrows(crate):
    """Which file of a crate imports from which. What a file only names again for others counts as its import."""
    files = {module(crate, path): re.sub(r"//[^\n]*", "", code(path)) for path in sources(crate)}
    again = {name: reexports(name, text, files) for name, text in files.items()}
    graph = {name: set() for name in files}
    for name, text in files.items():
        paths = [absolute(name, tree) for tree in trees(text)]
        paths += [path for key, path in again[name].items() if key is not None] + again[name][None]
        paths += [name + tuple(tree.split("::")) for tree in re.findall(r"(?<![:\w])[a-z_]\w*(?:::\w+)+", text) if name + (tree.split("::")[0],) in files]
        graph[name] = {resolve(path, files, again) for path in paths} - {name}
    return graph


def largest_circle(graph):
    """The largest strongly connected part (Tarjan, without recursion)."""
    order, low, stack, on, best, count = {}, {}, [], set(), [], 0
    for root in graph:
        if root in order:
            continue
        work = [(root, iter(graph[root]))]
        order[root] = low[root] = count = count + 1
        stack.append(root)
        on.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in order:
                    order[other] = low[other] = count = count + 1
                    stack.append(other)
                    on.add(other)
                    work.append((other, iter(graph[other])))
                    break
                if other in on:
                    low[node] = min(low[node], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    part = []
                    while not part or part[-1] != node:
                        part.append(stack.pop())
                        on.discard(part[-1])
                    best = max(best, part, key=len)
    return sorted("::".join(name) or "lib" for name in best)


def long_functions(crate):
    for path in sources(crate):
        lines, number = code(path).split("\n"), 0
        while number < len(lines):
            head = re.match(r"^(\s*)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)", lines[number])
            first, number = number, number + 1
            if not head or lines[first].rstrip().endswith("}"):
                continue
            at = first
            while not lines[at].rstrip().endswith(("{", ";", "}")):
                at += 1
            if not lines[at].rstrip().endswith("{"):
                continue
            while lines[at].rstrip() != head.group(1) + "}":
                at += 1
            if at - first + 1 > LINES_OF_FUNCTION:
                yield f"{path.relative_to(ROOT)}:{first + 1} {head.group(2)}: {at - first + 1} lines"


def wide_comments(crate):
    for path in crate.rglob("*.rs"):
        for number, line in enumerate(path.read_text().split("\n"), 1):
            if len(line) > COLUMNS and re.match(r"\s*//[/!]? ?[^|\s]", line):
                yield f"{path.relative_to(ROOT)}:{number}"


def unused_dependencies(crate):
    manifest = (crate / "Cargo.toml").read_text()
    section = re.search(r"^\[dependencies\]\n(.*?)(?=^\[|\Z)", manifest, re.M | re.S)
    text = "".join(path.read_text() for path in crate.rglob("*.rs"))
    for name in re.findall(r"^([\w-]+)\s*[.=]", section.group(1) if section else "", re.M):
        if not re.search(rf"\b{name.replace('-', '_')}\b", text):
            yield f"{crate.name} -> {name}"


def documents():
    """The documents that tell how the code is. measured.md tells of code that was, so it is left out."""
    found = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    return found + [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "measured.md"]


def names_in_documents():
    """Paths in the documents that are not in the tree, and names that are not in the code."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name for name in listed.stdout.split("\n") if (ROOT / name).is_file()}
    known = files | {str(parent) for name in files for parent in pathlib.PurePath(name).parents}
    crates, words = texts(files), set()
    for name in files:
        if name.endswith((".rs", ".sh", ".py", ".toml")) or name == "Makefile":
            words.update(re.findall(r"\b[A-Z][A-Z0-9_]*_[A-Z0-9_]+\b", (ROOT / name).read_text()))
    for document in documents():
        text = document.read_text()
        here = document.parent.relative_to(ROOT)
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            if not (document.parent / link).exists():
                yield f"{document.relative_to(ROOT)}: link {link}"
        for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:rs|sh|py|toml|conf|md|txt))`", text):
            ends = any(file == name or file.endswith("/" + name) for file in files)
            crate_file = re.match(r"^(\w+)/(.*)$", name)
            short = crate_file and f"crates/{crate_file.group(1)}/src/{crate_file.group(2)}" in known
            if not (ends or short or str(here / name) in known):
                yield f"{document.relative_to(ROOT)}: `{name}`"
        for name in re.findall(r"`(\w+(?:::\w+)+)(?:\(\))?`", text):
            if not is_defined(name.split("::"), crates):
                yield f"{document.relative_to(ROOT)}: `{name}`"
        for name in re.findall(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`", text):
            if name not in words:
                yield f"{document.relative_to(ROOT)}: `{name}`"


def anchors(text):
    """The names by which links lead to a document's headings."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def site():
    """Pages that the site's contents (docs/SUMMARY.md) do not name, or name twice, and links that lead nowhere in it."""
    named = re.findall(r"\]\(([^)]+)\)", (ROOT / "docs/SUMMARY.md").read_text())
    pages = [str(path.relative_to(ROOT / "docs")) for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "SUMMARY.md"]
    yield from (f"docs/{page}" for page in pages if named.count(page) != 1)
    yield from (f"docs/SUMMARY.md: {page}" for page in named if page not in pages)
    yield from (f"docs: link {name}, which is no page of the site" for name in linked() if name.endswith(".md"))
    for page in pages:
        path = ROOT / "docs" / page
        for link, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", path.read_text()):
            target = (path.parent / link).resolve() if link else path
            if target.suffix == ".md" and target.is_file() and anchor not in anchors(target.read_text()):
                yield f"docs/{page}: {link}#{anchor}"


def linked():
    """Files and folders beside docs/ that its pages link to: the site has copies of them."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text()):
            target = (path.parent / link).resolve()
            if target.exists() and (ROOT / "docs") not in target.parents:
                yield str(target.relative_to(ROOT.resolve()))


def texts(files):
    """The Rust files of each crate: its name -> path -> text."""
    crates = {}
    for name in files:
        found = re.match(r"^crates/(\w+)/src/(.*)\.rs$", name)
        if found:
            crates.setdefault(found.group(1), {})[found.group(2)] = (ROOT / name).read_text()
    return crates


def is_defined(words, crates):
    """Whether a path such as `Type::method`, `crate::module::Type` or `module::CONSTANT` leads to something."""
    *owners, last = words
    scope = crates.get(owners[0])
    inside = owners[1:] if scope else owners
    scope = list(scope.items()) if scope else [item for crate in crates.values() for item in crate.items()]
    for owner in inside:
        if owner[0].isupper():
            scope = [item for item in scope if re.search(rf"\b(?:struct|enum|trait|type|impl\b[^{{;]*)\s+{owner}\b", item[1])]
        else:
            scope = [item for item in scope if owner in item[0].split("/")]
    item = rf"\b(?:fn|struct|enum|trait|type|const|static|mod|union) {last}\b|^\s*(?:pub(?:\([^)]*\))? )?{last}(?:[:,(]| \{{| = \d)"
    return any(last in name.split("/") or re.search(item, text, re.M) for name, text in scope)


def main(words):
    crates = sorted(path for path in (ROOT / "crates").iterdir() if (path / "Cargo.toml").exists())
    if words[:1] == ["--circle"]:
        print("\n".join(largest_circle(arrows(ROOT / "crates" / words[1]))))
        return 0
    if words[:1] == ["--linked"]:
        print("\n".join(sorted(set(linked()))))
        return 0
    circles = {crate.name: len(largest_circle(arrows(crate))) for crate in crates}
    found = {
        "functions of more than 60 lines": [line for crate in crates for line in long_functions(crate)],
        "comment lines that are too wide": [line for crate in crates for line in wide_comments(crate)],
        "unused dependencies": [line for crate in crates for line in unused_dependencies(crate)],
        "names in documents that do not exist": list(names_in_documents()),
        "pages that are not once in docs/SUMMARY.md, and links that lead nowhere in the site": list(site()),
    }
    limits = {"functions of more than 60 lines": LONG_FUNCTIONS, "comment lines that are too wide": WIDE_COMMENTS}
    if words[:1] == ["--show"]:
        print("largest circles:", ", ".join(f"{name} {size}" for name, size in circles.items() if size > 1))
        for what, lines in found.items():
            print(f"{what}: {len(lines)}", *lines, sep="\n    ")
        return 0
    bad = [
        f"The largest circle of files in {name}: {size}, at most {CIRCLES.get(name, CIRCLE)} (tests/house.py --circle {name})"
        for name, size in circles.items()
        if size > CIRCLES.get(name, CIRCLE)
    ]
    bad += [
        f"{what}: {len(lines)}, at most {limits.get(what, 0)} (tests/house.py --show)\n    " + "\n    ".join(lines[:SHOWN])
        for what, lines in found.items()
        if len(lines) > limits.get(what, 0)
    ]
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


sys.exit(main(sys.argv[1:]))
