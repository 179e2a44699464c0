//! Users, and what each of them may do.
//!
//! ```text
//! rules ──apply──► User ── a root selector, further selectors ──► may(row, words)?
//!                   ▲                                               ▲
//! aclfile, `user` lines, ACL SETUSER          Identity: a session's user, refreshed when users change
//! ```
//!
//! - U1: a user is never changed in place. [`Acl`] replaces it, and a session sees that by one number, the
//!   generation.
//! - U2: rights are rules in the order they were given; a user's description, applied to a new user, gives the
//!   same user.
//! - U3: one selector must allow a whole call: its command, all its keys, channels and databases.
//! - U4: passwords are kept as SHA-256 only, and compared in constant time unless a user has hundreds.
//! - U5: a check of a call with many words is done in slices ([`Check`]).
//!
//! Cost: a session of a user who may do everything pays one load and one comparison per command. All others
//! pay O(keys · patterns).

#![forbid(unsafe_code)]

mod answer;
mod asking;
mod check;
mod file;
mod listed;
mod log;
mod password;
mod rules;
mod selector;
mod setting;
mod state;
mod user;

pub use answer::{HELP, NO_FILE, show_log};
pub use asking::{Asking, AskingAgain};
pub use check::{Call, Check, Denied};
pub use file::{parse, written};
pub use log::{Context, Entry, Log, Reason};
pub use password::generate;
pub use rules::{RuleError, merged};
pub use selector::by_full_name;
pub use setting::Setting;
pub use state::{Acl, Identity};
pub use user::{DEFAULT, User, is_name};
