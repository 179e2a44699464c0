//! Streams to their serialized form and back.
//!
//! - S1: the form of Redis 8.6 is chosen only for a stream with idempotent producers, that of Redis 7.2 if a
//!   consumer's times differ, else that of Redis 7.0.
//! - S2: what is read is refused unless IDs ascend, the number of entries is right, and each pending entry is
//!   in the list of exactly one consumer.
//!
//! Memory: one leaf while writing; the list of a group's pending entries while reading.

use crate::{BYTES_PER_STEP, Failure, LONG_ELEMENT, Out, PIECE, WRITE_STEPS};
use rdb::{Form, NodeWriter, StreamFacts, StreamPart, Writer};
use std::collections::BTreeMap;
use value::stream::{Group, Name, Producers, Remembers};
use value::{Stream, StreamId};

fn pair(id: StreamId) -> (u64, u64) {
    (id.ms, id.seq)
}

fn id((ms, seq): (u64, u64)) -> StreamId {
    StreamId::new(ms, seq)
}

/// Steps it takes to write a stream. O(groups).
pub(crate) fn write_cost(stream: &Stream) -> usize {
    let pending: usize = stream.iter_groups().map(|(_, group)| group.pending_len() + group.consumers()).sum();
    let producers = stream.producers().map_or(0, Producers::len);
    (stream.len() + pending + producers) * 2 * WRITE_STEPS + stream.mem_bytes() / (BYTES_PER_STEP / 2)
}

