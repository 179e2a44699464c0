//! One run of a script: the host it calls, the ground its commands run on, and who reads keys for it.

use super::*;

/// What a script's commands run on.
pub(super) enum Ground<'a, 'b, 'k> {
    Overlay(&'a mut Overlay),
    Whole(&'a mut View<'k>, Option<&'a mut Act<'b, 'k>>),
}

/// The host of one run.
struct Runner<'a, 'b, 'k> {
    server: &'a Arc<Server>,
    ground: Ground<'a, 'b, 'k>,
    run: &'a ScriptRun,
    db: usize,
    random: u64,
    args: OwnedArgs,
    told: Told,
    halt: Option<Halt>,
    /// Monotonic clock at which a loop wants to be free again; None on a thread or under all locks.
    until_ns: Option<u64>,
    kill: Option<&'a AtomicBool>,
    /// On a thread: who reads keys for it (C5).
    reader: Option<&'a mut Reader>,
    reply: Reply,
}

impl Runner<'_, '_, '_> {
    fn one(&mut self, args: &[&[u8]], resp3: bool) -> Result<(), Error> {
        self.args.clear();
        args.iter().for_each(|arg| self.args.push(arg));
        let words = std::mem::take(&mut self.args);
        let result = self.checked(words.args(), resp3);
        self.args = words;
        result
    }

    fn checked(&mut self, args: resp::Args<'_>, resp3: bool) -> Result<(), Error> {
        if self.halt.is_some() {
            return Err(Error::new("ERR the script is being run again elsewhere"));
        }
        let command = match call::resolve(args) {
            Ok(command) => command,
            Err(Error::Arity(_)) => {
                return Err(Error::new("ERR Wrong number of args calling Redis command from script"));
            }
            Err(_) => return Err(Error::new("ERR Unknown Redis command called from script")),
        };
        if command.has(table::NOSCRIPT) {
            return Err(Error::new("ERR This Redis command is not allowed from script"));
        }
        if self.run.read_only && (command.is_write() || command.may_replicate()) {
            return Err(Error::new("ERR Write commands are not allowed from read-only scripts."));
        }
        self.reply.clear();
        self.reply.set_resp3(resp3);
        match command.run {
            Run::Read(handler) | Run::Write(handler) => self.keyed(command, handler, args),
            Run::Whole(handler) => self.whole(command, handler, args),
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
        let Ground::Overlay(overlay) = &mut self.ground else { return self.whole(command, handler, args) };
        let mut keys = Vec::new();
        // A plain SET does not look at what it replaces.
        if command.name != "set" || args.len() > 3 {
            command.each_key(args, &mut |i, _| keys.push((self.db, Box::from(args.at(i)))));
        }
        load(overlay, keys, &mut self.reader);
        loop {
            let mut view = View::overlay(&self.server.keyspace, overlay, self.db, self.run.now_ms);
            if self.until_ns.is_some() && command.cost.is_some_and(|cost| cost(&view, args) > INLINE_STEPS) {
                self.halt = Some(Halt::Elsewhere);
                return Err(Error::new("ERR the script is being run again elsewhere"));
            }
            let turn = self.reader.as_deref().map(|reader| &reader.turn);
            let budget = budget(self.kill).in_turns(turn);
            let mut cx = Cx::new(&mut view, &mut self.reply, caller(self.run.client), budget, self.random);
            let result = handler(&mut cx, args);
            // A run that is repeated must choose the same.
            let random = cx.random();
            let effects = std::mem::take(&mut cx.effects);
            let dirty = view.finish().dirty > 0;
            if overlay.wants_whole() {
                self.halt = Some(Halt::Whole);
                return Err(Error::new("ERR the script is being run again elsewhere"));
            }
            if let Some(part) = overlay.take_wanted_chunk() {
                if !load_chunk(self.server, overlay, part, &mut self.reader) {
                    self.halt = Some(Halt::Elsewhere);
                    return Err(Error::new("ERR the script is being run again elsewhere"));
                }
                self.reply.clear();
                continue;
            }
            if overlay.has_missing() {
                let missing = overlay.take_missing();
                load(overlay, missing, &mut self.reader);
                self.reply.clear();
                continue;
            }
            if dirty && self.server.keyspace.sink().is_some() {
                note_effects(&mut self.told, command, args, effects);
            }
            self.random = random;
            return result;
        }
    }

    /// Runs a command on the whole view; over an overlay the script has to be run again that way.
    fn whole(
        &mut self,
        command: &'static Command,
        handler: command::Handler,
        args: resp::Args<'_>,
    ) -> Result<(), Error> {
        if let (Ground::Overlay(_), "keys" | "scan" | "randomkey" | "dbsize" | "flushdb" | "flushall") =
            (&self.ground, command.name)
        {
            // What others add or remove meanwhile is not seen, and no conflict (overlay.rs O5).
            return self.keyed(command, handler, args);
        }
        let Ground::Whole(view, _) = &mut self.ground else {
            self.halt = Some(Halt::Whole);
            return Err(Error::new("ERR the script is being run again elsewhere"));
        };
        view.select(self.db);
        let mut cx = Cx::new(view, &mut self.reply, caller(self.run.client), budget(self.kill), self.random);
        let result = handler(&mut cx, args);
        self.random = cx.random();
        let effects = std::mem::take(&mut cx.effects);
        if self.server.keyspace.sink().is_some() && command.is_write() {
            note_effects(&mut self.told, command, args, effects);
        }
        result
    }

    fn action(&mut self, command: &'static Command, args: resp::Args<'_>) -> Result<(), Error> {
        match command.name {
            "publish" | "spublish" => {
                let shard = command.name == "spublish";
                let sent = self.server.pubsub.matching(shard, args.at(1));
                self.told.published.push((shard, args.at(1).to_vec(), args.at(2).to_vec()));
                self.reply.int(sent as i64);
                return Ok(());
            }
            "select" => {
                let db = command::options::int(args.at(1)).map_err(|_| Error::new("ERR invalid DB index"))?;
                if db < 0 || db as usize >= self.server.keyspace.databases() {
                    return Err(Error::new("ERR DB index is out of range"));
                }
                self.db = db as usize;
                self.reply.ok();
                return Ok(());
            }
            "time" => {
                self.reply.array(2);
                self.reply.bulk((self.run.now_ms / 1000).to_string().as_bytes());
                self.reply.bulk((self.run.now_ms % 1000 * 1000).to_string().as_bytes());
                return Ok(());
            }
            _ => {}
        }
        let Ground::Whole(view, Some(act)) = &mut self.ground else {
            self.halt = Some(Halt::Whole);
            return Err(Error::new("ERR the script is being run again elsewhere"));
        };
        let mut inner = Act {
            server: act.server,
            local: act.local,
            session: act.session,
            out: &mut self.reply,
            view: Some(view),
            in_script: true,
            in_multi: true,
        };
        crate::actions::perform(&mut inner, command, args).map(|_| ())
    }
}

