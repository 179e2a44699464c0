//! Turns rows into commands: one value for each row, or one for all rows with the same key.
//!
//! ```text
//! row ─┬─ hash, string, json ─────────────────────────────► Piece (RESTORE key ttl payload)
//!      └─ list, set, zset ─► Collection of its key ─(all read, or no memory left)─► Piece
//!                                      later rows of a key that was sent: commands that add to it
//! ```
//!
//! - H1: a key's first piece makes the value and later ones add to it, so a list has the order of its rows.
//! - H2: a payload never has a member twice: a set's duplicate is sent once, a sorted set's with its last
//!   score.
//!
//! Cost: O(bytes), O(n log n) for sets and sorted sets of n members.

use crate::options::{Existing, Kind, Load, Via};
use crate::rows::Row;
use crate::send::SMALL;
use crate::template::{Template, no_column};
use dial::{put_count, put_request, put_word};
use std::collections::{HashMap, HashSet};

/// Most elements in one command that adds to a collection.
const ELEMENTS: usize = 500;
/// Most bytes of elements in one payload; servers take at most 512 MB.
const PAYLOAD_BYTES: usize = 256 << 20;

/// Commands that belong together: they go over one connection, in order.
#[derive(Debug, Default)]
pub struct Piece {
    pub bytes: Vec<u8>,
    pub commands: u32,
    pub rows: u64,
    /// The line of the first row.
    pub line: u64,
    /// Its name in errors if there is no row.
    pub name: String,
    /// The type it is counted under, if any: "hashes".
    pub kind: Option<&'static str>,
    /// The same for all pieces of a key.
    pub route: u64,
    /// The piece makes a key to which others may add (D5).
    pub begins: bool,
    /// The piece adds to a key that an earlier one makes.
    pub adds: bool,
    /// The bytes are no command, but key, time to live and payload, to be gathered with others (D4).
    pub gathered: bool,
}

impl Piece {
    /// Makes it a piece that is gathered with others.
    pub fn gathered(&mut self, key: &[u8], ttl: &[u8], payload: &[u8]) {
        [key, ttl, payload].into_iter().for_each(|word| put_word(&mut self.bytes, word));
        self.commands = 1;
        self.gathered = true;
    }
}

/// The commands by which a server takes payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payloads {
    None,
    /// By RESTORE.
    One,
    /// By MRESTORE, several at once.
    Many,
}

/// Builds pieces from rows.
pub struct Shape {
    kind: Kind,
    key: Template,
    value: Option<String>,
    score: String,
    ttl_ms: u64,
    existing: Existing,
    /// Values are sent by RESTORE, not by commands.
    restores: bool,
    /// Small values may be gathered.
    gathers: bool,
    pending: HashMap<Vec<u8>, Collection>,
    pending_bytes: usize,
    max_bytes: usize,
    /// Keys of which a part was sent (H1).
    begun: HashSet<Vec<u8>>,
}

/// The rows of one key, so far.
#[derive(Default)]
struct Collection {
    text: Vec<u8>,
    ends: Vec<usize>,
    scores: Vec<f64>,
    line: u64,
}

impl Collection {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, i: usize) -> &[u8] {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[i]]
    }

    /// Indexes of the elements to send, in order (H2).
    fn order(&self, kind: Kind) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        if kind != Kind::List {
            order.sort_by(|a, b| self.get(*a).cmp(self.get(*b)));
            // The later of equal elements stays.
            order.reverse();
            order.dedup_by(|a, b| self.get(*a) == self.get(*b));
            order.reverse();
        }
        order
    }
}

impl Shape {
    /// `takes`: what the server takes. Errors: options that exclude each other.
    pub fn new(options: &Load, takes: Payloads) -> Result<Shape, String> {
        let single = matches!(options.kind, Kind::String | Kind::Json);
        let restores = match options.via {
            // A string is cheaper for a server as SET, which can respect existing keys too.
            Via::Auto => takes != Payloads::None && options.existing != Existing::Merge && !single,
            Via::Restore => true,
            Via::Commands => false,
        };
        match options.existing {
            Existing::Merge if restores => return Err("--existing merge needs --via commands".to_owned()),
            Existing::Merge if single => {
                return Err("--existing merge is for collections and hashes".to_owned());
            }
            Existing::Fail | Existing::Skip if !restores && !single => {
                return Err("without RESTORE existing collections and hashes cannot be told from new ones: \
                            use --existing replace or --existing merge"
                    .to_owned());
            }
            _ => {}
        }
        Ok(Shape {
            kind: options.kind,
            key: options.key.clone(),
            value: options.value.clone(),
            score: options.score.clone(),
            ttl_ms: options.ttl.unwrap_or(0) * 1000,
            existing: options.existing,
            restores,
            gathers: takes == Payloads::Many,
            pending: HashMap::new(),
            pending_bytes: 0,
            max_bytes: (options.memory as usize) << 20,
            begun: HashSet::new(),
        })
    }

