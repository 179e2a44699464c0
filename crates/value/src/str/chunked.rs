//! Long strings: a radix tree of chunks in which absent chunks are zeros.
//!
//! ```text
//! len, height ─► branch of 32 ─► branch of 32 ─► chunk of 4088 bytes      (height 2)
//!                              └► nothing: 32 · 4088 zeros
//! ```
//!
//! - C1: chunk `i` holds the bytes from `i * CHUNK` on. At height h there is room for 32^h chunks; the part
//!   of `len` beyond that room is zeros. Chunks behind `len` are absent.
//! - C2: bytes of the last chunk behind `len` are zeros, so that growing needs no clearing.
//! - C3: a branch has at least one child.
//!
//! Costs, n = bytes touched, height at most 6: reading and writing O(height + n); a clone is one count. The
//! first write to a chunk under a clone copies it and its branches, about 6 KB.

use crate::alone::{self, Below};
use crate::arc::Arc;

/// Bytes of a chunk: with the count in front, 4 KB.
pub(super) const CHUNK: usize = 4088;

const FANOUT: usize = 32;

/// Chunks above which a string is freed by the reclaimer.
const DEFER_CHUNKS: usize = 16;

#[derive(Clone)]
enum Sub {
    Chunk(Arc<[u8; CHUNK]>),
    Branch(Arc<Branch>),
}

type Branch = [Option<Sub>; FANOUT];

/// A string of more than 16 KB, or a sparse one.
#[derive(Clone)]
pub struct Chunked {
    len: usize,
    /// Chunks that are present.
    chunks: usize,
    height: u32,
    root: Option<Sub>,
}

impl Chunked {
    pub(super) fn new() -> Chunked {
        Chunked { len: 0, chunks: 0, height: 0, root: None }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn stored(&self) -> usize {
        self.len.min(self.chunks * CHUNK)
    }

    pub(super) fn mem_bytes(&self) -> usize {
        // A branch per 32 chunks if dense, one per height if sparse.
        let branches = self.chunks / 16 + self.height as usize;
        size_of::<Chunked>() + self.chunks * (CHUNK + 8) + branches * 640
    }

    /// An estimate of the bytes that other versions do not share.
    pub(super) fn alone_bytes(&self) -> usize {
        self.root.as_ref().map_or(0, |sub| sub.alone_bytes(self.mem_bytes()))
    }

    /// The run at `at < len`: bytes up to the end of a chunk, or at least that many zeros.
    pub(super) fn run_at(&self, at: usize) -> Result<&[u8], usize> {
        let (index, offset) = (at / CHUNK, at % CHUNK);
        let (mut sub, mut height) = (&self.root, self.height);
        if index >= FANOUT.pow(height) {
            return Err(self.len - at);
        }
        loop {
            match sub {
                Some(Sub::Chunk(chunk)) => return Ok(&chunk[offset..]),
                Some(Sub::Branch(branch)) => {
                    height -= 1;
                    sub = &branch[digit(index, height)];
                }
                None => {
                    let span = FANOUT.pow(height);
                    return Err((span - index % span) * CHUNK - offset);
                }
            }
        }
    }

    /// Sets the length. Bytes cut off are lost; bytes added are zeros.
    pub(super) fn resize(&mut self, len: usize) {
        if len < self.len {
            let (keep, rest) = (len.div_ceil(CHUNK), len % CHUNK);
            let removed = prune(&mut self.root, self.height, keep);
            self.chunks -= removed;
            if rest > 0 && self.run_at(len - 1).is_ok() {
                self.chunk_mut(len / CHUNK)[rest..].fill(0); // C2
            }
        }
        self.len = len;
    }

    /// Writes at `at`, growing as needed. Zeros that fall on absent chunks are not stored if `skip_zeros`.
    pub(super) fn write(&mut self, mut at: usize, mut bytes: &[u8], skip_zeros: bool) {
        self.len = self.len.max(at + bytes.len());
        while !bytes.is_empty() {
            let offset = at % CHUNK;
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - offset));
            let absent = skip_zeros && now.len() == CHUNK && now.iter().all(|&b| b == 0);
            if !absent {
                self.chunk_mut(at / CHUNK)[offset..offset + now.len()].copy_from_slice(now);
            }
            (at, bytes) = (at + now.len(), later);
        }
    }

    /// Chunk `index`, with one owner, made if absent.
    pub(super) fn chunk_mut(&mut self, index: usize) -> &mut [u8; CHUNK] {
        while index >= FANOUT.pow(self.height) {
            self.height += 1;
            if let Some(old) = self.root.take() {
                let mut branch = empty_branch();
                branch[0] = Some(old);
                self.root = Some(Sub::Branch(Arc::new(branch)));
            }
        }
        let (mut sub, mut height) = (&mut self.root, self.height);
        while height > 0 {
            height -= 1;
            let Sub::Branch(branch) = sub.get_or_insert_with(|| Sub::Branch(Arc::new(empty_branch()))) else {
                unreachable!("C1: a chunk above height 0")
            };
            sub = &mut branch.make_mut()[digit(index, height)];
        }
        if sub.is_none() {
            self.chunks += 1;
            *sub = Some(Sub::Chunk(Arc::new([0; CHUNK])));
        }
        match sub {
            Some(Sub::Chunk(chunk)) => chunk.make_mut(),
            _ => unreachable!("C1: a branch at height 0"),
        }
    }

    /// Panics if an invariant does not hold.
    pub(super) fn check_invariants(&self) {
        assert_eq!(count(&self.root, self.height), self.chunks);
        let last = self.len.checked_sub(1).and_then(|last| self.run_at(last).ok());
        assert!(last.is_none_or(|bytes| bytes[1..].iter().all(|&b| b == 0)), "C2");
        let mut pruned = self.root.clone();
        assert_eq!(prune(&mut pruned, self.height, self.len.div_ceil(CHUNK)), 0, "C1");
    }
}

