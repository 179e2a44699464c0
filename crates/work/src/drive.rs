//! The way in which a loop drives its long work (`works.rs`): pieces do slices, their changes are told, and
//! finished replies are delivered.

use crate::piece::{Delivery, Desk, Letter, Piece, Step, Tray, Wait};
use crate::works::{SLICE_NS, Work, Works};
use keyspace::Changes;
use observe::TurnLog;
use observe::waits::{self, Part};
use std::any::Any;
use std::sync::Arc;
use stdx::points;

/// A loop, as the long work it drives knows it.
pub trait Home {
    /// Its own work.
    fn works(&mut self) -> &mut Works;

    /// Its clocks, its turn, its counters.
    fn log(&mut self) -> &mut TurnLog;

    /// The loop itself, for kinds that know it.
    fn itself(&mut self) -> &mut dyn Any;

    /// Tells of changes (exec X3).
    fn tell(&mut self, changes: Changes);

    /// Parks the client of a job that found nothing.
    fn wait(&mut self, wait: Box<Wait>);

    /// Closes a client.
    fn kill(&mut self, client: u64);
}

/// Does a slice of the loop's work. Replies that became ready go to `done`.
pub fn advance(work: &Arc<Work>, home: &mut impl Home, done: &mut Vec<Delivery>) {
    let until = home.log().lap() + SLICE_NS;
    while let Some(piece) = home.works().pop() {
        if points::any_armed() && piece.stays() {
            home.works().push(piece);
            if home.log().lap() >= until {
                break;
            }
            continue;
        }
        if work.pause.stops_writes(home.log().now_ms) && piece.is_open() && !piece.is_useless() {
            home.works().pause(work, piece);
            continue;
        }
        match step(work, home, piece) {
            // Not at the end of the queue each time: a piece of work keeps its place for a slice (L2).
            Step::More(piece) if home.log().lap() < until => {
                home.works().push_front(piece);
                continue;
            }
            step => settle(work, home, step, done),
        }
        if home.log().lap() >= until {
            break;
        }
    }
}

/// Lets a piece do a slice, and tells its changes (exec X3).
fn step(work: &Arc<Work>, home: &mut impl Home, mut piece: Box<dyn Piece>) -> Step {
    loop {
        let doer = |word| waits::doer(&work.observe, word);
        let (loop_id, now_ms) = (home.log().id, home.log().now_ms);
        let tray = home.works().take_tray();
        let mut desk = Desk { work, loop_id, now_ms, tray, doer: &doer, home: home.itself() };
        // NOLOOP: clients that track their own writes.
        let author = work.keyspace.is_tracking().then(|| keyspace::Author::is(piece.who().client));
        let step = piece.advance(&mut desk);
        drop(author);
        let tray = desk.tray;
        clear(work, home, tray);
        match step {
            Step::Tell(next) => piece = next,
            step => return step,
        }
    }
}

/// Handles the things that a slice left in the tray.
fn clear(work: &Arc<Work>, home: &mut impl Home, mut tray: Tray) {
    tray.told.drain(..).for_each(|changes| home.tell(changes));
    tray.ran
        .drain(..)
        .for_each(|(client, mut tally)| home.log().count_within(&work.observe, &mut tally, client));
    tray.begun.drain(..).for_each(|piece| home.works().push(piece));
    home.works().put_tray(tray);
}

/// Puts a piece where it belongs after a slice.
fn settle(work: &Arc<Work>, home: &mut impl Home, step: Step, done: &mut Vec<Delivery>) {
    match step {
        Step::More(piece) | Step::Tell(piece) => home.works().push(piece),
        Step::Queued(ticket, piece) => home.works().wait(ticket, piece),
        Step::Held(piece) => home.works().pause(work, piece),
        Step::Over(delivery) => done.extend(delivery),
        Step::Waits(wait) => home.wait(wait),
    }
}

/// Goes on with a piece at once.
fn go_on(work: &Arc<Work>, home: &mut impl Home, piece: Box<dyn Piece>, done: &mut Vec<Delivery>) {
    let step = step(work, home, piece);
    settle(work, home, step, done);
}

/// Goes on with a piece at once. Replies that become ready are delivered with the next slices.
pub fn begin(work: &Arc<Work>, home: &mut impl Home, piece: Box<dyn Piece>) {
    let mut done = Vec::new();
    go_on(work, home, piece, &mut done);
    done.into_iter().for_each(|delivery| home.works().push(Box::new(delivery)));
}

/// Takes a letter of long work. Replies that became ready go to `done`.
pub fn receive(work: &Arc<Work>, home: &mut impl Home, letter: Letter, done: &mut Vec<Delivery>) {
    match letter {
        Letter::Back(piece) => {
            let client = piece.who().client;
            let mark = home.log().enter(Part::Commit, client);
            go_on(work, home, piece, done);
            home.log().leave(&work.observe, Part::Commit, client, mark);
        }
        Letter::First(piece) => go_on(work, home, piece, done),
        Letter::Read(request) => home.works().push(request),
        Letter::Snapshot => retry_waiting(work, home),
        Letter::Kill(client) => home.kill(client),
    }
}

/// Lets the work that CLIENT PAUSE held go on in slices, if the pause is over. A script that was killed
/// meanwhile ends. Called when the pause may be over, and now and then. Cost: O(work held).
pub fn resume(work: &Arc<Work>, home: &mut impl Home) {
    let stopped = work.pause.stops_writes(home.log().now_ms);
    home.works().resume(work, stopped);
}

/// Starts work that waited for a place, in its turn, while there are places. Called when a snapshot was
/// closed, and now and then.
pub fn retry_waiting(work: &Arc<Work>, home: &mut impl Home) {
    while let Some(ticket) = work.snapshots.next_of(home.log().id) {
        match home.works().take_waiting(ticket) {
            None => work.snapshots.leave(ticket),
            Some(piece) => begin(work, home, piece),
        }
        if home.works().waits(ticket) {
            // There was no place after all. The next snapshot that is closed brings a letter.
            return;
        }
    }
}

/// Ends work that waits for a place and is of no use any more. Called now and then. Cost: O(work that waits).
pub fn end_useless(work: &Arc<Work>, home: &mut impl Home) {
    for (ticket, piece) in home.works().take_useless() {
        work.snapshots.leave(ticket);
        begin(work, home, piece);
    }
}
