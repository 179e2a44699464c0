//! Rows of sources, as the server uses them: the parts of server, loop and session that `rows` asks for, and
//! what happens with its results. Changes are told before letters are delivered (X3).

use crate::act::Act;
use crate::mail::{Mail, Mailbox};
use crate::session::flag;
use crate::{Local, Server, Session};
use command::{Command, Error, Flow};
use keyspace::{Changes, Keyspace, View};
use memory::Memory;
use pages::Pages;
use resp::Args;
use rows::{self, Asker, Dropping, Entry, Fetched, Fill, House, Letter, News, Plan, Stop, TransactionRows};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::points::{self, Point};
use work::piece::{Desk, Piece, Step, more};
use work::queue::Queue;
use work::works::KEYS;

/// The server, as crate `rows` sees it.
pub(crate) struct Around {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) http: Arc<Pages>,
    pub(crate) loops: Arc<[Mailbox]>,
    /// Whether there are sources; scripts ask it. Set before the first is added, cleared after the last is
    /// removed.
    pub(crate) any: Arc<AtomicBool>,
}

impl House for Around {
    fn post(&self, loop_id: usize, letter: Letter) {
        self.loops[loop_id].send(Mail::Source(letter));
    }

    fn limit(&self, number: usize, bytes: u64) {
        self.memory.limit_source(&self.keyspace, number, bytes);
    }

    fn show(&self, sources: &[Arc<Entry>]) {
        self.any.store(!sources.is_empty(), Ordering::Relaxed);
        self.http.show(sources);
    }
}

/// Measures how full the sources' caches are. Called now and then.
pub fn cron(server: &Server) {
    server.rows.note_sizes(|number| server.memory.fullness(&server.keyspace, number));
}

/// Takes a letter of crate `rows`.
pub fn receive(server: &Server, local: &mut Local, letter: Letter) {
    match letter {
        Letter::Fill(fill) => local.works.push(Box::new(Filling(fill))),
        Letter::Drop(dropping) => local.works.push(Box::new(Removing(dropping))),
        Letter::Flush(place) => {
            let mut told = Vec::new();
            server.rows.flush(place, local.log.now_ms, &mut told);
            tell(server, local, told);
        }
        Letter::Arrived(clients, arrival) => {
            local.arrived.extend(clients.into_iter().map(|client| (client, arrival.clone())));
        }
    }
}

/// Installs some rows. True: there are more.
fn fill(server: &Server, local: &mut Local, fill: &mut Fill, count: usize) -> bool {
    let mut news = News::default();
    let is_left = fill.advance(&server.rows, local.log.now_ms, count, &mut news);
    if news.grows {
        server.memory.stir();
    }
    tell(server, local, news.told);
    for (loop_id, letter) in news.letters {
        match loop_id == local.log.id {
            true => receive(server, local, letter),
            false => server.send(loop_id, Mail::Source(letter)),
        }
    }
    is_left
}

/// Removes some items. True: there are more.
fn drop_items(server: &Server, local: &mut Local, dropping: &mut Dropping, count: usize) -> bool {
    let mut told = Vec::new();
    let is_left = dropping.advance(&server.rows, local.log.now_ms, count, &mut told);
    tell(server, local, told);
    is_left
}

/// Installs rows of a source.
struct Filling(Box<Fill>);

impl Piece for Filling {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = Local::of(desk);
        let is_left = fill(&server, local, &mut self.0, KEYS);
        more(is_left, self)
    }

    fn stays(&self) -> bool {
        points::stays(Point::SourceFill, 0)
    }
}

/// Removes items of a source.
struct Removing(Box<Dropping>);

impl Piece for Removing {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = Local::of(desk);
        let is_left = drop_items(&server, local, &mut self.0, KEYS);
        more(is_left, self)
    }

    fn stays(&self) -> bool {
        points::stays(Point::SourceDrop, 0)
    }
}

/// Removes all items of a source. O(1) under all locks; the reclaimer frees the items.
pub(crate) fn empty(server: &Server, local: &mut Local, entry: &Entry) {
    let mut told = Vec::new();
    rows::empty(&server.keyspace, entry, local.log.now_ms, &mut told);
    tell(server, local, told);
}

/// Ends a source. False: there is none of that name.
pub(crate) fn remove(server: &Server, local: &mut Local, name: &[u8]) -> bool {
    let mut told = Vec::new();
    let was_there = server.rows.remove(name, local.log.now_ms, &mut told);
    tell(server, local, told);
    was_there
}

/// Ends a source where no loop is at hand. Takes locks: not for a demoted thread.
pub(crate) fn take_back(server: &Server, name: &[u8]) {
    let mut told = Vec::new();
    server.rows.remove(name, stdx::clock::wall_ms(), &mut told);
    told.into_iter().for_each(|changes| tell_from_aside(server, changes));
}

