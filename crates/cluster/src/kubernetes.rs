//! The engine `kubernetes`: objects of the API, from within the cluster.
//!
//! ```text
//! Lease evenkeel-NAME-SHARD   holderIdentity, leaseTransitions = epoch; annotations: session, next, renewals
//! ConfigMap evenkeel-NAME     all other keys; annotations: the revision, the key that it changed, one of each key
//! Pod of this node            label role
//! ```
//!
//! - KU1: each change names the `resourceVersion` that it replaces, so of two at once one gets 409 and looks
//!   again.
//! - KU2: a Lease can be taken when its `resourceVersion` has not changed for its duration, by the candidate's
//!   own monotonic clock, from when it saw that first. Times in the object are for people. Each renewal changes
//!   it.
//! - KU3: revisions are a counter in the ConfigMap. Each of its versions is one change, so a watch of the
//!   object is one of changes; a gap in the counter ends it as compacted.
//! - KU4: a watch tells each shard's holder once when it begins, and then what changes. A lease that ends does
//!   not change its object, so the watch tells by KU2.
//! - KU5: the token is read again each minute, and when it is refused.
//!
//! Cost: a renewal is one request, a change of a key two, of 5 to 50 ms each.

use crate::coordinator::{
    CALL_LIMIT, Cas, Change, Coordinator, Ended, Entry, Held, Lease, NodeId, Renewed, Revision, ShardId,
    Stop, Trouble, check_key, random,
};
use crate::http::{Answer, Failure, Line, Lines, Request, Server, base64, from_base64};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tls::{Client, OptionFile, Trust, roots_in};

/// Files of a pod's account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_LASTS: Duration = Duration::from_secs(60);
/// The time for which a watch waits at one of its two streams.
const LOOK: Duration = Duration::from_millis(100);
/// The wait for an event that is there already.
const THERE: Duration = Duration::from_millis(1);
/// Events of one stream before the other has its turn.
const BURST: usize = 256;
/// Revisions whose version of the object is known, so that a watch can begin there.
const REMEMBERED: usize = 256;
const ATTEMPTS: usize = 5;
const JSON: &str = "application/json";

/// Where the API is, and who asks.
pub struct Place {
    /// `host:port`.
    pub server: String,
    pub tls: Option<Client>,
    pub token: PathBuf,
    pub namespace: String,
    /// This node's pod. Empty: it has none.
    pub pod: String,
}

