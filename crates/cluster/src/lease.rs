//! The state of one held lease, and the thread that renews it.
//!
//! ```text
//! renewal sent at t, kept ──► fence_at = t + TTL − 500 ms, in one atomic ──► whoever answers clients looks at it
//! ```
//!
//! - LE1 (F1): `fence_at` comes from the time *before* the last kept renewal was sent, by [`boot_ns`]. So it
//!   passes before the coordinator can give the lease to another, as long as clocks differ in speed by less
//!   than the margin in a TTL. Wall clocks are never used.
//! - LE2: a renewal that is Unknown changes nothing. One that is Lost ends the lease at once and for good: an
//!   answer that comes late does not revive it.
//! - LE3: the atomic alone fences. What [`Keeper`] tells comes later, by up to the time of one call.
//! - LE4: a release closes the fence before the coordinator hears of it.

use crate::coordinator::{Coordinator, Lease, NodeId, Renewed, Stop, Trouble, boot_ns};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The part of the TTL that is not used, for clocks that run at different speeds.
pub const MARGIN: Duration = Duration::from_millis(500);
/// The time from one renewal to the next.
pub const PERIOD: Duration = Duration::from_secs(1);

/// The time from which on nothing may be answered, in nanoseconds of [`boot_ns`]. 0: no lease is held. Copies
/// are one. Cost: a load.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<AtomicU64>);

impl Fence {
    pub fn new() -> Fence {
        Fence::default()
    }

    pub fn at_ns(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether nothing may be answered at this time.
    pub fn has_passed(&self, now_ns: u64) -> bool {
        now_ns >= self.at_ns()
    }

    fn set(&self, at_ns: u64) {
        self.0.store(at_ns, Ordering::Release);
    }
}

/// One lease, from when it was acquired. No I/O. One thread has it; all others see its [`Fence`].
#[derive(Debug)]
pub struct HeldLease {
    fence: Fence,
    ttl: Duration,
    lost: bool,
}

impl HeldLease {
    /// `sent_ns`: before the call that acquired it.
    pub fn new(fence: Fence, sent_ns: u64, ttl: Duration) -> HeldLease {
        let mut held = HeldLease { fence, ttl, lost: false };
        held.kept(sent_ns);
        held
    }

    /// Takes the answer to a renewal that was sent after `sent_ns`. Answers may come in any order.
    pub fn renewed(&mut self, sent_ns: u64, answer: &Renewed) {
        match answer {
            Renewed::Kept => self.kept(sent_ns),
            Renewed::Lost => self.end(),
            Renewed::Unknown(_) => {}
        }
    }

    /// Ends it at once and for good (LE2).
    pub fn end(&mut self) {
        self.lost = true;
        self.fence.set(0);
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// 0: it is lost.
    pub fn fence_at_ns(&self) -> u64 {
        if self.lost { 0 } else { self.fence.at_ns() }
    }

    fn kept(&mut self, sent_ns: u64) {
        let at = sent_ns.saturating_add(self.ttl.saturating_sub(MARGIN).as_nanos() as u64);
        if !self.lost && at > self.fence.at_ns() {
            self.fence.set(at);
        }
    }
}

/// The clock of a [`Keeper`]; tests have one that jumps.
pub trait Clock: Send + Sync {
    /// On the scale of [`boot_ns`].
    fn now_ns(&self) -> u64;

    /// Waits until that time, or until it is stopped. It may return early.
    fn wait_until(&self, at_ns: u64, stop: &Stop);
}

/// The machine's clock.
pub struct BootClock;

impl Clock for BootClock {
    fn now_ns(&self) -> u64 {
        boot_ns()
    }

