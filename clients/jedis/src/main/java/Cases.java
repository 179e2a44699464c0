import java.io.FileInputStream;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.JedisShardedPubSub;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.args.ClientPauseMode;
import redis.clients.jedis.args.ClientType;
import redis.clients.jedis.args.LatencyEvent;
import redis.clients.jedis.args.ListDirection;
import redis.clients.jedis.csc.CacheConfig;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ClientKillParams;
import redis.clients.jedis.params.CommandListFilterByParams;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.Tuple;
import redis.clients.jedis.util.KeyValue;

/** What applications do with Jedis, in RESP2 and in RESP3. */
public class Cases {
    interface Case {
        void run(Jedis redis) throws Exception;
    }

    static final String HOST = System.getenv().getOrDefault("EVENKEEL_HOST", "127.0.0.1");
    static final int PORT = Integer.parseInt(System.getenv().getOrDefault("EVENKEEL_PORT", "6379"));
    /** Where clients/run.sh has the server serve TLS (0: nowhere), and the folder of certificates. */
    static final int TLS_PORT = Integer.parseInt(System.getenv().getOrDefault("EVENKEEL_TLS_PORT", "0"));
    static final String TLS_DIR = System.getenv("EVENKEEL_TLS_DIR");
    static final Map<String, Case> CASES = new LinkedHashMap<>();
    static RedisProtocol protocol;

    static Jedis open() {
        return open(null);
    }

    static Jedis open(String name) {
        var config = DefaultJedisClientConfig.builder().protocol(protocol).clientName(name).socketTimeoutMillis(60_000);
        return new Jedis(new HostAndPort(HOST, PORT), config.build());
    }

