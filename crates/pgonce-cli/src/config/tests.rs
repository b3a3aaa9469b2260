use std::path::Path;

use clap::{Args, Command, FromArgMatches};
use pgonce::connect::Environment;
use pgonce::destination::StartMode;
use pgonce::slot_source::Streaming;
use pgonce_target::SynchronousCommit;
use serde_json::Value;

use super::effective::effective;
use super::flags::KeyFlags;
use super::keys::{Fallback, KEYS, Key};
use super::raw::{ConfigError, Given, Place, Raw};
use super::sample::sample;
use super::schema::schema;
use super::{FlowConfig, Publish, SpillConfig, file, variables};

const URLS: &str =
    "source: {url: \"postgresql://ann:hidden@one/shop\"}\ntarget: {url: \"host=two user=ann dbname=shop\"}\n";

fn read(text: &str) -> Result<Raw, ConfigError> {
    file::read(Path::new("pgonce.yml"), text, &|name| match name {
        "SOURCE_URL" => Some("postgresql://ann:hidden@one/shop".to_owned()),
        "TARGET_URL" => Some("postgresql://ann:hidden@two/shop".to_owned()),
        "WHO" => Some("ann".to_owned()),
        _ => None,
    })
}

fn flags(arguments: &[&str]) -> Raw {
    let command = KeyFlags::augment_args(Command::new("test").no_binary_name(true));
    let matches = command.try_get_matches_from(arguments).expect("arguments that clap takes");
    KeyFlags::from_arg_matches(&matches).expect("flags").0
}

fn validated(raw: &Raw) -> Result<FlowConfig, ConfigError> {
    FlowConfig::validate(raw, &Environment::empty())
}

fn config(text: &str) -> Result<FlowConfig, ConfigError> {
    validated(&read(text)?)
}

/// The refusal of a file that is complete but for `text`.
fn refusal(text: &str) -> String {
    let error = config(&format!("flow: shop\n{URLS}{text}")).expect_err("a refusal");
    assert!(!error.hint.is_empty());
    error.to_string()
}

fn misread(text: &str) -> String {
    read(text).expect_err("a refusal").to_string()
}

#[test]
fn the_least_that_is_enough_has_the_documented_defaults() {
    let config = config(&format!("flow: shop\n{URLS}")).expect("valid");
    assert_eq!(config.flow.as_str(), "shop");
    assert_eq!(config.source.slot, "pgonce_shop");
    assert_eq!(config.source.publish, Publish::Ours { name: "pgonce_shop".to_owned(), tables: vec![] });
    assert_eq!(config.start, StartMode::Snapshot);
    assert_eq!(config.jobs, 4);
    assert_eq!(config.data_dir, Path::new("./pgonce-data/shop"));
    assert_eq!(config.target.synchronous_commit, SynchronousCommit::Off);
    assert!(config.source.id.is_none());
}

/// The lines of the sample with those keys uncommented that `wanted` picks, and how many there were.
fn uncommented(wanted: impl Fn(&Key) -> bool) -> (String, usize) {
    let (mut text, mut count, mut section) = (String::new(), 0, None);
    for line in sample().lines() {
        if let Some(opened) = line.strip_suffix(':').filter(|line| !line.starts_with(['#', ' '])) {
            section = KEYS.iter().filter_map(Key::section).find(|section| *section == opened);
        } else if !line.is_empty() && !line.starts_with(' ') {
            section = None;
        }
        let commented = line.trim_start().strip_prefix("# ").and_then(|rest| rest.split_once(": "));
        let key = commented.and_then(|(name, _)| {
            KEYS.iter().find(|key| key.section() == section && key.name() == name && wanted(key))
        });
        count += usize::from(key.is_some());
        text += &if key.is_some() { line.replacen("# ", "", 1) } else { line.to_owned() };
        text.push('\n');
    }
    (text, count)
}

