//! A script on the loop that received it: inline first, on a thread if it is long (crate `scripts`).

use crate::act::Act;
use crate::actions::answer::perform_for_script;
use crate::deferred::advance_deferred;
use crate::held::note_guard;
use crate::mail::Mailbox;
use crate::{Local, Server, Session, drive, shortage, tracking};
use command::{Command, Error, resolve};
use keyspace::{Overlay, Snapshot, View};
use resp::{Args, Reply};
use scripts::{
    Body, Committed, Deferred, Ground, Halt, House, Letter, Limit, LuaState, Outside, Request, Rows,
    ScriptJob, ScriptRun, TRIES, Told, Transaction, do_few, run_once, settle,
};
use std::sync::{Arc, Weak};
use stdx::budget::Holding;
use work::Watch;
use work::piece::{Delivery, Desk, Piece, Step, more};

/// The server, as its scripts see it.
pub(crate) struct Around {
    pub(crate) server: Weak<Server>,
    pub(crate) loops: Arc<[Mailbox]>,
}

impl House for Around {
    fn post(&self, loop_id: usize, letter: Letter) {
        self.loops[loop_id].send(letter.into());
    }

    fn may_write(&self, client: u64) -> Result<(), Error> {
        let Some(server) = self.server.upgrade() else { return Ok(()) };
        if server.work.follows.refuses(client) {
            return Err(Error::new(work::follows::READONLY));
        }
        if server.role.is_link(client) || !server.durability.is_in_trouble() {
            return Ok(());
        }
        server.durability.refusal().map_or(Ok(()), |refusal| Err(Error::from(refusal)))
    }

    fn may_touch(&self, client: u64, command: &Command, args: Args<'_>) -> Result<(), Error> {
        self.server.upgrade().map_or(Ok(()), |server| server.script_may_touch(client, command, args))
    }

    fn is_stale(&self) -> bool {
        self.server.upgrade().is_some_and(|s| !s.config.live.serves_stale.get() && s.role.lacks_link())
    }

    fn is_ending(&self) -> bool {
        self.server.upgrade().is_none_or(|server| server.is_shutting_down())
    }

    fn rows_of(&self, db: usize, command: &Command, args: Args<'_>) -> Result<Option<Box<dyn Rows>>, Error> {
        let Some(server) = self.server.upgrade() else { return Ok(None) };
        let entry = rows::of_call(&server.rows, db, command, args)?;
        Ok(entry.map(|entry| Box::new(Source(entry)) as Box<dyn Rows>))
    }

    fn denied(&self, client: u64, user: &acl::User, call: (&Command, Args<'_>), denied: acl::Denied) {
        let Some(server) = self.server.upgrade() else { return };
        if let Some(info) = server.observe.clients.get(client) {
            crate::access::note(&server, &info, user, acl::Context::Lua, call, denied);
        }
    }

    fn will_speak(&self, args: Args<'_>) -> Option<bool> {
        crate::actions::connection::will_speak(&*self.server.upgrade()?, args)
    }
}

/// A source, as scripts see it.
struct Source(Arc<rows::Entry>);

impl Rows for Source {
    fn dbs(&self) -> [usize; 2] {
        [self.0.db, self.0.absent_db()]
    }

    fn name(&self) -> &str {
        &self.0.spec().name
    }

    fn is_known(&self, view: &mut View<'_>, key: &[u8]) -> bool {
        rows::is_known(&self.0, view, key)
    }

