//! A list pushed to ten million, then read in the middle and copied.

use crate::bystander::{self, Bystander};
use crate::load::Load;
use crate::random::hex16;
use crate::report::{Section, Table, absent, count, time};
use crate::server::{Server, Target};
use crate::wire;
use std::io;
use std::time::Duration;

pub struct Options {
    pub elements: u64,
}

const PIPELINE: usize = 1000;
const READS: u64 = 20;

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("A long list");
    let head = [
        "server",
        "pushed in",
        "elements/s",
        "CPU per element",
        "bytes per element",
        "LINDEX middle",
        "COPY",
    ];
    let mut table = Table::new(&head);
    let mut watched = Table::new(&[&["bystander during LPUSH"], &bystander::HEAD[..]].concat());
    let mut method = None;
    for target in targets {
        let measured = Server::start(target).and_then(|s| measure(&s, options).map_err(|e| e.to_string()));
        match measured {
            Ok((row, seen)) => {
                table.row([vec![target.label.clone()], row].concat());
                watched.row([vec![target.label.clone()], seen.cells()].concat());
                method = Some(seen.method());
            }
            Err(error) => section.note(format!("{}: {error}", target.label)),
        }
    }
    let caption = format!(
        "LPUSH of {} elements of 10 bytes, pipelined by {PIPELINE}, one connection",
        count(options.elements)
    );
    section.table(caption, table);
    section.table("", watched);
    method.into_iter().for_each(|method| section.note(method));
    section
}

fn measure(server: &Server, options: &Options) -> io::Result<(Vec<String>, bystander::Seen)> {
    bystander::prepare(server)?;
    server.settle(Duration::from_secs(2));
    let (rss, cpu) = (server.rss(), server.cpu_ns());
    let n = options.elements;
    let watching = Bystander::start(server)?;
    let mut at = 0;
    let pushed = Load::connect(server, 1, 1)?.run(PIPELINE, None, &mut |out| {
        if at == n {
            return false;
        }
        wire::command(out, &[b"LPUSH", b"list", &hex16(at)[..10]]);
        at += 1;
        true
    })?;
    let cpu = server.cpu_ns() - cpu;
    let seen = watching.stop()?;
    server.settle(Duration::from_secs(10));
    let grown = server.rss().saturating_sub(rss);
    let mut row = vec![
        format!("{:.2} s", pushed.elapsed.as_secs_f64()),
        format!("{:.0}k", n as f64 / pushed.elapsed.as_secs_f64() / 1e3),
        time(cpu as f64 / n as f64),
        format!("{:.1}", grown as f64 / n as f64),
    ];
    row.extend([
        mean_time(server, &format!("LINDEX list {}", n / 2), READS),
        mean_time(server, "COPY list copy", 1),
    ]);
    Ok((row, seen))
}

fn mean_time(server: &Server, words: &str, times: u64) -> String {
    let command = wire::line(words);
    let mean = || -> io::Result<f64> {
        let mut client = server.client()?;
        client.words("PING")?;
        let mut total = 0.0;
        for _ in 0..times {
            total += client.discard(&command, 1)?.as_nanos() as f64;
        }
        Ok(total / times as f64)
    };
    mean().map_or_else(|_| absent(), time)
}
