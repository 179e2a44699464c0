//! Compiled scripts, and running them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use stdx::budget::Budget;

use crate::api::Table;
use crate::lua::{Failure, Ref, State, Type, Vm, is_refusal};
use crate::reply::{self, Wire};
use crate::sandbox::{self, Globals};
use crate::{Function, FunctionRef, Host, Library, ScriptFlags, Stop, header};

/// The SHA-1 of a script's text, which is its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sha(pub [u8; 20]);

impl Sha {
    pub fn of(body: &[u8]) -> Sha {
        Sha(sha1_smol::Sha1::from(body).digest().bytes())
    }

    /// Parses forty hexadecimal digits of either case.
    pub fn from_hex(text: &[u8]) -> Option<Sha> {
        let text: &[u8; 40] = text.try_into().ok()?;
        let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
        let mut bytes = [0; 20];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Sha(bytes))
    }

    pub fn hex(&self) -> [u8; 40] {
        let mut text = [0; 40];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
        }
        text
    }
}

/// Digests need no further hashing.
#[derive(Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(Ok(head)) = bytes.get(..8).map(<[u8; 8]>::try_from) {
            self.0 ^= u64::from_le_bytes(head);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }

    fn write_usize(&mut self, _: usize) {}
}

#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes that one Lua state may hold, garbage and memory held beside it included; 0: no limit. A script
    /// that needs more fails with "not enough memory".
    pub memory_bytes: usize,
    /// The budget that each state takes memory from, without what a fresh state has.
    pub budget: Option<Arc<Budget>>,
    /// Instructions between two calls of [`Host::interrupt`].
    pub hook_every: u32,
    /// Most compiled scripts kept. When there are more, all are forgotten; [`Engine::has`] shows it.
    pub scripts_max: usize,
    /// `redis.REDIS_VERSION`.
    pub version: String,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 0,
            budget: None,
            hook_every: 5_000,
            scripts_max: 20_000,
            version: "7.4.0".into(),
        }
    }
}

/// About what a compiled script takes: a fixed part, and bytes for each character of its text.
const SCRIPT_BYTES: usize = 512;
const COMPILED: usize = 4;
/// About how many bytes a dump has for each character of the text.
const DUMPED: usize = 2;
/// Compiled scripts may take the memory limit divided by this.
const KEPT: usize = 4;

/// A host that never interrupts.
struct Nobody;

impl Host for Nobody {
    fn call(&mut self, _: &[&[u8]], _: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR nobody is there to run commands\r\n");
    }
    fn log(&mut self, _: i32, _: &[u8]) {}
    fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
        Ok(false)
    }
    fn interrupt(&mut self) -> Option<Stop> {
        None
    }
}

/// Runs scripts. It has two Lua states, EVAL's and the functions', made when needed, and the scripts compiled
/// in them. It moves between threads; one thread uses it at a time.
pub struct Engine {
    limits: Limits,
    eval: Option<Room>,
    functions: Option<Room>,
    scripts: HashMap<Sha, Script, BuildHasherDefault<DigestHasher>>,
    /// About what the scripts take.
    script_bytes: usize,
    generation: u64,
}

/// A compiled script for other engines of this process. Loading it is much faster than compiling the text.
pub struct Compiled {
    /// A dump of Lua's. Lua trusts it blindly, so it must never come from elsewhere (L8).
    code: Vec<u8>,
    flags: ScriptFlags,
}

impl Compiled {
    pub fn bytes(&self) -> usize {
        self.code.len()
    }

    pub fn flags(&self) -> ScriptFlags {
        self.flags
    }
}

#[derive(Clone, Copy)]
struct Script {
    function: Ref,
    flags: ScriptFlags,
}

/// A Lua state that is set up.
struct Room {
    vm: Vm,
    globals: Globals,
    /// Bytes it held when all of them were in use, as far as is known.
    live: usize,
    /// During a collection: what it held when the cycle began.
    cycle: Option<usize>,
}

/// Garbage up to this size is not worth a collection.
const GARBAGE: usize = 2 << 20;
/// A cycle that frees no more than this is the last.
const FREED: usize = 256 << 10;
/// An idle engine keeps buffers up to this size.
const BUFFERS: usize = 256 << 10;

