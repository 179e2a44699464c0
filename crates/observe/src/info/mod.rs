//! INFO: writes figures collected elsewhere in the form that monitoring tools read.
//!
//! ```text
//! exec fills Snapshot ──▶ Sections::wanted(args) ──▶ text: "# Section\r\n" and "name:value\r\n" lines
//! ```
//!
//! Names and forms are those of Redis 7.2, which redis_exporter and client libraries look for. Features that
//! do not exist here (replicas) show the figures of a server that never used them. Figures
//! of our own stand mostly in the section `evenkeel`.
//!
//! Cost: O(commands + errors + databases).

mod following;
mod host;
mod lost;
mod persistence;
mod replication;

pub use following::Following;
pub use host::{Cpu, Host, cpu, machine_bytes, process_cpu_s, random_id, resident_bytes};
pub use lost::{LostFile, LostWrite};
pub use persistence::{Aof, Loading, Persistence, Saving};
pub use replication::{Replica, Replication};

use crate::stats::{CommandTotals, Counter, Registry, Speeds};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// The version of Redis whose commands and replies are followed.
pub const REDIS_VERSION: &str = "7.4.0";
pub const EVENKEEL_VERSION: &str = env!("CARGO_PKG_VERSION");

/// All figures of INFO. A field that is not filled shows as zero.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub server: Server,
    pub clients: Clients,
    pub memory: Memory,
    pub stats: Stats,
    pub cpu: Cpu,
    pub persistence: Persistence,
    pub replication: Replication,
    /// None: it leads.
    pub following: Option<Following>,
    pub is_cluster: bool,
    /// Commands that ran or were refused: name (sub-commands as `config|get`) and counters.
    pub commands: Vec<(String, CommandTotals)>,
    /// A command's name, and its percentiles as (percent, µs).
    pub latencies: Vec<(String, Vec<(f64, f64)>)>,
    pub errors: BTreeMap<Box<str>, u64>,
    /// Name and value of each line of the section `keysizes`.
    pub key_sizes: Vec<(String, String)>,
    /// Databases; those without keys are not shown.
    pub databases: Vec<Database>,
    /// Further lines for the section `evenkeel`.
    pub evenkeel: Vec<(&'static str, u64)>,
}

#[derive(Clone, Debug, Default)]
pub struct Server {
    pub run_id: String,
    pub os: String,
    pub executable: String,
    pub config_file: String,
    pub availability_zone: String,
    pub pid: u32,
    /// Without TLS and with it; 0: none.
    pub ports: [u16; 2],
    pub now_unix_us: u64,
    pub uptime_s: u64,
    pub hz: u64,
    pub event_loops: u64,
    /// Deliveries to subscribers under way, and messages that wait for their turn.
    pub messages_under_way: u64,
    pub multiplexing: &'static str,
}

#[derive(Clone, Debug, Default)]
pub struct Clients {
    pub connected: u64,
    pub max: u64,
    pub blocked: u64,
    pub tracking: u64,
    pub tracked_keys: u64,
    pub tracked_items: u64,
    pub tracked_prefixes: u64,
    pub pubsub: u64,
    pub watching: u64,
    /// Blocked with a time limit.
    pub in_timeout_table: u64,
    pub watched_keys: u64,
    pub blocking_keys: u64,
    pub recent_max_input_bytes: u64,
    pub recent_max_output_bytes: u64,
    /// Why clients are paused, until when (milliseconds since 1970), and whether with all commands.
    pub pause: Option<(&'static str, u64, bool)>,
}

/// Bytes.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Handed out by the allocator and not yet returned.
    pub used: u64,
    pub peak: u64,
    /// Memory in use just after the start.
    pub startup: u64,
    /// Memory used for other than keys and values.
    pub overhead: u64,
    pub resident: u64,
    pub system: u64,
    pub max: u64,
    pub policy: String,
    pub scripts: u64,
    pub script_count: u64,
    pub evicted_scripts: u64,
    pub functions: u64,
    pub function_count: u64,
    pub library_count: u64,
    /// Memory that Lua holds for scripts; the next field is that for functions.
    pub lua: u64,
    pub lua_functions: u64,
    pub clients: u64,
    /// Bytes of keys of sources' changed rows that wait to be removed.
    pub source_changes: u64,
    /// Memory held by long work beside the data; then its limit (0: none), and how often the limit refused
    /// more.
    pub work: u64,
    pub work_max: u64,
    pub work_refused: u64,
    /// Dropped values whose memory is not yet given back.
    pub reclaim_pending: u64,
    pub reclaimed_objects: u64,
    pub allocator: Allocator,
}

