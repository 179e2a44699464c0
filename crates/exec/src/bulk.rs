//! Commands that set or remove many keys whatever those are: MSET, MSETNX, DEL, UNLINK, or an EXEC of plain SETs. They need no
//! worker: the loop commits them in slices straight from their words.
//!
//! Cost: O(keys), in slices; nothing is copied.

use crate::job::{Delivery, Races, discard};
use crate::lines::{self, Place, Write};
use crate::queue::Queue;
use crate::tally::Tally;
use crate::waits::Spent;
use crate::works::Work;
use crate::{Flow, Local, Server, Session};
use command::places;
use command::{Command, Error, Stream};
use keyspace::{Announce, Commit, Keyspace, Words};
use resp::{OwnedArgs, Reply};
use std::sync::Arc;
use stdx::budget::Holding;

/// See the module.
pub struct BulkJob {
    pub client: u64,
    db: usize,
    words: Arc<BulkWords>,
    races: Races,
    answer: Answer,
    pub resp3: bool,
    loop_id: usize,
    pub(crate) spent: Spent,
    /// In the line of its kind.
    pub(crate) place: Option<Place>,
    /// What its commit takes of what work may hold.
    _holding: Holding,
}

/// What a commit keeps of a key besides its words.
const INTENT_BYTES: usize = 64;

#[derive(Clone, Copy)]
enum Answer {
    Ok,
    Count,
    /// Whether it was done.
    Done,
    /// As many as there were commands.
    Oks(usize),
}

/// Their keys and values.
enum BulkWords {
    Pairs(Arc<OwnedArgs>),
    /// All of them new.
    NewPairs(Arc<OwnedArgs>),
    Keys(Arc<OwnedArgs>),
    Sets(Queue),
}

impl Words for BulkWords {
    fn len(&self) -> usize {
        match self {
            BulkWords::Pairs(words) | BulkWords::NewPairs(words) => words.len() / 2,
            BulkWords::Keys(words) => words.len() - 1,
            BulkWords::Sets(sets) => sets.len(),
        }
    }

    fn key(&self, i: usize) -> &[u8] {
        match self {
            BulkWords::Pairs(words) | BulkWords::NewPairs(words) => words.args().at(1 + 2 * i),
            BulkWords::Keys(words) => words.args().at(1 + i),
            BulkWords::Sets(sets) => sets.at(i).1.at(1),
        }
    }

    fn only_new(&self) -> bool {
        matches!(self, BulkWords::NewPairs(_))
    }

    fn prefetch(&self, keys: &[(u64, u32)], step: usize) {
        let (words, width) = match self {
            BulkWords::Pairs(words) | BulkWords::NewPairs(words) => (words.args(), 2),
            BulkWords::Keys(words) => (words.args(), 1),
            BulkWords::Sets(sets) => {
                let keys = keys.iter().map(|(_, i)| *i as usize).filter(|i| *i < sets.len());
                return keys.for_each(|i| sets.prefetch(i, step));
            }
        };
        let places = keys.iter().map(|(_, i)| 1 + width * *i as usize);
        match step {
            1 => places.for_each(|at| words.prefetch_place(at)),
            2 if width == 2 => places.for_each(|at| {
                words.prefetch_word(at);
                words.prefetch_word_end(at + 1);
            }),
            2 => places.for_each(|at| words.prefetch_word(at)),
            _ => {}
        }
    }

    fn value(&self, i: usize) -> Option<&[u8]> {
        match self {
            BulkWords::Pairs(words) | BulkWords::NewPairs(words) => Some(words.args().at(2 + 2 * i)),
            BulkWords::Keys(_) => None,
            BulkWords::Sets(sets) => Some(sets.at(i).1.at(2)),
        }
    }
}

impl BulkJob {
    fn start(
        server: &Arc<Server>,
        local: &mut Local,
        session: &Session,
        words: BulkWords,
        answer: Answer,
        out: &mut Reply,
    ) -> Flow {
        let mut holding = Holding::default();
        if holding.set(&server.memory.work, (words.len() * INTENT_BYTES) as u64).is_err() {
            out.error(&Error::work_memory().text());
            discard(words);
            return Flow::Done;
        }
        let job = Box::new(BulkJob {
            client: session.id,
            db: session.db,
            words: Arc::new(words),
            races: Races::new(),
            answer,
            resp3: out.resp3(),
            loop_id: local.id,
            spent: Spent::default(),
            place: None,
            _holding: holding,
        });
        local.away = true;
        go_on(server, local, job);
        Flow::Parked(None)
    }

