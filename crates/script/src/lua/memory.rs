//! Memory of one state: Lua's heap, and memory that Rust code holds for its scripts.
//!
//! ```text
//!   allocator ──────┐                     ┌─► limit (`lua-memory-limit`)
//!   Buffer, Held ───┴─► total ─► ceiling? ┴─► share of the budget (`work-max-memory`)
//! ```
//!
//! - M1: up to the ceiling an allocation costs one comparison.
//! - M2: garbage counts. The allocator cannot collect it, so code that is about to make something large asks
//!   before, where Lua may collect. Small blocks exceed the ceiling by at most [`SLACK`]; the hook collects
//!   soon after.
//! - M3: near the limit garbage is collected each time the total is half as much again as the last collection
//!   left.
//! - M4: memory of a freshly set up state does not count against the budget.

use std::cell::Cell;
use std::ffi::CStr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use stdx::budget::{Budget, Share};

use super::{Raise, Shared, State};
use crate::session::Session;

/// Blocks and buffers below this are small.
pub(crate) const SMALL: usize = 64 << 10;
/// How much small blocks may take above the ceiling (M2).
const SLACK: usize = 1 << 20;
/// How much is asked from the share at a time.
const STEP: usize = 32 << 10;

/// The error texts for scripts.
pub(super) const TOO_LARGE: &CStr = c"not enough memory";
pub(super) const LIMITED: &CStr = c"not enough memory: the script needs more than 'lua-memory-limit' allows";
pub(super) const WORK: &CStr = c"this command needs more memory than 'work-max-memory' allows";

/// Whether an error text says that there is no memory.
pub(crate) fn is_refusal(message: &str) -> bool {
    [TOO_LARGE, LIMITED, WORK].iter().any(|text| text.to_bytes() == message.as_bytes())
}

/// The memory accounts of a state. See the module.
pub(crate) struct Memory {
    used: Cell<usize>,
    beside: Cell<usize>,
    /// Allocations below this total ask nobody (M1).
    ceiling: Cell<usize>,
    /// 0: no limit.
    limit: Cell<usize>,
    /// The total that the share has granted.
    granted: Cell<usize>,
    /// The total at which garbage is collected (M3).
    collect_at: Cell<usize>,
    /// The total exceeds its limit, or it is time to collect.
    short: Cell<bool>,
    refusal: Cell<&'static CStr>,
    /// Bytes of the fresh state (M4).
    base: Cell<usize>,
    share: Cell<Option<Share>>,
    /// The limit on all shares together.
    budget: Cell<Option<Arc<Budget>>>,
}

impl Default for Memory {
    fn default() -> Memory {
        let all = || Cell::new(usize::MAX);
        Memory {
            used: Cell::default(),
            beside: Cell::default(),
            ceiling: all(),
            limit: Cell::default(),
            granted: all(),
            collect_at: all(),
            short: Cell::default(),
            refusal: Cell::new(TOO_LARGE),
            base: Cell::default(),
            share: Cell::default(),
            budget: Cell::default(),
        }
    }
}

impl Memory {
    /// Bytes of Lua's heap.
    pub(super) fn used(&self) -> usize {
        self.used.get()
    }

    fn total(&self) -> usize {
        self.used.get() + self.beside.get()
    }

    #[inline]
    pub(super) fn changed(&self, old: usize, new: usize) {
        self.used.set(self.used.get() - old + new);
    }

    fn hold(&self, bytes: usize) {
        self.beside.set(self.beside.get() + bytes);
    }

    /// Subtracts bytes that Rust code held and has freed.
    fn let_go(&self, bytes: usize) {
        self.beside.set(self.beside.get() - bytes);
        if bytes > 0 {
            self.give_back();
        }
    }

    pub(super) fn set_limit(&self, bytes: usize) {
        self.limit.set(bytes);
        self.watch(0);
    }

    pub(super) fn take_from(&self, budget: &Arc<Budget>) {
        self.base.set(self.used.get());
        self.granted.set(self.used.get());
        self.share.set(Some(budget.share()));
        self.budget.set(Some(budget.clone()));
        self.watch(0);
    }

    /// Whether the allocator may take `bytes` more, outside of sections.
    #[inline]
    pub(super) fn may_grow(&self, bytes: usize) -> bool {
        self.total() + bytes <= self.ceiling.get() || self.may_pass(bytes)
    }

    #[cold]
    fn may_pass(&self, bytes: usize) -> bool {
        if self.grants(bytes) {
            return true;
        }
        self.short.set(true);
        let bound = match self.limit.get() {
            0 => self.granted.get(),
            limit => limit.min(self.granted.get()),
        };
        bytes < SMALL && self.total() + bytes <= bound.saturating_add(SLACK)
    }

    /// Whether `bytes` more may be had where nothing can be collected.
    fn grants(&self, bytes: usize) -> bool {
        let total = self.total().saturating_add(bytes);
        if total > self.collect_at.get() {
            self.short.set(true);
        }
        self.grant(total)
    }

