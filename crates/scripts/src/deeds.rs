//! Deeds: a script or transaction does them besides its writes, in the order of its commands. Its client's
//! loop does them once it is committed (exec, `deeds.rs`).

use super::*;
use stdx::budget::Share;

/// So many deeds that answer nothing are done with the commit.
const FEW: usize = 32;

/// A script or transaction that is committed, and has deeds to do.
pub struct Committed {
    pub run: ScriptRun,
    /// The reply without the answers of the deeds.
    pub reply: Vec<u8>,
    pub told: Told,
    pub spent: Option<Box<Spent>>,
    /// The reply's part of `work-max-memory`.
    pub share: Option<Share>,
}

/// A letter of scripts to a loop.
pub enum Letter {
    /// A script's thread has something performed.
    Errand(Box<Errand>),
    /// Something committed has deeds to do.
    Deeds(Box<Committed>),
    /// Keys that a client's script has read at an LSN, or later.
    Reads(u64, Reads, keyspace::Lsn),
}

/// One thing that a script or transaction does besides its writes.
pub enum Deed {
    /// To a channel of shards or not.
    Publish(bool, Vec<u8>, Vec<u8>),
    Log(i32, Vec<u8>),
    /// Scripts of a draft become known.
    Keep(Vec<(Sha, Arc<Kept>)>),
    /// A command of the transaction, in this database: its answer belongs at that place of the reply.
    Act {
        at: usize,
        index: usize,
        db: usize,
    },
}

/// Does the deeds of a script if they are few; false if they have to be done in slices.
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
