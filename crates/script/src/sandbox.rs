//! The globals of a script: a fixed choice, read-only.
//!
//! Lua 5.1 has no read-only tables. A script sees *proxies*: empty tables whose metatable shows the real
//! table and refuses writes. Functions that would read the empty table (`next`, `pairs`, `rawget`, `foreach`)
//! go to the real one. Those that would write to it (`rawset`, `table.insert`, `setmetatable`) are refused,
//! and `getmetatable` hides these metatables.
//!
//! ```text
//!   script's environment = _G ──proxy──► real globals ──__index──► "nonexistent global variable"
//!                                           │ string, redis, cjson, …
//!                                           └──proxy──► real library table
//! ```
//!
//! Cost: a global takes 10 ns more than an own table; a call through the environment and a library
//! (`redis.call`), 20 ns.

use std::ffi::CString;

use crate::api::{self, Table};
use crate::lua::{NativeFn, Outcome, Raise, Ref, Standard, State, Type, native};
use crate::random::Random;
use crate::reply::ONE;
use crate::session::Names;
use crate::{bit, cjson, cmsgpack, pack, pattern};

const READ_ONLY: &str = "Attempt to modify a readonly table";
const TEXT_BYTES_MAX: usize = 512 << 20;

/// References into a state that is set up, for the engine.
#[derive(Clone, Copy)]
pub(crate) struct Globals {
    /// The table for KEYS and ARGV.
    pub(crate) real: Ref,
    pub(crate) proxy: Ref,
    /// The table that `proxy` shows while a library is loaded.
    pub(crate) load: Ref,
    pub(crate) handler: Ref,
    pub(crate) keys: Ref,
    pub(crate) argv: Ref,
}

