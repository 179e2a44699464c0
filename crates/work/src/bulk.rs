//! Commands that set or remove many keys whatever those hold: MSET, MSETNX, DEL, UNLINK, or an EXEC of plain
//! SETs. They need no worker: the loop commits them in slices straight from their words.
//!
//! Cost: O(keys), in slices; nothing is copied.

use crate::attempt::{Attempt, End, Long};
use crate::job::discard;
use crate::lines;
use crate::piece::{Delivery, Desk, Step};
use crate::queue::Queue;
use crate::snapshots::{Asker, Class};
use command::places;
use command::{Command, Stream};
use keyspace::{Announce, Commit, EffectVisitor, Effects, Progress, Snapshot, Words};
use observe::hotkeys::KEPT_APART;
use observe::tally::{Tally, Thresholds};
use observe::waits::Spent;
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use stdx::budget::Full;

/// See the module.
pub struct BulkJob {
    pub attempt: Attempt,
    db: usize,
    words: Arc<BulkWords>,
    answer: Answer,
    resp3: bool,
    /// The number of its keys that were there, once it is committed. `None`: it was refused.
    found: Option<usize>,
}

/// Bytes of an `+OK`, with its line's end.
const OK_BYTES: usize = 5;

/// Bytes that a commit keeps of a key besides its words.
const INTENT_BYTES: usize = 64;

#[derive(Clone, Copy)]
pub enum Answer {
    Ok,
    Count,
    /// Whether it was done.
    Done,
    /// As many as there were commands.
    Oks(usize),
}

/// Their keys and values.
pub enum BulkWords {
    Pairs(Arc<OwnedArgs>),
    /// Keys and values, all keys new.
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

/// The effects of a bulk, for the log and replicas.
struct BulkEffects {
    db: u32,
    words: Arc<BulkWords>,
}

impl Effects for BulkEffects {
    fn each(&self, visit: &mut EffectVisitor<'_>) {
        match &*self.words {
            BulkWords::Pairs(words) | BulkWords::NewPairs(words) | BulkWords::Keys(words) => {
                visit(Some(self.db), &mut words.args().iter());
            }
            BulkWords::Sets(sets) => {
                sets.iter().for_each(|(_, args)| visit(Some(self.db), &mut args.iter()));
            }
        }
    }

    fn bytes(&self) -> usize {
        match &*self.words {
            BulkWords::Pairs(words) | BulkWords::NewPairs(words) | BulkWords::Keys(words) => {
                words.args().bytes()
            }
            BulkWords::Sets(sets) => sets.iter().map(|(_, args)| args.bytes()).sum(),
        }
    }
}

impl BulkWords {
    /// The name of its command.
    pub fn command(&self) -> &'static str {
        match self {
            BulkWords::Pairs(_) => "mset",
            BulkWords::NewPairs(_) => "msetnx",
            BulkWords::Keys(_) => "del",
            BulkWords::Sets(_) => "exec",
        }
    }
}

/// The kind of answer to a command of many words. `None`: it is no bulk.
pub fn answer(command: &Command, args: Args<'_>) -> Option<Answer> {
    match command.name {
        // An odd number of words is an error, which the handler reports.
        "mset" if args.len() % 2 == 1 => Some(Answer::Ok),
        "msetnx" if args.len() % 2 == 1 => Some(Answer::Done),
        "del" | "unlink" => Some(Answer::Count),
        _ => None,
    }
}

impl Answer {
    /// The keys and values in the words of its command.
    pub fn words(self, words: Arc<OwnedArgs>) -> BulkWords {
        match self {
            Answer::Ok => BulkWords::Pairs(words),
            Answer::Done => BulkWords::NewPairs(words),
            _ => BulkWords::Keys(words),
        }
    }
}

/// The queue of an EXEC as a bulk ([`is_bulk`]), and its answer. Cost: O(1).
pub fn of_exec(queue: Queue) -> (BulkWords, Answer) {
    let answer = Answer::Oks(queue.len());
    (BulkWords::Sets(queue), answer)
}

