//! `evenkeel ping`: whether a server is alive and has its data, for health checks.
//!
//! A health check needs no password: a server that asks for one is alive. It asks before it tells whether it
//! still loads its data, so a check of readiness logs in.

use crate::advice;
use crate::wire::failed;
use clap::{ArgAction, ArgMatches, Parser};
use dial::Frame;
use reach::{Address, End, Options, Server};
use std::sync::mpsc;
use std::time::Duration;

/// Most bytes of a reply.
const REPLY_MAX: usize = 64 << 10;
/// Error replies of a server that is alive and serves others, by their first word.
const ALIVE: [&[u8]; 4] = [b"NOAUTH", b"NOPERM", b"MASTERDOWN", b"BUSY"];

/// Ask a server for a sign of life: prints PONG and exits with 0, or says why not and exits with 1.
///
/// A server that answers NOAUTH, NOPERM, MASTERDOWN or BUSY is alive too: its answer is printed, and the exit
/// code is 0. LOADING is 1. A server that wants a password asks for it before it says LOADING, so name one
/// (--password-file) where that matters.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "evenkeel ping",
    bin_name = "evenkeel ping",
    disable_version_flag = true,
    disable_help_flag = true
)]
pub struct Ping {
    /// The server: host:port, a URI as for -u, or the path of a unix socket [default: 127.0.0.1:6379]
    #[arg(value_name = "SERVER")]
    pub address: Option<String>,
    #[command(flatten)]
    pub server: Server,
    /// Seconds after which the server counts as silent, for everything together
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Duration,
    /// Print this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

fn seconds(word: &str) -> Result<Duration, String> {
    let wrong = || "not a number of seconds above 0 and below 100000".to_owned();
    let seconds: f64 = word.parse().map_err(|_| wrong())?;
    let is_fit = (0.001..100_000.0).contains(&seconds);
    if is_fit { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

impl Options for Ping {
    const ELSEWHERE: &[(&'static str, &'static str)] = &[("--key", "--cert-key")];

    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.server.settle(matches)?;
        self.end().map(drop)
    }
}

impl Ping {
    /// The server that is meant. Errors: options that contradict each other.
    fn end(&self) -> Result<End, String> {
        self.server.end(self.address.as_deref().map(|word| ("SERVER", word)), "", "SERVER")
    }

    /// The address. Reads the files of TLS. Errors: they are wrong.
    fn address(&self) -> Result<Address, String> {
        let Address { server, db } = self.end()?.address(self.timeout)?;
        Ok(Address { server: dial::Address { connect: self.timeout, ..server }, db })
    }
}

/// Asks once, and returns the line to print. Waits at most for `timeout` in all, names included. Errors: a
/// sentence why the server does not count as alive.
pub fn run(options: &Ping) -> Result<String, String> {
    let address = options.address()?;
    let place = address.server.place.clone();
    // On a thread of its own, as looking up a name has no limit of time.
    let (tell, told) = mpsc::channel();
    let asking = std::thread::Builder::new().spawn(move || tell.send(ask(&address)));
    asking.map_err(|e| format!("cannot ask {place}: {e}"))?;
    let late = |_| Err(format!("{place} does not answer within {} s", options.timeout.as_secs_f64()));
    told.recv_timeout(options.timeout).unwrap_or_else(late)
}

fn ask(Address { server, db }: &Address) -> Result<String, String> {
    let (place, is_plain) = (&server.place, server.tls.is_none());
    let said = dial::Conn::open(server).and_then(|mut conn| {
        conn.set_reply_max(REPLY_MAX);
        match db {
            0 => conn.call(&["PING"]),
            db => match conn.call(&["SELECT", &db.to_string()])? {
                refusal @ Frame::Error(_) => Ok(refusal),
                _ => conn.call(&["PING"]),
            },
        }
    });
    judged(place, said.map_err(|e| failed(place, is_plain, e))?)
}

/// The line to print for a reply to PING or SELECT. Errors: the reply shows no server that is alive and has its
/// data.
fn judged(place: &str, reply: Frame) -> Result<String, String> {
    match reply {
        Frame::Simple(text) if text == b"PONG" => Ok("PONG".to_owned()),
        Frame::Error(text) => {
            let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
            if ALIVE.contains(&code) {
                return Ok(dial::shown(&text));
            }
            let plain = || format!("{place} answers '{}'", dial::shown(&text));
            Err(advice::about_server(place, &text).unwrap_or_else(plain))
        }
        _ => Err(format!("{place} answers PING with something else than PONG")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reach::read;
    use std::ffi::OsString;

    /// The place that a command line names, or the error.
    fn place(words: &str) -> String {
        let args: Vec<OsString> = format!("ping {words}").split_whitespace().map(OsString::from).collect();
        let read = read::<Ping>(&args).map_err(|error| error.to_string());
        read.and_then(|options| options.address()).map_or_else(|why| why, |address| address.server.place)
    }

    #[test]
    fn the_server_is_named_in_each_usual_way() {
        for (words, named) in [
            ("", "127.0.0.1:6379"),
            ("--host ::1 --port 7000", "[::1]:7000"),
            ("-h h -p 7000", "h:7000"),
            ("h:7000 --timeout 0.5", "h:7000"),
            ("redis://ann:pw@h/0", "h:6379"),
            ("-s evenkeel.sock", "./evenkeel.sock"),
            ("/run/evenkeel.sock", "/run/evenkeel.sock"),
        ] {
            assert_eq!(place(words), named, "{words}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for (words, why) in [
            ("h --port 1", "SERVER and -p both name the server"),
            ("--host h -s /a", "-s and -h both name the server"),
            ("--user ann", "--user needs --password"),
            ("redis://x:pw@h --password-file /dev/null", "the URI has a password"),
            ("-a pw --password-file f", "leave out one"),
            ("--password-file /nowhere/f", "--password-file /nowhere/f: No such file"),
            ("--cacert f", "--cacert is for TLS: say --tls as well"),
            ("--timeout 0", "not a number of seconds"),
            ("--timeout NaN", "not a number of seconds"),
            ("--hostname h", "'--host'"),
        ] {
            let said = place(words);
            assert!(said.contains(why), "{words}: {said}");
        }
    }

    #[test]
    fn a_server_that_wants_a_password_is_alive_and_one_that_loads_is_not_ready() {
        let judge = |reply| judged("here:1", reply);
        assert_eq!(judge(Frame::Simple(b"PONG".to_vec())), Ok("PONG".into()));
        let error = |text: &str| Frame::Error(text.as_bytes().to_vec());
        let wants = "NOAUTH Authentication required.";
        assert_eq!(judge(error(wants)), Ok(wants.into()));
        for text in ["NOPERM x", "MASTERDOWN x", "BUSY x"] {
            assert_eq!(judge(error(text)), Ok(text.into()));
        }
        for text in ["LOADING x", "DENIED x", "ERR max number of clients reached", "NOAUTHX", ""] {
            let why = judge(error(text)).expect_err(text);
            assert!(why.starts_with(&format!("here:1 answers '{text}'")), "{why}");
        }
        assert!(judge(Frame::Simple(b"OK".to_vec())).is_err());
        assert_eq!(judge(error("NOAUTH \x1b[2J")), Ok("NOAUTH \\u{1b}[2J".into()));
    }
}
