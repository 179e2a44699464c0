//! Prints time and memory per element of sets and hashes next to std's `HashSet`.
//!
//! `cargo run --release -p value --example measure [elements]`
//!
//! Memory is the allocator's blocks, with their size classes. Times are means of the thread's running time.
//! Look-ups and removals go in an order unrelated to insertion.

#![allow(clippy::undocumented_unsafe_blocks)]

use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashSet;
use std::hint::black_box;
use std::ops::ControlFlow::Continue;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::time::Instant;
use tikv_jemallocator::Jemalloc;
use value::set::algebra;
use value::{Elem, Hash, Set};

struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = unsafe { Jemalloc.alloc(layout) };
        BYTES.fetch_add(unsafe { tikv_jemallocator::usable_size(block) } as isize, Relaxed);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.fetch_sub(unsafe { tikv_jemallocator::usable_size(block) } as isize, Relaxed);
        unsafe { Jemalloc.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("blacklist") {
        return blacklist();
    }
    let n: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    println!("{n} elements; ns per operation");
    let strings: Vec<Vec<u8>> = (0..n as u64).map(|i| format!("{:016x}", mix(i)).into_bytes()).collect();
    let integers: Vec<Vec<u8>> = (0..n as u64).map(|i| (mix(i) as u32).to_string().into_bytes()).collect();
    set("set, 16-byte strings", &strings);
    set("set, random u32", &integers);
    std_set(&strings);
    hash(n);
    for n in [300_000, 500_000, 2_000_000, 4_000_000] {
        if n <= strings.len() {
            bytes(&strings[..n], &integers[..n]);
        }
    }
    blacklist();
}

fn mix(i: u64) -> u64 {
    let z = (i ^ i >> 30).wrapping_add(0x1234_5678).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn shuffled<T: Clone>(items: &[T]) -> Vec<T> {
    let mut items = items.to_vec();
    for i in (1..items.len()).rev() {
        items.swap(i, (mix(i as u64) % (i as u64 + 1)) as usize);
    }
    items
}

fn time(name: &str, n: usize, f: impl FnOnce()) {
    let start = cpu_ns();
    f();
    println!("  {name:<28} {:>9.1}", (cpu_ns() - start) as f64 / n as f64);
}

/// Time this thread was running, so that neighbours on a busy machine count less. Outside Linux: the clock.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ran = stat.as_deref().and_then(|s| s.split(' ').next()).and_then(|ns| ns.parse().ok());
    ran.unwrap_or_else(stdx::clock::mono_ns)
}

fn set(title: &str, texts: &[Vec<u8>]) {
    println!("{title}");
    let n = texts.len();
    let order = shuffled(texts);
    let before = BYTES.load(Relaxed);
    let mut set = Set::new();
    time("insert", n, || {
        texts.iter().for_each(|t| {
            black_box(set.insert(t));
        })
    });
    println!(
        "  bytes per element            {:>9.1}",
        (BYTES.load(Relaxed) - before) as f64 / set.len() as f64
    );
    println!("  the set's own account        {:>9.1}", set.mem_bytes() as f64 / set.len() as f64);
    time("contains", n, || assert!(order.iter().all(|t| set.contains(t))));
    time("contains, absent", n, || {
        let absent = order.iter().filter(|t| set.contains(&[&t[..], b"!"].concat())).count();
        assert_eq!(absent, 0);
    });
    time("iterate", set.len(), || {
        black_box(set.iter().map(|e| if let Elem::Int(n) = e { n as usize } else { e.len() }).sum::<usize>());
    });
    time("nth", n / 10, || {
        (0..n / 10).for_each(|i| {
            black_box(set.nth((mix(i as u64) as usize) % set.len()));
        })
    });
    time("clone and drop", 1000, || (0..1000).for_each(|_| drop(black_box(set.clone()))));
    let touches = 1000;
    let mut kept = Vec::with_capacity(touches);
    let mut spent = Vec::with_capacity(touches);
    for text in order.iter().take(touches) {
        kept.push(set.clone());
        let start = Instant::now();
        set.remove(text);
        spent.push(start.elapsed().as_nanos());
        set.insert(text);
    }
    spent.sort_unstable();
    println!("  first touch under a clone    {:>9} (median)", spent[touches / 2]);
    drop(kept);
    let snapshot = set.clone();
    let mut slowest = 0;
    time("remove + insert, clone held", n, || {
        for text in &order {
            let start = Instant::now();
            set.remove(text);
            set.insert(text);
            slowest = slowest.max(start.elapsed().as_nanos());
        }
    });
    println!("    slowest                    {slowest:>9}");
    drop(snapshot);
    time("remove", n, || {
        order.iter().for_each(|t| {
            black_box(set.remove(t));
        })
    });
    let set: Set = texts.iter().collect();
    let n = set.len();
    time("drop", n, || drop(set));
}

