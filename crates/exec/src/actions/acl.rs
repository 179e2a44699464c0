//! ACL: users and their rights. The rules are crate `acl`'s; what a change means for clients, `exec::access`'s.

use super::{Act, PLAIN, Row, aside, elsewhere, help};
use crate::access::{self, Reviewing};
use crate::{Flow, Server};
use acl::{DEFAULT, Denied, Parts, User};
use command::options::is;
use command::{Command, Error, Stream, acl as categories, registry};
use resp::{Args, Reply};
use std::sync::Arc;

pub(super) const ACTIONS: &[Row] = &[
    Row("acl|setuser", set_user, PLAIN),
    Row("acl|deluser", del_user, PLAIN),
    Row("acl|getuser", get_user, PLAIN),
    Row("acl|list", |act, _| each_user(act, |user, out| out.bulk(&user.line())), PLAIN),
    Row("acl|users", |act, _| each_user(act, |user, out| out.bulk(user.name())), PLAIN),
    Row("acl|load", load, PLAIN),
    Row("acl|save", save, PLAIN),
    Row("acl|log", log, PLAIN),
    Row("acl|dryrun", dry_run, PLAIN),
    Row("acl|genpass", gen_pass, PLAIN),
    Row("acl|cat", cat, PLAIN),
    Row("acl|whoami", whoami, PLAIN),
    Row("acl|help", |act, _| help(act, "ACL", HELP), PLAIN),
];

const HELP: &[&str] = &[
    "CAT [<category>]",
    "    Categories of commands, or the commands of one.",
    "DELUSER <name> [<name> ...]",
    "    Remove users, and close their connections.",
    "DRYRUN <name> <command> [<arg> ...]",
    "    Whether the user may run the command, without running it.",
    "GENPASS [<bits>]",
    "    A password that nobody can guess, of 256 bits or as many as asked for.",
    "GETUSER <name>",
    "    The rules of a user.",
    "LIST",
    "    A line for every user, as a configuration file has it.",
    "LOAD",
    "    Take the users of the ACL file instead of all others.",
    "LOG [<count> | RESET]",
    "    What was denied lately; or forget that.",
    "SAVE",
    "    Write all users into the ACL file.",
    "SETUSER <name> [<rule> ...]",
    "    Make a user or change one.",
    "USERS",
    "    The names of all users.",
    "WHOAMI",
    "    The user of this connection.",
];

const NO_FILE: Error = Error::new(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL \
     SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to \
     store users in the Redis configuration.",
);

/// `ACL SETUSER name [rule ...]`: all rules or none. Cost: O(rules), and of clients in slices. Errors: a rule is
/// wrong, with Redis's texts.
fn set_user(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let name = args.at(2);
    if !acl::is_name(name) {
        return Err(Error::new("ERR Usernames can't contain spaces or null characters"));
    }
    let rules = acl::merged(args.from(3).iter()).map_err(|word| {
        let word = String::from_utf8_lossy(word);
        Error::from(format!("ERR Unmatched parenthesis in acl selector starting at '{word}'."))
    })?;
    let all_channels = act.server.config.live.acl_all_channels();
    let changed = act.server.acl.update(name, all_channels, |user| {
        rules.iter().try_for_each(|rule| {
            user.apply(rule, all_channels).map_err(|error| {
                // As in C, the text ends at a zero byte.
                let shown = rule.split(|byte| *byte == 0).next().unwrap_or_default();
                let shown = String::from_utf8_lossy(shown);
                Error::from(format!("ERR Error in ACL SETUSER modifier '{shown}': {}", error.text()))
            })
        })
    });
    let (old, _) = changed?;
    let mut answer = Reply::new(act.out.resp3());
    answer.ok();
    match old {
        Some(_) => review(act, Some(vec![name.to_vec()]), answer),
        None => {
            act.out.ok();
            Ok(Flow::Done)
        }
    }
}

/// `ACL DELUSER name [name ...]`: how many there were; their connections are closed. Cost: O(clients), in
/// slices. Errors: `default` stays.
fn del_user(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let names = args.from(2);
    if names.iter().any(|name| name == DEFAULT) {
        return Err(Error::new("ERR The 'default' user cannot be removed"));
    }
    let gone: Vec<Vec<u8>> =
        names.iter().filter(|name| act.server.acl.remove(name)).map(<[u8]>::to_vec).collect();
    let mut answer = Reply::new(act.out.resp3());
    answer.int(gone.len() as i64);
    match gone.is_empty() {
        true => {
            act.out.int(0);
            Ok(Flow::Done)
        }
        false => review(act, Some(gone), answer),
    }
}

