//! Clients that come, listen, stop reading, send half a request, and go; and one that only wants an answer.

use super::{Stage, ask, rest, tell};
use crate::line::{Came, Line};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use support::rng::Rng;
use support::wire::{Conn, Frame, encode};

const DB: usize = 7;

/// *PING is answered.*
pub fn bystander(stage: &Stage, _: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(0)?, 0);
    while stage.on() {
        let began = Instant::now();
        let reply = conn.call(&["PING"]);
        stage.longest_us.fetch_max(began.elapsed().as_micros() as u64, Relaxed);
        stage.pings.fetch_add(1, Relaxed);
        if reply != Frame::Simple(b"PONG".to_vec()) {
            return Err(format!("PING was answered {reply}"));
        }
        done += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(done)
}

pub fn publisher(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut nr) = (stage.conn(DB)?, 0);
    while stage.on() {
        for _ in 0..rng.between(1, 30) {
            nr += 1;
            let text = format!("{nr} {}", "x".repeat(rng.below(300)));
            let (how, channel) =
                *rng.pick(&[("PUBLISH", "news.a"), ("PUBLISH", "news.b"), ("SPUBLISH", "shard")]);
            ask(&mut conn, &[how, channel, &text])?;
        }
        rest(rng, 10);
    }
    Ok(nr)
}

/// *Messages of one publisher on one channel come in its order.* Subscribers come and go, some without
/// reading.
pub fn subscriber(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let mut heard = 0;
    while stage.on() {
        let mut conn = stage.conn(DB)?;
        if rng.percent(50) {
            conn.call(&["HELLO", "3"]);
        }
        let mut bytes = Vec::new();
        for line in [
            &["SUBSCRIBE", "news.a", "from-scripts"][..],
            &["PSUBSCRIBE", "news.*", "__key*__:*"],
            &["SSUBSCRIBE", "shard"],
        ] {
            if rng.percent(70) {
                encode(&line.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>(), &mut bytes);
            }
        }
        conn.send(&bytes);
        stage.subscribers.fetch_add(1, Relaxed);
        let until = Instant::now() + Duration::from_millis(rng.below(2000) as u64);
        let reads = rng.percent(80);
        let mut last: HashMap<Vec<u8>, i64> = HashMap::new();
        while stage.on() && Instant::now() < until {
            if !reads {
                rest(rng, 50);
                continue;
            }
            let Some(frame) = conn.read_within(Duration::from_millis(20)) else { continue };
            match &frame {
                // The limit of a subscriber's output buffer, which a slow machine reaches.
                Frame::Gone("connection closed") => break,
                Frame::Gone(why) => return Err(format!("a subscriber's connection: {why}")),
                Frame::Error(_) => return Err(format!("a subscriber was told {frame}")),
                _ => {}
            }
            let Some((place, text)) = message(&frame) else { continue };
            let nr = text
                .split(|b| *b == b' ')
                .next()
                .and_then(|nr| std::str::from_utf8(nr).ok()?.parse::<i64>().ok());
            if let Some(nr) = nr
                && let Some(before) = last.insert(place, nr)
                && before >= nr
            {
                return Err(format!("message {nr} came behind {before}: {frame}"));
            }
            heard += 1;
        }
    }
    Ok(heard)
}

/// Channel (and pattern) and text of a message of the publisher.
fn message(frame: &Frame) -> Option<(Vec<u8>, Vec<u8>)> {
    let texts: Vec<&[u8]> = frame.items()?.iter().map(|item| item.text().unwrap_or_default()).collect();
    let place = |channel: &[u8], pattern: &[u8]| [pattern, b" ", channel].concat();
    match texts[..] {
        [b"message" | b"smessage", channel, text] if channel != b"from-scripts" => {
            Some((place(channel, b""), text.to_vec()))
        }
        [b"pmessage", pattern, channel, text] if pattern == b"news.*" => {
            Some((place(channel, pattern), text.to_vec()))
        }
        _ => None,
    }
}

