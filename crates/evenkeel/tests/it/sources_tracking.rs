//! Client-side caches of rows: a change in a real PostgreSQL tells the clients that have read the row.
//!
//! ```text
//! UPDATE ─► PostgreSQL ─► feed ─► the key is dropped ─► invalidate ─► a cache forgets its copy ─► GET ─► a newer copy
//! ```
//!
//! - C1: a cache holds what its last GET answered, until a message names the key or says that everything is
//!   old. It acts on messages in the order of the bytes.
//! - C2: no copy is older than the copy before it.
//! - C3: no copy is kept for ever that a change has made old. A message that stood before the reply of an older
//!   read would leave such a copy.

use crate::sources::{row, until, until_figure};
use crate::sources_postgres::{Shop, shop};
use crate::support::*;
use std::time::{Duration, Instant};

const OLD_42: &str = r#">["invalidate", ["item:42"]]"#;
const OLD_ALL: &str = r#">["invalidate", (null)]"#;

/// A shop whose feed follows the database, so that no message is about its beginning.
fn followed() -> Shop {
    let shop = shop("negative-ttl 1h timeout 60s");
    let mut client = shop.server.client();
    until(&mut client, "GET item:1", &row(1, 0));
    until_figure(&mut client, "feed", "\"open\"");
    shop
}

/// The same, with a client of RESP3 that tracks.
fn tracker(shop: &Shop, options: &str) -> Client {
    let mut client = shop.server.client3();
    client.expect(&format!("CLIENT TRACKING ON {options}"), "+OK");
    client
}

#[test]
fn a_changed_row_tells_the_clients_that_have_read_it() {
    let shop = followed();
    let (mut one, mut two, mut stranger) = (tracker(&shop, ""), tracker(&shop, ""), tracker(&shop, ""));
    let mut plain = shop.server.client();
    stranger.expect("GET item:41", &row(41, 0));
    let changes = ["UPDATE items SET n = 7 WHERE id = 42", "DELETE FROM items WHERE id = 42"];
    let comes = "INSERT INTO items VALUES (42, 'item 42', 9)";
    let copies = [row(42, 0), row(42, 7), "(null)".to_owned(), row(42, 9)];
    for (copy, change) in copies.iter().zip(changes.into_iter().chain([comes])) {
        for reader in [&mut one, &mut two] {
            reader.expect("GET item:42", copy);
        }
        shop.database.sql(change).unwrap();
        one.expect_reply(OLD_42);
        two.expect_reply(OLD_42);
    }
    until(&mut plain, "GET item:42", &copies[3]);
    // Changes that nobody has read since tell nobody.
    shop.database.sql("UPDATE items SET n = 10 WHERE id = 42").unwrap();
    until(&mut plain, "GET item:42", &row(42, 10));
    one.expect("PING", "+PONG");
    stranger.expect("PING", "+PONG");
    shop.database.sql("TRUNCATE items").unwrap();
    // All rows were given up.
    stranger.expect_reply(OLD_ALL);
}

