//! DEBUG: the subcommands that test suites of clients use.
//!
//! - D1: no subcommand makes other clients wait, except STALL, which tests whether waits name their culprit.
//!   SLEEP parks its own client; in a transaction it delays the reply of EXEC, not the commit. Digests are
//!   computed on a thread of their own, from shared values; of a keyspace under writes they show no one moment.

use super::answer::{aside, help, report};
use super::server::sleep;
use crate::Server;
use crate::act::{Act, KEYSPACE, Row};
use command::Flow;
use command::digest::{self, Digest};
use command::helps;
use command::options::is;
use command::{Error, Stream};
use keyspace::{Keyspace, View};
use resp::{Args, Reply};
use std::path::Path;
use std::sync::Arc;
use stdx::glob::Match;
use stdx::points::{self, Mode, Point};
use value::{Enc, Kind, Value};
use work::reports::Report;

pub(super) const ACTIONS: &[Row] = &[Row("debug", debug, KEYSPACE)];

/// Longest text of STRINGMATCH-LEN: matching costs length times pattern.
const MATCH_MAX: i64 = 100_000;

/// `DEBUG subcommand ...`: costs and errors are those of the subcommand. Errors: `enable-debug-command` does
/// not admit the client.
fn debug(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if !act.server.config.live.debug_access().admits(act.session.is_local()) {
        return Err(Error::new(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from \
             a local connection, otherwise you need to set this option in the configuration file, and then restart the \
             server.",
        ));
    }
    let name = args.at(1).to_ascii_lowercase();
    let result = subcommand(act, &name, args);
    if TELLING.contains(&&name[..]) {
        act.server.gate_of_all(act.session);
    }
    result
}

/// Subcommands whose replies depend on the keyspace.
const TELLING: [&[u8]; 5] = [b"object", b"htstats", b"digest", b"digest-value", b"populate"];

fn subcommand(act: &mut Act<'_, '_>, name: &[u8], args: Args<'_>) -> Result<Flow, Error> {
    match (name, args.len()) {
        (b"help", 2) => return help(act, "DEBUG", helps::DEBUG),
        (b"sleep", 3) => return debug_sleep(act, args.at(2)),
        (b"digest", 2) => return digest(act),
        (b"digest-value", _) => return digest_value(act, args),
        (b"populate", 3..=5) => return populate(act, args),
        (b"point", 3..=5) => point(act.out, args)?,
        (b"object", 3..=4) => object(act, args.at(2))?,
        (b"protocol", 3) => protocol(act.out, args.at(2))?,
        (b"error", 3) => act.out.error(&String::from_utf8_lossy(args.at(2))),
        (b"htstats", 3..=4) => htstats(act, args.at(2))?,
        (b"http-show", _) => http_show(act, args)?,
        (b"stringmatch-len", 4) => return stringmatch(act, args),
        (b"quicklist-packed-threshold", 3) | (b"change-repl-id" | b"jmap", 2) => act.out.ok(),
        (b"reload", 2..=5) => return reload(act, args),
        (b"loadaof", 2) => return load_aof(act),
        (b"restart" | b"crash-and-recover", _) => {
            return Err(Error::new("ERR this DEBUG subcommand does not exist in Evenkeel yet"));
        }
        _ => of_server(act, name, args)?,
    }
    Ok(Flow::Done)
}

/// Runs a subcommand that acts on the server as a whole.
fn of_server(act: &mut Act<'_, '_>, name: &[u8], args: Args<'_>) -> Result<(), Error> {
    match (name, args.len()) {
        #[expect(clippy::panic, reason = "what it is for")]
        (b"panic", 2) => {
            stdx::panics::changes();
            panic!("DEBUG PANIC")
        }
        (b"stall", 2) => points::hold_up(Point::Loop),
        // Not in a transaction or script, which hold locks.
        (b"stall", 3) if act.view.is_none() => {
            let view =
                View::locked_one(&act.server.keyspace, args.at(2), act.session.db, act.local.log.now_ms);
            points::hold_up(Point::Loop);
            act.server.after(act.local, view.finish());
        }
        (b"set-active-expire", 3) => {
            let on = stdx::num::parse_i64(args.at(2)).unwrap_or(0) != 0;
            act.server.keyspace.set_active_expire(on);
        }
        (b"log", 3) => log::warn!("DEBUG LOG: {}", String::from_utf8_lossy(args.at(2))),
        _ => {
            let name = String::from_utf8_lossy(args.at(1));
            return Err(format!(
                "ERR unknown subcommand or wrong number of arguments for '{name}'. Try DEBUG HELP."
            )
            .into());
        }
    }
    act.out.ok();
    Ok(())
}

