//! Who else had a processor that an event loop waited for: other programs, the server's own threads, the limit of its control
//! group, the host of a virtual machine.
//!
//! ```text
//! a turn of 0.3 ms ──suspect()──► stdx::sched: notes the switches ──the turn was a stall──► who() ──► Neighbour…
//! ```
//!
//! - N1: nothing is opened before a long turn is found to wait for a processor, or to have done so, and it is closed [`KEPT_NS`]
//!   after the last: whoever is left alone pays nothing. Of the first stall, and of a short one, names are often told in part.
//! - N2: switches are noted while a turn looks long, from [`SUSPECT_NS`] on: of [`SUSPECTS`] turns a second, and of those of further ones
//!   that are found to wait for a processor.
//!   `watch-neighbours always` notes all of them all the time.
//! - N3: what may not be watched is not told, and once said so in the log.
//! - N4: too little of a short stall is seen so. Once a turn is found to wait for a processor, or had one taken by whom is not known in
//!   full, all switches are noted for [`FULL_NS`], and as long as others follow, unless the machine has more than [`FULL_RATE`] of them.
//! - N5: who stayed on a processor and did not run had it taken from below: nobody here had it, so it was the host or interrupts, the
//!   latter for sure where a host never took anything. Which of the two the system counts in steps of 10 ms only.
//!
//! Cost: that of [`stdx::sched`]; a file read each second for the control group.

use std::path::{Path, PathBuf};
use stdx::sched::{Absence, Task, Witness, is_kept_waiting};

/// A turn so long may become a stall.
pub(super) const SUSPECT_NS: u64 = 300_000;
const SUSPECTS: u32 = 200;
const KEPT_NS: u64 = 300_000_000_000;
/// See N4. So many switches a second cost 1.5 % of a processor.
const FULL_NS: u64 = 10_000_000_000;
const FULL_RATE: u64 = 20_000;
/// How often they are counted.
const COUNTED_NS: u64 = 100_000_000;
/// Named of one stall.
const NAMED: usize = 4;
/// Less is not worth a name.
const SHORT_NS: u64 = 50_000;
/// So much and more that a loop did not run on a processor it had is taken for another's.
const BELOW_NS: u64 = 200_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Somebody had a processor that a loop waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbour {
    pub name: String,
    /// 0: no process that can be seen from here.
    pub pid: u32,
    pub ns: u64,
}

impl Neighbour {
    /// In words: `tar (pid 4711), 3100 us`.
    pub fn sentence(&self) -> String {
        let us = self.ns / 1000;
        match self.pid {
            0 => format!("{}, {us} us", self.name),
            pid => format!("{} (pid {pid}), {us} us", self.name),
        }
    }
}

/// When somebody looks; of `watch-neighbours`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    Auto,
    Always,
    Never,
}

impl When {
    /// By the option's number.
    pub(super) fn of(number: i64) -> When {
        match number {
            0 => When::Auto,
            1 => When::Always,
            _ => When::Never,
        }
    }
}

enum Eyes {
    Closed,
    Open {
        witness: Witness,
        until_ns: u64,
        full: Full,
    },
    /// Not allowed here.
    Blind,
}

/// Whether all switches are noted (N4).
#[derive(Default)]
struct Full {
    until_ns: u64,
    /// There were too many: not before then.
    rests_ns: u64,
    /// When they were counted last, and how many there had been.
    counted: (u64, u64),
}

impl Full {
    /// The system took a processor; `known`: from whom and for how long is known in full.
    fn stalled(&mut self, known: bool, now_ns: u64) {
        let begins = !known && now_ns >= self.rests_ns;
        if begins && self.until_ns <= now_ns {
            self.counted = (0, 0);
        }
        if begins || now_ns < self.until_ns {
            self.until_ns = now_ns + FULL_NS;
        }
    }

    /// Once a round; `noted`: how many switches were noted so far.
    fn is_on(&mut self, noted: u64, now_ns: u64) -> bool {
        let (at_ns, before) = self.counted;
        if at_ns == 0 {
            self.counted = (now_ns, noted);
        } else if now_ns - at_ns >= COUNTED_NS {
            self.counted = (now_ns, noted);
            let most = FULL_RATE * (now_ns - at_ns) / SECOND_NS;
            if now_ns < self.until_ns && noted.saturating_sub(before) > most {
                (self.until_ns, self.rests_ns) = (0, now_ns + FULL_NS);
            }
        }
        now_ns < self.until_ns
    }
}

/// What is known of the neighbours; the watchdog's.
pub(super) struct Neighbours {
    when: When,
    eyes: Eyes,
    /// By loop: its thread, while it is watched.
    watched: Vec<Option<u32>>,
    /// The second, and how many suspects there were in it.
    suspects: (u64, u32),
    group: Option<Group>,
}

