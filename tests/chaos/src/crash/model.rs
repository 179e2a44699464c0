//! Changes of keys, as commands and as changes of a model.
//!
//! - C1: a client alone changes its keys, so the model of its commands' first j units is the only state they
//!   can have.
//! - C2: accounts are changed by all clients, and only by additions. Their order makes no difference.

use std::collections::{BTreeMap, BTreeSet};
use support::wire::quote;

/// A database and a name.
pub type Key = (usize, Vec<u8>);
/// Stands for the database of function libraries.
pub const LIBRARIES: usize = usize::MAX;
/// The names of accounts begin so.
pub const ACCOUNT: &[u8] = b"acct:";
/// Expiries may differ by so much, as they follow from clocks read at different times.
const CLOCKS_MS: i64 = 120_000;

#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    Set(BTreeSet<Vec<u8>>),
    Scores(BTreeMap<Vec<u8>, i64>),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub value: Value,
    /// Milliseconds since 1970; 0: never.
    pub expires: i64,
}

pub type State = BTreeMap<Key, Entry>;

impl Value {
    /// The value in a few words.
    pub fn brief(&self) -> String {
        match self {
            Value::Text(text) => quote(text),
            Value::List(items) => {
                let ends = (items.first(), items.last());
                let (first, last) = (ends.0.map(|item| quote(item)), ends.1.map(|item| quote(item)));
                format!("a list of {} from {first:?} to {last:?}", items.len())
            }
            Value::Hash(fields) => format!("a hash of {}", fields.len()),
            Value::Set(members) => format!("a set of {}", members.len()),
            Value::Scores(members) => format!("a sorted set of {}", members.len()),
        }
    }
}

/// Whether two entries are one and the same.
pub fn same(a: Option<&Entry>, b: Option<&Entry>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            let times = (a.expires == 0) == (b.expires == 0) && (a.expires - b.expires).abs() <= CLOCKS_MS;
            a.value == b.value && times
        }
        _ => false,
    }
}

/// A time of a key.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Never,
    /// Milliseconds since 1970.
    At(i64),
    /// Seconds from now, and when that is.
    In(i64, i64),
}

/// One command that changes keys of one database.
#[derive(Clone, Debug)]
pub enum Op {
    Set(Key, Vec<u8>, Until),
    SetAll(Vec<(Key, Vec<u8>)>),
    Append(Key, Vec<u8>),
    Add(Key, i64),
    Push(Key, Vec<Vec<u8>>),
    Pop(Key, usize),
    KeepLast(Key, usize),
    MoveItem(Key, Key),
    SetFields(Key, Vec<(Vec<u8>, Vec<u8>)>),
    DeleteField(Key, Vec<u8>),
    AddMembers(Key, Vec<Vec<u8>>),
    RemoveMember(Key, Vec<u8>),
    PopAll(Key),
    Union(Key, Key, Key),
    Score(Key, Vec<u8>, i64),
    Delete(Vec<Key>),
    Expire(Key, i64),
    Persist(Key),
    Copy(Key, Key),
    /// Only of a key that is there.
    Rename(Key, Key),
    Flush(usize),
    Swap(usize, usize),
    Library(Vec<u8>, Vec<u8>),
}

