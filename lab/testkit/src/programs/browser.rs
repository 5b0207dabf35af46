//! A headless real browser, driven by chromedriver, for tests of the page.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::supervised::Supervised;
use crate::watch::wait::patience;

/// The polling interval of conditions in the browser.
const LOOK: Duration = Duration::from_millis(50);

/// More at once keep each other from ever starting.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

/// A browser with one window. It ends when this is dropped.
#[derive(Debug)]
pub struct Browser {
    port: u16,
    session: String,
    // The browser ends with the driver: a pipe connects them.
    _driver: Supervised,
    _turn: SemaphorePermit<'static>,
}

/// The appearance of the window that shows a page.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    /// True if the user prefers dark pages.
    pub dark: bool,
    pub width: u32,
    pub height: u32,
}

/// A key on the keyboard.
#[derive(Clone, Copy, Debug)]
pub enum Key {
    Tab,
    Enter,
    Escape,
    Left,
    Right,
    Down,
    Space,
}

impl Key {
    fn code(self) -> &'static str {
        match self {
            Self::Tab => "\u{e004}",
            Self::Enter => "\u{e007}",
            Self::Escape => "\u{e00c}",
            Self::Left => "\u{e012}",
            Self::Right => "\u{e014}",
            Self::Down => "\u{e015}",
            Self::Space => " ",
        }
    }
}

impl Browser {
    /// Starts a browser with its own profile.
    ///
    /// # Panics
    /// If there is none; the message explains how to install one.
    pub async fn start() -> Self {
        let turn = AT_ONCE.acquire().await.unwrap_or_else(|error| panic!("no browser may start: {error}"));
        let folder = std::env::temp_dir().join(format!("salvor-browser-{}", crate::random::suffix(10)));
        let log = folder.join("driver.log");
        let arguments = ["--port=0".to_owned()];
        let driver = Supervised::start(&folder, &log, &driver(), &arguments)
            .unwrap_or_else(|error| panic!("chromedriver does not start: {error}"));
        let port = in_time("chromedriver listens", async || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            // The full stop shows that the number is complete.
            let (port, _) = said.split("successfully on port ").nth(1)?.split_once('.')?;
            port.parse().ok()
        })
        .await;
        let mut browser = Self { port, session: String::new(), _driver: driver, _turn: turn };
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--remote-debugging-pipe",
            &format!("--user-data-dir={}", folder.join("profile").display()),
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": arguments },
        }}});
        let session = browser.call(Method::POST, "/session", wanted).await;
        session["sessionId"].as_str().unwrap_or_default().clone_into(&mut browser.session);
        browser
    }

    /// Ends it and waits until it is gone, so that no file of its profile is left.
    pub async fn close(self) {
        self.call(Method::DELETE, &format!("/session/{}", self.session), Value::Null).await;
    }

    pub async fn open(&self, url: &str) {
        self.ask(Method::POST, "url", json!({ "url": url })).await;
    }

    pub async fn look(&self, Looks { dark, width, height }: Looks) {
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", media).await;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", size).await;
    }

    pub async fn click(&self, selector: &str) {
        let found =
            self.ask(Method::POST, "element", json!({ "using": "css selector", "value": selector })).await;
        let id =
            found.as_object().and_then(|o| o.values().next()).and_then(Value::as_str).unwrap_or_default();
        self.ask(Method::POST, &format!("element/{id}/click"), json!({})).await;
    }

    pub async fn press(&self, key: Key) {
        let key = key.code();
        let strokes = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": strokes }] });
        self.ask(Method::POST, "actions", actions).await;
    }

    pub async fn value(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        self.ask(Method::POST, "execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Waits until a JavaScript expression is true in the page.
    ///
    /// # Panics
    /// If that does not happen in time; shows the content of the page.
    pub async fn until(&self, what: &str, expression: &str) {
        let deadline = tokio::time::Instant::now() + patience().duration();
        while self.value(expression).await != Value::Bool(true) {
            if tokio::time::Instant::now() > deadline {
                let text = self.value("document.body.innerText").await;
                panic!(
                    "waited in vain for: {what}\nthe page says: {text}\nconsole: {:?}",
                    self.console().await
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// New lines of the console, refusals by the content security policy included.
    pub async fn console(&self) -> Vec<String> {
        let entries = self.ask(Method::POST, "se/log", json!({ "type": "browser" })).await;
        let entries = entries.as_array().into_iter().flatten();
        entries.map(|e| e["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// A screenshot of the window, as PNG.
    pub async fn screenshot(&self) -> Vec<u8> {
        let picture = self.ask(Method::GET, "screenshot", Value::Null).await;
        let decoded = base64::engine::general_purpose::STANDARD.decode(picture.as_str().unwrap_or_default());
        decoded.unwrap_or_default()
    }

    async fn command(&self, name: &str, parameters: Value) {
        self.ask(Method::POST, "goog/cdp/execute", json!({ "cmd": name, "params": parameters })).await;
    }

    async fn ask(&self, method: Method, what: &str, body: Value) -> Value {
        self.call(method, &format!("/session/{}/{what}", self.session), body).await
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> Value {
        match request(self.port, method, path, &body).await {
            Ok(answer) if answer["value"].get("error").is_none() => answer["value"].clone(),
            Ok(answer) => panic!("the browser refuses {path} {body}: {}", answer["value"]["message"]),
            Err(error) => panic!("the browser does not answer {path}: {error}"),
        }
    }
}

async fn request(
    port: u16,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", format!("localhost:{port}"))
        .header("content-type", "application/json")
        .body(Full::new(body))?;
    let answer = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    drop(sender);
    connection.abort();
    Ok(serde_json::from_slice(&answer)?)
}

/// The repository's `tools/browser` locates chromedriver, and installs it if it may.
fn driver() -> PathBuf {
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/browser"));
    let output = Command::new(script).output().unwrap_or_else(|error| panic!("tools/browser: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

async fn in_time<T>(what: impl fmt::Display, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + patience().duration();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for: {what}");
        tokio::time::sleep(LOOK).await;
    }
}
