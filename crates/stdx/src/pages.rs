//! Blocks of 4 and 8 KiB for the keyspace, recycled in a pool of its own.
//!
//! The general allocator keeps pages that a few survivors share, and may return memory during any call of
//! `free`, which stalls the caller. Here blocks come from mapped regions. They move between a small cache per
//! thread and two shared lists, and a keeper thread does all slow work:
//!
//! ```text
//!  thread's cache ⇄ hot (resident, ready) ⇄ cold (address space only) ← new regions of 4 MiB
//!                        ▲ populate / release: the keeper thread ▼
//! ```
//!
//! - P1: a block is in exactly one place: with its owner, in one cache, in `hot`, or in `cold`.
//! - P2: taking a block pops it from the thread's cache. A refill takes [`CACHE`] blocks under one short
//!   lock. If the keeper is behind, a cold block is taken, and the kernel faults it in on first touch.
//! - P3: blocks are aligned to their size. Their contents are arbitrary.
//! - P4: `hot` stays between a floor and a ceiling. The floor is a quarter of the blocks in use, within
//!   bounds. The ceiling is an eighth of them, or twice the floor if that is more. Above it the keeper
//!   returns memory to the system.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, Once};
use std::time::Duration;

const REGION: usize = 4 << 20;
const CACHE: usize = 32;

/// A block of `Pool::size` bytes. Its holder owns it.
pub type Block = NonNull<u8>;

#[derive(Clone, Copy)]
struct Free(Block);
// SAFETY: a free block belongs to the thread that takes it from the list (P1).
unsafe impl Send for Free {}

#[derive(Default)]
struct Lists {
    hot: Vec<Free>,
    cold: Vec<Free>,
}

/// A pool of blocks of one size.
pub struct Pool {
    size: usize,
    /// The highest floor. The lowest is an eighth of it.
    most: usize,
    lists: Mutex<Lists>,
    /// Blocks with owners, for statistics and the ceiling.
    in_use: AtomicUsize,
    mapped: AtomicUsize,
    cache: fn(&mut Caches) -> &mut Vec<Free>,
}

#[derive(Default)]
struct Caches {
    small: Vec<Free>,
    large: Vec<Free>,
}

impl Drop for Caches {
    fn drop(&mut self) {
        SMALL.give(&mut self.small);
        LARGE.give(&mut self.large);
    }
}

thread_local! {
    static CACHES: RefCell<Caches> = RefCell::default();
}

/// Blocks of 4 KiB.
pub static SMALL: LazyLock<Pool> = LazyLock::new(|| Pool::new(4096, 256, |caches| &mut caches.small));
/// Blocks of 8 KiB.
pub static LARGE: LazyLock<Pool> = LazyLock::new(|| Pool::new(8192, 64, |caches| &mut caches.large));

impl Pool {
    fn new(size: usize, most: usize, cache: fn(&mut Caches) -> &mut Vec<Free>) -> Pool {
        Pool {
            size,
            most,
            lists: Mutex::default(),
            in_use: AtomicUsize::new(0),
            mapped: AtomicUsize::new(0),
            cache,
        }
    }

    /// Takes a block; its contents are arbitrary (P3). Panics if no address space is left.
    #[inline]
    pub fn take(&self) -> Block {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        let cached = CACHES.try_with(|caches| {
            let mut caches = caches.borrow_mut();
            let cache = (self.cache)(&mut caches);
            if cache.is_empty() {
                self.refill(cache, CACHE);
            }
            cache.pop()
        });
        match cached {
            Ok(Some(block)) => block.0,
            _ => {
                let mut one = Vec::with_capacity(1);
                self.refill(&mut one, 1);
                one[0].0
            }
        }
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `block` came from `take` of this pool and is not used any more.
    #[inline]
    pub unsafe fn put(&self, block: Block) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        let cached = CACHES.try_with(|caches| {
            let mut caches = caches.borrow_mut();
            let cache = (self.cache)(&mut caches);
            cache.push(Free(block));
            if cache.len() >= 2 * CACHE {
                let mut half = cache.split_off(CACHE);
                self.give(&mut half);
            }
        });
        if cached.is_err() {
            self.give(&mut vec![Free(block)]);
        }
    }

    /// Bytes with owners.
    pub fn used_bytes(&self) -> usize {
        self.in_use.load(Ordering::Relaxed) * self.size
    }

    /// Bytes that are resident and free.
    pub fn ready_bytes(&self) -> usize {
        self.lists().hot.len() * self.size
    }

    fn lists(&self) -> std::sync::MutexGuard<'_, Lists> {
        // No code that can panic runs under this lock, so a poisoned lock still holds valid lists.
        self.lists.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn refill(&self, cache: &mut Vec<Free>, n: usize) {
        let low = {
            let mut lists = self.lists();
            if lists.hot.is_empty() && lists.cold.is_empty() {
                self.map(&mut lists.cold);
            }
            let from = if lists.hot.is_empty() { &mut lists.cold } else { &mut lists.hot };
            cache.extend(from.drain(from.len().saturating_sub(n)..));
            lists.hot.len() < self.floor() / 2
        };
        if low {
            wake_keeper();
        }
    }

