//! Serving the clients that wait for keys that were filled.

use super::{Found, KeyId, Means, Park, Right, Waiter};
use command::effects::Ran;
use command::keys::{settle, shards_of};
use command::{Budget, Caller, Cx, INLINE_STEPS, Outcome, Run, Stream};
use keyspace::{Author, Changes, Keyspace, Ready, View};
use resp::{Args, OwnedArgs, Reply};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::points::{self, Point};
use value::Kind;

/// Waiters served in one go.
const AT_A_STRETCH: usize = 16;
/// A client that waits for more keys looks only at the one that was filled.
pub(super) const FEW_KEYS: usize = 16;

/// Keys that were filled, whose waiters are being served in one go (P4).
pub struct Serving {
    ready: VecDeque<Ready>,
    /// How many waiters may still be served.
    left: usize,
    /// The key under way, and the number of the last waiter that was tried.
    at: Option<(KeyId, u64)>,
}

impl Serving {
    pub fn new(ready: Vec<Ready>) -> Serving {
        Serving { ready: ready.into(), left: AT_A_STRETCH, at: None }
    }

    /// More keys were filled.
    pub fn add(&mut self, more: Vec<Ready>) {
        self.ready.extend(more);
    }

    /// The rest, for the loop's next mail. It goes on behind the waiter that was tried last (P6). None: that
    /// was all.
    pub fn rest(self) -> Option<Serving> {
        let is_left = self.at.is_some() || !self.ready.is_empty();
        is_left.then_some(Serving { left: AT_A_STRETCH, ..self })
    }
}

/// A waiter that is taken out, for it was served or is about to be.
pub enum Served {
    /// The caller tells the changes first and delivers the reply then.
    Reply { waiter: Arc<Waiter>, changes: Changes, bytes: Vec<u8>, stream: Option<Box<dyn Stream>> },
    /// There is much to do: a job serves it (P7).
    Long(Arc<Waiter>),
}

impl Served {
    pub(super) fn new(waiter: &Arc<Waiter>, found: Found, out: Reply) -> Served {
        let waiter = waiter.clone();
        match found {
            Found::Served(changes, stream) => {
                Served::Reply { waiter, changes, bytes: out.into_bytes(), stream }
            }
            Found::Long => Served::Long(waiter),
        }
    }
}

impl Park {
    /// Serves the next client that waits for keys that were just touched; goes on with rounds that have begun
    /// (P8). None: that was all, or enough for now ([`Serving::rest`]). What a served client's command
    /// touched is for the caller to [`Serving::add`].
    pub fn serve(self: &Arc<Self>, means: &mut Means<'_>, serving: &mut Serving) -> Option<Served> {
        loop {
            let (id, after) = match serving.at.take() {
                Some(at) => at,
                None => (self.next_key(serving)?, 0),
            };
            let Some(waiter) = self.next(means, &id, after) else { continue };
            if serving.left == 0 {
                serving.at = Some((id, after));
                return None;
            }
            serving.left -= 1;
            let served = self.try_waiter(means, &waiter, &id);
            serving.at = Some((id, waiter.number));
            if served.is_some() {
                return served;
            }
        }
    }

    fn next_key(&self, serving: &mut Serving) -> Option<KeyId> {
        while let Some(first) = serving.ready.pop_front() {
            match first {
                Ready::Key(db, key) => return Some((db, key)),
                Ready::Database(_) if serving.left == 0 => {
                    serving.ready.push_front(first);
                    return None;
                }
                Ready::Database(db) => {
                    let Some(id) = self.tables.lock().next_of_round(db) else { continue };
                    serving.left -= 1;
                    serving.ready.push_front(first);
                    return Some(id);
                }
            }
        }
        None
    }

    /// Serves a waiter, unless it has left, another thread serves it, or there is nothing for it any more.
    fn try_waiter(
        self: &Arc<Self>,
        means: &mut Means<'_>,
        waiter: &Arc<Waiter>,
        id: &KeyId,
    ) -> Option<Served> {
        if waiter.gone.load(Ordering::Relaxed) {
            if waiter.claim.take() {
                self.forget(means, waiter);
            }
            return None;
        }
        if !waiter.claim.take_or_note() {
            return None;
        }
        points::hold_up(Point::Serve);
        let mut out = Reply::new(waiter.resp3);
        // None: another client was faster, unless this one could not take what is there.
        let found = hold(means, waiter, id, &mut out)?;
        self.forget(means, waiter);
        Some(Served::new(waiter, found, out))
    }

    /// The next waiter for what the key holds now (P6).
    fn next(&self, means: &mut Means<'_>, id: &KeyId, after: u64) -> Option<Arc<Waiter>> {
        if !self.tables.lock().by_key.contains_key(id) {
            return None;
        }
        // A waiter that does not see expired keys finds nothing, and is passed over.
        let kind = kind_of(means, id, means.keyspace.imports());
        let tables = self.tables.lock();
        tables.by_key.get(id)?.next(kind, after).cloned()
    }
}