impl Place {
    /// The API of the cluster in which this runs. Blocks. Errors: a sentence that says what to do.
    pub fn inside(namespace: &str) -> Result<Place, String> {
        let value = |name: &str| std::env::var(name).unwrap_or_default();
        let (host, port) = (value("KUBERNETES_SERVICE_HOST"), value("KUBERNETES_SERVICE_PORT"));
        if host.is_empty() || port.is_empty() {
            return Err("cluster-coordinator kubernetes: this is no pod, as KUBERNETES_SERVICE_HOST and \
                        KUBERNETES_SERVICE_PORT are not set; use etcd:// outside of Kubernetes"
                .to_owned());
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let account = Path::new(ACCOUNT);
        let namespace = match namespace {
            "" => std::fs::read_to_string(account.join("namespace")).map_err(|e| {
                format!("cluster-coordinator kubernetes: name the namespace: {ACCOUNT}/namespace: {e}")
            })?,
            named => named.to_owned(),
        };
        let ca = account.join("ca.crt");
        let roots = roots_in(OptionFile::new("cluster-coordinator kubernetes", &ca))?;
        let tls = Some(Client::new(Trust::Name(roots), None)?);
        let pod = Some(value("POD_NAME")).filter(|pod| !pod.is_empty()).unwrap_or_else(|| value("HOSTNAME"));
        Ok(Place { server: format!("{host}:{port}"), tls, token: account.join("token"), namespace, pod })
    }
}

/// The API as coordinator. See the module.
pub struct Kubernetes {
    server: Server,
    token: PathBuf,
    read: Mutex<Option<(Instant, String)>>,
    namespace: String,
    pod: String,
    name: String,
    session: String,
    renewals: AtomicU64,
    /// The version of each Lease, and since when it is known (KU2).
    seen: Mutex<HashMap<String, (String, Instant)>>,
    /// Versions of the ConfigMap by revision, the newest last.
    versions: Mutex<VecDeque<(Revision, String)>>,
}

/// An answer of the API.
enum Reply {
    Done(Value),
    Missing,
    Conflict,
    /// The version is too old to watch from.
    Gone,
}

impl Kubernetes {
    /// No request is sent. Errors: a sentence that says what to do.
    pub fn new(place: Place, name: &str) -> Result<Kubernetes, String> {
        let plain =
            |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !plain(name) || !plain(&place.namespace) || place.namespace.is_empty() || name.ends_with('-') {
            return Err(format!(
                "cluster-coordinator kubernetes:{}: cluster-name '{name}' and the namespace may have small letters, \
                 digits and '-' here",
                place.namespace
            ));
        }
        let server = Server::new(&place.server, place.tls)?;
        Ok(Kubernetes {
            server,
            token: place.token,
            read: Mutex::default(),
            namespace: place.namespace,
            pod: place.pod,
            name: name.to_owned(),
            session: format!("{:016x}", random()?),
            renewals: AtomicU64::new(0),
            seen: Mutex::default(),
            versions: Mutex::default(),
        })
    }

    fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    fn lease_path(&self, shard: &str) -> String {
        format!("{}/{}", self.leases(), self.lease_name(shard))
    }

    fn lease_name(&self, shard: &str) -> String {
        format!("evenkeel-{}-{shard}", self.name).to_ascii_lowercase()
    }

    fn maps(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    fn map_path(&self) -> String {
        format!("{}/evenkeel-{}", self.maps(), self.name)
    }

    /// The token, from its file if that may be newer (KU5).
    fn token(&self, again: bool) -> Result<String, Trouble> {
        let mut read = locked(&self.read);
        if let Some((at, token)) = &*read
            && !again
            && at.elapsed() < TOKEN_LASTS
        {
            return Ok(token.clone());
        }
        let token = std::fs::read_to_string(&self.token)
            .map_err(|e| Trouble::new(format!("{}: {e}", self.token.display())))?
            .trim()
            .to_owned();
        *read = Some((Instant::now(), token.clone()));
        Ok(token)
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &[u8],
        until: Instant,
    ) -> Result<Answer, Failure> {
        for again in [false, true] {
            let token = format!("Bearer {}", self.token(again).map_err(Failure::NotSent)?);
            let headers = [("Authorization", token.as_str()), ("Accept", JSON), ("Content-Type", kind)];
            let request = Request { method, path, headers: &headers, body };
            let answer = self.server.call(&request, until.saturating_duration_since(Instant::now()))?;
            if answer.status != 401 || again {
                return Ok(answer);
            }
        }
        unreachable!("the second attempt returns")
    }

    fn ask(&self, method: &str, path: &str, body: &Value, until: Instant) -> Result<Reply, Failure> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let answer = self.send(method, path, JSON, &body, until)?;
        let why = || {
            let text = serde_json::from_slice::<Value>(&answer.body).ok();
            let text = text.as_ref().and_then(|value| value["message"].as_str()).unwrap_or("no reason");
            Trouble::new(format!("kubernetes: {method} {path}: {} {text}", answer.status))
        };
        match answer.status {
            200 | 201 => match serde_json::from_slice(&answer.body) {
                Ok(value) => Ok(Reply::Done(value)),
                Err(_) => Err(Failure::Unknown(why())),
            },
            404 => Ok(Reply::Missing),
            409 => Ok(Reply::Conflict),
            410 => Ok(Reply::Gone),
            // Refused: nothing was done. 429: it was not begun.
            400..=499 => Err(Failure::NotSent(why())),
            _ => Err(Failure::Unknown(why())),
        }
    }

