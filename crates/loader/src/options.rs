//! The command lines of `evenkeel load` and `evenkeel copy`.

use crate::rows::Format;
use crate::template::Template;
use clap::{ArgAction, ArgMatches, Args, Parser, ValueEnum};
use reach::{Address, End, Named, Options, Words, is_of_env};
use std::path::PathBuf;
use std::time::Duration;

/// The kind of value made of a row, or of the rows of one key.
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
    /// One set of all rows with the same key; a member that is not a 64-bit integer is an error.
    IntegerSet,
}

impl Kind {
    /// Whether several rows make one value.
    pub fn is_collection(self) -> bool {
        matches!(self, Kind::Set | Kind::Zset | Kind::List | Kind::IntegerSet)
    }
}

/// Treatment of keys that exist already.
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

/// The form in which values are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// The form that is cheaper for the server: SET for strings, RESTORE for all else unless the server is
    /// too old for it.
    Auto,
    /// Serialized here, sent by RESTORE.
    Restore,
    /// SET, HSET, RPUSH, SADD, ZADD.
    Commands,
}

/// Treatment of a row that is wrong or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnError {
    Stop,
    Skip,
}

/// The server to write to, and how to reach it. The short options are redis-cli's.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// The server: host:port, a URI as for -u, or the path of a unix socket [default: 127.0.0.1:6379]
    #[arg(long, value_name = "SERVER")]
    pub to: Option<String>,
    #[command(flatten)]
    pub server: reach::Server,
    /// Connections that send at the same time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub connections: u8,
    /// Seconds without an answer after which the server counts as lost
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub timeout: u64,
    /// Print this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl Target {
    /// The address of the server. Errors: files of passwords and TLS are wrong, and those of `end`.
    pub fn address(&self) -> Result<Address, String> {
        self.end()?.address(Duration::from_secs(self.timeout))
    }

    /// The server that is meant. Errors: options that contradict each other.
    fn end(&self) -> Result<End, String> {
        self.server.end(self.to.as_deref().map(|word| ("--to", word)), " to write to", "--to HOST:PORT")
    }
}

/// Load rows of a file into a server, as values serialized here.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "evenkeel load",
    bin_name = "evenkeel load",
    disable_version_flag = true,
    disable_help_flag = true
)]
pub struct Load {
    /// The rows; - or nothing for standard input
    pub file: Option<PathBuf>,
    /// How they are written (default: by the file's name)
    #[arg(long)]
    pub format: Option<Format>,
    /// The key, with columns in braces: 'user:{id}'
    #[arg(long)]
    pub key: Template,
    /// Kind of value to make of the rows
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
    /// How to treat keys that exist already
    #[arg(long, default_value = "fail")]
    pub existing: Existing,
    /// In which form values travel
    #[arg(long, default_value = "auto")]
    pub via: Via,
    /// How to treat a row that is wrong or refused
    #[arg(long, default_value = "stop")]
    pub on_error: OnError,
    /// Read and check everything, send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// A file that remembers how far loading came; if it exists, loading goes on from there. Keys of rows
    /// that a killed run may have sent, up to 100,000 lines behind that place, count as its own
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Memory for collections that are not complete, in MB; what does not fit is sent in parts
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub memory: u64,
    #[command(flatten)]
    pub target: Target,
}

/// Copy keys from one server to another: --from names the one to read; --to, or redis-cli's -h -p -s -u -a
/// -n, the one to write.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "evenkeel copy",
    bin_name = "evenkeel copy",
    disable_version_flag = true,
    disable_help_flag = true
)]
pub struct Copy {
    /// The server to copy from: host:port, a URI as for -u, or the path of a unix socket
    #[arg(long, value_name = "SERVER")]
    pub from: String,
    /// Password of that server
    #[arg(long, env = "EVENKEEL_FROM_PASSWORD", hide_env_values = true)]
    pub from_password: Option<String>,
    #[arg(skip)]
    from_password_of_env: bool,
    /// User of that server
    #[arg(long, requires = "from_password")]
    pub from_user: Option<String>,
    /// Its database [default: 0]
    #[arg(long)]
    pub from_db: Option<u32>,
    /// Encrypt with TLS to the source
    #[arg(long)]
    pub from_tls: bool,
    /// Certificates, in PEM, of which the source's must come from one (default: the system's)
    #[arg(long, value_name = "FILE")]
    pub from_cacert: Option<PathBuf>,
    /// Certificate of this client for the source, in PEM
    #[arg(long, value_name = "FILE", requires = "from_cert_key")]
    pub from_cert: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "from_cert")]
    pub from_cert_key: Option<PathBuf>,
    /// Take any certificate of the source
    #[arg(long, conflicts_with = "from_cacert")]
    pub from_insecure: bool,
    /// Name that the source is asked for and that its certificate must have (default: the host)
    #[arg(long, value_name = "HOST")]
    pub from_sni: Option<String>,
    /// Which keys
    #[arg(long = "match", default_value = "*", value_name = "PATTERN")]
    pub pattern: String,
    /// How to treat keys that exist already
    #[arg(long, default_value = "fail")]
    pub existing: Existing,
    /// How to treat a key that is refused
    #[arg(long, default_value = "stop")]
    pub on_error: OnError,
    /// Count the keys, send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// A file that remembers how far copying came; if it exists, copying goes on from there. Needs --existing
    /// skip or replace
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub target: Target,
}

