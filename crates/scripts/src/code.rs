//! The known scripts and functions, and the engines that have them compiled.
//!
//! ```text
//! Code (the server's) ◄── engines of loops and threads, each brought up to date when it runs a function
//!   ▲ what it does not hide
//! Code (a draft) ◄── the engine of one run of a transaction that changes what its own scripts see
//! ```
//!
//! - K1: libraries change as a whole, so a run of a function sees those of one moment. Loops change none:
//!   every change is made on a copy.
//! - K2: a transaction may change scripts and then use them (SCRIPT FLUSH, then EVALSHA). It makes the change
//!   in a draft, which only its own engine sees. With its commit the command is performed again, for all, and
//!   gives the answer (`deferred.rs`).
//! - K6: a transaction changes libraries in a draft, too. Its commit puts the draft's libraries in place of
//!   all, at its LSN (keyspace, `beside.rs`). Libraries that others changed meanwhile are a lost race.
//! - K3: a loop compiles only short texts, some 60 ns a byte. A longer text is compiled by the thread that
//!   runs it first, or on one of its own (SCRIPT LOAD). Loops take over the compiled code unless it is long,
//!   too: such scripts always run on threads.
//! - K4: a loop loads libraries in slices, and none that takes long. Threads run the called functions
//!   meanwhile.
//! - K5: scripts known by EVAL alone are forgotten when there are [`EVALS_MAX`] of them, or they have
//!   [`EVALS_BYTES`], those not used of late first.
//!
//! Cost: look-ups O(1) and O(log functions), and O(bytes) to compare a script's text. A draft O(1), a change
//! O(all functions).

use super::*;
use crate::libraries::{Addition, AskedChange, Policy};
use script::Compiled;
use std::ops::Bound;
use std::sync::OnceLock;
use stdx::budget::Budget;

/// Longest text that a loop compiles, in bytes.
const SHORT: usize = 2 * 1024;
/// Longest text that a loop looks at, or compiled script that it takes over, in bytes.
const LOOKED_AT: usize = 64 * 1024;
/// Scripts known by EVAL alone, as in Redis from 7.4 on.
const EVALS_MAX: usize = 500;
/// Bytes of all of them together; one is always kept.
const EVALS_BYTES: usize = 64 << 20;
/// Bytes of a script besides its text.
const BODY_OVERHEAD: usize = 192;
/// Length from which on a text is hashed each time, for comparing it takes a while, too.
const LAST_MAX: usize = 16 * 1024;
/// Nanoseconds of CPU time a library may take to be loaded by loops.
const LIGHT_NS: u64 = 100_000;
/// Longest time on a loop of such a library that does something else there.
const LIGHT_MAX_NS: u64 = 2_000_000;
/// Longest time on a thread: somewhat more than when the library is accepted.
const LOAD_MAX_NS: u64 = 1_000_000_000;
/// Time for which a loop loads libraries at a stretch.
const SLICE_NS: u64 = 50_000;
/// Steps of a collection at a stretch, on a thread and on a loop.
const STEPS: u32 = 64;
const FEW_STEPS: u32 = 2;
/// The version of a draft that has not changed its libraries. A new engine has the version 0.
const DRAFTED: u64 = 1;

/// A script that is known.
pub struct Kept {
    pub text: Arc<[u8]>,
    pub flags: script::ScriptFlags,
    /// The compiled script, where compiling it takes long.
    compiled: Option<Compiled>,
    /// It was loaded by SCRIPT LOAD: only SCRIPT FLUSH forgets it.
    stays: AtomicBool,
    /// It was used since it was last checked for that.
    used: AtomicBool,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.text.len() + BODY_OVERHEAD + self.compiled.as_ref().map_or(0, Compiled::bytes)
    }

    fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a loop may load it.
    fn is_light(&self) -> bool {
        self.compiled.as_ref().map_or(self.text.len() <= SHORT, |compiled| compiled.bytes() <= LOOKED_AT)
    }
}

/// Scripts by their digests and by hashes of their texts.
#[derive(Default)]
struct Texts {
    by_sha: HashMap<Sha, Arc<Kept>>,
    by_hash: HashMap<u64, Sha>,
    /// Scripts that may be forgotten, with their bytes, the oldest first, and the bytes of all.
    evals: VecDeque<(Sha, usize)>,
    eval_bytes: usize,
    bytes: usize,
}

impl Texts {
    fn remove(&mut self, sha: &Sha) {
        if let Some(kept) = self.by_sha.remove(sha) {
            self.bytes -= kept.bytes();
            self.by_hash.remove(&hash_bytes(&kept.text));
        }
    }