impl Room {
    fn new(limits: &Limits, which: Table) -> Room {
        let mut vm = Vm::new(limits.hook_every);
        let version = (limits.version.as_str(), version_number(&limits.version));
        let globals = vm.with(|s| sandbox::set_up(s, which, version));
        vm.collect();
        vm.set_limit(limits.memory_bytes);
        if let Some(budget) = &limits.budget {
            vm.take_from(budget);
        }
        let live = vm.used_bytes();
        Room { vm, globals, live, cycle: None }
    }

    /// The garbage in it, estimated.
    fn garbage(&self) -> usize {
        self.vm.used_bytes().saturating_sub(self.live)
    }

    /// Takes this many steps of a collection. True when nothing more can be freed.
    ///
    /// It takes several cycles: objects that die after a cycle began stay for the next, and Lua's buffer
    /// halves in each.
    fn collect_step(&mut self, steps: u32) -> bool {
        let before = *self.cycle.get_or_insert(usize::MAX);
        if !self.vm.collect_step(steps) {
            return false;
        }
        let now = self.vm.used_bytes();
        self.vm.give_back();
        let done = before != usize::MAX && before.saturating_sub(now) <= FREED;
        self.cycle = if done { None } else { Some(now) };
        if done {
            self.live = now;
        }
        done
    }

    /// Leaves it to the reclaimer. Until it is freed, its bytes count where they were taken from.
    fn retire(self) {
        let bytes = self.vm.used_bytes();
        stdx::reclaim::defer_version(bytes, 0, move || drop(self));
    }
}

/// The version as 0x00MMmmpp.
fn version_number(version: &str) -> u32 {
    version.split('.').take(3).fold(0, |n, part| n << 8 | part.parse::<u32>().unwrap_or(0) & 0xff)
}

impl Engine {
    pub fn new(limits: Limits) -> Engine {
        Engine {
            limits,
            eval: None,
            functions: None,
            scripts: HashMap::default(),
            script_bytes: 0,
            generation: stdx::hash::hash_u64(1),
        }
    }

    /// Compiles a script unless it is compiled already. An error is the full text ("ERR Error compiling
    /// script …").
    ///
    /// Cost: the digest of the text and its compilation, some 60 ns a byte.
    pub fn load(&mut self, body: &[u8]) -> Result<Sha, String> {
        self.load_for(body, &mut Nobody)
    }

    /// As [`Engine::load`], asking `host` now and then whether to go on. If it may not, the error is an
    /// unspecified text.
    pub fn load_for(&mut self, body: &[u8], host: &mut dyn Host) -> Result<Sha, String> {
        let sha = Sha::of(body);
        self.load_as(sha, body, host)?;
        Ok(sha)
    }

    /// As [`Engine::load_for`], for a text whose digest is known.
    pub fn load_as(&mut self, sha: Sha, body: &[u8], host: &mut dyn Host) -> Result<(), String> {
        if self.scripts.contains_key(&sha) {
            return Ok(());
        }
        let (flags, code) = header::script(body)?;
        self.keep(sha, flags, code.len(), host, |s| s.load(code, c"@user_script"))
    }

    /// Takes over a script that another engine compiled. `host` is asked as by [`Engine::load_for`].
    /// O(bytes), about as long as a copy.
    pub fn load_compiled(
        &mut self,
        sha: Sha,
        compiled: &Compiled,
        host: &mut dyn Host,
    ) -> Result<(), String> {
        if self.scripts.contains_key(&sha) {
            return Ok(());
        }
        let len = compiled.code.len() / DUMPED;
        self.keep(sha, compiled.flags, len, host, |s| s.load_dumped(&compiled.code, c"@user_script"))
    }

    /// A compiled script for other engines. `None`: it is not compiled here. O(bytes).
    pub fn compiled(&mut self, sha: &Sha) -> Option<Compiled> {
        let Script { function, flags } = *self.scripts.get(sha)?;
        let room = eval_room(&mut self.eval, &self.limits);
        let code = room.vm.with(|s| {
            s.push_ref(function);
            let code = s.dump();
            s.pop(1);
            code
        })?;
        Some(Compiled { code, flags })
    }