    /// What it is.
    fn command(&self) -> &'static str {
        match *self.words {
            BulkWords::Pairs(_) => "mset",
            BulkWords::NewPairs(_) => "msetnx",
            BulkWords::Keys(_) => "del",
            BulkWords::Sets(_) => "exec",
        }
    }

    pub(crate) fn kind(&self) -> u64 {
        lines::kind(self.command().as_bytes(), self.db, Some(self.words.key(0)))
    }

    pub(crate) fn who(&self) -> (u64, &'static str, usize) {
        (self.client, self.command(), self.loop_id)
    }

    /// A commit of it; again after each lost race.
    pub(crate) fn commit(&mut self, keyspace: &Arc<Keyspace>) -> Box<Commit> {
        let announce = keyspace.sink().map(|_| self.announce(keyspace));
        Box::new(Commit::bulk(keyspace, self.db, self.words.clone(), self.races.age, announce))
    }

    fn announce(&self, keyspace: &Arc<Keyspace>) -> Announce {
        let (keyspace, db, words) = (keyspace.clone(), self.db, self.words.clone());
        Box::new(move |lsn| {
            let Some(sink) = keyspace.sink() else { return };
            match &*words {
                BulkWords::Pairs(words) | BulkWords::NewPairs(words) | BulkWords::Keys(words) => {
                    sink.effect(lsn, db, &mut words.args().iter());
                }
                BulkWords::Sets(sets) => {
                    sets.iter().for_each(|(_, args)| sink.effect(lsn, db, &mut args.iter()));
                }
            }
        })
    }

    pub(crate) fn lose(&mut self, server: &Server, commit: &Commit, now_ms: u64) {
        self.races.remember(|| commit.hashes());
        let ns = stdx::clock::mono_ns().saturating_sub(self.races.age);
        self.races.lose_to(server, commit.lost_to(), ns);
        self.races.lose(&server.keyspace, self.client, now_ms, ns);
    }

    /// It is committed, and found so many keys; None: it was refused.
    pub(crate) fn deliver(
        mut self: Box<Self>,
        server: &Server,
        local: &Local,
        found: Option<usize>,
    ) -> Delivery {
        let (done, found) = (found.is_some(), found.unwrap_or(0));
        self.place = None;
        self.races.end();
        let mut out = Reply::new(self.resp3);
        let mut stream: Option<Box<dyn Stream>> = None;
        match self.answer {
            Answer::Ok => out.ok(),
            Answer::Count => out.int(found as i64),
            Answer::Done => out.int(done.into()),
            Answer::Oks(n) => {
                out.array(n);
                stream = Some(Box::new(Oks(n)));
                // They ran as one: each is said to have taken its share.
                let mut tally = Tally::default();
                let each_ns = stdx::clock::mono_ns().saturating_sub(self.races.age) / n.max(1) as u64;
                if let Some(set) = command::registry::find(b"set") {
                    tally.add_many(places::of(set), n as u64, each_ns);
                }
                local.count_within(server, &mut tally, self.client);
            }
        }
        let spent = Some(Box::new(self.races.told(self.spent)));
        let delivery =
            Delivery { client: self.client, bytes: out.into_bytes(), stream, spent, selected: None };
        discard(self);
        delivery
    }
}

/// So many times OK.
struct Oks(usize);

impl Stream for Oks {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let count = self.0.min(room / 5 + 1);
        (0..count).for_each(|_| out.ok());
        self.0 -= count;
        self.0 > 0
    }
}

/// Runs a command of many words as a bulk if it is of that kind.
pub(crate) fn start(
    server: &Arc<Server>,
    local: &mut Local,
    session: &Session,
    command: &Command,
    args: resp::Args<'_>,
    out: &mut Reply,
) -> Option<Flow> {
    let answer = match command.name {
        // An odd number of words is an error that the handler knows to tell.
        "mset" if args.len() % 2 == 1 => Answer::Ok,
        "msetnx" if args.len() % 2 == 1 => Answer::Done,
        "del" | "unlink" => Answer::Count,
        _ => return None,
    };
    let words = local.incoming.clone().unwrap_or_else(|| Arc::new(args.to_owned()));
    let words = match answer {
        Answer::Ok => BulkWords::Pairs(words),
        Answer::Done => BulkWords::NewPairs(words),
        _ => BulkWords::Keys(words),
    };
    Some(BulkJob::start(server, local, session, words, answer, out))
}

/// The same for the queue of an EXEC, if it is a bulk. Cost: O(1).
pub(crate) fn start_exec(
    server: &Arc<Server>,
    local: &mut Local,
    session: &Session,
    queue: Queue,
    out: &mut Reply,
) -> Flow {
    let answer = Answer::Oks(queue.len());
    BulkJob::start(server, local, session, BulkWords::Sets(queue), answer, out)
}

