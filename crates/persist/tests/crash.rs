//! Power that goes at every call of the disk: what was told to be durable is there, and what is there is a
//! prefix.

mod stream;

use persist::disk::{Power, put_files};
use persist::stream::{Item, Outlet};
use persist::{Fsync, Hooks, Place, Preallocate, Settings, Writer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stream::{Random, Recovered, Source, recover, write_base};

fn settings(fsync: Fsync, fills: bool) -> Settings {
    Settings {
        fsync,
        preallocate: if fills { Preallocate::Yes } else { Preallocate::No },
        retry: Duration::from_millis(2),
        stuck: Duration::from_millis(200),
        ..Settings::default()
    }
}

fn files_of(dir: &Path) -> persist::disk::Outage {
    let entries = std::fs::read_dir(dir).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.map(|path| (path.clone(), std::fs::read(&path).expect("a file"))).collect()
}

struct Run {
    place: Place,
    source: Source,
    recovered: Recovered,
}

/// How a life of a log ends.
#[derive(Clone, Copy, Debug)]
struct Plan {
    fsync: Fsync,
    fills: bool,
    dies_at: u64,
    /// The sync that fails.
    fails: Option<u64>,
    rewrites: bool,
    /// The disk is full for a while.
    fills_up: bool,
    seed: u64,
}

impl Run {
    fn new(dir: &Path, seed: u64) -> Run {
        let place = Place::new(dir, "appendonly.aof");
        let recovered = recover(&place).expect("nothing");
        Run { place, source: Source::new(seed, 0), recovered }
    }

    /// Writes until the power goes, and recovers. Gives the calls that the disk has had, and whether it died.
    fn live(&mut self, plan: Plan) -> (u64, bool) {
        let disk = Power::new(files_of(&self.place.dir));
        disk.dies_at(plan.dies_at);
        if let Some(sync) = plan.fails {
            disk.sync_fails_at(sync);
        }
        let durable = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&durable);
        let hooks = Hooks {
            durable: Box::new(move |lsn| {
                told.store(if lsn == persist::EVERYTHING { 0 } else { lsn }, Ordering::SeqCst);
            }),
            ..Hooks::default()
        };
        let last = self.recovered.log.lsn;
        let loaded = std::mem::take(&mut self.recovered.log);
        let known = self.recovered.in_base + self.recovered.done.len();
        self.source.goes_on(known, last);
        let opened = Writer::open(
            Arc::new(disk.clone()),
            self.place.clone(),
            Some(loaded),
            last,
            settings(plan.fsync, plan.fills),
            hooks,
        );
        if let Ok(writer) = opened {
            self.write(&writer, &disk, plan);
            if disk.is_dead() {
                drop(writer);
            } else {
                let closed = writer.close();
                assert!(closed.is_ok() || disk.is_dead(), "{plan:?}: {closed:?}");
            }
        }
        let dead = disk.is_dead();
        let calls = disk.calls();
        let files = if dead { disk.outage(plan.seed) } else { disk.files() };
        put_files(&files, &self.place.dir).expect("room");
        let acknowledged = durable.load(Ordering::SeqCst);
        self.check(plan, acknowledged, dead);
        (calls, dead)
    }

    fn check(&mut self, plan: Plan, acknowledged: u64, dead: bool) {
        let about = persist::describe_log(&self.place, 0).expect("a manifest");
        assert!(
            about.as_ref().is_none_or(persist::LogDescription::is_sound),
            "{plan:?}: {}",
            about.expect("one")
        );
        self.recovered = recover(&self.place).unwrap_or_else(|error| {
            let about = persist::describe_log(&self.place, 0);
            panic!("{plan:?}: {error}\n{about:#?}")
        });
        let commands = self.recovered.assert_prefix(&self.source, &format!("{plan:?}"));
        let needed = self.source.done.iter().take_while(|(lsn, _)| *lsn <= acknowledged || !dead).count();
        assert!(commands >= needed, "{plan:?}: {commands} commands of {needed} up to LSN {acknowledged}");
        let again = recover(&self.place).expect("it was mended");
        assert_eq!(again.done, self.recovered.done, "{plan:?}: a second load");
        assert!(again.log.cut.is_empty(), "{plan:?}");
    }

    fn write(&mut self, writer: &Writer, disk: &Power, plan: Plan) {
        let mut outlet = writer.outlet();
        let mut random = Random(plan.seed | 1);
        for round in 0..24 {
            if disk.is_dead() {
                return;
            }
            if plan.fills_up && round % 6 == 3 {
                let taken: usize = disk.files().values().map(Vec::len).sum();
                disk.set_room(Some(taken as u64 + random.below(500)));
            }
            self.source.give(&mut outlet);
            if plan.fills_up && round % 6 == 4 {
                std::thread::sleep(Duration::from_micros(random.below(4_000)));
                disk.set_room(None);
            }
            if random.below(3) == 0 && !(plan.fills_up && round % 6 == 3) {
                settled(writer, disk);
            }
            if plan.rewrites && round % 8 == 4 {
                self.rewrite(writer, disk, &mut outlet, plan.seed + round);
            }
        }
        disk.set_room(None);
        settled(writer, disk);
    }

    fn rewrite(&mut self, writer: &Writer, disk: &Power, outlet: &mut dyn Outlet, seed: u64) {
        let Ok(rewriting) = writer.begin_rewrite() else { return };
        outlet.take(self.source.mark(rewriting.mark));
        let (commands, lsn) = (self.source.done.len(), self.source.lsn);
        for _ in 0..3 {
            outlet.take(Item::Block(self.source.block()));
        }
        if seed.is_multiple_of(4) {
            return writer.fail_rewrite(&rewriting);
        }
        match write_base(Arc::new(disk.clone()), &rewriting.base, commands, lsn, writer.epoch()) {
            Ok(bytes) => {
                // It fails where the power does.
                let _ = writer.finish_rewrite(&rewriting, bytes);
            }
            Err(_) => writer.fail_rewrite(&rewriting),
        }
    }
}

