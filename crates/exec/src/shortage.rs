//! Memory, as a loop looks after it: a write's check, a slice of the debt, and tasks to the allocator. What
//! counts and what goes is crate `memory`'s.
//!
//! Changes by evictions are told when the slice is over (X3).

use crate::act::Act;
use crate::{Local, Server, Session};
use command::{Command, table};
use memory::{Data, Payer, Verdict};
use std::sync::Arc;

/// Checks memory before a command that may need some: evicts if necessary (memory R3).
#[cold]
pub(crate) fn admit(server: &Server, local: &mut Local, session: &Session) -> Verdict {
    let waited = session.half.short_since.take();
    if server.work.pause.stops_writes(local.log.now_ms) {
        return Verdict::Run;
    }
    let mut payer = Payer::new(&server.memory, data(server, local.log.now_ms));
    let verdict = payer.admit(&mut local.asked, waited);
    if let Verdict::Wait(waited) = verdict {
        session.half.short_since.set(Some(waited));
    }
    payer.into_told().into_iter().for_each(|changes| server.after(local, changes));
    verdict
}

/// Whether a command is refused while memory is short.
pub(crate) fn is_denied(session: &Session, command: &Command) -> bool {
    match &session.multi {
        Some(multi) if command.is(command::facts::RUNS_QUEUE) => multi.queue.is_denied_oom(),
        _ => command.has(table::DENYOOM),
    }
}

/// Whether the client's command began while memory was short and nothing could be evicted. The session's note
/// is of the last command that was checked, and without a limit no command is checked.
pub(crate) fn is_short(act: &Act<'_, '_>) -> bool {
    act.session.holds.short && act.server.memory.is_limited()
}

/// Looks after memory, once per turn of a loop while something is limited. Has the allocator asked if that is
/// due, feeds the policy, and pays a slice of the debt.
pub fn tend(server: &Arc<Server>, local: &mut Local) {
    let (memory, now_ms) = (&server.memory, local.log.now_ms);
    server.keyspace.feed_accesses();
    if memory.begin_look(&server.keyspace, now_ms) {
        let task = server.clone();
        // The allocator asks its arenas one by one, and a lock's holder may be preempted: no loop waits for
        // that.
        let sent = server.observe.background.send(move || {
            look(&task, now_ms);
            task.memory.end_look();
        });
        if !sent {
            memory.end_look();
        }
    }
    if memory.owes() {
        let mut payer = Payer::new(memory, data(server, now_ms));
        payer.pay_all(|| server.work.pause.stops_writes(now_ms));
        payer.into_told().into_iter().for_each(|changes| server.after(local, changes));
    }
}

/// Asks the allocator. Gives the bytes that it and the segments have. On the background thread; takes tens to
/// hundreds of microseconds.
pub(crate) fn look(server: &Server, now_ms: u64) -> u64 {
    let allocated = || {
        let said = server.allocator();
        server.observe.measured.note_allocator(said);
        said.allocated
    };
    server.memory.look(data(server, now_ms), || server.work.snapshots.streamed(), allocated)
}

fn data(server: &Server, now_ms: u64) -> Data<'_> {
    Data { keyspace: &server.keyspace, sources: server.rows.any(), now_ms }
}
