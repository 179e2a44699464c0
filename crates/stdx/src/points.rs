//! Points where a test may hold or slow the server. So it can check without a clock that nothing waits.
//!
//! ```text
//! DEBUG POINT job-start HOLD 1 ──► the next thread that gets there waits ──► DEBUG POINT job-start OFF
//! ```
//!
//! - N1: while nothing is set, a point costs one relaxed load.
//! - N2: other threads wait at a point ([`reach`]). An event loop does not: it asks whether some work of a
//!   client stays undone ([`stays`]), or which of two ways it takes ([`strays`]). A loop is really held up
//!   ([`hold_up`]) only at [`Point::Loop`], [`Point::Serve`], [`Point::Apart`] and [`Point::Leave`].
//! - N3: HOLD n holds the first n to arrive and lets others pass.
//! - N4: PANIC n makes the first n to arrive panic: at [`reach`], and at [`trip`], which does nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// A worker has taken a job and not begun to run it.
    JobStart,
    /// A worker has run a job, and nothing is committed yet.
    JobEnd,
    /// A script's thread has not begun to run it.
    ScriptStart,
    /// A script's thread is between two instructions.
    ScriptStep,
    /// A script has run on its thread, and nothing is committed yet.
    ScriptEnd,
    /// The reclaimer is about to free something.
    Reclaim,
    /// A streamed reply is about to write its next part.
    Stream,
    /// A new client is given to an event loop. While the point is set, a client that stays goes to the last
    /// loop and any other to the first, however busy they are.
    Accept,
    /// A client has been served. A client that stays moves to the next loop.
    Move,
    /// A message is about to be written for its next subscriber.
    Publish,
    /// An event loop runs DEBUG STALL. The loop itself is busy, and all its clients wait.
    Loop,
    /// A long commit has covered half of its shards, and is not decided.
    CommitPlace,
    /// A long commit is decided, and half of it is written to the tables.
    CommitFold,
    /// Expired keys are about to be removed.
    Sweep,
    /// An event loop has claimed a blocked client to serve it. The loop itself is busy.
    Serve,
    /// A command is about to read values whose locks it has given back. The loop itself is busy.
    Apart,
    /// A client is registered for half of the many keys it waits for.
    Register,
    /// A load of a source has taken its position and has not asked the database.
    SourceAsk,
    /// Rows of a source are about to be installed.
    SourceFill,
    /// Items of a source whose rows changed are about to be removed.
    SourceDrop,
    /// An event loop is about to wake the reclaimer, which may take its core. The loop itself is busy.
    Leave,
    /// DUMP, MEMORY USAGE or EVENKEEL ITEMS holds its keys' locks and has read nothing.
    Read,
    /// COPY has stored a value, and nothing is told yet.
    Change,
    /// EXEC estimates what a reply will cost.
    Estimate,
    /// INFO, or an HTTP page about the server, is about to be made.
    Report,
    /// A report that a client's words can make long is about to go on.
    ReportStep,
    /// Half of a command has been read.
    Parse,
    /// A loop reads keys at a snapshot for long work.
    Load,
    /// A snapshot was asked for, and its walk has not begun.
    SaveBegin,
    /// A snapshot's walk has begun, and read nothing.
    SaveWalk,
    /// A snapshot's writer is about to write what came.
    SaveWrite,
    /// A snapshot's file is about to be ended.
    SaveEnd,
    /// The snapshot file is about to be loaded.
    FileLoad,
    /// A copy was loaded beside the data, the log has ended, and it is about to take their place.
    TakeOver,
    /// A copy has taken the place of the data, and the log has not begun anew.
    TakenOver,
    /// The order thread is about to write out a group for the log.
    LogOrder,
    /// The log has a batch and has not written it.
    LogWrite,
    /// A batch of the log is written, and not synced.
    LogSync,
    /// A file of the log is made, and no manifest names it.
    LogIncr,
    /// A manifest of the log is written, and does not have its name.
    LogManifest,
    /// The log has come to a mark, and not changed its file.
    LogRotate,
    /// A base of the log has its name, and the manifest does not name it.
    LogBase,
    /// An old file of the log is removed, and the manifest names it.
    LogUnlink,
    /// A file of the log was given up, and no other is there.
    LogAfresh,
}

