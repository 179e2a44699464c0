//! Deeds: the effects of a script or transaction besides its writes, in the order of its commands. The
//! client's loop does them once it is committed (exec, `deeds.rs`).

use super::*;
use stdx::budget::Share;

/// Largest number of deeds without an answer that are done with the commit.
const FEW: usize = 32;

/// A script or transaction that is committed, and has deeds to do.
pub struct Committed {
    pub run: ScriptRun,
    /// The reply without the answers of the deeds.
    pub reply: Vec<u8>,
    pub told: Told,
    pub spent: Option<Box<Spent>>,
    /// The reply's share of `work-max-memory`.
    pub share: Option<Share>,
}

/// A letter of scripts to a loop.
pub enum Letter {
    /// A script's thread asks for an action.
    Errand(Box<Errand>),
    /// A committed script or transaction has deeds to do.
    Deeds(Box<Committed>),
    /// Keys that a client's script has read at an LSN, or later.
    Reads(u64, Reads, keyspace::Lsn),
}

/// One effect of a script or transaction besides its writes.
pub enum Deed {
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

/// Does the deeds of a script if they are few. False: they have to be done in slices.
pub fn do_few(scripts: &Scripts, told: &mut Told) -> bool {
    let few = told.deeds.len() <= FEW && !told.deeds.iter().any(|deed| matches!(deed, Deed::Act { .. }));
    if few {
        told.deeds.drain(..).for_each(|deed| say(scripts, deed));
    }
    few
}

/// Publishes, or writes into the log.
pub fn say(scripts: &Scripts, deed: Deed) {
    match deed {
        Deed::Log(level, message) => write_log(level, &message),
        Deed::Show(line) => scripts.pubsub.monitor(line, 0),
        Deed::Keep(kept) => scripts.code.take_over(kept),
        Deed::Publish(shard, channel, message) => {
            scripts.pubsub.tell_followers(shard, &channel, &message);
            let message = || pubsub::Shared::Own((&*message).into());
            scripts.pubsub.announce(shard, &channel, message);
        }
        // Its transaction does it.
        Deed::Act { .. } => {}
    }
}
