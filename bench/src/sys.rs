//! The system calls std has no words for: epoll, ppoll, scheduling classes, resource use of another process.
//!
//! All of this crate's `unsafe` is here, each call behind a function that cannot be misused from safe code:
//! descriptors are borrowed from live owners for the length of a call, and the kernel writes only into
//! buffers whose length it was told.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// What a registered descriptor is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    Read,
    ReadWrite,
}

impl Interest {
    fn bits(self) -> u32 {
        match self {
            Interest::Read => libc::EPOLLIN as u32,
            Interest::ReadWrite => (libc::EPOLLIN | libc::EPOLLOUT) as u32,
        }
    }
}

/// A level-triggered epoll instance.
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers are passed; the result is checked before it is owned.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd is a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd })
    }

    pub fn add(&self, fd: &impl AsRawFd, token: usize, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), token, interest)
    }

    pub fn modify(&self, fd: &impl AsRawFd, token: usize, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), token, interest)
    }

    fn control(&self, op: i32, fd: i32, token: usize, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: token as u64 };
        // SAFETY: `event` lives through the call; the kernel copies it.
        let result = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits and puts `(token, writable)` of every event into `ready`, at most 64 at a time.
    pub fn wait(&self, timeout: Duration, ready: &mut Vec<(usize, bool)>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let timeout_ms = timeout.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: the pointer and the length describe `events`, which outlives the call.
        let n = unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, timeout_ms)
        };
        ready.clear();
        if n < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        let writable = libc::EPOLLOUT as u32;
        ready.extend(
            events[..n as usize].iter().map(|event| (event.u64 as usize, event.events & writable != 0)),
        );
        Ok(())
    }
}

/// Waits until one of `fds` can be read or `timeout` has passed, to the nanosecond; marks the readable ones.
pub fn wait_readable(fds: &[i32], readable: &mut Vec<bool>, timeout: Duration) -> io::Result<()> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    // SAFETY: pointer and count describe `polled`; `timeout` lives through the call; no signal mask.
    let n =
        unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &timeout, std::ptr::null()) };
    if n < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    readable.clear();
    readable.extend(polled.iter().map(|p| p.revents != 0));
    Ok(())
}

/// Puts the calling thread into SCHED_FIFO at the lowest real-time priority and takes away its timer slack.
/// Returns whether the kernel allowed the class.
pub fn become_punctual() -> bool {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: pid 0 is the calling thread; `param` lives through the call.
    let fifo = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } == 0;
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches only the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    fifo
}

/// Has the kernel kill the child when the thread that starts it dies, and keeps it on `cpus` if any are named.
pub fn bind_child(command: &mut Command, cpus: &[usize]) {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index was checked against the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    let bound = !cpus.is_empty();
    // SAFETY: between fork and exec only two async-signal-safe system calls are made, on captured plain data.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            if bound && libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Bytes in a page of memory.
pub fn page_size() -> u64 {
    // SAFETY: sysconf reads a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64
}
