//! Both widths, both ways to run: the documented behaviour of the module, and random work against sets of
//! numbers.

use crate::testing::Db;
use std::collections::BTreeSet;

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
const MISSING: &str = "-Roaring: key does not exist";

/// A prefix, and its family's form of a number.
#[derive(Clone, Copy)]
struct Family {
    prefix: &'static str,
    wide: bool,
}

impl Family {
    fn number(self, n: u64) -> String {
        if self.wide { format!("\"{n}\"") } else { n.to_string() }
    }

    fn list(self, numbers: impl IntoIterator<Item = u64>) -> String {
        let numbers: Vec<String> = numbers.into_iter().map(|n| self.number(n)).collect();
        format!("[{}]", numbers.join(", "))
    }

    fn last(self) -> u64 {
        if self.wide { u64::MAX } else { u32::MAX.into() }
    }

    fn call(self, db: &mut Db, line: &str) -> String {
        db.line(&format!("{}{line}", self.prefix))
    }

    /// Runs lines without their prefix and compares the replies, in which `#6` is the number 6.
    fn check(self, db: &mut Db, lines: &[(&str, &str)]) {
        for (line, expected) in lines {
            let mut words = expected.split('#');
            let mut reply = words.next().unwrap_or("").to_string();
            for word in words {
                let end = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
                reply += &self.number(word[..end].parse().expect("a number behind #"));
                reply += &word[end..];
            }
            assert_eq!(self.call(db, line), reply, "{}{line}", self.prefix);
        }
    }
}

const NARROW: Family = Family { prefix: "R.", wide: false };
const WIDE: Family = Family { prefix: "R64.", wide: true };

fn all(checks: impl Fn(&mut Db, Family)) {
    for family in [NARROW, WIDE] {
        Db::both(|mut db| checks(&mut db, family));
    }
}

#[test]
fn single_bits_are_set_read_and_cleared() {
    all(|db, r| {
        r.check(
            db,
            &[
                ("SETBIT k 0 1", "0"),
                ("SETBIT k 0 1", "1"),
                ("GETBIT k 0", "1"),
                ("GETBIT k 1", "0"),
                ("GETBIT none 7", "0"),
                ("SETBIT k 0 0", "1"),
                ("SETBIT k 0 0", "0"),
                ("SETBIT fresh 5 0", "0"),
                ("BITCOUNT fresh", "#0"),
                ("SETINTARRAY k 1 2 4 5", "OK"),
                ("GETBITS k 1 2 3 4 5", "[1, 1, 0, 1, 1]"),
                ("GETBITS none 1 2", "[]"),
                ("CLEARBITS k 1 3", "OK"),
                ("CLEARBITS k 2 2 4 9 COUNT", "2"),
                ("CLEARBITS k COUNT", "0"),
                ("CLEARBITS none 1", "nil"),
                ("GETINTARRAY k", "[#5]"),
                ("CLEAR k", "1"),
                ("CLEAR k", "0"),
                ("CLEAR none", "nil"),
                ("GETINTARRAY k", "[]"),
            ],
        );
        assert_eq!(db.run(&["EXISTS", "k", "fresh", "none"]), "2");
    });
}

#[test]
fn counts_and_places() {
    all(|db, r| {
        r.check(
            db,
            &[
                ("MIN none", "-1"),
                ("MAX none", "-1"),
                ("BITPOS none 1", "-1"),
                ("BITPOS none 0", "-1"),
                ("BITCOUNT none", "#0"),
                ("SETINTARRAY k 3 6 4 12 10", "OK"),
                ("BITPOS k 1", "#3"),
                ("BITPOS k 0", "#0"),
                ("MIN k", "#3"),
                ("MAX k", "#12"),
                ("BITCOUNT k", "#5"),
                ("SETINTARRAY k 0 1 2 3 4 6", "OK"),
                ("BITPOS k 0", "#5"),
                ("APPENDINTARRAY k 5", "OK"),
                ("BITPOS k 0", "-1"),
                ("DELETEINTARRAY k 0 1 2 3 4 5 6 7", "OK"),
                ("MIN k", "-1"),
                ("BITPOS k 0", "-1"),
                ("BITPOS k 1", "-1"),
            ],
        );
    });
}

