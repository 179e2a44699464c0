//! The directives that a redis.conf of Redis 7.2, Redis 8 or Valkey 9 commonly holds, and our own.
//!
//! A row without [`Effect::Accepted`](super::Effect) or [`Effect::Only`](super::Effect) works. The defaults
//! are those of Redis 7.2, except for `bind` (this machine only) and `event-loops` (one per core).

mod cluster;

use super::kind::Kind::{self, Choices, Clamped, MemoryOrPercent, Octal, Words};
use super::table::{Directive, choice, flag, int, memory, special, text};

use std::sync::atomic::Ordering;
use value::limits;

const INT: i64 = i32::MAX as i64;
const LONG: i64 = i64::MAX;
const MB: i64 = 1 << 20;
const ACCESS: &[&str] = &["no", "yes", "local"];
const WATCHES: &[&str] = &["auto", "always", "no"];
const BACKENDS: &[&str] = &["auto", "epoll", "io_uring"];
const LEVELS: &[&str] = &["debug", "verbose", "notice", "warning", "nothing"];
const POLICIES: &[&str] = &[
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];
const SHUTDOWN: &[&str] = &["default", "save", "nosave", "now", "force"];
/// Versions of RDB files that can be written; `auto` is the lowest that carries the data.
pub const RDB_VERSIONS: &[&str] = &["auto", "9", "10", "11", "12", "80"];
const APPENDFSYNC: &[&str] = &["everysec", "always", "no"];

/// The words of `repl-diskless-load`. The first is ours.
const DISKLESS_LOAD: &[&str] = &["auto", "swapdb", "flush-before-load", "disabled", "on-empty-db"];
const NAMELESS: &str = "a full copy is read from a file without a name, while it grows";
const JOINS: &str = "a replica that comes later joins the copy under way";
const ONE_CHANNEL: &str = "a full copy and the stream share a connection";
const NO_RDMA: &str = "there are no RDMA connections";
const NO_DH: &str = "keys are agreed upon by elliptic curves alone";
const OWN_COUNT: &str = "uses of keys are counted over periods that adapt to the rate of new keys";
const NEVER_INLINE: &str = "large values are always freed in the background";
const NO_FORK: &str = "no child process is ever started";
const NO_DEFRAG: &str = "there is no defragmentation job";

/// The directives by topic.
pub(super) const GROUPS: &[(&str, &[Directive])] = &[
    ("network", NETWORK),
    ("general", GENERAL),
    ("limits", LIMITS),
    ("memory", MEMORY),
    ("encodings", ENCODINGS),
    ("scripts and events", EVENTS),
    ("measuring", MEASURING),
    ("security", SECURITY),
    ("snapshots", SNAPSHOTS),
    ("append-only file", APPEND_ONLY),
    ("replication", REPLICATION),
    ("cluster", cluster::CLUSTER),
    ("tls", TLS),
];

const NETWORK: &[Directive] = &[
    special("bind", Words, "127.0.0.1 -::1")
        .prepared()
        .live(|l, v| l.bind.set(&Kind::Words.shown(v)))
        .doc("Addresses to listen on; one with a leading '-' may be missing on this machine."),
    int("port", 0, 65535, "6379")
        .prepared()
        .live(|l, v| l.port.set(v.int()))
        .doc("TCP port to listen on; 0 listens on no TCP port."),
    int("http-port", 0, 65535, "0")
        .prepared()
        .live(|l, v| l.http_port.set(v.int()))
        .doc("TCP port to serve HTTP on; 0 serves none."),
    special("http-bind", Words, "")
        .prepared()
        .live(|l, v| l.http_bind.set(&Kind::Words.shown(v)))
        .doc("Addresses to serve HTTP on; empty means those of bind."),
    special("http-hosts", Words, "").live(|l, v| l.http_hosts.set(&Kind::Words.shown(v))).doc(
        "Names by which HTTP clients without a password may call the server, besides its own; * is any.",
    ),
    int("http-timeout", 0, INT, "60")
        .unit("seconds")
        .live(|l, v| l.http_timeout_s.set(v.int()))
        .doc("Time without a whole request or any reading, to disconnect an HTTP client; 0 is no limit."),
    flag("console-writes", "no")
        .live(|l, v| l.console_writes.set(v.is_yes()))
        .doc("Whether a session of the console may change anything, once its user has allowed that for 15 minutes."),
    flag("http-access-log", "no")
        .live(|l, v| l.http_access_log.set(v.is_yes()))
        .doc("Write a line to the log for each HTTP request."),
    text("unixsocket", "")
        .startup()
        .live(|l, v| l.unixsocket.set(&Kind::Text.shown(v)))
        .doc("Path of a unix socket to listen on as well."),
    special("unixsocketperm", Octal { max: 0o777 }, "0")
        .startup()
        .live(|l, v| l.unixsocket_mode.set(v.int()))
        .doc("Permissions of the unix socket, in octal; 0 leaves them to the umask."),
    text("unixsocketgroup", "")
        .startup()
        .only(&[""], "changing the group of the unix socket is not supported yet")
        .doc("Group of the unix socket."),
    int("tcp-backlog", 0, INT, "511")
        .startup()
        .live(|l, v| l.tcp_backlog.set(v.int()))
        .doc("Connections that may wait to be accepted; at least 4096, if the kernel's limit permits."),
    int("tcp-keepalive", 0, INT, "300")
        .unit("seconds")
        .live(|l, v| l.tcp_keepalive_s.set(v.int()))
        .doc("Silence after which the kernel probes a connection; 0 never probes."),
    int("timeout", 0, INT, "0")
        .unit("seconds")
        .live(|l, v| l.timeout_s.set(v.int()))
        .doc("Idle time after which a client is disconnected; 0 is no limit."),
    int("auth-timeout", 0, INT, "60")
        .unit("seconds")
        .live(|l, v| l.auth_timeout_s.set(v.int()))
        .doc("Time in which a client that has to log in must do so, to stay connected; 0 is no limit."),
    flag("protected-mode", "yes")
        .live(|l, v| l.protected_mode.set(v.is_yes()))
        .doc("Without a password, answer only clients on this machine."),
    text("bind-source-addr", "")
        .accepted("no connection is opened to another server")
        .doc("Address outgoing connections come from."),
    int("socket-mark-id", 0, u32::MAX as i64, "0")
        .startup()
        .only(&["0"], "marking sockets is not supported")
        .doc("Mark on listening sockets, for packet filters."),
    int("max-new-connections-per-cycle", 1, 1000, "10")
        .accepted("accepting never holds up a loop for longer than its quantum")
        .doc("Connections accepted in one turn of a loop."),
    flag("mptcp", "no")
        .startup()
        .only(&["no"], "multipath TCP is not supported")
        .doc("Listen with multipath TCP."),
    special("rdma-bind", Words, "").startup().only(&[""], NO_RDMA).doc("Addresses to listen on by RDMA."),
    int("rdma-port", 0, 65535, "0").startup().only(&["0"], NO_RDMA).doc("Port to listen on by RDMA."),
    int("rdma-rx-size", 65536, 16 * MB, "1048576")
        .startup()
        .accepted(NO_RDMA)
        .doc("Buffer of an RDMA connection."),
    int("rdma-completion-vector", -1, 1024, "-1")
        .startup()
        .accepted(NO_RDMA)
        .doc("Queue of an RDMA connection."),
];

