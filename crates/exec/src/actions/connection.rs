//! PING, ECHO, AUTH, HELLO, SELECT, QUIT, RESET.
//!
//! A connection is the user `default` until it logs in as another one (`exec::access`).

use super::answer::aside;
use crate::Server;
use crate::access::log_in;
use crate::act::{Act, PLAIN, Row};
use crate::parts::ReplyMode;
use crate::session::flag;
use acl::DEFAULT;
use command::Error;
use command::Flow;
use observe::info::REDIS_VERSION;
use resp::Args;
use std::sync::atomic::Ordering;

pub(super) const ACTIONS: &[Row] = &[
    Row("ping", ping, PLAIN),
    Row("echo", echo, PLAIN),
    Row("auth", auth, PLAIN),
    Row("hello", hello, PLAIN),
    Row("select", select, PLAIN),
    Row("quit", quit, PLAIN),
    Row("reset", reset, PLAIN),
];

const WRONG_NAME: Error =
    Error::new("ERR Client names cannot contain spaces, newlines or special characters.");

/// `PING [message]`. A RESP2 subscriber gets an array, so that it can tell the answer from a message.
/// O(message). Errors: more words.
fn ping(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() > 2 {
        return Err(Error::Arity("ping".into()));
    }
    match args.get(1) {
        text if act.session.in_pubsub_mode() => {
            act.out.array(2);
            act.out.bulk(b"pong");
            act.out.bulk(text.unwrap_or_default());
        }
        Some(_) => return echo(act, args),
        None => act.out.simple("PONG"),
    }
    Ok(Flow::Done)
}

/// `ECHO message`. O(message), on a thread of its own for a long one.
fn echo(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if let Some(words) = act.kept.cloned() {
        return aside(act, "echo", move |out| out.bulk(words.args().at(1)));
    }
    act.out.bulk(args.at(1));
    Ok(Flow::Done)
}

/// `AUTH [username] password`. O(password). Errors: the user or the password is wrong; the user `default` has
/// no password and none was named; syntax.
fn auth(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    match args.len() {
        2 if act.server.acl.everybody().needs_no_password() => {
            return Err(Error::new(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?",
            ));
        }
        2 => log_in(act, args.at(0), DEFAULT, args.at(1))?,
        3 => log_in(act, args.at(0), args.at(1), args.at(2))?,
        _ => return Err(Error::Syntax),
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// The options of `HELLO`.
#[derive(Default)]
struct Greeting<'a> {
    resp3: Option<bool>,
    user: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

impl<'a> Greeting<'a> {
    fn parse(args: Args<'a>) -> Result<Greeting<'a>, Error> {
        let mut greeting = Greeting::default();
        let Some(version) = args.get(1) else { return Ok(greeting) };
        let version = stdx::num::parse_i64(version)
            .ok_or(Error::new("ERR Protocol version is not an integer or out of range"))?;
        if !(2..=3).contains(&version) {
            return Err(Error::new("NOPROTO unsupported protocol version"));
        }
        greeting.resp3 = Some(version == 3);
        let mut i = 2;
        while i < args.len() {
            let (option, left) = (args.at(i), args.len() - i - 1);
            if option.eq_ignore_ascii_case(b"auth") && left >= 2 {
                greeting.user = Some((args.at(i + 1), args.at(i + 2)));
                i += 3;
            } else if option.eq_ignore_ascii_case(b"setname") && left >= 1 {
                if !is_plain(args.at(i + 1)) {
                    return Err(WRONG_NAME);
                }
                greeting.name = Some(args.at(i + 1));
                i += 2;
            } else {
                let option = String::from_utf8_lossy(option);
                return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
            }
        }
        Ok(greeting)
    }
}

/// `HELLO [protover [AUTH username password] [SETNAME name]]`. O(words). Errors: another version, those of
/// AUTH and CLIENT SETNAME, syntax; the client is not logged in.
fn hello(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let greeting = Greeting::parse(args)?;
    if let Some((user, password)) = greeting.user {
        log_in(act, args.at(0), user, password)?;
    }
    if !act.session.login.is_let_in(&act.server.acl) {
        return Err(Error::new(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time",
        ));
    }
    if let Some(name) = greeting.name {
        act.session.info.text.lock().name = name.to_vec();
    }
    if let Some(resp3) = greeting.resp3 {
        speak(act, resp3);
    }
    let out = &mut *act.out;
    out.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.int(if act.session.speech.resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.int(act.session.id as i64);
    let role = if act.server.role.follows() { "replica" } else { "master" };
    let mode = if act.server.cluster.get().is_some() { "cluster" } else { "standalone" };
    for (name, value) in [("mode", mode), ("role", role)] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
    Ok(Flow::Done)
}

/// The protocol that a HELLO yet to run will choose; true: RESP3. None: it will choose none, or fail.
/// O(words)
pub(crate) fn will_speak(server: &Server, args: Args<'_>) -> Option<bool> {
    let greeting = Greeting::parse(args).ok()?;
    let known = greeting.user.is_none_or(|(user, password)| server.acl.admits(user, password).is_some());
    greeting.resp3.filter(|_| known)
}

/// Switches the version of the protocol, from this reply on.
fn speak(act: &mut Act<'_, '_>, resp3: bool) {
    act.session.speech.resp3 = resp3;
    act.session.info.resp.store(if resp3 { 3 } else { 2 }, Ordering::Relaxed);
    act.out.set_resp3(resp3);
}

/// The database that a word names. O(1). Errors: it is no number, or out of range.
pub(crate) fn database(server: &Server, word: &[u8]) -> Result<usize, Error> {
    command::keys::database(server.keyspace.databases(), word)
}

/// `SELECT index`. In a script it holds until the script's end. O(1). Errors: those of [`database`].
fn select(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let db = database(act.server, args.at(1))?;
    if let Some(view) = &mut act.view {
        view.select(db);
    }
    if !act.in_script {
        act.session.select(db);
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// `QUIT`: the connection closes behind the answer. O(1)
fn quit(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.ok();
    Ok(Flow::Close)
}

/// `RESET`: as if the connection were new; its library's name and version stay. O(watched keys +
/// subscriptions); many subscriptions end in slices.
fn reset(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let session = &mut *act.session;
    crate::multi::leave(act.server, act.local, session);
    if super::pubsub::leave_next(act.server, act.local, session) {
        return Ok(crate::held::go_on(session, act.local));
    }
    super::monitor::end(act.server, act.local, session);
    crate::tracking::end(act.server, act.local, session);
    session.select(0);
    session.log_out(act.server);
    if session.speech.reply_mode != ReplyMode::Skip {
        session.speech.reply_mode = ReplyMode::On;
    }
    session.settings.no_touch = false;
    session.copy_wish = Default::default();
    session.settings.no_evict = false;
    session.settings.imports = false;
    session.set_flag(flag::NO_TOUCH | flag::NO_EVICT | flag::IMPORTS, false);
    session.info.text.lock().name.clear();
    speak(act, false);
    act.out.simple("RESET");
    Ok(Flow::Done)
}

/// Whether a name has only characters that CLIENT LIST can show. O(name)
pub(super) fn is_plain(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_graphic)
}

/// `CLIENT SETNAME connection-name`; an empty name removes it. O(name). Errors: a character that cannot be
/// shown.
pub(super) fn set_name(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if !is_plain(args.at(2)) {
        return Err(WRONG_NAME);
    }
    act.session.info.text.lock().name = args.at(2).to_vec();
    act.out.ok();
    Ok(Flow::Done)
}
