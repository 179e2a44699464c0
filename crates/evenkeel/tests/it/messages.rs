//! Messages to many subscribers: in order, whole, to who is there, and nobody else's business.

use crate::support::{Client, Server, encode, foreign};

/// Subscribers of one channel, more than are served at a stretch.
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
