//! LATENCY: keeps the longest delays by kind of event and by second, and draws and explains them.
//!
//! An event of some kind (`command`, ...) is anything that took at least `latency-monitor-threshold` ms. Each
//! kind keeps the latest [`SAMPLES_MAX`] seconds with an event, each with its longest delay.
//!
//! - E1: samples of a kind are in order of time, at most one per second.
//! - E2: kinds are names in the source code, so there are few. The lock is held to add, copy or drop samples.

use crate::stats::Registry;
use parking_lot::Mutex;
use resp::{Args, Reply};
use std::collections::HashSet;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

/// Seconds kept for one kind of event.
pub const SAMPLES_MAX: usize = 160;

/// Columns of a graph.
const GRAPH_COLUMNS: usize = 80;
const GRAPH_ROWS: usize = 4;

/// The longest delay within one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub unix_s: u64,
    pub ms: u64,
}

/// The samples of one kind of event.
#[derive(Clone, Debug, Default)]
pub struct Series {
    samples: VecDeque<Sample>,
    /// The longest delay ever, also of a second that is no longer kept.
    max_ms: u64,
}

/// All events, shared by all threads.
#[derive(Debug, Default)]
pub struct Events {
    kinds: Mutex<BTreeMap<&'static str, Series>>,
}

impl Events {
    /// Adds an event of `ms`, if `threshold_ms` is above 0 and reached.
    pub fn add(&self, kind: &'static str, unix_s: u64, ms: u64, threshold_ms: i64) {
        if threshold_ms <= 0 || (ms as i64) < threshold_ms {
            return;
        }
        self.kinds.lock().entry(kind).or_default().add(Sample { unix_s, ms });
    }

    fn series(&self, kind: &[u8]) -> Option<(&'static str, Series)> {
        let kinds = self.kinds.lock();
        kinds.iter().find(|(name, _)| name.as_bytes() == kind).map(|(name, series)| (*name, series.clone()))
    }

    fn all(&self) -> BTreeMap<&'static str, Series> {
        self.kinds.lock().clone()
    }
}

impl Series {
    fn add(&mut self, new: Sample) {
        self.max_ms = self.max_ms.max(new.ms);
        match self.samples.back_mut() {
            // The clock may step back; the sample then counts for the latest second (E1).
            Some(last) if new.unix_s <= last.unix_s => last.ms = last.ms.max(new.ms),
            _ => {
                if self.samples.len() == SAMPLES_MAX {
                    self.samples.pop_front();
                }
                self.samples.push_back(new);
            }
        }
    }

    fn delays(&self) -> impl Iterator<Item = u64> {
        self.samples.iter().map(|s| s.ms)
    }

    fn mean_ms(&self) -> u64 {
        self.delays().sum::<u64>() / self.samples.len().max(1) as u64
    }

    /// The mean deviation of the delays from their mean.
    fn spread_ms(&self) -> u64 {
        let mean = self.mean_ms();
        self.delays().map(|ms| ms.abs_diff(mean)).sum::<u64>() / self.samples.len().max(1) as u64
    }

    /// Seconds between events, on average; 0 with fewer than two.
    fn period_s(&self) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some(first), Some(last)) if first != last => {
                (last.unix_s - first.unix_s) as f64 / (self.samples.len() - 1) as f64
            }
            _ => 0.0,
        }
    }
}

/// `LATENCY LATEST`: for each kind its name, the time and delay of the latest event, and the longest delay.
/// O(samples of all kinds).
pub fn latest(events: &Events, out: &mut Reply) {
    let all = events.all();
    out.array(all.len());
    for (kind, series) in &all {
        let last = series.samples.back().copied().unwrap_or(Sample { unix_s: 0, ms: 0 });
        out.array(4);
        out.bulk(kind.as_bytes());
        out.int(last.unix_s as i64);
        out.int(last.ms as i64);
        out.int(series.max_ms as i64);
    }
}

