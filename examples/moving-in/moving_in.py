#!/usr/bin/env python3
"""Plays the move of docs/moving.md: from a real Redis under load to Evenkeel, and back, and prints what the servers say.

    make moving-in
    python3 examples/moving-in/moving_in.py target/release/evenkeel [redis-server]

Takes half a minute, two free ports, and a folder that is removed at the end. Needs Python, and a redis-server of version 6.2 or
later. Ends with 1 if a write was lost, a client met an error that it could not mend by connecting again, or the servers differ.

The clients behave as well-kept libraries do: where a connection ends, or a server says READONLY, they ask for the address again
(here: of a variable; in production: of the DNS or of Sentinel), connect, and repeat what was not answered.
"""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

WRITERS = 4
PACE_S = 0.0005


class Refused(Exception):
    """An error reply."""


class Client:
    """Just enough of RESP2."""

    def __init__(self, port, name=None):
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        if name:
            self.call("CLIENT", "SETNAME", name)

    def call(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        return self.read()

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended")
        kind, rest = line[:1], line[1:-2]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            found = [self.read_any() for _ in range(int(rest))]
            return found
        if kind == b"-":
            raise Refused(rest.decode())
        return rest

    def read_any(self):
        try:
            return self.read()
        except Refused as error:
            return error

    def close(self):
        self.file.close()
        self.socket.close()

    def info(self, *names):
        lines = dict(line.split(":", 1) for line in self.call("INFO", "replication").decode().split("\r\n") if ":" in line)
        return lines if not names else [lines.get(name, "") for name in names]


class Address:
    """What the DNS, or Sentinel, would say."""

    def __init__(self, port):
        self.port = port


class Writer(threading.Thread):
    """Counts in keys of its own, and knows for each write whether it was answered."""

    def __init__(self, number, address):
        super().__init__(daemon=True)
        self.number, self.address = number, address
        self.answered, self.unknown, self.again, self.longest_s = 0, 0, 0, 0.0
        self.errors, self.stopped = [], False

    def run(self):
        client, began = None, None
        while not self.stopped:
            began = began or time.monotonic()
            sent = False
            try:
                client = client or Client(self.address.port, f"writer-{self.number}")
                sent = True
                client.call("INCR", f"count:{self.number}")
                client.call("RPUSH", f"list:{self.number}", self.answered) if self.answered % 50 == 0 else None
                self.answered += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                began = None
                time.sleep(PACE_S)
            except Refused as error:
                if not str(error).startswith(("READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN")):
                    self.errors.append(str(error))
                    return
                # It was not done: it is repeated elsewhere.
                client, self.again = close(client), self.again + 1
                time.sleep(0.002)
            except OSError as error:
                # Whether it was done is not known, if it was sent. As libraries do, it is repeated.
                client, self.again = close(client), self.again + 1
                self.unknown += sent
                if time.monotonic() - began > 20:
                    self.errors.append(repr(error))
                    return
                time.sleep(0.002)


def close(client):
    if client:
        client.close()


def say(text):
    print(f"\n## {text}\n", flush=True)


def show(port, *words):
    """A command, and its reply as a person sees it."""
    print(f"    $ redis-cli -p {port} {' '.join(map(str, words))}")
    reply = Client(port).call(*words)
    lines = reply.decode(errors="replace").splitlines() if isinstance(reply, bytes) else [str(reply)]
    wanted = ("role", "master_host", "master_port", "master_link_status", "connected_slaves", "slave0", "master_repl_offset",
              "master_failover_state", "lost_writes")
    for line in lines:
        if words[0] != "INFO" or line.split(":")[0] in wanted:
            print(f"    {line}")
    print(flush=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(words, port, folder):
    log = open(f"{folder}/log-{port}", "wb")
    server = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
    for _ in range(200):
        try:
            Client(port).call("PING")
            return server
        except (OSError, Refused):
            if server.poll() is not None:
                break
            time.sleep(0.05)
    server.kill()
    sys.exit(f"{words[0]} does not answer:\n" + open(f"{folder}/log-{port}").read())


def until(what, is_so, limit_s=60):
    end = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end:
            sys.exit(f"it never came: {what}")
        time.sleep(0.01)


def contents(port):
    """A sum of each key's value, read by commands, so that it does not depend on how a server keeps it."""
    client, cursor, found = Client(port), b"0", {}
    reads = {b"string": ("GET",), b"list": ("LRANGE", 0, -1), b"set": ("SMEMBERS",), b"hash": ("HGETALL",),
             b"zset": ("ZRANGE", 0, -1, "WITHSCORES"), b"stream": ("XRANGE", "-", "+")}
    while True:
        cursor, keys = client.call("SCAN", cursor, "COUNT", 1000)
        for key in keys:
            kind = client.call("TYPE", key)
            name, *rest = reads[kind]
            value = client.call(name, key, *rest)
            if kind == b"hash":
                value = sorted(zip(value[::2], value[1::2]))
            if kind == b"set":
                value = sorted(value)
            found[key] = hashlib.sha1(repr((kind, value)).encode()).hexdigest()
        if cursor == b"0":
            return found


def compare(one, other):
    """Both servers, key by key, at one offset: writers hold still for it."""
    a, b = contents(one), contents(other)
    differs = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    print(f"    {len(a)} keys on {one}, {len(b)} on {other}, {len(differs)} differ {differs[:3] or ''}", flush=True)
    return not differs


def settle(primary, replica):
    until("equal offsets", lambda: Client(primary).info("master_repl_offset")
          == Client(replica).info("slave_repl_offset") or
          Client(primary).info("master_repl_offset") == Client(replica).info("master_repl_offset"))


def fill(port):
    client = Client(port)
    for n in range(2000):
        client.call("SET", f"string:{n}", "x" * (n % 200))
        client.call("HSET", f"hash:{n % 100}", f"field{n}", n)
        client.call("ZADD", f"zset:{n % 100}", n * 1.5, f"member{n}")
        client.call("SADD", f"set:{n % 100}", n)
        client.call("XADD", "stream", "*", "n", n)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    evenkeel, redis = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "redis-server"
    if not shutil.which(redis):
        sys.exit(f"{redis} is not here: install it (Debian: redis-server), or name one")
    folder, servers = tempfile.mkdtemp(prefix="moving-in-"), []
    try:
        return play(os.path.abspath(evenkeel), redis, folder, servers)
    finally:
        for server in servers:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def play(evenkeel, redis, folder, servers):
    old, new = free_port(), free_port()
    servers.append(start([redis, "--port", str(old), "--bind", "127.0.0.1", "--save", "", "--dir", folder], old, folder))
    fill(old)
    address = Address(old)
    writers = [Writer(number, address) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    time.sleep(1)
    good = True

    say(f"The Redis on {old} serves {WRITERS} writers. Evenkeel on {new} becomes its replica")
    servers.append(start([evenkeel, "--port", str(new), "--bind", "127.0.0.1",
                          "--dir", folder, "--save", "", "--replicaof", f"127.0.0.1 {old}"], new, folder))
    until("the link is up", lambda: Client(new).info("master_link_status") == ["up"])
    show(new, "INFO", "replication")

    say("Both are compared, key by key. Writes wait for the time of the comparison")
    Client(old).call("CLIENT", "PAUSE", 20000, "WRITE")
    settle(old, new)
    good &= compare(old, new)
    Client(old).call("CLIENT", "UNPAUSE")

    say("Evenkeel leads: Redis hands over, and follows")
    hand_over(old, new, address, "FAILOVER", "TO", "127.0.0.1", new)
    time.sleep(2)
    show(new, "INFO", "replication")
    show(old, "INFO", "replication")

    say("Back again: Evenkeel hands over, and follows")
    hand_over(new, old, address, "FAILOVER", "TO", "127.0.0.1", old)
    time.sleep(2)
    show(old, "INFO", "replication")

    say("And for good: Evenkeel leads, Redis follows in case")
    hand_over(old, new, address, "FAILOVER", "TO", "127.0.0.1", new)
    time.sleep(1)
    for writer in writers:
        writer.stopped = True
    for writer in writers:
        writer.join(30)
    settle(new, old)
    good &= compare(new, old)

    say("The account of the writers")
    client = Client(new)
    for writer in writers:
        have = int(client.call("GET", f"count:{writer.number}") or 0)
        lost = max(0, writer.answered - have)
        more = have - writer.answered
        fine = lost == 0 and more <= writer.unknown + 1 and not writer.errors
        good &= fine
        print(f"    writer {writer.number}: {writer.answered} answered, {have} there, {lost} lost, {len(writer.errors)} errors; "
              f"{writer.again} repeated, longest wait {writer.longest_s * 1000:.0f} ms {writer.errors[:1] or ''}")
    lost = client.info("lost_writes")[0]
    print(f"    lost_writes: {lost or 0}")
    good &= lost in ("", "0")
    print("\n" + ("Nothing was lost, and no client met an error." if good else "THIS IS WRONG: see above."))
    return 0 if good else 1


def hand_over(leads, will_lead, address, *words):
    began = time.monotonic()
    print(f"    $ redis-cli -p {leads} {' '.join(map(str, words))}")
    print(f"    {Client(leads).call(*words).decode()}", flush=True)
    until("it leads", lambda: Client(will_lead).info("role") == ["master"])
    address.port = will_lead
    until("the other one follows", lambda: Client(leads).info("role", "master_link_status") == ["slave", "up"])
    print(f"    {will_lead} leads, {leads} follows: {(time.monotonic() - began) * 1000:.0f} ms\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
