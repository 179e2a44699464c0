//! KEYS, SCAN, RANDOMKEY: the keyspace as a whole.

use crate::facts;
use crate::options::{ScanOptions, Walk, cursor};
use crate::table::*;
use crate::{Cx, Error};
use resp::{Args, Reply};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("keys", 2, Run::Whole(keys), READONLY, acl::KEYSPACE | acl::DANGEROUS)
        .facts(facts::TOUR)
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"])
        .doc("generic", "1.0.0", "O(N) for N keys, in slices.", "Lists the keys that match a pattern."),
    Command::new("scan", -2, Run::Whole(scan), READONLY, acl::KEYSPACE)
        .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
        .doc(
            "generic",
            "2.8.0",
            "O(1) per call, O(N) for a whole walk.",
            "Walks through the keys by a cursor.",
        ),
    Command::new("randomkey", 1, Run::Whole(randomkey), READONLY, acl::KEYSPACE)
        .tips(&["request_policy:all_shards", "response_policy:special", "nondeterministic_output"])
        .doc("generic", "1.0.0", "O(1)", "Names any one of the keys."),
];

/// `KEYS pattern` inside MULTI or a script: the matching keys. Outside, `exec` answers it in slices.
///
/// Cost: O(n · p), n = keys, p = the cost of a match. Errors: none.
fn keys(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let pattern = args.at(1);
    let (mark, mut count, mut cursor) = (cx.out.mark(), 0, 0);
    let mut walk = Walk::of((*pattern != *b"*").then_some(pattern), &mut cx.budget);
    loop {
        let out = &mut *cx.out;
        cursor = cx.view.scan(cursor, 1000, &mut |key, _| {
            if walk.takes(key) {
                out.bulk(key);
                count += 1;
            }
        });
        if cursor == 0 {
            break;
        }
    }
    walk.end()?;
    cx.out.array_at(mark, count);
    Ok(())
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`: `[cursor, keys]`. A key that exists from the
/// first call to the last is answered at least once.
///
/// Cost: O(keys visited). Errors: bad cursor, syntax, COUNT not an integer.
fn scan(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let cursor = cursor(args.at(1))?;
    let options = ScanOptions::parse(args.from(2), &["type"])?;
    let mut found = Reply::new(false);
    let mut count = 0;
    // A large COUNT is limited here, and the caller asks again. `exec` answers it in slices.
    let mut walk = options.walk(&mut cx.budget);
    let next = cx.view.scan(cursor, options.count.min(1_000), &mut |key, of| {
        if walk.takes(key) && options.wants(of) {
            found.bulk(key);
            count += 1;
        }
    });
    walk.end()?;
    cx.out.array(2);
    cx.out.bulk(next.to_string().as_bytes());
    cx.out.array(count);
    cx.out.encoded(found.as_bytes());
    Ok(())
}

/// `RANDOMKEY`: any key, or null.
///
/// Cost: O(1). Errors: none.
fn randomkey(cx: &mut Cx<'_, '_>, _: Args<'_>) -> Result<(), Error> {
    let random = cx.random();
    let key = cx.view.random_key(random);
    cx.out.bulk_or_null(key.as_deref());
    Ok(())
}