#[test]
fn lists_of_places_and_text() {
    all(|db, r| {
        r.check(
            db,
            &[
                ("SETINTARRAY k 100000 1 10 1000 100 10000 10", "OK"),
                ("GETINTARRAY k", "[#1, #10, #100, #1000, #10000, #100000]"),
                ("SETINTARRAY k 8 2 4", "OK"),
                ("GETINTARRAY k", "[#2, #4, #8]"),
                ("GETINTARRAY none", "[]"),
                ("RANGEINTARRAY k 0 1", "[#2, #4]"),
                ("RANGEINTARRAY k 1 100", "[#4, #8]"),
                ("RANGEINTARRAY k 3 4", "[]"),
                ("RANGEINTARRAY k 2 1", "[]"),
                ("RANGEINTARRAY none 0 5", "[]"),
                ("RANGEINTARRAY k 0 100000000", "-Roaring: range too large: maximum 100000000 elements"),
                ("APPENDINTARRAY new 1 2 3", "OK"),
                ("DELETEINTARRAY new 1 3 5", "OK"),
                ("GETINTARRAY new", "[#2]"),
                ("DELETEINTARRAY gone 1", "OK"),
                ("BITCOUNT gone", "#0"),
                ("SETBITARRAY k 0", "OK"),
                ("GETBITARRAY k", "\"0\""),
                ("SETBITARRAY k 0110100100010010011001000", "OK"),
                ("GETBITARRAY k", "\"0110100100010010011001\""),
                ("GETBIT k 24", "0"),
                ("GETBIT k 21", "1"),
                ("GETBITARRAY none", ""),
            ],
        );
        assert_eq!(db.run(&["EXISTS", "gone"]), "1");
    });
}

#[test]
fn ranges_end_before_their_end() {
    all(|db, r| {
        r.check(
            db,
            &[
                ("SETRANGE k 5 5", "OK"),
                ("BITCOUNT k", "#0"),
                ("SETRANGE k 1 4", "OK"),
                ("SETRANGE k 3 6", "OK"),
                ("GETINTARRAY k", "[#1, #2, #3, #4, #5]"),
                ("SETRANGE k 4 3", "-ERR invalid end: must be >= start"),
            ],
        );
        let last = r.last();
        assert_eq!(r.call(db, &format!("SETRANGE wide 1000 {last}")), "OK");
        r.check(db, &[("MIN wide", "#1000"), ("GETBIT wide 123456", "1")]);
        assert_eq!(r.call(db, "MAX wide"), r.number(last - 1));
        assert_eq!(r.call(db, "BITCOUNT wide"), r.number(last - 1000));
        assert_eq!(r.call(db, "RANGEINTARRAY wide 4000000 4000002"), r.list(4_001_000..=4_001_002));
    });
}

#[test]
fn full_bitmaps_take_no_memory() {
    all(|db, r| {
        r.check(db, &[("SETFULL k", "OK"), ("SETFULL k", "-Roaring: key already exist"), ("MIN k", "#0")]);
        assert_eq!(r.call(db, "MAX k"), r.number(r.last()));
        // All but one of 2^64 bits are counted.
        assert_eq!(r.call(db, "BITCOUNT k"), r.number(if r.wide { u64::MAX } else { 1 << 32 }));
        assert_eq!(r.call(db, "BITPOS k 0"), "-1");
        r.check(db, &[("SETBIT k 77777 0", "1"), ("BITPOS k 0", "#77777"), ("SETBIT k 77777 1", "0")]);
        let bytes: usize = db.run(&["MEMORY", "USAGE", "k"]).parse().expect("bytes");
        assert!(bytes < 10_000, "{bytes}");
        r.check(db, &[("BITOP NOT not k", "#0")]);
        db.caller.may_stream = false;
        assert_eq!(r.call(db, "GETINTARRAY k"), "-Roaring: range too large: maximum 100000000 elements");
        assert!(r.call(db, "GETBITARRAY k").contains("exceeds maximum allowed size"));
        db.caller.may_stream = true;
        if r.wide {
            let reply = r.call(db, "GETINTARRAY k");
            assert_eq!(reply, "-Roaring: range too large: maximum 4294967296 elements");
        }
    });
}

