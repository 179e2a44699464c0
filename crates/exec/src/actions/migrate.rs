//! MIGRATE: moves keys to another Redis, Valkey or Evenkeel.
//!
//! ```text
//! loop: job ─► worker: keys at its snapshot ─► own connection: TLS, AUTH, SELECT ─► payloads ─► RESTORE …
//!           ─► loop: removes the keys that were taken; if a key changed meanwhile, all once more, replacing
//! ```
//!
//! - M1: no other client waits for the other server: the worker gives its turn back while it waits, and no
//!   loop takes part.
//! - M2: a key is removed only if it is unchanged since it was sent. A change in between makes the job start
//!   over. As with all long writes, writers of its keys wait once the job has lost several races.
//! - M3: at most [`AT_ONCE`] moves run at a time: each holds a snapshot and a thread, which are few.
//! - M4: [`AHEAD`] bytes of keys are sent before the replies to them are read, so small keys do not cost a
//!   round trip each. A key is removed once the other server has confirmed it, even if others fail.
//! - M5: hashes with expiring fields are written in the other server's format. HELLO, which every user may
//!   call, tells which one; it is sent only for such hashes. A server without HELLO reads no format of them,
//!   and its own error says so.
//! - M6: the connection is encrypted as the server is configured (`tls-cluster`, as in Redis). The whole
//!   handshake has the time of one step. An error of TLS says more than Redis's.

use crate::act::{Act, PLAIN, Row};
use crate::outgoing::{self, Stream};
use command::Flow;
use command::options::{int, is};
use command::{Cx, Error, registry, serial};
use dial::Conn;
use keyspace::{Class, Owned};
use rdb::Dialect;
use resp::{Args, Frame, put_request};
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(super) const ACTIONS: &[Row] = &[Row("migrate", migrate, PLAIN)];

/// Most moves under way at a time (M3).
const AT_ONCE: usize = 16;

/// Bytes that are sent before replies are read (M4). The other server may have to buffer as many.
const AHEAD: usize = 256 * 1024;

/// Bytes of the longest reply that is read from the other server.
const REPLY_MAX: usize = 16 * 1024;

/// The version of Redis that introduced expiring fields.
const FIELDS_EXPIRE_FROM: (u32, u32) = (7, 4);

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// The arguments of MIGRATE.
struct Plan<'a> {
    host: &'a str,
    /// The port. None: a number below zero, which is not tried.
    port: Option<u16>,
    keys: Args<'a>,
    db: i64,
    timeout: Duration,
    copy: bool,
    replace: bool,
    auth: Option<(Option<&'a [u8]>, &'a [u8])>,
}

impl<'a> Plan<'a> {
    fn parse(args: Args<'a>) -> Result<Plan<'a>, Error> {
        let mut plan = Plan {
            host: std::str::from_utf8(args.at(1)).unwrap_or_default(),
            // As in Redis, a word that is no port counts as port 0, on which no server listens.
            port: int(args.at(2))
                .map_or(Some(0), |port| (port >= 0).then(|| u16::try_from(port).unwrap_or(0))),
            keys: args.from(3).to(1),
            db: 0,
            timeout: Duration::ZERO,
            copy: false,
            replace: false,
            auth: None,
        };
        let mut i = 6;
        while i < args.len() {
            let (word, more) = (args.at(i), args.len() - i - 1);
            if is(word, "copy") {
                plan.copy = true;
            } else if is(word, "replace") {
                plan.replace = true;
            } else if is(word, "auth") && more >= 1 {
                plan.auth = Some((None, args.at(i + 1)));
                i += 1;
            } else if is(word, "auth2") && more >= 2 {
                plan.auth = Some((Some(args.at(i + 1)), args.at(i + 2)));
                i += 2;
            } else if is(word, "keys") {
                if !args.at(3).is_empty() {
                    let text = "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string";
                    return Err(Error::new(text));
                }
                plan.keys = args.from(i + 1);
                break;
            } else {
                return Err(Error::Syntax);
            }
            i += 1;
        }
        let timeout_ms = int(args.at(5))?;
        plan.timeout = Duration::from_millis(if timeout_ms <= 0 { 1000 } else { timeout_ms as u64 });
        plan.db = int(args.at(4))?;
        Ok(plan)
    }
}

/// `MIGRATE host port key|"" destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2 username
/// password] [KEYS key ...]`. The time-out, in milliseconds, holds for each step. Over TLS if `tls-cluster`
/// says so. O(bytes of the values), on a worker. Errors: IOERR if the other server does not answer, its own
/// objections, syntax, in a transaction or script.
fn migrate(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    Plan::parse(args)?;
    if act.in_multi || act.in_script {
        return Err(Error::new(
            "ERR MIGRATE waits for another server, which transactions and scripts cannot do",
        ));
    }
    let command = registry::find(b"migrate").ok_or(Error::Syntax)?;
    Ok(crate::hand_on::start(act, command, run, args))
}

/// Moves the keys: the part on a worker, over an overlay.
fn run(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let mut plan = Plan::parse(args)?;
    // Keys that an earlier attempt sent are there already.
    plan.replace |= cx.caller.attempt > 0;
    let found = plan.keys.iter().filter_map(|key| Some((key, cx.view.owned(key)?)));
    let found: Vec<(&[u8], Owned)> = found.collect();
    if found.is_empty() {
        cx.out.simple("NOKEY");
        return Ok(());
    }
    let Some(_place) = Place::take() else {
        return Err(Error::new("TRYAGAIN Too many MIGRATE commands are under way"));
    };
    let asks = found.iter().any(|(_, owned)| serial::has_dialects(&owned.value));
    let (taken, failure) = match cx.aside(|| Link::open(&plan, asks)) {
        Err(failure) => (Vec::new(), Some(failure)),
        Ok(mut link) => {
            let sent = parcels(cx, &found, link.dialect)?;
            if sent.is_empty() {
                cx.out.simple("NOKEY");
                return Ok(());
            }
            cx.aside(|| link.transfer(&plan, &sent))
        }
    };
    if !plan.copy && !taken.is_empty() {
        let mut words: Vec<&[u8]> = vec![b"DEL"];
        for key in taken {
            cx.view.remove(key);
            cx.view.changed(key, Class::Generic, "del");
            words.push(key);
        }
        cx.effect(&words);
    }
    // The error is a reply here: the keys that the other server took are removed all the same.
    match failure {
        None => cx.out.ok(),
        Some(text) => cx.out.error(&text),
    }
    Ok(())
}

/// A key, its time to live (0: for ever), and its payload.
struct Parcel<'a> {
    key: &'a [u8],
    ttl_ms: u64,
    payload: Vec<u8>,
}

