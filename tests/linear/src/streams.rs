//! Streams beside [`crate::groups`]: clients on two streams, and a search for the order that explains every
//! reply.
//!
//! ```text
//! XADD * ─▶ an ID of the server ─┐
//! XLEN XRANGE XREAD (BLOCK) ─────┼─▶ history ─▶ check: an ID above all before it, and every entry until it is removed
//! XDEL XTRIM DEL ────────────────┘
//! ```
//!
//! - ST1: an XADD's ID is greater than every ID of the stream before it, removed ones too. A DEL forgets them.
//! - ST2: a read answers all entries of its range, each with the value that its XADD brought.
//! - ST3: XREAD BLOCK answers entries as of one moment between its call and its reply, or found none at one.
//!
//! Cost: histories are short ([`MOST`] operations), because a state holds all entries.

use crate::check::{self, Entry, Model, Verdict};
use crate::invariants::{Part, Stage, tell};
use dial::Frame;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use support::rng::Rng;

const STREAMS_DB: usize = 12;
/// Most operations of one history.
const MOST: usize = 3000;

pub type Id = (u64, u64);

/// A stream: its greatest ID, and its entries with their values.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Stream {
    last: Id,
    entries: Vec<(Id, i64)>,
}

/// Two streams; `None` is a key that does not exist.
type State = [Option<Stream>; 2];

#[derive(Clone, PartialEq, Eq, Debug)]
enum Op {
    Add(usize, i64),
    /// Two entries by MULTI, one in each stream.
    AddBoth(i64),
    Len(usize),
    Range(usize),
    /// XREAD from behind an ID; with milliseconds to wait.
    Read(usize, Id, Option<u32>),
    Remove(usize, Id),
    Trim(usize, usize),
    Del(usize),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Ret {
    Added(Vec<Id>),
    Count(i64),
    Entries(Vec<(Id, i64)>),
}

struct Plain;

impl Plain {
    fn add(state: &mut State, stream: usize, value: i64, id: Id) -> bool {
        let stream = state[stream].get_or_insert_default();
        let fits = id > stream.last; // ST1
        stream.last = id;
        stream.entries.push((id, value));
        fits
    }

    /// Runs an operation that answers a number; its reply.
    fn count(state: &mut State, op: &Op) -> Option<usize> {
        Some(match op {
            Op::Len(stream) => state[*stream].as_ref().map_or(0, |stream| stream.entries.len()),
            Op::Del(stream) => state[*stream].take().is_some().into(),
            Op::Remove(stream, id) => state[*stream].as_mut().map_or(0, |stream| {
                let before = stream.entries.len();
                stream.entries.retain(|entry| entry.0 != *id);
                before - stream.entries.len()
            }),
            Op::Trim(stream, most) => state[*stream].as_mut().map_or(0, |stream| {
                let gone = stream.entries.len().saturating_sub(*most);
                stream.entries.drain(..gone);
                gone
            }),
            _ => return None,
        })
    }

    fn entries(state: &State, stream: usize, behind: Id) -> impl Iterator<Item = &(Id, i64)> {
        state[stream].iter().flat_map(|stream| &stream.entries).filter(move |entry| entry.0 > behind)
    }
}

impl Model for Plain {
    type State = State;
    type Op = Op;
    type Ret = Ret;

    fn step(&self, state: &State, op: &Op, ret: Option<&Ret>) -> Vec<State> {
        let mut next = state.clone();
        let explained = match (op, ret) {
            (Op::Add(stream, value), Some(Ret::Added(ids))) => match ids[..] {
                [id] => Plain::add(&mut next, *stream, *value, id),
                _ => false,
            },
            (Op::AddBoth(value), Some(Ret::Added(ids))) => match ids[..] {
                [a, b] => Plain::add(&mut next, 0, *value, a) && Plain::add(&mut next, 1, *value, b),
                _ => false,
            },
            (Op::Range(stream), Some(Ret::Entries(all))) => Plain::entries(state, *stream, (0, 0)).eq(all),
            (Op::Read(stream, behind, _), Some(Ret::Entries(all))) => {
                Plain::entries(state, *stream, *behind).eq(all)
            }
            (op, Some(Ret::Count(n))) => Plain::count(&mut next, op).is_some_and(|count| count as i64 == *n),
            _ => false,
        };
        if explained { vec![next] } else { Vec::new() }
    }

