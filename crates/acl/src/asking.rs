//! A check of many or long words, which goes on between slices.

use crate::check::{Call, Check, Denied};
use crate::user::User;
use command::{Command, facts, keys};
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

/// A check of the calls of a transaction, which goes on between slices.
pub struct AskingAgain {
    user: Arc<User>,
    /// The database of the next call, and how many calls are allowed.
    db: usize,
    next: usize,
    asking: Option<Box<Asking>>,
}

impl AskingAgain {
    /// The check that `begun` keeps, or one that begins in a database, if it was another user, as it is now.
    pub fn of<'b>(begun: &'b mut Option<AskingAgain>, user: &Arc<User>, db: usize) -> &'b mut AskingAgain {
        let known = begun.take().filter(|again| Arc::ptr_eq(&again.user, user));
        begun.insert(known.unwrap_or_else(|| AskingAgain { user: user.clone(), db, next: 0, asking: None }))
    }

    /// Asks for some more calls: of all that there are, which are the same each time. None: there is more to
    /// ask. An error names the call that is denied. O(calls + a slice).
    pub fn advance<'a>(
        &mut self,
        calls: impl Iterator<Item = (&'static Command, Args<'a>)>,
        databases: usize,
    ) -> Option<Result<(), (&'static Command, Args<'a>, Denied)>> {
        let mut looks = 0;
        for (command, args) in calls.skip(self.next) {
            if looks > SHORT {
                return None;
            }
            looks += args.wire_bytes_max().saturating_mul(self.user.patterns().max(1));
            let call = Call { command, args, db: self.db, databases };
            if let Err(denied) = Asking::advance(&mut self.asking, &self.user, call, false)? {
                return Some(Err((command, args, denied)));
            }
            if command.is(facts::SELECTS) {
                self.db =
                    args.get(1).and_then(|word| keys::database(databases, word).ok()).unwrap_or(self.db);
            }
            (self.asking, self.next) = (None, self.next + 1);
        }
        Some(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::OwnedArgs;

    /// One key of a transaction stands beside thousands of patterns: it is asked for in many slices, and what
    /// is denied is the same as in one go.
    #[test]
    fn a_transaction_is_asked_for_in_slices() {
        let mut user = User::new(b"u", false);
        let rules: Vec<String> = (0..3_000).map(|i| format!("~{}{i}", "a*".repeat(5))).collect();
        let more = ["on", "+@all", "~fine*"].map(str::to_owned);
        for rule in rules.iter().chain(&more) {
            if let Ok(rules) = crate::merged(std::iter::once(rule.as_bytes())) {
                rules.iter().for_each(|rule| _ = user.apply(rule, false));
            }
        }
        let user = Arc::new(user);
        let long = "a".repeat(500);
        let calls = |last: &str| {
            let lines = [["set", "fine", "1"], ["select", "0", ""], ["set", &long, "1"], ["set", last, "1"]];
            lines.map(|words| {
                let words: Vec<&[u8]> =
                    words.iter().filter(|word| !word.is_empty()).map(|word| word.as_bytes()).collect();
                (command::registry::find(words[0]).expect("a command"), OwnedArgs::from_slices(&words))
            })
        };
        let refused = calls("fine 2");
        let (mut begun, mut slices) = (None, 1);
        let result = loop {
            let all = refused.iter().map(|(command, args)| (*command, args.args()));
            match AskingAgain::of(&mut begun, &user, 0).advance(all, 16) {
                None => slices += 1,
                Some(result) => {
                    break result.map_err(|(command, args, denied)| (command.name, args.at(1).len(), denied));
                }
            }
        };
        assert_eq!(result, Err(("set", 500, Denied::Key(1))));
        assert!(slices > 2, "{slices}");
        let fine = calls("fine");
        let mut begun = None;
        let allowed = loop {
            let few = fine.iter().take(2).map(|(command, args)| (*command, args.args()));
            if let Some(result) = AskingAgain::of(&mut begun, &user, 0).advance(few, 16) {
                break result.is_ok();
            }
        };
        assert!(allowed);
    }
}
