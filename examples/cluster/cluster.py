#!/usr/bin/env python3
"""Three primaries and three replicas on this machine, as one cluster.

    make cluster                    on ports 7000 to 7005; PORT=7100: from there on
    ETCD=1 make cluster             with a real etcd (Debian: etcd-server) in place of a folder
    python3 examples/cluster/cluster.py target/release/evenkeel [--port N] [--dir FOLDER] [--etcd] [--once]

The nodes meet in FOLDER/file/coordinator, or in an etcd that is started beside them. Their data are in FOLDER/file/PLACE
(FOLDER/etcd/PLACE), and are there again at the next start. Ctrl-C or SIGTERM stops all of them. A node that was killed
is started again some seconds later. --once: starts, checks, stops, and once more with the data of the first time; ends
with 1 if something is wrong. --port 0: free ports.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

PRIMARIES = 3
NODES = 6
SLOTS = 16384
# Until a node that was killed is started again: longer than a fail-over takes.
AGAIN_S = 15
LIMIT_S = 300
KEYS = 300


class Refused(Exception):
    """An error reply."""


class Client:
    """Just enough of RESP2."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def call(self, *words):
        parts = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        return self.read()

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == "-1" else self.file.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        if kind == b"-":
            raise Refused(rest)
        return rest


def call(port, *words):
    with Client(port) as client:
        return client.call(*words)


def call_at(port, *words):
    """A call, at the node to which MOVED sends it."""
    while True:
        try:
            return call(port, *words)
        except Refused as error:
            if not str(error).startswith("MOVED "):
                raise
            port = int(str(error).rsplit(":", 1)[1])


class Stopped(Exception):
    """Ctrl-C, or SIGTERM."""


def stop_now(*_):
    raise Stopped


