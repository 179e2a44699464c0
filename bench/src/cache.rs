//! Hit ratios: traces of real requests, replayed through a live server that holds a part of their keys.
//!
//! ```text
//! trace ─┬─► live servers, each replay with a server of its own       replay.rs
//!        └─► in the bench itself: exact LRU, and the optimum          trace.rs
//! ```
//!
//! Values have one size; `maxmemory` is set so that 0.5, 2 and 10 % of the different keys fit. Replays are
//! independent, so as many run at once as there are cores.

mod replay;
mod trace;

use crate::report::{Section, Table, absent};
use crate::server::Target;
pub use replay::Way;
use replay::{Outcome, replay};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;
use trace::Trace;

pub struct Options {
    pub traces: PathBuf,
    /// Run only traces whose names contain one of these.
    pub names: Vec<String>,
    /// Parts of the unique keys, in per mille.
    pub permille: Vec<u64>,
    /// Most requests of a trace.
    pub requests: usize,
    pub way: Way,
    /// Replays at once.
    pub parallel: usize,
}

/// Traces with requests of different sizes are for other measurements.
const LEFT_OUT: &str = "adaptsize";

/// The server with goals: least mean in percent, and most points under LRU.
const OURS: &str = "Evenkeel";
const MEAN_GOAL: f64 = 40.0;
const UNDER_GOAL: f64 = 1.0;

/// A server with a policy.
struct Contestant {
    name: String,
    target: Target,
    policy: &'static str,
}

/// A trace and the number of its keys that fit.
struct Row {
    trace: usize,
    capacity: usize,
    optimum: f64,
    lru: f64,
    /// Per contestant.
    cells: Vec<Option<Cell>>,
}

/// Hits in percent, and other results.
#[derive(Clone, Copy)]
struct Cell {
    hits: f64,
    outcome: Outcome,
}

pub fn run(targets: &[Target], options: &Options) -> Result<Section, String> {
    let contestants = contestants(targets);
    let traces: Vec<Trace> =
        paths(options)?.iter().map(|path| Trace::read(path, options.requests)).collect::<Result<_, _>>()?;
    let mut section = Section::new("Hit ratios");
    section.note(format!("Up to {} requests of each trace, values of one size", options.requests));
    section.note(
        "Redis tells uses apart in steps of a second, in which many thousand requests are replayed here",
    );
    let rows = measured(&traces, &contestants, options, &mut section);
    section.table(
        "Hits in percent of all requests (in brackets the keys held)",
        every_row(&traces, &contestants, &rows),
    );
    section.table("Means over the sizes", means(&traces, &contestants, &rows));
    contestants
        .iter()
        .enumerate()
        .for_each(|(i, contestant)| section.note(verdict(contestant, i, &traces, &rows)));
    Ok(section)
}

/// Servers and policies side by side.
fn contestants(targets: &[Target]) -> Vec<Contestant> {
    let mut all = Vec::new();
    for target in targets {
        let policies: &[&str] =
            if target.label == OURS { &["allkeys-lru"] } else { &["allkeys-lru", "allkeys-lfu"] };
        for policy in policies {
            let name = format!("{} {}", target.label, policy.trim_start_matches("allkeys-"));
            all.push(Contestant { name, target: target.clone(), policy });
        }
    }
    all
}

/// The files of the directory, in the order of their names.
fn paths(options: &Options) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(&options.traces).map_err(|e| {
        format!(
            "{}: {e}; name a directory of traces by --traces or EVENKEEL_TRACES",
            options.traces.display()
        )
    })?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let wanted =
            options.names.is_empty() || options.names.iter().any(|part| name.contains(part.as_str()));
        name.contains(".trace") && !name.contains(LEFT_OUT) && wanted
    });
    paths.sort();
    Ok(paths)
}