impl BulkJob {
    /// A bulk that has not begun. Errors: `Full`, the budget has no memory for it.
    pub fn new(
        mut attempt: Attempt,
        db: usize,
        (words, answer): (BulkWords, Answer),
        resp3: bool,
    ) -> Result<Box<BulkJob>, Full> {
        if let Err(full) = attempt.holding.set(&attempt.budget, (words.len() * INTENT_BYTES) as u64) {
            discard(words);
            return Err(full);
        }
        Ok(Box::new(BulkJob { attempt, db, words: Arc::new(words), answer, resp3, found: None }))
    }

    /// A reply to so many SETs. They ran as one, so each counts with an equal share of the time.
    fn oks(&self, n: usize, desk: &mut Desk<'_>) -> Box<dyn Stream> {
        let mut tally = Tally::default();
        let each_ns = self.took_ns() / n.max(1) as u64;
        if let Some(set) = command::registry::find(b"set") {
            tally.add_many(places::of(set), n as u64, each_ns);
        }
        tally.notes_from(Thresholds::of_hotkeys(&desk.work.observe.stats.hotkeys));
        if let BulkWords::Sets(sets) = &*self.words {
            // A slice has no time for more keys than a run keeps.
            for (command, args) in (0..n.min(KEPT_APART)).map(|i| sets.at(i)) {
                tally.queued(command, args, each_ns, OK_BYTES);
            }
        }
        desk.count(self.attempt.who.client, tally);
        Box::new(Oks(n))
    }
}

