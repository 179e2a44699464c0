//! The strings of HyperLogLogs: a header and 16384 registers of 6 bits.
//!
//! ```text
//! 0..4 "HYLL"   4 encoding (0 dense, 1 sparse)   5..8 unused   8..16 cardinality, top bit: stale
//! 16.. registers: dense, 6 bits each from the lowest bit on, 12288 bytes; or sparse (see `sparse`)
//! ```
//!
//! - H4: a [`Sketch`] has a whole header and whole registers, whatever the string was.
//!
//! Cost: a sketch is a copy of its string, at most 32 KB.

use super::estimate::Histogram;
use super::sparse::{self, Hint, Raised};
use crate::Error;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use stdx::six;
use value::StrRef;

pub(crate) const REGISTERS: usize = 16384;
pub(crate) const HEADER: usize = 16;
pub(crate) const DENSE_BYTES: usize = HEADER + REGISTERS / 4 * 3;
/// Bytes of the longest string that can be a whole sketch.
pub(crate) const BYTES_MAX: usize = HEADER + sparse::BYTES_MAX;

const MAGIC: &[u8; 4] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;

/// The header of a sparse sketch without elements.
const FRESH: [u8; HEADER] = *b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\0";

const FOREIGN: Error = Error::new("WRONGTYPE Key is not a valid HyperLogLog string value.");
const BROKEN: Error = Error::new("INVALIDOBJ Corrupted HLL object detected");

/// `hll-sparse-max-bytes`.
static SPARSE_MAX_BYTES: AtomicUsize = AtomicUsize::new(3000);

/// Sets the length above which a sparse sketch becomes a dense one (`hll-sparse-max-bytes`).
pub fn set_sparse_max_bytes(bytes: usize) {
    SPARSE_MAX_BYTES.store(bytes, Relaxed);
}

/// The length above which a sparse sketch becomes a dense one.
pub(crate) fn sparse_max_bytes() -> usize {
    SPARSE_MAX_BYTES.load(Relaxed)
}

/// All registers, one byte each.
pub(crate) type Registers = Vec<u8>;

/// The header of a string. Errors: it is no HyperLogLog.
pub(crate) fn header(of: StrRef<'_>) -> Result<[u8; HEADER], Error> {
    let mut header = [0; HEADER];
    if of.len() < HEADER {
        return Err(FOREIGN);
    }
    (0..HEADER).for_each(|i| header[i] = of.byte(i));
    let fits = header[..4] == *MAGIC
        && match header[4] {
            DENSE => of.len() == DENSE_BYTES,
            SPARSE => true,
            _ => false,
        };
    if fits { Ok(header) } else { Err(FOREIGN) }
}

pub(crate) fn is_dense(header: &[u8; HEADER]) -> bool {
    header[4] == DENSE
}

/// The cardinality that a header keeps, if it is fresh.
pub(crate) fn cached(header: &[u8; HEADER]) -> Option<u64> {
    let [.., a, b, c, d, e, f, g, h] = *header;
    let kept = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    (kept >> 63 == 0).then_some(kept)
}

/// A HyperLogLog of its own. See the module.
pub(crate) struct Sketch {
    bytes: Vec<u8>,
}

impl Sketch {
    /// A sparse sketch without elements.
    pub fn new() -> Sketch {
        let mut bytes = FRESH.to_vec();
        bytes.extend_from_slice(&sparse::empty());
        Sketch { bytes }
    }

    /// A dense sketch of these registers. `header`: the header it keeps, of a sketch that it replaces.
    /// O(registers).
    pub fn dense(header: Option<[u8; HEADER]>, registers: &Registers) -> Sketch {
        let mut bytes = Vec::with_capacity(DENSE_BYTES);
        bytes.extend_from_slice(&header.unwrap_or(FRESH));
        let mut sketch = Sketch { bytes };
        sketch.set_dense(registers);
        sketch
    }

    /// Copies a string. Cost: O(bytes). Errors: no HyperLogLog, a broken one.
    pub fn read(of: StrRef<'_>) -> Result<Sketch, Error> {
        header(of)?;
        if of.len() > BYTES_MAX {
            return Err(BROKEN);
        }
        let sketch = Sketch { bytes: of.contiguous().into_owned() };
        if sketch.is_dense() || sparse::is_whole(sketch.body()) { Ok(sketch) } else { Err(BROKEN) }
    }

