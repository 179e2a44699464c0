use super::*;
use crate::testing::{Db, Over, render};
use resp::Frame;

/// The number of a field of XINFO STREAM.
fn info(db: &mut Db, name: &str) -> String {
    let text = db.line("xinfo stream s");
    let from = text.split_once(&format!("\"{name}\", ")).or(text.split_once(&format!("\"{name}\": ")));
    let behind = from.unwrap_or_else(|| panic!("{name} in {text}")).1;
    behind.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().to_owned()
}

fn infos<const N: usize>(db: &mut Db, names: [&str; N]) -> [String; N] {
    names.map(|name| info(db, name))
}

#[test]
fn a_message_that_comes_again_makes_no_second_entry() {
    Db::both(|mut db| {
        let first = db.line("xadd s idmp p 1 * amount 100");
        assert_eq!(db.events(), ["new:s", "xadd:s"]);
        db.now_ms += 5_000;
        // Its fields do not matter, nor whether the entry is still there.
        assert_eq!(db.line("xadd s nomkstream idmp p 1 maxlen 1 * amount 200"), first);
        assert!(db.events().is_empty() && db.dirty == 0);
        assert_eq!(db.line(&format!("xdel s {}", first.trim_matches('"'))), "1");
        assert_eq!(db.line("xadd s idmp p 1 * amount 200"), first);
        db.check(&[("xlen s", "0"), ("xadd s nomkstream idmp q 1 * f v", "\"1700000005000-0\"")]);
        assert_eq!(
            infos(&mut db, ["pids-tracked", "iids-tracked", "iids-added", "iids-duplicates"]),
            ["2", "2", "2", "2"]
        );
        // Its time is over 100 seconds after the first.
        db.now_ms += 94_999;
        assert_eq!(db.line("xadd s idmp p 1 * f v"), first);
        db.now_ms += 1;
        assert_eq!(infos(&mut db, ["pids-tracked", "iids-tracked"]), ["1", "1"]);
        assert_eq!(db.line("xadd s idmp p 1 * f v"), "\"1700000100000-0\"");
        assert_eq!(db.line("xadd s idmp p 1 * f v"), "\"1700000100000-0\"");
        assert_eq!(db.line("xadd none nomkstream idmp p 1 * f v"), "nil");
    });
}