/// Waits until everything is written, or the power is gone.
fn settled(writer: &Writer, disk: &Power) {
    let began = Instant::now();
    while writer.pending_bytes() > 0 && !disk.is_dead() {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", writer.figures());
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Lives of a log, each of which ends one call later, on what the one before left. `EVENKEEL_CRASH_SEED`
/// makes other ones.
fn all_calls(fsync: Fsync, fills: bool, rewrites: bool, fails: bool) {
    let seed = std::env::var("EVENKEEL_CRASH_SEED").map_or(0, |seed| seed.parse::<u64>().expect("a number"));
    let mut dir = tempfile::tempdir().expect("a folder");
    let mut run = Run::new(dir.path(), 7 + seed);
    let (mut dies_at, mut survived) = (0, 0);
    let step = if fills { 3 } else { 1 };
    // Most syncs are near the end of a life.
    let lives = if fails { 60 } else { 3 };
    while survived < lives {
        let fails = fails.then_some((dies_at * 7 + seed) % 60);
        let plan = Plan {
            fsync,
            fills,
            dies_at,
            fails,
            rewrites,
            fills_up: (dies_at + seed).is_multiple_of(3),
            seed: dies_at * 31 + 5 + seed * 1_000_003,
        };
        let (_, died) = run.live(plan);
        survived += u64::from(!died);
        dies_at += step;
        assert!(dies_at < 2_000, "it never gets to the end");
        if dies_at % 60 < step {
            // Files become few again.
            dir = tempfile::tempdir().expect("a folder");
            run = Run::new(dir.path(), dies_at + seed);
        }
    }
}

#[test]
fn under_always_what_was_told_is_there() {
    all_calls(Fsync::Always, false, false, false);
}

#[test]
fn under_always_with_filler() {
    all_calls(Fsync::Always, true, true, false);
}

#[test]
fn rewrites_die_anywhere() {
    all_calls(Fsync::Always, false, true, false);
}

#[test]
fn syncs_fail_once_and_lie_afterwards() {
    all_calls(Fsync::Always, false, true, true);
}

#[test]
fn without_syncs_a_prefix_is_there() {
    all_calls(Fsync::EverySecond, false, true, true);
    all_calls(Fsync::No, false, false, false);
}
