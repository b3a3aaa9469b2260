//! The command as a user meets it, where no database is needed: usage, exit statuses, and that no output holds a
//! password.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A password that must not show anywhere.
const SECRET: &str = "s3cr3t-0f-4nn";

/// Nobody listens there: port 1 of the loopback.
const NOWHERE: &str = "postgresql://ann:s3cr3t-0f-4nn@127.0.0.1:1/shop?connect_timeout=2";
const NOWHERE_ELSE: &str = "host=127.0.0.1 port=1 user=ann password=s3cr3t-0f-4nn dbname=copy connect_timeout=2";

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
    let own = std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("PG"));
    for variable in own.chain(["SOURCE_URL".to_owned(), "TARGET_URL".to_owned()]) {
        command.env_remove(variable);
    }
    command.current_dir(directory).args(arguments);
    command
}

/// Runs the command, which must end with `status` and not show the password; what it said, on either stream.
fn said(directory: &Path, arguments: &[&str], status: i32) -> String {
    said_with(directory, arguments, &[], status)
}

/// The same with environment variables.
fn said_with(directory: &Path, arguments: &[&str], variables: &[(&str, &str)], status: i32) -> String {
    let output = command(directory, arguments).envs(variables.iter().copied()).output().expect("the command starts");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text")).concat();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    assert!(!text.contains(SECRET), "{arguments:?}: {text}");
    text
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn flow(extra: &[&'static str]) -> Vec<&'static str> {
    let mut arguments = vec!["--flow", "shop", "--source", NOWHERE, "--target", NOWHERE_ELSE];
    arguments.extend(extra);
    arguments
}

#[test]
fn help_and_version_are_no_errors() {
    let here = folder();
    assert!(said(here.path(), &["--help"], 0).contains("Exit statuses:"));
    assert!(said(here.path(), &["--version"], 0).starts_with("pgonce "));
    let help = said(here.path(), &["run", "--help"], 0);
    for flag in [
        "--config",
        "--flow",
        "--source",
        "--target",
        "--source-id",
        "--tables",
        "--publication",
        "--slot",
        "--stream",
        "--start",
        "--copy-schema",
        "--jobs",
        "--data-dir",
        "--synchronous-commit",
        "--format",
        "--until",
    ] {
        assert!(help.contains(&format!("{flag} ")), "{flag} is missing");
    }
}

#[test]
fn version_tells_programs_too() {
    let here = folder();
    let object: Value = serde_json::from_str(&said(here.path(), &["version", "--format", "json"], 0)).expect("JSON");
    assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
    assert!(object["ledger"].is_number() && object["postgresql"]["newest"].is_number());
    assert!(said(here.path(), &["version"], 0).contains("PostgreSQL"));
}

#[test]
fn wrong_usage_is_status_2() {
    let here = folder();
    assert!(said(here.path(), &[], 2).contains("Usage:"));
    assert!(said(here.path(), &["statsu"], 2).contains("status"));
    assert!(said(here.path(), &["run", "--flwo", "x"], 2).contains("--flow"));
    assert!(said(here.path(), &["run", "--until", "soon"], 2).contains("neither `now` nor an LSN"));
    assert!(said(here.path(), &["run"], 2).contains("error[usage]: `flow` is not set\nhint: Give --flow NAME"));
    assert!(said(here.path(), &["run", "--config", "none.yml"], 2).contains("cannot read none.yml"));
    let text = said(here.path(), &[&["run"], flow(&["--stream", "local"]).as_slice()].concat(), 2);
    assert!(text.starts_with("error[usage]: --stream: there is no local log yet\nhint: "), "{text}");
    let text = said(here.path(), &[&["run"], flow(&["--copy-schema", "--start", "go-forward"]).as_slice()].concat(), 2);
    assert!(text.contains("`start: go-forward` copies none"), "{text}");
}

#[test]
fn a_connection_string_in_the_wrong_place_is_not_echoed() {
    let here = folder();
    assert!(said(here.path(), &["run", NOWHERE], 2).contains("ann:...@"));
    said(here.path(), &["run", NOWHERE_ELSE], 2);
    said(here.path(), &["run", "--source", "postgresql//ann:s3cr3t-0f-4nn@h/d?x=y", "--flow", "x"], 2);
    said(here.path(), &["run", "--flow", "x", "--source", NOWHERE, "--target", "password=s3cr3t-0f-4nn port=x"], 2);
}

#[test]
fn mistakes_in_the_file_are_shown_with_their_place() {
    let here = folder();
    std::fs::write(here.path().join("pgonce.yml"), "flow: shop\nsource:\n  url: x\n  solt: a\n").expect("written");
    let text = said(here.path(), &["status"], 2);
    assert!(text.contains("pgonce.yml:4:3: unknown key `solt` in `source`; did you mean `slot`?"), "{text}");
    let object: Value = serde_json::from_str(&said(here.path(), &["status", "--format", "json"], 2)).expect("JSON");
    assert_eq!((&object["code"], &object["exit_status"]), (&"usage".into(), &2.into()));
}

#[test]
fn init_writes_a_file_once() {
    let here = folder();
    assert!(said(here.path(), &["init"], 0).contains("Wrote pgonce.yml"));
    assert!(said(here.path(), &["init"], 2).contains("pgonce.yml exists"));
    said(here.path(), &["init", "--force"], 0);
    said(here.path(), &["init", "--config", "other.yml"], 0);
    assert!(said(here.path(), &["run"], 2).contains("the environment variable SOURCE_URL is not set"));
    assert!(said(here.path(), &["init", "--force", "--flow", "x"], 2).contains("--flow does not go into the file"));
}

#[test]
fn init_sql_prints_what_an_administrator_types() {
    let here = folder();
    let text = said(here.path(), &[&["init", "--sql"], flow(&["--tables", "public.a,x.*"]).as_slice()].concat(), 0);
    for part in [
        "CREATE SCHEMA",
        "ALTER ROLE \"ann\" WITH REPLICATION",
        "CREATE PUBLICATION \"pgonce_shop\"",
        "LIKE 'public.a'",
        "LIKE 'x.%'",
        "-- ==== For the source: ",
        "\n-- ==== For the target: ",
        "GRANT SET ON PARAMETER session_replication_role TO ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_database_that_does_not_answer_is_status_3_and_said_of_both() {
    let here = folder();
    let text = said(here.path(), &[&["status"], flow(&[]).as_slice()].concat(), 3);
    assert_eq!(text.matches("cannot ask").count(), 2, "{text}");
    let text = said(here.path(), &[&["status", "--format", "json"], flow(&[]).as_slice()].concat(), 3);
    let object: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(object["source"]["error"]["exit_status"], 3);
    assert_eq!(object["doing"], "unknown");
    assert!(said(here.path(), &[&["reset", "--yes"], flow(&[]).as_slice()].concat(), 3).contains("error[connection]"));
    assert!(!here.path().join("pgonce-data").exists(), "asking makes no directory");
}

#[test]
fn a_run_waits_for_a_database_says_so_once_and_ends_at_a_signal_with_status_0() {
    let here = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
    command.current_dir(here.path()).arg("run").args(flow(&["--format", "json"]));
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let child = command.spawn().expect("the command starts");
    std::thread::sleep(std::time::Duration::from_secs(3));
    // A second process of the same flow is refused while the first one lives.
    let text = said(here.path(), &[&["run"], flow(&[]).as_slice()].concat(), 2);
    assert!(text.contains(&format!("is in use by the process with PID {}", child.id())), "{text}");
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill starts");
    assert!(killed.success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(!text.contains(SECRET), "{text}");
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let count = |event: &str| events.iter().filter(|object| object["event"] == event).count();
    assert_eq!((count("started"), count("fault"), count("stopped")), (1, 1, 1), "{text}");
}

#[test]
fn config_show_says_what_holds_and_why_and_ends_as_run_would() {
    let here = folder();
    let file = format!("flow: shop\nsource:\n  url: {NOWHERE}\n  tables: [\"public.*\"]\n");
    std::fs::write(here.path().join("shop.yml"), file).expect("written");
    let incomplete = [("PGONCE_CONFIG", "shop.yml")];
    let text = said_with(here.path(), &["config", "show", "--jobs", "3"], &incomplete, 2);
    let line = |label: &str| {
        let line = text.lines().find(|line| line.starts_with(label)).unwrap_or_else(|| panic!("{label}: {text}"));
        line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("flow "), "shop shop.yml:1");
    assert_eq!(line("source.url"), "postgresql://ann:***@127.0.0.1:1/shop?sslmode=prefer shop.yml:3");
    assert_eq!(line("source.slot"), "pgonce_shop default");
    assert_eq!(line("jobs"), "3 --jobs");
    assert!(line("target.url").starts_with("not set missing: give --target or PGONCE_TARGET_URL"), "{text}");
    let error = said_with(here.path(), &["run"], &incomplete, 2);
    assert!(error.starts_with("error[usage]: `target.url` is not set") && text.ends_with(&error), "{text}{error}");
    let json = ["config", "show", "--format", "json"];
    let object: Value = serde_json::from_str(&said_with(here.path(), &json, &incomplete, 2)).expect("one object");
    assert_eq!((&object["valid"], &object["missing"][0]), (&false.into(), &"target.url".into()));
    assert_eq!((&object["error"]["code"], &object["error"]["exit_status"]), (&"usage".into(), &2.into()));

    let complete = [&incomplete[..], &[("PGONCE_TARGET_URL", NOWHERE_ELSE), ("PGONCE_SOURCE_SLOT", "s")]].concat();
    let object: Value = serde_json::from_str(&said_with(here.path(), &json, &complete, 0)).expect("one object");
    let key = |path: &str| object["keys"].as_array().unwrap().iter().find(|key| key["key"] == path).expect("a key");
    assert_eq!((&object["valid"], &object["file"]), (&true.into(), &"shop.yml".into()));
    // A flag wins over a variable, and a variable over the file; so does --config.
    let stronger = [&complete[..], &[("PGONCE_FLOW", "other"), ("PGONCE_JOBS", "5")]].concat();
    let text = said_with(here.path(), &["config", "show", "--jobs", "3"], &stronger, 0);
    assert!(text.contains("PGONCE_FLOW\n") && text.contains("pgonce_other "), "{text}");
    assert!(text.contains("--jobs\n") && !text.contains("PGONCE_JOBS"), "{text}");
    std::fs::write(here.path().join("another.yml"), "flow: another\n").expect("written");
    let text = said_with(here.path(), &["config", "show", "--config", "another.yml"], &incomplete, 2);
    assert!(text.contains("another.yml:1") && !text.contains("shop.yml"), "{text}");
    assert_eq!(
        (&key("source.slot")["value"], &key("source.slot")["origin"]["name"]),
        (&"s".into(), &"PGONCE_SOURCE_SLOT".into())
    );
    assert_eq!(key("target.url")["connection"]["hosts"][0], "127.0.0.1:1");
    assert_eq!(key("target.url")["connection"]["password"], "***");
    assert_eq!(
        (&key("source.tables")["value"][0], &key("source.tables")["origin"]["line"]),
        (&"public.*".into(), &4.into())
    );
}

#[test]
fn a_variable_that_looks_like_a_key_is_named_once_and_does_not_spoil_json() {
    let here = folder();
    let set = [("PGONCE_SOURCE_ULR", NOWHERE), ("PGONCE_TEST_PG", "18"), ("PGONCE_PROGRESS_SECONDS", "1")];
    let text = said_with(here.path(), &["config", "show"], &set, 2);
    let warning = "warning: the environment variable PGONCE_SOURCE_ULR means nothing to pgonce; did you mean \
                   PGONCE_SOURCE_URL?";
    assert_eq!(text.matches("warning").count(), 1, "{text}");
    assert!(text.contains(warning), "{text}");
    let output = command(here.path(), &["config", "show", "--format", "json"]).envs(set).output().expect("it starts");
    let _: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert!(String::from_utf8_lossy(&output.stderr).contains("PGONCE_SOURCE_ULR"));
    assert!(!said_with(here.path(), &["version"], &set, 0).contains("warning"));
}

#[test]
fn the_schema_and_the_keys_are_printed_for_programs_and_people() {
    let here = folder();
    let schema: Value = serde_json::from_str(&said(here.path(), &["config", "schema"], 0)).expect("JSON");
    let one_line = said(here.path(), &["config", "schema", "--format", "json"], 0);
    assert_eq!(serde_json::from_str::<Value>(&one_line).expect("JSON"), schema);
    assert_eq!((one_line.lines().count(), &schema["additionalProperties"]), (1, &false.into()));
    let keys: Value =
        serde_json::from_str(&said(here.path(), &["config", "keys", "--format", "json"], 0)).expect("JSON");
    let text = said(here.path(), &["config", "keys"], 0);
    for key in keys["keys"].as_array().expect("keys") {
        for part in ["key", "flag", "environment", "help"] {
            assert!(text.contains(key[part].as_str().expect("text")), "{key}");
        }
    }
}

/// The commands, and those below them, as `--help` lists them.
fn commands(above: &[&str], here: &Path) -> Vec<Vec<String>> {
    let help = said(here, &[above, &["--help"]].concat(), 0);
    let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names
        .flat_map(|name| {
            let path = [above, &[name]].concat();
            let below = commands(&path, here);
            std::iter::once(path.iter().map(|word| (*word).to_owned()).collect()).chain(below)
        })
        .collect()
}

#[test]
fn completions_know_every_command_flag_and_choice_in_every_shell() {
    let here = folder();
    let commands = commands(&[], here.path());
    assert!(commands.len() > 10, "{commands:?}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = said(here.path(), &["completions", shell], 0);
        let words = commands.iter().flatten().map(String::as_str);
        for word in words.chain(["go-forward", "synchronous-commit", "config", "until"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    std::fs::write(here.path().join("pgonce.bash"), said(here.path(), &["completions", "bash"], 0)).expect("written");
    // The script is loaded and asked, as the shell asks it.
    let asked = "source ./pgonce.bash && COMP_WORDS=(pgonce run --start '') COMP_CWORD=3 && \
                 _pgonce pgonce '' --start && echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash").current_dir(here.path()).args(["--norc", "-c", asked]).output().expect("bash");
    let (answer, errors) = (String::from_utf8_lossy(&bash.stdout), String::from_utf8_lossy(&bash.stderr));
    assert_eq!(answer.trim(), "snapshot go-forward", "{errors}");
    assert!(said(here.path(), &["completions", "csh"], 2).contains("possible values"));
}

#[test]
fn every_command_has_a_manual_page() {
    let here = folder();
    said(here.path(), &["man", "--dir", "pages"], 0);
    let mut names: Vec<String> = std::fs::read_dir(here.path().join("pages"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    let commands = commands(&[], here.path());
    let mut expected: Vec<String> = commands.iter().map(|words| format!("pgonce-{}.1", words.join("-"))).collect();
    expected.push("pgonce.1".to_owned());
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    for name in &names {
        let page = std::fs::read_to_string(here.path().join("pages").join(name)).expect("text");
        let title = name.trim_end_matches(".1");
        for part in [format!(".TH {title} 1").as_str(), ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"] {
            assert!(page.contains(part), "{name}: {part}");
        }
        // Each request is on a line of its own, and none is unknown to the macros of manual pages.
        let requests = page.lines().filter_map(|line| line.strip_prefix('.'));
        for request in requests.filter_map(|line| line.split([' ', '\\']).next()) {
            let known = ["TH", "SH", "SS", "TP", "IP", "RS", "RE", "PP", "br", "ie", "el", "nf", "fi"];
            assert!(known.contains(&request), "{name}: .{request}");
        }
    }
    let words: Vec<&str> = vec!["man", "config", "show"];
    assert!(said(here.path(), &words, 0).contains(".TH pgonce-config-show 1"));
    assert!(said(here.path(), &["man", "ran"], 2).contains("there is no command `ran`"));
}

#[test]
fn help_groups_the_keys_and_fits_a_hundred_columns() {
    let here = folder();
    let help = said(here.path(), &["help", "run"], 0);
    for line in help.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let order = ["\nFlow:\n", "--flow <NAME>", "\nSource:\n", "--slot <NAME>", "\nTarget:\n", "--synchronous-commit"];
    let places: Vec<usize> =
        order.iter().map(|part| help.find(part).unwrap_or_else(|| panic!("{part}: {help}"))).collect();
    assert!(places.is_sorted(), "{help}");
    assert!(help.contains("[default: pgonce_<flow>] [env: PGONCE_SOURCE_SLOT]"), "{help}");
    assert!(help.contains("[required] [env: PGONCE_FLOW]"), "{help}");
}
