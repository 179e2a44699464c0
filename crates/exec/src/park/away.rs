//! Commands that wait and have much to do: theirs is a job's work, like that of any other command.
//!
//! ```text
//! waiting ──served with much──► Mail::Serve, to its loop ──► job ──► reply
//!    ▲                                                        │ there is nothing any more
//!    └────────────────────────── Mail::Wait ◄─────────────────┘
//! ```
//!
//! - A1: a job that finds nothing answers nothing: its client goes on waiting for what is left of its time.
//! - A2: it waits as a newcomer does: registered first, it looks once more (P2). While its job ran it was in no line, so others
//!   may have been served before it.

use super::Waiter;
use crate::job::{self, Body, Call};
use crate::session::flag;
use crate::waits::Spent;
use crate::{Flow, Local, Server, Session};
use command::{Block, Command, Run};
use resp::{OwnedArgs, Reply};
use std::sync::Arc;

/// A job found nothing for a command that waits.
pub struct Wait {
    pub client: u64,
    pub(crate) command: &'static Command,
    pub(crate) args: Arc<OwnedArgs>,
    pub(crate) block: Block,
    /// When the job began.
    pub(crate) since_ns: u64,
    pub(crate) spent: Spent,
}

/// Has a job serve a client that was taken out of the park because it has much to do. Cost: O(words).
pub fn serve(server: &Arc<Server>, local: &mut Local, session: &mut Session, waiter: &Waiter) {
    let (Run::Write(handler) | Run::Read(handler)) = waiter.command.run else { return };
    let args = Arc::new(waiter.args.args().to_owned());
    session.set_flag(flag::BLOCKED, false);
    if let Some(away) = &mut session.away {
        away.goes_to_job(local.clock_ns);
    }
    let body = Body::One(Call { command: waiter.command, handler, args });
    let job = job::Job::waiting(server, local, session, body, &Reply::new(waiter.resp3));
    job::submit(server, local, job);
}

/// Has a client wait whose job found nothing (A1): what became of that, and what it is answered if it has not to wait.
/// `until_ms`: when its time is up, if it waited before.
pub fn wait(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    wait: Wait,
    until_ms: Option<u64>,
) -> (Flow, Vec<u8>) {
    session.away = crate::waits::request::waits_on(server, local, session, wait.spent);
    let elapsed_ms = stdx::clock::mono_ns().saturating_sub(wait.since_ns) / 1_000_000;
    let left = |ms: u64| match until_ms {
        Some(until) => until.saturating_sub(local.now_ms),
        None => ms.saturating_sub(elapsed_ms),
    };
    // The time of one that is up comes with the next look at the clock.
    let timeout_ms = wait.block.timeout_ms.map(|ms| left(ms).max(1));
    let (block, mut out) = (Block { timeout_ms, ..wait.block }, Reply::new(session.resp3));
    let flow = crate::blocking::park(server, local, session, wait.command, wait.args.args(), block, &mut out);
    if let Flow::Parked(_) = flow {
        let is_job = std::mem::take(&mut local.away);
        session.away.iter_mut().for_each(|away| away.is_job = is_job);
        return (Flow::Parked(timeout_ms), Vec::new());
    }
    (flow, out.into_bytes())
}
