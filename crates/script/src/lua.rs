//! The Lua 5.1 C API behind safe types: the only file of this crate that may say `unsafe`.
//!
//! ```text
//!   Vm ── owns ──► lua_State ── allocator's ud ──► Shared (counters, stop flag, the host of the running script)
//!   Vm::with(|s: &mut State|)        the base frame, from Rust
//!   native(f) ─► entry::<F>(L) ─►    a frame of its own when Lua calls a Rust function
//! ```
//!
//! Lua raises errors with `longjmp`. A jump over a Rust frame that owns something is undefined, so it must not happen:
//!
//! * **L1** Rust code works on Lua only through [`State`], and every `State` lives in a *section* (`Shared::section` is
//!   set): inside one the allocator never refuses, it only counts. Memory was the only reason left for the functions
//!   used here to raise: `State` uses raw table access (no metamethods), checks types before it asks (K of `rawset` is
//!   neither nil nor NaN, tables are tables), and asks `lua_checkstack`, which answers, before it pushes.
//! * **L2** A Rust function called by Lua returns `Err(Raise)` with the error value on top. [`entry`] raises it, after
//!   that function and everything it owned are gone. `entry` itself owns nothing at that point.
//! * **L3** Functions here that call back into Lua unprotected ([`guarded`], [`redis_pcall`]) own nothing at all, and run
//!   outside of sections, as the interpreter does; a memory limit may therefore raise through them.
//! * **L4** A panic never unwinds into C: `entry` and [`hook`] catch it, keep it in `Shared`, and stop the script;
//!   [`State::protected`] lets it continue on the caller's side.
//! * **L5** Once `Shared::stop` is set, nothing of the script goes on: the hook raises at every further instruction,
//!   `pcall`, `xpcall` and `coroutine.resume` raise instead of returning, no Rust function is entered, no handler of an
//!   `xpcall` called. Lua code never runs with hooks off: there is no `__gc` in reach of a script (`newproxy` is absent),
//!   and handlers are not called for what the hook raises.
//! * **L6** A `&[u8]` into a Lua string borrows the `State`; popping, pushing or collecting needs `&mut State`.
//! * **L7** A `Vm` is used by one thread at a time: everything it points to is reachable through it alone.
//! * **L8** Precompiled code is never loaded (it can break the interpreter): a leading ESC is shown to the parser as text.
//!
//! Costs: a call of a Rust function about 15 ns over the C one; a checked table access 2–3 ns over the C one.

use std::alloc::Layout;
use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;

use mlua_sys as ffi;
use mlua_sys::lua_State;

use crate::session::Session;
use crate::{Host, Stop};

/// No single block above this: strings, and the arrays of tables (33 million slots).
const BLOCK_BYTES_MAX: usize = (512 << 20) + (64 << 10);

/// The error value is on top of the stack.
#[derive(Debug)]
pub(crate) struct Raise;

/// How many values on top of the stack a Rust function returns.
pub(crate) type Outcome = Result<usize, Raise>;

/// A value kept alive in the registry, and its key there.
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

    /// The name as `type()` gives it.
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

/// A value as the encoders want it.
pub(crate) enum View<'a> {
    String(&'a [u8]),
    Number(f64),
    Other(Type),
}

/// How a protected call failed; the error value is on top of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Runtime,
    Syntax,
    Memory,
    Handler,
}

/// What the allocator, the hook and the Rust functions of one `Vm` share. Touched by the thread that uses the `Vm` only.
pub(crate) struct Shared {
    /// Bytes Lua has allocated.
    used_bytes: Cell<usize>,
    /// 0: no limit.
    limit_bytes: Cell<usize>,
    hook_every: Cell<c_int>,
    /// Rust code is working on the state (L1).
    section: Cell<bool>,
    /// "Not enough memory" is being raised, perhaps by the hook: no handler of a script may run (hooks may be off), and
    /// the limit is not looked at again until it is caught.
    raising_memory: Cell<bool>,
    stop: Cell<Option<Stop>>,
    panic: Cell<Option<Box<dyn Any + Send>>>,
    host: Cell<Option<NonNull<dyn Host>>>,
    /// Tables that stand for read-only ones: the address of the metatable, and the table behind.
    proxies: Cell<Vec<(usize, Ref)>>,
    pub(crate) session: Session,
}

/// A Lua state.
pub(crate) struct Vm {
    l: NonNull<lua_State>,
    shared: NonNull<Shared>,
}

// SAFETY: L7. The state, `Shared` and all they point to are owned by the `Vm` and have no thread affinity; the host's
// pointer is set during a call only, and the call keeps the `Vm` borrowed.
unsafe impl Send for Vm {}

impl Vm {
    /// A state without any library. Cost: about 10 µs.
    pub(crate) fn new(limit_bytes: usize, hook_every: u32) -> Vm {
        let shared = Box::new(Shared {
            used_bytes: Cell::new(0),
            limit_bytes: Cell::new(limit_bytes),
            hook_every: Cell::new(hook_every.clamp(1, 1 << 30) as c_int),
            section: Cell::new(true),
            raising_memory: Cell::new(false),
            stop: Cell::new(None),
            panic: Cell::new(None),
            host: Cell::new(None),
            proxies: Cell::new(Vec::new()),
            session: Session::default(),
        });
        let shared = NonNull::from(Box::leak(shared));
        // SAFETY: `allocate` follows the contract of lua_Alloc and `shared` outlives the state (freed in `drop`, after it).
        let l = unsafe { ffi::lua_newstate(allocate, shared.as_ptr().cast()) };
        let l = NonNull::new(l).expect("the allocator never refuses inside a section");
        let vm = Vm { l, shared };
        // SAFETY: a fresh state; sethook does not allocate.
        unsafe { ffi::lua_atpanic(vm.l.as_ptr(), at_panic) };
        vm.arm(vm.shared().hook_every.get());
        vm.shared().section.set(false);
        vm
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: allocated in `new`, freed in `drop`; only ever used through shared references.
        unsafe { self.shared.as_ref() }
    }

