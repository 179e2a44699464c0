//! CLIENT: lists connections and acts on them.
//!
//! A list is written in slices, so it delays no other client however many connections there are. Whatever
//! acts on another client goes to its loop by mail.

use super::answer::help;
use super::connection::{is_plain, set_name};
use super::monitor;
use crate::Server;
use crate::act::{Act, PLAIN, Row};
use crate::mail::Mail;
use crate::parts::{Moving, ReplyMode};
use crate::session::{ClientInfo, flag};
use command::Flow;
use command::helps;
use command::options::is;
use command::{Error, Stream};
use keyspace::Pausing;
use observe::roll::{Filter, Form, Known, describe};
use resp::{Args, Reply};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

pub(super) const ACTIONS: &[Row] = &[
    Row("client|id", id, PLAIN),
    Row("client|info", info, PLAIN),
    Row("client|list", list, PLAIN),
    Row("client|capa", capa, PLAIN),
    Row("client|import-source", import_source, PLAIN),
    Row("client|maint_notifications", maint_notifications, PLAIN),
    Row("client|getname", name, PLAIN),
    Row("client|setname", set_name, PLAIN),
    Row("client|setinfo", set_info, PLAIN),
    Row("client|kill", kill, PLAIN),
    Row("client|pause", pause, PLAIN),
    Row("client|unpause", unpause, PLAIN),
    Row("client|reply", reply, PLAIN),
    Row("client|no-evict", no_evict, PLAIN),
    Row("client|no-touch", no_touch, PLAIN),
    Row("client|unblock", unblock, PLAIN),
    Row("client|help", |act, _| help(act, "CLIENT", helps::CLIENT), PLAIN),
];

/// `CLIENT ID`. O(1)
fn id(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.int(act.session.id as i64);
    Ok(Flow::Done)
}

/// `CLIENT GETNAME`: a null without a name. O(name)
fn name(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let name = act.session.info.text.lock().name.clone();
    act.out.bulk_or_null((!name.is_empty()).then_some(&name));
    Ok(Flow::Done)
}

/// `CLIENT SETINFO LIB-NAME | LIB-VER value`. O(value). Errors: another option; a value that CLIENT LIST
/// cannot show.
fn set_info(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (option, value) = (args.at(2), args.at(3));
    let shown = String::from_utf8_lossy(option).into_owned();
    let (lib_name, lib_ver) = (is(option, "lib-name"), is(option, "lib-ver"));
    if !lib_name && !lib_ver {
        return Err(format!("ERR Unrecognized option '{shown}'").into());
    }
    if !is_plain(value) {
        return Err(format!("ERR {shown} cannot contain spaces, newlines or special characters.").into());
    }
    let mut text = act.session.info.text.lock();
    if lib_name {
        text.lib_name = value.to_vec();
    } else {
        text.lib_ver = value.to_vec();
    }
    drop(text);
    act.out.ok();
    Ok(Flow::Done)
}

/// `CLIENT REPLY ON | OFF | SKIP`. Only ON is answered. O(log monitors). Errors: syntax.
fn reply(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let mode = args.at(2);
    if is(mode, "on") {
        if std::mem::replace(&mut act.session.speech.reply_mode, ReplyMode::On) == ReplyMode::Off {
            monitor::unmute(act.local, act.session);
        }
        act.out.ok();
    } else if is(mode, "off") {
        act.session.speech.reply_mode = ReplyMode::Off;
        monitor::mute(act.local, act.session);
    } else if !is(mode, "skip") {
        return Err(Error::Syntax);
    } else if act.session.speech.reply_mode != ReplyMode::Off {
        act.session.speech.reply_mode = ReplyMode::SkipNext;
    }
    Ok(Flow::Done)
}

/// `CLIENT NO-EVICT ON | OFF`. O(1). Errors: syntax.
fn no_evict(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    act.session.settings.no_evict = on_off(args.at(2))?;
    act.session.set_flag(flag::NO_EVICT, act.session.settings.no_evict);
    act.out.ok();
    Ok(Flow::Done)
}

