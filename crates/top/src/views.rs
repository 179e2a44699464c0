//! The lists of the screen, made from what is known.

use crate::model::{Client, Model};
use crate::moment::{Edge, Party, Program, Slow};
use crate::poll::{Ask, CLIENTS_MAX};
use crate::stat::micros;
use crate::table::{Row, Table};
use crate::text;

/// The lists to choose from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    Waits,
    #[default]
    Clients,
    Commands,
    Slow,
    Events,
    HotKeys,
}

impl View {
    pub const ALL: [View; 6] =
        [View::Waits, View::Clients, View::Commands, View::Slow, View::Events, View::HotKeys];

    pub fn name(self) -> &'static str {
        match self {
            View::Waits => "waits",
            View::Clients => "clients",
            View::Commands => "commands",
            View::Slow => "slow log",
            View::Events => "events",
            View::HotKeys => "hot keys",
        }
    }

    /// The list as the model has it, in no order. O(rows).
    pub fn table(self, model: &Model) -> Table {
        match self {
            View::Waits => waits(model),
            View::Clients => clients(model),
            View::Commands => commands(model),
            View::Slow => slow(model),
            View::Events => events(model),
            View::HotKeys => hot_keys(model),
        }
    }
}

fn empty(model: &Model, ask: Ask, otherwise: &str) -> String {
    model.refused.get(&ask).map_or_else(|| otherwise.to_owned(), |why| format!("{}: {why}", ask.name()))
}

/// The culprits and their waiters; of a server that does not tell, what was slow in the last minute.
fn waits(model: &Model) -> Table {
    let mut table = Table {
        columns: vec![
            ("culprit", -24),
            ("makes wait", -26),
            ("for", -7),
            ("waits", 6),
            ("time", 6),
            ("most", -0),
        ],
        orders: vec!["time", "longest", "waits"],
        rows: Vec::new(),
        empty: empty(model, Ask::Now, "nobody, in the last ten seconds"),
    };
    let Some(edges) = model.edges() else {
        if model.program() != Program::Evenkeel {
            table.columns =
                vec![("slow in the last minute", -24), ("of", -26), ("", -7), ("", 6), ("time", 6), ("", -0)];
            table.rows = model.lately().map(slow_wait).collect();
            table.empty = empty(
                model,
                Ask::Slow,
                "this server does not tell who waits; nothing was slow in the last minute",
            );
        }
        return table;
    };
    if model.flows.is_some() {
        table.empty = "nobody, in the time of the picture".to_owned();
    }
    table.rows = edges.iter().map(edge).collect();
    table
}

fn edge(edge: &Edge) -> Row {
    let mut detail = vec![format!(
        "{} waits for {}, {} in all, the longest {}",
        edge.waits,
        edge.cause,
        micros(edge.us),
        micros(edge.longest_us)
    )];
    party("culprit", &edge.culprit, &mut detail);
    party("waiter", &edge.waiter, &mut detail);
    Row {
        key: format!("{} {} {}", edge.cause, edge.culprit.label(), edge.waiter.label()),
        cells: vec![
            edge.culprit.label().to_owned(),
            edge.waiters(),
            edge.cause.clone(),
            text::number(edge.waits as f64),
            micros(edge.us),
            micros(edge.longest_us),
        ],
        ranks: vec![edge.us as f64, edge.longest_us as f64, edge.waits as f64],
        detail,
        client: Some(edge.culprit.client).filter(|id| *id != 0),
    }
}

fn party(name: &str, party: &Party, out: &mut Vec<String>) {
    out.push(format!("{name}: {}", party.label()));
    let id = if party.client == 0 { String::new() } else { party.client.to_string() };
    let clients = if party.clients == 0 { String::new() } else { party.clients.to_string() };
    let known = [
        ("kind", &party.kind),
        ("client", &id),
        ("addr", &party.addr),
        ("user", &party.user),
        ("command", &party.command),
        ("words", &party.words),
        ("clients", &clients),
    ];
    out.extend(
        known.iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| format!("  {name:<8} {text}")),
    );
}

fn slow_wait(slow: &Slow) -> Row {
    Row {
        cells: vec![
            slow.command().to_owned(),
            slow.client().to_owned(),
            String::new(),
            String::new(),
            micros(slow.us),
            String::new(),
        ],
        ranks: vec![slow.us as f64; 3],
        ..slow_row(slow)
    }
}

