//! Every type of every age, written as plainly as possible and decoded; and built payloads, read again.

mod checks;
mod old;

use checks::{Collect, Model, read, write};
use old::{blob, counted, intset, listpack, put_packed, ziplist, zipmap};
use proptest::prelude::*;
use rdb::{Dialect, Failure, Unsupported, put_len, put_string};
use std::collections::BTreeMap;

fn decoded(body: &[u8], version: u16) -> Option<Model> {
    let mut sink = Collect::default();
    rdb::decode(body, version, &mut sink).ok().map(|()| sink.model)
}

/// Numbers of every width, texts of every header, and texts that are nearly numbers.
fn element() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        0i64..14,
        -130i64..130,
        -4100i64..4100,
        -33_000i64..33_000,
        -9_000_000i64..9_000_000,
        any::<i32>().prop_map(i64::from),
        any::<i64>(),
    ];
    let len =
        prop_oneof![8 => 0usize..70, 1 => 240usize..270, 1 => 4080usize..4110, 1 => 16_390usize..16_400];
    prop_oneof![
        number.prop_map(|n| n.to_string().into_bytes()),
        (len, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
        prop::collection::vec(any::<u8>(), 0..40),
        prop::sample::select(vec!["", "-0", "007", "+1", " 1", "-", "1e3", "9223372036854775808"])
            .prop_map(|text| text.as_bytes().to_vec()),
    ]
}

fn elements() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(element(), 1..40)
}

fn fields() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
    prop::collection::btree_map(element(), element(), 1..20).prop_map(|map| map.into_iter().collect())
}

