//! Places on the earth: sorted sets whose scores are cells of 52 bits.
//!
//! ```text
//! longitude, latitude ─► the cell of 26 steps (bits of both in turn) ─► score
//! area ─► its bounds ─► up to nine larger cells ─► as many ranges of scores ─► the members whose place is inside
//! ```
//!
//! - E1: a place read back is the middle of its cell, so it lies up to 0.6 m from the one that was added.
//! - E2: the nine cells, their order and the order within one are those of Redis, as an unsorted answer shows.
//!
//! A search costs O(log n) for each cell, and a distance for each member in them.

mod answer;
mod area;
mod cell;
pub(crate) mod places;
pub(crate) mod search;
mod sphere;
mod text;