/// Asks for megabytes and reads none of them, or only some.
pub fn stopped_reader(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let mut done = 0;
    while stage.on() {
        let mut conn = stage.conn(DB)?;
        // A value above a current limit is refused before it is read, and its connection closed.
        if ask(&mut conn, &[&b"SET"[..], b"large", &vec![b'l'; 1 << 20], b"EX", b"100"])?.is_none() {
            continue;
        }
        let mut line = vec![b"RPUSH".to_vec(), b"long".to_vec()];
        line.extend((0..2000).map(|i| format!("item {i}").into_bytes()));
        ask(&mut conn, &line)?;
        tell(&mut conn, "EXPIRE long 10")?;
        let mut line = Line::open(stage.addr).map_err(|e| e.to_string())?;
        let mut bytes = Vec::new();
        let asks: [&[&str]; 4] =
            [&["SELECT", "7"], &["GET", "large"], &["LRANGE", "long", "0", "-1"], &["CLIENT", "LIST"]];
        let words = |line: &[&str]| line.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        encode(&words(asks[0]), &mut bytes);
        (0..rng.between(1, 40)).for_each(|_| encode(&words(asks[rng.between(1, 3)]), &mut bytes));
        line.put(&bytes);
        line.push(Duration::from_millis(50));
        for _ in 0..rng.below(5) {
            if let Came::Malformed(why) = line.take(Duration::from_millis(20)) {
                return Err(format!("a malformed reply: {why}"));
            }
        }
        rest(rng, 300);
        done += 1;
    }
    Ok(done)
}

/// Requests without an end, on many connections, which close or stay for a while.
pub fn half_requests(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let mut kept = Vec::new();
    let mut done = 0;
    while stage.on() {
        let mut stream = TcpStream::connect(stage.addr).map_err(|e| e.to_string())?;
        stream.set_write_timeout(Some(Duration::from_millis(200))).map_err(|e| e.to_string())?;
        let some = rng.below(100_000);
        let halves = [
            "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10000000\r\n".to_owned() + &"h".repeat(some),
            "*100000\r\n".to_owned() + &"$1\r\na\r\n".repeat(some / 10),
            "*2\r\n$4\r\nEC".to_owned(),
            "PIN".to_owned(),
            "*".to_owned(),
            "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI".to_owned(),
            "GET / HTTP".to_owned(),
        ];
        let _ = stream.write_all(rng.pick(&halves).as_bytes());
        match rng.percent(50) {
            true => kept.push(stream),
            false => drop(stream),
        }
        if kept.len() > 20 || rng.percent(5) {
            kept.clear();
        }
        done += 1;
        rest(rng, 20);
    }
    Ok(done)
}

/// Crowds that come at once, ask once or not at all, and go.
pub fn passers_by(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let mut done = 0;
    while stage.on() {
        let crowd: Vec<_> = (0..rng.between(5, 60)).filter_map(|_| Conn::open(stage.addr).ok()).collect();
        for mut conn in crowd {
            match rng.below(3) {
                0 => {
                    conn.set_patience(stage.hang);
                    let reply = conn.call(&["ECHO", "here"]);
                    if reply.text() != Some(b"here") {
                        return Err(format!("ECHO was answered {reply}"));
                    }
                }
                1 => conn.send(b"*1\r\n$4\r\nPING\r\n"),
                _ => {}
            }
            done += 1;
        }
        rest(rng, 100);
    }
    Ok(done)
}

/// *An item is answered as itself, or the reply says why not.*
pub fn http(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let mut done = 0;
    while stage.on() {
        let id = rng.between(1, 900);
        let target = match rng.below(8) {
            0 => "/metrics".to_owned(),
            1 => "/healthz".into(),
            2 => format!("/items?ids={id},{},999999", id + 1),
            _ => format!("/items/{id}"),
        };
        let mut stream = TcpStream::connect(stage.http).map_err(|e| e.to_string())?;
        stream.set_read_timeout(Some(stage.hang)).map_err(|e| e.to_string())?;
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|e| format!("{target}: {e}"))?;
        let mut text = Vec::new();
        if rng.percent(90) {
            stream.read_to_end(&mut text).map_err(|e| format!("{target}: {e}"))?;
            let text = String::from_utf8_lossy(&text);
            let status = text.get(9..12).and_then(|code| code.parse::<u16>().ok());
            let is_item = target.starts_with("/items/");
            match status {
                Some(200) if is_item && !text.contains(&format!("\"id\":{id},")) => {
                    return Err(format!("{target} was answered {text:?}"));
                }
                Some(200 | 404 | 503 | 504) => done += 1,
                _ => return Err(format!("{target} was answered {text:?}")),
            }
        }
        rest(rng, 10);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_from_confirmations() {
        let bulk = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
        let frame = Frame::Push(vec![bulk("message"), bulk("news.a"), bulk("7 xx")]);
        assert_eq!(message(&frame), Some((b" news.a".to_vec(), b"7 xx".to_vec())));
        let frame = Frame::Array(vec![bulk("subscribe"), bulk("news.a"), Frame::Int(1)]);
        assert_eq!(message(&frame), None);
    }
}