fn flat(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<u8>> {
    pairs.iter().flat_map(|(a, b)| [a.clone(), b.clone()]).collect()
}

fn hash(fields: &[(Vec<u8>, Vec<u8>)]) -> Model {
    Model::Hash(fields.iter().map(|(f, v)| (f.clone(), (v.clone(), None))).collect())
}

fn score() -> impl Strategy<Value = f64> {
    prop_oneof![
        prop::sample::select(vec![0.0, -0.0, 1.5, f64::INFINITY, f64::NEG_INFINITY, 5e-324, 1e300, -17.0]),
        any::<f64>().prop_filter("a number", |score| !score.is_nan()),
    ]
}

proptest! {
    #[test]
    fn lists_of_every_age(elements in elements(), packed: bool, cut in 0usize..40) {
        let model = Some(Model::List(elements.clone()));
        let plain = counted(1, elements.len(), |out| elements.iter().for_each(|e| put_string(out, e)));
        prop_assert_eq!(decoded(&plain, 6), model.clone());
        prop_assert_eq!(decoded(&blob(10, &ziplist(&elements), packed), 6), model.clone());
        let (one, two) = elements.split_at(cut.min(elements.len()));
        let nodes = counted(14, 2, |out| {
            put_packed(out, &ziplist(one));
            put_string(out, &ziplist(two));
        });
        prop_assert_eq!(decoded(&nodes, 9), model.clone());
        let nodes = counted(18, two.len() + 1, |out| {
            put_len(out, 2);
            put_packed(out, &listpack(one));
            for element in two {
                put_len(out, 1);
                put_string(out, element);
            }
        });
        prop_assert_eq!(decoded(&nodes, 10), model);
    }

    #[test]
    fn sets_of_every_age(elements in elements(), packed: bool) {
        let members: BTreeMap<Vec<u8>, ()> = elements.into_iter().map(|e| (e, ())).collect();
        let elements: Vec<Vec<u8>> = members.keys().cloned().collect();
        let model = Some(Model::Set(members));
        let plain = counted(2, elements.len(), |out| elements.iter().for_each(|e| put_packed(out, e)));
        prop_assert_eq!(decoded(&plain, 6), model.clone());
        prop_assert_eq!(decoded(&blob(20, &listpack(&elements), packed), 11), model);
    }

    #[test]
    fn sets_of_integers(numbers in prop::collection::btree_set(prop_oneof![-9i64..9, -99_999i64..99_999, any::<i64>()], 1..40), packed: bool) {
        let numbers: Vec<i64> = numbers.into_iter().collect();
        let model = Model::Set(numbers.iter().map(|n| (n.to_string().into_bytes(), ())).collect());
        prop_assert_eq!(decoded(&blob(11, &intset(&numbers), packed), 6), Some(model));
    }

    #[test]
    fn sorted_sets_of_every_age(members in prop::collection::btree_map(element(), score(), 1..20), packed: bool) {
        let model = Some(Model::ZSet(members.iter().map(|(m, s)| (m.clone(), s.to_bits())).collect()));
        let text = |score: f64| format!("{score:e}").into_bytes();
        let pairs: Vec<_> = members.iter().map(|(m, s)| (m.clone(), text(*s))).collect();
        let old = counted(3, members.len(), |out| for (member, score) in &members {
            put_string(out, member);
            match *score {
                f64::INFINITY => out.push(254),
                f64::NEG_INFINITY => out.push(255),
                score => put_string(out, &text(score)),
            }
        });
        prop_assert_eq!(decoded(&old, 6), model.clone());
        let new = counted(5, members.len(), |out| for (member, score) in &members {
            put_string(out, member);
            out.extend_from_slice(&score.to_le_bytes());
        });
        prop_assert_eq!(decoded(&new, 8), model.clone());
        prop_assert_eq!(decoded(&blob(12, &ziplist(&flat(&pairs)), packed), 6), model.clone());
        prop_assert_eq!(decoded(&blob(17, &listpack(&flat(&pairs)), packed), 10), model);
    }

    #[test]
    fn hashes_of_every_age(fields in fields(), packed: bool, unused in 0u8..5) {
        let model = Some(hash(&fields));
        let plain = counted(4, fields.len(), |out| flat(&fields).iter().for_each(|e| put_string(out, e)));
        prop_assert_eq!(decoded(&plain, 6), model.clone());
        prop_assert_eq!(decoded(&blob(9, &zipmap(&fields, unused), packed), 3), model.clone());
        prop_assert_eq!(decoded(&blob(13, &ziplist(&flat(&fields)), packed), 6), model.clone());
        prop_assert_eq!(decoded(&blob(16, &listpack(&flat(&fields)), packed), 10), model);
    }

    #[test]
    fn hashes_whose_fields_expire(fields in fields(), times in prop::collection::vec(prop::option::of(1u64..1 << 47), 20)) {
        let timed: Vec<_> = fields.iter().zip(&times).collect();
        let model = Some(Model::Hash(
            timed.iter().map(|((f, v), time)| (f.clone(), (v.clone(), **time))).collect(),
        ));
        let soonest = times.iter().flatten().min().copied().unwrap_or(0);
        let each = |out: &mut Vec<u8>, since: u64| for ((field, value), time) in &timed {
            put_len(out, time.map_or(0, |time| time - since + 1));
            put_string(out, field);
            put_string(out, value);
        };
        prop_assert_eq!(decoded(&counted(22, timed.len(), |out| each(out, 1)), 12), model.clone());
        let mut body = counted(24, timed.len(), |out| each(out, soonest));
        body.splice(1..1, soonest.to_le_bytes());
        prop_assert_eq!(decoded(&body, 12), model.clone());
        let triples: Vec<Vec<u8>> = timed.iter().flat_map(|((field, value), time)| {
            [field.clone(), value.clone(), time.unwrap_or(0).to_string().into_bytes()]
        }).collect();
        prop_assert_eq!(decoded(&blob(23, &listpack(&triples), false), 12), model.clone());
        let mut body = blob(25, &listpack(&triples), true);
        body.splice(1..1, soonest.to_le_bytes());
        prop_assert_eq!(decoded(&body, 12), model.clone());
        let valkey = counted(22, timed.len(), |out| for ((field, value), time) in &timed {
            put_string(out, field);
            put_string(out, value);
            out.extend_from_slice(&time.map_or(-1, |time| time as i64).to_le_bytes());
        });
        prop_assert_eq!(decoded(&valkey, 80), model);
    }

    #[test]
    fn what_is_built_is_read(elements in elements(), fields in fields(), scores in prop::collection::vec(score(), 40),
                             times in prop::collection::vec(prop::option::of(1u64..1 << 47), 20)) {
        let timed = fields.iter().zip(&times).map(|((f, v), time)| (f.clone(), (v.clone(), *time)));
        let scored = elements.iter().cloned().zip(scores.iter().map(|score| score.to_bits()));
        for model in [
            Model::Str(elements[0].clone()),
            Model::List(elements.clone()),
            Model::Set(elements.iter().cloned().map(|e| (e, ())).collect()),
            Model::ZSet(scored.collect()),
            hash(&fields),
            Model::Hash(timed.collect()),
        ] {
            for dialect in [Dialect::Redis, Dialect::Valkey] {
                let payload = write(&model, dialect).expect("not empty");
                prop_assert_eq!(read(&payload), Some(model.clone()));
            }
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(data: Vec<u8>, kind in 0u8..34) {
        checks::body(&data);
        for which in 0..4 {
            checks::body(&[&[which, kind], &data[..]].concat());
        }
        checks::payload(&data);
    }
}

#[test]
fn a_hash_written_at_once_is_the_same_as_one_written_twice() {
    for dialect in [Dialect::Redis, Dialect::Valkey] {
        let mut once = rdb::HashPayload::expiring(dialect, 3, 1_000);
        let mut twice = rdb::HashPayload::new();
        for hash in [&mut once, &mut twice] {
            hash.insert(b"f", b"v").insert_expiring(b"g", b"7", 1_000).insert_expiring(b"h", b"", 2_000);
        }
        assert_eq!(once.finish(Dialect::Redis), twice.finish(dialect), "{dialect:?}");
    }
}

#[test]
fn a_wrong_announcement_is_put_right() {
    for announced in [0, 1, 63, 64, 70_000] {
        let mut list = rdb::ListPayload::with_len(announced);
        list.extend((0..100).map(|i| i.to_string()));
        let exact: rdb::ListPayload = (0..100).map(|i| i.to_string()).collect();
        assert_eq!(list.finish(), exact.finish(), "{announced}");
    }
}

#[test]
fn there_are_no_empty_collections() {
    assert_eq!(rdb::ListPayload::new().finish(), None);
    assert_eq!(rdb::SetPayload::with_len(3).finish(), None);
    assert_eq!(rdb::HashPayload::new().finish(Dialect::Redis), None);
    let mut set = rdb::ZSetPayload::new();
    assert!(!set.insert(b"m", f64::NAN));
    assert_eq!(set.finish(), None);
    for kind in [1, 2, 3, 4, 5, 14, 18, 22] {
        assert_eq!(decoded(&[kind, 0], 12), None, "{kind}");
    }
    for kind in [10, 12, 13] {
        assert_eq!(decoded(&blob(kind, &ziplist(&[]), false), 12), None, "{kind}");
    }
    for kind in [16, 17, 20, 23] {
        assert_eq!(decoded(&blob(kind, &listpack(&[]), false), 12), None, "{kind}");
    }
    assert_eq!(decoded(&blob(11, &intset(&[]), false), 12), None);
    assert_eq!(decoded(&blob(9, &zipmap(&[], 0), false), 12), None);
    // A quicklist with empty nodes.
    assert_eq!(decoded(&counted(14, 1, |out| put_string(out, &ziplist(&[]))), 12), None);
}

#[test]
fn what_stands_there_twice_is_refused() {
    let twice = |word: &str| vec![word.as_bytes().to_vec(), word.as_bytes().to_vec()];
    for word in ["a", "7"] {
        let strings = |out: &mut Vec<u8>| twice(word).iter().for_each(|e| put_string(out, e));
        assert_eq!(decoded(&counted(2, 2, strings), 12), None);
        assert_eq!(decoded(&blob(20, &listpack(&twice(word)), false), 12), None);
        let pairs = [twice(word), twice(word)].concat();
        assert_eq!(decoded(&blob(16, &listpack(&pairs), false), 12), None);
        assert_eq!(decoded(&blob(13, &ziplist(&pairs), false), 12), None);
        let scored = [&twice(word)[..1], &[b"1".to_vec()], &twice(word)[..1], &[b"2".to_vec()]].concat();
        assert_eq!(decoded(&blob(17, &listpack(&scored), false), 12), None);
        assert_eq!(decoded(&blob(12, &ziplist(&scored), false), 12), None);
    }
    assert_eq!(decoded(&blob(11, &intset(&[7, 7]), false), 12), None);
    assert_eq!(decoded(&blob(11, &intset(&[8, 7]), false), 12), None, "out of order");
}

#[test]
fn scores_that_are_no_numbers_are_refused() {
    for score in ["nan", "-nan", "x", "", "1x"] {
        let pair = [b"m".to_vec(), score.as_bytes().to_vec()];
        assert_eq!(decoded(&blob(17, &listpack(&pair), false), 12), None, "{score}");
        assert_eq!(decoded(&counted(3, 1, |out| pair.iter().for_each(|e| put_string(out, e))), 12), None);
    }
    let binary = |score: f64| {
        counted(5, 1, |out| {
            put_string(out, b"m");
            out.extend_from_slice(&score.to_le_bytes());
        })
    };
    assert!(decoded(&binary(1.0), 12).is_some());
    assert_eq!(decoded(&binary(f64::NAN), 12), None);
    assert_eq!(decoded(b"\x03\x01\x01m\xfd", 12), None);
}

#[test]
fn odd_numbers_of_halves_are_refused() {
    let three = [b"a".to_vec(), b"1".to_vec(), b"b".to_vec()];
    for kind in [16, 17] {
        assert_eq!(decoded(&blob(kind, &listpack(&three), false), 12), None);
    }
    for kind in [12, 13] {
        assert_eq!(decoded(&blob(kind, &ziplist(&three), false), 12), None);
    }
    assert_eq!(decoded(&blob(23, &listpack(&three[..2]), false), 12), None);
}

/// The reason for which a body is refused.
fn refused(body: &[u8], version: u16) -> Failure<()> {
    rdb::decode(body, version, &mut Collect::default()).expect_err("not read")
}

#[test]
fn new_types_and_modules_are_refused_by_name() {
    let named = |what| Failure::Unsupported(Unsupported::Values(what));
    for (kind, version, what) in [
        (27, 14, "streams"),
        (28, 14, "arrays"),
        (29, 15, "hashes of a template"),
        (31, 15, "hashes of a template"),
        (23, 81, "path hashes"),
    ] {
        assert_eq!(refused(&[kind, 1, 1, b'a', 1, b'b'], version), named(what), "{kind} {version}");
    }
    let module = |name: &[u8; 9], version| Failure::Unsupported(Unsupported::Module { name: *name, version });
    let mut body = rdb::module_body(b"MBbloom--", 4, b"data");
    assert_eq!(refused(&body, 12), module(b"MBbloom--", 4));
    body[0] = 6;
    assert_eq!(refused(&body, 8), module(b"MBbloom--", 4));
    // Any eight bytes are a name that can be printed.
    let body = [&[7, 0x81][..], &[0xff; 8]].concat();
    let Failure::Unsupported(odd) = refused(&body, 12) else { panic!("no module") };
    assert_eq!(odd.to_string(), "a value of the module _________ (version 1023) is not supported");
    assert_eq!(refused(&body[..6], 12), Failure::Malformed);
}

/// A stream of version 13 with two producers, the second without messages.
fn stream_with_producers() -> Vec<u8> {
    let mut body = vec![26];
    body.extend(b"\x01\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01");
    body.extend(b"\x1d\x1d\0\0\0\x0a\0\x01\x01\0\x01\x01\x01\x81f\x02\0\x01");
    body.extend(b"\x02\x01\0\x01\0\x01\x81v\x02\x04\x01\xff");
    body.extend(b"\x01\x01\x01\x01\x01\0\0\x01\0");
    body.extend(b"\x40\x64\x40\x64\x02\x02p1\x02\x03abc\x01\x01\xc0\x07\x02\x05\x02p2\0\x03\x01");
    body
}

#[test]
fn producers_of_streams_are_read_and_metadata_of_modules_is_passed_over() {
    let stream = stream_with_producers();
    let entry = (vec![b"f".to_vec(), b"v".to_vec()], (1, 1));
    assert_eq!(decoded(&stream, 13), Some(Model::Stream(vec![entry.clone()])));
    for cut in 1..stream.len() {
        assert_eq!(decoded(&stream[..cut], 13), None, "{cut}");
    }
    // A class with each kind of piece, and one without any.
    let pieces = b"\x01\x05\x02\x06\x03abcd\x04abcdefgh\x05\x02hi\0";
    let metadata = [&b"\xf3\x02\x01\x02\x03\x04"[..], pieces, b"\x05\x06\x07\x08\0"].concat();
    for version in [13, 14, 15, 79] {
        let text = [&metadata[..], b"\x00\x02hi"].concat();
        assert_eq!(decoded(&text, version), Some(Model::Str(b"hi".to_vec())), "{version}");
        let both = [&metadata[..], &stream].concat();
        assert_eq!(decoded(&both, version), Some(Model::Stream(vec![entry.clone()])), "{version}");
    }
    for cut in 1..=metadata.len() {
        assert_eq!(decoded(&metadata[..cut], 13), None, "{cut}");
    }
    assert_eq!(decoded(b"\xf3\x01\0\0\0\0\x06\0\x00\x02hi", 13), None);
    assert_eq!(rdb::estimate(&[&metadata[..], b"\x00\x02hi"].concat()), rdb::estimate(b"\x00\x02hi"));
    let mut sealed = [&metadata[..], b"\x00\x02hi"].concat();
    rdb::seal(&mut sealed, 13);
    assert_eq!(rdb::kind_of(&sealed), "strings");
}

#[test]
fn types_that_no_server_has_are_refused() {
    for (kind, version) in [
        (8, 12),
        (27, 13),
        (28, 13),
        (29, 14),
        (33, 15),
        (100, 15),
        (243, 12),
        (245, 15),
        (255, 12),
        // Types of Redis, in versions where Valkey gave the numbers another meaning or none.
        (23, 80),
        (24, 80),
        (25, 81),
        (243, 80),
    ] {
        assert_eq!(refused(&[kind, 1, 1, b'a', 1, b'b'], version), Failure::Malformed, "{kind} {version}");
    }
}

/// A type's meaning depends on the server that wrote it, and on nothing else in the version.
#[test]
fn later_versions_mean_the_same() {
    let redis = b"\x16\x02\x02\x01a\x01b\x00\x01c\x01d";
    let valkey = b"\x16\x01\x01a\x01b\xff\xff\xff\xff\xff\xff\xff\xff";
    for version in [12, 13, 14, 15] {
        assert!(decoded(redis, version).is_some() && decoded(valkey, version).is_none(), "{version}");
    }
    for version in [80, 81] {
        assert!(decoded(redis, version).is_none() && decoded(valkey, version).is_some(), "{version}");
    }
    let listpacks = blob(25, &listpack(&[b"f".to_vec(), b"v".to_vec(), b"0".to_vec()]), false);
    let listpacks = [&listpacks[..1], &[0; 8], &listpacks[1..]].concat();
    assert!(decoded(&listpacks, 15).is_some());
    assert_eq!(decoded(&listpacks, 80), None);
}

/// A kilobyte that claims to be a gigabyte is refused before memory is taken.
#[test]
fn announcements_are_not_believed() {
    let mut body = vec![0, 0xc3];
    put_len(&mut body, 3);
    put_len(&mut body, 1 << 30);
    body.extend_from_slice(b"\x00aa");
    assert_eq!(decoded(&body, 12), None);
    let mut body = vec![1];
    put_len(&mut body, u64::MAX);
    assert_eq!(decoded(&body, 12), None);
}

#[test]
fn a_sink_can_stop_it() {
    let many: rdb::ListPayload = (0..1_000).map(|i| i.to_string()).collect();
    let payload = many.finish().unwrap();
    let (body, version) = rdb::open(&payload).unwrap();
    let mut sink = Collect { stop_at: Some(3), ..Collect::default() };
    assert_eq!(rdb::decode(body, version, &mut sink), Err(Failure::Stopped(())));
    assert!(matches!(sink.model, Model::List(list) if list.len() < 200));
}

#[test]
fn work_is_estimated_without_unpacking() {
    let zeros = vec![0; 100_000];
    assert_eq!(rdb::estimate(&blob(0, &zeros, true)), (1, 100_000));
    assert_eq!(rdb::estimate(&blob(16, &zeros, true)), (25_000, 100_000));
    let nodes = counted(18, 2, |out| {
        for _ in 0..2 {
            put_len(out, 2);
            put_packed(out, &zeros);
        }
    });
    assert_eq!(rdb::estimate(&nodes), (50_000, 200_000));
    let strings = counted(4, 3, |out| (0..6).for_each(|_| put_string(out, b"12345")));
    assert_eq!(rdb::estimate(&strings), (6, 30));
    let long = counted(1, 10_000, |out| (0..10_000).for_each(|_| put_string(out, b"1")));
    assert!(rdb::estimate(&long).0 > 10_000, "the worst of what is long");
}

/// Bytes written by Valkey 9.1. It reads ours because they are the same, except for the compression.
#[test]
fn fields_that_expire_are_written_as_valkey_does() {
    let theirs =
        b"\x16\x02\x01a\xc0\x01\x008\xd3`\xba\x01\x00\x00\x01b\xc0\x02\xff\xff\xff\xff\xff\xff\xff\xff";
    let mut ours = rdb::HashPayload::new();
    ours.insert_expiring(b"a", b"1", 1_900_000_000_000).insert(b"b", b"2");
    assert_eq!(ours.into_body(Dialect::Valkey), Some((theirs.to_vec(), 80)));
    let fields = [("a", "1", Some(1_900_000_000_000)), ("b", "2", None)];
    let fields = fields.map(|(f, v, time)| (f.as_bytes().to_vec(), (v.as_bytes().to_vec(), time)));
    assert_eq!(decoded(theirs, 80), Some(Model::Hash(fields.into())));
}
