//! Keys of database 0 that are kept elsewhere. A command that meets one must not take it for absent.

use parking_lot::RwLock;
use std::sync::Arc;

/// Says why a key cannot be read here; `None`: it can.
pub type Elsewhere = Arc<dyn Fn(&[u8]) -> Option<String> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Kept(RwLock<Option<Elsewhere>>);

impl Kept {
    fn get(&self) -> Option<Elsewhere> {
        self.0.read().clone()
    }
}

impl crate::Keyspace {
    /// Sets which keys of database 0 are kept elsewhere; `None`: none.
    pub fn set_elsewhere(&self, elsewhere: Option<Elsewhere>) {
        *self.elsewhere.0.write() = elsewhere;
    }
}

impl crate::View<'_> {
    /// Tells which keys of the current database are kept elsewhere; `None`: none. Takes a lock that is held
    /// only for moments.
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        if self.db() == 0 { self.keyspace().elsewhere.get() } else { None }
    }
}