/// Serializes values in the other server's format. A hash whose fields have all expired is left out, and so are
/// the producers of streams: most servers refuse these.
fn parcels<'a>(
    cx: &mut Cx<'_, '_>,
    found: &[(&'a [u8], Owned)],
    dialect: Dialect,
) -> Result<Vec<Parcel<'a>>, Error> {
    let now_ms = cx.view.now_ms();
    let mut parcels = Vec::with_capacity(found.len());
    for (key, owned) in found {
        let ttl_ms = owned.expire_ms.map_or(0, |at| at.saturating_sub(now_ms).max(1));
        let value = owned.value.without_producers();
        let payload = serial::encode_for(dialect, &value, now_ms, &mut |steps| cx.charge(steps))?;
        parcels.extend(payload.map(|payload| Parcel { key, ttl_ms, payload }));
    }
    Ok(parcels)
}

/// One of the [`AT_ONCE`] places; dropping it gives the place back.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        let more = |n: usize| (n < AT_ONCE).then_some(n + 1);
        UNDER_WAY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

const CONNECTING: &str = "IOERR error or timeout connecting to the client";
const WRITING: &str = "IOERR error or timeout writing to target instance";
const READING: &str = "IOERR error or timeout reading to target instance";

/// A connection on which the other server has accepted the login and the database.
struct Link {
    line: Conn,
    /// The other server's format, if it was asked.
    dialect: Dialect,
}

impl Link {
    /// Errors: what went wrong, or the other server's objection.
    fn open(plan: &Plan<'_>, asks: bool) -> Result<Link, String> {
        let stream = outgoing::wrap(connect(plan)?, plan.host, plan.timeout); // M6
        let stream = stream.map_err(|why| format!("{CONNECTING}: {why}"))?;
        let mut line = Conn::over(stream, plan.timeout).map_err(|_| CONNECTING)?;
        line.set_reply_max(REPLY_MAX);
        greet(&mut line, plan, asks).map_err(|e| failed(WRITING, &e))?;
        let mut refused = None;
        for _ in 0..1 + usize::from(plan.auth.is_some()) {
            refused = refused.or(answer(&mut line)?);
        }
        if let Some(error) = refused {
            return Err(error);
        }
        let dialect = if asks {
            dialect_of(&line.reply_within(plan.timeout).map_err(|_| READING)?)
        } else {
            Dialect::default()
        };
        Ok(Link { line, dialect })
    }

    /// Sends everything. Gives the keys that the other server took, and the first failure.
    fn transfer<'a>(&mut self, plan: &Plan<'_>, parcels: &[Parcel<'a>]) -> (Vec<&'a [u8]>, Option<String>) {
        let mut taken = Vec::new();
        let outcome = self.converse(plan, parcels, &mut taken);
        (taken, outcome.err())
    }

    fn converse<'a>(
        &mut self,
        plan: &Plan<'_>,
        parcels: &[Parcel<'a>],
        taken: &mut Vec<&'a [u8]>,
    ) -> Result<(), String> {
        let mut refused = None;
        let mut batch = Vec::new();
        let (mut from, mut to) = (0, 0);
        // Writing and reading in step, so that neither side's buffers fill up while both write.
        while let Some(parcel) = parcels.get(to) {
            hand_over(plan, parcel, &mut batch);
            to += 1;
            if batch.len() < AHEAD && to < parcels.len() {
                continue;
            }
            let sent = self.line.send(&batch);
            // Keys of a batch that was not sent whole may have been taken: their replies tell.
            for parcel in &parcels[from..to] {
                match answer(&mut self.line) {
                    Ok(None) => taken.push(parcel.key),
                    Ok(error) => refused = refused.or(error),
                    Err(_) if sent.is_err() => break,
                    // An objection read before says more than this failure.
                    Err(failure) => return Err(refused.unwrap_or(failure)),
                }
            }
            sent.map_err(|e| refused.clone().unwrap_or_else(|| failed(WRITING, &e)))?;
            from = to;
            batch.clear();
        }
        refused.map_or(Ok(()), Err)
    }
}

