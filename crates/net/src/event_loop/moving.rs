//! Connections that go to another loop: off one that is full, while others are not and the machine has cores to spare.
//!
//! ```text
//! cron: full for long, another is not, cores are idle ──► picks
//! served, picked ─► input off ─► nothing of it is under way ─► packed ─mail─► the other loop's porch ─► served there
//!                      └─► it waits for something, or is not quiet for long: it stays
//! ```
//!
//! - G1: it goes when the transport is still: what came is served, what it was answered is sent. Bytes that come meanwhile
//!   stay in its socket. So they keep their order.
//! - G2: who has something to say to it looks for its loop (`ClientInfo::loop_id`), and may be a moment late or early: a loop passes on
//!   what can reach a client that waits for nothing ([`Mail::Kill`]), and who is known and nowhere else is on the way to it. So the
//!   loop is noted before the connection is sent there: after it, the next loop may have noted another already.
//! - G3: one that waits for others (BLPOP), subscribed, or runs elsewhere stays: others know its loop.
//!
//! - G4: a loop sends away at most [`PICKS`] in half a second, in slices.
//!
//! Cost: a comparison per request; a connection that moves some ten system calls.

use super::{CHORE_NS, EventLoop};
use crate::transport::Transport;
use exec::mail::Mail;
use exec::stats::Counter;
use exec::waits::Part;
use std::sync::atomic::Ordering;
use stdx::points::{self, Point};

/// Windows, of a tenth of a second each, that a loop is full before it gives connections away.
const FULL_WINDOWS: u32 = 5;
/// Idle cores from which on it does: with 0.3 of two left by a load generator beside the server, moving a quarter of its
/// connections made a request cost a fifth more and nobody faster.
const SPARE_CORES: f64 = 0.5;
/// Connections picked at once (G4).
const PICKS: usize = 64;
/// Windows for which who has moved stays.
const SETTLES: u64 = 50;

pub(super) struct Moves {
    /// Of the whole machine.
    cores: usize,
    /// Tenths of seconds since 1970.
    window: u64,
    /// Connections served in this window.
    served: usize,
    /// Windows in a row at whose end the loop was full, and the threads of the machine that had work then, added up.
    full: u32,
    running: usize,
    /// So many of those that are served in this window go to that loop.
    picks: usize,
    to: usize,
    /// Those that are to go, and whether one of them can in the next turn: nothing else may wake the loop for it.
    slots: Vec<usize>,
    pub(super) soon: bool,
}

impl Default for Moves {
    fn default() -> Moves {
        Moves {
            cores: cores(),
            window: 0,
            served: 0,
            full: 0,
            running: 0,
            picks: 0,
            to: 0,
            slots: Vec::new(),
            soon: false,
        }
    }
}

impl Moves {
    /// A window is over: has the loop been full for long, and cores idle meanwhile? `surplus`: how many could go, and where to;
    /// `running`: threads of the machine that have work.
    fn decide(&mut self, surplus: Option<(usize, usize)>, running: Option<usize>) {
        self.picks = 0;
        let (Some((to, picks)), Some(running)) = (surplus, running) else {
            (self.full, self.running) = (0, 0);
            return;
        };
        (self.full, self.running) = (self.full + 1, self.running + running);
        if self.full < FULL_WINDOWS {
            return;
        }
        let spare = self.cores as f64 - self.running as f64 / f64::from(FULL_WINDOWS);
        (self.full, self.running) = (0, 0);
        if spare >= SPARE_CORES {
            (self.to, self.picks) = (to, picks.min(PICKS));
        }
    }
}

impl EventLoop {
    /// Ten times a second: whether connections are to go, and how many.
    pub(super) fn consider_moving(&mut self) {
        let served = std::mem::take(&mut self.moves.served);
        self.moves.window = self.local.now_ms / super::CRON_MS;
        let surplus = self.load.surplus(self.local.id, served);
        // Asked only of a full loop.
        let running = surplus.and_then(|_| running());
        self.moves.decide(surplus, running);
    }

    /// A connection was served; it may be one of those that go.
    #[inline]
    pub(super) fn note_served(&mut self, slot: usize) {
        if points::is_armed(Point::Move) {
            self.move_for_test(slot);
        }
        let moves = &mut self.moves;
        let Some(conn) = self.conns[slot].as_mut().filter(|conn| conn.served != moves.window) else { return };
        conn.served = moves.window;
        moves.served += 1;
        // One stays: if it is all there is to do, it would be too much for another loop as well.
        if moves.picks > 0 && moves.served > 1 && conn.settled <= moves.window {
            moves.picks -= 1;
            let to = moves.to;
            self.begin_move(slot, to);
        }
    }

