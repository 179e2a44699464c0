//! Texts that are written compressed, if they get shorter by that: the body of a long string, and elements of
//! collections.
//!
//! ```text
//! text, piece by piece ─► a block ─► packed      type ─► COMPRESSED ─► packed length ─► length ─► packed blocks
//! ```
//!
//! - P1: the packed length, which is known last, is written as wide as the length, which is known first and
//!   larger.
//!
//! Memory: what is packed so far, and less than 100 KB, however long the text is.

use crate::lzf::{BLOCK, Packer};
use crate::string::{COMPRESSED, put_len_as_wide};
use crate::{put_len, types};

/// Shorter texts are not worth it.
const LEN_MIN: usize = 21;
/// As many bytes must be saved.
const GAIN_MIN: usize = 4;
/// Whether an element of so many bytes is compressed if it gets shorter: one block at most, so that it does
/// not take long. O(1).
pub fn is_compressed(len: usize) -> bool {
    (LEN_MIN..=BLOCK).contains(&len)
}

/// Compresses elements one after the other, in memory that it keeps.
#[derive(Default)]
pub(crate) struct Shortener {
    packer: Packer,
    packed: Vec<u8>,
}

impl Shortener {
    /// Appends a text in its compressed form. False, and nothing is appended, if nothing is gained.
    /// O(length), under 500 µs.
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

/// A string, piece by piece. See the module.
pub struct CompressedString {
    len: usize,
    /// Bytes that have come and are not packed yet.
    block: Vec<u8>,
    packer: Packer,
    out: Vec<u8>,
    /// Where the string begins, where its packed length stands, and where the packed bytes begin.
    begun_at: usize,
    packed_len_at: usize,
    packed_from: usize,
}

impl CompressedString {
    /// The body of a text of so many bytes; None if it is too short to gain anything.
    pub fn new(len: usize) -> Option<CompressedString> {
        gains_from(len).then(|| CompressedString::within(vec![types::STRING], len))
    }

    /// A string behind what a buffer holds. [`CompressedString::into_body`] gives the buffer back.
    pub fn within(mut out: Vec<u8>, len: usize) -> CompressedString {
        let begun_at = out.len();
        out.push(COMPRESSED);
        let packed_len_at = out.len();
        put_len(&mut out, len as u64); // a place for the packed length
        put_len(&mut out, len as u64);
        let packed_from = out.len();
        let block = Vec::with_capacity(len.min(BLOCK));
        CompressedString { len, block, packer: Packer::new(len), out, begun_at, packed_len_at, packed_from }
    }

    /// Takes the next bytes of the text. False as soon as it is clear that nothing is gained. O(bytes), and
    /// under 500 µs where a block is full.
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

    /// The body, when all of the text has come; None if nothing was gained.
    pub fn into_body(self) -> Option<Vec<u8>> {
        self.into_buffer().ok()
    }

    /// The buffer with the string, when all of the text has come. Err, with the buffer as it was before:
    /// nothing was gained.
    pub fn into_buffer(mut self) -> Result<Vec<u8>, Vec<u8>> {
        self.pack();
        if !self.gains() {
            return Err(self.given_up());
        }
        let mut packed_len = Vec::new();
        put_len_as_wide(&mut packed_len, self.packed_len() as u64, self.len as u64); // P1
        self.out[self.packed_len_at..][..packed_len.len()].copy_from_slice(&packed_len);
        Ok(self.out)
    }

    /// The buffer as it was before.
    pub fn given_up(mut self) -> Vec<u8> {
        self.out.truncate(self.begun_at);
        self.out
    }
}

/// A string whose packed form is written as it arises, for texts that must not be in memory a second time.
///
/// The packed length comes first, so the text is packed twice: once to count, and once to write.
pub struct CompressedPieces {
    len: usize,
    packer: Packer,
    block: Vec<u8>,
    packed_len: usize,
}

impl CompressedPieces {
    /// For a text of so many bytes; None if it is too short to gain anything.
    pub fn new(len: usize) -> Option<CompressedPieces> {
        let block = || Vec::with_capacity(len.min(BLOCK));
        gains_from(len).then(|| CompressedPieces {
            len,
            packer: Packer::new(len),
            block: block(),
            packed_len: 0,
        })
    }

    /// Takes the next bytes of the text and appends what is packed of them. Cost: O(bytes).
    pub fn push(&mut self, mut piece: &[u8], out: &mut Vec<u8>) {
        while !piece.is_empty() {
            let (now, later) = piece.split_at(piece.len().min(BLOCK - self.block.len()));
            self.block.extend_from_slice(now);
            piece = later;
            if self.block.len() == BLOCK {
                self.finish(out);
            }
        }
    }

    /// Appends what is packed of the rest.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let before = out.len();
        self.packer.pack(&self.block, out);
        self.packed_len += out.len() - before;
        self.block.clear();
    }

    /// Whether the packed form, as far as it is known, is shorter.
    pub fn gains(&self) -> bool {
        self.packed_len + GAIN_MIN <= self.len
    }

    /// Appends what precedes the packed bytes, after all of the text was counted, and begins anew.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        out.push(COMPRESSED);
        put_len(out, self.packed_len as u64);
        put_len(out, self.len as u64);
        self.packed_len = 0;
    }
}

/// Whether a text of so many bytes may gain anything.
pub fn gains_from(len: usize) -> bool {
    len >= LEN_MIN
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

    #[test]
    fn a_string_in_pieces_is_the_same_string() {
        for len in [21, 100, 16_384, BLOCK, 3 * BLOCK + 5] {
            let text: Vec<u8> = (0..len).map(|i| (i / 7 % 50) as u8).collect();
            let (mut pieces, mut out) = (CompressedPieces::new(len).expect("long enough"), Vec::new());
            text.chunks(999).for_each(|piece| pieces.push(piece, &mut out));
            pieces.finish(&mut out);
            assert!(pieces.gains() || len == 21);
            out.clear();
            pieces.begin(&mut out);
            text.chunks(1_000).for_each(|piece| pieces.push(piece, &mut out));
            pieces.finish(&mut out);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.string().as_deref(), Ok(&text[..]), "{len}");
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn a_buffer_comes_back_as_it_was_if_nothing_is_gained() {
        let different: Vec<u8> = (0..=255).collect();
        let mut string = CompressedString::within(b"before".to_vec(), 256);
        let gains = string.push(&different);
        assert_eq!(string.into_buffer(), Err(b"before".to_vec()));
        assert!(gains, "a block is not packed before it is full");
        let mut string = CompressedString::within(b"before".to_vec(), 21);
        assert!(string.push(&[b'a'; 21]));
        assert_eq!(string.into_buffer().as_deref(), Ok(&b"before\xc3\x05\x15\x00a\xe0\x0b\x00"[..]));
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
                // The two triples of a word of two bytes may have one place in the packer's table, and
                // displace each other.
                None => prop_assert!(text.len() <= 20 || times < 3 || word.len() == 2 || word.len() > 100),
            }
        }
    }
}
