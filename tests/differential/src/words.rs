//! Generators for the lower-case words of the command tables: `key`, `val`, `count` ...
//!
//! Pools are small, so that commands meet the same keys, members and wrong types often. Every word has common
//! values that make commands succeed and rare ones that must be refused.
//!
//! Two limits keep runs fast and replies comparable. A server never allocates more than a few megabytes: no
//! bit or byte offset between a million and 4294967296, no random count below -1000. No time to live runs out
//! during a run, unless a scene waits for it.

use support::rng::Rng;

/// A generated argument for `word`, or `None` if there is no such word.
pub fn generate(word: &str, rng: &mut Rng) -> Option<Vec<u8>> {
    Some(match word {
        "key" => any_key(rng),
        "str" => typed_key(rng, 's'),
        "list" => typed_key(rng, 'l'),
        "hash" => typed_key(rng, 'h'),
        "set" => typed_key(rng, 't'),
        "zset" => typed_key(rng, 'z'),
        "hll" => format!("p{}", rng.below(4)).into_bytes(),
        "strm" => typed_key(rng, 'q'),
        "sid" => stream_id(rng),
        "eid" => new_stream_id(rng),
        "sbound" => stream_bound(rng),
        "group" => format!("g{}", rng.below(3)).into_bytes(),
        "consumer" => format!("c{}", rng.below(4)).into_bytes(),
        "lexset" => lex_key(rng),
        "geo" => geo_key(rng),
        "cell" => rare(rng, 5, &["inf", "-inf", "-5", "1e300", "x", "4503599627370496"])
            .unwrap_or_else(|| (rng.next() >> 12).to_string().into_bytes()),
        "lon" => degrees(rng, 12, 17, &["180", "-180", "181", "-180.1", "0", "x", "", "nan", "1e300"], 180),
        "lat" => degrees(rng, 35, 39, &["85.05112878", "-85.05112878", "85.06", "-90", "0", "x", "inf"], 85),
        "nearlon" => format!("1{}.{:06}", rng.integer(2, 7), rng.below(1_000_000)).into_bytes(),
        "nearlat" => format!("3{}.{:06}", rng.integer(5, 9), rng.below(1_000_000)).into_bytes(),
        "radius" => radius(rng),
        "unit" => rare(rng, 4, &["", "cm", "k"]).unwrap_or_else(|| {
            rng.pick(&["m", "km", "km", "km", "ft", "mi", "KM", "Mi"]).as_bytes().to_vec()
        }),
        "newkey" => format!("n{}", rng.below(4)).into_bytes(),
        "val" => value(rng),
        "short" => format!("v{}", rng.below(6)).into_bytes(),
        "int" => integer(rng),
        "float" => float(rng),
        "member" | "field" => member(rng),
        "idx" => index(rng),
        "pos" => {
            rare(rng, 4, &["x", "", "1.5"]).unwrap_or_else(|| rng.integer(-9, 9).to_string().into_bytes())
        }
        "count" => count(rng),
        "rcount" => rng.integer(-12, 12).to_string().into_bytes(),
        "limit" => rng.integer(-2, 8).to_string().into_bytes(),
        "skip" => rare(rng, 4, &["x", ""]).unwrap_or_else(|| rng.below(6).to_string().into_bytes()),
        "score" => score(rng),
        "oddbound" => rng.pick(&["0x10", "(0x10", " 1", "( 1", "1 ", "(1 "]).as_bytes().to_vec(),
        "min" | "max" => score_bound(rng),
        "lex" => lex_bound(rng),
        "weight" => rng.pick(&["1", "2", "-1", "0", "0.5", "inf", "-inf", "nan", "x"]).as_bytes().to_vec(),
        "secs" => seconds(rng),
        "msecs" => milliseconds(rng),
        "at" => timestamp(rng, 1),
        "pat" => timestamp(rng, 1000),
        "bit" => rare(rng, 5, &["2", "-1", "x"]).unwrap_or_else(|| rng.below(2).to_string().into_bytes()),
        "bitoff" => bit_offset(rng),
        "offset" => byte_offset(rng),
        "bftype" => bitfield_type(rng),
        "bfoff" => bitfield_offset(rng),
        "glob" => rng.pick(GLOBS).as_bytes().to_vec(),
        "timeout" => rng.pick(&["0.001", "0.003", "0.01", "-1", "x", "1e-3", ""]).as_bytes().to_vec(),
        "db" => rare(rng, 10, &["-1", "16", "15", "x", "", "1.0"])
            .unwrap_or_else(|| rng.below(3).to_string().into_bytes()),
        "cursor" => rng.pick(&["x", "1 ", "18446744073709551616", "1.5"]).as_bytes().to_vec(),
        "channel" => rng.pick(&["c0", "c1", "c2", "news.a", "news.b", ""]).as_bytes().to_vec(),
        "pattern" => rng.pick(&["c*", "c?", "news.*", "*", "c[01]", "x"]).as_bytes().to_vec(),
        "name" => rng.pick(&["n1", "n2", "a b", "", "x\ny", "worker-1"]).as_bytes().to_vec(),
        "function" => rng.pick(&["f_get", "f_set", "f_ro", "f_err", "nosuch"]).as_bytes().to_vec(),
        "library" => rng.pick(&["lib1", "lib2", "nosuch", ""]).as_bytes().to_vec(),
        "payload" => rng.pick(PAYLOADS).to_vec(),
        "auser" => format!("u{}", rng.below(3)).into_bytes(),
        "aclrule" => rng.pick(ACL_RULES).as_bytes().to_vec(),
        "acldb" => rng.pick(ACL_DATABASES).as_bytes().to_vec(),
        "aclselector" => acl_selector(rng),
        "junk" => junk(rng),
        _ => return None,
    })
}