fn text(value: impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn line(name: &str, words: &[&[u8]]) -> Vec<Vec<u8>> {
    std::iter::once(text(name)).chain(words.iter().map(|word| word.to_vec())).collect()
}

impl Op {
    /// The database it needs, if one has to be selected.
    pub fn db(&self) -> Option<usize> {
        match self {
            Op::SetAll(pairs) => pairs.first().map(|(key, _)| key.0),
            Op::Flush(db) => Some(*db),
            Op::Swap(..) | Op::Library(..) => None,
            _ => self.keys().first().map(|key| key.0),
        }
    }

    /// The keys it names.
    pub fn keys(&self) -> Vec<&Key> {
        match self {
            Op::SetAll(pairs) => pairs.iter().map(|(key, _)| key).collect(),
            Op::Delete(keys) => keys.iter().collect(),
            Op::Flush(_) | Op::Swap(..) | Op::Library(..) => Vec::new(),
            Op::MoveItem(a, b) | Op::Copy(a, b) | Op::Rename(a, b) => vec![a, b],
            Op::Union(a, b, c) => vec![a, b, c],
            Op::Set(key, ..)
            | Op::Append(key, _)
            | Op::Add(key, _)
            | Op::Push(key, _)
            | Op::Pop(key, _)
            | Op::KeepLast(key, _)
            | Op::SetFields(key, _)
            | Op::DeleteField(key, _)
            | Op::AddMembers(key, _)
            | Op::RemoveMember(key, _)
            | Op::PopAll(key)
            | Op::Score(key, ..)
            | Op::Expire(key, _)
            | Op::Persist(key) => vec![key],
        }
    }

    /// The command.
    pub fn words(&self) -> Vec<Vec<u8>> {
        match self {
            Op::Set(key, value, Until::Never) => line("SET", &[&key.1, value]),
            Op::Set(key, value, Until::At(ms)) => line("SET", &[&key.1, value, b"PXAT", &text(ms)]),
            Op::Set(key, value, Until::In(s, _)) => line("SET", &[&key.1, value, b"EX", &text(s)]),
            Op::SetAll(pairs) => {
                let words: Vec<&[u8]> = pairs.iter().flat_map(|(key, value)| [&key.1[..], value]).collect();
                line("MSET", &words)
            }
            Op::Append(key, value) => line("APPEND", &[&key.1, value]),
            Op::Add(key, n) if *n < 0 => line("DECRBY", &[&key.1, &text(-n)]),
            Op::Add(key, n) => line("INCRBY", &[&key.1, &text(n)]),
            Op::Push(key, items) => list("RPUSH", key, items),
            Op::Pop(key, n) => line("LPOP", &[&key.1, &text(n)]),
            Op::KeepLast(key, n) => line("LTRIM", &[&key.1, &text(-(*n as i64)), b"-1"]),
            Op::MoveItem(from, to) => line("LMOVE", &[&from.1, &to.1, b"LEFT", b"RIGHT"]),
            Op::SetFields(key, fields) => {
                let words = fields.iter().flat_map(|(field, value)| [field.clone(), value.clone()]);
                list("HSET", key, &words.collect::<Vec<_>>())
            }
            Op::DeleteField(key, field) => line("HDEL", &[&key.1, field]),
            Op::AddMembers(key, members) => list("SADD", key, members),
            Op::RemoveMember(key, member) => line("SREM", &[&key.1, member]),
            Op::PopAll(key) => line("SPOP", &[&key.1, b"100000"]),
            Op::Union(to, a, b) => line("SUNIONSTORE", &[&to.1, &a.1, &b.1]),
            Op::Score(key, member, n) => line("ZINCRBY", &[&key.1, &text(n), member]),
            Op::Delete(keys) => line("DEL", &keys.iter().map(|key| &key.1[..]).collect::<Vec<_>>()),
            Op::Expire(key, ms) => line("PEXPIREAT", &[&key.1, &text(ms)]),
            Op::Persist(key) => line("PERSIST", &[&key.1]),
            Op::Copy(from, to) => line("COPY", &[&from.1, &to.1, b"REPLACE"]),
            Op::Rename(from, to) => line("RENAME", &[&from.1, &to.1]),
            Op::Flush(_) => line("FLUSHDB", &[]),
            Op::Swap(a, b) => line("SWAPDB", &[&text(a), &text(b)]),
            Op::Library(_, code) => line("FUNCTION", &[b"LOAD", b"REPLACE", code]),
        }
    }
}

fn list(name: &str, key: &Key, items: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let words: Vec<&[u8]> = std::iter::once(&key.1[..]).chain(items.iter().map(|item| &item[..])).collect();
    line(name, &words)
}

/// The keys of one client, and its additions to the accounts.
#[derive(Clone, Default)]
pub struct Model {
    pub keys: State,
    pub moved: BTreeMap<Key, i64>,
}

impl Model {
    /// Does it, and adds the keys that may have changed to `touched`.
    pub fn apply(&mut self, op: &Op, touched: &mut Vec<Key>) {
        match op {
            Op::Flush(db) => {
                touched.extend(self.of(*db));
                self.keys.retain(|key, _| key.0 != *db);
            }
            Op::Swap(a, b) => self.swap(*a, *b, touched),
            Op::Library(name, code) => {
                let key = (LIBRARIES, name.clone());
                touched.push(key.clone());
                self.keys.insert(key, Entry { value: Value::Text(code.clone()), expires: 0 });
            }
            Op::Add(key, n) if key.1.starts_with(ACCOUNT) => *self.moved.entry(key.clone()).or_default() += n,
            Op::SetAll(pairs) => {
                for (key, value) in pairs {
                    self.put(key, Value::Text(value.clone()), 0);
                }
                touched.extend(pairs.iter().map(|(key, _)| key.clone()));
            }
            Op::Delete(keys) => {
                keys.iter().for_each(|key| drop(self.keys.remove(key)));
                touched.extend(keys.iter().cloned());
            }
            _ => {
                touched.extend(op.keys().into_iter().cloned());
                self.change(op);
                self.drop_empty(op);
            }
        }
    }

    fn of(&self, db: usize) -> impl Iterator<Item = Key> {
        self.keys.keys().filter(move |key| key.0 == db).cloned()
    }

    fn swap(&mut self, a: usize, b: usize, touched: &mut Vec<Key>) {
        let before: Vec<Key> = self.of(a).chain(self.of(b)).collect();
        let moved: Vec<(Key, Entry)> = before
            .iter()
            .filter_map(|key| {
                let to = (if key.0 == a { b } else { a }, key.1.clone());
                Some((to, self.keys.remove(key)?))
            })
            .collect();
        touched.extend(before);
        touched.extend(moved.iter().map(|(key, _)| key.clone()));
        self.keys.extend(moved);
    }

    fn put(&mut self, key: &Key, value: Value, expires: i64) {
        self.keys.insert(key.clone(), Entry { value, expires });
    }

    fn expire(&mut self, key: &Key, ms: i64) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.expires = ms;
        }
    }

    /// Does what changes one value, or two.
    fn change(&mut self, op: &Op) {
        match op {
            Op::Set(key, value, until) => {
                let expires = match until {
                    Until::Never => 0,
                    Until::At(ms) | Until::In(_, ms) => *ms,
                };
                self.put(key, Value::Text(value.clone()), expires);
            }
            Op::Append(key, more) => self.text(key).extend_from_slice(more),
            Op::Add(key, n) => {
                let held = self.text(key);
                let now = std::str::from_utf8(held).ok().and_then(|n| n.parse::<i64>().ok()).unwrap_or(0);
                *held = text(now + n);
            }
            Op::Push(key, items) => self.items(key).extend(items.iter().cloned()),
            Op::Pop(key, n) => {
                let items = self.items(key);
                items.drain(..(*n).min(items.len()));
            }
            Op::KeepLast(key, n) => {
                let items = self.items(key);
                items.drain(..items.len().saturating_sub(*n));
            }
            Op::MoveItem(from, to) => {
                let items = self.items(from);
                let item = (!items.is_empty()).then(|| items.remove(0));
                self.items(to).extend(item);
            }
            Op::SetFields(key, fields) => self.fields(key).extend(fields.iter().cloned()),
            Op::DeleteField(key, field) => drop(self.fields(key).remove(field)),
            Op::AddMembers(key, members) => self.members(key).extend(members.iter().cloned()),
            Op::RemoveMember(key, member) => drop(self.members(key).remove(member)),
            Op::PopAll(key) => drop(self.keys.remove(key)),
            Op::Union(to, a, b) => {
                let mut all = self.members(a).clone();
                all.extend(self.members(b).iter().cloned());
                self.put(to, Value::Set(all), 0);
            }
            Op::Score(key, member, n) => *self.scores(key).entry(member.clone()).or_default() += n,
            Op::Expire(key, ms) => self.expire(key, *ms),
            Op::Persist(key) => self.expire(key, 0),
            Op::Copy(from, to) => {
                if let Some(entry) = self.keys.get(from).cloned() {
                    self.keys.insert(to.clone(), entry);
                }
            }
            Op::Rename(from, to) => {
                if let Some(entry) = self.keys.remove(from) {
                    self.keys.insert(to.clone(), entry);
                }
            }
            Op::SetAll(_) | Op::Delete(_) | Op::Flush(_) | Op::Swap(..) | Op::Library(..) => {}
        }
    }

    /// Collections without elements are not there.
    fn drop_empty(&mut self, op: &Op) {
        for key in op.keys() {
            let is_empty = self.keys.get(key).is_some_and(|entry| match &entry.value {
                Value::Text(_) => false,
                Value::List(items) => items.is_empty(),
                Value::Hash(fields) => fields.is_empty(),
                Value::Set(members) => members.is_empty(),
                Value::Scores(members) => members.is_empty(),
            });
            if is_empty {
                self.keys.remove(key);
            }
        }
    }
}

