//! Translates payloads between Redis and Valkey. Neither takes the other's version number, nor its hashes
//! with fields that expire.
//!
//! ```text
//! types up to 21   the same for both              ─► with the last common version
//! 22 to 25         hashes whose fields expire     ─► written anew
//! ```

use crate::{Dialect, Failure, HashPayload, Item, Sink, VERSION_VALKEY_9, decode, open, seal};
use std::convert::Infallible;

/// The last version that Redis and Valkey share, and the last type of that.
const VERSION_COMMON: u16 = 11;
const TYPE_COMMON: u8 = 21;
/// The last type of hashes with fields that expire.
const TYPE_FIELDS: u8 = 25;

/// The payload to send instead to servers of a dialect. `None` if they take this one, or it cannot be
/// translated; then the server may say so. O(1); O(bytes) for a payload of the other dialect.
pub fn translate(payload: &[u8], to: Dialect) -> Option<Vec<u8>> {
    let [kind, .., low, high, _, _, _, _, _, _, _, _] = payload else { return None };
    let version = u16::from_le_bytes([*low, *high]);
    let written = if version >= VERSION_VALKEY_9 { Dialect::Valkey } else { Dialect::Redis };
    if version <= VERSION_COMMON || written == to {
        return None;
    }
    let (body, version) = open(payload)?;
    if *kind <= TYPE_COMMON {
        let mut out = Vec::with_capacity(payload.len());
        out.extend_from_slice(body);
        seal(&mut out, VERSION_COMMON);
        return Some(out);
    }
    if *kind > TYPE_FIELDS {
        return None;
    }
    let mut fields = Fields(HashPayload::new());
    fields.0.reserve(body.len());
    match decode(body, version, &mut fields) {
        Ok(()) => fields.0.finish(to),
        Err(Failure::Malformed | Failure::Unsupported(_)) => None,
        Err(Failure::Stopped(never)) => match never {},
    }
}

/// Takes only fields, since the other types are common. A field that comes twice is left for the server to
/// refuse.
struct Fields(HashPayload);

impl Sink for Fields {
    type Stop = Infallible;

    fn work(&mut self, _: usize, _: usize) -> Result<(), Infallible> {
        Ok(())
    }

    fn string(&mut self, _: Item<'_>) {}

    fn element(&mut self, _: Item<'_>) {}

    fn member(&mut self, _: Item<'_>) -> bool {
        false
    }

    fn scored(&mut self, _: Item<'_>, _: f64) -> bool {
        false
    }

    fn field(&mut self, field: Item<'_>, value: Item<'_>, expire_ms: Option<u64>) -> bool {
        field.with(|field| {
            value.with(|value| match expire_ms {
                None => _ = self.0.insert(field, value),
                Some(at) => _ = self.0.insert_expiring(field, value, at),
            });
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ListPayload, string_payload};

    fn hash(dialect: Dialect) -> Vec<u8> {
        let mut hash = HashPayload::new();
        hash.insert(b"f", b"v").insert_expiring(b"g", b"7", 1_900_000_000_000).insert(b"h", b"");
        hash.finish(dialect).expect("not empty")
    }

    fn sealed(body: &[u8], version: u16) -> Vec<u8> {
        let mut payload = body.to_vec();
        seal(&mut payload, version);
        payload
    }

    /// The same body in another version.
    fn resealed(payload: &[u8], version: u16) -> Vec<u8> {
        sealed(open(payload).expect("sound").0, version)
    }

    #[test]
    fn fields_that_expire_are_written_for_the_other_dialect_and_back() {
        let (redis, valkey) = (hash(Dialect::Redis), hash(Dialect::Valkey));
        for version in [12, 15] {
            assert_eq!(translate(&resealed(&redis, version), Dialect::Valkey).as_ref(), Some(&valkey));
            assert_eq!(translate(&resealed(&redis, version), Dialect::Redis), None);
        }
        for version in [80, 81] {
            assert_eq!(translate(&resealed(&valkey, version), Dialect::Redis).as_ref(), Some(&redis));
            assert_eq!(translate(&resealed(&valkey, version), Dialect::Valkey), None);
        }
    }

    #[test]
    fn what_both_write_alike_gets_a_version_that_both_take() {
        let list: ListPayload = ["a"].into_iter().collect();
        let stream = sealed(b"\x15\x00", 11);
        for payload in [string_payload(b"text"), list.finish().expect("not empty"), stream] {
            let common = resealed(&payload, 11);
            for (version, written) in [(12, Dialect::Redis), (15, Dialect::Redis), (80, Dialect::Valkey)] {
                let theirs = resealed(&payload, version);
                for to in [Dialect::Redis, Dialect::Valkey] {
                    let expected = (to != written).then_some(&common);
                    assert_eq!(translate(&theirs, to).as_ref(), expected, "{version}");
                    assert_eq!(translate(&common, to), None);
                    assert_eq!(translate(&payload, to), None);
                }
            }
        }
    }

    #[test]
    fn what_nothing_can_be_made_of_is_left_alone() {
        let mut damaged = hash(Dialect::Redis);
        damaged[3] ^= 1;
        let unsound = sealed(&[24, 1], 12);
        let (unknown, array, paths) =
            (sealed(b"\x00\x01a", 16), sealed(b"\x1c\x00", 14), sealed(b"\x17\x00", 81));
        for payload in [damaged, unsound, unknown, array, paths, vec![24; 11], vec![24; 10], vec![24], vec![]]
        {
            for to in [Dialect::Redis, Dialect::Valkey] {
                assert_eq!(translate(&payload, to), None, "{payload:?}");
            }
        }
    }
}
