//! The elements of a set of integers in ascending order.
//!
//! An iterator fetches them in pieces of [`PIECE`], and descends anew for each piece. That costs little per
//! element, and no path needs to be kept.

use super::Ints;
use super::node::{ALL, Content, Leaf, Node, Run, View};
use super::words::Words;

/// Elements taken from the tree at once.
pub const PIECE: usize = 128;

/// Ascending elements. See the module.
#[derive(Clone)]
pub struct Iter<'a> {
    ints: &'a Ints,
    /// Start of the next piece, if there may be one.
    from: Option<u64>,
    piece: Piece,
    next: usize,
}

/// Some elements in a row.
#[derive(Clone)]
struct Piece {
    numbers: [u64; PIECE],
    len: usize,
}

impl Piece {
    /// Adds a number. False if there is no room for another.
    #[inline]
    fn push(&mut self, x: u64) -> bool {
        self.numbers[self.len] = x;
        self.len += 1;
        self.len < PIECE
    }

    fn room(&self) -> usize {
        PIECE - self.len
    }
}

impl Ints {
    /// All elements, ascending.
    pub fn iter(&self) -> Iter<'_> {
        self.iter_from(0)
    }

    /// The elements from a number on, ascending.
    pub fn iter_from(&self, from: u64) -> Iter<'_> {
        Iter { ints: self, from: Some(from), piece: Piece { numbers: [0; PIECE], len: 0 }, next: 0 }
    }
}

impl<'a> IntoIterator for &'a Ints {
    type Item = u64;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl Iter<'_> {
    /// Fetches the next piece; false if there is none.
    #[inline(never)]
    fn fetch(&mut self) -> bool {
        let Some(from) = self.from else { return false };
        (self.next, self.piece.len) = (0, 0);
        let all = fill(&self.ints.root, 0, ALL, from, &mut self.piece);
        self.from = match all {
            true => None,
            false => self.piece.numbers[PIECE - 1].checked_add(1),
        };
        self.piece.len > 0
    }

    /// The next elements, at least one and at most [`PIECE`]; none at the end. For callers that work on many
    /// at once.
    pub fn piece(&mut self) -> &[u64] {
        if self.next == self.piece.len && !self.fetch() {
            return &[];
        }
        let from = std::mem::replace(&mut self.next, self.piece.len);
        &self.piece.numbers[from..self.piece.len]
    }
}

impl Iter<'_> {
    /// Finds which of up to 128 ascending numbers are among the remaining elements, as bits. Elements below
    /// the last number are skipped. For sets walked side by side. O(numbers + elements skipped), without a
    /// branch that depends on them.
    pub fn meet(&mut self, numbers: &[u64]) -> u128 {
        let mut found = 0;
        for (half, numbers) in numbers.chunks(64).enumerate() {
            found |= u128::from(self.meet_half(numbers)) << (half * 64);
        }
        found
    }

    fn meet_half(&mut self, numbers: &[u64]) -> u64 {
        let (mut found, mut i) = (0, 0);
        while i < numbers.len() && (self.next < self.piece.len || self.fetch()) {
            let own = &self.piece.numbers[self.next..self.piece.len];
            let mut j = 0;
            while i < numbers.len() && j < own.len() {
                let (x, y) = (numbers[i], own[j]);
                found |= u64::from(x == y) << i;
                i += usize::from(x <= y);
                j += usize::from(y <= x);
            }
            self.next += j;
        }
        found
    }
}

impl Iterator for Iter<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.next == self.piece.len && !self.fetch() {
            return None;
        }
        self.next += 1;
        Some(self.piece.numbers[self.next - 1])
    }
}

/// Puts elements from `from` on into the piece. True if the node has no more.
fn fill(node: &Node, base: u64, span: u32, from: u64, piece: &mut Piece) -> bool {
    match node.view() {
        View::Empty => true,
        View::Full => fill_range(from.max(base), super::last_of(base, span), piece),
        View::Branch(branch) => {
            if from > super::last_of(branch.prefix, branch.span()) {
                return true;
            }
            let first = if from <= branch.prefix { 0 } else { branch.slot(from) };
            (first..16).all(|slot| fill(&branch.child[slot], branch.base(slot), branch.shift, from, piece))
        }
        View::Leaf(leaf) => fill_leaf(leaf, from, piece),
    }
}

fn fill_range(first: u64, last: u64, piece: &mut Piece) -> bool {
    for x in first..=last {
        if !piece.push(x) {
            return false;
        }
    }
    true
}

fn fill_leaf(leaf: Leaf<'_>, from: u64, piece: &mut Piece) -> bool {
    let base = leaf.base();
    if from > super::last_of(base, leaf.span()) {
        return true;
    }
    let from = from.max(base) - base;
    match leaf.content() {
        Content::Array(items) => {
            let at = if from == 0 { 0 } else { items.partition_point(|&item| u64::from(item) < from) };
            fill_items(&items[at..], piece, |item| base | u64::from(item))
        }
        Content::Sparse4(items) => {
            let at = if from == 0 { 0 } else { items.partition_point(|&item| u64::from(item) < from) };
            fill_items(&items[at..], piece, |item| base + u64::from(item))
        }
        Content::Sparse8(items) => {
            let at = if from == 0 { 0 } else { items.partition_point(|&item| item < from) };
            fill_items(&items[at..], piece, |item| base + item)
        }
        Content::Bins(bins) => bins
            .chunks_from(from)
            .all(|(start, lows)| fill_items(lows, piece, |low| base | start | u64::from(low.0))),
        Content::Runs(runs) => fill_runs(runs, base, from, piece),
        Content::Bitmap(bits, _) => fill_bits(bits, base, from as u16, piece),
    }
}

#[inline]
fn fill_items<T: Copy>(items: &[T], piece: &mut Piece, number: impl Fn(T) -> u64) -> bool {
    let room = piece.room();
    let taken = items.len().min(room);
    let places = &mut piece.numbers[piece.len..piece.len + taken];
    places.iter_mut().zip(items).for_each(|(place, &item)| *place = number(item));
    piece.len += taken;
    items.len() < room
}

fn fill_runs(runs: &[Run], base: u64, from: u64, piece: &mut Piece) -> bool {
    let at = runs.partition_point(|run| u64::from(run.last) < from);
    runs[at..]
        .iter()
        .all(|run| fill_range(base | from.max(u64::from(run.first)), base | u64::from(run.last), piece))
}

fn fill_bits(bits: &Words, base: u64, from: u16, piece: &mut Piece) -> bool {
    let first = from as usize / 64;
    let mut mask = u64::MAX << (from % 64);
    for (i, &word) in bits.iter().enumerate().skip(first) {
        let mut word = word & mask;
        mask = u64::MAX;
        let start = base + i as u64 * 64;
        while word != 0 {
            if !piece.push(start + u64::from(word.trailing_zeros())) {
                return false;
            }
            word &= word - 1;
        }
    }
    true
}