/// Measures all rows. Replays run side by side, the long ones first.
fn measured(
    traces: &[Trace],
    contestants: &[Contestant],
    options: &Options,
    section: &mut Section,
) -> Vec<Row> {
    let sizes = traces.iter().enumerate().flat_map(|(trace, of)| {
        options.permille.iter().map(move |permille| (trace, (of.unique * *permille as usize / 1000).max(1)))
    });
    let rows: Vec<Row> = sizes
        .map(|(trace, capacity)| {
            let share = |hits| percent(hits, &traces[trace]);
            let (optimum, lru) =
                (trace::optimum(&traces[trace], capacity), trace::lru(&traces[trace], capacity));
            let cells = contestants.iter().map(|_| None).collect();
            Row { trace, capacity, optimum: share(optimum), lru: share(lru), cells }
        })
        .collect();
    let mut jobs: Vec<(usize, usize)> = (0..rows.len())
        .flat_map(|row| (0..contestants.len()).map(move |contestant| (row, contestant)))
        .collect();
    jobs.sort_by_key(|(row, _)| std::cmp::Reverse(traces[rows[*row].trace].keys.len()));
    let (next, results) = (AtomicUsize::new(0), Mutex::new((rows, Vec::new())));
    std::thread::scope(|scope| {
        for _ in 0..options.parallel.max(1) {
            scope.spawn(|| {
                while let Some((row, contestant)) = jobs.get(next.fetch_add(1, Relaxed)) {
                    let (trace, capacity) = {
                        let row = &results.lock().expect("no thread panics").0[*row];
                        (&traces[row.trace], row.capacity)
                    };
                    let Contestant { name, target, policy } = &contestants[*contestant];
                    let start = Instant::now();
                    let result = replay(target, policy, trace, capacity, options.way);
                    let mut results = results.lock().expect("no thread panics");
                    let what = format!("{name}, {}, {capacity} keys", trace.name);
                    match result {
                        Ok(outcome) => {
                            let hits = percent(outcome.hits, trace);
                            eprintln!("{what}: {hits:.1} % in {:.1} s", start.elapsed().as_secs_f64());
                            results.0[*row].cells[*contestant] = Some(Cell { hits, outcome });
                        }
                        Err(error) => results.1.push(format!("{what}: {error}")),
                    }
                }
            });
        }
    });
    let (rows, failed) = results.into_inner().expect("no thread panics");
    failed.into_iter().for_each(|note| section.note(note));
    rows
}

fn percent(hits: usize, trace: &Trace) -> f64 {
    100.0 * hits as f64 / trace.keys.len().max(1) as f64
}

