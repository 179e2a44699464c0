//! The Lua 5.1 C API behind safe types. All `unsafe` of this crate stands here and below `lua/`.
//!
//! ```text
//!   Vm ── owns ──► lua_State ── allocator's ud ──► Shared (counters, stop flag, the script's host)
//!   Vm::with(|s: &mut State|)        the base frame, from Rust
//!   native(f) ─► entry::<F>(L) ─►    a frame of its own when Lua calls a Rust function
//! ```
//!
//! Lua raises errors with `longjmp`. A jump over a Rust frame that owns something is undefined behaviour, so:
//!
//! * **L1** Rust works on Lua only through [`State`], and a `State` lives only in a *section*
//!   (`Shared::section` is set). There the allocator counts but never refuses ([`memory`]), so the functions
//!   used cannot raise: `State` uses raw table access, checks types and keys first, and asks `lua_checkstack`
//!   before a push.
//! * **L2** A Rust function called by Lua returns `Err(Raise)` with the error value on top. [`entry`] raises
//!   it when that function and all it owned are gone. `entry` owns nothing then.
//! * **L3** Functions that call back into Lua unprotected ([`guarded`], [`redis_pcall`]), or hand text to the
//!   compiler, own nothing and run outside of sections. A memory error may raise through them.
//! * **L4** A panic never unwinds into C. `entry` and [`hook`] catch it, keep it in `Shared` and stop the
//!   script; [`State::protected`] resumes it on the caller's side.
//! * **L5** Once `Shared::stop` is set, nothing of the script runs: the hook, `pcall`, `xpcall` and
//!   `coroutine.resume` raise, and no Rust function or `xpcall` handler is entered. Lua code never runs with
//!   hooks off: a script cannot reach `__gc` (`newproxy` is absent).
//! * **L6** A `&[u8]` into a Lua string borrows the `State`. Pushing, popping, collecting need `&mut`.
//! * **L7** A `Vm` is used by one thread at a time. All it points to is reachable through it alone.
//! * **L8** Precompiled code can break the interpreter. The parser gets a leading ESC of a script as text.
//!   Only dumps of this interpreter in this process are loaded ([`Compiled`](crate::Compiled)).
//!
//! Cost: about 15 ns more than C for a call of a Rust function, 2–3 ns for a checked table access.

#[cfg(test)]
mod counting;
mod memory;
mod state;

#[cfg(test)]
pub(crate) use counting::peak_of;
pub(crate) use memory::{Buffer, Held, Reused, SMALL, is_refusal};
pub(crate) use state::{STRINGS, Standard, State};

use std::alloc::Layout;
use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use mlua_sys as ffi;
use mlua_sys::lua_State;
use stdx::budget::Budget;

use crate::session::Session;
use crate::{Host, Stop};
use memory::Memory;

/// The largest single block: strings, and arrays of tables (33 million slots).
const BLOCK_BYTES_MAX: usize = (512 << 20) + (64 << 10);

/// An error. Its value is on top of the stack.
#[derive(Debug)]
pub(crate) struct Raise;

/// How many values on top of the stack a Rust function returns.
pub(crate) type Outcome = Result<usize, Raise>;

/// The registry key of a value that is kept alive there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ref(c_int);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    None,
    Nil,
    Bool,
    LightUserdata,
    Number,
    String,
    Table,
    Function,
    Userdata,
    Thread,
}

impl Type {
    fn from_raw(raw: c_int) -> Type {
        match raw {
            ffi::LUA_TNIL => Type::Nil,
            ffi::LUA_TBOOLEAN => Type::Bool,
            ffi::LUA_TLIGHTUSERDATA => Type::LightUserdata,
            ffi::LUA_TNUMBER => Type::Number,
            ffi::LUA_TSTRING => Type::String,
            ffi::LUA_TTABLE => Type::Table,
            ffi::LUA_TFUNCTION => Type::Function,
            ffi::LUA_TUSERDATA => Type::Userdata,
            ffi::LUA_TTHREAD => Type::Thread,
            _ => Type::None,
        }
    }