    /// Checks that the needed columns are among these. Errors: a missing one.
    pub fn check_columns(&self, columns: &[String]) -> Result<(), String> {
        let score = Some(&*self.score).filter(|_| self.kind == Kind::Zset);
        let value = self.value.as_deref().filter(|_| !matches!(self.kind, Kind::Hash | Kind::Json));
        let wanted = self.key.columns().chain(value).chain(score);
        let missing = wanted.into_iter().find(|name| !columns.iter().any(|column| column == name));
        missing.map_or(Ok(()), |name| Err(no_column(name, columns)))
    }

    /// Takes a row and appends the pieces it completes. True if everything taken so far has come out. Errors:
    /// the row is wrong.
    pub fn take(&mut self, row: &Row, out: &mut Vec<Piece>) -> Result<bool, String> {
        let key = self.key.fill(row)?;
        if !self.kind.is_collection() {
            out.push(self.single(&key, row)?);
            return Ok(true);
        }
        let text = match self.kind {
            Kind::IntegerSet => integer(self.value(row)?)?,
            _ => self.value(row)?.to_vec(),
        };
        let score = if self.kind == Kind::Zset { Some(self.score(row)?) } else { None };
        let collection =
            self.pending.entry(key).or_insert_with(|| Collection { line: row.line, ..Collection::default() });
        self.pending_bytes += text.len() + size_of::<usize>() + if score.is_some() { 8 } else { 0 };
        collection.text.extend_from_slice(&text);
        collection.ends.push(collection.text.len());
        collection.scores.extend(score);
        if self.pending_bytes > self.max_bytes {
            self.finish(out);
            // A run that begins again here does not know the keys begun so far; merging need not know them.
            return Ok(self.existing == Existing::Merge);
        }
        Ok(false)
    }

