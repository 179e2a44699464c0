//! A loop without clients, for the tests of long work.

use crate::drive::{self, Home};
use crate::piece::{Delivery, Desk, Letter, Piece, Tray, Wait};
use crate::works::{Work, Works};
use command::table::Run;
use command::{Budget, Caller, Command, Cx, Handler};
use keyspace::{Changes, Keyspace, View};
use observe::{Observe, TurnLog};
use parking_lot::Mutex;
use resp::{OwnedArgs, Reply};
use std::any::Any;
use std::sync::Arc;

/// See the module.
pub(crate) struct Loop {
    pub(crate) work: Arc<Work>,
    home: Here,
    letters: Arc<Mutex<Vec<Letter>>>,
}

struct Here {
    works: Works,
    log: TurnLog,
}

impl Home for Here {
    fn works(&mut self) -> &mut Works {
        &mut self.works
    }

    fn log(&mut self) -> &mut TurnLog {
        &mut self.log
    }

    fn itself(&mut self) -> &mut dyn Any {
        self
    }

    fn tell(&mut self, _: Changes) {}

    fn wait(&mut self, _: Box<Wait>) {}

    fn kill(&mut self, _: u64) {}
}

/// The handler of a command by its words.
pub(crate) fn handler(words: &[&[u8]]) -> (&'static Command, Handler) {
    let command = command::registry::find(words[0]).unwrap();
    match command.run {
        Run::Read(handler) | Run::Write(handler) | Run::Whole(handler) => (command, handler),
        _ => panic!("it has no handler"),
    }
}

impl Loop {
    /// The only loop of an empty keyspace.
    pub(crate) fn new() -> Loop {
        let letters = Arc::<Mutex<Vec<Letter>>>::default();
        let (keyspace, observe) = (Keyspace::new(2), Arc::new(Observe::new(Arc::default(), 1)));
        let home = Here { works: Works::default(), log: TurnLog::new(0, &observe) };
        let its = letters.clone();
        let post = Arc::new(move |_: usize, letter| its.lock().push(letter));
        let work = Work::start(keyspace, stdx::turns::Turns::new(2), observe, Arc::default(), post);
        Loop { work, home, letters }
    }

    /// The letters that came since the last call.
    pub(crate) fn letters(&self) -> Vec<Letter> {
        std::mem::take(&mut *self.letters.lock())
    }

    /// Its clock.
    pub(crate) fn now_ms(&self) -> u64 {
        self.home.log.now_ms
    }

    /// Pieces that it has to do.
    pub(crate) fn pieces(&self) -> usize {
        self.home.works.load().0
    }

    /// Runs another client's command, under the locks of its keys.
    pub(crate) fn run(&mut self, words: &[&[u8]]) {
        let ((command, handler), args) = (handler(words), OwnedArgs::from_slices(words));
        let (keyspace, now_ms) = (&self.work.keyspace, self.now_ms());
        let mut view = match command.run {
            Run::Whole(_) => View::whole(keyspace, 0, now_ms),
            _ => View::locked(keyspace, command::keys::shards_of(command, args.args()), 0, now_ms),
        };
        let mut out = Reply::new(false);
        let mut cx = Cx::new(&mut view, &mut out, Caller::default(), Budget::unlimited(None), 1);
        handler(&mut cx, args.args()).ok().unwrap();
        drop(view.finish());
    }

    /// Runs a function with its desk.
    pub(crate) fn at_desk<T>(&mut self, f: impl FnOnce(&mut Desk<'_>) -> T) -> T {
        let (work, now_ms, tray) = (&self.work, self.now_ms(), Tray::default());
        f(&mut Desk { work, loop_id: 0, now_ms, tray, doer: &|_| None, home: &mut self.home })
    }

    /// Begins a piece.
    pub(crate) fn begin(&mut self, piece: Box<dyn Piece>) {
        drive::begin(&self.work, &mut self.home, piece);
    }

    /// Takes a letter.
    pub(crate) fn receive(&mut self, letter: Letter, done: &mut Vec<Delivery>) {
        drive::receive(&self.work, &mut self.home, letter, done);
    }

    /// The clients that are answered when there is nothing left to do, in no order: works take turns by the
    /// clock.
    pub(crate) fn answered(&mut self) -> Vec<u64> {
        let mut done = Vec::new();
        while self.home.works.any() {
            drive::advance(&self.work, &mut self.home, &mut done);
        }
        let mut clients: Vec<u64> = done.iter().map(|delivery| delivery.client).collect();
        clients.sort_unstable();
        clients
    }

    /// Works until a client is answered.
    pub(crate) fn until_delivered(&mut self) -> Delivery {
        let mut done = Vec::new();
        while done.is_empty() {
            for letter in self.letters() {
                self.receive(letter, &mut done);
            }
            drive::advance(&self.work, &mut self.home, &mut done);
            std::thread::yield_now();
        }
        done.remove(0)
    }
}