    /// A Lease, and notes its version (KU2).
    fn lease(&self, shard: &str, until: Instant) -> Result<Option<Value>, Failure> {
        match self.ask("GET", &self.lease_path(shard), &Value::Null, until)? {
            Reply::Done(lease) => {
                self.note(&lease);
                Ok(Some(lease))
            }
            Reply::Missing => Ok(None),
            _ => Err(Failure::Unknown(Trouble::new("kubernetes: a read was refused"))),
        }
    }

    /// Notes the version of a Lease. Returns whether it is a new one.
    fn note(&self, lease: &Value) -> bool {
        let (name, version) = (text(&lease["metadata"]["name"]), version(lease));
        let mut seen = locked(&self.seen);
        if seen.get(name).is_some_and(|(known, _)| *known == version) {
            return false;
        }
        seen.insert(name.to_owned(), (version, Instant::now()));
        true
    }

    /// Whether nobody has renewed a Lease for its duration (KU2).
    fn has_ended(&self, lease: &Value) -> bool {
        let lasts = Duration::from_secs(lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0));
        let seen = locked(&self.seen);
        let known = seen.get(text(&lease["metadata"]["name"]));
        known.is_some_and(|(known, since)| *known == version(lease) && since.elapsed() >= lasts)
    }

    /// Holder and epoch, if somebody holds it.
    fn holder(&self, lease: &Value) -> Option<(NodeId, u64)> {
        let node = NodeId::new(text(&lease["spec"]["holderIdentity"])).ok()?;
        (!self.has_ended(lease)).then(|| (node, epoch(lease)))
    }

    fn is_own(&self, lease: &Value, node: &NodeId) -> bool {
        text(&lease["spec"]["holderIdentity"]) == &**node && annotation(lease, "session") == self.session
    }

