//! Operations as requests, and replies as results of the model.

use crate::model::{BALLAST, Combine, Dull, FILL, How, KEYS, Key, Op, Piece, Ret, append};
use dial::Frame;

type Request = Vec<Vec<u8>>;

/// Runs every command in its arguments and gives all replies; spins in between.
const ATOMIC: &str = "\
local out, at = {}, 2
while at <= #ARGV do
  local words, n = {}, tonumber(ARGV[at])
  for i = 1, n do words[i] = ARGV[at + i] end
  out[#out + 1] = redis.call(unpack(words))
  at = at + n + 1
  for i = 1, tonumber(ARGV[1]) do end
end
return out";

const BUMP: &str = "\
local n = tonumber(redis.call('GET', KEYS[1]) or 0)
for i = 1, tonumber(ARGV[1]) do end
redis.call('SET', KEYS[1], string.format('%.0f', n + 1))
return n + 1";

const CAS: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  return 1
end
return 0";

const FILL_ALL: &str = "\
for i = 0, tonumber(ARGV[1]) - 1 do redis.call('SET', 'f' .. i, ARGV[2]) end
return redis.status_reply('OK')";

/// A script's text. A script that once took long is later sent to a thread at once, so long ones have other
/// texts and short ones stay inline.
fn script(text: &str, spin: u32) -> String {
    if spin > LONG_FROM { format!("-- long\n{text}") } else { text.to_owned() }
}

const LONG_FROM: u32 = 500;
/// Distance from a group's database to the one it is swapped with.
const ASIDE_DB: usize = 4;

pub fn name(key: Key) -> &'static str {
    KEYS[key as usize].0
}