/// `CLIENT NO-TOUCH ON | OFF`. O(1). Errors: syntax.
fn no_touch(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    act.session.settings.no_touch = on_off(args.at(2))?;
    act.session.set_flag(flag::NO_TOUCH, act.session.settings.no_touch);
    act.out.ok();
    Ok(Flow::Done)
}

/// `CLIENT CAPA option [option ...]`. REDIRECT: a replica sends it to its primary by `-REDIRECT host:port`. Unknown
/// options are ignored, so that clients of later servers may name theirs. O(words). Source: Valkey 8.
fn capa(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.from(2).iter().any(|option| is(option, "redirect")) {
        act.session.set_flag(flag::CAPA_REDIRECT, true);
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// `CLIENT IMPORT-SOURCE ON | OFF`: expired keys are there for this client while the server is in import mode
/// (`import-mode`). OFF is accepted at any time. O(1). Errors: the server is not in import mode, syntax.
/// Source: Valkey 9.1.
fn import_source(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if !act.server.keyspace.imports() && !is(args.at(2), "off") {
        return Err(Error::new("ERR Server is not in import mode"));
    }
    act.session.settings.imports = on_off(args.at(2))?;
    act.session.set_flag(flag::IMPORTS, act.session.settings.imports);
    act.out.ok();
    Ok(Flow::Done)
}

/// `CLIENT MAINT_NOTIFICATIONS ON | OFF [MOVING-ENDPOINT-TYPE type]`: when a replica leads by FAILOVER, this
/// connection gets the push `MOVING number seconds host:port`, and closes in place of refusing a write. O(1).
///  Errors: syntax; it speaks RESP2. Source: redis-py, go-redis.
fn maint_notifications(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let on = on_off(args.at(2))?;
    let mut named = true;
    for at in (3..args.len()).step_by(2) {
        if !is(args.at(at), "moving-endpoint-type") || at + 1 == args.len() {
            return Err(Error::Syntax);
        }
        let kind = args.at(at + 1);
        named = !is(kind, "none");
        if named && !ENDPOINTS.iter().any(|endpoint| is(kind, endpoint)) {
            return Err(Error::Syntax);
        }
    }
    if on && !act.session.speech.resp3 {
        return Err(Error::new("ERR CLIENT MAINT_NOTIFICATIONS needs RESP3: say HELLO 3 first"));
    }
    act.session.settings.moving = if on { Moving::On { named } } else { Moving::Off };
    act.session.set_flag(flag::MOVES, on);
    act.out.ok();
    Ok(Flow::Done)
}

/// Types of addresses that a client may ask for. All get the address that the replica announces.
const ENDPOINTS: [&str; 4] = ["internal-ip", "internal-fqdn", "external-ip", "external-fqdn"];

fn on_off(word: &[u8]) -> Result<bool, Error> {
    match (is(word, "on"), is(word, "off")) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(Error::Syntax),
    }
}

// ----- lists of connections
// ---------------------------------------------------------------------------------

/// Clients that one slice visits.
const SLICE: usize = 32;

/// `CLIENT INFO`: the line of CLIENT LIST about this client. O(1)
fn info(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let mut text = Vec::new();
    describe(&act.session.info, act.local.log.now_ms, &mut text);
    act.out.verbatim("txt", &text);
    Ok(Flow::Done)
}

/// `CLIENT LIST [filter value ...]`. O(clients), in slices. Errors: those of [`Filter::parse`].
fn list(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let search = Search::new(act, filter(act, args, Form::List)?);
    let few = search.is_short();
    let mut listing = Listing { search, pages: VecDeque::new(), bytes: 0, begun: false };
    if act.is_pressed() || few {
        while listing.fill(act.out, usize::MAX) {}
        return Ok(Flow::Done);
    }
    Ok(Flow::Stream(Box::new(listing)))
}

/// A list under way. It is written page by page and then sent page by page, because its length comes first.
struct Listing {
    search: Search,
    pages: VecDeque<Vec<u8>>,
    bytes: usize,
    begun: bool,
}

impl Stream for Listing {
    fn fill(&mut self, out: &mut Reply, _: usize) -> bool {
        if self.begun {
            self.pages.pop_front().into_iter().for_each(|page| out.bulk_part(&page));
        } else if let Some(clients) = self.search.next() {
            let mut page = Vec::with_capacity(400 * clients.len());
            clients.iter().for_each(|client| describe(client, self.search.now_ms, &mut page));
            self.bytes += page.len();
            self.pages.push_back(page);
        } else {
            out.begin_verbatim("txt", self.bytes);
            self.begun = true;
        }
        let more = !self.begun || !self.pages.is_empty();
        if !more {
            out.end_bulk();
        }
        more
    }
}

/// Reads the filters of CLIENT LIST or CLIENT KILL.
fn filter(act: &Act<'_, '_>, args: Args<'_>, form: Form) -> Result<Filter, Error> {
    let is_user = |name: &[u8]| act.server.acl.user(name).is_some();
    Filter::parse(args, form, &Known { is_user: &is_user, databases: act.server.keyspace.databases() })
}

/// A walk over the clients that pass the filters, in the order asked for, or by age.
struct Search {
    server: Arc<Server>,
    filter: Filter,
    me: u64,
    now_ms: u64,
    /// The last client visited, or the count of listed ones that were.
    after: u64,
}

impl Search {
    fn new(act: &Act<'_, '_>, filter: Filter) -> Search {
        let (server, me) = (act.server.clone(), act.session.id);
        Search { server, filter, me, now_ms: act.local.log.now_ms, after: 0 }
    }

    /// Whether the walk takes less than a quantum.
    fn is_short(&self) -> bool {
        self.filter.ids.as_ref().map_or(self.server.observe.clients.len(), Vec::len) <= SLICE
    }

    /// Visits a slice of the clients and gives those that pass. None: after the last. O(SLICE).
    fn next(&mut self) -> Option<Vec<Arc<ClientInfo>>> {
        let clients = &self.server.observe.clients;
        let mut page: Vec<_> = match &self.filter.ids {
            Some(ids) => {
                let rest = ids.get(self.after as usize..).filter(|rest| !rest.is_empty())?;
                let some = &rest[..rest.len().min(SLICE)];
                self.after += some.len() as u64;
                some.iter().filter_map(|id| clients.get(*id)).collect()
            }
            None => {
                let page = clients.page(self.after, SLICE);
                self.after = page.last()?.id;
                page
            }
        };
        page.retain(|client| self.filter.fits(client, self.me, self.now_ms));
        Some(page)
    }
}

// ----- acting on others
// -------------------------------------------------------------------------------------

/// `CLIENT KILL ip:port`, or with filters. A client that kills itself still gets the answer. O(clients), in
/// slices. Errors: those of [`Filter::parse`]; no client has the address.
fn kill(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let old = args.len() == 3;
    let filter = match old {
        true => Filter::of_address(args.at(2)),
        false => filter(act, args, Form::Kill)?,
    };
    let me = filter.fits(&act.session.info, act.session.id, act.local.log.now_ms)
        && filter.ids.as_ref().is_none_or(|ids| ids.contains(&act.session.id));
    let search = Search::new(act, filter);
    let at_once = act.is_pressed() || me || search.is_short();
    let mut killing = Killing { search, old, killed: 0 };
    if at_once {
        while killing.fill(act.out, 0) {}
        return Ok(if me { Flow::Close } else { Flow::Done });
    }
    Ok(Flow::Stream(Box::new(killing)))
}

/// Kills clients a slice at a time; the answer comes at the end.
struct Killing {
    search: Search,
    old: bool,
    killed: usize,
}

impl Stream for Killing {
    fn fill(&mut self, out: &mut Reply, _: usize) -> bool {
        if let Some(clients) = self.search.next() {
            self.killed += clients.len();
            for client in clients.iter().filter(|client| client.id != self.search.me) {
                client.killed.store(true, Relaxed);
                let loop_id = client.loop_id.load(Acquire) as usize;
                self.search.server.send(loop_id, Mail::Kill { client: client.id });
            }
            return true;
        }
        match (self.old, self.killed) {
            (true, 0) => out.error("ERR No such client"),
            (true, _) => out.ok(),
            (false, n) => out.int(n as i64),
        }
        false
    }

    fn has_effects(&self) -> bool {
        true
    }
}

/// `CLIENT PAUSE milliseconds [WRITE | ALL]`. O(1). Errors: another mode; a time that is no number, negative
/// or too far off.
fn pause(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let writes_only = match args.get(3) {
        None => false,
        Some(mode) if args.len() == 4 && is(mode, "write") => true,
        Some(mode) if args.len() == 4 && is(mode, "all") => false,
        Some(_) => return Err(Error::new("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    const BAD: Error = Error::new("ERR timeout is not an integer or out of range");
    let ms = stdx::num::parse_i64(args.at(2)).ok_or(BAD)?;
    let ms = u64::try_from(ms).map_err(|_| Error::new("ERR timeout is negative"))?;
    let until = act.local.log.now_ms.checked_add(ms).filter(|at| i64::try_from(*at).is_ok());
    let until_ms = until.ok_or(Error::new("ERR timeout is out of range"))?;
    let pausing = match writes_only {
        false => Pausing::All,
        true if act.in_multi => Pausing::WritesWith,
        true => Pausing::Writes,
    };
    act.server.keyspace.still.pause(pausing, until_ms, act.local.log.now_ms);
    act.out.ok();
    Ok(Flow::Done)
}

/// `CLIENT UNPAUSE`: held commands go on. O(loops)
fn unpause(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.server.keyspace.still.unpause();
    (0..act.server.loops()).for_each(|id| act.server.send(id, Mail::Retry));
    act.out.ok();
    Ok(Flow::Done)
}

/// `CLIENT UNBLOCK client-id [TIMEOUT | ERROR]`. O(keys that the client waits for). Errors: no number,
/// another reason, in a transaction.
fn unblock(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let with_error = match args.get(3) {
        Some(_) if args.len() > 4 => {
            let text = "ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP.";
            return Err(Error::new(text));
        }
        None => false,
        Some(reason) if args.len() == 4 && is(reason, "timeout") => false,
        Some(reason) if args.len() == 4 && is(reason, "error") => true,
        Some(_) => return Err(Error::new("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
    };
    let client = command::options::int(args.at(2))?;
    if act.in_multi {
        // Taking the client off its keys takes locks, and the transaction may hold some.
        return Err(Error::new("ERR CLIENT UNBLOCK is not allowed in a transaction"));
    }
    let (park, id) = (&act.server.park, u64::try_from(client).unwrap_or(0));
    let waiter = crate::blocking::leave(act.server, act.local, id);
    if waiter.is_none() && park.holds(id) {
        // A writer is serving the client at this moment. Whether the client still waits is known only after
        // that.
        return Ok(crate::held::retry(act.session, act.local));
    }
    let ended = waiter.is_some() || act.server.end_wait_for_replicas(id, with_error);
    act.out.int(ended.into());
    if let Some(waiter) = waiter {
        let mut out = Reply::new(waiter.resp3);
        // A command that only sleeps is done, and a transaction committed: its client is told how.
        match with_error && waiter.command.has(command::table::BLOCKING) {
            true => out.error("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            false => out.encoded(&waiter.null()),
        }
        let reply = Mail::Reply { client: waiter.client, bytes: out.into_bytes(), stream: None };
        act.server.send(waiter.loop_id, reply);
    }
    Ok(Flow::Done)
}
