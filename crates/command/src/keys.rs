//! Keys and databases that a command's words name, known before it runs.

use crate::{Command, Error};
use keyspace::{Keyspace, View};
use resp::Args;
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
