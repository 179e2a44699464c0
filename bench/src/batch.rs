//! Batches of writes: does a larger batch ever cost throughput, and do others wait for it?
//!
//! One client writes a number of keys again and again, in batches of one size. The ways are MSET, a pipeline
//! of SETs, and MULTI with SETs and EXEC. Each batch is one write to the socket, and the next one is sent
//! when its replies are in. A bystander watches every cell.
//!
//! The cells are measured in rounds, server by server, so that a disturbance of the machine hits all alike.
//! Throughput is the median of the rounds, the bystander's p99 that of all rounds together.
//!
//! Goals: throughput at least 0.95 of the best with a smaller batch; bystander's p99 at most 1 ms.

use crate::attack::Attacker;
use crate::bystander::{self, Bystander, Seen};
use crate::random::{hex16, key40};
use crate::report::{Section, Table, absent, count, median, time};
use crate::server::{Server, Target};
use crate::wire;
use std::io;
use std::time::{Duration, Instant};

pub struct Options {
    pub keys: Vec<u64>,
    pub sizes: Vec<u64>,
    pub rounds: usize,
    /// Time that a cell is measured in each round.
    pub seconds: f64,
}

pub const KEYS: &[u64] = &[100, 2000, 20_000, 200_000];
pub const SIZES: &[u64] = &[1, 10, 50, 100, 500, 1000, 2000, 5000, 10_000, 20_000];

const FALL_GOAL: f64 = 0.95;
const P99_GOAL_NS: u64 = 1_000_000;
const SUBJECT: &str = "Evenkeel";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Mset,
    Pipeline,
    Multi,
}

const WAYS: [(Way, &str); 3] = [(Way::Mset, "MSET"), (Way::Pipeline, "pipeline"), (Way::Multi, "MULTI")];

/// One way and size on one server.
struct Cell {
    way: Way,
    size: u64,
    server: usize,
    per_second: Vec<f64>,
    seen: Seen,
}

pub fn run(targets: &[Target], options: &Options) -> Result<Section, String> {
    let mut section = Section::new("Batches of writes");
    let mut servers = Vec::new();
    for target in targets {
        let started = Server::start(target)
            .and_then(|server| bystander::prepare(&server).map(|()| server).map_err(|e| e.to_string()));
        match started {
            Ok(server) => servers.push(server),
            Err(error) => section.note(error),
        }
    }
    let (mut judged, mut flagged) = (0, 0);
    let mut method = None;
    for &keys in &options.keys {
        let mut cells = cells(keys, options, servers.len()).map_err(|e| e.to_string())?;
        for _ in 0..options.rounds {
            for cell in &mut cells {
                if let Err(error) = measure(&servers[cell.server], cell, keys, options) {
                    section
                        .note(format!("{}, {} by {}: {error}", servers[cell.server].label, keys, cell.size));
                }
            }
        }
        let (table, (cells_judged, cells_flagged)) = table(&cells, &servers, options);
        section.table(format!("{} keys: keys/s, bystander's p99", count(keys)), table);
        judged += cells_judged;
        flagged += cells_flagged;
        method = cells.iter().map(|cell| &cell.seen).find(|seen| !seen.latency.is_empty()).map(Seen::method);
    }
    section.note(format!("{} of {judged} cells of {SUBJECT} meet both goals", judged - flagged));
    section.note(format!(
        "Bold: keys/s below {FALL_GOAL} × the best with a smaller batch, p99 above {}. Medians of {} rounds of {} s, \
         40-byte keys, 16-byte values, one connection",
        time(P99_GOAL_NS as f64),
        options.rounds,
        options.seconds
    ));
    section.note("Server, client and bystander share the cores");
    method.into_iter().for_each(|method| section.note(method));
    Ok(section)
}

fn cells(keys: u64, options: &Options, servers: usize) -> io::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for (way, _) in WAYS {
        for &size in options.sizes.iter().filter(|&&size| size <= keys) {
            for server in 0..servers {
                cells.push(Cell { way, size, server, per_second: Vec::new(), seen: Seen::new()? });
            }
        }
    }
    Ok(cells)
}