fn std_set(texts: &[Vec<u8>]) {
    println!("std HashSet<[u8; 16]>, SipHash");
    let n = texts.len();
    let keys: Vec<[u8; 16]> = texts.iter().filter_map(|t| t[..].try_into().ok()).collect();
    let order = shuffled(&keys);
    let before = BYTES.load(Relaxed);
    let mut set = HashSet::new();
    time("insert", n, || {
        keys.iter().for_each(|k| {
            black_box(set.insert(*k));
        })
    });
    println!(
        "  bytes per element            {:>9.1}",
        (BYTES.load(Relaxed) - before) as f64 / set.len() as f64
    );
    time("contains", n, || assert!(order.iter().all(|k| set.contains(k))));
    time("iterate", n, || {
        black_box(set.iter().map(|k| k[0] as usize).sum::<usize>());
    });
    time("clone", 1, || drop(black_box(set.clone())));
    time("remove", n, || {
        order.iter().for_each(|k| {
            black_box(set.remove(k));
        })
    });
}

fn hash(n: usize) {
    println!("hash, 10-byte fields and values");
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = (0..n as u64)
        .map(|i| {
            let text = format!("{:020x}", u128::from(mix(i)) * 0xFFFF_FFFF);
            (text.as_bytes()[text.len() - 10..].to_vec(), text.as_bytes()[..10].to_vec())
        })
        .collect();
    let order = shuffled(&pairs);
    let before = BYTES.load(Relaxed);
    let mut hash = Hash::new();
    time("insert", n, || {
        pairs.iter().for_each(|(f, v)| {
            black_box(hash.insert(f, v));
        })
    });
    println!(
        "  bytes per element            {:>9.1}",
        (BYTES.load(Relaxed) - before) as f64 / hash.len() as f64
    );
    time("get", n, || assert!(order.iter().all(|(f, _)| hash.get(f).is_some())));
    time("overwrite", n, || {
        order.iter().for_each(|(f, v)| {
            black_box(hash.insert(f, v));
        })
    });
    time("iterate", hash.len(), || {
        black_box(hash.iter().map(|(f, v)| f.len() + v.len()).sum::<usize>());
    });
    time("set_expire", n, || {
        order.iter().enumerate().for_each(|(i, (f, _))| {
            black_box(hash.set_expire(f, Some(mix(i as u64) >> 20)));
        })
    });
    println!(
        "  bytes per element            {:>9.1}",
        (BYTES.load(Relaxed) - before) as f64 / hash.len() as f64
    );
    let half = u64::MAX >> 21;
    let len = hash.len();
    let mut removed = 0;
    time("remove_expired, by 100", len / 2, || {
        loop {
            let n = hash.remove_expired(half, 100, &mut |_| {});
            removed += n;
            if n == 0 {
                break;
            }
        }
    });
    println!("    removed {removed} of {len}");
    time("remove", n, || {
        order.iter().for_each(|(f, _)| {
            black_box(hash.remove(f));
        })
    });
}

fn bytes(strings: &[Vec<u8>], integers: &[Vec<u8>]) {
    let per = |texts: &[Vec<u8>]| {
        let before = BYTES.load(Relaxed);
        let set: Set = texts.iter().collect();
        (BYTES.load(Relaxed) - before) as f64 / set.len() as f64
    };
    println!(
        "{} elements: {:.1} bytes per string, {:.1} per u32",
        strings.len(),
        per(strings),
        per(integers)
    );
}

/// Ten sets of 2,500 minus one of 100,000, random u32: the result of SDIFF, without encoding.
fn blacklist() {
    let text = |i: u64| (mix(i) as u32).to_string();
    let large: Set = (0..100_000).map(text).collect();
    let small: Vec<Set> =
        (0..10).map(|s| (99_000 + s * 2500..101_500 + s * 2500).map(text).collect()).collect();
    let rounds = 200;
    let mut found = 0;
    let start = cpu_ns();
    for _ in 0..rounds {
        for set in &small {
            let _ = algebra::diff(set, &[&large], &mut |_| Continue(()), &mut |_| {
                found += 1;
                Continue(())
            });
        }
    }
    let each = (cpu_ns() - start) as f64 / f64::from(rounds);
    println!("blacklist: {:.0} requests/s, {} members each", 1e9 / each, found / rounds);
    let start = cpu_ns();
    for _ in 0..rounds {
        for set in &small {
            black_box(algebra::diff_answer(set, &[&large], &mut |_| Continue(())));
        }
    }
    let each = (cpu_ns() - start) as f64 / f64::from(rounds);
    println!("blacklist, kept: {:.0} requests/s", 1e9 / each);
}
