//! The replies to EVENKEEL: a map in RESP3 is an array of names and values in RESP2.

use super::{Culprit, Request, Stall, Sum, Wait, What};
use crate::Observe;
use crate::stats::{Histogram, PHASES};
use resp::Reply;
use std::sync::atomic::Ordering::Relaxed;

/// Most functions that are shown of a stall.
const FRAMES: usize = 12;

/// The lines of EVENKEEL HELP, without those of SOURCE.
pub const HELP: &[&str] = &[
    "FLOWS <from> <to>",
    "    Who made whom wait in that time, and which clients worked most.",
    "HISTORY <from> <to> [<columns>]",
    "    That time in columns: latencies, waits by cause, figures, and what happened to the server.",
    "    Times are in milliseconds since 1970; 0 and below count from now.",
    "INCIDENTS [<from> <to>]",
    "    The worst times of the last day, or of a span.",
    "LOST [<file> [<count>]]",
    "    The files of writes that were lost to another primary, or the writes in one of them: when, where and what.",
    "NOW [SINCE <time>]",
    "    The last second and minute: waits, who made whom wait, who works; disk, replicas, sources.",
    "    SINCE: the waits, incidents and marks since then instead, of the last minute at most.",
    "PHASES",
    "    How often and how long requests waited for what, and ran where, in microseconds.",
    "PREFIXES [RUN | GET [<count>]]",
    "    Who uses the keys and the memory, by the beginnings of names, as RUN counted it last, and the largest keys.",
    "RECORDS <from> <to> [FOR <cause>] [WAITER <name>] [CULPRIT <name>] [MIN <us>] [COUNT <n>] [SKIP <n>]",
    "    The longest waits and slow requests of that time, with their phases.",
    "REPLICAS",
    "    The servers that follow: what each is doing, and how far it is behind, in bytes and milliseconds.",
    "STALLS [<count>]",
    "    The latest turns of event loops that took a millisecond or more, and because of whom.",
    "WAITS [RESET] [<count>]",
    "    Waits by cause, those made to wait by one culprit added up, and the latest waits one by one:",
    "    who waited, for whom, for what, how long at most. RESET forgets them after it answered.",
    "WHY <client-id>",
    "    A client's latest slow requests with their phases, and its latest waits.",
];

/// Writes the reply to EVENKEEL WAITS, with `count` of each list. O(culprits + waits remembered)
pub fn write_waits(observe: &Observe, count: usize, out: &mut Reply) {
    out.map(3);
    out.bulk(b"causes");
    let totals: Vec<(What, Sum)> =
        observe.waits.totals().into_iter().filter(|(_, sum)| sum.waits > 0).collect();
    out.map(totals.len());
    for (what, sum) in totals {
        out.bulk(what.name().as_bytes());
        out.map(3);
        write_sum(sum, out);
    }
    out.bulk(b"culprits");
    let culprits = observe.waits.culprits(count);
    out.array(culprits.len());
    for (what, sum, culprit) in culprits {
        out.map(5);
        text(out, "for", what.name());
        out.bulk(b"behind");
        write_culprit(culprit.as_deref(), out);
        write_sum(sum, out);
    }
    out.bulk(b"latest");
    let latest = observe.waits.recent(count, |_| true);
    out.array(latest.len());
    latest.iter().for_each(|wait| write_wait(wait, out));
}

/// Writes a sum as three pairs of a map.
fn write_sum(sum: Sum, out: &mut Reply) {
    int(out, "waits", sum.waits);
    int(out, "us", sum.ns / 1000);
    int(out, "longest-us", sum.max_ns / 1000);
}

fn write_wait(wait: &Wait, out: &mut Reply) {
    out.map(9);
    int(out, "id", wait.id);
    int(out, "time-ms", wait.unix_ms);
    int(out, "client", wait.client.id);
    text(out, "addr", &wait.client.address);
    let name = wait.client.text.lock().name.clone();
    out.bulk(b"name");
    out.bulk(&name);
    text(out, "command", wait.command);
    text(out, "for", wait.what.name());
    int(out, "us", wait.ns / 1000);
    out.bulk(b"behind");
    write_culprit(wait.culprit.as_deref(), out);
}

