//! SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE, their opposites, PUBLISH, SPUBLISH, PUBSUB.

use super::answer::{elsewhere, help, kept, report};
use crate::act::{Act, PLAIN, Row};
use crate::mail::Mail;
use crate::session::Subscriptions;
use crate::{Local, Server, Session};
use command::Error;
use command::Flow;
use command::helps;
use pubsub::{Kind, Passing, Shared};
use resp::{Args, Reply};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use work::piece::{Desk, Piece, Step, more};
use work::reports::Matching;
use work::works::KEYS;

pub(super) const ACTIONS: &[Row] = &[
    Row("subscribe", |act, args| subscribe(act, args, Kind::Channel), PLAIN),
    Row("psubscribe", |act, args| subscribe(act, args, Kind::Pattern), PLAIN),
    Row("ssubscribe", |act, args| subscribe(act, args, Kind::Shard), PLAIN),
    Row("unsubscribe", |act, args| unsubscribe(act, args, Kind::Channel), PLAIN),
    Row("punsubscribe", |act, args| unsubscribe(act, args, Kind::Pattern), PLAIN),
    Row("sunsubscribe", |act, args| unsubscribe(act, args, Kind::Shard), PLAIN),
    Row("publish", |act, args| publish(act, args, false), PLAIN),
    Row("spublish", |act, args| publish(act, args, true), PLAIN),
    Row("pubsub|channels", |act, args| channels(act, args, Kind::Channel), PLAIN),
    Row("pubsub|shardchannels", |act, args| channels(act, args, Kind::Shard), PLAIN),
    Row("pubsub|numsub", |act, args| numsub(act, args, Kind::Channel), PLAIN),
    Row("pubsub|shardnumsub", |act, args| numsub(act, args, Kind::Shard), PLAIN),
    Row("pubsub|numpat", numpat, PLAIN),
    Row("pubsub|help", |act, _| help(act, "PUBSUB", helps::PUBSUB), PLAIN),
];

/// Subscriptions made or ended in one slice.
const AT_A_STRETCH: usize = 100;

fn set_of(subs: &mut Subscriptions, kind: Kind) -> &mut BTreeSet<Arc<[u8]>> {
    match kind {
        Kind::Channel => &mut subs.channels,
        Kind::Pattern => &mut subs.patterns,
        Kind::Shard => &mut subs.shard_channels,
        Kind::Monitor => &mut subs.monitor,
    }
}

const fn words(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Channel => ("subscribe", "unsubscribe"),
        Kind::Pattern => ("psubscribe", "punsubscribe"),
        Kind::Shard => ("ssubscribe", "sunsubscribe"),
        Kind::Monitor => ("monitor", "reset"),
    }
}

fn count(subs: &Subscriptions, kind: Kind) -> i64 {
    if kind == Kind::Shard { subs.shard_channels.len() as i64 } else { subs.count() as i64 }
}

/// `SUBSCRIBE`, `PSUBSCRIBE`, `SSUBSCRIBE name [name ...]`. O(names · log subscriptions), in slices. Errors:
/// in a script of a client that speaks RESP2.
fn subscribe(act: &mut Act<'_, '_>, args: Args<'_>, kind: Kind) -> Result<Flow, Error> {
    if act.in_multi && !act.session.speech.resp3 && act.in_script {
        return Err(Error::new("ERR This Redis command is not allowed from script"));
    }
    let from = std::mem::take(&mut act.session.half.done);
    let (end, more) = stretch(act, from, args.len() - 1);
    for i in from..end {
        let name: Arc<[u8]> = args.at(1 + i).into();
        if set_of(&mut act.session.subs, kind).insert(name.clone()) {
            act.server.pubsub.add(kind, &name, act.local.log.id);
            act.local.subscribers.add(kind, &name, act.session.id);
        }
        confirm(act, words(kind).0, Some(&name), kind);
    }
    show(act.server, act.session);
    Ok(if more { go_on(act, end) } else { Flow::Done })
}

