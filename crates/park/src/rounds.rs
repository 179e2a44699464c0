//! Rounds through the keys of an exchanged database that somebody waits for (P8).

use super::{KeyId, Tables};

/// How far the keys of an exchanged database that somebody waits for were gone through.
#[derive(Default)]
pub(super) struct Round {
    /// The next key, or where it would be.
    at: Box<[u8]>,
    /// Ends before this key.
    end: Option<Box<[u8]>>,
    /// At the end it begins anew, up to this key: the database was exchanged again when the round was there.
    again: Option<Box<[u8]>>,
}

impl Tables {
    fn waited_from(&self, db: usize, at: &[u8]) -> Option<KeyId> {
        self.by_key.range((db, at.into())..).next().map(|(id, _)| id).filter(|id| id.0 == db).cloned()
    }

    /// Begins a round of a database; false if one is under way, which takes it over, or nobody waits.
    pub(super) fn begin_round(&mut self, db: usize) -> bool {
        if let Some(round) = self.rounds.get_mut(&db) {
            (round.end, round.again) = (None, Some(round.at.clone()));
            return false;
        }
        let any = self.waited_from(db, b"").is_some();
        any.then(|| self.rounds.insert(db, Round::default())).is_some()
    }

    /// The next key of a round; None: the round is over.
    pub(super) fn next_of_round(&mut self, db: usize) -> Option<KeyId> {
        let mut round = self.rounds.remove(&db)?;
        loop {
            let next = self.waited_from(db, &round.at);
            let next = next.filter(|(_, key)| round.end.as_ref().is_none_or(|end| key < end));
            if let Some(id) = next {
                // The least of those that come after it.
                round.at = [&id.1[..], &[0]].concat().into();
                self.rounds.insert(db, round);
                return Some(id);
            }
            let end = round.again.take()?;
            round = Round { at: Box::default(), end: Some(end), again: None };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queues;

    fn waited(keys: &[(usize, &str)]) -> Tables {
        let mut tables = Tables::default();
        for (db, key) in keys {
            tables.by_key.insert((*db, key.as_bytes().into()), Queues::default());
        }
        tables
    }

    fn next(tables: &mut Tables) -> Option<String> {
        tables.next_of_round(1).map(|(_, key)| String::from_utf8_lossy(&key).into_owned())
    }

    #[test]
    fn a_round_visits_each_key_of_its_database_once() {
        let mut tables = waited(&[(0, "x"), (1, ""), (1, "a"), (1, "a\0"), (1, "b"), (2, "y")]);
        assert!(tables.begin_round(1));
        assert_eq!(
            [(); 5].map(|()| next(&mut tables)),
            ["", "a", "a\0", "b", "-"].map(|k| Some(k.into()).filter(|k| k != "-"))
        );
        assert!(tables.begin_round(1));
        assert!(!tables.begin_round(3));
        assert_eq!(tables.rounds.len(), 1);
    }

    /// However often a database is exchanged, one round is under way, and every key comes after the last
    /// exchange.
    #[test]
    fn a_round_goes_on_to_where_it_was_at_the_last_exchange() {
        let keys: Vec<String> = (0..7).map(|i| format!("k{i}")).collect();
        let mut tables = waited(&keys.iter().map(|key| (1, &key[..])).collect::<Vec<_>>());
        for first in 0..=keys.len() {
            for second in 0..=keys.len() {
                assert!(tables.begin_round(1));
                (0..first).for_each(|_| assert!(next(&mut tables).is_some()));
                assert!(!tables.begin_round(1));
                (0..second).for_each(|_| assert!(next(&mut tables).is_some()));
                assert!(!tables.begin_round(1));
                let mut rest: Vec<String> = std::iter::from_fn(|| next(&mut tables)).collect();
                rest.sort_unstable();
                assert_eq!(rest, keys, "{first} {second}");
                assert!(tables.rounds.is_empty());
            }
        }
    }
}
