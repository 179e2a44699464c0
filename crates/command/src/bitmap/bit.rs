//! Single bits: set and read one, count them, find the first.
//!
//! BITCOUNT and BITPOS walk the stored runs of the value and charge as they go. Parts that are not stored
//! cost nothing.

use super::{kernel, offset};
use crate::options::{int, is};
use crate::string::edit::{touch, write_at};
use crate::string::get::clamp;
use crate::string::{BYTES_PER_STEP, read};
use crate::table::{Command, DENYOOM, FAST, KeySpec, READONLY, RO_ACCESS, RW_ACCESS_UPDATE, Run, WRITE, acl};
use crate::{Budget, Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use std::ops::Range;
use value::{StrRef, str};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("setbit", 4, Run::Write(setbit), WRITE | DENYOOM, acl::BITMAP)
        .keys(&[KeySpec::one(1, RW_ACCESS_UPDATE)])
        .doc("bitmap", "2.2.0", "O(1)", "Sets or clears one bit of the string a key holds."),
    Command::new("getbit", 3, Run::Read(getbit), READONLY | FAST, acl::BITMAP)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .doc("bitmap", "2.2.0", "O(1)", "Gives one bit of the string a key holds."),
    Command::new("bitcount", -2, Run::Read(bitcount), READONLY, acl::BITMAP)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .cost(stored_cost)
        .doc("bitmap", "2.6.0", "O(N)", "Counts the set bits of a string or of a part of it."),
    Command::new("bitpos", -3, Run::Read(bitpos), READONLY, acl::BITMAP)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .doc("bitmap", "2.8.7", "O(N)", "Finds the first set or clear bit of a string or of a part of it."),
];

/// Steps to read all stored bytes of the string at argument 1.
fn stored_cost(view: &View<'_>, args: Args<'_>) -> usize {
    match view.string(args.at(1)) {
        Ok(Some(s)) => s.stored() / BYTES_PER_STEP,
        _ => 0,
    }
}

/// `SETBIT key offset 0|1`: the old bit. If it does not change, nothing is changed or notified.
///
/// Cost: O(1). Errors: bad offset, a bit other than 0 or 1, WRONGTYPE.
fn setbit(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, at) = (args.at(1), offset(cx, args.at(2), None)?);
    let on = match args.at(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Error::new("ERR bit is not an integer or out of range")),
    };
    let (byte, mask) = ((at / 8) as usize, 0x80 >> (at % 8));
    let old = cx.view.string(key)?.and_then(|s| byte_at(s, byte));
    let was = old.unwrap_or(0) & mask != 0;
    if old.is_none() || was != on {
        let new = if on { old.unwrap_or(0) | mask } else { old.unwrap_or(0) & !mask };
        write_at(cx.view, key, byte, &[new])?;
        cx.view.changed(key, Class::String, "setbit");
    } else {
        touch(cx.view, key)?;
    }
    cx.out.int(was.into());
    Ok(())
}

/// `GETBIT key offset`: the bit, 0 behind the end.
///
/// Cost: O(1). Errors: bad offset, WRONGTYPE.
fn getbit(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let at = offset(cx, args.at(2), None)?;
    read(cx, args.at(1), |s, out, _| {
        let byte = s.and_then(|s| byte_at(s, (at / 8) as usize)).unwrap_or(0);
        out.int((byte >> (7 - at % 8) & 1).into());
        Ok(())
    })
}

fn byte_at(s: StrRef<'_>, at: usize) -> Option<u8> {
    (at < s.len()).then(|| s.byte(at))
}

/// A part of a string, in bytes or bits.
struct BitPart {
    start: i64,
    end: Option<i64>,
    in_bits: bool,
}

