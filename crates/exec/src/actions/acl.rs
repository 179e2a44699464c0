//! ACL: users and their rights. The rules are crate `acl`'s; what a change means for clients, `exec::access`'s.

use super::answer::{aside, help, kept, report};
use crate::Server;
use crate::access::Reviewing;
use crate::act::{Act, PLAIN, Row};
use acl::{Check, DEFAULT, Setting, User};
use command::Flow;
use command::options::is;
use command::{Command, Error, Stream, acl as categories, registry};
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use work::reports::{Matching, Report};

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
    Row("acl|help", |act, _| help(act, "ACL", acl::HELP), PLAIN),
];

/// Words and bytes of an ACL SETUSER up to which a loop applies it.
const FEW: usize = 32;
const SHORT: usize = 2048;

/// `ACL SETUSER name [rule ...]`: all rules or none. Cost: O(rules · log), and of clients in slices; away
/// from the loop if the rules or the user's are many. Errors: a rule is wrong, with Redis's texts.
fn set_user(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let name = args.at(2);
    let all_channels = act.server.config.live.acl_all_channels();
    let is_large = act.server.acl.user(name).is_some_and(|user| user.is_large());
    if is_large || args.len() > FEW || args.iter().map(<[u8]>::len).sum::<usize>() > SHORT {
        let (server, words) = (act.server.clone(), kept(act, args));
        return report(act, move || {
            let args = words.args();
            let setting = Setting::new(&server.acl, args.at(2), args.from(3).iter(), all_channels);
            Changing { server, setting }
        });
    }
    let was_there = act.server.acl.set_user(name, args.from(3).iter(), all_channels)?;
    if !was_there {
        act.out.ok();
        return Ok(Flow::Done);
    }
    let mut answer = Reply::new(act.out.resp3());
    answer.ok();
    review(act, vec![name.to_vec()], false, answer)
}

/// A long ACL SETUSER. The rules are applied to a copy of the user, which takes its place at the end.
struct Changing {
    server: Arc<Server>,
    setting: Result<Setting, Error>,
}

impl Report for Changing {
    fn step(&mut self, _: &mut Reply, looks: &mut usize) -> bool {
        let Ok(setting) = &mut self.setting else { return false };
        match setting.step(looks) {
            Ok(more) => more,
            Err(error) => {
                self.setting = Err(error);
                false
            }
        }
    }

    fn finish(self: Box<Self>, out: &mut Reply) -> Option<Box<dyn Report>> {
        let Changing { server, setting } = *self;
        let setting = match setting {
            Ok(setting) => setting,
            Err(error) => {
                out.error(&error.text());
                return None;
            }
        };
        let users = vec![setting.name().to_vec()];
        match setting.install(&server.acl) {
            Err(again) => return Some(Box::new(Changing { server, setting: Ok(*again) })),
            Ok(false) => {}
            Ok(true) => {
                let mut reviewing = Reviewing::new(&server, Some(users), Reply::new(false));
                while reviewing.tell_some() {}
            }
        }
        out.ok();
        None
    }

