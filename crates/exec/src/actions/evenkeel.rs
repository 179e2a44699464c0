//! EVENKEEL: which client made which client wait ([`observe::waits`]). An answer is a map in RESP3, and an
//! array of names and values in RESP2.

use super::answer::{elsewhere, help};
use crate::Server;
use crate::act::{Act, PLAIN, Row};
use command::Error;
use command::Flow;
use command::options::is;
use observe::stats::{Histogram, PHASES};
use observe::waits::{Culprit, Request, Stall, Sum, Wait, What};
use resp::{Args, Reply};

pub(super) const ACTIONS: &[Row] = &[
    Row("evenkeel|waits", waits, PLAIN),
    Row("evenkeel|why", why, PLAIN),
    Row("evenkeel|stalls", stalls, PLAIN),
    Row("evenkeel|phases", phases, PLAIN),
    Row("evenkeel|source", super::sources::source, PLAIN),
    Row("evenkeel|help", |act, _| help(act, "EVENKEEL", &[HELP, super::sources::HELP].concat()), PLAIN),
];

const HELP: &[&str] = &[
    "PHASES",
    "    How often and how long requests waited for what, and ran where, in microseconds.",
    "STALLS [<count>]",
    "    The latest turns of event loops that took a millisecond or more, and because of whom.",
    "WAITS [RESET] [<count>]",
    "    Waits by cause, those made to wait by one culprit added up, and the latest waits one by one:",
    "    who waited, for whom, for what, how long at most. RESET forgets them after it answered.",
    "WHY <client-id>",
    "    A client's latest slow requests with their phases, and its latest waits.",
];

/// Count of waits, stalls and culprits that are shown by default.
const SHOWN: usize = 10;

/// Most functions that are shown of a stall.
const FRAMES: usize = 12;

fn count(word: Option<&[u8]>) -> Result<usize, Error> {
    let Some(word) = word else { return Ok(SHOWN) };
    let count = stdx::num::parse_i64(word).and_then(|n| usize::try_from(n).ok());
    count.ok_or(Error::new("ERR count must be a number of 0 or more"))
}

/// `EVENKEEL WAITS [RESET] [count]`.
fn waits(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let reset = args.get(2).is_some_and(|word| is(word, "reset"));
    let counted = args.get(2 + usize::from(reset));
    if args.len() > 2 + usize::from(reset) + usize::from(counted.is_some()) {
        return Err(Error::Syntax);
    }
    let (count, server) = (count(counted)?, act.server.clone());
    elsewhere(act, move |out| {
        write_waits(&server, count, out);
        if reset {
            server.observe.waits.reset();
        }
    })
}

fn write_waits(server: &Server, count: usize, out: &mut Reply) {
    out.map(3);
    out.bulk(b"causes");
    let totals: Vec<(What, Sum)> =
        server.observe.waits.totals().into_iter().filter(|(_, sum)| sum.waits > 0).collect();
    out.map(totals.len());
    for (what, sum) in totals {
        out.bulk(what.name().as_bytes());
        out.map(3);
        write_sum(sum, out);
    }
    out.bulk(b"culprits");
    let culprits = server.observe.waits.culprits(count);
    out.array(culprits.len());
    for (what, sum, culprit) in culprits {
        out.map(5);
        text(out, "for", what.name());
        out.bulk(b"behind");
        write_culprit(culprit.as_deref(), out);
        write_sum(sum, out);
    }
    out.bulk(b"latest");
    let latest = server.observe.waits.recent(count, |_| true);
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

/// `EVENKEEL WHY client-id`.
fn why(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let id = stdx::num::parse_i64(args.at(2)).and_then(|id| u64::try_from(id).ok());
    let id = id.ok_or(Error::new("ERR Invalid client ID"))?;
    let server = act.server.clone();
    elsewhere(act, move |out| write_why(&server, id, out))
}

fn write_why(server: &Server, id: u64, out: &mut Reply) {
    let waits = server.observe.waits.recent(SHOWN, |wait| wait.client.id == id);
    // A client that disconnected is known as long as one of its waits is.
    let client = server.observe.clients.get(id).or_else(|| waits.first().map(|wait| wait.client.clone()));
    let Some(client) = client else { return out.error("ERR No such client ID, and nothing is known of it") };
    let requests: Vec<Request> = client.history.lock().iter().rev().cloned().collect();
    let (name, last_ns) =
        (client.text.lock().name.clone(), client.last_ns.load(std::sync::atomic::Ordering::Relaxed));
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

/// `EVENKEEL STALLS [count]`.
fn stalls(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() > 3 {
        return Err(Error::Syntax);
    }
    let (count, server) = (count(args.get(2))?, act.server.clone());
    elsewhere(act, move |out| {
        let stalls = server.observe.waits.stalls(count);
        out.array(stalls.len());
        stalls.iter().for_each(|stall| write_stall(stall, out));
    })
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

/// `EVENKEEL PHASES`.
fn phases(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let server = act.server.clone();
    elsewhere(act, move |out| {
        let registry = &server.observe.stats.registry;
        out.map(PHASES.len() + 1);
        write_histogram("ran", &registry.all_commands(), out);
        for (phase, name) in PHASES {
            write_histogram(name, &registry.phase(phase), out);
        }
    })
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
