//! EVENKEEL SOURCE: databases that are read through ([`rows`]).

use super::answer::elsewhere;
use crate::Server;
use crate::act::Act;
use crate::call::Flow;
use crate::fetching;
use crate::mail::Mail;
use command::options::is;
use command::{Error, Stream};
use keyspace::{Class, View};
use resp::{Args, Reply};
use rows::{Entry, figures, hit_ratios};
use source::hub::FeedState;
use source::{Pattern, Spec};
use std::sync::Arc;

/// Most ids that one command gives up.
const IDS_MAX: usize = 1000;

/// `EVENKEEL SOURCE ADD | LIST | STATS | PAUSE | RESUME | FLUSH | REMOVE`: costs and errors are those of the
/// word. Errors: syntax.
pub(super) fn source(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let word = args.at(2);
    let rest = args.len() - 3;
    match () {
        _ if is(word, "add") && rest >= 3 => add(act, args),
        _ if is(word, "list") && rest == 0 => list(act),
        _ if is(word, "stats") && rest <= 1 => stats(act, args),
        _ if is(word, "pause") && rest == 1 => pause(act, args, true),
        _ if is(word, "resume") && rest == 1 => pause(act, args, false),
        _ if is(word, "flush") && rest >= 1 => flush(act, args),
        _ if is(word, "remove") && rest == 1 => remove(act, args),
        _ => Err(Error::Syntax),
    }
}

/// Adds a source. A driver may take milliseconds to make, so another thread makes it. Then the client's loop
/// looks in slices for keys that the source would hide.
///
/// Cost: O(keys), in slices. Errors: `enable-protected-configs` does not admit the client, as a source opens
/// files and ports, and tells what is there; in a transaction; words that are no source; keys that exist.
fn add(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if !act.server.config.live.protected_configs_access().admits(act.session.is_local()) {
        return Err(Error::new(
            "ERR EVENKEEL SOURCE ADD not allowed. If the enable-protected-configs option is set to \"local\", you can run \
             it from a local connection, otherwise you need to set this option in the configuration file, and then \
             restart the server.",
        ));
    }
    if act.in_multi || act.in_script {
        return Err(Error::new("ERR a source cannot be added in a transaction"));
    }
    let words = args.from(3).iter().map(|word| std::str::from_utf8(word));
    let words = words.collect::<Result<Vec<_>, _>>().map_err(|_| Error::new("ERR a word is not UTF-8"))?;
    let (words, deletes) = existing(words)?;
    let spec = Spec::parse(words).map_err(|e| Error::from(format!("ERR {}", one_line(&e))))?;
    let (server, loop_id, client) = (act.server.clone(), act.local.log.id, act.session.id);
    let mut out = Reply::new(act.out.resp3());
    let sent = act.server.observe.reporter.send(move || {
        let (name, pattern) = (spec.name.clone(), spec.pattern.clone());
        let stream: Option<Box<dyn Stream>> = match server.rows.add(spec) {
            Ok(()) => Some(Box::new(Covered::new(server.clone(), name, pattern, deletes))),
            Err(e) => {
                out.error(&format!("ERR {}", one_line(&e)));
                None
            }
        };
        server.send(loop_id, Mail::Reply { client, bytes: out.into_bytes(), stream });
    });
    if sent { Ok(Flow::Parked(None)) } else { Err(Error::new("ERR no thread could be started")) }
}

/// Takes the option `existing` out, which is not the source's own. True: it says `delete`.
fn existing(words: Vec<&str>) -> Result<(Vec<&str>, bool), Error> {
    // Pairs follow name, pattern and url.
    let (own, options) = words.split_at(words.len().min(3));
    let (mut rest, mut deletes) = (own.to_vec(), false);
    for pair in options.chunks(2) {
        match pair {
            [option, what] if option.eq_ignore_ascii_case("existing") => {
                deletes = match () {
                    () if what.eq_ignore_ascii_case("delete") => true,
                    () if what.eq_ignore_ascii_case("refuse") => false,
                    () => return Err(Error::new("ERR existing must be refuse or delete")),
                };
            }
            pair => rest.extend(pair),
        }
    }
    Ok((rest, deletes))
}

/// Keys visited, and deleted, in one slice.
const VISITED: usize = 200;

/// Finds the keys of database 0 that a new source covers: KEYS would show them, and GET would not find them.
/// They are deleted, or the source is removed again. No new ones are made, for the source serves already.
/// Cost: O(keys), [`VISITED`] at a time.
struct Covered {
    server: Arc<Server>,
    name: String,
    pattern: Pattern,
    deletes: bool,
    cursor: u64,
    found: u64,
    done: bool,
}

impl Covered {
    fn new(server: Arc<Server>, name: String, pattern: Pattern, deletes: bool) -> Covered {
        Covered { server, name, pattern, deletes, cursor: 0, found: 0, done: false }
    }

    fn tell(&self, view: View<'_>) {
        fetching::tell_from_aside(&self.server, view.finish());
    }

    /// Visits some keys. True: they were the last.
    fn advance(&mut self) -> bool {
        let now_ms = stdx::clock::wall_ms();
        let mut covered: Vec<Box<[u8]>> = Vec::new();
        let mut view = View::open(&self.server.keyspace, 0, now_ms);
        self.cursor = view.scan(self.cursor, VISITED, &mut |key, _| {
            if self.pattern.id(key).is_some() {
                covered.push(key.into());
            }
        });
        self.tell(view);
        if !self.deletes {
            self.found += covered.len() as u64;
        }
        for key in covered.iter().filter(|_| self.deletes) {
            let mut view = View::locked_one(&self.server.keyspace, key, 0, now_ms);
            if view.has_intents() {
                view.settle(&[(0, key)], true);
            }
            if view.remove(key) {
                view.changed(key, Class::Generic, "del");
                self.found += 1;
            }
            self.tell(view);
        }
        self.cursor == 0
    }
}

