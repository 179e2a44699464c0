//! Shortens a failing stream to the few steps that matter.

use crate::runner::{Failure, Pair, Setting, run};
use crate::step::{Action, Check, Step};
use std::time::{Duration, Instant};

/// Removes ever smaller pieces of `steps` as long as the rest still fails, within a time limit. Any
/// difference counts: the first one found tends to have a shorter cause.
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
            let end = (from + piece).min(steps.len());
            let mut fewer = steps[..from].to_vec();
            // Without its waits a stream would race with keys about to expire.
            fewer.extend(steps[from..end].iter().filter(|step| is_wait(step)).cloned());
            fewer.extend_from_slice(&steps[end..]);
            let tried = fewer.len() < steps.len() && is_sound(&fewer);
            match if tried { run(pair, setting, &fewer) } else { Ok(None) } {
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

fn is_wait(step: &Step) -> bool {
    matches!(step.action, Action::SleepMs(_))
}

/// Whether every reply that is compared with an earlier one still follows it.
fn is_sound(steps: &[Step]) -> bool {
    let before = |at: usize| at.checked_sub(1).map(|at| steps[at].check);
    steps.iter().enumerate().all(|(at, step)| match step.check {
        Check::Sample => before(at) == Some(Check::Probe),
        Check::Remaining => before(at) == Some(Check::Sample),
        _ => true,
    })
}
