//! How slots change their owner: walk, effects behind it, hold, confirmation, and the change of the map.
//!
//! Two shards with a primary each; the target's has an eligible replica. What the source acknowledged survives
//! its fail-over (`promotion`), as does what the target's replica has. The slots hold [`KEYS`] keys, each with
//! a version or absent. A fail-over is the new primary's change of the map; the old one sends nothing behind
//! it, but what it sent may arrive. Left out: slots that come back while their old owner deletes them.

use crate::{holds, is_caught, is_long};
use stateright::{Model, Property};

const KEYS: usize = 2;

/// One rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// The source reads while its change of the map is under way.
    ReadsDuringCas,
    /// Writers are let go when the answer does not come in time.
    LetsGoOnUnknown,
    /// A change without an answer counts as failed when the map does not show it.
    UnknownByReading,
    /// The target confirms what its replica has not got.
    ConfirmsAlone,
    /// A confirmation of an earlier hold counts.
    OldConfirmation,
    /// A new attempt begins with what the one before it left.
    KeepsOldAttempt,
    /// The map is changed without a look at the target's epoch.
    ForgetsEpoch,
    /// The source expires keys in the hold.
    ExpiresInHold,
}

pub struct Moves {
    mistake: Mistake,
    writes: u8,
    fail_overs: u8,
    attempts: u8,
    holds: u8,
}

type Data = [u8; KEYS];

/// What the source's primary does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// Keys below that place were read; effects upon them are sent.
    Copying(u8),
    Holding,
    /// The change of the map is under way, at that revision, for that epoch of the target.
    Deciding(u8, u8),
    Answered(bool),
    Unknown(u8, u8),
    /// It knows that it gave the slots away.
    Moved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    revision: u8,
    is_moved: bool,
    is_entered: bool,
    target_epoch: u8,
    phase: Phase,
    source: Data,
    attempt: u8,
    /// Sent and not applied: key, version.
    queue: [Option<(u8, u8)>; 2],
    target: Data,
    /// The attempt that the target takes keys of; 0: none.
    taken: u8,
    replica: Data,
    /// Writers were held so many times.
    holds: u8,
    /// The target's confirmation: the hold whose end it has, and its epoch.
    confirmation: Option<(u8, u8)>,
    /// A change that nobody waits for: revision, epoch of the target.
    late: Option<(u8, u8)>,
    /// What clients were told.
    truth: Data,
    writes: u8,
    fail_overs: u8,
    is_stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Enter,
    Begin,
    Walk,
    Apply,
    Replicate,
    Hold,
    LetGo,
    Confirm,
    Decide,
    Arrive,
    ArriveLate,
    Answer,
    Lose,
    Settle,
    Cancel,
    Set(usize),
    Delete(usize),
    Expire(usize),
    ReadAtSource,
    ReadAtTarget,
    WriteAtTarget(usize),
    SourceFailsOver,
    TargetFailsOver,
}

impl State {
    fn push(&mut self, key: usize) {
        let free = self.queue.iter().position(Option::is_none).expect("there is room");
        self.queue[free] = Some((key as u8, self.source[key]));
    }

    fn is_drained(&self) -> bool {
        self.queue == [None; 2]
    }

    fn forget_attempt(&mut self) {
        self.queue = [None; 2];
        self.phase = Phase::Idle;
    }

    fn decide(&mut self) {
        self.revision += 1;
        self.is_moved = true;
        self.is_entered = false;
    }
}

impl Moves {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    /// The source's primary answers a read, and a write.
    fn serves(&self, state: &State) -> (bool, bool) {
        match state.phase {
            Phase::Idle | Phase::Copying(_) => (true, true),
            Phase::Holding => (true, false),
            Phase::Deciding(..) | Phase::Answered(_) | Phase::Unknown(..) => {
                (self.is(Mistake::ReadsDuringCas), false)
            }
            Phase::Moved => (false, false),
        }
    }

