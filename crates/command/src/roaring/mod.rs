//! Compressed bitmaps: the commands of the redis-roaring module, `R.*` for 32 bits and `R64.*` for 64.
//!
//! ```text
//! bits.rs      single bits, ranges, counts, positions
//! arrays.rs    bits as lists of positions, and as text of zeros and ones
//! combine.rs   several bitmaps
//! form.rs      the form of one in memory
//! ```
//!
//! Every handler is written once, for any [`Width`]; [`rows!`](rows) makes a table for each. Names, replies
//! and errors are those of the module's (1.7) documentation. Where that is silent, or the module's tests
//! disagree, they are those of the module itself.
//!
//! - R1: ranges are set, counted and inverted by their ends, whatever their width. No command looks at every
//!   number of a range that is fully set or clear.
//! - R2: a key whose last bit is cleared stays, without bits.
//! - R3: positions and counts are integers in `R.*`. In `R64.*`, where they may be larger, they are big
//!   numbers (in RESP2 text). A count of 2^64 is answered as 2^64 - 1, the most that clients read.

pub(crate) mod arrays;
pub(crate) mod bits;
pub(crate) mod combine;
pub(crate) mod form;
#[cfg(test)]
mod tests;

use crate::{Budget, Cx, Error};
use keyspace::View;
use resp::{Args, Reply};
use std::ops::ControlFlow::{Break, Continue};
use value::ints::Pause;
use value::{Ints, Kind, Value};

/// The numbers of a family.
pub(crate) trait Width: Send + 'static {
    const KIND: Kind;
    const BITS: u32;
    /// The largest number.
    const MAX: u64;
    const BITOP: &'static str;
    const STAT: &'static str;
    /// The type's name in STAT.
    const TYPE: &'static str;

    fn value(bits: Ints) -> Value;
    /// Writes a position or a count (R3).
    fn number(out: &mut Reply, n: u64);
}

/// The family `R.*`.
pub(crate) struct Narrow;
/// The family `R64.*`.
pub(crate) struct Wide;

impl Width for Narrow {
    const KIND: Kind = Kind::Roaring;
    const BITS: u32 = 32;
    const MAX: u64 = u32::MAX as u64;
    const BITOP: &'static str = "R.BITOP";
    const STAT: &'static str = "R.STAT";
    const TYPE: &'static str = "bitmap";

    fn value(bits: Ints) -> Value {
        Value::Roaring(bits)
    }

    #[inline]
    fn number(out: &mut Reply, n: u64) {
        out.int(n as i64);
    }
}

impl Width for Wide {
    const KIND: Kind = Kind::Roaring64;
    const BITS: u32 = 64;
    const MAX: u64 = u64::MAX;
    const BITOP: &'static str = "R64.BITOP";
    const STAT: &'static str = "R64.STAT";
    const TYPE: &'static str = "bitmap64";

    fn value(bits: Ints) -> Value {
        Value::Roaring64(bits)
    }

    #[inline]
    fn number(out: &mut Reply, n: u64) {
        match i64::try_from(n) {
            Ok(n) if !out.resp3() => out.bulk_int(n),
            _ => out.big_number(&n.to_string()),
        }
    }
}

/// Makes two tables of the same rows, one for each width.
macro_rules! rows {
    ($($name:literal, $arity:expr, $kind:ident($handler:ident), $flags:expr, $keys:expr, $cost:expr, $complexity:literal,
       $summary:literal;)*) => {
        $crate::roaring::rows!(@table COMMANDS, "r.", Narrow,
            $($name, $arity, $kind($handler), $flags, $keys, $cost, $complexity, $summary;)*);
        $crate::roaring::rows!(@table COMMANDS_64, "r64.", Wide,
            $($name, $arity, $kind($handler), $flags, $keys, $cost, $complexity, $summary;)*);
    };
    (@table $table:ident, $prefix:literal, $width:ident,
     $($name:literal, $arity:expr, $kind:ident($handler:ident), $flags:expr, $keys:expr, $cost:expr, $complexity:literal,
       $summary:literal;)*) => {
        pub(crate) static $table: &[Command] = &[$(
            Command::new(concat!($prefix, $name), $arity, Run::$kind($handler::<$width>), $flags, acl::BITMAP)
                .keys($keys)
                .cost($cost)
                .doc("roaring", "1.0.0", $complexity, $summary),
        )*];
    };
}
use rows;

const NO_KEY: Error = Error::new("Roaring: key does not exist");
const KEY_EXISTS: Error = Error::new("Roaring: key already exist");

/// The cost of commands that take no longer than a look-up.
fn short(_: &View<'_>, _: Args<'_>) -> usize {
    0
}

/// About four steps per argument.
fn per_argument(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * 4
}

/// Steps to walk a bitmap container by container, about.
fn whole(view: &View<'_>, key: &[u8]) -> usize {
    use value::ValueRef::{Roaring, Roaring64};
    match view.value(key) {
        Some(Roaring(bits) | Roaring64(bits)) => bits.mem_bytes() / 128,
        _ => 0,
    }
}

/// The bitmap of a key. Errors: WRONGTYPE, no such key.
fn present<'v, W: Width>(view: &'v View<'_>, key: &[u8]) -> Result<&'v Ints, Error> {
    view.ints(key, W::KIND)?.ok_or(NO_KEY)
}

/// Reads a position. Errors: invalid `name`.
fn number<W: Width>(word: &[u8], name: &str) -> Result<u64, Error> {
    let number = stdx::num::parse_u64(word).filter(|number| *number <= W::MAX);
    number.ok_or_else(|| format!("ERR invalid {name}: must be an unsigned {} bit integer", W::BITS).into())
}

/// Reads several positions. Errors: invalid `name`.
fn numbers<W: Width>(words: Args<'_>, name: &str) -> Result<Vec<u64>, Error> {
    words.iter().map(|word| number::<W>(word, name)).collect()
}

/// Reads 0 or 1. Errors: invalid `name`.
fn bit(word: &[u8], name: &str) -> Result<bool, Error> {
    match word {
        b"0" => Ok(false),
        b"1" => Ok(true),
        _ => Err(format!("ERR invalid {name}: must be either 0 or 1").into()),
    }
}

/// The arguments read. If they are wrong, a key of another type is reported first.
fn checked<W: Width, T>(cx: &Cx<'_, '_>, key: &[u8], read: Result<T, Error>) -> Result<T, Error> {
    if read.is_err() {
        cx.view.ints(key, W::KIND)?;
    }
    read
}

/// The number of bits, as it is answered (R3).
fn count(bits: &Ints) -> u64 {
    u64::try_from(bits.len()).unwrap_or(u64::MAX)
}

/// Runs long work that reports its steps, and charges for them.
fn paced<T>(budget: &mut Budget<'_>, run: impl FnOnce(Pause<'_>) -> Option<T>) -> Result<T, Error> {
    let mut refused = None;
    let done = run(&mut |steps| match budget.charge(steps) {
        Ok(()) => Continue(()),
        Err(error) => {
            refused = Some(error);
            Break(())
        }
    });
    done.ok_or_else(|| refused.unwrap_or(Error::Cancelled))
}