#[test]
fn the_sample_has_every_key_and_is_valid_as_it_stands_and_with_every_comment_removed() {
    assert_eq!(config(&sample()).expect("valid").flow.as_str(), "shop");
    assert!(sample().lines().all(|line| line.chars().count() <= 120 && line.trim_end() == line));
    let optional = KEYS.iter().filter(|key| key.default != Fallback::Required).count();
    let (text, count) = uncommented(|_| true);
    assert_eq!(count, optional, "a key is missing in the sample, or stands in another section:\n{text}");
    let read: Vec<&str> = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}")).0.into_keys().collect();
    assert_eq!(read.len(), KEYS.len());
    // Keys that exclude each other: tables and publication; copy_schema, and start as it stands here, and map.
    let without: [&[&str]; 2] =
        [&["source.tables", "map", "start"], &["source.publication", "copy_schema", "schema_privileges"]];
    for left_out in without {
        let (text, count) = uncommented(|key| !left_out.contains(&key.path));
        assert_eq!(count, optional - left_out.len());
        config(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}

#[test]
fn a_default_that_is_a_value_is_a_valid_one() {
    for key in KEYS {
        let Fallback::Value(value) = key.default else { continue };
        let raw = Raw([(key.path, vec![given(&value.replace("<flow>", "shop"))])].into());
        let base = read(&format!("flow: shop\n{URLS}")).expect("valid");
        validated(&base.overridden_by(raw)).unwrap_or_else(|e| panic!("{}: {e}", key.path));
    }
}

fn given(text: &str) -> Given {
    Given { text: text.to_owned(), place: Place::Flag("test"), shown: true }
}

/// Whether a document fits a schema: as much of JSON schema as ours uses.
fn fits(schema: &Value, document: &Value) -> bool {
    let is = |word: &str| match word {
        "string" => document.is_string(),
        "number" => document.is_number(),
        "integer" => document.is_u64(),
        "boolean" => document.is_boolean(),
        "object" => document.is_object(),
        "array" => document.is_array(),
        "null" => document.is_null(),
        word => panic!("no such type: {word}"),
    };
    let Value::Object(rules) = schema else { panic!("{schema}") };
    rules.iter().all(|(rule, value)| match rule.as_str() {
        "$schema" | "title" | "description" | "default" => true,
        "type" => match value {
            Value::Array(words) => words.iter().any(|word| is(word.as_str().expect("a type"))),
            word => is(word.as_str().expect("a type")),
        },
        "enum" => value.as_array().expect("a list").contains(document),
        "anyOf" => value.as_array().expect("a list").iter().any(|schema| fits(schema, document)),
        "minimum" => document.as_u64().is_none_or(|n| n >= value.as_u64().expect("a number")),
        "maximum" => document.as_u64().is_none_or(|n| n <= value.as_u64().expect("a number")),
        "minLength" => document.as_str().is_none_or(|text| !text.is_empty()),
        // The two patterns there are.
        "pattern" => document.as_str().is_none_or(|text| match value.as_str() {
            Some("^[0-9]+(kB|MB|GB|TB)$") => ["kB", "MB", "GB", "TB"].iter().any(|unit| {
                text.strip_suffix(unit).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
            }),
            _ => text.contains("${") && text.contains('}'),
        }),
        "required" => {
            value.as_array().expect("a list").iter().all(|name| document.get(name.as_str().unwrap()).is_some())
        }
        "properties" => document.as_object().is_none_or(|map| {
            map.iter().all(|(name, document)| value.get(name).is_none_or(|schema| fits(schema, document)))
        }),
        "additionalProperties" => {
            let known = rules.get("properties").and_then(Value::as_object);
            let is_known = |name: &str| known.is_some_and(|known| known.contains_key(name));
            let allowed = |document: &Value| match value {
                Value::Bool(any) => *any,
                schema => fits(schema, document),
            };
            document.as_object().is_none_or(|map| map.iter().all(|(name, d)| is_known(name) || allowed(d)))
        }
        "items" => document.as_array().is_none_or(|list| list.iter().all(|document| fits(value, document))),
        rule => panic!("no such rule: {rule}"),
    })
}

#[test]
fn the_schema_takes_what_the_reader_takes_and_refuses_what_it_refuses() {
    let schema = schema();
    let document = |text: &str| -> Value { serde_saphyr::from_str(text).expect("YAML") };
    let whole = uncommented(|_| true).0;
    let taken = [
        sample().as_str(),
        whole.as_str(),
        "flow: shop\nsource: {url: {file: /x}}\n",
        "source:\ntarget:\n",
        "source: {tables: a.b, publication: [p, q]}\n",
        "jobs: ${WHO}\nstart: ${WHO}\ncopy_schema: ${WHO}\n",
        "target: {synchronous_commit: on}\n",
        "source: {origin: none}\n",
        "spill: {memory: 8MB, disk: 1TB}\n",
    ]
    .map(str::to_owned);
    for text in &taken {
        let text = text.replace("{file: /x}", "x");
        assert!(fits(&schema, &document(&text)), "{text}");
        read(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    }
    assert!(fits(&schema, &document("source: {url: {file: /x}}")));
    let refused = [
        "flwo: shop",
        "spill: {memory: 8 MB}",
        "spill: {disk: lots}",
        "source: {solt: s}",
        "source: here",
        "flow: {a: b}",
        "flow: null",
        "source: {url: {vault: x}}",
        "source: {url: [a]}",
        "source: {tables: [[a]]}",
        "target: {tables: a.b}",
        "jobs: 0",
        "jobs: 1001",
        "jobs: many",
        "start: later",
        "copy_schema: maybe",
        "target: {synchronous_commit: local}",
        "source: {origin: local}",
        "data_dir: ''",
        "[flow]",
    ];
    let urls = document(URLS);
    for text in refused {
        assert!(!fits(&schema, &document(text)), "{text}");
        // Completed by what is required, it is no flow either.
        let (mut whole, given) = (urls.clone(), document(text));
        for (name, value) in given.as_object().into_iter().flatten() {
            match (whole.get_mut(name).and_then(Value::as_object_mut), value) {
                (Some(section), Value::Object(keys)) => section.extend(keys.clone()),
                _ => whole[name] = value.clone(),
            }
        }
        if given.is_array() {
            whole = given;
        } else if whole.get("flow").is_none() {
            whole["flow"] = "shop".into();
        }
        assert!(config(&whole.to_string()).is_err(), "{text}");
    }
}

#[test]
fn the_schema_describes_every_key_and_its_default() {
    let schema = schema();
    for key in KEYS {
        let at = key.section().map_or_else(String::new, |section| format!("/properties/{section}"));
        let property = schema.pointer(&format!("{at}/properties/{}", key.name())).expect(key.path);
        let description = property["description"].as_str().expect("a description");
        assert!(description.contains(&key.variable()) && description.contains(key.help), "{description}");
        if let Some(default) = property.get("default") {
            assert!(fits(property, default), "{}", key.path);
        }
    }
    assert_eq!(schema["properties"]["jobs"]["default"], 4);
    assert_eq!(schema["properties"]["start"]["anyOf"][0]["enum"], serde_json::json!(["snapshot", "go-forward"]));
}

fn variables(set: &[(&str, &str)]) -> Raw {
    variables::read(&|name| set.iter().find(|(variable, _)| *variable == name).map(|(_, text)| (*text).to_owned()))
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let file = read(&format!("flow: shop\njobs: 2\nstart: snapshot\n{URLS}")).expect("valid");
    let variables = variables(&[("PGONCE_JOBS", "3"), ("PGONCE_START", "go-forward"), ("PGONCE_FLOW", "")]);
    let raw = file.overridden_by(variables).overridden_by(flags(&["--jobs", "7"]));
    let config = validated(&raw).expect("valid");
    assert_eq!((config.jobs, config.flow.as_str(), config.start), (7, "shop", StartMode::GoForward));
    let places = ["jobs", "start", "flow"].map(|path| raw.0[path][0].place.to_string());
    assert_eq!(places, ["--jobs", "PGONCE_START", "pgonce.yml:1:7"]);
}

#[test]
fn variables_alone_describe_a_flow_and_what_is_wrong_is_named_by_its_variable() {
    let urls = [("PGONCE_SOURCE_URL", "host=one user=u"), ("PGONCE_TARGET_URL", "host=two user=u")];
    let with =
        |variable, text| validated(&variables(&[&urls[..], &[("PGONCE_FLOW", "shop"), (variable, text)]].concat()));
    let tables = Publish::Ours { name: "pgonce_shop".to_owned(), tables: vec!["a.*".to_owned(), "b.c".to_owned()] };
    assert_eq!(with("PGONCE_SOURCE_TABLES", "a.*,b.c").expect("valid").source.publish, tables);
    let refusal = with("PGONCE_JOBS", "many").unwrap_err().to_string();
    assert_eq!(refusal, "PGONCE_JOBS: \"many\" is not a number of jobs");
    let refusal = with("PGONCE_SOURCE_URL", "postgresql//ann:hidden@one/shop?x=y").map(drop);
    assert!(refusal.is_ok(), "the first of two variables of one name holds");
    let broken = variables(&[("PGONCE_FLOW", "x"), ("PGONCE_SOURCE_URL", "password=hidden bogus=hidden")]);
    let refusal = validated(&broken).unwrap_err().to_string();
    assert!(refusal.starts_with("PGONCE_SOURCE_URL: ") && !refusal.contains("hidden"), "{refusal}");
}

#[test]
fn what_holds_is_shown_with_its_origin_and_without_secrets() {
    let file =
        read("flow: shop\nsource: {url: \"postgresql://ann:hidden@one/shop\", publication: [p, q]}\n").expect("valid");
    let raw = file.overridden_by(flags(&["--jobs", "7"]));
    let environment = Environment::empty().with("PGPASSWORD", "hidden").with("PGPORT", "5555");
    let shown = effective(&raw, false, &environment);
    let line = |path: &str| {
        let key = shown.iter().find(|key| key.key.path == path).expect(path);
        format!("{} <- {}", key.text, key.origin.text(key.key))
    };
    assert_eq!(shown.len(), KEYS.len());
    assert_eq!(line("source.url"), "postgresql://ann:***@one:5555/shop?sslmode=prefer <- pgonce.yml:2");
    assert!(line("target.url").starts_with("not set <- missing: give --target or PGONCE_TARGET_URL"));
    assert_eq!(line("source.slot"), "pgonce_shop <- default");
    assert_eq!(line("source.publication"), "p, q <- pgonce.yml:2");
    assert_eq!(line("source.tables"), "those of the publication <- default");
    assert_eq!(line("data_dir"), "./pgonce-data/shop <- default");
    assert_eq!(line("jobs"), "7 <- --jobs");
    assert!(!format!("{shown:?}").contains("hidden"));
    // What was resolved for the wrong key may be a secret.
    let misplaced = read("flow: ${SOURCE_URL}\nstream: \"nats://u:hidden@h\"\ndata_dir: ${WHO}\n").expect("read");
    let shown = format!("{:?}", effective(&misplaced, false, &Environment::empty()));
    assert!(!shown.contains("hidden") && !shown.contains("\"ann\""), "{shown}");
}

#[test]
fn flags_alone_describe_a_flow() {
    let raw = flags(&[
        "--flow",
        "bench",
        "--source",
        "host=one dbname=a user=u",
        "--target",
        "host=two dbname=a user=u",
        "--publication",
        "p,q",
        "--publication",
        "r",
        "--slot",
        "s",
        "--stream",
        "none",
        "--start",
        "go-forward",
        "--jobs",
        "2",
        "--data-dir",
        "/var/tmp/x",
        "--synchronous-commit",
        "on",
        "--copy-schema",
        "false",
        "--source-id",
        "here",
        "--origin",
        "none",
    ]);
    let config = validated(&raw).expect("valid");
    assert_eq!(config.source.publish, Publish::Existing(["p", "q", "r"].map(str::to_owned).to_vec()));
    assert_eq!(config.source.slot, "s");
    assert_eq!(config.start, StartMode::GoForward);
    assert_eq!((config.jobs, config.data_dir.as_path()), (2, Path::new("/var/tmp/x")));
    assert_eq!(config.source.id.as_deref(), Some("here"));
    assert_eq!(config.source.origin, pgonce::slot_source::OriginFilter::None);
    assert_eq!(config.target.synchronous_commit, SynchronousCommit::On);
}

#[test]
fn flags_win_over_the_file() {
    let file = read(&format!("flow: shop\njobs: 2\nstart: snapshot\n{URLS}")).expect("valid");
    let config = validated(&file.overridden_by(flags(&["--jobs", "7", "--flow", "other"]))).expect("valid");
    assert_eq!((config.jobs, config.flow.as_str(), config.start), (7, "other", StartMode::Snapshot));
}

#[test]
fn a_publication_by_flag_takes_back_the_tables_of_the_file_and_the_other_way_round() {
    let base = "flow: shop\ntarget: {url: host=two user=u}\nsource:\n  url: host=one user=u\n";
    let tables = read(&format!("{base}  tables: [public.*, a.b]\n")).expect("valid");
    let config = validated(&tables.overridden_by(flags(&["--publication", "p"]))).expect("valid");
    assert_eq!(config.source.publish, Publish::Existing(vec!["p".to_owned()]));
    let publication = read(&format!("{base}  publication: p\n")).expect("valid");
    let config = validated(&publication.overridden_by(flags(&["--tables", "a.*"]))).expect("valid");
    assert_eq!(config.source.publish, Publish::Ours { name: "pgonce_shop".to_owned(), tables: vec!["a.*".to_owned()] });
    let both = read(&format!("{base}  publication: p\n  tables: a.*\n")).expect("valid");
    assert!(validated(&both).unwrap_err().to_string().contains("exclude each other"));
}

#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_nearest_key() {
    assert_eq!(
        misread("flow: shop\n\njbos: 3\n"),
        "pgonce.yml:3:1: unknown key `jbos` at the top level; did you mean `jobs`?"
    );
    assert_eq!(
        misread("source:\n  url: x\n  tabels: [a.b]\n"),
        "pgonce.yml:3:3: unknown key `tabels` in `source`; did you mean `tables`?"
    );
    assert_eq!(
        misread("slot: s\n"),
        "pgonce.yml:1:1: unknown key `slot` at the top level; did you mean `source.slot`?"
    );
    assert_eq!(
        misread("url: s\n"),
        "pgonce.yml:1:1: unknown key `url` at the top level; did you mean `source.url` or `target.url`?"
    );
    assert_eq!(
        misread("data-dir: s\n"),
        "pgonce.yml:1:1: unknown key `data-dir` at the top level; did you mean `data_dir`?"
    );
    assert_eq!(misread("zebra: s\n"), "pgonce.yml:1:1: unknown key `zebra` at the top level");
    assert!(misread("sorce: {url: x}\n").ends_with("did you mean `source`?"));
}

#[test]
fn a_key_given_twice_is_refused() {
    assert_eq!(misread("flow: a\njobs: 1\nflow: b\n"), "pgonce.yml:3:1: `flow` is given twice, first in line 1");
    assert_eq!(
        misread("source: {slot: a}\nsource: {id: b}\n"),
        "pgonce.yml:2:1: `source` is given twice, first in line 1"
    );
}

#[test]
fn values_of_another_type_are_refused() {
    assert_eq!(misread("jobs: many\nflow:\n"), "pgonce.yml:2:5: `flow` has no value");
    assert_eq!(misread("jobs: [1]\n"), "pgonce.yml:1:7: `jobs` holds a list");
    assert_eq!(misread("flow: true\n"), "pgonce.yml:1:7: `flow` holds true or false");
    assert_eq!(misread("source: here\n"), "pgonce.yml:1:9: `source` is a section, and holds text here");
    assert_eq!(misread("flow: {file: x}\n"), "pgonce.yml:1:7: `flow` holds keys and values");
    assert_eq!(misread("source:\n  tables: [a.b, [c]]\n"), "pgonce.yml:2:17: `source.tables` holds a list");
    assert_eq!(misread("just text\n"), "pgonce.yml:1:1: keys were expected, as in `flow: shop`");
    assert!(misread("flow: shop\n  jobs: \"3\n").starts_with("pgonce.yml:2:"));
}

#[test]
fn an_empty_file_and_empty_sections_say_nothing() {
    for text in ["", "# only a comment\n", "source:\ntarget:\n", "---\n"] {
        assert_eq!(read(text).unwrap_or_else(|e| panic!("{text:?}: {e}")), Raw::default());
    }
}

#[test]
fn values_without_a_meaning_are_refused() {
    assert_eq!(refusal("jobs: 0\n"), "pgonce.yml:4:7: \"0\" is not a number of jobs");
    assert_eq!(refusal("start: later\n"), "pgonce.yml:4:8: \"later\" is not a value of `start`");
    assert_eq!(refusal("stream: local\n"), "pgonce.yml:4:9: there is no local log yet");
    assert_eq!(refusal("stream: \"nats://u:hidden@h:4222\"\n"), "pgonce.yml:4:9: there is no NATS stream yet");
    assert_eq!(
        refusal("copy_schema: true\nstart: go-forward\n"),
        "pgonce.yml:4:14: `copy_schema` creates tables for rows that are copied, and `start: go-forward` copies none"
    );
    assert_eq!(
        refusal("schema_privileges: true\n"),
        "pgonce.yml:4:20: `schema_privileges` is true, and `copy_schema` is not: no schema is copied"
    );
    assert_eq!(refusal("copy_schema: true\nclient_tools: \"\"\n"), "pgonce.yml:5:15: `client_tools` is empty");
    assert_eq!(refusal("copy_schema: \"maybe\"\n"), "pgonce.yml:4:14: \"maybe\" is not a value of `copy_schema`");
    assert_eq!(refusal("data_dir: \"\"\n"), "pgonce.yml:4:11: `data_dir` is empty");
    for (name, valid) in [("a", true), ("", false), ("Shop", false), ("a-b", false), ("ä", false), ("a_1", true)] {
        assert_eq!(config(&format!("flow: \"{name}\"\n{URLS}")).is_ok(), valid, "{name}");
    }
    assert!(config(&format!("flow: {}\n{URLS}", "x".repeat(40))).is_ok());
    assert!(config(&format!("flow: {}\n{URLS}", "x".repeat(41))).is_err());
}

#[test]
fn synchronous_commit_is_off_or_on() {
    let with = |value: &str| {
        config(&format!(
            "flow: shop\nsource: {{url: host=one user=u}}\n\
             target:\n  url: host=two user=u\n  synchronous_commit: {value}\n"
        ))
    };
    assert_eq!(with("off").expect("valid").target.synchronous_commit, SynchronousCommit::Off);
    assert_eq!(with("on").expect("valid").target.synchronous_commit, SynchronousCommit::On);
    assert_eq!(
        with("local").unwrap_err().to_string(),
        "pgonce.yml:5:23: \"local\" is not a value of `target.synchronous_commit`"
    );
}

#[test]
fn sizes_have_a_unit_and_streaming_is_on_unless_it_is_off() {
    let with = |lines: &str| {
        config(&format!("flow: shop\nsource: {{url: host=one user=u}}\ntarget: {{url: host=two user=u}}\n{lines}\n"))
    };
    let usual = with("").expect("valid");
    assert_eq!(usual.spill, SpillConfig { memory: 32 << 20, disk: 64 << 30 });
    assert_eq!(usual.source.streaming, Streaming::On);
    let given = with("spill: {memory: 512kB, disk: 2TB}").expect("valid");
    assert_eq!(given.spill, SpillConfig { memory: 512 << 10, disk: 2 << 40 });
    for wrong in ["64", "MB", "64 MB", "64mb", "1.5GB", "-1MB", "99999999999TB"] {
        let error = with(&format!("spill: {{disk: '{wrong}'}}")).unwrap_err();
        assert_eq!(error.to_string(), format!("pgonce.yml:4:15: \"{wrong}\" is not a value of `spill.disk`"));
        assert!(error.hint.contains("as in 64MB"), "{}", error.hint);
    }
    let off = validated(&flags(&[
        "--flow",
        "x",
        "--source",
        "host=a user=u",
        "--target",
        "host=b user=u",
        "--streaming",
        "off",
    ]));
    assert_eq!(off.expect("valid").source.streaming, Streaming::Off);
}

#[test]
fn what_is_required_is_asked_for_by_key_and_flag() {
    let error = validated(&Raw::default()).unwrap_err();
    assert_eq!(error.to_string(), "`flow` is not set");
    assert!(error.hint.contains("--flow NAME") && error.hint.contains("pgonce init"));
    let error = validated(&flags(&["--flow", "x", "--source", "host=a user=u"])).unwrap_err();
    assert_eq!(error.to_string(), "`target.url` is not set");
}

#[test]
fn a_flow_from_a_database_to_itself_is_refused() {
    let raw = flags(&["--flow", "x", "--source", "host=a user=u dbname=d", "--target", "host=a user=v dbname=d"]);
    assert_eq!(validated(&raw).unwrap_err().to_string(), "--target: source and target are the same database, d");
}

#[test]
fn references_are_resolved() {
    let config =
        config("flow: ${WHO}\nsource: {url: \"${SOURCE_URL}\"}\ntarget: {url: \"${TARGET_URL}\"}\n").expect("valid");
    assert_eq!(config.flow.as_str(), "ann");
    assert_eq!(config.source.connection.password.as_ref().map(|p| p.reveal()), Some("hidden"));
    assert_eq!(
        misread("flow: shop\nsource:\n  url: \"postgresql://${NOBODY}@h/d\"\n"),
        "pgonce.yml:3:8: `source.url`: the environment variable NOBODY is not set"
    );
}

#[test]
fn a_url_may_stand_in_a_file_beside_the_configuration() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("url"), "postgresql://ann:hidden@one/shop\n").expect("written");
    let path = directory.path().join("pgonce.yml");
    let read = |text: &str| file::read(&path, text, &|_| None);
    let raw = read("source: {url: {file: url}}\n").expect("valid");
    assert_eq!(raw.0["source.url"][0].text, "postgresql://ann:hidden@one/shop");
    assert!(!raw.0["source.url"][0].shown);
    assert!(read("source: {url: {file: none}}\n").unwrap_err().to_string().contains("cannot read"));
    assert!(read("source: {url: {vault: x}}\n").unwrap_err().to_string().contains("unknown reference `vault`"));
    assert!(read("source: {url: {file: url, more: x}}\n").unwrap_err().to_string().contains("not a reference"));
}

