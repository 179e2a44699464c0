//! Money moves between accounts by short and long scripts and by WATCH and EXEC. Both databases that may hold
//! it are swapped and flushed. *All accounts exist, and their sum is unchanged; or none exists.*

use super::{Stage, ask, number, pipeline, rest, tell, words};
use support::rng::Rng;
use support::wire::{Conn, Frame};

/// SWAPDB exchanges it with the next one.
pub const DB: usize = 2;
const ACCOUNTS: usize = 60;
const EACH: i64 = 1000;

const OPEN: &str = "if redis.call('EXISTS', 'acct:0') == 0 then \
    for i = 0, tonumber(ARGV[1]) - 1 do redis.call('SET', 'acct:' .. i, ARGV[2]) end end return 1";
const TRANSFER: &str = "local a, b = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2]) \
    if not a or not b then return 0 end \
    redis.call('SET', KEYS[1], tonumber(a) - tonumber(ARGV[1])) for i = 1, tonumber(ARGV[2]) do end \
    redis.call('SET', KEYS[2], tonumber(b) + tonumber(ARGV[1])) return 1";
const SUM: &str = "local n, sum = 0, 0 for i = 0, tonumber(ARGV[1]) - 1 do local v = redis.call('GET', 'acct:' .. i) \
    if v then n = n + 1 sum = sum + tonumber(v) end end return {n, sum}";

pub fn teller(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(DB)?, 0);
    while stage.on() {
        // A flush may have emptied it.
        if done % 20 == 0 {
            ask(&mut conn, &["EVAL", OPEN, "0", &ACCOUNTS.to_string(), &EACH.to_string()])?;
        }
        let a = rng.below(ACCOUNTS);
        let b = (a + rng.between(1, ACCOUNTS - 1)) % ACCOUNTS;
        let (a, b, n) = (format!("acct:{a}"), format!("acct:{b}"), rng.between(1, 20) as i64);
        let spin = if rng.percent(10) { rng.below(2_000_000) } else { 0 };
        let transfer =
            ["EVAL", TRANSFER, "2", &a, &b, &n.to_string(), &spin.to_string()].map(|w| w.as_bytes().to_vec());
        match rng.below(4) {
            0 => {
                pipeline(&mut conn, &[words("MULTI"), transfer.to_vec(), words("EXEC")])?;
            }
            1 => watched(&mut conn, &a, &b, n)?,
            _ => {
                ask(&mut conn, &transfer)?;
            }
        }
        done += 1;
        rest(rng, 2);
    }
    Ok(done)
}

fn watched(conn: &mut Conn, a: &str, b: &str, n: i64) -> Result<(), String> {
    tell(conn, &format!("WATCH {a} {b}"))?;
    let held = tell(conn, &format!("MGET {a} {b}"))?;
    let held: Vec<i64> = held.iter().filter_map(Frame::items).flatten().filter_map(number).collect();
    let [x, y] = held[..] else {
        return tell(conn, "UNWATCH").map(|_| ());
    };
    let (debit, credit) = (words(&format!("SET {a} {}", x - n)), words(&format!("SET {b} {}", y + n)));
    pipeline(conn, &[words("MULTI"), debit, credit, words("EXEC")])?;
    Ok(())
}

pub fn auditor(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(DB)?, 0);
    let mut all = words("MGET");
    all.extend((0..ACCOUNTS).map(|i| format!("acct:{i}").into_bytes()));
    while stage.on() {
        let seen = match rng.below(3) {
            0 => ask(&mut conn, &all)?.as_ref().and_then(Frame::items).map(counted),
            1 => {
                let (low, high) = all[1..].split_at(ACCOUNTS / 2);
                let get = |keys: &[Vec<u8>]| [&words("MGET")[..], keys].concat();
                let replies = pipeline(&mut conn, &[words("MULTI"), get(high), get(low), words("EXEC")])?;
                let halves = replies.last().cloned().flatten();
                let halves = halves.as_ref().and_then(Frame::items).map(|halves| {
                    halves
                        .iter()
                        .filter_map(Frame::items)
                        .map(counted)
                        .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
                });
                halves.filter(|_| replies.len() == 4)
            }
            _ => {
                let reply = ask(&mut conn, &["EVAL", SUM, "0", &ACCOUNTS.to_string()])?;
                match reply.as_ref().and_then(Frame::items) {
                    Some([n, sum]) => Some((number(n).unwrap_or(-1) as usize, number(sum).unwrap_or(-1))),
                    _ => None,
                }
            }
        };
        match seen {
            None | Some((0, 0)) => {}
            Some((ACCOUNTS, sum)) if sum == EACH * ACCOUNTS as i64 => done += 1,
            Some((n, sum)) => return Err(format!("{n} of {ACCOUNTS} accounts hold {sum}")),
        }
        rest(rng, 5);
    }
    Ok(done)
}

/// The number of accounts, and their sum.
fn counted(items: &[Frame]) -> (usize, i64) {
    let held: Vec<i64> = items.iter().filter_map(number).collect();
    (held.len(), held.iter().sum())
}
