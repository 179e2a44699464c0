//! RESP to Lua values ([`push`]) and Lua values to RESP ([`encode`]).
//!
//! | RESP | Lua |
//! |---|---|
//! | integer | number |
//! | bulk string | string |
//! | array | table 1.. |
//! | status, error | `{ok=…}`, `{err=…}` |
//! | null (RESP2), null (RESP3) | false, nil |
//! | map, set, double, big number, verbatim (RESP3) | `{map=…}`, `{set=…}`, `{double=…}`, `{big_number=…}`, `{verbatim_string={format=…, string=…}}` |
//! | boolean (RESP3) | boolean |
//!
//! The other way round likewise, with exceptions: numbers are cut to integers, and an array ends before its
//! first nil. In RESP2 true is 1 and false a null. Everything else is null. O(size). Nesting is bounded by
//! Lua's stack, not by the machine's.

use memchr::memchr;
use smallvec::SmallVec;
use stdx::num;

use crate::lua::{Buffer, Outcome, Raise, Ref, SMALL, STRINGS, State, Type, View};
use crate::text;

/// Bytes of strings that are made together.
const TOGETHER: usize = 4096;

/// Pushes the value of the reply at the start of `bytes`.
pub(crate) fn push(s: &mut State<'_>, bytes: &[u8]) -> Result<(), Raise> {
    push_at(s, bytes, 0).map(|_| ())
}

/// Pushes the value at `at`. Returns where the next one starts. Recurses as deep as the reply is nested.
fn push_at(s: &mut State<'_>, bytes: &[u8], at: usize) -> Result<usize, Raise> {
    if !s.reserve(8) {
        return s.raise("lua stack limit reached when parsing redis.call reply");
    }
    let Some((kind, line, mut next)) = line(bytes, at) else {
        return s.raise("malformed reply");
    };
    match kind {
        b'$' => next = push_bulk(s, bytes, line, next)?,
        b':' => s.push_number(num::parse_i64(line).unwrap_or(0) as f64),
        b'+' => {
            s.push_table(0, 1);
            s.push_ref(s.session().names().ok);
            s.push_bytes(line);
            s.raw_set(-3);
        }
        b'-' => {
            let _held = s.hold(4 * (next - at))?;
            push_error(s, &bytes[at..next]);
            s.push_bool(true);
            s.set_field(-2, "ignore_error_stats_update");
        }
        b'*' | b'>' => match count(line) {
            Some(n) => next = push_array(s, bytes, n, next)?,
            None => s.push_bool(false),
        },
        b'%' => next = push_map(s, bytes, count(line).unwrap_or(0), next)?,
        b'~' => next = push_set(s, bytes, count(line).unwrap_or(0), next)?,
        b'_' => s.push_nil(),
        b'#' => s.push_bool(line == b"t"),
        b',' => {
            s.push_table(0, 1);
            s.push_ref(s.session().names().double);
            s.push_number(double(line));
            s.raw_set(-3);
        }
        b'(' => {
            s.push_table(0, 1);
            s.push_ref(s.session().names().big_number);
            s.push_bytes(line);
            s.raw_set(-3);
        }
        b'=' => next = push_verbatim(s, bytes, line, next)?,
        b'|' => {
            for _ in 0..2 * count(line).unwrap_or(0) {
                next = push_at(s, bytes, next)?;
                s.pop(1);
            }
            return push_at(s, bytes, next);
        }
        _ => return s.raise("malformed reply"),
    }
    Ok(next)
}

/// Splits the line at `at`: its type byte, the rest, and where the next line starts.
#[inline]
fn line(bytes: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let rest = bytes.get(at..)?;
    let (&kind, rest) = rest.split_first()?;
    // Most lines are short, and this is faster than memchr then.
    let end = match rest.iter().take(8).position(|&c| c == b'\r') {
        Some(end) => end,
        None => memchr(b'\r', rest)?,
    };
    Some((kind, &rest[..end], at + end + 3))
}

