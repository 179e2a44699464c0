//! `evenkeel copy`: keys from one server to another, as payloads.
//!
//! Keys are read while others may write them: each value is as it was at one moment, all of them are not.

use crate::advice::about_server;
use crate::load::{SAID, takes_payloads};
use crate::options::{Copy, Existing, OnError};
use crate::progress::{Progress, number};
use crate::send::{Account, SMALL, Sender};
use crate::shape::{Payloads, Piece};
use crate::stop::Stop;
use crate::wire::{Address, Conn, put_command};
use rdb::Dialect;
use resp::Frame;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};

/// Keys asked for at a time.
const ASKED: usize = 100;

/// Copies; the last line to print, or why it ended before.
pub fn run(options: &Copy, stop: &Stop) -> Result<String, String> {
    if options.existing == Existing::Merge {
        return Err("--existing merge is not possible for copies".to_owned());
    }
    let (from, to) = (options.source()?, options.target.address()?);
    let mut source = Conn::open(&from, stop)?;
    let total = match source.call(&[b"DBSIZE"])? {
        Frame::Int(keys) if options.pattern == "*" => u64::try_from(keys).ok(),
        _ => None,
    };
    let gathers = !options.dry_run && takes_payloads(&to, stop)? == Payloads::Many;
    let dialect = if options.dry_run || gathers { None } else { Some(dialect(&to, stop)?) };
    let (seen, stop) = (HashSet::new(), stop.clone());
    let mut walk = Walk { source, options, gathers, dialect, cursor: None, seen, keys: 0, stop };
    if options.dry_run {
        while walk.next_keys()?.is_some() {}
        return Ok(format!("{} keys would be copied; nothing was sent", number(walk.keys)));
    }
    let stops = options.on_error == OnError::Stop;
    let mut sender =
        Sender::start(&to, options.target.connections.into(), stops, options.existing, 0, &walk.stop)?;
    let account = sender.account().clone();
    let mut progress = Progress::start(total);
    let mut refused = 0;
    let ended = feed(&mut walk, &mut sender, &account, &mut progress, &mut refused);
    // What was read is sent, however it ended.
    sender.finish();
    let heard = hear(&account, &mut refused, &progress, stops);
    let ended = walk.stop.check().and(ended).and(heard);
    let text = progress.finish(&account, refused).replacen(" rows as ", " keys as ", 1);
    match ended {
        Ok(()) => Ok(text),
        Err(reason) => Err(format!("{reason}\nstopped: {text}")),
    }
}

/// Whose payloads the target takes.
fn dialect(to: &Address, stop: &Stop) -> Result<Dialect, String> {
    let name = Conn::open(to, stop)?.info("server", "server_name")?;
    Ok(if name.as_deref() == Some("valkey") { Dialect::Valkey } else { Dialect::Redis })
}

fn feed(
    walk: &mut Walk<'_>,
    sender: &mut Sender,
    account: &Account,
    progress: &mut Progress,
    refused: &mut u64,
) -> Result<(), String> {
    let stops = walk.options.on_error == OnError::Stop;
    while !account.is_stopped() {
        let Some(keys) = walk.next_keys()? else { break };
        for part in keys.chunks(ASKED) {
            walk.values(part, account)?.into_iter().for_each(|piece| sender.push(piece));
        }
        hear(account, refused, progress, stops)?;
        progress.show(walk.keys, account);
    }
    Ok(())
}

fn hear(account: &Account, refused: &mut u64, progress: &Progress, stops: bool) -> Result<(), String> {
    let mut ends = Ok(());
    for refusal in account.take_refusals() {
        *refused += 1;
        let text = format!("{}: {}", refusal.name, refusal.reason);
        if refusal.fatal || stops {
            ends = ends.and(Err(text));
            continue;
        }
        match *refused {
            ..=SAID => progress.say(&text),
            n if n == SAID + 1 => progress.say("further errors are only counted"),
            _ => {}
        }
    }
    ends
}

/// The keys of the source.
struct Walk<'a> {
    source: Conn,
    options: &'a Copy,
    /// The target takes several small values in one command.
    gathers: bool,
    /// Whose payloads the target takes; None if it takes all.
    dialect: Option<Dialect>,
    /// None before the first call; "0" after the last.
    cursor: Option<Vec<u8>>,
    /// Hashes of keys that came: SCAN may show one twice.
    seen: HashSet<u64>,
    keys: u64,
    stop: Stop,
}

impl Walk<'_> {
    /// Some more keys; None at the end.
    fn next_keys(&mut self) -> Result<Option<Vec<Vec<u8>>>, String> {
        self.stop.check()?;
        if self.cursor.as_deref() == Some(b"0") {
            return Ok(None);
        }
        let cursor = self.cursor.take().unwrap_or_else(|| b"0".to_vec());
        let words: [&[u8]; 6] =
            [b"SCAN", &cursor, b"MATCH", self.options.pattern.as_bytes(), b"COUNT", b"1000"];
        let reply = self.source.call(&words)?;
        let Frame::Array(parts) = reply else { return Err("the source's SCAN answers no array".to_owned()) };
        let (Some(Frame::Bulk(next)), Some(Frame::Array(found))) = (parts.first(), parts.get(1)) else {
            return Err("the source's SCAN answers something else than a cursor and keys".to_owned());
        };
        self.cursor = Some(next.clone());
        let keys = found.iter().filter_map(|key| match key {
            Frame::Bulk(key) => Some(key.clone()),
            _ => None,
        });
        let keys: Vec<Vec<u8>> = keys.filter(|key| self.seen.insert(hash(key))).collect();
        self.keys += keys.len() as u64;
        Ok(Some(keys))
    }

    /// Their values, each with its time to live of the same moment; keys that are gone meanwhile are left out, and those that the source
    /// does not give are refused.
    fn values(&mut self, keys: &[Vec<u8>], account: &Account) -> Result<Vec<Piece>, String> {
        let mut bytes = Vec::new();
        for key in keys {
            put_command(&mut bytes, &[b"MULTI"]);
            put_command(&mut bytes, &[b"PTTL", key]);
            put_command(&mut bytes, &[b"DUMP", key]);
            put_command(&mut bytes, &[b"EXEC"]);
        }
        self.source.send(&bytes)?;
        let mut pieces = Vec::new();
        for key in keys {
            match self.given()? {
                Given::Value { ttl_ms, payload } => pieces.push(self.piece(key, ttl_ms, payload)),
                Given::Gone => {}
                Given::Refused(text) => {
                    let reason = format!("the source refused DUMP: {}", String::from_utf8_lossy(&text));
                    account.refuse(0, &String::from_utf8_lossy(key), reason, false);
                }
            }
        }
        Ok(pieces)
    }

    /// What the source answers for the next key. Errors: the connection's, and those that it would have for other keys as well.
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
                // The first that was refused says why.
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
        let mut piece = Piece { rows: 1, commands: 1, route: hash(key), name, ..Piece::default() };
        let payload = self.dialect.and_then(|to| rdb::translate(&payload, to)).unwrap_or(payload);
        // 0 would be for ever.
        let ttl = if ttl_ms < 0 { "0".to_owned() } else { ttl_ms.max(1).to_string() };
        if self.gathers && payload.len() <= SMALL {
            piece.gathered(key, ttl.as_bytes(), &payload);
            return piece;
        }
        let mut words: Vec<&[u8]> = vec![b"RESTORE", key, ttl.as_bytes(), &payload];
        if self.options.existing == Existing::Replace {
            words.push(b"REPLACE");
        }
        put_command(&mut piece.bytes, &words);
        piece
    }
}

/// What a source has for a key.
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
