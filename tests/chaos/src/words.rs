//! Words for commands: valid ones, nearly valid ones, and ones that no client would send.

use support::rng::Rng;

pub type Word = Vec<u8>;

/// Every edge that a number in a program may have.
pub const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "7999",
    "8000",
    "65535",
    "65536",
    "1048576",
    "2147483646",
    "2147483647",
    "2147483648",
    "-2147483647",
    "-2147483648",
    "-2147483649",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "-1000000000000000000",
    "9223372036854775806",
    "9223372036854775807",
    "-9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "01",
    "+1",
    " 1",
    "1 ",
    "1.5",
    "1e3",
    "0x10",
    "inf",
    "-inf",
    "+inf",
    "nan",
    "-nan",
    "1e308",
    "1e400",
    "-1e400",
    "5e-324",
    "1e-400",
    "",
    "x",
];

/// Words with a meaning to some command.
const OPTIONS: &[&str] = &[
    "STORE",
    "GET",
    "BY",
    "LIMIT",
    "COUNT",
    "MATCH",
    "ASC",
    "DESC",
    "ALPHA",
    "KEYS",
    "NX",
    "XX",
    "GT",
    "LT",
    "CH",
    "INCR",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "KEEPTTL",
    "PERSIST",
    "WITHSCORES",
    "WITHSCORE",
    "WITHVALUES",
    "WEIGHTS",
    "AGGREGATE",
    "SUM",
    "MIN",
    "MAX",
    "REPLACE",
    "ABSTTL",
    "IDLETIME",
    "FREQ",
    "REV",
    "BYSCORE",
    "BYLEX",
    "LEFT",
    "RIGHT",
    "BEFORE",
    "AFTER",
    "RANK",
    "MAXLEN",
    "TYPE",
    "FIELDS",
    "FNX",
    "FXX",
    "IDX",
    "LEN",
    "MINMATCHLEN",
    "WITHMATCHLEN",
    "BIT",
    "BYTE",
    "AND",
    "NOT",
    "XOR",
    "OR",
    "OVERFLOW",
    "WRAP",
    "SAT",
    "FAIL",
    "SET",
    "INCRBY",
    "STABLE",
    "NOVALUES",
    "COPY",
    "AUTH",
    "DB",
    "ASYNC",
    "SYNC",
    "HELP",
    "RESET",
    "LIST",
    "NOSAVE",
];

/// The kinds of keys: the first letter of a name gives the type.
pub const KINDS: &[u8] = b"slhtzr";

pub fn key(rng: &mut Rng, kind: Option<u8>) -> Word {
    if rng.percent(3) {
        // A row of the demonstration's table, which has a thousand.
        return format!("item:{}", rng.below(1100)).into_bytes();
    }
    let kind = kind.unwrap_or_else(|| *rng.pick(KINDS));
    // The last of each kind is large (see `furnish` in fuzz.rs).
    format!("{}{}", kind as char, rng.below(5)).into_bytes()
}

pub fn number(rng: &mut Rng) -> Word {
    match rng.below(10) {
        0..=5 => rng.integer(-3, 12).to_string().into_bytes(),
        6 => rng.integer(0, 100_000).to_string().into_bytes(),
        _ => rng.pick(NUMBERS).as_bytes().to_vec(),
    }
}

/// Any word at all.
pub fn hostile(rng: &mut Rng) -> Word {
    match rng.below(24) {
        0 => Vec::new(),
        1 => vec![0],
        2 => b"\r\n".to_vec(),
        3 => b"a\0b\r\n*1\r\n".to_vec(),
        4 => (0..rng.below(40)).map(|_| rng.next() as u8).collect(),
        5 => b"*".to_vec(),
        6 => rng
            .pick(&["[", "[a", "[^", "\\", "[a-", "**********a", "{", "}{", "%", "(", "((", "[]", "?"])
            .as_bytes()
            .to_vec(),
        7 => vec![b'a'; rng.between(60, 70)],
        8 => vec![b'x'; *rng.pick(&[127, 128, 255, 256, 1000, 4096, 16_384])],
        9 if rng.percent(20) => vec![b'y'; *rng.pick(&[65_535, 65_537, 262_145, 1_000_000])],
        10..=13 => rng.pick(OPTIONS).as_bytes().to_vec(),
        14..=18 => rng.pick(NUMBERS).as_bytes().to_vec(),
        19 => b"\xff\xfe\x80".to_vec(),
        20 => format!("{}{}", rng.pick(&["(", "[", "-", "+", "#", ">", "="]), rng.below(9)).into_bytes(),
        21 => b"*->*".to_vec(),
        _ => key(rng, None),
    }
}

pub fn value(rng: &mut Rng) -> Word {
    match rng.below(12) {
        0..=5 => format!("v{}", rng.below(20)).into_bytes(),
        6..=8 => rng.integer(-5, 300).to_string().into_bytes(),
        9 => vec![b'z'; rng.between(20, 3000)],
        _ => hostile(rng),
    }
}

/// A payload of DUMP, sound or damaged.
pub fn payload(rng: &mut Rng) -> Word {
    let sound: &[&[u8]] = &[
        b"\x00\x03abc\x0b\x00\x15\xac\x13\x95\x10\x90\x71\x80",
        b"\x00\xc0\x0a\x0b\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x12\x01\x02\x0c\x0c\x00\x00\x00\x02\x00\x81a\x02\x81b\x02\xff\x0b\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    ];
    let mut payload = rng.pick(sound).to_vec();
    for _ in 0..rng.below(3) {
        let at = rng.below(payload.len());
        payload[at] = rng.next() as u8;
    }
    payload
}
