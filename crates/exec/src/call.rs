//! From a command's arguments to its reply: look-up, checks, plan, run, effects.

use crate::actions::{self, Act};
use crate::bounds;
use crate::calls::Ran;
use crate::fetching;
use crate::job;
use crate::memory::{self, Verdict};
use crate::rows::{self, Plan};
use crate::session::{ReplyMode, flag};
use crate::waits::{Away, BIG_NS, Request, SLOW_NS, What};
use crate::{Local, Server, Session};
use command::facts;
pub(crate) use command::facts::has_unknown_keys;
pub(crate) use command::keys::{settle, shards_of};
use command::table::{self, Run};
use command::{Budget, Caller, Command, Cx, Error, Handler, Outcome, Room, Stream};
pub use command::{Flow, INLINE_STEPS, resolve};
use keyspace::{KeySet, View};
use resp::{Args, Batch, Reply};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::budget::Holding;

/// Above so many steps what only reads values does it without the locks of their shards: some microseconds.
const APART_STEPS: usize = 100;

/// Runs one command of a client. `out` gets the reply, after whatever stands in it.
pub fn execute(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    stdx::panics::begin();
    let mark = out.len();
    if session.reply_mode == ReplyMode::SkipNext {
        session.reply_mode = ReplyMode::Skip;
    }
    let flow = match resolve(args) {
        Ok(command) => match local.incoming.as_ref().and_then(|words| bounds::refusal(command, words)) {
            None => admit(server, local, session, command, args, out),
            Some(error) => refuse(server, local, session, Some(command), &error, out),
        },
        // A browser or a web server was led here to post commands: nothing of it is answered.
        Err(_) if is_http(args) => {
            log::warn!("client {} speaks HTTP: closed", session.id);
            return Flow::Close;
        }
        Err(Error::Arity(name)) if name == "exec" => {
            crate::transaction::leave(server, local, session);
            let error = Error::Arity(name).text().replacen("ERR ", "", 1);
            out.error(&format!("EXECABORT Transaction discarded because of: {error}"));
            Flow::Done
        }
        Err(error) => refuse(server, local, session, None, &error, out),
    };
    if let Flow::Held(_) = flow {
        if session.reply_mode != ReplyMode::On {
            out.truncate(mark);
            session.take_told(out);
        }
        return flow;
    }
    match session.reply_mode {
        ReplyMode::On | ReplyMode::SkipNext => flow,
        ReplyMode::Off => muted(flow, mark, session, out),
        // The reply to be dropped comes by mail.
        ReplyMode::Skip if matches!(flow, Flow::Parked(_)) => flow,
        ReplyMode::Skip => {
            session.reply_mode = ReplyMode::On;
            muted(flow, mark, session, out)
        }
    }
}

/// Runs one command of a client who is always answered (no CLIENT REPLY) and whose command's row is known.
pub(crate) fn execute_row(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    stdx::panics::begin();
    admit(server, local, session, command, args, out)
}

/// Answers a command that panicked before it changed anything (`stdx::panics`), and puts in order what it left behind of itself. What it
/// wrote is taken back already.
#[cold]
pub fn recover(server: &Server, local: &mut Local, session: &mut Session, out: &mut Reply) {
    local.lap();
    (local.incoming, local.key_hash, local.away) = (None, None, false);
    session.rows.give_up();
    (session.done, session.hushed) = (0, false);
    session.set_flag(flag::BLOCKED, false);
    if let Some(multi) = &mut session.multi {
        multi.broken = true;
        session.set_flag(flag::DIRTY_EXEC, true);
    } else if session.info.flags.load(Ordering::Relaxed) & flag::MULTI != 0 {
        // EXEC had taken it.
        crate::transaction::leave(server, local, session);
    }
    server.stats.rejected(local, None, job::BROKEN);
    match session.reply_mode {
        ReplyMode::On | ReplyMode::SkipNext => out.error(job::BROKEN),
        ReplyMode::Off => {}
        ReplyMode::Skip => session.reply_mode = ReplyMode::On,
    }
}

/// The text of [`recover`], for whoever speaks another protocol.
pub const BROKEN: &str = job::BROKEN;

