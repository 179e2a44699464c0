//! The worst times: minutes in which clients waited much, joined where one pair of clients stands out.
//!
//! A minute is one if its clients waited more than five times the day's median and more than 100 ms in all, or
//! if one of them waited for 10 ms. Waits that a client made itself do not count.

use crate::event::Edge;
use crate::{Flows, History};

/// Incidents kept of a span.
const KEPT: usize = 50;
const TIMES_MEDIAN: u64 = 5;
const SUM_US: u64 = 100_000;
pub(crate) const LONGEST_US: u64 = 10_000;
/// Minutes of the day whose median is the measure.
const DAY: u64 = 24 * 60;

/// Minutes in a row with the same main edge.
#[derive(Clone, Debug)]
pub struct Incident {
    pub from_ms: u64,
    pub to_ms: u64,
    pub waits: u64,
    pub us: u64,
    pub longest_us: u64,
    /// The edge with the most time. None: its edges are gone already.
    pub main: Option<Edge>,
}

impl History {
    /// The worst incidents between two times, the worst first. O(minutes of the span and of a day)
    pub fn incidents(&self, from_ms: u64, to_ms: u64) -> Vec<Incident> {
        let (first, last) = (from_ms / 60_000, to_ms / 60_000);
        let minutes = self.minutes(first.min(last.saturating_sub(DAY)), last);
        let day = minutes.iter().filter(|(minute, ..)| minute + DAY >= last);
        let mut waiting: Vec<u64> = day.map(|(_, row, _)| row.waiting(&self.names).0).collect();
        waiting.sort_unstable();
        let median = waiting.get(waiting.len() / 2).copied().unwrap_or(0);
        let mut found: Vec<Incident> = Vec::new();
        for (minute, row, flows) in minutes.into_iter().filter(|(minute, ..)| *minute >= first) {
            let (us, longest_us) = row.waiting(&self.names);
            let is_much = us > SUM_US && us / TIMES_MEDIAN > median;
            if !is_much && longest_us < LONGEST_US {
                continue;
            }
            let causes = (0..row.shape.causes).filter(|at| (self.names.is_for_others)(*at));
            let waits = causes.map(|at| row.waited(at).times).fold(0, u64::saturating_add);
            add(&mut found, minute, (waits, us, longest_us), &flows);
        }
        found.sort_by_key(|one| std::cmp::Reverse((one.us, one.from_ms)));
        found.truncate(KEPT);
        found
    }
}

/// Adds a minute: to the incident before it, if both have the same main edge.
fn add(found: &mut Vec<Incident>, minute: u64, (waits, us, longest_us): (u64, u64, u64), flows: &Flows) {
    let (from_ms, main) = (minute * 60_000, flows.main().cloned());
    let is_same = |one: &Option<Edge>| match (one, &main) {
        (Some(a), Some(b)) => {
            (a.cause, &a.culprit.name, &a.waiter.name) == (b.cause, &b.culprit.name, &b.waiter.name)
        }
        (None, None) => true,
        _ => false,
    };
    match found.last_mut() {
        Some(last) if last.to_ms >= from_ms && is_same(&last.main) => {
            last.to_ms = from_ms + 60_000;
            last.waits = last.waits.saturating_add(waits);
            last.us = last.us.saturating_add(us);
            last.longest_us = last.longest_us.max(longest_us);
        }
        _ => found.push(Incident { from_ms, to_ms: from_ms + 60_000, waits, us, longest_us, main }),
    }
}