fn words<const N: usize>(words: [&str; N]) -> Request {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn with_keys(mut request: Request, keys: &[Key]) -> Request {
    request.extend(keys.iter().map(|key| name(*key).as_bytes().to_vec()));
    request
}

impl Dull {
    /// The string keys behind `fill`.
    fn fill_names(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.fill_keys).map(|i| format!("f{i}").into_bytes())
    }

    fn members(&self, members: u64) -> Vec<Vec<u8>> {
        let mut all: Request =
            (0..63).filter(|i| members >> i & 1 == 1).map(|i| format!("m{i}").into()).collect();
        if members & BALLAST != 0 {
            all.extend((0..self.ballast).map(|i| format!("b{i}").into_bytes()));
        }
        all
    }

    fn items(piece: Piece, left: bool) -> Request {
        match piece {
            Piece::Live(n) => vec![format!("e{n}").into_bytes()],
            // Elements pushed to the left end up in the opposite order.
            Piece::Run(from, to) if left => (from..to).rev().map(|i| format!("b{i}").into_bytes()).collect(),
            Piece::Run(from, to) => (from..to).map(|i| format!("b{i}").into_bytes()).collect(),
        }
    }

    /// The requests of an operation, with EXEC's sequence: one, or several in one go.
    pub fn requests(&self, op: &Op) -> Vec<Request> {
        match op {
            Op::Atomic(How::Multi, ops) | Op::Exec(_, ops) => {
                let mut all = vec![words(["MULTI"])];
                all.extend(ops.iter().map(|op| self.request(op)));
                all.push(words(["EXEC"]));
                all
            }
            op => vec![self.request(op)],
        }
    }

    fn request(&self, op: &Op) -> Request {
        match op {
            Op::Get(k) => words(["GET", name(*k)]),
            Op::Set(k, n) => words(["SET", name(*k), &n.to_string()]),
            Op::SetPx(k, n, ms) => words(["SET", name(*k), &n.to_string(), "PX", &ms.to_string()]),
            Op::SetNx(k, n) => words(["SETNX", name(*k), &n.to_string()]),
            Op::GetSet(k, n) => words(["GETSET", name(*k), &n.to_string()]),
            Op::GetDel(k) => words(["GETDEL", name(*k)]),
            Op::Incr(k, by) => words(["INCRBY", name(*k), &by.to_string()]),
            Op::Bump(k, spin) => words(["EVAL", &script(BUMP, *spin), "1", name(*k), &spin.to_string()]),
            Op::Cas(k, old, new) => words(["EVAL", CAS, "1", name(*k), &old.to_string(), &new.to_string()]),
            Op::MGet(keys) => {
                let mut request = words(["MGET"]);
                for key in keys {
                    match *key {
                        FILL => request.extend(self.fill_names()),
                        key => request.push(name(key).into()),
                    }
                }
                request
            }
            Op::MSet(pairs) => {
                let mut request = words(["MSET"]);
                for (key, n) in pairs {
                    let n = n.to_string().into_bytes();
                    match *key {
                        FILL => self.fill_names().for_each(|key| request.extend([key, n.clone()])),
                        key => request.extend([name(key).into(), n]),
                    }
                }
                request
            }
            Op::FillByScript(n) => {
                words(["EVAL", FILL_ALL, "0", &self.fill_keys.to_string(), &n.to_string()])
            }
            Op::Peek(keys) => {
                let names = keys.iter().map(|i| format!("f{i}").into_bytes());
                words(["MGET"]).into_iter().chain(names).collect()
            }
            Op::Del(keys) => {
                let mut request = words(["DEL"]);
                for key in keys {
                    match *key {
                        FILL => request.extend(self.fill_names()),
                        key => request.push(name(key).into()),
                    }
                }
                request
            }
            Op::Exists(k) => words(["EXISTS", name(*k)]),
            Op::Expire(k, ms) => words(["PEXPIRE", name(*k), &ms.to_string()]),
            Op::Persist(k) => words(["PERSIST", name(*k)]),
            Op::Copy(from, to) => words(["COPY", name(*from), name(*to), "REPLACE"]),
            Op::Rename(from, to) => words(["RENAME", name(*from), name(*to)]),
            Op::DbSize => words(["DBSIZE"]),
            Op::Keys => words(["KEYS", "*"]),
            Op::FlushDb => words(["FLUSHDB"]),
            Op::FlushAll => words(["FLUSHALL"]),
            Op::SwapDb(group) => words(["SWAPDB", &group.to_string(), &(group + ASIDE_DB).to_string()]),
            Op::Watch(_, k) => words(["WATCH", name(*k)]),
            Op::Unwatch(_) => words(["UNWATCH"]),
            Op::Atomic(How::Script(spin), ops) => self.script(*spin, ops),
            Op::Atomic(How::Multi, _) | Op::Exec(..) => words(["EXEC"]),
            op => self.collection_request(op),
        }
    }

    fn collection_request(&self, op: &Op) -> Request {
        let verb = |how: &Combine| match how {
            Combine::Union => "SUNION",
            Combine::Diff => "SDIFF",
            Combine::Inter => "SINTER",
        };
        match op {
            Op::SAdd(k, members) => [words(["SADD", name(*k)]), self.members(*members)].concat(),
            Op::SRem(k, members) => [words(["SREM", name(*k)]), self.members(*members)].concat(),
            Op::SMembers(k) => words(["SMEMBERS", name(*k)]),
            Op::SCard(k) => words(["SCARD", name(*k)]),
            Op::SIsMember(k, member) => words(["SISMEMBER", name(*k), &format!("m{member}")]),
            Op::SMove(from, to, member) => words(["SMOVE", name(*from), name(*to), &format!("m{member}")]),
            Op::Combined(how, keys) => with_keys(words([verb(how)]), keys),
            Op::Store(how, to, keys) => with_keys(words([&format!("{}STORE", verb(how)), name(*to)]), keys),
            Op::RPush(k, piece) => [words(["RPUSH", name(*k)]), Self::items(*piece, false)].concat(),
            Op::LPush(k, piece) => [words(["LPUSH", name(*k)]), Self::items(*piece, true)].concat(),
            Op::LPop(k) => words(["LPOP", name(*k)]),
            Op::RPop(k) => words(["RPOP", name(*k)]),
            Op::LPopMany(k, n) => words(["LPOP", name(*k), &n.to_string()]),
            Op::LRange(k) => words(["LRANGE", name(*k), "0", "-1"]),
            Op::LLen(k) => words(["LLEN", name(*k)]),
            Op::LMove(from, to) => words(["LMOVE", name(*from), name(*to), "LEFT", "RIGHT"]),
            Op::BLPop(keys, ms) => {
                let mut request = with_keys(words(["BLPOP"]), keys);
                request.push(format!("{}", f64::from(*ms) / 1000.0).into_bytes());
                request
            }
            Op::SortStore(from, to) => words(["SORT", name(*from), "BY", "nosort", "STORE", name(*to)]),
            other => words(["ECHO", &format!("{other:?} has no request")]),
        }
    }

    /// Some scripts declare no keys, so the server has to find them.
    fn script(&self, spin: u32, ops: &[Op]) -> Request {
        let mut request = words(["EVAL", &script(ATOMIC, spin), "0", &spin.to_string()]);
        for op in ops {
            let words = self.request(op);
            request.push(words.len().to_string().into_bytes());
            request.extend(words);
        }
        request
    }

    /// The replies to [`Dull::requests`] as one result. `Ok(None)`: an error said that nothing was done. Any
    /// other error ends the test.
    pub fn result(&self, op: &Op, mut frames: Vec<Frame>) -> Result<Option<Ret>, String> {
        if let Some(wrong) = frames.iter().rev().skip(1).find(|frame| frame.is_error()) {
            return Err(format!("{op:?} was answered {wrong:?}"));
        }
        let last = frames.pop().unwrap_or(Frame::Null);
        if last.is_error_with("too many snapshots") {
            return Ok(None);
        }
        self.meaning(op, last).map(Some)
    }

    fn meaning(&self, op: &Op, frame: Frame) -> Result<Ret, String> {
        match (op, frame) {
            (Op::Rename(..), frame) if frame.is_error_with("no such key") => Ok(Ret::Nil),
            (op, error @ Frame::Error(_)) => Err(format!("{op:?} was answered {}", error.lossy())),
            (Op::Atomic(_, ops) | Op::Exec(_, ops), Frame::Array(items)) if ops.len() == items.len() => {
                let all = ops.iter().zip(items).map(|(op, item)| self.meaning(op, item));
                Ok(Ret::Many(all.collect::<Result<_, _>>()?))
            }
            (Op::Keys, Frame::Array(items)) => Ok(self.names(&items)),
            (Op::BLPop(..), Frame::Array(items)) => match &items[..] {
                [Frame::Bulk(key), Frame::Bulk(item)] => {
                    let key = KEYS.iter().position(|(name, _)| name.as_bytes() == key);
                    match (key, piece(item)) {
                        (Some(key), Some(piece)) => Ok(Ret::Popped(key as Key, piece)),
                        _ => Ok(Ret::Torn(format!("{items:?}"))),
                    }
                }
                _ => Ok(Ret::Torn(format!("{items:?}"))),
            },
            (Op::MGet(keys), Frame::Array(items)) => Ok(self.values(keys, &items)),
            (Op::Peek(_), Frame::Array(items)) => {
                Ok(Ret::Many(items.iter().map(|item| item.number().map_or(Ret::Nil, Ret::Int)).collect()))
            }
            (Op::SMembers(_) | Op::Combined(..), Frame::Array(items)) => Ok(self.set(&items)),
            (Op::LRange(_) | Op::LPopMany(..), Frame::Array(items)) => Ok(pieces(&items)),
            (Op::LPop(_) | Op::RPop(_) | Op::LMove(..), Frame::Bulk(item)) => {
                Ok(pieces(&[Frame::Bulk(item)]))
            }
            (_, Frame::Null | Frame::NullArray) => Ok(Ret::Nil),
            (_, frame) if frame.is_ok() => Ok(Ret::Ok),
            (_, Frame::Int(n)) => Ok(Ret::Int(n)),
            (_, frame @ Frame::Bulk(_)) => {
                Ok(frame.number().map_or_else(|| Ret::Torn(format!("{frame:?}")), Ret::Int))
            }
            (_, frame) => Ok(Ret::Torn(format!("{frame:?}"))),
        }
    }

    fn names(&self, items: &[Frame]) -> Ret {
        let (mut keys, mut fill) = (0, 0);
        for item in items {
            let Frame::Bulk(text) = item else { return Ret::Torn(format!("{item:?}")) };
            match KEYS.iter().position(|(name, _)| name.as_bytes() == text) {
                Some(key) if keys >> key & 1 == 0 => keys |= 1 << key,
                None if text.starts_with(b"f") => fill += 1,
                _ => return Ret::Torn(format!("twice or unknown: {item:?}")),
            }
        }
        match fill {
            0 => Ret::Names(keys),
            n if n == self.fill_keys => Ret::Names(keys | 1 << FILL),
            n => Ret::Torn(format!("{n} of {} fill keys", self.fill_keys)),
        }
    }

    fn values(&self, keys: &[Key], items: &[Frame]) -> Ret {
        let mut items = items.iter();
        let mut all = Vec::new();
        for key in keys {
            let first = items.next().cloned().unwrap_or(Frame::Null);
            if *key == FILL
                && let Some(other) = items.by_ref().take(self.fill_keys - 1).find(|item| **item != first)
            {
                return Ret::Torn(format!("fill keys with {first:?} and with {other:?}"));
            }
            all.push(first.number().map_or(Ret::Nil, Ret::Int));
        }
        Ret::Many(all)
    }

    fn set(&self, items: &[Frame]) -> Ret {
        let (mut members, mut ballast) = (0, 0);
        for item in items {
            let Frame::Bulk(text) = item else { return Ret::Torn(format!("{item:?}")) };
            match numbered(text) {
                Some((b'b', _)) => ballast += 1,
                Some((b'm', n)) if n < 63 && members >> n & 1 == 0 => members |= 1 << n,
                _ => return Ret::Torn(format!("twice or unknown: {item:?}")),
            }
        }
        match ballast {
            0 => Ret::Set(members),
            n if n == self.ballast => Ret::Set(members | BALLAST),
            n => Ret::Torn(format!("{n} of {} ballast members", self.ballast)),
        }
    }
}

fn numbered(text: &[u8]) -> Option<(u8, u32)> {
    let (mark, digits) = text.split_first()?;
    Some((*mark, std::str::from_utf8(digits).ok()?.parse().ok()?))
}

fn piece(text: &[u8]) -> Option<Piece> {
    match numbered(text)? {
        (b'e', n) => Some(Piece::Live(n)),
        (b'b', n) => Some(Piece::Run(n, n + 1)),
        _ => None,
    }
}

fn pieces(items: &[Frame]) -> Ret {
    let mut all = Vec::new();
    for item in items {
        let Frame::Bulk(text) = item else { return Ret::Torn(format!("{item:?}")) };
        match piece(text) {
            Some(piece) => append(&mut all, piece),
            None => return Ret::Torn(format!("{item:?}")),
        }
    }
    Ret::List(all)
}
