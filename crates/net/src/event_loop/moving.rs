//! Moving connections between loops. A full loop gives connections away while another is not full and the
//! machine has idle cores. Two loops whose work fits one are joined while it has none.
//!
//! ```text
//! cron: full for long, another is not, cores are idle ──► picks ◄── no core idle for long, two fit one
//! served, picked ─► input off ─► nothing under way ─► packed ─mail─► the other loop's arrivals ─► served there
//!                      └─► it waits for something, or is not quiet for long: it stays
//! ```
//!
//! - G1: a connection moves when its transport is still: its bytes are served, its replies are sent. Bytes
//!   that come meanwhile stay in its socket, so they keep their order.
//! - G2: a sender of mail finds the client's loop in `ClientInfo::loop_id`, and may be a moment late or
//!   early. A loop passes on mail that can reach a client that waits for nothing ([`Mail::Kill`]); a known
//!   client that is on no loop is on its way. So `loop_id` is set before the connection is sent. Afterwards
//!   the next loop may have set it already.
//! - G3: a connection that waits for others (BLPOP), is subscribed, or has work elsewhere stays: others know
//!   its loop.
//! - G4: a loop sends away at most [`PICKS`] connections per decision, in slices.
//! - G5: two loops are joined only while other programs want the machine's cores and the joining loop is not
//!   always at work. A loop that always shares its core gets more of the machine as two.
//!
//! Cost: a comparison per request; some ten system calls for a connection that moves.

use super::{EventLoop, SLICE_NS};
use crate::transport::Transport;
use exec::mail::Mail;
use exec::stats::Counter;
use exec::waits::Part;
use std::sync::atomic::Ordering;
use stdx::points::{self, Point};

/// Windows of a tenth of a second that a loop is full before it gives connections away. The last second, for
/// which the use of the cores is known, is then among them.
const FULL_WINDOWS: u32 = 20;
/// Idle cores needed for that, in thousandths. With fewer, for example beside a load generator, moving makes
/// requests dearer.
const SPARE_MILLI: u64 = 700;
/// Windows after which the connections of two loops are joined.
const TOGETHER_WINDOWS: u32 = 20;
/// Most idle cores for that, in thousandths.
const NO_MILLI: u64 = 300;
/// Share of the time that a loop runs or waits for a core above which it counts as always at work, in
/// thousandths.
const NOT_ALWAYS: u64 = 850;
/// Most connections picked at once (G4).
const PICKS: usize = 64;
/// Windows for which a connection that has moved stays.
const SETTLES: u64 = 50;

pub(super) struct Moves {
    /// Cores this process may use, in thousandths.
    cores_milli: u64,
    /// Tenths of seconds since 1970.
    window: u64,
    /// Connections served in this window.
    served: usize,
    /// Windows in a row at whose end the loop was full.
    full: u32,
    /// Connections served in this window that still have to go to loop `to`.
    picks: usize,
    to: usize,
    /// Every connection served is to go; otherwise the first one served stays.
    all: bool,
    /// Windows in which another loop could do all the work.
    apart: u32,
    /// Total time this thread had waited for a core by the last window.
    delayed_ns: u64,
    /// Connections that are to go. `soon`: one may be able to in the next turn, and nothing else may wake the
    /// loop for it.
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
    /// Decides at the end of a window whether connections go: the loop was full for long and cores are idle.
    /// `surplus` is where to and how many; `busy` is the busy cores of the last second, in thousandths.
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

    /// Decides at the end of a window, if [`Moves::decide`] picked none, whether all connections go to
    /// `companion`. That loop was able to do all the work for long, and no core is idle. `busy`: as above.
    fn decide_together(&mut self, companion: Option<usize>, busy: Option<u64>) {
        let (Some(to), Some(busy)) = (companion, busy) else {
            // A single window is not much of a reason to begin anew.
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
    /// Decides, ten times a second, whether connections are to go, and how many.
    pub(super) fn consider_moving(&mut self) {
        let served = std::mem::take(&mut self.moves.served);
        self.moves.window = self.local.log.now_ms / super::CRON_MS;
        let surplus = self.load.surplus(self.local.log.id, served);
        let companion = self.load.companion(self.local.log.id).filter(|_| surplus.is_none());
        let busy = surplus.map(|_| ()).or(companion.map(|_| ())).and_then(|()| self.server.busy_milli());
        self.moves.decide(surplus, busy);
        if self.moves.picks > 0 {
            return;
        }
        let delayed_ns = companion.map_or(0, |_| delayed_ns());
        let delay = delayed_ns.saturating_sub(self.moves.delayed_ns) / (super::CRON_MS * 1000);
        self.moves.delayed_ns = delayed_ns;
        let companion = companion.filter(|_| self.load.of(self.local.log.id) + delay <= NOT_ALWAYS);
        self.moves.decide_together(companion, busy);
    }

    /// Notes that a connection was served, and picks it if it is to go.
    #[inline]
    pub(super) fn note_served(&mut self, slot: usize) {
        if points::is_armed(Point::Move) {
            self.move_for_test(slot);
        }
        let moves = &mut self.moves;
        let Some(conn) = self.conns[slot].as_mut().filter(|conn| conn.served != moves.window) else { return };
        conn.served = moves.window;
        moves.served += 1;
        // One usually stays: if it is all there is to do, it would be too much for another loop as well.
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
            self.begin_move(slot, (self.local.log.id + 1) % self.server.loops());
        }
    }

    #[cold]
    fn begin_move(&mut self, slot: usize, to: usize) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        if to != self.local.log.id && conn.moving.is_none() && !conn.outside && !conn.doomed {
            conn.moving = Some((to, self.moves.window));
            self.moves.slots.push(slot);
            self.mark_dirty(slot);
        }
    }

