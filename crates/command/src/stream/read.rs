//! XREAD and XREADGROUP: what came behind an ID, now or when it comes.
//!
//! - R1: `$` is settled when the command first runs. A client that waits does so with the ID it stood for.
//! - R2: an XREADGROUP that waits is run again whenever its key changes or is removed. After a removal it answers that
//!   there is no group.

use super::answer::{Answer, Source};
use super::{CHANGE_STEPS, Claimed, FEW, GROUP, count, group_of, id, meet_consumer, note_group, text};
use crate::options::{is, timeout_whole_ms};
use crate::table::{
    BLOCKING, Begin, Command, Effect, Find, KeySpec, MOVABLEKEYS, OptionWords, READONLY, RO_ACCESS, Run,
    WRITE, acl,
};
use crate::{Cx, Error};
use keyspace::View;
use resp::{Args, OwnedArgs, Reply};
use value::{Stream, StreamId};

const fn streams(shown: i32) -> KeySpec {
    const TAKES: &[(&str, usize)] = &[("count", 1), ("block", 1), ("group", 2), ("streams", 1)];
    KeySpec {
        uses: RO_ACCESS,
        begin: Begin::Keyword { word: "STREAMS", shown, options: OptionWords { from: 1, takes: TAKES } },
        find: Find::Range { last: -1, step: 1, limit: 2 },
        notes: "",
    }
}

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("xread", -4, Run::Read(xread), READONLY | BLOCKING | MOVABLEKEYS, acl::STREAM)
        .keys(&[streams(1)])
        .reply(|view, args| entries(view, args).saturating_mul(4))
        .doc(
            GROUP,
            "5.0.0",
            "O(K*log(N)+M) for M entries answered of K streams.",
            "Answers the entries behind an ID of each stream, or waits for one.",
        ),
    Command::new("xreadgroup", -7, Run::Write(xreadgroup), WRITE | BLOCKING | MOVABLEKEYS, acl::STREAM)
        .portable(700)
        .keys(&[streams(4)])
        .effect(Effect::Noted)
        .reply(|view, args| entries(view, args).saturating_mul(4))
        .cost(|view, args| entries(view, args).saturating_mul(CHANGE_STEPS))
        .doc(
            GROUP,
            "5.0.0",
            "O(K*log(N)+M*log(P)) for M entries answered of K streams, with P pending.",
            "Gives a consumer the entries that its group has not read, or waits for one.",
        ),
];

/// The words of either command.
struct Words<'a> {
    /// None: does not wait. Else how long, at most.
    block: Option<Option<u64>>,
    count: usize,
    group: Option<(&'a [u8], &'a [u8])>,
    no_ack: bool,
    keys: Args<'a>,
    ids: Args<'a>,
    /// Index of the first ID among all words.
    at: usize,
}

