//! The engine `etcd`, by its JSON gateway (on by default, 3.4 and later) over HTTP/1.1.
//!
//! ```text
//! /evenkeel/NAME/shard/ID        NODE SESSION, bound to the holder's lease; epoch = its create_revision
//! /evenkeel/NAME/shard/ID/next   NODE, bound to the lease of the one who let go
//! /evenkeel/NAME/map, …          values; revision = mod_revision
//! ```
//!
//! - ET1: all changes are transactions that compare revisions, and all reads are linearizable. A lease is taken
//!   by creating its key, bound to it. A renewal is kept only if the key is still that of the lease.
//! - ET2: what changes something goes to one endpoint. If that may have got it and does not answer, the result
//!   is Unknown. Everything else is asked of all endpoints in turn, within one limit.
//! - ET3: a lease has a number of our own choice. So after an Unknown the next [`Coordinator::acquire`] finds
//!   out whether it has the key; if not, the lease is revoked, and what is still under way fails.
//! - ET4: a watch that hears nothing asks its endpoint each second for a linearizable answer, and breaks if
//!   there is none: a member that is stopped or cut off does not hold it.
//!
//! Cost: a renewal is two requests, all else one to three, of 1 to 3 ms each in one network.

use crate::coordinator::{
    CALL_LIMIT, Cas, Change, Coordinator, Ended, Entry, Held, Lease, NodeId, Renewed, Revision, ShardId,
    Stop, Trouble, check_key, next_key, random, shard_key,
};
use crate::http::{Answer, Failure, Line, Lines, Request, Server, base64, from_base64};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tls::Client;

/// The port of an endpoint that names none.
const PORT: u16 = 2379;
/// The time between looks whether a watch is stopped.
const LOOK: Duration = Duration::from_millis(200);
/// A watch that hears nothing for so long asks whether its endpoint lives (ET4).
const QUIET: Duration = Duration::from_secs(1);
/// Attempts to take a lease that others let go at the same moment.
const ATTEMPTS: usize = 5;

/// A cluster of etcd. See the module.
pub struct Etcd {
    servers: Vec<Server>,
    /// The endpoint that answered last.
    preferred: AtomicUsize,
    /// With a slash at its end.
    root: String,
    shown: String,
    session: u64,
    user: String,
    password: String,
    token: Mutex<Option<String>>,
    /// Leases of which it is not known whether they have their shard's key (ET3).
    pending: Mutex<HashMap<ShardId, u64>>,
    /// Own leases, by epoch.
    own: Mutex<HashMap<u64, u64>>,
}

/// An error of etcd, by its number in gRPC.
#[derive(Debug)]
struct Refused {
    code: u64,
    text: String,
}

/// No such lease, or key.
const NOT_FOUND: u64 = 5;
const OUT_OF_RANGE: u64 = 11;
const UNAUTHENTICATED: u64 = 16;

#[derive(Debug)]
enum Wrong {
    /// Nothing was done.
    Refused(Refused),
    Failed(Failure),
}

impl Wrong {
    fn trouble(self) -> Trouble {
        match self {
            Wrong::Refused(refused) => Trouble::new(format!("etcd: {}", refused.text)),
            Wrong::Failed(failure) => failure.trouble(),
        }
    }

    fn is_known(&self) -> bool {
        !matches!(self, Wrong::Failed(Failure::Unknown(_)))
    }
}

impl Etcd {
    /// `endpoints`: `host` or `host:port`, with commas between. No request is sent. Errors: a sentence that
    /// says what to do.
    pub fn new(
        endpoints: &str,
        tls: Option<Client>,
        name: &str,
        user: &str,
        password: &str,
    ) -> Result<Etcd, String> {
        let scheme = if tls.is_some() { "etcds" } else { "etcd" };
        let mut servers = Vec::new();
        for place in endpoints.trim_end_matches('/').split(',') {
            let bare = !place.ends_with(']') && place.contains(':');
            let place = if bare { place.to_owned() } else { format!("{place}:{PORT}") };
            let server = Server::new(&place, tls.clone()).map_err(|e| {
                format!("cluster-coordinator {scheme}: {e}; write {scheme}://HOST:{PORT},HOST:{PORT}")
            })?;
            servers.push(server);
        }
        Ok(Etcd {
            servers,
            preferred: AtomicUsize::new(0),
            root: format!("/evenkeel/{name}/"),
            shown: format!("{scheme}://{endpoints}"),
            session: random()?,
            user: user.to_owned(),
            password: password.to_owned(),
            token: Mutex::default(),
            pending: Mutex::default(),
            own: Mutex::default(),
        })
    }

