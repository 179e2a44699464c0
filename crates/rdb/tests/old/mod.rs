//! Writes the forms of all servers' ages, as plainly as possible: the model for testing the decoder.

#![allow(dead_code, reason = "every user takes its part")]

use rdb::{put_len, put_string};

/// The number, if the text is a canonical one.
fn number(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

pub fn listpack(elements: &[Vec<u8>]) -> Vec<u8> {
    let mut body = Vec::new();
    for element in elements {
        let mut entry = Vec::new();
        match number(element) {
            Some(n @ 0..=127) => entry.push(n as u8),
            Some(n @ -4096..=4095) => {
                let bits = (n & 0x1fff) as u16;
                entry.extend_from_slice(&[0xc0 | (bits >> 8) as u8, bits as u8]);
            }
            Some(n) if i16::try_from(n).is_ok() => {
                entry.push(0xf1);
                entry.extend_from_slice(&(n as i16).to_le_bytes());
            }
            Some(n) if (-(1 << 23)..1 << 23).contains(&n) => {
                entry.push(0xf2);
                entry.extend_from_slice(&(n as i32).to_le_bytes()[..3]);
            }
            Some(n) if i32::try_from(n).is_ok() => {
                entry.push(0xf3);
                entry.extend_from_slice(&(n as i32).to_le_bytes());
            }
            Some(n) => {
                entry.push(0xf4);
                entry.extend_from_slice(&n.to_le_bytes());
            }
            None => {
                match element.len() {
                    len @ 0..64 => entry.push(0x80 | len as u8),
                    len @ 64..4096 => entry.extend_from_slice(&[0xe0 | (len >> 8) as u8, len as u8]),
                    len => {
                        entry.push(0xf0);
                        entry.extend_from_slice(&(len as u32).to_le_bytes());
                    }
                }
                entry.extend_from_slice(element);
            }
        }
        let mut len = entry.len();
        let mut back = vec![(len & 0x7f) as u8];
        len >>= 7;
        while len > 0 {
            let last = back.len() - 1;
            back[last] |= 0x80;
            back.push((len & 0x7f) as u8);
            len >>= 7;
        }
        // The mark is on all bytes but the first, which stands last here.
        back.iter_mut().for_each(|byte| *byte &= 0x7f);
        let marked = back.len() - 1;
        back[..marked].iter_mut().for_each(|byte| *byte |= 0x80);
        back.reverse();
        body.extend(entry);
        body.extend(back);
    }
    let mut out = Vec::new();
    out.extend_from_slice(&(body.len() as u32 + 7).to_le_bytes());
    out.extend_from_slice(&(elements.len().min(65535) as u16).to_le_bytes());
    out.extend(body);
    out.push(0xff);
    out
}

pub fn ziplist(elements: &[Vec<u8>]) -> Vec<u8> {
    let (mut body, mut before, mut last_at) = (Vec::new(), 0usize, 0);
    for element in elements {
        last_at = body.len();
        match before {
            0..254 => body.push(before as u8),
            _ => {
                body.push(254);
                body.extend_from_slice(&(before as u32).to_le_bytes());
            }
        }
        match number(element) {
            Some(n @ 0..=12) => body.push(0xf1 + n as u8),
            Some(n) if i8::try_from(n).is_ok() => body.extend_from_slice(&[0xfe, n as u8]),
            Some(n) if i16::try_from(n).is_ok() => {
                body.push(0xc0);
                body.extend_from_slice(&(n as i16).to_le_bytes());
            }
            Some(n) if (-(1 << 23)..1 << 23).contains(&n) => {
                body.push(0xf0);
                body.extend_from_slice(&(n as i32).to_le_bytes()[..3]);
            }
            Some(n) if i32::try_from(n).is_ok() => {
                body.push(0xd0);
                body.extend_from_slice(&(n as i32).to_le_bytes());
            }
            Some(n) => {
                body.push(0xe0);
                body.extend_from_slice(&n.to_le_bytes());
            }
            None => {
                match element.len() {
                    len @ 0..64 => body.push(len as u8),
                    len @ 64..16384 => body.extend_from_slice(&[0x40 | (len >> 8) as u8, len as u8]),
                    len => {
                        body.push(0x80);
                        body.extend_from_slice(&(len as u32).to_be_bytes());
                    }
                }
                body.extend_from_slice(element);
            }
        }
        before = body.len() - last_at;
    }
    let mut out = Vec::new();
    out.extend_from_slice(&(body.len() as u32 + 11).to_le_bytes());
    out.extend_from_slice(&(last_at as u32 + 10).to_le_bytes());
    out.extend_from_slice(&(elements.len().min(65535) as u16).to_le_bytes());
    out.extend(body);
    out.push(0xff);
    out
}

pub fn intset(numbers: &[i64]) -> Vec<u8> {
    let fits = |bits: u32| numbers.iter().all(|n| (*n << (64 - bits)) >> (64 - bits) == *n);
    let width = [16, 32].into_iter().find(|bits| fits(*bits)).unwrap_or(64) / 8;
    let mut out = width.to_le_bytes().to_vec();
    out.extend_from_slice(&(numbers.len() as u32).to_le_bytes());
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes()[..width as usize]);
    }
    out
}

pub fn zipmap(fields: &[(Vec<u8>, Vec<u8>)], unused: u8) -> Vec<u8> {
    let mut out = vec![fields.len().min(254) as u8];
    let len = |out: &mut Vec<u8>, len: usize| match len {
        0..254 => out.push(len as u8),
        _ => {
            out.push(254);
            out.extend_from_slice(&(len as u32).to_le_bytes());
        }
    };
    for (field, value) in fields {
        len(&mut out, field.len());
        out.extend_from_slice(field);
        len(&mut out, value.len());
        out.push(unused);
        out.extend_from_slice(value);
        out.extend(std::iter::repeat_n(b'?', usize::from(unused)));
    }
    out.push(0xff);
    out
}

/// LZF of literals alone, or of one repeated byte.
pub fn put_packed(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut packed = Vec::new();
    let one = bytes.first().filter(|first| bytes.len() > 12 && bytes.iter().all(|b| b == *first));
    match one {
        Some(first) => {
            packed.extend_from_slice(&[0, *first]);
            let mut left = bytes.len() - 1;
            while left > 0 {
                match left {
                    10.. => {
                        let count = left.min(264);
                        packed.extend_from_slice(&[0xe0, (count - 9) as u8, 0]);
                        left -= count;
                    }
                    _ => {
                        packed.push(left as u8 - 1);
                        packed.extend(std::iter::repeat_n(*first, left));
                        left = 0;
                    }
                }
            }
        }
        None => {
            for chunk in bytes.chunks(32) {
                packed.push(chunk.len() as u8 - 1);
                packed.extend_from_slice(chunk);
            }
        }
    }
    out.push(0xc3);
    put_len(out, packed.len() as u64);
    put_len(out, bytes.len() as u64);
    out.extend(packed);
}

/// A type and one string, packed or unchanged.
pub fn blob(kind: u8, bytes: &[u8], packed: bool) -> Vec<u8> {
    let mut out = vec![kind];
    if packed {
        put_packed(&mut out, bytes)
    } else {
        put_string(&mut out, bytes)
    }
    out
}

/// A type, a number and the rest.
pub fn counted(kind: u8, count: usize, rest: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![kind];
    put_len(&mut out, count as u64);
    rest(&mut out);
    out
}
