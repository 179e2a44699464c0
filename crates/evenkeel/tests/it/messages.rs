//! Messages to many subscribers: in order, whole, to all who are subscribed, and to no others.

use crate::support::{Client, Server, encode, foreign};

/// Subscribers of one channel, more than are served in one go.
const CROWD: usize = 200;

fn subscribers(server: &Server, channel: &str) -> Vec<Client> {
    let subscribe = |i: usize| {
        let mut client = if i.is_multiple_of(2) { server.client() } else { server.client3() };
        let kind = if i.is_multiple_of(2) { "" } else { ">" };
        client.expect(&format!("SUBSCRIBE {channel}"), &format!("{kind}[\"subscribe\", \"{channel}\", :1]"));
        client
    };
    (0..CROWD).map(subscribe).collect()
}

#[test]
fn messages_come_in_the_order_they_were_published() {
    let server = Server::start();
    let mut crowd = subscribers(&server, "news");
    let mut publisher = server.client();
    let long = "x".repeat(300_000);
    let texts: Vec<String> =
        (0..40).map(|i| if i % 10 == 3 { format!("{i}{long}") } else { i.to_string() }).collect();
    let requests: Vec<u8> =
        texts.iter().flat_map(|text| encode(&[b"PUBLISH", b"news", text.as_bytes()])).collect();
    let sending = std::thread::spawn(move || {
        publisher.send(requests);
        (0..40).for_each(|_| publisher.expect_reply(&format!(":{CROWD}")));
    });
    for (i, client) in crowd.iter_mut().enumerate() {
        let kind = if i.is_multiple_of(2) { "" } else { ">" };
        for text in &texts {
            client.expect_reply(&format!("{kind}[\"message\", \"news\", \"{text}\"]"));
        }
    }
    sending.join().expect("the publisher got its replies");
}

#[test]
fn who_reads_late_gets_every_message() {
    let server = Server::start();
    let mut crowd = subscribers(&server, "news");
    let mut publisher = server.client();
    let text = "y".repeat(10_000);
    for i in 0..100 {
        publisher.expect(&format!("PUBLISH news {i}-{text}"), &format!(":{CROWD}"));
    }
    publisher.expect("PING", "+PONG");
    for client in crowd.iter_mut().take(10) {
        for i in 0..100 {
            assert!(client.reply().contains(&format!("\"{i}-{text}\"")));
        }
    }
}

#[test]
fn a_message_under_way_holds_nobody_up_and_reaches_only_who_stays() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut crowd = subscribers(&server, "news");
    let (mut control, mut other) = (server.client(), server.client3());
    control.expect("DEBUG POINT publish HOLD 1", "+OK");
    let mut publisher = server.client();
    publisher.expect("PUBLISH news hello", &format!(":{CROWD}"));
    while control.call("DEBUG POINT publish") != ":1" {}
    other.expect("SET k v", "+OK");
    other.expect("GET k", "\"v\"");
    other.expect("SUBSCRIBE news", ">[\"subscribe\", \"news\", :1]");
    crowd[0].expect("UNSUBSCRIBE", "[\"unsubscribe\", \"news\", :0]");
    crowd[1].expect("UNSUBSCRIBE news", ">[\"unsubscribe\", \"news\", :0]");
    crowd[1].expect("SUBSCRIBE news", ">[\"subscribe\", \"news\", :1]");
    drop(crowd.remove(2));
    control.expect("DEBUG POINT publish OFF", "+OK");
    for (i, client) in crowd.iter_mut().enumerate().skip(2) {
        let reply = client.reply();
        assert!(reply.ends_with("[\"message\", \"news\", \"hello\"]"), "{i}: {reply}");
    }
    crowd[0].expect("PING", "+PONG");
    for client in [&mut crowd[1], &mut other] {
        client.expect("PING", "+PONG");
    }
}

#[test]
fn connections_are_killed_in_slices_and_all_of_them() {
    let server = Server::start();
    let mut crowd = subscribers(&server, "news");
    let mut control = server.client();
    control.expect("CLIENT KILL TYPE pubsub", &format!(":{CROWD}"));
    for client in &mut crowd {
        assert!(client.is_closed_within(crate::support::PATIENCE));
    }
    control.expect("PUBSUB NUMSUB news", "[\"news\", :0]");
    control.expect("CLIENT KILL 1.2.3.4:5", "-ERR No such client");
}

