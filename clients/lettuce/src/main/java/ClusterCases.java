import io.lettuce.core.*;
import io.lettuce.core.cluster.*;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.cluster.models.slots.ClusterSlotsParser;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BooleanSupplier;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/** What applications do with Lettuce in a cluster, which clients/cluster/nodes.py starts. It reads CLUSTER NODES. */
public class ClusterCases {
    interface Case {
        void run(RedisAdvancedClusterCommands<String, String> redis) throws Exception;
    }

    static final List<Integer> PORTS =
        Arrays.stream(System.getenv("EVENKEEL_CLUSTER_PORTS").split(" ")).map(Integer::valueOf).toList();
    static final List<String> KEYS = IntStream.range(0, 600).mapToObj(n -> "key:" + n).toList();
    static final Map<String, Case> CASES = new LinkedHashMap<>();
    static final RedisClient NODES = RedisClient.create();
    static RedisClusterClient client;
    static StatefulRedisClusterConnection<String, String> connection;
    static volatile int kills;

    static void same(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
    }

    static void refused(String text, Runnable call) {
        try {
            call.run();
        } catch (RedisException e) {
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

    /** FLUSHALL has no keys, so a node that ceased to lead a moment ago says READONLY, and the client learns of that later. */
    static boolean flush() {
        try {
            return connection.sync().flushall().equals("OK");
        } catch (RedisReadOnlyException e) {
            return false;
        }
    }

    static RedisURI uri(int port) {
        return RedisURI.builder().withHost("127.0.0.1").withPort(port).withTimeout(Duration.ofMinutes(1)).build();
    }

    static RedisClusterClient open(ProtocolVersion version) {
        var opened = RedisClusterClient.create(PORTS.stream().map(ClusterCases::uri).toList());
        var refresh = ClusterTopologyRefreshOptions.builder().enableAllAdaptiveRefreshTriggers()
            .adaptiveRefreshTriggersTimeout(Duration.ofMillis(200)).enablePeriodicRefresh(Duration.ofSeconds(1)).build();
        opened.setOptions(ClusterClientOptions.builder().protocolVersion(version).topologyRefreshOptions(refresh).maxRedirects(16).build());
        return opened;
    }

    /** A section of INFO of a node; empty: it does not answer. */
    static String info(int port, String section) {
        try (var node = NODES.connect(uri(port))) {
            return node.sync().info(section);
        } catch (RedisException e) {
            return "";
        }
    }

    static String field(int port, String section, String pattern) {
        var found = Pattern.compile(pattern).matcher(info(port, section));
        return found.find() ? found.group(1) : "";
    }

    static long size(Collection<Integer> ports) {
        long sum = 0;
        for (int port : ports) {
            try (var node = NODES.connect(uri(port))) {
                sum += node.sync().dbsize();
            }
        }
        return sum;
    }

    /** Ports of the primary and the replicas of a slot. */
    static List<Integer> shard(int slot) {
        for (int port : PORTS) {
            try (var node = NODES.connect(uri(port))) {
                for (var range : ClusterSlotsParser.parse(node.sync().clusterSlots())) {
                    if (range.getFrom() <= slot && slot <= range.getTo()) {
                        var all = new ArrayList<>(List.of(range.getUpstream().getUri().getPort()));
                        range.getReplicaNodes().forEach(replica -> all.add(replica.getUri().getPort()));
                        return all;
                    }
                }
            } catch (RedisException e) {
                // The next one is asked.
            }
        }
        return List.of();
    }

    static List<Integer> places(int place) {
        return List.of(shard(0).get(place), shard(5461).get(place), shard(10922).get(place));
    }

    static void fill(RedisAdvancedClusterCommands<String, String> redis) {
        var all = new HashMap<String, String>();
        KEYS.forEach(key -> all.put(key, key));
        same(redis.mset(all), "OK");
    }

    /** Counts up in a key. answered: what was; acknowledged: what a replica had as well, by WAIT on the connection of the write. */
    static class Load implements Callable<Void> {
        final String key;
        final boolean waits;
        volatile long answered, acknowledged;
        volatile boolean stopped;
        final List<Exception> errors = new CopyOnWriteArrayList<>();

        Load(int number, boolean waits) {
            key = "load:" + number;
            this.waits = waits;
        }

        public Void call() throws Exception {
            while (!stopped) {
                int before = kills;
                try {
                    if (waits) {
                        var primary = client.getPartitions().getPartitionBySlot(SlotHash.getSlot(key));
                        var node = connection.getConnection(primary.getNodeId()).async();
                        var value = node.incr(key);
                        var copies = node.waitForReplication(1, 5000);
                        long counted = value.get(1, TimeUnit.MINUTES);
                        answered++;
                        if (copies.get(1, TimeUnit.MINUTES) >= 1 && before == kills) acknowledged = counted;
                    } else {
                        connection.sync().incr(key);
                        answered++;
                    }
                } catch (RedisException | ExecutionException e) {
                    errors.add(e);
                    Thread.sleep(50);
                }
            }
            return null;
        }
    }

    static final ExecutorService THREADS = Executors.newCachedThreadPool();

    static void more(List<Load> loads, java.util.function.ToLongFunction<Load> of) throws Exception {
        long[] before = loads.stream().mapToLong(of).toArray();
        soon("every load goes on", () -> IntStream.range(0, before.length).allMatch(i -> of.applyAsLong(loads.get(i)) > before[i] + 20));
    }

    static void end(List<Load> loads, List<Future<Void>> ends) throws Exception {
        loads.forEach(load -> load.stopped = true);
        for (var end : ends) end.get(3, TimeUnit.MINUTES);
    }

    static {
        CASES.put("the map", redis -> {
            var nodes = client.getPartitions();
            same(nodes.stream().map(node -> node.getUri().getPort()).sorted().toList(), PORTS);
            same(nodes.stream().filter(node -> node.is(RedisClusterNode.NodeFlag.UPSTREAM)).mapToInt(node -> node.getSlots().size()).sum(), 16384);
            same(nodes.stream().filter(node -> node.is(RedisClusterNode.NodeFlag.REPLICA)).count(), 3L);
            same(redis.clusterInfo().startsWith("cluster_state:ok\r\n"), true);
            same(redis.clusterKeyslot("foo"), 12182L);
            same(redis.clusterShards().size(), 3);
        });
        CASES.put("keys of all slots", redis -> {
            for (String key : KEYS) same(redis.set(key, key), "OK");
            for (String key : KEYS) same(redis.get(key), key);
            same(redis.dbsize(), 600L);
            for (int port : places(0)) same(size(List.of(port)) > 0, true);
            same(redis.del(KEYS.subList(0, 100).toArray(String[]::new)), 100L);
        });
        CASES.put("many futures", redis -> {
            var async = connection.async();
            var futures = new ArrayList<RedisFuture<Long>>();
            for (int turn = 0; turn < 5; turn++) KEYS.forEach(key -> futures.add(async.incr(key)));
            for (int i = 0; i < futures.size(); i++) same(futures.get(i).get(1, TimeUnit.MINUTES), i / 600 + 1L);
        });
        CASES.put("keys of one hash tag", redis -> {
            same(redis.mset(Map.of("{u}:a", "1", "{u}:b", "2")), "OK");
            redis.sadd("{u}:s", "1", "2", "3");
            redis.sadd("{u}:t", "3", "4");
            same(redis.sinterstore("{u}:both", "{u}:s", "{u}:t"), 1L);
            same(redis.rename("{u}:a", "{u}:z"), "OK");
        });
        CASES.put("keys of two slots are refused", redis ->
            refused("CROSSSLOT Keys in request don't hash to the same slot", () -> redis.sinter("a", "b")));
        CASES.put("transactions", redis -> {
            var node = connection.getConnection(client.getPartitions().getPartitionBySlot(SlotHash.getSlot("{t}:a")).getNodeId()).sync();
            same(node.multi(), "OK");
            node.set("{t}:a", "1");
            node.incr("{t}:a");
            same(List.copyOf(node.exec().stream().toList()), List.of("OK", 2L));
        });
        CASES.put("scripts", redis -> {
            String add = "return redis.call('INCRBY', KEYS[1], ARGV[1]) + redis.call('INCRBY', KEYS[2], ARGV[1])";
            for (int n = 0; n < 20; n++) {
                String[] keys = {"{" + n + "}:a", "{" + n + "}:b"};
                same(redis.<Long>eval(add, ScriptOutputType.INTEGER, keys, "" + n), 2L * n);
            }
            String sha = redis.scriptLoad("return 7");
            same(redis.<Long>evalsha(sha, ScriptOutputType.INTEGER, new String[] {"any"}), 7L);
            same(redis.scriptFlush(), "OK");
            refused("NOSCRIPT", () -> redis.evalsha(sha, ScriptOutputType.INTEGER, new String[] {"any"}));
        });
        CASES.put("sharded publish and subscribe", redis -> {
            var heard = new ConcurrentSkipListSet<String>();
            try (var listener = client.connectPubSub()) {
                listener.addListener(new RedisPubSubAdapter<String, String>() {
                    @Override
                    public void smessage(String channel, String message) {
                        heard.add(channel + "=" + message);
                    }
                });
                for (int n = 0; n < 12; n++) listener.sync().ssubscribe("shard:" + n);
                for (int n = 0; n < 12; n++) {
                    String channel = "shard:" + n;
                    soon("somebody listens", () -> redis.spublish(channel, channel) == 1);
                }
                soon("all are heard", () -> heard.size() == 12);
            }
        });
        CASES.put("blocking pops", redis -> {
            var waiting = new ArrayList<Future<KeyValue<String, String>>>();
            for (int n = 0; n < 6; n++) {
                String key = "queue:" + n;
                waiting.add(THREADS.submit(() -> {
                    try (var own = client.connect()) {
                        return own.sync().blpop(50, key);
                    }
                }));
            }
            soon("six wait", () -> places(0).stream().mapToInt(port -> Integer.parseInt(field(port, "clients", "blocked_clients:(\\d+)"))).sum() == 6);
            for (int n = 0; n < 6; n++) redis.rpush("queue:" + n, "" + n);
            for (int n = 0; n < 6; n++) same(waiting.get(n).get(2, TimeUnit.MINUTES), KeyValue.just("queue:" + n, "" + n));
        });
        CASES.put("scans of all nodes", redis -> {
            fill(redis);
            var found = new HashSet<String>();
            ScanIterator.scan(redis, ScanArgs.Builder.limit(50)).forEachRemaining(found::add);
            same(found, new HashSet<>(KEYS));
            same(new HashSet<>(redis.keys("*")), found);
        });
        CASES.put("reads of replicas", redis -> {
            fill(redis);
            soon("replicas have all", () -> size(places(1)) == 600);
            java.util.function.LongSupplier served =
                () -> places(1).stream().mapToLong(port -> Long.parseLong("0" + field(port, "commandstats", "cmdstat_get:calls=(\\d+)"))).sum();
            long before = served.getAsLong();
            try (var reader = client.connect()) {
                reader.setReadFrom(ReadFrom.REPLICA);
                for (String key : KEYS) same(reader.sync().get(key), key);
                same(served.getAsLong() - before, 600L);
                same(reader.sync().set("key:0", "new"), "OK");
            }
        });
        CASES.put("flush of all nodes", redis -> {
            fill(redis);
            same(redis.flushall(), "OK");
            soon("nothing is left", () -> size(PORTS) == 0);
        });
        CASES.put("hand-overs under load", redis -> {
            var loads = IntStream.range(0, 6).mapToObj(n -> new Load(n, false)).toList();
            var ends = loads.stream().map(THREADS::submit).toList();
            more(loads, load -> load.answered);
            for (int slot : new int[] {0, 0, 5461}) {
                soon("a replica is in sync", () -> shard(slot).size() == 2);
                var nodes = shard(slot);
                try (var node = NODES.connect(uri(nodes.get(1)))) {
                    same(node.sync().clusterFailover(false), "OK");
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
        for (var version : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
            client = open(version);
            connection = client.connect();
            for (var entry : CASES.entrySet()) {
                String name = entry.getKey();
                if ((name.contains("load") || name.contains("killed")) && version == ProtocolVersion.RESP2) continue;
                try {
                    soon("all nodes are empty", ClusterCases::flush);
                    entry.getValue().run(connection.sync());
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