    /// The name that `type()` gives.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Type::None => "no value",
            Type::Nil => "nil",
            Type::Bool => "boolean",
            Type::LightUserdata | Type::Userdata => "userdata",
            Type::Number => "number",
            Type::String => "string",
            Type::Table => "table",
            Type::Function => "function",
            Type::Thread => "thread",
        }
    }
}

/// A value as the encoders need it.
pub(crate) enum View<'a> {
    String(&'a [u8]),
    Number(f64),
    Other(Type),
}

/// The kind of failure of a protected call. The error value is on top of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Runtime,
    Syntax,
    Memory,
    Handler,
}

/// State shared by the allocator, the hook and the Rust functions of one `Vm`. Only the thread that uses the
/// `Vm` touches it.
#[repr(C)]
pub(crate) struct Shared {
    /// The first words, known to `build.rs`: Lua's text for a refused allocation, which is a string of the
    /// state, and the function that is called before something large is made.
    memory_text: Cell<*const c_char>,
    make_room: unsafe extern "C-unwind" fn(*mut lua_State, usize),
    pub(crate) memory: Memory,
    /// Elements that loops in Rust have visited.
    ticks: Cell<u32>,
    hook_every: Cell<c_int>,
    /// Rust code is working on the state (L1).
    section: Cell<bool>,
    /// "Not enough memory" is being raised, perhaps by the hook. Until it is caught no handler of a script
    /// may run (hooks may be off), and the limit is not checked.
    raising_memory: Cell<bool>,
    /// Precompiled code is being read. No collection may run meanwhile.
    undumping: Cell<bool>,
    stop: Cell<Option<Stop>>,
    panic: Cell<Option<Box<dyn Any + Send>>>,
    host: Cell<Option<NonNull<dyn Host>>>,
    /// Read-only tables: the address of the metatable, and the real table.
    proxies: Cell<Vec<(usize, Ref)>>,
    pub(crate) session: Session,
}

/// A Lua state.
pub(crate) struct Vm {
    l: NonNull<lua_State>,
    shared: NonNull<Shared>,
}

// SAFETY: L7. The state, `Shared` and all they point to are owned by the `Vm` and have no thread affinity;
// the host's pointer is set during a call only, and the call keeps the `Vm` borrowed.
unsafe impl Send for Vm {}

impl Vm {
    /// A state without libraries and without a limit. About 10 µs.
    pub(crate) fn new(hook_every: u32) -> Vm {
        let shared = Box::new(Shared {
            memory_text: Cell::new(memory::TOO_LARGE.as_ptr()),
            make_room,
            memory: Memory::default(),
            ticks: Cell::new(0),
            hook_every: Cell::new(hook_every.clamp(1, 1 << 30) as c_int),
            section: Cell::new(true),
            raising_memory: Cell::new(false),
            undumping: Cell::new(false),
            stop: Cell::new(None),
            panic: Cell::new(None),
            host: Cell::new(None),
            proxies: Cell::new(Vec::new()),
            session: Session::default(),
        });
        let shared = NonNull::from(Box::leak(shared));
        // SAFETY: `allocate` follows the contract of lua_Alloc and `shared` outlives the state (freed in
        // `drop`, after it).
        let l = unsafe { ffi::lua_newstate(allocate, shared.as_ptr().cast()) };
        let l = NonNull::new(l).expect("the allocator never refuses inside a section");
        let vm = Vm { l, shared };
        // SAFETY: a fresh state; sethook does not allocate.
        unsafe { ffi::lua_atpanic(vm.l.as_ptr(), at_panic) };
        vm.arm(vm.shared().hook_every.get());
        vm.shared().section.set(false);
        let mut vm = vm;
        // When memory is short Lua makes no string, but finds these.
        vm.with(|s| {
            for text in [memory::TOO_LARGE, memory::LIMITED, memory::WORK] {
                s.push_bytes(text.to_bytes());
                s.keep();
            }
        });
        vm
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: allocated in `new`, freed in `drop`; only ever used through shared references.
        unsafe { self.shared.as_ref() }
    }

    /// Bytes the state has allocated.
    pub(crate) fn used_bytes(&self) -> usize {
        self.shared().memory.used()
    }

