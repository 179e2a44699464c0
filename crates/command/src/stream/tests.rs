//! Exact replies, effects and events of the stream commands.

use crate::testing::Db;

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
const INVALID: &str = "-ERR Invalid stream ID specified as stream command argument";
const SMALL: &str = "-ERR The ID specified in XADD is equal or smaller than the target stream top item";

#[test]
fn entries_are_added_with_greater_ids() {
    Db::both(|mut db| {
        db.check(&[("xadd s 1-1 a b", "\"1-1\"")]);
        assert_eq!(db.events(), ["new:s", "xadd:s"]);
        assert!(db.effect_lines().is_empty(), "told as it came");
        db.check(&[("xadd s 1-* c d e f", "\"1-2\"")]);
        assert_eq!(db.effect_lines(), ["XADD s 1-2 c d e f"]);
        db.check(&[("xadd s * a b", "\"1700000000000-0\"")]);
        assert_eq!(db.effect_lines(), ["XADD s 1700000000000-0 a b"]);
        db.check(&[
            ("xadd s * a b", "\"1700000000000-1\""),
            ("xadd s 5 a b", SMALL),
            ("xadd s 5-* a b", SMALL),
            ("xadd s 0-0 a b", "-ERR The ID specified in XADD must be greater than 0-0"),
            ("xadd s x a b", INVALID),
            ("xadd s * a", "-ERR wrong number of arguments for 'xadd' command"),
            ("xadd s * a b c", "-ERR wrong number of arguments for 'xadd' command"),
            ("xadd none nomkstream * a b", "nil"),
            ("xlen s", "4"),
            ("xlen none", "0"),
            ("set t v", "OK"),
            ("xadd t * a b", WRONG),
            ("xlen t", WRONG),
            (
                "xadd m 18446744073709551615-18446744073709551615 a b",
                "\"18446744073709551615-18446744073709551615\"",
            ),
            ("xadd m * a b", "-ERR The stream has exhausted the last possible ID, unable to add more items"),
            ("xadd z 0-* a b", "\"0-1\""),
        ]);
    });
}