    /** TLS that shows the certificate of that name, if any, and believes that authority. */
    static SSLContext context(String shown, String authority) throws Exception {
        var trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        try (var file = new FileInputStream(TLS_DIR + "/" + authority + ".crt")) {
            trusted.setCertificateEntry(authority, CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyManager[] keys = null;
        if (shown != null) {
            char[] password = "secret".toCharArray();
            var own = KeyStore.getInstance("PKCS12");
            try (var file = new FileInputStream(TLS_DIR + "/" + shown + ".p12")) {
                own.load(file, password);
            }
            var manager = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            manager.init(own, password);
            keys = manager.getKeyManagers();
        }
        var context = SSLContext.getInstance("TLS");
        context.init(keys, trust.getTrustManagers(), null);
        return context;
    }

    /** A client over TLS; see {@link #context}. It also checks that the server's certificate is for its address. */
    static Jedis secure(String shown, String authority, String user, String password, String name) throws Exception {
        var checks = new SSLParameters();
        checks.setEndpointIdentificationAlgorithm("HTTPS");
        var config = DefaultJedisClientConfig.builder().protocol(protocol).clientName(name).socketTimeoutMillis(60_000)
            .user(user).password(password)
            .ssl(true).sslSocketFactory(context(shown, authority).getSocketFactory()).sslParameters(checks);
        return new Jedis(new HostAndPort(HOST, TLS_PORT), config.build());
    }

    static Jedis secure() throws Exception {
        return secure("alice", "ca", null, null, null);
    }

    /** A connection that must not come about. */
    static void unconnected(String why, Case attempt) throws Exception {
        try {
            attempt.run(null);
        } catch (JedisConnectionException e) {
            var said = new StringBuilder();
            for (Throwable one = e; one != null; one = one.getCause()) said.append(one).append('\n');
            holds(said.toString().contains(why), why + " in " + said);
            return;
        }
        throw new AssertionError("was connected");
    }

    /** Hears channels over a connection that is only for that, until so many messages have come. */
    static class Listener extends JedisPubSub {
        private final List<String> heard = new CopyOnWriteArrayList<>();
        private final CompletableFuture<Void> ready = new CompletableFuture<>();
        private final CompletableFuture<Void> listening;
        private final int messages;
        private final int channels;

        /** Returns once all channels are heard. */
        Listener(Jedis own, int messages, String... channels) throws Exception {
            this.messages = messages;
            this.channels = channels.length;
            listening = CompletableFuture.runAsync(() -> own.subscribe(this, channels));
            ready.get(60, TimeUnit.SECONDS);
        }

        @Override public void onSubscribe(String channel, int count) {
            if (count == channels) ready.complete(null);
        }

        @Override public void onMessage(String channel, String text) {
            heard.add(channel + "=" + text);
            if (heard.size() == messages) unsubscribe();
        }

        /** All messages, as channel=text. */
        List<String> heard() throws Exception {
            listening.get(60, TimeUnit.SECONDS);
            return heard;
        }
    }

    /** A client of one connection that keeps what it reads. */
    static RedisClient caching() {
        var one = new ConnectionPoolConfig();
        one.setMaxTotal(1);
        var config = DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP3).socketTimeoutMillis(60_000).build();
        return RedisClient.builder().hostAndPort(HOST, PORT).clientConfig(config).poolConfig(one)
            .cacheConfig(CacheConfig.builder().maxSize(1000).build()).build();
    }

    /** The number of GETs that have reached the server. */
    static long gets(Jedis redis) {
        var counted = Pattern.compile("cmdstat_get:calls=(\\d+)").matcher(redis.info("commandstats"));
        return counted.find() ? Long.parseLong(counted.group(1)) : 0;
    }

    /** Waits until a cached key has a value. */
    static void comesTo(RedisClient cached, String value) throws InterruptedException {
        for (long deadline = System.currentTimeMillis() + 30_000; !Objects.equals(cached.get("k"), value); Thread.sleep(2)) {
            holds(System.currentTimeMillis() < deadline, "the cached key became " + value);
        }
    }

    static void holds(boolean condition, Object of) {
        if (!condition) throw new AssertionError("not so: " + of);
    }

    /** Text, where a command's answer is untyped. */
    static Object plain(Object reply) {
        if (reply instanceof byte[] bytes) return new String(bytes, StandardCharsets.UTF_8);
        return reply;
    }

    static Object call(Jedis redis, String command, String... words) {
        return plain(redis.sendCommand(() -> command.getBytes(StandardCharsets.UTF_8), words));
    }

    /** A map, also of what RESP2 sends as names and values one after the other. */
    static Map<String, Object> table(Object reply) {
        var pairs = new LinkedHashMap<String, Object>();
        if (reply instanceof List<?> list && !list.isEmpty() && list.get(0) instanceof KeyValue<?, ?>) {
            for (Object one : list) pairs.put((String) plain(((KeyValue<?, ?>) one).getKey()), plain(((KeyValue<?, ?>) one).getValue()));
        } else if (reply instanceof List<?> list) {
            for (int i = 0; i + 1 < list.size(); i += 2) pairs.put((String) plain(list.get(i)), plain(list.get(i + 1)));
        } else if (reply instanceof Map<?, ?> map) {
            map.forEach((name, value) -> pairs.put((String) plain(name), plain(value)));
        }
        return pairs;
    }

    static Map<String, Object> first(Object list, String field, Object value) {
        for (Object one : (List<?>) list) {
            var found = table(one);
            if (value.equals(found.get(field))) return found;
        }
        throw new AssertionError("no " + field + " " + value);
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
            same(redis.set("s", "v", SetParams.setParams().ex(1000).nx()), "OK");
            same(redis.set("s", "v", SetParams.setParams().nx()), null);
            same(redis.get("s"), "v");
            same(redis.ttl("s") > 900, true);
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
            try (Jedis own = open()) {
                var listener = new Listener(own, 2, "news", "other");
                same(redis.publish("news", "hello"), 1L);
                same(redis.publish("other", "world"), 1L);
                same(listener.heard(), List.of("news=hello", "other=world"));
            }
        });
        CASES.put("blocking pop", redis -> {
            var popped = CompletableFuture.supplyAsync(() -> {
                try (Jedis own = open()) {
                    return own.blpop(30, "nosuch", "queue");
                }
            });
            Thread.sleep(50);
            redis.rpush("queue", "job");
            same(popped.get(60, TimeUnit.SECONDS), List.of("queue", "job"));
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
            var config = DefaultJedisClientConfig.builder().protocol(protocol).clientName("victim").socketTimeoutMillis(60_000).build();
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
        CASES.put("functions", redis -> {
            String code = "#!lua name=lib\nredis.register_function{function_name='twice', flags={'no-writes'}, callback=function(keys, args) return args[1] * 2 end}";
            same(redis.functionLoadReplace(code), "lib");
            refused("Library 'lib' already exists", () -> redis.functionLoad(code));
            same(redis.fcall("twice", List.of(), List.of("21")), 42L);
            var library = redis.functionListWithCode("l*").get(0);
            same(List.of(library.getLibraryName(), library.getLibraryCode()), List.of("lib", code));
            byte[] dump = redis.functionDump();
            same(redis.functionDelete("lib"), "OK");
            refused("Function not found", () -> redis.fcall("twice", List.of(), List.of("21")));
            same(redis.functionRestore(dump), "OK");
            same(redis.fcallReadonly("twice", List.of(), List.of("5")), 10L);
            same(redis.functionStats().getEngines().get("LUA").get("functions_count"), 1L);
            same(redis.functionFlush(), "OK");
        });
        CASES.put("patterns and sharded channels", redis -> {
            var heard = new CopyOnWriteArrayList<String>();
            var ready = new CountDownLatch(2);
            var patterns = new JedisPubSub() {
                @Override public void onPSubscribe(String pattern, int count) { ready.countDown(); }
                @Override public void onPMessage(String pattern, String channel, String text) {
                    heard.add(pattern + " " + channel + "=" + text);
                    punsubscribe();
                }
            };
            var shards = new JedisShardedPubSub() {
                @Override public void onSSubscribe(String channel, int count) { ready.countDown(); }
                @Override public void onSMessage(String channel, String text) {
                    heard.add(channel + "=" + text);
                    sunsubscribe();
                }
            };
            var listening = CompletableFuture.runAsync(() -> {
                try (Jedis own = open()) {
                    own.psubscribe(patterns, "n?ws");
                }
            });
            var config = DefaultJedisClientConfig.builder().protocol(protocol).socketTimeoutMillis(60_000).build();
            var sharded = CompletableFuture.runAsync(() -> {
                try (Connection own = new Connection(new HostAndPort(HOST, PORT), config)) {
                    shards.proceed(own, "orders");
                }
            });
            holds(ready.await(60, TimeUnit.SECONDS), "subscribed");
            same(redis.pubsubShardChannels(), List.of("orders"));
            same(redis.pubsubShardNumSub("orders"), Map.of("orders", 1L));
            same(redis.pubsubNumPat(), 1L);
            same(redis.publish("orders", "not for them"), 0L);
            same(redis.publish("news", "hello"), 1L);
            listening.get(60, TimeUnit.SECONDS);
            same(call(redis, "SPUBLISH", "orders", "one"), 1L);
            sharded.get(60, TimeUnit.SECONDS);
            same(heard, List.of("n?ws news=hello", "orders=one"));
        });
        CASES.put("WATCH, repeated until nobody comes between", redis -> {
            var workers = new CompletableFuture<?>[4];
            for (int i = 0; i < workers.length; i++) {
                workers[i] = CompletableFuture.runAsync(() -> {
                    try (Jedis own = open()) {
                        for (int left = 25; left > 0; ) {
                            own.watch("counter");
                            String n = own.get("counter");
                            var transaction = own.multi();
                            transaction.set("counter", "" + ((n == null ? 0 : Integer.parseInt(n)) + 1));
                            if (transaction.exec() != null) left--;
                        }
                    }
                });
            }
            CompletableFuture.allOf(workers).get(120, TimeUnit.SECONDS);
            same(redis.get("counter"), "100");
        });
        CASES.put("blocking pops that end without an element", redis -> {
            same(redis.blpop(0.05, "nothing", "nor here"), null);
            same(redis.blmove("nothing", "other", ListDirection.LEFT, ListDirection.RIGHT, 0.05), null);
            same(redis.bzpopmin(0.05, "nothing"), null);
            same(redis.blmpop(0.05, ListDirection.LEFT, "nothing"), null);
        });
        CASES.put("SCAN with TYPE and a large COUNT", redis -> {
            var pipeline = redis.pipelined();
            for (int i = 0; i < 2000; i++) {
                pipeline.set("text:" + i, "x");
                pipeline.rpush("list:" + i, "x");
            }
            pipeline.sync();
            same(scanned(redis, new ScanParams().count(1_000_000), "list").size(), 2000);
            var ten = new HashSet<String>();
            for (int i = 10; i < 20; i++) ten.add("text:" + i);
            same(scanned(redis, new ScanParams().match("text:1?").count(10), "string"), ten);
            same(scanned(redis, new ScanParams().match("text:*"), "hash"), Set.of());
        });
        CASES.put("binary keys, and a value of 50 MB", redis -> {
            byte[] key = new byte[256];
            for (int i = 0; i < key.length; i++) key[i] = (byte) i;
            byte[] value = new byte[50 << 20];
            for (int i = 0; i < value.length; i++) value[i] = (byte) ((i >> 12) * 31);
            same(redis.set(key, value), "OK");
            holds(Arrays.equals(redis.get(key), value), "the value read");
            holds(Arrays.equals(redis.keys("*".getBytes()).iterator().next(), key), "the key listed");
            same(redis.del(key), 1L);
        });
        CASES.put("slow log", redis -> {
            try (Jedis shop = open("shop")) {
                String address = shop.clientInfo().replaceAll("(?s).*\\baddr=(\\S+) laddr.*", "$1");
                redis.configSet("slowlog-log-slower-than", "0");
                redis.slowlogReset();
                shop.rpush("cart", "an apple", "x".repeat(200));
                shop.lrange("cart", 0, -1);
                // A threshold of a minute logs no command, however late it is.
                redis.configSet("slowlog-log-slower-than", "60000000");
                holds(redis.slowlogLen() >= 3, redis.slowlogLen());
                var entries = redis.slowlogGet(20).stream().filter(entry -> entry.getClientName().equals("shop")).toList();
                same(entries.size(), 2);
                var read = entries.get(0);
                var write = entries.get(1);
                same(write.getArgs(), List.of("RPUSH", "cart", "an apple", "x".repeat(128) + "... (72 more bytes)"));
                same(read.getArgs(), List.of("LRANGE", "cart", "0", "-1"));
                same(read.getId(), write.getId() + 1);
                for (var entry : entries) {
                    same(entry.getClientIpPort().toString(), address);
                    holds(Math.abs(entry.getTimeStamp() - System.currentTimeMillis() / 1000) < 600, entry);
                    holds(entry.getExecutionTime() >= 0, entry);
                }
                same(redis.slowlogReset(), "OK");
                same(redis.slowlogGet(), List.of());
                redis.configSet("slowlog-log-slower-than", "10000");
            }
        });
        CASES.put("latency", redis -> {
            redis.configSet("latency-monitor-threshold", "0");
            redis.latencyReset();
            same(redis.latencyLatest(), Map.of());
            redis.configSet("latency-monitor-threshold", "2");
            redis.eval("for i = 1, 5000000 do end");
            redis.configSet("latency-monitor-threshold", "0");
            var event = redis.latencyLatest().get("command");
            holds(event.getLastEventLatency() >= 2 && event.getMaxEventLatency() >= event.getLastEventLatency(), event);
            var history = redis.latencyHistory(LatencyEvent.COMMAND);
            holds(history.stream().anyMatch(one -> one.getTimestamp() == event.getTimestamp()), history.size());
            holds(redis.latencyDoctor().contains("command"), redis.latencyDoctor());
            same(redis.latencyReset(LatencyEvent.COMMAND), 1L);
            redis.configResetStat();
            redis.set("a", "1");
            same(table(table(call(redis, "LATENCY", "HISTOGRAM", "set")).get("set")).get("calls"), 1L);
        });
        CASES.put("who made whom wait (Evenkeel)", redis -> {
            try (Jedis shop = open("shop-frontend")) {
                long id = shop.clientId();
                call(redis, "EVENKEEL", "WAITS", "RESET");
                redis.slowlogReset();
                redis.clientPause(600_000, ClientPauseMode.WRITE);
                var paid = CompletableFuture.supplyAsync(() -> shop.set("paid", "yes"));
                try {
                    while (!redis.clientList(id).contains(" flags=b ")) Thread.sleep(1);
                    Thread.sleep(20);
                } finally {
                    redis.clientUnpause();
                }
                same(paid.get(60, TimeUnit.SECONDS), "OK");
                var waits = table(call(redis, "EVENKEEL", "WAITS"));
                same(List.copyOf(waits.keySet()), List.of("causes", "culprits", "latest"));
                holds((long) table(table(waits.get("causes")).get("pause")).get("us") >= 10_000, waits);
                var wait = first(waits.get("latest"), "client", id);
                same(List.of(wait.get("name"), wait.get("command"), wait.get("for")), List.of("shop-frontend", "set", "pause"));
                holds(wait.containsKey("behind") && wait.get("behind") == null, wait);
                var why = table(call(redis, "EVENKEEL", "WHY", "" + id));
                same(List.of(why.get("client"), why.get("name"), why.get("last-command")), List.of(id, "shop-frontend", "set"));
                var request = first(why.get("slow-requests"), "command", "set");
                holds((long) table(request.get("phases-us")).get("waited-for-pause") >= 10_000, request);
                List<?> entry = null;
                for (Object one : (List<?>) call(redis, "SLOWLOG", "WHY", "10")) {
                    if (plain(((List<?>) one).get(5)).equals("shop-frontend")) entry = (List<?>) one;
                }
                same(entry.size(), 10);
                holds(((String) plain(entry.get(6))).contains("for the end of CLIENT PAUSE"), plain(entry.get(6)));
                for (int i = 7; i < 10; i++) same(plain(entry.get(i)), "");
                refused("Invalid client ID", () -> call(redis, "EVENKEEL", "WHY", "x"));
            }
        });
        CASES.put("clients", redis -> {
            try (Jedis other = open("other")) {
                long id = other.clientId();
                String info = other.clientInfo();
                holds(info.contains(" name=other ") && info.contains(" cmd=client|info "), info);
                holds(redis.clientList(id).startsWith("id=" + id + " addr="), redis.clientList(id));
                holds(redis.clientList(ClientType.PUBSUB).isEmpty(), redis.clientList(ClientType.PUBSUB));
                var popped = CompletableFuture.supplyAsync(() -> other.blpop(60, "nothing"));
                while (redis.clientUnblock(id) == 0) Thread.sleep(1);
                same(popped.get(60, TimeUnit.SECONDS), null);
                same(redis.clientNoEvictOn(), "OK");
                same(redis.clientNoEvictOff(), "OK");
                same(redis.clientTrackingInfo().getRedirect(), -1L);
                same(redis.clientSetname("renamed"), "OK");
                same(redis.clientGetname(), "renamed");
                refused("No such client", () -> redis.clientKill("1.2.3.4:5"));
                same(redis.clientKill(ClientKillParams.clientKillParams().id(String.valueOf(id))), 1L);
                same(redis.clientList(id), "");
            }
        });
        CASES.put("what is told of keys, commands and the server", redis -> {
            redis.mset("n", "12", "long", "x".repeat(100));
            same(List.of(redis.objectEncoding("n"), redis.objectEncoding("long"), redis.objectRefcount("long")), List.of("int", "raw", 1L));
            refused("LFU maxmemory policy is not selected", () -> redis.objectFreq("n"));
            holds(redis.memoryUsage("long") > 100, redis.memoryUsage("long"));
            same(redis.memoryUsage("nosuch"), null);
            same(redis.memoryStats().get("keys.count"), 2L);
            same(redis.commandGetKeys("MSET", "a", "1", "b", "2"), List.of("a", "b"));
            same(redis.commandGetKeysAndFlags("GETDEL", "a").get(0).getValue(), List.of("RW", "access", "delete"));
            var get = redis.commandInfo("get").get("get");
            same(List.of(get.getArity(), get.getFirstKey(), new HashSet<>(get.getFlags())), List.of(2L, 1L, Set.of("readonly", "fast")));
            same((long) redis.command().size(), redis.commandCount());
            var docs = redis.commandDocs("zadd").get("zadd");
            same(List.of(docs.getGroup(), docs.getSince()), List.of("sorted-set", "1.2.0"));
            same(redis.commandListFilterBy(CommandListFilterByParams.commandListFilterByParams().filterByPattern("getde?")), List.of("getdel"));
            same(redis.configGet("maxmemory"), Map.of("maxmemory", "0"));
            refused("nosuch", () -> redis.configSet("nosuch", "1"));
            holds(redis.info("keyspace").startsWith("# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0"), redis.info("keyspace"));
        });
        CASES.put("a cached value needs no request (RESP3 only, Evenkeel)", redis -> {
            redis.set("k", "v");
            try (var cached = caching()) {
                same(cached.get("k"), "v");
                long before = gets(redis);
                for (int i = 0; i < 10; i++) same(cached.get("k"), "v");
                same(List.of(gets(redis), cached.getCache().getStats().getHitCount()), List.of(before, 10L));
                redis.set("unread", "1");
                same(cached.get("k"), "v");
                same(gets(redis), before);
            }
        });
        CASES.put("every way to change a key invalidates (RESP3 only, Evenkeel)", redis -> {
            var changes = new LinkedHashMap<Runnable, String>();
            changes.put(() -> redis.set("k", "from set"), "from set");
            changes.put(() -> redis.del("k"), null);
            changes.put(() -> redis.set("k", "short", SetParams.setParams().px(20)), null);
            changes.put(() -> redis.pexpire("k", 20), null);
            changes.put(redis::flushAll, null);
            changes.put(() -> redis.eval("return redis.call('SET', KEYS[1], 'from eval')", 1, "k"), "from eval");
            changes.put(() -> {
                try (var transaction = redis.multi()) {
                    transaction.set("k", "from exec");
                    transaction.get("k");
                    transaction.exec();
                }
            }, "from exec");
            changes.put(() -> {
                redis.set("l", "from rename");
                redis.rename("l", "k");
            }, "from rename");
            changes.put(() -> redis.append("k", "er"), "older");
            try (var cached = caching()) {
                for (var change : changes.entrySet()) {
                    redis.set("k", "old");
                    comesTo(cached, "old");
                    change.getKey().run();
                    comesTo(cached, change.getValue());
                }
            }
        });
        CASES.put("a new connection begins with an empty cache (RESP3 only, Evenkeel)", redis -> {
            redis.set("k", "old");
            try (var cached = caching()) {
                same(cached.get("k"), "old");
                long before = gets(redis);
                // The connections of the cases before may end a moment later.
                for (long deadline = System.currentTimeMillis() + 60_000; redis.clientList(ClientType.NORMAL).lines().count() > 2; Thread.sleep(2)) {
                    holds(System.currentTimeMillis() < deadline, "two are connected");
                }
                same(redis.clientKill(ClientKillParams.clientKillParams().type(ClientType.NORMAL).skipMe(ClientKillParams.SkipMe.YES)), 1L);
                // The library asks the server for another key, notices, and connects again.
                boolean closed = false;
                for (int i = 0; i < 100 && !closed; i++) {
                    try {
                        cached.get("other");
                    } catch (JedisConnectionException e) {
                        closed = true;
                    }
                    closed |= cached.getCache().getSize() == 0;
                }
                holds(closed && cached.getCache().getSize() <= 1, cached.getCache().getSize());
                same(cached.get("k"), "old");
                holds(gets(redis) > before, gets(redis));
                redis.set("k", "new");
                comesTo(cached, "new");
            }
        });
        overTls();
        CASES.put("errors", redis -> {
            redis.set("e", "text");
            refused("ERR value is not an integer or out of range", () -> redis.incr("e"));
            refused("WRONGTYPE", () -> redis.lpush("e", "x"));
        });
    }

    static void overTls() {
        CASES.put("commands and a pipeline (TLS)", redis -> {
            try (Jedis tls = secure()) {
                same(tls.set("k", "över TLS"), "OK");
                same(List.of(tls.get("k"), redis.get("k")), List.of("över TLS", "över TLS"));
                same(tls.aclWhoAmI(), "default");
                var pipeline = tls.pipelined();
                for (int i = 0; i < 500; i++) {
                    pipeline.set("k:" + i, "" + i);
                    pipeline.get("k:" + i);
                }
                var replies = pipeline.syncAndReturnAll();
                for (int i = 0; i < 500; i++) same(replies.subList(2 * i, 2 * i + 2), List.of("OK", "" + i));
                same(redis.dbSize(), 501L);
            }
        });
        CASES.put("a value of 5 MB (TLS)", redis -> {
            byte[] value = new byte[5 << 20];
            for (int i = 0; i < value.length; i++) value[i] = (byte) ((i >> 12) * 31 + i);
            try (Jedis tls = secure()) {
                same(tls.set("big".getBytes(), value), "OK");
                same(redis.strlen("big"), (long) value.length);
                holds(Arrays.equals(tls.get("big".getBytes()), value), "the value read");
            }
        });
        CASES.put("pub/sub (TLS)", redis -> {
            try (Jedis own = secure(); Jedis sender = secure()) {
                var listener = new Listener(own, 2, "news");
                same(redis.publish("news", "plain"), 1L);
                same(sender.publish("news", "tls"), 1L);
                same(listener.heard(), List.of("news=plain", "news=tls"));
            }
        });
        CASES.put("a user with a password (TLS)", redis -> {
            redis.aclSetUser("app", "reset", "on", ">s3cret", "~app:*", "&app.*", "+get", "+set", "+publish", "+hello", "+acl|whoami");
            try (Jedis tls = secure("alice", "ca", "app", "s3cret", null)) {
                same(tls.aclWhoAmI(), "app");
                same(tls.set("app:k", "v"), "OK");
                same(tls.get("app:k"), "v");
                same(tls.publish("app.news", "x"), 0L);
                refused("NOPERM", () -> tls.set("other", "v"));
                refused("NOPERM", () -> tls.del("app:k"));
                refused("NOPERM", () -> tls.publish("other", "x"));
                same(redis.keys("*"), Set.of("app:k"));
                refused("WRONGPASS", () -> {
                    try (Jedis wrong = secure("alice", "ca", "app", "wrong", null)) {
                        wrong.aclWhoAmI();
                    } catch (JedisDataException e) {
                        throw e;
                    } catch (Exception e) {
                        throw new AssertionError(e);
                    }
                });
            } finally {
                same(redis.aclDelUser("app"), 1L);
            }
        });
        CASES.put("the user that a certificate names (TLS)", redis -> {
            redis.aclSetUser("alice", "reset", "on", "~a:*", "+get", "+set", "+hello", "+acl|whoami");
            try (Jedis tls = secure()) {
                same(tls.aclWhoAmI(), "alice");
                same(tls.set("a:k", "v"), "OK");
                same(tls.get("a:k"), "v");
                refused("NOPERM", () -> tls.set("b:k", "v"));
                same(redis.aclWhoAmI(), "default");
            } finally {
                same(redis.aclDelUser("alice"), 1L);
            }
            try (Jedis tls = secure()) {
                same(tls.aclWhoAmI(), "default");
            }
        });
        CASES.put("who shows no good certificate is refused (TLS)", redis -> {
            for (String shown : Arrays.asList(null, "stranger")) {
                unconnected("", nobody -> {
                    try (Jedis tls = secure(shown, "ca", null, null, null)) {
                        tls.incr("k");
                    }
                });
            }
            unconnected("", nobody -> {
                var config = DefaultJedisClientConfig.builder().protocol(protocol).socketTimeoutMillis(60_000).build();
                try (Jedis plain = new Jedis(new HostAndPort(HOST, TLS_PORT), config)) {
                    plain.incr("k");
                }
            });
            unconnected("unable to find valid certification path", nobody -> {
                try (Jedis tls = secure("alice", "other", null, null, null)) {
                    tls.incr("k");
                }
            });
            same(redis.exists("k"), false);
        });
        CASES.put("fifty connections at once (TLS)", redis -> {
            var all = new CompletableFuture<?>[50];
            var everybody = new CountDownLatch(all.length);
            var threads = Executors.newFixedThreadPool(all.length);
            for (int i = 0; i < all.length; i++) {
                int number = i;
                all[i] = CompletableFuture.runAsync(() -> {
                    try (Jedis tls = secure("alice", "ca", null, null, "tls-" + number)) {
                        everybody.countDown();
                        holds(everybody.await(60, TimeUnit.SECONDS), "all are connected");
                        for (int turn = 0; turn < 20; turn++) {
                            same(tls.set("k:" + number, "" + turn), "OK");
                            same(tls.get("k:" + number), "" + turn);
                            tls.incr("all");
                        }
                        same(tls.clientGetname(), "tls-" + number);
                    } catch (Exception e) {
                        throw new AssertionError(e);
                    }
                }, threads);
            }
            CompletableFuture.allOf(all).get(120, TimeUnit.SECONDS);
            threads.shutdown();
            same(List.of(redis.get("all"), redis.dbSize()), List.of("1000", 51L));
        });
    }

    static Set<String> scanned(Jedis redis, ScanParams params, String type) {
        var found = new HashSet<String>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            var part = redis.scan(cursor, params, type);
            found.addAll(part.getResult());
            cursor = part.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        return found;
    }

    public static void main(String[] args) {
        int failed = 0;
        for (RedisProtocol version : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
            protocol = version;
            for (Map.Entry<String, Case> entry : CASES.entrySet()) {
                String name = entry.getKey() + " (" + version + ")";
                if (name.contains("(TLS)") && TLS_PORT == 0) continue;
                if (name.contains("(RESP3 only") && version != RedisProtocol.RESP3) continue;
                try (Jedis redis = open()) {
                    if (name.contains("Evenkeel)") && !redis.commandList().contains("evenkeel")) continue;
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
