//! Reasons against running a command now: one function each, in the order that [`admit`] lists.
//!
//! A gate decides and runs nothing; `call` carries its decision out. Cost: some loads and comparisons, unless
//! something is wrong.

use crate::act::Act;
use crate::fetching;
use crate::held::{self, Stop, held};
use crate::parts::Moving;
use crate::session::flag;
use crate::shortage;
use command::table::{self, NO_ASYNC_LOADING};
use command::{Command, Error, facts};
use memory::Verdict;
use observe::waits::What;
use resp::Args;
use role::{Address, Failing};
use rows::{self, Plan};
use std::sync::atomic::Ordering;

/// A command may run; these facts about the server were found on the way.
pub(crate) struct Admitted {
    pub plan: Plan,
    /// More garbage waits for the reclaimer than its limit.
    pub is_full: bool,
    /// The time since when very many messages are under way (`pubsub::flood`); 0 if they are not.
    pub flooded: u64,
}

/// Asks all gates, in order; the first objection counts.
#[inline]
pub(crate) fn admit(
    act: &mut Act<'_, '_>,
    command: &'static Command,
    args: Args<'_>,
) -> Result<Admitted, Stop> {
    if act.session.link.is_some() {
        return of_link(act, command, args);
    }
    access(act, command, args)?;
    mode(act, command)?;
    crate::cluster::route(act, command, args)?;
    role(act, command, args)?;
    durable(act, command, args)?;
    let plan = route(act, command, args)?;
    memory(act, command)?;
    queued(act, command, args, &plan)?;
    let plan = fit(plan)?;
    pause(act, command, args)?;
    let is_full = garbage(act, command)?;
    let flooded = flood(act, command)?;
    Ok(Admitted { plan, is_full, flooded })
}

/// Access: the client has to log in, and its user must be allowed the call.
#[inline]
fn access(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) -> Result<(), Stop> {
    if act.session.login.user.is_free(&act.server.acl) {
        return Ok(());
    }
    crate::access::check(act, command, args)
}

/// Subscriber mode: under RESP2 a subscribed client may send a few commands only.
#[inline]
fn mode(act: &Act<'_, '_>, command: &Command) -> Result<(), Stop> {
    if !act.session.in_pubsub_mode() || command.is(facts::WHILE_SUBSCRIBED) {
        return Ok(());
    }
    Err(Stop::Refused(Error::from(format!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
         context",
        command.name
    ))))
}

/// The primary that this server follows: nothing refuses what it says. It waits for the log and for the
/// reclaimer.
#[cold]
fn of_link(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) -> Result<Admitted, Stop> {
    if act.server.durability.is_log_full() && act.session.multi.is_none() {
        return Err(held(act, act.local.log.now_ms + 1));
    }
    queued(act, command, args, &Plan::Own)?;
    let is_full = garbage(act, command)?;
    Ok(Admitted { plan: Plan::Own, is_full, flooded: 0 })
}

/// Role: this server follows another one, or is about to lead.
#[inline]
fn role(act: &Act<'_, '_>, command: &Command, args: Args<'_>) -> Result<(), Stop> {
    if act.server.role.is_plain() { Ok(()) } else { as_replica(act, command, args) }
}

#[cold]
fn as_replica(act: &Act<'_, '_>, command: &Command, args: Args<'_>) -> Result<(), Stop> {
    let (role, live) = (&act.server.role, &act.server.config.live);
    let queue =
        act.session.multi.as_ref().filter(|_| command.is(facts::RUNS_QUEUE)).map(|multi| &multi.queue);
    let queued_writes = queue.is_some_and(|queue| queue.has_writes());
    let reads = command.has(table::READONLY) || queue.is_some_and(|queue| queue.has_reads());
    let asks_primary = act.session.info.flags.load(Ordering::Relaxed) & flag::CAPA_REDIRECT != 0
        && (command.is_write() || queued_writes || reads && !act.session.settings.reads_here);
    let failing = role.failing();
    if role.is_about_to_lead() || failing != Failing::No {
        // It is done in a moment, or was given up.
        let waits = asks_primary && failing == Failing::InProgress || may_change(act, command, args);
        return if waits { Err(held(act, act.local.log.now_ms + 1)) } else { Ok(()) };
    }
    let refuse = |text: &str, in_queue: bool| {
        let aborted = format!("EXECABORT Transaction discarded because of: {text}");
        Err(if in_queue { Stop::Aborted(aborted.into()) } else { Stop::Refused(text.to_owned().into()) })
    };
    if asks_primary && let Some(primary) = role.primary() {
        // As in Valkey: the client asks there.
        let Address { host, port } = &*primary;
        let text = Error::from(format!("REDIRECT {host}:{port}"));
        return Err(if queue.is_some() { Stop::Aborted(text) } else { Stop::Refused(text) });
    }
    let flags = script_flags(act, command, args);
    // As in Redis, a script that may write by its header is refused before it runs.
    let declares_writes = flags.is_some_and(|flags| !flags.no_writes);
    if live.replica_read_only.get() && (command.is_write() || queued_writes || declares_writes) {
        if act.session.settings.moving == Moving::Told {
            return Err(Stop::Closed);
        }
        return refuse(work::follows::READONLY, queued_writes);
    }
    let queued = queue.is_some_and(|queue| !queue.is_empty());
    let is_for_stale = match command.is(facts::SCRIPT) {
        true => flags.is_some_and(|flags| flags.allow_stale),
        false => command.has(table::STALE),
    };
    if !live.serves_stale.get() && (queued || !is_for_stale) && role.lacks_link() {
        return refuse(MASTERDOWN, queued);
    }
    Ok(())
}

