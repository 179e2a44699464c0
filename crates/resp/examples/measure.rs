//! Measures nanoseconds per parsed command and per written reply: `cargo run --release -p resp --example
//! measure`.
//!
//! It takes the best of several rounds, so that a busy machine does little harm.

use resp::{Batch, Frame, FrameEnd, Parsed, Parser, Reply, read_frame};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;

type Write = Box<dyn FnMut(&mut Reply, usize)>;

/// Prints the best time per item of `work`, which handles `items` items.
fn measure(name: &str, items: usize, mut work: impl FnMut()) {
    let best = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_nanos() as f64 / items as f64
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<44} {best:>8.1} ns");
}

fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut reply = Reply::new(false);
    reply.array(words.len());
    words.iter().for_each(|word| reply.bulk(word));
    reply.take()
}

fn parse_all(parser: &mut Parser, stream: &[u8]) -> usize {
    let (mut pos, mut words) = (0, 0);
    while let Ok(Parsed::Command { used }) = parser.parse(&stream[pos..]) {
        let args = parser.args(&stream[pos..]);
        words += args.len() + usize::from(args.at(0)[0]);
        pos += used;
    }
    words
}

fn parsing() {
    let commands: [(&str, Vec<u8>); 6] = [
        ("PING", encode(&[b"PING"])),
        ("GET key:000000123456", encode(&[b"GET", b"key:000000123456"])),
        ("SET key:000000123456 xxx", encode(&[b"SET", b"key:000000123456", b"xxx"])),
        ("SET key 1000 B", encode(&[b"SET", b"key:000000123456", &[b'x'; 1000]])),
        ("MSET of 20 words", encode(&[&b"key:00000012345"[..]; 20])),
        ("inline SET k v", b"SET key:000000123456 xxx\r\n".to_vec()),
    ];
    for (name, command) in &commands {
        let count = 400_000 / command.len();
        let stream = command.repeat(count);
        let mut parser = Parser::default();
        measure(&format!("parse {name}"), count, || {
            black_box(parse_all(&mut parser, black_box(&stream)));
        });
        let mut batch = Batch::new();
        measure(&format!("parse {name}, batches of 16"), count, || {
            let mut pos = 0;
            while pos < stream.len() {
                pos += batch.fill(&mut parser, black_box(&stream[pos..]), 16).used;
                black_box(batch.len());
            }
        });
    }
}

fn writing() {
    const COUNT: usize = 20_000;
    let mut reply = Reply::new(false);
    reply.reserve(COUNT * 128);
    let mut each = |name: &str, mut write: Write| {
        measure(name, COUNT, || {
            reply.clear();
            (0..COUNT).for_each(|i| write(&mut reply, i));
            black_box(reply.as_bytes());
        });
    };
    each(
        "write nothing (the loop itself)",
        Box::new(|_, i| {
            black_box(i);
        }),
    );
    each("write +OK", Box::new(|reply, _| reply.ok()));
    each("write int 0..20000", Box::new(|reply, i| reply.int(i as i64)));
    each("write int, 19 digits", Box::new(|reply, i| reply.int(i64::MAX - i as i64)));
    each("write array header", Box::new(|reply, i| reply.array(i % 20)));
    each("write null", Box::new(|reply, _| reply.null()));
    for len in [3, 16, 60, 1000] {
        let bytes = vec![b'x'; len];
        each(&format!("write bulk of {len}"), Box::new(move |reply, _| reply.bulk(black_box(&bytes))));
    }
    let bytes = [b'x'; 64];
    each("write bulk of 0..64", Box::new(move |reply, i| reply.bulk(&bytes[..i % 64])));
    each("write bulk_int, 5 digits", Box::new(|reply, i| reply.bulk_int(i as i64)));
    each("write bulk_int, 10 digits", Box::new(|reply, i| reply.bulk_int(4_000_000_000 + i as i64)));
    each("write double 3.5", Box::new(|reply, i| reply.double(i as f64 + 0.5)));
    each("write double, 17 digits", Box::new(|reply, i| reply.double(1.0 / (i as f64 + 3.0))));
}

fn reading() {
    const COUNT: usize = 20_000;
    let mut reply = Reply::new(false);
    reply.array(COUNT);
    (0..COUNT).for_each(|i| reply.bulk(format!("member:{i}").as_bytes()));
    measure("read_frame, per bulk of an array", COUNT, || {
        assert!(matches!(black_box(read_frame(reply.as_bytes())), Ok(Some((Frame::Array(_), _)))));
    });
    measure("FrameEnd, per bulk of an array", COUNT, || {
        assert_eq!(black_box(FrameEnd::new().find(reply.as_bytes())), Ok(Some(reply.len())));
    });
}

fn main() {
    parsing();
    writing();
    reading();
}
