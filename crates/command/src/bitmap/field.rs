//! BITFIELD: integers of 1 to 64 bits at any bit of a string.
//!
//! All operations are read before the first is done, so an error changes nothing. The string grows at once to the end of the
//! last field that is written to, even if the writes then fail by overflow (as Redis has it; here the growth is told as a change,
//! so that logs and replicas see it).
//!
//! An operation works on 128-bit integers, where neither a sum nor a value can overflow.

use super::offset;
use crate::options::{int, is};
use crate::string::edit::write_at;
use crate::string::read;
use crate::table::{Command, DENYOOM, FAST, KeySpec, READONLY, RO_ACCESS, Run, Use, WRITE, acl};
use crate::{Cx, Error};
use keyspace::Class;
use resp::{Args, Reply};
use smallvec::SmallVec;
use value::{StrRef, str};

const RW_KEY: KeySpec = KeySpec {
    notes: "This command allows both access and modification of the key",
    ..KeySpec::one(1, Use(&["RW", "access", "update", "variable_flags"]))
};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("bitfield", -2, Run::Write(bitfield), WRITE | DENYOOM, acl::BITMAP)
        .keys(&[RW_KEY])
        .cost(|_, args| args.len() * 2)
        .doc(
            "bitmap",
            "3.2.0",
            "O(1) for each subcommand specified",
            "Reads and changes integers of any width inside a string.",
        ),
    Command::new("bitfield_ro", -2, Run::Read(bitfield_ro), READONLY | FAST, acl::BITMAP)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .cost(|_, args| args.len() * 2)
        .doc(
            "bitmap",
            "6.0.0",
            "O(1) for each subcommand specified",
            "Reads integers of any width inside a string.",
        ),
];

/// An integer type: `i1` to `i64`, `u1` to `u63`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Width {
    signed: bool,
    bits: u32,
}

impl Width {
    fn parse(word: &[u8]) -> Result<Width, Error> {
        let (signed, digits) = match word {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => (false, &[][..]),
        };
        match stdx::num::parse_i64(digits) {
            Some(bits @ 1..=63) => Ok(Width { signed, bits: bits as u32 }),
            Some(64) if signed => Ok(Width { signed, bits: 64 }),
            _ => Err(Error::new(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
            )),
        }
    }

