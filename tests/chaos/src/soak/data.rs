//! Keys that are written, read, popped and walked, and that expire or are flushed.

use super::{Stage, ask, bank, number, pipeline, rest, tell, words};
use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use support::rng::Rng;
use support::wire::Frame;

const NOISE_DB: usize = 0;
const SCAN_DB: usize = 4;
const STAMPS_DB: usize = 5;
const QUEUE_DB: usize = 6;
const OWN_DB: usize = 15;

/// *A connection reads its own writes, unless a flush came in between.*
pub fn own_writes(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(OWN_DB)?, 0);
    let (mut nr, mut reader) = (0, stage.conn(OWN_DB)?);
    while stage.on() {
        nr += 1;
        let key = format!("own:{}", rng.below(20));
        let value = format!("{nr} {}", "v".repeat(rng.below(200)));
        let flushes = stage.flushes();
        let (stored, got) = match rng.below(3) {
            0 => {
                let set = [b"SET".to_vec(), key.clone().into_bytes(), value.clone().into_bytes()];
                let replies = pipeline(&mut conn, &[set.to_vec(), words(&format!("GET {key}"))])?;
                (replies[0].is_some(), replies[1].clone())
            }
            // Another connection sees it too, as it was acknowledged.
            1 => {
                (ask(&mut conn, &["SET", &key, &value])?.is_some(), tell(&mut reader, &format!("GET {key}"))?)
            }
            _ => {
                let stored = ask(&mut conn, &["HSET", &format!("h{key}"), "f", &value])?.is_some();
                (stored, tell(&mut conn, &format!("HGET h{key} f"))?)
            }
        };
        match got {
            _ if !stored => {}
            Some(Frame::Bulk(text)) if text == value.as_bytes() => done += 1,
            Some(gone) if gone.is_null() && stage.was_flushed(flushes) => {}
            other => {
                let other = other.map_or("an error".to_owned(), |frame| frame.to_string());
                return Err(format!("{key} was set to {value:?} and is {other}"));
            }
        }
        rest(rng, 2);
    }
    Ok(done)
}

/// *INCR answers one more than the last time, or begins anew after a flush.*
pub fn counter(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(OWN_DB)?, 0);
    let (mut last, mut flushes) = (0, stage.flushes());
    while stage.on() {
        // The flushes are counted before the reply: a later one has not undone it.
        let now = stage.flushes();
        let Some(reply) = tell(&mut conn, "INCR count")? else { continue };
        let n = number(&reply).unwrap_or(-1);
        let anew = n <= last && n >= 1 && stage.was_flushed(flushes);
        if n != last + 1 && !anew {
            return Err(format!("INCR answered {n} after {last}"));
        }
        (last, flushes) = (n, now);
        done += 1;
        rest(rng, 2);
    }
    Ok(done)
}

const STAMPED: usize = 1500;

/// Long and short EXECs.
pub fn stamper(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut nr) = (stage.conn(STAMPS_DB)?, 0);
    while stage.on() {
        nr += 1;
        let mut requests = vec![words("MULTI")];
        requests.extend((0..STAMPED).map(|i| words(&format!("SET st:{i} {nr}"))));
        if rng.percent(30) {
            // Commands other than SET, for another plan.
            requests.push(words("EVAL return(1) 0"));
        }
        requests.push(words("EXEC"));
        pipeline(&mut conn, &requests)?;
        let short = [words("MULTI"), words("INCR other"), words("GET other"), words("EXEC")];
        let replies = pipeline(&mut conn, &short)?;
        if let Some(Some(Frame::Array(pair))) = replies.last()
            && let [incremented, got] = &pair[..]
            && number(incremented) != number(got)
            && !incremented.is_error()
        {
            return Err(format!("INCR in a transaction answered {incremented}, GET behind it {got}"));
        }
        rest(rng, 30);
    }
    Ok(nr)
}

/// *No MGET shows keys of two EXECs.*
pub fn stamp_reader(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(STAMPS_DB)?, 0);
    while stage.on() {
        let step = *rng.pick(&[1, 7, 100, STAMPED]);
        let mut line = words("MGET");
        line.extend((rng.below(step)..STAMPED).step_by(step).map(|i| format!("st:{i}").into_bytes()));
        if let Some(reply) = ask(&mut conn, &line)? {
            let seen: HashSet<Option<i64>> = reply.items().unwrap_or_default().iter().map(number).collect();
            if seen.len() != 1 {
                return Err(format!("one MGET saw the stamps {seen:?}"));
            }
            done += 1;
        }
        rest(rng, 10);
    }
    Ok(done)
}

pub fn producer(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut nr) = (stage.conn(QUEUE_DB)?, 0);
    while stage.on() {
        let n = if rng.percent(5) { 300 } else { rng.between(1, 3) };
        let mut line = words(&format!("RPUSH q{}", rng.below(3)));
        line.extend((nr..nr + n).map(|i| format!("{i}").into_bytes()));
        nr += n;
        ask(&mut conn, &line)?;
        ask(&mut conn, &["ZADD", "zq", &nr.to_string(), &nr.to_string()])?;
        // The queue must not grow while no consumer pops.
        if rng.percent(3) {
            tell(&mut conn, "DEL q0 q1 q2 zq")?;
        }
        rest(rng, 10);
    }
    Ok(nr)
}

