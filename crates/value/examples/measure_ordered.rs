//! Prints the cost of lists, sorted sets and strings: nanoseconds per operation and allocated bytes per
//! element.
//!
//! `cargo run --release -p value --example measure_ordered [elements]`

use std::collections::BTreeSet;
use std::hint::black_box;

use value::{List, ScoreBound, Str, ZSet};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    println!("{n} elements");
    std_btree(n);
    lists(n);
    sorted_sets(n);
    strings();
}

/// The figures of std's B-tree on this machine, to compare with.
fn std_btree(n: usize) {
    let key = |i: usize| (random(i as u64), random(i as u64 ^ 1));
    let mut set = BTreeSet::new();
    let insert = time(n, |i| set.insert(key(i)));
    let get = time(n, |i| set.contains(&key(random(i as u64 ^ 0x5eed) as usize % n)));
    let remove = time(n, |i| set.remove(&key(i)));
    println!("std BTreeSet of 16 bytes: insert {insert:.0} ns, get {get:.0} ns, remove {remove:.0} ns");
}

fn lists(n: usize) {
    for (what, text) in [("8 bytes", 8usize), ("16 bytes", 16), ("integers", 0)] {
        let texts: Vec<Vec<u8>> = (0..n)
            .map(|i| match text {
                0 => (random(i as u64) % 1_000_000).to_string().into_bytes(),
                len => format!("{:016x}", random(i as u64)).into_bytes()[..len].to_vec(),
            })
            .collect();
        let before = allocated();
        let mut list = List::new();
        let push = time(n, |i| list.push_back(&texts[i]));
        let bytes = (allocated() - before) as f64 / n as f64;
        println!("list, {what}: push_back {push:.0} ns, {bytes:.1} B/element");
        if text == 16 {
            list_operations(n, list, &texts);
        }
    }
}

fn list_operations(n: usize, mut list: List, texts: &[Vec<u8>]) {
    let at = |i: usize, n: usize| random(i as u64 ^ 0x5eed) as usize % n;
    let rows = [
        (
            "get",
            time(n, |i| {
                list.get(at(i, n));
            }),
        ),
        ("iterate", time_all(n, || list.iter().map(|e| e.len()).sum::<usize>())),
        ("queue push+pop", {
            time(n, |i| {
                list.push_back(&texts[i]);
                list.pop_front();
            })
        }),
        ("insert middle", time(n / 4, |i| list.insert(at(i, n), &texts[i]))),
        ("remove middle", time(n / 4, |i| list.remove(at(i, n)))),
        ("set", time(n, |i| list.set(at(i, n), &texts[i]))),
        ("clone", time(n, |_| list.clone())),
        ("first touch of a clone: set", {
            time(1000, |i| {
                let old = list.clone();
                list.set(at(i, n), b"touched");
                drop(old);
            })
        }),
        ("snapshot held: set", {
            let old = list.clone();
            let ns = time(n / 4, |i| list.set(at(i, n), &texts[i]));
            drop(old);
            ns
        }),
        ("split + append", {
            time(10_000, |i| {
                let right = list.split_off(at(i, n));
                list.append(right);
            })
        }),
        ("push_front", time(n, |i| list.push_front(&texts[i]))),
        ("pop_back", time(n, |_| list.pop_back())),
        ("remove_range(10)", time(10_000, |i| list.remove_range(at(i, n / 2)..at(i, n / 2) + 10))),
        ("LPUSH + LTRIM 0 999", {
            let mut recent = List::new();
            time(n, |i| {
                recent.push_front(&texts[i]);
                recent.remove_range(1000..usize::MAX);
            })
        }),
        ("drop", time_all(n, || list.clear())),
    ];
    rows.iter().for_each(|(what, ns)| println!("    {what:<28} {ns:8.1} ns"));
}

fn sorted_sets(n: usize) {
    let members: Vec<Vec<u8>> = (0..n).map(|i| format!("{:016x}", random(i as u64)).into_bytes()).collect();
    let fraction = |i: usize| random(i as u64 ^ 77) as f64 / 1e9;
    let scores: [(&str, &dyn Fn(usize) -> f64); 3] = [
        ("fractions", &fraction),
        ("integers below 1e6", &|i| (random(i as u64 ^ 77) % 1_000_000) as f64),
        ("all zero", &|_| 0.0),
    ];
    for (what, score) in scores {
        let before = allocated();
        let mut set = ZSet::new();
        let insert = time(n, |i| set.insert(&members[i], score(i)));
        let bytes = (allocated() - before) as f64 / n as f64;
        let (order, by_member) = set.shape();
        let (order, by_member) = (order as f64 / n as f64, by_member as f64 / n as f64);
        println!(
            "sorted set, {what}: insert {insert:.0} ns, {bytes:.1} B/element ({order:.1} order, {by_member:.1} members)"
        );
        sorted_set_operations(n, &mut set, &members, score);
    }
}

