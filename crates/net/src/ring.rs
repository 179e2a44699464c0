//! A safe face for an io_uring: the only `unsafe` of this crate.
//!
//! ```text
//!  recv ─┐                     ┌─ completions: token, result, and a Lease on a receive buffer
//!  poll ─┼─► submission ─enter─┤
//!  send ─┘   queue             └─ sends that did not go out whole; all others are over when `enter` returns
//!
//!  receive buffers: one region, lent to the kernel through a buffer ring ──► Lease ──► give_back
//! ```
//!
//! - R1: the kernel writes into a receive buffer only while its number is in the buffer ring. A completion
//!   takes it out and makes its one [`Lease`]; only `give_back`, which consumes the lease, puts it in again.
//! - R2: the kernel reads a send buffer only inside `enter`. Sends carry MSG_DONTWAIT, so they are tried
//!   once, at submission, and are over when the kernel has taken their entry. The buffers stay in `sending`
//!   until then.
//! - R3: a ring is used only by the thread that made it (it is not `Send`), as IORING_SETUP_SINGLE_ISSUER
//!   demands.
//! - R4: the ring is closed before its receive buffers are unmapped, after everything in flight was
//!   cancelled.
//!
//! A send that goes out whole, with nothing more to send, makes no completion (IOSQE_CQE_SKIP_SUCCESS). So a
//! loop that waits for a completion is not woken by its own replies. With MSG_WAITALL a short send counts as
//! failed, so it does make a completion, with the bytes that went. [`Ring::trial`] proves this on a socket
//! pair before the server relies on it.

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Entries of the submission queue; a full one is submitted. Small in tests, so that it fills.
const ENTRIES: u32 = if cfg!(test) { 8 } else { 512 };
/// Entries of the completion queue. Completions that do not fit wait in the kernel.
const COMPLETIONS: u32 = if cfg!(test) { 16 } else { 4096 };
/// Number of receive buffers, a power of two, and their size. One connection may fill 32 of them in a turn.
const BUFFERS: u16 = 128;
const BUFFER_BYTES: usize = 8 * 1024;
const GROUP: u16 = 0;
/// More bytes than fit into a socket at once.
const TOO_MUCH: usize = 4 << 20;
/// Bit that marks the tokens of sends.
const SEND: u64 = 1 << 63;
/// Token of cancellations, whose completions are ignored.
const CANCEL: u64 = u64::MAX >> 1;

/// A descriptor the ring knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// A place in the ring's own table, for which the kernel counts no references.
    Direct(u32),
    Plain(RawFd),
}

/// A receive buffer with bytes in it. Must be given back.
pub(crate) struct Lease {
    buffer: u16,
    len: u32,
}

/// The result of a request.
pub(crate) struct Completion {
    pub(crate) token: u64,
    /// Bytes or events, or the error.
    pub(crate) result: Result<u32, Errno>,
    /// More completions of the same request follow.
    pub(crate) more: bool,
    pub(crate) lease: Option<Lease>,
}

/// A send that ended.
pub(crate) struct Ended {
    pub(crate) token: u64,
    pub(crate) bytes: Vec<u8>,
    /// The range of bytes that was to be sent.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Bytes that went out.
    pub(crate) result: Result<usize, Errno>,
}

struct Sending {
    ended: Ended,
    /// Entries queued up to and including this one.
    number: u64,
}

pub(crate) struct Ring {
    io: IoUring,
    // After `io`: fields are dropped in order (R4).
    buffers: Buffers,
    sending: Vec<Sending>,
    /// Entries queued so far.
    queued: u64,
    /// Places in the table of direct descriptors.
    direct: u32,
    one_thread: PhantomData<*const ()>,
}

impl Ring {
    /// Checks that the kernel provides a ring that behaves as this module needs. Errors: why not.
    pub(crate) fn trial() -> io::Result<()> {
        Ring::new(1)?.prove()
    }

