//! Clients that wait for a key: BLPOP and its kin.
//!
//! ```text
//! waiting ──claim (one step)──► served by a writer | timed out | CLIENT UNBLOCK | client gone
//! ```
//!
//! - P1: a waiter leaves exactly once: whoever claims its word does what follows, everybody else lets go (`claim.rs`).
//! - P2: a client is registered for its keys first and looks at them once more then, so no write in between is missed.
//! - P3: the keys' shards report touches only of keys somebody waits for; a write with nobody waiting pays one branch.
//! - P4: of those who wait for a key the longest waiting is served first; the writer serves before it runs another
//!   command, but for what is more than [`AT_A_STRETCH`]: that follows with its loop's next mail.
//! - P5: a writer that finds a waiter claimed leaves a note: the holder looks again before it lets go.
//!   What is for the living no dead client gets: who left is passed over and taken out, also before its loop has come to it.
//! - P6: who is served has one look at the key that was filled: nobody is asked when there is nothing left.
//! - P7: who would take longer than a loop has is taken out, and a job serves it (`away.rs`).
//! - P8: when a database was exchanged, those who wait for its keys are gone through in slices, and the keys that are there now are
//!   served as if they had been filled. However often that happens, one such *round* is under way per database.
//!
//! - P9: who waits for many keys is registered for some at a time, and taken off them so (`registering.rs`).
//!
//! Cost: parking and leaving O(keys · log waiters), of at most [`KEYS_MAX`] keys; serving O(log waiters) for each served.

pub mod away;
pub mod registering;

use crate::call::INLINE_STEPS;
use crate::claim::Claim;
use crate::mail::Mail;
use crate::{Local, Server, Session};
use command::table::RW_INSERT;
use command::{Block, Budget, Caller, Command, Cx, Outcome, Run, Stream};
use keyspace::{Changes, Keyspace, Ready, View};
use parking_lot::Mutex;
use resp::{Args, OwnedArgs, Reply};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::points::{self, Point};
use value::Kind;

type KeyId = (usize, Box<[u8]>);

/// Keys a command may wait for, and the most words it then has.
const KEYS_MAX: usize = 1_000;
pub(crate) const WORDS_MAX: usize = KEYS_MAX + 6;
pub(crate) const TOO_WIDE: &str =
    "ERR a command that waits may name 1000 keys at most, and no very long ones";
/// Waiters served in one go.
const AT_A_STRETCH: usize = 16;
/// Of who waits for more keys only the one that was filled is looked at.
const FEW_KEYS: usize = 16;

/// A client that waits.
pub struct Waiter {
    pub client: u64,
    pub loop_id: usize,
    pub command: &'static Command,
    pub args: OwnedArgs,
    pub db: usize,
    pub resp3: bool,
    pub block: Block,
    /// What it gets when its time is up, if not a null.
    answer: Option<Vec<u8>>,
    keys: Vec<KeyId>,
    /// What it waits for, and its place among all who wait.
    kind: Kind,
    number: u64,
    claim: Claim,
    /// Its client has left, and its loop has not come to it yet.
    gone: Arc<AtomicBool>,
    /// It is not registered for all its keys yet. Changes under the lock of the tables.
    registering: AtomicBool,
}

impl Waiter {
    /// What the client gets when its time is up.
    pub fn null(&self) -> Vec<u8> {
        if let Some(answer) = &self.answer {
            return answer.clone();
        }
        let mut out = Reply::new(self.resp3);
        if self.block.null_array {
            out.null_array()
        } else {
            out.null()
        }
        out.into_bytes()
    }
}

/// Who waits for a key, by number.
#[derive(Default)]
struct Queues {
    lists: BTreeMap<u64, Arc<Waiter>>,
    zsets: BTreeMap<u64, Arc<Waiter>>,
}

