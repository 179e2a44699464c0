//! CLIENT: lists connections and acts on them.
//!
//! A list is written in slices, so it delays no other client however many connections there are. Whatever
//! acts on another client goes to its loop by mail.

use super::connection::{is_plain, set_name};
use super::{Act, PLAIN, Row, help};
use crate::Flow;
use crate::Server;
use crate::mail::Mail;
use crate::session::{ClientInfo, ReplyMode, flag};
use command::options::is;
use command::{Error, Stream};
use resp::{Args, Reply};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

pub(super) const ACTIONS: &[Row] = &[
    Row("client|id", id, PLAIN),
    Row("client|info", info, PLAIN),
    Row("client|list", list, PLAIN),
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
    Row("client|help", |act, _| help(act, "CLIENT", HELP), PLAIN),
];

const HELP: &[&str] = &[
    "CACHING <YES | NO>",
    "    Remember the keys of the next command, or do not (OPTIN, OPTOUT).",
    "GETNAME",
    "    Tell this connection's name.",
    "GETREDIR",
    "    Tell which connection gets the invalidation messages of this one.",
    "ID",
    "    Tell this connection's number.",
    "INFO",
    "    Describe this connection.",
    "KILL <ip:port>",
    "    Close the connection from this address.",
    "KILL <filter> <value> [<filter> <value> ...]",
    "    Close all connections that match every filter; tell how many.",
    "LIST [<filter> <value> ...]",
    "    Describe connections, all or those that match every filter. Filters:",
    "    ADDR <ip:port>, LADDR <ip:port>, TYPE <normal | master | replica | pubsub>,",
    "    USER <name>, ID <number> [<number> ...], SKIPME <YES | NO>, MAXAGE <seconds>",
    "NO-EVICT <ON | OFF>",
    "    Spare this connection when client buffers must be freed.",
    "NO-TOUCH <ON | OFF>",
    "    Leave access times alone when this connection reads.",
    "PAUSE <milliseconds> [WRITE | ALL]",
    "    Hold the commands of all clients, or only those that write.",
    "REPLY <ON | OFF | SKIP>",
    "    Turn replies on or off, or leave out the next one.",
    "SETINFO <LIB-NAME | LIB-VER> <value>",
    "    Remember what library the client uses.",
    "SETNAME <name>",
    "    Name this connection.",
    "TRACKING <ON | OFF> [REDIRECT <number>] [BCAST] [PREFIX <prefix> ...] [OPTIN] [OPTOUT] [NOLOOP]",
    "    Client-side caching: send a message when a key that was read here changes.",
    "TRACKINGINFO",
    "    Tell how client-side caching is set up.",
    "UNBLOCK <number> [TIMEOUT | ERROR]",
    "    End another connection's waiting, as if its time were up or with an error.",
    "UNPAUSE",
    "    End PAUSE.",
];

fn id(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.int(act.session.id as i64);
    Ok(Flow::Done)
}

fn name(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let name = act.session.info.text.lock().name.clone();
    act.out.bulk_or_null((!name.is_empty()).then_some(&name));
    Ok(Flow::Done)
}

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

/// `CLIENT REPLY ON | OFF | SKIP`. Only ON is answered.
fn reply(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let mode = args.at(2);
    if is(mode, "on") {
        act.session.reply_mode = ReplyMode::On;
        act.out.ok();
    } else if is(mode, "off") {
        act.session.reply_mode = ReplyMode::Off;
    } else if !is(mode, "skip") {
        return Err(Error::Syntax);
    } else if act.session.reply_mode != ReplyMode::Off {
        act.session.reply_mode = ReplyMode::SkipNext;
    }
    Ok(Flow::Done)
}

fn no_evict(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    act.session.no_evict = on_off(args.at(2))?;
    act.session.set_flag(flag::NO_EVICT, act.session.no_evict);
    act.out.ok();
    Ok(Flow::Done)
}

fn no_touch(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    act.session.no_touch = on_off(args.at(2))?;
    act.session.set_flag(flag::NO_TOUCH, act.session.no_touch);
    act.out.ok();
    Ok(Flow::Done)
}

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

fn info(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let mut text = Vec::new();
    describe(&act.session.info, act.local.log.now_ms, &mut text);
    act.out.verbatim("txt", &text);
    Ok(Flow::Done)
}