    /// Whether `bytes` more may be had, and it is not time for a collection.
    #[inline]
    pub(super) fn fits(&self, bytes: usize) -> bool {
        let total = self.total().saturating_add(bytes);
        total <= self.ceiling.get() || (total <= self.collect_at.get() && self.grant(total))
    }

    /// Asks the limit and the share for `total` bytes.
    fn grant(&self, total: usize) -> bool {
        if self.limit.get() != 0 && total > self.limit.get() {
            self.refuse(LIMITED);
            return false;
        }
        if total > self.granted.get() && !self.ask(total) {
            self.refuse(WORK);
            return false;
        }
        self.set_ceiling();
        true
    }

    /// Takes from the share, or gives back to it.
    fn ask(&self, total: usize) -> bool {
        let Some(mut share) = self.share.take() else { return true };
        let (base, want) = (self.base.get(), total.saturating_sub(self.base.get()));
        let ahead = share.set((want + STEP) as u64).is_ok();
        let granted = ahead || share.set(want as u64).is_ok();
        self.granted.set(base + share.held() as usize);
        self.share.set(Some(share));
        granted
    }

    /// Takes stock after a collection. Returns whether `bytes` more may be had.
    pub(super) fn collected(&self, bytes: usize) -> bool {
        self.short.set(false);
        let live = self.total();
        self.watch(live + live / 2);
        self.give_back();
        self.grant(live.saturating_add(bytes))
    }

    /// Gives unused bytes back to the share.
    pub(super) fn give_back(&self) {
        if self.granted.get() != usize::MAX && self.granted.get() > self.total().saturating_add(4 * STEP) {
            self.ask(self.total());
            self.set_ceiling();
        }
    }

    /// Sets the next collection to `at` bytes, or to three quarters of the limit if that is more (M3).
    fn watch(&self, at: usize) {
        let budget = self.budget.take();
        let work = budget.as_ref().map_or(0, |budget| budget.limit() as usize);
        self.budget.set(budget);
        let most = [self.limit.get(), work].into_iter().filter(|most| *most > 0).min();
        self.collect_at.set(most.map_or(usize::MAX, |most| at.max(most - most / 4)));
        self.set_ceiling();
    }

    fn set_ceiling(&self) {
        let limit = if self.limit.get() == 0 { usize::MAX } else { self.limit.get() };
        self.ceiling.set(limit.min(self.granted.get()).min(self.collect_at.get()));
    }

    /// Whether garbage must be collected, and the script must fail if that does not help.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.short.get()
    }

    pub(super) fn refuse(&self, text: &'static CStr) {
        self.refusal.set(text);
    }

    /// Why memory was refused last.
    pub(super) fn refusal(&self) -> &'static CStr {
        self.refusal.get()
    }
}

/// Bytes that Rust code holds for a script beside Lua's heap, until this is dropped.
pub(crate) struct Held<'a> {
    memory: &'a Memory,
    bytes: usize,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.memory.let_go(self.bytes);
    }
}

/// A buffer of the session that is reused.
#[derive(Default)]
pub(crate) struct Reused {
    bytes: Cell<Vec<u8>>,
    /// How many of its bytes are counted.
    held: Cell<usize>,
}

/// Larger buffers are freed after use. Keeping a smaller one is worth it: growing a new one costs more in
/// page faults than filling it.
const KEPT_BYTES_MAX: usize = 2 << 20;

impl Reused {
    /// How many bytes are in it.
    pub(crate) fn len(&self) -> usize {
        let bytes = self.bytes.take();
        let len = bytes.len();
        self.bytes.set(bytes);
        len
    }

    /// Drops the bytes behind `len`.
    pub(crate) fn cut(&self, len: usize) {
        let mut bytes = self.bytes.take();
        bytes.truncate(len);
        self.bytes.set(bytes);
    }

    /// Frees it if it is larger than `bytes`.
    pub(crate) fn trim(&self, bytes: usize) {
        let kept = self.bytes.take();
        if kept.capacity() <= bytes {
            self.bytes.set(kept);
        }
    }
}

/// A buffer that grows for a script and counts as the script's memory. When dropped it returns to its place,
/// empty.
pub(crate) struct Buffer<'a> {
    bytes: Vec<u8>,
    held: usize,
    memory: &'a Memory,
    place: Option<&'a Reused>,
}

impl Deref for Buffer<'_> {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Buffer<'_> {
    /// Makes room for `more` bytes, or raises.
    #[inline]
    pub(crate) fn fit(&mut self, s: &mut State<'_>, more: usize) -> Result<(), Raise> {
        if self.bytes.capacity() - self.bytes.len() >= more { Ok(()) } else { self.grow(s, more) }
    }

    #[cold]
    fn grow(&mut self, s: &mut State<'_>, more: usize) -> Result<(), Raise> {
        if self.try_grow(more) {
            return Ok(());
        }
        // During the copy there are two buffers.
        s.room(self.bytes.len().saturating_add(more))?;
        if self.try_grow(more) { Ok(()) } else { s.raise_short() }
    }

