//! One run of a script: the host it calls, and the data that its commands run on.

use super::reader::{Reader, load, load_chunk, touch};
use super::*;
use command::effects::{is_itself, passed};
use command::{Room, facts};
use observe::tally::Thresholds;

/// The data that a script's commands run on, and its way outside.
pub struct Ground<'a, 'o> {
    pub overlay: &'a mut Overlay,
    /// The loop it runs on. A thread asks its loop instead.
    pub outside: Option<&'a mut (dyn Outside + 'o)>,
    /// The run's part of the memory of work. `base` are the bytes that are neither the overlay's nor those of
    /// its messages.
    pub holding: &'a mut Holding,
    pub base: usize,
}

/// The time that a run may take, and the signs that end it.
#[derive(Clone, Copy, Default)]
pub struct Limit<'a> {
    /// Monotonic clock at which a loop wants to be free again. `None`: on a thread, or under all locks.
    pub(super) until_ns: Option<u64>,
    pub(super) kill: Option<&'a AtomicBool>,
    /// Set when no client waits for the answer any more.
    pub(super) gone: Option<&'a AtomicBool>,
    /// Set when others wait for its place.
    pub(super) gives_way: Option<&'a AtomicBool>,
    /// Monotonic clock at which `script-max-time` is over.
    pub(super) end_ns: Option<u64>,
}

impl<'a> Limit<'a> {
    /// The limit of a script on a loop, whose quantum begins now.
    pub fn on_loop() -> Limit<'a> {
        Limit { until_ns: Some(stdx::clock::mono_ns() + QUANTUM_NS), ..Limit::default() }
    }

    /// The limit of a script that has used so much time of a thread.
    pub(super) fn on_thread(
        config: &Config,
        entry: &'a Running,
        gone: Option<&'a AtomicBool>,
        used_ns: u64,
    ) -> Limit<'a> {
        let most_ns = (config.live.script_max_ms.get().max(0) as u64).saturating_mul(1_000_000);
        let end_ns = stdx::clock::mono_ns().saturating_add(most_ns.saturating_sub(used_ns));
        let end_ns = (most_ns > 0).then_some(end_ns);
        Limit { kill: Some(&entry.kill), gone, end_ns, ..Limit::default() }
    }

    /// Whether the run has to end.
    pub(super) fn ended(&self) -> Option<Halt> {
        let is_set = |flag: Option<&AtomicBool>| flag.is_some_and(|flag| flag.load(Ordering::Relaxed));
        if is_set(self.kill) || is_set(self.gone) {
            return Some(Halt::Killed);
        }
        if is_set(self.gives_way) {
            return Some(Halt::GivesWay);
        }
        let is_over = |at: Option<u64>| at.is_some_and(|at| stdx::clock::mono_ns() > at);
        if is_over(self.end_ns) {
            return Some(Halt::TooLong);
        }
        is_over(self.until_ns).then_some(Halt::Elsewhere)
    }

    /// Whether a script of a transaction is too long for a loop by itself. It began at `began_ns`, and was
    /// halted now.
    pub(super) fn is_its_own_fault(&self, began_ns: u64) -> bool {
        let now_ns = stdx::clock::mono_ns();
        self.until_ns.is_some_and(|until| now_ns <= until || now_ns - began_ns >= QUANTUM_NS / 2)
    }
}

/// Bytes of a script's line of the log that are kept, as in Redis.
const LOGGED: usize = 1024;
/// Size above which a reply's buffer is not kept for the next reply.
const REPLY_KEPT: usize = 64 << 10;
/// Bytes of a key in a list of the whole keyspace, about.
const LISTED: usize = 96;
/// Bytes of a deferred effect besides its own, about.
const KEPT: usize = 96;

