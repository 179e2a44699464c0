//! The end of what held a client's command up: how long it waited and for whom is noted, and what the client may do next.

use crate::{Local, Server, Session};
use observe::waits::{self, HeldUp, Request, Spent};

/// Notes what the command waited for before it ran, and puts it down in `request`.
#[cold]
pub fn end_waits(server: &Server, local: &mut Local, session: &mut Session, request: &mut Request) {
    session.postponed = None;
    let held = HeldUp {
        by_itself: session.held_back.take(),
        by_commit: session.guarded.take(),
        loading_since_ns: session.rows.loaded_since_ns.take(),
    };
    local.log.end_waits(&server.observe, &session.info, held, request);
}

/// The reply of a request that was elsewhere has come. `spent`: it was a job or a script. `failed`: the error it answers.
pub fn ended(
    server: &Server,
    local: &mut Local,
    session: &mut Session,
    spent: Option<Box<Spent>>,
    failed: Option<&[u8]>,
) {
    let Some(away) = session.away.take() else { return };
    let flooded = server.pubsub.flood.full();
    if flooded > 0 {
        // How many messages came of it is not looked at.
        let published = spent.as_ref().is_some_and(|spent| spent.published);
        let tells = crate::gates::tells(away.command) && server.config.live.notify.get() != 0;
        if published || tells || away.command.is(command::facts::PUBLISHES) {
            session.published.add(flooded, pubsub::flood::SHARE);
        }
    }
    let is_long_write = spent.is_some() && away.is_job && away.command.is_write();
    if is_long_write && stdx::reclaim::is_full() {
        // Long writes are done in slices, and who frees what in them is not looked at: most replace something large.
        session.littered = stdx::reclaim::fullness();
    }
    waits::ended(&server.observe, &mut local.log, &session.info, *away, spent, failed);
}

/// The job of a request that waits for keys found nothing: the request goes on waiting.
pub(crate) fn waits_on(server: &Server, local: &mut Local, session: &mut Session, spent: Spent) {
    let away = session.away.take();
    session.away =
        away.map(|away| waits::waits_on(&server.observe, &mut local.log, &session.info, away, spent));
}
