//! A keyspace to try commands on, for the tests beside the handlers.
//!
//! ```text
//! let mut db = Db::new();
//! assert_eq!(db.run(&["SET", "k", "v"]), "OK");
//! db.check(&[("get k", "\"v\""), ("strlen k", "1"), ("get other", "nil")]);
//! assert_eq!(db.events(), ["new:k", "set:k"]);
//! ```
//!
//! A command runs here as the server runs it. The registry finds it, and only the shards of its keys are
//! locked. After `over(Overlay)` it runs over an overlay that is then committed.
//!
//! Every reply is read back as a client would read it, so a wrong length shows at once. Streams are drained
//! in small pieces. An error must have changed nothing. The end of a test checks the keyspace's own
//! invariants.
//!
//! Replies as text: `OK`, `12`, `"bulk \x00"`, `nil`, `[1, "a", nil]`, `{"a": 1}`, `~{1, 2}`, `3.5`, `true`,
//! `-ERR …`, `nil array`.

#![allow(dead_code, reason = "a toolbox: every family uses its part of it")]

use crate::table::{Command, Run};
use crate::{Budget, Caller, Cx, Error, Outcome, Stream, registry};
use keyspace::{At, Changes, CommitSink, Effects, Keyspace, Lsn, Mark, Overlay, Ready, Snapshot, View};
use resp::{Args, Frame, OwnedArgs, Reply, read_frame};
use std::sync::Arc;
use stdx::locks::Bits;

/// How commands run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Over {
    Locks,
    Overlay,
}

/// A keyspace with the state of a test. See the module.
pub(crate) struct Db {
    pub keyspace: Arc<Keyspace>,
    /// The time every command sees.
    pub now_ms: u64,
    pub db: usize,
    pub caller: Caller,
    /// Steps a command may charge.
    pub steps: usize,
    over: Over,
    resp3: bool,
    runs: u64,
    events: Vec<String>,
    ready: Vec<String>,
    /// The results of the last command besides its reply.
    pub effects: Vec<OwnedArgs>,
    pub dirty: u64,
    pub streamed: bool,
    pub blocked: Option<crate::Block>,
    /// The last command's number of looks at its budget, and its largest single charge.
    pub looks: usize,
    pub most: usize,
}

/// Listens to effects, so that handlers note them.
struct Deaf;

impl CommitSink for Deaf {
    fn words(&self, _: At, _: &mut dyn Iterator<Item = &[u8]>) {}

    fn shared(&self, _: At, _: Arc<dyn Effects>) {}

    fn mark(&self, _: Lsn, _: Mark) {}
}

/// The results of a run.
struct TestRan {
    outcome: Outcome,
    result: Result<(), Error>,
    changes: Changes,
    effects: Vec<OwnedArgs>,
    looks: (usize, usize),
}

impl Db {
    /// Two databases, RESP2, streams and blocking allowed, one million steps, the year 2023.
    pub fn new() -> Db {
        let keyspace = Keyspace::new(2);
        keyspace.set_notify(u32::MAX);
        keyspace.listen(Arc::new(Deaf));
        Db {
            keyspace,
            now_ms: 1_700_000_000_000,
            db: 0,
            caller: Caller { may_block: true, may_stream: true, ..Caller::default() },
            steps: 1_000_000,
            over: Over::Locks,
            resp3: false,
            runs: 0,
            events: Vec::new(),
            ready: Vec::new(),
            effects: Vec::new(),
            dirty: 0,
            streamed: false,
            blocked: None,
            looks: 0,
            most: 0,
        }
    }

    /// Makes later commands run this way.
    pub fn over(mut self, over: Over) -> Db {
        self.over = over;
        self
    }

    /// Makes later replies RESP3.
    pub fn resp3(mut self) -> Db {
        self.resp3 = true;
        self
    }

    /// Runs the same checks in both ways a command may run.
    pub fn both(checks: impl Fn(Db)) {
        [Over::Locks, Over::Overlay].into_iter().for_each(|over| checks(Db::new().over(over)));
    }

    /// Runs one command and gives the reply as text.
    pub fn run(&mut self, words: &[&str]) -> String {
        render(&self.call(words))
    }

    /// Runs one command written as a line: words separated by blanks. `"…"` may hold blanks and `\xff`, `\n`,
    /// `\"`, `\\`.
    pub fn line(&mut self, line: &str) -> String {
        render(&self.call(&split(line)))
    }

    /// Runs each line and compares its reply.
    pub fn check(&mut self, lines: &[(&str, &str)]) {
        for (line, expected) in lines {
            let reply = self.line(line);
            assert_eq!(reply, *expected, "{line} ({:?})", self.over);
        }
    }

