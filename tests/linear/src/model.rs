//! The model server, plain and slow: one database of ten keys, one operation after another.
//!
//! Long values are made checkable by *ballast*: thousands of elements `b0 b1 b2 …` that always come and go
//! together, beside a few live ones. All ballast of a set is one bit. A run of it in a list is one [`Piece`].
//! Thousands of string keys, written only together by one MSET, are the one key `fill`. A reply with a part
//! of the ballast, where only all or nothing is possible, has no explanation ([`Ret::Torn`]).
//!
//! - D1: a key has one type for ever, so no operation fails.
//! - D2: a key with a TTL may be gone at any later time, and then stays gone until it is written. No clock is
//!   compared.
//! - D3: EXEC after WATCH fails if a watched key was changed since, and only then. But if the database was
//!   exchanged since, it may fail even for a key that never existed (the server's rule:
//!   `keyspace/src/view/watched.rs`, A3).
//! - D4: a served BLPOP may have been served from any of its keys. One whose time was up saw all of them
//!   empty.

use crate::check::Model;
use std::fmt;

pub type Key = u8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Int,
    /// Thousands of string keys with one value.
    Fill,
    Set,
    List,
}

/// The keys of a group.
pub const KEYS: [(&str, Kind); 10] = [
    ("r0", Kind::Int),
    ("r1", Kind::Int),
    ("r2", Kind::Int),
    ("fill", Kind::Fill),
    ("s0", Kind::Set),
    ("s1", Kind::Set),
    ("s2", Kind::Set),
    ("l0", Kind::List),
    ("l1", Kind::List),
    ("l2", Kind::List),
];
pub const FILL: Key = 3;
pub const INTS: std::ops::Range<Key> = 0..3;
pub const SETS: std::ops::Range<Key> = 4..7;
pub const LISTS: std::ops::Range<Key> = 7..10;

/// The bit of a set for all of its ballast. Lower bits are live members.
pub const BALLAST: u64 = 1 << 63;

/// A part of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Piece {
    Live(u32),
    /// Ballast `b<from>` to before `b<to>`.
    Run(u32, u32),
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Piece::Live(n) => write!(f, "e{n}"),
            Piece::Run(from, to) => write!(f, "b{from}..{to}"),
        }
    }
}

impl Piece {
    pub fn len(self) -> usize {
        match self {
            Piece::Live(_) => 1,
            Piece::Run(from, to) => (to - from) as usize,
        }
    }
}

/// Appends with adjacent ballast as one piece, so that equal lists look equal.
pub fn append(list: &mut Vec<Piece>, piece: Piece) {
    match (list.last_mut(), piece) {
        (_, Piece::Run(from, to)) if from == to => {}
        (Some(Piece::Run(_, end)), Piece::Run(from, to)) if *end == from => *end = to,
        _ => list.push(piece),
    }
}

fn concat(a: &[Piece], b: &[Piece]) -> Vec<Piece> {
    let mut all = Vec::with_capacity(a.len() + b.len());
    a.iter().chain(b).for_each(|piece| append(&mut all, *piece));
    all
}

/// The first `n` elements, and the rest.
fn split(list: &[Piece], mut n: usize) -> (Vec<Piece>, Vec<Piece>) {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for piece in list {
        match *piece {
            piece if n >= piece.len() => append(&mut head, piece),
            Piece::Run(from, to) => {
                append(&mut head, Piece::Run(from, from + n as u32));
                append(&mut tail, Piece::Run(from + n as u32, to));
            }
            piece => append(&mut tail, piece),
        }
        n -= n.min(piece.len());
    }
    (head, tail)
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Value {
    Int(i64),
    Set(u64),
    List(Vec<Piece>),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(n) => write!(f, "{n}"),
            Value::Set(members) => write!(f, "{}", show_set(*members)),
            Value::List(pieces) => write!(f, "{pieces:?}"),
        }
    }
}

