//! CLIENT TRACKING and what belongs to it. What it does stands in `pubsub::tracking`.

use crate::act::{Act, PLAIN, Row};
use crate::session::flag;
use crate::tracking::end;
use command::Error;
use command::Flow;
use command::options::is;
use pubsub::tracking::{Mine, Options, overlap};
use resp::Args;
use std::sync::atomic::Ordering;

/// Most prefixes of a client.
const PREFIXES_MAX: usize = 1000;
/// Longest prefix. Each write looks for its key's prefixes of each length there is.
const PREFIX_BYTES_MAX: usize = 256;

pub(super) const ACTIONS: &[Row] = &[
    Row("client|getredir", getredir, PLAIN),
    Row("client|tracking", tracking, PLAIN),
    Row("client|trackinginfo", trackinginfo, PLAIN),
    Row("client|caching", caching, PLAIN),
];

/// `CLIENT GETREDIR`: -1 without tracking, 0 without a target. Cost: O(1). Source: Redis 7.0.
fn getredir(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.int(redirect(act));
    Ok(Flow::Done)
}

fn redirect(act: &Act<'_, '_>) -> i64 {
    act.session.tracking.as_ref().map_or(-1, |mine| mine.options.redirect as i64)
}

/// `CLIENT TRACKING ON | OFF [REDIRECT id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]`.
///
/// Cost: O(n · log n) for n prefixes, of which a client has at most [`PREFIXES_MAX`]. Errors: options that
/// exclude each other, a target that is not connected, prefixes that overlap, are too many or too long.
/// Source: Redis 7.0 and 8.
fn tracking(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let mut options = parse(act, args)?;
    match (is(args.at(2), "on"), is(args.at(2), "off")) {
        (true, _) => check(act, &mut options)?,
        (_, true) => {
            end(act.server, act.local, act.session);
            act.out.ok();
            return Ok(Flow::Done);
        }
        _ => return Err(Error::Syntax),
    }
    if options.redirect != 0 {
        let _ = act.server.tracking.expect(options.redirect);
        if act.server.observe.clients.get(options.redirect).is_none() {
            // It went meanwhile, perhaps before its inbox was there.
            act.server.tracking.leave(options.redirect);
        }
    }
    let (server, session) = (act.server, &mut *act.session);
    let peer = server.tracking.begin(&server.keyspace, session.id, &options);
    if let Some(mine) = session.tracking.take() {
        options.prefixes.extend(mine.options.prefixes);
        options.prefixes.sort();
        options.prefixes.dedup();
    }
    session.set_flag(flag::BROKEN_REDIRECT | flag::BROADCAST, false);
    session.set_flag(flag::TRACKING, true);
    session.set_flag(flag::BROADCAST, options.bcast);
    session.info.redirect.store(options.redirect as i64, Ordering::Relaxed);
    session.tracking = Some(Box::new(Mine { peer, options, caching: false }));
    act.out.ok();
    Ok(Flow::Done)
}

fn parse(act: &Act<'_, '_>, args: Args<'_>) -> Result<Options, Error> {
    let (mut options, mut at) = (Options::default(), 3);
    while let Some(word) = args.get(at) {
        let value = args.get(at + 1);
        match (word, value) {
            (word, Some(id)) if is(word, "redirect") => {
                if options.redirect != 0 {
                    return Err(Error::new("ERR A client can only redirect to a single other client"));
                }
                let id = command::options::int(id)?;
                let target = u64::try_from(id).ok().and_then(|id| act.server.observe.clients.get(id));
                let target =
                    target.ok_or(Error::new("ERR The client ID you want redirect to does not exist"))?;
                options.redirect = target.id;
                at += 1;
            }
            (word, Some(prefix)) if is(word, "prefix") => {
                options.prefixes.push(prefix.into());
                at += 1;
            }
            (word, _) if is(word, "bcast") => options.bcast = true,
            (word, _) if is(word, "optin") => options.optin = true,
            (word, _) if is(word, "optout") => options.optout = true,
            (word, _) if is(word, "noloop") => options.noloop = true,
            _ => return Err(Error::Syntax),
        }
        at += 1;
    }
    Ok(options)
}

