//! The run of a job, on a worker's thread: over its overlay, from the beginning, without a lock (J1).

use super::wanted::{Name, WANTED_BYTES, Wanted};
use super::{Body, Job, State};
use crate::attempt::Long;
use command::effects::{List, is_itself, passed};
use command::{Budget, Caller, Cx, Error, Outcome, Room, places};
use keyspace::{Announce, Keyspace, Overlay, View};
use resp::Reply;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::clock::Ticker;
use stdx::hash::hash_bytes;
use stdx::turns::Turn;

impl Job {
    /// Runs a piece of work on the worker: it names the keys it needs, or runs.
    pub fn run(&mut self, keyspace: &Keyspace, turn: &Turn) {
        let Some(mut overlay) = self.attempt.overlay.take() else { return };
        let Wanted { keys, found, asked } = std::mem::take(&mut self.read);
        overlay.reserve(keys.len());
        for ((hash, db, name), base) in keys.iter().zip(found) {
            overlay.insert(*db as usize, *hash, self.body.name(name), base);
        }
        drop(keys);
        overlay.insert_many(asked);
        let wanted = if self.planned { Wanted::default() } else { self.wanted(&overlay) };
        self.planned = true;
        self.state = match wanted.keys.is_empty() {
            _ if !self.hold(&mut overlay, wanted.keys.len() * WANTED_BYTES) => self.refuse(&mut overlay),
            true => self.run_over(keyspace, &mut overlay, turn),
            false => State::NeedKeys(wanted),
        };
        if !matches!(self.state, State::Done(_)) {
            self.attempt.overlay = Some(overlay);
            return;
        }
        let announce = if self.attempt.is_much(&overlay) { self.tells() } else { None };
        self.attempt.keep(overlay, announce);
    }

    /// Bytes of its overlay that count. Values that came with its words are held by them: a value stored as
    /// it came counts once.
    fn counted(&self, overlay: &mut Overlay) -> usize {
        let with_words = match &self.body {
            Body::One(call) => call.args.held_bytes() as usize,
            Body::Exec(_) => 0,
        };
        overlay.bytes().saturating_sub(with_words)
    }

    /// Holds memory for its current bytes and so many more. False: the budget has no room (J8). O(1).
    fn hold(&mut self, overlay: &mut Overlay, more: usize) -> bool {
        let bytes = self.counted(overlay) + self.out.capacity() + more;
        self.attempt.hold(bytes).is_ok()
    }

    /// Ends it for want of memory: nothing of it has happened (J8).
    fn refuse(&mut self, overlay: &mut Overlay) -> State {
        overlay.reset();
        self.clear();
        self.out = Reply::new(self.out.resp3());
        self.out.error(&Error::work_memory().text());
        State::Done(None)
    }

    /// The keys its commands name that are not read yet. O(words · log words).
    fn wanted(&self, overlay: &Overlay) -> Wanted {
        let mut wanted = Vec::new();
        let (mut seen, mut touched) = (HashSet::new(), HashSet::new());
        let quiet = self.look.used_ms.is_none();
        for call in 0..self.body.len() {
            let (command, args) = self.body.at(call);
            // MSET does not look at the values that it replaces.
            let touches = quiet && command.is(command::facts::TOUCHES);
            if !command.is(command::facts::REPLACES) {
                command.each_key(args, &mut |i, _| {
                    let hash = hash_bytes(args.at(i));
                    // If two keys have one hash, the second is missing, and read then.
                    let first = seen.insert(hash);
                    // A key of TOUCH is read once more if need be, so that it counts as used.
                    let is_new = first || touches && touched.insert(hash);
                    if is_new && !overlay.knows(self.db, args.at(i)) {
                        wanted.push((hash, self.db as u32, Name::Word(call as u32, i as u32)));
                    }
                });
            }
        }
        if let Some(watch) = &self.watch {
            let watched = watch.keys.keys().filter(|(db, key)| !overlay.knows(*db, key));
            wanted
                .extend(watched.map(|(db, key)| (hash_bytes(key), *db as u32, Name::Own(Box::from(&**key)))));
        }
        Wanted::sorted(wanted)
    }

    /// EXEC: whether a watched key was touched in a way that sets no mark, such as by expiry. The commit
    /// relies on the answer. O(watched keys).
    fn watched_expired(&self, keyspace: &Keyspace, overlay: &mut Overlay, turn: &Turn) -> bool {
        let Some(watch) = &self.watch else { return false };
        let mut view = View::overlay(keyspace, overlay, self.db, self.now_ms);
        watch.keys.iter().any(|((db, key), then)| {
            turn.check();
            view.select(*db);
            view.is_touched_since(key, *then)
        })
    }