impl Queues {
    /// Those who wait for such a value.
    fn of(&mut self, kind: Kind) -> Option<&mut BTreeMap<u64, Arc<Waiter>>> {
        match kind {
            Kind::List => Some(&mut self.lists),
            Kind::ZSet => Some(&mut self.zsets),
            _ => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.zsets.is_empty()
    }
}

/// Trees, for they never grow by leaps.
#[derive(Default)]
struct Tables {
    by_key: BTreeMap<KeyId, Queues>,
    by_client: BTreeMap<u64, Arc<Waiter>>,
    /// How many of them wait for some time at most.
    timed: usize,
    last: u64,
    /// By database (P8).
    rounds: BTreeMap<usize, Round>,
}

/// How far the keys of an exchanged database that somebody waits for were gone through.
#[derive(Default)]
struct Round {
    /// The next key, or where it would be.
    at: Box<[u8]>,
    /// Ends before this key.
    end: Option<Box<[u8]>>,
    /// At the end it begins anew, up to this key: the database was exchanged again when the round was there.
    again: Option<Box<[u8]>>,
}

impl Tables {
    /// A waiter comes in.
    fn insert(&mut self, waiter: Arc<Waiter>) {
        self.timed += usize::from(waiter.block.timeout_ms.is_some());
        self.by_client.insert(waiter.client, waiter);
    }

    /// The waiter of a client goes.
    fn remove(&mut self, client: u64) {
        if let Some(waiter) = self.by_client.remove(&client) {
            self.timed -= usize::from(waiter.block.timeout_ms.is_some());
        }
    }

    /// Whether this waiter still waits.
    fn has(&self, waiter: &Arc<Waiter>) -> bool {
        self.by_client.get(&waiter.client).is_some_and(|known| Arc::ptr_eq(known, waiter))
    }

    fn waited_from(&self, db: usize, at: &[u8]) -> Option<KeyId> {
        self.by_key.range((db, at.into())..).next().map(|(id, _)| id).filter(|id| id.0 == db).cloned()
    }

    /// Begins a round of a database; false if one is under way, which takes it over, or nobody waits.
    fn begin_round(&mut self, db: usize) -> bool {
        if let Some(round) = self.rounds.get_mut(&db) {
            (round.end, round.again) = (None, Some(round.at.clone()));
            return false;
        }
        let any = self.waited_from(db, b"").is_some();
        any.then(|| self.rounds.insert(db, Round::default())).is_some()
    }

