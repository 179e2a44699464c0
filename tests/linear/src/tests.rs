//! The machinery against small correct servers, and against the same ones made wrong. A test that cannot fail
//! proves nothing.

use crate::groups::Plan;
use crate::run::{self, Outcome};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The fault of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mutant {
    Right,
    /// One read in ten shows the value before the last write.
    StaleRead,
    /// INCR reads, rests, and writes.
    LostUpdate,
    /// A write is acknowledged before it is applied.
    EarlyReply,
}

/// A value and the one before it.
type Registers = Arc<Mutex<HashMap<String, (Option<i64>, Option<i64>)>>>;

/// Serves SELECT, GET, SET, GETSET and INCRBY, a thread per connection.
fn serve(mutant: Mutant) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("its address");
    let registers = Registers::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let registers = registers.clone();
            std::thread::spawn(move || talk(&stream, &registers, mutant));
        }
    });
    addr
}

fn talk(stream: &TcpStream, registers: &Registers, mutant: Mutant) -> Option<()> {
    let mut input = BufReader::new(stream);
    let mut reads = 0;
    loop {
        let words = request(&mut input)?;
        let word = |i: usize| words.get(i).map_or("", String::as_str);
        let number = || word(2).parse::<i64>().ok();
        let old = held(registers, word(1));
        let text = match word(0) {
            "GET" => {
                reads += 1;
                let stale = mutant == Mutant::StaleRead && reads % 10 == 0;
                bulk(if stale { registers.lock().ok()?.get(word(1)).and_then(|pair| pair.1) } else { old })
            }
            "SET" if mutant == Mutant::EarlyReply => {
                (&mut &*stream).write_all(b"+OK\r\n").ok()?;
                std::thread::sleep(Duration::from_micros(500));
                write(registers, word(1), number());
                continue;
            }
            "SET" => {
                write(registers, word(1), number());
                "+OK\r\n".to_owned()
            }
            "GETSET" => bulk(write(registers, word(1), number())),
            "INCRBY" if mutant == Mutant::LostUpdate => {
                let sum = old.unwrap_or(0) + number()?;
                std::thread::sleep(Duration::from_micros(50));
                write(registers, word(1), Some(sum));
                format!(":{sum}\r\n")
            }
            "INCRBY" => {
                let mut held = registers.lock().ok()?;
                let pair = held.entry(word(1).to_owned()).or_default();
                let sum = pair.0.unwrap_or(0) + number()?;
                *pair = (Some(sum), pair.0);
                format!(":{sum}\r\n")
            }
            _ => "+OK\r\n".to_owned(),
        };
        (&mut &*stream).write_all(text.as_bytes()).ok()?;
    }
}

fn held(registers: &Registers, key: &str) -> Option<i64> {
    registers.lock().ok()?.get(key).and_then(|pair| pair.0)
}

/// Writes and gives the old value.
fn write(registers: &Registers, key: &str, value: Option<i64>) -> Option<i64> {
    let mut registers = registers.lock().ok()?;
    let pair = registers.entry(key.to_owned()).or_default();
    let before = pair.0;
    *pair = (value, before);
    before
}

fn bulk(value: Option<i64>) -> String {
    value.map_or("$-1\r\n".to_owned(), |n| format!("${}\r\n{n}\r\n", n.to_string().len()))
}

fn request(input: &mut BufReader<&TcpStream>) -> Option<Vec<String>> {
    let number = |input: &mut BufReader<&TcpStream>| {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        line.get(1..)?.trim().parse::<usize>().ok()
    };
    let n = number(input)?;
    let mut words = Vec::new();
    for _ in 0..n {
        let mut word = vec![0; number(input)? + 2];
        input.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

/// Runs seeds until one fails, or all of them.
fn caught(mutant: Mutant, seeds: u64) -> Option<String> {
    (1..=seeds).find_map(|seed| {
        let mut outcome = Outcome::default();
        run::against(serve(mutant), &Plan::registers(seed), Duration::from_millis(400), false, &mut outcome);
        assert!(outcome.operations > 0 || !outcome.failures.is_empty(), "nothing was checked");
        outcome.failures.into_iter().next()
    })
}

#[test]
fn a_server_that_is_right_passes() {
    assert_eq!(caught(Mutant::Right, 3), None);
}

#[test]
fn a_stale_read_is_found() {
    let report = caught(Mutant::StaleRead, 20).expect("a failure");
    assert!(report.contains("no order of these operations"), "{report}");
}

#[test]
fn a_lost_update_is_found() {
    assert!(caught(Mutant::LostUpdate, 50).is_some());
}

#[test]
fn a_write_that_was_acknowledged_too_early_is_found() {
    assert!(caught(Mutant::EarlyReply, 50).is_some());
}