/// Rules about databases, most of them right.
const ACL_DATABASES: &[&str] = &[
    "db=0",
    "db=1",
    "db=0,1",
    "DB=1,0,2",
    "db=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "alldbs",
    "resetdbs",
    "db=",
    "db=x",
    "db=-1",
    "db=0,",
    "db=+1",
    "db=00",
    "db=99999999999",
    "db=2147483647",
];

/// Rules of users, most of them right.
const ACL_RULES: &[&str] = &[
    "on",
    "off",
    "nopass",
    "resetpass",
    "reset",
    "allkeys",
    "resetkeys",
    "allchannels",
    "resetchannels",
    "allcommands",
    "nocommands",
    "clearselectors",
    "sanitize-payload",
    "skip-sanitize-payload",
    ">pw",
    ">other",
    "<pw",
    "<other",
    "#abc",
    "!abc",
    "~*",
    "~s*",
    "~s1",
    "%R~s2",
    "%W~s2",
    "%RW~l*",
    "%R~z*",
    "%W~z*",
    "%R~*",
    "%X~a",
    "%RR~a",
    "%",
    "%R",
    "~",
    "&*",
    "&c*",
    "&c0",
    "&news.?",
    "&",
    "+@all",
    "-@all",
    "+@read",
    "-@read",
    "+@write",
    "-@write",
    "+@dangerous",
    "-@dangerous",
    "+@pubsub",
    "-@keyspace",
    "+@nope",
    "+get",
    "-get",
    "+GET",
    "+set",
    "-set",
    "+mget",
    "+mset",
    "+config",
    "-config",
    "+config|get",
    "-config|get",
    "+config|nope",
    "+select|0",
    "+select|1",
    "-select",
    "+select",
    "+publish",
    "+subscribe",
    "+psubscribe",
    "+sort",
    "+eval",
    "+nope",
    "-nope",
    "+get|x",
    "+config|get|x",
    "-select|0",
    "nonsense",
    "ON",
    "AllKeys",
    "+@READ",
];

/// The words between two parentheses, as one word.
fn acl_selector(rng: &mut Rng) -> Vec<u8> {
    let rules: Vec<&str> = (0..rng.below(4)).map(|_| *rng.pick(ACL_RULES)).collect();
    format!("({})", rules.join(" ")).into_bytes()
}

/// A key of any type, of no type, or an odd one.
fn any_key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(40) {
        0 => Vec::new(),
        1 => b"bin\x00\xff\r\nkey".to_vec(),
        2 => b"missing".to_vec(),
        3 => b"12345".to_vec(),
        n => format!("{}{}", ['s', 'l', 'h', 't', 'z'][n % 5], rng.below(5)).into_bytes(),
    }
}

fn typed_key(rng: &mut Rng, kind: char) -> Vec<u8> {
    if rng.percent(8) { any_key(rng) } else { format!("{kind}{}", rng.below(5)).into_bytes() }
}

/// A longitude or latitude: mostly in a small part of the earth, at times anywhere, seldom at an edge or wrong.
/// Few are equal, as members at the same distance have no order among them.
fn degrees(rng: &mut Rng, low: i64, high: i64, odd: &[&str], all: i64) -> Vec<u8> {
    rare(rng, 2, odd).unwrap_or_else(|| {
        let (low, high) = if rng.percent(25) { (1 - all, all - 1) } else { (low, high) };
        format!("{}.{:06}", rng.integer(low, high), rng.below(1_000_000)).into_bytes()
    })
}

