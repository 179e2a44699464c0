//! MongoDB: documents by `_id`, and the change stream of their collection.
//!
//! ```text
//! load:    find { _id: { $in: [ … ] } }, readConcern majority afterClusterTime `told` ──► documents ──► rows
//! follow:  aggregate [ $changeStream { startAfter: token }, $project ] ─► getMore … ─► told, token ─► Feed
//! ```
//!
//! - M1: `told` is at least the cluster time of every reported change, and of the feed's start if that was
//!   anew. It is raised before the feed is told. A load reads what a majority has, at `told` or later: D1.
//!   Without the majority a load could see a change that is rolled back later, and no event reports that.
//! - M2: `token` is the place behind the last reported event; it is moved after the report. So a stream that
//!   starts there misses nothing, and may repeat something. If the server no longer knows the place, it is
//!   forgotten, and the next stream starts anew with [`Since::Unknown`]: D2.
//! - M3: a document is found and reported by the same spelling of its `_id` ([`id`]), and by no other: D3.
//!
//! The driver's own resuming of change streams is not used. A broken connection ends the stream, and the
//! caller of `follow` decides when to begin again.
//!
//! Cost: a load is one round trip. The feed is one connection with a waiting `getMore`, and no document
//! travels on it.

mod body;
mod failure;
mod feed;
mod id;

use crate::{Body, Database, Failure, Feed, Form, Id, IdType, Row, Spec, Task, files};
use ::mongodb::bson::error::Error as Malformed;
use ::mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp, doc};
use ::mongodb::error::Error;
use ::mongodb::options::{ClientOptions, CollectionOptions, ConnectionString, ReadConcern, Tls};
use ::mongodb::{Client, Collection};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;

pub(crate) fn open(spec: &Spec) -> Result<Arc<dyn Database>, String> {
    Mongo::new(spec).map(|mongo| Arc::new(mongo) as Arc<dyn Database>)
}

struct Mongo {
    address: ConnectionString,
    database: String,
    collection: String,
    /// Made when first needed: the name of a cluster may have to be looked up.
    client: OnceCell<Client>,
    id_type: IdType,
    projection: Option<Document>,
    /// Fields that are read and not shown.
    hidden: Vec<String>,
    form: Form,
    modified: Option<String>,
    timeout: Duration,
    connect_timeout: Duration,
    pool: u32,
    place: Mutex<Place>,
}

/// How far the feed has come.
#[derive(Default)]
struct Place {
    /// See M1.
    told: Option<Timestamp>,
    /// See M2.
    token: Option<RawDocumentBuf>,
    /// How often in a row the feed was given up for silence.
    silences: u32,
}

impl Mongo {
    fn new(spec: &Spec) -> Result<Mongo, String> {
        let mut address =
            ConnectionString::parse(&spec.url).map_err(|e| format!("url '{}': {e}", spec.shown_url()))?;
        if let Some(Tls::Enabled(options)) = &mut address.tls {
            let files = [&mut options.ca_file_path, &mut options.cert_key_file_path];
            for file in files.into_iter().flatten() {
                *file = files::admitted(file).map_err(|why| format!("url: {why}"))?.0;
            }
        }
        let Some(database) = address.default_database.clone() else {
            return Err(format!(
                "url '{}' must name the database, as in mongodb://host/shop",
                spec.shown_url()
            ));
        };
        if let Some(id) = spec.id.as_ref().filter(|id| *id != "_id") {
            return Err(format!(
                "id '{id}': a MongoDB source is read by _id alone, since a change stream names a removed document by nothing else"
            ));
        }
        if let Some(modified) = spec.modified.as_ref().filter(|field| field.contains('.')) {
            return Err(format!("modified '{modified}' must be a field of the document itself"));
        }
        Ok(Mongo {
            address,
            database,
            collection: spec.table.clone(),
            client: OnceCell::new(),
            id_type: spec.id_type,
            projection: spec.columns.as_ref().map(|columns| projection(columns, spec.modified.as_ref())),
            hidden: spec
                .columns
                .as_ref()
                .map_or_else(Vec::new, |columns| hidden(columns, spec.modified.as_ref())),
            form: spec.form,
            modified: spec.modified.clone(),
            timeout: spec.timeout,
            connect_timeout: spec.connect_timeout,
            pool: spec.pool as u32,
            place: Mutex::default(),
        })
    }

