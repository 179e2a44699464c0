//! The knowledge of the server: replies go in, sentences and figures come out. Nothing is drawn here.

use crate::heat::{Heat, exact_us};
use crate::moment::{Edge, Lag, Moment, Now, Program, Rates, Slow};
use crate::poll::{Ask, COLUMN_MS, COLUMNS, News, Replies, Window};
use crate::reply::{Info, bytes, field, list};
use crate::stat::micros;
use crate::text::{self, shown};
use dial::Frame;
use std::collections::{BTreeMap, VecDeque};

/// Round trips that the quantiles of PINGs are of.
const PINGS: usize = 300;

/// The connection's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Connecting,
    Live,
    Lost(String),
}

/// All that is known.
#[derive(Debug, Default)]
pub struct Model {
    pub place: String,
    pub state: State,
    pub unix_ms: u64,
    pub moment: Moment,
    pub rates: Rates,
    /// Latencies in the columns of the window, the newest last. None: a gap.
    pub heat: VecDeque<Option<Heat>>,
    /// Microseconds that clients waited for others, in the same columns.
    pub waited: VecDeque<Option<u64>>,
    pub window: Window,
    /// The waits by culprit and waiter in the window, if it is of the past.
    pub flows: Option<Vec<Edge>>,
    pub hot_keys: Option<HotKeys>,
    /// The column that is being measured, and when it began; without EVENKEEL HISTORY.
    measured: (Heat, u64),
    pub pings: VecDeque<u64>,
    pub clients: Vec<Client>,
    pub commands: Vec<Command>,
    pub slow: Vec<Slow>,
    /// Events of LATENCY LATEST: name, time, the last and the longest in milliseconds.
    pub events: Vec<(String, u64, u64, u64)>,
    /// Commands that were refused, and why.
    pub refused: BTreeMap<Ask, String>,
    /// The answer of EVENKEEL WHY.
    pub why: Option<Vec<String>>,
    before: Before,
}

/// The figures that rates are differences to.
#[derive(Debug, Default)]
struct Before {
    clients: (u64, BTreeMap<u64, [u64; 3]>),
    commands: (u64, BTreeMap<String, [u64; 2]>),
}

/// A client of CLIENT LIST. All texts may be shown.
#[derive(Clone, Debug, Default)]
pub struct Client {
    pub id: u64,
    /// All fields, in order.
    pub fields: Vec<(String, String)>,
    /// Per second: commands, bytes in, bytes out. None: the server does not tell.
    pub rates: [Option<f64>; 3],
}

impl Client {
    fn read(line: &str) -> Option<Client> {
        let fields: Vec<(String, String)> = line
            .split(' ')
            .filter_map(|field| field.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut client = Client { fields, ..Client::default() };
        client.id = client.number("id")?;
        Some(client)
    }

    pub fn text(&self, name: &str) -> &str {
        self.fields.iter().find(|field| field.0 == name).map_or("", |field| &field.1)
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        crate::reply::counted(self.text(name))
    }

    /// Its name, else its address.
    pub fn label(&self) -> &str {
        match self.text("name") {
            "" => self.text("addr"),
            name => name,
        }
    }
}

/// HOTKEYS GET.
#[derive(Clone, Debug, Default)]
pub struct HotKeys {
    /// Keys are counted now; else the count is of an earlier time.
    pub is_active: bool,
    /// Milliseconds that were counted.
    pub for_ms: u64,
    /// For each key microseconds and bytes of the network. None: it is not among the first by that.
    pub keys: BTreeMap<String, [Option<u64>; 2]>,
}

impl HotKeys {
    /// None: nothing was started.
    fn read(reply: &Frame) -> Option<HotKeys> {
        let session = list(reply).first()?;
        let mut keys: BTreeMap<String, [Option<u64>; 2]> = BTreeMap::new();
        for (at, name) in ["by-cpu-time-us", "by-net-bytes"].into_iter().enumerate() {
            let by = field(session, name).map(crate::reply::pairs).unwrap_or_default();
            by.iter().for_each(|(key, n)| {
                keys.entry(shown(bytes(key))).or_default()[at] = crate::reply::count(n);
            });
        }
        let number = |name| crate::reply::count_of(session, name);
        Some(HotKeys {
            is_active: number("tracking-active") != 0,
            for_ms: number("collection-duration-ms"),
            keys,
        })
    }
}

/// A row of INFO commandstats, since the last one.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub name: String,
    pub calls: f64,
    /// Microseconds a second.
    pub us: f64,
    pub all_calls: u64,
    pub mean_us: f64,
    pub failed: u64,
}

