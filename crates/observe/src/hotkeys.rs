//! HOTKEYS: the keys that took the most run time and network bytes since it was started.
//!
//! ```text
//! a command that ran ─► one of `ratio` commands ─► its time and bytes, in equal parts ─► Top of each metric ─► GET
//!                    └► all commands: the sums
//! ```
//!
//! The lists are those of the space-saving algorithm: [`KEPT`] keys have a counter each; a key that has none
//! takes over the smallest counter. So a key that really is among the hottest is never missed, and its figure
//! may be too large by that smallest counter.
//!
//! - H1: while nothing is tracked, a command costs one relaxed load.
//! - H2: memory is bounded: [`KEPT`] keys of at most [`KEY_MAX`] bytes for each metric. Longer keys are not
//!   listed.
//! - H3: the keys of a command are those among its first [`WORDS`] words.
//! - H4: a transaction that runs away from its loop adds up its own keys, at most [`KEPT_APART`], and hands
//!   them over at its end. Of more keys it keeps the hottest so far. A run that is dropped and repeated
//!   counts once.
//!
//! Cost: while tracking, a short lock and O(log KEPT) for each key; for some keys together at the end of a
//! run (H4). A list is made in O(KEPT).

use command::Error;
use command::options::{int, is};
use command::table::Command;
use parking_lot::Mutex;
use resp::{Args, Reply};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keys that have a counter, for each metric.
const KEPT: usize = 1024;
/// Longest key that is listed, in bytes.
const KEY_MAX: usize = 4096;
/// Keys that a run away from its loop remembers, and how many of them are handed over under one lock.
pub const KEPT_APART: usize = 128;
const HANDED_AT_ONCE: usize = 16;
/// Words of a command that are searched for keys.
const WORDS: usize = 128;
/// Keys shown if START does not say how many, and the most it may ask for.
const SHOWN: usize = 10;
const SHOWN_MAX: usize = 64;

/// The words of HOTKEYS START.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    cpu: bool,
    net: bool,
    shown: usize,
    ratio: u64,
    duration_ms: Option<u64>,
}

impl Options {
    /// Reads `METRICS count [CPU] [NET] [COUNT k] [DURATION seconds] [SAMPLE ratio] [SLOTS count slot ...]`.
    /// Metrics of other names are passed over, so that there may be more one day. O(words)
    pub fn parse(args: Args<'_>) -> Result<Options, Error> {
        if !args.first().is_some_and(|word| is(word, "metrics")) {
            return Err(Error::new("ERR METRICS parameter is required"));
        }
        let count = args.get(1).and_then(stdx::num::parse_i64).and_then(|count| usize::try_from(count).ok());
        let count =
            count.filter(|count| *count > 0).ok_or(Error::new("ERR METRICS count must be positive"))?;
        if count > args.len() - 2 {
            return Err(Error::new("ERR METRICS count does not match number of metric types provided"));
        }
        let mut options = Options { cpu: false, net: false, shown: SHOWN, ratio: 1, duration_ms: None };
        for word in args.slice(2, count).iter() {
            if is(word, "cpu") && std::mem::replace(&mut options.cpu, true) {
                return Err(Error::new("ERR METRICS CPU was given twice"));
            }
            if is(word, "net") && std::mem::replace(&mut options.net, true) {
                return Err(Error::new("ERR METRICS NET was given twice"));
            }
        }
        if !options.cpu && !options.net {
            return Err(Error::new("ERR METRICS no valid metrics, use CPU or NET"));
        }
        options.parse_rest(args.from(2 + count))?;
        Ok(options)
    }

