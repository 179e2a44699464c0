//! EVENKEEL SOURCE: databases that are read through ([`crate::sources`]).

use super::{Act, elsewhere};
use crate::Server;
use crate::call::Flow;
use crate::sources::Entry;
use command::Error;
use command::options::is;
use resp::{Args, Reply};
use source::Spec;
use source::hub::FeedState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const HELP: &[&str] = &[
    "SOURCE ADD <name> <key-pattern> <url> [<option> <value> ...]",
    "    Reads keys such as item:{id} through to a table or collection. Options as those of the source directive.",
    "SOURCE LIST",
    "    The sources, as they are configured.",
    "SOURCE STATS [<name>]",
    "    What is cached of each source, and how it does.",
    "SOURCE PAUSE <name> | RESUME <name>",
    "    Loads nothing from its database; what is cached is answered and kept fresh.",
    "SOURCE FLUSH <name> [<id> ...]",
    "    Gives up what is cached of these rows, or of all.",
    "SOURCE REMOVE <name>",
    "    Ends it.",
];

/// Ids that are given up by one command.
const IDS_MAX: usize = 1000;

/// `EVENKEEL SOURCE ADD | LIST | STATS | PAUSE | RESUME | FLUSH | REMOVE`.
pub(super) fn source(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let word = args.at(2);
    let rest = args.len() - 3;
    match () {
        _ if is(word, "add") && rest >= 3 => add(act, args),
        _ if is(word, "list") && rest == 0 => list(act),
        _ if is(word, "stats") && rest <= 1 => stats(act, args),
        _ if is(word, "pause") && rest == 1 => pause(act, args, true),
        _ if is(word, "resume") && rest == 1 => pause(act, args, false),
        _ if is(word, "flush") && rest >= 1 => flush(act, args),
        _ if is(word, "remove") && rest == 1 => remove(act, args),
        _ => Err(Error::Syntax),
    }
}

/// Making a driver may take milliseconds: it happens on another thread.
fn add(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let words = args.from(3).iter().map(|word| std::str::from_utf8(word));
    let words = words.collect::<Result<Vec<_>, _>>().map_err(|_| Error::new("ERR a word is not UTF-8"))?;
    let spec = Spec::parse(words).map_err(|e| Error::from(format!("ERR {}", one_line(&e))))?;
    let server = act.server.clone();
    elsewhere(act, move |out| match server.sources.add(&server, spec) {
        Ok(()) => out.ok(),
        Err(e) => out.error(&format!("ERR {}", one_line(&e))),
    })
}

fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

fn entry(server: &Server, name: &[u8]) -> Result<Arc<Entry>, Error> {
    let shown = || String::from_utf8_lossy(name).into_owned();
    server.sources.by_name(name).ok_or_else(|| format!("ERR no source '{}'", shown()).into())
}

fn list(act: &mut Act<'_, '_>) -> Result<Flow, Error> {
    let list = act.server.sources.list();
    act.out.array(list.len());
    for entry in list.iter() {
        let mut words = entry.spec().words();
        words[2] = entry.spec().shown_url();
        act.out.bulk(words.join(" ").as_bytes());
    }
    Ok(Flow::Done)
}

fn pause(act: &mut Act<'_, '_>, args: Args<'_>, paused: bool) -> Result<Flow, Error> {
    entry(act.server, args.at(3))?.source.pause(paused);
    act.out.ok();
    Ok(Flow::Done)
}

/// Cost: O(ids), or O(shards).
fn flush(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let entry = entry(act.server, args.at(3))?;
    let ids = args.from(4);
    if ids.len() > IDS_MAX {
        return Err(format!("ERR at most {IDS_MAX} ids at once").into());
    }
    if ids.is_empty() && (act.in_multi || act.in_script) {
        // Locks are held that emptying takes: it follows.
        entry.source.flush();
    } else if ids.is_empty() {
        entry.source.marks.mark_all();
        crate::sources::empty(act.server, act.local, &entry);
    } else {
        // In slices; whoever asks on this loop after that gets fresh rows, others soon do.
        entry.source.give_up(ids.iter());
    }
    act.out.ok();
    Ok(Flow::Done)
}

fn remove(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if act.in_multi || act.in_script {
        return Err(Error::new("ERR a source cannot be removed in a transaction"));
    }
    match act.server.sources.remove(act.server, act.local, args.at(3)) {
        true => act.out.ok(),
        false => return entry(act.server, args.at(3)).map(|_| Flow::Done),
    }
    Ok(Flow::Done)
}

/// `EVENKEEL SOURCE STATS [name]`: a map of maps; of one source its own map.
fn stats(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let server = act.server.clone();
    if let Some(name) = args.get(3) {
        let entry = entry(&server, name)?;
        return elsewhere(act, move |out| write(&server, &entry, out));
    }
    elsewhere(act, move |out| {
        let list = server.sources.list();
        out.map(list.len());
        for entry in list.iter() {
            out.bulk(entry.spec().name.as_bytes());
            write(&server, entry, out);
        }
    })
}

