//! Runs a stream against a pair of servers, from a clean slate, and finds the first difference.

use crate::compare::{Difference, Memory, compare};
use crate::step::{Action, Check, Step, words};
use crate::tolerated::Tolerated;
use crate::wire::{Conn, Frame, encode};
use std::io;
use std::time::{Duration, Instant};
use support::server::Server;

/// Allowed difference between two remaining times to live. Each server counts from the arrival of a command,
/// and earlier commands, such as bitmaps of 512 MB, may delay one server by seconds.
const CLOCKS_APART_MS: i64 = 20_000;

/// Parallel connections a stream may use.
pub const CLIENTS: usize = 4;
/// Databases that a stream may use; the final comparison covers them.
pub const DATABASES: usize = 3;
/// Longest pipeline.
const PIPELINE: usize = 200;
/// First byte of a payload, written for Redis, of a hash with expiring fields.
const EXPIRING_HASH: u8 = 24;

/// The beginning of a stream, so that a shrunk one begins alike.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub resp3: bool,
    /// Small collections turn into big ones after a few elements.
    pub small_limits: bool,
    /// The oracle knows times to live of hash fields.
    pub field_ttls: bool,
}

pub struct Pair<'a> {
    pub ours: &'a mut Server,
    pub theirs: &'a mut Server,
    pub oracle: &'a str,
    pub tolerated: &'a Tolerated,
}

pub struct Failure {
    /// The step whose replies differ.
    pub at: usize,
    pub difference: Difference,
}

/// The connections of one stream. The same index on both sides is the same client.
struct Run<'a> {
    pair: &'a Pair<'a>,
    setting: Setting,
    ours: Vec<Option<Conn>>,
    theirs: Vec<Option<Conn>>,
    memory: Vec<Memory>,
    /// Clients with an unfinished `Start`, and their connection ids on both sides.
    started: Vec<(usize, i64, i64)>,
    token: u64,
}

/// Runs `steps` and returns the first difference that is not tolerated. `Err`: the servers could not be used.
pub fn run(pair: &mut Pair<'_>, setting: Setting, steps: &[Step]) -> io::Result<Option<Failure>> {
    for server in [&mut *pair.ours, &mut *pair.theirs] {
        if !server.is_alive() || !clean(server, setting) {
            server.restart()?;
            clean(server, setting);
        }
    }
    let mut run = Run {
        pair,
        setting,
        ours: (0..=CLIENTS).map(|_| None).collect(),
        theirs: (0..=CLIENTS).map(|_| None).collect(),
        memory: (0..=CLIENTS).map(|_| Memory::default()).collect(),
        started: Vec::new(),
        token: 0,
    };
    let failure = run.all(steps)?;
    drop(run);
    if failure.is_some() && !pair.ours.is_alive() {
        let tail = pair.ours.log_tail();
        return Ok(failure.map(|mut failure| {
            failure.difference.ours.push_str(&format!("\nthe server ended; its last words:\n{tail}"));
            failure
        }));
    }
    Ok(failure)
}

const SMALL_LIMITS: &[&str] = &[
    "hash-max-listpack-entries 8",
    "hash-max-listpack-value 24",
    "set-max-intset-entries 6",
    "set-max-listpack-entries 8",
    "zset-max-listpack-entries 8",
    "zset-max-listpack-value 24",
    "list-max-listpack-size 8",
];
const DEFAULT_LIMITS: &[&str] = &[
    "hash-max-listpack-entries 512",
    "hash-max-listpack-value 64",
    "set-max-intset-entries 512",
    "set-max-listpack-entries 128",
    "zset-max-listpack-entries 128",
    "zset-max-listpack-value 64",
    "list-max-listpack-size -2",
];

