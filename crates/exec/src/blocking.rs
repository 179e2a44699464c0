//! Commands that wait for keys, as the server uses the park. The file has the parts of server, loop and
//! session that `park` asks for, and handles its results. Changes are told before replies are delivered (X3).
//!
//! A blocked command that has much to do becomes a job, like any other long command:
//!
//! ```text
//! waiting ──served with much──► Mail::Serve, to its loop ──► job ──► reply
//!    ▲                                                        │ there is nothing any more
//!    └────────────────────────── Mail::Wait ◄─────────────────┘
//! ```
//!
//! - A1: a job that finds nothing sends no reply: its client goes on waiting for the rest of its time-out.
//! - A2: the client waits as a newcomer does: it is registered first and looks once more (park P2). While its
//!   job ran it stood in no line, so others may have been served before it.

use crate::access::note;
use crate::act::Act;
use crate::mail::Mail;
use crate::session::flag;
use crate::{Local, Server, Session, hand_on};
use acl::Context;
use command::{Block, Command, Flow, Run, registry};
use keyspace::{Changes, Lsn, Ready};
use park::{Means, Newcomer, Parked, Refused, Registering, Served, Serving, Waiter};
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use stdx::points::{self, Point};
use work::piece::{Desk, Piece, Step, Wait, Who, more};

/// The parts of a loop that the park uses.
fn means<'a>(server: &'a Server, local: &mut Local) -> Means<'a> {
    let (now_ms, seed) = (local.log.now_ms, local.random());
    Means {
        keyspace: &server.keyspace,
        acl: &server.acl,
        now_ms,
        seed,
        late: Vec::new(),
        refused: Vec::new(),
        pieces: Vec::new(),
    }
}

/// Tells the changes that the park left for its loop, and continues the rest in slices.
fn leave_behind(server: &Server, local: &mut Local, means: Means<'_>) {
    log_refused(server, means.refused);
    put_off(server, local, means.late);
    means.pieces.into_iter().for_each(|piece| local.works.push(Box::new(Registers(piece))));
}

/// Logs waiters whose users may not run their commands any more.
fn log_refused(server: &Server, refused: Vec<Refused>) {
    for Refused { client, user, command, args, denied } in refused {
        if let Some(info) = server.observe.clients.get(client) {
            note(server, &info, &user, Context::TopLevel, (command, args.args()), denied);
        }
    }
}

/// Sends changes to this loop's mailbox; the next mail serves their waiters.
fn put_off(server: &Server, local: &Local, late: Vec<Changes>) {
    for changes in late {
        let ready = server.tell(changes);
        if !ready.is_empty() {
            server.send(local.log.id, Mail::Ready(ready));
        }
    }
}

/// Parks a client on the keys of its command.
pub(crate) fn park(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>, block: Block) -> Flow {
    // From here on writers see the waiter.
    stdx::panics::changes();
    let (server, session) = (act.server, &*act.session);
    let (client, loop_id, db, gone) = (session.id, act.local.log.id, session.db, session.cancel.clone());
    let (user, shows_expired) = (session.login.user.clone(), session.sees_expired(&server.keyspace));
    let newcomer = Newcomer { client, loop_id, db, shows_expired, user, gone };
    let mut means = means(server, act.local);
    let timeout_ms = block.timeout_ms;
    let words = block.words.as_deref().map_or_else(|| args.to_owned(), OwnedArgs::clone);
    let parked = server.park.park(&mut means, newcomer, (command, words), block, act.out);
    leave_behind(server, act.local, means);
    match parked {
        Parked::Waiting => {
            act.session.set_flag(flag::BLOCKED, true);
            act.session.look = server.park.first_look(client, act.local.log.now_ms);
            Flow::Parked(timeout_ms)
        }
        Parked::Served(changes, stream) => {
            server.after(act.local, changes);
            // The look that served it came after that of the handler.
            server.gate_of_words(act.session, command, args);
            stream.map_or(Flow::Done, Flow::Stream)
        }
        Parked::Long(waiter) if !waiter.is_judged() => {
            act.session.set_flag(flag::BLOCKED, true);
            server.send(loop_id, Mail::Serve(waiter));
            Flow::Parked(timeout_ms)
        }
        Parked::Long(_) => match command.run {
            Run::Write(handler) | Run::Read(handler) => hand_on::start(act, command, handler, args),
            _ => Flow::Done,
        },
    }
}

/// Serves the clients that wait for keys that were just touched, and those that wait for keys touched by that
/// (park P4).
pub fn serve(server: &Server, local: &mut Local, ready: Vec<Ready>) {
    serve_on(server, local, Serving::new(ready));
}

/// Serves the next of them.
pub(crate) fn serve_on(server: &Server, local: &mut Local, mut serving: Serving) {
    let mut means = means(server, local);
    let since = server.keyspace.last_lsn();
    while let Some(served) = server.park.serve(&mut means, &mut serving) {
        put_off(server, local, std::mem::take(&mut means.late));
        log_refused(server, std::mem::take(&mut means.refused));
        serving.add(deliver(server, served, since));
    }
    leave_behind(server, local, means);
    if let Some(rest) = serving.rest() {
        server.send(local.log.id, Mail::Serving(Box::new(rest)));
    }
}