/// The host of one run.
pub(super) struct Runner<'a, 'o> {
    pub(super) scripts: &'a Arc<Scripts>,
    ground: Ground<'a, 'o>,
    run: &'a ScriptRun,
    /// The client's user, as of the last call.
    user: acl::Identity,
    /// Whether Lua calls. Else the commands are those of a transaction.
    in_script: bool,
    pub(super) db: usize,
    pub(super) random: u64,
    /// The version of the protocol a transaction's commands answer in.
    pub(super) resp3: bool,
    args: OwnedArgs,
    pub(super) told: Told,
    pub(super) tally: Tally,
    ticker: Ticker,
    pub(super) halt: Option<Halt>,
    limit: Limit<'a>,
    /// On a thread: the reader of its keys (C5).
    reader: Option<&'a mut Reader>,
    reply: Reply,
    /// It has written something. From then on it may go on, however short memory is.
    wrote: bool,
    /// The errors that its commands answered, the first different ones.
    errors: Vec<Box<[u8]>>,
    /// EXEC: bytes of the messages and effects of earlier commands of the transaction.
    before: usize,
    /// Calls that monitors will see, and the bytes of their lines.
    shown: (usize, usize),
}

/// Calls of one script that monitors see, and bytes of lines above which they see no further one.
const SHOWN_MAX: usize = 1000;
const SHOWN_BYTES: usize = 64 << 10;

/// Memory for the words of a call that is used for the next one.
const KEPT_WORDS: usize = 256 << 10;
/// Size above which replies are handed over, not copied.
const COPIED: usize = 64 << 10;
/// Bytes of garbage for which a command waits for the reclaimer.
const GARBAGE: u64 = 16 << 10;
/// Sleep between two looks.
const LOOKS: std::time::Duration = std::time::Duration::from_millis(1);

/// Number of different errors that a script's own is compared with.
const ERRORS_MAX: usize = 8;

impl<'a, 'o> Runner<'a, 'o> {
    /// A runner that goes on with the tally of `lua`.
    pub(super) fn new(
        scripts: &'a Arc<Scripts>,
        lua: &mut LuaState,
        run: &'a ScriptRun,
        ground: Ground<'a, 'o>,
        limit: Limit<'a>,
        reader: Option<&'a mut Reader>,
    ) -> Runner<'a, 'o> {
        Runner {
            scripts,
            ground,
            run,
            user: run.user.clone(),
            in_script: true,
            db: run.db,
            random: run.random,
            resp3: run.resp3,
            args: OwnedArgs::new(),
            told: Told::default(),
            tally: std::mem::take(&mut lua.tally),
            ticker: Ticker::new(),
            halt: None,
            limit,
            reader,
            reply: Reply::new(run.resp3),
            wrote: false,
            errors: Vec::new(),
            before: 0,
            shown: (0, 0),
        }
    }

    /// Runs commands of a transaction from now on.
    pub(super) fn of_transaction(self, db: usize, random: u64, resp3: bool, before: usize) -> Runner<'a, 'o> {
        Runner { in_script: false, db, random, resp3, before, ..self }
    }

    /// Leaves a command of a transaction for after the commit. Its answer belongs at that place of the reply.
    pub(super) fn later(&mut self, command: &Command, args: resp::Args<'_>, index: usize, at: usize) {
        self.told.deferred.push(DeferredEffect::Act { at, index, db: self.db });
        if command.is(facts::SPEAKS) {
            self.resp3 = self.scripts.house.will_speak(args).unwrap_or(self.resp3);
        }
    }

    /// Runs a command of a transaction and appends its reply, which may be an error. False: the run has to
    /// end before it or in it.
    pub(super) fn queued(
        &mut self,
        command: &'static Command,
        args: resp::Args<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        if self.interrupt().is_some() {
            return false;
        }
        let began_ns = self.ticker.now_ns();
        let result = self.counted(command, args, self.resp3);
        let ns = self.ticker.now_ns() - began_ns;
        if let Err(error) = result {
            self.reply.clear();
            self.reply.error(&error.text());
        }
        self.tally.queued(command, args, ns, self.reply.len());
        self.reply.as_bytes().strip_prefix(b"-").into_iter().for_each(|text| self.tally.error(text));
        out.extend_from_slice(self.reply.as_bytes());
        if self.reply.capacity() > REPLY_KEPT {
            self.reply = Reply::new(self.resp3);
        }
        self.ground.base = self.before + out.capacity();
        self.halt.is_none()
    }

