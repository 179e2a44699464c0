//! `evenkeel copy`: copies keys from one server to another, as payloads.
//!
//! Clients may write to the source meanwhile: each value is of one moment, but not all of the same.

use crate::advice::about_server;
use crate::load::{SAID, takes_payloads};
use crate::options::{Copy, Existing, OnError};
use crate::progress::{Progress, number};
use crate::resume::CopyResume;
use crate::rows::Place;
use crate::send::{Account, Earlier, SMALL, Sender};
use crate::shape::{Payloads, Piece};
use crate::stop::Stop;
use crate::wire::Conn;
use dial::{Frame, put_request};
use rdb::Dialect;
use reach::Address;
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Keys whose values are asked for at a time.
const ASKED: usize = 100;
/// Replies of SCAN in a row that may lead nowhere.
const STUCK_MAX: u32 = 1000;

/// Copies, and returns the last line to print. Errors: why it ended early.
pub fn run(options: &Copy, stop: &Stop) -> Result<String, String> {
    if options.existing == Existing::Merge {
        return Err("--existing merge is not possible for copies".to_owned());
    }
    if options.resume.is_some() && options.existing == Existing::Fail {
        return Err("--resume needs --existing skip or replace: keys that were being copied when the run ended are sent again, and \
                    they cannot be told from keys of others"
            .to_owned());
    }
    let (from, to) = (options.source()?, options.target.address()?);
    let mut source = Conn::open(&from, stop)?;
    if options.dry_run {
        let mut walk = Walk::new(source, options, stop);
        while walk.next_keys()?.is_some() {}
        return Ok(format!("{} keys would be copied; nothing was sent", number(walk.keys)));
    }
    let total = match source.call(&[b"DBSIZE"])? {
        Frame::Int(keys) if options.pattern == "*" => u64::try_from(keys).ok(),
        _ => None,
    };
    let mut target = Conn::open(&to, stop)?;
    let resume = match &options.resume {
        Some(path) => Some(open_resume(path, (&from, &mut source), (&to, &mut target), &options.pattern)?),
        None => None,
    };
    let mut walk = Walk::new(source, options, stop);
    walk.gathers = takes_payloads(&mut target)? == Payloads::Many;
    walk.dialect = if walk.gathers { None } else { Some(dialect(&mut target)?) };
    drop(target);
    if let Some(resume) = &resume {
        (walk.cursor, walk.keys) = (resume.cursor.clone().map(String::into_bytes), resume.keys);
    }
    let stops = options.on_error == OnError::Stop;
    let sender = Sender::start(
        &to,
        options.target.connections.into(),
        stops,
        options.existing,
        &Earlier::default(),
        stop,
    )?;
    let job = Job {
        account: sender.account().clone(),
        progress: Progress::start(total),
        stops,
        refused: 0,
        resume,
        steps: VecDeque::new(),
    };
    job.copy(walk, sender)
}

/// Reads the progress of an earlier run; prints it if copying starts over.
fn open_resume(
    path: &Path,
    (from, source): (&Address, &mut Conn),
    (to, target): (&Address, &mut Conn),
    pattern: &str,
) -> Result<CopyResume, String> {
    let run_ids = [source.info("server", "run_id")?, target.info("server", "run_id")?];
    let [from, to] = [from, to].map(|end| (&end.server.place, end.db));
    let job = format!("{pattern} of {}, database {}, to {}, database {}", from.0, from.1, to.0, to.1);
    let (resume, again) = CopyResume::open(path, job, run_ids)?;
    if let Some(why) = again {
        let _ = writeln!(std::io::stderr(), "{}", dial::shown(why));
    }
    Ok(resume)
}

/// The dialect of payloads that the target takes.
fn dialect(target: &mut Conn) -> Result<Dialect, String> {
    let name = target.info("server", "server_name")?;
    Ok(if name.as_deref() == Some("valkey") { Dialect::Valkey } else { Dialect::Redis })
}

struct Job {
    account: Arc<Account>,
    progress: Progress,
    /// The first refusal ends the copy.
    stops: bool,
    refused: u64,
    resume: Option<CopyResume>,
    /// The answers of SCAN that are not known to be copied: cursor and number of keys so far. As marks of the
    /// sender they are numbered from 1 (D3).
    steps: VecDeque<Step>,
}

struct Step {
    number: u64,
    cursor: String,
    keys: u64,
}

