//! Which scripts and functions there are, and the engines that have them compiled.
//!
//! ```text
//! Code (the server's) ◄── engines of loops and threads, each brought up to date when it runs a function
//!   ▲ what it does not hide
//! Code (a draft) ◄── the engine of one run of a transaction that changes what its own scripts see
//! ```
//!
//! - K1: libraries change as a whole: who runs functions has those of one moment. Loops change none: who does works on a copy.
//! - K2: a transaction with a change and a use of it behind (SCRIPT FLUSH, then EVALSHA) makes the change in a draft, which
//!   only its own engine sees. With its commit the command is performed again, for all, and that is what is answered
//!   (`deeds.rs`). Libraries that others changed meanwhile are a lost race; between the last look at that and the deed they
//!   may still change, and the answer may be an error though the scripts behind it have seen the change.
//!
//! Cost: lookups O(1) and O(log functions), a draft O(1), a change O(all functions).

use super::*;
use crate::actions::libraries::Addition;

/// What a script takes beside its text.
const BODY_OVERHEAD: usize = 64;
/// Longer texts are hashed each time: comparing them takes a while, too.
const LAST_MAX: usize = 16 * 1024;

/// See the module.
#[derive(Default)]
pub struct Code {
    scripts: Mutex<HashMap<Sha, Arc<[u8]>>>,
    /// What they take.
    bytes: AtomicUsize,
    /// How often all were forgotten: what was known before may not be now.
    flushes: AtomicU64,
    libraries: Mutex<Arc<Libraries>>,
    /// Held by who changes them.
    changing: Mutex<()>,
    /// How much that is, for who must not wait for the lock.
    library_count: AtomicUsize,
    function_count: AtomicUsize,
    library_bytes: AtomicUsize,
    version: AtomicU64,
    /// A draft: the version it was made of.
    drafted_at: Option<u64>,
    /// A draft: what it was made of, and whether its scripts are hidden.
    below: Option<Arc<Code>>,
    hides: AtomicBool,
}

/// Code of every library, by name.
#[derive(Clone, Default)]
pub struct Libraries {
    pub code: BTreeMap<String, Arc<[u8]>>,
    /// Function name to library name, with what the function declares.
    pub functions: BTreeMap<String, (String, Option<String>, script::ScriptFlags)>,
}

impl Code {
    /// What a transaction may change without others' seeing it (K2). O(1).
    pub(super) fn draft(self: &Arc<Code>) -> Code {
        // Before the libraries are taken: what is changed between is found to be changed.
        let drafted_at = Some(self.version());
        let libraries = Mutex::new(self.libraries());
        // An engine that was just made has the version 0.
        Code {
            libraries,
            version: AtomicU64::new(1),
            drafted_at,
            below: Some(self.clone()),
            ..Code::default()
        }
    }

    pub(super) fn drafted_at(&self) -> Option<u64> {
        self.drafted_at
    }

    pub fn add(&self, sha: Sha, body: &[u8]) -> Arc<[u8]> {
        let kept = || {
            self.bytes.fetch_add(body.len() + BODY_OVERHEAD, Ordering::Relaxed);
            body.into()
        };
        self.scripts.lock().entry(sha).or_insert_with(kept).clone()
    }

    pub fn script(&self, sha: &Sha) -> Option<Arc<[u8]>> {
        let own = self.scripts.lock().get(sha).cloned();
        let below = || self.below.as_ref().filter(|_| !self.hides.load(Ordering::Relaxed));
        own.or_else(|| below()?.script(sha))
    }

    pub fn forget_scripts(&self) {
        let scripts = {
            let mut scripts = self.scripts.lock();
            self.flushes.fetch_add(1, Ordering::Release);
            self.bytes.store(0, Ordering::Relaxed);
            self.hides.store(true, Ordering::Relaxed);
            std::mem::take(&mut *scripts)
        };
        stdx::reclaim::defer(scripts.len() * 256, move || drop(scripts));
    }

    /// How many scripts there are.
    pub fn script_count(&self) -> usize {
        self.scripts.lock().len()
    }

    /// Bytes of the scripts' texts.
    pub fn script_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The scripts added to it.
    pub(super) fn added(&self) -> Vec<(Sha, Arc<[u8]>)> {
        self.scripts.lock().iter().map(|(sha, body)| (*sha, body.clone())).collect()
    }

    /// The libraries as they are now (K1).
    pub fn libraries(&self) -> Arc<Libraries> {
        self.libraries.lock().clone()
    }

    /// Changes the libraries, or leaves them as they were if `change` fails. Cost: O(all functions); others do not wait.
    pub(crate) fn change_libraries(
        &self,
        change: impl FnOnce(&mut Libraries) -> Result<(), String>,
    ) -> Result<(), String> {
        let _changing = self.changing.lock();
        let mut libraries = Libraries::clone(&self.libraries());
        change(&mut libraries)?;
        self.library_count.store(libraries.code.len(), Ordering::Relaxed);
        self.function_count.store(libraries.functions.len(), Ordering::Relaxed);
        self.library_bytes.store(libraries.code.values().map(|code| code.len()).sum(), Ordering::Relaxed);
        let libraries = Arc::new(libraries);
        let before = {
            let mut known = self.libraries.lock();
            self.version.fetch_add(1, Ordering::AcqRel);
            std::mem::replace(&mut *known, libraries)
        };
        drop(before);
        Ok(())
    }

    /// How many libraries there are, with how many functions, and the bytes of their code.
    pub fn library_sizes(&self) -> (usize, usize, usize) {
        let [libraries, functions, bytes] = [&self.library_count, &self.function_count, &self.library_bytes]
            .map(|n| n.load(Ordering::Relaxed));
        (libraries, functions, bytes)
    }