fn measure(server: &Server, cell: &mut Cell, keys: u64, options: &Options) -> io::Result<()> {
    let batches = encode(cell.way, cell.size, keys);
    let mut client = Attacker::connect(server)?;
    batches.iter().try_for_each(|(bytes, replies)| client.exchange(bytes, *replies).map(|_| ()))?;
    let watching = Bystander::start(server)?;
    let start = Instant::now();
    let limit = Duration::from_secs_f64(options.seconds);
    let mut written = 0;
    let mut result = Ok(());
    'cell: while written == 0 || start.elapsed() < limit {
        for (i, (bytes, replies)) in batches.iter().enumerate() {
            if let Err(error) = client.exchange(bytes, *replies) {
                result = Err(error);
                break 'cell;
            }
            written += cell.size.min(keys - i as u64 * cell.size);
            if start.elapsed() >= limit {
                break;
            }
        }
    }
    let elapsed = start.elapsed();
    cell.seen.merge(&watching.stop()?)?;
    cell.per_second.push(written as f64 / elapsed.as_secs_f64());
    result
}

/// All batches that write `keys` keys, each with the number of its replies.
fn encode(way: Way, size: u64, keys: u64) -> Vec<(Vec<u8>, u64)> {
    let batch = |from: u64| {
        let to = (from + size).min(keys);
        let n = to - from;
        let mut out = Vec::new();
        match way {
            Way::Mset => {
                wire::put_count(&mut out, 1 + 2 * n as usize);
                wire::put_word(&mut out, b"MSET");
                for i in from..to {
                    wire::put_word(&mut out, &key40(i));
                    wire::put_word(&mut out, &hex16(i));
                }
                return (out, 1);
            }
            Way::Pipeline => {}
            Way::Multi => wire::command(&mut out, &[b"MULTI"]),
        }
        (from..to).for_each(|i| wire::command(&mut out, &[b"SET", &key40(i), &hex16(i)]));
        if way == Way::Multi {
            wire::command(&mut out, &[b"EXEC"]);
            return (out, n + 2);
        }
        (out, n)
    };
    (0..keys).step_by(size as usize).map(batch).collect()
}

/// The table, the number of our cells that were judged, and the number that miss a goal.
fn table(cells: &[Cell], servers: &[Server], options: &Options) -> (Table, (u64, u64)) {
    let mut head = vec!["way, batch of".to_string()];
    for server in servers {
        head.push(format!("{} keys/s", server.label));
        head.push("p99".to_string());
    }
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut judged, mut flagged) = (0, 0);
    for (way, name) in WAYS {
        let mut best = vec![0.0f64; servers.len()];
        for &size in &options.sizes {
            let mut row = vec![format!("{name}, {}", count(size))];
            for cell in cells.iter().filter(|cell| cell.way == way && cell.size == size) {
                if cell.per_second.is_empty() {
                    row.extend([absent(), absent()]);
                    continue;
                }
                let per_second = median(&mut cell.per_second.clone());
                let p99 = cell.seen.at(0.99);
                let (falls, waits) = (per_second < FALL_GOAL * best[cell.server], p99 > P99_GOAL_NS);
                best[cell.server] = best[cell.server].max(per_second);
                row.push(emphasised(format!("{:.0}k", per_second / 1e3), falls));
                row.push(emphasised(time(p99 as f64), waits));
                if servers[cell.server].label == SUBJECT {
                    judged += 1;
                    flagged += u64::from(falls || waits);
                }
            }
            if row.len() > 1 {
                table.row(row);
            }
        }
    }
    (table, (judged, flagged))
}

fn emphasised(text: String, yes: bool) -> String {
    if yes { format!("**{text}**") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_every_key_once() {
        for way in [Way::Mset, Way::Pipeline, Way::Multi] {
            let batches = encode(way, 30, 100);
            assert_eq!(batches.len(), 4);
            let replies: u64 = batches.iter().map(|(_, replies)| replies).sum();
            assert_eq!(
                replies,
                match way {
                    Way::Mset => 4,
                    Way::Pipeline => 100,
                    Way::Multi => 108,
                }
            );
            let bytes: Vec<u8> = batches.into_iter().flat_map(|(bytes, _)| bytes).collect();
            for i in 0..100 {
                assert_eq!(bytes.windows(40).filter(|w| *w == key40(i)).count(), 1);
            }
        }
    }
}
