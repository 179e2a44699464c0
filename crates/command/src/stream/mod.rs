//! Streams: entries in the order of their IDs, ranges, reads that wait, groups of consumers.
//!
//! ```text
//! XADD ──► entries by ID ──► XRANGE, XREAD
//!              └──► group: last ID ──XREADGROUP──► pending of a consumer ──XACK──► done
//! ```
//!
//! - X1: a stream without entries stays. Its IDs go on from its last one.
//! - X2: a long answer is made from an O(1) clone, in pieces ([`Answer`]).
//! - X3: the log receives what was decided: made IDs, exact lengths, absolute times. XREADGROUP and XAUTOCLAIM
//!   are told as XCLAIM, XACK and XGROUP.
//!
//! Cost: an entry is found in O(log n), and each entry that is answered costs its bytes.

pub(crate) mod answer;
pub(crate) mod claim;
pub(crate) mod entries;
pub(crate) mod groups;
pub(crate) mod id;
pub(crate) mod idmp;
pub(crate) mod info;
pub(crate) mod pending;
pub(crate) mod range;
pub(crate) mod read;
pub(crate) mod refs;
#[cfg(test)]
mod tests;
pub(crate) mod trim;

use crate::options::int;
use crate::table::{KeySpec, RO_ACCESS, RW_DELETE, RW_UPDATE};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::{Args, OwnedArgs};
use value::stream::Group;
use value::{Stream, StreamId};

/// The group's name in COMMAND DOCS.
const GROUP: &str = "stream";

const READS: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];
const UPDATES: &[KeySpec] = &[KeySpec::one(1, RW_UPDATE)];
const DELETES: &[KeySpec] = &[KeySpec::one(1, RW_DELETE)];

/// Steps to change one entry, or one that is pending.
const CHANGE_STEPS: usize = 12;
/// Steps to look at one pending entry.
const LOOK_STEPS: usize = 3;

/// A COUNT up to this is taken for the number of entries: to count them costs more.
const FEW: usize = 16;

/// Steps for a command that changes something for each of its words.
fn per_word(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * CHANGE_STEPS
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn no_group(key: &[u8], group: &[u8]) -> Error {
    Error::from(format!("NOGROUP No such key '{}' or consumer group '{}'", text(key), text(group)))
}

/// A group that must be there. Errors: WRONGTYPE, NOGROUP.
fn group_of<'v>(view: &'v View<'_>, key: &[u8], name: &[u8]) -> Result<(&'v Stream, &'v Group), Error> {
    let stream = view.stream(key)?.ok_or_else(|| no_group(key, name))?;
    let group = stream.group(name).ok_or_else(|| no_group(key, name))?;
    Ok((stream, group))
}

/// A count whose negative values mean none.
fn count(arg: &[u8]) -> Result<usize, Error> {
    Ok(usize::try_from(int(arg)?.max(0)).unwrap_or(usize::MAX))
}

/// Notes a command of words and IDs for the log. O(words), nothing if nobody hears of it.
fn note(cx: &mut Cx<'_, '_>, front: &[&[u8]], ids: &[StreamId], back: &[&[u8]]) {
    if !cx.view.listens() {
        return;
    }
    let mut words = OwnedArgs::new();
    front.iter().for_each(|word| words.push(word));
    ids.iter().for_each(|id| words.push(id::Text::new(*id).bytes()));
    back.iter().for_each(|word| words.push(word));
    cx.effects.push(words);
}

/// Tells how far a group has read, in absolute words.
fn note_group(cx: &mut Cx<'_, '_>, key: &[u8], name: &[u8]) -> Result<(), Error> {
    if !cx.view.listens() {
        return Ok(());
    }
    let Ok((_, group)) = group_of(cx.view, key, name) else { return Ok(()) };
    let read = group.entries_read().map_or_else(|| "-1".to_owned(), |read| read.to_string());
    let last = group.last_id();
    note(cx, &[b"XGROUP", b"SETID", key, name], &[last], &[b"ENTRIESREAD", read.as_bytes()]);
    Ok(())
}

/// Counts a change beside the entries, and notifies of it. As in Redis, it neither ends a transaction that
/// watches
/// the stream nor wakes clients that wait for entries. O(1)
fn changed_aside(cx: &mut Cx<'_, '_>, key: &[u8], event: &'static str) {
    cx.view.count_change();
    cx.view.notify(key, Class::Stream, event);
}

/// A consumer asks for entries: it is seen, and made if there is none, whether or not it gets any.
fn meet_consumer(cx: &mut Cx<'_, '_>, key: &[u8], group: &[u8], consumer: &[u8]) -> Result<(), Error> {
    let now_ms = cx.view.now_ms();
    let made = match cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(group)) {
        Some(mut group) => !group.touch_seen(consumer, now_ms) && group.create_consumer(consumer, now_ms),
        None => false,
    };
    if made {
        changed_aside(cx, key, "xgroup-createconsumer");
        cx.effect(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
    }
    Ok(())
}

/// Pending entries as they are now, to be told as XCLAIM.
struct Claimed<'a> {
    key: &'a [u8],
    group: &'a [u8],
    consumer: &'a [u8],
    time_ms: u64,
}

impl Claimed<'_> {
    /// Tells that these are pending for the consumer, with their counts: one command for neighbours of one
    /// count.
    fn tell(&self, cx: &mut Cx<'_, '_>, pending: &[(StreamId, u64)]) {
        if !cx.view.listens() {
            return;
        }
        let time = self.time_ms.to_string();
        for run in pending.chunk_by(|a, b| a.1 == b.1) {
            let (ids, count) = (run.iter().map(|(id, _)| *id).collect::<Vec<_>>(), run[0].1.to_string());
            let back: [&[u8]; 6] =
                [b"TIME", time.as_bytes(), b"RETRYCOUNT", count.as_bytes(), b"FORCE", b"JUSTID"];
            note(cx, &[b"XCLAIM", self.key, self.group, self.consumer, b"0"], &ids, &back);
        }
    }
}