impl Neighbours {
    pub(super) fn new(loops: usize) -> Neighbours {
        let group = Group::find(Path::new("/sys/fs/cgroup"), &read(Path::new("/proc/self/cgroup")));
        Neighbours {
            when: When::Auto,
            eyes: Eyes::Closed,
            watched: vec![None; loops],
            suspects: (0, 0),
            group,
        }
    }

    /// Once a round.
    pub(super) fn look(&mut self, now_ns: u64, when: When) {
        if let Some(group) = &mut self.group {
            group.look(now_ns);
        }
        if let Eyes::Open { witness, full, .. } = &mut self.eyes
            && witness.watch_all(full.is_on(witness.noted(), now_ns) || when == When::Always)
        {
            self.watched.fill(None);
        }
        match (&mut self.eyes, when) {
            (Eyes::Closed, When::Always) => self.eyes = open(now_ns),
            (Eyes::Open { until_ns, .. }, When::Always) => *until_ns = now_ns + KEPT_NS,
            (Eyes::Open { until_ns, .. }, _) if now_ns < *until_ns && when != When::Never => {}
            (Eyes::Open { .. }, _) => {
                self.eyes = Eyes::Closed;
                self.watched.fill(None);
            }
            // Asked for anew, it is tried anew.
            (Eyes::Blind, When::Never) => self.eyes = Eyes::Closed,
            (Eyes::Closed | Eyes::Blind, _) => {}
        }
        self.when = when;
    }

    /// A loop's turn may become a stall (N2).
    pub(super) fn suspect(&mut self, id: usize, thread: i32, now_ns: u64) {
        let second = now_ns / SECOND_NS;
        if self.suspects.0 != second {
            self.suspects = (second, 0);
        }
        let Ok(thread) = u32::try_from(thread) else { return };
        if self.watched[id].is_some() || self.when == When::Never || matches!(self.eyes, Eyes::Blind) {
            return;
        }
        let kept = is_kept_waiting(thread);
        if kept && matches!((&self.eyes, self.when), (Eyes::Closed, When::Auto)) {
            self.eyes = open(now_ns);
        }
        let Eyes::Open { witness, full, .. } = &mut self.eyes else { return };
        if self.suspects.1 >= SUSPECTS && !kept {
            return;
        }
        self.suspects.1 += 1;
        witness.watch(thread);
        self.watched[id] = Some(thread);
        if kept {
            full.stalled(false, now_ns);
        }
    }

    /// It has not, or it was judged.
    pub(super) fn leave(&mut self, id: usize) {
        if let (Some(thread), Eyes::Open { witness, .. }) = (self.watched[id].take(), &mut self.eyes) {
            witness.leave(thread);
        }
    }

    /// The system took a loop's processor: who had it, longest first, as far as that is known. `lost_ns`: for how long altogether.
    pub(super) fn who(
        &mut self,
        thread: i32,
        (from_ns, to_ns): (u64, u64),
        lost_ns: u64,
        now_ns: u64,
    ) -> Vec<Neighbour> {
        let absence = match (&mut self.eyes, self.when) {
            (Eyes::Open { witness, .. }, _) => {
                u32::try_from(thread).ok().and_then(|thread| witness.absence(thread, from_ns, to_ns))
            }
            (Eyes::Closed, When::Auto | When::Always) => {
                self.eyes = open(now_ns);
                None
            }
            (Eyes::Closed | Eyes::Blind, _) => None,
        };
        if let Eyes::Open { until_ns, full, .. } = &mut self.eyes {
            *until_ns = now_ns + KEPT_NS;
            let seen_ns = absence.as_ref().map_or(0, |absence| absence.seen_ns);
            full.stalled(seen_ns + SHORT_NS >= to_ns.saturating_sub(from_ns), now_ns);
        }
        let throttled_ns = self.group.as_mut().map_or(0, |group| group.throttled(now_ns)).min(lost_ns);
        named(absence, throttled_ns, (lost_ns, to_ns.saturating_sub(from_ns)))
    }
}

fn open(now_ns: u64) -> Eyes {
    match Witness::open() {
        Ok(witness) => Eyes::Open { witness, until_ns: now_ns + KEPT_NS, full: Full::default() },
        Err(e) => {
            log::info!(
                "which programs take the processors of event loops cannot be told: {e} (it takes CAP_PERFMON, or a \
                 kernel.perf_event_paranoid of 0)"
            );
            Eyes::Blind
        }
    }
}