/// Has the clients of changed users look at themselves, and answers then.
fn review(act: &mut Act<'_, '_>, users: Option<Vec<Vec<u8>>>, answer: Reply) -> Result<Flow, Error> {
    let mut reviewing = Reviewing::new(act.server, users, answer);
    if act.is_pressed() || act.server.observe.clients.len() <= 32 {
        while reviewing.fill(act.out, 0) {}
        return Ok(Flow::Done);
    }
    Ok(Flow::Stream(Box::new(reviewing)))
}

/// `ACL GETUSER name`; a null if there is no such user. Cost: O(rules).
fn get_user(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let Some(user) = act.server.acl.user(args.at(2)) else {
        act.out.null_array();
        return Ok(Flow::Done);
    };
    let (root, more) = user.parts();
    let out = &mut *act.out;
    out.map(6);
    out.bulk(b"flags");
    let flags = user.flags();
    out.set(flags.len());
    flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"passwords");
    let passwords = user.passwords();
    out.array(passwords.len());
    passwords.iter().for_each(|hash| out.bulk(hash.as_bytes()));
    parts(out, &root);
    out.bulk(b"selectors");
    out.array(more.len());
    for one in &more {
        out.map(3);
        parts(out, one);
    }
    Ok(Flow::Done)
}

fn parts(out: &mut Reply, parts: &Parts) {
    let named: [(&str, &[u8]); 3] =
        [("commands", &parts.commands), ("keys", &parts.keys), ("channels", &parts.channels)];
    for (name, value) in named {
        out.bulk(name.as_bytes());
        out.bulk(value);
    }
}

/// `ACL LIST`, `ACL USERS`: by name, collected elsewhere. Cost: O(users · rules).
fn each_user(act: &mut Act<'_, '_>, show: fn(&User, &mut Reply)) -> Result<Flow, Error> {
    let server = act.server.clone();
    elsewhere(act, move |out| {
        let users = server.acl.all();
        out.array(users.len());
        users.iter().for_each(|user| show(user, out));
    })
}

/// A transaction would hold its locks until the disk has answered.
fn refuse_locked(act: &Act<'_, '_>, name: &str) -> Result<(), Error> {
    if act.in_multi || act.in_script {
        return Err(Error::from(format!(
            "ERR ACL {name} is not allowed in a transaction: others would have to wait for the disk"
        )));
    }
    access::path(&act.server.config).map(|_| ()).ok_or(NO_FILE)
}

/// `ACL LOAD`: takes the users of the file, all or none, on a thread of its own. Cost: O(bytes). Errors: the
/// file cannot be read, or has mistakes; they are told with their lines.
fn load(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    refuse_locked(act, "LOAD")?;
    let server = act.server.clone();
    aside(act, "acl", move |out| match access::read(&server.config) {
        Ok(users) => {
            server.acl.replace(users);
            let mut reviewing = Reviewing::new(&server, None, Reply::new(false));
            while reviewing.tell_some() {}
            out.ok();
        }
        Err(text) => out.error(&format!("ERR {text}")),
    })
}

/// `ACL SAVE`: writes all users into the file, which has the old text or the new one at any time. Cost:
/// O(users), on a thread of its own. Errors: the file cannot be written.
fn save(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    refuse_locked(act, "SAVE")?;
    let server = act.server.clone();
    aside(act, "acl", move |out| {
        let users = server.acl.all();
        let text = acl::written(users.iter().map(|user| &**user));
        let path = access::path(&server.config).unwrap_or_default();
        match config::replace_file(&path, &text, 0o600) {
            Ok(()) => out.ok(),
            Err(error) => {
                log::warn!("ACL SAVE: the file cannot be written: {error}");
                out.error("ERR There was an error trying to save the ACLs. Please check the server logs for more information");
            }
        }
    })
}

/// `ACL LOG [count | RESET]`: the newest entries first, ten if it is not said how many. Cost: O(entries).
fn log(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() > 3 {
        return Err(Error::new(
            "ERR unknown subcommand or wrong number of arguments for 'LOG'. Try ACL HELP.",
        ));
    }
    let count = match args.get(2) {
        None => 10,
        Some(word) if is(word, "reset") => {
            act.server.acl.log.lock().clear();
            act.out.ok();
            return Ok(Flow::Done);
        }
        Some(word) => usize::try_from(command::options::int(word)?).unwrap_or(0),
    };
    let entries = act.server.acl.log.lock().newest(count);
    let (out, now_ms) = (&mut *act.out, act.local.log.now_ms);
    out.array(entries.len());
    for entry in &entries {
        out.map(10);
        out.bulk(b"count");
        out.int(entry.count as i64);
        let words: [(&str, &[u8]); 4] = [
            ("reason", entry.reason.name().as_bytes()),
            ("context", entry.context.name().as_bytes()),
            ("object", &entry.object),
            ("username", &entry.user),
        ];
        for (name, value) in words {
            out.bulk(name.as_bytes());
            out.bulk(value);
        }
        out.bulk(b"age-seconds");
        out.double(now_ms.saturating_sub(entry.updated_ms) as f64 / 1000.0);
        out.bulk(b"client-info");
        out.bulk(entry.client.as_bytes());
        let numbers = [
            ("entry-id", entry.id),
            ("timestamp-created", entry.created_ms),
            ("timestamp-last-updated", entry.updated_ms),
        ];
        for (name, value) in numbers {
            out.bulk(name.as_bytes());
            out.int(value as i64);
        }
    }
    Ok(Flow::Done)
}

