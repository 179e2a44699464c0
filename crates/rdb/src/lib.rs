//! Redis's serialization format, bytes to values and back, without I/O: the contents of DUMP payloads and RDB
//! files.
//!
//! ```text
//! DUMP payload:  body ─────────────────────────────► version, 2 bytes ─► CRC-64 of all before, 8 bytes
//! string:        length ─► bytes                     small integer, 1 + 1, 2 or 4 bytes, or LZF-compressed
//! length:        00llllll   01llllll llllllll   10000000 + 4 bytes   10000001 + 8 bytes   11tttttt: none
//! ```
//!
//! ```text
//! any server's payload ─► open ─► decode ─► a Sink    ListPayload, SetPayload, … ─► a payload for any server
//!                     └─► translate ─► the same for Redis, or for Valkey
//! ```
//!
//! Whole files are read and written in [`file`], also without I/O.
//!
//! The footer is little-endian, lengths are big-endian, integers that stand for strings are little-endian.
//!
//! - D1: nothing here panics, or takes memory for a length that is merely announced. Every length is checked
//!   against the bytes there are, a compressed string against the most it can expand to.
//! - D2: every server reads what is written here, from the version in the footer on.
//! - D3: a payload is opened only if its checksum fits. So an error found afterwards was written by the
//!   sender.
//!
//! Cost: O(bytes). Source: observed on Redis 6.2, Redis 7.0, Redis 8.0 and Valkey 9.1.
#![forbid(unsafe_code)]

mod build;
mod compressed;
mod crc64;
mod decode;
pub mod file;
mod item;
mod lzf;
mod module;
mod pack;
mod payload;
mod stream;
mod string;
mod translate;
mod types;
mod write;

pub use build::{Dialect, HashPayload, ListPayload, SetPayload, ZSetPayload, string_payload};
pub use compressed::{CompressedPieces, CompressedString, gains_from, is_compressed};
pub use crc64::crc64;
pub use decode::{Failure, Sink, Unsupported, decode, estimate};
pub use item::Item;
pub use module::{begin_module, end_module, module_body};
pub use pack::NodeWriter;
pub use payload::{open, open_in_pieces, seal, seal_in_pieces};
pub use stream::{
    StreamCounts, StreamFacts, StreamPart, put_stream_id, put_stream_id_as_lens, put_stream_node_id,
};
pub use string::{Reader, put_int, put_len, put_string, put_text};
pub use translate::translate;
pub use types::kind_of;
pub use write::{Form, Writer};

/// Format version with scores as doubles (Redis 4.0): all types of values except hashes with fields that
/// expire.
pub const VERSION_VALUES: u16 = 8;
/// Format version with streams that know how many entries were added (Redis 7.0).
pub const VERSION_STREAMS: u16 = 10;
/// Format version with consumers that know when they were active (Redis 7.2).
pub const VERSION_ACTIVE_CONSUMERS: u16 = 11;
/// Format version with fields that expire (Redis 7.4).
pub const VERSION_FIELD_EXPIRY: u16 = 12;
/// Format version with metadata of modules and with streams that know their producers (Redis 8.6).
pub const VERSION_METADATA: u16 = 13;
/// Format version of Valkey 9, with fields that expire. Valkey left the numbers below to Redis.
pub const VERSION_VALKEY_9: u16 = 80;

/// Format version with libraries of functions in their present form (Redis 7.0).
pub const VERSION_FUNCTIONS: u16 = 10;

/// The code of a library follows, as a string.
pub const OPCODE_FUNCTION: u8 = 245;
/// As `OPCODE_FUNCTION`, in a form that only release candidates of Redis 7.0 wrote.
pub const OPCODE_FUNCTION_CANDIDATE: u8 = 246;

/// The bytes are malformed: an early end, an unknown encoding, or an impossible length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed serialized data")
    }
}

impl std::error::Error for Malformed {}
