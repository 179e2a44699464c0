//! `cjson`: JSON to Lua values and back, with the settings, limits and error texts that scripts know.
//!
//! A table is an array if its keys are 1, 2, … (with gaps as `sparse` allows), else an object. An empty one
//! is `{}`.
//!
//! To decide that, all keys of a table must be seen before it is written. This encoder instead starts to
//! write an array, and starts over if a key is out of order. That holds for scalars only. At the first nested
//! table it looks at all keys, or deep nesting would be written again at every level.
//!
//! * **J1** Nesting is bounded by `DEPTH_MAX`, whatever the settings say (S4).
//! * **J2** Encoding and decoding are O(length). The host is asked every thousand elements, and every 64 KB
//!   of text.

use crate::lua::{Buffer, NativeFn, Outcome, Raise, State, Type, View, native};
use crate::reply::ONE;
use crate::session::{InvalidNumbers, JsonSettings};
use crate::text;

/// Keeps the frames of the recursion below a megabyte.
const DEPTH_MAX: i32 = 3_500;

/// Making a table counts as this many elements.
const TABLE: u32 = 16;
/// Bytes of shorter texts are not counted.
const SHORT: usize = 64;
/// Bytes of a text that are read without asking the host (J2).
const PIECE: usize = 64 << 10;

pub(crate) fn push_library(s: &mut State<'_>) {
    s.push_table(0, 16);
    let functions: [(&str, NativeFn); 11] = [
        ("encode", native(encode)),
        ("decode", native(decode)),
        ("encode_sparse_array", native(sparse_array)),
        ("encode_max_depth", native(|s| integer_setting(s, i32::MAX, |j| &mut j.encode_max_depth))),
        ("decode_max_depth", native(|s| integer_setting(s, i32::MAX, |j| &mut j.decode_max_depth))),
        ("encode_number_precision", native(|s| integer_setting(s, 14, |j| &mut j.precision))),
        ("encode_keep_buffer", native(|s| bool_setting(s, |j| &mut j.keep_buffer))),
        ("encode_invalid_numbers", native(encode_invalid_numbers)),
        ("decode_invalid_numbers", native(decode_invalid_numbers)),
        ("decode_array_with_array_mt", native(|s| bool_setting(s, |j| &mut j.decode_array_mt))),
        ("new", native(new)),
    ];
    for (name, function) in functions {
        s.push_native(function, 0);
        s.set_field(-2, name);
    }
    s.push_light(0);
    s.set_field(-2, "null");
    s.push_ref(s.session().names().json_array);
    s.set_field(-2, "array_mt");
    s.push_bytes(b"cjson");
    s.set_field(-2, "_NAME");
    s.push_bytes(b"2.1.0");
    s.set_field(-2, "_VERSION");
}

/// Another table of the same functions. The settings belong to the run.
fn new(s: &mut State<'_>) -> Outcome {
    push_library(s);
    ONE
}

// ---- settings

fn at_most(s: &mut State<'_>, n: i32) -> Result<(), Raise> {
    if s.top() > n {
        return s.raise_arg(n + 1, "found too many arguments");
    }
    Ok(())
}

fn change<R>(s: &State<'_>, f: impl FnOnce(&mut JsonSettings) -> R) -> R {
    let mut settings = s.session().json.get();
    let result = f(&mut settings);
    s.session().json.set(settings);
    result
}

fn read_integer(s: &mut State<'_>, n: i32, low: i32, high: i32) -> Result<Option<i32>, Raise> {
    if s.is_none_or_nil(n) {
        return Ok(None);
    }
    let value = s.arg_int(n)?;
    if !(i64::from(low)..=i64::from(high)).contains(&value) {
        return s.raise_arg(n, &format!("expected integer between {low} and {high}"));
    }
    Ok(Some(value as i32))
}

/// Reads an option: `off`, `on`, false or true, or one of `names[2..]`.
fn read_option(s: &mut State<'_>, n: i32, names: &[&str]) -> Result<Option<usize>, Raise> {
    match s.type_of(n) {
        Type::None | Type::Nil => return Ok(None),
        Type::Bool => return Ok(Some(usize::from(s.bool(n)))),
        _ => s.arg_text(n)?,
    }
    let text = String::from_utf8_lossy(s.bytes(n).unwrap_or_default()).into_owned();
    match names.iter().position(|&name| name == text) {
        Some(i) => Ok(Some(i)),
        None => s.raise_arg(n, &format!("invalid option '{text}'")),
    }
}

