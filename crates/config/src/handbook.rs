//! The documents about all directives, made from the table: docs/configuration.md and evenkeel.conf.
//!
//! A test holds both files to the table; CONTRIBUTING.md says how they are written anew. Cost: O(directives).

use super::kind::Kind;
use super::rows;
use super::table::{Change, Directive, Effect, table};
use super::words;
use std::fmt::Write as _;

const INTRODUCTION: &str = "\
# Configuration

Evenkeel reads a redis.conf. `evenkeel FILE --directive value …` starts with a file and options; the later one counts.
`include` takes patterns. `CONFIG SET` of several directives sets all of them or none, and `CONFIG REWRITE` keeps comments
and order. `evenkeel --check-config FILE` names each mistake, and each line that has no effect.

Each directive of Redis 7.2, Redis 8 and Valkey 9 is in one of three groups:

- it works: nothing stands in the last column, or when it can be changed;
- it is accepted and has no effect, with the reason why that does no harm;
- it is limited: other values than those named are refused with that reason.

*At start* means: in the file or on the command line, not by CONFIG SET. *Protected* means: by CONFIG SET only if
`enable-protected-configs` allows it. This page is made from the table in `crates/config/src/rows.rs`.
";

const SAMPLE: &str = "\
# The directives of Evenkeel with their defaults. Lines with one # show a default: remove the # and change the value.
# Lines with two are explanations. This file is made from the table in crates/config/src/rows.rs.
#
# evenkeel FILE                  starts with a file
# evenkeel --check-config FILE   names mistakes, and lines without effect
";

/// The text of docs/configuration.md.
pub fn handbook() -> String {
    let mut out = INTRODUCTION.to_owned();
    for (topic, directives) in rows::GROUPS {
        let _ = write!(out, "\n## {}\n\n", capital(topic));
        out.push_str("| directive | default | purpose | |\n|---|---|---|---|\n");
        for row in directives.iter() {
            let names: Vec<String> = row.names().map(|name| format!("`{name}`")).collect();
            let default = match default_of(row) {
                shown if shown.is_empty() => String::new(),
                shown => format!("`{shown}`{}", unit_of(row)),
            };
            let cells = [names.join(", "), default, row.doc.to_owned(), effect_of(row)];
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
    }
    let _ = write!(out, "\n{} directives.\n", table().len());
    out
}

/// The text of evenkeel.conf.
pub fn sample() -> String {
    let mut out = SAMPLE.to_owned();
    for (topic, directives) in rows::GROUPS {
        let _ = write!(out, "\n## ----- {topic} -----\n");
        for row in directives.iter().filter(|row| matches!(row.effect, Effect::Works)) {
            let default = default_of(row);
            let default = if default.is_empty() { "\"\"".to_owned() } else { default };
            let _ = write!(out, "\n## {}{}\n", row.doc, unit_of(row));
            // A directive with several lines shows all of them on one, which is read, too.
            let _ = writeln!(out, "# {} {default}", row.name);
        }
    }
    out
}

fn default_of(row: &Directive) -> String {
    match row.kind {
        Kind::Text if row.default.is_empty() => String::new(),
        Kind::Text => String::from_utf8_lossy(&words::quote_if_needed(row.default.as_bytes())).into_owned(),
        _ => row.default.to_owned(),
    }
}

fn unit_of(row: &Directive) -> String {
    if row.unit.is_empty() { String::new() } else { format!(" ({})", row.unit) }
}

fn effect_of(row: &Directive) -> String {
    let change = match row.change {
        Change::Anytime => "",
        Change::Protected => "protected",
        Change::Startup => "at start",
    };
    match row.effect {
        Effect::Works => change.to_owned(),
        Effect::Accepted(reason) => format!("no effect: {reason}"),
        Effect::Only(_, reason) => format!("limited: {reason}"),
    }
}

fn capital(topic: &str) -> String {
    match topic {
        "tls" => "TLS".to_owned(),
        topic => topic[..1].to_ascii_uppercase() + &topic[1..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Draft;
    use crate::{Sources, find};

    /// A file of the project, as the table has it. With EVENKEEL_WRITE_DOCS it is written first.
    #[track_caller]
    fn assert_made(path: &str, text: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        if std::env::var_os("EVENKEEL_WRITE_DOCS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let differing = text.lines().zip(found.lines()).find(|(made, found)| made != found);
        assert!(found == text, "{} is not as the table has it: {differing:?}", path.display());
    }

    #[test]
    fn the_documents_are_those_of_the_table() {
        assert_made("docs/configuration.md", &handbook());
        assert_made("evenkeel.conf", &sample());
    }

    #[test]
    fn the_sample_with_all_its_lines_in_use_is_the_default() {
        let text: String = sample()
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| find(line.split(' ').next().unwrap_or_default().as_bytes()).is_some())
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(text.lines().count() > 80, "{text}");
        let mut draft = Draft::defaults();
        draft.read(&Sources { stdin: true, ..Sources::default() }, &mut text.as_bytes()).unwrap();
        for (row, found) in table().iter().zip(&draft.values) {
            assert_eq!(String::from_utf8_lossy(found), row.default, "{}", row.name);
        }
    }

    /// Every directive of the peers is known. The lists are CONFIG GET * of Redis 7.0.15, Redis 8.0.6 and
    /// Valkey 9.0.
    #[test]
    fn every_directive_of_redis_and_valkey_has_a_row() {
        let missing: Vec<&str> = include_str!("peers.txt")
            .split_whitespace()
            .filter(|name| find(name.as_bytes()).is_none())
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
