//! A command's row as clients read it: the facts of COMMAND INFO, and the description of COMMAND DOCS.
//!
//! ```text
//! &[&Command] ─┬─► Facts ─► ten facts each, a null for an unknown name     O(keys + subcommands) each
//!              └─► Docs  ─► name, texts, arguments (`syntax`)              some microseconds each
//! ```
//!
//! All commands together are some 200 KB, which take longer than a quantum, so both are streams.

use crate::Stream;
use crate::acl;
use crate::syntax::{self, Arg, Kind};
use crate::table::{Begin, Command, FLAG_NAMES, Find, KeySpec, Use};
use resp::Reply;

/// The facts of some commands, as COMMAND INFO streams them. None: an unknown name, shown as null.
pub struct Facts {
    commands: Vec<Option<&'static Command>>,
    next: usize,
}

impl Facts {
    /// Streams the facts of these commands, in this order.
    pub fn of(commands: Vec<Option<&'static Command>>) -> Facts {
        Facts { commands, next: 0 }
    }
}

impl Stream for Facts {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while self.next < self.commands.len() && out.len() < end {
            match self.commands[self.next] {
                Some(command) => facts(out, command),
                None => out.null(),
            }
            self.next += 1;
        }
        self.next < self.commands.len()
    }
}

/// The descriptions of some commands, as COMMAND DOCS streams them: a name and a map each.
pub struct Docs {
    commands: Vec<&'static Command>,
    next: usize,
}

impl Docs {
    /// Streams the descriptions of these commands, in this order.
    pub fn of(commands: Vec<&'static Command>) -> Docs {
        Docs { commands, next: 0 }
    }
}

impl Stream for Docs {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while self.next < self.commands.len() && out.len() < end {
            doc(out, self.commands[self.next]);
            self.next += 1;
        }
        self.next < self.commands.len()
    }
}

/// Writes the ten facts of COMMAND INFO.
fn facts(out: &mut Reply, command: &Command) {
    let (first, last, step) = legacy_range(command.keys);
    out.array(10);
    out.bulk(command.name.as_bytes());
    out.int(command.arity.into());
    let flags = FLAG_NAMES.iter().filter(|(bit, _)| command.flags & bit != 0);
    out.set(flags.clone().count());
    flags.for_each(|(_, name)| out.simple(name));
    out.int(first);
    out.int(last);
    out.int(step);
    let categories = command.acl_categories();
    let names = acl::NAMES.iter().filter(|(bit, _)| categories & bit != 0);
    out.set(names.clone().count());
    names.for_each(|(_, name)| out.simple(&format!("@{name}")));
    out.set(command.tips.len());
    command.tips.iter().for_each(|tip| out.bulk(tip.as_bytes()));
    out.set(command.keys.len());
    command.keys.iter().for_each(|spec| key_spec(out, spec));
    out.set(command.subs.len());
    command.subs.iter().for_each(|sub| facts(out, sub));
}

/// First key, last key and step, as clients knew them before key specifications. They come from those plain
/// ranges that continue each other.
fn legacy_range(specs: &[KeySpec]) -> (i64, i64, i64) {
    let ranges = specs.iter().filter_map(|spec| match (spec.begin, spec.find) {
        (Begin::Index(first), Find::Range { last, step, limit: 0 }) => {
            let first = first as i64;
            let last = if last >= 0 { first + i64::from(last) } else { i64::from(last) };
            Some((first, last, i64::from(step)))
        }
        _ => None,
    });
    let mut whole: Option<(i64, i64, i64)> = None;
    for (first, last, step) in ranges {
        match &mut whole {
            None => whole = Some((first, last, step)),
            Some(so_far) if so_far.1 == first - 1 && so_far.2 == 1 && step == 1 => so_far.1 = last,
            Some(_) => {}
        }
    }
    whole.unwrap_or((0, 0, 0))
}

