//! What a command changed, told to those that follow the sequence.

use crate::{Command, Effect};
use keyspace::{Keyspace, View};
use resp::{Args, OwnedArgs};

/// Hands a write's effect to those that follow the sequence; the locks are still held. O(its words), nothing if nobody follows.
pub fn log(keyspace: &Keyspace, command: &Command, args: Args<'_>, effects: &[OwnedArgs], view: &View<'_>) {
    let (Some(sink), lsn) = (keyspace.sink(), view.changes().lsn) else { return };
    if lsn == 0 || !command.is_write() || view.changes().dirty == 0 {
        return;
    }
    if command.effect == Effect::Itself && effects.is_empty() {
        return sink.effect(lsn, view.db(), &mut args.iter());
    }
    for effect in effects {
        sink.effect(lsn, view.db(), &mut effect.args().iter());
    }
}
