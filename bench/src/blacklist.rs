//! The main job: many ID lists filtered against a blacklist.
//!
//! There is a blacklist `X` and lists `Y` of IDs, a few of each blacklisted. One request wants all lists
//! without `X`. It is asked in the ways that people try:
//!
//! - a Lua script that answers JSON numbers, and the same with strings;
//! - one SDIFF per list in a pipeline, and the same at once on separate connections;
//! - scripts over compressed bitmaps, one per list, pipelined or at once;
//! - one R.DIFF per list, whose answer stays there (only of peers with the redis-roaring module).
//!
//! The answers are checked against a plain computation before anything is timed.
//!
//! | shape | X | lists |
//! |---|---|---|
//! | random | 100k random u32 | 10 of 2,680, random u32 |
//! | dense | 100k, half of their range | 10 of 2,680, half of a range of their own, but for the blacklisted |
//! | many | 1M random u32 | 200 of 1,000 to 20,000, random u32 |

use crate::client::Client;
use crate::fill;
use crate::load::Load;
use crate::random::mix;
use crate::report::{Section, Table, absent, count, median, time};
use crate::server::{Server, Target};
use crate::wire;
use dial::Frame;
use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

/// Members of each list that are blacklisted.
const HITS: u64 = 20;

pub struct Options {
    pub rounds: usize,
    pub seconds: f64,
    /// Requests under way at any time.
    pub callers: usize,
    /// The shapes to run; empty for all.
    pub shapes: Vec<String>,
    /// Letters of the ways to run; empty for all.
    pub ways: Vec<String>,
}

/// The number of IDs, and their distribution.
struct Shape {
    name: &'static str,
    blacklisted: u64,
    lists: u64,
    /// Members of a list.
    len: fn(u64) -> u64,
    dense: bool,
    /// Whether one request is long enough for a single caller and fewer rounds.
    large: bool,
}

const SHAPES: [Shape; 3] = [
    Shape { name: "random", blacklisted: 100_000, lists: 10, len: |_| 2_680, dense: false, large: false },
    Shape { name: "dense", blacklisted: 100_000, lists: 10, len: |_| 2_680, dense: true, large: false },
    Shape { name: "many", blacklisted: 1_000_000, lists: 200, len: many_len, dense: false, large: true },
];

/// 1,000 to 20,000, evenly spread.
fn many_len(list: u64) -> u64 {
    1_000 + list * 19_000 / 199
}

impl Shape {
    fn blacklisted(&self, i: u64) -> u64 {
        self.id(0, i)
    }

    fn listed(&self, list: u64, i: u64) -> u64 {
        if i < HITS { self.blacklisted(list * HITS + i) } else { self.id(list + 1, i) }
    }

    /// Number `i` of a series.
    fn id(&self, series: u64, i: u64) -> u64 {
        let random = mix(series << 40 | i) >> 32;
        if self.dense { (series << 20) + 2 * i + (random & 1) } else { random }
    }

    /// The lists without the blacklist, each sorted, computed the plain way.
    fn expected(&self) -> Vec<Vec<u64>> {
        let x: HashSet<u64> = (0..self.blacklisted).map(|i| self.blacklisted(i)).collect();
        let list = |list| {
            let all = (0..(self.len)(list)).map(|i| self.listed(list, i));
            let ids: HashSet<u64> = all.filter(|id| !x.contains(id)).collect();
            let mut ids: Vec<u64> = ids.into_iter().collect();
            ids.sort_unstable();
            ids
        };
        (0..self.lists).map(list).collect()
    }

    fn caption(&self, options: &Options) -> String {
        let lens = ((self.len)(0), (self.len)(self.lists - 1));
        let lens = if lens.0 == lens.1 { lens.0.to_string() } else { format!("{} to {}", lens.0, lens.1) };
        let kind = if self.dense { "dense" } else { "random u32" };
        let (callers, rounds) = self.effort(options);
        format!(
            "{}: X of {}, {} lists of {lens}, {kind}; {callers} callers; requests/s (server CPU per request), medians of \
             {rounds} rounds of {} s; last: how many times the peer's rate, how many times less CPU",
            self.name,
            count(self.blacklisted),
            self.lists,
            options.seconds
        )
    }