    /// As [`fit`](Buffer::fit), where no garbage can be collected. False: there is no room.
    #[inline]
    pub(crate) fn try_fit(&mut self, more: usize) -> bool {
        self.bytes.capacity() - self.bytes.len() >= more || self.try_grow(more)
    }

    #[cold]
    fn try_grow(&mut self, more: usize) -> bool {
        let (now, need) = (self.bytes.capacity(), self.bytes.len().saturating_add(more));
        let wishes = [need.max(2 * now), need.max(now + now / 8), need];
        let Some(capacity) = wishes.into_iter().find(|bytes| *bytes < SMALL || self.memory.grants(*bytes))
        else {
            return false;
        };
        self.bytes.reserve_exact(capacity - self.bytes.len());
        self.count();
        true
    }

    /// Counts the bytes it takes now, after it was filled without asking.
    pub(crate) fn count(&mut self) {
        let held = if self.bytes.capacity() < SMALL { 0 } else { self.bytes.capacity() };
        self.memory.hold(held);
        self.memory.let_go(std::mem::replace(&mut self.held, held));
    }

    /// The contents, which no longer count.
    pub(crate) fn into_inner(mut self) -> Vec<u8> {
        self.place = None;
        std::mem::take(&mut self.bytes)
    }

    /// Puts it back into its place with its contents, for the next user.
    pub(crate) fn leave(mut self) {
        if let Some(place) = self.place.take() {
            place.held.set(std::mem::take(&mut self.held));
            place.bytes.set(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.memory.let_go(self.held);
        let mut bytes = std::mem::take(&mut self.bytes);
        if let Some(place) = self.place
            && bytes.capacity() <= KEPT_BYTES_MAX
        {
            bytes.clear();
            place.bytes.set(bytes);
        }
    }
}

impl<'a> State<'a> {
    /// Begins a run.
    pub(crate) fn begin(&mut self) {
        // Drops the output of gsubs that an error ended.
        drop(self.buffer(|session| &session.pattern));
        self.session().begin();
    }

    /// Whether the total exceeds its limit.
    pub(crate) fn is_short(&self) -> bool {
        self.shared().memory.is_short()
    }

    /// A buffer of the session, as it was left.
    pub(crate) fn buffer(&self, place: fn(&Session) -> &Reused) -> Buffer<'a> {
        let place = place(self.session());
        let (bytes, held) = (place.bytes.take(), place.held.take());
        Buffer { bytes, held, memory: &self.shared().memory, place: Some(place) }
    }

    /// Wraps a foreign buffer, which counts while it is filled for a script.
    pub(crate) fn borrow_buffer(&self, bytes: Vec<u8>) -> Buffer<'a> {
        let mut buffer = Buffer { bytes, held: 0, memory: &self.shared().memory, place: None };
        buffer.count();
        buffer
    }

    /// Asks for memory for `bytes` bytes that are about to be made. Collects garbage if necessary, and raises
    /// if there is no room.
    #[inline]
    pub(crate) fn room(&mut self, bytes: usize) -> Result<(), Raise> {
        if bytes < SMALL || self.shared().memory.fits(bytes) { Ok(()) } else { self.find_room(bytes) }
    }

    #[cold]
    fn find_room(&mut self, bytes: usize) -> Result<(), Raise> {
        let shared: &Shared = self.shared();
        // SAFETY: a live state; with `&mut self` nothing of it is borrowed.
        let held = unsafe { shared.relieve(self.l, bytes) };
        if shared.stop.get().is_some() {
            return self.raise("script stopped");
        }
        if held { Ok(()) } else { self.raise_short() }
    }

    /// Whether [`room`](State::room) finds room for `bytes` bytes.
    pub(crate) fn has_room(&mut self, bytes: usize) -> bool {
        let found = self.room(bytes).is_ok();
        if !found {
            self.pop(1);
        }
        found
    }

    /// Counts `bytes` bytes as held until the result is dropped. Asks as [`room`](State::room) does.
    pub(crate) fn hold(&mut self, bytes: usize) -> Result<Held<'a>, Raise> {
        self.room(bytes)?;
        let bytes = if bytes < SMALL { 0 } else { bytes };
        let memory = &self.shared().memory;
        memory.hold(bytes);
        Ok(Held { memory, bytes })
    }

    /// Collects garbage if memory is short, and raises if it still is.
    pub(crate) fn check_memory(&mut self) -> Result<(), Raise> {
        if self.shared().memory.is_short() { self.find_room(0) } else { Ok(()) }
    }

    /// Raises the reason of the last refusal.
    pub(crate) fn raise_short<T>(&mut self) -> Result<T, Raise> {
        let text = self.shared().memory.refusal();
        self.raise(text.to_bytes())
    }

    /// Pushes a string that may be long.
    pub(crate) fn push_long(&mut self, bytes: &[u8]) -> Result<(), Raise> {
        self.room(bytes.len())?;
        self.push_bytes(bytes);
        Ok(())
    }
}
