//! Commands that wait for keys.

use crate::park::Parked;
use crate::session::flag;
use crate::{Flow, Local, Server, Session};
use command::{Block, Command, Run};
use resp::{Args, Reply};
use std::sync::Arc;

/// Parks a client on the keys of its command.
pub(crate) fn park(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    command: &'static Command,
    args: Args<'_>,
    block: Block,
    out: &mut Reply,
) -> Flow {
    // Writers see it there.
    stdx::panics::changes();
    let parked = server.park.park(server, local, session, command, args.to_owned(), block, out);
    match parked {
        Parked::Waiting => {
            session.set_flag(flag::BLOCKED, true);
            Flow::Parked(block.timeout_ms)
        }
        Parked::Served(changes, stream) => {
            server.after(local, changes);
            stream.map_or(Flow::Done, Flow::Stream)
        }
        Parked::Long => match command.run {
            Run::Write(handler) | Run::Read(handler) => {
                crate::job::start(server, local, session, (command, handler, args), out)
            }
            _ => Flow::Done,
        },
    }
}
