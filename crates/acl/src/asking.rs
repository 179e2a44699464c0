//! A check of many or long words, which goes on between slices.

use crate::check::{Call, Check, Denied};
use crate::user::User;
use command::Command;
use resp::Args;
use std::sync::Arc;

/// Words of a call that are asked for in one slice, times the patterns of the user; a word counts once more for
/// each [`LONG`] bytes of the longest.
const STEPS: usize = 4096;
const LONG: usize = 64;
/// Bytes of a call, times the patterns of the user, up to which it is asked for in one go.
const SHORT: usize = 64 * 1024;
/// Words up to which the longest is looked for; of more words, their mean counts.
const WORDS_MEASURED: usize = 10_000;
/// A check that goes on in the next slice: of this user, and of this call.
pub struct Asking {
    check: Check,
    user: Arc<User>,
    call: (&'static Command, usize),
    /// Words per slice.
    slice: usize,
    /// The call is allowed. It counts while the command itself goes on in slices.
    is_over: bool,
}

impl Asking {
    /// Words of a call up to which it is asked for in one go, unless they are long.
    const FEW: usize = 100;

    /// Whether a call is so short that it is asked for in one go. O(1)
    pub fn is_short(user: &User, args: Args<'_>) -> bool {
        args.len() <= Asking::FEW && args.wire_bytes_max().saturating_mul(user.patterns()) <= SHORT
    }

    /// Asks for a slice of a call; `begun` keeps what it comes to. `goes_on`: the command itself has done some
    /// of its words already. None: there is more to ask. O(slice).
    pub fn advance(
        begun: &mut Option<Box<Asking>>,
        user: &Arc<User>,
        call: Call<'_>,
        goes_on: bool,
    ) -> Option<Result<(), Denied>> {
        let known = begun.take().filter(|asking| asking.is_of(user, &call));
        let known = known.filter(|asking| asking.is_over == goes_on);
        let mut asking = known.unwrap_or_else(|| Box::new(Asking::new(user, &call)));
        let result = match asking.is_over {
            true => Some(Ok(())),
            false => asking.check.advance(user, call, asking.slice),
        };
        asking.is_over = result == Some(Ok(()));
        if result.is_none() || asking.is_over {
            *begun = Some(asking);
        }
        result
    }

    fn new(user: &Arc<User>, &Call { command, args, .. }: &Call<'_>) -> Asking {
        let longest = match args.len() {
            0..=WORDS_MEASURED => args.iter().map(<[u8]>::len).max().unwrap_or(0),
            count => args.bytes() / count,
        };
        let steps = user.patterns().max(1) * (1 + longest / LONG);
        let (call, slice) = ((command, args.len()), (STEPS / steps).max(1));
        Asking { check: Check::default(), user: user.clone(), call, slice, is_over: false }
    }

    fn is_of(&self, user: &Arc<User>, call: &Call<'_>) -> bool {
        let is_same = std::ptr::eq(self.call.0, call.command) && self.call.1 == call.args.len();
        Arc::ptr_eq(&self.user, user) && is_same
    }
}
