//! CONFIG, and the consequences of a changed setting.

use super::answer::{aside, help, kept, report};
use crate::Server;
use crate::act::{Act, PLAIN, Row};
use command::Error;
use command::Flow;
use command::helps;
use config::{Directive, Live, Observer};
use keyspace::Keyspace;
use memory::Memory;
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use work::reports::Report;

pub(super) const ACTIONS: &[Row] = &[
    Row("config|get", get, PLAIN),
    Row("config|set", set, PLAIN),
    Row("config|resetstat", reset_stat, PLAIN),
    Row("config|rewrite", rewrite, PLAIN),
    Row("config|help", |act, _| help(act, "CONFIG", helps::CONFIG), PLAIN),
];

/// Length from which on a pattern takes long to compare with all names, in bytes.
const LONG: usize = 16;

/// `CONFIG GET pattern [pattern ...]`. Cost: O(patterns · names); away from the loop, unless they are few plain
/// names.
fn get(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    // Each pattern is compared with all names.
    let is_long = |word: &[u8]| word.len() > LONG && word.iter().any(|byte| b"*?[\\".contains(byte));
    let many = args.len() > 8 || args.from(2).iter().any(|word| word.contains(&b'*') || is_long(word));
    if many {
        let (server, words) = (act.server.clone(), kept(act, args));
        return report(act, move || Getting { asking: server.config.ask(), words });
    }
    show(act.server.config.get(args.from(2).iter()), act.out);
    Ok(Flow::Done)
}

fn show(found: Vec<(Vec<u8>, Vec<u8>)>, out: &mut Reply) {
    out.map(found.len());
    for (name, value) in &found {
        out.bulk(name);
        out.bulk(value);
    }
}

/// A CONFIG GET of much.
struct Getting {
    asking: config::Asking,
    words: Arc<OwnedArgs>,
}

impl Report for Getting {
    fn step(&mut self, _: &mut Reply, looks: &mut usize) -> bool {
        let patterns = self.words.args().from(2);
        self.asking.step(patterns.len(), |at| patterns.at(at), looks)
    }

    fn finish(self: Box<Self>, out: &mut Reply) -> Option<Box<dyn Report>> {
        show(self.asking.found(), out);
        None
    }
}

/// `CONFIG SET name value ...`. O(settings); one that reads files or opens sockets is made on a thread of its
/// own. Errors: those of [`config::Config::set`]; such a one in a transaction.
fn set(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (server, local) = (act.server.clone(), act.session.is_local());
    if !config::may_block(args.from(2).iter()) {
        config::set(&server.config, args, local, act.out);
        return Ok(Flow::Done);
    }
    may_block(act, "SET of files and addresses")?;
    let words = args.to_owned();
    aside(act, "config", move |out| config::set(&server.config, words.args(), local, out))
}

/// `CONFIG RESETSTAT`. O(loops · counters)
fn reset_stat(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.server.observe.stats.reset();
    let (keyspace, clients) = (&act.server.keyspace.stats, &act.server.observe.clients);
    let keyspace = [
        &keyspace.hits,
        &keyspace.misses,
        &keyspace.expired_keys,
        &keyspace.expired_fields,
        &keyspace.evicted_keys,
    ];
    for counter in
        keyspace.into_iter().chain([&clients.accepted, &clients.refused]).chain(&act.server.acl.denied)
    {
        counter.store(0, Ordering::Relaxed);
    }
    act.server.memory.reset_stat(act.local.log.now_ms);
    act.out.ok();
    Ok(Flow::Done)
}

/// `CONFIG REWRITE`: writes and syncs the file on a thread of its own, so no report waits for the disk.
/// In a transaction, as Sentinel sends it behind REPLICAOF, it answers before the file is written: the locks are
/// held until the answer.
///
/// O(settings + sources + users). Errors: the write fails, which in a transaction only the log says; in a
/// script.
fn rewrite(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let server = act.server.clone();
    let write = move || server.config.rewrite(&server.rows.written(), server.config.user_lines(&server.acl));
    if act.in_multi && !act.in_script {
        act.server.config.rewrite_later(write)?;
        act.out.ok();
        return Ok(Flow::Done);
    }
    may_block(act, "REWRITE")?;
    aside(act, "rewrite", move |out| match write() {
        Ok(()) => out.ok(),
        Err(text) => out.error(&text),
    })
}

fn may_block(act: &Act<'_, '_>, what: &str) -> Result<(), Error> {
    let why = "is not allowed in a transaction: other clients would wait for it";
    let may = !(act.in_multi || act.in_script);
    if may { Ok(()) } else { Err(format!("ERR CONFIG {what} {why}").into()) }
}

/// Passes changed settings on to the other crates.
struct Follower {
    keyspace: Arc<Keyspace>,
    memory: Arc<Memory>,
    machine_bytes: u64,
}

impl Observer for Follower {
    fn changed(&self, _: &Directive, live: &Live) {
        apply(&self.keyspace, &self.memory, self.machine_bytes, live);
    }
}

/// Applies the settings now, and after every change. O(1)
pub(crate) fn follow(server: &Server) {
    let machine_bytes = server.memory_bytes;
    apply(&server.keyspace, &server.memory, machine_bytes, &server.config.live);
    let follower =
        Follower { keyspace: server.keyspace.clone(), memory: server.memory.clone(), machine_bytes };
    server.config.observe(Box::new(follower));
}

fn apply(keyspace: &Keyspace, memory: &Memory, machine_bytes: u64, live: &Live) {
    keyspace.set_imports(live.import_mode.get());
    memory.configure(keyspace, live);
    memory.limit_work(live, machine_bytes);
    keyspace.set_notify(pubsub::wanted_classes(live.notify.get() as u32));
}
