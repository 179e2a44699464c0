//! All keys of a keyspace as plain data, to be compared.

use keyspace::{Keyspace, Lsn, Owned, View};
use std::collections::{BTreeMap, BTreeSet};
use value::{Elem, StreamId, ValueRef};

#[derive(Debug, PartialEq)]
pub enum Value {
    Str(Vec<u8>),
    List(Vec<Vec<u8>>),
    Set(BTreeSet<Vec<u8>>),
    /// Scores as bits.
    ZSet(BTreeMap<Vec<u8>, u64>),
    /// With the fields' times.
    Hash(BTreeMap<Vec<u8>, (Vec<u8>, u64)>),
    Stream(Stream),
    /// In its serialized form.
    Bitmap(Vec<u8>),
}

/// A stream. IDs are texts.
#[derive(Debug, Default, PartialEq)]
pub struct Stream {
    pub last_id: Vec<u8>,
    pub max_deleted_id: Vec<u8>,
    pub entries_added: u64,
    /// With their fields and values.
    pub entries: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
    pub groups: BTreeMap<Vec<u8>, Group>,
    pub producers: Option<Producers>,
}

/// IDs of messages, with those of their entries.
pub type Sent = Vec<(Vec<u8>, Vec<u8>)>;

/// Messages of idempotent producers that a stream remembers. The number of repeated messages is told late, so it may
/// differ.
#[derive(Debug, Default, PartialEq)]
pub struct Producers {
    pub duration_s: u64,
    pub most: u64,
    pub added: u64,
    /// By producer, the IDs of messages with those of their entries.
    pub sent: BTreeMap<Vec<u8>, Sent>,
}

/// A group of consumers. The times at which these were heard are told to nobody, so they differ.
#[derive(Debug, Default, PartialEq)]
pub struct Group {
    pub last_id: Vec<u8>,
    pub entries_read: Option<u64>,
    /// ID, consumer, time, number of deliveries.
    pub pending: Vec<(Vec<u8>, Vec<u8>, u64, u64)>,
    pub consumers: BTreeSet<Vec<u8>>,
}

fn id(id: StreamId) -> Vec<u8> {
    format!("{}-{}", id.ms, id.seq).into_bytes()
}

fn stream(stream: &value::Stream) -> Stream {
    let group = |group: &value::stream::Group| {
        let pending = group.pending_from(StreamId::MIN);
        Group {
            last_id: id(group.last_id()),
            entries_read: group.entries_read(),
            pending: pending.map(|(at, p)| (id(at), p.consumer.to_vec(), p.time_ms, p.count)).collect(),
            consumers: group.iter_consumers().map(|(name, _)| name.to_vec()).collect(),
        }
    };
    let fields = |entry: &value::stream::Entry<'_>| {
        entry.fields().flat_map(|(field, value)| [field.to_vec(), value.to_vec()]).collect()
    };
    let entries = stream.range(StreamId::MIN, StreamId::MAX);
    let sent = |producer: &value::stream::Producer| {
        producer.iter().map(|(iid, entry)| (iid.to_vec(), id(entry))).collect::<Vec<_>>()
    };
    let producers = |producers: &value::stream::Producers| Producers {
        duration_s: producers.remembers().duration_s(),
        most: producers.remembers().most(),
        added: producers.counts().0,
        sent: producers.iter().map(|(pid, producer)| (pid.to_vec(), sent(producer))).collect(),
    };
    Stream {
        last_id: id(stream.last_id()),
        max_deleted_id: id(stream.max_deleted_id()),
        entries_added: stream.entries_added(),
        entries: entries.map(|entry| (id(entry.id), fields(&entry))).collect(),
        groups: stream.iter_groups().map(|(name, found)| (name.to_vec(), group(found))).collect(),
        producers: stream.producers().map(producers),
    }
}

/// By database and name, with the time of expiry.
pub type Contents = BTreeMap<(usize, Vec<u8>), (Value, Option<u64>)>;

fn bytes(elem: Elem<'_>) -> Vec<u8> {
    match elem {
        Elem::Int(number) => number.to_string().into_bytes(),
        Elem::Bytes(bytes) => bytes.to_vec(),
    }
}