impl Long for BulkJob {
    fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    fn attempt_mut(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    fn kind(&self) -> Option<u64> {
        Some(lines::kind(self.attempt.who.command.as_bytes(), self.db, Some(self.words.key(0))))
    }

    fn reads(&self) -> bool {
        false
    }

    fn asks(&self) -> Asker {
        self.attempt.asks(Class::Job, false, Vec::new())
    }

    fn begin(&mut self, _: Snapshot, _: &mut Desk<'_>) {}

    fn go(self: Box<Self>, _: &mut Desk<'_>) {}

    fn fail(&mut self) {}

    fn end(&mut self, _: &Desk<'_>) -> End {
        End::Done
    }

    fn changes(&self) -> bool {
        true
    }

    /// The commit drops them if nobody listens.
    fn announce(&mut self, _: &Desk<'_>) -> Announce {
        Some(Arc::new(BulkEffects { db: self.db as u32, words: self.words.clone() }))
    }

    /// A new commit after each lost race.
    fn commit(&mut self, desk: &Desk<'_>) -> Option<Box<Commit>> {
        let announce = self.announce(desk);
        let (words, age) = (self.words.clone(), self.attempt.races.age);
        Some(Box::new(Commit::bulk(&desk.work.keyspace, self.db, words, age, announce)))
    }

    fn committed(&mut self, commit: &Commit, progress: &Progress) {
        match progress {
            Progress::Lost if commit.is_refused() => {}
            Progress::Lost => self.attempt.races.remember(|| commit.hashes()),
            _ => self.found = Some(commit.found()),
        }
    }

    fn took_ns(&self) -> u64 {
        stdx::clock::mono_ns().saturating_sub(self.attempt.races.age)
    }

    fn forget(&mut self) {}

    fn answers(&mut self, _: impl FnOnce(&mut Reply)) {}

    fn reply(self: Box<Self>, spent: Box<Spent>, desk: &mut Desk<'_>) -> Option<Delivery> {
        let mut out = Reply::new(self.resp3);
        let mut stream = None;
        match self.answer {
            Answer::Ok => out.ok(),
            Answer::Count => out.int(self.found.unwrap_or(0) as i64),
            Answer::Done => out.int(self.found.is_some().into()),
            Answer::Oks(n) => {
                out.array(n);
                stream = Some(self.oks(n, desk));
            }
        }
        let delivery = self.attempt.delivery((out.into_bytes(), stream), spent);
        discard(self);
        Some(delivery)
    }

    fn end_useless(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        crate::attempt::deliver(self, desk)
    }
}

/// OK, so many times.
struct Oks(usize);

impl Stream for Oks {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let count = self.0.min(room / 5 + 1);
        (0..count).for_each(|_| out.ok());
        self.0 -= count;
        self.0 > 0
    }
}

/// Whether the commands of an EXEC can be a bulk: plain SETs, and nothing is watched.
pub fn is_bulk(watched: usize, queue: &Queue) -> bool {
    watched == 0 && queue.is_sets()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::piece::{Letter, Who};
    use crate::testing::Loop;
    use observe::ClientInfo;

    fn mset(client: u64, key: &[u8], lost: u32) -> Box<BulkJob> {
        let words = OwnedArgs::from_slices(&[b"MSET", key, b"value"]);
        let info = Arc::new(ClientInfo::new(client, 0, String::new(), String::new(), 0, false, 0));
        let who = Who { client, command: "mset", loop_id: 0 };
        let mut attempt = Attempt::new(who, info, None, Arc::default());
        attempt.races.lost = lost;
        let what = (BulkWords::Pairs(Arc::new(words)), Answer::Ok);
        BulkJob::new(attempt, 0, what, false).expect("there is room")
    }

    #[test]
    fn bulks_that_lost_go_one_after_the_other() {
        let mut its = Loop::new();
        // Where nobody has lost there is no line.
        its.begin(mset(1, b"a", 0));
        its.begin(mset(2, b"a", 0));
        assert_eq!((its.pieces(), its.work.lines.waiting()), (2, 0));
        assert_eq!(its.answered(), [1, 2]);
        // The first has lost: who comes after it waits, and so does another that lost; one of another key
        // does not.
        its.begin(mset(3, b"a", 1));
        its.begin(mset(4, b"a", 0));
        its.begin(mset(5, b"a", 1));
        its.begin(mset(6, b"b", 0));
        assert_eq!((its.pieces(), its.work.lines.waiting()), (2, 2));
        assert_eq!(its.answered(), [3, 6]);
        for next in [4, 5] {
            let Some(Letter::First(mut first)) = its.letters().pop() else { panic!("nobody is first") };
            assert!(first.who().client == next && first.spent().unwrap().line.is_some());
            its.begin(first);
            assert_eq!(its.answered(), [next]);
        }
        // It ended with the last.
        assert_eq!(its.work.lines.waiting(), 0);
        its.begin(mset(7, b"a", 0));
        its.begin(mset(8, b"a", 0));
        assert_eq!(its.answered(), [7, 8]);
    }

    /// One that never ends would be first for ever.
    #[test]
    fn who_was_first_for_long_is_passed() {
        let mut its = Loop::new();
        let began_ns = stdx::clock::mono_ns();
        its.begin(mset(1, b"a", 1));
        its.begin(mset(2, b"a", 0));
        its.begin(mset(3, b"a", 0));
        let next = |its: &Loop| {
            let mut letters = its.letters();
            let write = letters.pop().map(|letter| match letter {
                Letter::First(first) => first,
                _ => panic!("nobody is first"),
            });
            assert!(letters.is_empty());
            write
        };
        its.work.lines.tend(began_ns + 1_000_000_000);
        assert!(next(&its).is_none());
        its.work.lines.tend(stdx::clock::mono_ns() + 6_000_000_000);
        let second = next(&its).expect("the second is first");
        its.begin(second);
        // Its end is that of the second's place, not the first's: the third goes on once.
        assert_eq!(its.answered(), [1, 2]);
        let third = next(&its).expect("the third is first");
        its.begin(third);
        assert_eq!(its.answered(), [3]);
        assert!(next(&its).is_none() && its.work.lines.waiting() == 0);
    }
}
