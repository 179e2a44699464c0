//! A replica's clients may not write: only the connection to its primary does.

use std::sync::atomic::{AtomicU64, Ordering};

/// The error of a write by a client of a replica.
pub const READONLY: &str = "READONLY You can't write against a read only replica.";

/// No client has this id.
const NOBODY: u64 = 0;

/// Which client alone may write. See the module.
#[derive(Default)]
pub struct Follows {
    /// The id of the connection to the primary, plus one; 0: all may write.
    writer: AtomicU64,
}

impl Follows {
    /// Lets only the connection to the primary write, once there is one.
    pub fn begin(&self) {
        let _ = self.writer.compare_exchange(0, NOBODY + 1, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Names the connection to the primary. None: there is none now.
    pub fn set_link(&self, client: Option<u64>) {
        if self.writer.load(Ordering::Acquire) != 0 {
            self.writer.store(client.unwrap_or(NOBODY) + 1, Ordering::Release);
        }
    }

    /// Lets all clients write.
    pub fn end(&self) {
        self.writer.store(0, Ordering::Release);
    }

    /// Whether writes of this client are refused.
    #[inline]
    pub fn refuses(&self, client: u64) -> bool {
        let writer = self.writer.load(Ordering::Acquire);
        writer != 0 && writer != client + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_link_may_write() {
        let follows = Follows::default();
        assert!(!follows.refuses(7));
        follows.begin();
        assert!(follows.refuses(7));
        follows.set_link(Some(7));
        follows.begin();
        assert!(!follows.refuses(7) && follows.refuses(8));
        follows.set_link(None);
        assert!(follows.refuses(7));
        follows.end();
        follows.set_link(Some(7));
        assert!(!follows.refuses(8));
    }
}