fn connect(plan: &Plan<'_>) -> Result<TcpStream, String> {
    let port = plan.port.ok_or(CONNECTING)?;
    let found: Vec<_> = (plan.host, port).to_socket_addrs().map_err(|_| CONNECTING)?.collect();
    // Redis notices when it writes.
    let socket = dial::tcp(&found[..], plan.timeout).map_err(|_| WRITING)?;
    let limited = socket.limit_reads(plan.timeout).and(socket.limit_writes(plan.timeout));
    limited.map(|()| socket).map_err(|_| CONNECTING.to_owned())
}

fn greet(line: &mut Conn, plan: &Plan<'_>, asks: bool) -> Result<(), dial::Error> {
    let mut out = Vec::new();
    match plan.auth {
        None => {}
        Some((None, password)) => put_request::<&[u8]>(&mut out, &[b"AUTH", password]),
        Some((Some(user), password)) => put_request::<&[u8]>(&mut out, &[b"AUTH", user, password]),
    }
    put_request::<&[u8]>(&mut out, &[b"SELECT", plan.db.to_string().as_bytes()]);
    if asks {
        put_request(&mut out, &[b"HELLO"]);
    }
    line.send(&out)
}

/// The text of a failure; that of TLS is added (M6).
fn failed(text: &str, e: &dial::Error) -> String {
    match e {
        dial::Error::Lost(e) if e.kind() == ErrorKind::InvalidData => format!("{text}: TLS: {e}"),
        _ => text.to_owned(),
    }
}

fn hand_over(plan: &Plan<'_>, parcel: &Parcel<'_>, out: &mut Vec<u8>) {
    let ttl = parcel.ttl_ms.to_string();
    let mut words: Vec<&[u8]> = vec![b"RESTORE", parcel.key, ttl.as_bytes(), &parcel.payload];
    if plan.replace {
        words.push(b"REPLACE");
    }
    put_request(out, &words);
}

/// Reads one reply. Gives the other server's objection, if it is one.
fn answer(line: &mut Conn) -> Result<Option<String>, String> {
    match line.reply() {
        Ok(error @ Frame::Error(_)) => {
            Ok(Some(format!("ERR Target instance replied with error: {}", error.lossy())))
        }
        Ok(Frame::Simple(_)) => Ok(None),
        Ok(_) => Err(READING.to_owned()),
        Err(e) => Err(failed(READING, &e)),
    }
}

/// The format of a server that answers HELLO so (M5).
fn dialect_of(hello: &Frame) -> Dialect {
    let pairs = hello.elements().unwrap_or_default().chunks_exact(2);
    let told = |name: &[u8]| {
        let pair = pairs.clone().find(|pair| pair[0].text() == Some(name))?;
        pair[1].text()
    };
    // A Valkey that is configured to pass for Redis reports a version without expiring fields.
    let is_valkey = told(b"server") == Some(b"valkey")
        || told(b"version").and_then(version).is_some_and(|version| version < FIELDS_EXPIRE_FROM);
    if is_valkey { Dialect::Valkey } else { Dialect::Redis }
}

/// The first two numbers of a version.
fn version(text: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = std::str::from_utf8(text).ok()?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_hello_tells_what_it_reads() {
        let hello = |server: &str, version: &str| {
            let words = ["server", server, "version", version, "proto"];
            let words = words.map(|word| Frame::Bulk(word.as_bytes().to_vec()));
            Frame::Array(words.into_iter().chain([Frame::Int(2)]).collect())
        };
        for (server, version, dialect) in [
            ("valkey", "9.1.2", Dialect::Valkey),
            ("redis", "8.0.6", Dialect::Redis),
            ("redis", "7.4.0", Dialect::Redis),
            ("redis", "7.2.4", Dialect::Valkey),
            ("redis", "255.255.255", Dialect::Redis),
            ("other", "unstable", Dialect::Redis),
            ("redis", "7", Dialect::Redis),
        ] {
            assert_eq!(dialect_of(&hello(server, version)), dialect, "{server} {version}");
        }
        let odd = [b"server".to_vec(), b"valkey".to_vec(), vec![0xff], b"version".to_vec()];
        assert_eq!(dialect_of(&Frame::Array(odd.map(Frame::Bulk).to_vec())), Dialect::Valkey);
        let refused = Frame::Error(b"ERR unknown command".to_vec());
        for none in [refused, Frame::Null, Frame::Array(vec![Frame::Int(1)])] {
            assert_eq!(dialect_of(&none), Dialect::Redis, "{none:?}");
        }
    }
}
