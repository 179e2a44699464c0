//! The one spelling of an id (D3), for the drivers of tables.

use crate::IdType;
use std::sync::atomic::{AtomicU8, Ordering};

/// The type of a table's ids, once the database was asked.
pub struct Known(AtomicU8);

const ORDER: [IdType; 5] = [IdType::Auto, IdType::Integer, IdType::Text, IdType::Uuid, IdType::ObjectId];

impl Known {
    pub fn new(id_type: IdType) -> Known {
        let known = Known(AtomicU8::new(0));
        known.set(id_type);
        known
    }

    pub fn set(&self, id_type: IdType) {
        let at = ORDER.iter().position(|t| *t == id_type).unwrap_or(0);
        self.0.store(at as u8, Ordering::Relaxed);
    }

    pub fn get(&self) -> IdType {
        ORDER[self.0.load(Ordering::Relaxed) as usize % ORDER.len()]
    }

    /// Whether text is an id in its one spelling. Before the database was asked any text is accepted, and the
    /// id is checked again when it is bound.
    pub fn accepts(&self, id: &[u8]) -> bool {
        match self.get() {
            IdType::Integer => integer(id).is_some(),
            IdType::Uuid => is_uuid(id),
            IdType::Auto | IdType::Text => text(id).is_some(),
            IdType::ObjectId => false,
        }
    }
}

/// Reads a 64-bit integer spelled as it is printed: no sign but a minus, no leading zero, no blank.
pub fn integer(id: &[u8]) -> Option<i64> {
    let digits = id.strip_prefix(b"-").unwrap_or(id);
    let plain = digits.iter().all(u8::is_ascii_digit) && digits.first() != Some(&b'0');
    if !plain && id != b"0" {
        return None;
    }
    std::str::from_utf8(id).ok()?.parse().ok()
}

/// Text that every database can hold: UTF-8 without a zero byte.
pub fn text(id: &[u8]) -> Option<&str> {
    std::str::from_utf8(id).ok().filter(|text| !text.contains('\0'))
}

/// Whether it is `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, in small letters.
pub fn is_uuid(id: &[u8]) -> bool {
    id.len() == 36
        && id.iter().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => matches!(b, b'0'..=b'9' | b'a'..=b'f'),
        })
}

/// Whether it is 24 hexadecimal digits in small letters.
pub fn is_object_id(id: &[u8]) -> bool {
    id.len() == 24 && id.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        for (id, n) in [
            ("0", 0),
            ("42", 42),
            ("-7", -7),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(integer(id.as_bytes()), Some(n));
            assert_eq!(n.to_string(), id);
        }
        for id in
            ["", "-", "-0", "042", "+42", " 42", "42 ", "4.2", "4e2", "0x2a", "٤٢", "9223372036854775808"]
        {
            assert_eq!(integer(id.as_bytes()), None, "{id}");
        }
        assert!(is_uuid(b"0f8fad5b-d9cb-469f-a165-70867728950e"));
        for id in [
            "0F8FAD5B-D9CB-469F-A165-70867728950E",
            "0f8fad5bd9cb469fa16570867728950e",
            "{0f8fad5b-d9cb-469f-a165-70867728950e}",
            "0f8fad5b-d9cb-469f-a165-70867728950",
        ] {
            assert!(!is_uuid(id.as_bytes()), "{id}");
        }
        assert!(text("ü:1".as_bytes()).is_some() && text(b"a\0b").is_none() && text(b"\xff").is_none());
        let known = Known::new(IdType::Auto);
        assert!(known.accepts(b"042"));
        known.set(IdType::Integer);
        assert!(known.accepts(b"42") && !known.accepts(b"042"));
    }
}
