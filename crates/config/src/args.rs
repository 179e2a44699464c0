//! The command line, in redis-server's style: `evenkeel [FILE] [-] [--directive value ...]`.

use super::kind::Kind;
use super::table::{Effect, find, table};
use super::{rows, words};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The action a command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    Serve(Sources),
    /// Reads the configuration, reports mistakes, and ends.
    Check(Sources),
    Version,
    Help,
    /// Lists every directive.
    Directives,
    /// Write a file with all defaults.
    Example,
}

/// Where the configuration comes from, in the order in which it is read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sources {
    pub file: Option<PathBuf>,
    pub stdin: bool,
    /// Options in order, each a name without dashes and its values.
    pub options: Vec<Vec<Vec<u8>>>,
}

/// Parses the words after the program's name.
///
/// As in redis-server, the first word after an option is its value even if it starts with dashes (passwords
/// may), except after `--save`. `--name=value` is understood, too. An error is a sentence for the user.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, String> {
    let args: Vec<OsString> = args.into_iter().collect();
    match args.first().and_then(|a| a.to_str()) {
        Some("-v" | "--version") if args.len() == 1 => return Ok(Invocation::Version),
        Some("-h" | "--help") if args.len() == 1 => return Ok(Invocation::Help),
        Some("--directives") if args.len() == 1 => return Ok(Invocation::Directives),
        Some("--example-config") if args.len() == 1 => return Ok(Invocation::Example),
        _ => {}
    }
    let mut sources = Sources::default();
    let mut check = false;
    for (at, arg) in args.into_iter().enumerate() {
        match arg.as_bytes() {
            b"--check-config" if value_may_end(&sources) => check = true,
            [b'-', b'-', option @ ..] if value_may_end(&sources) => {
                sources.options.push(split_option(option))
            }
            b"-" if sources.options.last().is_none_or(|o| o.len() > 1) => sources.stdin = true,
            word => match sources.options.last_mut() {
                Some(option) => option.push(word.to_vec()),
                None if at == 0 || (check && sources.file.is_none()) => file(&mut sources, arg)?,
                None => {
                    return Err(format!(
                        "unexpected argument '{}'; see evenkeel --help",
                        arg.to_string_lossy()
                    ));
                }
            },
        }
    }
    Ok(if check { Invocation::Check(sources) } else { Invocation::Serve(sources) })
}

fn file(sources: &mut Sources, arg: OsString) -> Result<(), String> {
    if arg.as_bytes().starts_with(b"-") {
        return Err(format!("unknown option '{}'; see evenkeel --help", arg.to_string_lossy()));
    }
    sources.file = Some(PathBuf::from(OsString::from_vec(arg.into_vec())));
    Ok(())
}

/// Whether the option before this word is complete without it.
fn value_may_end(sources: &Sources) -> bool {
    sources.options.last().is_none_or(|option| option.len() > 1 || option[0].eq_ignore_ascii_case(b"save"))
}

/// `name`, or `name=value` if there is such a directive.
fn split_option(option: &[u8]) -> Vec<Vec<u8>> {
    if let Some(at) = option.iter().position(|&b| b == b'=')
        && find(&option[..at]).is_some()
    {
        return vec![option[..at].to_vec(), option[at + 1..].to_vec()];
    }
    vec![option.to_vec()]
}

