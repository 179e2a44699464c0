//! Counts the commands that run inside a script or a transaction, each like one that a client sent.
//!
//! The counters get them when the script or transaction is done: a run that is dropped and repeated counts
//! once (scripts C1). Until then, the commands of a short run stand in a list, and those of a long run in
//! sums.
//!
//! Commands of a transaction that are slow or have a large reply are noted for the logs one by one, as in
//! Redis. Those of a script are part of their script.
//!
//! Cost: two readings of a tick counter and a few stores per command. The counters cost O(commands listed),
//! or O(3072) for each command that has a sum.

use crate::hotkeys::{HotRun, HotSession, Hotkeys};
use crate::stats::{ERROR_KINDS_MAX, Recorder, Times, error_name};
use command::Command;
use config::Live;
use resp::Args;

/// Commands listed before they are summed up.
const LISTED_MAX: usize = 256;

/// Commands noted per transaction: as many as a log keeps by default.
const NOTED_MAX: usize = 128;

/// The commands of one script or transaction, not yet in the counters.
#[derive(Default)]
pub struct Tally {
    listed: Vec<Ran>,
    sums: Vec<Sum>,
    /// Errors the commands answered, by name.
    errors: Vec<(Box<str>, u64)>,
    thresholds: Thresholds,
    noted: Vec<Noted>,
    /// The sums for HOTKEYS, if it runs.
    hot: Option<Box<HotRun>>,
}

/// The amounts from which a transaction's command is noted. None: no command is. And the session of HOTKEYS
/// that adds up its keys.
#[derive(Clone, Copy, Default)]
pub struct Thresholds {
    slower_us: Option<u64>,
    reply_bytes: Option<u64>,
    hot: Option<HotSession>,
}

impl Thresholds {
    pub fn of(live: &Live, hotkeys: &Hotkeys) -> Thresholds {
        let amount = |number: i64| u64::try_from(number).ok();
        let (slower_us, reply_bytes) = (live.slowlog_slower_us.get(), live.large_reply_bytes.get());
        let (slower_us, reply_bytes) = (amount(slower_us), amount(reply_bytes));
        Thresholds { slower_us, reply_bytes, hot: hotkeys.session() }
    }

    /// The thresholds of commands that no log shows one by one.
    pub fn of_hotkeys(hotkeys: &Hotkeys) -> Thresholds {
        Thresholds { hot: hotkeys.session(), ..Thresholds::default() }
    }
}

/// One command of a transaction that the logs show.
pub struct Noted {
    pub words: Vec<Vec<u8>>,
    /// Its run time, if that was long.
    pub slow_ns: Option<u64>,
    /// Its reply's length, if that is large.
    pub reply_bytes: Option<usize>,
}

/// One run of a command, which is given by its number in the table.
struct Ran {
    command: usize,
    ns: u64,
    failed: bool,
}

struct Sum {
    command: usize,
    calls: u64,
    failed: u64,
    ns: u64,
    times: Times,
}

impl Tally {
    #[inline]
    pub fn add(&mut self, command: usize, ns: u64, failed: bool) {
        self.listed.push(Ran { command, ns, failed });
        if self.listed.len() == LISTED_MAX {
            self.sum_up();
        }
    }

    /// Sets the amounts from which commands are noted.
    pub fn notes_from(&mut self, thresholds: Thresholds) {
        self.thresholds = thresholds;
        self.hot = thresholds.hot.map(|session| Box::new(HotRun::new(session)));
    }

    /// Notes a transaction's command if it was slow or its reply is large, and adds up its keys for HOTKEYS.
    #[inline]
    pub fn queued(&mut self, command: &'static Command, args: Args<'_>, ns: u64, reply_bytes: usize) {
        if let Some(hot) = &mut self.hot {
            hot.ran(command, args, ns, args.wire_bytes() + reply_bytes);
        }
        let slow = self.thresholds.slower_us.is_some_and(|from_us| ns / 1000 >= from_us);
        let large = self.thresholds.reply_bytes.is_some_and(|from| reply_bytes as u64 >= from);
        let is_noted = (slow || large) && self.noted.len() < NOTED_MAX;
        if is_noted && !command.has(command::table::SKIP_SLOWLOG) {
            let words = crate::calls::words(command, args);
            let (slow_ns, reply_bytes) = (slow.then_some(ns), large.then_some(reply_bytes));
            self.noted.push(Noted { words, slow_ns, reply_bytes });
        }
    }

    /// Takes the noted commands, in the order in which they ran.
    pub fn take_noted(&mut self) -> Vec<Noted> {
        std::mem::take(&mut self.noted)
    }