    fn key(&self, key: &str) -> String {
        base64(format!("{}{key}", self.root).as_bytes())
    }

    /// The first key behind all that begin with `prefix`.
    fn end(&self, prefix: &str) -> String {
        let mut end = format!("{}{prefix}", self.root).into_bytes();
        *end.last_mut().expect("it begins with a slash") += 1;
        base64(&end)
    }

    /// Asks something that changes nothing, or may be done twice, of all endpoints in turn (ET2).
    fn ask(&self, path: &str, body: &Value, until: Instant) -> Result<Value, Wrong> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut last = None;
        for turn in 0..self.servers.len() {
            let at = (first + turn) % self.servers.len();
            let left = until.saturating_duration_since(Instant::now());
            let limit = left / (self.servers.len() - turn) as u32;
            match self.at(at, path, body, limit) {
                Err(Wrong::Failed(failure)) => last = Some(Wrong::Failed(failure)),
                answer => {
                    self.preferred.store(at, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        Err(last.expect("there is an endpoint"))
    }

    /// Asks for a change: of the next endpoint only if the one before has not got it (ET2).
    fn change(&self, path: &str, body: &Value, until: Instant) -> Result<Value, Wrong> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut last = None;
        for turn in 0..self.servers.len() {
            let at = (first + turn) % self.servers.len();
            match self.at(at, path, body, until.saturating_duration_since(Instant::now())) {
                Err(Wrong::Failed(Failure::NotSent(trouble))) => {
                    last = Some(Wrong::Failed(Failure::NotSent(trouble)));
                }
                answer => {
                    let next =
                        if answer.as_ref().is_err_and(|wrong| !wrong.is_known()) { at + 1 } else { at };
                    self.preferred.store(next % self.servers.len(), Ordering::Relaxed);
                    return answer;
                }
            }
        }
        Err(last.expect("there is an endpoint"))
    }

    /// One request to one endpoint, with a login if it asks for one.
    fn at(&self, at: usize, path: &str, body: &Value, limit: Duration) -> Result<Value, Wrong> {
        let until = Instant::now() + limit;
        let bytes = body.to_string().into_bytes();
        for attempt in 0..2 {
            let token = self.login(at, until)?;
            let answer = self.post(at, path, &bytes, token.as_deref(), until).map_err(Wrong::Failed)?;
            match parsed(answer, self.servers[at].place()) {
                Err(Wrong::Refused(Refused { code: UNAUTHENTICATED, .. }))
                    if attempt == 0 && token.is_some() =>
                {
                    *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
                answer => return answer,
            }
        }
        unreachable!("the second attempt returns")
    }

    fn post(
        &self,
        at: usize,
        path: &str,
        body: &[u8],
        token: Option<&str>,
        until: Instant,
    ) -> Result<Answer, Failure> {
        let headers = [("Content-Type", "application/json"), ("Authorization", token.unwrap_or_default())];
        let headers = if token.is_some() { &headers[..] } else { &headers[..1] };
        let request = Request { method: "POST", path, headers, body };
        self.servers[at].call(&request, until.saturating_duration_since(Instant::now()))
    }

    /// The token to send. None: there is no user.
    fn login(&self, at: usize, until: Instant) -> Result<Option<String>, Wrong> {
        if self.user.is_empty() {
            return Ok(None);
        }
        let known = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return Ok(known);
        }
        let body = json!({"name": self.user, "password": self.password}).to_string();
        // Whether this arrives changes nothing, so it is as if the request itself had not been sent.
        let not_sent = |failure: Failure| Wrong::Failed(Failure::NotSent(failure.trouble()));
        let answer =
            self.post(at, "/v3/auth/authenticate", body.as_bytes(), None, until).map_err(not_sent)?;
        let token = match parsed(answer, self.servers[at].place()) {
            Ok(answer) => answer["token"].as_str().map(str::to_owned),
            Err(Wrong::Failed(failure)) => return Err(not_sent(failure)),
            Err(refused) => return Err(refused),
        };
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token.clone();
        Ok(token)
    }

    /// The entries with a prefix, with the lease of each.
    fn range(&self, prefix: &str, until: Instant) -> Result<(Revision, Vec<(Entry, u64)>), Wrong> {
        let answer = self.ask(
            "/v3/kv/range",
            &json!({"key": self.key(prefix), "range_end": self.end(prefix)}),
            until,
        )?;
        let entries = answer["kvs"].as_array().into_iter().flatten();
        let entries = entries.filter_map(|kv| Some((self.entry(kv)?, number(&kv["lease"])))).collect();
        Ok((number(&answer["header"]["revision"]), entries))
    }

    /// An entry with its whole value. None: the key is not ours.
    fn entry(&self, kv: &Value) -> Option<Entry> {
        let key =
            String::from_utf8(from_base64(kv["key"].as_str()?)?).ok()?.strip_prefix(&self.root)?.to_owned();
        let value = from_base64(kv["value"].as_str().unwrap_or_default())?;
        let epoch = if key.starts_with("shard/") { number(&kv["create_revision"]) } else { 0 };
        Some(Entry { key, value, revision: number(&kv["mod_revision"]), epoch })
    }

    /// Holder and successor of a shard, each with its lease.
    fn shard(&self, shard: &ShardId, until: Instant) -> Result<[Option<(Entry, u64)>; 2], Wrong> {
        let (_, entries) = self.range(&shard_key(shard), until)?;
        let found = |key: String| entries.iter().find(|(entry, _)| entry.key == key).cloned();
        Ok([found(shard_key(shard)), found(next_key(shard))])
    }

    /// Renews a lease. False: it is lost.
    fn keep(&self, lease: u64, until: Instant) -> Result<bool, Wrong> {
        match self.ask("/v3/lease/keepalive", &json!({"ID": lease.to_string()}), until) {
            Ok(answer) => Ok(number(&answer["result"]["TTL"]) > 0),
            Err(Wrong::Refused(Refused { code: NOT_FOUND, .. })) => Ok(false),
            Err(wrong) => Err(wrong),
        }
    }

    /// Ends a lease, and with it its keys. Done twice is no error.
    fn revoke(&self, lease: u64, until: Instant) -> Result<(), Wrong> {
        match self.ask("/v3/lease/revoke", &json!({"ID": lease.to_string()}), until) {
            Ok(_) | Err(Wrong::Refused(Refused { code: NOT_FOUND, .. })) => Ok(()),
            Err(wrong) => Err(wrong),
        }
    }

    /// Takes the lease if a call before this one has got it without hearing so (ET3).
    fn resolve(
        &self,
        shard: &ShardId,
        me: &NodeId,
        ttl: Duration,
        until: Instant,
    ) -> Result<Option<Lease>, Wrong> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).get(shard).copied();
        let Some(id) = pending else { return Ok(None) };
        let mut lease = None;
        if self.keep(id, until)?
            && let [Some((entry, of)), _] = self.shard(shard, until)?
            && of == id
            && node_of(&entry.value) == *me
        {
            lease = Some(self.owned(shard, me, ttl, entry.epoch, id));
        }
        if lease.is_none() {
            self.revoke(id, until)?;
        }
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(shard);
        Ok(lease)
    }