const GENERAL: &[Directive] = &[
    int("event-loops", 0, 128, "0")
        .aka(&["io-threads"])
        .startup()
        .live(|l, v| l.event_loops.set(v.int()))
        .doc("Threads that serve connections; 0 is one per core."),
    choice("io-backend", BACKENDS, "auto")
        .startup()
        .live(|l, v| l.io_backend.set(v.int()))
        .doc("How event loops talk to the kernel; auto is io_uring where there is one, else epoll."),
    flag("io-threads-do-reads", "no")
        .startup()
        .accepted("every loop reads, runs and writes")
        .doc("Whether further threads read requests."),
    flag("io-threads-always-active", "no")
        .accepted("loops sleep when there is nothing to do")
        .doc("Keep further threads awake."),
    int("events-per-io-thread", 0, INT, "2")
        .accepted("connections are spread by load")
        .doc("Events that call for a further thread."),
    int("prefetch-batch-max-size", 0, 128, "16")
        .accepted("keys of a batch are always looked up together")
        .doc("Commands whose keys are looked up together."),
    flag("demo", "no").startup().live(|l, v| l.demo.set(v.is_yes())).doc(
        "Serve a table of made-up products as keys item:1, item:2 ...; its file is removed when the server ends.",
    ),
    int("databases", 1, INT, "16")
        .startup()
        .live(|l, v| l.databases.set(v.int()))
        .doc("How many databases SELECT can choose from."),
    flag("daemonize", "no")
        .startup()
        .only(&["no"], "running in the background is left to the service manager (or use: evenkeel ... &)")
        .doc("Detach from the terminal."),
    choice("supervised", &["upstart", "systemd", "auto", "no"], "no")
        .startup()
        .accepted(
            "a service manager that listens (NOTIFY_SOCKET) is always told when the server is ready",
        )
        .doc("Which service manager to tell that the server is ready."),
    text("pidfile", "")
        .startup()
        .live(|l, v| l.pidfile.set(&Kind::Text.shown(v)))
        .doc("File that holds the process id while the server runs."),
    choice("loglevel", LEVELS, "notice")
        .live(|l, v| l.loglevel.set(v.int()))
        .doc("The lowest level of messages that are logged."),
    text("logfile", "")
        .startup()
        .live(|l, v| l.logfile.set(&Kind::Text.shown(v)))
        .doc("File for log lines; empty is standard output."),
    choice("log-format", &["legacy", "logfmt"], "legacy")
        .only(&["legacy"], "only the plain log format exists")
        .doc("Form of log lines."),
    choice("log-timestamp-format", &["legacy", "iso8601", "milliseconds"], "legacy")
        .only(&["legacy"], "only the plain log format exists")
        .doc("Form of the time in log lines."),
    flag("hide-user-data-from-log", "yes")
        .aka(&["hide-user-data"])
        .accepted("keys and values are never logged")
        .doc("Keep keys and values out of the log."),
    flag("syslog-enabled", "no")
        .startup()
        .only(&["no"], "logging to syslog is not supported; a service manager can forward standard output")
        .doc("Log to syslog."),
    text("syslog-ident", "redis").startup().accepted("nothing is logged to syslog").doc("Name in syslog."),
    choice(
        "syslog-facility",
        &["user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"],
        "local0",
    )
    .startup()
    .accepted("nothing is logged to syslog")
    .doc("Facility in syslog."),
    flag("crash-log-enabled", "yes")
        .accepted("a panic is always logged")
        .doc("Log the state of a crashing server."),
    flag("crash-memcheck-enabled", "yes")
        .accepted("memory is not tested at a crash")
        .doc("Test memory at a crash."),
    flag("use-exit-on-panic", "no")
        .accepted("a panic never dumps core by itself")
        .doc("Exit instead of aborting on an assertion."),
    int("watchdog-period", 0, INT, "0")
        .unit("ms")
        .accepted("loops are always watched")
        .doc("Delay after which a busy loop is reported."),
    flag("always-show-logo", "no")
        .startup()
        .accepted("the banner is a few plain lines, and only on a terminal")
        .doc("Show a logo even in a log file."),
    flag("set-proc-title", "yes")
        .startup()
        .accepted("the process keeps its name")
        .doc("Show state in the process title."),
    text("proc-title-template", "{title} {listen-addr} {server-mode}")
        .accepted("the process keeps its name")
        .doc("Form of the process title."),
    text("locale-collate", "")
        .only(&["", "C", "POSIX"], "SORT ALPHA compares bytes only")
        .doc("Locale of SORT ALPHA."),
    text("dir", "")
        .protected()
        .prepared()
        .live(|l, v| l.dir.set(&Kind::Text.shown(v)))
        .doc("Directory for the server's files."),
    special("shutdown-on-sigint", Choices(SHUTDOWN), "default")
        .live(|l, v| l.shutdown_on_sigint.set(v.int()))
        .doc("What to do on SIGINT: save or nosave; force ends the server even if the snapshot fails."),
    special("shutdown-on-sigterm", Choices(SHUTDOWN), "default")
        .live(|l, v| l.shutdown_on_sigterm.set(v.int()))
        .doc("What to do on SIGTERM, as shutdown-on-sigint."),
    int("shutdown-timeout", 0, INT, "10")
        .unit("seconds")
        .live(|l, v| l.shutdown_timeout_s.set(v.int()))
        .doc("How long a shutdown waits for replicas that lag; writes wait meanwhile. 0: not at all."),
    text("ignore-warnings", "")
        .accepted("start-up warnings never stop the server")
        .doc("Start-up warnings to ignore."),
    choice("oom-score-adj", &["no", "yes", "relative", "absolute"], "no")
        .accepted("left to the service manager")
        .doc("Tell the kernel which process to end when memory runs out."),
    special("oom-score-adj-values", Kind::OomScores, "0 200 800")
        .accepted("left to the service manager")
        .doc("Scores for oom-score-adj: primary, replica, child."),
    flag("disable-thp", "yes")
        .startup()
        .accepted("left to the system")
        .doc("Do without transparent huge pages."),
    text("server-cpulist", "")
        .aka(&["server_cpulist"])
        .startup()
        .accepted("use taskset or a service manager")
        .doc("Cores for the loops."),
    text("bio-cpulist", "")
        .aka(&["bio_cpulist"])
        .startup()
        .accepted("use taskset or a service manager")
        .doc("Cores for background work."),
    text("aof-rewrite-cpulist", "")
        .aka(&["aof_rewrite_cpulist"])
        .startup()
        .accepted(NO_FORK)
        .doc("Cores for rewriting the append-only file."),
    text("bgsave-cpulist", "")
        .aka(&["bgsave_cpulist"])
        .startup()
        .accepted(NO_FORK)
        .doc("Cores for snapshots."),
    flag("jemalloc-bg-thread", "yes")
        .accepted("unused pages always go back in the background")
        .doc("Give unused pages back in the background."),
    flag("extended-redis-compatibility", "no")
        .accepted("names that clients read are Redis's own")
        .doc("Answer with Redis's name where clients look for it."),
    flag("import-mode", "no")
        .live(|l, v| l.import_mode.set(v.is_yes()))
        .doc("Keep expired keys while data is imported, and evict nothing (CLIENT IMPORT-SOURCE)."),
    text("hash-seed", "")
        .startup()
        .secret()
        .accepted("hashes are seeded anew by every process")
        .doc("Seed of the hash function."),
    text("availability-zone", "")
        .live(|l, v| l.availability_zone.set(&Kind::Text.shown(v)))
        .doc("Where this server runs, for clients that prefer near ones."),
];