    /// A Lease as this candidate writes it. An empty `node`: nobody holds it.
    fn written(&self, shard: &str, old: &Value, node: &str, next: &str, epoch: u64, ttl: Duration) -> Value {
        let renewals = self.renewals.fetch_add(1, Ordering::Relaxed).to_string();
        let mut metadata = json!({
            "name": self.lease_name(shard), "namespace": self.namespace,
            "labels": {"evenkeel.io/cluster": self.name},
            "annotations": {
                "evenkeel.io/shard": shard, "evenkeel.io/session": self.session,
                "evenkeel.io/next": next, "evenkeel.io/renewals": renewals,
            },
        });
        if !old.is_null() {
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {
                "holderIdentity": node, "leaseTransitions": epoch, "renewTime": now(),
                "leaseDurationSeconds": ttl.as_millis().div_ceil(1000).max(1) as u64,
            },
        })
    }

    /// Replaces a Lease, or makes it. None: another was first.
    fn put(&self, shard: &str, lease: &Value, until: Instant) -> Result<Option<Value>, Failure> {
        let reply = match lease["metadata"]["resourceVersion"].is_null() {
            true => self.ask("POST", &self.leases(), lease, until)?,
            false => self.ask("PUT", &self.lease_path(shard), lease, until)?,
        };
        Ok(match reply {
            Reply::Done(lease) => {
                self.note(&lease);
                Some(lease)
            }
            _ => None,
        })
    }

    /// One attempt to take a lease. None: it changed meanwhile.
    fn attempt(
        &self,
        shard: &ShardId,
        me: &NodeId,
        ttl: Duration,
        until: Instant,
    ) -> Result<Option<Lease>, Held> {
        let trouble = |failure: Failure| Held::Trouble(failure.trouble());
        let old = self.lease(shard, until).map_err(trouble)?;
        let epoch = match &old {
            // Below what the map may have of an object that somebody removed.
            None => self.map(until).map_err(trouble)?.1.counter + 1,
            Some(lease) => match self.holder(lease) {
                Some((node, epoch)) if self.is_own(lease, me) && node == *me => epoch,
                Some((node, _)) => return Err(Held::By(node)),
                None => {
                    let next = NodeId::new(annotation(lease, "next")).ok();
                    if let Some(next) = next.filter(|next| next != me && !self.has_ended(lease)) {
                        return Err(Held::For(next));
                    }
                    epoch(lease) + 1
                }
            },
        };
        let taken = self.written(shard, old.as_ref().unwrap_or(&Value::Null), me, "", epoch, ttl);
        match self.put(shard, &taken, until) {
            Ok(None) => Ok(None),
            Ok(Some(_)) => {
                Ok(Some(Lease { shard: shard.clone(), node: me.clone(), epoch, ttl, handle: epoch }))
            }
            Err(Failure::NotSent(why)) => Err(Held::Trouble(why)),
            // The next call finds it as its own.
            Err(Failure::Unknown(why)) => Err(Held::Unknown(why)),
        }
    }

    /// Writes an own Lease again. False: it is lost.
    fn rewrite(&self, lease: &Lease, node: &str, next: &str) -> Result<bool, Failure> {
        let until = Instant::now() + CALL_LIMIT;
        for _ in 0..ATTEMPTS {
            let Some(old) = self.lease(&lease.shard, until)? else { return Ok(false) };
            if !self.is_own(&old, &lease.node) || epoch(&old) != lease.epoch {
                return Ok(false);
            }
            let new = self.written(&lease.shard, &old, node, next, lease.epoch, lease.ttl);
            if self.put(&lease.shard, &new, until)?.is_some() {
                return Ok(true);
            }
        }
        Err(Failure::Unknown(Trouble::new("kubernetes: the Lease changes all the time")))
    }

    /// The ConfigMap, and what it says. Null: there is none yet.
    fn map(&self, until: Instant) -> Result<(Value, Kept), Failure> {
        match self.ask("GET", &self.map_path(), &Value::Null, until)? {
            Reply::Done(map) => {
                let kept = Kept::of(&map);
                self.remember(kept.counter, &version(&map));
                Ok((map, kept))
            }
            Reply::Missing => Ok((Value::Null, Kept::default())),
            _ => Err(Failure::Unknown(Trouble::new("kubernetes: a read was refused"))),
        }
    }

    fn remember(&self, revision: Revision, version: &str) {
        let mut versions = locked(&self.versions);
        if versions.iter().rev().any(|(known, _)| *known == revision) {
            return;
        }
        versions.push_back((revision, version.to_owned()));
        if versions.len() > REMEMBERED {
            versions.pop_front();
        }
    }

    /// Changes one key of the ConfigMap.
    fn change(&self, key: &str, expected: Revision, value: Option<&[u8]>) -> Result<Cas, Failure> {
        let until = Instant::now() + CALL_LIMIT;
        loop {
            let (map, mut kept) = self.map(until)?;
            let now = kept.revisions.get(key).copied().unwrap_or(0);
            if now != expected {
                return Ok(Cas::Conflict(now));
            }
            if value.is_none() && now == 0 {
                return Ok(Cas::Done(kept.counter));
            }
            kept.counter += 1;
            let counter = kept.counter;
            let (reply, written) = (kept.written(self, &map, key, value), map.is_null());
            let reply = match written {
                true => self.ask("POST", &self.maps(), &reply, until)?,
                false => self.ask("PUT", &self.map_path(), &reply, until)?,
            };
            if let Reply::Done(map) = reply {
                self.remember(counter, &version(&map));
                return Ok(Cas::Done(counter));
            }
            if Instant::now() >= until {
                return Err(Failure::NotSent(Trouble::new("kubernetes: the ConfigMap changes all the time")));
            }
        }
    }

    /// The Leases of this cluster, and the version of the list.
    fn list(&self) -> Result<(Vec<Value>, String), Trouble> {
        let path = format!("{}?labelSelector=evenkeel.io%2Fcluster%3D{}", self.leases(), self.name);
        match self.ask("GET", &path, &Value::Null, Instant::now() + CALL_LIMIT).map_err(Failure::trouble)? {
            Reply::Done(mut list) => {
                let version = version(&list);
                let leases = match list["items"].take() {
                    Value::Array(leases) => leases,
                    _ => Vec::new(),
                };
                for lease in &leases {
                    self.note(lease);
                }
                Ok((leases, version))
            }
            _ => Err(Trouble::new("kubernetes: a list was refused")),
        }
    }

    /// Begins a stream of events. None: the version is too old.
    fn stream(&self, path: &str, selector: &str, version: &str) -> Result<Option<Lines>, Trouble> {
        let path = format!(
            "{path}?watch=true&allowWatchBookmarks=true&{selector}&resourceVersion={version}&timeoutSeconds=300"
        );
        for again in [false, true] {
            let token = format!("Bearer {}", self.token(again)?);
            let headers = [("Authorization", token.as_str()), ("Accept", JSON)];
            let request = Request { method: "GET", path: &path, headers: &headers, body: b"" };
            match self.server.lines(&request, CALL_LIMIT).map_err(Failure::trouble)? {
                (200, lines) => return Ok(Some(lines)),
                (410, _) => return Ok(None),
                (401, _) if !again => {}
                (status, lines) => {
                    let why = String::from_utf8_lossy(&lines.rest(LOOK)).into_owned();
                    return Err(Trouble::new(format!("kubernetes: watch: {status} {why}")));
                }
            }
        }
        unreachable!("the second attempt returns")
    }
}

