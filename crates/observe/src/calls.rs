//! Records every command that ran or was refused: counters, run times, COMMANDLOG, LATENCY.
//!
//! Counters belong to the loop that ran the command ([`stats`](crate::stats)). The logs are shared, and
//! touched only when something was slow or large.

use crate::TurnLog;
use crate::client::ClientInfo;
use crate::commandlog::{self, Entry, LogKind, Logs};
use crate::hotkeys::Hotkeys;
use crate::latency::Events;
use crate::stats::{Counter, Rates, Recorder, Registry, Speeds};
use crate::tally::Noted;
use crate::waits::Request;
use command::places;
use command::table::{self, Command};
use config::Live;
use parking_lot::Mutex;
use resp::Args;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters and logs of one server.
pub struct Calls {
    /// Commands held back because their client had removed more than may wait to be freed.
    pub reclaim_delays: AtomicU64,
    pub registry: Arc<Registry>,
    pub logs: Logs,
    pub events: Events,
    pub hotkeys: Hotkeys,
    rates: Mutex<Rates>,
    /// The most memory ever in use, and the memory in use at the start, in bytes.
    pub peak_bytes: AtomicU64,
    pub startup_bytes: AtomicU64,
}

/// One command's run.
pub struct Ran<'a> {
    pub command: &'static Command,
    /// The command's place in the command table.
    pub number: usize,
    pub ns: u64,
    pub args: Args<'a>,
    /// The part of the reply that was written at once.
    pub reply: &'a [u8],
    /// The client gets this reply, and no stream follows it.
    pub whole: bool,
    /// Where the time went, if the command was long.
    pub spent: Option<&'a Request>,
}

/// One command whose work was done away from its loop, and is over.
pub struct Finished<'a> {
    pub command: &'static Command,
    /// Run time, on the loop and on a thread together.
    pub ns: u64,
    /// The time SLOWLOG judges it by: with all waits, or the run time alone if the command blocks on keys.
    pub slow_ns: u64,
    pub words: Vec<Vec<u8>>,
    /// The error it answered.
    pub failed: Option<&'a [u8]>,
    pub request: &'a Request,
    /// The command waited for keys, and its work was done on loops.
    pub on_loop: bool,
}

/// The words of a command as logs show them: shortened, and without passwords.
pub fn words(command: &Command, args: Args<'_>) -> Vec<Vec<u8>> {
    commandlog::shortened(args, |at| is_secret(command, args, at))
}

impl Calls {
    pub fn new() -> Calls {
        Calls {
            reclaim_delays: AtomicU64::new(0),
            registry: Registry::new(places::all().len()),
            logs: Logs::default(),
            events: Events::default(),
            hotkeys: Hotkeys::default(),
            rates: Mutex::default(),
            peak_bytes: AtomicU64::new(0),
            startup_bytes: AtomicU64::new(0),
        }
    }

    /// Creates the counters of a loop.
    pub fn recorder(&self, event_loop: usize) -> Recorder {
        self.registry.recorder_of(Some(event_loop))
    }

    /// Records a command that ran on its loop.
    #[inline]
    pub fn called(&self, log: &TurnLog, live: &Live, info: &ClientInfo, ran: Ran<'_>) {
        let failed = ran.reply.first() == Some(&b'-');
        log.recorder.command(ran.number, ran.ns, failed, live.latency_tracking.get());
        log.replied(log.came_ns);
        if failed {
            log.recorder.error(&ran.reply[1..]);
        }
        // A client that was served late was slow, however short its command.
        let late_ns = log.turn.late.as_ref().map_or(0, |late| late.ns);
        let waited_ns = late_ns + ran.spent.map_or(0, Request::held_ns);
        let slower_us = live.slowlog_slower_us.get();
        if slower_us >= 0 && (ran.ns + waited_ns) / 1000 >= slower_us as u64 {
            self.log_slow(log, live, info, &ran, waited_ns, late_ns);
        }
        self.add_event(log, live, ran.command, ran.ns);
        self.requested(live, info, ran.command, ran.args);
        if self.hotkeys.is_on() {
            let bytes = ran.args.wire_bytes() + ran.reply.len();
            self.hotkeys.ran(ran.command, ran.args, ran.ns, bytes, log.now_ms);
        }
        if ran.whole {
            self.replied(live, info, ran.command, ran.reply.len(), || words(ran.command, ran.args));
        }
    }