fn plain(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Str(text) => Value::Str(text.to_vec()),
        ValueRef::List(list) => Value::List(list.iter().map(bytes).collect()),
        ValueRef::Set(set) => Value::Set(set.iter().map(bytes).collect()),
        ValueRef::ZSet(zset) => {
            Value::ZSet(zset.iter().map(|(member, score)| (member.to_vec(), score.to_bits())).collect())
        }
        ValueRef::Hash(hash) => {
            let field = |entry: value::hash::Entry<'_>| {
                (entry.field.to_vec(), (entry.value.to_vec(), entry.expire_at))
            };
            Value::Hash(hash.entries_from(0).map(field).collect())
        }
        ValueRef::Stream(found) => Value::Stream(stream(found)),
        ValueRef::Roaring(_) | ValueRef::Roaring64(_) => Value::Bitmap(Vec::new()),
    }
}

/// A value as plain data. O(its size).
fn whole(value: &value::Value) -> Value {
    match plain(value.as_ref()) {
        Value::Bitmap(_) => {
            let encoded = serial::encode::<()>(value, 0, &mut |_| Ok(()));
            Value::Bitmap(encoded.ok().flatten().unwrap_or_default())
        }
        plain => plain,
    }
}

/// Elements of a value, or bytes of a string. O(1), O(groups) for a stream.
#[cfg(debug_assertions)]
pub(crate) fn size(value: &value::Value) -> usize {
    match value.as_ref() {
        ValueRef::Str(text) => text.len(),
        ValueRef::List(list) => list.len(),
        ValueRef::Set(set) => set.len(),
        ValueRef::ZSet(zset) => zset.len(),
        ValueRef::Hash(hash) => hash.len(),
        ValueRef::Stream(found) => {
            found.len() + found.iter_groups().map(|(_, group)| group.pending_len()).sum::<usize>()
        }
        ValueRef::Roaring(ints) | ValueRef::Roaring64(ints) => ints.len() as usize,
    }
}

/// All keys of all databases as of one moment, expired ones too, with the last LSN then. Values are clones.
/// Holds all locks. O(keys).
pub(crate) fn moment(keyspace: &Keyspace) -> (Vec<(usize, Vec<u8>, Owned)>, Lsn) {
    let mut view = View::whole(keyspace, 0, 1);
    view.set_expired_live();
    if view.has_intents() {
        view.settle_all();
    }
    let mut all = Vec::new();
    for db in 0..keyspace.databases() {
        view.select(db);
        let (mut cursor, mut keys) = (0, Vec::new());
        loop {
            cursor = view.scan(cursor, usize::MAX, &mut |key, _| keys.push(key.to_vec()));
            if cursor == 0 {
                break;
            }
        }
        all.extend(keys.into_iter().filter_map(|key| view.owned(&key).map(|owned| (db, key, owned))));
    }
    (all, keyspace.last_lsn())
}

/// The same keys as plain data. O(their sizes).
pub(crate) fn plainly(all: Vec<(usize, Vec<u8>, Owned)>) -> Contents {
    let plainly = |(db, key, owned): (usize, Vec<u8>, Owned)| {
        let value = whole(&owned.value);
        ((db, key), (value, owned.expire_ms))
    };
    all.into_iter().map(plainly).collect()
}

/// All keys that clients can see at this time, with all their fields. O(the sizes of all values).
pub fn of(keyspace: &Keyspace, now_ms: u64) -> Contents {
    let mut contents = plainly(moment(keyspace).0);
    contents.retain(|_, (_, expire_ms)| expire_ms.is_none_or(|at| at > now_ms));
    contents
}

/// The first key in which they differ, and what it is in each.
pub fn difference(ours: &Contents, theirs: &Contents) -> Option<((usize, Vec<u8>), String)> {
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let key = keys.into_iter().find(|key| ours.get(key) != theirs.get(key))?;
    let mut text = format!(
        "database {}, {}\n  ours   {:?}\n  theirs {:?}",
        key.0,
        key.1.escape_ascii(),
        ours.get(key),
        theirs.get(key)
    );
    text.truncate(2000);
    Some((key.clone(), text))
}
