//! Sound payloads of every type, damaged at random. `make test` does a short seeded run; `fuzz/` runs the
//! same check as long as wanted.

mod checks;

use command::serial;
use rdb::{Dialect, HashPayload, ListPayload, SetPayload, ZSetPayload};
use value::{Ints, Value};

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