    fn is_look(&self, op: &Op, ret: &Ret) -> bool {
        matches!(op, Op::Len(_) | Op::Range(_) | Op::Read(..)) || *ret == Ret::Count(0)
    }
}

// ----- clients ---------------------------------------------------------------------------------------------

type Record = Entry<Op, Ret>;

/// The state that the clients of the scene share.
struct Shared {
    start: Instant,
    clients: AtomicUsize,
    history: Mutex<Vec<Record>>,
}

/// The clients of the scene. The last to end checks the history of all.
pub fn parts(rng: &mut Rng) -> Vec<(&'static str, Part)> {
    let clients = rng.between(2, 5);
    let history = Mutex::new(Vec::new());
    let shared = Arc::new(Shared { start: Instant::now(), clients: AtomicUsize::new(clients), history });
    let part = |id: usize| -> (&'static str, Part) {
        let shared = shared.clone();
        ("streams client", Box::new(move |stage| client(stage, id, clients, &shared)))
    };
    (0..clients).map(part).collect()
}

fn client(stage: &Stage, id: usize, clients: usize, shared: &Shared) -> Result<usize, String> {
    let (mut conn, mut rng) = (stage.conn(STREAMS_DB)?, stage.rng(70 + id as u64));
    let (mut log, mut latest, mut next) = (Vec::new(), [(0, 0); 2], (id as i64 + 1) * 1_000_000);
    while stage.on() && log.len() < MOST / clients {
        next += 1;
        let op = draw(&mut rng, &latest, next);
        let invoke_ns = shared.start.elapsed().as_nanos() as u64;
        let frame = match &op {
            Op::AddBoth(value) => {
                let line = |stream| format!("XADD x{stream} * v {value}");
                let both = [line(0), line(1)].map(|line| line.split(' ').map(str::to_owned).collect());
                Frame::Array(crate::invariants::multi(&mut conn, &both)?.unwrap_or_default())
            }
            op => tell(&mut conn, &line(op))?,
        };
        let return_ns = shared.start.elapsed().as_nanos() as u64;
        let ret = meaning(&op, &frame).ok_or_else(|| format!("{op:?} was answered {frame:?}"))?;
        remember(&op, &ret, &mut latest);
        log.push(Entry { client: id, op, ret: Some(ret), invoke_ns, return_ns });
    }
    let done = log.len();
    shared.history.lock().map_err(|e| e.to_string())?.extend(log);
    if shared.clients.fetch_sub(1, Ordering::SeqCst) == 1 {
        let mut history = std::mem::take(&mut *shared.history.lock().map_err(|e| e.to_string())?);
        judge(&mut history)?;
    }
    Ok(done)
}

/// IDs that a client has seen are removed, or read from.
fn remember(op: &Op, ret: &Ret, latest: &mut [Id; 2]) {
    match (op, ret) {
        (Op::Add(stream, _), Ret::Added(ids)) => latest[*stream] = ids.first().copied().unwrap_or_default(),
        (Op::Range(stream) | Op::Read(stream, ..), Ret::Entries(all)) if !all.is_empty() => {
            latest[*stream] = all[all.len() / 2].0;
        }
        _ => {}
    }
}

fn draw(rng: &mut Rng, latest: &[Id; 2], value: i64) -> Op {
    let stream = rng.below(2);
    match rng.below(20) {
        0..7 => Op::Add(stream, value),
        7 => Op::AddBoth(value),
        8..10 => Op::Len(stream),
        10..13 => Op::Range(stream),
        13..15 => Op::Read(stream, latest[stream], None),
        15 => Op::Read(stream, latest[stream], Some(rng.between(1, 20) as u32)),
        16..18 => Op::Remove(stream, latest[stream]),
        18 if rng.percent(30) => Op::Del(stream),
        _ => Op::Trim(stream, rng.below(8)),
    }
}

fn line(op: &Op) -> String {
    match op {
        Op::Add(stream, value) => format!("XADD x{stream} * v {value}"),
        Op::AddBoth(_) => "MULTI".to_owned(),
        Op::Len(stream) => format!("XLEN x{stream}"),
        Op::Range(stream) => format!("XRANGE x{stream} - +"),
        Op::Read(stream, id, None) => format!("XREAD STREAMS x{stream} {}-{}", id.0, id.1),
        Op::Read(stream, id, Some(ms)) => format!("XREAD BLOCK {ms} STREAMS x{stream} {}-{}", id.0, id.1),
        Op::Remove(stream, id) => format!("XDEL x{stream} {}-{}", id.0, id.1),
        Op::Trim(stream, most) => format!("XTRIM x{stream} MAXLEN {most}"),
        Op::Del(stream) => format!("DEL x{stream}"),
    }
}

fn meaning(op: &Op, frame: &Frame) -> Option<Ret> {
    match (op, frame) {
        (Op::Add(..), id) => Some(Ret::Added(vec![self::id(id)?])),
        (Op::AddBoth(_), Frame::Array(ids)) => ids.iter().map(id).collect::<Option<_>>().map(Ret::Added),
        (Op::Range(_), all) => entries(all).map(Ret::Entries),
        (Op::Read(..), Frame::NullArray) => Some(Ret::Entries(Vec::new())),
        (Op::Read(..), Frame::Array(streams)) => match &streams[..] {
            [Frame::Array(named)] => entries(named.get(1)?).map(Ret::Entries),
            _ => None,
        },
        (_, Frame::Int(n)) => Some(Ret::Count(*n)),
        _ => None,
    }
}

/// The ID that a bulk spells.
pub fn id(frame: &Frame) -> Option<Id> {
    let Frame::Bulk(text) = frame else { return None };
    let (ms, seq) = std::str::from_utf8(text).ok()?.split_once('-')?;
    Some((ms.parse().ok()?, seq.parse().ok()?))
}

/// Entries of one field, as IDs and numbers.
pub fn entries(frame: &Frame) -> Option<Vec<(Id, i64)>> {
    let Frame::Array(all) = frame else { return None };
    let entry = |frame: &Frame| match frame {
        Frame::Array(parts) => match &parts[..] {
            [id, Frame::Array(fields)] => Some((self::id(id)?, fields.get(1)?.number()?)),
            _ => None,
        },
        _ => None,
    };
    all.iter().map(entry).collect()
}

fn judge(history: &mut [Record]) -> Result<(), String> {
    history.sort_by_key(|entry| entry.invoke_ns);
    let Verdict::Broken(broken) = check::check(&Plain, State::default(), history) else { return Ok(()) };
    let mut out = format!(
        "no order of these operations explains the replies; before them {:?}\n",
        broken.quiet_states.first()
    );
    for (i, entry) in
        history.iter().enumerate().take(broken.at + 1).filter(|(_, entry)| entry.return_ns > broken.quiet_ns)
    {
        let mark = if i == broken.at { "?" } else { " " };
        let (from, to) = (entry.invoke_ns / 1000, entry.return_ns / 1000);
        out +=
            &format!("{mark} {from:>9} {to:>9} client {}  {:?} -> {:?}\n", entry.client, entry.op, entry.ret);
    }
    Err(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One operation after the other.
    fn accepts(steps: &[(Op, Ret)]) -> bool {
        let entry = |(at, (op, ret)): (usize, &(Op, Ret))| {
            let at = 10 * at as u64;
            Entry { client: 0, op: op.clone(), ret: Some(ret.clone()), invoke_ns: at, return_ns: at + 5 }
        };
        judge(&mut steps.iter().enumerate().map(entry).collect::<Vec<_>>()).is_ok()
    }

    fn added(id: Id) -> Ret {
        Ret::Added(vec![id])
    }

    #[test]
    fn a_stream_in_order_is_accepted() {
        assert!(accepts(&[
            (Op::Add(0, 7), added((5, 0))),
            (Op::AddBoth(8), Ret::Added(vec![(5, 1), (5, 0)])),
            (Op::Range(0), Ret::Entries(vec![((5, 0), 7), ((5, 1), 8)])),
            (Op::Read(0, (5, 0), Some(1)), Ret::Entries(vec![((5, 1), 8)])),
            (Op::Remove(0, (5, 1)), Ret::Count(1)),
            (Op::Trim(0, 0), Ret::Count(1)),
            (Op::Read(0, (5, 0), Some(1)), Ret::Entries(Vec::new())),
            (Op::Len(0), Ret::Count(0)),
            (Op::Del(0), Ret::Count(1)),
            (Op::Add(0, 9), added((1, 0))),
        ]));
    }

    #[test]
    fn what_no_stream_does_is_rejected() {
        let first = (Op::Add(0, 7), added((5, 0)));
        for wrong in [
            (Op::Add(0, 8), added((5, 0))),
            (Op::Add(0, 8), added((4, 9))),
            (Op::Len(0), Ret::Count(0)),
            (Op::Len(1), Ret::Count(1)),
            (Op::Range(0), Ret::Entries(Vec::new())),
            (Op::Range(0), Ret::Entries(vec![((5, 0), 8)])),
            (Op::Range(0), Ret::Entries(vec![((5, 0), 7), ((5, 0), 7)])),
            (Op::Read(0, (0, 0), None), Ret::Entries(Vec::new())),
            (Op::Read(0, (5, 0), None), Ret::Entries(vec![((5, 0), 7)])),
            (Op::Remove(0, (5, 0)), Ret::Count(0)),
            (Op::Remove(0, (5, 1)), Ret::Count(1)),
            (Op::Trim(0, 1), Ret::Count(1)),
            (Op::Del(0), Ret::Count(0)),
        ] {
            assert!(!accepts(&[first.clone(), wrong.clone()]), "{wrong:?}");
        }
        let gone = [first, (Op::Remove(0, (5, 0)), Ret::Count(1)), (Op::Add(0, 8), added((5, 0)))];
        assert!(!accepts(&gone), "an ID came twice");
    }
}
