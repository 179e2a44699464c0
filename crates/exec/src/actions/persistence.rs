//! SAVE, BGSAVE, LASTSAVE, BGREWRITEAOF, SHUTDOWN; SYNC for clients that want a snapshot's file alone.

use crate::act::{Act, PLAIN, Row};
use crate::held;
use crate::mail::Mail;
use command::Flow;
use command::options::is;
use command::{Error, Stream};
use durable::{Copied, Ending, FileCopy, Purpose, Read, Wish};
use resp::{Args, Reply};
use std::path::Path;

pub(super) const ACTIONS: &[Row] = &[
    Row("save", save, PLAIN),
    Row("bgsave", bgsave, PLAIN),
    Row("bgrewriteaof", bgrewriteaof, PLAIN),
    Row("lastsave", lastsave, PLAIN),
    Row("shutdown", shutdown, PLAIN),
];

const BUSY: Error = Error::new("ERR Background save already in progress");

/// `SAVE`: as BGSAVE, but the client waits for the end. Other clients go on.
///
/// Cost: O(keys) in slices. Errors: a snapshot is under way; why it failed.
fn save(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let (server, loop_id, client) = (act.server.clone(), act.local.log.id, act.session.id);
    let resp3 = act.out.resp3();
    let tell = move |saved: Result<&Path, &str>| -> durable::Answer {
        let mut out = Reply::new(resp3);
        match saved {
            Ok(_) => out.ok(),
            Err(why) => out.error(&format!("ERR the snapshot failed: {why}")),
        }
        Box::new(move || {
            server.send(loop_id, Mail::Reply { client, bytes: out.into_bytes(), stream: None });
        })
    };
    stdx::panics::changes();
    match act.server.durability.begin(&mut act.local.works, Purpose::Save, Some(Box::new(tell))) {
        true => Ok(Flow::Parked(None)),
        false => Err(BUSY),
    }
}

/// `BGSAVE [SCHEDULE | CANCEL]`.
///
/// Cost: O(1); the snapshot takes O(keys) in slices. Errors: one is under way; CANCEL: none is.
fn bgsave(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let option = args.get(1);
    if option.is_some_and(|word| is(word, "cancel")) && args.len() == 2 {
        return cancel(act);
    }
    if args.len() > 2 || option.is_some_and(|word| !is(word, "schedule")) {
        return Err(Error::Syntax);
    }
    if act.server.durability.is_rewriting() && option.is_none() {
        return Err(Error::new(
            "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to \
             schedule a BGSAVE whenever possible.",
        ));
    }
    if act.server.durability.is_busy() && !act.server.durability.is_rewriting() {
        return Err(BUSY);
    }
    if act.in_multi || act.server.durability.is_rewriting() {
        act.server.durability.schedule();
        act.out.simple("Background saving scheduled");
        return Ok(Flow::Done);
    }
    match act.server.durability.begin(&mut act.local.works, Purpose::Save, None) {
        true => act.out.simple("Background saving started"),
        false => return Err(BUSY),
    }
    Ok(Flow::Done)
}

fn cancel(act: &mut Act<'_, '_>) -> Result<Flow, Error> {
    // A rewrite is no snapshot that BGSAVE began.
    if !act.server.durability.is_rewriting() && act.server.durability.cancel() {
        act.out.simple("Background saving cancelled");
    } else if act.server.durability.unschedule() {
        act.out.simple("Scheduled background saving cancelled");
    } else {
        return Err(Error::new("ERR Background saving is currently not in progress or scheduled"));
    }
    Ok(Flow::Done)
}

/// `BGREWRITEAOF`: the append-only log gets a new base.
///
/// Cost: O(1); the rewrite takes O(keys) in slices. Errors: there is no log, or a rewrite is under way.
fn bgrewriteaof(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    if !act.server.config.live.appendonly.get() {
        return Err(Error::new("ERR there is no append-only log to be rewritten (appendonly is no)"));
    }
    if act.server.durability.is_rewriting() {
        return Err(Error::new("ERR Background append only file rewriting already in progress"));
    }
    if act.in_multi || !act.server.durability.begin_rewrite() {
        act.server.durability.schedule_rewrite();
        act.out.simple("Background append only file rewriting scheduled");
        return Ok(Flow::Done);
    }
    act.out.simple("Background append only file rewriting started");
    Ok(Flow::Done)
}

/// `LASTSAVE`: seconds since 1970; the time of the start while there is no snapshot, as in Redis. Cost: O(1).
fn lastsave(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.int(act.server.durability.last_save_s() as i64);
    Ok(Flow::Done)
}