fn show_set(members: u64) -> String {
    let mut names: Vec<String> = (0..63).filter(|i| members >> i & 1 == 1).map(|i| format!("m{i}")).collect();
    names.extend((members & BALLAST != 0).then(|| "ballast".to_owned()));
    format!("{{{}}}", names.join(" "))
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Slot {
    value: Option<Value>,
    /// It has a TTL (D2).
    volatile: bool,
}

/// A watch of a connection on a key, and whether the key was changed since (D3).
#[derive(Clone, PartialEq, Eq, Hash)]
struct Watch {
    conn: u32,
    key: Key,
    changed: bool,
    /// The database was exchanged since.
    exchanged: bool,
}

/// One database.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct State {
    slots: [Slot; KEYS.len()],
    /// The database that SWAPDB exchanges with this one.
    aside: [Slot; KEYS.len()],
    /// In the order of connection and key.
    watches: Vec<Watch>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for ((name, _), slot) in KEYS.iter().zip(&self.slots) {
            match &slot.value {
                Some(value) if slot.volatile => map.entry(&format_args!("{name} (ttl)"), value),
                Some(value) => map.entry(&format_args!("{name}"), value),
                None => &mut map,
            };
        }
        for ((name, _), slot) in KEYS.iter().zip(&self.aside) {
            if let Some(value) = &slot.value {
                map.entry(&format_args!("{name} (aside)"), value);
            }
        }
        map.finish()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combine {
    Union,
    Diff,
    Inter,
}

/// The way an atomic sequence of operations is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Multi,
    /// As a script that spins so many times between its calls.
    Script(u32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Get(Key),
    Set(Key, i64),
    /// With a TTL in milliseconds.
    SetPx(Key, i64, u32),
    SetNx(Key, i64),
    GetSet(Key, i64),
    GetDel(Key),
    Incr(Key, i64),
    /// A script with GET, so many turns of a loop, and SET of one more.
    Bump(Key, u32),
    /// Compare and set, in a script.
    Cas(Key, i64, i64),
    MGet(Vec<Key>),
    MSet(Vec<(Key, i64)>),
    /// A script that sets every fill key.
    FillByScript(i64),
    /// MGET of a few of the fill keys.
    Peek(Vec<u32>),
    Del(Vec<Key>),
    Exists(Key),
    Expire(Key, u32),
    Persist(Key),
    SAdd(Key, u64),
    SRem(Key, u64),
    SMembers(Key),
    SCard(Key),
    SIsMember(Key, u32),
    SMove(Key, Key, u32),
    /// SDIFF, SUNION, SINTER.
    Combined(Combine, Vec<Key>),
    /// The same commands with STORE.
    Store(Combine, Key, Vec<Key>),
    RPush(Key, Piece),
    LPush(Key, Piece),
    LPop(Key),
    RPop(Key),
    LPopMany(Key, usize),
    LRange(Key),
    LLen(Key),
    LMove(Key, Key),
    BLPop(Vec<Key>, u32),
    /// SORT BY nosort STORE.
    SortStore(Key, Key),
    Copy(Key, Key),
    Rename(Key, Key),
    DbSize,
    Keys,
    FlushDb,
    /// SWAPDB of a group's database and an otherwise unused one.
    SwapDb(usize),
    /// FLUSHALL, which is in the history of every group.
    FlushAll,
    Atomic(How, Vec<Op>),
    /// With the connection.
    Watch(u32, Key),
    Unwatch(u32),
    /// MULTI, operations, EXEC after a WATCH of that connection.
    Exec(u32, Vec<Op>),
}

#[derive(Clone, PartialEq, Eq)]
pub enum Ret {
    Nil,
    Ok,
    Int(i64),
    Set(u64),
    List(Vec<Piece>),
    /// One element and, for BLPOP, its key.
    Popped(Key, Piece),
    Many(Vec<Ret>),
    /// The reply of KEYS: one bit per key.
    Names(u16),
    /// A reply that no state can give.
    Torn(String),
}

impl fmt::Debug for Ret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ret::Nil => write!(f, "nil"),
            Ret::Ok => write!(f, "OK"),
            Ret::Int(n) => write!(f, "{n}"),
            Ret::Set(members) => write!(f, "{}", show_set(*members)),
            Ret::List(pieces) => write!(f, "{pieces:?}"),
            Ret::Popped(key, piece) => write!(f, "{piece:?} of {}", KEYS[*key as usize].0),
            Ret::Many(all) => write!(f, "{all:?}"),
            Ret::Names(keys) => {
                let names = KEYS.iter().enumerate().filter(|(i, _)| keys >> i & 1 == 1).map(|(_, key)| key.0);
                write!(f, "{:?}", names.collect::<Vec<_>>())
            }
            Ret::Torn(text) => write!(f, "IMPOSSIBLE: {text}"),
        }
    }
}