const LIMITS: &[Directive] = &[
    int("maxclients", 1, u32::MAX as i64, "10000")
        .live(|l, v| l.maxclients.set(v.int()))
        .doc("Connections served at once; one more is refused with an error."),
    int("maxclients-per-address", 0, u32::MAX as i64, "0")
        .live(|l, v| l.maxclients_per_address.set(v.int()))
        .doc("Connections served at once from one address; one more is refused with an error; 0 is no limit."),
    memory("proto-max-bulk-len", MB, "536870912")
        .live(|l, v| {
            l.proto_max_bulk_bytes.set(v.int());
            command::options::set_max_string_bytes(v.int().max(0) as usize);
        })
        .doc("The longest argument a client may send."),
    memory("client-query-buffer-limit", MB, "1073741824")
        .live(|l, v| l.query_buffer_bytes.set(v.int()))
        .doc("The longest request, all arguments together."),
    special(
        "client-output-buffer-limit",
        Kind::OutputLimits,
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
    )
    .live(set_limits)
    .doc("Unsent bytes a client may have, by class: hard limit, soft limit, seconds above the soft limit."),
    int("snapshot-max-age", 0, INT, "600")
        .unit("s")
        .live(|l, v| l.snapshot_age_s.set(v.int()))
        .doc("Time for which a long command may read the keys as they were at one moment; 0 is no limit."),
    memory("snapshot-max-retained", 0, "0")
        .live(|l, v| l.snapshot_retained_bytes.set(v.int()))
        .doc("Memory kept only for long commands and streamed replies; 0 is a quarter of maxmemory, or of the machine's memory."),
    memory("reclaim-max-pending", 0, "0")
        .live(|l, v| l.reclaim_pending_bytes.set(v.int()))
        .doc("Removed data not freed yet, above which clients that remove more wait; 0 is an eighth of maxmemory, or of the machine's memory."),
    memory("work-max-memory", 0, "0")
        .live(|l, v| l.work_max_bytes.set(v.int()))
        .doc("Memory of all scripts, transactions and long commands beside the data; 0 is a quarter of maxmemory, or of the machine's memory."),
    special("maxmemory-clients", MemoryOrPercent, "0")
        .live(|l, v| l.set_clients_max(v))
        .doc("Memory all connections together may take, or a percentage of maxmemory; above it the largest are closed. 0 is no limit."),
    int("tracking-table-max-keys", 0, LONG, "1000000")
        .live(|l, v| l.tracking_max_keys.set(v.int()))
        .doc("Keys remembered for client-side caches; one more has another dropped, and its readers told. 0 is no limit."),
];

