//! EXEC. MULTI, WATCH and their opposites are in `multi`.
//!
//! EXEC locks the shards of all queued and all watched keys at once. Under the locks it checks the mark that
//! any touch of a watched key sets, and runs the queue. So nothing comes between, and the marks are exact.
//!
//! - T1: a command that could not be queued makes EXEC refuse the whole transaction (EXECABORT).
//! - T2: a command that fails while running leaves the others applied.
//! - T3: a long queue of functions of keys runs as a job (crate `work`) and is committed in slices. Its
//!   commit checks the watched keys.
//! - T4: a queue with scripts or KEYS runs like a script, over an overlay, on a thread if it is long
//!   (`scripts/src/transaction.rs`). So does a long queue that also publishes, subscribes or the like, and one
//!   that changes libraries of functions.
//! - T5: DEBUG SLEEP holds up neither the commit nor a lock. The reply is held back for the sum of the sleeps.

use crate::act::Act;
use crate::eval::{self, Started};
use crate::multi::leave;
use crate::parts::Multi;
use crate::step::step;
use crate::{Server, Session, fetching};
use command::Flow;
use command::facts::has_unknown_keys;
use command::keys::{database, shards_of};
use command::{Command, Error, Run, facts};
use keyspace::{Keyspace, View};
use pubsub::{FEW_PATTERNS, Kind};
use resp::{Args, Reply};
use std::sync::atomic::Ordering;
use stdx::locks::Bits;
use work::job;
use work::queue::Queue;

/// `EXEC`. Cost: that of the queue, here or elsewhere. Errors: no MULTI, EXECABORT, rights that were lost, a
/// queue that is too long for rows.
pub(crate) fn exec(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let mark = act.out.len();
    let flow = start(act)?;
    Ok(hold_back(act, mark, flow))
}

/// Holds the reply, which begins at `mark`, back for the sum of the transaction's sleeps (T5). O(bytes of the
/// reply), if there are any.
fn hold_back(act: &mut Act<'_, '_>, mark: usize, flow: Flow) -> Flow {
    match flow {
        Flow::Done if act.session.half.sleep_ms > 0 => {
            let mut answer = Reply::new(act.out.resp3());
            answer.encoded(&act.out.as_bytes()[mark..]);
            act.out.truncate(mark);
            let timeout_ms = Some(act.session.half.sleep_ms);
            crate::blocking::sleep(act.server, act.local, act.session, "exec", timeout_ms, answer)
        }
        Flow::Parked(None) => Flow::Parked(crate::deferred::sleeps_ms(act.local, act.session.id)),
        flow => flow,
    }
}

fn start(act: &mut Act<'_, '_>) -> Result<Flow, Error> {
    let Some(mut multi) = act.session.multi.take() else { return Err(Error::new("ERR EXEC without MULTI")) };
    if multi.broken {
        leave(act.server, act.local, act.session);
        return Err(Error::new("EXECABORT Transaction discarded because of previous errors."));
    }
    match crate::access::check_queued(act.server, act.session, &mut multi) {
        Ok(true) => {}
        Ok(false) => {
            act.session.multi = Some(multi);
            return Ok(crate::held::go_on(act.session, act.local));
        }
        Err(error) => {
            leave(act.server, act.local, act.session);
            return Err(error);
        }
    }
    if multi.sources && is_long_for_rows(&multi.queue) {
        leave(act.server, act.local, act.session);
        return Err(Error::new("ERR the transaction is too long: it names keys of sources"));
    }
    let plain = multi.queue.is_keyed();
    let long = multi.queue.words() + act.session.watched.len() >= job::MANY_WORDS
        || multi.queue.bytes() >= job::MANY_BYTES;
    let slow = multi.queue.has_slow_actions() && !multi.sources;
    let slow = slow || passes_many_patterns(act.server, &multi.queue);
    let apart = long || slow || multi.queue.is_open_ended();
    if multi.sources
        && apart
        && let Some(result) = fetching::preload(act, fetching::keys_of(&multi.queue).into_iter())
    {
        return waits_for_rows(act, multi, result);
    }
    // The watched rows are checked again under the locks. For what runs elsewhere, only later changes count.
    if !act.session.watched.rows.is_empty()
        && act.session.watched.rows.is_changed(&act.server.keyspace, act.local.log.now_ms)
    {
        leave(act.server, act.local, act.session);
        act.out.null_array();
        return Ok(Flow::Done);
    }
    if plain && long && work::bulk::is_bulk(act.session.watched.len(), &multi.queue) {
        // A bulk never ends an older commit, so no guard has to be asked before.
        return Ok(start_job(act, multi));
    }
    if act.server.keyspace.has_guards() && any_guarded(act, &multi.queue) {
        act.session.multi = Some(multi);
        return Ok(crate::held::wait_for_guard(act.session, act.local));
    }
    // A job knows database 0 only; rows are in others.
    if plain && long && !multi.sources {
        return Ok(start_job(act, multi));
    }
    if apart {
        // A library's code is run once before it is accepted, which no loop does.
        let far = long || multi.queue.changes_libraries();
        return Ok(run_over(act, multi, far));
    }
    run_here(act, multi, plain)
}

