//! Runs every row that is a function of keys with hostile words, in two ways. Under the locks of its keys
//! only, a look at any other key panics. The second way is over an overlay.
//!
//! EVENKEEL_HOSTILE_ROUNDS: how often each row is run in each way (default: 40).

use crate::places;
use crate::table::{Begin, Command, Run};
use crate::testing::{Db, Over};

/// Random numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = stdx::hash::hash_u64(self.0);
        self.0 as usize % n
    }

    fn one<'a>(&mut self, of: &[&'a [u8]]) -> &'a [u8] {
        of[self.below(of.len())]
    }
}

const KEYS: [&[u8]; 12] =
    [b"text", b"number", b"list", b"hash", b"set", b"ints", b"zset", b"bits", b"wide", b"none", b"", b"gone"];

const NUMBERS: [&[u8]; 30] = [
    b"0",
    b"1",
    b"2",
    b"3",
    b"-1",
    b"-2",
    b"7",
    b"64",
    b"100",
    b"1000",
    b"65536",
    b"4294967295",
    b"4294967296",
    b"-4294967296",
    b"536870911",
    b"2147483647",
    b"2147483648",
    b"-2147483648",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"1e309",
    b"-1e309",
    b"nan",
    b"inf",
    b"-inf",
    b"1.5",
    b"-0",
    b"0x10",
];

const ODD: [&[u8]; 22] = [
    b"",
    b"\0",
    b"\r\n",
    b"*",
    b"**",
    b"[",
    b"[a",
    b"(a",
    b"(1",
    b"+",
    b"-",
    b"\xff\xfe",
    b"#",
    b"{",
    b"}",
    b"%s",
    b"i64",
    b"u8",
    b"#1",
    b"a\0b",
    b"'",
    b"\\",
];

/// The literal words in the documented arguments of a command, and the other words that are not names.
fn options(command: &Command) -> Vec<Vec<u8>> {
    let lines = include_str!("syntax.txt").lines().filter(|line| !line.starts_with('#'));
    let own = lines.filter(|line| line.split(' ').next() == Some(command.name));
    let words = own.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_'));
    words.filter(|word| word.len() > 1).map(|word| word.as_bytes().to_vec()).collect()
}

const OPTIONS: [&[u8]; 30] = [
    b"LIMIT",
    b"COUNT",
    b"GET",
    b"STORE",
    b"BY",
    b"WITHSCORES",
    b"WEIGHTS",
    b"AGGREGATE",
    b"FIELDS",
    b"NX",
    b"XX",
    b"CH",
    b"INCR",
    b"EX",
    b"PX",
    b"KEEPTTL",
    b"REPLACE",
    b"DB",
    b"MATCH",
    b"TYPE",
    b"BYLEX",
    b"BYSCORE",
    b"REV",
    b"LEFT",
    b"RIGHT",
    b"MIN",
    b"MAX",
    b"NOT",
    b"AND",
    b"WITHVALUES",
];

/// A call of a row, mostly with about as many words as it takes.
fn call(command: &Command, options: &[Vec<u8>], dice: &mut Dice) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = command.name.split('|').map(|word| word.as_bytes().to_vec()).collect();
    let least = command.arity.unsigned_abs() as usize;
    let more = match dice.below(12) {
        0 => dice.below(3),
        1 => 20 + dice.below(60),
        2 if command.arity < 0 => 3000,
        _ if command.arity < 0 => dice.below(8),
        _ => 0,
    };
    let len = (least + more).saturating_sub(usize::from(dice.below(20) == 0));
    let same = dice.below(4) == 0;
    let key = dice.one(&KEYS);
    while words.len() < len {
        let word = match dice.below(16) {
            0..=4 if same => key.to_vec(),
            0..=4 => dice.one(&KEYS).to_vec(),
            5..=9 => dice.one(&NUMBERS).to_vec(),
            10 => dice.one(&ODD).to_vec(),
            11 => dice.one(&OPTIONS).to_vec(),
            12 => vec![b'x'; dice.below(3000)],
            13 => (dice.below(len) as u64).to_string().into_bytes(),
            _ if options.is_empty() => dice.one(&NUMBERS).to_vec(),
            _ => options[dice.below(options.len())].clone(),
        };
        words.push(word);
    }
    words
}

fn fill(db: &mut Db) {
    for line in [
        "set text abcdef",
        "set number 42",
        "rpush list a b c 1 2 3 a",
        "hset hash f 1 g 2 1 x",
        "hexpire hash 100 fields 1 g",
        "sadd set a b c",
        "sadd ints 1 2 3 70000",
        "zadd zset 1 a 2 b 2 c inf d",
        "r.setbit bits 5 1",
        "r64.setbit wide 4294967299 1",
        "set gone x px 1",
    ] {
        db.line(line);
    }
}

/// Prints the words of a run that panicked.
struct Shows<'a>(&'a [Vec<u8>]);

impl Drop for Shows<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let words: Vec<_> = self
                .0
                .iter()
                .take(40)
                .map(|word| word[..word.len().min(60)].escape_ascii().to_string())
                .collect();
            eprintln!("{} words: {words:?}", self.0.len());
        }
    }
}

/// SORT with BY, GET or STORE never runs under the locks of its keys.
fn asks_for_unknown_keys(command: &Command, words: &[Vec<u8>]) -> bool {
    let is = |word: &Vec<u8>, name: &&str| word.eq_ignore_ascii_case(name.as_bytes());
    command.keys.iter().any(|spec| spec.begin == Begin::Unknown)
        && words.iter().skip(2).any(|word| ["by", "get", "store"].iter().any(|name| is(word, name)))
}

fn rounds() -> usize {
    std::env::var("EVENKEEL_HOSTILE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

fn run(over: Over, resp3: bool) {
    let rows: Vec<_> = places::all()
        .iter()
        .filter(|command| matches!(command.run, Run::Read(_) | Run::Write(_) | Run::Whole(_)))
        // SWAPDB changes which shard holds what, and needs all of them.
        .filter(|command| !matches!(command.name, "swapdb") || over == Over::Locks)
        .map(|command| (command, options(command)))
        .collect();
    assert!(rows.len() > 150, "{}", rows.len());
    let mut dice = Dice(over as u64 + 7 * u64::from(resp3));
    let mut db = Db::new().over(over);
    if resp3 {
        db = db.resp3();
    }
    // Streams are off and charged for, so that a reply of 2^63 elements ends.
    (db.caller.may_stream, db.steps) = (false, 20_000);
    for round in 0..rounds() {
        db.caller.may_block = round % 2 == 0;
        db.caller.in_script = round % 3 == 0;
        for (command, options) in &rows {
            let words = call(command, options, &mut dice);
            if over == Over::Locks && asks_for_unknown_keys(command, &words) {
                continue;
            }
            let _shows = Shows(&words);
            if dice.below(4) == 0 {
                fill(&mut db);
                db.now_ms += 1;
            }
            if !words.is_empty()
                && command.arity_fits(words.len())
                && over == Over::Locks
                && !matches!(command.run, Run::Whole(_))
            {
                db.cost(&words);
            }
            db.call(&words);
        }
        // Drops the values that have become large.
        db.line("flushall");
    }
}

#[test]
fn no_words_make_a_row_look_at_a_key_that_is_not_its_own() {
    run(Over::Locks, false);
}

#[test]
fn no_words_make_a_row_panic_over_an_overlay() {
    run(Over::Overlay, true);
}
