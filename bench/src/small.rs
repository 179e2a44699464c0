//! A small machine: one core, half a gigabyte.
//!
//! The server is kept on one core from its first instruction, so it sees a machine with one core. It runs in
//! a control group of 512 MiB where this program may make one. A server that needs more is killed, and the
//! report says so. Two million keys are written, and a closed loop of GETs measures it. Then a bystander
//! watches while a client reads a large set again and again. The peak of its resident memory over all of that
//! must fit.

use crate::attackers;
use crate::bystander::{self, Bystander, Seen};
use crate::cgroup::MemoryGroup;
use crate::fill;
use crate::load::Load;
use crate::random::{Random, key40};
use crate::report::{Section, Table, bytes, count};
use crate::server::{Server, Target};
use crate::wire;
use std::io;
use std::time::Duration;

pub struct Options {
    pub keys: u64,
    pub requests: u64,
    pub seconds: f64,
}

const CORE: usize = 0;
const LIMIT: u64 = 512 << 20;
const SET: u64 = 200_000;

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("A small machine");
    let mut table = Table::new(&["server", "filled in", "GET CPU µs", "GET/s", "peak memory", "goal"]);
    let mut watched = Table::new(&[&["server", "attacker's time"], &bystander::HEAD[..]].concat());
    let group = MemoryGroup::new(LIMIT);
    for target in targets {
        let group = group.as_ref().ok().map(MemoryGroup::joined_by);
        let target = Target { cpus: vec![CORE], group, ..target.clone() };
        let measured = Server::start(&target).and_then(|mut server| {
            let measured = measure(&server, options).map_err(|e| e.to_string());
            measured.map_err(|error| format!("{error}; {}", server.obituary().unwrap_or_default()))
        });
        match measured {
            Ok((row, attack, seen)) => {
                table.row([vec![target.label.clone()], row].concat());
                watched.row([vec![target.label.clone(), attack], seen.cells()].concat());
            }
            Err(error) => section.note(format!("{}: {error}", target.label)),
        }
    }
    section.note(match &group {
        Ok(group) => format!("Each server ran in a control group of {}: {}", bytes(LIMIT), group.kind()),
        Err(error) => format!("No limit was set, only the peak was measured: no control group ({error})"),
    });
    let keys = count(options.keys);
    section.table(
        format!("Server on one core, {keys} keys of 40 + 40 bytes with TTL, GET over 50 connections"),
        table,
    );
    section.table(format!("Bystander while one client repeats SMEMBERS of {}", count(SET)), watched);
    section
}

fn measure(server: &Server, options: &Options) -> io::Result<(Vec<String>, String, Seen)> {
    bystander::prepare(server)?;
    let filled = fill::strings(server, options.keys, 86_400)?;
    fill::collection(server, b"SADD", b"set", SET, 1, |out, i| fill::decimal_part(out, 1_000_000_000 + i))?;
    server.settle(Duration::from_secs(5));
    let cpu = server.cpu_ns();
    let mut random = Random(3);
    let mut left = options.requests;
    let loaded = Load::connect(server, 50, 1)?.run(1, None, &mut |out| {
        if left == 0 {
            return false;
        }
        left -= 1;
        wire::command(out, &[b"GET", &key40(random.below(options.keys))]);
        true
    })?;
    let cpu_us = (server.cpu_ns() - cpu) as f64 / 1e3 / loaded.replies as f64;
    let mut command = Vec::new();
    wire::command(&mut command, &[b"SMEMBERS", b"set"]);
    let watching = Bystander::start(server)?;
    let times = attackers::repeat(&mut server.client()?, options.seconds, &command);
    let seen = watching.stop()?;
    let peak = server.rss_peak();
    let row = vec![
        format!("{:.1} s", filled.elapsed.as_secs_f64()),
        format!("{cpu_us:.2}"),
        format!("{:.0}k", loaded.replies as f64 / loaded.elapsed.as_secs_f64() / 1e3),
        bytes(peak),
        format!("≤ {}: {}", bytes(LIMIT), if peak <= LIMIT { "met" } else { "missed" }),
    ];
    Ok((row, attackers::mean_time(&times?), seen))
}
