//! EVENKEEL: which client made which client wait ([`observe::waits`]). An answer is a map in RESP3, and an
//! array of names and values in RESP2.

use super::answer::{aside, elsewhere, help};
use crate::act::{Act, PLAIN, Row};
use command::Error;
use command::Flow;
use command::options::is;
use observe::waits::report;
use resp::{Args, Reply};

pub(super) const ACTIONS: &[Row] = &[
    Row("evenkeel|waits", waits, PLAIN),
    Row("evenkeel|why", why, PLAIN),
    Row("evenkeel|lost", lost, PLAIN),
    Row("evenkeel|replicas", replicas, PLAIN),
    Row("evenkeel|stalls", stalls, PLAIN),
    Row("evenkeel|phases", phases, PLAIN),
    Row("evenkeel|prefixes", prefixes, PLAIN),
    Row("evenkeel|now", past, PLAIN),
    Row("evenkeel|history", past, PLAIN),
    Row("evenkeel|flows", past, PLAIN),
    Row("evenkeel|records", past, PLAIN),
    Row("evenkeel|incidents", past, PLAIN),
    Row("evenkeel|source", super::sources::source, PLAIN),
    Row(
        "evenkeel|help",
        |act, _| help(act, "EVENKEEL", &[report::HELP, command::helps::SOURCE].concat()),
        PLAIN,
    ),
];

/// Count of waits, stalls and culprits that are shown by default.
const SHOWN: usize = 10;

fn count(word: Option<&[u8]>) -> Result<usize, Error> {
    let Some(word) = word else { return Ok(SHOWN) };
    let count = stdx::num::parse_i64(word).and_then(|n| usize::try_from(n).ok());
    count.ok_or(Error::new("ERR count must be a number of 0 or more"))
}

/// `EVENKEEL WAITS [RESET] [count]`. O(culprits + waits remembered), by the reporter. Errors: the count is no
/// number; syntax.
fn waits(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let reset = args.get(2).is_some_and(|word| is(word, "reset"));
    let counted = args.get(2 + usize::from(reset));
    if args.len() > 2 + usize::from(reset) + usize::from(counted.is_some()) {
        return Err(Error::Syntax);
    }
    let (count, server) = (count(counted)?, act.server.clone());
    elsewhere(act, move |out| {
        report::write_waits(&server.observe, count, out);
        if reset {
            server.observe.waits.reset();
        }
    })
}

/// `EVENKEEL NOW | HISTORY | FLOWS | RECORDS | INCIDENTS …` (`history::Asked`), without words that the user may
/// not see. O(minutes asked for), by the reporter. Errors: times, numbers, syntax.
fn past(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let asked = ::past::asked(args, act.local.log.now_ms).map_err(Error::new)?;
    let sees_words = act.session.login.user.user().may_see_words();
    let server = act.server.clone();
    elsewhere(act, move |out| server.past.answer(&asked, sees_words, out))
}

/// `EVENKEEL PREFIXES [RUN | GET [count]]`: begins a count, on a thread of its own, or shows the latest. O(1) to
/// begin; O(prefixes), by the reporter. Errors: one is under way; the count is no number; syntax.
fn prefixes(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (server, user) = (act.server.clone(), act.session.login.user.user().clone());
    let Some(most) = observe::prefixes::asked(args.from(2))? else {
        stdx::panics::changes();
        let (keyspace, now_ms) = (act.server.keyspace.clone(), stdx::clock::wall_ms);
        server.observe.prefixes.run(move |seen| command::prefixes::count(&keyspace, now_ms, seen))?;
        act.out.ok();
        return Ok(Flow::Done);
    };
    elsewhere(act, move |out| {
        let sees_all = user.may_list_all(server.keyspace.databases());
        let may_list = |db, pattern: &[u8]| sees_all || user.may_list_in(db, pattern);
        server.observe.prefixes.write(most, sees_all, &may_list, out);
    })
}

/// `EVENKEEL REPLICAS`: the servers that follow, as maps. O(replicas).
fn replicas(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let replicas = act.server.replicas.get().map(|replicas| replicas.figures().replicas).unwrap_or_default();
    act.out.array(replicas.len());
    replicas.iter().for_each(|replica| replica.write(act.out));
    Ok(Flow::Done)
}

/// `EVENKEEL LOST [file [count]]`: the files of writes that the primary of this server does not have, or the
/// writes in one. O(commands in them), on a thread of its own. Errors: the count is no number; no such file.
fn lost(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() > 4 {
        return Err(Error::Syntax);
    }
    let (count, server) = (count(args.get(3))?, act.server.clone());
    let name = args.get(2).map(|name| String::from_utf8_lossy(name).into_owned());
    aside(act, "lost", move |out| {
        let Some(replicas) = server.replicas.get() else { return out.array(0) };
        let written = match name {
            None => replicas.lost_files().map(|files| write_all(&files, out, |file, out| file.write(out))),
            Some(name) => replicas
                .lost(&name, count)
                .map(|writes| write_all(&writes, out, |write, out| write.write(&write.keys(), out))),
        };
        if let Err(why) = written {
            out.error(&format!("ERR {why}"));
        }
    })
}

fn write_all<T>(all: &[T], out: &mut Reply, write: impl Fn(&T, &mut Reply)) {
    out.array(all.len());
    all.iter().for_each(|one| write(one, out));
}

/// `EVENKEEL WHY client-id`. O(waits remembered), by the reporter. Errors: no number; nothing is known of the
/// client.
fn why(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let id = stdx::num::parse_i64(args.at(2)).and_then(|id| u64::try_from(id).ok());
    let id = id.ok_or(Error::new("ERR Invalid client ID"))?;
    let server = act.server.clone();
    elsewhere(act, move |out| report::write_why(&server.observe, id, SHOWN, out))
}

/// `EVENKEEL STALLS [count]`. O(stalls remembered), by the reporter. Errors: the count is no number; syntax.
fn stalls(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() > 3 {
        return Err(Error::Syntax);
    }
    let (count, server) = (count(args.get(2))?, act.server.clone());
    elsewhere(act, move |out| report::write_stalls(&server.observe, count, out))
}

/// `EVENKEEL PHASES`. O(loops · buckets), by the reporter.
fn phases(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let server = act.server.clone();
    elsewhere(act, move |out| report::write_phases(&server.observe, out))
}