    /// Limits the bytes of the state and its scripts; 0 is no limit.
    pub(crate) fn set_limit(&mut self, bytes: usize) {
        self.shared().memory.set_limit(bytes);
    }

    /// From now on, growth beyond the bytes held now is taken from the budget.
    pub(crate) fn take_from(&mut self, budget: &Arc<Budget>) {
        self.shared().memory.take_from(budget);
    }

    /// Gives back to the budget what is no longer held. O(1).
    pub(crate) fn give_back(&mut self) {
        self.shared().memory.give_back();
    }

    /// Runs a full collection.
    pub(crate) fn collect(&mut self) {
        self.with(|s| {
            // SAFETY: in a section; no finalizers exist (L5).
            unsafe { ffi::lua_gc(s.l, ffi::LUA_GCCOLLECT, 0) };
        });
    }

    /// Takes this many steps of a collection, a few microseconds each. True when a cycle ended.
    pub(crate) fn collect_step(&mut self, steps: u32) -> bool {
        // SAFETY: as `collect`.
        self.with(|s| (0..steps).any(|_| unsafe { evenkeel_collect(s.l) != 0 }))
    }

    /// Works on the state outside of a script. Afterwards the stack has its old height.
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut State<'_>) -> R) -> R {
        /// State to restore: the height of the stack, and the state that ran on this thread.
        struct Leave<'a>(&'a Shared, *mut lua_State, c_int, *mut lua_State);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                // SAFETY: back to a height the stack had before; the state that ran before is alive, as its
                // caller's is the frame that this one returns to.
                unsafe {
                    ffi::lua_settop(self.1, self.2);
                    evenkeel_runs(self.3);
                }
                self.0.section.set(false);
            }
        }
        let shared = self.shared();
        shared.section.set(true);
        // SAFETY: the state is alive and nobody else uses it (`&mut self`); it is forgotten when this
        // function returns.
        let before = unsafe { evenkeel_runs(self.l.as_ptr()) };
        // SAFETY: the same.
        let mut state = unsafe { State::enter(self.l.as_ptr(), shared) };
        let leave = Leave(shared, self.l.as_ptr(), state.top, before);
        let result = f(&mut state);
        drop(leave);
        result
    }

    /// As [`Vm::with`], with `host` behind the script's calls. Clears an earlier stop.
    pub(crate) fn with_host<R>(&mut self, host: &mut dyn Host, f: impl FnOnce(&mut State<'_>) -> R) -> R {
        struct Forget<'a>(&'a Shared);
        impl Drop for Forget<'_> {
            fn drop(&mut self) {
                self.0.host.set(None);
            }
        }
        // SAFETY: only the lifetime changes; the pointer is forgotten before this function returns, even by a
        // panic.
        let host: NonNull<dyn Host> = unsafe {
            std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host + 'static>>(NonNull::from(host))
        };
        if self.shared().stop.take().is_some() {
            self.arm(self.shared().hook_every.get());
        }
        let shared = self.shared;
        // SAFETY: as in `shared()`, with a lifetime apart from `self`, which outlives this call.
        let forget = Forget(unsafe { shared.as_ref() });
        forget.0.host.set(Some(host));
        let result = self.with(f);
        drop(forget);
        result
    }

    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.shared().stop.get()
    }

    fn arm(&self, every: c_int) {
        // SAFETY: the state is alive; sethook only stores.
        unsafe { ffi::lua_sethook(self.l.as_ptr(), Some(hook), ffi::LUA_MASKCOUNT, every) };
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.shared().section.set(true);
        // SAFETY: both are owned by this `Vm`; the state goes first, it frees through `shared`.
        unsafe {
            ffi::lua_close(self.l.as_ptr());
            drop(Box::from_raw(self.shared.as_ptr()));
        }
    }
}

