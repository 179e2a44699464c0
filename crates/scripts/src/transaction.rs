//! A transaction that runs over an overlay, like a script: one with a script in it, or a long one.
//!
//! ```text
//! EXEC ─► inline, over an overlay ─┬─ done within the quantum ─► watched keys untouched? ─► commit ─► reply
//!                                  └─ longer ─► a script's thread ─► watched keys untouched? ─► commit ─► reply
//! ```
//!
//! - E1: none of its commands has an effect before the commit. Commands that are no function of the keyspace
//!   are done with it (`deferred.rs`). So C1 to C7 hold for the transaction as a whole. A command that fails,
//!   also a script, leaves the others applied.
//! - E2: the commit checks the watched keys, too. Their mark shows a touch before the snapshot.
//! - E3: SCRIPT KILL and FUNCTION KILL end the whole transaction if it has a script or a function. Nothing is
//!   applied, and the answer is EXECABORT.
//! - E4: scripts see the changes of scripts and functions by earlier commands (`code.rs` K2).
//! - E5: changes of libraries are a part of the commit, and told in its group (`code.rs` K6). Their code is run
//!   before it is accepted, so such a transaction runs on a thread.
//!
//! Cost: that of its commands, and O(1) for each on top.

use super::run::{Ground, Limit, Runner, run_script};
use super::*;
use std::collections::HashSet;
use work::queue::{is_deferred, needs_engine};

/// See the module.
pub struct Transaction {
    queue: Queue,
    watch: Watch,
    info: Arc<ClientInfo>,
}

impl Transaction {
    pub fn new(queue: Queue, watch: Watch, info: Arc<ClientInfo>) -> Transaction {
        Transaction { queue, watch, info }
    }

    /// Its client.
    pub fn info(&self) -> &Arc<ClientInfo> {
        &self.info
    }

    /// The `i`-th command. Panics past the end.
    pub fn at(&self, i: usize) -> (&'static Command, resp::Args<'_>) {
        self.queue.at(i)
    }

    /// Its words, if they are many.
    pub fn kept(&self, i: usize) -> Option<Arc<OwnedArgs>> {
        self.queue.kept(i)
    }

    pub(super) fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Whether a watched key was touched.
    pub(super) fn is_touched(&self) -> bool {
        self.watch.is_marked()
    }

    pub(super) fn has_scripts(&self) -> (bool, bool) {
        self.queue.has_scripts()
    }

    /// Runs the commands from the beginning; `out` gets the reply.
    #[allow(clippy::too_many_arguments, reason = "as for a script")]
    pub(super) fn run(
        &self,
        scripts: &Arc<Scripts>,
        lua: &mut LuaState,
        run: &ScriptRun,
        ground: Ground<'_, '_>,
        limit: Limit<'_>,
        mut reader: Option<&mut Reader>,
        out: &mut Vec<u8>,
    ) -> (Result<(), Halt>, Told) {
        let Ground { overlay, mut outside, holding, base } = ground;
        let (mut db, mut random, mut resp3) = (run.db, run.random, run.resp3);
        let (mut told, mut at) = (Told::default(), 0);
        let mut draft = None;
        if self.has_expired(scripts, run, overlay, &mut reader) {
            write(out, |out| out.null_array(), resp3);
            return (Ok(()), told);
        }
        write(out, |out| out.array(self.queue.len()), resp3);
        while at < self.queue.len() {
            let ground = Ground {
                overlay: &mut *overlay,
                outside: outside.as_deref_mut(),
                holding: &mut *holding,
                base: base + told.bytes + out.capacity(),
            };
            let reader = reader.as_deref_mut();
            let engine = draft.as_mut().unwrap_or(&mut *lua);
            if needs_engine(self.queue.at(at).0) {
                let place = Place { run, db, at, resp3 };
                let ended = self.script(scripts, engine, place, ground, limit, reader, (out, &mut told));
                if ended.is_err() {
                    return (ended, told);
                }
                at += 1;
                continue;
            }
            let runner = Runner::new(scripts, engine, run, ground, limit, reader);
            let mut runner = runner.of_transaction(db, random, resp3, base + told.bytes);
            self.run_plain(&mut runner, &mut at, &mut draft, limit, out);
            (db, random, resp3) = (runner.db, runner.random, runner.resp3);
            told.append(std::mem::take(&mut runner.told));
            let (halt, tally) = (runner.halt, std::mem::take(&mut runner.tally));
            draft.as_mut().unwrap_or(&mut *lua).tally = tally;
            if let Some(halt) = halt {
                return (Err(halt), told);
            }
        }
        if let Some(draft) = draft {
            told.deferred.push(DeferredEffect::Keep(draft.code.take_added()));
            told.drafted_at = draft.code.drafted_at();
            told.libraries = draft.code.libraries_of_draft();
            lua.tally = draft.tally;
        }
        told.selected = Some(db);
        (Ok(()), told)
    }

