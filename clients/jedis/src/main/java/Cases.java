import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.Tuple;

/** What applications do with Jedis, in RESP2 and in RESP3. */
public class Cases {
    interface Case {
        void run(Jedis redis) throws Exception;
    }

    static final String HOST = System.getenv().getOrDefault("EVENKEEL_HOST", "127.0.0.1");
    static final int PORT = Integer.parseInt(System.getenv().getOrDefault("EVENKEEL_PORT", "6379"));
    static final Map<String, Case> CASES = new LinkedHashMap<>();
    static RedisProtocol protocol;

    static Jedis open() {
        return new Jedis(new HostAndPort(HOST, PORT), DefaultJedisClientConfig.builder().protocol(protocol).build());
    }

    static void same(Object got, Object expected) {
        if (!Objects.equals(got, expected)) throw new AssertionError("got " + got + ", want " + expected);
    }

    static void refused(String text, Runnable action) {
        try {
            action.run();
        } catch (JedisDataException e) {
            if (e.getMessage().contains(text)) return;
            throw new AssertionError(e.getMessage() + " does not say " + text);
        }
        throw new AssertionError("was not refused with " + text);
    }

    static {
        CASES.put("strings", redis -> {
            same(redis.set("s", "v", SetParams.setParams().ex(100).nx()), "OK");
            same(redis.set("s", "v", SetParams.setParams().nx()), null);
            same(redis.get("s"), "v");
            same(redis.ttl("s") > 90, true);
            same(redis.incrBy("n", 41), 41L);
            same(redis.incrByFloat("n", 0.5), 41.5);
            same(redis.mget("s", "nosuch").get(1), null);
            same(redis.getDel("s"), "v");
        });
        CASES.put("hashes and lists", redis -> {
            redis.hset("h", Map.of("a", "1", "b", "2"));
            same(redis.hgetAll("h"), Map.of("a", "1", "b", "2"));
            same(redis.hincrBy("h", "a", 9), 10L);
            redis.rpush("l", "a", "b", "c");
            same(redis.lrange("l", 0, -1), List.of("a", "b", "c"));
            same(redis.lpop("l", 2), List.of("a", "b"));
        });
        CASES.put("sets and sorted sets", redis -> {
            redis.sadd("a", "1", "2", "3");
            redis.sadd("b", "3", "4");
            same(new HashSet<>(redis.sdiff("a", "b")), Set.of("1", "2"));
            same(redis.sismember("a", "1"), true);
            redis.zadd("z", Map.of("x", 1.5, "y", 2.0));
            same(redis.zrangeWithScores("z", 0, -1), List.of(new Tuple("x", 1.5), new Tuple("y", 2.0)));
            same(redis.zscore("z", "nosuch"), null);
            same(redis.zincrby("z", 10, "x"), 11.5);
        });
        CASES.put("pipelines", redis -> {
            var pipeline = redis.pipelined();
            for (int i = 0; i < 2000; i++) pipeline.set("p:" + i, "" + i);
            Response<String> last = pipeline.get("p:1999");
            pipeline.sync();
            same(last.get(), "1999");
        });
        CASES.put("MULTI and WATCH", redis -> {
            var transaction = redis.multi();
            transaction.set("m", "1");
            transaction.incr("m");
            transaction.lpush("m", "x");
            List<Object> replies = transaction.exec();
            same(replies.get(1), 2L);
            same(replies.get(2) instanceof JedisDataException, true);
            redis.watch("m");
            try (Jedis other = open()) {
                other.set("m", "10");
            }
            transaction = redis.multi();
            transaction.incr("m");
            same(transaction.exec(), null);
            same(redis.get("m"), "10");
        });
        CASES.put("Lua with EVALSHA", redis -> {
            String sha = redis.scriptLoad("return {redis.call('INCRBY', KEYS[1], ARGV[1]), ARGV[2]}");
            same(redis.evalsha(sha, List.of("lua"), List.of("5", "x")), List.of(5L, "x"));
            redis.scriptFlush();
            refused("NOSCRIPT", () -> redis.evalsha(sha, List.of("lua"), List.of("5", "x")));
            same(redis.eval("return ARGV[1]", 0, "x"), "x");
            refused("boom", () -> redis.eval("return redis.error_reply('ERR boom')"));
        });
        CASES.put("pub/sub", redis -> {
            var heard = new CopyOnWriteArrayList<String>();
            var ready = new CompletableFuture<Void>();
            var listener = new JedisPubSub() {
                @Override public void onSubscribe(String channel, int count) {
                    if (count == 2) ready.complete(null);
                }
                @Override public void onMessage(String channel, String text) {
                    heard.add(channel + "=" + text);
                    if (heard.size() == 2) unsubscribe();
                }
            };
            var listening = CompletableFuture.runAsync(() -> {
                try (Jedis own = open()) {
                    own.subscribe(listener, "news", "other");
                }
            });
            ready.get(5, TimeUnit.SECONDS);
            same(redis.publish("news", "hello"), 1L);
            same(redis.publish("other", "world"), 1L);
            listening.get(5, TimeUnit.SECONDS);
            same(heard, List.of("news=hello", "other=world"));
        });
        CASES.put("blocking pop", redis -> {
            var popped = CompletableFuture.supplyAsync(() -> {
                try (Jedis own = open()) {
                    return own.blpop(5, "nosuch", "queue");
                }
            });
            Thread.sleep(50);
            redis.rpush("queue", "job");
            same(popped.get(5, TimeUnit.SECONDS), List.of("queue", "job"));
        });
        CASES.put("SCAN", redis -> {
            var pipeline = redis.pipelined();
            for (int i = 0; i < 1500; i++) pipeline.set("scan:" + i, "x");
            pipeline.sync();
            var found = new HashSet<String>();
            String cursor = ScanParams.SCAN_POINTER_START;
            do {
                var part = redis.scan(cursor, new ScanParams().match("scan:*").count(100));
                found.addAll(part.getResult());
                cursor = part.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            same(found.size(), 1500);
        });
        CASES.put("a pooled client, which reconnects", redis -> {
            var config = DefaultJedisClientConfig.builder().protocol(protocol).clientName("victim").build();
            try (var pooled = RedisClient.builder().hostAndPort(HOST, PORT).clientConfig(config).build()) {
                pooled.set("pooled", "1");
                for (String line : redis.clientList().split("\n")) {
                    if (line.contains(" name=victim ")) redis.clientKill(line.replaceAll(".* addr=(\\S+) .*", "$1"));
                }
                String value = null;
                for (int i = 0; i < 20 && value == null; i++) {
                    try {
                        value = pooled.get("pooled");
                    } catch (redis.clients.jedis.exceptions.JedisConnectionException e) {
                        Thread.sleep(20);
                    }
                }
                same(value, "1");
            }
        });
        CASES.put("errors", redis -> {
            redis.set("e", "text");
            refused("ERR value is not an integer or out of range", () -> redis.incr("e"));
            refused("WRONGTYPE", () -> redis.lpush("e", "x"));
        });
    }

    public static void main(String[] args) {
        int failed = 0;
        for (RedisProtocol version : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
            protocol = version;
            for (Map.Entry<String, Case> entry : CASES.entrySet()) {
                String name = entry.getKey() + " (" + version + ")";
                try (Jedis redis = open()) {
                    redis.flushAll();
                    entry.getValue().run(redis);
                    System.out.println("ok " + name);
                } catch (Throwable e) {
                    failed++;
                    System.out.println("not ok " + name + ": " + e);
                }
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }
}
