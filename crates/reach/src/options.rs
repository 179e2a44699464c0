//! The options about a server, and what they mean together.

use crate::Address;
use crate::place::Named;
use crate::tls::{Words, client};
use clap::builder::UnknownArgumentValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, CommandFactory, Error, FromArgMatches};
use dial::Login;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of redis-cli and other tools about a server, with those that they are here.
const OF_SERVERS: &[(&str, &str)] =
    &[("--hostname", "--host"), ("--url", "--uri"), ("--username", "--user"), ("--database", "--db")];

/// Most bytes read of a file with a password.
const PASSWORD_MAX: u64 = 64 << 10;

/// A server, and the way in. The short options are redis-cli's.
#[derive(Args, Clone, Debug)]
pub struct Server {
    /// Its host
    #[arg(short = 'h', long, value_name = "HOST")]
    pub host: Option<String>,
    /// Its port
    #[arg(short = 'p', long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Its unix socket
    #[arg(short = 's', long, value_name = "SOCKET")]
    pub socket: Option<String>,
    /// Its URI: redis://[user:password@]host[:port][/database], rediss:// for TLS
    #[arg(short = 'u', long, value_name = "URI")]
    pub uri: Option<String>,
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
    /// A file whose first line is the password, so that no list of processes shows it
    #[arg(long, alias = "pass-file", value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    #[arg(skip)]
    password_of_env: bool,
    /// The password of the file.
    #[arg(skip)]
    of_file: Option<String>,
    /// Database [default: 0]
    #[arg(short = 'n', long)]
    pub db: Option<u32>,
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
}

impl Server {
    /// Takes what only the matches tell, and reads the password's file, once: it may be a pipe. Errors: that
    /// file; two passwords.
    pub fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.password_of_env = is_of_env(matches, "password");
        if self.password_file.is_some() && self.password.is_some() && !self.password_of_env {
            return Err("--password and --password-file both give the password: leave out one".to_owned());
        }
        self.of_file = self.password_file.as_deref().map(password_in).transpose()?;
        Ok(())
    }

    /// Whether an option names the server.
    pub fn is_named(&self) -> bool {
        self.ways().iter().any(|way| way.1)
    }

    /// The options that name the server, and whether they are said.
    fn ways(&self) -> [(&'static str, bool); 3] {
        let host_word = if self.host.is_some() { "-h" } else { "-p" };
        [
            ("-u", self.uri.is_some()),
            ("-s", self.socket.is_some()),
            (host_word, self.host.is_some() || self.port.is_some()),
        ]
    }

    /// The options about TLS.
    pub fn words(&self) -> Words {
        Words {
            cacert: self.cacert.clone(),
            cert: self.cert.clone(),
            cert_key: self.cert_key.clone(),
            insecure: self.insecure,
            sni: self.sni.clone(),
        }
    }

    /// The server that is meant; 127.0.0.1:6379 if nothing names one. `word`: an option or argument of the
    /// caller that names it too, and its value. `role` and `way` complete the error that two ways name it.
    /// Errors: options that contradict each other.
    pub fn end(&self, word: Option<(&str, &str)>, role: &str, way: &str) -> Result<End, String> {
        self.end_with(word, role, way, self.words())
    }

    /// As [`Server::end`], with other options about certificates.
    pub fn end_with(
        &self,
        word: Option<(&str, &str)>,
        role: &str,
        way: &str,
        words: Words,
    ) -> Result<End, String> {
        let ways = [(word.map_or("", |word| word.0), word.is_some())].into_iter().chain(self.ways());
        let mut said = ways.filter(|way| way.1).map(|way| way.0);
        if let (Some(one), Some(other)) = (said.next(), said.next()) {
            return Err(format!(
                "{one} and {other} both name the server{role}: say {way}, or -h HOST -p PORT, or -s SOCKET, or -u URI"
            ));
        }
        let named = match (word, &self.uri, &self.socket) {
            (Some((_, word)), ..) => Named::of_word(word)?,
            (_, Some(uri), _) => Named::of_uri(uri)?,
            (.., Some(path)) => Named::of_socket(path),
            _ => Named::of_host(self.host.as_deref(), self.port)?,
        };
        let password = match &self.of_file {
            Some(password) => Some((password.as_str(), false)),
            None => self.password.as_deref().map(|password| (password, self.password_of_env)),
        };
        if self.user.is_some() && password.is_none() && named.password.is_none() {
            return Err("--user needs --password or --password-file".to_owned());
        }
        End::of(named, "--", self.user.as_deref(), password, self.db, self.tls, words)
    }
}

