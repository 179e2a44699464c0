//! INFO, MEMORY, COMMANDLOG, SLOWLOG, LATENCY: the server's reports about itself.
//!
//! INFO answers on the loop: its figures are counted as they happen, or were measured before (`measured`).
//! The reporter collects figures that take longer.

use super::answer::{aside, elsewhere, help, kept};
use super::replicas;
use crate::Server;
use crate::act::{Act, PLAIN, Row};
use command::Flow;
use command::helps;
use command::{Error, places};
use observe::commandlog::{self, CommandLog, LogKind};
use observe::hotkeys;
use observe::info::{Database, Host, Sections, Snapshot, Stats};
use observe::latency;
use observe::memory_report;
use observe::stats::Counter;
use resp::{Args, Reply};
use role::Failing;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;
use stdx::points::{self, Point};

pub(super) const ACTIONS: &[Row] = &[
    Row("info", info, PLAIN),
    Row("memory|stats", memory_stats, PLAIN),
    Row("memory|doctor", memory_doctor, PLAIN),
    Row("memory|purge", memory_purge, PLAIN),
    Row("memory|malloc-stats", malloc_stats, PLAIN),
    Row("memory|help", |act, _| help(act, "MEMORY", helps::MEMORY), PLAIN),
    Row("commandlog|get", log_get, PLAIN),
    Row("commandlog|len", |act, args| log_len(act, LogKind::named(args.at(2))?), PLAIN),
    Row("commandlog|reset", |act, args| log_reset(act, LogKind::named(args.at(2))?), PLAIN),
    Row("commandlog|help", |act, _| help(act, "COMMANDLOG", helps::COMMANDLOG), PLAIN),
    Row("hotkeys|start", hotkeys_start, PLAIN),
    Row("hotkeys|stop", hotkeys_stop, PLAIN),
    Row("hotkeys|get", hotkeys_get, PLAIN),
    Row("hotkeys|reset", hotkeys_reset, PLAIN),
    Row("hotkeys|help", |act, _| help(act, "HOTKEYS", helps::HOTKEYS), PLAIN),
    Row("slowlog|get", |act, args| slow_get(act, args, false), PLAIN),
    Row("slowlog|why", |act, args| slow_get(act, args, true), PLAIN),
    Row("slowlog|len", |act, _| log_len(act, LogKind::Slow), PLAIN),
    Row("slowlog|reset", |act, _| log_reset(act, LogKind::Slow), PLAIN),
    Row("slowlog|help", |act, _| help(act, "SLOWLOG", helps::SLOWLOG), PLAIN),
    Row("latency|latest", latency_latest, PLAIN),
    Row("latency|history", latency_history, PLAIN),
    Row("latency|reset", latency_reset, PLAIN),
    Row("latency|graph", latency_graph, PLAIN),
    Row("latency|doctor", latency_doctor, PLAIN),
    Row("latency|histogram", latency_histogram, PLAIN),
    Row("latency|help", |act, _| help(act, "LATENCY", helps::LATENCY), PLAIN),
];

// ----- INFO
// -------------------------------------------------------------------------------------------------

static HOST: LazyLock<Host> = LazyLock::new(Host::this);

/// Most commands whose run times a loop adds up: some microseconds each.
const HISTOGRAMS: usize = 16;

/// `INFO [section ...]`. O(databases + commands used); percentiles of many commands are added up by the
/// reporter. Errors: those of [`key_sizes`].
fn info(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let sections = Sections::wanted(args.from(1).iter());
    if sections.has("replication")
        && let Some(flow) = replicas::wait_for_offsets(act)
    {
        return Ok(flow);
    }
    let answer = move |server: &Server, out: &mut Reply| {
        points::trip(Point::Report);
        out.verbatim("txt", sections.text(&collect(server, sections)).as_bytes());
    };
    if sections.has("keysizes") {
        return key_sizes(act, sections);
    }
    if sections.has("latencystats") && act.server.observe.stats.registry.commands_used() > HISTOGRAMS {
        let server = act.server.clone();
        return elsewhere(act, move |out| answer(&server, out));
    }
    answer(act.server, act.out);
    Ok(Flow::Done)
}