fn is_http(args: Args<'_>) -> bool {
    args.at(0).eq_ignore_ascii_case(b"post") || args.at(0).eq_ignore_ascii_case(b"host:")
}

fn muted(flow: Flow, mark: usize, session: &mut Session, out: &mut Reply) -> Flow {
    out.truncate(mark);
    session.take_told(out);
    match flow {
        Flow::Stream(stream) if stream.has_effects() => {
            Flow::Stream(Box::new(Muted { stream, dropped: Reply::new(out.resp3()) }))
        }
        Flow::Stream(_) => Flow::Done,
        flow => flow,
    }
}

/// A stream that runs for what it does, not for what it says (CLIENT REPLY).
struct Muted {
    stream: Box<dyn Stream>,
    dropped: Reply,
}

impl Stream for Muted {
    fn fill(&mut self, _: &mut Reply, room: usize) -> bool {
        let more = self.stream.fill(&mut self.dropped, room);
        self.dropped.clear();
        more
    }
}

/// Commands of a batch whose keys are looked at before they run.
const LOOKED_AT: usize = 32;
/// Different keys from which on fetching them together pays.
const FETCH_FROM: usize = 4;

/// Hashes of the first arguments of a batch's commands, as far as they are known.
#[derive(Default)]
pub struct Hashes {
    hashes: [u64; LOOKED_AT],
    known: u32,
}

impl Hashes {
    #[inline]
    pub fn of(&self, i: usize) -> Option<u64> {
        (i < LOOKED_AT && self.known >> i & 1 == 1).then(|| self.hashes[i])
    }
}

/// Fetches the keys of a batch of commands into the cache, as far as they are simple ones, and tells their hashes.
pub fn prefetch(server: &Server, session: &Session, batch: &Batch, input: &[u8]) -> Hashes {
    let (mut known, mut different, mut n) = (Hashes::default(), [0u64; LOOKED_AT], 0);
    let mut last: (&[u8], u64) = (&[], 0);
    for i in 0..batch.len().min(LOOKED_AT) {
        let Some(key) = batch.args(i, input).get(1) else { continue };
        // For a command without a key there this fetches something for nothing; that is rare and harmless.
        if n == 0 || key != last.0 {
            last = (key, stdx::hash::hash_bytes(key));
            different[n] = last.1;
            n += 1;
        }
        known.hashes[i] = last.1;
        known.known |= 1 << i;
    }
    if n >= FETCH_FROM {
        server.keyspace.prefetch(session.db, &different[..n]);
    }
    known
}

/// Writes an error reply; an error before MULTI's EXEC spoils the transaction.
fn refuse(
    server: &Server,
    local: &Local,
    session: &mut Session,
    command: Option<&'static Command>,
    error: &Error,
    out: &mut Reply,
) -> Flow {
    if let Some(multi) = &mut session.multi {
        multi.broken = true;
        session.set_flag(flag::DIRTY_EXEC, true);
    }
    server.stats.rejected(local, command, &error.text());
    out.error(&error.text());
    Flow::Done
}

