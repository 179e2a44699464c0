//! `evenkeel completions SHELL` and `evenkeel man [PAGE]`: the command line as clap describes it, for packages.
//!
//! This describes the program and parses nothing but its own two commands: crates `config`, `loader`, `bench`
//! and `top`, and [`doctor`](crate::doctor), read theirs themselves. A test compares the description with what these take.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::Shell;
use config::{Directive, Kind};
use std::ffi::OsString;

/// Runs `completions` or `man` with the words behind it, and returns the text to print. O(directives).
/// Errors: a wrong call.
pub fn run(words: &[OsString]) -> Result<String, String> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    match words[..] {
        ["completions", shell] => {
            let shell: Shell = shell.parse().map_err(|_| HELP.to_owned())?;
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut program(), "evenkeel", &mut text);
            String::from_utf8(text).map_err(|e| e.to_string())
        }
        ["man"] => page(program()),
        ["man", name] => {
            let found = commands().into_iter().find(|command| command.get_name() == name);
            let title = TITLES.into_iter().find(|title| title.strip_prefix("evenkeel-") == Some(name));
            let (command, title) = found.zip(title).ok_or_else(|| HELP.to_owned())?;
            page(command.name(title))
        }
        _ => Err(HELP.to_owned()),
    }
}

const HELP: &str = "\
usage: evenkeel completions bash|elvish|fish|powershell|zsh
       evenkeel man [load|copy|bench|top|stat|ping|doctor]
";

/// The titles of the pages about subcommands.
const TITLES: [&str; 7] = [
    "evenkeel-load",
    "evenkeel-copy",
    "evenkeel-bench",
    "evenkeel-top",
    "evenkeel-stat",
    "evenkeel-ping",
    "evenkeel-doctor",
];

fn page(command: Command) -> Result<String, String> {
    let version = env!("CARGO_PKG_VERSION");
    let page = clap_mangen::Man::new(command).manual("Evenkeel").source(format!("Evenkeel {version}"));
    let mut text = Vec::new();
    page.render(&mut text).map_err(|e| e.to_string())?;
    let text = String::from_utf8(text).map_err(|e| e.to_string())?;
    // The empty date is a word of its own; packages put theirs there.
    Ok(text.replacen(" 1  \"", " 1 \"\" \"", 1))
}

/// The whole program.
fn program() -> Command {
    Command::new("evenkeel")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A Redis-compatible in-memory server in which no client waits for another client's work")
        .long_about(
            "A Redis-compatible in-memory server in which no client waits for another client's work.\n\n\
             Without a subcommand evenkeel is the server. It reads a redis.conf, and each directive is an option \
             as well; the later one counts. A word - reads lines of configuration from standard input.\n\n\
             SIGTERM and SIGINT end it in order. The exit code is 0 after an orderly end, 1 if it could not start, \
             and 130 if a second signal cut the end short.",
        )
        .override_usage("evenkeel [FILE] [-] [--directive value ...]\n       evenkeel load|copy|bench|top|stat|doctor|ping ...")
        .disable_help_subcommand(true)
        .arg(Arg::new("file").value_name("FILE").value_hint(ValueHint::FilePath).help("A redis.conf"))
        .arg(question("check-config", "Read the configuration, report mistakes, and end"))
        .arg(question("directives", "List what can be configured, and end"))
        .arg(question("example-config", "Write a configuration with all defaults, as comments, and end"))
        .args(config::table().iter().map(option))
        .subcommands(commands())
}

/// The subcommands, each by its own word.
fn commands() -> Vec<Command> {
    let [load, copy, ping] = loader::commands();
    let mut commands = vec![
        load.name("load"),
        copy.name("copy"),
        bench::command().name("bench"),
        ping.name("ping"),
        doctor(),
    ];
    #[cfg(feature = "tools")]
    {
        let [top, stat] = top::commands();
        commands.extend([top.name("top"), stat.name("stat")]);
    }
    commands
}

