//! Prints the cost of set algebra, and the memory, for sets of integers of different densities.
//!
//! `cargo run --release -p value --example measure_ints [shapes]`
//!
//! Times are means of the thread's running time. A request counts as an idle server would answer it, with the
//! reply's encoding.

use resp::Reply;
use std::hint::black_box;
use std::ops::ControlFlow::{self, Continue};
use value::set::algebra;
use value::{Elem, Set};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Counts the elements it receives.
struct Counter<'c>(&'c mut usize);

impl<'a> algebra::Taker<'a> for Counter<'_> {
    fn take(&mut self, elem: Elem<'a>) -> ControlFlow<()> {
        black_box(elem);
        *self.0 += 1;
        Continue(())
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("shapes") {
        return all_shapes();
    }
    blacklist("random u32", |i| i64::from(mix(i) as u32));
    blacklist("ids below 10M", |i| (mix(i) % 10_000_000) as i64);
    blacklist("dense ids", |i| (mix(i) % 150_000) as i64);
    large("1M - 1M, random u32", |i| i64::from(mix(i) as u32));
    large("1M - 1M, in 0..10M", |i| (mix(i) % 10_000_000) as i64);
    all_shapes();
    println!("one million members             insert ns  contains ns  bytes per member");
    memory("dense, in order", |i| i as i64);
    memory("dense, shuffled", |i| (mix_below(i, 20) % 1_000_000) as i64);
    memory("medium, in 0..10M", |i| (mix(i) % 10_000_000) as i64);
    memory("medium, in 0..100M", |i| (mix(i) % 100_000_000) as i64);
    memory("random u32", |i| i64::from(mix(i) as u32));
    memory("random u64", |i| mix(i) as i64);
    memory("snowflakes", |i| (1_700_000_000_000 + i as i64 / 3) << 22 | (mix(i) & 4095) as i64);
}