    /// Keeps the script that `load` pushes; its text has `len` characters. If memory runs short, all other
    /// scripts are forgotten.
    fn keep(
        &mut self,
        sha: Sha,
        flags: ScriptFlags,
        len: usize,
        host: &mut dyn Host,
        load: impl Fn(&mut State<'_>) -> Result<(), Failure>,
    ) -> Result<(), String> {
        let bytes = SCRIPT_BYTES + COMPILED * len;
        let room = self.limits.memory_bytes / KEPT;
        let full = self.limits.memory_bytes > 0 && self.script_bytes + bytes > room;
        if (full && !self.scripts.is_empty()) || self.scripts.len() >= self.limits.scripts_max {
            self.forget_scripts();
        }
        let before = self.eval.as_ref().map_or(0, |room| room.vm.used_bytes());
        let function = match self.try_to_keep(host, &load) {
            Err((Failure::Memory, _)) if !self.scripts.is_empty() => {
                self.forget_scripts();
                self.try_to_keep(host, &load)
            }
            tried => tried,
        };
        let function = function.map_err(|(_, text)| text)?;
        self.scripts.insert(sha, Script { function, flags });
        self.script_bytes += bytes;
        if let Some(room) = &mut self.eval {
            room.live += room.vm.used_bytes().saturating_sub(before).min(bytes);
        }
        Ok(())
    }

    fn try_to_keep(
        &mut self,
        host: &mut dyn Host,
        load: impl Fn(&mut State<'_>) -> Result<(), Failure>,
    ) -> Result<Ref, (Failure, String)> {
        let room = eval_room(&mut self.eval, &self.limits);
        room.vm.with_host(host, |s| match load(s) {
            Ok(()) => Ok(s.keep()),
            Err(failure) => {
                s.resume_panic();
                let message = String::from_utf8_lossy(s.bytes(-1).unwrap_or_default()).into_owned();
                // The hook raises this where the allocator is not asked.
                let failure = if is_refusal(&message) { Failure::Memory } else { failure };
                Err((failure, format!("ERR Error compiling script (new function): {message}")))
            }
        })
    }

    /// Sets [`Limits::memory_bytes`] from now on. O(1) if it does not change.
    pub fn limit_memory(&mut self, bytes: usize) {
        if self.limits.memory_bytes != bytes {
            self.limits.memory_bytes = bytes;
            self.eval.iter_mut().chain(&mut self.functions).for_each(|room| room.vm.set_limit(bytes));
        }
    }

    /// Whether a script is compiled here. It may have been forgotten: load its text again then.
    pub fn has(&self, sha: &Sha) -> bool {
        self.scripts.contains_key(sha)
    }

    /// The flags that the script's header declares.
    pub fn flags(&self, sha: &Sha) -> Option<ScriptFlags> {
        self.scripts.get(sha).map(|script| script.flags)
    }

    /// Runs a compiled script and appends its reply, or an error reply if it fails. An unknown script replies
    /// `NOSCRIPT`. `Err`: the script was stopped, and nothing was appended.
    ///
    /// Cost: about 250 ns, plus the arguments, the script's work, and the conversion of its result.
    pub fn run(
        &mut self,
        sha: &Sha,
        keys: &[&[u8]],
        args: &[&[u8]],
        host: &mut dyn Host,
        out: &mut Vec<u8>,
        resp3: bool,
    ) -> Result<(), Stop> {
        let Some(script) = self.scripts.get(sha) else {
            out.extend_from_slice(b"-NOSCRIPT No matching script. Please use EVAL.\r\n");
            return Ok(());
        };
        let function = script.function;
        let room = eval_room(&mut self.eval, &self.limits);
        let globals = room.globals;
        let many = keys.len() + args.len() > 1_000;
        let ended = room.run(host, out, resp3, Name::Script(sha), [keys, args], |s| {
            s.push_ref(function);
            s.push_ref(globals.real);
            for (name, list) in [(globals.keys, keys), (globals.argv, args)] {
                s.push_ref(name);
                push_list(s, list);
                s.raw_set(-3);
            }
            s.pop(1);
            0
        });
        if many {
            room.vm.with(|s| {
                s.push_ref(globals.real);
                for name in [globals.keys, globals.argv] {
                    s.push_ref(name);
                    s.push_table(0, 0);
                    s.raw_set(-3);
                }
            });
        }
        self.after(ended, Table::Eval)
    }

    /// Runs a function of a library, as [`Engine::run`] runs a script. An unknown function gives an error
    /// reply.
    #[allow(clippy::too_many_arguments)]
    pub fn call_function(
        &mut self,
        function: FunctionRef,
        name: &str,
        keys: &[&[u8]],
        args: &[&[u8]],
        host: &mut dyn Host,
        out: &mut Vec<u8>,
        resp3: bool,
    ) -> Result<(), Stop> {
        let Some(room) = self.functions.as_mut().filter(|_| function.generation == self.generation) else {
            out.extend_from_slice(b"-ERR Function not found\r\n");
            return Ok(());
        };
        let ended = room.run(host, out, resp3, Name::Function(name), [keys, args], |s| {
            s.push_ref(function.reference);
            push_list(s, keys);
            push_list(s, args);
            2
        });
        self.after(ended, Table::Function)
    }

    fn after(&mut self, ended: Ended, which: Table) -> Result<(), Stop> {
        match ended {
            Ended::Done => Ok(()),
            Ended::Stopped(stop) => Err(stop),
            Ended::OutOfMemory => {
                // The next script must not fail because of leftovers or compiled scripts.
                if which == Table::Eval {
                    self.forget_scripts();
                } else if let Some(room) = &mut self.functions {
                    room.vm.collect();
                    room.live = room.vm.used_bytes();
                }
                Ok(())
            }
        }
    }

    /// Drops what ended scripts left behind, if it is much: EVAL's state and all compiled scripts, which must
    /// be loaded again. Garbage of functions stays ([`Engine::collect_step`]). O(1).
    pub fn tidy(&mut self) {
        self.tidy_above(GARBAGE);
    }

    /// As [`Engine::tidy`], for any amount worth freeing.
    pub fn purge(&mut self) {
        self.tidy_above(BUFFERS);
    }

    fn tidy_above(&mut self, garbage: usize) {
        if self.eval.as_ref().is_some_and(|room| room.garbage() > garbage) {
            self.forget_scripts();
        }
        for room in self.eval.iter_mut().chain(&mut self.functions) {
            room.vm.shared().session.trim(BUFFERS);
            room.vm.give_back();
        }
    }

    /// Whether there is enough garbage for a collection, or one is under way ([`Engine::collect_step`]).
    #[inline]
    pub fn has_garbage(&self) -> bool {
        self.eval.iter().chain(&self.functions).any(|room| room.cycle.is_some() || room.garbage() > GARBAGE)
    }

    /// Forgets all scripts (SCRIPT FLUSH). Functions stay.
    pub fn flush(&mut self) {
        self.forget_scripts();
    }

    fn forget_scripts(&mut self) {
        self.script_bytes = 0;
        let scripts = std::mem::take(&mut self.scripts);
        stdx::reclaim::defer(scripts.len() * 64, move || drop(scripts));
        self.eval.take().into_iter().for_each(Room::retire);
    }

    /// Forgets all libraries (FUNCTION FLUSH). Every [`FunctionRef`] becomes invalid.
    pub fn flush_functions(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.functions.take().into_iter().for_each(Room::retire);
    }

    /// Bytes held by Lua.
    pub fn memory_used(&self) -> usize {
        self.eval.iter().chain(&self.functions).map(|room| room.vm.used_bytes()).sum()
    }

    /// Bytes held by the state of the functions.
    pub fn functions_memory_used(&self) -> usize {
        self.functions.as_ref().map_or(0, |room| room.vm.used_bytes())
    }

    pub fn script_count(&self) -> usize {
        self.scripts.len()
    }

    /// Takes this many steps, a few microseconds each, in collecting a state with much garbage. True when
    /// nothing is left to do.
    pub fn collect_step(&mut self, steps: u32) -> bool {
        let garbage = |room: &&mut Room| room.cycle.is_some() || room.garbage() > GARBAGE;
        match self.eval.iter_mut().chain(&mut self.functions).find(garbage) {
            Some(room) => {
                room.collect_step(steps);
                !self.has_garbage()
            }
            None => true,
        }
    }

    /// Makes the state for libraries, which otherwise the first load makes.
    pub fn prepare_for_libraries(&mut self) {
        self.functions.get_or_insert_with(|| Room::new(&self.limits, Table::Function));
    }

    /// Loads a library: runs its code once and collects the functions it registers. `host` serves its log
    /// lines and deadline only. An error is the full text, and leaves nothing behind. The caller checks for
    /// names that exist already.
    pub fn load_library(&mut self, code: &[u8], host: &mut dyn Host) -> Result<Library, String> {
        let (name, code) = header::library(code).map_err(|text| format!("ERR {text}"))?;
        let room = self.functions.get_or_insert_with(|| Room::new(&self.limits, Table::Function));
        room.vm.shared().session.registering.set(Some(Vec::new()));
        let result = room.run_library(code, host);
        let registered = room.vm.shared().session.registering.take().unwrap_or_default();
        let result = match result {
            Ok(()) if registered.is_empty() => Err("ERR No functions registered".into()),
            result => result,
        };
        if let Err(text) = result {
            room.vm.with(|s| registered.iter().for_each(|r| s.forget(r.callback)));
            return Err(text);
        }
        // The library's own data cannot be told from its garbage.
        room.live = room.vm.used_bytes();
        let generation = self.generation;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let functions = registered
            .into_iter()
            .map(|r| Function {
                name: text(r.name),
                description: r.description.map(text),
                flags: r.flags,
                callback: FunctionRef { reference: r.callback, generation },
            })
            .collect();
        Ok(Library { name, functions })
    }

    /// Forgets the functions of a library.
    pub fn delete_library(&mut self, library: &Library) {
        if let Some(room) = &mut self.functions {
            room.vm.with(|s| {
                for function in &library.functions {
                    if function.callback.generation == self.generation {
                        s.forget(function.callback.reference);
                    }
                }
            });
        }
    }
}

fn eval_room<'a>(room: &'a mut Option<Room>, limits: &Limits) -> &'a mut Room {
    room.get_or_insert_with(|| Room::new(limits, Table::Eval))
}