    /// Runs a command of a transaction that changes something beside the keys: `change` writes its reply, and
    /// returns the words to be told. Errors are replies. False: the run has to end before it.
    pub(super) fn changed(
        &mut self,
        command: &'static Command,
        args: resp::Args<'_>,
        out: &mut Vec<u8>,
        change: impl FnOnce(&mut Reply) -> Result<OwnedArgs, Error>,
    ) -> bool {
        if self.interrupt().is_some() {
            return false;
        }
        if self.limit.until_ns.is_some() {
            self.halt = Some(Halt::Elsewhere);
            return false;
        }
        let began_ns = self.ticker.now_ns();
        self.reply.clear();
        self.reply.set_resp3(self.resp3);
        match change(&mut self.reply) {
            Ok(words) if self.scripts.keyspace.listens() => {
                self.told.bytes += words.mem_bytes() + KEPT;
                self.told.effects.push((self.db as u32, words));
            }
            Ok(_) => {}
            Err(error) => self.reply.error(&error.text()),
        }
        let ns = self.ticker.now_ns() - began_ns;
        let error = self.reply.as_bytes().strip_prefix(b"-");
        self.tally.add(places::of(command), ns, error.is_some());
        error.into_iter().for_each(|text| self.tally.error(text));
        self.tally.queued(command, args, ns, self.reply.len());
        out.extend_from_slice(self.reply.as_bytes());
        self.ground.base = self.before + out.capacity();
        self.hold(0).is_ok()
    }

    /// A script's command answered an error: counts it.
    #[cold]
    fn note_error(&mut self) {
        let text = self.reply.as_bytes()[1..].trim_ascii_end();
        self.tally.error(text);
        if self.errors.len() < ERRORS_MAX && !self.errors.iter().any(|known| **known == *text) {
            self.errors.push(text.into());
        }
    }

    /// Counts an error that the script answered. It may be that of one of its commands, which was counted
    /// already and is not counted twice.
    #[cold]
    fn ended_in_error(&mut self, text: &[u8]) {
        if self.errors.iter().any(|known| text.starts_with(known)) {
            self.tally.passes_on(text);
        }
    }

    fn one(&mut self, args: &[&[u8]], resp3: bool) -> Result<(), Error> {
        self.args.clear();
        for arg in args {
            if !self.args.fits(arg.len()) {
                return Err(Error::new("ERR the words of one command are larger than 4 GB"));
            }
            self.args.push(arg);
        }
        let words = std::mem::take(&mut self.args);
        let result = self.checked(words.args(), resp3);
        if args.iter().map(|arg| arg.len()).sum::<usize>() <= KEPT_WORDS {
            self.args = words;
        }
        result
    }

    fn checked(&mut self, args: resp::Args<'_>, resp3: bool) -> Result<(), Error> {
        if self.halt.is_some() {
            return Err(Error::new("ERR the script is being run again elsewhere"));
        }
        let command = match resolve(args) {
            Ok(command) => command,
            Err(Error::Arity(_)) => {
                return Err(Error::new("ERR Wrong number of args calling Redis command from script"));
            }
            Err(_) => return Err(Error::new("ERR Unknown Redis command called from script")),
        };
        if command.has(table::NOSCRIPT) {
            return Err(Error::new("ERR This Redis command is not allowed from script"));
        }
        if self.scripts.keyspace.follows() && !command.has(table::STALE) && self.scripts.house.is_stale() {
            return Err(Error::new("ERR Can not execute the command on a stale replica"));
        }
        if !self.user.is_free(&self.scripts.acl) {
            self.allowed(command, args)?;
        }
        if self.run.read_only && (command.is_write() || command.may_replicate()) {
            return Err(Error::new("ERR Write commands are not allowed from read-only scripts."));
        }
        if self.run.short && !self.wrote && command.has(table::DENYOOM) {
            return Err(Error::new(command::OOM));
        }
        if self.in_script && self.scripts.config.live.cluster_enabled.get() {
            self.scripts.house.may_touch(self.run.client, command, args)?;
        }
        if command.is_write() && !self.wrote {
            self.scripts.house.may_write(self.run.client)?;
            self.wrote = true;
        }
        self.counted(command, args, resp3)
    }

    /// Whether a loop has no time to compare the words of a call with all patterns of the user. O(1)
    fn is_long_to_judge(&self, args: resp::Args<'_>) -> bool {
        self.limit.until_ns.is_some() && !acl::Asking::is_short(self.user.user(), args)
    }

