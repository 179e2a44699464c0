//! HTTP as the server answers it: whose requests they are, the command behind a path, and the page of figures.
//!
//! Which paths show which keys, and the pages' texts, are crate `pages`'s.

use crate::actions::observe::collect;
use crate::call::{Flow, execute_row};
use crate::fetching;
use crate::{Local, Server, Session};
use ::observe::metrics;
use acl::{DEFAULT, User};
use command::{Command, places};
use observe::info::Sections;
use resp::{Args, Reply};
use std::sync::{Arc, LazyLock};
use stdx::points::{self, Point};

pub use pages::{Found, Readiness, Shown};

/// Asks all sources for their state, for health checks. Cost: a short lock per source.
pub fn readiness(server: &Server) -> Readiness {
    pages::readiness(&server.rows)
}

static ITEMS: LazyLock<&'static Command> = LazyLock::new(|| {
    places::all().iter().find(|row| row.name == "evenkeel|items").expect("the table has the row")
});

/// The words before the keys of [`items`].
pub const ITEMS_WORDS: [&[u8]; 2] = [b"EVENKEEL", b"ITEMS"];

/// Runs EVENKEEL ITEMS, even if it was renamed. The reply is RESP3.
#[inline]
pub fn items(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    execute_row(server, local, session, &ITEMS, args, out)
}

/// Requests the rows of an EVENKEEL ITEMS that stands behind a waiting one, if its user may read them.
pub fn ask_ahead(server: &Server, local: &Local, session: &Session, user: &User, args: Args<'_>) {
    let databases = server.keyspace.databases();
    if user.may(acl::Call { command: &ITEMS, args, db: session.db, databases }).is_err() {
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
    let Some(user) = user_of(server, authorization) else {
        session.login.token = None;
        local.log.recorder.add(observe::stats::Counter::AuthDenied, 1);
        if let Some(token) = token_of(authorization) {
            crate::access::note_failed_token(server, &session.info, token);
        }
        return false;
    };
    session.become_user(user);
    session.login.token = Some((authorization.unwrap_or_default().to_vec(), generation));
    true
}

/// The user of a request: of a token `name:password`, or `default` by its password, or by none if it needs
/// none. Cost: two hashes at most.
pub fn user_of(server: &Server, authorization: Option<&[u8]>) -> Option<Arc<User>> {
    let acl = &server.acl;
    let Some(token) = token_of(authorization) else { return acl.is_open().then(|| acl.everybody()) };
    let colon = token.iter().position(|byte| *byte == b':');
    let named = colon.and_then(|at| acl.admits(&token[..at], &token[at + 1..]));
    named.or_else(|| acl.admits(DEFAULT, token))
}

/// The token of an Authorization header.
fn token_of(authorization: Option<&[u8]>) -> Option<&[u8]> {
    let (scheme, token) = authorization?.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Whether the session's user may see the page of figures: it may run INFO.
pub fn may_see_metrics(server: &Server, session: &mut Session) -> bool {
    session.login.user.refresh(&server.acl, true) && session.login.user.user().may_call("info")
}

/// Lets the clerk collect the page of figures. It comes by mail, as a bulk string.
pub fn metrics(server: &Arc<Server>, local: &Local, session: &Session, out: &mut Reply) -> Flow {
    let (owner, loop_id, client) = (server.clone(), local.log.id, session.id);
    stdx::panics::changes();
    let sent = server.observe.clerk.send(move || {
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
fn metrics_page(server: &Server) -> String {
    let snapshot = collect(server, Sections::wanted([&b"all"[..]]));
    let mut page = metrics::page(&snapshot, &server.observe.stats.registry);
    pages::add_sources(&server.keyspace, &server.rows.list(), &mut page);
    page.into_text()
}