impl Coordinator for Kubernetes {
    fn describe(&self) -> String {
        format!("kubernetes:{}", self.namespace)
    }

    fn acquire(&self, shard: &ShardId, me: &NodeId, ttl: Duration) -> Result<Lease, Held> {
        let until = Instant::now() + CALL_LIMIT;
        for _ in 0..ATTEMPTS {
            if let Some(lease) = self.attempt(shard, me, ttl, until)? {
                return Ok(lease);
            }
        }
        Err(Held::Trouble(Trouble::new("kubernetes: the shard's Lease changes all the time")))
    }

    fn renew(&self, lease: &Lease) -> Renewed {
        match self.rewrite(lease, &lease.node, "") {
            Ok(true) => Renewed::Kept,
            Ok(false) => Renewed::Lost,
            Err(failure) => Renewed::Unknown(failure.trouble()),
        }
    }

    fn release(&self, lease: Lease, next: Option<&NodeId>) -> Result<(), Trouble> {
        self.rewrite(&lease, "", next.map_or("", |next| next)).map(|_| ()).map_err(Failure::trouble)
    }

    fn read(&self, prefix: &str) -> Result<(Revision, Vec<Entry>), Trouble> {
        let (map, kept) = self.map(Instant::now() + CALL_LIMIT).map_err(Failure::trouble)?;
        let of_map = kept.revisions.iter().filter(|(key, _)| key.starts_with(prefix));
        let mut entries: Vec<_> = of_map.filter_map(|(key, revision)| entry(&map, key, *revision)).collect();
        if has_shards(prefix) {
            let held = self.list()?.0.into_iter();
            let held = held.filter_map(|lease| Some((shard_of(&lease)?, self.holder(&lease)?)));
            entries.extend(held.map(|(key, (node, epoch))| held_by(key, &node, epoch)));
            entries.retain(|entry| entry.key.starts_with(prefix));
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok((kept.counter, entries))
    }

    fn cas(&self, key: &str, expected: Revision, value: Option<&[u8]>) -> Cas {
        if let Err(trouble) = check_key(key) {
            return Cas::Unknown(trouble);
        }
        self.change(key, expected, value).unwrap_or_else(|failure| Cas::Unknown(failure.trouble()))
    }

    fn watch(&self, prefix: &str, after: Revision, stop: &Stop, seen: &mut dyn FnMut(Change)) -> Ended {
        let only_shards = prefix.starts_with("shard/");
        let mut values = (!only_shards).then(|| Values { at: self, last: after, version: None, lines: None });
        let mut shards = has_shards(prefix).then(|| Shards {
            at: self,
            told: HashMap::new(),
            leases: HashMap::new(),
            lines: None,
        });
        let mut tell = |change: Change| {
            if change.key.starts_with(prefix) {
                seen(change);
            }
        };
        while !stop.is_stopped() {
            let of_values = values.as_mut().map_or(Ok(()), |values| values.turn(&mut tell));
            let of_shards = of_values.and_then(|()| {
                let after = values.as_ref().map_or(after, |values| values.last);
                shards.as_mut().map_or(Ok(()), |shards| shards.turn(after, &mut tell))
            });
            if let Err(ended) = of_shards {
                return ended;
            }
        }
        Ended::Stopped
    }

    fn show_role(&self, role: &str) -> Result<(), Trouble> {
        if self.pod.is_empty() {
            return Ok(());
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.pod);
        let body = json!({"metadata": {"labels": {"role": role}}}).to_string();
        let until = Instant::now() + CALL_LIMIT;
        let answer = self.send("PATCH", &path, "application/merge-patch+json", body.as_bytes(), until);
        match answer.map_err(Failure::trouble)?.status {
            200 => Ok(()),
            status => Err(Trouble::new(format!(
                "kubernetes: the label role of pod {} is refused ({status}): may the account patch pods?",
                self.pod
            ))),
        }
    }
}

/// The annotations of a ConfigMap.
#[derive(Debug, Default)]
struct Kept {
    counter: Revision,
    /// The key that the last change was of.
    last: String,
    revisions: HashMap<String, Revision>,
}

impl Kept {
    fn of(map: &Value) -> Kept {
        let counter = annotation(map, "revision").parse().unwrap_or(0);
        let revisions = serde_json::from_str(annotation(map, "revisions")).unwrap_or_default();
        Kept { counter, last: annotation(map, "last").to_owned(), revisions }
    }

