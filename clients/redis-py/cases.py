"""What applications do with redis-py, in RESP2 and in RESP3."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback

import redis
from redis.cache import CacheConfig

HOST = os.environ.get("EVENKEEL_HOST", "127.0.0.1")
PORT = int(os.environ.get("EVENKEEL_PORT", "6379"))
TLS_PORT = int(os.environ.get("EVENKEEL_TLS_PORT") or 0)
TLS_DIR = os.environ.get("EVENKEEL_TLS_DIR", "")
CASES = []

# Takes some ten milliseconds.
BUSY = "for i = 1, 5000000 do end"


def case(function):
    CASES.append(function)
    return function


def evenkeel_case(function):
    """A case of commands that Redis does not have."""
    function.evenkeel_only = True
    return case(function)


def resp3_case(function):
    """A case of what needs RESP3, and a server of more than Redis 7.0."""
    function.resp3_only = True
    return evenkeel_case(function)


def tls_case(function):
    """A case over TLS, where clients/run.sh has the server serve it."""
    return case(function) if TLS_PORT else function


def connect(protocol, **options):
    return redis.Redis(HOST, PORT, protocol=protocol, decode_responses=True, socket_timeout=60, **options)


def raises(kind, text, function, *args):
    try:
        function(*args)
    except kind as error:
        assert text in str(error), f"{error} does not say {text!r}"
        return
    raise AssertionError(f"no {kind.__name__}")


def table(reply):
    """A map as RESP3 has it, of what RESP2 sends as names and values one after the other."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2]))