/// Has it committed, unless it has to wait in a line.
pub(crate) fn go_on(server: &Arc<Server>, local: &mut Local, job: Box<BulkJob>) {
    // From here on it is another's, and its client waits for it.
    stdx::panics::changes();
    let lost = job.races.lost > 0;
    if let Some(Write::Bulk(mut job)) = lines::stand(server, Write::Bulk(job), lost) {
        job.spent.got_place();
        local.works.push(Work::Bulk(None, job));
    }
}

/// Whether the commands of an EXEC can be a bulk: plain SETs, and nothing is watched.
pub(crate) fn is_bulk(session: &Session, queue: &Queue) -> bool {
    session.watch.len() == 0 && queue.is_sets()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Write;
    use crate::mail::Mail;
    use crate::works;

    fn mset(client: u64, key: &[u8], lost: u32) -> Box<BulkJob> {
        let words = OwnedArgs::from_slices(&[b"MSET", key, b"value"]);
        let mut races = Races::new();
        races.lost = lost;
        Box::new(BulkJob {
            client,
            db: 0,
            words: Arc::new(BulkWords::Pairs(Arc::new(words))),
            races,
            answer: Answer::Ok,
            resp3: false,
            loop_id: 0,
            spent: Spent::default(),
            place: None,
            _holding: Holding::default(),
        })
    }

    /// Who is answered when there is nothing left to do. In no order: works take turns by the clock.
    fn answered(server: &Arc<Server>, local: &mut Local) -> Vec<u64> {
        let mut done = Vec::new();
        while local.works.any() {
            works::advance(server, local, &mut done);
        }
        let mut clients: Vec<u64> = done.iter().map(|delivery| delivery.client).collect();
        clients.sort_unstable();
        clients
    }

    #[test]
    fn bulks_that_lost_go_one_after_the_other() {
        let server = Server::start(Arc::default(), 1).unwrap();
        let mut local = Local::new(0, &server);
        // Where nobody has lost there is no line.
        go_on(&server, &mut local, mset(1, b"a", 0));
        go_on(&server, &mut local, mset(2, b"a", 0));
        assert_eq!((local.works.load().0, server.lines.waiting()), (2, 0));
        assert_eq!(answered(&server, &mut local), [1, 2]);
        // The first has lost: who comes after it waits, and so does another that lost; one of another key does not.
        go_on(&server, &mut local, mset(3, b"a", 1));
        go_on(&server, &mut local, mset(4, b"a", 0));
        go_on(&server, &mut local, mset(5, b"a", 1));
        go_on(&server, &mut local, mset(6, b"b", 0));
        assert_eq!((local.works.load().0, server.lines.waiting()), (2, 2));
        assert_eq!(answered(&server, &mut local), [3, 6]);
        for next in [4, 5] {
            let mut letters = Vec::new();
            server.mailbox(0).drain(&mut letters);
            let Some(Mail::First(write)) = letters.pop() else { panic!("nobody is first") };
            assert!(matches!(&write, Write::Bulk(job) if job.client == next && job.spent.line.is_some()));
            works::start_first(&server, &mut local, write);
            assert_eq!(answered(&server, &mut local), [next]);
        }
        // It ended with the last.
        assert_eq!(server.lines.waiting(), 0);
        go_on(&server, &mut local, mset(7, b"a", 0));
        go_on(&server, &mut local, mset(8, b"a", 0));
        assert_eq!(answered(&server, &mut local), [7, 8]);
    }
    /// One that never ends would be first for ever.
    #[test]
    fn who_was_first_for_long_is_passed() {
        let server = Server::start(Arc::default(), 1).unwrap();
        let mut local = Local::new(0, &server);
        go_on(&server, &mut local, mset(1, b"a", 1));
        go_on(&server, &mut local, mset(2, b"a", 0));
        go_on(&server, &mut local, mset(3, b"a", 0));
        let next = |server: &Arc<Server>| {
            let mut letters = Vec::new();
            server.mailbox(0).drain(&mut letters);
            let write = letters.pop().map(|letter| match letter {
                Mail::First(write) => write,
                _ => panic!("nobody is first"),
            });
            assert!(letters.is_empty());
            write
        };
        let now_ns = stdx::clock::mono_ns();
        lines::tend(&server, now_ns + 1_000_000_000);
        assert!(next(&server).is_none());
        lines::tend(&server, now_ns + 6_000_000_000);
        let second = next(&server).expect("the second is first");
        works::start_first(&server, &mut local, second);
        // Its end is that of the second's place, not the first's: the third goes on once.
        assert_eq!(answered(&server, &mut local), [1, 2]);
        let third = next(&server).expect("the third is first");
        works::start_first(&server, &mut local, third);
        assert_eq!(answered(&server, &mut local), [3]);
        assert!(next(&server).is_none() && server.lines.waiting() == 0);
    }
}
