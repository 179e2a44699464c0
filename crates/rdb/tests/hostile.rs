//! Valid bodies of every type, damaged at random: a short seeded run in every `make test`. `fuzz/` runs the
//! same checks for as long as wanted.

mod checks;
mod old;

use old::{blob, counted, intset, listpack, put_packed, ziplist, zipmap};
use rdb::{put_len, put_string};

fn words(count: usize) -> Vec<Vec<u8>> {
    let word = |i: usize| match i % 5 {
        0 => i.to_string(),
        1 => (i as i64 * -70_000_003).to_string(),
        2 => "x".repeat(i * 7),
        3 => format!("word{i}"),
        _ => format!("{i}.5"),
    };
    (0..count).map(|i| word(i).into_bytes()).collect()
}

/// A body of each type, without a version. Some are large.
fn sound() -> Vec<Vec<u8>> {
    let (few, many) = (words(8), words(60));
    let pairs: Vec<_> = few.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    let scored: Vec<_> = many.iter().flat_map(|word| [word.clone(), b"1.5".to_vec()]).collect();
    let timed: Vec<_> =
        few.iter().flat_map(|word| [word.clone(), b"v".to_vec(), b"1800000000000".to_vec()]).collect();
    let strings = |out: &mut Vec<u8>, words: &[Vec<u8>]| words.iter().for_each(|word| put_string(out, word));
    let mut bodies = vec![
        blob(0, b"text", false),
        blob(0, &[b'z'; 1_000], true),
        b"\x00\xc1\x39\x30".to_vec(),
        counted(1, 8, |out| strings(out, &few)),
        counted(2, 8, |out| strings(out, &few)),
        counted(4, 4, |out| strings(out, &few)),
        counted(3, 1, |out| strings(out, &[b"m".to_vec(), b"1.5".to_vec()])),
        blob(9, &zipmap(&pairs, 2), false),
        blob(10, &ziplist(&many), false),
        blob(11, &intset(&[-70_000, -1, 0, 5, 1 << 40]), false),
        blob(12, &ziplist(&scored), true),
        blob(13, &ziplist(&few), false),
        blob(16, &listpack(&few), false),
        blob(17, &listpack(&scored), true),
        blob(20, &listpack(&many), false),
        blob(23, &listpack(&timed), false),
        counted(14, 2, |out| {
            put_packed(out, &ziplist(&few));
            put_string(out, &ziplist(&many));
        }),
        counted(18, 2, |out| {
            put_len(out, 2);
            put_packed(out, &listpack(&many));
            put_len(out, 1);
            put_string(out, b"plain");
        }),
    ];
    for body in checked(&few) {
        bodies.push(body);
    }
    bodies
}

/// Bodies of hashes with fields that expire and of sorted sets, as the builder writes them.
fn checked(few: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut hash = rdb::HashPayload::new();
    few.iter().for_each(|word| {
        hash.insert_expiring(word, b"value", 1_800_000_000_000 + word.len() as u64);
    });
    let set: rdb::ZSetPayload = few.iter().zip([1.0, -2.5, f64::INFINITY]).collect();
    let payloads = [hash.finish(rdb::Dialect::Redis), set.finish()];
    payloads.into_iter().flatten().filter_map(|p| rdb::open(&p).map(|(body, _)| body.to_vec())).collect()
}

/// xorshift, so that every run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

fn damage(body: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(body.len());
    match random.below(7) {
        0 => body.truncate(at),
        1 => body[at] ^= 1 << random.below(8),
        2 => body[at] = [0, 0xff, 0xfe, 0x7f, 0x80, 0x40, 0xc3][random.below(7)],
        3 => body.insert(at, random.below(256) as u8),
        4 => {
            body.remove(at);
        }
        5 => {
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
fn damaged_bodies_are_decoded_or_refused() {
    let bodies = sound();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let runs = if cfg!(miri) { 50 } else { 40_000 };
    for run in 0..runs {
        let mut body = bodies[random.below(bodies.len())].clone();
        for _ in 0..1 + random.below(3) {
            damage(&mut body, &mut random);
        }
        body.insert(0, random.below(4) as u8);
        let caught = std::panic::catch_unwind(|| checks::body(&body));
        assert!(caught.is_ok(), "run {run}: {body:?}");
    }
}

#[test]
fn damaged_files_are_read_or_refused() {
    let mut file = Vec::new();
    rdb::file::put_aux(&mut file, b"name", b"value");
    rdb::file::put_select(&mut file, 1);
    for (i, body) in sound().iter().enumerate() {
        if i % 3 == 0 {
            rdb::file::put_expiry(&mut file, 1_800_000_000_000);
        }
        file.push(body[0]);
        put_string(&mut file, format!("key{i}").as_bytes());
        file.extend_from_slice(&body[1..]);
    }
    rdb::file::put_end(&mut file);
    file.extend_from_slice(&[0; 8]);
    checks::file(&file);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let runs = if cfg!(miri) { 20 } else { 5_000 };
    for run in 0..runs {
        let mut changed = file.clone();
        for _ in 0..1 + random.below(3) {
            damage(&mut changed, &mut random);
        }
        let caught = std::panic::catch_unwind(|| checks::file(&changed));
        assert!(caught.is_ok(), "run {run}: {changed:?}");
    }
}

#[test]
fn they_were_sound_before() {
    for body in sound() {
        let mut sink = checks::Collect::default();
        assert!(rdb::decode(&body, 12, &mut sink).is_ok(), "{body:?}");
    }
}

/// Untrue lengths must add up to too much, and not to little.
#[test]
fn what_is_announced_may_be_more_than_can_be_counted() {
    for kind in [1_u8, 2, 14, 18] {
        let mut body = vec![kind, 2];
        for _ in 0..2 {
            if kind == 18 {
                body.push(2);
            }
            body.extend_from_slice(b"\xc3\x01\x81\x7f\xff\xff\xff\xff\xff\xff\xff\x00");
            // Once more, as far as a length reaches.
            body.extend_from_slice(b"\xc3\x01\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00");
        }
        body[1] = if kind == 18 { 2 } else { 4 };
        let (elements, bytes) = rdb::estimate(&body);
        assert!(elements > 0 && bytes > 0, "{kind}");
        checks::body(&body);
    }
}