/// The checks between look-up and run.
fn admit(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    if !session.authenticated && !command.has(table::NO_AUTH) && !session.is_let_in(server) {
        let error = Error::new("NOAUTH Authentication required.");
        return refuse(server, local, session, Some(command), &error, out);
    }
    if session.in_pubsub_mode() && !command.is(facts::WHILE_SUBSCRIBED) {
        let error = Error::from(format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
             context",
            command.name
        ));
        return refuse(server, local, session, Some(command), &error, out);
    }
    let plan = match server.sources.any() {
        true => fetching::plan(server, session, command, args),
        false => Plan::Own,
    };
    if let Plan::Later = plan {
        return go_on(session, local);
    }
    if server.memory.is_limited()
        && let Some(flow) = ration(server, local, session, command, out)
    {
        return flow;
    }
    if session.multi.is_some() && !command.is(facts::INSIDE_MULTI) {
        if let Some(error) = rows::unfit_for_queue(&plan, args) {
            return refuse(server, local, session, Some(command), &error, out);
        }
        if let Some(multi) = session.multi.as_mut().filter(|_| !matches!(plan, Plan::Own)) {
            multi.sources = true;
        }
        if command.has(table::NO_MULTI) {
            let error = Error::new("ERR Command not allowed inside a transaction");
            return refuse(server, local, session, Some(command), &error, out);
        }
        return crate::transaction::queue(server, local, session, command, args, out);
    }
    if let Plan::Refused(error) = &plan {
        return refuse(server, local, session, Some(command), error, out);
    }
    if server.pause.is_on() && server.pause.holds(command, session, local.now_ms) {
        return crate::clients::hold(server, local, session);
    }
    let full = stdx::reclaim::is_full();
    if full && litters_again(session, command) {
        return wait_for_reclaim(server, session, local);
    }
    let flooded = server.pubsub.flood.full();
    if flooded > 0 && session.published.is_too_much(flooded) && publishes(command) {
        return wait_for_messages(session, local);
    }
    let made = if flooded > 0 { crate::pubsub::made() } else { 0 };
    let littered = if full { stdx::reclaim::deferred() } else { 0 };
    let number = command::places::of(command);
    session.info.runs(number);
    let before = local.clock_ns;
    local.begin_command(session.id, number);
    let mark = out.len();
    let flow = match plan {
        Plan::In(entry) => run_in(server, local, session, entry, command, args, out),
        Plan::Fetch(_) => fetching::fetch(server, local, session, command, args, out),
        _ => run(server, local, session, command, args, out),
    };
    if full && stdx::reclaim::deferred() - littered >= LITTER {
        session.littered = stdx::reclaim::fullness();
    }
    if flooded > 0 {
        session.published.add(flooded, crate::pubsub::made() - made);
    }
    let ns = local.lap() - before;
    let mut spent = if ns >= BIG_NS { took_long(server, local, session, command, args, ns) } else { None };
    if session.was_held() && !matches!(flow, Flow::Held(_)) {
        let at = local.now_ms;
        let request = spent.get_or_insert_with(|| Request::ran(command.name, at, ns));
        crate::held::end_waits(server, local, session, request);
    }
    spent.iter().for_each(|request| session.info.remember(request.clone()));
    match flow {
        Flow::Held(_) => return flow,
        Flow::Parked(_) => {
            away(local, session, command, args, before);
            return flow;
        }
        _ => {}
    }
    let reply = &out.as_bytes()[mark..];
    session.info.last_ns.store(ns, Ordering::Relaxed);
    let ran = Ran { command, number, ns, args, reply, spent: spent.as_ref() };
    server.stats.called(local, &server.config.live, &session.info, ran);
    flow
}

/// What becomes of a command while memory is limited; None: it may run.
#[cold]
fn ration(
    server: &Server,
    local: &mut Local,
    session: &mut Session,
    command: &'static Command,
    out: &mut Reply,
) -> Option<Flow> {
    session.short = false;
    let denied = memory::is_denied(session, command);
    if !denied && !command.may_write() {
        return None;
    }
    let queued = session.multi.is_some() && !command.is(facts::RUNS_QUEUE);
    match memory::admit(server, local, session) {
        Verdict::Wait if !queued => {
            session.waits_for_itself(What::Reclaim, local.clock_ns);
            return Some(go_on(session, local));
        }
        Verdict::Short => session.short = true,
        Verdict::Run | Verdict::Wait => {}
    }
    if !session.short || !denied {
        return None;
    }
    if command.is(facts::RUNS_QUEUE) {
        crate::transaction::leave(server, local, session);
        let error = Error::from(format!("EXECABORT Transaction discarded because of: {}", memory::OOM));
        return Some(refuse(server, local, session, Some(command), &error, out));
    }
    Some(refuse(server, local, session, Some(command), &Error::new(memory::OOM), out))
}

/// Bytes a command has to give the reclaimer to be held back the next time.
const LITTER: u64 = 16 * 1024;

/// Whether more waits to be freed than may, its client has added to that, and now wants to write again.
#[cold]
fn litters_again(session: &Session, command: &Command) -> bool {
    command.may_write() && session.littered == stdx::reclaim::fullness()
}

/// Whether messages may come of a command: those it publishes, and what its writes tell.
pub(crate) fn publishes(command: &Command) -> bool {
    command.may_write() || command.is(facts::PUBLISHES)
}

