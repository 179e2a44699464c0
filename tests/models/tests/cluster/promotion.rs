//! The right to become primary: offers, `eligible`, and the change of the map that decides.
//!
//! There is no time here: any node may suspect the primary at any moment, and a primary may go on as long as it
//! likes. So a write that WAIT acknowledged depends on no clock. A write is acknowledged when [`ACKS`] eligible
//! replicas have it. Played: a full sync and an offer are one step each; a replica's data are its log.

use crate::{holds, is_caught, is_long};
use stateright::{Model, Property};

const NODES: usize = 3;
const WRITES: usize = 2;
/// `min-replicas-to-write`, as the map tells it.
const ACKS: usize = 1;

/// One rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// Serves when it has the lease, before the map names it.
    NoMap,
    /// The map is changed at whatever revision it has, if the conditions held when the lease was asked for.
    ConditionsBefore,
    /// A change without an answer counts as failed when the map does not show it.
    UnknownByReading,
    /// One offer decides.
    OneOffer,
    /// WAIT counts replicas that are not eligible.
    CountsAll,
    /// A replica counts until its removal is known.
    CountsWhileRemoved,
    /// A replica is removed though only it has what was acknowledged.
    RemovesHolder,
    /// A promotion leaves `eligible` as it is.
    EligibleKept,
    /// A process that starts is eligible as the one before it.
    RestartedIsMember,
    /// WAIT counts a process that started for the one before it, which is eligible.
    CountsRestarted,
    /// A primary whose change came too late counts as before, and does not read who leads now.
    CountsDeposed,
    /// An offer stays when its node follows again.
    StaleOffer,
    /// An offer is withdrawn, and the map keeps its revision: a promotion that counted on it is under way.
    WithdrawnApart,
}

pub struct Promotion {
    mistake: Mistake,
    max_epoch: u8,
    max_revision: u8,
    writes: u8,
    crashes: u8,
}

/// Writes in the order of the history that a node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Log {
    len: u8,
    writes: [u8; WRITES],
}

impl Log {
    fn all(&self) -> &[u8] {
        &self.writes[..usize::from(self.len)]
    }

    fn push(&mut self, write: u8) {
        self.writes[usize::from(self.len)] = write;
        self.len += 1;
    }