    pub fn is_dense(&self) -> bool {
        self.bytes[4] == DENSE
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn body(&self) -> &[u8] {
        &self.bytes[HEADER..]
    }

    /// Marks the cardinality in the header as stale.
    pub fn make_stale(&mut self) {
        self.bytes[HEADER - 1] |= 0x80;
    }

    /// Raises a register to a rank; true if it was lower. A sparse sketch that gets too long becomes dense.
    /// `hint`: see [`sparse::raise`]. O(1) for a dense sketch, O(bytes behind the hint) for a sparse one.
    pub fn raise(&mut self, hint: &mut Hint, register: usize, rank: u8) -> bool {
        if !self.is_dense() {
            match sparse::raise(&mut self.bytes, HEADER, hint, (register, rank), sparse_max_bytes()) {
                Raised::Yes => return true,
                Raised::No => return false,
                Raised::TooLarge => self.make_dense(),
            }
        }
        let (at, shift) = dense_place(register);
        let low = (dense_rank(self.bytes[at], self.bytes.get(at + 1).copied(), shift)) < rank;
        if low {
            let mask = 0x3f_u16 << shift;
            let bits = u16::from(rank) << shift;
            self.bytes[at] = self.bytes[at] & !mask as u8 | bits as u8;
            if let Some(next) = self.bytes.get_mut(at + 1) {
                *next = *next & !(mask >> 8) as u8 | (bits >> 8) as u8;
            }
        }
        low
    }

    /// Calls `f` for each register with its rank, in their order. O(registers).
    fn each(&self, mut f: impl FnMut(usize, u8)) {
        if !self.is_dense() {
            let mut at = 0;
            for span in sparse::spans(self.body()) {
                if span.rank > 0 {
                    (at..at + span.len).for_each(|register| f(register, span.rank));
                }
                at += span.len;
            }
            return;
        }
        for (i, [a, b, c]) in self.body().as_chunks::<3>().0.iter().enumerate() {
            let four = u32::from_le_bytes([*a, *b, *c, 0]);
            (0..4).for_each(|j| f(4 * i + j, (four >> (6 * j)) as u8 & 0x3f));
        }
    }

    /// Raises registers to those of this sketch. O(registers).
    pub fn merge_into(&self, registers: &mut Registers) {
        if self.is_dense() {
            six::raise(registers, self.body());
        } else {
            self.each(|register, rank| registers[register] = registers[register].max(rank));
        }
    }

    /// The ranks of the registers. O(bytes) of a sparse sketch, O(registers) of a dense one.
    pub fn histogram(&self) -> Histogram {
        let mut ranks = [0; 64];
        if self.is_dense() {
            self.each(|_, rank| ranks[usize::from(rank)] += 1);
        } else {
            sparse::spans(self.body()).for_each(|span| ranks[usize::from(span.rank)] += span.len as u32);
        }
        ranks
    }

    pub fn registers(&self) -> Registers {
        let mut registers = vec![0; REGISTERS];
        self.merge_into(&mut registers);
        registers
    }

    /// Makes a sparse sketch dense. O(registers).
    pub fn make_dense(&mut self) {
        if !self.is_dense() {
            let registers = self.registers();
            self.set_dense(&registers);
        }
    }

    /// Makes the sketch a dense one of these registers. O(registers).
    pub fn set_dense(&mut self, registers: &Registers) {
        self.bytes[4] = DENSE;
        self.bytes.resize(DENSE_BYTES, 0);
        six::pack(registers, &mut self.bytes[HEADER..]);
    }
}

/// Raises registers to those of a string; true if it is a dense one. O(registers). Errors: no HyperLogLog, a
/// broken one; then no register is changed.
pub(crate) fn merge(of: StrRef<'_>, registers: &mut Registers) -> Result<bool, Error> {
    let dense = is_dense(&header(of)?);
    match of {
        // It is not copied.
        StrRef::Flat(bytes) if dense => six::raise(registers, &bytes[HEADER..]),
        _ => Sketch::read(of)?.merge_into(registers),
    }
    Ok(dense)
}

/// The first byte of a register in a dense string, and the bits in front of it there.
pub(crate) fn dense_place(register: usize) -> (usize, u32) {
    (HEADER + register * 6 / 8, (register * 6 % 8) as u32)
}

/// The rank of a register in its two bytes. The last register has only one.
pub(crate) fn dense_rank(byte: u8, next: Option<u8>, shift: u32) -> u8 {
    ((u16::from(byte) | u16::from(next.unwrap_or(0)) << 8) >> shift) as u8 & 0x3f
}

/// Counts the ranks of registers. O(registers).
pub(crate) fn histogram(registers: &Registers) -> Histogram {
    let mut ranks = [0; 64];
    registers.iter().for_each(|rank| ranks[usize::from(*rank & 0x3f)] += 1);
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sparse_and_dense_sketches_are_those_of_an_array(
            raises in prop::collection::vec((0usize..REGISTERS, 1u8..=51), 1..200),
            dense: bool,
        ) {
            let mut sketch = Sketch::new();
            if dense {
                sketch.make_dense();
            }
            let mut model = vec![0u8; REGISTERS];
            for (register, rank) in raises {
                prop_assert_eq!(sketch.raise(&mut Hint::default(), register, rank), model[register] < rank);
                model[register] = model[register].max(rank);
            }
            prop_assert_eq!(sketch.registers(), model.clone());
            prop_assert_eq!(sketch.histogram(), histogram(&model));
            sketch.make_dense();
            prop_assert_eq!(sketch.registers(), model);
            prop_assert_eq!(sketch.as_bytes().len(), DENSE_BYTES);
        }

        #[test]
        fn dense_sketches_merge_register_by_register(
            ranks in prop::collection::vec((0u8..64, 0u8..64), REGISTERS),
        ) {
            let (mut ours, theirs): (Vec<u8>, Vec<u8>) = ranks.into_iter().unzip();
            let mut sketch = Sketch::new();
            sketch.set_dense(&theirs);
            let want: Vec<u8> = ours.iter().zip(&theirs).map(|(a, b)| *a.max(b)).collect();
            sketch.merge_into(&mut ours);
            prop_assert!(ours == want);
        }

        #[test]
        fn any_string_is_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..60), encoding in 0u8..4) {
            for (at, byte) in b"HYLL".iter().chain([&encoding]).enumerate() {
                if let Some(place) = bytes.get_mut(at) {
                    *place = *byte;
                }
            }
            if let Ok(mut sketch) = Sketch::read(StrRef::Flat(&bytes)) {
                prop_assert_eq!(sketch.registers().len(), REGISTERS);
                sketch.raise(&mut Hint::default(), 77, 40);
            }
        }
    }
}