/// Tells changes where no loop is at hand: the first loop serves the waiters.
pub(crate) fn tell_from_aside(server: &Server, changes: Changes) {
    let ready = server.tell(changes);
    if !ready.is_empty() {
        server.send(0, Mail::Ready(ready));
    }
}

fn tell(server: &Server, local: &mut Local, told: Vec<Changes>) {
    told.into_iter().for_each(|changes| server.after(local, changes));
}

/// Describes the client whose command asks for rows.
#[inline]
fn asker(local: &Local, session: &Session) -> Asker {
    Asker {
        client: session.id,
        loop_id: local.log.id,
        now_ms: local.log.now_ms,
        clock_ns: local.log.clock_ns,
    }
}

/// Parks or holds a client whose command cannot run now. Errors: the reason why the command never can.
fn stopped(session: &Session, stop: Stop) -> Result<Flow, Error> {
    match stop {
        Stop::Held(until_ms) => Ok(hold(session, until_ms)),
        Stop::Refused(error) => Err(error),
    }
}

fn hold(session: &Session, until_ms: u64) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    Flow::Held(until_ms)
}

/// The plan for a command that may name keys of sources ([`rows::plan`]).
pub(crate) fn plan(server: &Server, session: &mut Session, command: &Command, args: Args<'_>) -> Plan {
    // Within a transaction a queued SELECT holds for the commands behind it.
    let db = session.multi.as_ref().and_then(|multi| multi.selected).unwrap_or(session.db);
    rows::plan(&server.rows, &mut session.rows, db, command, args)
}

/// Runs a command of several keys, some of them rows, or continues it.
pub(crate) fn fetch(act: &mut Act<'_, '_>, command: &Command, args: Args<'_>) -> Flow {
    let Act { server, local, session, out, .. } = act;
    let (asker, mut told) = (asker(local, session), Vec::new());
    let fetched = rows::fetch(&server.rows, asker, &mut session.rows, (command, args), out, &mut told);
    tell(server, local, told);
    match fetched {
        Ok(Fetched::Done) => Flow::Done,
        Ok(Fetched::Stream(stream)) => Flow::Stream(stream),
        Ok(Fetched::Held(until_ms)) => hold(session, until_ms),
        Err(error) => {
            out.error(&error.text());
            Flow::Done
        }
    }
}

/// Checks that the rows a command names are present, in a view that holds their shards. None: the command may
/// run. Else: how its client goes on, or its error.
#[inline]
pub(crate) fn look(
    local: &Local,
    session: &mut Session,
    entry: &Entry,
    view: &mut View<'_>,
    command: &Command,
    args: Args<'_>,
) -> Option<Result<Flow, Error>> {
    let stop = rows::look(asker(local, session), &mut session.rows, entry, view, command, args)?;
    Some(stopped(session, stop))
}

/// Checks that the rows a transaction names are present; as [`look`].
pub(crate) fn look_at(
    local: &Local,
    session: &mut Session,
    named: &mut TransactionRows<'_>,
    view: &mut View<'_>,
) -> Option<Result<Flow, Error>> {
    let stop = named.look(asker(local, session), &mut session.rows, view)?;
    Some(stopped(session, stop))
}

/// Loads the rows that a transaction or script names, before it runs ([`rows::preload`]).
pub(crate) fn preload<'a>(
    act: &mut Act<'_, '_>,
    keys: impl Iterator<Item = &'a [u8]>,
) -> Option<Result<Flow, Error>> {
    let asker = asker(act.local, act.session);
    let stop = rows::preload(&act.server.rows, asker, &mut act.session.rows, keys)?;
    Some(stopped(act.session, stop))
}

/// The keys of a transaction's commands.
pub(crate) fn keys_of(queue: &Queue) -> Vec<&[u8]> {
    let mut keys = Vec::new();
    for (command, args) in queue.iter() {
        command.each_key(args, &mut |i, _| keys.push(args.at(i)));
    }
    keys
}

/// Requests the rows of a command that stands behind a waiting one, so that they are loaded together. Cost:
/// as looking at its keys.
#[cold]
pub fn ask_ahead(server: &Server, local: &Local, session: &Session, args: Args<'_>) {
    if let Ok(command) = command::resolve(args) {
        ask_ahead_for(server, local, session, command, args);
    }
}

/// As [`ask_ahead`], for a command whose row is known.
pub(crate) fn ask_ahead_for(
    server: &Server,
    local: &Local,
    session: &Session,
    command: &Command,
    args: Args<'_>,
) {
    if session.db == 0 {
        rows::ask_ahead(&server.rows, local.log.now_ms, command, args);
    }
}
