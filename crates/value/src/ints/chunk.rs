//! Chunks: 65,536 numbers as an array, as runs, or as a bitmap, whichever is smallest.
//!
//! - H1: an array has at most [`ARRAY_MAX`] items, runs are at most [`RUNS_MAX`]. No chunk is empty or full
//!   (the node is then [`Node::EMPTY`] or [`Node::FULL`]).
//! - H2: hysteresis: an array becomes a bitmap when it overflows, a bitmap an array below [`BITMAP_MIN`]. An
//!   array is checked for runs each time it has doubled. Runs are chosen only where they take half or less.
//!
//! Costs: look-ups O(log) in arrays and runs, O(1) in bitmaps; a change moves at most 8 KB; combining two
//! chunks touches at most 24 KB.

use super::node::{ARRAY_MAX, CHUNK, Content, Leaf, Node, Run, View};
use super::words::{self, NONE, Op, Words};

/// Most runs of a chunk.
const RUNS_MAX: usize = 512;
/// Bits below which a bitmap changes its form.
const BITMAP_MIN: u32 = 3072;
/// Items below which an array is not checked for runs.
const RUNS_FROM: usize = 64;
const WHOLE: u32 = 1 << CHUNK;

/// The smallest form for a bitmap's contents.
pub(super) fn encode(base: u64, bits: &Words) -> Node {
    encode_counted(base, bits, words::count(bits))
}

fn encode_counted(base: u64, bits: &Words, count: u32) -> Node {
    match count {
        0 => return Node::EMPTY,
        WHOLE => return Node::FULL,
        _ => {}
    }
    let runs = words::count_runs(bits) as usize;
    let plain = if count as usize <= ARRAY_MAX { count as usize * 2 } else { size_of::<Words>() };
    if runs <= RUNS_MAX && runs * 8 <= plain {
        return Node::leaf(base, CHUNK, &runs_of(bits, runs));
    }
    if count as usize <= ARRAY_MAX {
        let mut items = [0u16; ARRAY_MAX];
        let mut len = 0;
        words::each(bits, |low| {
            items[len] = low;
            len += 1;
        });
        return Node::leaf(base, CHUNK, &items[..len]);
    }
    Node::bitmap(base, bits, count)
}

fn runs_of(bits: &Words, count: usize) -> Vec<Run> {
    let mut runs = Vec::with_capacity(count);
    let mut from = words::next(bits, 0);
    while let Some(first) = from {
        let end = words::next_absent(bits, first);
        runs.push(Run { first, last: end.map_or(u16::MAX, |end| end - 1) });
        from = end.and_then(|end| words::next(bits, end));
    }
    runs
}

/// Sets the chunk's bits in `bits`.
fn add_to(leaf: Leaf<'_>, bits: &mut Words) {
    match leaf.content() {
        Content::Array(items) => items.iter().for_each(|&low| words::set(bits, low)),
        Content::Runs(runs) => {
            runs.iter().for_each(|run| words::with_range(Op::Or, bits, run.first, run.last));
        }
        Content::Bitmap(own, _) => bits.iter_mut().zip(own).for_each(|(bits, own)| *bits |= own),
        _ => unreachable!("a chunk"),
    }
}

fn expanded(leaf: Leaf<'_>) -> Words {
    let mut bits = NONE;
    add_to(leaf, &mut bits);
    bits
}

/// The smallest form of a chunk. Reads all of it.
pub(super) fn optimized(leaf: Leaf<'_>) -> Node {
    encode(leaf.base(), &expanded(leaf))
}

#[inline]
pub(super) fn contains(leaf: Leaf<'_>, low: u16) -> bool {
    match leaf.content() {
        Content::Array(items) => super::search::contains_low(items, low),
        Content::Runs(runs) => {
            let after = runs.partition_point(|run| run.first <= low);
            after > 0 && low <= runs[after - 1].last
        }
        Content::Bitmap(bits, _) => words::has(bits, low),
        _ => unreachable!("a chunk"),
    }
}

