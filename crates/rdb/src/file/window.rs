//! Bytes of an input through a window of fixed size, with their offset.

use super::Problem;
use crate::{crc64, lzf};

/// Where a file's bytes come from.
pub trait Input {
    type Error;

    /// Fills a part of the buffer; 0 at the end.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Self::Error>;

    /// Is told all bytes that were passed, in order: those that the checksum is of.
    fn passed(&mut self, bytes: &[u8]) {
        let _ = bytes;
    }
}

impl Input for &[u8] {
    type Error = std::convert::Infallible;

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Self::Error> {
        let (now, later) = self.split_at(self.len().min(buffer.len()));
        buffer[..now.len()].copy_from_slice(now);
        *self = later;
        Ok(now.len())
    }
}

/// An input whose bytes are summed as they pass. Cost: about a nanosecond per byte.
pub struct Summed<I> {
    input: I,
    sum: u64,
}

impl<I> Summed<I> {
    pub fn new(input: I) -> Summed<I> {
        Summed { input, sum: 0 }
    }

    /// The sum of what has passed.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

impl<I: Input> Input for Summed<I> {
    type Error = I::Error;

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, I::Error> {
        self.input.read(buffer)
    }

    fn passed(&mut self, bytes: &[u8]) {
        self.sum = crc64(self.sum, bytes);
        self.input.passed(bytes);
    }
}

/// Bytes of the window.
const WINDOW: usize = 64 * 1024;
/// The longest name, as in Redis.
const NAME_MAX: u64 = 512 << 20;
/// Bytes for which memory is taken at once.
const STEP: usize = 64 * 1024;

/// First bytes of strings that are not plain.
const INT_8: u8 = 0xc0;
const INT_16: u8 = 0xc1;
const INT_32: u8 = 0xc2;
const PACKED: u8 = 0xc3;

pub(super) struct Window<I> {
    pub(super) input: I,
    bytes: Box<[u8]>,
    /// The part of the window that is not read yet.
    at: usize,
    end: usize,
    /// How far bytes were told to the input, and copied for the caller.
    passed_to: usize,
    kept_to: usize,
    /// Offset of the window in the file.
    base: u64,
    /// Bytes that are read are kept.
    pub(super) keeps: bool,
    pub(super) kept: Vec<u8>,
}

/// How a string stands in the file.
enum Stands {
    Plain(u64),
    Int(usize),
    Packed { packed: u64, unpacked: u64 },
}

type Read<T, E> = Result<T, Problem<E>>;

impl<I: Input> Window<I> {
    pub(super) fn new(input: I) -> Window<I> {
        Window {
            input,
            bytes: vec![0; WINDOW].into(),
            at: 0,
            end: 0,
            passed_to: 0,
            kept_to: 0,
            base: 0,
            keeps: false,
            kept: Vec::new(),
        }
    }

    /// The offset of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// From here on bytes are kept, behind those that were, or not.
    pub(super) fn keep(&mut self, keeps: bool) {
        self.settle_kept();
        self.keeps = keeps;
    }

    fn settle_kept(&mut self) {
        if self.keeps {
            self.kept.extend_from_slice(&self.bytes[self.kept_to..self.at]);
        }
        self.kept_to = self.at;
    }

    /// Tells the input what it has not been told.
    pub(super) fn settle_passed(&mut self) {
        self.input.passed(&self.bytes[self.passed_to..self.at]);
        self.passed_to = self.at;
    }

    /// Makes at least `n` bytes stand in the window. Much fewer than it holds.
    fn fill(&mut self, n: usize) -> Read<(), I::Error> {
        if self.end - self.at >= n {
            return Ok(());
        }
        self.settle_kept();
        self.settle_passed();
        self.bytes.copy_within(self.at..self.end, 0);
        self.base += self.at as u64;
        self.end -= self.at;
        (self.at, self.passed_to, self.kept_to) = (0, 0, 0);
        while self.end < n {
            match self.input.read(&mut self.bytes[self.end..]).map_err(Problem::Input)? {
                0 => return Err(Problem::Truncated),
                read => self.end = self.bytes.len().min(self.end + read),
            }
        }
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Read<[u8; N], I::Error> {
        self.fill(N)?;
        let bytes = self.bytes[self.at..self.end].first_chunk().ok_or(Problem::Truncated)?;
        self.at += N;
        Ok(*bytes)
    }

    pub(super) fn byte(&mut self) -> Read<u8, I::Error> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn length(&mut self) -> Read<u64, I::Error> {
        let first = self.byte()?;
        self.length_after(first)
    }

    fn length_after(&mut self, first: u8) -> Read<u64, I::Error> {
        Ok(match first {
            0..0x40 => u64::from(first),
            0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(self.byte()?),
            0x80 => u64::from(u32::from_be_bytes(self.array()?)),
            0x81 => u64::from_be_bytes(self.array()?),
            _ => return Err(Problem::Length),
        })
    }

    /// Passes bytes. Memory: the window.
    pub(super) fn skip(&mut self, mut n: u64) -> Read<(), I::Error> {
        while n > 0 {
            self.fill(1)?;
            let here = (self.end - self.at).min(usize::try_from(n).unwrap_or(usize::MAX));
            self.at += here;
            n -= here as u64;
        }
        Ok(())
    }

    fn stands(&mut self) -> Read<Stands, I::Error> {
        Ok(match self.byte()? {
            INT_8 => Stands::Int(1),
            INT_16 => Stands::Int(2),
            INT_32 => Stands::Int(4),
            PACKED => Stands::Packed { packed: self.length()?, unpacked: self.length()? },
            first => Stands::Plain(self.length_after(first)?),
        })
    }

    /// Passes a string without unpacking it.
    pub(super) fn skip_string(&mut self) -> Read<(), I::Error> {
        match self.stands()? {
            Stands::Plain(len) | Stands::Packed { packed: len, .. } => self.skip(len),
            Stands::Int(len) => self.skip(len as u64),
        }
    }

    /// Appends bytes as they come (R1).
    fn append(&mut self, out: &mut Vec<u8>, len: u64) -> Read<(), I::Error> {
        let mut left = usize::try_from(len).map_err(|_| Problem::Length)?;
        out.reserve(left.min(STEP));
        while left > 0 {
            self.fill(1)?;
            let here = (self.end - self.at).min(left);
            out.extend_from_slice(&self.bytes[self.at..self.at + here]);
            self.at += here;
            left -= here;
        }
        Ok(())
    }

    /// Reads a string into `out`, which is emptied before. Cost and memory: O(length), of what has come.
    pub(super) fn string(&mut self, out: &mut Vec<u8>) -> Read<(), I::Error> {
        out.clear();
        match self.stands()? {
            Stands::Plain(len) if len > NAME_MAX => Err(Problem::Length),
            Stands::Plain(len) => self.append(out, len),
            Stands::Int(len) => {
                let number = match len {
                    1 => i64::from(i8::from_le_bytes(self.array()?)),
                    2 => i64::from(i16::from_le_bytes(self.array()?)),
                    _ => i64::from(i32::from_le_bytes(self.array()?)),
                };
                out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
                Ok(())
            }
            Stands::Packed { packed, unpacked } => {
                if packed.max(unpacked) > NAME_MAX {
                    return Err(Problem::Length);
                }
                let mut bytes = Vec::new();
                self.append(&mut bytes, packed)?;
                *out = lzf::unpack(&bytes, unpacked as usize).map_err(|_| Problem::Packed)?;
                Ok(())
            }
        }
    }
}