    /// Callers and rounds.
    fn effort(&self, options: &Options) -> (usize, usize) {
        if self.large { (1, options.rounds.div_ceil(2)) } else { (options.callers, options.rounds) }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// One script does all lists and answers JSON.
    Whole(&'static str),
    /// One SDIFF per list.
    Sdiff,
    /// One script per list over compressed bitmaps, with the prefix of their names.
    Bitmaps(&'static str, &'static str),
    /// One R.DIFF per list, whose answer stays in the server.
    Native,
}

/// The transport of the requests per list.
#[derive(Clone, Copy, PartialEq)]
enum Travel {
    Pipelined,
    /// On separate connections.
    AtOnce,
}

use Travel::{AtOnce, Pipelined};

const WAYS: [(&str, Way, Travel); 11] = [
    ("(a) Lua: SDIFF, tonumber, cjson.encode", Way::Whole(SCRIPT_NUMBERS), Pipelined),
    ("(b) Lua: SDIFF, cjson.encode", Way::Whole(SCRIPT_STRINGS), Pipelined),
    ("(c) SDIFF, pipelined", Way::Sdiff, Pipelined),
    ("(d) SDIFF, at once", Way::Sdiff, AtOnce),
    ("(e) Lua: R.BITOP XOR and AND, pipelined", Way::Bitmaps(SCRIPT_XOR, BITMAPS), Pipelined),
    ("(f) the same, at once", Way::Bitmaps(SCRIPT_XOR, BITMAPS), AtOnce),
    ("(g) Lua: R.BITOP AND, R.SETBIT 0, pipelined", Way::Bitmaps(SCRIPT_CLEAR, DESTROYED), Pipelined),
    ("(h) the same, at once", Way::Bitmaps(SCRIPT_CLEAR, DESTROYED), AtOnce),
    ("(i) Lua: R.DIFF, pipelined", Way::Bitmaps(SCRIPT_DIFF, BITMAPS), Pipelined),
    ("(j) the same, at once", Way::Bitmaps(SCRIPT_DIFF, BITMAPS), AtOnce),
    ("(k) R.DIFF into another key, pipelined", Way::Native, Pipelined),
];

/// Prefixes of the names of bitmaps, and of bitmaps that a way changes.
const BITMAPS: &str = "R:";
const DESTROYED: &str = "D:";

const SCRIPT_NUMBERS: &str = "\
local answer = {}
for list = 2, #KEYS do
  local ids = redis.call('SDIFF', KEYS[list], KEYS[1])
  for i = 1, #ids do ids[i] = tonumber(ids[i]) end
  answer[list - 1] = ids
end
return cjson.encode(answer)";

const SCRIPT_STRINGS: &str = "\
local answer = {}
for list = 2, #KEYS do answer[list - 1] = redis.call('SDIFF', KEYS[list], KEYS[1]) end
return cjson.encode(answer)";

/// Bits of X inverted in the list, then combined with the list: the way without R.DIFF.
const SCRIPT_XOR: &str = "\
redis.call('R.BITOP', 'XOR', 'tmp', KEYS[2], KEYS[1])
redis.call('R.BITOP', 'AND', 'tmp', KEYS[2], 'tmp')
local ids = redis.call('R.GETINTARRAY', 'tmp')
redis.call('DEL', 'tmp')
return ids";

/// Hits removed from the list itself, which destroys it.
const SCRIPT_CLEAR: &str = "\
redis.call('R.BITOP', 'AND', 'tmp', KEYS[2], KEYS[1])
local hits = redis.call('R.GETINTARRAY', 'tmp')
for i = 1, #hits do redis.call('R.SETBIT', KEYS[2], hits[i], 0) end
redis.call('DEL', 'tmp')
return redis.call('R.GETINTARRAY', KEYS[2])";

const SCRIPT_DIFF: &str = "\
redis.call('R.DIFF', 'tmp', KEYS[2], KEYS[1])
local ids = redis.call('R.GETINTARRAY', 'tmp')
redis.call('DEL', 'tmp')
return ids";

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("The blacklist request");
    let asked =
        |shape: &&Shape| options.shapes.is_empty() || options.shapes.iter().any(|name| name == shape.name);
    for shape in SHAPES.iter().filter(asked) {
        run_shape(targets, shape, options, &mut section);
    }
    section.note("Every server's answer to every way was first compared with a plain computation.");
    section.note("Where a row is empty the server has no compressed bitmaps.");
    section.note("Ways (g) and (h) destroy the lists: only the first request meets blacklisted IDs there.");
    section
}

fn run_shape(targets: &[Target], shape: &Shape, options: &Options, section: &mut Section) {
    let mut servers = Vec::new();
    for target in targets {
        let started = Server::start(target).and_then(|server| match fill_all(&server, shape) {
            Ok(()) => Ok(server),
            Err(error) => Err(format!("{}: loading the lists: {error}", target.label)),
        });
        match started {
            Ok(server) => servers.push(server),
            Err(error) => section.note(error),
        }
    }
    let expected = shape.expected();
    let labels: Vec<&str> = servers.iter().map(|server| server.label.as_str()).collect();
    let subject = labels.iter().position(|&label| label == "Evenkeel");
    let others: Vec<usize> =
        (0..labels.len()).filter(|&i| subject.is_some_and(|subject| subject != i)).collect();
    let mut head = [&["one request"], &labels[..]].concat();
    let ratios: Vec<String> = others.iter().map(|&i| format!("× {}", labels[i])).collect();
    head.extend(ratios.iter().map(String::as_str));
    let mut table = Table::new(&head);
    // The lower CPU time of the two SDIFF ways, for each server.
    let mut plain = vec![f64::INFINITY; servers.len()];
    for (name, way, travel) in WAYS {
        if !options.ways.is_empty()
            && !options.ways.iter().any(|letter| name[1..].starts_with(letter.as_str()))
        {
            continue;
        }
        let mut row = vec![name.to_string()];
        let nothing = (f64::NAN, f64::NAN);
        let mut figures = vec![nothing; servers.len()];
        for (i, result) in measure(&servers, shape, (way, travel), options, &expected).into_iter().enumerate()
        {
            match result {
                Ok((per_second, cpu_ns)) => {
                    figures[i] = (per_second, cpu_ns);
                    row.push(format!("{}/s ({})", rate(per_second), time(cpu_ns)));
                    if way == Way::Sdiff {
                        plain[i] = plain[i].min(cpu_ns);
                    }
                }
                Err(error) => {
                    if error.kind() != io::ErrorKind::Unsupported {
                        section.note(format!("{}, {}, {name}: {error}", labels[i], shape.name));
                    }
                    row.push(absent());
                }
            }
        }
        for &other in &others {
            let (own, their) = (figures[subject.unwrap_or(other)], figures[other]);
            let (faster, cheaper) = (own.0 / their.0, their.1 / own.1);
            row.push(if faster.is_nan() { absent() } else { format!("{faster:.1}, {cheaper:.1}") });
        }
        table.row(row);
    }
    section.table(shape.caption(options), table);
    for &other in &others {
        let (own, their) = (plain[subject.unwrap_or(other)], plain[other]);
        if own.is_finite() && their.is_finite() {
            section.note(format!(
                "{}: SDIFF's best way takes {} of CPU here, {}'s {}: {:.1} times less",
                shape.name,
                time(own),
                labels[other],
                time(their),
                their / own
            ));
        }
    }
}

fn rate(per_second: f64) -> String {
    if per_second < 20.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

/// Loads the blacklist and the lists of the random shape, as sets.
pub fn prepare(server: &Server) -> io::Result<()> {
    fill_with(server, &SHAPES[0], b"SADD", "")
}

fn fill_all(server: &Server, shape: &Shape) -> io::Result<()> {
    fill_with(server, shape, b"SADD", "")?;
    if has_bitmaps(&mut server.client()?) {
        fill_with(server, shape, b"R.APPENDINTARRAY", BITMAPS)?;
        fill_with(server, shape, b"R.APPENDINTARRAY", DESTROYED)?;
    }
    Ok(())
}

fn has_bitmaps(client: &mut Client) -> bool {
    client.words("R.BITCOUNT none").is_ok()
}

fn fill_with(server: &Server, shape: &Shape, command: &[u8], prefix: &str) -> io::Result<()> {
    let name = format!("{prefix}X");
    fill::collection(server, command, name.as_bytes(), shape.blacklisted, 1, |out, i| {
        fill::decimal_part(out, shape.blacklisted(i))
    })?;
    for list in 0..shape.lists {
        let name = format!("{prefix}Y{list}");
        fill::collection(server, command, name.as_bytes(), (shape.len)(list), 1, |out, i| {
            fill::decimal_part(out, shape.listed(list, i))
        })?;
    }
    Ok(())
}

/// The request by way (a) for the random shape, encoded.
pub fn script_request() -> Vec<u8> {
    eval(SCRIPT_NUMBERS, "", 0..SHAPES[0].lists)
}

/// EVAL with X and some lists as keys.
fn eval(text: &str, prefix: &str, lists: std::ops::Range<u64>) -> Vec<u8> {
    let keys = lists.end - lists.start + 1;
    let mut out = Vec::new();
    wire::put_count(&mut out, 3 + keys as usize);
    [&b"EVAL"[..], text.as_bytes()].iter().for_each(|part| wire::put_word(&mut out, part));
    fill::decimal_part(&mut out, keys);
    wire::put_word(&mut out, format!("{prefix}X").as_bytes());
    lists.for_each(|list| wire::put_word(&mut out, format!("{prefix}Y{list}").as_bytes()));
    out
}

/// The key of an answer of way (k).
fn left(list: u64) -> String {
    format!("{BITMAPS}T{list}")
}

fn native_difference(list: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let (to, from, less) = (left(list), format!("{BITMAPS}Y{list}"), format!("{BITMAPS}X"));
    wire::command(&mut out, &[b"R.DIFF", to.as_bytes(), from.as_bytes(), less.as_bytes()]);
    out
}

fn difference(list: u64) -> Vec<u8> {
    let mut out = Vec::new();
    wire::command(&mut out, &[b"SDIFF", format!("Y{list}").as_bytes(), b"X"]);
    out
}

/// The commands of one request.
fn requests(way: Way, lists: u64) -> Vec<Vec<u8>> {
    match way {
        Way::Whole(script) => vec![eval(script, "", 0..lists)],
        Way::Sdiff => (0..lists).map(difference).collect(),
        Way::Native => (0..lists).map(native_difference).collect(),
        Way::Bitmaps(script, prefix) => (0..lists).map(|list| eval(script, prefix, list..list + 1)).collect(),
    }
}

/// Checks the answers, then takes turns. Returns per server the medians of requests/s and of CPU ns per
/// request.
fn measure(
    servers: &[Server],
    shape: &Shape,
    (way, travel): (Way, Travel),
    options: &Options,
    expected: &[Vec<u64>],
) -> Vec<io::Result<(f64, f64)>> {
    let commands = requests(way, shape.lists);
    let mut results: Vec<io::Result<(Vec<f64>, Vec<f64>)>> = servers
        .iter()
        .map(|server| {
            check(&mut server.client()?, way, &commands, expected).map(|()| (Vec::new(), Vec::new()))
        })
        .collect();
    let (callers, rounds) = shape.effort(options);
    for _ in 0..rounds {
        for (server, result) in servers.iter().zip(&mut results) {
            let Ok((rate, cpu)) = result else { continue };
            match one_round(server, &commands, travel, callers, options.seconds) {
                Ok((per_second, cpu_ns)) => {
                    rate.push(per_second);
                    cpu.push(cpu_ns);
                }
                Err(error) => *result = Err(error),
            }
        }
    }
    let medians = |(mut rate, mut cpu): (Vec<f64>, Vec<f64>)| (median(&mut rate), median(&mut cpu));
    results.into_iter().map(|result| result.map(medians)).collect()
}

fn check(client: &mut Client, way: Way, commands: &[Vec<u8>], expected: &[Vec<u64>]) -> io::Result<()> {
    if matches!(way, Way::Bitmaps(..) | Way::Native) && !has_bitmaps(client) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut answer = match way {
        Way::Whole(_) => json_lists(&client.send(&commands[0])?.lossy()),
        Way::Native => {
            commands.iter().try_for_each(|command| client.send(command).map(|_| ()))?;
            let list = |list| client.words(&format!("R.GETINTARRAY {}", left(list))).map(|reply| ids(&reply));
            (0..commands.len() as u64).map(list).collect::<io::Result<Vec<_>>>()?
        }
        _ => {
            let list = |command: &Vec<u8>| client.send(command).map(|reply| ids(&reply));
            commands.iter().map(list).collect::<io::Result<Vec<_>>>()?
        }
    };
    answer.iter_mut().for_each(|ids| ids.sort_unstable());
    if answer == expected { Ok(()) } else { Err(io::Error::other("the answer is wrong")) }
}

fn ids(reply: &Frame) -> Vec<u64> {
    let id = |member: &Frame| match member {
        Frame::Int(n) => *n as u64,
        other => other.lossy().parse().unwrap_or(u64::MAX),
    };
    match reply {
        Frame::Array(members) => members.iter().map(id).collect(),
        _ => Vec::new(),
    }
}

/// Reads `[[1,2],["3"]]`: lists of numbers, quoted or not.
fn json_lists(text: &str) -> Vec<Vec<u64>> {
    let inner = text.trim_start_matches('[').trim_end_matches(']');
    let number = |s: &str| s.trim_matches('"').parse().unwrap_or(u64::MAX);
    inner.split("],[").map(|list| list.split(',').map(number).collect()).collect()
}

fn one_round(
    server: &Server,
    commands: &[Vec<u8>],
    travel: Travel,
    callers: usize,
    seconds: f64,
) -> io::Result<(f64, f64)> {
    let together = commands.len();
    let (conns, pipeline) = match travel {
        AtOnce => (together, 1),
        Pipelined => (1, together),
    };
    let mut load = Load::connect(server, callers * conns, conns)?;
    server.settle(Duration::from_secs(2));
    let before = server.cpu_ns();
    let mut turn = 0;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let outcome = load.run(pipeline, Some(until), &mut |out| {
        out.extend_from_slice(&commands[turn % together]);
        turn += 1;
        true
    })?;
    let cpu_ns = (server.cpu_ns() - before) as f64;
    let requests = outcome.replies as f64 / together as f64;
    Ok((requests / outcome.elapsed.as_secs_f64(), cpu_ns / requests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_numbers_and_of_strings_reads_alike() {
        assert_eq!(json_lists("[[1,2],[4294967295]]"), [vec![1, 2], vec![4294967295]]);
        assert_eq!(json_lists(r#"[["1","2"],["3"]]"#), [vec![1, 2], vec![3]]);
    }

    #[test]
    fn few_of_each_list_are_blacklisted() {
        for shape in &SHAPES[..2] {
            for (list, ids) in (0..).zip(shape.expected()) {
                let len = (shape.len)(list);
                assert!((len - HITS - 60..=len - HITS).contains(&(ids.len() as u64)));
            }
        }
    }

    #[test]
    fn lists_grow_to_their_largest() {
        let many = &SHAPES[2];
        assert_eq!(((many.len)(0), (many.len)(many.lists - 1)), (1_000, 20_000));
    }
}