/// The allocator's own figures, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator {
    pub allocated: u64,
    pub active: u64,
    pub resident: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub connections: u64,
    pub rejected_connections: u64,
    pub commands: u64,
    pub commands_per_s: f64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    pub input_kb_per_s: f64,
    pub output_kb_per_s: f64,
    pub expired_keys: u64,
    pub expired_fields: u64,
    pub expire_cycle_ms: u64,
    pub evicted_keys: u64,
    /// Milliseconds for which `maxmemory` has been exceeded: this time, and in all.
    pub exceeded_ms: (u64, u64),
    pub keyspace_hits: u64,
    pub keyspace_misses: u64,
    pub pubsub_channels: u64,
    pub pubsub_patterns: u64,
    pub pubsubshard_channels: u64,
    pub error_replies: u64,
    pub reads: u64,
    pub writes: u64,
    pub auth_denied: u64,
    /// Calls denied because of the command, a key, a channel.
    pub acl_denied: [u64; 4],
    pub query_buffer_disconnections: u64,
    pub output_buffer_disconnections: u64,
    pub evicted_clients: u64,
    pub loop_cycles: u64,
    pub loop_duration_us: u64,
    pub loop_commands_us: u64,
    pub cycles_per_s: f64,
    pub cycle_us: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Database {
    pub number: usize,
    pub keys: u64,
    pub expires: u64,
    pub avg_ttl_ms: u64,
}

impl Stats {
    /// Adds up the counters of all threads. The caller fills the figures of pub/sub and of eviction. Cost: as
    /// [`Registry::counter`].
    pub fn of(registry: &Registry, speeds: Speeds) -> Stats {
        let count = |counter| registry.counter(counter);
        Stats {
            connections: count(Counter::ConnectionsReceived),
            rejected_connections: count(Counter::ConnectionsRejected),
            commands: count(Counter::CommandsProcessed),
            commands_per_s: speeds.commands,
            input_bytes: count(Counter::NetInputBytes),
            output_bytes: count(Counter::NetOutputBytes),
            input_kb_per_s: speeds.input_kb,
            output_kb_per_s: speeds.output_kb,
            expired_keys: count(Counter::ExpiredKeys),
            expired_fields: count(Counter::ExpiredFields),
            expire_cycle_ms: count(Counter::ExpireCycleUs) / 1000,
            keyspace_hits: count(Counter::KeyspaceHits),
            keyspace_misses: count(Counter::KeyspaceMisses),
            error_replies: count(Counter::ErrorReplies),
            reads: count(Counter::ReadsProcessed),
            writes: count(Counter::WritesProcessed),
            auth_denied: count(Counter::AuthDenied),
            query_buffer_disconnections: count(Counter::QueryBufferDisconnections),
            output_buffer_disconnections: count(Counter::OutputBufferDisconnections),
            evicted_clients: count(Counter::EvictedClients),
            loop_cycles: count(Counter::LoopCycles),
            loop_duration_us: count(Counter::LoopDurationNs) / 1000,
            loop_commands_us: count(Counter::LoopCommandsNs) / 1000,
            cycles_per_s: speeds.cycles,
            cycle_us: speeds.cycle_us,
            ..Stats::default()
        }
    }
}