    fn owned(&self, shard: &ShardId, me: &NodeId, ttl: Duration, epoch: u64, handle: u64) -> Lease {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(epoch, handle);
        Lease { shard: shard.clone(), node: me.clone(), epoch, ttl, handle }
    }

    /// One attempt to take a lease. None: the shard changed meanwhile.
    fn attempt(
        &self,
        shard: &ShardId,
        me: &NodeId,
        ttl: Duration,
        until: Instant,
    ) -> Result<Option<Lease>, Held> {
        let trouble = |wrong: Wrong| Held::Trouble(wrong.trouble());
        let [holder, next] = self.shard(shard, until).map_err(trouble)?;
        if let Some((entry, id)) = holder {
            let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).get(&entry.epoch) == Some(&id);
            if own && node_of(&entry.value) == *me && self.keep(id, until).map_err(trouble)? {
                return Ok(Some(self.owned(shard, me, ttl, entry.epoch, id)));
            }
            return Err(Held::By(node_of(&entry.value)));
        }
        if let Some((entry, _)) = &next
            && node_of(&entry.value) != *me
        {
            return Err(Held::For(node_of(&entry.value)));
        }
        let id = random().map_err(|e| Held::Trouble(Trouble::new(e)))?;
        let seconds = ttl.as_millis().div_ceil(1000).max(1);
        let grant = json!({"TTL": seconds.to_string(), "ID": id.to_string()});
        self.change("/v3/lease/grant", &grant, until).map_err(trouble)?;
        let next = next.map_or(0, |(entry, _)| entry.revision);
        match self.change("/v3/kv/txn", &self.taking(shard, me, id, next), until) {
            Ok(answer) if answer["succeeded"] == true => {
                Ok(Some(self.owned(shard, me, ttl, number(&answer["header"]["revision"]), id)))
            }
            Ok(_) => {
                let _ = self.revoke(id, until);
                Ok(None)
            }
            Err(wrong) if wrong.is_known() => Err(trouble(wrong)),
            Err(wrong) => {
                self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(shard.clone(), id);
                Err(Held::Unknown(wrong.trouble()))
            }
        }
    }

    /// The transaction that takes a lease, if nobody has it and `next` is the revision of its successor's key.
    fn taking(&self, shard: &ShardId, me: &NodeId, id: u64, next: Revision) -> Value {
        let (key, next_key) = (self.key(&shard_key(shard)), self.key(&next_key(shard)));
        let value = base64(format!("{me} {:016x}", self.session).as_bytes());
        json!({
            "compare": [
                {"key": key, "target": "CREATE", "create_revision": "0", "result": "EQUAL"},
                {"key": next_key, "target": "MOD", "mod_revision": next.to_string(), "result": "EQUAL"},
            ],
            "success": [
                {"request_delete_range": {"key": next_key}},
                {"request_put": {"key": key, "value": value, "lease": id.to_string()}},
            ],
        })
    }

    /// Begins a watch at the first endpoint that takes it.
    fn begin(&self, prefix: &str, after: Revision) -> Result<(usize, Lines), Trouble> {
        let create = json!({"create_request": {
            "key": self.key(prefix), "range_end": self.end(prefix), "start_revision": (after + 1).to_string(),
        }});
        let body = create.to_string().into_bytes();
        let first = self.preferred.load(Ordering::Relaxed);
        let mut last = Trouble::new("etcd: no endpoint");
        for turn in 0..self.servers.len() {
            let at = (first + turn) % self.servers.len();
            let until = Instant::now() + CALL_LIMIT;
            let token = match self.login(at, until) {
                Ok(token) => token.unwrap_or_default(),
                Err(wrong) => {
                    last = wrong.trouble();
                    continue;
                }
            };
            let headers = [("Content-Type", "application/json"), ("Authorization", &token)];
            let headers = if token.is_empty() { &headers[..1] } else { &headers[..] };
            let request = Request { method: "POST", path: "/v3/watch", headers, body: &body };
            match self.servers[at].lines(&request, CALL_LIMIT) {
                Ok((200, lines)) => return Ok((at, lines)),
                Ok((status, lines)) => {
                    *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    let text = String::from_utf8_lossy(&lines.rest(LOOK)).into_owned();
                    last = Trouble::new(format!("{}: {status} {text}", self.servers[at].place()));
                }
                Err(failure) => last = failure.trouble(),
            }
        }
        Err(last)
    }

    /// Tells the changes of one line of a watch. Some: it ends.
    fn told(&self, line: &[u8], seen: &mut dyn FnMut(Change)) -> Option<Ended> {
        let broken = |text: &str| Some(Ended::Broken(Trouble::new(format!("etcd: {text}"))));
        let Ok(told) = serde_json::from_slice::<Value>(line) else { return broken("a watch told no JSON") };
        if !told["error"].is_null() {
            return broken(&told["error"].to_string());
        }
        let result = &told["result"];
        if number(&result["compact_revision"]) > 0 {
            return Some(Ended::Compacted);
        }
        if result["canceled"] == true {
            // The token ended, for example; the next watch logs in again.
            *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
            return broken(result["cancel_reason"].as_str().unwrap_or("the watch was cancelled"));
        }
        for event in result["events"].as_array().into_iter().flatten() {
            if let Some(mut entry) = self.entry(&event["kv"]) {
                shorten(&mut entry);
                let (key, revision) = (entry.key.clone(), entry.revision);
                seen(Change { key, revision, entry: (event["type"] != "DELETE").then_some(entry) });
            }
        }
        None
    }
}

