//! The arguments of commands for COMMAND DOCS, each command from a line of text.
//!
//! ```text
//! set key:key0 value [condition(NX@2.6.12 | XX@2.6.12)] [GET@6.2.0] [expiration(EX=seconds:int | KEEPTTL)]
//! ```
//!
//! | written | means |
//! |---|---|
//! | `value` | an argument of this name; `:int`, `:num`, `:time`, `:pattern` give its type, `:key0` a key of key specification 0 |
//! | `NX`, `NX/name` | a literal word; the reply calls it `nx`, or `name` |
//! | `EX=...` | the word, followed by the argument |
//! | `name(a \| b)` | one of these |
//! | `name{a b}` | these, together |
//! | `[...]` | may be left out |
//! | `...`, `*...` behind an argument | may be repeated; with `*` its word comes before each |
//! | `@6.2.0` behind it | since that version |
//! | `!6.2.0` behind that | deprecated since that version |
//! | `name'shown` | is shown to people as `shown` |
//! | `!6.2.0"use"` in front of all | the command is deprecated since that version, and what to use instead |
//!
//! Names that are not plain words are in backticks. Commands without arguments have no line.
//!
//! - Y1: every line parses, and names key specifications that its row has (tested for all).
//!
//! Cost: a line is parsed each time COMMAND DOCS asks for it, in O(bytes).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

static LINES: LazyLock<HashMap<&'static str, &'static str>> = LazyLock::new(|| {
    let lines = include_str!("syntax.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).collect()
});

/// The arguments of a command.
#[derive(Debug, Default, PartialEq)]
pub struct Syntax {
    /// Version since which the command is deprecated.
    pub deprecated: Option<&'static str>,
    /// The text that says what to use instead of a deprecated command.
    pub replaced_by: Option<&'static str>,
    pub args: Vec<Arg>,
}

/// One argument, or several that belong together.
#[derive(Debug, PartialEq)]
pub struct Arg {
    pub name: Cow<'static, str>,
    /// The name shown to people, if it differs.
    pub shown: Option<&'static str>,
    pub kind: Kind,
    /// The key specification that this argument belongs to.
    pub key_spec: Option<usize>,
    /// The word in front of it; for a [`Kind::Token`] the word itself.
    pub token: Option<&'static str>,
    pub since: Option<&'static str>,
    pub deprecated: Option<&'static str>,
    pub optional: bool,
    pub multiple: bool,
    pub multiple_token: bool,
    /// The parts of a [`Kind::OneOf`] or a [`Kind::Block`].
    pub args: Vec<Arg>,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    String,
    Integer,
    Double,
    Pattern,
    UnixTime,
    Key,
    Token,
    OneOf,
    Block,
}

impl Arg {
    fn new(name: impl Into<Cow<'static, str>>, kind: Kind) -> Arg {
        Arg {
            name: name.into(),
            shown: None,
            kind,
            key_spec: None,
            token: None,
            since: None,
            deprecated: None,
            optional: false,
            multiple: false,
            multiple_token: false,
            args: Vec::new(),
        }
    }
}

impl Kind {
    /// The name in COMMAND DOCS.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Double => "double",
            Kind::Pattern => "pattern",
            Kind::UnixTime => "unix-time",
            Kind::Key => "key",
            Kind::Token => "pure-token",
            Kind::OneOf => "oneof",
            Kind::Block => "block",
        }
    }
}

/// The arguments of a command, by its row's name. Empty if it has none.
pub fn of(command: &str) -> Syntax {
    LINES.get(command).and_then(|line| parse(line)).unwrap_or_default()
}

/// Parses a line. None if it does not follow the module header.
fn parse(line: &'static str) -> Option<Syntax> {
    let mut text = SyntaxText(line);
    let deprecated = text.take("!").then(|| text.version());
    let replaced_by = if text.take("\"") { Some(text.quoted()?) } else { None };
    text.take(" ");
    let args = text.list(" ", "")?;
    Some(Syntax { deprecated, replaced_by, args })
}