fn integer_setting(s: &mut State<'_>, high: i32, field: fn(&mut JsonSettings) -> &mut i32) -> Outcome {
    at_most(s, 1)?;
    let value = read_integer(s, 1, 1, high)?;
    let now = change(s, |j| {
        let field = field(j);
        *field = value.unwrap_or(*field);
        *field
    });
    s.push_number(f64::from(now));
    ONE
}

fn bool_setting(s: &mut State<'_>, field: fn(&mut JsonSettings) -> &mut bool) -> Outcome {
    at_most(s, 1)?;
    let value = read_option(s, 1, &["off", "on"])?;
    let now = change(s, |j| {
        let field = field(j);
        *field = value.map_or(*field, |v| v == 1);
        *field
    });
    s.push_bool(now);
    ONE
}

fn sparse_array(s: &mut State<'_>) -> Outcome {
    at_most(s, 3)?;
    let convert = read_option(s, 1, &["off", "on"])?;
    let ratio = read_integer(s, 2, 0, i32::MAX)?;
    let safe = read_integer(s, 3, 0, i32::MAX)?;
    let now = change(s, |j| {
        j.sparse_convert = convert.map_or(j.sparse_convert, |v| v == 1);
        j.sparse_ratio = ratio.unwrap_or(j.sparse_ratio);
        j.sparse_safe = safe.unwrap_or(j.sparse_safe);
        *j
    });
    s.push_bool(now.sparse_convert);
    s.push_number(f64::from(now.sparse_ratio));
    s.push_number(f64::from(now.sparse_safe));
    Ok(3)
}

fn push_invalid(s: &mut State<'_>, now: InvalidNumbers) -> Outcome {
    match now {
        InvalidNumbers::Refuse => s.push_bool(false),
        InvalidNumbers::Allow => s.push_bool(true),
        InvalidNumbers::Null => s.push_bytes(b"null"),
    }
    ONE
}

const INVALID: [InvalidNumbers; 3] = [InvalidNumbers::Refuse, InvalidNumbers::Allow, InvalidNumbers::Null];

fn encode_invalid_numbers(s: &mut State<'_>) -> Outcome {
    at_most(s, 1)?;
    let value = read_option(s, 1, &["off", "on", "null"])?;
    let now = change(s, |j| {
        j.encode_invalid = value.map_or(j.encode_invalid, |v| INVALID[v]);
        j.encode_invalid
    });
    push_invalid(s, now)
}

fn decode_invalid_numbers(s: &mut State<'_>) -> Outcome {
    at_most(s, 1)?;
    let value = read_option(s, 1, &["off", "on"])?;
    let now = change(s, |j| {
        j.decode_invalid = value.map_or(j.decode_invalid, |v| INVALID[v]);
        j.decode_invalid
    });
    push_invalid(s, now)
}

// ---- encoding

fn encode(s: &mut State<'_>) -> Outcome {
    if s.top() != 1 {
        return s.raise_arg(1, "expected 1 argument");
    }
    let mut out = s.buffer(|session| &session.buffer);
    out.clear();
    let settings = s.session().json.get();
    let mut encoder = Encoder { out, settings };
    encoder.value(s, 0)?;
    s.push_long(&encoder.out)?;
    ONE
}

/// Most bytes written for anything but a string, and between two values.
const TOKEN: usize = 64;
/// Most bytes that one byte of a string becomes.
const ESCAPED: usize = 6;

struct Encoder<'a> {
    out: Buffer<'a>,
    settings: JsonSettings,
}

