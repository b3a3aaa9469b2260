use proptest::prelude::*;

use super::super::environment::Environment;
use super::super::keys::KEYS;
use super::super::parse_error::ParseConnectionError;
use super::super::render::percent_encoded;

use super::*;

fn environment() -> Environment {
    Environment::empty().with_os_user("os")
}

fn parse(text: &str) -> ConnectionSettings {
    ConnectionSettings::parse(text, &environment()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    match ConnectionSettings::parse(text, &environment()) {
        Ok(settings) => panic!("{text} was accepted: {settings}"),
        Err(error) => error.to_string(),
    }
}

fn tcp(host: &str, port: u16) -> Endpoint {
    Endpoint { host: Host::Tcp(host.to_owned()), address: None, port }
}

fn unix(directory: &str, port: u16) -> Endpoint {
    Endpoint { host: Host::Unix(directory.into()), address: None, port }
}

fn password(settings: &ConnectionSettings) -> Option<&str> {
    settings.password.as_ref().map(Password::reveal)
}

#[test]
fn defaults_are_those_of_libpq() {
    for text in ["", "  ", "postgresql://", "postgres:///", "postgresql:///?"] {
        let Ok(settings) = ConnectionSettings::parse(text, &environment()) else {
            assert_eq!(text, "postgresql:///?", "an empty query has a parameter without =");
            continue;
        };
        assert_eq!(settings.endpoints, [unix("/var/run/postgresql", 5432), tcp("localhost", 5432)], "{text}");
        assert_eq!((settings.user.as_str(), settings.dbname.as_str()), ("os", "os"));
        assert_eq!((settings.ssl_mode, settings.root_certificates), (SslMode::Prefer, None));
        assert_eq!(settings.channel_binding, ChannelBindingMode::Prefer);
        assert_eq!((settings.password, settings.connect_timeout, settings.options), (None, None, None));
        assert!(settings.keepalives.enabled);
    }
    assert_eq!(parse("user=ann").dbname, "ann");
    assert_eq!(ConnectionSettings::parse("", &Environment::empty()).unwrap_err(), ParseConnectionError::MissingUser);
}

#[test]
fn uris_are_read_as_libpq_reads_them() {
    let settings = parse("postgresql://ann:s%3A%40%2f%C3%A9@db:6432/my%20shop?application_name=a+b&connect_timeout=10");
    assert_eq!((settings.user.as_str(), password(&settings)), ("ann", Some("s:@/é")));
    assert_eq!((settings.endpoints.as_slice(), settings.dbname.as_str()), ([tcp("db", 6432)].as_slice(), "my shop"));
    assert_eq!(settings.application_name.as_deref(), Some("a+b"), "+ is no blank");
    assert_eq!(settings.connect_timeout, Some(Duration::from_secs(10)));

    assert_eq!(parse("postgres://a:1,b,c:3").endpoints, [tcp("a", 1), tcp("b", 5432), tcp("c", 3)]);
    assert_eq!(parse("postgres://[::1]:5433,[2001:db8::1]/x").endpoints, [tcp("::1", 5433), tcp("2001:db8::1", 5432)]);
    assert_eq!(parse("postgres://ann@%2Frun%2Fpg:5433/x").endpoints, [unix("/run/pg", 5433)]);
    assert_eq!(parse("postgres:///x?host=/run/pg&port=1").endpoints, [unix("/run/pg", 1)]);
    assert_eq!(parse("postgres://ann:@db").password, None);
    assert_eq!(password(&parse("postgres://ann:a:b?c=d@db")), Some("a:b?c=d"));
    assert_eq!(parse("postgres://db?user=bob").user, "bob");
    assert_eq!(parse("postgres://ann@db?user=bob").user, "bob", "the later one counts");
    assert_eq!(parse("postgres://db/x?ssl=true").ssl_mode, SslMode::Require);
    assert_eq!(parse("postgres://db:/x").endpoints, [tcp("db", 5432)]);
    assert_eq!(parse("postgres://ann@/x").endpoints.len(), 2);
    assert_eq!(parse("postgres://h/x?user=a%40b").user, "a@b");
}

#[test]
fn keys_and_values_are_read_as_libpq_reads_them() {
    let settings = parse(r"host = db  port=6432 user='a b' password = 'it\'s \\ \x = ok' dbname=x\ y");
    assert_eq!(settings.endpoints, [tcp("db", 6432)]);
    assert_eq!((settings.user.as_str(), settings.dbname.as_str()), ("a b", "x y"));
    assert_eq!(password(&settings), Some(r"it's \ x = ok"));
    assert_eq!(password(&parse("password=a=b'c")), Some("a=b'c"), "a quote within a bare value is a quote");
    assert_eq!(parse("user='a'dbname='b'").dbname, "b", "no blank is needed behind a quote");
    assert_eq!(parse("user=a user=b").user, "b");
    assert_eq!(parse("user= dbname=x").user, "dbname=x", "blanks behind = are skipped");
    assert_eq!(parse("password=''").password, None);
    assert_eq!(parse("host=::1").endpoints, [tcp("::1", 5432)]);
    assert_eq!(parse("password=a\\").password, Some(Password::new("a")));
    assert_eq!(parse("host=a,,/s port=1,2,3").endpoints, [tcp("a", 1), unix("/var/run/postgresql", 2), unix("/s", 3)]);
    assert_eq!(parse("host=a,b port=7").endpoints, [tcp("a", 7), tcp("b", 7)]);
}

#[test]
fn addresses_stand_in_for_looking_up() {
    let settings = parse("host=db.example.org hostaddr=127.0.0.1 port=1");
    let address = Some("127.0.0.1".parse().unwrap());
    assert_eq!(settings.endpoints, [Endpoint { address, ..tcp("db.example.org", 1) }]);
    assert_eq!(parse("hostaddr=::1").endpoints, [Endpoint { address: "::1".parse().ok(), ..tcp("::1", 5432) }]);
    assert!(refused("host=a,b hostaddr=127.0.0.1").contains("hostaddr"));
    assert!(refused("hostaddr=db").contains("not an IPv4 or IPv6 address"));
}

#[test]
fn the_environment_fills_what_is_left_open() {
    let full = environment()
        .with("PGHOST", "envhost")
        .with("PGPORT", "7")
        .with("PGUSER", "envuser")
        .with("PGPASSWORD", "envpass")
        .with("PGDATABASE", "envdb")
        .with("PGSSLMODE", "require")
        .with("PGCONNECT_TIMEOUT", "1")
        .with("PGOPTIONS", "-c x=y")
        .with("PGAPPNAME", "envapp")
        .with("PGCHANNELBINDING", "disable")
        .with("HOME", "/home/os");
    let settings = ConnectionSettings::parse("", &full).unwrap();
    assert_eq!(settings.to_string(), "postgresql://envuser@envhost:7/envdb?sslmode=require");
    assert_eq!(password(&settings), Some("envpass"));
    assert_eq!(settings.connect_timeout, Some(Duration::from_secs(2)), "one second is made two");
    assert_eq!((settings.options.as_deref(), settings.application_name.as_deref()), (Some("-c x=y"), Some("envapp")));
    assert_eq!(settings.channel_binding, ChannelBindingMode::Disable);
    assert_eq!(settings.root_certificates, Some(RootCertificates::Default("/home/os/.postgresql/root.crt".into())));

    let settings = ConnectionSettings::parse("postgres://ann:pw@db:1/x?sslmode=disable", &full).unwrap();
    assert_eq!(settings.to_string(), "postgresql://ann@db:1/x?sslmode=disable");
    assert_eq!(password(&settings), Some("pw"));

    let address = environment().with("PGHOSTADDR", "10.0.0.1").with("PGSSLROOTCERT", "/ca.pem");
    let settings = ConnectionSettings::parse("host=db", &address).unwrap();
    assert_eq!(settings.endpoints[0].address, "10.0.0.1".parse().ok());
    assert_eq!(settings.root_certificates, Some(RootCertificates::File("/ca.pem".into())));
}

#[test]
fn what_the_environment_asks_for_in_vain_is_refused() {
    let refused = |environment: Environment, text: &str| match ConnectionSettings::parse(text, &environment) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let old = refused(environment().with("PGREQUIRESSL", "1"), "");
    assert!(old.contains("PGREQUIRESSL (requiressl) is not supported: write sslmode=require"), "{old}");
    assert_eq!(refused(environment().with("PGREQUIRESSL", ""), ""), "");
    assert_eq!(refused(environment().with("PGKRBSRVNAME", "x"), ""), "", "GSSAPI is not used");
    assert!(refused(environment().with("PGPORT", "x"), "").contains("PGPORT (port)"));
    assert!(refused(environment().with("PGSERVICE", "shop"), "").contains("PGSERVICE (service): no section [shop]"));
}

#[test]
fn a_service_goes_before_the_environment_and_behind_the_string() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("services");
    let text = "[shop]\nhost=service\nport=6\nuser=service\npassword=a'b\\c #%@:/?=é\n[bad]\nport=x\nhots=1\n";
    std::fs::write(&file, text).unwrap();
    let environment =
        environment().with("PGSERVICEFILE", &file).with("PGHOST", "env").with("PGPORT", "7").with("PGAPPNAME", "env");
    let parse = |text: &str| ConnectionSettings::parse(text, &environment);
    let settings = parse("service=shop host=string").unwrap();
    assert_eq!(settings.endpoints, [tcp("string", 6)]);
    assert_eq!((settings.user.as_str(), settings.dbname.as_str()), ("service", "service"));
    assert_eq!((password(&settings), settings.application_name.as_deref()), (Some("a'b\\c #%@:/?=é"), Some("env")));
    assert_eq!(parse("postgresql:///?service=shop").unwrap().user, "service");

    let origin = |key: &str| {
        let given = settings.provenance().iter().find(|given| given.key == key).unwrap();
        (given.origin.to_string(), given.value.clone())
    };
    let at = |line| format!("service file {}, line {line}", file.display());
    assert_eq!(origin("host"), ("connection string".to_owned(), Some("string".to_owned())));
    assert_eq!(origin("port"), (at(3), Some("6".to_owned())));
    assert_eq!(origin("password"), (at(5), None));
    assert_eq!(origin("application_name").0, "environment variable PGAPPNAME");
    assert!(!format!("{:?}", settings.provenance()).contains("é"));

    let message = parse("service=bad").unwrap_err().to_string();
    assert_eq!(message, format!("{}: unknown key \"hots\"; did you mean \"host\"?", at(8)));
    let message = parse("service=shop servicefile=/nonexistent").unwrap_err().to_string();
    assert!(message.starts_with("service file /nonexistent: "), "{message}");
    let message = parse("service=none").unwrap_err().to_string();
    assert!(message.starts_with("connection string: service: no section [none] in /"), "{message}");

    std::fs::write(&file, "[bad]\nsslmode=SECRET\n").unwrap();
    let message = parse("service=bad").unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: sslmode is invalid: accepted: disable", at(2))), "{message}");
    assert!(!message.contains("SECRET"));

    // The user's own file, then the system's.
    let home = Environment::empty()
        .with_os_user("os")
        .with("HOME", folder.path())
        .with("PGSYSCONFDIR", folder.path().join("etc"))
        .with("PGSERVICE", "shop");
    std::fs::create_dir(folder.path().join("etc")).unwrap();
    std::fs::write(folder.path().join("etc/pg_service.conf"), "[shop]\nhost=system\n").unwrap();
    assert_eq!(ConnectionSettings::parse("", &home).unwrap().endpoints, [tcp("system", 5432)]);
    std::fs::write(folder.path().join(".pg_service.conf"), "[shop]\nhost=own\n").unwrap();
    assert_eq!(ConnectionSettings::parse("", &home).unwrap().endpoints, [tcp("own", 5432)]);
}