impl BitPart {
    /// Reads `start [end [BYTE | BIT]]`. `unit_first`: the unit is checked before the end. Errors: syntax,
    /// not an integer.
    fn parse(words: Args<'_>, unit_first: bool) -> Result<BitPart, Error> {
        if words.len() > 3 {
            return Err(Error::Syntax);
        }
        let start = int(words.at(0))?;
        let end = words.get(1).map(int).transpose();
        let in_bits = match words.get(2) {
            None => Ok(false),
            Some(unit) if is(unit, "BIT") => Ok(true),
            Some(unit) if is(unit, "BYTE") => Ok(false),
            Some(_) => Err(Error::Syntax),
        };
        let (end, in_bits) = match (end, in_bits) {
            (Err(_), Err(unit)) if unit_first => return Err(unit),
            (end, in_bits) => (end?, in_bits?),
        };
        Ok(BitPart { start, end, in_bits })
    }

    /// The part of a string of `len` bytes, in bits. None if it is empty.
    fn bits(&self, len: usize) -> Option<Range<usize>> {
        let unit = if self.in_bits { 1 } else { 8 };
        let units = clamp(self.start, self.end.unwrap_or(-1), len * 8 / unit)?;
        Some(units.start * unit..units.end * unit)
    }
}

/// `BITCOUNT key [start [end [BYTE | BIT]]]`: the number of set bits in the part.
///
/// Cost: O(n), n = bytes stored in the part. Errors: syntax, not an integer, WRONGTYPE. Source: Redis 8.0; an
/// omitted `end`: Valkey 8.
fn bitcount(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let part = if args.len() > 2 { Some(BitPart::parse(args.from(2), false)?) } else { None };
    read(cx, args.at(1), |s, out, budget| {
        let bits = s.and_then(|s| match &part {
            None => Some(0..s.len() * 8),
            Some(BitPart { start, end: Some(end), .. }) if *start < 0 && *end < 0 && start > end => None,
            Some(part) => part.bits(s.len()),
        });
        let count = match (s, bits) {
            (Some(s), Some(bits)) => count_bits(s, bits, budget)?,
            _ => 0,
        };
        out.int(count as i64);
        Ok(())
    })
}

fn count_bits(s: StrRef<'_>, bits: Range<usize>, budget: &mut Budget<'_>) -> Result<u64, Error> {
    let bytes = bits.start / 8..bits.end.div_ceil(8);
    if bytes.is_empty() {
        return Ok(0);
    }
    // Whole bytes are counted, then the bits outside the part in the first and last byte are subtracted.
    let before = s.byte(bytes.start) & !(0xff >> (bits.start % 8));
    let after = if bits.end.is_multiple_of(8) { 0 } else { s.byte(bytes.end - 1) & (0xff >> (bits.end % 8)) };
    let mut count = 0;
    for run in s.runs(bytes) {
        if let str::Run::Bytes(bytes) = run {
            budget.charge(1 + bytes.len() / BYTES_PER_STEP)?;
            count += stdx::bits::count_ones(bytes);
        }
    }
    Ok(count - u64::from(before.count_ones()) - u64::from(after.count_ones()))
}

/// `BITPOS key bit [start [end [BYTE | BIT]]]`: the position of the first such bit, or -1. A search for a
/// clear bit without an `end` takes the string to go on in zeros.
///
/// Cost: O(n), n = bytes in front of the bit found, without unstored zeros. Errors: bit not 0 or 1, syntax,
/// not an integer, WRONGTYPE.
fn bitpos(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let wanted = match int(args.at(2))? {
        0 => false,
        1 => true,
        _ => return Err(Error::new("ERR The bit argument must be 1 or 0.")),
    };
    let part = match args.len() {
        3 => BitPart { start: 0, end: None, in_bits: false },
        _ => BitPart::parse(args.from(3), true)?,
    };
    read(cx, args.at(1), |s, out, budget| {
        let Some(s) = s else {
            out.int(if wanted { -1 } else { 0 });
            return Ok(());
        };
        let found = match part.bits(s.len()) {
            None => None,
            Some(bits) => match find_bit(s, wanted, bits, budget)? {
                None if !wanted && part.end.is_none() => Some(s.len() * 8),
                found => found,
            },
        };
        out.int(found.map_or(-1, |at| at as i64));
        Ok(())
    })
}