const MEMORY: &[Directive] = &[
    special("maxmemory", Kind::MemoryLimit, "0")
        .unit("bytes")
        .live(|l, v| l.maxmemory_bytes.set(v.int()))
        .doc("Memory the server may use: bytes, a share of the container's or machine's memory (75%), or auto for 75%; 0 is no limit."),
    choice("maxmemory-policy", POLICIES, "noeviction")
        .live(|l, v| l.maxmemory_policy.set(v.int()))
        .doc("Which keys are evicted when memory is full."),
    int("maxmemory-samples", 1, INT, "5")
        .live(|l, v| l.maxmemory_samples.set(v.int()))
        .doc("Keys compared by volatile-ttl, 16 to 64; the lru and lfu policies always compare 64."),
    int("maxmemory-eviction-tenacity", 0, 100, "10")
        .accepted("evictions are done in slices that delay no client")
        .doc("Effort of eviction."),
    int("lfu-log-factor", 0, INT, "10")
        .accepted(OWN_COUNT)
        .doc("How slowly a key's frequency counter grows."),
    int("lfu-decay-time", 0, INT, "1")
        .unit("minutes")
        .accepted(OWN_COUNT)
        .doc("Time after which a key's frequency counter is lowered."),
    special("active-expire-effort", Kind::Int { min: 1, max: 10 }, "1")
        .live(|l, v| l.active_expire_effort.set(v.int()))
        .doc("How eagerly expired keys are removed, 1 to 10."),
    flag("lazyfree-lazy-eviction", "no").accepted(NEVER_INLINE).doc("Free evicted values in the background."),
    flag("lazyfree-lazy-expire", "no").accepted(NEVER_INLINE).doc("Free expired values in the background."),
    flag("lazyfree-lazy-server-del", "no")
        .accepted(NEVER_INLINE)
        .doc("Free overwritten values in the background."),
    flag("lazyfree-lazy-user-del", "no").accepted(NEVER_INLINE).doc("Make DEL free in the background."),
    flag("lazyfree-lazy-user-flush", "no")
        .accepted(NEVER_INLINE)
        .doc("Make FLUSHALL free in the background."),
    flag("activerehashing", "yes")
        .accepted("tables grow and shrink in small segments, never as a whole")
        .doc("Move entries to a resized table in idle time."),
    flag("dict-resizing", "yes")
        .accepted("tables grow and shrink in small segments, never as a whole")
        .doc("Let tables resize."),
    flag("activedefrag", "no")
        .only(&["no"], "active defragmentation is not supported")
        .doc("Compact memory while running."),
    memory("active-defrag-ignore-bytes", 1, "104857600")
        .accepted(NO_DEFRAG)
        .doc("Waste below which nothing is compacted."),
    int("active-defrag-threshold-lower", 0, 1000, "10")
        .unit("percent")
        .accepted(NO_DEFRAG)
        .doc("Waste from which memory is compacted."),
    int("active-defrag-threshold-upper", 0, 1000, "100")
        .unit("percent")
        .accepted(NO_DEFRAG)
        .doc("Waste from which memory is compacted with full effort."),
    int("active-defrag-cycle-min", 1, 99, "1")
        .unit("percent")
        .accepted(NO_DEFRAG)
        .doc("Least effort of compaction."),
    int("active-defrag-cycle-max", 1, 99, "25")
        .unit("percent")
        .accepted(NO_DEFRAG)
        .doc("Full effort of compaction."),
    int("active-defrag-cycle-us", 0, 100_000, "500")
        .unit("us")
        .accepted(NO_DEFRAG)
        .doc("Longest piece of compaction."),
    int("active-defrag-max-scan-fields", 1, LONG, "1000")
        .accepted(NO_DEFRAG)
        .doc("Elements compacted at once."),
];

const ENCODINGS: &[Directive] = &[
    int("hash-max-listpack-entries", 0, LONG, "512")
        .aka(&["hash-max-ziplist-entries"])
        .live(|_, v| limits::HASH_MAX_LISTPACK_ENTRIES.set(v.int() as usize))
        .doc("Fields up to which OBJECT ENCODING calls a hash a listpack."),
    int("hash-max-listpack-value", 0, LONG, "64")
        .aka(&["hash-max-ziplist-value"])
        .unit("bytes")
        .live(|_, v| limits::HASH_MAX_LISTPACK_VALUE.set(v.int() as usize))
        .doc("The longest value in a hash that is called a listpack."),
    int("list-max-listpack-size", -INT - 1, INT, "-2")
        .aka(&["list-max-ziplist-size"])
        .live(|_, v| limits::set_list_max_listpack_size(v.int()))
        .doc("Items, or size class from -1 to -5, up to which a list is called a listpack."),
    int("lscan-max-age", 0, INT, "3600")
        .unit("seconds")
        .live(|_, v| keyspace::cursors::MAX_AGE_S.store(v.int() as u64, Ordering::Relaxed))
        .doc("How long the snapshot of an LSCAN with STABLE is kept; 0 is no limit."),
    memory("lscan-max-bytes", 0, "1073741824")
        .live(|_, v| keyspace::cursors::MAX_BYTES.store(v.int() as usize, Ordering::Relaxed))
        .doc("Bytes that lists kept for LSCAN with STABLE may take; above it, the oldest go; 0 is no limit."),
    int("list-compress-depth", 0, INT, "0")
        .accepted("list items are never compressed")
        .doc("Items at either end that stay uncompressed."),
    int("set-max-intset-entries", 0, LONG, "512")
        .live(|_, v| limits::SET_MAX_INTSET_ENTRIES.set(v.int() as usize))
        .doc("Members up to which a set of integers is called an intset."),
    int("set-max-listpack-entries", 0, LONG, "128")
        .live(|_, v| limits::SET_MAX_LISTPACK_ENTRIES.set(v.int() as usize))
        .doc("Members up to which a set is called a listpack."),
    int("set-max-listpack-value", 0, LONG, "64")
        .unit("bytes")
        .live(|_, v| limits::SET_MAX_LISTPACK_VALUE.set(v.int() as usize))
        .doc("The longest member in a set that is called a listpack."),
    int("zset-max-listpack-entries", 0, LONG, "128")
        .aka(&["zset-max-ziplist-entries"])
        .live(|_, v| limits::ZSET_MAX_LISTPACK_ENTRIES.set(v.int() as usize))
        .doc("Members up to which a sorted set is called a listpack."),
    int("zset-max-listpack-value", 0, LONG, "64")
        .aka(&["zset-max-ziplist-value"])
        .unit("bytes")
        .live(|_, v| limits::ZSET_MAX_LISTPACK_VALUE.set(v.int() as usize))
        .doc("The longest member in a sorted set that is called a listpack."),
    memory("hll-sparse-max-bytes", 0, "3000")
        .live(|_, v| command::set_sparse_max_bytes(v.int().max(0) as usize))
        .doc("Size up to which a HyperLogLog stays sparse."),
    memory("stream-node-max-bytes", 0, "4096")
        .live(|_, v| limits::STREAM_NODE_MAX_BYTES.set(v.int() as usize))
        .doc("Size of one piece of a stream. Trims with ~ take whole pieces."),
    int("stream-node-max-entries", 0, LONG, "100")
        .live(|_, v| limits::STREAM_NODE_MAX_ENTRIES.set(v.int() as usize))
        .doc("Entries in one piece of a stream. Trims with ~ take whole pieces."),
    int("stream-idmp-duration", 1, 86_400, "100")
        .unit("s")
        .live(|_, v| limits::STREAM_IDMP_DURATION.set(v.int() as usize))
        .doc("How long a stream remembers messages of idempotent producers, unless XCFGSET said otherwise."),
    int("stream-idmp-maxsize", 1, 10_000, "100")
        .live(|_, v| limits::STREAM_IDMP_MAXSIZE.set(v.int() as usize))
        .doc("Messages that it remembers of each producer."),
];