    fn client_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (reads, writes) = self.serves(state);
        actions.extend(reads.then_some(Action::ReadAtSource));
        let has_room = state.queue.iter().any(Option::is_none) && state.writes < self.writes;
        for key in 0..KEYS {
            if writes && has_room {
                actions.extend([Action::Set(key), Action::Delete(key)]);
            }
            if has_room && self.is(Mistake::ExpiresInHold) && state.phase == Phase::Holding {
                actions.push(Action::Expire(key));
            }
            if state.is_moved && state.writes < self.writes {
                actions.push(Action::WriteAtTarget(key));
            }
        }
        actions.extend(state.is_moved.then_some(Action::ReadAtTarget));
    }

    fn source_actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.phase {
            Phase::Idle if state.is_moved => {}
            Phase::Idle if !state.is_entered => actions.push(Action::Enter),
            Phase::Idle => {
                actions.extend((state.attempt < self.attempts).then_some(Action::Begin));
                actions.push(Action::Cancel);
            }
            Phase::Copying(place) => {
                let is_read = usize::from(place) == KEYS;
                let has_room = state.queue.iter().any(Option::is_none);
                actions.extend((!is_read && has_room).then_some(Action::Walk));
                actions.extend(
                    (is_read && state.is_drained() && state.holds < self.holds).then_some(Action::Hold),
                );
                actions.push(Action::Cancel);
            }
            Phase::Holding => {
                let counts = |hold| hold == state.holds || self.is(Mistake::OldConfirmation);
                actions.extend(state.confirmation.filter(|(hold, _)| counts(*hold)).map(|_| Action::Decide));
                actions.extend((state.holds < self.holds).then_some(Action::LetGo));
                actions.push(Action::Cancel);
            }
            Phase::Deciding(..) => actions.extend([Action::Arrive, Action::Lose]),
            Phase::Answered(_) => actions.extend([Action::Answer, Action::Lose]),
            Phase::Unknown(..) => actions.push(Action::Settle),
            Phase::Moved => {}
        }
    }

    fn client_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Set(key) | Action::Delete(key) => {
                state.writes += 1;
                state.source[key] = if action == Action::Set(key) { state.writes } else { 0 };
                state.truth[key] = state.source[key];
                state.is_stale |= state.is_moved;
                if matches!(state.phase, Phase::Copying(place) if usize::from(place) > key) {
                    state.push(key);
                }
            }
            Action::Expire(key) => {
                state.source[key] = 0;
                state.truth[key] = 0;
            }
            Action::ReadAtSource => state.is_stale |= state.source != state.truth,
            Action::ReadAtTarget => state.is_stale |= state.target != state.truth,
            Action::WriteAtTarget(key) => {
                state.writes += 1;
                state.target[key] = state.writes;
                state.replica[key] = state.writes;
                state.truth[key] = state.writes;
            }
            _ => {}
        }
    }

    fn copy_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Begin => {
                state.attempt += 1;
                state.phase = Phase::Copying(0);
                state.taken = state.attempt;
                if !self.is(Mistake::KeepsOldAttempt) {
                    state.target = [0; KEYS];
                }
            }
            Action::Walk => {
                if let Phase::Copying(place) = state.phase {
                    if state.source[usize::from(place)] > 0 {
                        state.push(usize::from(place));
                    }
                    state.phase = Phase::Copying(place + 1);
                }
            }
            Action::Apply => {
                if let Some((key, version)) = state.queue[0] {
                    state.target[usize::from(key)] = version;
                }
                state.queue = [state.queue[1], None];
            }
            Action::Replicate => state.replica = state.target,
            Action::Hold => (state.phase, state.holds) = (Phase::Holding, state.holds + 1),
            Action::LetGo => state.phase = Phase::Copying(KEYS as u8),
            Action::Confirm => state.confirmation = Some((state.holds, state.target_epoch)),
            _ => {}
        }
    }

    fn map_step(&self, state: &mut State, action: Action) {
        let fits = |state: &State, (revision, epoch)| {
            let is_same = revision == state.revision || self.is(Mistake::ForgetsEpoch) && !state.is_moved;
            is_same && (epoch == state.target_epoch || self.is(Mistake::ForgetsEpoch))
        };
        match (action, state.phase) {
            (Action::Enter, _) => (state.is_entered, state.revision) = (true, state.revision + 1),
            (Action::Cancel, _) => {
                (state.is_entered, state.revision) = (false, state.revision + 1);
                state.forget_attempt();
                state.taken = 0;
            }
            (Action::Decide, _) => {
                if let Some((_, epoch)) = state.confirmation.take() {
                    state.phase = Phase::Deciding(state.revision, epoch);
                }
            }
            (Action::Arrive, Phase::Deciding(revision, epoch)) => {
                let is_done = fits(state, (revision, epoch));
                if is_done {
                    state.decide();
                }
                state.phase = Phase::Answered(is_done);
            }
            (Action::Lose, Phase::Deciding(revision, epoch)) => {
                state.late = Some((revision, epoch));
                state.phase = Phase::Unknown(revision, epoch);
            }
            (Action::Lose, Phase::Answered(_)) => state.phase = Phase::Unknown(0, 0),
            (Action::ArriveLate, _) => {
                let late = state.late.take();
                if late.is_some_and(|late| fits(state, late)) {
                    state.decide();
                }
            }
            (Action::Answer, Phase::Answered(is_done)) => self.settled(state, is_done),
            (Action::Settle, Phase::Unknown(revision, _)) => {
                if self.is(Mistake::LetsGoOnUnknown) {
                    self.settled(state, false);
                } else if revision == state.revision && !self.is(Mistake::UnknownByReading) {
                    state.revision += 1;
                    self.settled(state, false);
                } else {
                    self.settled(state, state.is_moved);
                }
            }
            _ => {}
        }
    }

    fn settled(&self, state: &mut State, is_done: bool) {
        state.phase = if is_done { Phase::Moved } else { Phase::Idle };
        state.queue = [None; 2];
    }

    fn fail_over(&self, state: &mut State, action: Action) {
        state.fail_overs -= 1;
        state.revision += 1;
        if action == Action::SourceFailsOver {
            if let Phase::Deciding(revision, epoch) = state.phase {
                state.late = Some((revision, epoch));
            }
            state.forget_attempt();
            state.phase = if state.is_moved { Phase::Moved } else { Phase::Idle };
        } else {
            state.target_epoch += 1;
            state.target = state.replica;
            state.taken = 0;
            state.queue = [None; 2];
            if matches!(state.phase, Phase::Copying(_) | Phase::Holding) && !self.is(Mistake::ForgetsEpoch) {
                state.phase = Phase::Idle;
            }
        }
    }
}