/// More patterns than a message passes in one go.
const MANY: usize = 1000;

/// Subscribes to many patterns, all of which match every name that begins with this byte.
fn many_patterns(client: &mut Client, begin: char) {
    let patterns: Vec<String> = (0..MANY).map(|i| format!("[{begin}{i:03}]*")).collect();
    client.send(encode_words("PSUBSCRIBE", &patterns));
    (1..=MANY).for_each(|i| assert!(client.reply().ends_with(&format!(", :{i}]"))));
}

fn encode_words(command: &str, words: &[String]) -> Vec<u8> {
    let words: Vec<&[u8]> =
        std::iter::once(command).chain(words.iter().map(String::as_str)).map(str::as_bytes).collect();
    encode(&words)
}

#[test]
fn a_message_passes_very_many_patterns_wherever_it_comes_from() {
    let server = Server::start();
    let (mut listener, mut direct) = (server.client(), server.client());
    many_patterns(&mut listener, 'n');
    direct.expect("SUBSCRIBE news", "[\"subscribe\", \"news\", :1]");
    let mut publisher = server.client();
    let heard = |listener: &mut Client, channel: &str, text: &str| {
        let end = format!(", \"{channel}\", \"{text}\"]");
        for _ in 0..MANY {
            let message = listener.reply();
            assert!(message.starts_with("[\"pmessage\", ") && message.ends_with(&end), "{message}");
        }
    };
    let count = MANY + 1;
    publisher.expect("PUBLISH news one", &format!(":{count}"));
    publisher.expect("PUBLISH news two", &format!(":{count}"));
    publisher.expect("PUBLISH other three", ":0");
    publisher.expect("MULTI", "+OK");
    publisher.expect("PUBLISH news four", "+QUEUED");
    publisher.expect("SET k v", "+QUEUED");
    publisher.expect("EXEC", &format!("[:{count}, \"OK\"]").replace("\"OK\"", "+OK"));
    publisher.expect("EVAL \"return redis.call('publish', 'news', 'five')\" 0", &format!(":{count}"));
    for text in ["one", "two", "four", "five"] {
        heard(&mut listener, "news", text);
        direct.expect_reply(&format!("[\"message\", \"news\", \"{text}\"]"));
    }
    // Events of keys, in their order.
    publisher.expect("CONFIG SET notify-keyspace-events KA", "+OK");
    let mut watcher = server.client();
    many_patterns(&mut watcher, '_');
    for i in 0..5 {
        publisher.expect(&format!("SET k{i} v"), "+OK");
    }
    (0..5).for_each(|i| heard(&mut watcher, &format!("__keyspace@0__:k{i}"), "set"));
}

#[test]
fn very_many_subscriptions_end_with_reset() {
    let server = Server::start();
    let (mut listener, mut other) = (server.client(), server.client());
    many_patterns(&mut listener, 'n');
    listener.send(encode_words("SUBSCRIBE", &(0..MANY).map(|i| i.to_string()).collect::<Vec<_>>()));
    (0..MANY).for_each(|_| assert!(listener.reply().starts_with("[\"subscribe\"")));
    listener.expect("RESET", "+RESET");
    other.expect("PUBSUB NUMPAT", ":0");
    other.expect("PUBSUB NUMSUB 0 999", "[\"0\", :0, \"999\", :0]");
    other.expect("PUBLISH news x", ":0");
    listener.expect("SET k v", "+OK");
}