/// Very many messages are under way, many of them the client's own: the command is run again in a moment.
#[cold]
fn wait_for_messages(session: &Session, local: &Local) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    session.waits_for_itself(What::Messages, local.clock_ns);
    Flow::Held(local.now_ms + 1)
}

/// The command is run again in a moment.
#[cold]
fn wait_for_reclaim(server: &Server, session: &Session, local: &Local) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    if session.waits_for_itself(What::Reclaim, local.clock_ns) {
        server.stats.reclaim_delays.fetch_add(1, Ordering::Relaxed);
    }
    Flow::Held(local.now_ms + 2)
}

/// A command took a quantum or more on its loop: whoever comes after it in this turn waited for it.
#[cold]
fn took_long(
    server: &Server,
    local: &mut Local,
    session: &Session,
    command: &'static Command,
    args: Args<'_>,
    ns: u64,
) -> Option<Request> {
    let words = crate::calls::words(command, args);
    let (culprit, lock_ns) = local.piece(server, Some(session.info.clone()), command.name, words, ns);
    if ns < SLOW_NS {
        return None;
    }
    let behind = (culprit.client_id() != session.id).then(|| culprit.clone());
    let mut request = Request {
        unix_ms: local.now_ms,
        command: command.name,
        inline_ns: ns,
        lock_ns,
        os_ns: culprit.os_ns,
        behind,
        ..Request::default()
    };
    if let Some(late) = &local.turn.late {
        (request.loop_ns, request.behind) = (late.ns, Some(late.culprit.clone()));
        late.remembered.set(true);
    }
    Some(request)
}

/// The reply will come by mail. The command is counted, and logged, when it is there.
fn away(local: &mut Local, session: &mut Session, command: &'static Command, args: Args<'_>, began_ns: u64) {
    let is_job = std::mem::take(&mut local.away);
    let words = crate::calls::words(command, args);
    let inline_ns = local.clock_ns - began_ns;
    session.away = Some(Box::new(Away { command, words, began_ns, inline_ns, parked_ns: 0, is_job }));
}

/// Runs a command whose keys belong to a source in that source's database.
#[cold]
fn run_in(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    entry: Arc<rows::Entry>,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    let own = std::mem::replace(&mut session.db, entry.db);
    session.rows.source = Some(entry);
    let stay = Stay { session, own };
    run(server, local, stay.session, command, args, out)
}

/// A client is in a source's database, and comes back also by a panic.
struct Stay<'a> {
    session: &'a mut Session,
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
fn run(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    match command.run {
        Run::Read(handler) | Run::Write(handler) => {
            keyed(server, local, session, command, handler, args, out)
        }
        Run::Whole(handler) => whole(server, local, session, command, handler, args, out),
        Run::Exec => {
            let mark = out.len();
            let mut act = Act {
                server,
                local,
                session,
                out,
                view: None,
                in_script: false,
                in_multi: false,
                committed: false,
            };
            match actions::perform(&mut act, command, args) {
                Ok(flow) => flow,
                Err(error) => {
                    out.truncate(mark);
                    out.error(&error.text());
                    Flow::Done
                }
            }
        }
        Run::Container => {
            out.error(&command.arity_error().text());
            Flow::Done
        }
    }
}

/// Whether a long commit is protected against writers of this command's keys.
#[cold]
pub(crate) fn is_guarded(server: &Server, local: &Local, command: &Command, args: Args<'_>) -> bool {
    let mut keys = Vec::new();
    command.each_key(args, &mut |i, _| keys.push(args.at(i)));
    note_guard(local, server.keyspace.guarded(keys.into_iter(), local.now_ms))
}

/// Notes for whom a client is about to be held; true if for anybody.
pub(crate) fn note_guard(local: &Local, guarded: Option<keyspace::Guarded>) -> bool {
    if let Some(guarded) = guarded {
        local.guard.set(guarded.client);
    }
    guarded.is_some()
}

/// The command is run again in a moment.
pub(crate) fn wait_for_guard(session: &Session, local: &Local) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    if session.guarded.get().is_none() {
        session.guarded.set(Some((local.guard.get(), local.clock_ns)));
    }
    Flow::Held(local.now_ms + 1)
}

