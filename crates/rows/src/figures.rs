//! The figures of a source, for EVENKEEL SOURCE STATS and `/metrics`.

use super::entry::Entry;
use keyspace::Keyspace;
use std::sync::atomic::{AtomicU64, Ordering};

/// The kind of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows.
    Counter,
    Gauge,
    /// A gauge in microseconds or milliseconds, which its name says, too.
    Micros,
    Millis,
}

/// Ratio of requests that found a row, or that there is none, without waiting for the database. Behind it
/// come the ratios with half and twice the items. `None`: not known.
pub fn hit_ratios(entry: &Entry) -> [(&'static str, Option<f64>); 3] {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (hits, misses) = (get(&entry.seen.hits) + get(&entry.seen.negative_hits), get(&entry.seen.misses));
    let ratio = (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64);
    // While a cache is not full no other size is better.
    let other = ratio.zip(entry.sizing.difference());
    let clamped = |ratio: f64| ratio.clamp(0.0, 1.0);
    [
        ("hit-ratio", ratio),
        ("hit-ratio-at-half-budget", other.map(|(ratio, (less, _))| clamped(ratio - less))),
        ("hit-ratio-at-twice-budget", other.map(|(ratio, (_, more))| clamped(ratio + more))),
    ]
}

/// The figures of a source, by name.
pub fn figures(keyspace: &Keyspace, entry: &Entry) -> Vec<(&'static str, Kind, u64)> {
    use Kind::*;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (seen, counters) = (&entry.seen, &entry.source.counters);
    let (queued, loading) = entry.source.load();
    let (expired, evicted) = keyspace.removed_keys(entry.db);
    let loads = get(&counters.loads);
    let (removals, removals_bytes) = entry.queue.waiting();
    let (today, yesterday) = entry.sizing.distinct_ids();
    let mean_ttl_ms = (entry.spec().ttl + entry.spec().stale_if_error).as_millis() as u64;
    let age_ms = match keyspace.avg_ttl_ms(entry.db) {
        0 => 0,
        left => mean_ttl_ms.saturating_sub(left),
    };
    vec![
        ("items", Gauge, keyspace.len(entry.db) as u64),
        ("negative-items", Gauge, keyspace.len(entry.absent_db()) as u64),
        ("bytes", Gauge, entry.bytes(keyspace)),
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
