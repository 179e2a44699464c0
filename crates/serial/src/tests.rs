//! Values written in pieces against the same written whole. `command` has the tests of payloads.

use super::*;

/// Empties its buffer at each call, as a file does when it is full.
#[derive(Default)]
struct Pieces {
    buffer: Vec<u8>,
    all: Vec<u8>,
    /// The most that there ever was in the buffer, and what it had room for.
    most: usize,
    room: usize,
    works: usize,
    stop_at: Option<usize>,
}

impl Out for Pieces {
    type Stop = &'static str;

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    fn work(&mut self, _: usize) -> Result<(), &'static str> {
        self.works += 1;
        if self.stop_at == Some(self.works) {
            return Err("stopped");
        }
        self.most = self.most.max(self.buffer.len());
        self.room = self.room.max(self.buffer.capacity());
        self.all.append(&mut self.buffer);
        Ok(())
    }
}

fn in_pieces(
    value: &Value,
    dialect: Dialect,
    key: Option<&[u8]>,
    now_ms: Option<u64>,
) -> (Pieces, Option<u16>) {
    let mut out = Pieces::default();
    let dynamic: &mut dyn Out<Stop = &'static str> = &mut out;
    let version = encode_into(dynamic, dialect, value, key, now_ms).expect("nothing stops it");
    out.work(0).expect("nothing stops it");
    (out, version)
}

fn body(value: &Value, dialect: Dialect, now_ms: u64) -> Option<(Vec<u8>, u16)> {
    let payload = encode_for::<()>(dialect, value, now_ms, &mut |_| Ok(())).expect("nothing stops it")?;
    rdb::open(&payload).map(|(body, version)| (body.to_vec(), version))
}

fn text(len: usize) -> Vec<u8> {
    (0..len as u64).map(|j| (j * j) as u8 ^ (j >> 7) as u8).collect()
}

fn timed(fields: u64) -> Hash {
    let pairs = (0..fields).map(|i| (format!("field{i}"), format!("value {i}")));
    let mut hash: Hash = pairs.collect();
    for i in (0..fields).step_by(3) {
        hash.set_expire(format!("field{i}").as_bytes(), Some(1_000 + i));
    }
    hash
}

fn samples() -> Vec<Value> {
    let words = |n: usize| (0..n).map(|i| format!("word {i} {}", "x".repeat(i % 90)));
    let mut long: Vec<Vec<u8>> = words(50).map(String::into_bytes).collect();
    long.push(text(1_000_000));
    long.push(vec![b'a'; 200_000]);
    vec![
        Value::Str(Str::from_slice(b"")),
        Value::Str(Str::from_slice(b"12345")),
        Value::Str(Str::from_slice(&text(100))),
        Value::Str(Str::from_slice(&text(2_000_000))),
        Value::Str(Str::from_slice(&b"repeating".repeat(20_000))),
        Value::List(long.iter().collect::<List>()),
        Value::List(words(20_000).collect::<List>()),
        Value::Set(words(3_000).collect::<Set>()),
        Value::Set((0..5_000).map(|i| i.to_string()).collect::<Set>()),
        Value::ZSet(words(3_000).zip((0..).map(f64::from)).collect::<ZSet>()),
        Value::Hash(long.iter().zip(words(60)).collect::<Hash>()),
        Value::Hash(timed(10)),
        Value::Hash(timed(3_000)),
        Value::Roaring((0..100_000).map(|i| i * 3).collect::<Ints>()),
        Value::Roaring64([7, 1 << 40].into_iter().collect::<Ints>()),
    ]
}

#[test]
fn what_is_written_in_pieces_is_what_is_written_whole() {
    for value in samples() {
        for dialect in [Dialect::Redis, Dialect::Valkey] {
            let (out, version) = in_pieces(&value, dialect, None, Some(1_500));
            assert_eq!(version.map(|version| (out.all, version)), body(&value, dialect, 1_500), "{value:?}");
            // In a file the key stands behind the type.
            let (out, _) = in_pieces(&value, dialect, Some(b"key"), None);
            let (bare, _) = in_pieces(&value, dialect, None, None);
            assert_eq!(out.all, [&bare.all[..1], b"\x03key", &bare.all[1..]].concat());
        }
    }
}

#[test]
fn the_buffer_stays_small() {
    for value in samples() {
        let (out, _) = in_pieces(&value, Dialect::Redis, None, None);
        assert!(out.most < 400_000, "{value:?}: {}", out.most);
        assert!(out.room < 1_000_000, "{value:?}: {}", out.room);
    }
}

/// Texts that get shorter and are too long to be packed at once have another, equally good packed form.
#[test]
fn a_long_string_that_repeats_is_packed_in_pieces() {
    let repeating = Value::Str(Str::from_slice(&b"0123456789".repeat(300_000)));
    let (out, version) = in_pieces(&repeating, Dialect::Redis, None, None);
    assert!(out.all.len() < 100_000 && out.most < 100_000, "{} {}", out.all.len(), out.most);
    let back = decode_body::<()>(&out.all, version.expect("a string"), 0, &mut |_| Ok(()));
    let Ok(Decoded::Value(Value::Str(back))) = back else { panic!("{back:?}") };
    assert_eq!(back.as_ref().to_vec(), b"0123456789".repeat(300_000));
}

/// In files fields keep their times, also those that have passed.
#[test]
fn fields_that_expired_are_written_or_not() {
    let value = Value::Hash(timed(6));
    for dialect in [Dialect::Redis, Dialect::Valkey] {
        let fields = |now_ms| {
            let (out, version) = in_pieces(&value, dialect, None, now_ms);
            let decoded = decode_body::<()>(&out.all, version.expect("fields are left"), 0, &mut |_| Ok(()));
            let Ok(Decoded::Value(Value::Hash(hash))) = decoded else { panic!("{decoded:?}") };
            let entries = hash.entries_from(0);
            let mut fields: Vec<_> = entries.map(|entry| (entry.field.to_vec(), entry.expire_at)).collect();
            fields.sort();
            fields
        };
        let all = fields(None);
        assert_eq!(all.len(), 6);
        assert_eq!((&all[0], &all[3]), (&(b"field0".to_vec(), 1_000), &(b"field3".to_vec(), 1_003)));
        assert_eq!(fields(Some(1_000)), all[1..]);
    }
    let mut gone: Hash = [("f", "v")].into_iter().collect();
    gone.set_expire(b"f", Some(5));
    let gone = Value::Hash(gone);
    assert_eq!(in_pieces(&gone, Dialect::Redis, None, Some(5)).1, None);
    assert_eq!(in_pieces(&gone, Dialect::Redis, None, None).1, Some(rdb::VERSION_FIELD_EXPIRY));
}

#[test]
fn what_stops_it_is_told_wherever_it_is() {
    for value in samples() {
        let (all, _) = in_pieces(&value, Dialect::Redis, None, Some(0));
        for stop_at in [1, all.works / 2, all.works - 1] {
            let mut out = Pieces { stop_at: Some(stop_at.max(1)), ..Pieces::default() };
            let stopped = encode_into(&mut out, Dialect::Redis, &value, None, Some(0));
            assert!(stopped == Err(Failure::Stopped("stopped")) || all.works == 1, "{value:?} {stop_at}");
        }
    }
}