/// The allocator. Refuses only outside of sections (L1): if a block or the sum is too large, or the host has
/// no time to copy a large block.
unsafe extern "C" fn allocate(ud: *mut c_void, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
    // SAFETY: `ud` is the `Shared` given to lua_newstate, alive as long as the state.
    let shared = unsafe { &*ud.cast::<Shared>() };
    let old = if block.is_null() { 0 } else { old };
    let layout = |bytes: usize| Layout::from_size_align(bytes, 16).unwrap_or_else(|_| std::process::abort());
    if new > old {
        let may_grow = shared.memory.may_grow(new - old) || shared.section.get();
        if !may_grow || (new >= crate::HEAVY_BYTES && !shared.may_have_block(new)) {
            shared.tell_refusal();
            return std::ptr::null_mut();
        }
    }
    // SAFETY: `block` came from here with size `old` (Lua passes the size it asked for); sizes are not zero
    // where asked.
    let result = unsafe {
        match (old, new) {
            (0, 0) => return std::ptr::null_mut(),
            (0, _) => std::alloc::alloc(layout(new)),
            (_, 0) => {
                std::alloc::dealloc(block.cast(), layout(old));
                shared.memory.changed(old, 0);
                return std::ptr::null_mut();
            }
            _ => std::alloc::realloc(block.cast(), layout(old), new),
        }
    };
    if result.is_null() {
        if shared.section.get() || new <= old {
            std::alloc::handle_alloc_error(layout(new));
        }
        return std::ptr::null_mut();
    }
    shared.memory.changed(old, new);
    result.cast()
}

unsafe extern "C-unwind" fn at_panic(_: *mut lua_State) -> c_int {
    // An error outside of a protected call, which L1 excludes.
    std::process::abort()
}

/// # Safety
/// `l` must belong to a live `Vm`.
unsafe fn shared_of<'a>(l: *mut lua_State) -> &'a Shared {
    let mut ud = std::ptr::null_mut();
    // SAFETY: the allocator's ud is the same for all threads of a state.
    unsafe {
        ffi::lua_getallocf(l, &mut ud);
        &*ud.cast::<Shared>()
    }
}

/// Runs every [`Shared::hook_every`] instructions: asks the host whether the script may go on.
unsafe extern "C-unwind" fn hook(l: *mut lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: called by Lua with a thread of a live state. Nothing here owns anything when it raises.
    unsafe {
        let shared = shared_of(l);
        if shared.stop.get().is_none() {
            shared.section.set(true);
            shared.ask(|host| host.interrupt());
            shared.section.set(false);
        }
        if shared.stop.get().is_some() {
            ffi::lua_sethook(l, Some(hook), ffi::LUA_MASKCOUNT, 1);
            raise_stop(l);
        }
        relieve_or_raise(l, shared);
    }
}

/// Collects garbage if memory is short, and raises if it still is.
///
/// # Safety
/// As [`raise_stop`], outside of sections.
unsafe fn relieve_or_raise(l: *mut lua_State, shared: &Shared) {
    if !shared.memory.is_short() || shared.raising_memory.get() {
        return;
    }
    // SAFETY: by the caller.
    unsafe {
        let held = shared.relieve(l, 0);
        if shared.stop.get().is_some() {
            ffi::lua_sethook(l, Some(hook), ffi::LUA_MASKCOUNT, 1);
            raise_stop(l);
        }
        if !held {
            raise_memory(l);
        }
    }
}

/// Called by Lua before it makes something of `bytes` bytes. Collects garbage if they would not fit
/// otherwise; the allocator decides afterwards.
unsafe extern "C-unwind" fn make_room(l: *mut lua_State, bytes: usize) {
    // SAFETY: called by Lua with a thread of a live state, where it may collect; nothing is owned when
    // something raises (L3).
    unsafe {
        let shared = shared_of(l);
        if shared.memory.fits(bytes) || shared.raising_memory.get() {
            return;
        }
        shared.relieve(l, bytes);
        if shared.stop.get().is_some() && !shared.section.get() {
            raise_stop(l);
        }
    }
}

/// # Safety
/// No frame up to the nearest protected call owns anything (L2, L3).
unsafe fn raise_stop(l: *mut lua_State) -> ! {
    // SAFETY: by the caller.
    unsafe {
        const TEXT: &[u8] = b"script stopped";
        ffi::lua_pushlstring_(l, TEXT.as_ptr().cast(), TEXT.len());
        ffi::lua_error(l)
    }
}