    fn give(&self, blocks: &mut Vec<Free>) {
        let high = {
            let mut lists = self.lists();
            lists.hot.append(blocks);
            lists.hot.len() > self.ceiling()
        };
        if high {
            wake_keeper();
        }
    }

    fn floor(&self) -> usize {
        (self.in_use.load(Ordering::Relaxed) / 4).clamp(self.most / 8, self.most)
    }

    fn ceiling(&self) -> usize {
        (self.in_use.load(Ordering::Relaxed) / 8).max(2 * self.floor())
    }

    /// Maps a region of address space; no memory is used until blocks are touched.
    fn map(&self, cold: &mut Vec<Free>) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                REGION + self.size,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let base = base.expect("no address space left for the keyspace") as usize;
        let start = base.next_multiple_of(self.size);
        self.mapped.fetch_add(REGION, Ordering::Relaxed);
        // In descending order, so that popping from the end hands out ascending addresses.
        let blocks = (0..REGION / self.size).rev().map(|i| start + i * self.size);
        cold.extend(blocks.filter_map(|address| NonNull::new(address as *mut u8)).map(Free));
    }

    /// One round of the keeper. Cost: bounded by [`ROUND`] blocks, off the serving path.
    fn keep(&self) -> bool {
        const ROUND: usize = 256;
        let (mut batch, populate) = {
            let mut lists = self.lists();
            if lists.hot.len() < self.floor() {
                if lists.cold.is_empty() {
                    self.map(&mut lists.cold);
                }
                let keep = lists.cold.len().saturating_sub(ROUND.min(self.floor()));
                (lists.cold.split_off(keep), true)
            } else if lists.hot.len() > self.ceiling() {
                let excess = (lists.hot.len() - self.ceiling()).min(ROUND);
                // The oldest blocks: those at the end are used next.
                (lists.hot.drain(..excess).collect(), false)
            } else {
                return false;
            }
        };
        batch.sort_unstable_by_key(|block| block.0);
        for run in batch.chunk_by(|a, b| a.0.as_ptr() as usize + self.size == b.0.as_ptr() as usize) {
            self.advise(run, populate);
        }
        let mut lists = self.lists();
        if populate {
            batch.reverse();
            batch.append(&mut lists.hot);
            lists.hot = batch;
        } else {
            lists.cold.append(&mut batch);
        }
        true
    }

    fn advise(&self, run: &[Free], populate: bool) {
        use rustix::mm::{Advice, madvise};
        let advice = if populate { Advice::LinuxPopulateWrite } else { Advice::LinuxDontNeed };
        let start = run[0].0.as_ptr();
        // SAFETY: the run is mapped, contiguous and free (P1): its contents may be discarded or zeroed.
        let done = unsafe { madvise(start.cast(), run.len() * self.size, advice) };
        if populate && done.is_err() {
            // A kernel without populate: touch each page.
            for offset in (0..run.len() * self.size).step_by(4096) {
                // SAFETY: as above.
                unsafe { start.add(offset).write_volatile(0) }
            }
        }
    }
}

static KEEPER: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
static KEEPER_STARTED: Once = Once::new();
static KEEPER_WANTED: AtomicBool = AtomicBool::new(false);

fn wake_keeper() {
    if KEEPER_STARTED.is_completed() && !KEEPER_WANTED.swap(true, Ordering::Relaxed) {
        KEEPER.1.notify_one();
    }
}

/// Starts the keeper thread. Without it (unit tests, tools) blocks are faulted in on first touch and never
/// returned.
pub fn start_keeper() {
    KEEPER_STARTED.call_once(|| {
        // If there can be no thread the pool still works, only without its help.
        let _ = std::thread::Builder::new().name("pages".into()).spawn(|| {
            crate::threads::yielding();
            loop {
                KEEPER_WANTED.store(false, Ordering::Relaxed);
                while SMALL.keep() | LARGE.keep() {}
                let guard = KEEPER.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if !KEEPER_WANTED.load(Ordering::Relaxed) {
                    let _ = KEEPER.1.wait_timeout(guard, Duration::from_millis(100));
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_distinct_and_come_back() {
        start_keeper();
        let mut seen = std::collections::HashSet::new();
        let blocks: Vec<Block> = (0..5000).map(|_| SMALL.take()).collect();
        for block in &blocks {
            assert_eq!(block.as_ptr() as usize % 4096, 0);
            assert!(seen.insert(block.as_ptr() as usize));
            // SAFETY: the block is ours and 4096 bytes long.
            unsafe { block.as_ptr().write_bytes(0xaa, 4096) };
        }
        let used = SMALL.used_bytes();
        assert!(used >= 5000 * 4096);
        for block in blocks {
            // SAFETY: taken above, used nowhere else.
            unsafe { SMALL.put(block) };
        }
        let again = LARGE.take();
        assert_eq!(again.as_ptr() as usize % 8192, 0);
        // SAFETY: taken above, used nowhere else.
        unsafe { LARGE.put(again) };
    }
}
