//! A thread that watches the loops from outside: it sees a long turn even if the loop never reports it.
//!
//! Every millisecond, or less often while the loops are idle, it reads every loop's [`Pulse`](super::Pulse).
//! A turn of [`STALL_NS`] or longer is a stall, for which the loop must name a culprit. The watchdog compares
//! its own samples with the loop's answer, so the share of wrong answers is measured.
//!
//! - D1: the watchdog only reads, and holds no lock for long. It writes the log line of a stall, so the loop
//!   need not.
//! - D2: the loop has [`GRACE`] rounds to name the culprit; then the stall counts as unknown.
//! - D3: at most one line a second is logged, with the number of lines left out. A thread of low priority
//!   writes it, since names of functions can take 100 ms to find.
//! - D4: at the begin of a stall a signal asks the loop which functions are under way (`machine::stacks`). The
//!   answer is fetched a round later, and belongs to the stall if it was given during it. One question at a
//!   time.
//! - D5: if the system took the processor, the watchdog looks up the threads that had it
//!   ([`super::neighbours`]).

use super::neighbours::{Neighbour, Neighbours, SUSPECT_NS, When};
use super::turn::decode;
use super::{STALL_NS, Stall, Waits, What};
use crate::Observe;
use machine::stacks;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Weak};
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(1);
/// The period while no loop has begun a turn for [`QUIET`] rounds.
const SLEEPY: Duration = Duration::from_millis(20);
const QUIET: u32 = 100;
const GRACE: u32 = 4;
/// Rounds for which the watchdog waits for an answer (D4).
const PATIENCE: u32 = 50;
/// Functions named in a log line.
const NAMED: usize = 3;
/// Log lines that may wait to be written.
const LINES: usize = 16;
/// The nice value of the thread that writes them.
const LOG_NICE: i32 = 19;
/// The length from which a stall is logged before it ends.
const LASTS_NS: u64 = 100_000_000;

/// The watchdog's counters, for INFO.
#[derive(Debug, Default)]
pub struct Seen {
    pub stalls: AtomicU64,
    /// Stalls whose culprit the loop named.
    pub named: AtomicU64,
    pub crowds: AtomicU64,
    pub os: AtomicU64,
    /// Stalls of `os` for which at least half of the lost time has a name.
    pub os_named: AtomicU64,
    pub unknown: AtomicU64,
    /// Stalls for which the loop named another client than the watchdog saw being served.
    pub differing: AtomicU64,
    pub longest_us: AtomicU64,
    /// Loops that are in a stall at this moment.
    pub now: AtomicU64,
}

impl Seen {
    pub(super) fn reset(&self) {
        let all = [&self.stalls, &self.named, &self.crowds, &self.os, &self.os_named, &self.unknown];
        all.iter().chain(&[&self.differing, &self.longest_us]).for_each(|counter| counter.store(0, Relaxed));
    }

    /// The names and figures that INFO shows.
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        vec![
            ("loop_stalls_seen", of(&self.stalls)),
            ("loop_stalls_named", of(&self.named)),
            ("loop_stalls_crowd", of(&self.crowds)),
            ("loop_stalls_os", of(&self.os)),
            ("loop_stalls_os_named", of(&self.os_named)),
            ("loop_stalls_unknown", of(&self.unknown)),
            ("loop_stalls_differing", of(&self.differing)),
            ("loop_stalls_now", of(&self.now)),
            ("loop_stall_longest_us", of(&self.longest_us)),
        ]
    }
}

/// A stall that is under way, or waits to be judged.
#[derive(Clone, Copy)]
struct Open {
    began_ns: u64,
    /// The work that had gone on for longest when the watchdog looked, and how long then.
    doing: u64,
    doing_ns: u64,
    runnable_ns: u64,
    logged: bool,
    over: u32,
}

