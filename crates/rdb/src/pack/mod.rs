//! Small collections as one string: listpacks, ziplists, intsets, zipmaps.
//!
//! Iterators read them from front to back and check what they pass. After an error, or if an iterator stops
//! early, everything it gave must be thrown away (D1).

mod intset;
mod listpack;
mod node;
mod ziplist;
mod zipmap;

pub(crate) use intset::Intset;
pub(crate) use listpack::Listpack;
pub(crate) use node::Node;
pub use node::NodeWriter;
pub(crate) use ziplist::Ziplist;
pub(crate) use zipmap::Zipmap;

use crate::{Malformed, Reader};

/// A signed little-endian number of `N` bytes, 8 at most.
fn int<const N: usize>(reader: &mut Reader<'_>) -> Result<i64, Malformed> {
    let mut wide = [0; 8];
    wide[8 - N..].copy_from_slice(&reader.array::<N>()?);
    // The shift brings the sign down from the highest byte.
    Ok(i64::from_le_bytes(wide) >> (64 - 8 * N))
}
