//! Questions about the history, and the replies: maps in RESP3, arrays of names and values in RESP2.
//!
//! Times are in milliseconds since 1970; 0 and below count from now. Words of commands are left out where the
//! asking user may not see them (E2).

use crate::event::{Edge, Flows, Heavy, Mark, Party, Record};
use crate::incidents::Incident;
use crate::row::{Names, OCTAVES, Row, Waited};
use crate::span::STEPS_MAX;
use crate::{History, Table};
use resp::Reply;

/// Columns of HISTORY, if it names no number.
const COLUMNS: usize = 180;
/// Records of a reply, if it names no number, and at most.
const RECORDS: usize = 50;
const RECORDS_MAX: usize = 1000;
/// Waits that NOW SINCE shows.
const NEWS_WAITS: usize = 20;
/// Edges of a reply.
const EDGES: usize = 64;
const DAY_MS: u64 = 86_400_000;
/// Seconds of NOW's edges.
const NOW_S: usize = 10;

/// The rights of the asking user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Viewer {
    /// It may see words of commands, which contain keys and values.
    pub sees_words: bool,
}

/// Which records are asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    pub cause: Option<Vec<u8>>,
    pub waiter: Option<Vec<u8>>,
    pub culprit: Option<Vec<u8>>,
    pub min_us: u64,
    pub count: usize,
    pub skip: usize,
}

/// A question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    Now,
    /// All that happened since then.
    News {
        since_ms: u64,
    },
    History {
        from_ms: u64,
        to_ms: u64,
        columns: usize,
    },
    Flows {
        from_ms: u64,
        to_ms: u64,
    },
    Records {
        from_ms: u64,
        to_ms: u64,
        filter: Filter,
    },
    Incidents {
        from_ms: u64,
        to_ms: u64,
    },
}

const NO_TIME: &str = "ERR a time is a number of milliseconds: since 1970, or 0 and below from now";
const NO_SPAN: &str = "ERR the end is before the begin";
const SYNTAX: &str = "ERR syntax error";

impl Asked {
    /// Reads the words behind EVENKEEL. Errors: an error's text.
    pub fn parse(words: &[&[u8]], now_ms: u64) -> Result<Asked, &'static str> {
        let (name, rest) = words.split_first().ok_or(SYNTAX)?;
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        if is("now") {
            return match rest {
                [] => Ok(Asked::Now),
                [since, at] if since.eq_ignore_ascii_case(b"since") => {
                    Ok(Asked::News { since_ms: time(at, now_ms)? })
                }
                _ => Err(SYNTAX),
            };
        }
        if is("incidents") && rest.is_empty() {
            return Ok(Asked::Incidents { from_ms: now_ms.saturating_sub(DAY_MS), to_ms: now_ms });
        }
        let [from, to, rest @ ..] = rest else { return Err(SYNTAX) };
        let (from_ms, to_ms) = (time(from, now_ms)?, time(to, now_ms)?);
        if from_ms > to_ms {
            return Err(NO_SPAN);
        }
        match rest {
            [] if is("flows") => Ok(Asked::Flows { from_ms, to_ms }),
            [] if is("incidents") => Ok(Asked::Incidents { from_ms, to_ms }),
            [] if is("history") => Ok(Asked::History { from_ms, to_ms, columns: COLUMNS }),
            [columns] if is("history") => {
                let columns = number(columns).filter(|n| (1..=STEPS_MAX).contains(n));
                let columns = columns.ok_or("ERR the number of columns must be from 1 to 2000")?;
                Ok(Asked::History { from_ms, to_ms, columns })
            }
            rest if is("records") => Ok(Asked::Records { from_ms, to_ms, filter: Filter::parse(rest)? }),
            _ => Err(SYNTAX),
        }
    }

    /// Writes the reply. `more`: pairs that NOW shows besides, and their writer. O(minutes asked for)
    pub fn answer(
        &self,
        history: &History,
        viewer: Viewer,
        more: (usize, &dyn Fn(&mut Reply)),
        out: &mut Reply,
    ) {
        match self {
            Asked::Now => write_now(history, viewer, more, out),
            Asked::News { since_ms } => write_news(history, *since_ms, viewer, out),
            Asked::History { from_ms, to_ms, columns } => {
                write_table(&history.table(*from_ms, *to_ms, *columns), &history.names, out);
            }
            Asked::Flows { from_ms, to_ms } => {
                let (flows, heavy, covers) = history.flows(*from_ms, *to_ms);
                out.map(5);
                int(out, "from_ms", covers.0);
                int(out, "to_ms", covers.1);
                write_edges(flows, &history.names, viewer, out);
                out.bulk(b"heaviest");
                write_heaviest(&heavy, viewer, out);
            }
            Asked::Records { from_ms, to_ms, filter } => {
                write_records(history, (*from_ms, *to_ms), filter, viewer, out);
            }
            Asked::Incidents { from_ms, to_ms } => {
                let incidents = history.incidents(*from_ms, *to_ms);
                out.map(1);
                out.bulk(b"incidents");
                out.array(incidents.len());
                incidents.iter().for_each(|one| write_incident(one, &history.names, viewer, out));
            }
        }
    }
}