/// # Safety
/// As [`raise_stop`].
unsafe fn raise_memory(l: *mut lua_State) -> ! {
    // SAFETY: by the caller.
    unsafe {
        let shared = shared_of(l);
        shared.raising_memory.set(true);
        let text = shared.memory.refusal().to_bytes();
        ffi::lua_pushlstring_(l, text.as_ptr().cast(), text.len());
        ffi::lua_error(l)
    }
}

impl Shared {
    /// Calls the host. A panic in it is kept and stops the script (L4). `None`: there is no host, or it
    /// panicked.
    fn host<R>(&self, f: impl FnOnce(&mut dyn Host) -> R) -> Option<R> {
        let mut host = self.host.take()?;
        // SAFETY: set by `with_host`, whose caller's `&mut` it is; taken out meanwhile, so there is one user
        // at a time.
        let result = catch_unwind(AssertUnwindSafe(|| f(unsafe { host.as_mut() })));
        self.host.set(Some(host));
        match result {
            Ok(result) => Some(result),
            Err(panic) => {
                self.keep_panic(panic);
                None
            }
        }
    }

    fn ask(&self, f: impl FnOnce(&mut dyn Host) -> Option<Stop>) {
        if let Some(Some(stop)) = self.host(f) {
            self.stop.set(Some(stop));
        }
    }

    /// Announces work, from outside of sections. False: the script must end.
    fn may_do(&self, bytes: usize) -> bool {
        self.section.set(true);
        self.ask(|host| host.heavy(bytes));
        self.section.set(false);
        self.stop.get().is_none()
    }

    /// Whether Lua may have one block of this size.
    #[cold]
    fn may_have_block(&self, bytes: usize) -> bool {
        if self.section.get() {
            return true;
        }
        if bytes > BLOCK_BYTES_MAX {
            self.memory.refuse(memory::TOO_LARGE);
            return false;
        }
        self.may_do(bytes)
    }

    /// Sets the text of Lua's next memory error.
    #[cold]
    fn tell_refusal(&self) {
        self.memory_text.set(self.memory.refusal().as_ptr());
    }

    /// Collects all garbage. Returns whether `bytes` more bytes fit then. The host may stop the script
    /// instead.
    ///
    /// # Safety
    /// `l` is a thread of this state, and Lua may collect now.
    #[cold]
    unsafe fn relieve(&self, l: *mut lua_State, bytes: usize) -> bool {
        let section = self.section.replace(true);
        if self.memory.used() >= crate::HEAVY_BYTES {
            self.ask(|host| host.heavy(self.memory.used()));
        }
        if self.stop.get().is_none() && !self.undumping.get() {
            // SAFETY: by the caller; in a section, so nothing is raised.
            unsafe { ffi::lua_gc(l, ffi::LUA_GCCOLLECT, 0) };
        }
        self.section.set(section);
        self.memory.collected(bytes)
    }

    fn keep_panic(&self, panic: Box<dyn Any + Send>) {
        self.panic.set(Some(panic));
        self.stop.set(Some(Stop::Killed));
    }

    /// The real table behind the read-only one with the metatable at this address.
    fn proxied(&self, metatable: usize) -> Option<Ref> {
        let proxies = self.proxies.take();
        let found = proxies.iter().find(|p| p.0 == metatable).map(|p| p.1);
        self.proxies.set(proxies);
        found
    }
}

/// A Rust function in the form that Lua calls.
#[derive(Clone, Copy)]
pub(crate) struct NativeFn(ffi::lua_CFunction);