    /// Makes room for one more script of so many bytes that came by EVAL. Scripts used since the last check
    /// get another turn.
    fn make_room(&mut self, bytes: usize) -> u64 {
        let mut gone = 0;
        while self.evals.len() >= EVALS_MAX || self.eval_bytes + bytes > EVALS_BYTES {
            let Some((sha, bytes)) = self.evals.pop_front() else { break };
            self.eval_bytes -= bytes;
            let Some(kept) = self.by_sha.get(&sha) else { continue };
            if kept.stays.load(Ordering::Relaxed) {
                continue;
            }
            if kept.used.swap(false, Ordering::Relaxed) {
                self.evals.push_back((sha, bytes));
                self.eval_bytes += bytes;
            } else {
                self.remove(&sha);
                gone += 1;
            }
        }
        gone
    }
}

/// See the module.
#[derive(Default)]
pub struct Code {
    scripts: Mutex<Texts>,
    /// Number of times that scripts were forgotten. A script known before may be gone now.
    forgotten: AtomicU64,
    /// Scripts that were forgotten because there were too many.
    evicted: AtomicU64,
    libraries: Mutex<Arc<Libraries>>,
    /// Held during a change.
    changing: Mutex<()>,
    /// Number of libraries, for readers that must not wait for the lock.
    library_count: AtomicUsize,
    function_count: AtomicUsize,
    library_bytes: AtomicUsize,
    version: AtomicU64,
    /// Number of times that all scripts were forgotten, and that engines were asked to give up what they can
    /// do without.
    flushes: AtomicU64,
    purges: AtomicU64,
    /// The budget that engines take their memory from.
    work: OnceLock<Arc<Budget>>,
    /// A draft: the version it was made of.
    drafted_at: Option<u64>,
    /// A draft: the code it was made of, and whether the scripts of that are hidden.
    below: Option<Arc<Code>>,
    hides: AtomicBool,
}

impl Code {
    /// Makes engines made from now on take their memory from that budget.
    pub(super) fn take_from(&self, work: &Arc<Budget>) {
        let _ = self.work.set(work.clone());
    }

    /// The limits of an engine, except for `lua-memory-limit`, which may change.
    pub(super) fn limits(&self) -> Limits {
        Limits { budget: self.work.get().cloned(), ..Limits::default() }
    }

    /// Asks engines to give up what they can do without, each at its next chance.
    pub(super) fn purge(&self) {
        self.purges.fetch_add(1, Ordering::Release);
    }

    fn wishes(&self) -> (u64, u64) {
        (self.flushes.load(Ordering::Acquire), self.purges.load(Ordering::Acquire))
    }

    /// A copy that a transaction may change before others see it (K2). O(1).
    pub(super) fn draft(self: &Arc<Code>) -> Code {
        // This comes before the libraries are taken: a change in between is found later.
        let drafted_at = Some(self.version());
        let libraries = Mutex::new(self.libraries());
        Code {
            libraries,
            version: AtomicU64::new(DRAFTED),
            work: self.work.clone(),
            drafted_at,
            below: Some(self.clone()),
            ..Code::default()
        }
    }

    pub(super) fn drafted_at(&self) -> Option<u64> {
        self.drafted_at
    }

    /// Keeps a script.
    fn add(&self, sha: Sha, kept: Arc<Kept>) -> Arc<Kept> {
        let mut scripts = self.scripts.lock();
        if let Some(known) = scripts.by_sha.get(&sha) {
            known.stays.fetch_or(kept.stays.load(Ordering::Relaxed), Ordering::Relaxed);
            return known.clone();
        }
        if !kept.stays.load(Ordering::Relaxed) {
            let bytes = kept.bytes();
            let gone = scripts.make_room(bytes);
            self.evicted.fetch_add(gone, Ordering::Relaxed);
            self.forgotten.fetch_add(gone, Ordering::Release);
            scripts.evals.push_back((sha, bytes));
            scripts.eval_bytes += bytes;
        }
        scripts.bytes += kept.bytes();
        scripts.by_hash.insert(hash_bytes(&kept.text), sha);
        scripts.by_sha.insert(sha, kept.clone());
        kept
    }

    /// Keeps the scripts of a draft.
    pub(super) fn take_over(&self, scripts: Vec<(Sha, Arc<Kept>)>) {
        scripts.into_iter().for_each(|(sha, kept)| drop(self.add(sha, kept)));
    }

    fn unless_hidden(&self) -> Option<&Arc<Code>> {
        self.below.as_ref().filter(|_| !self.hides.load(Ordering::Relaxed))
    }

    /// The script of that digest.
    pub fn script(&self, sha: &Sha) -> Option<Arc<Kept>> {
        let own = self.scripts.lock().by_sha.get(sha).cloned();
        own.or_else(|| self.unless_hidden()?.script(sha))
    }

    /// The script with that text. O(bytes).
    fn known(&self, text: &[u8]) -> Option<(Sha, Arc<Kept>)> {
        let own = {
            let scripts = self.scripts.lock();
            let sha = scripts.by_hash.get(&hash_bytes(text));
            sha.and_then(|sha| Some((*sha, scripts.by_sha.get(sha)?.clone())))
        };
        let own = own.filter(|(_, kept)| *kept.text == *text);
        own.or_else(|| self.unless_hidden()?.known(text))
    }

