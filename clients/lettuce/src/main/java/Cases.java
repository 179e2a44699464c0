import io.lettuce.core.*;
import io.lettuce.core.Consumer;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.event.connection.ConnectionDeactivatedEvent;
import io.lettuce.core.models.stream.ClaimedMessages;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.IntStream;
import reactor.core.publisher.Flux;

/** What applications do with Lettuce: one connection for many threads, futures, reactive streams, in RESP2 and in RESP3. */
public class Cases {
    interface Case {
        void run(StatefulRedisConnection<String, String> connection, RedisCommands<String, String> redis) throws Exception;
    }

    interface Call {
        void run() throws Exception;
    }

    static final Map<String, Case> CASES = new LinkedHashMap<>();
    static RedisClient client;
    static RedisURI address;

    static void same(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
    }

    static void holds(boolean so, Object otherwise) {
        if (!so) throw new AssertionError("not so: " + otherwise);
    }

    static void refused(String text, Call call) throws Exception {
        try {
            call.run();
        } catch (RedisException e) {
            holds(e.getMessage().contains(text), e);
            return;
        }
        throw new AssertionError("no error that says " + text);
    }

    static <T> T soon(Future<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    static {
        CASES.put("strings, hashes, lists, sets, sorted sets", (connection, redis) -> {
            same(redis.set("s", "v", SetArgs.Builder.nx().ex(1000)), "OK");
            same(redis.set("s", "w", SetArgs.Builder.nx()), null);
            same(redis.setGet("s", "w", SetArgs.Builder.keepttl()), "v");
            holds(redis.ttl("s") > 900, redis.ttl("s"));
            same(redis.mget("s", "nosuch"), List.of(KeyValue.just("s", "w"), KeyValue.empty("nosuch")));
            same(redis.incrbyfloat("n", 10.5), 10.5);
            same(redis.hset("h", Map.of("a", "1", "b", "2")), 2L);
            same(redis.hgetall("h"), Map.of("a", "1", "b", "2"));
            same(redis.rpush("l", "a", "b", "c"), 3L);
            same(redis.lmove("l", "l2", LMoveArgs.Builder.leftRight()), "a");
            same(redis.lrange("l", 0, -1), List.of("b", "c"));
            same(redis.lmpop(LMPopArgs.Builder.right().count(2), "nosuch", "l"), KeyValue.just("l", List.of("c", "b")));
            redis.sadd("set", "1", "2", "3");
            redis.sadd("other", "3", "4");
            same(redis.sinter("set", "other"), Set.of("3"));
            redis.zadd("z", ScoredValue.just(1.5, "x"), ScoredValue.just(2, "y"));
            same(redis.zrangeWithScores("z", 0, -1), List.of(ScoredValue.just(1.5, "x"), ScoredValue.just(2, "y")));
            same(redis.zrangebyscore("z", Range.from(Range.Boundary.excluding(1.5), Range.Boundary.unbounded())), List.of("y"));
            same(redis.zscore("z", "nosuch"), null);
        });
        CASES.put("many futures on one connection, answered in their order", (connection, redis) -> {
            var async = connection.async();
            var futures = new ArrayList<RedisFuture<Long>>();
            for (int i = 0; i < 10_000; i++) futures.add(async.incr("n"));
            for (int i = 0; i < 10_000; i++) same(soon(futures.get(i)), i + 1L);
        });
        CASES.put("a batch that is flushed at once", (connection, redis) -> {
            connection.setAutoFlushCommands(false);
            var async = connection.async();
            var set = new ArrayList<RedisFuture<String>>();
            for (int i = 0; i < 2000; i++) set.add(async.set("p:" + i, "" + i));
            var last = async.get("p:1999");
            Thread.sleep(50);
            holds(!last.isDone(), "it is held back");
            connection.flushCommands();
            connection.setAutoFlushCommands(true);
            holds(LettuceFutures.awaitAll(Duration.ofSeconds(30), set.toArray(new RedisFuture[0])), "all are set");
            same(soon(last), "1999");
            same(redis.dbsize(), 2000L);
        });
        CASES.put("many threads share a connection", (connection, redis) -> {
            var work = IntStream.range(0, 8).mapToObj(thread -> CompletableFuture.runAsync(() -> {
                for (int i = 0; i < 200; i++) {
                    redis.set("t:" + thread + ":" + i, thread + "/" + i);
                    same(redis.get("t:" + thread + ":" + i), thread + "/" + i);
                    redis.incr("all");
                }
            })).toArray(CompletableFuture[]::new);
            soon(CompletableFuture.allOf(work));
            same(redis.get("all"), "1600");
        });
        CASES.put("reactive", (connection, redis) -> {
            var reactive = connection.reactive();
            var sum = Flux.range(1, 500).flatMap(i -> reactive.set("r:" + i, "" + i).then(reactive.get("r:" + i))).map(Integer::parseInt)
                .reduce(Integer::sum).block(Duration.ofSeconds(30));
            same(sum, 500 * 501 / 2);
            var found = ScanStream.scan(reactive, ScanArgs.Builder.matches("r:*").limit(50)).collectList().block(Duration.ofSeconds(30));
            same(new HashSet<>(found).size(), 500);
        });
        CASES.put("MULTI and WATCH", (connection, redis) -> {
            same(redis.multi(), "OK");
            redis.set("m", "1");
            redis.incr("m");
            var done = redis.exec();
            same(done.wasDiscarded(), false);
            same(done.stream().toList(), List.of("OK", 2L));
            redis.watch("m");
            try (var other = client.connect()) {
                other.sync().set("m", "10");
            }
            redis.multi();
            redis.incr("m");
            same(redis.exec().wasDiscarded(), true);
            same(redis.get("m"), "10");
            redis.multi();
            redis.lpush("m", "x");
            holds(redis.exec().stream().toList().get(0) instanceof RedisCommandExecutionException, "its error");
        });
        CASES.put("scripts and functions", (connection, redis) -> {
            String script = "return {redis.call('INCRBY', KEYS[1], ARGV[1]), ARGV[2], false}";
            redis.scriptFlush();
            refused("NOSCRIPT", () -> redis.evalsha(redis.digest(script), ScriptOutputType.MULTI, new String[] {"k"}, "5", "x"));
            same(redis.eval(script, ScriptOutputType.MULTI, new String[] {"k"}, "5", "x"), Arrays.asList(5L, "x", null));
            same(redis.evalsha(redis.digest(script), ScriptOutputType.MULTI, new String[] {"k"}, "5", "y"), Arrays.asList(10L, "y", null));
            same(redis.<Boolean>eval("return redis.call('EXISTS', KEYS[1])", ScriptOutputType.BOOLEAN, "k"), true);
            refused("MY error", () -> redis.eval("return redis.error_reply('MY error')", ScriptOutputType.STATUS));
            same(redis.functionLoad("#!lua name=lib\nredis.register_function('twice', function(keys, args) return args[1] * 2 end)", true), "lib");
            same(redis.<Long>fcall("twice", ScriptOutputType.INTEGER, new String[0], "21"), 42L);
            redis.functionFlush(FlushMode.SYNC);
        });
        CASES.put("pub/sub: channels, patterns, shards", (connection, redis) -> {
            var heard = new LinkedBlockingQueue<String>();
            try (var listener = client.connectPubSub()) {
                listener.addListener(new RedisPubSubAdapter<>() {
                    public void message(String channel, String message) { heard.add(channel + "|" + message); }

                    public void message(String pattern, String channel, String message) { heard.add(pattern + "|" + channel + "|" + message); }

                    public void smessage(String channel, String message) { heard.add("shard|" + channel + "|" + message); }
                });
                listener.sync().subscribe("news");
                listener.sync().psubscribe("n*");
                listener.sync().ssubscribe("orders");
                same(redis.pubsubChannels(), List.of("news"));
                same(redis.pubsubNumsub("news"), Map.of("news", 1L));
                same(redis.publish("news", "hello"), 2L);
                same(redis.spublish("orders", "one"), 1L);
                var got = new TreeSet<String>();
                for (int i = 0; i < 3; i++) got.add(heard.poll(30, TimeUnit.SECONDS));
                same(got, new TreeSet<>(List.of("n*|news|hello", "news|hello", "shard|orders|one")));
                for (int i = 0; i < 1000; i++) connection.async().publish("news", "" + i);
                var numbers = new ArrayList<String>();
                while (numbers.size() < 1000) {
                    String one = heard.poll(30, TimeUnit.SECONDS);
                    if (one.startsWith("news|")) numbers.add(one.substring(5));
                }
                same(numbers, IntStream.range(0, 1000).mapToObj(i -> "" + i).toList());
                listener.sync().unsubscribe("news");
                listener.sync().punsubscribe("n*");
                same(redis.publish("news", "nobody"), 0L);
            }
        });
        CASES.put("keyspace events", (connection, redis) -> {
            redis.configSet("notify-keyspace-events", "Ex");
            var heard = new LinkedBlockingQueue<String>();
            try (var listener = client.connectPubSub()) {
                listener.addListener(new RedisPubSubAdapter<>() {
                    public void message(String channel, String message) { heard.add(channel + "|" + message); }
                });
                listener.sync().subscribe("__keyevent@0__:expired");
                redis.psetex("short", 20, "x");
                same(heard.poll(30, TimeUnit.SECONDS), "__keyevent@0__:expired|short");
            }
            redis.configSet("notify-keyspace-events", "");
        });
        CASES.put("blocking pops on a connection of their own", (connection, redis) -> {
            try (var waiter = client.connect()) {
                waiter.setTimeout(Duration.ofSeconds(30));
                var popped = waiter.async().blpop(20, "nosuch", "queue");
                Thread.sleep(50);
                redis.rpush("queue", "job");
                same(soon(popped), KeyValue.just("queue", "job"));
                var lowest = waiter.async().bzpopmin(20, "zqueue");
                Thread.sleep(50);
                redis.zadd("zqueue", 1, "m");
                same(soon(lowest), KeyValue.just("zqueue", ScoredValue.just(1, "m")));
                same(waiter.sync().blpop(0.1, "nothing"), null);
            }
        });
        CASES.put("streams: entries, ranges, trimming", (connection, redis) -> {
            for (int i = 1; i <= 10; i++) redis.xadd("s", new XAddArgs().id(i + "-1"), Map.of("n", "" + i));
            same(redis.xlen("s"), 10L);
            same(redis.xrange("s", Range.create("3-1", "5-1")).stream().map(one -> one.getBody().get("n")).toList(), List.of("3", "4", "5"));
            same(redis.xrevrange("s", Range.unbounded(), Limit.from(2)).stream().map(StreamMessage::getId).toList(), List.of("10-1", "9-1"));
            refused("equal or smaller", () -> redis.xadd("s", new XAddArgs().id("1-1"), Map.of("n", "0")));
            same(redis.xdel("s", "5-1", "nosuch".length() + "-9"), 1L);
            same(redis.xtrim("s", 4), 5L);
            var read = redis.xread(XReadArgs.Builder.count(2), XReadArgs.StreamOffset.from("s", "8-1"));
            same(read.stream().map(StreamMessage::getId).toList(), List.of("9-1", "10-1"));
            try (var waiter = client.connect()) {
                var next = waiter.async().xread(XReadArgs.Builder.block(20_000), XReadArgs.StreamOffset.latest("s"));
                while (!redis.info("clients").contains("blocked_clients:1")) Thread.sleep(5);
                String id = redis.xadd("s", Map.of("n", "new"));
                same(soon(next).get(0).getId(), id);
            }
        });
        CASES.put("streams: groups, acknowledgement, claims", (connection, redis) -> {
            redis.xgroupCreate(XReadArgs.StreamOffset.from("s", "0"), "g", XGroupCreateArgs.Builder.mkstream());
            refused("BUSYGROUP", () -> redis.xgroupCreate(XReadArgs.StreamOffset.from("s", "0"), "g"));
            for (int i = 1; i <= 6; i++) redis.xadd("s", new XAddArgs().id(i + "-0"), Map.of("n", "" + i));
            same(redis.xreadgroup(Consumer.from("g", "ann"), XReadArgs.Builder.count(4), XReadArgs.StreamOffset.lastConsumed("s")).size(), 4);
            same(redis.xreadgroup(Consumer.from("g", "bob"), XReadArgs.StreamOffset.lastConsumed("s")).size(), 2);
            same(redis.xack("s", "g", "1-0", "2-0", "9-9"), 2L);
            var pending = redis.xpending("s", "g");
            same(List.of(pending.getCount(), pending.getConsumerMessageCount()), List.of(4L, Map.of("ann", 2L, "bob", 2L)));
            var claimed = redis.xclaim("s", Consumer.from("g", "bob"), 0, "3-0");
            same(claimed.get(0).getBody(), Map.of("n", "3"));
            ClaimedMessages<String, String> rest = redis.xautoclaim("s", XAutoClaimArgs.Builder.xautoclaim(Consumer.from("g", "cid"), Duration.ZERO, "0-0").count(3));
            same(rest.getMessages().stream().map(StreamMessage::getId).toList(), List.of("3-0", "4-0", "5-0"));
            same(rest.getId(), "6-0");
            var each = redis.xpending("s", "g", Range.unbounded(), Limit.from(10));
            same(each.stream().map(one -> one.getId() + one.getConsumer()).toList(), List.of("3-0cid", "4-0cid", "5-0cid", "6-0bob"));
            same(each.get(0).getRedeliveryCount(), 3L);
            same(redis.xgroupDelconsumer("s", Consumer.from("g", "cid")), 3L);
            same(redis.xgroupDestroy("s", "g"), true);
        });
        CASES.put("SCAN, HSCAN, ZSCAN", (connection, redis) -> {
            for (int i = 0; i < 1500; i++) {
                connection.async().set("scan:" + i, "x");
                connection.async().hset("hash", "f" + i, "" + i);
                connection.async().zadd("zset", i, "m" + i);
            }
            var found = new HashSet<String>();
            ScanIterator.scan(redis, ScanArgs.Builder.matches("scan:*").limit(100)).forEachRemaining(found::add);
            same(found.size(), 1500);
            var fields = new HashMap<String, String>();
            ScanIterator.hscan(redis, "hash").forEachRemaining(one -> fields.put(one.getKey(), one.getValue()));
            same(List.of(fields.size(), fields.get("f77")), List.of(1500, "77"));
            var scores = new HashMap<String, Double>();
            ScanIterator.zscan(redis, "zset").forEachRemaining(one -> scores.put(one.getValue(), one.getScore()));
            same(List.of(scores.size(), scores.get("m77")), List.of(1500, 77.0));
            var typed = new HashSet<String>();
            ScanIterator.scan(redis, KeyScanArgs.Builder.type("hash")).forEachRemaining(typed::add);
            same(typed, Set.of("hash"));
        });
        CASES.put("binary keys, and a value of 20 MB", (connection, redis) -> {
            try (var raw = client.connect(ByteArrayCodec.INSTANCE)) {
                byte[] key = new byte[256];
                for (int i = 0; i < key.length; i++) key[i] = (byte) i;
                byte[] value = new byte[20 << 20];
                for (int i = 0; i < value.length; i++) value[i] = (byte) ((i >> 12) * 31);
                same(raw.sync().set(key, value), "OK");
                holds(Arrays.equals(raw.sync().get(key), value), "the value read");
                holds(Arrays.equals(raw.sync().keys("*").get(0), key), "the key listed");
                same(raw.sync().strlen(key), (long) value.length);
            }
        });
        CASES.put("a cut connection is opened again, and what was not sent is sent", (connection, redis) -> {
            try (var victim = client.connect()) {
                victim.sync().select(3);
                victim.sync().set("a", "1");
                var gone = new CompletableFuture<Object>();
                var told = client.getResources().eventBus().get().ofType(ConnectionDeactivatedEvent.class).subscribe(gone::complete);
                same(redis.clientKill(KillArgs.Builder.id(victim.sync().clientId())), 1L);
                soon(gone);
                told.dispose();
                same(victim.sync().get("a"), "1");
                same(victim.sync().incr("a"), 2L);
            }
        });
        CASES.put("errors", (connection, redis) -> {
            redis.set("e", "text");
            refused("WRONGTYPE", () -> redis.lpush("e", "x"));
            refused("ERR value is not an integer or out of range", () -> redis.incr("e"));
            try (var waiter = client.connect()) {
                waiter.setTimeout(Duration.ofMillis(100));
                refused("timed out", () -> waiter.sync().blpop(60, "nothing"));
            }
        });
    }

    public static void main(String[] args) {
        String host = System.getenv().getOrDefault("EVENKEEL_HOST", "127.0.0.1");
        address = RedisURI.create(host, Integer.parseInt(System.getenv().getOrDefault("EVENKEEL_PORT", "6379")));
        address.setTimeout(Duration.ofSeconds(60));
        int failed = 0;
        for (ProtocolVersion version : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
            client = RedisClient.create(address);
            client.setOptions(ClientOptions.builder().protocolVersion(version).build());
            for (Map.Entry<String, Case> entry : CASES.entrySet()) {
                String name = entry.getKey() + " (" + version + ")";
                if (args.length > 0 && !name.contains(args[0])) continue;
                try (var connection = client.connect()) {
                    connection.sync().flushall();
                    entry.getValue().run(connection, connection.sync());
                    System.out.println("ok " + name);
                } catch (Throwable e) {
                    failed++;
                    System.out.println("not ok " + name + ": " + e + " " + (e.getStackTrace().length > 1 ? e.getStackTrace()[1] : ""));
                }
            }
            client.shutdown(Duration.ZERO, Duration.ofSeconds(2));
        }
        System.exit(failed == 0 ? 0 : 1);
    }
}