    /// Whether the user may make a call (a user's change takes effect at the next call). Errors: it may not;
    /// the script runs again on a thread, because a loop has no time to judge.
    #[cold]
    fn allowed(&mut self, command: &'static Command, args: resp::Args<'_>) -> Result<(), Error> {
        if self.is_long_to_judge(args) {
            return Err(self.elsewhere());
        }
        let Err(denied) = self.judged(command, args) else { return Ok(()) };
        let user = self.user.user();
        self.scripts.house.denied(self.run.client, user, (command, args), denied);
        Err(Error::from(match denied {
            acl::Denied::By | acl::Denied::Get => format!("ERR {}", denied.text(user, command)),
            denied => format!("ERR ACL failure in script: {}", denied.text(user, command)),
        }))
    }

    fn judged(&mut self, command: &'static Command, args: resp::Args<'_>) -> Result<(), acl::Denied> {
        if !self.user.refresh(&self.scripts.acl, true) {
            return Err(acl::Denied::Command);
        }
        let databases = self.scripts.keyspace.databases();
        self.user.user().may(acl::Call { command, args, db: self.db, databases })
    }

    /// Notes a call for monitors, who see it with the commit: a run that is repeated is shown once.
    #[cold]
    fn show(&mut self, command: &'static Command, args: resp::Args<'_>) {
        let (calls, bytes) = self.shown;
        if calls >= SHOWN_MAX || bytes > SHOWN_BYTES || command.has(table::ADMIN) {
            return;
        }
        let secret = |at: usize| observe::calls::is_secret(command, args, at);
        let words = (0..args.len()).map(|at| if secret(at) { &b"(redacted)"[..] } else { args.at(at) });
        let line = pubsub::monitor::line(stdx::clock::wall_ns() / 1000, self.db, "lua", words);
        self.shown = (calls + 1, bytes + line.len());
        self.told.bytes += line.len();
        self.told.deferred.push(DeferredEffect::Show(line));
    }

    /// Runs a command and counts it.
    fn counted(&mut self, command: &'static Command, args: resp::Args<'_>, resp3: bool) -> Result<(), Error> {
        if self.scripts.pubsub.is_monitored() && self.in_script {
            self.show(command, args);
        }
        self.reply.clear();
        self.reply.set_resp3(resp3);
        let began_ns = self.ticker.now_ns();
        let full = stdx::reclaim::is_full();
        let before = if full { stdx::reclaim::deferred() } else { 0 };
        let result = self.perform(command, args);
        if full && stdx::reclaim::deferred() - before >= GARBAGE {
            self.wait_for_reclaimer();
        }
        let failed = result.is_err() || self.reply.as_bytes().first() == Some(&b'-');
        self.tally.add(places::of(command), self.ticker.now_ns() - began_ns, failed);
        result
    }

    /// Waits, as a client would, if too much waits to be freed and this run added to it.
    #[cold]
    fn wait_for_reclaimer(&self) {
        let Some(reader) = &self.reader else { return };
        stdx::reclaim::flush();
        let began_ns = stdx::clock::mono_ns();
        while stdx::reclaim::is_full() && self.limit.ended().is_none() {
            reader.turn.aside(|| std::thread::sleep(LOOKS));
        }
        reader.waited_ns.set(reader.waited_ns.get() + stdx::clock::mono_ns() - began_ns);
    }

    fn perform(&mut self, command: &'static Command, args: resp::Args<'_>) -> Result<(), Error> {
        match command.run {
            Run::Read(handler) | Run::Write(handler) | Run::Whole(handler) => {
                self.keyed(command, handler, args)
            }
            Run::Exec => self.action(command, args),
            Run::Container => Err(Error::new("ERR Unknown Redis command called from script")),
        }
    }

    fn keyed(
        &mut self,
        command: &'static Command,
        handler: command::Handler,
        args: resp::Args<'_>,
    ) -> Result<(), Error> {
        if self.run.reads {
            self.told.bytes += self.told.reads.note(command, args);
        }
        if !self.scripts.may_have_rows() {
            return self.in_own_db(command, handler, args);
        }
        self.in_some_db(command, handler, args)
    }