fn sorted_set_operations(n: usize, set: &mut ZSet, members: &[Vec<u8>], score: &dyn Fn(usize) -> f64) {
    let at = |i: usize, n: usize| random(i as u64 ^ 0x5eed) as usize % n;
    let rows = [
        ("score", time(n, |i| set.score(&members[at(i, n)]))),
        ("rank", time(n, |i| set.rank(&members[at(i, n)]))),
        ("nth", time(n, |i| set.nth(at(i, n)))),
        ("rank_lower by score", { time(n, |i| set.rank_lower(&ScoreBound::Incl(score(at(i, n))))) }),
        ("iterate", time_all(n, || set.iter().map(|m| m.1).sum::<f64>())),
        ("range of 10", time(n / 4, |i| set.iter_from(at(i, n)).take(10).count())),
        ("new score", { time(n, |i| set.insert(&members[at(i, n)], random(i as u64 ^ 99) as f64 / 1e9)) }),
        ("snapshot held: new score", {
            let old = set.clone();
            let ns = time(n / 4, |i| set.insert(&members[at(i, n)], random(i as u64 ^ 55) as f64 / 1e9));
            drop(old);
            ns
        }),
        ("first touch of a clone", {
            time(1000, |i| {
                let old = set.clone();
                set.insert(&members[at(i, n)], i as f64);
                drop(old);
            })
        }),
        ("from_sorted", { time_all(n, || ZSet::from_sorted(set.iter())) }),
        ("remove_rank_range(10 %)", time_all(n / 10, || set.remove_rank_range(0..n / 10))),
        ("remove", time(n / 2, |i| set.remove(&members[i]))),
        ("drop", time_all(set.len(), || set.clear())),
    ];
    rows.iter().for_each(|(what, ns)| println!("    {what:<28} {ns:8.1} ns"));
}

fn strings() {
    let mut string = Str::from_slice(&vec![b'x'; 100 << 20]);
    let append = time(1_000_000, |_| string.append(b"0123456789abcdef"));
    let mut old = Vec::new();
    let shared = time(10_000, |_| {
        old.push(string.clone());
        string.append(b"0123456789abcdef");
    });
    println!("string of 100 MB: append 16 {append:.1} ns, after a clone {shared:.0} ns");
    drop(old);
    let write = time(1_000_000, |i| string.write_at(random(i as u64) as usize % (100 << 20), b"0123456789"));
    let copied = time_all(100 << 20, || string.as_ref().to_vec());
    println!(
        "    write_at {write:.0} ns, copy {copied:.3} ns/byte, drop {:.0} us",
        time_all(1000, || string = Str::new())
    );
    let before = allocated();
    let mut sparse = Str::new();
    let bit = time_all(1, || sparse.set_bit(4_000_000_000, true));
    println!(
        "SETBIT 4e9: {bit:.0} ns, {} B, clone {:.1} ns",
        allocated() - before,
        time(1000, |_| sparse.clone())
    );
    let mut flat = Str::from_slice(&[b'x'; 1000]);
    println!(
        "SETBIT in 1000 bytes: {:.1} ns",
        time(1_000_000, |i| flat.set_bit(i as u64 % 8000, i % 3 == 0))
    );
}

/// Mean nanoseconds of `n` calls.
fn time<R>(n: usize, mut f: impl FnMut(usize) -> R) -> f64 {
    time_all(n, || {
        for i in 0..n {
            black_box(f(i));
        }
    })
}

/// Nanoseconds of one call, divided by `n`.
fn time_all<R>(n: usize, f: impl FnOnce() -> R) -> f64 {
    let start = cpu_ns();
    black_box(f());
    (cpu_ns() - start) as f64 / n.max(1) as f64
}

/// Time this thread has been running, so that neighbours on the machine count less.
fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn random(i: u64) -> u64 {
    let mut z = i.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 32)
}

fn allocated() -> usize {
    tikv_jemalloc_ctl::epoch::advance().expect("statistics are compiled in");
    tikv_jemalloc_ctl::stats::allocated::read().expect("statistics are compiled in")
}
