//! The words of EVAL and its kin, and of SCRIPT, as requests.

use super::{Body, Change, Code, Found, LuaState};
use command::options::{int, is};
use command::{Command, Error, facts};
use resp::{Args, Reply};
pub use script::ScriptFlags;
use script::{Host, Sha};

const NO_SCRIPT: Error = Error::new("NOSCRIPT No matching script. Please use EVAL.");

/// The `numkeys` of `numkeys key … arg …` at argument 2.
pub fn declared(args: Args<'_>) -> Result<usize, Error> {
    let count = int(args.at(2))?;
    if count > (args.len() - 3) as i64 {
        return Err(Error::new("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(count).map_err(|_| Error::new("ERR Number of keys can't be negative"))
}

/// A script to be run.
pub struct Asked {
    pub body: Body,
    pub read_only: bool,
    pub memory: Hunger,
    /// It has to run on a thread.
    pub far: bool,
}

/// A script's need of memory, by its flags.
#[derive(Clone, Copy)]
pub enum Hunger {
    /// Its flags say nothing, so its commands are checked one by one.
    Unknown,
    /// It may need more.
    Declared,
    /// It needs no more, or has to run nevertheless.
    None,
}

impl Hunger {
    fn of(flags: script::ScriptFlags, declares: bool) -> Hunger {
        match declares {
            _ if flags.allow_oom || flags.no_writes => Hunger::None,
            true => Hunger::Declared,
            false => Hunger::Unknown,
        }
    }

    /// Whether its commands have to be checked while memory is short. Errors: it may not run at all.
    pub fn may_run_short(self, short: bool) -> Result<bool, Error> {
        match self {
            Hunger::Declared if short => Err(Error::new(command::OOM)),
            Hunger::None => Ok(false),
            _ => Ok(short),
        }
    }
}

/// The script that EVAL and its kin ask for within a transaction, and the number of keys it declares.
pub fn asked_for(
    lua: &mut LuaState,
    command: &Command,
    args: Args<'_>,
    host: &mut dyn Host,
) -> Result<(Asked, usize), Error> {
    let read_only = command.name.ends_with("_ro");
    let asked = match command.name {
        "fcall" | "fcall_ro" => function_of(lua.code(), args, read_only)?,
        "evalsha" | "evalsha_ro" => script_known_as(lua, args, read_only, host)?,
        _ => script_of(lua, args, read_only, host)?,
    };
    Ok((asked, declared(args)?))
}

/// The script of EVAL and EVAL_RO. It is compiled as long as `host` lets it.
pub fn script_of(
    lua: &mut LuaState,
    args: Args<'_>,
    read_only: bool,
    host: &mut dyn Host,
) -> Result<Asked, Error> {
    declared(args)?;
    asked(lua.find(args.at(1), false, host)?, read_only)
}

fn asked(found: Found, read_only: bool) -> Result<Asked, Error> {
    let Found::Known { sha, kept, far } = found else {
        return Ok(Asked { body: Body::Text(read_only), read_only, memory: Hunger::Unknown, far: true });
    };
    let (flags, declares) = (kept.flags, kept.text.starts_with(b"#!"));
    if read_only && declares && !flags.no_writes {
        return Err(Error::new("ERR Can not execute a script with write flag using *_ro command."));
    }
    let (read_only, memory) = (read_only || flags.no_writes, Hunger::of(flags, declares));
    Ok(Asked { body: Body::Script(sha, kept), read_only, memory, far })
}

/// The script of EVALSHA and EVALSHA_RO.
pub fn script_known_as(
    lua: &mut LuaState,
    args: Args<'_>,
    read_only: bool,
    host: &mut dyn Host,
) -> Result<Asked, Error> {
    if args.at(1).len() != 40 {
        return Err(NO_SCRIPT);
    }
    declared(args)?;
    let sha = Sha::from_hex(args.at(1)).ok_or(NO_SCRIPT)?;
    asked(lua.find_known(sha, host)?.ok_or(NO_SCRIPT)?, read_only)
}

/// The function of FCALL and FCALL_RO.
pub fn function_of(code: &Code, args: Args<'_>, read_only: bool) -> Result<Asked, Error> {
    let (name, flags) = {
        let libraries = code.libraries();
        let found = libraries.function(&String::from_utf8_lossy(args.at(1)));
        let (name, (_, _, flags)) = found.ok_or(Error::new("ERR Function not found"))?;
        (name.clone(), *flags)
    };
    if int(args.at(2)).is_err() {
        return Err(Error::new("ERR Bad number of keys provided"));
    }
    declared(args)?;
    if read_only && !flags.no_writes {
        return Err(Error::new("ERR Can not execute a script with write flag using *_ro command."));
    }
    let memory = Hunger::of(flags, true);
    Ok(Asked { body: Body::Function(name), read_only: flags.no_writes, memory, far: false })
}

/// Longest text that is looked at for what a script declares.
const DECLARED_WITHIN: usize = 4096;

/// Whether a call of EVAL and its kin may change or tell anything: what its script's flags say, as Redis takes
/// them. A script that is unknown, or has no flags, may what its command may. O(1): a header longer than 4 KB
/// counts as none.
pub fn may_change(code: &Code, command: &Command, args: Args<'_>) -> bool {
    declared_flags(code, command, args).map_or(command.may_replicate(), |flags| !flags.no_writes)
}

/// The flags that the script of a call declares. None: it has no header, or is not known. O(1), as
/// [`may_change`].
pub fn declared_flags(code: &Code, command: &Command, args: Args<'_>) -> Option<ScriptFlags> {
    let word = args.get(1).unwrap_or_default();
    let head = &word[..word.len().min(DECLARED_WITHIN)];
    let flags = match command.name {
        "fcall" | "fcall_ro" => std::str::from_utf8(head)
            .ok()
            .and_then(|name| code.libraries().functions.get(name).map(|(_, _, flags)| *flags)),
        "evalsha" | "evalsha_ro" => {
            Sha::from_hex(word).and_then(|sha| code.script(&sha)).map(|kept| kept.flags)
        }
        _ => ScriptFlags::of(head),
    };
    flags.filter(|flags| !flags.compat)
}

/// SCRIPT EXISTS and SCRIPT SHOW.
pub fn look_at(code: &Code, command: &Command, args: Args<'_>, out: &mut Reply) -> Result<(), Error> {
    let known = |sha: &[u8]| Sha::from_hex(sha).and_then(|sha| code.script(&sha));
    if command.is(facts::SHOWS_SCRIPT) {
        out.bulk(&known(args.at(2)).ok_or(Error::new("NOSCRIPT No matching script."))?.text);
        return Ok(());
    }
    out.array(args.len() - 2);
    args.from(2).iter().for_each(|sha| out.int(known(sha).is_some().into()));
    Ok(())
}

/// The change that SCRIPT FLUSH asks for.
pub fn forgets(args: Args<'_>) -> Result<Change, Error> {
    if args.len() > 3 || args.get(2).is_some_and(|mode| !is(mode, "sync") && !is(mode, "async")) {
        return Err(Error::new("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    Ok(Change::ForgetScripts)
}
