//! Objects of streams, read part by part into a [`Sink`].
//!
//! ```text
//! nodes │ (first ID as a string of 16 bytes, listpack) …
//! entries │ last ID │ from 19 on: first ID │ highest removed ID │ entries ever added
//! groups │ group …
//! group:    name │ last ID │ from 19 on: entries read │ pending │ (ID, time, deliveries) … │ consumers │ consumer …
//! consumer: name │ seen │ from 21 on: active │ pending │ ID …
//! from 26 on, behind the groups:
//!           seconds │ most IDs │ producers │ (name │ IDs │ (ID of a message, ID) …) … │ added │ repeated
//! ```
//!
//! IDs stand as two lengths, in lists as 16 bytes, big-endian. Times are 8 bytes, little-endian. The number of
//! entries read is 2^64 - 1 if it is not known, and so is the active time.

use crate::decode::{Decoder, Failure, Outcome, Sink};
use crate::pack::Node;
use crate::{Malformed, put_len, put_string, types};

/// The numbers of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFacts {
    /// Entries in all.
    pub len: u64,
    pub last_id: (u64, u64),
    /// The highest removed ID, and the number of entries ever added. Old servers do not tell.
    pub more: Option<StreamCounts>,
}

/// The facts about a stream that servers tell from Redis 7.0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCounts {
    pub max_deleted_id: (u64, u64),
    pub entries_added: u64,
}

/// A part of a stream, in the order in which parts come.
#[derive(Clone, Copy, Debug)]
pub enum StreamPart<'a> {
    /// All entries have come.
    Facts(StreamFacts),
    /// A group begins. `read` is None if the number is not known or not told.
    Group { name: &'a [u8], last_id: (u64, u64), read: Option<u64> },
    /// An entry that is pending in the group.
    Pending { id: (u64, u64), time_ms: u64, count: u64 },
    /// A consumer of the group begins. `active_ms` is None if there was no activity.
    Consumer { name: &'a [u8], seen_ms: u64, active_ms: Option<u64> },
    /// An entry that is pending for the consumer.
    Owned { id: (u64, u64) },
    /// The group ends.
    GroupEnd,
    /// The time for which IDs of idempotent producers are remembered, in seconds, and their number for each.
    Remembers { duration_s: u64, most: u64 },
    /// A producer begins.
    Producer { name: &'a [u8] },
    /// An ID of the producer, and the entry that it belongs to.
    Sent { iid: &'a [u8], id: (u64, u64) },
    /// The producers end: messages of theirs that were ever added, and that were repeated.
    Sendings { added: u64, repeated: u64 },
}

/// Appends an ID as it stands in lists.
pub fn put_stream_id(out: &mut Vec<u8>, id: (u64, u64)) {
    out.extend_from_slice(&id.0.to_be_bytes());
    out.extend_from_slice(&id.1.to_be_bytes());
}

/// Appends an ID as two lengths.
pub fn put_stream_id_as_lens(out: &mut Vec<u8>, id: (u64, u64)) {
    put_len(out, id.0);
    put_len(out, id.1);
}

/// Appends the ID of a node, which stands before its listpack.
pub fn put_stream_node_id(out: &mut Vec<u8>, id: (u64, u64)) {
    let mut bytes = Vec::with_capacity(16);
    put_stream_id(&mut bytes, id);
    put_string(out, &bytes);
}

impl<S: Sink> Decoder<'_, '_, S> {
    pub(crate) fn stream(&mut self, kind: u8) -> Outcome<S> {
        let has_producers = kind == types::STREAM_4;
        let (numbered, active) = (kind != types::STREAM, kind == types::STREAM_3 || has_producers);
        for _ in 0..self.reader.len()? {
            self.node()?;
        }
        let (len, last_id) = (self.reader.len()?, self.id_of_lens()?);
        let more = match numbered {
            true => {
                // The first ID follows from the entries.
                self.id_of_lens()?;
                let (max_deleted_id, entries_added) = (self.id_of_lens()?, self.reader.len()?);
                Some(StreamCounts { max_deleted_id, entries_added })
            }
            false => None,
        };
        self.part(StreamPart::Facts(StreamFacts { len, last_id, more }))?;
        for _ in 0..self.reader.len()? {
            self.group(numbered, active)?;
        }
        if has_producers { self.producers() } else { Ok(()) }
    }

    fn producers(&mut self) -> Outcome<S> {
        let (duration_s, most) = (self.reader.len()?, self.reader.len()?);
        self.part(StreamPart::Remembers { duration_s, most })?;
        for _ in 0..self.reader.len()? {
            self.tick()?;
            self.text()?.item().with(|name| self.part(StreamPart::Producer { name }))?;
            for _ in 0..self.reader.len()? {
                self.tick()?;
                let (iid, id) = (self.text()?, self.id_of_lens()?);
                iid.item().with(|iid| self.part(StreamPart::Sent { iid, id }))?;
            }
        }
        let (added, repeated) = (self.reader.len()?, self.reader.len()?);
        self.part(StreamPart::Sendings { added, repeated })
    }

    fn node(&mut self) -> Outcome<S> {
        let key = self.text()?;
        let first = id(key.bytes()?.try_into().map_err(|_| Malformed)?);
        let blob = self.text()?;
        let mut node = Node::new(first, blob.bytes()?)?;
        let mut taken = true;
        while node.next(|id, fields| taken = self.sink.entry(id, fields))? {
            sound::<S::Stop>(taken)?;
            self.tick()?;
        }
        Ok(())
    }

    fn group(&mut self, numbered: bool, active: bool) -> Outcome<S> {
        let (name, last_id) = (self.text()?, self.id_of_lens()?);
        let read = if numbered { Some(self.reader.len()?).filter(|read| *read != u64::MAX) } else { None };
        name.item().with(|name| self.part(StreamPart::Group { name, last_id, read }))?;
        for _ in 0..self.reader.len()? {
            self.tick()?;
            let id = id(self.reader.array()?);
            let time_ms = u64::from_le_bytes(self.reader.array()?);
            let count = self.reader.len()?;
            self.part(StreamPart::Pending { id, time_ms, count })?;
        }
        for _ in 0..self.reader.len()? {
            self.consumer(active)?;
        }
        self.part(StreamPart::GroupEnd)
    }

    fn consumer(&mut self, active: bool) -> Outcome<S> {
        self.tick()?;
        let name = self.text()?;
        let seen_ms = u64::from_le_bytes(self.reader.array()?);
        let active_ms = if active { u64::from_le_bytes(self.reader.array()?) } else { seen_ms };
        let active_ms = Some(active_ms).filter(|time| *time != u64::MAX);
        name.item().with(|name| self.part(StreamPart::Consumer { name, seen_ms, active_ms }))?;
        for _ in 0..self.reader.len()? {
            self.tick()?;
            let id = id(self.reader.array()?);
            self.part(StreamPart::Owned { id })?;
        }
        Ok(())
    }

    fn part(&mut self, part: StreamPart<'_>) -> Outcome<S> {
        sound(self.sink.stream(part))
    }

    fn id_of_lens(&mut self) -> Result<(u64, u64), Malformed> {
        Ok((self.reader.len()?, self.reader.len()?))
    }
}

fn id(bytes: [u8; 16]) -> (u64, u64) {
    let both = u128::from_be_bytes(bytes);
    ((both >> 64) as u64, both as u64)
}

fn sound<S>(is_sound: bool) -> Result<(), Failure<S>> {
    if is_sound { Ok(()) } else { Err(Failure::Malformed) }
}