    /// Runs commands up to the next that needs an engine, or until `runner` is halted.
    fn run_plain(
        &self,
        runner: &mut Runner<'_, '_>,
        at: &mut usize,
        draft: &mut Option<LuaState>,
        limit: Limit<'_>,
        out: &mut Vec<u8>,
    ) {
        while *at < self.queue.len() && !needs_engine(self.queue.at(*at).0) {
            let (command, args) = self.queue.at(*at);
            if facts::changes_libraries(command) {
                let code = (&**runner.scripts, &mut *draft);
                let change = |out: &mut Reply| change_libraries(code, (command, args), limit, out);
                if !runner.changed(command, args, out, change) {
                    return;
                }
            } else {
                let changes = self.queue.changes_scripts(*at, draft.is_some());
                if changes && !forget_scripts(runner.scripts, args, draft, limit) {
                    runner.halt = Some(Halt::Elsewhere);
                    return;
                }
                if is_deferred(command) {
                    runner.later(command, args, *at, out.len());
                } else if !runner.queued(command, args, out) {
                    return;
                }
            }
            *at += 1;
        }
    }

    /// Runs one of its scripts, or makes one known. An error is its reply.
    #[allow(clippy::too_many_arguments, reason = "as for a script")]
    fn script(
        &self,
        scripts: &Arc<Scripts>,
        lua: &mut LuaState,
        place: Place<'_>,
        ground: Ground<'_, '_>,
        limit: Limit<'_>,
        reader: Option<&mut Reader>,
        (out, told): (&mut Vec<u8>, &mut Told),
    ) -> Result<(), Halt> {
        if let Some(halt) = limit.ended() {
            return Err(halt);
        }
        let (mark, began_ns) = (out.len(), stdx::clock::mono_ns());
        let Place { at, resp3, .. } = place;
        let mut host = Compiling::new(limit, reader.as_deref().map(|reader| &reader.turn));
        let asked = self.asked_for(lua, place, &mut host);
        if let Some(halt) = host.0.halt {
            return Err(halt);
        }
        let ended = match asked {
            Ok(Order::Answer(answer)) => {
                out.extend_from_slice(&answer);
                Ok(())
            }
            // It would not end in time.
            Ok(Order::Run(script))
                if limit.until_ns.is_some() && (script.is_wide() || is_far(scripts, lua, &script.body)) =>
            {
                Err(Halt::Elsewhere)
            }
            Ok(Order::Elsewhere) => Err(Halt::Elsewhere),
            Ok(Order::Run(script)) => {
                let (ended, its) = run_script(scripts, lua, &script, ground, limit, reader, out);
                told.append(its);
                if ended == Err(Halt::Elsewhere) && limit.is_its_own_fault(began_ns) {
                    scripts.note_long(&script.body);
                }
                ended
            }
            Err(error) => {
                write(out, |out| out.error(&error.text()), resp3);
                Ok(())
            }
        };
        let error = out[mark..].strip_prefix(b"-");
        error.into_iter().for_each(|text| lua.tally.error(text));
        let ((command, args), ns) = (self.queue.at(at), stdx::clock::mono_ns() - began_ns);
        lua.tally.add(places::of(command), ns, error.is_some());
        lua.tally.queued(command, args, ns, out.len() - mark);
        ended
    }

    /// The request of a command with a script.
    fn asked_for(
        &self,
        lua: &mut LuaState,
        Place { run, db, at, resp3 }: Place<'_>,
        host: &mut Quiet<Compiling<'_>>,
    ) -> Result<Order, Error> {
        let (command, args) = self.queue.at(at);
        if !command.is(facts::SCRIPT) {
            let mut out = Reply::new(resp3);
            match command.name {
                "script|load" => match lua.find(args.at(2), true, host)? {
                    Found::Known { sha, .. } => out.bulk(&sha.hex()),
                    Found::Text => return Ok(Order::Elsewhere),
                },
                _ => asked::look_at(&lua.code, command, args, &mut out)?,
            }
            return Ok(Order::Answer(out.into_bytes()));
        }
        let (Asked { body, read_only, memory, far }, declared) = asked::asked_for(lua, command, args, host)?;
        if far {
            return Ok(Order::Elsewhere);
        }
        let short = memory.may_run_short(run.short)?;
        let words = self.queue.kept(at).unwrap_or_else(|| Arc::new(args.to_owned()));
        let random = run.random.wrapping_add(at as u64);
        let ScriptRun { client, now_ms, look, loop_id, reads, .. } = *run;
        let budget = run.budget.clone();
        Ok(Order::Run(ScriptRun {
            body,
            words,
            declared,
            db,
            client,
            user: run.user.clone(),
            resp3,
            read_only,
            short,
            now_ms,
            look,
            random,
            loop_id,
            gone: None,
            reads,
            budget,
        }))
    }

