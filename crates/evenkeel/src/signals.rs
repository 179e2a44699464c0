//! Requests to stop the server, and to read its files of TLS again.
//!
//! ```text
//! SIGTERM, SIGINT ──▶ pipe ──▶ Signals::wait ──▶ orderly shutdown
//! SHUTDOWN command ──▶  ┘
//! SIGHUP           ──▶ pipe ──▶ Renewals::wait ──▶ files of TLS are read again
//!       └──▶ pipe ──▶ thread `hurry` ──▶ a later SIGINT or SIGTERM ──▶ the process ends at once
//! ```
//!
//! - S1: a signal handler only writes a byte or sets a flag; S4 has the exception.
//! - S2: SIGHUP asks for no stop, so a closing terminal does not take the data with it; SIGPIPE is ignored by
//!   the runtime.
//! - S3: signals within [`ONE_PRESS`] of the first are the same request: one Ctrl-C may come from the
//!   terminal and from make.
//! - S4: a process that is ended at once removes its folder first. If that hangs, the next signal ends it
//!   from the handler.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Exit code of a process that was ended at once.
const IN_A_HURRY: i32 = 130;
/// Signals this soon after the first are the same request.
const ONE_PRESS: Duration = Duration::from_secs(1);

/// Why the server is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Interrupt,
    Terminate,
    /// The SHUTDOWN command.
    Command,
}

/// The receiving end of all requests to stop.
pub struct Signals {
    read: UnixStream,
    write: UnixStream,
    interrupted: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
    folder: Arc<OnceLock<PathBuf>>,
    renew: UnixStream,
}

/// The receiving end of SIGHUP.
pub struct Renewals(UnixStream);

impl Renewals {
    /// Sleeps until SIGHUP comes (true), or the time is over. Signals that come meanwhile are one.
    pub fn wait(&mut self, limit: Duration) -> bool {
        // An error is an interruption, or the end of the time.
        let _ = self.0.set_read_timeout(Some(limit));
        self.0.read(&mut [0; 64]).is_ok_and(|n| n > 0)
    }
}

impl Signals {
    /// Takes over SIGINT, SIGTERM and SIGHUP. Must be called once, before threads start. Errors: the
    /// system's.
    pub fn install() -> io::Result<Signals> {
        let (read, write) = UnixStream::pair()?;
        let (interrupted, terminated) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (pressed, press) = UnixStream::pair()?;
        let armed = Arc::new(AtomicBool::new(false));
        for (signal, seen) in [(SIGINT, &interrupted), (SIGTERM, &terminated)] {
            signal_hook::flag::register_conditional_shutdown(signal, IN_A_HURRY, armed.clone())?; // S4
            signal_hook::flag::register(signal, seen.clone())?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
            signal_hook::low_level::pipe::register(signal, press.try_clone()?)?;
        }
        let (renew, renewed) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(SIGHUP, renewed)?;
        // A file that may not grow is an error of its write.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let folder = Arc::new(OnceLock::new());
        let removed = folder.clone();
        let watch = move || {
            await_hurry(pressed);
            armed.store(true, SeqCst);
            if let Some(folder) = removed.get() {
                let _ = std::fs::remove_dir_all(folder);
            }
            signal_hook::low_level::exit(IN_A_HURRY)
        };
        std::thread::Builder::new().name("hurry".into()).spawn(watch)?;
        Ok(Signals { read, write, interrupted, terminated, folder, renew })
    }

    /// The receiving end of SIGHUP. Errors: the system's.
    pub fn renewals(&self) -> io::Result<Renewals> {
        Ok(Renewals(self.renew.try_clone()?))
    }

    /// Names a folder to be removed even if the process is ended at once. Must be called once.
    pub fn remove_in_hurry(&self, folder: PathBuf) {
        let _ = self.folder.set(folder);
    }

    /// Sleeps until a stop is requested.
    pub fn wait(&self) -> Stop {
        let mut byte = [0];
        // An error can only mean that the pipe is gone, a reason to stop too.
        while matches!((&self.read).read(&mut byte), Err(e) if e.kind() == io::ErrorKind::Interrupted) {}
        let raised = |flag: &AtomicBool| flag.swap(false, SeqCst);
        // Both are taken: a later request is another one.
        match (raised(&self.interrupted), raised(&self.terminated)) {
            (true, _) => Stop::Interrupt,
            (_, true) => Stop::Terminate,
            _ => Stop::Command,
        }
    }

    /// Makes a handle by which the server itself can request its stop.
    pub fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper(self.write.try_clone()?))
    }
}

/// Sleeps until a signal comes that is not part of the first request to stop.
fn await_hurry(mut pressed: UnixStream) {
    let mut presses = Presses::default();
    // Signals that wait together are read together, and count as one.
    let mut bytes = [0; 64];
    loop {
        match pressed.read(&mut bytes) {
            Ok(0) => loop {
                std::thread::park(); // The handlers are gone: nothing more can come.
            },
            Ok(_) if presses.is_hurry(Instant::now()) => return,
            _ => {}
        }
    }
}

/// When the process was asked to stop.
#[derive(Default)]
struct Presses {
    first: Option<Instant>,
}

impl Presses {
    /// Whether a signal now is a second request.
    fn is_hurry(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        now.saturating_duration_since(first) > ONE_PRESS
    }
}

/// Requests the stop of the server, from any thread.
pub struct Stopper(UnixStream);

impl Stopper {
    /// Wakes [`Signals::wait`]. Does not block: it writes one byte into a pipe.
    pub fn stop(&self) {
        // If the byte cannot be written, the reader is gone and the server is stopping already.
        let _ = (&self.0).write(b"S");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_signal_is_in_a_hurry() {
        let (mut presses, start) = (Presses::default(), Instant::now());
        for (ms, hurry) in [(0, false), (0, false), (1_000, false), (1_001, true)] {
            assert_eq!(presses.is_hurry(start + Duration::from_millis(ms)), hurry, "{ms}");
        }
    }

    #[test]
    fn a_command_or_a_signal_ends_the_wait() {
        let signals = Signals::install().unwrap();
        signals.stopper().unwrap().stop();
        assert_eq!(signals.wait(), Stop::Command);
        signal_hook::low_level::raise(SIGHUP).unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(signals.wait(), Stop::Terminate);
    }
}
