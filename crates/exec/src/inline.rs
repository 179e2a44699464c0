//! Runs a command on its client's loop, by its row: under the locks of its keys, over the whole keyspace, or
//! as an action. A command that turns out to be long is handed on.

use crate::act::Act;
use crate::held::{is_guarded, wait_for_guard};
use crate::{Session, fetching, hand_on, tracking};
use command::Flow;
use command::effects::Ran;
use command::facts::{self, has_unknown_keys};
use command::keys::settle;
use command::table::{self, Run};
use command::{Budget, Caller, Command, Cx, Error, Handler, INLINE_STEPS, Outcome};
use keyspace::{KeySet, View};
use resp::Args;
use smallvec::SmallVec;
use std::sync::Arc;
use work::job::MANY_WORDS;

/// Estimated steps above which a read gives its shard locks back first: some microseconds.
const APART_STEPS: usize = 100;

/// Runs a command whose keys belong to a source, in that source's database.
#[cold]
pub(crate) fn run_in(
    act: &mut Act<'_, '_>,
    entry: Arc<rows::Entry>,
    command: &'static Command,
    args: Args<'_>,
) -> Flow {
    let own = std::mem::replace(&mut act.session.db, entry.db);
    act.session.rows.source = Some(entry);
    let stay = Stay { session: &mut *act.session, own };
    let inner = Act::of_client(act.server, act.local, stay.session, act.out);
    let mut inner = Act { kept: act.kept, key_hash: act.key_hash, ..inner };
    let flow = run(&mut inner, command, args);
    act.is_job = inner.is_job;
    flow
}

/// A client's stay in a source's database. Dropping it restores the database, also after a panic.
struct Stay<'a> {
    session: &'a mut crate::Session,
    own: usize,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.session.rows.source = None;
        self.session.db = self.own;
    }
}

/// Chooses the plan by the row and runs it.
#[inline]
pub(crate) fn run(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) -> Flow {
    match command.run {
        Run::Read(handler) | Run::Write(handler) => keyed(act, command, handler, args),
        Run::Whole(handler) => whole(act, command, handler, args),
        Run::Exec => {
            let mark = act.out.len();
            let result = act.server.actions.perform(act, command, args);
            act.server.gate_of_action(act.session, command, args);
            result.unwrap_or_else(|error| fail(act, mark, &error))
        }
        Run::Container => {
            act.out.error(&command.arity_error().text());
            Flow::Done
        }
    }
}

/// Replaces what was written since `mark` by an error.
#[cold]
fn fail(act: &mut Act<'_, '_>, mark: usize, error: &Error) -> Flow {
    act.out.truncate(mark);
    act.out.error(&error.text());
    Flow::Done
}

/// Decides whether the command runs here. `Some`: it was refused, held, or handed on. `None`: it runs inline.
#[inline]
fn run_elsewhere(
    act: &mut Act<'_, '_>,
    command: &'static Command,
    handler: Handler,
    args: Args<'_>,
) -> Option<Flow> {
    let waits = command.has(table::BLOCKING);
    if waits && (args.len() > park::WORDS_MAX || act.kept.is_some()) {
        act.out.error(park::TOO_WIDE);
        return Some(Flow::Done);
    }
    let has_many_words = args.len() >= MANY_WORDS && !waits;
    if act.session.tracking.is_some()
        && (has_many_words || act.kept.is_some() || has_unknown_keys(command, args))
    {
        tracking::remember_elsewhere(act, command, args);
    }
    if has_many_words && let Some(flow) = many_words(act, command, args) {
        return Some(flow);
    }
    if command.is_write()
        && act.server.keyspace.has_guards()
        && is_guarded(act.server, act.local, command, args)
    {
        return Some(wait_for_guard(act.session, act.local));
    }
    if act.kept.is_some() && act.session.rows.source.is_some() {
        act.out.error("ERR the command is too long for a key of a source");
        return Some(Flow::Done);
    }
    if has_unknown_keys(command, args) || has_many_words || act.kept.is_some() {
        return Some(hand_on::start(act, command, handler, args));
    }
    None
}

/// Begins a command of many words in slices, if it has such a form.
#[cold]
fn many_words(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) -> Option<Flow> {
    // A bulk never ends an older commit, so no guard has to be asked before.
    if let Some(flow) = hand_on::start_bulk(act, command, args) {
        return Some(flow);
    }
    hand_on::start_gather(act, command, args)
}

/// Locks the keys of a command, and finishes what long commits still have to write there.
#[inline]
fn lock_keys<'a>(act: &mut Act<'a, '_>, command: &'static Command, args: Args<'_>) -> View<'a> {
    let (server, local, session) = (act.server, &*act.local, &*act.session);
    let known = act.key_hash;
    let key = command.single_key().and_then(|at| Some((args.get(at)?, known.filter(|_| at == 1))));
    let mut view = match key {
        Some((key, Some(hash))) => {
            View::locked_hashed(&server.keyspace, key, hash, session.db, local.log.now_ms)
        }
        Some((key, None)) => View::locked_one(&server.keyspace, key, session.db, local.log.now_ms),
        None => {
            let mut keys = KeySet::default();
            command.each_key(args, &mut |i, _| keys.add(args.at(i)));
            View::locked_many(&server.keyspace, &keys, session.db, local.log.now_ms)
        }
    };
    if session.sees_expired(&server.keyspace) && !view.is_hidden() {
        view.set_expired_live();
    }
    if view.has_intents() {
        settle(&mut view, [(command, args)].into_iter(), session.db);
    }
    if session.settings.no_touch && !command.is(facts::TOUCHES) {
        view.set_quiet(true);
    }
    view
}