impl Op {
    /// The keys it reads or changes. `None`: all.
    fn keys(&self) -> Option<Vec<Key>> {
        Some(match self {
            Op::Get(k)
            | Op::Set(k, _)
            | Op::SetPx(k, ..)
            | Op::SetNx(k, _)
            | Op::GetSet(k, _)
            | Op::GetDel(k)
            | Op::Incr(k, _)
            | Op::Bump(k, _)
            | Op::Cas(k, ..)
            | Op::Exists(k)
            | Op::Expire(k, _)
            | Op::Persist(k)
            | Op::SAdd(k, _)
            | Op::SRem(k, _)
            | Op::SMembers(k)
            | Op::SCard(k)
            | Op::SIsMember(k, _)
            | Op::RPush(k, _)
            | Op::LPush(k, _)
            | Op::LPop(k)
            | Op::RPop(k)
            | Op::LPopMany(k, _)
            | Op::LRange(k)
            | Op::LLen(k)
            | Op::Watch(_, k) => vec![*k],
            Op::SMove(a, b, _)
            | Op::LMove(a, b)
            | Op::SortStore(a, b)
            | Op::Copy(a, b)
            | Op::Rename(a, b) => {
                vec![*a, *b]
            }
            Op::MGet(keys) | Op::Del(keys) | Op::Combined(_, keys) | Op::BLPop(keys, _) => keys.clone(),
            Op::MSet(pairs) => pairs.iter().map(|(key, _)| *key).collect(),
            Op::Store(_, to, from) => [&[*to][..], from].concat(),
            Op::FillByScript(_) | Op::Peek(_) => vec![FILL],
            Op::Unwatch(_) => Vec::new(),
            Op::DbSize | Op::Keys | Op::FlushDb | Op::SwapDb(_) | Op::FlushAll | Op::Exec(..) => return None,
            Op::Atomic(_, ops) => {
                let mut all = Vec::new();
                for op in ops {
                    all.extend(op.keys()?);
                }
                all
            }
        })
    }

    /// True if it changes nothing, whatever the reply. A history without it is linearizable if the whole was.
    pub fn is_read(&self) -> bool {
        match self {
            Op::Get(_)
            | Op::MGet(_)
            | Op::Peek(_)
            | Op::Exists(_)
            | Op::SMembers(_)
            | Op::SCard(_)
            | Op::SIsMember(..)
            | Op::Combined(..)
            | Op::LRange(_)
            | Op::LLen(_)
            | Op::DbSize
            | Op::Keys => true,
            Op::Atomic(_, ops) => ops.iter().all(Op::is_read),
            _ => false,
        }
    }
}

/// The model server. `fill_keys`: number of string keys behind the one key `fill`. `ballast`: number of
/// members or items behind all of the ballast.
#[derive(Clone, Copy, Debug)]
pub struct Dull {
    pub fill_keys: usize,
    pub ballast: usize,
}

impl Model for Dull {
    type State = State;
    type Op = Op;
    type Ret = Ret;

    fn step(&self, state: &State, op: &Op, ret: Option<&Ret>) -> Vec<State> {
        let mut out = Vec::new();
        for mut after in state.expirations(op) {
            let given = self.run(&mut after, op, ret);
            if ret.is_none_or(|ret| given == *ret) {
                out.push(after);
            }
        }
        out
    }