/// Fills a fresh state. About 50 µs.
pub(crate) fn set_up(s: &mut State<'_>, which: Table, version: (&str, u32)) -> Globals {
    for library in [Standard::Base, Standard::Table, Standard::String, Standard::Math] {
        s.open(library);
    }
    set_up_names(s);
    s.push_globals();
    let original = s.top();
    s.push_table(0, 64);
    let real = s.top();
    let copied = [
        "assert", "error", "ipairs", "select", "tonumber", "tostring", "type", "unpack", "rawequal",
        "_VERSION",
    ];
    for name in copied {
        s.push_field(original, name);
        s.set_field(real, name);
    }
    base_functions(s, original, real);
    for name in ["string", "table", "math", "coroutine"] {
        s.push_field(original, name);
        match name {
            "string" => string_functions(s),
            "table" => table_functions(s),
            "math" => math_functions(s),
            _ => {
                s.push_field(-1, "resume");
                s.guard_function();
                s.set_field(-2, "resume");
            }
        }
        set_read_only(s, real, name);
    }
    for (name, push) in [
        ("cjson", cjson::push_library as fn(&mut State<'_>)),
        ("cmsgpack", cmsgpack::push_library),
        ("struct", pack::push_library),
        ("bit", bit::push_library),
        ("os", push_os),
    ] {
        push(s);
        set_read_only(s, real, name);
    }
    api::push_table(s, which, version);
    set_read_only(s, real, "redis");
    s.push_field(real, "redis");
    s.set_field(real, "server");
    finish(s, which, version, real)
}

/// Pops a table and puts a read-only one into `real[name]`.
fn set_read_only(s: &mut State<'_>, real: i32, name: &str) {
    push_read_only(s);
    s.set_field(real, name);
}

/// Replaces the table on top by its proxy.
fn push_read_only(s: &mut State<'_>) {
    let table = s.top();
    s.push_native(native(refuse_write), 0);
    s.push_proxy(table);
    s.remove(table);
}

/// Makes the table at `index` raise an error for names it does not have.
fn complain_about_missing(s: &mut State<'_>, index: i32) {
    let index = if index < 0 { s.top() + 1 + index } else { index };
    s.push_table(0, 1);
    s.push_native(native(missing_global), 0);
    s.set_field(-2, "__index");
    s.set_metatable(index);
}

fn finish(s: &mut State<'_>, which: Table, version: (&str, u32), real: i32) -> Globals {
    complain_about_missing(s, real);
    s.push_native(native(refuse_write), 0);
    s.push_proxy(real);
    let proxy = s.top();
    s.push_value(proxy);
    s.set_field(real, "_G");
    s.push_value(proxy);
    s.set_globals();
    metatable_functions(s, real);
    load_functions(s, real);
    // While a library is loaded there is only `redis`.
    s.push_table(0, 2);
    let load = s.top();
    if which == Table::Function {
        api::push_table(s, Table::Load, version);
        complain_about_missing(s, -1);
        set_read_only(s, load, "redis");
        s.push_field(load, "redis");
        s.set_field(load, "server");
    }
    complain_about_missing(s, load);
    s.push_native(native(api::error_handler), 0);
    let handler = s.keep();
    let mut keep = |index: i32| {
        s.push_value(index);
        s.keep()
    };
    let (real, proxy, load) = (keep(real), keep(proxy), keep(load));
    Globals { real, proxy, load, handler, keys: keep_name(s, "KEYS"), argv: keep_name(s, "ARGV") }
}

fn keep_name(s: &mut State<'_>, name: &str) -> Ref {
    s.push_bytes(name.as_bytes());
    s.keep()
}

fn set_up_names(s: &mut State<'_>) {
    let mut name = |text: &str| keep_name(s, text);
    let names = Names {
        err: name("err"),
        ok: name("ok"),
        double: name("double"),
        map: name("map"),
        set: name("set"),
        big_number: name("big_number"),
        verbatim_string: name("verbatim_string"),
        json_array: {
            s.push_table(0, 1);
            push_read_only(s);
            s.keep()
        },
    };
    s.session().names.set(Some(names));
}

fn refuse_write(s: &mut State<'_>) -> Outcome {
    s.raise_here(READ_ONLY)
}

fn missing_global(s: &mut State<'_>) -> Outcome {
    let mut message = b"Script attempted to access nonexistent global variable '".to_vec();
    s.text(2);
    let _held = s.hold(3 * s.len(2))?;
    s.tick_bytes(3 * s.len(2))?;
    message.extend_from_slice(s.text(2).unwrap_or(b"(null)"));
    message.push(b'\'');
    s.raise_here(message)
}

fn add(s: &mut State<'_>, table: i32, name: &str, function: NativeFn) {
    s.push_native(function, 0);
    s.set_field(table, name);
}

// ---- base

fn base_functions(s: &mut State<'_>, original: i32, real: i32) {
    for name in ["next", "rawget"] {
        s.push_field(original, name);
        s.through_function(false);
        s.set_field(real, name);
    }
    s.push_xpcall();
    s.set_field(real, "xpcall");
    s.push_pcall();
    s.set_field(real, "pcall");
    s.push_field(original, "next");
    s.push_field(real, "next");
    s.push_native(native(pairs), 2);
    s.set_field(real, "pairs");
    add(s, real, "rawset", native(raw_set));
    add(s, real, "setmetatable", native(set_metatable));
    add(s, real, "collectgarbage", native(collect_garbage));
    add(s, real, "gcinfo", native(gc_info));
}

/// `pairs`. Upvalues: Lua's `next`, and the one that sees through proxies.
fn pairs(s: &mut State<'_>) -> Outcome {
    s.arg_table(1)?;
    let read_only = s.behind_proxy(1).is_some();
    s.push_upvalue(if read_only { 2 } else { 1 });
    s.push_value(1);
    s.push_nil();
    Ok(3)
}

fn raw_set(s: &mut State<'_>) -> Outcome {
    s.arg_table(1)?;
    for n in 2..=3 {
        if s.type_of(n) == Type::None {
            return s.raise_arg(n, "value expected");
        }
    }
    if s.behind_proxy(1).is_some() {
        return s.raise(READ_ONLY);
    }
    match s.type_of(2) {
        Type::Nil => return s.raise("table index is nil"),
        Type::Number if s.number(2).is_nan() => return s.raise("table index is NaN"),
        _ => {}
    }
    s.set_top(3);
    s.raw_set(1);
    ONE
}

fn set_metatable(s: &mut State<'_>) -> Outcome {
    s.arg_table(1)?;
    if !matches!(s.type_of(2), Type::Nil | Type::Table) {
        return s.raise_arg(2, "nil or table expected");
    }
    if s.behind_proxy(1).is_some() {
        return s.raise(READ_ONLY);
    }
    if s.push_metatable(1) && s.push_field(-1, "__metatable") != Type::Nil {
        return s.raise_here("cannot change a protected metatable");
    }
    s.set_top(2);
    s.set_metatable(1);
    ONE
}

/// Adds `getmetatable`. Upvalues: the real globals, and stand-ins for the metatables of `_G` and of strings.
fn metatable_functions(s: &mut State<'_>, real: i32) {
    s.push_value(real);
    s.push_table(0, 1);
    s.push_native(native(missing_global), 0);
    s.set_field(-2, "__index");
    push_read_only(s);
    s.push_table(0, 1);
    s.push_field(real, "string");
    s.set_field(-2, "__index");
    push_read_only(s);
    s.push_native(native(get_metatable), 3);
    s.set_field(real, "getmetatable");
}

fn get_metatable(s: &mut State<'_>) -> Outcome {
    match s.type_of(1) {
        Type::None => return s.raise_arg(1, "value expected"),
        Type::String => {
            s.push_upvalue(3);
            return ONE;
        }
        _ => {}
    }
    if let Some(behind) = s.behind_proxy(1) {
        s.push_ref(behind);
        s.push_upvalue(1);
        if s.identity(-1) == s.identity(-2) {
            s.push_upvalue(2);
        } else {
            s.push_nil();
        }
        return ONE;
    }
    if !s.push_metatable(1) {
        s.push_nil();
    } else if s.push_field(-1, "__metatable") == Type::Nil {
        s.pop(1);
    }
    ONE
}

/// `collectgarbage`. A script may ask and collect, but not switch the collector off for later scripts.
fn collect_garbage(s: &mut State<'_>) -> Outcome {
    s.text(1);
    let _held = s.hold(2 * s.len(1))?;
    let option = s.text(1).unwrap_or(b"collect").to_vec();
    s.tick_bytes(option.len())?;
    let kb = s.raw_gc(3, 0);
    match option.as_slice() {
        b"collect" => {
            s.heavy(kb as usize * 1024)?;
            s.check_stop()?;
            s.raw_gc(2, 0);
            s.push_number(0.0);
        }
        b"count" => {
            let rest = s.raw_gc(4, 0);
            s.push_number(f64::from(kb) + f64::from(rest) / 1024.0);
        }
        b"step" => {
            s.check_stop()?;
            let done = s.raw_gc(5, 64) != 0;
            s.push_bool(done);
        }
        b"stop" | b"restart" => s.push_number(0.0),
        b"setpause" | b"setstepmul" => s.push_number(200.0),
        other => {
            let text = format!("invalid option '{}'", String::from_utf8_lossy(other));
            return s.raise_arg(1, &text);
        }
    }
    ONE
}

fn gc_info(s: &mut State<'_>) -> Outcome {
    let kb = s.raw_gc(3, 0);
    s.push_number(f64::from(kb));
    ONE
}

// ---- loading code

/// `load`: collects its pieces and hands them to `loadstring`.
const LOAD: &[u8] = b"
local loadstring, pcall, type, concat = ...
return function(reader, name)
  local pieces = {}
  while true do
    local ok, piece = pcall(reader)
    if not ok then return nil, piece end
    if piece == nil or piece == '' then break end
    if type(piece) ~= 'string' and type(piece) ~= 'number' then
      return nil, 'reader function must return a string'
    end
    pieces[#pieces + 1] = piece
  end
  return loadstring(concat(pieces), name or '=(load)')
end";

fn load_functions(s: &mut State<'_>, real: i32) {
    add(s, real, "loadstring", native(load_string));
    let compiled = s.load(LOAD, c"=load");
    assert!(compiled.is_ok());
    for name in ["loadstring", "pcall", "type"] {
        s.push_field(real, name);
    }
    s.push_native(native(concat), 0);
    let made = s.protected(4, 1, None);
    assert!(made.is_ok());
    s.push_native(native(load), 1);
    s.set_field(real, "load");
}

/// Upvalue: the function that `LOAD` makes.
fn load(s: &mut State<'_>) -> Outcome {
    if s.type_of(1) != Type::Function {
        return s.raise_type(1, "function");
    }
    s.set_top(2);
    s.push_upvalue(1);
    s.insert(1);
    if s.protected(2, 2, None).is_err() {
        return Err(Raise);
    }
    if s.type_of(-1) == Type::Nil {
        s.pop(1);
        return ONE;
    }
    Ok(2)
}

fn load_string(s: &mut State<'_>) -> Outcome {
    s.arg_text(1)?;
    if !s.is_none_or_nil(2) {
        s.arg_text(2)?;
    }
    let _held = s.hold(2 * s.len(1) + 2 * s.len(2))?;
    let code = s.bytes(1).unwrap_or_default().to_vec();
    let name = s.bytes(2).unwrap_or(&code);
    let name = &name[..memchr::memchr(0, name).unwrap_or(name.len())];
    let name = CString::new(name).unwrap_or_default();
    // Compiling takes some 30 ns a byte.
    s.heavy(code.len().saturating_mul(32))?;
    if s.load(&code, &name).is_ok() {
        return ONE;
    }
    s.push_nil();
    s.insert(-2);
    Ok(2)
}

// ---- string

/// Replaces functions in the table on top. The next two functions do the same.
fn string_functions(s: &mut State<'_>) {
    let table = s.top();
    add(s, table, "rep", native(repeat));
    pattern::replace_functions(s);
}

fn repeat(s: &mut State<'_>) -> Outcome {
    s.arg_text(1)?;
    // Cut as C's int.
    let times = (s.arg_int(2)? as i32).max(0) as usize;
    let text = s.bytes(1).unwrap_or_default();
    let Some(total) = text.len().checked_mul(times).filter(|&n| n <= TEXT_BYTES_MAX) else {
        return s.raise_here("resulting string too large");
    };
    let len = text.len();
    s.heavy(total)?;
    let mut out = s.buffer(|session| &session.buffer);
    out.clear();
    out.fit(s, total)?;
    if let [byte] = s.bytes(1).unwrap_or_default() {
        let byte = *byte;
        s.tick_bytes(total)?;
        out.resize(total, byte);
    } else if len > 0 {
        for _ in 0..times {
            out.extend_from_slice(s.bytes(1).unwrap_or_default());
            s.tick_bytes(len)?;
        }
    }
    s.push_long(&out)?;
    ONE
}

// ---- table

fn table_functions(s: &mut State<'_>) {
    let table = s.top();
    add(s, table, "insert", native(insert));
    add(s, table, "concat", native(concat));
    for (name, announce) in [("sort", true), ("foreach", false)] {
        s.push_field(table, name);
        s.through_function(announce);
        s.set_field(table, name);
    }
}

fn insert(s: &mut State<'_>) -> Outcome {
    s.arg_table(1)?;
    if s.behind_proxy(1).is_some() {
        return s.raise(READ_ONLY);
    }
    let end = (s.len(1) as i32).wrapping_add(1);
    match s.top() {
        2 => s.raw_set_i(1, end),
        3 => {
            let at = s.arg_int(2)? as i32;
            let end = end.max(at);
            s.heavy((i64::from(end) - i64::from(at)).unsigned_abs() as usize * 16)?;
            let mut i = end;
            while i > at {
                s.raw_get_i(1, i - 1);
                s.raw_set_i(1, i);
                i -= 1;
                s.tick()?;
            }
            s.raw_set_i(1, at);
        }
        _ => return s.raise_here("wrong number of arguments to 'insert'"),
    }
    Ok(0)
}

fn concat(s: &mut State<'_>) -> Outcome {
    s.arg_table(1)?;
    if !s.is_none_or_nil(2) {
        s.arg_text(2)?;
    }
    let _held = s.hold(s.len(2))?;
    let separator = s.bytes(2).unwrap_or_default().to_vec();
    s.tick_bytes(separator.len())?;
    let first = if s.is_none_or_nil(3) { 1 } else { s.arg_int(3)? as i32 };
    let last = if s.is_none_or_nil(4) { s.len(1) as i32 } else { s.arg_int(4)? as i32 };
    let mut out = s.buffer(|session| &session.buffer);
    out.clear();
    let mut i = i64::from(first);
    while i <= i64::from(last) {
        s.raw_get_i(1, i as i32);
        // A number is turned into a string.
        if s.type_of(-1) != Type::String && s.text(-1).is_none() {
            let text = format!("invalid value ({}) at index {i} in table for 'concat'", s.type_of(-1).name());
            return s.raise_here(text);
        }
        let bytes = s.len(-1) + separator.len();
        out.fit(s, bytes)?;
        out.extend_from_slice(s.bytes(-1).unwrap_or_default());
        s.pop(1);
        if i < i64::from(last) {
            out.extend_from_slice(&separator);
        }
        if out.len() > TEXT_BYTES_MAX {
            return s.raise("not enough memory");
        }
        s.tick_bytes(bytes)?;
        i += 1;
    }
    s.push_long(&out)?;
    ONE
}

// ---- math, os

fn math_functions(s: &mut State<'_>) {
    let table = s.top();
    add(s, table, "random", native(random));
    add(s, table, "randomseed", native(random_seed));
}

fn random(s: &mut State<'_>) -> Outcome {
    let unit = s.session().next_random();
    let (low, high) = match s.top() {
        0 => {
            s.push_number(unit);
            return ONE;
        }
        1 => (1, s.arg_int(1)?),
        2 => (s.arg_int(1)?, s.arg_int(2)?),
        _ => return s.raise_here("wrong number of arguments"),
    };
    if low > high {
        let n = s.top();
        return s.raise_arg(n, "interval is empty");
    }
    // Computed as in Redis: in C ints, scaled and cut.
    let (low, high) = (low as i32, high as i32);
    let width = f64::from(high.wrapping_sub(low).wrapping_add(1));
    s.push_number((unit * width).floor() + f64::from(low));
    ONE
}

fn random_seed(s: &mut State<'_>) -> Outcome {
    let seed = s.arg_int(1)?;
    s.session().seeded.set(Some(Random::seeded(seed as i32)));
    Ok(0)
}

fn push_os(s: &mut State<'_>) {
    s.push_table(0, 1);
    let table = s.top();
    add(s, table, "clock", native(clock));
}

/// Seconds of monotonic time. Only differences have a meaning.
fn clock(s: &mut State<'_>) -> Outcome {
    s.push_number(stdx::clock::mono_ns() as f64 / 1e9);
    ONE
}
