//! Reads files and a command line into values, and reports each mistake with its place.
//!
//! ```text
//! defaults ── FILE (and what it includes) ── standard input ("-") ── --directive value ──▶ Draft ──▶ Config
//!                            later words win; every mistake is collected, not just the first
//! ```
//!
//! A value that is not supported is refused only if no later line replaces it. So a redis.conf with
//! `daemonize yes` works with `--daemonize no`, which is how service managers start it.
//!
//! - D1: a [`Draft`] with errors never becomes a [`Config`](super::Config).

use super::args::Sources;
use super::table::{Effect, find, nearest, table};
use super::words;
use command::registry::Names;
use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The depth to which files may include files.
const INCLUDE_DEPTH_MAX: usize = 16;
/// Mistakes reported at once, so that a wrong file (a log, a binary) does not fill the terminal.
const ERRORS_MAX: usize = 20;
/// The size above which a configuration file must be a mistake.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The place of a line of configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    File { path: PathBuf, line: usize },
    StandardInput { line: usize },
    CommandLine,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line } => {
                write!(f, "Reading the configuration file {}, at line {line}", path.display())
            }
            Place::StandardInput { line } => {
                write!(f, "Reading the configuration from standard input, at line {line}")
            }
            Place::CommandLine => write!(f, "Reading the command line"),
        }
    }
}

impl Place {
    /// The place, as compilers write it.
    pub fn short(&self) -> String {
        match self {
            Place::File { path, line } => format!("{}:{line}", path.display()),
            Place::StandardInput { line } => format!("standard input:{line}"),
            Place::CommandLine => "command line".into(),
        }
    }
}

/// A line that changes nothing, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    pub place: Place,
    pub text: String,
    pub reason: String,
}

/// One mistake in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Mistake {
    pub place: Place,
    pub text: String,
    pub reason: String,
}

