//! Clients that wait for a key: BLPOP and its kin.
//!
//! ```text
//! waiting ──claim (one step)──► served by a writer | timed out | CLIENT UNBLOCK | client gone
//! ```
//!
//! - P1: a waiter leaves exactly once: whoever claims its word does what follows, everybody else lets go (`claim.rs`).
//! - P2: a client is registered for its keys first and tries once more then, so no write in between is missed.
//! - P3: the keys' shards report touches only of keys somebody waits for; a write with nobody waiting pays one branch.
//! - P4: of those who wait for a key the longest waiting is served first; the writer serves before it runs another
//!   command.
//! - P5: a writer that finds a waiter claimed leaves a note: the holder looks again before it lets go.

use crate::claim::Claim;
use crate::mail::Mail;
use crate::{Local, Server};
use command::table::RW_INSERT;
use command::{Block, Budget, Caller, Command, Cx, Outcome, Run, Stream};
use keyspace::{Changes, Keyspace, View};
use parking_lot::Mutex;
use resp::{OwnedArgs, Reply};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use stdx::points::{self, Point};
use value::Kind;

type KeyId = (usize, Box<[u8]>);

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
    claim: Claim,
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

#[derive(Default)]
struct Tables {
    by_key: HashMap<KeyId, VecDeque<Arc<Waiter>>>,
    by_client: HashMap<u64, Arc<Waiter>>,
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
    Served(Served),
}

/// What serving a client did, and the rest of its reply if that is long.
pub type Served = (Changes, Option<Box<dyn Stream>>);