#[test]
fn long_lists_and_texts_are_streamed() {
    all(|db, r| {
        let places: Vec<u64> = (0..3_000).map(|i| i * 7 % 50_000).collect();
        let words: Vec<String> = places.iter().map(u64::to_string).collect();
        assert_eq!(r.call(db, &format!("SETINTARRAY k {}", words.join(" "))), "OK");
        let set: BTreeSet<u64> = places.into_iter().collect();
        let text: String =
            (0..=*set.last().expect("some")).map(|at| if set.contains(&at) { '1' } else { '0' }).collect();
        for stream in [true, false] {
            (db.caller.may_stream, db.streamed) = (stream, false);
            assert_eq!(r.call(db, "GETINTARRAY k"), r.list(set.iter().copied()));
            assert_eq!(db.streamed, stream);
            assert_eq!(r.call(db, "RANGEINTARRAY k 1000 2999"), r.list(set.iter().copied().skip(1000)));
            assert_eq!(r.call(db, "GETBITARRAY k"), format!("\"{text}\""));
        }
    });
}

#[test]
fn numbers_that_are_none_are_refused() {
    all(|db, r| {
        let bits = if r.wide { 64 } else { 32 };
        let refused = |name: &str| format!("-ERR invalid {name}: must be an unsigned {bits} bit integer");
        let beyond = if r.wide { "18446744073709551616" } else { "4294967296" };
        for word in ["x", "-1", "1.5", "01", "", beyond] {
            for (line, name) in [
                ("SETBIT k ? 1", "offset"),
                ("GETBIT k ?", "offset"),
                ("GETBITS k 1 ?", "offset"),
                ("CLEARBITS k 1 ?", "offset"),
                ("SETINTARRAY k 1 ?", "value"),
                ("APPENDINTARRAY k ? 1", "value"),
                ("DELETEINTARRAY k ?", "value"),
                ("RANGEINTARRAY k ? 1", "start"),
                ("RANGEINTARRAY k 1 ?", "end"),
                ("SETRANGE k ? 1", "start"),
                ("SETRANGE k 1 ?", "end"),
                ("BITOP NOT d k ?", "last"),
            ] {
                assert_eq!(r.call(db, "SETINTARRAY k 1"), "OK");
                let line = line.replace('?', &format!("\"{word}\""));
                assert_eq!(r.call(db, &line), refused(name), "{line}");
            }
        }
        for word in ["2", "-1", "x", "01"] {
            assert_eq!(
                r.call(db, &format!("SETBIT k 1 {word}")),
                "-ERR invalid value: must be either 0 or 1"
            );
            assert_eq!(r.call(db, &format!("BITPOS k {word}")), "-ERR invalid bit: must be either 0 or 1");
        }
        let last = r.last();
        assert_eq!(r.call(db, &format!("SETBIT k {last} 1")), "0");
        assert_eq!(r.call(db, "MAX k"), r.number(last));
    });
}