/// The end of this slice for a command of `count` names, and whether more is left. A caller that holds locks,
/// or a script, goes to the end at once.
fn stretch(act: &Act<'_, '_>, from: usize, count: usize) -> (usize, bool) {
    let end = if act.is_pressed() { count } else { count.min(from + AT_A_STRETCH) };
    (end, end < count)
}

fn go_on(act: &mut Act<'_, '_>, done: usize) -> Flow {
    act.session.half.done = done;
    crate::held::go_on(act.session, act.local)
}

/// `UNSUBSCRIBE`, `PUNSUBSCRIBE`, `SUNSUBSCRIBE [name ...]`; without names all. O(names · log subscriptions),
/// in slices.
fn unsubscribe(act: &mut Act<'_, '_>, args: Args<'_>, kind: Kind) -> Result<Flow, Error> {
    let word = words(kind).1;
    let from = std::mem::take(&mut act.session.half.done);
    let subscribed = set_of(&mut act.session.subs, kind);
    // Without names: the subscriptions that are left. With names: those not done yet.
    let all = if args.len() == 1 { from + subscribed.len() } else { args.len() - 1 };
    let (end, more) = stretch(act, from, all);
    let names: Vec<Arc<[u8]>> = match args.len() {
        1 => set_of(&mut act.session.subs, kind).iter().take(end - from).cloned().collect(),
        _ => (from..end).map(|i| args.at(1 + i).into()).collect(),
    };
    if names.is_empty() && from == 0 {
        confirm(act, word, None, kind);
    }
    for name in names {
        if set_of(&mut act.session.subs, kind).remove(&name) {
            act.server.pubsub.remove(kind, &name, act.local.log.id);
            act.local.subscribers.remove(kind, &name, act.session.id);
        }
        confirm(act, word, Some(&name), kind);
    }
    show(act.server, act.session);
    Ok(if more { go_on(act, end) } else { Flow::Done })
}

/// Ends all subscriptions of a client that disconnected. O(1): beyond some, the rest ends in slices.
pub(crate) fn leave_all(server: &Server, local: &mut Local, session: &mut Session) {
    let mut subs = std::mem::take(&mut session.subs);
    if leave_some(server, local, session.id, &mut subs, AT_A_STRETCH) {
        local.works.push(Box::new(Leaving(session.id, subs)));
    }
    show(server, session);
}

/// Ends some subscriptions of a connected client, without confirmations. True: more are left. O(1).
pub(crate) fn leave_next(server: &Server, local: &mut Local, session: &mut Session) -> bool {
    let mut subs = std::mem::take(&mut session.subs);
    let more = leave_some(server, local, session.id, &mut subs, AT_A_STRETCH);
    session.subs = subs;
    show(server, session);
    more
}

/// Ends so many subscriptions. True: some are left.
fn leave_some(
    server: &Server,
    local: &mut Local,
    client: u64,
    subs: &mut Subscriptions,
    count: usize,
) -> bool {
    let mut left = count;
    for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
        while left > 0
            && let Some(name) = set_of(subs, kind).pop_first()
        {
            server.pubsub.remove(kind, &name, local.log.id);
            local.subscribers.remove(kind, &name, client);
            left -= 1;
        }
    }
    !subs.is_empty()
}

/// Ends the subscriptions of a client that disconnected.
struct Leaving(u64, Subscriptions);

impl Piece for Leaving {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = Local::of(desk);
        let is_left = leave_some(&server, local, self.0, &mut self.1, KEYS);
        more(is_left, self)
    }
}

/// Confirms a subscription or its end. The confirmation is a message, so CLIENT REPLY does not leave it out.
fn confirm(act: &mut Act<'_, '_>, word: &str, name: Option<&[u8]>, kind: Kind) {
    let count = count(&act.session.subs, kind);
    let write = |out: &mut Reply| {
        out.push(3);
        out.bulk(word.as_bytes());
        out.bulk_or_null(name);
        out.int(count);
    };
    if act.session.speech.is_muted() {
        let mut told = Reply::with_buffer(std::mem::take(&mut act.session.speech.told), act.out.resp3());
        write(&mut told);
        act.session.speech.told = told.into_bytes();
    } else {
        write(act.out);
    }
}

