//! A server that speaks MongoDB's wire protocol: a replica set of one. Its members can be late, and it can be
//! told to fail at every step. The driver's own client connects to it as to a real one.
//!
//! It supports hello in both spellings, awaited and streamed; ping, find, aggregate with `$changeStream`,
//! getMore, killCursors, endSessions, saslStart (always refused). Anything else is an error, so that a test
//! sees the gap.

use crate::history::{History, Place};
use mongodb::bson::{
    Binary, Bson, Document, RawDocumentBuf, Timestamp, doc, oid::ObjectId, spec::BinarySubtype,
};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use support::rng::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

const MORE_TO_COME: u32 = 1 << 1;
const EXHAUST_ALLOWED: u32 = 1 << 16;
const OP_MSG: i32 = 2013;

/// Errors of a member whose role has changed. It also reports that to clients that await a hello.
const NOT_PRIMARY: &[i32] = &[11600, 10107, 189];

/// A fault of a command.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection is cut before the command is run.
    CutBefore,
    /// The connection is cut after the command, before the answer.
    CutAfter,
    /// The connection is cut within the answer.
    CutWithin,
    /// There is never an answer.
    Silence,
    Delay(Duration),
    Error(i32, &'static str),
}

pub struct State {
    pub history: History,
    rng: Rng,
    cursors: HashMap<i64, Cursor>,
    last_cursor: i64,
    faults: VecDeque<(&'static str, Fault)>,
    /// Percentage of commands that fail at random.
    pub chaos: usize,
    pub standalone: bool,
    /// Most events of a batch.
    pub batch: usize,
    /// Reads are answered by members that are as late as allowed.
    pub late: bool,
    /// Nothing is answered, on any connection.
    pub frozen: bool,
    /// How often this member changed its role.
    elections: i64,
    /// The names of the commands so far, without the heartbeats.
    pub seen: Vec<String>,
    /// The last place reported to a client that then asked for more.
    pub asked_behind: Place,
    /// The last `find` and `aggregate`.
    pub last: HashMap<String, Document>,
}

enum Cursor {
    Documents(Vec<Document>),
    Stream { place: Place, project: Document },
}

pub struct Server {
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
    pub port: u16,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes streams after a commit.
    changed: Notify,
    elected: Notify,
    connections: Mutex<Vec<JoinHandle<()>>>,
    process: ObjectId,
    port: u16,
}

/// Ends the connection.
struct Cut;

impl Server {
    pub async fn start(seed: u64) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State {
            history: History::new(),
            rng: Rng::new(seed, 1),
            cursors: HashMap::new(),
            last_cursor: 0,
            faults: VecDeque::new(),
            chaos: 0,
            standalone: false,
            batch: 5,
            late: false,
            frozen: false,
            elections: 1,
            seen: Vec::new(),
            asked_behind: (Timestamp { time: 0, increment: 0 }, 0),
            last: HashMap::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            elected: Notify::new(),
            connections: Mutex::default(),
            process: ObjectId::new(),
            port,
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Server { shared, accepting: Mutex::new(Some(accepting)), port }
    }

    pub fn url(&self) -> String {
        format!("mongodb://127.0.0.1:{}/shop", self.port)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    /// Makes the next command of that name fail.
    pub fn fail(&self, command: &'static str, fault: Fault) {
        self.state().faults.push_back((command, fault));
    }

    /// Changes the history, and wakes streams that wait for it.
    pub fn history<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        let result = change(&mut self.state().history);
        self.shared.changed.notify_waiters();
        result
    }

    /// Gives a majority everything.
    pub fn commit(&self) {
        self.history(|history| history.commit(usize::MAX));
    }

