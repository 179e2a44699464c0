//! Checks that must hold for any bytes. `tests/hostile.rs` and `fuzz/` call them.

use http::{Parsed, request};

/// The requests in `bytes`, fed in pieces of `step` bytes, and whether they end in a refusal.
pub fn requests(bytes: &[u8], step: usize) -> (Vec<String>, bool) {
    let (mut found, mut from, mut looked, mut here) = (Vec::new(), 0, 0, 0);
    loop {
        match request::parse(&bytes[from..here], &mut looked) {
            Parsed::Request(request, used) => {
                found.push(format!("{request:?}"));
                from += used + (request.body as usize).min(bytes.len() - from - used);
                here = here.max(from);
            }
            Parsed::More if here == bytes.len() => return (found, false),
            Parsed::More => here = (here + step).min(bytes.len()),
            Parsed::Refused(_) => return (found, true),
        }
    }
}

/// The pieces in which bytes come do not change the requests. The first byte is the size of the pieces.
pub fn stream(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    let step = usize::from(*step).max(1);
    assert_eq!(requests(bytes, bytes.len().max(1)), requests(bytes, step));
}
