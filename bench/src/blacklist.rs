//! The main job: many ID lists filtered against a blacklist.
//!
//! A hundred thousand blacklisted IDs `X`, ten lists `Y` of 2,500, all random below 2³², a few of each list
//! blacklisted; one request wants all ten lists less `X`. Asked for in the ways people try: a Lua script that answers JSON
//! numbers, the same with strings, ten SDIFF in a pipeline, ten SDIFF at once on ten connections, and scripts over compressed
//! bitmaps (of peers with the redis-roaring module only). The answers are checked against a plain computation before anything
//! is timed.

use crate::client::Client;
use crate::fill;
use crate::load::Load;
use crate::random::mix;
use crate::report::{Section, Table, absent, median};
use crate::server::{Server, Target};
use crate::wire::{self, Value};
use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

const BLACKLISTED: u64 = 100_000;
const LISTS: u64 = 10;
const LIST: u64 = 2_500;
/// Members of each list that are blacklisted.
const HITS: u64 = 20;

pub struct Options {
    pub rounds: usize,
    pub seconds: f64,
    /// Requests under way at any time.
    pub callers: usize,
}

#[derive(Clone, Copy)]
enum Way {
    Numbers,
    Strings,
    Pipeline,
    Concurrent,
    Xor,
    Diff,
}

const WAYS: [(Way, &str); 6] = [
    (Way::Numbers, "(a) Lua: SDIFF, tonumber, cjson.encode"),
    (Way::Strings, "(b) Lua: SDIFF, cjson.encode"),
    (Way::Pipeline, "(c) 10 SDIFF in one pipeline"),
    (Way::Concurrent, "(d) 10 SDIFF on 10 connections"),
    (Way::Xor, "(e) Lua: R.BITOP XOR and AND, R.GETINTARRAY, cjson.encode"),
    (Way::Diff, "(f) Lua: R.DIFF, R.GETINTARRAY, cjson.encode"),
];

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

/// Bits of X that are turned round in the list, then those of the list: what people had who knew no R.DIFF.
const SCRIPT_XOR: &str = "\
local answer = {}
for list = 2, #KEYS do
  redis.call('R.BITOP', 'XOR', 'tmp', KEYS[list], KEYS[1])
  redis.call('R.BITOP', 'AND', 'tmp', KEYS[list], 'tmp')
  answer[list - 1] = redis.call('R.GETINTARRAY', 'tmp')
  redis.call('DEL', 'tmp')
end
return cjson.encode(answer)";

const SCRIPT_DIFF: &str = "\
local answer = {}
for list = 2, #KEYS do
  redis.call('R.DIFF', 'tmp', KEYS[list], KEYS[1])
  answer[list - 1] = redis.call('R.GETINTARRAY', 'tmp')
  redis.call('DEL', 'tmp')
end
return cjson.encode(answer)";

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("The blacklist request");
    let mut servers = Vec::new();
    for target in targets {
        let started = Server::start(target).and_then(|server| match prepare(&server) {
            Ok(()) => Ok(server),
            Err(error) => Err(format!("{}: loading the lists: {error}", target.label)),
        });
        match started {
            Ok(server) => servers.push(server),
            Err(error) => section.note(error),
        }
    }
    let expected = expected();
    let labels: Vec<&str> = servers.iter().map(|server| server.label.as_str()).collect();
    let subject = labels.iter().position(|&label| label == "Evenkeel");
    let mut head = [&["one request"], &labels[..]].concat();
    let others: Vec<usize> =
        (0..labels.len()).filter(|&i| subject.is_some_and(|subject| subject != i)).collect();
    let ratios: Vec<String> = others.iter().map(|&i| format!("× {}", labels[i])).collect();
    head.extend(ratios.iter().map(String::as_str));
    let mut table = Table::new(&head);
    for (way, name) in WAYS {
        let mut rate = vec![f64::NAN; servers.len()];
        let mut row = vec![name.to_string()];
        let results = measure(&servers, way, options, &expected);
        for (i, result) in results.into_iter().enumerate() {
            match result {
                Ok((per_second, cpu_us)) => {
                    rate[i] = per_second;
                    row.push(format!("{per_second:.0}/s ({cpu_us:.0} µs)"));
                }
                Err(error) => {
                    section.note(format!("{}, {name}: {error}", labels[i]));
                    row.push(absent());
                }
            }
        }
        for &other in &others {
            let ratio = rate[subject.unwrap_or(other)] / rate[other];
            row.push(if ratio.is_nan() { absent() } else { format!("{ratio:.1}") });
        }
        table.row(row);
    }
    section.table(
        format!(
            "X of {BLACKLISTED}, {LISTS} lists of {LIST}, random u32; {} callers; requests/s (server CPU µs per request), \
             medians of {} rounds of {} s",
            options.callers, options.rounds, options.seconds
        ),
        table,
    );
    section.note("Every server's answer to every way was first compared with a plain computation.");
    section
}

