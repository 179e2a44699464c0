//! The end of the server: a last snapshot, while no client can write.

use crate::Durability;
use crate::saving::{Answer, Purpose};
use keyspace::Why;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use work::piece::{Desk, Letter, Piece, Step};

/// Whether a last snapshot is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// A snapshot is taken if there are save points.
    #[default]
    Usual,
    Save,
    NoSave,
}

/// How the server is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    pub wish: Wish,
    /// It ends even if the snapshot fails.
    pub force: bool,
    /// It does not wait for replicas.
    pub now: bool,
}

/// The options of SHUTDOWN.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) ending: Ending,
    pub(crate) aborted: bool,
    /// Answers to the clients that wait for the end, if it is given up.
    pub(crate) waiting: Vec<Box<dyn FnOnce() + Send>>,
}

/// Longest wait for loops to finish what they had begun.
const PASSING: Duration = Duration::from_secs(10);
/// Longest wait for a snapshot that nobody will have.
const LETTING_GO: Duration = Duration::from_secs(2);
/// Interval of the checks while waiting.
const LOOK: Duration = Duration::from_millis(20);

impl Durability {
    /// Begins the end, for a client's SHUTDOWN. `refused` is called if the end is given up.
    pub fn ask_end(&self, ending: Ending, refused: Box<dyn FnOnce() + Send>) {
        let mut asked = self.end.lock();
        (asked.ending, asked.aborted) = (ending, false);
        asked.waiting.push(refused);
    }

    /// SHUTDOWN ABORT: gives the end up. False: none is under way.
    pub fn abort_end(&self) -> bool {
        let mut asked = self.end.lock();
        if asked.waiting.is_empty() {
            return false;
        }
        asked.aborted = true;
        true
    }

    /// Takes the last snapshot, if one is wanted, and ends the log. Writers wait from here on. `by_signal`: the
    /// signal's wish. None: a client's SHUTDOWN. For a thread that may wait.
    ///
    /// Cost: O(keys) for the snapshot, what waits for the log, and `shutdown-timeout` for replicas that lag.
    /// Errors: the snapshot or the log failed; the server is to go on ([`Durability::give_up_end`]).
    pub fn end_in_order(self: &Arc<Self>, by_signal: Option<Ending>) -> Result<(), String> {
        let Ending { wish, force, now } = by_signal.unwrap_or_else(|| self.end.lock().ending);
        if !now {
            self.await_replicas()?;
        }
        let saves = match wish {
            Wish::NoSave => false,
            Wish::Save => true,
            Wish::Usual => !self.config.live.save_points.is_empty(),
        };
        self.save_last(saves, force)?;
        let Ok(files) = self.files() else { return Ok(()) };
        // From here on no client writes.
        self.keyspace.still.set(Why::End, true);
        self.pass_all_loops();
        self.history.get().iter().for_each(|history| history.rests(true));
        let is_last = self.take_over();
        let closed = match files.close_log(self) {
            Err(why) if force => {
                log::error!("{why}: the server ends all the same, as it was told to");
                Ok(())
            }
            closed => closed,
        };
        if is_last && closed.is_err() {
            self.give_back();
        }
        closed
    }

    /// Gives the end up: writers may write again, and clients that sent SHUTDOWN are answered. O(loops + those
    /// clients).
    pub fn give_up_end(&self) {
        self.keyspace.still.set(Why::End, false);
        self.history.get().iter().for_each(|history| history.rests(false));
        self.host.retry();
        let waiting = std::mem::take(&mut self.end.lock().waiting);
        waiting.into_iter().for_each(|refused| refused());
    }

    /// Waits until the replicas have all, for `shutdown-timeout` at most: writers wait, too. Errors: SHUTDOWN
    /// ABORT.
    fn await_replicas(&self) -> Result<(), String> {
        let Some(history) = self.history.get() else { return Ok(()) };
        let limit = Duration::from_secs(self.config.live.shutdown_timeout_s.size() as u64);
        if limit.is_zero() || history.lagging().is_empty() {
            return Ok(());
        }
        self.keyspace.still.set(Why::End, true);
        self.pass_all_loops();
        history.rests(true);
        let until = Instant::now() + limit;
        loop {
            let lagging = history.lagging();
            if lagging.is_empty() {
                return Ok(());
            }
            if self.end.lock().aborted {
                return Err("SHUTDOWN ABORT".to_owned());
            }
            if Instant::now() >= until {
                log::warn!(
                    "replicas lack writes as the server ends (shutdown-timeout): {}",
                    lagging.join(", ")
                );
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Ends the snapshot under way, whose file would stay, and lets no other begin. False: the disk holds it up
    /// for long.
    fn take_over(&self) -> bool {
        let until = Instant::now() + LETTING_GO;
        while !self.take() {
            if Instant::now() >= until {
                return false;
            }
            self.cancel();
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Waits until all loops have finished what they had begun. For a thread that may wait. False: one of them is
    /// stuck. O(loops)
    pub fn pass_loops(&self) -> bool {
        let (passed, wait) = channel();
        for loop_id in 0..self.loops {
            (self.work.post)(loop_id, Letter::Back(Box::new(Passed(passed.clone()))));
        }
        drop(passed);
        let until = Instant::now() + PASSING;
        (0..self.loops).all(|_| wait.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok())
    }

    /// Waits until all loops have finished what they had begun. From then on they know of a pause.
    pub(crate) fn pass_all_loops(&self) {
        if !self.pass_loops() {
            log::warn!("an event loop is stuck: the server goes on without waiting for it");
        }
    }

    fn save_last(self: &Arc<Self>, saves: bool, force: bool) -> Result<(), String> {
        if !saves || self.is_loading() || !self.has_files() {
            return Ok(());
        }
        self.keyspace.still.set(Why::End, true);
        // The snapshot has all that was answered, and the last place of the history.
        self.pass_all_loops();
        self.history.get().iter().for_each(|history| history.rests(true));
        match self.last_save() {
            Err(why) if force => {
                log::error!(
                    "the last snapshot failed ({why}): the server ends without it, as it was told to"
                );
                Ok(())
            }
            done => done,
        }
    }

    fn last_save(self: &Arc<Self>) -> Result<(), String> {
        log::info!("saving the last snapshot");
        while !self.take() {
            self.cancel();
            std::thread::sleep(LOOK);
        }
        let (done, wait) = channel();
        let tell = move |saved: Result<&Path, &str>| -> Answer {
            let saved = saved.map(drop).map_err(str::to_owned);
            Box::new(move || drop(done.send(saved)))
        };
        self.begin_taken(Purpose::Last, Some(Box::new(tell)), None);
        loop {
            match wait.recv_timeout(LOOK) {
                Ok(saved) => return saved,
                Err(RecvTimeoutError::Timeout) if self.end.lock().aborted => _ = self.cancel(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("the snapshot was given up".into()),
            }
        }
    }
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
