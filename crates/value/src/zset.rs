//! Sorted sets.
use crate::Enc;

/// A sorted set.
#[derive(Clone)]
#[allow(dead_code)]
pub struct ZSet(crate::arc::Arc<()>);

impl ZSet {
    pub fn len(&self) -> usize {
        0
    }
    pub fn is_empty(&self) -> bool {
        true
    }
    pub fn mem_bytes(&self) -> usize {
        0
    }
    pub fn encoding(&self) -> Enc {
        Enc::HashTable
    }
}
