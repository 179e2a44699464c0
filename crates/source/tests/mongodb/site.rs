//! Where a test writes: the scripted server, or the real one that EVENKEEL_TEST_MONGODB names (a replica set, with a database in
//! its url). Bodies that ask for no faults run against both.

use crate::server::Server;
use crate::watch::{Follower, Watch};
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Collection};
use source::{Body, Database, Row, Since, Spec};
use std::sync::Arc;

pub enum Site {
    Scripted(Server),
    Real { url: String, collection: Collection<Document> },
}

impl Site {
    pub async fn all(seed: u64) -> Vec<Site> {
        let mut sites = vec![Site::Scripted(Server::start(seed).await)];
        if let Ok(url) = std::env::var("EVENKEEL_TEST_MONGODB") {
            let client = Client::with_uri_str(&url).await.unwrap();
            let database = client.default_database().expect("EVENKEEL_TEST_MONGODB names no database");
            let name = format!("evenkeel_test_{}_{seed}", std::process::id());
            let collection = database.collection(&name);
            collection.drop().await.unwrap();
            sites.push(Site::Real { url, collection });
        }
        sites
    }

    pub async fn put(&self, id: impl Into<Bson>, document: Document) {
        let id = id.into();
        match self {
            Site::Scripted(server) => {
                server.history(|history| history.write(id, document));
                server.commit();
            }
            Site::Real { collection, .. } => {
                let id = doc! { "_id": id };
                collection.replace_one(id, document).upsert(true).await.unwrap();
            }
        }
    }

    pub async fn remove(&self, id: impl Into<Bson>) {
        let id = id.into();
        match self {
            Site::Scripted(server) => {
                server.history(|history| history.remove(id));
                server.commit();
            }
            Site::Real { collection, .. } => drop(collection.delete_one(doc! { "_id": id }).await.unwrap()),
        }
    }

    pub async fn drop_collection(&self) {
        match self {
            Site::Scripted(server) => {
                server.history(|history| history.clear(crate::history::Op::Drop));
                server.commit();
            }
            Site::Real { collection, .. } => collection.drop().await.unwrap(),
        }
    }

    pub fn open(&self, options: &str) -> Arc<dyn Database> {
        match self {
            Site::Scripted(server) => open(&server.url(), options),
            Site::Real { url, collection } => {
                open(url, &format!("collection {} {options}", collection.name()))
            }
        }
    }

    /// A driver whose feed is open.
    pub async fn followed(&self, options: &str) -> (Arc<dyn Database>, Arc<Watch>, Follower) {
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
    // A busy machine is not slow in this sense.
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
    };
    rows.into_iter().map(row).collect()
}