/// Longer lists are built with the collector stopped: it would scan them again and again and find nothing to
/// free.
const COLLECTED_LEN: usize = 1000;

/// Bytes that Lua needs for a string in a list, without its text.
const ITEM: usize = 72;

fn list_bytes(list: &[&[u8]]) -> usize {
    list.iter().map(|item| item.len() + ITEM).sum()
}

fn push_list(s: &mut State<'_>, list: &[&[u8]]) {
    if list.len() > COLLECTED_LEN { s.uncollected(|s| push_items(s, list)) } else { push_items(s, list) }
}

/// Pushes the list. Ends early when the script must end.
fn push_items(s: &mut State<'_>, list: &[&[u8]]) {
    s.push_table(list.len(), 0);
    let table = s.top();
    for (i, item) in (1..).zip(list) {
        s.push_bytes(item);
        s.raw_set_i(table, i);
        if list.len() > COLLECTED_LEN && !s.spend(1) {
            break;
        }
    }
}

/// The name in an error text; written out only if the script fails.
enum Name<'a> {
    Script(&'a Sha),
    Function(&'a str),
}

impl Name<'_> {
    fn write(&self, text: &mut Vec<u8>) {
        match self {
            Name::Script(sha) => text.extend_from_slice(&sha.hex()),
            Name::Function(name) => text.extend_from_slice(name.as_bytes()),
        }
    }
}