    /// Waits until so many commands of a name came.
    pub async fn until_seen(&self, command: &str, times: usize) {
        while self.state().seen.iter().filter(|seen| *seen == command).count() < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends all connections, and accepts no more. Cursors are gone.
    pub async fn kill(&self) {
        let accepting = self.accepting.lock().unwrap().take();
        if let Some(accepting) = accepting {
            accepting.abort();
            let _ = accepting.await;
        }
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
        self.state().cursors.clear();
        tokio::task::yield_now().await;
    }

    /// Starts to accept again. An outgoing connection may have its port just now; then it waits for the end
    /// of that.
    pub async fn restart(&self) {
        let mut tries = 0;
        let listener = loop {
            match TcpListener::bind(("127.0.0.1", self.port)).await {
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && tries < 10_000 => tries += 1,
                bound => break bound.unwrap(),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        *self.accepting.lock().unwrap() = Some(tokio::spawn(accept(listener, self.shared.clone())));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.lock().unwrap().take() {
            accepting.abort();
        }
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        let _ = socket.set_nodelay(true);
        let serving = tokio::spawn(serve(socket, shared.clone()));
        shared.connections.lock().unwrap().push(serving);
    }
}

/// Serves one connection until it ends.
async fn serve(mut socket: TcpStream, shared: Arc<Shared>) {
    while let Ok((request_id, flags, command)) = read(&mut socket).await {
        if shared.answer(&mut socket, request_id, flags, command).await.is_err() {
            return;
        }
    }
}

async fn read(socket: &mut TcpStream) -> std::io::Result<(i32, u32, Document)> {
    let length = socket.read_i32_le().await? as usize;
    let mut message = vec![0; length - 4];
    socket.read_exact(&mut message).await?;
    let word = |at: usize| i32::from_le_bytes(message[at..at + 4].try_into().unwrap());
    assert_eq!(word(8), OP_MSG, "only OP_MSG is spoken");
    assert_eq!(message[16], 0, "only bodies are expected, no sequences of documents");
    let body = RawDocumentBuf::from_bytes(message[17..].to_vec()).unwrap();
    Ok((word(0), word(12) as u32, Document::try_from(body).unwrap()))
}

fn encoded(id: i32, answers: i32, flags: u32, reply: &Document) -> Vec<u8> {
    let body = RawDocumentBuf::try_from(reply).unwrap();
    let length = 16 + 4 + 1 + body.as_bytes().len() as i32;
    let words = [length, id, answers, OP_MSG, flags as i32];
    [&words.map(i32::to_le_bytes).concat()[..], &[0], body.as_bytes()].concat()
}

impl Shared {
    async fn answer(
        &self,
        socket: &mut TcpStream,
        id: i32,
        flags: u32,
        command: Document,
    ) -> Result<(), Cut> {
        let name = command.keys().next().cloned().unwrap_or_default();
        if matches!(&*name, "hello" | "isMaster" | "ismaster") {
            return self.hello(socket, id, flags, &command).await;
        }
        let fault = self.note(&name, &command);
        match &fault {
            Some(Fault::CutBefore) => return Err(Cut),
            Some(Fault::Delay(time)) => tokio::time::sleep(*time).await,
            _ => {}
        }
        self.thaw(matches!(fault, Some(Fault::Silence))).await;
        let reply = match &fault {
            Some(Fault::Error(code, label)) => {
                let mut error = labelled_as(*code, "made to fail", label);
                if NOT_PRIMARY.contains(code) {
                    self.state().elections += 1;
                    self.elected.notify_waiters();
                    error.insert("topologyVersion", self.topology_version());
                }
                error
            }
            _ => self.carry_out(&name, &command).await,
        };
        let bytes = encoded(id.wrapping_add(1), id, 0, &self.with_times(reply));
        let sent = match fault {
            Some(Fault::CutAfter) => 0,
            Some(Fault::CutWithin) => bytes.len() / 2,
            _ => bytes.len(),
        };
        socket.write_all(&bytes[..sent]).await.map_err(|_| Cut)?;
        if sent == bytes.len() { Ok(()) } else { Err(Cut) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Records a command, and returns its fault.
    fn note(&self, name: &str, command: &Document) -> Option<Fault> {
        let mut state = self.state();
        state.seen.push(name.into());
        state.last.insert(name.into(), command.clone());
        state.note_asked(command);
        if let Some(at) = state.faults.iter().position(|(command, _)| *command == name) {
            return state.faults.remove(at).map(|(_, fault)| fault);
        }
        let chaos = state.chaos;
        if chaos > 0 && state.rng.percent(50) {
            let us = state.rng.below(3000) as u64;
            return Some(Fault::Delay(Duration::from_micros(us)));
        }
        if !state.rng.percent(chaos) {
            return None;
        }
        let error = *state.rng.pick(&[
            (43, "ResumableChangeStreamError"),
            (280, "NonResumableChangeStreamError"),
            (286, "NonResumableChangeStreamError"),
            (40585, ""),
            (11600, "ResumableChangeStreamError"),
            (189, "ResumableChangeStreamError"),
        ]);
        let faults = [Fault::CutBefore, Fault::CutAfter, Fault::CutWithin, Fault::Error(error.0, error.1)];
        Some(state.rng.pick(&faults).clone())
    }

    /// Waits while nothing is answered; for ever, if `never`.
    async fn thaw(&self, never: bool) {
        while never || self.state().frozen {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn hello(
        &self,
        socket: &mut TcpStream,
        mut answers: i32,
        flags: u32,
        command: &Document,
    ) -> Result<(), Cut> {
        let mut awaited =
            command.contains_key("topologyVersion").then(|| milliseconds(command, "maxAwaitTimeMS"));
        let streamed = awaited.is_some() && flags & EXHAUST_ALLOWED != 0;
        loop {
            let elected = self.elected.notified();
            if let Some(wait) = awaited.take() {
                let _ = tokio::time::timeout(wait, elected).await;
            }
            self.thaw(false).await;
            let id = answers.wrapping_add(1);
            let bytes = encoded(
                id,
                answers,
                if streamed { MORE_TO_COME } else { 0 },
                &self.with_times(self.description()),
            );
            socket.write_all(&bytes).await.map_err(|_| Cut)?;
            if !streamed {
                return Ok(());
            }
            answers = id;
            awaited = Some(milliseconds(command, "maxAwaitTimeMS"));
        }
    }

    fn topology_version(&self) -> Document {
        doc! { "processId": self.process, "counter": self.state().elections }
    }

    fn description(&self) -> Document {
        let me = format!("127.0.0.1:{}", self.port);
        let mut hello = doc! {
            "helloOk": true, "isWritablePrimary": true, "ismaster": true,
            "topologyVersion": self.topology_version(),
            "maxBsonObjectSize": 16 << 20, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000,
            "localTime": mongodb::bson::DateTime::now(), "logicalSessionTimeoutMinutes": 30, "connectionId": 7,
            "minWireVersion": 0, "maxWireVersion": 25, "readOnly": false, "ok": 1.0,
        };
        if !self.state().standalone {
            hello.extend(doc! {
                "setName": "rs0", "setVersion": 1, "secondary": false, "hosts": [&me], "primary": &me, "me": &me,
                "electionId": ObjectId::from_bytes([0x7f; 12]),
            });
        }
        hello
    }

    /// Adds the fields that every reply of a replica set member has. Its operation time is the last applied
    /// one, committed or not.
    fn with_times(&self, mut reply: Document) -> Document {
        let state = self.state();
        if !state.standalone {
            let time = state.history.applied_time();
            let hash = Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 20] };
            let signature = doc! { "hash": hash, "keyId": 0_i64 };
            reply.insert("operationTime", time);
            reply.insert("$clusterTime", doc! { "clusterTime": time, "signature": signature });
        }
        reply
    }

    async fn carry_out(&self, name: &str, command: &Document) -> Document {
        match name {
            "ping" => doc! { "ok": 1.0 },
            "find" => self.find(command).await,
            "aggregate" => self.aggregate(command),
            "getMore" => self.more(command).await,
            "killCursors" => self.kill_cursors(command),
            "endSessions" => doc! { "ok": 1.0 },
            "saslStart" => error(18, "Authentication failed."),
            _ => error(59, "no such command"),
        }
    }

    async fn find(&self, command: &Document) -> Document {
        let concern = command.get_document("readConcern").cloned().unwrap_or_default();
        let majority = concern.get_str("level").is_ok_and(|level| level == "majority");
        let after = concern.get_timestamp("afterClusterTime").ok();
        if let Some(after) = after {
            self.wait_for(after, majority).await;
        }
        let mut state = self.state();
        let history = &state.history;
        let newest = if majority { history.committed_len() } else { history.applied_len() };
        let allowed = after.map_or(1, |after| history.len_at(after)).clamp(1, newest);
        let oldest = if state.late { allowed } else { newest };
        let view = oldest + state.rng.below(newest - oldest + 1);
        let view = state.history.whole(view);
        let ids = command.get_document("filter").and_then(|filter| filter.get_document("_id")).unwrap();
        let mut documents = match command.get_str("find") {
            Ok("items") => state.history.find(ids.get_array("$in").unwrap(), view),
            _ => Vec::new(),
        };
        if let Ok(projection) = command.get_document("projection") {
            documents = documents.iter().map(|document| projected(document, projection)).collect();
        }
        let size = command.get("batchSize").and_then(whole).unwrap_or(101) as usize;
        let rest = documents.split_off(documents.len().min(size));
        let ends = rest.is_empty() && documents.len() < size;
        let id = if ends { 0 } else { state.open(Cursor::Documents(rest)) };
        doc! { "cursor": { "id": id, "ns": "shop.items", "firstBatch": documents }, "ok": 1.0 }
    }

    /// Waits until a time is applied here, or a majority has it. An entry is written for a time that would
    /// not come by itself.
    async fn wait_for(&self, time: Timestamp, majority: bool) {
        while !self.state().history.reaches(time, majority) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn aggregate(&self, command: &Document) -> Document {
        let mut state = self.state();
        if state.standalone {
            return error(40573, "The $changeStream stage is only supported on replica sets");
        }
        let level = command.get_document("readConcern").and_then(|concern| concern.get_str("level"));
        assert_eq!(level.ok(), Some("majority"));
        let stages: Vec<&Document> =
            command.get_array("pipeline").unwrap().iter().filter_map(Bson::as_document).collect();
        let from = stages[0].get_document("$changeStream").unwrap();
        let place = match (from.get_document("startAfter"), from.get_timestamp("startAtOperationTime")) {
            (Ok(token), _) => match place_of(token) {
                None => return labelled(260, "invalid resume token"),
                Some(place) if place.0 < state.history.begins() => {
                    return labelled(286, "resume point is gone");
                }
                Some(place) => place,
            },
            // All events of that time are reported again.
            (_, Ok(time)) if time < state.history.begins() => return labelled(286, "resume point is gone"),
            (_, Ok(time)) => (time, 0),
            // As a real server: from the last applied entry, whether a majority has it or not.
            _ => (state.history.applied_time(), u32::MAX),
        };
        let project =
            stages.get(1).map_or_else(Document::new, |stage| stage.get_document("$project").unwrap().clone());
        let id = state.open(Cursor::Stream { place, project });
        state.batch(id, "firstBatch")
    }

    async fn more(&self, command: &Document) -> Document {
        let id = command.get("getMore").and_then(whole).unwrap();
        let deadline =
            tokio::time::Instant::now() + milliseconds(command, "maxTimeMS").max(Duration::from_millis(1));
        loop {
            let changed = self.changed.notified();
            let late = tokio::time::Instant::now() >= deadline;
            if let Some(reply) = self.state().batch_at_once(id, late) {
                return reply;
            }
            let _ = tokio::time::timeout_at(deadline, changed).await;
        }
    }

    fn kill_cursors(&self, command: &Document) -> Document {
        let mut state = self.state();
        for id in command.get_array("cursors").unwrap().iter().filter_map(whole) {
            state.cursors.remove(&id);
        }
        doc! { "cursorsKilled": [], "cursorsNotFound": [], "ok": 1.0 }
    }
}

impl State {
    fn open(&mut self, cursor: Cursor) -> i64 {
        self.last_cursor += 1;
        self.cursors.insert(self.last_cursor, cursor);
        self.last_cursor
    }

    /// Notes that a client asks a stream for more, and so has handled the earlier events.
    fn note_asked(&mut self, command: &Document) {
        let id = command.get("getMore").and_then(whole);
        if let Some(Cursor::Stream { place, .. }) = id.and_then(|id| self.cursors.get(&id)) {
            self.asked_behind = self.asked_behind.max(*place);
        }
    }

    pub fn streams(&self) -> usize {
        self.cursors.values().filter(|cursor| matches!(cursor, Cursor::Stream { .. })).count()
    }

    /// A batch of a cursor, unless it has to be waited for.
    fn batch_at_once(&mut self, id: i64, late: bool) -> Option<Document> {
        let waits = match self.cursors.get(&id) {
            Some(Cursor::Stream { place, .. }) => self.history.events(*place, 1).0.is_empty(),
            _ => false,
        };
        (late || !waits).then(|| self.batch(id, "nextBatch"))
    }

    /// A few events or documents of a cursor.
    fn batch(&mut self, id: i64, name: &str) -> Document {
        let limit = 1 + self.rng.below(self.batch);
        match self.cursors.get_mut(&id) {
            Some(Cursor::Documents(documents)) => {
                let batch = std::mem::take(documents);
                self.cursors.remove(&id);
                doc! { "cursor": { "id": 0_i64, "ns": "shop.items", name: batch }, "ok": 1.0 }
            }
            Some(Cursor::Stream { place, project }) => {
                let (events, ended) = self.history.events(*place, limit);
                let committed = (self.history.committed_time(), u32::MAX);
                // Behind the last event, or behind everything there is.
                let after = events.last().map_or(committed.max(*place), |(place, _)| *place);
                let batch = events.into_iter().map(|(place, event)| shown(place, event, project));
                let batch: Vec<Document> = batch.collect();
                *place = after;
                let id = if ended { 0_i64 } else { id };
                let cursor =
                    doc! { "id": id, "ns": "shop.items", name: batch, "postBatchResumeToken": token(after) };
                if ended {
                    self.cursors.retain(|_, cursor| !matches!(cursor, Cursor::Stream { .. }));
                }
                doc! { "cursor": cursor, "ok": 1.0 }
            }
            None => labelled_as(43, "cursor id not found", "ResumableChangeStreamError"),
        }
    }
}

fn token((time, n): Place) -> Document {
    doc! { "_data": format!("82{:08X}{:08X}{n:08X}", time.time, time.increment) }
}

fn place_of(token: &Document) -> Option<Place> {
    let data = token.get_str("_data").ok()?.strip_prefix("82").filter(|data| data.len() == 24)?;
    let word = |at: usize| u32::from_str_radix(&data[at..at + 8], 16).ok();
    Some((Timestamp { time: word(0)?, increment: word(8)? }, word(16)?))
}

fn shown(place: Place, mut event: Document, project: &Document) -> Document {
    event.insert("_id", token(place));
    if project.is_empty() { event } else { projected(&event, project) }
}

/// A document reduced to the fields that a projection shows.
fn projected(document: &Document, projection: &Document) -> Document {
    let mut shown = Document::new();
    for (field, value) in document {
        let inner: Document = projection
            .iter()
            .filter_map(|(path, one)| {
                Some((path.strip_prefix(field.as_str())?.strip_prefix('.')?.to_owned(), one.clone()))
            })
            .collect();
        match value {
            Bson::Document(value) if !inner.is_empty() => drop(shown.insert(field, projected(value, &inner))),
            _ if projection.contains_key(field) => drop(shown.insert(field, value.clone())),
            _ => {}
        }
    }
    shown
}

fn error(code: i32, text: &str) -> Document {
    doc! { "ok": 0.0, "errmsg": text, "code": code, "codeName": "Error" }
}

fn labelled(code: i32, text: &str) -> Document {
    labelled_as(code, text, "NonResumableChangeStreamError")
}

fn labelled_as(code: i32, text: &str, label: &str) -> Document {
    let mut error = error(code, text);
    error.insert("errorLabels", vec![label]);
    error
}

fn whole(value: &Bson) -> Option<i64> {
    value.as_i64().or_else(|| value.as_i32().map(i64::from))
}

fn milliseconds(command: &Document, field: &str) -> Duration {
    Duration::from_millis(command.get(field).and_then(whole).unwrap_or(1000).max(0) as u64)
}
