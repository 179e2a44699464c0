//! The history of the data, which replicas follow: snapshots and the log name their places in it.

use crate::Durability;
use keyspace::{Lsn, Mark};
use persist::stream::HistoryPlace;

/// The counter of the history. The program provides it.
pub trait History: Send + Sync {
    /// A new mark, for the moment of a snapshot. None: nothing is counted. O(1)
    fn mark(&self) -> Option<Mark>;

    /// The place of a mark that has an LSN. It waits for the order thread. Errors: the mark does not come.
    fn at(&self, mark: Mark, lsn: Lsn) -> Result<HistoryPlace, String>;

    /// Keeps nothing for a mark any more. O(1)
    fn forget(&self, mark: Mark);

    /// The data of the start are those of a history up to a place. Before the first client.
    fn resumes(&self, place: HistoryPlace);

    /// Replicas that lack something of it, by their address and port. O(replicas)
    fn lagging(&self) -> Vec<String>;

    /// Nothing goes into the history of itself, as the server ends; or it goes on all the same. O(1)
    fn rests(&self, rests: bool);
}

impl Durability {
    /// Provides the history, before the first client.
    pub fn count_history(&self, history: Box<dyn History>) {
        // A second call would be a mistake of the program; the first one stays.
        let _ = self.history.set(history);
    }

    /// Goes on with the history of the data that were loaded, if they name their place.
    pub(crate) fn resume_history(&self) {
        let place = self.place.lock().take();
        if let (Some(place), Some(history)) = (place, self.history.get()) {
            history.resumes(place);
        }
    }
}