/// Makes a Rust function callable from Lua. `f` must be a plain function or a closure that captures nothing.
pub(crate) fn native<F>(_: F) -> NativeFn
where
    F: Fn(&mut State<'_>) -> Outcome + Copy + 'static,
{
    const { assert!(size_of::<F>() == 0) };
    NativeFn(entry::<F>)
}

/// The function that Lua calls in place of `F`.
unsafe extern "C-unwind" fn entry<F>(l: *mut lua_State) -> c_int
where
    F: Fn(&mut State<'_>) -> Outcome + Copy + 'static,
{
    // SAFETY: called by Lua with a thread of a live state, owning nothing. `F` has no size and a value of it
    // was given to `native`, so any well-aligned address is one.
    unsafe { section(l, |s| NonNull::<F>::dangling().as_ref()(s)) as c_int }
}

/// The next step of a function that calls back into Lua.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Return this many values.
    Return(usize),
    /// Call a function that stands below this many arguments, for one result.
    Call(usize),
}

/// As [`native`], for functions that need Lua functions called. `f` leaves its frame for the call, and runs
/// again with `true` when the result is on top. Its state must be on the stack.
pub(crate) fn calling<F>(_: F) -> NativeFn
where
    F: Fn(&mut State<'_>, bool) -> Result<Step, Raise> + Copy + 'static,
{
    const { assert!(size_of::<F>() == 0) };
    NativeFn(entry_calling::<F>)
}

unsafe extern "C-unwind" fn entry_calling<F>(l: *mut lua_State) -> c_int
where
    F: Fn(&mut State<'_>, bool) -> Result<Step, Raise> + Copy + 'static,
{
    let mut called = false;
    // SAFETY: as `entry`; owns nothing while Lua code runs (L3). The function and its arguments are on the
    // stack.
    unsafe {
        loop {
            match section(l, |s| NonNull::<F>::dangling().as_ref()(s, called)) {
                Step::Return(count) => return count as c_int,
                Step::Call(args) => ffi::lua_call(l, args as c_int, 1),
            }
            called = true;
        }
    }
}

/// Runs `f` in a section and raises its errors (L2, L4).
///
/// # Safety
/// Called from a function that Lua called, which owns nothing; `f` owns nothing that needs dropping.
unsafe fn section<R: Copy>(l: *mut lua_State, f: impl FnOnce(&mut State<'_>) -> Result<R, Raise>) -> R {
    // SAFETY: by the caller. When something is raised, all that was owned is gone or moved to `shared`.
    unsafe {
        let shared = shared_of(l);
        if shared.stop.get().is_some() {
            raise_stop(l);
        }
        shared.section.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut State::enter(l, shared))));
        shared.section.set(false);
        let result = match result {
            Ok(result) => result.ok(),
            Err(panic) => {
                shared.keep_panic(panic);
                None
            }
        };
        if shared.stop.get().is_some() {
            raise_stop(l);
        }
        let Some(result) = result else {
            ffi::lua_error(l);
        };
        relieve_or_raise(l, shared);
        result
    }
}

/// Continues as the C function in upvalue 1, in the same frame so that errors name the right function. Does
/// not return from a stopped script (L5).
unsafe extern "C-unwind" fn guarded(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; the functions guarded are Lua's own, which have no upvalues; nothing is owned
    // (L3).
    unsafe {
        let Some(function) = ffi::lua_tocfunction(l, ffi::lua_upvalueindex(1)) else {
            return 0;
        };
        let shared = shared_of(l);
        let mark = shared.session.pattern.len();
        let results = function(l);
        shared.session.pattern.cut(mark);
        shared.raising_memory.set(false);
        if shared_of(l).stop.get().is_some() {
            raise_stop(l);
        }
        results
    }
}

unsafe extern "C-unwind" {
    /// Counts work on `bytes` bytes as instructions (`build.rs`).
    fn evenkeel_charge(l: *mut lua_State, bytes: usize);
    /// As `evenkeel_charge`, and calls the hook if it is due.
    fn evenkeel_step(l: *mut lua_State, bytes: usize);
    /// Sets the state that runs on this thread; returns the previous one.
    fn evenkeel_runs(l: *mut lua_State) -> *mut lua_State;
    /// Takes a step of the collector. Not 0 when a cycle ended.
    fn evenkeel_collect(l: *mut lua_State) -> c_int;
}

/// Calls upvalue 1 with all arguments; a read-only table as the first one is replaced by the real table. If
/// upvalue 2 is true, a long string or table there is announced to the host.
unsafe extern "C-unwind" fn through(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; slots are free by LUA_MINSTACK; nothing is owned when something raises (L3).
    unsafe {
        let shared = shared_of(l);
        let kind = ffi::lua_type(l, 1);
        if kind == ffi::LUA_TTABLE && ffi::lua_getmetatable(l, 1) != 0 {
            let found = shared.proxied(ffi::lua_topointer(l, -1) as usize);
            ffi::lua_settop(l, -2);
            if let Some(real) = found {
                ffi::lua_rawgeti_(l, ffi::LUA_REGISTRYINDEX, real.0);
                ffi::lua_replace(l, 1);
            }
        }
        if ffi::lua_toboolean(l, ffi::lua_upvalueindex(2)) != 0 {
            let bytes = match kind {
                ffi::LUA_TTABLE => ffi::lua_objlen(l, 1).saturating_mul(16),
                ffi::LUA_TSTRING => ffi::lua_objlen(l, 1),
                _ => 0,
            };
            evenkeel_charge(l, bytes);
            if bytes >= crate::HEAVY_BYTES {
                shared.may_do(bytes);
            }
        }
        if shared.stop.get().is_some() {
            raise_stop(l);
        }
        guarded(l)
    }
}

/// `xpcall`. The script's handler does not run for a stop or a memory error. The hook raises both, so the
/// handler would run with hooks off and could not be ended.
unsafe extern "C-unwind" fn guarded_xpcall(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; slots are free by LUA_MINSTACK; nothing is owned (L3).
    unsafe {
        ffi::luaL_checkany(l, 2);
        ffi::lua_settop(l, 2);
        ffi::lua_pushcclosure(l, guarded_handler, 1);
        ffi::lua_insert(l, 1);
        let shared = shared_of(l);
        let mark = shared.session.pattern.len();
        let status = ffi::lua_pcall(l, 0, ffi::LUA_MULTRET, 1);
        shared.session.pattern.cut(mark);
        shared.raising_memory.set(false);
        if shared.stop.get().is_some() {
            raise_stop(l);
        }
        ffi::lua_pushboolean(l, c_int::from(status == 0));
        ffi::lua_replace(l, 1);
        ffi::lua_gettop(l)
    }
}

/// Calls the handler in upvalue 1 with the error.
unsafe extern "C-unwind" fn guarded_handler(l: *mut lua_State) -> c_int {
    // SAFETY: as `guarded_xpcall`.
    unsafe {
        let shared = shared_of(l);
        ffi::lua_settop(l, 1);
        if shared.stop.get().is_some() || shared.raising_memory.get() {
            return 1;
        }
        ffi::lua_pushvalue(l, ffi::lua_upvalueindex(1));
        ffi::lua_insert(l, 1);
        ffi::lua_call(l, 1, 1);
        1
    }
}

/// `pcall` as scripts see it: an error table with a text in its field `err` is replaced by that text.
unsafe extern "C-unwind" fn redis_pcall(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; slots are free by LUA_MINSTACK; nothing is owned (L3). `err` is fetched raw.
    unsafe {
        ffi::luaL_checkany(l, 1);
        // The first result goes below the others before the call: they may fill the frame.
        ffi::lua_pushboolean(l, 1);
        ffi::lua_insert(l, 1);
        let session = &shared_of(l).session;
        let mark = session.pattern.len();
        let status = ffi::lua_pcall(l, ffi::lua_gettop(l) - 2, ffi::LUA_MULTRET, 0);
        session.pattern.cut(mark);
        shared_of(l).raising_memory.set(false);
        if shared_of(l).stop.get().is_some() {
            raise_stop(l);
        }
        if status == 0 {
            return ffi::lua_gettop(l);
        }
        if ffi::lua_type(l, -1) == ffi::LUA_TTABLE {
            ffi::lua_pushlstring_(l, c"err".as_ptr(), 3);
            ffi::lua_rawget_(l, -2);
            if ffi::lua_isstring(l, -1) == 0 {
                ffi::lua_settop(l, -2);
            }
        }
        ffi::lua_pushboolean(l, 0);
        ffi::lua_insert(l, -2);
        2
    }
}