    /// Appends everything that is still pending.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        self.pending_bytes = 0;
        for (key, collection) in std::mem::take(&mut self.pending) {
            self.collected(key, &collection, out);
        }
    }

    fn single(&self, key: &[u8], row: &Row) -> Result<Piece, String> {
        let mut piece = Piece { rows: 1, line: row.line, route: route(key), ..Piece::default() };
        match self.kind {
            Kind::Hash => {
                let fields: Vec<(&str, &[u8])> = row.fields().collect();
                if fields.is_empty() {
                    return Err("no column has a value".to_owned());
                }
                self.hash(key, &fields, &mut piece)?;
            }
            Kind::Json => self.string(key, &row.json()?, &mut piece),
            _ => self.string(key, self.value(row)?, &mut piece),
        }
        Ok(piece)
    }

    fn string(&self, key: &[u8], text: &[u8], piece: &mut Piece) {
        if self.restores {
            return self.restore(key, &rdb::string_payload(text), true, piece);
        }
        let ttl = self.ttl_ms.to_string();
        let mut words: Vec<&[u8]> = vec![b"SET", key, text];
        if self.ttl_ms > 0 {
            words.extend([&b"PX"[..], ttl.as_bytes()]);
        }
        if self.existing != Existing::Replace {
            words.push(b"NX");
        }
        put(piece, &words);
    }

    fn hash(&self, key: &[u8], fields: &[(&str, &[u8])], piece: &mut Piece) -> Result<(), String> {
        if self.restores {
            let mut payload = rdb::HashPayload::with_len(fields.len());
            for (i, (name, value)) in fields.iter().enumerate() {
                if fields[..i].iter().any(|(before, _)| before == name) {
                    return Err(format!("column '{name}' twice"));
                }
                payload.insert(name.as_bytes(), value);
            }
            let payload = payload.finish(rdb::Dialect::Redis).ok_or("no column has a value")?;
            self.restore(key, &payload, true, piece);
            return Ok(());
        }
        self.begin(key, piece);
        let mut words: Vec<&[u8]> = vec![b"HSET", key];
        fields.iter().for_each(|(name, value)| words.extend([name.as_bytes(), value]));
        put(piece, &words);
        self.expire(key, piece);
        Ok(())
    }

    /// Makes the pieces of a collection: a payload first, then commands for what comes later or does not fit
    /// (H1).
    fn collected(&mut self, key: Vec<u8>, all: &Collection, out: &mut Vec<Piece>) {
        let order = all.order(self.kind);
        let mut piece =
            Piece { rows: all.len() as u64, line: all.line, route: route(&key), ..Piece::default() };
        let fresh = !self.begun.contains(&key);
        piece.begins = fresh;
        let mut rest = &order[..];
        if fresh && self.restores {
            let fits = self.fitting(all, &order);
            rest = &order[fits..];
            self.restore(&key, &self.payload(all, &order[..fits]), rest.is_empty(), &mut piece);
        } else if fresh {
            self.begin(&key, &mut piece);
        }
        let guarded = self.existing != Existing::Merge;
        if fresh && self.restores && !rest.is_empty() {
            let (line, route) = (piece.line, piece.route);
            // These rows are counted with the piece that completes them.
            out.push(Piece { rows: 0, ..piece });
            piece = Piece { rows: all.len() as u64, line, route, ..Piece::default() };
        }
        piece.adds = guarded && piece.commands == 0 && !rest.is_empty() && (!fresh || self.restores);
        for part in rest.chunks(ELEMENTS) {
            self.add(&key, all, part, &mut piece);
        }
        if fresh && !self.restores {
            self.expire(&key, &mut piece);
        }
        self.begun.insert(key);
        out.push(piece);
    }

    /// The number of elements that fit into one payload; at least one.
    fn fitting(&self, all: &Collection, order: &[usize]) -> usize {
        let mut bytes = 0;
        let fits = order.iter().take_while(|i| {
            bytes += all.get(**i).len() + 16;
            bytes <= PAYLOAD_BYTES
        });
        fits.count().max(1)
    }

    fn payload(&self, all: &Collection, order: &[usize]) -> Vec<u8> {
        let payload = match self.kind {
            Kind::List => {
                let mut list = rdb::ListPayload::with_len(order.len());
                for i in order {
                    list.push(all.get(*i));
                }
                list.finish()
            }
            Kind::Zset => {
                let mut zset = rdb::ZSetPayload::with_len(order.len());
                for i in order {
                    zset.insert(all.get(*i), all.scores[*i]);
                }
                zset.finish()
            }
            _ => {
                let mut set = rdb::SetPayload::with_len(order.len());
                for i in order {
                    set.insert(all.get(*i));
                }
                set.finish()
            }
        };
        payload.expect("a collection has an element, and scores are numbers")
    }

    fn add(&self, key: &[u8], all: &Collection, part: &[usize], piece: &mut Piece) {
        let (name, words): (&[u8], usize) = match self.kind {
            Kind::List => (b"RPUSH", 1),
            Kind::Zset => (b"ZADD", 2),
            _ => (b"SADD", 1),
        };
        put_count(&mut piece.bytes, 2 + words * part.len());
        put_word(&mut piece.bytes, name);
        put_word(&mut piece.bytes, key);
        for i in part {
            if words == 2 {
                put_word(&mut piece.bytes, all.scores[*i].to_string().as_bytes());
            }
            put_word(&mut piece.bytes, all.get(*i));
        }
        piece.commands += 1;
    }

    /// `whole`: nothing more of this key follows.
    fn restore(&self, key: &[u8], payload: &[u8], whole: bool, piece: &mut Piece) {
        let ttl = self.ttl_ms.to_string();
        if self.gathers && whole && payload.len() <= SMALL {
            return piece.gathered(key, ttl.as_bytes(), payload);
        }
        let mut words: Vec<&[u8]> = vec![b"RESTORE", key, ttl.as_bytes(), payload];
        if self.existing == Existing::Replace {
            words.push(b"REPLACE");
        }
        put(piece, &words);
    }

    /// Removes an existing value before commands make it anew, if it is to be replaced.
    fn begin(&self, key: &[u8], piece: &mut Piece) {
        if self.existing == Existing::Replace {
            put(piece, &[b"DEL", key]);
        }
    }

    fn expire(&self, key: &[u8], piece: &mut Piece) {
        if self.ttl_ms > 0 {
            put(piece, &[b"PEXPIRE", key, self.ttl_ms.to_string().as_bytes()]);
        }
    }

    /// The value of a row: the named column, or the only one that is neither in the key nor the score.
    fn value<'r>(&self, row: &'r Row) -> Result<&'r [u8], String> {
        if let Some(name) = &self.value {
            return row.field(name).ok_or_else(|| match row.columns().contains(name) {
                true => format!("no value for '{name}'"),
                false => no_column(name, row.columns()),
            });
        }
        let mut left = row.fields().filter(|(name, _)| {
            !self.key.columns().any(|column| column == *name)
                && (self.kind != Kind::Zset || *name != self.score)
        });
        match (left.next(), left.next()) {
            (Some((_, value)), None) => Ok(value),
            (None, _) => row.field("line").ok_or_else(|| "no column is left for the value".to_owned()),
            (Some((a, _)), Some((b, _))) => {
                Err(format!("which column is the value, '{a}' or '{b}'? Say --value"))
            }
        }
    }

    fn score(&self, row: &Row) -> Result<f64, String> {
        let text =
            row.field(&self.score).ok_or_else(|| format!("no value for '{}', the score", self.score))?;
        let text = String::from_utf8_lossy(text);
        let score = text.trim().parse::<f64>().ok().filter(|score| !score.is_nan());
        score.ok_or_else(|| format!("'{text}' is no score"))
    }
}