fn key_spec(out: &mut Reply, spec: &KeySpec) {
    out.map(if spec.notes.is_empty() { 3 } else { 4 });
    if !spec.notes.is_empty() {
        pair(out, "notes", spec.notes);
    }
    out.bulk(b"flags");
    uses(out, spec.uses);
    out.bulk(b"begin_search");
    match spec.begin {
        Begin::Index(at) => part(out, "index", &[("index", at as i64)]),
        Begin::Keyword { word, shown, .. } | Begin::LastOf { word, shown, .. } => {
            out.map(2);
            pair(out, "type", "keyword");
            out.bulk(b"spec");
            out.map(2);
            pair(out, "keyword", word);
            out.bulk(b"startfrom");
            out.int(shown.into());
        }
        Begin::Last { .. } | Begin::Unknown => part(out, "unknown", &[]),
    }
    out.bulk(b"find_keys");
    match spec.find {
        _ if matches!(spec.begin, Begin::Last { .. }) => part(out, "unknown", &[]),
        Find::Range { last, step, limit } => {
            part(
                out,
                "range",
                &[("lastkey", last.into()), ("keystep", step.into()), ("limit", limit.into())],
            );
        }
        Find::KeyNum { num, first, step } => {
            let numbers = [("keynumidx", num as i64), ("firstkey", first as i64), ("keystep", step as i64)];
            part(out, "keynum", &numbers);
        }
        Find::Unknown => part(out, "unknown", &[]),
    }
}

fn part(out: &mut Reply, kind: &str, numbers: &[(&str, i64)]) {
    out.map(2);
    pair(out, "type", kind);
    out.bulk(b"spec");
    out.map(numbers.len());
    for (name, number) in numbers {
        out.bulk(name.as_bytes());
        out.int(*number);
    }
}

/// Writes what is done with a key: the flags of its specification.
pub fn uses(out: &mut Reply, uses: Use) {
    out.set(uses.0.len());
    uses.0.iter().for_each(|name| out.simple(name));
}

/// Writes a command's name and description.
fn doc(out: &mut Reply, command: &Command) {
    let syntax = syntax::of(command.name);
    out.bulk(command.name.as_bytes());
    let more = [!syntax.args.is_empty(), !command.subs.is_empty()].iter().filter(|there| **there).count();
    let replaced = usize::from(syntax.replaced_by.is_some());
    out.map(4 + 2 * usize::from(syntax.deprecated.is_some()) + replaced + more);
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
    if let Some(instead) = syntax.replaced_by {
        pair(out, "replaced_by", instead);
    }
    if !syntax.args.is_empty() {
        arguments(out, &syntax.args);
    }
    if !command.subs.is_empty() {
        out.bulk(b"subcommands");
        out.map(command.subs.len());
        command.subs.iter().for_each(|sub| doc(out, sub));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use crate::table::{RO, RW_UPDATE};

    #[test]
    fn ranges_that_continue_each_other_are_one_for_older_clients() {
        const STORE: [KeySpec; 2] = [KeySpec::one(1, RW_UPDATE), KeySpec::one(2, RO)];
        assert_eq!(legacy_range(&STORE), (1, 2, 1));
        assert_eq!(legacy_range(&[KeySpec::range(1, -1, 2, RO)]), (1, -1, 2));
        assert_eq!(legacy_range(&[KeySpec::numkeys(2, RO)]), (0, 0, 0));
        assert_eq!(legacy_range(&[KeySpec::one(1, RW_UPDATE), KeySpec::numkeys(2, RO)]), (1, 1, 1));
    }

    /// A stream that is given little room goes on where it stopped, and writes nothing twice.
    #[test]
    fn streams_in_small_pieces_write_what_they_write_at_once() {
        let commands: Vec<_> =
            ["get", "config", "xadd"].iter().map(|name| registry::find(name.as_bytes())).collect();
        let (mut whole, mut pieces) = (Reply::new(true), Reply::new(true));
        assert!(!Facts::of(commands.clone()).fill(&mut whole, usize::MAX));
        let mut facts = Facts::of(commands.clone());
        while facts.fill(&mut pieces, 1) {}
        assert_eq!(whole.as_bytes(), pieces.as_bytes());
        let commands: Vec<_> = commands.into_iter().flatten().collect();
        let (mut whole, mut pieces) = (Reply::new(true), Reply::new(true));
        assert!(!Docs::of(commands.clone()).fill(&mut whole, usize::MAX));
        let mut docs = Docs::of(commands);
        while docs.fill(&mut pieces, 1) {}
        assert_eq!(whole.as_bytes(), pieces.as_bytes());
        let text = String::from_utf8_lossy(whole.as_bytes());
        assert!(text.contains("config|get") && text.contains("arguments"), "{text}");
    }
}
