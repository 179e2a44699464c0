//! Payloads for RESTORE made of arbitrary bytes, decoded into values. The short runs of `tests/hostile.rs`
//! and `fuzz/` call this.

use command::Error;
use command::serial::{self, Decoded};
use rdb::Dialect;
use value::Value;

/// The current time: some fields' times are before it, some after.
const NOW_MS: u64 = 1_700_000_000_000;

/// Decodes any bytes as a body. They are refused, or the value is sound and comes back from its own payload.
/// The first byte selects the version.
pub fn restore(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    let mut payload = body.to_vec();
    rdb::seal(&mut payload, [12, 80, 15, 81][usize::from(which & 3)]);
    let _ = serial::read_cost(&payload);
    let mut charges = 0_usize;
    let mut count = |_: usize| {
        charges += 1;
        Ok(())
    };
    let decoded = serial::decode(&payload, NOW_MS, &mut count);
    if let Ok(Decoded::Value(value)) = &decoded {
        check(value);
        for dialect in [Dialect::Redis, Dialect::Valkey] {
            let again =
                serial::encode_for(dialect, value, NOW_MS, &mut |_| Ok(())).expect("nothing stops it");
            let again = again.expect("what has expired was not read");
            match serial::decode(&again, NOW_MS, &mut |_| Ok(())) {
                Ok(Decoded::Value(back)) => assert!(same(value, &back), "{:?}", value.kind()),
                other => panic!("{:?} does not come back: {other:?}", value.kind()),
            }
        }
    }
    // A refused charge is returned, wherever it happens.
    for stop_at in [1, charges / 2 + 1, charges] {
        let mut left = stop_at;
        let stopped = serial::decode(&payload, NOW_MS, &mut |_| {
            left = left.saturating_sub(1);
            if left == 0 { Err(Error::Cancelled) } else { Ok(()) }
        });
        assert!(charges == 0 || matches!(stopped, Err(Error::Cancelled)));
    }
}

fn check(value: &Value) {
    match value {
        Value::Str(v) => v.check_invariants(),
        Value::List(v) => v.check_invariants(),
        Value::Hash(v) => v.check_invariants(),
        Value::Set(v) => v.check_invariants(),
        Value::ZSet(v) => v.check_invariants(),
        Value::Stream(v) => v.check_invariants(),
        Value::Roaring(v) | Value::Roaring64(v) => v.check_invariants(),
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => a.as_ref().to_vec() == b.as_ref().to_vec(),
        (Value::List(a), Value::List(b)) => a.iter().eq(b.iter()),
        (Value::Hash(a), Value::Hash(b)) => a == b,
        (Value::Set(a), Value::Set(b)) => a == b,
        (Value::ZSet(a), Value::ZSet(b)) => a.iter().eq(b.iter()),
        (Value::Stream(a), Value::Stream(b)) => a == b,
        (Value::Roaring(a), Value::Roaring(b)) | (Value::Roaring64(a), Value::Roaring64(b)) => a == b,
        _ => false,
    }
}