const EVENTS: &[Directive] = &[
    int("busy-reply-threshold", 0, LONG, "5000")
        .aka(&["lua-time-limit"])
        .unit("ms")
        .live(|l, v| l.busy_reply_ms.set(v.int()))
        .doc("Has no effect: no client is answered BUSY, and SCRIPT KILL may end a long script at any time."),
    int("script-max-time", 0, LONG, "0")
        .unit("ms")
        .live(|l, v| l.script_max_ms.set(v.int()))
        .doc("Run time after which a script is ended, as by SCRIPT KILL; 0 is no limit."),
    int("script-orphan-time", 0, LONG, "5000")
        .unit("ms")
        .live(|l, v| l.script_orphan_ms.set(v.int()))
        .doc("Time a script goes on after its client has gone, unless its place is needed; 0 is no limit."),
    memory("lua-memory-limit", 0, "1073741824")
        .live(|l, v| l.lua_memory_bytes.set(v.int()))
        .doc("Memory one script may take before it fails with \"not enough memory\"; 0 is no limit."),
    flag("lua-enable-insecure-api", "no")
        .aka(&["lua-enable-deprecated-api"])
        .only(&["no"], "unsafe Lua functions are not available to scripts")
        .doc("Give scripts Lua's unsafe functions."),
    special("notify-keyspace-events", Kind::Notify, "")
        .live(|l, v| l.notify.set(v.int()))
        .doc("Published events: K and E choose the channels, g $ l s h z x e t d m n or A the events."),
    special("hz", Clamped { min: 1, max: 500 }, "10")
        .live(|l, v| l.hz.set(v.int()))
        .unit("per second")
        .accepted("background work follows need, not a fixed beat")
        .doc("How often background work runs."),
    flag("dynamic-hz", "yes")
        .accepted("background work follows need, not a fixed beat")
        .doc("Run background work more often with more clients."),
];

const MEASURING: &[Directive] = &[
    int("slowlog-log-slower-than", -1, LONG, "10000")
        .aka(&["commandlog-execution-slower-than"])
        .unit("us")
        .live(|l, v| l.slowlog_slower_us.set(v.int()))
        .doc("Run time from which a command enters SLOWLOG; 0 logs all, -1 none."),
    int("slowlog-max-len", 0, LONG, "128")
        .aka(&["commandlog-slow-execution-max-len"])
        .live(|l, v| l.slowlog_max_len.set(v.int()))
        .doc("Entries SLOWLOG keeps."),
    int("commandlog-request-larger-than", -1, LONG, "1048576")
        .unit("bytes")
        .live(|l, v| l.large_request_bytes.set(v.int()))
        .doc("Bytes of a request from which it enters COMMANDLOG; 0 logs all, -1 none."),
    int("commandlog-large-request-max-len", 0, LONG, "128")
        .live(|l, v| l.large_requests_max.set(v.int()))
        .doc("Large requests COMMANDLOG keeps."),
    int("commandlog-reply-larger-than", -1, LONG, "1048576")
        .unit("bytes")
        .live(|l, v| l.large_reply_bytes.set(v.int()))
        .doc("Bytes of a reply from which it enters COMMANDLOG; 0 logs all, -1 none."),
    int("commandlog-large-reply-max-len", 0, LONG, "128")
        .live(|l, v| l.large_replies_max.set(v.int()))
        .doc("Large replies COMMANDLOG keeps."),
    int("latency-monitor-threshold", 0, LONG, "0")
        .unit("ms")
        .live(|l, v| l.latency_threshold_ms.set(v.int()))
        .doc("Delay from which LATENCY remembers an event; 0 is off."),
    flag("latency-tracking", "yes")
        .live(|l, v| l.latency_tracking.set(v.is_yes()))
        .doc("Keep a histogram of run times per command."),
    memory("history-max-memory", 0, "16777216")
        .live(|l, v| l.history_max_bytes.set(v.int()))
        .doc("Memory for what the server did: seconds of a day, minutes of a week, who made whom wait. Kept in dir as well, if data are; 0 keeps nothing."),
    text("otlp-endpoint", "")
        .startup()
        .live(|l, v| l.otlp_endpoint.set(&Kind::Text.shown(v)))
        .doc("Address of a collector of OpenTelemetry that is sent the figures of /metrics, http://host:4318/v1/metrics; empty sends none."),
    int("otlp-period", 1, 86400, "15")
        .unit("seconds")
        .live(|l, v| l.otlp_period_s.set(v.int()))
        .doc("Time between two sendings of the figures to otlp-endpoint."),
    choice("watch-neighbours", WATCHES, "auto")
        .live(|l, v| l.watch_neighbours.set(v.int()))
        .doc(
            "Name the programs that take the processor from an event loop: auto (from the first time, until five minutes \
             pass without), always (costs 1 us per task switch of the machine) or no. Needs CAP_PERFMON.",
        ),
    special("latency-tracking-info-percentiles", Kind::Percentiles, "50 99 99.9")
        .live(|l, v| l.latency_percentiles.set(&Kind::Percentiles.shown(v)))
        .doc("Percentiles shown in INFO latencystats."),
];