    /// Notifications since the last call, as `event:key`, in order.
    pub fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Keys with blocked clients that were filled since the last call (see `Keyspace::block`).
    pub fn ready(&mut self) -> Vec<String> {
        std::mem::take(&mut self.ready)
    }

    /// The last command's noted effects as lines.
    pub fn effect_lines(&self) -> Vec<String> {
        let text = |words: &OwnedArgs| {
            let words: Vec<_> = words.args().iter().map(|word| word.escape_ascii().to_string()).collect();
            words.join(" ")
        };
        self.effects.iter().map(text).collect()
    }

    /// The estimate of the command's row for these words, in steps.
    pub fn cost<W: AsRef<[u8]>>(&mut self, words: &[W]) -> usize {
        let words = OwnedArgs::from_slices(&words.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        let mut command = registry::find(words.args().at(0)).expect("a command");
        if matches!(command.run, Run::Container) {
            command =
                words.args().get(1).and_then(|name| registry::find_sub(command, name)).expect("a subcommand");
        }
        let view = View::locked(&self.keyspace, shards(command, words.args()), self.db, self.now_ms);
        let cost = command.steps(&view, words.args());
        command.reply_steps(&view, words.args());
        assert_eq!(view.strays(), 0, "{words:?}");
        view.finish();
        cost
    }

    /// Runs one command and gives the reply as a client would read it. A blocked command gives `Frame::Null`.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Frame {
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let words = OwnedArgs::from_slices(&words);
        self.call_args(words.args())
    }

    fn call_args(&mut self, args: Args<'_>) -> Frame {
        let mut out = Reply::new(self.resp3);
        self.runs += 1;
        (self.effects, self.dirty, self.streamed, self.blocked) = (Vec::new(), 0, false, None);
        match self.perform(args, &mut out) {
            Ok(()) => {}
            Err(error) => {
                out.clear();
                out.error(&error.text());
            }
        }
        if self.blocked.is_some() {
            assert!(out.is_empty(), "a blocked command has written {:?}", out.as_bytes().escape_ascii());
            return Frame::Null;
        }
        let (frame, used) = read_frame(out.as_bytes())
            .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", out.as_bytes().escape_ascii()))
            .unwrap_or_else(|| panic!("{args:?}: half a reply: {}", out.as_bytes().escape_ascii()));
        assert_eq!(used, out.len(), "{args:?}: more than one reply: {}", out.as_bytes().escape_ascii());
        frame
    }

    fn perform(&mut self, args: Args<'_>, out: &mut Reply) -> Result<(), Error> {
        let mut command = registry::find(args.at(0)).unwrap_or_else(|| panic!("no command {args:?}"));
        if matches!(command.run, Run::Container)
            && let Some(sub) = args.get(1).and_then(|name| registry::find_sub(command, name))
        {
            command = sub;
        }
        if !command.arity_fits(args.len()) {
            return Err(command.arity_error());
        }
        let ran = match self.over {
            Over::Locks => self.run_locked(command, args, out),
            Over::Overlay => self.run_overlay(command, args, out),
        };
        self.note(&ran);
        ran.result?;
        match ran.outcome {
            Outcome::Done => {}
            Outcome::Block(block) => {
                let swept = swept(&ran.changes);
                let told = self.effects.len() as u64;
                assert!(
                    self.dirty <= swept + told,
                    "{args:?}: a blocked command changed what it does not tell"
                );
                self.blocked = Some(block);
            }
            Outcome::Stream(stream) => {
                self.streamed = true;
                drain(stream, out);
            }
        }
        Ok(())
    }

    fn note(&mut self, ran: &TestRan) {
        let name = |key: &[u8]| key.escape_ascii().to_string();
        self.dirty = ran.changes.dirty;
        self.effects = ran.effects.clone();
        (self.looks, self.most) = ran.looks;
        self.events.extend(ran.changes.told().events.iter().map(|e| format!("{}:{}", e.name, name(&e.key))));
        self.ready.extend(ran.changes.told().ready.iter().map(|ready| match ready {
            Ready::Key(_, key) => name(key),
            Ready::Database(db) => format!("all in {db}"),
        }));
    }

    fn run_locked(&mut self, command: &'static Command, args: Args<'_>, out: &mut Reply) -> TestRan {
        let mut view = match command.run {
            Run::Whole(_) => View::open(&self.keyspace, self.db, self.now_ms),
            _ => View::locked(&self.keyspace, shards(command, args), self.db, self.now_ms),
        };
        let (result, outcome, effects, looks) = self.handle(&mut view, command, args, out);
        let ran = TestRan { result, outcome, effects, looks, changes: view.finish() };
        assert!(
            ran.result.is_ok() || ran.changes.dirty <= swept(&ran.changes),
            "{args:?}: an error after a change"
        );
        ran
    }

