//! Arbitrary operations on every type. `make test` does a short seeded run; `fuzz/` runs the same checks as
//! long as wanted.

mod checks;

/// Streams of decisions. Some are random; some stay with one kind of operation for a while, so that values
/// grow.
fn run(check: fn(&[u8]), streams: u64) {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32
    };
    let streams = if cfg!(miri) { 2 } else { streams };
    for stream in 0..streams {
        let len = [60, 600, 3_000][stream as usize % 3];
        let favourite = random();
        let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        if stream % 2 == 0 {
            // Low bytes select few slots and sorts, and the operations that add.
            bytes
                .iter_mut()
                .filter(|byte| u64::from(**byte) % 4 == favourite % 4)
                .for_each(|byte| *byte %= 8);
        }
        let caught = std::panic::catch_unwind(|| check(&bytes));
        assert!(caught.is_ok(), "stream {stream}");
    }
}

#[test]
fn sets_agree_with_the_model() {
    run(checks::set, 120);
}

#[test]
fn hashes_agree_with_the_model() {
    run(checks::hash, 120);
}

#[test]
fn lists_agree_with_the_model() {
    run(checks::list, 120);
}

#[test]
fn sorted_sets_agree_with_the_model() {
    run(checks::zset, 120);
}

#[test]
fn strings_agree_with_the_model() {
    run(checks::str, 120);
}

#[test]
fn streams_agree_with_the_model() {
    run(checks::stream, 120);
}