/// Loads keys into an overlay: directly on a loop, by way of one from a script's thread (C5).
fn load(overlay: &mut Overlay, keys: Vec<(usize, Box<[u8]>)>, reader: &mut Option<&mut Reader>) {
    match reader {
        Some(reader) => drop(reader.load(overlay, keys)),
        None => keys.iter().for_each(|(db, key)| overlay.load(*db, [&**key])),
    }
}

/// Fetches a part of the whole. On a loop only a small one: a script that wants more goes to a thread.
fn load_chunk(
    server: &Server,
    overlay: &mut Overlay,
    part: (usize, u64, usize),
    reader: &mut Option<&mut Reader>,
) -> bool {
    if let Some(reader) = reader {
        return reader.load_chunk(overlay, part);
    }
    let (db, position, want) = part;
    let mut chunk = Chunk::default();
    let small = server.keyspace.len(db) <= SMALL_WHOLE;
    if small {
        while !server.keyspace.extend_chunk(overlay.snapshot().lsn(), db, position, want, &mut chunk) {}
        overlay.insert_chunk(db, position, chunk);
    }
    small
}

fn caller(client_id: u64) -> Caller {
    Caller { in_script: true, client_id, ..Caller::default() }
}

fn budget(kill: Option<&AtomicBool>) -> Budget<'_> {
    Budget::unlimited(kill)
}

