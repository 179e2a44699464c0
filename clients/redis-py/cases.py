"""What applications do with redis-py, in RESP2 and in RESP3."""

import os
import sys
import threading
import time
import traceback

import redis

HOST = os.environ.get("EVENKEEL_HOST", "127.0.0.1")
PORT = int(os.environ.get("EVENKEEL_PORT", "6379"))
CASES = []


def case(function):
    CASES.append(function)
    return function


def connect(protocol, **options):
    return redis.Redis(HOST, PORT, protocol=protocol, decode_responses=True, **options)


def raises(kind, text, function, *args):
    try:
        function(*args)
    except kind as error:
        assert text in str(error), f"{error} does not say {text!r}"
        return
    raise AssertionError(f"no {kind.__name__}")


@case
def strings(r, _):
    assert r.set("s", "v", ex=100) and r.get("s") == "v" and r.ttl("s") > 90
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
    listener = r.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("news")
    listener.psubscribe("n*")
    while listener.get_message(timeout=0.2) is not None:
        pass
    assert r.publish("news", "hello") == 2
    heard = []
    deadline = time.monotonic() + 5
    while len(heard) < 2 and time.monotonic() < deadline:
        message = listener.get_message(timeout=0.5)
        heard += [message["type"]] if message else []
    assert sorted(heard) == ["message", "pmessage"], heard
    listener.close()


@case
def blocking_pops(r, protocol):
    popped = []
    waiter = threading.Thread(target=lambda: popped.append(connect(protocol).blpop(["q1", "q2"], timeout=5)))
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
    with r.lock("lock", timeout=10):
        assert not r.lock("lock", timeout=10).acquire(blocking=False)
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
        for function in CASES:
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