    /// The same where some keys are rows of a database.
    #[cold]
    fn in_some_db(
        &mut self,
        command: &'static Command,
        handler: command::Handler,
        args: resp::Args<'_>,
    ) -> Result<(), Error> {
        let Some(rows) = self.scripts.house.rows_of(self.db, command, args)? else {
            return self.in_own_db(command, handler, args);
        };
        self.look_for_rows(&*rows, command, args)?;
        self.db = rows.dbs()[0];
        let result = self.in_own_db(command, handler, args);
        self.db = 0;
        result
    }

    /// Looks for the rows that a call names. A script cannot wait for the database, so they were loaded
    /// before it began.
    #[cold]
    fn look_for_rows(
        &mut self,
        rows: &dyn Rows,
        command: &Command,
        args: resp::Args<'_>,
    ) -> Result<(), Error> {
        let mut keys = Vec::new();
        command.each_key(args, &mut |i, _| keys.push(args.at(i)));
        let dbs = rows.dbs();
        let overlay = &mut *self.ground.overlay;
        let wanted = keys.iter().flat_map(|key| dbs.map(|db| (db, *key)));
        let unknown: Vec<_> = wanted.filter(|(db, key)| !overlay.knows(*db, key)).collect();
        let unknown: Vec<_> = unknown.into_iter().map(|(db, key)| (db, Box::from(key))).collect();
        if !unknown.is_empty() {
            load(overlay, unknown, &mut self.reader);
            self.hold(0)?;
        }
        let overlay = &mut *self.ground.overlay;
        let mut view = View::overlay(&self.scripts.keyspace, overlay, dbs[0], self.run.now_ms);
        let missing = keys.iter().find(|key| !rows.is_known(&mut view, key));
        view.finish();
        let Some(missing) = missing else { return Ok(()) };
        if !self.in_script || self.run.keys().iter().any(|key| key == *missing) {
            return Err(rows.removed_before(missing));
        }
        let name = rows.name();
        Err(format!("ERR a row of source '{name}' that is not cached must be among the script's KEYS").into())
    }

    fn in_own_db(
        &mut self,
        command: &'static Command,
        handler: command::Handler,
        args: resp::Args<'_>,
    ) -> Result<(), Error> {
        let unknown = self.unknown(command, args);
        if !unknown.is_empty() {
            load(self.ground.overlay, unknown, &mut self.reader);
            self.hold(0)?;
        }
        loop {
            let (result, effects, random) = self.once(command, handler, args)?;
            if self.fetch_missing()? {
                self.reply.clear();
                continue;
            }
            if self.run.look.used_ms.is_none() && command.is(facts::TOUCHES) {
                self.touch(command, args);
            }
            if let Some(effects) = effects.filter(|_| self.db < self.scripts.keyspace.databases()) {
                let gone = passed(self.ground.overlay, self.scripts.keyspace.databases());
                note_effects(&mut self.told, (self.db, gone), command, args, effects);
            }
            // A run that is repeated must choose the same.
            self.random = random;
            self.hold(0)?;
            return result;
        }
    }

    /// Counts the keys of TOUCH as used, for a client whose other commands do not (CLIENT NO-TOUCH).
    #[cold]
    fn touch(&mut self, command: &'static Command, args: resp::Args<'_>) {
        let (overlay, mut keys) = (&*self.ground.overlay, Vec::new());
        let db = overlay.physical(self.db);
        command.each_key(args, &mut |i, _| keys.push((db, Box::from(args.at(i)))));
        touch(overlay, keys, self.run.now_ms, &mut self.reader);
    }

    /// The keys a command looks at that are not in the overlay yet.
    fn unknown(&self, command: &'static Command, args: resp::Args<'_>) -> Vec<(usize, Box<[u8]>)> {
        let overlay = &*self.ground.overlay;
        let (db, mut unknown) = (overlay.physical(self.db), Vec::new());
        // A plain SET does not look at the value that it replaces.
        if !command.is_plain_set(args) {
            command.each_key(args, &mut |i, _| {
                if !overlay.knows(db, args.at(i)) {
                    unknown.push((db, Box::from(args.at(i))));
                }
            });
        }
        // The key must be known before the command runs. A second run over the changed overlay would find its
        // own change.
        if let Some((db, key)) = command::keys::target(self.scripts.keyspace.databases(), command, args) {
            let db = overlay.physical(db);
            if !overlay.knows(db, key) {
                unknown.push((db, key.into()));
            }
        }
        unknown
    }

