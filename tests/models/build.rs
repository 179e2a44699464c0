//! Makes *worlds*: copies of the files under test with the model checker's atomics and locks in place of the
//! real ones. One world is the server's own code; each other has one mistake, so that the models can be seen
//! to fail.
//!
//! A mistake is a piece of text of the real file and its replacement. If the file no longer has that text,
//! the build fails, and the mistake must be rewritten.

use std::path::Path;
use std::{env, fs};

const FILES: &[&str] = &[
    "crates/keyspace/src/sequence.rs",
    "crates/keyspace/src/preimages.rs",
    "crates/keyspace/src/record.rs",
    "crates/keyspace/src/intent.rs",
    "crates/keyspace/src/intent/bulk.rs",
    "crates/keyspace/src/intent/deciding.rs",
    "crates/keyspace/src/underway.rs",
    "crates/keyspace/src/tell/slots.rs",
    "crates/persist/src/rings.rs",
    "crates/stdx/src/letterbox.rs",
    "crates/park/src/claim.rs",
    "crates/rows/src/shelf.rs",
    "crates/source/src/marks.rs",
];

/// Worlds with one mistake: name, file, right text, wrong text.
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    (
        "drawn_before_published",
        "sequence.rs",
        "        self.active.fetch_add(1, Ordering::SeqCst);\n        let lsn = self.draw();\n",
        "        let lsn = self.draw();\n        self.active.fetch_add(1, Ordering::SeqCst);\n",
    ),
    ("opening_ignored", "sequence.rs", "if lsn == OPENING { 0 } else { lsn }", "lsn"),
    ("kept_once", "preimages.rs", "last <= newest && last != lsn", "last != lsn && false"),
    (
        "drawn_before_deciding",
        "record.rs",
        "        self.word.compare_exchange(PREPARING, DECIDING, Ordering::SeqCst, Ordering::SeqCst).ok()?;\n",
        "        let n = sequence.draw() + COMMITTED;\n        \
         self.word.compare_exchange(PREPARING, n, Ordering::SeqCst, Ordering::SeqCst).ok()?;\n",
    ),
    (
        "drawn_twice",
        "record.rs",
        "let mut announce = self.announce.lock();\n                match self.word.load(Ordering::SeqCst) {",
        "let mut announce = self.announce.lock();\n                match DECIDING {",
    ),
    (
        "decided_though_aborted",
        "record.rs",
        "        self.word.compare_exchange(PREPARING, DECIDING, Ordering::SeqCst, Ordering::SeqCst).ok()?;\n",
        "        if self.word.load(Ordering::SeqCst) != PREPARING {\n            return None;\n        }\n        \
         self.word.store(DECIDING, Ordering::SeqCst);\n",
    ),
    (
        "taken_before_cleared",
        "letterbox.rs",
        "        if self.rung.swap(false, Ordering::AcqRel) {\n            self.bell.silence();\n            \
         into.append(&mut self.queue.lock());\n",
        "        if self.is_rung() {\n            self.bell.silence();\n            \
         into.append(&mut self.queue.lock());\n            self.rung.store(false, Ordering::Release);\n",
    ),
    (
        "rung_before_sent",
        "letterbox.rs",
        "        self.queue.lock().push(letter);\n        if !self.rung.swap(true, Ordering::AcqRel) {\n            \
         self.bell.ring();\n        }\n",
        "        if !self.rung.swap(true, Ordering::AcqRel) {\n            self.bell.ring();\n        }\n        \
         self.queue.lock().push(letter);\n",
    ),
    (
        "no_note",
        "claim.rs",
        "if word == FREE { TAKEN } else { MISSED }",
        "if word == FREE { TAKEN } else { word }",
    ),
    // A reader folds a commit that was decided after it took its position.
    (
        "position_ignored",
        "intent.rs",
        "            false => self.keyspace().sequence.last(),\n",
        "            false => Lsn::MAX,\n",
    ),
    (
        "snapshot_ignored",
        "intent.rs",
        "let seen = matches!(placed.record.fate(sequence), Fate::Committed(n) if n <= p);",
        "let seen = matches!(placed.record.fate(sequence), Fate::Committed(_));",
    ),
    ("writer_does_not_abort", "intent.rs", "                    record.end(sequence);\n", ""),
    ("writer_does_not_fold", "intent.rs", "            self.fold_key(*db, *hash, key, position);\n", ""),
    (
        "placed_unchecked",
        "intent.rs",
        "&& let Some(by) = self.changed_since(db, key, s)",
        "&& let Some(by) = None",
    ),
    ("older_not_spared", "intent.rs", "return Err(Conflict { by: placed.record.owner });", ""),
    (
        "younger_not_ended",
        "intent.rs",
        "Fate::Open => folds |= matches!(placed.record.end(&keyspace.sequence), Fate::Committed(_)),",
        "Fate::Open => {}",
    ),
    (
        "decided_too_early",
        "intent.rs",
        "Stage::Placing(part) if part == self.parts.len() => self.decide(&keyspace, now_ms, told),",
        "Stage::Placing(part) if part + 1 == self.parts.len() => self.decide(&keyspace, now_ms, told),",
    ),
    // The conditions of the shortcut for whole shards.
    (
        "placed_though_changed",
        "intent.rs",
        "if alone && (whatever || self.shard(shard).is_some_and(|shard| shard.pre.len_at(s) == 0)) {",
        "if alone {",
    ),
    (
        "placed_beside_another",
        "intent.rs",
        "if alone && (whatever || self.shard(shard).is_some_and(|shard| shard.pre.len_at(s) == 0)) {",
        "if alone && whatever || !whatever && self.shard(shard).is_some_and(|shard| shard.pre.len_at(s) == 0) {",
    ),
    (
        "set_beside_another",
        "intent.rs",
        "if alone && (whatever || self.shard(shard).is_some_and(|shard| shard.pre.len_at(s) == 0)) {",
        "if whatever || alone && self.shard(shard).is_some_and(|shard| shard.pre.len_at(s) == 0) {",
    ),
    // Keys that have to be new.
    ("new_not_asked_for", "intent.rs", "let alone = !asks && intents", "let alone = intents"),
    (
        "asked_before_it_is_folded",
        "intent.rs",
        "            checked = self.make_way(record, db, hash, key, mine.cells.writes(i));\n",
        "            let was_there = self.is_there(db, hash, key, now_ms);\n            \
         checked = self.make_way(record, db, hash, key, mine.cells.writes(i));\n            \
         if asks && !was_there {\n                mine.upto += usize::from(checked.is_ok());\n                continue;\n            }\n",
    ),
    // Keys removed from a table that is emptied meanwhile.
    ("gone_uncounted", "intent.rs", "std::mem::take(list))])))", "Vec::new())])))"),
    ("folded_counted_again", "bulk.rs", ".filter(|(_, word)| *word != FOLDED)", ""),
    // A commit from before a flush is written into the tables after it.
    (
        "committed_not_dropped",
        "underway.rs",
        "                dbs.iter().for_each(|db| numbers.empty(*db));\n",
        "",
    ),
    (
        "dropped_though_ended",
        "intent.rs",
        "        if record.fate(&keyspace.sequence) != Fate::Open {\n            return None;\n        }\n",
        "        keyspace.underway.empty(&keyspace.sequence, &[0], Some(record));\n",
    ),
    // A commit from before an exchange of two databases is written into the wrong one.
    (
        "exchanged_unsaid",
        "underway.rs",
        "        self.each_decided(sequence, |_, numbers| numbers.swap(a, b));\n",
        "        let _ = (a, b);\n",
    ),
    ("exchanged_before_it_began", "underway.rs", "if record.fate(sequence) != Fate::Open {", "if true {"),
    (
        "exchanged_undecided",
        "underway.rs",
        "            record.end(sequence);\n",
        "            let _ = (record, sequence);\n",
    ),
    (
        "folded_later",
        "intent.rs",
        "        let write = |view: &mut Self, key: &[u8]| match decided {",
        "        let n = self.keyspace().sequence.draw();\n        \
         let write = |view: &mut Self, key: &[u8]| match decided {",
    ),
    (
        "withdrawn_undecided",
        "intent.rs",
        "if let Fate::Committed(_) = self.record.end(&keyspace.sequence) {",
        "if let Fate::Open = self.record.fate(&keyspace.sequence) {",
    ),
    // The stream of what is told.
    (
        "slots_read_first",
        "slots.rs",
        "        let p = last();\n        let bounds = self.bounds();\n",
        "        let bounds = self.bounds();\n        let p = last();\n",
    ),
    (
        "left_before_put",
        "sequence.rs",
        "        tell(lsn);\n        self.tell.leave();\n",
        "        self.tell.leave();\n        tell(lsn);\n",
    ),
    (
        "entered_after_draw",
        "sequence.rs",
        "        self.tell.enter(|| self.last());\n        self.draw()\n",
        "        let lsn = self.draw();\n        self.tell.enter(|| lsn - 1);\n        lsn\n",
    ),
    (
        "not_nested",
        "slots.rs",
        "        if depth == 0 {\n            self.slot.bound.store(IDLE, Ordering::Release);",
        "        if true {\n            self.slot.bound.store(IDLE, Ordering::Release);",
    ),
    (
        "published_unwritten",
        "rings.rs",
        "self.chunk.filled.store(self.at, Ordering::Release);",
        "self.chunk.filled.store(self.at, Ordering::Relaxed);",
    ),
    (
        "next_read_late",
        "rings.rs",
        "            let filled = self.chunk.filled.load(Ordering::Acquire);\n            while",
        "            let filled = self.chunk.filled.load(Ordering::Acquire);\n            \
         let next = self.chunk.next.lock().clone();\n            while",
    ),
    // The way of a row.
    ("kept_unlooked", "shelf.rs", "let kept = marks.admit(id, began);", "let kept = true;"),
    (
        "lent_stays",
        "shelf.rs",
        "        view.select(self.rows);\n        view.remove(key);\n    }\n\n    /// Forgets",
        "        let _ = (view, key);\n    }\n\n    /// Forgets",
    ),
    (
        "absence_stays",
        "shelf.rs",
        "        view.select(self.absent);\n        view.remove(key);\n        view.select(self.rows);\n        view.remove(key);\n",
        "        view.remove(key);\n",
    ),
    (
        "removal_unseen",
        "marks.rs",
        "        self.removed[self.slot(id)].fetch_max(now, Ordering::SeqCst);\n",
        "        let _ = now;\n",
    ),
    ("claimed_twice", "claim.rs", "Some(if word == FREE { TAKEN } else { MISSED });", "Some(word);"),
];