impl Filter {
    fn parse(mut words: &[&[u8]]) -> Result<Filter, &'static str> {
        let mut filter = Filter { count: RECORDS, ..Filter::default() };
        while let [name, value, rest @ ..] = words {
            let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
            let figure = || number(value).ok_or("ERR value is not an integer or out of range");
            match () {
                () if is("for") => filter.cause = Some(value.to_ascii_lowercase()),
                () if is("waiter") => filter.waiter = Some(value.to_vec()),
                () if is("culprit") => filter.culprit = Some(value.to_vec()),
                () if is("min") => filter.min_us = figure()? as u64,
                () if is("count") => filter.count = figure()?.min(RECORDS_MAX),
                () if is("skip") => filter.skip = figure()?,
                () => return Err(SYNTAX),
            }
            words = rest;
        }
        if words.is_empty() { Ok(filter) } else { Err(SYNTAX) }
    }

    fn fits(&self, record: &Record, names: &Names) -> bool {
        let is = |wanted: &Option<Vec<u8>>, name: &[u8]| wanted.as_ref().is_none_or(|wanted| wanted == name);
        record.us >= self.min_us
            && is(&self.cause, cause_name(record.cause, names).as_bytes())
            && is(&self.waiter, &record.waiter.name)
            && is(&self.culprit, record.behind.as_ref().map_or(b"", |behind| &behind.name))
    }
}

/// The name of a record's cause; a slow request has `slow`.
fn cause_name(cause: Option<u8>, names: &Names) -> &'static str {
    cause.map_or("slow", |cause| names.causes.get(usize::from(cause)).copied().unwrap_or("unknown"))
}

fn time(word: &[u8], now_ms: u64) -> Result<u64, &'static str> {
    let ms: Option<i64> = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
    let ms = ms.filter(|ms| *ms < i64::MAX / 2).ok_or(NO_TIME)?;
    Ok(if ms > 0 { ms as u64 } else { now_ms.saturating_sub(ms.unsigned_abs()) })
}

fn number(word: &[u8]) -> Option<usize> {
    std::str::from_utf8(word).ok()?.parse().ok().filter(|n| *n <= 1 << 40)
}

fn write_now(history: &History, viewer: Viewer, more: (usize, &dyn Fn(&mut Reply)), out: &mut Reply) {
    let latest = history.latest(crate::LATEST);
    let (mut flows, mut heavy, mut minute) = (Flows::default(), Vec::new(), None::<Row>);
    for (at, second) in latest.iter().enumerate() {
        if at + NOW_S >= latest.len() {
            flows.add_all(&second.flows);
        }
        crate::minute::add_heavy(&mut heavy, &second.heavy, 64);
        match &mut minute {
            Some(sum) => sum.add(&second.row, &history.names, (at as u64, 1)),
            None => minute = Some(second.row.clone()),
        }
    }
    heavy.truncate(10);
    out.map(6 + more.0);
    int(out, "time_ms", latest.last().map_or(0, |second| second.unix_s * 1000));
    out.bulk(b"second");
    match latest.last() {
        Some(second) => write_row(&second.row, &history.names, out),
        None => out.null(),
    }
    out.bulk(b"minute");
    match &minute {
        Some(minute) => write_row(minute, &history.names, out),
        None => out.null(),
    }
    write_edges(flows, &history.names, viewer, out);
    out.bulk(b"heaviest");
    write_heaviest(&heavy, viewer, out);
    (more.1)(out);
}

