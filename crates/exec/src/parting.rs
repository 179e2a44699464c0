//! The end of a client: its affairs with others end when it disconnects.

use crate::session::flag;
use crate::{Local, Server, Session};
use std::sync::atomic::Ordering;

/// Ends everything that a disconnecting client has under way: waits, watches, subscriptions, and work
/// elsewhere.
pub fn goodbye(server: &Server, local: &mut Local, session: &mut Session) {
    session.cancel.store(true, Ordering::Relaxed);
    if session.info.killed.load(Ordering::Relaxed) {
        // Its last command is not wanted either, unless its commit is decided.
        server.scripts.stop(session.id);
        server.work.snapshots.stop(session.id);
    }
    if session.info.flags.load(Ordering::Relaxed) & flag::BLOCKED != 0
        && crate::blocking::leave(server, local, session.id).is_none()
    {
        // A writer may be serving it at this moment, and find nothing to give: look again later.
        local.leaving.push(session.id);
    }
    crate::deferred::forget_sleeper(local, session.id);
    crate::multi::leave(server, local, session);
    crate::actions::monitor::end(server, local, session);
    crate::actions::pubsub::leave_all(server, local, session);
    crate::tracking::leave(server, local, session);
    server.observe.clients.remove(session.id);
    if let Some(link) = session.link.take() {
        link.end(&server.keyspace, &server.role, &server.work.follows);
    }
}
