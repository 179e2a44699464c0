//! The end of a client's affairs with others when it goes.

use crate::session::flag;
use crate::{Local, Server, Session};
use std::sync::atomic::Ordering;

/// Ends everything a client that goes has with others: what it waits for, watches, listens to and runs
/// elsewhere.
pub fn goodbye(server: &Server, local: &mut Local, session: &mut Session) {
    session.cancel.store(true, Ordering::Relaxed);
    if session.info.killed.load(Ordering::Relaxed) {
        // The work it sent last is not wanted either, unless that is decided.
        server.scripts.stop(session.id);
        server.work.snapshots.stop(session.id);
    }
    if session.info.flags.load(Ordering::Relaxed) & flag::BLOCKED != 0
        && crate::blocking::leave(server, local, session.id).is_none()
    {
        // Somebody may be trying to serve it at this moment and find nothing: look again later.
        local.leaving.push(session.id);
    }
    crate::transaction::leave(server, local, session);
    crate::actions::monitor::end(server, local, session);
    crate::actions::leave_all(server, local, session);
    server.observe.clients.remove(session.id);
}
