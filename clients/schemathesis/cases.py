"""HTTP as its own description says: schemathesis reads /openapi.json, tries what is described, and what is not.

The same requests each time, so many of them, and nothing that depends on how fast anybody is. Needs
EVENKEEL_HTTP_PORT besides; without it nothing is tried.
"""

import os
import pathlib
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HOST, PORT = os.environ["EVENKEEL_HOST"], int(os.environ["EVENKEEL_PORT"])
HTTP_PORT = os.environ.get("EVENKEEL_HTTP_PORT")
URL = f"http://{HOST}:{HTTP_PORT}"
OPTIONS = [
    "--no-color",
    "--generation-deterministic",
    "--suppress-health-check=all",
    "--request-timeout=120",
    "--phases=examples,coverage,fuzzing",
    "--max-examples=25",
    "--warnings=off",
]
# Name, what a row becomes, the type of its ids, their column.
SOURCES = [
    ("numbers", "json", "integer", "id"),
    ("fields", "hash", "integer", "id"),
    ("texts", "json", "text", "name"),
    ("uuids", "json", "uuid", "uuid"),
    ("any", "hash", "auto", "id"),
]


def call(*words):
    with socket.create_connection((HOST, PORT), 60) as connection:
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        connection.sendall(f"*{len(parts)}\r\n{''.join(parts)}".encode())
        return connection.recv(4096)


def make_table(file):
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE, uuid TEXT UNIQUE, price REAL, at INTEGER)")
        uuid = "00000000-0000-0000-0000-{:012x}".format
        rows = [(n, f"thing {n}", uuid(n + 500), n / 8, 1_700_000_000 + n) for n in range(-500, 500)]
        database.executemany("INSERT INTO things VALUES (?, ?, ?, ?, ?)", rows)


def add_sources(file):
    for name, form, ids, column in SOURCES:
        words = f"EVENKEEL SOURCE ADD {name} {name}:{{id}} sqlite:{file} table things id {column} id-type {ids} path /{name} as {form}"
        reply = call(*words.split(), "columns", "id,name,price", "modified", "at", "timeout", "120s")
        assert reply == b"+OK\r\n", f"{name}: {reply}"


def wait_until_ready():
    for _ in range(600):
        try:
            return urllib.request.urlopen(f"{URL}/readyz").read()
        except urllib.error.HTTPError as error:
            why = error.read()
        time.sleep(0.1)
    raise AssertionError(f"not ready: {why}")


def try_all(folder):
    tool = pathlib.Path(sys.executable).parent / "st"
    settings = f"--config-file={pathlib.Path(__file__).parent}/schemathesis.toml"
    words = [tool, settings, "run", f"{URL}/openapi.json", *OPTIONS]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        findings = done.stdout[max(done.stdout.find("FAILURES"), 0) :]
        raise AssertionError("\n".join(line[:400] for line in findings.splitlines()) + done.stderr[-1000:])
    summary = done.stdout[done.stdout.rindex("SUMMARY") :]
    print("\n".join(line for line in summary.splitlines() if "generated" in line or "Tested" in line))


def main():
    if HTTP_PORT is None:
        print("ok nothing (EVENKEEL_HTTP_PORT is not set)")
        return True
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/shop.db"
        try:
            make_table(file)
            add_sources(file)
            wait_until_ready()
            try_all(folder)
        except AssertionError as error:
            print(f"not ok what is described: {error}")
            return False
        finally:
            for name, *_ in SOURCES:
                call("EVENKEEL", "SOURCE", "REMOVE", name)
        print("ok what is described")
        return True


sys.exit(0 if main() else 1)
