//! Hostile text: a short seeded run in every `make test`. `fuzz/` runs the same checks for as long as wanted.

mod checks;

/// xorshift, so that every run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * end as u128) >> 64) as usize
    }

    /// Up to `parts` random pieces of `alphabet` in a row.
    fn text(&mut self, alphabet: &[&str], parts: usize) -> Vec<u8> {
        (0..self.below(parts + 1)).flat_map(|_| alphabet[self.below(alphabet.len())].bytes()).collect()
    }
}

#[test]
fn any_number_is_taken_or_refused() {
    let alphabet = [
        "0",
        "1",
        "9",
        "5",
        "-",
        "+",
        ".",
        "e",
        "E",
        "e-",
        "0x",
        "p",
        "p-",
        "a",
        "f",
        "inf",
        "nan",
        "infinity",
        " ",
        "9223372036854775807",
        "18446744073709551615",
        "00000000000000000000",
        "308",
        "324",
        "4932",
        "1074",
        "x",
        "\0",
    ];
    let mut random = Random(11);
    for _ in 0..200_000 {
        checks::num(&random.text(&alphabet, 6));
    }
}

#[test]
fn any_pattern_gets_a_verdict() {
    let alphabet = ["a", "b", "A", "*", "?", "[", "]", "^", "-", "\\", "[ab]", "[^a]", "[a-c]", "\\*"];
    let mut random = Random(13);
    for _ in 0..100_000 {
        let pattern = random.text(&alphabet, 7);
        let mut data = vec![pattern.len() as u8 | if random.below(4) == 0 { 0x80 } else { 0 }];
        data.extend_from_slice(&pattern);
        data.extend_from_slice(&random.text(&["a", "b", "c", "A", "]", "*", "-", "^", "\\"], 8));
        checks::glob(&data);
    }
}
