//! The right to answer: the lease in the coordinator, the fence, the map's word, the hand-over, and failsafe.
//!
//! Time is ticks that all clocks see at once. A lease of [`TTL`] ticks is counted by the store from the moment
//! it applied a request. A client's call is a read; the reply leaves at any time behind the last look at the
//! clock. Left out: offers and data (`promotion`).

use crate::{holds, is_caught, is_long};
use stateright::{Model, Property};

const NODES: usize = 3;
const TTL: u8 = 2;

/// One rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// The fence is looked at when a turn begins, and not again when replies leave.
    NoSecondLook,
    /// The second look takes the fence of any lease, also of one that came behind the call.
    LooksAtAnyLease,
    /// The fence counts from the answer to a renewal.
    CountedFromAnswer,
    /// The store says that a lease is kept, and does not prolong it (etcd#15247).
    KeptByStaleLeader,
    /// The store ends a lease before its time (etcd#12528).
    EndedEarly,
    /// The lease is given back before the fence is down.
    ReleasedFirst,
    /// Failsafe asks for a majority.
    Majority,
    /// A process that starts has forgotten what the one before it confirmed.
    ForgetsConfirmation,
    /// A node confirms while its request for the lease is under way.
    ConfirmsWhileAcquiring,
    /// Failsafe does not ask the one whose entry is not known to have failed.
    AsksSettledOnly,
    /// A newcomer is entered while the fence stands on confirmations that it did not give.
    EntersOnConfirmations,
}

pub struct Fence {
    mistake: Mistake,
    is_failsafe: bool,
    max_epoch: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wish {
    Acquire,
    Renew(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Acquired(u8),
    Kept(u8),
    No,
}

/// A request about the lease, with the fence it gives if it is granted: counted from before it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Sent(Wish, u8),
    Answered(Answer, u8),
}

/// A change of the map: names the node at the next epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cas {
    Sent(u8),
    Done(u8),
    Conflict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Idle,
    /// Has the lease of that generation; the map does not name it yet.
    Holder(u8),
    /// Generation, epoch.
    Primary(u8, u8),
}

/// A call that ran, at `epoch`, asked when replies of `floor` had left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    epoch: u8,
    floor: u8,
    /// The last look at the clock is behind it.
    is_leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    role: Role,
    fence: u8,
    /// The part of `fence` that the lease gives.
    leased: u8,
    request: Option<Request>,
    cas: Option<Cas>,
    /// What the turn's look at the clock said.
    turn: bool,
    call: Option<Call>,
    /// Ticks for which it takes no lease.
    promise: u8,
    /// Nodes that confirmed, and the fence they give.
    confirmed: Option<(u8, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES],
    holder: Option<(u8, u8)>,
    left: u8,
    generation: u8,
    epoch: u8,
    eligible: u8,
    /// What node 0 knows of `eligible`, and what it asked for without knowing the outcome.
    known: u8,
    asked: u8,
    /// The newest epoch of which a reply left.
    newest: u8,
    is_stale: bool,
    restarts: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    EndEarly,
    Acquire(usize),
    Renew(usize),
    Arrive(usize),
    Take(usize),
    Lose(usize),
    Name(usize),
    ArriveCas(usize),
    TakeCas(usize),
    Turn(usize),
    Call(usize),
    Look(usize),
    Leave(usize),
    /// Turn, call, look and leave at once.
    Answer(usize),
    StepDown(usize),
    Release(usize),
    RenewAtOnce(usize),
    ArriveAndTake(usize),
    NameAtOnce(usize),
    Ask(usize),
    Confirm(usize, usize),
    Confirmed(usize),
    Enter,
    Entered,
    Restart(usize),
}

impl Fence {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    /// The nodes that failsafe needs.
    fn needed(&self, state: &State, node: usize) -> u8 {
        let all = if node != 0 {
            state.eligible
        } else if self.is(Mistake::AsksSettledOnly) {
            state.known
        } else {
            state.known | state.asked
        };
        all & !(1 << node)
    }

    fn is_confirmed(&self, state: &State, node: usize, by: u8) -> bool {
        let needed = self.needed(state, node);
        if self.is(Mistake::Majority) {
            2 * ((by & needed).count_ones() + 1) > needed.count_ones() + 1
        } else {
            by & needed == needed
        }
    }

