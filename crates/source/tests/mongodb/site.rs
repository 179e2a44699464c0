//! Drivers in front of a [`Site`], and what they load.

pub use mongod::Site;

use crate::watch::{Follower, Watch};
use source::{Body, Database, Row, Since, Spec};
use std::sync::Arc;

/// Actions of these tests on a site.
pub trait Driven {
    fn open(&self, options: &str) -> Arc<dyn Database>;
    /// Makes a driver whose feed is open.
    async fn followed(&self, options: &str) -> (Arc<dyn Database>, Arc<Watch>, Follower);
}

impl Driven for Site {
    fn open(&self, options: &str) -> Arc<dyn Database> {
        open(&self.url(), &format!("collection {} {options}", self.collection()))
    }

    async fn followed(&self, options: &str) -> (Arc<dyn Database>, Arc<Watch>, Follower) {
        followed(self.open(options)).await
    }
}

pub async fn followed(database: Arc<dyn Database>) -> (Arc<dyn Database>, Arc<Watch>, Follower) {
    let watch = Arc::new(Watch::default());
    let follower = Follower::start(database.clone(), watch.clone());
    watch.until_opened(Since::Unknown).await;
    (database, watch, follower)
}

pub fn spec(url: &str, options: &str) -> Spec {
    // A busy machine does not count as slow.
    let words = format!("items item:{{id}} {url} timeout 10s {options}");
    Spec::parse(words.split_whitespace()).unwrap()
}

pub fn open(url: &str, options: &str) -> Arc<dyn Database> {
    source::open(&spec(url, options)).unwrap()
}

pub async fn load(database: &Arc<dyn Database>, ids: &[&str]) -> Result<Vec<Row>, source::Failure> {
    let ids: Vec<source::Id> = ids.iter().map(|id| id.as_bytes().into()).collect();
    let mut rows = database.load(&ids).await?;
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(rows)
}

/// The rows as `id body`, in the order of their ids.
pub async fn texts(database: &Arc<dyn Database>, ids: &[&str]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let rows = load(database, ids).await.unwrap();
    let row = |row: Row| match row.body {
        Body::Json(json) => format!("{} {}", text(&row.id), text(&json)),
        Body::Fields(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect();
            format!("{} {}", text(&row.id), fields.join(" "))
        }
        Body::Unreadable(why) => format!("{} unreadable: {why}", text(&row.id)),
    };
    rows.into_iter().map(row).collect()
}
