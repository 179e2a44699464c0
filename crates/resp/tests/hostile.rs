//! Hostile bytes: a short seeded run in every `make test`. `fuzz/` runs the same checks for as long as
//! wanted.

mod checks;

/// Whole and broken streams as starting points.
const QUERIES: &[&[u8]] = &[
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$3\r\nGET\r\n$0\r\n\r\nPING\r\n*0\r\n*-1\r\n\r\n",
    b"SET k \"a\\x00\\n b\" 'it\\'s'\r\nGET k\nECHO \"\\\\\"\r\n",
    b"*1\r\n$16\r\n0123456789abcdef\r\n*12\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"*4\r\n$4\r\nMSET\r\n$100\r\n",
];
const FRAMES: &[&[u8]] = &[
    b"*3\r\n:1\r\n$3\r\nabc\r\n*2\r\n+OK\r\n-ERR no\r\n",
    b"%2\r\n+a\r\n,1.5\r\n+b\r\n~2\r\n#t\r\n_\r\n",
    b"|1\r\n+ttl\r\n:3600\r\n>2\r\n=7\r\ntxt:abc\r\n(123456789012345678901234567890\r\n",
    b"!9\r\nERR a\r\nb\r\n*-1\r\n$-1\r\n,inf\r\n,-1e-7\r\n",
    b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n%1\r\n*0\r\n~0\r\n",
];
const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\r",
    b"\n",
    b"*",
    b"$",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*1\r\n",
    b"$1\r\n",
    b"$0\r\n\r\n",
    b"0",
    b"9",
    b"-",
    b"\"",
    b"'",
    b"\\x",
    b"\\",
    b" ",
    b"\0",
    b"%1\r\n",
    b"|1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",nan\r\n",
    b"9223372036854775807",
    b"18446744073709551616",
    b"1048577",
    b"536870912",
    b"4294967295",
    b"\xff",
];

/// xorshift, so that every run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * end as u128) >> 64) as usize
    }
}

/// A few edits: replace, insert, remove or repeat some bytes.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(9)).min(bytes.len());
        match random.below(4) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes[at..end].iter_mut().take(1).for_each(|byte| *byte = random.below(256) as u8),
            2 => drop(bytes.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied())),
            _ => bytes.extend_from_within(at..end),
        }
    }
}

fn run(seeds: &[&[u8]], rounds: usize, check: fn(&[u8])) {
    let mut random = Random(17);
    for round in 0..rounds {
        let mut bytes = seeds[random.below(seeds.len())].to_vec();
        if round % 8 == 0 {
            bytes = (0..random.below(64)).map(|_| random.below(256) as u8).collect();
        }
        mutate(&mut bytes, &mut random);
        let caught = std::panic::catch_unwind(|| check(&bytes));
        assert!(caught.is_ok(), "round {round}: {}", bytes.escape_ascii());
    }
}

#[test]
fn any_query_is_parsed_or_refused() {
    let seeds: Vec<Vec<u8>> =
        QUERIES.iter().flat_map(|seed| [[&[0, 6], *seed].concat(), [&[0x33, 0], *seed].concat()]).collect();
    run(&seeds.iter().map(Vec::as_slice).collect::<Vec<_>>(), 200_000, checks::query);
}

#[test]
fn any_reply_is_read_or_refused() {
    run(FRAMES, 200_000, checks::frame);
}
