//! The host of a compilation or of the loading of a library: it refuses all calls, and it ends.

use super::run::Limit;
use super::{Halt, write_log};
use script::{Host, Stop};
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::points::Point;
use stdx::turns::Turn;

/// A reason for a compilation, or the loading of a library, to end.
pub trait Ends {
    /// The reason why it has to end, if any. It is asked again and again.
    fn ended(&mut self) -> Option<Stop>;
}

/// See the module.
pub struct Quiet<E>(pub E);

/// The answer to a script's text or a library that calls commands before it is run.
const CALLED_AT_LOAD: &[u8] = b"-ERR redis.call can only be called inside a script invocation\r\n";

impl<E: Ends> Host for Quiet<E> {
    fn call(&mut self, _: &[&[u8]], _: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(CALLED_AT_LOAD);
    }

    fn log(&mut self, level: i32, message: &[u8]) {
        write_log(level, message);
    }

    fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
        Ok(true)
    }

    fn interrupt(&mut self) -> Option<Stop> {
        self.0.ended()
    }
}

/// Lets everything go on, for a loop compiles only short texts.
pub struct Short;

impl Ends for Short {
    fn ended(&mut self) -> Option<Stop> {
        None
    }
}

impl<F: FnMut() -> Option<Stop>> Ends for F {
    fn ended(&mut self) -> Option<Stop> {
        self()
    }
}

/// The compilation of a script, which ends when its run would have to.
pub(super) struct Compiling<'a> {
    limit: Limit<'a>,
    turn: Option<&'a Turn>,
    /// Number of questions so far.
    asked: u32,
    /// The reason why the compilation was ended.
    pub(super) halt: Option<Halt>,
}

/// Number of questions, of some 50 µs, after which a gone client ends a compilation. So a script whose client
/// did not wait for its answer is run.
const ASKED: u32 = 1024;

impl<'a> Compiling<'a> {
    pub(super) fn new(limit: Limit<'a>, turn: Option<&'a Turn>) -> Quiet<Compiling<'a>> {
        Quiet(Compiling { limit, turn, asked: 0, halt: None })
    }
}

impl Ends for Compiling<'_> {
    fn ended(&mut self) -> Option<Stop> {
        if let Some(turn) = self.turn {
            turn.reach(Point::ScriptStep);
            turn.check();
        }
        self.asked = self.asked.saturating_add(1);
        let gone = self.limit.gone.filter(|_| self.asked > ASKED);
        self.halt = self.halt.or_else(|| Limit { gone, ..self.limit }.ended());
        self.halt.map(Halt::stop)
    }
}

/// Limits the loading of a library to half a second, as in Redis.
pub struct Deadline<'a> {
    /// The end, in CPU time of this thread. So a machine that is busy with other work refuses no library.
    pub until_ns: u64,
    /// Set when no client waits for the answer any more.
    pub gone: Option<&'a AtomicBool>,
    pub turn: Option<&'a Turn>,
}

impl Ends for Deadline<'_> {
    fn ended(&mut self) -> Option<Stop> {
        self.turn.into_iter().for_each(Turn::check);
        let is_gone = self.gone.is_some_and(|gone| gone.load(Ordering::Relaxed));
        (is_gone || stdx::clock::thread_cpu_ns() > self.until_ns).then_some(Stop::Deadline)
    }
}