/// Parses a length; `None` for -1.
#[inline]
fn count(line: &[u8]) -> Option<usize> {
    let mut n = 0usize;
    for &c in line {
        if !c.is_ascii_digit() {
            return None;
        }
        n = n.wrapping_mul(10).wrapping_add(usize::from(c - b'0'));
    }
    Some(n)
}

#[inline]
fn push_bulk(s: &mut State<'_>, bytes: &[u8], line: &[u8], next: usize) -> Result<usize, Raise> {
    let Some(len) = count(line) else {
        s.push_bool(false);
        return Ok(next);
    };
    let Some(body) = next.checked_add(len).and_then(|end| bytes.get(next..end)) else {
        return s.raise("malformed reply");
    };
    s.push_long(body)?;
    Ok(next + len + 2)
}

/// Bytes that Lua needs for an element of an array, and of any other table.
const SLOT: usize = 16;
const NODE: usize = 40;

fn push_array(s: &mut State<'_>, bytes: &[u8], n: usize, mut next: usize) -> Result<usize, Raise> {
    s.room(n.min(bytes.len()) * SLOT)?;
    s.push_table(n.min(bytes.len()), 0);
    let table = s.top();
    let mut done = 0;
    while done < n {
        let from = next;
        if bytes.len() >= SMALL {
            // The strings that come next are made without asking.
            s.room(next_bulk(bytes, next))?;
        }
        let strings = push_strings(s, bytes, (table, done), n, &mut next);
        if strings == 0 {
            match integer(bytes, next) {
                Some((value, after)) => {
                    s.push_number(value as f64);
                    next = after;
                }
                None => next = push_at(s, bytes, next)?,
            }
            s.raw_set_i(table, done as i32 + 1);
        }
        done += strings.max(1);
        s.ticks(strings as u32)?;
        s.tick_bytes(next - from)?;
    }
    Ok(next)
}

/// About the length of the string at `at`; 0 if there is none.
fn next_bulk(bytes: &[u8], at: usize) -> usize {
    match line(bytes, at) {
        Some((b'$', line, _)) => count(line).unwrap_or(0).min(bytes.len()) + TOGETHER,
        _ => 0,
    }
}

/// A short whole number that is not negative, and where the next line starts.
#[inline]
fn integer(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let rest = bytes.get(at..).and_then(|rest| rest.strip_prefix(b":"))?;
    let mut value = 0i64;
    for (i, c) in rest.iter().enumerate().take(18) {
        match c {
            b'0'..=b'9' => value = value * 10 + i64::from(c - b'0'),
            b'\r' if i > 0 => return Some((value, at + i + 3)),
            _ => return None,
        }
    }
    None
}

/// Adds the next strings of a reply to a table that has `done` of its `n` elements. Returns how many it
/// added; 0 if the next value is no string. Not inlined: that would make the frames of the recursion larger.
#[inline(never)]
fn push_strings(
    s: &mut State<'_>,
    bytes: &[u8],
    (table, done): (i32, usize),
    n: usize,
    next: &mut usize,
) -> usize {
    if bytes.get(*next) != Some(&b'$') {
        return 0;
    }
    let (mut strings, from) = (SmallVec::<[&[u8]; STRINGS]>::new(), *next);
    while strings.len() < (n - done).min(STRINGS) && *next - from < TOGETHER {
        let Some((b'$', line, body)) = line(bytes, *next) else { break };
        let end = count(line).and_then(|len| body.checked_add(len));
        let Some(text) = end.and_then(|end| bytes.get(body..end)) else { break };
        strings.push(text);
        *next = body + text.len() + 2;
    }
    if !strings.is_empty() {
        s.set_strings(table, done as i32 + 1, &strings);
    }
    strings.len()
}

fn push_map(s: &mut State<'_>, bytes: &[u8], n: usize, mut next: usize) -> Result<usize, Raise> {
    s.push_table(0, 1);
    s.push_ref(s.session().names().map);
    s.room(n.min(bytes.len()) * NODE)?;
    s.push_table(0, n.min(bytes.len()));
    for _ in 0..n {
        let from = next;
        next = push_at(s, bytes, next)?;
        next = push_at(s, bytes, next)?;
        s.raw_set(-3);
        s.tick_bytes(next - from)?;
    }
    s.raw_set(-3);
    Ok(next)
}

