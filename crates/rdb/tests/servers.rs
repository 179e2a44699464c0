//! Payloads written by real servers, in `data/payloads.txt`.

mod checks;

use checks::{Model, read};

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
    (0..hex.len()).step_by(2).map(digits).collect()
}

/// A word of the file.
fn word(text: &str) -> Vec<u8> {
    let (mut word, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'\\', [b'x', a, b, after @ ..]) => {
                let digits = [*a, *b];
                let digits = std::str::from_utf8(&digits).expect("hex digits");
                word.push(u8::from_str_radix(digits, 16).expect("hex digits"));
                rest = after;
            }
            (b'\\', [b'e', after @ ..]) => rest = after,
            (b'\\', [_, after @ ..]) => {
                word.push(b'\\');
                rest = after;
            }
            _ => word.push(*byte),
        }
    }
    word
}

fn number<T: std::str::FromStr>(word: &[u8]) -> T {
    let text = std::str::from_utf8(word).expect("a number");
    text.parse().ok().expect("a number")
}

fn model(kind: &str, words: Vec<Vec<u8>>) -> Model {
    let scored = |pair: &[Vec<u8>]| (pair[0].clone(), number::<f64>(&pair[1]).to_bits());
    let field = |triple: &[Vec<u8>]| {
        let time = u64::try_from(number::<i64>(&triple[2])).ok();
        (triple[0].clone(), (triple[1].clone(), time))
    };
    match kind {
        "string" => Model::Str(words[0].clone()),
        "list" => Model::List(words),
        "set" => Model::Set(words.into_iter().map(|word| (word, ())).collect()),
        "zset" => Model::ZSet(words.chunks(2).map(scored).collect()),
        "hash" => Model::Hash(words.chunks(3).map(field).collect()),
        _ => panic!("no type {kind}"),
    }
}

#[test]
fn what_real_servers_wrote_is_read() {
    let lines = include_str!("data/payloads.txt").lines().filter(|line| !line.starts_with('#'));
    let mut kinds = std::collections::BTreeSet::new();
    for line in lines {
        let mut words = line.split(' ');
        let (Some(server), Some(payload), Some(kind)) = (words.next(), words.next(), words.next()) else {
            panic!("{line}");
        };
        let payload = bytes(payload);
        kinds.insert(payload[0]);
        if kind == "stream" {
            let entry = (vec![b"f".to_vec(), b"v".to_vec()], (1, 1));
            assert_eq!(read(&payload), Some(Model::Stream(vec![entry])), "{server}");
            continue;
        }
        let expected = model(kind, words.map(word).collect());
        assert_eq!(read(&payload), Some(expected), "{server} {kind} {}", payload[0]);
    }
    // All types except values of modules, zipmaps (older than DUMP), and types of release candidates.
    let all = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24, 25, 26];
    assert_eq!(kinds.into_iter().collect::<Vec<u8>>(), all);
}