/// Whether a consumer was active at another time than when it was last seen.
fn is_active_apart<O: Out + ?Sized>(stream: &Stream, out: &mut O) -> Result<bool, O::Stop> {
    for (_, group) in stream.iter_groups() {
        for (i, (_, consumer)) in group.iter_consumers().enumerate() {
            if i % PIECE == 0 {
                out.work(PIECE * WRITE_STEPS)?;
            }
            if consumer.active_time_ms() != Some(consumer.seen_time_ms()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Writes a stream. Cost: O(bytes).
pub(crate) fn put<O: Out + ?Sized>(
    out: &mut O,
    stream: &Stream,
    key: Option<&[u8]>,
) -> Result<Form, Failure<O::Stop>> {
    let producers = stream.producers();
    let active = producers.is_some() || is_active_apart(stream, out)?; // S1
    let form = if producers.is_some() { Form::Produced } else { Form::Stream { active } };
    Writer::begin(out.buffer(), form, key);
    put_nodes(out, stream)?;
    let buffer = out.buffer();
    rdb::put_len(buffer, stream.len() as u64);
    rdb::put_stream_id_as_lens(buffer, pair(stream.last_id()));
    rdb::put_stream_id_as_lens(buffer, pair(stream.first_id()));
    rdb::put_stream_id_as_lens(buffer, pair(stream.max_deleted_id()));
    rdb::put_len(buffer, stream.entries_added());
    rdb::put_len(buffer, stream.groups() as u64);
    for (name, group) in stream.iter_groups() {
        put_group(out, name, group, active)?;
    }
    producers.map_or(Ok(()), |producers| put_producers(out, producers))?;
    Ok(form)
}

fn put_producers<O: Out + ?Sized>(out: &mut O, producers: &Producers) -> Result<(), Failure<O::Stop>> {
    let (remembers, counts) = (producers.remembers(), producers.counts());
    rdb::put_len(out.buffer(), remembers.duration_s());
    rdb::put_len(out.buffer(), remembers.most());
    rdb::put_len(out.buffer(), producers.len() as u64);
    for (name, producer) in producers.iter() {
        put_name(out, name)?;
        rdb::put_len(out.buffer(), producer.len() as u64);
        for (iid, id) in producer.iter() {
            put_name(out, iid)?;
            rdb::put_stream_id_as_lens(out.buffer(), pair(id));
        }
    }
    rdb::put_len(out.buffer(), counts.0);
    rdb::put_len(out.buffer(), counts.1);
    Ok(())
}

fn put_nodes<O: Out + ?Sized>(out: &mut O, stream: &Stream) -> Result<(), Failure<O::Stop>> {
    rdb::put_len(out.buffer(), stream.leaves() as u64);
    for leaf in stream.iter_leaves() {
        let Some(first) = leaf.first() else { continue };
        let names = first.fields().map(|(name, _)| name);
        let mut node = NodeWriter::new(pair(first.id), leaf.count(), names);
        for entry in leaf.entries() {
            let before = node.len();
            node.entry(pair(entry.id), entry.fields());
            out.work(WRITE_STEPS + (node.len() - before) / BYTES_PER_STEP)?;
        }
        let bytes = node.finish().ok_or(Failure::TooLong)?;
        rdb::put_stream_node_id(out.buffer(), pair(first.id));
        rdb::put_len(out.buffer(), bytes.len() as u64);
        for piece in bytes.chunks(LONG_ELEMENT) {
            out.work(piece.len() / BYTES_PER_STEP)?;
            out.buffer().extend_from_slice(piece);
        }
    }
    Ok(())
}

fn put_group<O: Out + ?Sized>(
    out: &mut O,
    name: &Name,
    group: &Group,
    active: bool,
) -> Result<(), Failure<O::Stop>> {
    put_name(out, name)?;
    rdb::put_stream_id_as_lens(out.buffer(), pair(group.last_id()));
    rdb::put_len(out.buffer(), group.entries_read().unwrap_or(u64::MAX));
    rdb::put_len(out.buffer(), group.pending_len() as u64);
    for (i, (id, pending)) in group.pending_from(StreamId::MIN).enumerate() {
        if i % PIECE == 0 {
            out.work(PIECE * WRITE_STEPS)?;
        }
        rdb::put_stream_id(out.buffer(), pair(id));
        out.buffer().extend_from_slice(&pending.time_ms.to_le_bytes());
        rdb::put_len(out.buffer(), pending.count);
    }
    rdb::put_len(out.buffer(), group.consumers() as u64);
    for (name, consumer) in group.iter_consumers() {
        put_name(out, name)?;
        out.buffer().extend_from_slice(&consumer.seen_time_ms().to_le_bytes());
        if active {
            let time = consumer.active_time_ms().unwrap_or(u64::MAX);
            out.buffer().extend_from_slice(&time.to_le_bytes());
        }
        rdb::put_len(out.buffer(), consumer.pending_len() as u64);
        for (i, id) in consumer.pending_from(StreamId::MIN).enumerate() {
            if i % PIECE == 0 {
                out.work(PIECE * WRITE_STEPS)?;
            }
            rdb::put_stream_id(out.buffer(), pair(id));
        }
    }
    Ok(())
}

/// Writes a name, a long one in pieces.
fn put_name<O: Out + ?Sized>(out: &mut O, name: &[u8]) -> Result<(), O::Stop> {
    if name.len() <= LONG_ELEMENT {
        out.work(WRITE_STEPS)?;
        rdb::put_string(out.buffer(), name);
        return Ok(());
    }
    rdb::put_len(out.buffer(), name.len() as u64);
    for piece in name.chunks(LONG_ELEMENT) {
        out.work(piece.len() / BYTES_PER_STEP)?;
        out.buffer().extend_from_slice(piece);
    }
    Ok(())
}

/// A stream that is being read.
#[derive(Default)]
pub(crate) struct Growing {
    stream: Stream,
    group: Vec<u8>,
    consumer: Vec<u8>,
    /// Pending entries of the group that no consumer has claimed: time and deliveries.
    unclaimed: BTreeMap<StreamId, (u64, u64)>,
    has_facts: bool,
    producer: Vec<u8>,
    /// Settings of what is remembered, if the file tells them.
    remembers: Option<Remembers>,
}

impl Growing {
    /// Adds an entry. False unless its ID is above those before (S2).
    pub(crate) fn entry<'f>(
        &mut self,
        at: (u64, u64),
        fields: &mut dyn Iterator<Item = (&'f [u8], &'f [u8])>,
    ) -> bool {
        let fields: Vec<(&[u8], &[u8])> = fields.collect();
        !fields.is_empty() && self.stream.append(id(at), &fields)
    }

    /// Adds another part. False if it does not fit (S2).
    pub(crate) fn part(&mut self, part: StreamPart<'_>) -> bool {
        match part {
            StreamPart::Facts(facts) => self.facts(facts),
            StreamPart::Group { name, last_id, read } => {
                self.group = name.to_vec();
                self.stream.create_group(name, id(last_id), read)
            }
            StreamPart::Pending { id: at, time_ms, count } => {
                self.unclaimed.insert(id(at), (time_ms, count)).is_none()
            }
            StreamPart::Consumer { name, seen_ms, active_ms } => {
                self.consumer = name.to_vec();
                let Some(mut group) = self.stream.group_mut(&self.group) else { return false };
                group.create_consumer(name, seen_ms) && group.set_times(name, seen_ms, active_ms)
            }
            StreamPart::Owned { id: at } => {
                let Some((time_ms, count)) = self.unclaimed.remove(&id(at)) else { return false };
                let group = self.stream.group_mut(&self.group);
                group.is_some_and(|mut group| group.claim(&self.consumer, id(at), time_ms, count))
            }
            StreamPart::GroupEnd => self.unclaimed.is_empty(),
            StreamPart::Remembers { duration_s, most } => {
                self.remembers = Some(Remembers::new(duration_s, most));
                true
            }
            StreamPart::Producer { name } => {
                self.producer = name.to_vec();
                true
            }
            StreamPart::Sent { iid, id: at } => {
                let Some(remembers) = self.remembers else { return false };
                self.stream.producers_mut(remembers).load(&self.producer, iid, id(at))
            }
            StreamPart::Sendings { added, repeated } => self.sendings(added, repeated),
        }
    }

    /// All producers have come. Redis says how long it would remember them in every stream: one that had none
    /// becomes a plain one here, unless that differs from what is usual.
    fn sendings(&mut self, added: u64, repeated: u64) -> bool {
        let Some(remembers) = self.remembers else { return false };
        let is_plain = self.stream.producers().is_none() && (added, repeated) == (0, 0);
        if !is_plain || remembers != Remembers::usual() {
            self.stream.producers_mut(remembers).set_counts(added, repeated);
        }
        true
    }

    fn facts(&mut self, facts: StreamFacts) -> bool {
        self.has_facts = true;
        let last = id(facts.last_id);
        if facts.len != self.stream.len() as u64 || last < self.stream.last_id() {
            return false;
        }
        self.stream.set_last_id(last);
        if let Some(counts) = facts.more {
            self.stream.set_max_deleted_id(id(counts.max_deleted_id));
            self.stream.set_entries_added(counts.entries_added);
        }
        true
    }

    /// The stream, if all of it has come.
    pub(crate) fn finish(self) -> Option<Stream> {
        self.has_facts.then_some(self.stream)
    }
}