impl Job {
    fn copy(mut self, mut walk: Walk<'_>, mut sender: Sender) -> Result<String, String> {
        let before = walk.keys;
        let ended = self.feed(&mut walk, &mut sender);
        // All values that were read are still sent, unless the run was interrupted.
        sender.finish();
        let heard = self.hear();
        let ended = walk.stop.check().and(ended).and(heard);
        let noted = self.note(true);
        let mut text =
            self.progress.finish(&self.account, self.refused).replacen(" rows as ", " keys as ", 1);
        if before > 0 {
            text.push_str(&format!("; {} by earlier runs", number(before)));
        }
        if let (Some(resume), Err(_), Ok(())) = (&self.resume, &ended, &noted) {
            text.push_str(&format!("; the same command goes on behind {} keys", number(resume.keys)));
        }
        match ended.and(noted) {
            Ok(()) => Ok(text),
            Err(reason) => Err(format!("{reason}\nstopped: {text}")),
        }
    }

    fn feed(&mut self, walk: &mut Walk<'_>, sender: &mut Sender) -> Result<(), String> {
        let mut number = 0;
        while !self.account.is_stopped() {
            let Some(keys) = walk.next_keys()? else { break };
            for part in keys.chunks(ASKED) {
                walk.values(part, &self.account)?.into_iter().for_each(|piece| sender.push(piece));
            }
            // Before the mark: a key that the source refused has no piece that could be open.
            self.hear()?;
            number += 1;
            sender.mark(Place { line: number, offset: 0 });
            let cursor = String::from_utf8_lossy(walk.cursor.as_deref().unwrap_or_default()).into_owned();
            self.steps.push_back(Step { number, cursor, keys: walk.keys });
            self.note(false)?;
            self.progress.show(walk.keys, &self.account);
        }
        Ok(())
    }

    /// Notes and saves how far everything is copied.
    fn note(&mut self, last: bool) -> Result<(), String> {
        let through = self.account.safe_place().map_or(0, |place| place.line);
        let count = self.steps.iter().take_while(|step| step.number <= through).count();
        let step = self.steps.drain(..count).next_back();
        let Some(resume) = &mut self.resume else { return Ok(()) };
        if let Some(Step { cursor, keys, .. }) = step {
            resume.reach(cursor, keys);
        }
        resume.note(last)
    }

    /// Handles the refusals since the last call.
    fn hear(&mut self) -> Result<(), String> {
        let mut ends = Ok(());
        for refusal in self.account.take_refusals() {
            let text = format!("{}: {}", refusal.name, refusal.reason);
            self.refused += u64::from(!refusal.fatal);
            if refusal.fatal || self.stops {
                ends = ends.and(Err(text));
                continue;
            }
            match self.refused {
                ..=SAID => self.progress.say(&text),
                n if n == SAID + 1 => self.progress.say("further errors are only counted"),
                _ => {}
            }
        }
        ends
    }
}

/// A walk over the keys of the source.
struct Walk<'a> {
    source: Conn,
    options: &'a Copy,
    /// The target takes several small values in one command.
    gathers: bool,
    /// The dialect of payloads that the target takes; None if it takes all.
    dialect: Option<Dialect>,
    /// None before the first call; "0" after the last.
    cursor: Option<Vec<u8>>,
    /// Hashes of the keys that came: SCAN may return a key twice.
    seen: HashSet<u64>,
    keys: u64,
    /// Replies of SCAN in a row that had the cursor of the request, and no key.
    stuck: u32,
    stop: Stop,
}

