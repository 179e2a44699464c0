"""What applications do with redis-py in a cluster, which clients/cluster/nodes.py starts."""

import os
import signal
import sys
import threading
import time
import traceback

import redis
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster

PORTS = [int(port) for port in os.environ["EVENKEEL_CLUSTER_PORTS"].split()]
KEYS = 600
CASES = []
LATER_CASES = []


def case(function):
    CASES.append(function)
    return function


def once(function):
    """A case that changes who leads."""
    LATER_CASES.append(function)
    return function


def connect(protocol=3, **options):
    nodes = [ClusterNode("127.0.0.1", port) for port in PORTS]
    return RedisCluster(startup_nodes=nodes, protocol=protocol, decode_responses=True, socket_timeout=60, **options)


def node(port, **options):
    return redis.Redis("127.0.0.1", port, decode_responses=True, socket_timeout=60, **options)


def soon(condition, limit_s=180):
    """Waits until a condition holds that others bring about."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def empty(client):
    """FLUSHALL has no keys, so a node that ceased to lead a moment ago says READONLY; the client learns of that later."""
    try:
        return set(client.flushall(target_nodes=RedisCluster.PRIMARIES).values()) == {True}
    except redis.exceptions.ReadOnlyError:
        client.nodes_manager.initialize()
        return False


def raises(kind, text, function, *args):
    try:
        function(*args)
    except kind as error:
        assert text in str(error), f"{error} does not say {text!r}"
        return
    raise AssertionError(f"no {kind.__name__}")


def sizes(nodes):
    """Keys of some nodes together."""
    return sum(node(at.port).dbsize() for at in nodes)


@case
def the_map(r, _):
    assert len(r.get_primaries()) == 3 and len(r.get_replicas()) == 3
    assert sorted(n.port for n in r.get_nodes()) == PORTS
    assert r.cluster_info()["cluster_state"] == "ok" and r.cluster_info()["cluster_known_nodes"] == "6"
    lines = r.cluster_nodes()
    assert sorted(int(address.split(":")[1]) for address in lines) == PORTS
    assert sum(int(b) - int(a) + 1 for line in lines.values() for a, b in line["slots"]) == 16384
    assert len({line["master_id"] for line in lines.values()}) == 4 and all(line["connected"] for line in lines.values())
    shards = r.cluster_shards()
    assert sorted(len(shard["nodes"]) for shard in shards) == [2, 2, 2]
    assert sorted(at["role"] for shard in shards for at in shard["nodes"]) == ["master"] * 3 + ["replica"] * 3
    assert r.cluster_keyslot("foo") == 12182 == r.keyslot("foo")
    assert r.cluster_countkeysinslot(12182) == 0
    assert r.cluster_get_keys_in_slot(12182, 3) == []
    own = next(n for n in r.get_primaries())
    assert r.cluster_myid(own) in r.cluster_nodes()[own.name]["node_id"]
    assert len(r.cluster_replicas(r.cluster_myid(own))) == 1


@case
def keys_of_all_slots(r, _):
    for n in range(KEYS):
        assert r.set(f"key:{n}", n) is True
    assert [r.get(f"key:{n}") for n in range(KEYS)] == [str(n) for n in range(KEYS)]
    assert all(node(primary.port).dbsize() > 0 for primary in r.get_primaries())
    assert sizes(r.get_primaries()) == KEYS
    assert r.delete(*(f"key:{n}" for n in range(100))) == 100
    assert r.exists(*(f"key:{n}" for n in range(KEYS))) == KEYS - 100


@case
def pipelines(r, _):
    with r.pipeline() as pipe:
        for n in range(KEYS):
            pipe.set(f"key:{n}", n)
            pipe.incr(f"key:{n}")
        replies = pipe.execute()
    assert replies == [reply for n in range(KEYS) for reply in (True, n + 1)]
    with r.pipeline() as pipe:
        pipe.set("text", "x").incr("text").get("text")
        replies = pipe.execute(raise_on_error=False)
    assert replies[0] is True and isinstance(replies[1], redis.ResponseError) and replies[2] == "x"


@case
def keys_of_one_hash_tag(r, _):
    assert r.mset({"{u}:a": 1, "{u}:b": 2}) is True and r.mget("{u}:a", "{u}:b", "{u}:c") == ["1", "2", None]
    assert r.mset_nonatomic({f"key:{n}": n for n in range(100)})
    assert r.mget_nonatomic(*(f"key:{n}" for n in range(100))) == [str(n) for n in range(100)]
    r.sadd("{u}:s", 1, 2, 3)
    r.sadd("{u}:t", 3, 4)
    assert r.sinterstore("{u}:both", "{u}:s", "{u}:t") == 1 and r.smembers("{u}:both") == {"3"}
    assert r.rename("{u}:a", "{u}:z") is True and r.copy("{u}:z", "{u}:y") is True
    slot = r.keyslot("{u}:a")
    assert r.cluster_countkeysinslot(slot) == 6
    assert sorted(r.cluster_get_keys_in_slot(slot, 10)) == ["{u}:b", "{u}:both", "{u}:s", "{u}:t", "{u}:y", "{u}:z"]


@case
def keys_of_two_slots_are_refused(r, _):
    raises(redis.exceptions.RedisClusterException, "", r.mset, {"a": 1, "b": 2})
    primary = r.get_node_from_key("a")
    raises(redis.exceptions.ClusterCrossSlotError, "Keys in request don't hash to the same slot",
           lambda: r.execute_command("MSET", "a", 1, "b", 2, target_nodes=primary))
    raises(redis.ResponseError, "Keys in request don't hash to the same slot", lambda: node(primary.port).sinter("a", "b"))


@case
def transactions(r, _):
    with r.pipeline(transaction=True) as pipe:
        pipe.set("{t}:a", 1)
        pipe.incr("{t}:a")
        pipe.get("{t}:a")
        assert pipe.execute() == ["OK", 2, "2"]
    with r.pipeline(transaction=True) as pipe:
        pipe.watch("{t}:a")
        value = int(pipe.get("{t}:a"))
        r.set("{t}:a", 10)
        pipe.multi()
        pipe.set("{t}:a", value + 1)
        raises(redis.WatchError, "", pipe.execute)
    assert r.get("{t}:a") == "10"


@case
def scripts(r, _):
    add = r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1]) + redis.call('INCRBY', KEYS[2], ARGV[1])")
    for n in range(20):
        assert add(keys=[f"{{{n}}}:a", f"{{{n}}}:b"], args=[n]) == 2 * n
    assert r.eval("return {KEYS[1], ARGV[1]}", 1, "k", "v") == ["k", "v"]
    raises(redis.ResponseError, "Script attempted to access a non local key in a cluster node",
           lambda: [r.eval("return redis.call('GET', ARGV[1])", 1, "a", f"key:{n}") for n in range(20)])
    sha = r.script_load("return 7")
    assert r.script_exists(sha) == [True] and r.evalsha(sha, 1, "any") == 7
    assert r.script_flush() is True
    raises(redis.exceptions.NoScriptError, "", r.evalsha, sha, 1, "any")


def messages(next_message, count):
    heard, deadline = [], time.monotonic() + 120
    while len(heard) < count:
        assert time.monotonic() < deadline, heard
        message = next_message()
        heard += [message] if message else []
    return heard


@case
def publish_and_subscribe(r, _):
    there = r.get_primaries()[0]
    listener = r.pubsub(node=there)
    listener.subscribe("news")
    listener.psubscribe("n*")
    messages(lambda: listener.get_message(timeout=1), 2)
    assert r.execute_command("PUBLISH", "news", "hello", target_nodes=there) == 2
    heard = messages(lambda: listener.get_message(timeout=1), 2)
    assert [(m["type"], m["channel"], m["data"]) for m in heard] == [("message", "news", "hello"), ("pmessage", "news", "hello")]
    listener.close()


@case
def sharded_publish_and_subscribe(r, _):
    listener = r.pubsub()
    channels = [f"shard:{n}" for n in range(12)]
    for channel in channels:
        listener.ssubscribe(channel)
    acknowledged = messages(lambda: listener.get_sharded_message(timeout=0.2), 12)
    assert {m["type"] for m in acknowledged} == {"ssubscribe"}
    assert len({r.get_node_from_key(channel).port for channel in channels}) == 3
    for channel in channels:
        assert r.spublish(channel, f"to {channel}") == 1
    heard = messages(lambda: listener.get_sharded_message(timeout=0.2), 12)
    assert sorted((m["channel"], m["data"]) for m in heard) == sorted((c, f"to {c}") for c in channels)
    assert {m["type"] for m in heard} == {"smessage"}
    counted = [r.pubsub_shardnumsub(channel, target_nodes=r.get_node_from_key(channel)) for channel in channels]
    assert counted == [[(channel, 1)] for channel in channels], counted
    listener.close()


@case
def blocking_pops(r, protocol):
    heard = []
    waiting = [threading.Thread(target=lambda key=f"queue:{n}": heard.append(connect(protocol).blpop(key, 120))) for n in range(6)]
    for thread in waiting:
        thread.start()
    blocked = lambda: sum(node(port).info("clients")["blocked_clients"] for port in PORTS)
    soon(lambda: blocked() == 6)
    for n in range(6):
        r.rpush(f"queue:{n}", n)
    for thread in waiting:
        thread.join(120)
    found = sorted(tuple(pair) for pair in heard)
    assert found == [(f"queue:{n}", str(n)) for n in range(6)], found
    r.rpush("{q}:a", 1)
    assert r.blmove("{q}:a", "{q}:b", 5) == "1"


@case
def scans(r, _):
    keys = {f"key:{n}" for n in range(KEYS)}
    r.mset_nonatomic({key: 1 for key in keys})
    assert set(r.scan_iter(count=50)) == keys
    assert set(r.scan_iter(match="key:1*")) == {key for key in keys if key.startswith("key:1")}
    assert set(r.keys("*", target_nodes=RedisCluster.PRIMARIES)) == keys
    assert r.randomkey(target_nodes=r.get_primaries()[1]) in keys


@case
def reads_of_replicas(r, protocol):
    for n in range(60):
        r.set(f"key:{n}", n)
    soon(lambda: sizes(r.get_replicas()) == 60)
    reader = connect(protocol, load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN_REPLICAS)
    served = lambda: sum(node(replica.port).info("commandstats").get("cmdstat_get", {}).get("calls", 0) for replica in r.get_replicas())
    before = served()
    assert [reader.get(f"key:{n}") for n in range(60)] == [str(n) for n in range(60)]
    assert served() - before == 60
    assert reader.set("key:0", "new") is True
    replica = r.get_replicas()[0]
    raises(redis.exceptions.MovedError, "", lambda: [node(replica.port).execute_command("GET", f"key:{n}") for n in range(60)])
    reader.close()


@case
def flush_of_all_nodes(r, _):
    r.mset_nonatomic({f"key:{n}": 1 for n in range(KEYS)})
    assert set(r.flushall(target_nodes=RedisCluster.PRIMARIES).values()) == {True}
    assert sizes(r.get_primaries()) == 0
    soon(lambda: sizes(r.get_nodes()) == 0)


class Load(threading.Thread):
    """Counts up in a key, for which it has a client of its own."""

    kills = 0

    def __init__(self, number, with_wait):
        super().__init__(daemon=True)
        self.key, self.with_wait, self.stopped = f"load:{number}", with_wait, False
        # What was answered, what a replica had as well by WAIT, and errors that the library showed.
        self.answered = self.acknowledged = 0
        self.errors = []
        self.client = connect()

    def run(self):
        while not self.stopped:
            kills = Load.kills
            try:
                value = self.client.incr(self.key)
                self.answered += 1
            except redis.RedisError as error:
                self.errors.append(error)
                time.sleep(0.05)
                continue
            if not self.with_wait:
                continue
            try:
                there = self.client.get_node_from_key(self.key)
                # An answer of another primary than the one that wrote says nothing.
                if self.client.execute_command("WAIT", 1, 5000, target_nodes=there) >= 1 and kills == Load.kills:
                    self.acknowledged = value
            except redis.RedisError:
                pass


def begin_load(count, with_wait):
    loads = [Load(number, with_wait) for number in range(count)]
    for load in loads:
        load.start()
    soon(lambda: all(load.answered > 20 for load in loads))
    return loads


def end_load(loads):
    for load in loads:
        load.stopped = True
    for load in loads:
        load.join(180)
        assert not load.is_alive()
        load.client.close()


def slots_of(port):
    connection = redis.connection.Connection(host="127.0.0.1", port=port, socket_timeout=60, protocol=2)
    try:
        connection.connect()
        connection.send_command("CLUSTER", "SLOTS")
        return connection.read_response()
    except redis.RedisError:
        return None
    finally:
        connection.disconnect()


def places():
    """Ports of the primary and the replicas of each shard, by first slot."""
    slots = next(filter(None, map(slots_of, PORTS)))
    return {entry[0]: (entry[2][1], [replica[1] for replica in entry[3:]]) for entry in slots}


@once
def hand_overs_under_load(r, _):
    loads = begin_load(6, with_wait=False)
    for first in (0, 0, 5461):
        soon(lambda: len(places()[first][1]) == 1)
        old, (new,) = places()[first]
        before = [load.answered for load in loads]
        assert node(new).execute_command("CLUSTER", "FAILOVER") in (True, "OK", b"OK")
        soon(lambda: places()[first] == (new, [old]))
        soon(lambda: all(load.answered > count + 20 for load, count in zip(loads, before)))
    end_load(loads)
    assert [load.errors for load in loads] == [[]] * 6
    assert [int(r.get(load.key)) for load in loads] == [load.answered for load in loads]


@once
def a_killed_primary(r, _):
    loads = begin_load(6, with_wait=True)
    soon(lambda: all(load.acknowledged > 20 for load in loads))
    first = 5461
    old, (new,) = places()[first]
    Load.kills += 1
    os.kill(node(old).info("server")["process_id"], signal.SIGKILL)
    soon(lambda: places().get(first, (0,))[0] == new)
    before = [load.answered for load in loads]
    soon(lambda: all(load.answered > count + 20 for load, count in zip(loads, before)))
    # It is back, and WAIT sees it again.
    soon(lambda: places()[first] == (new, [old]))
    before = [load.acknowledged for load in loads]
    soon(lambda: all(load.acknowledged > count + 20 for load, count in zip(loads, before)))
    end_load(loads)
    for load in loads:
        assert int(r.get(load.key)) >= load.acknowledged, load.key
    soon(lambda: node(old).info("replication")["master_link_status"] == "up")


def main():
    failed = 0
    runs = [(function, protocol) for protocol in (2, 3) for function in CASES] + [(function, 3) for function in LATER_CASES]
    clients = {protocol: connect(protocol) for protocol in (2, 3)}
    for function, protocol in runs:
        name = f"{function.__name__.replace('_', ' ')} (RESP{protocol})"
        try:
            soon(lambda: empty(clients[protocol]))
            function(clients[protocol], protocol)
            print(f"ok {name}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {name}: {traceback.format_exc()}", flush=True)
    return 1 if failed else 0


sys.exit(main())
