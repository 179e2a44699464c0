//! The sources' figures on the page for Prometheus: those of EVENKEEL SOURCE STATS.

use keyspace::Keyspace;
use observe::metrics::Page;
use rows::{Entry, Kind, figures, hit_ratios};
use std::sync::Arc;

/// Adds the figures of these sources to a page. Cost: O(sources).
pub fn add_sources(keyspace: &Keyspace, list: &[Arc<Entry>], page: &mut Page) {
    if list.is_empty() {
        return;
    }
    let all: Vec<_> =
        list.iter().map(|entry| (entry.spec().name.as_str(), figures(keyspace, entry))).collect();
    let names: Vec<_> = all[0].1.iter().map(|(name, kind, _)| (*name, *kind)).collect();
    for (at, (name, kind)) in names.into_iter().enumerate() {
        let (family, kind_name, unit) = source_family(name, kind);
        page.family(&family, kind_name, &format!("{name} of EVENKEEL SOURCE STATS"));
        for (source, figures) in &all {
            let value = figures[at].2;
            match unit {
                None => page.figure(&family, &[("source", source)], value),
                Some(unit) => page.figure(&family, &[("source", source)], value as f64 / unit),
            }
        }
    }
    let ratios: Vec<_> = list.iter().map(|entry| (entry.spec().name.as_str(), hit_ratios(entry))).collect();
    for (at, (name, _)) in ratios[0].1.iter().enumerate() {
        let (family, kind_name, _) = source_family(name, Kind::Gauge);
        page.family(&family, kind_name, &format!("{name} of EVENKEEL SOURCE STATS, where it is known"));
        for (source, ratios) in &ratios {
            ratios[at].1.into_iter().for_each(|ratio| page.figure(&family, &[("source", source)], ratio));
        }
    }
    const READY: &str = "evenkeel_source_ready";
    page.family(READY, "gauge", "Whether the source's database answers and its feed is open");
    for entry in list.iter() {
        let ready = !entry.source.is_paused() && entry.source.trouble().is_none();
        page.figure(READY, &[("source", &entry.spec().name)], u8::from(ready));
    }
}

/// Family, type and divisor of a source's figure, by Prometheus's rules: the names of counters end with
/// `_total`, and times are in seconds. The divisor converts the figure, if that is needed.
fn source_family(name: &str, kind: Kind) -> (String, &'static str, Option<f64>) {
    let stem = format!("evenkeel_source_{}", name.replace('-', "_"));
    let seconds = |suffix: &str| format!("{}_seconds", stem.trim_end_matches(suffix));
    match kind {
        Kind::Counter => (format!("{stem}_total"), "counter", None),
        Kind::Gauge => (stem, "gauge", None),
        Kind::Micros => (seconds("_us"), "gauge", Some(1e6)),
        Kind::Millis => (seconds("_ms"), "gauge", Some(1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_sources_are_named_as_prometheus_has_it() {
        for (name, kind, family) in [
            ("hits", Kind::Counter, "evenkeel_source_hits_total"),
            ("queued-ids", Kind::Gauge, "evenkeel_source_queued_ids"),
            ("load-max-us", Kind::Micros, "evenkeel_source_load_max_seconds"),
            ("lag-ms", Kind::Millis, "evenkeel_source_lag_seconds"),
        ] {
            assert_eq!(source_family(name, kind).0, family);
        }
    }
}
