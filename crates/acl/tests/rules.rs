//! Rules, described users and files, as Redis 8 has them. The expected lines were watched there.

use acl::{Acl, Identity, RuleError, User};
use proptest::prelude::*;

fn apply(rules: &str) -> Result<User, String> {
    let mut user = User::new(b"u", false);
    let words = rules.split(' ').map(str::as_bytes);
    let merged = acl::merged(words).map_err(|word| format!("open {}", String::from_utf8_lossy(word)))?;
    for rule in merged {
        let shown = String::from_utf8_lossy(&rule).into_owned();
        user.apply(&rule, false).map_err(|error| format!("{shown}: {}", error.text()))?;
    }
    Ok(user)
}

fn line(user: &User) -> String {
    String::from_utf8(user.line()).unwrap()
}

#[test]
fn users_are_described_as_by_redis() {
    const A: &str = "#ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    const B: &str = "#3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d";
    for (rules, expect) in [
        ("", "off sanitize-payload resetchannels -@all"),
        ("ON", "on sanitize-payload resetchannels -@all"),
        ("on >a ~x", &format!("on sanitize-payload {A} ~x resetchannels -@all")),
        (">a >a >b", &format!("off sanitize-payload {A} {B} resetchannels -@all")),
        (">a <a", "off sanitize-payload resetchannels -@all"),
        (">a nopass", "off nopass sanitize-payload resetchannels -@all"),
        ("nopass >a", &format!("off sanitize-payload {A} resetchannels -@all")),
        ("skip-sanitize-payload", "off skip-sanitize-payload resetchannels -@all"),
        ("+@all -get +get", "off sanitize-payload resetchannels +@all +get"),
        ("+@read -get", "off sanitize-payload resetchannels -@all +@read -get"),
        ("+get +set -@read +get", "off sanitize-payload resetchannels -@all +set -@read +get"),
        ("+config|get +config", "off sanitize-payload resetchannels -@all +config"),
        ("+config|get -config", "off sanitize-payload resetchannels -@all -config"),
        (
            "+config -config|set -config|get",
            "off sanitize-payload resetchannels -@all +config -config|set -config|get",
        ),
        ("+select|0 +select|1", "off sanitize-payload resetchannels -@all +select|0 +select|1"),
        ("+select|0 +select", "off sanitize-payload resetchannels -@all +select"),
        ("+@READ +GET", "off sanitize-payload resetchannels -@all +@read +get"),
        ("+@read +@all", "off sanitize-payload resetchannels +@all"),
        ("+@read -@all", "off sanitize-payload resetchannels -@all"),
        ("%R~a %W~a", "off sanitize-payload ~a resetchannels -@all"),
        ("%R~a ~b %RW~c", "off sanitize-payload %R~a ~b ~c resetchannels -@all"),
        ("%r~a", "off sanitize-payload %R~a resetchannels -@all"),
        ("%R", "off sanitize-payload %R~ resetchannels -@all"),
        ("%RW~*", "off sanitize-payload %RW~* resetchannels -@all"),
        // It is a pattern like others; only ~* is all keys.
        ("%RW~* ~a", "off sanitize-payload %RW~* ~a resetchannels -@all"),
        ("%R~* ~a", "off sanitize-payload %R~* ~a resetchannels -@all"),
        ("~a ~*", "off sanitize-payload ~* resetchannels -@all"),
        ("&a &b", "off sanitize-payload resetchannels &a &b -@all"),
        ("&a &*", "off sanitize-payload &* -@all"),
        ("allkeys allcommands", "off sanitize-payload ~* resetchannels +@all"),
        ("()", "off sanitize-payload resetchannels -@all (resetchannels -@all)"),
        (
            "( ~a  +get ) (%R~b +@read &c)",
            "off sanitize-payload resetchannels -@all (~a resetchannels -@all +get) \
             (%R~b resetchannels &c -@all +@read)",
        ),
        ("(~* +@all) clearselectors", "off sanitize-payload resetchannels -@all"),
        ("db=1", "off sanitize-payload resetchannels db=1 -@all"),
        ("DB=3,1,3,+2,00", "off sanitize-payload resetchannels db=0,1,2,3 -@all"),
        ("db=1 db=2", "off sanitize-payload resetchannels db=2 -@all"),
        ("db=1 ALLDBS", "off sanitize-payload resetchannels -@all"),
        ("~a &b resetdbs", "off sanitize-payload ~a resetchannels &b resetdbs -@all"),
        ("db=99,2147483647,-0", "off sanitize-payload resetchannels db=0,99,2147483647 -@all"),
        (
            "db=1 (~a db=2 +get)",
            "off sanitize-payload resetchannels db=1 -@all (~a resetchannels db=2 -@all +get)",
        ),
        ("db=1 reset", "off sanitize-payload resetchannels -@all"),
        (">a ~x &y +@all (~a) reset", "off sanitize-payload resetchannels -@all"),
    ] {
        let user = apply(rules).unwrap_or_else(|error| panic!("{rules}: {error}"));
        assert_eq!(line(&user), format!("user u {expect}"), "{rules}");
    }
}