impl Coordinator for Etcd {
    fn describe(&self) -> String {
        self.shown.clone()
    }

    fn acquire(&self, shard: &ShardId, me: &NodeId, ttl: Duration) -> Result<Lease, Held> {
        let until = Instant::now() + CALL_LIMIT;
        match self.resolve(shard, me, ttl, until) {
            Ok(Some(lease)) => return Ok(lease),
            Ok(None) => {}
            Err(wrong) => return Err(Held::Unknown(wrong.trouble())),
        }
        for _ in 0..ATTEMPTS {
            if let Some(lease) = self.attempt(shard, me, ttl, until)? {
                return Ok(lease);
            }
        }
        Err(Held::Trouble(Trouble::new("etcd: the shard's lease changes all the time")))
    }

    fn renew(&self, lease: &Lease) -> Renewed {
        let until = Instant::now() + CALL_LIMIT;
        match self.keep(lease.handle, until) {
            Ok(true) => {}
            Ok(false) => return Renewed::Lost,
            Err(wrong) => return Renewed::Unknown(wrong.trouble()),
        }
        // Somebody may have removed the key by hand (ET1).
        match self.shard(&lease.shard, until) {
            Ok([Some((entry, id)), _]) if id == lease.handle && entry.epoch == lease.epoch => Renewed::Kept,
            Ok(_) => Renewed::Lost,
            Err(wrong) => Renewed::Unknown(wrong.trouble()),
        }
    }