    fn parse_rest(&mut self, args: Args<'_>) -> Result<(), Error> {
        let mut i = 0;
        while let Some(name) = args.get(i) {
            if is(name, "slots") {
                return Err(Error::new("ERR SLOTS parameter cannot be used in non-cluster mode"));
            }
            let value = args.get(i + 1).ok_or(Error::Syntax)?;
            if is(name, "count") {
                let shown = int(value).ok().and_then(|shown| usize::try_from(shown).ok());
                let shown = shown.filter(|shown| (1..=SHOWN_MAX).contains(shown));
                self.shown = shown.ok_or(Error::new("ERR COUNT must be between 1 and 64"))?;
            } else if is(name, "duration") {
                let seconds = int(value).ok().and_then(|seconds| u64::try_from(seconds).ok());
                let seconds = seconds.filter(|seconds| *seconds > 0 && *seconds <= 1_000_000_000);
                self.duration_ms = Some(seconds.ok_or(Error::new("ERR DURATION must be positive"))? * 1000);
            } else if is(name, "sample") {
                let ratio =
                    int(value).ok().and_then(|ratio| u64::try_from(ratio).ok()).filter(|ratio| *ratio > 0);
                self.ratio = ratio.ok_or(Error::new("ERR SAMPLE ratio must be positive"))?;
            } else {
                return Err(Error::Syntax);
            }
            i += 2;
        }
        Ok(())
    }
}

/// Keys with the largest sums.
#[derive(Default)]
struct Top {
    sums: HashMap<Arc<[u8]>, u64>,
    /// The same by size, the smallest first.
    order: BTreeSet<(u64, Arc<[u8]>)>,
}

impl Top {
    /// Adds to a key's sum. O(log KEPT)
    fn add(&mut self, key: &[u8], amount: u64) {
        let known = self.sums.get_key_value(key).map(|(key, sum)| (key.clone(), *sum));
        let (key, before) = match known {
            Some((key, sum)) => {
                self.order.remove(&(sum, key.clone()));
                (key, sum)
            }
            None if self.sums.len() >= KEPT => {
                let smallest = self.order.pop_first().map_or(0, |(sum, gone)| {
                    self.sums.remove(&gone);
                    sum
                });
                (Arc::from(key), smallest)
            }
            None => (Arc::from(key), 0),
        };
        let sum = before.saturating_add(amount);
        self.sums.insert(key.clone(), sum);
        self.order.insert((sum, key));
    }

    /// Writes the first ones as a flat list of keys and sums divided by `unit`.
    fn write(&self, shown: usize, unit: u64, out: &mut Reply) {
        let count = self.order.len().min(shown);
        out.array(2 * count);
        for (sum, key) in self.order.iter().rev().take(count) {
            out.bulk(key);
            out.int((sum / unit) as i64);
        }
    }
}

/// Processor time of the process, in milliseconds: in user mode, in the kernel.
pub type CpuMs = (u64, u64);

struct Tracked {
    options: Options,
    began_ms: u64,
    /// Set when it was stopped: then, and the processor time by then.
    ended: Option<(u64, CpuMs)>,
    cpu: CpuMs,
    commands: u64,
    ns: u64,
    bytes: u64,
    by_ns: Top,
    by_bytes: Top,
}

impl Tracked {
    fn is_over(&self, now_ms: u64) -> bool {
        self.ended.is_some() || self.options.duration_ms.is_some_and(|ms| now_ms >= self.began_ms + ms)
    }

    /// Adds to the sums of a key. O(log KEPT)
    fn add(&mut self, key: &[u8], ns: u64, bytes: u64) {
        if self.options.cpu {
            self.by_ns.add(key, ns);
        }
        if self.options.net {
            self.by_bytes.add(key, bytes);
        }
    }

    /// When it ended, or will have to.
    fn until_ms(&self, now_ms: u64) -> u64 {
        let last = self.options.duration_ms.map_or(u64::MAX, |ms| self.began_ms + ms);
        self.ended.map_or(now_ms, |(at, _)| at).min(last)
    }
}

/// A session, as a run away from the loops needs it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HotSession {
    began_ms: u64,
    ratio: u64,
    /// The commands that had been counted when the run began: the sample goes on from there.
    commands: u64,
}

/// A key, with its run time and bytes.
type KeySum = (Box<[u8]>, (u64, u64));

/// The sums of a transaction that runs away from its loop (H4).
pub struct HotRun {
    session: HotSession,
    commands: u64,
    ns: u64,
    bytes: u64,
    /// Run time and bytes by key.
    sums: HashMap<Box<[u8]>, (u64, u64)>,
}

impl HotRun {
    pub fn new(session: HotSession) -> HotRun {
        HotRun { session, commands: 0, ns: 0, bytes: 0, sums: HashMap::new() }
    }

    /// Forgets everything: the run is repeated.
    pub fn clear(&mut self) {
        *self = HotRun::new(self.session);
    }