    /// The ConfigMap with one key changed, at the counter.
    fn written(mut self, at: &Kubernetes, old: &Value, key: &str, value: Option<&[u8]>) -> Value {
        let (mut data, mut binary) = (part(old, "data"), part(old, "binaryData"));
        let name = escaped(key);
        data.remove(&name);
        binary.remove(&name);
        match value {
            None => {
                self.revisions.remove(key);
            }
            Some(bytes) => {
                self.revisions.insert(key.to_owned(), self.counter);
                match std::str::from_utf8(bytes) {
                    Ok(text) => data.insert(name, text.into()),
                    Err(_) => binary.insert(name, base64(bytes).into()),
                };
            }
        }
        let mut metadata = json!({
            "name": format!("evenkeel-{}", at.name), "namespace": at.namespace,
            "labels": {"evenkeel.io/cluster": at.name},
            "annotations": {
                "evenkeel.io/revision": self.counter.to_string(), "evenkeel.io/last": key,
                "evenkeel.io/revisions": json!(self.revisions).to_string(),
            },
        });
        if !old.is_null() {
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        }
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "binaryData": binary})
    }
}

/// A watch of the ConfigMap (KU3).
struct Values<'a> {
    at: &'a Kubernetes,
    last: Revision,
    /// The version from which to go on.
    version: Option<String>,
    lines: Option<Lines>,
}

