//! Dropping without waiting: the last reference to anything large is handed to a thread of its own.
//!
//! ```text
//! Drop of a big value ──defer──► this thread's batch ──flush (once per loop turn)──► queue ──► reclaimer thread
//! ```
//!
//! - R1: `defer` never blocks: it pushes to a thread-local batch. A batch that nobody flushes is sent when it
//!   reaches [`BATCH`] items or when its thread ends.
//! - R2: `pending_bytes` counts from `defer` until the closure has run, and of a version of something large only what nobody
//!   else has.
//! - R3: without a reclaimer thread (unit tests, tools) the closure runs at once; so it does on that thread itself.
//!
//! - R4: above a limit ([`set_limit`]) the reclaimer is *full* until a quarter of it is freed. Nobody waits here for that:
//!   who causes more is held back by who called him ([`is_full`], [`deferred`]). For this, versions count in whole: what
//!   versions that wait one behind the other share belongs to none of them alone, and still is memory.
//!
//! Waking a sleeping thread costs about 20 µs, hence the batch: one wake-up per loop turn.

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
/// How often it became full, or stopped being so: odd while it is.
static FULL: AtomicU64 = AtomicU64::new(0);

struct Batch(Vec<Garbage>);

impl Drop for Batch {
    fn drop(&mut self) {
        send(std::mem::take(&mut self.0));
    }
}

thread_local! {
    /// True on the reclaimer thread: what it frees may own more that is large, which is freed at once.
    static FREEING: Cell<bool> = const { Cell::new(false) };
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

/// Runs `f`, which frees about `bytes`, on the reclaimer thread. Cost here: one small allocation.
pub fn defer(bytes: usize, f: impl FnOnce() + Send + 'static) {
    defer_version(bytes, bytes, f);
}

/// A thing that is dropped without a count of its bytes is taken to have so many.
const LARGE: usize = 128 * 1024;

/// Drops something that may be large on the reclaimer thread.
pub fn discard(thing: impl Send + 'static) {
    defer(LARGE, move || drop(thing));
}

/// As `defer`, of something of so many bytes, about `alone` of which nobody else has (R2).
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
        // A drop inside `free` on the reclaimer itself may come back here while the batch is borrowed: never,
        // because nothing is dropped while it is borrowed (R1).
        let batch = &mut local.borrow_mut().0;
        batch.extend(garbage.take());
        batch.len() >= BATCH
    });
    match full {
        Ok(true) => flush(),
        Ok(false) => {}
        // The thread is ending and its batch is gone: send this one directly.
        Err(_) => send(garbage.into_iter().collect()),
    }
}

/// Whether this thread has anything to hand over.
#[inline]
pub fn is_due() -> bool {
    LOCAL.try_with(|local| !local.borrow().0.is_empty()).unwrap_or(false)
}

/// Hands this thread's batch to the reclaimer. An event loop calls it once per turn.
#[inline]
pub fn flush() {
    let batch = LOCAL.try_with(|local| std::mem::take(&mut local.borrow_mut().0)).unwrap_or_default();
    send(batch);
}

/// Bytes handed over and not freed yet (R2).
pub fn pending_bytes() -> u64 {
    PENDING_BYTES.load(Ordering::Relaxed)
}

/// The same with all that the versions among it share with others: what the limit is for (R4).
pub fn pending_whole() -> u64 {
    PENDING_WHOLE.load(Ordering::Relaxed)
}

/// Objects handed over and not freed yet.
pub fn pending_items() -> u64 {
    PENDING_ITEMS.load(Ordering::Relaxed)
}

/// Objects freed by the reclaimer since the start (`lazyfreed_objects`).
pub fn reclaimed_items() -> u64 {
    RECLAIMED_ITEMS.load(Ordering::Relaxed)
}

/// Sets how many bytes may wait before it is full (R4).
pub fn set_limit(bytes: u64) {
    LIMIT.store(bytes, Ordering::Relaxed);
    let pending = pending_whole();
    if pending > bytes || pending <= bytes / 4 * 3 {
        set_full(pending > bytes);
    }
}

/// How many bytes may wait before it is full.
pub fn limit() -> u64 {
    LIMIT.load(Ordering::Relaxed)
}

/// Whether too much waits to be freed. Cost: one relaxed load of what seldom changes.
#[inline]
pub fn is_full() -> bool {
    FULL.load(Ordering::Relaxed) & 1 == 1
}

/// The time it is full for, as a number: another time it is another one.
pub fn fullness() -> u64 {
    FULL.load(Ordering::Relaxed)
}

/// Bytes this thread has handed over so far.
pub fn deferred() -> u64 {
    DEFERRED.get()
}

fn set_full(full: bool) {
    let count = FULL.load(Ordering::Relaxed);
    if (count & 1 == 1) != full {
        // Who is beaten to it has nothing to do any more.
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

        // What waits above the limit makes it full; when that is freed it is not (R4).
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
