//! Values to payloads and back ([`serial`]), with the errors that clients get.

use crate::Error;
use rdb::Dialect;
use serial::Failure;
use value::Value;

pub use serial::{Charge, Decoded, has_dialects, read_cost, read_cost_of_many, set_compression, write_cost};

/// The payload of a value as of now, for Redis. `None`: nothing of it is left. Cost: O(bytes).
///
/// Errors: those of `charge`; a compressed bitmap is too long.
pub fn encode(value: &Value, now_ms: u64, charge: &mut Charge<'_, Error>) -> Result<Option<Vec<u8>>, Error> {
    encode_for(Dialect::Redis, value, now_ms, charge)
}

/// As [`encode`], for servers of a dialect.
pub fn encode_for(
    dialect: Dialect,
    value: &Value,
    now_ms: u64,
    charge: &mut Charge<'_, Error>,
) -> Result<Option<Vec<u8>>, Error> {
    serial::encode_for(dialect, value, now_ms, charge).map_err(told)
}

/// The value of a payload as of now. Cost: O(bytes), unpacked.
///
/// Errors: DUMP payload version or checksum are wrong; Bad data format, with the type if it is sound but not
/// supported; those of `charge`.
pub fn decode(payload: &[u8], now_ms: u64, charge: &mut Charge<'_, Error>) -> Result<Decoded, Error> {
    serial::decode(payload, now_ms, charge).map_err(told)
}

fn told(failure: Failure<Error>) -> Error {
    match failure {
        Failure::Stopped(error) => error,
        Failure::TooLong => Error::new("ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        Failure::Sum => Error::new("ERR DUMP payload version or checksum are wrong"),
        Failure::Malformed => Error::new("ERR Bad data format"),
        Failure::Unsupported(what) => Error::from(format!("ERR Bad data format: {what}")),
    }
}