#[test]
fn files_are_named_or_lie_in_the_home_directory() {
    let home = environment().with("HOME", "/home/os");
    let settings = ConnectionSettings::parse("sslkey=/k sslcrldir=/crls", &home).unwrap();
    let default = |name: &str| Some(FileChoice::Default(format!("/home/os/{name}").into()));
    assert_eq!(settings.passfile, default(".pgpass"));
    assert_eq!(settings.certificate, default(".postgresql/postgresql.crt"));
    assert_eq!(settings.certificate_key, Some(FileChoice::Named("/k".into())));
    assert_eq!(settings.revocation_lists.file, default(".postgresql/root.crl"));
    assert_eq!(settings.revocation_lists.directory, Some("/crls".into()));
    let named = ConnectionSettings::parse("", &home.with("PGPASSFILE", "/f")).unwrap();
    assert_eq!(named.passfile, Some(FileChoice::Named("/f".into())));
}

#[test]
fn tls_settings() {
    for mode in ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] {
        assert_eq!(parse(&format!("sslmode={mode}")).ssl_mode.as_str(), mode);
    }
    let settings = parse("sslrootcert=system");
    assert_eq!((settings.ssl_mode, settings.root_certificates), (SslMode::VerifyFull, Some(RootCertificates::System)));
    assert!(refused("sslrootcert=system sslmode=require").contains("sslmode is invalid"));
    assert!(refused("sslmode=''").contains("sslmode is invalid"), "an unset variable must not weaken TLS");
    assert!(refused("sslmode=Require").contains("accepted: disable, allow, prefer, require, verify-ca, verify-full"));
    assert_eq!(parse("sslnegotiation=postgres").ssl_mode, SslMode::Prefer);
    assert!(refused("sslnegotiation=direct").contains("direct needs sslmode=require"));
    assert_eq!(parse("sslnegotiation=direct sslmode=require").ssl_negotiation, SslNegotiation::Direct);
    let versions = |text: &str| (parse(text).ssl_min_version, parse(text).ssl_max_version);
    assert_eq!(versions("ssl_min_protocol_version=TLSv1"), (TlsVersion::V1_2, TlsVersion::V1_3));
    let only = "ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.3";
    assert_eq!(versions(only), (TlsVersion::V1_3, TlsVersion::V1_3));
    assert!(refused("ssl_max_protocol_version=TLSv1.1").contains("accepted: TLSv1.2, TLSv1.3"));
    assert!(refused("ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2").contains("lower than"));
    assert!(!parse("sslsni=0").ssl_sni && parse("").ssl_sni);
    assert_eq!(parse("sslcertmode=require").certificate_mode, CertificateMode::Require);
    assert_eq!(parse("require_auth=scram-sha-256,none").require_auth.unwrap().to_string(), "scram-sha-256,none");
    assert!(refused("require_auth=!md5,scram-sha-256").contains("require_auth is invalid"));
    assert!(refused("channel_binding=on").contains("channel_binding is invalid"));
}