fn show(server: &Server, session: &Session) {
    let (info, subs) = (&session.info, &session.subs);
    info.subscriptions.store(subs.channels.len() as u32, Ordering::Relaxed);
    info.pattern_subscriptions.store(subs.patterns.len() as u32, Ordering::Relaxed);
    info.shard_subscriptions.store(subs.shard_channels.len() as u32, Ordering::Relaxed);
    server.observe.clients.note_subscribed(info, !subs.is_empty());
}

/// `PUBLISH channel message`, `SPUBLISH channel message`. O(loops) for each matching name; more than some
/// microseconds of patterns are matched in slices.
fn publish(act: &mut Act<'_, '_>, args: Args<'_>, shard: bool) -> Result<Flow, Error> {
    if !act.session.settings.is_peer {
        act.server.pubsub.tell_followers(shard, args.at(1), args.at(2));
    }
    // A long payload is not copied.
    let payload = || match act.kept {
        Some(words) if !act.is_pressed() => Shared::Word(words.clone(), 2),
        _ => Shared::Own(args.at(2).into()),
    };
    // The commit's LSN is not the session's yet.
    let inside = act.in_multi || act.in_script;
    let gate = if inside { act.server.pubsub.gate_of_all() } else { act.session.gate.lsn };
    let sent = match act.server.pubsub.publish(shard, args.at(1), gate, payload) {
        Ok(sent) => sent,
        Err(mut passing) if act.is_pressed() => loop {
            if let Some(sent) = act.server.pubsub.pass(&mut passing) {
                break sent;
            }
        },
        Err(passing) => {
            act.local.works.push(Box::new(Publishing(act.session.id, passing)));
            return Ok(Flow::Parked(None));
        }
    };
    act.out.int(sent as i64);
    Ok(Flow::Done)
}

/// Sends a client's message through the patterns.
struct Publishing(u64, Box<Passing>);

impl Piece for Publishing {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = Local::of(desk);
        if let Some(sent) = server.pubsub.pass(&mut self.1) {
            // By mail: the message may be a deferred effect of a transaction that waits for the answer.
            let mut out = Reply::new(false);
            out.int(sent as i64);
            server.send(local.log.id, Mail::Reply { client: self.0, bytes: out.into_bytes(), stream: None });
            return Step::Over(None);
        }
        Step::More(self)
    }
}

/// `PUBSUB CHANNELS [pattern]`, `PUBSUB SHARDCHANNELS [pattern]`. O(pattern · names), away from the loop.
/// Errors: more words.
fn channels(act: &mut Act<'_, '_>, args: Args<'_>, kind: Kind) -> Result<Flow, Error> {
    if args.len() > 3 {
        let sub = String::from_utf8_lossy(args.at(1)).to_uppercase();
        return Err(format!(
            "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try PUBSUB HELP."
        )
        .into());
    }
    let (server, pattern) = (act.server.clone(), args.get(2).map(|_| (kept(act, args), 2)));
    report(act, move || {
        Matching::new(server.pubsub.channels(kind), pattern, false, |name, out| out.bulk(name))
    })
}

/// `PUBSUB NUMSUB [channel ...]`, `PUBSUB SHARDNUMSUB [channel ...]`. O(names), by the reporter if they are
/// many.
fn numsub(act: &mut Act<'_, '_>, args: Args<'_>, kind: Kind) -> Result<Flow, Error> {
    let answer = move |server: &Server, names: Args<'_>, out: &mut Reply| {
        out.array(2 * names.len());
        for name in names.iter() {
            out.bulk(name);
            out.int(server.pubsub.count(kind, name) as i64);
        }
    };
    if args.len() > AT_A_STRETCH {
        let (server, words) = (act.server.clone(), kept(act, args));
        return elsewhere(act, move |out| answer(&server, words.args().from(2), out));
    }
    answer(act.server, args.from(2), act.out);
    Ok(Flow::Done)
}

/// `PUBSUB NUMPAT`. O(1)
fn numpat(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.int(act.server.pubsub.len(Kind::Pattern) as i64);
    Ok(Flow::Done)
}