    fn is_look(&self, op: &Op, ret: &Ret) -> bool {
        match (op, ret) {
            (
                Op::SAdd(..)
                | Op::SRem(..)
                | Op::SMove(..)
                | Op::SetNx(..)
                | Op::Cas(..)
                | Op::Expire(..)
                | Op::Persist(_)
                | Op::Copy(..)
                | Op::Del(_),
                Ret::Int(0),
            ) => true,
            (
                Op::LPop(_)
                | Op::RPop(_)
                | Op::LPopMany(..)
                | Op::LMove(..)
                | Op::BLPop(..)
                | Op::Rename(..)
                | Op::GetDel(_),
                Ret::Nil,
            ) => true,
            (Op::Atomic(_, ops), Ret::Many(rets)) => {
                ops.iter().zip(rets).all(|(op, ret)| self.is_look(op, ret))
            }
            _ => op.is_read(),
        }
    }
}

impl State {
    /// This state, and those in which some of the operation's keys have expired before it (D2).
    fn expirations(&self, op: &Op) -> Vec<State> {
        let mut all = vec![self.clone()];
        if !self.slots.iter().any(|slot| slot.volatile) {
            return all;
        }
        let keys = op.keys().unwrap_or_else(|| (0..KEYS.len() as Key).collect());
        for key in keys {
            for i in 0..all.len() {
                if all[i].slots[key as usize].volatile {
                    let mut gone = all[i].clone();
                    gone.put(key, None);
                    all.push(gone);
                }
            }
        }
        all
    }

    fn slot(&self, key: Key) -> &Slot {
        &self.slots[key as usize]
    }

    fn int(&self, key: Key) -> Option<i64> {
        match self.slot(key).value {
            Some(Value::Int(n)) => Some(n),
            _ => None,
        }
    }

    fn set(&self, key: Key) -> u64 {
        match self.slot(key).value {
            Some(Value::Set(members)) => members,
            _ => 0,
        }
    }

    fn list(&self, key: Key) -> &[Piece] {
        match &self.slot(key).value {
            Some(Value::List(pieces)) => pieces,
            _ => &[],
        }
    }

    fn exists(&self, key: Key) -> bool {
        self.slot(key).value.is_some()
    }

    fn change(&mut self, key: Key) {
        let watches = self.watches.iter_mut().filter(|watch| watch.key == key);
        watches.for_each(|watch| watch.changed = true);
    }

    /// A new value, without a TTL.
    fn put(&mut self, key: Key, value: Option<Value>) {
        self.change(key);
        self.slots[key as usize] = Slot { value, volatile: false };
    }

    /// Sets another value and keeps the TTL.
    fn edit(&mut self, key: Key, value: Option<Value>) {
        let volatile = self.slot(key).volatile && value.is_some();
        self.put(key, value);
        self.slots[key as usize].volatile = volatile;
    }

    fn put_int(&mut self, key: Key, n: i64) {
        self.put(key, Some(Value::Int(n)));
    }

    fn edit_set(&mut self, key: Key, members: u64) {
        if members != self.set(key) {
            self.edit(key, (members != 0).then_some(Value::Set(members)));
        }
    }

    fn edit_list(&mut self, key: Key, pieces: Vec<Piece>) {
        self.edit(key, (!pieces.is_empty()).then_some(Value::List(pieces)));
    }

    fn remove(&mut self, key: Key) -> bool {
        let was = self.exists(key);
        if was {
            self.put(key, None);
        }
        was
    }

    /// Takes elements from one end of a list.
    fn pop(&mut self, key: Key, count: usize, left: bool) -> Vec<Piece> {
        let list = self.list(key);
        let len: usize = list.iter().map(|piece| piece.len()).sum();
        if len == 0 {
            return Vec::new();
        }
        let count = count.min(len);
        let (head, tail) = split(list, if left { count } else { len - count });
        let (taken, rest) = if left { (head, tail) } else { (tail, head) };
        self.edit_list(key, rest);
        taken
    }

    fn push(&mut self, key: Key, piece: Piece, left: bool) {
        let list = self.list(key);
        let pieces = if left { concat(&[piece], list) } else { concat(list, &[piece]) };
        self.edit_list(key, pieces);
    }

    fn combined(&self, how: Combine, keys: &[Key]) -> u64 {
        let mut sets = keys.iter().map(|key| self.set(*key));
        let first = sets.next().unwrap_or(0);
        sets.fold(first, |all, set| match how {
            Combine::Union => all | set,
            Combine::Diff => all & !set,
            Combine::Inter => all & set,
        })
    }