#[test]
fn bitmaps_are_combined() {
    all(|db, r| {
        r.check(
            db,
            &[
                ("SETINTARRAY a 0 4 5 6", "OK"),
                ("SETINTARRAY b 1 5 6", "OK"),
                ("SETINTARRAY c 2 3 5 6 7", "OK"),
                ("BITOP AND d a b c", "#2"),
                ("GETINTARRAY d", "[#5, #6]"),
                ("BITOP OR d a b c", "#8"),
                ("BITOP XOR d a b c", "#8"),
                ("GETINTARRAY d", "[#0, #1, #2, #3, #4, #5, #6, #7]"),
                ("BITOP ONE d a b c", "#6"),
                ("GETINTARRAY d", "[#0, #1, #2, #3, #4, #7]"),
                ("BITOP ANDOR d a b c", "#2"),
                ("BITOP DIFF d a b c", "#2"),
                ("GETINTARRAY d", "[#0, #4]"),
                ("BITOP DIFF1 d a b c", "#4"),
                ("GETINTARRAY d", "[#1, #2, #3, #7]"),
                ("BITOP DIFF1 d none b c", "#6"),
                ("BITOP DIFF d none b c", "#0"),
                ("GETINTARRAY d", "[]"),
                ("BITOP NOT d a", "#3"),
                ("GETINTARRAY d", "[#1, #2, #3]"),
                ("BITOP NOT d a 8", "#5"),
                ("BITOP NOT d a 3", "#3"),
                ("BITOP NOT d none", "#0"),
                ("BITOP NOT d none 3", "#4"),
                // The destination is among the sources.
                ("BITOP DIFF a a b", "#2"),
                ("GETINTARRAY a", "[#0, #4]"),
                ("BITOP DIFF c b c c", "#1"),
                ("BITOP NOT a a", "#3"),
                ("BITOP NOP d a b", "-ERR syntax error"),
                ("DIFF d none b", MISSING),
                ("DIFF d b none", MISSING),
                ("SETINTARRAY x 1 2 3 4", "OK"),
                ("SETINTARRAY y 3 4 5 6", "OK"),
                ("DIFF d x y", "OK"),
                ("GETINTARRAY d", "[#1, #2]"),
                ("DIFF y y x", "OK"),
                ("GETINTARRAY y", "[#5, #6]"),
            ],
        );
        let arity = format!("-ERR wrong number of arguments for '{}BITOP' command", r.prefix);
        for line in ["BITOP AND d a", "BITOP ONE d a", "BITOP NOT d a 1 2"] {
            assert_eq!(r.call(db, line), arity, "{line}");
        }
    });
}

#[test]
fn bitmaps_are_compared() {
    all(|db, r| {
        r.check(
            db,
            &[
                ("SETINTARRAY a 1 2 3 4 5", "OK"),
                ("SETINTARRAY b 2 3", "OK"),
                ("SETINTARRAY c 3 4 6", "OK"),
                ("SETINTARRAY same 1 2 3 4 5", "OK"),
                ("SETINTARRAY other 7 8 9", "OK"),
                ("SETRANGE empty 0 0", "OK"),
                ("CONTAINS a b", "1"),
                ("CONTAINS a other", "0"),
                ("CONTAINS a empty", "0"),
                ("CONTAINS a b ALL", "1"),
                ("CONTAINS a c ALL", "0"),
                ("CONTAINS a same ALL", "1"),
                ("CONTAINS a empty ALL", "1"),
                ("CONTAINS empty a ALL", "0"),
                ("CONTAINS a b ALL_STRICT", "1"),
                ("CONTAINS a same ALL_STRICT", "0"),
                ("CONTAINS a empty ALL_STRICT", "1"),
                ("CONTAINS empty empty ALL_STRICT", "0"),
                ("CONTAINS a same EQ", "1"),
                ("CONTAINS a c EQ", "0"),
                ("CONTAINS a b all", "-ERR invalid mode argument: all"),
                ("CONTAINS a none", MISSING),
                ("CONTAINS none a", MISSING),
                ("SETINTARRAY shifted 3 4 5 6 7", "OK"),
                ("JACCARD a shifted", "\"0.42857142857142855\""),
                ("JACCARD a a", "\"1\""),
                ("JACCARD a same", "\"1\""),
                ("JACCARD a other", "\"0\""),
                ("JACCARD a empty", "\"0\""),
                ("SETRANGE empty2 0 0", "OK"),
                ("JACCARD empty empty2", "\"-1\""),
                ("JACCARD a none", MISSING),
            ],
        );
    });
}