    #[cold]
    fn move_for_test(&mut self, slot: usize) {
        let id = self.conns[slot].as_ref().map(|conn| conn.session.id);
        if id.is_some_and(|id| points::stays(Point::Move, id)) {
            self.begin_move(slot, (self.local.id + 1) % self.server.loops());
        }
    }

    #[cold]
    fn begin_move(&mut self, slot: usize, to: usize) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        if to != self.local.id && conn.moving.is_none() && !conn.outside && !conn.doomed {
            conn.moving = Some((to, self.moves.window));
            self.moves.slots.push(slot);
            self.mark_dirty(slot);
        }
    }

    /// Sends away those of whom nothing is under way any more.
    pub(super) fn move_some<T: Transport>(&mut self, io: &mut T) {
        self.moves.soon = false;
        if self.moves.slots.is_empty() {
            return;
        }
        let mark = self.local.enter(Part::Move, 0);
        let until = self.local.lap() + CHORE_NS;
        let mut rest = std::mem::take(&mut self.moves.slots).into_iter();
        for slot in rest.by_ref() {
            let Some(conn) = self.conns[slot].as_mut() else { continue };
            let Some((to, since)) = conn.moving else { continue };
            if conn.may_leave() && io.is_still(slot) {
                if conn.sent_with != self.submissions {
                    self.send_away(io, slot, to);
                    if self.local.lap() >= until {
                        break;
                    }
                    continue;
                }
                self.moves.soon = true;
            }
            if conn.is_elsewhere() || self.moves.window > since + 1 {
                conn.moving = None;
                self.mark_dirty(slot);
            } else {
                self.moves.slots.push(slot);
            }
        }
        // Those there was no time for come in the next turn.
        self.moves.soon |= rest.len() > 0;
        self.moves.slots.extend(rest);
        self.local.leave(&self.server, Part::Move, 0, mark);
    }

    fn send_away<T: Transport>(&mut self, io: &mut T, slot: usize, to: usize) {
        let Some(mut conn) = self.conns[slot].take() else { return };
        self.by_id.remove(&conn.session.id);
        self.https -= usize::from(conn.is_http());
        if io.part(slot, &conn.socket) {
            self.rest(io, slot);
        }
        conn.pack(self.moves.window + SETTLES);
        self.local.recorder.add(Counter::ConnectionsMoved, 1);
        conn.session.info.loop_id.store(to as u32, Ordering::Release);
        self.server.send(to, Mail::Adopt(Box::new(conn)));
    }

    /// A client is to be closed that has gone to another loop, is on its way to this one, or has left.
    pub(super) fn pass_on_kill(&self, client: u64) {
        if let Some(info) = self.server.clients.get(client) {
            // To this loop itself if it is not there yet: it comes with the mail (G2).
            self.server.send(info.loop_id.load(Ordering::Acquire) as usize, Mail::Kill { client });
        }
    }
}

/// Threads of the whole machine that run now or wait for a core. (Its idle time would not tell: where somebody waits in io_uring
/// Linux does not count it as idle.)
fn running() -> Option<usize> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Cores of the whole machine.
fn cores() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match count(&online) {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    }
}

/// How many there are in `0-3,7`.
fn count(ranges: &str) -> usize {
    let ranges = ranges.trim().split(',').filter_map(|range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
        (to + 1).checked_sub(from)
    });
    ranges.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_full_for_long_gives_while_cores_are_idle() {
        let mut moves = Moves { cores: 4, ..Moves::default() };
        let mut look = |surplus, running| {
            moves.decide(surplus, running);
            (moves.picks, moves.to)
        };
        let full = Some((2, 7));
        for _ in 0..2 {
            assert!((1..FULL_WINDOWS).all(|_| look(full, Some(3)).0 == 0));
            assert_eq!(look(full, Some(3)), (7, 2));
        }
        // What was picked for one window is not for the next; one in which it is not full begins the count anew.
        assert_eq!(look(full, Some(1)).0, 0);
        assert_eq!(look(None, None).0, 0);
        assert!((1..FULL_WINDOWS).all(|_| look(full, Some(1)).0 == 0));
        assert_eq!(look(Some((1, 1000)), Some(1)), (PICKS, 1));
        // No core is idle, or nobody knows.
        assert!((0..FULL_WINDOWS).all(|_| look(full, Some(4)).0 == 0));
        assert!((0..2 * FULL_WINDOWS).all(|_| look(full, None).0 == 0));
    }

    #[test]
    fn the_machine_tells_its_cores_and_who_uses_them() {
        assert_eq!([count("0-3,7\n"), count("0"), count(""), count("3-1,x")], [5, 1, 0, 0]);
        assert!(cores() >= 1 && running().is_some_and(|n| n >= 1));
    }
}
