//! Values of modules: the module's name and version, and one string.
//!
//! ```text
//! 7 ─► id, a length of 8 bytes: nine characters of 6 bits, a version of 10 ─► 5 ─► string ─► 0
//! ```

use crate::{Malformed, Reader, VERSION_METADATA, VERSION_VALKEY_9, put_len, types};

/// The characters of names, by number.
const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const VERSION_BITS: u32 = 10;

/// The marks before pieces, and the mark behind the last.
pub(crate) const PIECE_SIGNED: u64 = 1;
pub(crate) const PIECE_UNSIGNED: u64 = 2;
pub(crate) const PIECE_FLOAT: u64 = 3;
pub(crate) const PIECE_DOUBLE: u64 = 4;
pub(crate) const PIECE_STRING: u64 = 5;
pub(crate) const PIECES_END: u64 = 0;

/// The body of a module's value that is one string, stored unchanged. O(bytes).
pub fn module_body(name: &[u8; 9], version: u16, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 24);
    out.push(types::MODULE_2);
    begin_module(&mut out, name, version, data.len());
    out.extend_from_slice(data);
    end_module(&mut out);
    out
}

/// Appends what stands between the type and the bytes of such a value.
pub fn begin_module(out: &mut Vec<u8>, name: &[u8; 9], version: u16, len: usize) {
    let number = |byte: &u8| CHARACTERS.iter().position(|of| of == byte).unwrap_or_default() as u64;
    let id = name.iter().fold(0, |id, byte| id << 6 | number(byte));
    put_len(out, id << VERSION_BITS | u64::from(version) & ((1 << VERSION_BITS) - 1));
    put_len(out, PIECE_STRING);
    put_len(out, len as u64);
}

/// Appends what follows the bytes.
pub fn end_module(out: &mut Vec<u8>) {
    put_len(out, PIECES_END);
}

/// Bytes that name a class of metadata: its name, version and flags.
pub(crate) const CLASS_BYTES: usize = 4;

/// Whether what modules know of a key may come before its type, in this version.
pub(crate) fn has_metadata(version: u16) -> bool {
    (VERSION_METADATA..VERSION_VALKEY_9).contains(&version)
}

/// The body from its type on, without what modules know of the key.
///
/// ```text
/// 243 ─► classes, a length ─► class, 4 bytes ─► pieces ─► 0 ─► … ─► type
/// ```
pub(crate) fn pass_metadata(body: &[u8], version: u16) -> Result<&[u8], Malformed> {
    let mut reader = Reader::new(body);
    if !has_metadata(version) || reader.byte()? != types::KEY_METADATA {
        return Ok(body);
    }
    for _ in 0..reader.len()? {
        reader.bytes(CLASS_BYTES)?;
        while !pass_piece(&mut reader)? {}
    }
    Ok(reader.rest())
}

/// Passes a piece of what a module wrote; true if it was the mark behind the last.
fn pass_piece(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.len()? {
        PIECES_END => return Ok(true),
        PIECE_SIGNED | PIECE_UNSIGNED => _ = reader.len()?,
        PIECE_FLOAT => _ = reader.bytes(4)?,
        PIECE_DOUBLE => _ = reader.bytes(8)?,
        PIECE_STRING => _ = reader.skip_string()?,
        _ => return Err(Malformed),
    }
    Ok(false)
}

/// The name and version in an id.
pub(crate) fn name_and_version(id: u64) -> ([u8; 9], u16) {
    let mut name = [0; 9];
    let mut rest = id >> VERSION_BITS;
    for byte in name.iter_mut().rev() {
        *byte = CHARACTERS[(rest & 63) as usize];
        rest >>= 6;
    }
    (name, (id & ((1 << VERSION_BITS) - 1)) as u16)
}

/// The most work that a body can be. Its contents are not looked at.
pub(crate) fn estimate(body: &[u8]) -> Result<Option<(usize, usize)>, Malformed> {
    Ok(Some((body.len() / 2, body.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    #[test]
    fn an_id_is_nine_characters_and_a_version() {
        let body = module_body(b"reroaring", 1, b"data");
        let mut reader = Reader::new(&body);
        assert_eq!(reader.byte(), Ok(7));
        let id = reader.len().expect("an id");
        assert_eq!(name_and_version(id), (*b"reroaring", 1));
        assert_eq!((reader.len(), reader.len()), (Ok(PIECE_STRING), Ok(4)));
        assert_eq!((reader.bytes(4), reader.len()), (Ok(&b"data"[..]), Ok(PIECES_END)));
        assert_eq!(name_and_version(u64::MAX), (*b"_________", 1023));
    }
}