/// Tells the changes that serving a client made, and answers it or hands it to its loop. Returns the keys
/// that this filled.
fn deliver(server: &Server, served: Served, since: Lsn) -> Vec<Ready> {
    match served {
        Served::Reply { waiter, changes, bytes, stream } => {
            let ready = server.tell(changes);
            if server.keyspace.is_tracking() {
                crate::tracking::remember_served(server, waiter.client, waiter.command, &waiter.args, since);
            }
            server.send(waiter.loop_id, Mail::Reply { client: waiter.client, bytes, stream });
            ready
        }
        Served::Long(waiter) => {
            server.send(waiter.loop_id, Mail::Serve(waiter));
            Vec::new()
        }
    }
}

/// Lets a client that waits for keys to be due look at some of them (park P12). Its next look is in
/// `session.look`.
pub fn look_again(server: &Server, local: &mut Local, session: &mut Session) {
    let Some(look) = session.look.take() else { return };
    let mut means = means(server, local);
    let since = server.keyspace.last_lsn();
    let (served, next) = server.park.look_when_due(&mut means, session.id, look);
    session.look = next;
    leave_behind(server, local, means);
    let ready = served.map_or_else(Vec::new, |served| deliver(server, served, since));
    if !ready.is_empty() {
        serve(server, local, ready);
    }
}

/// Registers a client for some more keys, or takes it off some. False: that was all.
fn advance(server: &Server, local: &mut Local, registering: &mut Registering) -> bool {
    let mut means = means(server, local);
    let since = server.keyspace.last_lsn();
    let (is_left, served) = registering.advance(&mut means);
    leave_behind(server, local, means);
    let ready = served.map_or_else(Vec::new, |served| deliver(server, served, since));
    if !ready.is_empty() {
        serve(server, local, ready);
    }
    is_left
}

/// Registers a client for the keys it begins to wait for, or takes it off them.
struct Registers(Box<Registering>);

impl Piece for Registers {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = Local::of(desk);
        let is_left = advance(&server, local, &mut self.0);
        more(is_left, self)
    }

    fn who(&self) -> Who {
        Who { client: self.0.client(), ..Who::default() }
    }

    fn stays(&self) -> bool {
        self.0.is_half_in() && points::stays(Point::Register, self.0.client())
    }
}

/// Parks a client for so long, or for ever. Then it gets `answer`. `name`: the command that it waits in. O(1)
pub(crate) fn sleep(
    server: &Server,
    local: &Local,
    session: &Session,
    name: &'static str,
    timeout_ms: Option<u64>,
    answer: Reply,
) -> Flow {
    stdx::panics::changes();
    if let Some(command) = registry::row(name) {
        server.park.sleep(local.log.id, session.id, command, timeout_ms, answer);
        session.set_flag(flag::BLOCKED, true);
    }
    Flow::Parked(timeout_ms)
}

/// Ends the wait of a client whose time is up. None: it was served, or is being served. Else what it gets; a
/// transaction's deferred effects that only slept answer by mail.
pub fn time_out(server: &Arc<Server>, local: &mut Local, client: u64) -> Option<Option<Vec<u8>>> {
    let waiter = leave(server, local, client)?;
    if crate::deferred::sleeps_ms(local, client).is_none() {
        return Some(Some(waiter.null()));
    }
    server.send(local.log.id, Mail::Reply { client, bytes: Vec::new(), stream: None });
    Some(None)
}

/// Takes a waiting client out of the park for another reason than data. None: it was served, or is being
/// served.
pub fn leave(server: &Server, local: &mut Local, client: u64) -> Option<Arc<Waiter>> {
    let mut means = means(server, local);
    let waiter = server.park.leave(&mut means, client);
    leave_behind(server, local, means);
    waiter
}

/// Hands a client that was taken out of the park to a job, because it has much to do. Its rights may have to be
/// looked at first, a slice in each turn (park P11). Cost: O(words).
pub fn give_to_job(server: &Arc<Server>, local: &mut Local, session: &mut Session, waiter: &Arc<Waiter>) {
    match waiter.judge(&server.acl, server.keyspace.databases()) {
        Some(Ok(())) => {}
        Some(Err((bytes, refused))) => {
            log_refused(server, vec![refused]);
            return server.send(local.log.id, Mail::Reply { client: waiter.client, bytes, stream: None });
        }
        None => return server.send(local.log.id, Mail::Serve(waiter.clone())),
    }
    session.set_flag(flag::BLOCKED, false);
    if let Some(away) = &mut session.away {
        away.goes_to_job(local.log.clock_ns);
    }
    hand_on::serve(server, local, session, waiter);
}

/// Parks a client whose job found nothing (A1). Gives whether it waits, or the answer it gets at once.
/// `until_ms`: the end of its time-out, if it waited before.
pub fn wait(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    wait: Wait,
    until_ms: Option<u64>,
) -> (Flow, Vec<u8>) {
    crate::waited::waits_on(server, local, session, wait.spent);
    let elapsed_ms = stdx::clock::mono_ns().saturating_sub(wait.since_ns) / 1_000_000;
    let left = |ms: u64| match until_ms {
        Some(until) => until.saturating_sub(local.log.now_ms),
        None => ms.saturating_sub(elapsed_ms),
    };
    // A time-out that is over takes effect with the next look at the clock.
    let timeout_ms = wait.block.timeout_ms.map(|ms| left(ms).max(1));
    let (block, mut out) = (Block { timeout_ms, ..wait.block }, Reply::new(session.speech.resp3));
    let mut act = Act::of_client(server, local, session, &mut out);
    let flow = park(&mut act, wait.command, wait.args.args(), block);
    let is_job = act.is_job;
    if let Flow::Parked(_) = flow {
        session.away.iter_mut().for_each(|away| away.is_job = is_job);
        return (Flow::Parked(timeout_ms), Vec::new());
    }
    (flow, out.into_bytes())
}
