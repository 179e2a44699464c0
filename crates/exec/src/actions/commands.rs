//! COMMAND: the facts of the table of commands, in the forms that clients and tools read.

use super::acl::{all, category, names};
use super::answer::{help, kept, report};
use crate::act::{Act, PLAIN, Row};
use command::Flow;
use command::describe::{Docs, Facts, uses};
use command::helps;
use command::options::is;
use command::table::{NO_MANDATORY_KEYS, Use};
use command::{Command, Error, Stream, facts, registry};
use resp::Args;
use work::reports::Matching;

pub(super) const ACTIONS: &[Row] = &[
    Row("command", info_all, PLAIN),
    Row("command|count", count, PLAIN),
    Row("command|info", info, PLAIN),
    Row("command|docs", docs, PLAIN),
    Row("command|list", list, PLAIN),
    Row("command|getkeys", |act, args| keys(act, args, false), PLAIN),
    Row("command|getkeysandflags", |act, args| keys(act, args, true), PLAIN),
    Row("command|help", |act, _| help(act, "COMMAND", helps::COMMAND), PLAIN),
];

/// `COMMAND COUNT`. O(1)
fn count(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.int(registry::count() as i64);
    Ok(Flow::Done)
}

/// `COMMAND`: facts about every command. O(commands), in slices.
fn info_all(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    tell(act, registry::callable().iter().map(|command| Some(*command)).collect())
}

/// Begins the facts of some commands. O(commands), in slices.
fn tell(act: &mut Act<'_, '_>, commands: Vec<Option<&'static Command>>) -> Result<Flow, Error> {
    act.out.array(commands.len());
    Ok(stream(act, Facts::of(commands)))
}

/// Streams descriptions, or writes all of them where nothing can be streamed.
fn stream(act: &mut Act<'_, '_>, mut descriptions: impl Stream + 'static) -> Flow {
    if act.is_pressed() {
        while descriptions.fill(act.out, usize::MAX) {}
        return Flow::Done;
    }
    Flow::Stream(Box::new(descriptions))
}

/// `COMMAND DOCS [name ...]`: unknown names are left out. O(commands), some microseconds each, in slices.
fn docs(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let commands: Vec<&'static Command> = match args.len() {
        2 => registry::callable().to_vec(),
        _ => args.from(2).iter().filter_map(registry::find_full).collect(),
    };
    act.out.map(commands.len());
    Ok(stream(act, Docs::of(commands)))
}

/// `COMMAND INFO [name ...]`: a null for each unknown name. Cost: O(commands), in slices.
fn info(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() == 2 {
        return info_all(act, args);
    }
    tell(act, args.from(2).iter().map(registry::find_full).collect())
}

/// Length from which on a pattern takes long to compare with all names, in bytes.
const LONG: usize = 16;

/// `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN glob]`: names, with those of subcommands.
/// O(commands · pattern); a long pattern is compared away from the loop (`reports`). Errors: syntax.
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
                    let words = kept(act, args);
                    return report(act, move || {
                        let names = all().map(|command| command.name).collect();
                        Matching::new(names, Some((words, 4)), true, |name, out| out.bulk(name.as_bytes()))
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

/// `COMMAND GETKEYS` and `GETKEYSANDFLAGS`, followed by a whole command. O(its words). Errors: it is no
/// command, has no keys, or not such words.
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
