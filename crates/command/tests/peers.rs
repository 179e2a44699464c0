//! The names of Redis and Valkey: each is a command here, or listed with a reason.
//!
//! ```text
//! peers/redis-8.0.txt, peers/valkey-9.1.txt ─► a row of the table, or a line of peers/missing.txt ─► docs/commands.md
//! ```
//!
//! The names are stored, so that the test needs no other server. The differential tester compares them with the
//! servers it meets.

use std::collections::BTreeSet;

const PEERS: [&str; 2] = [include_str!("peers/redis-8.0.txt"), include_str!("peers/valkey-9.1.txt")];
const MISSING: &str = include_str!("peers/missing.txt");
const DOCS: &str = include_str!("../../../docs/commands.md");

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// A name or the beginning of names, and the reason why they are missing.
fn missing() -> Vec<(&'static str, &'static str)> {
    let parts = |line: &'static str| line.split_once(" | ").unwrap_or_else(|| panic!("no reason: {line}"));
    lines(MISSING).map(parts).collect()
}

fn fits(line: &str, name: &str) -> bool {
    match line.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == line,
    }
}

fn ours() -> BTreeSet<&'static str> {
    command::places::all().iter().map(|command| command.name).collect()
}

#[test]
fn each_name_of_a_peer_is_a_command_or_has_a_reason() {
    let (ours, missing) = (ours(), missing());
    let unknown: Vec<_> = PEERS
        .into_iter()
        .flat_map(lines)
        .filter(|name| !ours.contains(name) && !missing.iter().any(|(line, _)| fits(line, name)))
        .collect();
    assert_eq!(unknown, [""; 0]);
    assert!(PEERS.into_iter().all(|peer| lines(peer).count() > 350));
}

#[test]
fn no_reason_is_stale() {
    let ours = ours();
    for (line, reason) in missing() {
        let mut named = PEERS.into_iter().flat_map(lines).filter(|name| fits(line, name));
        assert!(named.any(|name| !ours.contains(name)), "nothing is missing because of {line:?} ({reason})");
    }
}

/// The page shows the lines of the list and no others, in the same order.
#[test]
fn the_page_shows_what_is_missing() {
    let (_, section) = DOCS.split_once("## What is missing\n").expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let shown: Vec<(String, &str)> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
        .map(|(name, reason)| (name.to_lowercase(), reason))
        .collect();
    let listed: Vec<(String, &str)> =
        missing().into_iter().map(|(name, reason)| (name.replace('|', " "), reason)).collect();
    assert_eq!(shown, listed);
}
