#!/usr/bin/env python3
"""Plays the story of docs/whodunit.md on a server of its own, and prints what that server tells.

    make whodunit
    python3 examples/whodunit/whodunit.py target/release/evenkeel

Takes ten seconds to a minute, a free port, and a folder for the server's log that is removed at the end. Needs nothing but
Python, and gzip for the neighbour. Figures differ from run to run, and so do those of the document.
"""

import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

SCRIPT = """
local out = {}
for i = 2, #KEYS do
    local left = redis.call('SDIFF', KEYS[i], KEYS[1])
    for j = 1, #left do left[j] = tonumber(left[j]) end
    out[#out + 1] = left
end
return cjson.encode(out)
"""


class Client:
    """Just enough of RESP3."""

    def __init__(self, port, name=None):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.file = self.socket.makefile("rb")
        self.call("HELLO", 3)
        if name:
            self.call("CLIENT", "SETNAME", name)

    def call(self, *words):
        parts = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        return self.read()

    def read(self):
        line = self.file.readline().decode()
        kind, rest = line[0], line[1:].strip()
        if kind == "_":
            return None
        if kind == ":":
            return int(rest)
        if kind in "$=":
            return self.file.read(int(rest) + 2)[:-2].decode(errors="replace")
        if kind in "*~":
            return [self.read() for _ in range(int(rest))]
        if kind == "%":
            return {self.read(): self.read() for _ in range(int(rest))}
        if kind == "-":
            raise RuntimeError(rest)
        return rest


def lines(value):
    """Names and values in columns."""
    if value is None:
        return ["(nobody)"]
    if isinstance(value, list):
        return [line for one in value for line in lines(one)] or ["(none)"]
    if not isinstance(value, dict):
        text = re.sub(r"\s+", " ", str(value)).strip()
        return [text if len(text) < 60 else text[:57] + "…"]
    if len(value) <= 3 and all(isinstance(one, (int, str)) for one in value.values()):
        return ["   ".join(f"{name} {one}" for name, one in value.items())]
    value = {name: one for name, one in value.items() if one not in ("", [])}
    width = max(map(len, value), default=0) + 2
    found = []
    for name, one in value.items():
        first, *rest = lines(one)
        found += [name.ljust(width) + first] + [" " * width + line for line in rest]
    return found


def show(title, value):
    print(f"    > {title}")
    written = lines(value) if not isinstance(value, str) else [part for line in value.splitlines() for part in textwrap.wrap(line, 116)]
    print("".join(f"    {line}\n" for line in written))


def say(text):
    print(f"## {text}\n")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(binary, folder, port):
    """The server, once it answers. One event loop, so that everybody has the same."""
    log = open(f"{folder}/log", "wb")
    server = subprocess.Popen(
        [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--event-loops", "1",
         "--enable-debug-command", "local", "--watch-neighbours", "always", "--slowlog-log-slower-than", "1000"],
        stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    for _ in range(300):
        try:
            return server, Client(port, "operator")
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.1)
    server.kill()
    sys.exit(f"{binary} does not answer:\n" + open(f"{folder}/log").read())


def stalls_in(folder):
    """What the log says of stalls, without its date."""
    return re.findall(r"event loop \d+ stalled for.*", open(f"{folder}/log").read())


class Shop:
    """A front end that asks for one key every few milliseconds."""

    def __init__(self, port):
        self.client = Client(port, "shop-frontend")
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()

    def ask(self):
        while not self.over.wait(0.005):
            self.client.call("GET", "greeting")

    def close(self):
        self.over.set()
        self.thread.join()


def crowd():
    """Three programs that have nothing to do with the server, and want its processors."""
    if not shutil.which("gzip"):
        return []
    quiet = {"stdin": open("/dev/zero", "rb"), "stdout": subprocess.DEVNULL}
    return [subprocess.Popen(["gzip", "-9"], **quiet) for _ in range(3)]


def filter_lists(operator, port):
    """Ten lists of 2,500 ids, a blacklist of 100,000, and one script for all of them, thirty times."""
    ids = random.sample(range(1 << 32), 125_000)
    lists = {"X": ids[:100_000], **{f"Y{n}": ids[100_000 + 2500 * n:][:2500] for n in range(10)}}
    for key, members in lists.items():
        for at in range(0, len(members), 10_000):
            operator.call("SADD", key, *members[at:at + 10_000])
    service = Client(port, "filter-service")
    number = service.call("CLIENT", "ID")
    for _ in range(30):
        service.call("EVAL", SCRIPT, len(lists), *lists)
    return number


def suspect_and_victim(operator, port):
    say("The suspect")
    number = filter_lists(operator, port)
    why = operator.call("EVENKEEL", "WHY", number)
    del why["slow-requests"][1:], why["waits"]
    show(f"EVENKEEL WHY {number}", why)
    entries = [entry for entry in operator.call("SLOWLOG", "WHY", 128) if entry[5] == "filter-service"]
    show("SLOWLOG WHY 1", entries[0][6])

    say("The victim")
    waits = operator.call("EVENKEEL", "WAITS", 128)
    victims = [wait for wait in waits["latest"] if wait["name"] == "shop-frontend"]
    of_service = [wait for wait in victims if wait["behind"] and wait["behind"]["name"] == "filter-service"]
    victims = sorted(of_service or victims, key=lambda wait: wait["us"])
    show("EVENKEEL WAITS", {"causes": waits["causes"], "latest": victims[-1:]})


def neighbour(operator, folder):
    say("The neighbour")
    for _ in range(100):
        stalls = [stall for stall in operator.call("EVENKEEL", "STALLS", 100) if stall["behind"]["taken-by"]]
        if stalls:
            break
        time.sleep(0.1)
    for stall in stalls[:1]:
        del stall["in"][3:]
    show("EVENKEEL STALLS 1", stalls[:1])
    show("the log", "\n".join([line for line in stalls_in(folder) if "taken by" in line][-1:]) or "(nothing)")


def real_stall(operator, port, folder):
    say("A real stall")
    operator.call("DEBUG", "POINT", "loop", "DELAY", 60000)
    batch = Client(port, "night-batch")
    for _ in range(20):
        # The log has at most a line a second, which may be somebody else's.
        time.sleep(1)
        batch.call("DEBUG", "STALL")
        time.sleep(0.2)
        if logged := [line for line in stalls_in(folder) if ", DEBUG," in line]:
            break
    operator.call("DEBUG", "POINT", "loop", "OFF")
    for _ in range(100):
        culprits = operator.call("EVENKEEL", "WAITS", 100)["culprits"]
        culprits = [one for one in culprits if one["behind"] and one["behind"]["name"] == "night-batch"]
        if culprits:
            break
        time.sleep(0.1)
    show("EVENKEEL WAITS", {"culprits": culprits[:1]})
    show("the log", "\n".join(logged[-1:]) or "(nothing)")


def belief(operator):
    say("Can it be believed?")
    info = operator.call("INFO", "evenkeel")
    show("INFO evenkeel", "\n".join(line for line in info.splitlines() if line.startswith("loop_stall")))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder, port = tempfile.mkdtemp(prefix="whodunit-"), free_port()
    server, operator = start(sys.argv[1], folder, port)
    others = []
    try:
        operator.call("SET", "greeting", "hello")
        shop = Shop(port)
        try:
            others = crowd()
            suspect_and_victim(operator, port)
            neighbour(operator, folder)
            for one in others:
                one.kill()
            real_stall(operator, port, folder)
            belief(operator)
        finally:
            shop.close()
    finally:
        for one in others:
            one.kill()
            one.wait()
        server.terminate()
        server.wait()
        shutil.rmtree(folder)


main()