/// Names for who was seen, or for the limit if nobody was. `lost_ns` of `turn_ns` the loop did not run.
fn named(absence: Option<Absence>, throttled_ns: u64, (lost_ns, turn_ns): (u64, u64)) -> Vec<Neighbour> {
    let absence = absence.unwrap_or_default();
    // N5
    let off_ns = absence.preempted_ns + absence.blocked_ns;
    let below_ns = match absence.seen_ns + SHORT_NS >= turn_ns {
        true => lost_ns.saturating_sub(off_ns),
        false => 0,
    };
    // One process is one neighbour, and so is each thread of this server.
    let mut found: Vec<Neighbour> = Vec::new();
    for (task, ns) in absence.ran.iter().filter(|(_, ns)| *ns >= SHORT_NS) {
        let (name, pid) = (name_of(*task), task.pid);
        match found.iter_mut().find(|one| one.pid == pid && one.name == name) {
            Some(one) => one.ns += ns,
            None => found.push(Neighbour { name, pid, ns: *ns }),
        }
    }
    // A processor that nobody had while somebody wanted it: that is what a limit looks like.
    if throttled_ns * 2 >= lost_ns.max(1) && absence.ran.first().is_none_or(|(_, ns)| ns * 2 < lost_ns) {
        let name = "the CPU limit of this server's control group".to_owned();
        found.insert(0, Neighbour { name, pid: 0, ns: throttled_ns });
    }
    if below_ns >= BELOW_NS {
        let takes = stolen(&read(Path::new("/proc/stat"))) > 0;
        let name = if takes { "the host of this virtual machine or interrupts" } else { "interrupts" };
        found.push(Neighbour { name: name.to_owned(), pid: 0, ns: below_ns });
    }
    found.sort_by_key(|one| std::cmp::Reverse(one.ns));
    found.truncate(NAMED);
    found
}

fn name_of(task: Task) -> String {
    if task.pid == 0 {
        return "a program outside this container".into();
    }
    let own = task.pid == std::process::id();
    let path = match own {
        true => format!("/proc/self/task/{}/comm", task.tid),
        false => format!("/proc/{}/comm", task.pid),
    };
    let name = read(Path::new(&path));
    match (name.trim_end(), own) {
        ("", _) => "a program that has ended".into(),
        (name, true) => format!("this server's thread {name}"),
        (name, false) => name.to_owned(),
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The control group this server runs in, which may have a limit.
struct Group {
    /// Its `cpu.stat`.
    path: PathBuf,
    /// When it was last read, and the time it had been stopped by then.
    last: (u64, u64),
}

impl Group {
    /// Finds it from what `/proc/self/cgroup` says: one line for each hierarchy, `number:controllers:path`.
    fn find(root: &Path, lines: &str) -> Option<Group> {
        let hierarchies = lines.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let has_cpu = controllers.is_empty() || controllers.split(',').any(|name| name == "cpu");
            has_cpu.then(|| (root.join(controllers), path.trim_start_matches('/')))
        });
        // A container sees its own group as the root, or by the path it has outside.
        let mut files =
            hierarchies.flat_map(|(dir, path)| [dir.join(path).join("cpu.stat"), dir.join("cpu.stat")]);
        let path = files.find(|file| throttled_ns(&read(file)).is_some())?;
        let last = (0, throttled_ns(&read(&path))?);
        Some(Group { path, last })
    }

    fn look(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.last.0) >= SECOND_NS {
            self.throttled(now_ns);
        }
    }

    /// How long it was stopped since this was asked last.
    fn throttled(&mut self, now_ns: u64) -> u64 {
        let Some(total) = throttled_ns(&read(&self.path)) else { return 0 };
        let before = std::mem::replace(&mut self.last, (now_ns, total));
        total.saturating_sub(before.1)
    }
}

/// How long a host kept this machine's processors from running since it was started, in ticks, from `/proc/stat`: the eighth figure.
fn stolen(stat: &str) -> u64 {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    all.and_then(|figures| figures.split_ascii_whitespace().nth(7)?.parse().ok()).unwrap_or(0)
}

