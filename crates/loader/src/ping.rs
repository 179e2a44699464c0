//! `evenkeel ping`: whether a server is alive and has its data, for health checks.
//!
//! A health check needs no password: a server that asks for one is alive. It asks before it tells whether it
//! still loads its data, so a check of readiness logs in.

use crate::advice;
use crate::wire::failed;
use clap::{ArgAction, ArgMatches, Parser};
use dial::Frame;
use reach::{End, Named, Options, Words, is_of_env};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Most bytes read of a file with a password.
const PASSWORD_MAX: u64 = 64 << 10;
/// Most bytes of a reply.
const REPLY_MAX: usize = 64 << 10;
/// Error replies of a server that is alive and serves others, by their first word.
const ALIVE: [&[u8]; 4] = [b"NOAUTH", b"NOPERM", b"MASTERDOWN", b"BUSY"];

/// Ask a server for a sign of life: prints PONG and exits with 0, or says why not and exits with 1.
///
/// A server that answers NOAUTH, NOPERM, MASTERDOWN or BUSY is alive too: its answer is printed, and the exit
/// code is 0. LOADING is 1. A server that wants a password asks for it before it says LOADING, so name one
/// (--pass-file) where that matters.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "evenkeel ping",
    bin_name = "evenkeel ping",
    disable_version_flag = true,
    disable_help_flag = true
)]
pub struct Ping {
    /// The server: host:port, redis://[user:password@]host[:port], rediss:// for TLS, or the path of a unix
    /// socket [default: 127.0.0.1:6379]
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,
    /// Its host
    #[arg(short = 'h', long, value_name = "HOST", conflicts_with_all = ["server", "socket"])]
    pub host: Option<String>,
    /// Its port
    #[arg(short = 'p', long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with_all = ["server", "socket"])]
    pub port: Option<u16>,
    /// Its unix socket
    #[arg(short = 's', long, value_name = "SOCKET", conflicts_with = "server")]
    pub socket: Option<String>,
    /// User for AUTH
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Password for AUTH
    #[arg(
        short = 'a',
        long,
        visible_alias = "pass",
        value_name = "PASSWORD",
        env = "EVENKEEL_PASSWORD",
        hide_env_values = true
    )]
    pub password: Option<String>,
    #[arg(skip)]
    password_of_env: bool,
    /// File whose first line is the password for AUTH
    #[arg(long, value_name = "FILE")]
    pub pass_file: Option<PathBuf>,
    /// Encrypt with TLS
    #[arg(long)]
    pub tls: bool,
    /// Certificates, in PEM, of which the server's must come from one (default: the system's)
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Certificate of this client, in PEM
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    pub cert: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub cert_key: Option<PathBuf>,
    /// Take any certificate of the server
    #[arg(long, conflicts_with = "cacert")]
    pub insecure: bool,
    /// Name that the server is asked for and that its certificate must have (default: the host)
    #[arg(long, value_name = "HOST")]
    pub sni: Option<String>,
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
    const ELSEWHERE: &[(&'static str, &'static str)] = &[
        ("--hostname", "--host"),
        ("--uri", "the server's URI is named without an option"),
        ("--url", "the server's URI is named without an option"),
        ("--username", "--user"),
        ("--password-file", "--pass-file"),
        ("--key", "--cert-key"),
    ];

    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.password_of_env = is_of_env(matches, "password");
        self.end(self.password.clone()).map(drop)
    }
}

impl Ping {
    /// The server that is meant, with this password. Errors: options that contradict each other.
    fn end(&self, password: Option<String>) -> Result<End, String> {
        let named = match (&self.server, &self.socket) {
            (Some(word), _) => Named::of_word(word)?,
            (_, Some(path)) => Named::of_socket(path),
            _ => Named::of_host(self.host.as_deref(), self.port)?,
        };
        let is_said = self.password.is_some() && !self.password_of_env;
        if self.pass_file.is_some() && (is_said || named.password.is_some()) {
            return Err("--pass-file is one way to say the password: leave out the other".to_owned());
        }
        let has_password = password.is_some() || named.password.is_some() || self.pass_file.is_some();
        if self.user.is_some() && !has_password {
            return Err("--user needs a password: --pass-file FILE, or EVENKEEL_PASSWORD".to_owned());
        }
        let words = Words {
            cacert: self.cacert.clone(),
            cert: self.cert.clone(),
            cert_key: self.cert_key.clone(),
            insecure: self.insecure,
            sni: self.sni.clone(),
        };
        let password = password.as_deref().map(|password| (password, self.password_of_env));
        End::of(named, "--", self.user.as_deref(), password, None, self.tls, words)
    }

    /// The address. Reads the files of the password and of TLS. Errors: they are wrong.
    fn address(&self) -> Result<dial::Address, String> {
        let password = match &self.pass_file {
            Some(file) => Some(first_line(file)?),
            None => self.password.clone(),
        };
        let address = self.end(password)?.address(self.timeout)?.server;
        Ok(dial::Address { connect: self.timeout, ..address })
    }
}

/// The first line of a file, without its end. Errors: it cannot be read, or is no text.
fn first_line(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file);
    opened
        .and_then(|file| file.take(PASSWORD_MAX).read_to_string(&mut text))
        .map_err(|e| format!("--pass-file {}: {e}", file.display()))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Asks once, and returns the line to print. Waits at most for `timeout` in all, names included. Errors: a
/// sentence why the server does not count as alive.
pub fn run(options: &Ping) -> Result<String, String> {
    let address = options.address()?;
    let place = address.place.clone();
    // On a thread of its own, as looking up a name has no limit of time.
    let (tell, told) = mpsc::channel();
    let asking = std::thread::Builder::new().spawn(move || tell.send(ask(&address)));
    asking.map_err(|e| format!("cannot ask {place}: {e}"))?;
    let late = |_| Err(format!("{place} does not answer within {} s", options.timeout.as_secs_f64()));
    told.recv_timeout(options.timeout).unwrap_or_else(late)
}

fn ask(address: &dial::Address) -> Result<String, String> {
    let (place, is_plain) = (&address.place, address.tls.is_none());
    let said = dial::Conn::open(address).and_then(|mut conn| {
        conn.set_reply_max(REPLY_MAX);
        conn.call(&["PING"])
    });
    judged(place, said.map_err(|e| failed(place, is_plain, e))?)
}

/// The line to print for a reply to PING. Errors: the reply shows no server that is alive and has its data.
fn judged(place: &str, reply: Frame) -> Result<String, String> {
    match reply {
        Frame::Simple(text) if text == b"PONG" => Ok("PONG".to_owned()),
        Frame::Error(text) => {
            let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
            if ALIVE.contains(&code) {
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
            let plain = || format!("{place} answers '{}'", String::from_utf8_lossy(&text));
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
        read.and_then(|options| options.address()).map_or_else(|why| why, |address| address.place)
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
            ("h --port 1", "cannot be used with"),
            ("--host h -s /a", "cannot be used with"),
            ("--user ann", "--user needs a password"),
            ("redis://x:pw@h --pass-file f", "leave out the other"),
            ("-a pw --pass-file f", "leave out the other"),
            ("--pass-file /nowhere/f", "--pass-file /nowhere/f: No such file"),
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
    }
}
