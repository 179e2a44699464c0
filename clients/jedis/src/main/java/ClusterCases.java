import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.ToLongFunction;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisShardedPubSub;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.util.JedisClusterCRC16;

/** What applications do with Jedis in a cluster, which clients/cluster/nodes.py starts. */
public class ClusterCases {
    interface Case {
        void run(RedisClusterClient redis) throws Exception;
    }

    static final List<Integer> PORTS =
        Arrays.stream(System.getenv("EVENKEEL_CLUSTER_PORTS").split(" ")).map(Integer::valueOf).toList();
    static final List<String> KEYS = IntStream.range(0, 600).mapToObj(n -> "key:" + n).toList();
    static final Map<String, Case> CASES = new LinkedHashMap<>();
    static final ExecutorService THREADS = Executors.newCachedThreadPool();
    static RedisProtocol protocol;
    static volatile int kills;

    static void same(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
    }

    static void refused(String text, Runnable call) {
        try {
            call.run();
        } catch (JedisException e) {
            if (!e.getMessage().contains(text)) throw e;
            return;
        }
        throw new AssertionError("no error that says " + text);
    }

    /** Waits until a condition holds that others bring about. */
    static void soon(String what, BooleanSupplier condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MINUTES.toNanos(3);
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) throw new AssertionError("it never came: " + what);
            Thread.sleep(20);
        }
    }

    static RedisClusterClient open() {
        var config = DefaultJedisClientConfig.builder().protocol(protocol).socketTimeoutMillis(60_000).build();
        Set<HostAndPort> nodes = PORTS.stream().map(port -> new HostAndPort("127.0.0.1", port)).collect(Collectors.toSet());
        return RedisClusterClient.builder().nodes(nodes).clientConfig(config).maxAttempts(10)
            .maxTotalRetriesDuration(Duration.ofMinutes(2)).build();
    }

    static Jedis node(int port) {
        return new Jedis("127.0.0.1", port, 60_000);
    }

    static String field(int port, String section, String pattern) {
        try (Jedis node = node(port)) {
            var found = Pattern.compile(pattern).matcher(node.info(section));
            return found.find() ? found.group(1) : "";
        } catch (JedisException e) {
            return "";
        }
    }

    static long size(List<Integer> ports) {
        return ports.stream().mapToLong(port -> {
            try (Jedis node = node(port)) {
                return node.dbSize();
            }
        }).sum();
    }

    /** Ports of the primary and the replicas of a slot. */
    @SuppressWarnings("unchecked")
    static List<Integer> shard(int slot) {
        for (int port : PORTS) {
            try (Jedis node = node(port)) {
                for (Object entry : node.clusterSlots()) {
                    var range = (List<Object>) entry;
                    if ((Long) range.get(0) <= slot && slot <= (Long) range.get(1)) {
                        return range.stream().skip(2).map(at -> ((Long) ((List<Object>) at).get(1)).intValue()).toList();
                    }
                }
            } catch (JedisException e) {
                // The next one is asked.
            }
        }
        return List.of();
    }

    static List<Integer> places(int place) {
        return List.of(shard(0).get(place), shard(5461).get(place), shard(10922).get(place));
    }

    static void empty() {
        for (int port : places(0)) {
            try (Jedis node = node(port)) {
                same(node.flushAll(), "OK");
            }
        }
    }

    static void fill(RedisClusterClient redis) {
        try (var pipeline = redis.pipelined()) {
            KEYS.forEach(key -> pipeline.set(key, key));
        }
    }

    /** Counts up in a key. answered: what was; acknowledged: what a replica had as well, by WAIT on the connection of the write. */
    static class Load implements Runnable {
        final String key;
        final boolean waits;
        volatile long answered, acknowledged;
        volatile boolean stopped;
        final List<Exception> errors = new CopyOnWriteArrayList<>();

        Load(int number, boolean waits) {
            key = "load:" + number;
            this.waits = waits;
        }

        public void run() {
            try (var redis = open()) {
                while (!stopped) {
                    int before = kills;
                    try {
                        if (!waits) {
                            redis.incr(key);
                        } else {
                            redis.exists(key);
                            try (Jedis one = new Jedis(redis.getConnectionFromSlot(JedisClusterCRC16.getSlot(key)))) {
                                long counted = one.incr(key);
                                if (one.waitReplicas(1, 5000) >= 1 && before == kills) acknowledged = counted;
                            }
                        }
                        answered++;
                    } catch (JedisException e) {
                        errors.add(e);
                        if (e instanceof JedisMovedDataException) redis.refreshClusterTopology();
                        pause();
                    }
                }
            }
        }
    }

    static void pause() {
        try {
            Thread.sleep(50);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    static void more(List<Load> loads, ToLongFunction<Load> of) throws Exception {
        long[] before = loads.stream().mapToLong(of).toArray();
        soon("every load goes on", () -> IntStream.range(0, before.length).allMatch(i -> of.applyAsLong(loads.get(i)) > before[i] + 20));
    }

    static void end(List<Load> loads, List<? extends Future<?>> ends) throws Exception {
        loads.forEach(load -> load.stopped = true);
        for (var end : ends) end.get(3, TimeUnit.MINUTES);
    }

    static {
        CASES.put("the map", redis -> {
            same(redis.getClusterNodes().keySet(), PORTS.stream().map(port -> "127.0.0.1:" + port).collect(Collectors.toSet()));
            try (Jedis node = node(PORTS.get(0))) {
                same(node.clusterInfo().startsWith("cluster_state:ok\r\n"), true);
                same(node.clusterKeySlot("foo"), 12182L);
                same(node.clusterShards().size(), 3);
                same(node.clusterShards().get(0).getNodes().size(), 2);
                same(node.clusterCountKeysInSlot(12182), 0L);
            }
        });
        CASES.put("keys of all slots", redis -> {
            for (String key : KEYS) same(redis.set(key, key), "OK");
            for (String key : KEYS) same(redis.get(key), key);
            for (int port : places(0)) same(size(List.of(port)) > 0, true);
            same(size(places(0)), 600L);
        });
        CASES.put("pipelines", redis -> {
            var replies = new ArrayList<Response<Long>>();
            try (var pipeline = redis.pipelined()) {
                for (int turn = 0; turn < 3; turn++) KEYS.forEach(key -> replies.add(pipeline.incr(key)));
            }
            for (int i = 0; i < replies.size(); i++) same(replies.get(i).get(), i / 600 + 1L);
        });
        CASES.put("keys of one hash tag", redis -> {
            same(redis.mset("{u}:a", "1", "{u}:b", "2"), "OK");
            same(redis.mget("{u}:a", "{u}:b", "{u}:c"), Arrays.asList("1", "2", null));
            redis.sadd("{u}:s", "1", "2", "3");
            redis.sadd("{u}:t", "3", "4");
            same(redis.sinterstore("{u}:both", "{u}:s", "{u}:t"), 1L);
            same(redis.rename("{u}:a", "{u}:z"), "OK");
        });
        CASES.put("keys of two slots are refused", redis -> {
            try (Jedis node = node(shard(JedisClusterCRC16.getSlot("a")).get(0))) {
                refused("CROSSSLOT Keys in request don't hash to the same slot", () -> node.sinter("a", "b"));
            }
        });
        CASES.put("transactions", redis -> {
            try (Jedis one = new Jedis(redis.getConnectionFromSlot(JedisClusterCRC16.getSlot("{t}:a")))) {
                var transaction = one.multi();
                transaction.set("{t}:a", "1");
                transaction.incr("{t}:a");
                same(transaction.exec(), List.of("OK", 2L));
            }
        });
        CASES.put("scripts", redis -> {
            String add = "return redis.call('INCRBY', KEYS[1], ARGV[1]) + redis.call('INCRBY', KEYS[2], ARGV[1])";
            for (int n = 0; n < 20; n++) same(redis.eval(add, 2, "{" + n + "}:a", "{" + n + "}:b", "" + n), 2L * n);
            refused("NOSCRIPT", () -> redis.evalsha("f".repeat(40), 1, "k"));
        });
        CASES.put("sharded publish and subscribe", redis -> {
            var heard = new ConcurrentSkipListSet<String>();
            var listeners = new ArrayList<JedisShardedPubSub>();
            for (int n = 0; n < 6; n++) {
                String channel = "shard:" + n;
                var listener = new JedisShardedPubSub() {
                    @Override
                    public void onSMessage(String channel, String message) {
                        heard.add(channel + "=" + message);
                    }
                };
                listeners.add(listener);
                THREADS.submit(() -> redis.ssubscribe(listener, channel));
            }
            for (int n = 0; n < 6; n++) {
                String channel = "shard:" + n;
                soon("somebody listens", () -> redis.spublish(channel, channel) == 1);
            }
            soon("all are heard", () -> heard.size() == 6);
            for (var listener : listeners) listener.sunsubscribe();
        });
        CASES.put("blocking pops", redis -> {
            var waiting = new ArrayList<Future<List<String>>>();
            for (int n = 0; n < 6; n++) {
                String key = "queue:" + n;
                waiting.add(THREADS.submit(() -> redis.blpop(50, key)));
            }
            soon("six wait", () -> places(0).stream().mapToInt(port -> Integer.parseInt(field(port, "clients", "blocked_clients:(\\d+)"))).sum() == 6);
            for (int n = 0; n < 6; n++) redis.rpush("queue:" + n, "" + n);
            for (int n = 0; n < 6; n++) same(waiting.get(n).get(2, TimeUnit.MINUTES), List.of("queue:" + n, "" + n));
        });
        CASES.put("scans of all nodes", redis -> {
            fill(redis);
            var found = new HashSet<String>();
            var all = redis.scanIteration(50, "*");
            while (!all.isIterationCompleted()) found.addAll(all.nextBatch().getResult());
            same(found, new HashSet<>(KEYS));
            same(redis.scan(ScanParams.SCAN_POINTER_START, new ScanParams().match("{key:1}*").count(1000)).getResult(), List.of());
        });
        CASES.put("reads of replicas", redis -> {
            fill(redis);
            soon("replicas have all", () -> size(places(1)) == 600);
            var nodes = new HashMap<String, Integer>();
            for (String key : KEYS) nodes.put(key, shard(JedisClusterCRC16.getSlot(key)).get(1));
            for (int port : places(1)) {
                try (Jedis node = node(port)) {
                    String first = KEYS.stream().filter(key -> nodes.get(key) == port).findFirst().orElseThrow();
                    refused("MOVED", () -> node.get(first));
                    same(node.readonly(), "OK");
                    for (String key : KEYS) if (nodes.get(key) == port) same(node.get(key), key);
                    refused("MOVED", () -> node.set(first, "x"));
                }
            }
        });
        CASES.put("flush of all nodes", redis -> {
            fill(redis);
            same(redis.flushAll(), "OK");
            soon("nothing is left", () -> size(PORTS) == 0);
        });
        CASES.put("hand-overs under load", redis -> {
            var loads = IntStream.range(0, 6).mapToObj(n -> new Load(n, false)).toList();
            var ends = loads.stream().map(THREADS::submit).toList();
            more(loads, load -> load.answered);
            for (int slot : new int[] {0, 0, 5461}) {
                soon("a replica is in sync", () -> shard(slot).size() == 2);
                var nodes = shard(slot);
                try (Jedis node = node(nodes.get(1))) {
                    same(node.clusterFailover(), "OK");
                }
                soon("they have changed places", () -> shard(slot).equals(List.of(nodes.get(1), nodes.get(0))));
                more(loads, load -> load.answered);
            }
            end(loads, ends);
            for (var load : loads) {
                same(load.errors, List.of());
                same(redis.get(load.key), "" + load.answered);
            }
        });
        CASES.put("a killed primary", redis -> {
            var loads = IntStream.range(0, 8).mapToObj(n -> new Load(n, n < 6)).toList();
            var ends = loads.stream().map(THREADS::submit).toList();
            var waiting = loads.subList(0, 6);
            more(waiting, load -> load.acknowledged);
            var nodes = shard(5461);
            long pid = Long.parseLong(field(nodes.get(0), "server", "process_id:(\\d+)"));
            kills++;
            new ProcessBuilder("kill", "-9", "" + pid).start().waitFor();
            soon("the replica leads", () -> !shard(5461).isEmpty() && shard(5461).get(0).equals(nodes.get(1)));
            more(loads, load -> load.answered);
            // It is back, and WAIT sees it again.
            soon("it is back", () -> shard(5461).equals(List.of(nodes.get(1), nodes.get(0))));
            more(waiting, load -> load.acknowledged);
            end(loads, ends);
            for (var load : loads) {
                long there = Long.parseLong(redis.get(load.key));
                if (there < load.acknowledged) throw new AssertionError(load.key + ": " + load.acknowledged + " acknowledged, " + there + " there");
            }
            soon("it follows", () -> field(nodes.get(0), "replication", "master_link_status:(\\w+)").equals("up"));
        });
    }

    public static void main(String[] args) {
        int failed = 0;
        for (var version : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
            protocol = version;
            for (var entry : CASES.entrySet()) {
                String name = entry.getKey();
                if ((name.contains("load") || name.contains("killed")) && version == RedisProtocol.RESP2) continue;
                try (var redis = open()) {
                    empty();
                    entry.getValue().run(redis);
                    System.out.println("ok " + name + " (" + version + ")");
                } catch (Throwable e) {
                    failed++;
                    System.out.println("not ok " + name + " (" + version + "): " + e);
                    e.printStackTrace(System.out);
                }
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }
}
