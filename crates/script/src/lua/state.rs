//! A Lua frame as Rust sees it: values on the stack, tables, functions, errors. All calls of the C API that
//! may raise go through a section (see the module above), so that no Rust frame is jumped over.

use super::*;
use smallvec::SmallVec;

unsafe extern "C-unwind" {
    /// Number of results that the caller of the running function wants; -1 for all (`build.rs`).
    fn evenkeel_wanted(l: *mut lua_State) -> c_int;
    /// Puts `n` strings, [`STRINGS`] at most, into the table from index `first` on. Needs room for one value.
    fn evenkeel_setstrings(l: *mut lua_State, table: c_int, first: c_int, pieces: *const Piece, n: c_int);
}

/// Most strings made at a time.
pub(crate) const STRINGS: usize = 16;

/// A byte string, as C sees it.
#[repr(C)]
struct Piece {
    at: *const u8,
    len: usize,
}

/// Elements between two questions to the host, and bytes that count as one element.
const TICKS: usize = 1024;
const BYTES_PER_TICK: usize = 64;
const _: () = assert!(TICKS.is_power_of_two());

/// A Lua frame as Rust sees it. Arguments stand at 1.., pushed values above them. Negative indices count from
/// the top.
pub(crate) struct State<'a> {
    pub(super) l: *mut lua_State,
    shared: &'a Shared,
    pub(super) top: c_int,
    /// The stack has room up to here.
    room: c_int,
    /// A slot known to hold a table since the last change of the stack; 0: none.
    known_table: Cell<c_int>,
    _not_send: PhantomData<*mut ()>,
}

impl<'a> State<'a> {
    /// # Safety
    /// `l` is a live state in a section, used by nobody else while this lives.
    pub(super) unsafe fn enter(l: *mut lua_State, shared: &'a Shared) -> State<'a> {
        // SAFETY: by the caller.
        let top = unsafe { ffi::lua_gettop(l) };
        State {
            l,
            shared,
            top,
            room: top + ffi::LUA_MINSTACK - 4,
            known_table: Cell::new(0),
            _not_send: PhantomData,
        }
    }

    pub(crate) fn session(&self) -> &'a Session {
        &self.shared.session
    }