    pub fn forget_scripts(&self) {
        let scripts = {
            let mut scripts = self.scripts.lock();
            self.forgotten.fetch_add(1, Ordering::Release);
            self.hides.store(true, Ordering::Relaxed);
            self.flushes.fetch_add(1, Ordering::Release);
            std::mem::take(&mut *scripts)
        };
        stdx::reclaim::defer(scripts.bytes, move || drop(scripts));
    }

    /// Number of scripts, and their bytes.
    pub fn script_sizes(&self) -> (usize, usize) {
        let scripts = self.scripts.lock();
        (scripts.by_sha.len(), scripts.bytes)
    }

    /// Scripts that were forgotten because there were too many.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Takes the scripts out of a draft.
    pub(super) fn take_added(&self) -> Vec<(Sha, Arc<Kept>)> {
        std::mem::take(&mut *self.scripts.lock()).by_sha.into_iter().collect()
    }

    /// The current libraries (K1).
    pub fn libraries(&self) -> Arc<Libraries> {
        self.libraries.lock().clone()
    }

    /// Changes the libraries of a code that is nobody else's.
    #[cfg(test)]
    pub(crate) fn change_libraries(
        &self,
        change: impl Fn(&mut Libraries) -> Result<(), String>,
    ) -> Result<(), String> {
        self.change(change, |replace| replace())
    }

    /// Changes the libraries, or leaves them as they were if `change` fails. `within` calls what it is given
    /// where libraries may be replaced, and returns its answer. Cost: O(all functions); others do not wait.
    fn change(
        &self,
        change: impl Fn(&mut Libraries) -> Result<(), String>,
        mut within: impl FnMut(&dyn Fn() -> bool) -> bool,
    ) -> Result<(), String> {
        let _changing = self.changing.lock();
        loop {
            let before = self.version();
            let mut libraries = Libraries::clone(&self.libraries());
            change(&mut libraries)?;
            let new = NewLibraries::new(libraries, Some(before));
            // A transaction may have replaced them since.
            if within(&|| self.replace(&new)) {
                return Ok(());
            }
        }
    }

    /// Puts new libraries in place of those they were made of. False: these have been replaced. O(1).
    fn replace(&self, new: &NewLibraries) -> bool {
        let before = {
            let mut known = self.libraries.lock();
            if new.made_of.is_some_and(|version| version != self.version()) {
                return false;
            }
            self.version.fetch_add(1, Ordering::AcqRel);
            std::mem::replace(&mut *known, new.libraries.clone())
        };
        stdx::reclaim::discard(before);
        self.library_count.store(new.libraries.code.len(), Ordering::Relaxed);
        self.function_count.store(new.libraries.functions.len(), Ordering::Relaxed);
        self.library_bytes.store(new.bytes, Ordering::Relaxed);
        true
    }

    /// The change that puts a draft's libraries in place of those it was made of (K6). `None`: it has none of
    /// its own. O(libraries).
    pub(super) fn libraries_of_draft(&self) -> Option<Box<dyn Beside>> {
        let (Some(below), Some(made_of)) = (&self.below, self.drafted_at) else { return None };
        if self.version() == DRAFTED {
            return None;
        }
        let new = NewLibraries::new(Libraries::clone(&self.libraries()), Some(made_of));
        Some(Box::new(Drafted { code: below.clone(), new }))
    }

    /// Number of libraries and of functions, and the bytes of their code.
    pub fn library_sizes(&self) -> (usize, usize, usize) {
        let [libraries, functions, bytes] = [&self.library_count, &self.function_count, &self.library_bytes]
            .map(|n| n.load(Ordering::Relaxed));
        (libraries, functions, bytes)
    }

    /// Number of times that the libraries changed.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

/// Libraries that are to be put in place of those of a version.
struct NewLibraries {
    libraries: Arc<Libraries>,
    /// Bytes of their code.
    bytes: usize,
    /// None: they take the place of any.
    made_of: Option<u64>,
}

impl NewLibraries {
    fn new(libraries: Libraries, made_of: Option<u64>) -> NewLibraries {
        let bytes = libraries.code.values().map(|code| code.text.len()).sum();
        NewLibraries { libraries: Arc::new(libraries), bytes, made_of }
    }
}

/// The libraries of a draft, for a commit to put in place (K6).
struct Drafted {
    code: Arc<Code>,
    new: NewLibraries,
}

impl Beside for Drafted {
    fn holds(&self) -> bool {
        self.new.made_of.is_none_or(|version| version == self.code.version())
    }

    fn make(&self) {
        let replaced = self.code.replace(&self.new);
        debug_assert!(replaced, "libraries were changed without the lock (keyspace beside B1)");
    }
}

/// Libraries of a file that is loaded beside the data: nobody sees them before they are put in place of all.
pub struct Incoming {
    code: Arc<Code>,
    limits: Limits,
    libraries: Mutex<Libraries>,
}

impl Incoming {
    pub fn new(code: &Arc<Code>, limits: Limits) -> Incoming {
        Incoming { code: code.clone(), limits, libraries: Mutex::default() }
    }