/// The command is run again in a moment: what it depends on is being done by another loop now.
pub(crate) fn retry(session: &Session, local: &Local) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    Flow::Held(local.now_ms + 1)
}

/// The command has done a slice of its work, and is run again in this loop's next turn (`Session::done` says where).
pub(crate) fn go_on(session: &Session, local: &Local) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    Flow::Held(local.now_ms)
}

/// What is to be said before a command is run under the locks of its keys: that it may not be, that it waits, or that it is another's
/// work. None: it is run here.
#[inline]
fn run_elsewhere(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    (command, handler, args): (&'static Command, Handler, Args<'_>),
    out: &mut Reply,
) -> Option<Flow> {
    let waits = command.has(table::BLOCKING);
    if waits && (args.len() > crate::park::WORDS_MAX || local.incoming.is_some()) {
        out.error(crate::park::TOO_WIDE);
        return Some(Flow::Done);
    }
    let has_many_words = args.len() >= job::MANY_WORDS && !waits;
    if has_many_words && let Some(flow) = crate::bulk::start(server, local, session, command, args, out) {
        // It never ends an older commit, so nobody has to be asked before.
        return Some(flow);
    }
    if has_many_words
        && let Some(flow) = actions::gather::start(server, session, command, args, local.incoming.as_ref())
    {
        return Some(flow);
    }
    if command.is_write() && server.keyspace.has_guards() && is_guarded(server, local, command, args) {
        return Some(wait_for_guard(session, local));
    }
    if local.incoming.is_some() && session.rows.source.is_some() {
        out.error("ERR too many bytes for a key of a source");
        return Some(Flow::Done);
    }
    if has_unknown_keys(command, args) || has_many_words || local.incoming.is_some() {
        return Some(job::start(server, local, session, (command, handler, args), out));
    }
    None
}

/// The keys of a command, locked, and what long commits have left to be done for them done.
#[inline]
fn lock_keys<'a>(
    server: &'a Arc<Server>,
    local: &mut Local,
    session: &Session,
    command: &'static Command,
    args: Args<'_>,
) -> View<'a> {
    let known = local.key_hash.take();
    let key = command.single_key().and_then(|at| Some((args.get(at)?, known.filter(|_| at == 1))));
    let mut view = match key {
        Some((key, Some(hash))) => View::locked_hashed(&server.keyspace, key, hash, session.db, local.now_ms),
        Some((key, None)) => View::locked_one(&server.keyspace, key, session.db, local.now_ms),
        None => {
            let mut keys = KeySet::default();
            command.each_key(args, &mut |i, _| keys.add(args.at(i)));
            View::locked_many(&server.keyspace, &keys, session.db, local.now_ms)
        }
    };
    if view.has_intents() {
        settle(&mut view, [(command, args)].into_iter(), session.db);
    }
    if session.no_touch && !command.is(facts::TOUCHES) {
        view.set_quiet(true);
    }
    view
}