    fn flush(&mut self) {
        (0..KEYS.len() as Key).for_each(|key| {
            self.remove(key);
        });
    }
}

fn one(pieces: Vec<Piece>) -> Ret {
    if pieces.is_empty() { Ret::Nil } else { Ret::List(pieces) }
}

fn int_or_nil(n: Option<i64>) -> Ret {
    n.map_or(Ret::Nil, Ret::Int)
}

impl Dull {
    fn card(&self, members: u64) -> i64 {
        let ballast = if members & BALLAST != 0 { self.ballast } else { 0 };
        i64::from((members & !BALLAST).count_ones()) + ballast as i64
    }

    fn list_len(list: &[Piece]) -> i64 {
        list.iter().map(|piece| piece.len() as i64).sum()
    }

    /// Runs one operation. The actual reply decides where the model leaves a choice (D3, D4).
    fn run(&self, state: &mut State, op: &Op, seen: Option<&Ret>) -> Ret {
        match op {
            Op::Atomic(_, ops) => {
                let seen = |i: usize| match seen {
                    Some(Ret::Many(all)) => all.get(i),
                    _ => None,
                };
                Ret::Many(ops.iter().enumerate().map(|(i, op)| self.run(state, op, seen(i))).collect())
            }
            Op::Watch(conn, key) => {
                let watch = Watch { conn: *conn, key: *key, changed: false, exchanged: false };
                let place = |held: &Watch| (held.conn, held.key).cmp(&(*conn, *key));
                if let Err(at) = state.watches.binary_search_by(place) {
                    state.watches.insert(at, watch);
                }
                Ret::Ok
            }
            Op::Unwatch(conn) => {
                state.watches.retain(|watch| watch.conn != *conn);
                Ret::Ok
            }
            Op::Exec(conn, ops) => self.exec(state, *conn, ops, seen),
            Op::DbSize => {
                let keys = (0..KEYS.len() as Key).filter(|key| state.exists(*key));
                Ret::Int(keys.map(|key| if key == FILL { self.fill_keys as i64 } else { 1 }).sum())
            }
            Op::Keys => {
                let keys = (0..KEYS.len() as Key).filter(|key| state.exists(*key));
                Ret::Names(keys.fold(0, |all, key| all | 1 << key))
            }
            Op::FlushDb | Op::FlushAll => {
                state.flush();
                if *op == Op::FlushAll {
                    state.aside = Default::default();
                }
                Ret::Ok
            }
            Op::SwapDb(_) => {
                for key in 0..KEYS.len() as Key {
                    if state.exists(key) || state.aside[key as usize].value.is_some() {
                        state.change(key);
                    }
                }
                state.watches.iter_mut().for_each(|watch| watch.exchanged = true);
                std::mem::swap(&mut state.slots, &mut state.aside);
                Ret::Ok
            }
            Op::Del(keys) => Ret::Int(
                keys.iter()
                    .map(|key| match state.remove(*key) {
                        true if *key == FILL => self.fill_keys as i64,
                        gone => i64::from(gone),
                    })
                    .sum(),
            ),
            Op::Exists(key) => Ret::Int(state.exists(*key).into()),
            Op::Expire(key, _) | Op::Persist(key) => {
                let volatile = matches!(op, Op::Expire(..));
                let slot = &mut state.slots[*key as usize];
                let done = slot.value.is_some() && (volatile || slot.volatile);
                if done {
                    slot.volatile = volatile;
                    state.change(*key);
                }
                Ret::Int(done.into())
            }
            Op::Copy(from, to) => {
                let slot = state.slot(*from).clone();
                let done = slot.value.is_some();
                if done {
                    state.put(*to, slot.value);
                    state.slots[*to as usize].volatile = slot.volatile;
                }
                Ret::Int(done.into())
            }
            Op::Rename(from, to) => {
                let slot = state.slot(*from).clone();
                if !state.remove(*from) {
                    return Ret::Nil;
                }
                state.put(*to, slot.value);
                state.slots[*to as usize].volatile = slot.volatile;
                Ret::Ok
            }
            _ => self.run_typed(state, op, seen),
        }
    }