    fn min(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn max(self) -> i128 {
        (1 << (self.bits - u32::from(self.signed))) - 1
    }

    /// The number whose lowest bits are these.
    fn wrap(self, value: i128) -> i128 {
        let low = value & ((1 << self.bits) - 1);
        if low > self.max() { low - (1 << self.bits) } else { low }
    }

    /// What becomes of a number that may not fit; None if it must not be stored.
    fn fit(self, value: i128, overflow: Overflow) -> Option<i128> {
        if (self.min()..=self.max()).contains(&value) {
            return Some(value);
        }
        match overflow {
            Overflow::Wrap => Some(self.wrap(value)),
            Overflow::Saturate => Some(value.clamp(self.min(), self.max())),
            Overflow::Fail => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

/// One operation on one field.
#[derive(Clone, Copy, Debug)]
struct Op {
    at: u64,
    width: Width,
    action: Action,
    overflow: Overflow,
}

type Ops = SmallVec<[Op; 8]>;

fn parse(cx: &Cx<'_, '_>, words: Args<'_>) -> Result<Ops, Error> {
    let mut ops = Ops::new();
    let mut overflow = Overflow::Wrap;
    let mut i = 0;
    while let Some(word) = words.get(i) {
        let left = words.len() - i - 1;
        if is(word, "OVERFLOW") && left >= 1 {
            overflow = match words.at(i + 1) {
                mode if is(mode, "WRAP") => Overflow::Wrap,
                mode if is(mode, "SAT") => Overflow::Saturate,
                mode if is(mode, "FAIL") => Overflow::Fail,
                _ => return Err(Error::new("ERR Invalid OVERFLOW type specified")),
            };
            i += 2;
            continue;
        }
        let action: fn(i64) -> Action = match word {
            word if is(word, "GET") && left >= 2 => |_| Action::Get,
            word if is(word, "SET") && left >= 3 => Action::Set,
            word if is(word, "INCRBY") && left >= 3 => Action::Add,
            _ => return Err(Error::Syntax),
        };
        let width = Width::parse(words.at(i + 1))?;
        let at = offset(cx, words.at(i + 2), Some(width.bits))?;
        i += 3;
        let mut action = action(0);
        if action != Action::Get {
            let number = int(words.at(i))?;
            action = if matches!(action, Action::Set(_)) { Action::Set(number) } else { Action::Add(number) };
            i += 1;
        }
        ops.push(Op { at, width, action, overflow });
    }
    Ok(ops)
}

/// `BITFIELD key [GET type offset | [OVERFLOW WRAP | SAT | FAIL] SET type offset value | INCRBY type offset increment ...]`: the number
/// read, the old one, the new one, or null where OVERFLOW FAIL kept it from being stored.
///
/// Cost: O(n), n = operations.
fn bitfield(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let ops = parse(cx, args.from(2))?;
    let writes = ops.iter().filter(|op| op.action != Action::Get);
    let Some(end) = writes.map(|op| (op.at + u64::from(op.width.bits)).div_ceil(8) as usize).max() else {
        return read_fields(cx, key, &ops);
    };
    cx.charge(ops.len())?;
    let len = cx.view.string(key)?.map_or(0, |s| s.len());
    let grows = end > len;
    if grows {
        write_at(cx.view, key, end - 1, &[0])?;
    }
    cx.out.array(ops.len());
    let mut changes = grows;
    for op in &ops {
        let Some(s) = cx.view.string(key)? else { continue };
        let old = load(s, op);
        match apply(op, old) {
            Some((new, answer)) => {
                if new != old {
                    let (first, bytes) = store(s, op, new);
                    write_at(cx.view, key, first, &bytes)?;
                    changes = true;
                }
                cx.out.int(answer as i64);
            }
            None => cx.out.null(),
        }
    }
    if changes {
        cx.view.changed(key, Class::String, "setbit");
    }
    Ok(())
}

/// `BITFIELD_RO key [GET type offset ...]`.
fn bitfield_ro(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let ops = parse(cx, args.from(2))?;
    if ops.iter().any(|op| op.action != Action::Get) {
        return Err(Error::new("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    read_fields(cx, args.at(1), &ops)
}

fn read_fields(cx: &mut Cx<'_, '_>, key: &[u8], ops: &[Op]) -> Result<(), Error> {
    read(cx, key, |s, out: &mut Reply, budget| {
        budget.charge(ops.len())?;
        let s = s.unwrap_or(StrRef::Flat(&[]));
        out.array(ops.len());
        ops.iter().for_each(|op| out.int(load(s, op) as i64));
        Ok(())
    })
}

/// The number to store and the one to answer; None if the operation fails.
fn apply(op: &Op, old: i128) -> Option<(i128, i128)> {
    match op.action {
        Action::Get => Some((old, old)),
        Action::Set(value) => {
            // A negative value for an unsigned field is its 64 bits, far too large.
            let value = if op.width.signed { i128::from(value) } else { i128::from(value as u64) };
            let new = op.width.fit(value, op.overflow)?;
            // As in Redis, a value so low that its distance to the type's end passes 63 bits counts as too high.
            let too_low = op.width.max() - value > i128::from(i64::MAX) && op.width.bits < 64;
            let quirk = too_low && op.overflow == Overflow::Saturate;
            Some((if quirk { op.width.max() } else { new }, old))
        }
        Action::Add(by) => {
            let new = op.width.fit(old + i128::from(by), op.overflow)?;
            Some((new, new))
        }
    }
}

/// The bytes a field touches: the first, how many, and how many bits they have behind it.
fn span(op: &Op) -> (usize, usize, u32) {
    let first = (op.at / 8) as usize;
    let end = op.at + u64::from(op.width.bits);
    let count = end.div_ceil(8) as usize - first;
    (first, count, ((first + count) as u64 * 8 - end) as u32)
}

/// The bytes of a field as one number, zeros behind the end of the string.
fn window(s: StrRef<'_>, first: usize, count: usize) -> i128 {
    let mut bytes = SmallVec::<[u8; 16]>::new();
    for run in s.runs(first..first + count) {
        match run {
            str::Run::Bytes(part) => bytes.extend_from_slice(part),
            str::Run::Zeros(n) => bytes.resize(bytes.len() + n as usize, 0),
        }
    }
    bytes.resize(count, 0);
    bytes.iter().fold(0, |number, byte| number << 8 | i128::from(*byte))
}

fn load(s: StrRef<'_>, op: &Op) -> i128 {
    let (first, count, shift) = span(op);
    op.width.wrap(window(s, first, count) >> shift)
}

/// The bytes around a field with a new number in it, and where they stand.
fn store(s: StrRef<'_>, op: &Op, new: i128) -> (usize, SmallVec<[u8; 16]>) {
    let (first, count, shift) = span(op);
    let mask = (1 << op.width.bits) - 1;
    let number = window(s, first, count) & !(mask << shift) | (new & mask) << shift;
    (first, number.to_be_bytes()[16 - count..].into())
}