#[test]
fn wrong_rules_are_refused_and_change_nothing() {
    for (rule, expect) in [
        ("+CONFIG|GET|x", RuleError::FirstArgOfSub),
        ("+config|", RuleError::Syntax),
        ("+select|", RuleError::Syntax),
        ("+foo", RuleError::Unknown),
        ("-foo", RuleError::Unknown),
        ("-select|0", RuleError::Unknown),
        ("+@foo", RuleError::Unknown),
        ("+@", RuleError::Unknown),
        ("+config|nope", RuleError::Unknown),
        ("+@read|x", RuleError::Unknown),
        ("%", RuleError::Syntax),
        ("%~a", RuleError::Syntax),
        ("%RR~a", RuleError::Syntax),
        ("%X~a", RuleError::Syntax),
        ("~a\0b", RuleError::Syntax),
        ("&a\tb", RuleError::Syntax),
        ("#abc", RuleError::BadHash),
        ("!abc", RuleError::BadHash),
        ("<a", RuleError::NoSuchPassword),
        ("foo", RuleError::Syntax),
        ("(on)", RuleError::Syntax),
        ("(reset)", RuleError::Syntax),
        ("(~a) +get)", RuleError::Syntax),
        ("(", RuleError::Syntax),
        (")", RuleError::Syntax),
        ("db", RuleError::Syntax),
        ("db=", RuleError::Syntax),
        ("db=a", RuleError::Syntax),
        ("db=0,", RuleError::Syntax),
        ("db=,0", RuleError::Syntax),
        ("db=0,x,-1", RuleError::Syntax),
        ("db=0.5", RuleError::Syntax),
        ("db=1\x002", RuleError::Syntax),
        ("db!=0", RuleError::Syntax),
        ("db=-1", RuleError::Database),
        ("db=0,-1,x", RuleError::Database),
        ("db=2147483648", RuleError::Database),
        ("db=99999999999999999999", RuleError::Database),
        ("+", RuleError::Unknown),
        ("-", RuleError::Unknown),
    ] {
        let (mut user, before) = (User::new(b"u", false), User::new(b"u", false));
        assert_eq!(user.apply(rule.as_bytes(), false), Err(expect), "{rule}");
        assert_eq!(user, before, "{rule}");
    }
    assert!(apply("~* ~b").unwrap_err().contains("resetkeys"));
    assert!(apply("&* &b").unwrap_err().contains("resetchannels"));
}

#[test]
fn a_file_is_taken_whole_or_not_at_all() {
    let parse = |text: &str| acl::parse(text.as_bytes(), "f", false);
    let users =
        parse("user default on nopass ~* &* +@all\n\n  user a on >p (~a +get) ~x \r\nUSER b\n").unwrap();
    assert_eq!(users.len(), 3);
    assert_eq!(parse(std::str::from_utf8(&acl::written(&users)).unwrap()).unwrap(), users);
    for (text, expect) in [
        ("# no", "f:1 should start with user keyword followed by the username. "),
        ("\nuser", "f:2 should start with user keyword followed by the username. "),
        ("user a b c", "f:1: Syntax error. "),
        ("user a +foo", "f:1: Error in applying operation '+foo': Unknown command or category name in ACL. "),
        ("user a (~a", "f:1: Unmatched parenthesis in selector definition."),
        ("user a on\nuser a off", "WARNING: Duplicate user 'a' found on line 2. "),
        (
            "user a b\nuser c on\nxx",
            "f:1: Syntax error. f:3 should start with user keyword followed by the username. ",
        ),
    ] {
        let end = "WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
        assert_eq!(parse(text).unwrap_err(), format!("{expect}{end}"), "{text}");
    }
}