impl Encoder<'_> {
    /// Writes the value on top of the stack and leaves it there.
    fn value(&mut self, s: &mut State<'_>, depth: i32) -> Result<(), Raise> {
        self.out.fit(s, TOKEN)?;
        let other = match s.view(-1) {
            View::String(_) => return self.string(s, -1),
            View::Number(value) => return self.number(s, value),
            View::Other(Type::Table) => return self.table(s, depth + 1),
            View::Other(other) => other,
        };
        match other {
            Type::Bool => self.out.extend_from_slice(if s.bool(-1) { b"true" } else { b"false" }),
            Type::Nil => self.out.extend_from_slice(b"null"),
            Type::LightUserdata if s.light(-1) == 0 => self.out.extend_from_slice(b"null"),
            other => return refuse(s, other, "type not supported"),
        }
        Ok(())
    }

    /// Writes the string at `at` and counts its bytes.
    #[inline]
    fn string(&mut self, s: &mut State<'_>, at: i32) -> Result<(), Raise> {
        let len = s.len(at);
        if len > PIECE {
            return self.long_string(s, at);
        }
        self.out.fit(s, ESCAPED * len + TOKEN)?;
        write_string(s.bytes(at).unwrap_or_default(), &mut self.out);
        if len < SHORT { Ok(()) } else { s.tick_bytes(len) }
    }

    #[cold]
    fn long_string(&mut self, s: &mut State<'_>, at: i32) -> Result<(), Raise> {
        let len = s.len(at);
        s.heavy(len)?;
        self.out.fit(s, len + TOKEN)?;
        self.out.push(b'"');
        for start in (0..len).step_by(PIECE) {
            self.out.fit(s, ESCAPED * PIECE + TOKEN)?;
            let bytes = s.bytes(at).unwrap_or_default();
            write_escaped(&bytes[start..len.min(start + PIECE)], &mut self.out);
            s.check_stop()?;
        }
        self.out.push(b'"');
        Ok(())
    }

    fn number(&mut self, s: &mut State<'_>, value: f64) -> Result<(), Raise> {
        if !value.is_finite() {
            match self.settings.encode_invalid {
                InvalidNumbers::Refuse => return refuse(s, Type::Number, "must not be NaN or Inf"),
                InvalidNumbers::Null => self.out.extend_from_slice(b"null"),
                InvalidNumbers::Allow if value.is_nan() => self.out.extend_from_slice(b"nan"),
                InvalidNumbers::Allow => text::write_general(value, 14, &mut self.out),
            }
            return Ok(());
        }
        text::write_general(value, self.settings.precision as usize, &mut self.out);
        Ok(())
    }

    fn table(&mut self, s: &mut State<'_>, depth: i32) -> Result<(), Raise> {
        if depth > self.settings.encode_max_depth || depth > DEPTH_MAX || !s.reserve(4) {
            return s.raise_here(format!("Cannot serialise, excessive nesting ({depth})"));
        }
        let table = s.top();
        let start = self.out.len();
        if self.hopeful_array(s, table, depth)? {
            return Ok(());
        }
        self.out.truncate(start);
        match self.array_len(s, table)? {
            Some(len) => self.array_of(s, table, len, depth),
            None => self.object(s, table, depth),
        }
    }

    /// Writes an array as long as the keys are 1, 2, … False if they are not; then the caller must drop what
    /// was written.
    fn hopeful_array(&mut self, s: &mut State<'_>, table: i32, depth: i32) -> Result<bool, Raise> {
        let mut count = 0i64;
        let mut settled = false;
        self.out.push(b'[');
        s.push_nil();
        while s.next(table) {
            count += 1;
            if !matches!(s.view(-2), View::Number(key) if key == count as f64) {
                s.pop(2);
                return Ok(false);
            }
            if count > 1 {
                self.out.push(b',');
            }
            if s.type_of(-1) == Type::String {
                self.string(s, -1)?;
            } else {
                if !settled && s.type_of(-1) == Type::Table {
                    settled = self.has_keys_in_order(s, table)?;
                    if !settled {
                        s.pop(2);
                        return Ok(false);
                    }
                }
                self.value(s, depth)?;
            }
            s.pop(1);
            s.tick()?;
        }
        if count == 0 {
            self.out.pop();
            let array = self.is_marked_array(s, table);
            self.out.extend_from_slice(if array { b"[]" } else { b"{}" });
        } else {
            self.out.push(b']');
        }
        Ok(true)
    }

    /// Whether a traversal gives the keys 1, 2, … to the end.
    fn has_keys_in_order(&self, s: &mut State<'_>, table: i32) -> Result<bool, Raise> {
        let mut count = 0i64;
        s.push_nil();
        while s.next(table) {
            count += 1;
            let in_order = s.type_of(-2) == Type::Number && s.number(-2) == count as f64;
            s.pop(1);
            if !in_order {
                s.pop(1);
                return Ok(false);
            }
            s.tick()?;
        }
        Ok(true)
    }

    fn is_marked_array(&self, s: &mut State<'_>, table: i32) -> bool {
        if !s.push_metatable(table) {
            return false;
        }
        s.push_ref(s.session().names().json_array);
        let same = s.identity(-1) == s.identity(-2);
        s.pop(2);
        same
    }

    /// The length of the table as an array, holes included; `None` for an object.
    fn array_len(&self, s: &mut State<'_>, table: i32) -> Result<Option<i32>, Raise> {
        let (mut max, mut items) = (0i64, 0i64);
        s.push_nil();
        while s.next(table) {
            s.pop(1);
            let key = s.number(-1);
            let is_index =
                s.type_of(-1) == Type::Number && key >= 1.0 && key == key.trunc() && key < 2_147_483_647.0;
            if !is_index {
                s.pop(1);
                return Ok(None);
            }
            max = max.max(key as i64);
            items += 1;
            s.tick()?;
        }
        let (ratio, safe) = (i64::from(self.settings.sparse_ratio), i64::from(self.settings.sparse_safe));
        if ratio > 0 && max > items * ratio && max > safe {
            if !self.settings.sparse_convert {
                return refuse(s, Type::Table, "excessively sparse array");
            }
            return Ok(None);
        }
        Ok(Some(max as i32))
    }

    fn array_of(&mut self, s: &mut State<'_>, table: i32, len: i32, depth: i32) -> Result<(), Raise> {
        self.out.push(b'[');
        for i in 1..=len {
            if i > 1 {
                self.out.push(b',');
            }
            s.raw_get_i(table, i);
            self.value(s, depth)?;
            s.pop(1);
            s.tick()?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, s: &mut State<'_>, table: i32, depth: i32) -> Result<(), Raise> {
        self.out.push(b'{');
        let mut first = true;
        s.push_nil();
        while s.next(table) {
            if !std::mem::take(&mut first) {
                self.out.push(b',');
            }
            match s.view(-2) {
                View::String(_) => self.string(s, -2)?,
                View::Number(key) => {
                    self.out.push(b'"');
                    self.number(s, key)?;
                    self.out.push(b'"');
                }
                View::Other(other) => return refuse(s, other, "table key must be a number or string"),
            }
            self.out.push(b':');
            self.value(s, depth)?;
            s.pop(1);
            s.tick()?;
        }
        self.out.push(b'}');
        Ok(())
    }
}