    pub(super) fn shared(&self) -> &'a Shared {
        self.shared
    }

    /// Calls the host. Fails if the script must stop, or if there is no host because the state is being set
    /// up.
    pub(crate) fn host<R>(&mut self, f: impl FnOnce(&mut dyn Host) -> R) -> Result<R, Raise> {
        self.host_borrowed(f).ok_or(Raise).or_else(|_| self.raise("no host"))
    }

    /// As [`State::host`], for callers that hold borrowed strings.
    pub(crate) fn host_borrowed<R>(&self, f: impl FnOnce(&mut dyn Host) -> R) -> Option<R> {
        self.shared.host(f)
    }

    /// For loops over much data: counts one element, and asks now and then whether the script may go on.
    #[inline]
    pub(crate) fn tick(&mut self) -> Result<(), Raise> {
        self.ticks(1)
    }

    /// As [`State::tick`], for the work of `count` elements.
    #[inline]
    pub(crate) fn ticks(&mut self, count: u32) -> Result<(), Raise> {
        // Counts across all calls of a script: many short ones take as long as a long one.
        let before = self.shared.ticks.get();
        let after = before.wrapping_add(count);
        self.shared.ticks.set(after);
        if (before ^ after) as usize >= TICKS { self.check_stop() } else { Ok(()) }
    }

    /// As [`State::tick`], for an element of `bytes` bytes. A long one counts as several.
    #[inline]
    pub(crate) fn tick_bytes(&mut self, bytes: usize) -> Result<(), Raise> {
        self.ticks(1 + (bytes / BYTES_PER_TICK).min(TICKS) as u32)
    }

    /// Asks whether the script may go on, and checks its memory.
    pub(crate) fn check_stop(&mut self) -> Result<(), Raise> {
        if self.shared.stop.get().is_none() {
            self.shared.ask(|host| host.interrupt());
        }
        if self.shared.stop.get().is_some() { self.raise("script stopped") } else { self.check_memory() }
    }

    /// As [`State::ticks`], while strings of the state are borrowed. False: the script must end.
    pub(crate) fn spend(&self, count: u32) -> bool {
        let before = self.shared.ticks.get();
        let after = before.wrapping_add(count);
        self.shared.ticks.set(after);
        ((before ^ after) as usize) < TICKS || self.may_go_on()
    }

    /// Whether the script must end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.stop.get().is_some()
    }

    /// As [`State::check_stop`], while strings of the state are borrowed. Does not check memory.
    pub(crate) fn may_go_on(&self) -> bool {
        if self.shared.stop.get().is_none() {
            self.shared.ask(|host| host.interrupt());
        }
        self.shared.stop.get().is_none()
    }

    /// Announces work of about `bytes` bytes that cannot be interrupted.
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

    /// Whether the caller of the running function uses its results.
    pub(crate) fn is_heard(&self) -> bool {
        // SAFETY: a live state, in a function that Lua called; only reads.
        unsafe { evenkeel_wanted(self.l) != 0 }
    }

    /// Makes room for `n` more values. False at 8000 in one frame.
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

    /// The slot of a table. Panics if the value is no table.
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

    /// Cuts the stack, or fills it with nil.
    pub(crate) fn set_top(&mut self, top: c_int) {
        assert!(top >= 0 && (top <= self.top || self.reserve(top - self.top)));
        self.top = top;
        self.known_table.set(0);
        // SAFETY: there is room.
        unsafe { ffi::lua_settop(self.l, top) };
    }

    /// Moves the top value to `index` and shifts the values above.
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

    /// The number, the number that a string reads as, or 0.
    #[inline]
    pub(crate) fn number(&self, index: c_int) -> f64 {
        // SAFETY: as `type_of`; does not convert in place.
        unsafe { ffi::lua_tonumber(self.l, self.slot(index)) }
    }

    /// Whether it is a number, or a string that reads as one.
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

    /// The value at `index`, with one look at its type.
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

    /// The string at `index`. A number there is turned into one; `None` for anything else.
    pub(crate) fn text(&mut self, index: c_int) -> Option<&[u8]> {
        let slot = self.slot(index);
        // SAFETY: converts numbers in place; L6.
        unsafe {
            let mut len = 0;
            let text = ffi::lua_tolstring(self.l, slot, &mut len);
            if text.is_null() { None } else { Some(std::slice::from_raw_parts(text.cast(), len)) }
        }
    }

    /// The bytes of a string, or a border of a table; 0 for anything else.
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

    /// Pushes the value that `keep` returned `reference` for.
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
        // SAFETY: one value there; luaL_ref uses raw access only and needs two slots of its own, from
        // LUA_MINSTACK.
        Ref(unsafe { ffi::luaL_ref(self.l, ffi::LUA_REGISTRYINDEX) })
    }

    pub(crate) fn forget(&mut self, reference: Ref) {
        assert!(self.reserve(2));
        // SAFETY: raw access only, room made.
        unsafe { ffi::luaL_unref(self.l, ffi::LUA_REGISTRYINDEX, reference.0) };
    }

    /// Pushes a function. Takes the top `upvalues` values as its upvalues.
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

    /// Wraps the function on top so that it does not return from a stopped script (L5).
    pub(crate) fn guard_function(&mut self) {
        assert!(self.top >= 1);
        // SAFETY: one value there.
        unsafe { ffi::lua_pushcclosure(self.l, guarded, 1) };
    }

    /// Wraps the function on top so that it sees the real table behind a read-only first argument.
    /// `announce`: it tells the host before it works on something long.
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

    /// Pops value and key into the table. Sets nothing if the key is nil or NaN.
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

    /// Sets `table[first]` and the following to strings; at most [`STRINGS`].
    pub(crate) fn set_strings(&mut self, table: c_int, first: c_int, strings: &[&[u8]]) {
        let slot = self.table(table);
        self.grow();
        self.shrink(1);
        let pieces: SmallVec<[Piece; STRINGS]> =
            strings.iter().map(|text| Piece { at: text.as_ptr(), len: text.len() }).collect();
        assert!(pieces.len() <= STRINGS);
        // SAFETY: room, a table, as many pieces; memory cannot fail (L1).
        unsafe { evenkeel_setstrings(self.l, slot, first, pieces.as_ptr(), pieces.len() as c_int) };
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

    /// Replaces the key on top by the next key and its value. At the end pops it and returns false. The key
    /// must be nil or come from this table, and the table must be unchanged since.
    #[inline]
    pub(crate) fn next(&mut self, table: c_int) -> bool {
        let slot = self.table(table);
        assert!(slot < self.top);
        self.grow();
        // SAFETY: a table, a key on top, room. A key that is not there would raise: see the contract; the
        // callers traverse tables that no Lua code can touch meanwhile.
        let more = unsafe { ffi::lua_next(self.l, slot) != 0 };
        if !more {
            self.shrink(2);
        }
        more
    }

    /// Pushes the metatable; false if there is none.
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

    /// Pops a table and makes it the globals of functions loaded from now on.
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

    /// Pops the function on top, and pushes an empty table that shows the table at `index` and refuses writes
    /// with that function.
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

    /// Makes a proxy show the table on top, and pops that.
    pub(crate) fn redirect_proxy(&mut self, index: c_int) {
        let slot = self.table(index);
        assert!(self.push_metatable(slot));
        self.push_value(-2);
        self.set_field(-2, "__index");
        self.pop(2);
    }

    /// The real table, if the value is a read-only one.
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

    /// As [`State::raise`], with the place in the script of the call in front ("user_script:1: ").
    pub(crate) fn raise_here<T>(&mut self, text: impl AsRef<[u8]>) -> Result<T, Raise> {
        let mut message = self.place(1);
        message.extend_from_slice(text.as_ref());
        self.raise(message)
    }

    /// Makes room for an error value. If the stack is full, drops what the function had pushed.
    fn force_room(&mut self) {
        if !self.reserve(2) {
            let top = self.top.min(1);
            self.set_top(top);
        }
    }

    /// Raises `bad argument #n to 'f' (what)`.
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

    /// A number cut to an integer as C does on x86: a number that does not fit gives the smallest.
    pub(crate) fn arg_int(&mut self, n: c_int) -> Result<i64, Raise> {
        self.arg_number(n).map(crate::text::cut)
    }

    /// Checks for a string, and turns a number into one. `bytes(n)` then gives it.
    pub(crate) fn arg_text(&mut self, n: c_int) -> Result<(), Raise> {
        if self.text(n).is_some() { Ok(()) } else { self.raise_type(n, "string") }
    }

    pub(crate) fn arg_table(&mut self, n: c_int) -> Result<(), Raise> {
        if self.type_of(n) == Type::Table { Ok(()) } else { self.raise_type(n, "table") }
    }

    /// "chunk:line: " of the function `level` levels up, or nothing.
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

    /// The function at `level`; 0 is the running one.
    pub(crate) fn frame(&mut self, level: c_int) -> Option<Frame> {
        assert!(level >= 0);
        // SAFETY: lua_Debug is plain data; getinfo with "Sl" fills it and pushes nothing; its strings are
        // copied at once.
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

    /// Compiles text, never precompiled code (L8), and pushes the function. On failure pushes the message.
    pub(crate) fn load(&mut self, code: &[u8], chunk_name: &std::ffi::CStr) -> Result<(), Failure> {
        self.grow();
        let shielded;
        let code = if code.first() == Some(&0x1b) {
            shielded = [b" ", code].concat();
            &shielded
        } else {
            code
        };
        self.read_code(code, PIECE, chunk_name)
    }

    /// Has Lua read code in pieces of `piece` bytes. Between two of them it can be ended.
    fn read_code(&mut self, code: &[u8], piece: usize, chunk_name: &std::ffi::CStr) -> Result<(), Failure> {
        let mut pieces = Pieces { at: code.as_ptr(), left: code.len(), piece };
        self.shared.section.set(false);
        // SAFETY: the caller made room; lua_load is itself a protected call, so nothing jumps past it, and
        // returns with one value pushed. `pieces` and the code live until then.
        let status =
            unsafe { ffi::lua_load(self.l, next_piece, (&raw mut pieces).cast(), chunk_name.as_ptr()) };
        self.shared.section.set(true);
        self.shared.raising_memory.set(false);
        failure(status)
    }

    /// Resumes a panic of the host that ended a compilation.
    pub(crate) fn resume_panic(&mut self) {
        if let Some(panic) = self.shared.panic.take() {
            resume_unwind(panic);
        }
    }

    /// A dump of the function on top; `None` if it is no Lua function. O(bytes).
    pub(crate) fn dump(&mut self) -> Option<Vec<u8>> {
        let mut code: Vec<u8> = Vec::new();
        // SAFETY: a function of Lua or of C is on top. The writer gets the vector that lives until after the
        // call; lua_dump raises no errors, as it makes nothing in Lua.
        let status = unsafe { ffi::lua_dump_(self.l, write_dump, (&raw mut code).cast()) };
        (status == 0).then_some(code)
    }

    /// Loads a dump that [`State::dump`] made in this process (L8) and pushes the function. On failure pushes
    /// the message.
    pub(crate) fn load_dumped(&mut self, code: &[u8], chunk_name: &std::ffi::CStr) -> Result<(), Failure> {
        self.grow();
        self.shared.undumping.set(true);
        let result = self.read_code(code, usize::MAX, chunk_name);
        self.shared.undumping.set(false);
        result
    }

    /// Calls the function below the top `args` values and keeps `results` of its results. On failure pushes
    /// the error value. `handler` is the slot of an error handler.
    ///
    /// Resumes a panic of the host.
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

    /// Opens one of Lua's own libraries in protected mode. Leaves nothing on the stack.
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

    /// Runs `f` with the collector stopped.
    pub(crate) fn uncollected(&mut self, f: impl FnOnce(&mut Self)) {
        self.raw_gc(ffi::LUA_GCSTOP, 0);
        f(self);
        self.raw_gc(ffi::LUA_GCRESTART, 0);
    }

    /// Calls the collector as `collectgarbage(what, n)` does. `data` is in KB.
    pub(crate) fn raw_gc(&mut self, what: c_int, data: c_int) -> c_int {
        // SAFETY: in a section; unknown requests answer -1.
        unsafe { ffi::lua_gc(self.l, what, data) }
    }
}

/// Bytes of a text that the compiler gets at a time.
const PIECE: usize = 1024;
/// Work counted for each byte read, for text that is only comments.
const READ: usize = 4;

/// The rest of a text that is being compiled.
struct Pieces {
    at: *const u8,
    left: usize,
    piece: usize,
}

/// Gives the compiler the next piece, or none at the end.
unsafe extern "C-unwind" fn next_piece(
    l: *mut lua_State,
    data: *mut c_void,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: `read_code` passed the `Pieces`, which nobody else uses meanwhile, and its text lives. Nothing
    // is owned when the hook raises (L3).
    unsafe {
        let pieces = data.cast::<Pieces>();
        let given = (*pieces).left.min((*pieces).piece);
        if given < (*pieces).left || (*pieces).piece < usize::MAX {
            evenkeel_step(l, given * READ);
        }
        let at = (*pieces).at;
        (*pieces).at = at.add(given);
        (*pieces).left -= given;
        *size = given;
        at.cast()
    }
}

/// Appends a piece of a dump to the vector `data`.
unsafe extern "C-unwind" fn write_dump(
    _: *mut lua_State,
    piece: *const c_void,
    bytes: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: `dump` passed the vector, which nothing else uses meanwhile; Lua passes as many bytes as it
    // says.
    unsafe { (*data.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(piece.cast(), bytes)) };
    0
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
