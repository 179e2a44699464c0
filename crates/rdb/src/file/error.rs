//! Damage: the place in a file, and the problem.

use crate::Dialect;
use std::fmt;

/// Why a file cannot be read further, with the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage<E> {
    /// Where it was noticed: bytes read so far. An opcode or a value that is not known is named where it
    /// begins.
    pub offset: u64,
    /// Where the part begins that it is in: everything before is sound.
    pub from: u64,
    /// The database selected there.
    pub db: Option<u64>,
    /// The key whose entry it is in.
    pub key: Option<Box<[u8]>>,
    pub what: Problem<E>,
}

/// A reason why a file cannot be read further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem<E> {
    /// The input failed.
    Input(E),
    /// It does not begin as these files do.
    NoFile,
    Version {
        dialect: Dialect,
        version: u16,
    },
    /// It ends too soon.
    Truncated,
    /// An opcode or type that is not known.
    Opcode(u8),
    /// A length that is none, or longer than names can be.
    Length,
    /// A compressed string does not unpack to what it says.
    Packed,
    /// Something that only release candidates wrote, or that cannot be passed over.
    Old(&'static str),
    /// The checksum of all before.
    Sum {
        stored: u64,
        computed: u64,
    },
    /// The object is not what its type says.
    Malformed,
    /// It is sound and of a kind that is not read.
    Unsupported(String),
    /// The key was there before in the same database.
    Twice,
    /// It was read, and not taken.
    Refused(String),
}

impl<E> Problem<E> {
    /// Whether the bytes are to blame, so that what precedes them may be of use.
    pub fn is_damage(&self) -> bool {
        match self {
            Problem::Input(_) | Problem::Truncated | Problem::Opcode(_) | Problem::Length => true,
            Problem::Packed | Problem::Sum { .. } | Problem::Malformed | Problem::Twice => true,
            Problem::NoFile | Problem::Version { .. } | Problem::Old(_) => false,
            Problem::Unsupported(_) | Problem::Refused(_) => false,
        }
    }
}

impl<E> Damage<E> {
    /// The same with another type of input errors.
    pub fn map_input<F>(self, map: impl FnOnce(E) -> F) -> Damage<F> {
        let what = match self.what {
            Problem::Input(error) => Problem::Input(map(error)),
            Problem::NoFile => Problem::NoFile,
            Problem::Version { dialect, version } => Problem::Version { dialect, version },
            Problem::Truncated => Problem::Truncated,
            Problem::Opcode(code) => Problem::Opcode(code),
            Problem::Length => Problem::Length,
            Problem::Packed => Problem::Packed,
            Problem::Old(what) => Problem::Old(what),
            Problem::Sum { stored, computed } => Problem::Sum { stored, computed },
            Problem::Malformed => Problem::Malformed,
            Problem::Unsupported(what) => Problem::Unsupported(what),
            Problem::Twice => Problem::Twice,
            Problem::Refused(why) => Problem::Refused(why),
        };
        Damage { offset: self.offset, from: self.from, db: self.db, key: self.key, what }
    }
}

/// Bytes of a key that are shown.
const SHOWN: usize = 100;

/// A key as it is shown: escaped, and cut where it is long.
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN)];
        let more = if cut.len() < self.0.len() { "…" } else { "" };
        write!(f, "\"{}{more}\"", cut.escape_ascii())
    }
}

impl<E: fmt::Display> fmt::Display for Damage<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file offset {}", self.offset)?;
        if let Some(key) = &self.key {
            write!(f, ", key {}", Shown(key))?;
        }
        if let Some(db) = self.db {
            write!(f, ", database {db}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl<E: fmt::Display> fmt::Display for Problem<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Input(error) => write!(f, "the file cannot be read: {error}"),
            Problem::NoFile => f.write_str("this is no RDB file"),
            Problem::Version { dialect: Dialect::Redis, version } => {
                write!(f, "Redis version {version} of the format is not supported (1 to 13 are)")
            }
            Problem::Version { dialect: Dialect::Valkey, version } => {
                write!(f, "Valkey version {version} of the format is not supported (80 is)")
            }
            Problem::Truncated => f.write_str("the file ends too soon"),
            Problem::Opcode(code) => write!(f, "unknown opcode or type {code}"),
            Problem::Length => f.write_str("an impossible length"),
            Problem::Packed => f.write_str("a compressed string does not unpack"),
            Problem::Old(what) => write!(f, "{what} are not supported"),
            Problem::Sum { stored, computed } => {
                write!(
                    f,
                    "the checksum of the file is {stored:016x}, and that of its contents {computed:016x}"
                )
            }
            Problem::Malformed => f.write_str("the value is malformed"),
            Problem::Unsupported(what) => f.write_str(what),
            Problem::Twice => f.write_str("the key comes twice"),
            Problem::Refused(why) => f.write_str(why),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Damage<E> {}