/// The flags that a call of a script declares. None: it is no script, or has no header.
fn script_flags(act: &Act<'_, '_>, command: &Command, args: Args<'_>) -> Option<scripts::ScriptFlags> {
    let code = &act.server.scripts.code;
    command.is(facts::SCRIPT).then(|| scripts::declared_flags(code, command, args)).flatten()
}

/// The error of a replica that may not answer without its primary.
const MASTERDOWN: &str = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";

/// Readiness: data is being loaded, or writes cannot be made durable.
#[inline]
fn durable(act: &Act<'_, '_>, command: &Command, args: Args<'_>) -> Result<(), Stop> {
    if !act.server.durability.is_in_trouble() {
        return Ok(());
    }
    trouble(act, command, args)
}

#[cold]
fn trouble(act: &Act<'_, '_>, command: &Command, args: Args<'_>) -> Result<(), Stop> {
    let durability = &act.server.durability;
    let queue =
        act.session.multi.as_ref().filter(|_| command.is(facts::RUNS_QUEUE)).map(|multi| &multi.queue);
    let loads = durability.is_loading();
    if loads || durability.is_loading_beside() {
        let is_refused = if loads { !command.has(table::LOADING) } else { command.has(NO_ASYNC_LOADING) };
        if is_refused {
            return Err(Stop::Refused(Error::from(durability.loading_refusal())));
        }
        if queue.is_some_and(|queue| if loads { !queue.is_empty() } else { queue.is_denied_beside() }) {
            let refusal = durability.loading_refusal();
            let error = format!("EXECABORT Transaction discarded because of: {refusal}");
            return Err(Stop::Aborted(Error::from(error)));
        }
    }
    let queued_writes = queue.is_some_and(|queue| queue.has_writes());
    if let Some(refusal) = durability.refusal() {
        if queued_writes {
            let error = format!("EXECABORT Transaction discarded because of: {refusal}");
            return Err(Stop::Aborted(Error::from(error)));
        }
        let declares_writes = script_flags(act, command, args).is_some_and(|flags| !flags.no_writes);
        let writes = command.is_write() || declares_writes;
        return if writes { Err(Stop::Refused(Error::from(refusal))) } else { Ok(()) };
    }
    // Scripts may write, so they wait too.
    let queues = act.session.multi.is_some() && !command.is(facts::INSIDE_MULTI);
    let queued_changes = queue.is_some_and(|queue| queue.may_change());
    if durability.is_log_full() && !queues && (queued_changes || command.may_write()) {
        act.session.waits_for_itself(What::Log, act.local.log.clock_ns);
        return Err(held(act, act.local.log.now_ms + 1));
    }
    Ok(())
}

/// Route: the database of the command's keys. A command of very many keys is looked at over several turns.
#[inline]
fn route(act: &mut Act<'_, '_>, command: &Command, args: Args<'_>) -> Result<Plan, Stop> {
    if !act.server.rows.any() {
        return Ok(Plan::Own);
    }
    match fetching::plan(act.server, act.session, command, args) {
        Plan::Later => Err(held(act, act.local.log.now_ms)),
        plan => Ok(plan),
    }
}

/// Memory: it is limited, and short.
#[inline]
fn memory(act: &mut Act<'_, '_>, command: &Command) -> Result<(), Stop> {
    if !act.server.memory.is_limited() {
        return Ok(());
    }
    ration(act, command)
}