    fn set(&self) -> u8 {
        self.all().iter().fold(0, |set, write| set | 1 << write)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Follower,
    Offered,
    /// At that epoch.
    Primary(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    /// The sender, at that epoch.
    Promote(u8),
    /// A node and its run.
    Add(u8, u8),
    Remove(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cas {
    by: u8,
    expected: u8,
    change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sent {
    UnderWay,
    Answered(bool),
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    up: bool,
    run: u8,
    log: Log,
    /// The epoch whose history it holds whole; 0: no data.
    history: u8,
    role: Role,
    /// The epoch whose primary it follows; 0: none.
    follows: u8,
    /// Its newest acknowledgement: epoch, length.
    ack: (u8, u8),
    cas: Option<(Cas, Sent)>,
    /// As a primary: what others acknowledged, and who counts.
    acked: [u8; NODES],
    counts: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Offer {
    epoch: u8,
    run: u8,
    len: u8,
    history: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    revision: u8,
    epoch: u8,
    primary: u8,
    primary_run: u8,
    /// The run of each eligible node.
    eligible: [Option<u8>; NODES],
    offers: [Option<Offer>; NODES],
    nodes: [Node; NODES],
    /// A change that its sender gave up, still under way.
    late: Option<Cas>,
    /// Only of `Mistake::NoMap`: who has the lease.
    lease: Option<u8>,
    written: u8,
    /// Writes that WAIT acknowledged.
    promised: u8,
    crashes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Write(usize),
    Link(usize),
    Replicate(usize),
    TakeAck(usize),
    Offer(usize),
    Withdraw(usize),
    Promote(usize),
    Add(usize, usize),
    Remove(usize, usize),
    Arrive(usize),
    Answer(usize),
    Lose(usize),
    ArriveLate,
    Settle(usize),
    StepDown(usize),
    Crash(usize),
    Restart(usize, bool),
    EndLease,
}

impl State {
    fn is_eligible(&self, at: usize) -> bool {
        self.eligible[at].is_some()
    }

    /// The node that serves that epoch.
    fn primary_of(&self, epoch: u8) -> Option<usize> {
        self.nodes.iter().position(|node| node.up && node.role == Role::Primary(epoch))
    }

    fn wait(&mut self, at: usize) {
        let node = &self.nodes[at];
        for (place, write) in node.log.all().iter().enumerate() {
            let has =
                |other: &usize| node.counts >> other & 1 == 1 && usize::from(node.acked[*other]) > place;
            if (0..NODES).filter(has).count() >= ACKS {
                self.promised |= 1 << write;
            }
        }
    }

    fn apply(&mut self, cas: Cas, keeps_eligible: bool) {
        self.revision += 1;
        match cas.change {
            Change::Promote(epoch) => {
                self.epoch = epoch;
                self.primary = cas.by;
                self.primary_run = self.nodes[usize::from(cas.by)].run;
                if keeps_eligible {
                    self.eligible[usize::from(cas.by)] = None;
                } else {
                    self.eligible = [None; NODES];
                }
            }
            Change::Add(node, run) => self.eligible[usize::from(node)] = Some(run),
            Change::Remove(node) => self.eligible[usize::from(node)] = None,
        }
    }

    /// The map shows what the change wanted. Only the shard's own primary changes its `eligible`, so at its
    /// epoch the content tells.
    fn shows(&self, cas: Cas) -> bool {
        match cas.change {
            Change::Promote(epoch) => self.epoch == epoch && self.primary == cas.by,
            Change::Add(node, run) => self.eligible[usize::from(node)] == Some(run),
            Change::Remove(node) => self.eligible[usize::from(node)].is_none(),
        }
    }
}

impl Promotion {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    /// It may ask for the map to name it: what offers it sees decide, at the revision it read.
    fn may_promote(&self, state: &State, at: usize) -> bool {
        let answers = |other: usize| state.offers[other].filter(|offer| offer.epoch == state.epoch);
        let Some(own) = answers(at) else { return false };
        if own.run != state.nodes[at].run {
            return false;
        }
        if usize::from(state.primary) == at && state.primary_run == own.run {
            return true;
        }
        let is_best = |among: &dyn Fn(usize) -> bool| {
            let rank = |other: usize| answers(other).map(|offer| (offer.history, offer.len, other));
            (0..NODES).filter(|other| among(*other)).all(|other| rank(other) <= rank(at))
        };
        let is_member = |other: usize| {
            let same = |offer: Offer| {
                self.is(Mistake::RestartedIsMember) || state.eligible[other] == Some(offer.run)
            };
            state.is_eligible(other) && answers(other).is_some_and(same)
        };
        let members = (0..NODES).filter(|other| is_member(*other)).count();
        let eligible = (0..NODES).filter(|other| state.is_eligible(*other)).count();
        let needed = if self.is(Mistake::OneOffer) { 1 } else { (eligible + 1).saturating_sub(ACKS).max(1) };
        if is_member(at) && members >= needed && is_best(&is_member) {
            return true;
        }
        // All were restarted: then all must have offered.
        let is_named = |other: usize| state.is_eligible(other) || usize::from(state.primary) == other;
        is_named(at)
            && (0..NODES).all(|other| !is_named(other) || answers(other).is_some())
            && is_best(&is_named)
    }

    /// Without it, enough of the others have all that was acknowledged.
    fn may_remove(&self, state: &State, at: usize, other: usize) -> bool {
        let node = &state.nodes[at];
        let has_all = |left: &usize| {
            let known = usize::from(node.acked[*left]).min(usize::from(node.log.len));
            let set = node.log.all()[..known].iter().fold(0, |set, write| set | 1 << write);
            *left != other && node.counts >> left & 1 == 1 && state.promised & !set == 0
        };
        self.is(Mistake::RemovesHolder) || state.promised == 0 || (0..NODES).filter(has_all).count() >= ACKS
    }

    fn primary_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        let Role::Primary(epoch) = node.role else { return };
        actions.extend((state.written < self.writes).then_some(Action::Write(at)));
        actions.push(Action::StepDown(at));
        if node.cas.is_some() || epoch != state.epoch || state.revision >= self.max_revision {
            return;
        }
        for other in (0..NODES).filter(|other| *other != at) {
            let is_in_sync = state.nodes[other].ack.0 == epoch && node.acked[other] == node.log.len;
            let is_entered = state.eligible[other] == Some(state.nodes[other].run);
            if !is_entered && is_in_sync && state.nodes[other].up {
                actions.push(Action::Add(at, other));
            }
            if state.is_eligible(other) && self.may_remove(state, at, other) {
                actions.push(Action::Remove(at, other));
            }
        }
    }

    fn replica_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        match node.role {
            Role::Follower => {
                let primary = state.primary_of(state.epoch);
                if node.follows != state.epoch && primary.is_some_and(|primary| primary != at) {
                    actions.push(Action::Link(at));
                }
                let may_lead = state.is_eligible(at) || usize::from(state.primary) == at;
                if may_lead && node.history > 0 && node.cas.is_none() && state.epoch < self.max_epoch {
                    actions.push(Action::Offer(at));
                }
                let primary = state.primary_of(node.follows).filter(|_| node.follows > 0);
                if primary.is_some_and(|primary| state.nodes[primary].log.len > node.log.len) {
                    actions.push(Action::Replicate(at));
                }
            }
            Role::Offered if node.cas.is_none() => {
                actions.push(Action::Withdraw(at));
                let free = !self.is(Mistake::NoMap) || state.lease.is_none();
                if free && state.epoch < self.max_epoch && self.may_promote(state, at) {
                    actions.push(Action::Promote(at));
                }
            }
            _ => {}
        }
        let primary = state.primary_of(node.ack.0).filter(|_| node.ack.0 > 0);
        if primary.is_some_and(|primary| state.nodes[primary].acked[at] < node.ack.1) {
            actions.push(Action::TakeAck(at));
        }
    }

    fn data_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Write(at) => {
                state.nodes[at].log.push(state.written);
                state.written += 1;
            }
            Action::Link(at) => {
                let Some(primary) = state.primary_of(state.epoch) else { return };
                let theirs = state.nodes[primary].log;
                let node = &mut state.nodes[at];
                if !theirs.all().starts_with(node.log.all()) || node.history == 0 {
                    node.log = theirs;
                }
                node.history = state.epoch;
                node.follows = state.epoch;
                node.ack = (state.epoch, node.log.len);
                state.nodes[primary].acked[at] = 0;
                let is_other_run = state.eligible[at].is_some_and(|run| run != state.nodes[at].run);
                if self.is(Mistake::CountsAll) {
                    state.nodes[primary].counts |= 1 << at;
                } else if is_other_run && !self.is(Mistake::CountsRestarted) {
                    state.nodes[primary].counts &= !(1 << at);
                }
            }
            Action::Replicate(at) => {
                let Some(primary) = state.primary_of(state.nodes[at].follows) else { return };
                let theirs = state.nodes[primary].log;
                let node = &mut state.nodes[at];
                node.log.push(theirs.writes[usize::from(node.log.len)]);
                node.ack = (node.follows, node.log.len);
            }
            Action::TakeAck(at) => {
                let (epoch, len) = state.nodes[at].ack;
                let Some(primary) = state.primary_of(epoch) else { return };
                state.nodes[primary].acked[at] = len;
                state.wait(primary);
            }
            _ => {}
        }
    }

    fn role_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Offer(at) => {
                let node = &mut state.nodes[at];
                node.role = Role::Offered;
                node.follows = 0;
                let (len, history) = (node.log.len, node.history);
                state.offers[at] = Some(Offer { epoch: state.epoch, run: node.run, len, history });
            }
            Action::Withdraw(at) => {
                state.nodes[at].role = Role::Follower;
                if self.is(Mistake::StaleOffer) {
                    return;
                }
                let offer = state.offers[at].take();
                if offer.is_some_and(|offer| offer.epoch == state.epoch) && !self.is(Mistake::WithdrawnApart)
                {
                    state.revision += 1;
                }
            }
            Action::Promote(at) => {
                let change = Change::Promote(state.epoch + 1);
                Promotion::send(state, at, change);
                if self.is(Mistake::NoMap) {
                    state.lease = Some(at as u8);
                    self.lead(state, at, state.epoch + 1);
                }
            }
            Action::StepDown(at) => Promotion::step_down(&mut state.nodes[at]),
            Action::Crash(at) => {
                state.crashes -= 1;
                let node = &mut state.nodes[at];
                if let Some((cas, Sent::UnderWay)) = node.cas {
                    state.late = state.late.or(Some(cas));
                }
                Promotion::step_down(node);
                (node.up, node.cas, node.ack) = (false, None, (0, 0));
            }
            Action::Restart(at, is_kept) => {
                let node = &mut state.nodes[at];
                node.up = true;
                node.run += 1;
                if !is_kept {
                    node.log = Log::default();
                    node.history = u8::from(self.is(Mistake::RestartedIsMember));
                }
            }
            _ => {}
        }
    }

