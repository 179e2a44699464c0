//! Bytes per key and per element.
//!
//! Each kind of data goes into its own server. The figure is the growth of resident memory by the fill, once
//! the server has come to rest, divided by the number of elements.

use crate::fill;
use crate::random::{Scattered, hex16, mix};
use crate::report::{Section, Table, absent, bytes, count};
use crate::server::{Server, Target};
use crate::wire;
use std::io;
use std::time::Duration;

pub struct Options {
    /// Numbers of 40-byte keys to measure.
    pub keys: Vec<u64>,
    pub elements: u64,
}

struct Kind {
    name: String,
    n: u64,
    goal: u64,
    fill: fn(&Server, u64) -> io::Result<()>,
}

/// Resident memory that an idle server may use.
const IDLE_GOAL_MIB: u64 = 20;

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("Memory");
    let labels: Vec<&str> = targets.iter().map(|target| target.label.as_str()).collect();
    let mut table = Table::new(&[&["bytes per"], &labels[..], &["goal"]].concat());
    let mut idle = vec![0; targets.len()];
    for kind in kinds(options) {
        let mut row = vec![kind.name.clone()];
        for (i, target) in targets.iter().enumerate() {
            match measure(target, &kind) {
                Ok((before, per_element)) => {
                    idle[i] = before;
                    row.push(format!("{per_element:.1}"));
                }
                Err(error) => {
                    section.note(format!("{}, {}: {error}", target.label, kind.name));
                    row.push(absent());
                }
            }
        }
        row.push(format!("≤ {}", kind.goal));
        table.row(row);
    }
    let mut row = vec!["idle server".to_string()];
    row.extend(idle.iter().map(|&rss| if rss == 0 { absent() } else { bytes(rss) }));
    row.push(format!("≤ {IDLE_GOAL_MIB} MiB"));
    table.row(row);
    section.table("Growth of resident memory per element; each line has its own server", table);
    section
}

fn measure(target: &Target, kind: &Kind) -> Result<(u64, f64), String> {
    let server = Server::start(target)?;
    server.settle(Duration::from_secs(3));
    let before = server.rss();
    (kind.fill)(&server, kind.n).map_err(|e| e.to_string())?;
    server.settle(Duration::from_secs(20));
    let grown = server.rss().saturating_sub(before);
    Ok((before, grown as f64 / kind.n as f64))
}

fn kinds(options: &Options) -> Vec<Kind> {
    let n = options.elements;
    let mut kinds: Vec<Kind> = options
        .keys
        .iter()
        .map(|&keys| Kind {
            name: format!("key, {} of 40 + 40 bytes with TTL", count(keys)),
            n: keys,
            goal: 115,
            fill: |server, n| fill::strings(server, n, 86_400).map(|_| ()),
        })
        .collect();
    let mut kind = |what: &str, goal, fill| {
        kinds.push(Kind { name: format!("{what}, {} in one", count(n)), n, goal, fill })
    };
    kind("set member of 16 bytes", 32, |server, n| {
        fill::collection(server, b"SADD", b"set", n, 1, |out, i| wire::put_word(out, &hex16(i))).map(|_| ())
    });
    kind("set member, random u32", 10, |server, n| integers(server, n, |i| mix(i) >> 32));
    kind("set member, random i64", 12, |server, n| integers(server, n, |i| mix(i) >> 1));
    kind("hash field, 10 + 10 bytes", 45, |server, n| {
        fill::collection(server, b"HSET", b"hash", n, 2, |out, i| {
            wire::put_word(out, &hex16(i)[..10]);
            wire::put_word(out, &hex16(!i)[..10]);
        })
        .map(|_| ())
    });
    kind("sorted set member of 16 bytes", 60, |server, n| {
        fill::collection(server, b"ZADD", b"zset", n, 2, |out, i| {
            fill::decimal_part(out, mix(i) >> 32);
            wire::put_word(out, &hex16(i));
        })
        .map(|_| ())
    });
    kind("list item of 10 bytes", 18, |server, n| {
        fill::collection(server, b"RPUSH", b"list", n, 1, |out, i| wire::put_word(out, &hex16(i)[..10]))
            .map(|_| ())
    });
    // The data are so small that many are needed to be seen beside the buffers of the first traffic, some 4
    // MB.
    let mut dense = |what: &str, times, goal, fill| {
        let n = times * n;
        kinds.push(Kind { name: format!("{what}, {} in one", count(n)), n, goal, fill });
    };
    dense("set member, one in ten of a range", 4, 4, |server, n| {
        integers(server, n, |i| 10 * i + mix(i) % 10)
    });
    dense("set member, every second of a range", 16, 1, |server, n| {
        integers(server, n, |i| 2 * i + (mix(i) & 1))
    });
    kinds
}

/// A set of integers, added in scattered order.
fn integers(server: &Server, n: u64, id: fn(u64) -> u64) -> io::Result<()> {
    let mut order = Scattered::new(n);
    fill::collection(server, b"SADD", b"set", n, 1, |out, _| {
        fill::decimal_part(out, id(order.next().unwrap_or_default()));
    })
    .map(|_| ())
}