impl Park {
    pub fn len(&self) -> usize {
        self.tables.lock().by_client.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a client is registered.
    pub fn holds(&self, client: u64) -> bool {
        self.tables.lock().by_client.contains_key(&client)
    }

    /// Registers a client and tries once more (P2).
    #[allow(clippy::too_many_arguments)]
    pub fn park(
        &self,
        server: &Server,
        local: &mut Local,
        client: u64,
        command: &'static Command,
        args: OwnedArgs,
        db: usize,
        block: Block,
        out: &mut Reply,
    ) -> Parked {
        let mut keys: Vec<KeyId> = Vec::new();
        command.each_key(args.args(), &mut |i, uses| {
            // Nobody waits for the key something is moved to.
            if uses == RW_INSERT {
                return;
            }
            let id = (db, Box::from(args.args().at(i)));
            if !keys.contains(&id) {
                keys.push(id);
            }
        });
        let resp3 = out.resp3();
        let loop_id = local.id;
        let claim = Claim::new();
        let answer = None;
        let waiter =
            Arc::new(Waiter { client, loop_id, command, args, db, resp3, block, answer, keys, claim });
        {
            let mut tables = self.tables.lock();
            for id in &waiter.keys {
                tables.by_key.entry(id.clone()).or_default().push_back(waiter.clone());
            }
            tables.by_client.insert(client, waiter.clone());
        }
        waiter.keys.iter().for_each(|(db, key)| server.keyspace.block(*db, key));
        match waiter.claim.take().then(|| hold(server, local, &waiter, None, out)).flatten() {
            Some(served) => {
                self.forget(&server.keyspace, &waiter);
                Parked::Served(served)
            }
            None => Parked::Waiting,
        }
    }

    /// Registers a client that waits for nothing but the time, or CLIENT UNBLOCK; then it gets `answer`.
    pub fn sleep(&self, loop_id: usize, client: u64, command: &'static Command, answer: Reply) {
        let waiter = Waiter {
            client,
            loop_id,
            command,
            args: OwnedArgs::from_slices(&[]),
            db: 0,
            resp3: answer.resp3(),
            block: Block { timeout_ms: None, null_array: false },
            answer: Some(answer.into_bytes()),
            keys: Vec::new(),
            claim: Claim::new(),
        };
        self.tables.lock().by_client.insert(client, Arc::new(waiter));
    }

    /// Takes a waiter out for another reason than data: time-out, UNBLOCK, disconnect. None if it was served already.
    pub fn leave(&self, keyspace: &Keyspace, client: u64) -> Option<Arc<Waiter>> {
        let waiter = self.tables.lock().by_client.get(&client).cloned()?;
        if !waiter.claim.take() {
            return None;
        }
        self.forget(keyspace, &waiter);
        Some(waiter)
    }

    fn forget(&self, keyspace: &Keyspace, waiter: &Arc<Waiter>) {
        {
            let mut tables = self.tables.lock();
            tables.by_client.remove(&waiter.client);
            for id in &waiter.keys {
                if let Some(queue) = tables.by_key.get_mut(id) {
                    queue.retain(|w| !Arc::ptr_eq(w, waiter));
                    if queue.is_empty() {
                        tables.by_key.remove(id);
                    }
                }
            }
        }
        waiter.keys.iter().for_each(|(db, key)| keyspace.unblock(*db, key));
    }

    /// Serves whoever waits for keys that were just touched, and whoever waits for what that touches (P4).
    pub fn serve(&self, server: &Server, local: &mut Local, ready: Vec<KeyId>) {
        let mut ready = VecDeque::from(ready);
        while let Some(id) = ready.pop_front() {
            let queue: Vec<_> = match self.tables.lock().by_key.get(&id) {
                Some(queue) => queue.iter().cloned().collect(),
                None => continue,
            };
            for waiter in queue {
                if !waiter.claim.take_or_note() {
                    continue;
                }
                points::hold_up(Point::Serve);
                let mut out = Reply::new(waiter.resp3);
                let Some((changes, stream)) = hold(server, local, &waiter, Some(&id), &mut out) else {
                    // Another type, or nothing left. One who waits for another type may still be behind.
                    continue;
                };
                self.forget(&server.keyspace, &waiter);
                let reply = Mail::Reply { client: waiter.client, bytes: out.into_bytes(), stream };
                server.send(waiter.loop_id, reply);
                let more = server.tell(changes);
                ready.extend(more);
            }
        }
    }
}

/// Runs the command of a waiter that is claimed; if there is nothing for it, lets go of it, though not before it looked at
/// whatever came meanwhile (P5).
fn hold(
    server: &Server,
    local: &mut Local,
    waiter: &Waiter,
    filled: Option<&KeyId>,
    out: &mut Reply,
) -> Option<Served> {
    let mut served = attempt(server, local, waiter, filled, out);
    while served.is_none() && !waiter.claim.give_back() {
        served = waiter.keys.iter().find_map(|key| attempt(server, local, waiter, Some(key), out));
    }
    served
}

/// Runs a waiter's command; None if it still has to wait. A filled key of another type wakes nobody; one of the right type
/// does, even if the command then finds another of its keys to be wrong.
fn attempt(
    server: &Server,
    local: &mut Local,
    waiter: &Waiter,
    filled: Option<&KeyId>,
    out: &mut Reply,
) -> Option<Served> {
    let (Run::Write(handler) | Run::Read(handler)) = waiter.command.run else { return None };
    let args = waiter.args.args();
    let mut shards = stdx::locks::Bits::EMPTY;
    waiter.command.each_key(args, &mut |i, _| {
        shards = shards.union(&Keyspace::shards_of([args.at(i)]));
    });
    let mark = out.len();
    let mut view = View::locked(&server.keyspace, shards, waiter.db, local.now_ms);
    if view.has_intents() {
        crate::call::settle(&mut view, [(waiter.command, args)].into_iter(), waiter.db);
    }
    if let Some((db, key)) = filled {
        view.select(*db);
        let wanted = if waiter.command.group == "list" { Kind::List } else { Kind::ZSet };
        if view.kind(key) != Some(wanted) {
            put_off(server, local, view.finish());
            return None;
        }
        view.select(waiter.db);
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
    Some((view.finish(), stream))
}

/// An attempt that came to nothing may have written to the table what long commits left to be written: it is told, and who
/// waits for that is served with this loop's next mail.
fn put_off(server: &Server, local: &Local, changes: Changes) {
    let ready = server.tell(changes);
    if !ready.is_empty() {
        server.send(local.id, Mail::Ready(ready));
    }
}