/// The first such bit in a part that is not empty.
fn find_bit(
    s: StrRef<'_>,
    wanted: bool,
    bits: Range<usize>,
    budget: &mut Budget<'_>,
) -> Result<Option<usize>, Error> {
    let skip = if wanted { 0x00 } else { 0xff };
    // In the first byte, the bits in front of the part count as unwanted.
    let first = s.byte(bits.start / 8) ^ skip;
    let first = first & (0xff >> (bits.start % 8));
    let mut at = bits.start / 8;
    let inside = |at: usize, differ: u8| {
        let bit = at * 8 + differ.leading_zeros() as usize;
        (bit < bits.end).then_some(bit)
    };
    if first != 0 {
        return Ok(inside(at, first));
    }
    at += 1;
    for run in s.runs(at..bits.end.div_ceil(8)) {
        let found = match run {
            str::Run::Bytes(bytes) => {
                budget.charge(1 + bytes.len() / BYTES_PER_STEP)?;
                kernel::first_other(bytes, skip).map(|i| (at + i, bytes[i] ^ skip))
            }
            str::Run::Zeros(_) if wanted => None,
            str::Run::Zeros(_) => Some((at, 0xff)),
        };
        if let Some((at, differ)) = found {
            return Ok(inside(at, differ));
        }
        at += run.len();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Db;
    use proptest::prelude::*;
    use value::Str;

    const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    const NOT_INT: &str = "-ERR value is not an integer or out of range";
    const SYNTAX: &str = "-ERR syntax error";

    #[test]
    fn a_bit_is_set_and_told_only_if_something_changed() {
        Db::both(|mut db| {
            db.check(&[
                ("setbit b 7 1", "0"),
                ("setbit b 7 1", "1"),
                ("setbit b 7 0", "1"),
                ("setbit b 100 0", "0"),
                ("setbit b 100 0", "0"),
                ("strlen b", "13"),
                ("setbit b 4294967295 1", "0"),
                ("getbit b 4294967295", "1"),
                ("strlen b", "536870912"),
                ("getbit b 7", "0"),
                ("bitcount b", "1"),
                ("bitpos b 1", "4294967295"),
                ("getbit none 7", "0"),
            ]);
            assert_eq!(
                db.events(),
                ["new:b", "setbit:b", "setbit:b", "setbit:b", "setbit:b", "keymiss:none"]
            );
        });
    }

    #[test]
    fn offsets_are_looked_at_before_bits_and_those_before_the_key() {
        let mut db = Db::new();
        let offset = "-ERR bit offset is not an integer or out of range";
        let bit = "-ERR bit is not an integer or out of range";
        db.check(&[
            ("sadd s x", "1"),
            ("setbit s a 2", offset),
            ("setbit s -1 1", offset),
            ("setbit s 4294967296 1", offset),
            ("setbit s #1 1", offset),
            ("setbit s 1 2", bit),
            ("setbit s 1 01", bit),
            ("setbit s 1 1", WRONG_TYPE),
            ("getbit s a", offset),
            ("getbit s 1", WRONG_TYPE),
        ]);
    }

    #[test]
    fn bits_are_counted_in_bytes_or_bits() {
        let mut db = Db::new();
        db.check(&[
            ("set k foobar", "OK"),
            ("sadd s x", "1"),
            ("bitcount k", "26"),
            ("bitcount k 0", "26"),
            ("bitcount k 0 0", "4"),
            ("bitcount k 1 1", "6"),
            ("bitcount k 1 1 bit", "1"),
            ("bitcount k 5 30 BIT", "17"),
            ("bitcount k 5 30 BYTE", "4"),
            ("bitcount k -1 -2", "0"),
            ("bitcount k -100 -50", "4"),
            ("bitcount k -50 -100", "0"),
            ("bitcount k -1000 -500 BIT", "0"),
            ("bitcount k 100 200", "0"),
            ("bitcount k -9223372036854775808 9223372036854775807 BIT", "26"),
            ("bitcount none", "0"),
            ("bitcount none a b", NOT_INT),
            ("bitcount none 0 1 FOO", SYNTAX),
            ("bitcount s 0 b FOO", NOT_INT),
            ("bitcount s a 1 BIT BIT", SYNTAX),
            ("bitcount s", WRONG_TYPE),
            ("set e \"\"", "OK"),
            ("bitcount e", "0"),
            ("bitcount e 0 -1", "0"),
        ]);
    }

    #[test]
    fn the_first_bit_is_found_or_supposed_behind_the_end() {
        let mut db = Db::new();
        db.check(&[
            ("set k foobar", "OK"),
            ("set f \"\\xff\\xff\\xff\"", "OK"),
            ("set z \"\\x00\\x00\\x00\"", "OK"),
            ("set e \"\"", "OK"),
            ("sadd s x", "1"),
            ("bitpos k 1", "1"),
            ("bitpos k 0", "0"),
            ("bitpos k 1 2", "17"),
            ("bitpos k 1 2 3 BIT", "2"),
            ("bitpos k 0 2 3 BIT", "3"),
            ("bitpos k 1 10", "-1"),
            ("bitpos k 1 -1 -2", "-1"),
            ("bitpos k 1 -50 -100", "1"),
            ("bitpos k 1 -100 -50 BIT", "-1"),
            ("bitpos f 0", "24"),
            ("bitpos f 0 1", "24"),
            ("bitpos f 0 0 -1", "-1"),
            ("bitpos f 0 3", "-1"),
            ("bitpos f 0 0 100 BIT", "-1"),
            ("bitpos z 1", "-1"),
            ("bitpos z 0 1 1", "8"),
            ("bitpos e 0", "-1"),
            ("bitpos e 1 0 -1", "-1"),
            ("bitpos none 0 5", "0"),
            ("bitpos none 1", "-1"),
            ("bitpos none 1 a", NOT_INT),
            ("bitpos s 1 0 b FOO", SYNTAX),
            ("bitpos s 1 a b FOO", NOT_INT),
            ("bitpos s 1 a b BIT X", SYNTAX),
            ("bitpos s 2 a", "-ERR The bit argument must be 1 or 0."),
            ("bitpos s 01", NOT_INT),
            ("bitpos s 1", WRONG_TYPE),
        ]);
    }

    #[test]
    fn what_is_stored_decides_who_counts() {
        let mut db = Db::new();
        db.check(&[("setbit sparse 4294967295 1", "0")]);
        assert!(db.cost(&["BITCOUNT", "sparse"]) < 100);
        let dense = "x".repeat(2_000_000);
        db.run(&["SET", "dense", &dense]);
        assert!(db.cost(&["BITCOUNT", "dense"]) > 2000);
        db.steps = 1000;
        db.check(&[("bitcount sparse", "1"), ("bitpos dense 1", "1")]);
        assert!(db.line("bitcount dense").starts_with("-ERR internal"));
        db.steps = 100_000;
        assert_eq!(db.line("bitcount dense"), "8000000");
    }

    proptest! {
        #[test]
        fn counting_and_finding_agree_with_looking_at_every_bit(
            parts in prop::collection::vec((prop_oneof![0..9000usize, Just(1), 20_000..40_000usize], 0..4u8), 0..5),
            places: [prop::sample::Index; 2],
        ) {
            let bytes: Vec<u8> = parts.iter().flat_map(|(len, kind)| {
                (0..*len).map(move |i| [0, 255, i as u8, if i == len - 1 { 16 } else { 0 }][*kind as usize])
            }).collect();
            let s = Str::from_slice(&bytes);
            let bits = bytes.len() * 8;
            let bit = |i: usize| bytes[i / 8] >> (7 - i % 8) & 1 == 1;
            let mut ends = places.map(|place| place.index(bits + 1));
            ends.sort();
            let range = ends[0]..ends[1];
            let mut budget = Budget::unlimited(None);
            let count = range.clone().filter(|i| bit(*i)).count() as u64;
            prop_assert_eq!(count_bits(s.as_ref(), range.clone(), &mut budget), Ok(count));
            for wanted in [false, true] {
                if !range.is_empty() {
                    let found = range.clone().find(|i| bit(*i) == wanted);
                    prop_assert_eq!(find_bit(s.as_ref(), wanted, range.clone(), &mut budget), Ok(found));
                }
            }
        }
    }
}