#[test]
fn ranges_are_answered_in_both_directions() {
    Db::both(|mut db| {
        db.check(&[
            ("xadd s 1-1 a b", "\"1-1\""),
            ("xadd s 2-1 c d", "\"2-1\""),
            ("xadd s 3-1 e f", "\"3-1\""),
            ("xrange s - +", r#"[["1-1", ["a", "b"]], ["2-1", ["c", "d"]], ["3-1", ["e", "f"]]]"#),
            ("xrange s 2 2", r#"[["2-1", ["c", "d"]]]"#),
            ("xrange s (1-1 (3-1", r#"[["2-1", ["c", "d"]]]"#),
            ("xrange s - + count 1", r#"[["1-1", ["a", "b"]]]"#),
            ("xrevrange s + - count 2", r#"[["3-1", ["e", "f"]], ["2-1", ["c", "d"]]]"#),
            ("xrevrange s 2 -", r#"[["2-1", ["c", "d"]], ["1-1", ["a", "b"]]]"#),
            ("xrange s 3 1", "[]"),
            ("xrange s - + count 0", "nil array"),
            ("xrange s - + count -1", "nil array"),
            ("xrange none - + count 0", "[]"),
            ("xrange s - + count", "-ERR syntax error"),
            ("xrange s - + count x", "-ERR value is not an integer or out of range"),
            ("xrange s (- +", INVALID),
            ("xrange s - (0", "[]"),
            ("xrange s - (0-0", "-ERR invalid end ID for the interval"),
            (
                "xrange s (18446744073709551615-18446744073709551615 +",
                "-ERR invalid start ID for the interval",
            ),
        ]);
    });
}

#[test]
fn a_long_range_is_streamed() {
    Db::both(|mut db| {
        for i in 1..3000 {
            db.run(&["xadd", "s", &format!("{i}-0"), "field", &format!("value {i}")]);
        }
        let all: Vec<String> =
            (1..3000).map(|i| format!("[\"{i}-0\", [\"field\", \"value {i}\"]]")).collect();
        assert_eq!(db.line("xrange s - +"), format!("[{}]", all.join(", ")));
        assert!(db.streamed);
        let back: Vec<String> = all.iter().rev().cloned().collect();
        assert_eq!(db.line("xrevrange s + -"), format!("[{}]", back.join(", ")));
        assert_eq!(db.line("xread streams s 0"), format!("[[\"s\", [{}]]]", all.join(", ")));
        db.check(&[("xgroup create s g 0", "OK")]);
        db.caller.may_stream = false;
        assert_eq!(db.line("xreadgroup group g c streams s >"), format!("[[\"s\", [{}]]]", all.join(", ")));
        assert_eq!(db.line("xreadgroup group g c streams s 0"), format!("[[\"s\", [{}]]]", all.join(", ")));
    });
}

#[test]
fn old_entries_are_trimmed() {
    Db::both(|mut db| {
        for i in 1..11 {
            db.run(&["xadd", "s", &format!("{i}-0"), "a", "b"]);
        }
        db.events();
        db.check(&[("xtrim s maxlen 7", "3"), ("xtrim s maxlen 9", "0"), ("xtrim s minid = 6", "2")]);
        assert_eq!(db.events(), ["xtrim:s", "xtrim:s"]);
        db.check(&[("xadd s maxlen = 2 20-0 a b", "\"20-0\""), ("xlen s", "2")]);
        assert_eq!(db.events(), ["xadd:s", "xtrim:s"]);
        db.check(&[("xadd s maxlen 1 30-* a b", "\"30-0\"")]);
        assert_eq!(db.effect_lines(), ["XADD s MAXLEN = 1 30-0 a b"]);
        db.check(&[
            ("xtrim s maxlen 0", "1"),
            ("exists s", "1"),
            ("xadd s 30-0 a b", SMALL),
            ("xtrim none maxlen 0", "0"),
            ("xtrim s maxlen -1", "-ERR The MAXLEN argument must be >= 0."),
            (
                "xtrim s maxlen 1 minid 1",
                "-ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ),
            (
                "xtrim s maxlen 1 limit 1",
                "-ERR syntax error, LIMIT cannot be used without the special ~ option",
            ),
            (
                "xtrim s limit 1",
                "-ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
            ),
            ("xtrim s maxlen ~ 1 limit -1", "-ERR The LIMIT argument must be >= 0."),
            ("xtrim s minid x", INVALID),
            ("xtrim s x 1", "-ERR syntax error"),
        ]);
    });
}

#[test]
fn an_approximate_trim_is_told_exactly() {
    Db::both(|mut db| {
        for i in 1..1001 {
            db.run(&["xadd", "s", &format!("{i}-0"), "a", "b"]);
        }
        assert_ne!(db.line("xtrim s maxlen ~ 150"), "0");
        let left = db.line("xlen s");
        db.line("xadd s maxlen ~ 150 2000-0 a b");
        db.line("xtrim s minid ~ 5000");
        let left: usize = left.parse().unwrap();
        assert!((150..400).contains(&left));
    });
}

#[test]
fn entries_are_removed_by_id() {
    Db::both(|mut db| {
        db.check(&[("xadd s 1-1 a b", "\"1-1\""), ("xadd s 2-1 a b", "\"2-1\"")]);
        db.events();
        db.check(&[
            ("xdel s 1-1 1-1 9", "1"),
            ("xdel s 1-1", "0"),
            ("xdel s x", INVALID),
            ("xdel none x", "0"),
            ("xsetid s 1", "-ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"),
            ("xsetid s 2-0", "-ERR The ID specified in XSETID is smaller than the target stream top item"),
            (
                "xsetid s 5 entriesadded 0",
                "-ERR The entries_added specified in XSETID is smaller than the target stream length",
            ),
            ("xsetid s 5 entriesadded 7 maxdeletedid 4-4", "OK"),
            (
                "xsetid s 5 maxdeletedid 6",
                "-ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
            ),
            ("xsetid none 5", "-ERR no such key"),
            ("xsetid s 5 entriesadded -1", "-ERR entries_added must be positive"),
        ]);
        assert_eq!(db.events(), ["xdel:s", "xsetid:s"]);
    });
}

#[test]
fn a_group_gives_each_entry_to_one_consumer() {
    Db::both(|mut db| {
        db.check(&[
            ("xadd s 1-1 a b", "\"1-1\""),
            ("xadd s 2-1 c d", "\"2-1\""),
            ("xgroup create s g 0", "OK"),
            ("xgroup create s g 0", "-BUSYGROUP Consumer Group name already exists"),
            ("xreadgroup group g c1 count 1 streams s >", r#"[["s", [["1-1", ["a", "b"]]]]]"#),
        ]);
        assert_eq!(
            db.effect_lines(),
            [
                "XGROUP CREATECONSUMER s g c1",
                "XCLAIM s g c1 0 1-1 TIME 1700000000000 RETRYCOUNT 1 FORCE JUSTID",
                "XGROUP SETID s g 1-1 ENTRIESREAD 1",
            ]
        );
        db.check(&[
            ("xreadgroup group g c2 streams s >", r#"[["s", [["2-1", ["c", "d"]]]]]"#),
            ("xreadgroup group g c2 streams s >", "nil array"),
            ("xreadgroup group g c1 streams s 0", r#"[["s", [["1-1", ["a", "b"]]]]]"#),
            ("xpending s g", r#"[2, "1-1", "2-1", [["c1", "1"], ["c2", "1"]]]"#),
            ("xpending s g - + 10", r#"[["1-1", "c1", 0, 2], ["2-1", "c2", 0, 1]]"#),
            ("xpending s g - + 10 c2", r#"[["2-1", "c2", 0, 1]]"#),
            ("xpending s g idle 1 - + 10", "[]"),
            ("xdel s 1-1", "1"),
            ("xreadgroup group g c1 streams s 0", r#"[["s", [["1-1", nil array]]]]"#),
            ("xack s g 1-1 1-1 9-9", "1"),
            ("xack s h 1-1", "0"),
            ("xpending s g - + 10", r#"[["2-1", "c2", 0, 1]]"#),
            ("xgroup delconsumer s g c2", "1"),
            ("xpending s g", "[0, nil, nil, nil array]"),
            ("xgroup destroy s g", "1"),
            ("xgroup destroy s g", "0"),
            ("xpending s g", "-NOGROUP No such key 's' or consumer group 'g'"),
            ("xreadgroup group g c streams s >", "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"),
            ("xgroup create none g 0", "-ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically."),
            ("xgroup create none g 0 mkstream", "OK"),
            ("xlen none", "0"),
            ("xgroup setid s g 0", "-NOGROUP No such consumer group 'g' for key name 's'"),
        ]);
    });
}

#[test]
fn claimed_entries_change_their_consumer() {
    Db::both(|mut db| {
        db.check(&[
            ("xadd s 1-1 a b", "\"1-1\""),
            ("xadd s 2-1 c d", "\"2-1\""),
            ("xadd s 3-1 e f", "\"3-1\""),
            ("xgroup create s g 0", "OK"),
            (
                "xreadgroup group g c1 streams s >",
                r#"[["s", [["1-1", ["a", "b"]], ["2-1", ["c", "d"]], ["3-1", ["e", "f"]]]]]"#,
            ),
        ]);
        db.now_ms += 1000;
        // The consumer is made though it gets nothing.
        db.check(&[("xclaim s g c2 5000 1-1", "[]")]);
        assert_eq!(db.effect_lines(), ["XGROUP CREATECONSUMER s g c2"]);
        db.check(&[("xclaim s g c2 1000 1-1", r#"[["1-1", ["a", "b"]]]"#)]);
        assert_eq!(db.effect_lines(), ["XCLAIM s g c2 0 1-1 TIME 1700000001000 RETRYCOUNT 2 FORCE JUSTID"]);
        db.check(&[
            ("xclaim s g c2 0 2-1 justid retrycount 9", r#"["2-1"]"#),
            ("xpending s g - + 10", r#"[["1-1", "c2", 0, 2], ["2-1", "c2", 0, 9], ["3-1", "c1", 1000, 1]]"#),
            ("xdel s 2-1", "1"),
            ("xautoclaim s g c3 0 0 count 2", r#"["3-1", [["1-1", ["a", "b"]]], ["2-1"]]"#),
        ]);
        assert_eq!(
            db.effect_lines(),
            [
                "XGROUP CREATECONSUMER s g c3",
                "XACK s g 2-1",
                "XCLAIM s g c3 0 1-1 TIME 1700000001000 RETRYCOUNT 3 FORCE JUSTID",
            ]
        );
        db.check(&[
            ("xautoclaim s g c3 2000 3 justid", r#"["0-0", [], []]"#),
            ("xautoclaim s g c3 0 0 count 0", "-ERR COUNT must be > 0"),
            ("xclaim s g c x 1-1", "-ERR Invalid min-idle-time argument for XCLAIM"),
            ("xclaim s g c 0 1-1 foo", "-ERR Unrecognized XCLAIM option 'foo'"),
            ("xclaim s g c 0 1-1 idle x", "-ERR Invalid IDLE option argument for XCLAIM"),
            ("xclaim s h c 0 1-1", "-NOGROUP No such key 's' or consumer group 'h'"),
            ("xack s g 1-1", "1"),
            ("xclaim s g c 0 1-1 force", r#"[["1-1", ["a", "b"]]]"#),
            ("xpending s g - 2 10", r#"[["1-1", "c", 0, 2]]"#),
        ]);
    });
}

#[test]
fn readers_wait_with_what_their_ids_stood_for() {
    let mut db = Db::new();
    db.check(&[("xadd s 5-1 a b", "\"5-1\""), ("xread streams s 5", r#"[["s", [["5-1", ["a", "b"]]]]]"#)]);
    db.check(&[
        ("xread streams s $", "nil array"),
        ("xread streams s +", r#"[["s", [["5-1", ["a", "b"]]]]]"#),
    ]);
    db.line("xread count 3 block 1500 streams s none $ $");
    let block = db.blocked.clone().expect("it waits");
    assert_eq!((block.timeout_ms, block.null_array), (Some(1500), true));
    let words = block.words.expect("other words");
    let words: Vec<&[u8]> = words.args().iter().collect();
    let expected = "xread count 3 block 1500 streams s none 5-1 0-0";
    assert_eq!(words, expected.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    db.check(&[
        ("xread block x streams s 0", "-ERR timeout is not an integer or out of range"),
        ("xread block -1 streams s 0", "-ERR timeout is negative"),
        ("xread count 1 streams s", "-ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified."),
        ("xread streams s >", "-ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."),
        ("xread group g c streams s 0", "-ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead."),
        ("xread noack streams s 0", "-ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead."),
        ("xread a b c", "-ERR syntax error"),
        ("xreadgroup count 1 block 1 streams s >", "-ERR Missing GROUP option for XREADGROUP"),
    ]);
    db.caller.may_block = false;
    db.check(&[("xread block 0 streams s $", "nil array")]);
}

#[test]
fn resp3_answers_reads_as_a_map() {
    let mut db = Db::new().resp3();
    db.check(&[
        ("xadd s 1-1 a b", "\"1-1\""),
        ("xread streams s 0", r#"{"s": [["1-1", ["a", "b"]]]}"#),
        ("xread streams s $", "nil"),
        ("xgroup create s g $", "OK"),
        (
            "xinfo groups s",
            r#"[{"name": "g", "consumers": 0, "pending": 0, "last-delivered-id": "1-1", "entries-read": nil, "lag": 0}]"#,
        ),
        ("xgroup createconsumer s g c", "1"),
        ("xgroup createconsumer s g c", "0"),
        ("xinfo consumers s g", r#"[{"name": "c", "pending": 0, "idle": 0, "inactive": -1}]"#),
    ]);
}

#[test]
fn facts_are_told() {
    let mut db = Db::new();
    db.check(&[
        ("xadd s 1-1 a b", "\"1-1\""),
        ("xgroup create s g 0", "OK"),
        ("xreadgroup group g c streams s >", r#"[["s", [["1-1", ["a", "b"]]]]]"#),
        (
            "xinfo stream s",
            r#"["length", 1, "radix-tree-keys", 1, "radix-tree-nodes", 2, "last-generated-id", "1-1", "max-deleted-entry-id", "0-0", "entries-added", 1, "recorded-first-entry-id", "1-1", "idmp-duration", 100, "idmp-maxsize", 100, "pids-tracked", 0, "iids-tracked", 0, "iids-added", 0, "iids-duplicates", 0, "groups", 1, "first-entry", ["1-1", ["a", "b"]], "last-entry", ["1-1", ["a", "b"]]]"#,
        ),
        (
            "xinfo stream s full",
            r#"["length", 1, "radix-tree-keys", 1, "radix-tree-nodes", 2, "last-generated-id", "1-1", "max-deleted-entry-id", "0-0", "entries-added", 1, "recorded-first-entry-id", "1-1", "idmp-duration", 100, "idmp-maxsize", 100, "pids-tracked", 0, "iids-tracked", 0, "iids-added", 0, "iids-duplicates", 0, "entries", [["1-1", ["a", "b"]]], "groups", [["name", "g", "last-delivered-id", "1-1", "entries-read", 1, "lag", 0, "pel-count", 1, "pending", [["1-1", "c", 1700000000000, 1]], "consumers", [["name", "c", "seen-time", 1700000000000, "active-time", 1700000000000, "pel-count", 1, "pending", [["1-1", 1700000000000, 1]]]]]]]"#,
        ),
        ("xinfo stream s x", "-ERR unknown subcommand or wrong number of arguments for 'stream'. Try XINFO HELP."),
        ("xinfo stream none", "-ERR no such key"),
        ("xinfo groups none", "-ERR no such key"),
        ("xinfo consumers s h", "-NOGROUP No such consumer group 'h' for key name 's'"),
    ]);
}

/// The facts are those of Redis 8.4's documentation and tests.
#[test]
fn readers_claim_what_has_been_pending_for_long() {
    Db::both(|mut db| {
        db.check(&[
            ("xadd s 1-1 a b", "\"1-1\""),
            ("xadd s 2-1 c d", "\"2-1\""),
            ("xadd s 3-1 e f", "\"3-1\""),
            ("xgroup create s g 0", "OK"),
            (
                "xreadgroup group g c1 count 2 claim 50 streams s >",
                r#"[["s", [["1-1", ["a", "b"], 0, 0], ["2-1", ["c", "d"], 0, 0]]]]"#,
            ),
        ]);
        db.now_ms += 100;
        db.check(&[("xclaim s g c1 0 2-1 justid", r#"["2-1"]"#)]);
        db.now_ms += 900;
        db.effect_lines();
        db.check(&[(
            "xreadgroup group g c2 claim 1000 streams s >",
            r#"[["s", [["1-1", ["a", "b"], 1000, 1], ["3-1", ["e", "f"], 0, 0]]]]"#,
        )]);
        assert_eq!(
            db.effect_lines(),
            [
                "XGROUP CREATECONSUMER s g c2",
                "XCLAIM s g c2 0 1-1 TIME 1700000001000 RETRYCOUNT 2 FORCE JUSTID",
                "XCLAIM s g c2 0 3-1 TIME 1700000001000 RETRYCOUNT 1 FORCE JUSTID",
                "XGROUP SETID s g 3-1 ENTRIESREAD 3",
            ]
        );
        db.check(&[
            ("xpending s g - + 9", r#"[["1-1", "c2", 0, 2], ["2-1", "c1", 900, 1], ["3-1", "c2", 0, 1]]"#),
            ("xreadgroup group g c3 claim 1000 streams s >", "nil array"),
            // The oldest first; those it had count, too; NOACK is about new ones.
            (
                "xreadgroup group g c2 noack claim 0 count 2 streams s >",
                r#"[["s", [["2-1", ["c", "d"], 900, 1], ["1-1", ["a", "b"], 0, 2]]]]"#,
            ),
            ("xpending s g - + 9", r#"[["1-1", "c2", 0, 3], ["2-1", "c2", 0, 2], ["3-1", "c2", 0, 1]]"#),
            // The history is not claimed.
            ("xreadgroup group g c2 claim 0 count 1 streams s 0", r#"[["s", [["1-1", ["a", "b"]]]]]"#),
            ("xdel s 1-1 3-1", "2"),
            ("xreadgroup group g c3 claim 0 streams s >", r#"[["s", [["2-1", ["c", "d"], 0, 2]]]]"#),
            ("xtrim s maxlen 0", "1"),
            ("xreadgroup group g c3 claim 0 streams s >", "nil array"),
            ("xpending s g - + 9", r#"[["1-1", "c2", 0, 4], ["2-1", "c3", 0, 3], ["3-1", "c2", 0, 1]]"#),
            ("xgroup delconsumer s g c2", "2"),
            ("xack s g 2-1", "1"),
            ("xadd s 4-1 a b", "\"4-1\""),
            ("xreadgroup group g c noack claim 0 streams s >", r#"[["s", [["4-1", ["a", "b"], 0, 0]]]]"#),
            ("xreadgroup group g c noack claim 0 streams s >", "nil array"),
            ("xgroup setid s g 0", "OK"),
            (
                "xreadgroup group g c claim 9223372036854775807 streams s >",
                r#"[["s", [["4-1", ["a", "b"], 0, 0]]]]"#,
            ),
            ("xgroup setid s g 0", "OK"),
            // A group that was set back reads twice.
            (
                "xreadgroup group g d claim 0 streams s >",
                r#"[["s", [["4-1", ["a", "b"], 0, 1], ["4-1", ["a", "b"], 0, 0]]]]"#,
            ),
            ("xpending s g - + 9", r#"[["4-1", "d", 0, 1]]"#),
            ("xreadgroup group g c claim -10 streams s >", "-ERR min-idle-time must be a positive integer"),
            (
                "xreadgroup group g c claim 5.5 streams s >",
                "-ERR min-idle-time is not an integer or out of range",
            ),
            (
                "xreadgroup group g c claim streams s >",
                "-ERR min-idle-time is not an integer or out of range",
            ),
            (
                "xread claim 5 streams s 0",
                "-ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead.",
            ),
        ]);
    });
}

#[test]
fn very_many_deleted_entries_are_passed_over() {
    let mut db = Db::new();
    for i in 1..=600 {
        db.line(&format!("xadd s {i} a b"));
    }
    db.check(&[("xgroup create s g 0", "OK"), ("xadd s 601 a b", "\"601-0\"")]);
    db.line("xreadgroup group g c streams s >");
    db.check(&[("xtrim s minid 601", "600")]);
    let claim = "xreadgroup group g d claim 0 streams s >";
    db.check(&[
        (claim, "nil array"),
        (claim, "nil array"),
        (claim, r#"[["s", [["601-0", ["a", "b"], 0, 1]]]]"#),
    ]);
    db.check(&[(claim, r#"[["s", [["601-0", ["a", "b"], 0, 2]]]]"#)]);
    let pending = db.line("xpending s g");
    assert!(pending.starts_with("[601, "), "{pending}");
}
