//! One command of the primary that this server follows ([`role::link`]).

use crate::act::Act;
use crate::call::{muted, serve};
use crate::{Local, Server, Session, Words, half};
use command::{Flow, resolve};
use resp::Reply;
use std::sync::Arc;

/// Runs one command of the primary. Nothing of its reply stays in `out`.
pub(crate) fn execute(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    words: Words<'_>,
    out: &mut Reply,
) -> Flow {
    let Words { args, kept, key_hash } = words;
    let (mark, name) = (out.len(), args.at(0));
    if name.eq_ignore_ascii_case(b"replconf") {
        if let Some(link) = &mut session.link
            && args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"getack"))
        {
            link.owe_ack();
        }
        return Flow::Done;
    }
    let command = match resolve(args) {
        Ok(command) => command,
        Err(error) => return refuse(session, name, &error.text()),
    };
    let mut act = Act { kept, key_hash, ..Act::of_client(server, local, session, out) };
    let flow = serve(&mut act, command, args);
    let (session, out) = (act.session, act.out);
    if let Flow::Held(_) = flow {
        out.truncate(mark);
        return flow;
    }
    half::over(server, act.local, session, Some(command));
    if let Some(text) = out.as_bytes()[mark..].strip_prefix(b"-") {
        if command.is(command::facts::SELECTS) {
            let text = String::from_utf8_lossy(text).into_owned();
            out.truncate(mark);
            return refuse(session, name, text.trim_end());
        }
        session.link.iter().for_each(|link| link.note_error(name, text));
    }
    muted(flow, mark, session, out)
}

/// Ends the link over a command (RL2).
#[cold]
fn refuse(session: &Session, name: &[u8], error: &str) -> Flow {
    session.link.iter().for_each(|link| link.refuse(name, error));
    // Not `Flow::Close`: the command counts as not received.
    Flow::Held(u64::MAX)
}
