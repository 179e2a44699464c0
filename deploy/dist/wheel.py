#!/usr/bin/env python3
"""Makes a Python wheel that carries the binary, with the standard library alone.

    wheel.py BINARY VERSION GLIBC MACHINE LEVEL OUT LICENCE...

GLIBC is the version that the binary needs, MACHINE the processor as the kernel names it. The wheel has no Python code: pip puts
the program beside `python`. Equal input gives equal bytes, as all times are SOURCE_DATE_EPOCH's.
"""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile


def main(binary, version, glibc, machine, level, out, *licences):
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_{machine}"
    date = max(time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6], (1980, 1, 1, 0, 0, 0))
    info = f"evenkeel-{version}.dist-info"
    licences = [pathlib.Path(name) for name in licences]
    metadata = [
        "Metadata-Version: 2.4",
        "Name: evenkeel",
        f"Version: {version}",
        "Summary: A Redis-compatible in-memory server in which no client waits for another client's work",
        "License-Expression: MIT OR Apache-2.0",
        *(f"License-File: {path.name}" for path in licences),
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
        "",
        "This wheel carries the server's binary: `evenkeel --help` shows what it takes.",
        "",
    ]
    wheel = ["Wheel-Version: 1.0", "Generator: evenkeel", "Root-Is-Purelib: false", f"Tag: {tag}", ""]
    files = [
        (f"evenkeel-{version}.data/scripts/evenkeel", pathlib.Path(binary).read_bytes(), 0o755),
        *((f"{info}/licenses/{path.name}", path.read_bytes(), 0o644) for path in licences),
        (f"{info}/METADATA", "\n".join(metadata).encode(), 0o644),
        (f"{info}/WHEEL", "\n".join(wheel).encode(), 0o644),
    ]
    record = "".join(f"{name},sha256={hashed(data)},{len(data)}\n" for name, data, _ in files) + f"{info}/RECORD,,\n"
    files.append((f"{info}/RECORD", record.encode(), 0o644))
    path = pathlib.Path(out) / f"evenkeel-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=int(level)) as archive:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, date)
            entry.create_system, entry.external_attr = 3, (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=int(level))
    print(path.name)


def hashed(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
