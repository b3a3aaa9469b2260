//! The one list of configuration keys. It feeds the flags, the environment variables, the reader of the file and its
//! suggestions, the JSON schema, the commented sample, and the documentation.

pub use super::kind::Kind;

/// A key of the configuration file, which is a flag and an environment variable too.
#[derive(Debug)]
pub struct Key {
    /// Where it stands in the file: `source.url` is `url` in the section `source`.
    pub path: &'static str,
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// What stands for the value in the help text.
    pub value: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// What holds where it is not set.
    pub default: Fallback,
    /// A value as it may stand in the file, for the sample.
    pub example: &'static str,
    /// What it means, without a full stop at the end: what `--help` says.
    pub help: &'static str,
    /// What else there is to say, in whole sentences, where there is more room: the sample and the documentation.
    pub more: &'static str,
}

/// What holds where a key is not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// Nothing: it must be set.
    Required,
    /// This value. `<flow>` in it stands for the flow's name.
    Value(&'static str),
    /// What only words can say.
    Words(&'static str),
}

impl Key {
    /// The section of the file that holds the key, if one does.
    pub fn section(&self) -> Option<&'static str> {
        self.path.split_once('.').map(|(section, _)| section)
    }

    /// The key's name within its section.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("PGONCE_{}", self.path.replace('.', "_").to_uppercase())
    }

    /// What its value may be, in words.
    pub fn allowed(&self) -> String {
        self.kind.allowed()
    }

    /// What holds where it is not set, in words.
    pub fn default_words(&self) -> &'static str {
        match self.default {
            Fallback::Required => "none: it must be set",
            Fallback::Value(words) | Fallback::Words(words) => words,
        }
    }
}

/// The key with this path. The paths in this program are all in the list.
pub fn key(path: &str) -> &'static Key {
    KEYS.iter().find(|key| key.path == path).unwrap_or(&KEYS[0])
}

/// The sections of the file, in order; none is that of the keys at the top level.
pub fn sections() -> Vec<Option<&'static str>> {
    let mut sections = vec![None];
    for key in KEYS {
        if !sections.contains(&key.section()) {
            sections.push(key.section());
        }
    }
    sections
}

