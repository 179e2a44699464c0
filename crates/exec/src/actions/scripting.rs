//! EVAL and its kin, SCRIPT, FCALL, FUNCTION.

use super::answer::{aside, help, kept, report};
use crate::act::{Act, KEYSPACE, PLAIN, Row};
use crate::eval::{self, Started};
use crate::{fetching, shortage};
use command::Error;
use command::Flow;
use command::helps;
use command::options::is;
use resp::{Args, Reply};
use scripts::{
    Asked, Found, Libraries, Quiet, Running, ScriptRun, Short, declared, forgets, function_of, look_at,
    script_known_as, script_of,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use work::reports::Matching;

pub(super) const ACTIONS: &[Row] = &[
    Row("eval", |act, args| eval(act, args, false), KEYSPACE),
    Row("eval_ro", |act, args| eval(act, args, true), KEYSPACE),
    Row("evalsha", |act, args| evalsha(act, args, false), KEYSPACE),
    Row("evalsha_ro", |act, args| evalsha(act, args, true), KEYSPACE),
    Row("fcall", |act, args| fcall(act, args, false), KEYSPACE),
    Row("fcall_ro", |act, args| fcall(act, args, true), KEYSPACE),
    Row("script|load", script_load, PLAIN),
    Row("script|exists", known, PLAIN),
    Row("script|flush", script_flush, PLAIN),
    Row("script|kill", |act, _| kill(act, false), PLAIN),
    Row("script|show", known, PLAIN),
    Row("script|debug", script_debug, PLAIN),
    Row("script|help", |act, _| help(act, "SCRIPT", helps::SCRIPT), PLAIN),
    Row("function|help", |act, _| help(act, "FUNCTION", helps::FUNCTION), PLAIN),
    Row("function|list", function_list, PLAIN),
    Row("function|stats", function_stats, PLAIN),
    Row("function|kill", |act, _| kill(act, true), PLAIN),
];

/// Begins a script or function. Cost: the script's, of which one quantum is on the loop. Errors: the number
/// of keys is wrong; memory is short; the script's own.
fn run(act: &mut Act<'_, '_>, asked: Asked, args: Args<'_>) -> Result<Flow, Error> {
    let Asked { body, read_only, memory, far } = asked;
    let short = memory.may_run_short(shortage::is_short(act))?;
    let declared = declared(args)?;
    if act.session.db == 0
        && act.server.rows.any()
        && let Some(flow) = fetching::preload(act, args.from(3).to(declared.min(PRELOADED)).iter())
    {
        return flow;
    }
    let run = ScriptRun {
        body,
        words: act.keep(args),
        declared,
        db: act.session.db,
        client: act.session.id,
        user: act.session.login.user.clone(),
        resp3: act.out.resp3(),
        read_only,
        short,
        now_ms: act.local.log.now_ms,
        look: act.session.look(&act.server.keyspace, act.local.log.now_ms),
        random: act.local.random(),
        loop_id: act.local.log.id,
        gone: Some(act.session.cancel.clone()),
        reads: crate::tracking::remembers(act.session),
        budget: crate::hand_on::budget(act.server, act.session),
    };
    Ok(match eval::start(act, run, far) {
        Started::Done => Flow::Done,
        Started::Away => Flow::Parked(None),
        Started::Later => crate::held::wait_for_guard(act.session, act.local),
    })
}

/// Keys of a script whose rows are checked in one slice before it runs.
const PRELOADED: usize = 256;

/// `EVAL script numkeys [key ...] [arg ...]`. Cost: the script's, and its compilation the first time. Errors:
/// those of the compiler and of [`run`].
fn eval(act: &mut Act<'_, '_>, args: Args<'_>, read_only: bool) -> Result<Flow, Error> {
    let asked = script_of(eval::engine(act.server, act.local), args, read_only, &mut Quiet(Short))?;
    run(act, asked, args)
}

/// `EVALSHA sha1 numkeys [key ...] [arg ...]`. Cost: the script's. Errors: NOSCRIPT, those of [`run`].
fn evalsha(act: &mut Act<'_, '_>, args: Args<'_>, read_only: bool) -> Result<Flow, Error> {
    let asked = script_known_as(eval::engine(act.server, act.local), args, read_only, &mut Quiet(Short))?;
    run(act, asked, args)
}

/// `FCALL function numkeys [key ...] [arg ...]`. Cost: the function's. Errors: there is no such function;
/// those of [`run`].
fn fcall(act: &mut Act<'_, '_>, args: Args<'_>, read_only: bool) -> Result<Flow, Error> {
    let asked = function_of(&act.server.scripts.code, args, read_only)?;
    run(act, asked, args)
}

/// `SCRIPT LOAD script`. O(script), and its compilation, on a thread of its own, unless it is known. Errors:
/// those of the compiler.
fn script_load(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if let Found::Known { sha, .. } =
        eval::engine(act.server, act.local).find(args.at(2), true, &mut Quiet(Short))?
    {
        act.out.bulk(&sha.hex());
        return Ok(Flow::Done);
    }
    // The words are taken over where they are kept: copying megabytes would take the loop's time.
    let words = act.keep(args);
    let (server, client, gone) = (act.server.clone(), act.session.id, act.session.cancel.clone());
    aside(act, "script", move |out| {
        match scripts::compile_apart(&server.scripts, words.args().at(2), client, &gone) {
            Ok(sha) => out.bulk(&sha.hex()),
            Err(text) => out.error(&text),
        }
    })
}

/// Words of SCRIPT EXISTS above which a thread looks the scripts up.
const LOOKED_FOR: usize = 256;

/// `SCRIPT EXISTS sha1 [sha1 ...]`, `SCRIPT SHOW sha1`. O(words), on a thread of its own if they are many.
/// Errors: SHOW of an unknown script.
fn known(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (code, command) = (&act.server.scripts.code, command::resolve(args)?);
    if args.len() > LOOKED_FOR {
        let words = act.keep(args);
        let code = code.clone();
        return aside(act, "scripts", move |out| _ = look_at(&code, command, words.args(), out));
    }
    look_at(code, command, args, act.out)?;
    Ok(Flow::Done)
}

/// `SCRIPT FLUSH [ASYNC | SYNC]`. O(1); scripts are freed elsewhere. Errors: syntax.
fn script_flush(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    forgets(args)?;
    act.server.scripts.flush();
    let server = act.server.clone();
    act.server.observe.reporter.send(move || server.scripts.tidy_idle());
    act.out.ok();
    Ok(Flow::Done)
}

/// `SCRIPT DEBUG NO`. O(1). Errors: YES and SYNC, which do not exist; syntax.
fn script_debug(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    match args.at(2) {
        // The debugger is never on.
        mode if is(mode, "no") => {
            act.out.ok();
            Ok(Flow::Done)
        }
        mode if is(mode, "yes") || is(mode, "sync") => {
            Err(Error::new("ERR the script debugger does not exist in Evenkeel yet"))
        }
        _ => Err(Error::new("ERR Use SCRIPT DEBUG YES/SYNC/NO")),
    }
}

/// `SCRIPT KILL`, `FUNCTION KILL`: ends every long script or function. No change of theirs was applied, so it
/// is always possible. O(scripts that run). Errors: NOTBUSY if none runs.
fn kill(act: &mut Act<'_, '_>, functions: bool) -> Result<Flow, Error> {
    let mut killed = false;
    let me = act.session.id;
    let is_meant = |running: &Running| {
        running.client != me && if functions { running.is_function } else { running.is_script }
    };
    for running in act.server.scripts.running.lock().iter().filter(|running| is_meant(running)) {
        running.kill.store(true, Ordering::Relaxed);
        killed = true;
    }
    if !killed {
        return Err(Error::new("NOTBUSY No scripts in execution right now."));
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`. O(functions · log + pattern · libraries), away from the
/// loop. Errors: another word; a pattern is missing.
fn function_list(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (mut pattern, mut with_code, mut i) = (None, false, 2);
    while i < args.len() {
        let option = args.at(i);
        if is(option, "withcode") && !with_code {
            with_code = true;
        } else if is(option, "libraryname") && pattern.is_none() {
            i += 1;
            args.get(i).ok_or(Error::new("ERR library name argument was not given"))?;
            pattern = Some(i);
        } else {
            return Err(format!("ERR Unknown argument {}", String::from_utf8_lossy(option)).into());
        }
        i += 1;
    }
    let words = kept(act, args);
    let (pattern, libraries) = (pattern.map(|at| (words, at)), act.server.scripts.code.libraries());
    report(act, move || {
        let names: Vec<String> = libraries.code.keys().cloned().collect();
        let functions = functions_of(&libraries);
        Matching::new(names, pattern, true, move |name, out| {
            let functions = functions.get(name).map(Vec::as_slice).unwrap_or_default();
            show_library(&libraries, name, functions, with_code, out);
        })
    })
}

/// The names of each library's functions. O(functions · log)
fn functions_of(libraries: &Libraries) -> BTreeMap<String, Vec<String>> {
    let mut functions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, (library, ..)) in &libraries.functions {
        functions.entry(library.clone()).or_default().push(name.clone());
    }
    functions
}

/// Writes a library as FUNCTION LIST shows it. Cost: O(functions · log), and of the code if it is wanted.
fn show_library(libraries: &Libraries, name: &str, functions: &[String], with_code: bool, out: &mut Reply) {
    out.map(if with_code { 4 } else { 3 });
    out.bulk(b"library_name");
    out.bulk(name.as_bytes());
    out.bulk(b"engine");
    out.bulk(b"LUA");
    out.bulk(b"functions");
    let known = functions.iter().filter_map(|name| Some((name, libraries.functions.get(name)?)));
    let known: Vec<_> = known.collect();
    out.array(known.len());
    for (function, (_, description, flags)) in known {
        out.map(3);
        out.bulk(b"name");
        out.bulk(function.as_bytes());
        out.bulk(b"description");
        out.bulk_or_null(description.as_deref().map(str::as_bytes));
        out.bulk(b"flags");
        let names: Vec<_> = flags.names().collect();
        out.set(names.len());
        names.iter().for_each(|flag| out.simple(flag));
    }
    if with_code {
        out.bulk(b"library_code");
        out.bulk(libraries.code.get(name).map_or(&[][..], |code| &code.text));
    }
}

/// `FUNCTION STATS`. O(scripts that run)
fn function_stats(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let me = act.session.id;
    let has_script =
        |running: &&Arc<Running>| running.client != me && (running.is_script || running.is_function);
    let running = act.server.scripts.running.lock().iter().find(has_script).cloned();
    let (libraries, functions) = {
        let libraries = act.server.scripts.code.libraries();
        (libraries.code.len(), libraries.functions.len())
    };
    act.out.map(2);
    act.out.bulk(b"running_script");
    match running {
        None => act.out.null(),
        Some(script) => {
            act.out.map(3);
            act.out.bulk(b"name");
            act.out.bulk(script.name.as_bytes());
            act.out.bulk(b"command");
            act.out.array(script.command.len());
            script.command.iter().for_each(|word| act.out.bulk(word));
            act.out.bulk(b"duration_ms");
            act.out.int(((stdx::clock::mono_ns() - script.started_ns) / 1_000_000) as i64);
        }
    }
    act.out.bulk(b"engines");
    act.out.map(1);
    act.out.bulk(b"LUA");
    act.out.map(2);
    act.out.bulk(b"libraries_count");
    act.out.int(libraries as i64);
    act.out.bulk(b"functions_count");
    act.out.int(functions as i64);
    Ok(Flow::Done)
}
