//! Waiting for sockets, and what makes a thread punctual.

pub use loader::memory_available;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The event to wait for on a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    Read,
    ReadWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Interest::Read => epoll::EventFlags::IN,
            Interest::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// A level-triggered epoll instance.
pub struct Epoll {
    fd: OwnedFd,
}

/// Events taken by one wait.
const EVENTS: usize = 64;

impl Epoll {
    /// Errors: the system's.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll { fd: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Errors: the system's.
    pub fn add(&self, fd: &impl AsFd, token: usize, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, epoll::EventData::new_u64(token as u64), interest.flags())?)
    }

    /// Errors: the system's.
    pub fn modify(&self, fd: &impl AsFd, token: usize, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, epoll::EventData::new_u64(token as u64), interest.flags())?)
    }

    /// Errors: the system's.
    pub fn remove(&self, fd: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits and puts `(token, writable)` of every event into `ready`, at most [`EVENTS`] at a time. Errors:
    /// the system's.
    pub fn wait(&self, timeout: Duration, ready: &mut Vec<(usize, bool)>) -> io::Result<()> {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; EVENTS];
        ready.clear();
        let n = match epoll::wait(&self.fd, &mut events[..], Some(&timespec(timeout))) {
            Ok(n) => n,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        // The fields of a packed structure are copied before they are looked at.
        ready.extend(events[..n].iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            (data.u64() as usize, flags.contains(epoll::EventFlags::OUT))
        }));
        Ok(())
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().min(i32::MAX as u64) as _, tv_nsec: time.subsec_nanos().into() }
}

/// A request to wait until `fd` can be read, or also written. For [`wait_any`].
pub fn polled(fd: &impl AsFd, write: bool) -> PollFd<'_> {
    PollFd::new(fd, if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN })
}

/// Waits until one of `polled` is ready or `timeout` has passed, to the nanosecond. Errors: the system's.
pub fn wait_any(polled: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    match rustix::event::poll(polled, Some(&timespec(timeout))) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INTR) => {
            polled.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Puts the calling thread into SCHED_FIFO at a real-time priority (1 is the lowest), and removes its timer
/// slack. Returns whether the kernel allowed the class.
pub fn become_punctual(priority: i32) -> bool {
    let fifo = machine::threads::real_time(priority);
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    fifo
}

/// Keeps the calling thread on one core. Returns whether the kernel allowed it.
pub fn pin(core: usize) -> bool {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(core);
    sched_setaffinity(None, &set).is_ok()
}

/// Keeps the memory that this process has now in RAM. Returns whether the kernel allowed it.
pub fn lock_memory() -> bool {
    mlockall(MlockAllFlags::CURRENT).is_ok()
}

/// CPU time that the host of a virtual machine has given to others since it started, over all its cores; in
/// steps of 10 ms.
pub fn stolen() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let steps = line.split_whitespace().nth(8).and_then(|steps| steps.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis(steps * 10)
}