impl<'a> Words<'a> {
    fn parse(args: Args<'a>, grouped: bool, now_ms: u64) -> Result<Words<'a>, Error> {
        let name = if grouped { "xreadgroup" } else { "xread" };
        let (mut block, mut most, mut group, mut no_ack, mut i) = (None, 0, None, false, 1);
        let first = loop {
            let Some(word) = args.get(i) else { return Err(Error::Syntax) };
            let more = args.len() - i - 1;
            if is(word, "block") && more > 0 {
                block = Some(block_ms(args.at(i + 1), now_ms)?);
                i += 1;
            } else if is(word, "count") && more > 0 {
                most = count(args.at(i + 1))?;
                i += 1;
            } else if is(word, "streams") && more > 0 {
                break i + 1;
            } else if is(word, "group") && more >= 2 {
                if !grouped {
                    return Err(Error::new(
                        "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                group = Some((args.at(i + 1), args.at(i + 2)));
                i += 2;
            } else if is(word, "noack") {
                if !grouped {
                    return Err(Error::new(
                        "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                no_ack = true;
            } else {
                return Err(Error::Syntax);
            }
            i += 1;
        };
        let half = (args.len() - first) / 2;
        if half * 2 != args.len() - first {
            let or = if grouped { "an ID or '>'" } else { "an ID, '+', or '$'" };
            return Err(Error::from(format!(
                "ERR Unbalanced '{name}' list of streams: for each stream key {or} must be specified."
            )));
        }
        if grouped && group.is_none() {
            return Err(Error::new("ERR Missing GROUP option for XREADGROUP"));
        }
        let (keys, ids, at) = (args.slice(first, half), args.from(first + half), first + half);
        Ok(Words { block, count: if most == 0 { usize::MAX } else { most }, group, no_ack, keys, ids, at })
    }
}

/// BLOCK's milliseconds; None: for ever. Errors: not an integer, out of range, negative.
fn block_ms(arg: &[u8], now_ms: u64) -> Result<Option<u64>, Error> {
    let ms = timeout_whole_ms(arg, now_ms)?;
    Ok((ms > 0).then_some(ms))
}

/// Where to read from.
#[derive(Clone, Copy, PartialEq)]
enum From {
    /// Behind an ID.
    Behind(StreamId),
    /// The last entry, whatever it is.
    Last,
    /// `>`: what the group has not read.
    New,
}

/// The entries that would be answered. O(keys · log n).
fn entries(view: &View<'_>, args: Args<'_>) -> usize {
    let grouped = args.get(0).is_some_and(|name| is(name, "xreadgroup"));
    let Ok(words) = Words::parse(args, grouped, 0) else { return 0 };
    let of = |(key, word): (&[u8], &[u8])| {
        let Ok(Some(stream)) = view.stream(key) else { return 0 };
        if words.count <= FEW {
            return words.count;
        }
        let group = words.group.and_then(|(group, _)| stream.group(group));
        let all = match (group, word) {
            (Some(group), b">") => {
                stream.count(group.last_id().next().unwrap_or(StreamId::MAX), StreamId::MAX)
            }
            (Some(group), _) => words
                .group
                .and_then(|(_, consumer)| group.consumer(consumer))
                .map_or(0, |consumer| consumer.pending_len()),
            (None, _) => {
                let behind = id::strict(word).ok().and_then(StreamId::next);
                behind.map_or(0, |from| stream.count(from, StreamId::MAX))
            }
        };
        all.min(words.count)
    };
    words.keys.iter().zip(words.ids.iter()).map(of).fold(words.keys.len(), usize::saturating_add)
}

/// `XREAD [COUNT count] [BLOCK ms] STREAMS key [key ...] id [id ...]`: by key, the entries behind an ID; `$`
/// stands for the last one there is, `+` asks for the last entry. A null array if there are none.
///
/// Cost: O(k·log n) and the reply, k = keys. Errors: syntax, bad numbers, invalid ID, WRONGTYPE.
fn xread(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let words = Words::parse(args, false, cx.view.now_ms())?;
    let mut wanted = Vec::with_capacity(words.keys.len());
    for (key, word) in words.keys.iter().zip(words.ids.iter()) {
        let stream = cx.view.stream(key)?;
        wanted.push(match word {
            b"$" => From::Behind(stream.map_or(StreamId::MIN, Stream::last_id)),
            b"+" => From::Last,
            b">" => {
                return Err(Error::new(
                    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
                ));
            }
            _ => From::Behind(id::strict(word)?),
        });
    }
    let mut answer = Answer::new(cx.out.resp3());
    for (key, from) in words.keys.iter().zip(&wanted) {
        let Some(stream) = cx.view.stream(key)? else { continue };
        let Some(last) = stream.last_entry_id() else { continue };
        let from = match from {
            From::Behind(id) => id.next(),
            From::Last | From::New => Some(last),
        };
        if let Some(from) = from.filter(|from| *from <= last) {
            let range = (from, StreamId::MAX);
            answer.range(stream, range, words.count, None, |out| head(out, key));
        }
    }
    if answer.len() == 0 {
        wait(cx, args, &words, &wanted);
        return Ok(());
    }
    send(cx, answer)
}

/// The part before the array of a stream's entries. In RESP3 the answer is a map.
fn head(out: &mut Reply, key: &[u8]) {
    if !out.resp3() {
        out.array(2);
    }
    out.bulk(key);
}

fn send(cx: &mut Cx<'_, '_>, answer: Answer) -> Result<(), Error> {
    if cx.out.resp3() {
        cx.out.map(answer.len())
    } else {
        cx.out.array(answer.len())
    }
    answer.send(cx)
}

/// Waits, with what `$` and `+` stand for now (R1); without BLOCK the answer is a null array.
fn wait(cx: &mut Cx<'_, '_>, args: Args<'_>, words: &Words<'_>, wanted: &[From]) {
    let Some(timeout_ms) = words.block else { return cx.out.null_array() };
    let mut settled = OwnedArgs::new();
    args.to(words.at).iter().for_each(|word| settled.push(word));
    for (i, (key, from)) in words.keys.iter().zip(wanted).enumerate() {
        match from {
            From::Behind(behind) => settled.push(id::Text::new(*behind).bytes()),
            From::Last => {
                let last = cx.view.stream(key).ok().flatten().map_or(StreamId::MIN, Stream::last_id);
                settled.push(id::Text::new(last).bytes());
            }
            From::New => settled.push(words.ids.at(i)),
        }
    }
    cx.block_as(timeout_ms, settled);
}

/// `XREADGROUP GROUP group consumer [COUNT count] [BLOCK ms] [NOACK] STREAMS key [key ...] id [id ...]`: with `>`
/// the entries that the group has not read, which are pending for the consumer then; else the consumer's pending
/// entries behind an ID. A consumer that there is not is made, also if nothing comes. Told as XCLAIM and XGROUP.
///
/// Cost: O(k·log n + m·log p) and the reply, k = keys, m = entries answered, p = entries pending. Errors: syntax,
/// bad numbers, invalid ID, WRONGTYPE, NOGROUP.
fn xreadgroup(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let words = Words::parse(args, true, cx.view.now_ms())?;
    let Some((group, consumer)) = words.group else { return Err(Error::Syntax) };
    let wanted = wanted(cx, &words, group)?;
    let (mut due, mut all) = (Vec::new(), words.keys.len());
    for (key, from) in words.keys.iter().zip(&wanted) {
        let (stream, state) = group_of(cx.view, key, group)?;
        match from {
            From::Behind(id) => {
                due.push((key, *from));
                all += state.consumer(consumer).map_or(0, |c| c.pending_len()).min(words.count)
                    + usize::from(id.ms > 0);
            }
            _ if stream.last_entry_id().is_some_and(|last| last > state.last_id()) => {
                let from = state.last_id().next().unwrap_or(StreamId::MAX);
                all += match words.count {
                    few @ ..=FEW => few,
                    many => stream.count(from, StreamId::MAX).min(many),
                };
                due.push((key, From::New));
            }
            _ => {}
        }
    }
    cx.charge(all.saturating_mul(CHANGE_STEPS))?;
    for key in words.keys.iter() {
        meet_consumer(cx, key, group, consumer)?;
    }
    if due.is_empty() {
        wait(cx, args, &words, &wanted);
        return Ok(());
    }
    let mut answer = Answer::new(cx.out.resp3());
    for (key, from) in due {
        match from {
            From::Behind(behind) => give_again(cx, &mut answer, key, &words, behind)?,
            _ => give_new(cx, &mut answer, key, &words)?,
        }
    }
    send(cx, answer)
}

/// Where to read each stream from. Errors: those of the words and the groups, in their order.
fn wanted(cx: &Cx<'_, '_>, words: &Words<'_>, group: &[u8]) -> Result<Vec<From>, Error> {
    let of = |(key, word): (&[u8], &[u8])| {
        let stream = cx.view.stream(key)?;
        if stream.and_then(|stream| stream.group(group)).is_none() {
            return Err(Error::from(format!(
                "NOGROUP No such key '{}' or consumer group '{}' in XREADGROUP with GROUP option",
                text(key),
                text(group)
            )));
        }
        match word {
            b"$" => Err(meaningless('$')),
            b"+" => Err(meaningless('+')),
            b">" => Ok(From::New),
            _ => id::strict(word).map(From::Behind),
        }
    };
    words.keys.iter().zip(words.ids.iter()).map(of).collect()
}

fn meaningless(symbol: char) -> Error {
    Error::from(format!(
        "ERR The {symbol} ID is meaningless in the context of XREADGROUP: you want to read the history of this \
         consumer by specifying a proper ID, or use the > ID to get new messages. The {symbol} ID would just return \
         an empty result set."
    ))
}

/// Gives a consumer what its group has not read. For a key that is named twice that may be nothing: then it has no part
/// in the answer.
fn give_new(cx: &mut Cx<'_, '_>, answer: &mut Answer, key: &[u8], words: &Words<'_>) -> Result<(), Error> {
    let Some((name, consumer)) = words.group else { return Err(Error::Syntax) };
    let now_ms = cx.view.now_ms();
    let (stream, group) = group_of(cx.view, key, name)?;
    let from = group.last_id().next().unwrap_or(StreamId::MAX);
    if stream.last_entry_id().is_none_or(|last| last < from) {
        return Ok(());
    }
    let mut ids = Vec::new();
    let range = (from, StreamId::MAX);
    answer.range(stream, range, words.count, Some(&mut ids), |out| head(out, key));
    if let Some(stream) = cx.view.stream_mut(key)? {
        stream.deliver(name, consumer, &ids, now_ms, !words.no_ack);
    }
    cx.view.count_change();
    if !words.no_ack && cx.view.listens() {
        let pending: Vec<_> = ids.iter().map(|id| (*id, 1)).collect();
        Claimed { key, group: name, consumer, time_ms: now_ms }.tell(cx, &pending);
    }
    note_group(cx, key, name)
}

/// Gives a consumer again what is pending for it behind an ID.
fn give_again(
    cx: &mut Cx<'_, '_>,
    answer: &mut Answer,
    key: &[u8],
    words: &Words<'_>,
    behind: StreamId,
) -> Result<(), Error> {
    let Some((name, consumer)) = words.group else { return Err(Error::Syntax) };
    let now_ms = cx.view.now_ms();
    let (stream, group) = group_of(cx.view, key, name)?;
    let ids: Vec<StreamId> = match (behind.next(), group.consumer(consumer)) {
        (Some(from), Some(consumer)) => consumer.pending_from(from).take(words.count).collect(),
        _ => Vec::new(),
    };
    let again = |id: &StreamId| {
        let pending = group.pending(*id).filter(|_| stream.contains(*id));
        pending.map(|pending| (*id, pending.count + 1))
    };
    let pending: Vec<(StreamId, u64)> = ids.iter().filter_map(again).collect();
    let len = ids.len();
    let head = |out: &mut Reply| {
        head(out, key);
        out.array(len);
    };
    answer.part(head, stream, Source::entries(ids));
    if let Some(mut group) = cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(name)) {
        for (id, count) in &pending {
            group.claim(consumer, *id, now_ms, *count);
        }
    }
    if !pending.is_empty() {
        cx.view.count_change();
    }
    Claimed { key, group: name, consumer, time_ms: now_ms }.tell(cx, &pending);
    Ok(())
}