#[test]
fn socket_settings() {
    let settings =
        parse("keepalives=1 keepalives_idle=60 keepalives_interval=5 keepalives_count=3 tcp_user_timeout=900");
    let keepalives = Keepalives {
        enabled: true,
        idle: Some(Duration::from_secs(60)),
        interval: Some(Duration::from_secs(5)),
        count: Some(3),
    };
    assert_eq!(settings.keepalives, keepalives);
    assert_eq!(settings.tcp_user_timeout, Some(Duration::from_millis(900)));
    assert!(!parse("keepalives=0").keepalives.enabled);
    assert_eq!(parse("connect_timeout=0 keepalives_idle=0").connect_timeout, None);
    assert!(refused("keepalives_idle=-1").contains("negative"));
    assert!(refused("connect_timeout=soon").contains("connect_timeout is invalid"));
}

#[test]
fn hosts_are_chosen_by_what_they_are() {
    for attrs in TargetSessionAttrs::ALL {
        assert_eq!(parse(&format!("target_session_attrs={}", attrs.as_str())).target_session_attrs, attrs);
    }
    assert!(refused("target_session_attrs=master").contains("accepted: any, read-write, read-only, primary, standby"));
    assert!(
        parse("load_balance_hosts=random").load_balance_hosts
            && !parse("load_balance_hosts=disable").load_balance_hosts
    );
    assert!(refused("load_balance_hosts=1").contains("accepted: disable, random"));
    let settings = parse("host=a,b load_balance_hosts=random target_session_attrs=primary");
    let pinned = settings.pinned_to(&settings.endpoints[1]);
    assert_eq!((pinned.endpoints, pinned.load_balance_hosts), (vec![tcp("b", 5432)], false));
}