impl Snapshot {
    /// Fills commands, latencies and errors from the counters. `names` are those of the command table.
    ///
    /// Cost: O(threads · commands used). With `percentiles`, also some microseconds for each command's
    /// histogram.
    pub fn count_commands(&mut self, registry: &Registry, names: &[&str], percentiles: Option<&[f64]>) {
        for (at, (name, totals)) in names.iter().zip(registry.commands()).enumerate() {
            if totals == CommandTotals::default() {
                continue;
            }
            let name = name.to_ascii_lowercase();
            let histogram = percentiles.map(|wanted| (wanted, registry.histogram(at)));
            if let Some((wanted, histogram)) = histogram.filter(|(_, h)| !h.is_empty()) {
                let at = |&p: &f64| (p, histogram.percentile(p) as f64 / 1000.0);
                self.latencies.push((name.clone(), wanted.iter().map(at).collect()));
            }
            self.commands.push((name, totals));
        }
        self.errors = registry.errors();
    }
}

type Writer = fn(&Snapshot, &mut Lines);

/// All sections in their order: name, heading, whether INFO without words shows it, and its writer.
const SECTIONS: [(&str, &str, bool, Writer); 15] = [
    ("server", "Server", true, server),
    ("clients", "Clients", true, clients),
    ("memory", "Memory", true, memory),
    ("persistence", "Persistence", true, |s, out| persistence::write(&s.persistence, out)),
    ("stats", "Stats", true, stats),
    ("replication", "Replication", true, replication),
    ("cpu", "CPU", true, cpu_section),
    ("modules", "Modules", true, |_, _| ()),
    ("commandstats", "Commandstats", false, commandstats),
    ("errorstats", "Errorstats", true, errorstats),
    ("latencystats", "Latencystats", false, latencystats),
    ("cluster", "Cluster", true, |s, out| out.line("cluster_enabled", u8::from(s.is_cluster))),
    ("evenkeel", "Evenkeel", true, evenkeel),
    ("keyspace", "Keyspace", true, keyspace),
    (KEY_SIZES, "Keysizes", false, |s, out| s.key_sizes.iter().for_each(|(name, text)| out.line(name, text))),
];

/// The section that is shown only where its name is given, as all keys are visited for it.
const KEY_SIZES: &str = "keysizes";

/// The sections an INFO asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections(u16);

impl Sections {
    /// Reads the words after INFO: names of sections, `all`, `everything`, `default`. No word means
    /// `default`; unknown names are ignored.
    pub fn wanted<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Sections {
        let unasked =
            |mask, (at, (_, _, shown, _)): (usize, &(_, _, bool, _))| mask | u16::from(*shown) << at;
        let default: u16 = SECTIONS.iter().enumerate().fold(0, unasked);
        let all: u16 = SECTIONS
            .iter()
            .enumerate()
            .fold(0, |mask, (at, (name, ..))| mask | u16::from(*name != KEY_SIZES) << at);
        let mut words = words.into_iter().peekable();
        if words.peek().is_none() {
            return Sections(default);
        }
        Sections(words.fold(0, |mask, word| {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            match () {
                () if is("all") || is("everything") => mask | all,
                () if is("default") => mask | default,
                () => mask | SECTIONS.iter().position(|(name, ..)| is(name)).map_or(0, |at| 1 << at),
            }
        }))
    }

    /// Whether a section is asked for. The figures of `commandstats`, `latencystats` and `keyspace` cost
    /// enough to be collected only then.
    pub fn has(self, name: &str) -> bool {
        SECTIONS.iter().enumerate().any(|(at, (known, ..))| *known == name && self.0 >> at & 1 == 1)
    }