/// `DEBUG RELOAD [MERGE] [NOFLUSH] [NOSAVE]`: with NOFLUSH the data stays; with MERGE, keys and libraries of
/// the file take the place of present ones, without it they end the load. O(keys), on threads. Errors: in a
/// transaction; a snapshot is under way; the load fails; syntax.
fn reload(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (mut saves, mut flushes, mut merges) = (true, true, false);
    for word in args.from(2).iter() {
        match () {
            () if is(word, "nosave") => saves = false,
            () if is(word, "noflush") => flushes = false,
            () if is(word, "merge") => merges = true,
            () => return Err(Error::Syntax),
        }
    }
    if act.in_multi || act.in_script {
        return Err(Error::new("ERR DEBUG RELOAD is not allowed in a transaction"));
    }
    let (done, wait) = std::sync::mpsc::channel();
    if saves {
        let tell = move |saved: Result<&Path, &str>| -> durable::Answer {
            let saved = saved.map(Path::to_path_buf).map_err(str::to_owned);
            Box::new(move || drop(done.send(saved)))
        };
        if !act.server.durability.begin(&mut act.local.works, durable::Purpose::Save, Some(Box::new(tell))) {
            return Err(Error::new("ERR Background save already in progress"));
        }
    }
    let durability = act.server.durability.clone();
    aside(act, "reload", move |out| {
        let saved = saves.then(|| wait.recv().unwrap_or_else(|_| Err("it was given up".into())));
        match saved.transpose().and_then(|written| durability.reload(written.as_deref(), flushes, merges)) {
            Ok(()) => out.ok(),
            Err(why) => {
                out.error(&format!("ERR Error trying to load the RDB dump, check server logs: {why}"))
            }
        }
    })
}

/// `DEBUG LOADAOF`. Cost: O(keys), on a thread. Errors: within a transaction; no log; the load fails.
fn load_aof(act: &mut Act<'_, '_>) -> Result<Flow, Error> {
    if act.in_multi || act.in_script {
        return Err(Error::new("ERR DEBUG LOADAOF is not allowed in a transaction"));
    }
    let durability = act.server.durability.clone();
    aside(act, "loadaof", move |out| match durability.reload_log() {
        Ok(()) => out.ok(),
        Err(why) => out.error(&format!("ERR Error trying to load the AOF files, check server logs: {why}")),
    })
}

/// `DEBUG STRINGMATCH-LEN length pattern`. O(length · pattern), away from the loop. Errors: the length is no
/// number.
fn stringmatch(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let len = command::options::int(args.at(2))?.clamp(0, MATCH_MAX);
    let pattern: Box<[u8]> = args.at(3).into();
    report(act, move || Text { text: vec![b'a'; len as usize], pattern, matching: Match::default() })
}

/// A text that is compared with a pattern.
struct Text {
    text: Vec<u8>,
    pattern: Box<[u8]>,
    matching: Match,
}

impl Report for Text {
    fn step(&mut self, out: &mut Reply, looks: &mut usize) -> bool {
        let verdict = self.matching.go_on(&self.pattern, &self.text, false, looks);
        verdict.into_iter().for_each(|verdict| out.int(verdict.into()));
        verdict.is_none()
    }
}

/// `DEBUG HTTP-SHOW [name pattern url [option value ...]]`
fn http_show(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let words: Vec<_> = args.from(2).iter().map(String::from_utf8_lossy).collect();
    let spec = match words.is_empty() {
        true => None,
        false => {
            let spec = source::Spec::parse(words.iter().map(|word| &**word));
            Some(spec.map_err(|e| Error::from(format!("ERR {e}")))?)
        }
    };
    act.server.http.show_plain(spec, &act.server.rows.list());
    act.out.ok();
    Ok(())
}

/// `DEBUG SLEEP seconds`: a word that is no number counts as 0, as in Redis. In a transaction the reply of EXEC
/// waits instead, for the sum of its sleeps. O(1)
fn debug_sleep(act: &mut Act<'_, '_>, seconds: &[u8]) -> Result<Flow, Error> {
    let seconds = stdx::num::parse_f64(seconds).unwrap_or(0.0).clamp(0.0, 1e9);
    let ms = (seconds * 1000.0).ceil() as u64;
    if act.in_multi {
        act.session.half.sleep_ms = act.session.half.sleep_ms.saturating_add(ms);
    }
    let mut answer = Reply::new(act.out.resp3());
    answer.ok();
    sleep(act, "debug", (ms > 0).then_some(ms), answer)
}

