//! The command line of `evenkeel bench`.

use crate::endpoint::Endpoint;
use crate::stories;
use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Parser};
use reach::{End, Named, Words as TlsWords, is_of_env};
use std::path::PathBuf;
use std::time::Duration;

/// The beginning of all keys that are written.
pub const PREFIX: &str = "evenkeel-bench:";

/// Measure what one client's long work costs the others: on a server of its own, or at any address that speaks
/// Redis's protocol.
#[derive(Parser, Clone, Debug)]
#[command(name = "evenkeel bench", bin_name = "evenkeel bench", disable_version_flag = true)]
#[command(
    after_help = "Keys begin with evenkeel-bench: and are removed afterwards. docs/bench.md has the stories, the \
                        figures and the form of --json."
)]
pub struct Bench {
    /// Stories to measure; none: the five stories blacklist, items, copy, resize and batch
    #[arg(value_name = "STORY", value_parser = PossibleValuesParser::new(stories::names()))]
    pub stories: Vec<String>,
    /// The server to measure: host:port, a URI as redis://user:password@host:port/db, or the path of a unix
    /// socket (default: this program, started for the run on a port of this machine)
    #[arg(long, value_name = "SERVER")]
    pub against: Option<String>,
    /// A second server, measured in turns with the first
    #[arg(long, value_name = "SERVER")]
    pub beside: Option<String>,
    /// Write keys to a server although it holds others
    #[arg(long)]
    pub yes: bool,
    /// Seconds that each story is watched on each server in each round
    #[arg(long, default_value_t = 4.0, value_name = "SECONDS", value_parser = positive)]
    pub seconds: f64,
    /// Size of the data: members of a set, elements of a list, keys
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub keys: u64,
    /// Rounds [default: 1, with two servers 2]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: Option<u16>,
    /// Write all figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// A sentence that must hold, as 'blacklist.p999_ms<1', or a file with one on each line; else the exit code
    /// is 1
    #[arg(long, value_name = "FILE-OR-EXPRESSION")]
    pub expect: Vec<String>,
    /// User for AUTH
    #[arg(long, requires = "password")]
    pub user: Option<String>,
    /// Password for AUTH
    #[arg(short = 'a', long, visible_alias = "pass", env = "EVENKEEL_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    #[arg(skip)]
    password_of_env: bool,
    /// Database [default: 0]
    #[arg(short = 'n', long)]
    pub db: Option<u32>,
    /// Encrypt with TLS
    #[arg(long)]
    pub tls: bool,
    /// User for AUTH at the second server
    #[arg(long, requires = "beside_password")]
    pub beside_user: Option<String>,
    /// Password for AUTH at the second server
    #[arg(long, env = "EVENKEEL_BESIDE_PASSWORD", hide_env_values = true)]
    pub beside_password: Option<String>,
    #[arg(skip)]
    beside_password_of_env: bool,
    /// Database of the second server [default: 0]
    #[arg(long)]
    pub beside_db: Option<u32>,
    /// Encrypt with TLS to the second server
    #[arg(long)]
    pub beside_tls: bool,
    /// Certificates, in PEM, of which those of servers must come from one (default: the system's)
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Certificate of this client, in PEM
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    pub cert: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub cert_key: Option<PathBuf>,
    /// Take any certificate of a server
    #[arg(long, conflicts_with = "cacert")]
    pub insecure: bool,
    /// Name that a server is asked for and that its certificate must have (default: the host)
    #[arg(long, value_name = "HOST")]
    pub sni: Option<String>,
    /// Seconds without an answer after which a server counts as lost
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n > 0.0 && n <= 86_400.0 => Ok(n),
        _ => Err("a number above 0 is wanted, at most 86400".to_owned()),
    }
}

impl reach::Options for Bench {
    const ELSEWHERE: &[(&'static str, &'static str)] = &[
        ("--host", "--against"),
        ("--port", "--against"),
        ("--to", "--against"),
        ("--uri", "--against"),
        ("--url", "--against"),
        ("--at", "--against"),
        ("--compare", "--beside"),
        ("--database", "--db"),
        ("--username", "--user"),
    ];

    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.password_of_env = is_of_env(matches, "password");
        self.beside_password_of_env = is_of_env(matches, "beside_password");
        if self.against.is_none() {
            let about = [("--user", self.user.is_some()), ("--db", self.db.is_some()), ("--tls", self.tls)];
            if let Some((word, _)) = about.iter().find(|word| word.1) {
                return Err(format!("{word} is for a server that --against names"));
            }
        }
        self.against()?;
        self.beside().map(drop)
    }
}

impl Bench {
    /// The server to measure. None: one of its own. Errors: options that contradict each other.
    pub fn against(&self) -> Result<Option<Endpoint>, String> {
        let Some(word) = &self.against else { return Ok(None) };
        let password = self.password.as_deref().map(|password| (password, self.password_of_env));
        self.endpoint(word, "--", self.user.as_deref(), password, self.db, self.tls).map(Some)
    }

    /// The second server, if there is one. Errors: options that contradict each other.
    pub fn beside(&self) -> Result<Option<Endpoint>, String> {
        let Some(word) = &self.beside else { return Ok(None) };
        let password =
            self.beside_password.as_deref().map(|password| (password, self.beside_password_of_env));
        let user = self.beside_user.as_deref();
        self.endpoint(word, "--beside-", user, password, self.beside_db, self.beside_tls).map(Some)
    }

    fn endpoint(
        &self,
        word: &str,
        prefix: &str,
        user: Option<&str>,
        password: Option<(&str, bool)>,
        db: Option<u32>,
        tls: bool,
    ) -> Result<Endpoint, String> {
        let named = Named::of_word(word)?;
        // The files are for both servers, of which one may have no TLS.
        let files = if named.tls || tls { self.files() } else { TlsWords::default() };
        let end = End::of(named, prefix, user, password, db, tls, files)?;
        let (silence, prefix) = (Duration::from_secs(self.timeout), PREFIX.to_owned());
        Ok(Endpoint { server: end.server, tls: end.tls, silence, prefix, name: String::new() })
    }

    fn files(&self) -> TlsWords {
        TlsWords {
            cacert: self.cacert.clone(),
            cert: self.cert.clone(),
            cert_key: self.cert_key.clone(),
            insecure: self.insecure,
            sni: self.sni.clone(),
        }
    }
}
