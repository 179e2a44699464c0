//! SIGINT and SIGTERM: the first ends the work in order, the second ends the process at once.
//!
//! In order means: nothing more is read or sent, outstanding replies are waited for, and the progress is
//! saved and printed.

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A request to end; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The signal that came; 0: none yet.
    signal: Arc<AtomicUsize>,
    /// Becomes readable when a signal comes. None: signals are not waited for.
    came: Option<Arc<UnixStream>>,
}

impl Stop {
    /// Takes over both signals, for the whole process. Must be called once. Errors: the system's.
    pub fn on_signals() -> io::Result<Stop> {
        let (came, write) = UnixStream::pair()?;
        let stop = Stop { came: Some(Arc::new(came)), ..Stop::default() };
        let hurry = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the flag is raised after it was looked at, so the second signal of either kind
            // ends the process.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, hurry.clone())?;
            signal_hook::flag::register(signal, hurry.clone())?;
            signal_hook::flag::register_usize(signal, stop.signal.clone(), signal as usize)?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(stop)
    }

    pub fn is_asked(&self) -> bool {
        self.signal.load(SeqCst) != 0
    }

    /// Fails once a signal has come, and names it.
    pub fn check(&self) -> Result<(), String> {
        match self.signal.load(SeqCst) as i32 {
            0 => Ok(()),
            SIGINT => Err("interrupted by SIGINT".to_owned()),
            _ => Err("interrupted by SIGTERM".to_owned()),
        }
    }

    /// The exit code that a shell expects after a signal, if one came.
    pub fn exit_code(&self) -> Option<u8> {
        let signal = self.signal.load(SeqCst) as u8;
        (signal != 0).then_some(128 + signal)
    }

    /// Wraps an input that may block for ever: reading fails once a signal has come.
    pub fn reading<R: Read + AsFd>(&self, input: R) -> Interruptible<R> {
        Interruptible { input, stop: self.clone() }
    }
}

/// An input that a signal interrupts, see [`Stop::reading`].
pub struct Interruptible<R> {
    input: R,
    stop: Stop,
}

impl<R: Read + AsFd> Read for Interruptible<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(came) = &self.stop.came {
            let mut fds = [PollFd::new(&self.input, PollFlags::IN), PollFd::new(came, PollFlags::IN)];
            while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        }
        self.stop.check().map_err(io::Error::other)?;
        self.input.read(buf)
    }
}
