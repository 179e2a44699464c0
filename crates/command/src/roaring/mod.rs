//! Compressed bitmaps: the commands of the redis-roaring module, `R.*` for 32 bits and `R64.*` for 64.
//!
//! ```text
//! bits.rs      single bits, ranges, counts, places
//! arrays.rs    bits as lists of their places, and as text of zeros and ones
//! combine.rs   several bitmaps
//! form.rs      how one is kept
//! ```
//!
//! Every handler stands once, for any [`Width`]; [`rows!`](rows) makes a table of each. Names, replies and errors are those
//! that the module (1.7) documents; where its documentation is silent or its tests say otherwise, as it behaves.
//!
//! - R1: ranges are set, counted and turned round by their ends, whatever their width; nothing here looks at every number of
//!   a range that is wholly set or clear.
//! - R2: a key whose last bit goes stays, without bits.
//! - R3: places and counts are integers in `R.*`. In `R64.*`, where they may exceed those, they are big numbers (in RESP2
//!   text). A count of 2^64 is answered as 2^64 - 1, the most that clients read.

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
    /// What STAT calls it.
    const TYPE: &'static str;

    fn value(bits: Ints) -> Value;
    /// Writes a place or a count (R3).
    fn number(out: &mut Reply, n: u64);
}

/// `R.*`
pub(crate) struct Narrow;
/// `R64.*`
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

/// Two tables of the same rows, one for each width.
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

/// Of commands that are done in the time of a look-up.
fn short(_: &View<'_>, _: Args<'_>) -> usize {
    0
}

/// About four steps per argument.
fn per_argument(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * 4
}

/// Steps it takes to go through a bitmap container by container, about.
fn whole(view: &View<'_>, key: &[u8]) -> usize {
    use value::ValueRef::{Roaring, Roaring64};
    match view.value(key) {
        Some(Roaring(bits) | Roaring64(bits)) => bits.mem_bytes() / 128,
        _ => 0,
    }
}

/// The bitmap of a key that must be there.
fn present<'v, W: Width>(view: &'v View<'_>, key: &[u8]) -> Result<&'v Ints, Error> {
    view.ints(key, W::KIND)?.ok_or(NO_KEY)
}

/// A place.
fn number<W: Width>(word: &[u8], name: &str) -> Result<u64, Error> {
    let number = stdx::num::parse_u64(word).filter(|number| *number <= W::MAX);
    number.ok_or_else(|| format!("ERR invalid {name}: must be an unsigned {} bit integer", W::BITS).into())
}

/// Several places.
fn numbers<W: Width>(words: Args<'_>, name: &str) -> Result<Vec<u64>, Error> {
    words.iter().map(|word| number::<W>(word, name)).collect()
}

/// 0 or 1.
fn bit(word: &[u8], name: &str) -> Result<bool, Error> {
    match word {
        b"0" => Ok(false),
        b"1" => Ok(true),
        _ => Err(format!("ERR invalid {name}: must be either 0 or 1").into()),
    }
}

/// What was read of the arguments; a key of another type is the first mistake that is told.
fn checked<W: Width, T>(cx: &Cx<'_, '_>, key: &[u8], read: Result<T, Error>) -> Result<T, Error> {
    if read.is_err() {
        cx.view.ints(key, W::KIND)?;
    }
    read
}

/// How many bits there are, as it is answered (R3).
fn count(bits: &Ints) -> u64 {
    u64::try_from(bits.len()).unwrap_or(u64::MAX)
}

/// Runs something long that says what it does, charging for it.
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