#[test]
fn the_words_are_refused_as_redis_does() {
    Db::both(|mut db| {
        db.check(&[
            ("xadd s idmp p1 * f v", "-ERR Invalid stream ID specified as stream command argument"),
            (
                "xadd s idmp p 1 1-1 f v",
                "-ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs",
            ),
            (
                "xadd s idmpauto p 5-* f v",
                "-ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs",
            ),
            ("xadd s idmp p 1 idmp q 2 * f v", "-ERR syntax error, IDMP/IDMPAUTO specified multiple times"),
            ("xadd s idmpauto p idmp q 2 * f v", "-ERR syntax error, IDMP/IDMPAUTO specified multiple times"),
            ("xadd s idmp \"\" 1 * f v", "-ERR syntax error, IDMP requires a non-empty producer ID"),
            ("xadd s idmp p \"\" * f v", "-ERR syntax error, IDMP requires a non-empty idempotent ID"),
            ("xadd s idmpauto \"\" * f v", "-ERR syntax error, IDMPAUTO requires a non-empty producer ID"),
            ("exists s", "0"),
            // Words of other options are IDs here.
            ("xadd s idmp idmp maxlen * f v", "\"1700000000000-0\""),
            ("xadd s idmp p * * f v", "\"1700000000000-1\""),
            ("xadd s maxlen 5 idmp p 2 * f v", "\"1700000000000-2\""),
            ("set text x", "OK"),
            (
                "xadd text idmp p 1 * f v",
                "-WRONGTYPE Operation against a key holding the wrong kind of value",
            ),
            ("xcfgset none idmp-duration 1", "-ERR no such key"),
            ("xcfgset text", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("xcfgset s", "-ERR At least one parameter must be specified"),
            ("xcfgset s idmp-duration", "-ERR syntax error"),
            ("xcfgset s idmp-maxsize 1 more", "-ERR syntax error"),
            ("xcfgset s idmp-duration 3.14", "-ERR value is not an integer or out of range"),
            ("xcfgset s idmp-duration 0", "-ERR IDMP-DURATION must be between 1 and 86400 seconds"),
            ("xcfgset s idmp-duration 86401", "-ERR IDMP-DURATION must be between 1 and 86400 seconds"),
            ("xcfgset s idmp-maxsize -50", "-ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
            ("xcfgset s idmp-maxsize 10001", "-ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
            ("xcfgset s idmp-duration 1 idmp-duration 1", "-ERR IDMP-DURATION specified multiple times"),
            ("xcfgset s idmp-maxsize 1 idmp-maxsize 1", "-ERR IDMP-MAXSIZE specified multiple times"),
        ]);
        assert_eq!(infos(&mut db, ["idmp-duration", "idmp-maxsize", "iids-tracked"]), ["100", "100", "3"]);
    });
}

#[test]
fn new_settings_forget_what_was_remembered_and_the_old_ones_do_not() {
    Db::both(|mut db| {
        let first = db.line("xadd s idmp p 1 * f v");
        db.check(&[("xcfgset s idmp-duration 100 idmp-maxsize 100", "OK")]);
        assert!(db.effects.is_empty());
        assert_eq!(db.line("xadd s idmp p 1 * f v"), first);
        db.check(&[("xcfgset s idmp-maxsize 2", "OK")]);
        assert_eq!(db.effects.len(), 1);
        assert_eq!(infos(&mut db, ["pids-tracked", "iids-added", "iids-duplicates"]), ["0", "1", "1"]);
        db.check(&[
            ("xadd s idmp p 1 * f v", "\"1700000000000-1\""),
            ("xadd s idmp p 2 * f v", "\"1700000000000-2\""),
            ("xadd s idmp p 3 * f v", "\"1700000000000-3\""),
            // The oldest of three went.
            ("xadd s idmp p 3 * f v", "\"1700000000000-3\""),
            ("xadd s idmp p 1 * f v", "\"1700000000000-4\""),
        ]);
        assert_eq!(infos(&mut db, ["idmp-duration", "idmp-maxsize", "iids-tracked"]), ["100", "2", "2"]);
    });
}

#[test]
fn a_message_without_an_id_is_known_by_its_fields_in_any_order() {
    Db::both(|mut db| {
        let first = db.line("xadd s idmpauto p * a 1 b 2");
        assert_eq!(db.line("xadd s idmpauto p * b 2 a 1"), first);
        for other in ["a 2 b 1", "a 1 b 2 b 2", "a1 1 b 2", "a 1", "ab 12"] {
            assert_ne!(db.line(&format!("xadd s idmpauto p * {other}")), first, "{other}");
        }
        assert_ne!(db.line("xadd s idmpauto q * a 1 b 2"), first);
        // The two ways share their IDs: these are 16 bytes.
        let record = db.effects.last().expect("told").args().at(2).to_vec();
        let (_, pid, iids) = Record::parse(&record).expect("a record");
        assert_eq!((pid, iids.len(), iids[0].len()), (&b"q"[..], 1, 16));
        let words: Vec<&[u8]> = vec![b"xadd", b"s", b"idmp", b"p", iids[0], b"*", b"f", b"v"];
        assert_eq!(render(&db.call(&words)), first);
        // Long fields cost what their bytes do.
        let long = "x".repeat(1 << 20);
        assert!(db.cost(&["xadd", "s", "idmpauto", "p", "*", "f", &long]) > 4_000);
        let id = db.run(&["xadd", "s", "idmpauto", "p", "*", "f", &long]);
        assert_eq!(db.run(&["xadd", "s", "idmpauto", "p", "*", "f", &long]), id);
    });
}

/// All that was told, executed by a second server at another time.
fn replayed(told: &[OwnedArgs]) -> Db {
    let mut db = Db::new();
    (db.now_ms, db.caller.in_replay) = (1_900_000_000_000, true);
    for words in told {
        let reply = db.call(&words.args().iter().collect::<Vec<_>>());
        assert!(!matches!(reply, Frame::Error(_)), "{reply:?}");
    }
    db
}

#[test]
fn a_replay_remembers_the_same_and_others_see_plain_words() {
    for over in [Over::Locks, Over::Overlay] {
        let (mut db, mut told) = (Db::new().over(over), Vec::new());
        let lines = [
            "xadd s idmp p 1 * f v",
            "xadd s idmpauto p * f v",
            "xadd s idmp p 1 * f w",
            "xcfgset s idmp-duration 7 idmp-maxsize 3",
            "xadd s idmp p 1 maxlen ~ 2 * f v",
            "xadd s idmp p 2 maxlen 1 * f v",
            "xadd s idmp \"p\\x00\\xff\" 2 * f v",
            "xadd s idmp p 3 * f v",
            "xadd s idmp p 4 * f v",
            "copy s t",
            "xadd t idmp p 4 * f v",
            "xadd t idmp p 5 * f v",
        ];
        for line in lines {
            db.now_ms += 2_000;
            db.line(line);
            if db.effects.is_empty() && db.dirty > 0 {
                told.push(OwnedArgs::from_slices(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()));
            }
            told.append(&mut db.effects);
        }
        let names: Vec<String> =
            told.iter().map(|words| String::from_utf8_lossy(words.args().at(0)).to_uppercase()).collect();
        assert!(names.iter().all(|name| ["XADD", "XACK", "COPY"].contains(&&**name)), "{names:?}");
        let of_producers =
            |words: &OwnedArgs| words.args().iter().any(|word| word.eq_ignore_ascii_case(b"idmp"));
        assert!(!told.iter().any(of_producers), "a word that old servers do not know was told");
        let mut other = replayed(&told);
        for key in ["s", "t"] {
            assert_eq!(db.run(&["dump", key]), other.run(&["dump", key]), "{key}");
        }
    }
}

#[test]
fn a_group_with_the_name_of_a_record_is_a_group() {
    let mut db = Db::new();
    let mut stream = Stream::new();
    stream.producers_mut(Remembers::usual()).add(b"p", b"1", StreamId::new(1, 0), 1);
    let producers = stream.producers().expect("some");
    let record = Record::of(producers, 5);
    let words = record.words(b"s", b"p", [(&b"1"[..], StreamId::new(1, 0))].into_iter());
    let name = words.args().at(2).to_vec();
    assert_eq!(Record::parse(&name), Some((record, &b"p"[..], vec![&b"1"[..]])));
    for cut in 0..name.len() {
        assert_eq!(Record::parse(&name[..cut]), None, "{cut}");
    }
    let call = |db: &mut Db, words: &[&[u8]]| render(&db.call(words));
    assert_eq!(call(&mut db, &[b"xgroup", b"create", b"s", &name, b"0", b"mkstream"]), "OK");
    assert_eq!(call(&mut db, &[b"xadd", b"s", b"1-0", b"f", b"v"]), "\"1-0\"");
    call(&mut db, &[b"xreadgroup", b"group", &name, b"c", b"streams", b"s", b">"]);
    db.caller.in_replay = true;
    assert_eq!(call(&mut db, &[b"xack", b"s", &name, b"1-0"]), "1");
    // Nor does a client's word make one.
    db.caller.in_replay = false;
    assert_eq!(call(&mut db, &[b"xadd", b"t", b"1-0", b"f", b"v"]), "\"1-0\"");
    assert_eq!(call(&mut db, &[b"xack", b"t", &name, b"1-0"]), "0");
    assert!(db.line("xinfo stream t").contains("\"iids-added\", 0"));
    // Without its stream, and for a key of another type, a record does nothing.
    db.caller.in_replay = true;
    assert_eq!(call(&mut db, &[b"xack", b"none", &name, b"1-0"]), "0");
    assert_eq!(call(&mut db, &[b"exists", b"none"]), "0");
}

#[test]
fn words_of_a_log_of_redis_are_understood() {
    let mut db = Db::new();
    db.caller.in_replay = true;
    db.check(&[
        ("xadd s idmp p 1 1700000000000-0 f v", "\"1700000000000-0\""),
        ("xadd s idmpauto p 1700000000001-0 f v", "\"1700000000001-0\""),
        ("xcfgset s idmp-duration 50", "OK"),
        ("xidmprecord s p 1 1700000000000-0", "OK"),
        ("xidmprecord s p 1 1700000000000-0", "OK"),
    ]);
    db.caller.in_replay = false;
    db.check(&[
        (
            "xidmprecord s p 1 1700000000001-0",
            "-ERR IID already exists for this producer with a different stream ID",
        ),
        ("xidmprecord s p 2 1-1", "-ERR No such message in stream"),
        ("xidmprecord s \"\" 2 1-1", "-ERR producer ID must be non-empty"),
        ("xidmprecord s p \"\" 1-1", "-ERR idempotent ID must be non-empty"),
        ("xidmprecord s p 2 x", "-ERR Invalid stream ID specified as stream command argument"),
        ("xidmprecord none p 2 1-1", "-ERR no such key"),
        ("xadd s idmp p 1 * f v", "\"1700000000000-0\""),
    ]);
    assert_eq!(infos(&mut db, ["idmp-duration", "iids-tracked", "iids-added"]), ["50", "1", "3"]);
}

#[test]
fn a_restored_stream_is_told_in_words_of_all_servers() {
    Db::both(|mut db| {
        db.line("xadd s idmp p 1 * f v");
        db.line("xadd s idmp q 1 * f v");
        let Frame::Bulk(payload) = db.call(&["dump", "s"]) else { panic!("no payload") };
        assert_eq!((payload[0], payload[payload.len() - 10]), (26, 13));
        db.call(&[&b"restore"[..], b"t", b"0", &payload]);
        let told: Vec<OwnedArgs> = db.effects.drain(..).collect();
        let plain = told[0].args().at(3).to_vec();
        assert_eq!((plain[0], plain[plain.len() - 10] <= 11, told.len()), (19, true, 4));
        let mut other = replayed(&told);
        assert_eq!(other.line("dump t"), db.line("dump t"));
        assert_eq!(db.line("xadd t idmp p 1 * f v"), "\"1700000000000-0\"");
        assert_eq!(db.line("copy t u"), "1");
        assert_eq!(db.line("xadd u idmp q 1 * f v"), "\"1700000000000-1\"");
    });
}
