//! The results of a run: figures, sentences, and the form as JSON, from which text and pages are made.

use crate::bystander::Seen;
use crate::report;
use crate::stories::{Gathered, Headline, Story};
use crate::waits::Culprit;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The version of the form of [`Outcome::to_json`]. It grows when a name goes or changes its meaning; further
/// names may come without that.
pub const SCHEMA: u64 = 1;

/// A server that was measured.
pub struct Measured {
    pub name: String,
    pub version: String,
    pub place: String,
    pub own: bool,
}

/// The results of one server in one story.
#[derive(Default)]
pub struct Shown {
    /// Medians of the rounds, and quantiles of all rounds together.
    pub figures: BTreeMap<String, f64>,
    pub seen: Option<Seen>,
    pub culprit: Option<Culprit>,
    /// Why there are no figures.
    pub error: Option<String>,
    /// The server has no such command, which is no failure of the run.
    pub unsupported: bool,
}

impl Shown {
    pub fn of(mut gathered: Gathered, culprit: Option<Culprit>) -> Shown {
        let mut figures = BTreeMap::new();
        for (name, samples) in &mut gathered.samples {
            figures.insert(name.clone(), report::median(samples));
        }
        if let Some(seen) = &gathered.seen {
            let ms = |ns: u64| ns as f64 / 1e6;
            for (name, q) in QUANTILES {
                figures.insert(name.to_owned(), ms(seen.latency.value_at_quantile(q)));
            }
            figures.insert("max_ms".to_owned(), ms(seen.latency.max()));
            figures.insert("lag_p999_ms".to_owned(), ms(seen.lag.value_at_quantile(0.999)));
            figures.insert("gets".to_owned(), seen.latency.len() as f64);
            figures.insert("errors".to_owned(), (seen.errors + seen.unanswered) as f64);
        }
        figures.retain(|_, figure| figure.is_finite());
        Shown { figures, seen: gathered.seen, culprit, error: None, unsupported: false }
    }

    fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }
}

