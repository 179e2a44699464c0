//! Changing a part of a string: APPEND, SETRANGE, and what the bitmap commands write.
//!
//! ```text
//! same length          in place, wherever it lies
//! short afterwards     copied on the stack and stored again (it lives in the key's entry)
//! long                 the value's own chunks grow; a gap becomes zeros that cost nothing
//! ```

use super::argument_cost;
use crate::options::{check_string_size, int};
use crate::table::{Command, DENYOOM, FAST, KeySpec, RW_UPDATE, Run, Use, WRITE, acl};
use crate::{Cx, Error};
use keyspace::{Class, StrMut, View, WrongType};
use resp::Args;
use smallvec::SmallVec;
use value::{Str, StrRef, Value};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("append", 3, Run::Write(append), WRITE | DENYOOM | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, Use(&["RW", "insert"]))])
        .cost(argument_cost::<2>)
        .doc(
            "string",
            "2.0.0",
            "O(1). The amortized time complexity is O(1) assuming the appended value is small and the already present \
             value is of any size, since the dynamic string library used by Redis will double the free space available \
             on every reallocation.",
            "Adds bytes at the end of the string a key holds.",
        ),
    Command::new("setrange", 4, Run::Write(setrange), WRITE | DENYOOM, acl::STRING)
        .keys(&[KeySpec::one(1, RW_UPDATE)])
        .cost(argument_cost::<3>)
        .doc(
            "string",
            "2.2.0",
            "O(1), not counting the time taken to copy the new string in place. Usually, this string is very small so \
             the amortized complexity is O(1). Otherwise, complexity is O(M) with M being the length of the value \
             argument.",
            "Overwrites a part of the string a key holds, with zeros in front if it was shorter.",
        ),
];

/// Strings up to this length are copied when they grow.
const SHORT: usize = 320;

/// `APPEND key value`: the new length. A missing key becomes the value.
fn append(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, value) = (args.at(1), args.at(2));
    let old = cx.view.string(key)?.map(|s| s.len());
    match old {
        None => cx.view.put_string(key, value, None),
        Some(len) => {
            check_string_size(cx, len, value.len())?;
            write_at(cx.view, key, len, value)?;
        }
    }
    cx.view.changed(key, Class::String, "append");
    cx.out.int((old.unwrap_or(0) + value.len()) as i64);
    Ok(())
}

/// `SETRANGE key offset value`: the new length. An empty value changes nothing.
///
/// Cost: O(n), n = bytes of the value, however long the string.
fn setrange(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, offset, value) = (args.at(1), int(args.at(2))?, args.at(3));
    let offset = usize::try_from(offset).map_err(|_| Error::new("ERR offset is out of range"))?;
    let len = cx.view.string(key)?.map_or(0, |s| s.len());
    if value.is_empty() {
        cx.out.int(len as i64);
        return Ok(());
    }
    check_string_size(cx, offset, value.len())?;
    write_at(cx.view, key, offset, value)?;
    cx.view.changed(key, Class::String, "setrange");
    cx.out.int(len.max(offset + value.len()) as i64);
    Ok(())
}

/// Writes `bytes` at `at` into the string of a key, which may be missing; what lies between is zeros. The expiry stays.
/// The caller says `changed`. Cost: O(n), n = bytes written.
pub(crate) fn write_at(view: &mut View<'_>, key: &[u8], at: usize, bytes: &[u8]) -> Result<(), WrongType> {
    let end = at + bytes.len();
    let (old, expire) = match view.string_and_expire(key)? {
        Some(found) => found,
        None => (StrRef::Flat(&[]), None),
    };
    let old_len = old.len();
    if end > old_len && end <= SHORT {
        let mut text = SmallVec::<[u8; 512]>::new();
        old.runs(0..old_len).for_each(|run| match run {
            value::str::Run::Bytes(bytes) => text.extend_from_slice(bytes),
            value::str::Run::Zeros(n) => text.resize(text.len() + n as usize, 0),
        });
        text.resize(at, 0);
        text.extend_from_slice(bytes);
        view.put_raw_string(key, &text, expire);
        return Ok(());
    }
    let mut grown = match view.string_mut(key)? {
        Some(StrMut::Big(s)) => {
            s.write_at(at, bytes);
            return Ok(());
        }
        Some(StrMut::Inline(text)) if end <= old_len => {
            text[at..end].copy_from_slice(bytes);
            return Ok(());
        }
        Some(StrMut::Inline(text)) => Str::from_slice_raw(text),
        None => Str::new(),
    };
    grown.write_at(at, bytes);
    view.put(key, Value::Str(grown), expire);
    Ok(())
}