def has_space(port):
    """Whether a port can be listened at."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def free_base(count):
    """The first of some ports in a row that are free, below those that systems give to connections."""
    while True:
        base = random.randrange(10000, 32000)
        if all(has_space(port) for port in range(base, base + count)):
            return base


def until(what, is_so):
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            if is_so():
                return
        except (OSError, Refused):
            pass
        if time.monotonic() > end:
            raise SystemExit(f"it never came: {what}")
        time.sleep(0.05)


class Cluster:
    def __init__(self, binary, base, folder, with_etcd):
        self.binary, self.base = binary, base
        self.ports = [base + place for place in range(NODES)]
        self.folder = os.path.join(folder, "etcd" if with_etcd else "file")
        # Beside the nodes' ports: one for etcd's clients, one for its members.
        self.etcd_port = base + NODES if with_etcd else None
        self.etcd, self.nodes, self.died = None, {}, {}

    def start(self):
        wanted = self.ports + ([self.etcd_port, self.etcd_port + 1] if self.etcd_port else [])
        taken = [port for port in wanted if not has_space(port)]
        if taken:
            raise SystemExit(f"port {taken[0]} is taken: stop what listens there, or choose others by PORT=")
        os.makedirs(os.path.join(self.folder, "coordinator"), exist_ok=True)
        if self.etcd_port:
            self.start_etcd()
        for place in range(NODES):
            self.start_node(place)
        for place in range(NODES):
            until(f"an answer of port {self.ports[place]}", lambda: self.answers(place))

    def start_etcd(self):
        program = shutil.which("etcd")
        if not program:
            raise SystemExit("there is no etcd here: install it (Debian: etcd-server), or leave ETCD out")
        clients, members = (f"http://127.0.0.1:{self.etcd_port + more}" for more in (0, 1))
        words = [program, "--name", "one", "--data-dir", os.path.join(self.folder, "coordinator", "etcd"),
                 "--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", members,
                 "--initial-advertise-peer-urls", members, "--initial-cluster", f"one={members}"]
        self.etcd = self.run(words, "etcd")

        def answers():
            self.die_if_ended(self.etcd, "etcd")
            return socket.create_connection(("127.0.0.1", self.etcd_port), 1).close() is None

        until("an answer of etcd", answers)

    def start_node(self, place):
        folder = os.path.join(self.folder, str(place))
        os.makedirs(folder, exist_ok=True)
        met = f"etcd://127.0.0.1:{self.etcd_port}" if self.etcd_port else f"file:{os.path.join(self.folder, 'coordinator')}"
        words = [self.binary, "--port", str(self.ports[place]), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes",
                 "--appendfsync", "everysec", "--save", "", "--cluster-enabled", "yes", "--cluster-coordinator", met]
        self.nodes[place] = self.run(words, str(place))

    def run(self, words, name):
        # In a group of its own, so that Ctrl-C reaches this program only, which stops them in order.
        with open(self.log(name), "ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def log(self, name):
        return os.path.join(self.folder, f"log-{name}")

    def die_if_ended(self, process, name):
        if process.poll() is None:
            return
        with open(self.log(name), errors="replace") as log:
            raise SystemExit(f"{process.args[0]} has ended:\n" + "".join(log.readlines()[-15:]))

    def answers(self, place):
        self.die_if_ended(self.nodes[place], str(place))
        return call(self.ports[place], "PING") == "PONG" and self.knows(place)

    def knows(self, place):
        return "cluster_known_nodes:" in call(self.ports[place], "CLUSTER", "INFO")

    def is_formed(self, port):
        info = call(port, "CLUSTER", "INFO")
        return f"cluster_known_nodes:{NODES}\r" in info and f"cluster_slots_assigned:{SLOTS}\r" in info

    def form(self):
        """Makes one cluster of new nodes. What was done before is left as it is."""
        for place in range(PRIMARIES):
            first, end = SLOTS * place // PRIMARIES, SLOTS * (place + 1) // PRIMARIES
            try:
                call(self.ports[place], "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            except Refused as error:
                if "already busy" not in str(error):
                    raise
        for port in self.ports[1:]:
            call(port, "CLUSTER", "MEET", "127.0.0.1", self.ports[0])
        for place in range(PRIMARIES, NODES):
            primary = call(self.ports[place - PRIMARIES], "CLUSTER", "MYID")
            until("the primary is known", lambda: primary in call(self.ports[place], "CLUSTER", "NODES"))
            call(self.ports[place], "CLUSTER", "REPLICATE", primary)

    def bring_up(self):
        """Starts all, and waits until all is well. True: the cluster is new."""
        self.start()
        # Nodes that know each other take a moment to read the map.
        known = os.path.join(self.folder, "formed")
        is_new = not os.path.exists(known)
        if is_new:
            self.form()
        until("all nodes know each other", lambda: all(self.is_formed(port) for port in self.ports))
        until("cluster_state:ok", lambda: all("cluster_state:ok" in call(port, "CLUSTER", "INFO") for port in self.ports))
        listed = lambda port: sum(len(entry) - 2 for entry in call(port, "CLUSTER", "SLOTS"))
        until("the replicas are in sync", lambda: all(listed(port) == NODES for port in self.ports))
        open(known, "w").close()
        return is_new

    def show(self):
        """A line for each node."""
        for line in sorted(call(self.alive(), "CLUSTER", "NODES").splitlines(), key=lambda line: line.split()[1]):
            _, address, flags, primary, _, _, _, _, *slots = line.split()
            port = int(address.split("@")[0].rsplit(":", 1)[1])
            role = "primary" if "master" in flags else f"replica of {self.port_of(primary)}"
            pid = self.nodes[port - self.base].pid if port in self.ports else "?"
            print(f"    {port}  {role:16} {' '.join(slots):12} pid {pid}{'  (down)' if 'fail' in flags else ''}")
        sys.stdout.flush()

    def lines(self):
        """Of CLUSTER NODES: id, port, flags, and the slots."""
        for line in call(self.alive(), "CLUSTER", "NODES").splitlines():
            node, address, flags, _, _, _, _, _, *slots = line.split()
            yield node, int(address.split("@")[0].rsplit(":", 1)[1]), flags.split(","), slots

    def is_down(self, place):
        return any(port == self.ports[place] and "fail" in flags for _, port, flags, _ in self.lines())

    def is_replaced(self, place):
        """Whether nobody waits for a node that ended."""
        return not any(port == self.ports[place] and slots for _, port, _, slots in self.lines())

    def port_of(self, node):
        return next((port for known, port, _, _ in self.lines() if known == node), "?")

    def alive(self):
        return next(self.ports[place] for place, node in self.nodes.items() if node.poll() is None)

    def replica(self):
        return next(port for _, port, flags, _ in self.lines() if "slave" in flags)

    def watch(self):
        """Until it is stopped: says when a node ends, and starts it again."""
        while True:
            if self.etcd:
                self.die_if_ended(self.etcd, "etcd")
            for place, node in list(self.nodes.items()):
                if node.poll() is None:
                    continue
                if place not in self.died:
                    self.died[place] = time.monotonic()
                    print(f"\n{self.ports[place]} ended (status {node.returncode}); it starts again in {AGAIN_S} s")
                    sys.stdout.flush()
                elif time.monotonic() - self.died[place] > AGAIN_S:
                    del self.died[place]
                    self.start_node(place)
                    until(f"an answer of port {self.ports[place]}", lambda: self.answers(place))
                    until("it is in its place", lambda: not self.is_down(place))
                    print(f"\n{self.ports[place]} is back:")
                    self.show()
            time.sleep(0.2)

    def stop(self):
        """Replicas first, so that no primary has somebody to hand over to; the coordinator at the end."""
        try:
            primaries = [port for _, port, flags, _ in self.lines() if "master" in flags]
        except (OSError, Refused, StopIteration):
            primaries = []
        is_primary = lambda place: self.ports[place] in primaries
        for leads in (False, True):
            end(node for place, node in self.nodes.items() if is_primary(place) == leads)
        if self.etcd:
            end([self.etcd])

    def check(self, is_new):
        """Keys of all nodes are written, or are those of the first time; each node is asked."""
        if is_new:
            for n in range(KEYS):
                call_at(self.ports[n % NODES], "SET", f"key:{n}", n)
        wrong = [n for n in range(KEYS) if call_at(self.ports[n % NODES], "GET", f"key:{n}") != str(n)]
        counts = [call(port, "DBSIZE") for port in self.ports]
        print(f"{KEYS - len(wrong)} of {KEYS} keys are right; keys of each node: {counts}", flush=True)
        return not wrong and 0 not in counts


def end(processes):
    processes = [process for process in processes if process.poll() is None]
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            print(f"{process.args[0]} (pid {process.pid}) did not end in a minute: it is killed", flush=True)
            process.kill()
            process.wait()


def tell(cluster):
    base = cluster.base
    print("\nThe cluster is up:\n")
    cluster.show()
    replica = cluster.replica()
    print(f"""
    redis-cli -c -p {base} SET hello world              a client that goes where its key is
    redis-cli -c -p {base + 1} GET hello
    redis-cli -p {base} CLUSTER NODES                   who has what; also CLUSTER SLOTS, SHARDS, INFO
    redis-cli --cluster check 127.0.0.1:{base}
    redis-cli -p {replica} CLUSTER FAILOVER                that replica leads, and no write is lost
    kill -9 PID                                     of a primary: its replica leads some seconds later;
                                                    {AGAIN_S} s later the killed one is started again, and follows

Data and logs: {cluster.folder}. Ctrl-C stops all nodes.""", flush=True)


def once(make):
    for is_first in (True, False):
        cluster = make()
        try:
            is_new = cluster.bring_up()
            cluster.show()
            if is_new != is_first or not cluster.check(is_new):
                print("This is wrong: see above.")
                return 1
        finally:
            cluster.stop()
    print("Nothing was lost.")
    return 0


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("binary")
    words.add_argument("--port", type=int, default=7000)
    words.add_argument("--dir", default="evenkeel-cluster")
    words.add_argument("--etcd", action="store_true")
    words.add_argument("--once", action="store_true")
    args = words.parse_args()
    base = args.port or free_base(NODES + 2)
    signal.signal(signal.SIGTERM, stop_now)
    signal.signal(signal.SIGINT, stop_now)
    make = lambda: Cluster(os.path.abspath(args.binary), base, os.path.abspath(args.dir), args.etcd)
    if args.once:
        return once(make)
    cluster = make()
    try:
        print(f"Six nodes start on ports {base} to {base + NODES - 1} …", flush=True)
        cluster.bring_up()
        tell(cluster)
        cluster.watch()
    except Stopped:
        print("\nAll nodes stop …", flush=True)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