#[test]
fn what_it_is_made_of_is_told() {
    all(|db, r| {
        r.check(
            db,
            &[
                ("OPTIMIZE none", MISSING),
                ("STAT none", "nil"),
                ("SETINTARRAY k 1 2 3 4 5 6", "OK"),
                ("OPTIMIZE k", "OK"),
                ("OPTIMIZE k MEM", "OK"),
            ],
        );
        let kind = if r.wide { "bitmap64" } else { "bitmap" };
        assert_eq!(
            r.call(db, "STAT k"),
            format!(
                "\"type: {kind}\\ncardinality: 6\\nnumber of containers: 1\\nmax value: 6\\nmin value: 1\\n\
                 number of array containers: 1\\n\\tarray container values: 6\\n\\tarray container bytes: 12\\n\
                 bitset  containers: 0\\n\\tbitset  container values: 0\\n\\tbitset  container bytes: 0\\n\
                 run containers: 0\\n\\trun container values: 0\\n\\trun container bytes: 0\\n\""
            )
        );
        assert_eq!(db.run(&["R.STAT", "k", "JSON"]), r.call(db, "STAT k JSON"));
        let json = r.call(db, "STAT k JSON").replace('\\', "");
        let start = format!(
            r#""{{"type":"{kind}","cardinality":"6","number_of_containers":"1","max_value":"6","min_value":"1","array_container":{{"number_of_containers":"1","container_cardinality":"6","container_allocated_bytes":"12"}},"bitset_container":{{"number_of_containers":"0","#
        );
        assert!(json.starts_with(&start), "{json}");
        r.check(db, &[("SETFULL full", "OK"), ("SETRANGE runs 10 200000", "OK")]);
        let containers = if r.wide { "281474976710656" } else { "65536" };
        assert!(r.call(db, "STAT full").contains(&format!("run containers: {containers}\\n")));
        assert!(
            r.call(db, "STAT runs").contains("number of containers: 4\\n"),
            "{}",
            r.call(db, "STAT runs")
        );
    });
}

#[test]
fn they_are_values_like_others() {
    all(|db, r| {
        let kind = if r.wide { "roaring64" } else { "reroaring" };
        assert_eq!(r.call(db, "SETINTARRAY k 1 5"), "OK");
        db.check(&[
            ("TYPE k", kind),
            ("OBJECT ENCODING k", "\"raw\""),
            ("COPY k c", "1"),
            ("RENAME k l", "OK"),
            ("EXPIRE l 100", "1"),
            ("TTL l", "100"),
            ("SET s text", "OK"),
        ]);
        r.check(
            db,
            &[("SETBIT c 9 1", "0"), ("GETINTARRAY c", "[#1, #5, #9]"), ("GETINTARRAY l", "[#1, #5]")],
        );
        // In place the expiry stays; a new bitmap has none.
        r.check(db, &[("BITOP OR l l c", "#3")]);
        assert_eq!(db.run(&["TTL", "l"]), "100");
        r.check(db, &[("SETINTARRAY l 1", "OK")]);
        db.check(&[("TTL l", "-1"), ("DEL l", "1")]);
        for line in [
            "GET c",
            "SADD c 1",
            "LPUSH c 1",
            "HSET c f v",
            "ZADD c 1 m",
            "APPEND c x",
            "BITCOUNT c",
            "SORT c",
        ] {
            assert_eq!(db.line(line), WRONG, "{line}");
        }
        let other = if r.wide { "R." } else { "R64." };
        assert_eq!(db.line(&format!("{other}SETINTARRAY o 1")), "OK");
        for key in ["s", "o"] {
            for line in [
                "SETBIT ? 1 1",
                "SETBIT ? x y",
                "GETBIT ? 1",
                "GETBITS ? 1",
                "CLEARBITS ? 1",
                "SETRANGE ? 1 2",
                "SETRANGE ? 2 1",
                "SETFULL ?",
                "BITCOUNT ?",
                "BITPOS ? 1",
                "BITPOS ? x",
                "MIN ?",
                "MAX ?",
                "CLEAR ?",
                "SETINTARRAY ? 1",
                "SETINTARRAY ? x",
                "APPENDINTARRAY ? 1",
                "DELETEINTARRAY ? 1",
                "GETINTARRAY ?",
                "RANGEINTARRAY ? 0 1",
                "RANGEINTARRAY ? 1 0",
                "SETBITARRAY ? 01",
                "GETBITARRAY ?",
                "BITOP OR ? c c",
                "BITOP OR d c ?",
                "BITOP NOT ? c",
                "BITOP NOT d ?",
                "DIFF ? c c",
                "DIFF d ? c",
                "CONTAINS ? c",
                "CONTAINS c ?",
                "JACCARD ? c",
                "OPTIMIZE ?",
            ] {
                let line = line.replace('?', key);
                assert_eq!(r.call(db, &line), WRONG, "{line}");
            }
        }
        assert_eq!(db.run(&["R.STAT", "s"]), WRONG);
        assert_eq!(db.run(&["EXISTS", "d"]), "0");
    });
}