    fn wait_until(&self, at_ns: u64, stop: &Stop) {
        // Short waits, as a wait does not count the time that the machine is suspended.
        let left = Duration::from_nanos(at_ns.saturating_sub(boot_ns()));
        stop.wait(left.min(Duration::from_millis(100)));
    }
}

/// Changes of a lease's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It was renewed. Also behind [`News::Fenced`]: nobody else had it meanwhile.
    Kept { fence_at_ns: u64 },
    /// A renewal has no answer.
    Unknown(Trouble),
    /// The fence passed: nothing is answered, and renewals go on. Told once each time.
    Fenced,
    /// It is over, for good. The last news.
    Lost,
}

/// A thread that renews one lease. Dropped, it stops to renew it, and the fence stays where it is.
pub struct Keeper {
    lease: Lease,
    coordinator: Arc<dyn Coordinator>,
    fence: Fence,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts with a lease that was acquired by a call after `sent_ns`. `told` runs on the keeper's thread and
    /// may not drop the keeper. Errors: the system has no thread.
    pub fn start(
        coordinator: Arc<dyn Coordinator>,
        lease: Lease,
        sent_ns: u64,
        fence: Fence,
        clock: Arc<dyn Clock>,
        told: impl FnMut(News) + Send + 'static,
    ) -> io::Result<Keeper> {
        let stop = Stop::new();
        let held = HeldLease::new(fence.clone(), sent_ns, lease.ttl);
        let turns =
            Turns { coordinator: coordinator.clone(), lease: lease.clone(), held, clock, stop: stop.clone() };
        let thread = std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || turns.run(sent_ns, told))
            .inspect_err(|_| fence.set(0))?;
        Ok(Keeper { lease, coordinator, fence, stop, thread: Some(thread) })
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Closes the fence, waits for the thread, and gives the lease back (LE4). Blocks for up to two calls.
    /// Errors: no answer; then it ends by itself.
    pub fn release(mut self, next: Option<&NodeId>) -> Result<(), Trouble> {
        self.end();
        self.fence.set(0);
        self.coordinator.release(self.lease.clone(), next)
    }

