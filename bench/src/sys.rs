//! System calls that std does not offer: ppoll, scheduling classes, resource use of another process.
//!
//! All of this crate's `unsafe` is here. Each call is behind a function that safe code cannot misuse.
//! Descriptors are borrowed from live owners for the length of a call. The kernel writes only into buffers of
//! known length.

pub use bench::sys::{Epoll, Interest, memory_available};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Lets the calling thread wake up within a microsecond of its requested time.
pub fn be_punctual() {
    // SAFETY: the call takes numbers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
}

/// The input of [`wait_any`], which also receives the results.
pub type Polled = libc::pollfd;

/// A request to wait until `fd` can be read, or also written.
pub fn polled(fd: &impl AsRawFd, write: bool) -> Polled {
    let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
    Polled { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// Waits until one of `polled` is ready or `timeout` has passed, to the nanosecond.
pub fn wait_any(polled: &mut [Polled], timeout: Duration) -> io::Result<()> {
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
        polled.iter_mut().for_each(|polled| polled.revents = 0);
    }
    Ok(())
}

/// Puts the calling thread behind all normal ones: SCHED_BATCH at nice 19.
pub fn demote() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: pid 0 is the calling thread; `param` lives through the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &param) };
    // SAFETY: no pointers are passed; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

/// Raises the limit of open files of this process and its children to `wanted`, as far as the kernel permits.
/// Returns the new limit.
pub fn raise_files(wanted: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through the call and has the type the kernel writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } < 0 || limit.rlim_cur >= wanted {
        return limit.rlim_cur;
    }
    for hard in [limit.rlim_max.max(wanted), limit.rlim_max] {
        let raised = libc::rlimit { rlim_cur: wanted.min(hard), rlim_max: hard };
        // SAFETY: `raised` lives through the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
            return raised.rlim_cur;
        }
    }
    limit.rlim_cur
}

/// Waits until `fd` can be read, or written if `write`, or `timeout` has passed. Returns (readable,
/// writable).
pub fn wait_ready(fd: &impl AsRawFd, write: bool, timeout: Duration) -> io::Result<(bool, bool)> {
    let mut polled = polled(fd, write);
    wait_any(std::slice::from_mut(&mut polled), timeout)?;
    let read = polled.revents & !libc::POLLOUT != 0;
    Ok((read, polled.revents & libc::POLLOUT != 0))
}

/// Drops at most `n` received bytes of a TCP socket without copying them. Returns their number, 0 at the end
/// of the stream.
pub fn skip(stream: &TcpStream, n: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC a TCP socket drops the bytes and does not touch the buffer.
    let skipped = unsafe {
        libc::recv(stream.as_raw_fd(), std::ptr::null_mut(), n, libc::MSG_TRUNC | libc::MSG_DONTWAIT)
    };
    if skipped < 0 { Err(io::Error::last_os_error()) } else { Ok(skipped as usize) }
}

/// Begins to connect to 127.0.0.1:`port` without waiting: the socket becomes writable when it is connected.
/// Closing it resets the connection, so that its port can be used again at once.
pub fn begin_connect(port: u16) -> io::Result<TcpStream> {
    // SAFETY: no pointers are passed; the result is checked before it is owned.
    let fd = unsafe {
        libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fd is a fresh TCP socket without another owner.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: pointer and length describe `linger`, which outlives the call.
    unsafe {
        let length = size_of::<libc::linger>() as libc::socklen_t;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), length);
    }
    // SAFETY: an all-zero sockaddr_in is a valid one.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: pointer and length describe `address`, which outlives the call.
    let result = unsafe { libc::connect(fd, (&raw const address).cast(), length) };
    let error = io::Error::last_os_error();
    match result {
        0 => Ok(stream),
        _ if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(stream),
        _ => Err(error),
    }
}

/// Makes the child write "0" into `file` before it runs the program: a process joins a control group this
/// way.
pub fn join_group(command: &mut Command, file: std::fs::File) {
    // SAFETY: between fork and exec one async-signal-safe system call is made, on a descriptor the closure
    // owns.
    unsafe {
        command.pre_exec(move || match libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// Makes the kernel kill the child when the thread that starts it dies, and keeps it on `cpus` if any are
/// named.
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
