//! One real Envoy process: started on free ports, stopped on drop, its log shown when a test fails.

use crate::admin::Admin;
use crate::config::Config;
use crate::repository;
use crate::wait::until;
use anyhow::{anyhow, ensure, Context, Result};
use std::fmt;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// A start compiles the wasm module on every worker: under a second alone, several on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(30);

/// The most lines of Envoy's log that are shown when a test fails.
const TAIL_LINES: usize = 40;

/// How Envoy is started, beside its configuration.
#[derive(Debug, Clone)]
pub struct Options {
    /// Worker threads; each has a filter VM of its own.
    pub concurrency: u32,
    /// Seconds that the streams of a replaced listener may still take.
    pub drain_time_s: u32,
    /// Whether listeners come from a watched file, so that [`Envoy::update`] can replace them.
    pub dynamic: bool,
}

impl Options {
    /// With so many worker threads.
    pub fn workers(concurrency: u32) -> Self {
        Self { concurrency, ..Self::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { concurrency: 2, drain_time_s: 600, dynamic: false }
    }
}

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    process: Child,
    home: TempDir,
    admin: Admin,
}

/// An Envoy that ended instead of starting.
#[derive(Debug)]
pub struct Refusal {
    /// How the process ended.
    pub status: ExitStatus,
    /// Everything it logged.
    pub log: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Envoy did not start ({}):\n{}", self.status, tail(&self.log))
    }
}

impl std::error::Error for Refusal {}

impl Envoy {
    /// Starts Envoy and waits until it is live. An Envoy that ends by itself is a [`Refusal`].
    pub async fn start(config: &Config, options: &Options) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let config = config.clone().access_log(&spelled(&home, "access.log"));
        let document = if options.dynamic {
            place(&home, "listeners.json", &config.listener_resources().to_string())?;
            config.dynamic_bootstrap(&spelled(&home, "listeners.json"))
        } else {
            config.bootstrap().clone()
        };
        place(&home, "bootstrap.json", &document.to_string())?;
        let mut process = spawn(home.path(), options)?;

        let started = until("Envoy is live", START_WITHIN, async || {
            if let Ok(Some(status)) = process.try_wait() {
                return Some(Err(Refusal { status, log: read(home.path(), "envoy.log") }));
            }
            let admin = Admin::new(read(home.path(), "admin.address").parse().ok()?);
            admin.ready().await.then_some(Ok(admin))
        })
        .await;
        match started {
            Ok(Ok(admin)) => Ok(Self { process, home, admin }),
            Ok(Err(refusal)) => Err(refusal.into()),
            Err(late) => {
                stop(&mut process);
                Err(anyhow!("{late}\n{}", tail(&read(home.path(), "envoy.log"))))
            }
        }
    }

    /// Replaces the listeners of an Envoy that was started as `dynamic`, as a control plane on the same
    /// machine does: a new file is moved over the old one. Returns at once; Envoy's answer is in its
    /// `listener_manager.lds.` statistics.
    pub fn update(&self, config: &Config) -> Result<()> {
        let config = config.clone().access_log(&spelled(&self.home, "access.log"));
        place(&self.home, "listeners.json", &config.listener_resources().to_string())
    }

    /// Where the listener of this name listens.
    pub async fn listener(&self, name: &str) -> Result<SocketAddr> {
        self.admin.listener(name).await
    }

    /// The admin interface.
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Everything Envoy and the filter have logged so far.
    pub fn log(&self) -> String {
        read(self.home.path(), "envoy.log")
    }

    /// The access log so far. Envoy writes it with a delay of some milliseconds.
    pub fn access_log(&self) -> String {
        read(self.home.path(), "access.log")
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let crashed = self.process.try_wait().ok().flatten();
        stop(&mut self.process);
        if crashed.is_some() || std::thread::panicking() {
            let state =
                crashed.map_or("was running".to_owned(), |status| format!("had ended by itself: {status}"));
            eprintln!("--- Envoy {state}; the end of its log ---\n{}", tail(&self.log()));
        }
    }
}

/// The Envoy binary that `scripts/envoy` finds: `ENVOY_VERSION` and `ENVOY_BIN` choose. Asked once.
pub fn binary() -> Result<&'static Path> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = BINARY.get_or_init(|| find_binary().map_err(|error| format!("{error:#}")));
    found.as_deref().map_err(|error| anyhow!("{error}"))
}

fn find_binary() -> Result<PathBuf> {
    let script = repository().join("scripts/envoy");
    let output =
        Command::new(&script).stderr(Stdio::inherit()).output().with_context(|| format!("{script:?}"))?;
    ensure!(output.status.success(), "scripts/envoy found no Envoy");
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// The artifact under test. Missing is an error, never a reason to test something else.
pub fn artifact() -> Result<PathBuf> {
    built("target/wasm32-wasip1/release/kvroute.wasm", "scripts/build")
}

/// The artifact that finds hosts by name, likewise.
pub fn dns_artifact() -> Result<PathBuf> {
    built("target/dns/wasm32-wasip1/release/kvroute.wasm", "scripts/build --features dns")
}

fn built(path: &str, by: &str) -> Result<PathBuf> {
    let path = repository().join(path);
    ensure!(path.is_file(), "{path:?} is missing: run {by}");
    Ok(path)
}

fn spawn(home: &Path, options: &Options) -> Result<Child> {
    artifact()?;
    let log = File::create(home.join("envoy.log"))?;
    Command::new(binary()?)
        .current_dir(repository())
        .arg("--config-path")
        .arg(home.join("bootstrap.json"))
        .arg("--admin-address-path")
        .arg(home.join("admin.address"))
        .args(["--concurrency", &options.concurrency.to_string()])
        .args(["--drain-time-s", &options.drain_time_s.to_string()])
        // No shared memory, so any number of Envoys run beside each other.
        .arg("--disable-hot-restart")
        .args(["--service-node", "kvroute-test", "--service-cluster", "kvroute-test"])
        // `main` lists every extension at start: hundreds of lines that say nothing about a run.
        .args(["--log-level", "info", "--component-log-level", "main:warning"])
        .args(["--file-flush-interval-msec", "50"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting Envoy")
}

/// Nothing of a test's Envoy is worth an orderly end.
fn stop(process: &mut Child) {
    let _ = process.kill();
    let _ = process.wait();
}

fn spelled(home: &TempDir, name: &str) -> String {
    home.path().join(name).to_string_lossy().into_owned()
}

/// Writes a file beside its place and moves it there: whoever watches it never reads half of it.
fn place(home: &TempDir, name: &str, content: &str) -> Result<()> {
    let fresh = home.path().join(format!(".{name}"));
    fs::write(&fresh, content)?;
    fs::rename(fresh, home.path().join(name))?;
    Ok(())
}

fn read(home: &Path, name: &str) -> String {
    fs::read(home.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
