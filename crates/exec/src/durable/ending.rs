//! The end of the server: a last snapshot, while no client can write.

use super::saving::{self, Purpose};
use crate::Server;
use crate::mail::Mail;
use crate::piece::{Desk, Letter, Piece, Step};
use keyspace::Why;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Whether a last snapshot is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// A snapshot is taken if there are save points.
    #[default]
    Usual,
    Save,
    NoSave,
}

/// The options of SHUTDOWN.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) wish: Wish,
    /// The server ends even if the snapshot fails.
    pub(super) force: bool,
    pub(super) aborted: bool,
    /// Clients that wait for the end: loop, client.
    pub(super) waiting: Vec<(usize, u64)>,
}

/// Longest wait for loops to finish what they had begun.
const PASSING: Duration = Duration::from_secs(10);
/// Longest wait for a snapshot that nobody will have.
const LETTING_GO: Duration = Duration::from_secs(2);
/// Interval of the checks while waiting.
const LOOK: Duration = Duration::from_millis(20);

impl super::Durability {
    /// Begins the end, for a client's SHUTDOWN.
    pub(crate) fn ask_end(&self, wish: Wish, force: bool, loop_id: usize, client: u64) {
        let mut asked = self.end.lock();
        (asked.wish, asked.force, asked.aborted) = (wish, force, false);
        asked.waiting.push((loop_id, client));
    }

    /// SHUTDOWN ABORT: gives the end up. False: none is under way.
    pub(crate) fn abort_end(&self) -> bool {
        let mut asked = self.end.lock();
        if asked.waiting.is_empty() {
            return false;
        }
        asked.aborted = true;
        true
    }

    fn is_end_aborted(&self) -> bool {
        self.end.lock().aborted
    }
}

/// Takes the last snapshot, if one is wanted. Writers wait from here on. `by_signal`: the signal's wish, and
/// whether the server ends in any case. None: a client's SHUTDOWN.
///
/// Errors: the snapshot failed; the server is to go on ([`give_up_end`]).
pub fn end_in_order(server: &Arc<Server>, by_signal: Option<(Wish, bool)>) -> Result<(), String> {
    let (wish, force) = by_signal.unwrap_or_else(|| {
        let asked = server.durability.end.lock();
        (asked.wish, asked.force)
    });
    let saves = match wish {
        Wish::NoSave => false,
        Wish::Save => true,
        Wish::Usual => !server.config.live.save_points.is_empty(),
    };
    let saved = save_last(server, saves, force);
    if saved.is_ok()
        && let Some(storage) = server.durability.storage()
    {
        // From here on no client writes.
        server.keyspace.still.set(Why::End, true);
        pass_all_loops(server);
        let is_last = take_over(server);
        let closed = match storage.close_log(server) {
            Err(why) if force => {
                log::error!("{why}: the server ends all the same, as it was told to");
                Ok(())
            }
            closed => closed,
        };
        if is_last && closed.is_err() {
            saving::give_back(server);
        }
        return closed;
    }
    saved
}

/// Ends the snapshot under way, whose file would stay, and lets no other begin. False: the disk holds it up for long.
fn take_over(server: &Server) -> bool {
    let until = Instant::now() + LETTING_GO;
    while !saving::take(server) {
        if Instant::now() >= until {
            return false;
        }
        saving::cancel(server);
        std::thread::sleep(LOOK);
    }
    true
}

/// A piece of work that reports that its loop has finished everything before it.
struct Passed(Sender<()>);

impl Piece for Passed {
    fn advance(self: Box<Self>, _: &mut Desk<'_>) -> Step {
        // The wait may be over.
        let _ = self.0.send(());
        Step::Over(None)
    }
}

/// Waits until all loops have finished what they had begun. From then on they know of a pause.
pub(super) fn pass_all_loops(server: &Arc<Server>) {
    let (passed, wait) = channel();
    for loop_id in 0..server.loops() {
        (server.work.post)(loop_id, Letter::Back(Box::new(Passed(passed.clone()))));
    }
    drop(passed);
    let until = Instant::now() + PASSING;
    for _ in 0..server.loops() {
        if wait.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
            return log::warn!("an event loop is stuck: the server ends without waiting for it");
        }
    }
}

fn save_last(server: &Arc<Server>, saves: bool, force: bool) -> Result<(), String> {
    if !saves || server.durability.is_loading() || server.durability.storage().is_none() {
        return Ok(());
    }
    server.keyspace.still.set(Why::End, true);
    match last_save(server) {
        Err(why) if force => {
            log::error!("the last snapshot failed ({why}): the server ends without it, as it was told to");
            Ok(())
        }
        done => done,
    }
}

fn last_save(server: &Arc<Server>) -> Result<(), String> {
    log::info!("saving the last snapshot");
    while !saving::take(server) {
        saving::cancel(server);
        std::thread::sleep(LOOK);
    }
    let (done, wait) = channel();
    let tell = move |saved: Result<&Path, &str>| -> saving::Answer {
        let saved = saved.map(drop).map_err(str::to_owned);
        Box::new(move || drop(done.send(saved)))
    };
    saving::begin_taken(server, Purpose::Last, Some(Box::new(tell)), saving::Where::Loop(0));
    loop {
        match wait.recv_timeout(LOOK) {
            Ok(saved) => return saved,
            Err(RecvTimeoutError::Timeout) if server.durability.is_end_aborted() => {
                saving::cancel(server);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("the snapshot was given up".into()),
        }
    }
}

/// Gives the end up: writers may write again, and clients that sent SHUTDOWN are answered.
pub fn give_up_end(server: &Arc<Server>) {
    server.keyspace.still.set(Why::End, false);
    (0..server.loops()).for_each(|id| server.send(id, Mail::Retry));
    let waiting = std::mem::take(&mut server.durability.end.lock().waiting);
    for (loop_id, client) in waiting {
        let bytes = b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n".to_vec();
        server.send(loop_id, Mail::Reply { client, bytes, stream: None });
    }
}
