//! The page of figures for Prometheus: those of INFO, in its text format.
//!
//! A figure that redis_exporter has and that means the same has its name and labels there, so that its
//! dashboards and alerts serve. All others are `evenkeel_…`, in seconds and bytes. No client and no key is a
//! label.
//!
//! Cost: that of INFO's text, and of adding up histograms. No shard is visited.

use crate::Observe;
use crate::info::{self, Sections, Snapshot};
use crate::stats::{CommandTotals, Counter, PHASES, Registry};
use crate::waits::Sum;
use history::OCTAVES;
use std::collections::HashMap;
use std::fmt::{Display, Write as _};

/// A page under way. The figures of one family stand together.
#[derive(Default)]
pub struct Page(String);

impl Page {
    /// Begins a family. `kind`: `counter`, `gauge` or `histogram`.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a figure to the family begun last.
    pub fn figure(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if i == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    /// Adds a family of one figure.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.figure(name, &[], value);
    }

    /// Adds a histogram to the family begun last: the counts by octave, and the sum of all times.
    fn histogram(&mut self, name: &str, label: Option<(&str, &str)>, (octaves, ns): ([u64; OCTAVES], u64)) {
        let bucket = format!("{name}_bucket");
        let (mut seen, last) = (0, OCTAVES - 1);
        for (octave, count) in octaves.iter().enumerate() {
            seen += count;
            let bound =
                if octave == last { "+Inf".into() } else { format!("{}", (1u64 << octave) as f64 / 1e6) };
            let labels: Vec<_> = label.into_iter().chain([("le", bound.as_str())]).collect();
            self.figure(&bucket, &labels, seen);
        }
        let labels: Vec<_> = label.into_iter().collect();
        self.figure(&format!("{name}_sum"), &labels, seconds(ns));
        self.figure(&format!("{name}_count"), &labels, seen);
    }