    /// Runs a command over the overlay. Returns how it ended, the effects of a write, and the next random
    /// number. Errors: a loop has no time for it.
    #[allow(clippy::type_complexity, reason = "it is used once")]
    #[inline]
    fn once(
        &mut self,
        command: &'static Command,
        handler: command::Handler,
        args: resp::Args<'_>,
    ) -> Result<(Result<(), Error>, Option<Vec<OwnedArgs>>, u64), Error> {
        let base = self.held();
        let overlay = &mut *self.ground.overlay;
        let mut view = View::overlay(&self.scripts.keyspace, overlay, self.db, self.run.now_ms);
        if self.limit.until_ns.is_some() && command.steps(&view, args) > INLINE_STEPS {
            drop(view);
            return Err(self.elsewhere());
        }
        let turn = self.reader.as_deref().map(|reader| &reader.turn);
        // On a loop a command that answers or looks at very much is dropped, and the script with it.
        let budget = match self.limit.until_ns {
            Some(ns) => Budget::steps(4 * INLINE_STEPS).until(ns),
            None => budget(self.limit.kill).in_turns(turn),
        };
        let room = Room::new(&self.run.budget, self.ground.holding, base);
        let budget = budget.within(room, 0);
        let in_replay = self.run.look.shows_expired && self.scripts.keyspace.follows();
        let caller =
            Caller { in_script: self.in_script, client_id: self.run.client, in_replay, ..Caller::default() };
        let mut cx = Cx::new(&mut view, &mut self.reply, caller, budget, self.random);
        let result = handler(&mut cx, args);
        let random = cx.random();
        let effects = std::mem::take(&mut cx.effects);
        let heard = view.listens();
        let dirty = view.finish().dirty > 0;
        if result == Err(Error::Budget) {
            return Err(self.elsewhere());
        }
        let effects = (dirty && heard).then_some(effects);
        Ok((result, effects, random))
    }

    /// Notes that the script has to run again on a thread, as a loop has no time for it.
    fn elsewhere(&mut self) -> Error {
        self.halt = Some(Halt::Elsewhere);
        Error::new("ERR the script is being run again elsewhere")
    }

