//! The body of a document: one JSON object, or columns and their text.
//!
//! ```text
//! string                    "text"                       ObjectId      "5f2b0c3e9d1a4b5c6d7e8f90"
//! int, long, double         42  4.5  (4.0 is 4)          date          "2026-01-31T12:00:00.5Z"
//! NaN, ±Infinity            "NaN" "Infinity" "-Infinity" UUID         "0d1f9a52-7c3b-4e6a-9f10-2b3c4d5e6f70"
//! decimal                   "19.90", digits as they are  other binary  its bytes, as "00ff"
//! bool, null                true  null                   timestamp     "2026-01-31T12:00:00Z"
//! document, array           {…} […]                      regex, code   "/a+/i"  "return 1"
//! ```
//!
//! As a hash: the same text without quotes, other binary as it is; documents and arrays are JSON; null is
//! left out.
//!
//! Cost: one pass over the document's bytes.

use super::id::whole;
use crate::{Body, Form, json};
use ::mongodb::bson::spec::BinarySubtype;
use ::mongodb::bson::{
    DateTime, RawArray, RawBinaryRef, RawBsonRef, RawDocument, Uuid, error::Error as Malformed,
};

/// Deepest nesting that is followed; deeper parts become null. MongoDB itself allows 100.
const DEPTH: usize = 200;

/// Milliseconds of the years 0 to 9999.
const FOUR_DIGITS: std::ops::Range<i64> = -62_167_219_200_000..253_402_300_800_000;

/// Makes the body of a document without its fields in `hidden`. Errors: malformed BSON.
pub(super) fn body(document: &RawDocument, form: Form, hidden: &[String]) -> Result<Body, Malformed> {
    match form {
        Form::Json => {
            let mut out = Vec::with_capacity(document.as_bytes().len() * 2);
            object(&mut out, document, hidden, DEPTH)?;
            Ok(Body::Json(out))
        }
        Form::Hash => fields(document, hidden),
    }
}

fn fields(document: &RawDocument, hidden: &[String]) -> Result<Body, Malformed> {
    let mut fields = Vec::new();
    for element in document.iter() {
        let (name, value) = element?;
        let name = name.as_str();
        if hidden.iter().any(|hidden| hidden == name) {
            continue;
        }
        let text = match scalar(value) {
            Scalar::Null => continue,
            Scalar::Bare(text) | Scalar::Text(text) => text.into_bytes(),
            Scalar::Bytes(bytes) => bytes.to_vec(),
            Scalar::Nested => {
                let mut out = Vec::new();
                write(&mut out, value, DEPTH)?;
                out
            }
        };
        fields.push((name.as_bytes().to_vec(), text));
    }
    Ok(Body::Fields(fields))
}

/// When a document was last changed, if that field tells: a date, a timestamp, or a number of seconds or
/// milliseconds.
pub(super) fn modified_ms(document: &RawDocument, field: &str) -> Option<u64> {
    let ms = match document.get(field).ok()?? {
        RawBsonRef::DateTime(time) => time.timestamp_millis(),
        RawBsonRef::Timestamp(time) => i64::from(time.time) * 1000,
        RawBsonRef::Int32(n) => i64::from(n) * 1000,
        RawBsonRef::Int64(n) => milliseconds(n),
        RawBsonRef::Double(n) => milliseconds(whole(n)?),
        _ => return None,
    };
    u64::try_from(ms).ok()
}

/// Takes small numbers for seconds; those reach the year 5138.
fn milliseconds(n: i64) -> i64 {
    if n > 100_000_000_000 { n } else { n.saturating_mul(1000) }
}

enum Scalar<'a> {
    Null,
    /// Stands in JSON as it is.
    Bare(String),
    /// Stands in JSON in quotes.
    Text(String),
    /// Stands in JSON in hexadecimal.
    Bytes(&'a [u8]),
    /// A document or an array.
    Nested,
}

fn scalar(value: RawBsonRef<'_>) -> Scalar<'_> {
    match value {
        RawBsonRef::Null | RawBsonRef::Undefined => Scalar::Null,
        RawBsonRef::Boolean(b) => Scalar::Bare(b.to_string()),
        RawBsonRef::Int32(n) => Scalar::Bare(n.to_string()),
        RawBsonRef::Int64(n) => Scalar::Bare(n.to_string()),
        RawBsonRef::Double(n) => double(n),
        RawBsonRef::Document(_) | RawBsonRef::Array(_) => Scalar::Nested,
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) => Scalar::Text(text.into()),
        RawBsonRef::JavaScriptCode(code) => Scalar::Text(code.into()),
        RawBsonRef::JavaScriptCodeWithScope(code) => Scalar::Text(code.code.into()),
        RawBsonRef::RegularExpression(regex) => {
            Scalar::Text(format!("/{}/{}", regex.pattern.as_str(), regex.options.as_str()))
        }
        RawBsonRef::Decimal128(decimal) => Scalar::Text(decimal.to_string()),
        RawBsonRef::ObjectId(id) => Scalar::Text(id.to_hex()),
        RawBsonRef::DateTime(time) => date(time),
        RawBsonRef::Timestamp(time) => date(DateTime::from_millis(i64::from(time.time) * 1000)),
        RawBsonRef::Binary(value) => binary(value),
        RawBsonRef::MinKey => Scalar::Text("MinKey".into()),
        RawBsonRef::MaxKey => Scalar::Text("MaxKey".into()),
        RawBsonRef::DbPointer(_) => Scalar::Text("DBPointer".into()),
    }
}