/// `CLIENT LIST [filter value ...]`. Cost: O(clients), in slices.
fn list(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let search = Search::new(act, Filter::parse(args, Form::List)?.of_known_user(act)?);
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

/// Writes a client's line of CLIENT LIST.
pub(crate) fn describe(client: &ClientInfo, now_ms: u64, out: &mut Vec<u8>) {
    let seconds = |since: u64| now_ms.saturating_sub(since) / 1000;
    let text = client.text.lock().clone();
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (pending, input) = (client.reply_bytes.load(Relaxed), client.query_bytes.load(Relaxed));
    let (free, multi) = (client.query_free.load(Relaxed), client.multi_bytes.load(Relaxed));
    let more = client.watch_bytes.load(Relaxed) + client.work_bytes.load(Relaxed);
    let mut line = String::with_capacity(400);
    // Writing to a string cannot fail.
    let _ = writeln!(
        line,
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub={} psub={} ssub={} multi={} watch={} \
         qbuf={input} qbuf-free={free} argv-mem=0 multi-mem={multi} rbs={pending} rbp={pending} obl={pending} oll=0 omem=0 \
         tot-mem={} events={} cmd={} user={} redir={} resp={} lib-name={} lib-ver={} io-thread={} tot-net-in={} \
         tot-net-out={} tot-cmds={}",
        client.id,
        client.address,
        client.local_address,
        client.fd,
        lossy(&text.name),
        seconds(client.connected_ms),
        seconds(client.last_ms.load(Relaxed)),
        flags(client),
        client.db.load(Relaxed),
        client.subscriptions.load(Relaxed),
        client.pattern_subscriptions.load(Relaxed),
        client.shard_subscriptions.load(Relaxed),
        client.queued.load(Relaxed),
        client.watching.load(Relaxed),
        CLIENT_BYTES + input + free + pending + multi + more,
        if pending > 0 { "rw" } else { "r" },
        client.command(),
        lossy(&text.user),
        client.redirect.load(Relaxed),
        client.resp.load(Relaxed),
        lossy(&text.lib_name),
        lossy(&text.lib_ver),
        client.loop_id.load(Relaxed),
        client.net_in.load(Relaxed),
        client.net_out.load(Relaxed),
        client.commands.load(Relaxed),
    );
    out.extend_from_slice(line.as_bytes());
}

/// Memory of a connection besides its buffers, in bytes, roughly.
const CLIENT_BYTES: u64 = 1500;

fn flags(client: &ClientInfo) -> String {
    let bits = client.flags.load(Relaxed);
    let letters = [
        (flag::MONITOR, 'O'),
        (flag::PUBSUB, 'P'),
        (flag::MULTI, 'x'),
        (flag::BLOCKED, 'b'),
        (flag::WATCH_DIRTY, 'd'),
        (flag::CLOSE_SOON, 'c'),
        (flag::TRACKING, 't'),
        (flag::BROKEN_REDIRECT, 'R'),
        (flag::BROADCAST, 'B'),
    ];
    let mut out: String = letters.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, c)| c).collect();
    if client.unix {
        out.push('U');
    }
    let letters = [(flag::NO_EVICT, 'e'), (flag::NO_TOUCH, 'T')];
    out.extend(letters.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, c)| c));
    if out.is_empty() {
        out.push('N');
    }
    out
}

// ----- filters
// ----------------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    List,
    Kill,
}

/// The filters of CLIENT LIST and CLIENT KILL. A client has to pass all of them.
#[derive(Default)]
struct Filter {
    ids: Option<Vec<u64>>,
    pubsub: Option<bool>,
    /// The type asked for has no clients here (primaries and replicas).
    nobody: bool,
    address: Option<Vec<u8>>,
    local_address: Option<Vec<u8>>,
    user: Option<Vec<u8>>,
    skip_me: bool,
    max_age_s: Option<u64>,
}

impl Filter {
    fn parse(args: Args<'_>, form: Form) -> Result<Filter, Error> {
        let mut filter = Filter { skip_me: form == Form::Kill, ..Filter::default() };
        let mut i = 2;
        while i < args.len() {
            let Some(value) = args.get(i + 1) else { return Err(Error::Syntax) };
            if form == Form::List && is(args.at(i), "id") {
                i = filter.listed_ids(args, i + 1)?;
                continue;
            }
            filter.take(args.at(i), value)?;
            i += 2;
        }
        Ok(filter)
    }

