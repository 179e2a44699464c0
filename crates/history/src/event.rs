//! Parties that work and wait, and what is kept of them: edges, records, heavy clients, marks.
//!
//! - E1: each text has a limit, so that a record takes at most some 400 bytes and a minute's edges
//!   [`EDGES_BYTES`].
//! - E2: a party's words are separate from its command, as not everybody may read them.

use crate::codec::{Reader, Writer};

/// Bytes of the edges of one minute.
pub const EDGES_BYTES: usize = 2048;
/// Edges of one minute.
pub const EDGES: usize = 64;
/// Heavy clients of one minute.
pub const HEAVY: usize = 10;
const NAME_BYTES: usize = 48;
const WORD_BYTES: usize = 40;
const WORDS: usize = 4;
const PHASES: usize = 8;
const FRAMES: usize = 4;
const FRAME_BYTES: usize = 64;
const MARK_BYTES: usize = 120;
/// Most entries of a list that is read from a disk.
const LIST_MAX: usize = 4096;

/// The kinds of parties.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Kind {
    Client,
    /// A part of this server.
    Server,
    /// Another program of the machine.
    Program,
    /// Very many short requests.
    Crowd,
    /// The disk of the log.
    Disk,
    /// A database.
    Source,
    Replica,
    /// CLIENT PAUSE.
    Pause,
    Unknown,
}

const KINDS: [(Kind, &str); 9] = [
    (Kind::Client, "client"),
    (Kind::Server, "server"),
    (Kind::Program, "program"),
    (Kind::Crowd, "crowd"),
    (Kind::Disk, "disk"),
    (Kind::Source, "source"),
    (Kind::Replica, "replica"),
    (Kind::Pause, "pause"),
    (Kind::Unknown, "unknown"),
];

impl Kind {
    pub fn name(self) -> &'static str {
        KINDS[self as usize].1
    }
}

/// One that works or waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Party {
    pub kind: Kind,
    /// The label: for a client its CLIENT SETNAME, else its library and address without the port.
    pub name: Vec<u8>,
    /// The client's number; 0: none.
    pub client: u64,
    pub address: Vec<u8>,
    pub user: Vec<u8>,
    pub command: Vec<u8>,
    /// The words of the command, shortened (E2).
    pub words: Vec<Vec<u8>>,
}

impl Party {
    /// A party that is no client.
    pub fn other(kind: Kind, name: &str) -> Party {
        Party {
            kind,
            name: name.into(),
            client: 0,
            address: Vec::new(),
            user: Vec::new(),
            command: Vec::new(),
            words: Vec::new(),
        }
    }

    fn write(&self, out: &mut Writer) {
        out.number(self.kind as u64);
        out.text(&self.name, NAME_BYTES);
        out.number(self.client);
        out.text(&self.address, NAME_BYTES);
        out.text(&self.user, NAME_BYTES);
        out.text(&self.command, NAME_BYTES);
        let words = &self.words[..self.words.len().min(WORDS)];
        out.number(words.len() as u64);
        words.iter().for_each(|word| out.text(word, WORD_BYTES));
    }

    fn read(bytes: &mut Reader<'_>) -> Option<Party> {
        let kind = KINDS.get(bytes.count(u8::MAX.into())?).map_or(Kind::Unknown, |(kind, _)| *kind);
        let name = bytes.text()?.to_vec();
        let client = bytes.number()?;
        let [address, user, command] = [bytes.text()?, bytes.text()?, bytes.text()?].map(<[u8]>::to_vec);
        let words = bytes.count(WORDS)?;
        let words: Option<_> = (0..words).map(|_| bytes.text().map(<[u8]>::to_vec)).collect();
        Some(Party { kind, name, client, address, user, command, words: words? })
    }
}

/// The waits of one party for another, of one cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    pub cause: u8,
    pub culprit: Party,
    pub waiter: Party,
    /// Clients with the waiter's name that waited.
    pub clients: u64,
    pub waits: u64,
    pub us: u64,
    pub longest_us: u64,
}

impl Edge {
    fn is_like(&self, other: &Edge) -> bool {
        self.cause == other.cause
            && self.culprit.kind == other.culprit.kind
            && self.culprit.name == other.culprit.name
            && self.waiter.name == other.waiter.name
    }

    /// Adds the waits of another edge between the same two.
    fn add(&mut self, other: &Edge) {
        if other.longest_us > self.longest_us {
            (self.culprit, self.waiter) = (other.culprit.clone(), other.waiter.clone());
        }
        self.clients = self.clients.max(other.clients);
        self.waits = self.waits.saturating_add(other.waits);
        self.us = self.us.saturating_add(other.us);
        self.longest_us = self.longest_us.max(other.longest_us);
    }
}

/// Edges by cause, culprit and waiter, and the sum of those for which there was no room.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Flows {
    pub edges: Vec<Edge>,
    /// Count, time and longest of the others.
    pub others: (u64, u64, u64),
}

