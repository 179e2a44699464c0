//! How a loop opens its letters. Letters about connections are the transport's.
//!
//! - R1: a letter's changes are made and told before its replies are in `done` (exec X3).
//! - R2: the loop does what [`After`] says before the next letter.

use crate::mail::Mail;
use crate::{Local, Server, Session, blocking, deferred, drive, eval, fetching};
use command::Flow;
use observe::waits::Part;
use pubsub::tracking::Letter;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use work::piece::Delivery;

/// The clients of a loop, by id.
pub trait Sessions {
    fn session(&mut self, client: u64) -> Option<&mut Session>;

    /// The time at which a client's blocked command times out (milliseconds since 1970), if it is known.
    fn waits_until(&self, client: u64) -> Option<u64>;
}

/// The rest of the work, which only the loop can do.
pub enum After {
    Nothing,
    /// This client waits for keys, or for the time alone, until then, or for so many milliseconds, or for ever
    /// if neither is given.
    Parked {
        client: u64,
        until_ms: Option<u64>,
        timeout_ms: Option<u64>,
    },
    /// Clients whose commands were held look again.
    LookAgain,
    /// Replies that waited for the log may leave.
    OpenGates,
    /// The inbox of this client has something.
    Inbox(u64),
    /// The letter is about a connection.
    Unopened(Mail),
}

/// Opens a letter. Replies that became ready go to `done`. Cost: a slice of the work the letter asks for.
pub fn receive(
    server: &Arc<Server>,
    local: &mut Local,
    sessions: &mut dyn Sessions,
    letter: Mail,
    done: &mut Vec<Delivery>,
) -> After {
    match letter {
        Mail::Reply { client, bytes, stream } => match deferred::waiting_deferred(local, client) {
            Some(mut waiting) => {
                waiting.answered(&bytes, stream);
                return do_deferred(server, local, sessions, waiting, done);
            }
            None => done.push(Delivery { client, bytes, stream, spent: None, selected: None }),
        },
        Mail::Deferred(deferred) => return do_deferred(server, local, sessions, deferred, done),
        Mail::Work(letter) => drive::receive(server, local, letter, done),
        Mail::Request(request) => {
            let session = sessions.session(request.client);
            eval::perform(server, local, session, *request);
        }
        Mail::Ready(keys) => blocking::serve(server, local, keys),
        Mail::Serving(rest) => blocking::serve_on(server, local, *rest),
        Mail::Serve(waiter) => {
            if let Some(session) = sessions.session(waiter.client) {
                blocking::give_to_job(server, local, session, &waiter);
            }
        }
        Mail::Wait(wait) => return wait_on(server, local, sessions, *wait, done),
        Mail::Announce(announced) => local.announce(announced),
        Mail::Tracking(Letter::Inbox(client)) => return After::Inbox(client),
        Mail::Tracking(Letter::Task(task)) => local.works.push(Box::new(crate::tracking::TrackingTask(task))),
        Mail::Reads(client, reads, since) => crate::tracking::remember_later(local, client, reads, since),
        Mail::Source(letter) => fetching::receive(server, local, letter),
        Mail::Review { client } => {
            if crate::access::review(server, client, sessions.session(client)) {
                // At once: a message that is opened next is not for it.
                return After::Unopened(Mail::Kill { client });
            }
        }
        Mail::Retry => {
            drive::resume(server, local);
            return After::LookAgain;
        }
        Mail::Unblock { client } => unblock(server, local, sessions, client, done),
        Mail::Durable => return After::OpenGates,
        letter => return After::Unopened(letter),
    }
    After::Nothing
}

/// Ends the wait of a blocked client, which is closed then. During a failover one that wants to hear where to go on
/// waits for its end.
fn unblock(
    server: &Arc<Server>,
    local: &mut Local,
    sessions: &mut dyn Sessions,
    client: u64,
    done: &mut Vec<Delivery>,
) {
    if let Some(waiter) = blocking::leave(server, local, client) {
        let fails = server.role.failing() != role::Failing::No;
        if let Some(session) = sessions.session(client) {
            let hears = session.info.flags.load(Relaxed) & crate::changing_role::HEARS != 0;
            session.settings.ended_wait = fails && hears;
            if session.settings.ended_wait {
                return;
            }
            session.speech.closing = true;
        }
        let bytes = role::replicas::unblocked(waiter.resp3);
        done.push(Delivery { client, bytes, stream: None, spent: None, selected: None });
        return;
    }
    if server.park.holds(client) {
        // A writer is serving it at this moment.
        server.send(local.log.id, Mail::Unblock { client });
    }
}

/// Does a slice of the deferred effects of a committed script or transaction.
fn do_deferred(
    server: &Arc<Server>,
    local: &mut Local,
    sessions: &mut dyn Sessions,
    deferred: Box<scripts::Deferred>,
    done: &mut Vec<Delivery>,
) -> After {
    let client = deferred.client();
    let mark = local.log.enter(Part::Commit, client);
    done.extend(deferred::advance_deferred(server, local, sessions.session(client), deferred));
    local.log.leave(&server.observe, Part::Commit, client, mark);
    match deferred::sleeps_ms(local, client) {
        None => After::Nothing,
        timeout_ms => After::Parked { client, until_ms: None, timeout_ms },
    }
}

/// Parks a client whose job found nothing, for the rest of its time-out.
fn wait_on(
    server: &Arc<Server>,
    local: &mut Local,
    sessions: &mut dyn Sessions,
    wait: work::piece::Wait,
    done: &mut Vec<Delivery>,
) -> After {
    let client = wait.client;
    let until_ms = sessions.waits_until(client);
    let Some(session) = sessions.session(client) else { return After::Nothing };
    let (stream, bytes) = match blocking::wait(server, local, session, wait, until_ms) {
        (Flow::Parked(timeout_ms), _) => return After::Parked { client, until_ms, timeout_ms },
        (Flow::Stream(stream), bytes) => (Some(stream), bytes),
        (_, bytes) => (None, bytes),
    };
    done.push(Delivery { client, bytes, stream, spent: None, selected: None });
    After::Nothing
}
