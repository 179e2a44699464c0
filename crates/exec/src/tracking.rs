//! Client-side caching, as the server uses it (`pubsub::tracking`): reads that are remembered, inboxes that are
//! opened.
//!
//! ```text
//! inline, EXEC          registered under the locks of the read           remember
//! job, many words       registered in slices, from the LSN before it     remember_elsewhere
//! EXEC as a job         its reads are noted as they are queued           remember_later
//! script                its reads are noted as it runs                   remember_later
//! row lent              told at once, behind the reply: nobody would tell it later
//! ```
//!
//! - TE1: a client without tracking pays for one branch on its session.
//! - TE2: the inbox is opened behind each reply, and by letter. While the client's command runs elsewhere it
//!   stays closed, and the reply's delivery opens it (tracking TK3). A client that is blocked on keys has no
//!   reply under way; messages about its own write, once it is served, stay until the reply. What is evicted
//!   for a command is told before its reply.
//! - TE3: CLIENT CACHING holds for the next command or transaction, and over any CLIENT command.

use crate::act::Act;
use crate::session::flag;
use crate::{Local, Server, Session};
use command::table::READONLY;
use command::{Command, reads::Reads};
use keyspace::{Author, Lsn, View};
use pubsub::tracking::{Hearer, Peer, Task};
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use work::piece::{Desk, Piece, Step, more};

/// Words looked at in one go for their keys.
const WORDS: usize = 64;

/// Whether keys that the client reads now are remembered.
#[inline]
pub(crate) fn remembers(session: &Session) -> bool {
    session.tracking.as_ref().is_some_and(|mine| mine.remembers())
}

/// Names the client as the author of the writes to come, if it tracks.
#[inline]
pub(crate) fn author(session: &Session) -> Option<Author> {
    session.tracking.as_ref().map(|_| Author::is(session.id))
}

/// Registers a client that tracks as a reader of a command's keys, which are locked. O(keys · log).
#[inline]
pub(crate) fn remember(session: &Session, view: &mut View<'_>, command: &Command, args: Args<'_>) {
    if session.tracking.is_some() {
        remember_keys(session, view, command, args);
    }
}

#[cold]
fn remember_keys(session: &Session, view: &mut View<'_>, command: &Command, args: Args<'_>) {
    let Some(mine) = session.tracking.as_ref().filter(|mine| mine.remembers()) else { return };
    if command.has(READONLY) {
        command.each_key(args, &mut |i, _| mine.peer.remember(view, args.at(i)));
    }
}

/// Registers it for the keys of a command that is about to run elsewhere. O(words) if they are few, else O(1).
#[cold]
pub(crate) fn remember_elsewhere(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) {
    if !remembers(act.session) || !command.has(READONLY) {
        return;
    }
    let (client, since) = (act.session.id, act.server.keyspace.last_lsn());
    let task = Task::remember(client, keys_of(command, act.keep(args)), since, Vec::new());
    act.local.works.push(Box::new(TrackingTask(task)));
}

/// The keys of a command, looked at some words at a time.
fn keys_of(command: &'static Command, words: Arc<OwnedArgs>) -> impl Iterator<Item = Box<[u8]>> + Send {
    (0..words.len()).step_by(WORDS).flat_map(move |from| {
        let (args, mut keys) = (words.args(), Vec::new());
        command.each_key_within(args, from..from + WORDS, &mut |i, _| keys.push(args.at(i).into()));
        keys
    })
}

/// Registers it for what a run has read at the LSN `since`.
#[cold]
pub(crate) fn remember_later(local: &mut Local, client: u64, reads: Reads, since: Lsn) {
    let (keys, stale) = reads.into_parts();
    local.works.push(Box::new(TrackingTask(Task::remember(client, keys, since, stale))));
}

/// A task of tracking, as a piece of the loop's work.
pub(crate) struct TrackingTask(pub(crate) Task);