    fn namespace(&self) -> String {
        format!("{}.{}", self.database, self.collection)
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client, made with the first call. Asks only the name service, and that only for `mongodb+srv`.
    async fn client(&self) -> Result<&Client, Error> {
        self.client
            .get_or_try_init(|| async {
                let mut options = ClientOptions::parse(self.address.clone()).await?;
                options.app_name.get_or_insert_with(|| "evenkeel".into());
                options.connect_timeout = Some(self.connect_timeout);
                // Shorter than a load's time, so that the load ends with the reason and not as slow.
                options.server_selection_timeout = Some(self.connect_timeout.min(self.timeout * 3 / 4));
                // One more for the feed, and one for the commands that end cursors.
                options.max_pool_size = Some(self.pool + 2);
                Client::with_options(options)
            })
            .await
    }

    fn collection(&self, client: &Client) -> Collection<RawDocumentBuf> {
        let options = CollectionOptions::builder().read_concern(ReadConcern::majority()).build();
        client.database(&self.database).collection_with_options(&self.collection, options)
    }

    async fn rows(&self, ids: &[Id]) -> Result<Vec<Row>, Error> {
        let client = self.client().await?;
        let mut session = client.start_session().await?;
        if let Some(told) = self.place().told {
            session.advance_operation_time(told); // M1
        }
        let values: Vec<Bson> = ids.iter().flat_map(|id| id::values(self.id_type, id)).collect();
        let whole_batch = values.len() as u32 + 1;
        let collection = self.collection(client);
        let mut find =
            collection.find(doc! { "_id": { "$in": values } }).batch_size(whole_batch).max_time(self.timeout);
        if let Some(projection) = &self.projection {
            find = find.projection(projection.clone());
        }
        let mut cursor = find.session(&mut session).await?;
        let mut found = Found::new(ids);
        while cursor.advance(&mut session).await? {
            if let Err(e) = self.take(cursor.current(), &mut found) {
                log::warn!("a document of {} cannot be read: {e}", self.namespace());
            }
        }
        Ok(found.rows.into_values().map(|(row, _)| row).collect())
    }

    /// Keeps a document if its `_id` is spelled as one of the ids. A collection whose collation ignores case
    /// may find others (M3).
    fn take(&self, document: &RawDocument, found: &mut Found) -> Result<(), Malformed> {
        let Some((id, preferred)) = document.get("_id")?.and_then(|value| id::spelled(self.id_type, value))
        else {
            return Ok(());
        };
        if !found.wants(&id, preferred) {
            return Ok(());
        }
        let modified_ms = self.modified.as_ref().and_then(|field| body::modified_ms(document, field));
        let body = body::body(document, self.form, &self.hidden);
        let (body, outcome) = match body {
            Ok(body) => (body, Ok(())),
            // The row exists: a client that asks for it gets an error, not an absence.
            Err(e) => (Body::Unreadable(format!("the document cannot be read: {e}")), Err(e)),
        };
        found.rows.insert(id.clone(), (Row { id, body, modified_ms }, preferred));
        outcome
    }
}

/// The rows of a load; `true`: the row comes before others of the same spelling.
struct Found<'a> {
    asked: HashSet<&'a [u8]>,
    rows: HashMap<Id, (Row, bool)>,
}

impl<'a> Found<'a> {
    fn new(ids: &'a [Id]) -> Found<'a> {
        Found { asked: ids.iter().map(|id| &**id).collect(), rows: HashMap::with_capacity(ids.len()) }
    }

    fn wants(&self, id: &[u8], preferred: bool) -> bool {
        self.asked.contains(id) && (preferred || !self.rows.contains_key(id))
    }
}

fn projection(columns: &[String], modified: Option<&String>) -> Document {
    let mut projection = doc! { "_id": 1 };
    for column in columns.iter().chain(modified) {
        projection.insert(column.clone(), 1);
    }
    projection
}

fn hidden(columns: &[String], modified: Option<&String>) -> Vec<String> {
    let shown = |field: &str| columns.iter().any(|column| column.split('.').next() == Some(field));
    let read = [Some("_id"), modified.map(String::as_str)];
    read.into_iter().flatten().filter(|field| !shown(field)).map(str::to_owned).collect()
}

impl Database for Mongo {
    fn accepts(&self, id: &[u8]) -> bool {
        id::accepts(self.id_type, id)
    }

    fn load<'a>(&'a self, ids: &'a [Id]) -> Task<'a, Result<Vec<Row>, Failure>> {
        Box::pin(async move {
            match tokio::time::timeout(self.timeout, self.rows(ids)).await {
                Ok(rows) => rows.map_err(|e| failure::of_load(&e, &self.namespace())),
                Err(_) => Err(Failure::Slow),
            }
        })
    }

    fn follow<'a>(&'a self, feed: &'a dyn Feed) -> Task<'a, Failure> {
        Box::pin(async move {
            match self.stream(feed).await {
                Ok(never) => match never {},
                Err(failure) => failure,
            }
        })
    }
}
