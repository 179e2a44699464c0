//! BITFIELD: integers of 1 to 64 bits at any bit of a string.
//!
//! All operations are read before the first is done, so an error changes nothing. The string grows at once to
//! the end of the last field to be written, even if the writes then fail by overflow. Redis grows it too.
//! Here the growth is reported as a change, so that logs and replicas see it.
//!
//! An operation works on 128-bit integers, where neither a sum nor a value can overflow.

use super::offset;
use crate::options::{int, is};
use crate::string::edit::{touch, write_at};
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
struct FieldWidth {
    signed: bool,
    bits: u32,
}

impl FieldWidth {
    fn parse(word: &[u8]) -> Result<FieldWidth, Error> {
        let (signed, digits) = match word {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => (false, &[][..]),
        };
        match stdx::num::parse_i64(digits) {
            Some(bits @ 1..=63) => Ok(FieldWidth { signed, bits: bits as u32 }),
            Some(64) if signed => Ok(FieldWidth { signed, bits: 64 }),
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

    /// The number with these lowest bits.
    fn wrap(self, value: i128) -> i128 {
        let low = value & ((1 << self.bits) - 1);
        if low > self.max() { low - (1 << self.bits) } else { low }
    }

    /// The number to store for one that may not fit. None if it must not be stored.
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
struct FieldOp {
    at: u64,
    width: FieldWidth,
    action: Action,
    overflow: Overflow,
}

type Ops = SmallVec<[FieldOp; 8]>;

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
        let width = FieldWidth::parse(words.at(i + 1))?;
        let at = offset(cx, words.at(i + 2), Some(width.bits))?;
        i += 3;
        let mut action = action(0);
        if action != Action::Get {
            let number = int(words.at(i))?;
            action = if matches!(action, Action::Set(_)) { Action::Set(number) } else { Action::Add(number) };
            i += 1;
        }
        ops.push(FieldOp { at, width, action, overflow });
    }
    Ok(ops)
}

/// `BITFIELD key [GET type offset | [OVERFLOW WRAP | SAT | FAIL] SET type offset value | INCRBY type offset
/// increment ...]`: for GET the number, for SET the old one, for INCRBY the new one. Null where OVERFLOW FAIL
/// prevented the write.
///
/// Cost: O(n), n = operations. Errors: syntax, bad type, bad offset, bad OVERFLOW, not an integer, WRONGTYPE.
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
    } else {
        touch(cx.view, key)?;
    }
    Ok(())
}

