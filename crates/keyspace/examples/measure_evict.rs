//! Measures what eviction adds to a look-up, an insertion and an eviction: `cargo run --release -p keyspace
//! --example measure_evict`.
//!
//! Under `valgrind --tool=callgrind`, the instructions of `look_up` with and without eviction show what a GET
//! pays.

use keyspace::{Evicted, Keyspace, Policy, View};
use std::time::Instant;

const NOW: u64 = 1 << 40;

fn key(n: u64) -> String {
    format!("key:{n:036}")
}

fn put(keyspace: &Keyspace, n: u64) {
    let key = key(n);
    let mut view = View::locked_one(keyspace, key.as_bytes(), 0, NOW);
    view.put_string(key.as_bytes(), &[b'v'; 40], None);
    view.finish();
}

#[inline(never)]
fn look_up(keyspace: &Keyspace, keys: &[String]) -> usize {
    let mut found = 0;
    for key in keys {
        let view = View::locked_one(keyspace, key.as_bytes(), 0, NOW);
        found += view.value(key.as_bytes()).map_or(0, |_| 1);
        view.finish();
    }
    found
}

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let keyspace = Keyspace::new(1);
    let began = Instant::now();
    (0..count).for_each(|n| put(&keyspace, n));
    let each = |ns: u128, n: u64| ns as f64 / n as f64;
    println!("{count} keys, off: put {:.0} ns", each(began.elapsed().as_nanos(), count));
    let keys: Vec<String> = (0..count / 4).map(|n| key(n.wrapping_mul(7_919) % count)).collect();
    for round in 0..3 {
        for policy in [Policy::None, Policy::Adaptive] {
            keyspace.set_eviction(0, policy, 5);
            keyspace.note_fullness(0, 1.0);
            let began = Instant::now();
            let found = look_up(&keyspace, &keys);
            let ns = each(began.elapsed().as_nanos(), keys.len() as u64);
            println!("round {round}, {policy:?}: look-up {ns:.1} ns, {found} found");
            while keyspace.feed_accesses() {}
        }
    }
    let (began, fresh) = (Instant::now(), count / 10);
    for n in 0..fresh {
        put(&keyspace, count + n);
        while keyspace.len(0) as u64 > count {
            assert_ne!(keyspace.evict(0, NOW, &mut |_| ()), Evicted::Nothing);
        }
    }
    println!("put and evict {:.0} ns", each(began.elapsed().as_nanos(), fresh));
}