/// Adds a number that the chunk does not have.
pub(super) fn insert(node: &mut Node, low: u16) {
    let View::Leaf(leaf) = node.view() else { unreachable!("a chunk") };
    match leaf.content() {
        Content::Array(items) => {
            let len = items.len();
            if len == ARRAY_MAX || len >= RUNS_FROM && len.is_power_of_two() && looks_like_runs(items) {
                let mut bits = expanded(leaf);
                words::set(&mut bits, low);
                *node = encode(leaf.base(), &bits);
                return;
            }
            let at = items.partition_point(|&item| item < low);
            node.splice(at..at, &[low]);
        }
        Content::Runs(runs) => {
            if let Some((range, run)) = extended(runs, low) {
                match run.len() == WHOLE {
                    true => *node = Node::FULL,
                    false => node.splice(range, &[run]),
                }
                return;
            }
            if runs.len() >= RUNS_MAX || scattered(runs, leaf) {
                let mut bits = expanded(leaf);
                words::set(&mut bits, low);
                *node = encode(leaf.base(), &bits);
                return;
            }
            let at = runs.partition_point(|run| run.first < low);
            node.splice(at..at, &[Run { first: low, last: low }]);
        }
        _ => {
            let Some((bits, count)) = node.words_mut() else { unreachable!("a chunk") };
            words::set(bits, low);
            match count.checked_add(1) {
                Some(more) => *count = more,
                None => *node = Node::FULL,
            }
        }
    }
}

fn looks_like_runs(items: &[u16]) -> bool {
    let runs = 1 + items.windows(2).filter(|two| two[1] - two[0] > 1).count();
    runs * 8 <= items.len() * 2
}

/// Whether runs have become no better than an array (H2). Checked only now and then.
fn scattered(runs: &[Run], leaf: Leaf<'_>) -> bool {
    runs.len().is_power_of_two() && runs.len() >= 16 && leaf.len() < runs.len() as u64 * 2
}

/// The runs that a number joins or extends, and the resulting run.
fn extended(runs: &[Run], low: u16) -> Option<(std::ops::Range<usize>, Run)> {
    let after = runs.partition_point(|run| run.first < low);
    let before = runs[..after].last().filter(|run| u32::from(run.last) + 1 == u32::from(low));
    let next = runs.get(after).filter(|run| u32::from(low) + 1 == u32::from(run.first));
    match (before, next) {
        (Some(a), Some(b)) => Some((after - 1..after + 1, Run { first: a.first, last: b.last })),
        (Some(a), None) => Some((after - 1..after, Run { first: a.first, last: low })),
        (None, Some(b)) => Some((after..after + 1, Run { first: low, last: b.last })),
        (None, None) => None,
    }
}

/// Removes a number that the chunk has.
pub(super) fn remove(node: &mut Node, low: u16) {
    let View::Leaf(leaf) = node.view() else { unreachable!("a chunk") };
    let base = leaf.base();
    match leaf.content() {
        Content::Array(items) => {
            let at = items.partition_point(|&item| item < low);
            node.splice::<u16>(at..at + 1, &[]);
        }
        Content::Runs(runs) => {
            let at = runs.partition_point(|run| run.first <= low) - 1;
            let Run { first, last } = runs[at];
            let left = (first < low).then(|| Run { first, last: low - 1 });
            let right = (low < last).then(|| Run { first: low + 1, last });
            if left.is_some() && right.is_some() && (runs.len() >= RUNS_MAX || scattered(runs, leaf)) {
                let mut bits = expanded(leaf);
                words::clear(&mut bits, low);
                *node = encode(base, &bits);
                return;
            }
            match (left, right) {
                (Some(a), Some(b)) => node.splice(at..at + 1, &[a, b]),
                (Some(run), None) | (None, Some(run)) => node.splice(at..at + 1, &[run]),
                (None, None) => node.splice::<Run>(at..at + 1, &[]),
            }
        }
        _ => {
            let Some((bits, count)) = node.words_mut() else { unreachable!("a chunk") };
            words::clear(bits, low);
            *count -= 1;
            if u32::from(*count) < BITMAP_MIN {
                let bits = *bits;
                *node = encode(base, &bits);
            }
        }
    }
}

/// All numbers of a chunk but those from `first` to `last`.
pub(super) fn all_but(base: u64, first: u16, last: u16) -> Node {
    let left = (first > 0).then(|| Run { first: 0, last: first - 1 });
    let right = (last < u16::MAX).then(|| Run { first: last + 1, last: u16::MAX });
    let runs: Vec<Run> = left.into_iter().chain(right).collect();
    Node::leaf(base, CHUNK, &runs)
}