/// Runs the queue at once, under the locks of its keys, unless it turns out to be long.
fn run_here(act: &mut Act<'_, '_>, multi: Multi, plain: bool) -> Result<Flow, Error> {
    let mut rows = if multi.sources {
        rows::TransactionRows::of(&act.server.rows, multi.queue.iter())
    } else {
        rows::TransactionRows::default()
    };
    let shards = shards_needed(act.server, act.session, &multi.queue);
    let keyspace = act.server.keyspace.clone();
    let mut view = View::locked(&keyspace, shards, act.session.db, act.local.log.now_ms);
    if act.session.sees_expired(&keyspace) && !multi.sources {
        view.set_expired_live();
    }
    // Checking whether watched keys still exist does not count as use; each command decides for itself.
    view.set_quiet(true);
    if view.has_intents() {
        if !multi.sources && shards == Bits::below(keyspace::SHARDS) {
            // Otherwise everything that long commits still have to write would be written now.
            act.server.after(act.local, view.finish());
            return Ok(run_over(act, multi, false));
        }
        settle(act.server, act.session, &multi, shards, &mut view);
    }
    if !multi.sources && is_long(&multi, &view) {
        act.server.after(act.local, view.finish());
        return Ok(if plain { start_job(act, multi) } else { run_over(act, multi, true) });
    }
    if let Some(result) = fetching::look_at(act.local, act.session, &mut rows, &mut view) {
        act.server.after(act.local, view.finish());
        drop(rows);
        return waits_for_rows(act, multi, result);
    }
    if was_touched(act.session, &mut view) {
        act.out.null_array();
        let changes = view.finish();
        let watch = std::mem::take(&mut act.session.watched.watch);
        act.server.gate_of_watched(act.session, &watch);
        act.session.watched.watch = watch;
        leave(act.server, act.local, act.session);
        act.server.after(act.local, changes);
        return Ok(Flow::Done);
    }
    rows.show(&mut view);
    let end = run_commands(act, &multi, rows.are_changed(), &mut view);
    rows.give_back(&mut view);
    let changes = view.finish();
    leave(act.server, act.local, act.session);
    act.server.after(act.local, changes);
    Ok(end)
}

/// Runs the queued commands in order, in a view that holds their keys.
fn run_commands(act: &mut Act<'_, '_>, multi: &Multi, changes_rows: bool, view: &mut View<'_>) -> Flow {
    act.out.array(multi.queue.len());
    let mut end = Flow::Done;
    let timed = act.server.config.live.latency_tracking.get();
    let mut began_ns = act.local.log.lap();
    for (i, (command, args)) in multi.queue.iter().enumerate() {
        view.select(rows::db_for(&act.server.rows, command, args, act.session.db));
        let mark = act.out.len();
        let source = if multi.sources { act.server.rows.by_db(view.db()) } else { None };
        let changed = source.as_ref().filter(|_| changes_rows);
        let found = match changed {
            Some(entry) => rows::look_within(entry, view, command, args),
            None if view.db() >= act.server.keyspace.databases() && !multi.sources => {
                Err(rows::came_since(&act.server.rows, command, args))
            }
            None => Ok(()),
        };
        match found {
            Err(error) => act.out.error(&error.text()),
            Ok(()) => {
                if let Some(Flow::Close) = step(act, view, command, args, multi.queue.kept(i).as_ref()) {
                    end = Flow::Close;
                }
                if multi.sources && command.is_write() {
                    after_write(act, view, source.as_deref(), command, args);
                }
            }
        }
        let now_ns = act.local.log.lap();
        let error = act.out.as_bytes()[mark..].strip_prefix(b"-");
        error.into_iter().for_each(|text| act.local.log.recorder.error(text));
        act.local.log.recorder.within(
            command::places::of(command),
            now_ns - began_ns,
            error.is_some(),
            timed,
        );
        let live = &act.server.config.live;
        act.server.observe.stats.queued(
            &act.local.log,
            live,
            &act.session.info,
            (command, args),
            (now_ns - began_ns, act.out.len() - mark),
        );
        began_ns = now_ns;
    }
    end
}

/// Whether the queue publishes while very many patterns are subscribed.
fn passes_many_patterns(server: &Server, queue: &Queue) -> bool {
    queue.publishes() && server.pubsub.len(Kind::Pattern) > FEW_PATTERNS
}

/// Whether a transaction has more words than one with rows may have.
fn is_long_for_rows(queue: &Queue) -> bool {
    queue.words() >= job::MANY_WORDS || queue.bytes() >= job::MANY_BYTES
}

