//! Counts replies without keeping any byte of them, for clients that only wait for the end.

/// Most bytes kept of the first error.
const ERROR_MAX: usize = 200;

/// A count of whole replies in a stream of bytes, however it is cut into reads. It trusts the stream: bytes
/// that are no RESP make wrong counts, not errors.
#[derive(Debug, Default)]
pub struct FrameCount {
    /// Values missing until the present top-level reply is complete; 0 between replies.
    pending: u64,
    /// Bytes of a bulk body (and its line end) to be skipped.
    skip: u64,
    /// Type byte of the line being read, or 0 when a new one begins.
    kind: u8,
    number: u64,
    negative: bool,
    errors: u64,
    first_error: Vec<u8>,
}

impl FrameCount {
    /// Takes the next bytes of the stream and returns the number of top-level replies they complete. O(1) for
    /// the body of a bulk, O(bytes) for lines.
    pub fn feed(&mut self, bytes: &[u8]) -> u64 {
        let mut complete = 0;
        let mut at = 0;
        while at < bytes.len() {
            if self.skip > 0 {
                let step = self.skip.min((bytes.len() - at) as u64);
                self.skip -= step;
                at += step as usize;
                if self.skip == 0 {
                    complete += self.close();
                }
                continue;
            }
            let byte = bytes[at];
            at += 1;
            if self.kind == 0 {
                self.open(byte);
            } else if byte == b'\n' {
                complete += self.end_line();
            } else if byte.is_ascii_digit() && self.kind != b'-' {
                self.number = self.number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            } else if self.kind == b'-' {
                if self.errors == 1 && byte != b'\r' && self.first_error.len() < ERROR_MAX {
                    self.first_error.push(byte);
                }
            } else if byte == b'-' {
                self.negative = true;
            }
        }
        complete
    }

    /// The number of error lines seen, also inside of replies, and the beginning of the first one's text.
    pub fn errors(&self) -> (u64, String) {
        (self.errors, String::from_utf8_lossy(&self.first_error).into_owned())
    }

    /// Whether the stream is between two replies.
    pub fn at_rest(&self) -> bool {
        self.pending == 0 && self.kind == 0
    }

    fn open(&mut self, kind: u8) {
        self.pending = self.pending.max(1);
        self.kind = kind;
        self.number = 0;
        self.negative = false;
        self.errors += u64::from(kind == b'-');
    }

    fn end_line(&mut self) -> u64 {
        let more = match std::mem::take(&mut self.kind) {
            b'$' | b'!' | b'=' if !self.negative => {
                self.skip = self.number.saturating_add(2);
                return 0;
            }
            b'*' | b'~' | b'>' if !self.negative => self.number,
            b'%' => self.number.saturating_mul(2),
            b'|' => self.number.saturating_mul(2).saturating_add(1),
            _ => 0,
        };
        self.pending = self.pending.saturating_add(more);
        self.close()
    }

    fn close(&mut self) -> u64 {
        self.pending -= 1;
        u64::from(self.pending == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[u8] =
        b"+OK\r\n:-12\r\n$3\r\nabc\r\n$-1\r\n*-1\r\n*2\r\n$0\r\n\r\n*1\r\n:5\r\n-ERR no 5\r\n*0\r\n|1\r\n+a\r\n+b\r\n:1\r\n";

    #[test]
    fn replies_are_counted_however_they_are_cut() {
        for step in 1..REPLIES.len() {
            let mut count = FrameCount::default();
            let complete: u64 = REPLIES.chunks(step).map(|chunk| count.feed(chunk)).sum();
            assert_eq!(complete, 9, "in chunks of {step}");
            assert_eq!(count.errors(), (1, "ERR no 5".to_owned()));
            assert!(count.at_rest());
        }
    }

    #[test]
    fn announced_lengths_that_nobody_can_send_do_no_harm() {
        for wire in [
            &b"$99999999999999999999\r\nx"[..],
            b"*2\r\n*18446744073709551615\r\n%9223372036854775808\r\n:1\r\n",
        ] {
            let mut count = FrameCount::default();
            assert_eq!(count.feed(wire), 0);
            assert!(!count.at_rest());
        }
    }
}