    /// Makes a ring with room for `direct` descriptors (none if the system refuses). Errors: the kernel is
    /// too old, forbids io_uring, or has no memory for it.
    pub(crate) fn new(direct: u32) -> io::Result<Ring> {
        let io = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .dontfork()
            .build(ENTRIES)?;
        let params = io.params();
        if !(params.is_feature_nodrop()
            && params.is_feature_ext_arg()
            && params.is_feature_skip_cqe_on_success())
        {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let buffers = Buffers::new(&io)?;
        let direct = if io.submitter().register_files_sparse(direct).is_ok() { direct } else { 0 };
        Ok(Ring { io, buffers, sending: Vec::new(), queued: 0, direct, one_thread: PhantomData })
    }

    /// Puts a descriptor into place `at` of the table, if there is such a place. It stays usable until
    /// `forget`, even if `fd` is closed.
    pub(crate) fn know(&self, at: usize, fd: RawFd) -> File {
        match u32::try_from(at) {
            Ok(at)
                if at < self.direct
                    && self.io.submitter().register_files_update(at, &[fd]).is_ok_and(|n| n == 1) =>
            {
                File::Direct(at)
            }
            _ => File::Plain(fd),
        }
    }

    /// Takes a descriptor out of the table; what is in flight goes on.
    pub(crate) fn forget(&self, file: File) {
        if let File::Direct(at) = file {
            // The call can only fail for a place that does not exist.
            let _ = self.io.submitter().register_files_update(at, &[-1]);
        }
    }

    /// Receives from a socket repeatedly, until it is cancelled, ends, or finds no buffer.
    pub(crate) fn receive(&mut self, token: u64, file: File) {
        debug_assert!(token & SEND == 0 && token != CANCEL);
        let entry = match file {
            File::Direct(at) => opcode::RecvMulti::new(types::Fixed(at), GROUP).build(),
            File::Plain(fd) => opcode::RecvMulti::new(types::Fd(fd), GROUP).build(),
        };
        // SAFETY: the entry holds no pointer; the kernel takes buffers from the ring's own group (R1).
        unsafe { self.push(entry.user_data(token)) };
    }

    /// Reports when a descriptor has one of these events, or failed: once, or (`multi`) each time something
    /// new happens.
    pub(crate) fn poll(&mut self, token: u64, file: File, events: u32, multi: bool) {
        debug_assert!(token & SEND == 0 && token != CANCEL);
        let entry = match file {
            File::Direct(at) => opcode::PollAdd::new(types::Fixed(at), events).multi(multi).build(),
            File::Plain(fd) => opcode::PollAdd::new(types::Fd(fd), events).multi(multi).build(),
        };
        // SAFETY: the entry holds no pointer.
        unsafe { self.push(entry.user_data(token)) };
    }

    /// Cancels the request with that token; the request's last completion reports it.
    pub(crate) fn cancel(&mut self, token: u64) {
        let entry = opcode::AsyncCancel::new(token).build().user_data(CANCEL);
        // SAFETY: the entry holds no pointer but the token, which is only compared.
        unsafe { self.push(entry) };
    }

    /// Sends `bytes[from..to]` with the next `enter`; `ended` gives them back.
    pub(crate) fn send(&mut self, token: u64, file: File, bytes: Vec<u8>, from: usize, to: usize) {
        debug_assert!(token & SEND == 0);
        let part = &bytes[from..to];
        let (at, len) = (part.as_ptr(), part.len() as u32);
        let flags = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let entry = match file {
            File::Direct(place) => opcode::Send::new(types::Fixed(place), at, len).flags(flags).build(),
            File::Plain(fd) => opcode::Send::new(types::Fd(fd), at, len).flags(flags).build(),
        };
        // A connection with more to send needs a completion when this part went.
        let quiet = if to == bytes.len() { squeue::Flags::SKIP_SUCCESS } else { squeue::Flags::empty() };
        let entry = entry.flags(quiet).user_data(token | SEND);
        // SAFETY: `bytes` owns the memory `at` points to and moves into `sending`, where nothing touches it
        // before the kernel is through with it (R2).
        unsafe { self.push(entry) };
        let ended = Ended { token, bytes, from, to, result: Ok(to - from) };
        self.sending.push(Sending { ended, number: self.queued });
    }

    /// Submits what is queued and lets the kernel work; sleeps until there is a completion or the timeout
    /// ends.
    pub(crate) fn enter(&mut self, timeout: Duration) {
        let waits = !timeout.is_zero() && self.io.completion().is_empty();
        let timeout = types::Timespec::from(timeout);
        let args = types::SubmitArgs::new().timespec(&timeout);
        if waits {
            // Errors are a timeout, an interruption, or a full completion queue: the turn goes on with what
            // there is.
            let _ = self.io.submitter().submit_with_args(1, &args);
            return;
        }
        let to_submit = self.io.submission().len() as u32;
        let flags = 1; // IORING_ENTER_GETEVENTS: deferred work is done even though nothing is waited for.
        // SAFETY: no argument is passed; queued entries keep to R1 and R2.
        let _ = unsafe { self.io.submitter().enter::<libc::sigset_t>(to_submit, 0, flags, None) };
    }

    /// Fetches completions that did not fit into the queue, which must be empty; false if there are none.
    pub(crate) fn overflowed(&mut self) -> bool {
        let overflowed = self.io.submission().cq_overflow();
        if overflowed {
            // SAFETY: no argument is passed, and nothing is submitted.
            let _ = unsafe { self.io.submitter().enter::<libc::sigset_t>(0, 0, 1, None) };
        }
        overflowed
    }

    /// Whether the kernel has not taken all that was queued.
    pub(crate) fn has_queued(&mut self) -> bool {
        !self.io.submission().is_empty()
    }

    /// Takes the next completion that is not about a send.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        loop {
            let entry = self.io.completion().next()?;
            let (token, result, flags) = (entry.user_data(), entry.result(), entry.flags());
            if token == CANCEL {
                continue;
            }
            let result = match u32::try_from(result) {
                Ok(n) => Ok(n),
                Err(_) => Err(Errno::from_raw_os_error(-result)),
            };
            if token & SEND != 0 {
                self.note(token & !SEND, result);
                continue;
            }
            // Every completion that names a buffer is a receive of this ring: it takes the buffer out of the
            // ring (R1).
            let lease = cqueue::buffer_select(flags)
                .map(|buffer| Lease { buffer, len: result.unwrap_or(0).min(BUFFER_BYTES as u32) });
            return Some(Completion { token, result, more: cqueue::more(flags), lease });
        }
    }

    /// Notes that a send did not go out whole.
    fn note(&mut self, token: u64, result: Result<u32, Errno>) {
        // A token has one send in flight at a time: the latest with this token.
        if let Some(sending) = self.sending.iter_mut().rev().find(|s| s.ended.token == token) {
            sending.ended.result = result.map(|n| n as usize);
        }
    }

    /// Gives back the sends that are over. All completions must have been taken with `next`.
    pub(crate) fn ended(&mut self, mut each: impl FnMut(Ended)) {
        if self.sending.is_empty() {
            return;
        }
        let (waiting, overflow) = {
            let queue = self.io.submission();
            (queue.len() as u64, queue.cq_overflow())
        };
        if overflow {
            // A failure may still be on its way.
            return;
        }
        // The kernel takes entries in order.
        let taken = self.queued - waiting;
        let over = self.sending.iter().take_while(|s| s.number <= taken).count();
        self.sending.drain(..over).for_each(|s| each(s.ended));
    }

    pub(crate) fn bytes(&self, lease: &Lease) -> &[u8] {
        self.buffers.bytes(lease)
    }

    pub(crate) fn give_back(&mut self, lease: Lease) {
        self.buffers.put(lease.buffer);
    }

    /// # Safety
    /// Whatever the entry points to must stay as it is until the kernel is through with it.
    unsafe fn push(&mut self, entry: squeue::Entry) {
        self.queued += 1;
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.io.submission().push(&entry) }.is_ok() {
                return;
            }
            // Full: the kernel takes what is there. An error means that it is busy for a moment.
            let _ = self.io.submitter().submit();
        }
    }

    /// Checks on a socket pair what the sends rely on (R2), and polls and receives too.
    fn prove(&mut self) -> io::Result<()> {
        let unlike = || io::Error::other("sends do not behave as expected");
        let (mut near, far) = std::os::unix::net::UnixStream::pair()?;
        let file = File::Plain(far.as_raw_fd());
        // A page of zeros takes no memory until it is written.
        let big = vec![0u8; TOO_MUCH];
        self.send(1, file, b"whole".to_vec(), 0, 5);
        self.send(2, file, big, 0, TOO_MUCH);
        self.poll(3, file, libc::POLLIN as u32, false);
        self.receive(4, file);
        self.enter(Duration::ZERO);
        while self.next().is_some() {}
        let mut results = Vec::new();
        self.ended(|ended| results.push(ended.result));
        let [Ok(5), Ok(sent)] = results[..] else { return Err(unlike()) };
        if sent == 0 || sent >= TOO_MUCH {
            return Err(unlike());
        }
        near.set_nonblocking(true)?;
        let mut got = 0;
        let mut scratch = vec![0; 64 * 1024];
        while let Ok(n) = io::Read::read(&mut near, &mut scratch) {
            got += n;
        }
        io::Write::write_all(&mut near, b"hello")?;
        self.enter(Duration::from_millis(100));
        self.enter(Duration::ZERO);
        let (mut polled, mut received) = (false, false);
        while let Some(done) = self.next() {
            polled |= done.token == 3 && done.result.is_ok();
            if let Some(lease) = done.lease {
                received |= done.token == 4 && done.more && self.bytes(&lease) == b"hello";
                self.give_back(lease);
            }
        }
        self.cancel(4);
        self.enter(Duration::ZERO);
        self.enter(Duration::ZERO);
        let mut cancelled = false;
        while let Some(done) = self.next() {
            cancelled |= done.token == 4 && !done.more;
        }
        if got != sent + 5 || !polled || !received || !cancelled {
            return Err(unlike());
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Nothing is in flight when the buffers are unmapped (R4).
        let _ = self.io.submitter().register_sync_cancel(None, types::CancelBuilder::any());
        // SAFETY: no argument is passed.
        let _ = unsafe { self.io.submitter().enter::<libc::sigset_t>(0, 0, 1, None) };
        let _ = self.io.submitter().unregister_buf_ring(GROUP);
    }
}

