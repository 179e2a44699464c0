//! XREAD and XREADGROUP: what came behind an ID, now or when it comes.
//!
//! - R1: `$` is settled when the command first runs. A client that waits does so with the ID it stood for.
//! - R2: an XREADGROUP that waits is run again whenever its key changes or is removed. After a removal it
//!   answers that there is no group.
//! - R3: CLAIM takes the entries that have been pending the longest, and then new ones. Those that the stream
//!   has no more stay pending, and are passed over.
//! - R4: a client that waits with CLAIM also looks again when the oldest pending entry is old enough
//!   ([`Claims`]).

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
use value::stream::Group;
use value::{Stream, StreamId};

const fn streams(shown: i32) -> KeySpec {
    const TAKES: &[(&str, usize)] = &[("count", 1), ("block", 1), ("group", 2), ("claim", 1), ("streams", 1)];
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
        .cost(|view, args| {
            entries(view, args).saturating_add(unindexed(view, args)).saturating_mul(CHANGE_STEPS)
        })
        .doc(
            GROUP,
            "5.0.0",
            "O(K*log(N)+M*log(P)) for M entries answered of K streams, with P pending.",
            "Gives a consumer the entries that its group has not read, or waits for one.",
        ),
];

/// The words of either command.
struct ReadWords<'a> {
    /// None: does not wait. Else how long, at most.
    block: Option<Option<u64>>,
    count: usize,
    group: Option<(&'a [u8], &'a [u8])>,
    no_ack: bool,
    /// How long entries have been pending, at least, to be claimed.
    claim_ms: Option<u64>,
    keys: Args<'a>,
    ids: Args<'a>,
    /// Index of the first ID among all words.
    at: usize,
}