    fn has_effects(&self) -> bool {
        true
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
    let is_mine = gone.iter().any(|name| **name == *act.session.login.user.user().name());
    review(act, gone, is_mine, answer)
}

/// Has the clients of changed users look at themselves, and answers then. O(clients), in slices. `closes`:
/// this client is one of them, and closes once it has its answer, with its next command at the latest.
fn review(act: &mut Act<'_, '_>, users: Vec<Vec<u8>>, closes: bool, answer: Reply) -> Result<Flow, Error> {
    let me = closes.then_some(act.session.id);
    let mut reviewing = Reviewing::new(act.server, Some(users), answer).but(me);
    if act.is_pressed() || act.server.observe.clients.len() <= 32 {
        while reviewing.fill(act.out, 0) {}
        return Ok(if closes { Flow::Close } else { Flow::Done });
    }
    Ok(Flow::Stream(Box::new(reviewing)))
}

/// `ACL GETUSER name`; a null if there is no such user. Cost: O(rules), away from the loop if they are many.
fn get_user(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let Some(user) = act.server.acl.user(args.at(2)) else {
        act.out.null();
        return Ok(Flow::Done);
    };
    if user.is_large() {
        return report(act, move || Describing(user));
    }
    user.describe(act.out);
    Ok(Flow::Done)
}

/// ACL GETUSER of a large user.
struct Describing(Arc<User>);

impl Report for Describing {
    fn step(&mut self, out: &mut Reply, _: &mut usize) -> bool {
        self.0.describe(out);
        false
    }
}

/// A user among others.
struct One(Arc<User>);

impl AsRef<[u8]> for One {
    fn as_ref(&self) -> &[u8] {
        self.0.name()
    }
}

/// `ACL LIST`, `ACL USERS`: by name, away from the loop. Cost: O(users · rules).
fn each_user(act: &mut Act<'_, '_>, show: fn(&User, &mut Reply)) -> Result<Flow, Error> {
    let server = act.server.clone();
    report(act, move || {
        let users = server.acl.all().into_iter().map(One).collect();
        Matching::new(users, None, false, move |one, out| show(&one.0, out))
    })
}

/// A transaction would hold its locks until the disk has answered.
fn refuse_locked(act: &Act<'_, '_>, name: &str) -> Result<(), Error> {
    if act.in_multi || act.in_script {
        return Err(Error::from(format!(
            "ERR ACL {name} is not allowed in a transaction: others would have to wait for the disk"
        )));
    }
    act.server.config.aclfile().map(|_| ()).ok_or(Error::new(acl::NO_FILE))
}

/// `ACL LOAD`: takes the users of the file, all or none, on a thread of its own. Cost: O(bytes). Errors: the
/// file cannot be read, or has mistakes; they are told with their lines.
fn load(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    refuse_locked(act, "LOAD")?;
    let server = act.server.clone();
    aside(act, "acl", move |out| match server.config.read_aclfile() {
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
        let path = server.config.aclfile().unwrap_or_default();
        match config::replace_file(&path, &text, 0o600) {
            Ok(()) => out.ok(),
            Err(error) => {
                log::warn!("ACL SAVE: the file cannot be written: {error}");
                out.error("ERR There was an error trying to save the ACLs. Please check the server logs for more information");
            }
        }
    })
}

/// `ACL LOG [count | RESET]`: the newest entries first, ten if it is not said how many. O(entries). Errors:
/// the count is no number; more words.
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
    acl::show_log(&entries, act.local.log.now_ms, act.out);
    Ok(Flow::Done)
}

/// `ACL DRYRUN name command [arg ...]`: OK, or the reason why not. O(keys · patterns), away from the loop.
/// Errors: there is no such user or command.
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
    let (db, databases) = (act.session.db, act.server.keyspace.databases());
    if user.is_powerful() {
        act.out.ok();
        return Ok(Flow::Done);
    }
    let (words, slice) = (kept(act, args), (PATTERNS / user.patterns().max(1)).max(1));
    report(act, move || Trying { user, command, words, db, databases, check: Check::default(), slice })
}

/// Words times patterns that an ACL DRYRUN compares in one step.
const PATTERNS: usize = 1024;

/// An ACL DRYRUN.
struct Trying {
    user: Arc<User>,
    command: &'static Command,
    /// The words of ACL DRYRUN; the call begins with the fourth.
    words: Arc<OwnedArgs>,
    db: usize,
    databases: usize,
    check: Check,
    slice: usize,
}

impl Report for Trying {
    fn step(&mut self, out: &mut Reply, _: &mut usize) -> bool {
        let &mut Trying { ref user, command, ref words, db, databases, ref mut check, slice } = self;
        let call = words.args().from(3);
        match check.advance(user, acl::Call { command, args: call, db, databases }, slice) {
            None => return true,
            Some(Ok(())) => out.ok(),
            Some(Err(denied)) => out.bulk(&user.verdict(denied, command, call)),
        }
        false
    }
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

/// The bit of a category. O(categories)
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

/// All commands that can be called, with their subcommands. O(1) for each.
pub(super) fn all() -> impl Iterator<Item = &'static Command> {
    registry::callable().iter().flat_map(|command| std::iter::once(*command).chain(command.subs))
}

/// Answers the full names of the commands that fit. O(commands)
pub(super) fn names(out: &mut Reply, fits: impl Fn(&Command) -> bool) {
    let found: Vec<&str> = all().filter(|c| fits(c)).map(|c| c.name).collect();
    out.array(found.len());
    found.iter().for_each(|name| out.bulk(name.as_bytes()));
}

/// `ACL WHOAMI`. Cost: O(1).
fn whoami(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.bulk(act.session.login.user.user().name());
    Ok(Flow::Done)
}