fn note_effects(told: &mut Told, command: &Command, args: resp::Args<'_>, effects: Vec<OwnedArgs>) {
    match command.effect {
        command::Effect::Itself => told.effects.push(args.to_owned()),
        command::Effect::Noted => told.effects.extend(effects),
    }
}

/// A script's thread and the loop that reads keys for it (C5).
pub(crate) struct Reader {
    server: Arc<Server>,
    loop_id: usize,
    answer: Arc<Answer>,
    asked: u32,
    /// Nanoseconds spent waiting for its loop.
    pub(super) waited_ns: Cell<u64>,
    /// The thread's turn; given back while it waits for the loop.
    pub(super) turn: Turn,
}

impl Reader {
    pub(super) fn new(server: &Arc<Server>, loop_id: usize) -> Reader {
        Reader {
            server: server.clone(),
            loop_id,
            answer: Arc::default(),
            asked: 0,
            waited_ns: Cell::new(0),
            turn: server.turns.enter(),
        }
    }

    /// Keys to be read around one that is asked for. A round trip costs as much as reading some 50 keys along with the one:
    /// a script that has asked for a fair share of all keys is given their neighbours too, so that it soon has them all.
    fn near(&self, keys: usize) -> usize {
        if self.asked as usize >= 8 + keys / (2 * NEAR) { NEAR } else { 0 }
    }

    fn request(&self, overlay: &Overlay, keys: Vec<(usize, Box<[u8]>)>) -> ReadKeys {
        ReadKeys {
            lsn: overlay.snapshot().lsn(),
            found: Vec::with_capacity(keys.len()),
            keys,
            near: 0,
            around: Around::default(),
            part: None,
            chunk: Chunk::default(),
            reply: self.answer.clone(),
        }
    }

    /// Asks the loop and waits; None if the process is ending.
    fn ask(&self, request: ReadKeys) -> Option<Box<ReadKeys>> {
        let asked_ns = stdx::clock::mono_ns();
        self.server.send(self.loop_id, Mail::Read(Box::new(request)));
        let read = self.turn.aside(|| {
            loop {
                match self.answer.wait() {
                    Some(read) => break Some(read),
                    None if self.server.is_shutting_down() => break None,
                    None => {}
                }
            }
        });
        self.waited_ns.set(self.waited_ns.get() + stdx::clock::mono_ns() - asked_ns);
        read
    }

    /// Fetches a part of the whole that a handler asked for; false if there is none to be had.
    fn load_chunk(&self, overlay: &mut Overlay, part: (usize, u64, usize)) -> bool {
        let request = ReadKeys { part: Some(part), ..self.request(overlay, Vec::new()) };
        let Some(read) = self.ask(request) else { return false };
        overlay.insert_chunk(part.0, part.1, read.chunk);
        true
    }

    /// Loads keys; false if the loop does not answer, which it only does when the process ends.
    pub(super) fn load(&mut self, overlay: &mut Overlay, keys: Vec<(usize, Box<[u8]>)>) -> bool {
        let mut keys = keys;
        keys.retain(|(db, key)| !overlay.knows(*db, key) && !overlay.adopt(*db, key));
        let Some((db, first)) = keys.first().map(|(db, key)| (*db, hash_bytes(key))) else { return true };
        let near = self.near(self.server.keyspace.len(db));
        self.asked += 1;
        let Some(read) = self.ask(ReadKeys { near, ..self.request(overlay, keys) }) else { return false };
        let ReadKeys { keys, found, around, .. } = *read;
        for ((db, key), base) in keys.iter().zip(found) {
            overlay.insert(*db, hash_bytes(key), key, base);
        }
        if around.to > first {
            let rest = around.keys.into_iter().filter(|(_, key, _)| !overlay.knows(db, key)).collect();
            overlay.insert_near(db, first, around.to, rest);
        }
        true
    }
}

