//! Keys of database 0 that are kept elsewhere: who comes upon one while a command runs does not take it for absent.

use parking_lot::RwLock;
use std::sync::Arc;

/// Says of a key why it cannot be looked at here; None: it can.
pub type Elsewhere = Arc<dyn Fn(&[u8]) -> Option<String> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Kept(RwLock<Option<Elsewhere>>);

impl Kept {
    fn get(&self) -> Option<Elsewhere> {
        self.0.read().clone()
    }
}

impl crate::Keyspace {
    /// Says which keys of database 0 are kept elsewhere from now on; None: none.
    pub fn set_elsewhere(&self, elsewhere: Option<Elsewhere>) {
        *self.elsewhere.0.write() = elsewhere;
    }
}

impl crate::View<'_> {
    /// Which keys of the current database are kept elsewhere, if some are. Cost: a lock nobody holds for long.
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        if self.db() == 0 { self.keyspace().elsewhere.get() } else { None }
    }
}