/// INFO with `keysizes`: the keys are counted on a thread of its own. O(keys). Errors: within a transaction.
fn key_sizes(act: &mut Act<'_, '_>, sections: Sections) -> Result<Flow, Error> {
    if act.in_multi {
        return Err(Error::new("ERR keysizes are not counted in a transaction: other clients would wait"));
    }
    let server = act.server.clone();
    aside(act, "keysizes", move |out| {
        let key_sizes = command::sizes::lines(&server.keyspace, stdx::clock::wall_ms());
        out.verbatim("txt", sections.text(&Snapshot { key_sizes, ..collect(&server, sections) }).as_bytes());
    })
}

/// Collects the figures of the sections, without a wait. Cost: tens of microseconds, and O(databases +
/// commands used).
pub(crate) fn collect(server: &Server, sections: Sections) -> Snapshot {
    let live = &server.config.live;
    let mut s = Snapshot {
        is_cluster: server.cluster.get().is_some(),
        persistence: server.durability.figures(),
        following: server.role.figures(),
        stats: stats(server),
        databases: (0..server.keyspace.databases()).map(|db| database(server, db)).collect(),
        ..Snapshot::default()
    };
    describe_server(server, &mut s);
    count_clients(server, &mut s);
    measure_memory(server, &mut s);
    if sections.has("cpu") {
        s.cpu = server.observe.measured.cpu();
    }
    if sections.has("commandstats") || sections.has("latencystats") {
        // Histograms take long to add up, so only where percentiles are asked for.
        let percentiles = sections.has("latencystats").then(|| live.percentiles());
        s.count_commands(&server.observe.stats.registry, &names(), percentiles.as_deref());
    }
    s.errors = server.observe.stats.registry.errors();
    s.replication = match server.replicas.get() {
        Some(replicas) => replicas.figures(),
        None => observe::info::Replication { id: server.run_id.clone(), ..Default::default() },
    };
    s.replication.failover = match server.role.failing() {
        Failing::No => "",
        Failing::Waits => "waiting-for-sync",
        Failing::InProgress => "failover-in-progress",
    };
    add_own_figures(server, &mut s);
    s
}

/// Fills in names, numbers and times of the server itself.
fn describe_server(server: &Server, s: &mut Snapshot) {
    let (live, now_ms) = (&server.config.live, stdx::clock::wall_ms());
    s.server.run_id = server.run_id.clone();
    s.server.os = HOST.os.clone();
    s.server.executable = HOST.executable.clone();
    s.server.config_file = server.config.file().map(|p| p.display().to_string()).unwrap_or_default();
    s.server.availability_zone = live.availability_zone.string();
    s.server.pid = HOST.pid;
    s.server.ports = [live.port.get() as u16, live.tls_port.get() as u16];
    s.server.now_unix_us = stdx::clock::wall_ns() / 1000;
    s.server.uptime_s = now_ms.saturating_sub(server.started_ms) / 1000;
    s.server.hz = live.hz.get() as u64;
    s.server.event_loops = server.loops() as u64;
    s.server.messages_under_way = server.pubsub.flood.level() as u64;
    s.server.multiplexing = server.multiplexing.get().copied().unwrap_or_default();
}

/// Fills in the figures that only Evenkeel has. Cost: O(1).
fn add_own_figures(server: &Server, s: &mut Snapshot) {
    let (waiting, running) = server.work.workers.load();
    let places = server.work.snapshots.usage();
    let (scripts_waiting, scripts_running) = server.scripts.load(places.scripts_waiting);
    s.evenkeel = vec![
        ("worker_jobs_waiting", (waiting + places.jobs_waiting) as u64),
        ("worker_jobs_running", running as u64),
        ("scripts_waiting", scripts_waiting as u64),
        ("scripts_running", scripts_running as u64),
        ("long_work_nice", server.observe.crowd.rank().nice() as u64),
        ("turns_taken", server.work.turns.demand() as u64),
        ("turns_waiting", server.work.turns.waiting() as u64),
        ("turns_handed_over", server.work.turns.handovers()),
        ("snapshots_open", server.keyspace.active_snapshots() as u64),
        ("last_lsn", server.keyspace.last_lsn()),
        ("undurable_keys", server.keyspace.undurable_keys() as u64),
        ("connections_moved", server.observe.stats.registry.counter(Counter::ConnectionsMoved)),
    ];
    let (kept, oldest_ms) = server.keyspace.retained();
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
    let snapshots = &server.work.snapshots;
    s.evenkeel.extend([
        ("snapshots_waiting", snapshots.waiting() as u64),
        ("places_limit", work::snapshots::PLACES as u64),
        ("places_of_jobs", places.jobs as u64),
        ("places_of_scripts", places.scripts as u64),
        ("places_of_walks", places.walks as u64),
        ("walks_waiting", places.walks_waiting as u64),
        ("places_given_up", places.gave_way),
        ("scripts_orphans_ended", count(&server.scripts.orphans_ended)),
        ("writes_in_line", server.work.lines.waiting() as u64),
        ("writes_paused", server.work.pause.held.load(Relaxed) as u64),
        ("snapshot_oldest_ms", oldest_ms),
        ("snapshot_retained_bytes", kept),
        ("stream_retained_bytes", snapshots.streamed()),
        ("snapshots_revoked_age", count(&snapshots.revoked_old)),
        ("snapshots_revoked_retained", count(&snapshots.revoked_large)),
        ("reclaim_pending_whole_bytes", stdx::reclaim::pending_whole()),
        ("reclaim_max_pending_bytes", stdx::reclaim::limit()),
        ("reclaim_full", stdx::reclaim::is_full().into()),
        ("reclaim_delays", count(&server.observe.stats.reclaim_delays)),
        ("streams_cut_age", count(&snapshots.cut_old)),
        ("streams_cut_retained", count(&snapshots.cut_large)),
    ]);
    let (lists, bytes) = server.keyspace.cursors.kept();
    s.evenkeel.extend([("lscan_lists_kept", lists as u64), ("lscan_bytes_kept", bytes as u64)]);
    s.evenkeel.extend(server.observe.waits.seen.figures());
    s.evenkeel.extend(server.past.figures());
    s.evenkeel.extend(server.observe.clients.handshakes.figures());
}

