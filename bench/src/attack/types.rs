//! Streams, HyperLogLog, geo; monitors and clients with caches.

use super::{Attack, Attacker, GIB, LONG, PLAIN, Stage, Strike, Style, crowds, nothing, repeat_words};
use crate::fill;
use crate::random::{hex16, mix};
use crate::wire;
use std::io::{self, Write};

const MILLION: u64 = 1_000_000;
/// Consumers of the group.
const CONSUMERS: u64 = 1_000;
/// HyperLogLogs merged at once, and the members of each: enough for the dense encoding.
const SKETCHES: u64 = 1_000;
const SKETCHED: u64 = 3_000;
/// Clients that track a key.
const CACHES: u64 = 10_000;
/// Commands that a monitor is shown in a round.
const SHOWN: u64 = 100_000;

pub const ATTACKS: &[Attack] = &[
    Attack { name: "xrange", what: "XRANGE of {}", strike: |_, _| repeat_words("XRANGE s - +"), ..STREAM },
    Attack {
        name: "xinfo-full",
        what: "XINFO STREAM FULL of {}",
        strike: |_, _| repeat_words("XINFO STREAM s FULL COUNT 0"),
        ..STREAM
    },
    Attack {
        name: "xreadgroup",
        what: "XREADGROUP of {} by 1,000 consumers",
        setup: |stage| {
            stream(stage, b"s", stage.scaled(MILLION))?;
            (0..stage.attackers).try_for_each(|k| {
                stage.server.client()?.words(&format!("XGROUP CREATE s group:{k} 0")).map(|_| ())
            })?;
            nothing()
        },
        strike: consume,
        ..STREAM
    },
    Attack {
        name: "xtrim",
        what: "XTRIM of {} entries",
        style: Style::Once(LONG),
        memory: (GIB, GIB / 8),
        setup: |_| nothing(),
        refill: |stage| {
            for k in 0..stage.attackers {
                let key = format!("doomed:{k}");
                stage.server.client()?.words(&format!("DEL {key}"))?;
                stream(stage, key.as_bytes(), stage.own_share(MILLION))?;
            }
            Ok(())
        },
        strike: |_, k| Ok(Box::new(move |attacker| attacker.words(&format!("XTRIM doomed:{k} MAXLEN 0")))),
        ..STREAM
    },
    Attack {
        name: "pfmerge",
        what: "PFMERGE of {} HyperLogLogs",
        size: SKETCHES,
        setup: |stage| {
            for sketch in 0..stage.scaled(SKETCHES) {
                let key = format!("hll:{sketch}");
                fill::collection(stage.server, b"PFADD", key.as_bytes(), SKETCHED, 1, |out, i| {
                    wire::put_word(out, &hex16(mix(i + sketch * SKETCHED)))
                })?;
            }
            nothing()
        },
        strike: |stage, k| {
            let names: String = (0..stage.scaled(SKETCHES)).map(|i| format!(" hll:{i}")).collect();
            repeat_words(&format!("PFMERGE merged:{k}{names}"))
        },
        ..PLAIN
    },
    Attack {
        name: "geosearch",
        what: "GEOSEARCH over {} places",
        size: MILLION,
        memory: (GIB, GIB / 16),
        setup: |stage| {
            fill::collection(stage.server, b"GEOADD", b"places", stage.scaled(MILLION), 3, |out, i| {
                let (longitude, latitude) = (mix(i) % 360_000, mix(!i) % 160_000);
                wire::put_word(out, degrees(longitude, 180).as_bytes());
                wire::put_word(out, degrees(latitude, 80).as_bytes());
                wire::put_word(out, &hex16(i));
            })?;
            nothing()
        },
        strike: |_, _| repeat_words("GEOSEARCH places FROMLONLAT 10 50 BYRADIUS 8000 km ASC WITHDIST"),
        ..PLAIN
    },
    Attack {
        name: "monitor",
        what: "{} SET beside a MONITOR that does not read",
        size: SHOWN,
        memory: (2 * GIB, GIB / 8),
        strike: shown,
        ..PLAIN
    },
    Attack {
        name: "tracking",
        what: "FLUSHALL with {} clients that track a key",
        size: CACHES,
        style: Style::Once(LONG),
        setup: |stage| {
            let mut request = Vec::new();
            for words in [&[&b"PING"[..]][..], &[b"HELLO", b"3"], &[b"CLIENT", b"TRACKING", b"ON"]] {
                wire::command(&mut request, words);
            }
            wire::command(&mut request, &[b"GET", b"cached"]);
            crowds::gather(stage, stage.scaled(CACHES), &request)
        },
        strike: |_, _| Ok(Box::new(|attacker| attacker.words("FLUSHALL"))),
        ..PLAIN
    },
];