    /// Logs a request if it is large. O(1), or O(words) for one that was not sent in the protocol's form.
    #[inline]
    pub fn requested(&self, live: &Live, info: &ClientInfo, command: &'static Command, args: Args<'_>) {
        let from = live.large_request_bytes.get();
        if from >= 0 && args.wire_bytes_max() >= from as usize && !command.has(table::SKIP_SLOWLOG) {
            let bytes = args.wire_bytes();
            if bytes >= from as usize {
                let max = live.large_requests_max.size();
                self.add_large(info, (LogKind::LargeRequest, max), bytes, words(command, args));
            }
        }
    }

    /// Logs a reply if it is large. `words`: its command's, as the log shows them. O(1)
    #[inline]
    pub fn replied(
        &self,
        live: &Live,
        info: &ClientInfo,
        command: &'static Command,
        bytes: usize,
        words: impl FnOnce() -> Vec<Vec<u8>>,
    ) {
        let from = live.large_reply_bytes.get();
        if from >= 0 && bytes >= from as usize && !command.has(table::SKIP_SLOWLOG) {
            self.add_large(info, (LogKind::LargeReply, live.large_replies_max.size()), bytes, words());
        }
    }

    #[cold]
    fn add_large(
        &self,
        info: &ClientInfo,
        (kind, max_len): (LogKind, usize),
        bytes: usize,
        args: Vec<Vec<u8>>,
    ) {
        let entry = Entry {
            id: 0,
            unix_s: stdx::clock::wall_ms() / 1000,
            amount: bytes as u64,
            args,
            client_address: info.address.clone(),
            client_name: info.text.lock().name.clone(),
            client: info.id,
            cause: String::new(),
            phases: Vec::new(),
            culprit: None,
        };
        self.logs.of(kind).add(entry, max_len);
    }

    /// Records a command that ran away from its loop and is done.
    pub fn finished(&self, log: &TurnLog, live: &Live, info: &ClientInfo, ran: Finished<'_>) {
        let (place, timed) = (places::of(ran.command), live.latency_tracking.get());
        match ran.on_loop {
            true => log.recorder.command(place, ran.ns, ran.failed.is_some(), timed),
            false => log.recorder.finished(place, ran.ns, ran.failed.is_some(), timed),
        }
        if let Some(text) = ran.failed {
            log.recorder.error(text);
        }
        let slower_us = live.slowlog_slower_us.get();
        let slow = slower_us >= 0 && ran.slow_ns / 1000 >= slower_us as u64;
        if slow && !ran.command.has(table::SKIP_SLOWLOG) {
            self.add_slow(log, live, info, ran.slow_ns, ran.words, ran.request);
        }
        self.add_event(log, live, ran.command, ran.ns);
    }

    fn add_event(&self, log: &TurnLog, live: &Live, command: &Command, ns: u64) {
        let threshold_ms = live.latency_threshold_ms.get();
        if threshold_ms > 0 && ns / 1_000_000 >= threshold_ms as u64 {
            let kind = if command.has(table::FAST) { "fast-command" } else { "command" };
            self.events.add(kind, log.now_ms / 1000, ns / 1_000_000, threshold_ms);
        }
    }