/// Empties a server and sets it up. False if it does not answer.
fn clean(server: &Server, setting: Setting) -> bool {
    let Ok(mut conn) = Conn::open(server.addr) else { return false };
    let mut out = Vec::new();
    let limits = if setting.small_limits { SMALL_LIMITS } else { DEFAULT_LIMITS };
    let mut requests: Vec<String> = ["FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH", "ACL DELUSER u0 u1 u2"]
        .iter()
        .map(|text| text.to_string())
        .collect();
    requests.extend(limits.iter().map(|limit| format!("CONFIG SET {limit}")));
    // The rate per second at which Redis checks timeouts of blocked clients.
    requests.push("CONFIG SET hz 500".to_owned());
    requests.iter().for_each(|text| encode(&words(text), &mut out));
    encode(&["CONFIG", "SET", "notify-keyspace-events", ""].map(|arg| arg.as_bytes().to_vec()), &mut out);
    conn.send(&out);
    (0..=requests.len()).for_each(|_| drop(conn.read()));
    !conn.is_gone()
}

type Found = io::Result<Option<Failure>>;

impl Run<'_> {
    fn all(&mut self, steps: &[Step]) -> Found {
        let mut at = 0;
        while at < steps.len() {
            let step = &steps[at];
            let found = if let Action::Command(_) = step.action {
                let mut end = at + 1;
                while end < steps.len()
                    && !steps[end - 1].flush
                    && end - at < PIPELINE
                    && steps[end].client == step.client
                    && matches!(steps[end].action, Action::Command(_))
                {
                    end += 1;
                }
                let from = at;
                at = end;
                self.pipeline(&steps[from..end], from)?
            } else {
                at += 1;
                self.single(step, at - 1)?
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Both connections of a client, opened when first used.
    fn open(&mut self, client: usize) -> io::Result<()> {
        let servers = [
            (&mut self.ours[client], self.pair.ours.addr),
            (&mut self.theirs[client], self.pair.theirs.addr),
        ];
        for (slot, addr) in servers {
            if slot.is_none() {
                let mut conn = Conn::open(addr)?;
                if self.setting.resp3 {
                    conn.call(&["HELLO", "3"]);
                }
                *slot = Some(conn);
            }
        }
        Ok(())
    }

    fn conns(&mut self, client: usize) -> io::Result<(&mut Conn, &mut Conn)> {
        self.open(client)?;
        match (&mut self.ours[client], &mut self.theirs[client]) {
            (Some(ours), Some(theirs)) => Ok((ours, theirs)),
            _ => Err(io::Error::other("no connection")),
        }
    }

    fn pipeline(&mut self, steps: &[Step], at: usize) -> Found {
        let mut out = Vec::new();
        for step in steps {
            if let Action::Command(args) = &step.action {
                encode(args, &mut out);
            }
        }
        let (ours, theirs) = self.conns(steps[0].client)?;
        ours.send(&out);
        theirs.send(&out);
        let replies: Vec<(Frame, Frame)> = steps.iter().map(|_| (ours.read(), theirs.read())).collect();
        for (offset, (step, (ours, theirs))) in steps.iter().zip(&replies).enumerate() {
            if let Some(failure) = self.judge(step, ours, theirs, at + offset) {
                return Ok(Some(failure));
            }
        }
        Ok(None)
    }

    /// The first difference between two replies that is not tolerated.
    fn judge(&mut self, step: &Step, ours: &Frame, theirs: &Frame, at: usize) -> Option<Failure> {
        let none = Vec::new();
        let args = match &step.action {
            Action::Command(args) | Action::Collect(args) | Action::Start(args) => args,
            _ => &none,
        };
        // A text is made only when it is needed: for a difference, or for a command that may be queued.
        if ours == theirs && !matches!(step.check, Check::Probe | Check::Sample | Check::Remaining) {
            let queued = matches!(theirs, Frame::Simple(text) if text == b"QUEUED");
            let text = if queued { step.text() } else { String::new() };
            compare(&mut self.memory[step.client], args, &text, step.check, ours, theirs);
            return None;
        }
        let text = step.text();
        let found = compare(&mut self.memory[step.client], args, &text, step.check, ours, theirs);
        self.first_untolerated(found, at)
    }

    fn first_untolerated(&self, found: Vec<Difference>, at: usize) -> Option<Failure> {
        let bad = found.into_iter().find(|d| !self.pair.tolerated.allows(self.pair.oracle, d))?;
        Some(Failure { at, difference: bad })
    }

    fn single(&mut self, step: &Step, at: usize) -> Found {
        match &step.action {
            Action::Command(_) => self.pipeline(std::slice::from_ref(step), at),
            Action::Collect(args) => self.collect(step, args, at),
            Action::Start(args) => self.start(step.client, args, at),
            Action::Finish => self.finish(step, at),
            Action::Scan { args, at: position } => {
                let (ours, theirs) = self.conns(step.client)?;
                let (ours, theirs) = (scan(ours, args, *position), scan(theirs, args, *position));
                Ok(self.judge(step, &ours, &theirs, at))
            }
            Action::Raw(bytes) => {
                let ours = raw(self.pair.ours, bytes)?;
                let theirs = raw(self.pair.theirs, bytes)?;
                Ok(self.judge(step, &ours, &theirs, at))
            }
            Action::SleepMs(ms) => {
                std::thread::sleep(Duration::from_millis(*ms));
                Ok(None)
            }
            Action::Reconnect => {
                self.ours[step.client] = None;
                self.theirs[step.client] = None;
                self.memory[step.client] = Memory::default();
                Ok(None)
            }
            Action::Cross { from, args } => self.cross(step, from, args, at),
            // Inner steps are counted from 0; they all belong to this one.
            Action::Dump => Ok(self.dump(at)?.map(|failure| Failure { at, ..failure })),
        }
    }

    fn cross(&mut self, step: &Step, from: &[u8], args: &[Vec<u8>], at: usize) -> Found {
        let is_valkey = self.pair.oracle.starts_with("valkey");
        let (ours, theirs) = self.conns(step.client)?;
        let dump = [b"DUMP".to_vec(), from.to_vec()];
        let (mine, other) = (ours.call_bytes(&dump), theirs.call_bytes(&dump));
        let (Some(from_ours), Some(from_theirs)) = (mine.text(), other.text()) else {
            return Ok(self.judge(step, &mine, &other, at));
        };
        let with = |payload: &[u8]| {
            let mut args = args.to_vec();
            args.insert(3, payload.to_vec());
            args
        };
        // Valkey cannot read that, and gets its own payload back.
        let is_foreign = is_valkey && from_ours.first() == Some(&EXPIRING_HASH);
        let to_theirs = if is_foreign { from_theirs } else { from_ours };
        let mine = ours.call_bytes(&with(from_theirs));
        let other = theirs.call_bytes(&with(to_theirs));
        Ok(self.judge(step, &mine, &other, at))
    }

    fn collect(&mut self, step: &Step, args: &[Vec<u8>], at: usize) -> Found {
        self.token += 1;
        let token = format!("token-{}", self.token).into_bytes();
        let mut out = Vec::new();
        if !args.is_empty() {
            encode(args, &mut out);
        }
        encode(&[b"PING".to_vec(), token.clone()], &mut out);
        let (ours, theirs) = self.conns(step.client)?;
        theirs.send(&out);
        ours.send(&out);
        let theirs = collect_until(theirs, &token, 0);
        let ours = collect_until(ours, &token, theirs.len());
        Ok(self.judge(step, &Frame::Array(ours), &Frame::Array(theirs), at))
    }

    /// Sends a request that may block, and waits until the server reports that it blocks, or answers.
    fn start(&mut self, client: usize, args: &[Vec<u8>], at: usize) -> Found {
        if self.started.iter().any(|(started, ..)| *started == client) {
            return Ok(None);
        }
        let id = |frame: Frame| if let Frame::Int(id) = frame { id } else { -1 };
        let (ours, theirs) = self.conns(client)?;
        let ids = (id(ours.call(&["CLIENT", "ID"])), id(theirs.call(&["CLIENT", "ID"])));
        let mut out = Vec::new();
        encode(args, &mut out);
        ours.send(&out);
        theirs.send(&out);
        self.started.push((client, ids.0, ids.1));
        self.open(CLIENTS)?;
        let their_state = await_block_of(&mut self.theirs, client, ids.1);
        let our_state = await_block_of(&mut self.ours, client, ids.0);
        if our_state == their_state {
            return Ok(None);
        }
        let say = |blocked: bool| if blocked { "blocked" } else { "not blocked" }.to_owned();
        let command = args.iter().map(|arg| crate::wire::quote(arg)).collect::<Vec<_>>().join(" ");
        let difference = Difference { command, ours: say(our_state), theirs: say(their_state) };
        Ok(self.first_untolerated(vec![difference], at))
    }

    fn finish(&mut self, step: &Step, at: usize) -> Found {
        let Some(position) = self.started.iter().position(|(client, ..)| *client == step.client) else {
            return Ok(None);
        };
        let (_, our_id, their_id) = self.started.remove(position);
        let (our_control, their_control) = self.conns(CLIENTS)?;
        if is_blocked(their_control, their_id) {
            their_control.call(&["CLIENT", "UNBLOCK", &their_id.to_string()]);
            our_control.call(&["CLIENT", "UNBLOCK", &our_id.to_string()]);
        }
        let (ours, theirs) = self.conns(step.client)?;
        let theirs = theirs.read();
        let ours = ours.read_within(Duration::from_secs(3)).unwrap_or(Frame::Gone("still blocked"));
        Ok(self.judge(step, &ours, &theirs, at))
    }

    /// Compares everything there is.
    fn dump(&mut self, at: usize) -> Found {
        let client = CLIENTS;
        for db in 0..DATABASES {
            self.pipeline(&[Step::command(client, words(&format!("SELECT {db}")), Check::Exact)], at)?;
            let keys = Step::command(client, words("KEYS *"), Check::Unordered);
            let (_, theirs) = self.conns(client)?;
            let names = theirs.call(&["KEYS", "*"]);
            if let found @ Some(_) = self.pipeline(&[keys], at)? {
                return Ok(found);
            }
            for name in names.items().unwrap_or_default().iter().filter_map(Frame::text) {
                if let found @ Some(_) = self.dump_key(client, name, at)? {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    fn dump_key(&mut self, client: usize, name: &[u8], at: usize) -> Found {
        let ask = |before: &str, after: &str, check| {
            let mut args = words(before);
            args.push(name.to_vec());
            args.extend(if after.is_empty() { Vec::new() } else { words(after) });
            Step::command(client, args, check)
        };
        let (_, theirs) = self.conns(client)?;
        let kind = theirs.call_bytes(&[b"TYPE".to_vec(), name.to_vec()]);
        let mut steps = vec![
            ask("TYPE", "", Check::Exact),
            ask("OBJECT ENCODING", "", Check::Exact),
            ask("PTTL", "", Check::Near(CLOCKS_APART_MS)),
        ];
        match kind.text().unwrap_or_default() {
            b"string" => steps.push(ask("GET", "", Check::Exact)),
            b"list" => steps.push(ask("LRANGE", "0 -1", Check::Exact)),
            b"set" => steps.push(ask("SMEMBERS", "", Check::Unordered)),
            b"zset" => steps.push(ask("ZRANGE", "0 -1 WITHSCORES", Check::Exact)),
            b"hash" => steps.push(ask("HGETALL", "", Check::Pairs)),
            b"stream" => {
                steps.push(ask("XRANGE", "- +", Check::Exact));
                steps.push(ask("XINFO GROUPS", "", Check::Exact));
            }
            _ => {}
        }
        if let found @ Some(_) = self.pipeline(&steps, at)? {
            return Ok(found);
        }
        if kind.text() == Some(b"hash") && self.setting.field_ttls {
            return self.dump_field_ttls(client, name, at);
        }
        Ok(None)
    }

    fn dump_field_ttls(&mut self, client: usize, name: &[u8], at: usize) -> Found {
        let (_, theirs) = self.conns(client)?;
        let fields = theirs.call_bytes(&[b"HKEYS".to_vec(), name.to_vec()]);
        let fields: Vec<Vec<u8>> =
            fields.items().unwrap_or_default().iter().filter_map(Frame::text).map(<[u8]>::to_vec).collect();
        let mut args = vec![b"HPEXPIRETIME".to_vec(), name.to_vec(), b"FIELDS".to_vec()];
        args.push(fields.len().to_string().into_bytes());
        args.extend(fields);
        self.pipeline(&[Step::command(client, args, Check::Near(CLOCKS_APART_MS))], at)
    }
}

/// Frames up to the answer of `PING token`. Waits a little longer while fewer than `expected` came, as
/// another thread of the server may deliver them.
fn collect_until(conn: &mut Conn, token: &[u8], expected: usize) -> Vec<Frame> {
    let mut out = Vec::new();
    let mut seen = false;
    let mut deadline = Instant::now() + Duration::from_secs(10);
    while !seen || out.len() < expected {
        let patience = deadline.saturating_duration_since(Instant::now());
        match conn.read_within(patience) {
            Some(frame) if answers(&frame, token) => {
                seen = true;
                deadline = Instant::now() + Duration::from_millis(700);
            }
            Some(gone @ Frame::Gone(_)) => {
                out.push(gone);
                break;
            }
            Some(frame) => out.push(frame),
            None => break,
        }
    }
    out
}

fn answers(frame: &Frame, token: &[u8]) -> bool {
    match frame {
        Frame::Bulk(text) => text == token,
        Frame::Array(items) => items.len() == 2 && items[1].text() == Some(token),
        _ => false,
    }
}

fn is_blocked(control: &mut Conn, id: i64) -> bool {
    let (Frame::Bulk(text) | Frame::Verbatim(text)) =
        control.call(&["CLIENT", "LIST", "ID", &id.to_string()])
    else {
        return false;
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    text.split(' ').any(|field| field.strip_prefix("flags=").is_some_and(|flags| flags.contains('b')))
}

fn await_block_of(conns: &mut [Option<Conn>], client: usize, id: i64) -> bool {
    let (clients, control) = conns.split_at_mut(CLIENTS);
    match (&mut clients[client], &mut control[0]) {
        (Some(conn), Some(control)) => await_block(conn, control, id),
        _ => false,
    }
}

/// Whether connection `id` blocks on its request, instead of answering it.
fn await_block(conn: &mut Conn, control: &mut Conn, id: i64) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if conn.has_reply(Duration::from_millis(1)) {
            return false;
        }
        if is_blocked(control, id) {
            return true;
        }
    }
    false
}

/// A full iteration: all elements, each once (SCAN may repeat), sorted.
fn scan(conn: &mut Conn, args: &[Vec<u8>], at: usize) -> Frame {
    let mut cursor = b"0".to_vec();
    let mut found: Vec<Vec<Frame>> = Vec::new();
    let kind = args[0].to_ascii_uppercase();
    let bare = args.iter().any(|arg| arg.eq_ignore_ascii_case(b"NOVALUES"));
    let step = if matches!(kind[0], b'H' | b'Z') && !bare { 2 } else { 1 };
    for _ in 0..10_000 {
        let mut request = args.to_vec();
        request.insert(at, cursor.clone());
        let reply = conn.call_bytes(&request);
        let Some([next, elements]) = reply.items() else { return reply };
        found.extend(elements.items().unwrap_or_default().chunks(step).map(<[Frame]>::to_vec));
        cursor = next.text().unwrap_or_default().to_vec();
        if cursor == b"0" {
            found.sort();
            found.dedup();
            return Frame::Array(found.into_iter().map(Frame::Array).collect());
        }
    }
    Frame::Gone("iteration without end")
}

/// A server's answer to `bytes` and a PING, on a fresh connection whose sending half is then closed. This
/// makes the server close too, even if it still waits for the rest of a request.
fn raw(server: &Server, bytes: &[u8]) -> io::Result<Frame> {
    let mut conn = Conn::open(server.addr)?;
    conn.send(&[bytes, b"\r\nPING raw-token\r\n"].concat());
    conn.end_sending();
    let mut out = Vec::new();
    loop {
        match conn.read() {
            Frame::Gone("connection closed") => return Ok(Frame::Array(out)),
            gone @ Frame::Gone(_) => {
                out.push(gone);
                return Ok(Frame::Array(out));
            }
            frame => out.push(frame),
        }
    }
}
