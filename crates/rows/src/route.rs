//! The database in which a command runs, and the commands that a source's keys allow.

use super::wait::{self, Asker, Stop};
use super::{Entry, Pending, Rows};
use command::table::Begin;
use command::{Command, Error, INLINE_WORDS, facts};
use keyspace::Keyspace;
use resp::Args;
use source::Writes;
use std::ops::Range;
use std::sync::Arc;

/// Words of a command whose rows are asked for ahead of time. There may be some thirty such commands.
const AHEAD: usize = 16;

/// Words that are looked at in a stretch. A command of more is looked at in slices, one a turn of its loop.
const SLICE: usize = 8192;

/// The way to run a command that may name keys of sources.
pub enum Plan {
    /// It names none, and runs as any other.
    Own,
    /// All its keys belong to this source.
    In(Arc<Entry>),
    /// MGET or the like of several keys, some of them of sources. It has the first key of a source if not all
    /// belong to one.
    Fetch(Option<(Arc<Entry>, usize)>),
    Refused(Error),
    /// Not all of its keys have been looked at. It runs again in the next turn.
    Later,
}

/// Chooses the plan of a command whose keys are in `db`. Cost: O(keys · sources), of at most [`SLICE`] words
/// at a time.
pub fn plan(rows: &Rows, pending: &mut Pending, db: usize, command: &Command, args: Args<'_>) -> Plan {
    if command.is(facts::SWAPS)
        && let Some(error) = swap_refusal(rows, args)
    {
        return Plan::Refused(error);
    }
    if db != 0
        && let Some((0, key)) = target(rows, command, args)
        && let Some(entry) = rows.of(key)
    {
        return Plan::Refused(not_together(&entry, key));
    }
    // WATCH looks at each of its keys in its own place.
    if db != 0 || command.keys.is_empty() || command.is(facts::SCRIPT | facts::WATCHES) {
        return Plan::Own;
    }
    if pending.fetch.is_some() {
        // The fetch goes on.
        return Plan::Fetch(None);
    }
    let list = rows.list.load();
    let mut named = Named::default();
    if args.len() <= SLICE {
        named.look(&list, command, args, 0..args.len());
    } else {
        let so_far = pending.routing.take().filter(|routing| Arc::ptr_eq(&routing.list, &list));
        let mut routing = so_far.unwrap_or_else(|| Routing::new(list.clone()));
        if routing.is_unfinished(command, args) {
            pending.routing = Some(routing);
            return Plan::Later;
        }
        named = routing.named;
    }
    named.plan(command, args)
}

/// The keys of a command of very many, of which some have been looked at.
pub struct Routing {
    /// The sources at its begin. With others it begins again.
    list: Arc<Vec<Arc<Entry>>>,
    /// The next word.
    next: usize,
    named: Named,
}

impl Routing {
    fn new(list: Arc<Vec<Arc<Entry>>>) -> Box<Routing> {
        Box::new(Routing { list, next: 0, named: Named::default() })
    }

    /// Looks at some more words. False if none are left.
    fn is_unfinished(&mut self, command: &Command, args: Args<'_>) -> bool {
        let end = self.next + SLICE;
        self.named.look(&self.list, command, args, self.next..end);
        self.next = end;
        end < args.len()
    }
}

/// The keys a command names.
#[derive(Default)]
struct Named {
    /// Keys that are of no source.
    others: bool,
    /// The source of the first key that has one, and the place of that key.
    first: Option<(Arc<Entry>, usize)>,
    /// Keys of another source, too.
    mixed: bool,
}

impl Named {
    fn look(&mut self, list: &[Arc<Entry>], command: &Command, args: Args<'_>, words: Range<usize>) {
        let mut look = |i: usize| {
            let key = args.at(i);
            match list.iter().find(|entry| entry.spec().pattern.id(key).is_some()) {
                None => self.others = true,
                Some(entry) => {
                    let (first, _) = self.first.get_or_insert_with(|| (entry.clone(), i));
                    self.mixed |= first.db != entry.db;
                }
            }
        };
        command.each_key_within(args, words, &mut |i, _| look(i));
        // The command table cannot name that key.
        stored_to(command, args).into_iter().for_each(look);
    }

    fn plan(self, command: &Command, args: Args<'_>) -> Plan {
        let Some((entry, key)) = self.first else { return Plan::Own };
        let apart = self.mixed || self.others;
        if let Some(first) = super::first_key(command)
            && args.len() > first + 1
        {
            return Plan::Fetch(apart.then_some((entry, key)));
        }
        if apart {
            return Plan::Refused(not_together(&entry, args.at(key)));
        }
        match refusal(&entry, command, args, args.at(key)) {
            Some(error) => Plan::Refused(error),
            None => Plan::In(entry),
        }
    }
}

/// The place of the key that SORT stores to. Its row is the only write with unknown keys.
fn stored_to(command: &Command, args: Args<'_>) -> Option<usize> {
    let sorts = command.is_write() && command.keys.iter().any(|spec| spec.begin == Begin::Unknown);
    if sorts { command::sort_destination(args) } else { None }
}

/// The database beside the current one in which a command writes a key, and that key.
fn target<'w>(rows: &Rows, command: &Command, args: Args<'w>) -> Option<(usize, &'w [u8])> {
    command::keys::target(rows.keyspace.databases(), command, args)
}

/// The database a word names, if there is one of that number.
fn database(keyspace: &Keyspace, word: &[u8]) -> Option<usize> {
    command::keys::database(keyspace.databases(), word).ok()
}

/// The error of an exchange of databases: keys of another one could be those of rows, which KEYS would find
/// and GET would not.
fn swap_refusal(rows: &Rows, args: Args<'_>) -> Option<Error> {
    let is_zero = |at| database(&rows.keyspace, args.at(at)) == Some(0);
    (rows.any() && is_zero(1) != is_zero(2))
        .then(|| Error::new("ERR database 0 has keys of sources: it cannot be exchanged"))
}

