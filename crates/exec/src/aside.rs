//! Answers that are collected outside the loops.
//!
//! | by | for | bound |
//! |---|---|---|
//! | the reporter ([`elsewhere`]) | what the server has: figures, lists of its own | one after the other |
//! | demoted threads ([`report`]) | what a client's words can make long | in slices, each client its share |
//! | a thread of its own ([`aside`]) | what waits for a disk, and what changes code | [`ASIDES_MAX`] |
//!
//! The clerk collects no client's answer: vital work waits for it.

use crate::act::Act;
use crate::mail::Mail;
use crate::reports::{self, Gather, Job, Report};
use crate::waits::What;
use crate::{Flow, held};
use command::{Command, Error};
use parking_lot::Mutex;
use resp::{Args, Reply};
use std::collections::{BTreeMap, HashMap};

type Collect = Box<dyn FnOnce(&mut Reply) + Send>;

/// The way of an answer that is collected elsewhere.
#[derive(Default)]
pub(crate) enum Collected {
    /// The client gets it by mail.
    #[default]
    ByMail,
    /// The action's caller will collect it.
    Wanted,
    /// The action left this to be collected.
    Found(Rest),
}

/// The rest of an action.
pub(crate) enum Rest {
    Whole(Collect),
    InSteps(Gather),
}

impl Collected {
    fn is_wanted(&self) -> bool {
        matches!(self, Collected::Wanted)
    }
}

/// Performs an action for a script that waits on its thread. `deliver` gets the answer, at once or from
/// another thread.
pub(crate) fn perform_for_script(
    act: &mut Act<'_, '_>,
    command: &'static Command,
    args: Args<'_>,
    deliver: impl Fn(Vec<u8>) + Clone + Send + 'static,
) {
    act.local.collected = Collected::Wanted;
    stdx::panics::begin();
    let flow = stdx::panics::contain(|| act.server.actions.perform(act, command, args));
    let flow = flow.unwrap_or_else(|_| Err(Error::new(crate::job::BROKEN)));
    let collected = std::mem::take(&mut act.local.collected);
    let mut out = Reply::new(act.out.resp3());
    let (client, gone) = (act.session.id, act.session.cancel.clone());
    let rest: Collect = match (flow, collected) {
        (Err(error), _) => {
            out.error(&error.text());
            return deliver(out.into_bytes());
        }
        (Ok(Flow::Parked(_)), Collected::Found(Rest::Whole(collect))) => collect,
        (Ok(Flow::Parked(_)), Collected::Found(Rest::InSteps(gather))) => {
            let answer = Box::new(deliver.clone());
            if !reports::begin(act.server, Job { client, gone, out, deliver: answer }, gather) {
                deliver(NO_THREAD.to_vec());
            }
            return;
        }
        (Ok(Flow::Stream(mut stream)), _) => {
            out.encoded(act.out.as_bytes());
            Box::new(move |out| while stream.fill(out, usize::MAX) {})
        }
        (Ok(Flow::Done | Flow::Close), _) => return deliver(act.out.as_bytes().to_vec()),
        (Ok(Flow::Parked(_) | Flow::Held(_)), _) => {
            out.error("ERR This Redis command is not allowed from script");
            return deliver(out.into_bytes());
        }
    };
    let answer = deliver.clone();
    let sent = act.server.observe.reporter.send(move || {
        contained(&mut out, rest);
        answer(out.into_bytes());
    });
    if !sent {
        deliver(NO_THREAD.to_vec());
    }
}

const NO_THREAD: &[u8] = b"-ERR no thread could be started\r\n";

/// Collects the answer of a caller that cannot wait ([`Act::is_pressed`]), or leaves the collecting to a
/// script's thread. `Err`: it is to be collected elsewhere.
fn here<C: FnOnce(&mut Reply) + Send + 'static>(act: &mut Act<'_, '_>, collect: C) -> Result<Flow, C> {
    if act.is_pressed() {
        collect(act.out);
        return Ok(Flow::Done);
    }
    if act.local.collected.is_wanted() {
        act.local.collected = Collected::Found(Rest::Whole(Box::new(collect)));
        return Ok(Flow::Parked(None));
    }
    Err(collect)
}

/// Lets the reporter collect an answer, which is of what the server has and takes milliseconds at most. The
/// client is parked until it comes. A caller that cannot wait ([`Act::is_pressed`]) gets it at once.
pub(crate) fn elsewhere(
    act: &mut Act<'_, '_>,
    collect: impl FnOnce(&mut Reply) + Send + 'static,
) -> Result<Flow, Error> {
    let collect = match here(act, collect) {
        Ok(flow) => return Ok(flow),
        Err(collect) => collect,
    };
    let (server, loop_id, client) = (act.server.clone(), act.local.log.id, act.session.id);
    let mut out = Reply::new(act.out.resp3());
    stdx::panics::changes();
    let sent = act.server.observe.reporter.send(move || {
        contained(&mut out, collect);
        server.send(loop_id, Mail::Reply { client, bytes: out.into_bytes(), stream: None });
    });
    if !sent {
        return Err(Error::new("ERR no thread could be started"));
    }
    Ok(Flow::Parked(None))
}