    fn run_typed(&self, state: &mut State, op: &Op, seen: Option<&Ret>) -> Ret {
        match op {
            Op::SAdd(..)
            | Op::SRem(..)
            | Op::SMembers(_)
            | Op::SCard(_)
            | Op::SIsMember(..)
            | Op::SMove(..)
            | Op::Combined(..)
            | Op::Store(..) => self.run_set(state, op),
            Op::RPush(..)
            | Op::LPush(..)
            | Op::LPop(_)
            | Op::RPop(_)
            | Op::LPopMany(..)
            | Op::LRange(_)
            | Op::LLen(_)
            | Op::LMove(..)
            | Op::BLPop(..)
            | Op::SortStore(..) => Self::run_list(state, op, seen),
            _ => Self::run_int(state, op),
        }
    }

    fn exec(&self, state: &mut State, conn: u32, ops: &[Op], seen: Option<&Ret>) -> Ret {
        let mut mine = state.watches.iter().filter(|watch| watch.conn == conn);
        let fails = mine.any(|watch| watch.changed || watch.exchanged && seen == Some(&Ret::Nil));
        state.watches.retain(|watch| watch.conn != conn);
        if fails {
            return Ret::Nil;
        }
        let seen = |i: usize| match seen {
            Some(Ret::Many(all)) => all.get(i),
            _ => None,
        };
        Ret::Many(ops.iter().enumerate().map(|(i, op)| self.run(state, op, seen(i))).collect())
    }

    fn run_int(state: &mut State, op: &Op) -> Ret {
        match op {
            Op::Get(key) => int_or_nil(state.int(*key)),
            Op::Set(key, n) => {
                state.put_int(*key, *n);
                Ret::Ok
            }
            Op::SetPx(key, n, _) => {
                state.put_int(*key, *n);
                state.slots[*key as usize].volatile = true;
                Ret::Ok
            }
            Op::SetNx(key, n) => {
                let done = !state.exists(*key);
                if done {
                    state.put_int(*key, *n);
                }
                Ret::Int(done.into())
            }
            Op::GetSet(key, n) => {
                let old = state.int(*key);
                state.put_int(*key, *n);
                int_or_nil(old)
            }
            Op::GetDel(key) => {
                let old = state.int(*key);
                state.remove(*key);
                int_or_nil(old)
            }
            Op::Incr(key, by) => {
                let n = state.int(*key).unwrap_or(0) + by;
                state.edit(*key, Some(Value::Int(n)));
                Ret::Int(n)
            }
            Op::Bump(key, _) => {
                let n = state.int(*key).unwrap_or(0) + 1;
                state.put_int(*key, n);
                Ret::Int(n)
            }
            Op::Cas(key, old, new) => {
                let same = state.int(*key) == Some(*old);
                if same {
                    state.put_int(*key, *new);
                }
                Ret::Int(same.into())
            }
            Op::MGet(keys) => Ret::Many(keys.iter().map(|key| int_or_nil(state.int(*key))).collect()),
            Op::MSet(pairs) => {
                pairs.iter().for_each(|(key, n)| state.put_int(*key, *n));
                Ret::Ok
            }
            Op::FillByScript(n) => {
                state.put_int(FILL, *n);
                Ret::Ok
            }
            Op::Peek(keys) => Ret::Many(vec![int_or_nil(state.int(FILL)); keys.len()]),
            other => Ret::Torn(format!("{other:?} has no model")),
        }
    }

    fn run_set(&self, state: &mut State, op: &Op) -> Ret {
        match op {
            Op::SAdd(key, members) => {
                let old = state.set(*key);
                state.edit_set(*key, old | members);
                Ret::Int(self.card(members & !old))
            }
            Op::SRem(key, members) => {
                let old = state.set(*key);
                state.edit_set(*key, old & !members);
                Ret::Int(self.card(members & old))
            }
            Op::SMembers(key) => Ret::Set(state.set(*key)),
            Op::SCard(key) => Ret::Int(self.card(state.set(*key))),
            Op::SIsMember(key, member) => Ret::Int((state.set(*key) >> member & 1) as i64),
            Op::SMove(from, to, member) => {
                let bit = 1 << member;
                let has = state.set(*from) & bit != 0;
                if has && from != to {
                    state.edit_set(*from, state.set(*from) & !bit);
                    state.edit_set(*to, state.set(*to) | bit);
                }
                Ret::Int(has.into())
            }
            Op::Combined(how, keys) => Ret::Set(state.combined(*how, keys)),
            Op::Store(how, to, keys) => {
                let members = state.combined(*how, keys);
                match members {
                    0 => {
                        state.remove(*to);
                    }
                    members => state.put(*to, Some(Value::Set(members))),
                }
                Ret::Int(self.card(members))
            }
            other => Ret::Torn(format!("{other:?} has no model")),
        }
    }

