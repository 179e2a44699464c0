//! Hashes of payloads against hashes made field by field: the same fields, order, times and encoding. A
//! repeated field is refused.

use command::serial::{self, Decoded};
use proptest::prelude::*;
use rdb::{Dialect, HashPayload};
use value::hash::Entry;
use value::trie::NEVER;
use value::{Hash, Value};

const NOW_MS: u64 = 1_700_000_000_000;

/// A field, its value, and its time of expiry.
type Field = (Vec<u8>, Vec<u8>, Option<u64>);

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[a-f]{0,3}".prop_map(String::into_bytes),
        (-300i64..300).prop_map(|n| n.to_string().into_bytes()),
        any::<i64>().prop_map(|n| n.to_string().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..90),
    ]
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    let time = prop_oneof![3 => Just(None), 1 => (NOW_MS - 50..NOW_MS + 50).prop_map(Some)];
    let times = prop_oneof![Just(false), Just(true)];
    let fields = prop_oneof![
        8 => prop::collection::vec((text(), text(), time.clone()), 1..12),
        1 => prop::collection::vec((text(), text(), time), 100..160),
    ];
    (fields, times).prop_map(|(mut fields, times)| {
        fields.iter_mut().for_each(|field| field.2 = field.2.filter(|_| times));
        fields
    })
}

proptest! {
    #[test]
    fn a_restored_hash_is_the_one_made_field_by_field(fields in fields(), valkey: bool, announced in 0usize..200) {
        let mut payload = HashPayload::with_len(announced);
        for (field, value, time) in &fields {
            match time {
                None => payload.insert(field, value),
                Some(time) => payload.insert_expiring(field, value, *time),
            };
        }
        let dialect = if valkey { Dialect::Valkey } else { Dialect::Redis };
        let payload = payload.finish(dialect).expect("not empty");
        let restored = serial::decode(&payload, NOW_MS, &mut |_| Ok(()));

        let (mut hash, mut twice) = (Hash::new(), false);
        for (field, value, time) in &fields {
            let expire_at = time.unwrap_or(NEVER);
            if expire_at > NOW_MS {
                twice |= !hash.put(Entry { field, value, expire_at });
            }
        }
        match restored {
            Err(error) => prop_assert!(twice, "{error:?}"),
            Ok(Decoded::Expired) => prop_assert!(hash.is_empty()),
            Ok(Decoded::Value(Value::Hash(restored))) => {
                restored.check_invariants();
                prop_assert!(!twice);
                prop_assert!(restored.entries_from(0).eq(hash.entries_from(0)));
                prop_assert_eq!(restored.encoding(), hash.encoding());
            }
            Ok(_) => prop_assert!(false, "no hash"),
        }
    }
}