    fn removed_before(&self, key: &[u8]) -> Error {
        rows::removed_before(&self.0, key)
    }
}

/// How a script went on the loop that received it.
pub(crate) enum Started {
    Done,
    /// The script is on a thread; the reply comes by mail.
    Away,
    /// A protected commit holds the script's keys: it is to be run again in a moment.
    Later,
}

/// Runs a client's script: inline first, on a thread if it is long. `far`: on a thread at once.
pub(crate) fn start(act: &mut Act<'_, '_>, run: ScriptRun, far: bool) -> Started {
    let server = act.server.clone();
    let guarded = server.keyspace.has_guards() && !run.read_only;
    let holder = if guarded { server.keyspace.guarded(run.keys().iter(), run.now_ms) } else { None };
    if note_guard(act.local, holder) {
        return Started::Later;
    }
    let far = far || run.is_wide() || server.scripts.is_long(&run.body);
    let lacks = |name: &str, act: &mut Act<'_, '_>| !engine(act.server, act.local).has_function(name);
    let far = far || matches!(&run.body, Body::Function(name) if lacks(name, act));
    if far {
        load_libraries(act.local);
        return send_away(act, run);
    }
    run_with_engine(act, run)
}

/// Runs a transaction over an overlay: inline first, unless it is long. Its client has left MULTI already.
pub(crate) fn start_exec(
    act: &mut Act<'_, '_>,
    queue: work::queue::Queue,
    watch: Watch,
    long: bool,
) -> Started {
    let run = ScriptRun {
        body: Body::Exec(Box::new(Transaction::new(queue, watch, act.session.info.clone()))),
        words: Arc::default(),
        declared: 0,
        db: act.session.db,
        client: act.session.id,
        user: act.session.login.user.clone(),
        resp3: act.out.resp3(),
        read_only: false,
        short: shortage::is_short(act),
        now_ms: act.local.log.now_ms,
        look: act.session.look(&act.server.keyspace, act.local.log.now_ms),
        random: act.local.random(),
        loop_id: act.local.log.id,
        gone: Some(act.session.cancel.clone()),
        reads: crate::tracking::remembers(act.session),
        budget: crate::hand_on::budget(act.server, act.session),
    };
    if long { send_away(act, run) } else { run_with_engine(act, run) }
}

fn run_with_engine(act: &mut Act<'_, '_>, run: ScriptRun) -> Started {
    engine(act.server, act.local);
    let Some(mut lua) = act.local.lua.take() else { return Started::Done };
    let started = run_inline(act, &mut lua, run);
    if lua.wants_collection() {
        act.local.works.push(Box::new(Collecting));
    }
    act.local.lua = Some(lua);
    load_libraries(act.local);
    started
}

/// Collects some garbage of scripts in a loop's engine. True: some is left.
fn collect_some(local: &mut Local) -> bool {
    local.lua.as_mut().is_some_and(|lua| lua.collect_some())
}

/// Begins to load the libraries in slices, if a called function was missing (K4).
fn load_libraries(local: &mut Local) {
    if local.lua.as_mut().is_some_and(|lua| lua.wants_libraries()) {
        local.works.push(Box::new(Loading));
    }
}

/// Loads some libraries into a loop's engine. True: some are left.
fn load_some_libraries(local: &mut Local) -> bool {
    local.lua.as_mut().is_some_and(|lua| lua.load_some_libraries())
}

/// Loads libraries of functions into the loop's engine.
struct Loading;

impl Piece for Loading {
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let is_left = load_some_libraries(Local::of(desk).1);
        more(is_left, self)
    }
}

/// Collects the garbage of scripts in the loop's engine.
struct Collecting;

impl Piece for Collecting {
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let is_left = collect_some(Local::of(desk).1);
        more(is_left, self)
    }
}

/// Sends a script to a thread.
fn send_away(act: &mut Act<'_, '_>, run: ScriptRun) -> Started {
    let job = ScriptJob::new(&act.server.scripts, run, act.session.info.clone());
    act.is_job = true;
    drive::begin(act.server, act.local, job);
    Started::Away
}

/// Runs a script on its loop, again after each lost race. A script that takes too long goes to a thread.
fn run_inline(act: &mut Act<'_, '_>, lua: &mut LuaState, mut run: ScriptRun) -> Started {
    let server = act.server.clone();
    for _ in 0..TRIES {
        let Some(snapshot) = Snapshot::open_short(&server.keyspace) else { break };
        let since = snapshot.lsn();
        let (mut overlay, mut holding) = (Overlay::new(snapshot, run.look), Holding::default());
        overlay.load(run.db, run.keys().iter());
        let mark = act.out.len();
        let (ended, mut told) = run_for_a_quantum(act, lua, &run, &mut overlay, &mut holding);
        if ended.is_err() {
            act.out.truncate(mark);
            overlay.dispose();
            server.scripts.note_long(&run.body);
            break;
        }
        let written = run.settle(&server.keyspace, act.local.log.now_ms);
        drive::tell(&server, act.local, written);
        if run.is_touched() {
            act.out.truncate(mark);
            act.out.null_array();
            if let Some(watch) = run.watch() {
                server.gate_of_watched(act.session, watch);
            }
            overlay.dispose();
            forget_watched(act, &mut run);
            return Started::Done;
        }
        let only_reads = server.keyspace.gates() && !overlay.is_dirty();
        let recent = if only_reads { overlay.recent() } else { 0 };
        let (changes, committed) = settle(act.local.log.now_ms, overlay, &mut told);
        // The values it read were still so when it was committed.
        let since = changes.as_ref().map_or(since, |changes| since.max(changes.lsn));
        drive::tell(&server, act.local, changes);
        if committed {
            if only_reads {
                act.session.gate.lsn = act.session.gate.lsn.max(recent);
            } else {
                server.gate_of_all(act.session);
            }
            act.local.log.count_within(&server.observe, &mut lua.tally, act.session.id);
            forget_watched(act, &mut run);
            if !told.reads.is_empty() {
                tracking::remember_later(act.local, run.client, std::mem::take(&mut told.reads), since);
            }
            if do_few(&server.scripts, &mut told) {
                told.selected.into_iter().for_each(|db| act.session.select(db));
                return Started::Done;
            }
            return do_deferred(act, run, mark, told);
        }
        act.out.truncate(mark);
    }
    send_away(act, run)
}

