//! `cmsgpack`: MessagePack for the types that Lua has. Tables nested deeper than 16 are packed as nil.
//!
//! Cost: O(size). Decoding recurses at most `DEPTH_MAX` deep (S4).

use crate::lua::{Buffer, NativeFn, Outcome, Raise, State, Type, View, native};
use crate::reply::ONE;

/// Most bytes of a number, or of the head of a string or table.
const HEAD: usize = 16;
/// Room is made for this many elements at once: a head may lie.
const AHEAD: usize = 64;
/// Making a table counts as this many elements.
const TABLE: u32 = 16;

const NESTING_MAX: u32 = 16;
const DEPTH_MAX: u32 = 3_500;

pub(crate) fn push_library(s: &mut State<'_>) {
    s.push_table(0, 6);
    let functions: [(&str, NativeFn); 4] = [
        ("pack", native(pack)),
        ("unpack", native(|s| unpack_from(s, 0, 0))),
        ("unpack_one", native(unpack_one)),
        ("unpack_limit", native(unpack_limit)),
    ];
    for (name, function) in functions {
        s.push_native(function, 0);
        s.set_field(-2, name);
    }
    s.push_bytes(b"cmsgpack");
    s.set_field(-2, "_NAME");
    s.push_bytes(b"lua-cmsgpack 0.4.0");
    s.set_field(-2, "_VERSION");
}

fn pack(s: &mut State<'_>) -> Outcome {
    let args = s.top();
    if args == 0 {
        return s.raise_arg(0, "MessagePack pack needs input.");
    }
    let mut out = s.buffer(|session| &session.buffer);
    out.clear();
    for i in 1..=args {
        if !s.reserve(2) {
            return s.raise_here("stack overflow (in function mp_check)");
        }
        s.push_value(i);
        write_value(s, &mut out, 0)?;
    }
    s.push_long(&out)?;
    ONE
}

/// Writes the value on top and pops it.
fn write_value(s: &mut State<'_>, out: &mut Buffer<'_>, level: u32) -> Result<(), Raise> {
    let mut bytes = 0;
    let len = if s.type_of(-1) == Type::String { s.len(-1) } else { 0 };
    out.fit(s, len + HEAD)?;
    match s.view(-1) {
        View::String(text) => {
            match text.len() {
                n @ 0..=31 => out.push(0xa0 | n as u8),
                n @ 32..=0xff => out.extend_from_slice(&[0xd9, n as u8]),
                n @ 0x100..=0xffff => write_head(0xda, &(n as u16).to_be_bytes(), out),
                n => write_head(0xdb, &(n as u32).to_be_bytes(), out),
            }
            out.extend_from_slice(text);
            bytes = text.len();
        }
        View::Other(Type::Bool) => out.push(if s.bool(-1) { 0xc3 } else { 0xc2 }),
        View::Number(value) => write_number(value, out),
        View::Other(Type::Table) if level < NESTING_MAX => write_table(s, out, level)?,
        _ => out.push(0xc0),
    }
    s.pop(1);
    s.tick_bytes(bytes)
}

fn write_head(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(bytes);
}

fn write_number(value: f64, out: &mut Vec<u8>) {
    const BOUND: f64 = 9_223_372_036_854_775_808.0;
    if (-BOUND..BOUND).contains(&value) && value == value.trunc() {
        return write_integer(value as i64, out);
    }
    let single = value as f32;
    if f64::from(single) == value {
        write_head(0xca, &single.to_be_bytes(), out);
    } else {
        write_head(0xcb, &value.to_be_bytes(), out);
    }
}

fn write_integer(value: i64, out: &mut Vec<u8>) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        0x100..=0xffff => write_head(0xcd, &(value as u16).to_be_bytes(), out),
        0x1_0000..=0xffff_ffff => write_head(0xce, &(value as u32).to_be_bytes(), out),
        0x1_0000_0000.. => write_head(0xcf, &value.to_be_bytes(), out),
        -32..=-1 => out.push(value as u8),
        -0x80..=-33 => out.extend_from_slice(&[0xd0, value as u8]),
        -0x8000..=-0x81 => write_head(0xd1, &(value as i16).to_be_bytes(), out),
        -0x8000_0000..=-0x8001 => write_head(0xd2, &(value as i32).to_be_bytes(), out),
        _ => write_head(0xd3, &value.to_be_bytes(), out),
    }
}

