//! The parts of a file as they are written. What lies between them are objects: [`crate::Writer`].
//!
//! Each function appends to a buffer. The caller keeps the order, and writes every key once: servers refuse a
//! file with a key that comes twice.

use super::{AUX, EOF, EXPIRETIME_MS, FREQ, Format, IDLE, RESIZEDB, SELECTDB};
use crate::string::put_text;
use crate::{OPCODE_FUNCTION, put_len, put_string};

/// Appends magic and version.
pub fn put_header(out: &mut Vec<u8>, format: Format) {
    out.extend_from_slice(&format.magic());
}

/// Appends a fact about the file. Readers ignore those that they do not know.
pub fn put_aux(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(AUX);
    put_string(out, name);
    put_text(out, value);
}

/// Appends the code of a library of functions.
pub fn put_function(out: &mut Vec<u8>, code: &[u8]) {
    out.push(OPCODE_FUNCTION);
    put_string(out, code);
}

/// Appends which database the next keys are in.
pub fn put_select(out: &mut Vec<u8>, db: u32) {
    out.push(SELECTDB);
    put_len(out, db.into());
}

/// Appends how many keys of this database will come, about, and how many of them expire.
pub fn put_resize(out: &mut Vec<u8>, keys: u64, expires: u64) {
    out.push(RESIZEDB);
    put_len(out, keys);
    put_len(out, expires);
}

/// Appends when the next key expires, in milliseconds since 1970.
pub fn put_expiry(out: &mut Vec<u8>, expire_ms: u64) {
    out.push(EXPIRETIME_MS);
    out.extend_from_slice(&expire_ms.to_le_bytes());
}

/// Appends how often the next key is used.
pub fn put_freq(out: &mut Vec<u8>, freq: u8) {
    out.extend_from_slice(&[FREQ, freq]);
}

/// Appends for how many seconds the next key was not used.
pub fn put_idle(out: &mut Vec<u8>, idle_s: u64) {
    out.push(IDLE);
    put_len(out, idle_s);
}

/// Appends the end. The sum of all bytes up to here, which are summed first, follows: 8 bytes, little-endian.
pub fn put_end(out: &mut Vec<u8>) {
    out.push(EOF);
}
