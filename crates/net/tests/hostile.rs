//! Hostile bytes behind, within and instead of a handshake of TLS.

mod checks;

use proptest::prelude::*;
use std::path::Path;

/// Steps that damage nothing: their numbers stand before those of damage.
fn sound() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((0u8..4, any::<u8>()), 0..8).prop_map(|steps| {
        // The last of these steps has no operand.
        steps
            .iter()
            .flat_map(|&(step, operand)| [step, operand].into_iter().take(if step < 3 { 2 } else { 1 }))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_is_whole_is_answered_and_nothing_behind_damage(
        version in prop::sample::select(vec![2u8, 6]),
        mut steps in sound(),
        damage in 4u8..9,
        operands in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        steps.insert(0, version);
        steps.push(damage);
        steps.extend(operands);
        checks::records(&steps);
    }

    #[test]
    fn a_damaged_greeting_ends(version in prop::sample::select(vec![1u8, 5]), changes in prop::collection::vec(any::<u8>(), 0..8)) {
        let mut data = changes;
        data.insert(0, version);
        checks::records(&data);
    }

    #[test]
    fn bytes_that_are_no_tls_end(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        bytes.insert(0, 0);
        checks::records(&bytes);
    }
}

#[test]
fn seeds_hold() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tls_records");
    let mut seen = 0;
    for file in std::fs::read_dir(seeds).expect("seeds") {
        checks::records(&std::fs::read(file.expect("a file").path()).expect("bytes"));
        seen += 1;
    }
    assert!(seen >= 5, "{seen} seeds");
}
