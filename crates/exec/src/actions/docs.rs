//! COMMAND DOCS: the table of commands as documentation, for people and for tools that complete commands.
//!
//! All commands together are some 200 KB, so they are streamed.

use super::commands::by_full_name;
use super::{Act, PLAIN, Row};
use crate::Flow;
use command::syntax::{self, Arg, Kind};
use command::{Command, Error, Stream, registry};
use resp::{Args, Reply};

pub(super) const ACTIONS: &[Row] = &[Row("command|docs", docs, PLAIN)];

/// `COMMAND DOCS [name ...]`: unknown names are left out. Cost: O(commands), some microseconds each, in
/// slices.
fn docs(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let commands: Vec<&'static Command> = match args.len() {
        2 => registry::callable().to_vec(),
        _ => args.from(2).iter().filter_map(by_full_name).collect(),
    };
    act.out.map(commands.len());
    let mut docs = Docs { commands, next: 0 };
    if act.is_pressed() {
        while docs.fill(act.out, usize::MAX) {}
        return Ok(Flow::Done);
    }
    Ok(Flow::Stream(Box::new(docs)))
}

struct Docs {
    commands: Vec<&'static Command>,
    next: usize,
}

impl Stream for Docs {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while self.next < self.commands.len() && out.len() < end {
            describe(out, self.commands[self.next]);
            self.next += 1;
        }
        self.next < self.commands.len()
    }
}

/// Writes a command's name and description.
fn describe(out: &mut Reply, command: &Command) {
    let syntax = syntax::of(command.name);
    out.bulk(command.name.as_bytes());
    let more = [!syntax.args.is_empty(), !command.subs.is_empty()].iter().filter(|there| **there).count();
    out.map(4 + 2 * usize::from(syntax.deprecated.is_some()) + more);
    pair(out, "summary", command.summary);
    pair(out, "since", command.since);
    pair(out, "group", command.group);
    pair(out, "complexity", command.complexity);
    if let Some(since) = syntax.deprecated {
        out.bulk(b"doc_flags");
        out.set(1);
        out.simple("deprecated");
        pair(out, "deprecated_since", since);
    }
    if !syntax.args.is_empty() {
        arguments(out, &syntax.args);
    }
    if !command.subs.is_empty() {
        out.bulk(b"subcommands");
        out.map(command.subs.len());
        command.subs.iter().for_each(|sub| describe(out, sub));
    }
}

fn arguments(out: &mut Reply, args: &[Arg]) {
    out.bulk(b"arguments");
    out.array(args.len());
    args.iter().for_each(|arg| argument(out, arg));
}

fn argument(out: &mut Reply, arg: &Arg) {
    let is_group = matches!(arg.kind, Kind::OneOf | Kind::Block);
    let flags =
        [(arg.optional, "optional"), (arg.multiple, "multiple"), (arg.multiple_token, "multiple_token")];
    let flags = || flags.iter().filter(|(set, _)| *set);
    // An argument has either a display text or inner arguments.
    let some =
        [true, arg.key_spec.is_some(), arg.token.is_some(), arg.since.is_some(), arg.deprecated.is_some()];
    out.map(2 + some.iter().filter(|there| **there).count() + usize::from(flags().count() > 0));
    pair(out, "name", &arg.name);
    pair(out, "type", arg.kind.name());
    if !is_group {
        pair(out, "display_text", arg.shown.unwrap_or(&arg.name));
    }
    if let Some(spec) = arg.key_spec {
        out.bulk(b"key_spec_index");
        out.int(spec as i64);
    }
    if let Some(token) = arg.token {
        pair(out, "token", token);
    }
    if let Some(since) = arg.since {
        pair(out, "since", since);
    }
    if let Some(since) = arg.deprecated {
        pair(out, "deprecated_since", since);
    }
    if flags().count() > 0 {
        out.bulk(b"flags");
        out.set(flags().count());
        flags().for_each(|(_, name)| out.simple(name));
    }
    if is_group {
        arguments(out, &arg.args);
    }
}

fn pair(out: &mut Reply, name: &str, value: &str) {
    out.bulk(name.as_bytes());
    out.bulk(value.as_bytes());
}