/// `DEBUG POINT name [OFF | DELAY microseconds | HOLD count | PANIC count]`: see [`stdx::points`].
fn point(out: &mut Reply, args: Args<'_>) -> Result<(), Error> {
    let name = String::from_utf8_lossy(args.at(2)).to_ascii_lowercase();
    let point = points::named(&name).ok_or(Error::new("ERR no such point. Try DEBUG HELP."))?;
    let number = |i| args.get(i).and_then(stdx::num::parse_i64).and_then(|n| u32::try_from(n).ok());
    let action = args.get(3).map(<[u8]>::to_ascii_lowercase);
    let mode = match (action.as_deref(), number(4)) {
        (None, _) => {
            out.int(points::held(point) as i64);
            return Ok(());
        }
        (Some(b"off"), None) => Mode::Off,
        (Some(b"delay"), Some(us)) => Mode::Delay(us),
        (Some(b"hold"), Some(count)) => Mode::Hold(count as usize),
        (Some(b"panic"), Some(count)) => Mode::Panic(count as usize),
        _ => return Err(Error::Syntax),
    };
    points::set(point, mode);
    out.ok();
    Ok(())
}

/// Runs `f` on a view of the key: the transaction's, or a new one.
fn look<R>(act: &mut Act<'_, '_>, key: &[u8], f: impl FnOnce(&View<'_>) -> R) -> R {
    if let Some(view) = &act.view {
        return f(view);
    }
    let keyspace = &act.server.keyspace;
    let view = View::locked(keyspace, Keyspace::shards_of([key]), act.session.db, act.local.log.now_ms);
    let found = f(&view);
    act.server.after(act.local, view.finish());
    found
}

/// `DEBUG OBJECT key`, in the form that test suites parse.
fn object(act: &mut Act<'_, '_>, key: &[u8]) -> Result<(), Error> {
    let found = look(act, key, |view| {
        let value = view.value(key)?.to_value();
        let encoding = match value.encoding() {
            Enc::EmbStr if view.is_raw(key) => Enc::Raw,
            encoding => encoding,
        };
        Some((encoding, value.kind(), value.len(), value.mem_bytes()))
    });
    let (encoding, kind, len, bytes) = found.ok_or(Error::NoSuchKey)?;
    let size = if kind == Kind::Str { len + 1 } else { bytes };
    let name = encoding.name();
    act.out.simple(&format!(
        "Value at:0x0 refcount:1 encoding:{name} serializedlength:{size} lru:0 lru_seconds_idle:0"
    ));
    Ok(())
}

fn htstats(act: &mut Act<'_, '_>, db: &[u8]) -> Result<(), Error> {
    let db = usize::try_from(command::options::int(db)?).ok();
    let db = db.filter(|db| *db < act.server.keyspace.databases());
    let db = db.ok_or(Error::new("ERR Out of range database"))?;
    let (keys, expires) = (act.server.keyspace.len(db), act.server.keyspace.expires(db));
    let text =
        format!("[Dictionary HT]\nnumber of elements: {keys}\n[Expires HT]\nnumber of elements: {expires}\n");
    act.out.verbatim("txt", text.as_bytes());
    Ok(())
}

/// `DEBUG PROTOCOL type`: one reply of each kind.
#[allow(clippy::approx_constant, reason = "the number clients expect, which is not meant to be pi")]
fn protocol(out: &mut Reply, kind: &[u8]) -> Result<(), Error> {
    match &kind.to_ascii_lowercase()[..] {
        b"string" => out.bulk(b"Hello World"),
        b"integer" => out.int(12345),
        b"double" => out.double(3.141),
        b"null" => out.null(),
        b"bignum" => out.big_number("1234567999999999999999999999999999999"),
        b"true" => out.bool(true),
        b"false" => out.bool(false),
        b"verbatim" => out.verbatim("txt", b"This is a verbatim\nstring"),
        b"array" => {
            out.array(3);
            (0..3).for_each(|n| out.int(n));
        }
        b"set" => {
            out.set(3);
            (0..3).for_each(|n| out.int(n));
        }
        b"map" => {
            out.map(3);
            for n in 0..3 {
                out.int(n);
                out.bool(n == 1);
            }
        }
        b"attrib" => {
            if out.attribute(1) {
                out.bulk(b"key-popularity");
                out.array(2);
                out.bulk(b"key:123");
                out.int(90);
            }
            out.bulk(b"Some real reply following the attribute");
        }
        b"push" if !out.resp3() => return Err(Error::new("ERR RESP2 is not supported by this command")),
        b"push" => {
            out.bulk(b"Some real reply following the push reply");
            out.push(2);
            out.bulk(b"server-cpu-usage");
            out.int(42);
        }
        _ => {
            return Err(Error::new(
                "ERR Wrong protocol type name. Please use one of the following: string|integer|double|bignum|null|array|\
                 set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}

// ----- POPULATE
// ---------------------------------------------------------------------------------------------

/// Keys made in one slice.
const POPULATE_SLICE: u64 = 200;

struct Populate {
    server: Arc<Server>,
    db: usize,
    prefix: Box<[u8]>,
    size: usize,
    next: u64,
    count: u64,
}

/// `DEBUG POPULATE count [prefix] [size]`. O(count · size), in slices. No keyspace events are sent, as in
/// Redis. Errors: no numbers; a size above `proto-max-bulk-len`; in a transaction.
fn populate(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    const RANGE: Error = Error::new("ERR value is out of range, must be positive");
    if act.in_multi {
        return Err(Error::new("ERR DEBUG POPULATE is not allowed in a transaction"));
    }
    let number = |arg| u64::try_from(command::options::int(arg)?).map_err(|_| RANGE);
    let size = args.get(4).map(number).transpose()?.unwrap_or(0);
    if size > act.server.config.live.proto_max_bulk_bytes.size() as u64 {
        return Err(RANGE);
    }
    Ok(Flow::Stream(Box::new(Populate {
        server: act.server.clone(),
        db: act.session.db,
        prefix: args.get(3).unwrap_or(b"key").into(),
        size: size as usize,
        next: 0,
        count: number(args.at(2))?,
    })))
}

impl Stream for Populate {
    fn reads_on(&self) -> bool {
        true
    }

    fn fill(&mut self, out: &mut Reply, _: usize) -> bool {
        let keyspace = &self.server.keyspace;
        // Large values make a slice shorter.
        let slice = (POPULATE_SLICE / (1 + self.size as u64 / 256)).max(1);
        let end = self.count.min(self.next + slice);
        for n in self.next..end {
            let mut key = self.prefix.to_vec();
            key.extend_from_slice(format!(":{n}").as_bytes());
            let now_ms = stdx::clock::wall_ms();
            let mut view = View::locked(keyspace, Keyspace::shards_of([&key[..]]), self.db, now_ms);
            if !view.exists(&key) {
                let mut value = format!("value:{n}").into_bytes();
                if self.size > 0 {
                    value.resize(self.size, 0);
                }
                view.put_string(&key, &value, None);
                keyspace.tell_replaced();
            }
            view.finish();
        }
        self.next = end;
        if end == self.count {
            out.ok();
        }
        end < self.count
    }

    fn has_effects(&self) -> bool {
        true
    }
}

// ----- DIGEST
// -----------------------------------------------------------------------------------------------

/// `DEBUG DIGEST`: zero if there are no keys. O(elements of all keys), on a thread of its own. Errors: in a
/// transaction.
fn digest(act: &mut Act<'_, '_>) -> Result<Flow, Error> {
    let server = act.server.clone();
    on_a_thread(act, move |out| {
        let now_ms = stdx::clock::wall_ms();
        let all = (0..server.keyspace.databases()).map(|db| digest::of_db(&server.keyspace, db, now_ms));
        out.simple(&hex(all.fold(Digest::default(), digest::mixed)));
    })
}

/// `DEBUG DIGEST-VALUE key [key ...]`: zero for absent keys. O(elements), on a thread of its own. Errors: in
/// a transaction.
fn digest_value(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let values: Vec<Option<Value>> = args
        .from(2)
        .iter()
        .map(|key| look(act, key, |view| view.value(key).map(|value| value.to_value())))
        .collect();
    on_a_thread(act, move |out| {
        out.array(values.len());
        for value in &values {
            out.simple(&hex(value.as_ref().map(digest::of_value).unwrap_or_default()));
        }
    })
}

/// Runs work that may take very long on a thread of its own; the reply comes by mail. O(1) here. Errors: in a
/// transaction.
fn on_a_thread(act: &mut Act<'_, '_>, work: impl FnOnce(&mut Reply) + Send + 'static) -> Result<Flow, Error> {
    if act.in_multi {
        return Err(Error::new("ERR digests are not computed in a transaction: other clients would wait"));
    }
    aside(act, "digest", work)
}

fn hex(digest: Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