fn doctor() -> Command {
    Command::new("doctor")
        .bin_name("evenkeel doctor")
        .about("Check and describe the files of a server that is not running")
        .long_about(
            "Checks an RDB file, the directory of an append-only log, or a directory that holds both, and describes \
             what is there: keys by type, the largest values, bytes by prefix, expiries, and damage with its offset. \
             A file lost-N.aof has the writes that were lost to another primary.\n\n\
             The exit code is 0 if all is sound, 1 if something is not, and 2 for a wrong call.",
        )
        .arg(Arg::new("path").value_name("FILE|DIR").required(true).value_hint(ValueHint::AnyPath))
        .arg(question("fix", "Cut off the torn end of an append-only log"))
        .arg(
            Arg::new("replay")
                .long("replay")
                .value_name("HOST:PORT")
                .help("Run the writes that were lost to another primary at that server, which may have newer ones"),
        )
}

fn question(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// A directive as an option of the command line.
fn option(directive: &Directive) -> Arg {
    let arg = Arg::new(directive.name).long(directive.name).help(directive.doc).help_heading("Directives");
    let values: &[&str] = match directive.kind {
        Kind::Bool => &["yes", "no"],
        Kind::Choice(words) => words,
        _ => return arg.value_name(if directive.unit.is_empty() { "VALUE" } else { directive.unit }),
    };
    arg.value_name("VALUE").value_parser(PossibleValuesParser::new(values.iter().copied()))
}

/// Whether a word of the command line asks for it.
pub fn is_asked(word: &OsString) -> bool {
    word == "completions" || word == "man"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: &[&str]) -> Result<String, String> {
        run(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn each_shell_completes_commands_and_directives() {
        for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
            let script = text(&["completions", shell]).expect(shell);
            for word in
                ["ping", "doctor", "bench", "beside-db", "appendfsync", "check-config", "password-file"]
            {
                assert!(script.contains(word), "{shell}: {word}");
            }
            // The others complete no values.
            let completes_values = !["elvish", "powershell"].contains(&shell);
            assert_eq!(script.contains("everysec"), completes_values, "{shell}");
        }
        assert!(
            text(&["completions", "dos"]).expect_err("no shell").starts_with("usage: evenkeel completions")
        );
        assert!(text(&["completions"]).is_err());
    }

    #[test]
    fn pages_name_all_directives_and_their_own_options() {
        let page = text(&["man"]).expect("a page");
        assert!(page.contains(".TH evenkeel 1 \"\" \"Evenkeel "), "{page:.300}");
        for directive in config::table() {
            assert!(page.contains(&directive.name.replace('-', "\\-")), "{}", directive.name);
        }
        for (name, option) in [
            ("load", "dry\\-run"),
            ("copy", "from\\-user"),
            ("doctor", "replay"),
            ("ping", "password\\-file"),
            ("bench", "beside\\-db"),
        ] {
            let page = text(&["man", name]).expect(name);
            assert!(page.contains(&format!("evenkeel\\-{name}")) && page.contains(option), "{page}");
        }
        assert!(text(&["man", "nothing"]).is_err());
    }

    #[test]
    fn what_is_described_is_what_the_program_takes() {
        for command in commands() {
            let name = OsString::from(command.get_name());
            assert!(text(&["man", command.get_name()]).is_ok(), "{name:?}");
            let is_clap = loader::is_command(&name) || bench::is_command(&name) || crate::is_tool(&name);
            assert!(is_clap || crate::doctor::is_asked(&name), "{name:?}");
            assert!(config::HELP.contains(&format!("evenkeel {} --help", command.get_name())), "{name:?}");
            if is_clap {
                continue;
            }
            for arg in command.get_arguments().filter_map(|arg| arg.get_long()) {
                assert!(crate::doctor::HELP.contains(&format!("--{arg}")), "{arg}");
            }
        }
        for question in ["check-config", "directives", "example-config"] {
            assert!(config::parse([OsString::from(format!("--{question}"))]).is_ok(), "{question}");
            assert!(config::HELP.contains(&format!("--{question}")), "{question}");
        }
        program().debug_assert();
    }
}