/// How long a control group was kept from running by its limit, from its `cpu.stat` (of either version).
fn throttled_ns(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_usec", us) => us.parse::<u64>().ok()?.checked_mul(1000),
        ("throttled_time", ns) => ns.parse().ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absence(ran: &[(u32, u32, u64)]) -> Option<Absence> {
        let ran = ran.iter().map(|(pid, tid, ns)| (Task { pid: *pid, tid: *tid }, *ns)).collect();
        Some(Absence { ran, ..Absence::default() })
    }

    #[test]
    fn all_is_noted_after_a_stall_of_which_too_little_was_seen() {
        let mut full = Full::default();
        let (mut now, mut noted) = (SECOND_NS, 0);
        let mut lasts = |full: &mut Full, now: &mut u64, rate: u64, at_most: u64| {
            let began = *now;
            while full.is_on(noted, *now) && *now - began < at_most {
                *now += SECOND_NS / 1000;
                noted += rate / 1000;
            }
            *now - began
        };
        full.stalled(true, now);
        assert_eq!(lasts(&mut full, &mut now, 5000, u64::MAX), 0);
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 20_000, u64::MAX), FULL_NS);
        // Those that are known have it last.
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 0, FULL_NS / 2), FULL_NS / 2);
        full.stalled(true, now);
        assert_eq!(lasts(&mut full, &mut now, 0, u64::MAX), FULL_NS);
        // Too many; and for a while that is not tried again.
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 30_000, u64::MAX), COUNTED_NS);
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 0, u64::MAX), 0);
        now += FULL_NS;
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 0, u64::MAX), FULL_NS);
    }

    #[test]
    fn threads_of_one_program_are_one_neighbour() {
        let own = std::process::id();
        let seen =
            absence(&[(0, 7, 900_000), (4_000_000, 1, 700_000), (4_000_000, 2, 500_000), (own, own, 60_000)]);
        let told: Vec<String> =
            named(seen, 0, (3_000_000, 3_100_000)).iter().map(Neighbour::sentence).collect();
        let gone = "a program that has ended (pid 4000000), 1200 us";
        assert_eq!(told[..2], [gone, "a program outside this container, 900 us"]);
        assert!(told[2].starts_with("this server's thread "), "{told:?}");
        assert!(named(absence(&[(9, 9, 10_000)]), 0, (3_000_000, 3_100_000)).is_empty());
    }

    /// A turn of 31 ms of which a loop ran one, and was not off its processor but for 22 us.
    #[test]
    fn what_nobody_here_had_was_taken_from_below() {
        let seen = |preempted_ns, blocked_ns, seen_ns| {
            Some(Absence {
                seen_ns,
                preempted_ns,
                blocked_ns,
                ran: vec![(Task { pid: 9, tid: 9 }, 22_000)],
                idle_ns: 0,
            })
        };
        let told = |absence| named(absence, 0, (30_693_000, 31_574_000));
        let [one] = &told(seen(22_000, 0, 31_574_000))[..] else { panic!() };
        assert!(one.name.ends_with("interrupts"), "{one:?}");
        assert_eq!((one.pid, one.ns), (0, 30_671_000));
        // It was off its processor; or not all was seen.
        assert!(told(seen(22_000, 30_600_000, 31_574_000)).is_empty());
        assert!(told(seen(22_000, 0, 20_000_000)).is_empty() && told(None).is_empty());
        assert_eq!(
            (stolen("cpu  1 2 3 4 5 6 7 89 0 0\ncpu0 1 1"), stolen("cpu  1 2"), stolen("")),
            (89, 0, 0)
        );
    }

    #[test]
    fn a_limit_is_named_where_nobody_else_ran() {
        let limit = "the CPU limit of this server's control group";
        let [one] = &named(None, 50_000_000, (60_000_000, 60_000_000))[..] else { panic!() };
        assert_eq!((one.name.as_str(), one.ns), (limit, 50_000_000));
        assert!(named(None, 10_000_000, (60_000_000, 60_000_000)).is_empty());
        let told = named(absence(&[(0, 7, 40_000_000)]), 50_000_000, (60_000_000, 60_000_000));
        assert!(told.iter().all(|one| one.name != limit));
        assert!(named(None, 0, (0, 0)).is_empty());
    }

    #[test]
    fn the_control_group_is_found_in_either_version() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let find = |lines: &str| Group::find(root.path(), lines);
        assert!(find("0::/app\n").is_none());
        write("app/cpu.stat", "usage_usec 5\nnr_throttled 2\nthrottled_usec 31\n");
        let mut group = find("0::/app\n").unwrap();
        assert_eq!((group.last.1, group.throttled(9)), (31_000, 0));
        write("app/cpu.stat", "throttled_usec 34\n");
        assert_eq!(group.throttled(10), 3000);
        write("app/cpu.stat", "nonsense\nthrottled_usec x\n");
        assert_eq!(group.throttled(11), 0);
        // Seen from within, the group is the root, whatever its path outside.
        write("cpu/cpu.stat", "nr_periods 0\nthrottled_time 77\n");
        assert_eq!(find("4:memory:/m\n1:cpu:/docker/5\n0::/\n").unwrap().last.1, 77);
        assert!(find("").is_none() && find("a:b\n:::\n").is_none());
    }
}
