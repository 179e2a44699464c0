//! Keys of database 0 that are kept elsewhere. A command that meets one must not take it for absent.

use parking_lot::RwLock;
use std::sync::Arc;

/// Says why a key cannot be read here. `None`: it can be read.
pub type Elsewhere = Arc<dyn Fn(&[u8]) -> Option<String> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Kept(RwLock<Option<Elsewhere>>);

impl Kept {
    fn get(&self) -> Option<Elsewhere> {
        self.0.read().clone()
    }
}

impl crate::Keyspace {
    /// Sets the test for keys of database 0 that are kept elsewhere. `None`: there are none.
    pub fn set_elsewhere(&self, elsewhere: Option<Elsewhere>) {
        *self.elsewhere.0.write() = elsewhere;
    }
}

impl crate::View<'_> {
    /// The test for keys of the current database that are kept elsewhere, if there are any. Takes a lock that
    /// is held only for moments.
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        if self.db() == 0 { self.keyspace().elsewhere.get() } else { None }
    }
}