    fn run_list(state: &mut State, op: &Op, seen: Option<&Ret>) -> Ret {
        match op {
            Op::RPush(key, piece) | Op::LPush(key, piece) => {
                state.push(*key, *piece, matches!(op, Op::LPush(..)));
                Ret::Int(Self::list_len(state.list(*key)))
            }
            Op::LPop(key) => one(state.pop(*key, 1, true)),
            Op::RPop(key) => one(state.pop(*key, 1, false)),
            Op::LPopMany(key, n) => one(state.pop(*key, *n, true)),
            Op::LRange(key) => Ret::List(state.list(*key).to_vec()),
            Op::LLen(key) => Ret::Int(Self::list_len(state.list(*key))),
            Op::LMove(from, to) => {
                let taken = state.pop(*from, 1, true);
                taken.iter().for_each(|piece| state.push(*to, *piece, false));
                one(taken)
            }
            Op::BLPop(keys, _) => {
                let chosen = match seen {
                    Some(Ret::Popped(key, _)) if keys.contains(key) => Some(*key),
                    _ => keys.iter().copied().find(|key| state.exists(*key)),
                };
                let Some(key) = chosen else { return Ret::Nil };
                match state.pop(key, 1, true)[..] {
                    [piece] => Ret::Popped(key, piece),
                    _ => Ret::Nil,
                }
            }
            Op::SortStore(from, to) => {
                let list = state.list(*from).to_vec();
                let len = Self::list_len(&list);
                match len {
                    0 => {
                        state.remove(*to);
                    }
                    _ => state.put(*to, Some(Value::List(list))),
                }
                Ret::Int(len)
            }
            other => Ret::Torn(format!("{other:?} has no model")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Entry, Verdict, check};

    const DULL: Dull = Dull { fill_keys: 100, ballast: 50 };

    fn run(history: Vec<(Op, Ret, u64, u64)>) -> bool {
        let entry =
            |(op, ret, invoke_ns, return_ns)| Entry { client: 0, op, ret: Some(ret), invoke_ns, return_ns };
        let history: Vec<_> = history.into_iter().map(entry).collect();
        matches!(check(&DULL, State::default(), &history), Verdict::Linearizable)
    }

    /// Checks operations that follow each other.
    fn one_by_one(ops: Vec<(Op, Ret)>) -> bool {
        run(ops.into_iter().zip(0..).map(|((op, ret), i)| (op, ret, 10 * i, 10 * i + 5)).collect())
    }

    #[test]
    fn the_dull_server_answers_as_redis_does() {
        let (a, b) = (7, 8);
        assert!(one_by_one(vec![
            (Op::SAdd(4, BALLAST | 1), Ret::Int(51)),
            (Op::Store(Combine::Union, 5, vec![4, 6]), Ret::Int(51)),
            (Op::SRem(4, BALLAST), Ret::Int(50)),
            (Op::Combined(Combine::Diff, vec![5, 4]), Ret::Set(BALLAST)),
            (Op::RPush(a, Piece::Run(0, 50)), Ret::Int(50)),
            (Op::LPush(a, Piece::Live(7)), Ret::Int(51)),
            (Op::LPop(a), Ret::List(vec![Piece::Live(7)])),
            (Op::LMove(a, b), Ret::List(vec![Piece::Run(0, 1)])),
            (Op::LPopMany(a, 9), Ret::List(vec![Piece::Run(1, 10)])),
            (Op::LRange(a), Ret::List(vec![Piece::Run(10, 50)])),
            (Op::SortStore(a, b), Ret::Int(40)),
            (Op::DbSize, Ret::Int(4)),
            (Op::MSet(vec![(0, 5), (FILL, 9)]), Ret::Ok),
            (Op::DbSize, Ret::Int(105)),
            (Op::Del(vec![FILL]), Ret::Int(100)),
            (Op::FlushDb, Ret::Ok),
            (Op::Keys, Ret::Names(0)),
        ]));
    }

    #[test]
    fn a_long_union_that_missed_a_write_before_it_is_rejected() {
        let history = |seen| {
            vec![
                (Op::SAdd(4, 1), Ret::Int(1), 0, 1),
                (Op::SAdd(4, BALLAST), Ret::Int(50), 2, 3),
                (Op::Store(Combine::Union, 5, vec![4]), Ret::Int(seen), 4, 10),
                (Op::SRem(4, 1), Ret::Int(1), 5, 6),
            ]
        };
        assert!(run(history(51)) && run(history(50)) && !run(history(1)));
    }

    #[test]
    fn a_script_that_read_two_moments_is_rejected() {
        let history = |first, second| {
            let pair = Op::Atomic(How::Script(1000), vec![Op::Get(0), Op::Get(1)]);
            vec![
                (Op::MSet(vec![(0, 1), (1, 1)]), Ret::Ok, 0, 1),
                (pair, Ret::Many(vec![Ret::Int(first), Ret::Int(second)]), 2, 20),
                (Op::MSet(vec![(0, 2), (1, 2)]), Ret::Ok, 5, 6),
            ]
        };
        assert!(run(history(1, 1)) && run(history(2, 2)));
        assert!(!run(history(1, 2)) && !run(history(2, 1)));
    }

    #[test]
    fn exec_fails_exactly_if_the_watched_key_changed() {
        let history = |between, ret| {
            one_by_one(vec![(Op::Watch(1, 0), Ret::Ok), between, (Op::Exec(1, vec![Op::Incr(1, 1)]), ret)])
        };
        let won = || Ret::Many(vec![Ret::Int(1)]);
        let write = || (Op::Set(0, 5), Ret::Ok);
        let other = || (Op::Set(2, 5), Ret::Ok);
        let vain = || (Op::Del(vec![0]), Ret::Int(0));
        assert!(history(write(), Ret::Nil) && !history(write(), won()));
        assert!(history(other(), won()) && !history(other(), Ret::Nil));
        assert!(history(vain(), won()) && !history(vain(), Ret::Nil));
        // For an absent key the effect of an exchange is uncertain.
        let exchange = || (Op::SwapDb(0), Ret::Ok);
        assert!(history(exchange(), won()) && history(exchange(), Ret::Nil));
        let there =
            vec![write(), (Op::Watch(1, 0), Ret::Ok), exchange(), (Op::Exec(1, vec![Op::Incr(1, 1)]), won())];
        assert!(!one_by_one(there));
    }

    #[test]
    fn what_expired_stays_away() {
        let set = || (Op::SetPx(0, 1, 5), Ret::Ok);
        let get = |ret| (Op::Get(0), ret);
        assert!(one_by_one(vec![set(), get(Ret::Int(1)), get(Ret::Nil), get(Ret::Nil)]));
        assert!(!one_by_one(vec![set(), get(Ret::Nil), get(Ret::Int(1))]));
        assert!(!one_by_one(vec![set(), (Op::Persist(0), Ret::Int(1)), get(Ret::Nil)]));
    }

    #[test]
    fn an_item_is_popped_once() {
        let pop = |ret, from| (Op::BLPop(vec![7, 8], 0), ret, from, 20);
        let item = || Ret::Popped(8, Piece::Live(1));
        let push = || (Op::RPush(8, Piece::Live(1)), Ret::Int(1), 5, 6);
        assert!(run(vec![pop(item(), 0), push(), pop(Ret::Nil, 0)]));
        assert!(!run(vec![pop(item(), 0), push(), pop(item(), 0)]));
        assert!(!run(vec![push(), (Op::BLPop(vec![7, 8], 0), Ret::Nil, 10, 20)]));
    }
}