/// Quantiles of a bystander's latency, as figures.
pub const QUANTILES: [(&str, f64); 3] = [("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)];

/// One story, with a result for each server.
pub struct Told {
    pub story: &'static Story,
    pub shown: Vec<Shown>,
}

pub struct Outcome {
    pub targets: Vec<Measured>,
    pub stories: Vec<Told>,
    pub seconds: f64,
    pub keys: u64,
    pub rounds: u16,
    pub seed: u64,
    /// Seconds since 1970.
    pub began: u64,
    /// Model of the processor, cores, memory, kernel.
    pub machine: String,
    /// How the bystander was run; empty: there was none.
    pub method: String,
}

/// Milliseconds in words.
fn ms(value: f64) -> String {
    report::time(value * 1e6)
}

/// A figure in words, in the unit that its name ends with.
pub fn figure_text(name: &str, value: f64) -> String {
    match name {
        name if name.ends_with("_ms") => ms(value),
        name if name.ends_with("_s") && !name.ends_with("per_s") => report::time(value * 1e9),
        name if name.ends_with("_bytes") => format!("{value:.1} B"),
        _ => loader::number(value.round() as u64),
    }
}

impl Told {
    /// The figures of the first server over those of the second.
    pub fn ratios(&self) -> BTreeMap<String, f64> {
        let [one, other] = &self.shown[..] else { return BTreeMap::new() };
        let of = |(name, figure): (&String, &f64)| Some((name.clone(), figure / other.figure(name)?));
        one.figures.iter().filter_map(of).filter(|(_, ratio)| ratio.is_finite()).collect()
    }

    /// The story's result in one sentence. With two servers it begins with their ratio.
    pub fn sentence(&self, targets: &[Measured], keys: u64) -> String {
        let parts: Vec<String> = targets
            .iter()
            .zip(&self.shown)
            .map(|(target, shown)| self.part(&target.label(targets), shown))
            .collect();
        let doing = self.story.doing(keys);
        let (one, what) = match self.story.headline {
            Headline::Bystander => ("While one client", ", other clients' GET took "),
            _ => ("One client", ": "),
        };
        format!("{}{one} {doing}{what}{}.", self.ratio_words(targets), parts.join("; "))
    }

    fn part(&self, label: &str, shown: &Shown) -> String {
        if let Some(error) = &shown.error {
            return format!("{label}: not measured ({error})");
        }
        let text = |name: &str| shown.figure(name).map_or("?".to_owned(), |figure| figure_text(name, figure));
        let waits = || format!("at most {} (p99.9 {})", text("max_ms"), text("p999_ms"));
        match self.story.headline {
            Headline::Bystander if shown.figure("errors").is_some_and(|errors| errors > 0.0) => {
                format!("{} at {label}, and {} got an error or no answer", waits(), text("errors"))
            }
            Headline::Bystander => format!("{} at {label}", waits()),
            Headline::More("requests_per_s") => {
                format!(
                    "{} requests a second at {label}, and another client's GET {}",
                    text("requests_per_s"),
                    waits()
                )
            }
            Headline::More(name) => format!("{} of them a second at {label}", text(name)),
            Headline::Less(name) => format!("{} for a string of 40 bytes at {label}", text(name)),
        }
    }

    fn ratio_words(&self, targets: &[Measured]) -> String {
        let (figure, words) = match self.story.headline {
            Headline::Bystander => ("p999_ms", ["shorter", "longer"]),
            Headline::More(figure) => (figure, ["as few", "as many"]),
            Headline::Less(figure) => (figure, ["less", "more"]),
        };
        let Some(ratio) = self.ratios().get(figure).copied().filter(|ratio| *ratio > 0.0) else {
            return String::new();
        };
        let (times, word) = if ratio < 1.0 { (1.0 / ratio, words[0]) } else { (ratio, words[1]) };
        let times = if times < 10.0 { format!("{times:.1}") } else { loader::number(times.round() as u64) };
        format!("{}: {times} times {word}. ", targets[0].label(targets))
    }
}

impl Measured {
    /// The name, with the place if another server has the same.
    pub fn label(&self, all: &[Measured]) -> String {
        match all.iter().filter(|other| other.name == self.name).count() {
            1 => self.name.clone(),
            _ => format!("{} {} ({})", self.name, self.version, self.place),
        }
    }
}

impl Outcome {
    /// The result of the run in one sentence: of the first story with an attacker.
    pub fn sentence(&self) -> String {
        let told = self.stories.iter().find(|told| told.story.name != crate::stories::NOBODY);
        told.map_or(String::new(), |told| told.sentence(&self.targets, self.keys))
    }

    /// The stories that could not be measured on a server, in sentences.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for told in &self.stories {
            for (target, shown) in self.targets.iter().zip(&told.shown) {
                if let Some(error) = shown.error.as_ref().filter(|_| !shown.unsupported) {
                    failures.push(format!(
                        "{} was not measured at {}: {error}",
                        told.story.name,
                        target.label(&self.targets)
                    ));
                }
            }
        }
        failures
    }

    /// The value of `story.figure`, of the first server; of `beside.story.figure`, of the second; or of
    /// `ratio.story.figure`.
    pub fn value(&self, path: &str) -> Option<f64> {
        let parts: Vec<&str> = path.split('.').collect();
        let told = |name: &str| self.stories.iter().find(|told| told.story.name == name);
        match parts[..] {
            [story, figure] => told(story)?.shown.first()?.figure(figure),
            ["beside", story, figure] => told(story)?.shown.get(1)?.figure(figure),
            ["ratio", story, figure] => told(story)?.ratios().get(figure).copied(),
            _ => None,
        }
    }

    /// All that was found. docs/bench.md describes the form.
    pub fn to_json(&self) -> Value {
        let target = |target: &Measured| json!({"name": target.name, "version": target.version, "address": target.place, "own": target.own});
        json!({
            "schema": SCHEMA,
            "tool": format!("evenkeel bench {}", env!("CARGO_PKG_VERSION")),
            "sentence": self.sentence(),
            "began_s": self.began,
            "seconds": self.seconds,
            "keys": self.keys,
            "rounds": self.rounds,
            "seed": self.seed,
            "machine": self.machine,
            "method": self.method,
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
            "stories": self.stories.iter().map(|told| self.story_json(told)).collect::<Vec<_>>(),
        })
    }

    fn story_json(&self, told: &Told) -> Value {
        let shown = told.shown.iter().enumerate().map(|(i, shown)| {
            json!({
                "target": i,
                "figures": numbers(&shown.figures),
                "percentiles": shown.seen.as_ref().map(percentiles),
                "series": shown.seen.as_ref().map(series),
                "histogram_ns": shown.seen.as_ref().map(histogram),
                "culprit": shown.culprit.as_ref().map(|culprit| json!({
                    "name": culprit.name, "command": culprit.command, "for": culprit.cause, "us": culprit.us,
                })),
                "error": shown.error,
            })
        });
        json!({
            "story": told.story.name,
            "sentence": told.sentence(&self.targets, self.keys),
            "results": shown.collect::<Vec<_>>(),
            "ratios": numbers(&told.ratios()),
        })
    }

    /// The sentence, tables, and remarks.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.sentence());
        for table in self.tables() {
            text.push('\n');
            table.write(&mut text, false);
        }
        self.remarks().iter().for_each(|remark| text.push_str(&format!("\n{remark}")));
        text
    }

    /// The same as Markdown, with the command that measures each story alone.
    pub fn markdown(&self) -> String {
        let mut text = format!("**{}**\n", quoted(&self.sentence()));
        for table in self.tables() {
            text.push('\n');
            table.write(&mut text, true);
        }
        text.push('\n');
        self.remarks().iter().for_each(|remark| text.push_str(&format!("- {}\n", quoted(remark))));
        text.push_str("\n```\n");
        self.stories.iter().for_each(|told| text.push_str(&format!("{}\n", self.command(told))));
        text.push_str("```\n");
        text
    }

    /// The command that measures a story alone.
    pub fn command(&self, told: &Told) -> String {
        let mut words = format!(
            "evenkeel bench {} --keys {} --seconds {} --rounds {} --seed {}",
            told.story.name, self.keys, self.seconds, self.rounds, self.seed
        );
        for (option, target) in ["--against", "--beside"].iter().zip(&self.targets) {
            if !target.own {
                words.push_str(&format!(" {option} {}", target.place));
            }
        }
        words
    }

    /// The latencies, and the other figures; those that have rows.
    fn tables(&self) -> Vec<report::Table> {
        let mut latency =
            report::Table::new(&["another client's GET", "p50", "p99", "p99.9", "max", "attacker"]);
        let mut others = report::Table::new(&["figure", "value", "ratio"]);
        for told in &self.stories {
            let ratios = told.ratios();
            for (i, (target, shown)) in self.targets.iter().zip(&told.shown).enumerate() {
                let label = format!("{}, {}", told.story.name, target.label(&self.targets));
                if shown.seen.is_some() {
                    let names = ["p50_ms", "p99_ms", "p999_ms", "max_ms", "attacker_ms"];
                    let cell = |name: &&str| shown.figure(name).map_or(report::absent(), ms);
                    latency.row([label.clone()].into_iter().chain(names.iter().map(cell)).collect());
                }
                for (name, figure) in shown.figures.iter().filter(|(name, _)| is_further(name)) {
                    let ratio = ratios
                        .get(name)
                        .filter(|_| i == 0)
                        .map_or(String::new(), |ratio| format!("{ratio:.2}"));
                    others.row(vec![format!("{label}: {name}"), figure_text(name, *figure), ratio]);
                }
            }
        }
        [latency, others].into_iter().filter(|table| !table.rows.is_empty()).collect()
    }

    /// Failures, culprits, machine, versions, method: a line each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for told in &self.stories {
            for (target, shown) in self.targets.iter().zip(&told.shown) {
                let (name, label) = (told.story.name, target.label(&self.targets));
                if let Some(error) = &shown.error {
                    remarks.push(format!("{name}: not measured at {label}: {error}"));
                }
                if let Some(culprit) = &shown.culprit {
                    remarks.push(format!("{name}: {label} says that {}", culprit.text()));
                }
            }
        }
        for target in &self.targets {
            let own = if target.own { ", started for this run" } else { "" };
            remarks.push(format!("{} {} at {}{own}", target.name, target.version, target.place));
        }
        remarks.push(format!("Measured from: {}", self.machine));
        remarks.extend(Some(self.method.clone()).filter(|method| !method.is_empty()));
        remarks
    }
}