/// The unread rest of a line.
struct SyntaxText(&'static str);

impl SyntaxText {
    fn take(&mut self, what: &str) -> bool {
        match self.0.strip_prefix(what) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    /// Reads arguments separated by `between`, up to and including `end`.
    fn list(&mut self, between: &str, end: &str) -> Option<Vec<Arg>> {
        let mut args = Vec::new();
        if self.0.is_empty() && end.is_empty() {
            return Some(args);
        }
        loop {
            args.push(self.arg()?);
            if end.is_empty() && self.0.is_empty() {
                return Some(args);
            }
            if !end.is_empty() && self.take(end) {
                return Some(args);
            }
            if !self.take(between) {
                return None;
            }
        }
    }

    fn arg(&mut self) -> Option<Arg> {
        if self.take("[") {
            let arg = self.required()?;
            return self.take("]").then_some(Arg { optional: true, ..arg });
        }
        self.required()
    }

    fn required(&mut self) -> Option<Arg> {
        let quoted = self.0.starts_with('`');
        let word = self.name()?;
        let is_token = quoted || word.starts_with(|c: char| c.is_ascii_uppercase());
        let mut arg = match is_token {
            true if self.take("=") => {
                let name = self.name()?;
                Arg { token: Some(word), ..self.named(name)? }
            }
            true => {
                let name =
                    if self.take("/") { self.name()?.into() } else { Cow::from(word.to_ascii_lowercase()) };
                Arg { token: Some(word), ..Arg::new(name, Kind::Token) }
            }
            false => self.named(word)?,
        };
        if self.take("'") {
            arg.shown = Some(self.name()?);
        }
        if self.take("@") {
            arg.since = Some(self.version());
        }
        if self.take("!") {
            arg.deprecated = Some(self.version());
        }
        arg.multiple_token = self.take("*...");
        arg.multiple = arg.multiple_token || self.take("...");
        Some(arg)
    }

    /// Reads the part behind an argument's name.
    fn named(&mut self, name: &'static str) -> Option<Arg> {
        if self.take("(") {
            return Some(Arg { args: self.list(" | ", ")")?, ..Arg::new(name, Kind::OneOf) });
        }
        if self.take("{") {
            return Some(Arg { args: self.list(" ", "}")?, ..Arg::new(name, Kind::Block) });
        }
        if !self.take(":") {
            return Some(Arg::new(name, Kind::String));
        }
        let word = self.word();
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let kind = match letters {
            "int" => Kind::Integer,
            "num" => Kind::Double,
            "time" => Kind::UnixTime,
            "pattern" => Kind::Pattern,
            "key" => Kind::Key,
            _ => return None,
        };
        Some(Arg { key_spec: word[letters.len()..].parse().ok(), ..Arg::new(name, kind) })
    }

    /// A name, perhaps between backticks.
    fn name(&mut self) -> Option<&'static str> {
        if !self.take("`") {
            return Some(self.word()).filter(|word| !word.is_empty());
        }
        let (name, rest) = self.0.split_once('`')?;
        self.0 = rest;
        Some(name)
    }

    fn word(&mut self) -> &'static str {
        let end = self.0.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
        self.split(end.unwrap_or(self.0.len()))
    }

    /// Reads digits with dots between them. The dots of a repetition may follow.
    fn version(&mut self) -> &'static str {
        let end = self.0.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.0.len());
        self.split(self.0[..end].trim_end_matches('.').len())
    }

    /// The text up to the next quotation mark. None if there is none.
    fn quoted(&mut self) -> Option<&'static str> {
        let text = self.split(self.0.find('"')?);
        self.take("\"").then_some(text)
    }

    fn split(&mut self, at: usize) -> &'static str {
        let (taken, rest) = self.0.split_at(at);
        self.0 = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places;
    use crate::table::Command;

    fn every_arg(args: &[Arg], f: &mut dyn FnMut(&Arg)) {
        for arg in args {
            f(arg);
            every_arg(&arg.args, f);
        }
    }

    #[test]
    fn every_line_parses_and_belongs_to_a_command() {
        let known = |name: &str| places::all().iter().find(|command| command.name == name).copied();
        for (name, line) in LINES.iter() {
            let syntax = parse(line).unwrap_or_else(|| panic!("{name} {line}"));
            let Some(command) = known(name) else { panic!("{name} is no command") };
            let deprecated_only = syntax.deprecated.is_some() && syntax.args.is_empty();
            assert!(deprecated_only || !syntax.args.is_empty(), "{name}");
            assert_eq!(syntax.deprecated.is_some(), syntax.replaced_by.is_some(), "{name}");
            every_arg(&syntax.args, &mut |arg| {
                assert!(arg.key_spec.is_none_or(|spec| spec < command.keys.len()), "{name} {}", arg.name);
                assert!(arg.kind != Kind::Key || arg.key_spec.is_some(), "{name} {}", arg.name);
                let is_group = matches!(arg.kind, Kind::OneOf | Kind::Block);
                assert_eq!(is_group, !arg.args.is_empty(), "{name} {}", arg.name);
            });
        }
    }

    /// The fewest arguments of a command line, by its syntax.
    fn least(args: &[Arg]) -> i32 {
        let words = |arg: &Arg| {
            let inner = match arg.kind {
                Kind::Token => 0,
                Kind::Block => least(&arg.args),
                Kind::OneOf => arg.args.iter().map(|arg| least(std::slice::from_ref(arg))).min().unwrap_or(0),
                _ => 1,
            };
            inner + i32::from(arg.token.is_some())
        };
        args.iter().filter(|arg| !arg.optional).map(words).sum()
    }

    #[test]
    fn commands_take_as_many_arguments_as_their_syntax_says() {
        let fits = |command: &Command| {
            let syntax = of(command.name);
            let name = 1 + i32::from(command.name.contains('|'));
            let mut fixed = true;
            every_arg(&syntax.args, &mut |arg| fixed &= !arg.optional && !arg.multiple);
            let words = name + least(&syntax.args);
            if command.arity > 0 { fixed && words == command.arity } else { words >= -command.arity }
        };
        let unlike = places::all().iter().filter(|command| command.subs.is_empty() && !fits(command));
        let unlike: Vec<_> = unlike.map(|command| command.name).collect();
        // CLIENT KILL needs at least one of its options, and a search a centre or a polygon. DEBUG documents
        // none of its many subcommands.
        assert_eq!(unlike, ["client|kill", "geosearch", "geosearchstore", "debug"]);
    }

    #[test]
    fn a_line_is_read_as_its_head_explains() {
        let syntax = parse("!6.2.0 key:key0 [GET=`get it`:pattern1'shown@6.2.0*...] c(NX | EX/name=s:int)");
        assert_eq!(syntax, None, "a word has a name or an argument");
        let syntax = parse("!6.2.0 key:key0 [GET=`get it`:pattern1'shown@6.2.0*...] c(NX/n | `~`){x}");
        assert_eq!(syntax, None, "nothing follows alternatives");
        let syntax =
            parse("!6.2.0\"`B` of A\" key:key0 [GET=`get it`:pattern1'shown@6.2.0!7.0.0*...] c(NX/n | b{`~` t:time})...")
                .unwrap();
        assert_eq!((syntax.deprecated, syntax.replaced_by), (Some("6.2.0"), Some("`B` of A")));
        assert_eq!(parse("!6.2.0\"open key:key0"), None);
        let [key, get, choice] = &syntax.args[..] else { panic!("{syntax:?}") };
        assert_eq!(*key, Arg { key_spec: Some(0), ..Arg::new("key", Kind::Key) });
        let wanted = Arg {
            shown: Some("shown"),
            key_spec: Some(1),
            token: Some("GET"),
            since: Some("6.2.0"),
            deprecated: Some("7.0.0"),
            optional: true,
            multiple: true,
            multiple_token: true,
            ..Arg::new("get it", Kind::Pattern)
        };
        assert_eq!(*get, wanted);
        assert!(choice.multiple && !choice.multiple_token && choice.kind == Kind::OneOf);
        let tilde = Arg { token: Some("~"), ..Arg::new("~", Kind::Token) };
        let block = Arg { args: vec![tilde, Arg::new("t", Kind::UnixTime)], ..Arg::new("b", Kind::Block) };
        assert_eq!(choice.args, [Arg { token: Some("NX"), ..Arg::new("n", Kind::Token) }, block]);
    }
}
