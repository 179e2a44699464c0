//! The MongoDB driver against a scripted server, and against the real one that EVENKEEL_TEST_MONGODB names.

mod faults;
mod race;
mod site;
mod watch;

use mongodb::bson::{Bson, DateTime, Uuid, doc, oid::ObjectId};
use site::{Driven, Site, load, open, spec, texts};
use source::Since;
use watch::Event;

const HEX: &str = "5f2b0c3e9d1a4b5c6d7e8f90";
const UUID: &str = "0d1f9a52-7c3b-4e6a-9f10-2b3c4d5e6f70";

fn object_id() -> Bson {
    Bson::ObjectId(ObjectId::parse_str(HEX).unwrap())
}

#[tokio::test]
async fn documents_become_rows() {
    for site in Site::all(1).await {
        site.put(1, doc! { "name": "one", "in": { "a": 1, "b": [2] } }).await;
        site.put(2.0, doc! { "name": "two" }).await;
        site.put("x y", doc! { "name": "text" }).await;
        site.put(object_id(), doc! { "name": "hex" }).await;
        site.put(Uuid::parse_str(UUID).unwrap(), doc! { "name": "uuid" }).await;
        let hash = site.open("as hash columns name");
        let ids = ["1", "2", "3", "x y", HEX, UUID, "01"];
        let expected = [
            &format!("{UUID} name=uuid"),
            "1 name=one",
            "2 name=two",
            &format!("{HEX} name=hex"),
            "x y name=text",
        ];
        assert_eq!(texts(&hash, &ids).await, expected);
        let json = site.open("columns _id,in.a");
        assert_eq!(
            texts(&json, &["1", HEX]).await,
            [r#"1 {"_id":1,"in":{"a":1}}"#, &format!(r#"{HEX} {{"_id":"{HEX}"}}"#)]
        );
        assert!(texts(&site.open("collection other_than_that"), &["1"]).await.is_empty());
    }
}

/// Many more documents than one reply of a server holds by itself.
#[tokio::test]
async fn a_load_can_be_large() {
    for site in Site::all(2).await {
        for n in 0..300 {
            site.put(n, doc! { "n": n }).await;
        }
        let database = site.open("columns n");
        let ids: Vec<String> = (0..400).map(|n| n.to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert_eq!(load(&database, &ids).await.unwrap().len(), 300);
    }
}

/// A spelling that two documents have is the key of the one that is no text, until that is removed. Changes
/// of both are reported under it.
#[tokio::test]
async fn a_spelling_that_two_documents_have() {
    for site in Site::all(3).await {
        let (database, watch, _follower) = site.followed("columns is").await;
        site.put("42", doc! { "is": "text" }).await;
        site.put(HEX, doc! { "is": "text" }).await;
        watch.until_told("42").await;
        watch.until_told(HEX).await;
        watch.clear();
        site.put(42, doc! { "is": "number" }).await;
        site.put(object_id(), doc! { "is": "id" }).await;
        watch.until_told("42").await;
        watch.until_told(HEX).await;
        let expected = [r#"42 {"is":"number"}"#, &format!(r#"{HEX} {{"is":"id"}}"#)];
        assert_eq!(texts(&database, &["42", HEX]).await, expected);
        watch.clear();
        site.remove(42).await;
        watch.until_told("42").await;
        assert_eq!(texts(&database, &["42"]).await, [r#"42 {"is":"text"}"#]);
        assert!(texts(&site.open("id-type objectid"), &[HEX]).await[0].contains("\"is\":\"id\""));
        assert!(texts(&site.open("id-type integer"), &["42"]).await.is_empty());
    }
}

#[tokio::test]
async fn when_a_row_was_changed_last() {
    for site in Site::all(4).await {
        site.put(1, doc! { "a": 1, "at": DateTime::from_millis(1_769_860_800_500) }).await;
        let hidden = load(&site.open("modified at columns a"), &["1"]).await.unwrap();
        assert_eq!(hidden[0].modified_ms, Some(1_769_860_800_500));
        assert_eq!(hidden[0].body, source::Body::Json(br#"{"a":1}"#.to_vec()));
        assert_eq!(
            texts(&site.open("modified at columns a,at"), &["1"]).await,
            [r#"1 {"a":1,"at":"2026-01-31T12:00:00.5Z"}"#]
        );
    }
}

#[tokio::test]
async fn every_kind_of_change_is_told() {
    for site in Site::all(5).await {
        site.put(1, doc! { "a": 1 }).await;
        let (database, watch, _follower) = site.followed("").await;
        for id in [Bson::Int32(7), Bson::String("t".into()), object_id()] {
            site.put(id, doc! { "a": 1 }).await;
        }
        for id in ["7", "t", HEX] {
            watch.until_told(id).await;
        }
        for _ in 0..3 {
            watch.clear();
            site.put(1, doc! { "a": 2 }).await;
            watch.until_told("1").await;
        }
        watch.clear();
        site.remove(1).await;
        watch.until_told("1").await;
        assert!(texts(&database, &["1"]).await.is_empty());
        watch.until("silence", |events| events.contains(&Event::CaughtUp)).await;
        assert_eq!(watch.failures(), []);
    }
}

/// An `_id` that no key can name is passed over.
#[tokio::test]
async fn ids_without_a_spelling() {
    for site in Site::all(6).await {
        let (_, watch, _follower) = site.followed("").await;
        site.put(4.5, doc! {}).await;
        site.put(doc! { "a": 1 }, doc! {}).await;
        site.put(1, doc! {}).await;
        watch.until_told("1").await;
        assert!(!watch.events().iter().any(|event| matches!(event, Event::Changed(id) if id != "1")));
    }
}

#[tokio::test]
async fn a_collection_that_is_dropped() {
    for site in Site::all(7).await {
        let (database, watch, _follower) = site.followed("").await;
        site.put(1, doc! {}).await;
        watch.until_told("1").await;
        watch.clear();
        site.drop_collection().await;
        watch
            .until("news of the drop", |events| events.iter().any(|event| matches!(event, Event::Lost(_))))
            .await;
        assert!(texts(&database, &["1"]).await.is_empty());
        watch.until_opened(Since::Resumed).await;
        site.put(1, doc! { "a": 5 }).await;
        watch.until_told("1").await;
        assert_eq!(texts(&site.open("columns a"), &["1"]).await, [r#"1 {"a":5}"#]);
    }
}

#[test]
fn what_can_be_known_to_be_wrong_at_once() {
    let wrong = |url: &str, options: &str| source::open(&spec(url, options)).err().expect("it was opened");
    assert!(wrong("mongodb://h", "").contains("must name the database"));
    assert!(wrong("mongodb://h/db", "id sku").contains("by _id alone"));
    assert!(wrong("mongodb://h/db", "modified a.b").contains("of the document itself"));
    let text = wrong("mongodb://u:secret@h:x/db", "");
    assert!(text.contains("u:***@") && text.contains("the port must be"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    open("mongodb://u:secret@h/db?replicaSet=rs0&tls=true", "id _id");
    open("mongodb+srv://u:secret@cluster.example.com/db", "");
}
