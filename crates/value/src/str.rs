//! Strings.
use crate::Enc;

/// A string.
#[derive(Clone)]
#[allow(dead_code)]
pub struct Str(crate::arc::Arc<()>);

impl Str {
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
    pub fn as_ref(&self) -> StrRef<'_> {
        StrRef::Flat(&[])
    }
}

/// A borrowed string.
#[derive(Clone, Copy)]
pub enum StrRef<'a> {
    Flat(&'a [u8]),
}

impl StrRef<'_> {
    pub fn to_str(&self) -> Str {
        Str(crate::arc::Arc::new(()))
    }
}