fn mix(i: u64) -> u64 {
    let z = (i ^ i >> 30).wrapping_add(0x1234_5678).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// A permutation of the numbers of that many bits.
fn mix_below(i: u64, bits: u32) -> u64 {
    (i.wrapping_mul(0x9E37_79B1) ^ i >> 7).wrapping_mul(0x85EB_CA6B) & ((1 << bits) - 1)
}

/// Time this thread was running.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The least of some times per round, which leaves out the neighbours on the machine.
fn least_ns(rounds: u32, mut f: impl FnMut()) -> f64 {
    let one = |f: &mut dyn FnMut()| {
        let start = cpu_ns();
        (0..rounds).for_each(|_| f());
        (cpu_ns() - start) as f64 / f64::from(rounds)
    };
    (0..7).map(|_| one(&mut f)).fold(f64::MAX, f64::min)
}

fn set(numbers: impl Iterator<Item = i64>) -> Set {
    let mut set = Set::new();
    for n in numbers {
        let elem = Elem::Int(n);
        set.insert_elem(elem, elem.hash());
    }
    set
}

fn write(out: &mut Reply, elem: Elem<'_>) {
    match elem {
        Elem::Int(n) => out.bulk_int(n),
        Elem::Bytes(bytes) => out.bulk(bytes),
    }
}

/// Ten sets of 2,500 minus one of 100,000.
fn blacklist(name: &str, number: impl Fn(u64) -> i64) {
    let large = set((0..100_000).map(&number));
    let small: Vec<Set> =
        (0..10).map(|s| set((99_000 + s * 2500..101_500 + s * 2500).map(&number))).collect();
    let mut out = Reply::new(false);
    let mut found = 0;
    let ns = least_ns(20, || {
        out = Reply::new(false);
        found = 0;
        for set in &small {
            let _ = algebra::diff(set, &[&large], &mut |_| Continue(()), &mut |elem| {
                write(&mut out, elem);
                found += 1;
                Continue(())
            });
        }
        black_box(out.len());
    });
    let probe = least_ns(20, || {
        for set in &small {
            let _ = algebra::diff(set, &[&large], &mut |_| Continue(()), &mut |elem| {
                black_box(elem);
                Continue(())
            });
        }
    });
    let encode = least_ns(20, || {
        out = Reply::new(false);
        small.iter().for_each(|set| set.iter().for_each(|elem| write(&mut out, elem)));
        black_box(out.len());
    });
    let per_s = |ns: f64| 1e9 / ns;
    println!(
        "{name}: 10 x 2,500 minus 100,000 ({found} members): {:.0} requests/s, unencoded {:.0}, encoding alone {:.0}",
        per_s(ns),
        per_s(probe),
        per_s(encode)
    );
}

fn large(name: &str, number: impl Fn(u64) -> i64) {
    let a = set((0..1_000_000).map(&number));
    let b = set((500_000..1_500_000).map(&number));
    let time = |f: &dyn Fn()| least_ns(1, f) / 1e6;
    let stored = time(&|| drop(black_box(Set::difference(&a, &[&b], &mut |_| Continue(())))));
    let inter = time(&|| drop(black_box(Set::intersection(&[&a, &b], &mut |_| Continue(())))));
    let union = time(&|| drop(black_box(Set::union(&[&a, &b], &mut |_| Continue(())))));
    let walked = time(&|| {
        let mut sum = 0;
        let _ = algebra::diff(&a, &[&b], &mut |_| Continue(()), &mut |elem| {
            sum += elem.len();
            Continue(())
        });
        black_box(sum);
    });
    println!(
        "{name}: stored {stored:.3} ms, inter {inter:.3} ms, union {union:.3} ms, walked {walked:.2} ms"
    );
}

fn all_shapes() {
    shapes("random u32", |i| i64::from(mix(i) as u32));
    shapes("random i64", |i| mix(i) as i64);
    shapes("in 0..10M", |i| (mix(i) % 10_000_000) as i64);
}

/// One set minus others of several sizes, written at once and kept; single look-ups.
fn shapes(name: &str, number: impl Fn(u64) -> i64) {
    let some = |from: u64, count: u64| set((from..from + count).map(&number));
    let (x, large) = (some(0, 100_000), some(0, 1_000_000));
    let few = some(999_900, 2_500);
    let medium: Vec<Set> = (0..20).map(|i| some(999_000 + i * 20_000, 20_000)).collect();
    let refs =
        |sets: &[Set], times: usize| -> Vec<Set> { (0..times).flat_map(|_| sets.iter().cloned()).collect() };
    println!(
        "{name}: ns per member of the first set     at once   kept and read    arrays merged          answer"
    );
    minus("2,500 - 100,000", &few, &refs(std::slice::from_ref(&x), 1));
    minus("2,500 - 1M", &few, &refs(std::slice::from_ref(&large), 1));
    minus("20,000 - 100,000", &medium[0], &refs(std::slice::from_ref(&x), 1));
    minus("20,000 - 1M", &medium[0], &refs(std::slice::from_ref(&large), 1));
    minus("100,000 - 20,000", &x, &refs(&medium[..1], 1));
    minus("100,000 - 5 x 20,000", &x, &refs(&medium[..5], 1));
    minus("100,000 - 200 x 20,000", &x, &refs(&medium, 10));
    minus("100,000 - 1M", &some(950_000, 100_000), &refs(std::slice::from_ref(&large), 1));
    minus("1M - 1M", &large, &[some(500_000, 1_000_000)]);
    for set in [&x, &large] {
        let numbers: Vec<i64> = (0..10_000).map(|i| number(mix(i) % 2_000_000)).collect();
        let ns = median_ns(20, || {
            let found = |&&n: &&i64| set.contains_elem(Elem::Int(n), Elem::Int(n).hash());
            black_box(numbers.iter().filter(found).count());
        });
        println!("  one look-up in {:<29} {:>7.1}", set.len(), ns / 10_000.0);
    }
}

fn minus(name: &str, first: &Set, others: &[Set]) {
    let others: Vec<&Set> = others.iter().collect();
    let rounds = (300_000 / (first.len() * others.len())).max(1) as u32;
    let mut counts = [0, 0];
    let at_once = median_ns(rounds, || {
        counts[0] = 0;
        let _ = algebra::diff(first, &others, &mut |_| Continue(()), &mut |elem| {
            black_box(elem);
            counts[0] += 1;
            Continue(())
        });
    });
    let kept = median_ns(rounds, || {
        counts[1] = 0;
        let Some(mut answer) = algebra::diff_answer(first, &others, &mut |_| Continue(())) else { return };
        answer.take(&mut Counter(&mut counts[1]));
    });
    assert_eq!(counts[0], counts[1]);
    let each = |ns: f64| ns / first.len() as f64;
    let merge = merged(first, others[0], rounds);
    println!(
        "  {name:<40} {:>11.2} {:>15.2} {:>15.2} {:>15}",
        each(at_once),
        each(kept),
        each(merge),
        counts[0]
    );
}

/// The cost of walking two sorted arrays of the same numbers side by side: the least a merge could take.
fn merged(first: &Set, other: &Set, rounds: u32) -> f64 {
    let sorted = |set: &Set| -> Vec<i64> {
        set.iter().filter_map(|elem| if let Elem::Int(n) = elem { Some(n) } else { None }).collect()
    };
    let (a, b) = (sorted(first), sorted(other));
    median_ns(rounds, || {
        let (mut i, mut j, mut common) = (0, 0, 0);
        while i < a.len() && j < b.len() {
            let (x, y) = (a[i], b[j]);
            common += u64::from(x == y);
            i += usize::from(x <= y);
            j += usize::from(y <= x);
        }
        black_box(common);
    })
}

/// The median of some times per round.
fn median_ns(rounds: u32, mut f: impl FnMut()) -> f64 {
    let mut times: Vec<u64> = (0..9)
        .map(|_| {
            let start = cpu_ns();
            (0..rounds).for_each(|_| f());
            cpu_ns() - start
        })
        .collect();
    times.sort_unstable();
    times[4] as f64 / f64::from(rounds)
}

fn memory(name: &str, number: impl Fn(u64) -> i64) {
    let n = 1_000_000;
    let start = cpu_ns();
    let set = set((0..n).map(&number));
    let insert = (cpu_ns() - start) as f64 / n as f64;
    let contains = least_ns(1, || {
        let mut found = 0;
        for i in 0..n {
            let elem = Elem::Int(number(mix(i) % n));
            found += u64::from(set.contains_elem(elem, elem.hash()));
        }
        assert_eq!(found, n);
    }) / n as f64;
    let bytes = set.mem_bytes() as f64 / set.len() as f64;
    println!("{name:<32} {insert:>8.0}  {contains:>11.0}  {bytes:>16.2}");
}
