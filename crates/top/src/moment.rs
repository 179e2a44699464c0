//! A server at one moment: INFO, and EVENKEEL NOW of one that has it.

use crate::heat::Heat;
use crate::reply::{Info, bytes, count_of, field, list, part, text_of};
use crate::text::shown;
use dial::Frame;

/// The program that answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Program {
    Evenkeel,
    Valkey,
    #[default]
    Redis,
}

impl Program {
    pub fn of(info: &Info) -> Program {
        if info.text("evenkeel_version").is_some() {
            Program::Evenkeel
        } else if info.text("valkey_version").is_some() || info.text("server_name") == Some("valkey") {
            Program::Valkey
        } else {
            Program::Redis
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Program::Evenkeel => "evenkeel",
            Program::Valkey => "valkey",
            Program::Redis => "redis",
        }
    }

    /// Its version; empty if INFO does not tell.
    pub fn version(self, info: &Info) -> &str {
        info.text(&format!("{}_version", self.name())).or(info.text("redis_version")).unwrap_or_default()
    }
}

/// One that waits or makes wait. All texts may be shown.
#[derive(Clone, Debug, Default)]
pub struct Party {
    pub kind: String,
    pub name: String,
    pub client: u64,
    pub addr: String,
    pub user: String,
    pub command: String,
    pub words: String,
    /// Clients of that name.
    pub clients: u64,
}

impl Party {
    fn read(reply: &Frame) -> Party {
        let words = field(reply, "words").map(list).unwrap_or_default();
        let words: Vec<String> = words.iter().map(|word| shown(bytes(word))).collect();
        Party {
            kind: text_of(reply, "kind"),
            name: text_of(reply, "name"),
            client: count_of(reply, "client"),
            addr: text_of(reply, "addr"),
            user: text_of(reply, "user"),
            command: text_of(reply, "command"),
            words: words.join(" "),
            clients: count_of(reply, "clients"),
        }
    }

    /// Its name, else what else is known of it.
    pub fn label(&self) -> &str {
        [&self.name, &self.addr, &self.command, &self.kind]
            .into_iter()
            .find(|text| !text.is_empty())
            .map_or("unknown", |text| text)
    }
}

/// A culprit, and who waited for it.
#[derive(Clone, Debug, Default)]
pub struct Edge {
    pub cause: String,
    pub culprit: Party,
    pub waiter: Party,
    pub waits: u64,
    pub us: u64,
    pub longest_us: u64,
}

impl Edge {
    /// Reads a list of edges.
    pub fn read_all(edges: &Frame) -> Vec<Edge> {
        let edges = list(edges).iter().map(|edge| {
            let party = |name| field(edge, name).map(Party::read).unwrap_or_default();
            Edge {
                cause: text_of(edge, "for"),
                culprit: party("culprit"),
                waiter: party("waiter"),
                waits: count_of(edge, "waits"),
                us: count_of(edge, "us"),
                longest_us: count_of(edge, "longest_us"),
            }
        });
        edges.collect()
    }

    /// The one or many that wait: `checkout-api`, `38 clients of checkout-api`.
    pub fn waiters(&self) -> String {
        match self.waiter.clients {
            0 | 1 => self.waiter.label().to_owned(),
            n => format!("{n} clients of {}", self.waiter.label()),
        }
    }
}

/// A client by processor time.
#[derive(Clone, Debug, Default)]
pub struct Heavy {
    pub client: Party,
    pub us: u64,
    pub pieces: u64,
}

/// EVENKEEL NOW.
#[derive(Clone, Debug, Default)]
pub struct Now {
    pub second: Heat,
    pub minute: Heat,
    /// The waits of the last ten seconds, the largest first.
    pub edges: Vec<Edge>,
    /// The clients of the last minute.
    pub heaviest: Vec<Heavy>,
    /// Waits of the last minute: cause, how many, microseconds.
    pub waits: Vec<(String, u64, u64)>,
    /// For each loop the busy share of the last second, in thousandths.
    pub busy: Vec<u64>,
    pub lag_ms: u64,
    pub log_pending_bytes: u64,
    pub is_log_stopped: bool,
    pub sources_down: Vec<String>,
}

