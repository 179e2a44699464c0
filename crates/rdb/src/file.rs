//! RDB files: what stands around the objects.
//!
//! ```text
//! REDIS0011 ─► AUX … ─► FUNCTION2 … ─► SELECTDB ─► RESIZEDB ─► keys … ─► SELECTDB … ─► EOF ─► CRC-64 of all before
//! VALKEY080
//!
//! key:  EXPIRETIME_MS, 8 bytes?  ─► FREQ, 1 byte │ IDLE, length?  ─► metadata? ─► type, 1 byte ─► name, a string
//!       ─► object
//! ```
//!
//! [`FileReader`] finds the boundaries of keys without building a value; the `put_` functions write the
//! parts.
//!
//! - R1: no length is trusted. Memory is taken for bytes that have come, and for strings up to what they can
//!   unpack to.
//! - R2: nothing here panics on any input. An error names the offset, the database and the key.
//! - R3: an object is passed over, not checked: its collections may be empty, and its packs broken.
//!   [`crate::decode`] says so.
//!
//! Cost: O(bytes). Memory: one window of 64 KB, the longest name, and what the caller asks to keep.
//!
//! Type 26 (streams with idempotent producers) is read in files of any version, and written into those that need
//! no higher one otherwise: then only files with such streams need a new server.
//!
//! Source: observed on Redis 7.0, Redis 8.0 and Valkey 9.1, and the published descriptions of the format, for
//! version 13 these alone.

mod error;
mod parts;
mod read;
mod skip;
mod window;

pub use error::{Damage, Problem, Shown};
pub use parts::{
    put_aux, put_end, put_expiry, put_freq, put_function, put_header, put_idle, put_resize, put_select,
};
pub use read::{EntryHead, FileReader, LeftOut, Part};
pub use window::{Input, Summed};

use crate::{Dialect, VERSION_FIELD_EXPIRY, VERSION_METADATA, VERSION_VALKEY_9};

pub(crate) const KEY_METADATA: u8 = crate::types::KEY_METADATA;
pub(crate) const SLOT_INFO: u8 = 244;
pub(crate) const MODULE_AUX: u8 = 247;
pub(crate) const IDLE: u8 = 248;
pub(crate) const FREQ: u8 = 249;
pub(crate) const AUX: u8 = 250;
pub(crate) const RESIZEDB: u8 = 251;
pub(crate) const EXPIRETIME_MS: u8 = 252;
pub(crate) const EXPIRETIME: u8 = 253;
pub(crate) const SELECTDB: u8 = 254;
pub(crate) const EOF: u8 = 255;

/// Bytes of magic and version.
pub const HEADER_LEN: usize = 9;
/// The first version with a checksum at the end.
const VERSION_SUM: u16 = 5;

/// The dialect and version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub dialect: Dialect,
    pub version: u16,
}

impl Format {
    /// The last version of Redis that is written, and the only one of Valkey.
    pub const REDIS: Format = Format { dialect: Dialect::Redis, version: VERSION_FIELD_EXPIRY };
    pub const VALKEY: Format = Format { dialect: Dialect::Valkey, version: VERSION_VALKEY_9 };

    /// A format that is read and written here; None if this is none.
    pub fn new(dialect: Dialect, version: u16) -> Option<Format> {
        let known = match dialect {
            Dialect::Redis => (1..=VERSION_FIELD_EXPIRY).contains(&version),
            Dialect::Valkey => version == VERSION_VALKEY_9,
        };
        known.then_some(Format { dialect, version })
    }

    /// The lowest version of a dialect that carries what is there.
    ///
    /// 9 brought the opcodes for accesses, 10 libraries of functions. Fields that expire need the dialect's
    /// own version.
    pub fn lowest(dialect: Dialect, has_functions: bool, has_field_times: bool) -> Format {
        match (dialect, has_field_times) {
            (Dialect::Redis, true) => Format::REDIS,
            (Dialect::Valkey, true) => Format::VALKEY,
            (_, false) => Format { dialect: Dialect::Redis, version: if has_functions { 10 } else { 9 } },
        }
    }

    /// Whether hashes with fields that expire can be written.
    pub fn has_field_times(self) -> bool {
        self == Format::REDIS || self == Format::VALKEY
    }

    /// Whether a checksum stands at the end.
    pub fn has_sum(self) -> bool {
        self.version >= VERSION_SUM
    }

    fn magic(self) -> [u8; HEADER_LEN] {
        let mut magic = match self.dialect {
            Dialect::Redis => *b"REDIS0000",
            Dialect::Valkey => *b"VALKEY000",
        };
        let digits = match self.dialect {
            Dialect::Redis => 4,
            Dialect::Valkey => 3,
        };
        let mut rest = self.version;
        for digit in magic.iter_mut().rev().take(digits) {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        magic
    }

    /// The format that the first bytes of a file name.
    fn of<E>(magic: &[u8; HEADER_LEN]) -> Result<Format, Problem<E>> {
        let (dialect, digits) = match magic {
            [b'R', b'E', b'D', b'I', b'S', digits @ ..] => (Dialect::Redis, &digits[..]),
            [b'V', b'A', b'L', b'K', b'E', b'Y', digits @ ..] => (Dialect::Valkey, &digits[..]),
            _ => return Err(Problem::NoFile),
        };
        if !digits.iter().all(u8::is_ascii_digit) {
            return Err(Problem::NoFile);
        }
        let version = digits.iter().fold(0, |version, digit| version * 10 + u16::from(digit - b'0'));
        let is_newer = dialect == Dialect::Redis && version == VERSION_METADATA;
        let newer = is_newer.then_some(Format { dialect, version });
        Format::new(dialect, version).or(newer).ok_or(Problem::Version { dialect, version })
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.dialect {
            Dialect::Redis => "redis",
            Dialect::Valkey => "valkey",
        };
        write!(f, "{name} version {}", self.version)
    }
}

#[cfg(test)]
mod tests;