    /// The lease's steps at once, as far as they are those of `node_actions`; confirmations one by one.
    fn failsafe_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        match (node.role, node.request) {
            (Role::Idle, None) if self.may_acquire(state, at) => actions.push(Action::Acquire(at)),
            (Role::Idle, Some(_)) => actions.extend([Action::ArriveAndTake(at), Action::Lose(at)]),
            (Role::Holder(_), _) => actions.push(Action::NameAtOnce(at)),
            (Role::Primary(..), _) => actions.extend((node.fence > 0).then_some(Action::Answer(at))),
            _ => {}
        }
        if let (0, Role::Primary(..)) = (at, node.role) {
            if state.holder == Some((0, 1)) {
                actions.push(Action::RenewAtOnce(at));
            }
            match node.confirmed {
                None => actions.push(Action::Ask(at)),
                Some((by, _)) => {
                    let missing = self.needed(state, at) & !by;
                    let confirms = (1..NODES).filter(|other| missing & 1 << other != 0);
                    actions.extend(confirms.map(|other| Action::Confirm(at, other)));
                    actions.extend(self.is_confirmed(state, at, by).then_some(Action::Confirmed(at)));
                }
            }
        }
        if state.restarts > 0 && node.promise > 0 {
            actions.push(Action::Restart(at));
        }
    }

    fn node_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        match (node.role, node.request) {
            (Role::Idle, None) if self.may_acquire(state, at) => actions.push(Action::Acquire(at)),
            (Role::Holder(_) | Role::Primary(..), None) => actions.push(Action::Renew(at)),
            (_, Some(Request::Sent(..))) => actions.extend([Action::Arrive(at), Action::Lose(at)]),
            (_, Some(Request::Answered(..))) => actions.extend([Action::Take(at), Action::Lose(at)]),
            _ => {}
        }
        match node.cas {
            None if matches!(node.role, Role::Holder(_)) => actions.push(Action::Name(at)),
            Some(Cas::Sent(_)) => actions.push(Action::ArriveCas(at)),
            Some(_) => actions.push(Action::TakeCas(at)),
            None => {}
        }
        if let Role::Primary(..) = node.role {
            actions.extend([Action::Turn(at), Action::StepDown(at), Action::Release(at)]);
            if node.turn && node.call.is_none() {
                actions.push(Action::Call(at));
            }
        }
        match node.call {
            Some(call) if call.is_leaving => actions.push(Action::Leave(at)),
            Some(_) => actions.push(Action::Look(at)),
            None => {}
        }
    }

    /// It is eligible, made no promise, and has settled what it asked of the map.
    fn may_acquire(&self, state: &State, at: usize) -> bool {
        let node = &state.nodes[at];
        state.eligible >> at & 1 == 1
            && node.promise == 0
            && node.cas.is_none()
            && state.generation < self.max_epoch
    }

    /// It follows the primary of that epoch, and wants the lease neither now nor by a request under way.
    fn may_confirm(&self, state: &State, at: usize, epoch: u8) -> bool {
        let node = &state.nodes[at];
        let wants = node.request.is_some() && !self.is(Mistake::ConfirmsWhileAcquiring);
        node.role == Role::Idle && !wants && node.cas.is_none() && epoch == state.epoch
    }

    fn arrive(&self, state: &mut State, at: usize) {
        let Some(Request::Sent(wish, fence)) = state.nodes[at].request else { return };
        let answer = match (wish, state.holder) {
            (Wish::Acquire, None) => {
                state.generation += 1;
                state.holder = Some((at as u8, state.generation));
                state.left = TTL;
                Answer::Acquired(state.generation)
            }
            (Wish::Renew(generation), Some(holder)) if holder == (at as u8, generation) => {
                state.left = TTL;
                Answer::Kept(generation)
            }
            (Wish::Renew(generation), _) if self.is(Mistake::KeptByStaleLeader) => Answer::Kept(generation),
            _ => Answer::No,
        };
        state.nodes[at].request = Some(Request::Answered(answer, fence));
    }

    fn take(&self, node: &mut Node) {
        let Some(Request::Answered(answer, fence)) = node.request.take() else { return };
        let fence = if self.is(Mistake::CountedFromAnswer) { TTL } else { fence };
        match (answer, node.role) {
            (Answer::Acquired(generation), Role::Idle) => {
                node.role = Role::Holder(generation);
                (node.fence, node.leased) = (fence, fence);
            }
            (Answer::Kept(of), Role::Holder(generation) | Role::Primary(generation, _))
                if of == generation =>
            {
                (node.fence, node.leased) = (node.fence.max(fence), node.leased.max(fence));
            }
            (Answer::No, Role::Holder(_) | Role::Primary(..)) => {
                node.step_down();
            }
            _ => {}
        }
    }

    fn take_cas(&self, node: &mut Node) {
        match (node.cas.take(), node.role) {
            (Some(Cas::Done(epoch)), Role::Holder(generation)) => {
                node.role = Role::Primary(generation, epoch)
            }
            (_, Role::Holder(_)) => node.role = Role::Idle,
            _ => {}
        }
    }

    fn tick(state: &mut State) {
        state.left = state.left.saturating_sub(1);
        if state.left == 0 {
            state.holder = None;
        }
        for node in &mut state.nodes {
            node.fence = node.fence.saturating_sub(1);
            node.leased = node.leased.saturating_sub(1);
            node.promise = node.promise.saturating_sub(1);
            match &mut node.request {
                Some(Request::Sent(_, fence) | Request::Answered(_, fence)) => {
                    *fence = fence.saturating_sub(1)
                }
                None => {}
            }
            if let Some((_, fence)) = &mut node.confirmed {
                *fence = fence.saturating_sub(1);
            }
        }
    }

    fn lease_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Acquire(at) => state.nodes[at].request = Some(Request::Sent(Wish::Acquire, TTL)),
            Action::Renew(at) => {
                if let Role::Holder(generation) | Role::Primary(generation, _) = state.nodes[at].role {
                    state.nodes[at].request = Some(Request::Sent(Wish::Renew(generation), TTL));
                }
            }
            Action::Arrive(at) => self.arrive(state, at),
            Action::ArriveAndTake(at) => {
                self.arrive(state, at);
                self.take(&mut state.nodes[at]);
            }
            Action::RenewAtOnce(at) => {
                state.left = TTL;
                (state.nodes[at].fence, state.nodes[at].leased) = (TTL, TTL);
            }
            Action::NameAtOnce(at) => {
                if let Role::Holder(generation) = state.nodes[at].role {
                    state.epoch += 1;
                    state.nodes[at].role = Role::Primary(generation, state.epoch);
                }
            }
            Action::Take(at) => self.take(&mut state.nodes[at]),
            Action::Lose(at) => state.nodes[at].request = None,
            Action::Name(at) => state.nodes[at].cas = Some(Cas::Sent(state.epoch)),
            Action::ArriveCas(at) => {
                state.nodes[at].cas = Some(match state.nodes[at].cas {
                    Some(Cas::Sent(expected)) if expected == state.epoch => {
                        state.epoch += 1;
                        Cas::Done(state.epoch)
                    }
                    _ => Cas::Conflict,
                });
            }
            Action::TakeCas(at) => self.take_cas(&mut state.nodes[at]),
            Action::StepDown(at) => state.nodes[at].step_down(),
            Action::Release(at) => {
                if !self.is(Mistake::ReleasedFirst) {
                    state.nodes[at].step_down();
                }
                state.holder = state.holder.filter(|(holder, _)| usize::from(*holder) != at);
            }
            _ => {}
        }
    }

    fn call_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Turn(at) => state.nodes[at].turn = state.nodes[at].fence > 0,
            Action::Call(at) => {
                if let Role::Primary(_, epoch) = state.nodes[at].role {
                    state.nodes[at].call = Some(Call { epoch, floor: state.newest, is_leaving: false });
                }
            }
            Action::Look(at) => {
                let node = &state.nodes[at];
                let led = node.call.map(|call| call.epoch);
                let leads = matches!(node.role, Role::Primary(_, epoch) if Some(epoch) == led);
                let stands = node.fence > 0 && (leads || self.is(Mistake::LooksAtAnyLease));
                let passes = stands || self.is(Mistake::NoSecondLook);
                state.nodes[at].call =
                    state.nodes[at].call.filter(|_| passes).map(|call| Call { is_leaving: true, ..call });
            }
            Action::Leave(at) => {
                if let Some(call) = state.nodes[at].call.take() {
                    state.is_stale |= call.epoch < call.floor;
                    state.newest = state.newest.max(call.epoch);
                }
            }
            Action::Answer(at) => {
                if let Role::Primary(_, epoch) = state.nodes[at].role {
                    state.is_stale |= epoch < state.newest;
                    state.newest = state.newest.max(epoch);
                }
            }
            _ => {}
        }
    }

    fn failsafe_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Ask(at) => state.nodes[at].confirmed = Some((0, TTL)),
            Action::Confirm(at, other) => {
                let Role::Primary(_, epoch) = state.nodes[at].role else { return };
                if !self.may_confirm(state, other, epoch) {
                    return;
                }
                state.nodes[other].promise = TTL;
                if let Some((by, _)) = &mut state.nodes[at].confirmed {
                    *by |= 1 << other;
                }
            }
            Action::Confirmed(at) => {
                if let Some((_, fence)) = state.nodes[at].confirmed.take() {
                    state.nodes[at].fence = state.nodes[at].fence.max(fence);
                }
            }
            Action::Enter => {
                if !self.is(Mistake::EntersOnConfirmations) {
                    state.nodes[0].fence = state.nodes[0].leased;
                    state.nodes[0].confirmed = None;
                }
                state.asked |= 1 << (NODES - 1);
                state.eligible |= 1 << (NODES - 1);
            }
            Action::Entered => state.known |= state.asked,
            Action::Restart(at) => {
                state.restarts -= 1;
                state.nodes[at] =
                    Node { promise: if self.is(Mistake::ForgetsConfirmation) { 0 } else { TTL }, ..IDLE };
            }
            _ => {}
        }
    }
}