impl Model {
    pub fn new(place: String) -> Model {
        Model { place: shown(place.as_bytes()), ..Model::default() }
    }

    /// Takes what came. O(bytes of the replies).
    pub fn take(&mut self, news: News) {
        match news {
            News::Lost(why) => {
                self.state = State::Lost(why);
                self.before = Before::default();
            }
            News::Replies(replies) => {
                self.state = State::Live;
                self.take_replies(replies);
            }
        }
    }

    fn take_replies(&mut self, Replies { unix_ms, at_us, replies, window, pings }: Replies) {
        self.unix_ms = unix_ms;
        if window.is_live() {
            self.flows = None;
        }
        let mut moment = Moment { at_us, ..Moment::default() };
        for (ask, reply) in replies {
            if let Frame::Error(text) = &reply {
                self.refused.insert(ask, shown(text));
                if ask == Ask::Why {
                    self.why = Some(vec![shown(text)]);
                }
                continue;
            }
            self.refused.remove(&ask);
            match ask {
                Ask::Info => moment.info = Info::parse(bytes(&reply)),
                Ask::Now => moment.now = Now::read(&reply),
                Ask::History => {
                    self.window = window;
                    self.take_history(&reply);
                }
                Ask::Flows => self.flows = field(&reply, "edges").map(Edge::read_all),
                Ask::HotKeys => self.hot_keys = HotKeys::read(&reply),
                Ask::Clients => self.take_clients(&reply, at_us),
                Ask::Commands => self.take_commands(&reply, at_us),
                Ask::Slow => self.slow = Slow::read(&reply),
                Ask::Events => self.take_events(&reply),
                Ask::Why => {
                    let mut lines = Vec::new();
                    crate::reply::lines(&reply, 0, &mut lines);
                    self.why = Some(lines);
                }
            }
        }
        if moment.now.is_none() {
            self.take_pings(&pings, at_us);
        }
        self.rates = Rates::between(&self.moment, &moment);
        self.moment = moment;
    }

    /// The last columns of EVENKEEL HISTORY.
    fn take_history(&mut self, reply: &Frame) {
        let octaves: Vec<&[Frame]> =
            field(reply, "heat").map(list).unwrap_or_default().iter().map(list).collect();
        let n = octaves.iter().map(|columns| columns.len()).max().unwrap_or(0);
        self.heat = (n.saturating_sub(COLUMNS)..n)
            .map(|column| {
                let mut heat = Heat::default();
                let mut is_there = false;
                for (sum, columns) in heat.counts.iter_mut().zip(&octaves) {
                    let n = columns.get(column).and_then(crate::reply::count);
                    is_there |= n.is_some();
                    *sum = n.unwrap_or(0);
                }
                is_there.then_some(heat)
            })
            .collect();
        let causes = field(reply, "waits").map(crate::reply::pairs).unwrap_or_default();
        let us: Vec<&[Frame]> =
            causes.iter().map(|cause| field(cause.1, "us").map(list).unwrap_or_default()).collect();
        let waited = |column: usize| {
            let known: Vec<u64> =
                us.iter().filter_map(|us| us.get(column).and_then(crate::reply::count)).collect();
            (!known.is_empty()).then(|| crate::reply::sum(known))
        };
        self.waited = (n.saturating_sub(COLUMNS)..n).map(waited).collect();
    }

    /// The edges to show: those of the window if it is of the past, else of the last ten seconds.
    pub fn edges(&self) -> Option<&[Edge]> {
        self.flows.as_deref().or(self.moment.now.as_ref().map(|now| now.edges.as_slice()))
    }