const POINTS: [(&str, Point); 44] = [
    ("job-start", Point::JobStart),
    ("job-end", Point::JobEnd),
    ("script-start", Point::ScriptStart),
    ("script-step", Point::ScriptStep),
    ("script-end", Point::ScriptEnd),
    ("reclaim", Point::Reclaim),
    ("stream", Point::Stream),
    ("accept", Point::Accept),
    ("move", Point::Move),
    ("publish", Point::Publish),
    ("loop", Point::Loop),
    ("commit-place", Point::CommitPlace),
    ("commit-fold", Point::CommitFold),
    ("sweep", Point::Sweep),
    ("serve", Point::Serve),
    ("apart", Point::Apart),
    ("register", Point::Register),
    ("source-ask", Point::SourceAsk),
    ("source-fill", Point::SourceFill),
    ("source-drop", Point::SourceDrop),
    ("leave", Point::Leave),
    ("read", Point::Read),
    ("change", Point::Change),
    ("estimate", Point::Estimate),
    ("report", Point::Report),
    ("report-step", Point::ReportStep),
    ("parse", Point::Parse),
    ("load", Point::Load),
    ("save-begin", Point::SaveBegin),
    ("save-walk", Point::SaveWalk),
    ("save-write", Point::SaveWrite),
    ("save-end", Point::SaveEnd),
    ("file-load", Point::FileLoad),
    ("take-over", Point::TakeOver),
    ("taken-over", Point::TakenOver),
    ("log-order", Point::LogOrder),
    ("log-write", Point::LogWrite),
    ("log-sync", Point::LogSync),
    ("log-incr", Point::LogIncr),
    ("log-manifest", Point::LogManifest),
    ("log-rotate", Point::LogRotate),
    ("log-base", Point::LogBase),
    ("log-unlink", Point::LogUnlink),
    ("log-afresh", Point::LogAfresh),
];

/// The setting of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Off,
    /// Each arrival waits for a random time, in microseconds at most.
    Delay(u32),
    /// The first n arrivals stay until the point is set again.
    Hold(usize),
    /// The first n arrivals panic (N4).
    Panic(usize),
}

/// How long `stays` sleeps under DELAY.
const NAP: Duration = Duration::from_micros(50);

struct Place {
    mode: Mode,
    held: usize,
    /// Clients whose work stays here, and until when (`mono_ns`).
    clients: Vec<(u64, u64)>,
    /// Counts the calls of [`set`]. A waiting thread goes on when it changes.
    setting: u64,
}

/// One bit for each point that is not off.
static ARMED: AtomicU64 = AtomicU64::new(0);
static PLACES: Mutex<[Place; POINTS.len()]> =
    Mutex::new([const { Place { mode: Mode::Off, held: 0, clients: Vec::new(), setting: 0 } }; POINTS.len()]);
static CHANGED: Condvar = Condvar::new();

/// The point with this name.
pub fn named(name: &str) -> Option<Point> {
    POINTS.iter().find(|(known, _)| *known == name).map(|(_, point)| *point)
}

/// Sets a point and releases everything that is held there.
pub fn set(point: Point, mode: Mode) {
    let mut places = places();
    let place = &mut places[point as usize];
    place.mode = mode;
    place.setting += 1;
    place.clients.clear();
    match mode {
        Mode::Off => ARMED.fetch_and(!(1 << point as u32), Ordering::Relaxed),
        _ => ARMED.fetch_or(1 << point as u32, Ordering::Relaxed),
    };
    CHANGED.notify_all();
}

/// How many threads and clients are held at a point now.
pub fn held(point: Point) -> usize {
    let place = &places()[point as usize];
    place.held + place.clients.len()
}

/// A thread other than a loop passes a point. It may be held for long (N2).
#[inline]
pub fn reach(point: Point) {
    if is_armed(point) {
        wait(point);
    }
}

/// A thread, perhaps a loop, passes a point where a test may make it panic (N4).
#[inline]
pub fn trip(point: Point) {
    if is_armed(point) {
        fall(point);
    }
}