impl<'a> ReadWords<'a> {
    fn parse(args: Args<'a>, grouped: bool, now_ms: u64) -> Result<ReadWords<'a>, Error> {
        let name = if grouped { "xreadgroup" } else { "xread" };
        let (mut block, mut most, mut group, mut no_ack, mut claim_ms, mut i) =
            (None, 0, None, false, None, 1);
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
            } else if is(word, "claim") && more > 0 {
                if !grouped {
                    return Err(Error::new(
                        "ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                claim_ms = Some(idle_ms(args.at(i + 1))?);
                i += 1;
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
        let count = if most == 0 { usize::MAX } else { most };
        Ok(ReadWords { block, count, group, no_ack, claim_ms, keys, ids, at })
    }

    /// The time of delivery up to which entries are claimed. None: none are.
    fn claims_until(&self, now_ms: u64) -> Option<u64> {
        match self.claim_ms? {
            0 => Some(u64::MAX),
            idle_ms => now_ms.checked_sub(idle_ms),
        }
    }
}

/// CLAIM's milliseconds. Errors: not an integer, negative.
fn idle_ms(arg: &[u8]) -> Result<u64, Error> {
    let ms =
        stdx::num::parse_i64(arg).ok_or(Error::new("ERR min-idle-time is not an integer or out of range"))?;
    u64::try_from(ms).map_err(|_| Error::new("ERR min-idle-time must be a positive integer"))
}

/// BLOCK's milliseconds; None: for ever. Errors: not an integer, out of range, negative.
fn block_ms(arg: &[u8], now_ms: u64) -> Result<Option<u64>, Error> {
    let ms = timeout_whole_ms(arg, now_ms)?;
    Ok((ms > 0).then_some(ms))
}

/// Where to read from.
#[derive(Clone, Copy, PartialEq)]
enum ReadFrom {
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
    let Ok(words) = ReadWords::parse(args, grouped, 0) else { return 0 };
    let of = |(key, word): (&[u8], &[u8])| {
        let Ok(Some(stream)) = view.stream(key) else { return 0 };
        if words.count <= FEW {
            return words.count;
        }
        let group = words.group.and_then(|(group, _)| stream.group(group));
        let all = match (group, word) {
            (Some(group), b">") => {
                let new = stream.count(group.last_id().next().unwrap_or(StreamId::MAX), StreamId::MAX);
                let until = words.claims_until(view.now_ms());
                new.saturating_add(until.map_or(0, |until| group.delivered_until(until)))
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

/// Pending entries that CLAIM has to put into the index of their group first. O(keys · log n).
fn unindexed(view: &View<'_>, args: Args<'_>) -> usize {
    let Ok(words) = ReadWords::parse(args, true, 0) else { return 0 };
    let (Some(_), Some((name, _))) = (words.claim_ms, words.group) else { return 0 };
    let of = |(key, word): (&[u8], &[u8])| match group_of(view, key, name) {
        Ok((_, group)) if word == b">" && !group.is_indexed() => group.pending_len(),
        _ => 0,
    };
    words.keys.iter().zip(words.ids.iter()).map(of).fold(0, usize::saturating_add)
}

/// `XREAD [COUNT count] [BLOCK ms] STREAMS key [key ...] id [id ...]`: by key, the entries behind an ID; `$`
/// stands for the last one there is, `+` asks for the last entry. A null array if there are none.
///
/// Cost: O(k·log n) and the reply, k = keys. Errors: syntax, bad numbers, invalid ID, WRONGTYPE.
fn xread(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let words = ReadWords::parse(args, false, cx.view.now_ms())?;
    let mut wanted = Vec::with_capacity(words.keys.len());
    for (key, word) in words.keys.iter().zip(words.ids.iter()) {
        let stream = cx.view.stream(key)?;
        wanted.push(match word {
            b"$" => ReadFrom::Behind(stream.map_or(StreamId::MIN, Stream::last_id)),
            b"+" => ReadFrom::Last,
            b">" => {
                return Err(Error::new(
                    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
                ));
            }
            _ => ReadFrom::Behind(id::strict(word)?),
        });
    }
    let mut answer = Answer::new(cx.out.resp3());
    for (key, from) in words.keys.iter().zip(&wanted) {
        let Some(stream) = cx.view.stream(key)? else { continue };
        let Some(last) = stream.last_entry_id() else { continue };
        let from = match from {
            ReadFrom::Behind(id) => id.next(),
            ReadFrom::Last | ReadFrom::New => Some(last),
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
fn wait(cx: &mut Cx<'_, '_>, args: Args<'_>, words: &ReadWords<'_>, wanted: &[ReadFrom]) {
    let Some(timeout_ms) = words.block else { return cx.out.null_array() };
    let mut settled = OwnedArgs::new();
    args.to(words.at).iter().for_each(|word| settled.push(word));
    for (i, (key, from)) in words.keys.iter().zip(wanted).enumerate() {
        match from {
            ReadFrom::Behind(behind) => settled.push(id::Text::new(*behind).bytes()),
            ReadFrom::Last => {
                let last = cx.view.stream(key).ok().flatten().map_or(StreamId::MIN, Stream::last_id);
                settled.push(id::Text::new(last).bytes());
            }
            ReadFrom::New => settled.push(words.ids.at(i)),
        }
    }
    cx.block_as(timeout_ms, settled);
}

/// `XREADGROUP GROUP group consumer [COUNT count] [BLOCK ms] [CLAIM min-idle-ms] [NOACK] STREAMS key [key ...]
/// id [id ...]`: with `>` the entries that the group has not read, which are pending for the consumer then;
/// else the consumer's pending entries behind an ID. CLAIM adds to `>`, before them, those that have been
/// pending for long, and to each entry how long it was and how often it had been delivered. A consumer that
/// there is not is made, also if nothing comes. Told as XCLAIM and XGROUP.
///
/// Cost: O(k·log n + m·log p) and the reply, k = keys, m = entries answered, p = entries pending; the first
/// CLAIM of a group O(p·log p). Errors: syntax, bad numbers, invalid ID, WRONGTYPE, NOGROUP.
fn xreadgroup(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let words = ReadWords::parse(args, true, cx.view.now_ms())?;
    let Some((group, consumer)) = words.group else { return Err(Error::Syntax) };
    let wanted = wanted(cx, &words, group)?;
    cx.charge(unindexed(cx.view, args).saturating_mul(CHANGE_STEPS))?;
    let (mut due, mut all) = (Vec::new(), words.keys.len());
    for (key, from) in words.keys.iter().zip(&wanted) {
        let (stream, state) = group_of(cx.view, key, group)?;
        match from {
            ReadFrom::Behind(id) => {
                due.push((key, *from));
                all += state.consumer(consumer).map_or(0, |c| c.pending_len()).min(words.count)
                    + usize::from(id.ms > 0);
            }
            _ => {
                let (claims, news) = waiting(stream, state, &words, cx.view.now_ms());
                all = all.saturating_add(claims).saturating_add(news);
                if claims + news > 0 {
                    due.push((key, ReadFrom::New));
                }
            }
        }
    }
    cx.charge(all.saturating_mul(CHANGE_STEPS))?;
    for key in words.keys.iter() {
        meet_consumer(cx, key, group, consumer)?;
    }
    let mut answer = Answer::new(cx.out.resp3());
    for (key, from) in due {
        match from {
            ReadFrom::Behind(behind) => give_again(cx, &mut answer, key, &words, behind)?,
            _ if words.claim_ms.is_some() => claim_and_give(cx, &mut answer, key, &words)?,
            _ => give_new(cx, &mut answer, key, &words)?,
        }
    }
    if answer.len() == 0 {
        wait(cx, args, &words, &wanted);
        return Ok(());
    }
    send(cx, answer)
}

/// At most so many entries there are for `>`: to be claimed, and new ones. O(log n).
fn waiting(stream: &Stream, group: &Group, words: &ReadWords<'_>, now_ms: u64) -> (usize, usize) {
    let claims = match words.claims_until(now_ms) {
        Some(_) if !group.is_indexed() => group.pending_len(),
        Some(until) => group.delivered_until(until),
        None => 0,
    };
    let news = match group.last_id().next() {
        Some(from) if stream.last_entry_id().is_some_and(|last| last >= from) => match words.count {
            few @ ..=FEW => few,
            many => stream.count(from, StreamId::MAX).min(many),
        },
        _ => 0,
    };
    (claims.min(words.count.saturating_add(GONE_MAX)), news)
}

/// Where to read each stream from. Errors: those of the words and the groups, in their order.
fn wanted(cx: &Cx<'_, '_>, words: &ReadWords<'_>, group: &[u8]) -> Result<Vec<ReadFrom>, Error> {
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
            b">" => Ok(ReadFrom::New),
            _ => id::strict(word).map(ReadFrom::Behind),
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

/// Gives a consumer what its group has not read. For a key that is named twice that may be nothing: then it
/// has no part in the answer.
fn give_new(
    cx: &mut Cx<'_, '_>,
    answer: &mut Answer,
    key: &[u8],
    words: &ReadWords<'_>,
) -> Result<(), Error> {
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

/// Deleted entries that one call passes over (R3).
const GONE_MAX: usize = 256;

/// Gives a consumer what has been pending for long, and then what its group has not read (R3).
fn claim_and_give(
    cx: &mut Cx<'_, '_>,
    answer: &mut Answer,
    key: &[u8],
    words: &ReadWords<'_>,
) -> Result<(), Error> {
    let Some((name, consumer)) = words.group else { return Err(Error::Syntax) };
    let now_ms = cx.view.now_ms();
    if let Some(mut group) = cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(name)) {
        group.index();
    }
    let (stream, group) = group_of(cx.view, key, name)?;
    let (mut entries, gone) = idle(stream, group, words, now_ms);
    let claimed: Vec<(StreamId, u64)> = entries.iter().map(|(id, _, count)| (*id, count + 1)).collect();
    let news: Vec<StreamId> = match group.last_id().next() {
        Some(from) => {
            let range = stream.range(from, StreamId::MAX).map(|entry| entry.id);
            range.take(words.count - claimed.len()).collect()
        }
        None => Vec::new(),
    };
    entries.extend(news.iter().map(|id| (*id, 0, 0)));
    if !entries.is_empty() {
        let len = entries.len();
        let head = |out: &mut Reply| {
            head(out, key);
            out.array(len);
        };
        answer.part(head, stream, Source::Delivered { entries, next: 0 });
    }
    if let Some(stream) = cx.view.stream_mut(key)? {
        if let Some(mut group) = stream.group_mut(name) {
            gone.iter().for_each(|(time_ms, id)| group.leave_out(*time_ms, *id));
            for (id, count) in &claimed {
                group.claim(consumer, *id, now_ms, *count);
            }
            if !claimed.is_empty() {
                group.touch_active(consumer, now_ms);
            }
        }
        if !news.is_empty() {
            stream.deliver(name, consumer, &news, now_ms, !words.no_ack);
        }
    }
    if claimed.is_empty() && news.is_empty() {
        return Ok(());
    }
    cx.view.count_change();
    let claim = Claimed { key, group: name, consumer, time_ms: now_ms };
    claim.tell(cx, &claimed);
    if news.is_empty() {
        return Ok(());
    }
    if !words.no_ack && cx.view.listens() {
        claim.tell(cx, &news.iter().map(|id| (*id, 1)).collect::<Vec<_>>());
    }
    note_group(cx, key, name)
}

/// Entries with how long they have been pending and how often they were delivered.
type Idle = Vec<(StreamId, u64, u64)>;

/// The entries to be claimed, and those passed over, with the times of their deliveries. O(m·log p), m = both.
fn idle(stream: &Stream, group: &Group, words: &ReadWords<'_>, now_ms: u64) -> (Idle, Vec<(u64, StreamId)>) {
    let (mut found, mut gone) = (Vec::new(), Vec::new());
    let Some(until) = words.claims_until(now_ms) else { return (found, gone) };
    for (time_ms, id) in group.oldest().take_while(|(time_ms, _)| *time_ms <= until) {
        if found.len() == words.count || gone.len() == GONE_MAX {
            break;
        }
        match group.pending(id).filter(|_| stream.contains(id)) {
            Some(pending) => found.push((id, now_ms.saturating_sub(time_ms), pending.count)),
            None => gone.push((time_ms, id)),
        }
    }
    (found, gone)
}

/// A call of XREADGROUP with CLAIM that waits: when it is to look at its keys again (R4).
pub struct Claims<'a> {
    words: ReadWords<'a>,
    group: &'a [u8],
    idle_ms: u64,
}

/// Milliseconds between two looks where nothing is pending, at least.
const LOOK_MS: u64 = 100;

impl<'a> Claims<'a> {
    /// None: it is no such call. O(options).
    pub fn of(command: &Command, args: Args<'a>) -> Option<Claims<'a>> {
        if command.name != "xreadgroup" {
            return None;
        }
        let words = ReadWords::parse(args, true, 0).ok()?;
        let (idle_ms, (group, _)) = (words.claim_ms?, words.group?);
        Some(Claims { words, group, idle_ms })
    }

    /// The keys it waits for.
    pub fn keys(&self) -> Args<'a> {
        self.words.keys
    }

    /// When an entry of this key's group may have been pending for long enough (milliseconds since 1970). O(log
    /// n).
    pub fn due_ms(&self, view: &View<'_>, key: &[u8]) -> u64 {
        let now_ms = view.now_ms();
        match group_of(view, key, self.group) {
            Ok((_, group)) if !group.is_indexed() => now_ms,
            found => {
                let oldest = found.ok().and_then(|(_, group)| group.oldest().next());
                // Entries that are delivered from now on are not due before.
                let none_ms = now_ms.saturating_add(self.idle_ms.max(LOOK_MS));
                oldest.map_or(none_ms, |(time_ms, _)| time_ms.saturating_add(self.idle_ms))
            }
        }
    }
}

/// Gives a consumer again what is pending for it behind an ID.
fn give_again(
    cx: &mut Cx<'_, '_>,
    answer: &mut Answer,
    key: &[u8],
    words: &ReadWords<'_>,
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