/// The first line of a file, of which 64 KB are read. Errors: it cannot be read, or is no UTF-8.
fn password_in(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(PASSWORD_MAX).read_to_string(&mut text));
    read.map_err(|e| format!("--password-file {}: {e}", file.display()))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// A server with all options about it.
pub struct End {
    pub server: Named,
    pub tls: Words,
}

impl End {
    /// Joins a URI and options. `prefix` is that of the options; `password` comes with whether it is the
    /// environment's. Errors: the options contradict the URI or each other.
    pub fn of(
        mut server: Named,
        prefix: &str,
        user: Option<&str>,
        password: Option<(&str, bool)>,
        db: Option<u32>,
        encrypted: bool,
        tls: Words,
    ) -> Result<End, String> {
        match password {
            Some((_, true)) if server.password.is_some() && user.is_none() => {}
            Some(_) if server.password.is_some() => {
                return Err(format!("the URI has a password: leave out {prefix}user and {prefix}password"));
            }
            Some((password, _)) => server.password = Some(password.to_owned()),
            None => {}
        }
        if let Some(user) = user {
            server.user = Some(user.to_owned());
        }
        match (server.db, db) {
            (Some(one), Some(other)) if one != other => {
                return Err(format!(
                    "the URI says database {one}, {prefix}db {other}: leave out one of them"
                ));
            }
            (of_uri, said) => server.db = of_uri.or(said),
        }
        server.tls |= encrypted;
        let certificates = [
            ("cacert", tls.cacert.is_some()),
            ("cert", tls.cert.is_some()),
            ("insecure", tls.insecure),
            ("sni", tls.sni.is_some()),
        ];
        match certificates.iter().find(|word| word.1) {
            Some((word, _)) if !server.tls => {
                return Err(format!("{prefix}{word} is for TLS: say {prefix}tls as well"));
            }
            _ => {}
        }
        if server.tls && server.place.contains('/') {
            return Err(format!("{}: there is no TLS over a unix socket", server.place));
        }
        Ok(End { server, tls })
    }

    /// Reads the files for TLS. `timeout`: limit of each wait for bytes, a second at least. Errors: the
    /// files are wrong.
    pub fn address(self, timeout: Duration) -> Result<Address, String> {
        let Named { place, user, password, db, tls } = self.server;
        let tls = if tls { Some(client(&self.tls, &place)?) } else { None };
        let timeout = timeout.max(Duration::from_secs(1));
        let login = password.map(|password| Login { user, password });
        let server = dial::Address { tls, login, ..dial::Address::new(place).with_timeout(timeout) };
        Ok(Address { server, db: db.unwrap_or(0) })
    }
}

/// A command line that [`read`] can read.
pub trait Options: CommandFactory + FromArgMatches {
    /// Options that other tools have, hidden, each with what to say here: an option, or a sentence. Those of
    /// redis-cli about servers are among them, as [`Server`] has them, unless it has them or names them.
    const ELSEWHERE: &[(&'static str, &'static str)];
    /// A hint for the error that a needed option is missing.
    const MISSING: Option<&'static str> = None;

    /// Takes what only the matches tell. Errors: options that contradict each other.
    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String>;
}