/// *A client pops no item twice.* Some consumers leave while they wait.
pub fn consumer(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut seen) = (stage.conn(QUEUE_DB)?, HashSet::new());
    while stage.on() {
        let reply = match rng.below(6) {
            0 => tell(&mut conn, "BLPOP q0 q1 q2 0.05")?.and_then(|pair| pair.items()?.get(1).cloned()),
            1 => tell(&mut conn, "BRPOP q2 0.01")?.and_then(|pair| pair.items()?.get(1).cloned()),
            2 => tell(&mut conn, "LPOP q1")?,
            3 => tell(&mut conn, "BLMOVE q0 side LEFT RIGHT 0.02")?,
            4 => {
                tell(&mut conn, "BZPOPMIN zq 0.01")?;
                tell(&mut conn, "LTRIM side 0 10")?;
                None
            }
            _ => {
                let mut leaves = stage.conn(QUEUE_DB)?;
                let mut bytes = Vec::new();
                support::wire::encode(&words("BLPOP nothing nowhere 0"), &mut bytes);
                leaves.send(&bytes);
                leaves.read_within(Duration::from_millis(rng.below(20) as u64));
                None
            }
        };
        if let Some(item) = reply.as_ref().and_then(number)
            && !seen.insert(item)
        {
            return Err(format!("item {item} was popped twice"));
        }
    }
    Ok(seen.len())
}

/// *SCAN finds every key that exists all the time.*
pub fn scanner(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    const KEYS: usize = 400;
    let (mut conn, mut done) = (stage.conn(SCAN_DB)?, 0);
    while stage.on() {
        let flushes = stage.flushes();
        let mut fill = words("MSET");
        (0..KEYS).for_each(|i| fill.extend([format!("k:{i}").into_bytes(), b"v".to_vec()]));
        if ask(&mut conn, &fill)?.is_none() {
            rest(rng, 50);
            continue;
        }
        let mut found: HashSet<Vec<u8>> = HashSet::new();
        let how = rng.below(2);
        if how == 0 {
            let all = tell(&mut conn, "KEYS k:*")?;
            found.extend(
                all.iter().filter_map(Frame::items).flatten().filter_map(Frame::text).map(<[u8]>::to_vec),
            );
        } else {
            let mut cursor = b"0".to_vec();
            loop {
                let line: [&[u8]; 4] = [b"SCAN", &cursor, b"COUNT", b"50"];
                let Some(reply) = ask(&mut conn, &line)? else { break };
                let Some([next, page]) = reply.items() else {
                    return Err(format!("SCAN was answered {reply}"));
                };
                found.extend(
                    page.items().unwrap_or_default().iter().filter_map(Frame::text).map(<[u8]>::to_vec),
                );
                cursor = next.text().unwrap_or_default().to_vec();
                if cursor == b"0" || !stage.on() {
                    break;
                }
            }
        }
        let there = (0..KEYS).filter(|i| found.contains(format!("k:{i}").as_bytes())).count();
        if there != KEYS && stage.on() && !stage.was_flushed(flushes) {
            let way = ["KEYS", "SCAN"][how];
            return Err(format!("{way} found {there} of {KEYS} keys"));
        }
        done += 1;
        rest(rng, 40);
    }
    Ok(done)
}

/// Thousands of keys and fields that expire at about the same time.
pub fn expiries(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(NOISE_DB)?, 0);
    while stage.on() {
        let ms = rng.between(1, 200);
        let keys = (0..2000).map(|i| words(&format!("SET ex:{i} v PX {ms}"))).collect::<Vec<_>>();
        pipeline(&mut conn, &keys)?;
        let mut line = words("HSET exh");
        (0..500).for_each(|i| line.extend([format!("f{i}").into_bytes(), b"v".to_vec()]));
        ask(&mut conn, &line)?;
        let mut line = words(&format!("HPEXPIRE exh {ms} FIELDS 500"));
        line.extend((0..500).map(|i| format!("f{i}").into_bytes()));
        ask(&mut conn, &line)?;
        done += 1;
        rest(rng, 300);
    }
    Ok(done)
}

/// FLUSHALL now and then, FLUSHDB of the noise, SWAPDB of the bank.
pub fn flusher(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(NOISE_DB)?, 0);
    while stage.on() {
        match rng.below(8) {
            0 => {
                stage.begun.fetch_add(1, SeqCst);
                let line: &&str = rng.pick(&["FLUSHALL", "FLUSHALL ASYNC", "FLUSHALL SYNC"]);
                tell(&mut conn, line)?;
                stage.ended.fetch_add(1, SeqCst);
            }
            1 | 2 => {
                tell(&mut conn, "FLUSHDB")?;
            }
            3 => {
                tell(&mut conn, "FLUSHDB ASYNC")?;
            }
            _ => {
                tell(&mut conn, &format!("SWAPDB {} {}", bank::DB, bank::DB + 1))?;
            }
        }
        done += 1;
        rest(rng, 400);
    }
    Ok(done)
}