impl Now {
    /// None if it is no such reply.
    pub fn read(reply: &Frame) -> Option<Now> {
        let (second, minute) = (field(reply, "second")?, field(reply, "minute")?);
        let heat = |of| field(of, "heat").map(Heat::read).unwrap_or_default();
        // A server that has just started has no second yet.
        let series = field(second, "series").unwrap_or(&Frame::Null);
        let heaviest = field(reply, "heaviest").map(list).unwrap_or_default().iter().map(|heavy| Heavy {
            client: field(heavy, "client").map(Party::read).unwrap_or_default(),
            us: count_of(heavy, "us"),
            pieces: count_of(heavy, "pieces"),
        });
        let waits = field(minute, "waits").map(crate::reply::pairs).unwrap_or_default();
        let disk = field(reply, "disk");
        let sources = field(reply, "sources_down").map(list).unwrap_or_default();
        Some(Now {
            second: heat(second),
            minute: heat(minute),
            edges: field(reply, "edges").map(Edge::read_all).unwrap_or_default(),
            heaviest: heaviest.collect(),
            waits: waits
                .iter()
                .map(|(cause, sums)| (shown(bytes(cause)), count_of(sums, "n"), count_of(sums, "us")))
                .collect(),
            busy: field(series, "busy")
                .map(list)
                .unwrap_or_default()
                .iter()
                .filter_map(crate::reply::count)
                .collect(),
            lag_ms: count_of(series, "replica_lag_ms"),
            log_pending_bytes: count_of(series, "log_pending_bytes"),
            is_log_stopped: disk.is_some_and(|disk| count_of(disk, "log_stopped") != 0),
            sources_down: sources.iter().map(|name| shown(bytes(name))).collect(),
        })
    }
}

/// A moment as INFO and NOW tell it, with the time at which they came.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// The time, of a clock that never goes back.
    pub at_us: u64,
    pub info: Info,
    pub now: Option<Now>,
}

/// Figures per second between two moments. None: the server does not tell, or has started anew.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub ops: Option<f64>,
    pub input: Option<f64>,
    pub output: Option<f64>,
    pub expired: Option<f64>,
    pub evicted: Option<f64>,
    /// From 0 to 1; None without reads.
    pub hits: Option<f64>,
}

impl Rates {
    pub fn between(before: &Moment, after: &Moment) -> Rates {
        let seconds = after.at_us.saturating_sub(before.at_us) as f64 / 1e6;
        let one_run = before.info.text("run_id") == after.info.text("run_id");
        let grown = |name: &str| {
            let (was, is) = (before.info.count(name)?, after.info.count(name)?);
            (one_run && seconds > 0.0).then(|| is.checked_sub(was))?
        };
        let rate = |name: &str| Some(grown(name)? as f64 / seconds);
        let (hits, misses) = (grown("keyspace_hits"), grown("keyspace_misses"));
        let share = hits.zip(misses).filter(|(hits, misses)| hits + misses > 0);
        Rates {
            ops: rate("total_commands_processed"),
            input: rate("total_net_input_bytes"),
            output: rate("total_net_output_bytes"),
            expired: rate("expired_keys"),
            evicted: rate("evicted_keys"),
            hits: share.map(|(hits, misses)| hits as f64 / (hits + misses) as f64),
        }
    }
}

/// How far replicas are behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lag {
    /// It leads, and nobody follows.
    Alone,
    /// Replicas, and the milliseconds that the last of them is behind.
    Leads(u64, u64),
    /// It follows, and last heard of its primary before so many milliseconds.
    Follows(u64),
    /// It follows, and has no connection to its primary.
    Down,
}

impl Moment {
    /// None if INFO does not tell.
    pub fn lag(&self) -> Option<Lag> {
        let role = self.info.text("role")?;
        if role != "master" {
            let is_up = self.info.text("master_link_status") == Some("up");
            let heard = self.info.count("master_last_io_seconds_ago").unwrap_or(0) * 1000;
            return Some(if is_up { Lag::Follows(heard) } else { Lag::Down });
        }
        let replicas = self.info.count("connected_slaves").unwrap_or(0);
        if replicas == 0 {
            return Some(Lag::Alone);
        }
        let told = |(_, line): (&str, &str)| crate::reply::counted(part(line, "lag")?);
        let seconds = self.info.beginning("slave").into_iter().filter_map(told).max().unwrap_or(0);
        Some(Lag::Leads(replicas, self.now.as_ref().map_or(seconds * 1000, |now| now.lag_ms)))
    }
}

/// An entry of the slow log.
#[derive(Clone, Debug, Default)]
pub struct Slow {
    pub id: u64,
    pub unix_s: u64,
    pub us: u64,
    pub words: String,
    pub addr: String,
    pub name: String,
}

impl Slow {
    /// Reads SLOWLOG GET, the newest first.
    pub fn read(reply: &Frame) -> Vec<Slow> {
        let entries = list(reply).iter().map(|entry| {
            let at = |n: usize| list(entry).get(n);
            let number = |n| at(n).and_then(crate::reply::count).unwrap_or(0);
            let text = |n| at(n).map(|text| shown(bytes(text))).unwrap_or_default();
            let words = at(3).map(list).unwrap_or_default().iter().map(|word| shown(bytes(word)));
            Slow {
                id: number(0),
                unix_s: number(1),
                us: number(2),
                words: words.collect::<Vec<_>>().join(" "),
                addr: text(4),
                name: text(5),
            }
        });
        entries.collect()
    }

    /// The client's name, else its address.
    pub fn client(&self) -> &str {
        [&self.name, &self.addr].into_iter().find(|text| !text.is_empty()).map_or("unknown", |text| text)
    }

    /// The first word.
    pub fn command(&self) -> &str {
        self.words.split(' ').next().unwrap_or_default()
    }
}