    /// Whether a watched key was touched in a way that sets no mark, such as by its expiry or an exchange of
    /// its database (E2).
    fn has_expired(
        &self,
        scripts: &Scripts,
        run: &ScriptRun,
        overlay: &mut Overlay,
        reader: &mut Option<&mut Reader>,
    ) -> bool {
        let unknown = self.watch.keys.keys().filter(|(db, key)| !overlay.knows(*db, key));
        let unknown: Vec<(usize, Box<[u8]>)> = unknown.cloned().collect();
        if !unknown.is_empty() {
            super::reader::load(overlay, unknown, reader);
        }
        let mut view = View::overlay(&scripts.keyspace, overlay, run.db, run.now_ms);
        self.watch.is_touched(&mut view)
    }

    /// The keys that its commands name and the watched ones, which a thread reads at once. Values that a
    /// plain SET replaces need not be known. O(words).
    pub(super) fn wanted(&self, scripts: &Scripts, run: &ScriptRun) -> Vec<(usize, Box<[u8]>)> {
        let mut db = run.db;
        let mut wanted: HashSet<(usize, &[u8])> =
            self.watch.keys.keys().map(|(db, key)| (*db, &**key)).collect();
        for (command, args) in self.queue.iter() {
            if command.is(facts::SELECTS) {
                db = command::keys::database(scripts.keyspace.databases(), args.at(1)).unwrap_or(db);
            }
            if !command.is_plain_set(args) {
                command.each_key(args, &mut |i, _| {
                    wanted.insert((db, args.at(i)));
                });
            }
        }
        wanted.into_iter().map(|(db, key)| (db, Box::from(key))).collect()
    }
}

/// Hides the scripts that its scripts see, as SCRIPT FLUSH does (E4). False: a loop has no time for it.
fn forget_scripts(
    scripts: &Scripts,
    args: resp::Args<'_>,
    draft: &mut Option<LuaState>,
    limit: Limit<'_>,
) -> bool {
    if limit.until_ns.is_some() {
        return false;
    }
    // The error is answered where the change is made for all.
    if let Ok(change) = asked::forgets(args) {
        let _ = change.make(&drafted(scripts, draft).code);
    }
    true
}

/// Changes libraries in the draft (E5), and answers. Returns the words to be told. Cost: trying the libraries
/// to be added.
fn change_libraries(
    (scripts, draft): (&Scripts, &mut Option<LuaState>),
    (command, args): (&Command, resp::Args<'_>),
    limit: Limit<'_>,
    out: &mut Reply,
) -> Result<OwnedArgs, Error> {
    let asked = libraries::asked_for(command, args)?;
    let words = libraries::told_words(&asked, args);
    let change = asked.prepare(&scripts.limits(&scripts.config.live), limit.gone, None)?;
    change.make(&drafted(scripts, draft).code)?;
    change.answer(out);
    Ok(words)
}

/// The draft of a transaction.
fn drafted<'a>(scripts: &Scripts, draft: &'a mut Option<LuaState>) -> &'a mut LuaState {
    draft.get_or_insert_with(|| LuaState::new(Arc::new(scripts.code.draft())))
}

/// A command of a transaction, and the state that earlier commands left.
#[derive(Clone, Copy)]
struct Place<'a> {
    run: &'a ScriptRun,
    db: usize,
    at: usize,
    resp3: bool,
}

/// Whether it has to run on a thread.
fn is_far(scripts: &Scripts, lua: &mut LuaState, body: &Body) -> bool {
    let lacks = matches!(body, Body::Function(name) if !lua.has_function(name));
    lacks || scripts.is_long(body)
}

/// The outcome of looking at a command with a script.
enum Order {
    Run(ScriptRun),
    Answer(Vec<u8>),
    /// A thread has to do it.
    Elsewhere,
}

/// Appends a piece of reply.
fn write(out: &mut Vec<u8>, piece: impl FnOnce(&mut Reply), resp3: bool) {
    let mut reply = Reply::new(resp3);
    piece(&mut reply);
    out.extend_from_slice(reply.as_bytes());
}