fn head<'a>(contestants: &'a [Contestant], first: &[&'a str]) -> Vec<&'a str> {
    first.iter().copied().chain(contestants.iter().map(|contestant| contestant.name.as_str())).collect()
}

fn every_row(traces: &[Trace], contestants: &[Contestant], rows: &[Row]) -> Table {
    let mut table = Table::new(&head(contestants, &["trace", "keys that fit", "optimum", "LRU"]));
    for row in rows {
        let mut cells = vec![traces[row.trace].name.clone(), row.capacity.to_string()];
        cells.extend([row.optimum, row.lru].map(|ratio| format!("{ratio:.1}")));
        cells.extend(row.cells.iter().map(|cell| cell.map_or(absent(), Cell::text)));
        table.row(cells);
    }
    table
}

/// Means per trace, and over all rows.
fn means(traces: &[Trace], contestants: &[Contestant], rows: &[Row]) -> Table {
    let mut table = Table::new(&head(contestants, &["trace", "optimum", "LRU"]));
    let mut line = |name: &str, of: &dyn Fn(&Row) -> bool| {
        let rows: Vec<&Row> = rows.iter().filter(|row| of(row)).collect();
        let mut cells = vec![name.to_string()];
        cells.push(text(mean(rows.iter().map(|row| row.optimum))));
        cells.push(text(mean(rows.iter().map(|row| row.lru))));
        for i in 0..contestants.len() {
            cells.push(text(mean(rows.iter().filter_map(|row| row.cells[i]).map(|cell| cell.hits))));
        }
        table.row(cells);
    };
    for (i, trace) in traces.iter().enumerate() {
        line(&trace.name, &|row| row.trace == i);
    }
    line("all", &|_| true);
    table
}

/// A contestant's mean, and the row where it is furthest under LRU; with the goals, if it has some.
fn verdict(contestant: &Contestant, number: usize, traces: &[Trace], rows: &[Row]) -> String {
    let cells: Vec<(&Row, Cell)> = rows.iter().filter_map(|row| Some((row, row.cells[number]?))).collect();
    let Some(mean) = mean(cells.iter().map(|(_, cell)| cell.hits)) else {
        return format!("{}: nothing was measured", contestant.name);
    };
    let against = |(row, cell): &(&Row, Cell)| cell.hits - row.lru;
    let under = cells.iter().filter(|at| against(at) < -UNDER_GOAL).count();
    let mut text = format!("{}: mean {mean:.1} % of {} of {} rows", contestant.name, cells.len(), rows.len());
    if let Some(worst) = cells.iter().min_by(|a, b| against(a).total_cmp(&against(b))) {
        let (trace, capacity) = (&traces[worst.0.trace].name, worst.0.capacity);
        text += &format!(
            ", {under} of them more than {UNDER_GOAL} point under LRU, at worst {:+.1}",
            against(worst)
        );
        text += &format!(" ({trace}, {capacity} keys)");
    }
    if contestant.target.label == OURS {
        let word = |met| if met { "met" } else { "missed" };
        text += &format!("; goals: mean at least {MEAN_GOAL} %: {}", word(mean >= MEAN_GOAL));
        text += &format!(", never more than {UNDER_GOAL} point under LRU: {}", word(under == 0));
    }
    text
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}

fn text(ratio: Option<f64>) -> String {
    ratio.map_or(absent(), |ratio| format!("{ratio:.1}"))
}

impl Cell {
    fn text(self) -> String {
        let Outcome { held, refused, .. } = self.outcome;
        let held = if held < 100.0 { format!("{held:.1}") } else { format!("{held:.0}") };
        let refused = if refused > 0 { format!(", {refused} refused") } else { String::new() };
        format!("{:.1} ({held}{refused})", self.hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Door;

    fn row(trace: usize, lru: f64, hits: Option<f64>) -> Row {
        let cell = hits.map(|hits| Cell { hits, outcome: Outcome::default() });
        Row { trace, capacity: 7, optimum: 90.0, lru, cells: vec![cell] }
    }

    fn ours() -> Vec<Contestant> {
        let target = Target {
            label: OURS.to_string(),
            path: PathBuf::new(),
            cpus: Vec::new(),
            arguments: Vec::new(),
            group: None,
            door: Door::Plain,
        };
        vec![Contestant { name: "ours".to_string(), target, policy: "allkeys-lru" }]
    }

    #[test]
    fn a_replay_that_failed_leaves_means_of_the_others() {
        let traces = ["a", "b"].map(|name| Trace { name: name.to_string(), keys: Vec::new(), unique: 0 });
        let rows = [row(0, 50.0, Some(52.0)), row(0, 30.0, Some(28.5)), row(1, 40.0, None)];
        let table = means(&traces, &ours(), &rows);
        assert_eq!(table.rows[0], ["a", "90.0", "40.0", "40.2"]);
        assert_eq!(table.rows[1], ["b", "90.0", "40.0", "–"]);
        assert_eq!(table.rows[2], ["all", "90.0", "40.0", "40.2"]);
        let text = verdict(&ours()[0], 0, &traces, &rows);
        assert!(text.contains(
            "40.2 % of 2 of 3 rows, 1 of them more than 1 point under LRU, at worst -1.5 (a, 7 keys)"
        ));
        assert!(text.contains("40 %: met") && text.ends_with("under LRU: missed"));
        assert!(verdict(&ours()[0], 0, &traces, &rows[2..]).contains("nothing"));
    }
}