impl Values<'_> {
    fn turn(&mut self, tell: &mut dyn FnMut(Change)) -> Result<(), Ended> {
        if self.lines.is_none() {
            return self.begin();
        }
        // All that is there, so that the other stream's quiet does not slow this one.
        let mut limit = LOOK;
        for _ in 0..BURST {
            let Some(lines) = &mut self.lines else { break };
            match lines.next(limit).map_err(Ended::Broken)? {
                Line::Whole(line) => self.event(&line, tell)?,
                Line::Quiet => break,
                Line::End => self.lines = None,
            }
            limit = THERE;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Ended> {
        let selector = format!("fieldSelector=metadata.name%3Devenkeel-{}", self.at.name);
        let known = locked(&self.at.versions).iter().find(|(at, _)| *at == self.last).map(|(_, v)| v.clone());
        if let Some(version) = self.version.take().or(known) {
            self.lines = self.at.stream(&self.at.maps(), &selector, &version).map_err(Ended::Broken)?;
            if self.lines.is_some() {
                return Ok(());
            }
        }
        // As of now, if nothing changed meanwhile.
        let path = format!("{}?{selector}", self.at.maps());
        let reply = self.at.ask("GET", &path, &Value::Null, Instant::now() + CALL_LIMIT);
        let Reply::Done(list) = reply.map_err(|failure| Ended::Broken(failure.trouble()))? else {
            return Err(Ended::Broken(Trouble::new("kubernetes: a list was refused")));
        };
        if Kept::of(&list["items"][0]).counter != self.last {
            return Err(Ended::Compacted);
        }
        self.lines = self.at.stream(&self.at.maps(), &selector, &version(&list)).map_err(Ended::Broken)?;
        Ok(())
    }

    fn event(&mut self, line: &[u8], tell: &mut dyn FnMut(Change)) -> Result<(), Ended> {
        let event: Value = serde_json::from_slice(line)
            .map_err(|_| Ended::Broken(Trouble::new("kubernetes: a watch told no JSON")))?;
        let map = &event["object"];
        match text(&event["type"]) {
            "ADDED" | "MODIFIED" => {}
            "BOOKMARK" => {
                self.version = Some(version(map));
                return Ok(());
            }
            "ERROR" => {
                // Gone, most times: begin anew, or say that it is compacted.
                (self.lines, self.version) = (None, None);
                let gone = map["code"].as_u64() == Some(410);
                locked(&self.at.versions).retain(|(at, _)| !gone || *at != self.last);
                let why =
                    || Ended::Broken(Trouble::new(format!("kubernetes: watch: {}", text(&map["message"]))));
                return if gone { Ok(()) } else { Err(why()) };
            }
            _ => return Err(Ended::Compacted),
        }
        let kept = Kept::of(map);
        self.version = Some(version(map));
        if kept.counter == self.last {
            return Ok(());
        }
        if kept.counter != self.last + 1 {
            return Err(Ended::Compacted);
        }
        self.at.remember(kept.counter, &version(map));
        self.last = kept.counter;
        let revision = kept.counter;
        let entry = kept.revisions.get(&kept.last).and_then(|revision| entry(map, &kept.last, *revision));
        tell(Change { key: kept.last, revision, entry });
        Ok(())
    }
}

/// A watch of the Leases (KU4).
struct Shards<'a> {
    at: &'a Kubernetes,
    /// The holder and the epoch that were told, by key.
    told: HashMap<String, (NodeId, u64)>,
    leases: HashMap<String, Value>,
    lines: Option<Lines>,
}