    /// Takes the sums for HOTKEYS.
    pub fn take_hot(&mut self) -> Option<Box<HotRun>> {
        self.hot.take()
    }

    fn sum_up(&mut self) {
        for ran in self.listed.drain(..) {
            let sum = sum_of(&mut self.sums, ran.command);
            sum.calls += 1;
            sum.failed += u64::from(ran.failed);
            sum.ns += ran.ns;
            sum.times.record(ran.ns, 1);
        }
    }

    /// Adds `calls` runs of a command that took `each_ns` each.
    pub fn add_many(&mut self, command: usize, calls: u64, each_ns: u64) {
        let sum = sum_of(&mut self.sums, command);
        sum.calls += calls;
        sum.ns += calls * each_ns;
        sum.times.record(each_ns, calls);
    }

    /// Counts an error; `text` is the reply without its '-'. Cost: O(names of errors so far).
    pub fn error(&mut self, text: &[u8]) {
        let name = error_name(text);
        match self.errors.iter().position(|(known, _)| **known == *name) {
            Some(at) => self.errors[at].1 += 1,
            None if self.errors.len() < ERROR_KINDS_MAX => self.errors.push((name.into(), 1)),
            None => {}
        }
    }

    /// Takes one error back: it is also the reply of the script or transaction, and is counted there.
    pub fn passes_on(&mut self, text: &[u8]) {
        let name = error_name(text);
        if let Some((_, count)) = self.errors.iter_mut().find(|(known, _)| **known == *name) {
            *count -= 1;
        }
    }

    /// Drops everything: the run is not to be counted.
    pub fn clear(&mut self) {
        self.listed.clear();
        self.sums.clear();
        self.errors.clear();
        self.noted.clear();
        self.hot.iter_mut().for_each(|hot| hot.clear());
    }

    /// Moves everything but noted commands into the counters. `timed`: into the histograms, too.
    pub fn tell(&mut self, recorder: &Recorder, timed: bool) {
        for ran in self.listed.drain(..) {
            recorder.within(ran.command, ran.ns, ran.failed, timed);
        }
        for sum in self.sums.drain(..) {
            recorder.within_many(sum.command, (sum.calls, sum.failed, sum.ns), timed.then_some(&sum.times));
        }
        let errors = self.errors.drain(..).filter(|(_, count)| *count > 0);
        errors.for_each(|(name, count)| recorder.errors(&name, count));
    }
}

fn sum_of(sums: &mut Vec<Sum>, command: usize) -> &mut Sum {
    let at = sums.iter().position(|sum| sum.command == command).unwrap_or_else(|| {
        sums.push(Sum { command, calls: 0, failed: 0, ns: 0, times: Times::default() });
        sums.len() - 1
    });
    &mut sums[at]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Counter, Registry};

    #[test]
    fn few_and_many_are_counted_alike() {
        for calls in [3, 255, 256, 5_000u64] {
            let registry = Registry::new(3);
            let recorder = registry.recorder();
            let (each, all) = (Registry::new(3), Tally::default());
            let (one_by_one, mut tally) = (each.recorder(), all);
            for i in 0..calls {
                let (command, ns, failed) = ((i % 2) as usize, i * i % 90_000, i % 7 == 0);
                tally.add(command, ns, failed);
                one_by_one.within(command, ns, failed, true);
            }
            tally.tell(&recorder, true);
            assert_eq!(registry.commands(), each.commands());
            assert_eq!(registry.counter(Counter::CommandsProcessed), calls);
            for command in 0..3 {
                assert_eq!(registry.histogram(command), each.histogram(command));
            }
            tally.add(0, 5, false);
            tally.error(b"ERR x");
            tally.clear();
            tally.tell(&recorder, true);
            assert_eq!(registry.counter(Counter::CommandsProcessed), calls);
        }
    }

    #[test]
    fn errors_are_counted_by_name_and_those_passed_on_are_not() {
        let registry = Registry::new(1);
        let (recorder, mut tally) = (registry.recorder(), Tally::default());
        for text in ["WRONGTYPE a", "ERR b", "WRONGTYPE c", "NOSCRIPT d"] {
            tally.error(text.as_bytes());
        }
        tally.passes_on(b"NOSCRIPT d script: x");
        tally.tell(&recorder, false);
        tally.tell(&recorder, false);
        let errors = registry.errors().into_iter().map(|(name, count)| (name.into_string(), count));
        assert_eq!(errors.collect::<Vec<_>>(), [("ERR".into(), 1), ("WRONGTYPE".into(), 2)]);
        assert_eq!(registry.counter(Counter::ErrorReplies), 3);
    }
}
