//! The stories: what one client does while a bystander reads, and what else is measured.
//!
//! Each has three parts. `prepare` writes the data once for each server, `round` measures, and may be called
//! again. [`Target::clean`] removes the keys of both.

use crate::bystander::{self, Bystander, Seen};
use crate::client::Client;
use crate::load::Load;
use crate::random::{Random, hex16, mix, value40};
use crate::target::{BYSTANDER, Target};
use crate::{fill, wire};
use dial::Frame;
use loader::{Stop, number};
use std::collections::BTreeMap;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The options that all stories of a run share.
pub struct Run<'a> {
    pub seconds: f64,
    pub keys: u64,
    /// The number that random choices begin with.
    pub seed: u64,
    pub stop: &'a Stop,
}

/// The measurements of one story on one server.
#[derive(Default)]
pub struct Gathered {
    /// None: the story has no bystander.
    pub seen: Option<Seen>,
    /// Samples by the name of their figure.
    pub samples: BTreeMap<String, Vec<f64>>,
}

impl Gathered {
    fn add(&mut self, figure: impl Into<String>, sample: f64) {
        self.samples.entry(figure.into()).or_default().push(sample);
    }
}

/// The figure that the sentence about a story is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headline {
    /// The wait of a bystander.
    Bystander,
    /// The more the better.
    More(&'static str),
    /// The less the better.
    Less(&'static str),
}

pub struct Story {
    pub name: &'static str,
    /// The work of one client, with `{}` for [`Run::keys`].
    pub what: &'static str,
    pub headline: Headline,
    /// Most bytes that one of [`Run::keys`] takes.
    pub bytes: u64,
    /// Whether it is one of those that run if none is named.
    pub usual: bool,
    prepare: fn(&Target, &Run<'_>) -> io::Result<()>,
    round: fn(&Target, &Run<'_>, &mut Gathered) -> io::Result<()>,
}

/// The story that all with bystanders are compared with.
pub const NOBODY: &str = "nobody";

const STORIES: &[Story] = &[
    Story {
        name: NOBODY,
        what: "did nothing",
        headline: Headline::Bystander,
        bytes: 1,
        usual: true,
        prepare: |_, _| Ok(()),
        round: |target, run, gathered| {
            watch(target, gathered, |_| {
                let until = Instant::now() + Duration::from_secs_f64(run.seconds);
                while Instant::now() < until {
                    check(run)?;
                    sleep(Duration::from_millis(20).min(until.saturating_duration_since(Instant::now())));
                }
                Ok(())
            })
        },
    },
    Story {
        name: "blacklist",
        what: "computed SDIFF of two sets of {} members",
        headline: Headline::Bystander,
        bytes: 400,
        usual: true,
        prepare: two_sets,
        round: |target, run, gathered| {
            let (list, black) = (target.endpoint.key("list"), target.endpoint.key("black"));
            repeat(target, run, gathered, &[b"SDIFF", &list, &black])
        },
    },
    Story {
        name: "items",
        what: "of fifty asked for items by id, 99 reads to a write, 80 % of them for 20 % of {} items",
        headline: Headline::More("requests_per_s"),
        bytes: 250,
        usual: true,
        prepare: |target, run| target.strings(run.stop, run.keys),
        round: items,
    },
    Story {
        name: "rows",
        what: "of fifty read rows of a database by id, 80 % of them for 20 % of 5,000 rows",
        headline: Headline::More("requests_per_s"),
        bytes: 1,
        usual: false,
        prepare: needs_rows,
        round: rows,
    },
    Story {
        name: "copy",
        what: "copied a list of {} elements",
        headline: Headline::Bystander,
        bytes: 120,
        usual: true,
        prepare: one_list,
        round: copy,
    },
    Story {
        name: "resize",
        what: "wrote {} keys and removed 94 % of them",
        headline: Headline::Bystander,
        bytes: 250,
        usual: true,
        prepare: |_, _| Ok(()),
        round: resize,
    },
    Story {
        name: "batch",
        what: "wrote in batches of up to 10,000 keys",
        headline: Headline::Bystander,
        bytes: 250,
        usual: true,
        prepare: |_, _| Ok(()),
        round: batch,
    },
    Story {
        name: "script",
        what: "ran a Lua loop of 20 × {} turns",
        headline: Headline::Bystander,
        bytes: 1,
        usual: false,
        prepare: |_, _| Ok(()),
        round: |target, run, gathered| {
            let turns = (20 * run.keys).to_string();
            repeat(target, run, gathered, &[b"EVAL", LOOP, b"0", turns.as_bytes()])
        },
    },
    Story {
        name: "keys",
        what: "asked KEYS for {} keys",
        headline: Headline::Bystander,
        bytes: 250,
        usual: false,
        prepare: |target, run| target.strings(run.stop, run.keys),
        round: |target, run, gathered| {
            let pattern = target.endpoint.key("k:*");
            repeat(target, run, gathered, &[b"KEYS", &pattern])
        },
    },
    Story {
        name: "save",
        what: "had a snapshot of {} keys written",
        headline: Headline::Bystander,
        bytes: 350,
        usual: false,
        prepare: |target, run| target.strings(run.stop, run.keys),
        round: save,
    },
    Story {
        name: "throughput",
        what: "of fifty sent GET or SET",
        headline: Headline::More("get_per_s"),
        bytes: 250,
        usual: false,
        prepare: |target, run| target.strings(run.stop, run.keys.min(THROUGHPUT_KEYS)),
        round: throughput,
    },
    Story {
        name: "memory",
        what: "wrote {} entries of each kind",
        headline: Headline::Less("string_bytes"),
        bytes: 250,
        usual: false,
        prepare: |_, _| Ok(()),
        round: memory,
    },
];

const LOOP: &[u8] = b"local x = 0 for i = 1, tonumber(ARGV[1]) do x = x + i % 7 end return x";
/// Connections of the stories of many clients.
const CONNS: usize = 50;
/// Keys that throughput is measured with.
const THROUGHPUT_KEYS: u64 = 100_000;
/// Members that both sets of `blacklist` have.
const HITS: u64 = 100;
/// Bytes that a member of a reply to SDIFF takes at most: on the wire, and as a frame.
const MEMBER: usize = 20 + size_of::<Frame>();

/// The names of all stories, and the word for all of them.
pub fn names() -> Vec<&'static str> {
    STORIES.iter().map(|story| story.name).chain([ALL]).collect()
}

const ALL: &str = "all";

/// Whether there is a story of that name.
pub fn is_known(name: &str) -> bool {
    STORIES.iter().any(|story| story.name == name)
}

/// The stories of that name, or the usual ones; before them the one without an attacker, if any has a
/// bystander.
pub fn chosen(names: &[String]) -> Vec<&'static Story> {
    let all = names.iter().any(|name| name == ALL);
    let is_asked = |story: &Story| {
        let is_named = names.iter().any(|name| name == story.name);
        if names.is_empty() { story.usual } else { all || is_named }
    };
    let mut chosen: Vec<&Story> =
        STORIES.iter().filter(|story| story.name != NOBODY && is_asked(story)).collect();
    if names.iter().any(|name| name == NOBODY) || chosen.iter().any(|story| story.has_bystander()) {
        chosen.insert(0, &STORIES[0]);
    }
    chosen
}

impl Story {
    /// The work of one client, as part of a sentence.
    pub fn doing(&self, keys: u64) -> String {
        self.what.replace("{}", &number(keys))
    }

    pub fn has_bystander(&self) -> bool {
        !matches!(self.name, "throughput" | "memory")
    }

    /// Writes the data. Errors: the server's and the connection's.
    pub fn prepare(&self, target: &Target, run: &Run<'_>) -> io::Result<()> {
        if self.has_bystander() {
            bystander::prepare(&target.endpoint)?;
        }
        (self.prepare)(target, run)
    }

    /// Measures. Errors: as above; a signal came.
    pub fn round(&self, target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
        (self.round)(target, run, gathered)?;
        check(run)
    }
}

fn check(run: &Run<'_>) -> io::Result<()> {
    run.stop.check().map_err(io::Error::other)
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Watches a bystander while `work` runs.
fn watch(
    target: &Target,
    gathered: &mut Gathered,
    work: impl FnOnce(&mut Gathered) -> io::Result<()>,
) -> io::Result<()> {
    let watching = Bystander::start(target.endpoint.named(BYSTANDER))?;
    sleep(Duration::from_millis(100));
    let done = work(gathered);
    let seen = watching.stop()?;
    done?;
    match &mut gathered.seen {
        Some(all) => all.merge(&seen)?,
        none => *none = Some(seen),
    }
    Ok(())
}

/// Sends one command again and again while a bystander is watched.
fn repeat(target: &Target, run: &Run<'_>, gathered: &mut Gathered, words: &[&[u8]]) -> io::Result<()> {
    let mut command = Vec::new();
    wire::command(&mut command, words);
    attack(target, run, gathered, |client| client.discard(&command, 1).map(|_| ()))
}

/// Repeats `strike` for the time of the round, at least once, on a thread behind all others: an attacker on
/// another machine takes no core from the bystander.
fn attack(
    target: &Target,
    run: &Run<'_>,
    gathered: &mut Gathered,
    strike: impl Fn(&mut Client) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let mut client = target.attacker()?;
    let limit = Duration::from_secs_f64(run.seconds);
    watch(target, gathered, |gathered| {
        let attacker = || {
            machine::threads::demote(19);
            let (start, mut took) = (Instant::now(), Vec::new());
            while took.is_empty() || (start.elapsed() < limit && !run.stop.is_asked()) {
                let begun = Instant::now();
                strike(&mut client)?;
                took.push(begun.elapsed());
            }
            Ok(took)
        };
        let took: io::Result<Vec<Duration>> = std::thread::scope(|scope| {
            scope
                .spawn(attacker)
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the attacker's thread panicked")))
        });
        took?.iter().for_each(|time| gathered.add("attacker_ms", time.as_secs_f64() * 1e3));
        Ok(())
    })
}

/// Number `i` of a series of distinct integers below 2³², in no order.
fn id(i: u64) -> u64 {
    i.wrapping_mul(2_654_435_761) & 0xffff_ffff
}

/// Two sets of integers with few members in common. The answer is checked.
fn two_sets(target: &Target, run: &Run<'_>) -> io::Result<()> {
    let (list, black) = (target.endpoint.key("list"), target.endpoint.key("black"));
    let part = fill::decimal_part;
    fill::collection(&target.endpoint, b"SADD", &black, run.keys, 1, |out, i| part(out, id(2 * i)))?;
    check(run)?;
    fill::collection(&target.endpoint, b"SADD", &list, run.keys, 1, |out, i| {
        part(out, id(2 * i + u64::from(i >= HITS)));
    })?;
    let mut client = target.attacker()?;
    client.allow(run.keys as usize * MEMBER);
    match client.call(&[b"SDIFF", &list, &black])? {
        Frame::Array(ids) | Frame::Set(ids) if ids.len() as u64 == run.keys - HITS => Ok(()),
        _ => Err(wrong("the answer to SDIFF is wrong")),
    }
}

fn one_list(target: &Target, run: &Run<'_>) -> io::Result<()> {
    let key = target.endpoint.key("list");
    fill::collection(&target.endpoint, b"RPUSH", &key, run.keys, 1, |out, i| wire::put_word(out, &hex16(i)))?;
    Ok(())
}

/// COPY, or the way that people took before there was one.
fn copy(target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
    let (list, other) = (target.endpoint.key("list"), target.endpoint.key("copy"));
    let by_copy: [&[u8]; 4] = [b"COPY", &list, &other, b"REPLACE"];
    let by_sort: [&[u8]; 6] = [b"SORT", &list, b"BY", b"nosort", b"STORE", &other];
    let mut client = target.attacker()?;
    let is_known = client.call(&by_copy).is_ok();
    repeat(target, run, gathered, if is_known { &by_copy } else { &by_sort })?;
    match client.call(&[b"LLEN", &other])? {
        Frame::Int(n) if n as u64 == run.keys => Ok(()),
        _ => Err(wrong("the copy is not as long as the list")),
    }
}

/// Whether key `i` is one of the 6 % that stay.
fn survives(i: u64) -> bool {
    mix(i ^ 0xabcd) % 100 < 6
}

fn resize(target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
    let (mut key, keys) = (Vec::new(), run.keys);
    watch(target, gathered, |gathered| {
        let begun = Instant::now();
        target.send_each(run.stop, 0..keys, |out, i| {
            target.numbered(&mut key, i);
            wire::command(out, &[b"SET", &key, &value40(i), b"EX", b"86400"]);
        })?;
        gathered.add("grown_s", begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        target.send_each(run.stop, (0..keys).filter(|i| !survives(*i)), |out, i| {
            target.numbered(&mut key, i);
            wire::command(out, &[b"UNLINK", &key]);
        })?;
        gathered.add("shrunk_s", begun.elapsed().as_secs_f64());
        Ok(())
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Mset,
    Pipeline,
    Multi,
}

const WAYS: [(Way, &str); 3] = [(Way::Mset, "mset"), (Way::Pipeline, "pipeline"), (Way::Multi, "multi")];
const SIZES: [u64; 3] = [1, 100, 10_000];

/// One batch of `size` keys, and the number of its replies.
fn batch_of(target: &Target, way: Way, size: u64) -> (Vec<u8>, u64) {
    let (mut out, mut key) = (Vec::new(), Vec::new());
    match way {
        Way::Mset => {
            wire::put_count(&mut out, 1 + 2 * size as usize);
            wire::put_word(&mut out, b"MSET");
        }
        Way::Pipeline => {}
        Way::Multi => wire::command(&mut out, &[b"MULTI"]),
    }
    for i in 0..size {
        target.numbered(&mut key, i);
        match way {
            Way::Mset => [&key[..], &hex16(i)].iter().for_each(|word| wire::put_word(&mut out, word)),
            _ => wire::command(&mut out, &[b"SET", &key, &hex16(i)]),
        }
    }
    if way == Way::Multi {
        wire::command(&mut out, &[b"EXEC"]);
    }
    let replies = match way {
        Way::Mset => 1,
        Way::Pipeline => size,
        Way::Multi => size + 2,
    };
    (out, replies)
}

/// One client that writes batches, each when the one before is answered.
fn batch(target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
    let mut client = target.attacker()?;
    let limit = Duration::from_secs_f64(run.seconds / (WAYS.len() * SIZES.len()) as f64);
    watch(target, gathered, |gathered| {
        for (way, name) in WAYS {
            for size in SIZES {
                check(run)?;
                let (bytes, replies) = batch_of(target, way, size);
                let (begun, mut written) = (Instant::now(), 0);
                while written == 0 || begun.elapsed() < limit {
                    client.discard(&bytes, replies)?;
                    written += size;
                }
                gathered
                    .add(format!("{name}_{size}_keys_per_s"), written as f64 / begun.elapsed().as_secs_f64());
            }
        }
        Ok(())
    })
}

/// Requests a second of fifty connections. `write` appends one of them.
fn rate(
    target: &Target,
    run: &Run<'_>,
    pipeline: usize,
    seconds: f64,
    mut write: impl FnMut(&mut Vec<u8>),
) -> io::Result<f64> {
    let mut load = Load::connect(&target.endpoint, CONNS, 1)?;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let outcome = load.run(pipeline, Some(until), &mut |out| {
        write(out);
        !run.stop.is_asked()
    });
    check(run)?;
    let outcome = outcome?;
    Ok(outcome.replies as f64 / outcome.elapsed.as_secs_f64())
}

fn items(target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
    let (mut random, mut key) = (Random(mix(run.seed)), Vec::new());
    watch(target, gathered, |gathered| {
        let per_second = rate(target, run, 1, run.seconds, |out| {
            let hot = random.below(5) < 4;
            let i =
                if hot { random.below(run.keys / 5) } else { run.keys / 5 + random.below(run.keys * 4 / 5) };
            target.numbered(&mut key, i);
            match random.below(100) {
                0 => wire::command(out, &[b"SET", &key, &value40(i)]),
                _ => wire::command(out, &[b"GET", &key]),
            }
        })?;
        gathered.add("requests_per_s", per_second);
        Ok(())
    })
}

/// Rows of the demonstration database, and the beginning of their keys.
const ROWS: u64 = 5000;
const ROW: &[u8] = b"item:";
/// Reads of rows that are under way at a time while all are loaded.
const LOADED_TOGETHER: usize = 16;

/// Only a server of our own has the demonstration database.
fn needs_rows(target: &Target, _: &Run<'_>) -> io::Result<()> {
    if target.own {
        return Ok(());
    }
    let why = "only a server that is started for the run has a database to read through";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// Reads rows of SQLite through: all of them once, then as `items` are read.
fn rows(target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
    target.attacker()?.call(&[b"EVENKEEL", b"SOURCE", b"FLUSH", b"items"])?;
    let mut random = Random(mix(run.seed));
    let get = |out: &mut Vec<u8>, id: u64| {
        let mut key = ROW.to_vec();
        wire::decimal(&mut key, id);
        wire::command(out, &[b"GET", &key]);
    };
    watch(target, gathered, |gathered| {
        let mut ids = 1..=ROWS;
        let loaded = Load::connect(&target.endpoint, CONNS, 1)?.run(LOADED_TOGETHER, None, &mut |out| {
            ids.next().is_some_and(|id| {
                get(out, id);
                !run.stop.is_asked()
            })
        })?;
        gathered.add("first_reads_per_s", loaded.replies as f64 / loaded.elapsed.as_secs_f64());
        let per_second = rate(target, run, 1, run.seconds, |out| {
            let is_hot = random.below(5) < 4;
            let id = if is_hot { random.below(ROWS / 5) } else { ROWS / 5 + random.below(ROWS * 4 / 5) };
            get(out, id + 1);
        })?;
        gathered.add("requests_per_s", per_second);
        Ok(())
    })
}

fn throughput(target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
    let (mut random, mut key, keys) = (Random(mix(run.seed)), Vec::new(), run.keys.min(THROUGHPUT_KEYS));
    for (pipeline, behind) in [(1, "per_s"), (16, "pipelined_per_s")] {
        for is_get in [true, false] {
            let per_second = rate(target, run, pipeline, run.seconds / 4.0, |out| {
                let i = random.below(keys);
                target.numbered(&mut key, i);
                match is_get {
                    true => wire::command(out, &[b"GET", &key]),
                    false => wire::command(out, &[b"SET", &key, &value40(i)]),
                }
            })?;
            gathered.add(format!("{}_{behind}", if is_get { "get" } else { "set" }), per_second);
        }
    }
    Ok(())
}

/// Appends the words of one entry.
type Entry = fn(&mut Vec<u8>, u64);

/// The kinds of collections: figure, command, words of an entry.
const KINDS: [(&str, &[u8], u64, Entry); 4] = [
    ("hash_field_bytes", b"HSET", 2, |out, i| {
        wire::put_word(out, &hex16(i)[..10]);
        wire::put_word(out, &hex16(!i)[..10]);
    }),
    ("set_integer_bytes", b"SADD", 1, |out, i| fill::decimal_part(out, id(i))),
    ("zset_member_bytes", b"ZADD", 2, |out, i| {
        fill::decimal_part(out, id(i));
        wire::put_word(out, &hex16(i));
    }),
    ("list_element_bytes", b"RPUSH", 1, |out, i| wire::put_word(out, &hex16(i)[..10])),
];

/// Growth of used_memory for each entry of a kind.
fn memory(target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
    let mut client = Client::connect(&target.endpoint)?;
    let mut measure = |figure: &str, fill: &mut dyn FnMut() -> io::Result<()>| {
        target.clean()?;
        let before = target.settled_memory(&mut client)?;
        fill()?;
        let after = target.settled_memory(&mut client)?;
        gathered.add(figure, after.saturating_sub(before) as f64 / run.keys as f64);
        check(run)
    };
    measure("string_bytes", &mut || target.strings(run.stop, run.keys))?;
    for (figure, command, words, entry) in KINDS {
        let key = target.endpoint.key("one");
        measure(figure, &mut || {
            fill::collection(&target.endpoint, command, &key, run.keys, words, entry).map(drop)
        })?;
    }
    Ok(())
}

/// The longest that a snapshot may take.
const SAVE_MAX: Duration = Duration::from_secs(600);

fn save(target: &Target, run: &Run<'_>, gathered: &mut Gathered) -> io::Result<()> {
    let mut client = target.attacker()?;
    target.figure(&mut client, "persistence", "rdb_bgsave_in_progress")?;
    watch(target, gathered, |gathered| {
        let begun = Instant::now();
        snapshot(target, &mut client)?;
        gathered.add("save_s", begun.elapsed().as_secs_f64());
        Ok(())
    })?;
    check(run)
}

/// Has a snapshot written, and waits for it. Errors: it failed; it takes more than ten minutes.
pub fn snapshot(target: &Target, client: &mut Client) -> io::Result<()> {
    let deadline = Instant::now() + SAVE_MAX;
    client.call(&[b"BGSAVE"])?;
    while target.figure(client, "persistence", "rdb_bgsave_in_progress")? != 0 {
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the snapshot does not end"));
        }
        sleep(Duration::from_millis(5));
    }
    let told = client.call(&[b"INFO", b"persistence"])?.lossy();
    match told.contains("rdb_last_bgsave_status:err") {
        true => Err(io::Error::other("the server could not write its snapshot")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_set_are_distinct() {
        let mut ids: Vec<u64> = (0..100_000).map(id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 100_000);
        assert!(ids[99_999] < 1 << 32);
    }

    #[test]
    fn the_usual_stories_are_the_five_behind_the_baseline() {
        let names = |stories: &[&str]| -> Vec<&str> {
            let words: Vec<String> = stories.iter().map(|name| name.to_string()).collect();
            chosen(&words).iter().map(|story| story.name).collect()
        };
        assert_eq!(names(&[]), ["nobody", "blacklist", "items", "copy", "resize", "batch"]);
        assert_eq!(names(&["memory"]), ["memory"]);
        assert_eq!(names(&["nobody"]), ["nobody"]);
        assert_eq!(names(&["save", "copy"]), ["nobody", "copy", "save"]);
        assert_eq!(names(&["all"]).len(), STORIES.len());
    }
}