fn names() -> Vec<&'static str> {
    places::all().iter().map(|command| command.name).collect()
}

fn stats(server: &Server) -> Stats {
    use pubsub::Kind;
    let counted = Stats::of(&server.observe.stats.registry, server.observe.measured.speeds());
    let keyspace = &server.keyspace.stats;
    Stats {
        connections: server.observe.clients.accepted.load(Relaxed),
        rejected_connections: server.observe.clients.refused.load(Relaxed),
        expired_keys: keyspace.expired_keys.load(Relaxed),
        expired_fields: keyspace.expired_fields.load(Relaxed),
        evicted_keys: keyspace.evicted_keys.load(Relaxed),
        exceeded_ms: server.memory.exceeded_ms(stdx::clock::wall_ms()),
        keyspace_hits: keyspace.hits.load(Relaxed),
        keyspace_misses: keyspace.misses.load(Relaxed),
        acl_denied: [0, 1, 2, 3].map(|at| server.acl.denied[at].load(Relaxed)),
        pubsub_channels: server.pubsub.len(Kind::Channel) as u64,
        pubsub_patterns: server.pubsub.len(Kind::Pattern) as u64,
        pubsubshard_channels: server.pubsub.len(Kind::Shard) as u64,
        ..counted
    }
}

fn database(server: &Server, number: usize) -> Database {
    let (keys, expires) = (server.keyspace.len(number) as u64, server.keyspace.expires(number) as u64);
    Database { number, keys, expires, avg_ttl_ms: server.keyspace.avg_ttl_ms(number) }
}

fn count_clients(server: &Server, s: &mut Snapshot) {
    s.clients.max = server.config.live.maxclients.get() as u64;
    s.clients.blocked = (server.park.len() + server.work.pause.waiting() + role::replicas::waiting()) as u64;
    let (timed, keys) = server.park.figures();
    (s.clients.in_timeout_table, s.clients.blocking_keys) = (timed as u64, keys as u64);
    s.clients.pause = server.work.pause.state(stdx::clock::wall_ms());
    s.clients.connected = server.observe.clients.len() as u64;
    let (subscribed, watching, keys) = server.observe.clients.engaged();
    s.clients.pubsub = subscribed as u64;
    s.clients.watching = watching as u64;
    s.clients.watched_keys = keys as u64;
    let ((tracking, prefixes), (keys, items)) = (server.tracking.figures(), server.keyspace.tracked());
    (s.clients.tracking, s.clients.tracked_prefixes) = (tracking as u64, prefixes as u64);
    (s.clients.tracked_keys, s.clients.tracked_items) = (keys as u64, items as u64);
    let buffered = server.observe.clients.buffered();
    s.clients.recent_max_input_bytes = buffered.input_max;
    s.clients.recent_max_output_bytes = buffered.output_max;
    s.memory.clients = buffered.all;
}