/// The kind of value a key holds now, for one who sees expired keys or not.
fn kind_of(means: &mut Means<'_>, (db, key): &KeyId, shows_expired: bool) -> Option<Kind> {
    let mut view = View::locked(means.keyspace, Keyspace::shards_of([&key[..]]), *db, means.now_ms);
    if shows_expired {
        view.set_expired_live();
    }
    if view.has_intents() {
        view.settle(&[(*db, &key[..])], false);
    }
    let kind = view.kind(key);
    means.put_off(view.finish());
    kind
}

/// The words of a client that waits for very many keys, as if it waited for this one only.
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
        "xread" | "xreadgroup" => {
            let (mut first, mut at) = (None, None);
            waiter.command.each_key(args, &mut |i, _| {
                first.get_or_insert(i);
                at = at.or((args.at(i) == key).then_some(i));
            });
            let (first, at) = (first?, at?);
            let id = args.at(at + (args.len() - first) / 2);
            args.to(first).iter().chain([key, id]).collect()
        }
        _ => vec![args.at(0), key, args.at(args.len() - 1)],
    };
    Some(OwnedArgs::from_slices(&words))
}

/// Whether a key holds what somebody waits for.
pub(super) fn is_filled(means: &mut Means<'_>, waiter: &Waiter, id: &KeyId) -> bool {
    waiter.kind.is_woken_by(kind_of(means, id, waiter.shows_expired))
}

/// Runs the command of a waiter that is claimed, for a key that was filled. If there is nothing for it, lets
/// go of it, after a look at what came meanwhile (P5).
pub(super) fn hold(means: &mut Means<'_>, waiter: &Waiter, filled: &KeyId, out: &mut Reply) -> Option<Found> {
    let mut found = attempt(means, waiter, filled, out);
    while found.is_none() && !waiter.claim.give_back() {
        found = waiter.keys.iter().find_map(|key| {
            is_filled(means, waiter, key).then(|| attempt(means, waiter, key, out)).flatten()
        });
    }
    found
}

