//! Compressed bitmaps to the bytes that the redis-roaring module keeps in RDB files, and back.
//!
//! ```text
//! 32 bits   2, 1 byte ─► portable form            1, 1 byte ─► count, 4 bytes ─► numbers, 4 bytes each     (read only)
//! 64 bits   count, 8 bytes ─► (upper 32 bits, 4 bytes ─► portable form) …
//!
//! portable  cookie ─► which are runs, a bit each ─► (key, length - 1), 2 + 2 bytes each ─► offsets, 4 bytes each ─► containers
//! ```
//!
//! The portable form is that of the public specification of Roaring bitmaps; all numbers are little-endian. A
//! container has the numbers with the same upper bits but 16: up to 4,096 of them as a list, more as 8 KB of
//! bits, or runs if that is shorter.
//!
//! - P1: what is read is checked: order, counts, ends. Memory is taken for what is there, not for what is
//!   announced.
//!
//! Cost: O(containers and what is in them); said through `charge` for each container.

use super::{Charge, Failure};
use std::marker::PhantomData;
use value::Ints;

const COOKIE: u32 = 12_346;
/// With runs; the upper half is the number of containers less one.
const COOKIE_RUNS: u32 = 12_347;
/// Containers from which on there are offsets although there are runs.
const OFFSETS_FROM: usize = 4;
/// Longest list of a container.
const LIST_MAX: usize = 4096;
const WORDS: usize = 1024;
const CHUNK: u64 = 1 << 16;
/// Steps for what stands before the containers.
const BUCKET_STEPS: usize = 2;

/// Wholly set containers, above which a bitmap is not written: 16 times those of all 32-bit numbers.
const FULL_MAX: u128 = 1 << 20;

/// The form of one width.
pub(super) const NARROW: &[u8; 9] = b"reroaring";
pub(super) const WIDE: &[u8; 9] = b"roaring64";
/// The module's version of both.
pub(super) const VERSION: u16 = 1;

/// Steps it takes to write a bitmap, about. O(1).
pub(super) fn write_cost(bits: &Ints) -> usize {
    let full = usize::try_from((bits.len() >> 16).min(FULL_MAX)).unwrap_or(usize::MAX);
    bits.mem_bytes() / 8 + full * 8
}

/// The bytes of a bitmap.
///
/// Errors: those of `charge`; too long, if very many 64-bit numbers are set.
pub(super) fn encode<E>(bits: &Ints, wide: bool, charge: &mut Charge<'_, E>) -> Result<Vec<u8>, Failure<E>> {
    if bits.len() >> 16 > FULL_MAX && bits.statistics().full_elements >> 16 > FULL_MAX {
        return Err(Failure::TooLong);
    }
    let mut out = Vec::new();
    if !wide {
        out.push(2);
        put_portable(&mut out, bits, 0, charge)?;
        return Ok(out);
    }
    out.extend_from_slice(&[0; 8]);
    let (mut buckets, mut next) = (0u64, bits.min());
    while let Some(first) = next {
        let upper = first >> 32;
        out.extend_from_slice(&(upper as u32).to_le_bytes());
        put_portable(&mut out, bits, upper << 32, charge)?;
        buckets += 1;
        next = (upper + 1 < 1 << 32).then(|| bits.next((upper + 1) << 32)).flatten();
    }
    out[..8].copy_from_slice(&buckets.to_le_bytes());
    Ok(out)
}

/// The contents of a container.
enum Container {
    Full,
    /// First and last.
    Runs(Vec<(u16, u16)>),
    List(Vec<u16>),
    Bits(Vec<u16>),
}

impl Container {
    fn of(lows: Vec<u16>) -> Container {
        let runs = 1 + lows.windows(2).filter(|two| two[1] - two[0] > 1).count();
        if 2 + runs * 4 < (lows.len() * 2).min(WORDS * 8) {
            let mut found: Vec<(u16, u16)> = Vec::with_capacity(runs);
            for low in lows {
                match found.last_mut() {
                    Some((_, last)) if u32::from(*last) + 1 == u32::from(low) => *last = low,
                    _ => found.push((low, low)),
                }
            }
            return Container::Runs(found);
        }
        if lows.len() <= LIST_MAX { Container::List(lows) } else { Container::Bits(lows) }
    }

    fn is_runs(&self) -> bool {
        matches!(self, Container::Full | Container::Runs(_))
    }