/// Runs a script once over an overlay, for one quantum at most. Its reply goes to the client's buffer.
fn run_for_a_quantum(
    act: &mut Act<'_, '_>,
    lua: &mut LuaState,
    run: &ScriptRun,
    overlay: &mut Overlay,
    holding: &mut Holding,
) -> (Result<(), Halt>, Told) {
    let server = act.server.clone();
    let mut spare = Reply::new(act.out.resp3());
    let mut out = OnLoan::of(act.out);
    let limit = Limit::on_loop();
    let inner = Act::of_client(act.server, act.local, act.session, &mut spare);
    let in_script = !matches!(run.body, Body::Exec(_));
    let mut inner = Act { in_script, in_multi: true, ..inner };
    let ground = Ground { overlay, outside: Some(&mut inner), holding, base: 0 };
    run_once(&server.scripts, lua, run, ground, limit, None, &mut out.bytes)
}

/// EXEC: gives up the client's watched keys.
fn forget_watched(act: &mut Act<'_, '_>, run: &mut ScriptRun) {
    if let Some(watch) = run.watch().map(std::mem::take) {
        crate::multi::forget(act.server, act.local, watch);
    }
}

/// The client's reply buffer, lent to a script that appends to it. Dropping it gives the buffer back, also
/// after a panic.
struct OnLoan<'a> {
    home: &'a mut Reply,
    bytes: Vec<u8>,
}

impl OnLoan<'_> {
    fn of(home: &mut Reply) -> OnLoan<'_> {
        OnLoan { bytes: home.take(), home }
    }
}

impl Drop for OnLoan<'_> {
    fn drop(&mut self) {
        self.home.swap(&mut self.bytes);
    }
}

/// Does the deferred effects of a committed inline script, whose reply stands behind `mark`.
fn do_deferred(act: &mut Act<'_, '_>, run: ScriptRun, mark: usize, told: Told) -> Started {
    let reply = act.out.as_bytes()[mark..].to_vec();
    act.out.truncate(mark);
    let deferred = Deferred::new(Committed { run, reply, told, spent: None, share: None }, mark);
    match advance_deferred(act.server, act.local, Some(act.session), deferred) {
        Some(Delivery { bytes, stream: None, .. }) => {
            act.session.speech.muted = false;
            act.out.set_resp3(act.session.speech.resp3);
            act.out.encoded(&bytes);
            return Started::Done;
        }
        Some(delivery) => act.local.works.push(Box::new(delivery)),
        None => {}
    }
    act.is_job = true;
    Started::Away
}

/// Performs a command for a script on a thread. `session`: its client's, if it is still connected.
pub fn perform(server: &Arc<Server>, local: &mut Local, session: Option<&mut Session>, request: Request) {
    let args = request.words.args();
    let mut out = Reply::new(request.resp3);
    match (resolve(args), session) {
        (Ok(command), Some(session)) => {
            let (reply, home) = (request.reply.clone(), (server, local, session));
            return perform_for_script(home, (command, args), request.resp3, move |bytes| reply.put(bytes));
        }
        (Ok(_), None) => out.error("ERR the client has disconnected"),
        (Err(error), _) => out.error(&error.text()),
    }
    request.reply.put(out.into_bytes());
}

/// This loop's engine.
pub(crate) fn engine<'a>(server: &Server, local: &'a mut Local) -> &'a mut LuaState {
    local.lua.get_or_insert_with(|| Box::new(LuaState::of_loop(server.scripts.code.clone())))
}

impl Outside for Act<'_, '_> {
    fn perform(
        &mut self,
        command: &'static Command,
        args: Args<'_>,
        in_script: bool,
        out: &mut Reply,
    ) -> Result<(), Error> {
        let act = Act::of_client(self.server, self.local, self.session, out);
        let mut act = Act { in_script, in_multi: true, ..act };
        act.server.actions.perform(&mut act, command, args).map(|_| ())
    }
}