/// Starts the watchdog and the thread that writes its log lines. They end when `observe` is dropped.
pub fn start(observe: &Arc<Observe>) -> std::io::Result<()> {
    let (observe, waits) = (Arc::downgrade(observe), observe.waits.clone());
    if !stacks::install() {
        log::warn!("stalls of event loops will be logged without functions: no signal handler");
    }
    let (lines, told) = mpsc::sync_channel(LINES);
    std::thread::Builder::new().name("watchdog-log".into()).spawn(move || {
        machine::threads::demote(LOG_NICE);
        told.into_iter().for_each(|line: Line| _ = stdx::panics::contain(|| line.write()));
    })?;
    std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        machine::threads::prompt();
        let mut dog = Watchdog::new(waits, lines);
        while observe.strong_count() > 0 {
            std::thread::sleep(dog.period());
            // After a panic a figure may be wrong. That is better than to end the server, or the watch.
            _ = stdx::panics::contain(|| dog.look(stdx::clock::mono_ns(), &observe));
        }
    })?;
    Ok(())
}

/// A log line whose functions have no names yet.
struct Line {
    begin: String,
    stack: Arc<[u64]>,
    end: String,
}

impl Line {
    fn write(self) {
        log::warn!("{}{}{}", self.begin, within(&self.stack), self.end);
    }
}

struct Watchdog {
    lines: SyncSender<Line>,
    waits: Arc<Waits>,
    open: Vec<Option<Open>>,
    ended: Vec<(usize, Open)>,
    last: Vec<u64>,
    quiet: u32,
    logged_ns: u64,
    left_out: u64,
    /// The open question: the loop, and the rounds since (D4).
    asked: Option<(usize, u32)>,
    /// Each loop's last answer: its time, and the functions under way.
    stacks: Vec<(u64, Arc<[u64]>)>,
    neighbours: Neighbours,
}

impl Watchdog {
    fn new(waits: Arc<Waits>, lines: SyncSender<Line>) -> Watchdog {
        let loops = waits.pulses.len();
        let (open, last) = (vec![None; loops], vec![0; loops]);
        let stacks = vec![(0, Arc::default()); loops];
        let (ended, asked) = (Vec::new(), None);
        let neighbours = Neighbours::new(loops);
        Watchdog {
            lines,
            waits,
            open,
            ended,
            last,
            quiet: 0,
            logged_ns: 0,
            left_out: 0,
            asked,
            stacks,
            neighbours,
        }
    }

    fn period(&self) -> Duration {
        if self.quiet > QUIET { SLEEPY } else { PERIOD }
    }

    fn look(&mut self, now: u64, observe: &Weak<Observe>) {
        self.quiet = self.quiet.saturating_add(1);
        self.hear();
        let when = observe.upgrade().map_or(0, |observe| observe.config.live.watch_neighbours.get());
        self.neighbours.look(now, When::of(when));
        for id in 0..self.open.len() {
            self.look_at(id, now, observe);
        }
        let stalled = self.open.iter().flatten().count() as u64;
        self.waits.seen.now.store(stalled, Relaxed);
        for (id, mut open) in std::mem::take(&mut self.ended) {
            open.over += 1;
            if !self.judge(id, &open, now) {
                self.ended.push((id, open));
            }
        }
        for id in 0..self.open.len() {
            let waits = self.ended.iter().any(|(ended, _)| *ended == id);
            if !waits && self.open[id].is_none() && !self.is_suspect(id, now) {
                self.neighbours.leave(id);
            }
        }
    }

    fn is_suspect(&self, id: usize, now: u64) -> bool {
        let turn_ns = self.waits.pulses[id].turn_ns();
        turn_ns != 0 && now.saturating_sub(turn_ns) >= SUSPECT_NS
    }

    /// Asks a loop which functions are under way, unless a question is open (D4).
    fn ask(&mut self, id: usize) {
        let thread = self.waits.pulses[id].thread();
        // An answer that came too late for its question is dropped.
        let ask = || stacks::ask(thread) || stacks::take().is_some() && stacks::ask(thread);
        if self.asked.is_none() && thread != 0 && ask() {
            self.asked = Some((id, 0));
        }
    }

    /// Fetches the answer, or gives up after [`PATIENCE`] rounds.
    fn hear(&mut self) {
        let Some((id, rounds)) = &mut self.asked else { return };
        let id = *id;
        *rounds += 1;
        if let Some(sample) = stacks::take() {
            self.stacks[id] = (sample.at_ns, sample.frames().into());
            self.asked = None;
        } else if *rounds > PATIENCE {
            stacks::withdraw();
            self.asked = None;
        }
    }