    /// Reads the numbers of `LIST ID`, as many as follow.
    fn listed_ids(&mut self, args: Args<'_>, from: usize) -> Result<usize, Error> {
        let mut end = from;
        while let Some(id) = args.get(end).and_then(stdx::num::parse_i64) {
            // No client has a negative number.
            self.ids.get_or_insert_default().push(u64::try_from(id).unwrap_or(0));
            end += 1;
        }
        let names = ["addr", "laddr", "type", "user", "skipme", "maxage", "id"];
        match args.get(end) {
            None if end > from => Ok(end),
            Some(word) if end > from && names.iter().any(|name| is(word, name)) => Ok(end),
            _ => Err(Error::new("ERR Invalid client ID")),
        }
    }

    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), Error> {
        let shown = || String::from_utf8_lossy(value).into_owned();
        if is(name, "id") {
            let id = stdx::num::parse_i64(value).filter(|id| *id > 0);
            let id = id.ok_or(Error::new("ERR client-id should be greater than 0"))?;
            self.ids = Some(vec![id as u64]);
        } else if is(name, "maxage") {
            let age = stdx::num::parse_i64(value);
            let age = age.ok_or(Error::new("ERR maxage is not an integer or out of range"))?;
            if age <= 0 {
                return Err(Error::new("ERR maxage should be greater than 0"));
            }
            self.max_age_s = Some(age as u64);
        } else if is(name, "type") {
            match () {
                () if is(value, "normal") => self.pubsub = Some(false),
                () if is(value, "pubsub") => self.pubsub = Some(true),
                () if ["master", "primary", "slave", "replica"].iter().any(|t| is(value, t)) => {
                    self.nobody = true
                }
                () => return Err(format!("ERR Unknown client type '{}'", shown()).into()),
            }
        } else if is(name, "addr") {
            self.address = Some(value.to_vec());
        } else if is(name, "laddr") {
            self.local_address = Some(value.to_vec());
        } else if is(name, "user") {
            self.user = Some(value.to_vec());
        } else if is(name, "skipme") {
            self.skip_me = match (is(value, "yes"), is(value, "no")) {
                (true, _) => true,
                (_, true) => false,
                _ => return Err(Error::Syntax),
            };
        } else {
            return Err(Error::Syntax);
        }
        Ok(())
    }

    /// Errors: it asks for the clients of a user that does not exist.
    fn of_known_user(self, act: &Act<'_, '_>) -> Result<Filter, Error> {
        match &self.user {
            Some(name) if act.server.acl.user(name).is_none() => {
                Err(format!("ERR No such user '{}'", String::from_utf8_lossy(name)).into())
            }
            _ => Ok(self),
        }
    }

    fn fits(&self, client: &ClientInfo, me: u64, now_ms: u64) -> bool {
        let pubsub = client.flags.load(Relaxed) & flag::PUBSUB != 0;
        let age_s = now_ms.saturating_sub(client.connected_ms) / 1000;
        !self.nobody
            && self.pubsub.is_none_or(|wanted| wanted == pubsub)
            && self.address.as_ref().is_none_or(|a| client.address.as_bytes() == a.as_slice())
            && self.local_address.as_ref().is_none_or(|a| client.local_address.as_bytes() == a.as_slice())
            && self.max_age_s.is_none_or(|max| age_s >= max)
            && self.user.as_ref().is_none_or(|user| client.text.lock().user == *user)
            && !(self.skip_me && client.id == me)
    }
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

/// `CLIENT KILL ip:port`, or with filters. A client that kills itself still gets the answer. Cost:
/// O(clients), in slices.
fn kill(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let old = args.len() == 3;
    let filter = match old {
        true => Filter { address: Some(args.at(2).to_vec()), ..Filter::default() },
        false => Filter::parse(args, Form::Kill)?.of_known_user(act)?,
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

/// `CLIENT PAUSE milliseconds [WRITE | ALL]`.
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
    act.server.work.pause.set(until.ok_or(Error::new("ERR timeout is out of range"))?, writes_only);
    act.server.keyspace.keep_expired(act.server.work.pause.until_ms());
    act.out.ok();
    Ok(Flow::Done)
}

fn unpause(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.server.work.pause.clear();
    act.server.keyspace.keep_expired(0);
    (0..act.server.loops()).for_each(|id| act.server.send(id, Mail::Retry));
    act.out.ok();
    Ok(Flow::Done)
}

/// `CLIENT UNBLOCK client-id [TIMEOUT | ERROR]`.
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
    act.out.int(waiter.is_some().into());
    if let Some(waiter) = waiter {
        let mut out = Reply::new(waiter.resp3);
        match with_error {
            true => out.error("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            false => out.encoded(&waiter.null()),
        }
        let reply = Mail::Reply { client: waiter.client, bytes: out.into_bytes(), stream: None };
        act.server.send(waiter.loop_id, reply);
    }
    Ok(Flow::Done)
}