/// What kind of a figure it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows.
    Counter,
    Gauge,
    /// A gauge in microseconds or milliseconds, which its name says, too.
    Micros,
    Millis,
}

/// How often clients found a row, or that there is none, without waiting for the database; and how often they would with half and
/// twice the items. None: not known.
pub fn hit_ratios(entry: &Entry) -> [(&'static str, Option<f64>); 3] {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (hits, misses) = (get(&entry.seen.hits) + get(&entry.seen.negative_hits), get(&entry.seen.misses));
    let ratio = (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64);
    // Of a cache that is not full no size can be said to be better.
    let other = ratio.zip(entry.sizing.difference());
    let clamped = |ratio: f64| ratio.clamp(0.0, 1.0);
    [
        ("hit-ratio", ratio),
        ("hit-ratio-at-half-budget", other.map(|(ratio, (less, _))| clamped(ratio - less))),
        ("hit-ratio-at-twice-budget", other.map(|(ratio, (_, more))| clamped(ratio + more))),
    ]
}

/// The figures of a source, by name.
pub fn figures(server: &Server, entry: &Entry) -> Vec<(&'static str, Kind, u64)> {
    use Kind::*;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (seen, counters) = (&entry.seen, &entry.source.counters);
    let (queued, loading) = entry.source.load();
    let (expired, evicted) = server.keyspace.removed_keys(entry.db);
    let loads = get(&counters.loads);
    let (removals, removals_bytes) = entry.queue.waiting();
    let (today, yesterday) = entry.sizing.distinct_ids();
    let mean_ttl_ms = (entry.spec().ttl + entry.spec().stale_if_error).as_millis() as u64;
    let age_ms = match server.keyspace.avg_ttl_ms(entry.db) {
        0 => 0,
        left => mean_ttl_ms.saturating_sub(left),
    };
    vec![
        ("items", Gauge, server.keyspace.len(entry.db) as u64),
        ("negative-items", Gauge, server.keyspace.len(entry.absent_db()) as u64),
        ("bytes", Gauge, entry.bytes(server)),
        ("budget-bytes", Gauge, entry.spec().budget),
        ("hits", Counter, get(&seen.hits)),
        ("misses", Counter, get(&seen.misses)),
        ("negative-hits", Counter, get(&seen.negative_hits)),
        ("stale", Counter, get(&seen.stale)),
        ("errors", Counter, get(&seen.errors)),
        ("evicted", Counter, evicted),
        ("expired", Counter, expired),
        ("invalidated", Counter, get(&seen.invalidated)),
        ("refreshed", Counter, get(&seen.refreshed)),
        ("refused-fills", Counter, get(&seen.refused)),
        ("loads", Counter, loads),
        ("loaded-rows", Counter, get(&counters.loaded_rows)),
        ("absent-rows", Counter, get(&counters.absent_rows)),
        ("failed-loads", Counter, get(&counters.failures)),
        ("load-mean-us", Micros, get(&counters.load_us).checked_div(loads).unwrap_or(0)),
        ("load-max-us", Micros, get(&counters.load_max_us)),
        ("loading", Gauge, loading as u64),
        ("queued-ids", Gauge, queued as u64),
        ("queue-full", Counter, get(&counters.full)),
        ("changes", Counter, get(&counters.changes)),
        ("lag-ms", Millis, get(&seen.lag_ms)),
        ("lag-max-ms", Millis, get(&seen.lag_max_ms)),
        ("feed-opened", Counter, get(&counters.opened)),
        ("feed-caught-up-ms", Millis, get(&counters.caught_up_ms)),
        ("flushes", Counter, get(&counters.lost)),
        ("waiting-removals", Gauge, removals),
        ("waiting-removals-bytes", Gauge, removals_bytes),
        ("age-mean-ms", Millis, age_ms),
        ("distinct-ids-today", Gauge, today),
        ("distinct-ids-yesterday", Gauge, yesterday),
    ]
}

fn write(server: &Server, entry: &Entry, out: &mut Reply) {
    let (figures, ratios) = (figures(server, entry), hit_ratios(entry));
    out.map(figures.len() + ratios.len() + 4);
    text(out, "state", if entry.source.is_paused() { "paused" } else { "serving" });
    let (feed, trouble) = match entry.source.feed() {
        FeedState::Opening => ("opening", String::new()),
        FeedState::Open => ("open", String::new()),
        FeedState::Off => ("off", String::new()),
        FeedState::Broken(why) => ("broken", why),
    };
    text(out, "feed", feed);
    text(out, "trouble", &entry.source.trouble().unwrap_or(trouble));
    text(out, "last-flush", &entry.source.last_loss());
    for (name, ratio) in ratios {
        out.bulk(name.as_bytes());
        match ratio {
            Some(ratio) => out.double(ratio),
            None => out.null(),
        }
    }
    for (name, _, value) in figures {
        out.bulk(name.as_bytes());
        out.int(value as i64);
    }
}

fn text(out: &mut Reply, name: &str, text: &str) {
    out.bulk(name.as_bytes());
    out.bulk(text.as_bytes());
}