fn push_set(s: &mut State<'_>, bytes: &[u8], n: usize, mut next: usize) -> Result<usize, Raise> {
    s.push_table(0, 1);
    s.push_ref(s.session().names().set);
    s.room(n.min(bytes.len()) * NODE)?;
    s.push_table(0, n.min(bytes.len()));
    for _ in 0..n {
        let from = next;
        next = push_at(s, bytes, next)?;
        s.push_bool(true);
        s.raw_set(-3);
        s.tick_bytes(next - from)?;
    }
    s.raw_set(-3);
    Ok(next)
}

fn push_verbatim(s: &mut State<'_>, bytes: &[u8], line: &[u8], next: usize) -> Result<usize, Raise> {
    let len = count(line).unwrap_or(0);
    let Some(body) = next.checked_add(len).and_then(|end| bytes.get(next..end)).filter(|b| b.len() >= 4)
    else {
        return s.raise("malformed reply");
    };
    s.push_table(0, 1);
    s.push_ref(s.session().names().verbatim_string);
    s.push_table(0, 2);
    s.push_long(&body[4..])?;
    s.set_field(-2, "string");
    s.push_bytes(&body[..3]);
    s.set_field(-2, "format");
    s.raw_set(-3);
    Ok(next + len + 2)
}

fn double(line: &[u8]) -> f64 {
    match line {
        b"nan" | b"-nan" => f64::NAN,
        _ => num::parse_f64(line).unwrap_or(0.0),
    }
}

/// Pushes `{err="CODE message"}`. A text that starts with `-` brings its code; otherwise the code is ERR.
pub(crate) fn push_error(s: &mut State<'_>, text: &[u8]) {
    let trim = |t: &[u8]| -> Vec<u8> {
        let start = t.iter().position(|c| !matches!(c, b'\r' | b'\n')).unwrap_or(t.len());
        let end = t.iter().rposition(|c| !matches!(c, b'\r' | b'\n')).map_or(start, |i| i + 1);
        t[start..end].to_vec()
    };
    let (code, message) = match text.strip_prefix(b"-") {
        Some(rest) => match memchr(b' ', rest) {
            Some(space) => (&rest[..space], trim(&rest[space + 1..])),
            None => (&b"ERR"[..], trim(rest)),
        },
        None => (&b"ERR"[..], trim(text)),
    };
    s.push_table(0, 1);
    s.push_ref(s.session().names().err);
    s.push_bytes(&[code, b" ", &message].concat());
    s.raw_set(-3);
}

/// How the reply of a run is encoded.
#[derive(Clone, Copy)]
pub(crate) struct Wire {
    /// The client speaks RESP3.
    pub(crate) resp3: bool,
    /// The script chose RESP3, or the client did and the script kept it: booleans stay booleans.
    pub(crate) script_resp3: bool,
}

/// A table that is being encoded. On Lua's stack stand the table and, for a map or set, the current key.
enum Open {
    Array {
        header: usize,
        guessed: usize,
        done: usize,
    },
    /// `value`: the key was just written, and the value is on top.
    Map {
        header: usize,
        done: usize,
        value: bool,
    },
    Set {
        header: usize,
        done: usize,
    },
}

/// Most bytes written for anything but a string.
const TOKEN: usize = 512;

/// Appends the value on top of the stack and pops it. Fails if the script is stopped meanwhile, or memory is
/// short.
pub(crate) fn encode(s: &mut State<'_>, out: &mut Buffer<'_>, wire: Wire) -> Result<(), Raise> {
    let mut open: Vec<Open> = Vec::new();
    loop {
        let start = out.len();
        let bytes = if s.type_of(-1) == Type::String { s.len(-1) } else { 0 };
        out.fit(s, bytes + TOKEN)?;
        encode_top(s, out, wire, &mut open)?;
        s.tick_bytes(out.len() - start)?;
        loop {
            s.tick()?;
            let Some(innermost) = open.last_mut() else {
                return Ok(());
            };
            if innermost.advance(s) {
                break;
            }
            if let Some(done) = open.pop() {
                // The bytes behind its header may have to move.
                s.tick_bytes(if done.is_right() { 0 } else { out.len() - start })?;
                out.fit(s, TOKEN)?;
                done.close(out, wire);
            }
        }
    }
}

