//! A timer for tasks with microseconds; the runtime's own has milliseconds.

use std::time::Duration;

/// A timer with a resolution of microseconds; one nap at a time.
pub(super) struct Nap {
    #[cfg(target_os = "linux")]
    timer: Option<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>>,
}

#[cfg(target_os = "linux")]
fn registered(timer: std::os::fd::OwnedFd) -> Option<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    // SAFETY: it owns the timer, which is not closed or put in another's place while it is registered.
    let registered = unsafe { tokio::io::unix::AsyncFd::register(timer) };
    registered.ok()
}

#[cfg(target_os = "linux")]
impl Nap {
    /// Makes a timer; must be called on the runtime.
    pub(super) fn new() -> Nap {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok();
        let timer = timer.and_then(registered);
        Nap { timer }
    }

    /// Waits for `time`. Dropping the future early leaves nothing behind.
    pub(super) async fn take(&self, time: Duration) {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let Some(timer) = &self.timer else { return tokio::time::sleep(time).await };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().max(1).into() };
        let spec = Itimerspec { it_interval: never, it_value: at };
        if timerfd_settime(timer.get_ref(), TimerfdTimerFlags::empty(), &spec).is_err() {
            return tokio::time::sleep(time).await;
        }
        // Setting the timer clears it, but the runtime may still have it noted as ready.
        while let Ok(mut guard) = timer.readable().await {
            let rang = guard.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0; 8])?));
            if rang.is_ok() {
                return;
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Nap {
    pub(super) fn new() -> Nap {
        Nap {}
    }

    pub(super) async fn take(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_nap_ends_and_may_be_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let nap = Nap::new();
            for _ in 0..20 {
                let began = Instant::now();
                nap.take(Duration::from_micros(300)).await;
                assert!(began.elapsed() >= Duration::from_micros(300));
                tokio::select! {
                    biased;
                    () = nap.take(Duration::from_secs(3600)) => panic!("an hour is over"),
                    () = tokio::task::yield_now() => {}
                }
            }
        });
    }
}
