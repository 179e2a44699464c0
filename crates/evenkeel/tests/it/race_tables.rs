//! Tables of SQL databases in a race: a writer's transactions, and the judge of what may be found.
//!
//! ```text
//! step ─► a transaction of some changes ─► Log: the coming states of its rows ─► run ─► count of events
//!                  │                                   reported and handled by now? ◄─ EVENKEEL SOURCE STATS
//!                  ├─► rolled back: no state is entered, none may be found
//!                  └─► left open beside the following ones, where the database can do that
//! ```
//!
//! - J1: a reader finds a state that is in the log. The state is none older than one that an earlier,
//!   finished read found, or that was reported and handled.
//! - J2: events are reported in the order of commits, so their number tells which. Some are never reported,
//!   because everything was dropped instead. Then more have happened than are counted, and readers are asked
//!   less than could be. This relies on a source to drop unrecorded changes before it reports later ones
//!   (`changelog.rs`, L6). Otherwise the count would include changes that were not handled.

use crate::races::{Found, Judge, ROWS, Rows, Shop};
use crate::sources::random;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A kind of database with a table `(id, n)`, whose rows 1 to ROWS exist with n 0.
pub trait Engine: Send {
    /// The words after name and pattern in EVENKEEL SOURCE ADD, up to its options.
    fn source(&self) -> String;
    fn table(&self) -> &str;
    /// Runs statements.
    fn run(&mut self, sql: &str);
    /// Runs statements on another connection, whose transaction stays open while others commit. False: this
    /// is not possible.
    fn run_beside(&mut self, _sql: &str) -> bool {
        false
    }
    /// The statements that empty the table.
    fn clear(&self) -> String;
    /// Actions that only this kind of database knows. `alone`: no transaction is open.
    fn trouble(&mut self, alone: bool, random: &mut u64);
    /// All rows, by id.
    fn rows(&mut self) -> Vec<(u64, u64)>;
}

/// The state of a row: its version, or no row.
type State = Option<u64>;

/// The states of each row in the order of their commits. A state is entered before its commit, because a
/// reader may be faster than the writer.
pub struct Log {
    states: Mutex<Vec<Vec<State>>>,
    /// By row: the oldest state that may still be found, and the reported one.
    oldest: [AtomicUsize; ROWS as usize],
    told: [AtomicUsize; ROWS as usize],
}

impl Log {
    fn new() -> Log {
        let states = Mutex::new(vec![vec![Some(0)]; ROWS as usize]);
        Log { states, oldest: Default::default(), told: Default::default() }
    }

    fn oldest(&self, id: u64) -> &AtomicUsize {
        &self.oldest[id as usize - 1]
    }
}

impl Judge for Log {
    fn before(&self, id: u64) -> u64 {
        self.oldest(id).load(Ordering::SeqCst) as u64
    }

    fn accepts(&self, id: u64, before: u64, found: Found) -> bool {
        let states = self.states.lock().unwrap();
        let states = &states[id as usize - 1];
        let first = (before as usize..states.len()).find(|at| found.fits(states[*at]));
        first.is_some_and(|at| {
            self.oldest(id).fetch_max(at, Ordering::SeqCst);
            true
        })
    }

    fn describe(&self, id: u64) -> String {
        let at = id as usize - 1;
        format!(
            "{:?}, {} of them told",
            self.states.lock().unwrap()[at],
            self.told[at].load(Ordering::SeqCst)
        )
    }
}

/// A transaction: its statements, and the resulting states of the rows it touches.
#[derive(Default)]
struct Transaction {
    sql: Vec<String>,
    rows: Vec<(u64, State)>,
    /// Row changes that its feed reports.
    events: u64,
    /// Its last action is not reported as a change of a row.
    tells_nothing: bool,
}

impl Transaction {
    fn set(&mut self, id: u64, state: State) {
        self.events += 1;
        match self.rows.iter_mut().find(|(other, _)| *other == id) {
            Some((_, before)) => *before = state,
            None => self.rows.push((id, state)),
        }
    }

    fn touches(&self, id: u64) -> bool {
        self.rows.iter().any(|(other, _)| *other == id)
    }
}

/// A table of one seed.
pub struct Table<E> {
    engine: E,
    options: String,
    states: [State; ROWS as usize],
    version: u64,
    /// Changes of rows so far; `untold` holds the newest states that are known once so many are reported.
    events: u64,
    untold: VecDeque<(u64, Vec<(u64, usize)>)>,
    log: Arc<Log>,
    open: Option<Transaction>,
}

impl<E: Engine> Table<E> {
    pub fn new(engine: E, options: String) -> Table<E> {
        Table {
            engine,
            options,
            states: [Some(0); ROWS as usize],
            version: 0,
            events: 0,
            untold: VecDeque::new(),
            log: Arc::new(Log::new()),
            open: None,
        }
    }

