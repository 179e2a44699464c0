//! The rules of the cluster mode in every order of their steps: who may answer (`fence`), who may become
//! primary (`promotion`), and how slots change their owner (`moves`).
//!
//! The models play the rules; they hold no code of the server. Each model passes with the rules as they are,
//! and fails with any one of its [mistakes](fence::Mistake), or it would prove nothing. A process that is
//! stopped for a while needs no step of its own: it is one that takes no step while others do.
//!
//! `EVENKEEL_MODEL=1` checks larger bounds, for minutes.

mod fence;
mod moves;
mod promotion;

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

/// Bounds beyond those of `make test` are asked for.
fn is_long() -> bool {
    std::env::var_os("EVENKEEL_MODEL").is_some()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Every state that can be reached keeps what `properties` say, and each that should be reached is reached.
fn holds<M>(what: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let checker =
        model.checker().threads(cores()).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{what}: {} states, {:?}", checker.unique_state_count(), began.elapsed());
    checker.assert_properties();
}

/// The shortest run to a state that breaks `property` exists.
fn is_caught<M>(what: &str, property: &'static str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let finds = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().threads(cores()).finish_when(finds).spawn_bfs().join();
    let (states, found) = (checker.unique_state_count(), checker.discovery(property));
    println!("{what}: {states} states, {:?}", began.elapsed());
    let path = found.unwrap_or_else(|| panic!("{what} is not caught in {states} states"));
    println!("  {:?}", path.into_actions());
}
