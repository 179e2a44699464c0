//! Messages of idempotent producers: how XADD knows them again, and how they are told.
//!
//! ```text
//! XADD key IDMP pid iid * …  ─┬─ (pid, iid) is remembered: the ID of the entry that it made, and nothing else
//!                             └─ it is not: an entry, and (pid, iid) is remembered with it
//! ```
//!
//! - P1: what is remembered depends on what was told, and on no clock ([`Producers`] D3). So it is the same on
//!   replicas, and after a replay of the log.
//! - P2: a message is told as a plain XADD, and a *record* behind it: an XACK for a group that cannot be there,
//!   whose name says what is to be remembered. Every server from Redis 5 on executes both, and the second does
//!   nothing there. A replay of this server takes it for what it is.
//! - P3: a record sets all numbers: a server that missed one agrees again at the next.
//!
//! Source: XADD, XCFGSET and XIDMPRECORD of Redis 8.6's documentation, its tests, and its issues.

use super::id::{Text, strict};
use crate::{Cx, Error};
use resp::{Args, OwnedArgs};
use std::borrow::Cow;
use value::stream::{Name, Producer, Producers, Remembers};
use value::{Stream, StreamId};

/// Steps to look a message up, and to remember it.
const REMEMBER_STEPS: usize = 24;
/// Bytes that are hashed in a step.
const HASHED_PER_STEP: usize = 256;
/// Bytes that are hashed without a look at the budget.
const PIECE: usize = 64 << 10;

/// The words of XADD that name the message, by their places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Words {
    pub(super) pid: usize,
    /// None: IDMPAUTO.
    pub(super) iid: Option<usize>,
}

impl Words {
    /// Steps for the ID. O(words)
    pub(super) fn steps(self, args: Args<'_>) -> usize {
        let hashed = if self.iid.is_none() { args.bytes() / HASHED_PER_STEP + args.len() } else { 0 };
        hashed + REMEMBER_STEPS
    }

    /// The message. IDMPAUTO hashes the fields, which begin at `fields`, in any order. O(their bytes). Errors:
    /// those of the budget.
    pub(super) fn message<'a>(
        self,
        cx: &mut Cx<'_, '_>,
        args: Args<'a>,
        fields: usize,
    ) -> Result<Message<'a>, Error> {
        let pid = args.at(self.pid);
        if let Some(iid) = self.iid {
            return Ok(Message { pid, iid: Cow::Borrowed(args.at(iid)) });
        }
        let (mut sums, mut mixed) = ([0_u64; 2], [0_u64; 2]);
        for at in (fields..args.len()).step_by(2) {
            let hash = hash_pair(cx, args.at(at), args.at(at + 1))?;
            for (i, part) in [hash as u64, (hash >> 64) as u64].into_iter().enumerate() {
                sums[i] = sums[i].wrapping_add(part);
                mixed[i] ^= part;
            }
        }
        // As in Redis, so that its messages are known here after a move, and those of here there.
        let parts = [sums[0] ^ mixed[1].rotate_left(1), sums[1] ^ mixed[0].rotate_left(1)];
        Ok(Message { pid, iid: Cow::Owned(parts.map(u64::to_le_bytes).concat()) })
    }
}

/// The hash of a field, its length and its value.
fn hash_pair(cx: &mut Cx<'_, '_>, field: &[u8], value: &[u8]) -> Result<u128, Error> {
    let mut hasher = twox_hash::xxhash3_128::Hasher::new();
    let length = (field.len() as u64).to_le_bytes();
    for text in [field, &length, value] {
        for piece in text.chunks(PIECE) {
            cx.charge(1 + piece.len() / HASHED_PER_STEP)?;
            hasher.write(piece);
        }
    }
    Ok(hasher.finish_128())
}

/// A message of a producer.
pub(super) struct Message<'a> {
    pub(super) pid: &'a [u8],
    pub(super) iid: Cow<'a, [u8]>,
}

impl Message<'_> {
    /// The entry that the message made, if it is remembered. Counts that.
    pub(super) fn repeats(&self, cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<Option<StreamId>, Error> {
        let now_ms = cx.view.now_ms();
        let producers = cx.view.stream(key)?.and_then(Stream::producers);
        let Some(id) = producers.and_then(|known| known.find(self.pid, &self.iid, now_ms)) else {
            return Ok(None);
        };
        if let Some(stream) = cx.view.stream_mut(key)? {
            let producers = stream.producers_mut(Remembers::usual());
            let (added, repeated) = producers.counts();
            producers.set_counts(added, repeated.saturating_add(1));
        }
        Ok(Some(id))
    }

    /// Remembers the message with the entry that it made. O(log n).
    pub(super) fn remember(&self, stream: &mut Stream, id: StreamId, now_ms: u64) {
        stream.producers_mut(Remembers::usual()).add(self.pid, &self.iid, id, now_ms);
    }

    /// Tells it (P2), behind its entry.
    pub(super) fn tell(
        &self,
        cx: &mut Cx<'_, '_>,
        key: &[u8],
        id: StreamId,
        now_ms: u64,
    ) -> Result<(), Error> {
        let Some(producers) = cx.view.stream(key)?.and_then(Stream::producers) else { return Ok(()) };
        let words = Record::of(producers, now_ms).words(key, self.pid, [(&*self.iid, id)].into_iter());
        cx.effects.push(words);
        Ok(())
    }
}