fn main() {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let worlds = std::iter::once(("real", None)).chain(MISTAKES.iter().map(|m| (m.0, Some(m))));
    for (world, mistake) in worlds {
        let to = Path::new(&out).join(world);
        fs::create_dir_all(&to).expect("OUT_DIR can be written to");
        assert!(mistake.is_none_or(|m| FILES.iter().any(|file| file.ends_with(m.1))), "{world}: of no file");
        for file in FILES {
            let from = root.join(file);
            println!("cargo::rerun-if-changed={}", from.display());
            let name = from.file_name().expect("a file").to_str().expect("an ASCII name");
            let mut text = fs::read_to_string(&from).expect("the file is there");
            if let Some((_, _, right, wrong)) = mistake.filter(|m| m.1 == name) {
                assert_eq!(text.matches(right).count(), 1, "{name} changed: make the mistake {world} anew");
                text = text.replace(right, wrong);
            }
            fs::write(to.join(name), adapt(&text, file, world)).expect("OUT_DIR can be written to");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// Adapts a file for inclusion: no header, no tests, `crate` is the world, and `stdx` is ours. `intent.rs`
/// includes its parts.
fn adapt(text: &str, file: &str, world: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.starts_with("//!"));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let part =
        |name| format!(r#"mod {name} {{ include!(concat!(env!("OUT_DIR"), "/{world}/{name}.rs")); }}"#);
    let above = if file.contains("/intent/") { "super::super::" } else { "super::" };
    let code = code.replace("crate::", above).replace("stdx::", "crate::stdx::");
    let code = code.replace("mod bulk;", &part("bulk")).replace("mod deciding;", &part("deciding"));
    match file.rsplit('/').next() {
        // All ids share a slot: fewer steps, and no choice by chance.
        Some("marks.rs") => code.replace("std::sync", "loom::sync").replace("usize = 8192", "usize = 1"),
        // Two or three entries fill a chunk.
        Some("rings.rs") => code.replace("usize = 8192", "usize = 8"),
        Some("shelf.rs") => {
            code.replace("use keyspace::", "use super::rows::").replace("use source::", "use super::marks::")
        }
        _ => code,
    }
}
