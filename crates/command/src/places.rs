//! A number for every command: the index of its counters, and the record of a client's last command.
//!
//! Rows are static, so the address of a row is its identity. A small open table maps addresses to numbers; a
//! look-up is one multiplication and mostly one probe.

use crate::registry;
use crate::table::Command;
use std::sync::LazyLock;

struct Places {
    commands: Vec<&'static Command>,
    /// Addresses and numbers: a power of two of slots, at most a quarter of them used. Address 0 is a free
    /// slot.
    slots: Vec<(usize, u32)>,
}

static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let commands: Vec<&'static Command> =
        registry::all().flat_map(|command| std::iter::once(command).chain(command.subs)).collect();
    let mut slots = vec![(0, 0); (commands.len() * 4).next_power_of_two()];
    for (number, command) in commands.iter().enumerate() {
        let mut slot = slot_of(command, slots.len());
        while slots[slot].0 != 0 {
            slot = (slot + 1) % slots.len();
        }
        slots[slot] = (address(command), number as u32);
    }
    Places { commands, slots }
});

fn address(command: &'static Command) -> usize {
    std::ptr::from_ref(command).addr()
}

fn slot_of(command: &'static Command, slots: usize) -> usize {
    (address(command).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - slots.trailing_zeros())) % slots
}

/// All commands and subcommands, by number. A container comes before its subcommands.
pub fn all() -> &'static [&'static Command] {
    &PLACES.commands
}

/// The number of a command of the registry. Cost: O(1), a few ns.
#[inline]
pub fn of(command: &'static Command) -> usize {
    let slots = &PLACES.slots[..];
    let mut slot = slot_of(command, slots.len());
    loop {
        match slots[slot] {
            (at, number) if at == address(command) => return number as usize,
            (0, _) => return 0,
            _ => slot = (slot + 1) % slots.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_own_number() {
        assert!(all().len() > registry::count());
        for (number, command) in all().iter().enumerate() {
            assert_eq!(of(command), number, "{}", command.name);
        }
    }
}
