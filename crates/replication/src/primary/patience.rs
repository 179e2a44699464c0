//! Replicas that take one full copy after the other, and load none: they are made to wait.
//!
//! A copy costs a walk of all keys and the way over the network. A replica of another version, or without
//! memory, refuses it and asks again at once, for ever.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Copies in vain within [`SPAN`] that are free.
const FREE: usize = 3;
const SPAN: Duration = Duration::from_secs(600);
/// The first wait, and the longest.
const WAIT: Duration = Duration::from_secs(10);
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Replicas that are remembered. The one that was heard of longest ago goes first.
const PLACES: usize = 1024;

/// Copies that a replica took in vain.
#[derive(Debug)]
struct Vain {
    /// The last ones, [`FREE`] at most.
    ends: Vec<Instant>,
    /// It may ask again then. None: it has not been refused since the last copy.
    until: Option<Instant>,
    wait: Duration,
}

/// Remembers replicas by their place.
#[derive(Debug, Default)]
pub(super) struct Patience {
    places: HashMap<String, Vain>,
}

impl Patience {
    /// A replica took a whole copy, and went without a word of having it. O(1), and O(places) if there are
    /// many.
    pub(super) fn took_in_vain(&mut self, place: &str, now: Instant) {
        if self.places.len() >= PLACES && !self.places.contains_key(place) {
            let oldest = self.places.iter().min_by_key(|(_, vain)| vain.ends.last().copied());
            if let Some(oldest) = oldest.map(|(place, _)| place.clone()) {
                self.places.remove(&oldest);
            }
        }
        let fresh = || Vain { ends: Vec::new(), until: None, wait: WAIT };
        let vain = self.places.entry(place.to_owned()).or_insert_with(fresh);
        if vain.ends.len() == FREE {
            vain.ends.remove(0);
        }
        vain.ends.push(now);
        vain.until = None;
    }

    /// A replica has loaded its copy.
    pub(super) fn loaded(&mut self, place: &str) {
        self.places.remove(place);
    }

    /// How long a replica has to wait for a full copy. None: it gets one now. O(1)
    pub(super) fn wait(&mut self, place: &str, now: Instant) -> Option<Duration> {
        let vain = self.places.get_mut(place)?;
        vain.ends.retain(|end| now.duration_since(*end) < SPAN);
        if vain.ends.len() < FREE {
            vain.wait = WAIT;
            return None;
        }
        let until = *vain.until.get_or_insert_with(|| now + vain.wait);
        if now < until {
            return Some(until - now);
        }
        vain.wait = WAIT_MAX.min(vain.wait * 2);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: &str = "10.0.0.9:6379";

    fn at(s: u64, begin: Instant) -> Instant {
        begin + Duration::from_secs(s)
    }

    #[test]
    fn the_fourth_copy_in_vain_waits_and_each_further_one_twice_as_long() {
        let (mut patience, begin) = (Patience::default(), Instant::now());
        for s in 0..3 {
            assert_eq!(patience.wait(PLACE, at(s, begin)), None);
            patience.took_in_vain(PLACE, at(s, begin));
        }
        let mut now = 3;
        for wait_s in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(patience.wait(PLACE, at(now, begin)), Some(Duration::from_secs(wait_s)), "{now}");
            assert_eq!(patience.wait(PLACE, at(now + 1, begin)), Some(Duration::from_secs(wait_s - 1)));
            assert_eq!(patience.wait("10.0.0.10:6379", at(now, begin)), None, "others do not wait");
            now += wait_s;
            assert_eq!(patience.wait(PLACE, at(now, begin)), None);
            patience.took_in_vain(PLACE, at(now, begin));
        }
        // Ten minutes without one, or a copy that was loaded, make it new.
        assert_eq!(patience.wait(PLACE, at(now + 601, begin)), None);
        (0..3).for_each(|s| patience.took_in_vain(PLACE, at(now + s, begin)));
        assert!(patience.wait(PLACE, at(now + 3, begin)).is_some());
        patience.loaded(PLACE);
        assert_eq!(patience.wait(PLACE, at(now + 4, begin)), None);
    }

    #[test]
    fn few_places_are_remembered() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        (0..5000).for_each(|n| patience.took_in_vain(&n.to_string(), now + Duration::from_millis(n)));
        assert_eq!(patience.places.len(), PLACES);
    }
}