fn refuse<T>(s: &mut State<'_>, kind: Type, why: &str) -> Result<T, Raise> {
    s.raise_here(format!("Cannot serialise {}: {why}", kind.name()))
}

/// The character behind the backslash: 0 for none, `u` for \u00xx.
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 32 {
        table[c] = b'u';
        c += 1;
    }
    table[127] = b'u';
    table[8] = b'b';
    table[9] = b't';
    table[10] = b'n';
    table[12] = b'f';
    table[13] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[b'/' as usize] = b'/';
    table
};

fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    write_escaped(bytes, out);
    out.push(b'"');
}

fn write_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    let mut rest = bytes;
    loop {
        let plain = plain_prefix(rest);
        out.extend_from_slice(&rest[..plain]);
        let Some(&c) = rest.get(plain) else { break };
        match ESCAPES[usize::from(c)] {
            b'u' => {
                out.extend_from_slice(b"\\u00");
                out.push(b"0123456789abcdef"[usize::from(c >> 4)]);
                out.push(b"0123456789abcdef"[usize::from(c & 15)]);
            }
            escape => out.extend_from_slice(&[b'\\', escape]),
        }
        rest = &rest[plain + 1..];
    }
}

/// How many bytes at the start need no escape. Looks at 16 at a time; the last 16 (or 8) may overlap earlier
/// ones.
#[inline]
fn plain_prefix(bytes: &[u8]) -> usize {
    let mut done = 0;
    while let Some(chunk) = bytes[done..].first_chunk::<16>() {
        if !is_plain(chunk) {
            return done + first_special(chunk);
        }
        done += 16;
    }
    let rest = &bytes[done..];
    let plain = match (bytes.last_chunk::<16>(), rest.first_chunk::<8>(), rest.last_chunk::<8>()) {
        (Some(tail), ..) => is_plain(tail),
        (_, Some(head), Some(tail)) => is_plain(head) && is_plain(tail),
        _ => false,
    };
    if plain { bytes.len() } else { done + first_special(rest) }
}

