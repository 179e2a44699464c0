//! The page of `--html`: one file without script, which loads nothing.

use crate::outcome::{Outcome, Told, figure_text};
use crate::svg::{Line, Plot, escaped};
use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--text:#1c1f23;--soft:#5b636d;--grid:#d9dde2;--t0:#0b6bcb;--t1:#c2410c}
@media(prefers-color-scheme:dark){:root{--back:#15181c;--text:#e6e9ec;--soft:#9aa4af;--grid:#333a42;--t0:#6cb2ff;--t1:#ff9d66}}
body{background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;line-height:1.35}h2{margin-top:2.5rem;font-size:1.1rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.2rem .7rem;border-bottom:1px solid var(--grid)}th:first-child,td:first-child{text-align:left}
svg{width:100%;max-width:40rem;height:auto;display:block;margin:1rem 0}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}svg .title{font-weight:600;fill:var(--text)}
.grid{stroke:var(--grid)}polyline{fill:none;stroke-width:2}.t0{stroke:var(--t0)}.t1{stroke:var(--t1);stroke-dasharray:6 3}
.key0{color:var(--t0)}.key1{color:var(--t1)}.soft,footer{color:var(--soft);font-size:.9rem}";

/// The page. O(figures and points).
pub fn page(outcome: &Outcome) -> String {
    let sentence = escaped(&outcome.sentence());
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"/>\n<title>evenkeel bench</title>\n<style>\n{STYLE}\n</style>\n</head>\n\
         <body>\n<h1>{sentence}</h1>\n<p>"
    );
    for (i, target) in outcome.targets.iter().enumerate() {
        let line = if i == 0 { "━━" } else { "╍╍" };
        let _ = write!(
            out,
            "<span class=\"key{i}\">{line}</span> {} {} <span class=\"soft\">({})</span> ",
            escaped(&target.label(&outcome.targets)),
            escaped(&target.version),
            escaped(&target.place)
        );
    }
    out.push_str("</p>\n");
    outcome.stories.iter().for_each(|told| story(&mut out, outcome, told));
    out.push_str("<footer>\n<h2>How it was measured</h2>\n<ul>\n");
    for remark in outcome.remarks() {
        let _ = writeln!(out, "<li>{}</li>", escaped(&remark));
    }
    let _ = writeln!(
        out,
        "<li>{} rounds of {} s for each story and server, --keys {}</li>\n</ul>\n</footer>\n</body>\n</html>",
        outcome.rounds, outcome.seconds, outcome.keys
    );
    out
}

fn story(out: &mut String, outcome: &Outcome, told: &Told) {
    let _ = writeln!(
        out,
        "<section>\n<h2>{}</h2>\n<p>{}</p>",
        escaped(told.story.name),
        escaped(&told.sentence(&outcome.targets, outcome.keys))
    );
    if told.shown.iter().any(|shown| shown.seen.is_some()) {
        out.push_str(&over_time(outcome, told).draw());
        out.push_str(&by_percentile(outcome, told).draw());
    }
    figures(out, outcome, told);
    let _ =
        writeln!(out, "<p class=\"soft\"><code>{}</code></p>\n</section>", escaped(&outcome.command(told)));
}

fn figures(out: &mut String, outcome: &Outcome, told: &Told) {
    let mut names: Vec<&String> = told.shown.iter().flat_map(|shown| shown.figures.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let ratios = told.ratios();
    out.push_str("<div class=\"scroll\">\n<table>\n<tr><th>figure</th>");
    for target in &outcome.targets {
        let _ = write!(out, "<th>{}</th>", escaped(&target.label(&outcome.targets)));
    }
    out.push_str(if told.shown.len() > 1 { "<th>ratio</th></tr>\n" } else { "</tr>\n" });
    for name in names {
        let _ = write!(out, "<tr><td>{}</td>", escaped(name));
        for shown in &told.shown {
            let figure =
                shown.figures.get(name).map_or("–".to_owned(), |figure| figure_text(name, *figure));
            let _ = write!(out, "<td>{}</td>", escaped(&figure));
        }
        if told.shown.len() > 1 {
            let _ = write!(
                out,
                "<td>{}</td>",
                ratios.get(name).map_or(String::new(), |ratio| format!("{ratio:.3}"))
            );
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n</div>\n");
}

/// The longest wait in each tenth of a second.
fn over_time<'a>(outcome: &Outcome, told: &Told) -> Plot<'a> {
    let length = |shown: &crate::outcome::Shown| shown.seen.as_ref().map_or(0, |seen| seen.series.len());
    let longest = told.shown.iter().map(length).max().unwrap_or(0).max(2);
    let lines = told.shown.iter().enumerate().filter_map(|(i, shown)| {
        let at = |k: usize| k as f64 / (longest - 1) as f64;
        let points = shown.seen.as_ref()?.series.iter().enumerate();
        let points = points.map(|(k, moment)| (at(k), moment.max as f64 / 1e6)).collect();
        Some(Line { class: format!("t{i}"), name: outcome.targets[i].label(&outcome.targets), points })
    });
    let tick = |part: f64| (part, format!("{:.1} s", part * longest as f64 / 10.0));
    Plot {
        title: "Longest wait of another client's GET, in each tenth of a second",
        ticks: [0.0, 0.25, 0.5, 0.75, 1.0].map(tick).to_vec(),
        lines: lines.collect(),
    }
}

/// Nines that the axis of percentiles shows.
const NINES: f64 = 4.0;

fn by_percentile<'a>(outcome: &Outcome, told: &Told) -> Plot<'a> {
    let lines = told.shown.iter().enumerate().filter_map(|(i, shown)| {
        let latency = &shown.seen.as_ref()?.latency;
        let points = (0..=80).map(|k| {
            let part = f64::from(k) / 80.0;
            (part, latency.value_at_quantile(1.0 - 10f64.powf(-part * NINES)) as f64 / 1e6)
        });
        Some(Line {
            class: format!("t{i}"),
            name: outcome.targets[i].label(&outcome.targets),
            points: points.collect(),
        })
    });
    let tick = |(nines, word): (f64, &str)| (nines / NINES, word.to_owned());
    let ticks = [(0.301, "50 %"), (1.0, "90 %"), (2.0, "99 %"), (3.0, "99.9 %"), (4.0, "99.99 %")];
    Plot {
        title: "Wait of another client's GET, by percentile",
        ticks: ticks.map(tick).to_vec(),
        lines: lines.collect(),
    }
}
