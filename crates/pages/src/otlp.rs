//! The page of figures as OpenTelemetry's JSON (OTLP, `ExportMetricsServiceRequest`): the same names, labels and values.
//!
//! ```text
//! # TYPE name counter     sum, cumulative and monotonic
//! # TYPE name histogram   histogram: counts of each bucket, not of all up to it
//! # TYPE name gauge       gauge
//! ```
//!
//! Cost: O(page), some 200 us.

pub use http::push::{Target, status};

use http::json::put_string;
use std::fmt::Write as _;

/// The port and path of a collector whose address has none.
pub const PORT: u16 = 4318;
pub const PATH: &str = "/v1/metrics";

/// The server that sends, and since when its counters count.
pub struct Origin {
    pub instance: String,
    pub start_ns: u64,
}

/// A histogram under way: its labels, and its bounds with the counts up to them.
#[derive(Default)]
struct Buckets {
    labels: String,
    bounds: Vec<String>,
    up_to: Vec<u64>,
    sum: String,
}

/// Writes a page of figures, as `/metrics` has it, as OTLP. Figures that JSON cannot hold are left out. O(page)
pub fn of_page(page: &str, origin: &Origin, now_ns: u64) -> String {
    let attribute = |name: &str, value: &str| pair(name, value);
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(
        "{{\"resourceMetrics\":[{{\"resource\":{{\"attributes\":[{},{},{}]}},\"scopeMetrics\":[{{\"scope\":{{\"name\":\"evenkeel\",\
         \"version\":\"{version}\"}},\"metrics\":[",
        attribute("service.name", "evenkeel"),
        attribute("service.instance.id", &origin.instance),
        attribute("service.version", version),
    );
    let mut is_first = true;
    for family in page.split("# HELP ").skip(1) {
        let Some((head, rest)) = family.split_once('\n') else { continue };
        let (name, help) = head.split_once(' ').unwrap_or((head, ""));
        let (kind, lines) = rest.split_once('\n').unwrap_or((rest, ""));
        let kind = kind.rsplit(' ').next().unwrap_or("gauge");
        let times = format!("\"startTimeUnixNano\":\"{}\",\"timeUnixNano\":\"{now_ns}\"", origin.start_ns);
        let points = match kind {
            "histogram" => histograms(lines, &times),
            _ => lines.lines().filter_map(|line| point(line, &times)).collect(),
        };
        if points.is_empty() {
            continue;
        }
        out.push_str(if std::mem::take(&mut is_first) { "{\"name\":" } else { ",{\"name\":" });
        put(name, &mut out);
        out.push_str(",\"description\":");
        put(help, &mut out);
        let points = points.join(",");
        let cumulative = "\"aggregationTemporality\":2";
        let _ = match kind {
            "histogram" => write!(out, ",\"histogram\":{{{cumulative},\"dataPoints\":[{points}]}}}}"),
            "counter" => {
                write!(out, ",\"sum\":{{{cumulative},\"isMonotonic\":true,\"dataPoints\":[{points}]}}}}")
            }
            _ => write!(out, ",\"gauge\":{{\"dataPoints\":[{points}]}}}}"),
        };
    }
    out.push_str("]}]}]}");
    out
}

fn put(text: &str, out: &mut String) {
    let mut bytes = Vec::with_capacity(text.len() + 2);
    put_string(text, &mut bytes);
    out.push_str(&String::from_utf8_lossy(&bytes));
}

fn pair(name: &str, value: &str) -> String {
    let mut out = String::from("{\"key\":");
    put(name, &mut out);
    out.push_str(",\"value\":{\"stringValue\":");
    put(value, &mut out);
    out.push_str("}}");
    out
}

/// A label's name and value.
type Label<'a> = (&'a str, String);

/// A line's name, labels and value.
fn parts(line: &str) -> Option<(&str, Vec<Label<'_>>, &str)> {
    let (series, value) = line.rsplit_once(' ')?;
    let Some((name, mut rest)) = series.strip_suffix('}').and_then(|series| series.split_once('{')) else {
        return Some((series, Vec::new(), value));
    };
    let mut labels = Vec::new();
    while let Some((label, text)) = rest.split_once("=\"") {
        let (mut value, mut escaped, mut end) = (String::new(), false, text.len());
        for (at, c) in text.char_indices() {
            match c {
                'n' if escaped => value.push('\n'),
                c if escaped => value.push(c),
                '\\' => {
                    escaped = true;
                    continue;
                }
                '"' => {
                    end = at + 1;
                    break;
                }
                c => value.push(c),
            }
            escaped = false;
        }
        labels.push((label.trim_start_matches(','), value));
        rest = &text[end..];
    }
    Some((name, labels, value))
}