    /// Fetches the keys that a handler asked for in vain. True: it has to run again.
    fn fetch_missing(&mut self) -> Result<bool, Error> {
        let overlay = &mut *self.ground.overlay;
        if let Some(part) = overlay.take_wanted_chunk() {
            self.hold(part.2.min(self.scripts.keyspace.len(part.0)) * LISTED)?;
            if !load_chunk(&self.scripts.keyspace, self.ground.overlay, part, &mut self.reader) {
                return Err(self.elsewhere());
            }
            self.hold(0)?;
            return Ok(true);
        }
        if overlay.has_missing() {
            let missing = overlay.take_missing();
            let missing = missing.names().map(|(db, key)| (db, key.into())).collect();
            load(overlay, missing, &mut self.reader);
            self.hold(0)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Bytes that it holds, except for the reply that it is making. O(1).
    fn held(&mut self) -> usize {
        self.ground.overlay.bytes() + self.ground.base + self.told.bytes
    }

    /// Takes memory for its current bytes and so many more. Errors: the budget has no room. Then the run is
    /// over, whatever the script does with the error.
    fn hold(&mut self, more: usize) -> Result<(), Error> {
        let bytes = self.held() + self.reply.capacity() + more;
        self.ground.holding.set(&self.run.budget, bytes as u64).map_err(|_| {
            self.halt = Some(Halt::Full);
            Error::work_memory()
        })
    }

    /// Takes memory for so many bytes of messages or effects. Errors: the script may not have so much.
    fn keep(&mut self, bytes: usize) -> Result<(), Error> {
        self.told.bytes += bytes + KEPT;
        self.hold(0)?;
        match self.scripts.config.live.lua_memory_bytes.size() {
            0 => Ok(()),
            limit if self.told.bytes <= limit => Ok(()),
            _ => Err(Error::new("ERR not enough memory for what the script publishes")),
        }
    }

    fn action(&mut self, command: &'static Command, args: resp::Args<'_>) -> Result<(), Error> {
        match command.name {
            "publish" | "spublish" => {
                let shard = !command.is(facts::PASSES_PATTERNS);
                let scripts = self.scripts;
                let sent = scripts.pubsub.matching(shard, args.at(1), &mut || self.interrupt().is_none());
                let Some(sent) = sent else {
                    return Err(Error::new("ERR the script is being run again elsewhere"));
                };
                if sent > 0 || scripts.keyspace.listens() {
                    self.keep(args.at(1).len() + args.at(2).len())?;
                    self.told.deferred.push(DeferredEffect::Publish(
                        shard,
                        args.at(1).to_vec(),
                        args.at(2).to_vec(),
                    ));
                }
                self.reply.int(sent as i64);
                return Ok(());
            }
            "select" => {
                self.db = command::keys::database(self.scripts.keyspace.databases(), args.at(1))?;
                self.reply.ok();
                return Ok(());
            }
            // EXEC forgets the watched keys anyway.
            "unwatch" => {
                self.reply.ok();
                return Ok(());
            }
            "time" if self.in_script => {
                self.reply.array(2);
                self.reply.bulk((self.run.now_ms / 1000).to_string().as_bytes());
                self.reply.bulk((self.run.now_ms % 1000 * 1000).to_string().as_bytes());
                return Ok(());
            }
            _ => {}
        }
        if self.limit.until_ns.is_some() && command.is(facts::SLOW_ACTION) {
            // A loop does not wait for an answer that is collected elsewhere; a script's thread does.
            return Err(self.elsewhere());
        }
        match &mut self.ground.outside {
            Some(outside) => outside.perform(command, args, self.in_script, &mut self.reply),
            None => self.have_performed(args),
        }
    }

    /// Makes the client's loop perform an action, for a thread has neither the client nor the loop's
    /// counters. It happens before the commit. No action that a script may call this way changes keys.
    fn have_performed(&mut self, args: resp::Args<'_>) -> Result<(), Error> {
        let Some(reader) = &self.reader else { return Err(Error::new("ERR nobody can perform this")) };
        match reader.have_performed(self.run.client, args, self.reply.resp3()) {
            Some(bytes) => {
                self.reply.encoded(&bytes);
                Ok(())
            }
            None => Err(Error::new("ERR the server is ending")),
        }
    }
}

fn budget(kill: Option<&AtomicBool>) -> Budget<'_> {
    Budget::unlimited(kill)
}

/// Keeps the effects for the sink, behind those that tell which keys are `gone`.
fn note_effects(
    told: &mut Told,
    (db, gone): (usize, impl Iterator<Item = (u32, OwnedArgs)>),
    command: &Command,
    args: resp::Args<'_>,
    effects: Vec<OwnedArgs>,
) {
    let bytes = |args: resp::Args<'_>| args.iter().map(|word| word.len() + size_of::<usize>()).sum::<usize>();
    let bytes = effects.iter().map(|effect| bytes(effect.args())).sum::<usize>().max(bytes(args));
    told.bytes += bytes + KEPT;
    for (db, words) in gone {
        told.bytes += words.mem_bytes() + KEPT;
        told.effects.push((db, words));
    }
    match is_itself(command, effects.len(), false) {
        true => {
            told.effects.push((db as u32, args.to_owned()));
        }
        false => told.effects.extend(effects.into_iter().map(|effect| (db as u32, effect))),
    }
}

impl Host for Runner<'_, '_> {
    fn call(&mut self, args: &[&[u8]], resp3: bool, out: &mut Vec<u8>) {
        if let Err(error) = self.one(args, resp3) {
            self.reply.clear();
            self.reply.error(&error.text());
        }
        if self.reply.as_bytes().first() == Some(&b'-') {
            self.note_error();
        }
        if out.is_empty() && self.reply.len() > COPIED {
            self.reply.swap(out);
        } else {
            out.extend_from_slice(self.reply.as_bytes());
        }
        if self.reply.capacity() > REPLY_KEPT {
            self.reply = Reply::new(self.reply.resp3());
        }
    }