/// The error of a command that was queued before its keys became a source's.
#[cold]
pub fn came_since(rows: &Rows, command: &Command, args: Args<'_>) -> Error {
    let mut found = None;
    command.each_key(args, &mut |i, _| {
        found = found.take().or_else(|| Some((rows.of(args.at(i))?, i)));
    });
    let Some((entry, at)) = found else { return Error::new("ERR the source was removed") };
    let (name, key) = (&entry.spec().name, String::from_utf8_lossy(args.at(at)));
    format!("SOURCEBUSY source '{name}': key '{key}' was not one of its rows when the command was queued")
        .into()
}

/// The reason why a command may not be run on a source's key.
fn refusal(entry: &Entry, command: &Command, args: Args<'_>, key: &[u8]) -> Option<Error> {
    if facts::has_unknown_keys(command, args) {
        return Some(not_together(entry, key));
    }
    if !command.is_write() || command.is(facts::READS_VALUE) {
        return None;
    }
    let (key, name) = (String::from_utf8_lossy(key), &entry.spec().name);
    if entry.spec().writes == Writes::Refuse {
        let text = format!("SOURCEREADONLY key '{key}' is a row of source '{name}': write to its database");
        return Some(text.into());
    }
    (args.len() >= INLINE_WORDS)
        .then(|| format!("ERR too many arguments for a key of source '{name}'").into())
}

pub(super) fn not_together(entry: &Entry, key: &[u8]) -> Error {
    let (key, name) = (String::from_utf8_lossy(key), &entry.spec().name);
    format!(
        "ERR key '{key}' is a row of source '{name}' and cannot be used together with other keys, except by MGET and EXISTS"
    )
    .into()
}

/// The database of the keys of a command within a transaction or a script. Keys of several places were
/// refused.
#[inline]
pub fn db_for(rows: &Rows, command: &Command, args: Args<'_>, db: usize) -> usize {
    if db != 0 || !rows.any() {
        return db;
    }
    db_of_source(rows, command, args)
}

/// The source of the keys of a command within a script or a transaction over an overlay. Errors: it may not
/// run there.
#[inline]
pub fn of_call(
    rows: &Rows,
    db: usize,
    command: &Command,
    args: Args<'_>,
) -> Result<Option<Arc<Entry>>, Error> {
    if !rows.any() { Ok(None) } else { of_inner_call(rows, db, command, args) }
}

#[cold]
fn of_inner_call(
    rows: &Rows,
    db: usize,
    command: &Command,
    args: Args<'_>,
) -> Result<Option<Arc<Entry>>, Error> {
    if command.is(facts::SWAPS)
        && let Some(error) = swap_refusal(rows, args)
    {
        return Err(error);
    }
    let mut keys = Vec::new();
    if db == 0 {
        command.each_key(args, &mut |i, _| keys.push((args.at(i), rows.of(args.at(i)))));
        let stored = stored_to(command, args).map(|i| (args.at(i), rows.of(args.at(i))));
        keys.extend(stored);
    } else if let Some((0, key)) = target(rows, command, args)
        && let Some(entry) = rows.of(key)
    {
        return Err(not_together(&entry, key));
    }
    let Some((key, Some(entry))) = keys.iter().find(|(_, entry)| entry.is_some()) else { return Ok(None) };
    let same = |other: &Option<Arc<Entry>>| other.as_ref().is_some_and(|other| other.db == entry.db);
    if !keys.iter().all(|(_, other)| same(other)) {
        return Err(not_together(entry, key));
    }
    if command.is_write() {
        let name = &entry.spec().name;
        return Err(format!("SOURCEREADONLY rows of source '{name}' cannot be written by scripts").into());
    }
    Ok(Some(entry.clone()))
}

#[cold]
fn db_of_source(rows: &Rows, command: &Command, args: Args<'_>) -> usize {
    let mut db = 0;
    command.each_key(args, &mut |i, _| {
        if let Some(entry) = rows.of(args.at(i)) {
            db = entry.db;
        }
    });
    db
}

/// The reason why a command with keys of sources cannot be queued by MULTI, if there is one.
pub fn unfit_for_queue(plan: &Plan, args: Args<'_>) -> Option<Error> {
    match plan {
        Plan::Own | Plan::In(_) | Plan::Later => None,
        Plan::Refused(error) => Some(error.clone()),
        Plan::Fetch(apart) => apart.as_ref().map(|(entry, key)| not_together(entry, args.at(*key))),
    }
}

/// Makes sure that the rows named by a transaction or script are there before it runs. Else its client is
/// held. `None`: it may run. Rows that it may not write are not looked at here.
pub fn preload<'a>(
    rows: &Rows,
    asker: Asker,
    pending: &mut Pending,
    keys: impl Iterator<Item = &'a [u8]>,
) -> Option<Stop> {
    let mut wanted: Vec<(Arc<Entry>, &[u8])> = Vec::new();
    for key in keys {
        if let Some(entry) = rows.of(key) {
            wanted.push((entry, key));
        }
    }
    wait::load_all(&rows.keyspace, asker, pending, &wanted)
}

/// Asks for the rows of a later command of database 0 while an earlier one waits, so that they come along.
/// Cost: as looking at its keys.
pub fn ask_ahead(rows: &Rows, now_ms: u64, command: &Command, args: Args<'_>) {
    if command.is_write() || args.len() > AHEAD {
        return;
    }
    command.each_key(args, &mut |i, _| {
        if let Some(entry) = rows.of(args.at(i)) {
            wait::ask(&rows.keyspace, now_ms, &entry, args.at(i));
        }
    });
}