impl Piece for TrackingTask {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, _) = Local::of(desk);
        let is_left = self.0.advance(&server.tracking, &server.keyspace);
        more(is_left, self)
    }
}

/// A row that the client has read is not kept, so nobody would say when it changes: its copy counts as old.
#[inline]
pub(crate) fn tell_lent(server: &Server, session: &Session, key: &[u8]) {
    if let Some(mine) = session.tracking.as_ref().filter(|mine| mine.remembers()) {
        server.tracking.tell_key(&mine.peer, key);
    }
}

/// The client was served after it had waited for keys.
pub(crate) fn remember_served(
    server: &Server,
    client: u64,
    command: &'static Command,
    words: &OwnedArgs,
    since: Lsn,
) {
    let wants = |peer: Arc<Peer>| peer.remembers_all();
    if command.has(READONLY) && server.tracking.peer(client).is_some_and(wants) {
        let keys = keys_of(command, Arc::new(words.clone()));
        server.tracking.hand_on(Task::remember(client, keys, since, Vec::new()));
    }
}

/// Sees to a client's tracking behind a command of its: drops keys that are too many, and opens the inbox.
/// `answered`: the reply is written.
#[cold]
pub fn after_command(server: &Server, session: &mut Session, answered: bool, out: &mut Reply) {
    let Some(mine) = &mut session.tracking else { return };
    if mine.caching && session.multi.is_none() && !session.info.command().starts_with("client") {
        mine.caching = false;
    }
    server.tracking.trim(&server.keyspace, server.config.live.tracking_max_keys.size());
    let peer = mine.peer.clone();
    if answered && !session.speech.muted && peer.has_mail() && open(server, session, &peer, out) {
        server.tracking.remind(session.id);
    }
}

/// Opens the inbox of a client whose command is about to be answered: what was evicted for the command is told
/// before its reply, as in Redis.
#[cold]
pub(crate) fn before_reply(act: &mut Act<'_, '_>) {
    let Some(mine) = &act.session.tracking else { return };
    let peer = mine.peer.clone();
    if act.session.speech.is_muted() || act.session.speech.muted || !peer.has_mail() {
        return;
    }
    if open(act.server, act.session, &peer, act.out) {
        act.server.tracking.remind(act.session.id);
    }
}

/// Opens the inbox of a client, for a letter. True: there is more in it.
pub fn open_inbox(server: &Server, session: &mut Session, out: &mut Reply) -> bool {
    let waits = session.away.is_some() && session.info.flags.load(Ordering::Relaxed) & flag::BLOCKED == 0;
    match server.tracking.peer(session.id) {
        Some(peer) if !waits => open(server, session, &peer, out),
        _ => false,
    }
}

fn open(server: &Server, session: &mut Session, peer: &Peer, out: &mut Reply) -> bool {
    let blocked = session.away.is_some() && session.info.flags.load(Ordering::Relaxed) & flag::BLOCKED != 0;
    let to = Hearer { resp3: session.speech.resp3, subscribed: !session.subs.is_empty(), blocked };
    let taken = server.tracking.take(peer, to, out);
    if taken.broken {
        session.set_flag(flag::BROKEN_REDIRECT, true);
    }
    taken.more
}

/// Ends the client's tracking: OFF, RESET.
pub(crate) fn end(server: &Server, local: &mut Local, session: &mut Session) {
    let Some(mine) = session.tracking.take() else { return };
    session.set_flag(flag::TRACKING | flag::BROADCAST | flag::BROKEN_REDIRECT, false);
    session.info.redirect.store(-1, Ordering::Relaxed);
    if let Some(task) = server.tracking.end(&server.keyspace, &mine.peer, &mine.options.prefixes) {
        local.works.push(Box::new(TrackingTask(task)));
    }
}

/// The client disconnects. O(its prefixes); its keys are forgotten in slices.
pub(crate) fn leave(server: &Server, local: &mut Local, session: &mut Session) {
    end(server, local, session);
    server.tracking.leave(session.id);
}