fn clients(model: &Model) -> Table {
    let heavy = model.moment.now.as_ref().map(|now| now.heaviest.as_slice()).unwrap_or_default();
    let us = |id: u64| {
        crate::reply::sum(heavy.iter().filter(|heavy| heavy.client.client == id).map(|heavy| heavy.us))
    };
    let many = model.moment.info.count("connected_clients").unwrap_or(0);
    let mut rows: Vec<Row> = model.clients.iter().map(|client| client_row(client, us(client.id))).collect();
    // Heavy clients that have gone, or were not listed.
    let is_listed = |id| model.clients.iter().any(|client| client.id == id);
    rows.extend(heavy.iter().filter(|heavy| !is_listed(heavy.client.client)).map(|heavy| {
        let mut detail = vec![format!(
            "{} of processor time in the last minute, in {} pieces",
            micros(heavy.us),
            heavy.pieces
        )];
        party("client", &heavy.client, &mut detail);
        let gone = if model.clients.is_empty() { "" } else { "gone" };
        let (id, cpu) = (heavy.client.client.to_string(), percent(heavy.us));
        let cells =
            [heavy.client.label(), &id, &heavy.client.command, &cpu, "", "", "", gone].map(str::to_owned);
        Row {
            key: format!("client {}", heavy.client.client),
            cells: cells.to_vec(),
            ranks: vec![heavy.us as f64, 0.0, 0.0, 0.0, 0.0],
            detail,
            client: Some(heavy.client.client).filter(|id| *id != 0),
        }
    }));
    let above = format!("{many} clients; CLIENT LIST is not asked above {CLIENTS_MAX}");
    Table {
        columns: vec![
            ("client", -24),
            ("id", 6),
            ("command", -12),
            ("cpu", 5),
            ("ops/s", 5),
            ("out/s", 5),
            ("mem", 5),
            ("idle", -0),
        ],
        orders: vec!["cpu", "ops", "out", "mem", "idle"],
        rows,
        empty: empty(model, Ask::Clients, if many > CLIENTS_MAX { &above } else { "none" }),
    }
}

fn client_row(client: &Client, us: u64) -> Row {
    let rate = |at: usize| client.rates[at].map_or_else(|| "-".to_owned(), text::number);
    let number = |name| client.number(name).unwrap_or(0) as f64;
    let idle = number("idle");
    Row {
        key: format!("client {}", client.id),
        cells: vec![
            client.label().to_owned(),
            client.id.to_string(),
            client.text("cmd").to_owned(),
            if us == 0 { "-".to_owned() } else { percent(us) },
            rate(0),
            client.rates[2].map_or_else(|| "-".to_owned(), text::bytes),
            text::bytes(number("tot-mem")),
            text::span(idle),
        ],
        ranks: vec![
            // Without processor times: the operations, then the memory.
            us as f64 * 1e9 + client.rates[0].unwrap_or(0.0) * 1e3 + number("tot-mem") / 1e6,
            client.rates[0].unwrap_or(0.0),
            client.rates[2].unwrap_or(0.0),
            number("tot-mem"),
            idle,
        ],
        detail: client.fields.iter().map(|(name, value)| format!("{name:<12} {value}")).collect(),
        client: Some(client.id),
    }
}

/// A share of the last minute's processor time.
fn percent(us: u64) -> String {
    format!("{:.1}%", us as f64 / 600_000.0)
}

fn commands(model: &Model) -> Table {
    let rows = model.commands.iter().map(|command| {
        let mean = if command.calls > 0.0 { command.us / command.calls } else { 0.0 };
        Row {
            key: command.name.clone(),
            cells: vec![
                command.name.clone(),
                text::number(command.calls),
                format!("{:.1}%", command.us / 10_000.0),
                text::micros(mean),
                text::micros(command.mean_us),
                text::number(command.all_calls as f64),
                text::number(command.failed as f64),
            ],
            ranks: vec![command.us, command.calls, mean, command.failed as f64],
            detail: vec![
                format!("calls        {:.1}/s, {} in all", command.calls, command.all_calls),
                format!("time         {:.0} us each second", command.us),
                format!("one call     {mean:.1} us now, {:.1} us since the start", command.mean_us),
                format!("failed       {}, refused ones included", command.failed),
            ],
            client: None,
        }
    });
    Table {
        columns: vec![
            ("command", -24),
            ("calls/s", 8),
            ("time", 7),
            ("each", 7),
            ("mean", 7),
            ("calls", 7),
            ("failed", -0),
        ],
        orders: vec!["time", "calls", "each", "failed"],
        rows: rows.collect(),
        empty: empty(model, Ask::Commands, "none"),
    }
}

