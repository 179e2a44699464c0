//! The spelling of a document's `_id` in a key, and the values that an id from a key may have in the
//! collection (D3).
//!
//! ```text
//! key                              looked for                                     spelled
//! 42                               the number 42, and with `auto` the text "42"   42, 42.0, NumberLong(42)
//! 5f2b…24 hex digits, lower case   ObjectId, and with `auto` the text             as it stands
//! 0d1f…-… lower case, with hyphens UUID (subtype 4), and with `auto` the text     as it stands
//! anything else                    the text                                       as it stands
//! ```
//!
//! With `auto` two documents can have one spelling, for instance a number and a text. Then the key is that of
//! the document whose `_id` is no text. News of either drops what is kept under the key.
//!
//! An `_id` of another kind (a document, a date, 4.5) has no spelling: no key reaches it.

use crate::{Id, IdType};
use ::mongodb::bson::oid::ObjectId;
use ::mongodb::bson::spec::BinarySubtype;
use ::mongodb::bson::{Bson, RawBsonRef, Uuid};
use mapping::spelling;

/// Longest id; longer ones name no document.
const MAX_BYTES: usize = 1024;

/// Whether text is an id in its one spelling.
pub(super) fn accepts(id_type: IdType, id: &[u8]) -> bool {
    !values(id_type, id).is_empty()
}

/// The values an id may have in the collection, the preferred one first; none: it is no id.
pub(super) fn values(id_type: IdType, id: &[u8]) -> Vec<Bson> {
    let Some(text) = Some(id).filter(|id| id.len() <= MAX_BYTES).and_then(|id| std::str::from_utf8(id).ok())
    else {
        return Vec::new();
    };
    let value = match id_type {
        IdType::Integer => integer(text),
        IdType::ObjectId => object_id(text),
        IdType::Uuid => uuid(text),
        IdType::Text => Some(Bson::String(text.into())),
        IdType::Auto => {
            let typed = integer(text).or_else(|| object_id(text)).or_else(|| uuid(text));
            return typed.into_iter().chain([Bson::String(text.into())]).collect();
        }
    };
    value.into_iter().collect()
}

fn integer(text: &str) -> Option<Bson> {
    spelling::integer(text.as_bytes()).map(Bson::Int64)
}

fn object_id(text: &str) -> Option<Bson> {
    let id = ObjectId::parse_str(text).ok()?;
    (id.to_hex() == text).then_some(Bson::ObjectId(id))
}

fn uuid(text: &str) -> Option<Bson> {
    let id = Uuid::parse_str(text).ok()?;
    (id.to_string() == text).then_some(Bson::Binary(id.into()))
}

/// The spelling of an `_id`, and whether it comes before a text of the same spelling. None: it has no
/// spelling.
pub(super) fn spelled(id_type: IdType, value: RawBsonRef) -> Option<(Id, bool)> {
    let (kind, text) = match value {
        RawBsonRef::Int32(n) => (IdType::Integer, n.to_string()),
        RawBsonRef::Int64(n) => (IdType::Integer, n.to_string()),
        RawBsonRef::Double(n) => (IdType::Integer, whole(n)?.to_string()),
        RawBsonRef::ObjectId(id) => (IdType::ObjectId, id.to_hex()),
        RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Uuid => {
            (IdType::Uuid, Uuid::from_bytes(binary.bytes.try_into().ok()?).to_string())
        }
        RawBsonRef::String(text) => (IdType::Text, text.into()),
        _ => return None,
    };
    let fits = (id_type == IdType::Auto || id_type == kind) && text.len() <= MAX_BYTES;
    fits.then(|| (text.into_bytes().into(), kind != IdType::Text))
}

/// The integer a double stands for, if it is one.
pub(super) fn whole(n: f64) -> Option<i64> {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    (n.fract() == 0.0 && (-TWO_TO_63..TWO_TO_63).contains(&n)).then_some(n as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::mongodb::bson::{RawDocumentBuf, doc};

    const HEX: &str = "5f2b0c3e9d1a4b5c6d7e8f90";
    const UUID: &str = "0d1f9a52-7c3b-4e6a-9f10-2b3c4d5e6f70";

    #[test]
    fn an_id_has_one_spelling() {
        let accepted = |id_type, text: &str| accepts(id_type, text.as_bytes());
        for text in ["0", "42", "-7", "9223372036854775807"] {
            assert!(accepted(IdType::Integer, text), "{text}");
        }
        for text in ["", "-0", "+1", "007", " 1", "1.0", "9223372036854775808", "x"] {
            assert!(!accepted(IdType::Integer, text), "{text}");
        }
        assert!(accepted(IdType::ObjectId, HEX) && !accepted(IdType::ObjectId, &HEX.to_uppercase()));
        assert!(accepted(IdType::Uuid, UUID) && !accepted(IdType::Uuid, &UUID.to_uppercase()));
        assert!(!accepted(IdType::Uuid, &UUID.replace('-', "")));
        assert!(accepted(IdType::Text, "007") && accepted(IdType::Auto, "007"));
        assert!(!accepts(IdType::Text, b"\xff") && !accepts(IdType::Auto, &[b'x'; MAX_BYTES + 1]));
    }

    #[test]
    fn auto_looks_for_all_that_an_id_may_be() {
        let found = |text: &str| values(IdType::Auto, text.as_bytes());
        assert_eq!(found("42"), [Bson::Int64(42), Bson::String("42".into())]);
        assert_eq!(found("042"), [Bson::String("042".into())]);
        assert_eq!(found(HEX), [Bson::ObjectId(ObjectId::parse_str(HEX).unwrap()), Bson::String(HEX.into())]);
        assert_eq!(found(UUID)[0], Bson::Binary(Uuid::parse_str(UUID).unwrap().into()));
    }

    /// Every value that an id is looked for as is spelled as that id.
    #[test]
    fn looking_for_and_spelling_agree() {
        let types = [IdType::Auto, IdType::Integer, IdType::Text, IdType::Uuid, IdType::ObjectId];
        for text in ["42", "-7", "0", "007", "a b", HEX, UUID, &HEX.to_uppercase(), "9223372036854775807"] {
            for id_type in types {
                for value in values(id_type, text.as_bytes()) {
                    let raw = RawDocumentBuf::try_from(&doc! { "_id": value }).unwrap();
                    let (id, _) = spelled(id_type, raw.get("_id").unwrap().unwrap()).unwrap();
                    assert_eq!(&*id, text.as_bytes());
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_equal_are_spelled_alike() {
        let text = |value: RawBsonRef| spelled(IdType::Auto, value).map(|(id, _)| id);
        for value in [RawBsonRef::Int32(42), RawBsonRef::Int64(42), RawBsonRef::Double(42.0)] {
            assert_eq!(text(value).as_deref(), Some(&b"42"[..]));
        }
        assert_eq!(text(RawBsonRef::Double(-0.0)).as_deref(), Some(&b"0"[..]));
        for value in [4.5, f64::NAN, f64::INFINITY, 1e19] {
            assert_eq!(text(RawBsonRef::Double(value)), None);
        }
        assert_eq!(text(RawBsonRef::Boolean(true)), None);
        assert_eq!(spelled(IdType::Text, RawBsonRef::Int32(42)), None);
    }
}