fn measure_memory(server: &Server, s: &mut Snapshot) {
    let live = &server.config.live;
    let m = &mut s.memory;
    m.allocator = server.observe.measured.allocator();
    m.used = server.memory.handed_out(&server.keyspace, server.work.snapshots.streamed());
    // Not kept: shared contents count in full until the allocator is asked.
    m.peak = server.observe.stats.peak_bytes.load(Relaxed).max(m.used);
    m.startup = server.observe.stats.startup_bytes.load(Relaxed);
    m.source_changes = server.rows.list().iter().map(|entry| entry.queue.waiting().1).sum();
    let work = &server.memory.work;
    (m.work, m.work_max, m.work_refused) = (work.used(), work.limit(), work.refused());
    m.overhead = m.startup + m.clients + m.source_changes + m.work;
    m.resident = server.observe.measured.resident_bytes();
    m.system = HOST.memory_bytes;
    m.max = live.maxmemory_bytes.get() as u64;
    m.policy = server
        .config
        .value("maxmemory-policy")
        .map(|p| String::from_utf8_lossy(&p).into_owned())
        .unwrap_or_default();
    m.reclaim_pending = stdx::reclaim::pending_bytes();
    m.reclaimed_objects = stdx::reclaim::reclaimed_items();
    let registry = &server.observe.stats.registry;
    let (scripts, functions) = server.scripts.thread_bytes();
    m.lua = registry.counter(Counter::LuaBytes) + scripts;
    m.lua_functions = registry.counter(Counter::LuaFunctionBytes) + functions;
    let (scripts, bytes) = server.scripts.code.script_sizes();
    (m.script_count, m.scripts) = (scripts as u64, bytes as u64);
    m.evicted_scripts = server.scripts.code.evicted();
    let (libraries, functions, bytes) = server.scripts.code.library_sizes();
    m.functions = bytes as u64;
    m.function_count = functions as u64;
    m.library_count = libraries as u64;
}

// ----- MEMORY
// -----------------------------------------------------------------------------------------------

/// `MEMORY STATS`. O(databases)
fn memory_stats(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    memory_report::write_stats(&collect(act.server, Sections::wanted([&b"memory"[..]])), act.out);
    Ok(Flow::Done)
}

/// `MEMORY DOCTOR`: advice from the figures alone. O(databases)
fn memory_doctor(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let snapshot = collect(act.server, Sections::wanted([&b"memory"[..]]));
    act.out.verbatim("txt", memory_report::diagnosis(&snapshot).as_bytes());
    Ok(Flow::Done)
}

/// `MEMORY PURGE`: engines collect their garbage, by the reporter. The allocator returns unused pages by
/// itself, within seconds. O(1) on the loop.
fn memory_purge(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    stdx::reclaim::flush();
    act.server.scripts.purge();
    let server = act.server.clone();
    act.server.observe.reporter.send(move || server.scripts.tidy_idle());
    act.out.ok();
    Ok(Flow::Done)
}

/// `MEMORY MALLOC-STATS`: the allocator's own report, some milliseconds of the reporter.
fn malloc_stats(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let server = act.server.clone();
    elsewhere(act, move |out| {
        let report = server.program.get().map(|program| program.allocator_report());
        let report = report.unwrap_or_else(|| "Nothing is known about the allocator.\n".into());
        out.verbatim("txt", report.as_bytes());
    })
}

// ----- COMMANDLOG, SLOWLOG and LATENCY
// ---------------------------------------------------------------------------------

/// Most entries of a log that are sent at once.
const FEW_ENTRIES: usize = 256;

/// `COMMANDLOG GET count type`. O(count), on a thread of its own if that is large. Errors: count, type.
/// Source: Valkey 8.1.
fn log_get(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let count = commandlog::count(args.at(2))?;
    show_log(act, LogKind::named(args.at(3))?, count, false)
}

/// `SLOWLOG GET [count]`, `SLOWLOG WHY [count]`. O(count), on a thread of its own if that is large. Errors:
/// the count is no number; more words.
fn slow_get(act: &mut Act<'_, '_>, args: Args<'_>, with_cause: bool) -> Result<Flow, Error> {
    if args.len() > 3 {
        let name = String::from_utf8_lossy(args.at(1));
        let text = "unknown subcommand or wrong number of arguments for";
        return Err(format!("ERR {text} '{name}'. Try SLOWLOG HELP.").into());
    }
    let count = args.get(2).map_or(Ok(10), commandlog::count)?;
    show_log(act, LogKind::Slow, count, with_cause)
}