impl Open {
    /// Puts the next value to encode on top. If there is none, pops the table and returns false.
    fn advance(&mut self, s: &mut State<'_>) -> bool {
        match self {
            Open::Array { done, .. } => {
                s.raw_get_i(-1, *done as i32 + 1);
                if s.type_of(-1) == Type::Nil {
                    s.pop(2);
                    return false;
                }
                *done += 1;
            }
            Open::Map { value, .. } if *value => *value = false,
            Open::Map { done, value, .. } => {
                if !s.next(-2) {
                    s.pop(1);
                    return false;
                }
                *done += 1;
                *value = true;
                s.push_value(-2);
            }
            Open::Set { done, .. } => {
                if !s.next(-2) {
                    s.pop(1);
                    return false;
                }
                *done += 1;
                s.pop(1);
                s.push_value(-1);
            }
        }
        true
    }

    /// Whether the header already in the output is right.
    fn is_right(&self) -> bool {
        matches!(self, Open::Array { guessed, done, .. } if guessed == done)
    }

    /// Writes the header. An array's header was guessed when it was opened; the elements move only if the
    /// guess was wrong.
    fn close(self, out: &mut Vec<u8>, wire: Wire) {
        let mut line = Vec::new();
        match self {
            Open::Array { guessed, done, .. } if guessed == done => {}
            Open::Array { header, guessed, done } => {
                header_line(b'*', done, &mut line);
                let old = header + 3 + decimal_digits(guessed);
                out.splice(header..old, line);
            }
            Open::Map { header, done, .. } => {
                if wire.resp3 {
                    header_line(b'%', done, &mut line);
                } else {
                    header_line(b'*', 2 * done, &mut line);
                }
                out.splice(header..header, line);
            }
            Open::Set { header, done } => {
                header_line(if wire.resp3 { b'~' } else { b'*' }, done, &mut line);
                out.splice(header..header, line);
            }
        }
    }
}

fn decimal_digits(n: usize) -> usize {
    n.checked_ilog10().unwrap_or(0) as usize + 1
}

fn header_line(kind: u8, n: usize, out: &mut Vec<u8>) {
    out.push(kind);
    text::write_int(n as i64, out);
    out.extend_from_slice(b"\r\n");
}

/// Encodes the value on top and pops it; a table is opened instead.
fn encode_top(
    s: &mut State<'_>,
    out: &mut Buffer<'_>,
    wire: Wire,
    open: &mut Vec<Open>,
) -> Result<(), Raise> {
    if !s.reserve(4) {
        out.extend_from_slice(b"-ERR reached lua stack limit\r\n");
        s.pop(1);
        return Ok(());
    }
    match s.view(-1) {
        View::String(bytes) => bulk(bytes, out),
        View::Number(value) => {
            out.push(b':');
            text::write_int(text::cut(value), out);
            out.extend_from_slice(b"\r\n");
        }
        View::Other(Type::Bool) => out.extend_from_slice(match (wire.script_resp3, s.bool(-1)) {
            (false, true) => b":1\r\n",
            (false, false) => null(wire),
            (true, _) if !wire.resp3 => {
                if s.bool(-1) {
                    b":1\r\n"
                } else {
                    b":0\r\n"
                }
            }
            (true, true) => b"#t\r\n",
            (true, false) => b"#f\r\n",
        }),
        View::Other(Type::Table) => {
            if !encode_special(s, out, wire, open)? {
                let guessed = s.len(-1);
                open.push(Open::Array { header: out.len(), guessed, done: 0 });
                header_line(b'*', guessed, out);
            }
            return Ok(());
        }
        _ => out.extend_from_slice(null(wire)),
    }
    s.pop(1);
    Ok(())
}

fn null(wire: Wire) -> &'static [u8] {
    if wire.resp3 { b"_\r\n" } else { b"$-1\r\n" }
}

