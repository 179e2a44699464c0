//! A long list copied inside the server in every way people found, and by COPY.
//!
//! Each way copies the same list to an empty name. The copy's length, and elements at both ends, in the
//! middle and at random positions, are compared with the original. The list itself is compared too, as some
//! ways reverse it. A bystander watches each way separately.

use crate::bystander::{self, Bystander, Seen};
use crate::client::Client;
use crate::fill;
use crate::random::{Random, hex16};
use crate::report::{Section, Table, absent, count, time};
use crate::server::{Server, Target};
use crate::wire;
use dial::Frame;
use std::io;
use std::time::{Duration, Instant};

pub struct Options {
    pub elements: u64,
    /// Run only ways whose names contain one of these; empty for all.
    pub ways: Vec<String>,
}

enum Way {
    Script(&'static str),
    Command(&'static [&'static str]),
    /// DUMP and RESTORE, with the payload going through the client.
    Client,
}

const LIST: &str = "list";
const COPY: &str = "copy";

const WAYS: &[(&str, Way)] = &[
    ("Lua: RPOPLPUSH list list, LPUSH", Way::Script(ONE_BY_ONE)),
    ("Lua: LRANGE by 100, RPUSH", Way::Script(BY_HUNDRED)),
    ("SORT list BY nosort STORE", Way::Command(&["SORT", LIST, "BY", "nosort", "STORE", COPY])),
    (
        "Lua: RESTORE of DUMP",
        Way::Script("return redis.call('RESTORE', KEYS[2], 0, redis.call('DUMP', KEYS[1]))"),
    ),
    ("DUMP and RESTORE by the client", Way::Client),
    ("COPY", Way::Command(&["COPY", LIST, COPY])),
];

const ONE_BY_ONE: &str = "\
for i = 1, redis.call('LLEN', KEYS[1]) do
  redis.call('LPUSH', KEYS[2], redis.call('RPOPLPUSH', KEYS[1], KEYS[1]))
end";

const BY_HUNDRED: &str = "\
for i = 0, redis.call('LLEN', KEYS[1]) - 1, 100 do
  redis.call('RPUSH', KEYS[2], unpack(redis.call('LRANGE', KEYS[1], i, i + 99)))
end";

/// Random positions at which the copy is checked.
const LOOKS: u64 = 50;

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("Copies of a long list");
    let mut head = vec!["way".to_string()];
    head.extend(targets.iter().flat_map(|t| [t.label.clone(), "CPU".into(), "bystander max".into()]));
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    let asked =
        |name: &str| options.ways.is_empty() || options.ways.iter().any(|way| name.contains(way.as_str()));
    let ways: Vec<_> = WAYS.iter().filter(|(name, _)| asked(name)).collect();
    let mut rows: Vec<Vec<String>> = ways.iter().map(|(name, _)| vec![name.to_string()]).collect();
    let mut method = None;
    for target in targets {
        let prepared = Server::start(target).and_then(|server| {
            prepare(&server, options.elements).map_err(|e| format!("{}: {e}", target.label))?;
            Ok(server)
        });
        if let Err(error) = &prepared {
            section.note(error.clone());
        }
        for ((name, way), row) in ways.iter().zip(&mut rows) {
            let Ok(server) = &prepared else {
                row.extend([absent(), absent(), absent()]);
                continue;
            };
            match measure(server, way, options.elements) {
                Ok(done) => {
                    row.extend([
                        time(done.elapsed.as_nanos() as f64),
                        time(done.cpu_ns as f64),
                        done.seen.worst(),
                    ]);
                    method = Some(done.seen.method());
                }
                Err(error) => {
                    section.note(format!("{}, {name}: {error}", target.label));
                    row.extend([absent(), absent(), absent()]);
                }
            }
        }
    }
    rows.into_iter().for_each(|row| table.row(row));
    section.table(
        format!(
            "A list of {} elements of 10 bytes; until the answer, and server CPU",
            count(options.elements)
        ),
        table,
    );
    section.note(
        "Length and elements of every copy, and of the list after it, were compared with the pushed list.",
    );
    method.into_iter().for_each(|method| section.note(method));
    section
}

fn element(i: u64) -> [u8; 10] {
    std::array::from_fn(|at| hex16(i)[at])
}

fn prepare(server: &Server, elements: u64) -> io::Result<()> {
    bystander::prepare(server)?;
    fill::collection(server, b"RPUSH", LIST.as_bytes(), elements, 1, |out, i| {
        wire::put_word(out, &element(i))
    })?;
    Ok(())
}

struct Done {
    elapsed: Duration,
    cpu_ns: u64,
    seen: Seen,
}

fn measure(server: &Server, way: &Way, elements: u64) -> io::Result<Done> {
    let mut client = server.client()?;
    server.settle(Duration::from_secs(10));
    let watching = Bystander::start(server)?;
    let cpu = server.cpu_ns();
    let start = Instant::now();
    copy(&mut client, way)?;
    let elapsed = start.elapsed();
    let cpu_ns = server.cpu_ns() - cpu;
    // Work that a way leaves for later (freeing, for one) counts too.
    std::thread::sleep(Duration::from_millis(500));
    let seen = watching.stop()?;
    [COPY, LIST].iter().try_for_each(|key| check(&mut client, key, elements))?;
    client.words(&format!("UNLINK {COPY}"))?;
    Ok(Done { elapsed, cpu_ns, seen })
}

fn copy(client: &mut Client, way: &Way) -> io::Result<()> {
    let mut command = Vec::new();
    match way {
        Way::Script(text) => wire::command(
            &mut command,
            &[&b"EVAL"[..], text.as_bytes(), b"2", LIST.as_bytes(), COPY.as_bytes()],
        ),
        Way::Command(words) => {
            wire::command(&mut command, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
        }
        Way::Client => {
            let Frame::Bulk(payload) = client.words(&format!("DUMP {LIST}"))? else {
                return Err(io::Error::other("DUMP did not answer a payload"));
            };
            wire::command(&mut command, &[b"RESTORE", COPY.as_bytes(), b"0", &payload]);
        }
    }
    client.send(&command).map(|_| ())
}

/// Whether a list is the original: its length, and some of its elements.
fn check(client: &mut Client, key: &str, elements: u64) -> io::Result<()> {
    if client.words(&format!("LLEN {key}"))? != Frame::Int(elements as i64) {
        return Err(io::Error::other(format!("{key} has not the right length")));
    }
    let mut random = Random(elements);
    let places = (0..LOOKS).map(|_| random.below(elements)).chain([0, elements / 2, elements - 1]);
    for at in places.collect::<Vec<_>>() {
        if client.words(&format!("LINDEX {key} {at}"))? != Frame::Bulk(element(at).to_vec()) {
            return Err(io::Error::other(format!("{key} is wrong at {at}")));
        }
    }
    Ok(())
}