#[test]
fn protocol_versions_that_are_spoken_anyway_are_fine() {
    parse("min_protocol_version=3.0 max_protocol_version=latest gssencmode=prefer sslcompression=0");
    assert!(refused("min_protocol_version=3.2").contains("accepted: 3.0"));
    assert!(refused("gssencmode=require").contains("accepted: disable, prefer"));
}

#[test]
fn unknown_keys_are_named_with_the_nearest_valid_one() {
    for (text, nearest) in [
        ("hots=x", "host"),
        ("postgres://h/x?ssl_mode=require", "sslmode"),
        ("database=x", "dbname"),
        ("username=x", "user"),
        ("Password=x", "password"),
        ("connect-timeout=3", "connect_timeout"),
        ("sslrootcerts=x", "sslrootcert"),
    ] {
        let message = refused(text);
        assert!(message.contains(&format!("did you mean \"{nearest}\"")), "{text}: {message}");
    }
    assert_eq!(refused("zzzzzz=1"), "connection string: unknown key \"zzzzzz\"");
}

#[test]
fn keys_that_are_not_obeyed_are_refused_by_name() {
    for key in ["sslpassword", "gsslib", "krbsrvname", "oauth_issuer", "scram_client_key", "replication"] {
        let message = refused(&format!("{key}=x"));
        assert!(message.starts_with(&format!("connection string: {key} is not supported")), "{message}");
    }
    for key in KEYS {
        assert_eq!(KEYS.iter().filter(|other| other.name == key.name).count(), 1, "{}", key.name);
    }
}