#[inline]
fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + 32);
    out.push(b'$');
    text::write_int(bytes.len() as i64, out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Handles tables with a field that makes them more than an array: encodes and pops, or opens. False if there
/// is no such field.
fn encode_special(
    s: &mut State<'_>,
    out: &mut Buffer<'_>,
    wire: Wire,
    open: &mut Vec<Open>,
) -> Result<bool, Raise> {
    let names = s.session().names();
    for (name, kind) in [(names.err, b'-'), (names.ok, b'+')] {
        push_member(s, name);
        out.fit(s, 2 * text_len(s) + TOKEN)?;
        if let Some(text) = s.bytes(-1) {
            out.push(kind);
            line_text(c_text(text), out);
            s.pop(2);
            return Ok(true);
        }
        s.pop(1);
    }
    push_member(s, names.double);
    if s.type_of(-1) == Type::Number {
        double_reply(s.number(-1), out, wire);
        s.pop(2);
        return Ok(true);
    }
    s.pop(1);
    for (name, is_map) in [(names.map, true), (names.set, false)] {
        push_member(s, name);
        if s.type_of(-1) == Type::Table {
            s.remove(-2);
            s.push_nil();
            let header = out.len();
            open.push(match is_map {
                true => Open::Map { header, done: 0, value: false },
                false => Open::Set { header, done: 0 },
            });
            return Ok(true);
        }
        s.pop(1);
    }
    push_member(s, names.big_number);
    out.fit(s, 2 * text_len(s) + TOKEN)?;
    if let Some(digits) = s.bytes(-1) {
        if wire.resp3 {
            out.push(b'(');
            line_text(digits, out);
        } else {
            let mut line = Vec::new();
            line_text(digits, &mut line);
            bulk(&line[..line.len() - 2], out);
        }
        s.pop(2);
        return Ok(true);
    }
    s.pop(1);
    encode_verbatim(s, out, wire)
}

/// Pushes the field of this name of the table on top.
#[inline]
fn push_member(s: &mut State<'_>, name: Ref) {
    s.push_ref(name);
    s.raw_get(-2);
}

/// The length of the string on top; 0 if it is none.
fn text_len(s: &State<'_>) -> usize {
    if s.type_of(-1) == Type::String { s.len(-1) } else { 0 }
}

fn encode_verbatim(s: &mut State<'_>, out: &mut Buffer<'_>, wire: Wire) -> Result<bool, Raise> {
    push_member(s, s.session().names().verbatim_string);
    if s.type_of(-1) != Type::Table {
        s.pop(1);
        return Ok(false);
    }
    s.push_field(-1, "format");
    s.push_field(-2, "string");
    out.fit(s, text_len(s) + TOKEN)?;
    let (Some(format), Some(string)) = (s.bytes(-2), s.bytes(-1)) else {
        s.pop(3);
        return Ok(false);
    };
    if wire.resp3 {
        let mut format: Vec<u8> = format.iter().copied().take(3).collect();
        format.resize(3, b' ');
        out.push(b'=');
        text::write_int(string.len() as i64 + 4, out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&format);
        out.push(b':');
        out.extend_from_slice(string);
        out.extend_from_slice(b"\r\n");
    } else {
        bulk(string, out);
    }
    s.pop(4);
    Ok(true)
}

fn double_reply(value: f64, out: &mut Vec<u8>, wire: Wire) {
    let mut digits = Vec::new();
    num::format_f64(value, &mut digits);
    if wire.resp3 {
        out.push(b',');
        out.extend_from_slice(&digits);
        out.extend_from_slice(b"\r\n");
    } else {
        bulk(&digits, out);
    }
}

/// The part of a string before a NUL, as C sees it.
fn c_text(bytes: &[u8]) -> &[u8] {
    &bytes[..memchr(0, bytes).unwrap_or(bytes.len())]
}

/// Appends a line. Line breaks inside become blanks.
pub(crate) fn line_text(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(bytes.iter().map(|&c| if matches!(c, b'\r' | b'\n') { b' ' } else { c }));
    out.extend_from_slice(b"\r\n");
}

/// The outcome of a native that returns the value on top.
pub(crate) const ONE: Outcome = Ok(1);
