//! Files that were cut, changed or made to harm: an error or the right contents, never a panic, and no memory
//! for what is only announced.

mod files;

use files::{Collect, Found, load, resummed, sample_file};
use persist::{Damaged, Unknown};
use rdb::file::Format;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn keys(collect: Collect) -> Found {
    collect.keys.into_inner().expect("no panic")
}

#[test]
fn every_beginning_of_a_file_is_refused_or_kept_as_far_as_it_goes() {
    let (file, order) = sample_file(Format::REDIS);
    let (whole, all, _) = load(&file, Damaged::Refuse, Unknown::Refuse);
    assert!(whole.is_ok_and(|report| report.is_summed && report.keys == order.len() as u64));
    let all = keys(all);
    let mut before = 0;
    for len in 0..file.len() {
        let (refused, _, _) = load(&file[..len], Damaged::Refuse, Unknown::Refuse);
        let refused = refused.expect_err("it is not whole");
        assert!(refused.offset <= len as u64, "{len}: {refused}");
        let (report, kept, _) = load(&file[..len], Damaged::KeepPrefix, Unknown::Refuse);
        match report {
            Ok(report) => {
                let damage = report.damage.as_ref().expect("it is not whole");
                assert_eq!(damage.to_string(), refused.to_string());
                assert!(damage.offset <= len as u64 && report.left_bytes(len as u64) <= len as u64);
                let kept = keys(kept);
                assert_eq!(report.keys, kept.len() as u64);
                assert!(kept.len() >= before, "{len}: more of the file is no less");
                before = kept.len();
                assert!(order[..kept.len()].iter().all(|key| kept.get(key) == all.get(key)), "{len}");
            }
            Err(error) => assert!(len < 9, "{len}: {error}"),
        }
        let about = persist::describe(&file[..len], 0);
        assert!(about.map_or(len < 9, |about| about.damage.is_some()), "{len}");
    }
    assert_eq!(before, order.len());
}

#[test]
fn changed_bytes_are_noticed_by_the_sum() {
    let (file, _) = sample_file(Format::REDIS);
    let (_, all, _) = load(&file, Damaged::Refuse, Unknown::Refuse);
    let all = keys(all);
    for at in 0..file.len() {
        for change in [1, 0x40, 0xff] {
            let mut changed = file.clone();
            changed[at] ^= change;
            let (report, found, _) = load(&changed, Damaged::Refuse, Unknown::Refuse);
            match report {
                Err(_) => {}
                // A version from before sums, or no sum.
                Ok(report) => assert!(!report.is_summed && keys(found) == all, "byte {at} ^ {change}"),
            }
        }
    }
}

#[test]
fn changed_bytes_with_a_right_sum_are_read_or_refused() {
    for format in [Format::REDIS, Format::VALKEY] {
        let (file, _) = sample_file(format);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |end: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % end as u64) as usize
        };
        for _ in 0..4_000 {
            let mut changed = file.clone();
            for _ in 0..1 + next(3) {
                let at = 9 + next(changed.len() - 17);
                changed[at] = match next(3) {
                    0 => [0, 0xff, 0xfe, 0x7f, 0x80, 0x81, 0xc3][next(7)],
                    1 => changed[at] ^ 1 << next(8),
                    _ => next(256) as u8,
                };
            }
            let changed = resummed(changed);
            for damaged in [Damaged::Refuse, Damaged::KeepPrefix] {
                let (report, found, _) = load(&changed, damaged, Unknown::Skip);
                if let Ok(report) = report {
                    assert_eq!(report.keys, keys(found).len() as u64);
                }
            }
            let about = persist::describe(&changed[..], 0).expect("the header is whole");
            about.to_string();
        }
    }
}

/// Bytes that this thread took since it began.
fn allocated() -> u64 {
    tikv_jemalloc_ctl::thread::allocatedp::read().expect("jemalloc").get()
}

/// Announced lengths, with few bytes behind them.
fn liars() -> Vec<Vec<u8>> {
    const HUGE: &[u8] = b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff";
    const LARGE: &[u8] = b"\x80\x1f\xff\xff\xff";
    let mut bodies = Vec::new();
    for len in [HUGE, LARGE] {
        for head in [
            &b"\xfa"[..],
            b"\xfa\x01n",
            b"\xf5",
            b"\x00",
            b"\x00\x01k",
            b"\x01\x01k",
            b"\x04\x01k",
            b"\x05\x01k",
            b"\x10\x01k",
            b"\x12\x01k",
            b"\x18\x01k12345678",
            b"\x0f\x01k",
            b"\x15\x01k",
            b"\xfe",
            b"\xf8",
        ] {
            bodies.push([head, len, b"short"].concat());
        }
        // Compressed, with two lengths.
        bodies.push([b"\x00\x01k\xc3", len, len, b"short"].concat());
        bodies.push([b"\x00\x01k\xc3\x05", len, b"\x04abcde"].concat());
        bodies.push([b"\xfa\xc3\x05", len, b"\x04abcde"].concat());
    }
    let file = |body: Vec<u8>| [b"REDIS0012", &body[..]].concat();
    bodies.into_iter().map(file).collect()
}

#[test]
fn no_memory_is_taken_for_what_is_only_announced() {
    for file in liars() {
        let before = allocated();
        let mut reader = rdb::file::FileReader::new(&file[..], true).expect("a header");
        while !matches!(reader.next_part(), Err(_) | Ok(rdb::file::Part::End { .. })) {}
        let about = persist::describe(&file[..], 0).expect("a header");
        assert!(about.damage.is_some());
        let taken = allocated() - before;
        assert!(taken < 600_000, "{taken} bytes for {}", file.escape_ascii());
        let (report, found, _) = load(&file, Damaged::KeepPrefix, Unknown::Skip);
        assert!(report.is_err() || keys(found).is_empty());
    }
}

/// Very many databases, prefixes and facts: the report stays small.
#[test]
fn a_description_is_bounded() {
    let file = files::written(Format::REDIS, |file| {
        for i in 0..20_000 {
            file.aux(format!("name{i}").as_bytes(), &b"v".repeat(500)).expect("room");
            file.database(i, 1, 0).expect("room");
            let key = format!("prefix{i}:{}", "k".repeat(i as usize % 500));
            let value = value::Value::Str(value::Str::from_slice(b"v"));
            file.key(key.as_bytes(), &value, persist::Kept::default()).expect("room");
        }
    });
    let about = persist::describe(&file[..], 0).expect("a header");
    assert!(about.damage.is_none());
    assert_eq!((about.databases.len(), about.aux.len(), about.largest.len()), (1024, 100, 10));
    assert_eq!(about.other_databases.keys, 20_000 - 1024);
    let counted: u64 = about.prefixes.iter().map(|(_, tally)| tally.keys).sum();
    assert_eq!(counted + about.other_prefixes.keys, 20_000);
    assert!(about.largest.windows(2).all(|two| two[0].bytes >= two[1].bytes));
    assert!(about.to_string().len() < 200_000);
}