/// Whether a figure is none of a bystander's.
fn is_further(name: &str) -> bool {
    let bystanders = ["max_ms", "lag_p999_ms", "gets", "errors", "attacker_ms"];
    !bystanders.contains(&name) && QUANTILES.iter().all(|(quantile, _)| *quantile != name)
}

fn numbers(figures: &BTreeMap<String, f64>) -> Value {
    Value::Object(
        figures.iter().map(|(name, figure)| (name.clone(), json!(rounded(*figure)))).collect::<Map<_, _>>(),
    )
}

/// Six digits.
fn rounded(figure: f64) -> f64 {
    format!("{figure:.5e}").parse().unwrap_or(figure)
}

/// Pairs of percentile and milliseconds, ever closer to 100.
fn percentiles(seen: &Seen) -> Value {
    let points = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0];
    let at = |q: f64| json!([q, rounded(seen.latency.value_at_quantile(q / 100.0) as f64 / 1e6)]);
    points.iter().map(|q| at(*q)).collect()
}

/// Text that is no markup of Markdown or HTML.
fn quoted(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        if "\\`*_[]<>&|#".contains(char) {
            out.push('\\');
        }
        out.push(char);
    }
    out
}

/// All latencies: pairs of the upper end of a bucket in nanoseconds and its count. Buckets are as wide as a
/// thousandth of their value.
fn histogram(seen: &Seen) -> Value {
    let buckets = seen.latency.iter_recorded();
    buckets.map(|bucket| json!([bucket.value_iterated_to(), bucket.count_at_value()])).collect()
}

/// p50, p99 and maximum in milliseconds of each tenth of a second.
fn series(seen: &Seen) -> Value {
    let ms = |ns: u64| rounded(ns as f64 / 1e6);
    seen.series.iter().map(|moment| json!([ms(moment.p50), ms(moment.p99), ms(moment.max)])).collect()
}