fn empty_branch() -> Branch {
    [const { None }; FANOUT]
}

#[inline]
fn digit(index: usize, height: u32) -> usize {
    index / FANOUT.pow(height) % FANOUT
}

/// Drops the chunks from number `keep` on and returns their number.
fn prune(sub: &mut Option<Sub>, height: u32, keep: usize) -> usize {
    let span = FANOUT.pow(height);
    if keep >= span {
        return 0;
    }
    if keep == 0 {
        let removed = count(sub, height);
        defer(sub.take(), removed);
        return removed;
    }
    let Some(Sub::Branch(branch)) = sub else { return 0 };
    let below = span / FANOUT;
    let (first, rest) = (keep / below, keep % below);
    if branch[first..].iter().all(Option::is_none) {
        return 0;
    }
    let branch = branch.make_mut();
    let mut removed = prune(&mut branch[first], height - 1, rest);
    for child in &mut branch[first + 1..] {
        removed += prune(child, height - 1, 0);
    }
    if branch.iter().all(Option::is_none) {
        *sub = None; // C3
    }
    removed
}

fn count(sub: &Option<Sub>, height: u32) -> usize {
    match sub {
        None => 0,
        Some(Sub::Chunk(_)) => {
            assert_eq!(height, 0, "C1");
            1
        }
        Some(Sub::Branch(branch)) => branch.iter().map(|child| count(child, height - 1)).sum(),
    }
}

fn defer(sub: Option<Sub>, chunks: usize) {
    if chunks > DEFER_CHUNKS {
        let bytes = chunks * CHUNK;
        let alone = sub.as_ref().map_or(0, |sub| sub.alone_bytes(bytes));
        stdx::reclaim::defer_version(bytes, alone, move || drop(sub));
    }
}

impl Sub {
    fn is_unique(&self) -> bool {
        match self {
            Sub::Chunk(chunk) => chunk.is_unique(),
            Sub::Branch(branch) => branch.is_unique(),
        }
    }

    /// An estimate of the bytes that only its owner has.
    fn alone_bytes(&self, bytes: usize) -> usize {
        if self.is_unique() { alone::bytes(self, bytes) } else { 0 }
    }
}

/// All children have the same weight, as if all were as full.
impl<'a> Below for &'a Sub {
    fn each_child(self, told: &mut dyn FnMut(u64, bool, Option<&'a Sub>)) {
        let Sub::Branch(branch) = self else { return };
        branch.iter().flatten().for_each(|child| told(1, child.is_unique(), Some(child)));
    }
}

impl Drop for Chunked {
    fn drop(&mut self) {
        defer(self.root.take(), self.chunks);
    }
}