/// `SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [SAFE] [ABORT]`. No answer when it succeeds.
///
/// Writes wait until replicas have all, for `shutdown-timeout` at most, unless NOW is said.
///
/// Cost: O(1), and O(keys) in slices for the last snapshot. Errors: the snapshot fails, without FORCE; no
/// SHUTDOWN is under way, for ABORT.
fn shutdown(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (mut save, mut nosave, mut abort) = (false, false, false);
    let mut ending = Ending::default();
    for word in args.from(1).iter() {
        match () {
            () if is(word, "save") => save = true,
            () if is(word, "nosave") => nosave = true,
            () if is(word, "abort") => abort = true,
            () if is(word, "force") => ending.force = true,
            () if is(word, "now") => ending.now = true,
            () if is(word, "safe") => {}
            () => return Err(Error::Syntax),
        }
    }
    if abort && args.len() > 2 || save && nosave {
        return Err(Error::Syntax);
    }
    if abort {
        if !act.server.durability.abort_end() {
            return Err(Error::new("ERR No shutdown in progress."));
        }
        act.out.ok();
        return Ok(Flow::Done);
    }
    if act.in_multi || act.in_script {
        // As in Redis: the commands behind it would have no server.
        return Err(Error::new("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    ending.wish = if nosave {
        Wish::NoSave
    } else if save {
        Wish::Save
    } else {
        Wish::Usual
    };
    let (server, loop_id, client) = (act.server.clone(), act.local.log.id, act.session.id);
    let refused = move || {
        let bytes = b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n".to_vec();
        server.send(loop_id, Mail::Reply { client, bytes, stream: None });
    };
    act.server.durability.ask_end(ending, Box::new(refused));
    match act.server.program.get() {
        Some(program) => program.stop(),
        None => act.server.shut_down(),
    }
    Ok(Flow::Parked(None))
}

/// Milliseconds until SYNC looks again whether a snapshot is under way.
const LOOK_MS: u64 = 20;

/// Notes what a client wants of a snapshot's file (REPLCONF). False: the option is about something else.
///
/// - `rdb-only 0|1`: it wants the file alone.
/// - `rdb-filter-only names`: the parts that the file has, of which `functions` is the only one with a name.
pub(super) fn wish(act: &mut Act<'_, '_>, option: &[u8], value: &[u8]) -> Result<bool, Error> {
    let wish = &mut act.session.copy_wish;
    if is(option, "rdb-only") {
        wish.file_alone = stdx::num::parse_i64(value).ok_or(Error::NotInteger)? == 1;
        return Ok(true);
    }
    if !is(option, "rdb-filter-only") {
        return Ok(false);
    }
    (wish.filtered, wish.functions) = (true, false);
    for name in value.split(|b| *b == b' ').filter(|name| !name.is_empty()) {
        if !is(name, "functions") {
            let name = String::from_utf8_lossy(value);
            return Err(format!("ERR Unsupported rdb-filter-only option: {name}").into());
        }
        wish.functions = true;
    }
    Ok(true)
}

/// `SYNC` behind `REPLCONF rdb-only 1`: the file of a snapshot, as `redis-cli --rdb` and `--functions-rdb` ask
/// for it. The client waits while another snapshot is under way.
///
/// Cost: O(keys) in slices, and the file in `dir` until it is sent. Errors: why the snapshot failed.
pub(super) fn send_file(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let (wish, client) = (act.session.copy_wish, act.session.id);
    let copied = Copied { client, keys: !wish.filtered, functions: !wish.filtered || wish.functions };
    let (server, loop_id) = (act.server.clone(), act.local.log.id);
    let resp3 = act.out.resp3();
    let tell = move |taken: Result<&Path, &str>| -> durable::Answer {
        let killer = server.clone();
        // The client cannot tell a file that is cut off from one that is late.
        let broken = Box::new(move || killer.send(loop_id, Mail::Kill { client }));
        let (mut out, mut stream): (_, Option<Box<dyn Stream>>) = (Reply::new(resp3), None);
        match taken.map_err(str::to_owned).and_then(|path| server.durability.take_copy(path)) {
            Ok(file) => stream = Some(Box::new(Sent { file, has_begun: false, broken: Some(broken) })),
            Err(why) => out.error(&format!("ERR the snapshot failed: {why}")),
        }
        Box::new(move || {
            server.send(loop_id, Mail::Reply { client, bytes: out.into_bytes(), stream });
        })
    };
    stdx::panics::changes();
    match act.server.durability.begin(&mut act.local.works, Purpose::Copy(copied), Some(Box::new(tell))) {
        true => Ok(Flow::Parked(None)),
        false => Ok(held::retry_later(act.session, act.local, LOOK_MS)),
    }
}

/// A snapshot's file as a reply: a bulk without its last line end, as a primary sends it.
struct Sent {
    file: FileCopy,
    has_begun: bool,
    /// Called once if the rest cannot be read.
    broken: Option<Box<dyn FnOnce() + Send>>,
}

impl Stream for Sent {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        if !std::mem::replace(&mut self.has_begun, true) {
            out.encoded(format!("${}\r\n", self.file.size_bytes()).as_bytes());
        }
        match self.file.read(room) {
            Read::Bytes(bytes) => out.encoded(bytes),
            Read::Later => {}
            Read::End => return false,
            Read::Broken => {
                if let Some(broken) = self.broken.take() {
                    broken();
                }
                return false;
            }
        }
        !self.file.is_at_end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;
    use durable::Files;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    /// The reply with a file of 300 bytes, of which some are gone as it is sent, and whether it was said to be
    /// broken.
    fn sent(left: u64) -> (Vec<u8>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let config = Arc::new(Config::default());
        config.live.dir.set(dir.path().as_os_str().as_encoded_bytes());
        config.live.save_points.set(b"");
        let server = crate::Server::start(config.clone(), 1).unwrap();
        server.durability.store_in(Files::open(&config).unwrap());
        let path = dir.path().join("x.rdb");
        std::fs::write(&path, [b'a'; 300]).unwrap();
        let writer = std::fs::File::options().write(true).open(&path).unwrap();
        let file = server.durability.take_copy(&path).unwrap();
        writer.set_len(left).unwrap();
        let (told, hears) = channel();
        let broken: Box<dyn FnOnce() + Send> = Box::new(move || told.send(()).unwrap());
        let mut stream = Sent { file, has_begun: false, broken: Some(broken) };
        let mut out = Reply::new(false);
        while stream.fill(&mut out, 100) {}
        (out.into_bytes(), hears.try_recv().is_ok())
    }

    #[test]
    fn a_file_that_is_cut_off_ends_its_reply() {
        assert_eq!(sent(300), ([&b"$300\r\n"[..], &[b'a'; 300]].concat(), false));
        assert_eq!(sent(40), ([&b"$300\r\n"[..], &[b'a'; 40]].concat(), true));
    }
}
