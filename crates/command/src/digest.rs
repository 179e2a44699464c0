//! Digests of keys and values, by their contents, whatever their encoding: for DEBUG DIGEST.

use keyspace::{Keyspace, View};
use sha1_smol::Sha1;
use value::{Ints, Run, StreamId, Value, ValueRef};

/// A SHA-1 sum, or several of them combined by XOR.
pub type Digest = [u8; 20];

/// Keys that one view holds.
const BATCH: usize = 64;

/// The digest of a database: keys, values, and whether they expire. Under writes it shows no one moment.
/// O(sizes of all values); not for a loop.
pub fn of_db(keyspace: &Keyspace, db: usize, now_ms: u64) -> Digest {
    let mut digest = Digest::default();
    let mut cursor = 0;
    loop {
        let mut keys: Vec<Box<[u8]>> = Vec::new();
        cursor = keyspace.scan(db, cursor, BATCH, now_ms, &mut |key, _| keys.push(key.into()));
        for key in keys {
            // At time 0 nothing has expired, so looking changes nothing.
            let view = View::locked(keyspace, Keyspace::shards_of([&*key]), db, 0);
            let owned = view.owned(&key);
            view.finish();
            let Some(owned) = owned else { continue };
            let expires = [u8::from(owned.expire_ms.is_some())];
            let whole = [&db.to_le_bytes()[..], &key, &of_value(&owned.value), &expires];
            digest = mixed(digest, part(&whole));
        }
        if cursor == 0 {
            return digest;
        }
    }
}

/// The digest of a value's contents. O(its size).
pub fn of_value(value: &Value) -> Digest {
    let none = Digest::default();
    match value.as_ref() {
        ValueRef::Str(text) => {
            let mut sha = Sha1::from(b"string");
            for run in text.runs(0..text.len()) {
                match run {
                    Run::Bytes(bytes) => sha.update(bytes),
                    Run::Zeros(n) => (0..n.div_ceil(1024)).for_each(|i| {
                        let left = (n - i * 1024).min(1024) as usize;
                        sha.update(&[0; 1024][..left]);
                    }),
                }
            }
            sha.digest().bytes()
        }
        ValueRef::List(list) => {
            list.iter().fold(part(&[b"list"]), |so_far, item| item.with(|bytes| part(&[&so_far, bytes])))
        }
        ValueRef::Set(set) => {
            set.iter().fold(none, |all, member| mixed(all, member.with(|m| part(&[b"set", m]))))
        }
        ValueRef::Hash(hash) => hash.iter().fold(none, |all, (field, value)| {
            let expires = [u8::from(hash.expire_at(field).flatten().is_some())];
            mixed(all, part(&[b"hash", field, value, &expires]))
        }),
        ValueRef::ZSet(zset) => zset.iter().fold(none, |all, (member, score)| {
            // Zero has two signs, which are one score.
            mixed(all, part(&[b"zset", member, &(score + 0.0).to_le_bytes()]))
        }),
        ValueRef::Stream(stream) => of_stream(stream),
        ValueRef::Roaring(bits) => of_bits(b"roaring", bits),
        ValueRef::Roaring64(bits) => of_bits(b"roaring64", bits),
    }
}

/// The digest of a stream: its entries in order, its numbers, the pending entries of its consumers, and what it
/// remembers of producers.
fn of_stream(stream: &value::Stream) -> Digest {
    let id = |id: StreamId| [id.ms.to_le_bytes(), id.seq.to_le_bytes()].concat();
    let facts = [stream.last_id(), stream.max_deleted_id()].map(id).concat();
    let mut all = part(&[b"stream", &facts, &stream.entries_added().to_le_bytes()]);
    for entry in stream.range(StreamId::MIN, StreamId::MAX) {
        all = part(&[&all, &id(entry.id)]);
        for (field, value) in entry.fields() {
            all = part(&[&all, field, value]);
        }
    }
    for (name, group) in stream.iter_groups() {
        all = part(&[&all, name, &id(group.last_id())]);
        for (pending_id, pending) in group.pending_from(StreamId::MIN) {
            all = part(&[&all, &id(pending_id), &pending.consumer]);
        }
        for (name, _) in group.iter_consumers() {
            all = part(&[&all, name]);
        }
    }
    let Some(producers) = stream.producers() else { return all };
    let (remembers, (added, _)) = (producers.remembers(), producers.counts());
    let numbers = [remembers.duration_s(), remembers.most(), added].map(u64::to_le_bytes).concat();
    all = part(&[&all, b"producers", &numbers]);
    for (pid, producer) in producers.iter() {
        all = part(&[&all, pid]);
        for (iid, entry) in producer.iter() {
            all = part(&[&all, iid, &id(entry)]);
        }
    }
    all
}

/// The digest of a bitmap, by its ranges of set bits: a full bitmap has 2^32 of them.
fn of_bits(name: &[u8], bits: &Ints) -> Digest {
    bits.runs().fold(part(&[name]), |so_far, (first, last)| {
        part(&[&so_far, &first.to_le_bytes(), &last.to_le_bytes()])
    })
}

/// The digest of some texts with their lengths.
fn part(texts: &[&[u8]]) -> Digest {
    let mut sha = Sha1::new();
    for text in texts {
        sha.update(&(text.len() as u64).to_le_bytes());
        sha.update(text);
    }
    sha.digest().bytes()
}

/// Combines two digests; the order of many does not matter.
pub fn mixed(mut a: Digest, b: Digest) -> Digest {
    a.iter_mut().zip(b).for_each(|(a, b)| *a ^= b);
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use value::{Set, Str};

    #[test]
    fn digests_depend_on_contents_and_not_on_order() {
        let set = |members: &[&str]| {
            let mut set = Set::new();
            members.iter().for_each(|m| {
                set.insert(m.as_bytes());
            });
            of_value(&Value::Set(set))
        };
        assert_eq!(set(&["a", "b", "7"]), set(&["7", "b", "a"]));
        assert_ne!(set(&["a", "b"]), set(&["a", "c"]));
        let text = |bytes: &[u8]| of_value(&Value::Str(Str::from_slice(bytes)));
        assert_ne!(text(b"a"), text(b"b"));
        assert_ne!(part(&[b"ab", b"c"]), part(&[b"a", b"bc"]));
    }
}