    /// Bytes the state has allocated.
    pub(crate) fn used_bytes(&self) -> usize {
        self.shared().used_bytes.get()
    }

    pub(crate) fn set_limit(&mut self, bytes: usize) {
        self.shared().limit_bytes.set(bytes);
    }

    /// A full collection.
    pub(crate) fn collect(&mut self) {
        self.with(|s| {
            // SAFETY: in a section; no finalizers exist (L5).
            unsafe { ffi::lua_gc(s.l, ffi::LUA_GCCOLLECT, 0) };
        });
    }

    /// A slice of collection work of about `kb` KB. True when a cycle ended.
    pub(crate) fn collect_step(&mut self, kb: u32) -> bool {
        // SAFETY: as `collect`.
        self.with(|s| unsafe { ffi::lua_gc(s.l, ffi::LUA_GCSTEP, kb.min(1 << 20) as c_int) != 0 })
    }

    /// Works on the state from outside of any script. The stack is back where it was afterwards.
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut State<'_>) -> R) -> R {
        struct Leave<'a>(&'a Shared, *mut lua_State, c_int);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                // SAFETY: back to a height the stack had before.
                unsafe { ffi::lua_settop(self.1, self.2) };
                self.0.section.set(false);
            }
        }
        let shared = self.shared();
        shared.section.set(true);
        // SAFETY: the state is alive and nobody else uses it (`&mut self`).
        let mut state = unsafe { State::enter(self.l.as_ptr(), shared) };
        let leave = Leave(shared, self.l.as_ptr(), state.top);
        let result = f(&mut state);
        drop(leave);
        result
    }

    /// As [`Vm::with`], with `host` behind the script's calls. Clears what an earlier stop left.
    pub(crate) fn with_host<R>(&mut self, host: &mut dyn Host, f: impl FnOnce(&mut State<'_>) -> R) -> R {
        struct Forget<'a>(&'a Shared);
        impl Drop for Forget<'_> {
            fn drop(&mut self) {
                self.0.host.set(None);
            }
        }
        // SAFETY: only the lifetime changes; the pointer is forgotten before this function returns, even by a panic.
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

    /// Is more than half of the limit in use?
    pub(crate) fn over_half(&self) -> bool {
        let limit = self.shared().limit_bytes.get();
        limit != 0 && self.used_bytes() > limit / 2
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

/// The allocator. Refuses only outside of sections (L1): when one block or the sum would be too large, or the host has no
/// time for the copying that a large block means (strings that double, tables that grow).
unsafe extern "C" fn allocate(ud: *mut c_void, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
    // SAFETY: `ud` is the `Shared` given to lua_newstate, alive as long as the state.
    let shared = unsafe { &*ud.cast::<Shared>() };
    let old = if block.is_null() { 0 } else { old };
    let layout = |bytes: usize| Layout::from_size_align(bytes, 16).unwrap_or_else(|_| std::process::abort());
    if new > old {
        let used = shared.used_bytes.get() + (new - old);
        let limit = shared.limit_bytes.get();
        if !shared.section.get() {
            // Garbage counts too, and is collected by the hook: hence twice the limit.
            if new > BLOCK_BYTES_MAX || (limit != 0 && used / 2 > limit) {
                return std::ptr::null_mut();
            }
            if new >= crate::HEAVY_BYTES && !shared.may_do(new) {
                return std::ptr::null_mut();
            }
        }
    }
    // SAFETY: `block` came from here with size `old` (Lua passes the size it asked for); sizes are not zero where asked.
    let result = unsafe {
        match (old, new) {
            (0, 0) => return std::ptr::null_mut(),
            (0, _) => std::alloc::alloc(layout(new)),
            (_, 0) => {
                std::alloc::dealloc(block.cast(), layout(old));
                shared.used_bytes.set(shared.used_bytes.get() - old);
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
    shared.used_bytes.set(shared.used_bytes.get() - old + new);
    result.cast()
}

unsafe extern "C-unwind" fn at_panic(_: *mut lua_State) -> c_int {
    // An error outside of any protected call: excluded by L1.
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

/// Every so many instructions: may the script go on?
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
        if shared.over_limit() {
            ffi::lua_gc(l, ffi::LUA_GCCOLLECT, 0);
            if shared.over_limit() {
                raise_memory(l);
            }
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
        const TEXT: &[u8] = b"not enough memory";
        shared_of(l).raising_memory.set(true);
        ffi::lua_pushlstring_(l, TEXT.as_ptr().cast(), TEXT.len());
        ffi::lua_error(l)
    }
}

impl Shared {
    /// Calls the host; a panic of it is kept (L4) and stops the script. `None` when there is none to ask.
    fn host<R>(&self, f: impl FnOnce(&mut dyn Host) -> R) -> Option<R> {
        let mut host = self.host.take()?;
        // SAFETY: set by `with_host`, whose caller's `&mut` it is; taken out meanwhile, so there is one user at a time.
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

    /// Announces work from outside of sections.
    fn may_do(&self, bytes: usize) -> bool {
        self.section.set(true);
        self.ask(|host| host.heavy(bytes));
        self.section.set(false);
        self.stop.get().is_none()
    }

    fn keep_panic(&self, panic: Box<dyn Any + Send>) {
        self.panic.set(Some(panic));
        self.stop.set(Some(Stop::Killed));
    }

    /// The table behind the read-only one that has the metatable at this address.
    fn proxied(&self, metatable: usize) -> Option<Ref> {
        let proxies = self.proxies.take();
        let found = proxies.iter().find(|p| p.0 == metatable).map(|p| p.1);
        self.proxies.set(proxies);
        found
    }

    fn over_limit(&self) -> bool {
        let limit = self.limit_bytes.get();
        limit != 0 && self.used_bytes.get() > limit && !self.raising_memory.get()
    }
}

/// A Rust function as Lua can call it.
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

/// What Lua calls in place of `F`.
unsafe extern "C-unwind" fn entry<F>(l: *mut lua_State) -> c_int
where
    F: Fn(&mut State<'_>) -> Outcome + Copy + 'static,
{
    // SAFETY: called by Lua with a thread of a live state, owning nothing. `F` has no size and a value of it was given to
    // `native`, so any well-aligned address is one.
    unsafe { section(l, |s| NonNull::<F>::dangling().as_ref()(s)) as c_int }
}

/// What a function that calls back into Lua wants next.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Return so many values.
    Return(usize),
    /// Call the function below the top so many values, for one result.
    Call(usize),
}

/// As [`native`], for functions that need Lua functions called: `f` leaves its frame for that, and is run again with
/// `true` when the result is on top. What it wants to remember is on the stack.
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
    // SAFETY: as `entry`; owns nothing while Lua code runs (L3). The function and its arguments are on the stack.
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

/// Runs `f` in a section and raises for it: L2 and L4.
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
        if shared.over_limit() {
            ffi::lua_gc(l, ffi::LUA_GCCOLLECT, 0);
            if shared.over_limit() {
                raise_memory(l);
            }
        }
        result
    }
}

/// Goes on as the C function in upvalue 1, in this very frame (so that its errors name the right function), and does not
/// return from a stopped script (L5).
unsafe extern "C-unwind" fn guarded(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; the functions guarded are Lua's own, which have no upvalues; nothing is owned (L3).
    unsafe {
        let Some(function) = ffi::lua_tocfunction(l, ffi::lua_upvalueindex(1)) else {
            return 0;
        };
        let shared = shared_of(l);
        let mark = shared.session.pattern_len();
        let results = function(l);
        shared.session.cut_pattern(mark);
        shared.raising_memory.set(false);
        if shared_of(l).stop.get().is_some() {
            raise_stop(l);
        }
        results
    }
}

/// Calls upvalue 1 with all arguments, the table behind in place of a read-only one as the first. A long string or table
/// there is announced to the host if upvalue 2 is true.
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

/// `xpcall`. The script's handler does not run for a stop, nor for want of memory: both are raised by the hook, the
/// handler would run with hooks off, and nothing could end it.
unsafe extern "C-unwind" fn guarded_xpcall(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; slots are free by LUA_MINSTACK; nothing is owned (L3).
    unsafe {
        ffi::luaL_checkany(l, 2);
        ffi::lua_settop(l, 2);
        ffi::lua_pushcclosure(l, guarded_handler, 1);
        ffi::lua_insert(l, 1);
        let shared = shared_of(l);
        let mark = shared.session.pattern_len();
        let status = ffi::lua_pcall(l, 0, ffi::LUA_MULTRET, 1);
        shared.session.cut_pattern(mark);
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
        // The first result goes below the others before they come: they may fill the frame.
        ffi::lua_pushboolean(l, 1);
        ffi::lua_insert(l, 1);
        let session = &shared_of(l).session;
        let mark = session.pattern_len();
        let status = ffi::lua_pcall(l, ffi::lua_gettop(l) - 2, ffi::LUA_MULTRET, 0);
        session.cut_pattern(mark);
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

/// A Lua frame as Rust sees it: the arguments at 1.., what is pushed above them. Negative indices count from the top.
pub(crate) struct State<'a> {
    l: *mut lua_State,
    shared: &'a Shared,
    top: c_int,
    /// The stack has room up to here.
    room: c_int,
    /// A slot seen to hold a table, and not touched since; 0 for none.
    known_table: Cell<c_int>,
    /// Where the traversal helper counts its calls of [`State::tick`].
    ticks: u32,
    _not_send: PhantomData<*mut ()>,
}

impl<'a> State<'a> {
    /// # Safety
    /// `l` is a live state in a section, used by nobody else while this lives.
    unsafe fn enter(l: *mut lua_State, shared: &'a Shared) -> State<'a> {
        // SAFETY: by the caller.
        let top = unsafe { ffi::lua_gettop(l) };
        State {
            l,
            shared,
            top,
            room: top + ffi::LUA_MINSTACK - 4,
            known_table: Cell::new(0),
            ticks: 0,
            _not_send: PhantomData,
        }
    }

    pub(crate) fn session(&self) -> &'a Session {
        &self.shared.session
    }

    /// Calls the host. Fails when the script must stop (or when there is no host: the state is being set up).
    pub(crate) fn host<R>(&mut self, f: impl FnOnce(&mut dyn Host) -> R) -> Result<R, Raise> {
        self.host_borrowed(f).ok_or(Raise).or_else(|_| self.raise("no host"))
    }

    /// As [`State::host`] for callers that hold borrowed strings.
    pub(crate) fn host_borrowed<R>(&self, f: impl FnOnce(&mut dyn Host) -> R) -> Option<R> {
        self.shared.host(f)
    }

    /// For loops over much data: asks now and then whether the script may go on.
    #[inline]
    pub(crate) fn tick(&mut self) -> Result<(), Raise> {
        self.ticks += 1;
        if self.ticks & 0x3ff == 0 { self.check_stop() } else { Ok(()) }
    }

    pub(crate) fn check_stop(&mut self) -> Result<(), Raise> {
        if self.shared.stop.get().is_none() {
            self.shared.ask(|host| host.interrupt());
        }
        if self.shared.stop.get().is_some() { self.raise("script stopped") } else { Ok(()) }
    }

    /// As [`State::check_stop`], while strings of the state are borrowed.
    pub(crate) fn may_go_on(&self) -> bool {
        if self.shared.stop.get().is_none() {
            self.shared.ask(|host| host.interrupt());
        }
        self.shared.stop.get().is_none()
    }

    /// Announces work that cannot be interrupted, of about so many bytes.
    pub(crate) fn heavy(&mut self, bytes: usize) -> Result<(), Raise> {
        if bytes < crate::HEAVY_BYTES {
            return Ok(());
        }
        self.shared.ask(|host| host.heavy(bytes));
        if self.shared.stop.get().is_some() { self.raise("script stopped") } else { Ok(()) }
    }

    // ---- the stack

    pub(crate) fn top(&self) -> c_int {
        self.top
    }

    /// Makes room for `n` more values. Fails at 8000 in one frame.
    pub(crate) fn reserve(&mut self, n: c_int) -> bool {
        if self.top + n <= self.room {
            return true;
        }
        let want = n + 16;
        // SAFETY: answers 0 rather than raising when too much; memory cannot fail (L1).
        let granted = unsafe {
            if ffi::lua_checkstack(self.l, want) != 0 {
                want
            } else if ffi::lua_checkstack(self.l, n) != 0 {
                n
            } else {
                return false;
            }
        };
        self.room = self.top + granted;
        true
    }

    #[inline]
    fn shrink(&mut self, n: c_int) {
        self.top -= n;
        if self.known_table.get() > self.top {
            self.known_table.set(0);
        }
    }

    #[inline]
    fn grow(&mut self) {
        if self.top >= self.room {
            assert!(self.reserve(1), "depth is bounded by the caller with `reserve`");
        }
        self.top += 1;
    }

    #[inline]
    fn slot(&self, index: c_int) -> c_int {
        let slot = if index < 0 { self.top + 1 + index } else { index };
        assert!(slot >= 1);
        slot
    }

    /// The slot of a table; panics when there is none.
    #[inline]
    fn table(&self, index: c_int) -> c_int {
        let slot = self.slot(index);
        if self.known_table.get() != slot {
            // SAFETY: any positive index may be asked for its type.
            assert!(unsafe { ffi::lua_type(self.l, slot) } == ffi::LUA_TTABLE);
            self.known_table.set(slot);
        }
        slot
    }

    pub(crate) fn pop(&mut self, n: c_int) {
        assert!(n >= 0 && n <= self.top);
        self.shrink(n);
        // SAFETY: lower than before.
        unsafe { ffi::lua_settop(self.l, self.top) };
    }

    /// Cuts or fills with nil.
    pub(crate) fn set_top(&mut self, top: c_int) {
        assert!(top >= 0 && (top <= self.top || self.reserve(top - self.top)));
        self.top = top;
        self.known_table.set(0);
        // SAFETY: there is room.
        unsafe { ffi::lua_settop(self.l, top) };
    }

    /// Moves the top value to `index`, shifting what is above.
    pub(crate) fn insert(&mut self, index: c_int) {
        let slot = self.slot(index);
        assert!(slot <= self.top);
        self.known_table.set(0);
        // SAFETY: a valid slot.
        unsafe { ffi::lua_insert(self.l, slot) };
    }

    /// Pops the top value into the slot at `index`.
    pub(crate) fn replace(&mut self, index: c_int) {
        let slot = self.slot(index);
        assert!(slot < self.top);
        self.shrink(1);
        self.known_table.set(0);
        // SAFETY: a valid slot below the top.
        unsafe { ffi::lua_replace(self.l, slot) };
    }

    pub(crate) fn remove(&mut self, index: c_int) {
        let slot = self.slot(index);
        assert!(slot <= self.top);
        self.shrink(1);
        self.known_table.set(0);
        // SAFETY: a valid slot.
        unsafe { ffi::lua_remove(self.l, slot) };
    }

    // ---- reading

    #[inline]
    pub(crate) fn type_of(&self, index: c_int) -> Type {
        // SAFETY: any positive index may be asked.
        Type::from_raw(unsafe { ffi::lua_type(self.l, self.slot(index)) })
    }

    pub(crate) fn is_none_or_nil(&self, index: c_int) -> bool {
        matches!(self.type_of(index), Type::None | Type::Nil)
    }

    pub(crate) fn bool(&self, index: c_int) -> bool {
        // SAFETY: as `type_of`.
        unsafe { ffi::lua_toboolean(self.l, self.slot(index)) != 0 }
    }

    /// The number, a string's number, or 0.
    #[inline]
    pub(crate) fn number(&self, index: c_int) -> f64 {
        // SAFETY: as `type_of`; does not convert in place.
        unsafe { ffi::lua_tonumber(self.l, self.slot(index)) }
    }

    /// A number, or a string that reads as one.
    pub(crate) fn is_number(&self, index: c_int) -> bool {
        // SAFETY: as `type_of`.
        unsafe { ffi::lua_isnumber(self.l, self.slot(index)) != 0 }
    }

    /// The string at `index`; `None` for anything else, numbers too.
    #[inline]
    pub(crate) fn bytes(&self, index: c_int) -> Option<&[u8]> {
        let slot = self.slot(index);
        // SAFETY: checked to be a string, so nothing is converted; L6 keeps it on the stack.
        unsafe {
            if ffi::lua_type(self.l, slot) != ffi::LUA_TSTRING {
                return None;
            }
            let mut len = 0;
            let text = ffi::lua_tolstring(self.l, slot, &mut len);
            Some(std::slice::from_raw_parts(text.cast(), len))
        }
    }

    /// What is at `index`, without asking twice.
    #[inline]
    pub(crate) fn view(&self, index: c_int) -> View<'_> {
        let slot = self.slot(index);
        // SAFETY: as `bytes` and `number`.
        unsafe {
            match ffi::lua_type(self.l, slot) {
                ffi::LUA_TSTRING => {
                    let mut len = 0;
                    let text = ffi::lua_tolstring(self.l, slot, &mut len);
                    View::String(std::slice::from_raw_parts(text.cast(), len))
                }
                ffi::LUA_TNUMBER => View::Number(ffi::lua_tonumber(self.l, slot)),
                other => View::Other(Type::from_raw(other)),
            }
        }
    }

    /// The string at `index`, a number there being turned into one; `None` for anything else.
    pub(crate) fn text(&mut self, index: c_int) -> Option<&[u8]> {
        let slot = self.slot(index);
        // SAFETY: converts numbers in place; L6.
        unsafe {
            let mut len = 0;
            let text = ffi::lua_tolstring(self.l, slot, &mut len);
            if text.is_null() { None } else { Some(std::slice::from_raw_parts(text.cast(), len)) }
        }
    }

    /// The bytes of a string or a border of a table; 0 for anything but those (and userdata).
    pub(crate) fn len(&self, index: c_int) -> usize {
        match self.type_of(index) {
            // SAFETY: a string or a table at a valid index.
            Type::String | Type::Table => unsafe { ffi::lua_objlen(self.l, self.slot(index)) },
            _ => 0,
        }
    }

    /// The identity of a table, function, thread or userdata.
    pub(crate) fn identity(&self, index: c_int) -> usize {
        // SAFETY: as `type_of`.
        unsafe { ffi::lua_topointer(self.l, self.slot(index)) as usize }
    }

    /// A light userdata's address; 0 for anything else.
    pub(crate) fn light(&self, index: c_int) -> usize {
        if self.type_of(index) == Type::LightUserdata { self.identity(index) } else { 0 }
    }

    // ---- pushing

    #[inline]
    pub(crate) fn push_nil(&mut self) {
        self.grow();
        // SAFETY: `grow` made room, here and below.
        unsafe { ffi::lua_pushnil(self.l) };
    }

    #[inline]
    pub(crate) fn push_bool(&mut self, value: bool) {
        self.grow();
        // SAFETY: room.
        unsafe { ffi::lua_pushboolean(self.l, c_int::from(value)) };
    }

    #[inline]
    pub(crate) fn push_number(&mut self, value: f64) {
        self.grow();
        // SAFETY: room.
        unsafe { ffi::lua_pushnumber(self.l, value) };
    }

    #[inline]
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.grow();
        // SAFETY: room; memory cannot fail (L1).
        unsafe { ffi::lua_pushlstring_(self.l, bytes.as_ptr().cast(), bytes.len()) };
    }

    pub(crate) fn push_light(&mut self, address: usize) {
        self.grow();
        // SAFETY: room; the address is never followed.
        unsafe { ffi::lua_pushlightuserdata(self.l, address as *mut c_void) };
    }

    #[inline]
    pub(crate) fn push_value(&mut self, index: c_int) {
        let slot = self.slot(index);
        assert!(slot <= self.top);
        self.grow();
        // SAFETY: room, a valid slot.
        unsafe { ffi::lua_pushvalue(self.l, slot) };
    }

    /// Pushes what `keep` returned `reference` for.
    #[inline]
    pub(crate) fn push_ref(&mut self, reference: Ref) {
        self.grow();
        // SAFETY: room; the registry is a table.
        unsafe { ffi::lua_rawgeti_(self.l, ffi::LUA_REGISTRYINDEX, reference.0) };
    }

    /// Pops the top value into the registry.
    pub(crate) fn keep(&mut self) -> Ref {
        assert!(self.top >= 1);
        self.shrink(1);
        // SAFETY: one value there; luaL_ref uses raw access only and needs two slots of its own, from LUA_MINSTACK.
        Ref(unsafe { ffi::luaL_ref(self.l, ffi::LUA_REGISTRYINDEX) })
    }

    pub(crate) fn forget(&mut self, reference: Ref) {
        assert!(self.reserve(2));
        // SAFETY: raw access only, room made.
        unsafe { ffi::luaL_unref(self.l, ffi::LUA_REGISTRYINDEX, reference.0) };
    }

    /// Pushes a function, with the top `upvalues` values taken as its upvalues.
    pub(crate) fn push_native(&mut self, function: NativeFn, upvalues: c_int) {
        assert!((0..=self.top).contains(&upvalues) && upvalues < 200);
        if upvalues == 0 {
            self.grow();
        } else {
            self.shrink(upvalues - 1);
        }
        // SAFETY: room, the upvalues are there.
        unsafe { ffi::lua_pushcclosure(self.l, function.0, upvalues) };
    }

    /// Replaces the function on top by one that does not return from a stopped script (L5).
    pub(crate) fn guard_function(&mut self) {
        assert!(self.top >= 1);
        // SAFETY: one value there.
        unsafe { ffi::lua_pushcclosure(self.l, guarded, 1) };
    }

    /// Replaces the function on top by one that sees through read-only tables given as its first argument, and if
    /// `announce`, tells the host before it works on something long.
    pub(crate) fn through_function(&mut self, announce: bool) {
        assert!(self.top >= 1);
        self.push_bool(announce);
        self.shrink(1);
        // SAFETY: two values there.
        unsafe { ffi::lua_pushcclosure(self.l, through, 2) };
    }

    /// Pushes `pcall` as scripts see it.
    pub(crate) fn push_pcall(&mut self) {
        self.grow();
        // SAFETY: room.
        unsafe { ffi::lua_pushcclosure(self.l, redis_pcall, 0) };
    }

    /// Pushes `xpcall`.
    pub(crate) fn push_xpcall(&mut self) {
        self.grow();
        // SAFETY: room.
        unsafe { ffi::lua_pushcclosure(self.l, guarded_xpcall, 0) };
    }

    pub(crate) fn push_upvalue(&mut self, n: c_int) {
        assert!((1..200).contains(&n));
        self.grow();
        // SAFETY: room; an upvalue that is not there reads as nil.
        unsafe { ffi::lua_pushvalue(self.l, ffi::lua_upvalueindex(n)) };
    }

    /// Pops the top value into upvalue `n`, which the running function must have.
    pub(crate) fn set_upvalue(&mut self, n: c_int) {
        assert!(self.top >= 1 && (1..200).contains(&n));
        // SAFETY: asks for the type; an upvalue that is not there is none.
        assert!(unsafe { ffi::lua_type(self.l, ffi::lua_upvalueindex(n)) } != ffi::LUA_TNONE);
        self.shrink(1);
        // SAFETY: a value on top, an upvalue that is there.
        unsafe { ffi::lua_replace(self.l, ffi::lua_upvalueindex(n)) };
    }

    /// Pushes bytes `from..to` of the string at `index`.
    pub(crate) fn push_part(&mut self, index: c_int, from: usize, to: usize) {
        let slot = self.slot(index);
        self.grow();
        // SAFETY: a string (checked), a range within it (checked); it stays in its slot while it is copied.
        unsafe {
            assert!(ffi::lua_type(self.l, slot) == ffi::LUA_TSTRING);
            let mut len = 0;
            let text = ffi::lua_tolstring(self.l, slot, &mut len);
            assert!(from <= to && to <= len);
            ffi::lua_pushlstring_(self.l, text.add(from), to - from);
        }
    }

    // ---- tables

    #[inline]
    pub(crate) fn push_table(&mut self, array: usize, fields: usize) {
        self.grow();
        // SAFETY: room; hints are bounded so that a lie cannot cost much.
        unsafe { ffi::lua_createtable(self.l, array.min(1 << 24) as c_int, fields.min(1 << 22) as c_int) };
    }

    /// Replaces the key on top by its value.
    #[inline]
    pub(crate) fn raw_get(&mut self, table: c_int) {
        let slot = self.table(table);
        assert!(slot < self.top);
        // SAFETY: a table, a key on top.
        unsafe { ffi::lua_rawget_(self.l, slot) };
    }

    #[inline]
    pub(crate) fn raw_get_i(&mut self, table: c_int, n: c_int) {
        let slot = self.table(table);
        self.grow();
        // SAFETY: a table, room.
        unsafe { ffi::lua_rawgeti_(self.l, slot, n) };
    }

    /// Pops value and key into the table. The key is neither nil nor NaN: else nothing is set.
    #[inline]
    pub(crate) fn raw_set(&mut self, table: c_int) {
        let slot = self.table(table);
        assert!(slot + 2 <= self.top);
        let key = self.top - 1;
        let valid = match self.type_of(key) {
            Type::Nil => false,
            Type::Number => !self.number(key).is_nan(),
            _ => true,
        };
        self.shrink(2);
        // SAFETY: a table below the two; the key is valid, so nothing is raised.
        unsafe {
            if valid {
                ffi::lua_rawset(self.l, slot);
            } else {
                ffi::lua_settop(self.l, self.top);
            }
        }
    }

    /// Pops the top value into `table[n]`.
    #[inline]
    pub(crate) fn raw_set_i(&mut self, table: c_int, n: c_int) {
        let slot = self.table(table);
        assert!(slot < self.top);
        self.shrink(1);
        // SAFETY: a table below the value.
        unsafe { ffi::lua_rawseti_(self.l, slot, n) };
    }

    /// Pops the top value into `table[name]`.
    pub(crate) fn set_field(&mut self, table: c_int, name: &str) {
        let slot = self.slot(table);
        self.push_bytes(name.as_bytes());
        self.insert(-2);
        self.raw_set(slot);
    }

    pub(crate) fn push_field(&mut self, table: c_int, name: &str) -> Type {
        let slot = self.slot(table);
        self.push_bytes(name.as_bytes());
        self.raw_get(slot);
        self.type_of(-1)
    }

    /// Replaces the key on top by the next key and its value; pops it and says false at the end. The key must be one
    /// that this table gave (or nil), and the table unchanged since.
    #[inline]
    pub(crate) fn next(&mut self, table: c_int) -> bool {
        let slot = self.table(table);
        assert!(slot < self.top);
        self.grow();
        // SAFETY: a table, a key on top, room. A key that is not there would raise: see the contract; the callers
        // traverse tables that no Lua code can touch meanwhile.
        let more = unsafe { ffi::lua_next(self.l, slot) != 0 };
        if !more {
            self.shrink(2);
        }
        more
    }

    /// Pushes the metatable, if there is one.
    #[inline]
    pub(crate) fn push_metatable(&mut self, index: c_int) -> bool {
        let slot = self.slot(index);
        self.grow();
        // SAFETY: room.
        let found = unsafe { ffi::lua_getmetatable(self.l, slot) != 0 };
        if !found {
            self.shrink(1);
        }
        found
    }

    /// Pops a table or nil and makes it the metatable of the value at `index`.
    pub(crate) fn set_metatable(&mut self, index: c_int) {
        let slot = self.slot(index);
        assert!(slot < self.top && matches!(self.type_of(-1), Type::Table | Type::Nil));
        self.shrink(1);
        // SAFETY: a table or nil on top.
        unsafe { ffi::lua_setmetatable(self.l, slot) };
    }

    /// Pops a table and makes it the one that functions loaded from now on have as their globals.
    pub(crate) fn set_globals(&mut self) {
        assert!(self.type_of(-1) == Type::Table);
        self.shrink(1);
        // SAFETY: a table on top.
        unsafe { ffi::lua_replace(self.l, ffi::LUA_GLOBALSINDEX) };
    }

    pub(crate) fn push_globals(&mut self) {
        self.grow();
        // SAFETY: room.
        unsafe { ffi::lua_pushvalue(self.l, ffi::LUA_GLOBALSINDEX) };
    }

    /// Pushes an empty table that shows `index`'s table and refuses writes with the function on top, which it pops.
    pub(crate) fn push_proxy(&mut self, index: c_int) {
        let slot = self.table(index);
        self.push_table(0, 0);
        self.push_table(0, 2);
        self.push_value(slot);
        self.set_field(-2, "__index");
        self.push_value(-3);
        self.set_field(-2, "__newindex");
        let metatable = self.identity(-1);
        self.set_metatable(-2);
        self.push_value(slot);
        let real = self.keep();
        let mut proxies = self.shared.proxies.take();
        proxies.push((metatable, real));
        self.shared.proxies.set(proxies);
        self.remove(-2);
    }

    /// Makes a proxy show another table, which it pops.
    pub(crate) fn redirect_proxy(&mut self, index: c_int) {
        let slot = self.table(index);
        assert!(self.push_metatable(slot));
        self.push_value(-2);
        self.set_field(-2, "__index");
        self.pop(2);
    }

    /// If the value is a read-only table: the table behind it.
    #[inline]
    pub(crate) fn behind_proxy(&mut self, index: c_int) -> Option<Ref> {
        if !self.push_metatable(index) {
            return None;
        }
        let metatable = self.identity(-1);
        self.pop(1);
        self.shared.proxied(metatable)
    }

    // ---- errors

    /// Pushes `text` as the error value.
    pub(crate) fn raise<T>(&mut self, text: impl AsRef<[u8]>) -> Result<T, Raise> {
        self.force_room();
        self.push_bytes(text.as_ref());
        Err(Raise)
    }

    /// As [`State::raise`], after the place in the script that called this function ("user_script:1: ").
    pub(crate) fn raise_here<T>(&mut self, text: impl AsRef<[u8]>) -> Result<T, Raise> {
        let mut message = self.place(1);
        message.extend_from_slice(text.as_ref());
        self.raise(message)
    }

    /// A failing function gives up what it had pushed when the stack is full.
    fn force_room(&mut self) {
        if !self.reserve(2) {
            let top = self.top.min(1);
            self.set_top(top);
        }
    }

    /// `bad argument #n to 'f' (what)`.
    pub(crate) fn raise_arg<T>(&mut self, n: c_int, what: &str) -> Result<T, Raise> {
        let (name, method) = self.called_as();
        let text = match (method, n) {
            (true, 1) => format!("calling '{name}' on bad self ({what})"),
            (true, n) => format!("bad argument #{} to '{name}' ({what})", n - 1),
            (false, n) => format!("bad argument #{n} to '{name}' ({what})"),
        };
        self.raise_here(text)
    }

    pub(crate) fn raise_type<T>(&mut self, n: c_int, expected: &str) -> Result<T, Raise> {
        let got = self.type_of(n).name();
        self.raise_arg(n, &format!("{expected} expected, got {got}"))
    }

    pub(crate) fn arg_number(&mut self, n: c_int) -> Result<f64, Raise> {
        if self.is_number(n) { Ok(self.number(n)) } else { self.raise_type(n, "number") }
    }

    /// A number cut to an integer as C does.
    pub(crate) fn arg_int(&mut self, n: c_int) -> Result<i64, Raise> {
        self.arg_number(n).map(|x| x as i64)
    }

    /// Checks for a string (a number is made one); `bytes(n)` then gives it.
    pub(crate) fn arg_text(&mut self, n: c_int) -> Result<(), Raise> {
        if self.text(n).is_some() { Ok(()) } else { self.raise_type(n, "string") }
    }

    pub(crate) fn arg_table(&mut self, n: c_int) -> Result<(), Raise> {
        if self.type_of(n) == Type::Table { Ok(()) } else { self.raise_type(n, "table") }
    }

    /// "chunk:line: " of the function `level` above, or nothing.
    pub(crate) fn place(&mut self, level: c_int) -> Vec<u8> {
        match self.frame(level) {
            Some(frame) if frame.line > 0 => {
                let mut text = frame.short_source;
                text.extend_from_slice(format!(":{}: ", frame.line).as_bytes());
                text
            }
            _ => Vec::new(),
        }
    }

    /// The function at `level`: 0 is the running one.
    pub(crate) fn frame(&mut self, level: c_int) -> Option<Frame> {
        assert!(level >= 0);
        // SAFETY: lua_Debug is plain data; getinfo with "Sl" fills it and pushes nothing; its strings are copied at once.
        unsafe {
            let mut ar: ffi::lua_Debug = std::mem::zeroed();
            if ffi::lua_getstack(self.l, level, &mut ar) == 0 {
                return None;
            }
            ffi::lua_getinfo(self.l, c"Sl".as_ptr(), &mut ar);
            let text = |p: *const c_char| std::ffi::CStr::from_ptr(p).to_bytes().to_vec();
            Some(Frame {
                is_c: std::ffi::CStr::from_ptr(ar.what) == c"C",
                source: text(ar.source),
                short_source: text(ar.short_src.as_ptr()),
                line: ar.currentline,
            })
        }
    }

    fn called_as(&mut self) -> (String, bool) {
        // SAFETY: as `frame`, with "n".
        unsafe {
            let mut ar: ffi::lua_Debug = std::mem::zeroed();
            if ffi::lua_getstack(self.l, 0, &mut ar) == 0 {
                return ("?".into(), false);
            }
            ffi::lua_getinfo(self.l, c"n".as_ptr(), &mut ar);
            if ar.name.is_null() {
                return ("?".into(), false);
            }
            let name = std::ffi::CStr::from_ptr(ar.name).to_string_lossy().into_owned();
            (name, std::ffi::CStr::from_ptr(ar.namewhat) == c"method")
        }
    }

    // ---- code

    /// Compiles text (never precompiled code, L8) and pushes the function; on failure pushes the message.
    pub(crate) fn load(&mut self, code: &[u8], chunk_name: &std::ffi::CStr) -> Result<(), Failure> {
        self.grow();
        let shielded;
        let code = if code.first() == Some(&0x1b) {
            shielded = [b" ", code].concat();
            &shielded
        } else {
            code
        };
        self.shared.section.set(false);
        // SAFETY: room; lua_load is itself a protected call, so nothing jumps past it; it returns with one value pushed.
        let status =
            unsafe { ffi::luaL_loadbuffer(self.l, code.as_ptr().cast(), code.len(), chunk_name.as_ptr()) };
        self.shared.section.set(true);
        failure(status)
    }

    /// Calls the function below the top `args` values, with all values but `results` of what it returns dropped; on
    /// failure pushes the error value. `handler` is the slot of an error handler.
    ///
    /// Continues a panic of the host.
    pub(crate) fn protected(
        &mut self,
        args: c_int,
        results: c_int,
        handler: Option<c_int>,
    ) -> Result<(), Failure> {
        assert!(args >= 0 && args < self.top && (0..=16).contains(&results));
        let base = self.top - args - 1;
        assert!(self.reserve(results + 1));
        let handler = handler.map_or(0, |h| self.slot(h));
        assert!(handler <= base);
        self.shared.section.set(false);
        // SAFETY: function and arguments are on the stack, there is room for the results; errors end here.
        let status = unsafe { ffi::lua_pcall(self.l, args, results, handler) };
        self.shared.section.set(true);
        self.shared.raising_memory.set(false);
        self.known_table.set(0);
        // SAFETY: asks for the height.
        self.top = unsafe { ffi::lua_gettop(self.l) };
        if let Some(panic) = self.shared.panic.take() {
            self.set_top(base);
            resume_unwind(panic);
        }
        failure(status)
    }

    /// Opens one of Lua's own libraries: runs protected, leaves nothing on the stack.
    pub(crate) fn open(&mut self, library: Standard) {
        let open = match library {
            Standard::Base => ffi::luaopen_base,
            Standard::Table => ffi::luaopen_table,
            Standard::String => ffi::luaopen_string,
            Standard::Math => ffi::luaopen_math,
        };
        let name = match library {
            Standard::Base => "",
            Standard::Table => "table",
            Standard::String => "string",
            Standard::Math => "math",
        };
        self.grow();
        // SAFETY: room; a C function of Lua's own.
        unsafe { ffi::lua_pushcclosure(self.l, open, 0) };
        self.push_bytes(name.as_bytes());
        let opened = self.protected(1, 0, None);
        assert!(opened.is_ok(), "a fresh state opens its libraries");
    }

    /// Runs the collector as `collectgarbage(what, n)` does, with `count` in KB.
    pub(crate) fn raw_gc(&mut self, what: c_int, data: c_int) -> c_int {
        // SAFETY: in a section; unknown requests answer -1.
        unsafe { ffi::lua_gc(self.l, what, data) }
    }
}

fn failure(status: c_int) -> Result<(), Failure> {
    match status {
        0 => Ok(()),
        ffi::LUA_ERRSYNTAX => Err(Failure::Syntax),
        ffi::LUA_ERRMEM => Err(Failure::Memory),
        ffi::LUA_ERRERR => Err(Failure::Handler),
        _ => Err(Failure::Runtime),
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Standard {
    Base,
    Table,
    String,
    Math,
}

/// A function on the call stack.
pub(crate) struct Frame {
    pub(crate) is_c: bool,
    pub(crate) source: Vec<u8>,
    pub(crate) short_source: Vec<u8>,
    pub(crate) line: c_int,
}
