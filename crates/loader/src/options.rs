//! The command lines of `evenkeel load` and `evenkeel copy`.

use crate::rows::Format;
use crate::template::Template;
use crate::tls::{self, Tls};
use crate::wire::Address;
use clap::{Args, Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// What a row, or the rows of one key, become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// One hash for each row, a field for each column.
    Hash,
    /// One string for each row: the column named by --value.
    String,
    /// One string for each row: the row as a JSON object.
    Json,
    /// One set of all rows with the same key.
    Set,
    /// One sorted set of all rows with the same key.
    Zset,
    /// One list of all rows with the same key, in their order.
    List,
    /// One set of all rows with the same key; a member that is no 64-bit integer is an error.
    IntegerSet,
}

impl Kind {
    /// Whether several rows make one value.
    pub fn is_collection(self) -> bool {
        matches!(self, Kind::Set | Kind::Zset | Kind::List | Kind::IntegerSet)
    }
}

/// What happens to keys that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Existing {
    /// An error for that row.
    Fail,
    /// They stay as they are.
    Skip,
    /// They are overwritten.
    Replace,
    /// Collections get the new members besides (only with --via commands).
    Merge,
}

/// In which form values travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// What is cheaper for the server: SET for strings, RESTORE for all else unless the server is too old for it.
    Auto,
    /// Serialized here, sent by RESTORE.
    Restore,
    /// SET, HSET, RPUSH, SADD, ZADD.
    Commands,
}

/// What to do about a row that is wrong, or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnError {
    Stop,
    Skip,
}

/// How to reach a server.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// The server: host:port, or the path of a unix socket
    #[arg(long, default_value = "127.0.0.1:6379", value_name = "SERVER")]
    pub to: String,
    /// User for AUTH
    #[arg(long, requires = "password")]
    pub user: Option<String>,
    /// Password for AUTH
    #[arg(long, env = "EVENKEEL_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// Database
    #[arg(long, default_value_t = 0)]
    pub db: u32,
    /// Encrypt with TLS
    #[arg(long)]
    pub tls: bool,
    /// Certificates, in PEM, of which the server's must come from one (default: the system's)
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub cacert: Option<PathBuf>,
    /// Certificate of this client, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert_key"])]
    pub cert: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub cert_key: Option<PathBuf>,
    /// Take any certificate of the server
    #[arg(long, requires = "tls", conflicts_with = "cacert")]
    pub insecure: bool,
    /// Name that the server is asked for and that its certificate must have (default: the host)
    #[arg(long, value_name = "HOST", requires = "tls")]
    pub sni: Option<String>,
    /// Connections that send at the same time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub connections: u8,
    /// Seconds without an answer after which the server counts as lost
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub timeout: u64,
}

impl Target {
    /// Errors: what is to be read for TLS is wrong.
    pub fn address(&self) -> Result<Address, String> {
        let words = tls::Words {
            cacert: self.cacert.clone(),
            cert: self.cert.clone(),
            cert_key: self.cert_key.clone(),
            insecure: self.insecure,
            sni: self.sni.clone(),
        };
        Ok(Address {
            place: self.to.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            db: self.db,
            timeout: Duration::from_secs(self.timeout.max(1)),
            tls: encrypted(&self.to, self.tls.then_some(words))?,
        })
    }
}

/// Checks the name of a server as well.
fn encrypted(place: &str, words: Option<tls::Words>) -> Result<Option<Tls>, String> {
    if place.contains("://") {
        return Err(format!("{place}: say host:port, and instead of rediss:// --tls (--from-tls)"));
    }
    match words {
        Some(_) if place.contains('/') => Err(format!("{place}: there is no TLS over a unix socket")),
        words => words.map(|words| Tls::new(&words, place)).transpose(),
    }
}