fn radius(rng: &mut Rng) -> Vec<u8> {
    rare(rng, 4, &["0", "-1", "x", "", "inf", "nan", "1e6"]).unwrap_or_else(|| match rng.below(4) {
        0 => rng.below(50_000).to_string().into_bytes(),
        1 => format!("{}.{}", rng.below(20), rng.below(1000)).into_bytes(),
        _ => rng.below(700).to_string().into_bytes(),
    })
}

/// A sorted set whose scores are all equal, as lexicographic commands promise nothing for others. `y0` never
/// exists; `y1`, if it exists, is a string.
fn lex_key(rng: &mut Rng) -> Vec<u8> {
    let kind = if rng.percent(5) { 'y' } else { 'x' };
    format!("{kind}{}", rng.below(if kind == 'y' { 2 } else { 4 })).into_bytes()
}

/// An ID of a stream's entry: small ones are common, so that streams grow.
fn stream_id(rng: &mut Rng) -> Vec<u8> {
    const ODD: &[&str] =
        &["x", "", "-", "+", "1-", "-1", "1-2-3", "0-0", "18446744073709551615", " 1", "01-1"];
    if let Some(odd) = rare(rng, 6, ODD) {
        return odd;
    }
    let most = rng.below(80) + 1;
    let ms = rng.below(most);
    if rng.percent(30) { ms.to_string() } else { format!("{ms}-{}", rng.below(4)) }.into_bytes()
}

/// An ID for a new entry. The time of day is never one: it differs between servers.
fn new_stream_id(rng: &mut Rng) -> Vec<u8> {
    let most = rng.below(80) + 1;
    if rng.percent(30) { format!("{}-*", rng.below(most)).into_bytes() } else { stream_id(rng) }
}

fn stream_bound(rng: &mut Rng) -> Vec<u8> {
    match rng.below(10) {
        0..=2 => b"-".to_vec(),
        3..=5 => b"+".to_vec(),
        6 => [b"(", &stream_id(rng)[..]].concat(),
        _ => stream_id(rng),
    }
}

/// A sorted set of places, few of which are equal, as their order among each other is not promised. `s0` and
/// `l0` are of other types.
fn geo_key(rng: &mut Rng) -> Vec<u8> {
    rare(rng, 5, &["s0", "l0", "missing"]).unwrap_or_else(|| format!("g{}", rng.below(5)).into_bytes())
}

fn rare(rng: &mut Rng, percent: usize, odd: &[&str]) -> Option<Vec<u8>> {
    rng.percent(percent).then(|| rng.pick(odd).as_bytes().to_vec())
}

fn value(rng: &mut Rng) -> Vec<u8> {
    match rng.below(20) {
        0 => Vec::new(),
        1..=4 => rng.integer(-20, 200).to_string().into_bytes(),
        5 => integer(rng),
        6 | 7 => float(rng),
        8 => (0..rng.below(40)).map(|_| rng.next() as u8).collect(),
        9 => binary_or_text(rng, 43, 46),
        10 => binary_or_text(rng, 60, 70),
        11 if rng.percent(20) => binary_or_text(rng, 500, 20_000),
        12 => b"the quick brown fox".to_vec(),
        13 => b"\xff\x00\x0f\xf0".to_vec(),
        _ => format!("v{}", rng.below(10)).into_bytes(),
    }
}

fn binary_or_text(rng: &mut Rng, low: i64, high: i64) -> Vec<u8> {
    let length = rng.integer(low, high) as usize;
    let letter = b'a' + rng.below(4) as u8;
    vec![letter; length]
}

/// Numbers at and beyond every edge, and texts that are almost numbers.
pub const ODD_INTEGERS: &[&str] = &[
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "4294967296",
    "-4294967296",
    "+1",
    "01",
    "-0",
    " 1",
    "1 ",
    "1.5",
    "1e3",
    "abc",
    "",
    "0x10",
    "--1",
    "99999999999999999999999",
];

fn integer(rng: &mut Rng) -> Vec<u8> {
    match rng.below(10) {
        0 | 1 => rng.pick(ODD_INTEGERS).as_bytes().to_vec(),
        2 => (rng.next() as i64).to_string().into_bytes(),
        _ => rng.integer(-30, 30).to_string().into_bytes(),
    }
}

