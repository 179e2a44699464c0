//! The rings: what one thread tells, on its way to the order thread.
//!
//! ```text
//! chunk: [ lsn, info, body … | lsn, info, body … | filled ──► ]   next ─► chunk       64 KB each, from a pool
//! large: [ … ]   what an entry stands for that has no body
//! ```
//!
//! - R1: one thread puts, one takes. An entry is published by one store, after its body; neither side waits.
//! - R2: a chunk has a next one only when nothing more is put into it. The taker gives it back to the pool.
//! - R3: a large effect is in its list before its entry is published.

use std::collections::VecDeque;
use std::sync::Arc;
use stdx::sync::Mutex;
use stdx::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Words of eight bytes in a chunk.
const CHUNK: usize = 8192;
/// Chunks kept for later.
const POOLED: usize = 64;
/// Words of an entry before its body.
const HEAD: usize = 2;
/// The low bits of an entry's info: the bytes of its body.
pub(crate) const LEN: u64 = 0xffff;

struct Chunk {
    words: Box<[AtomicU64]>,
    /// Words that are published (R1).
    filled: AtomicUsize,
    next: Mutex<Option<Arc<Chunk>>>,
}

/// Chunks that are in no ring.
pub(crate) struct Pool {
    free: Mutex<Vec<Arc<Chunk>>>,
}

impl Pool {
    /// A pool of so many chunks.
    pub(crate) fn new(chunks: usize) -> Pool {
        Pool { free: Mutex::new((0..chunks).map(|_| Chunk::empty()).collect()) }
    }

    fn take(&self) -> Arc<Chunk> {
        let pooled = self.free.lock().pop();
        pooled.unwrap_or_else(Chunk::empty)
    }

    fn give(&self, mut chunk: Arc<Chunk>) {
        // The putter may be about to let go of it; then that frees it.
        let Some(emptied) = Arc::get_mut(&mut chunk) else { return };
        emptied.filled = AtomicUsize::new(0);
        emptied.next = Mutex::new(None);
        let mut free = self.free.lock();
        if free.len() < POOLED {
            free.push(chunk);
        }
    }
}

impl Chunk {
    fn empty() -> Arc<Chunk> {
        let words = (0..CHUNK).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Chunk { words, filled: AtomicUsize::new(0), next: Mutex::new(None) })
    }
}

/// The state that both sides of a ring share.
struct Ring<L> {
    large: Mutex<VecDeque<L>>,
    /// Its thread has ended; nothing more is put.
    closed: AtomicBool,
    /// The taker has ended.
    ended: AtomicBool,
}

/// The side of the thread that tells. `L` is an effect too large for a chunk.
pub(crate) struct Putter<L> {
    ring: Arc<Ring<L>>,
    chunk: Arc<Chunk>,
    at: usize,
}

/// The side of the order thread.
pub(crate) struct Taker<L> {
    ring: Arc<Ring<L>>,
    chunk: Arc<Chunk>,
    at: usize,
}

/// A ring with one chunk.
pub(crate) fn ring<L>(pool: &Pool) -> (Putter<L>, Taker<L>) {
    let (large, chunk) = (Mutex::new(VecDeque::new()), pool.take());
    let ring = Arc::new(Ring { large, closed: AtomicBool::new(false), ended: AtomicBool::new(false) });
    (Putter { ring: ring.clone(), chunk: chunk.clone(), at: 0 }, Taker { ring, chunk, at: 0 })
}

impl<L> Putter<L> {
    /// Puts an entry. Returns the bytes of the chunk that became full, if one did. The low bits of `info`
    /// hold the length of the body, which fits into a chunk. O(body).
    pub(crate) fn put(&mut self, pool: &Pool, lsn: u64, info: u64, body: &[u8]) -> Option<usize> {
        debug_assert_eq!(info & LEN, body.len() as u64);
        let words = HEAD + body.len().div_ceil(8);
        let full = (self.at + words > CHUNK).then(|| self.next_chunk(pool));
        let room = &self.chunk.words[self.at..self.at + words];
        room[0].store(lsn, Ordering::Relaxed);
        room[1].store(info, Ordering::Relaxed);
        let (pieces, rest) = body.as_chunks::<8>();
        for (to, piece) in room[HEAD..].iter().zip(pieces) {
            to.store(u64::from_le_bytes(*piece), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            room[words - 1].store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        self.at += words;
        self.chunk.filled.store(self.at, Ordering::Release);
        full
    }

    /// Puts an entry that stands for something large (R3).
    pub(crate) fn put_large(&mut self, pool: &Pool, lsn: u64, info: u64, large: L) -> Option<usize> {
        self.ring.large.lock().push_back(large);
        self.put(pool, lsn, info, &[])
    }

    #[cold]
    fn next_chunk(&mut self, pool: &Pool) -> usize {
        let next = pool.take();
        *self.chunk.next.lock() = Some(next.clone());
        self.chunk = next;
        8 * std::mem::take(&mut self.at)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ring.ended.load(Ordering::Relaxed)
    }
}

impl<L> Drop for Putter<L> {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

impl<L> Taker<L> {
    /// Takes all entries: LSN, info and the words of the body of each. Returns the bytes of chunks that were
    /// left. O(entries).
    pub(crate) fn take(&mut self, pool: &Pool, f: &mut dyn FnMut(u64, u64, &[AtomicU64])) -> usize {
        let mut left = 0;
        loop {
            // Before what was put is looked at: nothing more comes into a chunk that has a next one (R2).
            let next = self.chunk.next.lock().clone();
            let filled = self.chunk.filled.load(Ordering::Acquire);
            while self.at < filled {
                let head = &self.chunk.words[self.at..];
                let (lsn, info) = (head[0].load(Ordering::Relaxed), head[1].load(Ordering::Relaxed));
                let words = HEAD + ((info & LEN) as usize).div_ceil(8);
                // Before the call: an entry is not taken twice, though it may panic.
                self.at += words;
                f(lsn, info, &head[HEAD..words]);
            }
            let Some(next) = next else { return left };
            left += 8 * std::mem::take(&mut self.at);
            pool.give(std::mem::replace(&mut self.chunk, next));
        }
    }

    /// The large effects, in the order of the entries.
    pub(crate) fn larges(&self) -> Larges<L> {
        Larges(self.ring.clone())
    }

    /// Whether its thread has ended. If so, the next take is the last.
    pub(crate) fn is_closed(&self) -> bool {
        self.ring.closed.load(Ordering::Acquire)
    }
}

/// The large effects of a ring.
pub(crate) struct Larges<L>(Arc<Ring<L>>);

impl<L> Larges<L> {
    /// The large effect of the entry that is taken now.
    pub(crate) fn next(&self) -> Option<L> {
        self.0.large.lock().pop_front()
    }
}

impl<L> Drop for Taker<L> {
    fn drop(&mut self) {
        self.ring.ended.store(true, Ordering::Relaxed);
    }
}

/// Appends the bytes of a body.
pub(crate) fn copy(words: &[AtomicU64], len: usize, to: &mut Vec<u8>) {
    let from = to.len();
    to.resize(from + 8 * words.len(), 0);
    for (to, word) in to[from..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.load(Ordering::Relaxed).to_le_bytes();
    }
    to.truncate(from + len);
}
