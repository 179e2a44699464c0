//! Connections that go to another loop: off one that is full, while others are not and the machine has cores to spare; and together
//! onto one loop that could do the work of two, while the machine has none.
//!
//! ```text
//! cron: full for long, another is not, cores are idle ──► picks ◄── no core is idle for long, two have one's work
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
//! - G5: two loops come together only while the machine's other programs want its cores, and neither of both is always at work: a loop that
//!   has to share its core with others all the time gets more of the machine as two.
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

/// Windows, of a tenth of a second each, that a loop is full before it gives connections away: the last second, of which it is known
/// how busy the cores were, is one of these then.
const FULL_WINDOWS: u32 = 20;
/// Idle cores, in thousandths, from which on it does: with 0.45 of two left by a load generator beside the server, moving made a request cost half
/// as much again, and a third less got done.
const SPARE_MILLI: u64 = 700;
/// Windows after which two loops' connections come together.
const TOGETHER_WINDOWS: u32 = 20;
/// Idle cores up to which they do, in thousandths.
const NO_MILLI: u64 = 300;
/// How much of the time a loop runs, or waits for a core, at most if it is not always at work; in thousandths.
const NOT_ALWAYS: u64 = 850;
/// Connections picked at once (G4).
const PICKS: usize = 64;
/// Windows for which who has moved stays.
const SETTLES: u64 = 50;

pub(super) struct Moves {
    /// Those this process may use, in thousandths.
    cores_milli: u64,
    /// Tenths of seconds since 1970.
    window: u64,
    /// Connections served in this window.
    served: usize,
    /// Windows in a row at whose end the loop was full.
    full: u32,
    /// So many of those that are served in this window go to that loop.
    picks: usize,
    to: usize,
    /// None is to stay of those that are served.
    all: bool,
    /// Windows in which another loop could do all the work.
    apart: u32,
    /// Time this thread waited for a core, ever, by the last window.
    delayed_ns: u64,
    /// Those that are to go, and whether one of them can in the next turn: nothing else may wake the loop for it.
    slots: Vec<usize>,
    pub(super) soon: bool,
}

impl Default for Moves {
    fn default() -> Moves {
        Moves {
            cores_milli: 1000 * cores(),
            window: 0,
            served: 0,
            full: 0,
            picks: 0,
            to: 0,
            all: false,
            apart: 0,
            delayed_ns: 0,
            slots: Vec::new(),
            soon: false,
        }
    }
}

impl Moves {
    /// A window is over: has the loop been full for long, and are cores idle? `surplus`: how many could go, and where to; `busy`: so many
    /// thousandths of a core were busy in the last second.
    fn decide(&mut self, surplus: Option<(usize, usize)>, busy: Option<u64>) {
        self.picks = 0;
        let (Some((to, picks)), Some(busy)) = (surplus, busy) else {
            self.full = 0;
            return;
        };
        self.full += 1;
        if self.full < FULL_WINDOWS {
            return;
        }
        self.full = 0;
        if busy + SPARE_MILLI <= self.cores_milli {
            (self.to, self.picks, self.all) = (to, picks.min(PICKS), false);
        }
    }

    /// A window is over in which nothing was to go: has another loop been able to do all the work for long, and is no core idle?
    /// `companion`: that loop; `busy` as above.
    fn decide_together(&mut self, companion: Option<usize>, busy: Option<u64>) {
        let (Some(to), Some(busy)) = (companion, busy) else {
            // One window is not much of a reason.
            self.apart /= 2;
            return;
        };
        self.apart += 1;
        if self.apart < TOGETHER_WINDOWS {
            return;
        }
        self.apart = 0;
        if busy + NO_MILLI >= self.cores_milli {
            (self.to, self.picks, self.all) = (to, PICKS, true);
        }
    }
}