const ODD_FLOATS: &[&str] = &[
    "inf", "-inf", "+inf", "nan", "-nan", "infinity", "Inf", "1e400", "-1e400", "1e-400", "0x1p3", "0x10",
    "", " 1.5", "1.5 ", "1.5x", "abc", "1e308", "1e17", "-0", "-0.0", ".5", "5.", "1e", "3.0e3", "1_0",
];

fn float(rng: &mut Rng) -> Vec<u8> {
    match rng.below(8) {
        0 => rng.pick(ODD_FLOATS).as_bytes().to_vec(),
        1 => rng.integer(-1000, 1000).to_string().into_bytes(),
        2 => format!("{}e{}", rng.integer(-99, 99), rng.integer(-12, 12)).into_bytes(),
        3 => format!("{}.{:06}", rng.integer(-99_999, 99_999), rng.below(1_000_000)).into_bytes(),
        _ => {
            format!("{}.{}", rng.integer(-20, 20), rng.pick(&["0", "1", "25", "5", "125", "3"])).into_bytes()
        }
    }
}

fn member(rng: &mut Rng) -> Vec<u8> {
    match rng.below(24) {
        0 => value(rng),
        1 => Vec::new(),
        2 => integer(rng),
        3..=10 => rng.integer(-3, 15).to_string().into_bytes(),
        _ => format!("{}{}", rng.pick(&["a", "b", "m"]), rng.below(8)).into_bytes(),
    }
}

fn index(rng: &mut Rng) -> Vec<u8> {
    if rng.percent(6) { integer(rng) } else { rng.integer(-9, 9).to_string().into_bytes() }
}

fn count(rng: &mut Rng) -> Vec<u8> {
    if rng.percent(6) { integer(rng) } else { rng.integer(-3, 9).to_string().into_bytes() }
}

fn score(rng: &mut Rng) -> Vec<u8> {
    match rng.below(10) {
        0 => float(rng),
        1 => rng.pick(&["inf", "-inf", "-0", "0"]).as_bytes().to_vec(),
        2 => integer(rng),
        _ => rng.integer(-5, 12).to_string().into_bytes(),
    }
}

fn score_bound(rng: &mut Rng) -> Vec<u8> {
    let number = |rng: &mut Rng| match rng.below(4) {
        0 => format!("{}.5", rng.integer(-5, 12)).into_bytes(),
        1 if rng.percent(20) => {
            rng.pick(&["1e3", "-0", "1e400", "9223372036854775807", "", "abc", "1.5x"]).as_bytes().to_vec()
        }
        _ => rng.integer(-5, 12).to_string().into_bytes(),
    };
    match rng.below(10) {
        0 | 1 => b"-inf".to_vec(),
        2 | 3 => b"+inf".to_vec(),
        4 | 5 => [b"(".to_vec(), number(rng)].concat(),
        6 if rng.percent(30) => rng.pick(&["(", "((1", "[1", "(inf", "(-inf", "nan"]).as_bytes().to_vec(),
        _ => number(rng),
    }
}

fn lex_bound(rng: &mut Rng) -> Vec<u8> {
    match rng.below(12) {
        0..=2 => b"-".to_vec(),
        3..=5 => b"+".to_vec(),
        6..=8 => [b"[".to_vec(), member(rng)].concat(),
        9 | 10 => [b"(".to_vec(), member(rng)].concat(),
        _ => rng.pick(&["a", "", "[", "(", "++", "-1"]).as_bytes().to_vec(),
    }
}

/// A time far enough in the future not to expire. Times are spread so widely that GT and LT decide the same
/// on both servers.
fn seconds(rng: &mut Rng) -> Vec<u8> {
    rare(
        rng,
        12,
        &[
            "0",
            "-1",
            "-100",
            "9223372036854775807",
            "9223372036854776",
            "-9223372036854775808",
            "x",
            "",
            "1.5",
        ],
    )
    .unwrap_or_else(|| rng.integer(1_000, 100_000_000).to_string().into_bytes())
}

fn milliseconds(rng: &mut Rng) -> Vec<u8> {
    rare(rng, 12, &["0", "-1", "9223372036854775807", "9223372036854770000", "-9223372036854775808", "x", ""])
        .unwrap_or_else(|| rng.integer(1_000_000, 100_000_000_000).to_string().into_bytes())
}

fn timestamp(rng: &mut Rng, unit: i64) -> Vec<u8> {
    rare(
        rng,
        15,
        &["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854776", "x", ""],
    )
    .unwrap_or_else(|| (rng.integer(33_177_117_420, 33_177_117_430) * unit).to_string().into_bytes())
}

