//! Ids in paths and queries.
//!
//! - T1: an escape is `%` and two hexadecimal digits. Any other `%` is refused.
//! - T2: in a query `+` is a space, and a comma separates ids, escaped or not: client libraries write both.

/// Most ids in a request.
pub const IDS_MAX: usize = 1_000;

/// Why a path or query is not understood, as a text for the client.
pub type Complaint = &'static str;

const BAD_ESCAPE: Complaint = "the target has a % without two hexadecimal digits";

/// Appends the text without its escapes. O(n).
pub fn unescape(text: &[u8], out: &mut Vec<u8>) -> Result<(), Complaint> {
    unescape_as(text, false, out)
}

fn unescape_as(text: &[u8], form: bool, out: &mut Vec<u8>) -> Result<(), Complaint> {
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => {
                let digit = |at: usize| tail.get(at).and_then(|digit| (*digit as char).to_digit(16));
                let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(BAD_ESCAPE) };
                out.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            b'+' if form => out.push(b' '),
            byte => out.push(byte),
        }
    }
    Ok(())
}

/// Puts the first parameter of this name into `value`, without its escapes; false, and nothing: there is none.
/// O(query). Errors: it has a bad escape.
pub fn parameter(query: &[u8], name: &str, value: &mut Vec<u8>) -> Result<bool, Complaint> {
    value.clear();
    let value_of = |pair: &'_ [u8]| Some(pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.len());
    for pair in query.split(|byte| *byte == b'&') {
        if let Some(length) = value_of(pair) {
            return unescape_as(&pair[pair.len() - length..], true, value).map(|()| true);
        }
    }
    Ok(false)
}

/// Finds the ids of a query (`ids=1,2,3`, or `ids=1&ids=2`) and gives each to `each`, in order. `buffer` is a
/// work buffer.
///
/// O(query). Errors: an empty id, more than [`IDS_MAX`] ids, none at all, a bad escape, and the errors of
/// `each`.
pub fn ids(
    query: &[u8],
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]) -> Result<(), Complaint>,
) -> Result<usize, Complaint> {
    let mut count = 0;
    for pair in query.split(|byte| *byte == b'&') {
        let Some(list) = pair.strip_prefix(b"ids=") else { continue };
        buffer.clear();
        unescape_as(list, true, buffer)?;
        for id in buffer.split(|byte| *byte == b',') {
            if id.is_empty() {
                return Err("an id is empty");
            }
            count += 1;
            if count > IDS_MAX {
                return Err("there are more than 1000 ids");
            }
            each(id)?;
        }
    }
    if count == 0 { Err("the ids are missing: use ?ids=1,2,3") } else { Ok(count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(query: &str) -> Result<Vec<String>, Complaint> {
        let mut found = Vec::new();
        ids(query.as_bytes(), &mut Vec::new(), |id| {
            found.push(String::from_utf8_lossy(id).into_owned());
            if id == b"no" { Err("no") } else { Ok(()) }
        })?;
        Ok(found)
    }

    #[test]
    fn ids_come_in_several_spellings() {
        for query in ["ids=1,2,3", "ids=1%2C2,3", "x=y&ids=1,2&z&ids=3", "ids=1&ids=2&ids=3"] {
            assert_eq!(list(query).unwrap(), ["1", "2", "3"], "{query}");
        }
        assert_eq!(list("ids=a+b,c%2Bd").unwrap(), ["a b", "c+d"]);
        for bad in ["", "ids=", "ids=1,,2", "id=1", "ids=%2", "ids=%+1", "IDS=1", "ids=1,no"] {
            assert!(list(bad).is_err(), "{bad}");
        }
        let many = |n: usize| format!("ids={}", vec!["7"; n].join(","));
        assert_eq!(list(&many(IDS_MAX)).unwrap().len(), IDS_MAX);
        assert!(list(&many(IDS_MAX + 1)).is_err());
    }

    #[test]
    fn bad_escapes_are_refused() {
        for bad in ["%", "%4", "%4g", "%%41", "% 1", "%+1", "a%"] {
            assert!(unescape(bad.as_bytes(), &mut Vec::new()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_escaped_is_read_again(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let escaped: String = bytes.iter().map(|byte| format!("%{byte:02x}")).collect();
            let mut out = Vec::new();
            prop_assert!(unescape(escaped.as_bytes(), &mut out).is_ok());
            prop_assert_eq!(out, bytes);
        }
    }
}
