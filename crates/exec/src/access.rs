//! Rights of a client's user at each of its commands, and the clients of users that change.
//!
//! ```text
//! gate ── free in this generation? ──► run
//!           └─ no: refresh ─► gone: close │ not logged in: NOAUTH │ may it? ─► no: NOPERM, ACL LOG
//! ```
//!
//! - A1: each command of a client passes here before it is queued, handed on or run; what a script calls is
//!   asked for in `scripts`, a blocked command that is served in `park`.
//! - A2: a transaction whose user changed since it was queued is asked for again as a whole.
//! - A3: a change of users is answered once all its clients were told to look at themselves. Messages that are
//!   published after the answer come behind that.
//! - A4: a call of many words, or a transaction, is asked for in slices, between which its client is held.
//!
//! Cost: one load and one comparison for a user who may do everything; O(keys · patterns) for others.

use crate::act::Act;
use crate::held::{Stop, held};
use crate::mail::Mail;
use crate::parts::Multi;
use crate::session::ClientInfo;
use crate::{Server, Session};
use acl::{Asking, Call, Context, Denied, Entry, Reason, User};
use command::table::NO_AUTH;
use command::{Command, Error, Stream};
use resp::{Args, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Words of a transaction above which it is not asked for again, but refused.
const WORDS_AGAIN: usize = 4096;
/// Subscriptions of a client times the patterns of its user, above which the client is closed without a look.
const HEARD: usize = 100_000;

/// Login and rights: the client has to log in, and its user must be allowed the call.
#[cold]
pub(crate) fn check(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) -> Result<(), Stop> {
    let is_let_in = act.session.login.is_let_in(&act.server.acl);
    let session = &mut *act.session;
    if !session.login.user.refresh(&act.server.acl, is_let_in) {
        return Err(Stop::Closed);
    }
    if !is_let_in && !command.has(NO_AUTH) {
        return Err(Stop::Refused(Error::new("NOAUTH Authentication required.")));
    }
    if session.login.user.user().is_powerful() {
        return Ok(());
    }
    let user = session.login.user.user().clone();
    let db = session.multi.as_ref().and_then(|multi| multi.selected).unwrap_or(session.db);
    let call = Call { command, args, db, databases: act.server.keyspace.databases() };
    let goes_on = act.session.half.done > 0;
    let is_short = act.kept.is_none() && Asking::is_short(&user, args);
    let result = match is_short {
        true => user.may(call),
        false => Asking::advance(&mut act.session.half.asking, &user, call, goes_on)
            .ok_or_else(|| held(act, act.local.log.now_ms))?,
    };
    result.map_err(|denied| {
        let context = if act.session.multi.is_some() { Context::Multi } else { Context::TopLevel };
        note(act.server, &act.session.info, &user, context, (command, args), denied);
        Stop::Refused(denied.error(&user, command))
    })
}

/// Counts and logs a denied call.
pub(crate) fn note(
    server: &Server,
    info: &ClientInfo,
    user: &User,
    context: Context,
    (command, args): (&Command, Args<'_>),
    denied: Denied,
) {
    let Some((reason, object)) = denied.logged(command, args) else { return };
    let counter = match reason {
        Reason::Key => 1,
        Reason::Channel => 2,
        Reason::Database => 3,
        Reason::Command | Reason::Auth => 0,
    };
    server.acl.denied[counter].fetch_add(1, Ordering::Relaxed);
    log(server, info, (reason, context), object, user.name());
}

fn log(server: &Server, info: &ClientInfo, kind: (Reason, Context), object: &[u8], user: &[u8]) {
    let now_ms = stdx::clock::wall_ms();
    let mut line = Vec::new();
    observe::roll::describe(info, now_ms, &mut line);
    let client = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
    let max = server.config.live.acllog_max_len.size();
    server.acl.log.lock().add(Entry::new(kind, object, user, client, now_ms), max);
}

/// A token of HTTP let nobody in. ACL LOG names the user before its colon if there is one of that name, else
/// `default`: all else of a token may be a password.
pub(crate) fn note_failed_token(server: &Server, info: &ClientInfo, token: &[u8]) {
    let name = token.iter().position(|byte| *byte == b':').map(|colon| &token[..colon]);
    let name = name.filter(|name| server.acl.user(name).is_some()).unwrap_or(acl::DEFAULT);
    log(server, info, (Reason::Auth, Context::TopLevel), b"HTTP", name);
}

/// Logs a client in. `word`: the command's name as the client sent it. Errors: the user or the password is
/// wrong.
pub(crate) fn log_in(act: &mut Act<'_, '_>, word: &[u8], name: &[u8], password: &[u8]) -> Result<(), Error> {
    let Some(user) = act.server.acl.admits(name, password) else {
        act.local.log.recorder.add(observe::stats::Counter::AuthDenied, 1);
        let context = match (act.in_script, act.in_multi) {
            (true, _) => Context::Lua,
            (_, true) => Context::Multi,
            _ => Context::TopLevel,
        };
        log(act.server, &act.session.info, (Reason::Auth, context), word, name);
        return Err(Error::new("WRONGPASS invalid username-password pair or user is disabled."));
    };
    act.session.become_user(user);
    act.session.login.authenticated = true;
    Ok(())
}

/// Makes a client the first user that its verified certificate names and that may log in; if there is none, it
/// stays as it is.
pub fn log_in_by_certificate(server: &Server, session: &mut Session, names: &[Vec<u8>]) {
    if let Some(user) = names.iter().filter_map(|name| server.acl.user(name)).find(|user| user.is_on()) {
        session.become_user(user);
        session.login.authenticated = true;
    }
}

/// Asks for a queued transaction again if the user is another one than when it was queued (A2). False: the check
/// goes on in the next turn (A4). Errors: it may not be run.
pub(crate) fn check_queued(server: &Server, session: &Session, multi: &mut Multi) -> Result<bool, Error> {
    let user = session.login.user.user();
    if user.is_powerful() || multi.is_of(user) {
        return Ok(true);
    }
    if multi.queue.words() > WORDS_AGAIN {
        return Err(Error::new(
            "EXECABORT Transaction discarded because of: NOPERM ACLs rules changed, and it is too long to be checked again",
        ));
    }
    let again = acl::AskingAgain::of(&mut multi.again, user, session.db);
    match again.advance(multi.queue.iter(), server.keyspace.databases()) {
        None => Ok(false),
        Some(Ok(())) => Ok(true),
        Some(Err((command, args, denied))) => {
            note(server, &session.info, user, Context::Multi, (command, args), denied);
            Err(Error::from(format!(
                "EXECABORT Transaction discarded because of: NOPERM ACLs rules changed between the moment the \
                 transaction was accumulated and the EXEC call: {}",
                denied.reason()
            )))
        }
    }
}

/// Whether a client has to be closed after users changed: its user is no more, or it hears what it may not
/// hear any more. O(subscriptions · patterns), bounded.
fn is_to_be_closed(server: &Server, session: &mut Session) -> bool {
    let is_let_in = session.login.is_let_in(&server.acl);
    if !session.login.user.refresh(&server.acl, is_let_in) {
        return true;
    }
    let (user, subs) = (session.login.user.user(), &session.subs);
    let channels = subs.channels.iter().chain(&subs.shard_channels);
    (!subs.monitor.is_empty() && !user.may_call("monitor"))
        || !user.may_hear_all(channels, subs.patterns.iter(), HEARD)
}

/// A client looks at itself after users changed. True: it is to be closed. `session`: None if it has moved to
/// another loop, or is gone.
pub(crate) fn review(server: &Server, client: u64, session: Option<&mut Session>) -> bool {
    let Some(session) = session else {
        let info = server.observe.clients.get(client);
        let loop_id = info.map(|info| info.loop_id.load(Ordering::Acquire) as usize);
        // A client on its way to this loop comes with the mail, and this letter behind it.
        loop_id.into_iter().for_each(|to| server.send(to, Mail::Review { client }));
        return false;
    };
    let closes = is_to_be_closed(server, session);
    if closes {
        session.info.killed.store(true, Ordering::Relaxed);
    }
    closes
}

/// Clients that are told in one slice.
const SLICE: usize = 32;

/// Tells the clients of some users to look at themselves, a slice at a time; the answer comes at the end (A3).
pub(crate) struct Reviewing {
    server: Arc<Server>,
    /// None: the clients of all users.
    users: Option<Vec<Vec<u8>>>,
    /// The client that gets the answer and closes then.
    me: Option<u64>,
    answer: Vec<u8>,
    after: u64,
}

impl Reviewing {
    pub(crate) fn new(server: &Arc<Server>, users: Option<Vec<Vec<u8>>>, answer: Reply) -> Reviewing {
        Reviewing { server: server.clone(), users, me: None, answer: answer.into_bytes(), after: 0 }
    }

    /// Leaves out the client that removed its own user.
    pub(crate) fn but(self, me: Option<u64>) -> Reviewing {
        Reviewing { me, ..self }
    }

    /// Tells some more clients. False: that was all. O([`SLICE`]).
    pub(crate) fn tell_some(&mut self) -> bool {
        let page = self.server.observe.clients.page(self.after, SLICE);
        let Some(last) = page.last() else { return false };
        self.after = last.id;
        for info in &page {
            let is_theirs = self.users.as_ref().is_none_or(|users| {
                let text = info.text.lock();
                users.iter().any(|user| *user == *text.user)
            });
            if is_theirs && self.me != Some(info.id) {
                let loop_id = info.loop_id.load(Ordering::Acquire) as usize;
                self.server.send(loop_id, Mail::Review { client: info.id });
            }
        }
        true
    }
}

impl Stream for Reviewing {
    fn fill(&mut self, out: &mut Reply, _: usize) -> bool {
        let more = self.tell_some();
        if !more {
            out.encoded(&std::mem::take(&mut self.answer));
        }
        more
    }

    fn has_effects(&self) -> bool {
        true
    }
}

impl Session {
    /// The client acts as this user from now on.
    pub(crate) fn become_user(&mut self, user: Arc<User>) {
        self.info.text.lock().user = user.name().to_vec();
        self.login.user = acl::Identity::of(user);
        self.half.asking = None;
    }

    /// The client is `default` again, as when it connected.
    pub(crate) fn log_out(&mut self, server: &Server) {
        self.become_user(server.acl.everybody());
        self.login.authenticated = server.acl.is_open();
        self.login.guest_since_ms = stdx::clock::wall_ms();
    }
}