const SECURITY: &[Directive] = &[
    text("requirepass", "")
        .secret()
        .live(|l, v| l.requirepass.set(&Kind::Text.shown(v)))
        .doc("Password clients must give with AUTH; empty is none."),
    text("aclfile", "")
        .startup()
        .live(|l, v| l.aclfile.set(&Kind::Text.shown(v)))
        .doc("File with users and their permissions."),
    int("acllog-max-len", 0, LONG, "128")
        .live(|l, v| l.acllog_max_len.set(v.int()))
        .doc("Entries the ACL log keeps."),
    choice("acl-pubsub-default", &["allchannels", "resetchannels"], "resetchannels")
        .live(|l, v| l.acl_pubsub_default.set(v.int()))
        .doc("Channels a new user may use."),
    choice("enable-debug-command", ACCESS, "no")
        .startup()
        .live(|l, v| l.debug_command.set(v.int()))
        .doc("Who may use DEBUG."),
    choice("enable-module-command", ACCESS, "no")
        .startup()
        .accepted("there are no modules")
        .doc("Who may use MODULE."),
    choice("enable-protected-configs", ACCESS, "no")
        .startup()
        .live(|l, v| l.protected_configs.set(v.int()))
        .doc("Who may change directives that touch files, and add sources."),
    special("source-dirs", Words, "")
        .protected()
        .live(|_, v| mapping::folders::set(&String::from_utf8_lossy(&Kind::Words.shown(v))))
        .doc("Folders in which files of sources may be; empty means anywhere."),
];

const SNAPSHOTS: &[Directive] = &[
    special("save", Kind::SavePoints, "3600 1 300 100 60 10000")
        .live(|l, v| l.save_points.set(&Kind::SavePoints.shown(v)))
        .doc("When to write a snapshot: after so many seconds and changes; \"\" writes none."),
    flag("stop-writes-on-bgsave-error", "yes")
        .live(|l, v| l.stop_writes_on_save_error.set(v.is_yes()))
        .doc("Refuse writes after a failed snapshot, while there are save points."),
    flag("rdbcompression", "yes")
        .live(|_, v| command::serial::set_compression(v.is_yes()))
        .doc("Compress strings in snapshots and DUMP payloads."),
    flag("rdbchecksum", "yes")
        .startup()
        .live(|l, v| l.rdb_checksum.set(v.is_yes()))
        .doc("Put a checksum into snapshots."),
    choice("rdb-version", RDB_VERSIONS, "auto")
        .live(|l, v| l.rdb_version.set(v.int()))
        .doc("Version of snapshots; auto is the lowest that carries the data."),
    choice("rdb-dialect", &["redis", "valkey"], "redis")
        .live(|l, v| l.rdb_dialect.set(v.int()))
        .doc("For which servers fields that expire are written into snapshots."),
    memory("save-rate-limit", 0, "0")
        .unit("bytes/s")
        .live(|l, v| l.save_rate_bytes.set(v.int()))
        .doc("Bytes a second that a snapshot writes at most; 0 is no limit."),
    memory("save-max-retained", 0, "0")
        .live(|l, v| l.save_retained_bytes.set(v.int()))
        .doc("Replaced data kept for a snapshot that is being taken; 0 is a tenth of the memory in use, and at least 64 MB."),
    choice("foreign-types", &["write", "fail", "skip"], "write")
        .live(|l, v| l.foreign_types.set(v.int()))
        .doc("What a snapshot does with values of types that other servers know from a module only."),
    choice("load-damaged", &["refuse", "keep-prefix"], "refuse")
        .startup()
        .live(|l, v| l.load_damaged.set(v.int()))
        .doc("Whether a damaged snapshot is loaded up to its damage; the rest is kept beside it."),
    choice("load-unknown", &["refuse", "skip"], "refuse")
        .startup()
        .live(|l, v| l.load_unknown.set(v.int()))
        .doc("Whether keys of types that are not supported are left out when a file is loaded."),
    choice("rdb-version-check", &["strict", "relaxed"], "strict")
        .accepted("a snapshot of an unknown version is always refused")
        .doc("Refuse snapshots of newer versions."),
    choice("sanitize-dump-payload", &["no", "yes", "clients"], "no")
        .accepted("serialized values are always checked")
        .doc("Check serialized values in depth."),
    text("dbfilename", "dump.rdb")
        .protected()
        .live(|l, v| l.dbfilename.set(&Kind::Text.shown(v)))
        .doc("Name of the snapshot file."),
    flag("rdb-del-sync-files", "no").accepted(NAMELESS).doc("Remove snapshots made for replicas."),
    flag("rdb-save-incremental-fsync", "yes")
        .accepted("a snapshot is always flushed piece by piece")
        .doc("Flush a snapshot piece by piece."),
];