impl<'a> Walk<'a> {
    /// Begins at the start, for a target that takes values one by one.
    fn new(source: Conn, options: &'a Copy, stop: &Stop) -> Walk<'a> {
        let (seen, stop) = (HashSet::new(), stop.clone());
        Walk { source, options, gathers: false, dialect: None, cursor: None, seen, keys: 0, stuck: 0, stop }
    }

    /// The next keys; None at the end.
    fn next_keys(&mut self) -> Result<Option<Vec<Vec<u8>>>, String> {
        self.stop.check()?;
        if self.cursor.as_deref() == Some(b"0") {
            return Ok(None);
        }
        let cursor = self.cursor.take().unwrap_or_else(|| b"0".to_vec());
        let words: [&[u8]; 6] =
            [b"SCAN", &cursor, b"MATCH", self.options.pattern.as_bytes(), b"COUNT", b"1000"];
        let reply = self.source.call(&words)?;
        let Frame::Array(parts) = reply else {
            return Err("the source's SCAN did not answer with an array".to_owned());
        };
        let (Some(Frame::Bulk(next)), Some(Frame::Array(found))) = (parts.first(), parts.get(1)) else {
            return Err("the source's SCAN did not answer with a cursor and keys".to_owned());
        };
        // Each call goes on, in every server.
        self.stuck = if *next == cursor && found.is_empty() { self.stuck + 1 } else { 0 };
        if self.stuck > STUCK_MAX {
            return Err("the source's SCAN does not go on".to_owned());
        }
        self.cursor = Some(next.clone());
        let keys = found.iter().filter_map(|key| match key {
            Frame::Bulk(key) => Some(key.clone()),
            _ => None,
        });
        let keys: Vec<Vec<u8>> = keys.filter(|key| self.seen.insert(hash(key))).collect();
        self.keys += keys.len() as u64;
        Ok(Some(keys))
    }

    /// The values of keys, each with its time to live of the same moment. Keys that are gone meanwhile are
    /// left out; keys whose value the source refuses are recorded as refused.
    fn values(&mut self, keys: &[Vec<u8>], account: &Account) -> Result<Vec<Piece>, String> {
        let mut bytes = Vec::new();
        for key in keys {
            put_request(&mut bytes, &[b"MULTI"]);
            put_request::<&[u8]>(&mut bytes, &[b"PTTL", key]);
            put_request::<&[u8]>(&mut bytes, &[b"DUMP", key]);
            put_request(&mut bytes, &[b"EXEC"]);
        }
        self.source.send(&bytes)?;
        self.source.take_values(true);
        let mut pieces = Vec::new();
        for key in keys {
            match self.given()? {
                Given::Value { ttl_ms, payload } => pieces.push(self.piece(key, ttl_ms, payload)),
                Given::Gone => {}
                Given::Refused(text) => {
                    let reason = format!("the source refused DUMP: {}", dial::shown(&text));
                    account.refuse(0, &String::from_utf8_lossy(key), reason, false);
                }
            }
        }
        self.source.take_values(false);
        Ok(pieces)
    }

    /// Reads the source's answer for the next key. Errors: those of the connection, and errors about the
    /// source that other keys would meet too.
    fn given(&mut self) -> Result<Given, String> {
        let queued = [self.source.reply()?, self.source.reply()?, self.source.reply()?];
        let text = match self.source.reply()? {
            Frame::Array(pair) => match <[Frame; 2]>::try_from(pair) {
                Ok([Frame::Int(ttl_ms), Frame::Bulk(payload)]) => {
                    return Ok(Given::Value { ttl_ms, payload });
                }
                Ok([_, Frame::Error(text)] | [Frame::Error(text), _]) => text,
                _ => return Ok(Given::Gone),
            },
            Frame::Error(text) => {
                // The first refusal in the transaction is the reason.
                let why = queued.into_iter().find_map(|reply| match reply {
                    Frame::Error(why) => Some(why),
                    _ => None,
                });
                why.unwrap_or(text)
            }
            _ => return Ok(Given::Gone),
        };
        about_server(&self.source.place, &text).map_or(Ok(Given::Refused(text)), Err)
    }

    fn piece(&self, key: &[u8], ttl_ms: i64, payload: Vec<u8>) -> Piece {
        let name = String::from_utf8_lossy(key).into_owned();
        let kind = Some(rdb::kind_of(&payload));
        let mut piece = Piece { rows: 1, commands: 1, route: hash(key), name, kind, ..Piece::default() };
        let payload = self.dialect.and_then(|to| rdb::translate(&payload, to)).unwrap_or(payload);
        // 0 would mean that the key never expires.
        let ttl = if ttl_ms < 0 { "0".to_owned() } else { ttl_ms.max(1).to_string() };
        if self.gathers && payload.len() <= SMALL {
            piece.gathered(key, ttl.as_bytes(), &payload);
            return piece;
        }
        let mut words: Vec<&[u8]> = vec![b"RESTORE", key, ttl.as_bytes(), &payload];
        if self.options.existing == Existing::Replace {
            words.push(b"REPLACE");
        }
        put_request(&mut piece.bytes, &words);
        piece
    }
}

/// The source's answer for a key.
enum Given {
    Value {
        ttl_ms: i64,
        payload: Vec<u8>,
    },
    Gone,
    /// The text of the error.
    Refused(Vec<u8>),
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}