#[test]
fn a_session_sees_every_change_of_its_user() {
    let acl = Acl::default();
    let set = |name: &[u8], rules: &[&str]| {
        acl.update(name, false, |user| rules.iter().try_for_each(|rule| user.apply(rule.as_bytes(), false)))
    };
    set(b"u", &["on", ">p", "+@all", "~*", "&*"]).unwrap();
    assert!(acl.admits(b"u", b"q").is_none() && acl.admits(b"v", b"p").is_none());
    let mut session = Identity::of(acl.admits(b"u", b"p").unwrap());
    assert!(!session.is_free(&acl) && session.refresh(&acl, true) && session.is_free(&acl));
    // Not logged in, nobody is free.
    assert!(session.clone().refresh(&acl, false));
    assert!({
        let mut other = session.clone();
        other.refresh(&acl, false);
        !other.is_free(&acl)
    });
    set(b"u", &["-get"]).unwrap();
    assert!(!session.is_free(&acl) && session.refresh(&acl, true) && !session.is_free(&acl));
    assert!(set(b"u", &["+get", "nonsense"]).is_err());
    assert!(!session.user().is_powerful());
    // A later user of the same name is another one.
    assert!(acl.remove(b"u") && !acl.remove(b"u") && !acl.remove(b"default"));
    assert!(!session.refresh(&acl, true));
    set(b"u", &["on"]).unwrap();
    assert!(!session.refresh(&acl, true) && !session.is_free(&acl));
    // One that was off may go on, but not come in.
    set(b"u", &["nopass", "off"]).unwrap();
    assert!(acl.admits(b"u", b"p").is_none());
    // The file's users go on as the same.
    let mut session = Identity::of(acl.user(b"u").unwrap());
    acl.replace(acl::parse(b"user u on ~x\nuser w", "f", false).unwrap());
    assert!(session.refresh(&acl, true) && session.user().is_on());
    let names: Vec<_> = acl.all().iter().map(|user| user.name().to_vec()).collect();
    assert_eq!(names, [&b"default"[..], b"u", b"w"]);
    assert!(acl.is_open());
    acl.require(b"secret");
    assert!(!acl.is_open() && acl.admits(b"default", b"secret").is_some());
    acl.require(b"");
    assert!(acl.is_open());
}

fn rule() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["get", "SET", "config", "config|get", "select", "sort", "acl|log"]);
    let category =
        prop::sample::select(vec!["all", "read", "WRITE", "dangerous", "admin", "slow", "keyspace"]);
    let plain = prop::sample::select(vec![
        "on",
        "off",
        "nopass",
        "resetpass",
        "allkeys",
        "resetkeys",
        "allchannels",
        "resetchannels",
        "reset",
        "allcommands",
        "nocommands",
        "clearselectors",
        "skip-sanitize-payload",
        "sanitize-payload",
        "+select|0",
        "db=0",
        "DB=3,1,3",
        "db=,",
        "alldbs",
        "resetdbs",
        "+select|1",
        ">pw",
        "<pw",
        ">other",
        "",
    ]);
    prop_oneof![
        plain.prop_map(str::to_owned),
        (any::<bool>(), name).prop_map(|(plus, name)| format!("{}{name}", if plus { '+' } else { '-' })),
        (any::<bool>(), category).prop_map(|(plus, name)| format!("{}@{name}", if plus { '+' } else { '-' })),
        ("(~|%R~|%W~|%RW~|&)", "[a-c*?()#>]{0,4}").prop_map(|(mark, text)| format!("{mark}{text}")),
        "[-+%~&<>#!()@|a-z ]{0,6}",
    ]
}

fn selector() -> impl Strategy<Value = String> {
    prop::collection::vec(rule(), 0..5).prop_map(|rules| format!("({})", rules.join(" ")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A user's description makes the same user, from a line of a file and from single words (U2).
    #[test]
    fn described_users_are_the_same(rules in prop::collection::vec(prop_oneof![5 => rule(), 1 => selector()], 0..14)) {
        let mut user = User::new(b"u", false);
        for rule in &rules {
            let before = user.clone();
            if user.apply(rule.as_bytes(), false).is_err() {
                prop_assert_eq!(&user, &before);
            }
        }
        let text = [&user.line()[..], b"\n"].concat();
        let read = acl::parse(&text, "f", false);
        prop_assert_eq!(read.as_ref(), Ok(&vec![user.clone()]));
        // With all channels to begin with, the description still says which ones.
        let read = acl::parse(&text, "f", true).unwrap();
        prop_assert_eq!(read[0].line(), user.line());
    }

    /// No text makes the reader of files panic.
    #[test]
    fn any_text_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..300), head in any::<bool>()) {
        let text = if head { [b"user x ", &text[..]].concat() } else { text };
        if let Ok(users) = acl::parse(&text, "f", false) {
            prop_assert_eq!(acl::parse(&acl::written(&users), "f", false), Ok(users));
        }
    }
}