    fn take_pings(&mut self, pings: &[u64], at_us: u64) {
        let (heat, begin) = &mut self.measured;
        if at_us.saturating_sub(*begin) >= COLUMN_MS * 1000 || self.heat.is_empty() {
            *begin = at_us;
            *heat = Heat::default();
            self.heat.push_back(None);
        }
        pings.iter().for_each(|us| heat.note(*us));
        if let Some(last) = self.heat.back_mut() {
            *last = (heat.sum() > 0).then_some(*heat);
        }
        self.pings.extend(pings);
        let old = self.pings.len().saturating_sub(PINGS);
        self.pings.drain(..old);
        let old = self.heat.len().saturating_sub(COLUMNS);
        self.heat.drain(..old);
    }

    fn take_clients(&mut self, reply: &Frame, at_us: u64) {
        let text = bytes(reply);
        let lines = text.split(|byte| *byte == b'\n').map(shown);
        let mut clients: Vec<Client> = lines.filter_map(|line| Client::read(&line)).collect();
        let seconds = at_us.saturating_sub(self.before.clients.0) as f64 / 1e6;
        let mut sums = BTreeMap::new();
        for client in &mut clients {
            let now = ["tot-cmds", "tot-net-in", "tot-net-out"].map(|name| client.number(name));
            let before = self.before.clients.1.get(&client.id);
            for (at, now) in now.into_iter().enumerate() {
                let grown = before.zip(now).and_then(|(before, now)| now.checked_sub(before[at]));
                client.rates[at] = grown.filter(|_| seconds > 0.0).map(|grown| grown as f64 / seconds);
            }
            if now[0].is_some() {
                sums.insert(client.id, now.map(|n| n.unwrap_or(0)));
            }
        }
        self.before.clients = (at_us, sums);
        self.clients = clients;
    }

    fn take_commands(&mut self, reply: &Frame, at_us: u64) {
        let info = Info::parse(bytes(reply));
        let seconds = at_us.saturating_sub(self.before.commands.0) as f64 / 1e6;
        let (mut commands, mut sums) = (Vec::new(), BTreeMap::new());
        for (name, line) in info.beginning("cmdstat_") {
            let number = |of| crate::reply::part(line, of).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
            let [calls, us] = ["calls", "usec"].map(|of| number(of) as u64);
            let before = self.before.commands.1.get(name);
            let [calls_before, us_before] = match (before, self.before.commands.1.is_empty()) {
                (Some(before), _) => *before,
                // A command that came first since the last look.
                (None, false) => [0, 0],
                (None, true) => [calls, us],
            };
            let rate = |now: u64, before: u64| {
                if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
            };
            commands.push(Command {
                name: name.to_owned(),
                calls: rate(calls, calls_before),
                us: rate(us, us_before),
                all_calls: calls,
                mean_us: number("usec_per_call"),
                failed: (number("failed_calls") + number("rejected_calls")) as u64,
            });
            sums.insert(name.to_owned(), [calls, us]);
        }
        self.before.commands = (at_us, sums);
        self.commands = commands;
    }

    fn take_events(&mut self, reply: &Frame) {
        let events = list(reply).iter().map(|event| {
            let at = |n: usize| list(event).get(n);
            let number = |n| at(n).and_then(crate::reply::count).unwrap_or(0);
            (at(0).map(|name| shown(bytes(name))).unwrap_or_default(), number(1), number(2), number(3))
        });
        self.events = events.collect();
    }

    pub fn program(&self) -> Program {
        if self.moment.now.is_some() { Program::Evenkeel } else { Program::of(&self.moment.info) }
    }

    /// The first line: which server, in which state.
    pub fn title(&self) -> String {
        let (program, info) = (self.program(), &self.moment.info);
        let role = match info.text("role") {
            Some("master") => "primary",
            Some(_) => "replica",
            None => "",
        };
        let up = info
            .count("uptime_in_seconds")
            .map(|s| format!("up {}", text::span(s as f64)))
            .unwrap_or_default();
        let parts = match &self.state {
            State::Connecting => [self.place.clone(), "connecting".to_owned(), String::new(), String::new()],
            State::Lost(_) => {
                [self.place.clone(), "NO CONNECTION, trying again".to_owned(), String::new(), String::new()]
            }
            State::Live => {
                let name = format!("{} {}", program.name(), program.version(info));
                [name.trim_end().to_owned(), self.place.clone(), role.to_owned(), up]
            }
        };
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
    }