    /// Adds a library. Cost: its code runs once, on this thread. Errors: its fault, or a name that comes twice.
    pub fn load(&self, text: &[u8]) -> Result<(), String> {
        let asked = AskedChange::Load(text.into(), Policy::Append);
        match asked.prepare_from_file(&self.limits)? {
            Change::AddLibraries(addition) => addition.make(&mut self.libraries.lock()),
            _ => Ok(()),
        }
    }

    /// The change that puts them in place of all. O(libraries).
    pub fn into_change(self) -> Box<dyn Beside> {
        let new = NewLibraries::new(self.libraries.into_inner(), None);
        Box::new(Drafted { code: self.code, new })
    }
}

/// A change of the known scripts or functions.
pub enum Change {
    ForgetScripts,
    DeleteLibrary(String),
    FlushLibraries,
    AddLibraries(Addition),
}

impl Change {
    /// Makes the change in a draft, or where the caller holds the lock that changes of libraries need
    /// (keyspace, `beside.rs`). Errors: a full text that says why it cannot be made.
    pub fn make(&self, code: &Code) -> Result<(), String> {
        self.make_within(code, |replace| replace())
    }

    /// Makes the change for all, in the order of the sequence, and tells of a change of libraries with these
    /// words. False: nobody listens to them any more. Errors: as [`Change::make`].
    pub fn make_for_all(
        &self,
        code: &Code,
        keyspace: &Keyspace,
        words: Option<&OwnedArgs>,
    ) -> Result<bool, String> {
        let mut heard = true;
        self.make_within(code, |replace| {
            let args = words.map(OwnedArgs::args);
            let mut words = args.as_ref().map(|args| args.iter());
            let words = words.as_mut().map(|words| words as &mut dyn Iterator<Item = &[u8]>);
            let told = keyspace.change_beside(replace, words);
            heard = args.is_none() || told.flatten().is_some();
            told.is_some()
        })?;
        Ok(heard)
    }

    fn make_within(&self, code: &Code, within: impl FnMut(&dyn Fn() -> bool) -> bool) -> Result<(), String> {
        let change = |libraries: &mut Libraries| {
            match self {
                Change::ForgetScripts => {}
                Change::FlushLibraries => *libraries = Libraries::default(),
                Change::DeleteLibrary(name) => {
                    libraries.remove(name).then_some(()).ok_or("ERR Library not found")?;
                }
                Change::AddLibraries(addition) => addition.make(libraries)?,
            }
            Ok(())
        };
        if let Change::ForgetScripts = self {
            code.forget_scripts();
            return Ok(());
        }
        code.change(change, within)
    }
}

/// A Lua engine, the code known to it, and the version of the libraries it has loaded.
pub struct LuaState {
    pub(super) code: Arc<Code>,
    pub(crate) engine: Engine,
    /// It belongs to a loop, which takes no long steps (K3, K4).
    on_loop: bool,
    version: u64,
    pub(super) functions: HashMap<String, script::Function>,
    /// On a loop: libraries that are being loaded, their version, and the last one loaded.
    loading: Option<(Arc<Libraries>, u64, Option<String>)>,
    /// On a loop: a called function was not there.
    lacks: bool,
    /// The flushes and purges that it has heeded.
    heeded: (u64, u64),
    /// On a loop: a collection of garbage is under way.
    collecting: bool,
    /// The commands that the last script called.
    pub tally: Tally,
    /// The last script, so that its text need not be hashed again, and [`Code::forgotten`] at that time.
    last: Option<(Sha, Arc<Kept>, u64)>,
}

/// A script that a client asks for.
pub enum Found {
    /// If it is `far`, it has to run on a thread.
    Known { sha: Sha, kept: Arc<Kept>, far: bool },
    /// A text that a loop does not compile.
    Text,
}

impl LuaState {
    /// The state of a thread.
    pub(super) fn new(code: Arc<Code>) -> LuaState {
        let limits = code.limits();
        LuaState {
            heeded: code.wishes(),
            collecting: false,
            code,
            engine: Engine::new(limits),
            on_loop: false,
            version: 0,
            functions: HashMap::new(),
            loading: None,
            lacks: false,
            tally: Tally::default(),
            last: None,
        }
    }

    pub fn of_loop(code: Arc<Code>) -> LuaState {
        LuaState { on_loop: true, ..LuaState::new(code) }
    }

    /// Bytes held for scripts, and for functions.
    pub fn bytes(&self) -> (usize, usize) {
        let functions = self.engine.functions_memory_used();
        (self.engine.memory_used().saturating_sub(functions), functions)
    }