/// The numbers from `first` to `last`, which are not the whole chunk.
pub(super) fn range(base: u64, first: u16, last: u16) -> Node {
    if last - first < 4 {
        let items: Vec<u16> = (first..=last).collect();
        return Node::leaf(base, CHUNK, &items);
    }
    Node::leaf(base, CHUNK, &[Run { first, last }])
}

/// The chunk combined with a range.
pub(super) fn with_range(op: Op, leaf: Leaf<'_>, first: u16, last: u16) -> Node {
    let mut bits = expanded(leaf);
    words::with_range(op, &mut bits, first, last);
    encode(leaf.base(), &bits)
}

/// Combines two chunks of the same range of numbers.
pub(super) fn combine(op: Op, a: Leaf<'_>, b: Leaf<'_>) -> Node {
    let base = a.base();
    match (a.content(), b.content(), op) {
        (Content::Bitmap(a, _), Content::Bitmap(b, _), _) => {
            let mut out = NONE;
            let count = words::combine(op, a, b, &mut out);
            match (BITMAP_MIN..WHOLE).contains(&count) {
                true => Node::bitmap(base, &out, count),
                false => encode_counted(base, &out, count),
            }
        }
        (Content::Array(items), _, Op::And) => filtered(a, items, |low| contains(b, low)),
        (Content::Array(items), _, Op::AndNot) => filtered(a, items, |low| !contains(b, low)),
        (_, Content::Array(items), Op::And) => filtered(b, items, |low| contains(a, low)),
        (Content::Array(a), Content::Array(b), _) if a.len() + b.len() <= ARRAY_MAX => {
            merged(base, a, b, op == Op::Or)
        }
        (_, Content::Array(items), _) => {
            let mut bits = expanded(a);
            match op {
                Op::Or => items.iter().for_each(|&low| words::set(&mut bits, low)),
                Op::Xor => items.iter().for_each(|&low| words::toggle(&mut bits, low)),
                _ => items.iter().for_each(|&low| words::clear(&mut bits, low)),
            }
            encode(base, &bits)
        }
        (_, Content::Runs(runs), Op::Or | Op::Xor | Op::AndNot) => {
            let mut bits = expanded(a);
            runs.iter().for_each(|run| words::with_range(op, &mut bits, run.first, run.last));
            encode(base, &bits)
        }
        _ => {
            let mut out = NONE;
            let count = words::combine(op, &expanded(a), &expanded(b), &mut out);
            encode_counted(base, &out, count)
        }
    }
}

/// Merges two arrays, with their common items (`common`) or without.
fn merged(base: u64, a: &[u16], b: &[u16], common: bool) -> Node {
    match a.len() + b.len() {
        0..=128 => merged_in::<128>(base, a, b, common),
        129..=1024 => merged_in::<1024>(base, a, b, common),
        _ => merged_in::<ARRAY_MAX>(base, a, b, common),
    }
}

fn merged_in<const MAX: usize>(base: u64, a: &[u16], b: &[u16], common: bool) -> Node {
    let mut items = [0u16; MAX];
    let (mut i, mut j, mut len) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (a[i], b[j]);
        items[len] = x.min(y);
        len += usize::from(x != y || common);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    for &rest in a[i..].iter().chain(&b[j..]) {
        items[len] = rest;
        len += 1;
    }
    Node::leaf(base, CHUNK, &items[..len])
}

/// The kept items of an array; the array itself if all are kept.
fn filtered(array: Leaf<'_>, items: &[u16], keep: impl Fn(u16) -> bool) -> Node {
    // Clearing room for the longest array costs more than most arrays take.
    match items.len() {
        0..=128 => filtered_in::<128>(array, items, keep),
        129..=1024 => filtered_in::<1024>(array, items, keep),
        _ => filtered_in::<ARRAY_MAX>(array, items, keep),
    }
}

