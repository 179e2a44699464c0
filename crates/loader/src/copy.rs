//! `evenkeel copy`: keys from one server to another, as payloads.
//!
//! Keys are read while others may write them: each value is as it was at one moment, all of them are not.

use crate::load::{address, takes_payloads};
use crate::options::{Copy, Existing, OnError};
use crate::progress::{Progress, number};
use crate::send::{Account, SMALL, Sender};
use crate::shape::{Payloads, Piece};
use crate::wire::{Address, Conn, put_command};
use resp::Frame;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};

/// Keys asked for at a time.
const ASKED: usize = 100;

/// Copies; the last line to print, or why it ended before.
pub fn run(options: &Copy) -> Result<String, String> {
    if options.existing == Existing::Merge {
        return Err("--existing merge is not possible for copies".to_owned());
    }
    let to = address(&options.target);
    let from = Address {
        place: options.from.clone(),
        user: options.from_user.clone(),
        password: options.from_password.clone(),
        db: options.from_db,
        ..to.clone()
    };
    let mut source = Conn::open(&from)?;
    let total = match source.call(&[b"DBSIZE"])? {
        Frame::Int(keys) if options.pattern == "*" => u64::try_from(keys).ok(),
        _ => None,
    };
    let gathers = !options.dry_run && takes_payloads(&to)? == Payloads::Many;
    let mut walk = Walk { source, options, gathers, cursor: None, seen: HashSet::new(), keys: 0 };
    if options.dry_run {
        while walk.next_keys()?.is_some() {}
        return Ok(format!("{} keys would be copied; nothing was sent", number(walk.keys)));
    }
    let stops = options.on_error == OnError::Stop;
    let sender = Sender::start(&to, options.target.connections.into(), stops, options.existing)?;
    let account = sender.account().clone();
    let mut progress = Progress::start(total);
    let mut refused = 0;
    let ended = feed(&mut walk, sender, &account, &mut progress, &mut refused)
        .and_then(|()| hear(&account, &mut refused, &progress, stops));
    let text = progress.finish(&account, refused).replacen(" rows as ", " keys as ", 1);
    match ended {
        Ok(()) => Ok(text),
        Err(reason) => Err(format!("{reason}\nstopped: {text}")),
    }
}

fn feed(
    walk: &mut Walk<'_>,
    mut sender: Sender,
    account: &Account,
    progress: &mut Progress,
    refused: &mut u64,
) -> Result<(), String> {
    let stops = walk.options.on_error == OnError::Stop;
    while !account.is_stopped() {
        let Some(keys) = walk.next_keys()? else { break };
        for part in keys.chunks(ASKED) {
            walk.values(part)?.into_iter().for_each(|piece| sender.push(piece));
        }
        hear(account, refused, progress, stops)?;
        progress.show(walk.keys, account);
    }
    sender.finish();
    Ok(())
}

fn hear(account: &Account, refused: &mut u64, progress: &Progress, stops: bool) -> Result<(), String> {
    for refusal in account.take_refusals() {
        *refused += 1;
        if refusal.fatal || stops {
            return Err(format!("{}: {}", refusal.name, refusal.reason));
        }
        progress.say(&format!("{}: {}", refusal.name, refusal.reason));
    }
    Ok(())
}

/// The keys of the source.
struct Walk<'a> {
    source: Conn,
    options: &'a Copy,
    /// The target takes several small values in one command.
    gathers: bool,
    /// None before the first call; "0" after the last.
    cursor: Option<Vec<u8>>,
    /// Hashes of keys that came: SCAN may show one twice.
    seen: HashSet<u64>,
    keys: u64,
}

impl Walk<'_> {
    /// Some more keys; None at the end.
    fn next_keys(&mut self) -> Result<Option<Vec<Vec<u8>>>, String> {
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

    /// Their values; keys that are gone meanwhile are left out.
    fn values(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Piece>, String> {
        let mut bytes = Vec::new();
        for key in keys {
            put_command(&mut bytes, &[b"PTTL", key]);
            put_command(&mut bytes, &[b"DUMP", key]);
        }
        self.source.send(&bytes)?;
        let mut pieces = Vec::new();
        let mut refused = None;
        for key in keys {
            let ttl_ms = match self.source.reply()? {
                Frame::Int(ttl) => ttl.max(0),
                _ => 0,
            };
            match self.source.reply()? {
                Frame::Bulk(payload) => {
                    let name = String::from_utf8_lossy(key).into_owned();
                    let mut piece =
                        Piece { rows: 1, commands: 1, route: hash(key), name, ..Piece::default() };
                    let ttl = ttl_ms.to_string();
                    if self.gathers && payload.len() <= SMALL {
                        piece.gathered(key, ttl.as_bytes(), &payload);
                        pieces.push(piece);
                        continue;
                    }
                    let mut words: Vec<&[u8]> = vec![b"RESTORE", key, ttl.as_bytes(), &payload];
                    if self.options.existing == Existing::Replace {
                        words.push(b"REPLACE");
                    }
                    put_command(&mut piece.bytes, &words);
                    pieces.push(piece);
                }
                Frame::Error(text) => {
                    let (key, text) =
                        (String::from_utf8_lossy(key), String::from_utf8_lossy(&text).into_owned());
                    refused = refused.or(Some(format!("the source refused DUMP {key}: {text}")));
                }
                _ => {}
            }
        }
        refused.map_or(Ok(pieces), Err)
    }
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}
