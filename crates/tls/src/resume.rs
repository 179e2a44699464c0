//! Sessions that clients resume: tickets, and a cache for clients without tickets.
//!
//! - RE1: the cache holds at most `tls-session-cache-size` sessions; the oldest goes first.
//! - RE2: a session is resumed for `tls-session-cache-timeout` seconds, a ticket for up to twice that. Then
//!   its key is gone.
//! - RE3: a session begun over HTTP is not resumed for RESP, nor the other way: other certificates may be
//!   asked for.

use crate::{Inner, Settings};
use parking_lot::Mutex;
use rustls::crypto::ring::Ticketer;
use rustls::server::{ProducesTickets, StoresServerSessions};
use rustls::ticketer::TicketRotator;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Kept = (Arc<dyn ProducesTickets>, Arc<dyn StoresServerSessions>);

/// Tickets and caches, one for each protocol (RE3); none if sessions are not resumed.
pub(crate) struct Resume(Option<[Kept; 2]>);

impl Resume {
    /// Errors: the system has no randomness.
    pub(crate) fn new(settings: &Settings) -> Result<Resume, String> {
        if !settings.session_caching || settings.session_cache_s == 0 {
            return Ok(Resume(None));
        }
        let kept = || -> Result<Kept, String> {
            let failed = |e| format!("no keys for tickets: {e}");
            let tickets = TicketRotator::new(settings.session_cache_s, one_key).map_err(failed)?;
            let cache = Cache::new(settings.session_cache, settings.session_cache_s);
            Ok((Arc::new(Limited(tickets, settings.session_cache_s)), Arc::new(cache)))
        };
        Ok(Resume(Some([kept()?, kept()?])))
    }

    pub(crate) fn of(&self, inner: Inner) -> Option<Kept> {
        self.0.as_ref().map(|kept| kept[usize::from(inner == Inner::Http)].clone())
    }
}

/// A key for tickets, which [`TicketRotator`] replaces in time.
fn one_key() -> Result<Box<dyn ProducesTickets>, rustls::crypto::GetRandomFailed> {
    match Ticketer::new() {
        Ok(ticketer) => Ok(Box::new(OneKey(ticketer))),
        Err(_) => Err(rustls::crypto::GetRandomFailed),
    }
}

#[derive(Debug)]
struct OneKey(Arc<dyn ProducesTickets>);

impl ProducesTickets for OneKey {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(cipher)
    }
}

/// Tickets that tell clients how long they last.
#[derive(Debug)]
struct Limited(TicketRotator, u32);

impl ProducesTickets for Limited {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.1
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(cipher)
    }
}

/// Sessions by id. See RE1 and RE2.
#[derive(Debug)]
struct Cache {
    size: usize,
    lasts: Duration,
    kept: Mutex<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: HashMap<Vec<u8>, (u64, Vec<u8>)>,
    /// Number, time and id, oldest first. A number that is not in `by_id` was replaced or taken.
    order: VecDeque<(u64, Instant, Vec<u8>)>,
    last: u64,
}

impl Cache {
    fn new(size: usize, seconds: u32) -> Cache {
        Cache { size, lasts: Duration::from_secs(seconds.into()), kept: Mutex::default() }
    }
}

impl Sessions {
    /// Drops the old ones, and the oldest ones above `size`. O(dropped).
    fn tidy(&mut self, size: usize, lasts: Duration, now: Instant) {
        while let Some((number, since, id)) = self.order.front() {
            let is_old = now.saturating_duration_since(*since) >= lasts;
            if !is_old && self.order.len() <= size {
                return;
            }
            if self.by_id.get(id).is_some_and(|(other, _)| other == number) {
                self.by_id.remove(id);
            }
            self.order.pop_front();
        }
    }
}

impl StoresServerSessions for Cache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let mut kept = self.kept.lock();
        kept.last += 1;
        let number = kept.last;
        kept.order.push_back((number, Instant::now(), key.clone()));
        kept.by_id.insert(key, (number, value));
        kept.tidy(self.size, self.lasts, Instant::now());
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut kept = self.kept.lock();
        kept.tidy(self.size, self.lasts, Instant::now());
        kept.by_id.get(key).map(|(_, value)| value.clone())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut kept = self.kept.lock();
        kept.tidy(self.size, self.lasts, Instant::now());
        kept.by_id.remove(key).map(|(_, value)| value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_holds_the_newest_sessions_for_a_while() {
        let cache = Cache::new(3, 300);
        (0..5u8).for_each(|i| assert!(cache.put(vec![i], vec![i; 4])));
        assert_eq!((cache.get(&[1]), cache.get(&[2])), (None, Some(vec![2; 4])));
        // A session that is put again is a new one.
        cache.put(vec![2], b"again".to_vec());
        cache.put(vec![9], vec![9]);
        assert_eq!((cache.get(&[2]), cache.take(&[9])), (Some(b"again".to_vec()), Some(vec![9])));
        assert_eq!(cache.get(&[9]), None);
        let later = Instant::now() + Duration::from_secs(300);
        cache.kept.lock().tidy(3, cache.lasts, later);
        assert_eq!((cache.get(&[2]), cache.kept.lock().order.len()), (None, 0));
    }
}