    /// Adds a command that ran so long, with the bytes of its request and its reply. O(words looked at)
    pub fn ran(&mut self, command: &Command, args: Args<'_>, ns: u64, bytes: usize) {
        let bytes = bytes as u64;
        (self.commands, self.ns, self.bytes) = (self.commands + 1, self.ns + ns, self.bytes + bytes);
        let number = self.session.commands + self.commands;
        if !is_sampled(number, self.session.ratio) {
            return;
        }
        let keys = Hotkeys::keys(command, args);
        let each = (ns / keys.len().max(1) as u64, bytes / keys.len().max(1) as u64);
        for key in keys.into_iter().filter(|key| key.len() <= KEY_MAX) {
            if self.sums.len() >= KEPT_APART && !self.sums.contains_key(&*key) {
                self.keep_hottest();
            }
            let sum = self.sums.entry(key.into()).or_default();
            *sum = (sum.0 + each.0, sum.1 + each.1);
        }
    }

    /// Keeps half of the keys: those with the most run time, and those with the most bytes.
    fn keep_hottest(&mut self) {
        let mut all: Vec<KeySum> = self.sums.drain().collect();
        all.sort_unstable_by_key(|(_, (ns, _))| Reverse(*ns));
        let slower = all.split_off(KEPT_APART / 4);
        self.sums.extend(all);
        all = slower;
        all.sort_unstable_by_key(|(_, (_, bytes))| Reverse(*bytes));
        all.truncate(KEPT_APART / 4);
        self.sums.extend(all);
    }
}

/// Whether the command of that number belongs to a sample of one in `ratio`.
fn is_sampled(number: u64, ratio: u64) -> bool {
    stdx::hash::hash_u64(number).is_multiple_of(ratio)
}

/// The tracking of one server.
#[derive(Default)]
pub struct Hotkeys {
    on: AtomicBool,
    tracked: Mutex<Option<Box<Tracked>>>,
}

impl Hotkeys {
    /// Whether commands are to be added ([`Hotkeys::add`]). H1
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins anew. Errors: it runs already.
    pub fn start(&self, options: Options, now_ms: u64, cpu: CpuMs) -> Result<(), Error> {
        let mut tracked = self.tracked.lock();
        if tracked.as_ref().is_some_and(|tracked| !tracked.is_over(now_ms)) {
            return Err(Error::new("ERR hotkey tracking session already in progress"));
        }
        let began = Tracked {
            options,
            began_ms: now_ms,
            ended: None,
            cpu,
            commands: 0,
            ns: 0,
            bytes: 0,
            by_ns: Top::default(),
            by_bytes: Top::default(),
        };
        let before = tracked.replace(Box::new(began));
        self.on.store(true, Ordering::Relaxed);
        drop(tracked);
        stdx::reclaim::discard(before);
        Ok(())
    }