#[inline]
fn is_plain<const N: usize>(chunk: &[u8; N]) -> bool {
    let special = |c: u8| (c < 32) | (c == b'"') | (c == b'\\') | (c == b'/') | (c == 127);
    !chunk.iter().fold(false, |any, &c| any | special(c))
}

fn first_special(bytes: &[u8]) -> usize {
    bytes.iter().position(|&c| ESCAPES[usize::from(c)] != 0).unwrap_or(bytes.len())
}

// ---- decoding

fn decode(s: &mut State<'_>) -> Outcome {
    if s.top() != 1 {
        return s.raise_arg(1, "expected 1 argument");
    }
    s.arg_text(1)?;
    s.heavy(s.len(1))?;
    let mut data = s.buffer(|session| &session.buffer);
    data.clear();
    data.fit(s, s.len(1))?;
    s.tick_bytes(s.len(1))?;
    data.extend_from_slice(s.bytes(1).unwrap_or_default());
    if data.len() >= 2 && (data[0] == 0 || data[1] == 0) {
        return s.raise_here("JSON parser does not support UTF-16 or UTF-32");
    }
    let mut parser = Parser {
        data: &data,
        at: 0,
        settings: s.session().json.get(),
        text: s.borrow_buffer(Vec::new()),
        pause_at: PIECE,
    };
    let token = parser.token(s);
    parser.value(s, token, 0)?;
    let token = parser.token(s);
    if token.kind != Kind::End {
        return parser.unexpected(s, "the end", &token);
    }
    ONE
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    /// A string without escapes: its place in `data`, without the quotes.
    Plain {
        start: usize,
        end: usize,
    },
    /// A string with escapes: its content is in `Parser::text`.
    Escaped,
    Number(f64),
    Bool(bool),
    Null,
    Colon,
    Comma,
    End,
    Bad(&'static str),
    NoMemory,
}

#[derive(Debug)]
struct Token {
    kind: Kind,
    at: usize,
}

/// The script must end. Its text is never seen.
const STOPPED: Token = Token { kind: Kind::Bad("script stopped"), at: 0 };

/// Memory is short. The error names the limit.
const NO_MEMORY: Token = Token { kind: Kind::NoMemory, at: 0 };

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::ObjectBegin => "T_OBJ_BEGIN",
            Kind::ObjectEnd => "T_OBJ_END",
            Kind::ArrayBegin => "T_ARR_BEGIN",
            Kind::ArrayEnd => "T_ARR_END",
            Kind::Plain { .. } | Kind::Escaped => "T_STRING",
            Kind::Number(_) => "T_NUMBER",
            Kind::Bool(_) => "T_BOOLEAN",
            Kind::Null => "T_NULL",
            Kind::Colon => "T_COLON",
            Kind::Comma => "T_COMMA",
            Kind::End => "T_END",
            Kind::Bad(why) => why,
            Kind::NoMemory => "T_ERROR",
        }
    }
}

struct Parser<'a> {
    data: &'a [u8],
    at: usize,
    settings: JsonSettings,
    text: Buffer<'a>,
    /// Where the host is asked next (J2).
    pause_at: usize,
}