    /// Gives up compiled scripts if all were forgotten since, and functions if libraries changed (a loop does
    /// that when it loads them). Gives up what it can do without if it was asked to. O(1).
    pub fn heed(&mut self) {
        let (wishes, version) = (self.code.wishes(), self.code.version());
        if !self.on_loop && self.version != version {
            self.forget_functions();
            self.version = version;
        }
        if wishes.0 != self.heeded.0 {
            self.engine.flush();
            self.last = None;
        }
        if wishes.1 != self.heeded.1 {
            self.engine.purge();
        }
        self.heeded = wishes;
    }

    /// Whether it has given up everything it was asked to.
    pub(super) fn has_heeded(&self) -> bool {
        self.heeded == self.code.wishes() && (self.on_loop || self.version == self.code.version())
    }

    /// A thread: gives up the garbage of the last script, and what others asked for. O(1); see
    /// [`LuaState::collect`].
    pub(super) fn tidy(&mut self) {
        self.heed();
        self.engine.tidy();
    }

    /// A thread: collects the garbage of functions, if it is much. `pause` is called between steps.
    pub(super) fn collect(&mut self, mut pause: impl FnMut()) {
        while self.engine.has_garbage() && !self.engine.collect_step(STEPS) {
            pause();
        }
    }

    /// A loop: whether there is garbage, and no collection under way.
    #[inline]
    pub fn wants_collection(&mut self) -> bool {
        !self.collecting && self.engine.has_garbage() && !std::mem::replace(&mut self.collecting, true)
    }

    /// A loop: collects some garbage. True if some is left. Cost: some ten microseconds.
    pub fn collect_some(&mut self) -> bool {
        self.collecting = !self.engine.collect_step(FEW_STEPS);
        self.collecting
    }

    /// The scripts and functions known to it.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Finds a script by its text, and compiles it if need be, as long as `host` lets it. If it `stays`, it
    /// is not forgotten.
    pub fn find(&mut self, text: &[u8], stays: bool, host: &mut dyn Host) -> Result<Found, String> {
        if self.on_loop && text.len() > LOOKED_AT {
            return Ok(Found::Text);
        }
        let forgotten = self.code.forgotten.load(Ordering::Acquire);
        if let Some((sha, kept, at)) = &self.last
            && *at == forgotten
            && *kept.text == *text
            && self.engine.has(sha)
        {
            kept.touch();
            kept.stays.fetch_or(stays, Ordering::Relaxed);
            return Ok(Found::Known { sha: *sha, kept: kept.clone(), far: false });
        }
        let (sha, kept) = match self.code.known(text) {
            Some((sha, kept)) => {
                kept.touch();
                kept.stays.fetch_or(stays, Ordering::Relaxed);
                (sha, kept)
            }
            None if self.on_loop && text.len() > SHORT => return Ok(Found::Text),
            None => self.compile(text, stays, host)?,
        };
        if !self.take(sha, &kept, host)? {
            return Ok(Found::Known { sha, kept, far: true });
        }
        if kept.text.len() <= LAST_MAX {
            self.last = Some((sha, kept.clone(), forgotten));
        }
        Ok(Found::Known { sha, kept, far: false })
    }

    /// Finds a script by its digest.
    pub fn find_known(&mut self, sha: Sha, host: &mut dyn Host) -> Result<Option<Found>, String> {
        let Some(kept) = self.code.script(&sha) else { return Ok(None) };
        kept.touch();
        let far = !self.take(sha, &kept, host)?;
        Ok(Some(Found::Known { sha, kept, far }))
    }

    fn compile(&mut self, text: &[u8], stays: bool, host: &mut dyn Host) -> Result<(Sha, Arc<Kept>), String> {
        let sha = self.engine.load_for(text, host)?;
        let kept = Kept {
            text: text.into(),
            flags: self.engine.flags(&sha).unwrap_or_default(),
            compiled: if text.len() > SHORT { self.engine.compiled(&sha) } else { None },
            stays: AtomicBool::new(stays),
            used: AtomicBool::default(),
        };
        Ok((sha, self.code.add(sha, Arc::new(kept))))
    }

    /// Makes the engine ready for a script. False: that takes too long for a loop (K3).
    pub(super) fn take(&mut self, sha: Sha, kept: &Kept, host: &mut dyn Host) -> Result<bool, String> {
        if self.engine.has(&sha) {
            return Ok(true);
        }
        if self.on_loop && !kept.is_light() {
            return Ok(false);
        }
        match &kept.compiled {
            Some(compiled) => self.engine.load_compiled(sha, compiled, host)?,
            None => self.engine.load_as(sha, &kept.text, host)?,
        }
        Ok(true)
    }

    /// Whether it can run a function now. If a loop's engine cannot, its libraries are loaded before long.
    #[inline]
    pub fn has_function(&mut self, name: &str) -> bool {
        if !self.on_loop {
            return true;
        }
        let current = self.version == self.code.version();
        self.lacks |= !current;
        current && self.functions.contains_key(name)
    }

    /// On a loop: whether libraries have to be loaded, and no loading is under way.
    #[inline]
    pub fn wants_libraries(&mut self) -> bool {
        std::mem::take(&mut self.lacks) && self.loading.is_none()
    }

