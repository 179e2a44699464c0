#!/usr/bin/env python3
"""Makes a container image without a container engine, with the standard library alone.

    image.py ROOT VERSION ARCHITECTURE LEVEL OUT.tar

ROOT is the image's file system; its files become root's, except `data`, which is the server's. OUT.tar is an OCI image layout, and
has the `manifest.json` of `docker save` as well: `docker load`, `podman load` and `skopeo copy oci-archive:` read it. Equal input
gives equal bytes, as all times are SOURCE_DATE_EPOCH's.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile
import time

USER = 999
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])


def member(name, mode, owner=0):
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime, entry.uid, entry.gid = mode, EPOCH, owner, owner
    return entry


def add(archive, name, data, mode=0o644, owner=0):
    entry = member(name, mode, owner)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def add_folder(archive, name, mode=0o755, owner=0):
    entry = member(name, mode, owner)
    entry.type = tarfile.DIRTYPE
    archive.addfile(entry)


def layer_of(root):
    """The tar of a file system."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            owner = USER if name == "data" else 0
            if path.is_symlink():
                entry = member(name, 0o777)
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                archive.addfile(entry)
            elif path.is_dir():
                add_folder(archive, name, path.stat().st_mode & 0o7777, owner)
            else:
                add(archive, name, path.read_bytes(), path.stat().st_mode & 0o7777, owner)
    return out.getvalue()


def main(root, version, architecture, level, out):
    layer = layer_of(pathlib.Path(root))
    packed = gzip.compress(layer, compresslevel=int(level), mtime=0)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
    labels = {
        "org.opencontainers.image.title": "evenkeel",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.description": "A Redis-compatible in-memory server in which no client waits for another client's work",
    }
    second = 1_000_000_000
    config = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "ExposedPorts": {"6379/tcp": {}},
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/evenkeel", "/etc/evenkeel/evenkeel.conf"],
            "Volumes": {"/data": {}},
            "WorkingDir": "/data",
            "Labels": labels,
            "StopSignal": "SIGTERM",
            # Docker's; OCI has no health checks.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/evenkeel", "ping", "--timeout", "2"],
                "Interval": 10 * second,
                "Timeout": 3 * second,
                "StartPeriod": 60 * second,
                "Retries": 3,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [named(layer)]},
        "history": [{"created": created, "created_by": "deploy/dist/image.py"}],
    }
    config = json.dumps(config, sort_keys=True).encode()
    oci = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": described(f"{oci}.config.v1+json", config),
        "layers": [described(f"{oci}.layer.v1.tar+gzip", packed)],
        "annotations": labels,
    }
    manifest = json.dumps(manifest, sort_keys=True).encode()
    tag = f"evenkeel:{version}"
    here = described(f"{oci}.manifest.v1+json", manifest)
    here["platform"] = {"architecture": architecture, "os": "linux"}
    here["annotations"] = {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": version}
    index = {"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": [here]}
    docker = [{"Config": blob(config), "RepoTags": [tag], "Layers": [blob(packed)]}]
    with tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        add(archive, "index.json", json.dumps(index, sort_keys=True).encode())
        add(archive, "manifest.json", json.dumps(docker, sort_keys=True).encode())
        add_folder(archive, "blobs")
        add_folder(archive, "blobs/sha256")
        for data in sorted([config, manifest, packed], key=blob):
            add(archive, blob(data), data)
    print(pathlib.Path(out).name)


def named(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def blob(data):
    return "blobs/" + named(data).replace(":", "/")


def described(kind, data):
    return {"mediaType": kind, "digest": named(data), "size": len(data)}


if __name__ == "__main__":
    main(*sys.argv[1:])
