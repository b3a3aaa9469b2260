//! Throwaway PostgreSQL clusters.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};

use crate::installation::temporary_folder;
use crate::kill::{Killed, send};
use crate::process::ProcessId;
use crate::settings::{ClusterBuilder, conf_text, set};
use crate::{Installation, KitError, sweep, template};

/// How long a server may take to start (crash recovery included) or to stop.
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest path of a Unix socket, without the file's name.
const SOCKET_FOLDER_MAX: usize = 85;

/// A throwaway cluster: a folder below the one for temporary files, and its server.
///
/// Dropping it shuts the server down immediately and removes the folder; [`keep`](Cluster::keep) prevents that. If
/// the process dies instead, the next process that makes a cluster does it.
///
/// ```no_run
/// # async fn example() -> Result<(), pgonce_testkit::KitError> {
/// let source = pgonce_testkit::Cluster::builder(18).name("source").conf("wal_sender_timeout", "2s").start().await?;
/// source.create_database("shop").await?;
/// let client = source.connect("shop").await?;
/// source.stop_immediate().await?;
/// source.start().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    installation: Installation,
    /// Variables of the server's environment.
    environment: Vec<(String, OsString)>,
    folder: PathBuf,
    port: AtomicU16,
    keep: AtomicBool,
    conf: Mutex<Vec<(String, String)>>,
    /// The postmaster, while it runs.
    server: Mutex<Option<Child>>,
}

impl Cluster {
    /// Starts describing a cluster of this major.
    pub fn builder(major: u32) -> ClusterBuilder {
        ClusterBuilder::new(major)
    }

    pub(crate) async fn create(builder: ClusterBuilder) -> Result<Cluster, KitError> {
        let roles = builder.roles.clone();
        let cluster =
            blocking(move || Inner::create(&builder)).await.map(|inner| Cluster { inner: Arc::new(inner) })?;
        cluster.start().await?;
        for (role, password) in roles {
            let password = password.replace('\'', "''");
            let sql = format!("CREATE ROLE \"{role}\" LOGIN SUPERUSER REPLICATION PASSWORD '{password}'");
            cluster.execute("postgres", &sql).await?;
        }
        Ok(cluster)
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The server's major version.
    pub fn major(&self) -> u32 {
        self.inner.installation.major()
    }

    /// The programs that the cluster runs on.
    pub fn installation(&self) -> &Installation {
        &self.inner.installation
    }

    /// The port on 127.0.0.1. It stays the same over stops and starts.
    pub fn port(&self) -> u16 {
        self.inner.port.load(Ordering::Relaxed)
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// A URI for connections to a database as superuser `postgres`, over TCP.
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}", self.port())
    }

