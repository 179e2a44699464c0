//! `struct`: C structures as strings, described by a format.
//!
//! | | |
//! |---|---|
//! | `b B h H l L T` `i I`*n* | integers of 1, 2, 8, 8 and *n* (4) bytes, lower case signed |
//! | `f d` | floating point |
//! | `s` | a string ended by NUL |
//! | `c`*n* | *n* (1) bytes; `c0`: the whole string, or as many bytes as the number before it says |
//! | `x` | a byte of padding |
//! | `< > !`*n* | little-endian (the default), big-endian, alignment up to *n* (8) |

use crate::lua::{Held, Outcome, Raise, State, Type, native};
use crate::reply::ONE;

const INTEGER_BYTES_MAX: usize = 32;

pub(crate) fn push_library(s: &mut State<'_>) {
    s.push_table(0, 3);
    for (name, function) in [("pack", native(pack)), ("unpack", native(unpack)), ("size", native(size))] {
        s.push_native(function, 0);
        s.set_field(-2, name);
    }
}

/// A format that is being read, with its layout options.
struct Format<'a> {
    text: Vec<u8>,
    _held: Held<'a>,
    at: usize,
    big_endian: bool,
    align: usize,
}

impl<'a> Format<'a> {
    fn new(s: &mut State<'a>) -> Result<Format<'a>, Raise> {
        s.arg_text(1)?;
        let held = s.hold(s.len(1))?;
        s.tick_bytes(s.len(1))?;
        let text = s.bytes(1).unwrap_or_default();
        let text = text[..memchr::memchr(0, text).unwrap_or(text.len())].to_vec();
        Ok(Format { text, _held: held, at: 0, big_endian: false, align: 1 })
    }

    /// Reads the next option and its size in bytes.
    fn next(&mut self, s: &mut State<'_>) -> Result<Option<(u8, usize)>, Raise> {
        let Some(&option) = self.text.get(self.at) else {
            return Ok(None);
        };
        self.at += 1;
        s.tick()?;
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number(s, 1)?,
            b'i' | b'I' => {
                let size = self.number(s, 4)?;
                if size > INTEGER_BYTES_MAX {
                    let text = format!("integral size {size} is larger than limit of {INTEGER_BYTES_MAX}");
                    return s.raise_here(text);
                }
                size
            }
            _ => 0,
        };
        Ok(Some((option, size)))
    }

    fn number(&mut self, s: &mut State<'_>, default: usize) -> Result<usize, Raise> {
        let mut value = None;
        while let Some(&c @ b'0'..=b'9') = self.text.get(self.at) {
            s.tick()?;
            let next = value.unwrap_or(0) * 10 + usize::from(c - b'0');
            if next > i32::MAX as usize {
                return s.raise_here("integral size overflow");
            }
            value = Some(next);
            self.at += 1;
        }
        Ok(value.unwrap_or(default))
    }

    /// Handles an option that is neither a value nor padding.
    fn control(&mut self, s: &mut State<'_>, option: u8) -> Result<(), Raise> {
        match option {
            b' ' => {}
            b'<' => self.big_endian = false,
            b'>' => self.big_endian = true,
            b'!' => {
                let align = self.number(s, 8)?;
                if !align.is_power_of_two() {
                    return s.raise_here(format!("alignment {align} is not a power of 2"));
                }
                self.align = align;
            }
            other => return s.raise_arg(1, &format!("invalid format option '{}'", other as char)),
        }
        Ok(())
    }

    /// The padding before a value of `size` bytes at `at`.
    fn padding(&self, at: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.align);
        size.wrapping_sub(at & (size - 1)) & (size - 1)
    }
}

/// Argument `n` as a number. A missing one is reported as nil.
fn arg_number(s: &mut State<'_>, n: i32) -> Result<f64, Raise> {
    if s.type_of(n) == Type::None {
        return s.raise_arg(n, "number expected, got nil");
    }
    s.arg_number(n)
}

fn pack(s: &mut State<'_>) -> Outcome {
    let mut format = Format::new(s)?;
    let mut out = s.buffer(|session| &session.buffer);
    out.clear();
    let mut arg = 2;
    while let Some((option, size)) = format.next(s)? {
        let padding = format.padding(out.len(), option, size);
        out.fit(s, padding + INTEGER_BYTES_MAX)?;
        let start = out.len() + padding;
        out.resize(start, 0);
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let value = arg_number(s, arg)?;
                write_integer(as_bits(value), size, format.big_endian, &mut out);
                arg += 1;
            }
            b'x' => out.push(0),
            b'f' => {
                let bits = (arg_number(s, arg)? as f32).to_bits();
                write_integer(u64::from(bits), 4, format.big_endian, &mut out);
                arg += 1;
            }
            b'd' => {
                let bits = arg_number(s, arg)?.to_bits();
                write_integer(bits, 8, format.big_endian, &mut out);
                arg += 1;
            }
            b'c' | b's' => {
                if s.type_of(arg) == Type::None {
                    return s.raise_arg(arg, "string expected, got nil");
                }
                s.arg_text(arg)?;
                let bytes = s.bytes(arg).unwrap_or_default();
                arg += 1;
                let size = if size == 0 { bytes.len() } else { size };
                let Some(bytes) = bytes.get(..size) else {
                    return s.raise_arg(arg, "string too short");
                };
                let size = bytes.len();
                out.fit(s, size + 1)?;
                s.tick_bytes(size)?;
                out.extend_from_slice(&s.bytes(arg - 1).unwrap_or_default()[..size]);
                if option == b's' {
                    out.push(0);
                }
            }
            _ => format.control(s, option)?,
        }
    }
    s.push_long(&out)?;
    ONE
}