    fn release(&self, lease: Lease, next: Option<&NodeId>) -> Result<(), Trouble> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease.epoch);
        let until = Instant::now() + CALL_LIMIT;
        let Some(next) = next else { return self.revoke(lease.handle, until).map_err(Wrong::trouble) };
        // The successor's key lives as long as the lease, so that begins anew.
        if !self.keep(lease.handle, until).map_err(Wrong::trouble)? {
            return Ok(());
        }
        let (key, next_key) = (self.key(&shard_key(&lease.shard)), self.key(&next_key(&lease.shard)));
        let (value, epoch) = (base64(next.as_bytes()), lease.epoch.to_string());
        let letting_go = json!({
            "compare": [{"key": key, "target": "CREATE", "create_revision": epoch, "result": "EQUAL"}],
            "success": [
                {"request_put": {"key": next_key, "value": value, "lease": lease.handle.to_string()}},
                {"request_delete_range": {"key": key}},
            ],
        });
        self.change("/v3/kv/txn", &letting_go, until).map(|_| ()).map_err(Wrong::trouble)
    }

    fn read(&self, prefix: &str) -> Result<(Revision, Vec<Entry>), Trouble> {
        let (revision, entries) = self.range(prefix, Instant::now() + CALL_LIMIT).map_err(Wrong::trouble)?;
        let shown = entries.into_iter().map(|(mut entry, _)| {
            shorten(&mut entry);
            entry
        });
        Ok((revision, shown.collect()))
    }

    fn cas(&self, key: &str, expected: Revision, value: Option<&[u8]>) -> Cas {
        if let Err(trouble) = check_key(key) {
            return Cas::Unknown(trouble);
        }
        let key = self.key(key);
        let change = match value {
            Some(value) => json!({"request_put": {"key": key, "value": base64(value)}}),
            None => json!({"request_delete_range": {"key": key}}),
        };
        let revision = expected.to_string();
        let change = json!({
            "compare": [{"key": key, "target": "MOD", "mod_revision": revision, "result": "EQUAL"}],
            "success": [change],
            "failure": [{"request_range": {"key": key, "keys_only": true}}],
        });
        match self.change("/v3/kv/txn", &change, Instant::now() + CALL_LIMIT) {
            Ok(answer) if answer["succeeded"] == true => Cas::Done(number(&answer["header"]["revision"])),
            Ok(answer) => {
                Cas::Conflict(number(&answer["responses"][0]["response_range"]["kvs"][0]["mod_revision"]))
            }
            Err(wrong) => Cas::Unknown(wrong.trouble()),
        }
    }

    fn watch(&self, prefix: &str, after: Revision, stop: &Stop, seen: &mut dyn FnMut(Change)) -> Ended {
        let (at, mut lines) = match self.begin(prefix, after) {
            Ok(begun) => begun,
            Err(trouble) => return Ended::Broken(trouble),
        };
        let mut heard = Instant::now();
        while !stop.is_stopped() {
            match lines.next(LOOK) {
                Ok(Line::Whole(line)) => {
                    if let Some(ended) = self.told(&line, seen) {
                        return ended;
                    }
                    heard = Instant::now();
                }
                Ok(Line::Quiet) if heard.elapsed() < QUIET => {}
                Ok(Line::Quiet) => {
                    let question = json!({"key": self.key(prefix), "keys_only": true, "limit": "1"});
                    if let Err(wrong) = self.at(at, "/v3/kv/range", &question, CALL_LIMIT) {
                        self.preferred.store((at + 1) % self.servers.len(), Ordering::Relaxed);
                        return Ended::Broken(wrong.trouble());
                    }
                    heard = Instant::now();
                }
                Ok(Line::End) => return Ended::Broken(Trouble::new("etcd: the watch ended")),
                Err(trouble) => return Ended::Broken(trouble),
            }
        }
        Ended::Stopped
    }
}