    /// A thread: loads a function as its library is now (C6), and forgets all others if any library changed.
    /// Only its own library is loaded, so other libraries' code delays no caller of this one. It may take as
    /// long as when it was accepted, and `host` may end it before. Cost: O(1), or that library's code.
    pub(super) fn sync(&mut self, function: &str, host: &mut dyn Host) {
        if self.on_loop {
            return;
        }
        let version = self.code.version();
        if self.version != version {
            self.forget_functions();
            self.version = version;
        }
        if self.functions.contains_key(function) {
            return;
        }
        let libraries = self.code.libraries();
        let library = libraries.functions.get(function).and_then(|(library, ..)| libraries.code.get(library));
        if let Some(code) = library {
            let end_ns = stdx::clock::thread_cpu_ns() + LOAD_MAX_NS;
            let mut ended = || match stdx::clock::thread_cpu_ns() > end_ns {
                true => Some(Stop::Deadline),
                false => host.interrupt(),
            };
            self.load_library(code, &mut ended);
        }
    }

    /// A loop: loads some libraries (K4). True if some are left. Cost: a few times [`LIGHT_NS`] at most.
    pub fn load_some_libraries(&mut self) -> bool {
        let version = self.code.version();
        if self.version == version {
            return false;
        }
        let current = |(_, at, _): &(Arc<Libraries>, u64, Option<String>)| *at == version;
        let (libraries, _, mut last) = self.loading.take().filter(current).unwrap_or_else(|| {
            self.forget_functions();
            (self.code.libraries(), version, None)
        });
        let until_ns = stdx::clock::mono_ns() + SLICE_NS;
        let from = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut left = libraries.code.range::<String, _>((from, Bound::Unbounded));
        let mut seen = None;
        while stdx::clock::mono_ns() < until_ns {
            let Some((name, code)) = left.next() else {
                (self.version, self.lacks) = (version, false);
                return false;
            };
            if code.load_ns.load(Ordering::Relaxed) <= LIGHT_NS {
                // The code may behave otherwise than when it was tried.
                let end_ns = stdx::clock::mono_ns() + LIGHT_MAX_NS;
                let mut ended = || (stdx::clock::mono_ns() > end_ns).then_some(Stop::Deadline);
                if !self.load_library(code, &mut ended) {
                    code.load_ns.store(u64::MAX, Ordering::Relaxed);
                }
            }
            seen = Some(name.clone());
        }
        last = seen.or(last);
        self.loading = Some((libraries, version, last));
        true
    }

    fn forget_functions(&mut self) {
        self.engine.flush_functions();
        stdx::reclaim::discard(std::mem::take(&mut self.functions));
    }

