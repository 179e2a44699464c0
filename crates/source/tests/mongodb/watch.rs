//! The receiver of changes in these tests, and the task that follows.

use source::{Change, Database, Failure, Feed, Since};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Opened(Since),
    Changed(String),
    Lost(String),
    CaughtUp,
    Failed(Failure),
}

/// Everything that was reported.
#[derive(Default)]
pub struct Watch {
    events: Mutex<Vec<Event>>,
    more: Notify,
}

impl Watch {
    pub fn add(&self, event: Event) {
        self.events.lock().unwrap().push(event);
        self.more.notify_waiters();
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub fn clear(&self) {
        self.events.lock().unwrap().clear();
    }

    /// Waits until the reports satisfy a condition.
    pub async fn until(&self, what: &str, holds: impl Fn(&[Event]) -> bool) {
        let waiting = async {
            loop {
                let more = self.more.notified();
                if holds(&self.events()) {
                    return;
                }
                more.await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err() {
            panic!("waited in vain for {what}; told was {:?}", self.events());
        }
    }

    pub async fn until_told(&self, id: &str) {
        self.until(&format!("the change of {id}"), |events| events.contains(&Event::Changed(id.into())))
            .await;
    }

    pub async fn until_opened(&self, since: Since) {
        self.until(&format!("{since:?}"), |events| events.contains(&Event::Opened(since))).await;
    }

    pub fn failures(&self) -> Vec<Failure> {
        let failure = |event| if let Event::Failed(failure) = event { Some(failure) } else { None };
        self.events().into_iter().filter_map(failure).collect()
    }
}

impl Feed for Watch {
    fn opened(&self, since: Since) {
        self.add(Event::Opened(since));
    }

    fn changed(&self, changes: &[Change]) {
        for change in changes {
            self.add(Event::Changed(String::from_utf8(change.id.to_vec()).unwrap()));
        }
    }

    fn lost(&self, why: &str) {
        self.add(Event::Lost(why.into()));
    }

    fn caught_up(&self) {
        self.add(Event::CaughtUp);
    }
}

/// Follows until dropped, again after each failure.
pub struct Follower(JoinHandle<()>);

impl Follower {
    pub fn start(database: Arc<dyn Database>, watch: Arc<Watch>) -> Follower {
        Follower(tokio::spawn(async move {
            loop {
                let failure = database.follow(&*watch).await;
                watch.add(Event::Failed(failure));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}