/// Loads the blacklist and the lists.
pub fn prepare(server: &Server) -> io::Result<()> {
    fill_with(server, b"SADD", "")?;
    if has_bitmaps(&mut server.client()?) {
        fill_with(server, b"R.APPENDINTARRAY", BITMAPS)?;
    }
    Ok(())
}

/// What the names of bitmaps begin with.
const BITMAPS: &str = "R:";

fn has_bitmaps(client: &mut Client) -> bool {
    client.words("R.BITCOUNT none").is_ok()
}

fn fill_with(server: &Server, command: &[u8], prefix: &str) -> io::Result<()> {
    let name = format!("{prefix}X");
    fill::collection(server, command, name.as_bytes(), BLACKLISTED, 1, |out, i| {
        fill::decimal_part(out, blacklisted(i))
    })?;
    for list in 0..LISTS {
        let name = format!("{prefix}Y{list}");
        fill::collection(server, command, name.as_bytes(), LIST, 1, |out, i| {
            fill::decimal_part(out, listed(list, i))
        })?;
    }
    Ok(())
}

/// The request by way (a), encoded.
pub fn script_request() -> Vec<u8> {
    script(SCRIPT_NUMBERS, "")
}

fn blacklisted(i: u64) -> u64 {
    mix(i) >> 32
}

fn listed(list: u64, i: u64) -> u64 {
    if i < HITS { blacklisted(list * HITS + i) } else { mix((list + 1) << 40 | i) >> 32 }
}

/// The lists less the blacklist, each sorted, computed the plain way.
fn expected() -> Vec<Vec<u64>> {
    let x: HashSet<u64> = (0..BLACKLISTED).map(blacklisted).collect();
    let list = |list| {
        let ids: HashSet<u64> = (0..LIST).map(|i| listed(list, i)).filter(|id| !x.contains(id)).collect();
        let mut ids: Vec<u64> = ids.into_iter().collect();
        ids.sort_unstable();
        ids
    };
    (0..LISTS).map(list).collect()
}

fn script(text: &str, prefix: &str) -> Vec<u8> {
    let mut out = Vec::new();
    wire::header(&mut out, b'*', 4 + LISTS as usize);
    [&b"EVAL"[..], text.as_bytes()].iter().for_each(|part| wire::bulk(&mut out, part));
    fill::decimal_part(&mut out, 1 + LISTS);
    wire::bulk(&mut out, format!("{prefix}X").as_bytes());
    (0..LISTS).for_each(|list| wire::bulk(&mut out, format!("{prefix}Y{list}").as_bytes()));
    out
}

fn difference(list: u64) -> Vec<u8> {
    let mut out = Vec::new();
    wire::command(&mut out, &[b"SDIFF", format!("Y{list}").as_bytes(), b"X"]);
    out
}