/// Writes what happened in the seconds after a time, of the last minute: its longest waits behind others, the
/// incidents that began, and those of a minute that ended, and marks. O(seconds), and once a minute O(day).
fn write_news(history: &History, since_ms: u64, viewer: Viewer, out: &mut Reply) {
    let after_s = since_ms / 1000;
    let latest = history.latest(crate::LATEST);
    let news: Vec<_> = latest.iter().filter(|second| second.unix_s > after_s).collect();
    let is_wait = |record: &&Record| {
        record.cause.is_some_and(|cause| (history.names.is_for_others)(usize::from(cause)))
    };
    let mut waits: Vec<&Record> = news.iter().flat_map(|second| &second.records).filter(is_wait).collect();
    waits.sort_by_key(|record| std::cmp::Reverse((record.us, record.id)));
    waits.truncate(NEWS_WAITS);
    out.map(4);
    int(out, "next", news.last().map_or(after_s, |second| second.unix_s) * 1000);
    out.bulk(b"wait");
    out.array(waits.len());
    waits.iter().for_each(|record| write_record(record, &history.names, viewer, out));
    out.bulk(b"incident");
    let incidents = match incidents_from(&latest, after_s, &history.names) {
        Some(from_s) => history.incidents(from_s * 1000, latest.last().map_or(0, |last| last.unix_s * 1000)),
        None => Vec::new(),
    };
    out.array(incidents.len());
    incidents.iter().for_each(|one| write_incident(one, &history.names, viewer, out));
    out.bulk(b"mark");
    let marks: Vec<&Mark> = news.iter().flat_map(|second| &second.marks).collect();
    out.array(marks.len());
    marks.iter().for_each(|mark| write_mark(mark, out));
}

/// From which second on incidents may be new: a minute has its first wait of an incident's length, or has ended.
/// None: there can be none.
fn incidents_from(latest: &[std::sync::Arc<crate::Second>], after_s: u64, names: &Names) -> Option<u64> {
    let (mut minute, mut is_known) = (0, false);
    for second in latest {
        if second.unix_s / 60 != minute {
            let has_ended = minute != 0 && second.unix_s > after_s;
            if has_ended {
                return Some(minute * 60);
            }
            (minute, is_known) = (second.unix_s / 60, false);
        }
        if !is_known && second.row.waiting(names).1 >= crate::incidents::LONGEST_US {
            is_known = true;
            if second.unix_s > after_s {
                return Some(minute * 60);
            }
        }
    }
    None
}

/// Writes a row as a map: heat, waits by cause, figures by name, busy time by loop.
fn write_row(row: &Row, names: &Names, out: &mut Reply) {
    out.map(3);
    out.bulk(b"heat");
    out.array(OCTAVES);
    row.heat().iter().for_each(|n| out.int(*n as i64));
    out.bulk(b"waits");
    let causes: Vec<(&str, Waited)> =
        names.causes.iter().enumerate().map(|(at, name)| (*name, row.waited(at))).collect();
    let seen = causes.iter().filter(|(_, waited)| waited.times > 0);
    out.map(seen.clone().count());
    for (name, waited) in seen {
        out.bulk(name.as_bytes());
        out.map(3);
        int(out, "n", waited.times);
        int(out, "us", waited.us);
        int(out, "longest_us", waited.longest_us);
    }
    out.bulk(b"series");
    out.map(names.figures.len() + 1);
    for (at, (name, _)) in names.figures.iter().enumerate() {
        int(out, name, row.figure(at));
    }
    out.bulk(b"busy");
    out.array(row.busy().len());
    row.busy().iter().for_each(|n| out.int(*n as i64));
}

