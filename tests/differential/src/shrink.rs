//! From a failing stream to the few steps that matter.

use crate::runner::{Failure, Pair, Setting, run};
use crate::step::Step;
use std::time::{Duration, Instant};

/// Removes ever smaller pieces of `steps` for as long as the rest still fails, within a time limit. Any difference
/// counts: the first one found first tends to have a shorter cause.
pub fn shrink(
    pair: &mut Pair<'_>,
    setting: Setting,
    mut steps: Vec<Step>,
    mut failure: Failure,
) -> (Vec<Step>, Failure) {
    let deadline = Instant::now() + Duration::from_secs(20);
    steps.truncate(failure.at + 1);
    let mut piece = steps.len().div_ceil(2);
    while piece >= 1 {
        let mut from = 0;
        let mut removed = false;
        while from < steps.len() && Instant::now() < deadline {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + piece).min(steps.len()));
            match run(pair, setting, &fewer) {
                Ok(Some(found)) if !fewer.is_empty() => {
                    fewer.truncate(found.at + 1);
                    steps = fewer;
                    failure = found;
                    removed = true;
                }
                _ => from += piece,
            }
        }
        if Instant::now() >= deadline {
            break;
        }
        if !removed || piece > 1 {
            if piece == 1 {
                break;
            }
            piece = piece.div_ceil(2).min(piece - 1);
        }
    }
    (steps, failure)
}