    #[cold]
    fn log_slow(
        &self,
        log: &TurnLog,
        live: &Live,
        info: &ClientInfo,
        ran: &Ran<'_>,
        waited_ns: u64,
        late_ns: u64,
    ) {
        let late = log.turn.late.as_ref();
        let slower_us = live.slowlog_slower_us.get().max(0) as u64;
        // One long piece of work can delay hundreds of clients. Only the first few are logged.
        let first = late.is_none_or(|late| log.turn.is_among_first() && !late.logged.replace(true));
        if ran.command.has(table::SKIP_SLOWLOG) || !first && ran.ns / 1000 < slower_us {
            return;
        }
        let short = Request {
            inline_ns: ran.ns,
            loop_ns: late_ns,
            behind: late.map(|late| late.culprit.clone()),
            ..Request::default()
        };
        let request = ran.spent.unwrap_or(&short);
        let words = words(ran.command, ran.args);
        self.add_slow(log, live, info, ran.ns + waited_ns, words, request);
    }

    /// Logs a transaction's command that ran on its loop, if it was slow or its reply of so many bytes is
    /// large. The logs show such commands, not EXEC.
    #[inline]
    pub fn queued(
        &self,
        log: &TurnLog,
        live: &Live,
        info: &ClientInfo,
        (command, args): (&'static Command, Args<'_>),
        (ns, reply_bytes): (u64, usize),
    ) {
        self.replied(live, info, command, reply_bytes, || words(command, args));
        if self.hotkeys.is_on() {
            self.hotkeys.ran(command, args, ns, args.wire_bytes() + reply_bytes, log.now_ms);
        }
        let slower_us = live.slowlog_slower_us.get();
        if slower_us >= 0 && ns / 1000 >= slower_us as u64 && !command.has(table::SKIP_SLOWLOG) {
            let request = Request { inline_ns: ns, ..Request::default() };
            self.add_slow(log, live, info, ns, words(command, args), &request);
        }
    }

    /// Logs a noted command of a transaction that ran away from its loop.
    #[cold]
    pub fn queued_elsewhere(&self, log: &TurnLog, live: &Live, info: &ClientInfo, noted: Noted) {
        if let Some(bytes) = noted.reply_bytes {
            let max = live.large_replies_max.size();
            self.add_large(info, (LogKind::LargeReply, max), bytes, noted.words.clone());
        }
        if let Some(ns) = noted.slow_ns {
            let request = Request { thread_ns: ns, ..Request::default() };
            self.add_slow(log, live, info, ns, noted.words, &request);
        }
    }

    /// Logs a reply that waited `ns` for the log. Its words are gone by then, so the entry has only the
    /// command's name.
    #[cold]
    pub fn logged(&self, log: &TurnLog, live: &Live, info: &ClientInfo, request: &Request) {
        let slower_us = live.slowlog_slower_us.get();
        if slower_us >= 0 && request.log_ns / 1000 >= slower_us as u64 && log.turn.is_among_first() {
            let words = vec![request.command.as_bytes().to_vec()];
            self.add_slow(log, live, info, request.log_ns, words, request);
        }
    }

    fn add_slow(
        &self,
        log: &TurnLog,
        live: &Live,
        info: &ClientInfo,
        ns: u64,
        args: Vec<Vec<u8>>,
        request: &Request,
    ) {
        // The name is read first: `sentence` may lock the same text again, if the culprit is this client.
        let client_name = info.text.lock().name.clone();
        let entry = Entry {
            id: 0,
            unix_s: log.now_ms / 1000,
            amount: ns / 1000,
            args,
            client_address: info.address.clone(),
            client_name,
            client: info.id,
            cause: request.sentence(),
            phases: request.phases(),
            culprit: request.behind.clone(),
        };
        self.logs.slow.add(entry, live.slowlog_max_len.size());
    }

    /// Counts a command that was refused before it ran, and its error.
    pub fn rejected(&self, log: &TurnLog, command: Option<&'static Command>, error: &str) {
        if let Some(command) = command {
            log.recorder.rejected(places::of(command));
        }
        log.recorder.error(error.as_bytes());
        log.replied(log.came_ns);
    }