    fn len(&self) -> usize {
        match self {
            Container::Full => CHUNK as usize,
            Container::Runs(runs) => runs.iter().map(|(first, last)| usize::from(last - first) + 1).sum(),
            Container::List(lows) | Container::Bits(lows) => lows.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Container::Full => 6,
            Container::Runs(runs) => 2 + runs.len() * 4,
            Container::List(lows) => lows.len() * 2,
            Container::Bits(_) => WORDS * 8,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Container::Full => put_runs(out, &[(0, u16::MAX)]),
            Container::Runs(runs) => put_runs(out, runs),
            Container::List(lows) => lows.iter().for_each(|low| out.extend_from_slice(&low.to_le_bytes())),
            Container::Bits(lows) => {
                let mut words = vec![0u64; WORDS];
                lows.iter().for_each(|low| words[usize::from(low / 64)] |= 1 << (low % 64));
                words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            }
        }
    }
}

fn put_runs(out: &mut Vec<u8>, runs: &[(u16, u16)]) {
    out.extend_from_slice(&(runs.len() as u16).to_le_bytes());
    for (first, last) in runs {
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&(last - first).to_le_bytes());
    }
}

/// Writes the 2^32 numbers from `base` on.
fn put_portable<E>(out: &mut Vec<u8>, bits: &Ints, base: u64, charge: &mut Charge<'_, E>) -> Result<(), E> {
    let last = base | u64::from(u32::MAX);
    let mut containers: Vec<(u16, Container)> = Vec::new();
    let mut next = bits.next(base);
    while let Some(first) = next.filter(|first| *first <= last) {
        let chunk = first & !(CHUNK - 1);
        let len = bits.count_range(chunk, chunk | (CHUNK - 1)) as usize;
        charge(8 + len % CHUNK as usize / 8)?;
        let container = match len as u64 {
            CHUNK => Container::Full,
            _ => Container::of(bits.iter_from(chunk).take(len).map(|x| x as u16).collect()),
        };
        containers.push(((chunk >> 16) as u16, container));
        next = chunk.checked_add(CHUNK).and_then(|end| bits.next(end));
    }
    let start = out.len();
    let runs = containers.iter().any(|(_, container)| container.is_runs());
    match runs {
        true => {
            out.extend_from_slice(&(COOKIE_RUNS | (containers.len() as u32 - 1) << 16).to_le_bytes());
            for eight in containers.chunks(8) {
                let flags =
                    eight.iter().enumerate().map(|(i, (_, container))| u8::from(container.is_runs()) << i);
                out.push(flags.sum());
            }
        }
        false => {
            out.extend_from_slice(&COOKIE.to_le_bytes());
            out.extend_from_slice(&(containers.len() as u32).to_le_bytes());
        }
    }
    for (key, container) in &containers {
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&((container.len() - 1) as u16).to_le_bytes());
    }
    if !runs || containers.len() >= OFFSETS_FROM {
        let mut offset = out.len() - start + containers.len() * 4;
        for (_, container) in &containers {
            out.extend_from_slice(&(offset as u32).to_le_bytes());
            offset += container.bytes();
        }
    }
    for (_, container) in &containers {
        charge(1 + container.bytes() / 64)?;
        container.put(out);
    }
    Ok(())
}

/// Why nothing came of the bytes.
pub(super) enum Refused<E> {
    Malformed,
    Stopped(E),
}

impl<E> From<E> for Refused<E> {
    fn from(error: E) -> Refused<E> {
        Refused::Stopped(error)
    }
}

/// Bytes that are read from the front.
struct Bytes<'a, E>(&'a [u8], PhantomData<E>);