    fn look_at(&mut self, id: usize, now: u64, observe: &Weak<Observe>) {
        let pulse = &self.waits.pulses[id];
        let turn_ns = pulse.turn_ns();
        if turn_ns != self.last[id] || turn_ns != 0 {
            (self.last[id], self.quiet) = (turn_ns, 0);
        }
        if let Some(open) = self.open[id]
            && open.began_ns != turn_ns
        {
            self.open[id] = None;
            self.ended.push((id, open));
        }
        if self.is_suspect(id, now) {
            self.neighbours.suspect(id, self.waits.pulses[id].thread(), now);
        }
        if turn_ns == 0 || now.saturating_sub(turn_ns) < STALL_NS {
            return;
        }
        let pulse = &self.waits.pulses[id];
        let (doing, since_ns) = pulse.doing();
        let begin = || Open {
            began_ns: turn_ns,
            doing,
            doing_ns: 0,
            runnable_ns: runnable_ns(pulse.thread()),
            logged: false,
            over: 0,
        };
        let known = self.open[id];
        let mut open = known.unwrap_or_else(begin);
        let age = now.saturating_sub(since_ns);
        if age >= open.doing_ns {
            (open.doing, open.doing_ns) = (doing, age);
        }
        if !open.logged && now - turn_ns >= LASTS_NS {
            open.logged = true;
            let (client, command) = decode(open.doing);
            let address = observe.upgrade().and_then(|observe| observe.clients.get(client));
            let address = address.map_or(String::new(), |client| format!(" ({})", client.address));
            let ms = (now - turn_ns) / 1_000_000;
            let command = command.to_uppercase();
            log::warn!(
                "event loop {id} has been busy for {ms} ms, now with client {client}{address}: {command}"
            );
        }
        self.open[id] = Some(open);
        if known.is_none() {
            self.ask(id);
        }
    }

    /// Counts and logs a stall that is over. False: the loop has not named the culprit yet (D2).
    fn judge(&mut self, id: usize, open: &Open, now: u64) -> bool {
        let seen = &self.waits.seen;
        let Some(stall) = self.waits.stall(id, open.began_ns) else {
            if open.over < GRACE {
                return false;
            }
            seen.stalls.fetch_add(1, Relaxed);
            seen.unknown.fetch_add(1, Relaxed);
            return true;
        };
        seen.stalls.fetch_add(1, Relaxed);
        seen.longest_us.fetch_max(stall.ns / 1000, Relaxed);
        let (seen_ns, stack) = &self.stacks[id];
        let fits = (stall.began_ns..=stall.began_ns + stall.ns).contains(seen_ns);
        let stack = if fits { stack.clone() } else { Arc::default() };
        self.waits.add_stack(id, stall.began_ns, stack.clone());
        let culprit = &stall.culprit;
        let counter = match culprit.what {
            What::Os => &seen.os,
            What::Crowd => &seen.crowds,
            What::Unknown => &seen.unknown,
            _ => &seen.named,
        };
        counter.fetch_add(1, Relaxed);
        if culprit.what == What::Os || culprit.os_ns * 2 >= stall.ns {
            let time = (stall.began_ns, stall.began_ns + stall.ns);
            let ran = self.neighbours.who(self.waits.pulses[id].thread(), time, culprit.os_ns, now);
            let known_ns: u64 = ran.iter().map(|one| one.ns).sum();
            if culprit.what == What::Os && known_ns * 2 >= culprit.os_ns {
                seen.os_named.fetch_add(1, Relaxed);
            }
            let _ = culprit.ran.set(ran.into());
        }
        let (client, _) = decode(open.doing);
        let sure = client != 0 && open.doing_ns * 2 >= stall.ns;
        if sure && culprit.what == What::Loop && culprit.client_id() != client {
            seen.differing.fetch_add(1, Relaxed);
        }
        self.log(id, open, (&stall, stack), now);
        true
    }

