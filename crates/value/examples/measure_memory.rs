//! Prints bytes per element of large collections: as handed out by the allocator, and as resident in memory.
//!
//! `cargo run --release -p value --example measure_memory [elements]`
//!
//! The data are those of `evenkeel-bench -- memory`. Each kind is measured in its own process, so that it
//! does not grow into memory another one freed.

use std::process::Command;
use std::time::Duration;
use tikv_jemalloc_ctl::{epoch, stats};
use value::{Hash, List, Set, ZSet};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const KINDS: [&str; 6] = ["set16", "u32", "hash", "zset", "zset6", "list"];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    if let Some(kind) = args.get(2) {
        return measure(kind, n);
    }
    println!("{n} elements; bytes per element  own account  allocated  active  resident");
    for kind in KINDS {
        let ran = Command::new(&args[0]).args([&n.to_string(), kind]).status();
        assert!(ran.is_ok_and(|status| status.success()));
    }
}

fn measure(kind: &str, n: u64) {
    let before = (figures(), resident());
    let text = |i: u64| format!("{:016x}", mix(i)).into_bytes();
    let (mut set, mut hash, mut zset, mut list) = (Set::new(), Hash::new(), ZSet::new(), List::new());
    for i in 0..n {
        match kind {
            "set16" => drop(set.insert(&text(i))),
            "u32" => drop(set.insert((mix(i) >> 32).to_string().as_bytes())),
            "hash" => drop(hash.insert(&text(i)[..10], &text(!i)[..10])),
            "zset" => drop(zset.insert(&text(i), (mix(i) >> 32) as f64)),
            "zset6" => drop(zset.insert(&text(i), (mix(i ^ 77) % 1_000_000) as f64)),
            _ => list.push_back(&text(i)[..10]),
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    let after = (figures(), resident());
    let per = |bytes: usize| bytes as f64 / n as f64;
    let own = set.mem_bytes() + hash.mem_bytes() + zset.mem_bytes() + list.mem_bytes();
    println!(
        "{kind:<32} {:9.1} {:9.1} {:9.1} {:9.1}",
        per(own),
        per(after.0.0 - before.0.0),
        per(after.0.1 - before.0.1),
        per(after.1 - before.1)
    );
}

/// Bytes allocated and bytes in active pages.
fn figures() -> (usize, usize) {
    epoch::advance().expect("statistics are compiled in");
    let read = |figure: Result<usize, tikv_jemalloc_ctl::Error>| figure.expect("statistics are compiled in");
    (read(stats::allocated::read()), read(stats::active::read()))
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
