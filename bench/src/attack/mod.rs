//! Attacks: requests of one client that keep a server busy for long.
//!
//! Each family of attacks is a file with a table of [`Attack`]s. An attack sets up its data on its own
//! server, and then strikes, in one of two styles:
//!
//! - **Repeat**: every attacker repeats its operation on its own connection for the seconds of the row.
//! - **Once**: destroyed data must be made again. A round refills, unwatched. Then all attackers strike at
//!   the same moment while the bystander watches, from a little before to some time after. Rounds follow
//!   until the seconds of the row are watched, or three times as many have passed.
//!
//! Sizes are those of the goals, multiplied by `scale`.

mod attacker;
mod batches;
mod bits;
mod crowds;
mod destroy;
mod door;
mod lists;
mod reads;
mod saves;
mod scripts;
mod types;
mod words;

pub use attacker::{Attacker, Shape, render};

use crate::report::count;
use crate::server::{Door, Server};
use std::any::Any;
use std::io;
use std::time::Duration;

/// The context of an attack.
pub struct Stage<'a> {
    pub server: &'a Server,
    pub scale: f64,
    pub attackers: usize,
}

impl Stage<'_> {
    /// `full` at this scale, at least 10.
    pub fn scaled(&self, full: u64) -> u64 {
        ((full as f64 * self.scale) as u64).max(10)
    }

    /// Elements of each attacker's own value when each destroys one: ten attackers have a fifth each.
    pub fn own_share(&self, full: u64) -> u64 {
        self.scaled(full) / if self.attackers > 1 { 5 } else { 1 }
    }
}

/// One operation of an attacker. Returns the time it took, without its preparation.
pub type Strike = Box<dyn FnMut(&mut Attacker) -> io::Result<Duration> + Send>;

/// Something that must live as long as an attack: connections, a thread.
pub type Guard = Box<dyn Any>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Repeat,
    /// With the time it is watched after the strike.
    Once(Duration),
}

#[derive(Clone, Copy)]
pub struct Attack {
    pub name: &'static str,
    /// A description; `{}` stands for `size` at scale.
    pub what: &'static str,
    pub size: u64,
    pub style: Style,
    /// Bytes of memory that the biggest server needs at full size: with one attacker, and for each further
    /// one.
    pub memory: (u64, u64),
    /// The entrance of the servers.
    pub door: Door,
    pub setup: fn(&Stage) -> io::Result<Guard>,
    /// Before each round of a `Once`.
    pub refill: fn(&Stage) -> io::Result<()>,
    /// Makes the operation of attacker `k`.
    pub strike: fn(&Stage, usize) -> io::Result<Strike>,
}

impl Attack {
    /// The description at this scale.
    pub fn describe(&self, stage: &Stage) -> String {
        let mut size = count(stage.scaled(self.size));
        if self.style != Style::Repeat && self.memory.1 > 0 && stage.attackers > 1 {
            size = format!("{} each", count(stage.own_share(self.size)));
        }
        self.what.replace("{}", &size)
    }

    /// Bytes of memory it needs here, roughly.
    pub fn needs(&self, stage: &Stage) -> u64 {
        let (first, further) = self.memory;
        ((first + further * (stage.attackers as u64 - 1)) as f64 * stage.scale) as u64
    }
}

const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(3);
const GIB: u64 = 1 << 30;

/// The common fields of most attacks.
const PLAIN: Attack = Attack {
    name: "",
    what: "",
    size: 0,
    style: Style::Repeat,
    memory: (GIB / 2, 0),
    door: Door::Plain,
    setup: |_| nothing(),
    refill: |_| Ok(()),
    strike: |_, _| Ok(Box::new(|_| Ok(Duration::ZERO))),
};

fn nothing() -> io::Result<Guard> {
    Ok(Box::new(()))
}

/// All attacks in the order of the report.
pub fn all() -> impl Iterator<Item = &'static Attack> {
    [
        scripts::ATTACKS,
        reads::ATTACKS,
        destroy::ATTACKS,
        batches::ATTACKS,
        lists::ATTACKS,
        bits::ATTACKS,
        crowds::ATTACKS,
        types::ATTACKS,
        saves::ATTACKS,
        door::ATTACKS,
        words::ATTACKS,
    ]
    .into_iter()
    .flatten()
}

/// Repeats a command whose reply is the same each time.
fn repeat(command: Vec<u8>) -> io::Result<Strike> {
    let mut shape = Shape::default();
    Ok(Box::new(move |attacker| attacker.exchange_known(&command, &mut shape)))
}

/// [`repeat`] of a command written as words.
fn repeat_words(line: &str) -> io::Result<Strike> {
    repeat(crate::wire::line(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn attacks_have_names_of_their_own() {
        let mut names = HashSet::new();
        for attack in all() {
            assert!(!attack.name.is_empty() && !attack.what.is_empty());
            assert!(names.insert(attack.name), "{} twice", attack.name);
        }
    }
}
