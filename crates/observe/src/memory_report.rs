//! MEMORY STATS and MEMORY DOCTOR: where the memory goes, in numbers and in words.

use crate::info::{Snapshot, human};
use resp::Reply;

/// Writes the reply to MEMORY STATS. O(databases)
pub fn write_stats(s: &Snapshot, out: &mut Reply) {
    let m = &s.memory;
    let keys: u64 = s.databases.iter().map(|db| db.keys).sum();
    let dataset = m.used.saturating_sub(m.overhead);
    let since_start = m.used.saturating_sub(m.startup);
    let (peak, a) = (m.peak.max(1), &m.allocator);
    let before = [
        ("peak.allocated", m.peak),
        ("total.allocated", m.used),
        ("startup.allocated", m.startup),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", m.clients),
        ("cluster.links", 0),
        ("source.changes", m.source_changes),
        ("aof.buffer", 0),
        ("lua.caches", m.scripts),
        ("functions.caches", m.functions),
        ("script.VMs", m.lua + m.lua_functions),
    ];
    let numbers = [
        ("overhead.total", m.overhead),
        ("keys.count", keys),
        ("keys.bytes-per-key", dataset.checked_div(keys).unwrap_or(0)),
        ("dataset.bytes", dataset),
    ];
    let shares = [
        ("dataset.percentage", 100.0 * share(dataset, since_start).min(1.0)),
        ("peak.percentage", 100.0 * share(m.used, peak)),
    ];
    let allocator = [
        ("allocator.allocated", a.allocated),
        ("allocator.active", a.active),
        ("allocator.resident", a.resident),
    ];
    let fractions = [
        ("allocator-fragmentation.ratio", share(a.active, a.allocated), a.active as i64 - a.allocated as i64),
        ("allocator-rss.ratio", share(a.resident, a.active), a.resident as i64 - a.active as i64),
        ("rss-overhead.ratio", share(m.resident, a.resident), m.resident as i64 - a.resident as i64),
        ("fragmentation", share(m.resident, m.used), m.resident as i64 - m.used as i64),
    ];
    let databases = s.databases.iter().filter(|db| db.keys > 0);
    let pairs = before.len() + databases.clone().count() + numbers.len() + shares.len() + allocator.len();
    out.map(pairs + 2 * fractions.len());
    before.iter().for_each(|pair| write_number(out, pair));
    for db in databases {
        out.bulk(format!("db.{}", db.number).as_bytes());
        out.map(2);
        write_number(out, &("overhead.hashtable.main", 0));
        write_number(out, &("overhead.hashtable.expires", 0));
    }
    numbers.iter().for_each(|pair| write_number(out, pair));
    for (name, value) in shares {
        out.bulk(name.as_bytes());
        out.double(value);
    }
    allocator.iter().for_each(|pair| write_number(out, pair));
    fractions.iter().for_each(|fraction| write_fraction(out, fraction));
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn write_number(out: &mut Reply, (name, value): &(&str, u64)) {
    out.bulk(name.as_bytes());
    out.int(*value as i64);
}

/// Writes a ratio, and the bytes it stands for.
fn write_fraction(out: &mut Reply, (name, ratio, bytes): &(&str, f64, i64)) {
    out.bulk(name.as_bytes());
    out.double(*ratio);
    out.bulk(format!("{}.bytes", name.trim_end_matches(".ratio")).as_bytes());
    out.int(*bytes);
}

/// The text of MEMORY DOCTOR: advice from the figures alone. O(1)
pub fn diagnosis(s: &Snapshot) -> String {
    let m = &s.memory;
    if m.used < 5 << 20 {
        return format!("Only {} are in use: too little to say anything about it.\n", human(m.used));
    }
    let mut findings = Vec::new();
    if m.peak > m.used + m.used / 2 {
        findings.push(format!(
            "The most ever in use was {}, now it is {}: the process may hold memory it needed only then.",
            human(m.peak),
            human(m.used)
        ));
    }
    if m.resident > m.used + m.used / 2 && m.resident - m.used > 10 << 20 {
        findings.push(format!(
            "{} are resident for {} in use: pages are partly empty, or not yet given back.",
            human(m.resident),
            human(m.used)
        ));
    }
    if s.clients.connected > 0 && m.clients / s.clients.connected > 200 << 10 {
        findings.push(format!(
            "Each of {} clients has {} in its buffers on average: some send faster than they are served, or do not read.",
            s.clients.connected,
            human(m.clients / s.clients.connected)
        ));
    }
    if m.reclaim_pending > m.used / 10 {
        findings.push(format!("{} of dropped values are being freed.", human(m.reclaim_pending)));
    }
    if findings.is_empty() {
        return format!("{} are in use, and nothing about it is remarkable.\n", human(m.used));
    }
    findings.iter().map(|finding| format!("- {finding}\n")).collect()
}