    fn is_locked(&self, id: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.touches(id))
    }

    /// The state of a row within a transaction.
    fn state(&self, transaction: &Transaction, id: u64) -> State {
        let own = transaction.rows.iter().find(|(other, _)| *other == id);
        own.map_or(self.states[id as usize - 1], |(_, state)| *state)
    }

    /// Adds a change of a row to a transaction.
    fn add(&mut self, transaction: &mut Transaction, id: u64, random_state: &mut u64) {
        let other = 1 + random(random_state, ROWS);
        if self.is_locked(id) || self.is_locked(other) {
            return;
        }
        self.version += 1;
        let (table, version) = (self.engine.table(), self.version);
        let is_there = self.state(transaction, id).is_some();
        let other_is = self.state(transaction, other).is_some();
        let insert = format!("INSERT INTO {table} (id, n) VALUES ({id}, {version})");
        let delete = format!("DELETE FROM {table} WHERE id = {id}");
        let moves = |from, to| format!("UPDATE {table} SET id = {to}, n = {version} WHERE id = {from}");
        match (is_there, random(random_state, 10)) {
            (true, 0) if !other_is => {
                transaction.sql.push(moves(id, other));
                transaction.set(id, None);
                transaction.set(other, Some(version));
            }
            (true, 1 | 2) => {
                transaction.sql.push(delete);
                transaction.set(id, None);
            }
            (true, 3) => {
                transaction.sql.extend([delete, insert]);
                transaction.set(id, None);
                transaction.set(id, Some(version));
            }
            (true, _) => {
                transaction.sql.push(format!("UPDATE {table} SET n = {version} WHERE id = {id}"));
                transaction.set(id, Some(version));
            }
            (false, 0..3) if other_is => {
                transaction.sql.push(moves(other, id));
                transaction.set(other, None);
                transaction.set(id, Some(version));
            }
            (false, _) => {
                transaction.sql.push(insert);
                transaction.set(id, Some(version));
            }
        }
    }

    fn commit(&mut self, transaction: Transaction, run: impl FnOnce(&mut E)) {
        let mut newest = Vec::new();
        for (id, state) in transaction.rows {
            let states = &mut self.log.states.lock().unwrap()[id as usize - 1];
            newest.push((id, states.len()));
            states.push(state);
            self.states[id as usize - 1] = state;
        }
        run(&mut self.engine);
        self.events += transaction.events;
        // An action that is no change of a row counts as reported only with the next report.
        self.untold.push_back((self.events + u64::from(transaction.tells_nothing), newest));
    }

    fn run(&mut self, transaction: Transaction) {
        let sql = format!("BEGIN; {}; COMMIT", transaction.sql.join("; "));
        self.commit(transaction, |engine| engine.run(&sql));
    }

    /// Ends the open transaction.
    fn close(&mut self, keep: bool) {
        let Some(open) = self.open.take() else { return };
        match keep {
            true => self.commit(open, |engine| _ = engine.run_beside("COMMIT")),
            false => _ = self.engine.run_beside("ROLLBACK"),
        }
    }

    /// Notes that no later read may be older than what was reported and handled up to now.
    fn note_told(&mut self, shop: &mut Shop) {
        let told = shop.figure("changes") - shop.given_up;
        assert!(told <= self.events, "{told} changes of rows were told of {}", self.events);
        if shop.figure("waiting-removals") > 0 {
            return;
        }
        while self.untold.front().is_some_and(|(events, _)| *events <= told) {
            for (id, at) in self.untold.pop_front().map_or_else(Vec::new, |(_, newest)| newest) {
                self.log.told[id as usize - 1].fetch_max(at, Ordering::SeqCst);
                self.log.oldest(id).fetch_max(at, Ordering::SeqCst);
            }
        }
    }
}

impl<E: Engine> Rows for Table<E> {
    fn source(&self) -> String {
        format!("{} table {} columns n {}", self.engine.source(), self.engine.table(), self.options)
    }

    fn column(&self) -> &'static str {
        "n"
    }

    fn change(&mut self, id: u64, state: &mut u64) {
        if random(state, 4) == 0 {
            self.close(random(state, 3) > 0);
        }
        let mut transaction = Transaction::default();
        let count = if random(state, 4) == 0 { 2 + random(state, 3) } else { 1 };
        (0..count).for_each(|more| self.add(&mut transaction, 1 + (id + more) % ROWS, state));
        if transaction.sql.is_empty() {
            return;
        }
        let statements = transaction.sql.join("; ");
        match random(state, 12) {
            0 => self.engine.run(&format!("BEGIN; {statements}; ROLLBACK")),
            1 | 2 if self.open.is_none() && self.engine.run_beside(&format!("BEGIN; {statements}")) => {
                self.open = Some(transaction);
            }
            _ => self.run(transaction),
        }
    }

    fn change_all(&mut self, state: &mut u64) {
        self.close(true);
        let (table, mut all) = (self.engine.table().to_owned(), Transaction::default());
        self.version += 1;
        let clears = random(state, 2) == 0;
        for id in 1..=ROWS {
            if self.states[id as usize - 1].is_some() {
                all.set(id, (!clears).then_some(self.version));
            }
        }
        if clears {
            all.sql.push(self.engine.clear());
            all.tells_nothing = all.sql[0].starts_with("TRUNCATE");
            all.events = if all.tells_nothing { 0 } else { all.events };
        } else {
            all.sql.push(format!("UPDATE {table} SET n = {}", self.version));
        }
        self.run(all);
    }

    fn trouble(&mut self, shop: &mut Shop, state: &mut u64) {
        match random(state, 8) {
            0 => self.engine.trouble(self.open.is_none(), state),
            1 | 2 => self.note_told(shop),
            _ => {}
        }
    }

    fn settle(&mut self) -> Vec<Option<u64>> {
        self.close(true);
        let rows = self.engine.rows();
        let found = |id: u64| rows.iter().find(|(other, _)| *other == id).map(|(_, version)| *version);
        let states: Vec<State> = (1..=ROWS).map(found).collect();
        assert_eq!(states, self.states, "what was written is not what is there");
        states
    }

    fn judge(&self) -> Arc<dyn Judge> {
        self.log.clone()
    }
}