/// A number, which the gateway writes as text, or leaves out if it is 0.
fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).or_else(|| value.as_u64()).unwrap_or(0)
}

/// The answer's JSON. Errors of which it is not known whether something was done: Unknown.
fn parsed(answer: Answer, place: &str) -> Result<Value, Wrong> {
    let unknown = |text: String| Wrong::Failed(Failure::Unknown(Trouble::new(format!("{place}: {text}"))));
    let Ok(value) = serde_json::from_slice::<Value>(&answer.body) else {
        let text = String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]).into_owned();
        return Err(unknown(format!("{} {text}", answer.status)));
    };
    if answer.status == 200 && value["error"].is_null() {
        return Ok(value);
    }
    // In a stream the error is an object.
    let error = if value["error"].is_object() { &value["error"] } else { &value };
    let code = error["code"].as_u64().or_else(|| error["grpc_code"].as_u64()).unwrap_or(0);
    let text =
        error["message"].as_str().or_else(|| error["error"].as_str()).unwrap_or("no reason").to_owned();
    match code {
        // InvalidArgument, NotFound, AlreadyExists, PermissionDenied, ResourceExhausted, FailedPrecondition.
        3 | NOT_FOUND | 6 | 7 | 8 | 9 | OUT_OF_RANGE | UNAUTHENTICATED => {
            Err(Wrong::Refused(Refused { code, text }))
        }
        _ => Err(unknown(text)),
    }
}

/// The node that a value names.
fn node_of(value: &[u8]) -> NodeId {
    let text = String::from_utf8_lossy(first_word(value));
    NodeId::new(&text).unwrap_or_else(|_| NodeId::new("unknown").expect("a word"))
}

fn first_word(value: &[u8]) -> &[u8] {
    value.split(|b| *b == b' ').next().unwrap_or_default()
}

/// Leaves out the session of a shard's holder.
fn shorten(entry: &mut Entry) {
    if entry.key.starts_with("shard/") {
        entry.value = first_word(&entry.value).to_vec();
    }
}