impl Shards<'_> {
    fn turn(&mut self, revision: Revision, tell: &mut dyn FnMut(Change)) -> Result<(), Ended> {
        if self.lines.is_none() {
            let (leases, version) = self.at.list().map_err(Ended::Broken)?;
            let keyed = leases.into_iter().filter_map(|lease| Some((shard_of(&lease)?, lease)));
            self.leases = keyed.collect();
            let selector = format!("labelSelector=evenkeel.io%2Fcluster%3D{}", self.at.name);
            self.lines = self.at.stream(&self.at.leases(), &selector, &version).map_err(Ended::Broken)?;
        }
        let mut limit = LOOK;
        for _ in 0..BURST {
            let Some(lines) = &mut self.lines else { break };
            match lines.next(limit).map_err(Ended::Broken)? {
                Line::Whole(line) => self.event(&line),
                Line::Quiet => break,
                Line::End => self.lines = None,
            }
            limit = THERE;
        }
        let mut now = HashMap::new();
        for (key, lease) in &self.leases {
            if let Some(holder) = self.at.holder(lease) {
                now.insert(key.clone(), holder);
            }
        }
        self.told.retain(|key, _| {
            let held = now.contains_key(key);
            if !held {
                tell(Change { key: key.clone(), revision, entry: None });
            }
            held
        });
        for (key, (node, epoch)) in now {
            if self.told.get(&key) != Some(&(node.clone(), epoch)) {
                let entry = Some(held_by(key.clone(), &node, epoch));
                tell(Change { key: key.clone(), revision, entry });
                self.told.insert(key, (node, epoch));
            }
        }
        Ok(())
    }

    fn event(&mut self, line: &[u8]) {
        let Ok(mut event) = serde_json::from_slice::<Value>(line) else {
            self.lines = None;
            return;
        };
        let lease = event["object"].take();
        match (text(&event["type"]), shard_of(&lease)) {
            ("ADDED" | "MODIFIED", Some(key)) => {
                self.at.note(&lease);
                self.leases.insert(key, lease);
            }
            ("DELETED", Some(key)) => {
                self.leases.remove(&key);
            }
            ("BOOKMARK", _) => {}
            // Read all again.
            _ => self.lines = None,
        }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn version(object: &Value) -> String {
    text(&object["metadata"]["resourceVersion"]).to_owned()
}

fn annotation<'a>(object: &'a Value, name: &str) -> &'a str {
    text(&object["metadata"]["annotations"][format!("evenkeel.io/{name}")])
}

fn epoch(lease: &Value) -> u64 {
    lease["spec"]["leaseTransitions"].as_u64().unwrap_or(0)
}

fn part(map: &Value, name: &str) -> Map<String, Value> {
    map[name].as_object().cloned().unwrap_or_default()
}

/// The key of a Lease's shard.
fn shard_of(lease: &Value) -> Option<String> {
    let shard = annotation(lease, "shard");
    (!shard.is_empty()).then(|| format!("shard/{shard}"))
}

/// Whether keys of shards may begin so.
fn has_shards(prefix: &str) -> bool {
    prefix.starts_with("shard/") || "shard/".starts_with(prefix)
}

fn held_by(key: String, node: &NodeId, epoch: u64) -> Entry {
    Entry { key, value: node.as_bytes().to_vec(), revision: epoch, epoch }
}

fn entry(map: &Value, key: &str, revision: Revision) -> Option<Entry> {
    let name = escaped(key);
    let value = match &map["data"][&name] {
        Value::String(text) => text.clone().into_bytes(),
        _ => from_base64(text(&map["binaryData"][&name]))?,
    };
    Some(Entry { key: key.to_owned(), value, revision, epoch: 0 })
}

/// A key as a name in a ConfigMap, which has no slash.
fn escaped(key: &str) -> String {
    key.replace('_', "_u").replace('/', "_s")
}

/// The wall clock's time in the form of the API, for people.
fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (since.as_secs() / 86400, since.as_secs() % 86400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

/// The date that lies so many days behind 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the day of a leap year is the last.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(20_786), (2026, 11, 29));
        assert_eq!(date(47_541), (2100, 3, 1));
    }

    #[test]
    fn names_of_keys_are_one_to_one() {
        let keys = ["offer/a/b", "offer_sa/b", "offer_s", "offer/", "offer_us"];
        let names: std::collections::HashSet<_> = keys.iter().map(|key| escaped(key)).collect();
        assert_eq!(names.len(), keys.len());
        assert!(names.iter().all(|name| !name.contains('/')));
    }
}