    /// The sentence that tells who makes whom wait; and whether it is a reason to look.
    pub fn sentence(&self) -> (String, bool) {
        match &self.state {
            State::Connecting => return ("Connecting.".to_owned(), false),
            State::Lost(why) => return (format!("No connection. {why}"), true),
            State::Live => {}
        }
        if let Some(now) = &self.moment.now {
            return match now.edges.first() {
                None => ("Nobody waits for another client.".to_owned(), false),
                Some(edge) => (
                    format!(
                        "{} makes {} wait: {}, {} in 10 s.",
                        edge.culprit.label(),
                        edge.waiters(),
                        edge.cause,
                        micros(edge.us)
                    ),
                    true,
                ),
            };
        }
        if self.program() == Program::Evenkeel {
            let why = self.refused.get(&Ask::Now).map_or("EVENKEEL NOW has no answer", String::as_str);
            return (format!("Who waits is not known: {why}"), true);
        }
        let slow = self.lately().max_by_key(|slow| slow.us);
        match (slow, self.refused.get(&Ask::Slow)) {
            (_, Some(why)) => (format!("SLOWLOG GET: {why}"), true),
            (None, None) => ("No command was in the slow log in the last minute.".to_owned(), false),
            (Some(slow), None) => (
                format!(
                    "{} of {} took {}; all others waited for it.",
                    text::cut(slow.command(), 20),
                    text::cut(slow.client(), 30),
                    micros(slow.us)
                ),
                true,
            ),
        }
    }

    /// Entries of the slow log of the last minute.
    pub fn lately(&self) -> impl Iterator<Item = &Slow> {
        let begin = (self.unix_ms / 1000).saturating_sub(60);
        self.slow.iter().filter(move |slow| slow.unix_s >= begin)
    }

    /// Half, 99 and 99.9 of a hundred requests in microseconds, and of what they are.
    pub fn latency(&self) -> ([Option<u64>; 3], &'static str) {
        let shares = [0.5, 0.99, 0.999];
        match &self.moment.now {
            Some(now) => {
                let (heat, of) = match now.second.sum() {
                    0 => (&now.minute, "last minute, at most"),
                    _ => (&now.second, "last second, at most"),
                };
                (shares.map(|share| heat.at_most_us(share)), of)
            }
            None => {
                let mut times: Vec<u64> = self.pings.iter().copied().collect();
                times.sort_unstable();
                (shares.map(|share| exact_us(&times, share)), "own PINGs, last minute")
            }
        }
    }