#[test]
fn who_publishes_more_than_can_be_delivered_waits_and_nobody_else() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--event-loops", "1"]);
    let mut crowd = subscribers(&server, "news");
    let (mut control, mut other, mut flooder) = (server.client(), server.client(), server.client());
    let id = flooder.call("CLIENT ID");
    let id = id.trim_start_matches(':');
    control.expect("DEBUG POINT publish HOLD 1", "+OK");
    // Deliveries of 500 messages are then under way and fill it; 50 more are the flooder's share.
    const MESSAGES: usize = 700;
    flooder.send(encode(&[b"PUBLISH", b"news", b"flood"]).repeat(MESSAGES));
    let flags = |control: &mut Client| control.call(&format!("CLIENT LIST ID {id}"));
    crate::waits::until("the flooder waits", || flags(&mut control).contains(" flags=b "));
    (0..551).for_each(|_| flooder.expect_reply(&format!(":{CROWD}")));
    assert!(control.call("INFO evenkeel").contains(&format!("messages_under_way:{}", 551 * CROWD)));
    for _ in 0..40 {
        other.expect("PUBLISH news word", &format!(":{CROWD}"));
        other.expect("SET k v", "+OK");
    }
    let under_way = format!("messages_under_way:{}", (551 + 40) * CROWD);
    assert!(control.call("INFO evenkeel").contains(&under_way), "the flooder still waits");
    control.expect("DEBUG POINT publish OFF", "+OK");
    (551..MESSAGES).for_each(|_| flooder.expect_reply(&format!(":{CROWD}")));
    for client in &mut crowd {
        (0..MESSAGES + 40).for_each(|_| assert!(client.reply().contains("[\"message\", \"news\", \"")));
    }
    let why = control.call(&format!("EVENKEEL WHY {id}"));
    assert!(why.contains("\"waited-for-messages\"") && why.contains("\"for\", \"messages\""), "{why}");
    let waits = control.call("EVENKEEL WAITS");
    assert!(waits.contains("\"messages\""), "{waits}");
    crate::waits::until("all are delivered", || {
        control.call("INFO evenkeel").contains("messages_under_way:0")
    });
}

/// Tens of thousands of changes of one key by a script are reported in slices. They come no faster than they
/// are read, and before later events.
#[test]
fn very_many_events_of_a_key_come_in_their_order_and_hold_nobody_up() {
    if foreign() {
        return;
    }
    const ROUNDS: usize = 20_000;
    let server = Server::start_with(&["--notify-keyspace-events", "KEA"]);
    let (mut watcher, mut other, mut control) = (server.client(), server.client(), server.client());
    watcher.expect("PSUBSCRIBE __key*__:*", "[\"psubscribe\", \"__key*__:*\", :1]");
    control.expect("DEBUG POINT publish HOLD 1", "+OK");
    let script = format!(
        "for i = 1, {ROUNDS} do redis.call('RPUSH', KEYS[1], i) redis.call('LPOP', KEYS[1]) end return 1"
    );
    assert_eq!(other.call_bytes(&[b"EVAL", script.as_bytes(), b"1", b"many"]), ":1");
    // The deliveries of all subscribers together are bounded; clients are served, with events or without.
    let under_way = |control: &mut Client| {
        let info = control.call("INFO evenkeel");
        let rest = info.split_once("messages_under_way:").expect("it is told").1;
        rest.split("\\r").next().and_then(|n| n.parse::<usize>().ok()).expect("a number")
    };
    crate::waits::until("it is full", || under_way(&mut control) > 100_000);
    (0..100).for_each(|i| other.expect(&format!("SET k{i} v"), "+OK"));
    // An event that is not delivered yet counts too: a sixteenth of a delivery.
    assert!(under_way(&mut control) < 120_000);
    control.expect("DEBUG POINT publish OFF", "+OK");
    let mut heard = |event: &str, key: &str| {
        let message = |channel: String, text: &str| {
            format!("[\"pmessage\", \"__key*__:*\", \"{channel}\", \"{text}\"]")
        };
        watcher.expect_reply(&message(format!("__keyspace@0__:{key}"), event));
        watcher.expect_reply(&message(format!("__keyevent@0__:{event}"), key));
    };
    for _ in 0..ROUNDS {
        ["rpush", "lpop", "del"].iter().for_each(|event| heard(event, "many"));
    }
    (0..100).for_each(|i| heard("set", &format!("k{i}")));
    crate::waits::until("all are delivered", || under_way(&mut control) == 0);
    // Without a listener there is nothing to do.
    watcher.expect("RESET", "+RESET");
    assert_eq!(other.call_bytes(&[b"EVAL", script.as_bytes(), b"1", b"many"]), ":1");
    crate::waits::until("it is over", || under_way(&mut control) == 0);
}