/// Runs a function of its keys.
fn keyed(act: &mut Act<'_, '_>, command: &'static Command, handler: Handler, args: Args<'_>) -> Flow {
    if let Some(flow) = run_elsewhere(act, command, handler, args) {
        return flow;
    }
    let (server, mark) = (act.server, act.out.len());
    let mut view = lock_keys(act, command, args);
    let source = act.session.rows.source.take();
    if let Some(entry) = &source
        && let Some(result) = at_source(act, entry, &mut view, command, args)
    {
        server.after(act.local, view.finish());
        return result.unwrap_or_else(|error| fail(act, mark, &error));
    }
    tracking::remember(act.session, &mut view, command, args);
    let own_write = source.is_some() && command.is_write();
    // A write to a cached row, or a read of a row that is not kept, ends here: rows are small.
    let ends_here = own_write || act.session.rows.lent.is_some();
    if !ends_here && is_long(&mut view, command, args) {
        server.after(act.local, view.finish());
        return hand_on::start(act, command, handler, args);
    }
    let budget = if ends_here { Budget::unlimited(None) } else { Budget::steps(4 * INLINE_STEPS) };
    let caller = Caller { may_block: true, ..caller(act.session) };
    let mut cx = Cx::new(&mut view, act.out, caller, budget, act.local.random());
    let result = handler(&mut cx, args);
    let Cx { outcome, effects, .. } = cx;
    if let Some(key) = act.session.rows.lent.take() {
        view.remove(&key);
        tracking::tell_lent(act.server, act.session, &key);
    }
    if let Err(error) = result {
        debug_assert_eq!(view.changes().made(), 0, "{} failed after a change", command.name);
        // An error tells of the keys as well.
        server.gate_of(act.session, &view, command, args);
        server.after(act.local, view.finish());
        act.out.truncate(mark);
        return match error {
            Error::Budget => hand_on::start(act, command, handler, args),
            error => fail(act, mark, &error),
        };
    }
    if let Some(entry) = source.filter(|_| own_write) {
        rows::after_write(&entry, &mut view, command, args);
    } else if view.is_told() {
        server.log_effect(Ran { command, args, effects: &effects, before: 0, failed: false }, &view);
    }
    server.gate_of(act.session, &view, command, args);
    server.after(act.local, view.finish());
    match outcome {
        Outcome::Done => Flow::Done,
        Outcome::Stream(stream) => Flow::Stream(stream),
        Outcome::Block(block) => {
            act.out.truncate(mark);
            crate::blocking::park(act, command, args, block)
        }
    }
}

/// A client whose reply may come piece by piece. The primary's commands have run before.
fn caller(session: &Session) -> Caller {
    let in_replay = session.link.is_some();
    Caller { may_stream: true, client_id: session.id, in_replay, ..Caller::default() }
}

/// Checks that the rows of a source's keys are present, and tells the source of a write. `Some`: the command
/// does not run now.
#[cold]
fn at_source(
    act: &mut Act<'_, '_>,
    entry: &Arc<rows::Entry>,
    view: &mut View<'_>,
    command: &'static Command,
    args: Args<'_>,
) -> Option<Result<Flow, Error>> {
    let result = fetching::look(act.local, act.session, entry, view, command, args);
    if result.is_none() && command.is_write() {
        rows::before_write(entry, command, args);
    }
    result
}

/// Whether the command is estimated to take longer than a quantum. A long read keeps its values and gives the
/// locks back.
#[inline]
fn is_long(view: &mut View<'_>, command: &'static Command, args: Args<'_>) -> bool {
    let steps = command.steps(view, args);
    if steps > INLINE_STEPS {
        return true;
    }
    if steps > APART_STEPS && command.apart {
        let mut keys = SmallVec::<[&[u8]; 16]>::new();
        command.each_key(args, &mut |i, _| keys.push(args.at(i)));
        view.keep_only(keys.into_iter());
        stdx::points::hold_up(stdx::points::Point::Apart);
    }
    false
}

/// Runs a function of the whole keyspace.
fn whole(act: &mut Act<'_, '_>, command: &'static Command, handler: Handler, args: Args<'_>) -> Flow {
    if let Some(flow) = act.server.actions.begin(act, command, args) {
        act.server.gate_of_all(act.session);
        return flow;
    }
    let (server, mark) = (act.server, act.out.len());
    let mut view = View::open(&server.keyspace, act.session.db, act.local.log.now_ms);
    if act.session.sees_expired(&server.keyspace) {
        view.set_expired_live();
    }
    let caller = caller(act.session);
    let mut cx = Cx::new(&mut view, act.out, caller, Budget::unlimited(None), act.local.random());
    let result = handler(&mut cx, args);
    let Cx { outcome, effects, .. } = cx;
    let failed = result.is_err();
    if let Err(error) = result {
        fail(act, mark, &error);
    }
    server.log_effect(Ran { command, args, effects: &effects, before: 0, failed }, &view);
    server.after(act.local, view.finish());
    server.gate_of_all(act.session);
    match outcome {
        Outcome::Stream(stream) => Flow::Stream(stream),
        _ => Flow::Done,
    }
}