#[cold]
fn fall(point: Point) {
    let falls = match &mut places()[point as usize].mode {
        Mode::Panic(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    };
    if falls {
        panics_at(point);
    }
}

#[expect(clippy::panic, reason = "what it is for")]
fn panics_at(point: Point) {
    panic!("DEBUG POINT asked for it at {point:?}");
}

/// Whether a loop should leave some work of a client undone for now and ask again later (N2). Under DELAY
/// each such call sleeps for a moment, so that loops that ask again and again leave the processors to others.
#[inline]
pub fn stays(point: Point, client: u64) -> bool {
    is_armed(point) && keeps(point, client)
}

/// Whether a client takes the other of two ways. HOLD sends the first n there, DELAY every second one.
#[inline]
pub fn strays(point: Point, client: u64) -> bool {
    is_armed(point)
        && match mode(point) {
            Mode::Delay(_) => random().is_multiple_of(2),
            _ => keeps(point, client),
        }
}

/// Keeps this thread busy while the point is set to HOLD, or for a random time under DELAY.
pub fn hold_up(point: Point) {
    if !is_armed(point) {
        return;
    }
    let (mode, setting) = {
        let place = &mut places()[point as usize];
        place.held += 1;
        (place.mode, place.setting)
    };
    let until = match mode {
        Mode::Delay(us) => crate::clock::mono_ns() + random() % (u64::from(us) + 1) * 1000,
        _ => u64::MAX,
    };
    while crate::clock::mono_ns() < until {
        (0..1000).for_each(|_| std::hint::spin_loop());
        if places()[point as usize].setting != setting {
            break;
        }
    }
    places()[point as usize].held -= 1;
}

/// Whether a point is set. One relaxed load.
#[inline]
pub fn is_armed(point: Point) -> bool {
    ARMED.load(Ordering::Relaxed) >> point as u32 & 1 == 1
}

/// Whether any point is set. One relaxed load.
#[inline]
pub fn any_armed() -> bool {
    ARMED.load(Ordering::Relaxed) != 0
}

fn places() -> MutexGuard<'static, [Place; POINTS.len()]> {
    // A panic between two assignments leaves no harmful state.
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mode(point: Point) -> Mode {
    places()[point as usize].mode
}

fn random() -> u64 {
    crate::hash::hash_u64(crate::clock::mono_ns())
}

#[cold]
fn wait(point: Point) {
    let mut places = places();
    let place = &mut places[point as usize];
    match &mut place.mode {
        Mode::Delay(us) => {
            let us = random() % (u64::from(*us) + 1);
            drop(places);
            std::thread::sleep(Duration::from_micros(us));
        }
        Mode::Hold(left) if *left > 0 => {
            *left -= 1;
            place.held += 1;
            let setting = place.setting;
            let still_set = |places: &mut [Place; POINTS.len()]| places[point as usize].setting == setting;
            let mut places = CHANGED.wait_while(places, still_set).unwrap_or_else(PoisonError::into_inner);
            places[point as usize].held -= 1;
        }
        Mode::Panic(left) if *left > 0 => {
            *left -= 1;
            drop(places);
            panics_at(point);
        }
        _ => {}
    }
}

#[cold]
fn keeps(point: Point, client: u64) -> bool {
    let (stays, naps) = is_kept(point, client);
    if naps {
        std::thread::sleep(NAP);
    }
    stays
}

/// Whether the work stays undone, and whether only for a time.
fn is_kept(point: Point, client: u64) -> (bool, bool) {
    let now_ns = crate::clock::mono_ns();
    let place = &mut places()[point as usize];
    if let Some(at) = place.clients.iter().position(|(held, _)| *held == client) {
        let until_ns = place.clients[at].1;
        let stays = until_ns > now_ns;
        if !stays {
            place.clients.swap_remove(at);
        }
        return (stays, stays && until_ns < u64::MAX);
    }
    let until_ns = match &mut place.mode {
        Mode::Delay(us) => now_ns + random() % (u64::from(*us) + 1) * 1000,
        Mode::Hold(left) if *left > 0 => {
            *left -= 1;
            u64::MAX
        }
        _ => return (false, false),
    };
    place.clients.push((client, until_ns));
    (true, until_ns < u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_held_until_the_point_is_set_again() {
        assert!(!stays(Point::Stream, 1));
        set(Point::Stream, Mode::Hold(1));
        assert!(stays(Point::Stream, 1) && !stays(Point::Stream, 2) && stays(Point::Stream, 1));
        set(Point::Stream, Mode::Off);
        assert!(!stays(Point::Stream, 1) && held(Point::Stream) == 0);

        // DELAY: each client stays for a time of its own, which ends.
        set(Point::Stream, Mode::Delay(1000));
        assert!(stays(Point::Stream, 1) && stays(Point::Stream, 2));
        while stays(Point::Stream, 1) {}
        while stays(Point::Stream, 2) {}
        set(Point::Stream, Mode::Off);

        set(Point::JobEnd, Mode::Hold(1));
        let thread = std::thread::spawn(|| reach(Point::JobEnd));
        while held(Point::JobEnd) == 0 {
            std::thread::yield_now();
        }
        reach(Point::JobEnd);
        assert!(!thread.is_finished());
        set(Point::JobEnd, Mode::Off);
        thread.join().unwrap();
        assert_eq!(held(Point::JobEnd), 0);
    }

    #[test]
    fn every_point_has_a_name_and_its_own_bit() {
        for (i, (name, point)) in POINTS.iter().enumerate() {
            assert_eq!((named(name), *point as usize), (Some(*point), i));
        }
    }
}