impl Parser<'_> {
    fn unexpected<T>(&self, s: &mut State<'_>, expected: &str, token: &Token) -> Result<T, Raise> {
        if token.kind == Kind::NoMemory {
            return s.raise_short();
        }
        s.raise_here(format!(
            "Expected {expected} but found {} at character {}",
            token.kind.name(),
            token.at + 1
        ))
    }

    /// The byte at `at`; 0 at the end. A NUL ends the text, as in C.
    fn byte(&self, at: usize) -> u8 {
        self.data.get(at).copied().unwrap_or(0)
    }

    /// Asks the host whether to go on from `at`. If not, the next token ends the script.
    #[inline]
    fn may_go_on(&mut self, s: &State<'_>, at: usize) -> bool {
        if at < self.pause_at {
            return true;
        }
        self.pause_at = at + PIECE;
        s.may_go_on()
    }

    fn token(&mut self, s: &State<'_>) -> Token {
        while matches!(self.byte(self.at), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
            if !self.may_go_on(s, self.at) {
                return STOPPED;
            }
        }
        let at = self.at;
        let simple = match self.byte(at) {
            0 => return Token { kind: Kind::End, at },
            b'{' => Kind::ObjectBegin,
            b'}' => Kind::ObjectEnd,
            b'[' => Kind::ArrayBegin,
            b']' => Kind::ArrayEnd,
            b':' => Kind::Colon,
            b',' => Kind::Comma,
            b'"' => return self.string(s),
            _ => return Token { kind: self.word(), at },
        };
        self.at += 1;
        Token { kind: simple, at }
    }

    /// Reads a number or one of the three names.
    fn word(&mut self) -> Kind {
        let rest = &self.data[self.at..];
        let allow = self.settings.decode_invalid == InvalidNumbers::Allow;
        match rest[0] {
            b'-' | b'0'..=b'9' if !allow && is_invalid_number(rest) => Kind::Bad("invalid number"),
            b'-' | b'0'..=b'9' => self.number(),
            b't' if rest.starts_with(b"true") => self.skip(4, Kind::Bool(true)),
            b'f' if rest.starts_with(b"false") => self.skip(5, Kind::Bool(false)),
            b'n' if rest.starts_with(b"null") => self.skip(4, Kind::Null),
            b'+' | b'i' | b'I' | b'n' | b'N' if allow && is_invalid_number(rest) => self.number(),
            _ => Kind::Bad("invalid token"),
        }
    }

    fn skip(&mut self, len: usize, kind: Kind) -> Kind {
        self.at += len;
        kind
    }

    fn number(&mut self) -> Kind {
        let (value, len) = read_number(&self.data[self.at..]);
        if len == 0 { Kind::Bad("invalid number") } else { self.skip(len, Kind::Number(value)) }
    }

    /// Reads a string. The position is at its opening quote.
    fn string(&mut self, s: &State<'_>) -> Token {
        let opening = self.at;
        let start = opening + 1;
        let Some(plain) = self.end_of_plain(s, start) else { return STOPPED };
        if self.byte(plain) == b'"' {
            self.at = plain + 1;
            return Token { kind: Kind::Plain { start, end: plain }, at: opening };
        }
        self.text.clear();
        let mut from = start;
        let mut at = plain;
        loop {
            if !self.text.try_fit(at - from + TOKEN) {
                return NO_MEMORY;
            }
            self.text.extend_from_slice(&self.data[from..at]);
            match self.byte(at) {
                b'"' => {
                    self.at = at + 1;
                    return Token { kind: Kind::Escaped, at: opening };
                }
                b'\\' => match self.escape(at) {
                    Ok(next) => from = next,
                    Err(why) => return Token { kind: Kind::Bad(why), at },
                },
                _ => return Token { kind: Kind::Bad("unexpected end of string"), at },
            }
            let Some(next) = self.end_of_plain(s, from) else { return STOPPED };
            at = next;
        }
    }

    /// The end of the text from `from` on that needs no decoding: a quote, a backslash, a NUL, or the end.
    /// `None`: the script must end.
    fn end_of_plain(&mut self, s: &State<'_>, mut from: usize) -> Option<usize> {
        while self.may_go_on(s, from) {
            let end = self.data.len().min(from + PIECE);
            match memchr::memchr3(b'"', b'\\', 0, &self.data[from..end]) {
                Some(i) => return Some(from + i),
                None if end == self.data.len() => return Some(end),
                None => from = end,
            }
        }
        None
    }

    /// Appends the character of the escape at `at`. Returns where the escape ends.
    fn escape(&mut self, at: usize) -> Result<usize, &'static str> {
        let c = match self.byte(at + 1) {
            c @ (b'"' | b'\\' | b'/') => c,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'f' => 12,
            b'r' => b'\r',
            b'u' => return self.unicode(at),
            _ => return Err("invalid escape code"),
        };
        self.text.push(c);
        Ok(at + 2)
    }

    fn unicode(&mut self, at: usize) -> Result<usize, &'static str> {
        const BAD: &str = "invalid unicode escape code";
        let high = self.hex4(at + 2).ok_or(BAD)?;
        let (code, end) = match high {
            0xd800..0xdc00 => {
                if self.byte(at + 6) != b'\\' || self.byte(at + 7) != b'u' {
                    return Err(BAD);
                }
                let low = self.hex4(at + 8).filter(|low| (0xdc00..0xe000).contains(low)).ok_or(BAD)?;
                (0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), at + 12)
            }
            _ => (high, at + 6),
        };
        match char::from_u32(code) {
            Some(c) => self.text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            // A lone low surrogate is written as three bytes, as it stands.
            None => self.text.extend_from_slice(&[
                0xe0 | (code >> 12) as u8,
                0x80 | (code >> 6 & 0x3f) as u8,
                0x80 | (code & 0x3f) as u8,
            ]),
        }
        Ok(end)
    }

    fn hex4(&self, at: usize) -> Option<u32> {
        (at..at + 4).try_fold(0, |n, i| Some(n << 4 | (self.byte(i) as char).to_digit(16)?))
    }

    /// Pushes the value that starts with `token`.
    fn value(&mut self, s: &mut State<'_>, token: Token, depth: i32) -> Result<(), Raise> {
        match token.kind {
            Kind::Plain { start, end } => s.push_long(&self.data[start..end])?,
            Kind::Escaped => s.push_long(&self.text)?,
            Kind::Number(value) => s.push_number(value),
            Kind::Bool(value) => s.push_bool(value),
            Kind::Null => s.push_light(0),
            Kind::ObjectBegin => return self.object(s, depth + 1),
            Kind::ArrayBegin => return self.array(s, depth + 1),
            _ => return self.unexpected(s, "value", &token),
        }
        Ok(())
    }

    fn descend(&self, s: &mut State<'_>, depth: i32) -> Result<(), Raise> {
        if depth > self.settings.decode_max_depth || depth > DEPTH_MAX || !s.reserve(4) {
            let at = self.at;
            return s
                .raise_here(format!("Found too many nested data structures ({depth}) at character {at}"));
        }
        Ok(())
    }

    fn object(&mut self, s: &mut State<'_>, depth: i32) -> Result<(), Raise> {
        self.descend(s, depth)?;
        s.ticks(TABLE)?;
        s.push_table(0, 0);
        let table = s.top();
        let mut token = self.token(s);
        if token.kind == Kind::ObjectEnd {
            return Ok(());
        }
        loop {
            match token.kind {
                Kind::Plain { start, end } => s.push_bytes(&self.data[start..end]),
                Kind::Escaped => s.push_bytes(&self.text),
                _ => return self.unexpected(s, "object key string", &token),
            }
            token = self.token(s);
            if token.kind != Kind::Colon {
                return self.unexpected(s, "colon", &token);
            }
            token = self.token(s);
            self.value(s, token, depth)?;
            s.raw_set(table);
            s.tick()?;
            token = self.token(s);
            match token.kind {
                Kind::ObjectEnd => return Ok(()),
                Kind::Comma => token = self.token(s),
                _ => return self.unexpected(s, "comma or object end", &token),
            }
        }
    }

    fn array(&mut self, s: &mut State<'_>, depth: i32) -> Result<(), Raise> {
        self.descend(s, depth)?;
        s.ticks(TABLE)?;
        s.push_table(0, 0);
        let table = s.top();
        if self.settings.decode_array_mt {
            s.push_ref(s.session().names().json_array);
            s.set_metatable(table);
        }
        let mut token = self.token(s);
        if token.kind == Kind::ArrayEnd {
            return Ok(());
        }
        for i in 1.. {
            self.value(s, token, depth)?;
            s.raw_set_i(table, i);
            s.tick()?;
            token = self.token(s);
            match token.kind {
                Kind::ArrayEnd => return Ok(()),
                Kind::Comma => token = self.token(s),
                _ => return self.unexpected(s, "comma or array end", &token),
            }
        }
        Ok(())
    }
}

