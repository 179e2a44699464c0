//! A script on its way through a thread of its own, and back to its loop for its commit.

use super::deferred;
use super::run::{Ground, Limit, run_once};
use super::running::Listed;
use super::*;
use keyspace::Announce;
use observe::waits::request::Bench;
use std::sync::Weak;
use work::assembled::Rests;
use work::attempt::{Attempt, End, Long};
use work::job::{BROKEN, discard};
use work::lines;
use work::piece::{Delivery, Desk, Letter, Step, Who};
use work::snapshots::{Asker, Class, shortened};

/// See the module.
pub struct ScriptJob {
    attempt: Attempt,
    scripts: Weak<Scripts>,
    run: ScriptRun,
    /// Its place in the list of running scripts, until it is done.
    listed: Option<Listed>,
    out: Vec<u8>,
    told: Told,
    ended: Result<(), Halt>,
    /// Its commit changes libraries.
    changes_libraries: bool,
    /// The LSN of its snapshot.
    since: keyspace::Lsn,
}

impl ScriptJob {
    /// A script that has not begun.
    pub fn new(scripts: &Arc<Scripts>, run: ScriptRun, info: Arc<ClientInfo>) -> Box<ScriptJob> {
        let who = Who { client: run.client, command: run.body.command(), loop_id: run.loop_id };
        Box::new(ScriptJob {
            attempt: Attempt::new(who, info, run.gone.clone(), run.budget.clone()),
            scripts: Arc::downgrade(scripts),
            listed: Some(Listed::new(scripts, &run)),
            run,
            out: Vec::new(),
            told: Told::default(),
            ended: Ok(()),
            changes_libraries: false,
            since: 0,
        })
    }

    /// The scripts of its server. The loop that drives it keeps them.
    fn scripts(&self) -> Arc<Scripts> {
        self.scripts.upgrade().expect("a loop drives its own work")
    }

    /// Ends it from outside. Nothing of it has happened (C1).
    fn ended_by(&mut self, why: &str) {
        let before = match self.run.body {
            Body::Exec(_) => "EXECABORT Transaction discarded because of:",
            _ => "ERR",
        };
        self.forget();
        self.out = format!("-{before} {why}\r\n").into_bytes();
    }

    /// Ends it as the memory of work is used up. Its messages are dropped already.
    fn is_full(&mut self) {
        let error = Error::work_memory();
        let text = error.text();
        self.out = match self.run.body {
            Body::Exec(_) => {
                let why = text.strip_prefix("ERR ").unwrap_or(&text);
                format!("-EXECABORT Transaction discarded because of: {why}\r\n").into_bytes()
            }
            _ => format!("-{text}\r\n").into_bytes(),
        };
    }

    /// A run over the overlay, on its thread.
    fn run_over(
        &mut self,
        scripts: &Arc<Scripts>,
        (lua, bench): (&mut LuaState, &mut Bench),
        mut overlay: Overlay,
        limit: Limit<'_>,
    ) {
        let run = &self.run;
        let mut reader = Reader::new(scripts, run.loop_id, scripts.roams(&run.body));
        reader.declares(run);
        if let Body::Exec(transaction) = &run.body {
            reader.load(&mut overlay, transaction.wanted(scripts, run));
        }
        let holding = &mut self.attempt.holding;
        let ground = Ground { overlay: &mut overlay, outside: None, holding, base: 0 };
        let limit = Limit { gone: run.gone(), ..limit };
        self.out.clear();
        reader.turn.reach(Point::ScriptStart);
        let (ended, told) = run_once(scripts, lua, run, ground, limit, Some(&mut reader), &mut self.out);
        (self.ended, self.told) = (ended, told);
        if ended == Err(Halt::Full) {
            // Nothing of it is told or committed.
            discard((std::mem::take(&mut self.told), std::mem::take(&mut self.out)));
        }
        if let Some(libraries) = self.told.libraries.take() {
            overlay.brings(libraries);
            self.changes_libraries = true;
        }
        self.attempt.info.work_bytes.store(self.attempt.holding.held(), Ordering::Relaxed);
        self.attempt.tally = std::mem::take(&mut lua.tally);
        scripts.note_roams(&self.run.body, reader.roams(&overlay));
        bench.waited(reader.waited_ns.get() + reader.turn.waited_ns());
        reader.turn.reach(Point::ScriptEnd);
        if ended.is_ok() && bench.cpu_ns() < SHORT_NS {
            scripts.forget_long(&self.run.body);
        }
        self.keep(overlay);
    }

    /// Keeps the overlay; it is sealed if its changes are many.
    fn keep(&mut self, mut overlay: Overlay) {
        if self.ended.is_ok() && self.attempt.is_much(&overlay) {
            let announce = self.told.announce();
            return self.attempt.keep(overlay, announce);
        }
        if overlay.is_dirty() {
            // It happens here, not on the loop that commits it.
            overlay.adopt_read();
        }
        self.attempt.overlay = Some(overlay);
    }
}

