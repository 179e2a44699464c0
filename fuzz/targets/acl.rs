//! Files of users, and rules. Whatever is read is written and read again as the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(users) = acl::parse(data, "f", false) {
        assert_eq!(acl::parse(&acl::written(&users), "f", false).as_ref(), Ok(&users));
    }
    let mut user = acl::User::new(b"u", false);
    for rule in data.split(|byte| *byte == b'\n') {
        let before = user.clone();
        if user.apply(rule, false).is_err() {
            assert_eq!(user, before);
        }
    }
    let line = user.line();
    assert_eq!(acl::parse(&line, "f", false).as_ref().map(Vec::as_slice), Ok(&[user][..]));
});
