//! The end of a wait: notes how long a client's command was held up and by which client, and what the client
//! may do next.

use crate::{Local, Server, Session};
use command::Stream;
use observe::lasting;
use observe::waits::{self, HeldUp, Request, Spent};

/// Adds to `request` what the command waited for before it ran.
#[cold]
pub fn end_waits(server: &Server, local: &mut Local, session: &mut Session, request: &mut Request) {
    session.holds.postponed = None;
    let held = HeldUp {
        by_itself: session.holds.held_back.take(),
        by_commit: session.holds.guarded.take(),
        by_replica: session.holds.lacking.take(),
        loading_since_ns: session.rows.loaded_since_ns.take(),
    };
    local.log.end_waits(&server.observe, &session.info, held, request);
}

/// Accounts for a reply that came by mail, and gives its stream back. `spent`: the time of a job or script.
pub fn ended(
    server: &Server,
    local: &mut Local,
    session: &mut Session,
    spent: Option<Box<Spent>>,
    bytes: &[u8],
    stream: Option<Box<dyn Stream>>,
) -> Option<Box<dyn Stream>> {
    let Some(away) = session.away.take() else { return stream };
    let flooded = server.pubsub.flood.full();
    if flooded > 0 {
        // The number of messages that came of it is not counted.
        let published = spent.as_ref().is_some_and(|spent| spent.published);
        let tells = crate::gates::tells(away.command) && server.config.live.notify.get() != 0;
        if published || tells || away.command.is(command::facts::PUBLISHES) {
            session.holds.published.add(flooded, pubsub::flood::SHARE);
        }
    }
    let is_long_write = spent.is_some() && away.is_job && away.command.is_write();
    if is_long_write && stdx::reclaim::is_full() {
        // Most long writes replace something large. So each counts as garbage, whatever it gave the
        // reclaimer.
        session.holds.garbage = stdx::reclaim::fullness();
    }
    let (observe, info) = (&server.observe, &session.info);
    let (keys, asked_bytes) = away.hot.clone().unwrap_or_default();
    if away.hot.is_some() {
        let ns = away.inline_ns + spent.as_ref().map_or(0, |spent| spent.thread_ns);
        let its = (ns, (asked_bytes + bytes.len()) as u64, 1);
        observe.stats.hotkeys.add(keys.iter().map(Vec::as_slice), keys.len(), its, local.log.now_ms);
    }
    let words = || away.words.clone();
    let stream = match stream {
        _ if session.speech.is_muted() => stream,
        Some(stream) => {
            Some(lasting::counted(observe, info, (away.command, words), keys, bytes.len(), stream))
        }
        None => {
            observe.stats.replied(&server.config.live, info, away.command, bytes.len(), words);
            None
        }
    };
    waits::ended(observe, &mut local.log, info, *away, spent, bytes.strip_prefix(b"-"));
    stream
}

/// Notes that a blocked command's job found nothing: the command goes on waiting.
pub(crate) fn waits_on(server: &Server, local: &mut Local, session: &mut Session, spent: Spent) {
    let away = session.away.take();
    session.away =
        away.map(|away| waits::waits_on(&server.observe, &mut local.log, &session.info, away, spent));
}