#[test]
fn no_refusal_quotes_a_password() {
    let urls = [
        "postgresql//ann:hidden@one/shop?sslmode=require",
        "postgresql://ann:hidden@one:port/shop",
        "postgresql://ann:hidden@one/shop?bogus=hidden",
        "host=one password=hidden bogus=hidden",
        "host=one password='hidden",
        "ann:hidden@one/shop",
        "hidden=x",
    ];
    for url in urls {
        let text = format!("flow: shop\nsource: {{url: \"{url}\"}}\ntarget: {{url: host=b user=u}}\n");
        let error = config(&text).err().map(|e| format!("{e} {}", e.hint)).unwrap_or_default();
        assert!(!error.replace("unknown key \"hidden\"", "").contains("hidden"), "{url}: {error}");
    }
    // Text that the YAML parser itself stumbles over.
    let error = misread("source: {url: \"postgresql://ann:hidden@one/shop}\n");
    assert!(!error.contains("hidden"), "{error}");
    let error = misread("source:\n  url: \"a\" postgresql://ann:hidden@one\n");
    assert!(!error.contains("hidden"), "{error}");
}

#[test]
fn a_map_is_read_from_file_and_flags_and_what_is_wrong_with_it_has_a_place() {
    let map = |text: &str| config(&format!("flow: shop\n{URLS}{text}")).expect("valid").map.to_string();
    assert_eq!(map(""), "");
    let file = "map:\n  public: app\n  public.orders: archive.orders_2024\n  '\"My.Schema\".\"T\"': app.\"T\"\n";
    let read = "public -> app\n\"My.Schema\".\"T\" -> app.\"T\"\npublic.orders -> archive.orders_2024\n";
    assert_eq!(map(file), read);
    let given = flags(&[
        "--map=public=app",
        "--map",
        "public.orders=archive.orders_2024",
        "--map",
        "\"My.Schema\".\"T\"=app.\"T\"",
    ]);
    let base = read_raw(&format!("flow: shop\n{URLS}map: {{public: other}}\n"));
    // The flags are the whole map.
    assert_eq!(validated(&base.overridden_by(given)).expect("valid").map.to_string(), read);
    for (text, why) in [
        ("map: {public: app, public.: app.t}\n", "a part is empty"),
        ("map:\n  public: pgonce\n", "pgonce.yml:5:3: `map`: schema pgonce cannot be a target"),
        ("map:\n  Public: app\n", "must be in double quotes"),
        ("map:\n  public: app\n  public: app2\n", "public is mapped twice"),
        ("map:\n  public.*: app.*\n", "no wildcards"),
    ] {
        let said = refusal(text);
        assert!(said.contains(why) && said.starts_with("pgonce.yml:"), "{text}: {said}");
    }
    for (text, why) in [
        ("map: app\n", "`map` holds text"),
        ("map: [a]\n", "`map` holds a list"),
        ("map:\n  public:\n", "`public` in `map` has no value"),
        ("map:\n  public: {a: b}\n", "`public` in `map` holds keys and values"),
    ] {
        let said = misread(text);
        assert!(said.contains(why), "{text}: {said}");
    }
}

fn read_raw(text: &str) -> Raw {
    read(text).expect("read")
}