    fn map_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Add(at, other) => {
                let change = Change::Add(other as u8, state.nodes[other].run);
                Promotion::send(state, at, change);
            }
            Action::Remove(at, other) => {
                if !self.is(Mistake::CountsWhileRemoved) && !self.is(Mistake::CountsAll) {
                    state.nodes[at].counts &= !(1 << other);
                }
                Promotion::send(state, at, Change::Remove(other as u8));
            }
            Action::Arrive(at) => self.arrive(state, at),
            Action::Lose(at) => {
                if let Some((cas, sent)) = state.nodes[at].cas {
                    if sent == Sent::UnderWay {
                        state.late = Some(cas);
                    }
                    state.nodes[at].cas = Some((cas, Sent::Unknown));
                }
            }
            Action::ArriveLate => {
                if let Some(cas) = state.late.take().filter(|cas| cas.expected == state.revision) {
                    state.apply(cas, self.is(Mistake::EligibleKept));
                }
            }
            Action::Answer(at) => {
                if let Some((cas, Sent::Answered(is_done))) = state.nodes[at].cas.take() {
                    self.settled(state, at, cas, is_done);
                }
            }
            Action::Settle(at) => {
                let Some((cas, _)) = state.nodes[at].cas.take() else { return };
                if state.revision == cas.expected && !self.is(Mistake::UnknownByReading) {
                    // The map as it is, at the next revision: what is under way can no longer be applied.
                    state.revision += 1;
                    self.settled(state, at, cas, false);
                } else {
                    self.settled(state, at, cas, state.revision != cas.expected && state.shows(cas));
                }
            }
            _ => {}
        }
    }

    /// The change of the map is there, and done if the map has the revision it expects.
    fn arrive(&self, state: &mut State, at: usize) {
        let Some((cas, _)) = state.nodes[at].cas else { return };
        let is_blind = self.is(Mistake::ConditionsBefore) && matches!(cas.change, Change::Promote(_));
        let change = if is_blind { Change::Promote(state.epoch + 1) } else { cas.change };
        let cas = Cas { change, ..cas };
        let fits = cas.expected == state.revision || is_blind;
        if fits {
            state.apply(cas, self.is(Mistake::EligibleKept));
        }
        state.nodes[at].cas = Some((cas, Sent::Answered(fits)));
    }

    fn send(state: &mut State, at: usize, change: Change) {
        let cas = Cas { by: at as u8, expected: state.revision, change };
        state.nodes[at].cas = Some((cas, Sent::UnderWay));
    }

    fn step_down(node: &mut Node) {
        if let Role::Primary(epoch) = node.role {
            node.history = epoch;
        }
        (node.role, node.follows, node.acked, node.counts) = (Role::Follower, 0, [0; NODES], 0);
    }

    fn lead(&self, state: &mut State, at: usize, epoch: u8) {
        let kept = self.is(Mistake::EligibleKept) || self.is(Mistake::NoMap);
        let eligible = (0..NODES).filter(|other| *other != at && state.is_eligible(*other));
        let counts = if kept { eligible.fold(0, |set, other| set | 1 << other) } else { 0 };
        let node = &mut state.nodes[at];
        (node.role, node.history, node.acked, node.counts) =
            (Role::Primary(epoch), epoch, [0; NODES], counts);
        state.offers[at] = None;
    }

    /// The sender knows what became of its change, and has read the map.
    fn settled(&self, state: &mut State, at: usize, cas: Cas, is_done: bool) {
        let role = state.nodes[at].role;
        if matches!(role, Role::Primary(epoch) if epoch < state.epoch) && !self.is(Mistake::CountsDeposed) {
            Promotion::step_down(&mut state.nodes[at]);
            return;
        }
        match (cas.change, role) {
            (Change::Promote(epoch), Role::Offered) if is_done => self.lead(state, at, epoch),
            (Change::Add(other, _), Role::Primary(_)) if is_done => self.count(state, at, other),
            (Change::Remove(other), Role::Primary(_)) if is_done => state.nodes[at].counts &= !(1 << other),
            (Change::Remove(other), Role::Primary(_)) => self.count(state, at, other),
            _ => {}
        }
    }

    /// WAIT counts it, if the process that follows is the eligible one.
    fn count(&self, state: &mut State, at: usize, other: u8) {
        let follower = usize::from(other);
        let is_same_run = state.eligible[follower] == Some(state.nodes[follower].run);
        if is_same_run || self.is(Mistake::CountsRestarted) || self.is(Mistake::CountsDeposed) {
            state.nodes[at].counts |= 1 << other;
            state.wait(at);
        }
    }
}