fn attributes<'a>(labels: impl Iterator<Item = &'a (&'a str, String)>) -> String {
    labels.map(|(name, value)| pair(name, value)).collect::<Vec<_>>().join(",")
}

/// A number as JSON has it; None: JSON cannot hold it.
fn number(value: &str) -> Option<f64> {
    value.parse().ok().filter(|number: &f64| number.is_finite())
}

fn point(line: &str, times: &str) -> Option<String> {
    let (_, labels, value) = parts(line)?;
    let value = number(value)?;
    Some(format!("{{\"attributes\":[{}],{times},\"asDouble\":{value}}}", attributes(labels.iter())))
}

/// The points of a family of histograms: its buckets come in order, then sum and count.
fn histograms(lines: &str, times: &str) -> Vec<String> {
    let (mut points, mut buckets) = (Vec::new(), Buckets::default());
    for (name, labels, value) in lines.lines().filter_map(parts) {
        if name.ends_with("_bucket") {
            let bound = labels.iter().find(|(label, _)| *label == "le").map_or("", |(_, bound)| bound);
            if bound != "+Inf" {
                buckets.bounds.push(bound.to_owned());
            }
            buckets.up_to.push(value.parse().unwrap_or(0));
            buckets.labels = attributes(labels.iter().filter(|(label, _)| *label != "le"));
        } else if name.ends_with("_sum") {
            value.clone_into(&mut buckets.sum);
        } else if name.ends_with("_count") {
            points.extend(std::mem::take(&mut buckets).point(value, times));
        }
    }
    points
}

impl Buckets {
    fn point(self, count: &str, times: &str) -> Option<String> {
        let sum = number(&self.sum)?;
        let before = std::iter::once(0).chain(self.up_to.iter().copied());
        let each =
            self.up_to.iter().zip(before).map(|(now, before)| format!("\"{}\"", now.saturating_sub(before)));
        let (each, bounds) = (each.collect::<Vec<_>>().join(","), self.bounds.join(","));
        Some(format!(
            "{{\"attributes\":[{}],{times},\"count\":\"{count}\",\"sum\":{sum},\"bucketCounts\":[{each}],\"explicitBounds\":[{bounds}]}}",
            self.labels
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP a_total All \"a\"\n# TYPE a_total counter\na_total{cmd=\"get\",x=\"q\\\"\\\\\\n,}\"} 5\na_total{cmd=\"set\"} 7\n\
        # HELP g A gauge\n# TYPE g gauge\ng 1.5\n\
        # HELP bad None\n# TYPE bad gauge\nbad NaN\n\
        # HELP h A histogram\n# TYPE h histogram\nh_bucket{p=\"x\",le=\"0.001\"} 2\nh_bucket{p=\"x\",le=\"0.002\"} 2\n\
        h_bucket{p=\"x\",le=\"+Inf\"} 5\nh_sum{p=\"x\"} 0.25\nh_count{p=\"x\"} 5\n";

    #[test]
    fn a_page_is_written_as_metrics() {
        let origin = Origin { instance: "i\"d".into(), start_ns: 3 };
        let json = of_page(PAGE, &origin, 9);
        let times = "\"startTimeUnixNano\":\"3\",\"timeUnixNano\":\"9\"";
        let get = "{\"key\":\"cmd\",\"value\":{\"stringValue\":\"get\"}},{\"key\":\"x\",\"value\":{\"stringValue\":\"q\\\"\\\\\\n,}\"}}";
        let first = format!(
            "{{\"name\":\"a_total\",\"description\":\"All \\\"a\\\"\",\"sum\":{{\"aggregationTemporality\":2,\"isMonotonic\":true,\
             \"dataPoints\":[{{\"attributes\":[{get}],{times},\"asDouble\":5}},"
        );
        assert!(json.contains(&first), "{json}");
        assert!(
            json.contains(&format!(
                "\"gauge\":{{\"dataPoints\":[{{\"attributes\":[],{times},\"asDouble\":1.5}}]}}"
            )),
            "{json}"
        );
        assert!(!json.contains("bad"), "{json}");
        let histogram = "\"count\":\"5\",\"sum\":0.25,\"bucketCounts\":[\"2\",\"0\",\"3\"],\"explicitBounds\":[0.001,0.002]}";
        assert!(json.contains(histogram) && json.ends_with("]}]}]}"), "{json}");
        assert!(json.contains("i\\\"d"));
    }

    #[test]
    fn an_empty_page_is_no_metrics() {
        let json = of_page("", &Origin { instance: String::new(), start_ns: 0 }, 1);
        assert!(json.ends_with("\"metrics\":[]}]}]}"), "{json}");
    }
}