    /// The cluster's folder: `data`, the server's log `server.log`, with TLS `ca.crt`.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.inner.data()
    }

    /// The folder of the Unix socket, unless its path would be too long for one.
    pub fn socket_folder(&self) -> Option<PathBuf> {
        self.inner.socket_folder()
    }

    /// The authority's certificate, for `sslrootcert`, if the cluster has TLS.
    pub fn ca_file(&self) -> PathBuf {
        self.inner.folder.join("ca.crt")
    }

    /// The whole log of the server so far.
    pub fn log(&self) -> String {
        fs::read(self.inner.log_file())
            .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The last lines of the server's log, for the message of a failing test.
    pub fn log_tail(&self) -> String {
        tail(&self.log())
    }

    /// The postmaster's process number, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.inner.server().as_ref().map(Child::id)
    }

    /// Connects to a database as superuser, over the Unix socket: whatever TLS and `pg_hba.conf` say.
    pub async fn connect(&self, database: &str) -> Result<Client, KitError> {
        let config = match self.inner.socket_folder() {
            Some(folder) => {
                format!("host='{}' port={} user=postgres dbname='{database}'", folder.display(), self.port())
            }
            None => self.url(database),
        };
        let what = || format!("connecting to {database} on {}", self.inner.name);
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.map_err(KitError::sql(what()))?;
        // An error of the connection reaches the client's next call.
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }

    /// Runs statements in a database, in a connection of their own.
    pub async fn execute(&self, database: &str, sql: &str) -> Result<(), KitError> {
        let what = format!("running {sql:?} on {}", self.inner.name);
        self.connect(database).await?.batch_execute(sql).await.map_err(KitError::sql(what))
    }

    /// Creates a database.
    pub async fn create_database(&self, name: &str) -> Result<(), KitError> {
        self.execute("postgres", &format!("CREATE DATABASE \"{name}\"")).await
    }

    /// Starts the server, and returns when it takes connections.
    ///
    /// # Errors
    ///
    /// [`KitError::AlreadyRunning`], [`KitError::DidNotStart`].
    pub async fn start(&self) -> Result<(), KitError> {
        self.with_inner(Inner::start).await
    }

    /// Shuts the server down in fast mode: it aborts transactions, writes a checkpoint, waits for its walsenders.
    ///
    /// # Errors
    ///
    /// [`KitError::NotRunning`]; [`KitError::Timeout`] if a replication connection does not take what is left.
    pub async fn stop_fast(&self) -> Result<(), KitError> {
        self.with_inner(|inner| inner.stop(Signal::INT).map(drop)).await
    }

    /// Shuts the server down immediately (`pg_ctl stop -m immediate`): every backend aborts, and the next start goes
    /// through crash recovery.
    ///
    /// # Errors
    ///
    /// [`KitError::NotRunning`] if there was nothing to stop.
    pub async fn stop_immediate(&self) -> Result<Killed, KitError> {
        self.with_inner(Inner::stop_immediate).await
    }

    /// Kills the postmaster and every backend with SIGKILL, as the kernel does when memory runs out.
    ///
    /// # Errors
    ///
    /// [`KitError::NotRunning`] if there was nothing to kill.
    pub async fn sigkill_postmaster(&self) -> Result<Killed, KitError> {
        self.with_inner(Inner::sigkill).await
    }

    /// Stops the server in fast mode and starts it again.
    pub async fn restart(&self) -> Result<(), KitError> {
        self.stop_fast().await?;
        self.start().await
    }

    /// Changes a parameter. A running server is told, and has read it on return; what needs a restart takes effect at
    /// the next.
    ///
    /// # Errors
    ///
    /// [`KitError::Setting`] if the server does not take the value.
    pub async fn set_conf(&self, name: &str, value: &str) -> Result<(), KitError> {
        set(&mut self.inner.conf.lock().unwrap_or_else(PoisonError::into_inner), name, value);
        self.inner.write_conf()?;
        if self.pid().is_none() {
            return Ok(());
        }
        let what = || format!("reloading {}", self.inner.name);
        let loaded = "SELECT pg_conf_load_time()::text";
        let client = self.connect("postgres").await?;
        let before: String = client.query_one(loaded, &[]).await.map_err(KitError::sql(what()))?.get(0);
        client.execute("SELECT pg_reload_conf()", &[]).await.map_err(KitError::sql(what()))?;
        // New connections inherit the postmaster's settings, so they tell what the postmaster has read.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let client = self.connect("postgres").await?;
            let now: String = client.query_one(loaded, &[]).await.map_err(KitError::sql(what()))?.get(0);
            if now != before {
                break;
            }
            if Instant::now() > deadline {
                return Err(KitError::Timeout { what: what(), seconds: PATIENCE.as_secs() });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The view calls a parameter that waits for a restart an error too. That one is in order.
        let sql = "SELECT f.error FROM pg_file_settings f LEFT JOIN pg_settings s USING (name)
                   WHERE f.name = $1 AND f.error IS NOT NULL AND s.context IS DISTINCT FROM 'postmaster'";
        match client.query_opt(sql, &[&name]).await.map_err(KitError::sql(what()))? {
            None => Ok(()),
            Some(row) => Err(KitError::Setting { name: name.to_owned(), reason: row.get(0) }),
        }
    }

    /// Leaves the server running and the folder in place when this value is dropped and when the process ends.
    pub fn keep(&self) -> Result<(), KitError> {
        self.inner.keep.store(true, Ordering::Relaxed);
        sweep::disclaim(&self.inner.folder)
    }

    /// Runs blocking work on a thread made for it, so that the proxies and connections of a test go on.
    async fn with_inner<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, KitError> + Send + 'static,
    ) -> Result<T, KitError> {
        let inner = Arc::clone(&self.inner);
        blocking(move || work(&inner)).await
    }
}

impl Inner {
    fn create(builder: &ClusterBuilder) -> Result<Inner, KitError> {
        sweep::sweep();
        let installation = Installation::find(builder.major)?;
        let prefix = format!("{}{}-{}-", sweep::folder_prefix(), builder.name, builder.major);
        let folder = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir_in(temporary_folder())
            .map_err(KitError::io("making a cluster's folder"))?
            .keep();
        let inner = Inner {
            name: builder.name.clone(),
            installation,
            environment: builder.environment.clone(),
            port: AtomicU16::new(free_port()?),
            keep: AtomicBool::new(false),
            conf: Mutex::new(builder.conf.clone()),
            server: Mutex::new(None),
            folder,
        };
        // From here on, dropping `inner` removes the folder.
        sweep::claim(&inner.folder)?;
        inner.init(builder)?;
        Ok(inner)
    }

