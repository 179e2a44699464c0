//! Values written in pieces against the same written whole. `command` has the tests of payloads.

use super::*;
use value::StreamId;
use value::stream::Remembers;

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

/// A stream with all that streams have.
fn stream() -> value::Stream {
    let mut stream = value::Stream::new();
    for i in 0..1_000u64 {
        let (value, long) = (format!("value {i}"), vec![b'x'; 5_000 * usize::from(i % 100 == 7)]);
        let fields: &[(&[u8], &[u8])] = &[(b"name", value.as_bytes()), (b"12", &long)];
        let few = if i % 10 == 3 { &fields[..1] } else { fields };
        assert!(stream.append(StreamId::new(1 + i / 3 * 7, i), few));
    }
    assert!(stream.remove(StreamId::new(1 + 7, 4)));
    assert!(stream.append(StreamId::new(u64::MAX, 1), &[(b"-4097", b"127")]));
    assert_eq!(stream.trim_to_len(900, false, 0), 100);
    assert!(stream.create_group(b"idle", StreamId::MIN, None));
    assert!(stream.create_group(b"group", StreamId::new(1400, 600), Some(17)));
    let mut group = stream.group_mut(b"group").expect("just created");
    assert!(group.create_consumer(b"one", 1_500) && group.create_consumer(b"two", 1_600));
    assert!(group.touch_active(b"two", 1_700));
    for i in 0..300 {
        let name: &[u8] = if i % 3 == 0 { b"one" } else { b"two" };
        assert!(group.claim(name, StreamId::new(i, i), 1_600 + i, i));
    }
    drop(group);
    stream
}

/// The same with idempotent producers.
fn produced() -> value::Stream {
    let mut stream = stream();
    let producers = stream.producers_mut(Remembers::new(60, 500));
    for i in 0..600 {
        producers.add(b"p", i.to_string().as_bytes(), StreamId::new(1 + i, 0), 1 + i);
        producers.add(
            &i.to_le_bytes(),
            &vec![b'x'; 70_000 * usize::from(i == 3)],
            StreamId::new(1 + i, 0),
            1 + i,
        );
    }
    producers.set_counts(1_200, 7);
    stream
}

#[test]
fn producers_are_written_as_redis_8_6_does_and_only_where_there_are_some() {
    let first = |stream: &value::Stream| {
        let payload = encode(&Value::Stream(stream.clone()), 0, &mut free).expect("not stopped");
        payload.map(|payload| (payload[0], payload[payload.len() - 10]))
    };
    assert_eq!(first(&produced()), Some((26, 13)));
    assert_eq!(first(&produced().without_producers()), Some((21, 11)));
    // Redis 8.6 writes every stream so: one without producers is a plain one here, in a file of any version.
    let body = b"\x1a\0\0\0\0\0\0\0\0\x07\0\x40\x64\x40\x64\0\0\0";
    for version in [9, 13, 80] {
        let read = decode_body(body, version, 0, &mut free);
        let Ok(Decoded::Value(Value::Stream(plain))) = read else { panic!("{version}: {read:?}") };
        assert!(plain.producers().is_none());
    }
    let body = b"\x1a\0\0\0\0\0\0\0\0\x07\0\x05\x40\x64\x02\x01p\x01\x01i\x05\x01\x01q\0\x09\x02";
    let Ok(Decoded::Value(Value::Stream(read))) = decode_body(body, 13, 0, &mut free) else {
        panic!("no stream")
    };
    let producers = read.producers().expect("some");
    assert_eq!((producers.remembers(), producers.counts()), (Remembers::new(5, 100), (9, 2)));
    assert_eq!((producers.len(), producers.find(b"p", b"i", 1_000)), (1, Some(StreamId::new(5, 1))));
}

#[test]
fn streams_are_read_as_they_were_written() {
    for original in [stream(), produced(), value::Stream::new()] {
        let value = Value::Stream(original.clone());
        let payload = encode(&value, 0, &mut free).expect("not stopped").expect("a payload");
        let Ok(Decoded::Value(Value::Stream(read))) = decode(&payload, 0, &mut free) else {
            panic!("no stream")
        };
        read.check_invariants();
        assert!(read == original, "{read:?}");
        let again = encode(&Value::Stream(read), 0, &mut free).expect("not stopped");
        assert_eq!(again.as_deref(), Some(&payload[..]));
    }
}

#[test]
fn a_broken_stream_is_refused_and_never_a_panic() {
    let mut small = value::Stream::new();
    for i in 1..4 {
        assert!(small.append(StreamId::new(i, 0), &[(b"a", b"b")]));
    }
    assert!(small.create_group(b"g", StreamId::new(2, 0), Some(2)));
    let mut group = small.group_mut(b"g").expect("just created");
    assert!(group.create_consumer(b"c", 5) && group.claim(b"c", StreamId::new(1, 0), 5, 1));
    drop(group);
    small.producers_mut(Remembers::usual()).add(b"p", b"i", StreamId::new(3, 0), 3);
    let payload = encode(&Value::Stream(small), 0, &mut free).expect("not stopped").expect("a payload");
    let (body, version) = rdb::open(&payload).expect("sound");
    for at in 1..body.len() {
        assert!(decode_body(&body[..at], version, 0, &mut free).is_err(), "{at} bytes");
        for byte in 0..=255 {
            let mut broken = body.to_vec();
            broken[at] = byte;
            if let Ok(Decoded::Value(Value::Stream(read))) = decode_body(&broken, version, 0, &mut free) {
                read.check_invariants();
            }
        }
    }
}

