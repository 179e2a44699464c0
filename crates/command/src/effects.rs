//! What a command changed, told to those that follow the sequence.

use crate::{Command, Effect};
use keyspace::{At, EffectVisitor, Keyspace, View};
use resp::{Args, OwnedArgs};
use std::borrow::Borrow;

/// Hands a write's effect to those that follow the sequence; the locks are still held. O(its words), nothing if nobody follows.
pub fn log(keyspace: &Keyspace, command: &Command, args: Args<'_>, effects: &[OwnedArgs], view: &View<'_>) {
    let lsn = view.changes().lsn;
    if !view.is_told() || !command.is_write() || view.changes().dirty == 0 {
        return;
    }
    if command.effect == Effect::Itself && effects.is_empty() {
        return keyspace.tell(At::db(lsn, view.db()), &mut args.iter());
    }
    for effect in effects {
        keyspace.tell(At::db(lsn, view.db()), &mut effect.args().iter());
    }
}

/// The effects of a job or a script, in their order, with their databases.
pub struct List<W>(pub Vec<(u32, W)>);

impl<W: Borrow<OwnedArgs> + Send + Sync> keyspace::Effects for List<W> {
    fn each(&self, visit: &mut EffectVisitor<'_>) {
        self.0.iter().for_each(|(db, words)| visit(Some(*db), &mut words.borrow().args().iter()));
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(_, words)| words.borrow().args().bytes()).sum()
    }
}
