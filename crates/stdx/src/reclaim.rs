//! Frees large values on another thread, so that dropping them does not delay the caller.
//!
//! ```text
//! Drop of a big value ──defer──► this thread's batch ──flush (once a turn)──► queue ──► reclaimer thread
//! ```
//!
//! - R1: `defer` never blocks: it adds to a thread-local batch. A batch is sent by `flush`, at [`BATCH`]
//!   items, or when its thread ends. A thread that has never called `flush` has no batch: what it drops is sent
//!   at once, as nothing would send it later.
//! - R2: `pending_bytes` counts from `defer` until the closure has run. For a version of a large value it
//!   counts only what no other version shares.
//! - R3: without a reclaimer thread (unit tests, tools), and on that thread itself, the closure runs at once.
//! - R4: above a limit ([`set_limit`]) the reclaimer is *full* until a quarter of the limit is free. `defer`
//!   does not wait for that: the caller holds back clients that produce more garbage ([`is_full`],
//!   [`deferred`]). Here versions count in whole, because content shared by waiting versions is memory too.
//!
//! Waking a sleeping thread costs about 20 µs, hence the batch: one wake-up per turn of a loop.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

const BATCH: usize = 64;

struct Garbage {
    bytes: usize,
    alone: usize,
    free: Box<dyn FnOnce() + Send>,
}

static QUEUE: OnceLock<Mutex<Sender<Vec<Garbage>>>> = OnceLock::new();
static RUNNING: AtomicBool = AtomicBool::new(false);
static PENDING_BYTES: AtomicU64 = AtomicU64::new(0);
static PENDING_WHOLE: AtomicU64 = AtomicU64::new(0);
static PENDING_ITEMS: AtomicU64 = AtomicU64::new(0);
static RECLAIMED_ITEMS: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
/// How often it became full or stopped being full. Odd while it is full.
static FULL: AtomicU64 = AtomicU64::new(0);

struct Batch(Vec<Garbage>);

impl Drop for Batch {
    fn drop(&mut self) {
        send(std::mem::take(&mut self.0));
    }
}

thread_local! {
    /// True on the reclaimer thread: large parts of what it frees are freed at once.
    static FREEING: Cell<bool> = const { Cell::new(false) };
    /// True on a thread that calls `flush` again and again.
    static FLUSHES: Cell<bool> = const { Cell::new(false) };
    static DEFERRED: Cell<u64> = const { Cell::new(0) };
    static LOCAL: RefCell<Batch> = const { RefCell::new(Batch(Vec::new())) };
}

/// Starts the reclaimer thread. Further calls do nothing.
pub fn start() {
    let (sender, receiver) = channel::<Vec<Garbage>>();
    if QUEUE.set(Mutex::new(sender)).is_err() {
        return;
    }
    let spawned = std::thread::Builder::new().name("reclaim".into()).spawn(move || {
        FREEING.set(true);
        crate::threads::yielding();
        for batch in receiver {
            batch.into_iter().for_each(free);
        }
    });
    RUNNING.store(spawned.is_ok(), Ordering::Release);
}

/// Runs `f`, which frees about `bytes`, on the reclaimer thread. Costs one small allocation here.
pub fn defer(bytes: usize, f: impl FnOnce() + Send + 'static) {
    defer_version(bytes, bytes, f);
}

/// The size that is assumed of a thing that is dropped without a count of its bytes.
const LARGE: usize = 128 * 1024;

/// Drops something that may be large on the reclaimer thread.
pub fn discard(thing: impl Send + 'static) {
    defer(LARGE, move || drop(thing));
}

/// As `defer`, for a version of a large value: of its `bytes`, about `alone` are not shared (R2).
pub fn defer_version(bytes: usize, alone: usize, f: impl FnOnce() + Send + 'static) {
    if !RUNNING.load(Ordering::Acquire) || FREEING.try_with(Cell::get).unwrap_or(true) {
        return f();
    }
    PENDING_BYTES.fetch_add(alone as u64, Ordering::Relaxed);
    let pending = PENDING_WHOLE.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    PENDING_ITEMS.fetch_add(1, Ordering::Relaxed);
    let _ = DEFERRED.try_with(|deferred| deferred.set(deferred.get() + bytes as u64));
    if pending > LIMIT.load(Ordering::Relaxed) {
        set_full(true);
    }
    let mut garbage = Some(Garbage { bytes, alone, free: Box::new(f) });
    let full = LOCAL.try_with(|local| {
        // Nothing is dropped while the batch is borrowed, so a nested `defer` cannot meet it borrowed (R1).
        let batch = &mut local.borrow_mut().0;
        batch.extend(garbage.take());
        batch.len() >= BATCH || !FLUSHES.get()
    });
    match full {
        Ok(true) => send_batch(),
        Ok(false) => {}
        // The thread is ending and its batch is gone: send this item directly.
        Err(_) => send(garbage.into_iter().collect()),
    }
}