/// The receive buffers and the ring that lends them, in one mapping: entries first. Pages take memory once
/// they are used.
struct Buffers {
    at: *mut u8,
    /// Where the next buffer is put. The kernel keeps the other end of the ring.
    tail: u16,
}

const RING_BYTES: usize = (BUFFERS as usize * size_of::<types::BufRingEntry>()).next_multiple_of(4096);
const MAPPED_BYTES: usize = RING_BYTES + BUFFERS as usize * BUFFER_BYTES;

impl Buffers {
    fn new(io: &IoUring) -> io::Result<Buffers> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                MAPPED_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let mut buffers = Buffers { at: at.cast(), tail: 0 };
        // SAFETY: the ring is page-aligned, has BUFFERS entries, and stays mapped until after the io_uring is
        // gone (R4).
        unsafe { io.submitter().register_buf_ring_with_flags(buffers.at as u64, BUFFERS, GROUP, 0)? };
        (0..BUFFERS).for_each(|buffer| buffers.put(buffer));
        Ok(buffers)
    }

    fn place(&self, buffer: u16) -> *mut u8 {
        assert!(buffer < BUFFERS, "the kernel names buffers it was lent");
        // SAFETY: the offset is inside the mapping, because `buffer < BUFFERS`.
        unsafe { self.at.add(RING_BYTES + usize::from(buffer) * BUFFER_BYTES) }
    }

    fn bytes(&self, lease: &Lease) -> &[u8] {
        // SAFETY: the lease is the only one for its buffer, and the kernel does not write there while it
        // exists (R1); the mapping is initialized (with zeros at first) and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.place(lease.buffer), lease.len as usize) }
    }

    /// Puts a buffer into the ring.
    fn put(&mut self, buffer: u16) {
        let place = self.place(buffer) as u64;
        let entries = self.at.cast::<types::BufRingEntry>();
        let index = usize::from(self.tail & (BUFFERS - 1));
        // SAFETY: the entry is inside the ring (the mask). The kernel reads entries below the tail only, and
        // this one is not: at most BUFFERS numbers exist, each in the ring at most once (R1).
        let entry = unsafe { &mut *entries.add(index) };
        entry.set_addr(place);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is a u16 inside the first entry, which `set_*` above do not touch; the kernel
        // reads it atomically, so it is stored so, after the entry was written.
        unsafe {
            let tail = types::BufRingEntry::tail(entries).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; the io_uring that used it is gone (R4), and no slice of it
        // outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), MAPPED_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// None where the kernel gives no io_uring.
    fn ring() -> Option<Ring> {
        Ring::new(16).ok()
    }

    #[test]
    fn buffers_run_out_and_come_back() {
        let Some(mut ring) = ring() else { return };
        let (mut near, far) = UnixStream::pair().unwrap();
        let file = ring.know(3, far.as_raw_fd());
        assert_eq!(file, File::Direct(3));
        ring.receive(9, file);
        ring.enter(Duration::ZERO);
        let total = usize::from(BUFFERS) * BUFFER_BYTES + 5000;
        let writer = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..total).map(|i| (i / 7) as u8).collect();
            near.write_all(&bytes).unwrap();
        });
        let (mut got, mut held, mut starved) = (Vec::new(), Vec::new(), false);
        while got.len() < total {
            ring.enter(Duration::from_millis(100));
            let (mut again, mut empty) = (false, false);
            while let Some(done) = ring.next() {
                if let Some(lease) = done.lease {
                    got.extend_from_slice(ring.bytes(&lease));
                    held.push(lease);
                }
                empty |= done.result == Err(Errno::NOBUFS);
                again |= !done.more;
            }
            starved |= empty;
            if empty {
                held.drain(..).for_each(|lease| ring.give_back(lease));
            }
            if again {
                ring.receive(9, file);
            }
        }
        writer.join().unwrap();
        assert!(starved);
        assert!(got.iter().enumerate().all(|(i, byte)| *byte == (i / 7) as u8));
    }

    #[test]
    fn a_short_send_tells_how_much_went() {
        let Some(mut ring) = ring() else { return };
        let (mut near, far) = UnixStream::pair().unwrap();
        let file = ring.know(0, far.as_raw_fd());
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i / 11) as u8).collect();
        let (mut from, mut got) = (0, Vec::new());
        near.set_nonblocking(true).unwrap();
        let mut rest = Some(bytes.clone());
        while got.len() < bytes.len() {
            if let Some(bytes) = rest.take() {
                let to = bytes.len();
                ring.send(1, file, bytes, from, to);
            }
            ring.enter(Duration::ZERO);
            while ring.next().is_some() {}
            ring.ended(|ended| match ended.result {
                Ok(n) if n == ended.to - ended.from => {}
                Ok(n) => {
                    from = ended.from + n;
                    rest = Some(ended.bytes);
                }
                Err(e) => {
                    assert_eq!(e, Errno::AGAIN);
                    rest = Some(ended.bytes);
                }
            });
            let mut scratch = vec![0; 50_000];
            if let Ok(n) = near.read(&mut scratch) {
                got.extend_from_slice(&scratch[..n]);
            }
        }
        assert!(got == bytes);
        drop(near);
        ring.send(1, file, b"x".to_vec(), 0, 1);
        ring.enter(Duration::ZERO);
        while ring.next().is_some() {}
        let mut results = Vec::new();
        ring.ended(|ended| results.push(ended.result));
        assert_eq!(results, [Err(Errno::PIPE)]);
    }
}