/// IDs of entries.
type Ids = Vec<(u64, u64)>;

/// The parts of a stream's body, which may contradict each other.
#[derive(Clone)]
struct Said {
    /// IDs of the entries of each node.
    nodes: Vec<Ids>,
    nodes_len: u64,
    len: u64,
    last_id: (u64, u64),
    pending: Ids,
    pending_len: u64,
    /// Names, and what each owns.
    consumers: Vec<(&'static [u8], Ids)>,
    groups_len: u64,
}

impl Said {
    fn sound() -> Said {
        Said {
            nodes: vec![vec![(1, 0), (2, 0)], vec![(3, 0)]],
            nodes_len: 2,
            len: 3,
            last_id: (3, 0),
            pending: vec![(1, 0), (3, 0)],
            pending_len: 2,
            consumers: vec![(b"a", vec![(1, 0)]), (b"b", vec![(3, 0)])],
            groups_len: 1,
        }
    }

    fn body(&self) -> Vec<u8> {
        let mut body = vec![19];
        rdb::put_len(&mut body, self.nodes_len);
        for ids in &self.nodes {
            let mut node = rdb::NodeWriter::new(ids[0], ids.len() as u64, [&b"f"[..]].into_iter());
            ids.iter().for_each(|id| node.entry(*id, [(&b"f"[..], &b"v"[..])].into_iter()));
            rdb::put_stream_node_id(&mut body, ids[0]);
            rdb::put_string(&mut body, &node.finish().expect("a short one"));
        }
        rdb::put_len(&mut body, self.len);
        for id in [self.last_id, (1, 0), (0, 0)] {
            rdb::put_stream_id_as_lens(&mut body, id);
        }
        rdb::put_len(&mut body, 3);
        rdb::put_len(&mut body, self.groups_len);
        rdb::put_string(&mut body, b"g");
        rdb::put_stream_id_as_lens(&mut body, (3, 0));
        rdb::put_len(&mut body, 3);
        rdb::put_len(&mut body, self.pending_len);
        for id in &self.pending {
            rdb::put_stream_id(&mut body, *id);
            body.extend_from_slice(&1000_u64.to_le_bytes());
            rdb::put_len(&mut body, 1);
        }
        rdb::put_len(&mut body, self.consumers.len() as u64);
        for (name, owned) in &self.consumers {
            rdb::put_string(&mut body, name);
            body.extend_from_slice(&1000_u64.to_le_bytes());
            rdb::put_len(&mut body, owned.len() as u64);
            owned.iter().for_each(|id| rdb::put_stream_id(&mut body, *id));
        }
        body
    }
}

#[test]
fn a_stream_that_contradicts_itself_is_refused() {
    type Change = fn(&mut Said);
    let read = |said: &Said| decode_body(&said.body(), 12, 0, &mut free);
    let Ok(Decoded::Value(Value::Stream(sound))) = read(&Said::sound()) else { panic!("it is sound") };
    assert_eq!((sound.len(), sound.group(b"g").map(value::stream::Group::pending_len)), (3, Some(2)));
    let changes: &[(&str, Change)] = &[
        ("nodes out of order", |said| said.nodes.reverse()),
        ("an entry twice", |said| said.nodes[1][0] = (2, 0)),
        ("the entry that may not be", |said| said.nodes[0][0] = (0, 0)),
        ("a last ID below the last entry", |said| said.last_id = (2, 9)),
        ("too few entries", |said| said.len = 4),
        ("too many entries", |said| said.len = 2),
        ("no end of nodes", |said| said.nodes_len = u64::MAX),
        ("no end of entries", |said| said.len = u64::MAX),
        ("no end of groups", |said| said.groups_len = u64::MAX),
        ("no end of pending entries", |said| said.pending_len = u64::MAX),
        ("a group that is not there", |said| said.groups_len = 2),
        ("an entry that two consumers own", |said| said.consumers[1].1.push((1, 0))),
        ("an entry that its consumer owns twice", |said| said.consumers[0].1.push((1, 0))),
        ("an entry that no consumer owns", |said| drop(said.consumers.pop())),
        ("an owned entry that is not pending", |said| said.consumers[0].1.push((2, 0))),
        ("a pending entry twice", |said| said.pending[1] = (1, 0)),
        ("a consumer twice", |said| said.consumers.push((b"a", Vec::new()))),
    ];
    for (what, change) in changes {
        let mut said = Said::sound();
        change(&mut said);
        assert!(matches!(read(&said), Err(Failure::Malformed)), "{what}: {:?}", read(&said));
    }
}

/// Charges nothing.
fn free(_: usize) -> Result<(), ()> {
    Ok(())
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
        Value::Stream(stream()),
        Value::Stream(value::Stream::new()),
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