    /// Sends away the picked connections of which nothing is under way any more.
    pub(super) fn move_some<T: Transport>(&mut self, io: &mut T) {
        self.moves.soon = false;
        if self.moves.slots.is_empty() {
            return;
        }
        let mark = self.local.log.enter(Part::Move, 0);
        let until = self.local.log.lap() + SLICE_NS;
        let mut rest = std::mem::take(&mut self.moves.slots).into_iter();
        for slot in rest.by_ref() {
            let Some(conn) = self.conns[slot].as_mut() else { continue };
            let Some((to, since)) = conn.moving else { continue };
            if conn.may_leave() && io.is_still(slot) {
                if conn.sent_with != self.submissions {
                    self.send_away(io, slot, to);
                    if self.local.log.lap() >= until {
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
        // Connections that there was no time for come in the next turn.
        self.moves.soon |= rest.len() > 0;
        self.moves.slots.extend(rest);
        self.local.log.leave(&self.server.observe, Part::Move, 0, mark);
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
        self.local.log.recorder.add(Counter::ConnectionsMoved, 1);
        conn.session.info.loop_id.store(to as u32, Ordering::Release);
        self.server.send(to, Mail::Adopt(Box::new(conn)));
    }

    /// Passes on a letter about the inbox of such a client, as [`EventLoop::pass_on_kill`] does.
    pub(super) fn pass_on_inbox(&self, client: u64) {
        if self.server.observe.clients.get(client).is_some() {
            self.server.tracking.remind(client);
        }
    }

    /// Passes on the closing of a client that has gone to another loop, is on its way to this one, or has
    /// left.
    pub(super) fn pass_on_kill(&self, client: u64) {
        if let Some(info) = self.server.observe.clients.get(client) {
            // A client on its way to this loop comes with the mail, and this letter behind it (G2).
            self.server.send(info.loop_id.load(Ordering::Acquire) as usize, Mail::Kill { client });
        }
    }
}

/// Total time this thread has waited for a core, in nanoseconds; 0 if the system does not tell.
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
        // Picks of one window are not those of the next; a window in which the loop is not full begins the
        // count anew.
        assert_eq!(look(full, Some(1000)).0, 0);
        assert_eq!(look(None, None).0, 0);
        assert!((1..FULL_WINDOWS).all(|_| look(full, Some(1000)).0 == 0));
        assert_eq!(look(Some((1, 1000)), Some(1000)), (PICKS, 1));
        // No core is idle, or it is not known.
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
        // A window in which one loop could not do it all takes half of the count away.
        assert!((2..TOGETHER_WINDOWS).all(|_| look(Some(3), Some(2000)).0 == 0));
        assert_eq!(look(None, None).0, 0);
        assert!((1..TOGETHER_WINDOWS / 2 + 1).all(|_| look(Some(3), Some(2000)).0 == 0));
        assert_eq!(look(Some(3), Some(2000)).0, PICKS);
        // A core is idle, or it is not known.
        assert!((0..2 * TOGETHER_WINDOWS).all(|_| look(Some(3), Some(1699)).0 == 0));
        assert!((0..2 * TOGETHER_WINDOWS).all(|_| look(Some(3), None).0 == 0));
    }

    #[test]
    fn the_machine_tells_its_cores_and_how_long_a_thread_waited() {
        assert!(cores() >= 1);
        // The thread may never have waited, and not for longer than the machine runs.
        assert!(delayed_ns() < 1 << 60);
    }
}