impl Flows {
    /// Adds an edge; returns its place. O(edges)
    pub fn add(&mut self, edge: &Edge) -> usize {
        match self.edges.iter().position(|one| one.is_like(edge)) {
            Some(at) => {
                self.edges[at].add(edge);
                at
            }
            None => {
                self.edges.push(edge.clone());
                self.edges.len() - 1
            }
        }
    }

    pub fn add_all(&mut self, other: &Flows) {
        other.edges.iter().for_each(|edge| _ = self.add(edge));
        self.add_others(other.others);
    }

    fn add_others(&mut self, (waits, us, longest): (u64, u64, u64)) {
        let own = &mut self.others;
        *own = (own.0.saturating_add(waits), own.1.saturating_add(us), own.2.max(longest));
    }

    /// Sorts by time, and adds all beyond the first `max` to the others. O(edges · log edges)
    pub fn keep(&mut self, max: usize) {
        self.edges.sort_by_key(|edge| std::cmp::Reverse(edge.us));
        let rest = self.edges.split_off(max.min(self.edges.len()));
        rest.iter().for_each(|edge| self.add_others((edge.waits, edge.us, edge.longest_us)));
    }

    /// The edge with the most time.
    pub fn main(&self) -> Option<&Edge> {
        self.edges.iter().max_by_key(|edge| edge.us)
    }

    /// Writes the largest edges, as far as [`EDGES_BYTES`] reach (E1).
    pub fn write(mut self, out: &mut Writer) {
        self.keep(EDGES);
        let (mut written, mut kept) = (Writer::default(), 0);
        for edge in &self.edges {
            let mark = written.len();
            written.number(edge.cause.into());
            edge.culprit.write(&mut written);
            edge.waiter.write(&mut written);
            [edge.clients, edge.waits, edge.us, edge.longest_us].iter().for_each(|n| written.number(*n));
            if written.len() > EDGES_BYTES {
                written.truncate(mark);
                break;
            }
            kept += 1;
        }
        self.keep(kept);
        out.number(kept as u64);
        out.text(&written.into_bytes(), EDGES_BYTES);
        [self.others.0, self.others.1, self.others.2].iter().for_each(|n| out.number(*n));
    }

    pub fn read(bytes: &mut Reader<'_>) -> Option<Flows> {
        let count = bytes.count(EDGES)?;
        let mut written = Reader::new(bytes.text()?);
        let edge = |bytes: &mut Reader<'_>| {
            let cause = bytes.count(u8::MAX.into())? as u8;
            let (culprit, waiter) = (Party::read(bytes)?, Party::read(bytes)?);
            let [clients, waits, us, longest_us] =
                [bytes.number()?, bytes.number()?, bytes.number()?, bytes.number()?];
            Some(Edge { cause, culprit, waiter, clients, waits, us, longest_us })
        };
        let edges: Option<Vec<Edge>> = (0..count).map(|_| edge(&mut written)).collect();
        Some(Flows { edges: edges?, others: (bytes.number()?, bytes.number()?, bytes.number()?) })
    }
}

/// A client's processor time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heavy {
    pub client: Party,
    pub us: u64,
    /// How much of that may be others' ([`crate::heavy`]).
    pub error_us: u64,
    pub pieces: u64,
}

impl Heavy {
    pub(crate) fn write(&self, out: &mut Writer) {
        self.client.write(out);
        [self.us, self.error_us, self.pieces].iter().for_each(|n| out.number(*n));
    }

    pub(crate) fn read(bytes: &mut Reader<'_>) -> Option<Heavy> {
        let client = Party::read(bytes)?;
        Some(Heavy { client, us: bytes.number()?, error_us: bytes.number()?, pieces: bytes.number()? })
    }
}

/// A wait of a millisecond or more, or a slow request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Numbered since the server's first start; restarts leave gaps.
    pub id: u64,
    pub time_ms: u64,
    pub waiter: Party,
    /// None: a slow request.
    pub cause: Option<u8>,
    pub us: u64,
    pub behind: Option<Party>,
    /// Names and microseconds.
    pub phases: Vec<(Vec<u8>, u64)>,
    /// Functions that were under way, innermost first.
    pub frames: Vec<Vec<u8>>,
}

impl Record {
    pub(crate) fn write(&self, out: &mut Writer) {
        out.number(self.id);
        out.number(self.time_ms);
        self.waiter.write(out);
        out.number(self.cause.map_or(0, |cause| u64::from(cause) + 1));
        out.number(self.us);
        out.number(self.behind.is_some().into());
        self.behind.iter().for_each(|party| party.write(out));
        let phases = &self.phases[..self.phases.len().min(PHASES)];
        out.number(phases.len() as u64);
        for (name, us) in phases {
            out.text(name, NAME_BYTES);
            out.number(*us);
        }
        let frames = &self.frames[..self.frames.len().min(FRAMES)];
        out.number(frames.len() as u64);
        frames.iter().for_each(|frame| out.text(frame, FRAME_BYTES));
    }

