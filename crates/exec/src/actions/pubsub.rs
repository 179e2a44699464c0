//! SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE, their opposites, PUBLISH, SPUBLISH, PUBSUB.

use super::{Act, PLAIN, Row, help};
use crate::Session;
use crate::call::Flow;
use crate::pubsub::{Kind, Shared};
use crate::session::{Subscriptions, flag};
use command::Error;
use resp::{Args, Reply};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    Row("pubsub|help", |act, _| help(act, "PUBSUB", HELP), PLAIN),
];

const HELP: &[&str] = &[
    "CHANNELS [<pattern>]",
    "    Channels somebody listens on.",
    "NUMPAT",
    "    How many different patterns are subscribed to.",
    "NUMSUB [<channel> ...]",
    "    How many listen on each of these channels.",
    "SHARDCHANNELS [<pattern>]",
    "    Shard channels somebody listens on.",
    "SHARDNUMSUB [<channel> ...]",
    "    How many listen on each of these shard channels.",
];

fn set_of(subs: &mut Subscriptions, kind: Kind) -> &mut HashSet<Arc<[u8]>> {
    match kind {
        Kind::Channel => &mut subs.channels,
        Kind::Pattern => &mut subs.patterns,
        Kind::Shard => &mut subs.shard_channels,
    }
}

const fn words(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Channel => ("subscribe", "unsubscribe"),
        Kind::Pattern => ("psubscribe", "punsubscribe"),
        Kind::Shard => ("ssubscribe", "sunsubscribe"),
    }
}

fn count(subs: &Subscriptions, kind: Kind) -> i64 {
    if kind == Kind::Shard { subs.shard_channels.len() as i64 } else { subs.count() as i64 }
}

fn subscribe(act: &mut Act<'_, '_>, args: Args<'_>, kind: Kind) -> Result<Flow, Error> {
    if act.in_multi && !act.session.resp3 && act.in_script {
        return Err(Error::new("ERR This Redis command is not allowed from script"));
    }
    for name in args.from(1).iter() {
        let name: Arc<[u8]> = name.into();
        if set_of(&mut act.session.subs, kind).insert(name.clone()) {
            act.server.pubsub.add(kind, &name, act.local.id);
            act.local.subscribers.add(kind, &name, act.session.id);
        }
        confirm(act.out, words(kind).0, Some(&name), count(&act.session.subs, kind));
    }
    show(act.session);
    Ok(Flow::Done)
}

fn unsubscribe(act: &mut Act<'_, '_>, args: Args<'_>, kind: Kind) -> Result<Flow, Error> {
    let word = words(kind).1;
    let names: Vec<Arc<[u8]>> = match args.len() {
        1 => set_of(&mut act.session.subs, kind).iter().cloned().collect(),
        _ => args.from(1).iter().map(Arc::from).collect(),
    };
    if names.is_empty() {
        confirm(act.out, word, None, count(&act.session.subs, kind));
    }
    for name in names {
        if set_of(&mut act.session.subs, kind).remove(&name) {
            act.server.pubsub.remove(kind, &name, act.local.id);
            act.local.subscribers.remove(kind, &name, act.session.id);
        }
        confirm(act.out, word, Some(&name), count(&act.session.subs, kind));
    }
    show(act.session);
    Ok(Flow::Done)
}

/// Ends every subscription, without a word to the client.
pub(crate) fn leave_all(server: &crate::Server, local: &mut crate::Local, session: &mut Session) {
    for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
        for name in std::mem::take(set_of(&mut session.subs, kind)) {
            server.pubsub.remove(kind, &name, local.id);
            local.subscribers.remove(kind, &name, session.id);
        }
    }
    show(session);
}

fn confirm(out: &mut Reply, word: &str, name: Option<&[u8]>, count: i64) {
    out.push(3);
    out.bulk(word.as_bytes());
    out.bulk_or_null(name);
    out.int(count);
}

fn show(session: &Session) {
    let (info, subs) = (&session.info, &session.subs);
    info.subscriptions.store(subs.channels.len() as u32, Ordering::Relaxed);
    info.pattern_subscriptions.store(subs.patterns.len() as u32, Ordering::Relaxed);
    info.shard_subscriptions.store(subs.shard_channels.len() as u32, Ordering::Relaxed);
    session.set_flag(flag::PUBSUB, !subs.is_empty());
}

fn publish(act: &mut Act<'_, '_>, args: Args<'_>, shard: bool) -> Result<Flow, Error> {
    if act.server.pubsub.is_behind() && !act.in_multi && !act.in_script {
        return Ok(crate::call::wait_for_guard(act.session, act.local));
    }
    // A long payload is not copied.
    let payload = || match &act.local.incoming {
        Some(words) if !act.in_multi && !act.in_script => Shared::Word(words.clone(), 2),
        _ => Shared::Own(args.at(2).into()),
    };
    let sent = act.server.pubsub.publish(act.server, shard, args.at(1), payload);
    act.out.int(sent as i64);
    Ok(Flow::Done)
}

fn channels(act: &mut Act<'_, '_>, args: Args<'_>, kind: Kind) -> Result<Flow, Error> {
    if args.len() > 3 {
        let sub = String::from_utf8_lossy(args.at(1)).to_uppercase();
        return Err(format!(
            "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try PUBSUB HELP."
        )
        .into());
    }
    let names = act.server.pubsub.channels(kind, args.get(2));
    act.out.array(names.len());
    names.iter().for_each(|name| act.out.bulk(name));
    Ok(Flow::Done)
}

fn numsub(act: &mut Act<'_, '_>, args: Args<'_>, kind: Kind) -> Result<Flow, Error> {
    act.out.array(2 * (args.len() - 2));
    for name in args.from(2).iter() {
        act.out.bulk(name);
        act.out.int(act.server.pubsub.count(kind, name) as i64);
    }
    Ok(Flow::Done)
}

fn numpat(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.int(act.server.pubsub.len(Kind::Pattern) as i64);
    Ok(Flow::Done)
}