    /// The lines of figures: a name, and what it says.
    pub fn figures(&self) -> [(&'static str, String); 5] {
        let info = &self.moment.info;
        if let Some(why) = self.refused.get(&Ask::Info) {
            let none = || "-".to_owned();
            return [
                ("work", format!("INFO: {why}")),
                ("latency", self.latencies()),
                ("memory", none()),
                ("disk", none()),
                ("replicas", none()),
            ];
        }
        let rate = |n: Option<f64>| n.map_or_else(|| "-".to_owned(), text::number);
        let flow = |n: Option<f64>| n.map_or_else(|| "-".to_owned(), text::bytes);
        let rates = &self.rates;
        let work = format!(
            "{:>5} ops/s  hits {}  in {}/s  out {}/s  clients {}, {} blocked",
            rate(rates.ops),
            rates.hits.map_or_else(|| "-".to_owned(), |hits| format!("{:.1}%", hits * 100.0)),
            flow(rates.input),
            flow(rates.output),
            info.text("connected_clients").unwrap_or("-"),
            info.text("blocked_clients").unwrap_or("-"),
        );
        [
            ("work", work),
            ("latency", self.latencies()),
            ("memory", self.memory()),
            ("disk", self.disk()),
            ("replicas", self.replicas()),
        ]
    }

    fn latencies(&self) -> String {
        let (latency, of) = self.latency();
        let [p50, p99, p999] = latency.map(|us| us.map_or_else(|| "-".to_owned(), micros));
        let busy = self.moment.now.as_ref().map(|now| now.busy.as_slice()).unwrap_or_default();
        let loops: Vec<String> = busy.iter().map(|busy| format!("{:.0}%", *busy as f64 / 10.0)).collect();
        let loops = if loops.is_empty() { String::new() } else { format!("  loops {}", loops.join(" ")) };
        format!("p50 {p50}  p99 {p99}  p99.9 {p999} ({of}){loops}")
    }

    fn memory(&self) -> String {
        let info = &self.moment.info;
        let size = |name| info.count(name).map_or_else(|| "-".to_owned(), |n| text::bytes(n as f64));
        let limit = match info.count("maxmemory") {
            Some(0) | None => "no limit".to_owned(),
            Some(n) => format!("of {}", text::bytes(n as f64)),
        };
        let databases = info.beginning("db");
        let keys = databases.iter().filter_map(|db| crate::reply::counted(crate::reply::part(db.1, "keys")?));
        let keys = crate::reply::sum(keys);
        let rate = |n: Option<f64>| n.map_or_else(|| "-".to_owned(), text::number);
        format!(
            "{:>5} {limit}, resident {}  keys {}  expired {}/s  evicted {}/s",
            size("used_memory"),
            size("used_memory_rss"),
            text::number(keys as f64),
            rate(self.rates.expired),
            rate(self.rates.evicted),
        )
    }

    fn disk(&self) -> String {
        let info = &self.moment.info;
        let mut parts = Vec::new();
        if info.is_set("loading") {
            parts.push("LOADING".to_owned());
        }
        parts.push(if info.is_set("aof_enabled") { "log on".to_owned() } else { "log off".to_owned() });
        if let Some(now) = self.moment.now.as_ref().filter(|now| now.log_pending_bytes > 0) {
            parts.push(format!("{} not yet durable", text::bytes(now.log_pending_bytes as f64)));
        }
        if self.moment.now.as_ref().is_some_and(|now| now.is_log_stopped)
            || info.text("aof_last_write_status") == Some("err")
        {
            parts.push("LOG FAILS".to_owned());
        }
        if info.is_set("rdb_bgsave_in_progress") || info.is_set("aof_rewrite_in_progress") {
            parts.push("saving now".to_owned());
        }
        if info.text("rdb_last_bgsave_status") == Some("err") {
            parts.push("SAVE FAILED".to_owned());
        }
        if let Some(saved) = info.count("rdb_last_save_time").filter(|saved| *saved > 0) {
            let ago = (self.unix_ms / 1000).saturating_sub(saved);
            parts.push(format!("saved {} ago", text::span(ago as f64)));
        }
        let changes = info.count("rdb_changes_since_last_save").unwrap_or(0);
        parts.push(format!("{} changes", text::number(changes as f64)));
        parts.join(", ")
    }

    fn replicas(&self) -> String {
        let mut text = match self.moment.lag() {
            None => "-".to_owned(),
            Some(Lag::Alone) => "none".to_owned(),
            Some(Lag::Leads(n, ms)) => format!("{n}, the last {} behind", micros(ms.saturating_mul(1000))),
            Some(Lag::Follows(ms)) => {
                format!("follows {}, heard of it {} ago", self.primary(), micros(ms.saturating_mul(1000)))
            }
            Some(Lag::Down) => format!("LINK DOWN to {}", self.primary()),
        };
        if let Some(now) = self.moment.now.as_ref().filter(|now| !now.sources_down.is_empty()) {
            text.push_str(&format!("  SOURCES DOWN {}", now.sources_down.join(" ")));
        }
        text
    }

    fn primary(&self) -> String {
        let info = &self.moment.info;
        format!("{}:{}", info.text("master_host").unwrap_or("?"), info.text("master_port").unwrap_or("?"))
    }
}