#[test]
fn a_target_of_redirect_hears_of_changed_rows() {
    let shop = followed();
    let (mut source, mut target) = (shop.server.client(), shop.server.client());
    let id = target.call("CLIENT ID").trim_start_matches(':').to_owned();
    target.expect("SUBSCRIBE __redis__:invalidate", "[\"subscribe\", \"__redis__:invalidate\", :1]");
    source.expect(&format!("CLIENT TRACKING ON REDIRECT {id}"), "+OK");
    for n in 0..3 {
        source.expect("GET item:42", &row(42, n));
        shop.database.sql(&format!("UPDATE items SET n = {} WHERE id = 42", n + 1)).unwrap();
        target.expect_reply(r#"["message", "__redis__:invalidate", ["item:42"]]"#);
    }
    source.expect("PING", "+PONG");
}

#[test]
fn a_prefix_hears_of_every_row_that_was_cached() {
    let shop = followed();
    let mut all = tracker(&shop, "BCAST PREFIX item:4");
    let mut plain = shop.server.client();
    plain
        .expect("MGET item:41 item:42 item:52", &format!("[{}, {}, {}]", row(41, 0), row(42, 0), row(52, 0)));
    // Rows that are cached are news; so is a change of them.
    let mut told = Vec::new();
    let mut until_told = |all: &mut Client, wanted: &[&str]| {
        while !wanted.iter().all(|key| told.iter().any(|text: &String| text.contains(key))) {
            told.push(all.reply());
        }
        assert!(told.iter().all(|text| text.starts_with(r#">["invalidate", ["item:4"#)), "{told:?}");
        assert!(!told.concat().contains("item:52"), "{told:?}");
        told.clear();
    };
    shop.database.sql("UPDATE items SET n = 1 WHERE id IN (41, 42, 52)").unwrap();
    until_told(&mut all, &["item:41", "item:42"]);
    until(&mut plain, "GET item:42", &row(42, 1));
    shop.database.sql("UPDATE items SET n = 2 WHERE id = 42").unwrap();
    until_told(&mut all, &["item:42"]);
}

/// A cache of item:42 over one connection, or over two with REDIRECT.
struct Cache {
    reader: Client,
    /// The target of REDIRECT.
    target: Option<Client>,
    copy: Option<u32>,
    reads: u32,
}

impl Cache {
    fn over(mut reader: Client, target: Option<Client>, options: &str) -> Cache {
        reader.expect(&format!("CLIENT TRACKING ON {options}"), "+OK");
        Cache { reader, target, copy: None, reads: 0 }
    }

    /// Acts on a message (C1).
    fn hear(&mut self, text: &str) {
        assert!(text.contains("item:42") || text.contains("(nil") || text == OLD_ALL, "{text}");
        self.copy = None;
    }

    /// Acts on the messages that come within a moment.
    fn listen(&mut self) {
        let moment = Duration::from_millis(1);
        let from = self.target.as_mut().unwrap_or(&mut self.reader);
        if let Some(text) = from.reply_within(moment) {
            self.hear(&text);
        }
    }

    /// The cached version; asks the server if there is none.
    fn get(&mut self, newest: u32) -> u32 {
        if let Some(copy) = self.copy {
            return copy;
        }
        self.reader.request(&[b"GET", b"item:42"]);
        self.reads += 1;
        loop {
            let text = self.reader.reply();
            // A message before the reply is about an older copy, and there is none.
            if text.starts_with('>') {
                self.hear(&text);
                continue;
            }
            let n = (newest.saturating_sub(500)..=newest + 500).find(|n| row(42, *n) == text);
            self.copy = Some(n.unwrap_or_else(|| panic!("{text}")));
            return self.copy.unwrap_or_default();
        }
    }
}

#[test]
fn no_copy_goes_backwards_or_stays_old() {
    let shop = followed();
    let server = &shop.server;
    let mut target = server.client();
    let id = target.call("CLIENT ID").trim_start_matches(':').to_owned();
    target.expect("SUBSCRIBE __redis__:invalidate", "[\"subscribe\", \"__redis__:invalidate\", :1]");
    let mut caches = [
        Cache::over(server.client3(), None, ""),
        Cache::over(server.client3(), None, "BCAST PREFIX item:"),
        Cache::over(server.client(), Some(target), &format!("REDIRECT {id}")),
    ];
    // Delays loads and their removal, so that reads fall between a change and its message.
    let mut weather = server.client();
    let mut session = shop.database.session();
    let mut seen = [0; 3];
    for n in 1..=150u32 {
        let point = ["source-ask", "source-fill", "source-drop"][n as usize % 3];
        let mode = if n % 4 == 0 { "OFF".to_owned() } else { format!("DELAY {}", n % 7 * 300 + 1) };
        weather.expect(&format!("DEBUG POINT {point} {mode}"), "+OK");
        session.run(&format!("UPDATE items SET n = {n} WHERE id = 42"));
        for (cache, seen) in caches.iter_mut().zip(&mut seen) {
            cache.listen();
            let copy = cache.get(n);
            assert!(copy >= *seen && copy <= n, "version {copy} after {seen}, of {n}"); // C2
            *seen = copy;
        }
    }
    for point in ["source-ask", "source-fill", "source-drop"] {
        weather.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
    }
    let deadline = Instant::now() + PATIENCE;
    for cache in &mut caches {
        while cache.get(150) != 150 {
            assert!(
                Instant::now() < deadline,
                "a copy stayed old: {:?} after {} reads",
                cache.copy,
                cache.reads
            ); // C3
            cache.listen();
        }
        assert!(cache.reads > 1, "nothing was invalidated");
    }
}
