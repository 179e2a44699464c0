//! Writes that the primary of this server does not have, as EVENKEEL LOST shows them.

use resp::{OwnedArgs, Reply};

/// A file of writes that the primary of this server does not have.
#[derive(Clone, Debug, Default)]
pub struct LostFile {
    pub name: String,
    /// The id of the history, and the first and the last byte of it that are lost.
    pub id: String,
    pub first: u64,
    pub end: u64,
    /// The primary said that it lacks them; else it may have some.
    pub is_certain: bool,
    /// All that was lost is in it.
    pub is_whole: bool,
    pub commands: u64,
    /// Milliseconds since 1970 of the first and the last; 0: not known.
    pub first_ms: u64,
    pub last_ms: u64,
    /// Why it cannot be read; empty: it can.
    pub error: String,
}

/// A lost write.
#[derive(Clone, Debug, Default)]
pub struct LostWrite {
    pub wall_ms: u64,
    pub db: u32,
    pub words: Vec<Vec<u8>>,
}

impl LostWrite {
    /// Its keys, as far as its words are kept. O(words)
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let words: OwnedArgs = self.words.iter().map(Vec::as_slice).collect();
        let (args, mut keys) = (words.args(), Vec::new());
        if let Some(command) = args.get(0).and_then(command::registry::find) {
            command.each_key(args, &mut |at, _| keys.extend(args.get(at).map(<[u8]>::to_vec)));
        }
        keys
    }
}

impl LostFile {
    /// Writes it as a map. O(1)
    pub fn write(&self, out: &mut Reply) {
        let texts = [("file", &self.name), ("history", &self.id), ("error", &self.error)];
        out.map(if self.error.is_empty() { 9 } else { 10 });
        for (name, text) in texts.into_iter().filter(|(name, text)| *name != "error" || !text.is_empty()) {
            out.bulk(name.as_bytes());
            out.bulk(text.as_bytes());
        }
        let numbers = [
            ("first-offset", self.first),
            ("last-offset", self.end),
            ("certain", self.is_certain.into()),
            ("whole", self.is_whole.into()),
            ("commands", self.commands),
            ("first-ms", self.first_ms),
            ("last-ms", self.last_ms),
        ];
        for (name, number) in numbers {
            out.bulk(name.as_bytes());
            out.int(number as i64);
        }
    }
}

impl LostWrite {
    /// Writes it as a map, with its keys. O(its words)
    pub fn write(&self, keys: &[Vec<u8>], out: &mut Reply) {
        out.map(4);
        out.bulk(b"time-ms");
        out.int(self.wall_ms as i64);
        out.bulk(b"db");
        out.int(self.db.into());
        for (name, words) in [("keys", keys), ("command", &self.words[..])] {
            out.bulk(name.as_bytes());
            out.array(words.len());
            words.iter().for_each(|word| out.bulk(word));
        }
    }
}
