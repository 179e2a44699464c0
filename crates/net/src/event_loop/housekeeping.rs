//! The work a loop does by the clock: deadlines, expiry, and checks ten times a second.

use super::{CRON_MS, EventLoop, LOOKS, SLICE_NS, State, WEIGHING_MS, thread_cpu_ns};
use crate::listed::List;
use exec::waits::Part;
use keyspace::Swept;
use std::sync::atomic::Ordering;
use stdx::points::{self, Point};

impl EventLoop {
    pub(super) fn keep_house(&mut self) {
        let mut until = None;
        while let Some(client) = self.timers.due(self.local.log.now_ms) {
            let until = *until.get_or_insert_with(|| self.local.log.lap() + SLICE_NS);
            self.time_out(client);
            if self.local.log.lap() >= until {
                break;
            }
        }
        if self.server.memory.is_limited() {
            let mark = self.local.log.enter(Part::Evict, 0);
            exec::shortage::tend(&self.server, &mut self.local);
            self.local.log.leave(&self.server.observe, Part::Evict, 0, mark);
        }
        let now_ms = self.mono_ms();
        if now_ms >= self.next_cron_ms {
            self.next_cron_ms = now_ms + CRON_MS;
            let mark = self.local.log.enter(Part::Housekeeping, 0);
            self.cron();
            self.local.log.leave(&self.server.observe, Part::Housekeeping, 0, mark);
        }
    }

    /// Visits some connections, when all have to be visited.
    pub(super) fn look_around(&mut self) {
        if let Some(from) = self.releasing {
            self.releasing = self.look_at(from, Self::release);
        }
        if let Some(from) = self.idling {
            self.idling = self.look_at(from, Self::close_if_idle);
        }
        if let Some(from) = self.weighing.at {
            self.weighing.at = self.look_at(from, Self::weigh);
            if self.weighing.at.is_none() {
                self.end_weighing();
            }
        }
    }

    /// Visits some connections from slot `from` on; returns where to go on.
    fn look_at(&mut self, from: usize, look: fn(&mut EventLoop, usize)) -> Option<usize> {
        let to = self.conns.len().min(from + LOOKS);
        (from..to).for_each(|slot| look(self, slot));
        (to < self.conns.len()).then_some(to)
    }

    /// Runs a held command again: CLIENT PAUSE may have ended.
    fn release(&mut self, slot: usize) {
        if let Some(conn) = self.conns[slot].as_mut()
            && matches!(conn.state, State::Held(_))
        {
            conn.release();
            self.queue(slot);
        }
    }

    /// Handles a deadline: a parked client's time is up, or a held command may run again.
    fn time_out(&mut self, client: u64) {
        let Some(&slot) = self.by_id.get(&client) else { return };
        let Some(conn) = self.conns[slot].as_mut() else { return };
        match conn.state {
            State::Held(at) if at <= self.local.log.now_ms => {
                conn.release();
                self.queue(slot);
            }
            State::Parked(Some(at)) if at <= self.local.log.now_ms => {
                match exec::blocking::time_out(&self.server, &mut self.local, client) {
                    Some(answer) => {
                        answer.into_iter().for_each(|bytes| self.deliver(client, bytes, None, None))
                    }
                    // Another loop is serving it at this moment: its reply is on the way, or it goes on
                    // waiting.
                    None => self.timers.set(client, self.local.log.now_ms + 1),
                }
            }
            State::Held(at) => self.timers.set(client, at),
            State::Parked(_) => {
                if conn.session.look.is_some_and(|look| look.at_ms <= self.local.log.now_ms) {
                    exec::blocking::look_again(&self.server, &mut self.local, &mut conn.session);
                }
                conn.forget_timer();
                if let Some(Some(at)) = conn.new_deadline() {
                    self.timers.set(client, at);
                }
            }
            State::Running if conn.has_lingered(self.local.log.now_ms) => self.doom(slot),
            _ => {}
        }
    }

    pub(super) fn sweep_some(&mut self) {
        if !self.sweeping || points::stays(Point::Sweep, 0) {
            return;
        }
        if self.server.work.pause.stops_writes(self.local.log.now_ms) {
            self.sweeping = false;
            return;
        }
        let until = stdx::clock::mono_ns() + SLICE_NS;
        loop {
            let mut told = Vec::new();
            let swept =
                self.sweep.step(&self.server.keyspace, self.local.log.now_ms, |changes| told.push(changes));
            for changes in told {
                self.server.after(&mut self.local, changes);
            }
            if swept == Swept::Round {
                self.sweeping = false;
                return;
            }
            if stdx::clock::mono_ns() >= until {
                return;
            }
        }
    }