fn bit_offset(rng: &mut Rng) -> Vec<u8> {
    match rng.below(20) {
        0 => rng.pick(&["-1", "4294967296", "x", "", "9223372036854775807", "1.5"]).as_bytes().to_vec(),
        1 => rng.integer(0, 900_000).to_string().into_bytes(),
        2..=5 => rng.integer(0, 3000).to_string().into_bytes(),
        _ => rng.integer(0, 70).to_string().into_bytes(),
    }
}

fn byte_offset(rng: &mut Rng) -> Vec<u8> {
    match rng.below(20) {
        0 => rng.pick(&["-1", "4294967296", "x", "", "9223372036854775807", "536870912"]).as_bytes().to_vec(),
        1 => rng.integer(0, 100_000).to_string().into_bytes(),
        2 => rng.integer(0, 3000).to_string().into_bytes(),
        _ => rng.integer(0, 30).to_string().into_bytes(),
    }
}

fn bitfield_type(rng: &mut Rng) -> Vec<u8> {
    rare(rng, 6, &["u64", "i65", "u0", "i0", "x8", "u", "8", "", "u-1"]).unwrap_or_else(|| {
        rng.pick(&["u8", "i8", "u1", "i1", "u4", "i16", "u16", "u32", "i32", "u63", "i64", "i5", "u13"])
            .as_bytes()
            .to_vec()
    })
}

fn bitfield_offset(rng: &mut Rng) -> Vec<u8> {
    let hash = if rng.percent(40) { "#" } else { "" };
    rare(rng, 6, &["-1", "#-1", "x", "", "#", "#4294967296", "4294967296", "9223372036854775807"])
        .unwrap_or_else(|| format!("{hash}{}", rng.below(60)).into_bytes())
}

const GLOBS: &[&str] = &[
    "*", "s*", "?1", "[sl]*", "[^s]*", "l[0-2]", "m?", "a*", "*1", "nosuch", "", "\\*", "[a-", "**",
    "t[2-0]", "*[0-9]*", "h\\0", "[]", "?", "*\u{0}*", "b*[!1]",
];

/// An argument that belongs nowhere.
pub fn junk(rng: &mut Rng) -> Vec<u8> {
    match rng.below(6) {
        0 => rng.pick(&ODD_INTEGERS[..10]).as_bytes().to_vec(),
        1 => rng.pick(&["inf", "-inf", "nan", "1e400", "abc", "3.0e3", ".5"]).as_bytes().to_vec(),
        2 => any_key(rng),
        3 => rng
            .pick(&["NX", "XX", "GT", "LT", "CH", "WITHSCORES", "LIMIT", "COUNT", "GET", "EX", "BY"])
            .as_bytes()
            .to_vec(),
        4 => b"\xff\xfe\r\nx".to_vec(),
        _ => member(rng),
    }
}

/// Serialised values: a text, a number, a list, a set, a hash, a sorted set, an old intset. Broken ones: an
/// unknown type, a repeated member, nothing, too little, a future version, a wrong checksum, half a footer.
const PAYLOADS: &[&[u8]] = &[
    b"\x00\x02hi\x08\x00\x16FsW'(\x91,",
    b"\x00\xc0\x07\x06\x00\xe2  \x22v\xfe\xf2\x01",
    b"\x01\x02\x01a\xc0\x05\x08\x00\xfe\x8e\x9b6Y\xd61\xaf",
    b"\x02\x02\x01a\xc0\x05\x09\x00[\x9d\x97\x1e\x9aI\xffn",
    b"\x04\x01\x01f\x01v\x08\x00\x14\xdf\xaf\xe9\x18\x9f\x84\xc4",
    b"\x05\x01\x01m\x00\x00\x00\x00\x00\x00\xf8?\x08\x00?\xc3f\x823icG",
    b"\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x01\x00\x02\x00\x06\x00\xf9\x94P1\xc1\xbe\x1c\xbd",
    b"c\x01\x08\x00l\x9c\xda\xcd\xaa\xad\xbcT",
    b"\x02\x02\x01a\x01a\x08\x00\xee\x93\x9a\x90k\xcf\xd8\x02",
    b"\x01\x00\x08\x00\xe2\xd5\xc9s\xc5\x0e\xc9n",
    b"\x01\x09\x01a\x08\x00\xd7\xe6\x1f\xa9+\xd3\x10\xd9",
    b"\x00\x02hiO\x00\x85\xa0\x99\x92\xaf[*-",
    b"\x00\x02hi\x08\x00\x16FsW'(\x91!",
    b"\x00\x02hi\x08\x00\x16Fs",
    b"",
    b"x",
];
