//! Pictures beside this file: `EVENKEEL_WRITE_DOCS=1 cargo test -p top` writes them.

use super::*;
use crate::poll::{Ask, News, Order};
use crate::samples::{clients, commands, evenkeel, info, model, redis, refused, slow};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

fn buffer(model: &Model, ui: &Ui, (width, height): (u16, u16), has_colours: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, model, ui, Look { has_colours })).expect("drawn");
    terminal.backend().buffer().clone()
}

fn picture(model: &Model, ui: &Ui, size: (u16, u16)) -> String {
    let buffer = buffer(model, ui, size, true);
    let lines = (0..size.1).map(|y| {
        let line: String = (0..size.0).map(|x| buffer[(x, y)].symbol()).collect();
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn compare(name: &str, drawn: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/draw").join(name);
    if std::env::var_os("EVENKEEL_WRITE_DOCS").is_some() {
        std::fs::write(&path, drawn).expect("written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == drawn, "{name} is otherwise:\n{drawn}");
}

fn press(ui: &mut Ui, model: &mut Model, keys: &[KeyCode]) -> Option<Order> {
    keys.iter().filter_map(|key| ui.press(KeyEvent::new(*key, KeyModifiers::NONE), model)).last()
}

fn at(view: View) -> Ui {
    let mut ui = Ui::default();
    ui.view = view;
    ui
}

fn typed(text: &str) -> Vec<KeyCode> {
    text.chars().map(KeyCode::Char).collect()
}

#[test]
fn pictures_are_as_they_were() {
    let (evenkeel, redis) = (evenkeel(b"billing-export", "billing-export"), redis());
    let mut ui = Ui::default();
    let small = picture(&evenkeel, &ui, (80, 24));
    compare("evenkeel-80x24.txt", &small);
    let page = include_str!("../../../../docs/top.md");
    assert!(page.contains(&small), "docs/top.md shows another picture");
    compare("evenkeel-120x40.txt", &picture(&evenkeel, &ui, (120, 40)));
    compare("redis-80x24.txt", &picture(&redis, &ui, (80, 24)));
    ui.view = View::Commands;
    compare("redis-120x40.txt", &picture(&redis, &ui, (120, 40)));
}

#[test]
fn hostile_names_stay_within_printable_ascii() {
    let name = "\x1b[2J\x1b]0;x\x07\u{202e}\u{4e2d}\u{1f600}\r\n\x08\u{7f}\u{9b}31m";
    let bytes: Vec<u8> = name.bytes().chain([0xff, 0xfe]).collect();
    let shown = text::shown(&bytes);
    assert!(shown.is_ascii());
    let mut models = [evenkeel(&bytes, name.split(['\n', ' ']).next().unwrap_or_default()), redis()];
    let words = ["\x1b[31mKEYS", "\u{202e}*", "\x1b]52;c;x\x07"];
    models[1].take(News::Replies(crate::poll::Replies {
        replies: vec![
            (Ask::Slow, slow(&words)),
            (Ask::Info, info("redis_version:\x1b[2J", 1)),
            (Ask::Now, refused()),
        ],
        ..Default::default()
    }));
    for model in &mut models {
        for view in View::ALL {
            let mut ui = at(view);
            for over in [false, true] {
                if over {
                    press(&mut ui, model, &[KeyCode::Down, KeyCode::Enter]);
                }
                let buffer = buffer(model, &ui, (120, 40), true);
                for cell in buffer.content() {
                    let symbol = cell.symbol();
                    let is_ours = symbol.chars().all(|c| matches!(c, ' '..='~' | '\u{2500}'..='\u{259f}'));
                    assert!(is_ours && symbol.chars().count() == 1, "{view:?}: {symbol:?}");
                }
            }
        }
    }
}

#[test]
fn a_user_without_rights_is_told_so() {
    let all = [
        Ask::Info,
        Ask::Now,
        Ask::History,
        Ask::Clients,
        Ask::Commands,
        Ask::Slow,
        Ask::Events,
        Ask::HotKeys,
    ];
    let look = || all.iter().map(|ask| (*ask, refused())).collect();
    let model = model([look(), look()], &[100]);
    for (view, said) in [
        (View::Clients, "CLIENT LIST: NOPERM"),
        (View::Commands, "INFO commandstats: NOPERM"),
        (View::Slow, "SLOWLOG GET: NOPERM"),
        (View::Events, "LATENCY LATEST: NOPERM"),
        (View::HotKeys, "HOTKEYS GET: NOPERM"),
    ] {
        let drawn = picture(&model, &at(view), (80, 24));
        assert!(drawn.contains(said) && drawn.contains("INFO: NOPERM this user"), "{drawn}");
    }
    // Evenkeel that may be asked for INFO alone.
    let look = || vec![(Ask::Info, info("evenkeel_version:1", 1)), (Ask::Now, refused())];
    let drawn = picture(&self::model([look(), look()], &[100]), &Ui::default(), (80, 24));
    assert!(drawn.contains("Who waits is not known: NOPERM") && drawn.contains("p50 100us"), "{drawn}");
}

#[test]
fn a_lost_server_is_told_and_the_last_figures_stay() {
    let mut model = evenkeel(b"a", "a");
    model.take(News::Lost("127.0.0.1:6379: the server closed the connection".to_owned()));
    let drawn = picture(&model, &Ui::default(), (80, 24));
    assert!(drawn.contains("NO CONNECTION, trying again"), "{drawn}");
    assert!(
        drawn.contains("No connection. 127.0.0.1:6379: the server closed") && drawn.contains("checkout-api")
    );
    let new = picture(&Model::new("h:1\x1b".to_owned()), &Ui::default(), (80, 24));
    assert!(new.contains("h:1\\x1b  connecting"), "{new}");
}

#[test]
fn any_size_can_be_drawn() {
    let mut model = evenkeel(b"billing-export", "billing-export");
    let mut ui = Ui::default();
    for over in [vec![], vec![KeyCode::Enter], vec![KeyCode::Esc, KeyCode::Char('?')]] {
        press(&mut ui, &mut model, &over);
        for width in [1, 2, 5, 10, 17, 18, 19, 30, 79, 200] {
            for height in [1, 2, 3, 5, 9, 12, 13, 24, 34, 100] {
                picture(&model, &ui, (width, height));
            }
        }
    }
}

#[test]
fn without_colours_nothing_has_one() {
    let model = evenkeel(b"billing-export", "billing-export");
    let has = |has_colours| {
        let buffer = buffer(&model, &Ui::default(), (80, 24), has_colours);
        buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(has(true) && !has(false));
}

#[test]
fn keys_do_what_the_help_says() {
    let mut model = evenkeel(b"billing-export", "billing-export");
    let mut ui = Ui::default();
    let table = ui.table(&model);
    assert_eq!((table.rows.len(), ui.selected(&table)), (2, None));
    assert_eq!(table.rows[0].key, "client 912");
    press(&mut ui, &mut model, &typed("jj"));
    assert_eq!(ui.selected(&ui.table(&model)), Some(1));
    // The selection stays with its line when the order changes: by cpu, ops, out, mem, idle.
    press(&mut ui, &mut model, &typed("ssss"));
    let table = ui.table(&model);
    assert_eq!((table.rows[0].key.as_str(), ui.selected(&table)), ("client 3", Some(0)));
    assert!(matches!(press(&mut ui, &mut model, &[KeyCode::Enter]), Some(Order::Why(3))));
    assert!(picture(&model, &ui, (80, 24)).contains("user         default"));
    model.take(News::Replies(crate::poll::Replies {
        replies: vec![(Ask::Why, refused())],
        ..Default::default()
    }));
    assert!(picture(&model, &ui, (80, 24)).contains("EVENKEEL WHY"));
    press(&mut ui, &mut model, &[KeyCode::Esc]);
    assert_eq!(ui.over, Over::Nothing);
    press(&mut ui, &mut model, &typed("/BILL"));
    assert!(picture(&model, &ui, (80, 24)).contains("/BILL_"));
    press(&mut ui, &mut model, &[KeyCode::Enter]);
    assert_eq!(ui.table(&model).rows.len(), 1);
    // While it is typed a q is a letter.
    press(&mut ui, &mut model, &typed("/q"));
    assert!(!ui.has_quit && ui.table(&model).empty.contains("\"billq\""));
    press(&mut ui, &mut model, &[KeyCode::Esc]);
    assert_eq!(ui.table(&model).rows.len(), 2);
    assert!(matches!(press(&mut ui, &mut model, &typed("p")), Some(Order::Pause(true))));
    assert!(picture(&model, &ui, (80, 24)).contains("PAUSED"));
    press(&mut ui, &mut model, &typed("?"));
    assert!(picture(&model, &ui, (80, 24)).contains("sort by another column"));
    press(&mut ui, &mut model, &typed("?4"));
    assert_eq!(ui.view, View::Slow);
    ui.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), &mut model);
    assert!(ui.has_quit);
}

#[test]
fn the_picture_goes_back_in_time() {
    let mut model = evenkeel(b"billing-export", "billing-export");
    let mut ui = Ui::default();
    let hour = Window { column_ms: 60_000, back: 0 };
    assert!(matches!(press(&mut ui, &mut model, &typed("t")), Some(Order::Show(shown)) if shown == hour));
    let earlier = Window { back: 30, ..hour };
    assert!(
        matches!(press(&mut ui, &mut model, &[KeyCode::Left]), Some(Order::Show(shown)) if shown == earlier)
    );
    assert_eq!(earlier.before_now_ms(), (90 * 60_000, 30 * 60_000));
    let flows = crate::samples::flat(&[("edges", dial::Frame::Array(vec![]))]);
    model.take(News::Replies(crate::poll::Replies {
        unix_ms: 1_795_939_143_000,
        replies: vec![
            (Ask::Now, crate::samples::now(b"a")),
            (Ask::History, crate::samples::history()),
            (Ask::Flows, flows),
        ],
        window: earlier,
        ..Default::default()
    }));
    let drawn = picture(&model, &ui, (120, 40));
    assert!(drawn.contains("an hour until 07:29:03 UTC, 30m ago, a column is a minute"), "{drawn}");
    assert!(drawn.contains("nobody, in the time of the picture"), "{drawn}");
    // Nothing is later than now, and Redis has no history.
    assert!(press(&mut ui, &mut model, &[KeyCode::Right]).is_some());
    assert!(press(&mut ui, &mut model, &[KeyCode::Right]).is_none());
    assert!(press(&mut Ui::default(), &mut redis(), &typed("t")).is_none());
    let week = (0..10_000).fold(Window::default(), |window, _| window.moved(true));
    assert_eq!(week.before_now_ms().1, 7 * 86_400_000);
}

#[test]
fn numbers_of_a_lying_server_do_no_harm() {
    let most = |name: &str| format!("{name}:18446744073709551615\r\n");
    let fields = "run_id connected_clients used_memory maxmemory total_commands_processed keyspace_hits keyspace_misses \
                  rdb_last_save_time uptime_in_seconds connected_slaves master_last_io_seconds_ago";
    let info = |role: &str| {
        let lists = "cmdstat_get:calls=18446744073709551615,usec=1e400,failed_calls=1e308,rejected_calls=1e308\r\n\
                     slave0:lag=18446744073709551615\r\ndb0:keys=18446744073709551615\r\ndb1:keys=18446744073709551615\r\n";
        let all: String = fields.split_whitespace().map(most).collect();
        crate::samples::bulk(&format!("role:{role}\r\nmaster_link_status:up\r\n{all}{lists}"))
    };
    let heat = || crate::samples::ints(&[i64::MAX; 24]);
    let row =
        || crate::samples::flat(&[("heat", heat()), ("series", crate::samples::flat(&[("busy", heat())]))]);
    let heavy = || crate::samples::flat(&[("us", dial::Frame::Int(i64::MAX))]);
    let now = || {
        let heaviest = dial::Frame::Array(vec![heavy(), heavy(), heavy()]);
        crate::samples::flat(&[("second", row()), ("minute", row()), ("heaviest", heaviest)])
    };
    let event = crate::samples::ints(&[i64::MAX; 4]);
    for role in ["master", "slave"] {
        let look = || {
            vec![
                (Ask::Info, info(role)),
                (Ask::Now, now()),
                (Ask::History, crate::samples::flat(&[("heat", dial::Frame::Array(vec![heat(); 24]))])),
                (Ask::Commands, info(role)),
                (Ask::Slow, dial::Frame::Array(vec![event.clone()])),
                (Ask::Events, dial::Frame::Array(vec![event.clone()])),
            ]
        };
        let model = model([look(), look()], &[u64::MAX, u64::MAX]);
        View::ALL.iter().for_each(|view| _ = picture(&model, &at(*view), (120, 40)));
    }
}

#[test]
fn rates_are_differences() {
    let look = |n: u64| {
        vec![
            (Ask::Info, info("redis_version:7", n * 500)),
            (Ask::Clients, clients("a", n * 25)),
            (Ask::Commands, commands(n * 20)),
        ]
    };
    let model = model([look(1), look(2)], &[]);
    assert_eq!(model.rates.ops, Some(500.0));
    assert_eq!(model.clients[0].rates, [Some(25.0), Some(0.0), Some(25.0)]);
    assert_eq!((model.commands[0].calls, model.commands[0].us), (20.0, 800_000.0));
}
