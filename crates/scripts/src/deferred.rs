//! Deferred effects: those of a script or transaction besides its writes, in the order of its commands. The
//! client's loop does them once it is committed (exec, `deferred.rs`).

use super::*;
use command::Stream;
use stdx::budget::Share;
use work::piece::Delivery;

/// Largest number of deferred effects without an answer that are done with the commit.
const FEW: usize = 32;

/// A script or transaction that is committed, and has deferred effects to do.
pub struct Committed {
    pub run: ScriptRun,
    /// The reply without the answers of the deferred effects.
    pub reply: Vec<u8>,
    pub told: Told,
    pub spent: Option<Box<Spent>>,
    /// The reply's share of `work-max-memory`.
    pub share: Option<Share>,
}

/// A letter of scripts to a loop.
pub enum Letter {
    /// A script's thread asks for an action.
    Request(Box<Request>),
    /// A committed script or transaction has deferred effects to do.
    Deferred(Box<Committed>),
    /// Keys that a client's script has read at an LSN, or later.
    Reads(u64, Reads, keyspace::Lsn),
}

/// One effect of a script or transaction besides its writes.
pub enum DeferredEffect {
    /// A message: whether its channel is one of shards, the channel, and the text.
    Publish(bool, Vec<u8>, Vec<u8>),
    Log(i32, Vec<u8>),
    /// A line for monitors.
    Show(Vec<u8>),
    /// Scripts of a draft become known.
    Keep(Vec<(Sha, Arc<Kept>)>),
    /// A command of the transaction, in this database. Its answer belongs at that place of the reply.
    Act {
        at: usize,
        index: usize,
        db: usize,
    },
}

/// Does the deferred effects of a script if they are few. False: they have to be done in slices.
pub fn do_few(scripts: &Scripts, told: &mut Told) -> bool {
    let few = told.deferred.len() <= FEW
        && !told.deferred.iter().any(|effect| matches!(effect, DeferredEffect::Act { .. }));
    if few {
        told.deferred.drain(..).for_each(|effect| say(scripts, effect));
    }
    few
}

/// Publishes, or writes into the log.
pub fn say(scripts: &Scripts, effect: DeferredEffect) {
    match effect {
        DeferredEffect::Log(level, message) => write_log(level, &message),
        DeferredEffect::Show(line) => scripts.pubsub.monitor(line, 0),
        DeferredEffect::Keep(kept) => scripts.code.take_over(kept),
        DeferredEffect::Publish(shard, channel, message) => {
            scripts.pubsub.tell_followers(shard, &channel, &message);
            let message = || pubsub::Shared::Own((&*message).into());
            scripts.pubsub.announce(shard, &channel, message);
        }
        // Its transaction does it.
        DeferredEffect::Act { .. } => {}
    }
}

/// Bytes of a reply that are put together in one slice.
const JOINED: usize = 16 * 1024;

/// The deferred effects of a committed script or transaction that are still to be done, and its reply.
pub struct Deferred {
    pub run: ScriptRun,
    left: std::vec::IntoIter<DeferredEffect>,
    pub doing: Option<Doing>,
    /// The reply without the deferred effects' answers, and those answers.
    reply: Vec<u8>,
    answers: Answers,
    /// EXEC: the database that its client is left in.
    pub selected: Option<usize>,
    spent: Option<Box<Spent>>,
    /// The reply's part of `work-max-memory`.
    share: Option<Share>,
    /// The connection closes after the reply.
    pub closes: bool,
    /// The milliseconds for which the reply is held back once all is done.
    pub sleep_ms: u64,
    /// The reply is being held back, for so many milliseconds.
    pub sleeps: Option<u64>,
}

/// A deferred effect under way, and its answer so far.
pub struct Doing {
    /// The place of the answer in the reply.
    pub at: usize,
    /// The number of its command in the transaction.
    pub index: usize,
    pub db: usize,
    pub out: Reply,
    pub stream: Option<Box<dyn Stream>>,
    /// When it began (monotonic clock).
    pub began_ns: u64,
}

impl Doing {
    /// Writes the next bytes of an answer that comes in pieces. False: it is complete.
    pub fn fill(&mut self) -> bool {
        self.stream.as_mut().is_some_and(|stream| stream.fill(&mut self.out, JOINED))
    }
}

impl Deferred {
    /// `before`: the bytes of other replies that stood before this one. Cost: O(deferred effects).
    pub fn new(committed: Committed, before: usize) -> Box<Deferred> {
        let Committed { run, reply, told, spent, share } = committed;
        let mut deferred = told.deferred;
        for effect in deferred.iter_mut().filter(|_| before > 0) {
            if let DeferredEffect::Act { at, .. } = effect {
                *at -= before;
            }
        }
        let answers = Answers::with_capacity(deferred.len());
        let (left, selected) = (deferred.into_iter(), told.selected);
        Box::new(Deferred {
            run,
            left,
            doing: None,
            reply,
            answers,
            selected,
            spent,
            share,
            closes: false,
            sleep_ms: 0,
            sleeps: None,
        })
    }

    pub fn client(&self) -> u64 {
        self.run.client
    }

    /// The next deferred effect. None: all are done.
    pub fn pop(&mut self) -> Option<DeferredEffect> {
        self.left.next()
    }

    /// Takes an answer that came by mail.
    pub fn answered(&mut self, bytes: &[u8], stream: Option<Box<dyn Stream>>) {
        if let Some(doing) = &mut self.doing {
            doing.out.encoded(bytes);
            // An empty stream says that the answer is complete.
            doing.stream = Some(stream.unwrap_or_else(|| Box::new(Nothing)));
        }
    }

    /// Keeps the answer of a deferred effect that is done.
    pub fn add(&mut self, doing: Doing) {
        self.answers.add(doing.at, doing.out.into_bytes());
    }

    /// Makes the reply, once all deferred effects are done. Cost: O(1), some 16 KB; the rest streams.
    pub fn deliver(self: Box<Self>, resp3: bool) -> Delivery {
        let Deferred { run, reply, answers, selected, spent, share, .. } = *self;
        let (client, mut out) = (run.client, Reply::new(resp3));
        work::job::discard(run);
        let mut spliced = Spliced::new(reply, answers, share);
        let (bytes, stream): (_, Option<Box<dyn Stream>>) = match spliced.is_whole() {
            true => (spliced.take(), None),
            false => {
                let more = spliced.fill(&mut out, JOINED);
                (out.into_bytes(), if more { Some(Box::new(spliced)) } else { None })
            }
        };
        Delivery { client, bytes, stream, spent, selected }
    }
}

/// A stream without bytes.
struct Nothing;

impl Stream for Nothing {
    fn fill(&mut self, _: &mut Reply, _: usize) -> bool {
        false
    }
}
