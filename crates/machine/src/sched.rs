//! Shows which threads had the processors while a given thread did not, from the kernel's record of context
//! switches.
//!
//! ```text
//! watch(thread) ──► kernel: every switch ──► a ring per processor ──absence()──► Absence: threads that
//!                                                                                       ran instead
//! ```
//!
//! - S1: switches are noted while a thread is watched, or always. The first one of a processor shows which
//!   thread had it before.
//! - S2: a ring is read only on a question, back to the time asked for, and stopped while it is copied. The
//!   kernel overwrites the oldest records; a result that misses switches says so ([`Absence::seen_ns`]).
//! - S3: a record is checked like foreign input.
//!
//! Needs `CAP_PERFMON`, or `kernel.perf_event_paranoid` of 0 or less. Cost: less than 1 µs per switch of the
//! whole machine while it watches. A ring takes 64 KB per processor that this process may run on; a question
//! copies the newest 4 KB of each, or all of it (some 20 µs) if those do not reach back far enough.
//!
//! Source: the manual page perf_event_open(2).

use std::collections::HashMap;
use std::io;

/// A thread and its process. Both are 0 for an idle processor and for a process that cannot be seen from
/// here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Task {
    pub pid: u32,
    pub tid: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The thread got the processor.
    In,
    /// The thread gave the processor up, to wait for something.
    Blocked,
    /// The thread was preempted, or yielded: it could have gone on.
    Preempted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Switch {
    at_ns: u64,
    task: Task,
    kind: Kind,
}

/// The switches of one processor, oldest first.
#[derive(Default)]
struct Lane {
    /// The time from which on no switch is missing.
    since_ns: u64,
    switches: Vec<Switch>,
}

/// A watched thread, in its state when the watch began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Watched {
    tid: u32,
    since_ns: u64,
    /// If known: the index of its processor among the lanes, and whether it waited for something other than a
    /// processor.
    stood: Option<(usize, bool)>,
}

/// How a thread was kept from running.
#[derive(Default, Debug)]
pub struct Absence {
    /// How long it was watched without a missing switch.
    pub seen_ns: u64,
    /// How long of that it could have run and did not.
    pub preempted_ns: u64,
    /// How long it waited for something other than a processor.
    pub blocked_ns: u64,
    /// The threads that ran instead, on the processor taken from it, longest first.
    pub ran: Vec<(Task, u64)>,
    /// How long that processor was idle.
    pub idle_ns: u64,
}

/// Computes the absence of a thread between two readings of [`stdx::clock::mono_ns`]. O(n log n) in the
/// switches.
fn absence(lanes: &[Lane], watched: &Watched, from_ns: u64, to_ns: u64) -> Absence {
    let mut own: Vec<(u64, usize, Kind)> = Vec::new();
    for (cpu, lane) in lanes.iter().enumerate() {
        let of_it = lane.switches.iter().filter(|switch| switch.task.tid == watched.tid);
        own.extend(of_it.map(|switch| (switch.at_ns, cpu, switch.kind)));
    }
    own.sort_by_key(|(at_ns, ..)| *at_ns);
    let known_ns = lanes.iter().map(|lane| lane.since_ns).max().unwrap_or(0);
    let from_ns = from_ns.max(known_ns).max(watched.since_ns);
    let mut found = Absence { seen_ns: to_ns.saturating_sub(from_ns), ..Absence::default() };
    let mut ran: HashMap<Task, u64> = HashMap::new();
    // Without a switch it is unknown whether the thread ran.
    let stood = watched.stood.filter(|(at, _)| lanes.get(*at).is_some_and(|lane| !lane.switches.is_empty()));
    let kind = |blocked: bool| if blocked { Kind::Blocked } else { Kind::Preempted };
    let mut left = stood.map(|(at, blocked)| (watched.since_ns, at, kind(blocked)));
    // The thread counts as back at the end of the time.
    for (at_ns, cpu, kind) in own.into_iter().chain([(to_ns, 0, Kind::In)]) {
        if kind != Kind::In {
            left = Some((at_ns, cpu, kind));
            continue;
        }
        let Some((since_ns, cpu, kind)) = left.take() else { continue };
        let (since_ns, until_ns) = (since_ns.max(from_ns), at_ns.min(to_ns));
        let Some(ns) = until_ns.checked_sub(since_ns).filter(|ns| *ns > 0) else { continue };
        if kind == Kind::Blocked {
            found.blocked_ns += ns;
            continue;
        }
        found.preempted_ns += ns;
        lanes[cpu].add_up(since_ns, until_ns, &mut ran);
    }
    found.idle_ns = ran.remove(&NOBODY).unwrap_or(0);
    // The microsecond that the switch itself takes.
    ran.retain(|task, _| task.tid != watched.tid);
    found.ran = ran.into_iter().collect();
    found.ran.sort_unstable_by_key(|(task, ns)| (std::cmp::Reverse(*ns), task.tid));
    found
}