/// Runs a waiter's command; None if it still has to wait. A filled key of another type wakes nobody; one of
/// the right type does, even if the command then finds another of its keys to be wrong.
fn attempt(means: &mut Means<'_>, waiter: &Waiter, (db, key): &KeyId, out: &mut Reply) -> Option<Found> {
    let (Run::Write(handler) | Run::Read(handler)) = waiter.command.run else { return None };
    let right = waiter.right(means);
    if let Right::Refused(error) = right {
        // P11: it is told so without a look at its keys.
        out.error(&error.text());
        return Some(Found::Served(Changes::default(), None));
    }
    // The writes are the waiter's, not those of the client whose write wakes it.
    let _author = means.keyspace.is_tracking().then(|| Author::serves(waiter.client));
    let narrowed = narrowed(waiter, key);
    let args: Args<'_> = narrowed.as_ref().map_or_else(|| waiter.args.args(), OwnedArgs::args);
    let shards = shards_of(waiter.command, args);
    let mark = out.len();
    let mut view = View::locked(means.keyspace, shards, waiter.db, means.now_ms);
    if waiter.shows_expired {
        view.set_expired_live();
    }
    if view.has_intents() {
        settle(&mut view, [(waiter.command, args)].into_iter(), waiter.db);
    }
    view.select(*db);
    if !waiter.kind.is_woken_by(view.kind(key)) {
        means.put_off(view.finish());
        return None;
    }
    view.select(waiter.db);
    if matches!(right, Right::Unknown) || waiter.command.steps(&view, args) > INLINE_STEPS {
        means.put_off(view.finish());
        return Some(Found::Long);
    }
    let caller = Caller { may_block: true, may_stream: true, client_id: waiter.client, ..Caller::default() };
    let mut cx = Cx::new(&mut view, out, caller, Budget::unlimited(None), means.random());
    let result = handler(&mut cx, args);
    let outcome = std::mem::take(&mut cx.outcome);
    let effects = std::mem::take(&mut cx.effects);
    let failed = result.is_err();
    let ran = Ran { command: waiter.command, args, effects: &effects, before: 0, failed };
    command::effects::log(means.keyspace, &view, ran);
    if matches!(outcome, Outcome::Block(_)) {
        out.truncate(mark);
        means.put_off(view.finish());
        return None;
    }
    if let Err(error) = result {
        out.truncate(mark);
        out.error(&error.text());
    }
    let stream = if let Outcome::Stream(rest) = outcome { Some(rest) } else { None };
    Some(Found::Served(view.finish(), stream))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Newcomer, Parked};
    use command::{Block, Command};
    use std::sync::atomic::AtomicBool;

    static ACL: std::sync::LazyLock<acl::Acl> = std::sync::LazyLock::new(acl::Acl::default);

    fn means(keyspace: &Keyspace) -> Means<'_> {
        let acl = std::sync::LazyLock::force(&ACL);
        Means {
            keyspace,
            acl,
            now_ms: 1000,
            seed: 1,
            late: Vec::new(),
            refused: Vec::new(),
            pieces: Vec::new(),
        }
    }

    fn words(words: &[&str]) -> (&'static Command, OwnedArgs) {
        let args = OwnedArgs::from_slices(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        (command::resolve(args.args()).unwrap(), args)
    }

    fn push(keyspace: &Keyspace, value: &str) -> Vec<Ready> {
        let (command, args) = words(&["RPUSH", "k", value]);
        let Run::Write(handler) = command.run else { panic!() };
        let mut view = View::locked_one(keyspace, b"k", 0, 1000);
        let mut out = Reply::new(false);
        let mut cx = Cx::new(&mut view, &mut out, Caller::default(), Budget::unlimited(None), 0);
        handler(&mut cx, args.args()).unwrap();
        view.finish().into_told().ready
    }

    fn park(park: &Arc<Park>, keyspace: &Keyspace, client: u64) -> Arc<AtomicBool> {
        let gone = Arc::<AtomicBool>::default();
        let user = acl::Identity::guest(&ACL);
        let newcomer = Newcomer { client, loop_id: 0, db: 0, shows_expired: false, user, gone: gone.clone() };
        let block = Block { timeout_ms: None, null_array: true, words: None };
        let mut out = Reply::new(false);
        let parked = park.park(&mut means(keyspace), newcomer, words(&["BLPOP", "k", "0"]), block, &mut out);
        assert!(matches!(parked, Parked::Waiting) && out.is_empty());
        gone
    }

    /// A keyspace and a park are all that is needed: no loop, no client, no server.
    #[test]
    fn one_element_serves_the_client_that_has_waited_longest() {
        let (waiters, keyspace) = (Arc::<Park>::default(), Keyspace::new(1));
        let _ = park(&waiters, &keyspace, 7);
        let gone = park(&waiters, &keyspace, 3);
        let mut serving = Serving::new(push(&keyspace, "a"));
        let served = waiters.serve(&mut means(&keyspace), &mut serving);
        let Some(Served::Reply { waiter, bytes, .. }) = served else { panic!("it is not served") };
        assert_eq!((waiter.client, &bytes[..]), (7, &b"*2\r\n$1\r\nk\r\n$1\r\na\r\n"[..]));
        assert!(waiters.serve(&mut means(&keyspace), &mut serving).is_none());
        assert!(serving.rest().is_none() && waiters.holds(3) && !waiters.holds(7));
        // A client that left is never served.
        gone.store(true, Ordering::Relaxed);
        let mut serving = Serving::new(push(&keyspace, "b"));
        assert!(waiters.serve(&mut means(&keyspace), &mut serving).is_none());
        assert!(serving.rest().is_none() && waiters.is_empty());
    }

    /// One entry for very many consumers of a group: each is tried once, however many goes that takes.
    #[test]
    fn those_for_whom_nothing_is_there_are_tried_once() {
        let (waiters, keyspace) = (Arc::<Park>::default(), Keyspace::new(1));
        let run = |line: &str| {
            let (command, args) = words(&line.split(' ').collect::<Vec<_>>());
            let Run::Write(handler) = command.run else { panic!() };
            let mut view = View::locked_one(&keyspace, b"s", 0, 1000);
            let mut out = Reply::new(false);
            let mut cx = Cx::new(&mut view, &mut out, Caller::default(), Budget::unlimited(None), 0);
            handler(&mut cx, args.args()).unwrap();
            view.finish().into_told().ready
        };
        run("XGROUP CREATE s g $ MKSTREAM");
        for client in 1..=40 {
            let user = acl::Identity::guest(&ACL);
            let newcomer =
                Newcomer { client, loop_id: 0, db: 0, shows_expired: false, user, gone: Arc::default() };
            let asked = words(&["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">"]);
            let block = Block { timeout_ms: None, null_array: true, words: None };
            waiters.park(&mut means(&keyspace), newcomer, asked, block, &mut Reply::new(false));
        }
        let (mut next, mut goes, mut served) = (Some(Serving::new(run("XADD s 1-1 a b"))), 0, Vec::new());
        while let Some(mut serving) = next.take() {
            while let Some(Served::Reply { waiter, .. }) = waiters.serve(&mut means(&keyspace), &mut serving)
            {
                served.push(waiter.client);
            }
            goes += 1;
            assert!(goes < 10, "it never ends");
            next = serving.rest();
        }
        assert_eq!((served, waiters.len()), (vec![1], 39));
    }
}