/// A stream of entries of two short fields.
const STREAM: Attack = Attack {
    size: MILLION,
    memory: (GIB, GIB / 8),
    setup: |stage| {
        stream(stage, b"s", stage.scaled(MILLION))?;
        nothing()
    },
    ..PLAIN
};

fn stream(stage: &Stage, key: &[u8], n: u64) -> io::Result<()> {
    fill::in_order(stage.server, n, |out, i| {
        let (id, number) = (format!("{}-1", i + 1), i.to_string());
        wire::command(out, &[b"XADD", key, id.as_bytes(), b"n", number.as_bytes(), b"text", &hex16(i)[..10]]);
    })
}

/// All consumers of the attacker's group read, one after the other, what the group has not read. Then the group
/// forgets it, untimed.
fn consume(stage: &Stage, k: usize) -> io::Result<Strike> {
    let count = (stage.scaled(MILLION) / CONSUMERS).max(1).to_string();
    let (mut request, group) = (Vec::new(), format!("group:{k}"));
    for consumer in 0..CONSUMERS {
        let consumer = format!("consumer:{consumer}");
        wire::command(
            &mut request,
            &[
                b"XREADGROUP",
                b"GROUP",
                group.as_bytes(),
                consumer.as_bytes(),
                b"COUNT",
                count.as_bytes(),
                b"STREAMS",
                b"s",
                b">",
            ],
        );
    }
    Ok(Box::new(move |attacker| {
        let took = attacker.exchange(&request, CONSUMERS)?;
        attacker.words(&format!("XGROUP DESTROY s {group}"))?;
        attacker.words(&format!("XGROUP CREATE s {group} 0"))?;
        Ok(took)
    }))
}

/// Thousandths of a degree, of which `half` degrees lie west or south of zero.
fn degrees(thousandths: u64, half: u64) -> String {
    format!("{:.3}", thousandths as f64 / 1000.0 - half as f64)
}

/// Opens a connection that asks for MONITOR and reads nothing, and sends many commands for it to be shown.
fn shown(stage: &Stage, k: usize) -> io::Result<Strike> {
    let (mut request, n) = (Vec::new(), stage.scaled(SHOWN));
    for i in 0..n {
        wire::command(&mut request, &[b"SET", format!("shown:{k}:{}", i % 1000).as_bytes(), &hex16(i)]);
    }
    let mut ask = Vec::new();
    wire::command(&mut ask, &[b"MONITOR"]);
    let server = Attacker::connect(stage.server)?.stream.peer_addr()?;
    Ok(Box::new(move |attacker| {
        let mut silent = std::net::TcpStream::connect(server)?;
        silent.write_all(&ask)?;
        attacker.exchange(&request, n)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_on_both_sides_of_zero() {
        assert_eq!((degrees(0, 180), degrees(359_999, 180)), ("-180.000".into(), "179.999".into()));
        assert_eq!((degrees(80_500, 80), degrees(159_999, 80)), ("0.500".into(), "79.999".into()));
    }
}