/// `BITFIELD_RO key [GET type offset ...]`: the numbers.
///
/// Cost: O(n), n = operations. Errors: as BITFIELD, and an operation other than GET.
fn bitfield_ro(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let ops = parse(cx, args.from(2))?;
    if ops.iter().any(|op| op.action != Action::Get) {
        return Err(Error::new("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    read_fields(cx, args.at(1), &ops)
}

fn read_fields(cx: &mut Cx<'_, '_>, key: &[u8], ops: &[FieldOp]) -> Result<(), Error> {
    read(cx, key, |s, out: &mut Reply, budget| {
        budget.charge(ops.len())?;
        let s = s.unwrap_or(StrRef::Flat(&[]));
        out.array(ops.len());
        ops.iter().for_each(|op| out.int(load(s, op) as i64));
        Ok(())
    })
}

/// The number to store and the one to answer. None if the operation fails.
fn apply(op: &FieldOp, old: i128) -> Option<(i128, i128)> {
    match op.action {
        Action::Get => Some((old, old)),
        Action::Set(value) => {
            // A negative value for an unsigned field is read as its 64 bits, which is far too large.
            let value = if op.width.signed { i128::from(value) } else { i128::from(value as u64) };
            let new = op.width.fit(value, op.overflow)?;
            // As in Redis, a value more than 63 bits below the type's maximum counts as too high.
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

/// The bytes of a field: the first, their number, and the number of bits behind the field.
fn span(op: &FieldOp) -> (usize, usize, u32) {
    let first = (op.at / 8) as usize;
    let end = op.at + u64::from(op.width.bits);
    let count = end.div_ceil(8) as usize - first;
    (first, count, ((first + count) as u64 * 8 - end) as u32)
}

/// The bytes of a field as one number, with zeros behind the end of the string.
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

fn load(s: StrRef<'_>, op: &FieldOp) -> i128 {
    let (first, count, shift) = span(op);
    op.width.wrap(window(s, first, count) >> shift)
}

/// The bytes around a field with a new number in it, and the index of the first.
fn store(s: StrRef<'_>, op: &FieldOp, new: i128) -> (usize, SmallVec<[u8; 16]>) {
    let (first, count, shift) = span(op);
    let mask = (1 << op.width.bits) - 1;
    let number = window(s, first, count) & !(mask << shift) | (new & mask) << shift;
    (first, number.to_be_bytes()[16 - count..].into())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Db, Over};
    use proptest::prelude::*;
    use resp::Frame;

    #[test]
    fn fields_are_read_set_and_added_to() {
        Db::both(|mut db| {
            db.check(&[
                ("bitfield k", "[]"),
                ("bitfield k get u8 0 overflow sat", "[0]"),
                ("get k", "nil"),
                ("bitfield k set u8 0 255 get i8 0 incrby u8 0 1 get u4 #1", "[0, -1, 0, 0]"),
                ("bitfield k set i8 #1 -200 get i8 #1", "[0, 56]"),
                ("bitfield k set i64 100 9223372036854775807 incrby i64 100 1", "[0, -9223372036854775808]"),
                ("bitfield k set u63 3 -1 get u63 3", "[63050394783186944, 9223372036854775807]"),
                ("bitfield_ro k get u8 0 overflow wrap get u4 #1", "[31, 15]"),
                ("bitfield_ro none get i64 4294967295", "[0]"),
                ("strlen k", "21"),
                ("bitfield k get u8 1000 set u8 1000 0", "[0, 0]"),
                ("strlen k", "126"),
            ]);
        });
    }

    #[test]
    fn numbers_that_do_not_fit_wrap_saturate_or_fail() {
        Db::both(|mut db| {
            db.check(&[
                ("bitfield k incrby u8 0 300 overflow sat incrby u8 0 300 incrby u8 0 -300", "[44, 255, 0]"),
                ("bitfield k overflow fail incrby u8 0 256 incrby u8 0 -1 incrby u8 0 255 get u8 0", "[nil, nil, 255, 255]"),
                ("bitfield k overflow sat set i8 8 200 get i8 8 set i8 8 -200 get i8 8", "[0, 127, 127, -128]"),
                ("bitfield k overflow sat set u8 8 -1 get u8 8", "[128, 255]"),
                ("bitfield k set i64 8 9223372036854775807 overflow sat incrby i64 8 1", "[-72057594037927936, 9223372036854775807]"),
                ("bitfield k set i64 8 -9223372036854775808 overflow sat incrby i64 8 -1", "[9223372036854775807, -9223372036854775808]"),
                ("bitfield k set u63 8 5 overflow sat incrby u63 8 9223372036854775807 incrby u63 8 -9223372036854775808", "[4611686018427387904, 9223372036854775807, 0]"),
                ("bitfield k set u1 0 1 incrby u1 0 1 incrby i1 0 1 incrby i1 0 1 set i1 0 1", "[1, 0, -1, 0, 0]"),
                // As in Redis: see `apply`.
                ("bitfield k overflow sat set i8 0 -9223372036854775808 get i8 0", "[-1, 127]"),
            ]);
        });
    }

    #[test]
    fn words_are_read_from_left_to_right_before_the_key() {
        let mut db = Db::new();
        let syntax = "-ERR syntax error";
        let bad_type = "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
        let offset = "-ERR bit offset is not an integer or out of range";
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        db.check(&[
            ("sadd s x", "1"),
            ("bitfield s get u8", syntax),
            ("bitfield s set u8 0", syntax),
            ("bitfield s overflow", syntax),
            ("bitfield s foo", syntax),
            ("bitfield s overflow foo", "-ERR Invalid OVERFLOW type specified"),
            ("bitfield s get u64 0", bad_type),
            ("bitfield s get i65 a", bad_type),
            ("bitfield s get u0 0", bad_type),
            ("bitfield s get x8 0", bad_type),
            ("bitfield s get \"\" 0", bad_type),
            ("bitfield s get u08 0", bad_type),
            ("bitfield s get U8 0", bad_type),
            ("bitfield s get u8 -1", offset),
            ("bitfield s get u8 #", offset),
            ("bitfield s get u8 #-1", offset),
            ("bitfield s get u8 4294967296", offset),
            ("bitfield s get u8 #536870912", offset),
            ("bitfield s get u8 #9223372036854775807", offset),
            ("bitfield s set u8 a b", offset),
            ("bitfield s set u8 0 b", "-ERR value is not an integer or out of range"),
            ("bitfield s set u8 0 1 foo", syntax),
            ("bitfield_ro s set u8 0 1", "-ERR BITFIELD_RO only supports the GET subcommand"),
            ("bitfield s set u8 0 1", wrong_type),
            ("bitfield s get u8 0", wrong_type),
            ("bitfield none get u8 #536870911", "[0]"),
        ]);
    }

    #[test]
    fn a_change_is_told_once_and_only_if_there_was_one() {
        let mut db = Db::new();
        db.check(&[("set k \"\\xff\"", "OK"), ("bitfield k set u8 0 255 incrby u8 0 0", "[255, 255]")]);
        assert_eq!((db.dirty, db.events()), (0, vec!["new:k".to_owned(), "set:k".to_owned()]));
        db.check(&[
            ("bitfield k overflow fail incrby u8 0 1", "[nil]"),
            ("bitfield k set u4 0 1 set u4 0 2", "[15, 1]"),
        ]);
        assert_eq!((db.dirty, db.events()), (1, vec!["setbit:k".to_owned()]));
        db.check(&[("bitfield new overflow fail set u8 0 256", "[nil]"), ("strlen new", "1")]);
        assert_eq!(db.events(), ["new:new", "setbit:new"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn a_field_is_its_bits(
            base in prop::collection::vec(any::<u8>(), 0..40),
            fields in prop::collection::vec((0..400u64, 1..=64u32, any::<bool>(), any::<i64>()), 1..8),
            overlay: bool,
        ) {
            let mut db = Db::new().over(if overlay { Over::Overlay } else { Over::Locks });
            db.call::<&[u8]>(&[b"SET", b"k", &base]);
            let mut bits: Vec<bool> = base.iter().flat_map(|b| (0..8).map(move |i| b >> (7 - i) & 1 == 1)).collect();
            for (at, width, signed, value) in fields {
                let signed = signed || width == 64;
                let kind = format!("{}{width}", if signed { 'i' } else { 'u' });
                let end = at as usize + width as usize;
                bits.resize(bits.len().max(end.next_multiple_of(8)), false);
                let field = &mut bits[at as usize..end];
                let number = |field: &[bool]| {
                    let low = field.iter().fold(0i128, |n, bit| n << 1 | i128::from(*bit));
                    if signed && field[0] { low - (1 << width) } else { low }
                };
                let old = number(field);
                for (i, bit) in field.iter_mut().rev().enumerate() {
                    *bit = value >> i & 1 == 1;
                }
                let new = number(field);
                let line = format!("bitfield k set {kind} {at} {value} get {kind} {at}");
                prop_assert_eq!(db.line(&line), format!("[{old}, {new}]"));
            }
            let bytes: Vec<u8> =
                bits.chunks(8).map(|byte| byte.iter().fold(0, |n, bit| n << 1 | u8::from(*bit))).collect();
            prop_assert_eq!(db.call(&["GET", "k"]), Frame::Bulk(bytes));
        }
    }
}
