//! How the server is asked to stop.
//!
//! ```text
//! SIGTERM, SIGINT ──▶ pipe ──▶ Signals::wait ──▶ orderly shutdown
//! SHUTDOWN command ──▶  ┘            second SIGINT or SIGTERM ──▶ the process ends at once
//! ```
//!
//! - S1: a signal handler only writes one byte or sets a flag.
//! - S2: SIGHUP does nothing, so a closing terminal does not take the data with it; SIGPIPE is ignored by the runtime.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Exit code of a process that somebody was in a hurry to end.
const IN_A_HURRY: i32 = 130;

/// Why the server is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Interrupt,
    Terminate,
    /// The SHUTDOWN command.
    Command,
}

/// The receiving end of every request to stop.
pub struct Signals {
    read: UnixStream,
    write: UnixStream,
    interrupted: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
}

impl Signals {
    /// Takes over SIGINT, SIGTERM and SIGHUP. Call once, before threads start.
    pub fn install() -> io::Result<Signals> {
        let (read, write) = UnixStream::pair()?;
        let (interrupted, terminated) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let hurry = Arc::new(AtomicBool::new(false));
        for (signal, seen) in [(SIGINT, &interrupted), (SIGTERM, &terminated)] {
            // In this order: the flag is raised only after it was looked at, so the second signal of either kind ends
            // the process.
            signal_hook::flag::register_conditional_shutdown(signal, IN_A_HURRY, hurry.clone())?;
            signal_hook::flag::register(signal, hurry.clone())?;
            signal_hook::flag::register(signal, seen.clone())?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
        Ok(Signals { read, write, interrupted, terminated })
    }

    /// Sleeps until somebody asks the server to stop.
    pub fn wait(&self) -> Stop {
        let mut byte = [0];
        // An error can only mean that the pipe is gone, which is as good a reason to stop.
        while matches!((&self.read).read(&mut byte), Err(e) if e.kind() == io::ErrorKind::Interrupted) {}
        let raised = |flag: &AtomicBool| flag.load(std::sync::atomic::Ordering::SeqCst);
        match (raised(&self.interrupted), raised(&self.terminated)) {
            (true, _) => Stop::Interrupt,
            (_, true) => Stop::Terminate,
            _ => Stop::Command,
        }
    }

    /// A handle with which the server itself can ask to stop.
    pub fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper(self.write.try_clone()?))
    }
}

/// Asks the server to stop, from any thread.
pub struct Stopper(UnixStream);

impl Stopper {
    /// Wakes [`Signals::wait`]. Never blocks for long: one byte into a pipe that is read at once.
    pub fn stop(&self) {
        // If the byte cannot be written, the reader is gone and the server is stopping already.
        let _ = (&self.0).write(b"S");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
