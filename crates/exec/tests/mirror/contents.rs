//! All keys of a keyspace as plain data, to be compared.

use keyspace::{Chunk, Keyspace, View};
use std::collections::{BTreeMap, BTreeSet};
use value::{Elem, ValueRef};

#[derive(Debug, PartialEq)]
pub enum Value {
    Str(Vec<u8>),
    List(Vec<Vec<u8>>),
    Set(BTreeSet<Vec<u8>>),
    /// Scores as bits.
    ZSet(BTreeMap<Vec<u8>, u64>),
    /// With the fields' times.
    Hash(BTreeMap<Vec<u8>, (Vec<u8>, u64)>),
    Stream(value::Stream),
    /// In its serialized form.
    Bitmap(Vec<u8>),
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
        ValueRef::Stream(stream) => Value::Stream(stream.clone()),
        ValueRef::Roaring(_) | ValueRef::Roaring64(_) => Value::Bitmap(Vec::new()),
    }
}

/// All keys that clients can see at this time, with all their fields.
pub fn of(keyspace: &Keyspace, now_ms: u64) -> Contents {
    let mut contents = Contents::new();
    for db in 0..keyspace.databases() {
        let mut chunk = Chunk::default();
        while !keyspace.extend_chunk(keyspace.last_lsn(), db, 0, usize::MAX, &mut chunk) {}
        let mut view = View::whole(keyspace, db, 1);
        view.set_expired_live();
        for (_, key, expire_ms, _) in
            chunk.keys.iter().filter(|(_, _, at, _)| at.is_none_or(|at| at > now_ms))
        {
            let mut value = plain(view.value(key).expect("it was there"));
            if let Value::Bitmap(bytes) = &mut value {
                let owned = view.owned(key).expect("it was there");
                let encoded = serial::encode::<()>(&owned.value, 0, &mut |_| Ok(()));
                *bytes = encoded.expect("nothing stops it").unwrap_or_default();
            }
            contents.insert((db, key.to_vec()), (value, *expire_ms));
        }
    }
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