    /// Logs a stall; at most one line a second (D3).
    fn log(&mut self, id: usize, open: &Open, (stall, stack): (&Stall, Arc<[u64]>), now: u64) {
        let culprit = &stall.culprit;
        if self.logged_ns != 0 && now - self.logged_ns < 1_000_000_000 {
            self.left_out += 1;
            return;
        }
        self.logged_ns = now;
        let runnable = runnable_ns(self.waits.pulses[id].thread()).saturating_sub(open.runnable_ns);
        let more = match std::mem::take(&mut self.left_out) {
            0 => String::new(),
            n => format!(" ({n} more since the last line)"),
        };
        let begin = format!(
            "event loop {id} stalled for {} us: {} behind {}; not running for {} us, of it {} us waiting for a \
             processor{}",
            stall.ns / 1000,
            culprit.what.name(),
            culprit.sentence(),
            culprit.os_ns / 1000,
            runnable.min(stall.ns) / 1000,
            taken_by(culprit.neighbours()),
        );
        // A full queue drops the line.
        let _ = self.lines.try_send(Line { begin, stack, end: more });
    }
}

/// The neighbours as a part of a sentence.
fn taken_by(ran: &[Neighbour]) -> String {
    let told: Vec<String> = ran.iter().map(Neighbour::sentence).collect();
    if told.is_empty() { String::new() } else { format!("; taken by {}", told.join("; ")) }
}

/// The innermost functions, as the end of a sentence.
fn within(stack: &[u64]) -> String {
    let names: Vec<String> = stack.iter().take(NAMED).map(|address| stacks::name(*address)).collect();
    if names.is_empty() { String::new() } else { format!("; in {}", names.join(", called by ")) }
}

/// Nanoseconds for which a thread was ready to run and had no processor, ever; 0 where the system does not
/// say.
fn runnable_ns(thread: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"));
    text.ok().and_then(|text| text.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::turn::encode;
    use super::super::{Culprit, Stall};
    use super::*;
    use std::sync::OnceLock;

    fn culprit(what: What, client: Option<u64>) -> Arc<Culprit> {
        let client = client.map(super::super::tests::client);
        Arc::new(Culprit {
            what,
            client,
            command: "eval",
            words: Vec::new(),
            ns: 5_000_000,
            os_ns: 0,
            ran: OnceLock::new(),
        })
    }

    #[test]
    fn every_stall_is_counted_once_with_what_the_loop_said() {
        let waits = Arc::new(Waits::new(1));
        let mut dog = Watchdog::new(waits.clone(), mpsc::sync_channel(LINES).0);
        let nobody = Weak::new();
        let seen = |name: &str| waits.seen.figures().iter().find(|(n, _)| *n == name).unwrap().1;
        let mut now = 10_000_000;
        let cases = [
            (Some(culprit(What::Loop, Some(5))), "loop_stalls_named"),
            (Some(culprit(What::Os, Some(5))), "loop_stalls_os"),
            (Some(culprit(What::Crowd, None)), "loop_stalls_crowd"),
            (None, "loop_stalls_unknown"),
        ];
        for (n, (said, counter)) in cases.into_iter().enumerate() {
            let began_ns = now;
            waits.pulses[0].begin_for_test(began_ns);
            waits.pulses[0].serve(encode(5, 1), began_ns);
            dog.look(now + 500_000, &nobody);
            assert_eq!(seen("loop_stalls_now"), 0);
            dog.look(now + 2_000_000, &nobody);
            assert_eq!(seen("loop_stalls_now"), 1);
            waits.pulses[0].begin_for_test(0);
            if let Some(culprit) = said {
                waits.add_stall(Stall {
                    unix_ms: 1,
                    loop_id: 0,
                    began_ns,
                    ns: 5_000_000,
                    commands: 1,
                    culprit,
                    stack: Arc::default(),
                });
            }
            (0..6).for_each(|round| dog.look(now + 6_000_000 + round, &nobody));
            assert_eq!((seen("loop_stalls_seen"), seen(counter)), (n as u64 + 1, 1), "{counter}");
            now += 10_000_000;
        }
        assert_eq!((seen("loop_stalls_differing"), seen("loop_stalls_now")), (0, 0));
        assert_eq!(seen("loop_stall_longest_us"), 5000);
    }
}
