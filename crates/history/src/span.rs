//! A span of time in columns, and the edges, clients and records of a span.

use crate::event::Flows;
use crate::minute::{Sealed, add_heavy};
use crate::rings::Part;
use crate::row::{Row, Rows};
use crate::{Heavy, History, Mark, Record, State};

/// Most columns of a reply.
pub const STEPS_MAX: usize = 2000;
/// Lengths of columns, in seconds.
const STEPS: [u64; 19] =
    [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400];
/// Heavy clients of a span.
const HEAVY: usize = 20;

/// A span in columns of equal length. None: there are no data.
pub struct Table {
    pub from_ms: u64,
    pub step_ms: u64,
    pub columns: Vec<Option<Row>>,
    pub marks: Vec<Mark>,
}

/// A span of minutes, and what is kept of it: shares, to be decoded without the lock.
struct Taken {
    parts: Vec<Part>,
    /// The running minute, if it is in the span.
    running: Option<(u64, Rows)>,
}

impl History {
    /// The span between two times in at most `columns` columns. O(minutes of the span), beyond one second a
    /// column O(seconds).
    pub fn table(&self, from_ms: u64, to_ms: u64, columns: usize) -> Table {
        let columns = columns.clamp(1, STEPS_MAX) as u64;
        let span_s = (to_ms.saturating_sub(from_ms)).div_ceil(1000).max(1);
        let fits = |step: &&u64| span_s.div_ceil(**step) <= columns;
        let mut step = STEPS.iter().find(fits).copied().unwrap_or_else(|| span_s.div_ceil(columns));
        let state = self.state.lock();
        let (first, last) = (from_ms / 60_000, to_ms / 60_000);
        if step < 60 && state.rings.seconds.oldest().is_some_and(|oldest| first < oldest) {
            // Only minutes may be left of it.
            let older = state.rings.sums.oldest().is_some_and(|oldest| oldest < last);
            let all_gone = state.rings.seconds.between(first, last).is_empty();
            step = if older && all_gone { 60 } else { step };
        }
        let ring = if step < 60 { &state.rings.seconds } else { &state.rings.sums };
        let from_s = from_ms / 1000 / step * step;
        let taken = Taken { parts: ring.between(from_s / 60, last), running: state.running_rows() };
        let marks = state.marks.iter().filter(|mark| (from_ms..=to_ms).contains(&mark.time_ms)).cloned();
        let marks = marks.collect();
        drop(state);
        let count = (to_ms.div_ceil(1000).saturating_sub(from_s)).div_ceil(step).clamp(1, columns + 1);
        let mut table: Vec<Option<(Row, u64)>> = (0..count).map(|_| None).collect();
        let mut add = |second: u64, row: &Row| {
            let Some(at) = second.checked_sub(from_s).map(|after| (after / step) as usize) else { return };
            match table.get_mut(at) {
                Some(Some((sum, seconds))) => {
                    sum.add(row, &self.names, (*seconds, 1));
                    *seconds += 1;
                }
                Some(empty) => *empty = Some((row.clone(), 1)),
                None => {}
            }
        };
        for part in &taken.parts {
            let rows = Sealed::rows(&part.bytes).unwrap_or_default();
            rows.iter().for_each(|(second, row)| add(part.minute * 60 + u64::from(*second), row));
        }
        if let Some((minute, rows)) = &taken.running {
            rows.iter().for_each(|(second, row)| add(minute * 60 + u64::from(*second), row));
        }
        let columns = table.into_iter().map(|column| column.map(|(row, _)| row)).collect();
        Table { from_ms: from_s * 1000, step_ms: step * 1000, columns, marks }
    }

    /// The edges and the heaviest clients between two times, and the times that the figures really cover:
    /// whole minutes, or the latest seconds. O(minutes · edges)
    pub fn flows(&self, from_ms: u64, to_ms: u64) -> (Flows, Vec<Heavy>, (u64, u64)) {
        let (mut flows, mut heavy) = (Flows::default(), Vec::new());
        let state = self.state.lock();
        let latest_from_ms = state.latest.front().map_or(u64::MAX, |second| second.unix_s * 1000);
        if from_ms >= latest_from_ms {
            let latest: Vec<_> = state.latest.iter().cloned().collect();
            drop(state);
            let span = (from_ms / 1000)..=(to_ms / 1000);
            for second in latest.iter().filter(|second| span.contains(&second.unix_s)) {
                flows.add_all(&second.flows);
                add_heavy(&mut heavy, &second.heavy, 4 * HEAVY);
            }
            heavy.truncate(HEAVY);
            return (flows, heavy, (from_ms, to_ms));
        }
        let (first, last) = (from_ms / 60_000, to_ms / 60_000);
        let parts = state.rings.flows.between(first, last);
        let running = state.running.as_ref().filter(|running| (first..=last).contains(&running.minute));
        let running = running.map(|running| (running.flows.clone(), running.heavy.clone()));
        drop(state);
        let read = parts.iter().filter_map(|part| Sealed::flows(&part.bytes));
        for (more, clients) in read.chain(running) {
            flows.add_all(&more);
            add_heavy(&mut heavy, &clients, 4 * HEAVY);
        }
        heavy.truncate(HEAVY);
        (flows, heavy, (first * 60_000, (last + 1) * 60_000))
    }

    /// The records between two times that fit, in order of time. O(records of the span)
    pub fn records(&self, from_ms: u64, to_ms: u64, fits: impl Fn(&Record) -> bool) -> Vec<Record> {
        let state = self.state.lock();
        let parts = state.rings.records.between(from_ms / 60_000, to_ms / 60_000);
        let running = state.running.as_ref().map(|running| running.records.clone());
        drop(state);
        let read = parts.iter().filter_map(|part| Sealed::records(&part.bytes));
        let all = read.chain(running).flatten();
        let mut found: Vec<Record> =
            all.filter(|record| (from_ms..=to_ms).contains(&record.time_ms) && fits(record)).collect();
        found.sort_by_key(|record| record.id);
        found
    }

    /// The sums of the minutes between two, with their main edges, in order of time.
    pub(crate) fn minutes(&self, first: u64, last: u64) -> Vec<(u64, Row, Flows)> {
        let state = self.state.lock();
        let sums = state.rings.sums.between(first, last);
        let flows = state.rings.flows.between(first, last);
        let running = state.running.as_ref().filter(|running| (first..=last).contains(&running.minute));
        let running =
            running.and_then(|running| Some((running.minute, running.sum.clone()?.0, running.flows.clone())));
        drop(state);
        let mut flows = flows.iter().peekable();
        let mut found = Vec::new();
        for part in &sums {
            let Some((_, row)) = Sealed::rows(&part.bytes).and_then(|rows| rows.into_iter().next()) else {
                continue;
            };
            while flows.next_if(|flows| flows.minute < part.minute).is_some() {}
            let here = flows.next_if(|flows| flows.minute == part.minute);
            let edges = here.and_then(|flows| Sealed::flows(&flows.bytes)).unwrap_or_default().0;
            found.push((part.minute, row, edges));
        }
        found.extend(running);
        found.sort_by_key(|(minute, ..)| *minute);
        found
    }
}

impl State {
    fn running_rows(&self) -> Option<(u64, Rows)> {
        self.running.as_ref().map(|running| (running.minute, running.rows.clone()))
    }
}