impl Copy {
    /// The source's address. Errors: the files for TLS are wrong, and those of `end`.
    pub fn source(&self) -> Result<Address, String> {
        self.end()?.address(Duration::from_secs(self.target.timeout))
    }

    /// The source. Errors: options that contradict each other.
    fn end(&self) -> Result<End, String> {
        let words = Words {
            cacert: self.from_cacert.clone(),
            cert: self.from_cert.clone(),
            cert_key: self.from_cert_key.clone(),
            insecure: self.from_insecure,
            sni: self.from_sni.clone(),
        };
        let password = self.from_password.as_deref().map(|password| (password, self.from_password_of_env));
        let user = self.from_user.as_deref();
        End::of(Named::of_word(&self.from)?, "--from-", user, password, self.from_db, self.from_tls, words)
    }
}

impl Options for Load {
    const ELSEWHERE: &[(&'static str, &'static str)] = &[
        (
            "--from",
            "rows are read from a file, named without an option; keys of a server are copied by evenkeel copy",
        ),
        ("--expire", "--ttl"),
        ("--type", "--as"),
    ];

    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.target.server.settle(matches)?;
        self.target.end().map(drop)
    }
}

impl Options for Copy {
    const ELSEWHERE: &[(&'static str, &'static str)] = &[
        ("--pattern", "--match"),
        ("--key", "--cert-key"),
        ("--replace", "--existing replace"),
        ("--source", "--from"),
        ("--target", "--to"),
    ];
    const MISSING: Option<&'static str> =
        Some("--from names the server to copy from; -h, -p, -s and -u name the one to copy to, as --to does");

    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.target.server.settle(matches)?;
        self.from_password_of_env = is_of_env(matches, "from_password");
        let ends = self.target.end().map_err(|e| match e.contains("both name") {
            true => format!("{e}. The server to copy from is named by --from"),
            false => e,
        });
        ends.and(self.end()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::ffi::OsString;

    fn read_words<T: Options>(words: &str) -> Result<T, String> {
        let args: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        reach::read(&args).map_err(|error| error.to_string())
    }

    /// The target of a load, or the error.
    fn target(words: &str) -> String {
        let read = read_words::<Load>(format!("load f.csv --key k {words}").trim_end());
        read.and_then(|options| options.target.end()).map_or_else(|why| why, |end| shown(&end.server))
    }

    /// The source and the target of a copy, or the error.
    fn ends(words: &str) -> String {
        let ends = read_words::<Copy>(&format!("copy {words}"))
            .and_then(|options| Ok([options.end()?, options.target.end()?]));
        ends.map_or_else(|why| why, |ends| ends.map(|end| shown(&end.server)).join(" -> "))
    }

    fn shown(Named { place, user, password, db, tls }: &Named) -> String {
        let login =
            password.iter().map(|password| format!("{}:{password}@", user.as_deref().unwrap_or_default()));
        let db = db.iter().map(|db| format!("/{db}"));
        let tls = if *tls { "tls " } else { "" };
        format!("{tls}{}{place}{}", login.collect::<String>(), db.collect::<String>())
    }

    #[test]
    fn redis_clis_options_name_the_server_to_write_to() {
        assert_eq!(target(""), "127.0.0.1:6379");
        assert_eq!(target("-h 10.0.0.5"), "10.0.0.5:6379");
        assert_eq!(target("-p 7000"), "127.0.0.1:7000");
        assert_eq!(target("-h ::1 -p 7000 -a pw -n 3"), ":pw@[::1]:7000/3");
        assert_eq!(target("-h h --user ann --pass pw --tls"), "tls ann:pw@h:6379");
        assert_eq!(target("--to h:7000 --user ann --password pw --db 3"), "ann:pw@h:7000/3");
        assert_eq!(target("-u rediss://ann:pw@h:7000/3"), "tls ann:pw@h:7000/3");
        assert_eq!(target("-u redis://h -n 3 -a pw"), ":pw@h:6379/3");
        assert_eq!(target("--to redis://h/3 -n 3"), "h:6379/3");
        assert_eq!(target("-s /run/redis.sock"), "/run/redis.sock");
        assert_eq!(target("-s redis.sock"), "./redis.sock");
        assert_eq!(ends("--from old -h new -a pw"), "old:6379 -> :pw@new:6379");
        assert_eq!(
            ends("--from rediss://ann:pw@old/1 --from-insecure -p 7000"),
            "tls ann:pw@old:6379/1 -> 127.0.0.1:7000"
        );
    }

    #[test]
    fn contradictions_are_refused_with_what_is_right() {
        for (words, why) in [
            ("-h a --to b", "--to and -h both name the server to write to: say --to HOST:PORT, or -h HOST"),
            ("-p 1 -u redis://b", "-u and -p both name"),
            ("-s /a -h b", "-s and -h both name"),
            ("-h a:7000", "say -h a -p 7000"),
            ("-u redis://x:pw@h -a other", "the URI has a password: leave out --user and --password"),
            ("-u redis://x:pw@h --user y -a z", "the URI has a password"),
            ("-u redis://h/3 -n 4", "the URI says database 3, --db 4"),
            ("-u http://h", "a URI begins with redis://"),
            ("-h h --cacert f", "--cacert is for TLS: say --tls as well"),
            ("-s /a --tls", "there is no TLS over a unix socket"),
            ("-p 0", "0 is not in 1..=65535"),
        ] {
            let said = target(words);
            assert!(said.contains(why), "{words}: {said}");
        }
        let said = ends("--from old --to new -h other");
        assert!(said.contains("both name") && said.contains("named by --from"), "{said}");
        let said = ends("-h old --match a");
        assert!(
            said.contains("--from <SERVER>") && said.contains("-h, -p, -s and -u name the one to copy to"),
            "{said}"
        );
        let said = ends("--from redis://x:s3cret@h/1 --from-db 2");
        assert!(said.contains("--from-db 2") && !said.contains("s3cret"), "{said}");
    }

    #[test]
    fn a_password_of_the_environment_gives_way_to_one_of_a_uri() {
        let server = || Named::of_uri("redis://ann:pw@h").expect("a URI");
        let end = |user, password| {
            End::of(server(), "--", user, password, None, false, Words::default())
                .map(|end| shown(&end.server))
        };
        assert_eq!(end(None, Some(("other", true))), Ok("ann:pw@h:6379".into()));
        assert!(end(None, Some(("other", false))).is_err());
        assert!(end(Some("bob"), Some(("other", true))).is_err());
    }

    #[test]
    fn a_wrong_option_says_what_the_right_one_is() {
        for (words, right) in [
            ("--from a --mach x", "'--match'"),
            ("--from a --pattern x", "'--match'"),
            ("--from a --existng skip", "'--existing'"),
            ("--form a", "'--from'"),
            ("--from a --key f", "'--cert-key'"),
            ("--from a --hostname b", "'--host'"),
        ] {
            let said = ends(words);
            assert!(said.contains("similar argument exists") && said.contains(right), "{words}: {said}");
        }
        for (words, right) in
            [("--url redis://h", "'--uri'"), ("--tlss", "'--tls'"), ("--database 1", "'--db'")]
        {
            let said = target(words);
            assert!(said.contains("similar argument exists") && said.contains(right), "{words}: {said}");
        }
        assert!(target("--existing repalce").contains("'replace'"));
        assert!(target("--from a").contains("named without an option"));
    }

    #[test]
    fn h_as_the_last_word_asks_for_help_as_in_redis_cli() {
        for words in ["load --help", "load -h", "load f.csv --key k -h"] {
            let said = read_words::<Load>(words).expect_err(words);
            assert!(said.contains("-h, --host <HOST>") && said.contains("--pass"), "{said}");
        }
        let said = read_words::<Copy>("copy --help").expect_err("help").replace('\n', " ");
        assert!(said.contains("-h -p -s -u -a -n, the one to write"), "{said}");
        Load::command().debug_assert();
        Copy::command().debug_assert();
    }
}
