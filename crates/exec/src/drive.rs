//! How a loop drives its long work (`works.rs`): it has pieces do slices, tells what they changed, and delivers what is done.

use crate::mail::Mail;
use crate::piece::{Delivery, Desk, Letter, Piece, Step, Tray};
use crate::waits::{self, Part};
use crate::works::SLICE_NS;
use crate::{Local, Server};
use keyspace::{Changes, Limits};
use std::sync::Arc;
use stdx::points;

/// Does a slice of what there is; replies that became ready go to `done`.
pub fn advance(server: &Arc<Server>, local: &mut Local, done: &mut Vec<Delivery>) {
    let until = local.lap() + SLICE_NS;
    while let Some(piece) = local.works.pop() {
        if points::any_armed() && piece.stays() {
            local.works.push(piece);
            if local.lap() >= until {
                break;
            }
            continue;
        }
        if server.work.pause.stops_writes(local.now_ms) && piece.is_open() && !piece.is_useless() {
            local.works.pause(&server.work, piece);
            continue;
        }
        match step(server, local, piece) {
            // Not at the end of the queue each time: a piece of work keeps its place for a slice (L2).
            Step::More(piece) if local.lap() < until => {
                local.works.push_front(piece);
                continue;
            }
            step => settle(server, local, step, done),
        }
        if local.lap() >= until {
            break;
        }
    }
}

/// Has a piece do a slice, and tells what it changed (exec X3).
fn step(server: &Arc<Server>, local: &mut Local, mut piece: Box<dyn Piece>) -> Step {
    loop {
        let doer = |word| waits::doer(server, word);
        let (work, loop_id, now_ms) = (&server.work, local.id, local.now_ms);
        let tray = local.works.take_tray();
        let mut desk = Desk { work, loop_id, now_ms, tray, doer: &doer, home: local };
        let step = piece.advance(&mut desk);
        let tray = desk.tray;
        clear(server, local, tray);
        match step {
            Step::Tell(next) => piece = next,
            step => return step,
        }
    }
}

/// Tells what was changed (exec X3).
pub(crate) fn tell(server: &Server, local: &mut Local, told: impl IntoIterator<Item = Changes>) {
    told.into_iter().for_each(|changes| server.after(local, changes));
}

/// Sees to what a slice left.
fn clear(server: &Arc<Server>, local: &mut Local, mut tray: Tray) {
    tell(server, local, tray.told.drain(..));
    tray.ran.drain(..).for_each(|(client, mut tally)| local.count_within(server, &mut tally, client));
    tray.begun.drain(..).for_each(|piece| local.works.push(piece));
    local.works.put_tray(tray);
}

/// Puts a piece where it belongs after a slice.
fn settle(server: &Arc<Server>, local: &mut Local, step: Step, done: &mut Vec<Delivery>) {
    match step {
        Step::More(piece) | Step::Tell(piece) => local.works.push(piece),
        Step::Queued(ticket, piece) => local.works.wait(ticket, piece),
        Step::Held(piece) => local.works.pause(&server.work, piece),
        Step::Over(delivery) => done.extend(delivery),
        Step::Waits(wait) => server.send(local.id, Mail::Wait(wait)),
    }
}

/// Goes on with a piece at once.
fn go_on(server: &Arc<Server>, local: &mut Local, piece: Box<dyn Piece>, done: &mut Vec<Delivery>) {
    let step = step(server, local, piece);
    settle(server, local, step, done);
}

/// Goes on with a piece at once; what is ready then is delivered with the next slices.
pub(crate) fn begin(server: &Arc<Server>, local: &mut Local, piece: Box<dyn Piece>) {
    let mut done = Vec::new();
    go_on(server, local, piece, &mut done);
    done.into_iter().for_each(|delivery| local.works.push(Box::new(delivery)));
}

/// A loop takes a letter of long work; replies that became ready go to `done`.
pub fn receive(server: &Arc<Server>, local: &mut Local, letter: Letter, done: &mut Vec<Delivery>) {
    match letter {
        Letter::Back(piece) => {
            let client = piece.who().client;
            let mark = local.enter(Part::Commit, client);
            go_on(server, local, piece, done);
            local.leave(server, Part::Commit, client, mark);
        }
        Letter::First(piece) => go_on(server, local, piece, done),
        Letter::Read(request) => local.works.push(request),
        Letter::Snapshot => retry_waiting(server, local),
        Letter::Kill(client) => server.send(local.id, Mail::Kill { client }),
    }
}

/// Has what CLIENT PAUSE held go on, in slices, if it is over; a script that was killed meanwhile ends. Called when it may be, and now
/// and then. Cost: O(what is held).
pub fn resume(server: &Arc<Server>, local: &mut Local) {
    let stopped = server.work.pause.stops_writes(local.now_ms);
    local.works.resume(&server.work, stopped);
}

/// Starts what waited for a place, as far as it is its turn and there are any. Called when a snapshot was closed, and now and
/// then.
pub fn retry_waiting(server: &Arc<Server>, local: &mut Local) {
    while let Some(ticket) = server.work.snapshots.next_of(local.id) {
        match local.works.take_waiting(ticket) {
            None => server.work.snapshots.leave(ticket),
            Some(piece) => begin(server, local, piece),
        }
        if local.works.waits(ticket) {
            // There was none after all: the next that is closed says so.
            return;
        }
    }
}

/// Ends what waits for a place and is of no use any more. Called now and then. Cost: O(what waits).
pub fn end_useless(server: &Arc<Server>, local: &mut Local) {
    for (ticket, piece) in local.works.take_useless() {
        server.work.snapshots.leave(ticket);
        begin(server, local, piece);
    }
}

/// Looks after snapshots and lines of all loops. Called by one loop, now and then. Cost: O(shards), and O(n) for n replies that
/// are being streamed.
pub fn tend(server: &Server, mono_ms: u64, now_ms: u64) {
    stdx::reclaim::set_limit(share(server, server.config.live.reclaim_pending_bytes.size(), 8));
    let ended = server.work.snapshots.tend(limits(server), mono_ms, now_ms);
    ended.into_iter().for_each(|client| server.scripts.stop(client));
}

/// A limit in bytes; 0 stands for a share of `maxmemory`, or of the machine's memory.
fn share(server: &Server, bytes: usize, parts: u64) -> u64 {
    match (bytes as u64, server.config.live.maxmemory_bytes.size() as u64) {
        (0, 0) => server.memory_bytes / parts,
        (0, max) => max / parts,
        (bytes, _) => bytes,
    }
}

/// The limits of the configuration.
fn limits(server: &Server) -> Limits {
    let live = &server.config.live;
    let bytes = share(server, live.snapshot_retained_bytes.size(), 4);
    Limits { age_ms: live.snapshot_age_s.size() as u64 * 1000, bytes }
}