    fn run_overlay(&mut self, command: &'static Command, args: Args<'_>, out: &mut Reply) -> TestRan {
        let snapshot = Snapshot::open(&self.keyspace).expect("few snapshots are open");
        let mut overlay = Overlay::new(snapshot, None);
        let mut keys = Vec::new();
        command.each_key(args, &mut |i, _| keys.push(args.at(i)));
        overlay.load(self.db, keys);
        let (result, outcome, effects, looks) = loop {
            let mut view = View::overlay(&self.keyspace, &mut overlay, self.db, self.now_ms);
            let done = self.handle(&mut view, command, args, out);
            drop(view);
            if !overlay.load_missing() {
                break done;
            }
            out.clear();
        };
        let changes = overlay.commit(self.now_ms, None).expect("there is no other client");
        assert!(result.is_ok() || changes.dirty <= swept(&changes), "{args:?}: an error after a change");
        TestRan { result, outcome, effects, looks, changes }
    }

    fn handle(
        &self,
        view: &mut View<'_>,
        command: &Command,
        args: Args<'_>,
        out: &mut Reply,
    ) -> (Result<(), Error>, Outcome, Vec<OwnedArgs>, (usize, usize)) {
        if self.caller.in_replay {
            view.set_expired_live();
        }
        let mut cx = Cx::new(view, out, self.caller, Budget::steps(self.steps), self.runs);
        let result = match command.run {
            Run::Read(handler) | Run::Write(handler) | Run::Whole(handler) => handler(&mut cx, args),
            Run::Exec | Run::Container => panic!("{} is not a function of the keyspace", command.name),
        };
        (result, cx.outcome, cx.effects, cx.budget.looks)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.keyspace.check_invariants();
        }
    }
}

/// The number of expired keys swept during the run. Each counts as a change.
fn swept(changes: &Changes) -> u64 {
    changes.told().events.iter().filter(|event| event.name == "expired").count() as u64
}

fn shards(command: &Command, args: Args<'_>) -> Bits {
    let mut keys = Vec::new();
    if !command.each_key(args, &mut |i, _| keys.push(args.at(i))) {
        keys.clear();
    }
    Keyspace::shards_of(keys)
}

/// Fills piece by piece, with room for 1000 bytes each time.
fn drain(mut stream: Box<dyn Stream>, out: &mut Reply) {
    loop {
        let before = out.len();
        let more = stream.fill(out, 1000);
        assert!(!more || out.len() > before, "a stream that gives nothing but has more");
        if !more {
            return;
        }
    }
}

/// The words of a line. See [`Db::line`].
pub(crate) fn split(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start().as_bytes();
    while !rest.is_empty() {
        let mut word = Vec::new();
        if let [b'"', quoted @ ..] = rest {
            rest = unquote(quoted, &mut word);
        } else {
            let end = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
            word.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        words.push(word);
        rest = rest.trim_ascii_start();
    }
    words
}

fn unquote<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> &'a [u8] {
    loop {
        match rest {
            [b'"', after @ ..] => return after,
            [b'\\', b'x', hex @ ..] => {
                let digits = std::str::from_utf8(&hex[..2]).expect("two hex digits");
                word.push(u8::from_str_radix(digits, 16).expect("two hex digits"));
                rest = &hex[2..];
            }
            [b'\\', b'n', after @ ..] => {
                word.push(b'\n');
                rest = after;
            }
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                word.push(*byte);
                rest = after;
            }
            [] => panic!("a quotation mark is not closed"),
        }
    }
}

/// A reply as text. See the module.
pub(crate) fn render(frame: &Frame) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let list = |frames: &[Frame]| frames.iter().map(render).collect::<Vec<_>>().join(", ");
    match frame {
        Frame::Simple(line) => text(line),
        Frame::Error(line) => format!("-{}", text(line)),
        Frame::Int(n) => n.to_string(),
        Frame::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Frame::Null => "nil".into(),
        Frame::NullArray => "nil array".into(),
        Frame::Array(frames) => format!("[{}]", list(frames)),
        Frame::Set(frames) => format!("~{{{}}}", list(frames)),
        Frame::Push(frames) => format!(">[{}]", list(frames)),
        Frame::Map(pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(k, v)| format!("{}: {}", render(k), render(v))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Frame::Double(value) => value.to_string(),
        Frame::Bool(value) => value.to_string(),
        Frame::BigNumber(digits) => text(digits),
        Frame::Verbatim { text: t, .. } => format!("\"{}\"", t.escape_ascii()),
    }
}

#[test]
fn lines_are_split_as_a_shell_would() {
    assert_eq!(
        split(r#"set k "a b\x00\"" """#),
        [b"set".to_vec(), b"k".into(), b"a b\0\"".into(), b"".into()]
    );
}