    /// Loads a library, and returns whether that worked. It did once, to be accepted, but may have had more
    /// memory or time then.
    fn load_library(&mut self, code: &LibraryCode, ended: &mut dyn FnMut() -> Option<Stop>) -> bool {
        let library = self.engine.load_library(&code.text, &mut Quiet(ended));
        let loaded = library.is_ok();
        self.functions
            .extend(library.into_iter().flat_map(|library| library.functions).map(|f| (f.name.clone(), f)));
        loaded
    }
}

/// SCRIPT LOAD of a long text: compiles it in an engine of its own, for a client, until it is killed or takes
/// too long. Answers its digest.
pub fn compile_apart(
    scripts: &Arc<Scripts>,
    text: &[u8],
    client: u64,
    gone: &AtomicBool,
) -> Result<Sha, String> {
    let listed = super::running::Listed::of_text(scripts, client);
    let listed = &listed;
    crate::libraries::apart(scripts, move |turn| {
        let limit = Limit::on_thread(&scripts.config, &listed.entry, Some(gone), 0);
        let mut host = Compiling::new(limit, Some(turn));
        let found = LuaState::new(scripts.code.clone()).find(text, true, &mut host);
        if let Some(halt) = host.0.halt {
            return Err(format!("ERR {}", halt.told(&scripts.config)));
        }
        match found? {
            Found::Known { sha, .. } => Ok(sha),
            // This is not on a thread.
            Found::Text => Ok(Sha::of(text)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(code: &Arc<Code>, text: &str, stays: bool) -> Sha {
        let Found::Known { sha, .. } =
            LuaState::new(code.clone()).find(text.as_bytes(), stays, &mut Quiet(Short)).unwrap()
        else {
            panic!("a thread finds all");
        };
        sha
    }

    #[test]
    fn a_draft_hides_what_it_forgot_and_nobody_else_sees_what_it_added() {
        let code = Arc::new(Code::default());
        let one = keep(&code, "return 1", false);
        let draft = Arc::new(code.draft());
        assert_eq!(&*draft.script(&one).unwrap().text, b"return 1");
        let two = keep(&draft, "return 2", false);
        assert!(draft.script(&two).is_some() && code.script(&two).is_none());
        draft.forget_scripts();
        assert!(draft.script(&one).is_none() && draft.script(&two).is_none());
        assert!(draft.take_added().is_empty() && code.script(&one).is_some());
        keep(&draft, "return 2", false);
        code.take_over(draft.take_added());
        assert!(code.script(&two).is_some());
    }

    #[test]
    fn of_too_many_scripts_those_used_of_late_and_those_loaded_stay() {
        let code = Arc::new(Code::default());
        let loaded = keep(&code, "return 'loaded'", true);
        let (used, unused) = (keep(&code, "return 'used'", false), keep(&code, "return 'unused'", false));
        for i in 0..2 * EVALS_MAX {
            keep(&code, &format!("return {i}"), false);
            code.script(&used).unwrap().touch();
        }
        assert!(code.script(&loaded).is_some() && code.script(&used).is_some());
        assert!(code.script(&unused).is_none());
        let (count, bytes) = code.script_sizes();
        assert_eq!((count, code.evicted()), (EVALS_MAX + 1, EVALS_MAX as u64 + 2));
        code.forget_scripts();
        assert!(bytes > 0 && code.script_sizes() == (0, 0));
    }

    #[test]
    fn long_scripts_that_came_by_eval_do_not_add_up() {
        let code = Arc::new(Code::default());
        let text = |i: usize| format!("return #[[{}{i}]]", "x".repeat(EVALS_BYTES / 8));
        let shas: Vec<_> = (0..10).map(|i| keep(&code, &text(i), false)).collect();
        let (count, bytes) = code.script_sizes();
        assert!((2..8).contains(&count) && bytes <= EVALS_BYTES, "{count} scripts of {bytes} bytes");
        assert!(code.script(&shas[0]).is_none() && code.script(&shas[9]).is_some());
    }

    /// K3: a loop takes over from a thread the texts that it does not compile, unless the code is long, too.
    #[test]
    fn loops_compile_only_short_texts() {
        let code = Arc::new(Code::default());
        let mut lua = LuaState::of_loop(code.clone());
        let text = |bytes: usize| format!("{}return 1", "x = 1 ".repeat(bytes / 6));
        let far = |found: Found| match found {
            Found::Known { far, .. } => Some(far),
            Found::Text => None,
        };
        for (bytes, before, behind) in
            [(500, Some(false), Some(false)), (2_400, None, Some(false)), (70_000, None, None)]
        {
            let text = text(bytes);
            assert_eq!(far(lua.find(text.as_bytes(), false, &mut Quiet(Short)).unwrap()), before, "{bytes}");
            if before.is_none() && bytes > 60_000 {
                continue;
            }
            keep(&code, &text, false);
            assert_eq!(far(lua.find(text.as_bytes(), false, &mut Quiet(Short)).unwrap()), behind, "{bytes}");
        }
        let mut long = String::from("local t = {}\n");
        (0..2_500).for_each(|i| long.push_str(&format!("t[{i}]=t[1]\n")));
        let sha = keep(&code, &long, false);
        assert!(long.len() < LOOKED_AT && code.script(&sha).unwrap().compiled.is_some());
        assert_eq!(far(lua.find(long.as_bytes(), false, &mut Quiet(Short)).unwrap()), Some(true));
        assert_eq!(far(lua.find_known(sha, &mut Quiet(Short)).unwrap().unwrap()), Some(true));
    }

    /// K4: a loop has them after some slices, and never those that take long.
    #[test]
    fn loops_load_libraries_in_slices() {
        let code = Arc::new(Code::default());
        let add = |name: &str, load_ns: u64| {
            let text =
                format!("#!lua name={name}\nredis.register_function('f{name}', function() return 1 end)");
            code.change_libraries(|libraries| {
                let code = LibraryCode { text: text.as_bytes().into(), load_ns: load_ns.into() };
                libraries.code.insert(name.into(), Arc::new(code));
                libraries.functions.insert(format!("f{name}"), (name.into(), None, Default::default()));
                Ok(())
            })
            .unwrap();
        };
        (0..100).for_each(|i| add(&format!("light{i}"), 10));
        add("heavy", LIGHT_NS + 1);
        let mut lua = LuaState::of_loop(code.clone());
        assert!(!lua.has_function("flight1") && lua.wants_libraries() && !lua.wants_libraries());
        while lua.load_some_libraries() {
            assert!(!lua.has_function("flight1"));
        }
        assert!((0..100).all(|i| lua.has_function(&format!("flight{i}"))));
        assert!(!lua.has_function("fheavy") && !lua.wants_libraries());
        let mut thread = LuaState::new(code.clone());
        thread.sync("fheavy", &mut Quiet(Short));
        assert!(thread.functions.contains_key("fheavy") && thread.functions.len() == 1);
        add("next", 10);
        assert!(!lua.has_function("flight1") && lua.wants_libraries());
        while lua.load_some_libraries() {}
        assert!(lua.has_function("flight1") && lua.has_function("fnext"));
    }

    /// A library that loads at once when it is tried, and never ends thereafter, delays only its own callers.
    #[test]
    fn libraries_that_never_end_are_given_up() {
        let code = Arc::new(Code::default());
        let names = ["good", "bad"];
        code.change_libraries(|libraries| {
            for name in names {
                let spin = if name == "bad" { "while true do end" } else { "" };
                let text =
                    format!("#!lua name={name}\n{spin} redis.register_function('f{name}', function() end)");
                let code = LibraryCode { text: text.as_bytes().into(), load_ns: 10.into() };
                libraries.code.insert(name.into(), Arc::new(code));
                libraries.functions.insert(format!("f{name}"), (name.into(), None, Default::default()));
            }
            Ok(())
        })
        .unwrap();
        let mut lua = LuaState::of_loop(code.clone());
        assert!(!lua.has_function("fgood"));
        while lua.load_some_libraries() {}
        assert!(lua.has_function("fgood") && !lua.has_function("fbad"));
        assert_eq!(code.libraries().code["bad"].load_ns.load(Ordering::Relaxed), u64::MAX);
        let (mut thread, mut asked) = (LuaState::new(code.clone()), 0);
        thread.sync("fgood", &mut Quiet(|| unreachable!("it loads nothing else")));
        // It can be ended, as by SCRIPT KILL, or because others wait.
        let mut killed = || {
            asked += 1;
            Some(Stop::Killed)
        };
        thread.sync("fbad", &mut Quiet(&mut killed));
        assert!(thread.functions.contains_key("fgood") && thread.functions.len() == 1 && asked > 0);
    }

    /// K6: a transaction that was overtaken by another change puts nothing in place.
    #[test]
    fn libraries_of_a_draft_replace_those_it_was_made_of_and_no_others() {
        let code = Arc::new(Code::default());
        let add = |code: &Code, name: &str| {
            code.change_libraries(|libraries| {
                let code = LibraryCode { text: b"text".as_slice().into(), load_ns: 0.into() };
                libraries.code.insert(name.into(), Arc::new(code));
                Ok(())
            })
            .unwrap();
        };
        let names = |code: &Code| code.libraries().code.keys().cloned().collect::<Vec<_>>();
        add(&code, "a");
        let idle = code.draft();
        assert!(idle.libraries_of_draft().is_none());
        let (first, second) = (code.draft(), code.draft());
        add(&first, "b");
        add(&second, "c");
        let (first, second) = (first.libraries_of_draft().unwrap(), second.libraries_of_draft().unwrap());
        assert!(first.holds() && second.holds());
        first.make();
        assert!(!second.holds());
        assert_eq!((names(&code), code.library_sizes()), (vec!["a".to_owned(), "b".to_owned()], (2, 0, 8)));
    }

    /// A change whose libraries a transaction replaced meanwhile is made again, on top of that.
    #[test]
    fn a_change_is_repeated_if_a_transaction_came_between() {
        let (code, tries) = (Arc::new(Code::default()), std::cell::Cell::new(0));
        let text = || Arc::new(LibraryCode { text: b"x".as_slice().into(), load_ns: 0.into() });
        let draft = code.draft();
        let add = |libraries: &mut Libraries, name: &str| {
            libraries.code.insert(name.into(), text());
            Ok(())
        };
        draft.change_libraries(|libraries| add(libraries, "theirs")).unwrap();
        let theirs = draft.libraries_of_draft().unwrap();
        let change = |libraries: &mut Libraries| add(libraries, "ours");
        let within = |replace: &dyn Fn() -> bool| {
            tries.set(tries.get() + 1);
            if tries.get() == 1 {
                theirs.make();
            }
            replace()
        };
        assert_eq!(code.change(change, within), Ok(()));
        assert_eq!((tries.get(), code.library_sizes().0), (2, 2));
    }

    #[test]
    fn libraries_of_a_draft_are_its_own() {
        let code = Arc::new(Code::default());
        let add = |code: &Code, name: &str| {
            code.change_libraries(|libraries| {
                let code = LibraryCode { text: b"x".as_slice().into(), load_ns: 0.into() };
                libraries.code.insert(name.into(), Arc::new(code));
                libraries.functions.insert(format!("f-{name}"), (name.into(), None, Default::default()));
                Ok(())
            })
            .unwrap();
        };
        add(&code, "a");
        let before = code.version();
        let draft = code.draft();
        add(&draft, "b");
        let delete = Change::DeleteLibrary("a".into());
        assert_eq!(delete.make(&draft), Ok(()));
        let drafted = draft.version();
        assert_eq!(delete.make(&draft), Err("ERR Library not found".into()));
        assert_eq!(draft.version(), drafted);
        assert_eq!(draft.libraries().code.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(draft.libraries().functions.keys().collect::<Vec<_>>(), ["f-b"]);
        assert_eq!(code.libraries().code.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!((code.version(), code.library_sizes()), (before, (1, 1, 1)));
    }
}
