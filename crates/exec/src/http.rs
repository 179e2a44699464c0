//! HTTP as the server answers it: whose requests they are, the command behind a path, and the page of figures.
//!
//! Which paths show which keys, and the pages' texts, are crate `pages`'s.

use crate::actions::observe::collect;
use crate::call::Flow;
use crate::fetching;
use crate::{Local, Server, Session};
use ::observe::metrics;
use acl::User;
use command::{Command, places};
use observe::info::Sections;
use pages::logins::token_of;
use resp::{Args, Reply};
use std::sync::{Arc, LazyLock};
use stdx::points::{self, Point};

pub use crate::call::execute_row;
pub use pages::logins::user_of;
pub use pages::{Found, Readiness, Shown};

/// Asks all sources for their state, for health checks. Cost: a short lock per source.
pub fn readiness(server: &Server) -> Readiness {
    pages::readiness(&server.rows)
}

/// The state of the process, for health checks: its role, and on a replica the link and how far it lags. Cost: some
/// locks for less than a microsecond.
pub fn health(server: &Server) -> Vec<(&'static str, String)> {
    let mut facts = vec![("status", "ok".to_owned())];
    match server.role.figures() {
        None => facts.push(("role", "primary".to_owned())),
        Some(following) => {
            let link = if following.is_up { "up" } else { "down" };
            facts.extend([("role", "replica".to_owned()), ("link", link.to_owned())]);
            let silent = following.down_s.filter(|_| !following.is_up).or(following.silent_s);
            facts.extend(silent.map(|seconds| ("lag_seconds", seconds.to_string())));
        }
    }
    facts
}

/// The row of EVENKEEL ITEMS, which runs even if it was renamed. Its reply is RESP3.
pub static ITEMS: LazyLock<&'static Command> = LazyLock::new(|| {
    places::all().iter().find(|row| row.name == "evenkeel|items").expect("the table has the row")
});

/// The words before the keys of [`ITEMS`].
pub const ITEMS_WORDS: [&[u8]; 2] = [b"EVENKEEL", b"ITEMS"];

/// Requests the rows of an EVENKEEL ITEMS that stands behind a waiting one, if its user may read them and
/// that is known at once.
pub fn ask_ahead(server: &Server, local: &Local, session: &Session, user: &User, args: Args<'_>) {
    let databases = server.keyspace.databases();
    if !acl::Asking::is_short(user, args)
        || user.may(acl::Call { command: &ITEMS, args, db: session.db, databases }).is_err()
    {
        return;
    }
    fetching::ask_ahead_for(server, local, session, &ITEMS, args);
}

/// Whether a request may be answered at all: its token names a user, or none is needed. Its session acts as
/// that user from then on. Counts a refusal. Cost: one hash, unless the token is that of the last request.
pub fn admits(server: &Server, local: &Local, session: &mut Session, authorization: Option<&[u8]>) -> bool {
    let generation = server.acl.generation();
    if session
        .login
        .token
        .as_ref()
        .is_some_and(|(known, seen)| *seen == generation && known == authorization.unwrap_or_default())
    {
        return true;
    }
    let Some(user) = user_of(&server.acl, authorization) else {
        refuse_login(server, local, session, token_of(authorization));
        return false;
    };
    session.become_user(user);
    session.login.token = Some((authorization.unwrap_or_default().to_vec(), generation));
    true
}

/// Counts and logs that a request let nobody in. `token`: the password, or name and password with a colon.
pub fn refuse_login(server: &Server, local: &Local, session: &mut Session, token: Option<&[u8]>) {
    session.login.token = None;
    local.log.recorder.add(observe::stats::Counter::AuthDenied, 1);
    token.into_iter().for_each(|token| crate::access::note_failed_token(server, &session.info, token));
}

/// Has a session act as this user, whom it logged in as.
pub fn act_as(session: &mut Session, user: Arc<User>) {
    session.become_user(user);
    session.login.token = None;
}

/// Whether the session's user may see the page of figures: it may run INFO.
pub fn may_see_metrics(server: &Server, session: &mut Session) -> bool {
    session.login.user.refresh(&server.acl, true) && session.login.user.user().may_call("info")
}

/// Lets the background thread collect the page of figures. It comes by mail, as a bulk string.
pub fn metrics(server: &Arc<Server>, local: &Local, session: &Session, out: &mut Reply) -> Flow {
    let (owner, loop_id, client) = (server.clone(), local.log.id, session.id);
    stdx::panics::changes();
    let sent = server.observe.background.send(move || {
        let mut out = Reply::new(true);
        match stdx::panics::contain(|| {
            points::trip(Point::Report);
            metrics_page(&owner)
        }) {
            Ok(page) => out.bulk(page.as_bytes()),
            Err(_) => out.error(work::job::BROKEN),
        }
        owner.send(loop_id, crate::mail::Mail::Reply { client, bytes: out.into_bytes(), stream: None });
    });
    if sent {
        return Flow::Parked(None);
    }
    out.error("ERR no thread could be started");
    Flow::Done
}

/// Writes the page of figures for Prometheus. Cost: that of INFO; tens of microseconds, and O(clients +
/// databases + commands).
pub fn metrics_page(server: &Server) -> String {
    let snapshot = collect(server, Sections::wanted([&b"all"[..]]));
    let mut page = metrics::page(&snapshot, &server.observe);
    pages::add_sources(&server.keyspace, &server.rows.list(), &mut page);
    page.into_text()
}
