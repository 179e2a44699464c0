//! Payloads for RESTORE and strings of HyperLogLogs, made of arbitrary bytes. The short runs of
//! `tests/hostile.rs` and `fuzz/` call this.

use command::serial::{self, Decoded};
use command::{Budget, Caller, Cx, Error, Run, registry};
use keyspace::{Keyspace, View};
use rdb::Dialect;
use resp::{Frame, OwnedArgs, Reply, read_frame};
use std::sync::Arc;
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

/// As [`restore`], with a stream's type in front: the versions 1 to 3 of its form.
pub fn restore_stream(data: &[u8]) {
    let [which, form, body @ ..] = data else { return };
    restore(&[&[*which, [15, 19, 21][usize::from(form % 3)]], body].concat());
}

/// Registers of a HyperLogLog, and bytes of a dense one.
const REGISTERS: usize = 16384;
const DENSE_BYTES: usize = REGISTERS / 4 * 3;

/// Uses any bytes as the registers of a HyperLogLog. The first byte selects the form. A command is refused and
/// changes nothing, or the string is whole afterwards and both forms of it count the same.
pub fn sketch(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    let body = match which % 4 {
        0 => body.iter().copied().chain(std::iter::repeat(0)).take(DENSE_BYTES).collect(),
        1 => body.to_vec(),
        _ => filled(body),
    };
    let head = [&b"HYLL"[..], &[u8::from(which % 4 > 0), 0, 0, 0], &[0, 0, 0, 0, 0, 0, 0, 0x80]].concat();
    let text = [&head[..], &body].concat();
    let keys = Keyspace::new(1);
    call(&keys, &[b"SET", b"k", &text]);
    let counted = call(&keys, &[b"PFCOUNT", b"k"]);
    for words in [
        &[&b"PFADD"[..], b"k", b"a", b"b"][..],
        &[b"PFMERGE", b"k", b"other"],
        &[b"PFDEBUG", b"TODENSE", b"k"],
    ] {
        let reply = call(&keys, words);
        if matches!(counted, Frame::Error(_)) {
            assert!(matches!(reply, Frame::Error(_)), "{words:?} takes what PFCOUNT refuses");
            assert_eq!(
                call(&keys, &[b"GET", b"k"]),
                Frame::Bulk(text.clone()),
                "a refused command has changed it"
            );
        } else {
            assert!(!matches!(reply, Frame::Error(_)), "{words:?} refuses what PFCOUNT takes: {reply:?}");
        }
    }
    if matches!(counted, Frame::Error(_)) {
        return;
    }
    assert_eq!(call(&keys, &[b"PFADD", b"k", b"b", b"a"]), Frame::Int(0), "both are in it");
    call(&keys, &[b"SET", b"again", &text]);
    call(&keys, &[b"PFADD", b"again", b"a", b"b"]);
    let count = |key: &[u8]| call(&keys, &[b"PFCOUNT", key]);
    assert_eq!(count(b"again"), count(b"k"), "the dense form counts the same");
    call(&keys, &[b"PFMERGE", b"merged", b"again", b"k"]);
    assert_eq!(count(b"merged"), count(b"k"));
    keys.check_invariants();
}

/// Runs of a sparse string, and one more that makes up the number of registers.
fn filled(body: &[u8]) -> Vec<u8> {
    let (mut out, mut left, mut bytes) = (Vec::new(), REGISTERS, body.iter().copied());
    while let Some(byte) = bytes.next() {
        let (run, len) = match byte >> 6 {
            0 => (vec![byte], usize::from(byte & 0x3f) + 1),
            1 => {
                let low = bytes.next().unwrap_or(0);
                (vec![byte, low], (usize::from(byte & 0x3f) << 8 | usize::from(low)) + 1)
            }
            _ => (vec![byte], usize::from(byte & 3) + 1),
        };
        if len > left {
            break;
        }
        left -= len;
        out.extend(run);
    }
    if left > 0 {
        out.extend([0x40 | ((left - 1) >> 8) as u8, (left - 1) as u8]);
    }
    out
}

/// Runs a command under the locks of its keys; its reply.
fn call(keys: &Arc<Keyspace>, words: &[&[u8]]) -> Frame {
    let words = OwnedArgs::from_slices(words);
    let args = words.args();
    let command = registry::find(args.at(0)).expect("a command");
    let mut view = View::locked(keys, command::keys::shards_of(command, args), 0, NOW_MS);
    let mut out = Reply::new(false);
    let mut cx = Cx::new(&mut view, &mut out, Caller::default(), Budget::steps(1_000_000), 0);
    let done = match command.run {
        Run::Read(handler) | Run::Write(handler) | Run::Whole(handler) => handler(&mut cx, args),
        Run::Exec | Run::Container => panic!("{} is not a function of the keyspace", command.name),
    };
    view.finish();
    if let Err(error) = done {
        out.clear();
        out.error(&error.text());
    }
    read_frame(out.as_bytes()).expect("a reply").expect("a whole reply").0
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