/// Holds the client until the rows are there, or answers with the error.
#[cold]
fn waits_for_rows(act: &mut Act<'_, '_>, multi: Multi, result: Result<Flow, Error>) -> Result<Flow, Error> {
    match result {
        Ok(_) => act.session.multi = Some(multi),
        Err(_) => leave(act.server, act.local, act.session),
    }
    result
}

/// Finishes a write to a source's key.
#[cold]
fn after_write(
    act: &Act<'_, '_>,
    view: &mut View<'_>,
    source: Option<&rows::Entry>,
    command: &'static Command,
    args: Args<'_>,
) {
    if let Some(entry) = source {
        rows::before_write(entry, command, args);
        rows::after_write(entry, view, command, args);
    } else if view.db() >= act.server.keyspace.databases() {
        // The source ended after the command's database was chosen.
        command.each_key(args, &mut |i, _| _ = view.remove(args.at(i)));
    }
}

/// Writes what long commits decided but have not written yet, for all keys that the transaction may look at.
#[cold]
fn settle(server: &Server, session: &Session, multi: &Multi, shards: Bits, view: &mut View<'_>) {
    if shards == Bits::below(keyspace::SHARDS) {
        return view.settle_all();
    }
    let mut keys: Vec<(usize, &[u8])> =
        session.watched.watch.keys.keys().map(|(db, key)| (*db, &**key)).collect();
    let mut selected = session.db;
    for (command, args) in multi.queue.iter() {
        if command.is(facts::SELECTS) {
            selected =
                args.get(1).and_then(|db| database(server.keyspace.databases(), db).ok()).unwrap_or(selected);
        }
        let db = rows::db_for(&server.rows, command, args, selected);
        command.each_key(args, &mut |i, _| keys.push((db, args.at(i))));
    }
    view.settle(&keys, multi.queue.has_writes());
}

/// Whether the commands are estimated to take longer than a quantum.
fn is_long(multi: &Multi, view: &View<'_>) -> bool {
    let cost = |(command, args): (&'static Command, Args<'_>)| {
        // No reply streams here.
        command.steps(view, args).saturating_add(command.reply_steps(view, args)).saturating_add(1)
    };
    multi.queue.iter().map(cost).fold(0, usize::saturating_add) > command::INLINE_STEPS
}

fn any_guarded(act: &Act<'_, '_>, queue: &Queue) -> bool {
    let mut writes = queue.iter().filter(|(command, _)| command.is_write() || command.is(facts::SCRIPT));
    writes.any(|(command, args)| crate::held::is_guarded(act.server, act.local, command, args))
}

/// Runs the queue elsewhere (T3). The session leaves the transaction at once.
fn start_job(act: &mut Act<'_, '_>, multi: Multi) -> Flow {
    if !multi.reads.is_empty() && crate::tracking::remembers(act.session) {
        let since = act.server.keyspace.last_lsn();
        crate::tracking::remember_later(act.local, act.session.id, multi.reads, since);
    }
    let flow = crate::hand_on::start_exec(act, multi.queue);
    leave(act.server, act.local, act.session);
    flow
}

/// Runs the queue over an overlay (T4). The session leaves the transaction at once.
fn run_over(act: &mut Act<'_, '_>, multi: Multi, long: bool) -> Flow {
    let watch = act.session.watched.take();
    leave(act.server, act.local, act.session);
    match eval::start_exec(act, multi.queue, watch, long) {
        Started::Done => Flow::Done,
        Started::Away | Started::Later => Flow::Parked(None),
    }
}

/// The shards of all queued and watched keys. All shards, if a command needs the whole keyspace or declares
/// no keys.
fn shards_needed(server: &Server, session: &Session, queue: &Queue) -> Bits {
    let mut shards = Keyspace::shards_of(session.watched.watch.keys.keys().map(|(_, key)| &**key));
    if !session.watched.rows.is_empty() {
        shards = shards.union(&Keyspace::shards_of(session.watched.rows.keys()));
    }
    for (command, args) in queue.iter() {
        let whole = match command.run {
            Run::Whole(_) => true,
            Run::Exec => server.actions.needs_keyspace(command),
            _ => has_unknown_keys(command, args),
        };
        if whole {
            return Bits::below(keyspace::SHARDS);
        }
        shards = shards.union(&shards_of(command, args));
    }
    shards
}

/// Whether a watched key was touched, or has expired. The locks are held.
fn was_touched(session: &Session, view: &mut View<'_>) -> bool {
    let rows = &session.watched.rows;
    let touched = session.watched.watch.is_touched(view) || !rows.is_empty() && rows.is_changed_in(view);
    view.select(session.db);
    touched || session.watched.watch.dirty.load(Ordering::Acquire)
}
