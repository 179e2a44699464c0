//! Alarms: a long write is told at once that its attempt is in vain.
//!
//! A long write would learn only at its commit, at the end of all its work, that its keys were changed. So a
//! write that has lost a race, or stands first in a line (`lines.rs`), sets an alarm on its keys. The first
//! change of one of them ends the attempt with its next charge. The next attempt begins at once.
//!
//! - N1: an alarm rings once for a job, and earns it no protection (job J3). Else clients that go on writing
//!   the same key would wait sooner than by attempts that run to their end. An alarm that does not ring
//!   proves nothing.
//! - N2: a loop sets it and drops it, for that takes the locks of its keys' shards.
//! - N3: it covers only few and short keys, and no key that is written without being looked at.

use crate::piece::Desk;
use command::Command;
use keyspace::{Keyspace, View};
use resp::Args;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Largest number of keys of a command, and bytes of each.
const KEYS: usize = 8;
const KEY_BYTES: usize = 1024;

/// See the module.
pub struct Alarm {
    mark: Arc<AtomicBool>,
    keyspace: Arc<Keyspace>,
    db: usize,
    keys: SmallVec<[Box<[u8]>; 2]>,
}

impl Alarm {
    /// Sets an alarm on the keys a command looks at. It rings by setting `mark`. `None`: they are too many.
    /// Cost: O(keys).
    pub fn set(
        desk: &mut Desk<'_>,
        db: usize,
        (command, args): (&Command, Args<'_>),
        mark: &Arc<AtomicBool>,
    ) -> Option<Alarm> {
        let (mut keys, mut count) = (SmallVec::<[Box<[u8]>; 2]>::new(), 0);
        command.each_key(args, &mut |at, uses| {
            count += 1;
            if count <= KEYS && args.at(at).len() <= KEY_BYTES && !uses.0.contains(&"OW") {
                keys.push(args.at(at).into());
            }
        });
        if keys.is_empty() || count > KEYS {
            return None;
        }
        let alarm = Alarm { mark: mark.clone(), keyspace: desk.work.keyspace.clone(), db, keys };
        for key in &alarm.keys {
            let shards = Keyspace::shards_of([&**key]);
            let mut view = View::locked(&alarm.keyspace, shards, db, desk.now_ms);
            view.set_quiet(true);
            // As for WATCH: changes that were decided before must not ring later.
            if view.has_intents() {
                view.settle(&[(db, key)], false);
            }
            view.watch(key, &alarm.mark);
            desk.tell(view.finish());
        }
        Some(alarm)
    }

    /// The write that made it ring: the first to one of its keys since that LSN, of which a snapshot is open.
    /// O(keys).
    pub(crate) fn rung_by(&self, since: u64) -> u64 {
        let by = self.keys.iter().find_map(|key| self.keyspace.changed_by(self.db, key, since));
        by.unwrap_or(0)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        for key in &self.keys {
            self.keyspace.unwatch(self.db, key, &self.mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Body, Call, Client, Job, State};
    use super::*;
    use crate::attempt::{Stage, ready};
    use crate::piece::Letter;
    use crate::testing::{Loop, handler};
    use keyspace::Overlay;
    use observe::ClientInfo;
    use resp::OwnedArgs;
    use std::sync::Weak;

    /// A loop with a long list.
    fn with_list() -> Loop {
        let mut its = Loop::new();
        let elements: Vec<String> = (0..20_000).map(|i| format!("e{i}")).collect();
        for some in elements.chunks(100) {
            let words = [&b"RPUSH"[..], b"list"].into_iter().chain(some.iter().map(|e| e.as_bytes()));
            its.run(&words.collect::<Vec<_>>());
        }
        its
    }

    /// A job that has lost a race and is about to run again, and the mark of its alarm.
    fn lost_once(its: &mut Loop, words: &[&[u8]]) -> (Box<Job>, Option<Weak<AtomicBool>>) {
        let (command, handler) = handler(words);
        let call = Call { command, handler, args: Arc::new(OwnedArgs::from_slices(words)) };
        let info = ClientInfo::new(1, 0, String::new(), String::new(), 0, false, 0);
        let client = Client {
            loop_id: 0,
            info: Arc::new(info),
            gone: Arc::default(),
            db: 0,
            resp3: false,
            may_stream: true,
            now_ms: its.now_ms(),
            look: keyspace::Look::default(),
            random: 1,
        };
        let mut job = Job::new(client, Body::One(call), its.work.budget.clone(), false);
        job.attempt.races.lost = 1;
        let job = its.at_desk(|desk| ready(job, desk)).ok().expect("it waits");
        let mark = job.alarm.as_ref().map(|alarm| Arc::downgrade(&alarm.mark));
        (job, mark)
    }

    /// An attempt, with what the loop reads for it.
    fn attempt(its: &Loop, job: &mut Job) {
        let turn = its.work.turns.enter();
        loop {
            job.run(&its.work.keyspace, &turn);
            job.read = match std::mem::take(&mut job.state) {
                State::NeedKeys(wanted) => wanted,
                ended => return job.state = ended,
            };
            let when = job.when().unwrap();
            while !job.read.read_some(&job.body, &its.work.keyspace, when, 32) {}
        }
    }

    /// Runs another client's command while such a job is about to run. Returns how that ends, and the races
    /// lost in the end.
    fn meanwhile(theirs: &[&[u8]], words: &[&[u8]]) -> (bool, Vec<u8>, u32) {
        let mut its = with_list();
        let (mut job, mark) = lost_once(&mut its, words);
        its.run(theirs);
        attempt(&its, &mut job);
        let doomed = matches!(job.state, State::Stopped);
        job.attempt.stage = Stage::Back;
        let mut done = Vec::new();
        its.receive(Letter::Back(job), &mut done);
        let delivery = done.pop();
        // Its alarm is over with the attempt: of what it set only the job and its place know yet.
        assert!(mark.is_none_or(|mark| mark.strong_count() <= 2));
        let delivery = delivery.unwrap_or_else(|| its.until_delivered());
        (doomed, delivery.bytes, delivery.spent.unwrap().lost)
    }

    #[test]
    fn an_attempt_ends_when_what_it_reads_is_changed() {
        let lrem: [&[u8]; 4] = [b"LREM", b"list", b"1", b"e15000"];
        let outcome = |theirs: &[&[u8]]| meanwhile(theirs, &lrem);
        assert_eq!(outcome(&[b"SET", b"other", b"1"]), (false, b":1\r\n".to_vec(), 1));
        assert_eq!(outcome(&[b"LRANGE", b"list", b"0", b"1"]), (false, b":1\r\n".to_vec(), 1));
        assert_eq!(outcome(&[b"LSET", b"list", b"15000", b"x"]), (true, b":0\r\n".to_vec(), 1));
        assert_eq!(outcome(&[b"LSET", b"list", b"7", b"e15000"]), (true, b":1\r\n".to_vec(), 1));
        // This rings for nobody: found out when it commits.
        assert_eq!(outcome(&[b"FLUSHALL"]), (false, b":0\r\n".to_vec(), 2));
    }

    #[test]
    fn it_rings_once_for_a_job() {
        let mut its = with_list();
        let (mut job, _) = lost_once(&mut its, &[b"LTRIM", b"list", b"1", b"15000"]);
        job.attempt.overlay.take().into_iter().for_each(Overlay::dispose);
        (job.alarm, job.attempt.races.doomed) = (None, true);
        let job = its.at_desk(|desk| ready(job, desk));
        assert!(job.is_ok_and(|job| job.alarm.is_none()));
    }

    #[test]
    fn what_is_only_written_has_no_alarm_and_nor_have_many_keys() {
        let mut its = with_list();
        let mut alarm = |words: &[&[u8]]| {
            let args = OwnedArgs::from_slices(words);
            let command = command::registry::find(words[0]).unwrap();
            let set = |desk: &mut Desk<'_>| Alarm::set(desk, 0, (command, args.args()), &Arc::default());
            let alarm = its.at_desk(set)?;
            Some(alarm.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>())
        };
        let names = |names: &[&str]| Some(names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
        assert_eq!(alarm(&[b"SDIFFSTORE", b"to", b"a", b"b"]), names(&["a", "b"]));
        assert_eq!(alarm(&[b"LTRIM", b"list", b"0", b"1"]), names(&["list"]));
        assert_eq!(alarm(&[b"MSET", b"a", b"1"]), None);
        let many: Vec<&[u8]> = [&b"SUNIONSTORE"[..], b"to"].into_iter().chain([&b"k"[..]; 8]).collect();
        assert_eq!(alarm(&many), None);
        assert_eq!(alarm(&[b"LTRIM", &[b'k'; super::KEY_BYTES + 1], b"0", b"1"]), None);
        assert_eq!(alarm(&many[..9]).map(|keys| keys.len()), Some(7));
    }
}