/// `ACL DRYRUN name command [arg ...]`: OK, or the reason why not. Cost: O(keys · patterns). Errors: there is no
/// such user or command.
fn dry_run(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let lossy = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let Some(user) = act.server.acl.user(args.at(2)) else {
        return Err(format!("ERR User '{}' not found", lossy(args.at(2))).into());
    };
    let call = args.from(3);
    let command = command::resolve(call).map_err(|error| match error {
        Error::Arity(name) => Error::Arity(name),
        _ => format!("ERR Command '{}' not found", lossy(call.at(0))).into(),
    })?;
    let Err(denied) = user.may(command, call) else {
        act.out.ok();
        return Ok(Flow::Done);
    };
    let name = lossy(user.name());
    let text = match denied {
        Denied::Key(at) => {
            format!("User {name} has no permissions to access the '{}' key", lossy(call.at(at)))
        }
        Denied::Channel(at) => {
            format!("User {name} has no permissions to access the '{}' channel", lossy(call.at(at)))
        }
        denied => denied.text(&user, command),
    };
    act.out.bulk(text.as_bytes());
    Ok(Flow::Done)
}

/// `ACL GENPASS [bits]`: hexadecimal digits from the system's random numbers. Cost: O(bits). Errors: it is no
/// number from 1 to 4096.
fn gen_pass(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() > 3 {
        return Err(Error::new(
            "ERR unknown subcommand or wrong number of arguments for 'GENPASS'. Try ACL HELP.",
        ));
    }
    const BAD: Error = Error::new(
        "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
    );
    let bits = args.get(2).map_or(Ok(256), command::options::int)?;
    let bits = usize::try_from(bits).ok().filter(|bits| (1..=4096).contains(bits)).ok_or(BAD)?;
    let mut bytes = vec![0; bits.div_ceil(8)];
    getrandom::fill(&mut bytes).map_err(|error| Error::from(format!("ERR no random numbers: {error}")))?;
    act.out.bulk(acl::generate(bits, &bytes).as_bytes());
    Ok(Flow::Done)
}

/// The bit of a category.
pub(super) fn category(name: &[u8]) -> Option<u32> {
    categories::NAMES.iter().find(|(_, known)| is(name, known)).map(|(bit, _)| *bit)
}

/// `ACL CAT [category]`. Cost: O(commands). Errors: there is no such category.
fn cat(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let Some(name) = args.get(2) else {
        act.out.array(categories::NAMES.len());
        categories::NAMES.iter().for_each(|(_, name)| act.out.bulk(name.as_bytes()));
        return Ok(Flow::Done);
    };
    if args.len() > 3 {
        return Err(Error::new(
            "ERR unknown subcommand or wrong number of arguments for 'CAT'. Try ACL HELP.",
        ));
    }
    let unknown = || Error::from(format!("ERR Unknown category '{}'", String::from_utf8_lossy(name)));
    let bit = category(name).ok_or_else(unknown)?;
    names(act.out, |command| command.acl_categories() & bit != 0);
    Ok(Flow::Done)
}

/// Answers the full names of the commands that fit.
pub(super) fn names(out: &mut Reply, fits: impl Fn(&Command) -> bool) {
    let all = registry::callable().iter().flat_map(|command| std::iter::once(*command).chain(command.subs));
    let found: Vec<&str> = all.filter(|c| fits(c)).map(|c| c.name).collect();
    out.array(found.len());
    found.iter().for_each(|name| out.bulk(name.as_bytes()));
}

/// `ACL WHOAMI`. Cost: O(1).
fn whoami(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.bulk(act.session.user.user().name());
    Ok(Flow::Done)
}

/// The users as `user` lines for CONFIG REWRITE; None: they are in a file of their own. O(users).
pub(super) fn lines(server: &Arc<Server>) -> Option<Vec<Vec<Vec<u8>>>> {
    if access::path(&server.config).is_some() {
        return None;
    }
    let words = |user: &Arc<User>| {
        let rules = user.rules();
        let rules = rules.iter().flat_map(|rule| rule.split(|byte| *byte == b' ')).map(<[u8]>::to_vec);
        std::iter::once(user.name().to_vec()).chain(rules).collect::<Vec<Vec<u8>>>()
    };
    Some(server.acl.all().iter().map(words).collect())
}