/// Cuts a number to 64 bits as C does: signed below zero, unsigned above.
fn as_bits(value: f64) -> u64 {
    if value < 0.0 {
        value as i64 as u64
    } else if value < 18_446_744_073_709_551_616.0 {
        value as u64
    } else {
        0
    }
}

fn write_integer(value: u64, size: usize, big_endian: bool, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend((0..size as u32).map(|i| value.checked_shr(8 * i).unwrap_or(0) as u8));
    if big_endian {
        out[start..].reverse();
    }
}

fn read_integer(bytes: &[u8], big_endian: bool) -> u64 {
    let add = |value: u64, b: &u8| value << 8 | u64::from(*b);
    if big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) }
}

fn unpack(s: &mut State<'_>) -> Outcome {
    let mut format = Format::new(s)?;
    s.arg_text(2)?;
    let at = if s.is_none_or_nil(3) { 1 } else { s.arg_int(3)? };
    if at == 0 {
        return s.raise_arg(3, "offset must be 1 or greater");
    }
    let _held = s.hold(s.len(2))?;
    s.tick_bytes(s.len(2))?;
    let data = s.bytes(2).unwrap_or_default().to_vec();
    let mut at = (at as usize).wrapping_sub(1);
    let mut count = 0;
    while let Some((option, size)) = format.next(s)? {
        at = at.wrapping_add(format.padding(at, option, size));
        let Some(bytes) = at.checked_add(size).and_then(|end| data.get(at..end)) else {
            return s.raise_arg(2, "data string too short");
        };
        if !s.reserve(3) {
            return s.raise_here("stack overflow (too many results)");
        }
        at += size;
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let value = read_integer(bytes, format.big_endian);
                s.push_number(if option.is_ascii_lowercase() { signed(value, size) } else { value as f64 });
            }
            b'f' => {
                let bits = read_integer(bytes, format.big_endian) as u32;
                s.push_number(f64::from(f32::from_bits(bits)));
            }
            b'd' => {
                let bits = read_integer(bytes, format.big_endian);
                s.push_number(f64::from_bits(bits));
            }
            b'c' if size > 0 => push_text(s, bytes)?,
            b'c' => {
                if count == 0 || !s.is_number(-1) {
                    return s.raise_here("format 'c0' needs a previous size");
                }
                let bytes = counted(s, &data[at..])?;
                count -= 1;
                push_text(s, bytes)?;
                at += bytes.len();
            }
            b's' => {
                let Some(len) = memchr::memchr(0, &data[at..]) else {
                    return s.raise_here("unfinished string in data");
                };
                push_text(s, &data[at..at + len])?;
                at += len + 1;
            }
            b'x' => continue,
            _ => {
                format.control(s, option)?;
                continue;
            }
        }
        count += 1;
    }
    s.push_number(at as f64 + 1.0);
    Ok(count + 1)
}

/// Takes the size of an option `c0` off the stack, and cuts that many bytes off `rest`.
fn counted<'a>(s: &mut State<'_>, rest: &'a [u8]) -> Result<&'a [u8], Raise> {
    let size = s.number(-1);
    s.pop(1);
    match rest.get(..size as usize) {
        Some(bytes) if size >= 0.0 => Ok(bytes),
        _ => s.raise_arg(2, "data string too short"),
    }
}

fn push_text(s: &mut State<'_>, bytes: &[u8]) -> Result<(), Raise> {
    s.push_long(bytes)?;
    s.tick_bytes(bytes.len())
}

fn signed(value: u64, size: usize) -> f64 {
    let sign = u64::MAX.wrapping_shl((size as u32 * 8).wrapping_sub(1));
    (if value & sign != 0 { value | sign } else { value }) as i64 as f64
}

fn size(s: &mut State<'_>) -> Outcome {
    let mut format = Format::new(s)?;
    let mut total = 0usize;
    while let Some((option, size)) = format.next(s)? {
        total += format.padding(total, option, size);
        match option {
            b's' => return s.raise_arg(1, "option 's' has no fixed size"),
            b'c' if size == 0 => return s.raise_arg(1, "option 'c0' has no fixed size"),
            c if !c.is_ascii_alphanumeric() => format.control(s, option)?,
            _ => {}
        }
        total += size;
    }
    s.push_number(total as f64);
    ONE
}