fn write_culprit(culprit: Option<&Culprit>, out: &mut Reply) {
    let Some(culprit) = culprit else { return out.null() };
    out.map(7);
    int(out, "client", culprit.client_id());
    text(out, "addr", culprit.address());
    let name = culprit.name();
    out.bulk(b"name");
    out.bulk(&name);
    out.bulk(b"command");
    match culprit.words.is_empty() {
        true => out.bulk(culprit.command.as_bytes()),
        false => out.bulk(&culprit.words.join(&b' ')),
    }
    int(out, "us", culprit.ns / 1000);
    int(out, "descheduled-us", culprit.os_ns / 1000);
    out.bulk(b"taken-by");
    out.array(culprit.neighbours().len());
    for one in culprit.neighbours() {
        out.map(3);
        text(out, "name", &one.name);
        int(out, "pid", one.pid.into());
        int(out, "us", one.ns / 1000);
    }
}

/// Writes the reply to EVENKEEL WHY: an error if the client is unknown. O(waits remembered)
pub fn write_why(observe: &Observe, id: u64, count: usize, out: &mut Reply) {
    let waits = observe.waits.recent(count, |wait| wait.client.id == id);
    // A client that disconnected is known as long as one of its waits is.
    let client = observe.clients.get(id).or_else(|| waits.first().map(|wait| wait.client.clone()));
    let Some(client) = client else { return out.error("ERR No such client ID, and nothing is known of it") };
    let requests: Vec<Request> = client.history.lock().iter().rev().cloned().collect();
    let (name, last_ns) = (client.text.lock().name.clone(), client.last_ns.load(Relaxed));
    out.map(7);
    int(out, "client", id);
    text(out, "addr", &client.address);
    out.bulk(b"name");
    out.bulk(&name);
    text(out, "last-command", client.command());
    int(out, "last-command-us", last_ns / 1000);
    out.bulk(b"slow-requests");
    out.array(requests.len());
    requests.iter().for_each(|request| write_request(request, out));
    out.bulk(b"waits");
    out.array(waits.len());
    waits.iter().for_each(|wait| write_wait(wait, out));
}

fn write_request(request: &Request, out: &mut Reply) {
    out.map(5);
    int(out, "time-ms", request.unix_ms);
    text(out, "command", request.command);
    out.bulk(b"phases-us");
    let phases = request.phases();
    out.map(phases.len());
    phases.into_iter().for_each(|(name, us)| int(out, name, us));
    int(out, "lost-attempts", request.lost.into());
    out.bulk(b"behind");
    write_culprit(request.behind.as_deref(), out);
}

/// Writes the reply to EVENKEEL STALLS. O(stalls remembered)
pub fn write_stalls(observe: &Observe, count: usize, out: &mut Reply) {
    let stalls = observe.waits.stalls(count);
    out.array(stalls.len());
    stalls.iter().for_each(|stall| write_stall(stall, out));
}

fn write_stall(stall: &Stall, out: &mut Reply) {
    out.map(7);
    int(out, "time-ms", stall.unix_ms);
    int(out, "loop", stall.loop_id as u64);
    int(out, "us", stall.ns / 1000);
    int(out, "commands", stall.commands.into());
    text(out, "for", stall.culprit.what.name());
    out.bulk(b"behind");
    write_culprit(Some(&stall.culprit), out);
    // The functions that the loop was seen in, innermost first.
    out.bulk(b"in");
    let frames = &stall.stack[..stall.stack.len().min(FRAMES)];
    out.array(frames.len());
    frames.iter().for_each(|address| out.bulk(machine::stacks::name(*address).as_bytes()));
}

/// Writes the reply to EVENKEEL PHASES. O(commands used)
pub fn write_phases(observe: &Observe, out: &mut Reply) {
    let registry = &observe.stats.registry;
    out.map(PHASES.len() + 1);
    write_histogram("ran", &registry.all_commands(), out);
    for (phase, name) in PHASES {
        write_histogram(name, &registry.phase(phase), out);
    }
}

fn write_histogram(name: &str, histogram: &Histogram, out: &mut Reply) {
    out.bulk(name.as_bytes());
    out.map(5);
    int(out, "count", histogram.total());
    for (name, percent) in [("p50-us", 50.0), ("p99-us", 99.0), ("p99.9-us", 99.9), ("max-us", 100.0)] {
        out.bulk(name.as_bytes());
        out.double(histogram.percentile(percent) as f64 / 1000.0);
    }
}

fn int(out: &mut Reply, name: &str, n: u64) {
    out.bulk(name.as_bytes());
    out.int(n as i64);
}

fn text(out: &mut Reply, name: &str, text: &str) {
    out.bulk(name.as_bytes());
    out.bulk(text.as_bytes());
}