/// Checks the options against each other, and against what is on already. BCAST without a prefix is told of all
/// keys.
fn check(act: &Act<'_, '_>, options: &mut Options) -> Result<(), Error> {
    let before = act.session.tracking.as_ref().map(|mine| &mine.options);
    if !options.bcast && !options.prefixes.is_empty() {
        return Err(Error::new("ERR PREFIX option requires BCAST mode to be enabled"));
    }
    if before.is_some_and(|before| before.bcast != options.bcast) {
        return Err(Error::new(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it \
             with a different mode.",
        ));
    }
    if options.bcast && (options.optin || options.optout) {
        return Err(Error::new("ERR OPTIN and OPTOUT are not compatible with BCAST"));
    }
    if options.optin && options.optout {
        return Err(Error::new("ERR You can't specify both OPTIN mode and OPTOUT mode"));
    }
    if before.is_some_and(|before| options.optin && before.optout || options.optout && before.optin) {
        return Err(Error::new(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it \
             with a different mode.",
        ));
    }
    let known = before.map_or(&[][..], |before| &before.prefixes);
    if known.len() + options.prefixes.len() > PREFIXES_MAX {
        return Err(format!("ERR a client may have at most {PREFIXES_MAX} prefixes").into());
    }
    if options.prefixes.iter().any(|prefix| prefix.len() > PREFIX_BYTES_MAX) {
        return Err(format!("ERR a prefix may have at most {PREFIX_BYTES_MAX} bytes").into());
    }
    if let Some((new, other, is_known)) = overlap(known, &options.prefixes) {
        let what = if is_known { "an existing prefix" } else { "another provided prefix" };
        let (new, other) = (String::from_utf8_lossy(new), String::from_utf8_lossy(other));
        return Err(format!(
            "ERR Prefix '{new}' overlaps with {what} '{other}'. Prefixes for a single client must not overlap."
        )
        .into());
    }
    if options.bcast && options.prefixes.is_empty() {
        options.prefixes.push(Box::default());
    }
    Ok(())
}

/// `CLIENT TRACKINGINFO`: flags, target and prefixes. Cost: O(prefixes). Source: Redis 7.0.
fn trackinginfo(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let redirect = redirect(act);
    let broken = act.session.info.flags.load(Ordering::Relaxed) & flag::BROKEN_REDIRECT != 0;
    let mut flags = Vec::new();
    let mut prefixes: &[Box<[u8]>] = &[];
    match &act.session.tracking {
        None => flags.push("off"),
        Some(mine) => {
            let options = &mine.options;
            flags.push("on");
            let known = [
                (options.bcast, "bcast"),
                (options.optin, "optin"),
                (options.optin && mine.caching, "caching-yes"),
                (options.optout, "optout"),
                (options.optout && mine.caching, "caching-no"),
                (options.noloop, "noloop"),
                (broken, "broken_redirect"),
            ];
            flags.extend(known.iter().filter(|(on, _)| *on).map(|(_, name)| *name));
            prefixes = &options.prefixes;
        }
    }
    act.out.map(3);
    act.out.bulk(b"flags");
    act.out.set(flags.len());
    flags.iter().for_each(|name| act.out.bulk(name.as_bytes()));
    act.out.bulk(b"redirect");
    act.out.int(redirect);
    act.out.bulk(b"prefixes");
    act.out.array(prefixes.len());
    prefixes.iter().for_each(|prefix| act.out.bulk(prefix));
    Ok(Flow::Done)
}

/// `CLIENT CACHING YES | NO`: whether the next command's keys are remembered. Cost: O(1). Errors: another mode.
/// Source: Redis 7.0.
fn caching(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let mine = act.session.tracking.as_mut().ok_or(Error::new(
        "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
    ))?;
    match (is(args.at(2), "yes"), is(args.at(2), "no")) {
        (true, _) if mine.options.optin => mine.caching = true,
        (_, true) if mine.options.optout => mine.caching = true,
        (true, _) => {
            return Err(Error::new(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
            ));
        }
        (_, true) => {
            return Err(Error::new(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
            ));
        }
        _ => return Err(Error::Syntax),
    }
    act.out.ok();
    Ok(Flow::Done)
}