    /// Ends it; what it found stays. Errors: it does not run.
    pub fn stop(&self, now_ms: u64, cpu: CpuMs) -> Result<(), Error> {
        let mut tracked = self.tracked.lock();
        match tracked.as_deref_mut().filter(|tracked| !tracked.is_over(now_ms)) {
            None => Err(Error::new("ERR no hotkey tracking session in progress")),
            Some(tracked) => {
                tracked.ended = Some((now_ms, cpu));
                self.on.store(false, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Forgets what it found. Errors: it runs.
    pub fn reset(&self, now_ms: u64) -> Result<(), Error> {
        let mut tracked = self.tracked.lock();
        if tracked.as_ref().is_some_and(|tracked| !tracked.is_over(now_ms)) {
            return Err(Error::new("ERR hotkey tracking session in progress, stop tracking first"));
        }
        let gone = tracked.take();
        self.on.store(false, Ordering::Relaxed);
        drop(tracked);
        stdx::reclaim::discard(gone);
        Ok(())
    }

    /// The keys of a command that [`Hotkeys::add`] is told of later.
    pub fn keys(command: &Command, args: Args<'_>) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        command.each_key_within(args, 0..WORDS, &mut |i, _| keys.extend(args.get(i).map(<[u8]>::to_vec)));
        keys
    }

    /// Adds a command that ran so long, with the bytes of its request and its reply.
    #[cold]
    pub fn ran(&self, command: &Command, args: Args<'_>, ns: u64, bytes: usize, now_ms: u64) {
        let mut places = [0; WORDS];
        let mut count = 0;
        command.each_key_within(args, 0..WORDS, &mut |i, _| {
            places[count] = i;
            count += 1;
        });
        let keys = places[..count].iter().filter_map(|i| args.get(*i));
        self.add(keys, count, (ns, bytes as u64, 1), now_ms);
    }

    /// Adds run time, bytes and a number of commands, in equal parts to `count` keys.
    pub fn add<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
        count: usize,
        (ns, bytes, commands): (u64, u64, u64),
        now_ms: u64,
    ) {
        let mut tracked = self.tracked.lock();
        let Some(tracked) = tracked.as_deref_mut() else { return };
        if tracked.is_over(now_ms) {
            return self.on.store(false, Ordering::Relaxed);
        }
        (tracked.ns, tracked.bytes) = (tracked.ns + ns, tracked.bytes + bytes);
        tracked.commands += commands;
        if !is_sampled(tracked.commands, tracked.options.ratio) {
            return;
        }
        for key in keys.filter(|key| key.len() <= KEY_MAX) {
            tracked.add(key, ns / count.max(1) as u64, bytes / count.max(1) as u64);
        }
    }

    /// The session that runs, for a run away from the loops. `None`: nothing is tracked.
    pub fn session(&self) -> Option<HotSession> {
        if !self.is_on() {
            return None;
        }
        let tracked = self.tracked.lock();
        let Tracked { options, began_ms, commands, .. } = tracked.as_deref()?;
        Some(HotSession { began_ms: *began_ms, ratio: options.ratio, commands: *commands })
    }

    /// Adds the sums of a run, unless its session is over. O(KEPT_APART · log KEPT)
    #[cold]
    pub fn add_run(&self, run: HotRun, now_ms: u64) {
        let sums: Vec<KeySum> = run.sums.into_iter().collect();
        let mut rest = (run.ns, run.bytes, run.commands);
        let mut chunks = sums.chunks(HANDED_AT_ONCE);
        loop {
            let chunk = chunks.next().unwrap_or_default();
            let mut tracked = self.tracked.lock();
            let its = |tracked: &&mut Tracked| tracked.began_ms == run.session.began_ms;
            let Some(tracked) = tracked.as_deref_mut().filter(its) else { return };
            if tracked.is_over(now_ms) {
                return self.on.store(false, Ordering::Relaxed);
            }
            let (ns, bytes, commands) = std::mem::take(&mut rest);
            (tracked.ns, tracked.bytes) = (tracked.ns + ns, tracked.bytes + bytes);
            tracked.commands += commands;
            for (key, (ns, bytes)) in chunk {
                tracked.add(key, *ns, *bytes);
            }
            if chunk.len() < HANDED_AT_ONCE {
                return;
            }
        }
    }

    /// Writes what was found, as HOTKEYS GET does; null if nothing was tracked. O(keys shown)
    pub fn write(&self, now_ms: u64, cpu: CpuMs, out: &mut Reply) {
        let tracked = self.tracked.lock();
        let Some(tracked) = tracked.as_deref() else { return out.null() };
        let options = tracked.options;
        let cpu = tracked.ended.map_or(cpu, |(_, cpu)| cpu);
        out.array(1);
        out.map(7 + 3 * usize::from(options.cpu) + 2 * usize::from(options.net));
        let mut number = |name: &str, n: u64| {
            out.bulk(name.as_bytes());
            out.int(n as i64);
        };
        number("tracking-active", u64::from(!tracked.is_over(now_ms)));
        number("sample-ratio", options.ratio);
        out.bulk(b"selected-slots");
        out.array(0);
        let mut number = |name: &str, n: u64| {
            out.bulk(name.as_bytes());
            out.int(n as i64);
        };
        number("all-commands-all-slots-us", tracked.ns / 1000);
        number("net-bytes-all-commands-all-slots", tracked.bytes);
        number("collection-start-time-unix-ms", tracked.began_ms);
        number("collection-duration-ms", tracked.until_ms(now_ms).saturating_sub(tracked.began_ms));
        if options.cpu {
            number("total-cpu-time-user-ms", cpu.0.saturating_sub(tracked.cpu.0));
            number("total-cpu-time-sys-ms", cpu.1.saturating_sub(tracked.cpu.1));
        }
        if options.net {
            number("total-net-bytes", tracked.bytes);
        }
        if options.cpu {
            out.bulk(b"by-cpu-time-us");
            tracked.by_ns.write(options.shown, 1000, out);
        }
        if options.net {
            out.bulk(b"by-net-bytes");
            tracked.by_bytes.write(options.shown, 1, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::OwnedArgs;

    fn options(line: &str) -> Result<Options, String> {
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        Options::parse(OwnedArgs::from_slices(&words).args()).map_err(|error| error.text().into_owned())
    }

    fn shown(hotkeys: &Hotkeys, now_ms: u64) -> String {
        let mut out = Reply::new(false);
        hotkeys.write(now_ms, (7, 3), &mut out);
        String::from_utf8(out.into_bytes()).unwrap().replace("\r\n", " ")
    }

    fn ran(hotkeys: &Hotkeys, line: &str, ns: u64, bytes: usize, now_ms: u64) {
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        let args = OwnedArgs::from_slices(&words);
        hotkeys.ran(command::resolve(args.args()).unwrap(), args.args(), ns, bytes, now_ms);
    }

    #[test]
    fn words_are_read_and_refused_as_documented() {
        let all = options("metrics 2 cpu net count 64 duration 5 sample 10").unwrap();
        let wanted = Options { cpu: true, net: true, shown: 64, ratio: 10, duration_ms: Some(5000) };
        assert_eq!(all, wanted);
        assert!(options("metrics 2 gpu cpu").is_ok_and(|options| options.cpu && !options.net));
        for (line, text) in [
            ("", "METRICS parameter is required"),
            ("count 3", "METRICS parameter is required"),
            ("metrics 0", "METRICS count"),
            ("metrics -1 cpu", "METRICS count"),
            ("metrics 2 cpu", "METRICS count does not match number of metric types provided"),
            ("metrics 1 cpu net", "syntax error"),
            ("metrics 1 gpu", "METRICS no valid metrics"),
            ("metrics 2 cpu cpu", "METRICS CPU"),
            ("metrics 2 net net", "METRICS NET"),
            ("metrics 1 cpu count 0", "COUNT must be between 1 and 64"),
            ("metrics 1 cpu count 65", "COUNT must be between 1 and 64"),
            ("metrics 1 cpu sample 0", "SAMPLE ratio must be positive"),
            ("metrics 1 cpu duration 0", "DURATION must be positive"),
            ("metrics 1 cpu slots 1 0", "SLOTS parameter cannot be used in non-cluster mode"),
            ("metrics 1 cpu count", "syntax error"),
        ] {
            let error = options(line).unwrap_err();
            assert!(error.contains(text), "{line}: {error}");
        }
    }

    #[test]
    fn keys_are_listed_by_their_sums_and_the_session_goes_through_its_states() {
        let hotkeys = Hotkeys::default();
        assert_eq!(shown(&hotkeys, 0), "$-1 ");
        assert!(hotkeys.stop(0, (0, 0)).is_err() && !hotkeys.is_on());
        hotkeys.start(options("metrics 2 cpu net count 2").unwrap(), 1000, (5, 2)).unwrap();
        let again = hotkeys.start(options("metrics 1 cpu").unwrap(), 1000, (5, 2)).unwrap_err();
        assert_eq!(again.text(), "ERR hotkey tracking session already in progress");
        let reset = hotkeys.reset(1000).unwrap_err();
        assert_eq!(reset.text(), "ERR hotkey tracking session in progress, stop tracking first");
        ran(&hotkeys, "get a", 9_000, 10, 1001);
        ran(&hotkeys, "mget b c", 4_000, 100, 1002);
        ran(&hotkeys, "ping", 1_000, 7, 1003);
        hotkeys.stop(1500, (9, 4)).unwrap();
        ran(&hotkeys, "get a", 9_000, 10, 1501);
        let text = shown(&hotkeys, 9000);
        assert!(
            text.starts_with("*1 *24 $15 tracking-active :0 $12 sample-ratio :1 $14 selected-slots *0 "),
            "{text}"
        );
        for part in [
            "all-commands-all-slots-us :14 ",
            "net-bytes-all-commands-all-slots :117 ",
            "collection-start-time-unix-ms :1000 ",
            "collection-duration-ms :500 ",
            "total-cpu-time-user-ms :4 $21 total-cpu-time-sys-ms :2 ",
            "total-net-bytes :117 ",
            "by-cpu-time-us *4 $1 a :9 $1 c :2 ",
            "by-net-bytes *4 $1 c :50 $1 b :50 ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        hotkeys.reset(9000).unwrap();
        assert_eq!(shown(&hotkeys, 9000), "$-1 ");
    }

    #[test]
    fn a_session_ends_by_itself() {
        let hotkeys = Hotkeys::default();
        hotkeys.start(options("metrics 1 net duration 2").unwrap(), 1000, (0, 0)).unwrap();
        ran(&hotkeys, "get a", 1, 10, 2999);
        assert!(shown(&hotkeys, 2999).contains("tracking-active :1 "));
        ran(&hotkeys, "get a", 1, 10, 3000);
        assert!(!hotkeys.is_on());
        let text = shown(&hotkeys, 9000);
        assert!(
            text.contains("tracking-active :0 ") && text.contains("collection-duration-ms :2000 "),
            "{text}"
        );
        assert!(text.contains("by-net-bytes *2 $1 a :10 ") && !text.contains("cpu-time"), "{text}");
        hotkeys.start(options("metrics 1 cpu").unwrap(), 9000, (0, 0)).unwrap();
    }

    #[test]
    fn a_run_away_from_its_loop_hands_over_its_hottest_keys() {
        let hotkeys = Hotkeys::default();
        assert!(hotkeys.session().is_none());
        hotkeys.start(options("metrics 2 cpu net count 2").unwrap(), 1000, (0, 0)).unwrap();
        let mut run = HotRun::new(hotkeys.session().unwrap());
        let add = |run: &mut HotRun, line: &str, ns: u64, bytes: usize| {
            let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
            let args = OwnedArgs::from_slices(&words);
            run.ran(command::resolve(args.args()).unwrap(), args.args(), ns, bytes);
        };
        add(&mut run, "get forgotten", 1_000_000, 1_000_000);
        run.clear();
        for n in 0..10_000 {
            add(&mut run, &format!("mget k{n} l{n}"), 1000, 20);
            if n % 50 == 0 {
                add(&mut run, "get slow", 5000, 1);
                add(&mut run, "get large", 10, 500);
            }
        }
        assert!(run.sums.len() <= KEPT_APART, "H4");
        hotkeys.add_run(run, 1001);
        let text = shown(&hotkeys, 1002);
        for part in [
            "all-commands-all-slots-us :11002 ",
            "net-bytes-all-commands-all-slots :300200 ",
            "by-cpu-time-us *4 $4 slow :1000 ",
            "by-net-bytes *4 $5 large :100000 ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // A run of a session that is over adds nothing to the next one.
        let late = HotRun::new(hotkeys.session().unwrap());
        hotkeys.stop(1500, (0, 0)).unwrap();
        hotkeys.start(options("metrics 1 net").unwrap(), 1600, (0, 0)).unwrap();
        let mut late = late;
        add(&mut late, "get a", 1, 10);
        hotkeys.add_run(late, 1700);
        assert!(shown(&hotkeys, 1700).contains("by-net-bytes *0 "));
    }

    #[test]
    fn the_hottest_key_is_found_among_very_many() {
        let hotkeys = Hotkeys::default();
        hotkeys.start(options("metrics 1 net count 1 sample 2").unwrap(), 0, (0, 0)).unwrap();
        for n in 0..20_000 {
            ran(&hotkeys, &format!("get k{n}"), 1, 10, 1);
            if n % 20 == 0 {
                ran(&hotkeys, "get hot", 1, 1000, 1);
            }
        }
        assert!(shown(&hotkeys, 1).contains("by-net-bytes *2 $3 hot :"));
        assert_eq!(hotkeys.tracked.lock().as_ref().unwrap().by_bytes.sums.len(), KEPT);
        let long = "k".repeat(KEY_MAX + 1);
        ran(&hotkeys, &format!("get {long}"), 1, 1_000_000_000, 1);
        assert!(shown(&hotkeys, 1).contains("by-net-bytes *2 $3 hot :"), "H2");
    }
}