#[cold]
fn ration(act: &mut Act<'_, '_>, command: &Command) -> Result<(), Stop> {
    act.session.holds.short = false;
    let denied = shortage::is_denied(act.session, command);
    if !denied && !command.may_write() {
        return Ok(());
    }
    let queued = act.session.multi.is_some() && !command.is(facts::RUNS_QUEUE);
    let verdict = shortage::admit(act.server, act.local, act.session);
    crate::tracking::before_reply(act);
    match verdict {
        Verdict::Wait(_) if !queued => {
            act.session.waits_for_itself(What::Reclaim, act.local.log.clock_ns);
            return Err(held(act, act.local.log.now_ms));
        }
        Verdict::Short => act.session.holds.short = true,
        Verdict::Run | Verdict::Wait(_) => {}
    }
    if !act.session.holds.short || !denied {
        return Ok(());
    }
    if command.is(facts::RUNS_QUEUE) {
        let error = Error::from(format!("EXECABORT Transaction discarded because of: {}", command::OOM));
        return Err(Stop::Aborted(error));
    }
    Err(Stop::Refused(Error::new(command::OOM)))
}

/// MULTI: the command is queued.
#[inline]
fn queued(act: &mut Act<'_, '_>, command: &Command, args: Args<'_>, plan: &Plan) -> Result<(), Stop> {
    let Some(multi) = &mut act.session.multi else { return Ok(()) };
    if command.is(facts::INSIDE_MULTI) {
        return Ok(());
    }
    if let Some(error) = rows::unfit_for_queue(plan, args) {
        return Err(Stop::Refused(error));
    }
    multi.sources |= !matches!(plan, Plan::Own);
    if command.has(table::NO_MULTI) {
        return Err(Stop::Refused(Error::new("ERR Command not allowed inside a transaction")));
    }
    Err(Stop::Queued)
}

/// Sources: a key belongs to a source that does not allow the command.
#[inline]
fn fit(plan: Plan) -> Result<Plan, Stop> {
    match plan {
        Plan::Refused(error) => Err(Stop::Refused(error)),
        plan => Ok(plan),
    }
}

/// CLIENT PAUSE: the command waits for its end.
#[inline]
fn pause(act: &mut Act<'_, '_>, command: &Command, args: Args<'_>) -> Result<(), Stop> {
    let pause = &act.server.work.pause;
    if pause.is_on()
        && let Some(until_ms) = pause.holds(command, || may_change(act, command, args), act.local.log.now_ms)
    {
        held::for_pause(pause, act.session, act.local.log.clock_ns);
        return Err(Stop::Held(until_ms));
    }
    Ok(())
}

/// Whether a command may change or tell anything: by its row, its script's flags, or the commands of its queue.
pub(crate) fn may_change(act: &Act<'_, '_>, command: &Command, args: Args<'_>) -> bool {
    if command.is(facts::SCRIPT) {
        return scripts::may_change(&act.server.scripts.code, command, args);
    }
    if command.is(facts::RUNS_QUEUE) {
        return act.session.multi.as_ref().is_some_and(|multi| multi.changes);
    }
    command.is_write() || command.may_replicate()
}

/// Reclaimer: its queue is over the limit, and this client added to it and wants to write again. Gives
/// whether the queue is over the limit.
#[inline]
fn garbage(act: &mut Act<'_, '_>, command: &Command) -> Result<bool, Stop> {
    let is_full = stdx::reclaim::is_full();
    if is_full && command.may_write() && act.session.holds.garbage == stdx::reclaim::fullness() {
        return Err(wait_for_reclaim(act));
    }
    Ok(is_full)
}

#[cold]
fn wait_for_reclaim(act: &Act<'_, '_>) -> Stop {
    if act.session.waits_for_itself(What::Reclaim, act.local.log.clock_ns) {
        act.server.observe.stats.reclaim_delays.fetch_add(1, Ordering::Relaxed);
    }
    held(act, act.local.log.now_ms + 2)
}

/// Messages: very many are under way, many of them from this client, and the command would add more. Gives
/// since when.
#[inline]
fn flood(act: &mut Act<'_, '_>, command: &Command) -> Result<u64, Stop> {
    let flooded = act.server.pubsub.flood.full();
    if flooded > 0 && act.session.holds.published.is_too_much(flooded) && tells(command) {
        return Err(wait_for_messages(act));
    }
    Ok(flooded)
}

#[cold]
fn wait_for_messages(act: &Act<'_, '_>) -> Stop {
    act.session.waits_for_itself(What::Messages, act.local.log.clock_ns);
    held(act, act.local.log.now_ms + 1)
}

/// Whether a command may cause messages: it publishes, or its writes are told.
pub(crate) fn tells(command: &Command) -> bool {
    command.may_write() || command.is(facts::PUBLISHES)
}
