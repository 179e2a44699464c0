//! A stub of the Kubernetes API: Leases, ConfigMaps and Pods of one namespace, with versions, conflicts,
//! watches from a version, versions that are gone, and tokens that expire.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Default)]
pub struct State {
    version: u64,
    /// By path.
    pub objects: BTreeMap<String, Value>,
    /// Version, collection, type, object.
    events: Vec<(u64, String, &'static str, Value)>,
    /// Versions up to this are gone.
    gone: u64,
    pub token: String,
    /// Writes that are done and answered by nothing.
    pub silent: u32,
    /// Raised to end all watches.
    cut: u64,
    pub refused: u64,
    pub conflicts: u64,
}

#[derive(Clone)]
pub struct Stub {
    pub port: u16,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Stub {
    pub fn start(token: &str) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let stub = Stub { port, state: Arc::default() };
        stub.state().token = token.to_owned();
        stub.state().version = 1000;
        let serving = stub.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let stub = serving.clone();
                std::thread::spawn(move || stub.serve(stream));
            }
        });
        stub
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().expect("the state")
    }

    /// Forgets all events, and ends all watches.
    pub fn compact(&self) {
        let mut state = self.state();
        state.gone = state.version;
        state.cut += 1;
        self.state.1.notify_all();
    }

    fn serve(&self, stream: TcpStream) {
        let mut out = stream.try_clone().expect("a copy");
        let mut input = BufReader::new(stream);
        loop {
            let (mut line, mut length, mut token) = (String::new(), 0, String::new());
            if input.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let mut words = line.split_whitespace().map(str::to_owned);
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            loop {
                let mut header = String::new();
                if input.read_line(&mut header).unwrap_or(0) == 0 {
                    return;
                }
                let Some((name, value)) = header.trim().split_once(": ") else { break };
                match name {
                    "Content-Length" => length = value.parse().expect("a length"),
                    "Authorization" => token = value.to_owned(),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            if input.read_exact(&mut body).is_err() {
                return;
            }
            if token != format!("Bearer {}", self.state().token) {
                self.state().refused += 1;
                answer(&mut out, 401, &json!({"message": "Unauthorized"}));
                continue;
            }
            if path.contains("watch=true") {
                self.watch(&mut out, &path);
                return;
            }
            let (status, value) = self.state().call(&method, &path, &body);
            self.state.1.notify_all();
            let mut state = self.state();
            if method != "GET" && status < 300 && state.silent > 0 {
                state.silent -= 1;
                drop(state);
                // The client gives up.
                let _ = input.read(&mut [0]);
                return;
            }
            drop(state);
            answer(&mut out, status, &value);
        }
    }

    fn watch(&self, out: &mut TcpStream, path: &str) {
        let (collection, query) = path.split_once('?').expect("a query");
        let at: u64 = parameter(query, "resourceVersion").parse().expect("a version");
        if at < self.state().gone && at.is_multiple_of(2) {
            // The API tells this in either way.
            return answer(out, 410, &json!({"code": 410, "message": "too old"}));
        }
        let _ = out.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        self.tell(out, at, collection, query);
        let _ = out.write_all(b"0\r\n\r\n");
    }

    /// Writes events until the watch ends.
    fn tell(&self, out: &mut TcpStream, mut at: u64, collection: &str, query: &str) {
        let cut = self.state().cut;
        let mut write = |event: &Value| {
            let line = format!("{event}\n");
            let (first, second) = line.split_at(line.len() / 2);
            // In two chunks.
            let bytes = format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n", first.len(), second.len());
            out.write_all(bytes.as_bytes()).is_ok()
        };
        let mut state = self.state();
        loop {
            if at < state.gone
                && state.events.iter().any(|(version, ..)| *version > at && *version <= state.gone)
            {
                write(&json!({"type": "ERROR", "object": {"code": 410, "message": "too old"}}));
                return;
            }
            let new: Vec<_> = state
                .events
                .iter()
                .filter(|(version, of, ..)| *version > at && of == collection)
                .filter(|(.., object)| selected(object, query))
                .map(|(_, _, kind, object)| json!({"type": kind, "object": object}))
                .collect();
            at = state.version;
            let bookmark =
                json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": at.to_string()}}});
            drop(state);
            if !new.iter().all(&mut write) || !write(&bookmark) {
                return;
            }
            state = self.state();
            if state.cut != cut {
                return;
            }
            if state.version == at {
                state = self.state.1.wait_timeout(state, Duration::from_millis(500)).expect("the state").0;
            }
        }
    }
}

impl State {
    fn call(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let missing = (404, json!({"message": "not found"}));
        let mut object: Value = serde_json::from_slice(body).unwrap_or_default();
        match method {
            "GET" if path.ends_with("/leases") || path.ends_with("/configmaps") => {
                let inside = format!("{path}/");
                let items =
                    self.objects.iter().filter(|(at, _)| at.starts_with(&inside)).map(|(_, object)| object);
                let items: Vec<_> = items.filter(|object| selected(object, query)).cloned().collect();
                (200, json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items}))
            }
            "GET" => self.objects.get(path).map_or(missing, |object| (200, object.clone())),
            "POST" => {
                let at = format!("{path}/{}", object["metadata"]["name"].as_str().expect("a name"));
                if self.objects.contains_key(&at) {
                    self.conflicts += 1;
                    return (409, json!({"message": "already exists"}));
                }
                (201, self.put(at, &mut object, "ADDED"))
            }
            "PUT" => {
                let Some(old) = self.objects.get(path) else { return missing };
                if old["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    self.conflicts += 1;
                    return (409, json!({"message": "the object has been modified"}));
                }
                // A write that changes nothing makes no new version.
                if *old == object {
                    return (200, object);
                }
                (200, self.put(path.to_owned(), &mut object, "MODIFIED"))
            }
            "PATCH" => {
                let Some(mut pod) = self.objects.get(path).cloned() else { return missing };
                for (name, value) in object["metadata"]["labels"].as_object().expect("labels") {
                    pod["metadata"]["labels"][name] = value.clone();
                }
                (200, self.put(path.to_owned(), &mut pod, "MODIFIED"))
            }
            "DELETE" => match self.objects.remove(path) {
                Some(object) => {
                    self.version += 1;
                    self.note(path, "DELETED", &object);
                    (200, object)
                }
                None => missing,
            },
            other => (405, json!({"message": other})),
        }
    }

    pub fn delete(&mut self, path: &str) {
        assert_eq!(self.call("DELETE", path, b"").0, 200);
    }

    fn put(&mut self, path: String, object: &mut Value, kind: &'static str) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.note(&path, kind, object);
        self.objects.insert(path, object.clone());
        object.clone()
    }

    fn note(&mut self, path: &str, kind: &'static str, object: &Value) {
        let (collection, _) = path.rsplit_once('/').expect("a folder");
        self.events.push((self.version, collection.to_owned(), kind, object.clone()));
    }
}

/// Whether an object is one of a selector's.
fn selected(object: &Value, query: &str) -> bool {
    let label = parameter(query, "labelSelector");
    let field = parameter(query, "fieldSelector");
    let labels = &object["metadata"]["labels"];
    (label.is_empty()
        || label.split_once("%3D").is_some_and(|(name, value)| labels[name.replace("%2F", "/")] == value))
        && (field.is_empty()
            || field.split_once("%3D").is_some_and(|(_, name)| object["metadata"]["name"] == name))
}

fn parameter<'a>(query: &'a str, name: &str) -> &'a str {
    query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

fn answer(out: &mut TcpStream, status: u16, value: &Value) {
    let text = value.to_string();
    let _ = write!(out, "HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{text}", text.len());
}