/// Gives the value of a key, an empty one if it is not there. The names of keys tell their types.
macro_rules! value_of {
    ($name:ident, $kind:ident, $type:ty) => {
        impl Model {
            fn $name(&mut self, key: &Key) -> &mut $type {
                let none = || Entry { value: Value::$kind(Default::default()), expires: 0 };
                match &mut self.keys.entry(key.clone()).or_insert_with(none).value {
                    Value::$kind(value) => value,
                    other => unreachable!("{} is {}", quote(&key.1), other.brief()),
                }
            }
        }
    };
}

value_of!(text, Text, Vec<u8>);
value_of!(items, List, Vec<Vec<u8>>);
value_of!(fields, Hash, BTreeMap<Vec<u8>, Vec<u8>>);
value_of!(members, Set, BTreeSet<Vec<u8>>);
value_of!(scores, Scores, BTreeMap<Vec<u8>, i64>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_swaps_flushes_and_drops_what_is_empty() {
        let (mut model, mut touched) = (Model::default(), Vec::new());
        let key = |db: usize, name: &str| (db, name.as_bytes().to_vec());
        for op in [
            Op::Push(key(1, "l"), vec![b"a".to_vec(), b"b".to_vec()]),
            Op::MoveItem(key(1, "l"), key(1, "m")),
            Op::Pop(key(1, "l"), 5),
            Op::Add(key(2, "n"), 7),
            Op::Swap(1, 2),
            Op::Add(key(0, "acct:1"), -7),
        ] {
            model.apply(&op, &mut touched);
        }
        let names: Vec<&Key> = model.keys.keys().collect();
        assert_eq!(names, [&key(1, "n"), &key(2, "m")]);
        assert_eq!(model.moved[&key(0, "acct:1")], -7);
        model.apply(&Op::Flush(2), &mut touched);
        assert!(!model.keys.contains_key(&key(2, "m")) && touched.contains(&key(2, "m")));
    }
}