/// One line: name and version.
pub fn version() -> String {
    let (version, os, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    format!("Evenkeel server v={version} bits={} {os} {arch}", usize::BITS)
}

pub const HELP: &str = "\
Usage: evenkeel [/path/to/redis.conf] [-] [--directive value ...]
       evenkeel -                    read the configuration from standard input
       evenkeel --check-config ...   read the configuration, report mistakes, and end
       evenkeel --directives         list what can be configured
       evenkeel --example-config     write a configuration file with all defaults, as comments
       evenkeel -v or --version
       evenkeel -h or --help
       evenkeel load --help          load a CSV, TSV or NDJSON file into a server
       evenkeel copy --help          copy keys from one server to another
       evenkeel bench --help         measure what one client's long work costs the others
       evenkeel top --help           show what a server does, and who makes whom wait, on the whole screen
       evenkeel stat --help          print a line each second about what a server does
       evenkeel doctor --help        check and describe snapshots and logs
       evenkeel ping --help          ask a server for a sign of life, as health checks do

Examples:
       evenkeel                      listen on 127.0.0.1:6379
       evenkeel --port 7777
       evenkeel /etc/redis/redis.conf --loglevel verbose
       evenkeel --bind 0.0.0.0 --requirepass secret
       echo 'port 7777' | evenkeel -

The data is kept by snapshots (save) and by a log of writes (appendonly).
";

/// The list of all directives by topic: default, purpose, and effect.
pub fn directives() -> String {
    let mut out = String::new();
    for (topic, rows) in rows::GROUPS {
        let _ = writeln!(out, "# {topic}");
        for row in rows.iter() {
            let default =
                String::from_utf8_lossy(&words::quote_if_needed(row.default.as_bytes())).into_owned();
            let default = if matches!(row.kind, Kind::Text) { default } else { row.default.into() };
            let unit = if row.unit.is_empty() { String::new() } else { format!(" ({})", row.unit) };
            let effect = match row.effect {
                Effect::Works => String::new(),
                Effect::Accepted(reason) => format!(" Accepted, no effect: {reason}."),
                Effect::Only(_, reason) => format!(" Limited: {reason}."),
            };
            let _ = writeln!(out, "{} {default}{unit}\n    {}{effect}", row.name, row.doc);
        }
        out.push('\n');
    }
    let _ = writeln!(out, "{} directives", table().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Invocation, String> {
        let words = words::split(line.as_bytes()).unwrap();
        parse(words.into_iter().map(OsString::from_vec))
    }

    fn options(line: &str) -> Vec<Vec<String>> {
        let Ok(Invocation::Serve(sources)) = parsed(line) else { panic!("{line}") };
        let text = |w: &Vec<u8>| String::from_utf8_lossy(w).into_owned();
        sources.options.iter().map(|o| o.iter().map(text).collect()).collect()
    }

    #[test]
    fn options_take_words_up_to_the_next_option() {
        assert_eq!(
            options("--port 7777 --bind 127.0.0.1 ::1"),
            [vec!["port", "7777"], vec!["bind", "127.0.0.1", "::1"]]
        );
        assert_eq!(options(r#"--save "" --port 1"#), [vec!["save", ""], vec!["port", "1"]]);
        assert_eq!(options("--save --port 1"), [vec!["save"], vec!["port", "1"]]);
        assert_eq!(
            options("--requirepass --secret --port 1"),
            [vec!["requirepass", "--secret"], vec!["port", "1"]]
        );
        assert_eq!(options("--port=7777 --foo=1"), [vec!["port", "7777"], vec!["foo=1"]]);
        assert_eq!(options("--port"), [vec!["port"]]);
    }

    #[test]
    fn a_file_comes_first_and_a_dash_reads_standard_input() {
        let Ok(Invocation::Serve(sources)) = parsed("/etc/redis.conf --port 1 -") else { panic!() };
        assert_eq!(sources.file, Some("/etc/redis.conf".into()));
        assert!(sources.stdin);
        assert_eq!(sources.options, [vec![b"port".to_vec(), b"1".to_vec()]]);
        assert!(matches!(parsed("-"), Ok(Invocation::Serve(s)) if s.stdin));
        assert!(matches!(parsed("--check-config a.conf"), Ok(Invocation::Check(s)) if s.file.is_some()));
        assert!(matches!(parsed("a.conf --check-config"), Ok(Invocation::Check(s)) if s.file.is_some()));
        assert!(matches!(parsed("a.conf --port 1 --check-config"), Ok(Invocation::Check(_))));
    }

    #[test]
    fn questions_are_answered() {
        assert_eq!(parsed("-v"), Ok(Invocation::Version));
        assert_eq!(parsed("--help"), Ok(Invocation::Help));
        assert_eq!(parsed("--directives"), Ok(Invocation::Directives));
        assert_eq!(parsed("--example-config"), Ok(Invocation::Example));
        assert!(parsed("-x").unwrap_err().contains("unknown option '-x'"));
        assert!(parsed("a.conf b.conf").unwrap_err().contains("unexpected argument"));
        assert!(version().contains(env!("CARGO_PKG_VERSION")));
        assert!(directives().contains("maxclients 10000"));
    }
}