    /// The page's text.
    pub fn into_text(self) -> String {
        self.0
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Begins the page with the figures of the whole server. Cost: that of INFO's text, and O(loops · histograms).
pub fn page(snapshot: &Snapshot, observe: &Observe) -> Page {
    let (mut page, registry) = (Page(String::with_capacity(64 * 1024)), &observe.stats.registry);
    as_exported(snapshot, &mut page);
    whole(snapshot, &mut page);
    responses(registry, &mut page);
    commands(snapshot, &mut page);
    times(registry, &mut page);
    waits(observe, &mut page);
    databases(snapshot, &mut page);
    replicas(snapshot, &mut page);
    for (name, value) in &snapshot.evenkeel {
        let help = format!("{name} of INFO evenkeel");
        // Prometheus has times in seconds.
        let (name, divisor) = match (name.strip_suffix("_us"), name.strip_suffix("_ms")) {
            (Some(stem), _) => (format!("evenkeel_{stem}_seconds"), 1e6),
            (_, Some(stem)) => (format!("evenkeel_{stem}_seconds"), 1e3),
            _ => (format!("evenkeel_{name}"), 1.0),
        };
        page.single(&name, "gauge", &help, *value as f64 / divisor);
    }
    page
}

/// Writes the fields of INFO that redis_exporter has, under its names.
fn as_exported(snapshot: &Snapshot, page: &mut Page) {
    page.single("redis_up", "gauge", "Whether the server answers", 1);
    let role = if snapshot.following.is_some() { "slave" } else { "master" };
    page.family("redis_instance_info", "gauge", "The server's versions and role");
    let labels = [
        ("role", role),
        ("redis_version", info::REDIS_VERSION),
        ("redis_mode", if snapshot.is_cluster { "cluster" } else { "standalone" }),
        ("run_id", &snapshot.server.run_id),
        ("os", &snapshot.server.os),
    ];
    page.figure("redis_instance_info", &labels, 1);
    let text = Sections::wanted([&b"default"[..]]).text(snapshot);
    let fields: HashMap<&str, &str> =
        text.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    for (field, name, kind) in EXPORTED {
        let Some(value) = fields.get(field) else { continue };
        let value = match *value {
            "ok" => 1.0,
            "err" | "fail" => 0.0,
            figure => match figure.parse() {
                Ok(figure) => figure,
                Err(_) => continue,
            },
        };
        page.single(&format!("redis_{name}"), kind, &format!("{field} of INFO"), value);
    }
    let started = snapshot.server.now_unix_us / 1_000_000
        - snapshot.server.uptime_s.min(snapshot.server.now_unix_us / 1_000_000);
    page.single("redis_start_time_seconds", "gauge", "When the server started", started);
}

fn whole(s: &Snapshot, page: &mut Page) {
    page.family("evenkeel_build_info", "gauge", "Which version runs");
    page.figure("evenkeel_build_info", &[("version", info::EVENKEEL_VERSION)], 1);
    let gauges = [
        ("memory_reclaim_pending_bytes", "Dropped and not given back yet", s.memory.reclaim_pending),
        ("memory_clients_bytes", "Held for clients", s.memory.clients),
        ("memory_work_bytes", "Held by long work beside the data", s.memory.work),
        ("memory_work_max_bytes", "The most that may be (work-max-memory); 0: no limit", s.memory.work_max),
        ("log_pending_bytes", "Waits to be written to the append-only log", s.persistence.aof.buffer_bytes),
        ("log_stopped", "Whether the log writes nothing now", s.persistence.aof.stopped.is_some().into()),
    ];
    for (name, help, value) in gauges {
        page.single(&format!("evenkeel_{name}"), "gauge", help, value);
    }
    let counters = [
        ("work_refused_total", "Work that failed for want of memory", s.memory.work_refused),
        ("expired_fields_total", "Fields whose time was over", s.stats.expired_fields),
        ("loop_turns_total", "Turns of event loops", s.stats.loop_cycles),
    ];
    for (name, help, value) in counters {
        page.single(&format!("evenkeel_{name}"), "counter", help, value);
    }
    page.family("evenkeel_cpu_seconds_total", "counter", "Processor time, by where it was spent and by whom");
    let cpu = &s.cpu;
    let other = |all: f64, loops: f64| (all - loops).max(0.0);
    for (mode, threads, value) in [
        ("user", "loops", cpu.loops_user_s),
        ("system", "loops", cpu.loops_system_s),
        ("user", "others", other(cpu.user_s, cpu.loops_user_s)),
        ("system", "others", other(cpu.system_s, cpu.loops_system_s)),
    ] {
        page.figure("evenkeel_cpu_seconds_total", &[("mode", mode), ("threads", threads)], value);
    }
}

fn responses(registry: &Registry, page: &mut Page) {
    const NAME: &str = "evenkeel_http_responses_total";
    page.family(NAME, "counter", "HTTP responses by class of status");
    for (class, counter) in RESPONSES {
        page.figure(NAME, &[("class", class)], registry.counter(counter));
    }
}

/// Classes of statuses, and their counters.
const RESPONSES: [(&str, Counter); 4] = [
    ("2xx", Counter::Http2xx),
    ("3xx", Counter::Http3xx),
    ("4xx", Counter::Http4xx),
    ("5xx", Counter::Http5xx),
];

fn commands(s: &Snapshot, page: &mut Page) {
    type Figure = (&'static str, &'static str, fn(&CommandTotals) -> f64);
    let figures: [Figure; 4] = [
        ("redis_commands_total", "Commands that ran", |c| c.calls as f64),
        ("redis_commands_duration_seconds_total", "How long commands ran", |c| seconds(c.ns)),
        ("redis_commands_rejected_calls_total", "Commands refused before they ran", |c| c.rejected as f64),
        ("redis_commands_failed_calls_total", "Commands that ran and answered an error", |c| c.failed as f64),
    ];
    for (name, help, value) in figures {
        page.family(name, "counter", help);
        for (command, totals) in &s.commands {
            page.figure(name, &[("cmd", command)], value(totals));
        }
    }
    page.family("redis_errors_total", "counter", "Errors answered, by name");
    for (error, count) in &s.errors {
        page.figure("redis_errors_total", &[("err", error)], count);
    }
}

fn times(registry: &Registry, page: &mut Page) {
    page.family(
        "evenkeel_request_seconds",
        "histogram",
        "From the turn in which a request came to its reply",
    );
    let octaves = registry.octaves();
    page.histogram("evenkeel_request_seconds", None, (octaves, about_ns(&octaves)));
    page.family("evenkeel_command_seconds", "histogram", "How long commands ran");
    page.histogram("evenkeel_command_seconds", None, registry.all_commands().by_octave());
    page.family("evenkeel_phase_seconds", "histogram", "How long requests were in which phase");
    for (phase, name) in PHASES {
        page.histogram("evenkeel_phase_seconds", Some(("phase", name)), registry.phase(phase).by_octave());
    }
    const BUSY: &str = "evenkeel_loop_busy_seconds_total";
    page.family(BUSY, "counter", "How long each event loop was in its turns");
    for (at, ns) in registry.busy_ns().into_iter().enumerate() {
        page.figure(BUSY, &[("loop", &at.to_string())], seconds(ns));
    }
}

/// The sum of latencies of which only the octaves are known: three quarters of each one's end.
fn about_ns(octaves: &[u64; OCTAVES]) -> u64 {
    let ns = octaves.iter().enumerate().map(|(octave, count)| count.saturating_mul(750 << octave));
    ns.fold(0, u64::saturating_add)
}

fn waits(observe: &Observe, page: &mut Page) {
    type Figure = (&'static str, &'static str, fn(&Sum) -> f64);
    let totals = observe.waits.totals();
    let figures: [Figure; 2] = [
        ("evenkeel_waits_total", "Waits of clients, by what they waited for", |sum| sum.waits as f64),
        ("evenkeel_wait_seconds_total", "How long clients waited, by what for", |sum| seconds(sum.ns)),
    ];
    for (name, help, value) in figures {
        page.family(name, "counter", help);
        totals.iter().for_each(|(what, sum)| page.figure(name, &[("for", what.name())], value(sum)));
    }
}

fn databases(s: &Snapshot, page: &mut Page) {
    type Figure = (&'static str, &'static str, fn(&info::Database) -> f64);
    let figures: [Figure; 3] = [
        ("redis_db_keys", "Keys of a database", |db| db.keys as f64),
        ("redis_db_keys_expiring", "Keys of a database that expire", |db| db.expires as f64),
        ("redis_db_avg_ttl_seconds", "Mean time to live of keys that expire", |db| {
            db.avg_ttl_ms as f64 / 1e3
        }),
    ];
    for (name, help, value) in figures {
        page.family(name, "gauge", help);
        for db in s.databases.iter().filter(|db| db.keys > 0) {
            page.figure(name, &[("db", &format!("db{}", db.number))], value(db));
        }
    }
}

/// The servers that follow, and the link to the one that is followed.
fn replicas(s: &Snapshot, page: &mut Page) {
    type Figure = (&'static str, &'static str, fn(&info::Replica) -> f64);
    let figures: [Figure; 3] = [
        ("redis_connected_slave_lag_seconds", "Since a replica last told its offset", |one| one.lag_s as f64),
        ("evenkeel_replica_lag_seconds", "How long ago the stream was where a replica is", |one| {
            one.lag_ms as f64 / 1e3
        }),
        ("evenkeel_replica_lag_bytes", "How far a replica is behind", |one| one.lag_bytes as f64),
    ];
    for (name, help, value) in figures {
        page.family(name, "gauge", help);
        for one in &s.replication.replicas {
            let (port, state) = (one.port.to_string(), one.state);
            let labels = [("slave_ip", one.address.as_str()), ("slave_port", &port), ("slave_state", state)];
            page.figure(name, &labels, value(one));
        }
    }
    if let Some(following) = &s.following {
        let (name, port) = ("redis_master_link_up", following.port.to_string());
        page.family(name, "gauge", "Whether the link to the primary is up");
        let labels = [("master_host", following.host.as_str()), ("master_port", &port)];
        page.figure(name, &labels, u8::from(following.is_up));
    }
}

/// Fields of INFO that redis_exporter has: the field, its name there behind `redis_`, and its kind.
const EXPORTED: &[(&str, &str, &str)] = &[
    ("uptime_in_seconds", "uptime_in_seconds", "gauge"),
    ("process_id", "process_id", "gauge"),
    ("connected_clients", "connected_clients", "gauge"),
    ("blocked_clients", "blocked_clients", "gauge"),
    ("tracking_clients", "tracking_clients", "gauge"),
    ("pubsub_clients", "pubsub_clients", "gauge"),
    ("watching_clients", "watching_clients", "gauge"),
    ("client_recent_max_output_buffer", "client_recent_max_output_buffer_bytes", "gauge"),
    ("client_recent_max_input_buffer", "client_recent_max_input_buffer_bytes", "gauge"),
    ("allocator_active", "allocator_active_bytes", "gauge"),
    ("allocator_allocated", "allocator_allocated_bytes", "gauge"),
    ("allocator_resident", "allocator_resident_bytes", "gauge"),
    ("used_memory", "memory_used_bytes", "gauge"),
    ("used_memory_rss", "memory_used_rss_bytes", "gauge"),
    ("used_memory_peak", "memory_used_peak_bytes", "gauge"),
    ("used_memory_lua", "memory_used_lua_bytes", "gauge"),
    ("used_memory_overhead", "memory_used_overhead_bytes", "gauge"),
    ("used_memory_startup", "memory_used_startup_bytes", "gauge"),
    ("used_memory_dataset", "memory_used_dataset_bytes", "gauge"),
    ("used_memory_scripts", "memory_used_scripts_bytes", "gauge"),
    ("used_memory_functions", "memory_used_functions_bytes", "gauge"),
    ("maxmemory", "memory_max_bytes", "gauge"),
    ("mem_fragmentation_ratio", "mem_fragmentation_ratio", "gauge"),
    ("mem_clients_normal", "mem_clients_normal", "gauge"),
    ("loading", "loading_dump_file", "gauge"),
    ("async_loading", "async_loading", "gauge"),
    ("rdb_changes_since_last_save", "rdb_changes_since_last_save", "gauge"),
    ("rdb_bgsave_in_progress", "rdb_bgsave_in_progress", "gauge"),
    ("rdb_last_save_time", "rdb_last_save_timestamp_seconds", "gauge"),
    ("rdb_last_bgsave_status", "rdb_last_bgsave_status", "gauge"),
    ("rdb_last_bgsave_time_sec", "rdb_last_bgsave_duration_sec", "gauge"),
    ("rdb_current_bgsave_time_sec", "rdb_current_bgsave_duration_sec", "gauge"),
    ("rdb_saves", "rdb_saves_total", "gauge"),
    ("aof_enabled", "aof_enabled", "gauge"),
    ("aof_rewrite_in_progress", "aof_rewrite_in_progress", "gauge"),
    ("aof_rewrite_scheduled", "aof_rewrite_scheduled", "gauge"),
    ("aof_last_rewrite_time_sec", "aof_last_rewrite_duration_sec", "gauge"),
    ("aof_last_bgrewrite_status", "aof_last_bgrewrite_status", "gauge"),
    ("aof_last_write_status", "aof_last_write_status", "gauge"),
    ("aof_current_size", "aof_current_size_bytes", "gauge"),
    ("aof_base_size", "aof_base_size_bytes", "gauge"),
    ("aof_buffer_length", "aof_buffer_length", "gauge"),
    ("aof_pending_bio_fsync", "aof_pending_bio_fsync", "gauge"),
    ("aof_delayed_fsync", "aof_delayed_fsync", "gauge"),
    ("pubsub_channels", "pubsub_channels", "gauge"),
    ("pubsub_patterns", "pubsub_patterns", "gauge"),
    ("pubsubshard_channels", "pubsubshard_channels", "gauge"),
    ("tracking_total_keys", "tracking_total_keys", "gauge"),
    ("connected_slaves", "connected_slaves", "gauge"),
    ("repl_backlog_size", "replication_backlog_bytes", "gauge"),
    ("repl_backlog_active", "repl_backlog_is_active", "gauge"),
    ("repl_backlog_first_byte_offset", "repl_backlog_first_byte_offset", "gauge"),
    ("repl_backlog_histlen", "repl_backlog_history_bytes", "gauge"),
    ("master_repl_offset", "master_repl_offset", "gauge"),
    ("second_repl_offset", "second_repl_offset", "gauge"),
    ("sync_full", "replica_resyncs_full", "gauge"),
    ("sync_partial_ok", "replica_partial_resync_accepted", "gauge"),
    ("sync_partial_err", "replica_partial_resync_denied", "gauge"),
    ("slave_repl_offset", "slave_repl_offset", "gauge"),
    ("master_sync_in_progress", "master_sync_in_progress", "gauge"),
    ("master_last_io_seconds_ago", "master_last_io_seconds_ago", "gauge"),
    ("total_connections_received", "connections_received_total", "counter"),
    ("total_commands_processed", "commands_processed_total", "counter"),
    ("rejected_connections", "rejected_connections_total", "counter"),
    ("total_net_input_bytes", "net_input_bytes_total", "counter"),
    ("total_net_output_bytes", "net_output_bytes_total", "counter"),
    ("expired_keys", "expired_keys_total", "counter"),
    ("evicted_keys", "evicted_keys_total", "counter"),
    ("evicted_clients", "evicted_clients_total", "counter"),
    ("evicted_scripts", "evicted_scripts_total", "counter"),
    ("keyspace_hits", "keyspace_hits_total", "counter"),
    ("keyspace_misses", "keyspace_misses_total", "counter"),
    ("used_cpu_sys", "cpu_sys_seconds_total", "counter"),
    ("used_cpu_user", "cpu_user_seconds_total", "counter"),
    ("total_error_replies", "total_error_replies", "counter"),
    ("total_reads_processed", "total_reads_processed", "counter"),
    ("total_writes_processed", "total_writes_processed", "counter"),
    ("client_query_buffer_limit_disconnections", "client_query_buffer_limit_disconnections_total", "counter"),
    (
        "client_output_buffer_limit_disconnections",
        "client_output_buffer_limit_disconnections_total",
        "counter",
    ),
    ("acl_access_denied_auth", "acl_access_denied_auth_total", "counter"),
    ("acl_access_denied_cmd", "acl_access_denied_cmd_total", "counter"),
    ("acl_access_denied_key", "acl_access_denied_key_total", "counter"),
    ("acl_access_denied_channel", "acl_access_denied_channel_total", "counter"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_quoted() {
        let mut page = Page::default();
        page.single("a", "gauge", "help", 1.5);
        page.figure("b", &[("x", "a\"b\\c\nd"), ("y", "")], 2);
        let expected = "# HELP a help\n# TYPE a gauge\na 1.5\nb{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 2\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn a_family_has_one_type_and_its_figures_follow_it() {
        let mut snapshot = Snapshot {
            commands: vec![("get".into(), Default::default()), ("set".into(), Default::default())],
            databases: vec![info::Database { keys: 7, ..Default::default() }],
            ..Snapshot::default()
        };
        snapshot.persistence.aof.enabled = true;
        snapshot.following = Some(info::Following::default());
        let observe = Observe::new(std::sync::Arc::default(), 1);
        let recorder = observe.stats.registry.recorder_of(Some(0));
        recorder.latency(3000);
        let text = page(&snapshot, &observe).into_text();
        for line in [
            "redis_db_keys{db=\"db0\"} 7",
            "evenkeel_request_seconds_bucket{le=\"0.000002\"} 0",
            "evenkeel_request_seconds_bucket{le=\"0.000004\"} 1",
            "evenkeel_request_seconds_bucket{le=\"+Inf\"} 1",
            "evenkeel_request_seconds_count 1",
            "evenkeel_waits_total{for=\"os\"} 0",
            "evenkeel_loop_busy_seconds_total{loop=\"0\"} 0",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} is missing in {text}");
        }
        // Every field of the table is one of INFO.
        let is_there = |name: &str| {
            text.contains(&format!(
                "
redis_{name} "
            ))
        };
        let missing: Vec<_> =
            EXPORTED.iter().filter(|(_, name, _)| !is_there(name)).map(|row| row.0).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let (mut seen, mut now) = (std::collections::HashSet::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                now = rest.split(' ').next().unwrap().to_owned();
                assert!(seen.insert(now.clone()), "{now} begins twice");
            } else if !line.starts_with('#') {
                assert!(line.starts_with(&now), "{line} follows {now}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
    }
}