#[test]
fn what_is_long_is_given_up_before_anything_has_changed() {
    all(|db, r| {
        for i in 0..200 {
            let (from, to) = (i * 65_536, i * 65_536 + 40_000);
            assert_eq!(r.call(db, &format!("SETRANGE a {} {to}", from + 3)), "OK");
            assert_eq!(r.call(db, &format!("SETRANGE b {} {to}", from + 9_999)), "OK");
        }
        db.steps = 1_000;
        let (dropped, before) = ("-ERR internal: run dropped", r.call(db, "BITCOUNT a"));
        for line in [
            "BITOP AND a a b",
            "BITOP XOR a a b",
            "BITOP NOT a b",
            "DIFF a a b",
            "JACCARD a b",
            "CONTAINS a b",
            "OPTIMIZE a",
        ] {
            assert_eq!(r.call(db, line), dropped, "{line}");
        }
        assert_eq!(r.call(db, "BITCOUNT a"), before);
        db.steps = 1_000_000;
        assert_eq!(r.call(db, "BITOP AND a a b"), r.number(200 * 30_001));
    });
}

#[test]
fn big_numbers_are_numbers_in_resp3() {
    let mut db = Db::new().resp3();
    db.check(&[
        ("R64.SETINTARRAY k 7 18446744073709551615", "OK"),
        ("R64.GETINTARRAY k", "[7, 18446744073709551615]"),
        ("R64.BITCOUNT k", "2"),
        ("R64.MAX k", "18446744073709551615"),
        ("R64.BITPOS k 1", "7"),
        ("R64.JACCARD k k", "1"),
    ]);
}

/// Numbers crowded in a few ranges, so that every form of container occurs.
fn place(r: Family, random: u64) -> u64 {
    let near = random >> 32 & 0x3ff;
    match random % 8 {
        0 => near,
        1 => near * 97,
        2 => 65_536 * 9 - 300 + near,
        3 => r.last() - near,
        4 => 0x7fff_fe00 + near,
        _ => 200_000 + near * 3,
    }
}

fn combined(op: &str, sets: &[&BTreeSet<u64>]) -> BTreeSet<u64> {
    let having = |at: &u64, of: &[&BTreeSet<u64>]| of.iter().filter(|set| set.contains(at)).count();
    let all: BTreeSet<u64> = sets.iter().flat_map(|set| set.iter().copied()).collect();
    let keep = |at: &u64| {
        let (x, rest) = (sets[0].contains(at), having(at, &sets[1..]));
        match op {
            "AND" => x && rest == sets.len() - 1,
            "OR" => true,
            "XOR" => having(at, sets) % 2 == 1,
            "ANDOR" => x && rest > 0,
            "ONE" => having(at, sets) == 1,
            "DIFF" => x && rest == 0,
            _ => !x,
        }
    };
    all.into_iter().filter(keep).collect()
}

