//! The log of what was denied (ACL LOG).
//!
//! - L1: the newest entry is the first. An entry like one of the [`LOOKED_AT`] newest, at most [`GROUPED_MS`]
//!   after it, only raises its count and moves it to the front.
//!
//! Cost: O(1); the log is bounded by `acllog-max-len`.

use std::collections::VecDeque;

const GROUPED_MS: u64 = 60_000;
const LOOKED_AT: usize = 10;
/// Bytes of an object and of a name that are kept.
const KEPT: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Command,
    Key,
    Channel,
    Auth,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
            Reason::Auth => "auth",
        }
    }
}

/// The place of a denied call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    TopLevel,
    Multi,
    Lua,
}

impl Context {
    pub fn name(self) -> &'static str {
        match self {
            Context::TopLevel => "toplevel",
            Context::Multi => "multi",
            Context::Lua => "lua",
        }
    }
}

/// An entry. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub count: u64,
    pub reason: Reason,
    pub context: Context,
    pub object: Vec<u8>,
    pub user: Vec<u8>,
    /// The client's line of CLIENT LIST.
    pub client: String,
    pub id: u64,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    pub updated_ms: u64,
}

impl Entry {
    pub fn new(
        (reason, context): (Reason, Context),
        object: &[u8],
        user: &[u8],
        client: String,
        now_ms: u64,
    ) -> Entry {
        let kept = |text: &[u8]| text[..text.len().min(KEPT)].to_vec();
        let (object, user, created_ms, updated_ms) = (kept(object), kept(user), now_ms, now_ms);
        Entry { count: 1, reason, context, object, user, client, id: 0, created_ms, updated_ms }
    }

    fn is_like(&self, other: &Entry) -> bool {
        (self.reason, self.context) == (other.reason, other.context)
            && self.object == other.object
            && self.user == other.user
            && other.updated_ms.saturating_sub(self.updated_ms) <= GROUPED_MS
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Log {
    /// Adds an entry; the log keeps at most so many.
    pub fn add(&mut self, mut entry: Entry, max: usize) {
        let known = self.entries.iter().take(LOOKED_AT).position(|known| known.is_like(&entry));
        match known.and_then(|at| self.entries.remove(at)) {
            Some(known) => {
                let (count, id, created_ms) = (known.count + 1, known.id, known.created_ms);
                self.entries.push_front(Entry { count, id, created_ms, ..entry });
            }
            None => {
                entry.id = self.next_id;
                self.next_id += 1;
                self.entries.push_front(entry);
            }
        }
        self.entries.truncate(max);
    }

    /// The newest entries, at most so many. O(entries).
    pub fn newest(&self, count: usize) -> Vec<Entry> {
        self.entries.iter().take(count).cloned().collect()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(object: &str, now_ms: u64) -> Entry {
        let kind = (Reason::Key, Context::TopLevel);
        Entry::new(kind, object.as_bytes(), b"u", format!("at {now_ms}"), now_ms)
    }

    #[test]
    fn entries_alike_are_one_for_a_minute() {
        let mut log = Log::default();
        log.add(entry("a", 1000), 10);
        log.add(entry("b", 2000), 10);
        log.add(entry("a", 61_000), 10);
        let newest = log.newest(10);
        let shown = |e: &Entry| (e.object.clone(), e.count, e.id, e.created_ms, e.updated_ms);
        let shown: Vec<_> = newest.iter().map(shown).collect();
        assert_eq!(shown, [(b"a".to_vec(), 2, 0, 1000, 61_000), (b"b".to_vec(), 1, 1, 2000, 2000)]);
        assert_eq!(newest[0].client, "at 61000");
        // A minute and a millisecond after the last.
        log.add(entry("a", 121_001), 10);
        assert_eq!(log.newest(1)[0].count, 1);
        assert_eq!(log.newest(1)[0].id, 2);
        log.add(Entry { user: b"v".to_vec(), ..entry("a", 121_001) }, 2);
        assert_eq!(log.newest(10).len(), 2);
        log.clear();
        log.add(entry("a", 121_001), 10);
        assert_eq!((log.newest(10).len(), log.newest(1)[0].id), (1, 4));
        log.add(entry("z", 1), 0);
        assert!(log.newest(10).is_empty());
    }
}