fn keyed(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    command: &'static Command,
    handler: Handler,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    if let Some(flow) = run_elsewhere(server, local, session, (command, handler, args), out) {
        return flow;
    }
    let mark = out.len();
    let mut view = lock_keys(server, local, session, command, args);
    let source = session.rows.source.take();
    if let Some(entry) = &source {
        match fetching::look(local, session, entry, &mut view, command, args) {
            None => {}
            Some(Ok(flow)) => {
                server.after(local, view.finish());
                return flow;
            }
            Some(Err(error)) => {
                server.after(local, view.finish());
                out.error(&error.text());
                return Flow::Done;
            }
        }
        if command.is_write() {
            rows::before_write(entry, command, args);
        }
    }
    let own_write = source.is_some() && command.is_write();
    let ends_here = own_write || session.rows.lent.is_some();
    let steps = if ends_here { 0 } else { command.steps(&view, args) };
    if steps > INLINE_STEPS {
        server.after(local, view.finish());
        return job::start(server, local, session, (command, handler, args), out);
    }
    if steps > APART_STEPS && command.apart {
        let mut keys = SmallVec::<[&[u8]; 16]>::new();
        command.each_key(args, &mut |i, _| keys.push(args.at(i)));
        view.keep_only(keys.into_iter());
        stdx::points::hold_up(stdx::points::Point::Apart);
    }
    let caller = Caller { may_block: true, may_stream: true, client_id: session.id, ..Caller::default() };
    // What a client writes to a row that is cached, or reads of one that is not kept, ends here, and rows are small.
    let budget = if ends_here { Budget::unlimited(None) } else { Budget::steps(4 * INLINE_STEPS) };
    let mut cx = Cx::new(&mut view, out, caller, budget, local.random());
    let result = handler(&mut cx, args);
    let Cx { outcome, effects, .. } = cx;
    if let Some(key) = session.rows.lent.take() {
        view.remove(&key);
    }
    if let Err(error) = result {
        out.truncate(mark);
        server.after(local, view.finish());
        if error == Error::Budget {
            return job::start(server, local, session, (command, handler, args), out);
        }
        out.error(&error.text());
        return Flow::Done;
    }
    if let Some(entry) = source.filter(|_| own_write) {
        rows::after_write(&entry, &mut view, command, args);
    } else if view.changes().lsn != 0 && server.keyspace.sink().is_some() {
        server.log_effect(command, args, &effects, &view);
    }
    let changes = view.finish();
    server.reply_gate(changes.lsn);
    server.after(local, changes);
    match outcome {
        Outcome::Done => Flow::Done,
        Outcome::Stream(stream) => Flow::Stream(stream),
        Outcome::Block(block) => {
            out.truncate(mark);
            crate::blocking::park(server, local, session, command, args, block, out)
        }
    }
}

fn whole(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    command: &'static Command,
    handler: Handler,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    if command.name == "keys" {
        return crate::actions::keys::start(server, local, session, args);
    }
    if command.name == "scan"
        && let Some(flow) = crate::actions::keys::start_scan(server, session, args)
    {
        return flow;
    }
    let mark = out.len();
    let mut view = View::open(&server.keyspace, session.db, local.now_ms);
    let caller = Caller { may_stream: true, client_id: session.id, ..Caller::default() };
    let mut cx = Cx::new(&mut view, out, caller, Budget::unlimited(None), local.random());
    let result = handler(&mut cx, args);
    let outcome = std::mem::take(&mut cx.outcome);
    if let Err(error) = result {
        out.truncate(mark);
        out.error(&error.text());
    }
    server.log_effect(command, args, &[], &view);
    server.after(local, view.finish());
    match outcome {
        Outcome::Stream(stream) => Flow::Stream(stream),
        _ => Flow::Done,
    }
}

/// Runs a command on a view somebody else holds: a step of EXEC or of a script in a whole view.
pub(crate) fn step(
    act: &mut Act<'_, '_>,
    view: &mut View<'_>,
    command: &'static Command,
    args: Args<'_>,
) -> Option<Flow> {
    let mark = act.out.len();
    let result = match command.run {
        Run::Read(handler) | Run::Write(handler) | Run::Whole(handler) => {
            // The command before it may have looked without using.
            view.set_quiet(act.session.no_touch && !command.is(facts::TOUCHES));
            let caller = Caller { in_script: act.in_script, client_id: act.session.id, ..Caller::default() };
            // What is estimated to be long is not run here; where an estimate is wrong this is the bound.
            let mut holding = Holding::default();
            let room = Room::new(&act.server.memory.work, &mut holding, 0);
            let budget = Budget::unlimited(None).within(room, mark);
            let mut cx = Cx::new(view, act.out, caller, budget, act.local.random());
            let result = handler(&mut cx, args);
            let effects = std::mem::take(&mut cx.effects);
            act.server.log_effect(command, args, &effects, view);
            result.map(|()| None)
        }
        Run::Exec => {
            let mut inner = Act {
                server: act.server,
                local: act.local,
                session: act.session,
                out: act.out,
                view: Some(view),
                in_script: act.in_script,
                in_multi: true,
                committed: false,
            };
            actions::perform(&mut inner, command, args).map(Some)
        }
        Run::Container => Err(command.arity_error()),
    };
    match result {
        Ok(flow) => flow,
        Err(error) => {
            act.out.truncate(mark);
            act.out.error(&error.text());
            None
        }
    }
}
