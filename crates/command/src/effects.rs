//! Tells the log and replicas of a command's changes.

use crate::{Command, Effect, facts};
use keyspace::{At, EffectVisitor, Keyspace, Overlay, View};
use resp::{Args, OwnedArgs};
use std::borrow::Borrow;

/// A command that ran among others, or alone.
pub struct Ran<'a> {
    pub command: &'static Command,
    pub args: Args<'a>,
    /// Commands it noted.
    pub effects: &'a [OwnedArgs],
    /// [`Changes::made`] of the view before it ran.
    ///
    /// [`Changes::made`]: keyspace::Changes::made
    pub before: u64,
    pub failed: bool,
}

/// Hands a write's effect to the sink; the locks are still held. A command that changed nothing is not told,
/// unless it empties databases. O(its words), or nothing if no sink listens.
pub fn log(keyspace: &Keyspace, view: &View<'_>, ran: Ran<'_>) {
    let Ran { command, args, effects, before, failed } = ran;
    let (lsn, changed) = (view.changes().lsn, view.changes().made() > before);
    if !view.is_told() || !command.is_write() {
        return;
    }
    if !changed && (failed || !command.is(facts::FLUSHES)) {
        return;
    }
    let at = At::db(lsn, view.db());
    if is_itself(command, effects.len(), view.is_hidden()) {
        // Clients may call it by another name. A subcommand's own name is its second word.
        let name = command.name.split('|').next().unwrap_or(command.name);
        let words = std::iter::once(name.as_bytes()).chain(args.iter().skip(1));
        return keyspace.tell(at, &mut { words });
    }
    for effect in effects {
        keyspace.tell(at, &mut effect.args().iter());
    }
}

/// Whether a command that changed something is told by its own words, after it noted so many commands.
/// `hidden` means a database whose effects are not told.
pub fn is_itself(command: &Command, noted: usize, hidden: bool) -> bool {
    debug_assert!(
        noted > 0 || hidden || command.effect == Effect::Itself,
        "{} changed something and noted nothing",
        command.name
    );
    noted == 0 && command.effect == Effect::Itself
}

/// The words that are told before the effects of a command over an overlay: keys that the run wrote with a
/// time that has passed, and that it found absent since, are gone. O(those keys), mostly none.
pub fn passed(overlay: &mut Overlay, databases: usize) -> impl Iterator<Item = (u32, OwnedArgs)> {
    let visible = overlay.take_passed().into_iter().filter(move |(db, _)| *db < databases);
    visible.map(|(db, key)| (db as u32, OwnedArgs::from_slices(&[b"DEL", &key])))
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