fn filtered_in<const MAX: usize>(array: Leaf<'_>, items: &[u16], keep: impl Fn(u16) -> bool) -> Node {
    let mut kept = [0u16; MAX];
    let mut len = 0;
    for &low in items {
        kept[len] = low;
        len += usize::from(keep(low));
    }
    if len == items.len() { array.share() } else { Node::leaf(array.base(), CHUNK, &kept[..len]) }
}

/// Number of elements that two chunks have in common.
pub(super) fn count_and(a: Leaf<'_>, b: Leaf<'_>) -> u64 {
    match (a.content(), b.content()) {
        (Content::Bitmap(a, _), Content::Bitmap(b, _)) => u64::from(words::count_and(a, b)),
        (Content::Array(items), _) => items.iter().filter(|&&low| contains(b, low)).count() as u64,
        (_, Content::Array(items)) => items.iter().filter(|&&low| contains(a, low)).count() as u64,
        (Content::Runs(runs), Content::Bitmap(bits, _)) | (Content::Bitmap(bits, _), Content::Runs(runs)) => {
            runs.iter().map(|run| u64::from(words::count_range(bits, run.first, run.last))).sum()
        }
        _ => u64::from(words::count_and(&expanded(a), &expanded(b))),
    }
}

/// Number of smaller elements.
pub(super) fn rank(leaf: Leaf<'_>, low: u16) -> u64 {
    match leaf.content() {
        Content::Array(items) => items.partition_point(|&item| item < low) as u64,
        Content::Runs(runs) => {
            let below = runs.iter().take_while(|run| run.first < low);
            below.map(|run| u64::from(run.len().min(u32::from(low) - u32::from(run.first)))).sum()
        }
        Content::Bitmap(bits, _) if low > 0 => u64::from(words::count_range(bits, 0, low - 1)),
        _ => 0,
    }
}

/// The element with that many smaller ones.
pub(super) fn nth(leaf: Leaf<'_>, rank: u64) -> Option<u16> {
    match leaf.content() {
        Content::Array(items) => items.get(rank as usize).copied(),
        Content::Runs(runs) => {
            let mut left = rank as u32;
            for run in runs {
                if left < run.len() {
                    return Some(run.first + left as u16);
                }
                left -= run.len();
            }
            None
        }
        Content::Bitmap(bits, _) => words::nth(bits, rank as u32),
        _ => unreachable!("a chunk"),
    }
}

/// The first number from `low` on that the chunk has.
pub(super) fn next(leaf: Leaf<'_>, low: u16) -> Option<u16> {
    match leaf.content() {
        Content::Array(items) => items.get(items.partition_point(|&item| item < low)).copied(),
        Content::Runs(runs) => {
            runs.get(runs.partition_point(|run| run.last < low)).map(|run| run.first.max(low))
        }
        Content::Bitmap(bits, _) => words::next(bits, low),
        _ => unreachable!("a chunk"),
    }
}

/// The first number from `low` on that the chunk has not.
pub(super) fn next_absent(leaf: Leaf<'_>, low: u16) -> Option<u16> {
    match leaf.content() {
        Content::Array(items) => {
            let mut absent = low;
            for &item in &items[items.partition_point(|&item| item < low)..] {
                if item != absent {
                    break;
                }
                absent = absent.checked_add(1)?;
            }
            Some(absent)
        }
        Content::Runs(runs) => {
            let run = runs.get(runs.partition_point(|run| run.last < low));
            run.filter(|run| run.first <= low).map_or(Some(low), |run| run.last.checked_add(1))
        }
        Content::Bitmap(bits, _) => words::next_absent(bits, low),
        _ => unreachable!("a chunk"),
    }
}

/// The last number.
pub(super) fn last(leaf: Leaf<'_>) -> Option<u16> {
    match leaf.content() {
        Content::Array(items) => items.last().copied(),
        Content::Runs(runs) => runs.last().map(|run| run.last),
        Content::Bitmap(bits, _) => words::last(bits),
        _ => unreachable!("a chunk"),
    }
}

/// Asserts H1 and H2.
pub(super) fn check_invariants(leaf: Leaf<'_>) {
    match leaf.content() {
        Content::Runs(runs) => assert!(runs.len() <= RUNS_MAX + 1),
        Content::Bitmap(_, count) => assert!((BITMAP_MIN..WHOLE).contains(&count)),
        _ => {}
    }
}