/// The mistakes of a configuration that cannot be used: at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadError {
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*** FATAL CONFIG FILE ERROR (Evenkeel {}) ***", env!("CARGO_PKG_VERSION"))?;
        for (at, mistake) in self.mistakes.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{}\n>>> '{}'\n{}", mistake.place, mistake.text, mistake.reason)?;
        }
        if self.mistakes.len() >= ERRORS_MAX {
            writeln!(f, "\n(there may be more mistakes)")?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// A configuration while it is read.
pub(super) struct Draft {
    /// Each row's value, as shown.
    pub values: Vec<Vec<u8>>,
    /// The last line that set the row, and its text. None: no line did.
    pub given: Vec<Option<(Place, String)>>,
    /// Lines that change nothing, as far as that shows while lines are read.
    pub idle: Vec<Idle>,
    /// The `rename-command` lines: the usual name, and the new one, which may be empty.
    pub renames: Vec<(Vec<u8>, Vec<u8>)>,
    /// The `source` lines, and whether they stand in the main file.
    pub sources: Vec<(mapping::Spec, bool)>,
    users: Vec<UserLine>,
    /// The names of commands after the renames so far.
    names: Names,
    /// The mistakes. One with a row asks for an unsupported value, and goes when a later line sets the row.
    mistakes: Vec<(Option<usize>, Mistake)>,
}

impl Draft {
    pub fn defaults() -> Draft {
        let values: Vec<Vec<u8>> = table().iter().map(|row| row.default.as_bytes().to_vec()).collect();
        Draft {
            given: vec![None; values.len()],
            idle: Vec::new(),
            values,
            renames: Vec::new(),
            sources: Vec::new(),
            users: Vec::new(),
            names: Names::usual(),
            mistakes: Vec::new(),
        }
    }

    /// Reads everything the command line names, in order. Blocks on files and standard input.
    pub fn read(&mut self, sources: &Sources, stdin: &mut dyn Read) -> Result<(), LoadError> {
        if let Some(path) = &sources.file {
            self.file(path, &Place::CommandLine, &path.display().to_string(), 0);
        }
        if sources.stdin {
            let mut text = Vec::new();
            match stdin.take(FILE_BYTES_MAX).read_to_end(&mut text) {
                Ok(_) => self.lines(&text, 0, &|line| Place::StandardInput { line }),
                Err(e) => self.mistake(&Place::CommandLine, "-", format!("can't read standard input: {e}")),
            }
        }
        for option in &sources.options {
            let text = display_option(option);
            self.directive(option, &Place::CommandLine, &text, 0);
        }
        match self.mistakes.is_empty() {
            true => Ok(()),
            false => {
                Err(LoadError { mistakes: self.mistakes.drain(..).map(|(_, mistake)| mistake).collect() })
            }
        }
    }

    /// Reads one file. `place` and `text` are those of the line that names it.
    fn file(&mut self, path: &Path, place: &Place, text: &str, depth: usize) {
        match read_file(path) {
            Ok(bytes) => {
                let path = path.to_owned();
                self.lines(&bytes, depth, &|line| Place::File { path: path.clone(), line });
            }
            Err(reason) => {
                self.mistake(place, text, format!("can't open config file '{}': {reason}", path.display()))
            }
        }
    }

    fn lines(&mut self, bytes: &[u8], depth: usize, place: &dyn Fn(usize) -> Place) {
        for (at, line) in bytes.split(|&b| b == b'\n').enumerate() {
            if self.mistakes.len() >= ERRORS_MAX {
                return;
            }
            let line = line.trim_ascii();
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            let (place, text) = (place(at + 1), String::from_utf8_lossy(line));
            match words::split(line) {
                Some(words) if words.is_empty() => {}
                Some(words) => self.directive(&words, &place, &text, depth),
                None => {
                    let name = text.split_whitespace().next().unwrap_or_default();
                    let hidden = format!("{name} ...");
                    let text = if is_secret(name.to_ascii_lowercase().as_bytes()) { &hidden } else { &*text };
                    self.mistake(&place, text, "Unbalanced quotes in configuration line".into());
                }
            }
        }
    }

    /// Applies one line. `words` is the name and zero or more values.
    fn directive(&mut self, words: &[Vec<u8>], place: &Place, text: &str, depth: usize) {
        let (name, args) = (words[0].to_ascii_lowercase(), &words[1..]);
        // The value of a secret stays out of terminals and logs.
        let secret = is_secret(&name);
        let hidden = format!("{} ...", String::from_utf8_lossy(&name));
        let done = match name.as_slice() {
            b"include" => self.include(args, place, text, depth),
            b"rename-command" => self.rename(args, place, text),
            b"user" => self.user(args, depth == 0 && matches!(place, Place::File { .. })),
            b"source" => self.source(args, depth == 0 && matches!(place, Place::File { .. })),
            b"loadmodule" => Err("modules are not supported".into()),
            _ => self.set(&name, args, place, if secret { &hidden } else { text }),
        };
        if let Err(reason) = done {
            let row = find(&name)
                .filter(|&at| matches!(table()[at].effect, Effect::Only(_, absent) if absent == reason));
            self.mistake_of(row, place, if secret { &hidden } else { text }, reason);
        }
    }

    fn set(&mut self, name: &[u8], args: &[Vec<u8>], place: &Place, text: &str) -> Result<(), String> {
        let at = find(name).ok_or_else(|| unknown(name))?;
        let (row, now) = (&table()[at], &self.values[at]);
        let is_first = self.given[at].is_none();
        let accepted = if is_first { row.accept(args, now) } else { row.accept_further(args, now) };
        self.values[at] = accepted?.1;
        let before = self.given[at].replace((place.clone(), text.to_owned()));
        if let Some((earlier, text)) = before.filter(|_| !row.kind.is_added_to()) {
            let reason = format!("it is set again: {}", place.short());
            self.idle.push(Idle { place: earlier, text, reason });
        }
        self.mistakes.retain(|(row, _)| *row != Some(at));
        Ok(())
    }

    fn include(&mut self, args: &[Vec<u8>], place: &Place, text: &str, depth: usize) -> Result<(), String> {
        let [pattern] = args else { return Err("wrong number of arguments".into()) };
        if depth >= INCLUDE_DEPTH_MAX {
            return Err(format!("files include each other more than {INCLUDE_DEPTH_MAX} deep"));
        }
        let pattern = Path::new(OsStr::from_bytes(pattern));
        for path in matching_paths(pattern) {
            self.file(&path, place, text, depth + 1);
        }
        Ok(())
    }

    fn rename(&mut self, args: &[Vec<u8>], place: &Place, text: &str) -> Result<(), String> {
        let [from, to] = args else { return Err("wrong number of arguments".into()) };
        let is_known = self.names.find(from).is_some();
        self.names.rename(from, to)?;
        if !is_known {
            let reason = "there is no such command in Evenkeel".into();
            self.idle.push(Idle { place: place.clone(), text: text.to_owned(), reason });
        }
        self.renames.push((from.clone(), to.clone()));
        Ok(())
    }

    fn source(&mut self, args: &[Vec<u8>], in_file: bool) -> Result<(), String> {
        self.sources.push((source(args)?, in_file));
        Ok(())
    }

    /// Keeps a `user` line; its rules are applied when all lines are read, as `acl-pubsub-default` may follow.
    fn user(&mut self, args: &[Vec<u8>], in_file: bool) -> Result<(), String> {
        let [name, rules @ ..] = args else { return Err("wrong number of arguments".into()) };
        if !acl::is_name(name) {
            return Err("Error in user declaration: user names have no spaces and no null characters".into());
        }
        if self.users.iter().any(|line| line.user.name() == &name[..]) {
            return Err("Duplicate user found. A user can only be defined once in config files".into());
        }
        let merged = acl::merged(rules.iter().map(Vec::as_slice)).map_err(|_| {
            "Error in user declaration: Unmatched parenthesis in selector definition.".to_owned()
        })?;
        let user = user_of(name, &merged, false)?;
        self.users.push(UserLine { user, rules: merged, in_file });
        Ok(())
    }

    /// The users of the `user` lines, and whether each line stands in the main file.
    pub fn declared(&self) -> Vec<(acl::User, bool)> {
        let at = find(b"acl-pubsub-default");
        let all_channels = at.is_some_and(|at| self.values[at] == b"allchannels");
        let again = |line: &UserLine| user_of(line.user.name(), &line.rules, all_channels).ok();
        self.users
            .iter()
            .map(|line| (again(line).unwrap_or_else(|| line.user.clone()), line.in_file))
            .collect()
    }

    fn mistake(&mut self, place: &Place, text: &str, reason: String) {
        self.mistake_of(None, place, text, reason);
    }

    fn mistake_of(&mut self, row: Option<usize>, place: &Place, text: &str, reason: String) {
        if self.mistakes.len() < ERRORS_MAX {
            let text = mapping::shown::line(text).chars().take(200).collect();
            self.mistakes.push((row, Mistake { place: place.clone(), text, reason }));
        }
    }
}

/// A `user` line.
pub(super) struct UserLine {
    user: acl::User,
    rules: Vec<Vec<u8>>,
    in_file: bool,
}

/// A new user with these rules. Errors: the first wrong one, without its words: they may be a password.
fn user_of(name: &[u8], rules: &[Vec<u8>], all_channels: bool) -> Result<acl::User, String> {
    let mut user = acl::User::new(name, all_channels);
    for (at, rule) in rules.iter().enumerate() {
        user.apply(rule, all_channels)
            .map_err(|error| format!("Error in user declaration, rule {}: {}", at + 1, error.text()))?;
    }
    Ok(user)
}

/// Parses the words after `source`.
pub(super) fn source(args: &[Vec<u8>]) -> Result<mapping::Spec, String> {
    let words = args.iter().map(|word| std::str::from_utf8(word));
    let words = words.collect::<Result<Vec<_>, _>>().map_err(|_| "a word is not UTF-8".to_owned())?;
    mapping::Spec::parse(words)
}

/// Whether the values of this directive may be secret. `name`: in small letters.
fn is_secret(name: &[u8]) -> bool {
    find(name).is_some_and(|at| table()[at].secret) || name == b"user" || name == b"source"
}

fn unknown(name: &[u8]) -> String {
    let shown = mapping::shown::line(&String::from_utf8_lossy(name));
    let hint = nearest(name).map(|n| format!("; did you mean '{n}'?")).unwrap_or_default();
    format!("Bad directive or wrong number of arguments: there is no directive '{shown}'{hint}")
}

/// An option as a user would type it.
fn display_option(words: &[Vec<u8>]) -> String {
    let mut text = format!("--{}", String::from_utf8_lossy(&words[0]));
    for word in &words[1..] {
        text.push(' ');
        text.push_str(&String::from_utf8_lossy(&words::quote_if_needed(word)));
    }
    text
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let plain = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => "No such file or directory".into(),
        std::io::ErrorKind::PermissionDenied => "Permission denied".into(),
        std::io::ErrorKind::IsADirectory => "Is a directory".into(),
        _ => e.to_string(),
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(plain)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(plain)?;
    if bytes.len() as u64 > FILE_BYTES_MAX { Err("more than 16 MB".into()) } else { Ok(bytes) }
}

/// The files that match a path with `*`, `?` or `[`, sorted. A plain path stands for itself.
fn matching_paths(pattern: &Path) -> Vec<PathBuf> {
    let is_glob = |part: &OsStr| part.as_bytes().iter().any(|b| b"*?[".contains(b));
    if !pattern.iter().any(is_glob) {
        return vec![pattern.to_owned()];
    }
    let mut paths = vec![PathBuf::new()];
    for part in pattern.iter() {
        if !is_glob(part) {
            paths.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        paths = paths.iter().flat_map(|folder| entries(folder, part.as_bytes())).collect();
    }
    paths.retain(|path| path.exists());
    paths.sort();
    paths
}

fn entries(folder: &Path, pattern: &[u8]) -> Vec<PathBuf> {
    let place = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let visible = |name: &std::ffi::OsString| !name.as_bytes().starts_with(b".") || pattern.starts_with(b".");
    names
        .filter(|name| visible(name) && stdx::glob::matches(pattern, name.as_bytes(), false))
        .map(|name| folder.join(name))
        .collect()
}