    /// Closes clients whose replies have waited for a log that does not write, for `log-stuck` and longer:
    /// they are told nothing rather than something false. O(connections that wait)
    fn close_unanswered(&mut self) {
        if !self.lists.any(List::Gated) || !self.server.durability.is_log_stopped() {
            return;
        }
        let limit_ns = self.server.config.live.log_stuck_s.size() as u64 * 1_000_000_000;
        let now_ns = self.local.log.clock_ns;
        let waits = |slot: &usize| self.conns[*slot].as_ref().and_then(|conn| conn.gated_since_ns);
        let late =
            |slot: &usize| waits(slot).is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= limit_ns);
        let late: Vec<usize> = self.lists.iter(List::Gated).filter(late).collect();
        if !late.is_empty() {
            log::warn!("{} clients were closed unanswered: the log cannot be written", late.len());
        }
        late.into_iter().for_each(|slot| self.doom(slot));
    }

    /// Serves what the primary has said for one quantum, before the slices of long work: a crowd of readers
    /// does not let a replica fall behind.
    pub(super) fn serve_link(&mut self) {
        for at in 0..self.links.len() {
            let Some(&slot) = self.by_id.get(&self.links[at]) else { continue };
            if self.conns[slot].as_ref().is_some_and(|conn| conn.is_queued() && conn.has_work()) {
                self.advance(slot, &[]);
            }
        }
    }

    /// Lets connections to the primary say how far they are.
    fn acknowledge(&mut self) {
        for at in (0..self.links.len()).rev() {
            let Some(&slot) = self.by_id.get(&self.links[at]) else {
                self.links.swap_remove(at);
                continue;
            };
            let now_ms = self.local.log.now_ms;
            if self.conns[slot].as_mut().is_some_and(|conn| conn.acknowledge(&self.server, now_ms)) {
                self.mark_dirty(slot);
            }
        }
    }

    fn cron(&mut self) {
        // Only the first loop sweeps: two would meet at the same shards.
        self.sweeping |= self.local.log.id == 0;
        // Time in the kernel counts: most of a short request's work is there.
        let cpu_ns = thread_cpu_ns();
        let elapsed = (self.local.log.clock_ns - self.window_started_ns).max(1);
        let busy = ((cpu_ns - self.cpu_ns) * 1000 / elapsed).min(1000);
        self.load.0[self.local.log.id].store(busy, Ordering::Relaxed);
        self.cpu_ns = cpu_ns;
        self.consider_moving();
        if std::mem::take(&mut self.starved) {
            self.doors.accept_again();
        }
        self.window_started_ns = self.local.log.clock_ns;
        let live = &self.server.config.live;
        // A client that has not logged in is found within a second or two.
        let guests = live.auth_timeout_s.get() > 0 && !self.server.acl.is_open();
        let guests = guests && (self.local.log.now_ms / CRON_MS).is_multiple_of(10);
        let limited = guests || live.timeout_s.get() > 0 || self.https > 0 && live.http_timeout_s.get() > 0;
        if limited && self.idling.is_none() {
            self.idling = Some(0);
        }
        let often = self.conns.len() <= LOOKS || live.clients_limit_bytes() > 0;
        if self.weighing.at.is_none() && (often || self.mono_ms() >= self.weighing.due_ms) {
            self.weighing.at = Some(0);
            self.weighing.due_ms = self.mono_ms() + WEIGHING_MS;
        }
        self.acknowledge();
        self.look_at_limited();
        self.look_at_hauls();
        self.look_at_streams();
        self.close_unanswered();
        if self.local.log.id == 0 {
            self.server.keyspace.cursors.prune(self.local.log.now_ms);
            exec::fetching::cron(&self.server);
            exec::drive::tend(&self.server, self.local.log.clock_ns / 1_000_000, self.local.log.now_ms);
        }
        exec::drive::end_useless(&self.server, &mut self.local);
        exec::drive::retry_waiting(&self.server, &mut self.local);
        exec::drive::resume(&self.server, &mut self.local);
        exec::housekeeping::cron(&self.server, &mut self.local);
    }
}
