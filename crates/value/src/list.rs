//! Lists.
use crate::Enc;

/// A list.
#[derive(Clone)]
#[allow(dead_code)]
pub struct List(crate::arc::Arc<()>);

impl List {
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