/// `LATENCY HISTORY event`: time and delay of each kept second; empty if there is no such kind. O(samples).
pub fn history(events: &Events, args: Args<'_>, out: &mut Reply) {
    let samples = events.series(args.at(2)).map(|(_, series)| series.samples).unwrap_or_default();
    out.array(samples.len());
    for sample in samples {
        out.array(2);
        out.int(sample.unix_s as i64);
        out.int(sample.ms as i64);
    }
}

/// `LATENCY RESET [event ...]`: removes kinds, all by default; answers how many. O(kinds · names).
pub fn reset(events: &Events, args: Args<'_>, out: &mut Reply) {
    let mut kinds = events.kinds.lock();
    let before = kinds.len();
    if args.len() <= 2 {
        kinds.clear();
    } else {
        kinds.retain(|kind, _| !args.from(2).iter().any(|name| name == kind.as_bytes()));
    }
    out.int((before - kinds.len()) as i64);
}

/// `LATENCY GRAPH event`: draws the kept delays. O(samples). An error if there is no such kind.
pub fn graph(events: &Events, args: Args<'_>, now_unix_s: u64, out: &mut Reply) {
    match events.series(args.at(2)) {
        Some((kind, series)) => out.verbatim("txt", drawing(kind, &series, now_unix_s).as_bytes()),
        None => {
            let name = String::from_utf8_lossy(args.at(2)).into_owned();
            out.error(&format!("ERR No samples available for event '{name}'"));
        }
    }
}

/// Draws one column for each second with an event: its delay between the lowest (bottom) and the highest
/// (top). Below it stands its age, to be read downwards.
fn drawing(kind: &str, series: &Series, now_unix_s: u64) -> String {
    let (low, high) = (series.delays().min().unwrap_or(0), series.delays().max().unwrap_or(0));
    let all = series.max_ms;
    let mut out = format!("{kind} - high {high} ms, low {low} ms (all time high {all} ms)\n");
    let _ = writeln!(out, "{}", "-".repeat(GRAPH_COLUMNS));
    let samples: Vec<Sample> = series.samples.iter().copied().collect();
    for columns in samples.chunks(GRAPH_COLUMNS) {
        for row in (0..GRAPH_ROWS).rev() {
            out.extend(columns.iter().map(|s| mark(s.ms, low, high, row)));
            out.push('\n');
        }
        let ages: Vec<String> = columns.iter().map(|s| age(now_unix_s.saturating_sub(s.unix_s))).collect();
        out.push_str(&" ".repeat(columns.len()));
        out.push('\n');
        for row in 0..ages.iter().map(String::len).max().unwrap_or(0) {
            out.extend(ages.iter().map(|age| age.as_bytes().get(row).map_or(' ', |&b| b as char)));
            out.push('\n');
        }
    }
    out
}