    /// The next key of a round; None: the round is over.
    fn next_of_round(&mut self, db: usize) -> Option<KeyId> {
        let mut round = self.rounds.remove(&db)?;
        loop {
            let next = self.waited_from(db, &round.at);
            let next = next.filter(|(_, key)| round.end.as_ref().is_none_or(|end| key < end));
            if let Some(id) = next {
                // The least of those that come after it.
                round.at = [&id.1[..], &[0]].concat().into();
                self.rounds.insert(db, round);
                return Some(id);
            }
            let end = round.again.take()?;
            round = Round { at: Box::default(), end: Some(end), again: None };
        }
    }
}

/// All who wait.
#[derive(Default)]
pub struct Park {
    tables: Mutex<Tables>,
}

/// How parking ended.
pub enum Parked {
    Waiting,
    /// There was something after all: the reply is written, but for what streams.
    Served(Changes, Option<Box<dyn Stream>>),
    /// There is something, and it is a job's work.
    Long,
}

/// What came of running a waiter's command.
enum Found {
    /// What that did, and the rest of its reply if that is long.
    Served(Changes, Option<Box<dyn Stream>>),
    /// So much that nothing was done (P7).
    Long,
}

impl Park {
    pub fn len(&self) -> usize {
        self.tables.lock().by_client.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Clients that wait for some time at most, and keys that somebody waits for.
    pub fn figures(&self) -> (usize, usize) {
        let tables = self.tables.lock();
        (tables.timed, tables.by_key.len())
    }

    /// Whether a client is registered.
    pub fn holds(&self, client: u64) -> bool {
        self.tables.lock().by_client.contains_key(&client)
    }

    /// Registers a client and looks once more (P2).
    #[allow(clippy::too_many_arguments)]
    pub fn park(
        &self,
        server: &Server,
        local: &mut Local,
        session: &Session,
        command: &'static Command,
        args: OwnedArgs,
        block: Block,
        out: &mut Reply,
    ) -> Parked {
        let (client, db) = (session.id, session.db);
        let (mut keys, mut seen): (Vec<KeyId>, _) = (Vec::new(), HashSet::new());
        command.each_key(args.args(), &mut |i, uses| {
            // Nobody waits for the key something is moved to.
            if uses == RW_INSERT {
                return;
            }
            let key = args.args().at(i);
            if seen.insert(key) {
                keys.push((db, Box::from(key)));
            }
        });
        drop(seen);
        let resp3 = out.resp3();
        let loop_id = local.id;
        let claim = Claim::new();
        let answer = None;
        let kind = if command.group == "list" { Kind::List } else { Kind::ZSet };
        let waiter = {
            let mut tables = self.tables.lock();
            tables.last += 1;
            let number = tables.last;
            let waiter = Waiter {
                client,
                loop_id,
                command,
                args,
                db,
                resp3,
                block,
                answer,
                keys,
                kind,
                number,
                claim,
                gone: session.cancel.clone(),
                registering: true.into(),
            };
            let waiter = Arc::new(waiter);
            tables.insert(waiter.clone());
            waiter
        };
        match self.register(server, local, &waiter, out) {
            Some(Found::Served(changes, stream)) => Parked::Served(changes, stream),
            Some(Found::Long) => Parked::Long,
            None => Parked::Waiting,
        }
    }

    /// Registers a client that waits for nothing but the time, or CLIENT UNBLOCK; then it gets `answer`.
    pub fn sleep(
        &self,
        loop_id: usize,
        client: u64,
        command: &'static Command,
        timeout_ms: Option<u64>,
        answer: Reply,
    ) {
        let waiter = Waiter {
            client,
            loop_id,
            command,
            args: OwnedArgs::from_slices(&[]),
            db: 0,
            resp3: answer.resp3(),
            block: Block { timeout_ms, null_array: false },
            answer: Some(answer.into_bytes()),
            keys: Vec::new(),
            kind: Kind::List,
            number: 0,
            claim: Claim::new(),
            gone: Arc::default(),
            registering: false.into(),
        };
        self.tables.lock().insert(Arc::new(waiter));
    }

    /// Takes a waiter out for another reason than data: time-out, UNBLOCK, disconnect. None if it was served already.
    pub fn leave(&self, server: &Server, local: &mut Local, client: u64) -> Option<Arc<Waiter>> {
        let waiter = self.tables.lock().by_client.get(&client).cloned()?;
        if !waiter.claim.take() {
            return None;
        }
        self.forget(server, local, &waiter);
        Some(waiter)
    }

    /// Begins a round for each database that was exchanged; those for which none is needed are taken out (P8).
    pub(crate) fn begin_rounds(&self, ready: &mut Vec<Ready>) {
        ready.retain(|ready| match ready {
            Ready::Key(..) => true,
            Ready::Database(db) => self.tables.lock().begin_round(*db),
        });
    }

    /// Serves whoever waits for keys that were just touched, and whoever waits for what that touches (P4); goes on with rounds
    /// that have begun (P8).
    pub fn serve(&self, server: &Server, local: &mut Local, ready: Vec<Ready>) {
        let (mut ready, mut left) = (VecDeque::from(ready), AT_A_STRETCH);
        while let Some(first) = ready.pop_front() {
            let id = match first {
                Ready::Key(db, key) => (db, key),
                Ready::Database(_) if left == 0 => {
                    ready.push_front(first);
                    return server.send(local.id, Mail::Ready(ready.into()));
                }
                Ready::Database(db) => {
                    let Some(id) = self.tables.lock().next_of_round(db) else { continue };
                    left -= 1;
                    ready.push_front(first);
                    id
                }
            };
            let mut after = 0;
            while let Some(waiter) = self.next(server, local, &id, after) {
                if left == 0 {
                    ready.push_front(Ready::Key(id.0, id.1));
                    return server.send(local.id, Mail::Ready(ready.into()));
                }
                left -= 1;
                after = waiter.number;
                if waiter.gone.load(Ordering::Relaxed) {
                    if waiter.claim.take() {
                        self.forget(server, local, &waiter);
                    }
                    continue;
                }
                if !waiter.claim.take_or_note() {
                    continue;
                }
                points::hold_up(Point::Serve);
                let mut out = Reply::new(waiter.resp3);
                let Some(found) = hold(server, local, &waiter, &id, &mut out) else {
                    // Somebody else was faster, unless this one could not take what is there.
                    continue;
                };
                self.forget(server, local, &waiter);
                let Found::Served(changes, stream) = found else {
                    server.send(waiter.loop_id, Mail::Serve(waiter));
                    continue;
                };
                let reply = Mail::Reply { client: waiter.client, bytes: out.into_bytes(), stream };
                server.send(waiter.loop_id, reply);
                let more = server.tell(changes);
                ready.extend(more);
            }
        }
    }

    /// The next who waits for what the key holds now (P6).
    fn next(&self, server: &Server, local: &Local, id: &KeyId, after: u64) -> Option<Arc<Waiter>> {
        if !self.tables.lock().by_key.contains_key(id) {
            return None;
        }
        let (db, key) = id;
        let mut view = View::locked(&server.keyspace, Keyspace::shards_of([&key[..]]), *db, local.now_ms);
        if view.has_intents() {
            view.settle(&[(*db, &key[..])], false);
        }
        let kind = view.kind(key);
        put_off(server, local, view.finish());
        let mut tables = self.tables.lock();
        let queue = tables.by_key.get_mut(id)?.of(kind?)?;
        queue.range(after + 1..).next().map(|(_, waiter)| waiter.clone())
    }
}

/// The words of who waits for very many keys as if it waited for this one only.
fn narrowed(waiter: &Waiter, key: &[u8]) -> Option<OwnedArgs> {
    if waiter.keys.len() <= FEW_KEYS {
        return None;
    }
    let args = waiter.args.args();
    let words: Vec<&[u8]> = match waiter.command.name {
        "blmpop" | "bzmpop" => {
            let keys: usize = std::str::from_utf8(args.at(2)).ok()?.parse().ok()?;
            [args.at(0), args.at(1), b"1", key].into_iter().chain(args.from(3 + keys).iter()).collect()
        }
        _ => vec![args.at(0), key, args.at(args.len() - 1)],
    };
    Some(OwnedArgs::from_slices(&words))
}

/// Whether a key holds what somebody waits for.
fn is_filled(server: &Server, local: &Local, waiter: &Waiter, (db, key): &KeyId) -> bool {
    let mut view = View::locked(&server.keyspace, Keyspace::shards_of([&key[..]]), *db, local.now_ms);
    if view.has_intents() {
        view.settle(&[(*db, &key[..])], false);
    }
    let kind = view.kind(key);
    put_off(server, local, view.finish());
    kind == Some(waiter.kind)
}

/// Runs the command of a waiter that is claimed, for a key that was filled; if there is nothing for it, lets go of it, though not
/// before it looked at whatever came meanwhile (P5).
fn hold(
    server: &Server,
    local: &mut Local,
    waiter: &Waiter,
    filled: &KeyId,
    out: &mut Reply,
) -> Option<Found> {
    let mut found = attempt(server, local, waiter, filled, out);
    while found.is_none() && !waiter.claim.give_back() {
        found = waiter.keys.iter().find_map(|key| {
            is_filled(server, local, waiter, key).then(|| attempt(server, local, waiter, key, out)).flatten()
        });
    }
    found
}

/// Runs a waiter's command; None if it still has to wait. A filled key of another type wakes nobody; one of the right type
/// does, even if the command then finds another of its keys to be wrong.
fn attempt(
    server: &Server,
    local: &mut Local,
    waiter: &Waiter,
    (db, key): &KeyId,
    out: &mut Reply,
) -> Option<Found> {
    let (Run::Write(handler) | Run::Read(handler)) = waiter.command.run else { return None };
    let narrowed = narrowed(waiter, key);
    let args: Args<'_> = narrowed.as_ref().map_or_else(|| waiter.args.args(), OwnedArgs::args);
    let mut shards = stdx::locks::Bits::EMPTY;
    waiter.command.each_key(args, &mut |i, _| {
        shards = shards.union(&Keyspace::shards_of([args.at(i)]));
    });
    let mark = out.len();
    let mut view = View::locked(&server.keyspace, shards, waiter.db, local.now_ms);
    if view.has_intents() {
        crate::call::settle(&mut view, [(waiter.command, args)].into_iter(), waiter.db);
    }
    view.select(*db);
    if view.kind(key) != Some(waiter.kind) {
        put_off(server, local, view.finish());
        return None;
    }
    view.select(waiter.db);
    if waiter.command.steps(&view, args) > INLINE_STEPS {
        put_off(server, local, view.finish());
        return Some(Found::Long);
    }
    let caller = Caller { may_block: true, may_stream: true, client_id: waiter.client, ..Caller::default() };
    let mut cx = Cx::new(&mut view, out, caller, Budget::unlimited(None), local.random());
    let result = handler(&mut cx, args);
    let outcome = std::mem::take(&mut cx.outcome);
    let effects = std::mem::take(&mut cx.effects);
    if matches!(outcome, Outcome::Block(_)) {
        out.truncate(mark);
        put_off(server, local, view.finish());
        return None;
    }
    if let Err(error) = result {
        out.truncate(mark);
        out.error(&error.text());
    }
    server.log_effect(waiter.command, args, &effects, &view);
    let stream = if let Outcome::Stream(rest) = outcome { Some(rest) } else { None };
    Some(Found::Served(view.finish(), stream))
}

/// An attempt that came to nothing may have written to the table what long commits left to be written: it is told, and who
/// waits for that is served with this loop's next mail.
fn put_off(server: &Server, local: &Local, changes: Changes) {
    let ready = server.tell(changes);
    if !ready.is_empty() {
        server.send(local.id, Mail::Ready(ready));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(keys: &[(usize, &str)]) -> Tables {
        let mut tables = Tables::default();
        for (db, key) in keys {
            tables.by_key.insert((*db, key.as_bytes().into()), Queues::default());
        }
        tables
    }

    fn next(tables: &mut Tables) -> Option<String> {
        tables.next_of_round(1).map(|(_, key)| String::from_utf8_lossy(&key).into_owned())
    }

    #[test]
    fn a_round_visits_each_key_of_its_database_once() {
        let mut tables = waited(&[(0, "x"), (1, ""), (1, "a"), (1, "a\0"), (1, "b"), (2, "y")]);
        assert!(tables.begin_round(1));
        assert_eq!(
            [(); 5].map(|()| next(&mut tables)),
            ["", "a", "a\0", "b", "-"].map(|k| Some(k.into()).filter(|k| k != "-"))
        );
        assert!(tables.begin_round(1));
        assert!(!tables.begin_round(3));
        assert_eq!(tables.rounds.len(), 1);
    }

    /// However often a database is exchanged, one round is under way, and every key comes after the last exchange.
    #[test]
    fn a_round_goes_on_to_where_it_was_at_the_last_exchange() {
        let keys: Vec<String> = (0..7).map(|i| format!("k{i}")).collect();
        let mut tables = waited(&keys.iter().map(|key| (1, &key[..])).collect::<Vec<_>>());
        for first in 0..=keys.len() {
            for second in 0..=keys.len() {
                assert!(tables.begin_round(1));
                (0..first).for_each(|_| assert!(next(&mut tables).is_some()));
                assert!(!tables.begin_round(1));
                (0..second).for_each(|_| assert!(next(&mut tables).is_some()));
                assert!(!tables.begin_round(1));
                let mut rest: Vec<String> = std::iter::from_fn(|| next(&mut tables)).collect();
                rest.sort_unstable();
                assert_eq!(rest, keys, "{first} {second}");
                assert!(tables.rounds.is_empty());
            }
        }
    }
}