#[test]
fn every_key_and_every_variable_is_documented() {
    let text = include_str!("../../../../docs/connections.md");
    for key in KEYS {
        assert!(text.contains(&format!("`{}`", key.name)), "{} is missing in docs/connections.md", key.name);
        let obeyed = key.standing == super::super::keys::Standing::Accepted;
        for variable in key.variable.iter().filter(|_| obeyed) {
            assert!(text.contains(&format!("`{variable}`")), "{variable} is missing in docs/connections.md");
        }
    }
}

#[test]
fn errors_say_where() {
    for (text, position) in [
        ("host=a port", 8),
        ("host=a password='abc", 17),
        ("=x", 0),
        ("postgres://a:b%zz@h", 15),
        ("postgres://h:1a/x", 14),
        ("postgres://[::1/x", 12),
        ("postgres://[::1]x/x", 16),
        ("postgres://h/x?user", 16),
        ("postgres://h/x?user=a=b", 20),
        ("postgres://h/%00", 14),
        ("postgres://h/%ff", 14),
        ("mysql://h/x", 1),
        ("user=a\0b", 7),
    ] {
        match ConnectionSettings::parse(text, &environment()) {
            Err(ParseConnectionError::Syntax { position: found, .. }) => assert_eq!(found, position, "{text}"),
            Err(ParseConnectionError::UnknownKey { key, .. }) if position == 0 => assert_eq!(key, ""),
            other => panic!("{text}: {other:?}"),
        }
    }
    for port in ["0", "65536", "-1", "x"] {
        assert!(refused(&format!("port={port}")).contains("1 to 65535"));
    }
    assert!(refused("host=a,b,c port=1,2").contains("one port, or as many as hosts"));
}

#[test]
fn no_error_shows_a_part_of_a_password() {
    for text in [
        "require_auth=SECRET",
        "sslcertmode=SECRET",
        "service=x servicefile=/nonexistent password=SECRET",
        "password=first SECRET",
        "password=first SECRET=x host=h",
        "password=first SECRET = x",
        "host=h password='SECRET",
        "postgres://u:SECRET/tail@h/x",
        "postgres://u:12/SECRET?SECRET@h/x",
        "postgres://u:12/SECRET?SECRET=x@h/x",
        "postgres://u:12/a?SECRET=x&y=z@h/x",
        "postgres://u:first@SECRET@h/x",
        "postgres://u:SECRET%@h/x",
        "postgres://u:SECRET%ff@h/x",
        "postgres://u:1#SECRET@h:SECRET/x",
        "port=SECRET sslmode=SECRET",
        "postgres://u:SECRET@h:bad/x",
        "mysql://u:SECRET@h/x",
        "u:SECRET@h",
        "connect_timeout=SECRET",
        "hostaddr=SECRET",
    ] {
        let message = refused(text);
        assert!(!message.contains("SECRET"), "{text}: {message}");
        assert!(!format!("{:?}", ConnectionSettings::parse(text, &environment())).contains("SECRET"), "{text}");
    }
}