impl Node {
    fn step_down(&mut self) {
        self.role = Role::Idle;
        (self.fence, self.leased) = (0, 0);
    }
}

const IDLE: Node = Node {
    role: Role::Idle,
    fence: 0,
    leased: 0,
    request: None,
    cas: None,
    turn: false,
    call: None,
    promise: 0,
    confirmed: None,
};

impl Model for Fence {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut nodes = [IDLE; NODES];
        nodes[0] = Node { role: Role::Primary(1, 1), fence: TTL, leased: TTL, ..IDLE };
        let eligible = 0b011;
        vec![State {
            nodes,
            holder: Some((0, 1)),
            left: TTL,
            generation: 1,
            epoch: 1,
            eligible,
            known: eligible,
            asked: 0,
            newest: 0,
            is_stale: false,
            restarts: u8::from(self.is_failsafe),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if self.is(Mistake::EndedEarly) && state.holder.is_some() {
            actions.push(Action::EndEarly);
        }
        for at in 0..NODES {
            if self.is_failsafe {
                self.failsafe_actions(state, at, actions);
            } else {
                self.node_actions(state, at, actions);
            }
        }
        if self.is_failsafe && state.epoch == 1 {
            if state.asked == 0 {
                actions.push(Action::Enter);
            } else if state.known & state.asked == 0 {
                actions.push(Action::Entered);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Tick => Fence::tick(&mut state),
            Action::EndEarly => state.holder = None,
            Action::Turn(_) | Action::Call(_) | Action::Look(_) | Action::Leave(_) | Action::Answer(_) => {
                self.call_step(&mut state, action);
            }
            Action::Ask(_) | Action::Confirm(..) | Action::Confirmed(_) => {
                self.failsafe_step(&mut state, action)
            }
            Action::Enter | Action::Entered | Action::Restart(_) => self.failsafe_step(&mut state, action),
            _ => self.lease_step(&mut state, action),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Fence>> {
        vec![
            Property::always(STALE, |_, state: &State| !state.is_stale),
            Property::sometimes("the lease changes hands", |_, state: &State| state.newest > 1),
        ]
    }
}

const STALE: &str = "no reply is older than one that left before it was asked for";

fn model(mistake: Mistake, is_failsafe: bool) -> Fence {
    Fence { mistake, is_failsafe, max_epoch: if is_failsafe { 4 } else { 2 + u8::from(is_long()) } }
}

#[test]
fn nobody_answers_behind_the_fence() {
    holds("lease and fence", model(Mistake::None, false));
}

#[test]
fn failsafe_keeps_the_fence() {
    holds("failsafe", model(Mistake::None, true));
}

#[test]
fn mistakes_about_the_lease_are_caught() {
    for mistake in [
        Mistake::NoSecondLook,
        Mistake::CountedFromAnswer,
        Mistake::KeptByStaleLeader,
        Mistake::EndedEarly,
        Mistake::ReleasedFirst,
    ] {
        is_caught(&format!("{mistake:?}"), STALE, model(mistake, false));
    }
}

#[test]
fn a_mistake_about_two_leases_is_caught() {
    let model = model(Mistake::LooksAtAnyLease, false);
    is_caught("LooksAtAnyLease", STALE, Fence { max_epoch: 3, ..model });
}

#[test]
fn mistakes_about_failsafe_are_caught() {
    for mistake in [
        Mistake::Majority,
        Mistake::ForgetsConfirmation,
        Mistake::ConfirmsWhileAcquiring,
        Mistake::AsksSettledOnly,
        Mistake::EntersOnConfirmations,
    ] {
        is_caught(&format!("{mistake:?}"), STALE, model(mistake, true));
    }
}