const APPEND_ONLY: &[Directive] = &[
    flag("appendonly", "no")
        .prepared()
        .live(|l, v| l.appendonly.set(v.is_yes()))
        .doc("Keep a log of writes, from which the next start goes on."),
    text("appendfilename", "appendonly.aof")
        .startup()
        .live(|l, v| l.appendfilename.set(&Kind::Text.shown(v)))
        .doc("Begin of the names of the log's files."),
    text("appenddirname", "appendonlydir")
        .startup()
        .live(|l, v| l.appenddirname.set(&Kind::Text.shown(v)))
        .doc("Directory of the log, in dir."),
    choice("appendfsync", APPENDFSYNC, "everysec")
        .live(|l, v| l.appendfsync.set(v.int()))
        .doc("When the log is made durable: before each reply to a write, each second, or when the system likes."),
    choice("aof-preallocate", &["auto", "yes", "no"], "auto")
        .live(|l, v| l.aof_preallocate.set(v.int()))
        .doc("Prepare the log's file ahead with lines that are skipped; auto does so under 'appendfsync always'."),
    memory("log-pending-soft", MB, "33554432")
        .live(|l, v| l.log_pending_bytes.set(v.int()))
        .doc("Bytes that may wait for the log before clients that write are held."),
    memory("log-pending-hard", MB, "134217728")
        .live(|l, v| l.log_pending_max_bytes.set(v.int()))
        .doc("Bytes that may wait for the log before writes are refused."),
    memory("log-unsynced-max", MB, "67108864")
        .live(|l, v| l.log_unsynced_bytes.set(v.int()))
        .doc("Bytes of the log that are kept in memory until they are durable, in case a flush fails."),
    int("log-stuck", 1, INT, "10")
        .unit("seconds")
        .live(|l, v| l.log_stuck_s.set(v.int()))
        .doc("Time without a write of the log, though some wait, before writes are refused."),
    flag("no-appendfsync-on-rewrite", "no")
        .accepted("a rewrite never holds up the log")
        .doc("Do not flush during a rewrite."),
    int("auto-aof-rewrite-percentage", 0, INT, "100")
        .unit("percent")
        .live(|l, v| l.aof_rewrite_percentage.set(v.int()))
        .doc("Growth from which the log is written anew; 0 is never."),
    memory("auto-aof-rewrite-min-size", 0, "67108864")
        .live(|l, v| l.aof_rewrite_min_bytes.set(v.int()))
        .doc("Size from which the log is written anew."),
    flag("aof-load-truncated", "yes")
        .live(|l, v| l.aof_load_truncated.set(v.is_yes()))
        .doc("Cut off a torn end of the log at the start, instead of refusing to start."),
    int("aof-load-corrupt-tail-max-size", 0, LONG, "0")
        .unit("bytes")
        .only(&["0"], "damage before the torn end of the log is never cut off by itself (see evenkeel doctor)")
        .doc("Damaged bytes at the end that may be cut off."),
    flag("aof-use-rdb-preamble", "yes")
        .accepted("the log's base is always a snapshot")
        .doc("Start the log with a snapshot."),
    flag("aof-timestamp-enabled", "no")
        .accepted("the log's own lines say where each batch ends")
        .doc("Write times into the log."),
    flag("aof-rewrite-incremental-fsync", "yes")
        .accepted("a base is always flushed piece by piece")
        .doc("Flush a rewrite piece by piece."),
    flag("aof-disable-auto-gc", "no")
        .only(&["no"], "files that the log does not need any more are always removed")
        .doc("Keep old files."),
];

const REPLICATION: &[Directive] = &[
    special("replicaof", Kind::ReplicaOf, "")
        .aka(&["slaveof"])
        .startup()
        .live(|l, v| l.replicaof.set(&Kind::ReplicaOf.shown(v)))
        .doc("The server to copy: its address and port."),
    text("masterauth", "")
        .aka(&["primaryauth"])
        .secret()
        .live(|l, v| l.masterauth.set(&Kind::Text.shown(v)))
        .doc("Password of the server to copy."),
    text("masteruser", "")
        .aka(&["primaryuser"])
        .live(|l, v| l.masteruser.set(&Kind::Text.shown(v)))
        .doc("User at the server to copy; empty is its default user."),
    flag("replica-serve-stale-data", "yes")
        .aka(&["slave-serve-stale-data"])
        .live(|l, v| l.serves_stale.set(v.is_yes()))
        .doc("Answer while the connection to the primary is down."),
    flag("replica-read-only", "yes")
        .aka(&["slave-read-only"])
        .live(|l, v| l.replica_read_only.set(v.is_yes()))
        .doc("Refuse writes on a replica."),
    int("replica-priority", 0, INT, "100")
        .aka(&["slave-priority"])
        .live(|l, v| l.replica_priority.set(v.int()))
        .doc("Preference as a new primary: sentinels take the lowest; 0 never."),
    flag("replica-announced", "yes")
        .live(|l, v| l.replica_announced.set(v.is_yes()))
        .doc("Tell sentinels about this replica."),
    text("replica-announce-ip", "")
        .aka(&["slave-announce-ip"])
        .live(|l, v| l.replica_announce_ip.set(&Kind::Text.shown(v)))
        .doc("Address of this replica to tell others."),
    int("replica-announce-port", 0, 65535, "0")
        .aka(&["slave-announce-port"])
        .live(|l, v| l.replica_announce_port.set(v.int()))
        .doc("Port of this replica to tell others; 0 is its own."),
    flag("replica-ignore-maxmemory", "yes")
        .aka(&["slave-ignore-maxmemory"])
        .accepted("a replica never evicts by itself")
        .doc("Leave eviction to the primary."),
    flag("replica-ignore-disk-write-errors", "no")
        .accepted("a replica whose log fails takes nothing further of its primary until it writes again").doc("Go on when the disk fails."),
    flag("replica-lazy-flush", "no")
        .aka(&["slave-lazy-flush"])
        .accepted(NEVER_INLINE)
        .doc("Free the old data in the background."),
    memory("replica-full-sync-buffer-limit", 0, "0")
        .accepted("writes that arrive meanwhile wait in the primary")
        .doc("Memory for writes that arrive during a full copy."),
    flag("dual-channel-replication-enabled", "no")
        .accepted(ONE_CHANNEL)
        .doc("Copy over a second connection."),
    flag("repl-rdb-channel", "no").accepted(ONE_CHANNEL).doc("Copy over a second connection."),
    flag("repl-mptcp", "no").startup().accepted("links are plain TCP connections").doc("Copy over multipath TCP."),
    flag("repl-diskless-sync", "yes").accepted(NAMELESS).doc("Send the snapshot without a file."),
    int("repl-diskless-sync-delay", 0, INT, "5")
        .unit("seconds")
        .accepted(JOINS)
        .doc("Wait for more replicas before sending."),
    int("repl-diskless-sync-max-replicas", 0, INT, "0")
        .accepted(JOINS)
        .doc("Number of replicas that ends the wait of repl-diskless-sync-delay."),
    choice("repl-diskless-load", DISKLESS_LOAD, "auto")
        .live(|l, v| l.repl_diskless_load.set(v.int()))
        .doc("Load a full copy from the connection: beside the old data if memory allows, always so (swapdb), in \
              their place (flush-before-load), or by way of a file (disabled, on-empty-db if there are data)."),
    int("repl-ping-replica-period", 1, INT, "10")
        .aka(&["repl-ping-slave-period"])
        .unit("seconds")
        .live(|l, v| l.repl_ping_period_s.set(v.int()))
        .doc("How often replicas are pinged."),
    int("repl-timeout", 1, INT, "60")
        .unit("seconds")
        .live(|l, v| l.repl_timeout_s.set(v.int()))
        .doc("Silence after which the connection counts as lost."),
    flag("repl-disable-tcp-nodelay", "no")
        .accepted("what is told in one turn leaves in one piece").doc("Collect small packets."),
    memory("repl-backlog-size", 1, "16777216")
        .live(|l, v| l.repl_backlog_bytes.set(v.int()))
        .doc("Recent writes kept for replicas that return."),
    int("repl-backlog-ttl", 0, LONG, "3600")
        .unit("seconds")
        .live(|l, v| l.repl_backlog_ttl_s.set(v.int()))
        .doc("How long the backlog is kept without replicas."),
    int("min-replicas-to-write", 0, INT, "0")
        .aka(&["min-slaves-to-write"])
        .live(|l, v| l.min_replicas_to_write.set(v.int()))
        .doc("Number of replicas below which writes are refused."),
    int("min-replicas-max-lag", 0, INT, "10")
        .aka(&["min-slaves-max-lag"])
        .unit("seconds")
        .live(|l, v| l.min_replicas_max_lag_s.set(v.int()))
        .doc("Lag up to which a replica counts for min-replicas-to-write."),
    memory("repl-spool-max", 0, "4294967296")
        .live(|l, v| l.repl_spool_max_bytes.set(v.int()))
        .doc("Bytes on disk of writes that wait for replicas which still load; above it these start again. Also the bytes of a full copy in memory, where `dir` cannot be written."),
    flag("foreign-replicas", "no")
        .live(|l, v| l.foreign_replicas.set(v.is_yes()))
        .doc("Let servers follow that do not know Evenkeel's own types: such keys are left out for them."),
    choice("propagation-error-behavior", &["ignore", "panic", "panic-on-replicas"], "ignore")
        .accepted("errors of the stream are logged, and an unknown command ends the link")
        .doc("What to do when a propagated write fails."),
];