/// Checks the answers, then takes turns; per server the medians of requests/s and of CPU µs per request.
fn measure(
    servers: &[Server],
    way: Way,
    options: &Options,
    expected: &[Vec<u64>],
) -> Vec<io::Result<(f64, f64)>> {
    let mut results: Vec<io::Result<(Vec<f64>, Vec<f64>)>> = servers
        .iter()
        .map(|server| check(&mut server.client()?, way, expected).map(|()| (Vec::new(), Vec::new())))
        .collect();
    for _ in 0..options.rounds {
        for (server, result) in servers.iter().zip(&mut results) {
            let Ok((rate, cpu)) = result else { continue };
            match one_round(server, way, options) {
                Ok((per_second, cpu_us)) => {
                    rate.push(per_second);
                    cpu.push(cpu_us);
                }
                Err(error) => *result = Err(error),
            }
        }
    }
    let medians = |(mut rate, mut cpu): (Vec<f64>, Vec<f64>)| (median(&mut rate), median(&mut cpu));
    results.into_iter().map(|result| result.map(medians)).collect()
}

fn check(client: &mut Client, way: Way, expected: &[Vec<u64>]) -> io::Result<()> {
    let mut answer = match way {
        Way::Pipeline | Way::Concurrent => {
            let list = |list| client.send(&difference(list)).map(|reply| ids(&reply));
            (0..LISTS).map(list).collect::<io::Result<Vec<_>>>()?
        }
        Way::Xor | Way::Diff if !has_bitmaps(client) => {
            return Err(io::Error::other("it has no compressed bitmaps"));
        }
        _ => json_lists(&client.send(&requests(way)[0])?.text()),
    };
    answer.iter_mut().for_each(|ids| ids.sort_unstable());
    if answer == expected { Ok(()) } else { Err(io::Error::other("the answer is wrong")) }
}

fn ids(reply: &Value) -> Vec<u64> {
    match reply {
        Value::Array(members) => members.iter().map(|m| m.text().parse().unwrap_or(u64::MAX)).collect(),
        _ => Vec::new(),
    }
}

/// Reads `[[1,2],["3"]]`: lists of numbers, quoted or not.
fn json_lists(text: &str) -> Vec<Vec<u64>> {
    let inner = text.trim_start_matches('[').trim_end_matches(']');
    let number = |s: &str| s.trim_matches('"').parse().unwrap_or(u64::MAX);
    inner.split("],[").map(|list| list.split(',').map(number).collect()).collect()
}

/// What is sent for one request.
fn requests(way: Way) -> Vec<Vec<u8>> {
    match way {
        Way::Numbers => vec![script(SCRIPT_NUMBERS, "")],
        Way::Strings => vec![script(SCRIPT_STRINGS, "")],
        Way::Pipeline | Way::Concurrent => (0..LISTS).map(difference).collect(),
        Way::Xor => vec![script(SCRIPT_XOR, BITMAPS)],
        Way::Diff => vec![script(SCRIPT_DIFF, BITMAPS)],
    }
}

fn one_round(server: &Server, way: Way, options: &Options) -> io::Result<(f64, f64)> {
    let commands = requests(way);
    let together = commands.len();
    let mut load = match way {
        Way::Concurrent => Load::connect(server.port, options.callers * together, together)?,
        _ => Load::connect(server.port, options.callers, 1)?,
    };
    let pipeline = if matches!(way, Way::Pipeline) { together } else { 1 };
    server.settle(Duration::from_secs(2));
    let before = server.cpu_ns();
    let mut turn = 0;
    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
    let outcome = load.run(pipeline, Some(until), &mut |out| {
        out.extend_from_slice(&commands[turn % together]);
        turn += 1;
        true
    })?;
    let cpu_us = (server.cpu_ns() - before) as f64 / 1e3;
    let requests = outcome.replies as f64 / together as f64;
    Ok((requests / outcome.elapsed.as_secs_f64(), cpu_us / requests))
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
        for list in expected() {
            assert!((2400..=2480).contains(&list.len()));
        }
    }
}
