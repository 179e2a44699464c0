//! Changes to a part of a string: APPEND, SETRANGE, and the writes of the bitmap commands.
//!
//! ```text
//! same length          in place, in the entry or in the value
//! short afterwards     copied on the stack and stored again (it lives in the key's entry)
//! long                 the value's own chunks grow; a gap becomes zeros that take no memory
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

/// `APPEND key value`: appends and answers the new length. A missing key becomes the value.
///
/// Cost: O(n), n = bytes of the value, however long the string. Errors: WRONGTYPE, a string over
/// `proto-max-bulk-len`.
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

/// `SETRANGE key offset value`: overwrites a part and answers the new length. An empty value changes nothing.
///
/// Cost: O(n), n = bytes of the value, however long the string. Errors: offset not an integer or negative,
/// WRONGTYPE, a string over `proto-max-bulk-len`.
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

/// Writes `bytes` at `at` into the string of a key, which may be missing. A gap becomes zeros, and the expiry
/// stays. The caller calls `changed`. Cost: O(n), n = bytes written.
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

/// Marks a string `raw` after an edit that changed nothing, as Redis does.
pub(crate) fn touch(view: &mut View<'_>, key: &[u8]) -> Result<(), WrongType> {
    if !view.is_raw(key) {
        view.string_mut(key)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Db, Over};
    use proptest::prelude::*;
    use resp::Frame;

    #[test]
    fn appending_and_overwriting_answer_the_new_length() {
        Db::both(|mut db| {
            let range = "-ERR offset is out of range";
            let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
            let too_long = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)";
            db.check(&[
                ("append k ab", "2"),
                ("append k \"\"", "2"),
                ("append k c", "3"),
                ("append e \"\"", "0"),
                ("strlen e", "0"),
                ("setrange k 1 xyz", "4"),
                ("setrange k 6 !", "7"),
                ("get k", "\"axyz\\x00\\x00!\""),
                ("setrange none 0 \"\"", "0"),
                ("setrange none 536870912 \"\"", "0"),
                ("getdel none", "nil"),
                ("setrange k 100 \"\"", "7"),
                ("setrange none -1 \"\"", range),
                ("setrange none x \"\"", "-ERR value is not an integer or out of range"),
                ("setrange none 536870912 a", too_long),
                ("setrange none 9223372036854775807 a", too_long),
                ("setrange far 536870911 a", "536870912"),
                ("append far a", too_long),
                ("append far \"\"", "536870912"),
                ("sadd s x", "1"),
                ("append s a", wrong_type),
                ("setrange s 0 \"\"", wrong_type),
                ("setrange s 536870912 a", wrong_type),
                ("setrange s -1 a", range),
            ]);
        });
    }

    #[test]
    fn what_was_appended_to_is_raw_though_nothing_came() {
        Db::both(|mut db| {
            db.check(&[
                ("set n 12", "OK"),
                ("object encoding n", "\"int\""),
                ("setrange n 0 \"\"", "2"),
                ("object encoding n", "\"int\""),
                ("append n \"\"", "2"),
                ("object encoding n", "\"raw\""),
                ("set t text", "OK"),
                ("append t \"\"", "4"),
                ("object encoding t", "\"raw\""),
                ("get n", "\"12\""),
            ]);
        });
    }

    #[test]
    fn an_edited_key_keeps_its_expiry_and_is_told_once() {
        Db::both(|mut db| {
            db.line("set k v PX 10");
            db.events();
            db.check(&[
                ("append k v", "2"),
                ("setrange k 5 z", "6"),
                ("setrange k 5 \"\"", "6"),
                ("setbit k 0 1", "0"),
            ]);
            assert_eq!(db.events(), ["append:k", "setrange:k", "setbit:k"]);
            db.now_ms += 10;
            assert_eq!(db.line("get k"), "nil");
        });
    }

    #[test]
    fn a_snapshot_does_not_see_what_is_written_in_place() {
        let mut db = Db::new();
        let long = "x".repeat(100_000);
        db.run(&["SET", "k", &long]);
        let held = db.keyspace.clone();
        let before = keyspace::View::locked(&held, keyspace::Keyspace::shards_of([&b"k"[..]]), 0, db.now_ms);
        let copy = before.owned(b"k").unwrap();
        before.finish();
        db.check(&[("setrange k 50000 new", "100000"), ("append k end", "100003"), ("setbit k 7 1", "0")]);
        let value::Value::Str(copy) = copy.value else { panic!() };
        assert!(copy.as_ref() == *long.as_bytes());
        assert_eq!(db.line("getrange k 49999 50003"), "\"xnewx\"");
    }

    #[derive(Clone, Debug)]
    enum Edit {
        Append(Vec<u8>),
        Write(usize, Vec<u8>),
        Set(Vec<u8>),
        Bit(usize, bool),
        Expire,
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let len = prop_oneof![3 => 0..20usize, 2 => 0..400usize, 1 => 3000..20_000usize];
        (len, any::<u8>())
            .prop_map(|(len, first)| (0..len).map(|i| first.wrapping_add((i / 3) as u8)).collect())
    }

    fn edit() -> impl Strategy<Value = Edit> {
        let at = || prop_oneof![3 => 0..400usize, 1 => 0..40_000usize];
        prop_oneof![
            4 => bytes().prop_map(Edit::Append),
            4 => (at(), bytes()).prop_map(|(at, bytes)| Edit::Write(at, bytes)),
            1 => bytes().prop_map(Edit::Set),
            2 => (at(), any::<bool>()).prop_map(|(at, on)| Edit::Bit(at, on)),
            1 => Just(Edit::Expire),
        ]
    }

    fn write(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            model.resize(model.len().max(at + bytes.len()), 0);
            model[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn edits_agree_with_a_plain_vector(edits in prop::collection::vec(edit(), 1..25), overlay: bool, key in "k|k{190}|k{300}") {
            let mut db = Db::new().over(if overlay { Over::Overlay } else { Over::Locks });
            let key = key.as_bytes();
            let mut model = Vec::new();
            for edit in edits {
                match edit {
                    Edit::Append(bytes) => {
                        model.extend_from_slice(&bytes);
                        prop_assert_eq!(db.call::<&[u8]>(&[b"APPEND", key, &bytes]), Frame::Int(model.len() as i64));
                    }
                    Edit::Write(at, bytes) => {
                        write(&mut model, at, &bytes);
                        let reply = db.call::<&[u8]>(&[b"SETRANGE", key, at.to_string().as_bytes(), &bytes]);
                        prop_assert_eq!(reply, Frame::Int(model.len() as i64));
                    }
                    Edit::Set(bytes) => {
                        db.call::<&[u8]>(&[b"SET", key, &bytes]);
                        model = bytes;
                    }
                    Edit::Bit(at, on) => {
                        let was = model.get(at / 8).is_some_and(|b| b >> (7 - at % 8) & 1 == 1);
                        let byte = model.get(at / 8).copied().unwrap_or(0) & !(0x80 >> (at % 8));
                        write(&mut model, at / 8, &[byte | u8::from(on) << (7 - at % 8)]);
                        let reply = db.call::<&[u8]>(&[b"SETBIT", key, at.to_string().as_bytes(), if on { b"1" } else { b"0" }]);
                        prop_assert_eq!(reply, Frame::Int(was.into()));
                    }
                    Edit::Expire => {
                        db.call::<&[u8]>(&[b"GETEX", key, b"EX", b"100"]);
                    }
                }
                prop_assert_eq!(db.call::<&[u8]>(&[b"GETRANGE", key, b"0", b"-1"]), Frame::Bulk(model.clone()));
            }
        }
    }
}