    /// How often the libraries changed.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

/// A change of which scripts and functions there are.
pub(crate) enum Change {
    ForgetScripts,
    DeleteLibrary(String),
    FlushLibraries,
    AddLibraries(Addition),
}

impl Change {
    /// Makes the change. Errors: why it cannot be made, a full text.
    pub(crate) fn make(&self, code: &Code) -> Result<(), String> {
        match self {
            Change::ForgetScripts => {
                code.forget_scripts();
                Ok(())
            }
            Change::FlushLibraries => code.change_libraries(|libraries| {
                *libraries = Libraries::default();
                Ok(())
            }),
            Change::DeleteLibrary(name) => code.change_libraries(|libraries| {
                libraries.remove(name).then_some(()).ok_or_else(|| "ERR Library not found".into())
            }),
            Change::AddLibraries(addition) => code.change_libraries(|libraries| addition.make(libraries)),
        }
    }
}

impl Libraries {
    /// False: there is none of that name. O(all functions).
    pub(crate) fn remove(&mut self, library: &str) -> bool {
        let known = self.code.remove(library).is_some();
        if known {
            self.functions.retain(|_, (owner, _, _)| owner != library);
        }
        known
    }
}

/// A Lua engine, what there is for it, and the version of the libraries it has loaded.
pub struct LuaState {
    pub(super) code: Arc<Code>,
    pub(super) engine: Engine,
    version: u64,
    pub(super) functions: HashMap<String, script::Function>,
    /// What the script that ran last called.
    pub(super) tally: Tally,
    /// The script that came last, so that its text need not be hashed again, and [`Code::flushes`] at that time.
    last: Option<(Arc<[u8]>, Sha, script::ScriptFlags, u64)>,
}

impl LuaState {
    pub(super) fn new(code: Arc<Code>) -> LuaState {
        LuaState {
            code,
            engine: Engine::new(Limits::default()),
            version: 0,
            functions: HashMap::new(),
            tally: Tally::default(),
            last: None,
        }
    }

    /// Bytes held for scripts, and for functions.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let functions = self.engine.functions_memory_used();
        (self.engine.memory_used().saturating_sub(functions), functions)
    }

    /// Which scripts and functions there are for it.
    pub(crate) fn code(&self) -> &Code {
        &self.code
    }

    /// Brings the libraries up to date (C6). Cost: O(1) unless they changed.
    pub(super) fn sync(&mut self) {
        let version = self.code.version();
        if self.version == version {
            return;
        }
        let libraries = self.code.libraries();
        self.engine.flush_functions();
        self.functions.clear();
        for code in libraries.code.values() {
            // It was loaded once to be accepted; that it fails now would be the engine's memory limit.
            if let Ok(library) = self.engine.load_library(code, &mut Silent) {
                self.functions.extend(library.functions.into_iter().map(|f| (f.name.clone(), f)));
            }
        }
        self.version = version;
    }
}

/// Compiles a script in an engine and keeps its text.
pub(crate) fn compile_in(
    lua: &mut LuaState,
    body: &[u8],
) -> Result<(Sha, Arc<[u8]>, script::ScriptFlags), String> {
    let flushes = lua.code.flushes.load(Ordering::Acquire);
    if let Some((known, sha, flags, at)) = &lua.last
        && *at == flushes
        && **known == *body
        && lua.engine.has(sha)
    {
        return Ok((*sha, known.clone(), *flags));
    }
    let sha = lua.engine.load(body)?;
    let flags = lua.engine.flags(&sha).unwrap_or_default();
    let body = lua.code.add(sha, body);
    if body.len() <= LAST_MAX {
        lua.last = Some((body.clone(), sha, flags, flushes));
    }
    Ok((sha, body, flags))
}

/// A host for loading libraries: nothing may be called then.
struct Silent;

impl Host for Silent {
    fn call(&mut self, _: &[&[u8]], _: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR redis.call can only be called inside a script invocation\r\n");
    }
    fn log(&mut self, level: i32, message: &[u8]) {
        write_log(level, message);
    }
    fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
        Ok(true)
    }
    fn interrupt(&mut self) -> Option<Stop> {
        None
    }
}

/// Loading a library must end: it has half a second, as in Redis. Holds the monotonic clock of the end.
pub(crate) struct Deadline(pub u64);

impl Host for Deadline {
    fn call(&mut self, args: &[&[u8]], resp3: bool, out: &mut Vec<u8>) {
        Silent.call(args, resp3, out);
    }
    fn log(&mut self, level: i32, message: &[u8]) {
        write_log(level, message);
    }
    fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
        Ok(true)
    }
    fn interrupt(&mut self) -> Option<Stop> {
        (stdx::clock::mono_ns() > self.0).then_some(Stop::Deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_hides_what_it_forgot_and_nobody_else_sees_what_it_added() {
        let code = Arc::new(Code::default());
        let sha = |text: &[u8]| (Sha::of(text), text.to_vec());
        let ((one, a), (two, b)) = (sha(b"return 1"), sha(b"return 2"));
        code.add(one, &a);
        let draft = code.draft();
        assert_eq!(draft.script(&one).as_deref(), Some(&*a));
        draft.add(two, &b);
        assert!(draft.script(&two).is_some() && code.script(&two).is_none());
        draft.forget_scripts();
        assert!(draft.script(&one).is_none() && draft.script(&two).is_none() && draft.added().is_empty());
        assert!(code.script(&one).is_some());
        draft.add(two, &b);
        assert_eq!(draft.added().len(), 1);
    }

    #[test]
    fn libraries_of_a_draft_are_its_own() {
        let code = Arc::new(Code::default());
        let add = |code: &Code, name: &str| {
            code.change_libraries(|libraries| {
                libraries.code.insert(name.into(), Arc::from(&b"x"[..]));
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
