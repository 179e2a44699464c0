//! Requests as bytes.

pub use dial::{put_count, put_word};

/// Appends one command. O(bytes).
pub fn command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    dial::put_request(out, parts);
}

/// Encodes one command written as words separated by spaces.
pub fn line(words: &str) -> Vec<u8> {
    let mut out = Vec::new();
    command(&mut out, &words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    out
}

pub fn decimal(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