enum Ended {
    Done,
    Stopped(Stop),
    OutOfMemory,
}

impl Room {
    /// Runs a function in the state. `prepare` pushes it and its arguments, made from `lists`, and returns
    /// their number.
    fn run(
        &mut self,
        host: &mut dyn Host,
        out: &mut Vec<u8>,
        resp3: bool,
        name: Name<'_>,
        lists: [&[&[u8]]; 2],
        prepare: impl FnOnce(&mut State<'_>) -> i32,
    ) -> Ended {
        let start = out.len();
        let handler = self.globals.handler;
        let short = self.vm.with_host(host, |s| {
            s.begin();
            if s.room(lists.map(list_bytes).iter().sum()).is_err() {
                out.extend_from_slice(b"-ERR ");
                reply::line_text(s.bytes(-1).unwrap_or_default(), out);
                return true;
            }
            s.push_ref(handler);
            let handler = s.top();
            let args = prepare(s);
            if s.is_stopped() {
                return false;
            }
            let result = s.protected(args, 1, Some(handler));
            let encoded = result.is_ok() && {
                let wire = Wire { resp3, script_resp3: s.session().resp3.get() };
                let mut reply = s.borrow_buffer(std::mem::take(out));
                let encoded = reply::encode(s, &mut reply, wire).is_ok();
                *out = reply.into_inner();
                encoded
            };
            if !encoded {
                // The error is on top. After a stop (checked below) it is not used.
                out.truncate(start);
                write_failure(s, name, result, out);
            }
            s.is_short() || result == Err(Failure::Memory)
        });
        match self.vm.stopped() {
            Some(stop) => {
                out.truncate(start);
                Ended::Stopped(stop)
            }
            None if short => Ended::OutOfMemory,
            None => Ended::Done,
        }
    }

    fn run_library(&mut self, code: &[u8], host: &mut dyn Host) -> Result<(), String> {
        let globals = self.globals;
        let show = |s: &mut State<'_>, table: Ref| {
            s.push_ref(globals.proxy);
            let proxy = s.top();
            s.push_ref(table);
            s.redirect_proxy(proxy);
            s.pop(1);
        };
        let result = self.vm.with_host(host, |s| {
            s.begin();
            s.push_ref(globals.handler);
            let handler = s.top();
            if s.load(code, c"@user_function").is_err() {
                s.resume_panic();
                let message = String::from_utf8_lossy(s.bytes(-1).unwrap_or_default()).into_owned();
                return Err(format!("ERR Error compiling function: {message}"));
            }
            show(s, globals.load);
            let result = s.protected(0, 0, Some(handler));
            show(s, globals.real);
            result.map_err(|_| {
                if s.type_of(-1) == Type::Table {
                    s.push_field(-1, "err");
                }
                let message =
                    String::from_utf8_lossy(s.text(-1).unwrap_or(b"ERR unknown error")).into_owned();
                format!("ERR Error registering functions: {message}")
            })
        });
        match self.vm.stopped() {
            Some(_) => Err("ERR Error registering functions: ERR FUNCTION LOAD timeout".into()),
            None => result,
        }
    }
}