#[test]
fn random_work_gives_what_sets_of_numbers_give() {
    all(|db, r| {
        let mut model = vec![BTreeSet::new(); 4];
        let mut seed = 7u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed.rotate_right(33) ^ seed >> 17
        };
        for round in 0..1_500 {
            let (i, j, k) = (random() as usize % 4, random() as usize % 4, random() as usize % 4);
            let at = place(r, random());
            match random() % 8 {
                0 => {
                    let was = model[i].replace(at).is_some();
                    assert_eq!(r.call(db, &format!("SETBIT k{i} {at} 1")), u8::from(was).to_string());
                }
                1 => {
                    let was = model[i].remove(&at);
                    assert_eq!(r.call(db, &format!("SETBIT k{i} {at} 0")), u8::from(was).to_string());
                }
                2 => {
                    let to = at.saturating_add(random() % 2_000).min(r.last());
                    model[i].extend(at..to);
                    assert_eq!(r.call(db, &format!("SETRANGE k{i} {at} {to}")), "OK");
                }
                3 => {
                    let places: Vec<u64> =
                        (0..random() % 300).map(|_| place(r, random())).chain([at]).collect();
                    let words: Vec<String> = places.iter().map(u64::to_string).collect();
                    let command = ["APPENDINTARRAY", "DELETEINTARRAY", "SETINTARRAY"][random() as usize % 3];
                    assert_eq!(r.call(db, &format!("{command} k{i} {}", words.join(" "))), "OK");
                    match command {
                        "APPENDINTARRAY" => model[i].extend(places),
                        "DELETEINTARRAY" => model[i].retain(|at| !places.contains(at)),
                        _ => model[i] = places.into_iter().collect(),
                    }
                }
                4 | 5 => {
                    let op = ["AND", "OR", "XOR", "ANDOR", "ONE", "DIFF", "DIFF1"][random() as usize % 7];
                    let result = combined(op, &[&model[i], &model[j], &model[k]]);
                    let reply = r.call(db, &format!("BITOP {op} k{k} k{i} k{j} k{k}"));
                    assert_eq!(reply, r.number(result.len() as u64), "{op}");
                    model[k] = result;
                }
                6 => {
                    let shared = model[i].intersection(&model[j]).count();
                    if db.run(&["EXISTS", &format!("k{i}"), &format!("k{j}")]) == "2" {
                        let has = shared == model[j].len();
                        assert_eq!(
                            r.call(db, &format!("CONTAINS k{i} k{j}")),
                            u8::from(shared > 0).to_string()
                        );
                        assert_eq!(r.call(db, &format!("CONTAINS k{i} k{j} ALL")), u8::from(has).to_string());
                        assert_eq!(r.call(db, &format!("OPTIMIZE k{i}")), "OK");
                    }
                }
                _ => {
                    let (count, rank) = (model[i].len(), random() as usize % 5_000);
                    assert_eq!(r.call(db, &format!("BITCOUNT k{i}")), r.number(count as u64));
                    let ranked = r.list(model[i].iter().copied().skip(rank).take(101));
                    assert_eq!(r.call(db, &format!("RANGEINTARRAY k{i} {rank} {}", rank + 100)), ranked);
                }
            }
            if round % 100 == 99 {
                for (i, set) in model.iter().enumerate() {
                    assert_eq!(r.call(db, &format!("GETINTARRAY k{i}")), r.list(set.iter().copied()));
                    let hole = set.iter().zip(0..).find(|(at, n)| *at != n).map(|(_, n)| n);
                    let hole = hole.map_or("-1".into(), |at| r.number(at));
                    assert_eq!(r.call(db, &format!("BITPOS k{i} 0")), hole);
                }
            }
        }
    });
}
