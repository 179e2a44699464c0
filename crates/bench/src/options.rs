//! The command line of `evenkeel bench`.

use crate::endpoint::Endpoint;
use crate::stories;
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, ArgMatches, Parser};
use reach::{End, Named, Server, Words as TlsWords, is_of_env};
use std::path::PathBuf;
use std::time::Duration;

/// The beginning of all keys that are written.
pub const PREFIX: &str = "evenkeel-bench:";

/// Measure what one client's long work costs the others: on a server of its own, or at any address that speaks
/// Redis's protocol.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "evenkeel bench",
    bin_name = "evenkeel bench",
    disable_version_flag = true,
    disable_help_flag = true
)]
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
    /// Write the result to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    pub md: Option<PathBuf>,
    /// Number that all random choices begin with: keys that are read, times at which requests leave
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A sentence that must hold, as 'blacklist.p999_ms<1', or a file with one on each line; else the exit code
    /// is 1
    #[arg(long, value_name = "FILE-OR-EXPRESSION")]
    pub expect: Vec<String>,
    #[command(flatten)]
    pub server: Server,
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
    /// Seconds without an answer after which a server counts as lost
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Print this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n > 0.0 && n <= 86_400.0 => Ok(n),
        _ => Err("a number above 0 is wanted, at most 86400".to_owned()),
    }
}

impl reach::Options for Bench {
    const ELSEWHERE: &[(&'static str, &'static str)] =
        &[("--to", "--against"), ("--at", "--against"), ("--compare", "--beside")];

    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.server.settle(matches)?;
        self.beside_password_of_env = is_of_env(matches, "beside_password");
        self.against()?;
        self.beside().map(drop)
    }
}

impl Bench {
    /// The server to measure. None: one of its own. Errors: options that contradict each other.
    pub fn against(&self) -> Result<Option<Endpoint>, String> {
        let Server { user, password_file, db, tls, .. } = &self.server;
        if self.against.is_none() && !self.server.is_named() {
            let about = [
                ("--user", user.is_some()),
                ("--password-file", password_file.is_some()),
                ("--db", db.is_some()),
                ("--tls", *tls),
            ];
            return match about.iter().find(|word| word.1) {
                Some((word, _)) => Err(format!("{word} is for a server that --against names")),
                None => Ok(None),
            };
        }
        let word = self.against.as_deref().map(|word| ("--against", word));
        let end = |files| self.server.end_with(word, " to measure", "--against HOST:PORT", files);
        let bare = end(TlsWords::default())?;
        // The files are for both servers, of which one may have no TLS.
        let is_whole = bare.server.tls || self.beside.is_none();
        Ok(Some(self.endpoint(if is_whole { end(self.server.words())? } else { bare })))
    }

    /// The second server, if there is one. Errors: options that contradict each other.
    pub fn beside(&self) -> Result<Option<Endpoint>, String> {
        let Some(word) = &self.beside else { return Ok(None) };
        let password =
            self.beside_password.as_deref().map(|password| (password, self.beside_password_of_env));
        let user = self.beside_user.as_deref();
        let named = Named::of_word(word)?;
        let files = if named.tls || self.beside_tls { self.server.words() } else { TlsWords::default() };
        let end = End::of(named, "--beside-", user, password, self.beside_db, self.beside_tls, files)?;
        Ok(Some(self.endpoint(end)))
    }

    fn endpoint(&self, end: End) -> Endpoint {
        let (silence, prefix) = (Duration::from_secs(self.timeout), PREFIX.to_owned());
        let (name, seed) = (String::new(), self.seed);
        Endpoint { server: end.server, tls: end.tls, silence, prefix, name, seed }
    }
}