impl EventLoop {
    /// Ten times a second: whether connections are to go, and how many.
    pub(super) fn consider_moving(&mut self) {
        let served = std::mem::take(&mut self.moves.served);
        self.moves.window = self.local.now_ms / super::CRON_MS;
        let surplus = self.load.surplus(self.local.id, served);
        let companion = self.load.companion(self.local.id).filter(|_| surplus.is_none());
        let busy = surplus.map(|_| ()).or(companion.map(|_| ())).and_then(|()| self.server.busy_milli());
        self.moves.decide(surplus, busy);
        if self.moves.picks > 0 {
            return;
        }
        let delayed_ns = companion.map_or(0, |_| delayed_ns());
        let delay = delayed_ns.saturating_sub(self.moves.delayed_ns) / (super::CRON_MS * 1000);
        self.moves.delayed_ns = delayed_ns;
        let companion = companion.filter(|_| self.load.of(self.local.id) + delay <= NOT_ALWAYS);
        self.moves.decide_together(companion, busy);
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
        // One stays, usually: if it is all there is to do, it would be too much for another loop as well.
        if moves.picks > 0 && (moves.served > 1 || moves.all) && conn.settled <= moves.window {
            moves.picks -= 1;
            let to = moves.to;
            self.begin_move(slot, to);
        }
    }

    #[cold]
    fn move_for_test(&mut self, slot: usize) {
        let id = self.conns[slot].as_ref().map(|conn| conn.session.id);
        if id.is_some_and(|id| points::strays(Point::Move, id)) {
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
        self.timers.forget(conn.session.id);
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

/// How long this thread has waited for a core, ever, in nanoseconds.
fn delayed_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Cores this process may use.
fn cores() -> u64 {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => set.count().into(),
        Err(_) => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_full_for_long_gives_while_cores_are_idle() {
        let mut moves = Moves { cores_milli: 4000, ..Moves::default() };
        let mut look = |surplus, busy| {
            moves.decide(surplus, busy);
            (moves.picks, moves.to)
        };
        let full = Some((2, 7));
        for _ in 0..2 {
            assert!((1..FULL_WINDOWS).all(|_| look(full, Some(3300)).0 == 0));
            assert_eq!(look(full, Some(3300)), (7, 2));
        }
        // What was picked for one window is not for the next; one in which it is not full begins the count anew.
        assert_eq!(look(full, Some(1000)).0, 0);
        assert_eq!(look(None, None).0, 0);
        assert!((1..FULL_WINDOWS).all(|_| look(full, Some(1000)).0 == 0));
        assert_eq!(look(Some((1, 1000)), Some(1000)), (PICKS, 1));
        // No core is idle, or nobody knows.
        assert!((0..FULL_WINDOWS).all(|_| look(full, Some(3301)).0 == 0));
        assert!((0..2 * FULL_WINDOWS).all(|_| look(full, None).0 == 0));
    }

    #[test]
    fn two_come_together_while_no_core_is_idle() {
        let mut moves = Moves { cores_milli: 2000, ..Moves::default() };
        let mut look = |companion, busy| {
            (moves.picks, moves.all) = (0, false);
            moves.decide_together(companion, busy);
            (moves.picks, moves.to, moves.all)
        };
        for _ in 0..2 {
            assert!((1..TOGETHER_WINDOWS).all(|_| look(Some(3), Some(1700)).0 == 0));
            assert_eq!(look(Some(3), Some(1700)), (PICKS, 3, true));
        }
        // A window in which one could not do it all takes half of the count away.
        assert!((2..TOGETHER_WINDOWS).all(|_| look(Some(3), Some(2000)).0 == 0));
        assert_eq!(look(None, None).0, 0);
        assert!((1..TOGETHER_WINDOWS / 2 + 1).all(|_| look(Some(3), Some(2000)).0 == 0));
        assert_eq!(look(Some(3), Some(2000)).0, PICKS);
        // A core is idle, or nobody knows.
        assert!((0..2 * TOGETHER_WINDOWS).all(|_| look(Some(3), Some(1699)).0 == 0));
        assert!((0..2 * TOGETHER_WINDOWS).all(|_| look(Some(3), None).0 == 0));
    }

    #[test]
    fn the_machine_tells_its_cores_and_how_long_a_thread_waited() {
        assert!(cores() >= 1);
        // It may never have waited, but not for longer than the machine runs.
        assert!(delayed_ns() < 1 << 60);
    }
}