/// Tells all that a stream remembers of producers. O(IDs), nothing if nobody hears of it.
pub(crate) fn tell_all(cx: &mut Cx<'_, '_>, key: &[u8], producers: &Producers) {
    if !cx.view.listens() {
        return;
    }
    let record = Record::of(producers, 0);
    cx.effects.push(record.words(key, b"", std::iter::empty()));
    let iids =
        |producer: &Producer| producer.iter().map(|(iid, id)| (iid.clone(), id)).collect::<Vec<(Name, _)>>();
    for (pid, producer) in producers.iter() {
        let iids = iids(producer);
        cx.effects.push(record.words(key, pid, iids.iter().map(|(iid, id)| (&**iid, *id))));
    }
}

/// Tells what a stream remembers, without any message: it has just changed, and was forgotten.
pub(super) fn tell_settings(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<(), Error> {
    if let Some(producers) = cx.view.stream(key)?.and_then(Stream::producers).filter(|_| cx.view.listens()) {
        let words = Record::of(producers, 0).words(key, b"", std::iter::empty());
        cx.effects.push(words);
    }
    Ok(())
}

/// The beginning of the name of a record's group (P2).
const MARK: &[u8] = b"\0evenkeel:idmp\0";

/// A record, its producer, and the IDs of its messages.
type Parsed<'a> = (Record, &'a [u8], Vec<&'a [u8]>);

/// The ID of a record without messages, which has to name one.
const NO_ID: StreamId = StreamId::new(0, 1);

/// The numbers of a record. Behind the mark they stand as 8 bytes each, then the producer and the IDs of its
/// messages, each behind its length in 4 bytes. The IDs of the entries are those of the XACK.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Record {
    /// The time of the message; 0: nothing is forgotten because of it.
    at_ms: u64,
    remembers: Remembers,
    added: u64,
    repeated: u64,
}

impl Record {
    fn of(producers: &Producers, at_ms: u64) -> Record {
        let (added, repeated) = producers.counts();
        Record { at_ms, remembers: producers.remembers(), added, repeated }
    }

    /// The XACK.
    fn words<'a>(
        self,
        key: &[u8],
        pid: &[u8],
        messages: impl Iterator<Item = (&'a [u8], StreamId)> + Clone,
    ) -> OwnedArgs {
        let mut name = MARK.to_vec();
        let Record { at_ms, remembers, added, repeated } = self;
        for number in [at_ms, remembers.duration_s(), remembers.most(), added, repeated] {
            name.extend_from_slice(&number.to_le_bytes());
        }
        for text in std::iter::once(pid).chain(messages.clone().map(|(iid, _)| iid)) {
            name.extend_from_slice(&(text.len() as u32).to_le_bytes());
            name.extend_from_slice(text);
        }
        let mut words = OwnedArgs::new();
        [b"XACK", key, &name].into_iter().for_each(|word: &[u8]| words.push(word));
        messages.clone().for_each(|(_, id)| words.push(Text::new(id).bytes()));
        if messages.count() == 0 {
            words.push(Text::new(NO_ID).bytes());
        }
        words
    }

    /// Reads the name of a group: the numbers, the producer, and the IDs. None if it is no record.
    fn parse(name: &[u8]) -> Option<Parsed<'_>> {
        let mut rest = name.strip_prefix(MARK)?;
        let mut number = || {
            let (bytes, behind) = rest.split_first_chunk::<8>()?;
            rest = behind;
            Some(u64::from_le_bytes(*bytes))
        };
        let (at_ms, duration_s, most) = (number()?, number()?, number()?);
        let (added, repeated) = (number()?, number()?);
        let record = Record { at_ms, remembers: Remembers::new(duration_s, most), added, repeated };
        let mut texts = Vec::new();
        while let Some((len, behind)) = rest.split_first_chunk::<4>() {
            let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            texts.push(text);
            rest = behind;
        }
        if texts.is_empty() || !rest.is_empty() {
            return None;
        }
        let pid = texts.remove(0);
        (pid.is_empty() == texts.is_empty()).then_some((record, pid, texts))
    }
}

/// Executes a told XACK if it is a record: true. A group of that name would be a client's. Errors: WRONGTYPE,
/// invalid ID. O(m·log n), m = IDs.
pub(super) fn replay(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<bool, Error> {
    let Some((record, pid, iids)) = Record::parse(args.at(2)) else { return Ok(false) };
    let ids = args.from(3).iter().map(strict).collect::<Result<Vec<_>, _>>()?;
    let key = args.at(1);
    let is_of_client = cx.view.stream(key)?.is_none_or(|stream| stream.group(args.at(2)).is_some());
    if is_of_client || ids.len() != iids.len().max(1) {
        return Ok(false);
    }
    if let Some(stream) = cx.view.stream_mut(key)? {
        let producers = stream.producers_mut(record.remembers);
        producers.set(record.remembers);
        for (iid, id) in iids.into_iter().zip(ids) {
            producers.add(pid, iid, id, record.at_ms);
        }
        producers.set_counts(record.added, record.repeated);
    }
    cx.view.count_change();
    cx.out.int(0);
    Ok(true)
}

#[cfg(test)]
mod tests;
