//! The page of figures for Prometheus: those of INFO, in its text format.
//!
//! Cost: that of INFO. No shard is visited.

use crate::info::{self, Snapshot};
use crate::stats::{CommandTotals, Counter, Histogram, PHASES, Registry};
use std::fmt::{Display, Write as _};

/// A page under way. The figures of one family stand together.
#[derive(Default)]
pub struct Page(String);

impl Page {
    /// Begins a family. `kind`: `counter`, `gauge` or `summary`.
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

    fn summary(&mut self, name: &str, label: Option<(&str, &str)>, histogram: &Histogram) {
        for (quantile, percent) in [("0.5", 50.0), ("0.99", 99.0), ("0.999", 99.9)] {
            let labels: Vec<_> = label.into_iter().chain([("quantile", quantile)]).collect();
            self.figure(name, &labels, seconds(histogram.percentile(percent)));
        }
        let labels: Vec<_> = label.into_iter().collect();
        self.figure(&format!("{name}_count"), &labels, histogram.total());
    }

    /// The page's text.
    pub fn into_text(self) -> String {
        self.0
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Begins the page with the figures of the whole server. Cost: tens of microseconds, and O(databases +
/// commands).
pub fn page(snapshot: &Snapshot, registry: &Registry) -> Page {
    let mut page = Page(String::with_capacity(32 * 1024));
    whole(snapshot, &mut page);
    responses(registry, &mut page);
    commands(snapshot, &mut page);
    times(registry, &mut page);
    databases(snapshot, &mut page);
    for (name, value) in &snapshot.evenkeel {
        let help = format!("{name} of INFO evenkeel");
        page.single(&format!("evenkeel_{name}"), "gauge", &help, value);
    }
    page
}

fn whole(s: &Snapshot, page: &mut Page) {
    page.family("evenkeel_build_info", "gauge", "Which version runs");
    page.figure("evenkeel_build_info", &[("version", info::EVENKEEL_VERSION)], 1);
    let gauges = [
        ("uptime_seconds", "Since the server started", s.server.uptime_s),
        ("connected_clients", "Connections", s.clients.connected),
        ("blocked_clients", "Clients that wait for a key", s.clients.blocked),
        ("pubsub_clients", "Clients that subscribed", s.clients.pubsub),
        ("memory_used_bytes", "Handed out by the allocator", s.memory.used),
        ("memory_peak_bytes", "The most that was handed out", s.memory.peak),
        ("memory_resident_bytes", "Memory of the process", s.memory.resident),
        ("memory_max_bytes", "The limit maxmemory; 0: none", s.memory.max),
        ("memory_reclaim_pending_bytes", "Dropped and not given back yet", s.memory.reclaim_pending),
        ("memory_clients_bytes", "Held for clients", s.memory.clients),
        ("memory_work_bytes", "Held by long work beside the data", s.memory.work),
        ("memory_work_max_bytes", "The most that may be (work-max-memory); 0: no limit", s.memory.work_max),
    ];
    for (name, help, value) in gauges {
        page.single(&format!("evenkeel_{name}"), "gauge", help, value);
    }
    let stats = &s.stats;
    let counters = [
        ("connections_total", "Accepted connections", stats.connections),
        ("connections_refused_total", "Refused connections", stats.rejected_connections),
        ("input_bytes_total", "Received from clients", stats.input_bytes),
        ("output_bytes_total", "Sent to clients", stats.output_bytes),
        ("work_refused_total", "Work that failed for want of memory", s.memory.work_refused),
        ("reads_total", "Reads from sockets", stats.reads),
        ("writes_total", "Writes to sockets", stats.writes),
        ("keyspace_hits_total", "Keys found by reads", stats.keyspace_hits),
        ("keyspace_misses_total", "Keys not found by reads", stats.keyspace_misses),
        ("expired_keys_total", "Keys whose time was over", stats.expired_keys),
        ("expired_fields_total", "Fields whose time was over", stats.expired_fields),
        ("evicted_keys_total", "Keys evicted to keep within maxmemory", stats.evicted_keys),
        ("error_replies_total", "Errors answered", stats.error_replies),
        ("auth_denied_total", "Wrong or missing passwords", stats.auth_denied),
        (
            "query_buffer_disconnections_total",
            "Closed for an endless request",
            stats.query_buffer_disconnections,
        ),
        ("output_buffer_disconnections_total", "Closed for not reading", stats.output_buffer_disconnections),
        ("loop_turns_total", "Turns of event loops", stats.loop_cycles),
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
        ("evenkeel_commands_total", "Commands that ran", |c| c.calls as f64),
        ("evenkeel_command_seconds_total", "How long commands ran", |c| seconds(c.ns)),
        ("evenkeel_commands_refused_total", "Commands refused before they ran", |c| c.rejected as f64),
        ("evenkeel_commands_failed_total", "Commands that ran and answered an error", |c| c.failed as f64),
    ];
    for (name, help, value) in figures {
        page.family(name, "counter", help);
        for (command, totals) in &s.commands {
            page.figure(name, &[("command", command)], value(totals));
        }
    }
    page.family("evenkeel_errors_total", "counter", "Errors answered, by name");
    for (error, count) in &s.errors {
        page.figure("evenkeel_errors_total", &[("error", error)], count);
    }
}

fn times(registry: &Registry, page: &mut Page) {
    page.family("evenkeel_command_seconds", "summary", "How long commands ran");
    page.summary("evenkeel_command_seconds", None, &registry.all_commands());
    page.family("evenkeel_phase_seconds", "summary", "How long requests were in which phase");
    for (phase, name) in PHASES {
        page.summary("evenkeel_phase_seconds", Some(("phase", name)), &registry.phase(phase));
    }
}

fn databases(s: &Snapshot, page: &mut Page) {
    type Figure = (&'static str, &'static str, fn(&info::Database) -> u64);
    let figures: [Figure; 2] = [
        ("evenkeel_keys", "Keys of a database", |db| db.keys),
        ("evenkeel_keys_expiring", "Keys of a database that expire", |db| db.expires),
    ];
    for (name, help, value) in figures {
        page.family(name, "gauge", help);
        for db in s.databases.iter().filter(|db| db.keys > 0) {
            page.figure(name, &[("db", &db.number.to_string())], value(db));
        }
    }
}

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
        let mut page = Page::default();
        let snapshot = Snapshot {
            commands: vec![("get".into(), Default::default()), ("set".into(), Default::default())],
            databases: vec![info::Database { keys: 7, ..Default::default() }],
            ..Snapshot::default()
        };
        whole(&snapshot, &mut page);
        commands(&snapshot, &mut page);
        databases(&snapshot, &mut page);
        let text = page.into_text();
        assert!(text.contains("\nevenkeel_keys{db=\"0\"} 7\n"), "{text}");
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