/// The character for `ms` in a row counted from below: a top in one of three heights, a stem, or a blank.
fn mark(ms: u64, low: u64, high: u64, row: usize) -> char {
    const TOPS: [char; 3] = ['_', 'o', '#'];
    let steps = (TOPS.len() * GRAPH_ROWS) as u64;
    let step = if high == low { 0 } else { ((ms - low) * steps / (high - low)).min(steps - 1) };
    match (step as usize).checked_sub(row * TOPS.len()) {
        None => ' ',
        Some(above) => TOPS.get(above).copied().unwrap_or('|'),
    }
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `LATENCY DOCTOR`: describes the kept delays in sentences, with advice. O(samples of all kinds).
pub fn doctor(events: &Events, threshold_ms: i64, slowlog_slower_us: i64, out: &mut Reply) {
    out.verbatim("txt", report(&events.all(), threshold_ms, slowlog_slower_us).as_bytes());
}

fn report(all: &BTreeMap<&'static str, Series>, threshold_ms: i64, slowlog_slower_us: i64) -> String {
    if all.is_empty() {
        return if threshold_ms <= 0 {
            "Latency monitoring is off, so there is nothing to report. Turn it on with: CONFIG SET \
             latency-monitor-threshold <milliseconds>\n"
                .into()
        } else {
            format!("No event took {threshold_ms} ms or longer since the server started or was last reset.\n")
        };
    }
    let mut out = String::from("Events that took long:\n\n");
    for (n, (kind, series)) in all.iter().enumerate() {
        let (count, mean, spread) = (series.samples.len(), series.mean_ms(), series.spread_ms());
        let _ = writeln!(
            out,
            "{}. {kind}: {count} latency spikes (average {mean}ms, mean deviation {spread}ms, period {:.2} sec). \
             Worst all time event {}ms.",
            n + 1,
            series.period_s(),
            series.max_ms
        );
    }
    out.push_str("\nWhat to do:\n\n");
    if slowlog_slower_us < 0 || slowlog_slower_us > threshold_ms.max(1) * 1000 {
        let us = threshold_ms.max(1) * 1000;
        let _ = writeln!(out, "- SLOWLOG leaves some of these out. CONFIG SET slowlog-log-slower-than {us}");
    }
    out.push_str("- SLOWLOG WHY names the commands, and what each of them spent its time on.\n");
    out.push_str(
        "- A long command here does not hold up other clients; its own client waits for as long as the work takes. \
         Smaller values or ranges make it shorter.\n",
    );
    out
}

/// `LATENCY HISTOGRAM [command ...]`: calls and run times by doubling bounds, for the named commands or for
/// all.
///
/// `names` are the names in the command table, sub-commands written `config|get`. A container's name stands
/// for all of its sub-commands. Cost: O(commands · buckets · threads); too long for an event loop.
pub fn histogram(registry: &Registry, names: &[&str], args: Args<'_>, out: &mut Reply) {
    let asked: HashSet<Vec<u8>> = args.from(2).iter().map(<[u8]>::to_ascii_lowercase).collect();
    let is_asked = |name: &str| asked.contains(name.to_ascii_lowercase().as_bytes());
    let wanted =
        |name: &str| args.len() <= 2 || is_asked(name) || name.split('|').next().is_some_and(is_asked);
    let timed = names.iter().enumerate().filter(|(_, name)| wanted(name));
    let timed = timed.map(|(at, name)| (name, registry.histogram(at))).filter(|(_, h)| !h.is_empty());
    let timed: Vec<_> = timed.collect();
    out.map(timed.len());
    for (name, histogram) in timed {
        out.bulk(name.to_ascii_lowercase().as_bytes());
        out.map(2);
        out.bulk(b"calls");
        out.int(histogram.total() as i64);
        out.bulk(b"histogram_usec");
        let bounds = histogram.doubling();
        out.map(bounds.len());
        for (us, count) in bounds {
            out.int(us as i64);
            out.int(count as i64);
        }
    }
}

/// The lines of `LATENCY HELP`.
pub const HELP: [&str; 17] = [
    "LATENCY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "DOCTOR",
    "    Return a human readable latency analysis report.",
    "GRAPH <event>",
    "    Return an ASCII latency graph for the <event> class.",
    "HISTORY <event>",
    "    Return time-latency samples for the <event> class.",
    "LATEST",
    "    Return the latest latency samples for all events.",
    "RESET [<event> ...]",
    "    Reset latency data of one or more <event> classes.",
    "    (default: reset all data for all event classes)",
    "HISTOGRAM [COMMAND ...]",
    "    Return a cumulative distribution of latencies in the format of a histogram for the specified command names.",
    "    If no commands are specified then all histograms are replied.",
    "HELP",
    "    Prints this help.",
];

#[cfg(test)]
mod tests {
    use super::*;
    use resp::OwnedArgs;

    fn events() -> Events {
        let events = Events::default();
        for (at, ms) in [(0, 40), (1, 70), (2, 40), (3, 60), (4, 70), (5, 50), (6, 70), (6, 30)] {
            events.add("command", 100 + at, ms, 1);
        }
        events
    }

    fn reply(words: &[&str], f: impl FnOnce(Args<'_>, &mut Reply)) -> String {
        let words: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        let mut out = Reply::new(false);
        f(OwnedArgs::from_slices(&words).args(), &mut out);
        String::from_utf8(out.into_bytes()).unwrap()
    }

    #[test]
    fn a_second_keeps_its_longest_delay() {
        let events = events();
        let (_, series) = events.series(b"command").unwrap();
        assert_eq!(series.samples.len(), 7);
        assert_eq!(series.samples[6], Sample { unix_s: 106, ms: 70 });
        events.add("command", 50, 99, 1);
        events.add("command", 200, 5, 10);
        events.add("command", 200, 5, 0);
        let (_, series) = events.series(b"command").unwrap();
        assert_eq!((series.samples.len(), series.samples[6].ms, series.max_ms), (7, 99, 99));
        (0..500).for_each(|n| events.add("expire", n, 9, 1));
        assert_eq!(events.series(b"expire").unwrap().1.samples.len(), SAMPLES_MAX);
    }

    #[test]
    fn replies_have_the_shape_clients_read() {
        let events = events();
        let text = reply(&["latency", "latest"], |_, out| latest(&events, out));
        assert_eq!(text, "*1\r\n*4\r\n$7\r\ncommand\r\n:106\r\n:70\r\n:70\r\n");
        let text = reply(&["latency", "history", "command"], |args, out| history(&events, args, out));
        assert!(text.starts_with("*7\r\n*2\r\n:100\r\n:40\r\n"), "{text}");
        let text = reply(&["latency", "history", "foo"], |args, out| history(&events, args, out));
        assert_eq!(text, "*0\r\n");
        let text = reply(&["latency", "graph", "foo"], |args, out| graph(&events, args, 107, out));
        assert_eq!(text, "-ERR No samples available for event 'foo'\r\n");
        events.add("expire", 1, 1, 1);
        assert_eq!(
            reply(&["latency", "reset", "x", "expire"], |args, out| reset(&events, args, out)),
            ":1\r\n"
        );
        assert_eq!(reply(&["latency", "reset"], |args, out| reset(&events, args, out)), ":1\r\n");
    }

    #[test]
    fn the_graph_shows_heights_and_ages() {
        let (kind, series) = events().series(b"command").unwrap();
        let text = drawing(kind, &series, 107);
        let (head, rows) = text.split_at(text.find(&"-".repeat(80)).unwrap());
        assert_eq!(head, "command - high 70 ms, low 40 ms (all time high 70 ms)\n");
        let expect = [" #  # #", " | #| |", " | ||o|", "_|_||||", "       ", "7654321", "sssssss"];
        assert_eq!(rows.lines().skip(1).collect::<Vec<_>>(), expect);
        let mut flat = Series::default();
        flat.add(Sample { unix_s: 1, ms: 5 });
        assert!(drawing("x", &flat, 4000).ends_with(" \n_\n \n1\nh\n"));
    }

    #[test]
    fn the_doctor_speaks_in_every_case() {
        let none = BTreeMap::new();
        assert!(report(&none, 0, 10_000).contains("monitoring is off"));
        assert!(report(&none, 5, 10_000).contains("No event took 5 ms"));
        let text = report(&events().all(), 1, 10_000);
        assert!(
            text.contains(
                "1. command: 7 latency spikes (average 57ms, mean deviation 11ms, period 1.00 sec)"
            ),
            "{text}"
        );
        assert!(text.contains("slowlog-log-slower-than 1000"), "{text}");
        assert!(!report(&events().all(), 20, 10_000).contains("slowlog-log-slower-than"));
    }

    #[test]
    fn histograms_are_found_by_command_and_container() {
        let registry = Registry::new(3);
        let recorder = registry.recorder();
        recorder.command(0, 5000, false, true);
        recorder.command(1, 1000, false, true);
        let names = ["GET", "config|get", "never"];
        let ask = |words: &[&str]| reply(words, |args, out| histogram(&registry, &names, args, out));
        let get = "$3\r\nget\r\n*4\r\n$5\r\ncalls\r\n:1\r\n$14\r\nhistogram_usec\r\n*2\r\n:8\r\n:1\r\n";
        assert_eq!(ask(&["latency", "histogram", "get"]), format!("*2\r\n{get}"));
        assert!(ask(&["latency", "histogram"]).starts_with("*4\r\n"));
        assert!(ask(&["latency", "histogram", "CONFIG"]).starts_with("*2\r\n$10\r\nconfig|get\r\n"));
        assert_eq!(ask(&["latency", "histogram", "nope"]), "*0\r\n");
    }
}