/// Reads a command line, the name of the command first. Errors: mistakes in it, and requests for help.
pub fn read<T: Options>(args: &[OsString]) -> Result<T, Error> {
    let mut args = args.to_vec();
    // As in redis-cli, -h as the last word asks for help.
    if let Some(last) = args.last_mut().filter(|last| *last == "-h") {
        *last = "--help".into();
    }
    let mut command = T::command();
    let is_named = |word: &str| {
        let long = word.trim_start_matches('-');
        let has = |arg: &Arg| {
            arg.get_long() == Some(long)
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
        };
        T::ELSEWHERE.iter().any(|(other, _)| *other == word) || command.get_arguments().any(has)
    };
    let of_servers = OF_SERVERS.iter().filter(|(word, _)| !is_named(word));
    let elsewhere = of_servers.chain(T::ELSEWHERE).map(|(word, here)| {
        let parser = match here.starts_with('-') {
            true => UnknownArgumentValueParser::suggest_arg(*here),
            false => UnknownArgumentValueParser::suggest(*here),
        };
        let long = word.trim_start_matches('-');
        Arg::new(*word).long(long).value_name("VALUE").hide(true).value_parser(parser)
    });
    let elsewhere: Vec<Arg> = elsewhere.collect();
    command = command.args(elsewhere);
    let matches = command.try_get_matches_from_mut(args).map_err(|mut error| {
        if let (ErrorKind::MissingRequiredArgument, Some(text)) = (error.kind(), T::MISSING) {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![text.into()]));
        }
        error
    })?;
    let mut options = T::from_arg_matches(&matches)?;
    options.settle(&matches).map_err(|text| command.error(ErrorKind::ArgumentConflict, text))?;
    Ok(options)
}

/// Whether the value of an option is the environment's. Never, if the option does not exist.
pub fn is_of_env(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::EnvVariable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    #[command(name = "tool", disable_help_flag = true)]
    struct Tool {
        word: Option<String>,
        #[command(flatten)]
        server: Server,
    }

    impl Options for Tool {
        const ELSEWHERE: &[(&'static str, &'static str)] = &[("--wait", "sleep")];

        fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
            self.server.settle(matches)?;
            self.server.end(self.word.as_deref().map(|word| ("ADDRESS", word)), "", "ADDRESS").map(drop)
        }
    }

    fn end(words: &str) -> Result<Named, String> {
        let args: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let tool = read::<Tool>(&args).map_err(|e| e.to_string())?;
        let word = tool.word.as_deref().map(|word| ("ADDRESS", word));
        tool.server.end(word, "", "ADDRESS").map(|end| end.server)
    }

    #[test]
    fn a_file_gives_the_password() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "s3cret\nmore\n").expect("written");
        // It is read once: it may be a pipe.
        let words = ["tool", "--password-file", &file.path().display().to_string()].map(OsString::from);
        let tool = read::<Tool>(&words).expect("options");
        std::fs::write(file.path(), "").expect("written");
        let once = tool.server.end(None, "", "").expect("a server");
        assert_eq!(once.server.password.as_deref(), Some("s3cret"));
        std::fs::write(file.path(), "s3cret\nmore\n").expect("written");
        let name = file.path().display();
        let named = end(&format!("tool h:1 --user ann --password-file {name}")).expect("a server");
        assert_eq!((named.user.as_deref(), named.password.as_deref()), (Some("ann"), Some("s3cret")));
        assert!(
            end("tool --password-file /dev/zero")
                .expect("the begin")
                .password
                .is_some_and(|it| it.len() == 64 << 10)
        );
        for (words, why) in [
            (format!("tool h -a x --password-file {name}"), "both give the password"),
            (format!("tool redis://:x@h --password-file {name}"), "the URI has a password"),
            ("tool --password-file /no/such".to_owned(), "--password-file /no/such: "),
            ("tool --user ann".to_owned(), "--user needs --password"),
        ] {
            let said = end(&words).expect_err(&words);
            assert!(said.contains(why) && !said.contains("s3cret"), "{words}: {said}");
        }
    }

    #[test]
    fn a_word_of_the_tool_names_the_server_too() {
        assert_eq!(end("tool").expect("a server").place, "127.0.0.1:6379");
        assert_eq!(end("tool rediss://h:7").map(|named| (named.place, named.tls)), Ok(("h:7".into(), true)));
        let said = end("tool a -h b").expect_err("two");
        assert!(said.contains("ADDRESS and -h both name the server: say ADDRESS, or"), "{said}");
        assert_eq!(end("tool --host b --port 7").expect("a server").place, "b:7");
        assert!(end("tool --hostname b").expect_err("unknown").contains("'--host'"));
        assert!(end("tool --wait 1").expect_err("unknown").contains("sleep"));
    }
}
