//! The change stream: opened before the first load, where it broke off or anew.

use super::{Mongo, failure, id};
use crate::{Change, Failure, Feed, Since};
use ::mongodb::bson::{Document, RawDocument, RawDocumentBuf, Timestamp, doc};
use ::mongodb::error::Error;
use ::mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};
use futures_core::Stream;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

/// How long the server waits for a change before it reports that there is none; this is the pace of
/// `caught_up`.
const AWAIT: Duration = Duration::from_secs(1);

/// Most events of a batch; a batch is reported in one go.
const BATCH: u32 = 1000;

/// Most doublings of the patience with a silent server, which may have a long history to search.
const MAX_DOUBLINGS: u32 = 6;

impl Mongo {
    pub(super) async fn stream(&self, feed: &dyn Feed) -> Result<Infallible, Failure> {
        let token = self.place().token.clone();
        let resumed = token.is_some();
        let opening = async {
            match &token {
                Some(token) => self.open_stream(doc! { "startAfter": Document::try_from(token)? }).await,
                None => self.open_anew().await,
            }
        };
        let mut cursor = self.patiently(opening, resumed).await?;
        feed.opened(if resumed { Since::Resumed } else { Since::Unknown });
        loop {
            match self.patiently(next(&mut cursor), resumed).await? {
                Some(batch) => self.tell(batch.as_raw_document(), feed)?,
                None => return Err(Failure::Down("the change stream was closed".into())),
            }
        }
    }

    /// Opens a stream of all changes after a moment that each later load sees (M1). The server's own choice
    /// of a moment is not known, and can be later than what a majority has.
    async fn open_anew(&self) -> Result<RawBatchCursor, Error> {
        let client = self.client().await?;
        let mut session = client.start_session().await?;
        client.database(&self.database).run_command(doc! { "ping": 1 }).session(&mut session).await?;
        let now = session.operation_time();
        // A single server has no operation time, and refuses the stream.
        let cursor = self
            .open_stream(now.map_or_else(Document::new, |now| doc! { "startAtOperationTime": now }))
            .await?;
        self.raise(now);
        Ok(cursor)
    }

    fn raise(&self, told: Option<Timestamp>) {
        let mut place = self.place();
        place.told = place.told.max(told);
    }

    async fn open_stream(&self, from: Document) -> Result<RawBatchCursor, Error> {
        let client = self.client().await?;
        let shown =
            doc! { "_id": 1, "operationType": 1, "documentKey._id": 1, "clusterTime": 1, "wallTime": 1 };
        let pipeline = [doc! { "$changeStream": from }, doc! { "$project": shown }];
        self.collection(client).aggregate(pipeline).max_await_time(AWAIT).batch_size(BATCH).batch().await
    }

    /// Gives up on a silent server, so that a half-open connection is noticed. The patience doubles with each
    /// silence in a row.
    async fn patiently<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
        resumed: bool,
    ) -> Result<T, Failure> {
        let doublings = self.place().silences.min(MAX_DOUBLINGS);
        let patience = (AWAIT + self.connect_timeout + self.timeout) * (1 << doublings);
        let Ok(result) = tokio::time::timeout(patience, work).await else {
            self.place().silences += 1;
            return Err(Failure::Slow);
        };
        result.map_err(|e| self.broken(failure::of_feed(&e, &self.namespace(), resumed)))
    }

    /// Forgets the place if the stream cannot start there again (M2).
    fn broken(&self, failure: Failure) -> Failure {
        if matches!(failure, Failure::Lost(_)) {
            self.place().token = None;
        }
        failure
    }

    /// Reports a reply of the server. Errors: its place is lost, or its collection is gone.
    fn tell(&self, reply: &RawDocument, feed: &dyn Feed) -> Result<(), Failure> {
        let batch =
            self.read(reply).map_err(|e| self.broken(Failure::Lost(format!("malformed event: {e}"))))?;
        if !batch.first {
            self.place().silences = 0;
        }
        self.raise(batch.told);
        if !batch.changes.is_empty() {
            feed.changed(&batch.changes);
        }
        if let Some(why) = &batch.lost {
            feed.lost(why);
        }
        if let Some(token) = batch.token {
            self.place().token = Some(token); // M2
        }
        match batch.ended {
            true => return Err(Failure::Lost("the collection was dropped or renamed".into())),
            false if batch.empty && !batch.first => feed.caught_up(),
            false => {}
        }
        Ok(())
    }

    fn read(&self, reply: &RawDocument) -> Result<Batch, Error> {
        let cursor = reply.get_document("cursor")?;
        let first = cursor.get("firstBatch")?.is_some();
        let events = cursor.get_array(if first { "firstBatch" } else { "nextBatch" })?;
        let mut batch = Batch { first, empty: events.is_empty(), ..Batch::default() };
        for event in events {
            let event = event?.as_document().ok_or_else(|| Error::custom("no document"))?;
            self.read_event(event, &mut batch)?;
        }
        if let Ok(Some(token)) =
            cursor.get("postBatchResumeToken").map(|token| token.and_then(|t| t.as_document()))
            && !batch.ended
        {
            batch.token = Some(token.to_owned());
        }
        Ok(batch)
    }

    fn read_event(&self, event: &RawDocument, batch: &mut Batch) -> Result<(), Error> {
        batch.token = Some(event.get_document("_id")?.to_owned());
        let time = event.get_timestamp("clusterTime").ok();
        batch.told = batch.told.max(time);
        match event.get_str("operationType")? {
            "insert" | "update" | "replace" | "delete" => {
                let key = event.get_document("documentKey")?.get("_id")?;
                if let Some((id, _)) = key.and_then(|key| id::spelled(self.id_type, key)) {
                    let wall_ms = event.get_datetime("wallTime").ok().map(|wall| wall.timestamp_millis());
                    let time_ms = time.map(|time| i64::from(time.time) * 1000);
                    let committed_ms = wall_ms.or(time_ms).and_then(|ms| u64::try_from(ms).ok());
                    batch.changes.push(Change { id, committed_ms });
                }
            }
            "invalidate" => batch.ended = true,
            other => batch.lost = Some(format!("{other} of the collection")),
        }
        Ok(())
    }
}

/// The contents of a reply of the server.
#[derive(Default)]
struct Batch {
    /// The reply came with the opening of the stream.
    first: bool,
    changes: Vec<Change>,
    told: Option<Timestamp>,
    token: Option<RawDocumentBuf>,
    lost: Option<String>,
    /// The stream ends here; another one can start behind it.
    ended: bool,
    empty: bool,
}

async fn next(cursor: &mut RawBatchCursor) -> Result<Option<RawBatch>, Error> {
    poll_fn(|cx| Pin::new(&mut *cursor).poll_next(cx)).await.transpose()
}