impl Model for Moves {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            revision: 1,
            is_moved: false,
            is_entered: false,
            target_epoch: 1,
            phase: Phase::Idle,
            source: [0; KEYS],
            attempt: 0,
            holds: 0,
            queue: [None; 2],
            target: [0; KEYS],
            taken: 0,
            replica: [0; KEYS],
            confirmation: None,
            late: None,
            truth: [0; KEYS],
            writes: 0,
            fail_overs: self.fail_overs,
            is_stale: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.client_actions(state, actions);
        self.source_actions(state, actions);
        if state.queue[0].is_some() && state.taken > 0 {
            actions.push(Action::Apply);
        }
        if !state.is_moved && state.replica != state.target {
            actions.push(Action::Replicate);
        }
        let has_all = state.replica == state.target || self.is(Mistake::ConfirmsAlone);
        if state.phase == Phase::Holding && state.is_drained() && state.taken > 0 && has_all {
            actions.push(Action::Confirm);
        }
        actions.extend(state.late.map(|_| Action::ArriveLate));
        if state.fail_overs > 0 {
            actions.extend([Action::SourceFailsOver, Action::TargetFailsOver]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Set(_) | Action::Delete(_) | Action::Expire(_) | Action::WriteAtTarget(_) => {
                self.client_step(&mut state, action);
            }
            Action::ReadAtSource | Action::ReadAtTarget => self.client_step(&mut state, action),
            Action::Begin
            | Action::Walk
            | Action::Apply
            | Action::Replicate
            | Action::Hold
            | Action::LetGo => {
                self.copy_step(&mut state, action);
            }
            Action::Confirm => self.copy_step(&mut state, action),
            Action::SourceFailsOver | Action::TargetFailsOver => self.fail_over(&mut state, action),
            _ => self.map_step(&mut state, action),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Moves>> {
        vec![
            Property::always(WHOLE, |_, state: &State| !state.is_moved || state.target == state.truth),
            Property::always(STALE, |_, state: &State| !state.is_stale),
            Property::sometimes("slots move, with keys", |_, state: &State| {
                state.phase == Phase::Moved && state.truth.iter().all(|version| *version > 0)
            }),
            Property::sometimes("slots move in a second attempt", |_, state: &State| {
                state.is_moved && state.attempt == 2 && state.fail_overs == 0 && state.target_epoch == 2
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.revision <= 7
    }
}

const WHOLE: &str = "the new owner has all keys as clients know them";
const STALE: &str = "nobody answers for slots that are another's";

fn model(mistake: Mistake) -> Moves {
    let more = u8::from(is_long());
    Moves { mistake, writes: 2 + more, fail_overs: 1 + more, attempts: 2 + more, holds: 3 + more }
}

#[test]
fn a_move_is_whole() {
    holds("moves", model(Mistake::None));
}

#[test]
fn mistakes_about_moves_are_caught() {
    is_caught("ReadsDuringCas", STALE, model(Mistake::ReadsDuringCas));
    for mistake in [
        Mistake::LetsGoOnUnknown,
        Mistake::UnknownByReading,
        Mistake::ConfirmsAlone,
        Mistake::OldConfirmation,
        Mistake::KeepsOldAttempt,
        Mistake::ForgetsEpoch,
        Mistake::ExpiresInHold,
    ] {
        is_caught(&format!("{mistake:?}"), WHOLE, model(mistake));
    }
}
