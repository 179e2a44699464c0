//! Checks that must hold for any bytes. `tests/hostile.rs` and `fuzz/` call them.

use http::json::{Maps, Tree};
use http::words::Part;
use http::{Parsed, request, words};

/// The requests in `bytes`, fed in pieces of `step` bytes, and whether they end in a refusal.
pub fn requests(bytes: &[u8], step: usize) -> (Vec<String>, bool) {
    let (mut found, mut from, mut looked, mut here) = (Vec::new(), 0, 0, 0);
    loop {
        match request::parse(&bytes[from..here], &mut looked) {
            Parsed::Request(request, used) => {
                let (cookie, foreign) =
                    (request.browser.cookie_of(b"evenkeel"), request.browser.is_foreign(request.host));
                found.push(format!("{request:?} {cookie:?} {foreign}"));
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
    body(bytes);
    reply(bytes, step);
}

/// The words of a body are the same, in whatever list they are sent again.
fn body(bytes: &[u8]) {
    let (mut again, mut words, mut seen) = (b"[[".to_vec(), Vec::new(), Vec::new());
    let read = words::commands(bytes, &mut Vec::new(), |part| {
        if let Part::Word(word) = part {
            again.extend_from_slice(if words.is_empty() { b"{\"b64\":\"" } else { b",{\"b64\":\"" });
            words::encode(word, &mut again);
            again.extend_from_slice(b"\"}");
            words.push(word.to_vec());
        }
    });
    again.extend_from_slice(b"]]");
    if read.is_ok() && !words.is_empty() {
        let count = words::commands(&again, &mut Vec::new(), |part| {
            if let Part::Word(word) = part {
                seen.push(word.to_vec());
            }
        });
        assert_eq!((count, seen), (Ok(1), words));
    }
    let _ = words::fields(bytes, &mut Vec::new(), |_, _| {});
}

/// The JSON of a reply does not depend on its pieces.
fn reply(bytes: &[u8], step: usize) {
    let json = |step: usize| {
        let (mut tree, mut out) = (Tree::new(Maps::Pairs), Vec::new());
        let whole =
            bytes.chunks(step).try_for_each(|piece| tree.feed(piece, &mut out)).is_ok() && tree.is_done();
        whole.then_some(out)
    };
    assert_eq!(json(bytes.len().max(1)), json(step));
}