fn write_table(table: &Table, names: &Names, out: &mut Reply) {
    let columns = &table.columns;
    let series = |out: &mut Reply, of: &dyn Fn(&Row) -> u64| {
        out.array(columns.len());
        for column in columns {
            match column {
                Some(row) => out.int(of(row) as i64),
                None => out.null(),
            }
        }
    };
    out.map(8);
    int(out, "from_ms", table.from_ms);
    int(out, "step_ms", table.step_ms);
    int(out, "n", columns.len() as u64);
    out.bulk(b"floors_us");
    out.array(OCTAVES);
    (0..OCTAVES).for_each(|octave| out.int(if octave == 0 { 0 } else { 1 << (octave - 1) }));
    out.bulk(b"heat");
    out.array(OCTAVES);
    (0..OCTAVES).for_each(|octave| series(out, &|row| row.heat()[octave]));
    out.bulk(b"waits");
    let waited = |cause: usize| columns.iter().flatten().any(|row| row.waited(cause).times > 0);
    let seen: Vec<usize> = (0..names.causes.len()).filter(|cause| waited(*cause)).collect();
    out.map(seen.len());
    for cause in seen {
        out.bulk(names.causes[cause].as_bytes());
        out.map(3);
        out.bulk(b"n");
        series(out, &|row| row.waited(cause).times);
        out.bulk(b"us");
        series(out, &|row| row.waited(cause).us);
        out.bulk(b"longest_us");
        series(out, &|row| row.waited(cause).longest_us);
    }
    out.bulk(b"series");
    out.map(names.figures.len() + 1);
    for (at, (name, _)) in names.figures.iter().enumerate() {
        out.bulk(name.as_bytes());
        series(out, &|row| row.figure(at));
    }
    let loops = columns.iter().flatten().map(|row| row.busy().len()).max().unwrap_or(0);
    out.bulk(b"busy");
    out.array(loops);
    (0..loops).for_each(|at| series(out, &|row| row.busy().get(at).copied().unwrap_or(0)));
    out.bulk(b"marks");
    out.array(table.marks.len());
    table.marks.iter().for_each(|mark| write_mark(mark, out));
}

fn write_mark(mark: &Mark, out: &mut Reply) {
    out.map(3);
    int(out, "time_ms", mark.time_ms);
    bytes(out, "kind", &mark.kind);
    bytes(out, "text", &mark.text);
}

/// Writes two pairs of a map: the largest edges, and the sum of the others.
pub fn write_edges(mut flows: Flows, names: &Names, viewer: Viewer, out: &mut Reply) {
    flows.keep(EDGES);
    out.bulk(b"edges");
    out.array(flows.edges.len());
    flows.edges.iter().for_each(|edge| write_edge(edge, names, viewer, out));
    out.bulk(b"others");
    out.map(3);
    int(out, "waits", flows.others.0);
    int(out, "us", flows.others.1);
    int(out, "longest_us", flows.others.2);
}

fn write_edge(edge: &Edge, names: &Names, viewer: Viewer, out: &mut Reply) {
    out.map(6);
    text(out, "for", cause_name(Some(edge.cause), names));
    out.bulk(b"culprit");
    write_party(&edge.culprit, None, viewer, out);
    out.bulk(b"waiter");
    write_party(&edge.waiter, Some(edge.clients), viewer, out);
    int(out, "waits", edge.waits);
    int(out, "us", edge.us);
    int(out, "longest_us", edge.longest_us);
}

/// Writes one that works or waits as a map; without the words that the viewer may not see (E2). `clients`: the
/// number of clients of its name.
pub fn write_party(party: &Party, clients: Option<u64>, viewer: Viewer, out: &mut Reply) {
    out.map(7 + usize::from(clients.is_some()));
    text(out, "kind", party.kind.name());
    bytes(out, "name", &party.name);
    int(out, "client", party.client);
    bytes(out, "addr", &party.address);
    bytes(out, "user", &party.user);
    bytes(out, "command", &party.command);
    out.bulk(b"words");
    let words: &[Vec<u8>] = if viewer.sees_words { &party.words } else { &[] };
    out.array(words.len());
    words.iter().for_each(|word| out.bulk(word));
    if let Some(clients) = clients {
        int(out, "clients", clients);
    }
}

fn write_heaviest(heavy: &[Heavy], viewer: Viewer, out: &mut Reply) {
    out.array(heavy.len());
    for one in heavy {
        out.map(4);
        out.bulk(b"client");
        write_party(&one.client, None, viewer, out);
        int(out, "us", one.us);
        int(out, "error_us", one.error_us);
        int(out, "pieces", one.pieces);
    }
}

/// Writes the records of a span that fit, the longest first, and where the next page begins.
fn write_records(
    history: &History,
    (from_ms, to_ms): (u64, u64),
    filter: &Filter,
    viewer: Viewer,
    out: &mut Reply,
) {
    let mut found = history.records(from_ms, to_ms, |record| filter.fits(record, &history.names));
    found.sort_by_key(|record| std::cmp::Reverse((record.us, record.id)));
    let all = found.len();
    let page: Vec<Record> = found.into_iter().skip(filter.skip).take(filter.count).collect();
    out.map(3);
    out.bulk(b"records");
    out.array(page.len());
    page.iter().for_each(|record| write_record(record, &history.names, viewer, out));
    int(out, "all", all as u64);
    out.bulk(b"next");
    match filter.skip.saturating_add(page.len()) {
        next if next < all && !page.is_empty() => out.int(next as i64),
        _ => out.null(),
    }
}