#[test]
fn nothing_printed_shows_the_password() {
    let settings = parse("postgres://a%20b:SECRET@%2Frun,h,[::1]:1/d%2Fb");
    assert_eq!(settings.to_string(), "postgresql://a%20b@%2Frun:5432,h:5432,[::1]:1/d%2Fb?sslmode=prefer");
    assert!(!format!("{settings:?} {:?} {:?}", settings.password, settings.endpoints).contains("SECRET"));
    let environment = environment().with("PGPASSWORD", "SECRET");
    assert!(!format!("{environment:?}").contains("SECRET"));
}

proptest! {
    #[test]
    fn a_password_of_any_characters_comes_back_from_a_uri(secret in "[^\0]+") {
        let text = format!("postgresql://ann:{}@db:1/x", percent_encoded(&secret));
        let settings = parse(&text);
        prop_assert_eq!(password(&settings), Some(secret.as_str()));
    }

    #[test]
    fn a_password_of_any_characters_comes_back_from_quotes(secret in "[^\0]+") {
        let quoted = secret.replace('\\', r"\\").replace('\'', r"\'");
        let settings = parse(&format!("user=ann password='{quoted}'host=db"));
        prop_assert_eq!(password(&settings), Some(secret.as_str()));
        prop_assert_eq!(settings.user.as_str(), "ann");
    }

    #[test]
    fn any_names_and_any_password_come_back_from_every_place(
        user in "[^\0]+", db in "[^\0]+", secret in "[^\0]+",
    ) {
        let said = |settings: &ConnectionSettings| {
            (settings.user.clone(), settings.dbname.clone(), settings.password.clone())
        };
        let wanted = (user.clone(), db.clone(), Some(Password::new(secret.clone())));
        let [u, d, p] = [&user, &db, &secret].map(|text| percent_encoded(text));
        prop_assert_eq!(said(&parse(&format!("postgresql://{u}:{p}@h/{d}"))), wanted.clone());
        prop_assert_eq!(said(&parse(&format!("postgres://h?user={u}&password={p}&dbname={d}"))), wanted.clone());
        let quote = |text: &str| text.replace('\\', r"\\").replace('\'', r"\'");
        let text = format!("user='{}' dbname='{}' password='{}'", quote(&user), quote(&db), quote(&secret));
        prop_assert_eq!(said(&parse(&text)), wanted.clone());
        let full = environment().with("PGUSER", &user).with("PGDATABASE", &db).with("PGPASSWORD", &secret);
        let settings = ConnectionSettings::parse("", &full).unwrap();
        prop_assert_eq!(said(&settings), wanted);
        // What a child process is given is what it reads.
        let mut child = Environment::empty();
        for (name, value) in settings.libpq_environment() {
            child = child.with(name, value);
        }
        prop_assert_eq!(ConnectionSettings::parse("", &child).unwrap(), settings);
    }

    #[test]
    fn a_service_file_holds_any_line(user in "[^\0\n]+", db in "[^\0\n]+", secret in "[^\0\n]+") {
        // Blanks at the end of a line are no part of a value, for libpq too.
        prop_assume!([&user, &db, &secret].iter().all(|text| !text.ends_with(|c: char| c.is_ascii_whitespace())));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, format!("[s]\nuser={user}\ndbname={db}\npassword={secret}\n")).unwrap();
        let settings = parse(&format!("service=s servicefile={}", file.display()));
        prop_assert_eq!((settings.user.as_str(), settings.dbname.as_str()), (user.as_str(), db.as_str()));
        prop_assert_eq!(password(&settings), Some(secret.as_str()));
    }

    #[test]
    fn what_is_displayed_is_read_back(user in "[^\0]+", db in "[^\0]+", path in "/[^\0,]{1,9}", port in 1u16..) {
        let quote = |text: &str| text.replace('\\', r"\\").replace('\'', r"\'");
        prop_assume!(path.trim() == path);
        let text = format!("user='{}' dbname='{}' host='{},h' port={port}", quote(&user), quote(&db), quote(&path));
        let settings = parse(&text);
        prop_assert_eq!(parse(&settings.to_string()), settings);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC*", scheme in "(postgres://|postgresql://|)") {
        let _ = ConnectionSettings::parse(&format!("{scheme}{text}"), &environment());
    }

    #[test]
    fn no_structure_makes_the_parser_panic(
        text in "(postgres://)?([a-z@:/?&=%,\\[\\] '\\\\#]|é|%4|host=|user=){0,30}",
    ) {
        let _ = ConnectionSettings::parse(&text, &environment());
    }
}
