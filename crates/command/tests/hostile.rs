//! Sound payloads of every type, damaged at random. `make test` does a short seeded run; `fuzz/` runs the
//! same check as long as wanted.

mod checks;

use command::serial;
use rdb::{Dialect, HashPayload, ListPayload, SetPayload, ZSetPayload};
use value::{Ints, Stream, StreamId, Value};

const NOW_MS: u64 = 1_700_000_000_000;

/// xorshift: the run is the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

fn words(count: usize) -> Vec<Vec<u8>> {
    let word = |i: usize| match i % 4 {
        0 => i.to_string(),
        1 => (i as i64 * -70_000_003).to_string(),
        2 => "x".repeat(i * 7 % 1_300),
        _ => format!("word{i}"),
    };
    (0..count).map(|i| word(i).into_bytes()).collect()
}

/// A stream with removed entries and two groups, of which one has entries pending for two consumers.
fn stream(count: u64) -> Stream {
    let (mut stream, id) = (Stream::new(), |n: u64| StreamId { ms: 1000 + n / 3, seq: n % 3 });
    for n in 0..count {
        let text = n.to_string();
        let fields: [(&[u8], &[u8]); 2] = [(b"n", text.as_bytes()), (b"other", b"value")];
        stream.append(id(n), &fields[..1 + n as usize % 2]);
    }
    stream.create_group(b"all", id(count - 1), Some(count));
    stream.create_group(b"idle", StreamId::MAX, None);
    for n in 0..count {
        let consumer: &[u8] = if n % 3 == 0 { b"a" } else { b"b" };
        let mut group = stream.group_mut(b"all").expect("it was made");
        group.create_consumer(consumer, NOW_MS);
        group.claim(consumer, id(n), NOW_MS + n, 1);
    }
    for n in (1..count).step_by(4) {
        stream.remove(id(n));
        stream.group_mut(b"all").expect("it was made").ack(id(n - 1));
    }
    stream
}

/// A body of each type, with few elements and with many.
fn sound() -> Vec<Vec<u8>> {
    let mut payloads = vec![Some(rdb::string_payload(b"text")), Some(rdb::string_payload(b"-17"))];
    for count in [1, 5, 40, 700] {
        let words = words(count);
        let (mut hash, mut timed) = (HashPayload::with_len(count), HashPayload::new());
        for (i, word) in words.iter().enumerate() {
            hash.insert(word, b"value");
            timed.insert_expiring(word, b"7", 1_700_000_000_000 - 20 + 1_000 * i as u64);
        }
        payloads.push(words.iter().collect::<ListPayload>().finish());
        payloads.push(words.iter().collect::<SetPayload>().finish());
        payloads.push((0..count * 3).map(|i| (i * i).to_string()).collect::<SetPayload>().finish());
        payloads.push(words.iter().zip([1.5, -2.0].into_iter().cycle()).collect::<ZSetPayload>().finish());
        payloads.push(hash.finish(Dialect::Redis));
        payloads.push(timed.finish(Dialect::Redis));
    }
    let mut bits: Ints = (0..3_000).map(|i| i * i).collect();
    bits.insert_range(1 << 20, 3 << 20);
    bits.extend((5 << 20..6 << 20).step_by(3));
    let narrow = Value::Roaring(bits.clone());
    bits.extend([1 << 33, u64::MAX]);
    for value in [narrow, Value::Roaring64(bits)] {
        payloads.push(serial::encode(&value, 0, &mut |_| Ok(())).expect("nothing stops it"));
    }
    for count in [1, 5, 300] {
        let stream = Value::Stream(stream(count));
        for dialect in [Dialect::Redis, Dialect::Valkey] {
            payloads
                .push(serial::encode_for(dialect, &stream, 0, &mut |_| Ok(())).expect("nothing stops it"));
        }
    }
    let body = |payload: Vec<u8>| rdb::open(&payload).expect("sound").0.to_vec();
    payloads.into_iter().flatten().map(body).collect()
}

fn damage(body: &mut Vec<u8>, random: &mut Random) {
    // The front decides most, so it is damaged more often.
    let at = if random.below(2) == 0 { random.below(body.len().min(60)) } else { random.below(body.len()) };
    match random.below(6) {
        0 => body.truncate(at),
        1 => body[at] ^= 1 << random.below(8),
        2 => body[at] = [0, 0xff, 0xfe, 0x7f, 0x80, 0x40, 0xc3][random.below(7)],
        3 => body.insert(at, random.below(256) as u8),
        4 => {
            let (to, len) = (random.below(body.len()), random.below(9));
            let piece: Vec<u8> = body[at..].iter().take(len).copied().collect();
            body.splice(to..to, piece);
        }
        _ => body[at] = random.below(256) as u8,
    }
    if body.is_empty() {
        body.push(0);
    }
}

#[test]
fn any_registers_are_counted_or_refused() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for run in 0..400 {
        let len = random.below(60);
        let mut data = vec![(run % 4) as u8];
        // Values more often than runs of zeros, which are long.
        data.extend((0..len).map(|_| random.below(256) as u8 | if random.below(3) > 0 { 0x80 } else { 0 }));
        let caught = std::panic::catch_unwind(|| checks::sketch(&data));
        assert!(caught.is_ok(), "run {run}: {data:?}");
    }
}

#[test]
fn any_form_of_a_stream_is_read_or_refused() {
    let mut random = Random(0x9e6c_63d0_876a_9a35);
    for run in 0..2_000 {
        let payload = serial::encode(&Value::Stream(stream(1 + run % 40)), 0, &mut |_| Ok(()));
        let payload = payload.expect("nothing stops it").expect("it does not expire");
        let mut body = rdb::open(&payload).expect("sound").0[1..].to_vec();
        for _ in 0..random.below(4) {
            damage(&mut body, &mut random);
        }
        let data = [&[run as u8, random.below(3) as u8], &body[..]].concat();
        let caught = std::panic::catch_unwind(|| checks::restore_stream(&data));
        assert!(caught.is_ok(), "run {run}: {data:?}");
    }
}

#[test]
fn damaged_payloads_are_sound_values_or_refused() {
    let bodies = sound();
    for body in &bodies {
        checks::restore(&[&[0], &body[..]].concat());
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for run in 0..4_000 {
        let mut body = bodies[random.below(bodies.len())].clone();
        for _ in 0..1 + random.below(3) {
            damage(&mut body, &mut random);
        }
        body.insert(0, random.below(4) as u8);
        let caught = std::panic::catch_unwind(|| checks::restore(&body));
        assert!(caught.is_ok(), "run {run}: {body:?}");
    }
}