    pub(crate) fn read(bytes: &mut Reader<'_>) -> Option<Record> {
        let (id, time_ms) = (bytes.number()?, bytes.number()?);
        let waiter = Party::read(bytes)?;
        let cause = bytes.count(u8::MAX.into())?.checked_sub(1).map(|cause| cause as u8);
        let us = bytes.number()?;
        let behind = if bytes.count(1)? == 1 { Some(Party::read(bytes)?) } else { None };
        let count = bytes.count(PHASES)?;
        let phases: Option<_> = (0..count).map(|_| Some((bytes.text()?.to_vec(), bytes.number()?))).collect();
        let count = bytes.count(FRAMES)?;
        let frames: Option<_> = (0..count).map(|_| bytes.text().map(<[u8]>::to_vec)).collect();
        Some(Record { id, time_ms, waiter, cause, us, behind, phases: phases?, frames: frames? })
    }
}

/// Something that happened to the server: a restart, a snapshot, a changed setting, another role.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    pub time_ms: u64,
    pub kind: Vec<u8>,
    pub text: Vec<u8>,
}

impl Mark {
    pub fn new(time_ms: u64, kind: &str, text: &str) -> Mark {
        Mark { time_ms, kind: kind.into(), text: text.as_bytes()[..text.len().min(MARK_BYTES)].to_vec() }
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.number(self.time_ms);
        out.text(&self.kind, NAME_BYTES);
        out.text(&self.text, MARK_BYTES);
    }

    pub(crate) fn read(bytes: &mut Reader<'_>) -> Option<Mark> {
        Some(Mark { time_ms: bytes.number()?, kind: bytes.text()?.to_vec(), text: bytes.text()?.to_vec() })
    }
}

/// Writes a list.
pub(crate) fn write_list<T>(list: &[T], out: &mut Writer, write: impl Fn(&T, &mut Writer)) {
    out.number(list.len().min(LIST_MAX) as u64);
    list.iter().take(LIST_MAX).for_each(|one| write(one, out));
}

/// Reads what [`write_list`] wrote.
pub(crate) fn read_list<T>(
    bytes: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = bytes.count(LIST_MAX)?;
    (0..count).map(|_| read(bytes)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn party(name: &str) -> Party {
        Party {
            client: 7,
            address: b"10.0.0.7:1".to_vec(),
            user: b"default".to_vec(),
            command: b"eval".to_vec(),
            words: vec![b"EVAL".to_vec(), vec![b'x'; 500]],
            ..Party::other(Kind::Client, name)
        }
    }

    pub fn edge(culprit: &str, waiter: &str, us: u64) -> Edge {
        Edge {
            cause: 0,
            culprit: party(culprit),
            waiter: party(waiter),
            clients: 1,
            waits: 1,
            us,
            longest_us: us,
        }
    }

    pub fn record(id: u64, time_ms: u64) -> Record {
        Record {
            id,
            time_ms,
            waiter: party("waiter"),
            cause: Some(1),
            us: 1500,
            behind: Some(party("culprit")),
            phases: vec![(b"waited-for-loop".to_vec(), 1500)],
            frames: vec![vec![b'f'; 200]; 9],
        }
    }

    #[test]
    fn edges_between_the_same_two_are_one() {
        let mut flows = Flows::default();
        for us in [10, 30, 20] {
            flows.add(&edge("batch", "shop", us));
            flows.add(&edge("batch", "cart", 1));
        }
        assert_eq!(flows.edges.len(), 2);
        let main = flows.main().unwrap();
        assert_eq!((main.waits, main.us, main.longest_us), (3, 60, 30));
        flows.keep(1);
        assert_eq!((flows.edges.len(), flows.others), (1, (3, 3, 1)));
    }

    #[test]
    fn a_minute_of_edges_keeps_within_its_bytes() {
        let mut flows = Flows::default();
        (0..500).for_each(|n| _ = flows.add(&edge(&format!("culprit-{n}"), "waiter", n)));
        let mut out = Writer::default();
        flows.write(&mut out);
        let bytes = out.into_bytes();
        assert!(bytes.len() < EDGES_BYTES + 64);
        let read = Flows::read(&mut Reader::new(&bytes)).unwrap();
        assert!(!read.edges.is_empty() && read.edges[0].us == 499);
        let times: u64 = read.edges.iter().map(|edge| edge.us).sum();
        assert_eq!(times + read.others.1, (0..500).sum::<u64>());
    }

    #[test]
    fn a_record_takes_few_bytes_and_is_read_again() {
        let record = record(9, 1_795_604_864_597);
        let mut out = Writer::default();
        record.write(&mut out);
        let bytes = out.into_bytes();
        assert!(bytes.len() <= 640, "{}", bytes.len());
        let read = Record::read(&mut Reader::new(&bytes)).unwrap();
        assert_eq!((read.id, read.us, read.frames.len()), (9, 1500, FRAMES));
        for end in 0..bytes.len() {
            assert!(Record::read(&mut Reader::new(&bytes[..end])).is_none());
        }
    }
}