/// Runs a script on a thread of its own.
fn run_on_thread(scripts: &Arc<Scripts>, lua: &mut LuaState, bench: &mut Bench, job: &mut ScriptJob) {
    let Some(entry) = job.listed.as_ref().map(|listed| listed.entry.clone()) else { return };
    if job.is_killed() {
        job.ended = Err(Halt::Killed);
        return;
    }
    // The time counts from before it was compiled.
    let end_ns = Limit::on_thread(&scripts.config, &entry, None, job.attempt.spent.thread_ns).end_ns;
    let stop = job.attempt.sign.stop.clone();
    let limit = Limit { end_ns, kill: Some(&entry.kill), gives_way: Some(&*stop), ..Limit::default() };
    match know_text(scripts, lua, &mut job.run, limit) {
        Err(halt) => job.ended = Err(halt),
        Ok(Err(error)) => {
            let mut out = Reply::new(job.run.resp3);
            out.error(&error.text());
            job.out = out.into_bytes();
            job.ended = Ok(());
        }
        Ok(Ok(())) => {
            if let Some(overlay) = job.attempt.overlay.take() {
                job.run_over(scripts, (lua, bench), overlay, limit);
            }
        }
    }
}

/// Compiles a script that came as a mere text. Errors: the fault of the text (within), or the reason why the
/// compilation was ended.
fn know_text(
    scripts: &Scripts,
    lua: &mut LuaState,
    run: &mut ScriptRun,
    limit: Limit<'_>,
) -> Result<Result<(), Error>, Halt> {
    let Body::Text(read_only) = run.body else { return Ok(Ok(())) };
    let (words, gone, turn) = (run.words.clone(), run.gone.clone(), scripts.work.turns.enter());
    let limit = Limit { gone: gone.as_deref(), ..limit };
    let mut host = Compiling::new(limit, Some(&turn));
    let asked = asked::script_of(lua, words.args(), read_only, &mut host);
    if let Some(halt) = host.0.halt {
        return Err(halt);
    }
    Ok(asked.and_then(|asked| {
        run.short = asked.memory.may_run_short(run.short)?;
        (run.body, run.read_only) = (asked.body, asked.read_only);
        Ok(())
    }))
}