    fn log(&mut self, level: i32, message: &[u8]) {
        let message = &message[..message.len().min(LOGGED)];
        if log_level(level) <= log::max_level() && self.keep(message.len()).is_ok() {
            self.told.deferred.push(DeferredEffect::Log(level, message.to_vec()));
        }
    }

    /// A loop has no time to copy or compress so much.
    fn heavy(&mut self, _: usize) -> Option<Stop> {
        if self.halt.is_none() && self.limit.until_ns.is_some() {
            self.halt = Some(Halt::Elsewhere);
        }
        self.interrupt()
    }

    fn acl_check(&mut self, args: &[&[u8]]) -> Result<bool, String> {
        let words = OwnedArgs::from_slices(args);
        let command = resolve(words.args())
            .map_err(|_| "ERR Invalid command passed to redis.acl_check_cmd()".to_owned())?;
        if self.is_long_to_judge(words.args()) {
            return Err(self.elsewhere().text().to_string());
        }
        Ok(self.judged(command, words.args()).is_ok())
    }

    fn interrupt(&mut self) -> Option<Stop> {
        if let Some(reader) = &self.reader {
            reader.turn.reach(Point::ScriptStep);
            reader.turn.check();
        }
        if self.halt.is_some() {
            return Some(Stop::Elsewhere);
        }
        self.halt = self.limit.ended();
        self.halt.map(Halt::stop)
    }
}

/// Runs a script or a transaction once. `out` gets the reply, `lua.tally` the commands it ran.
pub fn run_once<'a, 'o>(
    scripts: &'a Arc<Scripts>,
    lua: &mut LuaState,
    run: &'a ScriptRun,
    ground: Ground<'a, 'o>,
    limit: Limit<'a>,
    reader: Option<&'a mut Reader>,
    out: &mut Vec<u8>,
) -> (Result<(), Halt>, Told) {
    lua.tally.clear();
    lua.tally.notes_from(Thresholds::of(&scripts.config.live, &scripts.work.observe.stats.hotkeys));
    match &run.body {
        Body::Exec(transaction) => transaction.run(scripts, lua, run, ground, limit, reader, out),
        _ => run_script(scripts, lua, run, ground, limit, reader, out),
    }
}

/// Runs a script, and adds its commands to `lua.tally`.
pub(super) fn run_script<'a, 'o>(
    scripts: &'a Arc<Scripts>,
    lua: &mut LuaState,
    run: &'a ScriptRun,
    ground: Ground<'a, 'o>,
    limit: Limit<'a>,
    reader: Option<&'a mut Reader>,
    out: &mut Vec<u8>,
) -> (Result<(), Halt>, Told) {
    lua.engine.limit_memory(scripts.config.live.lua_memory_bytes.size());
    let mut host = Runner::new(scripts, lua, run, ground, limit, reader);
    lua.heed();
    if let Body::Function(name) = &run.body {
        lua.sync(name, &mut host);
    }
    let mark = out.len();
    let keys: Vec<&[u8]> = run.keys().iter().collect();
    let args: Vec<&[u8]> = run.args().iter().collect();
    let ended = match &run.body {
        Body::Script(sha, kept) => {
            // It compiled before it came here.
            let _ = lua.take(*sha, kept, &mut host);
            lua.engine.run(sha, &keys, &args, &mut host, out, run.resp3)
        }
        Body::Function(_) if host.halt.is_some() => Ok(()),
        Body::Function(name) => match lua.functions.get(name) {
            Some(f) => lua.engine.call_function(f.callback, name, &keys, &args, &mut host, out, run.resp3),
            None => {
                out.extend_from_slice(b"-ERR Function not found\r\n");
                Ok(())
            }
        },
        // A transaction is never in another, and a text has been compiled by now.
        Body::Exec(_) | Body::Text(_) => Ok(()),
    };
    let halt = host.halt.or(match ended {
        Ok(()) => None,
        Err(Stop::Elsewhere) => Some(Halt::Elsewhere),
        Err(Stop::Killed) => Some(Halt::Killed),
        Err(Stop::Deadline) => Some(Halt::TooLong),
    });
    if let Some(text) = out[mark..].strip_prefix(b"-") {
        host.ended_in_error(text);
    }
    let told = std::mem::take(&mut host.told);
    lua.tally = host.tally;
    (halt.map_or(Ok(()), Err), told)
}