    /// Runs its commands over the overlay, from the beginning.
    fn run_over(&mut self, keyspace: &Keyspace, overlay: &mut Overlay, turn: &Turn) -> State {
        self.clear();
        let ticker = Ticker::new();
        if let Body::Exec(queue) = &self.body {
            if self.watched_expired(keyspace, overlay, turn) {
                self.out.null_array();
                return State::Done(None);
            }
            self.out.array(queue.len());
        }
        let alone = matches!(self.body, Body::One(_));
        let stop = self.attempt.sign.stop.clone();
        let mut stream = None;
        for i in 0..self.body.len() {
            turn.check();
            if stop.load(Ordering::Relaxed) || self.is_killed() {
                return State::Stopped;
            }
            let (mark, began_ns) = (self.out.len(), ticker.now_ns());
            let outcome = match self.run_one(i, keyspace, overlay, (turn, &stop)) {
                Ok(outcome) => outcome,
                Err(state) => return state,
            };
            if !alone {
                self.count(i, mark, ticker.now_ns() - began_ns);
            }
            if !self.hold(overlay, 0) {
                return self.refuse(overlay);
            }
            match outcome {
                Outcome::Stream(rest) if !alone => self.rests.push_back((self.out.len(), rest)),
                Outcome::Stream(rest) => stream = Some(rest),
                Outcome::Block(block) => self.block = Some(block),
                Outcome::Done => {}
            }
        }
        State::Done(stream)
    }

    /// Runs one of its commands, whose reply may be an error. Errors: how the whole run ends instead.
    fn run_one(
        &mut self,
        i: usize,
        keyspace: &Keyspace,
        overlay: &mut Overlay,
        (turn, stop): (&Turn, &AtomicBool),
    ) -> Result<Outcome, State> {
        let (command, args) = self.body.at(i);
        let Some(handler) = self.body.handler(i) else { return Ok(Outcome::Done) };
        let alone = matches!(self.body, Body::One(_));
        let (mark, known) = (self.out.len(), self.counted(overlay));
        let mut view = View::overlay(keyspace, overlay, self.db, self.now_ms);
        let caller = Caller {
            may_stream: self.may_stream && alone,
            may_keep: !alone,
            may_block: alone,
            client_id: self.attempt.who.client,
            attempt: self.attempt.races.lost + self.attempt.gave_way,
            in_replay: self.look.shows_expired && keyspace.follows(),
            ..Caller::default()
        };
        let room = Room::new(&self.attempt.budget, &mut self.attempt.holding, known);
        let budget = Budget::unlimited(Some(stop)).in_turns(Some(turn)).within(room, mark);
        let mut cx = Cx::new(&mut view, &mut self.out, caller, budget, self.random);
        let result = handler(&mut cx, args);
        self.random = cx.random();
        let outcome = std::mem::take(&mut cx.outcome);
        let effects = std::mem::take(&mut cx.effects);
        let heard = view.listens();
        let wrote = view.finish().dirty > 0;
        if overlay.has_missing() {
            let asked = overlay.take_missing();
            overlay.reset();
            return Err(State::NeedKeys(Wanted { asked, ..Wanted::default() }));
        }
        if wrote && heard {
            let db = self.db as u32;
            self.effects.extend(passed(overlay, keyspace.databases()).map(|(db, gone)| (db, Arc::new(gone))));
            match is_itself(command, effects.len(), self.db >= keyspace.databases()) {
                true => self.effects.push((db, self.body.kept(i))),
                false => self.effects.extend(effects.into_iter().map(|effect| (db, Arc::new(effect)))),
            }
        }
        match result {
            Err(Error::Cancelled) => return Err(State::Stopped),
            // Its earlier changes are dropped too; in an EXEC the other commands stay.
            Err(error) if alone && error == Error::work_memory() => return Err(self.refuse(overlay)),
            Err(error) => {
                self.out.truncate(mark);
                self.out.error(&error.text());
            }
            Ok(()) => {}
        }
        Ok(outcome)
    }

    /// EXEC: counts a command that took so long. Its reply begins at `mark`.
    fn count(&mut self, i: usize, mark: usize, ns: u64) {
        let (command, args) = self.body.at(i);
        let (error, tally) = (self.out.as_bytes()[mark..].strip_prefix(b"-"), &mut self.attempt.tally);
        error.into_iter().for_each(|text| tally.error(text));
        tally.add(places::of(command), ns, error.is_some());
        tally.queued(command, args, ns, self.out.len() - mark);
    }

    /// Hands its effects over, for the log and replicas. O(effects).
    pub(super) fn tells(&mut self) -> Announce {
        if self.effects.is_empty() {
            return None;
        }
        Some(Arc::new(List(std::mem::take(&mut self.effects))))
    }
}