def soon(condition):
    """Waits until a condition holds that another connection brings about."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


@case
def strings(r, _):
    assert r.set("s", "v", ex=1000) and r.get("s") == "v" and r.ttl("s") > 900
    assert r.set("s", "w", nx=True) is None
    assert r.set("s", "w", get=True) == "v"
    assert r.incr("n", 5) == 5 and r.decr("n") == 4
    assert r.incrbyfloat("f", 1.25) == 1.25
    assert r.mget("s", "nosuch") == ["w", None]
    assert r.setrange("s", 3, "x") == 4 and r.getrange("s", 0, -1) == "w\0\0x"
    assert r.getdel("s") == "w\0\0x" and r.exists("s") == 0
    assert r.setbit("b", 7, 1) == 0 and r.bitcount("b") == 1 and r.get("b") == "\x01"
    assert r.lcs("a", "b") == ""


@case
def hashes(r, _):
    assert r.hset("h", mapping={"a": 1, "b": "two"}) == 2
    assert r.hgetall("h") == {"a": "1", "b": "two"}
    assert r.hmget("h", "a", "nosuch") == ["1", None]
    assert r.hincrbyfloat("h", "a", 0.5) == 1.5
    assert sorted(r.hkeys("h")) == ["a", "b"] and r.hlen("h") == 2
    assert r.hrandfield("h") in ("a", "b")


@case
def lists(r, _):
    assert r.rpush("l", *range(10)) == 10
    assert r.lrange("l", -3, -1) == ["7", "8", "9"]
    assert r.lpos("l", "5") == 5 and r.linsert("l", "before", "5", "x") == 11
    assert r.lrem("l", 0, "x") == 1 and r.ltrim("l", 0, 4) is True
    assert r.lmpop(2, "nosuch", "l", direction="LEFT", count=2) == ["l", ["0", "1"]]
    assert r.sort("l", desc=True) == ["4", "3", "2"]


@case
def sets(r, _):
    r.sadd("a", 1, 2, 3)
    r.sadd("b", 3, 4)
    assert set(r.smembers("a")) == {"1", "2", "3"}
    assert set(r.sdiff("a", "b")) == {"1", "2"} and set(r.sunion("a", "b")) == {"1", "2", "3", "4"}
    assert r.sintercard(2, ["a", "b"]) == 1
    assert r.smismember("a", [1, 9]) == [1, 0]
    assert r.spop("b") in ("3", "4")


@case
def sorted_sets(r, _):
    r.zadd("z", {"a": 1, "b": 2.5, "c": float("inf")})
    assert [tuple(pair) for pair in r.zrange("z", 0, -1, withscores=True)] == [("a", 1), ("b", 2.5), ("c", float("inf"))]
    assert r.zrangebyscore("z", "(1", 3) == ["b"]
    assert r.zscore("z", "b") == 2.5 and r.zscore("z", "nosuch") is None
    assert r.zrank("z", "b") == 1 and r.zcount("z", "-inf", "+inf") == 3
    assert r.zadd("z", {"a": 5}, gt=True, ch=True) == 1
    assert r.zincrby("z", -1, "a") == 4
    assert len(r.zunion(["z"], withscores=True)) == 3
    assert [tuple(pair) for pair in r.zpopmin("z", 1)] == [("b", 2.5)]


@case
def pipelines(r, _):
    with r.pipeline(transaction=False) as pipe:
        for number in range(3000):
            pipe.set(f"p:{number}", number)
        pipe.get("p:2999").lpush("p:1", "x")
        replies = pipe.execute(raise_on_error=False)
    assert replies[:3000] == [True] * 3000 and replies[3000] == "2999"
    assert isinstance(replies[3001], redis.ResponseError)


@case
def transactions(r, protocol):
    with r.pipeline() as pipe:
        assert pipe.set("m", 1).incr("m").get("m").execute() == [True, 2, "2"]
    other = connect(protocol)
    with r.pipeline() as pipe:
        pipe.watch("m")
        other.set("m", 10)
        pipe.multi()
        pipe.incr("m")
        raises(redis.WatchError, "", pipe.execute)

    def double(pipe):
        value = int(pipe.get("m"))
        pipe.multi()
        pipe.set("m", value * 2)

    assert r.transaction(double, "m") == [True] and r.get("m") == "20"
    with r.pipeline() as pipe:
        pipe.set("m", 1).execute_command("NOSUCH")
        raises(redis.ResponseError, "unknown command", pipe.execute)
    assert r.get("m") == "20"


@case
def scripts(r, _):
    script = r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert script(keys=["lua"], args=[3]) == 3
    r.script_flush()
    assert script(keys=["lua"], args=[4]) == 7
    assert r.eval("return {1, 'two', {3}}", 0) == [1, "two", [3]]
    raises(redis.ResponseError, "boom", r.eval, "return redis.error_reply('ERR boom')", 0)
    assert r.script_exists(script.sha) == [True]


@case
def publish_and_subscribe(r, _):
    listener = r.pubsub()
    listener.subscribe("news")
    listener.psubscribe("n*")
    assert [listener.get_message(timeout=60)["type"] for _ in range(2)] == ["subscribe", "psubscribe"]
    assert r.publish("news", "hello") == 2
    heard = [listener.get_message(timeout=60)["type"] for _ in range(2)]
    assert sorted(heard) == ["message", "pmessage"], heard
    listener.close()


@case
def blocking_pops(r, protocol):
    popped = []
    waiter = threading.Thread(target=lambda: popped.append(connect(protocol).blpop(["q1", "q2"], timeout=30)))
    waiter.start()
    time.sleep(0.05)
    r.lpush("q2", "job")
    waiter.join()
    assert tuple(popped[0]) == ("q2", "job")
    assert r.brpop("q1", timeout=0.05) is None
    assert r.blmove("q1", "q2", timeout=0.05) is None
    assert r.bzpopmin("zq", timeout=0.05) is None


@case
def scans(r, _):
    with r.pipeline(transaction=False) as pipe:
        for number in range(2000):
            pipe.set(f"scan:{number}", 1).sadd("t", number).zadd("z", {str(number): number})
        pipe.execute()
    assert len(set(r.scan_iter("scan:*", count=100))) == 2000
    assert len(set(r.sscan_iter("t"))) == 2000
    assert len(dict(r.zscan_iter("z"))) == 2000


@case
def locks(r, _):
    with r.lock("lock", timeout=600):
        assert not r.lock("lock", timeout=600).acquire(blocking=False)
    assert r.lock("lock").acquire(blocking=False)


@case
def reconnects(r, protocol):
    victim = connect(protocol)
    assert r.client_kill_filter(_id=victim.client_id()) == 1
    assert victim.set("again", "yes")


@case
def server(r, _):
    assert r.ping() and r.echo("x") == "x"
    assert r.info()["redis_version"].count(".") == 2
    assert r.config_get("maxmemory")["maxmemory"] == "0"
    assert "name" in r.client_list()[0]
    assert r.command_count() > 150 and r.object("encoding", "nosuch") is None
    assert r.dbsize() == 0 and isinstance(r.time()[0], int)


@case
def functions(r, _):
    code = "#!lua name=lib\nredis.register_function{function_name='twice', flags={'no-writes'}, callback=function(keys, args) return args[1] * 2 end}"
    assert r.function_load(code, replace=True) == "lib"
    raises(redis.ResponseError, "Library 'lib' already exists", r.function_load, code)
    assert r.fcall("twice", 0, 21) == 42 and r.fcall_ro("twice", 0, 4) == 8
    library = table(r.function_list(withcode=True)[0])
    assert library["library_name"] == "lib" and library["library_code"] == code
    dump = redis.Redis(HOST, PORT, socket_timeout=60).function_dump()
    assert r.function_delete("lib")
    raises(redis.ResponseError, "Function not found", r.fcall, "twice", 0, 1)
    assert r.function_restore(dump, "FLUSH") and r.fcall("twice", 0, 5) == 10
    assert r.function_flush() and r.function_list() == []


@case
def sharded_publish_and_subscribe(r, _):
    listener = r.pubsub()
    listener.ssubscribe("orders")
    soon(lambda: (listener.get_sharded_message(timeout=0.1) or {}).get("type") == "ssubscribe")
    assert r.pubsub_shardchannels() == ["orders"]
    assert [tuple(pair) for pair in r.pubsub_shardnumsub("orders")] == [("orders", 1)]
    assert r.spublish("orders", "one") == 1 and r.publish("orders", "not for them") == 0
    message = listener.get_sharded_message(timeout=60)
    assert (message["type"], message["channel"], message["data"]) == ("smessage", "orders", "one")
    listener.sunsubscribe("orders")
    assert listener.get_sharded_message(timeout=60)["type"] == "sunsubscribe"
    listener.close()


@case
def scans_with_options(r, _):
    with r.pipeline(transaction=False) as pipe:
        for number in range(3000):
            pipe.set(f"text:{number}", 1).rpush(f"list:{number}", 1)
        pipe.hset("h", mapping={f"field:{number}": number for number in range(3000)})
        pipe.execute()
    assert set(r.scan_iter(_type="list", count=1_000_000)) == {f"list:{n}" for n in range(3000)}
    assert set(r.scan_iter("text:1?", count=10, _type="string")) == {f"text:{n}" for n in range(10, 20)}
    assert list(r.scan_iter("text:*", _type="hash")) == []
    assert dict(r.hscan_iter("h", match="field:29?", count=1_000_000)) == {f"field:{n}": str(n) for n in range(290, 300)}


@case
def large_and_binary(r, protocol):
    plain = redis.Redis(HOST, PORT, protocol=protocol, socket_timeout=60)
    key, value = bytes(range(256)), os.urandom(1 << 20) * 50
    assert plain.set(key, value) and plain.strlen(key) == len(value)
    assert plain.get(key) == value and plain.getrange(key, -5, -1) == value[-5:]
    assert plain.keys() == [key] and list(plain.scan_iter(b"\x00\x01*")) == [key]
    assert plain.hset(b"\r\n", b"\xff\x00", value[:1000]) == 1
    assert plain.hgetall(b"\r\n") == {b"\xff\x00": value[:1000]}
    with plain.pipeline() as pipe:
        assert pipe.getrange(key, 0, 9).delete(key).get(key).execute() == [value[:10], 1, None]
    plain.close()


@case
def slow_log(r, protocol):
    shop = connect(protocol, client_name="shop", single_connection_client=True)
    assert r.config_set("slowlog-log-slower-than", 0) and r.slowlog_reset()
    began = int(r.time()[0])
    shop.rpush("cart", "an apple", "x" * 200)
    shop.lrange("cart", 0, -1)
    shop.sadd("many", *range(40))
    entries = [entry for entry in r.slowlog_get(20) if entry["client_name"] == b"shop"]
    many, read, write = entries
    assert r.slowlog_len() >= 5
    # A threshold of a minute logs no command, however late it is.
    assert r.config_set("slowlog-log-slower-than", 60_000_000)
    assert write["command"] == b"RPUSH cart an apple " + b"x" * 128 + b"... (72 more bytes)", write
    assert read["command"] == b"LRANGE cart 0 -1"
    assert many["command"].decode() == "SADD many " + " ".join(map(str, range(29))) + " ... (11 more arguments)", many
    assert (read["id"], many["id"]) == (write["id"] + 1, write["id"] + 2)
    for entry in entries:
        assert began <= entry["start_time"] <= began + 60 and 0 <= entry["duration"] < 60_000_000
        assert entry["client_address"].decode() == shop.client_info()["addr"]
    assert len(r.slowlog_get(2)) == 2 and r.slowlog_get(1)[0]["id"] > many["id"]
    assert r.slowlog_reset() and r.slowlog_len() == 0 and r.slowlog_get() == []
    shop.set("quick", 1)
    assert r.slowlog_len() == 0
    shop.close()
    assert r.config_set("slowlog-log-slower-than", 10000)


@case
def latency(r, _):
    assert r.config_set("latency-monitor-threshold", 0) and r.latency_reset() >= 0
    assert r.latency_latest() == [] and r.latency_history("command") == []
    assert r.config_set("latency-monitor-threshold", 2)
    r.eval(BUSY, 0)
    assert r.config_set("latency-monitor-threshold", 0)
    latest = {event: times for event, *times in r.latency_latest()}
    at, last_ms, longest_ms = latest["command"][:3]
    assert longest_ms >= last_ms >= 2 and abs(at - time.time()) < 600, latest
    assert at in [seconds for seconds, _ in r.latency_history("command")]
    assert "command" in r.execute_command("LATENCY DOCTOR")
    assert "command" in r.execute_command("LATENCY GRAPH", "command")
    assert r.latency_reset("command") == 1 and r.latency_history("command") == []
    assert r.config_resetstat()
    r.set("a", 1), r.set("b", 1)
    histogram = table(r.execute_command("LATENCY HISTOGRAM", "set", "nosuch"))
    assert list(histogram) == ["set"] and table(histogram["set"])["calls"] == 2
    buckets = table(table(histogram["set"])["histogram_usec"])
    assert list(buckets.values())[-1] == 2 and all(isinstance(bound, int) for bound in buckets), buckets


@evenkeel_case
def who_made_whom_wait(r, protocol):
    shop = connect(protocol, client_name="shop-frontend", single_connection_client=True)
    shop_id, address = shop.client_id(), shop.client_info()["addr"]
    assert r.config_set("slowlog-log-slower-than", 10000) and r.slowlog_reset()
    r.execute_command("EVENKEEL", "WAITS", "RESET")
    r.client_pause(600_000, all=False)
    paid = threading.Thread(target=lambda: shop.set("paid", "yes"))
    paid.start()
    try:
        soon(lambda: "b" in r.client_list(client_id=[shop_id])[0]["flags"])
        time.sleep(0.02)
    finally:
        r.client_unpause()
        paid.join()

    waits = table(r.execute_command("EVENKEEL", "WAITS"))
    assert list(waits) == ["causes", "culprits", "latest"]
    total = table(table(waits["causes"])["pause"])
    assert total["waits"] >= 1 and total["us"] >= total["longest-us"] >= 10_000
    assert any(table(culprit)["for"] == "pause" for culprit in waits["culprits"])
    wait = next(w for w in map(table, waits["latest"]) if w["client"] == shop_id and w["for"] == "pause")
    assert list(wait) == ["id", "time-ms", "client", "addr", "name", "command", "for", "us", "behind"]
    assert (wait["addr"], wait["name"], wait["command"]) == (address, "shop-frontend", "set")
    assert wait["us"] >= 10_000 and wait["behind"] is None and abs(wait["time-ms"] / 1000 - time.time()) < 600

    why = table(r.execute_command("EVENKEEL", "WHY", shop_id))
    assert (why["client"], why["addr"], why["name"]) == (shop_id, address, "shop-frontend")
    assert (why["last-command"], type(why["last-command-us"])) == ("set", int)
    request = next(q for q in map(table, why["slow-requests"]) if q["command"] == "set")
    assert list(request) == ["time-ms", "command", "phases-us", "lost-attempts", "behind"]
    phases = table(request["phases-us"])
    assert phases["waited-for-pause"] >= 10_000 and "ran-on-loop" in phases
    assert any(table(w)["id"] == wait["id"] for w in why["waits"])

    entry = next(e for e in r.execute_command("SLOWLOG", "WHY", "10") if e[5] == "shop-frontend")
    assert len(entry) == 10 and entry[3:6] == [["SET", "paid", "yes"], address, "shop-frontend"], entry
    assert "for the end of CLIENT PAUSE" in entry[6] and entry[7:] == ["", "", ""], entry

    phases = table(r.execute_command("EVENKEEL", "PHASES"))
    assert list(table(phases["ran"])) == ["count", "p50-us", "p99-us", "p99.9-us", "max-us"]
    assert table(phases["ran"])["count"] > 0
    for stall in map(table, r.execute_command("EVENKEEL", "STALLS", "3")):
        assert list(stall) == ["time-ms", "loop", "us", "commands", "for", "behind", "in"], stall
    r.execute_command("EVENKEEL", "WAITS", "RESET", "1")
    left = table(r.execute_command("EVENKEEL", "WAITS"))
    assert "pause" not in table(left["causes"]), left
    raises(redis.ResponseError, "Invalid client ID", r.execute_command, "EVENKEEL", "WHY", "x")
    raises(redis.ResponseError, "No such client ID", r.execute_command, "EVENKEEL", "WHY", 1 << 40)
    shop.close()


@case
def clients(r, protocol):
    other = connect(protocol, client_name="other", single_connection_client=True)
    other.select(5)
    other_id = other.client_id()
    info = other.client_info()
    assert (info["name"], info["db"], info["cmd"], info["resp"]) == ("other", 5, "client|info", str(protocol)), info
    listed = r.client_list(client_id=[other_id])
    assert len(listed) == 1 and listed[0]["addr"] == info["addr"] and listed[0]["id"] == str(other_id)
    assert {int(c["id"]) for c in r.client_list()} >= {other_id, r.client_id()}
    assert r.client_list(_type="replica") == []
    assert other.client_setname("renamed") and r.client_list(client_id=[other_id])[0]["name"] == "renamed"
    raises(redis.ResponseError, "cannot contain spaces", other.client_setname, "a b")
    assert r.client_no_evict("ON") == r.client_no_evict("OFF") == "OK"
    assert r.client_getredir() == -1 and table(r.client_trackinginfo())["redirect"] == -1
    waiting = threading.Thread(target=lambda: replies.append(other.blpop("nothing", 30)))
    replies = []
    waiting.start()
    soon(lambda: "b" in r.client_list(client_id=[other_id])[0]["flags"])
    assert r.client_unblock(other_id) == 1
    waiting.join()
    assert replies == [None] and r.client_unblock(other_id) == 0
    assert r.client_kill_filter(laddr="1.2.3.4:5") == 0
    raises(redis.ResponseError, "No such client", r.client_kill, "1.2.3.4:5")
    assert r.client_kill(other.client_info()["addr"])
    assert r.client_list(client_id=[other_id]) == []
    assert other.get("nosuch") is None and other.client_id() != other_id
    assert other.client_getname() == "other" and other.client_info()["name"] == "other"
    other.close()


@evenkeel_case
def clients_of_newer_servers(r, protocol):
    other = connect(protocol, client_name="other", single_connection_client=True)
    assert other.client_setinfo("LIB-NAME", "shop-library") and other.client_setinfo("LIB-VER", "1.2")
    assert (other.client_info()["lib-name"], other.client_info()["lib-ver"]) == ("shop-library", "1.2")
    assert other.client_no_touch("ON") == "OK"
    assert other.client_tracking_on() and other.client_tracking_off()
    other.close()


@case
def introspection(r, _):
    r.set("n", 12), r.set("s", "short"), r.set("long", "x" * 100), r.hset("h", "f", "x" * 100)
    r.sadd("ints", 1, 2), r.zadd("z", {"a": 1})
    encodings = {key: r.object("encoding", key) for key in ("n", "s", "long", "h", "ints", "z")}
    assert encodings == {"n": "int", "s": "embstr", "long": "raw", "h": "hashtable", "ints": "intset", "z": "listpack"}
    assert r.object("refcount", "s") == 1 and r.object("idletime", "s") < 60
    raises(redis.ResponseError, "An LFU maxmemory policy is not selected", r.object, "freq", "s")
    assert r.config_set("maxmemory-policy", "allkeys-lfu") and r.object("freq", "s") >= 0
    assert r.config_set("maxmemory-policy", "noeviction")
    assert 100 < r.memory_usage("long") < 1000 and r.memory_usage("nosuch") is None
    assert r.memory_stats()["keys.count"] == 6 and r.memory_purge()

    assert r.command_getkeys("MSET", "a", 1, "b", 2) == ["a", "b"]
    raises(redis.ResponseError, "Invalid command", r.command_getkeys, "NOSUCH", "a")
    assert r.command_list(pattern="zrange*") and "get" in r.command_list()
    commands = r.command()
    assert len(commands) == r.command_count() and commands["get"]["arity"] == 2
    assert commands["mset"]["step_count"] == 2 and commands["mset"]["last_key_pos"] == -1
    docs = table(r.execute_command("COMMAND DOCS", "zadd"))
    assert table(docs["zadd"])["group"] == "sorted-set" and table(docs["zadd"])["since"] == "1.2.0"

    assert set(r.config_get("slowlog-log-slower-than", "slowlog-max-len")) == {"slowlog-log-slower-than", "slowlog-max-len"}
    assert "maxmemory" in r.config_get("maxm*") and r.config_get("nosuch") == {}
    raises(redis.ResponseError, "nosuch", r.config_set, "nosuch", "1")
    info = r.info()
    assert isinstance(info["uptime_in_seconds"], int) and info["db0"]["keys"] == 6 and info["role"] == "master"
    assert info["tcp_port"] == PORT and info["connected_clients"] >= 1 and info["used_memory"] > 100_000
    assert set(r.info("clients")) < set(info) and r.info("commandstats")["cmdstat_set"]["calls"] >= 3


def gets(r):
    """The number of GETs that have reached the server."""
    return r.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"]


def caching():
    return connect(3, cache_config=CacheConfig(), single_connection_client=True)


@resp3_case
def a_cached_value_needs_no_request(r, _):
    r.set("k", "v")
    with caching() as cached:
        assert cached.get("k") == "v"
        before = gets(r)
        assert [cached.get("k") for _ in range(10)] == ["v"] * 10
        assert gets(r) == before and cached.get_cache().size == 1
        assert table(cached.client_trackinginfo())["flags"] == ["on"]
        r.set("unread", 1)
        assert cached.get("k") == "v" and gets(r) == before


@resp3_case
def every_way_to_change_a_key_invalidates(r, _):
    def transaction():
        with r.pipeline() as pipe:
            pipe.set("k", "from exec").get("k").execute()

    changes = {
        "SET": (lambda: r.set("k", "from set"), "from set"),
        "DEL": (lambda: r.delete("k"), None),
        "the passing of PX": (lambda: r.set("k", "short", px=20), None),
        "the passing of PEXPIRE": (lambda: r.pexpire("k", 20), None),
        "FLUSHALL": (r.flushall, None),
        "EVAL": (lambda: r.eval("return redis.call('SET', KEYS[1], 'from eval')", 1, "k"), "from eval"),
        "MULTI": (transaction, "from exec"),
        "RENAME": (lambda: (r.set("l", "from rename"), r.rename("l", "k")), "from rename"),
        "APPEND": (lambda: r.append("k", "er"), "older"),
    }
    with caching() as cached:
        for how, (change, after) in changes.items():
            r.set("k", "old")
            soon(lambda: cached.get("k") == "old")
            change()
            soon(lambda: cached.get("k") == after)
            assert r.get("k") == after, how


@resp3_case
def a_cache_of_many_keys_and_types_follows(r, _):
    with caching() as cached:
        for turn in range(3):
            r.mset({f"k:{n}": turn for n in range(300)})
            r.hset("h", mapping={"turn": turn})
            r.delete("l"), r.rpush("l", turn)
            soon(lambda: [cached.get(f"k:{n}") for n in range(300)] == [str(turn)] * 300)
            soon(lambda: cached.hgetall("h") == {"turn": str(turn)} and cached.lrange("l", 0, -1) == [str(turn)])
            before = gets(r)
            assert [cached.get(f"k:{n}") for n in range(300)] == [str(turn)] * 300
            assert gets(r) == before


@resp3_case
def a_new_connection_begins_with_an_empty_cache(r, _):
    r.set("k", "old")
    with caching() as cached:
        assert cached.get("k") == "old"
        before, own = gets(r), cached.client_id()
        assert r.client_kill_filter(_id=own) == 1
        r.set("k", "new")
        soon(lambda: cached.get("k") == "new")
        assert gets(r) > before and cached.client_id() != own
        r.set("k", "newer")
        soon(lambda: cached.get("k") == "newer")


def secure(protocol, name="alice", authority="ca", **options):
    """A client over TLS that shows the certificate of that name, if any, and believes that authority."""
    shown = {"ssl_certfile": f"{TLS_DIR}/{name}.crt", "ssl_keyfile": f"{TLS_DIR}/{name}.key"} if name else {}
    options = {"decode_responses": True, "socket_timeout": 60, "retry": None, **shown, **options}
    return redis.Redis(HOST, TLS_PORT, protocol=protocol, ssl=True, ssl_ca_certs=f"{TLS_DIR}/{authority}.crt", **options)


@contextlib.contextmanager
def user(r, name, **rights):
    assert r.acl_setuser(name, enabled=True, reset=True, **rights)
    try:
        yield
    finally:
        assert r.acl_deluser(name) == 1


@tls_case
def commands_and_a_pipeline_over_tls(r, protocol):
    with secure(protocol) as tls:
        assert tls.set("k", "över TLS") and tls.get("k") == r.get("k") == "över TLS"
        assert tls.acl_whoami() == "default"
        with tls.pipeline(transaction=False) as pipe:
            for number in range(500):
                pipe.set(f"k:{number}", number).get(f"k:{number}")
            assert pipe.execute() == [reply for number in range(500) for reply in (True, str(number))]
        assert r.dbsize() == 501


@tls_case
def a_value_of_5_mb_over_tls(r, protocol):
    value = b"".join(b"%07d\n" % number for number in range(655_360))
    with secure(protocol, decode_responses=False) as tls:
        assert tls.set("big", value) and r.strlen("big") == len(value)
        assert tls.get("big") == value
        assert tls.getrange("big", 4_000_000, -1) == value[4_000_000:]


@tls_case
def publish_and_subscribe_over_tls(r, protocol):
    with secure(protocol) as tls, tls.pubsub() as listener:
        listener.subscribe("news")
        listener.psubscribe("n*")
        assert [listener.get_message(timeout=30)["type"] for _ in range(2)] == ["subscribe", "psubscribe"]
        for sender in (r, tls):
            assert sender.publish("news", "hello") == 2
            heard = [listener.get_message(timeout=30) for _ in range(2)]
            assert [(m["type"], m["channel"], m["data"]) for m in heard] == [
                ("message", "news", "hello"), ("pmessage", "news", "hello")]


@tls_case
def a_user_with_a_password_over_tls(r, protocol):
    rights = {"keys": ["app:*"], "channels": ["app.*"], "commands": ["+get", "+set", "+publish", "+acl|whoami"]}
    with user(r, "app", passwords=["+s3cret"], **rights):
        with secure(protocol, username="app", password="s3cret") as tls:
            assert tls.acl_whoami() == "app"
            assert tls.set("app:k", "v") and tls.get("app:k") == "v" and tls.publish("app.news", "x") == 0
            raises(redis.exceptions.NoPermissionError, "", tls.set, "other", "v")
            raises(redis.exceptions.NoPermissionError, "", tls.delete, "app:k")
            raises(redis.exceptions.NoPermissionError, "", tls.publish, "other", "x")
            assert r.keys() == ["app:k"]
        with secure(protocol, username="app", password="wrong") as tls:
            raises(redis.exceptions.AuthenticationError, "", tls.acl_whoami)


@tls_case
def the_user_that_a_certificate_names(r, protocol):
    with user(r, "alice", keys=["a:*"], commands=["+get", "+set", "+acl|whoami"]):
        with secure(protocol) as tls:
            assert tls.acl_whoami() == "alice"
            assert tls.set("a:k", "v") and tls.get("a:k") == "v"
            raises(redis.exceptions.NoPermissionError, "", tls.set, "b:k", "v")
        assert r.acl_whoami() == "default"
    with secure(protocol) as tls:
        assert tls.acl_whoami() == "default"


@tls_case
def who_shows_no_good_certificate_over_tls_is_refused(r, protocol):
    for name in (None, "stranger"):
        with secure(protocol, name) as tls:
            raises(redis.exceptions.ConnectionError, "", tls.incr, "k")
    with redis.Redis(HOST, TLS_PORT, protocol=protocol, socket_timeout=60, retry=None) as plain:
        raises(redis.exceptions.ConnectionError, "", plain.incr, "k")
    with secure(protocol, authority="other") as tls:
        raises(redis.exceptions.ConnectionError, "certificate verify failed", tls.incr, "k")
    assert r.exists("k") == 0


@tls_case
def fifty_connections_at_once_over_tls(r, protocol):
    everybody, failures = threading.Barrier(50), []

    def one(number):
        try:
            with secure(protocol, client_name=f"tls-{number}") as tls:
                everybody.wait(60)
                for turn in range(20):
                    assert tls.set(f"k:{number}", turn) and tls.get(f"k:{number}") == str(turn) and tls.incr("all")
                everybody.wait(60)
                assert tls.get("all") == "1000" and tls.client_getname() == f"tls-{number}"
                everybody.wait(60)
        except Exception as error:
            everybody.abort()
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert r.dbsize() == 51


@tls_case
def redis_cli_over_tls(r, _):
    if not shutil.which("redis-cli"):
        return

    def cli(*words, name="alice", authority="ca"):
        shown = ["--cert", f"{TLS_DIR}/{name}.crt", "--key", f"{TLS_DIR}/{name}.key"] if name else []
        command = ["redis-cli", "-h", HOST, "-p", str(TLS_PORT), "--tls", "--cacert", f"{TLS_DIR}/{authority}.crt", *shown, *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        return done.stdout.strip() if done.returncode == 0 else None

    assert cli("PING") == "PONG"
    assert cli("SET", "k", "v") == "OK" and r.get("k") == "v"
    with user(r, "alice", commands=["+acl|whoami"]):
        assert cli("ACL", "WHOAMI") == "alice"
        assert cli("GET", "k").startswith("NOPERM")
    assert cli("INCR", "n", name=None) is None and cli("INCR", "n", name="stranger") is None
    assert cli("INCR", "n", authority="other") is None and r.exists("n") == 0


@case
def errors(r, _):
    r.set("e", "text")
    raises(redis.ResponseError, "value is not an integer or out of range", r.incr, "e")
    raises(redis.ResponseError, "WRONGTYPE", r.lpush, "e", "x")
    raises(redis.ResponseError, "unknown command", r.execute_command, "NOSUCH")
    raises(redis.exceptions.NoScriptError, "", r.evalsha, "f" * 40, 0)
    raises(redis.DataError, "", r.set, "x", [1])
    raises(redis.exceptions.ConnectionError, "", redis.Redis(HOST, 1, retry=None).ping)


def main():
    failed = 0
    for protocol in (2, 3):
        client = connect(protocol)
        evenkeel = "evenkeel" in client.command_list()
        for function in CASES:
            if getattr(function, "evenkeel_only", False) and not evenkeel:
                continue
            if getattr(function, "resp3_only", False) and protocol < 3:
                continue
            name = f"{function.__name__.replace('_', ' ')} (RESP{protocol})"
            try:
                client.flushall()
                function(client, protocol)
                print(f"ok {name}", flush=True)
            except Exception:
                failed += 1
                print(f"not ok {name}: {traceback.format_exc()}", flush=True)
    return 1 if failed else 0


sys.exit(main())
