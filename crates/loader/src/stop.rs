//! SIGINT and SIGTERM: the first ends the work in order, the second ends the process at once.
//!
//! In order means: nothing more is read or sent, replies to what was sent are waited for, and how far it came is noted and told.

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Whether somebody asked for the end. Clones are of the same.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The signal that came; 0 before.
    signal: Arc<AtomicUsize>,
    /// Can be read from when one has come. None: none is waited for.
    came: Option<Arc<UnixStream>>,
}

impl Stop {
    /// Takes over both signals, for the whole process. Call once.
    pub fn on_signals() -> io::Result<Stop> {
        let (came, write) = UnixStream::pair()?;
        let stop = Stop { came: Some(Arc::new(came)), ..Stop::default() };
        let hurry = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the flag is raised only after it was looked at, so the second signal of either kind ends the process.
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

    /// An error once the end was asked for, which says by what.
    pub fn check(&self) -> Result<(), String> {
        match self.signal.load(SeqCst) as i32 {
            0 => Ok(()),
            SIGINT => Err("interrupted by SIGINT".to_owned()),
            _ => Err("interrupted by SIGTERM".to_owned()),
        }
    }

    /// What a shell expects of a process that a signal ended, if one did.
    pub fn exit_code(&self) -> Option<u8> {
        let signal = self.signal.load(SeqCst) as u8;
        (signal != 0).then_some(128 + signal)
    }

    /// An input that may keep its reader waiting for ever: reading fails once the end is asked for.
    pub fn reading<R: Read + AsFd>(&self, input: R) -> Interruptible<R> {
        Interruptible { input, stop: self.clone() }
    }
}

/// See [`Stop::reading`].
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
