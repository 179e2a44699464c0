use crate::testing::{Db, render};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn inputs() -> Db {
    let mut db = Db::new();
    db.check(&[
        ("zadd z 1 a 2 b 3 c", "3"),
        ("zadd y 10 a 20 b 30 q", "3"),
        ("sadd s a b 3", "3"),
        ("set str v", "OK"),
    ]);
    db.events();
    db
}

#[test]
fn scores_are_weighted_and_combined() {
    inputs().check(&[
        ("zunion 2 z y withscores", r#"["c", "3", "a", "11", "b", "22", "q", "30"]"#),
        (
            "zunion 3 z y s weights 1 2 3 withscores",
            r#"["3", "3", "c", "3", "a", "24", "b", "45", "q", "60"]"#,
        ),
        ("zunion 2 z y aggregate max withscores", r#"["c", "3", "a", "10", "b", "20", "q", "30"]"#),
        ("zinter 2 z y aggregate min withscores", r#"["a", "1", "b", "2"]"#),
        ("zinter 3 z y s withscores", r#"["a", "12", "b", "23"]"#),
        ("zinter 2 z nope", "[]"),
        ("zdiff 2 z y withscores", r#"["c", "3"]"#),
        ("zdiff 2 s y withscores", r#"["3", "1"]"#),
        ("zdiff 2 z z", "[]"),
        ("zdiff 2 nope z", "[]"),
        ("zunion 1 s withscores", r#"["3", "1", "a", "1", "b", "1"]"#),
        ("zunion 2 nope z", r#"["a", "b", "c"]"#),
        ("zinter 2 z z withscores", r#"["a", "2", "b", "4", "c", "6"]"#),
        ("zintercard 2 z y", "2"),
        ("zintercard 2 z y limit 1", "1"),
        ("zintercard 1 z limit 2", "2"),
        ("zintercard 2 z y limit 1 limit 0", "2"),
    ]);
}

#[test]
fn infinities_that_cancel_out_give_zero() {
    let mut db = Db::new();
    db.check(&[
        ("zadd p inf a", "1"),
        ("zadd n -inf a", "1"),
        ("zunion 2 p n withscores", r#"["a", "0"]"#),
        ("zinter 2 p n withscores", r#"["a", "0"]"#),
        ("zinter 2 p n weights 1 0 aggregate min withscores", r#"["a", "inf"]"#),
        ("zinter 2 p n weights 0 1 aggregate max withscores", r#"["a", "0"]"#),
        ("zadd z 0 a 1 b", "2"),
        ("zunion 1 z weights -1 withscores", r#"["b", "-1", "a", "-0"]"#),
        ("zunionstore d 1 z weights -1", "2"),
        ("zscore d a", "\"0\""),
    ]);
}

#[test]
fn scores_are_pairs_in_resp3() {
    inputs().resp3().check(&[
        ("zinter 2 z y withscores", r#"[["a", 11], ["b", 22]]"#),
        ("zunion 1 z withscores", r#"[["a", 1], ["b", 2], ["c", 3]]"#),
        ("zdiff 2 z y", r#"["c"]"#),
    ]);
}

#[test]
fn mistakes_are_told_in_redis_order() {
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    inputs().check(&[
        ("zunion 0 z", "-ERR at least 1 input key is needed for 'zunion' command"),
        ("zdiffstore d 0 z", "-ERR at least 1 input key is needed for 'zdiffstore' command"),
        ("zintercard 0 z", "-ERR at least 1 input key is needed for 'zintercard' command"),
        ("zunion x z", "-ERR value is not an integer or out of range"),
        ("zunion 2 str", "-ERR syntax error"),
        ("zunion 1 str junk", wrong),
        ("zinter 2 nope str", wrong),
        ("zunion 1 z weights x", "-ERR weight value is not a float"),
        ("zunion 1 z weights nan junk", "-ERR weight value is not a float"),
        ("zunion 1 z weights", "-ERR syntax error"),
        ("zunion 2 z y weights 1", "-ERR syntax error"),
        ("zunion 1 z aggregate x", "-ERR syntax error"),
        ("zdiff 1 z weights 1", "-ERR syntax error"),
        ("zdiff 1 z aggregate sum", "-ERR syntax error"),
        ("zunionstore d 1 z withscores", "-ERR syntax error"),
        ("zintercard 1 z withscores", "-ERR syntax error"),
        ("zintercard 1 str limit x", wrong),
        ("zintercard 1 z limit -1", "-ERR LIMIT can't be negative"),
        ("zintercard 1 z limit x", "-ERR LIMIT can't be negative"),
        ("zintercard 1 z limit", "-ERR syntax error"),
    ]);
}

#[test]
fn results_replace_what_was_there_or_remove_it() {
    Db::both(|mut db| {
        db.check(&[("zadd z 1 a 2 b", "2"), ("zadd y 5 b", "1"), ("set d v", "OK")]);
        db.events();
        db.check(&[
            ("zunionstore d 2 z y", "2"),
            ("zrange d 0 -1 withscores", r#"["a", "1", "b", "7"]"#),
            ("zinterstore y 2 z y weights 2 1", "1"),
            ("zscore y b", "\"9\""),
            ("zdiffstore d 2 z y", "1"),
            ("zinterstore d 2 z nope", "0"),
            ("zinterstore d 2 z nope", "0"),
            ("exists d", "0"),
            ("zunionstore z 1 z", "2"),
        ]);
        let mut events = db.events();
        events.retain(|event| !event.starts_with("keymiss"));
        assert_eq!(events, ["zunionstore:d", "zinterstore:y", "zdiffstore:d", "del:d", "zunionstore:z"]);
    });
}

#[test]
fn a_large_copy_shares_and_large_results_stream() {
    let mut db = Db::new();
    for i in 0..1000 {
        db.run(&["zadd", "z", &i.to_string(), &format!("m{i}")]);
        db.run(&["sadd", "s", &i.to_string()]);
    }
    db.check(&[("zunionstore d 2 z nope", "1000"), ("zrem d m0", "1"), ("zcard z", "1000")]);
    assert_eq!(db.call(&["zunion", "1", "z"]).elements().map(<[_]>::len), Some(1000));
    assert!(db.streamed);
    let reply = db.call(&["zunion", "2", "z", "s", "withscores"]);
    assert!(db.streamed);
    assert_eq!(reply.elements().map(<[_]>::len), Some(4000));
    let reply = db.line("zinter 2 z d withscores");
    assert!(db.streamed && reply.starts_with(r#"["m1", "2", "m2", "4", "#));
    assert!(db.cost(&["zunion", "2", "z", "s"]) > 2000);
    db.steps = 100;
    assert!(db.line("zunion 2 z s").starts_with("-ERR internal"), "the work is charged");
}

/// Sets as maps, computed in the plainest way.
type Model = BTreeMap<String, f64>;

fn shown(model: &Model) -> String {
    let mut items: Vec<_> = model.iter().collect();
    items.sort_by(|a, b| a.1.total_cmp(b.1).then(a.0.cmp(b.0)));
    let items: Vec<_> = items.iter().map(|(member, score)| format!("\"{member}\", \"{score}\"")).collect();
    format!("[{}]", items.join(", "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn results_are_those_of_plain_maps(
        inputs in prop::collection::vec((any::<bool>(), prop::collection::vec((0..40u32, -20..20i32), 0..60)), 1..5),
        weights in prop::collection::vec(1..4i32, 5),
    ) {
        let mut db = Db::new();
        let mut models: Vec<Model> = Vec::new();
        for (i, (plain, members)) in inputs.iter().enumerate() {
            let mut model = Model::new();
            for (member, score) in members {
                let (key, member, score) = (format!("k{i}"), format!("{member}"), score.to_string());
                if *plain {
                    db.run(&["sadd", &key, &member]);
                    model.insert(member, 1.0);
                } else {
                    db.run(&["zadd", &key, &score, &member]);
                    model.insert(member, score.parse().expect("a number"));
                }
            }
            models.push(model);
        }
        let count = models.len().to_string();
        let keys: Vec<_> = (0..models.len()).map(|i| format!("k{i}")).collect();
        let mut run = |name: &str, weighted: bool| {
            let mut words = vec![name.to_owned(), count.clone()];
            words.extend(keys.iter().cloned());
            if weighted {
                words.push("weights".into());
                words.extend(weights.iter().take(keys.len()).map(i32::to_string));
            }
            words.push("withscores".into());
            render(&db.call(&words))
        };
        let (mut union, mut inter, mut diff) = (Model::new(), Model::new(), models[0].clone());
        for (model, weight) in models.iter().zip(&weights) {
            for (member, score) in model {
                *union.entry(member.clone()).or_insert(0.0) += score * f64::from(*weight);
            }
        }
        for (member, score) in &union {
            if models.iter().all(|model| model.contains_key(member)) {
                inter.insert(member.clone(), *score);
            }
        }
        diff.retain(|member, _| !models[1..].iter().any(|model| model.contains_key(member)));
        prop_assert_eq!(run("zunion", true), shown(&union));
        prop_assert_eq!(run("zinter", true), shown(&inter));
        prop_assert_eq!(run("zdiff", false), shown(&diff));
    }
}