    /// Samples the counters and the memory in use; returns the rates. The background thread calls it ten times
    /// a second.
    pub fn sample(&self, now_ms: u64, used_bytes: u64) -> Speeds {
        let mut rates = self.rates.lock();
        rates.sample(now_ms, &self.registry);
        self.peak_bytes.fetch_max(used_bytes, Ordering::Relaxed);
        // The first sample is of a server that has not served a client yet.
        let _ = self.startup_bytes.compare_exchange(0, used_bytes, Ordering::Relaxed, Ordering::Relaxed);
        rates.speeds()
    }

    /// Sets all counters to zero (CONFIG RESETSTAT). The logs stay.
    pub fn reset(&self) {
        self.registry.reset();
    }

    /// Commands run since the start or the last reset.
    pub fn processed(&self) -> u64 {
        self.registry.counter(Counter::CommandsProcessed)
    }
}

impl Default for Calls {
    fn default() -> Calls {
        Calls::new()
    }
}

/// Whether a word may be a password, or is what else logs and monitors leave out.
pub fn is_secret(command: &Command, args: Args<'_>, at: usize) -> bool {
    let follows = |word: &str, by: usize| {
        at.checked_sub(by).and_then(|i| args.get(i)).is_some_and(|arg| command::options::is(arg, word))
    };
    match command.name {
        "auth" => at > 0,
        "acl|setuser" => at > 1,
        "hello" => follows("auth", 1) || follows("auth", 2),
        "migrate" => at > 6 && (follows("auth", 1) || follows("auth2", 1) || follows("auth2", 2)),
        // A url may stand in the wrong place. What logs leave out of a long word is no matter.
        "evenkeel|source" => {
            let shown = &args.at(at)[..args.at(at).len().min(commandlog::ARG_BYTES_MAX)];
            let is_url = || shown.windows(3).any(|part| part == b"://");
            at == 5 && command::options::is(args.at(2), "add") || at > 2 && is_url()
        }
        "config|set" => at > 2 && at % 2 == 1 && config::may_be_secret(args.at(at - 1)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::OwnedArgs;

    #[test]
    fn passwords_are_known_as_such() {
        let secret = |command: &'static str, words: &[&str]| -> Vec<usize> {
            let bytes: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
            let args = OwnedArgs::from_slices(&bytes);
            let command = places::all().iter().find(|c| c.name == command).unwrap();
            (0..words.len()).filter(|at| is_secret(command, args.args(), *at)).collect()
        };
        assert_eq!(secret("auth", &["auth", "u", "p"]), [1, 2]);
        assert_eq!(secret("acl|setuser", &["acl", "setuser", "u", ">p", "on"]), [2, 3, 4]);
        assert_eq!(secret("hello", &["hello", "3", "AUTH", "u", "p", "SETNAME", "n"]), [3, 4]);
        let words = ["migrate", "host", "1", "auth", "0", "9", "copy", "auth", "p", "auth2", "u", "p"];
        assert_eq!(secret("migrate", &words), [8, 10, 11]);
        assert_eq!(secret("config|set", &["config", "set", "timeout", "3", "requirepass", "p"]), [5]);
        let words = ["config", "set", "timeout", "3", "reqirepass", "p", "port", "1", "primaryauth", "p"];
        assert_eq!(secret("config|set", &words), [5, 9]);
        assert_eq!(secret("echo", &["echo", "auth", "p"]), [0usize; 0]);
        let words =
            ["evenkeel", "source", "add", "postgres://u:p@h", "a:{id}", "postgres:x", "ttl", "a=b://c"];
        assert_eq!(secret("evenkeel|source", &words), [3, 5, 7]);
        let words = ["evenkeel", "source", "flush", "items", "1", "2"];
        assert_eq!(secret("evenkeel|source", &words), [0usize; 0]);
    }
}