    fn end(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread's part.
struct Turns {
    coordinator: Arc<dyn Coordinator>,
    lease: Lease,
    held: HeldLease,
    clock: Arc<dyn Clock>,
    stop: Stop,
}

impl Turns {
    fn run(mut self, sent_ns: u64, mut told: impl FnMut(News)) {
        let period = PERIOD.as_nanos() as u64;
        let (mut next, mut fenced) = (sent_ns + period, false);
        while !self.stop.is_stopped() {
            let now = self.clock.now_ns();
            let fence_at = self.held.fence_at_ns();
            if !fenced && now >= fence_at {
                fenced = true;
                told(News::Fenced);
            }
            if now < next {
                let until = if fenced { next } else { next.min(fence_at) };
                self.clock.wait_until(until, &self.stop);
                continue;
            }
            next = now + period;
            let answer = self.coordinator.renew(&self.lease);
            if self.stop.is_stopped() {
                return;
            }
            self.held.renewed(now, &answer);
            match answer {
                Renewed::Kept => {
                    let fence_at_ns = self.held.fence_at_ns();
                    fenced = self.clock.now_ns() >= fence_at_ns;
                    told(if fenced { News::Fenced } else { News::Kept { fence_at_ns } });
                }
                Renewed::Unknown(trouble) => told(News::Unknown(trouble)),
                Renewed::Lost => return told(News::Lost),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{Cas, Change, Ended, Entry, Held, Revision, ShardId};
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Condvar, Mutex};

    const MS: u64 = 1_000_000;
    const TTL: Duration = Duration::from_secs(3);

    fn unknown() -> Renewed {
        Renewed::Unknown(Trouble::new("no answer"))
    }

    #[test]
    fn the_fence_counts_from_before_the_last_kept_renewal_was_sent() {
        let fence = Fence::new();
        assert!(fence.has_passed(0), "no lease");
        let mut held = HeldLease::new(fence.clone(), 1000 * MS, TTL);
        assert_eq!(fence.at_ns(), 3500 * MS);
        assert!(!fence.has_passed(3499 * MS));
        assert!(fence.has_passed(3500 * MS));
        held.renewed(2000 * MS, &Renewed::Kept);
        assert_eq!(fence.at_ns(), 4500 * MS);
        // An answer that does not come moves nothing, and neither does the late one of an earlier renewal.
        held.renewed(3000 * MS, &unknown());
        held.renewed(1500 * MS, &Renewed::Kept);
        assert_eq!(fence.at_ns(), 4500 * MS);
    }

    #[test]
    fn a_lost_lease_is_lost_for_good() {
        let fence = Fence::new();
        let mut held = HeldLease::new(fence.clone(), 1000 * MS, TTL);
        held.renewed(2000 * MS, &Renewed::Lost);
        assert!(held.is_lost() && fence.has_passed(1));
        held.renewed(2500 * MS, &Renewed::Kept);
        assert!(fence.has_passed(1) && held.fence_at_ns() == 0);
        // The node's next lease uses the same fence.
        let next = HeldLease::new(fence.clone(), 9000 * MS, TTL);
        assert_eq!((fence.at_ns(), next.is_lost()), (11_500 * MS, false));
    }

    /// A clock that stands until a test moves it.
    #[derive(Default)]
    struct Jumping(Mutex<u64>, Condvar);

    impl Jumping {
        fn jump(&self, ms: u64) {
            *self.0.lock().expect("time") += ms * MS;
            self.1.notify_all();
        }
    }

    impl Clock for Jumping {
        fn now_ns(&self) -> u64 {
            *self.0.lock().expect("time")
        }

        fn wait_until(&self, at_ns: u64, _stop: &Stop) {
            let now = self.0.lock().expect("time");
            let wait = |now: &mut u64| *now < at_ns;
            let _ = self.1.wait_timeout_while(now, Duration::from_millis(5), wait).expect("time");
        }
    }

    /// Answers renewals as the test says, after it has looked.
    struct Scripted {
        answers: Mutex<Receiver<Renewed>>,
        released: Mutex<Vec<Option<String>>>,
    }

    impl Coordinator for Scripted {
        fn describe(&self) -> String {
            "script".to_owned()
        }

        fn acquire(&self, _: &ShardId, me: &NodeId, _: Duration) -> Result<Lease, Held> {
            Err(Held::By(me.clone()))
        }

        fn renew(&self, _: &Lease) -> Renewed {
            self.answers.lock().expect("answers").recv().unwrap_or(Renewed::Lost)
        }

        fn release(&self, _: Lease, next: Option<&NodeId>) -> Result<(), Trouble> {
            self.released.lock().expect("released").push(next.map(ToString::to_string));
            Ok(())
        }

        fn read(&self, _: &str) -> Result<(Revision, Vec<Entry>), Trouble> {
            Ok((1, Vec::new()))
        }

        fn cas(&self, _: &str, _: Revision, _: Option<&[u8]>) -> Cas {
            Cas::Conflict(0)
        }

        fn watch(&self, _: &str, _: Revision, _: &Stop, _: &mut dyn FnMut(Change)) -> Ended {
            Ended::Stopped
        }
    }

    fn lease() -> Lease {
        let (shard, node) = (ShardId::new("s").expect("an id"), NodeId::new("n").expect("an id"));
        Lease { shard, node, epoch: 7, ttl: TTL, handle: 7 }
    }

    #[test]
    fn the_keeper_tells_what_becomes_of_its_lease() {
        let (answers, given) = channel();
        let scripted = Arc::new(Scripted { answers: Mutex::new(given), released: Mutex::default() });
        let (clock, fence) = (Arc::new(Jumping::default()), Fence::new());
        clock.jump(1000);
        let (tell, told) = channel();
        let next = || told.recv_timeout(Duration::from_secs(60)).expect("news");
        let keeper = Keeper::start(scripted, lease(), 1000 * MS, fence.clone(), clock.clone(), move |news| {
            let _ = tell.send(news);
        })
        .expect("a thread");
        clock.jump(1000);
        answers.send(Renewed::Kept).expect("a reader");
        assert_eq!(next(), News::Kept { fence_at_ns: 4500 * MS });
        // At 3000 no answer comes; at 5000 the fence has passed, and that is told first.
        clock.jump(1000);
        answers.send(unknown()).expect("a reader");
        assert_eq!(next(), News::Unknown(Trouble::new("no answer")));
        assert_eq!(fence.at_ns(), 4500 * MS);
        clock.jump(2000);
        assert_eq!(next(), News::Fenced);
        // Kept again: nobody had it meanwhile.
        answers.send(Renewed::Kept).expect("a reader");
        assert_eq!(next(), News::Kept { fence_at_ns: 7500 * MS });
        // The process stood still for a minute between sending and hearing: kept then is too late to serve.
        clock.jump(60_000);
        assert_eq!(next(), News::Fenced);
        clock.jump(60_000);
        answers.send(Renewed::Kept).expect("a reader");
        assert_eq!(next(), News::Fenced);
        assert!(fence.has_passed(clock.now_ns()));
        answers.send(Renewed::Lost).expect("a reader");
        assert_eq!(next(), News::Lost);
        assert_eq!(fence.at_ns(), 0);
        drop(keeper);
    }

    #[test]
    fn a_release_closes_the_fence_and_names_the_next() {
        let (answers, given) = channel();
        let scripted = Arc::new(Scripted { answers: Mutex::new(given), released: Mutex::default() });
        let (clock, fence) = (Arc::new(Jumping::default()), Fence::new());
        let keeper =
            Keeper::start(scripted.clone(), lease(), 0, fence.clone(), clock, |_| {}).expect("a thread");
        assert!(!fence.has_passed(0));
        let next = NodeId::new("other").expect("an id");
        assert_eq!(keeper.release(Some(&next)), Ok(()));
        assert_eq!(fence.at_ns(), 0);
        assert_eq!(*scripted.released.lock().expect("released"), [Some("other".to_owned())]);
        drop(answers);
    }
}