/// As JavaScript writes it, but NaN and infinities are text.
fn double(n: f64) -> Scalar<'static> {
    match whole(n) {
        Some(n) => Scalar::Bare(n.to_string()),
        None if n.is_finite() => Scalar::Bare(format!("{n:?}")),
        None if n.is_nan() => Scalar::Text("NaN".into()),
        None => Scalar::Text(if n > 0.0 { "Infinity" } else { "-Infinity" }.into()),
    }
}

/// RFC 3339 text, or milliseconds since 1970 if the year has not four digits.
fn date(time: DateTime) -> Scalar<'static> {
    let ms = time.timestamp_millis();
    match time.try_to_rfc3339_string() {
        Ok(text) if FOUR_DIGITS.contains(&ms) => Scalar::Text(text),
        _ => Scalar::Bare(ms.to_string()),
    }
}

fn binary(value: RawBinaryRef<'_>) -> Scalar<'_> {
    match value.bytes.try_into() {
        Ok(bytes) if value.subtype == BinarySubtype::Uuid => {
            Scalar::Text(Uuid::from_bytes(bytes).to_string())
        }
        _ => Scalar::Bytes(value.bytes),
    }
}

fn write(out: &mut Vec<u8>, value: RawBsonRef, depth: usize) -> Result<(), Malformed> {
    match value {
        RawBsonRef::Document(document) => return object(out, document, &[], depth),
        RawBsonRef::Array(values) => return array(out, values, depth),
        RawBsonRef::String(text) => json::text(out, text),
        _ => match scalar(value) {
            Scalar::Bare(text) => out.extend_from_slice(text.as_bytes()),
            Scalar::Text(text) => json::text(out, &text),
            Scalar::Bytes(bytes) => json::bytes(out, bytes),
            Scalar::Null | Scalar::Nested => out.extend_from_slice(b"null"),
        },
    }
    Ok(())
}

fn object(
    out: &mut Vec<u8>,
    document: &RawDocument,
    hidden: &[String],
    depth: usize,
) -> Result<(), Malformed> {
    let Some(depth) = depth.checked_sub(1) else { return cut_off(out) };
    out.push(b'{');
    let start = out.len();
    for element in document.iter() {
        let (name, value) = element?;
        if hidden.iter().any(|hidden| hidden == name.as_str()) {
            continue;
        }
        if out.len() > start {
            out.push(b',');
        }
        json::text(out, name.as_str());
        out.push(b':');
        write(out, value, depth)?;
    }
    out.push(b'}');
    Ok(())
}

fn array(out: &mut Vec<u8>, values: &RawArray, depth: usize) -> Result<(), Malformed> {
    let Some(depth) = depth.checked_sub(1) else { return cut_off(out) };
    out.push(b'[');
    for (i, value) in values.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write(out, value?, depth)?;
    }
    out.push(b']');
    Ok(())
}