/// Whether the text starts with a number that `strtod` reads but JSON forbids: hexadecimal, leading zeros or
/// plus sign, infinity, NaN.
fn is_invalid_number(text: &[u8]) -> bool {
    let byte = |i: usize| text.get(i).copied().unwrap_or(0);
    if byte(0) == b'+' {
        return true;
    }
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let byte = |i: usize| text.get(i).copied().unwrap_or(0);
    match byte(0) {
        b'0' => byte(1) | 0x20 == b'x' || byte(1).is_ascii_digit(),
        c if c <= b'9' => false,
        _ => text.get(..3).is_some_and(|w| w.eq_ignore_ascii_case(b"inf") || w.eq_ignore_ascii_case(b"nan")),
    }
}

/// Reads a number as `strtod` does. Returns the number and how many bytes it has.
fn read_number(text: &[u8]) -> (f64, usize) {
    let sign = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let negative = text.first() == Some(&b'-');
    let signed = |value: f64| if negative { -value } else { value };
    let whole = run(text, sign, u8::is_ascii_digit);
    let next = text.get(sign + whole).copied().unwrap_or(0);
    if (1..=15).contains(&whole) && !matches!(next, b'.' | b'e' | b'E' | b'x' | b'X') {
        let value = text[sign..sign + whole].iter().fold(0u64, |n, c| n * 10 + u64::from(c - b'0'));
        return (signed(value as f64), sign + whole);
    }
    let word = |w: &[u8]| text.get(sign..sign + w.len()).is_some_and(|t| t.eq_ignore_ascii_case(w));
    if word(b"infinity") {
        return (signed(f64::INFINITY), sign + 8);
    }
    if word(b"inf") {
        return (signed(f64::INFINITY), sign + 3);
    }
    if word(b"nan") {
        return (signed(f64::NAN), sign + 3);
    }
    if word(b"0x")
        && let Some(end) = end_of_hex(text, sign + 2)
    {
        return (stdx::num::parse_f64(&text[..end]).unwrap_or(signed(0.0)), end);
    }
    let mut end = sign + whole;
    let mut fraction = 0;
    if text.get(end) == Some(&b'.') {
        fraction = run(text, end + 1, u8::is_ascii_digit);
        if whole + fraction > 0 {
            end += 1 + fraction;
        }
    }
    if whole + fraction == 0 {
        return (0.0, 0);
    }
    let end = behind_exponent(text, end, b'e');
    let number = std::str::from_utf8(&text[..end]).ok().and_then(|t| t.parse().ok());
    (number.unwrap_or(0.0), end)
}

/// How many bytes from there on are of a kind.
#[inline]
fn run(text: &[u8], from: usize, is: fn(&u8) -> bool) -> usize {
    text[from.min(text.len())..].iter().take_while(|c| is(c)).count()
}

/// The end of the hexadecimal number whose digits begin there. None: there is no digit before the point.
fn end_of_hex(text: &[u8], start: usize) -> Option<usize> {
    let whole = run(text, start, u8::is_ascii_hexdigit);
    let mut end = start + whole;
    if text.get(end) == Some(&b'.') {
        end += 1 + run(text, end + 1, u8::is_ascii_hexdigit);
    }
    (whole > 0).then(|| behind_exponent(text, end, b'p'))
}

/// The end of the exponent that may stand there: this letter, perhaps a sign, and digits. `at` if there is
/// none.
#[inline]
fn behind_exponent(text: &[u8], at: usize, letter: u8) -> usize {
    if text.get(at).is_none_or(|c| c | 0x20 != letter) {
        return at;
    }
    let sign = usize::from(matches!(text.get(at + 1), Some(b'-' | b'+')));
    let digits = run(text, at + 1 + sign, u8::is_ascii_digit);
    if digits > 0 { at + 1 + sign + digits } else { at }
}