impl<'a, E> Bytes<'a, E> {
    fn new(bytes: &'a [u8]) -> Bytes<'a, E> {
        Bytes(bytes, PhantomData)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Refused<E>> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Refused::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refused<E>> {
        self.take(N)?.try_into().map_err(|_| Refused::Malformed)
    }

    fn u8(&mut self) -> Result<u8, Refused<E>> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, Refused<E>> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Refused<E>> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refused<E>> {
        self.array().map(u64::from_le_bytes)
    }
}

/// The bitmap of some bytes. Cost: O(bytes), and of runs no more.
///
/// Errors: they are malformed; those of `charge`.
pub(super) fn decode<E>(bytes: &[u8], wide: bool, charge: &mut Charge<'_, E>) -> Result<Ints, Refused<E>> {
    let (mut bytes, mut bits) = (Bytes::new(bytes), Ints::new());
    if wide {
        let mut before = None;
        for _ in 0..bytes.u64()? {
            let upper = bytes.u32()?;
            ascends(&mut before, upper)?;
            read_portable(&mut bytes, u64::from(upper) << 32, &mut bits, charge)?;
        }
    } else {
        match bytes.u8()? {
            1 => {
                for i in 0..bytes.u32()? {
                    if i % 64 == 0 {
                        charge(64)?;
                    }
                    bits.insert(bytes.u32()?.into());
                }
            }
            2 => read_portable(&mut bytes, 0, &mut bits, charge)?,
            _ => return Err(Refused::Malformed),
        }
    }
    if bytes.0.is_empty() { Ok(bits) } else { Err(Refused::Malformed) }
}

fn ascends<T: PartialOrd + Copy, E>(before: &mut Option<T>, next: T) -> Result<(), Refused<E>> {
    match before.replace(next) {
        Some(before) if before >= next => Err(Refused::Malformed),
        _ => Ok(()),
    }
}

fn read_portable<E>(
    bytes: &mut Bytes<'_, E>,
    base: u64,
    bits: &mut Ints,
    charge: &mut Charge<'_, E>,
) -> Result<(), Refused<E>> {
    let cookie = bytes.u32()?;
    let (count, flags) = match cookie & 0xffff {
        COOKIE_RUNS => {
            let count = (cookie >> 16) as usize + 1;
            (count, bytes.take(count.div_ceil(8))?)
        }
        COOKIE if cookie == COOKIE => (bytes.u32()? as usize, &[][..]),
        _ => return Err(Refused::Malformed),
    };
    if count > CHUNK as usize {
        return Err(Refused::Malformed);
    }
    // A container is charged for when it is read; here there may be none.
    charge(BUCKET_STEPS)?;
    let mut headers = Bytes::new(bytes.take(count * 4)?);
    if flags.is_empty() || count >= OFFSETS_FROM {
        bytes.take(count * 4)?;
    }
    let mut before = None;
    for i in 0..count {
        let (key, len) = (headers.u16()?, usize::from(headers.u16()?) + 1);
        ascends(&mut before, key)?;
        let chunk = base | u64::from(key) << 16;
        match flags.get(i / 8).is_some_and(|eight| eight >> (i % 8) & 1 == 1) {
            true => read_runs(bytes, chunk, len, bits, charge)?,
            false if len <= LIST_MAX => read_list(bytes, chunk, len, bits, charge)?,
            false => read_bits(bytes, chunk, len, bits, charge)?,
        }
    }
    Ok(())
}

fn read_runs<E>(
    bytes: &mut Bytes<'_, E>,
    chunk: u64,
    len: usize,
    bits: &mut Ints,
    charge: &mut Charge<'_, E>,
) -> Result<(), Refused<E>> {
    let count = bytes.u16()?;
    charge(8 + usize::from(count) * 8)?;
    let (mut end, mut found) = (0, 0);
    for _ in 0..count {
        let (first, more) = (u32::from(bytes.u16()?), u32::from(bytes.u16()?));
        let last = first + more;
        if first < end || last >= CHUNK as u32 {
            return Err(Refused::Malformed);
        }
        bits.insert_range(chunk | u64::from(first), chunk | u64::from(last));
        (end, found) = (last + 1, found + more as usize + 1);
    }
    if found == len { Ok(()) } else { Err(Refused::Malformed) }
}

fn read_list<E>(
    bytes: &mut Bytes<'_, E>,
    chunk: u64,
    len: usize,
    bits: &mut Ints,
    charge: &mut Charge<'_, E>,
) -> Result<(), Refused<E>> {
    charge(8 + len)?;
    let mut lows = Bytes::new(bytes.take(len * 2)?);
    let mut before = None;
    for _ in 0..len {
        let low = lows.u16()?;
        ascends(&mut before, low)?;
        bits.insert(chunk | u64::from(low));
    }
    Ok(())
}

fn read_bits<E>(
    bytes: &mut Bytes<'_, E>,
    chunk: u64,
    len: usize,
    bits: &mut Ints,
    charge: &mut Charge<'_, E>,
) -> Result<(), Refused<E>> {
    charge(8 + len)?;
    let (mut words, mut found) = (Bytes::new(bytes.take(WORDS * 8)?), 0);
    for i in 0..WORDS as u64 {
        let mut word = words.u64()?;
        found += word.count_ones() as usize;
        while word != 0 {
            bits.insert(chunk + i * 64 + u64::from(word.trailing_zeros()));
            word &= word - 1;
        }
    }
    if found == len { Ok(()) } else { Err(Refused::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roaring::{RoaringBitmap, RoaringTreemap};

    /// Why it was stopped.
    #[derive(Debug, PartialEq)]
    struct Stopped;

    fn go(_: usize) -> Result<(), Stopped> {
        Ok(())
    }

    fn encoded(bits: &Ints, wide: bool) -> Vec<u8> {
        encode(bits, wide, &mut go).expect("not too long")
    }

    fn decoded(bytes: &[u8], wide: bool) -> Option<Ints> {
        decode(bytes, wide, &mut go).ok().inspect(Ints::check_invariants)
    }

    /// Bitmaps with every form of container, few and many.
    fn samples() -> Vec<Ints> {
        let from = |numbers: &mut dyn Iterator<Item = u64>| numbers.collect::<Ints>();
        let mut samples = vec![
            Ints::new(),
            from(&mut [0, 1, 2].into_iter()),
            from(&mut (0..20_000).map(|i| i * 3)),
            from(&mut (0..3_000).map(|i| i * 70_001)),
            from(&mut (0..100_000).map(|i| i ^ i >> 7 & 1)),
        ];
        let mut wide = samples[2].clone();
        wide.insert_range(1_000_000, 3_000_000_000);
        wide.insert(u32::MAX.into());
        samples.push(wide);
        let mut all = Ints::new();
        all.insert_range(0, u32::MAX.into());
        samples.push(all);
        samples
    }

    #[test]
    fn others_read_what_is_written_and_are_read() {
        for bits in samples() {
            let bytes = encoded(&bits, false);
            let theirs = RoaringBitmap::deserialize_from(&bytes[1..]).expect("the portable form");
            assert!(theirs.iter().map(u64::from).take(200_000).eq(bits.iter().take(200_000)));
            assert_eq!(u128::from(theirs.len()), bits.len());
            let mut back = vec![2];
            theirs.serialize_into(&mut back).expect("memory");
            assert!(decoded(&back, false) == Some(bits.clone()) && decoded(&bytes, false) == Some(bits));
        }
    }

    #[test]
    fn others_read_the_wide_form_and_are_read() {
        for mut bits in samples() {
            bits.extend([1 << 32, 5 << 40, u64::MAX]);
            bits.insert_range(7 << 33, (7 << 33) + 400_000);
            let bytes = encoded(&bits, true);
            let theirs = RoaringTreemap::deserialize_from(&bytes[..]).expect("the portable form");
            assert_eq!(u128::from(theirs.len()), bits.len());
            assert!(theirs.iter().take(200_000).eq(bits.iter().take(200_000)));
            assert_eq!(theirs.max(), bits.max());
            let mut back = Vec::new();
            theirs.serialize_into(&mut back).expect("memory");
            assert!(decoded(&back, true) == Some(bits.clone()) && decoded(&bytes, true) == Some(bits));
        }
        assert_eq!(encode(&Ints::all(), true, &mut go), Err(Failure::TooLong));
    }

    #[test]
    fn the_list_form_of_the_module_is_read() {
        let bytes = [1, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
        assert_eq!(decoded(&bytes, false), Some((0..3).collect()));
        let announced = [1, 255, 255, 255, 255, 0, 0, 0, 0];
        assert_eq!(decoded(&announced, false), None);
    }

    #[test]
    fn what_is_broken_is_refused() {
        for (bits, wide) in samples().into_iter().take(6).zip([false, true].into_iter().cycle()) {
            let bytes = encoded(&bits, wide);
            let step = (bytes.len() / 200).max(1);
            for at in (0..bytes.len()).step_by(step) {
                assert_eq!(decoded(&bytes[..at], wide), None, "cut at {at}");
                // A flipped bit may give another bitmap, but a sound one.
                for turn in [1, 0x80, 0xff] {
                    let mut broken = bytes.clone();
                    broken[at] ^= turn;
                    decoded(&broken, wide);
                }
            }
            assert_eq!(decoded(&[&bytes[..], &[0]].concat(), wide), None);
        }
    }

    #[test]
    fn long_runs_may_be_stopped() {
        for bits in &samples()[2..] {
            let bytes = encoded(bits, true);
            let stop = &mut |_| Err(Stopped);
            assert_eq!(encode(bits, true, stop), Err(Failure::Stopped(Stopped)));
            assert!(matches!(decode(&bytes, true, stop), Err(Refused::Stopped(Stopped))));
        }
    }

    /// Buckets of the wide form without containers: each is little, and there may be very many.
    #[test]
    fn what_is_empty_is_charged_for_too() {
        const BUCKETS: u32 = 20_000;
        let mut bytes = u64::from(BUCKETS).to_le_bytes().to_vec();
        (0..BUCKETS).for_each(|upper| {
            [upper, COOKIE, 0].iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        });
        let (mut charged, mut most) = (0, 0);
        let bits = decode::<Stopped>(&bytes, true, &mut |steps| {
            (charged, most) = (charged + steps, most.max(steps));
            Ok(())
        });
        assert!(bits.is_ok_and(|bits| bits.is_empty() && bits.mem_bytes() < 1000));
        assert!(charged >= BUCKETS as usize && most < 100, "{charged} {most}");
        let mut left = 100usize;
        let stopped = decode(&bytes, true, &mut |steps| {
            left = left.checked_sub(steps).ok_or(Stopped)?;
            Ok(())
        });
        assert!(matches!(stopped, Err(Refused::Stopped(Stopped))));
    }
}
