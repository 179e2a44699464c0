//! Requests as client libraries write them: an array of bulks, the command's name first.

use crate::Reply;

/// Appends a request. O(bytes).
pub fn put_request<A: AsRef<[u8]>>(out: &mut Vec<u8>, words: &[A]) {
    append(out, |request| {
        request.array(words.len());
        words.iter().for_each(|word| request.bulk(word.as_ref()));
    });
}

/// Begins a request of `words` words, each of which [`put_word`] then appends. O(1).
pub fn put_count(out: &mut Vec<u8>, words: usize) {
    append(out, |request| request.array(words));
}

/// Appends one word of a request. O(bytes).
pub fn put_word(out: &mut Vec<u8>, word: &[u8]) {
    append(out, |request| request.bulk(word));
}

fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Reply)) {
    let mut request = Reply::with_buffer(std::mem::take(out), false);
    write(&mut request);
    *out = request.into_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_an_array_of_bulks() {
        let wire = b"+before\r\n*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000010\r\n";
        let mut out = b"+before\r\n".to_vec();
        put_request(&mut out, &["GET", "key:000000000010"]);
        assert_eq!(out, wire);
        out.truncate(9);
        put_count(&mut out, 2);
        [&b"GET"[..], b"key:000000000010"].iter().for_each(|word| put_word(&mut out, word));
        assert_eq!(out, wire);
    }
}
