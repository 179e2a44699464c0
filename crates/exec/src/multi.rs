//! MULTI, DISCARD, WATCH, UNWATCH: what a transaction gathers until its EXEC (`transaction`).

use crate::act::Act;
use crate::parts::Multi;
use crate::session::flag;
use crate::{Local, Server, Session};
use command::keys::database;
use command::{Command, Error, Flow, facts};
use keyspace::{Keyspace, View};
use resp::Args;
use std::sync::atomic::Ordering;
use work::Watch;
use work::watch::AT_A_STRETCH;

/// Bytes that a watched key takes, here and in the keyspace, besides two copies of its name: tree nodes,
/// table slots, and a table of its own.
const WATCHED: usize = 330;
/// Most commands of a transaction that are freed on the loop; the reclaimer frees longer queues.
const FEW: usize = 16;

/// Queues a command of an open MULTI.
pub(crate) fn queue(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) -> Flow {
    let changes = crate::gates::may_change(act, command, args);
    let (server, session, out) = (act.server, &mut *act.session, &mut *act.out);
    // A primary's transaction is run as it is, however long.
    let is_link = session.link.is_some();
    let limit = if is_link { usize::MAX } else { server.config.live.query_buffer_bytes.size() };
    let Some(multi) = &mut session.multi else { return Flow::Done };
    if command.is(facts::SELECTS) {
        multi.selected =
            args.get(1).and_then(|db| database(server.keyspace.databases(), db).ok()).or(multi.selected);
    }
    if session.tracking.is_some() {
        multi.reads.note(command, args);
    }
    multi.note_user(session.login.user.user());
    multi.changes |= changes;
    multi.queue.push(command, args, act.kept.cloned());
    if multi.queue.bytes() > limit {
        // The queue is bounded like the query buffer. A longer transaction cannot run.
        multi.broken = true;
        multi.queue.clear();
        out.error("ERR the transaction is larger than client-query-buffer-limit");
        return Flow::Done;
    }
    if !is_link && multi.queue.hold(&server.memory.work).is_err() {
        multi.broken = true;
        multi.queue.clear();
        session.info.multi_bytes.store(0, Ordering::Relaxed);
        session.set_flag(flag::DIRTY_EXEC, true);
        out.error(&Error::work_memory().text());
        return Flow::Done;
    }
    session.info.multi_bytes.store(multi.queue.bytes() as u64, Ordering::Relaxed);
    session.info.queued.store(multi.queue.len() as i64, Ordering::Relaxed);
    out.simple("QUEUED");
    Flow::Done
}

pub(crate) fn multi(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    if act.session.multi.is_some() {
        return Err(Error::new("ERR MULTI calls can not be nested"));
    }
    act.session.multi = Some(Multi::default());
    act.session.info.queued.store(0, Ordering::Relaxed);
    act.session.set_flag(flag::MULTI, true);
    act.out.ok();
    Ok(Flow::Done)
}

pub(crate) fn discard(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    if act.session.multi.is_none() {
        return Err(Error::new("ERR DISCARD without MULTI"));
    }
    leave(act.server, act.local, act.session);
    act.out.ok();
    Ok(Flow::Done)
}

pub(crate) fn watch(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if act.session.multi.is_some() {
        return Err(Error::new("ERR WATCH inside MULTI is not allowed"));
    }
    let session = &mut *act.session;
    let from = std::mem::take(&mut session.half.done);
    let had_others = session.half.watching.take().unwrap_or_else(|| session.watched.len() > 0);
    for key in args.from(1 + from).iter().take(AT_A_STRETCH) {
        if session.watched.watch.has(session.db, key) {
            continue;
        }
        let sources = &act.server.rows;
        if session.db == 0 && sources.any() {
            match session.watched.rows.begin(sources, act.local.log.now_ms, key) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    give_up_watch(act.server, act.local, session, had_others);
                    return Err(error);
                }
            }
        }
        let mut view =
            View::locked(&act.server.keyspace, Keyspace::shards_of([key]), session.db, act.local.log.now_ms);
        if session.sees_expired(&act.server.keyspace) {
            view.set_expired_live();
        }
        // Watching a key does not count as use.
        view.set_quiet(true);
        if view.has_intents() {
            view.settle(&[(session.db, key)], false);
        }
        // Last, because a long write that was decided before came before WATCH.
        let then = view.watch(key, &session.watched.watch.dirty);
        act.server.after(act.local, view.finish());
        session.watched.watch.keys.insert((session.db, key.into()), then);
        session.watched.watch.bytes += 2 * key.len() + WATCHED;
    }
    act.server.observe.clients.note_watching(&session.info, session.watched.len());
    session.info.watch_bytes.store(session.watched.watch.bytes as u64, Ordering::Relaxed);
    if session.watched.watch.holding.set(&act.server.memory.work, session.watched.watch.bytes as u64).is_err()
    {
        // Whether these keys were touched is no longer known: EXEC takes them as touched.
        forget_watched(act.server, act.local, session);
        session.watched.watch.dirty.store(true, Ordering::Release);
        return Err(Error::work_memory());
    }
    if from + AT_A_STRETCH < args.len() - 1 {
        (session.half.done, session.half.watching) = (from + AT_A_STRETCH, Some(had_others));
        return Ok(crate::held::go_on(session, act.local));
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// Ends a WATCH that was refused in the middle: no key of it stays watched. Keys of earlier calls
/// cannot be told from those; if there were some, the next EXEC gives up, as if one was touched. O(1)
#[cold]
pub(crate) fn give_up_watch(server: &Server, local: &mut Local, session: &mut Session, had_others: bool) {
    forget_watched(server, local, session);
    if had_others {
        session.watched.watch.dirty.store(true, Ordering::Release);
    }
}

pub(crate) fn unwatch(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    // Inside EXEC the locks of the watched keys are held, and EXEC forgets the keys at its end anyway.
    if act.view.is_none() {
        forget_watched(act.server, act.local, act.session);
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// Ends MULTI and WATCH: after EXEC and DISCARD, on RESET, and when the client disconnects.
pub(crate) fn leave(server: &Server, local: &mut Local, session: &mut Session) {
    if let Some(multi) = session.multi.take().filter(|multi| multi.queue.len() > FEW) {
        stdx::reclaim::discard(multi);
    }
    session.info.queued.store(-1, Ordering::Relaxed);
    session.info.multi_bytes.store(0, Ordering::Relaxed);
    session.set_flag(flag::MULTI | flag::DIRTY_EXEC, false);
    forget_watched(server, local, session);
}

/// Forgets the watched keys. O(1): beyond [`AT_A_STRETCH`] keys the rest is forgotten in slices.
pub(crate) fn forget_watched(server: &Server, local: &mut Local, session: &mut Session) {
    server.observe.clients.note_watching(&session.info, 0);
    session.info.watch_bytes.store(0, Ordering::Relaxed);
    forget(server, local, session.watched.take());
}

pub(crate) fn forget(server: &Server, local: &mut Local, mut watch: Watch) {
    if watch.forget_some(&server.keyspace, AT_A_STRETCH) {
        local.works.push(Box::new(watch));
    }
}