/// Bytes of a long error that are kept if there is no memory for all of it.
const CUT: usize = 1024;

/// Appends the error reply for the error value on top.
fn write_failure(s: &mut State<'_>, name: Name<'_>, result: Result<(), Failure>, out: &mut Vec<u8>) {
    let mut text = Vec::new();
    if s.type_of(-1) == Type::Table {
        let table = s.top();
        s.push_field(table, "err");
        let most = if s.has_room(2 * s.len(-1)) { usize::MAX } else { CUT };
        let err = s.text(-1).unwrap_or(b"ERR unknown error");
        text.extend_from_slice(&err[..memchr::memchr(0, err).unwrap_or(err.len()).min(most)]);
        s.push_field(table, "source");
        s.push_field(table, "line");
        if s.text(-1).is_some() && s.text(-2).is_some() {
            text.extend_from_slice(b" script: ");
            name.write(&mut text);
            text.extend_from_slice(b", on ");
            text.extend_from_slice(s.bytes(-2).unwrap_or_default());
            text.push(b':');
            text.extend_from_slice(s.bytes(-1).unwrap_or_default());
            text.push(b'.');
        }
    } else if matches!(result, Err(Failure::Memory) | Ok(())) {
        // An error of Lua itself or of the encoder. Its text names the limit.
        text.extend_from_slice(b"ERR ");
        text.extend_from_slice(s.text(-1).unwrap_or_default());
        text.extend_from_slice(b" script: ");
        name.write(&mut text);
    } else {
        text.extend_from_slice(b"ERR Error running script ");
        name.write(&mut text);
        text.extend_from_slice(b", ");
        let message = s.text(-1).unwrap_or(b"execution failure");
        text.extend_from_slice(&message[..message.len().min(100)]);
    }
    out.push(b'-');
    reply::line_text(text.trim_ascii_end(), out);
}