impl Model for Promotion {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let replica = Node {
            up: true,
            run: 0,
            log: Log::default(),
            history: 1,
            role: Role::Follower,
            follows: 1,
            ack: (1, 0),
            cas: None,
            acked: [0; NODES],
            counts: 0,
        };
        let primary = Node { role: Role::Primary(1), follows: 0, ack: (0, 0), counts: 0b110, ..replica };
        vec![State {
            revision: 1,
            epoch: 1,
            primary: 0,
            primary_run: 0,
            eligible: [None, Some(0), Some(0)],
            offers: [None; NODES],
            nodes: [primary, replica, replica],
            late: None,
            lease: self.is(Mistake::NoMap).then_some(0),
            written: 0,
            promised: 0,
            crashes: self.crashes,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, node) in state.nodes.iter().enumerate() {
            if !node.up {
                actions.extend([Action::Restart(at, true), Action::Restart(at, false)]);
                continue;
            }
            self.primary_actions(state, at, actions);
            self.replica_actions(state, at, actions);
            match node.cas {
                Some((_, Sent::UnderWay)) => {
                    actions.push(Action::Arrive(at));
                    actions.extend(state.late.is_none().then_some(Action::Lose(at)));
                }
                Some((_, Sent::Answered(_))) => actions.extend([Action::Answer(at), Action::Lose(at)]),
                Some((_, Sent::Unknown)) => actions.push(Action::Settle(at)),
                None => {}
            }
            // The replicas are alike, so one of them is enough.
            actions.extend((state.crashes > 0 && at < 2).then_some(Action::Crash(at)));
        }
        actions.extend(state.late.map(|_| Action::ArriveLate));
        actions.extend(state.lease.map(|_| Action::EndLease));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Write(_) | Action::Link(_) | Action::Replicate(_) | Action::TakeAck(_) => {
                self.data_step(&mut state, action);
            }
            Action::Offer(_) | Action::Withdraw(_) | Action::Promote(_) => self.role_step(&mut state, action),
            Action::StepDown(_) | Action::Crash(_) | Action::Restart(..) => {
                self.role_step(&mut state, action)
            }
            Action::EndLease => state.lease = None,
            _ => self.map_step(&mut state, action),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Promotion>> {
        vec![
            Property::always(LOST, |_: &Promotion, state: &State| {
                state.nodes.iter().all(|node| match node.role {
                    Role::Primary(epoch) if node.up && epoch >= state.epoch => {
                        state.promised & !node.log.set() == 0
                    }
                    _ => true,
                })
            }),
            Property::always("an epoch has one primary", |_, state: &State| {
                let of = |epoch| {
                    state.nodes.iter().filter(|node| node.up && node.role == Role::Primary(epoch)).count()
                };
                (1..=state.epoch).all(|epoch| of(epoch) <= 1)
            }),
            Property::sometimes("a replica leads, behind an acknowledged write", |model, state: &State| {
                state.promised.count_ones() == u32::from(model.writes)
                    && state.nodes[2].role == Role::Primary(state.epoch)
            }),
            Property::sometimes("the last promotion", |model: &Promotion, state: &State| {
                let last = model.max_epoch;
                state.promised > 0 && state.primary_of(last).is_some()
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.revision <= self.max_revision
    }
}

const LOST: &str = "the primary has every write that WAIT acknowledged";

fn model(mistake: Mistake, crashes: u8) -> Promotion {
    Promotion { mistake, crashes, max_epoch: 3, max_revision: 4, writes: if is_long() { 2 } else { 1 } }
}

#[test]
fn no_acknowledged_write_is_lost() {
    holds("promotion", model(Mistake::None, 0));
}

#[test]
fn no_acknowledged_write_is_lost_with_a_node_that_forgets() {
    let model = model(Mistake::None, 1);
    let max_epoch = if is_long() { 3 } else { 2 };
    holds("promotion, and a crash", Promotion { max_revision: 3, max_epoch, writes: 1, ..model });
}

#[test]
fn mistakes_about_promotion_are_caught() {
    for mistake in [
        Mistake::NoMap,
        Mistake::ConditionsBefore,
        Mistake::UnknownByReading,
        Mistake::OneOffer,
        Mistake::CountsAll,
        Mistake::CountsWhileRemoved,
        Mistake::RemovesHolder,
        Mistake::EligibleKept,
        Mistake::CountsDeposed,
        Mistake::StaleOffer,
        Mistake::WithdrawnApart,
    ] {
        is_caught(&format!("{mistake:?}"), LOST, model(mistake, 0));
    }
    for mistake in [Mistake::RestartedIsMember, Mistake::CountsRestarted] {
        is_caught(&format!("{mistake:?}"), LOST, model(mistake, 1));
    }
}