/// The task of an idle processor.
const NOBODY: Task = Task { pid: 0, tid: 0 };

impl Lane {
    /// Drops the switches before a moment. The thread that left first had the processor until then.
    fn begin_at(mut self, since_ns: u64) -> Lane {
        self.since_ns = self.since_ns.max(since_ns);
        let since_ns = self.since_ns;
        self.switches.retain(|switch| switch.at_ns >= since_ns);
        if let Some(first) = self.switches.first().filter(|first| first.kind != Kind::In).copied() {
            self.switches.insert(0, Switch { at_ns: since_ns, task: first.task, kind: Kind::In });
        }
        self
    }

    /// Adds up how long each task had the processor between two moments.
    fn add_up(&self, from_ns: u64, to_ns: u64, ran: &mut HashMap<Task, u64>) {
        let mut came = self.switches.iter().filter(|switch| switch.kind == Kind::In).peekable();
        while let Some(switch) = came.next() {
            let until_ns = came.peek().map_or(to_ns, |next| next.at_ns).min(to_ns);
            let ns = until_ns.saturating_sub(switch.at_ns.max(from_ns));
            if ns > 0 {
                *ran.entry(switch.task).or_default() += ns;
            }
        }
    }
}

/// Reads the contents of a ring back to `from_ns`, or all it has. `data` begins with the newest record. No byte
/// is trusted. O(records read).
fn parse(data: &[u8], behind_ns: u64, from_ns: u64) -> Lane {
    let word = |at: usize| {
        data.get(at..at + 4).map(|bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut lane = Lane::default();
    let mut at = 0;
    while let (Some(kind), Some(flags)) = (word(at), word(at + 4)) {
        let (misc, len) = (flags as u16, (flags >> 16) as usize);
        if len < 8 {
            // Never written.
            break;
        }
        if at + len > data.len() {
            // Half of it was overwritten, and all older records are gone.
            lane.since_ns = lane.switches.last().map_or(u64::MAX, |oldest: &Switch| oldest.at_ns);
            break;
        }
        if kind == RECORD_LOST && lane.since_ns == 0 {
            lane.since_ns = lane.switches.last().map_or(u64::MAX, |oldest| oldest.at_ns);
        }
        if kind == RECORD_SWITCH_CPU_WIDE
            && let (Some(pid), Some(tid)) = (word(at + 16), word(at + 20))
            && let (Some(low), Some(high)) = (word(at + 24), word(at + 28))
        {
            let kind = match (misc & MISC_SWITCH_OUT != 0, misc & MISC_SWITCH_OUT_PREEMPT != 0) {
                (false, _) => Kind::In,
                (true, false) => Kind::Blocked,
                (true, true) => Kind::Preempted,
            };
            let at_ns = (u64::from(low) | u64::from(high) << 32).saturating_sub(behind_ns);
            if at_ns < from_ns {
                // Records that were lost since are known by now.
                lane.since_ns = lane.since_ns.max(from_ns);
                break;
            }
            lane.switches.push(Switch { at_ns, task: Task { pid, tid }, kind });
        }
        at += len;
    }
    if at >= data.len() && lane.since_ns == 0 {
        lane.since_ns = lane.switches.last().map_or(u64::MAX, |oldest| oldest.at_ns);
    }
    lane.switches.reverse();
    lane
}

use kernel::{MISC_SWITCH_OUT, MISC_SWITCH_OUT_PREEMPT, RECORD_LOST, RECORD_SWITCH_CPU_WIDE};
pub use kernel::{Witness, is_kept_waiting};

#[cfg(target_os = "linux")]
mod kernel {
    use super::{Absence, Lane, Watched, absence, io, parse};
    use perf_event_open_sys as sys;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::ptr::NonNull;
    use std::sync::atomic::{Ordering, fence};
    use sys::bindings::{self, perf_event_attr, perf_event_mmap_page};

    pub(super) const RECORD_LOST: u32 = bindings::PERF_RECORD_LOST;
    pub(super) const RECORD_SWITCH_CPU_WIDE: u32 = bindings::PERF_RECORD_SWITCH_CPU_WIDE;
    pub(super) const MISC_SWITCH_OUT: u16 = bindings::PERF_RECORD_MISC_SWITCH_OUT as u16;
    pub(super) const MISC_SWITCH_OUT_PREEMPT: u16 = bindings::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT as u16;

    /// Bytes of a ring. A power of two, in pages.
    const RING: usize = 64 * 1024;
    /// Bytes of a ring that are read first. They hold the switches of some milliseconds.
    const NEWEST: usize = 4 * 1024;
    /// Bytes of a record: head, thread, process, and time.
    const RECORD: u64 = 32;
    /// With more processors than this, only the thread's own is watched.
    const ALL: usize = 16;

    /// Watches which threads run instead of others.
    pub struct Witness {
        rings: Vec<Ring>,
        /// How far this process's clock is behind the kernel's.
        behind_ns: u64,
        watched: Vec<Watched>,
        /// Since when every thread is watched, if so.
        all_since_ns: Option<u64>,
    }

    impl Witness {
        /// A witness that watches no thread yet. Fails as the system call does: `EACCES` or `EPERM` without
        /// the right to it.
        pub fn open() -> io::Result<Witness> {
            let mono = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let kernel_ns = mono.tv_sec as u64 * 1_000_000_000 + mono.tv_nsec as u64;
            let behind_ns = kernel_ns.saturating_sub(stdx::clock::mono_ns());
            let set = rustix::thread::sched_getaffinity(None)?;
            let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
            let rings: io::Result<Vec<Ring>> = cpus.map(Ring::open).collect();
            Ok(Witness { rings: rings?, behind_ns, watched: Vec::new(), all_since_ns: None })
        }

        /// Begins or ends watching every thread. True if this ended all watching just now.
        pub fn watch_all(&mut self, on: bool) -> bool {
            if self.all_since_ns.is_some() == on {
                return false;
            }
            self.rings.iter().for_each(|ring| ring.note(on));
            self.all_since_ns = on.then(stdx::clock::mono_ns);
            if !on {
                self.watched.clear();
            }
            !on
        }

        /// How many switches were noted so far. One load per processor.
        pub fn noted(&self) -> u64 {
            // A switch from one thread to another takes two records.
            self.rings.iter().map(Ring::written).sum::<u64>() / (2 * RECORD)
        }

        /// Begins to watch a thread of this process, unless it is watched. Costs some 20 µs, and an interrupt
        /// to each processor.
        pub fn watch(&mut self, tid: u32) {
            if self.all_since_ns.is_some() || self.watched.iter().any(|watched| watched.tid == tid) {
                return;
            }
            let stood = standing(tid).and_then(|(blocked, cpu)| {
                Some((self.rings.iter().position(|ring| ring.cpu == cpu)?, blocked))
            });
            let all = self.rings.len() <= ALL;
            let noted = |at: usize| all || stood.is_none_or(|(own, _)| own == at);
            self.rings.iter().enumerate().filter(|(at, _)| noted(*at)).for_each(|(_, ring)| ring.note(true));
            let since_ns = stdx::clock::mono_ns();
            self.watched.push(Watched { tid, since_ns, stood });
        }

        /// Tells what kept a watched thread from running between two readings of [`stdx::clock::mono_ns`], the
        /// first of which it took itself. `None`: it was not watched. O(switches since then).
        pub fn absence(&self, tid: u32, from_ns: u64, to_ns: u64) -> Option<Absence> {
            let all = self.all_since_ns.map(|since_ns| Watched { tid, since_ns, stood: None });
            let watched = self.watched.iter().find(|watched| watched.tid == tid).copied().or(all)?;
            // Whatever it did before, it ran when it read the clock.
            let ran = Watched { tid, since_ns: from_ns, stood: None };
            let watched = if watched.since_ns <= from_ns { ran } else { watched };
            let since_ns = watched.since_ns;
            let lanes = self.rings.iter().map(|ring| ring.lane(self.behind_ns, since_ns).begin_at(since_ns));
            let lanes: Vec<Lane> = lanes.collect();
            Some(absence(&lanes, &watched, from_ns, to_ns))
        }

        /// Stops watching a thread.
        pub fn leave(&mut self, tid: u32) {
            let before = self.watched.len();
            self.watched.retain(|watched| watched.tid != tid);
            if before > 0 && self.watched.is_empty() && self.all_since_ns.is_none() {
                self.rings.iter().for_each(|ring| ring.note(false));
            }
        }
    }

    /// Whether a thread of this process could run and does not: its CPU time stands still. False if unknown.
    /// Costs 1 µs if it runs, else some 20.
    pub fn is_kept_waiting(tid: u32) -> bool {
        let before = cpu_ns(tid);
        let stands = before.is_some() && cpu_ns(tid) == before;
        stands && standing(tid).is_some_and(|(blocked, _)| !blocked) && cpu_ns(tid) == before
    }

    /// CPU time of a thread of this process, in nanoseconds.
    fn cpu_ns(tid: u32) -> Option<u64> {
        // clock_getcpuclockid(3) takes no thread id. A clock's number is made like this.
        let clock = !i32::try_from(tid).ok()? << 3 | 6;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes the time that it is given, which lives.
        let rc = unsafe { libc::clock_gettime(clock, &raw mut time) };
        (rc == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// Whether a thread of this process waits for something other than a processor, and its processor.
    fn standing(tid: u32) -> Option<(bool, usize)> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
        // The name, in brackets, may hold anything. The third field and the others follow it.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let blocked = fields.next()? != "R";
        Some((blocked, fields.nth(35)?.parse().ok()?))
    }

    /// The kernel's record of one processor's switches.
    struct Ring {
        cpu: usize,
        event: File,
        map: NonNull<u8>,
        page: usize,
    }

    // SAFETY: the mapping belongs to the ring alone and is reached from any thread alike.
    unsafe impl Send for Ring {}

    impl Ring {
        fn open(cpu: usize) -> io::Result<Ring> {
            let mut attr = perf_event_attr {
                type_: bindings::PERF_TYPE_SOFTWARE,
                size: std::mem::size_of::<perf_event_attr>() as u32,
                config: bindings::PERF_COUNT_SW_DUMMY.into(),
                sample_type: (bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_TIME).into(),
                clockid: libc::CLOCK_MONOTONIC,
                ..perf_event_attr::default()
            };
            attr.set_context_switch(1);
            attr.set_disabled(1);
            attr.set_sample_id_all(1);
            attr.set_use_clockid(1);
            attr.set_write_backward(1);
            let flags = bindings::PERF_FLAG_FD_CLOEXEC.into();
            // SAFETY: the attributes are valid for the call, which keeps no pointer to them.
            let fd = unsafe { sys::perf_event_open(&mut attr, -1, cpu as i32, -1, flags) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: it was just opened, and is known here only.
            let event = unsafe { File::from_raw_fd(fd) };
            let page = rustix::param::page_size();
            let (prot, kind) = (libc::PROT_READ, libc::MAP_SHARED);
            // SAFETY: a new mapping of a file, at an address that the kernel chooses. It is read-only, so the
            // kernel overwrites old records (S2).
            let map =
                unsafe { libc::mmap(std::ptr::null_mut(), page + RING, prot, kind, event.as_raw_fd(), 0) };
            if map == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let map = NonNull::new(map.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
            Ok(Ring { cpu, event, map, page })
        }

        /// Where the newest record begins: the kernel writes backward, from 0 on.
        fn head(&self) -> u64 {
            // SAFETY: the first page of the mapping is of this type; the field is aligned, and read in one
            // go.
            let head = unsafe {
                (&raw const (*self.map.as_ptr().cast::<perf_event_mmap_page>()).data_head).read_volatile()
            };
            fence(Ordering::Acquire);
            head
        }

        /// Bytes written so far.
        fn written(&self) -> u64 {
            self.head().wrapping_neg()
        }

        /// The switches since `from_ns`, as far as they are known.
        fn lane(&self, behind_ns: u64, from_ns: u64) -> Lane {
            let newest = parse(&self.copy(NEWEST), behind_ns, from_ns);
            if newest.since_ns <= from_ns { newest } else { parse(&self.copy(RING), behind_ns, from_ns) }
        }

        /// The newest `len` bytes of the ring, newest record first.
        fn copy(&self, len: usize) -> Vec<u8> {
            let len = len.min(RING);
            let mut data = Vec::with_capacity(len);
            self.pause(1);
            let from = self.head() as usize & (RING - 1);
            let first = len.min(RING - from);
            // SAFETY: the ring lies behind the first page and has `RING` bytes; `from` is below that, and `len`
            // not above. It is stopped (S2). If the kernel still completes a record, its bytes may be torn;
            // they are not trusted (S3).
            unsafe {
                let ring = self.map.as_ptr().add(self.page);
                std::ptr::copy_nonoverlapping(ring.add(from), data.as_mut_ptr(), first);
                std::ptr::copy_nonoverlapping(ring, data.as_mut_ptr().add(first), len - first);
                data.set_len(len);
            }
            self.pause(0);
            data
        }

        /// Starts or stops noting switches.
        fn note(&self, on: bool) {
            let call = if on { sys::ioctls::ENABLE } else { sys::ioctls::DISABLE };
            // SAFETY: the file is an event's; the call takes no pointer.
            unsafe { call(self.event.as_raw_fd(), 0) };
        }

        fn pause(&self, on: u32) {
            // SAFETY: the file is an event's; the call takes a number.
            unsafe { sys::ioctls::PAUSE_OUTPUT(self.event.as_raw_fd(), on) };
        }
    }

    impl Drop for Ring {
        fn drop(&mut self) {
            // SAFETY: it was mapped with this size, and nothing refers to it any more.
            unsafe { libc::munmap(self.map.as_ptr().cast(), self.page + RING) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    use super::{Absence, io};

    pub(super) const RECORD_LOST: u32 = 2;
    pub(super) const RECORD_SWITCH_CPU_WIDE: u32 = 15;
    pub(super) const MISC_SWITCH_OUT: u16 = 1 << 13;
    pub(super) const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;

    pub fn is_kept_waiting(_tid: u32) -> bool {
        false
    }

    /// Not available on this system.
    pub struct Witness(std::convert::Infallible);

    impl Witness {
        pub fn open() -> io::Result<Witness> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub fn watch_all(&mut self, _on: bool) -> bool {
            match self.0 {}
        }

        pub fn noted(&self) -> u64 {
            match self.0 {}
        }

        pub fn watch(&mut self, _tid: u32) {
            match self.0 {}
        }

        pub fn absence(&self, _tid: u32, _from_ns: u64, _to_ns: u64) -> Option<Absence> {
            match self.0 {}
        }

        pub fn leave(&mut self, _tid: u32) {
            match self.0 {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Task = Task { pid: 1, tid: 10 };
    const B: Task = Task { pid: 2, tid: 20 };
    const C: Task = Task { pid: 3, tid: 30 };

    fn lane(switches: &[(u64, Task, Kind)]) -> Lane {
        let switches = switches.iter().map(|&(at_ns, task, kind)| Switch { at_ns, task, kind }).collect();
        Lane { since_ns: 0, switches }
    }

    #[test]
    fn who_ran_instead_of_a_thread_is_told_longest_first() {
        use Kind::{Blocked, In, Preempted};
        let lanes = [
            lane(&[
                (5, A, In),
                (100, A, Preempted),
                (100, B, In),
                (130, B, Preempted),
                (130, C, In),
                (200, C, Blocked),
                (200, NOBODY, In),
                (210, NOBODY, Blocked),
                (210, A, In),
                (300, A, Blocked),
                (300, B, In),
                (400, B, Preempted),
            ]),
            lane(&[(350, A, In), (500, A, Preempted), (500, B, In)]),
        ];
        let watched = Watched { tid: 10, since_ns: 5, stood: Some((0, false)) };
        let found = absence(&lanes, &watched, 50, 600);
        assert_eq!((found.seen_ns, found.preempted_ns, found.blocked_ns), (550, 110 + 100, 50));
        assert_eq!((found.ran, found.idle_ns), (vec![(B, 30 + 100), (C, 70)], 10));
        // Only the part of an absence within the time counts.
        let found = absence(&lanes, &watched, 120, 150);
        assert_eq!((found.preempted_ns, found.ran), (30, vec![(C, 20), (B, 10)]));
        let late = Watched { since_ns: 140, ..watched };
        assert_eq!(absence(&lanes, &late, 120, 150).seen_ns, 10);
    }

    #[test]
    fn who_had_the_processor_at_first_is_who_left_it_first() {
        use Kind::{Blocked, In, Preempted};
        let began = |switches: &[_]| vec![lane(switches).begin_at(100)];
        let watched = |blocked| Watched { tid: 10, since_ns: 100, stood: Some((0, blocked)) };
        // B was there, and leaves for A.
        let lanes =
            began(&[(90, A, Preempted), (90, C, In), (250, B, Blocked), (250, A, In), (400, A, Blocked)]);
        let found = absence(&lanes, &watched(false), 0, 300);
        assert_eq!((found.seen_ns, found.preempted_ns, found.ran), (200, 150, vec![(B, 150)]));
        let found = absence(&lanes, &watched(true), 0, 300);
        assert_eq!((found.preempted_ns, found.blocked_ns), (0, 150));
        // A itself was there.
        let lanes = began(&[(250, A, Preempted), (250, B, In)]);
        assert_eq!(absence(&lanes, &watched(false), 0, 300).ran, [(B, 50)]);
        // A thread in an unknown state counts from its first switch on.
        let unknown = Watched { tid: 10, since_ns: 100, stood: None };
        let lanes = began(&[(250, B, Blocked), (250, A, In), (280, A, Preempted), (280, C, In)]);
        assert_eq!(absence(&lanes, &unknown, 0, 300).ran, [(C, 20)]);
        // Without a switch nothing is known.
        let found = absence(&began(&[]), &watched(false), 0, 300);
        assert_eq!((found.preempted_ns, found.seen_ns), (0, 200));
    }

    fn record(kind: u32, misc: u16, task: Task, at_ns: u64) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(32u16.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(task.pid.to_ne_bytes());
        bytes.extend(task.tid.to_ne_bytes());
        bytes.extend(at_ns.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_ring_is_read_from_its_newest_record_to_what_is_overwritten() {
        let out = MISC_SWITCH_OUT | MISC_SWITCH_OUT_PREEMPT;
        let newest = record(RECORD_SWITCH_CPU_WIDE, 0, B, 1300);
        let older = record(RECORD_SWITCH_CPU_WIDE, out, A, 1200);
        let blocked = record(RECORD_SWITCH_CPU_WIDE, MISC_SWITCH_OUT, A, 1100);
        let whole = [newest, older, blocked].concat();
        // Bytes that were never written are zero.
        let read = parse(&[&whole[..], &[0; 64]].concat(), 1000, 0);
        assert_eq!(read.since_ns, 0);
        let told: Vec<_> =
            read.switches.iter().map(|switch| (switch.at_ns, switch.task, switch.kind)).collect();
        assert_eq!(told, [(100, A, Kind::Blocked), (200, A, Kind::Preempted), (300, B, Kind::In)]);
        // A full ring, and one whose oldest record is half overwritten.
        assert_eq!(parse(&whole, 1000, 0).since_ns, 100);
        let cut = parse(&whole[..80], 1000, 0);
        assert_eq!((cut.since_ns, cut.switches.len()), (200, 2));
        let watched = Watched { tid: 10, since_ns: 0, stood: Some((0, false)) };
        assert_eq!(absence(&[cut], &watched, 150, 400).seen_ns, 200);
        // Where records were lost, older ones are not reliable.
        let lost =
            [record(RECORD_SWITCH_CPU_WIDE, 0, B, 1300), record(RECORD_LOST, 0, A, 0), vec![0; 64]].concat();
        assert_eq!(parse(&lost, 1000, 0).since_ns, 300);
        let twice = [&lost[..64], &whole[32..], &lost[32..64], &[0; 64]].concat();
        assert_eq!(parse(&twice, 1000, 0).since_ns, 300);
    }

    #[test]
    fn a_ring_is_read_back_to_the_time_asked_for() {
        let switch = |at_ns: u64| record(RECORD_SWITCH_CPU_WIDE, MISC_SWITCH_OUT, A, at_ns);
        let whole = [switch(1300), switch(1200), switch(1100)].concat();
        let since = |data: &[u8], from_ns| {
            let lane = parse(data, 1000, from_ns);
            (lane.since_ns, lane.switches.iter().map(|switch| switch.at_ns).collect::<Vec<_>>())
        };
        // An older record shows that none is missing since.
        assert_eq!(since(&whole, 150), (150, vec![200, 300]));
        assert_eq!(since(&whole, 200), (200, vec![200, 300]));
        assert_eq!(since(&whole, 400), (400, vec![]));
        // Too little was read.
        assert_eq!(since(&whole[..64], 150), (200, vec![200, 300]));
        let lost = [switch(1300), record(RECORD_LOST, 0, A, 0), switch(1100)].concat();
        assert_eq!(since(&lost, 150), (300, vec![300]));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut seed = 1u64;
        for len in (0..300).chain([4096]) {
            let bytes: Vec<u8> = (0..len)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (seed >> 60) as u8
                })
                .collect();
            let lane = parse(&bytes, 5, seed & 7);
            let watched = Watched { tid: 1, since_ns: 7, stood: Some((0, false)) };
            absence(&[lane.begin_at(7)], &watched, 0, u64::MAX);
        }
    }

    /// Where the system allows it: a thread that shares its processor with another one's endless loop sees
    /// that thread.
    #[cfg(target_os = "linux")]
    #[test]
    fn who_takes_a_processor_is_seen() {
        use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
        use std::sync::atomic::{AtomicBool, Ordering};

        let Ok(mut witness) = Witness::open() else {
            return eprintln!("not allowed here: nothing was tested");
        };
        let allowed = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
        sched_setaffinity(None, &one).unwrap();
        let me = || gettid().as_raw_nonzero().get() as u32;
        let (ended, (tell, told)) = (AtomicBool::new(false), std::sync::mpsc::channel());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tell.send(me()).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let other = told.recv().unwrap();
            // While this thread asks, the other has no processor, except for moments.
            let began_ns = stdx::clock::mono_ns();
            let mut kept = false;
            while !kept && stdx::clock::mono_ns() - began_ns < 30_000_000_000 {
                kept = is_kept_waiting(other);
            }
            if !kept {
                ended.store(true, Ordering::Relaxed);
            }
            assert!(kept && !is_kept_waiting(me()) && !is_kept_waiting(u32::MAX));
            witness.watch(me());
            let from_ns = stdx::clock::mono_ns();
            // Each of the two must get the processor some time.
            let seen = loop {
                let spun_ns = stdx::clock::mono_ns();
                while stdx::clock::mono_ns() - spun_ns < 5_000_000 {}
                let found = witness.absence(me(), from_ns, stdx::clock::mono_ns()).unwrap();
                if found.ran.iter().any(|(task, ns)| task.tid == other && *ns > 0) {
                    break found;
                }
            };
            ended.store(true, Ordering::Relaxed);
            assert!(seen.preempted_ns > 0 && seen.ran.iter().all(|(task, _)| task.tid != me()), "{seen:?}");
            witness.leave(me());
            assert!(witness.absence(me(), from_ns, from_ns + 1).is_none());
            // Everything is noted, then nothing.
            let noted = witness.noted();
            assert!(noted > 0 && !witness.watch_all(true));
            assert!(witness.absence(me(), from_ns, from_ns + 1).is_some());
            assert!(witness.watch_all(false) && !witness.watch_all(false));
            assert!(witness.absence(me(), from_ns, from_ns + 1).is_none() && witness.noted() >= noted);
        });
    }
}
