use crate::testing::{Db, Over, render};
use resp::Frame;

/// The payload of DUMP.
fn payload(db: &mut Db, key: &str) -> Vec<u8> {
    match db.call(&["DUMP", key]) {
        Frame::Bulk(bytes) => bytes.to_vec(),
        other => panic!("{key}: {}", render(&other)),
    }
}

fn restore(db: &mut Db, key: &str, ttl: &str, payload: &[u8], options: &[&str]) -> String {
    let mut words: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), ttl.as_bytes(), payload];
    words.extend(options.iter().map(|option| option.as_bytes()));
    render(&db.call(&words))
}

const FILLED: &[(&str, &str)] = &[
    (r#"set s "a\x00b""#, "OK"),
    ("set n -17", "OK"),
    (r#"set e """#, "OK"),
    ("setrange z 30000 x", "30001"),
    (r#"rpush l a 1 "" -5000 9223372036854775807 007"#, "6"),
    ("sadd i 3 1 2", "3"),
    (r#"sadd m a 1 """#, "3"),
    ("zadd r -inf a 1.5 b 0 c inf d", "4"),
    (r#"hset h f v "" 1 g """#, "3"),
    ("hset x f 1 g 2 h 3", "3"),
    ("hpexpireat x 1800000000000 fields 1 f", "[1]"),
    ("hpexpireat x 1700000001000 fields 1 g", "[1]"),
    ("r.setintarray o 7 1 4294967295", "OK"),
    ("r64.setrange w 5 18446744", "OK"),
    ("r64.setbit w 18446744073709551615 1", "0"),
    ("r.setrange v 1 1", "OK"),
];

const READ: &[(&str, &str)] = &[
    ("get s", r#""a\x00b""#),
    ("get n", r#""-17""#),
    ("get e", r#""""#),
    ("strlen z", "30001"),
    ("lrange l 0 -1", r#"["a", "1", "", "-5000", "9223372036854775807", "007"]"#),
    ("smembers i", r#"["1", "2", "3"]"#),
    ("smismember m a 1 \"\" b", "[1, 1, 1, 0]"),
    ("zrange r 0 -1 withscores", r#"["a", "-inf", "c", "0", "b", "1.5", "d", "inf"]"#),
    (r#"hmget h f "" g"#, r#"["v", "1", ""]"#),
    ("hmget x f g h", r#"["1", "2", "3"]"#),
    ("hpexpiretime x fields 3 f g h", "[1800000000000, 1700000001000, -1]"),
    ("r.getintarray o", "[1, 7, 4294967295]"),
    ("r64.bitcount w", r#""18446740""#),
    ("r64.max w", r#""18446744073709551615""#),
    ("r.bitcount v", "0"),
];

#[test]
fn every_type_comes_back() {
    Db::both(|mut db| {
        db.check(FILLED);
        db.check(READ);
        let encodings: Vec<String> =
            "snezlimrhxowv".chars().map(|key| db.line(&format!("object encoding {key}"))).collect();
        for key in "snezlimrhxowv".chars().map(String::from) {
            let bytes = payload(&mut db, &key);
            assert_eq!(db.line(&format!("del {key}")), "1");
            assert_eq!(restore(&mut db, &key, "0", &bytes, &[]), "OK", "{key}");
        }
        db.check(READ);
        for (key, encoding) in "snezlimrhxowv".chars().zip(encodings) {
            // A string changed by APPEND and its kin is one whole string again.
            let encoding = if key == 'z' { r#""raw""#.to_owned() } else { encoding };
            assert_eq!(db.line(&format!("object encoding {key}")), encoding, "{key}");
        }
    });
}

#[test]
fn large_values_come_back() {
    Db::both(|mut db| {
        db.steps = usize::MAX;
        let words: Vec<String> = (0..3_000).map(|i| format!("{}{i}", ["", "word"][i % 2])).collect();
        let fill = |command: &str, key: &str, pairs: bool| {
            let mut all = vec![command.to_owned(), key.to_owned()];
            for (i, word) in words.iter().enumerate() {
                if pairs {
                    all.push(format!("{}.25", i % 100));
                }
                all.push(word.clone());
            }
            all
        };
        let fills = [
            fill("rpush", "l", false),
            fill("sadd", "m", false),
            fill("zadd", "r", true),
            fill("hset", "h", true),
        ];
        for all in &fills {
            db.call(all);
        }
        db.call(&["set", "s", &"long ".repeat(60_000)]);
        // A text that hardly gets shorter.
        let digits: String = (0..30_000u64).map(|i| (i * i * 2_654_435_761).to_string()).collect();
        db.call(&["set", "d", &digits]);
        let questions = [
            "lrange l 0 -1",
            "sdiff m m2",
            "zrange r 0 -1 withscores",
            "hlen h",
            "hget h 7.25",
            "get s",
            "get d",
        ];
        let before: Vec<String> = questions.iter().map(|line| db.line(line)).collect();
        for key in ["l", "m", "r", "h", "s", "d"] {
            let bytes = payload(&mut db, key);
            assert_eq!(db.streamed, bytes.len() > 64 * 1024, "{key}");
            assert!(key != "s" || bytes.len() < 10_000, "{} bytes", bytes.len());
            assert!(key != "d" || bytes.len() > 100_000, "{} bytes", bytes.len());
            assert_eq!(restore(&mut db, "copy", "0", &bytes, &["REPLACE"]), "OK");
            assert_eq!(db.line(&format!("rename copy {key}")), "OK");
        }
        let after: Vec<String> = questions.iter().map(|line| db.line(line)).collect();
        assert_eq!(before, after);
    });
}

#[test]
fn there_is_nothing_to_dump_without_a_key() {
    Db::both(|mut db| {
        db.check(&[
            ("dump k", "nil"),
            ("dump", "-ERR wrong number of arguments for 'dump' command"),
            ("hset h f v", "1"),
            ("hpexpireat h 1700000001000 fields 1 f", "[1]"),
        ]);
        db.now_ms = 1_700_000_001_000;
        assert_eq!(db.line("dump h"), "nil");
    });
}

#[test]
fn mistakes_are_told_in_the_order_of_redis() {
    Db::both(|mut db| {
        db.line("set k v");
        let bytes = payload(&mut db, "k");
        let mut restore = |key, ttl, options: &[&str]| restore(&mut db, key, ttl, &bytes, options);
        assert_eq!(restore("k", "x", &["BAD"]), "-ERR syntax error");
        assert_eq!(restore("k", "x", &[]), "-BUSYKEY Target key name already exists.");
        assert_eq!(restore("o", "x", &[]), "-ERR value is not an integer or out of range");
        assert_eq!(restore("o", "-1", &[]), "-ERR Invalid TTL value, must be >= 0");
        assert_eq!(restore("o", "0", &["IDLETIME"]), "-ERR syntax error");
        assert_eq!(restore("o", "0", &["IDLETIME", "-1"]), "-ERR Invalid IDLETIME value, must be >= 0");
        assert_eq!(restore("o", "0", &["IDLETIME", "x"]), "-ERR value is not an integer or out of range");
        for freq in ["-1", "256"] {
            let text = "-ERR Invalid FREQ value, must be >= 0 and <= 255";
            assert_eq!(restore("o", "0", &["FREQ", freq]), text);
        }
        assert_eq!(restore("o", "0", &["FREQ", "1", "IDLETIME", "1"]), "-ERR syntax error");
        assert_eq!(restore("o", "0", &["replace", "FREQ", "255"]), "OK");
        let wrong = "-ERR DUMP payload version or checksum are wrong";
        db.check(&[
            ("restore p 0 x", wrong),
            (r#"restore p 0 """#, wrong),
            ("restore p 0", "-ERR wrong number of arguments for 'restore' command"),
        ]);
        // An unknown type, a set with a repeated member, half a list: sealed, but meaningless.
        for body in [&b"\x63"[..], b"\x02\x02\x01a\x01a", b"\x01\x02\x01a", b"\x01\x00", b""] {
            let mut sealed = body.to_vec();
            rdb::seal(&mut sealed, 10);
            assert_eq!(
                crate::generic::dump::tests::restore(&mut db, "p", "0", &sealed, &[]),
                "-ERR Bad data format"
            );
        }
        assert_eq!(db.line("exists p"), "0");
    });
}

/// Neither Redis nor Valkey takes the other's versions, and both would keep the old value.
#[test]
fn what_is_restored_is_told_in_words_for_both_dialects() {
    Db::both(|mut db| {
        db.check(FILLED);
        for (key, version) in [("s", 80), ("l", 81), ("m", 12), ("r", 15), ("h", 13)] {
            let mut sealed = payload(&mut db, key);
            sealed.truncate(sealed.len() - 10);
            rdb::seal(&mut sealed, version);
            db.effects.clear();
            assert_eq!(restore(&mut db, "k", "5", &sealed, &["REPLACE", "IDLETIME", "7"]), "OK");
            let told: Vec<Vec<u8>> = db.effects[0].args().iter().map(<[u8]>::to_vec).collect();
            let at = (db.now_ms + 5).to_string();
            assert_eq!(told[1..3], [b"k".to_vec(), at.into_bytes()], "{key}");
            assert_eq!(told[4..].concat(), b"REPLACEABSTTLIDLETIME7", "{key}");
            let (_, told) = rdb::open(&told[3]).expect("a sound payload");
            assert_eq!(told, rdb::VERSION_VALUES, "{key}");
        }
        let times = |db: &mut Db, dialect| {
            let mut hash = rdb::HashPayload::new();
            hash.insert(b"g", b"1").insert_expiring(b"f", b"2", 1_800_000_000_000);
            db.effects.clear();
            let hash = hash.finish(dialect).expect("not empty");
            assert_eq!(restore(db, "k", "1800000000009", &hash, &["REPLACE", "ABSTTL"]), "OK");
            let mut lines = db.effect_lines();
            lines[1] = lines[1].replace("g 1 f 2", "f 2 g 1");
            lines
        };
        for dialect in [rdb::Dialect::Redis, rdb::Dialect::Valkey] {
            let told = [
                "DEL k",
                "HSET k f 2 g 1",
                "HPEXPIREAT k 1800000000000 FIELDS 1 f",
                "PEXPIREAT k 1800000000009",
            ];
            assert_eq!(times(&mut db, dialect), told);
        }
    });
}

/// Metadata of modules and a stream's producers are left out.
#[test]
fn payloads_of_redis_8_6_are_read() {
    let metadata = b"\xf3\x01\x00\x00\x00\x00\x00\x00\x02hi".to_vec();
    let stream = b"\x1a\0\0\0\0\0\0\0\0\x07\0\x40\x64\x40\x64\x01\x01p\x01\x01i\x01\x01\x01\0".to_vec();
    Db::both(|mut db| {
        for (key, mut payload) in [("p", metadata.clone()), ("x", stream.clone())] {
            rdb::seal(&mut payload, 13);
            assert_eq!(restore(&mut db, key, "0", &payload, &[]), "OK");
        }
        db.check(&[("get p", r#""hi""#), ("xlen x", "0"), ("type x", "stream")]);
    });
}

/// A type that other servers have and this one has not is named in the error, if the payload is sound.
#[test]
fn what_is_not_supported_is_named() {
    let module = |name, version| rdb::module_body(name, version, b"data");
    let cases = [
        (b"\x1b\x00".to_vec(), 15, "streams are not supported"),
        (b"\x1c\x00".to_vec(), 14, "arrays are not supported"),
        (b"\x1d\x00".to_vec(), 15, "hashes of a template are not supported"),
        (b"\x17\x00".to_vec(), 81, "path hashes are not supported"),
        (module(b"ReJSON-RL", 3), 12, "a value of the module ReJSON-RL (version 3) is not supported"),
        (module(b"reroaring", 2), 12, "a value of the module reroaring (version 2) is not supported"),
    ];
    Db::both(|mut db| {
        for (body, version, what) in &cases {
            let mut sealed = body.clone();
            rdb::seal(&mut sealed, *version);
            let refused = format!("-ERR Bad data format: {what}");
            assert_eq!(restore(&mut db, "p", "0", &sealed, &[]), refused);
            assert_eq!(mrestore(&mut db, &[("p", "0", &sealed)], &[]), format!("[{refused}]"));
            let last = sealed.len() - 1;
            sealed[last] ^= 1;
            let wrong = "-ERR DUMP payload version or checksum are wrong";
            assert_eq!(restore(&mut db, "p", "0", &sealed, &[]), wrong);
        }
        // For a known module, the string is not valid data.
        let mut sealed = module(b"reroaring", 1);
        rdb::seal(&mut sealed, 12);
        assert_eq!(restore(&mut db, "p", "0", &sealed, &[]), "-ERR Bad data format");
        assert_eq!(db.line("exists p"), "0");
    });
}

/// Redis writes its newest version into every payload, even if the form has not changed.
#[test]
fn values_of_servers_that_came_later_are_restored() {
    Db::both(|mut db| {
        db.check(FILLED);
        for key in ["s", "l", "e", "z", "h"] {
            let sealed = payload(&mut db, key);
            for version in [13, 14, 15, 81] {
                let mut later = sealed[..sealed.len() - 10].to_vec();
                rdb::seal(&mut later, version);
                assert_eq!(restore(&mut db, "later", "0", &later, &["REPLACE"]), "OK", "{key} {version}");
                assert_eq!(payload(&mut db, "later"), sealed, "{key} {version}");
            }
        }
    });
}

#[test]
fn a_restored_key_expires_when_it_should() {
    Db::both(|mut db| {
        db.line("set k v");
        let bytes = payload(&mut db, "k");
        assert_eq!(restore(&mut db, "a", "5000", &bytes, &[]), "OK");
        assert_eq!(db.line("pexpiretime a"), "1700000005000");
        assert!(db.effect_lines().is_empty(), "noted by RESTORE, not by PEXPIRETIME");
        restore(&mut db, "b", "1700000007000", &bytes, &["absttl"]);
        assert_eq!(db.line("pexpiretime b"), "1700000007000");
        assert_eq!(restore(&mut db, "c", "0", &bytes, &["ABSTTL"]), "OK");
        assert_eq!(db.line("pexpiretime c"), "-1");
        db.events();
        // The time has passed: no key is made, and the old one is removed.
        assert_eq!(restore(&mut db, "d", "1699999999999", &bytes, &["ABSTTL"]), "OK");
        assert_eq!(db.events(), [""; 0]);
        assert_eq!(restore(&mut db, "a", "1", &bytes, &["ABSTTL", "REPLACE"]), "OK");
        assert_eq!(db.effect_lines(), ["DEL a"]);
        assert_eq!(db.events(), ["del:a"]);
        assert_eq!(restore(&mut db, "e", "9223372036854775807", &bytes, &[]), "OK");
        db.check(&[("exists a d e", "0")]);
    });
}

#[test]
fn replacing_is_one_change() {
    Db::both(|mut db| {
        db.line("set k v");
        let bytes = payload(&mut db, "k");
        db.line("rpush l a");
        db.events();
        assert_eq!(restore(&mut db, "l", "0", &bytes, &["REPLACE"]), "OK");
        assert_eq!(db.events().last().map(String::as_str), Some("restore:l"));
        assert_eq!(db.dirty, 1);
        db.check(&[("get l", r#""v""#)]);
        assert_eq!(restore(&mut db, "l", "20", &bytes, &["REPLACE"]), "OK");
        let noted = format!("RESTORE l 1700000000020 {} REPLACE ABSTTL", bytes.escape_ascii());
        assert_eq!(db.effect_lines(), [noted]);
    });
}

#[test]
fn idle_time_is_kept() {
    Db::both(|mut db| {
        db.line("set k v");
        let bytes = payload(&mut db, "k");
        assert_eq!(restore(&mut db, "i", "0", &bytes, &["IDLETIME", "1600"]), "OK");
        // Over an overlay a key has no visible idle time.
        let mut db = db.over(Over::Locks);
        db.check(&[("object idletime i", "1600"), ("get i", r#""v""#), ("object idletime i", "0")]);
    });
}

/// Runs MRESTORE with these keys, times to live and payloads.
fn mrestore(db: &mut Db, keys: &[(&str, &str, &[u8])], options: &[&str]) -> String {
    let count = keys.len().to_string();
    let mut words: Vec<&[u8]> = vec![b"MRESTORE", count.as_bytes()];
    keys.iter().for_each(|(key, ttl, payload)| words.extend([key.as_bytes(), ttl.as_bytes(), payload]));
    words.extend(options.iter().map(|option| option.as_bytes()));
    render(&db.call(&words))
}

#[test]
fn many_are_restored_as_each_would_be() {
    Db::both(|mut db| {
        db.check(FILLED);
        let keys: Vec<String> = "snezlimrhxowv".chars().map(String::from).collect();
        let payloads: Vec<Vec<u8>> = keys.iter().map(|key| payload(&mut db, key)).collect();
        let all: Vec<(&str, &str, &[u8])> =
            keys.iter().zip(&payloads).map(|(key, payload)| (key.as_str(), "0", &payload[..])).collect();
        let busy = "-BUSYKEY Target key name already exists.";
        assert_eq!(mrestore(&mut db, &all, &[]), format!("[{}]", [busy; 13].join(", ")));
        db.line("flushdb");
        db.events();
        assert_eq!(mrestore(&mut db, &all, &[]), format!("[{}]", ["OK"; 13].join(", ")));
        let told = keys.iter().flat_map(|key| [format!("new:{key}"), format!("restore:{key}")]);
        assert_eq!(db.events(), told.collect::<Vec<_>>());
        db.check(READ);
        assert!(db.effect_lines().is_empty());
        // Each key for itself. Of a repeated key the later one stays, if keys are replaced.
        let (s, n) = (&payloads[0][..], &payloads[1][..]);
        let mixed =
            [("a", "0", s), ("a", "0", n), ("b", "x", n), ("c", "-1", n), ("d", "0", b"junk"), ("q", "5", n)];
        let wrong = [
            "OK",
            busy,
            "-ERR value is not an integer or out of range",
            "-ERR Invalid TTL value, must be >= 0",
            "-ERR DUMP payload version or checksum are wrong",
            "OK",
        ];
        assert_eq!(mrestore(&mut db, &mixed, &[]), format!("[{}]", wrong.join(", ")));
        let noted = [("a", "0", s), ("q", "1700000000005", n)].map(|(key, ttl, payload)| {
            format!("RESTORE {key} {ttl} {} REPLACE ABSTTL", payload.escape_ascii())
        });
        assert_eq!(db.effect_lines(), noted);
        db.check(&[(r#"get a"#, r#""a\x00b""#), ("exists b c d", "0"), ("pexpiretime q", "1700000000005")]);
        assert_eq!(mrestore(&mut db, &mixed[..2], &["REPLACE"]), "[OK, OK]");
        db.check(&[("get a", r#""-17""#)]);
        assert_eq!(
            mrestore(&mut db, &[("a", "1", s), ("f", "1800000000000", s)], &["absttl", "replace"]),
            "[OK, OK]"
        );
        db.check(&[("exists a", "0"), ("pexpiretime f", "1800000000000")]);
        assert!(db.effect_lines().is_empty());
    });
}

#[test]
fn many_are_refused_as_a_whole_for_wrong_options() {
    Db::both(|mut db| {
        db.line("set k v");
        let bytes = payload(&mut db, "k");
        let mut many = |options: &[&str]| mrestore(&mut db, &[("a", "0", &bytes)], options);
        for options in [&["IDLETIME", "1"][..], &["FREQ", "1"], &["NX"], &["REPLACE", "x"], &["b", "0"]] {
            assert_eq!(many(options), "-ERR syntax error", "{options:?}");
        }
        let range = "-ERR invalid numkeys value or out of range";
        db.check(&[
            ("mrestore 2 a 0 x", "-ERR syntax error"),
            ("mrestore 0 a 0 x", range),
            ("mrestore -1 a 0 x", range),
            ("mrestore x a 0 x", range),
            ("mrestore 9223372036854775807 a 0 x", "-ERR syntax error"),
            ("mrestore 1 a 0", "-ERR wrong number of arguments for 'mrestore' command"),
            ("exists a b", "0"),
        ]);
    });
}

/// Fields that have expired since are left out. A hash with only such fields makes no key.
#[test]
fn expired_fields_are_not_restored() {
    Db::both(|mut db| {
        db.check(&[
            ("hset h f 1 g 2", "2"),
            ("hpexpireat h 1700000001000 fields 1 f", "[1]"),
            ("hset o f 1", "1"),
            ("hpexpireat o 1700000001000 fields 1 f", "[1]"),
        ]);
        let (both, one) = (payload(&mut db, "h"), payload(&mut db, "o"));
        db.now_ms = 1_700_000_001_000;
        assert_eq!(restore(&mut db, "a", "0", &both, &[]), "OK");
        assert_eq!(restore(&mut db, "b", "0", &one, &[]), "OK");
        db.check(&[("hgetall a", r#"["g", "2"]"#), ("hlen a", "1"), ("exists b", "0")]);
    });
}

#[test]
fn what_is_long_is_told_before() {
    let mut db = Db::new();
    let long: Vec<String> = (0..5_000).map(|i| i.to_string()).collect();
    let push: Vec<&str> = ["rpush", "l"].into_iter().chain(long.iter().map(String::as_str)).collect();
    db.call(&push);
    assert!(db.cost(&["dump", "l"]) >= 5_000);
    assert_eq!(db.cost(&["dump", "none"]), 0);
    // Where the estimate was wrong, the budget ends the run, and nothing has happened.
    let bytes = payload(&mut db, "l");
    assert!(db.cost(&[&b"mrestore"[..], b"2", b"a", b"0", &bytes, b"b", b"0", &bytes]) >= 10_000);
    db.steps = 1_000;
    assert_eq!(db.line("dump l"), "-ERR internal: run dropped");
    assert_eq!(restore(&mut db, "o", "0", &bytes, &[]), "-ERR internal: run dropped");
    let many = mrestore(&mut db, &[("o", "0", &bytes), ("p", "0", &bytes)], &[]);
    assert_eq!(many, "-ERR internal: run dropped");
    assert_eq!(db.line("exists o p"), "0");
    let mut over = Db::new().over(Over::Overlay);
    assert_eq!(restore(&mut over, "o", "0", &bytes, &[]), "OK");
    over.check(&[("llen o", "5000")]);
}

#[test]
fn elements_are_compressed_where_they_get_shorter_and_charged_for() {
    Db::both(|mut db| {
        db.steps = usize::MAX;
        let text = |i: usize| format!("{i:04} all work and no play {}", "makes jack a dull boy ".repeat(20));
        let fills = [("rpush", "l", 1), ("sadd", "m", 1), ("hset", "h", 2), ("zadd", "z", 2)];
        for (command, key, words) in fills {
            let mut all = vec![command.to_owned(), key.to_owned()];
            for i in 0..500 {
                match command {
                    "zadd" => all.extend([i.to_string(), text(i)]),
                    _ => all.extend((0..words).map(|_| text(i))),
                }
            }
            db.call(&all);
            let bytes = payload(&mut db, key);
            assert!(bytes.len() < 500 * 150 * words, "{key}: {}", bytes.len());
            // 450 bytes each; a step compresses eight bytes.
            assert!(db.looks > 500 * 450 / 8 / 130 && db.most <= 512, "{key}: {} {}", db.looks, db.most);
            assert!(db.cost(&["dump", key]) > 500 * 450 / 8, "{key}");
            assert_eq!(restore(&mut db, "copy", "0", &bytes, &["REPLACE"]), "OK");
            for line in ["lrange # 0 -1", "sdiff # m", "hmget # 1", "zrange # 0 -1 withscores"] {
                assert_eq!(
                    db.line(&line.replace('#', "copy")),
                    db.line(&line.replace('#', key)),
                    "{key} {line}"
                );
            }
        }
    });
}