fn slow(model: &Model) -> Table {
    Table {
        columns: vec![("time", -8), ("took", 6), ("client", -24), ("words", -0)],
        orders: vec!["newest", "longest"],
        rows: model.slow.iter().map(slow_row).collect(),
        empty: empty(model, Ask::Slow, "empty"),
    }
}

fn slow_row(slow: &Slow) -> Row {
    Row {
        key: format!("slow {}", slow.id),
        cells: vec![
            text::clock(slow.unix_s * 1000),
            micros(slow.us),
            slow.client().to_owned(),
            slow.words.clone(),
        ],
        ranks: vec![slow.id as f64, slow.us as f64],
        detail: vec![
            format!("id       {}", slow.id),
            format!("time     {} UTC", text::clock(slow.unix_s * 1000)),
            format!("took     {} us", slow.us),
            format!("addr     {}", slow.addr),
            format!("name     {}", slow.name),
            format!("words    {}", slow.words),
        ],
        client: None,
    }
}

fn hot_keys(model: &Model) -> Table {
    let hot = model.hot_keys.as_ref();
    let rows = hot.into_iter().flat_map(|hot| &hot.keys).map(|(key, [us, bytes])| {
        let number = |n: &Option<u64>| n.map_or(0.0, |n| n as f64);
        Row {
            key: key.clone(),
            cells: vec![
                us.map_or_else(|| "-".to_owned(), micros),
                bytes.map_or_else(|| "-".to_owned(), |bytes| text::bytes(bytes as f64)),
                key.clone(),
            ],
            ranks: vec![number(us), number(bytes)],
            detail: vec![
                format!("key      {key}"),
                format!("time     {} us", number(us)),
                format!("network  {} bytes", number(bytes)),
                hot.map_or_else(String::new, |hot| match hot.is_active {
                    true => format!("counted since {}", text::span(hot.for_ms as f64 / 1e3)),
                    false => format!("counted for {}, not now", text::span(hot.for_ms as f64 / 1e3)),
                }),
            ],
            client: None,
        }
    });
    let otherwise = match hot {
        Some(_) => "no key had a command since HOTKEYS was started",
        None => "not counted; HOTKEYS START METRICS 2 CPU NET DURATION 60 counts for a minute",
    };
    Table {
        columns: vec![("time", 7), ("network", 7), ("key", -0)],
        orders: vec!["time", "network"],
        rows: rows.collect(),
        empty: empty(model, Ask::HotKeys, otherwise),
    }
}

/// The waits of the last minute by cause, and the events of LATENCY.
fn events(model: &Model) -> Table {
    let waits = model.moment.now.as_ref().map(|now| now.waits.as_slice()).unwrap_or_default();
    let mut rows: Vec<Row> = waits
        .iter()
        .map(|(cause, n, us)| Row {
            key: format!("wait {cause}"),
            cells: vec![
                format!("waits for {cause}"),
                "last minute".to_owned(),
                micros(*us),
                text::number(*n as f64),
            ],
            ranks: vec![*us as f64],
            detail: vec![format!("{n} waits for {cause} in the last minute, {us} us in all")],
            client: None,
        })
        .collect();
    rows.extend(model.events.iter().map(|(name, unix_s, last_ms, max_ms)| Row {
        key: format!("event {name}"),
        cells: vec![
            name.clone(),
            text::clock(unix_s * 1000),
            micros(last_ms * 1000),
            format!("longest {}", micros(max_ms * 1000)),
        ],
        ranks: vec![*last_ms as f64 * 1000.0],
        detail: vec![format!(
            "{name}: {last_ms} ms at {} UTC, the longest {max_ms} ms",
            text::clock(unix_s * 1000)
        )],
        client: None,
    }));
    Table {
        columns: vec![("what", -28), ("when", -12), ("time", 7), ("how many, or the longest", -0)],
        orders: vec!["time"],
        rows,
        empty: empty(model, Ask::Events, "none; Redis keeps some if latency-monitor-threshold is set"),
    }
}