/// Load rows of a file into a server, as values serialized here.
#[derive(Parser, Clone, Debug)]
#[command(name = "evenkeel load", bin_name = "evenkeel load", disable_version_flag = true)]
pub struct Load {
    /// The rows; - or nothing for standard input
    pub file: Option<PathBuf>,
    /// How they are written (default: by the file's name)
    #[arg(long)]
    pub format: Option<Format>,
    /// The key, with columns in braces: 'user:{id}'
    #[arg(long)]
    pub key: Template,
    /// What to make of them
    #[arg(long = "as", value_name = "KIND", default_value = "hash")]
    pub kind: Kind,
    /// Column of strings, list elements and members (default: the only one the key does not use)
    #[arg(long, value_name = "COLUMN")]
    pub value: Option<String>,
    /// Column of scores
    #[arg(long, value_name = "COLUMN", default_value = "score")]
    pub score: String,
    /// Names of the columns, if the first line does not have them
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub columns: Option<Vec<String>>,
    /// Seconds after which the keys expire
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub ttl: Option<u64>,
    /// What happens to keys that are there already
    #[arg(long, default_value = "fail")]
    pub existing: Existing,
    /// In which form values travel
    #[arg(long, default_value = "auto")]
    pub via: Via,
    /// What to do about a row that is wrong or refused
    #[arg(long, default_value = "stop")]
    pub on_error: OnError,
    /// Read and check everything, send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// A file that remembers how far loading came; if it exists, go on from there. Keys of rows that a killed run may have sent, up to
    /// 100,000 lines behind that place, count as its own
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Memory for collections that are not complete, in MB; what does not fit is sent in parts
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub memory: u64,
    #[command(flatten)]
    pub target: Target,
}

/// Copy keys from one server to another.
#[derive(Parser, Clone, Debug)]
#[command(name = "evenkeel copy", bin_name = "evenkeel copy", disable_version_flag = true)]
pub struct Copy {
    /// The server to copy from: host:port, or the path of a unix socket
    #[arg(long, value_name = "SERVER")]
    pub from: String,
    /// Password of that server
    #[arg(long, env = "EVENKEEL_FROM_PASSWORD", hide_env_values = true)]
    pub from_password: Option<String>,
    /// User of that server
    #[arg(long, requires = "from_password")]
    pub from_user: Option<String>,
    /// Its database
    #[arg(long, default_value_t = 0)]
    pub from_db: u32,
    /// Encrypt with TLS to the source
    #[arg(long)]
    pub from_tls: bool,
    /// Certificates, in PEM, of which the source's must come from one (default: the system's)
    #[arg(long, value_name = "FILE", requires = "from_tls")]
    pub from_cacert: Option<PathBuf>,
    /// Certificate of this client for the source, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["from_tls", "from_cert_key"])]
    pub from_cert: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "from_cert")]
    pub from_cert_key: Option<PathBuf>,
    /// Take any certificate of the source
    #[arg(long, requires = "from_tls", conflicts_with = "from_cacert")]
    pub from_insecure: bool,
    /// Name that the source is asked for and that its certificate must have (default: the host)
    #[arg(long, value_name = "HOST", requires = "from_tls")]
    pub from_sni: Option<String>,
    /// Which keys
    #[arg(long = "match", default_value = "*", value_name = "PATTERN")]
    pub pattern: String,
    /// What happens to keys that are there already
    #[arg(long, default_value = "fail")]
    pub existing: Existing,
    /// What to do about a key that is refused
    #[arg(long, default_value = "stop")]
    pub on_error: OnError,
    /// Count the keys, send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// A file that remembers how far copying came; if it exists, go on from there. Needs --existing skip or replace
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub target: Target,
}

impl Copy {
    /// Of the source. Errors: what is to be read for TLS is wrong.
    pub fn source(&self) -> Result<Address, String> {
        let words = tls::Words {
            cacert: self.from_cacert.clone(),
            cert: self.from_cert.clone(),
            cert_key: self.from_cert_key.clone(),
            insecure: self.from_insecure,
            sni: self.from_sni.clone(),
        };
        Ok(Address {
            place: self.from.clone(),
            user: self.from_user.clone(),
            password: self.from_password.clone(),
            db: self.from_db,
            timeout: Duration::from_secs(self.target.timeout.max(1)),
            tls: encrypted(&self.from, self.from_tls.then_some(words))?,
        })
    }
}