impl Host for Runner<'_, '_, '_> {
    fn call(&mut self, args: &[&[u8]], resp3: bool, out: &mut Vec<u8>) {
        if let Err(error) = self.one(args, resp3) {
            self.reply.clear();
            self.reply.error(&error.text());
        }
        out.extend_from_slice(self.reply.as_bytes());
    }

    fn log(&mut self, level: i32, message: &[u8]) {
        self.told.logged.push((level, message.to_vec()));
    }

    fn acl_check(&mut self, args: &[&[u8]]) -> Result<bool, String> {
        let words = OwnedArgs::from_slices(args);
        call::resolve(words.args())
            .map(|_| true)
            .map_err(|_| "ERR Invalid command passed to redis.acl_check_cmd()".into())
    }

    fn interrupt(&mut self) -> Option<Stop> {
        if let Some(reader) = &self.reader {
            reader.turn.reach(Point::ScriptStep);
            reader.turn.check();
        }
        if self.halt.is_some() {
            return Some(Stop::Elsewhere);
        }
        if self.kill.is_some_and(|kill| kill.load(Ordering::Relaxed)) {
            self.halt = Some(Halt::Killed);
            return Some(Stop::Killed);
        }
        if self.until_ns.is_some_and(|until| stdx::clock::mono_ns() > until) {
            self.halt = Some(Halt::Elsewhere);
            return Some(Stop::Elsewhere);
        }
        None
    }
}

/// Runs a script once on some ground. `out` gets the reply.
#[allow(clippy::too_many_arguments)]
pub(super) fn run_once<'a, 'b, 'k>(
    server: &'a Arc<Server>,
    lua: &mut LuaState,
    run: &'a ScriptRun,
    ground: Ground<'a, 'b, 'k>,
    until_ns: Option<u64>,
    kill: Option<&'a AtomicBool>,
    reader: Option<&'a mut Reader>,
    out: &mut Vec<u8>,
) -> (Result<(), Halt>, Told) {
    lua.sync(&server.scripts);
    lua.engine.limit_memory(server.config.live.lua_memory_bytes.size());
    let mut host = Runner {
        server,
        ground,
        run,
        db: run.db,
        random: run.random,
        args: OwnedArgs::new(),
        told: Told::default(),
        halt: None,
        until_ns,
        kill,
        reader,
        reply: Reply::new(false),
    };
    let keys: Vec<&[u8]> = run.keys.args().iter().collect();
    let args: Vec<&[u8]> = run.args.args().iter().collect();
    let ended = match &run.body {
        Body::Script(sha, body) => {
            if !lua.engine.has(sha) {
                // It compiled before it came here.
                let _ = lua.engine.load(body);
            }
            lua.engine.run(sha, &keys, &args, &mut host, out, run.resp3)
        }
        Body::Function(name) => match lua.functions.get(name) {
            Some(f) => lua.engine.call_function(f.callback, name, &keys, &args, &mut host, out, run.resp3),
            None => {
                out.extend_from_slice(b"-ERR Function not found\r\n");
                Ok(())
            }
        },
    };
    let halt = host.halt.or(match ended {
        Ok(()) => None,
        Err(Stop::Elsewhere) => Some(Halt::Elsewhere),
        Err(Stop::Killed | Stop::Deadline) => Some(Halt::Killed),
    });
    (halt.map_or(Ok(()), Err), std::mem::take(&mut host.told))
}