impl Stream for Covered {
    fn reads_on(&self) -> bool {
        true
    }

    fn fill(&mut self, out: &mut Reply, _: usize) -> bool {
        if !self.advance() {
            return true;
        }
        if self.found == 0 || self.deletes {
            self.done = true;
            if self.found > 0 {
                log::info!("source {}: {} keys of its pattern were deleted", self.name, self.found);
            }
            out.ok();
            return false;
        }
        let (n, pattern) = (self.found, &self.pattern);
        let (keys, are) = if n == 1 { ("key", "is") } else { ("keys", "are") };
        out.error(&format!(
            "ERR {n} {keys} of database 0 {are} called '{pattern}' and would be hidden: remove them, or add the source with \
             the option existing delete"
        ));
        // Dropping the value removes the source.
        false
    }

    fn has_effects(&self) -> bool {
        true
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        if !self.done {
            fetching::take_back(&self.server, self.name.as_bytes());
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

fn entry(server: &Server, name: &[u8]) -> Result<Arc<Entry>, Error> {
    let shown = || String::from_utf8_lossy(name).into_owned();
    server.rows.by_name(name).ok_or_else(|| format!("ERR no source '{}'", shown()).into())
}

/// `EVENKEEL SOURCE LIST`: passwords are not shown. O(sources)
fn list(act: &mut Act<'_, '_>) -> Result<Flow, Error> {
    let list = act.server.rows.list();
    act.out.array(list.len());
    for entry in list.iter() {
        let mut words = entry.spec().words();
        words[2] = entry.spec().shown_url();
        act.out.bulk(words.join(" ").as_bytes());
    }
    Ok(Flow::Done)
}

/// `EVENKEEL SOURCE PAUSE name`, `EVENKEEL SOURCE RESUME name`. O(1). Errors: there is no such source.
fn pause(act: &mut Act<'_, '_>, args: Args<'_>, paused: bool) -> Result<Flow, Error> {
    entry(act.server, args.at(3))?.source.pause(paused);
    act.out.ok();
    Ok(Flow::Done)
}

/// `EVENKEEL SOURCE FLUSH name [id ...]`. O(ids), or O(shards) without ids. Errors: there is no such source;
/// too many ids.
fn flush(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let entry = entry(act.server, args.at(3))?;
    let ids = args.from(4);
    if ids.len() > IDS_MAX {
        return Err(format!("ERR at most {IDS_MAX} ids at once").into());
    }
    if ids.is_empty() && (act.in_multi || act.in_script) {
        // Emptying takes locks, and the transaction holds some: it happens afterwards.
        entry.source.flush();
    } else if ids.is_empty() {
        entry.source.marks.mark_all();
        fetching::empty(act.server, act.local, &entry);
    } else {
        // In slices: later reads on this loop get fresh rows at once, reads on other loops soon.
        entry.source.give_up(ids.iter());
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// `EVENKEEL SOURCE REMOVE name`. O(1); its rows are removed in slices. Errors: there is no such source; in a
/// transaction.
fn remove(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if act.in_multi || act.in_script {
        return Err(Error::new("ERR a source cannot be removed in a transaction"));
    }
    match fetching::remove(act.server, act.local, args.at(3)) {
        true => act.out.ok(),
        false => return entry(act.server, args.at(3)).map(|_| Flow::Done),
    }
    Ok(Flow::Done)
}

/// `EVENKEEL SOURCE STATS [name]`: a map of maps; for one source, its map. O(sources · loops), by the
/// reporter. Errors: there is no such source.
fn stats(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let server = act.server.clone();
    if let Some(name) = args.get(3) {
        let entry = entry(&server, name)?;
        return elsewhere(act, move |out| write(&server, &entry, out));
    }
    elsewhere(act, move |out| {
        let list = server.rows.list();
        out.map(list.len());
        for entry in list.iter() {
            out.bulk(entry.spec().name.as_bytes());
            write(&server, entry, out);
        }
    })
}

fn write(server: &Server, entry: &Entry, out: &mut Reply) {
    let (figures, ratios) = (figures(&server.keyspace, entry), hit_ratios(entry));
    out.map(figures.len() + ratios.len() + 4);
    text(out, "state", if entry.source.is_paused() { "paused" } else { "serving" });
    let (feed, trouble) = match entry.source.feed() {
        FeedState::Opening => ("opening", String::new()),
        FeedState::Open => ("open", String::new()),
        FeedState::Off => ("off", String::new()),
        FeedState::Broken(why) => ("broken", why),
    };
    text(out, "feed", feed);
    text(out, "trouble", &entry.source.trouble().unwrap_or(trouble));
    text(out, "last-flush", &entry.source.last_loss());
    for (name, ratio) in ratios {
        out.bulk(name.as_bytes());
        match ratio {
            Some(ratio) => out.double(ratio),
            None => out.null(),
        }
    }
    for (name, _, value) in figures {
        out.bulk(name.as_bytes());
        out.int(value as i64);
    }
}

fn text(out: &mut Reply, name: &str, text: &str) {
    out.bulk(name.as_bytes());
    out.bulk(text.as_bytes());
}