    /// The text of these sections.
    pub fn text(self, snapshot: &Snapshot) -> String {
        let mut out = Lines(String::with_capacity(8192));
        for (_, heading, _, write) in SECTIONS.iter().filter(|(name, ..)| self.has(name)) {
            if !out.0.is_empty() {
                out.0.push_str("\r\n");
            }
            let _ = write!(out.0, "# {heading}\r\n");
            write(snapshot, &mut out);
        }
        out.0
    }
}

/// Lines being written.
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.0, "{name}:{value}\r\n");
    }

    /// Writes several integers, a line each.
    fn lines(&mut self, lines: &[(&str, u64)]) {
        lines.iter().for_each(|(name, value)| self.line(name, value));
    }

    /// Writes bytes twice: as a number, and with a unit.
    fn bytes(&mut self, name: &str, bytes: u64) {
        self.line(name, bytes);
        let _ = write!(self.0, "{name}_human:{}\r\n", human(bytes));
    }

    /// Writes the quotient of `part` and `whole`, and their difference in bytes.
    fn ratio(&mut self, name: &str, part: u64, whole: u64) {
        let _ = write!(self.0, "{name}_ratio:{:.2}\r\n", ratio(part, whole));
        let _ = write!(self.0, "{}_bytes:{}\r\n", name, part as i64 - whole as i64);
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Bytes with a unit, as INFO writes them.
pub fn human(bytes: u64) -> String {
    let units = ["B", "K", "M", "G", "T", "P"];
    let unit = (0..units.len() - 1).find(|u| bytes >> (10 * (u + 1)) == 0).unwrap_or(units.len() - 1);
    match unit {
        0 => format!("{bytes}B"),
        _ => format!("{:.2}{}", bytes as f64 / (1u64 << (10 * unit)) as f64, units[unit]),
    }
}

fn server(s: &Snapshot, out: &mut Lines) {
    let server = &s.server;
    out.line("redis_version", REDIS_VERSION);
    out.line("evenkeel_version", EVENKEEL_VERSION);
    out.line("server_name", "evenkeel");
    out.line("redis_git_sha1", "00000000");
    out.line("redis_git_dirty", 0);
    out.line("redis_build_id", format_args!("evenkeel-{EVENKEEL_VERSION}"));
    out.line("redis_mode", if s.is_cluster { "cluster" } else { "standalone" });
    out.line("os", &server.os);
    out.line("arch_bits", usize::BITS);
    out.line("monotonic_clock", "POSIX clock_gettime");
    out.line("multiplexing_api", server.multiplexing);
    out.line("process_id", server.pid);
    out.line("process_supervised", "no");
    out.line("run_id", &server.run_id);
    let [tcp, tls] = server.ports;
    out.line("tcp_port", if tcp == 0 { tls } else { tcp });
    out.line("server_time_usec", server.now_unix_us);
    out.line("uptime_in_seconds", server.uptime_s);
    out.line("uptime_in_days", server.uptime_s / 86_400);
    out.line("hz", server.hz);
    out.line("configured_hz", server.hz);
    out.line("lru_clock", (server.now_unix_us / 1_000_000) & 0xff_ffff);
    out.line("executable", &server.executable);
    out.line("config_file", &server.config_file);
    out.line("io_threads_active", u64::from(server.event_loops > 1));
    out.line("availability_zone", &server.availability_zone);
    let both = [("tcp", tcp), ("tls", tls)];
    for ((name, port), key) in both.iter().filter(|(_, port)| *port != 0).zip(["listener0", "listener1"]) {
        out.line(key, format_args!("name={name},port={port}"));
    }
}

fn clients(s: &Snapshot, out: &mut Lines) {
    let clients = &s.clients;
    out.lines(&[
        ("connected_clients", clients.connected),
        ("cluster_connections", 0),
        ("maxclients", clients.max),
        ("client_recent_max_input_buffer", clients.recent_max_input_bytes),
        ("client_recent_max_output_buffer", clients.recent_max_output_bytes),
        ("blocked_clients", clients.blocked),
        ("tracking_clients", clients.tracking),
        ("pubsub_clients", clients.pubsub),
        ("watching_clients", clients.watching),
        ("clients_in_timeout_table", clients.in_timeout_table),
        ("total_watched_keys", clients.watched_keys),
        ("total_blocking_keys", clients.blocking_keys),
        ("total_blocking_keys_on_nokey", 0),
    ]);
    let (reason, actions, until_ms) = match clients.pause {
        None => ("none", "none", 0),
        Some((reason, until_ms, all)) => (reason, if all { "all" } else { "write" }, until_ms),
    };
    out.line("paused_reason", reason);
    out.line("paused_actions", actions);
    out.line("paused_timeout_milliseconds", until_ms.saturating_sub(s.server.now_unix_us / 1000));
}

fn memory(s: &Snapshot, out: &mut Lines) {
    let m = &s.memory;
    let dataset = m.used.saturating_sub(m.overhead);
    let since_start = m.used.saturating_sub(m.startup);
    out.bytes("used_memory", m.used);
    out.bytes("used_memory_rss", m.resident);
    out.bytes("used_memory_peak", m.peak.max(m.used));
    out.line("used_memory_peak_perc", format_args!("{:.2}%", 100.0 * ratio(m.used, m.peak.max(m.used))));
    out.lines(&[
        ("used_memory_overhead", m.overhead),
        ("used_memory_startup", m.startup),
        ("used_memory_dataset", dataset),
    ]);
    out.line(
        "used_memory_dataset_perc",
        format_args!("{:.2}%", (100.0 * ratio(dataset, since_start)).min(100.0)),
    );
    out.lines(&[
        ("allocator_allocated", m.allocator.allocated),
        ("allocator_active", m.allocator.active),
        ("allocator_resident", m.allocator.resident),
    ]);
    out.bytes("total_system_memory", m.system);
    memory_of_scripts(m, out);
    out.bytes("maxmemory", m.max);
    out.line("maxmemory_policy", if m.policy.is_empty() { "noeviction" } else { &m.policy });
    out.ratio("allocator_frag", m.allocator.active, m.allocator.allocated);
    out.ratio("allocator_rss", m.allocator.resident, m.allocator.active);
    out.ratio("rss_overhead", m.resident, m.allocator.resident);
    out.line("mem_fragmentation_ratio", format_args!("{:.2}", ratio(m.resident, m.used)));
    out.line("mem_fragmentation_bytes", m.resident as i64 - m.used as i64);
    out.lines(&[
        ("mem_not_counted_for_evict", m.work),
        ("mem_replication_backlog", s.replication.memory_bytes),
        ("mem_replication_files", s.replication.files_in_memory),
        ("mem_total_replication_buffers", s.replication.memory_bytes),
        ("mem_replicas_repl_buffer", 0),
        ("mem_overhead_db_hashtable_rehashing", 0),
        ("mem_clients_slaves", 0),
        ("mem_clients_normal", m.clients),
        ("mem_cluster_links", 0),
        ("mem_source_changes", m.source_changes),
        ("used_memory_work", m.work),
        ("work_max_memory", m.work_max),
        ("work_refused", m.work_refused),
        ("mem_aof_buffer", s.persistence.aof.buffer_bytes),
    ]);
    out.line("mem_allocator", "jemalloc");
    out.lines(&[
        ("active_defrag_running", 0),
        ("lazyfree_pending_objects", u64::from(m.reclaim_pending > 0)),
        ("lazyfreed_objects", m.reclaimed_objects),
    ]);
}

fn memory_of_scripts(m: &Memory, out: &mut Lines) {
    out.bytes("used_memory_lua", m.lua);
    out.lines(&[
        ("used_memory_vm_eval", m.lua),
        ("used_memory_scripts_eval", m.scripts),
        ("number_of_cached_scripts", m.script_count),
        ("number_of_functions", m.function_count),
        ("number_of_libraries", m.library_count),
        ("used_memory_vm_functions", m.lua_functions),
    ]);
    out.bytes("used_memory_vm_total", m.lua + m.lua_functions);
    out.line("used_memory_functions", m.functions);
    out.bytes("used_memory_scripts", m.scripts + m.functions);
}

fn stats(s: &Snapshot, out: &mut Lines) {
    let stats = &s.stats;
    traffic(stats, out);
    out.lines(&[
        ("rejected_connections", stats.rejected_connections),
        ("sync_full", s.replication.full_syncs),
        ("sync_partial_ok", s.replication.partial_syncs),
        ("sync_partial_err", s.replication.partial_refused),
        ("sync_full_put_off", s.replication.full_refused),
        ("expired_subkeys", stats.expired_fields),
        ("expired_fields", stats.expired_fields),
        ("expired_keys", stats.expired_keys),
    ]);
    out.line("expired_stale_perc", "0.00");
    out.lines(&[
        ("expired_time_cap_reached_count", 0),
        ("expire_cycle_cpu_milliseconds", stats.expire_cycle_ms),
        ("evicted_keys", stats.evicted_keys),
        ("evicted_clients", stats.evicted_clients),
        ("evicted_scripts", s.memory.evicted_scripts),
        ("total_eviction_exceeded_time", stats.exceeded_ms.1),
        ("current_eviction_exceeded_time", stats.exceeded_ms.0),
        ("keyspace_hits", stats.keyspace_hits),
        ("keyspace_misses", stats.keyspace_misses),
        ("pubsub_channels", stats.pubsub_channels),
        ("pubsub_patterns", stats.pubsub_patterns),
        ("pubsubshard_channels", stats.pubsubshard_channels),
        ("latest_fork_usec", 0),
        ("total_forks", 0),
        ("migrate_cached_sockets", 0),
        ("slave_expires_tracked_keys", 0),
        ("active_defrag_hits", 0),
        ("active_defrag_misses", 0),
        ("active_defrag_key_hits", 0),
        ("active_defrag_key_misses", 0),
        ("total_active_defrag_time", 0),
        ("current_active_defrag_time", 0),
        ("tracking_total_keys", s.clients.tracked_keys),
        ("tracking_total_items", s.clients.tracked_items),
        ("tracking_total_prefixes", s.clients.tracked_prefixes),
        ("unexpected_error_replies", 0),
        ("total_error_replies", stats.error_replies),
        ("dump_payload_sanitizations", 0),
        ("total_reads_processed", stats.reads),
        ("total_writes_processed", stats.writes),
        ("io_threaded_reads_processed", 0),
        ("io_threaded_writes_processed", 0),
        ("client_query_buffer_limit_disconnections", stats.query_buffer_disconnections),
        ("client_output_buffer_limit_disconnections", stats.output_buffer_disconnections),
        ("panics_contained", stdx::panics::caught()),
        ("reply_buffer_shrinks", 0),
        ("reply_buffer_expands", 0),
        ("eventloop_cycles", stats.loop_cycles),
        ("eventloop_duration_sum", stats.loop_duration_us),
        ("eventloop_duration_cmd_sum", stats.loop_commands_us),
        ("instantaneous_eventloop_cycles_per_sec", stats.cycles_per_s.round() as u64),
        ("instantaneous_eventloop_duration_usec", stats.cycle_us.round() as u64),
        ("acl_access_denied_auth", stats.auth_denied),
        ("acl_access_denied_cmd", stats.acl_denied[0]),
        ("acl_access_denied_key", stats.acl_denied[1]),
        ("acl_access_denied_channel", stats.acl_denied[2]),
        ("acl_access_denied_db", stats.acl_denied[3]),
    ]);
}

/// Connections, commands and bytes, the first figures of section `stats`.
fn traffic(stats: &Stats, out: &mut Lines) {
    out.lines(&[
        ("total_connections_received", stats.connections),
        ("total_commands_processed", stats.commands),
    ]);
    out.line("instantaneous_ops_per_sec", stats.commands_per_s.round() as u64);
    out.lines(&[
        ("total_net_input_bytes", stats.input_bytes),
        ("total_net_output_bytes", stats.output_bytes),
        ("total_net_repl_input_bytes", 0),
        ("total_net_repl_output_bytes", 0),
    ]);
    out.line("instantaneous_input_kbps", format_args!("{:.2}", stats.input_kb_per_s));
    out.line("instantaneous_output_kbps", format_args!("{:.2}", stats.output_kb_per_s));
    out.line("instantaneous_input_repl_kbps", "0.00");
    out.line("instantaneous_output_repl_kbps", "0.00");
}

fn replication(s: &Snapshot, out: &mut Lines) {
    s.replication.write(s.following.as_ref(), out);
}

fn cpu_section(s: &Snapshot, out: &mut Lines) {
    for (name, seconds) in [
        ("used_cpu_sys", s.cpu.system_s),
        ("used_cpu_user", s.cpu.user_s),
        ("used_cpu_sys_children", 0.0),
        ("used_cpu_user_children", 0.0),
        ("used_cpu_sys_main_thread", s.cpu.loops_system_s),
        ("used_cpu_user_main_thread", s.cpu.loops_user_s),
    ] {
        out.line(name, format_args!("{seconds:.6}"));
    }
}

fn commandstats(s: &Snapshot, out: &mut Lines) {
    for (name, c) in &s.commands {
        let (calls, usec, each) = (c.calls, c.usec(), c.usec_per_call());
        let (rejected, failed) = (c.rejected, c.failed);
        let figures = format_args!(
            "calls={calls},usec={usec},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
        )
        .to_string();
        out.line(&format!("cmdstat_{name}"), figures);
    }
}

fn errorstats(s: &Snapshot, out: &mut Lines) {
    for (name, count) in &s.errors {
        out.line(&format!("errorstat_{name}"), format_args!("count={count}"));
    }
}

fn latencystats(s: &Snapshot, out: &mut Lines) {
    for (name, percentiles) in &s.latencies {
        let figures: Vec<String> = percentiles.iter().map(|(p, us)| format!("p{p}={us:.3}")).collect();
        out.line(&format!("latency_percentiles_usec_{name}"), figures.join(","));
    }
}

fn evenkeel(s: &Snapshot, out: &mut Lines) {
    out.line("evenkeel_version", EVENKEEL_VERSION);
    out.lines(&[
        ("event_loops", s.server.event_loops),
        ("reclaim_pending_bytes", s.memory.reclaim_pending),
        ("messages_under_way", s.server.messages_under_way),
    ]);
    out.lines(&s.evenkeel);
}

fn keyspace(s: &Snapshot, out: &mut Lines) {
    for db in s.databases.iter().filter(|db| db.keys > 0) {
        let (keys, expires, ttl) = (db.keys, db.expires, db.avg_ttl_ms);
        out.line(&format!("db{}", db.number), format_args!("keys={keys},expires={expires},avg_ttl={ttl}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headings(words: &[&str]) -> Vec<String> {
        let text = Sections::wanted(words.iter().map(|w| w.as_bytes())).text(&Snapshot::default());
        text.lines().filter_map(|l| l.strip_prefix("# ")).map(str::to_owned).collect()
    }

    #[test]
    fn sections_are_chosen_as_in_redis() {
        let default = headings(&[]);
        assert_eq!(default, headings(&["DEFAULT"]));
        assert!(!default.contains(&"Commandstats".into()) && default.contains(&"Errorstats".into()));
        assert_eq!(headings(&["all"]).len(), 14);
        assert_eq!(headings(&["everything", "foo"]).len(), 14);
        assert_eq!(headings(&["keyspace", "Server"]), ["Server", "Keyspace"]);
        assert_eq!(headings(&["default", "commandstats"]).len(), default.len() + 1);
        assert!(headings(&["foo"]).is_empty());
        assert!(
            Sections::wanted([&b"memory"[..]]).has("memory")
                && !Sections::wanted([&b"cpu"[..]]).has("memory")
        );
    }

    #[test]
    fn lines_have_the_form_tools_read() {
        let registry = Registry::new(2);
        let recorder = registry.recorder();
        recorder.command(1, 74_500, true, true);
        recorder.error(b"WRONGTYPE no");
        recorder.add(Counter::KeyspaceHits, 3);
        let mut snapshot = Snapshot { stats: Stats::of(&registry, Speeds::default()), ..Snapshot::default() };
        snapshot.count_commands(&registry, &["GET", "CONFIG|SET"], Some(&[50.0, 99.9]));
        snapshot.databases =
            vec![Database { number: 3, keys: 2, expires: 1, avg_ttl_ms: 99 }, Database::default()];
        snapshot.memory.used = 1 << 20;
        snapshot.evenkeel.push(("snapshots_open", 4));
        let text = Sections::wanted([&b"all"[..]]).text(&snapshot);
        for line in [
            "redis_version:7.4.0",
            "redis_mode:standalone",
            "used_memory_human:1.00M",
            "cmdstat_config|set:calls=1,usec=74,usec_per_call=74.50,rejected_calls=0,failed_calls=1",
            "errorstat_WRONGTYPE:count=1",
            "latency_percentiles_usec_config|set:p50=74.751,p99.9=74.751",
            "keyspace_hits:3",
            "snapshots_open:4",
            "role:master",
            "rdb_last_bgsave_time_sec:-1",
            "db3:keys=2,expires=1,avg_ttl=99",
        ] {
            assert!(text.contains(&format!("\r\n{line}\r\n")), "{line} missing in {text}");
        }
        assert!(text.starts_with("# Server\r\n") && text.ends_with("\r\n"));
        assert!(!text.contains("db0:") && !text.contains("cmdstat_get"));
        let lines = text.split("\r\n").filter(|l| !l.is_empty() && !l.starts_with('#'));
        assert!(lines.clone().count() > 150 && lines.clone().all(|l| l.contains(':')));
    }

    /// INFO commandstats needs no percentiles, so it must not pay for histograms.
    #[test]
    fn who_wants_counts_alone_has_no_histograms_added_up() {
        let registry = Registry::new(2);
        registry.recorder().command(1, 74_500, true, false);
        let mut snapshot = Snapshot::default();
        snapshot.count_commands(&registry, &["GET", "SET"], None);
        assert_eq!((snapshot.commands.len(), snapshot.latencies.len()), (1, 0));
    }

    #[test]
    fn bytes_are_written_for_people() {
        for (bytes, text) in
            [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_014_904, "991.12K"), (25_274_793_984, "23.54G")]
        {
            assert_eq!(human(bytes), text);
        }
        assert_eq!(human(u64::MAX), "16384.00P");
    }

    /// Every name that a real Redis server answered must be answered here, in a section of the same name.
    #[test]
    fn every_field_of_redis_is_there() {
        let ours = fields(&Sections::wanted([&b"all"[..]]).text(&Snapshot::default()));
        let missing: Vec<_> = fields(include_str!("../../tests/data/info-redis-7.0.txt"))
            .into_iter()
            .filter(|field| !ours.contains(field))
            .collect();
        let tolerated = ["Server/atomicvar_api", "Server/gcc_version"];
        assert_eq!(missing, tolerated);
    }

    fn fields(text: &str) -> Vec<String> {
        let mut section = "";
        let mut out = Vec::new();
        for line in text.lines() {
            match (line.strip_prefix("# "), line.split_once(':')) {
                (Some(name), _) => section = name,
                (None, Some((name, _))) if !name.contains("stat_") => out.push(format!("{section}/{name}")),
                _ => {}
            }
        }
        out
    }
}
