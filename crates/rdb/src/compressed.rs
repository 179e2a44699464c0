//! Compressed texts, where that makes them shorter: the body of a long string, and elements of collections.
//!
//! ```text
//! text, piece by piece ─► a block ─► packed   type ─► COMPRESSED ─► packed length ─► length ─► packed blocks
//! ```
//!
//! - P1: the packed length is known last. It is written as wide as the unpacked length, which is known first
//!   and larger.
//!
//! Memory: the packed bytes so far, and less than 100 KB, for a text of any length.

use crate::lzf::{BLOCK, Packer};
use crate::string::{COMPRESSED, put_len_as_wide};
use crate::{put_len, types};

/// Shorter texts are not worth compressing.
const LEN_MIN: usize = 21;
/// At least this many bytes must be saved.
const GAIN_MIN: usize = 4;
/// The position of the packed length: behind the type and the mark.
const PACKED_LEN_AT: usize = 2;

/// Whether an element of `len` bytes is compressed if that makes it shorter. One block is the limit, so that
/// it takes no long time. O(1).
pub fn is_compressed(len: usize) -> bool {
    (LEN_MIN..=BLOCK).contains(&len)
}

/// Compresses elements one after the other, and reuses its memory.
#[derive(Default)]
pub(crate) struct Shortener {
    packer: Packer,
    packed: Vec<u8>,
}

impl Shortener {
    /// Appends a text in compressed form. False, and nothing appended, if that saves too little. O(length),
    /// under 500 µs.
    pub(crate) fn put(&mut self, text: &[u8], out: &mut Vec<u8>) -> bool {
        if !is_compressed(text.len()) {
            return false;
        }
        self.packed.clear();
        self.packer.fit(text.len());
        self.packer.pack(text, &mut self.packed);
        if self.packed.len() + GAIN_MIN > text.len() {
            return false;
        }
        out.push(COMPRESSED);
        put_len(out, self.packed.len() as u64);
        put_len(out, text.len() as u64);
        out.extend_from_slice(&self.packed);
        true
    }
}

/// A string that is compressed piece by piece. See the module.
pub struct CompressedString {
    len: usize,
    /// Bytes that came and are not packed yet.
    block: Vec<u8>,
    packer: Packer,
    out: Vec<u8>,
    packed_from: usize,
}

impl CompressedString {
    /// For a text of `len` bytes. `None` if it is too short to gain anything.
    pub fn new(len: usize) -> Option<CompressedString> {
        if len < LEN_MIN {
            return None;
        }
        let mut out = vec![types::STRING, COMPRESSED];
        put_len(&mut out, len as u64); // a place for the packed length
        put_len(&mut out, len as u64);
        let packed_from = out.len();
        let block = Vec::with_capacity(len.min(BLOCK));
        Some(CompressedString { len, block, packer: Packer::new(len), out, packed_from })
    }

    /// Takes the next bytes of the text. False as soon as it is clear that nothing is gained. O(bytes), and
    /// under 500 µs when a block is full.
    pub fn push(&mut self, mut piece: &[u8]) -> bool {
        while !piece.is_empty() && self.gains() {
            let (now, later) = piece.split_at(piece.len().min(BLOCK - self.block.len()));
            self.block.extend_from_slice(now);
            piece = later;
            if self.block.len() == BLOCK {
                self.pack();
            }
        }
        self.gains()
    }

    fn pack(&mut self) {
        self.packer.pack(&self.block, &mut self.out);
        self.block.clear();
    }

    fn packed_len(&self) -> usize {
        self.out.len() - self.packed_from
    }

    fn gains(&self) -> bool {
        self.packed_len() + GAIN_MIN <= self.len
    }

    /// The body, when the whole text has come. `None` if nothing was gained.
    pub fn into_body(mut self) -> Option<Vec<u8>> {
        self.pack();
        if !self.gains() {
            return None;
        }
        let mut packed_len = Vec::new();
        put_len_as_wide(&mut packed_len, self.packed_len() as u64, self.len as u64); // P1
        self.out[PACKED_LEN_AT..][..packed_len.len()].copy_from_slice(&packed_len);
        Some(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;
    use proptest::prelude::*;

    fn body(text: &[u8], piece: usize) -> Option<Vec<u8>> {
        let mut string = CompressedString::new(text.len())?;
        text.chunks(piece).all(|piece| string.push(piece)).then_some(())?;
        string.into_body()
    }

    fn read(body: &[u8]) -> Vec<u8> {
        let mut reader = Reader::new(body);
        assert_eq!(reader.byte(), Ok(types::STRING));
        let text = reader.string().expect("a string").into_owned();
        assert!(reader.is_empty());
        text
    }

    #[test]
    fn only_what_gains_is_compressed() {
        assert_eq!(body(&[b'a'; 20], 20), None);
        let short = body(&[b'a'; 21], 5).expect("it gains");
        assert_eq!(short, b"\x00\xc3\x05\x15\x00a\xe0\x0b\x00");
        let different: Vec<u8> = (0..=255).collect();
        assert_eq!(body(&different, 100), None);
    }

    #[test]
    fn lengths_of_every_width_are_written() {
        for len in [21, 63, 64, 100, 16_383, 16_384, 65_536, 1_000_000] {
            let text = vec![b'a'; len];
            let body = body(&text, 4000).expect("it gains");
            assert!(body.len() < 40 + len / 80, "{len}");
            assert_eq!(read(&body), text, "{len}");
        }
    }

    #[test]
    fn elements_are_compressed_if_they_gain() {
        let (mut shortener, mut out) = (Shortener::default(), Vec::new());
        let different = (0..128).map(char::from).collect();
        let texts = [
            "a".repeat(21),
            "a".repeat(20),
            different,
            "ab".repeat(BLOCK / 2),
            "a".repeat(BLOCK + 1),
            "b".repeat(22),
        ];
        let gained = texts.each_ref().map(|text| shortener.put(text.as_bytes(), &mut out));
        assert_eq!(gained, [true, false, false, true, false, true]);
        assert!(out.starts_with(b"\xc3\x05\x15\x00a\xe0\x0b\x00"));
        let mut reader = Reader::new(&out);
        for text in [0, 3, 5] {
            assert_eq!(reader.string().as_deref(), Ok(texts[text].as_bytes()));
        }
        assert!(reader.is_empty());
    }

    proptest! {
        #[test]
        fn compressed_elements_come_back(texts: Vec<Vec<u8>>, times in 1usize..50) {
            let (mut shortener, mut out, mut put) = (Shortener::default(), Vec::new(), Vec::new());
            for text in texts.iter().map(|text| text.repeat(times)) {
                if shortener.put(&text, &mut out) {
                    put.push(text);
                }
            }
            let mut reader = Reader::new(&out);
            for text in put {
                prop_assert_eq!(&*reader.string().expect("a string"), &text[..]);
            }
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn compressed_strings_come_back(word: Vec<u8>, times in 0usize..3000, piece in 1usize..5000) {
            let text = word.repeat(times);
            match body(&text, piece) {
                Some(body) => {
                    prop_assert!(body.len() < text.len() + 16);
                    prop_assert_eq!(read(&body), text);
                }
                // The two triples of a two-byte word may share an entry of the packer's table and displace
                // each other.
                None => prop_assert!(text.len() <= 20 || times < 3 || word.len() == 2 || word.len() > 100),
            }
        }
    }
}