const TLS: &[Directive] = &[
    int("tls-port", 0, 65535, "0")
        .prepared()
        .live(|l, v| l.tls_port.set(v.int()))
        .doc("TCP port to serve TLS on; 0 serves none."),
    int("http-tls-port", 0, 65535, "0")
        .prepared()
        .live(|l, v| l.http_tls_port.set(v.int()))
        .doc("TCP port to serve HTTP over TLS on; 0 serves none."),
    text("tls-cert-file", "").prepared().doc("Certificate of the server, and those between it and its root."),
    text("tls-key-file", "").prepared().doc("Key of the certificate."),
    text("tls-key-file-pass", "").secret().prepared().doc("Password of the key, in the form of PKCS #8."),
    text("tls-ca-cert-file", "")
        .prepared()
        .doc("Certificates that those of clients, and of other servers, must come from."),
    text("tls-ca-cert-dir", "").prepared().doc("Directory of such certificates; all of its files are read."),
    choice("tls-auth-clients", &["no", "yes", "optional"], "yes")
        .prepared()
        .doc("Whether clients must show certificates."),
    choice("http-tls-auth-clients", &["same", "no", "yes", "optional"], "same")
        .prepared()
        .doc("The same over HTTP; same is as tls-auth-clients says."),
    choice("tls-auth-clients-user", &["off", "cn", "uri"], "off")
        .prepared()
        .doc("The name in a client's certificate that is its user's: the common name, or a URI."),
    text("tls-protocols", "").prepared().doc("TLSv1.2 and TLSv1.3, or one of them; empty means both."),
    text("tls-ciphers", "").prepared().doc("Ciphers of TLS 1.2, with colons between them; empty means all."),
    text("tls-ciphersuites", "")
        .prepared()
        .doc("Ciphers of TLS 1.3, with colons between them; empty means all."),
    flag("tls-prefer-server-ciphers", "no")
        .prepared()
        .doc("Choose the cipher by the order here, not the client's."),
    flag("tls-session-caching", "yes").prepared().doc("Let clients resume sessions."),
    int("tls-session-cache-size", 0, INT, "20480")
        .prepared()
        .doc("Sessions to remember of clients that take no tickets; 0 means 20480."),
    int("tls-session-cache-timeout", 0, INT, "300")
        .unit("seconds")
        .prepared()
        .doc("How long a session can be resumed; with a ticket, for up to twice that."),
    int("tls-auto-reload-interval", 0, INT, "0")
        .unit("seconds")
        .live(|l, v| l.tls_reload_s.set(v.int()))
        .doc("How often the files are read again; 0: only by CONFIG SET of one of them, and by SIGHUP."),
    int("tls-handshake-timeout", 1, 3600, "10")
        .unit("seconds")
        .live(|l, v| l.tls_handshake_s.set(v.int()))
        .doc("How long a handshake may take; one second while all places for handshakes are taken."),
    int("tls-handshakes-max", 1, 65536, "1024")
        .live(|l, v| l.tls_handshakes_max.set(v.int()))
        .doc("Handshakes under way at a time; further clients wait to be accepted."),
    int("tls-handshake-threads", 0, 16, "0")
        .startup()
        .live(|l, v| l.tls_handshake_threads.set(v.int()))
        .doc("Threads for handshakes; 0 means one for two cores, at most four."),
    text("tls-dh-params-file", "").accepted(NO_DH).doc("Parameters of the key exchange."),
    flag("tls-cluster", "no").prepared().doc("TLS for connections that MIGRATE opens to other servers."),
    flag("tls-replication", "no").prepared().doc("TLS to the server to copy."),
    text("tls-client-cert-file", "")
        .prepared()
        .doc("Certificate to show to other servers; empty means that of tls-cert-file."),
    text("tls-client-key-file", "").prepared().doc("Key of that certificate."),
    text("tls-client-key-file-pass", "").secret().prepared().doc("Password of that key."),
    int("max-new-tls-connections-per-cycle", 1, 1000, "1")
        .accepted("handshakes are on threads of their own")
        .doc("TLS connections accepted in one turn of a loop."),
];

fn set_limits(live: &super::live::Live, value: &super::kind::Parsed) {
    if let super::kind::Parsed::Limits(limits) = value {
        for (limit, [hard, soft, seconds]) in live.output_limits.iter().zip(limits) {
            limit.hard_bytes.set(*hard);
            limit.soft_bytes.set(*soft);
            limit.soft_s.set(*seconds);
        }
    }
}