impl Long for ScriptJob {
    fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    fn attempt_mut(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    /// `None`: it has no name of its own, or only reads.
    fn kind(&self) -> Option<u64> {
        let run = &self.run;
        let name = Name::of(&run.body).filter(|_| !run.read_only)?;
        let first = run.keys().iter().next();
        Some(match &name {
            Name::Script(sha) => lines::kind(&sha.hex(), run.db, first),
            Name::Function(name) => lines::kind(name.as_bytes(), run.db, first),
        })
    }

    /// Whether it was killed, or its client went and it only reads.
    fn is_killed(&self) -> bool {
        let gone = self.run.gone().is_some_and(|gone| gone.load(Ordering::Relaxed));
        gone || self.listed.as_ref().is_some_and(|listed| listed.entry.kill.load(Ordering::Relaxed))
    }

    /// Whether it gave way, and its client has gone (C9).
    fn is_forsaken(&self) -> bool {
        self.attempt.gave_way > 0 && self.attempt.is_orphan()
    }

    fn asks(&self) -> Asker {
        let body = &self.run.body;
        let mut name = vec![body.command().to_uppercase().into_bytes()];
        name.extend((!matches!(body, Body::Exec(_))).then(|| body.name().into_bytes()));
        let words = shortened(name.iter().map(Vec::as_slice).chain(self.run.keys().iter()));
        self.attempt.asks(Class::Script, self.run.read_only, words)
    }

    fn begin(&mut self, snapshot: Snapshot, desk: &mut Desk<'_>) {
        // It may have waited.
        self.run.now_ms = desk.now_ms;
        self.since = snapshot.lsn();
        self.attempt.overlay = Some(Overlay::new(snapshot, self.run.look));
    }

    fn go(self: Box<Self>, _: &mut Desk<'_>) {
        self.scripts().submit(self);
    }

    fn fail(&mut self) {
        let attempt = &mut self.attempt;
        discard((attempt.overlay.take(), attempt.commit.take(), std::mem::take(&mut self.told)));
        attempt.tally.clear();
        self.ended = Err(Halt::Broken);
    }

    fn end(&mut self, _: &Desk<'_>) -> End {
        match self.ended {
            Err(halt @ (Halt::Killed | Halt::TooLong)) => {
                let why = halt.told(&self.scripts().config);
                self.ended_by(&why);
                End::Answered
            }
            Err(Halt::Full) => {
                self.is_full();
                End::Answered
            }
            Err(Halt::Broken) => {
                self.out = format!("-{BROKEN}\r\n").into_bytes();
                End::Answered
            }
            Err(Halt::GivesWay) => End::GivesWay,
            // It could not go on, as its request was not answered.
            Err(Halt::Elsewhere) => End::Lost,
            Ok(()) if self.told.is_outdated(&self.scripts().code) => {
                self.attempt.drop_work();
                discard(std::mem::take(&mut self.told));
                End::Lost
            }
            Ok(()) => End::Done,
        }
    }

    fn changes(&self) -> bool {
        self.attempt.commit.is_some() || self.attempt.overlay.as_ref().is_some_and(Overlay::is_dirty)
    }

    fn watch(&mut self) -> Option<&mut Watch> {
        self.run.watch()
    }

    fn announce(&mut self, _: &Desk<'_>) -> Announce {
        self.told.announce()
    }

    fn forget(&mut self) {
        discard(std::mem::take(&mut self.told));
        self.attempt.tally.clear();
        self.ended = Ok(());
    }

    fn answers(&mut self, write: impl FnOnce(&mut Reply)) {
        let mut out = Reply::new(self.run.resp3);
        write(&mut out);
        self.out = out.into_bytes();
    }

    fn says(&self) -> bool {
        !self.told.deferred.is_empty()
    }

    /// The reply, unless there are more than a few deferred effects to do.
    fn reply(mut self: Box<Self>, mut spent: Box<Spent>, desk: &mut Desk<'_>) -> Option<Delivery> {
        self.listed = None;
        if self.changes_libraries {
            self.scripts().tidy_idle_later();
        }
        // Scripts do hardly anything else besides their writes.
        spent.published = !self.told.deferred.is_empty();
        let scripts = self.scripts();
        let reads = std::mem::take(&mut self.told.reads);
        if !reads.is_empty() {
            scripts.house.post(desk.loop_id, crate::Letter::Reads(self.run.client, reads, self.since));
        }
        if deferred::do_few(&scripts, &mut self.told) {
            let (bytes, selected) = (std::mem::take(&mut self.out), self.told.selected);
            let reply = self.attempt.assemble(bytes, Rests::new());
            let delivery = Delivery { selected, ..self.attempt.delivery(reply, spent) };
            discard(self);
            return Some(delivery);
        }
        let ScriptJob { run, out, told, mut attempt, .. } = *self;
        let _ = attempt.holding.set(&attempt.budget, (out.capacity() + told.bytes) as u64);
        let committed =
            Committed { run, reply: out, told, spent: Some(spent), share: attempt.holding.take() };
        scripts.house.post(desk.loop_id, crate::Letter::Deferred(Box::new(committed)));
        None
    }

    /// Ends it, as it was killed or its client has gone (C9).
    fn end_useless(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let scripts = self.scripts();
        if self.is_forsaken() && !self.is_killed() {
            scripts.orphans_ended.fetch_add(1, Ordering::Relaxed);
        }
        self.ended_by(&Halt::Killed.told(&scripts.config));
        work::attempt::deliver(self, desk)
    }
}

impl Scripts {
    /// Gives a script to a thread, which sends it back to its loop.
    fn submit(self: &Arc<Scripts>, job: Box<ScriptJob>) {
        let (weak, engines) = (Arc::downgrade(self), self.engines.clone());
        self.threads.submit(job, self.work.observe.crowd.rank(), move |taker| {
            let Some(code) = weak.upgrade().map(|scripts| scripts.code.clone()) else { return };
            let engine = engines.add(&code);
            let mut bench = Bench::default();
            while let Some(mut job) = taker.take() {
                let Some(scripts) = weak.upgrade() else { return };
                let mut station = engine.lock();
                let who = job.attempt.who;
                bench.begin(&mut job.attempt.spent);
                observe::waits::works_for(who.client);
                // A script changes only its own data (C1), and its engine.
                let run = || run_on_thread(&scripts, &mut station.lua, &mut bench, &mut job);
                if stdx::panics::contain(run).is_err() {
                    job.fail();
                    station.lua = LuaState::new(code.clone());
                }
                station.lua.tidy();
                station.count();
                bench.end(&mut job.attempt.spent, who.client, who.command);
                (scripts.work.post)(who.loop_id, Letter::Back(job));
                stdx::reclaim::flush();
                if station.lua.engine.has_garbage() {
                    let turn = scripts.work.turns.enter();
                    station.lua.collect(|| turn.check());
                    station.count();
                }
                drop(station);
                // A request that met the lock went on.
                while let Some(mut station) = engine.try_lock().filter(|station| !station.lua.has_heeded()) {
                    station.lua.tidy();
                    station.count();
                    stdx::reclaim::flush();
                }
            }
        });
    }
}
