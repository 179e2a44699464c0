//! JSON writing for the drivers that build rows themselves.

/// Appends a string with its quotes. O(text).
pub(crate) fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|b| *b < 0x20 || *b == b'"' || *b == b'\\') {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', b]),
            b => out.extend_from_slice(format!("\\u{b:04x}").as_bytes()),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Appends bytes as a string of hexadecimal digits, with its quotes. O(bytes).
pub(crate) fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    out.extend(bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]));
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_written_reads_back() {
        let all: String = (0..0x100u32).chain([0x2028, 0x1_f600]).filter_map(char::from_u32).collect();
        let mut out = Vec::new();
        super::text(&mut out, &all);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), all);
        assert!(out.starts_with(br#""\u0000"#) && out.windows(7).any(|w| w == br#"\t\n\u0"#));
        out.clear();
        super::bytes(&mut out, &[0, 0x7f, 0xff]);
        assert_eq!(out, br#""007fff""#);
    }
}
