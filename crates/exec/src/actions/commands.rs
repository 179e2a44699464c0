//! COMMAND: the facts of the table of commands, in the forms that clients and tools read.

use super::acl::{category, names};
use super::{Act, PLAIN, Row, help};
use crate::Flow;
use command::options::is;
use command::table::{Begin, FLAG_NAMES, Find, KeySpec, NO_MANDATORY_KEYS, Use};
use command::{Command, Error, Stream, acl, facts, registry};
use resp::{Args, Reply};

pub(super) const ACTIONS: &[Row] = &[
    Row("command", info_all, PLAIN),
    Row("command|count", count, PLAIN),
    Row("command|info", info, PLAIN),
    Row("command|list", list, PLAIN),
    Row("command|getkeys", |act, args| keys(act, args, false), PLAIN),
    Row("command|getkeysandflags", |act, args| keys(act, args, true), PLAIN),
    Row("command|help", |act, _| help(act, "COMMAND", HELP), PLAIN),
];

const HELP: &[&str] = &[
    "(none)",
    "    Facts about every command.",
    "COUNT",
    "    How many commands there are.",
    "DOCS [<name> ...]",
    "    Descriptions, of all commands or of these.",
    "GETKEYS <command> [<arg> ...]",
    "    Which arguments of this command are keys.",
    "GETKEYSANDFLAGS <command> [<arg> ...]",
    "    The same, and what is done with each key.",
    "INFO [<name> ...]",
    "    Facts about all commands or about these.",
    "LIST [FILTERBY <MODULE name | ACLCAT category | PATTERN glob>]",
    "    Names of commands.",
];

/// Finds a command by its full name, `config|get` for subcommands.
pub(super) fn by_full_name(name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|b| *b == b'|') {
        None => registry::find(name),
        Some(at) => registry::find_sub(registry::find(&name[..at])?, &name[at + 1..]),
    }
}

fn count(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.int(registry::count() as i64);
    Ok(Flow::Done)
}

fn info_all(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    tell(act, registry::callable().iter().map(|command| Some(*command)).collect())
}

/// Streams the facts of some commands. All commands together take longer than a quantum.
fn tell(act: &mut Act<'_, '_>, commands: Vec<Option<&'static Command>>) -> Result<Flow, Error> {
    act.out.array(commands.len());
    let mut facts = Facts { commands, next: 0 };
    if act.is_pressed() {
        while facts.fill(act.out, usize::MAX) {}
        return Ok(Flow::Done);
    }
    Ok(Flow::Stream(Box::new(facts)))
}

struct Facts {
    commands: Vec<Option<&'static Command>>,
    next: usize,
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

/// `COMMAND INFO [name ...]`: a null for each unknown name. Cost: O(commands), in slices.
fn info(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() == 2 {
        return info_all(act, args);
    }
    tell(act, args.from(2).iter().map(by_full_name).collect())
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

fn pair(out: &mut Reply, name: &str, value: &str) {
    out.bulk(name.as_bytes());
    out.bulk(value.as_bytes());
}

fn uses(out: &mut Reply, uses: Use) {
    out.set(uses.0.len());
    uses.0.iter().for_each(|name| out.simple(name));
}

/// Length from which on a pattern takes long to compare with all names, in bytes.
const LONG: usize = 256;

/// `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN glob]`: names, with those of subcommands.
fn list(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let fits: Box<dyn Fn(&Command) -> bool> = match args.len() {
        2 => Box::new(|_| true),
        5 if is(args.at(2), "filterby") => {
            let value = args.at(4);
            match () {
                // There are no modules.
                () if is(args.at(3), "module") => Box::new(|_| false),
                () if is(args.at(3), "aclcat") => {
                    let bit = category(value).unwrap_or(0);
                    Box::new(move |command| command.acl_categories() & bit != 0)
                }
                () if is(args.at(3), "pattern") && value.len() > LONG => {
                    let pattern = value.to_vec();
                    return super::aside(act, "list", move |out| {
                        names(out, |command| stdx::glob::matches(&pattern, command.name.as_bytes(), true))
                    });
                }
                () if is(args.at(3), "pattern") => {
                    Box::new(|command| stdx::glob::matches(value, command.name.as_bytes(), true))
                }
                () => return Err(Error::Syntax),
            }
        }
        _ => return Err(Error::Syntax),
    };
    names(act.out, |command| fits(command));
    Ok(Flow::Done)
}

/// `COMMAND GETKEYS` and `GETKEYSANDFLAGS`, followed by a whole command. Errors: it is no command, or has no
/// keys.
fn keys(act: &mut Act<'_, '_>, args: Args<'_>, with_uses: bool) -> Result<Flow, Error> {
    let given = args.from(2);
    let command = registry::find(given.at(0)).ok_or(Error::new("ERR Invalid command specified"))?;
    let command = match given.get(1).filter(|_| !command.subs.is_empty()) {
        Some(name) => registry::find_sub(command, name).ok_or(Error::new("ERR Invalid command specified"))?,
        None => command,
    };
    if command.keys.iter().all(|spec| spec.uses.0.contains(&"not_key")) {
        return Err(Error::new("ERR The command has no key arguments"));
    }
    if !command.arity_fits(given.len()) {
        return Err(Error::new("ERR Invalid number of arguments specified for command"));
    }
    let mut found: Vec<(usize, Use)> = Vec::new();
    let told = command::keys::each_use(command, given, 0..usize::MAX, &mut |at, uses| found.push((at, uses)));
    if command.is(facts::KEYS_BEHIND) && found.len() > 1 && !given.at(3).is_empty() {
        // KEYS must be absent.
        found.clear();
    }
    if !told {
        found.clear();
    }
    if found.is_empty() && !command.has(NO_MANDATORY_KEYS) {
        return Err(Error::new("ERR Invalid arguments specified for command"));
    }
    act.out.array(found.len());
    for (at, usage) in found {
        if with_uses {
            act.out.array(2);
            act.out.bulk(given.at(at));
            uses(act.out, usage);
        } else {
            act.out.bulk(given.at(at));
        }
    }
    Ok(Flow::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::table::{RO, RW_UPDATE};

    #[test]
    fn ranges_that_continue_each_other_are_one_for_older_clients() {
        const STORE: [KeySpec; 2] = [KeySpec::one(1, RW_UPDATE), KeySpec::one(2, RO)];
        assert_eq!(legacy_range(&STORE), (1, 2, 1));
        assert_eq!(legacy_range(&[KeySpec::range(1, -1, 2, RO)]), (1, -1, 2));
        assert_eq!(legacy_range(&[KeySpec::numkeys(2, RO)]), (0, 0, 0));
        assert_eq!(legacy_range(&[KeySpec::one(1, RW_UPDATE), KeySpec::numkeys(2, RO)]), (1, 1, 1));
    }

    #[test]
    fn commands_are_found_by_their_full_names() {
        assert_eq!(by_full_name(b"CONFIG|Get").map(|c| c.name), Some("config|get"));
        assert_eq!(by_full_name(b"ping").map(|c| c.name), Some("ping"));
        assert!(by_full_name(b"config|").is_none() && by_full_name(b"|").is_none());
    }
}
