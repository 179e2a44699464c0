//! Compares the command table row by row: arity, flags, key positions, categories, subcommands and described
//! arguments of every command of the oracle. Missing commands are listed.

use crate::compare::Difference;
use crate::tolerated::Tolerated;
use crate::wire::{Conn, Frame};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use support::server::Server;

pub struct Found {
    pub compared: usize,
    pub differences: Vec<String>,
}

/// The compared fields of a COMMAND INFO row, and whether their order counts.
const FIELDS: &[(&str, usize, bool)] = &[
    ("arity", 1, true),
    ("flags", 2, false),
    ("first key", 3, true),
    ("last key", 4, true),
    ("step", 5, true),
    ("categories", 6, false),
];

/// The server whose COMMAND DOCS are the measure, and the compared fields.
const DOCS_FROM: &str = "redis-8";
const DOCS: &[&str] = &["since", "group", "deprecated_since", "replaced_by", "arguments"];

/// Names of commands and subcommands that are stored for servers, by the beginning of their versions.
const STORED: &[(&str, &str)] = &[
    ("redis-8.0", include_str!("../../../crates/command/tests/peers/redis-8.0.txt")),
    ("valkey-9.1", include_str!("../../../crates/command/tests/peers/valkey-9.1.txt")),
];

pub fn compare_tables(ours: &Path, theirs: &Path, oracle: &str, tolerated: &Tolerated) -> io::Result<Found> {
    let (ours, theirs) = (Server::start(ours)?, Server::start(theirs)?);
    let (mut ours, mut theirs) = (Conn::open(ours.addr)?, Conn::open(theirs.addr)?);
    let list = theirs.call(&["COMMAND", "LIST"]);
    let names: BTreeSet<String> = list
        .items()
        .unwrap_or_default()
        .iter()
        .filter_map(|name| Some(String::from_utf8_lossy(name.text()?).to_lowercase()))
        .collect();
    let mut met = names.clone();
    let mut found = Found { compared: 0, differences: Vec::new() };
    let mut report = |what: String, ours: String, theirs: String| {
        let difference = Difference { command: what, ours, theirs };
        if !tolerated.allows(oracle, &difference) {
            found
                .differences
                .push(format!("{}: ours {}, its {}", difference.command, difference.ours, difference.theirs));
        }
    };
    for name in &names {
        let (a, b) = (ours.call(&["COMMAND", "INFO", name]), theirs.call(&["COMMAND", "INFO", name]));
        found.compared += 1;
        let row = |frame: &Frame| match frame.items() {
            Some([row]) => row.items().map(<[Frame]>::to_vec),
            _ => None,
        };
        met.extend(row(&b).iter().flat_map(|row| subcommands(row)));
        let (Some(a), Some(b)) = (row(&a), row(&b)) else {
            report(format!("COMMAND INFO {name}"), "missing".to_owned(), "present".to_owned());
            continue;
        };
        for &(field, at, ordered) in FIELDS {
            let text =
                |row: &[Frame]| row.get(at).map_or("missing".to_owned(), |value| listed(value, ordered));
            if text(&a) != text(&b) {
                report(format!("COMMAND INFO {name}: {field}"), text(&a), text(&b));
            }
        }
        if oracle.starts_with(DOCS_FROM) {
            let (a, b) = (docs(&mut ours, name), docs(&mut theirs, name));
            for (field, text) in &b {
                let our = a.get(field).map_or("missing", String::as_str);
                if our != text {
                    report(format!("COMMAND DOCS {name}: {field}"), our.to_owned(), text.clone());
                }
            }
        }
        let (a, b) = (subcommands(&a), subcommands(&b));
        for missing in b.difference(&a) {
            report(format!("COMMAND INFO {missing}"), "missing".to_owned(), "present".to_owned());
        }
    }
    if let Some((_, stored)) = STORED.iter().find(|(version, _)| oracle.starts_with(version)) {
        let stored: BTreeSet<String> =
            stored.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        for name in met.symmetric_difference(&stored) {
            let there = |names: &BTreeSet<String>| if names.contains(name) { "present" } else { "missing" };
            report(format!("names stored of {oracle}: {name}"), there(&stored).into(), there(&met).into());
        }
    }
    Ok(found)
}

/// The names of the subcommands of a COMMAND INFO row.
fn subcommands(row: &[Frame]) -> BTreeSet<String> {
    let rows = row.get(9).and_then(Frame::items).unwrap_or_default();
    rows.iter()
        .filter_map(|row| Some(String::from_utf8_lossy(row.items()?.first()?.text()?).to_lowercase()))
        .collect()
}

/// The fields of a command's COMMAND DOCS that are facts, as text.
fn docs(server: &mut Conn, name: &str) -> BTreeMap<String, String> {
    let reply = server.call(&["COMMAND", "DOCS", name]);
    let found = reply.items().and_then(|pair| pair.get(1)).and_then(Frame::items).unwrap_or_default();
    let facts = found.chunks_exact(2).filter_map(|field| {
        let name = String::from_utf8_lossy(field[0].text()?).into_owned();
        DOCS.contains(&name.as_str()).then(|| (name, field[1].to_string()))
    });
    facts.collect()
}

fn listed(value: &Frame, ordered: bool) -> String {
    match value.items() {
        Some(items) if !ordered => {
            let items: BTreeSet<String> = items.iter().map(Frame::to_string).collect();
            items.into_iter().collect::<Vec<_>>().join(" ")
        }
        _ => value.to_string(),
    }
}