fn cut_off(out: &mut Vec<u8>) -> Result<(), Malformed> {
    out.extend_from_slice(b"null");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::mongodb::bson::oid::ObjectId;
    use ::mongodb::bson::{Binary, Bson, Decimal128, Document, RawDocumentBuf, Regex, Timestamp, doc};

    fn raw(document: &Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(document).unwrap()
    }

    fn json_of(document: Document) -> String {
        match body(&raw(&document), Form::Json, &[]).unwrap() {
            Body::Json(json) => String::from_utf8(json).unwrap(),
            Body::Fields(_) | Body::Unreadable(_) => unreachable!(),
        }
    }

    fn sample() -> Document {
        let decimal: Decimal128 = "19.90".parse().unwrap();
        doc! {
            "_id": ObjectId::parse_str("5f2b0c3e9d1a4b5c6d7e8f90").unwrap(),
            "name": "a \"b\"\n\u{1}é",
            "n": 42,
            "big": i64::MAX,
            "half": 4.5,
            "four": 4.0,
            "price": decimal,
            "at": DateTime::from_millis(1_769_860_800_500),
            "none": Bson::Null,
            "yes": true,
            "raw": Binary { subtype: BinarySubtype::Generic, bytes: b"az".to_vec() },
            "in": { "a": [1, "x", { "b": Bson::Null }], "e": {} },
        }
    }

    #[test]
    fn a_document_as_json() {
        assert_eq!(
            json_of(sample()),
            r#"{"_id":"5f2b0c3e9d1a4b5c6d7e8f90","name":"a \"b\"\n\u0001é","n":42,"big":9223372036854775807,"half":4.5,"four":4,"#
                .to_owned()
                + r#""price":"19.90","at":"2026-01-31T12:00:00.5Z","none":null,"yes":true,"raw":"617a","#
                + r#""in":{"a":[1,"x",{"b":null}],"e":{}}}"#
        );
    }

    #[test]
    fn a_document_as_a_hash() {
        let Body::Fields(fields) = body(&raw(&sample()), Form::Hash, &["yes".into()]).unwrap() else {
            unreachable!()
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (text(name), text(value))).collect();
        let expected = [
            ("_id", "5f2b0c3e9d1a4b5c6d7e8f90"),
            ("name", "a \"b\"\n\u{1}é"),
            ("n", "42"),
            ("big", "9223372036854775807"),
            ("half", "4.5"),
            ("four", "4"),
            ("price", "19.90"),
            ("at", "2026-01-31T12:00:00.5Z"),
            ("raw", "az"),
            ("in", r#"{"a":[1,"x",{"b":null}],"e":{}}"#),
        ];
        assert_eq!(fields, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn rare_kinds_of_values() {
        let regex = Regex {
            pattern: "a+".to_owned().try_into().unwrap(),
            options: "i".to_owned().try_into().unwrap(),
        };
        let document = doc! {
            "v": [f64::NAN, f64::INFINITY, -f64::INFINITY, -0.0, 1e300, 0.1, 9e15, 9_007_199_254_740_992.0],
            "uuid": Uuid::from_bytes([7; 16]),
            "time": Timestamp { time: 1, increment: 2 },
            "far": DateTime::from_millis(i64::MAX),
            "regex": Bson::RegularExpression(regex), "code": Bson::JavaScriptCode("f()".into()), "sym": Bson::Symbol("s".into()),
            "min": Bson::MinKey, "max": Bson::MaxKey, "undef": Bson::Undefined,
        };
        assert_eq!(
            json_of(document),
            r#"{"v":["NaN","Infinity","-Infinity",0,1e300,0.1,9000000000000000,9007199254740992],"#
                .to_owned()
                + r#""uuid":"07070707-0707-0707-0707-070707070707","time":"1970-01-01T00:00:01Z","far":9223372036854775807,"#
                + r#""regex":"/a+/i","code":"f()","sym":"s","min":"MinKey","max":"MaxKey","undef":null}"#
        );
    }

    #[test]
    fn what_nests_without_end_is_cut_off() {
        let bytes = nested_bytes(10_000);
        let json = body(RawDocument::from_bytes(&bytes).unwrap(), Form::Json, &[]).unwrap();
        assert_eq!(
            json,
            Body::Json([r#"{"a":"#.repeat(DEPTH), "null".into(), "}".repeat(DEPTH)].concat().into_bytes())
        );
    }

    /// `{a: {a: … {}}}`, written without recursion.
    fn nested_bytes(depth: usize) -> Vec<u8> {
        let mut bytes = vec![5, 0, 0, 0, 0];
        for _ in 0..depth {
            let length = (bytes.len() as i32 + 8).to_le_bytes();
            bytes = [&length[..], &[3, b'a', 0], &bytes, &[0]].concat();
        }
        bytes
    }

    #[test]
    fn when_it_was_modified() {
        let document = raw(&doc! {
            "at": DateTime::from_millis(1234), "ts": Timestamp { time: 2, increment: 1 }, "n": 5, "s": 1_700_000_000_i64,
            "ms": 1_700_000_000_123_i64, "d": 1_700_000_000_123.0, "text": "x", "before": -5,
        });
        assert_eq!(modified_ms(&document, "at"), Some(1234));
        assert_eq!(modified_ms(&document, "ts"), Some(2000));
        assert_eq!(modified_ms(&document, "n"), Some(5000));
        assert_eq!(modified_ms(&document, "s"), Some(1_700_000_000_000));
        assert_eq!(modified_ms(&document, "ms"), Some(1_700_000_000_123));
        assert_eq!(modified_ms(&document, "d"), Some(1_700_000_000_123));
        for field in ["text", "before", "missing"] {
            assert_eq!(modified_ms(&document, field), None);
        }
    }
}
