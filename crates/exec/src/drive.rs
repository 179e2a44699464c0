//! The loop's long work (crate `work`), driven for the server: tells what a slice changed, and sends letters.

use crate::mail::Mail;
use crate::{Local, Server};
use keyspace::{Changes, Limits};
use observe::TurnLog;
use std::any::Any;
use std::sync::Arc;
use work::drive::{self, Home};
use work::piece::{Delivery, Letter, Piece, Wait};
use work::works::Works;

/// A loop and its server.
struct Here<'a> {
    server: &'a Arc<Server>,
    local: &'a mut Local,
}

impl Home for Here<'_> {
    fn works(&mut self) -> &mut Works {
        &mut self.local.works
    }

    fn log(&mut self) -> &mut TurnLog {
        &mut self.local.log
    }

    fn itself(&mut self) -> &mut dyn Any {
        self.local
    }

    fn tell(&mut self, changes: Changes) {
        self.server.after(self.local, changes);
    }

    fn wait(&mut self, wait: Box<Wait>) {
        self.server.send(self.local.log.id, Mail::Wait(wait));
    }

    fn kill(&mut self, client: u64) {
        self.server.send(self.local.log.id, Mail::Kill { client });
    }
}

/// Does a slice of the long work. Replies that became ready go to `done`.
pub fn advance(server: &Arc<Server>, local: &mut Local, done: &mut Vec<Delivery>) {
    drive::advance(&server.work, &mut Here { server, local }, done);
}

/// Tells the outside what was changed (exec X3).
pub(crate) fn tell(server: &Server, local: &mut Local, told: impl IntoIterator<Item = Changes>) {
    told.into_iter().for_each(|changes| server.after(local, changes));
}

/// Does the first slice of a piece at once. A reply that is ready then is delivered with the next slices.
pub(crate) fn begin(server: &Arc<Server>, local: &mut Local, piece: Box<dyn Piece>) {
    drive::begin(&server.work, &mut Here { server, local }, piece);
}

/// Takes a letter of long work. Replies that became ready go to `done`.
pub fn receive(server: &Arc<Server>, local: &mut Local, letter: Letter, done: &mut Vec<Delivery>) {
    drive::receive(&server.work, &mut Here { server, local }, letter, done);
}

/// Resumes what CLIENT PAUSE held, in slices, once the pause is over. See [`drive::resume`].
pub fn resume(server: &Arc<Server>, local: &mut Local) {
    drive::resume(&server.work, &mut Here { server, local });
}

/// Starts work that waited for a place. See [`drive::retry_waiting`].
pub fn retry_waiting(server: &Arc<Server>, local: &mut Local) {
    drive::retry_waiting(&server.work, &mut Here { server, local });
}

/// Ends work that waits for a place and that no client wants any more. See [`drive::end_useless`].
pub fn end_useless(server: &Arc<Server>, local: &mut Local) {
    drive::end_useless(&server.work, &mut Here { server, local });
}

/// Looks after snapshots and lines of all loops. One loop calls it now and then. Cost: O(shards + streamed
/// replies).
pub fn tend(server: &Server, mono_ms: u64, now_ms: u64) {
    stdx::reclaim::set_limit(share(server, server.config.live.reclaim_pending_bytes.size(), 8));
    let ended = server.work.snapshots.tend(limits(server), mono_ms, now_ms);
    ended.into_iter().for_each(|client| server.scripts.stop(client));
}

/// A limit in bytes; 0 stands for one part in `parts` of `maxmemory`, or of the machine's memory.
fn share(server: &Server, bytes: usize, parts: u64) -> u64 {
    match (bytes as u64, server.config.live.maxmemory_bytes.size() as u64) {
        (0, 0) => server.memory_bytes / parts,
        (0, max) => max / parts,
        (bytes, _) => bytes,
    }
}

/// The limits of long work, from the configuration.
fn limits(server: &Server) -> Limits {
    let live = &server.config.live;
    let bytes = share(server, live.snapshot_retained_bytes.size(), 4);
    Limits { age_ms: live.snapshot_age_s.size() as u64 * 1000, bytes }
}