fn write_table(s: &mut State<'_>, out: &mut Buffer<'_>, level: u32) -> Result<(), Raise> {
    if !s.reserve(4) {
        return s.raise_here("stack overflow (in function lua_table_to_msgpack)");
    }
    let table = s.top();
    let (count, is_array) = measure(s, table)?;
    match (count, is_array) {
        (n @ 0..=15, true) => out.push(0x90 | n as u8),
        (n @ 16..=0xffff, true) => write_head(0xdc, &(n as u16).to_be_bytes(), out),
        (n, true) => write_head(0xdd, &n.to_be_bytes(), out),
        (n @ 0..=15, false) => out.push(0x80 | n as u8),
        (n @ 16..=0xffff, false) => write_head(0xde, &(n as u16).to_be_bytes(), out),
        (n, false) => write_head(0xdf, &n.to_be_bytes(), out),
    }
    if is_array {
        for i in 1..=count as i32 {
            s.raw_get_i(table, i);
            write_value(s, out, level + 1)?;
        }
        return Ok(());
    }
    s.push_nil();
    while s.next(table) {
        s.push_value(-2);
        write_value(s, out, level + 1)?;
        write_value(s, out, level + 1)?;
    }
    Ok(())
}

/// The number of entries, and whether their keys are exactly 1 to that number.
fn measure(s: &mut State<'_>, table: i32) -> Result<(u32, bool), Raise> {
    let (mut count, mut max, mut indexes) = (0u32, 0f64, true);
    s.push_nil();
    while s.next(table) {
        s.pop(1);
        let key = s.number(-1);
        indexes &= s.type_of(-1) == Type::Number && key > 0.0 && key == key.trunc();
        max = max.max(key);
        count += 1;
        s.tick()?;
    }
    Ok((count, indexes && max == f64::from(count)))
}

fn unpack_one(s: &mut State<'_>) -> Outcome {
    let offset = if s.is_none_or_nil(2) { 0 } else { s.arg_int(2)? };
    unpack_from(s, 1, offset)
}

fn unpack_limit(s: &mut State<'_>) -> Outcome {
    let limit = s.arg_int(2)?;
    let offset = if s.is_none_or_nil(3) { 0 } else { s.arg_int(3)? };
    unpack_from(s, limit, offset)
}