    /// Makes the data directory and what is in it.
    fn init(&self, builder: &ClusterBuilder) -> Result<(), KitError> {
        let prepare = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            self.give_to_server(path)
        };
        let data = self.data();
        fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o755))
            .map_err(KitError::io("making a cluster's folder"))?;
        let mut words = vec!["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"];
        words.extend(builder.initdb.iter().map(String::as_str));
        template::data_directory(&self.installation, &data, &words, |data| {
            fs::create_dir(data).and_then(|()| prepare(data, 0o700)).map_err(KitError::io("making a data directory"))
        })?;
        let write = |name: &str, text: &str, mode: u32| {
            fs::write(data.join(name), text).and_then(|()| prepare(&data.join(name), mode))
        };
        write("pg_hba.conf", &builder.hba_text(), 0o600).map_err(KitError::io("writing pg_hba.conf"))?;
        if let Some(tls) = &builder.tls {
            write("server.crt", &tls.server_certificate, 0o600)
                .and_then(|()| write("server.key", &tls.server_key, 0o600))
                .and_then(|()| write("ca.crt", &tls.ca_certificate, 0o600))
                .and_then(|()| fs::write(self.folder.join("ca.crt"), &tls.ca_certificate))
                .map_err(KitError::io("writing certificates"))?;
        }
        let mut conf =
            fs::read_to_string(data.join("postgresql.conf")).map_err(KitError::io("reading postgresql.conf"))?;
        conf.push_str("\ninclude 'pgonce.conf'\n");
        write("postgresql.conf", &conf, 0o600).map_err(KitError::io("writing postgresql.conf"))?;
        if let Some(folder) = self.socket_folder() {
            fs::create_dir(&folder)
                .and_then(|()| prepare(&folder, 0o755))
                .map_err(KitError::io("making a socket folder"))?;
        }
        Ok(())
    }

    fn give_to_server(&self, path: &Path) -> std::io::Result<()> {
        match self.installation.run_as() {
            Some(user) => chown(path, Some(user.uid), Some(user.gid)),
            None => Ok(()),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Where the Unix socket lies, unless the path is too long for one.
    fn socket_folder(&self) -> Option<PathBuf> {
        let folder = self.folder.join("socket");
        (folder.as_os_str().len() <= SOCKET_FOLDER_MAX).then_some(folder)
    }

    fn write_conf(&self) -> Result<(), KitError> {
        let mut conf = self.conf.lock().unwrap_or_else(PoisonError::into_inner).clone();
        set(&mut conf, "port", &self.port.load(Ordering::Relaxed).to_string());
        let sockets = self.socket_folder().map(|folder| folder.display().to_string()).unwrap_or_default();
        set(&mut conf, "unix_socket_directories", &sockets);
        let file = self.data().join("pgonce.conf");
        fs::write(&file, conf_text(&conf))
            .and_then(|()| self.give_to_server(&file))
            .map_err(KitError::io("writing the cluster's settings"))
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the server. If another process has the port, a cluster that never ran takes another one, and one that
    /// did waits: its URL is known to others.
    fn start(&self) -> Result<(), KitError> {
        let mut server = self.server();
        if let Some(child) = server.as_mut()
            && child.try_wait().map_err(KitError::io("looking at the server"))?.is_none()
        {
            return Err(KitError::AlreadyRunning { cluster: self.name.clone() });
        }
        let never_ran = !self.log_file().exists();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.write_conf()?;
            let log_before = fs::metadata(self.log_file()).map_or(0, |meta| meta.len());
            let mut child = self.spawn()?;
            match self.wait_ready(&mut child, deadline) {
                Ok(None) => {
                    *server = Some(child);
                    return Ok(());
                }
                Ok(Some(_)) if self.port_was_taken(log_before) && Instant::now() < deadline => {
                    if never_ran {
                        self.port.store(free_port()?, Ordering::Relaxed);
                    } else {
                        std::thread::sleep(Duration::from_millis(200));
                    }
                }
                Ok(Some(_)) => {
                    let log = fs::read(self.log_file()).unwrap_or_default();
                    let log = tail(&String::from_utf8_lossy(&log));
                    return Err(KitError::DidNotStart { cluster: self.name.clone(), log });
                }
                Err(error) => {
                    *server = Some(child);
                    return Err(error);
                }
            }
        }
    }

    fn spawn(&self) -> Result<Child, KitError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .map_err(KitError::io("opening the server's log"))?;
        let errors = log.try_clone().map_err(KitError::io("opening the server's log"))?;
        self.installation
            .command("postgres")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .arg("-D")
            .arg(self.data())
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(errors))
            .spawn()
            .map_err(KitError::io("starting postgres"))
    }

    /// Waits until the server takes connections (`None`) or has ended.
    fn wait_ready(&self, child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>, KitError> {
        loop {
            if let Some(status) = child.try_wait().map_err(KitError::io("looking at the server"))? {
                return Ok(Some(status));
            }
            let text = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
            let mut lines = text.lines();
            // The first line is the process, the eighth its state. A crash leaves the old file behind.
            let own = lines.next().is_some_and(|pid| pid.trim() == child.id().to_string());
            if own && lines.nth(6).is_some_and(|state| state.trim() == "ready") {
                return Ok(None);
            }
            if Instant::now() > deadline {
                let what = format!("the start of cluster {}", self.name);
                return Err(KitError::Timeout { what, seconds: PATIENCE.as_secs() });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn port_was_taken(&self, log_before: u64) -> bool {
        let log = fs::read(self.log_file()).unwrap_or_default();
        let new = log.get(usize::try_from(log_before).unwrap_or(0)..).unwrap_or_default();
        String::from_utf8_lossy(new).contains("Address already in use")
    }

    /// Takes the running server out, or fails: what does not run cannot be stopped.
    fn take_running(&self) -> Result<Child, KitError> {
        let what = format!("the server of cluster {}", self.name);
        let mut child = self.server().take().ok_or_else(|| KitError::NotRunning { what: what.clone() })?;
        match child.try_wait().map_err(KitError::io("looking at the server"))? {
            None => Ok(child),
            Some(status) => Err(KitError::NotRunning { what: format!("{what} ({status})") }),
        }
    }

    /// Waits for a server to end; one that does not is put back.
    fn wait_gone(&self, mut child: Child) -> Result<ExitStatus, KitError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().map_err(KitError::io("waiting for the server"))? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                *self.server() = Some(child);
                let what = format!("the end of the server of cluster {}", self.name);
                return Err(KitError::Timeout { what, seconds: PATIENCE.as_secs() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(&self, signal: Signal) -> Result<Killed, KitError> {
        let child = self.take_running()?;
        let killed = Killed { pid: child.id(), with_it: 0 };
        send(&child, signal, "the server")?;
        self.wait_gone(child)?;
        Ok(killed)
    }

    fn stop_immediate(&self) -> Result<Killed, KitError> {
        let child = self.take_running()?;
        let backends = ProcessId::of(child.id()).map(ProcessId::children).unwrap_or_default();
        let killed = Killed { pid: child.id(), with_it: backends.len() };
        // `-W`: pg_ctl would wait for a process that stays visible until this one has waited for it.
        let output = self
            .installation
            .command("pg_ctl")
            .args(["stop", "-W", "-m", "immediate", "-D"])
            .arg(self.data())
            .output()
            .map_err(KitError::io("running pg_ctl"))?;
        if !output.status.success() {
            *self.server() = Some(child);
            let output = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(KitError::Program { program: "pg_ctl".into(), output });
        }
        self.wait_gone(child)?;
        wait_all_gone(&backends)?;
        Ok(killed)
    }

    fn sigkill(&self) -> Result<Killed, KitError> {
        use std::os::unix::process::ExitStatusExt;

        let child = self.take_running()?;
        let pid = child.id();
        // Stopped, the postmaster makes no backend behind our back; dead, its backends would have no parent to be
        // found by.
        send(&child, Signal::STOP, "the server")?;
        let backends = ProcessId::of(pid).map(ProcessId::children).unwrap_or_default();
        send(&child, Signal::KILL, "the server")?;
        for backend in &backends {
            // One that has ended by itself meanwhile is as dead as it should be.
            let _ = backend.signal(Signal::KILL);
        }
        let status = self.wait_gone(child)?;
        wait_all_gone(&backends)?;
        if status.signal() != Some(Signal::KILL.as_raw()) {
            return Err(KitError::NotKilled { what: format!("postmaster {pid}"), how: status.to_string() });
        }
        Ok(Killed { pid, with_it: backends.len() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.keep.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(mut child) = self.take_running() {
            let _ = send(&child, Signal::QUIT, "the server");
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn wait_all_gone(processes: &[ProcessId]) -> Result<(), KitError> {
    let deadline = Instant::now() + PATIENCE;
    while processes.iter().any(|process| process.is_alive()) {
        if Instant::now() > deadline {
            return Err(KitError::Timeout {
                what: "the end of a server's backends".into(),
                seconds: PATIENCE.as_secs(),
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A port that was free a moment ago. Another process can be faster, so the server's start tries again.
fn free_port() -> Result<u16, KitError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(KitError::io("looking for a free port"))?;
    Ok(listener.local_addr().map_err(KitError::io("looking for a free port"))?.port())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KitError> + Send + 'static,
) -> Result<T, KitError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(KitError::io("running work on a thread")(std::io::Error::other(error))),
        },
    }
}

fn tail(log: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
