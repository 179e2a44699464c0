#!/usr/bin/env python3
"""Runs a program beside a cluster of three primaries and three replicas, and ends as it ends.

    nodes.py SERVER PROGRAM [WORD ...]

SERVER: a built Evenkeel, or a redis-server, whose cluster says what is right. The program gets EVENKEEL_CLUSTER_PORTS. It may
kill a node by the process_id of INFO: a node that ended starts again, with its data, as soon as another one leads its shard.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "cluster"))
from cluster import Cluster, NODES, Refused, free_base, has_space, stop_now  # noqa: E402


class RedisCluster(Cluster):
    """The same of Redis, which has a port for nodes beside each one for clients."""

    def start_node(self, place):
        folder = os.path.join(self.folder, str(place))
        os.makedirs(folder, exist_ok=True)
        words = [self.binary, "--port", str(self.ports[place]), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes",
                 "--save", "", "--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
        self.nodes[place] = self.run(words, str(place))


def base_for(is_redis):
    while True:
        base = free_base(NODES)
        if not is_redis or all(has_space(port + 10000) for port in range(base, base + NODES)):
            return base


def mend(cluster, stopped):
    while not stopped.wait(0.1):
        try:
            for place, node in list(cluster.nodes.items()):
                if node.poll() is not None and cluster.is_replaced(place):
                    cluster.start_node(place)
        except (OSError, Refused):
            pass


def main():
    binary, *program = sys.argv[1:]
    is_redis = "redis" in os.path.basename(binary)
    signal.signal(signal.SIGTERM, stop_now)
    with tempfile.TemporaryDirectory(prefix="evenkeel-cluster-", ignore_cleanup_errors=True) as folder:
        cluster = (RedisCluster if is_redis else Cluster)(os.path.abspath(binary), base_for(is_redis), folder, False)
        stopped = threading.Event()
        mender = threading.Thread(target=mend, args=(cluster, stopped))
        child = None
        try:
            cluster.bring_up()
            mender.start()
            child = subprocess.Popen(program, env={**os.environ, "EVENKEEL_CLUSTER_PORTS": " ".join(map(str, cluster.ports))})
            status = child.wait()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if child and child.poll() is None:
                child.kill()
                child.wait()
            stopped.set()
            if mender.ident:
                mender.join()
            if not child or child.returncode:
                for place in range(NODES):
                    print(f"--- the last that node {cluster.ports[place]} said", flush=True)
                    if os.path.exists(cluster.log(str(place))):
                        with open(cluster.log(str(place)), errors="replace") as log:
                            print("".join(log.readlines()[-25:]), flush=True)
            cluster.stop()
        return status


if __name__ == "__main__":
    sys.exit(main())
