//! Keys and databases that a command's words name, known before it runs.

use crate::options::is;
use crate::table::{OW_UPDATE, OptionWords, RM_DELETE, RO_ACCESS, RW_ACCESS_UPDATE, Use};
use crate::{Command, Error, facts};
use keyspace::{Keyspace, View};
use resp::Args;
use std::ops::Range;
use stdx::locks::Bits;

/// The shards of a command's keys.
#[inline]
pub fn shards_of(command: &Command, args: Args<'_>) -> Bits {
    let mut shards = Bits::EMPTY;
    command.each_key(args, &mut |i, _| {
        shards = shards.union(&Keyspace::shards_of([args.at(i)]));
    });
    shards
}

/// Makes the tables true for the keys of some commands, whose shards the view holds (a long commit is under
/// way).
#[cold]
pub fn settle<'a>(view: &mut View<'_>, calls: impl Iterator<Item = (&'static Command, Args<'a>)>, db: usize) {
    let (mut keys, mut writes) = (Vec::new(), false);
    for (command, args) in calls {
        command.each_key(args, &mut |i, _| keys.push((db, args.at(i))));
        writes |= command.is_write();
    }
    view.settle(&keys, writes);
}

/// The database a word names, of so many.
///
/// # Errors
/// It is no number, or there is no such database.
pub fn database(databases: usize, word: &[u8]) -> Result<usize, Error> {
    let number = crate::options::int(word)?;
    if i32::try_from(number).is_err() {
        return Err(Error::new("ERR value is out of range, value must between -2147483648 and 2147483647"));
    }
    let db = usize::try_from(number).ok().filter(|db| *db < databases);
    db.ok_or(Error::new("ERR DB index is out of range"))
}

/// The database, beside the current one, in which a command writes a key, and that key; there are so many
/// databases.
pub fn target<'w>(databases: usize, command: &Command, args: Args<'w>) -> Option<(usize, &'w [u8])> {
    let (key, db) = match command.name {
        "move" => (args.at(1), args.get(2)?),
        "copy" => {
            let option = (3..args.len()).rev().find(|i| args.at(*i).eq_ignore_ascii_case(b"db"))?;
            (args.at(2), args.get(option + 1)?)
        }
        _ => return None,
    };
    Some((database(databases, db).ok()?, key))
}

/// BITFIELD's options.
const BITFIELD_OPTIONS: OptionWords =
    OptionWords { from: 2, takes: &[("get", 2), ("set", 3), ("incrby", 3), ("overflow", 1)] };

/// Calls `f` with the index of every key of a call within a range of words, and with its use as the call's
/// options decide it. False: the keys are unknown (malformed numbers). O(keys in the range).
pub fn each_use(
    command: &Command,
    args: Args<'_>,
    words: Range<usize>,
    f: &mut dyn FnMut(usize, Use),
) -> bool {
    // An empty key of MIGRATE stands for the keys behind KEYS.
    let mut others = 0;
    if command.is(facts::KEYS_BEHIND) && args.get(3).is_some_and(<[u8]>::is_empty) {
        command.each_key(args, &mut |_, _| others += 1);
    }
    command.each_key_within(args, words, &mut |at, uses| {
        if others < 2 || at != 3 {
            f(at, settled(command, args, uses));
        }
    })
}

/// The use of a key by a command whose options decide it.
fn settled(command: &Command, args: Args<'_>, usage: Use) -> Use {
    // The value that SET stores is no option, whatever its text.
    let first = if command.is(facts::SETS) { 3 } else { 2 };
    let has = |words: &[&str]| args.iter().skip(first).any(|arg| words.iter().any(|word| is(arg, word)));
    match command.name {
        "set" if has(&["get", "ifeq", "ifne", "ifdeq", "ifdne"]) => RW_ACCESS_UPDATE,
        "set" => OW_UPDATE,
        "delex" if args.len() == 2 => RM_DELETE,
        "bitfield" if BITFIELD_OPTIONS.are_only(args, &["get", "overflow"]) => RO_ACCESS,
        "bitfield" => RW_ACCESS_UPDATE,
        _ => usage,
    }
}
