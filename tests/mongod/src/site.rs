//! The target of a test: the scripted server, or the real one that EVENKEEL_TEST_MONGODB names (a replica
//! set, with a database in its url). Test bodies without faults run against both.

use crate::history::Op;
use crate::server::Server;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Collection};

pub enum Site {
    Scripted(Server),
    Real { url: String, collection: Collection<Document> },
}

impl Site {
    /// All sites. Prints a line if there is no real one.
    pub async fn all(seed: u64) -> Vec<Site> {
        let mut sites = vec![Site::Scripted(Server::start(seed).await)];
        let Ok(url) = std::env::var("EVENKEEL_TEST_MONGODB") else {
            eprintln!("EVENKEEL_TEST_MONGODB names no server: only the scripted one is tested");
            return sites;
        };
        let client = Client::with_uri_str(&url).await.unwrap();
        let database = client.default_database().expect("EVENKEEL_TEST_MONGODB names no database");
        let name = format!("evenkeel_test_{}_{seed}", std::process::id());
        let collection = database.collection(&name);
        collection.drop().await.unwrap();
        sites.push(Site::Real { url, collection });
        sites
    }

    pub fn url(&self) -> String {
        match self {
            Site::Scripted(server) => server.url(),
            Site::Real { url, .. } => url.clone(),
        }
    }

    pub fn collection(&self) -> &str {
        match self {
            Site::Scripted(_) => "items",
            Site::Real { collection, .. } => collection.name(),
        }
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
                server.history(|history| history.clear(Op::Drop));
                server.commit();
            }
            Site::Real { collection, .. } => collection.drop().await.unwrap(),
        }
    }
}