/// Whether this thread's batch has items.
#[inline]
pub fn is_due() -> bool {
    LOCAL.try_with(|local| !local.borrow().0.is_empty()).unwrap_or(false)
}

/// Hands this thread's batch to the reclaimer. An event loop calls it once per turn, a worker behind each job:
/// who calls it once goes on to call it.
#[inline]
pub fn flush() {
    let _ = FLUSHES.try_with(|flushes| flushes.set(true));
    send_batch();
}

fn send_batch() {
    let batch = LOCAL.try_with(|local| std::mem::take(&mut local.borrow_mut().0)).unwrap_or_default();
    send(batch);
}

/// Bytes that were deferred and are not freed yet (R2).
pub fn pending_bytes() -> u64 {
    PENDING_BYTES.load(Ordering::Relaxed)
}

/// As `pending_bytes`, with shared content counted in each version. The limit applies to this (R4).
pub fn pending_whole() -> u64 {
    PENDING_WHOLE.load(Ordering::Relaxed)
}

/// Items that were deferred and are not freed yet.
pub fn pending_items() -> u64 {
    PENDING_ITEMS.load(Ordering::Relaxed)
}

/// Items freed since the start (`lazyfreed_objects`).
pub fn reclaimed_items() -> u64 {
    RECLAIMED_ITEMS.load(Ordering::Relaxed)
}

/// Sets how many bytes may wait before the reclaimer is full (R4).
pub fn set_limit(bytes: u64) {
    LIMIT.store(bytes, Ordering::Relaxed);
    let pending = pending_whole();
    if pending > bytes || pending <= bytes / 4 * 3 {
        set_full(pending > bytes);
    }
}

/// How many bytes may wait before the reclaimer is full.
pub fn limit() -> u64 {
    LIMIT.load(Ordering::Relaxed)
}

/// Whether too much waits to be freed. One relaxed load of a word that seldom changes.
#[inline]
pub fn is_full() -> bool {
    FULL.load(Ordering::Relaxed) & 1 == 1
}

/// A number for the current period of being full. Another period has another number.
pub fn fullness() -> u64 {
    FULL.load(Ordering::Relaxed)
}

/// Bytes that this thread has deferred so far.
pub fn deferred() -> u64 {
    DEFERRED.get()
}

fn set_full(full: bool) {
    let count = FULL.load(Ordering::Relaxed);
    if (count & 1 == 1) != full {
        // If another thread was first, nothing is left to do.
        let _ = FULL.compare_exchange(count, count + 1, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn send(batch: Vec<Garbage>) {
    if batch.is_empty() {
        return;
    }
    let Some(queue) = QUEUE.get() else { return batch.into_iter().for_each(free) };
    let sent = match queue.lock() {
        Ok(sender) => sender.send(batch).map_err(|failed| failed.0),
        Err(_) => Err(batch),
    };
    if let Err(batch) = sent {
        batch.into_iter().for_each(free);
    }
}

fn free(garbage: Garbage) {
    if FREEING.try_with(Cell::get).unwrap_or(false) {
        crate::points::reach(crate::points::Point::Reclaim);
    }
    (garbage.free)();
    PENDING_BYTES.fetch_sub(garbage.alone as u64, Ordering::Relaxed);
    let pending = PENDING_WHOLE.fetch_sub(garbage.bytes as u64, Ordering::Relaxed) - garbage.bytes as u64;
    if pending <= LIMIT.load(Ordering::Relaxed) / 4 * 3 {
        set_full(false);
    }
    PENDING_ITEMS.fetch_sub(1, Ordering::Relaxed);
    RECLAIMED_ITEMS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_drops_run_before_and_after_the_thread_starts() {
        let (tx, rx) = channel();
        let early = tx.clone();
        defer(10, move || early.send(1).unwrap());
        assert_eq!(rx.recv().unwrap(), 1);
        start();
        defer(10, move || tx.send(2).unwrap());
        flush();
        assert_eq!(rx.recv().unwrap(), 2);

        // A thread that never calls `flush` keeps nothing, though it lives on (R1).
        let (freed, is_freed) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            defer(10, move || freed.send(()).unwrap());
            ended.recv()
        });
        is_freed.recv().unwrap();
        end.send(()).unwrap();
        thread.join().unwrap().unwrap();

        // Above the limit it is full; after enough is freed it is not (R4).
        let (hold, held) = channel();
        defer(100, move || held.recv().unwrap());
        set_limit(150);
        assert!(!is_full());
        let before = deferred();
        defer(100, || {});
        assert!(is_full() && deferred() == before + 100);
        flush();
        hold.send(()).unwrap();
        while is_full() {
            std::thread::yield_now();
        }
        set_limit(u64::MAX);
    }
}