fn show_log(act: &mut Act<'_, '_>, kind: LogKind, count: usize, with_cause: bool) -> Result<Flow, Error> {
    if count > FEW_ENTRIES && the_log(act, kind).len() > FEW_ENTRIES {
        let server = act.server.clone();
        return aside(act, "commandlog", move |out| {
            commandlog::write(server.observe.stats.logs.of(kind), count, with_cause, out);
        });
    }
    commandlog::write(act.server.observe.stats.logs.of(kind), count, with_cause, act.out);
    Ok(Flow::Done)
}

fn the_log<'a>(act: &'a Act<'_, '_>, kind: LogKind) -> &'a CommandLog {
    act.server.observe.stats.logs.of(kind)
}

/// `COMMANDLOG LEN type`, `SLOWLOG LEN`. O(1)
fn log_len(act: &mut Act<'_, '_>, kind: LogKind) -> Result<Flow, Error> {
    act.out.int(the_log(act, kind).len() as i64);
    Ok(Flow::Done)
}

/// `COMMANDLOG RESET type`, `SLOWLOG RESET`. O(1); the entries are freed elsewhere.
fn log_reset(act: &mut Act<'_, '_>, kind: LogKind) -> Result<Flow, Error> {
    the_log(act, kind).reset();
    act.out.ok();
    Ok(Flow::Done)
}

/// Processor time of the process for HOTKEYS.
fn cpu_ms(act: &Act<'_, '_>) -> hotkeys::CpuMs {
    let cpu = act.server.observe.measured.cpu();
    ((cpu.user_s * 1000.0) as u64, (cpu.system_s * 1000.0) as u64)
}

/// `HOTKEYS START METRICS count [CPU] [NET] [COUNT k] [DURATION seconds] [SAMPLE ratio]`. O(words). Errors:
/// those of the words; it runs already. Source: the documentation of Redis 8.6.
fn hotkeys_start(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let options = hotkeys::Options::parse(args.from(2))?;
    act.server.observe.stats.hotkeys.start(options, act.local.log.now_ms, cpu_ms(act))?;
    act.out.ok();
    Ok(Flow::Done)
}

/// `HOTKEYS STOP`. O(1). Errors: it does not run.
fn hotkeys_stop(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.server.observe.stats.hotkeys.stop(act.local.log.now_ms, cpu_ms(act))?;
    act.out.ok();
    Ok(Flow::Done)
}

/// `HOTKEYS GET`: sums and lists, or null. O(keys shown)
fn hotkeys_get(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let cpu = cpu_ms(act);
    act.server.observe.stats.hotkeys.write(act.local.log.now_ms, cpu, act.out);
    Ok(Flow::Done)
}

/// `HOTKEYS RESET`. O(1); the lists are freed elsewhere. Errors: it runs.
fn hotkeys_reset(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.server.observe.stats.hotkeys.reset(act.local.log.now_ms)?;
    act.out.ok();
    Ok(Flow::Done)
}

/// `LATENCY LATEST`. O(samples of all events)
fn latency_latest(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    latency::latest(&act.server.observe.stats.events, act.out);
    Ok(Flow::Done)
}

/// `LATENCY HISTORY event`. O(samples)
fn latency_history(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    latency::history(&act.server.observe.stats.events, args, act.out);
    Ok(Flow::Done)
}

/// `LATENCY RESET [event ...]`. O(events · names)
fn latency_reset(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    latency::reset(&act.server.observe.stats.events, args, act.out);
    Ok(Flow::Done)
}

/// `LATENCY GRAPH event`. O(samples). Errors: there is no such event.
fn latency_graph(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    latency::graph(&act.server.observe.stats.events, args, act.local.log.now_ms / 1000, act.out);
    Ok(Flow::Done)
}

/// `LATENCY DOCTOR`. O(samples of all events)
fn latency_doctor(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let live = &act.server.config.live;
    let (threshold_ms, slower_us) = (live.latency_threshold_ms.get(), live.slowlog_slower_us.get());
    latency::doctor(&act.server.observe.stats.events, threshold_ms, slower_us, act.out);
    Ok(Flow::Done)
}

/// `LATENCY HISTOGRAM [command ...]`. O(commands · buckets · threads), by the reporter.
fn latency_histogram(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (server, args) = (act.server.clone(), kept(act, args));
    elsewhere(act, move |out| latency::histogram(&server.observe.stats.registry, &names(), args.args(), out))
}