fn put(piece: &mut Piece, words: &[&[u8]]) {
    put_request(&mut piece.bytes, words);
    piece.commands += 1;
}

fn integer(text: &[u8]) -> Result<Vec<u8>, String> {
    let text = String::from_utf8_lossy(text);
    let number = text.trim().parse::<i64>();
    number.map(|n| n.to_string().into_bytes()).map_err(|_| format!("'{text}' is not a 64-bit integer"))
}

/// The route of a key: pieces of one key go over one connection.
fn route(key: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn shape(words: &str) -> Shape {
        let options = Load::parse_from(["load"].into_iter().chain(words.split(' ')));
        Shape::new(&options, Payloads::One).expect("possible")
    }

    fn text(piece: &Piece) -> String {
        piece.bytes.escape_ascii().to_string()
    }

    #[test]
    fn a_row_is_one_value() {
        let row = Row::of(&[("id", "7"), ("name", "Ann")]);
        let mut out = Vec::new();
        assert_eq!(
            shape("--key u:{id} --as string --via commands --existing replace").take(&row, &mut out),
            Ok(true)
        );
        assert_eq!(text(&out[0]), "*3\\r\\n$3\\r\\nSET\\r\\n$3\\r\\nu:7\\r\\n$3\\r\\nAnn\\r\\n");
        assert_eq!(shape("--key u:{id} --ttl 9 --existing replace").take(&row, &mut out), Ok(true));
        assert!(
            text(&out[1]).starts_with("*5\\r\\n$7\\r\\nRESTORE\\r\\n$3\\r\\nu:7\\r\\n$4\\r\\n9000\\r\\n")
        );
        // Strings go by SET unless told otherwise.
        assert_eq!(shape("--key u:{id} --as json").take(&row, &mut out), Ok(true));
        assert!(
            text(&out[2]).contains("{\\\"id\\\":\\\"7\\\",\\\"name\\\":\\\"Ann\\\"}"),
            "{}",
            text(&out[2])
        );
        let mut wrong = |words: &str, row: &Row| shape(words).take(row, &mut out).expect_err("wrong");
        assert_eq!(wrong("--key u:{x}", &row), "no column 'x'; there are id, name");
        assert_eq!(
            wrong("--key all --as set", &row),
            "which column is the value, 'id' or 'name'? Say --value"
        );
        assert_eq!(wrong("--key all --as integer-set --value name", &row), "'Ann' is not a 64-bit integer");
        assert_eq!(wrong("--key all --as zset --value id --score name", &row), "'Ann' is no score");
    }

    #[test]
    fn the_rows_of_a_key_are_one_value_without_duplicates() {
        let mut shape = shape("--key s --as zset --value m");
        let mut out = Vec::new();
        for (member, score) in [("b", "1"), ("a", "2"), ("b", "3")] {
            assert_eq!(shape.take(&Row::of(&[("m", member), ("score", score)]), &mut out), Ok(false));
        }
        shape.finish(&mut out);
        let mut expected = rdb::ZSetPayload::new();
        assert!(expected.insert(b"a", 2.0) && expected.insert(b"b", 3.0), "the last score of b");
        let payload = expected.finish().expect("not empty");
        assert!(out[0].bytes.windows(payload.len()).any(|part| part == payload), "{}", text(&out[0]));
        assert_eq!((out.len(), out[0].rows, out[0].commands), (1, 3, 1));
    }

    #[test]
    fn what_comes_after_a_key_was_sent_is_added() {
        let mut shape = shape("--key l --as list");
        let mut out = Vec::new();
        shape.max_bytes = 10;
        // The key is begun, so this is no place to begin again at.
        assert_eq!(shape.take(&Row::of(&[("v", "one")]), &mut out), Ok(false));
        shape.max_bytes = 1000;
        assert_eq!(shape.take(&Row::of(&[("v", "two")]), &mut out), Ok(false));
        shape.finish(&mut out);
        assert!(text(&out[0]).contains("RESTORE") && out.len() == 2);
        assert_eq!(text(&out[1]), "*3\\r\\n$5\\r\\nRPUSH\\r\\n$1\\r\\nl\\r\\n$3\\r\\ntwo\\r\\n");
        assert_eq!((out[0].route, out[0].adds, out[1].adds), (out[1].route, false, true));
    }
}