/// Unpacks up to `limit` values from `offset` on, and puts the offset reached before them (-1: all read).
/// Without limit and offset, unpacks all values and puts nothing before them.
fn unpack_from(s: &mut State<'_>, limit: i64, offset: i64) -> Outcome {
    s.arg_text(1)?;
    s.heavy(s.len(1))?;
    let _held = s.hold(s.len(1))?;
    s.tick_bytes(s.len(1))?;
    let data = s.bytes(1).unwrap_or_default().to_vec();
    if limit < 0 || offset < 0 {
        return s.raise_here(format!(
            "Invalid request to unpack with offset of {} and limit of {}.",
            offset as i32,
            data.len()
        ));
    }
    if offset > data.len() as i64 {
        return s.raise_here(format!("Start offset {offset} greater than input length {}.", data.len()));
    }
    let all = limit == 0 && offset == 0;
    let mut reader = Reader { data: &data, at: offset as usize };
    s.set_top(1);
    let mut count = 0;
    while reader.at < data.len() && (all || count < limit) {
        if !s.reserve(4) {
            return s.raise_here("stack overflow (in function mp_unpack_full)");
        }
        reader.value(s, 0)?;
        count += 1;
    }
    if all {
        return Ok(count as usize);
    }
    let reached = if reader.at == data.len() { -1.0 } else { reader.at as f64 };
    s.push_number(reached);
    s.insert(2);
    Ok(count as usize + 1)
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, s: &mut State<'_>, n: usize) -> Result<&'a [u8], Raise> {
        match self.at.checked_add(n).and_then(|end| self.data.get(self.at..end)) {
            Some(bytes) => {
                self.at += n;
                Ok(bytes)
            }
            None => s.raise_here("Missing bytes in input."),
        }
    }

    fn unsigned(&mut self, s: &mut State<'_>, n: usize) -> Result<u64, Raise> {
        Ok(self.take(s, n)?.iter().fold(0, |value, &b| value << 8 | u64::from(b)))
    }

    /// Pushes the next value.
    fn value(&mut self, s: &mut State<'_>, depth: u32) -> Result<(), Raise> {
        if depth > DEPTH_MAX || !s.reserve(4) {
            return s.raise_here("stack overflow (in function mp_decode_to_lua_type)");
        }
        s.tick()?;
        let kind = self.take(s, 1)?[0];
        match kind {
            0x00..=0x7f => s.push_number(f64::from(kind)),
            0xe0..=0xff => s.push_number(f64::from(kind as i8)),
            0xa0..=0xbf => self.string(s, usize::from(kind & 0x1f))?,
            0x90..=0x9f => self.array(s, usize::from(kind & 0xf), depth)?,
            0x80..=0x8f => self.map(s, usize::from(kind & 0xf), depth)?,
            0xc0 => s.push_nil(),
            0xc2 => s.push_bool(false),
            0xc3 => s.push_bool(true),
            0xca => {
                let bits = self.unsigned(s, 4)? as u32;
                s.push_number(f64::from(f32::from_bits(bits)));
            }
            0xcb => {
                let bits = self.unsigned(s, 8)?;
                s.push_number(f64::from_bits(bits));
            }
            0xcc..=0xcf => {
                let value = self.unsigned(s, 1 << (kind - 0xcc))?;
                s.push_number(value as i64 as f64);
            }
            0xd0..=0xd3 => {
                let size = 1usize << (kind - 0xd0);
                let value = self.unsigned(s, size)?;
                let shift = 64 - 8 * size as u32;
                s.push_number(((value << shift) as i64 >> shift) as f64);
            }
            0xd9..=0xdb => {
                let len = self.unsigned(s, 1 << (kind - 0xd9))?;
                self.string(s, len as usize)?;
            }
            0xdc | 0xdd => {
                let len = self.unsigned(s, 2 << (kind - 0xdc))?;
                self.array(s, len as usize, depth)?;
            }
            0xde | 0xdf => {
                let len = self.unsigned(s, 2 << (kind - 0xde))?;
                self.map(s, len as usize, depth)?;
            }
            _ => return s.raise_here("Bad data format in input."),
        }
        Ok(())
    }

    fn string(&mut self, s: &mut State<'_>, len: usize) -> Result<(), Raise> {
        let bytes = self.take(s, len)?;
        s.push_long(bytes)?;
        s.tick_bytes(len)
    }

    fn array(&mut self, s: &mut State<'_>, len: usize, depth: u32) -> Result<(), Raise> {
        s.ticks(TABLE)?;
        s.push_table(len.min(self.data.len() - self.at).min(AHEAD), 0);
        for i in 0..len {
            self.value(s, depth + 1)?;
            s.raw_set_i(-2, i as i32 + 1);
        }
        Ok(())
    }

    fn map(&mut self, s: &mut State<'_>, len: usize, depth: u32) -> Result<(), Raise> {
        s.ticks(TABLE)?;
        s.push_table(0, len.min((self.data.len() - self.at) / 2).min(AHEAD));
        for _ in 0..len {
            self.value(s, depth + 1)?;
            self.value(s, depth + 1)?;
            match s.type_of(-2) {
                Type::Nil => return s.raise("table index is nil"),
                Type::Number if s.number(-2).is_nan() => return s.raise("table index is NaN"),
                _ => s.raw_set(-3),
            }
        }
        Ok(())
    }
}
