//! The clients that used the processor most, in a fixed number of counters (space-saving).
//!
//! A client that is not counted takes the place of the one with the least time, and that time with it, as the
//! bound of its error. So no client with more than a 64th of all time is missing, and none is counted too low.

use std::sync::Arc;

/// Counters.
pub const COUNTERS: usize = 64;

/// One counter: `T` is what is known of the client.
#[derive(Clone, Debug)]
pub struct Counter<T> {
    pub key: u64,
    pub what: Arc<T>,
    pub command: &'static str,
    /// The words of its longest piece.
    pub words: Vec<Vec<u8>>,
    pub ns: u64,
    pub error_ns: u64,
    pub pieces: u64,
    longest_ns: u64,
}

/// The counters of a second. Cost: O(64) for a piece of work.
#[derive(Debug)]
pub struct Counters<T>(Vec<Counter<T>>);

impl<T> Default for Counters<T> {
    fn default() -> Counters<T> {
        Counters(Vec::new())
    }
}

/// A piece of work.
pub struct Piece<'a, T> {
    pub key: u64,
    pub what: &'a Arc<T>,
    pub command: &'static str,
    pub words: &'a [Vec<u8>],
    pub ns: u64,
}

impl<T> Counters<T> {
    pub fn add(&mut self, piece: &Piece<'_, T>) {
        let at = self.0.iter().position(|one| one.key == piece.key).unwrap_or_else(|| self.place(piece));
        let one = &mut self.0[at];
        one.ns = one.ns.saturating_add(piece.ns);
        one.pieces += 1;
        if piece.ns >= one.longest_ns {
            one.longest_ns = piece.ns;
            one.command = piece.command;
            one.words.clear();
            one.words.extend(piece.words.iter().take(4).cloned());
        }
    }

    /// A place for a client that is not counted.
    fn place(&mut self, piece: &Piece<'_, T>) -> usize {
        let counter = |error_ns| Counter {
            key: piece.key,
            what: piece.what.clone(),
            command: piece.command,
            words: Vec::new(),
            ns: error_ns,
            error_ns,
            pieces: 0,
            longest_ns: 0,
        };
        if self.0.len() < COUNTERS {
            self.0.push(counter(0));
            return self.0.len() - 1;
        }
        let least = (0..self.0.len()).min_by_key(|at| self.0[*at].ns).unwrap_or(0);
        self.0[least] = counter(self.0[least].ns);
        least
    }

    /// Takes all counters; it begins anew.
    pub fn take(&mut self) -> Vec<Counter<T>> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn no_heavy_client_is_missing_and_none_is_counted_too_low() {
        let (mut counters, mut exact) = (Counters::default(), HashMap::<u64, u64>::new());
        let (mut seed, mut all) = (9u64, 0);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let r = seed >> 33;
            // A few clients are heavy; hundreds are light.
            let key = if r & 3 == 0 { r >> 8 & 7 } else { 100 + (r >> 8) % 900 };
            let ns = 1 + (r >> 20) % 1000;
            *exact.entry(key).or_default() += ns;
            all += ns;
            counters.add(&Piece { key, what: &Arc::new(()), command: "get", words: &[], ns });
        }
        let found: HashMap<u64, (u64, u64)> =
            counters.take().into_iter().map(|one| (one.key, (one.ns, one.error_ns))).collect();
        assert_eq!(found.len(), COUNTERS);
        for (key, ns) in &exact {
            match found.get(key) {
                Some((counted, error)) => {
                    assert!(counted >= ns && counted - error <= *ns, "{key}: {ns}, {counted} - {error}");
                }
                None => assert!(*ns <= all / COUNTERS as u64, "{key} had {ns} of {all}"),
            }
        }
        assert!((0..8).all(|key| found.contains_key(&key)));
        assert!(counters.take().is_empty());
    }
}
