//! Keys that a run of several commands reads, for a client that keeps copies of what it read (CLIENT TRACKING).
//!
//! - RD1: a key that the run writes to after it has read it is *stale*: what the client read is old already.
//! - RD2: a command counts as Redis counts it: one with the flag `readonly` reads the keys it declares.
//!
//! Cost: O(log keys) and a copy of the name for each key.

use crate::Command;
use crate::table::READONLY;
use resp::Args;
use std::collections::BTreeSet;

/// Bytes of a key besides its name, about.
const EACH: usize = 64;

/// See the module.
#[derive(Default, Debug)]
pub struct Reads {
    keys: BTreeSet<Box<[u8]>>,
    stale: BTreeSet<Box<[u8]>>,
}

impl Reads {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.stale.is_empty()
    }

    /// Notes a command that is about to run. Gives the bytes that this takes.
    pub fn note(&mut self, command: &Command, args: Args<'_>) -> usize {
        let mut bytes = 0;
        if command.has(READONLY) {
            command.each_key(args, &mut |i, _| {
                if !self.keys.contains(args.at(i)) {
                    bytes += args.at(i).len() + EACH;
                    self.keys.insert(args.at(i).into());
                }
            });
        } else if command.is_write() && !self.keys.is_empty() {
            command.each_key(args, &mut |i, _| {
                if let Some(key) = self.keys.take(args.at(i)) {
                    self.stale.insert(key);
                }
            });
        }
        bytes
    }

    /// Adds what was read after it.
    pub fn append(&mut self, mut next: Reads) {
        self.keys.append(&mut next.keys);
        self.stale.append(&mut next.stale);
    }

    /// The keys whose copies are good, and those that are stale. O(stale ones).
    pub fn into_parts(self) -> (impl Iterator<Item = Box<[u8]>> + Send + 'static, Vec<Box<[u8]>>) {
        (self.keys.into_iter(), self.stale.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_written_after_its_read_is_stale() {
        let mut reads = Reads::default();
        let mut note = |words: &str| {
            let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            let words = resp::OwnedArgs::from_slices(&words);
            let command = crate::resolve(words.args()).expect("a command");
            reads.note(command, words.args());
        };
        ["SET a 1", "MGET a b", "SET b 1", "GET c", "KEYS *", "GETEX d", "SET c 1", "GET c"]
            .iter()
            .for_each(|w| note(w));
        let (keys, stale) = reads.into_parts();
        let text = |keys: Vec<Box<[u8]>>| {
            keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(text(keys.collect()), ["a", "c"]);
        assert_eq!(text(stale), ["b", "c"]);
    }
}