/// Every key, in the order in which they are documented.
pub static KEYS: &[Key] = &[
    Key {
        path: "flow",
        flag: "flow",
        value: "NAME",
        kind: Kind::Text,
        default: Fallback::Required,
        example: "shop",
        help: "Names the flow: its state on the target, and by default its slot, publication and data directory",
        more: "1 to 40 lower-case letters, digits and underscores.",
    },
    Key {
        path: "source.url",
        flag: "source",
        value: "URL",
        kind: Kind::Url,
        default: Fallback::Required,
        example: "${SOURCE_URL}",
        help: "The database that changes are read from: a URI or key/value connection string, as libpq takes it",
        more: "The server needs wal_level = logical; the role needs REPLICATION, and SELECT on the tables.",
    },
    Key {
        path: "source.id",
        flag: "source-id",
        value: "ID",
        kind: Kind::Text,
        default: Fallback::Words("the cluster's system identifier and the database"),
        example: "shop-primary",
        help: "Names the source in record keys",
        more: "Any text without colons.",
    },
    Key {
        path: "source.tables",
        flag: "tables",
        value: "PATTERN",
        kind: Kind::List,
        default: Fallback::Words("every table outside system schemas and pgonce"),
        example: "[\"public.*\"]",
        help: "The tables to carry, as schema.table with * for any text; pgonce makes a publication of them at the \
               first start",
        more: "Not together with `publication`. The role must own the tables.",
    },
    Key {
        path: "source.publication",
        flag: "publication",
        value: "NAME",
        kind: Kind::List,
        default: Fallback::Value("pgonce_<flow>"),
        example: "shop_publication",
        help: "Publications that exist, made by an administrator, used as they are",
        more: "Not together with `tables`. The one that pgonce makes where none is named gets the default name.",
    },
    Key {
        path: "source.slot",
        flag: "slot",
        value: "NAME",
        kind: Kind::Text,
        default: Fallback::Value("pgonce_<flow>"),
        example: "pgonce_shop",
        help: "The replication slot; one that exists is used as it is, otherwise it is made at the first start",
        more: "",
    },
    Key {
        path: "source.origin",
        flag: "origin",
        value: "WHICH",
        kind: Kind::Choice(&["any", "none"]),
        default: Fallback::Value("any"),
        example: "none",
        help: "Which transactions are carried: `any`, or only those that have no replication origin (`none`), so that \
               what the source itself got by replication is left out",
        more: "A server that applies changes by logical replication marks them with an origin. The initial copy takes \
               the rows of a table whatever their origin. What was left out is not sent later.",
    },
    Key {
        path: "source.streaming",
        flag: "streaming",
        value: "SETTING",
        kind: Kind::Choice(&["off", "on"]),
        default: Fallback::Value("on"),
        example: "off",
        help: "Whether the source sends large transactions while they are in progress",
        more: "They are applied when they commit, either way. With `on` most of a large one is here by then, and the \
               source keeps no copy on its disk; with `off` what is rolled back is not sent.",
    },
    Key {
        path: "target.url",
        flag: "target",
        value: "URL",
        kind: Kind::Url,
        default: Fallback::Required,
        example: "${TARGET_URL}",
        help: "The database that changes are applied to: a URI or key/value connection string, as libpq takes it",
        more: "Not the source's own. The role needs CREATE on the database once (or `pgonce init --sql` for an \
               administrator), and SELECT, INSERT, UPDATE, DELETE and TRUNCATE on the tables.",
    },
    Key {
        path: "target.synchronous_commit",
        flag: "synchronous-commit",
        value: "SETTING",
        kind: Kind::Choice(&["off", "on"]),
        default: Fallback::Value("off"),
        example: "on",
        help: "Whether each commit on the target waits for its disk",
        more: "Either way the source is only told of what the target has flushed, so that `off` costs no safety.",
    },
    Key {
        path: "map",
        flag: "map",
        value: "SOURCE=TARGET",
        kind: Kind::Map,
        default: Fallback::Words("every table keeps its name"),
        example: "{public: app}",
        help: "The target's name of a schema (public=app) or a table (public.orders=app.orders)",
        more: "Where it is another one than on the source. Names with dots or capitals stand in double quotes. It \
             cannot \
               change while the flow lives.",
    },
    Key {
        path: "stream",
        flag: "stream",
        value: "STREAM",
        kind: Kind::Text,
        default: Fallback::Value("none"),
        example: "none",
        help: "What lies between source and target; only `none` so far: the slot feeds the target directly",
        more: "",
    },
    Key {
        path: "start",
        flag: "start",
        value: "MODE",
        kind: Kind::Choice(&["snapshot", "go-forward"]),
        default: Fallback::Value("snapshot"),
        example: "go-forward",
        help: "How a flow begins that has no checkpoint: `snapshot` copies the tables first; `go-forward` copies \
               nothing, begins at the slot's position, and expects a target that is a copy already",
        more: "The slot's position is its `confirmed_flush_lsn`. A flow that has a checkpoint goes on from it, \
             whatever \
               this says.",
    },
    Key {
        path: "copy_schema",
        flag: "copy-schema",
        value: "BOOL",
        kind: Kind::Boolean,
        default: Fallback::Value("false"),
        example: "true",
        help: "Whether the target's schema is created with pg_dump",
        more: "Tables before the rows; indexes, constraints and triggers after them. Only with `start: snapshot`.",
    },
    Key {
        path: "schema_privileges",
        flag: "schema-privileges",
        value: "BOOL",
        kind: Kind::Boolean,
        default: Fallback::Value("false"),
        example: "true",
        help: "Whether copy_schema gives what it creates the owners and privileges of the source",
        more: "The roles must exist on the target.",
    },
    Key {
        path: "client_tools",
        flag: "client-tools",
        value: "DIR",
        kind: Kind::Directory,
        default: Fallback::Words("the path, and where packages put it"),
        example: "/usr/lib/postgresql/18/bin",
        help: "The folder of the pg_dump that copy_schema runs",
        more: "It must not be older than the source.",
    },
    Key {
        path: "jobs",
        flag: "jobs",
        value: "N",
        kind: Kind::Count(1000),
        default: Fallback::Value("4"),
        example: "8",
        help: "How many tables, or ranges of large tables, are copied at a time, at most",
        more: "Each takes a connection to either database.",
    },
    Key {
        path: "data_dir",
        flag: "data-dir",
        value: "DIR",
        kind: Kind::Directory,
        default: Fallback::Value("./pgonce-data/<flow>"),
        example: "/var/lib/pgonce/shop",
        help: "Directory for the lock and for spilled transactions, of one process at a time",
        more: "Made with mode 0700 where it is missing.",
    },
    Key {
        path: "spill.memory",
        flag: "spill-memory",
        value: "SIZE",
        kind: Kind::Size,
        default: Fallback::Value("32MB"),
        example: "128MB",
        help: "How much of the transactions that are being received stays in memory, of all together",
        more: "Over it the largest goes to `data_dir`.",
    },
    Key {
        path: "spill.disk",
        flag: "spill-disk",
        value: "SIZE",
        kind: Kind::Size,
        default: Fallback::Value("64GB"),
        example: "500GB",
        help: "How much of them may be on disk, of all together",
        more: "A flow that needs more stops and names the transaction.",
    },
];
