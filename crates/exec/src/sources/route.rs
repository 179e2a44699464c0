//! Which database a command runs in, and what it may do to a source's keys.

use super::{Entry, wait};
use crate::actions::Act;
use crate::call::Flow;
use crate::job::MANY_WORDS;
use crate::queue::{Queue, is_script};
use crate::{Local, Server, Session};
use command::{Command, Error};
use resp::{Args, Reply};
use source::Writes;
use std::sync::Arc;

/// Words of a command whose rows are asked for ahead of time: there may be some thirty of them.
const AHEAD: usize = 16;

/// How a command is run that may name keys of sources.
pub(crate) enum Plan {
    /// As ever: it names none.
    Own,
    /// All its keys belong to this source.
    In(Arc<Entry>),
    /// MGET or the like of several keys, some of them of sources; where its keys begin.
    Fetch(usize),
    Refused(Error),
}

/// Chooses the plan. Cost: O(keys · sources).
pub(crate) fn plan(server: &Server, session: &Session, command: &Command, args: Args<'_>) -> Plan {
    if session.db != 0 || command.keys.is_empty() || is_script(command) {
        return Plan::Own;
    }
    let (mut found, mut others, mut key) = (None::<Arc<Entry>>, false, 0);
    let mut mixed = false;
    command.each_key(args, &mut |i, _| match server.sources.of(args.at(i)) {
        None => others = true,
        Some(entry) => {
            key = if found.is_none() { i } else { key };
            mixed |= found.as_ref().is_some_and(|found| found.db != entry.db);
            found = Some(entry);
        }
    });
    let Some(entry) = found else { return Plan::Own };
    if let Some(first) = super::first_key(command)
        && args.len() > first + 1
    {
        return Plan::Fetch(first);
    }
    if mixed || others {
        return Plan::Refused(not_together(&entry, args.at(key)));
    }
    match refusal(&entry, command, args, args.at(key)) {
        Some(error) => Plan::Refused(error),
        None => Plan::In(entry),
    }
}

/// Why a command may not be run on a source's key.
fn refusal(entry: &Entry, command: &Command, args: Args<'_>, key: &[u8]) -> Option<Error> {
    if !command.is_write() || command.name == "getex" {
        return None;
    }
    let (key, name) = (String::from_utf8_lossy(key), &entry.spec().name);
    if entry.spec().writes == Writes::Refuse {
        let text = format!("SOURCEREADONLY key '{key}' is a row of source '{name}': write to its database");
        return Some(text.into());
    }
    (args.len() >= MANY_WORDS).then(|| format!("ERR too many arguments for a key of source '{name}'").into())
}

fn not_together(entry: &Entry, key: &[u8]) -> Error {
    let (key, name) = (String::from_utf8_lossy(key), &entry.spec().name);
    format!(
        "ERR key '{key}' is a row of source '{name}' and cannot be used together with other keys, but by MGET and EXISTS"
    )
    .into()
}

/// The database the keys of a command within a transaction or a script are in. Those of several places were refused.
#[inline]
pub(crate) fn db_for(server: &Server, command: &Command, args: Args<'_>, db: usize) -> usize {
    if db != 0 || !server.sources.any() {
        return db;
    }
    db_of_source(server, command, args)
}

/// The source the keys of a command within a script or a transaction over an overlay belong to. Errors: it may not be run there.
#[inline]
pub(crate) fn of_call(
    server: &Server,
    db: usize,
    command: &Command,
    args: Args<'_>,
) -> Result<Option<Arc<Entry>>, Error> {
    if db != 0 || !server.sources.any() { Ok(None) } else { of_inner_call(server, command, args) }
}

#[cold]
fn of_inner_call(server: &Server, command: &Command, args: Args<'_>) -> Result<Option<Arc<Entry>>, Error> {
    let mut keys = Vec::new();
    command.each_key(args, &mut |i, _| keys.push((args.at(i), server.sources.of(args.at(i)))));
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
fn db_of_source(server: &Server, command: &Command, args: Args<'_>) -> usize {
    let mut db = 0;
    command.each_key(args, &mut |i, _| {
        if let Some(entry) = server.sources.of(args.at(i)) {
            db = entry.db;
        }
    });
    db
}

/// Why a command with keys of sources cannot be queued by MULTI, if so.
pub(crate) fn unfit_for_queue(plan: &Plan, server: &Server, args: Args<'_>) -> Option<Error> {
    match plan {
        Plan::Own | Plan::In(_) => None,
        Plan::Refused(error) => Some(error.clone()),
        Plan::Fetch(first) => {
            let mut entries = args.iter().skip(*first).map(|key| (key, server.sources.of(key)));
            let (_, first) = entries.next()?;
            let db = |entry: &Option<Arc<Entry>>| entry.as_ref().map(|entry| entry.db);
            let other = entries.find(|(_, entry)| db(entry) != db(&first));
            other?;
            let key = args.iter().skip(1).find(|key| server.sources.of(key).is_some())?;
            Some(not_together(&*server.sources.of(key)?, key))
        }
    }
}

/// Sees to it that the rows a transaction or script names are there before it runs: if not, its client is held. None: it may
/// run. Rows of sources it names that it may not write are no business of this.
pub(crate) fn preload<'a>(
    act: &mut Act<'_, '_>,
    keys: impl Iterator<Item = &'a [u8]>,
) -> Option<Result<Flow, Error>> {
    let mut wanted: Vec<(Arc<Entry>, &[u8])> = Vec::new();
    for key in keys {
        if let Some(entry) = act.server.sources.of(key) {
            wanted.push((entry, key));
        }
    }
    wait::load_all(act.server, act.local, act.session, &wanted)
}

/// Keys of the commands of a transaction.
pub(crate) fn keys_of(queue: &Queue) -> Vec<&[u8]> {
    let mut keys = Vec::new();
    for (command, args) in queue.iter() {
        command.each_key(args, &mut |i, _| keys.push(args.at(i)));
    }
    keys
}

/// Asks for the rows of a command that will be run after one that waits, so that they come along. Cost: as looking at its keys.
#[cold]
pub fn ask_ahead(server: &Server, local: &Local, session: &Session, args: Args<'_>) {
    if let Ok(command) = crate::call::resolve(args) {
        ask_ahead_for(server, local, session, command, args);
    }
}

/// The same where the command's row is known.
pub(crate) fn ask_ahead_for(
    server: &Server,
    local: &Local,
    session: &Session,
    command: &Command,
    args: Args<'_>,
) {
    if session.db != 0 || command.is_write() || args.len() > AHEAD {
        return;
    }
    command.each_key(args, &mut |i, _| {
        if let Some(entry) = server.sources.of(args.at(i)) {
            wait::ask(server, local, &entry, args.at(i));
        }
    });
}

/// Answers a refused command.
pub(crate) fn answer(error: &Error, out: &mut Reply) -> Flow {
    out.error(&error.text());
    Flow::Done
}