/// Collects an answer that the client's words can make long (`reports`). The client is parked until it comes.
/// A caller that cannot wait ([`Act::is_pressed`]) gets it at once. `gather` may take locks, the report not.
pub(crate) fn report<R: Report + 'static>(
    act: &mut Act<'_, '_>,
    gather: impl FnOnce() -> R + Send + 'static,
) -> Result<Flow, Error> {
    let gather: Gather = Box::new(|| Box::new(gather()));
    if act.is_pressed() {
        reports::at_once(gather, act.out);
        return Ok(Flow::Done);
    }
    if act.local.collected.is_wanted() {
        act.local.collected = Collected::Found(Rest::InSteps(gather));
        return Ok(Flow::Parked(None));
    }
    let (server, loop_id, client) = (act.server.clone(), act.local.log.id, act.session.id);
    let deliver = Box::new(move |bytes| server.send(loop_id, Mail::Reply { client, bytes, stream: None }));
    let (gone, out) = (act.session.cancel.clone(), Reply::new(act.out.resp3()));
    stdx::panics::changes();
    match reports::begin(act.server, Job { client, gone, out, deliver }, gather) {
        true => Ok(Flow::Parked(None)),
        false => Err(Error::new("ERR no thread could be started")),
    }
}

/// Collects an answer; a panic in it becomes an error of this client alone.
fn contained(out: &mut Reply, collect: impl FnOnce(&mut Reply)) {
    let mark = out.len();
    if stdx::panics::contain(|| collect(&mut *out)).is_err() {
        out.truncate(mark);
        out.error(crate::job::BROKEN);
    }
}

/// Most threads that collect answers at a time.
const ASIDES_MAX: usize = 64;
/// Milliseconds after which a client that has not asked again counts as gone. A waiting one asks each
/// millisecond.
const ASKS_MS: u64 = 1000;

/// The threads that collect answers, and the clients that wait for one: first come, first served. So clients
/// that ask again and again keep nobody out. The waiting ones are kept by ticket: client, and time of its
/// last question.
#[derive(Default)]
struct Asides {
    running: usize,
    last_ticket: u64,
    waiting: BTreeMap<u64, (u64, u64)>,
    tickets: HashMap<u64, u64>,
}

static ASIDES: Mutex<Option<Asides>> = Mutex::new(None);

impl Asides {
    fn with<T>(f: impl FnOnce(&mut Asides) -> T) -> T {
        f(ASIDES.lock().get_or_insert_default())
    }

    /// Gives a client a thread if one is free; else it waits. Cost: O(threads + log n) for n waiting clients.
    fn take(&mut self, client: u64, now_ms: u64) -> bool {
        let ticket = *self.tickets.entry(client).or_insert_with(|| {
            self.last_ticket += 1;
            self.last_ticket
        });
        self.waiting.insert(ticket, (client, now_ms));
        while let Some(first) = self.waiting.first_entry()
            && now_ms.saturating_sub(first.get().1) > ASKS_MS
        {
            self.tickets.remove(&first.remove().0);
        }
        let room = ASIDES_MAX.saturating_sub(self.running);
        let may = self.waiting.keys().take(room).any(|next| *next == ticket);
        if may {
            self.waiting.remove(&ticket);
            self.tickets.remove(&client);
            self.running += 1;
        }
        may
    }
}

/// One of the threads, while it runs.
struct One;

impl Drop for One {
    fn drop(&mut self) {
        Asides::with(|asides| asides.running -= 1);
    }
}

/// Collects an answer that may take long, on a thread of its own; the client is parked until it comes. A
/// caller that cannot wait ([`Act::is_pressed`]) gets it at once. The thread is not demoted: `collect` may
/// take shard locks.
pub(crate) fn aside(
    act: &mut Act<'_, '_>,
    thread: &str,
    collect: impl FnOnce(&mut Reply) + Send + 'static,
) -> Result<Flow, Error> {
    let collect = match here(act, collect) {
        Ok(flow) => return Ok(flow),
        Err(collect) => collect,
    };
    let (client, now_ms) = (act.session.id, act.local.log.now_ms);
    if !Asides::with(|asides| asides.take(client, now_ms)) {
        act.session.waits_for_itself(What::Thread, act.local.log.clock_ns);
        return Ok(held::retry(act.session, act.local));
    }
    let one = One;
    let (server, loop_id) = (act.server.clone(), act.local.log.id);
    let mut out = Reply::new(act.out.resp3());
    let run = move || {
        contained(&mut out, collect);
        drop(one);
        server.send(loop_id, Mail::Reply { client, bytes: out.into_bytes(), stream: None });
    };
    stdx::panics::changes();
    match std::thread::Builder::new().name(thread.into()).spawn(run) {
        Ok(_) => Ok(Flow::Parked(None)),
        Err(e) => Err(format!("ERR no thread could be started: {e}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_collect_answers_go_to_who_came_first() {
        let mut asides = Asides::default();
        assert!((0..ASIDES_MAX as u64).all(|client| asides.take(client, 0)));
        // Two clients wait. A third that asks when a thread comes free is behind them.
        assert!(!asides.take(100, 1) && !asides.take(101, 1));
        asides.running -= 1;
        assert!(!asides.take(0, 2) && !asides.take(101, 2) && asides.take(100, 2));
        // A client that has gone is skipped after a while.
        asides.running -= 1;
        assert!(!asides.take(0, 900) && !asides.take(0, 1000));
        assert!(asides.take(0, 3 + ASKS_MS));
        assert_eq!((asides.running, asides.waiting.len(), asides.tickets.len()), (ASIDES_MAX, 0, 0));
    }
}
