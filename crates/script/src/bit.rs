//! `bit`: operations on 32-bit integers, in the range of signed ones.

use crate::lua::{NativeFn, Outcome, State, native};
use crate::reply::ONE;

pub(crate) fn push_library(s: &mut State<'_>) {
    s.push_table(0, 12);
    let functions: [(&str, NativeFn); 12] = [
        ("tobit", native(|s| unary(s, |x| x))),
        ("bnot", native(|s| unary(s, |x| !x))),
        ("bswap", native(|s| unary(s, u32::swap_bytes))),
        ("band", native(|s| fold(s, |a, b| a & b))),
        ("bor", native(|s| fold(s, |a, b| a | b))),
        ("bxor", native(|s| fold(s, |a, b| a ^ b))),
        ("lshift", native(|s| shift(s, |x, n| x << n))),
        ("rshift", native(|s| shift(s, |x, n| x >> n))),
        ("arshift", native(|s| shift(s, |x, n| (x as i32 >> n) as u32))),
        ("rol", native(|s| shift(s, u32::rotate_left))),
        ("ror", native(|s| shift(s, u32::rotate_right))),
        ("tohex", native(to_hex)),
    ];
    for (name, function) in functions {
        s.push_native(function, 0);
        s.set_field(-2, name);
    }
}

/// The argument modulo 2^32, rounded to the nearest integer (ties to even).
fn arg(s: &mut State<'_>, n: i32) -> Result<u32, crate::lua::Raise> {
    let value = s.arg_number(n)?;
    // Adding 1.5·2^52 leaves the integer in the low bits of the sum, in two's complement.
    Ok((value + 6_755_399_441_055_744.0).to_bits() as u32)
}

fn push(s: &mut State<'_>, value: u32) -> Outcome {
    s.push_number(f64::from(value as i32));
    ONE
}

fn unary(s: &mut State<'_>, f: fn(u32) -> u32) -> Outcome {
    let value = arg(s, 1)?;
    push(s, f(value))
}

fn fold(s: &mut State<'_>, f: fn(u32, u32) -> u32) -> Outcome {
    let mut value = arg(s, 1)?;
    for n in 2..=s.top() {
        value = f(value, arg(s, n)?);
    }
    push(s, value)
}

fn shift(s: &mut State<'_>, f: fn(u32, u32) -> u32) -> Outcome {
    let value = arg(s, 1)?;
    let n = arg(s, 2)? & 31;
    push(s, f(value, n))
}

/// The lowest |n| hexadecimal digits, 8 by default. Upper case if n is negative.
fn to_hex(s: &mut State<'_>) -> Outcome {
    let value = arg(s, 1)?;
    let n = if s.type_of(2) == crate::lua::Type::None { 8 } else { arg(s, 2)? as i32 };
    let digits: &[u8; 16] = if n < 0 { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
    let n = n.unsigned_abs().min(8);
    let text: smallvec::SmallVec<[u8; 8]> =
        (0..n).rev().map(|i| digits[(value >> (4 * i) & 15) as usize]).collect();
    s.push_bytes(&text);
    ONE
}