fn write_record(record: &Record, names: &Names, viewer: Viewer, out: &mut Reply) {
    out.map(8);
    int(out, "id", record.id);
    int(out, "time_ms", record.time_ms);
    out.bulk(b"waiter");
    write_party(&record.waiter, None, viewer, out);
    text(out, "for", cause_name(record.cause, names));
    int(out, "us", record.us);
    out.bulk(b"behind");
    match &record.behind {
        Some(behind) => write_party(behind, None, viewer, out),
        None => out.null(),
    }
    out.bulk(b"phases");
    out.map(record.phases.len());
    for (name, us) in &record.phases {
        out.bulk(name);
        out.int(*us as i64);
    }
    out.bulk(b"in");
    out.array(record.frames.len());
    record.frames.iter().for_each(|frame| out.bulk(frame));
}

fn write_incident(one: &Incident, names: &Names, viewer: Viewer, out: &mut Reply) {
    out.map(8);
    int(out, "from_ms", one.from_ms);
    int(out, "to_ms", one.to_ms);
    int(out, "waits", one.waits);
    int(out, "us", one.us);
    int(out, "longest_us", one.longest_us);
    text(out, "for", one.main.as_ref().map_or("unknown", |edge| cause_name(Some(edge.cause), names)));
    for (name, of) in
        [("culprit", (|edge| &edge.culprit) as fn(&Edge) -> &Party), ("waiter", |edge| &edge.waiter)]
    {
        out.bulk(name.as_bytes());
        match &one.main {
            Some(edge) => write_party(of(edge), None, viewer, out),
            None => out.null(),
        }
    }
}

fn int(out: &mut Reply, name: &str, n: u64) {
    out.bulk(name.as_bytes());
    out.int(n as i64);
}

fn text(out: &mut Reply, name: &str, text: &str) {
    bytes(out, name, text.as_bytes());
}

fn bytes(out: &mut Reply, name: &str, text: &[u8]) {
    out.bulk(name.as_bytes());
    out.bulk(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Asked, &'static str> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        Asked::parse(&words, 1_000_000)
    }

    #[test]
    fn questions_are_read() {
        assert_eq!(parse(&["NOW"]), Ok(Asked::Now));
        assert_eq!(parse(&["now", "SINCE", "5"]), Ok(Asked::News { since_ms: 5 }));
        assert_eq!(parse(&["now", "since", "-1000"]), Ok(Asked::News { since_ms: 999_000 }));
        let history = Asked::History { from_ms: 400_000, to_ms: 1_000_000, columns: 60 };
        assert_eq!(parse(&["history", "-600000", "0", "60"]), Ok(history));
        assert_eq!(parse(&["flows", "5", "7"]), Ok(Asked::Flows { from_ms: 5, to_ms: 7 }));
        let whole_day = Asked::Incidents { from_ms: 0, to_ms: 1_000_000 };
        assert_eq!(parse(&["incidents"]), Ok(whole_day));
        let filter = Filter { cause: Some(b"os".to_vec()), count: 3, ..Filter::default() };
        let records = Asked::Records { from_ms: 5, to_ms: 7, filter };
        assert_eq!(parse(&["records", "5", "7", "FOR", "OS", "COUNT", "3"]), Ok(records));
    }

    #[test]
    fn nonsense_is_refused() {
        for (words, error) in [
            (&["now", "x"][..], SYNTAX),
            (&["now", "since"], SYNTAX),
            (&["now", "since", "x"], NO_TIME),
            (&["now", "since", "5", "7"], SYNTAX),
            (&["history", "1"], SYNTAX),
            (&["history", "x", "5"], NO_TIME),
            (&["history", "9223372036854775807", "5"], NO_TIME),
            (&["flows", "7", "5"], NO_SPAN),
            (&["history", "1", "5", "0"], "ERR the number of columns must be from 1 to 2000"),
            (&["records", "1", "5", "FOR"], SYNTAX),
            (&["records", "1", "5", "BY", "us"], SYNTAX),
            (&["records", "1", "5", "COUNT", "-1"], "ERR value is not an integer or out of range"),
            (&["incidents", "1"], SYNTAX),
            (&[], SYNTAX),
        ] {
            assert_eq!(parse(words), Err(error), "{words:?}");
        }
    }
}
